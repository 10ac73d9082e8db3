// c = a + b in managed memory, with a grid-stride loop.
#include "textbook.h"

__global__ void add(const float *a, const float *b, float *c, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) { c[i] = a[i] + b[i]; }
}

int main() {
    const int n = 5000;
    float *a, *b, *c;
    must(cudaMallocManaged(&a, n * sizeof(float)));
    must(cudaMallocManaged(&b, n * sizeof(float)));
    must(cudaMallocManaged(&c, n * sizeof(float)));
    for (int i = 0; i < n; i++) { a[i] = 0.5f * i, b[i] = 1.0f - i; }
    add<<<8, 128>>>(a, b, c, n);
    must(cudaGetLastError());
    must(cudaDeviceSynchronize());
    for (int i = 0; i < n; i++) { compare("a + b", i, c[i], 1.0f - 0.5f * i, 0.0); }
    must(cudaFree(a));
    must(cudaFree(b));
    must(cudaFree(c));
    return 0;
}
