// Chooses the kernel of the matrix multiply when the program runs. The processor and the operating system are asked for
// each instruction set, so that a program meets no illegal instruction, whatever it was built for.
#ifndef LLMC_KERNELS_H
#define LLMC_KERNELS_H

#include "llmc/cpu/gemm.h"
#include "llmc/cpu/gemm_amx.h"
#include "llmc/cpu/gemm_arm.h"
#include "llmc/cpu/gemm_x86.h"

#if defined(__x86_64__)
#include <cpuid.h>

static inline bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static inline bool has_avx512(void) { return __builtin_cpu_supports("avx512f"); }

// Bit 5 of EAX of leaf 7, subleaf 1. Compilers of 2020 have no name for it.
static inline bool has_avx512bf16(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

static inline bool is_intel(void) { return __builtin_cpu_is("intel"); }
#else
static inline bool is_intel(void) { return false; }
#endif

static inline bool has_portable(void) { return true; }

typedef struct {
    const GemmKernel *kernel;
    bool (*is_here)(void);
    const char *lacks;  // why it cannot run where it is not here
    bool slow_on_intel; // which multiplies bf16 in AMX: its AVX512-BF16 has half the speed of fp32, AMD's twice
} KernelChoice;

// The kernels that this compiler knows, the fastest first.
static const KernelChoice kernel_choices[] = {
#ifdef GEMM_AMX_TARGET
    {&gemm_amx, has_amx, "this processor lacks AMX, or this kernel of Linux does not permit it", false},
#endif
#if defined(__x86_64__)
    {&gemm_avx512bf16, has_avx512bf16, "this processor lacks AVX512-BF16", true},
    {&gemm_avx512, has_avx512, "this processor lacks AVX-512", false},
    {&gemm_avx2, has_avx2, "this processor lacks AVX2 or FMA", false},
#endif
#ifdef GEMM_BFMMLA_TARGET
    {&gemm_bfmmla, has_bfmmla, "this processor lacks the bf16 instructions of ARMv8.6", false},
#endif
    {&gemm_portable, has_portable, "", false},
};
enum { NUM_KERNELS = sizeof(kernel_choices) / sizeof(kernel_choices[0]) };

// Finds the kernel of a name, or the fastest for "auto". With bf16, a kernel of floats gets operands rounded to bf16.
// one_row: A has one row in most multiplies, as in a sample, so that the bytes of B count and not the arithmetic. Fails
// if the name has no kernel here.
static inline bool kernel_choose(GemmKernel *kernel, const char *name, bool bf16, bool one_row, Error *error) {
    const char *why = "this compiler or this kind of processor has none";
    for (int i = 0; i < NUM_KERNELS; i++) {
        const KernelChoice *choice = &kernel_choices[i];
        bool automatic = strcmp(name, "auto") == 0;
        if (automatic && !one_row && choice->slow_on_intel && is_intel()) { continue; }
        if (!automatic && strcmp(name, choice->kernel->name) != 0) { continue; }
        *kernel = *choice->kernel;
        if (kernel->words == GEMM_PAIRS && !bf16) {
            why = "it multiplies bf16, for --precision bf16";
        } else if (!choice->is_here()) {
            why = choice->lacks;
        } else {
            if (bf16 && kernel->words == GEMM_FLOATS) { kernel->words = GEMM_ROUNDED; }
            return true;
        }
    }
    return fail(error, "--cpu-kernels %s: %s; auto takes the fastest that is here", name, why);
}

// Processor seconds of the calling thread. Time in which another program has the core does not count.
static inline double kernel_thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// GFLOP/s of the calling thread in the kernel's multiply-adds when nothing waits for memory, or in a kernel without
// burn, on panels that stay in its caches. A multiply-add counts 2. The best of many short windows by the wall clock
// counts: other programs and a core that is still raising its clock can only make a window longer.
static inline double kernel_rate(const GemmKernel *kernel) {
    float a[2 * GEMM_LANES * GEMM_DEPTH] = {0}, b[GEMM_DEPTH * GEMM_MAX_COLS] = {0};
    float tile[GEMM_MAX_ROWS * GEMM_MAX_COLS];
    double best = 0.0, until = kernel_thread_seconds() + 0.010;
    if (kernel->begin != NULL) { kernel->begin(); }
    while (kernel_thread_seconds() < until) {
        double start = seconds_now();
        int64_t words = kernel->burn != NULL ? kernel->burn(tile, a, b, 50000) : 0;
        for (int i = 0; kernel->burn == NULL && i < 50; i++) {
            kernel->multiply(tile, GEMM_MAX_COLS, a, GEMM_LANES * GEMM_DEPTH, b, kernel->depth, kernel->rows,
                             kernel->cols, false, &gemm_nothing_ahead);
            words += (int64_t)kernel->rows * kernel->cols * kernel->depth;
        }
        best = fmax(best, 2e-9 * (double)(words * gemm_per_word(kernel->words)) / (seconds_now() - start));
    }
    if (kernel->end != NULL) { kernel->end(); }
    return best;
}

// The peak of `threads` cores together in GFLOP/s. Speeds are reported as fractions of it, so that a reader can tell a
// slow program from a slow machine.
static inline double kernel_peak(const GemmKernel *kernel, int threads) {
    double peak = 0.0;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : peak)
    for (int i = 0; i < threads; i++) { peak += kernel_rate(kernel); }
    return peak;
}

// Writes what the bits of a run depend on besides its options: the kernel, and the vectors of all other layers.
static inline void kernel_describe(const GemmKernel *kernel, char *text, size_t size) {
    snprintf(text, size, "%s and vectors of %d floats", kernel->name, VF_WIDTH);
}

#endif // LLMC_KERNELS_H
