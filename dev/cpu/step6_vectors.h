// Step 6: vectors. One instruction multiplies and adds VF_WIDTH numbers. The tile has as many registers as before, and
// each now holds VF_WIDTH sums.
//
// Compilers find vectors in simple loops, as in steps 2 to 4, and with luck in step 5. Here they are written down, with
// the vector types of gcc and clang (llmc/cpu/simd.h), so that all sums are in registers whatever the compiler finds.
// Nothing else changes.
//
//     per multiply-add of a vector: 11 / 24 loads (7 / 12 where a tile has 4 rows), 0 stores, a chain of 24 (12)
#ifndef LADDER_STEP6_H
#define LADDER_STEP6_H

#include "dev/cpu/step4_packing.h"

enum { TILE_COLS = TILE_VECTORS * VF_WIDTH };

static inline void multiply_vectors(float *tile, const float *a, const float *b, int64_t depth) {
    vf sums[TILE_ROWS][TILE_VECTORS];
    GEMM_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
        GEMM_UNROLL for (int j = 0; j < TILE_VECTORS; j++) { sums[i][j] = vf_set1(0.0f); }
    }
    for (int64_t k = 0; k < depth; k++) {
        vf row_of_b[TILE_VECTORS];
        GEMM_UNROLL for (int j = 0; j < TILE_VECTORS; j++) { row_of_b[j] = vf_load(b + k * TILE_COLS + j * VF_WIDTH); }
        GEMM_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
            GEMM_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
                sums[i][j] += vf_set1(a[k * TILE_ROWS + i]) * row_of_b[j];
            }
        }
    }
    GEMM_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
        GEMM_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
            vf_store(tile + i * TILE_COLS + j * VF_WIDTH, sums[i][j]);
        }
    }
}

static inline void step6_vectors(const Problem *p) {
    static const Kernel kernel = {TILE_ROWS, TILE_COLS, pack_rows, pack_columns, multiply_vectors};
    packed_multiply(p, &kernel);
}

#endif // LADDER_STEP6_H
