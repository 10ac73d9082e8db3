// Softmax over rows of a matrix in nine versions, from a thread for a row to packed loads. softmax_nine_ways [version]
#include <cfloat>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>
using namespace cooperative_groups;

#define CUDA_CHECK(call)                                                                                               \
    do {                                                                                                               \
        cudaError_t status = (call);                                                                                   \
        if (status != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));                            \
            exit(EXIT_FAILURE);                                                                                        \
        }                                                                                                              \
    } while (0)
#define FULL 0xffffffff

struct Pair { // the largest number so far, and the sum of exp(x - largest)
    float m, l;
};
__device__ __forceinline__ Pair join(Pair a, Pair b) {
    float m = fmaxf(a.m, b.m);
    return {m, a.l * __expf(a.m - m) + b.l * __expf(b.m - m)};
}

__global__ void three_passes(float *y, const float *x, int N, int C) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) return;
    float m = -INFINITY, sum = 0.f;
    for (int c = 0; c < C; c++) m = max(m, x[row * C + c]);
    for (int c = 0; c < C; c++) sum += expf(x[row * C + c] - m);
    for (int c = 0; c < C; c++) y[row * C + c] = expf(x[row * C + c] - m) / sum;
}
__global__ void online(float *y, const float *x, int N, int C) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) return;
    Pair p{-FLT_MAX, 0.f};
    for (int c = 0; c < C; c++) p = join(p, Pair{x[row * C + c], 1.f});
    for (int c = 0; c < C; c++) y[row * C + c] = __expf(x[row * C + c] - p.m) / p.l;
}
// A block for a row. Reduce<KIND> finds the block's largest number and sum.
enum { TREE, SHUFFLE, TILES, TWO_LEVELS };
template <int KIND, class Op> __device__ float block_reduce(float v, Op op, float none, float *room) {
    int t = threadIdx.x;
    if constexpr (KIND == TREE) {
        room[t] = v;
        for (int half = blockDim.x / 2; half > 0; half >>= 1) {
            __syncthreads();
            if (t < half) room[t] = op(room[t], room[t + half]);
        }
        __syncthreads();
        v = room[0];
        __syncthreads();
        return v;
    }
    auto warp = tiled_partition<32>(this_thread_block());
    if constexpr (KIND == TILES) v = cooperative_groups::reduce(warp, v, op);
    else
        for (int d = 16; d; d /= 2) v = op(v, __shfl_xor_sync(FULL, v, d));
    if (warp.thread_rank() == 0) room[warp.meta_group_rank()] = v;
    __syncthreads();
    if (KIND == TWO_LEVELS) {
        v = t < blockDim.x / 32 ? room[t] : none;
        if (t < 32) {
            for (int d = 16; d; d /= 2) v = op(v, __shfl_down_sync(FULL, v, d));
            if (t == 0) room[0] = v;
        }
        __syncthreads();
        v = room[0];
    } else {
        v = none;
        for (int w = 0; w < blockDim.x / 32; w++) v = op(v, room[w]);
    }
    __syncthreads();
    return v;
}
template <int KIND> __global__ void block_for_row(float *y, const float *x, int N, int C) {
    extern __shared__ float room[];
    const float *in = x + size_t(blockIdx.x) * C;
    auto larger = [](float a, float b) { return fmaxf(a, b); };
    auto sum_of = [](float a, float b) { return a + b; };
    float m = -INFINITY, sum = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) m = fmaxf(m, in[c]);
    m = block_reduce<KIND>(m, larger, -INFINITY, room);
    for (int c = threadIdx.x; c < C; c += blockDim.x) sum += expf(in[c] - m);
    sum = block_reduce<KIND>(sum, sum_of, 0.f, room);
    for (int c = threadIdx.x; c < C; c += blockDim.x) y[size_t(blockIdx.x) * C + c] = expf(in[c] - m) / sum;
}
// A warp for a row, whose numbers stay in registers.
template <int PER_LANE> __global__ void __launch_bounds__(128) warp_for_row(float *y, const float *x, int N, int C) {
    thread_block block = this_thread_block();
    thread_block_tile<32> warp = tiled_partition<32>(block);
    int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= N) return;
    float v[PER_LANE], m = -INFINITY, sum = 0.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int c = i * 32 + warp.thread_rank();
        v[i] = c < C ? x[row * C + c] : -INFINITY;
        m = fmaxf(m, v[i]);
    }
    m = reduce(warp, m, greater<float>());
    for (int i = 0; i < PER_LANE; i++) sum += v[i] = expf(v[i] - m);
    sum = reduce(warp, sum, plus<float>());
    for (int i = 0; i < PER_LANE; i++) {
        int c = i * 32 + warp.thread_rank();
        if (c < C) __stcs(&y[row * C + c], v[i] / sum);
    }
}
// A warp for a row in packs of four, in one pass: pairs are joined by shuffles of 8 bytes.
__global__ void packed(float *y, const float *x, int N, int C) {
    int lane = threadIdx.x % warpSize, row = (blockIdx.x * blockDim.x + threadIdx.x) / warpSize;
    if (row >= N) return;
    const float4 *in = reinterpret_cast<const float4 *>(x + row * C);
    Pair p{-FLT_MAX, 0.f};
    for (int i = lane; i < C / 4; i += warpSize) {
        float4 v = __ldg(in + i);
        for (float f : {v.x, v.y, v.z, v.w}) p = join(p, {f, 1.f});
    }
    for (int d = 16; d > 0; d >>= 1) {
        double other = __shfl_xor_sync(FULL, *reinterpret_cast<double *>(&p), d);
        p = join(p, *reinterpret_cast<Pair *>(&other));
    }
    for (int i = lane; i < C / 4; i += warpSize) {
        float4 v = in[i];
        reinterpret_cast<float4 *>(y + row * C)[i] = make_float4(__expf(v.x - p.m) / p.l, __expf(v.y - p.m) / p.l,
                                                                 __expf(v.z - p.m) / p.l, __expf(v.w - p.m) / p.l);
    }
}
typedef void (*Kernel)(float *, const float *, int, int);

int main(int argc, char **argv) {
    const int N = 37, C = 200;
    struct {
        const char *name;
        Kernel kernel;
        int rows_per_block, threads;
    } versions[] = {{"three passes", three_passes, 32, 32},
                    {"online", online, 32, 32},
                    {"tree", block_for_row<TREE>, 1, 128},
                    {"shuffle", block_for_row<SHUFFLE>, 1, 128},
                    {"tiles", block_for_row<TILES>, 1, 128},
                    {"two levels", block_for_row<TWO_LEVELS>, 1, 256},
                    {"registers", warp_for_row<7>, 4, 128},
                    {"registers, more", warp_for_row<8>, 4, 128},
                    {"packed", packed, 2, 64}};
    std::vector<float> x(N * C), y(N * C);
    for (float &v : x) v = 8.f * rand() / RAND_MAX - 4.f;
    float *d_x, *d_y, worst = 0;
    CUDA_CHECK(cudaMalloc(&d_x, sizeof(float) * N * C));
    CUDA_CHECK(cudaMalloc(&d_y, sizeof(float) * N * C));
    CUDA_CHECK(cudaMemcpy(d_x, x.data(), sizeof(float) * N * C, cudaMemcpyHostToDevice));
    for (auto &v : versions) {
        if (argc > 1 && &versions[atoi(argv[1]) - 1] != &v) continue;
        CUDA_CHECK(cudaMemset(d_y, 0, sizeof(float) * N * C));
        dim3 gridDim((N + v.rows_per_block - 1) / v.rows_per_block), blockDim(v.threads);
        v.kernel<<<gridDim, blockDim, blockDim.x * sizeof(float)>>>(d_y, d_x, N, C);
        CUDA_CHECK(cudaGetLastError());
        CUDA_CHECK(cudaMemcpy(y.data(), d_y, sizeof(float) * N * C, cudaMemcpyDeviceToHost));
        for (int n = 0; n < N; n++) {
            double sum = 0;
            for (int c = 0; c < C; c++) sum += exp(double(x[n * C + c]));
            for (int c = 0; c < C; c++) {
                float error = fabs(y[n * C + c] - exp(double(x[n * C + c])) / sum);
                if (isnan(error) || error > worst) worst = isnan(error) ? 1 : error;
            }
        }
        printf("%-16s largest error so far %.1e\n", v.name, worst);
    }
    CUDA_CHECK(cudaFree(d_x));
    CUDA_CHECK(cudaFree(d_y));
    puts(worst < 1e-6f ? "ok" : "FAILED");
    return worst < 1e-6f ? EXIT_SUCCESS : EXIT_FAILURE;
}
