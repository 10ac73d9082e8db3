// The gradient's norm and AdamW of the CPU trainers.
#ifndef LLMC_CPU_ADAMW_H
#define LLMC_CPU_ADAMW_H

#include "llmc/cpu/rows.h"
#include "llmc/cpu/simd.h"

#define NORM_BLOCK 65536 // elements whose squares are summed by one thread

// Returns the Euclidean norm of n gradients. Threads sum blocks of a fixed size. The blocks' sums are added in order
// and in double precision. sums: one for each block.
static inline double gradient_norm(const float *grads, int64_t n, double *sums) {
    int64_t blocks = ceil_div_i64(n, NORM_BLOCK);
    double sum = 0.0;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        sums[i] = row_sumsq(grads + i * NORM_BLOCK, min_i64(NORM_BLOCK, n - i * NORM_BLOCK));
    }
    for (int64_t i = 0; i < blocks; i++) { sum += sums[i]; }
    return sqrt(sum);
}

typedef struct {
    float lr, beta1, beta2, epsilon, weight_decay;
    float grad_scale; // a factor for all gradients: it clips them by their global norm
    int64_t update;   // the number of this update, t below, from 1
} AdamW;

// AdamW (Loshchilov, Hutter 2019), one pass over parameters, gradients and both moments:
//   m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2
//   param -= lr * (m / (1-beta1^t) / (sqrt(v / (1-beta2^t)) + epsilon) + decay * param)
// Blocks have a fixed size, so that the arithmetic of an element does not depend on the number of threads.
static inline void adamw_tensor(float *param, float *m, float *v, const float *grad, int64_t n, const AdamW *a,
                                float decay) {
    float c1 = (float)(1.0 / (1.0 - pow(a->beta1, (double)a->update)));
    float c2 = (float)(1.0 / (1.0 - pow(a->beta2, (double)a->update)));
    float lr = a->lr, beta1 = a->beta1, beta2 = a->beta2, epsilon = a->epsilon, scale = a->grad_scale;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += ROWS_BLOCK) {
        int64_t end = min_i64(n, begin + ROWS_BLOCK);
        for (int64_t i = begin; i < end; i++) {
            float g = scale * grad[i];
            m[i] = beta1 * m[i] + (1.0f - beta1) * g;
            v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
            param[i] -= lr * (c1 * m[i] / (sqrtf(c2 * v[i]) + epsilon) + decay * param[i]);
        }
    }
}

#endif // LLMC_CPU_ADAMW_H
