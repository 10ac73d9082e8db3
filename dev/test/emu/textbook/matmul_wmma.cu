// C = A B with tensor cores through wmma: a warp for each tile of 16 x 16.
#include "textbook.h"

#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

__global__ void matmul(float *C, const __half *A, const __half *B, int N, int K) {
    int row = blockIdx.y * 16, col = (blockIdx.x * blockDim.y + threadIdx.y) * 16;
    if (col >= N) { return; }
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(a, A + row * K + k, K);
        wmma::load_matrix_sync(b, B + k * N + col, N);
        wmma::mma_sync(sum, a, b, sum);
    }
    wmma::store_matrix_sync(C + row * N + col, sum, N, wmma::mem_row_major);
}

int main() {
    const int M = 32, N = 48, K = 64;
    std::vector<float> a = some_numbers(M * K, 1), b = some_numbers(K * N, 2);
    std::vector<__half> a16, b16;
    for (float &x : a) { a16.push_back(__float2half(x)), x = __half2float(a16.back()); }
    for (float &x : b) { b16.push_back(__float2half(x)), x = __half2float(b16.back()); }
    float *C;
    must(cudaMalloc(&C, M * N * sizeof(float)));
    matmul<<<dim3((N + 31) / 32, M / 16), dim3(32, 2)>>>(C, on_device(a16), on_device(b16), N, K);
    std::vector<float> got = on_host(C, M * N);
    for (int i = 0; i < M * N; i++) {
        double want = 0.0;
        for (int k = 0; k < K; k++) { want += double(a[i / N * K + k]) * b[k * N + i % N]; }
        compare("C", i, got[i], want, 1e-4);
    }
    return 0;
}
