// cuBLAS's multiplications of matrices, computed on the CPU (cublas.cpp), with cuBLAS's names and values. All matrices
// are column-major: element (i, j) of A is A[i + j * lda]. alpha and beta lie in host memory.
#ifndef EMU_CUBLAS_V2_H
#define EMU_CUBLAS_V2_H

#include "cublasLt.h"

typedef struct cublasContext *cublasHandle_t;

typedef enum {
    CUBLAS_DEFAULT_MATH = 0,
    CUBLAS_TENSOR_OP_MATH = 1,
    CUBLAS_TF32_TENSOR_OP_MATH = 3, // fp32 matrices are rounded to tf32
} cublasMath_t;
typedef enum {
    CUBLAS_GEMM_DFALT = -1,
    CUBLAS_GEMM_DEFAULT = -1,
    CUBLAS_GEMM_DFALT_TENSOR_OP = 99,
    CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99,
} cublasGemmAlgo_t;

cublasStatus_t cublasCreate(cublasHandle_t *handle, EMU_HERE);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
const char *cublasGetStatusName(cublasStatus_t status);
const char *cublasGetStatusString(cublasStatus_t status);

// C = alpha op(A) op(B) + beta C, op(A) (m, k), op(B) (k, n), C (m, n).
cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                           int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                           const float *beta, float *C, int ldc, EMU_HERE);
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                         int m, int n, int k, const float *alpha, const float *A, int lda,
                                         long long stride_a, const float *B, int ldb, long long stride_b,
                                         const float *beta, float *C, int ldc, long long stride_c, int batch, EMU_HERE);

// A and B fp32, fp16 or bf16, C of this type or fp32, sums in fp32.
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void *alpha, const void *A, cudaDataType a_type, int lda, const void *B,
                            cudaDataType b_type, int ldb, const void *beta, void *C, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algo, EMU_HERE);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                          int m, int n, int k, const void *alpha, const void *A, cudaDataType a_type,
                                          int lda, long long stride_a, const void *B, cudaDataType b_type, int ldb,
                                          long long stride_b, const void *beta, void *C, cudaDataType c_type, int ldc,
                                          long long stride_c, int batch, cublasComputeType_t compute,
                                          cublasGemmAlgo_t algo, EMU_HERE);

#endif // EMU_CUBLAS_V2_H
