// Settles what a run computes, when its inputs are open: the tokens of a step, the micro-batch, the number of steps.
#ifndef LLMC_RUN_SETTLE_H
#define LLMC_RUN_SETTLE_H

#include "llmc/run/run_state.h"

// Settles the tokens of a step, and checks that micro-batches add up to them. Any divisor of them is then possible.
static inline bool run_settle_batch(const TrainRun *run, TrainOptions *o, Error *error) {
    if (run_chooses_batch(run)) { o->batch_size = 1; }
    return train_options_check_batch(o, run->num_ranks, error);
}

// Settles the rest, when micro-batch and level of recomputation are known: the number of steps, the schedules, the
// batches of evaluations. A resumed run must be like the run that was saved.
static inline bool run_settle_steps(TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    int64_t sequences = run_step_sequences(run), tokens = o->batch_size * o->seq_len;
    run->micro_batches = o->total_batch / (tokens * run->num_ranks);
    run->num_steps = o->steps;
    if (o->steps < 0 && run_has_train(run)) { run->num_steps = run->train.num_sequences / sequences; }
    if (train_options_plan(o) && !run_has_train(run)) { run->num_steps = 0; }
    if (o->steps < 0 && run->num_steps < 1 && run_has_train(run)) {
        return fail(error,
                    "--steps (-x): one epoch is %lld sequences, less than the %lld of one step; give --steps, a "
                    "smaller --total-batch or more data",
                    (long long)run->train.num_sequences, (long long)sequences);
    }
    run->schedule = train_options_schedule(o, o->lr, run->num_steps);
    for (int i = 0; i < NUM_EVALS; i++) {
        EvalLoader *eval = &run->evals[i];
        if (eval_is_open(eval)) { eval->B = eval_batch_sequences(eval, tokens); }
    }
    return run_compare_options(run, error);
}

#endif // LLMC_RUN_SETTLE_H
