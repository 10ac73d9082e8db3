// Buckets on the GPU: the place of a rank's parameters, gradients and moments, and how they travel between ranks.
//
// Two streams work at once. One computes, the other communicates, and events alone order them. A bucket's gradients are
// reduced while the backward pass computes the layers below. Parameters that no rank keeps whole (ZERO_PARAMETERS) are
// gathered while the layer before computes.
//
//   fetch_bucket    starts gathering a bucket's parameters       begin_gradient  makes room for a bucket's gradients
//   await_bucket    kernels queued from here on may read them    end_gradient    starts adding up all ranks' gradients
//   release_bucket  another bucket may take their slot       release_gradient  another bucket may take their slot
//
// A single GPU is a rank that owns everything: every bucket is whole, and nothing is sent.
//
// A rank's part may lie in pinned memory of the host (--offload). Buckets then pass through the slots as they do where
// ranks share them, also on a single GPU: what comes from the host comes on the stream that communicates, and what goes
// there goes on a third stream.
#ifndef LLMC_BUCKETS_CUH
#define LLMC_BUCKETS_CUH

#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/gpu.h"
#include "llmc/ranks/grid.h"
#include "llmc/ranks/nccl.h"
#include "llmc/ranks/zero.h"

// Describes an array with one element for each parameter, bucket by bucket.
template <class T> struct Buckets {
    T *data;      // NULL: this run has no such array
    bool parts;   // holds only this rank's part of each bucket
    T *slots;     // if parts: slots for whole buckets (zero_slot_offset); NULL: never needed whole
    bool rest;    // leaves out Muon's matrices. A block's bucket is whole on every rank then (zero_rest)
    bool on_host; // data is in pinned memory, and `parts` is true
    T *window;    // if on_host: room on the GPU for what an update works on (update.cuh)
};

// What passes between the GPU and its host.
typedef struct {
    cudaStream_t out;                     // to the host
    cudaEvent_t reached;                  // a stream waits for another one (stream_follows)
    cudaEvent_t begun[ZERO_NUM_SLOTS];    // a bucket's gradients so far are in their slot
    int gradient_in_slot[ZERO_NUM_SLOTS]; // whose; -1: none
    // Of two windows, or two copies of the residual stream: what lay there is on the host; its next contents are there.
    cudaEvent_t left[2], arrived[2];
    int64_t chunks; // of updates, so far
} HostCopies;

typedef struct {
    ZeroLayout layout;
    Comm *ranks;
    Group all, data;             // all ranks; those that share buckets
    Group tensor, context, pipe; // those that split the layers, that share sequences, that are a pipeline
    Group ends; // the first and the last stage of a pipeline, if both have the token embedding; on others one rank
    int rank;   // in the data group: it owns this shard of each bucket
    ZeroStage stage;
    bool sums_unsplit; // ranks of the tensor group compute parts of the gradients of the tensors that all of them hold
    Traffic sent;
    cudaStream_t stream, comm_stream;   // of the computation, of the communication
    cudaEvent_t computed, communicated; // the two streams wait for each other
    int bucket_in_slot[ZERO_NUM_SLOTS]; // the bucket whose parameters are there; -1: none
    // Events of each slot: its parameters have arrived, its parameters were used, its gradients were reduced.
    cudaEvent_t fetched[ZERO_NUM_SLOTS], used[ZERO_NUM_SLOTS], reduced[ZERO_NUM_SLOTS];
    bool gathering; // updated parameters are on their way; bucket b has arrived at event gathered[b]
    cudaEvent_t gathered[ZERO_MAX_BUCKETS];
    HostCopies host;
} Shards;

static inline bool has_peers(const Shards *s) { return s->all.size > 1; }
static inline bool shares_buckets(const Shards *s) { return s->layout.num_ranks > 1; }

// ---- Where elements lie ----

// Returns element i of a bucket. An array of parts has only this rank's elements, an array of the rest none of Muon's.
template <class T> static inline T *bucket_element(const Shards *s, Buckets<T> array, int bucket, int64_t i) {
    const ZeroLayout *zero = &s->layout;
    if (array.data == NULL) { return NULL; }
    if (array.rest && bucket > 0) {
        if (i < zero_muon(zero, bucket)) { return NULL; }
        T *blocks = array.data + (array.parts ? zero_shard(zero, 0) : zero_padded(zero, 0));
        int64_t left_out = array.parts ? s->rank * zero_shard(zero, bucket) : 0;
        if (zero_kind(zero, bucket) == ZERO_BLOCK) { left_out = zero_muon(zero, bucket); }
        return blocks + min_i64(bucket - 1, zero->config.num_layers) * zero_rest(zero) + i - left_out;
    }
    if (!array.parts) { return array.data + zero_offset(zero, bucket) + i; }
    return array.data + zero_shard_offset(zero, bucket) + i - s->rank * zero_shard(zero, bucket);
}

// Returns this rank's part of a bucket.
template <class T> static inline T *bucket_part(const Shards *s, Buckets<T> array, int bucket) {
    return bucket_element(s, array, bucket, s->rank * zero_shard(&s->layout, bucket));
}

// Returns the whole bucket, in the array or in its slot. Layers read parameters there after await_bucket, and add
// gradients there after begin_gradient.
template <class T> static inline T *whole_bucket(const Shards *s, Buckets<T> array, int bucket) {
    if (!array.parts) { return bucket_element(s, array, bucket, 0); }
    return array.slots + zero_slot_offset(&s->layout, bucket);
}

// Returns the elements of an array on this rank.
template <class T> static inline int64_t buckets_length(const Shards *s, Buckets<T> array) {
    const ZeroLayout *zero = &s->layout;
    if (array.data == NULL) { return 0; }
    if (array.rest) { return zero_lengths(zero, array.parts ? ZERO_OPTIMIZER : ZERO_REPLICATE).v; }
    return array.parts ? zero_shard_offset(zero, zero->num_buckets) : zero_offset(zero, zero->num_buckets);
}

template <class T> static inline void clear_buckets(const Shards *s, Buckets<T> array) {
    size_t bytes = (size_t)buckets_length(s, array) * sizeof(T);
    if (array.on_host) {
        memset(array.data, 0, bytes); // before anything is queued that uses it
    } else if (bytes > 0) {
        cuda_check(cudaMemsetAsync(array.data, 0, bytes, s->stream));
    }
}

// Returns the elements of a piece of this rank's part; NULL: the array has none of them.
template <class T> static inline T *piece_element(const Shards *s, Buckets<T> array, const ZeroPiece &piece) {
    return bucket_element(s, array, piece.bucket, piece.in_bucket);
}

// Tells whether this rank writes tensor i to files, counts it in norms and hashes it: each element has one such rank
// among those that hold it.
static inline bool counts_tensor(const Shards *s, int i) {
    bool copy = i == PARAM_wte && part_has_copy(&s->layout.part);
    return !copy && (s->tensor.rank == 0 || param_is_split(i));
}

// Elements [begin, end) of a bucket.
typedef struct {
    int64_t begin, end;
} BucketRange;

// Returns the token embedding in bucket 0, which comes first there; empty if this rank has none.
static inline BucketRange embedding_range(const Shards *s) { return {0, part_size(&s->layout.part, PARAM_wte)}; }

// Returns the elements of this rank's part of a bucket that it counts in the norm (counts_tensor): not a copy of the
// embedding at the start, and, but on one rank, not the tensors at the end that are not split.
static inline BucketRange counted_range(const Shards *s, int bucket) {
    int64_t shard = zero_shard(&s->layout, bucket), begin = s->rank * shard, end = begin + shard;
    if (bucket == 0 && part_has_copy(&s->layout.part)) { begin = max_i64(begin, embedding_range(s).end); }
    if (s->tensor.rank > 0) { end = min_i64(end, zero_split(&s->layout, bucket)); }
    return {begin, max_i64(begin, end)};
}

// Calls visit(part) for a piece, in parts of at most ZERO_MAX_PIECE elements. Stops when visit returns false.
template <class Visit> static inline bool visit_parts(const ZeroPiece &piece, Visit visit) {
    int64_t at_once = max_i64(1, ZERO_MAX_PIECE / piece.count);
    for (int64_t strip = 0; strip < piece.strips; strip += at_once) {
        for (int64_t done = 0; done < piece.count; done += ZERO_MAX_PIECE) {
            ZeroPiece part = piece;
            int64_t skipped = strip * piece.stride + done;
            part.strips = min_i64(at_once, piece.strips - strip),
            part.count = min_i64(piece.count - done, ZERO_MAX_PIECE);
            part.in_bucket += strip * piece.count + done, part.in_file += skipped, part.index += skipped;
            if (!visit(part)) { return false; }
        }
    }
    return true;
}

// Calls visit(piece) for each piece of a tensor in this rank's part of the buckets, in their order. A piece has at most
// ZERO_MAX_PIECE elements. Stops when visit returns false, and then returns false.
template <class Visit> static inline bool visit_own_pieces(const Shards *s, Visit visit) {
    const ZeroLayout *zero = &s->layout;
    ZeroPiece pieces[ZERO_MAX_PIECES];
    for (int b = 0; b < zero->num_buckets; b++) {
        int n = zero_pieces(zero, b, zero_begin(zero, b, s->rank), zero_end(zero, b, s->rank), pieces);
        for (int i = 0; i < n; i++) {
            if (!visit_parts(pieces[i], visit)) { return false; }
        }
    }
    return true;
}

// ---- The streams ----

// What is queued on a stream from here on waits for what is queued on another one so far.
static inline void stream_follows(cudaStream_t stream, cudaStream_t other, cudaEvent_t event) {
    cuda_check(cudaEventRecord(event, other));
    cuda_check(cudaStreamWaitEvent(stream, event, 0));
}

static inline void communicate_after_compute(Shards *s) { stream_follows(s->comm_stream, s->stream, s->computed); }
static inline void compute_after_communicate(Shards *s) { stream_follows(s->stream, s->comm_stream, s->communicated); }

// Copies n elements from pinned memory to the GPU, and from the GPU to pinned memory.
template <class T> static inline void copy_in(Shards *s, T *to, const T *from, int64_t n) {
    size_t bytes = (size_t)n * sizeof(T);
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s->comm_stream));
    s->sent.to_gpu += (int64_t)bytes;
}
template <class T> static inline void copy_out(Shards *s, T *to, const T *from, int64_t n) {
    size_t bytes = (size_t)n * sizeof(T);
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, s->host.out));
    s->sent.from_gpu += (int64_t)bytes;
}

// Whatever is queued from here on finds on the host what was sent there.
static inline void await_host(Shards *s) {
    stream_follows(s->stream, s->host.out, s->host.reached);
    communicate_after_compute(s);
}

// Gives all ranks the `own` (bytes) of every rank, in order, in `all` (R * bytes). own may be this rank's place in all.
static inline void gather_results(Shards *s, void *all, const void *own, int64_t bytes) {
    if (!has_peers(s)) { return; }
    communicate_after_compute(s);
    group_all_gather(&s->all, all, own, bytes, NULL);
    compute_after_communicate(s);
}

// Gives every rank a whole bucket. Each rank's part must be at its place in it. sent counts the bytes, or is NULL.
template <class T> static inline void gather_bucket(Shards *s, T *whole, int bucket, int64_t *sent) {
    int64_t shard = zero_shard(&s->layout, bucket);
    if (shard == 0) { return; } // bucket 0 of a stage between the first and the last
    group_all_gather(&s->data, whole, whole + s->rank * shard, shard * (int64_t)sizeof(T), sent);
}

// Gives every rank the whole of a block's bucket in an array of the rest. Each rank has its own elements there, and
// zeros elsewhere, so the sum over the ranks has all.
template <class T> static inline void gather_rest(Shards *s, Buckets<T> array, int bucket) {
    T *whole = bucket_element(s, array, bucket, zero_muon(&s->layout, bucket));
    int64_t count = zero_rest(&s->layout) / s->layout.num_ranks;
    group_reduce_scatter(&s->data, whole + s->rank * count, whole, count, NULL);
    group_all_gather(&s->data, whole, whole + s->rank * count, count * (int64_t)sizeof(T), NULL);
}

// ---- The host waits ----

// Ends a wait of the host for the GPU, and so perhaps for other ranks. If one of them has ended, the GPU may have
// failed because it read that rank's memory.
static inline void end_wait(Shards *s, cudaError_t status) {
    Error error;
    comm_waits(s->ranks, false);
    if (status == cudaSuccess) { return; }
    fail(&error, "the GPU failed: %s (%s); %s", cudaGetErrorString(status), cudaGetErrorName(status),
         cuda_remedy(status));
    nccl_end_ranks(s->ranks, &error);
}

static inline void wait_for_event(Shards *s, cudaEvent_t event) {
    comm_waits(s->ranks, true);
    end_wait(s, cudaEventSynchronize(event));
}

static inline void wait_for_stream(Shards *s) {
    comm_waits(s->ranks, true);
    end_wait(s, cudaStreamSynchronize(s->stream));
}

// Converts the n floatX at the beginning of a buffer to floats, in place.
static inline void widen_in_place(float *memory, int64_t n) {
    const unsigned char *narrow = (const unsigned char *)memory;
    for (int64_t i = n - 1; i >= 0; i--) { // backwards, so that a float covers only bf16 that were already read
        uint16_t bits;
        memcpy(&bits, narrow + 2 * i, sizeof(bits));
        uint32_t wide = (uint32_t)bits << 16;
        memcpy(memory + i, &wide, sizeof(wide));
    }
}

// Copies n elements from the GPU, or from the host, to floats in pinned memory, and waits.
template <class T> static inline void download(Shards *s, float *to, const T *from, int64_t n) {
    cuda_check(cudaMemcpyAsync(to, from, (size_t)n * sizeof(T), cudaMemcpyDefault, s->stream));
    wait_for_stream(s);
    if (sizeof(T) < sizeof(float)) { widen_in_place(to, n); }
}

// ---- Parameters ----

// Lets another bucket take this bucket's slot: the bucket's last reader is queued.
template <class T> static inline void release_bucket(Shards *s, Buckets<T> params, int bucket) {
    if (params.parts) { cuda_check(cudaEventRecord(s->used[zero_slot(&s->layout, bucket)], s->stream)); }
}

// Starts gathering a bucket's parameters. Does nothing if this rank holds all of them. The last user of the slot has
// called release_bucket.
template <class T> static inline void fetch_bucket(Shards *s, Buckets<T> params, int bucket) {
    int slot = zero_slot(&s->layout, bucket);
    if (!params.parts || s->bucket_in_slot[slot] == bucket || zero_size(&s->layout, bucket) == 0) { return; }
    if (slot == 0) { release_bucket(s, params, bucket); } // what is queued so far may use the other bucket there
    int64_t shard = zero_shard(&s->layout, bucket);
    T *whole = whole_bucket(s, params, bucket), *own = bucket_part(s, params, bucket);
    cuda_check(cudaStreamWaitEvent(s->comm_stream, s->used[slot], 0));
    if (params.on_host) {
        copy_in(s, whole + s->rank * shard, own, shard);
        own = whole + s->rank * shard;
    }
    if (shares_buckets(s)) { group_all_gather(&s->data, whole, own, shard * (int64_t)sizeof(T), &s->sent.parameters); }
    cuda_check(cudaEventRecord(s->fetched[slot], s->comm_stream));
    s->bucket_in_slot[slot] = bucket;
}

// Computation queued from here on may read a bucket's parameters, which were fetched or are gathered after an update.
template <class T> static inline void await_bucket(Shards *s, Buckets<T> params, int bucket) {
    if (s->gathering) { cuda_check(cudaStreamWaitEvent(s->stream, s->gathered[bucket], 0)); }
    if (params.parts) { cuda_check(cudaStreamWaitEvent(s->stream, s->fetched[zero_slot(&s->layout, bucket)], 0)); }
}

// Forgets the buckets in the slots, which are out of date: the parameters have changed.
static inline void forget_fetched(Shards *s) {
    for (int slot = 0; slot < ZERO_NUM_SLOTS; slot++) {
        cuda_check(cudaEventRecord(s->used[slot], s->stream));
        s->bucket_in_slot[slot] = -1;
    }
}

// Starts sending this rank's part of a bucket to all ranks. This rank has updated it.
template <class T> static inline void share_updated_bucket(Shards *s, Buckets<T> params, int bucket) {
    communicate_after_compute(s);
    gather_bucket(s, whole_bucket(s, params, bucket), bucket, &s->sent.parameters);
    cuda_check(cudaEventRecord(s->gathered[bucket], s->comm_stream));
}

// ---- Gradients ----

// Clears whole gradients before a step. begin_gradient clears gradients that are kept in parts.
static inline void zero_gradients(const Shards *s, Buckets<float> grads) {
    if (!grads.parts) { clear_buckets(s, grads); }
}

// Tells whether ranks add up their gradients in each micro-batch, not only once a step: no rank keeps all of its own.
static inline bool sums_each_time(const Shards *s) { return s->stage >= ZERO_GRADIENTS; }

// Fills the slot of a bucket's gradients. They begin as zeros, and this rank's part begins as its sum since the step's
// first micro-batch. So a reduction in each micro-batch adds up micro-batches, too.
static inline void fill_gradient_slot(Shards *s, Buckets<float> grads, int bucket, bool first_micro_batch) {
    cudaStream_t stream = grads.on_host ? s->comm_stream : s->stream;
    float *room = whole_bucket(s, grads, bucket);
    int64_t begin = s->rank * zero_shard(&s->layout, bucket), end = begin + zero_shard(&s->layout, bucket);
    cuda_check(cudaStreamWaitEvent(stream, s->reduced[zero_slot(&s->layout, bucket)], 0));
    cuda_check(cudaMemsetAsync(room, 0, (size_t)zero_padded(&s->layout, bucket) * sizeof(float), stream));
    // Each rank of the tensor group has the sum of the tensors that all of them hold. It must count once.
    bool counts_once = s->sums_unsplit && sums_each_time(s) && s->tensor.rank > 0;
    if (counts_once) { end = min_i64(end, zero_split(&s->layout, bucket)); }
    if (first_micro_batch || begin >= end) { return; }
    if (grads.on_host) { return copy_in(s, room + begin, bucket_part(s, grads, bucket), end - begin); }
    cuda_check(cudaMemcpyAsync(room + begin, bucket_part(s, grads, bucket), (size_t)(end - begin) * sizeof(float),
                               cudaMemcpyDeviceToDevice, stream));
}

// Starts to bring a bucket's gradients so far from the host. begin_gradient waits for them.
static inline void fetch_gradient(Shards *s, Buckets<float> grads, int bucket, bool first_micro_batch) {
    int slot = zero_slot(&s->layout, bucket);
    if (!grads.on_host || s->host.gradient_in_slot[slot] == bucket) { return; }
    fill_gradient_slot(s, grads, bucket, first_micro_batch);
    cuda_check(cudaEventRecord(s->host.begun[slot], s->comm_stream));
    s->host.gradient_in_slot[slot] = bucket;
}

// Makes room for a bucket's gradients, which kernels queued from here on may add to.
static inline void begin_gradient(Shards *s, Buckets<float> grads, int bucket, bool first_micro_batch) {
    if (!grads.parts) { return; }
    if (!grads.on_host) { return fill_gradient_slot(s, grads, bucket, first_micro_batch); }
    fetch_gradient(s, grads, bucket, first_micro_batch);
    cuda_check(cudaStreamWaitEvent(s->stream, s->host.begun[zero_slot(&s->layout, bucket)], 0));
}

// Adds up the gradients of the tensors that all ranks of the tensor group hold.
static inline void sum_unsplit(Shards *s, float *whole, int bucket) {
    float *all = whole + zero_split(&s->layout, bucket);
    int64_t count = zero_unsplit(&s->layout, bucket) / s->tensor.size;
    float *own = all + s->tensor.rank * count;
    group_reduce_scatter(&s->tensor, own, all, count, &s->sent.tensor);
    group_all_gather(&s->tensor, all, own, count * (int64_t)sizeof(float), &s->sent.tensor);
}

// Starts adding up the gradients of a bucket of all ranks. A micro-batch's gradients are complete on this rank. Ranks
// that keep all gradients send them once a step.
static inline void end_gradient(Shards *s, Buckets<float> grads, int bucket, bool last_micro_batch) {
    bool sums = (s->sums_unsplit || shares_buckets(s)) && (sums_each_time(s) || last_micro_batch);
    if (zero_size(&s->layout, bucket) == 0 || !(sums || grads.on_host)) { return; }
    int64_t shard = zero_shard(&s->layout, bucket);
    float *whole = whole_bucket(s, grads, bucket);
    communicate_after_compute(s);
    if (!sums) { return; } // release_gradient comes next
    if (s->sums_unsplit) { sum_unsplit(s, whole, bucket); }
    if (!shares_buckets(s)) { return; }
    float *own = grads.on_host ? whole + s->rank * shard : bucket_part(s, grads, bucket);
    group_reduce_scatter(&s->data, own, whole, shard, &s->sent.gradients);
    bool waits = bucket == 0 && s->ends.size > 1; // for finish_gradients
    if (s->stage == ZERO_REPLICATE && !waits) { gather_bucket(s, whole, bucket, &s->sent.gradients); }
    cuda_check(cudaEventRecord(s->reduced[zero_slot(&s->layout, bucket)], s->comm_stream));
}

// Starts to send this rank's part of a bucket to the host, behind its reduction. Another bucket may take the slot.
static inline void release_gradient(Shards *s, Buckets<float> grads, int bucket) {
    int slot = zero_slot(&s->layout, bucket);
    int64_t shard = zero_shard(&s->layout, bucket);
    if (!grads.on_host || shard == 0) { return; }
    stream_follows(s->host.out, s->comm_stream, s->host.reached);
    copy_out(s, bucket_part(s, grads, bucket), whole_bucket(s, grads, bucket) + s->rank * shard, shard);
    cuda_check(cudaEventRecord(s->reduced[slot], s->host.out));
    s->host.gradient_in_slot[slot] = -1;
}

// Adds up the gradients of the token embedding on the first and the last stage of a pipeline, behind all passes of a
// step: an earlier exchange would wait for stages that wait for this one.
static inline void finish_gradients(Shards *s, Buckets<float> grads) {
    if (s->ends.size == 1) { return; }
    BucketRange all = embedding_range(s);
    int64_t shard = zero_shard(&s->layout, 0), begin = min_i64(s->rank * shard, all.end);
    int64_t half = (min_i64(begin + shard, all.end) - begin) / 2; // of a multiple of 8 elements
    float *part = bucket_part(s, grads, 0), *own = part + s->ends.rank * half;
    communicate_after_compute(s);
    if (half > 0) {
        group_reduce_scatter(&s->ends, own, part, half, &s->sent.gradients);
        group_all_gather(&s->ends, part, own, half * (int64_t)sizeof(float), &s->sent.gradients);
    }
    bool shares = s->stage == ZERO_REPLICATE && shares_buckets(s);
    if (shares) { gather_bucket(s, whole_bucket(s, grads, 0), 0, &s->sent.gradients); }
}

// ---- Opening ----

// Visits every event of s.
template <class Visit> static inline void shards_each_event(Shards *s, Visit visit) {
    visit(&s->computed), visit(&s->communicated);
    visit(&s->host.reached);
    for (int i = 0; i < ZERO_NUM_SLOTS; i++) {
        visit(&s->fetched[i]), visit(&s->used[i]), visit(&s->reduced[i]), visit(&s->host.begun[i]);
    }
    for (int i = 0; i < 2; i++) { visit(&s->host.left[i]), visit(&s->host.arrived[i]); }
    for (int b = 0; b < s->layout.num_buckets; b++) { visit(&s->gathered[b]); }
}

static inline void group_plan(Group *group, const RankGrid *grid, int rank, int axes) {
    GroupPlace place = grid_group(grid, rank, axes);
    group->rank = place.rank, group->size = place.size, group->leader = place.leader;
}

// Plans the layout of a run that has no GPU yet. rank: of the run. chunks: of a stage. sums_unsplit: see Shards.
static inline void shards_plan(Shards *s, const ModelConfig *config, const RankGrid *grid, int rank, int chunks,
                               int stage, OptimizerKind optimizer, bool sums_unsplit) {
    memset(s, 0, sizeof(*s));
    group_plan(&s->all, grid, rank, ALL_AXES);
    group_plan(&s->data, grid, rank, DATA_AXES);
    group_plan(&s->tensor, grid, rank, AXIS_TP);
    group_plan(&s->context, grid, rank, AXIS_CP);
    group_plan(&s->pipe, grid, rank, AXIS_PP);
    PartPlace at = {s->tensor.size, s->tensor.rank, s->pipe.size, s->pipe.rank, chunks};
    ModelPart part = model_part(config, at);
    s->ends = s->pipe, s->ends.rank = part_has_copy(&part), s->ends.size = part_shares_embedding(&part) ? 2 : 1;
    zero_layout(&s->layout, &part, s->data.size, optimizer);
    s->rank = s->data.rank;
    s->stage = (ZeroStage)zero_effective_stage(stage, s->data.size);
    s->sums_unsplit = sums_unsplit;
    for (int &bucket : s->host.gradient_in_slot) { bucket = -1; }
}

// stream: the stream that computes. shards_connect (rank_gpus.cuh) comes later, when all ranks are ready.
static inline void shards_open(Shards *s, Comm *ranks, cudaStream_t stream) {
    int least, greatest; // priorities: communication is little work, and other ranks wait for it
    s->ranks = ranks;
    s->stream = stream;
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cuda_check(cudaStreamCreateWithPriority(&s->comm_stream, cudaStreamNonBlocking, greatest));
    gpu_create_stream(&s->host.out);
    shards_each_event(s, gpu_create_event);
}

static inline void shards_close(Shards *s) {
    for (Group *group : {&s->ends, &s->pipe, &s->context, &s->tensor, &s->data, &s->all}) {
        if (group == &s->all || group->handle != s->all.handle) { group_close(group); }
    }
    shards_each_event(s, [](cudaEvent_t *event) { cudaEventDestroy(*event); });
    cudaStreamDestroy(s->comm_stream);
    cudaStreamDestroy(s->host.out);
}

#endif // LLMC_BUCKETS_CUH
