// The largest magnitude of a tensor (amax). The kernel that writes the tensor takes it, or a kernel that reads it.
//
// An amax is the bits of |x|. As integers these order like the numbers, with infinity above all numbers and NaNs above
// infinity. So a NaN is not lost on the way, as it is in fmaxf. A maximum does not depend on the order of its parts:
// with atomics, too, it is deterministic.
#ifndef LLMC_AMAX_CUH
#define LLMC_AMAX_CUH

#include "llmc/cuda/cuda_utils.cuh"

__device__ __forceinline__ uint32_t amax_of(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The larger of an amax so far and |x|; begin with 0.
__device__ __forceinline__ uint32_t amax_join(uint32_t amax, float x) { return max(amax, amax_of(x)); }

template <class T> __device__ __forceinline__ uint32_t amax_join(uint32_t amax, Packed128<T> packed) {
    for (int i = 0; i < Packed128<T>::size; i++) { amax = amax_join(amax, to_float(packed[i])); }
    return amax;
}

// Over the 32 lanes of a warp; every lane gets it.
__device__ __forceinline__ uint32_t warp_amax(uint32_t amax) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
        amax = max(amax, __shfl_xor_sync(FULL_WARP, amax, offset));
    }
    return amax;
}

// *total = max(*total, amax of the block), at the end of a kernel: one atomic a block. For a block of whole warps in up
// to two dimensions; all threads come here. total NULL: nothing. The tensor is of floatX, and the values may come as
// they were before rounding, which keeps their order.
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
