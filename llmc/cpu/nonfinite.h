// Finds the tensor in which a NaN or an infinity first stands, for the message of a run that fails.
#ifndef LLMC_NONFINITE_H
#define LLMC_NONFINITE_H

#include "llmc/cpu/simd.h"
#include "llmc/model/activations.h"

// Finds the first tensor among parameters or gradients that holds a NaN or an infinity and writes its name.
static inline bool find_nonfinite_tensor(const ModelConfig *config, const float *memory, const char *what, char *name,
                                         size_t size) {
    ParamPiece piece = PARAM_PIECE_BEGIN;
    while (param_next_piece(config, OPTIMIZER_ADAMW, &piece)) {
        if (row_is_finite(memory + piece.place, piece.count)) { continue; }
        param_text(name, size, what, piece.tensor, piece.layer);
        return true;
    }
    return false;
}

// Does an activation of n values hold one? The form that acts_find_nonfinite asks.
static inline bool holds_nonfinite(void *context, int i, const void *data, int64_t n) {
    (void)context, (void)i; // all activations are float here
    return !row_is_finite((const float *)data, n);
}

// Names the tensor where a NaN or an infinity first stands, in the order of the computation. Call it after a forward
// pass of this many rows whose loss is not finite.
static inline void name_nonfinite_forward(const float *params, ActSlot *slots, const ActShape *shape, int64_t rows,
                                          char *name, size_t size) {
    if (find_nonfinite_tensor(&shape->config, params, "parameter", name, size)) { return; }
    if (acts_find_nonfinite(slots, shape, rows, holds_nonfinite, NULL, name, size) >= 0) { return; }
    snprintf(name, size, "the sum of the losses");
}

#endif // LLMC_NONFINITE_H
