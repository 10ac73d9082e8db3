// A sum in one launch: every block writes its part, and the last block to arrive adds up the parts. In managed memory.
#include <math.h>
#include <stdio.h>

__device__ unsigned arrived = 0;

__device__ float sum_of_block(float x) {
    __shared__ float part[128];
    part[threadIdx.x] = x;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    return part[0];
}

__global__ void sum(const float *in, int n, volatile float *parts, float *out) {
    __shared__ bool is_last;
    float x = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) x += in[i];
    x = sum_of_block(x);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = x;
        __threadfence(); // the part is there before the count says so
        is_last = atomicInc(&arrived, gridDim.x) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    x = sum_of_block(threadIdx.x < gridDim.x ? parts[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) {
        *out = x;
        arrived = 0; // for the next launch
    }
}

int main() {
    const int n = 9001, blocks = 20;
    float *in, *parts, *out;
    double want = 0.0;
    int wrong = 0;
    cudaMallocManaged(&in, n * sizeof(float));
    cudaMallocManaged(&parts, blocks * sizeof(float));
    cudaMallocManaged(&out, sizeof(float));
    for (int i = 0; i < n; i++) want += in[i] = i * 7 % 13 - 5.5f;
    for (int run = 0; run < 2; run++) {
        sum<<<blocks, 128>>>(in, n, parts, out);
        if (cudaDeviceSynchronize() != cudaSuccess) return 1;
        wrong += !(fabs(*out - want) <= 1e-5 * fabs(want));
    }
    puts(wrong ? "FAILED" : "ok");
    return wrong;
}
