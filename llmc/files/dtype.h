// The two 16-bit floating-point types found in model files, converted to float. Both conversions are exact.
#ifndef LLMC_DTYPE_H
#define LLMC_DTYPE_H

#include "llmc/base/utils.h"

static inline float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t bits_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

// bfloat16 is the upper half of a float.
static inline float float_from_bf16(uint16_t bits) { return float_from_bits((uint32_t)bits << 16); }

// IEEE half precision: 1 sign, 5 exponent (bias 15), 10 fraction bits.
static inline float float_from_f16(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
    if (exponent == 0) { // zero and subnormals: fraction * 2^-24
        float magnitude = (float)fraction * (1.0f / 16777216.0f);
        return float_from_bits(bits_from_float(magnitude) | sign);
    }
    if (exponent == 31) { return float_from_bits(sign | 0x7f800000 | fraction << 13); } // infinity, NaN
    return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

// True for every value but NaN and the infinities. Looks at the bits, so that no compiler option can optimise it away.
static inline bool float_is_finite(float value) { return (bits_from_float(value) & 0x7f800000) != 0x7f800000; }

// Index of the first value that is not finite, n if all are.
static inline int64_t first_not_finite(const float *values, int64_t n) {
    enum { BLOCK = 4096 }; // a branch-free inner loop that compilers vectorise
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t end = min_i64(start + BLOCK, n);
        int bad = 0;
        for (int64_t i = start; i < end; i++) { bad |= !float_is_finite(values[i]); }
        for (int64_t i = start; bad && i < end; i++) {
            if (!float_is_finite(values[i])) { return i; }
        }
    }
    return n;
}

#endif // LLMC_DTYPE_H
