// Softmax, cross entropy and its gradient in one kernel, over logits in bf16, in packs of 16 bytes. The types come from
// cuBLAS's header.
#include <cublas_v2.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CUDA_CHECK(call)                                                                                               \
    if (cudaError_t e = (call)) {                                                                                      \
        printf("line %d: %s\n", __LINE__, cudaGetErrorString(e));                                                      \
        return 1;                                                                                                      \
    }

template <class E> struct alignas(16) Pack {
    static constexpr size_t size = sizeof(int4) / sizeof(E);
    E x[size];
    __host__ __device__ explicit Pack(int4 bits) { memcpy(x, &bits, sizeof(bits)); }
    Pack() = default;
    __device__ int4 bits() const {
        int4 b;
        memcpy(&b, x, sizeof b);
        return b;
    }
    __device__ E &operator[](int i) { return x[i]; }
};
using P = Pack<__nv_bfloat16>;

__device__ float warp_reduce(float v, float (*op)(float, float)) {
    for (int offset = 16; offset > 0; offset /= 2) v = op(v, __shfl_xor_sync(0xFFFFFFFF, v, offset));
    return v;
}
__device__ float block_reduce(float v, float (*op)(float, float), float none) {
    __shared__ float shared[32];
    const int lane_id = threadIdx.x % 32, warp_id = threadIdx.x / 32, num_warps = blockDim.x / 32;
    v = warp_reduce(v, op);
    if (lane_id == 0) shared[warp_id] = v;
    __syncthreads();
    v = warp_reduce(lane_id < num_warps ? shared[lane_id] : none, op);
    __syncthreads();
    return v;
}
__device__ float add(float a, float b) { return a + b; }
__device__ float larger(float a, float b) { return max(a, b); }

template <bool WriteGradients = true>
__global__ void fused_classifier(__nv_bfloat16 *logits, float *losses, const float dloss, const int *targets, int V,
                                 int Vp) {
    int64_t idx = gridDim.x - (blockIdx.x + 1);
    __nv_bfloat16 *row = logits + idx * Vp;
    float m = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < (V + P::size - 1) / P::size; i += blockDim.x) {
        P p(reinterpret_cast<const int4 *>(row)[i]);
        for (int k = 0; k < P::size; k++) m = i * (int)P::size + k < V ? fmaxf(m, (float)p[k]) : m;
    }
    m = block_reduce(m, larger, -INFINITY);
    for (int i = threadIdx.x; i < V; i += blockDim.x) sum += expf(__bfloat162float(row[i]) - m);
    sum = block_reduce(sum, add, 0.0f);
    if (threadIdx.x == 0) losses[idx] -= (float)row[targets[idx]] - m - logf(sum);
    __syncthreads();
    if (!WriteGradients) return;
    for (int i = threadIdx.x; i < Vp / P::size; i += blockDim.x) {
        P p(__ldcs(reinterpret_cast<const int4 *>(row) + i));
        for (int k = 0; k < P::size; k++) {
            int element = i * P::size + k;
            float prob = element < V ? expf((float)p[k] - m) / sum : 0.0f;
            p[k] = (__nv_bfloat16)((prob - (element == targets[idx] ? 1.0f : 0.0f)) * dloss);
        }
        __stcs(reinterpret_cast<int4 *>(row) + i, p.bits());
    }
}

int main() {
    const int N = 9, V = 500, Vp = 512;
    __nv_bfloat16 *logits = (__nv_bfloat16 *)calloc(N * Vp, sizeof *logits), *got, *d_logits;
    float losses[N] = {0}, *d_losses, error = 0;
    int targets[N], *d_targets;
    for (int i = 0; i < N * Vp; i++) logits[i] = 6.0f * rand() / RAND_MAX;
    for (int n = 0; n < N; n++) targets[n] = rand() % V;
    CUDA_CHECK(cudaMalloc(&d_logits, N * Vp * sizeof *logits));
    CUDA_CHECK(cudaMalloc(&d_losses, sizeof losses));
    CUDA_CHECK(cudaMalloc(&d_targets, sizeof targets));
    CUDA_CHECK(cudaMallocHost(&got, N * Vp * sizeof *got));
    CUDA_CHECK(cudaMemcpy(d_logits, logits, N * Vp * sizeof *logits, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(d_losses, losses, sizeof losses, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(d_targets, targets, sizeof targets, cudaMemcpyHostToDevice));
    fused_classifier<<<N, 128>>>(d_logits, d_losses, 1.0f / N, d_targets, V, Vp);
    CUDA_CHECK(cudaMemcpyAsync(got, d_logits, N * Vp * sizeof *got, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaMemcpy(losses, d_losses, sizeof losses, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaDeviceSynchronize());
    for (int n = 0; n < N; n++) {
        double sum = 0;
        for (int v = 0; v < V; v++) sum += exp((float)logits[n * Vp + v]);
        error = fmax(error, fabs(losses[n] - (log(sum) - (float)logits[n * Vp + targets[n]])));
        for (int v = 0; v < Vp; v++) {
            double want = v < V ? (exp((float)logits[n * Vp + v]) / sum - (v == targets[n])) / N : 0;
            error = fmax(error, fabs((float)got[n * Vp + v] - want) > 4e-3 * fabs(want));
        }
    }
    printf("max error %g\n%s\n", error, error < 1e-4 ? "ok" : "not ok");
    return error < 1e-4 ? 0 : 1;
}
