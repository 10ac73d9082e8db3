// Validation, questions and samples.
#ifndef LLMC_TRAINER_EVALUATE_CUH
#define LLMC_TRAINER_EVALUATE_CUH

#include "llmc/ranks/agree.h"
#include "llmc/run/sampler.h"
#include "llmc/trainer/pipeline.cuh"

// Queues a batch in a slot's staging memory. The losses of its sequences go to their place in GPU memory. A batch has
// `most` places.
static inline void queue_losses(Trainer *t, BatchSlot *slot, Round round, int B, int T, int64_t most) {
    int64_t own = round.rounds * most;
    SequenceLoss *losses = t->evaluation.losses;
    if (round.number == 0) { // all places are sent, and a batch may fill fewer than `most`
        cuda_check(cudaMemsetAsync(losses, 0, (size_t)(t->shards.all.size * own) * sizeof(*losses), t->gpu.stream));
    }
    run_losses(t, slot, B, T, losses + t->shards.all.rank * own + round.number * most);
}

// Brings the losses of all rounds and ranks to all hosts. Each rank has computed its own.
static inline void gather_losses(Trainer *t, Round last, int64_t most) {
    int64_t ranks = t->shards.all.size, own = last.rounds * most, bytes = own * (int64_t)sizeof(SequenceLoss);
    SequenceLoss *device = t->evaluation.losses;
    gather_results(&t->shards, device, device + t->shards.all.rank * own, bytes);
    cuda_check(cudaMemcpyAsync(t->evaluation.host_losses, device, (size_t)(ranks * bytes), cudaMemcpyDeviceToHost,
                               t->gpu.stream));
    wait_for_stream(&t->shards);
}

// Returns the mean loss of sequence i of a gathered batch. The ranks of the last stage that share the sequence have a
// sum each.
static double gathered_mean(const Trainer *t, Round last, int64_t batch, int64_t i, int64_t most) {
    const RankGrid *grid = &t->model.shape.grid;
    double sum = 0.0, number = 0.0;
    for (int cp = 0; cp < grid->cp; cp++) {
        RankGrid place = {(int)(batch % grid->dp), grid->pp - 1, cp, 0};
        int64_t at = (grid_rank(grid, &place) * last.rounds + batch / grid->dp) * most + i;
        sum += t->evaluation.host_losses[at].sum, number += t->evaluation.host_losses[at].number;
    }
    return sum / number;
}

// Queues a batch of a validation.
inline bool trainer_validate_batch(Trainer *t, TrainRun *run, Round round, Error *error) {
    Range range("validation");
    int64_t B = run->options->batch_size, T = run->options->seq_len, first = round.batch * B;
    int rows = (int)min_i64(B, run_val_sequences(run) - first);
    comm_progress(t->shards.ranks, "the validation after step %lld", (long long)run->step);
    BatchSlot *slot = next_slot(&t->feeder, &t->shards);
    if (!run_read_val(run, first, rows, slot->staging, slot->staging + rows * T, error)) { return false; }
    for (int64_t i = 0; i < rows * T; i++) { slot->staging[2 * rows * T + i] = 1; } // all losses count
    queue_losses(t, slot, round, rows, (int)T, B);
    return true;
}

// Adds up the mean losses of the sequences in their order. Each sequence has its own sum, so the result does not depend
// on the size of a batch or on the number of ranks.
inline double trainer_validation_loss(Trainer *t, TrainRun *run, Round last) {
    int64_t B = run->options->batch_size, sequences = run_val_sequences(run);
    double sum = 0.0;
    gather_losses(t, last, B);
    for (int64_t i = 0; i < sequences; i++) { sum += gathered_mean(t, last, i / B, i % B, B); }
    return sum / (double)sequences;
}

// Writes to counts (rows, T) which losses of a batch count: 1 or 0.
static inline void count_scored(const EvalLoader *eval, EvalBatch batch, int32_t *counts) {
    for (int i = 0; i < batch.sequences; i++) {
        int begin, end;
        eval_scored(eval, batch.first + i, &begin, &end);
        for (int t = 0; t < eval->T; t++) { counts[i * eval->T + t] = t >= begin && t < end; }
    }
}

// Queues a batch of an evaluation. The host is one round ahead of the GPU.
inline void trainer_evaluate_batch(Trainer *t, TrainRun *run, int which, Round round) {
    Range range("evaluation");
    const EvalLoader *eval = &run->evals[which];
    EvalBatch batch = eval_batch(eval, round.batch);
    int64_t N = (int64_t)batch.sequences * eval->T;
    comm_progress(t->shards.ranks, "%s after step %lld", run_evals[which].name, (long long)run->step);
    BatchSlot *slot = next_slot(&t->feeder, &t->shards);
    eval_read(eval, batch, slot->staging, slot->staging + N);
    count_scored(eval, batch, slot->staging + 2 * N);
    queue_losses(t, slot, round, batch.sequences, eval->T, eval->B);
    if (round.number > 0) { wait_for_event(&t->shards, t->evaluation.evaluated); }
    cuda_check(cudaEventRecord(t->evaluation.evaluated, t->gpu.stream));
}

// Brings the means of all batches to all hosts, and puts each mean at the place of its row.
inline const double *trainer_evaluation_means(Trainer *t, TrainRun *run, int which, Round last) {
    const EvalLoader *eval = &run->evals[which];
    gather_losses(t, last, eval->B);
    for (int64_t number = 0; number < last.batches; number++) {
        EvalBatch batch = eval_batch(eval, number);
        double *means = t->evaluation.row_means + batch.first;
        for (int64_t i = 0; i < batch.sequences; i++) { means[i] = gathered_mean(t, last, number, i, eval->B); }
    }
    return t->evaluation.row_means;
}

inline void trainer_append_token(Trainer *t, int token) {
    int32_t own = token;
    keep_own_tokens(&t->model, &own, 1);
    sampler_append(t->sample.history.staging, &t->sample.history_length, t->model.shape.T, own);
}

// Computes the logits (V) of the token after the sample so far, by a forward pass over the whole window of T tokens.
// The tokens in the window after the sample have no influence, because attention is causal.
inline const float *trainer_next_logits(Trainer *t) {
    int T = t->model.shape.T, V = t->shards.layout.part.whole.vocab_size, last = t->sample.history_length - 1;
    Group *stages = &t->shards.pipe, *context = &t->shards.context;
    ContextPlace place = context_place(&t->model, T / context->size);
    bool ends = part_ends(&t->shards.layout.part);
    int32_t *history = t->sample.history.staging, *own = history + T;
    floatX *logits = ends ? t->model.acts.logits.data : (floatX *)t->gpu.cublas_workspace;
    take_own_positions(own, history, 1, place);
    cuda_check(cudaMemcpyAsync(t->sample.history.device, own, (size_t)context_rows(&place) * sizeof(int32_t),
                               cudaMemcpyHostToDevice, t->gpu.stream));
    comm_progress(t->shards.ranks, "a sample");
    run_forward(t, &t->sample.history, 1, context_rows(&place));
    int owner = 0, row = context_row(&place, last, &owner);
    if (ends && context->rank == owner) { model_logits(&t->model, &t->gpu, &t->shards, row, context_rows(&place)); }
    communicate_after_compute(&t->shards);
    if (ends && context->size > 1) { group_broadcast(context, logits, V * (int64_t)sizeof(floatX), owner); }
    if (stages->size > 1) { group_broadcast(stages, logits, V * (int64_t)sizeof(floatX), stages->size - 1); }
    compute_after_communicate(&t->shards);
    download(&t->shards, t->sample.logits, logits, V);
    return t->sample.logits;
}

inline float *trainer_begin_sample(Trainer *t) {
    t->sample.history_length = 0;
    memset(t->sample.history.staging, 0, (size_t)t->model.shape.T * sizeof(int32_t));
    return t->sample.probs;
}

#endif // LLMC_TRAINER_EVALUATE_CUH
