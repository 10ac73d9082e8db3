// Many small products C = A B^T of column-major matrices, in half precision with sums in fp32, in one call.
#include "textbook.h"

#include <cublas_v2.h>
#include <cuda_fp16.h>

int main() {
    const int m = 8, n = 5, k = 12, batch = 6;
    const float one = 1.0f, zero = 0.0f;
    std::vector<float> a = some_numbers(m * k * batch, 1), b = some_numbers(n * k * batch, 2);
    std::vector<__half> a16, b16;
    for (float x : a) { a16.push_back(__float2half(x)); }
    for (float x : b) { b16.push_back(__float2half(x)); }
    float *C;
    cublasHandle_t handle;
    must(cudaMalloc(&C, m * n * batch * sizeof(float)));
    if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) { return 1; }
    cublasStatus_t status = cublasGemmStridedBatchedEx(
        handle, CUBLAS_OP_N, CUBLAS_OP_T, m, n, k, &one, on_device(a16), CUDA_R_16F, m, m * k, on_device(b16),
        CUDA_R_16F, n, n * k, &zero, C, CUDA_R_32F, m, m * n, batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) {
        printf("cuBLAS: %s\n", cublasGetStatusString(status));
        return 1;
    }
    std::vector<float> got = on_host(C, m * n * batch);
    for (int i = 0; i < m * n * batch; i++) {
        int p = i / (m * n), row = i % m, col = i / m % n;
        double want = 0.0;
        for (int j = 0; j < k; j++) {
            float left = __half2float(a16[p * m * k + j * m + row]), right = __half2float(b16[p * n * k + j * n + col]);
            want += double(left) * right;
        }
        compare("C", i, got[i], want, 1e-5);
    }
    cublasDestroy(handle);
    return 0;
}
