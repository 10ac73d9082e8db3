// The part of cuBLAS that textbooks use, computed on the CPU (cublas.cpp), with cuBLAS's names and values. All matrices
// are column-major: element (i, j) of A is A[i + j * lda].
#ifndef EMU_CUBLAS_V2_H
#define EMU_CUBLAS_V2_H

#include "cublasLt.h"

typedef struct cublasContext *cublasHandle_t;

typedef enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 } cublasPointerMode_t;
typedef enum {
    CUBLAS_DEFAULT_MATH = 0,
    CUBLAS_TENSOR_OP_MATH = 1,
    CUBLAS_PEDANTIC_MATH = 2,
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
cublasStatus_t cublasGetVersion(cublasHandle_t handle, int *version);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t *stream);
cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode); // of alpha, beta and results
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
const char *cublasGetStatusName(cublasStatus_t status);
const char *cublasGetStatusString(cublasStatus_t status);

// Vectors and matrices between host and device.
cublasStatus_t cublasSetVector(int n, int bytes, const void *x, int incx, void *device_y, int incy, EMU_HERE);
cublasStatus_t cublasGetVector(int n, int bytes, const void *device_x, int incx, void *y, int incy, EMU_HERE);
cublasStatus_t cublasSetMatrix(int rows, int cols, int bytes, const void *A, int lda, void *device_B, int ldb,
                               EMU_HERE);
cublasStatus_t cublasGetMatrix(int rows, int cols, int bytes, const void *device_A, int lda, void *B, int ldb,
                               EMU_HERE);

// y = alpha x + y;  x = alpha x;  result = x . y;  result = |x|
cublasStatus_t cublasSaxpy(cublasHandle_t handle, int n, const float *alpha, const float *x, int incx, float *y,
                           int incy, EMU_HERE);
cublasStatus_t cublasSscal(cublasHandle_t handle, int n, const float *alpha, float *x, int incx, EMU_HERE);
cublasStatus_t cublasSdot(cublasHandle_t handle, int n, const float *x, int incx, const float *y, int incy,
                          float *result, EMU_HERE);
cublasStatus_t cublasSnrm2(cublasHandle_t handle, int n, const float *x, int incx, float *result, EMU_HERE);

// y = alpha op(A) x + beta y, A (m, n)
cublasStatus_t cublasSgemv(cublasHandle_t handle, cublasOperation_t trans, int m, int n, const float *alpha,
                           const float *A, int lda, const float *x, int incx, const float *beta, float *y, int incy,
                           EMU_HERE);

// C = alpha op(A) op(B) + beta C, op(A) (m, k), op(B) (k, n), C (m, n). Batched: pointers in device memory.
cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                           int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                           const float *beta, float *C, int ldc, EMU_HERE);
cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m,
                                  int n, int k, const float *alpha, const float *const A[], int lda,
                                  const float *const B[], int ldb, const float *beta, float *const C[], int ldc,
                                  int batch, EMU_HERE);
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
