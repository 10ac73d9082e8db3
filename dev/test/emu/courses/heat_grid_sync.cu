// Heat in a plate until nothing changes, in one launch: the blocks meet at grid.sync() after each step.
#include <cooperative_groups.h>
#include <stdio.h>
#include <utility>
namespace cg = cooperative_groups;

#define CUDA(call)                                                                                                     \
    {                                                                                                                  \
        cudaError_t error = call;                                                                                      \
        if (error) printf("%s: %s\n", #call, cudaGetErrorString(error)), exit(1);                                      \
    }
#define W 40
#define H 30

__global__ void relax(float *a, float *b, unsigned *change, int *steps, float limit) {
    cg::grid_group grid = cg::this_grid();
    for (int step = 1;; step++) {
        float largest = 0;
        for (unsigned i = grid.thread_rank(); i < W * H; i += grid.size()) {
            int x = i % W, y = i / W;
            bool edge = x == 0 || y == 0 || x == W - 1 || y == H - 1;
            b[i] = edge ? a[i] : 0.25f * (a[i - 1] + a[i + 1] + a[i - W] + a[i + W]);
            largest = fmaxf(largest, fabsf(b[i] - a[i]));
        }
        atomicMax(&change[step % 3], __float_as_uint(largest));
        if (grid.thread_rank() == 0) change[(step + 1) % 3] = 0;
        grid.sync();
        if (__uint_as_float(change[step % 3]) < limit || step == 2000) {
            if (grid.thread_rank() == 0) *steps = step;
            return;
        }
        float *old = a;
        a = b, b = old;
    }
}

int main() {
    static float start[W * H], want[2][W * H], got[W * H];
    for (int x = 0; x < W; x++) start[x] = 100;
    float *a, *b, limit = 0.05f;
    unsigned *change;
    int *steps, took, blocks, supported, wanted = 0;
    CUDA(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0));
    cudaDeviceProp prop;
    CUDA(cudaGetDeviceProperties(&prop, 0));
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, relax, 128, 0));
    CUDA(cudaMalloc(&a, sizeof start));
    CUDA(cudaMalloc(&b, sizeof start));
    CUDA(cudaMalloc(&change, 3 * sizeof *change));
    CUDA(cudaMalloc(&steps, sizeof *steps));
    CUDA(cudaMemcpy(a, start, sizeof start, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(change, 0, 3 * sizeof *change));
    void *args[] = {&a, &b, &change, &steps, &limit};
    dim3 dimBlock(128, 1, 1), dimGrid(min(8, prop.multiProcessorCount * blocks), 1, 1);
    CUDA(cudaLaunchCooperativeKernel((void *)relax, dimGrid, dimBlock, args));
    CUDA(cudaMemcpy(&took, steps, sizeof took, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(got, took % 2 ? b : a, sizeof got, cudaMemcpyDeviceToHost));
    memcpy(want[0], start, sizeof start);
    for (float change = INFINITY; change >= limit && wanted < 2000;) {
        float *from = want[wanted % 2], *to = want[++wanted % 2];
        change = 0;
        for (int i = 0; i < W * H; i++) {
            bool edge = i % W == 0 || i / W == 0 || i % W == W - 1 || i / W == H - 1;
            to[i] = edge ? from[i] : 0.25f * (from[i - 1] + from[i + 1] + from[i - W] + from[i + W]);
            change = fmaxf(change, fabsf(to[i] - from[i]));
        }
    }
    float error = 0;
    for (int i = 0; i < W * H; i++) error = fmaxf(error, fabsf(got[i] - want[wanted % 2][i]));
    printf("%d steps, max error %g, cooperative launches: %d\n", took, error, supported);
    dimGrid.x = 1 << 20;
    cudaError_t large = cudaLaunchCooperativeKernel((const void *)relax, dimGrid, dimBlock, args, 0, NULL);
    bool ok = took == wanted && error < 1e-4f && large == cudaErrorCooperativeLaunchTooLarge;
    printf(ok ? "ok\n" : "WRONG\n");
    return !ok;
}
