// Measures what bounds a step on this machine: multiply-adds, and bytes from the second cache and from far away.
#ifndef LADDER_MACHINE_H
#define LADDER_MACHINE_H

#include "dev/cpu/steps.h"

typedef struct {
    int threads;
    double chain, scalar;         // GFLOP/s of one core, number by number: in one chain of sums, and in many
    double peak[ARITHMETICS];     // GFLOP/s of one core with vectors or tiles; 0: this machine has none
    double all_peak[ARITHMETICS]; // of all cores
    double near_rate, far_rate, all_far_rate; // GB/s of one core, and of all cores
} Machine;

// Calls work(argument) for 0.1 seconds at least. Returns the least seconds of a call.
static inline double least_seconds(void (*work)(const void *), const void *argument) {
    double best = INFINITY, until = seconds_now() + 0.1;
    for (int i = 0; i < 3 || seconds_now() < until; i++) {
        double start = seconds_now();
        work(argument);
        best = fmin(best, seconds_now() - start);
    }
    return best;
}

enum { BURNS = 20000 };
static volatile float keep; // a result that nobody drops

static inline void burn_one(const void *plain) { keep = ((const Plain *)plain)->burn_chain(BURNS); }
static inline void burn_many(const void *plain) { keep = ((const Plain *)plain)->burn_chains(BURNS); }

typedef struct {
    const float *data;
    int64_t floats;
    int threads;
} Piece;

// Adds up memory in 8 chains, so that the sums wait for nothing but the memory.
static inline float sum_of(const float *x, int64_t n) {
    vf sums[8];
    GEMM_UNROLL for (int i = 0; i < 8; i++) { sums[i] = vf_set1(0.0f); }
    for (int64_t at = 0; at + 8 * VF_WIDTH <= n; at += 8 * VF_WIDTH) {
        GEMM_UNROLL for (int i = 0; i < 8; i++) { sums[i] += vf_load(x + at + i * VF_WIDTH); }
    }
    GEMM_UNROLL for (int i = 1; i < 8; i++) { sums[0] += sums[i]; }
    return vf_sum(sums[0]);
}

static inline void read_piece(const void *argument) {
    const Piece *piece = (const Piece *)argument;
    float sum = 0.0f;
#pragma omp parallel for num_threads(piece->threads) schedule(static, 1) reduction(+ : sum)
    for (int thread = 0; thread < piece->threads; thread++) {
        int64_t share = piece->floats / piece->threads;
        sum += sum_of(piece->data + thread * share, share);
    }
    keep = sum;
}

static inline double read_rate(const float *data, int64_t floats, int threads) {
    Piece piece = {data, floats, threads};
    return 4e-9 * (double)floats / least_seconds(read_piece, &piece);
}

#if defined(__x86_64__)
STEP8_TARGET static inline void burn_pairs(const void *unused) {
    __m512 sums[24];
    const __m512bh factor = (__m512bh)_mm512_set1_epi32(0x3e80), term = (__m512bh)_mm512_set1_epi32(0x3f80);
    GEMM_UNROLL for (int i = 0; i < 24; i++) { sums[i] = _mm512_set1_ps((float)i); }
    for (int n = 0; n < BURNS; n++) {
        GEMM_UNROLL for (int i = 0; i < 24; i++) { sums[i] = _mm512_dpbf16_ps(sums[i], factor, term); }
    }
    for (int i = 1; i < 24; i++) { sums[0] = _mm512_add_ps(sums[0], sums[i]); }
    keep = _mm512_cvtss_f32(sums[0]);
    (void)unused;
}
#endif

#ifdef GEMM_AMX_TARGET
GEMM_AMX_TARGET static inline void burn_tiles(const void *unused) {
    configure_tiles();
    for (int n = 0; n < BURNS / 16; n++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    (void)unused;
}
#endif

// GFLOP/s of one core by the instruction of a step that this machine can run.
static inline double arithmetic_peak(Arithmetic arithmetic) {
#if defined(__x86_64__)
    if (arithmetic == IN_BF16) { return 4e-9 * BURNS * 24 * 16 / least_seconds(burn_pairs, NULL); }
#endif
#ifdef GEMM_AMX_TARGET
    if (arithmetic == IN_AMX) { return 2e-9 * (BURNS / 16) * 4 * 8192 / least_seconds(burn_tiles, NULL); }
#endif
    // A compiler that knows the kernel leaves out its multiply-adds, because nobody reads the sums.
    const GemmKernel *volatile kernel = &gemm_portable;
    return arithmetic == IN_FP32 ? kernel_rate(kernel) : 0.0;
}

static inline Machine measure_machine(const Problem *p) {
    Machine m = {.threads = p->threads};
    m.chain = 2e-9 * BURNS / least_seconds(burn_one, &plain_scalar);
    m.scalar = 2e-9 * BURNS * PLAIN_CHAINS / least_seconds(burn_many, &plain_scalar);
    for (int i = 0; i < NUM_STEPS; i++) {
        Arithmetic arithmetic = step_arithmetic(&steps[i]);
        if (m.peak[arithmetic] > 0.0 || step_missing(&steps[i]) != NULL) { continue; }
        m.peak[arithmetic] = arithmetic_peak(arithmetic);
#pragma omp parallel for num_threads(p->threads) schedule(static, 1)
        for (int thread = 0; thread < p->threads; thread++) {
            double peak = arithmetic_peak(arithmetic);
#pragma omp atomic
            m.all_peak[arithmetic] += peak;
        }
    }
    int64_t floats = p->K * p->N;
    m.near_rate = read_rate(p->B, min_i64(BLOCK_DEPTH * BLOCK_COLS, floats), 1);
    m.far_rate = read_rate(p->B, floats, 1), m.all_far_rate = read_rate(p->B, floats, p->threads);
    return m;
}

#endif // LADDER_MACHINE_H
