// Finds the tensor in which a NaN or an infinity first stands, for the message of a run that fails.
#ifndef LLMC_NONFINITE_H
#define LLMC_NONFINITE_H

#include "llmc/cpu/simd.h"
#include "llmc/model/gpt2.h"
#include "llmc/model/memory_plan.h"

// Finds the first tensor among parameters or gradients that holds a NaN or an infinity and writes its name.
static inline bool find_nonfinite_tensor(const GPT2Config *config, const float *memory, const char *what, char *name,
                                         size_t size) {
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int layers = gpt2_param_layers(config, i);
        int64_t n = gpt2_param_size(config, i) / layers;
        for (int layer = 0; layer < layers; layer++) {
            if (row_is_finite(memory + gpt2_param_offset(config, i) + layer * n, n)) { continue; }
            gpt2_param_text(name, size, what, i, layer);
            return true;
        }
    }
    return false;
}

// Does an activation of n values hold one? The form that gpt2_find_nonfinite asks.
static inline bool holds_nonfinite(void *context, const void *data, PlanType type, int64_t n) {
    (void)context, (void)type; // all activations are float here
    return !row_is_finite((const float *)data, n);
}

#endif // LLMC_NONFINITE_H
