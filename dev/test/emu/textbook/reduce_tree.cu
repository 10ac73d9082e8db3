// A sum: a tree in shared memory for each block, then one block over the partial sums.
#include "textbook.h"

__global__ void sum_blocks(const float *in, float *out, int n) {
    extern __shared__ float part[];
    unsigned t = threadIdx.x;
    int i = blockIdx.x * blockDim.x * 2 + t;
    part[t] = (i < n ? in[i] : 0.0f) + (i + int(blockDim.x) < n ? in[i + blockDim.x] : 0.0f);
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) { part[t] += part[t + half]; }
        __syncthreads();
    }
    if (t == 0) { out[blockIdx.x] = part[0]; }
}

int main() {
    const int n = 10007, block = 128, blocks = (n + 2 * block - 1) / (2 * block);
    std::vector<float> x = some_numbers(n);
    double want = 0.0;
    for (float value : x) { want += value; }
    float *in = on_device(x), *parts, *sum;
    must(cudaMalloc(&parts, blocks * sizeof(float)));
    must(cudaMalloc(&sum, sizeof(float)));
    sum_blocks<<<blocks, block, block * sizeof(float)>>>(in, parts, n);
    sum_blocks<<<1, block, block * sizeof(float)>>>(parts, sum, blocks);
    compare("sum", 0, on_host(sum, 1)[0], want, 1e-4);
    return 0;
}
