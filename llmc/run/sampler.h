// Draws the next token from logits: temperature, top-k, top-p (Holtzman et al. 2019, "The Curious Case of Neural Text
// Degeneration"). A pure function of its arguments: the caller passes the random number and the scratch memory.
#ifndef LLMC_SAMPLER_H
#define LLMC_SAMPLER_H

#include "llmc/base/rand.h"
#include "llmc/base/utils.h"
#include <math.h>

typedef struct {
    float temperature; // divides the logits; 0: always the most probable token
    int top_k;         // only the k most probable tokens; 0: all
    float top_p;       // of these, only the smallest set with at least this share of their probability; 1: all
} SamplerOptions;

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

// The order in which top-k and top-p count tokens: the more probable token first, the lower id on ties.
static inline bool sampler_before(const float *probs, int32_t a, int32_t b) {
    return probs[a] > probs[b] || (probs[a] == probs[b] && a < b);
}

static inline void sampler_swap(int32_t *index, int i, int j) {
    int32_t token = index[i];
    index[i] = index[j];
    index[j] = token;
}

// Reorders index[low..high): first the tokens before the pivot token in the order above, then the pivot token, then the
// rest. Returns the pivot's new place. *weight: the number of tokens before the pivot when count is true, otherwise
// their probability.
static inline int sampler_partition(const float *probs, int32_t *index, int low, int high, int pivot, bool count,
                                    double *weight) {
    int end = low;
    *weight = 0.0;
    sampler_swap(index, pivot, high - 1);
    for (int i = low; i < high - 1; i++) {
        if (!sampler_before(probs, index[i], index[high - 1])) { continue; }
        *weight += count ? 1.0 : probs[index[i]];
        sampler_swap(index, i, end++);
    }
    sampler_swap(index, end, high - 1);
    return end;
}

// Reorders index[0..n) so that its first r entries are the first r in the order above. Returns r: the smallest number
// of entries that weigh at least `target`, or n. A token weighs 1 when count is true, otherwise its probability. This
// is a quickselect: O(n) on average, without a full sort. A hash picks the pivots, so that no common order of logits is
// slow.
static inline int sampler_select(const float *probs, int32_t *index, int n, double target, bool count) {
    int low = 0, high = n; // the first `low` entries are in, entries from `high` on are not needed
    while (low < high) {
        int pivot = low + (int)(rand_mix((uint64_t)high) % (uint64_t)(high - low));
        double before;
        int at = sampler_partition(probs, index, low, high, pivot, count, &before);
        double with_pivot = before + (count ? 1.0 : probs[index[at]]);
        if (before >= target && at > low) {
            high = at;
        } else if (with_pivot >= target) {
            return at + 1;
        } else {
            target -= with_pivot;
            low = at + 1;
        }
    }
    return low;
}

static inline double sampler_sum(const float *probs, int vocab_size) {
    double sum = 0.0;
    for (int i = 0; i < vocab_size; i++) { sum += probs[i]; }
    return sum;
}

// Sets the probabilities that top-k and top-p exclude to 0.
static inline void sampler_filter(float *probs, int32_t *index, int vocab_size, const SamplerOptions *options) {
    bool by_count = options->top_k > 0 && options->top_k < vocab_size, by_share = options->top_p < 1.0f;
    if (!by_count && !by_share) { return; }
    int kept = vocab_size;
    for (int i = 0; i < vocab_size; i++) { index[i] = i; }
    if (by_count) { kept = sampler_select(probs, index, kept, options->top_k, true); }
    for (int i = kept; i < vocab_size; i++) { probs[index[i]] = 0.0f; }
    if (!by_share) { return; }
    int share = sampler_select(probs, index, kept, options->top_p * sampler_sum(probs, vocab_size), false);
    for (int i = share; i < kept; i++) { probs[index[i]] = 0.0f; }
}

// Draws a token with `uniform` in [0, 1) from softmax(logits / temperature), logits (V), after top-k and then top-p.
// Returns its id, or -1 when a logit is NaN or +inf or all are -inf. probs (V) and index (V) are scratch. Tokens keep
// their places in id order, whatever the filters exclude. So if the filters exclude nothing that matters, `uniform`
// draws the token that it draws without filters. O(V).
static inline int sample_token(const float *logits, int vocab_size, const SamplerOptions *options, double uniform,
                               float *probs, int32_t *index) {
    int best = sampler_argmax(logits, vocab_size);
    if (best < 0 || options->temperature <= 0.0f) { return best; }
    for (int i = 0; i < vocab_size; i++) { // exp never sees more than 0; the best token has 1 before normalisation
        probs[i] = expf((logits[i] - logits[best]) / options->temperature);
    }
    sampler_filter(probs, index, vocab_size, options);
    double target = uniform * sampler_sum(probs, vocab_size), sum = 0.0;
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
