// A checksum of GPU memory that several GPUs compare, to see that what they should hold alike is alike.
//   sum over i of mix(word i, i)  mod 2^64
// Whole numbers may be added in any order. It is not kept in files, so that nothing but this header knows the formula.
#ifndef LLMC_CHECKSUM_CUH
#define LLMC_CHECKSUM_CUH

#include "llmc/cuda/cuda_utils.cuh"

#define CHECKSUM_BLOCK 256

// The finalizer of MurmurHash3 (Appleby, public domain): each bit of the input changes each of the output in half of
// all cases, so that words that are changed, swapped or cleared are seen but for one case in 2^64.
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
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { mine += __shfl_xor_sync(FULL_WARP, mine, offset); }
    if (threadIdx.x % WARP_SIZE == 0) { atomicAdd(sum, mine); }
}

// Adds the checksum of `bytes` bytes (a multiple of 4, aligned to 4) to *sum, in device memory. Deterministic: the sum
// is of whole numbers. Reads each byte once.
static inline void add_checksum(uint64_t *sum, const void *data, int64_t bytes, cudaStream_t stream) {
    int64_t n = bytes / 4;
    cuda_require(bytes % 4 == 0 && (uintptr_t)data % 4 == 0);
    if (n == 0) { return; }
    add_checksum_kernel<<<(unsigned)min_i64(1024, ceil_div_i64(n, CHECKSUM_BLOCK)), CHECKSUM_BLOCK, 0, stream>>>(
        (unsigned long long *)sum, (const uint32_t *)data, n);
    cuda_check_launch("add_checksum_kernel");
}

#endif // LLMC_CHECKSUM_CUH
