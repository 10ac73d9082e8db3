// What kernels share: 128-bit loads and stores, conversions, sums over warps and blocks, stochastic rounding.
#ifndef LLMC_CUDA_UTILS_CUH
#define LLMC_CUDA_UTILS_CUH

#include "llmc/cuda/cuda_common.h"
#include "llmc/base/rand.h"

#define WARP_SIZE 32
#define MAX_BLOCK 1024 // threads
#define FULL_WARP 0xffffffffu

// ---- Conversions: all arithmetic is done in float ----

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounds to nearest even: from_float<floatX>(x).
template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

// ---- 128 bits at a time ----

// 16 bytes of T, the widest access of a thread; addresses are multiples of 16 bytes.
template <class T> struct alignas(16) Packed128 {
    static constexpr int size = 16 / (int)sizeof(T);
    T values[size];

    __device__ __forceinline__ T &operator[](int i) { return values[i]; }
    __device__ __forceinline__ const T &operator[](int i) const { return values[i]; }
};

typedef Packed128<floatX> x128; // 8 bf16 or 4 float
typedef Packed128<float> f128;  // 4 float

template <class T> __device__ __forceinline__ Packed128<T> packed_from_bits(int4 bits) {
    Packed128<T> packed;
    memcpy(&packed, &bits, sizeof(bits));
    return packed;
}

template <class T> __device__ __forceinline__ int4 packed_bits(Packed128<T> packed) {
    int4 bits;
    memcpy(&bits, &packed, sizeof(bits));
    return bits;
}

template <class T> __device__ __forceinline__ Packed128<T> load128(const T *address) {
    return packed_from_bits<T>(*reinterpret_cast<const int4 *>(address));
}
template <class T> __device__ __forceinline__ void store128(T *address, Packed128<T> packed) {
    *reinterpret_cast<int4 *>(address) = packed_bits(packed);
}

// Streaming: the data will not be used again soon and need not push other data out of the caches.
template <class T> __device__ __forceinline__ Packed128<T> load128_streaming(const T *address) {
    return packed_from_bits<T>(__ldcs(reinterpret_cast<const int4 *>(address)));
}
template <class T> __device__ __forceinline__ void store128_streaming(T *address, Packed128<T> packed) {
    __stcs(reinterpret_cast<int4 *>(address), packed_bits(packed));
}

template <class T> __device__ __forceinline__ Packed128<T> packed_zeros() {
    return packed_from_bits<T>(make_int4(0, 0, 0, 0));
}

// ---- Sums and maxima in a fixed order ----

// Over the 32 lanes of a warp; every lane gets the same bits.
__device__ __forceinline__ float warp_sum(float x) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { x += __shfl_xor_sync(FULL_WARP, x, offset); }
    return x;
}
__device__ __forceinline__ double warp_sum(double x) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { x += __shfl_xor_sync(FULL_WARP, x, offset); }
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, offset)); }
    return x;
}

// Over a one-dimensional block of whole warps; every thread gets the same bits. partial: shared memory for one value a
// warp (32 are always enough), free to be used again when the function returns.
template <class T> __device__ __forceinline__ T block_sum(T x, T *partial) {
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, warps = blockDim.x / WARP_SIZE;
    x = warp_sum(x);
    if (lane == 0) { partial[warp] = x; }
    __syncthreads();
    x = warp_sum(lane < warps ? partial[lane] : T(0));
    __syncthreads();
    return x;
}
__device__ __forceinline__ float block_max(float x, float *partial) {
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, warps = blockDim.x / WARP_SIZE;
    x = warp_max(x);
    if (lane == 0) { partial[warp] = x; }
    __syncthreads();
    x = warp_max(lane < warps ? partial[lane] : -INFINITY);
    __syncthreads();
    return x;
}

// ---- Stochastic rounding ----

// A key for one use of randomness, drawn on the host; a kernel turns (key, index of the element) into 32 random bits.
// No rank, device or thread takes part, so that all replicas round alike.
static inline uint64_t rounding_key(uint64_t seed, int64_t update) {
    return rand_u64(seed, RAND_ROUNDING, (uint64_t)update);
}
__host__ __device__ __forceinline__ uint32_t rounding_bits(uint64_t key, uint64_t index) {
    return (uint32_t)(rand_mix(key + (index + 1) * RAND_GOLDEN) >> 32);
}

// Rounds up or down at random, with probabilities that make the mean exact: adds 16 random bits below those that stay.
// A float that bf16 holds exactly stays what it is; infinities and NaN too.
__device__ __forceinline__ void round_stochastically(__nv_bfloat16 *out, float x, uint32_t random) {
    uint32_t bits = __float_as_uint(x);
    bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    if (finite) { bits += random & 0xffffu; }
    *out = finite ? __float2bfloat16_rz(__uint_as_float(bits)) : __float2bfloat16_rn(x);
}
__device__ __forceinline__ void round_stochastically(float *out, float x, uint32_t random) {
    (void)random;
    *out = x;
}

// A kernel that takes more than 48 KiB of shared memory has to say so. Its static shared memory, 4 KiB at most, counts.
template <class Kernel> static inline void allow_dynamic_shared(Kernel *kernel, size_t bytes) {
    if (bytes > 44 * 1024) {
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    }
}

// Blocks to cover n elements.
static inline unsigned blocks_for(int64_t n, int64_t per_block) { return (unsigned)ceil_div_i64(n, per_block); }

#endif // LLMC_CUDA_UTILS_CUH
