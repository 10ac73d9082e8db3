// Step 3: tiling for the caches. B is cut into blocks of BLOCK_DEPTH x BLOCK_COLS numbers, 256 KiB. A block stays in
// the second cache while all rows of A pass by.
//
// A number of B comes from far away once, and then serves M multiply-adds. The arithmetic and its order in each element
// of C are those of step 2.
//
//     per multiply-add: 2 loads, 1 store, 4 / M bytes from far away, 4 bytes from the second cache
#ifndef LADDER_STEP3_H
#define LADDER_STEP3_H

#include "dev/cpu/step2_loop_order.h"

static inline void step3_blocks(const Problem *p) {
    memset(p->C, 0, (size_t)(p->M * p->N) * sizeof(float));
    for (int64_t k0 = 0; k0 < p->K; k0 += BLOCK_DEPTH) {
        for (int64_t n = 0; n < p->N; n += BLOCK_COLS) {
            int64_t k_end = min_i64(k0 + BLOCK_DEPTH, p->K), cols = min_i64(BLOCK_COLS, p->N - n);
            for (int64_t i = 0; i < p->M; i++) {
                for (int64_t k = k0; k < k_end; k++) {
                    add_row(p->C + i * p->N + n, p->A[i * p->K + k], p->B + k * p->N + n, cols);
                }
            }
        }
    }
}

#endif // LADDER_STEP3_H
