// Computes the learning rate as a pure function of the step, so that a resumed run needs only its step.
//
// Each schedule starts with a linear warm-up. A schedule that falls reaches peak * final_fraction at step `total`.
#ifndef LLMC_SCHEDULERS_H
#define LLMC_SCHEDULERS_H

#include "llmc/base/utils.h"
#include <assert.h>
#include <math.h>

typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD, NUM_SCHEDULES } ScheduleKind;

static const char *const schedule_names[NUM_SCHEDULES] = {"cosine", "linear", "constant", "wsd"};

typedef struct {
    ScheduleKind kind;
    float peak;           // the learning rate after the warm-up
    int64_t warmup;       // steps of warm-up, 0: none
    int64_t total;        // steps of the whole run, warm-up included
    float final_fraction; // of the peak, at the end
} Schedule;

// Returns the kind of schedule with a name that --schedule knows.
static inline ScheduleKind schedule_kind(const char *name) {
    int kind = 0;
    while (kind < NUM_SCHEDULES && strcmp(name, schedule_names[kind]) != 0) { kind++; }
    assert(kind < NUM_SCHEDULES);
    return (ScheduleKind)kind;
}

// Returns the step at which the decay begins. A warm-up that reaches into the decay shortens it, so that the rate never
// jumps.
static inline int64_t schedule_decay_start(const Schedule *s) {
    int64_t decay = s->kind == SCHEDULE_WSD ? ceil_div_i64(s->total, 5) : s->total;
    return max_i64(s->warmup, s->total - decay);
}

// Returns how much is left of the way from the peak (1) to the final rate (0) after a part x in [0, 1] of the decay.
static inline double schedule_shape(ScheduleKind kind, double x) {
    switch (kind) {
    case SCHEDULE_COSINE: // one cycle of SGDR (Loshchilov, Hutter 2016)
        return 0.5 * (1.0 + cos(3.14159265358979323846 * x));
    case SCHEDULE_LINEAR: return 1.0 - x;
    case SCHEDULE_WSD: // warm-up, stable, decay (Haegele et al. 2024, "Scaling Laws and Compute-Optimal Training")
        return 1.0 - sqrt(x);
    default: return 1.0;
    }
}

// Tells whether the rate falls after the warm-up.
static inline bool schedule_falls(ScheduleKind kind) { return schedule_shape(kind, 1.0) < 1.0; }

// Returns the learning rate of the update at `step` (0-based). Step i of the warm-up has (i + 1) / warmup of the peak.
// So the first update is not lost, and step warmup - 1 has the peak. Steps from `total` on have the final rate.
static inline float schedule_lr(const Schedule *s, int64_t step) {
    if (step < s->warmup) { return (float)(s->peak * ((double)(step + 1) / (double)s->warmup)); }
    int64_t start = schedule_decay_start(s);
    double x = step >= s->total ? 1.0 : (double)max_i64(step - start, 0) / (double)(s->total - start);
    double fraction = s->final_fraction + (1.0 - s->final_fraction) * schedule_shape(s->kind, x);
    return (float)(s->peak * fraction);
}

// Returns the schedule for people: "0.0003, cosine to 3e-05 after 100 steps of warm-up".
static inline ShortText schedule_text(const Schedule *s) {
    ShortText text;
    char end[40] = "", warmup[64] = "";
    if (schedule_falls(s->kind)) { snprintf(end, sizeof(end), " to %g", (double)s->peak * (double)s->final_fraction); }
    if (s->warmup > 0) {
        snprintf(warmup, sizeof(warmup), " after %lld step%s of warm-up", (long long)s->warmup, &"s"[s->warmup == 1]);
    }
    snprintf(text.text, sizeof(text.text), "%g, %s%s%s", (double)s->peak, schedule_names[s->kind], end, warmup);
    return text;
}

#endif // LLMC_SCHEDULERS_H
