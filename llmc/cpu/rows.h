// Passes over large arrays and over rows, by all threads.
#ifndef LLMC_ROWS_H
#define LLMC_ROWS_H

#include <string.h>

#include "llmc/base/utils.h"
#include "llmc/cpu/gemm.h"

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

// sums[c] += column c, number by number. rows (N,C). Long pieces of four rows at a time keep more of memory's lines on
// their way than short pieces of one.
static inline void add_column_sums(float *sums, const float *rows, int64_t N, int C) {
    int block = (int)round_up_i64(ceil_div_i64(C, gemm_max_threads()), COLUMN_BLOCK);
#pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < C; c0 += block) {
        int c1 = (int)min_i64(C, c0 + block);
        int64_t row = 0;
        for (; row + 4 <= N; row += 4) {
            const float *r0 = rows + row * C, *r1 = r0 + C, *r2 = r1 + C, *r3 = r2 + C;
            for (int c = c0; c < c1; c++) { sums[c] = (((sums[c] + r0[c]) + r1[c]) + r2[c]) + r3[c]; }
        }
        for (; row < N; row++) {
            for (int c = c0; c < c1; c++) { sums[c] += rows[row * C + c]; }
        }
    }
}

#endif // LLMC_ROWS_H
