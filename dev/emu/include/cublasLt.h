// The part of cuBLASLt that a trainer uses, computed on the CPU (cublaslt.cpp), with cuBLASLt's names and values.
//
//     D = epilogue(alpha op(A) op(B) + beta C)       op(A) (m, k), op(B) (k, n), C and D (m, n), column-major
//
// Inputs are fp32, tf32, bf16 or scaled 8 bits, outputs fp32 or bf16. Every sum and the epilogue are fp32, rounded once
// when stored. A call that cuBLASLt refuses is refused with its status. Behaviour that cuBLASLt leaves undefined
// (buffers that overlap, memory that nobody wrote, two streams in one workspace) is reported like a mistake of a
// kernel.
#ifndef EMU_CUBLASLT_H
#define EMU_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime_api.h"
#include "library_types.h"

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;

typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 } cublasOperation_t;

typedef enum {
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_64F = 70,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
} cublasComputeType_t;

typedef enum {
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,          // int32_t
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6, // int64_t, elements
} cublasLtMatrixLayoutAttribute_t;

typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,                // int32_t
    CUBLASLT_MATMUL_DESC_TRANSB = 4,                // int32_t
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,              // uint32_t
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,          // void *, of the type of D
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11, // void *
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,      // int64_t
    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,      // const float * on the device, NULL: 1; 8-bit matrices only
    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,      // like A_SCALE_POINTER
    CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25, // int8_t, 1: sums of 8-bit products may lose bits (no difference here)
} cublasLtMatmulDescAttributes_t;

// x = alpha op(A) op(B) + beta C, (m, n); aux is a matrix like D
typedef enum {
    CUBLASLT_EPILOGUE_DEFAULT = 1,         // D = x
    CUBLASLT_EPILOGUE_BIAS = 4,            // D = x + bias, one for each row of D
    CUBLASLT_EPILOGUE_GELU = 32,           // D = gelu(x)
    CUBLASLT_EPILOGUE_GELU_BIAS = 32 | 4,  // D = gelu(x + bias)
    CUBLASLT_EPILOGUE_GELU_AUX = 32 | 128, // D = gelu(x), aux = x
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 32 | 4 | 128,
    CUBLASLT_EPILOGUE_DGELU = 64 | 128, // D = x gelu'(aux)
} cublasLtEpilogue_t;

typedef enum {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
    CUBLASLT_REDUCTION_SCHEME_MASK = 7,
} cublasLtReductionScheme_t;

typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,   // uint64_t, 0 by default
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3, // uint32_t
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5, // uint32_t, 256 by default; 6 to 8: B, C, D
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
} cublasLtMatmulPreferenceAttributes_t;

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct {
    uint64_t data[8];
} cublasLtMatrixLayoutOpaque_t;
typedef cublasLtMatrixLayoutOpaque_t *cublasLtMatrixLayout_t;
typedef struct {
    uint64_t data[32];
} cublasLtMatmulDescOpaque_t;
typedef cublasLtMatmulDescOpaque_t *cublasLtMatmulDesc_t;
typedef struct {
    uint64_t data[8];
} cublasLtMatmulPreferenceOpaque_t;
typedef cublasLtMatmulPreferenceOpaque_t *cublasLtMatmulPreference_t;
typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
size_t cublasLtGetVersion(void);
const char *cublasLtGetStatusName(cublasStatus_t status);
const char *cublasLtGetStatusString(cublasStatus_t status);

// Descriptors live where the caller has them (Init), or on the heap (Create, Destroy).
cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType type, uint64_t rows, uint64_t cols,
                                        int64_t ld);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes);

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t desc, cublasComputeType_t compute, cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes);

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes);

// Returns one algorithm. A multiply then checks that the caller keeps the alignments and the workspace promised here.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                              cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned);

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t A_layout, const void *B, cublasLtMatrixLayout_t B_layout,
                              const void *beta, const void *C, cublasLtMatrixLayout_t C_layout, void *D,
                              cublasLtMatrixLayout_t D_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream, EMU_HERE);

#endif // EMU_CUBLASLT_H
