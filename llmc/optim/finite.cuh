// Finds NaN and infinities on the GPU, to say where they began when a loss or a gradient is not finite.
#ifndef LLMC_FINITE_CUH
#define LLMC_FINITE_CUH

#include "llmc/cuda/cuda_utils.cuh"

// *found = 1 if any of the n values is not finite. Every thread that writes *found writes 1.
template <class T> __global__ void any_nonfinite_kernel(int32_t *found, const T *data, int64_t n) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        if (!isfinite(to_float(data[i]))) { atomicExch(found, 1); }
    }
}

// Is any of the n values not finite? Waits for the GPU's answer. flag: one int32 of device memory.
template <class T> static inline bool any_nonfinite(const T *data, int64_t n, int32_t *flag, cudaStream_t stream) {
    const int block_size = 256, blocks = (int)min_i64(1024, ceil_div_i64(max_i64(n, 1), block_size));
    int32_t found = 0;
    cuda_check(cudaMemsetAsync(flag, 0, sizeof(*flag), stream));
    any_nonfinite_kernel<T><<<blocks, block_size, 0, stream>>>(flag, data, n);
    cuda_check_launch("any_nonfinite_kernel");
    cuda_check(cudaMemcpyAsync(&found, flag, sizeof(found), cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    return found != 0;
}

#endif // LLMC_FINITE_CUH
