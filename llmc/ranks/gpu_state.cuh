// Parameters and optimizer state between the GPU and the host: loading, saving, hashing.
//
// A rank reads and writes its part of every bucket, one chunk at a time. A chunk passes through staging memory on the
// host, where each piece of a tensor is found by its place in the order of files. The caller reads or writes the file:
//
//   state_download(&state, STATE_PARAMS, [&](float *values, int64_t in_file, int64_t n) { return write(...); });
#ifndef LLMC_GPU_STATE_CUH
#define LLMC_GPU_STATE_CUH

#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/ranks/buckets.cuh"

// The arrays of a checkpoint. Parameters are the fp32 master weights if there are any.
enum { STATE_PARAMS, STATE_ADAM_M, STATE_ADAM_V };

typedef struct {
    Shards *shards;
    Buckets<floatX> params;
    Buckets<float> master, adam_m, adam_v;
    float *staging;     // pinned, one chunk
    float *fp32_params; // on the GPU, one chunk: parameters on their way to bf16
} ModelState;

// ---- Chunks ----

// The most elements that pass through the staging memory at a time.
#define STATE_MAX_CHUNK ((int64_t)1 << 23)

static inline int64_t state_chunk_floats(const ZeroLayout *zero) {
    return min_i64(STATE_MAX_CHUNK, max_i64(zero_shard(zero, 0), zero_shard(zero, 1)));
}

// Elements [begin, end) of a bucket.
typedef struct {
    int bucket;
    int64_t begin, end;
} Chunk;

// Walks through this rank's part of all buckets: Chunk chunk = {0, 0, 0}; while (next_chunk(shards, &chunk)) ...
static inline bool next_chunk(const Shards *s, Chunk *chunk) {
    const ZeroLayout *zero = &s->layout;
    int64_t from = max_i64(chunk->end, zero_begin(zero, chunk->bucket, s->rank));
    while (from >= zero_end(zero, chunk->bucket, s->rank)) {
        if (++chunk->bucket == zero->num_buckets) { return false; }
        from = zero_begin(zero, chunk->bucket, s->rank);
    }
    chunk->begin = from;
    chunk->end = min_i64(from + state_chunk_floats(zero), zero_end(zero, chunk->bucket, s->rank));
    return true;
}

// Calls visit(values, in_file, n) for each piece of a tensor in the staged chunk. Stops when visit returns false.
template <class Visit> static inline bool visit_chunk(const ModelState *g, const Chunk *chunk, Visit visit) {
    ZeroPiece pieces[NUM_PARAM_TENSORS];
    int n = zero_pieces(&g->shards->layout, chunk->bucket, chunk->begin, chunk->end, pieces);
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        ok = visit(g->staging + pieces[i].in_bucket - chunk->begin, pieces[i].in_file, pieces[i].count);
    }
    return ok;
}

// Leaves out of a chunk what an array does not have. False: the array has nothing of it.
static inline bool state_trim(const ModelState *g, Buckets<float> array, Chunk *chunk) {
    if (array.rest) { chunk->begin = max_i64(chunk->begin, zero_muon(&g->shards->layout, chunk->bucket)); }
    return chunk->begin < chunk->end;
}

// ---- Between the GPU and the staging memory ----

static inline Buckets<float> state_array(const ModelState *g, int array) {
    return array == STATE_PARAMS ? g->master : array == STATE_ADAM_M ? g->adam_m : g->adam_v;
}

// Converts the n floatX at the beginning of a buffer to floats, in place.
static inline void widen_in_place(float *memory, int64_t n) {
#ifdef PRECISION_FP32
    (void)memory, (void)n;
#else
    const unsigned char *narrow = (const unsigned char *)memory;
    for (int64_t i = n - 1; i >= 0; i--) { // backwards, so that a float covers only bf16 that were already read
        uint16_t bits;
        memcpy(&bits, narrow + 2 * i, sizeof(bits));
        uint32_t wide = (uint32_t)bits << 16;
        memcpy(memory + i, &wide, sizeof(wide));
    }
#endif
}

// Copies n elements between the GPU and the host, and waits.
template <class T> static inline void copy_and_wait(Shards *s, T *to, const T *from, int64_t n) {
    cuda_check(cudaMemcpyAsync(to, from, (size_t)n * sizeof(T), cudaMemcpyDefault, s->stream));
    wait_for_stream(s);
}

// Copies a chunk of an array to the staging memory in fp32.
static inline void download_chunk(const ModelState *g, int array, const Chunk *chunk) {
    Shards *s = g->shards;
    int64_t n = chunk->end - chunk->begin;
    const float *from = bucket_element(s, state_array(g, array), chunk->bucket, chunk->begin);
    if (from != NULL) {
        copy_and_wait(s, g->staging, from, n);
    } else { // there are no master weights
        copy_and_wait<floatX>(s, (floatX *)g->staging, bucket_element(s, g->params, chunk->bucket, chunk->begin), n);
        widen_in_place(g->staging, n);
    }
}

// Copies a chunk of an array from the staging memory to the GPU. make_params(params, fp32, n, index) queues the kernel
// that makes the layers' n parameters from fp32 ones. The first has number index in the model.
template <class MakeParams>
static inline void upload_chunk(const ModelState *g, int array, const Chunk *chunk, MakeParams make_params) {
    Shards *s = g->shards;
    int64_t n = chunk->end - chunk->begin;
    float *to = bucket_element(s, state_array(g, array), chunk->bucket, chunk->begin);
    if (to == NULL) { to = g->fp32_params; }
    cuda_check(cudaMemcpyAsync(to, g->staging, (size_t)n * sizeof(float), cudaMemcpyHostToDevice, s->stream));
    if (array == STATE_PARAMS) {
        make_params(bucket_element(s, g->params, chunk->bucket, chunk->begin), to, n,
                    zero_first_index(&s->layout, chunk->bucket) + chunk->begin);
    }
    wait_for_stream(s); // the staging memory is then free again
}

// ---- Whole arrays ----

// Fills this rank's part of an array. read(to, in_file, n) reads a piece from the file.
template <class Read, class MakeParams>
static inline bool state_upload(const ModelState *g, int array, Read read, MakeParams make_params) {
    Chunk chunk = {0, 0, 0};
    while (next_chunk(g->shards, &chunk)) {
        if (!state_trim(g, state_array(g, array), &chunk)) { continue; }
        if (!visit_chunk(g, &chunk, read)) { return false; }
        upload_chunk(g, array, &chunk, make_params);
        comm_progress(g->shards->ranks, "loading");
    }
    return true;
}

// Calls visit(values, in_file, n) for every piece of this rank's part of an array, in fp32. what: for the watch.
template <class Visit>
static inline bool state_download(const ModelState *g, int array, const char *what, Visit visit) {
    Chunk chunk = {0, 0, 0};
    while (next_chunk(g->shards, &chunk)) {
        if (!state_trim(g, state_array(g, array), &chunk)) { continue; }
        download_chunk(g, array, &chunk);
        if (!visit_chunk(g, &chunk, visit)) { return false; }
        comm_progress(g->shards->ranks, "%s", what);
    }
    return true;
}

// Sets parameters and state to zero. The padding stays zero.
static inline void state_clear(const ModelState *g) {
    for (int array = STATE_PARAMS; array <= STATE_ADAM_V; array++) { clear_buckets(g->shards, state_array(g, array)); }
    clear_buckets(g->shards, g->params);
}

// Gives ranks that keep an array whole the parts of all ranks. Every rank has loaded its part.
static inline void state_share(const ModelState *g) {
    Shards *s = g->shards;
    if (has_peers(s)) {
        communicate_after_compute(s);
        for (int b = 0; b < s->layout.num_buckets; b++) {
            for (int array = STATE_PARAMS; array <= STATE_ADAM_V; array++) {
                Buckets<float> buckets = state_array(g, array);
                if (buckets.data == NULL || buckets.parts) { continue; }
                if (buckets.rest && b > 0) {
                    gather_rest(s, buckets, b);
                } else {
                    gather_bucket(s, whole_bucket(s, buckets, b), b, NULL);
                }
            }
            if (!g->params.parts) { gather_bucket(s, whole_bucket(s, g->params, b), b, NULL); }
        }
        compute_after_communicate(s);
    }
    forget_fetched(s);
}

#endif // LLMC_GPU_STATE_CUH
