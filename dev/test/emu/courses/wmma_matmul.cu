// C = 2 A B - C with tensor cores through wmma: a warp for each tile of 16 x 16, of half or bf16, B by rows or columns.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <stdio.h>
using namespace nvcuda;

template <class T, class Layout> __global__ void matmul(float *C, const T *A, const T *B, int N, int K, int ldb) {
    int row = blockIdx.y * 16, col = (blockIdx.x * blockDim.y + threadIdx.y) * 16;
    if (col >= N) return;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, Layout> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum, c;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(a, A + row * K + k, K);
        wmma::load_matrix_sync(b, ldb == N ? B + k * ldb + col : B + col * ldb + k, ldb);
        wmma::mma_sync(sum, a, b, sum);
    }
    wmma::load_matrix_sync(c, C + row * N + col, N, wmma::mem_row_major);
    for (int i = 0; i < c.num_elements; i++) c.x[i] = 2 * sum.x[i] - c.x[i];
    wmma::store_matrix_sync(C + row * N + col, c, N, wmma::mem_row_major);
}

template <class T, class Layout> int wrong(const char *name, bool by_rows) {
    const int M = 32, N = 48, K = 64;
    T *A, *B;
    float *C;
    cudaMallocManaged(&A, M * K * sizeof(T));
    cudaMallocManaged(&B, K * N * sizeof(T));
    cudaMallocManaged(&C, M * N * sizeof(float));
    for (int i = 0; i < M * K; i++) A[i] = i * 37 % 23 / 8.0f - 1;
    for (int i = 0; i < K * N; i++) B[i] = i * 31 % 19 / 8.0f - 1;
    for (int i = 0; i < M * N; i++) C[i] = i;
    matmul<T, Layout><<<dim3((N + 31) / 32, M / 16), dim3(32, 2)>>>(C, A, B, N, K, by_rows ? N : K);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
    int wrong = 0;
    for (int i = 0; i < M * N; i++) {
        float sum = 0; // exact: small multiples of 1 / 64
        for (int k = 0; k < K; k++) sum += float(A[i / N * K + k]) * float(B[by_rows ? k * N + i % N : i % N * K + k]);
        wrong += C[i] != 2 * sum - i;
    }
    printf("%s: %d wrong\n", name, wrong);
    cudaFree(A), cudaFree(B), cudaFree(C);
    return wrong;
}

int main() {
    int all = wrong<__half, wmma::row_major>("half", true) + wrong<__half, wmma::col_major>("half, B^T", false) +
              wrong<__nv_bfloat16, wmma::col_major>("bf16, B^T", false);
    puts(all ? "FAILED" : "ok");
    return all != 0;
}
