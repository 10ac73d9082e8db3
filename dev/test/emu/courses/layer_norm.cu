// Layer norm, forward with saved statistics and backward, with an optional bias (NULL) and one kernel for all types.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cstdio>
#include <cstdlib>
namespace cg = cooperative_groups;

#define cudaCheck(err) (cuda_check(err, __FILE__, __LINE__))
static void cuda_check(cudaError_t error, const char *file, int line) {
    if (error == cudaSuccess) return;
    printf("[CUDA ERROR] at file %s:%d:\n%s\n", file, line, cudaGetErrorName(error));
    exit(EXIT_FAILURE);
}

template <typename T>
__global__ void layernorm_forward(T *out, float *mean, float *rstd, const T *inp, const T *weight, const T *bias, int N,
                                  int C, size_t stride) {
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
    int idx = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (idx >= N) return;
    const T *x = inp + idx * stride;
    float sum = 0.0f, var = 0.0f;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) sum += x[i];
    float m = cg::reduce(warp, sum, cg::plus<float>{}) / C;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) var += (x[i] - m) * (x[i] - m);
    float s = rsqrtf(cg::reduce(warp, var, cg::plus<float>{}) / C + 1e-5f);
    if (warp.thread_rank() == 0 && mean != nullptr) __stcs(mean + idx, m);
    if (warp.thread_rank() == 0 && rstd != nullptr) __stcs(rstd + idx, s);
    for (int c = warp.thread_rank(); c < C; c += warp.size()) {
        float n = s * (__ldcs(x + c) - m);
        out[idx * C + c] = n * weight[c] + (bias ? bias[c] : T(0));
    }
}

// dx = rstd (dn - mean(dn) - n mean(dn n)) with dn = dout weight, n = (x - mean) rstd
__global__ void layernorm_backward(float *dinp, float *dweight, const float *dout, const float *inp,
                                   const float *weight, const float *mean, const float *rstd, int N, int C) {
    extern __shared__ float dw[];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    for (int c = block.thread_rank(); c < C; c += block.size()) dw[c] = 0;
    block.sync();
    int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row < N) {
        float a = 0, b = 0, m = mean[row], s = rstd[row];
        for (int c = warp.thread_rank(); c < C; c += 32) {
            float dn = dout[row * C + c] * weight[c], n = (inp[row * C + c] - m) * s;
            a += dn, b += dn * n;
            atomicAdd(&dw[c], dout[row * C + c] * n);
        }
        a = cg::reduce(warp, a, cg::plus<float>{}) / C, b = cg::reduce(warp, b, cg::plus<float>{}) / C;
        for (int c = warp.thread_rank(); c < C; c += 32) {
            float dn = dout[row * C + c] * weight[c], n = (inp[row * C + c] - m) * s;
            dinp[row * C + c] = s * (dn - a - n * b);
        }
    }
    block.sync();
    for (int c = block.thread_rank(); c < C; c += block.size()) atomicAdd(dweight + c, dw[c]);
}

static float loss(const float *x, const float *w, const float *g, int N, int C) { // sum of out * g
    double l = 0;
    for (int n = 0; n < N; n++) {
        double m = 0, v = 0;
        for (int c = 0; c < C; c++) m += x[n * C + c] / double(C);
        for (int c = 0; c < C; c++) v += (x[n * C + c] - m) * (x[n * C + c] - m) / C;
        for (int c = 0; c < C; c++) l += (x[n * C + c] - m) / sqrt(v + 1e-5) * w[c] * g[n * C + c];
    }
    return l;
}

int main() {
    const int N = 13, C = 70;
    float *x, *w, *g, *y, *mean, *rstd, *dx, *dw;
    for (float **p : {&x, &g, &y, &dx}) cudaCheck(cudaMallocManaged(p, N * C * sizeof(float)));
    for (float **p : {&w, &dw, &mean, &rstd}) cudaCheck(cudaMallocManaged(p, C * sizeof(float)));
    for (int i = 0; i < N * C; i++) x[i] = rand() / (float)RAND_MAX, g[i] = rand() / (float)RAND_MAX - 0.5f;
    for (int c = 0; c < C; c++) w[c] = 1 + c * 0.01f, dw[c] = 0;
    const dim3 gridDim = dim3((N + 3) / 4), blockDim = dim3(32, 4);
    layernorm_forward<float><<<gridDim, blockDim>>>(y, mean, rstd, x, w, NULL, N, C, C);
    layernorm_backward<<<gridDim, blockDim, C * sizeof(float)>>>(dx, dw, g, x, w, mean, rstd, N, C);
    cudaCheck(cudaDeviceSynchronize());
    double out = 0;
    for (int i = 0; i < N * C; i++) out += y[i] * g[i];
    bool ok = fabs(out - loss(x, w, g, N, C)) < 1e-3;
    for (int i = 0; i < N * C && ok; i += 17) {
        float kept = x[i], up, down;
        x[i] = kept + 0.01f, up = loss(x, w, g, N, C), x[i] = kept - 0.01f, down = loss(x, w, g, N, C), x[i] = kept;
        ok = fabsf((up - down) / 0.02f - dx[i]) < 2e-2f && isfinite(dx[i]);
    }
    for (int c = 0; c < C && ok; c += 11) {
        float kept = w[c], up, down;
        w[c] = kept + 1, up = loss(x, w, g, N, C), w[c] = kept, down = loss(x, w, g, N, C);
        ok = fabsf(up - down - dw[c]) < 1e-3f;
    }
    printf("%s\n", ok ? "ok" : "gradients are wrong");
    return !ok;
}
