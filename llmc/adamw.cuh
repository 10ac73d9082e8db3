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

#include "cuda_utils.cuh"
#include "global_norm.cuh"

#define ADAMW_BLOCK 256 // threads, at most: more would leave each too few registers

// What all tensors of an update have in common.
typedef struct {
    float lr, beta1, beta2, epsilon;
    int64_t update; // number of this update, from 1
    uint64_t key;   // rounding_key(seed, update)
} AdamWStep;

// The same as a kernel wants it.
typedef struct {
    float lr, beta1, beta2, epsilon, weight_decay;
    float correction1, correction2; // 1 / (1-beta^t)
    uint64_t key;
} AdamWFactors;

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

// The first element of this thread's group: -lead..n-1, or beyond for threads without work.
__device__ __forceinline__ int64_t group_begin(const TensorGroups &groups) {
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * ADAMW_GROUP - groups.lead;
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
                                              const AdamWFactors &f) {
    float g = grad_scale * grad;
    *m = fmaf(f.beta1, *m, (1.0f - f.beta1) * g);
    *v = fmaf(f.beta2, *v, (1.0f - f.beta2) * g * g);
    float direction = f.correction1 * *m / (sqrtf(f.correction2 * *v) + f.epsilon);
    *w = fmaf(-f.lr, fmaf(f.weight_decay, *w, direction), *w);
}

__device__ __forceinline__ floatX round_parameter(float w, uint64_t key, int64_t index) {
    floatX rounded;
    round_stochastically(&rounded, w, rounding_bits(key, (uint64_t)index));
    return rounded;
}

// Elements begin..begin+3 with one access to each array.
template <bool WITH_MASTER>
__device__ __forceinline__ void adamw_group(floatX *params, float *master, float *m, float *v, const float *grads,
                                            int64_t begin, int64_t index, const AdamWFactors &f, float grad_scale) {
    float g[ADAMW_GROUP], mk[ADAMW_GROUP], vk[ADAMW_GROUP], w[ADAMW_GROUP];
    floatX rounded[ADAMW_GROUP];
    load_group(g, grads + begin);
    load_group(mk, m + begin);
    load_group(vk, v + begin);
    if (WITH_MASTER) {
        load_group(w, master + begin);
    } else {
        load_group(w, params + begin);
    }
#pragma unroll
    for (int k = 0; k < ADAMW_GROUP; k++) {
        adamw_element(&w[k], &mk[k], &vk[k], g[k], grad_scale, f);
        rounded[k] = round_parameter(w[k], f.key, index + k);
    }
    store_group_streaming(m + begin, mk);
    store_group_streaming(v + begin, vk);
    if (WITH_MASTER) { store_group_streaming(master + begin, w); }
    store_group(params + begin, rounded);
}

// One thread a group; where it is not whole or not aligned, one element after the other.
template <bool WITH_MASTER>
static __global__ void __launch_bounds__(ADAMW_BLOCK)
    adamw_update_kernel(floatX *params, float *master, float *m, float *v, const float *grads, TensorGroups groups,
                        AdamWFactors f, const StepResult *result) {
    if (result->stopped != STEP_GOES_ON) { return; }
    float grad_scale = result->grad_scale;
    int64_t begin = group_begin(groups);
    if (group_is_whole(groups, begin)) {
        adamw_group<WITH_MASTER>(params, master, m, v, grads, begin, groups.first_index + begin, f, grad_scale);
        return;
    }
    int64_t end = min(begin + ADAMW_GROUP, groups.n);
#pragma unroll 1
    for (int64_t i = max(begin, (int64_t)0); i < end; i++) {
        float w = WITH_MASTER ? master[i] : to_float(params[i]);
        adamw_element(&w, &m[i], &v[i], grads[i], grad_scale, f);
        if (WITH_MASTER) { master[i] = w; }
        params[i] = round_parameter(w, f.key, groups.first_index + i);
    }
}

static inline AdamWFactors adamw_factors(const AdamWStep *step, float weight_decay) {
    AdamWFactors f;
    f.lr = step->lr, f.beta1 = step->beta1, f.beta2 = step->beta2, f.epsilon = step->epsilon;
    f.weight_decay = weight_decay, f.key = step->key;
    f.correction1 = (float)(1.0 / (1.0 - pow((double)step->beta1, (double)step->update)));
    f.correction2 = (float)(1.0 / (1.0 - pow((double)step->beta2, (double)step->update)));
    return f;
}

// Updates n elements of a tensor, or of a shard of it, in place: params, m, v and, where there is a master copy (not
// NULL), master. grads are read only. first_index: the place of element 0 in the whole model. result (device memory):
// gradients are multiplied by its grad_scale; if it says stopped, nothing is touched.
// Any n and any addresses will do; it is fast where all arrays are aligned alike to 4 elements, as they are when they
// are slices [a,b) of whole arrays or shards that begin at a multiple of 4.
// Moves, for each parameter, in bf16: 30 bytes (reads grad, m, v, master: 16; writes m, v, master, params: 14), without
// a master copy 24 (reads 14, writes 10); in fp32 without one 28 (16 and 12).
// Deterministic, and independent of the block size: no element depends on another.
static inline void adamw_update(floatX *params, float *master, float *m, float *v, const float *grads, int64_t n,
                                int64_t first_index, float weight_decay, const AdamWStep *step,
                                const StepResult *result, cudaStream_t stream, int block_size = ADAMW_BLOCK) {
    const float *others[] = {master, m, v, grads};
    TensorGroups groups = tensor_groups(params, others, 4, n, first_index);
    AdamWFactors f = adamw_factors(step, weight_decay);
    cuda_require(n >= 0 && first_index >= 0);
    cuda_require(step->update >= 1);
    cuda_require(block_size > 0 && block_size <= ADAMW_BLOCK);
    unsigned blocks = blocks_for(n + groups.lead, (int64_t)ADAMW_GROUP * block_size);
    if (n == 0) { return; }
    if (master != NULL) {
        adamw_update_kernel<true><<<blocks, block_size, 0, stream>>>(params, master, m, v, grads, groups, f, result);
    } else {
        adamw_update_kernel<false><<<blocks, block_size, 0, stream>>>(params, master, m, v, grads, groups, f, result);
    }
    cuda_check_launch("adamw_update_kernel");
}

// ---- Parameters from their master copy ----

__device__ __forceinline__ floatX parameter_from_master(float w, int64_t index, uint64_t key, bool stochastic) {
    return stochastic ? round_parameter(w, key, index) : from_float<floatX>(w);
}

static __global__ void __launch_bounds__(ADAMW_BLOCK)
    params_from_master_kernel(floatX *params, const float *master, TensorGroups groups, uint64_t key, bool stochastic) {
    int64_t begin = group_begin(groups), index = groups.first_index;
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
