// The loops around a kernel, from step 4 to the end of the ladder. A step brings its kernel: how blocks are packed, and
// how two packed panels are multiplied.
//
//     for each block of A (BLOCK_ROWS x BLOCK_DEPTH):      packed, it stays in the second cache
//         for each panel of B (BLOCK_DEPTH x cols):        packed, it stays in the second cache, too
//             for each panel of the block (rows x BLOCK_DEPTH):
//                 tile (rows x cols) = panel of A times panel of B;  C += tile
//
// A panel of B with 48 columns has 48 KiB, and many first caches have 32. So each tile reads both panels from the
// second cache: rows * cols multiply-adds for each k need 4 bytes for each row and each column.
#ifndef LADDER_PACKED_H
#define LADDER_PACKED_H

#include "dev/cpu/problem.h"

// Copies a panel from a matrix whose rows lie `stride` numbers apart: `lanes` rows of A, or `lanes` columns of B. The
// lanes from there to `width` become 0.
typedef void (*Pack)(float *to, int64_t width, const float *from, int64_t stride, int64_t lanes, int64_t depth);

typedef struct {
    int64_t rows, cols; // of a tile; rows divides BLOCK_ROWS, cols is at most BLOCK_COLS
    Pack pack_a, pack_b;
    // tile[i * cols + j] = sum over k < depth of the products of row i and column j
    void (*multiply)(float *tile, const float *a, const float *b, int64_t depth);
} Kernel;

enum { TILE_FLOATS = 1024 }; // the most that a tile may have: rows x cols

// C += A B for one packed block of A and one packed panel of B.
static inline void multiply_panel(const Problem *p, const Kernel *kernel, int64_t m0, int64_t n, int64_t depth,
                                  const float *packed_a, const float *packed_b) {
    float tile[TILE_FLOATS] __attribute__((aligned(64)));
    int64_t rows = min_i64(BLOCK_ROWS, p->M - m0), cols = min_i64(kernel->cols, p->N - n);
    for (int64_t row = 0; row < rows; row += kernel->rows) {
        kernel->multiply(tile, packed_a + row * BLOCK_DEPTH, packed_b, depth);
        for (int64_t i = 0; i < min_i64(kernel->rows, rows - row); i++) {
            float *c = p->C + (m0 + row + i) * p->N + n;
            for (int64_t j = 0; j < cols; j++) { c[j] += tile[i * kernel->cols + j]; }
        }
    }
}

static inline void packed_multiply(const Problem *p, const Kernel *kernel) {
    float *packed_a = p->workspace, *packed_b = packed_a + BLOCK_ROWS * BLOCK_DEPTH;
    memset(p->C, 0, (size_t)(p->M * p->N) * sizeof(float));
    for (int64_t m0 = 0; m0 < p->M; m0 += BLOCK_ROWS) {
        for (int64_t k0 = 0; k0 < p->K; k0 += BLOCK_DEPTH) {
            int64_t rows = min_i64(BLOCK_ROWS, p->M - m0), depth = min_i64(BLOCK_DEPTH, p->K - k0);
            for (int64_t row = 0; row < rows; row += kernel->rows) {
                kernel->pack_a(packed_a + row * BLOCK_DEPTH, kernel->rows, p->A + (m0 + row) * p->K + k0, p->K,
                               min_i64(kernel->rows, rows - row), depth);
            }
            for (int64_t n = 0; n < p->N; n += kernel->cols) {
                kernel->pack_b(packed_b, kernel->cols, p->B + k0 * p->N + n, p->N, min_i64(kernel->cols, p->N - n),
                               depth);
                multiply_panel(p, kernel, m0, n, depth, packed_a, packed_b);
            }
        }
    }
}

#endif // LADDER_PACKED_H
