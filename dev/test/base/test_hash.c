// SUM64 and the hash of bytes against numbers of Python's, and in pieces. Known values fix both functions, and so what
// damage they find.
#include "llmc/base/hash.h"
#include "dev/test/test.h"

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
        {0, 7, 0x946f793c89065a36ULL},
        {0, 1000, 0xbd99389aea21f2a9ULL},
        {(1LL << 40) + 5, 100, 0x32ce058c0e675d4aULL},
    };
    uint32_t words[WORDS];
    fill_words(words, WORDS);
    FOR_EACH(i, values) {
        uint64_t got = sum64(values[i].first, words, values[i].words);
        CHECK(t, got == values[i].want, "%lld words: %016llx", (long long)values[i].words, (unsigned long long)got);
    }
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

// From hash64 of formats.py. Zeros at the end, and the order of what is joined, make a difference.
TEST(test_hash_of_bytes) {
    static const struct {
        size_t bytes;
        uint64_t want;
    } vectors[] = {{0, 0xb4d055fcf2cbbd7bULL},  {1, 0xbc478d691e90d6b1ULL},   {3, 0x3999adaba4771cbbULL},
                   {4, 0x402f422ef58106b0ULL},  {5, 0x96caf6d91a9596ffULL},   {8, 0x33bbe962e7b7be59ULL},
                   {31, 0x541db9ee268007c7ULL}, {1000, 0x69faeb43695c8c7cULL}};
    uint8_t data[1000];
    for (size_t i = 0; i < sizeof(data); i++) { data[i] = (uint8_t)(((uint32_t)i * 2654435761u) >> 24); }
    FOR_EACH(i, vectors) {
        uint64_t got = hash64(data, vectors[i].bytes);
        CHECK(t, got == vectors[i].want, "%zu bytes: %016llx", vectors[i].bytes, (unsigned long long)got);
    }
    CHECK(t, hash64("a", 1) != hash64("a", 2) && hash64("", 0) != hash64("\0\0\0", 4), "zeros at the end");
    CHECK(t, hash64_join(hash64("a", 1), "b", 1) != hash64_join(hash64("b", 1), "a", 1), "the order");
}
