// cuBLAS on the CPU: checks the arguments as cuBLAS does, and multiplies through cublaslt.cpp.
#include "include/cublas_v2.h"

#include "cublas_multiply.h"
#include "memory.h"

#include <math.h>
#include <stdio.h>

using namespace emu;

struct cublasContext {
    cudaStream_t stream;
    bool device_scalars, tf32;
};

namespace {

// Does the work as an operation on the handle's stream. Reads alpha and beta in it, because they may be in device
// memory.
template <class Work> cublasStatus_t run(cublasHandle_t handle, const char *name, Source at, const Work &work) {
    if (handle == nullptr) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    op_begin(handle->stream, name, at.file, at.line);
    const cublasStatus_t status = work();
    op_end();
    return status;
}
float scalar(cublasHandle_t handle, const void *pointer) {
    if (handle->device_scalars) { op_read(pointer, sizeof(float)); }
    return *static_cast<const float *>(pointer);
}

// ---- Vectors ----

struct Vector {
    float *data;
    int64_t n, step;
    float &operator[](int64_t i) const { return data[(step < 0 ? i - n + 1 : i) * step]; }
};

void note(const Vector &x, bool write) {
    auto op = [write](float *p, size_t bytes) { write ? op_write(p, bytes) : op_read(p, bytes); };
    if (x.step == 1) { return op(x.data, static_cast<size_t>(x.n) * sizeof(float)); }
    for (int64_t i = 0; i < x.n; i++) { op(&x[i], sizeof(float)); }
}

double dot(const Vector &x, const Vector &y) {
    double sum = 0.0;
    note(x, false);
    if (y.data != x.data || y.step != x.step) { note(y, false); }
    meter_operation_flops(2.0 * static_cast<double>(x.n));
    for (int64_t i = 0; i < x.n; i++) { sum += static_cast<double>(x[i]) * static_cast<double>(y[i]); }
    return sum;
}

Vector vector_of(const float *data, int n, int step) { return {const_cast<float *>(data), n < 0 ? 0 : n, step}; }

// A result in host memory is there when the call returns.
template <class Value>
cublasStatus_t give_result(cublasHandle_t handle, const char *name, Source at, float *result, Value value) {
    const cublasStatus_t status = run(handle, name, at, [&] {
        if (result == nullptr) { return CUBLAS_STATUS_INVALID_VALUE; }
        const float x = static_cast<float>(value());
        if (handle->device_scalars) { op_write(result, sizeof(float)); }
        *result = x;
        return CUBLAS_STATUS_SUCCESS;
    });
    if (status == CUBLAS_STATUS_SUCCESS && !handle->device_scalars) { wait_for_stream(handle->stream); }
    return status;
}

// ---- Multiplications ----

const char *name_of_type(int type) {
    switch (type) {
    case CUDA_R_32F: return "CUDA_R_32F";
    case CUDA_R_64F: return "CUDA_R_64F";
    case CUDA_R_16F: return "CUDA_R_16F";
    case CUDA_R_8I: return "CUDA_R_8I";
    case CUDA_R_8U: return "CUDA_R_8U";
    case CUDA_R_32I: return "CUDA_R_32I";
    case CUDA_R_16BF: return "CUDA_R_16BF";
    case CUDA_R_8F_E4M3: return "CUDA_R_8F_E4M3";
    case CUDA_R_8F_E5M2: return "CUDA_R_8F_E5M2";
    default: return "another type";
    }
}

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
    bool by_pointers; // the operands are arrays of pointers in device memory
    const char *name = nullptr;
    Source at = {nullptr, 0};
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
    return types && (tf32 || mm.compute == CUBLAS_COMPUTE_32F || mm.compute == CUBLAS_COMPUTE_32F_PEDANTIC);
}

cublasStatus_t refuse(const Multiply &mm) {
    fprintf(stderr, "emu: %s of %s x %s into %s with compute type %d is not part of the emulator, at %s:%d\n", mm.name,
            name_of_type(mm.A.type), name_of_type(mm.B.type), name_of_type(mm.C.type), mm.compute, mm.at.file,
            mm.at.line);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

void multiply_one(Multiply mm, int batch, bool tf32, float alpha, float beta) {
    multiply_matrices(mm.name, mm.at, matrix_of(mm.A, mm.trans_a, mm.m, mm.k, batch),
                      matrix_of(mm.B, mm.trans_b, mm.k, mm.n, batch), stored_matrix(mm.C, mm.m, mm.n, batch), tf32,
                      alpha, beta);
}

void multiply_by_pointers(const Multiply &mm, bool tf32, float alpha, float beta) {
    const Operand *operands[] = {&mm.A, &mm.B, &mm.C};
    for (const Operand *x : operands) { op_read(x->data, static_cast<size_t>(mm.batch) * sizeof(void *)); }
    for (int b = 0; b < mm.batch; b++) {
        Multiply one = mm;
        Operand *pointers[] = {&one.A, &one.B, &one.C};
        for (Operand *x : pointers) { x->data = static_cast<const void *const *>(x->data)[b]; }
        multiply_one(one, 1, tf32, alpha, beta);
    }
}

cublasStatus_t multiply(cublasHandle_t handle, const char *name, Source at, Multiply mm) {
    mm.name = name, mm.at = at;
    return run(handle, name, at, [&] {
        if (!valid(mm)) { return CUBLAS_STATUS_INVALID_VALUE; }
        if (!known(mm)) { return refuse(mm); }
        if (mm.m == 0 || mm.n == 0 || mm.batch == 0) { return CUBLAS_STATUS_SUCCESS; }
        if (!mm.A.data || !mm.B.data || !mm.C.data) { return CUBLAS_STATUS_INVALID_VALUE; }
        const bool tf32 = mm.compute == CUBLAS_COMPUTE_32F_FAST_TF32 || (handle->tf32 && mm.A.type == CUDA_R_32F);
        const float alpha = scalar(handle, mm.alpha), beta = scalar(handle, mm.beta);
        mm.by_pointers ? multiply_by_pointers(mm, tf32, alpha, beta) : multiply_one(mm, mm.batch, tf32, alpha, beta);
        return CUBLAS_STATUS_SUCCESS;
    });
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
cublasStatus_t cublasGetVersion(cublasHandle_t handle, int *version) {
    if (handle == nullptr) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    *version = static_cast<int>(cublasLtGetVersion());
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    if (handle == nullptr) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t *stream) {
    if (handle == nullptr) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
    if (handle == nullptr) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    handle->device_scalars = mode == CUBLAS_POINTER_MODE_DEVICE;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    if (handle == nullptr) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    handle->tf32 = mode == CUBLAS_TF32_TENSOR_OP_MATH;
    return CUBLAS_STATUS_SUCCESS;
}
const char *cublasGetStatusName(cublasStatus_t status) { return cublasLtGetStatusName(status); }
const char *cublasGetStatusString(cublasStatus_t status) { return cublasLtGetStatusString(status); }

// ---- Copies ----

static cublasStatus_t copy(int rows, int cols, int bytes, const void *from, int64_t from_ld, void *to, int64_t to_ld,
                           enum cudaMemcpyKind kind, Source at) {
    if (rows < 0 || cols < 0 || bytes < 1 || from_ld < rows || to_ld < rows) { return CUBLAS_STATUS_INVALID_VALUE; }
    size_t size = static_cast<size_t>(bytes), width = static_cast<size_t>(rows) * size;
    cudaError_t error = cudaMemcpy2D(to, static_cast<size_t>(to_ld) * size, from, static_cast<size_t>(from_ld) * size,
                                     width, static_cast<size_t>(cols), kind, at.file, at.line);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR;
}
cublasStatus_t cublasSetVector(int n, int bytes, const void *x, int incx, void *y, int incy, const char *file,
                               int line) {
    return copy(1, n, bytes, x, incx, y, incy, cudaMemcpyHostToDevice, {file, line});
}
cublasStatus_t cublasGetVector(int n, int bytes, const void *x, int incx, void *y, int incy, const char *file,
                               int line) {
    return copy(1, n, bytes, x, incx, y, incy, cudaMemcpyDeviceToHost, {file, line});
}
cublasStatus_t cublasSetMatrix(int rows, int cols, int bytes, const void *A, int lda, void *B, int ldb,
                               const char *file, int line) {
    return copy(rows, cols, bytes, A, lda, B, ldb, cudaMemcpyHostToDevice, {file, line});
}
cublasStatus_t cublasGetMatrix(int rows, int cols, int bytes, const void *A, int lda, void *B, int ldb,
                               const char *file, int line) {
    return copy(rows, cols, bytes, A, lda, B, ldb, cudaMemcpyDeviceToHost, {file, line});
}

// ---- Vectors ----

cublasStatus_t cublasSaxpy(cublasHandle_t handle, int n, const float *alpha, const float *x, int incx, float *y,
                           int incy, const char *file, int line) {
    return run(handle, "cublasSaxpy", {file, line}, [&] {
        if (alpha == nullptr) { return CUBLAS_STATUS_INVALID_VALUE; }
        const Vector from = vector_of(x, n, incx), to = vector_of(y, n, incy);
        const float a = scalar(handle, alpha);
        note(from, false), note(to, false), note(to, true);
        meter_operation_flops(2.0 * static_cast<double>(to.n));
        for (int64_t i = 0; i < to.n; i++) { to[i] = fmaf(a, from[i], to[i]); }
        return CUBLAS_STATUS_SUCCESS;
    });
}
cublasStatus_t cublasSscal(cublasHandle_t handle, int n, const float *alpha, float *x, int incx, const char *file,
                           int line) {
    return run(handle, "cublasSscal", {file, line}, [&] {
        if (alpha == nullptr) { return CUBLAS_STATUS_INVALID_VALUE; }
        const Vector v = vector_of(x, n, incx);
        const float a = scalar(handle, alpha);
        note(v, false), note(v, true);
        meter_operation_flops(static_cast<double>(v.n));
        for (int64_t i = 0; i < v.n; i++) { v[i] *= a; }
        return CUBLAS_STATUS_SUCCESS;
    });
}
cublasStatus_t cublasSdot(cublasHandle_t handle, int n, const float *x, int incx, const float *y, int incy,
                          float *result, const char *file, int line) {
    const Vector a = vector_of(x, n, incx), b = vector_of(y, n, incy);
    return give_result(handle, "cublasSdot", {file, line}, result, [&] { return dot(a, b); });
}
cublasStatus_t cublasSnrm2(cublasHandle_t handle, int n, const float *x, int incx, float *result, const char *file,
                           int line) {
    const Vector v = vector_of(x, n, incx);
    return give_result(handle, "cublasSnrm2", {file, line}, result, [&] { return sqrt(dot(v, v)); });
}

// ---- Matrices ----

// A vector is the only column of a matrix. Its elements lie `inc` apart.
static Matrix column(const float *data, int64_t n, int64_t inc) {
    char *bytes = reinterpret_cast<char *>(const_cast<float *>(data));
    return {bytes, CUDA_R_32F, n, 1, inc, n, 0, 1};
}

cublasStatus_t cublasSgemv(cublasHandle_t handle, cublasOperation_t trans, int m, int n, const float *alpha,
                           const float *A, int lda, const float *x, int incx, const float *beta, float *y, int incy,
                           const char *file, int line) {
    return run(handle, "cublasSgemv", {file, line}, [&] {
        bool right = m >= 0 && n >= 0 && lda >= std::max(1, m) && incx != 0 && incy != 0 && trans <= CUBLAS_OP_C;
        if (!right || alpha == nullptr || beta == nullptr) { return CUBLAS_STATUS_INVALID_VALUE; }
        if (incx < 0 || incy < 0) {
            fprintf(stderr, "emu: cublasSgemv with a negative increment is not part of the emulator, at %s:%d\n", file,
                    line);
            return CUBLAS_STATUS_NOT_SUPPORTED;
        }
        if (m == 0 || n == 0) { return CUBLAS_STATUS_SUCCESS; }
        int64_t rows = trans == CUBLAS_OP_N ? m : n, cols = trans == CUBLAS_OP_N ? n : m;
        const Matrix a = matrix_of({A, CUDA_R_32F, lda, 0}, trans, rows, cols, 1);
        const float scale = scalar(handle, alpha), keep = scalar(handle, beta);
        multiply_matrices("cublasSgemv", {file, line}, a, column(x, cols, incx), column(y, rows, incy), handle->tf32,
                          scale, keep);
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                           int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                           const float *beta, float *C, int ldc, const char *file, int line) {
    Operand a = {A, CUDA_R_32F, lda, 0}, b = {B, CUDA_R_32F, ldb, 0}, c = {C, CUDA_R_32F, ldc, 0};
    return multiply(handle, "cublasSgemm", {file, line},
                    {transa, transb, m, n, k, alpha, beta, a, b, c, 1, CUBLAS_COMPUTE_32F, false});
}

cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m,
                                  int n, int k, const float *alpha, const float *const A[], int lda,
                                  const float *const B[], int ldb, const float *beta, float *const C[], int ldc,
                                  int batch, const char *file, int line) {
    Operand a = {A, CUDA_R_32F, lda, 0}, b = {B, CUDA_R_32F, ldb, 0}, c = {C, CUDA_R_32F, ldc, 0};
    return multiply(handle, "cublasSgemmBatched", {file, line},
                    {transa, transb, m, n, k, alpha, beta, a, b, c, batch, CUBLAS_COMPUTE_32F, true});
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                         int m, int n, int k, const float *alpha, const float *A, int lda,
                                         long long stride_a, const float *B, int ldb, long long stride_b,
                                         const float *beta, float *C, int ldc, long long stride_c, int batch,
                                         const char *file, int line) {
    Operand a = {A, CUDA_R_32F, lda, stride_a}, b = {B, CUDA_R_32F, ldb, stride_b}, c = {C, CUDA_R_32F, ldc, stride_c};
    return multiply(handle, "cublasSgemmStridedBatched", {file, line},
                    {transa, transb, m, n, k, alpha, beta, a, b, c, batch, CUBLAS_COMPUTE_32F, false});
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void *alpha, const void *A, cudaDataType a_type, int lda, const void *B,
                            cudaDataType b_type, int ldb, const void *beta, void *C, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t, const char *file, int line) {
    Operand a = {A, a_type, lda, 0}, b = {B, b_type, ldb, 0}, c = {C, c_type, ldc, 0};
    return multiply(handle, "cublasGemmEx", {file, line},
                    {transa, transb, m, n, k, alpha, beta, a, b, c, 1, compute, false});
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                          int m, int n, int k, const void *alpha, const void *A, cudaDataType a_type,
                                          int lda, long long stride_a, const void *B, cudaDataType b_type, int ldb,
                                          long long stride_b, const void *beta, void *C, cudaDataType c_type, int ldc,
                                          long long stride_c, int batch, cublasComputeType_t compute, cublasGemmAlgo_t,
                                          const char *file, int line) {
    Operand a = {A, a_type, lda, stride_a}, b = {B, b_type, ldb, stride_b}, c = {C, c_type, ldc, stride_c};
    return multiply(handle, "cublasGemmStridedBatchedEx", {file, line},
                    {transa, transb, m, n, k, alpha, beta, a, b, c, batch, compute, false});
}
