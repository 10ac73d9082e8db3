// The lower triangle of Q K^T for each head, as attention needs it: naive, and in register tiles. Blocks above the
// diagonal do nothing. Times by events.
#include <assert.h>
#include <stdio.h>
#include <vector>

inline void gpuAssert(cudaError_t code, const char *file, int line, bool abort = true) {
    if (code != cudaSuccess) {
        fprintf(stderr, "GPUassert: %s %s %d\n", cudaGetErrorString(code), file, line);
        if (abort) exit(code);
    }
}
#define gpuErrchk(ans) { gpuAssert((ans), __FILE__, __LINE__); }

constexpr int HS = 32;

__global__ void trimul_naive(float *out, const float *q, const float *k, int T) {
    int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.z;
    if (j > i || i >= T) return;
    float val = 0.0f;
    for (int c = 0; c < HS; c++) val += q[(h * T + i) * HS + c] * k[(h * T + j) * HS + c];
    out[((size_t)h * T + i) * T + j] = val;
}

template <int BLOCK, int PER> __global__ void __launch_bounds__(BLOCK / PER * BLOCK / PER, 2)
trimul_tiled(float *__restrict__ out, const float *__restrict__ q, const float *__restrict__ k, unsigned T) {
    if (blockIdx.x > blockIdx.y) return;
    __shared__ float4 qs[BLOCK][HS / 4], ks[BLOCK][HS / 4 + 1];
    const unsigned row0 = blockIdx.y * BLOCK, col0 = blockIdx.x * BLOCK, h = blockIdx.z;
    for (unsigned i = threadIdx.y * blockDim.x + threadIdx.x; i < BLOCK * HS / 4; i += blockDim.x * blockDim.y) {
        unsigned r = i / (HS / 4), c = i % (HS / 4);
        qs[r][c] = ((const float4 *)(q + (h * T + min(row0 + r, T - 1)) * HS))[c];
        ks[r][c] = ((const float4 *)(k + (h * T + min(col0 + r, T - 1)) * HS))[c];
    }
    __syncthreads();
    float acc[PER][PER] = {};
    for (int c = 0; c < HS / 4; c++)
#pragma unroll
        for (int i = 0; i < PER; i++)
            for (int j = 0; j < PER; j++) {
                float4 a = qs[threadIdx.y * PER + i][c], b = ks[threadIdx.x + j * blockDim.x][c];
                acc[i][j] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
            }
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            unsigned r = row0 + threadIdx.y * PER + i, c = col0 + threadIdx.x + j * blockDim.x;
            if (r < T && c <= r) out[(h * T + r) * T + c] = acc[i][j];
        }
}

int main() {
    const int NH = 2, T = 75;
    std::vector<float> q(NH * T * HS), k(NH * T * HS), got(NH * T * T);
    for (size_t i = 0; i < q.size(); i++) q[i] = drand48() - 0.5, k[i] = drand48() - 0.5;
    float *d_q, *d_k, *d_out, ms;
    gpuErrchk(cudaMalloc(&d_q, q.size() * 4));
    gpuErrchk(cudaMalloc(&d_k, k.size() * 4));
    gpuErrchk(cudaMalloc(&d_out, got.size() * 4));
    gpuErrchk(cudaMemcpy(d_q, &q[0], q.size() * 4, cudaMemcpyHostToDevice));
    gpuErrchk(cudaMemcpy(d_k, &k[0], k.size() * 4, cudaMemcpyHostToDevice));
    cudaEvent_t start, stop;
    gpuErrchk(cudaEventCreate(&start));
    gpuErrchk(cudaEventCreate(&stop));
    double worst = 0;
    for (int version = 1; version <= 2; version++) {
        gpuErrchk(cudaMemset(d_out, 0xff, got.size() * 4)); // NaN
        gpuErrchk(cudaEventRecord(start, 0));
        if (version == 1) trimul_naive<<<dim3((T + 15) / 16, (T + 15) / 16, NH), dim3(16, 16)>>>(d_out, d_q, d_k, T);
        else trimul_tiled<32, 4><<<dim3((T + 31) / 32, (T + 31) / 32, NH), {8, 8}>>>(d_out, d_q, d_k, T);
        gpuErrchk(cudaPeekAtLastError());
        gpuErrchk(cudaEventRecord(stop, 0));
        gpuErrchk(cudaEventSynchronize(stop));
        gpuErrchk(cudaEventElapsedTime(&ms, start, stop));
        gpuErrchk(cudaMemcpy(&got[0], d_out, got.size() * 4, cudaMemcpyDeviceToHost));
        for (int h = 0; h < NH; h++)
            for (int i = 0; i < T; i++)
                for (int j = 0; j < T; j++) {
                    double want = 0;
                    for (int c = 0; c < HS; c++) want += q[(h * T + i) * HS + c] * k[(h * T + j) * HS + c];
                    float value = got[(h * T + i) * T + j];
                    if (j > i) { assert(isnan(value)); continue; }
                    worst = fmax(worst, isnan(value) ? INFINITY : fabs(value - want));
                }
        printf("version %d: %.3f ms, max error %g\n", version, ms, worst);
    }
    puts(worst < 1e-5 ? "ok" : "FAILED");
    return worst < 1e-5 ? 0 : 1;
}
