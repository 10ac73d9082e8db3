// An update: checksum of the weights, gradient norm, Muon if --optimizer asks for it, AdamW.
#ifndef LLMC_TRAINER_UPDATE_CUH
#define LLMC_TRAINER_UPDATE_CUH

#include "llmc/trainer/types.cuh"

// Waits for all parameters. A forward pass does not need it: it waits for one bucket at a time.
static inline void await_parameters(const Model *model, Gpu *gpu, Shards *shards) {
    if (!shards->gathering) { return; }
    shards->gathering = false;
    compute_after_communicate(shards);
    quantize_all_weights(model, gpu);
}

// Computes a checksum of the parameters if every rank holds them all. If a memory or network fault has changed a bit,
// every rank finds out before the next update. Sums no optimizer state, so that this takes no longer than the update.
static inline void sum_weights(Trainer *t) {
    int64_t whole = zero_offset(&t->shards.layout, t->shards.layout.num_buckets) * (int64_t)sizeof(floatX);
    cuda_check(cudaMemsetAsync(t->transfer.checksum, 0, sizeof(uint64_t), t->gpu.stream));
    if (has_peers(&t->shards) && !t->model.params.parts) {
        add_checksum(t->transfer.checksum, t->model.params.data, whole, t->gpu.stream);
    }
}

// Describes this rank's part of the gradients of `repeats` buckets, from `bucket` on.
static inline NormPart norm_part(const Model *model, int bucket, int64_t repeats) {
    NormPart part = {bucket_part(model->shards, model->grads, bucket), zero_shard(&model->shards->layout, bucket),
                     repeats, bucket_stride(model->shards, model->grads)};
    return part;
}

// Writes this rank's record: its loss, its sum of squared gradients, its checksum, whether it has been asked to stop.
static inline void record_gradient(Trainer *t, bool wants_to_end) {
    NormPart outside = norm_part(&t->model, 0, 1), blocks = norm_part(&t->model, 1, t->model.config.num_layers);
    global_norm_squared(t->stats.norm_partials, &outside, &blocks, t->gpu.stream);
    sum_weights(t);
    step_record(t->stats.records + t->model.shape.rank, t->stats.norm_partials,
                norm_part_doubles(&outside) + norm_part_doubles(&blocks), t->stats.loss_sum, wants_to_end,
                t->transfer.checksum, t->gpu.stream);
}

// Reduces loss and gradient norm to t->stats.result, with equal bits on all ranks, and copies the result to the host.
// loss_factor turns the sum of the losses into their mean. wants_to_end: this process has been asked to stop.
static inline void reduce_step(Trainer *t, double loss_factor, double grad_clip, bool wants_to_end, int slot) {
    Range range("norm");
    StepRecord *record = t->stats.records + t->model.shape.rank;
    compute_after_communicate(&t->shards);
    record_gradient(t, wants_to_end);
    gather_results(&t->shards, t->stats.records, record, (int64_t)sizeof(*record));
    step_finish(t->stats.result, t->stats.records, t->model.shape.num_ranks, loss_factor, (float)grad_clip,
                t->gpu.stream);
    cuda_check(cudaMemcpyAsync(&t->stats.results[slot], t->stats.result, sizeof(StepResult), cudaMemcpyDeviceToHost,
                               t->gpu.stream));
    cuda_check(cudaEventRecord(t->stats.reduced[slot], t->gpu.stream));
}

// Describes elements [begin, end) of `repeats` buckets, from `bucket` on.
static inline AdamWPart update_part(const Model *model, const Optimizer *optimizer, int bucket, int64_t repeats,
                                    int64_t begin, int64_t end) {
    auto from = [&](auto array) { return bucket_element(model->shards, array, bucket, begin); };
    int64_t first_index = zero_first_index(&model->shards->layout, bucket) + begin;
    AdamWPart part = adamw_part(from(model->params), from(optimizer->master), from(optimizer->m), from(optimizer->v),
                                from(model->grads), max_i64(0, end - begin), first_index);
    part.repeats = repeats;
    part.params_stride = bucket_stride(model->shards, model->params);
    part.state_stride = bucket_stride(model->shards, optimizer->m);
    part.v_stride = bucket_stride(model->shards, optimizer->v);
    part.grads_stride = bucket_stride(model->shards, model->grads);
    part.index_stride = zero_size(&model->shards->layout, 1);
    return part;
}

// Describes the part of `repeats` buckets, from `bucket` on, that this rank updates with AdamW. It holds the moments of
// this part.
static inline AdamWPart adamw_part_of(const Model *model, const Optimizer *optimizer, int bucket, int64_t repeats) {
    const ZeroLayout *zero = &model->shards->layout;
    bool all = !optimizer->m.parts;
    int64_t begin = max_i64(zero_muon(zero, bucket), all ? 0 : zero_begin(zero, bucket, model->shape.rank));
    int64_t end = all ? zero_size(zero, bucket) : zero_end(zero, bucket, model->shape.rank);
    AdamWPart part = update_part(model, optimizer, bucket, repeats, begin, end);
    part.decayed = zero_decayed(zero, bucket) - begin; // negative if the part begins after the decayed tensors
    return part;
}

// Describes the part of Muon's matrices that this rank updates, in `blocks` blocks from `first` on. A rank with all of
// the state finds the updates in muon_blocks. A rank with shards finds the updates of its shards in muon_parts.
static inline MuonPart muon_part_of(const Trainer *t, int first, int blocks) {
    const ZeroLayout *zero = &t->shards.layout;
    const Optimizer *o = &t->optimizer;
    int64_t begin = o->m.parts ? zero_begin(zero, 1, t->model.shape.rank) : 0;
    int64_t end = o->m.parts ? zero_end(zero, 1, t->model.shape.rank) : zero_muon(zero, 1);
    AdamWPart part = update_part(&t->model, o, 1 + first, blocks, begin, min_i64(end, zero_muon(zero, 1)));
    return muon_part(part, o->m.parts ? o->muon_parts : o->muon_blocks,
                     o->m.parts ? zero_shard(zero, 1) : zero_padded(zero, 1));
}

// Runs the rounds for every matrix of `count` blocks in muon_blocks: those with one place in their blocks together.
static inline void orthogonalize_blocks(Trainer *t, int count) {
    const ModelConfig *config = &t->model.config;
    const ZeroLayout *zero = &t->shards.layout;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        for (int k = 0; k < param_specs[i].muon; k++) {
            MuonBatch b = {muon_rows(config, i), muon_cols(config, i), zero_padded(zero, 1), count};
            floatX *first = t->optimizer.muon_blocks + zero_tensor_offset(zero, i) + k * b.rows * b.cols;
            muon_orthogonalize(&t->gpu.cublas, first, t->optimizer.muon_scratch, b,
                               muon_scale(t->model.shape.muon_scale, b.rows, b.cols), t->gpu.stream);
        }
    }
}

// Updates this rank's part of Muon's matrices, one group of blocks after another. If the state is sharded, rank l mod R
// owns block l (zero_owner): the blocks of a group are put together on their owners, which run the rounds.
static inline void update_with_muon(Trainer *t, const MuonFactors &factors) {
    Range range("muon");
    const Optimizer *o = &t->optimizer;
    bool sharded = o->m.parts;
    int L = t->model.config.num_layers, owners = sharded ? t->model.shape.num_ranks : 1;
    int rank = sharded ? t->model.shape.rank : 0, group = owners * muon_blocks_at_once(t);
    for (int first = 0; first < L; first += group) {
        int blocks = (int)min_i64(group, L - first), own = (blocks - rank + owners - 1) / owners;
        MuonPart part = muon_part_of(t, first, blocks);
        if (sharded) { // what else is in the shards travels, too
            size_t bytes = (size_t)(blocks * zero_shard(&t->shards.layout, 1)) * sizeof(floatX);
            cuda_check(cudaMemsetAsync(o->muon_parts, 0, bytes, t->gpu.stream));
        }
        muon_momentum(&part, factors, t->stats.result, t->gpu.stream);
        if (sharded) { gather_matrices(&t->shards, o->muon_blocks, o->muon_spare, o->muon_parts, blocks); }
        orthogonalize_blocks(t, own);
        if (sharded) { scatter_matrices(&t->shards, o->muon_parts, o->muon_blocks, o->muon_spare, blocks); }
        muon_apply(&part, factors, t->stats.result, t->gpu.stream);
    }
}

// Updates all buckets, or this rank's parts of them.
static inline void update_all(Trainer *t, const UpdateFactors &factors) {
    Range range("update");
    AdamWPart outside = adamw_part_of(&t->model, &t->optimizer, 0, 1),
              blocks = adamw_part_of(&t->model, &t->optimizer, 1, t->model.config.num_layers);
    if (t->model.shape.optimizer == OPTIMIZER_MUON) { update_with_muon(t, factors.muon); }
    adamw_update(&outside, &blocks, factors.adamw, t->stats.result, t->gpu.stream);
    quantize_all_weights(&t->model, &t->gpu);
}

// Updates this rank's parts and sends them to the other ranks: each bucket while the next one is updated.
// Nothing waits here: the next forward pass waits for each bucket before it reads it (await_bucket), and all other
// readers wait for all parameters (await_parameters).
static inline void update_and_share(Trainer *t, const UpdateFactors &factors) {
    Range range("update");
    if (t->model.shape.optimizer == OPTIMIZER_MUON) { update_with_muon(t, factors.muon); }
    for (int b = 0; b < t->shards.layout.num_buckets; b++) {
        AdamWPart part = adamw_part_of(&t->model, &t->optimizer, b, 1);
        adamw_update(&part, NULL, factors.adamw, t->stats.result, t->gpu.stream);
        share_updated_bucket(&t->shards, t->model.params, b);
    }
    t->shards.gathering = true;
}

// Runs the optimizer after reduce_step. The kernels read the gradient's scale from t->stats.result. They change nothing
// if it says that the loss or the norm is not a number, or that the ranks' weights differ. Later steps change nothing
// either, until the host has read the result.
static inline void trainer_update(Trainer *t, const UpdateFactors &factors) {
    if (t->optimizer.m.parts && !t->model.params.parts) {
        update_and_share(t, factors);
        return;
    }
    update_all(t, factors);
    if (t->model.params.parts) {
        communicate_after_compute(&t->shards);
        forget_fetched(&t->shards);
    }
}

#endif // LLMC_TRAINER_UPDATE_CUH
