// Measures the rate of fused multiply-adds of this machine when nothing waits for memory. Speeds are reported as
// fractions of it, so that a reader can tell a slow program from a slow machine.
#ifndef LLMC_PEAK_H
#define LLMC_PEAK_H

#include "llmc/cpu/gemm_kernel.h"
#include "llmc/cpu/simd.h"
#include "llmc/base/utils.h"

// Independent chains of multiply-adds: enough to hide the latency of a current core, and few enough to stay in
// registers.
#if defined(__AVX512F__) || defined(__aarch64__)
#define PEAK_CHAINS 24
#else
#define PEAK_CHAINS 12
#endif

// PEAK_CHAINS * VF_WIDTH * 2 operations per iteration. Returns a number that depends on all of them.
static inline float peak_burn(int64_t iterations) {
    vf sums[PEAK_CHAINS];
    GEMM_UNROLL for (int i = 0; i < PEAK_CHAINS; i++) { sums[i] = vf_set1((float)i); }
    const vf factor = vf_set1(0.5f), term = vf_set1(1.0f); // tends to 2: no overflow and no subnormals
    for (int64_t n = 0; n < iterations; n++) {
        GEMM_UNROLL for (int i = 0; i < PEAK_CHAINS; i++) { sums[i] = sums[i] * factor + term; }
    }
    GEMM_UNROLL for (int i = 1; i < PEAK_CHAINS; i++) { sums[0] += sums[i]; }
    return vf_sum(sums[0]);
}

// Processor seconds of the calling thread. Time in which another program has the core does not count.
static inline double peak_thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// GFLOP/s of the calling thread (a fused multiply-add counts 2), in the best of many short windows by the wall clock:
// other programs and a core that is still raising its clock can only make a window longer. Takes 10 ms of processor
// time, however busy the machine.
static inline double peak_of_thread(void) {
    const int64_t iterations = 100000; // 0.1 to 1 ms
    double best = 0.0, until = peak_thread_seconds() + 0.010;
    while (peak_thread_seconds() < until) {
        double start = seconds_now();
        if (peak_burn(iterations) == 0.0f) { break; } // never true; keeps the compiler from dropping the work
        best = fmax(best, 2e-9 * PEAK_CHAINS * VF_WIDTH * (double)iterations / (seconds_now() - start));
    }
    return best;
}

#endif // LLMC_PEAK_H
