// The plain steps, and loops that do nothing but multiply and add, to know the bounds. See plain.h.
#include "dev/cpu/plain.h"
#include "dev/cpu/step1_naive.h"
#include "dev/cpu/step2_loop_order.h"
#include "dev/cpu/step3_blocks.h"
#include "dev/cpu/step4_packing.h"
#include "dev/cpu/step5_registers.h"

__attribute__((always_inline)) static inline float burn(int64_t iterations, int chains) {
    float sums[PLAIN_CHAINS];
    GEMM_UNROLL for (int i = 0; i < chains; i++) { sums[i] = (float)i; }
    for (int64_t n = 0; n < iterations; n++) {
        GEMM_UNROLL for (int i = 0; i < chains; i++) { sums[i] = sums[i] * 0.5f + 1.0f; } // tends to 2
    }
    GEMM_UNROLL for (int i = 1; i < chains; i++) { sums[0] += sums[i]; }
    return sums[0];
}

static float burn_chain(int64_t iterations) { return burn(iterations, 1); }
static float burn_chains(int64_t iterations) { return burn(iterations, PLAIN_CHAINS); }

#ifndef PLAIN
#define PLAIN plain_vectors
#endif
const Plain PLAIN = {
    {step1_naive, step2_loop_order, step3_blocks, step4_packing, step5_registers}, burn_chain, burn_chains};
