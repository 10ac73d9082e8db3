// y = gelu(W x + b) by cuBLASLt with an epilogue, against cuBLAS and a kernel of our own. bf16 in, fp32 sums.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <stdio.h>
#include <vector>

#define CHECK(status)                                                                                                  \
    do {                                                                                                               \
        int s = (int)(status);                                                                                         \
        if (s != 0) {                                                                                                  \
            printf("%s:%d: status %d\n", __FILE__, __LINE__, s);                                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
using bf16 = __nv_bfloat16;

__device__ __host__ float gelu(float x) { return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }
__global__ void bias_gelu(bf16 *y, const bf16 *b, int m, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < m * n) y[i] = __float2bfloat16(gelu(__bfloat162float(y[i]) + __bfloat162float(b[i % m])));
}

int main() {
    const int m = 64, n = 24, k = 40;
    const size_t workspace_bytes = 1 << 20;
    std::vector<bf16> W(m * k), x(k * n), b(m), got(m * n);
    for (auto *v : {&W, &x, &b})
        for (bf16 &e : *v) e = 2.0f * rand() / RAND_MAX - 1;
    bf16 *d_W, *d_x, *d_b, *d_y;
    void *workspace;
    CHECK(cudaMalloc(&d_W, W.size() * sizeof(bf16)));
    CHECK(cudaMalloc(&d_x, x.size() * sizeof(bf16)));
    CHECK(cudaMalloc(&d_b, b.size() * sizeof(bf16)));
    CHECK(cudaMalloc(&d_y, got.size() * sizeof(bf16)));
    CHECK(cudaMalloc(&workspace, workspace_bytes));
    CHECK(cudaMemcpy(d_W, W.data(), W.size() * sizeof(bf16), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(d_x, x.data(), x.size() * sizeof(bf16), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(d_b, b.data(), b.size() * sizeof(bf16), cudaMemcpyHostToDevice));

    // W is stored by rows: as a column-major matrix it is (k, m), transposed by the multiply.
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t multiply;
    cublasLtMatrixLayout_t W_layout, x_layout, y_layout;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t heuristic;
    cublasOperation_t transpose = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_GELU_BIAS;
    float alpha = 1, beta = 0, worst[2] = {0, 0};
    int returned = 0;
    CHECK(cublasLtCreate(&lt));
    CHECK(cublasLtMatmulDescCreate(&multiply, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK(cublasLtMatmulDescSetAttribute(multiply, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)));
    CHECK(cublasLtMatmulDescSetAttribute(multiply, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof(plain)));
    CHECK(cublasLtMatmulDescSetAttribute(multiply, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    CHECK(cublasLtMatmulDescSetAttribute(multiply, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d_b, sizeof(d_b)));
    CHECK(cublasLtMatrixLayoutCreate(&W_layout, CUDA_R_16BF, k, m, k));
    CHECK(cublasLtMatrixLayoutCreate(&x_layout, CUDA_R_16BF, k, n, k));
    CHECK(cublasLtMatrixLayoutCreate(&y_layout, CUDA_R_16BF, m, n, m));
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                               sizeof(workspace_bytes)));
    CHECK(cublasLtMatmulAlgoGetHeuristic(lt, multiply, W_layout, x_layout, y_layout, y_layout, preference, 1,
                                         &heuristic, &returned));
    cublasHandle_t blas;
    CHECK(cublasCreate(&blas));
    for (int with_epilogue = 0; with_epilogue < 2; with_epilogue++) {
        if (with_epilogue) {
            CHECK(cublasLtMatmul(lt, multiply, &alpha, d_W, W_layout, d_x, x_layout, &beta, d_y, y_layout, d_y,
                                 y_layout, &heuristic.algo, workspace, workspace_bytes, 0));
        } else {
            CHECK(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &alpha, d_W, CUDA_R_16BF, k, d_x, CUDA_R_16BF,
                               k, &beta, d_y, CUDA_R_16BF, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
            bias_gelu<<<(m * n + 127) / 128, 128>>>(d_y, d_b, m, n);
        }
        CHECK(cudaMemcpy(got.data(), d_y, got.size() * sizeof(bf16), cudaMemcpyDeviceToHost));
        for (int i = 0; i < m * n; i++) {
            double sum = float(b[i % m]);
            for (int c = 0; c < k; c++) sum += double(float(W[i % m * k + c])) * float(x[i / m * k + c]);
            worst[with_epilogue] = fmax(worst[with_epilogue], fabs(float(got[i]) - gelu(sum)) / (1 + fabs(gelu(sum))));
        }
    }
    printf("relative errors %.4f and, by the epilogue, %.4f\n", worst[0], worst[1]);
    bool ok = returned == 1 && worst[0] <= 1 / 64.0f && worst[1] <= 1 / 128.0f;
    CHECK(cublasLtMatmulPreferenceDestroy(preference));
    for (auto layout : {W_layout, x_layout, y_layout}) CHECK(cublasLtMatrixLayoutDestroy(layout));
    CHECK(cublasLtMatmulDescDestroy(multiply));
    CHECK(cublasLtDestroy(lt));
    CHECK(cublasDestroy(blas));
    puts(ok ? "ok" : "FAILED");
    return !ok;
}
