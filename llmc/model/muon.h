// Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"): what the CPU, the GPU, the
// files and the plan share. doc/muon.md derives it.
//
// With --optimizer muon each matrix W (rows, cols) of the blocks is updated so. G is its gradient, after clipping:
//   M = momentum M + G;  N = G + momentum M                                                          (Nesterov)
//   O = NS5(N)
//   W -= lr * (scale * O + weight_decay * W)
// NS5 changes the singular values of N to numbers near 1 and keeps its singular vectors. X = N / |N| (Frobenius), then
// five rounds, each with A = X X^T:
//   X = a X + (b A + c A A) X            a singular value s becomes a s + b s^3 + c s^5
// The coefficients have the steepest slope at 0 that keeps s between about 0.7 and 1.2. A matrix with more rows than
// columns goes through the rounds transposed: A = X^T X, X = a X + X (b A + c A A), which is less work.
//
// The weight of qkv is three matrices. Embeddings, biases and LayerNorms stay with AdamW.
#ifndef LLMC_MUON_H
#define LLMC_MUON_H

#include <math.h>

#include "llmc/model/params.h"

#define MUON_ROUNDS 5
#define MUON_A 3.4445f
#define MUON_B (-4.7750f)
#define MUON_C 2.0315f
#define MUON_EPSILON 1e-7f        // the least norm that N is divided by: a gradient of zeros gives O = 0
#define MUON_MOMENTUM 0.95f       // how long Muon remembers the gradient
#define MUON_FIRST_MOMENTUM 0.85f // where the momentum's warm-up begins

// `scale` above. Jordan's is sqrt(max(1, rows/cols)). Liu et al. 2025 ("Muon is scalable for LLM training") take
// 0.2 sqrt(max(rows, cols)): the update then has the root mean square of AdamW's, so AdamW's learning rate and weight
// decay fit, too.
typedef enum { MUON_SCALE_ORIGINAL, MUON_SCALE_RMS } MuonScale;

static inline float muon_scale(MuonScale kind, int64_t rows, int64_t cols) {
    if (kind == MUON_SCALE_RMS) { return 0.2f * sqrtf((float)max_i64(rows, cols)); }
    return rows > cols ? sqrtf((float)rows / (float)cols) : 1.0f;
}

// Returns the momentum of a step (from 0). It rises linearly over `warmup` steps, from at most MUON_FIRST_MOMENTUM.
static inline float muon_momentum_of_step(float last, int64_t warmup, int64_t step) {
    float first = fminf(last, MUON_FIRST_MOMENTUM);
    return step >= warmup ? last : first + (last - first) * ((float)step / (float)warmup);
}

// Return the shape of each matrix in tensor i, which Muon takes.
static inline int64_t muon_rows(const ModelConfig *config, int i) {
    return param_rows(config, i) / param_specs[i].muon;
}
static inline int64_t muon_cols(const ModelConfig *config, int i) { return param_cols(config, i); }

#endif // LLMC_MUON_H
