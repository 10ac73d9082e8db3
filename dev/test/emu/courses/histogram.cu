// Histograms of bytes: global atomics, a copy for each block, and a copy for each warp with one atomic for equal bytes.
#include <cooperative_groups.h>
#include <stdio.h>
namespace cg = cooperative_groups;

#define SAFE(call)                                                                                                     \
    if (cudaError_t e = call) printf("%s\n", cudaGetErrorName(e)), exit(1)
#define BINS 64

__constant__ unsigned char bin_of[256];
__device__ unsigned long long seen;

__global__ void global_atomics(unsigned *bins, const unsigned char *data, int n) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    for (; i < n; i += blockDim.x * gridDim.x) atomicAdd(&bins[bin_of[data[i]]], 1);
}
__global__ void block_copies(unsigned *bins, const unsigned char *data, int n) {
    __shared__ unsigned local[BINS];
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) local[b] = 0;
    __syncthreads();
    const uchar4 *packs = (const uchar4 *)data;
    for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n / 4; i += blockDim.x * gridDim.x) {
        uchar4 p = packs[i];
        atomicAdd_block(local + bin_of[p.x], 1u), atomicAdd_block(local + bin_of[p.y], 1u);
        atomicAdd(local + bin_of[p.z], 1u), atomicInc(local + bin_of[p.w], 0xffffffff);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += blockDim.x)
        if (local[b]) atomicAdd(&bins[b], local[b]);
}
__global__ void warp_aggregated(unsigned *bins, const unsigned char *data, int n) {
    extern __shared__ unsigned copies[]; // [warps][BINS]
    unsigned *mine = copies + threadIdx.x / 32 * BINS;
    for (int b = threadIdx.x % 32; b < BINS; b += 32) mine[b] = 0;
    __syncwarp();
    for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += blockDim.x * gridDim.x) {
        cg::coalesced_group active = cg::coalesced_threads();
        cg::coalesced_group same = cg::labeled_partition(active, (int)bin_of[data[i]]);
        if (same.thread_rank() == 0) atomicAdd(mine + bin_of[data[i]], same.size());
        if (active.thread_rank() == 0) atomicAdd(&seen, (unsigned long long)active.num_threads());
    }
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) {
        unsigned sum = 0;
        for (int w = 0; w < blockDim.x / 32; w++) sum += copies[w * BINS + b];
        atomicAdd(&bins[b], sum);
    }
}

int main() {
    const int n = 20000;
    static unsigned char data[n], table[256];
    unsigned want[BINS] = {}, got[3][BINS], *bins;
    unsigned char *d_data;
    unsigned long long counted = 0;
    for (int i = 0; i < 256; i++) table[i] = i * 7 % BINS;
    for (int i = 0; i < n; i++) want[table[data[i] = rand() >> 7]]++;
    SAFE(cudaMemcpyToSymbol(bin_of, table, sizeof(table)));
    SAFE(cudaMemcpyToSymbol(seen, &counted, sizeof(counted)));
    SAFE(cudaMalloc(&d_data, n));
    SAFE(cudaMemcpy(d_data, data, n, cudaMemcpyHostToDevice));
    void (*kernels[])(unsigned *, const unsigned char *, int) = {global_atomics, block_copies, warp_aggregated};
    for (int k = 0; k < 3; k++) {
        clock_t begin = clock();
        SAFE(cudaMalloc(&bins, sizeof(want)));
        SAFE(cudaMemset(bins, 0, sizeof(want)));
        kernels[k]<<<8, 128, 4 * BINS * sizeof(unsigned)>>>(bins, d_data, n);
        SAFE(cudaMemcpy(got[k], bins, sizeof(want), cudaMemcpyDeviceToHost));
        SAFE(cudaFree(bins));
        printf("version %d: %.3f ms\n", k, 1e3 * (clock() - begin) / CLOCKS_PER_SEC);
        if (memcmp(got[k], want, sizeof(want))) return printf("version %d is wrong\n", k), 1;
    }
    SAFE(cudaMemcpyFromSymbol(&counted, seen, sizeof(counted)));
    printf("%s\n", counted == n ? "ok" : "some bytes were not seen");
    return counted == n ? 0 : 1;
}
