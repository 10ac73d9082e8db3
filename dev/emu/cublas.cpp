// cuBLAS's multiplications on the CPU: checks the arguments as cuBLAS does, and multiplies through cublaslt.cpp.
#include "include/cublas_v2.h"

#include "cublas_multiply.h"
#include "memory.h"

#include <stdio.h>

using namespace emu;

struct cublasContext {
    cudaStream_t stream;
    bool tf32;
};

namespace {

struct Operand {
    const void *data;
    cudaDataType type;
    int64_t ld, stride;
};

struct Multiply {
    cublasOperation_t trans_a, trans_b;
    int64_t m, n, k;
    const void *alpha, *beta;
    Operand A, B, C;
    int batch;
    cublasComputeType_t compute;
};

Matrix stored_matrix(const Operand &x, int64_t rows, int64_t cols, int batch) {
    char *data = static_cast<char *>(const_cast<void *>(x.data));
    return {data, static_cast<uint32_t>(x.type), rows, cols, 1, x.ld, x.stride, batch};
}

Matrix matrix_of(const Operand &x, cublasOperation_t op, int64_t rows, int64_t cols, int batch) {
    return op == CUBLAS_OP_N ? stored_matrix(x, rows, cols, batch) : transposed(stored_matrix(x, cols, rows, batch));
}

bool valid(const Multiply &mm) {
    int64_t rows_a = mm.trans_a == CUBLAS_OP_N ? mm.m : mm.k, rows_b = mm.trans_b == CUBLAS_OP_N ? mm.k : mm.n;
    bool sizes = mm.m >= 0 && mm.n >= 0 && mm.k >= 0 && mm.batch >= 0;
    bool strides = mm.A.ld >= std::max<int64_t>(1, rows_a) && mm.B.ld >= std::max<int64_t>(1, rows_b) &&
                   mm.C.ld >= std::max<int64_t>(1, mm.m);
    bool operations = mm.trans_a <= CUBLAS_OP_C && mm.trans_b <= CUBLAS_OP_C;
    return sizes && strides && operations && mm.alpha != nullptr && mm.beta != nullptr;
}

bool known(const Multiply &mm) {
    bool input = mm.A.type == CUDA_R_32F || mm.A.type == CUDA_R_16F || mm.A.type == CUDA_R_16BF;
    bool types = input && mm.B.type == mm.A.type && (mm.C.type == mm.A.type || mm.C.type == CUDA_R_32F);
    bool tf32 = mm.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && mm.A.type == CUDA_R_32F;
    return types && (tf32 || mm.compute == CUBLAS_COMPUTE_32F);
}

cublasStatus_t refuse(const Multiply &mm, const char *name, Source at) {
    fprintf(stderr,
            "emu: %s of types %d x %d into %d with compute type %d is not part of the emulator, which has CUDA_R_32F, "
            "CUDA_R_16F and CUDA_R_16BF, at %s:%d\n",
            name, mm.A.type, mm.B.type, mm.C.type, mm.compute, at.file, at.line);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t multiply(cublasHandle_t handle, const char *name, Source at, const Multiply &mm) {
    if (handle == nullptr) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    if (!valid(mm)) { return CUBLAS_STATUS_INVALID_VALUE; }
    if (!known(mm)) { return refuse(mm, name, at); }
    if (mm.m == 0 || mm.n == 0 || mm.batch == 0) { return CUBLAS_STATUS_SUCCESS; }
    if (!mm.A.data || !mm.B.data || !mm.C.data) { return CUBLAS_STATUS_INVALID_VALUE; }
    const bool tf32 = mm.compute == CUBLAS_COMPUTE_32F_FAST_TF32 || (handle->tf32 && mm.A.type == CUDA_R_32F);
    op_begin(handle->stream, name, at.file, at.line);
    multiply_matrices(name, at, matrix_of(mm.A, mm.trans_a, mm.m, mm.k, mm.batch),
                      matrix_of(mm.B, mm.trans_b, mm.k, mm.n, mm.batch), stored_matrix(mm.C, mm.m, mm.n, mm.batch),
                      tf32, *static_cast<const float *>(mm.alpha), *static_cast<const float *>(mm.beta));
    op_end();
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

// ---- The handle ----

cublasStatus_t cublasCreate(cublasHandle_t *handle, const char *file, int line) {
    host_only("cublasCreate", {file, line});
    if (handle == nullptr) { return CUBLAS_STATUS_INVALID_VALUE; }
    *handle = new cublasContext();
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    if (handle == nullptr) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    if (handle == nullptr) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    if (handle == nullptr) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    handle->tf32 = mode == CUBLAS_TF32_TENSOR_OP_MATH;
    return CUBLAS_STATUS_SUCCESS;
}
const char *cublasGetStatusName(cublasStatus_t status) { return cublasLtGetStatusName(status); }
const char *cublasGetStatusString(cublasStatus_t status) { return cublasLtGetStatusString(status); }

// ---- Multiplications ----

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                           int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                           const float *beta, float *C, int ldc, const char *file, int line) {
    Operand a = {A, CUDA_R_32F, lda, 0}, b = {B, CUDA_R_32F, ldb, 0}, c = {C, CUDA_R_32F, ldc, 0};
    return multiply(handle, "cublasSgemm", {file, line},
                    {transa, transb, m, n, k, alpha, beta, a, b, c, 1, CUBLAS_COMPUTE_32F});
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                         int m, int n, int k, const float *alpha, const float *A, int lda,
                                         long long stride_a, const float *B, int ldb, long long stride_b,
                                         const float *beta, float *C, int ldc, long long stride_c, int batch,
                                         const char *file, int line) {
    Operand a = {A, CUDA_R_32F, lda, stride_a}, b = {B, CUDA_R_32F, ldb, stride_b}, c = {C, CUDA_R_32F, ldc, stride_c};
    return multiply(handle, "cublasSgemmStridedBatched", {file, line},
                    {transa, transb, m, n, k, alpha, beta, a, b, c, batch, CUBLAS_COMPUTE_32F});
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void *alpha, const void *A, cudaDataType a_type, int lda, const void *B,
                            cudaDataType b_type, int ldb, const void *beta, void *C, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t, const char *file, int line) {
    Operand a = {A, a_type, lda, 0}, b = {B, b_type, ldb, 0}, c = {C, c_type, ldc, 0};
    return multiply(handle, "cublasGemmEx", {file, line},
                    {transa, transb, m, n, k, alpha, beta, a, b, c, 1, compute});
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                          int m, int n, int k, const void *alpha, const void *A, cudaDataType a_type,
                                          int lda, long long stride_a, const void *B, cudaDataType b_type, int ldb,
                                          long long stride_b, const void *beta, void *C, cudaDataType c_type, int ldc,
                                          long long stride_c, int batch, cublasComputeType_t compute, cublasGemmAlgo_t,
                                          const char *file, int line) {
    Operand a = {A, a_type, lda, stride_a}, b = {B, b_type, ldb, stride_b}, c = {C, c_type, ldc, stride_c};
    return multiply(handle, "cublasGemmStridedBatchedEx", {file, line},
                    {transa, transb, m, n, k, alpha, beta, a, b, c, batch, compute});
}
