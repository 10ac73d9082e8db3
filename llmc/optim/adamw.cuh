// AdamW (Loshchilov, Hutter 2019), one pass over a tensor's weights, gradients and both moments:
//   g = grad_scale grad
//   m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2
//   w -= lr * (m / (1-beta1^t) / (sqrt(v / (1-beta2^t)) + epsilon) + weight_decay * w)
// w is the fp32 master copy where there is one, else the parameter itself. A bf16 parameter is w rounded up or down at
// random with probabilities that make the mean exact: without a master copy, rounding to nearest would lose every step
// that is smaller than half the distance to the next bf16 (1/256 of the weight), which at the end are nearly all.
//
// The random bits are a function of (seed, update, index of the element in the whole model): no rank, shard, block or
// thread takes part. And every fused multiply-add is written as one, so that a compiler has no choice left by which an
// element's bits could depend on the path that it takes. So a tensor may be updated whole or in shards cut anywhere.
#ifndef LLMC_ADAMW_CUH
#define LLMC_ADAMW_CUH

#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/optim/global_norm.cuh"

#define ADAMW_BLOCK 256 // threads, at most: more would leave each too few registers

// What all parameters have in common in an update.
typedef struct {
    float lr, beta1, beta2, epsilon;
    float weight_decay; // of those that decay
    int64_t update;     // number of this update, from 1
    uint64_t key;       // rounding_key(seed, update)
} AdamWStep;

// The same as the kernel wants it: in device memory, since it changes from step to step and a kernel's arguments in a
// CUDA graph do not.
typedef struct {
    float lr, beta1, beta2, epsilon, weight_decay;
    float correction1, correction2; // 1 / (1-beta^t)
    uint64_t key;
} AdamWFactors;

// Neighbouring elements, and the same again at equal distances: what the layers of a model have alike, so that one
// launch updates all of them. Any n and any addresses will do.
typedef struct {
    floatX *params;
    float *master, *m, *v; // master: NULL where there is no master copy
    const float *grads;
    int64_t n;
    int64_t decayed;     // the first so many of them have weight decay
    int64_t first_index; // of element 0, in the whole model
    int64_t repeats;
    // From one repetition to the next, in elements: params; master, m and v; grads; the index in the model.
    int64_t params_stride, state_stride, grads_stride, index_stride;
} AdamWPart;

// A thread works on 4 neighbouring elements: 16 bytes of each fp32 array, 8 of bf16. The threads of a warp touch
// neighbouring bytes, which groups of 8 (16 bytes of bf16, twice 16 of fp32) would give up for no gain.
// Element i of a tensor is in group (i + lead) / 4: where lead > 0 the tensor begins inside a group.
#define ADAMW_GROUP 4

typedef struct {
    int64_t n;
    int64_t first_index; // of element 0, in the whole model
    int lead;            // 0..3
    bool vectors;        // whole groups lie at addresses good for one access, in all arrays
} TensorGroups;

// ---- Groups ----

struct alignas(8) PackedGroup {
    __nv_bfloat16 values[ADAMW_GROUP];
};

__device__ __forceinline__ void load_group(float (&x)[ADAMW_GROUP], const float *address) {
    f128 packed = load128_streaming(address);
#pragma unroll
    for (int k = 0; k < ADAMW_GROUP; k++) { x[k] = packed[k]; }
}
__device__ __forceinline__ void load_group(float (&x)[ADAMW_GROUP], const __nv_bfloat16 *address) {
    PackedGroup packed;
    int2 bits = __ldcs(reinterpret_cast<const int2 *>(address));
    memcpy(&packed, &bits, sizeof(bits));
#pragma unroll
    for (int k = 0; k < ADAMW_GROUP; k++) { x[k] = to_float(packed.values[k]); }
}

// The optimizer's state is not used again in this step, the parameters are: they are stored without a hint.
__device__ __forceinline__ void store_group_streaming(float *address, const float (&x)[ADAMW_GROUP]) {
    f128 packed;
#pragma unroll
    for (int k = 0; k < ADAMW_GROUP; k++) { packed[k] = x[k]; }
    store128_streaming(address, packed);
}
__device__ __forceinline__ void store_group(float *address, const float (&x)[ADAMW_GROUP]) {
    *reinterpret_cast<float4 *>(address) = make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ void store_group(__nv_bfloat16 *address, const __nv_bfloat16 (&x)[ADAMW_GROUP]) {
    int2 bits;
    memcpy(&bits, x, sizeof(bits));
    *reinterpret_cast<int2 *>(address) = bits;
}

// The first element of this thread's group, in the tensor's block number `block`: -lead..n-1, or beyond for threads
// without work.
__device__ __forceinline__ int64_t group_begin(const TensorGroups &groups, unsigned block) {
    return ((int64_t)block * blockDim.x + threadIdx.x) * ADAMW_GROUP - groups.lead;
}
__device__ __forceinline__ bool group_is_whole(const TensorGroups &groups, int64_t begin) {
    return groups.vectors && begin >= 0 && begin + ADAMW_GROUP <= groups.n;
}

// By how many elements a pointer lies behind a place where a group may begin. NULL: takes no part.
template <class T> static inline int group_lead(const T *pointer, int if_null) {
    if (pointer == NULL) { return if_null; }
    return (int)((uintptr_t)pointer % (ADAMW_GROUP * sizeof(T)) / sizeof(T));
}

// Parameters, master copy and optimizer state of a shard may be cut so that their groups do not meet: vectors is false.
static inline TensorGroups tensor_groups(const floatX *params, const float *const *others, int num_others, int64_t n,
                                         int64_t first_index) {
    TensorGroups groups = {n, first_index, group_lead(params, 0), true};
    for (int i = 0; i < num_others; i++) {
        groups.vectors = groups.vectors && group_lead(others[i], groups.lead) == groups.lead;
    }
    return groups;
}

// ---- The update ----

__device__ __forceinline__ void adamw_element(float *w, float *m, float *v, float grad, float grad_scale,
                                              float weight_decay, const AdamWFactors &f) {
    float g = grad_scale * grad;
    *m = fmaf(f.beta1, *m, (1.0f - f.beta1) * g);
    *v = fmaf(f.beta2, *v, (1.0f - f.beta2) * g * g);
    float direction = f.correction1 * *m / (sqrtf(f.correction2 * *v) + f.epsilon);
    *w = fmaf(-f.lr, fmaf(weight_decay, *w, direction), *w);
}

__device__ __forceinline__ floatX round_parameter(float w, uint64_t key, int64_t index) {
    floatX rounded;
    round_stochastically(&rounded, w, rounding_bits(key, (uint64_t)index));
    return rounded;
}

// One of a part's repetitions, as a block sees it.
struct AdamWArrays {
    floatX *params;
    float *master, *m, *v;
    const float *grads;
    int64_t decayed;
};

// Elements begin..begin+3 with one access to each array.
template <bool WITH_MASTER>
__device__ __forceinline__ void adamw_group(const AdamWArrays &a, int64_t begin, int64_t index, const AdamWFactors &f,
                                            float grad_scale) {
    float g[ADAMW_GROUP], mk[ADAMW_GROUP], vk[ADAMW_GROUP], w[ADAMW_GROUP];
    floatX rounded[ADAMW_GROUP];
    load_group(g, a.grads + begin);
    load_group(mk, a.m + begin);
    load_group(vk, a.v + begin);
    if (WITH_MASTER) {
        load_group(w, a.master + begin);
    } else {
        load_group(w, a.params + begin);
    }
#pragma unroll
    for (int k = 0; k < ADAMW_GROUP; k++) {
        float decay = begin + k < a.decayed ? f.weight_decay : 0.0f;
        adamw_element(&w[k], &mk[k], &vk[k], g[k], grad_scale, decay, f);
        rounded[k] = round_parameter(w[k], f.key, index + k);
    }
    store_group_streaming(a.m + begin, mk);
    store_group_streaming(a.v + begin, vk);
    if (WITH_MASTER) { store_group_streaming(a.master + begin, w); }
    store_group(a.params + begin, rounded);
}

// A part as the kernel wants it: `blocks` blocks for each repetition.
typedef struct {
    AdamWPart part;
    TensorGroups groups; // of each repetition, but for first_index
    unsigned blocks;
} AdamWLaunch;

// The repetition of a part that a block works on.
template <bool WITH_MASTER>
__device__ __forceinline__ AdamWArrays adamw_arrays(const AdamWPart &part, unsigned repeat) {
    AdamWArrays a;
    a.params = part.params + repeat * part.params_stride;
    a.master = WITH_MASTER ? part.master + repeat * part.state_stride : NULL;
    a.m = part.m + repeat * part.state_stride;
    a.v = part.v + repeat * part.state_stride;
    a.grads = part.grads + repeat * part.grads_stride;
    a.decayed = part.decayed;
    return a;
}

// Block number `block` of a part. One thread a group; where it is not whole or not aligned, one element after the
// other.
template <bool WITH_MASTER>
__device__ __forceinline__ void adamw_block(const AdamWLaunch &launch, unsigned block, const AdamWFactors *factors,
                                            float grad_scale) {
    unsigned repeat = block / launch.blocks;
    int64_t begin = group_begin(launch.groups, block % launch.blocks);
    int64_t index = launch.part.first_index + repeat * launch.part.index_stride;
    AdamWArrays a = adamw_arrays<WITH_MASTER>(launch.part, repeat);
    AdamWFactors f = *factors;
    if (group_is_whole(launch.groups, begin)) {
        adamw_group<WITH_MASTER>(a, begin, index + begin, f, grad_scale);
        return;
    }
    int64_t end = min(begin + ADAMW_GROUP, launch.part.n);
#pragma unroll 1
    for (int64_t i = max(begin, (int64_t)0); i < end; i++) {
        float w = WITH_MASTER ? a.master[i] : to_float(a.params[i]);
        adamw_element(&w, &a.m[i], &a.v[i], a.grads[i], grad_scale, i < a.decayed ? f.weight_decay : 0.0f, f);
        if (WITH_MASTER) { a.master[i] = w; }
        a.params[i] = round_parameter(w, f.key, index + i);
    }
}

// The blocks of `first` come before those of `second`. Each has its own copy of the code, so that what stands in the
// arguments is read from there and takes no registers.
template <bool WITH_MASTER>
static __global__ void __launch_bounds__(ADAMW_BLOCK)
    adamw_update_kernel(AdamWLaunch first, AdamWLaunch second, const AdamWFactors *factors, const StepResult *result) {
    if (result->stopped != STEP_GOES_ON) { return; }
    float grad_scale = result->grad_scale;
    unsigned in_first = first.blocks * (unsigned)first.part.repeats;
    if (blockIdx.x < in_first) {
        adamw_block<WITH_MASTER>(first, blockIdx.x, factors, grad_scale);
    } else {
        adamw_block<WITH_MASTER>(second, blockIdx.x - in_first, factors, grad_scale);
    }
}

static inline AdamWFactors adamw_factors(const AdamWStep *step) {
    AdamWFactors f;
    cuda_require(step->update >= 1);
    f.lr = step->lr, f.beta1 = step->beta1, f.beta2 = step->beta2, f.epsilon = step->epsilon;
    f.weight_decay = step->weight_decay, f.key = step->key;
    f.correction1 = (float)(1.0 / (1.0 - pow((double)step->beta1, (double)step->update)));
    f.correction2 = (float)(1.0 / (1.0 - pow((double)step->beta2, (double)step->update)));
    return f;
}

// n elements that come once. They all decay, until the caller says otherwise.
static inline AdamWPart adamw_part(floatX *params, float *master, float *m, float *v, const float *grads, int64_t n,
                                   int64_t first_index) {
    AdamWPart part = {params, master, m, v, grads, n, n, first_index, 1, 0, 0, 0, 0};
    return part;
}

static inline AdamWLaunch adamw_launch(const AdamWPart *part, int block_size) {
    const float *others[] = {part->master, part->m, part->v, part->grads};
    AdamWLaunch launch = {*part, tensor_groups(part->params, others, 4, part->n, 0), 1};
    cuda_require(part->n >= 0 && part->first_index >= 0 && part->repeats >= 0);
    bool meet = (part->params_stride | part->state_stride | part->grads_stride) % ADAMW_GROUP == 0;
    if (part->repeats > 1 && !meet) { launch.groups.vectors = false; }
    launch.blocks = blocks_for(part->n + launch.groups.lead, (int64_t)ADAMW_GROUP * block_size);
    if (part->n == 0 || part->repeats == 0) { launch.part.repeats = 0, launch.blocks = 1; }
    return launch;
}

// Updates two parts (second: NULL for none) in place: params, m, v and, where there is a master copy, master. grads are
// read only. factors and result in device memory: gradients are multiplied by result's grad_scale; if it says stopped,
// nothing is touched.
// Fast where all arrays are aligned alike to 4 elements, as they are when they are slices [a,b) of whole arrays or
// shards that begin at a multiple of 4, and are repeated at multiples of 4.
// Moves, for each parameter, in bf16: 30 bytes (reads grad, m, v, master: 16; writes m, v, master, params: 14), without
// a master copy 24 (reads 14, writes 10); in fp32 without one 28 (16 and 12).
// Deterministic, and independent of the block size: no element depends on another.
static inline void adamw_update(const AdamWPart *first, const AdamWPart *second, const AdamWFactors *factors,
                                const StepResult *result, cudaStream_t stream, int block_size = ADAMW_BLOCK) {
    AdamWPart none = *first;
    none.repeats = 0;
    cuda_require(block_size > 0 && block_size <= ADAMW_BLOCK);
    AdamWLaunch a = adamw_launch(first, block_size), b = adamw_launch(second != NULL ? second : &none, block_size);
    int64_t blocks = a.part.repeats * a.blocks + b.part.repeats * b.blocks;
    cuda_require(blocks <= INT32_MAX);
    cuda_require((a.part.master == NULL) == (b.part.master == NULL));
    if (blocks == 0) { return; }
    if (first->master != NULL) {
        adamw_update_kernel<true><<<(unsigned)blocks, block_size, 0, stream>>>(a, b, factors, result);
    } else {
        adamw_update_kernel<false><<<(unsigned)blocks, block_size, 0, stream>>>(a, b, factors, result);
    }
    cuda_check_launch("adamw_update_kernel");
}

// ---- Parameters from their master copy ----

__device__ __forceinline__ floatX parameter_from_master(float w, int64_t index, uint64_t key, bool stochastic) {
    return stochastic ? round_parameter(w, key, index) : from_float<floatX>(w);
}

static __global__ void __launch_bounds__(ADAMW_BLOCK)
    params_from_master_kernel(floatX *params, const float *master, TensorGroups groups, uint64_t key, bool stochastic) {
    int64_t begin = group_begin(groups, blockIdx.x), index = groups.first_index;
    if (group_is_whole(groups, begin)) {
        float w[ADAMW_GROUP];
        floatX rounded[ADAMW_GROUP];
        load_group(w, master + begin);
#pragma unroll
        for (int k = 0; k < ADAMW_GROUP; k++) {
            rounded[k] = parameter_from_master(w[k], index + begin + k, key, stochastic);
        }
        store_group(params + begin, rounded);
        return;
    }
    int64_t end = min(begin + ADAMW_GROUP, groups.n);
#pragma unroll 1
    for (int64_t i = max(begin, (int64_t)0); i < end; i++) {
        params[i] = parameter_from_master(master[i], index + i, key, stochastic);
    }
}

// params = master, rounded: with stochastic and the key of the last update to the very bits that adamw_update left (so
// that a run that is resumed goes on as if it had not ended), else to nearest. Sizes and addresses as for adamw_update.
// Moves 6 bytes a parameter in bf16, 8 in fp32.
static inline void params_from_master(floatX *params, const float *master, int64_t n, int64_t first_index, uint64_t key,
                                      bool stochastic, cudaStream_t stream, int block_size = ADAMW_BLOCK) {
    TensorGroups groups = tensor_groups(params, &master, 1, n, first_index);
    cuda_require(n >= 0 && first_index >= 0);
    cuda_require(block_size > 0 && block_size <= ADAMW_BLOCK);
    if (n == 0) { return; }
    params_from_master_kernel<<<blocks_for(n + groups.lead, (int64_t)ADAMW_GROUP * block_size), block_size, 0,
                                stream>>>(params, master, groups, key, stochastic);
    cuda_check_launch("params_from_master_kernel");
}

#endif // LLMC_ADAMW_CUH
