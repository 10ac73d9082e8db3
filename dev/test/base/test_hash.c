// XXH64 against the vectors of its specification's reference implementation, and the streaming form against the other.
// SUM64 against numbers of Python's, and in pieces. Known values fix both functions, and so what damage they find.
#include "llmc/base/hash.h"
#include "dev/test/test.h"

static void fill(uint8_t *data, size_t n) {
    for (size_t i = 0; i < n; i++) { data[i] = (uint8_t)(((uint32_t)i * 2654435761u) >> 24); }
}

// Printed by python: xxhash.xxh64(data[:n]).hexdigest(), xxhash 3, with data as in fill().
TEST(test_known_vectors) {
    static const struct {
        size_t bytes;
        uint64_t want;
    } vectors[] = {
        {0, 0xef46db3751d8e999ULL},    {1, 0xe934a84adb052768ULL},  {3, 0xa9cf36b41f9e7d09ULL},
        {4, 0x435f59a33b7eb3d1ULL},    {7, 0x651c1bb8102d53eaULL},  {8, 0x538cac3b18f9ef8eULL},
        {31, 0x4071dd1310fa5da9ULL},   {32, 0x13ee8a64346f0691ULL}, {33, 0xf75619499e2e2e99ULL},
        {63, 0x63a89bd4f10c9d1eULL},   {64, 0xfb24d94de825912fULL}, {100, 0x8a5b7a72e578e053ULL},
        {1000, 0x8420addb9882cc1bULL},
    };
    uint8_t data[1000];
    fill(data, sizeof(data));
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        uint64_t got = hash64(data, vectors[i].bytes);
        CHECK(t, got == vectors[i].want, "%zu bytes: %016llx", vectors[i].bytes, (unsigned long long)got);
    }
    CHECK(t, hash64("abc", 3) == 0x44bc2cf5ad770999ULL, "abc");
}

TEST(test_streaming) {
    uint8_t data[300];
    fill(data, sizeof(data));
    for (size_t first = 0; first <= 100; first++) {
        for (size_t second = 0; second <= 70; second += 7) {
            Hash64 hash;
            hash64_init(&hash, 0);
            hash64_update(&hash, data, first);
            hash64_update(&hash, data + first, second);
            hash64_final(&hash); // looking does not disturb
            hash64_update(&hash, data + first + second, sizeof(data) - first - second);
            CHECK(t, hash64_final(&hash) == hash64(data, sizeof(data)), "pieces of %zu and %zu", first, second);
        }
    }
    Hash64 seeded;
    hash64_init(&seeded, 1);
    CHECK(t, hash64_final(&seeded) != hash64("", 0), "the seed matters");
}

// ---- SUM64 ----

enum { WORDS = 1000 };

static void fill_words(uint32_t *words, int64_t n) {
    for (int64_t i = 0; i < n; i++) { words[i] = (uint32_t)i * 2654435761u; }
}

// From sum64 of dev/test/programs/formats.py, which is written from the formula alone.
TEST(test_sum64_known_values) {
    static const struct {
        int64_t first, words;
        uint64_t want;
    } values[] = {
        {0, 0, 0},
        {0, 1, 0xe220a8397b1dcdafULL}, // of the word 0 at 0: also the first number of SplitMix64 with seed 0
        {0, 2, 0x99169c57edeafd00ULL},
        {0, 3, 0x064deb5eeda81732ULL},
        {0, 7, 0x946f793c89065a36ULL},
        {0, 1000, 0xbd99389aea21f2a9ULL},
        {(1LL << 40) + 5, 100, 0x32ce058c0e675d4aULL},
    };
    uint32_t words[WORDS] = {0};
    CHECK(t, sum64(0, words, WORDS) == 0x727aaab3057838ebULL, "1000 zeros");
    fill_words(words, WORDS);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        uint64_t got = sum64(values[i].first, words, values[i].words);
        CHECK(t, got == values[i].want, "%lld words: %016llx", (long long)values[i].words, (unsigned long long)got);
    }
    const float floats[3] = {1.0f, -2.5f, 0.0f};
    CHECK(t, sum64(0, floats, 3) == 0x6349edd9e43e2df5ULL, "floats");
}

// Long enough for several threads, at an address that is no multiple of 4; summed in pieces from both ends.
TEST(test_sum64_in_pieces) {
    const int64_t n = ((int64_t)1 << 21) + 12345;
    uint8_t *memory = (uint8_t *)malloc((size_t)(4 * n + 1));
    uint32_t *words = (uint32_t *)malloc((size_t)(4 * n));
    fill_words(words, n);
    memcpy(memory + 1, words, (size_t)(4 * n));
    uint64_t whole = sum64(0, words, n), one_by_one = 0;
    for (int64_t i = 0; i < n; i++) { one_by_one += sum64_word((uint64_t)i, words[i]); }
    CHECK(t, whole == one_by_one, "all at once, and one by one");
    CHECK(t, whole == sum64(0, memory + 1, n), "at an odd address");
    for (int64_t piece = 1000; piece < 3 * n; piece = piece * 7 + 1) {
        uint64_t sum = 0;
        for (int64_t at = (n - 1) / piece * piece; at >= 0; at -= piece) {
            sum += sum64(at, words + at, min_i64(piece, n - at));
        }
        CHECK(t, sum == whole, "pieces of %lld", (long long)piece);
    }
    free(memory), free(words);
}
