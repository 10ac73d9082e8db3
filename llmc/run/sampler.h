// Draws the next token from logits: temperature and top-p (Holtzman et al. 2019, "The Curious Case of Neural Text
// Degeneration"). A pure function of its arguments: the caller passes the random number and the scratch memory.
#ifndef LLMC_SAMPLER_H
#define LLMC_SAMPLER_H

#include "llmc/base/utils.h"

#include <float.h>
#include <math.h>

// Returns the id of the largest logit, the lowest id on ties. Returns -1 when a logit is NaN or +inf, or none is
// finite: the model is then broken, not certain.
static inline int sampler_argmax(const float *logits, int vocab_size) {
    int best = 0;
    for (int i = 0; i < vocab_size; i++) {
        if (isnan(logits[i])) { return -1; }
        if (logits[i] > logits[best]) { best = i; }
    }
    return isfinite(logits[best]) ? best : -1;
}

// Returns the sum of the probabilities that are at least `least`.
static inline double sampler_sum(const float *probs, int vocab_size, float least) {
    double sum = 0.0;
    for (int i = 0; i < vocab_size; i++) { sum += probs[i] < least ? 0.0 : probs[i]; }
    return sum;
}

static inline float sampler_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// Keeps the fewest tokens whose probabilities add up to `target`: the more probable token first, the lower id on ties.
// Sets the other probabilities to 0. The bits of floats from 0 to 1 have the order of their values, so bisection finds
// the least probability to keep in 30 passes.
static inline void sampler_keep(float *probs, int vocab_size, double target) {
    uint32_t low = 0, high = 0x3f800000; // the bits of 0 and 1
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (sampler_sum(probs, vocab_size, sampler_float(middle)) >= target) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    float least = sampler_float(low);
    double left = target - sampler_sum(probs, vocab_size, sampler_float(low + 1)); // for the ties
    for (int i = 0; i < vocab_size; i++) {
        bool tie = probs[i] == least;
        if (probs[i] < least || (tie && left <= 0.0)) { probs[i] = 0.0f; }
        if (tie) { left -= probs[i]; }
    }
}

// Draws a token with `uniform` in [0, 1) from softmax(logits / temperature), logits (V). temperature 0: always the most
// probable token. top_p: only from the smallest set of tokens with at least this probability together; 1: from all.
// Returns its id, or -1 when a logit is NaN or +inf or all are -inf. probs (V) is scratch. Tokens keep their places in
// id order, whatever top-p excludes. So if it excludes nothing that matters, `uniform` draws the token that it draws
// without top-p.
static inline int sample_token(const float *logits, int vocab_size, float temperature, float top_p, double uniform,
                               float *probs) {
    int best = sampler_argmax(logits, vocab_size);
    if (best < 0 || temperature <= 0.0f) { return best; }
    for (int i = 0; i < vocab_size; i++) { // exp never sees more than 0; the best token has 1 before normalisation
        probs[i] = expf((logits[i] - logits[best]) / temperature);
    }
    double all = sampler_sum(probs, vocab_size, 0.0f);
    if (top_p < 1.0f) { sampler_keep(probs, vocab_size, fmax(top_p * all, DBL_MIN)); }
    double target = uniform * sampler_sum(probs, vocab_size, 0.0f), sum = 0.0;
    for (int i = 0; i < vocab_size; i++) {
        sum += probs[i];
        if (sum > target) { return i; }
    }
    return best; // uniform was 1 or more
}

// Adds a token to the tokens of a sample so far, (window). If the window is full, the newer half stays. Returns true if
// the tokens have got other positions.
static inline bool sampler_append(int32_t *tokens, int *length, int window, int token) {
    int kept = window / 2;
    bool full = *length == window;
    if (full) {
        memmove(tokens, tokens + window - kept, (size_t)kept * sizeof(int32_t));
        *length = kept;
    }
    tokens[(*length)++] = token;
    return full;
}

#endif // LLMC_SAMPLER_H
