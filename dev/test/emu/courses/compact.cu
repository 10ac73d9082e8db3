// Keeps the positive numbers: one atomic for a warp by coalesced_threads, one by __activemask, and one by a ballot.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <stdio.h>
#include <stdlib.h>
using namespace cooperative_groups;

__device__ int take_place(int *count) {
    auto g = coalesced_threads();
    int base;
    if (g.thread_rank() == 0) base = atomicAdd(count, g.size());
    return g.shfl(base, 0) + g.thread_rank();
}
__device__ int take_place_by_mask(int *count) {
    unsigned mask = __activemask(), lane = threadIdx.x % 32;
    int leader = __ffs(mask) - 1, base;
    if (lane == leader) base = atomicAdd(count, __popc(mask));
    return __shfl_sync(mask, base, leader) + __popc(mask & ((1u << lane) - 1));
}
__global__ void keep(float *out, int *count, float *sums, const float *in, int n, int version) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? in[i] : -1.f;
    if (version == 2) {
        unsigned yes = __ballot_sync(0xffffffff, v > 0), lane = threadIdx.x & 31;
        int base = 0;
        if (lane == 0 && yes) base = atomicAdd(count, __popc(yes));
        base = __shfl_sync(0xffffffff, base, 0);
        if (v > 0) out[base + __popc(yes & ((1u << lane) - 1))] = v;
    } else if (v > 0) {
        out[version ? take_place_by_mask(count) : take_place(count)] = v;
    }
    if (v > 0) {
        auto g = coalesced_threads();
        float sum = reduce(g, v, plus<float>());
        unsigned larger = g.ballot(v > 0.5f);
        if (g.thread_rank() == g.size() - 1) atomicAdd(&sums[0], sum), atomicAdd(&sums[1], float(__popc(larger)));
    }
}

int main(int argc, char **argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 5000;
    float *x = (float *)malloc(n * sizeof(float)), *got = (float *)malloc(n * sizeof(float)), *in, *out, *sums;
    float total = 0, large = 0;
    int positive = 0, *count, found, bad = 0;
    for (int i = 0; i < n; i++) {
        x[i] = rand() / (float)RAND_MAX - 0.5f, x[i] *= 2;
        if (x[i] > 0) total += x[i], large += x[i] > 0.5f, positive++;
    }
    if (cudaMalloc(&in, n * sizeof(float)) || cudaMalloc(&out, n * sizeof(float)) || cudaMalloc(&count, sizeof(int)) ||
        cudaMalloc(&sums, 2 * sizeof(float)))
        return perror("cudaMalloc"), 1;
    cudaMemcpy(in, x, n * sizeof(float), cudaMemcpyHostToDevice);
    for (int version = 0; version < 3; version++) {
        float sum[2];
        cudaMemset(count, 0, sizeof(int));
        cudaMemset(sums, 0, 2 * sizeof(float));
        keep<<<(n + 127) / 128, 128>>>(out, count, sums, in, n, version);
        cudaMemcpy(&found, count, sizeof(int), cudaMemcpyDeviceToHost);
        cudaMemcpy(got, out, found * sizeof(float), cudaMemcpyDeviceToHost);
        cudaMemcpy(sum, sums, sizeof sum, cudaMemcpyDeviceToHost);
        double kept = 0;
        for (int i = 0; i < found; i++) kept += got[i], bad += !(got[i] > 0);
        bad += found != positive || fabs(kept - total) > 1e-2 || fabsf(sum[0] - total) > 0.1f || sum[1] != large;
        printf("version %d: %d of %d\n", version, found, n);
    }
    if (cudaError_t e = cudaGetLastError()) printf("%s\n", cudaGetErrorString(e)), bad++;
    puts(bad ? "FAILED" : "ok");
    return bad;
}
