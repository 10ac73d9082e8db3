// A training step: its micro-batches, one update, results that arrive late.
#ifndef LLMC_TRAINER_STEP_CUH
#define LLMC_TRAINER_STEP_CUH

#include "llmc/ranks/agree.h"
#include "llmc/run/run_report.h"
#include "llmc/trainer/pipeline.cuh"
#include "llmc/trainer/tensor.cuh"
#include "llmc/trainer/nonfinite.cuh"
#include "llmc/trainer/update.cuh"

// Describes the micro-batches of a step of this run.
static inline BatchRole training_role(Trainer *t, const TrainRun *run) {
    BatchRole role;
    role.trains = true;
    role.dloss = 1.0f / (float)run->options->total_batch;
    role.squares = t->stats.norm_partials;
    role.loss_sum = added_once(&t->shards, t->stats.loss_sum); // all ranks of the tensor group have all losses
    return role;
}

// Returns the slot of micro-batch i, on the GPU. The backward finds there what the forward has brought, but a stage
// whose forwards are ahead brings it again. NULL: it cannot be read.
static inline BatchSlot *training_batch(Trainer *t, TrainRun *run, int i, Error *error) {
    Feeder *feeder = &t->feeder;
    int B = (int)run->options->batch_size, T = (int)run->options->seq_len;
    if (feeder->loaded == i) { return newest_slot(feeder); }
    BatchSlot *slot = next_slot(feeder, &t->shards);
    feeder->loaded = i;
    if (!run_read_batch(run, i, slot->staging, slot->staging + (int64_t)B * T, error)) { return NULL; }
    send_batch(t, slot, B, T / t->shards.context.size, true);
    return slot;
}

// Queues all micro-batches of the step at the run's position, which add up its gradient. If the run is asked to stop
// between two of them, sets *interrupted and returns early. Nothing is lost: a resumed run begins the step anew. A rank
// with peers is not interrupted: it finishes the step.
static inline bool accumulate_gradient(Trainer *t, TrainRun *run, bool *interrupted, Error *error) {
    int B = (int)run->options->batch_size, T = (int)run->options->seq_len;
    *interrupted = false;
    t->feeder.loaded = -1;
    comm_progress(t->shards.ranks, "step %lld", (long long)run->step + 1); // once, as not all stages ask for batches
    zero_gradients(&t->shards, t->model.grads);
    auto batch = [&](int i) -> BatchSlot * {
        *interrupted = !has_peers(&t->shards) && run_is_stopping() && i > 0 && t->feeder.loaded != i;
        return *interrupted ? NULL : training_batch(t, run, i, error);
    };
    bool ok = run_list(t, t->feeder.list, pipe_length(&t->model.shape.pipeline), B, T / t->shards.context.size,
                       training_role(t, run), LINEAR_FOR_GRADIENTS, batch);
    if (ok) { finish_gradients(&t->shards, t->model.grads); }
    return ok || *interrupted;
}

// ---- Results that arrive late ----
//
// The GPU must never wait for the host. The host therefore queues a step without waiting for its loss and norm, and
// reads them while the next step runs: one step waits in stats.pending until settle_step logs it. The GPU itself
// decides whether a step may update the weights (step_finish, adamw_update), so a NaN that the host sees late has
// changed nothing. Only a run that skips outliers (--skip-loss-z, --skip-grad-z) waits for the step's loss and norm.

// Begins a step: takes a slot for its events and records its beginning.
static inline PendingStep begin_step(Trainer *t, const TrainRun *run) {
    PendingStep step;
    memset(&step, 0, sizeof(step));
    step.waiting = true;
    step.adjoins = t->stats.pending.waiting; // else the loop has settled it, to do something between the steps
    step.slot = (int)(t->stats.steps_begun++ % NUM_STEPS);
    step.info = run_begin_step(run, schedule_lr(&run->schedule, run->step));
    cuda_check(cudaEventRecord(t->stats.begun[step.slot], t->gpu.stream));
    return step;
}

// Waits for the loss and norm of a step. Fails if the GPU refused to update the weights with them.
static inline bool read_result(Trainer *t, TrainRun *run, PendingStep *step, Error *error) {
    wait_for_event(&t->shards, t->stats.reduced[step->slot]);
    const StepResult *result = &t->stats.results[step->slot];
    trainer_facts.stop->agreed = trainer_facts.stop->agreed || result->wants_to_end != 0;
    if (result->stopped == STEP_WEIGHTS_DIFFER) {
        int odd_one = (int)result->odd_one;
        return comm_fail_replicas(t->shards.ranks, odd_one, grid_group(&t->model.shape.grid, odd_one, DATA_AXES).leader,
                                  run->step, error);
    }
    if (result->stopped) {
        await_parameters(&t->model, &t->gpu, &t->shards);
        compute_after_communicate(&t->shards);
        return explain_stop(t, run, step, result, error);
    }
    step->info.loss = result->loss;
    step->info.norm = result->norm;
    step->is_read = true;
    return true;
}

// Returns the seconds of a step. They count from the end of an adjoining step before it, which includes gaps, or else
// from the step's beginning.
static inline double measured_seconds(const StepStats *stats, const PendingStep *step) {
    float milliseconds = 0.0f;
    int before = (step->slot + NUM_STEPS - 1) % NUM_STEPS;
    cudaEvent_t begin = step->adjoins ? stats->done[before] : stats->begun[step->slot];
    cuda_check(cudaEventElapsedTime(&milliseconds, begin, stats->done[step->slot]));
    return 1e-3 * (double)milliseconds;
}

// Waits for the pending step's results and logs them. Does nothing if no step is pending.
static inline bool settle_step(Trainer *t, TrainRun *run, Error *error) {
    PendingStep *step = &t->stats.pending;
    if (!step->waiting) { return true; }
    step->waiting = false;
    if (!step->is_read) {
        if (!read_result(t, run, step, error)) { return false; }
        run_skips_update(run, &step->info); // no limits are set, so this only keeps the statistics
    }
    wait_for_event(&t->shards, t->stats.done[step->slot]);
    step->info.seconds = measured_seconds(&t->stats, step);
    if (t->gpu.device.peak_flops > 0.0) {
        double peak = t->gpu.device.peak_flops * t->shards.all.size;
        step->info.peak_fraction = run_step_flops(run) / step->info.seconds / peak;
    }
    return run_log_step(run, &step->info, error);
}

// Decides whether a step updates the weights. The host waits here only in a run that skips outliers.
static inline bool decide_update(Trainer *t, TrainRun *run, PendingStep *step, bool *skip, Error *error) {
    *skip = false;
    if (run->options->skip_loss_z <= 0.0 && run->options->skip_grad_z <= 0.0) { return true; }
    if (!settle_step(t, run, error) || !read_result(t, run, step, error)) { return false; }
    *skip = run_skips_update(run, &step->info);
    return true;
}

// Logs the step before while the GPU works on the queued step, which becomes the pending step.
static inline bool queue_results(Trainer *t, TrainRun *run, const PendingStep *step, Error *error) {
    cuda_check(cudaEventRecord(t->stats.done[step->slot], t->gpu.stream));
    if (!settle_step(t, run, error)) { return false; }
    t->stats.pending = *step;
    return true;
}

// ---- The step ----

// Queues the next update.
static inline void update_weights(Trainer *t, const TrainRun *run, double lr) {
    const TrainOptions *o = run->options;
    int64_t update = run->updates + 1;
    uint64_t key = rounding_key((uint64_t)o->seed, update);
    MuonFactors muon = {run_muon_rate(run), run_muon_momentum(run), (float)o->weight_decay, key};
    trainer_update(t, adamw_factors((float)lr, 0.9f, 0.95f, (float)o->adam_eps, (float)o->weight_decay, update, key),
                   muon);
}

// Queues one step: the gradients of all micro-batches, their sum over the ranks, the update. Logs the step before.
static inline bool train_step(Trainer *t, TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    bool interrupted, skip;
    PendingStep step = begin_step(t, run);
    if (!accumulate_gradient(t, run, &interrupted, error)) { return false; }
    if (interrupted) { return settle_step(t, run, error); }
    reduce_step(t, 1.0 / (double)o->total_batch, o->grad_clip, trainer_facts.stop->asked != 0, step.slot);
    if (!decide_update(t, run, &step, &skip, error)) { return false; }
    if (!skip) { update_weights(t, run, step.info.lr); }
    run->updates += !skip;
    if (!queue_results(t, run, &step, error)) { return false; }
    run_advance(run);
    return true;
}

#endif // LLMC_TRAINER_STEP_CUH
