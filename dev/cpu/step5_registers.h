// Step 5: a tile of C in registers. TILE_ROWS x PLAIN_COLS sums stay in registers while k runs over the whole panel.
//
// Until now each multiply-add loaded and stored its sum. The store alone halves the speed, because a core stores once
// where it could multiply and add twice. Now a sum is stored once for each panel. A number of A serves PLAIN_COLS
// sums and a number of B serves TILE_ROWS sums. With 8 x 3 registers, that makes 8 + 3 loads for 24 multiply-adds.
// There must be 8 sums at least: 2 multiply-adds can begin each cycle, and a sum takes 4 cycles. A taller or wider tile
// needs fewer loads, until the sums no longer fit into the registers.
//
//     per multiply-add: (TILE_ROWS + TILE_VECTORS) / (TILE_ROWS x TILE_VECTORS) loads, 0 stores
#ifndef LADDER_STEP5_H
#define LADDER_STEP5_H

#include "dev/cpu/step4_packing.h"

enum { PLAIN_COLS = TILE_VECTORS * LANES };

static inline void multiply_tile(float *tile, const float *a, const float *b, int64_t depth) {
    float sums[TILE_ROWS][PLAIN_COLS] = {{0.0f}};
    for (int64_t k = 0; k < depth; k++) {
        GEMM_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
            GEMM_UNROLL for (int j = 0; j < PLAIN_COLS; j++) {
                sums[i][j] += a[k * TILE_ROWS + i] * b[k * PLAIN_COLS + j];
            }
        }
    }
    memcpy(tile, sums, sizeof(sums));
}

static inline void step5_registers(const Problem *p) {
    static const Kernel kernel = {TILE_ROWS, PLAIN_COLS, pack_rows, pack_columns, multiply_tile};
    packed_multiply(p, &kernel);
}

#endif // LADDER_STEP5_H
