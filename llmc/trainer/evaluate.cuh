// Validation, questions and samples.
#ifndef LLMC_TRAINER_EVALUATE_CUH
#define LLMC_TRAINER_EVALUATE_CUH

#include "llmc/ranks/agree.h"
#include "llmc/run/sampler.h"
#include "llmc/trainer/batch.cuh"

// Queues a batch in a slot's staging memory. The mean losses of its sequences go to their place in GPU memory. A batch
// has `most` places.
static inline void queue_means(Trainer *t, BatchSlot *slot, Round round, int B, int T, int64_t most) {
    int64_t own = round.rounds * most;
    BatchRole role;
    if (round.number == 0) { // all places are sent, and a batch may fill fewer than `most`
        cuda_check(cudaMemsetAsync(t->evaluation.means, 0, (size_t)(t->model.shape.num_ranks * own) * sizeof(double),
                                   t->gpu.stream));
    }
    role.means = t->evaluation.means + t->model.shape.rank * own + round.number * most;
    run_batch(t, slot, B, T, &role);
}

// Brings the mean losses of all rounds and ranks to all hosts. Each rank has computed its own.
static inline void gather_means(Trainer *t, Round last, int64_t most) {
    int64_t ranks = t->model.shape.num_ranks, own = last.rounds * most;
    double *device = t->evaluation.means;
    gather_results(&t->shards, device, device + t->model.shape.rank * own, own * (int64_t)sizeof(double));
    cuda_check(cudaMemcpyAsync(t->evaluation.host_means, device, (size_t)(ranks * own) * sizeof(double),
                               cudaMemcpyDeviceToHost, t->gpu.stream));
    wait_for_stream(&t->shards);
}

// Returns the gathered mean losses of a batch.
static const double *means_of_batch(const Trainer *t, Round last, int64_t batch, int64_t most) {
    int64_t ranks = t->model.shape.num_ranks;
    return t->evaluation.host_means + (batch % ranks * last.rounds + batch / ranks) * most;
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
    queue_means(t, slot, round, rows, (int)T, B);
    return true;
}

// Adds up the mean losses of the sequences in their order. Each sequence has its own sum, so the result does not depend
// on the size of a batch or on the number of ranks.
inline double trainer_validation_loss(Trainer *t, TrainRun *run, Round last) {
    int64_t B = run->options->batch_size, sequences = run_val_sequences(run);
    double sum = 0.0;
    gather_means(t, last, B);
    for (int64_t i = 0; i < sequences; i++) { sum += means_of_batch(t, last, i / B, B)[i % B]; }
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
    queue_means(t, slot, round, batch.sequences, eval->T, eval->B);
    if (round.number > 0) { wait_for_event(&t->shards, t->evaluation.evaluated); }
    cuda_check(cudaEventRecord(t->evaluation.evaluated, t->gpu.stream));
}

// Brings the means of all batches to all hosts, and puts each mean at the place of its row.
inline const double *trainer_evaluation_means(Trainer *t, TrainRun *run, int which, Round last) {
    const EvalLoader *eval = &run->evals[which];
    gather_means(t, last, eval->B);
    for (int64_t number = 0; number < last.batches; number++) {
        EvalBatch batch = eval_batch(eval, number);
        const double *means = means_of_batch(t, last, number, eval->B);
        memcpy(t->evaluation.row_means + batch.first, means, (size_t)batch.sequences * sizeof(double));
    }
    return t->evaluation.row_means;
}

inline void trainer_append_token(Trainer *t, int token) {
    sampler_append(t->sample.history_staging, &t->sample.history_length, t->model.shape.T, token);
}

// Computes the logits (V) of the token after the sample so far, by a forward pass over the whole window. The tokens in
// the window after the sample have no influence, because attention is causal.
inline const float *trainer_next_logits(Trainer *t) {
    int T = t->model.shape.T, V = t->model.config.vocab_size, last = t->sample.history_length - 1;
    cuda_check(cudaMemcpyAsync(t->sample.history, t->sample.history_staging, (size_t)T * sizeof(int32_t),
                               cudaMemcpyHostToDevice, t->gpu.stream));
    comm_progress(t->shards.ranks, "a sample");
    model_forward(&t->model, &t->gpu, &t->shards, t->sample.history, 1, T, LINEAR_FOR_LOSS);
    model_logits(&t->model, &t->gpu, last);
    download(&t->shards, t->sample.logits, t->model.acts.logits.data, V);
    return t->sample.logits;
}

inline float *trainer_begin_sample(Trainer *t) {
    t->sample.history_length = 0;
    memset(t->sample.history_staging, 0, (size_t)t->model.shape.T * sizeof(int32_t));
    return t->sample.probs;
}

#endif // LLMC_TRAINER_EVALUATE_CUH
