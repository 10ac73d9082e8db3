// What this machine could do at best: the rate of fused multiply-adds when nothing waits for memory. Speeds are reported
// as fractions of it, so that a reader can tell a slow program from a slow machine.
#ifndef LLMC_PEAK_H
#define LLMC_PEAK_H

#include "simd.h"
#include "utils.h"

// Independent chains of multiply-adds: enough to hide the latency of any current core, few enough to stay in registers.
#if defined(__AVX512F__) || defined(__aarch64__)
#define PEAK_CHAINS 24
#else
#define PEAK_CHAINS 12
#endif

#if defined(__clang__)
#define PEAK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PEAK_UNROLL _Pragma("GCC unroll 24")
#endif

// PEAK_CHAINS * VF_WIDTH * 2 operations per iteration. Returns a number that depends on all of them.
static inline float peak_burn(int64_t iterations) {
    vf sums[PEAK_CHAINS];
    PEAK_UNROLL for (int i = 0; i < PEAK_CHAINS; i++) { sums[i] = vf_set1((float)i); }
    const vf factor = vf_set1(0.5f), term = vf_set1(1.0f); // tends to 2: neither overflow nor subnormals
    for (int64_t n = 0; n < iterations; n++) {
        PEAK_UNROLL for (int i = 0; i < PEAK_CHAINS; i++) { sums[i] = sums[i] * factor + term; }
    }
    PEAK_UNROLL for (int i = 1; i < PEAK_CHAINS; i++) { sums[0] += sums[i]; }
    return vf_sum(sums[0]);
}

// Seconds for all threads to do so many iterations each.
static inline double peak_seconds(int threads, int64_t iterations) {
    float sink = 0.0f;
    double start = seconds_now();
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : sink)
    for (int i = 0; i < threads; i++) { sink += peak_burn(iterations); }
    double seconds = seconds_now() - start;
    return sink > 0.0f ? seconds : INFINITY; // always true, but the compiler must do the work to know
}

// The peak of `threads` cores together in GFLOP/s (a fused multiply-add counts 2), measured for about 30 ms: the best of
// several short windows, because other programs and a sleeping clock can only make it lower.
static inline double peak_measure_flops(int threads) {
    const double flops_per_iteration = 2.0 * PEAK_CHAINS * VF_WIDTH * threads;
    int64_t iterations = 10000;
    double best = 0.0, until = seconds_now() + 0.030;
    while (seconds_now() < until) {
        double seconds = peak_seconds(threads, iterations);
        double rate = flops_per_iteration * (double)iterations / seconds * 1e-9;
        best = rate > best ? rate : best;
        if (seconds < 0.002) { iterations *= 2; }
    }
    return best;
}

#endif // LLMC_PEAK_H
