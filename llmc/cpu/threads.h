// Uses fewer threads while other programs use the machine.
//
// A parallel loop ends with its last thread. If another program has a core, the thread there is late in every loop and
// all others wait: then fewer threads are faster. The only sure way to know is to try. Rounds of steps are timed; a
// trial is a round with more or fewer threads, and the faster number stays. No result depends on it.
#ifndef LLMC_THREADS_H
#define LLMC_THREADS_H

#include "llmc/base/utils.h"

#define THREADS_ROUND 4     // steps, of which the mean time counts
#define THREADS_REST 8      // rounds between two trials
#define THREADS_SLOWER 1.25 // times as long: with all threads, the machine may be busy; a trial has failed

typedef struct {
    int most, now;  // threads: allowed; used
    int change;     // threads that the trial under way added; 0: none is under way
    bool told;      // the user knows that fewer threads have been faster
    bool fewer;     // which way the next trial goes
    double before;  // seconds of a step before that trial
    double usual;   // seconds of a step with all threads; 0: unknown, so fewer threads have not been tried
    int64_t rest;   // rounds until the next trial may begin
    int64_t steps;  // of the round under way
    double seconds; // of these steps
} Threads;

// Begins with all threads. The first round only warms the machine up.
static inline void threads_begin(Threads *threads, int most) {
    memset(threads, 0, sizeof(*threads));
    threads->most = threads->now = most, threads->fewer = true, threads->rest = 1;
}

// Ends the trial under way. step: mean seconds of a step in it. True: the first trial of all that was faster.
static inline bool threads_end_trial(Threads *threads, double step) {
    bool first = step < threads->before && !threads->told;
    threads->told = threads->told || first;
    if (!(step < threads->before)) {
        threads->now -= threads->change;
        threads->fewer = !threads->fewer;
        if (threads->now == threads->most) { threads->usual = threads->before; }
        threads->rest = THREADS_REST;
    }
    threads->change = 0;
    return first;
}

// Begins a trial with an eighth of the threads more or fewer, at least one. All threads stay while they are about as
// fast as usual.
static inline void threads_begin_trial(Threads *threads, double step) {
    int part = threads->now / 8 > 1 ? threads->now / 8 : 1;
    if (threads->now == threads->most) {
        if (threads->usual > 0.0 && !(step > THREADS_SLOWER * threads->usual)) { return; }
        threads->fewer = true;
    } else if (threads->now == 1) {
        threads->fewer = false;
    }
    threads->before = step;
    threads->change = threads->fewer ? -part : (int)min_i64(part, threads->most - threads->now);
    threads->now += threads->change;
}

// Returns the threads outside of trials.
static inline int threads_kept(const Threads *threads) { return threads->now - threads->change; }

// Takes the time of a step. threads->now is then the number of threads for the next one. A trial that is much slower
// ends early. True: the run has begun, for the first time, to use fewer threads, which the user should know.
static inline bool threads_take(Threads *threads, double seconds) {
    threads->seconds += seconds;
    threads->steps++;
    double step = threads->seconds / (double)threads->steps;
    bool fails = threads->change != 0 && step > THREADS_SLOWER * threads->before;
    if (threads->most == 1 || (threads->steps < THREADS_ROUND && !fails)) { return false; }
    threads->steps = 0;
    threads->seconds = 0.0;
    bool first = false;
    if (threads->change != 0) {
        first = threads_end_trial(threads, step);
    } else if (threads->now == threads->most && step < threads->usual) {
        threads->usual = step;
    }
    if (threads->rest > 0) {
        threads->rest--;
    } else {
        threads_begin_trial(threads, step);
    }
    return first;
}

#endif // LLMC_THREADS_H
