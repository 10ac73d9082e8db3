// Muon on the CPU. llmc/model/muon.h has the formulas. Matrices are row-major. The bits depend on no number of threads.
#ifndef LLMC_CPU_MUON_H
#define LLMC_CPU_MUON_H

#include "llmc/model/muon.h"
#include "llmc/cpu/gemm.h"
#include "llmc/cpu/rows.h"
#include "llmc/cpu/simd.h"

typedef struct {
    float lr, momentum, weight_decay;
    float grad_scale; // a factor for all gradients: it clips them by their global norm
    MuonScale scale;
} Muon;

#define MUON_GRAM_ROWS 128 // rows of a symmetric product that are computed at a time

// Returns the floats of scratch to update a matrix: N, the X of the next round, A, and b A + c A A.
static inline int64_t muon_scratch_floats(int64_t rows, int64_t cols) {
    int64_t n = min_i64(rows, cols);
    return 2 * rows * cols + 2 * n * n;
}

// out = factor * x, n numbers.
static inline void muon_copy_scaled(float *out, const float *x, float factor, int64_t n) {
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += ROWS_BLOCK) {
        for (int64_t i = begin; i < min_i64(n, begin + ROWS_BLOCK); i++) { out[i] = factor * x[i]; }
    }
}

// out (n,n) = X X^T for X (n,m), xT its transpose. The product is symmetric. So only its lower half is computed, block
// by block, and copied to the upper half.
static inline void muon_gram(float *out, GemmMatrix x, GemmMatrix xT, int64_t n, int64_t m, const Gemm *mm) {
    for (int64_t first = 0; first < n; first += MUON_GRAM_ROWS) {
        int64_t rows = min_i64(MUON_GRAM_ROWS, n - first);
        GemmMatrix some = x;
        some.data += first * x.row_stride;
        gemm(out + first * n, n, some, xT, NULL, rows, first + rows, m, false, mm);
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = i + 1; j < n; j++) { out[i * n + j] = out[j * n + i]; }
    }
}

// One round of NS5: next = a X + (b A + c A A) X with A = X X^T. x, next (rows,cols); scratch: 2 n^2.
static inline void muon_round(float *next, const float *x, float *scratch, int64_t rows, int64_t cols, const Gemm *mm) {
    bool tall = rows > cols;
    int64_t n = min_i64(rows, cols), m = max_i64(rows, cols);
    float *A = scratch, *B = A + n * n;
    GemmMatrix X = rows_of(x, cols), XT = transpose_of(x, cols), square = rows_of(A, n);
    muon_gram(A, tall ? XT : X, tall ? X : XT, n, m, mm);
    muon_gram(B, square, square, n, n, mm);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = i * n; j < (i + 1) * n; j++) { B[j] = MUON_B * A[j] + MUON_C * B[j]; }
    }
    muon_copy_scaled(next, x, MUON_A, rows * cols);
    gemm(next, cols, tall ? X : rows_of(B, n), tall ? rows_of(B, n) : X, NULL, rows, cols, n, true, mm);
}

// x (rows,cols) = NS5(x). scratch: muon_scratch_floats less rows * cols.
static inline void muon_orthogonalize(float *x, float *scratch, int64_t rows, int64_t cols, const Gemm *mm) {
    int64_t n = rows * cols;
    float norm = fmaxf((float)sqrt(row_sumsq(x, n)), MUON_EPSILON);
    float *from = scratch, *to = x; // an odd number of rounds ends in x
    muon_copy_scaled(from, x, 1.0f / norm, n);
    for (int i = 0; i < MUON_ROUNDS; i++) {
        muon_round(to, from, scratch + n, rows, cols, mm);
        float *last = from;
        from = to, to = last;
    }
}

// Updates a matrix w (rows,cols) and its momentum m. scratch: muon_scratch_floats.
static inline void muon_update(float *w, float *m, const float *grad, int64_t rows, int64_t cols, const Muon *u,
                               float *scratch, const Gemm *mm) {
    float *O = scratch, scale = muon_scale(u->scale, rows, cols);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = row * cols; i < (row + 1) * cols; i++) {
            float g = u->grad_scale * grad[i];
            m[i] = u->momentum * m[i] + g;
            O[i] = g + u->momentum * m[i];
        }
    }
    muon_orthogonalize(O, scratch + rows * cols, rows, cols, mm);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = row * cols; i < (row + 1) * cols; i++) {
            w[i] -= u->lr * (scale * O[i] + u->weight_decay * w[i]);
        }
    }
}

// Updates the matrices of tensor i in one layer, which Muon takes. w, m and grad point to its first element.
static inline void muon_tensor(float *w, float *m, const float *grad, const ModelConfig *config, int i, const Muon *u,
                               float *scratch, const Gemm *mm) {
    int64_t rows = muon_rows(config, i), cols = muon_cols(config, i), n = param_rows(config, i) * cols;
    for (int64_t at = 0; at < n; at += rows * cols) {
        muon_update(w + at, m + at, grad + at, rows, cols, u, scratch, mm);
    }
}

// Returns the floats of scratch for every matrix of a model. 0: the optimizer is not Muon.
static inline int64_t muon_most_scratch(const ModelConfig *config, OptimizerKind optimizer) {
    int64_t most = 0;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        if (!muon_takes(optimizer, i)) { continue; }
        most = max_i64(most, muon_scratch_floats(muon_rows(config, i), muon_cols(config, i)));
    }
    return most;
}

#endif // LLMC_CPU_MUON_H
