// A sum with warp shuffles: warps into shared memory, the first warp over the warps, blocks with an atomic.
#include "textbook.h"

__device__ float sum_of_warp(float x) {
    for (int offset = warpSize / 2; offset > 0; offset /= 2) { x += __shfl_down_sync(0xffffffff, x, offset); }
    return x;
}

__global__ void sum(const float *in, double *out, int n) {
    __shared__ float warps[32];
    int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    float x = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) { x += in[i]; }
    x = sum_of_warp(x);
    if (lane == 0) { warps[warp] = x; }
    __syncthreads();
    if (warp == 0) {
        x = sum_of_warp(lane < int(blockDim.x / warpSize) ? warps[lane] : 0.0f);
        if (lane == 0) { atomicAdd(out, double(x)); }
    }
}

int main() {
    const int n = 12345;
    std::vector<float> x = some_numbers(n);
    double want = 0.0, *out;
    for (float value : x) { want += value; }
    must(cudaMalloc(&out, sizeof(double)));
    must(cudaMemset(out, 0, sizeof(double)));
    sum<<<6, 256>>>(on_device(x), out, n);
    compare("sum", 0, on_host(out, 1)[0], want, 1e-5);
    return 0;
}
