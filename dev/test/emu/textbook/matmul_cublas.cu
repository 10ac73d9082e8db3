// C = A B with cuBLAS and with a kernel. cuBLAS is column-major: the rows of C are the columns of C^T = B^T A^T.
#include "textbook.h"

#include <cublas_v2.h>

static void blas_must(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS) { return; }
    printf("cuBLAS: %s\n", cublasGetStatusString(status));
    exit(1);
}

__global__ void matmul(float *C, const float *A, const float *B, int M, int N, int K) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= M || col >= N) { return; }
    float sum = 0.0f;
    for (int k = 0; k < K; k++) { sum += A[row * K + k] * B[k * N + col]; }
    C[row * N + col] = sum;
}

int main() {
    const int M = 30, N = 20, K = 50;
    const float one = 1.0f, zero = 0.0f;
    float *A = on_device(some_numbers(M * K, 1)), *B = on_device(some_numbers(K * N, 2)), *C, *D;
    cublasHandle_t handle;
    must(cudaMalloc(&C, M * N * sizeof(float)));
    must(cudaMalloc(&D, M * N * sizeof(float)));
    blas_must(cublasCreate(&handle));
    blas_must(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, N, M, K, &one, B, N, A, K, &zero, C, N));
    matmul<<<dim3((N + 15) / 16, (M + 7) / 8), dim3(16, 8)>>>(D, A, B, M, N, K);
    std::vector<float> got = on_host(C, M * N), want = on_host(D, M * N);
    for (int i = 0; i < M * N; i++) { compare("C", i, got[i], want[i], 1e-5); }
    float dot = 0.0f;
    blas_must(cublasSdot(handle, M * N, C, 1, C, 1, &dot));
    double sum = 0.0;
    for (float x : want) { sum += double(x) * x; }
    compare("dot", 0, dot, sum, 1e-5);
    blas_must(cublasDestroy(handle));
    return 0;
}
