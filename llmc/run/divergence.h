// Finds a run that has diverged: for 20 steps in a row the loss or the gradient norm has been far too high.
//
//   loss > ln V + 1       an untrained model gives all V tokens equal probability, which costs ln V
//   norm > 10 * median    of the last 128 norms that the statistics of outliers have accepted (OutlierDetector)
// A bad batch raises loss and norm for a step or two, and such a streak ends by itself.
#ifndef LLMC_DIVERGENCE_H
#define LLMC_DIVERGENCE_H

#include <math.h>

#include "llmc/base/utils.h"

#define DIVERGENCE_STEPS 20
#define DIVERGENCE_LOSS_MARGIN 1.0
#define DIVERGENCE_NORM_FACTOR 10.0

// The streaks so far, which the training state keeps. A new run begins with zeros.
typedef struct {
    int64_t loss_steps, norm_steps; // steps in a row above the limit, up to the last step
    double norm_limit;              // 0: there is none yet
} Divergence;

// Tells whether a run can go on from the streaks of a training state.
static inline bool divergence_is_sound(const void *data) {
    const Divergence *d = (const Divergence *)data;
    return d->loss_steps >= 0 && d->loss_steps <= LARGEST_WHOLE && d->norm_steps >= 0 &&
           d->norm_steps <= LARGEST_WHOLE && isfinite(d->norm_limit) && d->norm_limit >= 0.0;
}

static inline double divergence_loss_limit(int vocab_size) { return log((double)vocab_size) + DIVERGENCE_LOSS_MARGIN; }

// Takes a step's loss and norm into the streaks. usual_norm: the running median of the norm; NaN: unknown, so the last
// limit stays. A value that is not a number is above every limit.
static inline void divergence_take(Divergence *d, int vocab_size, double loss, double norm, double usual_norm) {
    if (usual_norm > 0.0) { d->norm_limit = DIVERGENCE_NORM_FACTOR * usual_norm; }
    d->loss_steps = loss <= divergence_loss_limit(vocab_size) ? 0 : d->loss_steps + 1;
    d->norm_steps = d->norm_limit == 0.0 || norm <= d->norm_limit ? 0 : d->norm_steps + 1;
}

// Returns the length of the longer streak. The run has diverged from DIVERGENCE_STEPS on.
static inline int64_t divergence_steps(const Divergence *d) { return max_i64(d->loss_steps, d->norm_steps); }

// Says what is too high, for how long: "the loss has been above 6.7, that of an untrained model + 1, for 20 steps".
static inline ShortText divergence_text(const Divergence *d, int vocab_size) {
    ShortText text;
    bool loss = d->loss_steps >= d->norm_steps;
    snprintf(text.text, sizeof(text.text), "the %s has been above %.3g, %g %s, for %lld steps",
             loss ? "loss" : "gradient norm", loss ? divergence_loss_limit(vocab_size) : d->norm_limit,
             loss ? DIVERGENCE_LOSS_MARGIN : DIVERGENCE_NORM_FACTOR,
             loss ? "more than that of an untrained model" : "times its median", (long long)divergence_steps(d));
    return text;
}

#endif // LLMC_DIVERGENCE_H
