// Passes over large arrays and over rows, by all threads.
#ifndef LLMC_ROWS_H
#define LLMC_ROWS_H

#include <string.h>

#include "llmc/base/utils.h"

// Sums over rows (the gradients of biases and gains) give each thread some columns and walk the rows in order. With
// this many columns, a cache line belongs to one thread.
#define COLUMN_BLOCK 64
#define ROWS_BLOCK (1 << 14) // floats that a thread takes at a time

static inline void copy_rows(float *out, const float *inp, int64_t n) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += ROWS_BLOCK) {
        memcpy(out + i, inp + i, (size_t)min_i64(ROWS_BLOCK, n - i) * sizeof(float));
    }
}

static inline void clear_rows(float *data, int64_t n) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += ROWS_BLOCK) {
        memset(data + i, 0, (size_t)min_i64(ROWS_BLOCK, n - i) * sizeof(float));
    }
}

// sums[c] += the sum of column c. rows (N,C).
static inline void add_column_sums(float *sums, const float *rows, int64_t N, int C) {
#pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < C; c0 += COLUMN_BLOCK) {
        int c1 = (int)min_i64(C, c0 + COLUMN_BLOCK);
        for (int64_t row = 0; row < N; row++) {
            for (int c = c0; c < c1; c++) { sums[c] += rows[row * C + c]; }
        }
    }
}

#endif // LLMC_ROWS_H
