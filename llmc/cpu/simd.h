// Computes with vectors of floats, by the vector extensions of gcc and clang: one source, with hardly an intrinsic, for
// AVX-512, AVX2, SSE2 and NEON. Layers are made of the loops over one row at the end: sum, dot product, maximum,
// softmax.
//
// Determinism: element i of a row always goes to lane i % VF_WIDTH, and lanes are combined in a fixed order. A result
// depends on the values and on VF_WIDTH only, never on alignment or on the number of threads.
#ifndef LLMC_SIMD_H
#define LLMC_SIMD_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define VF_WIDTH 16
#elif defined(__AVX__)
#define VF_WIDTH 8
#else
#define VF_WIDTH 4 // SSE2, NEON; elsewhere the compiler does what it can
#endif

typedef float vf __attribute__((vector_size(VF_WIDTH * 4)));
typedef int32_t vi __attribute__((vector_size(VF_WIDTH * 4))); // a comparison of two vf: -1 where true, 0 where not

// A vector in memory at any address that is aligned for a float, half a vector, and as many doubles as half has floats.
typedef float vf_memory __attribute__((vector_size(VF_WIDTH * 4), aligned(4), may_alias));
typedef float vf_half_memory __attribute__((vector_size(VF_WIDTH * 2), aligned(4), may_alias));
typedef double vd __attribute__((vector_size(VF_WIDTH * 4)));

// ----------------------------------------------------------------------------
// Loads and stores

static inline vf vf_load(const float *p) { return *(const vf_memory *)p; }
static inline void vf_store(float *p, vf v) { *(vf_memory *)p = v; }

static inline vf vf_set1(float x) {
    vf zero = {0};
    return x - zero; // minus, because -0 + 0 would lose the sign
}

// The first n floats at p; lanes from n on are 0. Reads nothing beyond p[n - 1]. n may exceed VF_WIDTH.
static inline vf vf_load_n(const float *p, int64_t n) {
    if (n >= VF_WIDTH) { return vf_load(p); }
    float lanes[VF_WIDTH] = {0};
    for (int64_t i = 0; i < n; i++) { lanes[i] = p[i]; }
    return vf_load(lanes);
}

// Writes the first n lanes to p and nothing behind p[n - 1]. n may exceed VF_WIDTH.
static inline void vf_store_n(float *p, vf v, int64_t n) {
    if (n >= VF_WIDTH) {
        vf_store(p, v);
        return;
    }
    float lanes[VF_WIDTH];
    vf_store(lanes, v);
    for (int64_t i = 0; i < n; i++) { p[i] = lanes[i]; }
}

// ----------------------------------------------------------------------------
// Functions of each lane

static inline vf vf_select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

// b where a or b is NaN: a loop that keeps its maximum in b skips NaNs.
static inline vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
static inline vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); }

// a b + s, fused if this build has the instruction. Where bits must not depend on the loop around, the compiler may not
// choose: gcc leaves some loops unfused when it tunes for a processor of AMD.
static inline vf vf_multiply_add(vf a, vf b, vf s) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)s);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)s);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)s, (float32x4_t)a, (float32x4_t)b);
#else
    return s + a * b;
#endif
}

// e^x within 2 units in the last place, also where the result is subnormal. It is 0 below -103.98, infinity
// above 88.73, NaN for NaN. x = n ln 2 + r with n whole and |r| <= ln(2) / 2; then e^x = 2^n e^r, and a polynomial
// gives e^r (minimax fit of (e^r - 1 - r) / r^2, relative error of e^r 3e-9).
static inline vf vf_exp(vf x) {
    const float round = 12582912.0f; // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits
    vf clamped = vf_min(vf_max(x, vf_set1(-110.0f)), vf_set1(100.0f));
    vf shifted = clamped * 1.44269504f + round;
    vf n = shifted - round;
    vf r = clamped - n * 0.693359375f; // ln 2 in two parts; n times the first is exact
    r = r - n * -2.12194440e-4f;
    vf q = r * 1.38145988e-3f + 8.36871658e-3f;
    q = q * r + 4.16683889e-2f;
    q = q * r + 0.166665211f;
    q = q * r + 0.49999994f;
    vf result = q * (r * r) + r + 1.0f;
    // 2^n in two factors, because n reaches -159 .. 144 and an exponent only -126 .. 127.
    vi exponent = (vi)shifted - (vi)vf_set1(round);
    vi half = exponent >> 1;
    result = result * (vf)((half + 127) << 23) * (vf)((exponent - half + 127) << 23);
    return vf_select(x == x, result, x);
}

// tanh(x) within 3 units in the last place; odd, exactly +-1 for large |x|, NaN for NaN. Near 0 a polynomial (minimax
// fit of (tanh x - x) / x^3, relative error 4e-9), elsewhere 1 - 2 / (e^(2|x|) + 1).
static inline vf vf_tanh(vf x) {
    vi sign = (vi)x & INT32_MIN;
    vf magnitude = (vf)((vi)x & INT32_MAX);
    vf square = magnitude * magnitude;
    vf q = square * -5.70498733e-3f + 2.06390088e-2f;
    q = q * square + -5.37397154e-2f;
    q = q * square + 0.133314416f;
    q = q * square + -0.333332807f;
    vf small = q * square * magnitude + magnitude;
    vf large = 1.0f - 2.0f / (vf_exp(magnitude + magnitude) + 1.0f);
    return (vf)((vi)vf_select(magnitude < 0.625f, small, large) | sign);
}

// ----------------------------------------------------------------------------
// All lanes to one number: lane i with lane i + width / 2, and so on by halves

static inline float vf_sum(vf v) {
    float lanes[VF_WIDTH];
    vf_store(lanes, v);
    for (int half = VF_WIDTH / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) { lanes[i] += lanes[i + half]; }
    }
    return lanes[0];
}

// No lane may be NaN.
static inline float vf_max_lane(vf v) {
    float lanes[VF_WIDTH];
    vf_store(lanes, v);
    for (int half = VF_WIDTH / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) { lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half]; }
    }
    return lanes[0];
}

// ----------------------------------------------------------------------------
// Rows of n >= 0 numbers

static inline float row_sum(const float *x, int64_t n) {
    vf sum = vf_set1(0.0f);
    for (int64_t i = 0; i < n; i += VF_WIDTH) { sum += vf_load_n(x + i, n - i); }
    return vf_sum(sum);
}

static inline float row_dot(const float *x, const float *y, int64_t n) {
    vf sum = vf_set1(0.0f);
    for (int64_t i = 0; i < n; i += VF_WIDTH) { sum += vf_load_n(x + i, n - i) * vf_load_n(y + i, n - i); }
    return vf_sum(sum);
}

// Returns the largest number. NaNs do not count. Returns -infinity if there is no number.
static inline float row_max(const float *x, int64_t n) {
    vf max = vf_set1(-INFINITY);
    int64_t whole = n - n % VF_WIDTH;
    for (int64_t i = 0; i < whole; i += VF_WIDTH) { max = vf_max(vf_load(x + i), max); }
    float result = vf_max_lane(max);
    for (int64_t i = whole; i < n; i++) { result = x[i] > result ? x[i] : result; }
    return result;
}

// The mean in double precision, number by number.
static inline double row_mean(const float *x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) { sum += x[i]; }
    return sum / (double)n;
}

// The sum of squares in double precision, for norms over millions of elements.
static inline double row_sumsq(const float *x, int64_t n) {
    vd sums[2] = {{0}, {0}};
    for (int64_t i = 0; i < n; i += VF_WIDTH) {
        vf v = vf_load_n(x + i, n - i);
        for (int half = 0; half < 2; half++) {
            vd values = __builtin_convertvector(((const vf_half_memory *)&v)[half], vd);
            sums[half] += values * values;
        }
    }
    vd sum = sums[0] + sums[1];
    double result = 0.0;
    for (int i = 0; i < VF_WIDTH / 2; i++) { result += sum[i]; }
    return result;
}

// out = e^(x - shift). Returns the sum of out. It is a softmax whose sum is still to divide by if shift is the row's
// maximum, and a whole softmax if shift is the log of that sum. out may be x.
static inline float row_exp(float *out, const float *x, float shift, int64_t n) {
    vf sum = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + VF_WIDTH <= n; i += VF_WIDTH) {
        vf e = vf_exp(vf_load(x + i) - shift);
        vf_store(out + i, e);
        sum += e;
    }
    if (i < n) {
        vf e = vf_exp(vf_load_n(x + i, n - i) - shift);
        vf_store_n(out + i, e, n - i);
        sum += vf_load_n(out + i, n - i); // lanes from n on are 0
    }
    return vf_sum(sum);
}

// Does a row hold no NaN and no infinity?
static inline bool row_is_finite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) { return false; }
    }
    return true;
}

#endif // LLMC_SIMD_H
