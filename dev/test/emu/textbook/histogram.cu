// A histogram of bytes, with atomics in global memory and with a private histogram for each block in shared memory.
#include "textbook.h"

const int BINS = 64;

__global__ void count_global(unsigned *bins, const unsigned char *in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { atomicAdd(&bins[in[i] % BINS], 1u); }
}

__global__ void count_shared(unsigned *bins, const unsigned char *in, int n) {
    __shared__ unsigned mine[BINS];
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) { mine[b] = 0; }
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
        atomicAdd(&mine[in[i] % BINS], 1u);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) { atomicAdd(&bins[b], mine[b]); }
}

int main() {
    const int n = 6000;
    std::vector<unsigned char> x(n);
    std::vector<unsigned> want(BINS, 0);
    for (int i = 0; i < n; i++) { x[i] = static_cast<unsigned char>(i * i / 7), want[x[i] % BINS]++; }
    unsigned char *in = on_device(x);
    unsigned *bins;
    must(cudaMalloc(&bins, 2 * BINS * sizeof(unsigned)));
    must(cudaMemset(bins, 0, 2 * BINS * sizeof(unsigned)));
    count_global<<<(n + 255) / 256, 256>>>(bins, in, n);
    count_shared<<<5, 128>>>(bins + BINS, in, n);
    std::vector<unsigned> got = on_host(bins, 2 * BINS);
    for (int b = 0; b < 2 * BINS; b++) { compare("bin", b, got[b], want[b % BINS], 0.0); }
    return 0;
}
