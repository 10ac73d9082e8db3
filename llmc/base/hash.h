// Two 64-bit checksums. They find damage and are no defence against an attacker. Both take several GB/s on one core.
//
// XXH64 is the hash of Yann Collet's public xxHash specification, written from its description. It is for data that is
// read from its beginning to its end. Four independent lanes each take 8 bytes of a 32-byte stripe, so that the
// multiplications overlap.
//
// SUM64 is for arrays of 4-byte words that several threads or processes hold in pieces. It is the printed weights hash.
//   SUM64 of words w[0], w[1], ... = sum over i of mix((i + 1) * 0x9e3779b97f4a7c15 + w[i])   (mod 2^64)
// mix is the finaliser of SplitMix64, which maps 64 bits to 64 bits one to one and like chance. A sum does not depend
// on order: each process adds up its pieces, and then the sums of all processes are added. It finds:
//   one word that changed: always, because mix is one to one;
//   words that changed places: yes, because the place i is mixed with the word;
//   words that became zero, a piece that is missing or there twice: yes, because a zero at i adds an arbitrary number.
// The last two cases are missed with probability 2^-64, as far as mix is like chance.
#ifndef LLMC_HASH_H
#define LLMC_HASH_H

#include "llmc/base/rand.h"
#include "llmc/base/utils.h"

// ---- XXH64 ----

typedef struct {
    uint64_t lanes[4];
    uint64_t seed;
    uint64_t total;      // bytes so far
    uint8_t pending[32]; // total % 32 bytes of the stripe that is not full yet
} Hash64;

#define HASH64_PRIME1 0x9E3779B185EBCA87ULL
#define HASH64_PRIME2 0xC2B2AE3D27D4EB4FULL
#define HASH64_PRIME3 0x165667B19E3779F9ULL
#define HASH64_PRIME4 0x85EBCA77C2B2AE63ULL
#define HASH64_PRIME5 0x27D4EB2F165667C5ULL

static inline uint64_t hash64_rotate(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

static inline uint64_t hash64_load_u64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, sizeof(x));
    return x;
}

static inline uint64_t hash64_round(uint64_t lane, uint64_t input) {
    return hash64_rotate(lane + input * HASH64_PRIME2, 31) * HASH64_PRIME1;
}

static inline void hash64_init(Hash64 *hash, uint64_t seed) {
    hash->lanes[0] = seed + HASH64_PRIME1 + HASH64_PRIME2;
    hash->lanes[1] = seed + HASH64_PRIME2;
    hash->lanes[2] = seed;
    hash->lanes[3] = seed - HASH64_PRIME1;
    hash->seed = seed;
    hash->total = 0;
}

// Takes whole stripes. Returns the bytes taken (a multiple of 32). Lanes in local variables stay in registers.
static inline size_t hash64_stripes(Hash64 *hash, const uint8_t *data, size_t bytes) {
    uint64_t a = hash->lanes[0], b = hash->lanes[1], c = hash->lanes[2], d = hash->lanes[3];
    size_t done = 0;
    for (; done + 32 <= bytes; done += 32) {
        a = hash64_round(a, hash64_load_u64(data + done));
        b = hash64_round(b, hash64_load_u64(data + done + 8));
        c = hash64_round(c, hash64_load_u64(data + done + 16));
        d = hash64_round(d, hash64_load_u64(data + done + 24));
    }
    hash->lanes[0] = a, hash->lanes[1] = b, hash->lanes[2] = c, hash->lanes[3] = d;
    return done;
}

static inline void hash64_update(Hash64 *hash, const void *data, size_t bytes) {
    const uint8_t *in = (const uint8_t *)data;
    size_t held = (size_t)(hash->total % 32);
    hash->total += bytes;
    if (bytes == 0) { return; }
    if (held > 0) {
        size_t take = bytes < 32 - held ? bytes : 32 - held;
        memcpy(hash->pending + held, in, take);
        in += take, bytes -= take;
        if (held + take < 32) { return; }
        hash64_stripes(hash, hash->pending, 32);
    }
    size_t done = hash64_stripes(hash, in, bytes);
    if (bytes > done) { memcpy(hash->pending, in + done, bytes - done); }
}

// Mixes in the last 0 to 31 bytes, which fill no stripe.
static inline uint64_t hash64_tail(uint64_t h, const uint8_t *p, size_t bytes) {
    for (; bytes >= 8; p += 8, bytes -= 8) {
        h ^= hash64_round(0, hash64_load_u64(p));
        h = hash64_rotate(h, 27) * HASH64_PRIME1 + HASH64_PRIME4;
    }
    if (bytes >= 4) {
        uint32_t x;
        memcpy(&x, p, sizeof(x));
        h ^= (uint64_t)x * HASH64_PRIME1;
        h = hash64_rotate(h, 23) * HASH64_PRIME2 + HASH64_PRIME3;
        p += 4, bytes -= 4;
    }
    for (; bytes > 0; p++, bytes--) {
        h ^= *p * HASH64_PRIME5;
        h = hash64_rotate(h, 11) * HASH64_PRIME1;
    }
    return h;
}

// Returns the hash of everything so far. More may be added afterwards.
static inline uint64_t hash64_final(const Hash64 *hash) {
    const uint64_t *lanes = hash->lanes;
    uint64_t h = hash->seed + HASH64_PRIME5;
    if (hash->total >= 32) {
        h = hash64_rotate(lanes[0], 1) + hash64_rotate(lanes[1], 7) + hash64_rotate(lanes[2], 12) +
            hash64_rotate(lanes[3], 18);
        for (int i = 0; i < 4; i++) { h = (h ^ hash64_round(0, lanes[i])) * HASH64_PRIME1 + HASH64_PRIME4; }
    }
    h = hash64_tail(h + hash->total, hash->pending, (size_t)(hash->total % 32));
    h = (h ^ (h >> 33)) * HASH64_PRIME2;
    h = (h ^ (h >> 29)) * HASH64_PRIME3;
    return h ^ (h >> 32);
}

static inline uint64_t hash64(const void *data, size_t bytes) {
    Hash64 hash;
    hash64_init(&hash, 0);
    hash64_update(&hash, data, bytes);
    return hash64_final(&hash);
}

// ---- SUM64 ----

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

#endif // LLMC_HASH_H
