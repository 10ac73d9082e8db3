// Pi by random points, with a generator in each thread and one atomic for each block.
#include "textbook.h"

__host__ __device__ inline float next_number(unsigned *state) { // xorshift
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return static_cast<float>(*state >> 8) / 16777216.0f;
}

__host__ __device__ inline int hits_of(unsigned thread, int tries) {
    unsigned state = (thread + 1) * 2654435761u;
    int hits = 0;
    for (int i = 0; i < tries; i++) {
        float x = next_number(&state), y = next_number(&state);
        hits += x * x + y * y < 1.0f;
    }
    return hits;
}

__global__ void estimate(double *pi, int tries, double points) {
    int hits = hits_of(blockIdx.x * blockDim.x + threadIdx.x, tries), all;
    __shared__ int block_hits;
    if (threadIdx.x == 0) { block_hits = 0; }
    __syncthreads();
    atomicAdd(&block_hits, hits);
    __syncthreads();
    all = block_hits;
    if (threadIdx.x == 0) { atomicAdd(pi, 4.0 * all / points); }
}

int main() {
    const int blocks = 10, threads = 64, tries = 100;
    const double points = 1.0 * blocks * threads * tries;
    double *pi, hits = 0.0;
    must(cudaMalloc(&pi, sizeof(double)));
    must(cudaMemset(pi, 0, sizeof(double)));
    estimate<<<blocks, threads>>>(pi, tries, points);
    double got = on_host(pi, 1)[0];
    for (unsigned t = 0; t < blocks * threads; t++) { hits += hits_of(t, tries); }
    compare("the CPU's estimate", 0, got, 4.0 * hits / points, 1e-4);
    compare("pi", 0, got, 3.14159265, 0.005);
    return 0;
}
