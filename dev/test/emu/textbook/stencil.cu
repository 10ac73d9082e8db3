// A stencil of 2 RADIUS + 1 points: each block loads its points and a halo into shared memory.
#include "textbook.h"

#define RADIUS 3
#define BLOCK 64

__constant__ float weights[2 * RADIUS + 1];

__global__ void stencil(const float *in, float *out, int n) {
    __shared__ float points[BLOCK + 2 * RADIUS];
    int global = blockIdx.x * blockDim.x + threadIdx.x, local = threadIdx.x + RADIUS;
    points[local] = global < n ? in[global] : 0.0f;
    if (threadIdx.x < RADIUS) {
        int left = global - RADIUS, right = global + BLOCK;
        points[local - RADIUS] = left >= 0 ? in[left] : 0.0f;
        points[local + BLOCK] = right < n ? in[right] : 0.0f;
    }
    __syncthreads();
    if (global >= n) { return; }
    float sum = 0.0f;
    for (int offset = -RADIUS; offset <= RADIUS; offset++) { sum += weights[offset + RADIUS] * points[local + offset]; }
    out[global] = sum;
}

int main() {
    const int n = 1000;
    const float w[2 * RADIUS + 1] = {0.1f, -0.2f, 0.3f, 1.0f, 0.3f, -0.2f, 0.1f};
    std::vector<float> x = some_numbers(n);
    float *out;
    must(cudaMemcpyToSymbol(weights, w, sizeof(w)));
    must(cudaMalloc(&out, n * sizeof(float)));
    stencil<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(on_device(x), out, n);
    std::vector<float> got = on_host(out, n);
    for (int i = 0; i < n; i++) {
        double want = 0.0;
        for (int k = -RADIUS; k <= RADIUS; k++) { want += i + k >= 0 && i + k < n ? w[k + RADIUS] * x[i + k] : 0.0f; }
        compare("stencil", i, got[i], want, 1e-6);
    }
    return 0;
}
