// Random numbers as a pure function of (seed, stream, index). There is no generator state to save, to share between
// threads or to replay after a resume. Element i of tensor t does not depend on the number of threads or ranks.
//
// The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood 2014: "Fast splittable pseudorandom number
// generators"), applied once per coordinate.
#ifndef LLMC_RAND_H
#define LLMC_RAND_H

#include <math.h>
#include <stdint.h>

// Kernels draw the numbers that the host draws.
#ifdef __CUDACC__
#define RAND_HOST_DEVICE __host__ __device__
#else
#define RAND_HOST_DEVICE
#endif

// Streams are independent sequences under one seed. Parameter tensor i uses stream RAND_INIT + i.
enum { RAND_SHARDS = 1, RAND_WINDOWS = 2, RAND_SAMPLER = 3, RAND_ROUNDING = 4, RAND_INIT = 1000 };

#define RAND_GOLDEN 0x9e3779b97f4a7c15ULL // 2^64 / golden ratio, odd

RAND_HOST_DEVICE static inline uint64_t rand_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

static inline uint64_t rand_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    uint64_t key = rand_mix(rand_mix(seed + RAND_GOLDEN) + (stream + 1) * RAND_GOLDEN);
    return rand_mix(key + (index + 1) * RAND_GOLDEN);
}

// Returns a number uniform in [0, 1), with 53 random bits.
static inline double rand_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(rand_u64(seed, stream, index) >> 11) * (1.0 / 9007199254740992.0);
}

// Draws two independent standard normal numbers (Box-Muller). Element i of a tensor is half i%2 of pair i/2.
static inline void rand_normal_pair(uint64_t seed, uint64_t stream, uint64_t pair, float out[2]) {
    uint64_t bits = rand_u64(seed, stream, pair);
    float u = ((float)(bits >> 40) + 0.5f) * (1.0f / 16777216.0f); // in (0, 1), so log never sees 0
    float angle = (float)((bits >> 16) & 0xffffff) * (6.2831853071795865f / 16777216.0f);
    float radius = sqrtf(-2.0f * logf(u));
    out[0] = radius * cosf(angle);
    out[1] = radius * sinf(angle);
}

// Returns the place of index under a pseudo-random permutation of 0..n-1 chosen by (seed, stream). Requires 0 <= index
// < n. The permutation needs no table, so 100 billion windows cost no memory. It is a six-round Feistel network on the
// smallest even number of bits that holds n, repeated until the result is below n (less than four times on average for
// n > 64). It uses at least 8 bits: with fewer bits or rounds, small permutations are visibly uneven.
static inline uint64_t rand_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n) {
    int half_bits = 4;
    while (half_bits < 32 && (n - 1) >> (2 * half_bits) != 0) { half_bits++; }
    uint64_t mask = (1ULL << half_bits) - 1;
    do {
        uint64_t left = index >> half_bits, right = index & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t mixed = left ^ (rand_u64(seed, stream, (right << 3) | round) & mask);
            left = right;
            right = mixed;
        }
        index = (left << half_bits) | right;
    } while (index >= n);
    return index;
}

#endif // LLMC_RAND_H
