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
    if (shares_buckets(&t->shards) && !t->model.params.parts) {
        add_checksum(t->transfer.checksum, t->model.params.data, whole, t->gpu.stream);
    }
}

// Writes this rank's record: its loss, its sum of squared gradients, its checksum, whether it has been asked to stop.
static inline void record_gradient(Trainer *t, bool wants_to_end) {
    double *sums = t->stats.norm_partials; // the buckets' sums lie one behind the other
    for (int b = 0; b < t->shards.layout.num_buckets; b++) {
        BucketRange counted = counted_range(&t->shards, b);
        int64_t n = counted.end - counted.begin;
        if (n == 0) { continue; }
        global_norm_squared(sums, bucket_element(&t->shards, t->model.grads, b, counted.begin), n, t->gpu.stream);
        sums += global_norm_scratch_doubles(n);
    }
    sum_weights(t);
    step_record(t->stats.records + t->shards.all.rank, t->stats.norm_partials, sums - t->stats.norm_partials,
                t->stats.loss_sum, wants_to_end, t->transfer.checksum, t->shards.data.leader, t->gpu.stream);
}

// Reduces loss and gradient norm to t->stats.result, with equal bits on all ranks, and copies the result to the host.
// loss_factor turns the sum of the losses into their mean. wants_to_end: this process has been asked to stop.
static inline void reduce_step(Trainer *t, double loss_factor, double grad_clip, bool wants_to_end, int slot) {
    Range range("norm");
    StepRecord *record = t->stats.records + t->shards.all.rank;
    compute_after_communicate(&t->shards);
    record_gradient(t, wants_to_end);
    gather_results(&t->shards, t->stats.records, record, (int64_t)sizeof(*record));
    step_finish(t->stats.result, t->stats.records, t->shards.all.size, loss_factor, (float)grad_clip, t->gpu.stream);
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
            zero_first_index(&t->shards.layout, bucket) + begin,
            0,
            0};
}

// Calls visit(part, i) for parts of elements [begin, end) of a bucket, where i is the part's first element, counted
// from `begin`. All of them are one part if the bucket is one of the whole model's. Otherwise each piece of a tensor is
// a part, because a tensor that is split lies in strips in the whole model.
template <class Visit>
static inline void visit_update_parts(const Trainer *t, int bucket, int64_t begin, int64_t end, Visit visit) {
    const ZeroLayout *zero = &t->shards.layout;
    ZeroPiece pieces[ZERO_MAX_PIECES];
    if (zero_lies_whole(zero, bucket)) { return visit(update_part(t, bucket, begin, end), (int64_t)0); }
    int n = zero_pieces(zero, bucket, begin, end, pieces);
    for (int i = 0; i < n; i++) {
        const ZeroPiece &piece = pieces[i];
        UpdatePart part = update_part(t, bucket, piece.in_bucket, piece.in_bucket + piece.strips * piece.count);
        part.first_index = piece.index;
        if (piece.strips > 1) { part.width = piece.count, part.stride = piece.stride; }
        visit(part, piece.in_bucket - begin);
    }
}

// Return the elements of a bucket that this rank updates: it holds their moments.
static inline BucketRange adamw_range(const Trainer *t, int bucket) {
    const ZeroLayout *zero = &t->shards.layout;
    int64_t muon = zero_muon(zero, bucket);
    if (!t->optimizer.m.parts) { return {muon, zero_size(zero, bucket)}; }
    return {max_i64(muon, zero_begin(zero, bucket, t->shards.rank)), zero_end(zero, bucket, t->shards.rank)};
}

static inline BucketRange muon_range(const Trainer *t) {
    const ZeroLayout *zero = &t->shards.layout;
    int64_t muon = zero_muon(zero, 1);
    if (!t->optimizer.m.parts) { return {0, muon}; }
    return {zero_begin(zero, 1, t->shards.rank), min_i64(zero_end(zero, 1, t->shards.rank), muon)};
}

// Returns the update of what this rank holds of block i of a group.
static inline floatX *muon_update(const Trainer *t, int i) {
    const MatrixRoom &room = t->optimizer.muon;
    return room.parts != NULL ? room.parts + i * matrices_held(&t->shards)
                              : room.blocks + i * zero_block(&t->shards.layout);
}

// Runs the rounds for every matrix of `count` whole blocks: those with one place in their blocks together.
static inline void orthogonalize_blocks(Trainer *t, int count) {
    const ZeroLayout *zero = &t->shards.layout;
    const ModelConfig *whole = &zero->part.whole;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        for (int k = 0; k < param_specs[i].muon; k++) {
            MuonBatch b = {muon_rows(whole, i), muon_cols(whole, i), zero_block(zero), count};
            floatX *first = t->optimizer.muon.blocks + zero->whole_offset[i] + k * b.rows * b.cols;
            muon_orthogonalize(&t->gpu.cublas, first, t->optimizer.muon_scratch, b,
                               muon_scale(t->model.shape.muon_scale, b.rows, b.cols), t->gpu.stream);
        }
    }
}

// Updates this rank's part of Muon's matrices, one group of blocks after another. Where no rank holds whole matrices,
// the blocks of a group are put together on their owners, which run the rounds (matrices.cuh).
static inline void update_with_muon(Trainer *t, const MuonFactors &factors) {
    Range range("muon");
    Shards *s = &t->shards;
    const MatrixRoom &room = t->optimizer.muon;
    bool travels = matrices_travel(s);
    BucketRange held = muon_range(t);
    int L = t->model.config.num_layers, owners = matrices_owners(s), group = owners * muon_blocks_at_once(t);
    for (int first = 0; first < L; first += group) {
        int blocks = (int)min_i64(group, L - first), own = (blocks - matrices_own_number(s) + owners - 1) / owners;
        if (travels) { // what else is in the shards travels, too
            size_t bytes = (size_t)(blocks * matrices_held(s)) * sizeof(floatX);
            cuda_check(cudaMemsetAsync(room.parts, 0, bytes, t->gpu.stream));
        }
        for (int i = 0; i < blocks; i++) {
            UpdatePart part = update_part(t, 1 + first + i, held.begin, held.end);
            part.update = muon_update(t, i);
            muon_momentum(part, factors, t->stats.result, t->gpu.stream);
        }
        if (travels) { gather_matrices(s, room, blocks); }
        orthogonalize_blocks(t, own);
        if (travels) { scatter_matrices(s, room, blocks); }
        for (int i = 0; i < blocks; i++) {
            visit_update_parts(t, 1 + first + i, held.begin, held.end, [&](UpdatePart part, int64_t at) {
                part.update = muon_update(t, i) + at;
                muon_apply(part, factors, t->stats.result, t->gpu.stream);
            });
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
    Range timed("update");
    bool shares = t->optimizer.m.parts && !t->model.params.parts;
    if (t->model.shape.optimizer == OPTIMIZER_MUON) { update_with_muon(t, muon); }
    for (int b = 0; b < t->shards.layout.num_buckets; b++) {
        BucketRange range = adamw_range(t, b);
        visit_update_parts(t, b, range.begin, range.end, [&](const UpdatePart &part, int64_t) {
            adamw_update(part, adamw, t->stats.result, t->gpu.stream);
        });
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
