// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), written from the standards. With them two processes prove to each
// other that they know one secret, without sending it. Random bytes come from the operating system.
#ifndef LLMC_HMAC_H
#define LLMC_HMAC_H

#include <sys/random.h>
#include <unistd.h>

#include "llmc/base/utils.h"

#define SHA256_BYTES 32
#define SHA256_BLOCK 64

typedef struct {
    uint32_t state[8];
    uint64_t total;                // bytes so far
    uint8_t pending[SHA256_BLOCK]; // total % SHA256_BLOCK bytes of the block that is not full yet
} Sha256;

typedef struct {
    Sha256 inner, outer;
} HmacSha256;

static inline uint32_t sha256_rotate(uint32_t x, int bits) { return (x >> bits) | (x << (32 - bits)); }

// Mixes one block into the state. The names are the standard's; v is a b c d e f g h.
static inline void sha256_block(uint32_t state[8], const uint8_t *block) {
    // The first 32 bits of the fractions of the cube roots of the first 64 primes.
    static const uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], v[8];
    for (int t = 0; t < 16; t++) {
        const uint8_t *p = block + 4 * t;
        w[t] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    for (int t = 16; t < 64; t++) {
        uint32_t x = w[t - 15], y = w[t - 2];
        uint32_t sigma0 = sha256_rotate(x, 7) ^ sha256_rotate(x, 18) ^ (x >> 3);
        uint32_t sigma1 = sha256_rotate(y, 17) ^ sha256_rotate(y, 19) ^ (y >> 10);
        w[t] = sigma1 + w[t - 7] + sigma0 + w[t - 16];
    }
    memcpy(v, state, sizeof(v));
    for (int t = 0; t < 64; t++) {
        uint32_t sum1 = sha256_rotate(v[4], 6) ^ sha256_rotate(v[4], 11) ^ sha256_rotate(v[4], 25);
        uint32_t sum0 = sha256_rotate(v[0], 2) ^ sha256_rotate(v[0], 13) ^ sha256_rotate(v[0], 22);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t t1 = v[7] + sum1 + choice + constants[t] + w[t], t2 = sum0 + majority;
        memmove(v + 1, v, 7 * sizeof(v[0]));
        v[4] += t1, v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) { state[i] += v[i]; }
}

static inline void sha256_init(Sha256 *hash) {
    // The first 32 bits of the fractions of the square roots of the first 8 primes.
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(hash, 0, sizeof(*hash));
    memcpy(hash->state, first, sizeof(first));
}

static inline void sha256_update(Sha256 *hash, const void *data, size_t bytes) {
    const uint8_t *in = (const uint8_t *)data;
    while (bytes > 0) {
        size_t held = (size_t)(hash->total % SHA256_BLOCK), room = SHA256_BLOCK - held;
        size_t take = bytes < room ? bytes : room;
        memcpy(hash->pending + held, in, take);
        in += take, bytes -= take, hash->total += take;
        if (take == room) { sha256_block(hash->state, hash->pending); }
    }
}

// Ends the message with a bit 1, zeros, and its length in bits. Nothing can be added afterwards.
static inline void sha256_final(Sha256 *hash, uint8_t digest[SHA256_BYTES]) {
    static const uint8_t padding[SHA256_BLOCK] = {0x80};
    uint64_t bits = 8 * hash->total;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) { length[i] = (uint8_t)(bits >> (56 - 8 * i)); }
    sha256_update(hash, padding, 1 + (size_t)((SHA256_BLOCK + 55 - hash->total % SHA256_BLOCK) % SHA256_BLOCK));
    sha256_update(hash, length, sizeof(length));
    for (int i = 0; i < SHA256_BYTES; i++) { digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4))); }
}

static inline void sha256(const void *data, size_t bytes, uint8_t digest[SHA256_BYTES]) {
    Sha256 hash;
    sha256_init(&hash);
    sha256_update(&hash, data, bytes);
    sha256_final(&hash, digest);
}

// Begins a code. A key longer than a block is hashed first.
static inline void hmac_init(HmacSha256 *code, const void *key, size_t bytes) {
    uint8_t padded[SHA256_BLOCK] = {0};
    if (bytes > sizeof(padded)) { sha256(key, bytes, padded); }
    if (bytes > 0 && bytes <= sizeof(padded)) { memcpy(padded, key, bytes); }
    sha256_init(&code->inner), sha256_init(&code->outer);
    for (int i = 0; i < SHA256_BLOCK; i++) { padded[i] ^= 0x36; }
    sha256_update(&code->inner, padded, sizeof(padded));
    for (int i = 0; i < SHA256_BLOCK; i++) { padded[i] ^= 0x36 ^ 0x5c; }
    sha256_update(&code->outer, padded, sizeof(padded));
}

static inline void hmac_final(HmacSha256 *code, uint8_t digest[SHA256_BYTES]) {
    sha256_final(&code->inner, digest);
    sha256_update(&code->outer, digest, SHA256_BYTES);
    sha256_final(&code->outer, digest);
}

// Compares in a time that depends on `bytes` only, so that nobody can find a code byte by byte.
static inline bool secret_equal(const void *a, const void *b, size_t bytes) {
    const volatile uint8_t *x = (const volatile uint8_t *)a, *y = (const volatile uint8_t *)b;
    uint8_t difference = 0;
    for (size_t i = 0; i < bytes; i++) { difference |= x[i] ^ y[i]; }
    return difference == 0;
}

// Fills at most 256 bytes with what nobody can guess.
static inline bool secret_random(void *bytes, size_t count, Error *error) {
    return getentropy(bytes, count) == 0 || fail(error, "no random bytes: %s", strerror(errno));
}

#endif // LLMC_HMAC_H
