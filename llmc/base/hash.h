// SUM64 is a checksum of an array of 4-byte words, of which several threads or processes hold pieces. It is the printed
// weights hash. It finds damage and is no defence against an attacker.
//   SUM64 of words w[0], w[1], ... = sum over i of mix((i + 1) * 0x9e3779b97f4a7c15 + w[i])   (mod 2^64)
// mix is the finaliser of SplitMix64, which maps 64 bits to 64 bits one to one and like chance. A sum does not depend
// on order: each process adds up its pieces, and then the sums of all processes are added. One changed word is always
// found, because mix is one to one. Words that changed places or became zero, and a piece that is missing or there
// twice, are missed with probability 2^-64, because the place i is mixed with the word.
//
// The hash of any bytes is the SUM64 of their words, the last one filled up with zeros, plus mix(-1 - their number).
#ifndef LLMC_HASH_H
#define LLMC_HASH_H

#include "llmc/base/rand.h"
#include "llmc/base/utils.h"

// Returns the number that word i of an array adds to its SUM64. Kernels may use it too.
RAND_HOST_DEVICE static inline uint64_t sum64_word(uint64_t i, uint32_t word) {
    return rand_mix((i + 1) * RAND_GOLDEN + word);
}

static inline uint64_t sum64_serial(int64_t first, const uint8_t *words, int64_t n) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, words + 4 * i, sizeof(word));
        sum += sum64_word((uint64_t)(first + i), word);
    }
    return sum;
}

// Returns the sum that words first .. first + n - 1 contribute to an array's SUM64. `words` points at word `first`.
// Large parts are divided among threads, whose number does not change the sum.
static inline uint64_t sum64(int64_t first, const void *words, int64_t n) {
    const int64_t block = (int64_t)1 << 16;
    const uint8_t *bytes = (const uint8_t *)words;
    uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum) if (n >= 16 * block)
    for (int64_t b = 0; b < ceil_div_i64(n, block); b++) {
        sum += sum64_serial(first + b * block, bytes + 4 * b * block, min_i64(block, n - b * block));
    }
    return sum;
}

// Returns the hash of `bytes` bytes that have this SUM64.
static inline uint64_t hash64_end(uint64_t sum, int64_t bytes) { return sum + rand_mix(~(uint64_t)bytes); }

static inline uint64_t hash64(const void *data, size_t bytes) {
    int64_t words = (int64_t)(bytes / 4);
    uint32_t last = 0;
    uint64_t sum = sum64(0, data, words);
    if (bytes % 4 == 0) { return hash64_end(sum, (int64_t)bytes); }
    memcpy(&last, (const uint8_t *)data + 4 * words, bytes % 4);
    return hash64_end(sum + sum64_word((uint64_t)words, last), (int64_t)bytes);
}

// Returns the hash of a hash and more bytes.
static inline uint64_t hash64_join(uint64_t hash, const void *data, size_t bytes) {
    const uint64_t both[2] = {hash, hash64(data, bytes)};
    return hash64(both, sizeof(both));
}

#endif // LLMC_HASH_H
