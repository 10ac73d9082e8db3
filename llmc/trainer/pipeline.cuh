// A batch: its way to the GPU, its passes, and what travels between the stages of a pipeline. A schedule is a list of
// instructions (schedule.h), and run_list queues them one after another. One stage does the forward and the backward of
// each micro-batch in turn.
#ifndef LLMC_TRAINER_PIPELINE_CUH
#define LLMC_TRAINER_PIPELINE_CUH

#include "llmc/layers/embedding.cuh"
#include "llmc/layers/loss.cuh"
#include "llmc/trainer/types.cuh"

// ---- A batch on its way to the GPU ----

// Returns a slot for the next batch. Its staging memory is free to be written.
static inline BatchSlot *next_slot(Feeder *feeder, Shards *shards) {
    BatchSlot *slot = &feeder->slots[feeder->batches++ % NUM_SLOTS];
    wait_for_event(shards, slot->uploaded); // the slot's last batch was uploaded long ago
    return slot;
}

static inline BatchSlot *newest_slot(Feeder *feeder) { return &feeder->slots[(feeder->batches - 1) % NUM_SLOTS]; }

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

// Takes this rank's positions of B sequences, one after another, from `all` (B, place.T) to `own`, which may be `all`.
static inline void take_own_positions(int32_t *own, const int32_t *all, int B, const ContextPlace &place) {
    int T = context_rows(&place);
    for (int b = 0; b < B && (place.size > 1 || own != all); b++) {
        for (int i = 0; i < T; i++) { own[b * T + i] = all[b * (int64_t)place.T + context_position(&place, i)]; }
    }
}

// Replaces tokens and targets by their numbers in this rank's part of the vocabulary; -1: another rank has them.
static inline void keep_own_tokens(const Model *model, int32_t *tokens, int64_t n) {
    const ModelPart *part = &model->shards->layout.part;
    int32_t rows = part->local.padded_vocab_size, first = part->at.tp_rank * rows;
    for (int64_t i = 0; i < n && part->at.tp > 1; i++) {
        int32_t own = tokens[i] - first;
        tokens[i] = own >= 0 && own < rows ? own : -1;
    }
}

// Brings this rank's rows of the B sequences in a slot's staging memory to the GPU: T of each. in_order: of a batch
// that trains, whose third array is made here. A batch for losses of sequences has flags there.
static inline void send_batch(Trainer *t, BatchSlot *slot, int B, int T, bool in_order) {
    ContextPlace place = context_place(&t->model, T);
    int64_t N = (int64_t)B * T, all = (int64_t)B * place.T;
    for (int i = 0; i < 3 - in_order; i++) {
        take_own_positions(slot->staging + i * N, slot->staging + i * all, B, place);
    }
    comm_waits(t->shards.ranks, true); // the host waits here if the GPU's queue is full: see group_queued
    keep_own_tokens(&t->model, slot->staging, 2 * N);
    if (in_order) { order_tokens(t, slot, N); }
    upload_batch(&t->feeder, &t->gpu, slot, N);
}

// ---- Passes ----

// Describes the pass of an instruction. Backward number `backward` of a step takes its turn of dresidual.
static inline Pass pass_of(const Model *model, const PipeInstruction &i, int backward) {
    const ModelPart *part = &model->shards->layout.part;
    int begin = part_chunk_begin(part, i.chunk), stages = part->at.stages;
    bool first = part_begins(part) && i.chunk == 0, last = part_ends(part) && i.chunk == part->at.chunks - 1;
    return {begin, begin + part_chunk_layers(part, i.chunk), first, last, i.slot, stages > 1 ? backward % 2 : 0};
}

// Tells whether a pass needs the tokens or the targets of its batch.
static inline bool pass_needs_batch(const Pass &pass, PipeAction action) {
    return pass.first || (pass.last && action == PIPE_BACKWARD);
}

// ---- Between the stages ----

// Returns the activations that an instruction sends or receives: the input or the output of a pass, or the gradient of
// one of them.
static inline floatX *activations_on_the_way(const Model *model, PipeAction action) {
    const Pass &pass = model->pass;
    if (action == PIPE_GET_INPUT) { return residual_of(model, pass.begin); }
    if (action == PIPE_PUT_OUTPUT) { return residual_of(model, pass.end); }
    return model->acts.dresidual.of(pass.turn);
}

// Sends or receives what an instruction says, of batches of N rows, at once with the next one if they are joined.
// backwards: the number of them that were queued so far. Returns the number of instructions that were done.
static inline int transfer(Trainer *t, const PipeInstruction *list, int backwards, int64_t N) {
    Model *model = &t->model;
    Shards *s = &t->shards;
    int64_t count = own_rows(model, N) * model->config.channels;
    int number = list[0].joined ? 2 : 1;
    communicate_after_compute(s);
    group_begin(&s->pipe);
    for (const PipeInstruction *i = list; i < list + number; i++) {
        int peer = pipe_peer(&model->shape.pipeline, i->action);
        model->pass = pass_of(model, *i, i->action == PIPE_PUT_GRAD ? backwards - 1 : backwards);
        floatX *data = activations_on_the_way(model, i->action);
        if (pipe_puts(i->action)) {
            group_send(&s->pipe, data, count, peer, &s->sent.pipeline);
        } else {
            group_receive(&s->pipe, data, count, peer);
        }
    }
    group_end(&s->pipe);
    compute_after_communicate(s);
    return number;
}

static inline void forward_pass(Trainer *t, const BatchSlot *slot, int B, int T, LinearUse use) {
    const int32_t *tokens = slot != NULL ? slot->device : NULL;
    Range range("forward");
    begin_forward(&t->model, &t->gpu, &t->shards);
    model_forward(&t->model, &t->gpu, &t->shards, tokens, B, T, use);
}

// Runs the head and the backward of a pass. The embedding and a tied head have one bucket.
static inline void backward_pass(Trainer *t, const BatchSlot *slot, int B, int T, const BatchRole *role) {
    Model *model = &t->model;
    const Pass &pass = model->pass;
    int64_t N = (int64_t)B * T;
    const int32_t *tokens = NULL, *targets = NULL, *order = NULL; // a stage between the ends needs none
    if (slot != NULL) { tokens = slot->device, targets = tokens + N, order = targets + N; }
    int head = zero_head(&t->shards.layout);
    if (pass.last || (pass.first && head == 0)) { begin_gradient(&t->shards, model->grads, head, role->first); }
    fetch_gradient(&t->shards, model->grads, pass.end, role->first); // of the last block
    if (pass.last) { model_loss(model, &t->gpu, &t->shards, targets, N, role); }
    Range range("backward");
    model_backward(model, &t->gpu, &t->shards, tokens, order, B, T, role);
}

// Queues a list of instructions for batches of B sequences, of which this rank has T rows each. batch(i) returns the
// slot of micro-batch i on the GPU, or NULL to end the list; run_list then returns false. Only the first and the last
// stage ask for it.
template <class Batch>
static inline bool run_list(Trainer *t, const PipeInstruction *list, int length, int B, int T, BatchRole role,
                            LinearUse use, Batch batch) {
    Model *model = &t->model;
    int last = model->shape.pipeline.micro_batches - 1, backwards = 0;
    for (int k = 0; k < length;) {
        const PipeInstruction &i = list[k];
        if (i.action != PIPE_FORWARD && i.action != PIPE_BACKWARD) {
            k += transfer(t, &i, backwards, (int64_t)B * T);
            continue;
        }
        BatchSlot *slot = NULL;
        model->pass = pass_of(model, i, backwards);
        role.first = i.micro_batch == 0, role.last = i.micro_batch == last;
        if (pass_needs_batch(model->pass, i.action)) {
            slot = batch(i.micro_batch);
            if (slot == NULL) { return false; }
        }
        if (i.action == PIPE_FORWARD) {
            forward_pass(t, slot, B, T, use);
        } else {
            backward_pass(t, slot, B, T, &role);
            backwards++;
        }
        if (slot != NULL) { release_batch(&t->gpu, slot); }
        k++;
    }
    return true;
}

// Queues the forwards of one batch, whose tokens are on the GPU, through all stages. T: the rows of this rank.
static inline void run_forward(Trainer *t, BatchSlot *slot, int B, int T) {
    PipeInstruction list[3 * PIPE_MAX_CHUNKS];
    Pipeline p = t->model.shape.pipeline;
    p.schedule = PIPE_FORWARD_ONLY, p.micro_batches = 1;
    pipe_write(&p, list);
    int length = pipe_length(&p);
    // A run that only evaluates has one copy of the residual stream: nothing may arrive there while something leaves.
    for (int k = 0; k < length; k++) { list[k].joined = false; }
    run_list(t, list, length, B, T, BatchRole(), LINEAR_FOR_LOSS, [&](int) { return slot; });
}

// Computes the losses of the sequences of a batch (B,T) in a slot's staging memory, on the last stage. The caller has
// written there tokens, targets, and flags of the losses that count.
static inline void run_losses(Trainer *t, BatchSlot *slot, int B, int T, SequenceLoss *losses) {
    T /= t->shards.context.size;
    int64_t N = (int64_t)B * T;
    BatchRole role;
    send_batch(t, slot, B, T, false);
    run_forward(t, slot, B, T);
    if (part_ends(&t->shards.layout.part)) {
        model_loss(&t->model, &t->gpu, &t->shards, slot->device + N, N, &role);
        sequence_losses(losses, t->model.acts.losses.data, slot->device + 2 * N, B, T, t->gpu.stream);
    }
    release_batch(&t->gpu, slot);
}

#endif // LLMC_TRAINER_PIPELINE_CUH
