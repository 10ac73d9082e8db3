// The weights of a model, packed for the matrix multiply: in bf16 half the bytes, which a sample reads for each token.
#ifndef LLMC_PACKED_WEIGHTS_H
#define LLMC_PACKED_WEIGHTS_H

#include "llmc/cpu/gemm.h"
#include "llmc/model/params.h"

// Is parameter i a weight (OC, C) of a linear layer, or of the head?
static inline bool packed_is_weight(int i) {
    return param_specs[i].rows != DIM_NONE && param_specs[i].rows != DIM_maxT;
}

// Floats of parameter i in one layer.
static inline int64_t packed_layer_floats(const ModelConfig *config, const GemmKernel *kernel, int i) {
    return gemm_packed_floats(param_cols(config, i), param_rows(config, i), kernel);
}

// Where the packed parameter i of a layer begins, in floats.
static inline int64_t packed_weight_at(const ModelConfig *config, const GemmKernel *kernel, int i, int layer) {
    int64_t at = 0;
    for (int j = 0; j < i; j++) {
        if (packed_is_weight(j)) { at += param_layers(config, j) * packed_layer_floats(config, kernel, j); }
    }
    return layer == 0 ? at : at + layer * packed_layer_floats(config, kernel, i);
}

// Floats of all packed weights. 0: packing would not save bytes.
static inline int64_t packed_weights_floats(const ModelConfig *config, const GemmKernel *kernel) {
    return kernel->words == GEMM_PAIRS ? packed_weight_at(config, kernel, NUM_PARAM_TENSORS, 0) : 0;
}

// Packs the weights among params (all parameters of the model).
static inline void packed_weights_fill(float *packed, const float *params, const ModelConfig *config,
                                       const GemmKernel *kernel) {
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int64_t OC = param_rows(config, i), C = param_cols(config, i);
        for (int layer = 0; packed_is_weight(i) && OC > 0 && layer < param_layers(config, i); layer++) {
            GemmMatrix weight = transpose_of(params + param_place(config, i, layer), C);
            gemm_pack_matrix(packed + packed_weight_at(config, kernel, i, layer), weight, C, OC, kernel);
        }
    }
}

// The weights that a sample is written with. packed NULL: they are not packed.
typedef struct {
    const ModelConfig *config;
    const float *params, *packed;
    const Gemm *mm;
} LinearWeights;

// Linear layer whose weight is parameter i of a layer: out = inp weight^T + bias, or out += with accumulate.
// out (N,OC) with rows `stride` apart, inp (N,C), bias (OC) or NULL. The head has no outputs for padding.
static inline void linear_forward(const LinearWeights *w, float *out, int64_t stride, bool accumulate, const float *inp,
                                  int i, int layer, const float *bias, int64_t N) {
    int64_t C = param_cols(w->config, i), OC = param_used(w->config, i) / C / param_layers(w->config, i);
    GemmMatrix weight = w->packed == NULL
                            ? transpose_of(w->params + param_place(w->config, i, layer), C)
                            : packed_of(w->packed + packed_weight_at(w->config, w->mm->kernel, i, layer), C);
    gemm(out, stride, rows_of(inp, C), weight, bias, N, OC, C, accumulate, w->mm);
}

#endif // LLMC_PACKED_WEIGHTS_H
