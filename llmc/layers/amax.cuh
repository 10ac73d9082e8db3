// Computes amax, the largest magnitude of a tensor, in the kernel that writes the tensor or in a kernel that reads it.
//
// An amax is the bits of |x|. As integers these bits order like the numbers, with infinity above all numbers and NaNs
// above infinity. So a NaN stays, while fmaxf drops it. A maximum does not depend on the order of its parts, so it is
// deterministic with atomics, too.
#ifndef LLMC_AMAX_CUH
#define LLMC_AMAX_CUH

#include "llmc/cuda/cuda_utils.cuh"

__device__ __forceinline__ uint32_t amax_of(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The larger of `amax` and |x|. The first amax is 0.
__device__ __forceinline__ uint32_t amax_join(uint32_t amax, float x) { return max(amax, amax_of(x)); }

template <class T> __device__ __forceinline__ uint32_t amax_join(uint32_t amax, Packed128<T> packed) {
    for (int i = 0; i < Packed128<T>::size; i++) { amax = amax_join(amax, to_float(packed[i])); }
    return amax;
}

// The largest amax of the 32 lanes of a warp. Every lane gets it.
__device__ __forceinline__ uint32_t warp_amax(uint32_t amax) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
        amax = max(amax, __shfl_xor_sync(FULL_WARP, amax, offset));
    }
    return amax;
}

// *total = max(*total, amax of the block), with one atomic per block. total NULL: does nothing. A block has whole warps
// in up to two dimensions, and all its threads must call it. The tensor is of floatX. The values may be the values
// before rounding, because rounding keeps their order.
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

#endif // LLMC_AMAX_CUH
