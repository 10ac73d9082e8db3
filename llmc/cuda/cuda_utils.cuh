// Device code that kernels share: 128-bit loads and stores, conversions, sums over warps and blocks, amax,
// stochastic rounding, checksums.
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

// The data is not used again soon, so it does not push other data out of the caches.
template <class T> __device__ __forceinline__ Packed128<T> load128_streaming(const T *address) {
    return packed_from_bits<T>(__ldcs(reinterpret_cast<const int4 *>(address)));
}

template <class T> __device__ __forceinline__ Packed128<T> packed_zeros() {
    return packed_from_bits<T>(make_int4(0, 0, 0, 0));
}

// ---- Sums and maxima in a fixed order ----

// Over the 32 lanes of a warp; every lane gets equal bits.
template <class T> __device__ __forceinline__ T warp_sum(T x) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { x += __shfl_xor_sync(FULL_WARP, x, offset); }
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, offset)); }
    return x;
}

// Over a one-dimensional block of whole warps; every thread gets equal bits. partial: shared memory for one value a
// warp (32 are always enough). It may be used again when the function returns.
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

// ---- amax: the largest magnitude of a tensor ----
//
// A kernel that writes or reads the tensor takes it. An amax is the bits of |x|. As integers these bits order like the
// numbers, with infinity above all numbers and NaNs above infinity. So a NaN stays, while fmaxf drops it. A maximum
// does not depend on the order of its parts, so it is deterministic with atomics, too.

__device__ __forceinline__ uint32_t amax_of(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Returns the larger of `amax` and |x|. The first amax is 0.
__device__ __forceinline__ uint32_t amax_join(uint32_t amax, float x) { return max(amax, amax_of(x)); }

template <class T> __device__ __forceinline__ uint32_t amax_join(uint32_t amax, Packed128<T> packed) {
    for (int i = 0; i < Packed128<T>::size; i++) { amax = amax_join(amax, to_float(packed[i])); }
    return amax;
}

// Returns the largest amax of the 32 lanes of a warp. Every lane gets it.
__device__ __forceinline__ uint32_t warp_amax(uint32_t amax) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
        amax = max(amax, __shfl_xor_sync(FULL_WARP, amax, offset));
    }
    return amax;
}

// *total = max(*total, amax of the block), with one atomic. NULL: does nothing. A block has whole warps in up to two
// dimensions, and all its threads must call it. Values may be those before rounding to floatX: that keeps their order.
__device__ __forceinline__ void amax_add_rounded(uint32_t *total, uint32_t amax) {
    __shared__ uint32_t of_warp[WARP_SIZE];
    if (total == NULL) { return; }
    int thread = threadIdx.y * blockDim.x + threadIdx.x, warps = blockDim.x * blockDim.y / WARP_SIZE;
    amax = warp_amax(amax);
    if (thread % WARP_SIZE == 0) { of_warp[thread / WARP_SIZE] = amax; }
    __syncthreads();
    if (thread > 0) { return; }
    for (int w = 1; w < warps; w++) { amax = max(amax, of_warp[w]); }
    atomicMax(total, amax_of(to_float(from_float<floatX>(__uint_as_float(amax)))));
}

// ---- Stochastic rounding ----

// A key for one use of randomness, drawn on the host. A kernel turns (key, index of the element) into 32 random bits.
// They depend on no rank, device or thread, so all replicas round alike.
static inline uint64_t rounding_key(uint64_t seed, int64_t update) {
    return rand_u64(seed, RAND_ROUNDING, (uint64_t)update);
}
__host__ __device__ __forceinline__ uint32_t rounding_bits(uint64_t key, uint64_t index) {
    return (uint32_t)(rand_mix(key + (index + 1) * RAND_GOLDEN) >> 32);
}

// Rounds up or down at random, with probabilities that make the mean exact: adds 16 random bits below the bits that
// stay. A float that bf16 holds exactly does not change, nor do infinities and NaN.
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

// ---- Launches ----

// Allows a kernel more than 48 KiB of shared memory. Its static shared memory, at most 4 KiB, counts.
template <class Kernel> static inline void allow_dynamic_shared(Kernel *kernel, size_t bytes) {
    if (bytes > 44 * 1024) {
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    }
}

// Blocks to cover n elements, and threads of a block that has n elements at most: whole warps.
static inline unsigned blocks_for(int64_t n, int64_t per_block) { return (unsigned)ceil_div_i64(n, per_block); }
static inline int block_for(int64_t n, int most) { return (int)min_i64(most, max_i64(1, round_up_i64(n, WARP_SIZE))); }

// ---- Checksums ----
//
// GPUs compare checksums to see that their copies are equal:  sum over i of mix(word i, i)  mod 2^64. Whole numbers may
// be added in any order, so the sum is deterministic. No file keeps it, so only this section knows the formula.

#define CHECKSUM_BLOCK 256

// Mixes as the finalizer of MurmurHash3 does (Appleby, public domain): each bit of the input changes each bit of the
// output in half of all cases. So a changed, swapped or cleared word escapes in one case of 2^64.
__device__ __forceinline__ uint64_t checksum_mix(uint32_t word, int64_t place) {
    uint64_t x = ((uint64_t)place << 32) + ((uint64_t)place >> 32) + word + 1;
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

static __global__ void __launch_bounds__(CHECKSUM_BLOCK)
    add_checksum_kernel(unsigned long long *sum, const uint32_t *words, int64_t n) {
    int64_t stride = (int64_t)gridDim.x * CHECKSUM_BLOCK;
    unsigned long long mine = 0;
    for (int64_t i = (int64_t)blockIdx.x * CHECKSUM_BLOCK + threadIdx.x; i < n; i += stride) {
        mine += checksum_mix(words[i], i);
    }
    mine = warp_sum(mine);
    if (threadIdx.x % WARP_SIZE == 0) { atomicAdd(sum, mine); }
}

// Adds the checksum of `bytes` bytes (a multiple of 4, aligned to 4) to *sum, in device memory. Reads each byte once.
static inline void add_checksum(uint64_t *sum, const void *data, int64_t bytes, cudaStream_t stream) {
    int64_t n = bytes / 4;
    cuda_require(bytes % 4 == 0 && (uintptr_t)data % 4 == 0);
    if (n == 0) { return; }
    add_checksum_kernel<<<(unsigned)min_i64(1024, ceil_div_i64(n, CHECKSUM_BLOCK)), CHECKSUM_BLOCK, 0, stream>>>(
        (unsigned long long *)sum, (const uint32_t *)data, n);
    cuda_check_launch("add_checksum_kernel");
}

#endif // LLMC_CUDA_UTILS_CUH
