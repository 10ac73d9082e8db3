// XXH64 against the vectors of its specification's reference implementation, and the streaming form against the other.
#include "llmc/hash.h"
#include "test.h"

static void fill(uint8_t *data, size_t n) {
    for (size_t i = 0; i < n; i++) { data[i] = (uint8_t)(((uint32_t)i * 2654435761u) >> 24); }
}

// Printed by python: xxhash.xxh64(data[:n]).hexdigest(), xxhash 3, with data as in fill().
static void test_known_vectors(Test *t) {
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

static void test_streaming(Test *t) {
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

static void test_every_bit_matters(Test *t) {
    uint8_t data[70];
    fill(data, sizeof(data));
    uint64_t whole = hash64(data, sizeof(data));
    for (size_t i = 0; i < 8 * sizeof(data); i++) {
        data[i / 8] ^= (uint8_t)(1 << i % 8);
        CHECK(t, hash64(data, sizeof(data)) != whole, "bit %zu", i);
        data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
}

int main(void) {
    Suite suite = suite_begin("hash");
    RUN(&suite, test_known_vectors);
    RUN(&suite, test_streaming);
    RUN(&suite, test_every_bit_matters);
    return suite_end(&suite);
}
