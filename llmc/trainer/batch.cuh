// A batch: its way to the GPU, and its passes.
#ifndef LLMC_TRAINER_BATCH_CUH
#define LLMC_TRAINER_BATCH_CUH

#include "llmc/layers/embedding.cuh"
#include "llmc/layers/loss.cuh"
#include "llmc/trainer/types.cuh"

// Returns a slot for the next batch. Its staging memory is free to be written.
static inline BatchSlot *next_slot(Feeder *feeder, Shards *shards) {
    BatchSlot *slot = &feeder->slots[feeder->batches++ % NUM_SLOTS];
    wait_for_event(shards, slot->uploaded); // the slot's last batch was uploaded long ago
    return slot;
}

// Copies a slot's N rows to the GPU on the copy stream, beside the work on the batch before. Kernels launched on
// gpu->stream after this call may read them.
static inline void upload_batch(Feeder *feeder, Gpu *gpu, BatchSlot *slot, int64_t N) {
    cuda_check(cudaStreamWaitEvent(feeder->copy_stream, slot->no_longer_used, 0));
    cuda_check(cudaMemcpyAsync(slot->device, slot->staging, (size_t)(3 * N) * sizeof(int32_t), cudaMemcpyHostToDevice,
                               feeder->copy_stream));
    cuda_check(cudaEventRecord(slot->uploaded, feeder->copy_stream));
    cuda_check(cudaStreamWaitEvent(gpu->stream, slot->uploaded, 0));
}

static inline void order_tokens(Trainer *t, BatchSlot *slot, int64_t N) {
    embedding_order_tokens(slot->staging + 2 * N, slot->staging, N, t->model.config.vocab_size, t->feeder.token_counts);
}

static inline void release_batch(Gpu *gpu, BatchSlot *slot) {
    cuda_check(cudaEventRecord(slot->no_longer_used, gpu->stream));
}

// Runs the forward, and the backward if role->trains, of the N = B*T rows in a slot's staging memory. The caller has
// written tokens and targets there, and for mean losses the flags of the losses that count.
static inline void run_batch(Trainer *t, BatchSlot *slot, int B, int T, const BatchRole *role) {
    int64_t N = (int64_t)B * T;
    const int32_t *tokens = slot->device, *targets = tokens + N;
    const int32_t *order = targets + N, *counts = order; // the third array: the order of the tokens, or flags for means
    comm_waits(t->shards.ranks, true); // the host waits here if the GPU's queue is full: see nccl_queued
    if (role->means == NULL) { order_tokens(t, slot, N); }
    upload_batch(&t->feeder, &t->gpu, slot, N);
    model_forward(&t->model, &t->gpu, &t->shards, tokens, B, T, role->trains ? LINEAR_FOR_GRADIENTS : LINEAR_FOR_LOSS);
    model_loss(&t->model, &t->gpu, &t->shards, targets, N, role);
    if (role->trains) { model_backward(&t->model, &t->gpu, &t->shards, tokens, order, B, T, role); }
    if (role->means != NULL) { mean_losses(role->means, t->model.acts.losses.data, counts, B, T, t->gpu.stream); }
    release_batch(&t->gpu, slot);
}

#endif // LLMC_TRAINER_BATCH_CUH
