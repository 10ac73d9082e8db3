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

// Writes this rank's record: its loss, its sum of squared gradients, its checksum, whether it has been asked to stop.
static inline void record_gradient(Trainer *t, bool wants_to_end) {
    double *sums = t->stats.norm_partials; // the buckets' sums lie one behind the other
    for (int b = 0; b < t->shards.layout.num_buckets; b++) {
        int64_t n = zero_shard(&t->shards.layout, b);
        global_norm_squared(sums, bucket_part(&t->shards, t->model.grads, b), n, t->gpu.stream);
        sums += global_norm_scratch_doubles(n);
    }
    sum_weights(t);
    step_record(t->stats.records + t->model.shape.rank, t->stats.norm_partials, sums - t->stats.norm_partials,
                t->stats.loss_sum, wants_to_end, t->transfer.checksum, t->gpu.stream);
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

// Describes elements [begin, end) of a bucket.
static inline UpdatePart update_part(const Trainer *t, int bucket, int64_t begin, int64_t end) {
    const Optimizer *o = &t->optimizer;
    auto from = [&](auto array) { return bucket_element(&t->shards, array, bucket, begin); };
    int64_t decayed = zero_decayed(&t->shards.layout, bucket) - begin; // negative if the part begins after them
    return {from(t->model.params),
            from(o->master),
            from(o->m),
            from(o->v),
            from(t->model.grads),
            NULL,
            max_i64(0, end - begin),
            decayed,
            zero_first_index(&t->shards.layout, bucket) + begin};
}

// Describes the part of a bucket that this rank updates with AdamW. It holds the moments of this part.
static inline UpdatePart adamw_part(const Trainer *t, int bucket) {
    const ZeroLayout *zero = &t->shards.layout;
    bool all = !t->optimizer.m.parts;
    int64_t begin = max_i64(zero_muon(zero, bucket), all ? 0 : zero_begin(zero, bucket, t->model.shape.rank));
    return update_part(t, bucket, begin, all ? zero_size(zero, bucket) : zero_end(zero, bucket, t->model.shape.rank));
}

// Describes the part of Muon's matrices of block first + i that this rank updates, where i counts the blocks of a
// group. A rank with all of the state finds the update in muon_blocks. A rank with shards finds it in muon_parts.
static inline UpdatePart muon_part(const Trainer *t, int first, int i) {
    const ZeroLayout *zero = &t->shards.layout;
    const Optimizer *o = &t->optimizer;
    int64_t begin = o->m.parts ? zero_begin(zero, 1, t->model.shape.rank) : 0;
    int64_t end = o->m.parts ? zero_end(zero, 1, t->model.shape.rank) : zero_muon(zero, 1);
    UpdatePart part = update_part(t, 1 + first + i, begin, min_i64(end, zero_muon(zero, 1)));
    part.update = o->m.parts ? o->muon_parts + i * zero_shard(zero, 1) : o->muon_blocks + i * zero_padded(zero, 1);
    return part;
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
        if (sharded) { // what else is in the shards travels, too
            size_t bytes = (size_t)(blocks * zero_shard(&t->shards.layout, 1)) * sizeof(floatX);
            cuda_check(cudaMemsetAsync(o->muon_parts, 0, bytes, t->gpu.stream));
        }
        for (int i = 0; i < blocks; i++) {
            muon_momentum(muon_part(t, first, i), factors, t->stats.result, t->gpu.stream);
        }
        if (sharded) { gather_matrices(&t->shards, o->muon_blocks, o->muon_spare, o->muon_parts, blocks); }
        orthogonalize_blocks(t, own);
        if (sharded) { scatter_matrices(&t->shards, o->muon_parts, o->muon_blocks, o->muon_spare, blocks); }
        for (int i = 0; i < blocks; i++) {
            muon_apply(muon_part(t, first, i), factors, t->stats.result, t->gpu.stream);
        }
    }
}

// Runs the optimizer after reduce_step, on this rank's part of each bucket. If the other ranks need the part, it is
// sent while the next bucket is updated. Nothing waits for it here: the next forward pass waits for each bucket before
// it reads it (await_bucket), and all other readers wait for all parameters (await_parameters).
//
// The kernels read the gradient's scale from t->stats.result. They change nothing if it says that the loss or the norm
// is not a number, or that the ranks' weights differ. Later steps change nothing either, until the host has read the
// result.
static inline void trainer_update(Trainer *t, const AdamWFactors &adamw, const MuonFactors &muon) {
    Range range("update");
    bool shares = t->optimizer.m.parts && !t->model.params.parts;
    if (t->model.shape.optimizer == OPTIMIZER_MUON) { update_with_muon(t, muon); }
    for (int b = 0; b < t->shards.layout.num_buckets; b++) {
        adamw_update(adamw_part(t, b), adamw, t->stats.result, t->gpu.stream);
        if (shares) { share_updated_bucket(&t->shards, t->model.params, b); }
    }
    t->shards.gathering = shares;
    if (!shares) { quantize_all_weights(&t->model, &t->gpu); }
    if (t->model.params.parts) {
        communicate_after_compute(&t->shards);
        forget_fetched(&t->shards);
    }
}

#endif // LLMC_TRAINER_UPDATE_CUH
