// Step 4: packing. The block of B is copied, so that the inner loops read it from beginning to end. So is a block of A.
//
// In the matrix, the rows of a block lie N numbers apart. That has three costs. Each row is in another page of memory,
// and a core has the addresses of only 64 to 96 pages at hand (in its TLB). If N is a multiple of 1,024, as 3,072 is,
// rows compete for the same few places of a cache, and the rest of the cache stays empty. And the hardware stops to
// fetch ahead where a row ends. The copy costs one read and one write for each number; BLOCK_ROWS rows of A use it.
//
//     per multiply-add: 2 loads, 1 store, 4 bytes from the second cache: the bound of step 3, with fewer obstacles
#ifndef LADDER_STEP4_H
#define LADDER_STEP4_H

#include "dev/cpu/packed.h"
#include "dev/cpu/step2_loop_order.h"

// Copies columns of B: to[k * width + lane] = from[k * stride + lane].
static inline void pack_columns(float *to, int64_t width, const float *from, int64_t stride, int64_t lanes,
                                int64_t depth) {
    for (int64_t k = 0; k < depth; k++) {
        memcpy(to + k * width, from + k * stride, (size_t)lanes * sizeof(float));
        memset(to + k * width + lanes, 0, (size_t)(width - lanes) * sizeof(float));
    }
}

// Copies rows of A, which become columns: to[k * width + lane] = from[lane * stride + k].
static inline void pack_rows(float *to, int64_t width, const float *from, int64_t stride, int64_t lanes,
                             int64_t depth) {
    for (int64_t k = 0; k < depth; k++) {
        for (int64_t lane = 0; lane < width; lane++) {
            to[k * width + lane] = lane < lanes ? from[lane * stride + k] : 0.0f;
        }
    }
}

// Multiplies one row of A by a block of B, as step 3 does.
static inline void multiply_row(float *tile, const float *a, const float *b, int64_t depth) {
    memset(tile, 0, BLOCK_COLS * sizeof(float));
    for (int64_t k = 0; k < depth; k++) { add_row(tile, a[k], b + k * BLOCK_COLS, BLOCK_COLS); }
}

static inline void step4_packing(const Problem *p) {
    static const Kernel kernel = {1, BLOCK_COLS, pack_rows, pack_columns, multiply_row};
    packed_multiply(p, &kernel);
}

#endif // LADDER_STEP4_H
