// Finds out that other programs slow the machine down: for 20 steps in a row a step has reached less than a third of
// the best fraction of the machine's peak that a step of this run has reached.
#ifndef LLMC_BUSY_H
#define LLMC_BUSY_H

#include "llmc/base/utils.h"

#define BUSY_STEPS 20
#define BUSY_PART (1.0 / 3.0) // of the best fraction

// The row so far. A process begins with zeros and its first step.
typedef struct {
    double best;           // fraction of the peak; 0: no step has counted yet
    int64_t steps;         // in a row below BUSY_PART of the best
    bool told;             // once is enough
    int64_t after_a_pause; // this step does not count: the first one, or the last that followed a save or a validation
} Busy;

// Takes a step's fraction of the peak into the row. 0: unknown, so the step does not count. True: a row has
// become long enough to tell the user, for the first time. A step that is fast enough ends the row.
static inline bool busy_take(Busy *busy, int64_t step, double fraction) {
    if (!(fraction > 0.0) || step == busy->after_a_pause) { return false; }
    busy->best = fraction > busy->best ? fraction : busy->best;
    busy->steps = fraction < BUSY_PART * busy->best ? busy->steps + 1 : 0;
    bool tells = busy->steps == BUSY_STEPS && !busy->told;
    busy->told = busy->told || tells;
    return tells;
}

#endif // LLMC_BUSY_H
