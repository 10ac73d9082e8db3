// The table of all steps: what each costs by the ladder's model, and whether this machine can run it.
//
// The model: while a core begins a multiply-add, it also loads once; a store takes as long as two. The largest of the
// three counts, or the wait for a chain of sums, or the bytes from the second cache. The bytes from far away (memory,
// or the last cache) come on top. What the model leaves out makes a step slower.
#ifndef LADDER_STEPS_H
#define LADDER_STEPS_H

#include "dev/cpu/plain.h"
#include "dev/cpu/step9_amx.h"
#include "llmc/cpu/kernels.h"

typedef enum { IN_FP32, IN_BF16, IN_AMX, ARITHMETICS } Arithmetic;

// Costs of a step. Loads and stores are counted per instruction that multiplies, bytes per multiply-add of two numbers.
typedef struct {
    bool chain; // each multiply-add waits for the one before it
    double loads, stores;
    double near_bytes; // from the second cache
    double far_bytes;
    double far_bytes_over_rows; // to be divided by the rows of C that pass by a packed panel of B
} Cost;

typedef struct {
    const char *name;
    void (*run)(const Problem *); // NULL: this compiler has no such instruction. The first PLAIN_STEPS are in plain.h
    Arithmetic arithmetic;        // of the last step: step_arithmetic
    bool on_threads;
    Cost cost;
} Step;

static inline GemmKernel llmc_kernel(bool bf16) {
    GemmKernel kernel = gemm_portable;
    Error error;
    kernel_choose(&kernel, "auto", bf16, false, &error);
    return kernel;
}

static inline void llmc_multiply(const Problem *p, bool bf16) {
    GemmKernel kernel = llmc_kernel(bf16);
    const Gemm mm = {&kernel, p->workspace};
    gemm(p->C, p->N, rows_of(p->A, p->K), rows_of(p->B, p->N), NULL, p->M, p->N, p->K, false, &mm);
}

static inline void step10_llmc(const Problem *p) { llmc_multiply(p, false); }
static inline void step11_llmc_bf16(const Problem *p) { llmc_multiply(p, true); }

static inline int64_t ladder_workspace_floats(int threads) {
    return max_i64(threads * (int64_t)LADDER_WORKSPACE, gemm_workspace_floats(gemm_max_threads()));
}

#define TILE_LOADS ((TILE_ROWS + TILE_VECTORS) / (double)(TILE_ROWS * TILE_VECTORS))
// Bytes of both panels for each multiply-add of a tile, where a number takes so many bytes. A narrow panel of B stays
// in the first cache, and fewer bytes come from the second one.
#define PANEL_BYTES(bytes, rows, cols) ((bytes) * (1.0 / (rows) + 1.0 / (cols)))
#define NEAR_FP32 PANEL_BYTES(4.0, TILE_ROWS, TILE_VECTORS *VF_WIDTH)
#define NEAR_BF16 PANEL_BYTES(2.0, 8, 48)
#define FAR_C (8.0 / BLOCK_DEPTH) // C is read and written once for each block along k; llmc's of bf16 are twice as deep

static const Step steps[] = {
    {"naive", NULL, IN_FP32, false, {true, 2, 0, 64, 0, 0}},
    {"loop order", NULL, IN_FP32, false, {false, 2, 1, 0, 4, 0}},
    {"blocks", NULL, IN_FP32, false, {false, 2, 1, 4, FAR_C, 4}},
    {"packing", NULL, IN_FP32, false, {false, 2, 1, 4, FAR_C, 4}},
    {"registers", NULL, IN_FP32, false, {false, TILE_LOADS, 0, NEAR_FP32, FAR_C, 4}},
    {"vectors", step6_vectors, IN_FP32, false, {false, TILE_LOADS, 0, NEAR_FP32, FAR_C, 4}},
    {"threads", step7_threads, IN_FP32, true, {false, TILE_LOADS, 0, NEAR_FP32, FAR_C, 4}},
    {"bf16", step8_bf16, IN_BF16, true, {false, 11.0 / 24, 0, NEAR_BF16, FAR_C, 4}},
    // The 16 KiB of AMX's panel of B stay in the first cache.
    {"AMX", step9_amx, IN_AMX, true, {false, 1, 0, 2.0 / 32, FAR_C, 4}},
    {"llmc, fp32", step10_llmc, IN_FP32, true, {false, TILE_LOADS, 0, NEAR_FP32, FAR_C, 4}},
    {"llmc, bf16", step11_llmc_bf16, IN_BF16, true, {false, 11.0 / 24, 0, NEAR_BF16, FAR_C / 2, 4}},
};
enum { NUM_STEPS = sizeof(steps) / sizeof(steps[0]) };

static inline bool is_llmc(const Step *step) { return step->run == step10_llmc || step->run == step11_llmc_bf16; }

// llmc's kernels with the same instructions, as in --cpu-kernels.
static const char *const arithmetic_kernels[ARITHMETICS] = {"portable", "avx512bf16", "amx"};

// Returns what a step multiplies with. llmc's kernel for bf16 is the best that the machine has.
static inline Arithmetic step_arithmetic(const Step *step) {
    if (!is_llmc(step)) { return step->arithmetic; }
    const char *kernel = llmc_kernel(step->arithmetic == IN_BF16).name;
    int arithmetic = ARITHMETICS - 1;
    while (arithmetic > IN_FP32 && strcmp(kernel, arithmetic_kernels[arithmetic]) != 0) { arithmetic--; }
    return (Arithmetic)arithmetic;
}

// Returns why this machine leaves a step out, or NULL.
static inline const char *step_missing(const Step *step) {
    if (is_llmc(step)) { return NULL; }
    for (int i = 0; i < NUM_KERNELS; i++) {
        const KernelChoice *choice = &kernel_choices[i];
        if (strcmp(choice->kernel->name, arithmetic_kernels[step->arithmetic]) != 0) { continue; }
        return choice->is_here() ? NULL : choice->lacks;
    }
    return "this compiler or this kind of processor has no such instruction";
}

#endif // LADDER_STEPS_H
