// Step 2: another order of the same three loops. The innermost loop goes along a row of B and a row of C.
//
// Neighbours in memory are read one after another, so all 16 numbers of a cache line are used, and the hardware fetches
// the next line before it is asked for. The N sums of a row do not wait for each other. The compiler may also compute
// many of them at once with vectors; in step 1 it may not, because that would change the order of a sum.
// The price: a sum now lives in memory, so each multiply-add loads and stores it. All of B comes by once for each row.
//
//     per multiply-add: 2 loads, 1 store, 4 bytes from far away (of B)
#ifndef LADDER_STEP2_H
#define LADDER_STEP2_H

#include "dev/cpu/problem.h"

// c[j] += a b[j] for j < n. `restrict` promises that c overlaps neither a nor b.
__attribute__((noinline)) static void add_row(float *restrict c, float a, const float *b, int64_t n) {
    UNROLL_4 for (int64_t j = 0; j < n; j++) { c[j] += a * b[j]; }
}

static inline void step2_loop_order(const Problem *p) {
    memset(p->C, 0, (size_t)(p->M * p->N) * sizeof(float));
    for (int64_t i = 0; i < p->M; i++) {
        for (int64_t k = 0; k < p->K; k++) { add_row(p->C + i * p->N, p->A[i * p->K + k], p->B + k * p->N, p->N); }
    }
}

#endif // LADDER_STEP2_H
