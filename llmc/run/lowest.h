// The lowest validation loss of a run, which decides what model_best.bin holds and when --patience ends the run.
#ifndef LLMC_LOWEST_H
#define LLMC_LOWEST_H

#include <math.h>

#include "llmc/base/utils.h"

// The training state keeps it. Losses of other data, or of other sequences of them, are not compared.
typedef struct {
    double loss;     // mean of a validation's sequences
    int64_t step;    // it was found after so many steps
    int64_t last;    // the newest validation came after so many steps
    int64_t since;   // validations after the one that found it
    uint64_t source; // which sequences the losses are of; 0: there was no validation yet
} Lowest;

// Tells whether a run can go on from the numbers of a training state.
static inline bool lowest_is_sound(const void *data) {
    const Lowest *l = (const Lowest *)data;
    return l->step >= 0 && l->last >= l->step && l->last <= LARGEST_WHOLE && l->since >= 0 &&
           l->since <= LARGEST_WHOLE && isfinite(l->loss);
}

// Takes the loss of a validation after `step` steps, and returns true if no loss was lower before. A resumed run may
// repeat the validation at which it was saved, which then counts once.
static inline bool lowest_take(Lowest *l, uint64_t source, int64_t step, double loss) {
    bool first = l->source != source, again = !first && step == l->last;
    if (!isfinite(loss)) { loss = HUGE_VAL; }
    bool lower = loss < HUGE_VAL && (first || loss < l->loss || (again && step == l->step));
    if (lower) {
        l->loss = loss, l->source = source;
        l->step = l->last = step, l->since = 0;
    } else if (!first && !again) {
        l->last = step, l->since++;
    }
    return lower;
}

#endif // LLMC_LOWEST_H
