// AdamW (Loshchilov, Hutter 2019), one pass over weights, gradients and both moments. Update number t:
//   g = grad_scale grad
//   m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2
//   w -= lr * (m / (1-beta1^t) / (sqrt(v / (1-beta2^t)) + epsilon) + weight_decay * w)
// w is the fp32 master copy if there is one, else the parameter itself. A bf16 parameter is w rounded up or down at
// random, with probabilities that make the mean exact. Without a master copy, rounding to nearest would lose every step
// that is smaller than half the distance to the next bf16 (1/256 of the weight). Late in a run nearly all are.
//
// The moments may be bf16, too: they are rounded at random for the same reason.
//
// The random bits are a function of (seed, update, index of the element in the whole model). The code writes every
// fused multiply-add as fmaf, so that an element's bits do not depend on the compiler's choices. So a caller may update
// a tensor whole, or in shards that are cut anywhere.
#ifndef LLMC_ADAMW_CUH
#define LLMC_ADAMW_CUH

#include <type_traits>

#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/optim/global_norm.cuh"

// ---- The formula ----

// Holds the numbers of one update.
typedef struct {
    float lr, beta1, beta2, epsilon;
    float weight_decay;             // of elements that decay
    float correction1, correction2; // 1 / (1-beta^t)
    uint64_t key;                   // of the random bits: rounding_key(seed, t)
} AdamWFactors;

static inline AdamWFactors adamw_factors(float lr, float beta1, float beta2, float epsilon, float weight_decay,
                                         int64_t t, uint64_t key) {
    cuda_require(t >= 1);
    AdamWFactors f = {lr, beta1, beta2, epsilon, weight_decay, 0.0f, 0.0f, key};
    f.correction1 = (float)(1.0 / (1.0 - pow((double)beta1, (double)t)));
    f.correction2 = (float)(1.0 / (1.0 - pow((double)beta2, (double)t)));
    return f;
}

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

// ---- A walk over elements ----

#define UPDATE_BLOCK 256 // threads of a block at most; with more threads each would have too few registers

// A part of a bucket: n neighbouring elements at any address. An array that a rule does not use is NULL.
struct UpdatePart {
    floatX *params;
    float *master, *m, *v; // master: NULL if there is no master copy
    const float *grads;
    floatX *update; // Muon's (llmc/optim/muon.cuh)
    int64_t n;
    int64_t decayed;                 // the first `decayed` elements have weight decay
    int64_t first_index;             // of element 0, in the whole model
    int64_t width = 0, stride = 0;   // of a strip (strip_place); 0: the elements are neighbours in the model
    floatX *m16 = NULL, *v16 = NULL; // instead of m and v, with --moments bf16
};

// A rank may have a strip of a matrix, all its rows but only `width` of its `stride` columns. Returns the place of
// element i + k of the strip in the matrix, counted from element 0. k <= width, so that a group takes one division.
__device__ __forceinline__ int64_t strip_place(int64_t i, int k, int64_t width, int64_t stride) {
    int64_t row = i / width, column = i - row * width + k;
    return row * stride + (column < width ? column : column - width + stride);
}

// A thread works on a group of 4 neighbouring elements: 16 bytes of each fp32 array, 8 of bf16. So the threads of a
// warp access neighbouring bytes. With groups of 8 (16 bytes of bf16, twice 16 of fp32) they would not, and nothing
// would be gained. Element i is in group (i + lead) / 4. With lead > 0 the part begins inside a group.
#define UPDATE_GROUP 4

// Returns the number of elements from the last aligned group before a pointer to the pointer. if_null: for NULL.
template <class T> static inline int group_lead(const T *pointer, int if_null) {
    if (pointer == NULL) { return if_null; }
    return (int)((uintptr_t)pointer % (UPDATE_GROUP * sizeof(T)) / sizeof(T));
}

// ---- Groups: N values in one access, or one value ----

template <int BYTES> struct GroupWord;
template <> struct GroupWord<16> { typedef int4 Type; };
template <> struct GroupWord<8> { typedef int2 Type; };
template <> struct GroupWord<4> { typedef int Type; };
template <> struct GroupWord<2> { typedef short Type; };

template <int N, class T> __device__ __forceinline__ void load_group(float (&x)[N], const T *address) {
    typedef typename GroupWord<N * sizeof(T)>::Type Word;
    struct {
        T values[N];
    } group;
    Word word = __ldcs(reinterpret_cast<const Word *>(address));
    memcpy(&group, &word, sizeof(word));
#pragma unroll
    for (int k = 0; k < N; k++) { x[k] = to_float(group.values[k]); }
}

// STREAMING: for the optimizer's state, because nothing reads it again in this step. The parameters are read again.
template <bool STREAMING, int N, class T> __device__ __forceinline__ void store_group(T *address, const T (&x)[N]) {
    typedef typename GroupWord<N * sizeof(T)>::Type Word;
    Word word;
    memcpy(&word, x, sizeof(word));
    if (STREAMING) {
        __stcs(reinterpret_cast<Word *>(address), word);
    } else {
        *reinterpret_cast<Word *>(address) = word;
    }
}

// Loads N weights from begin on: the master copy if there is one, else the parameters.
template <bool WITH_MASTER, int N>
__device__ __forceinline__ void load_weights(float (&w)[N], const UpdatePart &a, int64_t begin) {
    if (WITH_MASTER) {
        load_group(w, a.master + begin);
    } else {
        load_group(w, a.params + begin);
    }
}

// Stores N new values from begin on of an array of a part, rounded at random if they are floatX.
template <bool STREAMING, bool STRIP, int N, class T>
__device__ __forceinline__ void store_rounded(T *array, const float (&x)[N], const UpdatePart &a, int64_t begin,
                                              uint64_t key) {
    T rounded[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        int64_t place = STRIP ? strip_place(begin, k, a.width, a.stride) : begin + k;
        round_stochastically(&rounded[k], x[k], rounding_bits(key, (uint64_t)(a.first_index + place)));
    }
    store_group<STREAMING>(array + begin, rounded);
}
#define KEY_M 1 // what is added to the key of the parameters' random bits
#define KEY_V 2

// The moments of a part: fp32, or NARROW.
template <bool NARROW> struct Moments {
    typedef typename std::conditional<NARROW, floatX, float>::type Type;
    Type *m, *v;
    __device__ __forceinline__ Moments(const UpdatePart &a)
        : m(NARROW ? (Type *)a.m16 : (Type *)a.m), v(NARROW ? (Type *)a.v16 : (Type *)a.v) {}
};

// Stores N new weights from begin on, and the parameters that they round to.
template <bool WITH_MASTER, bool STRIP, int N>
__device__ __forceinline__ void store_weights(const UpdatePart &a, int64_t begin, const float (&w)[N], uint64_t key) {
    if (WITH_MASTER) { store_group<true>(a.master + begin, w); }
    store_rounded<false, STRIP>(a.params, w, a, begin, key);
}

// A thread works on one group by the rule's `group`. If the group is not whole or not aligned, it works on one element
// after the other. STRIP: the part is one. Other parts need fewer registers.
template <class Rule, bool STRIP>
static __global__ void __launch_bounds__(UPDATE_BLOCK)
    update_elements_kernel(UpdatePart a, int lead, bool vectors, Rule rule, const StepResult *result) {
    const bool stopped = result->stopped != STEP_GOES_ON;
    const float grad_scale = result->grad_scale;
    int64_t begin = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * UPDATE_GROUP - lead;
    if (vectors && begin >= 0 && begin + UPDATE_GROUP <= a.n) {
        rule.template group<UPDATE_GROUP, STRIP>(a, begin, stopped, grad_scale);
        return;
    }
    int64_t end = min(begin + UPDATE_GROUP, a.n);
#pragma unroll 1
    for (int64_t i = max(begin, (int64_t)0); i < end; i++) { rule.template group<1, STRIP>(a, i, stopped, grad_scale); }
}

// Runs a rule over a part. It is fast if all arrays have one offset from a multiple of 4 elements. Slices [a,b) of
// whole arrays have it, and so do shards that begin at a multiple of 4.
template <class Rule>
static inline void update_elements(const UpdatePart &part, const Rule &rule, const StepResult *result,
                                   cudaStream_t stream, int block_size) {
    int lead = group_lead(part.params, 0);
    bool vectors = true;
    for (const floatX *other : {part.update, part.m16, part.v16}) { vectors &= group_lead(other, lead) == lead; }
    for (const float *other : {(const float *)part.master, (const float *)part.m, (const float *)part.v, part.grads}) {
        vectors &= group_lead(other, lead) == lead; // false if a shard's parameters and state are cut differently
    }
    block_size = block_for(part.n / UPDATE_GROUP + 2, block_size);
    int64_t blocks = ceil_div_i64(part.n + lead, (int64_t)UPDATE_GROUP * block_size);
    cuda_require(block_size > 0 && block_size <= UPDATE_BLOCK && blocks <= INT32_MAX);
    cuda_require(part.n >= 0 && part.first_index >= 0);
    cuda_require(part.width == 0 || (part.width >= UPDATE_GROUP && part.stride >= part.width));
    if (part.n == 0) { return; }
    auto kernel = part.width > 0 ? update_elements_kernel<Rule, true> : update_elements_kernel<Rule, false>;
    kernel<<<(unsigned)blocks, block_size, 0, stream>>>(part, lead, vectors, rule, result);
    cuda_check_launch("update_elements_kernel");
}

// ---- AdamW's rule ----

template <bool WITH_MASTER, bool NARROW> struct AdamWRule {
    AdamWFactors f;

    // Elements begin..begin+N-1 with one access to each array.
    template <int N, bool STRIP>
    __device__ __forceinline__ void group(const UpdatePart &a, int64_t begin, bool stopped, float grad_scale) const {
        float g[N], mk[N], vk[N], w[N];
        if (stopped) { return; }
        load_group(g, a.grads + begin);
        Moments<NARROW> moments(a);
        load_group(mk, moments.m + begin);
        load_group(vk, moments.v + begin);
        load_weights<WITH_MASTER>(w, a, begin);
#pragma unroll
        for (int k = 0; k < N; k++) {
            float decay = begin + k < a.decayed ? f.weight_decay : 0.0f;
            adamw_element(&w[k], &mk[k], &vk[k], g[k], grad_scale, decay, f);
        }
        store_rounded<true, STRIP>(moments.m, mk, a, begin, f.key + KEY_M);
        store_rounded<true, STRIP>(moments.v, vk, a, begin, f.key + KEY_V);
        store_weights<WITH_MASTER, STRIP>(a, begin, w, f.key);
    }
};

// Updates a part in place: params, m, v and, if there is a master copy, master. grads are read only. result is in
// device memory. The kernel multiplies gradients by result->grad_scale. It changes nothing if result->stopped is set.
// Bytes moved for each parameter in bf16: 30 (reads grad, m, v, master: 16; writes m, v, master, params: 14), or 24
// without a master copy (reads 14, writes 10), and 8 less with moments in bf16. In fp32 without a master copy: 28
// (reads 16, writes 12). Deterministic, and independent of the block size, because no element depends on another.
static inline void adamw_update(const UpdatePart &part, const AdamWFactors &factors, const StepResult *result,
                                cudaStream_t stream, int block_size = UPDATE_BLOCK) {
    auto with = [&](auto rule) { update_elements(part, rule, result, stream, block_size); };
    bool narrow = part.m16 != NULL;
    if (part.master != NULL) {
        return narrow ? with(AdamWRule<true, true>{factors}) : with(AdamWRule<true, false>{factors});
    }
    narrow ? with(AdamWRule<false, true>{factors}) : with(AdamWRule<false, false>{factors});
}

// ---- Parameters from their master copy ----

// Each thread takes one parameter. This runs at a start, not in a step.
static __global__ void __launch_bounds__(UPDATE_BLOCK)
    params_from_master_kernel(floatX *params, const float *master, int64_t n, int64_t first_index, uint64_t key,
                              bool stochastic, int64_t width, int64_t stride) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) { return; }
    int64_t index = first_index + (width > 0 ? strip_place(i, 0, width, stride) : i);
    params[i] = stochastic ? round_parameter(master[i], key, index) : from_float<floatX>(master[i]);
}

// params = master, rounded to nearest, or with `stochastic` at random. With the key of the last update, `stochastic`
// gives the bits that adamw_update left, so that a resumed run goes on as if it had not ended. Any n and any addresses
// are allowed. width and stride are those of an UpdatePart. Moves 6 bytes a parameter in bf16, 8 in fp32.
static inline void params_from_master(floatX *params, const float *master, int64_t n, int64_t first_index, uint64_t key,
                                      bool stochastic, cudaStream_t stream, int block_size = UPDATE_BLOCK,
                                      int64_t width = 0, int64_t stride = 0) {
    cuda_require(width >= 0 && stride >= width);
    cuda_require(n >= 0 && first_index >= 0 && ceil_div_i64(n, block_size) <= INT32_MAX);
    if (n == 0) { return; }
    params_from_master_kernel<<<blocks_for(n, block_size), block_size, 0, stream>>>(params, master, n, first_index, key,
                                                                                    stochastic, width, stride);
    cuda_check_launch("params_from_master_kernel");
}

#endif // LLMC_ADAMW_CUH
