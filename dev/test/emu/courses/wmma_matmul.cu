// C = A B with tensor cores through wmma: a warp for each tile of 16 x 16.
#include <cuda_fp16.h>
#include <mma.h>
#include <stdio.h>
using namespace nvcuda;

__global__ void matmul(float *C, const __half *A, const __half *B, int N, int K) {
    int row = blockIdx.y * 16, col = (blockIdx.x * blockDim.y + threadIdx.y) * 16;
    if (col >= N) return;
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
    __half *A, *B;
    float *C;
    cudaMallocManaged(&A, M * K * sizeof(__half));
    cudaMallocManaged(&B, K * N * sizeof(__half));
    cudaMallocManaged(&C, M * N * sizeof(float));
    for (int i = 0; i < M * K; i++) A[i] = __float2half(i * 37 % 23 / 8.0f - 1);
    for (int i = 0; i < K * N; i++) B[i] = __float2half(i * 31 % 19 / 8.0f - 1);
    matmul<<<dim3((N + 31) / 32, M / 16), dim3(32, 2)>>>(C, A, B, N, K);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
    int wrong = 0;
    for (int i = 0; i < M * N; i++) {
        float sum = 0; // exact: small multiples of 1 / 64
        for (int k = 0; k < K; k++) sum += __half2float(A[i / N * K + k]) * __half2float(B[k * N + i % N]);
        wrong += C[i] != sum;
    }
    printf("%d wrong\n%s\n", wrong, wrong ? "FAILED" : "ok");
    return wrong != 0;
}
