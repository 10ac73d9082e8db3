// Buckets on the GPU: the place of a rank's parameters, gradients and moments, and how they travel between ranks.
//
// Two streams work at once. One computes, the other communicates, and events alone order them. A bucket's gradients are
// reduced while the backward pass computes the layers below. Parameters that no rank keeps whole (ZERO_PARAMETERS) are
// gathered while the layer before computes.
//
//   fetch_bucket    starts gathering a bucket's parameters       begin_gradient  makes room for a bucket's gradients
//   await_bucket    kernels queued from here on may read them    end_gradient    starts adding up all ranks' gradients
//   release_bucket  another bucket may take their slot
//
// A single GPU is a rank that owns everything: every bucket is whole, and nothing is sent.
#ifndef LLMC_BUCKETS_CUH
#define LLMC_BUCKETS_CUH

#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/gpu.h"
#include "llmc/ranks/nccl.h"
#include "llmc/ranks/zero.h"

// Describes an array with one element for each parameter, bucket by bucket.
template <class T> struct Buckets {
    T *data;    // NULL: this run has no such array
    bool parts; // holds only this rank's part of each bucket
    T *slots;   // if parts: slots for whole buckets (zero_slot_offset); NULL: never needed whole
    bool rest;  // leaves out Muon's matrices. A block's bucket is whole on every rank then (zero_rest)
};

typedef struct {
    ZeroLayout layout;
    Comm *ranks;
    int rank;
    ZeroStage stage;
    NcclContext nccl;
    cudaStream_t stream, comm_stream;   // of the computation, of the communication
    cudaEvent_t computed, communicated; // the two streams wait for each other
    int bucket_in_slot[ZERO_NUM_SLOTS]; // the bucket whose parameters are there; -1: none
    // Events of each slot: its parameters have arrived, its parameters were used, its gradients were reduced.
    cudaEvent_t fetched[ZERO_NUM_SLOTS], used[ZERO_NUM_SLOTS], reduced[ZERO_NUM_SLOTS];
    bool gathering; // updated parameters are on their way; bucket b has arrived at event gathered[b]
    cudaEvent_t gathered[ZERO_MAX_BUCKETS];
} Shards;

static inline bool has_peers(const Shards *s) { return s->layout.num_ranks > 1; }

// ---- Where elements lie ----

// Returns element i of a bucket. An array of parts has only this rank's elements, an array of the rest none of Muon's.
template <class T> static inline T *bucket_element(const Shards *s, Buckets<T> array, int bucket, int64_t i) {
    const ZeroLayout *zero = &s->layout;
    if (array.data == NULL) { return NULL; }
    if (array.rest && bucket > 0) {
        if (i < zero_muon(zero, bucket)) { return NULL; }
        T *blocks = array.data + (array.parts ? zero_shard(zero, 0) : zero_padded(zero, 0));
        return blocks + (bucket - 1) * zero_rest(zero) + i - zero_muon(zero, bucket);
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
    if (array.rest) { return bucket_element(s, array, zero->num_buckets, zero_muon(zero, 1)) - array.data; }
    return array.parts ? zero_shard_offset(zero, zero->num_buckets) : zero_offset(zero, zero->num_buckets);
}

template <class T> static inline void clear_buckets(const Shards *s, Buckets<T> array) {
    size_t bytes = (size_t)buckets_length(s, array) * sizeof(T);
    if (bytes > 0) { cuda_check(cudaMemsetAsync(array.data, 0, bytes, s->stream)); }
}

// Returns the elements of a piece of this rank's part; NULL: the array has none of them.
template <class T> static inline T *piece_element(const Shards *s, Buckets<T> array, const ZeroPiece &piece) {
    return bucket_element(s, array, zero_bucket_of(piece.tensor, piece.layer), piece.in_bucket);
}

// Calls visit(piece) for each piece of a tensor in this rank's part of the buckets, in their order. A piece has at most
// ZERO_MAX_PIECE elements. Stops when visit returns false, and then returns false.
template <class Visit> static inline bool visit_own_pieces(const Shards *s, Visit visit) {
    const ZeroLayout *zero = &s->layout;
    ZeroPiece pieces[NUM_PARAM_TENSORS];
    for (int b = 0; b < zero->num_buckets; b++) {
        int n = zero_pieces(zero, b, zero_begin(zero, b, s->rank), zero_end(zero, b, s->rank), pieces);
        for (int i = 0; i < n; i++) {
            for (int64_t done = 0; done < pieces[i].count; done += ZERO_MAX_PIECE) {
                ZeroPiece part = pieces[i];
                part.in_bucket += done, part.in_file += done, part.count = min_i64(part.count - done, ZERO_MAX_PIECE);
                if (!visit(part)) { return false; }
            }
        }
    }
    return true;
}

// ---- The two streams ----

// Communication queued from here on waits for the computation queued so far.
static inline void communicate_after_compute(Shards *s) {
    cuda_check(cudaEventRecord(s->computed, s->stream));
    cuda_check(cudaStreamWaitEvent(s->comm_stream, s->computed, 0));
}

// Computation queued from here on waits for the communication queued so far.
static inline void compute_after_communicate(Shards *s) {
    cuda_check(cudaEventRecord(s->communicated, s->comm_stream));
    cuda_check(cudaStreamWaitEvent(s->stream, s->communicated, 0));
}

// Gives all ranks the `own` (bytes) of every rank, in order, in `all` (R * bytes). own may be this rank's place in all.
static inline void gather_results(Shards *s, void *all, const void *own, int64_t bytes) {
    if (!has_peers(s)) { return; }
    communicate_after_compute(s);
    nccl_all_gather(&s->nccl, all, own, bytes, NULL);
    compute_after_communicate(s);
}

// Gives every rank a whole bucket. Each rank's part must be at its place in it. sent counts the bytes, or is NULL.
template <class T> static inline void gather_bucket(Shards *s, T *whole, int bucket, int64_t *sent) {
    int64_t shard = zero_shard(&s->layout, bucket);
    nccl_all_gather(&s->nccl, whole, whole + s->rank * shard, shard * (int64_t)sizeof(T), sent);
}

// Gives every rank the whole of a block's bucket in an array of the rest. Each rank has its own elements there, and
// zeros elsewhere, so the sum over the ranks has all.
static inline void gather_rest(Shards *s, Buckets<float> array, int bucket) {
    float *whole = bucket_element(s, array, bucket, zero_muon(&s->layout, bucket));
    int64_t count = zero_rest(&s->layout) / s->layout.num_ranks;
    nccl_reduce_scatter(&s->nccl, whole + s->rank * count, whole, count, NULL);
    nccl_all_gather(&s->nccl, whole, whole + s->rank * count, count * (int64_t)sizeof(float), NULL);
}

// ---- Muon's matrices ----

// Returns the block of a group whose matrices are number i: in the owner's array, else in `spare`.
template <class T> static inline T *matrices_of_block(const Shards *s, T *owned, T *spare, int i) {
    int R = s->layout.num_ranks;
    return zero_owner(&s->layout, i) == s->rank ? owned + i / R * zero_padded(&s->layout, 1) : spare;
}

// Puts blocks together on their owners (zero_owner). There are `blocks` of them, from one of rank 0 on. parts: this
// rank's shard of each. owned: room for the blocks that this rank owns, one after another. spare: room for one block.
template <class T> static inline void gather_matrices(Shards *s, T *owned, T *spare, const T *parts, int blocks) {
    int64_t shard = zero_shard(&s->layout, 1);
    communicate_after_compute(s);
    for (int i = 0; i < blocks; i++) {
        nccl_all_gather(&s->nccl, matrices_of_block(s, owned, spare, i), parts + i * shard, shard * (int64_t)sizeof(T),
                        &s->nccl.matrix_bytes);
    }
    compute_after_communicate(s);
}

// Sends the owners' blocks back to the shards. All ranks but the owner add zeros, as whole numbers: x + 0 then has the
// bits of x, which the sum -0 + 0 of floats has not.
template <class T> static inline void scatter_matrices(Shards *s, T *parts, T *owned, T *spare, int blocks) {
    int64_t shard = zero_shard(&s->layout, 1), words = shard * (int64_t)sizeof(T) / (int64_t)sizeof(uint32_t);
    cuda_check(cudaMemsetAsync(spare, 0, (size_t)zero_padded(&s->layout, 1) * sizeof(T), s->stream));
    communicate_after_compute(s);
    for (int i = 0; i < blocks; i++) {
        nccl_reduce_scatter(&s->nccl, (uint32_t *)(parts + i * shard),
                            (const uint32_t *)matrices_of_block(s, owned, spare, i), words, &s->nccl.matrix_bytes);
    }
    compute_after_communicate(s);
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

// Copies n elements from the GPU to floats in pinned memory, and waits.
template <class T> static inline void download(Shards *s, float *to, const T *from, int64_t n) {
    cuda_check(cudaMemcpyAsync(to, from, (size_t)n * sizeof(T), cudaMemcpyDeviceToHost, s->stream));
    wait_for_stream(s);
    if (sizeof(T) < sizeof(float)) { widen_in_place(to, n); }
}

// ---- Parameters ----

// Starts gathering a bucket's parameters. Does nothing if this rank holds all of them. The last user of the slot has
// called release_bucket.
template <class T> static inline void fetch_bucket(Shards *s, Buckets<T> params, int bucket) {
    int slot = zero_slot(bucket);
    if (!params.parts || s->bucket_in_slot[slot] == bucket) { return; }
    cuda_check(cudaStreamWaitEvent(s->comm_stream, s->used[slot], 0));
    nccl_all_gather(&s->nccl, whole_bucket(s, params, bucket), bucket_part(s, params, bucket),
                    zero_shard(&s->layout, bucket) * (int64_t)sizeof(T), &s->nccl.parameter_bytes);
    cuda_check(cudaEventRecord(s->fetched[slot], s->comm_stream));
    s->bucket_in_slot[slot] = bucket;
}

// Computation queued from here on may read a bucket's parameters, which were fetched or are gathered after an update.
template <class T> static inline void await_bucket(Shards *s, Buckets<T> params, int bucket) {
    if (s->gathering) { cuda_check(cudaStreamWaitEvent(s->stream, s->gathered[bucket], 0)); }
    if (params.parts) { cuda_check(cudaStreamWaitEvent(s->stream, s->fetched[zero_slot(bucket)], 0)); }
}

// Lets another bucket take this bucket's slot: the bucket's last reader is queued.
template <class T> static inline void release_bucket(Shards *s, Buckets<T> params, int bucket) {
    if (params.parts) { cuda_check(cudaEventRecord(s->used[zero_slot(bucket)], s->stream)); }
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
    gather_bucket(s, whole_bucket(s, params, bucket), bucket, &s->nccl.parameter_bytes);
    cuda_check(cudaEventRecord(s->gathered[bucket], s->comm_stream));
}

// ---- Gradients ----

// Clears whole gradients before a step. begin_gradient clears gradients that are kept in parts.
static inline void zero_gradients(const Shards *s, Buckets<float> grads) {
    if (!grads.parts) { clear_buckets(s, grads); }
}

// Makes room for a bucket's gradients. Gradients in parts begin as zeros, and this rank's part begins as its sum since
// the step's first micro-batch. So the reduction adds up micro-batches, too.
static inline void begin_gradient(Shards *s, Buckets<float> grads, int bucket, bool first_micro_batch) {
    if (!grads.parts) { return; }
    float *room = whole_bucket(s, grads, bucket);
    int64_t shard = zero_shard(&s->layout, bucket);
    cuda_check(cudaStreamWaitEvent(s->stream, s->reduced[zero_slot(bucket)], 0));
    cuda_check(cudaMemsetAsync(room, 0, (size_t)zero_padded(&s->layout, bucket) * sizeof(float), s->stream));
    if (first_micro_batch) { return; }
    cuda_check(cudaMemcpyAsync(room + s->rank * shard, bucket_part(s, grads, bucket), (size_t)shard * sizeof(float),
                               cudaMemcpyDeviceToDevice, s->stream));
}

// Starts adding up the gradients of a bucket of all ranks. A micro-batch's gradients are complete on this rank. Ranks
// that keep all gradients send them once a step.
static inline void end_gradient(Shards *s, Buckets<float> grads, int bucket, bool last_micro_batch) {
    if (!has_peers(s) || !(grads.parts || last_micro_batch)) { return; }
    float *whole = whole_bucket(s, grads, bucket);
    communicate_after_compute(s);
    nccl_reduce_scatter(&s->nccl, bucket_part(s, grads, bucket), whole, zero_shard(&s->layout, bucket),
                        &s->nccl.gradient_bytes);
    if (s->stage == ZERO_REPLICATE) { gather_bucket(s, whole, bucket, &s->nccl.gradient_bytes); }
    cuda_check(cudaEventRecord(s->reduced[zero_slot(bucket)], s->comm_stream));
}

// ---- Opening ----

// Visits every event of s.
template <class Visit> static inline void shards_each_event(Shards *s, Visit visit) {
    visit(&s->computed), visit(&s->communicated);
    for (int i = 0; i < ZERO_NUM_SLOTS; i++) { visit(&s->fetched[i]), visit(&s->used[i]), visit(&s->reduced[i]); }
    for (int b = 0; b < s->layout.num_buckets; b++) { visit(&s->gathered[b]); }
}

// Plans the layout of a run that has no GPU yet.
static inline void shards_plan(Shards *s, const ModelConfig *config, int rank, int num_ranks, int stage,
                               OptimizerKind optimizer) {
    memset(s, 0, sizeof(*s));
    zero_layout(&s->layout, config, num_ranks, optimizer);
    s->rank = rank;
    s->stage = (ZeroStage)zero_effective_stage(stage, num_ranks);
}

// stream: the stream that computes. rank_gpus_connect comes later, when all ranks are ready.
static inline void shards_open(Shards *s, Comm *ranks, cudaStream_t stream) {
    int least, greatest; // priorities: communication is little work, and other ranks wait for it
    s->ranks = ranks;
    s->stream = stream;
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cuda_check(cudaStreamCreateWithPriority(&s->comm_stream, cudaStreamNonBlocking, greatest));
    shards_each_event(s, gpu_create_event);
}

static inline void shards_close(Shards *s) {
    shards_each_event(s, [](cudaEvent_t *event) { cudaEventDestroy(*event); });
    cudaStreamDestroy(s->comm_stream);
}

#endif // LLMC_BUCKETS_CUH
