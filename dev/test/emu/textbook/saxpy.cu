// y = a x + y with the block size that the occupancy calculator proposes, timed with events.
#include "textbook.h"

__global__ void saxpy(int n, float a, const float *__restrict__ x, float *__restrict__ y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { y[i] = __fmaf_rn(a, __ldg(&x[i]), y[i]); }
}

int main() {
    const int n = 20000;
    int min_grid, block, fit;
    float milliseconds = -1.0f;
    cudaDeviceProp device;
    cudaFuncAttributes attributes;
    cudaEvent_t start, stop;
    must(cudaGetDeviceProperties(&device, 0));
    must(cudaFuncGetAttributes(&attributes, saxpy));
    must(cudaOccupancyMaxPotentialBlockSize(&min_grid, &block, saxpy));
    must(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, saxpy, block, 0));
    if (block % device.warpSize != 0 || block > attributes.maxThreadsPerBlock || fit < 1) {
        printf("a block of %d threads, %d fit\n", block, fit);
        return 1;
    }
    std::vector<float> x = some_numbers(n, 1), y = some_numbers(n, 2);
    float *dx = on_device(x), *dy = on_device(y);
    must(cudaEventCreate(&start));
    must(cudaEventCreate(&stop));
    must(cudaEventRecord(start));
    saxpy<<<(n + block - 1) / block, block>>>(n, 2.0f, dx, dy);
    must(cudaEventRecord(stop));
    must(cudaEventSynchronize(stop));
    must(cudaEventElapsedTime(&milliseconds, start, stop));
    if (!(milliseconds >= 0.0f)) {
        printf("%g ms\n", milliseconds);
        return 1;
    }
    std::vector<float> got = on_host(dy, n);
    for (int i = 0; i < n; i++) { compare("saxpy", i, got[i], 2.0 * x[i] + y[i], 1e-6); }
    must(cudaDeviceReset());
    return 0;
}
