// Rotary position embedding (Su et al. 2021): the angles by which queries and keys are rotated.
//
// Component j < HS/2 of a head and component j + HS/2 are a pair ("halves", as Hugging Face's files have it). At
// position t the pair is rotated by t * f[j], f[j] = theta^(-2j/HS). Llama 3 stretches long wavelengths, so that a
// model trained on `rope_context` positions takes more. With the wavelength w = 2 pi / f:
//   f            if w < rope_context / rope_high
//   f / factor   if w > rope_context / rope_low
//   (1-s) f / factor + s f,  s = (rope_context/w - rope_low) / (rope_high - rope_low),  between them
#ifndef LLMC_ROPE_H
#define LLMC_ROPE_H

#include <math.h>

#include "llmc/model/model_config.h"

// Returns f[j], in radians a position.
static inline double rope_frequency(const ModelConfig *c, int j) {
    double f = pow((double)c->rope_theta, -2.0 * j / c->head_size), context = c->rope_context;
    double wavelength = 2.0 * 3.14159265358979323846 / f, low = (double)c->rope_low, high = (double)c->rope_high;
    double slow = f / (double)c->rope_factor;
    if (context == 0.0 || wavelength < context / high) { return f; }
    if (wavelength > context / low) { return slow; }
    double s = (context / wavelength - low) / (high - low);
    return (1.0 - s) * slow + s * f;
}

// Returns the floats of a table for T positions. 0: the model has no rotary embeddings.
static inline int64_t rope_table_floats(const ModelConfig *c, int64_t T) {
    return c->rope_theta > 1.0f ? T * (c->head_size / 2) * 2 : 0;
}

// Fills table (T,HS/2,2) with cosines and sines, computed in double.
static inline void rope_table(float *table, int T, const ModelConfig *c) {
    int half = c->head_size / 2;
    for (int j = 0; j < half; j++) {
        double f = rope_frequency(c, j);
        for (int t = 0; t < T; t++) {
            table[2 * ((int64_t)t * half + j)] = (float)cos(t * f);
            table[2 * ((int64_t)t * half + j) + 1] = (float)sin(t * f);
        }
    }
}

#endif // LLMC_ROPE_H
