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
    const Shards *s = &t->shards;
    Buckets<float> grads = t->model.grads;
    for (int b = 0; b < s->layout.num_buckets && !grads.on_host; b++) { // else end_bucket has done it
        sum_squares(s, t->stats.norm_partials, bucket_part(s, grads, b), b, t->gpu.stream);
    }
    sum_weights(t);
    step_record(t->stats.records + s->all.rank, t->stats.norm_partials, norm_place(s, s->layout.num_buckets),
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

// ---- Arrays that wait on the host (--offload) pass through windows on the GPU, chunk by chunk ----
//
// While one chunk is updated in a window, the next one comes into the other window, and the chunk before leaves it:
//   in:      chunk 0 | chunk 1 | chunk 2 | ...        the stream that communicates
//   update:          | chunk 0 | chunk 1 | chunk 2
//   out:                       | chunk 0 | chunk 1

// A chunk has elements [begin, end) of a bucket, in window 0 or 1.
typedef struct {
    int bucket, window;
    int64_t begin, end;
} UpdateChunk;

// What an update uses of the arrays. It writes to all of them but the gradients.
enum { USES_GRADS = 1, USES_M = 2, USES_V = 4, USES_WEIGHTS = 8 };
#define ADAMW_USES (USES_GRADS | USES_M | USES_V | USES_WEIGHTS)
#define MUON_MOMENTUM_USES (USES_GRADS | USES_M)

// Calls visit(array) for each array that an update with `uses` reads, or writes.
template <class Visit> static inline void each_used_array(const Trainer *t, int uses, bool reads, Visit visit) {
    const Optimizer *o = &t->optimizer;
    if (reads && (uses & USES_GRADS)) { visit(t->model.grads); }
    if (uses & USES_M) { visit(o->m), visit(o->m16); }
    if (uses & USES_V) { visit(o->v), visit(o->v16); }
    if (uses & USES_WEIGHTS) { visit(o->master), visit(t->model.params); } // an update that is refused leaves them
}

// Returns the bytes that pass to or from the host for an element.
static inline int64_t chunk_bytes(const Trainer *t, int uses, bool reads) {
    int64_t bytes = 0;
    each_used_array(t, uses, reads, [&](auto array) { bytes += array.on_host ? (int64_t)sizeof(*array.data) : 0; });
    return bytes;
}

// Returns element i of a chunk's bucket, where the GPU works on it.
template <class T> static inline T *chunk_element(const Trainer *t, Buckets<T> array, const UpdateChunk &c, int64_t i) {
    T *element = bucket_element(&t->shards, array, c.bucket, i);
    if (!array.on_host || element == NULL) { return element; }
    return array.window + c.window * update_chunk(&t->shards.layout) + i - c.begin;
}

// Copies what an update reads to the chunk's window, or what it has written to the host.
static inline void copy_chunk(Trainer *t, const UpdateChunk &c, int uses, bool reads) {
    each_used_array(t, uses, reads, [&](auto array) {
        auto *host = bucket_element(&t->shards, array, c.bucket, c.begin),
             *window = chunk_element(t, array, c, c.begin);
        if (!array.on_host || host == NULL) { return; }
        if (reads) {
            copy_in(&t->shards, window, host, c.end - c.begin);
        } else {
            copy_out(&t->shards, host, window, c.end - c.begin);
        }
    });
}

// Calls update(chunk) for the chunks of a range of a bucket, with their arrays on the GPU. Without --offload there is
// one chunk.
template <class Update>
static inline void walk_chunks(Trainer *t, int bucket, BucketRange range, int uses, Update update) {
    Shards *s = &t->shards;
    bool passes = chunk_bytes(t, uses, true) > 0;
    int64_t most = passes ? update_chunk(&s->layout) : max_i64(1, range.end - range.begin);
    for (int64_t begin = range.begin; begin < range.end; begin += most) {
        int window = (int)(s->host.chunks++ % 2);
        UpdateChunk chunk = {bucket, window, begin, min_i64(begin + most, range.end)};
        if (!passes) { return update(chunk); }
        cuda_check(cudaStreamWaitEvent(s->comm_stream, s->host.left[window], 0));
        copy_chunk(t, chunk, uses, true);
        compute_after_communicate(s);
        update(chunk);
        stream_follows(s->host.out, s->stream, s->host.reached);
        copy_chunk(t, chunk, uses, false);
        cuda_check(cudaEventRecord(s->host.left[window], s->host.out));
    }
}

// ---- The update ----

// Describes elements [begin, end) of a chunk's bucket.
static inline UpdatePart update_part(const Trainer *t, const UpdateChunk &c, int64_t begin, int64_t end) {
    const Optimizer *o = &t->optimizer;
    int bucket = c.bucket;
    auto from = [&](auto array) { return chunk_element(t, array, c, begin); };
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
            0,
            from(o->m16),
            from(o->v16)};
}

// Calls visit(part, i) for the parts of a chunk, where i is the part's first element in the bucket. A chunk is one part
// if its bucket is one of the whole model's. Otherwise each piece of a tensor is a part, because a tensor that is split
// lies in strips in the whole model.
template <class Visit> static inline void visit_update_parts(const Trainer *t, const UpdateChunk &c, Visit visit) {
    const ZeroLayout *zero = &t->shards.layout;
    ZeroPiece pieces[ZERO_MAX_PIECES];
    if (zero_lies_whole(zero, c.bucket)) { return visit(update_part(t, c, c.begin, c.end), c.begin); }
    int n = zero_pieces(zero, c.bucket, c.begin, c.end, pieces);
    for (int i = 0; i < n; i++) {
        const ZeroPiece &piece = pieces[i];
        UpdatePart part = update_part(t, c, piece.in_bucket, piece.in_bucket + piece.strips * piece.count);
        part.first_index = piece.index;
        if (piece.strips > 1) { part.width = piece.count, part.stride = piece.stride; }
        visit(part, piece.in_bucket);
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
            walk_chunks(t, 1 + first + i, held, MUON_MOMENTUM_USES, [&](const UpdateChunk &c) {
                visit_update_parts(t, c, [&](UpdatePart part, int64_t at) {
                    part.update = muon_update(t, i) + at - held.begin;
                    muon_momentum(part, factors, t->stats.result, t->gpu.stream);
                });
            });
        }
        if (travels) { gather_matrices(s, room, blocks); }
        orthogonalize_blocks(t, own);
        if (travels) { scatter_matrices(s, room, blocks); }
        for (int i = 0; i < blocks; i++) {
            walk_chunks(t, 1 + first + i, held, USES_WEIGHTS, [&](const UpdateChunk &c) {
                visit_update_parts(t, c, [&](UpdatePart part, int64_t at) {
                    part.update = muon_update(t, i) + at - held.begin;
                    muon_apply(part, factors, t->stats.result, t->gpu.stream);
                });
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
    bool shares = t->shards.stage >= ZERO_OPTIMIZER && !t->model.params.parts;
    communicate_after_compute(&t->shards);
    stream_follows(t->shards.comm_stream, t->shards.host.out, t->shards.host.reached); // gradients have left
    if (t->model.shape.optimizer == OPTIMIZER_MUON) { update_with_muon(t, muon); }
    for (int b = 0; b < t->shards.layout.num_buckets; b++) {
        walk_chunks(t, b, adamw_range(t, b), ADAMW_USES, [&](const UpdateChunk &c) {
            visit_update_parts(t, c, [&](const UpdatePart &part, int64_t) {
                adamw_update(part, adamw, t->stats.result, t->gpu.stream);
            });
        });
        if (shares) { share_updated_bucket(&t->shards, t->model.params, b); }
    }
    t->shards.gathering = shares;
    if (!shares) { quantize_all_weights(&t->model, &t->gpu); }
    if (t->model.params.parts) {
        communicate_after_compute(&t->shards);
        forget_fetched(&t->shards);
    }
    await_host(&t->shards);
}

#endif // LLMC_TRAINER_UPDATE_CUH
