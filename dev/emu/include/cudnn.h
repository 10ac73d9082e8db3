// cuDNN 9's graphs for the emulator (dev/emu/cudnn.cpp): the descriptors that attention needs, with the names and
// numbers of the real header. A graph is checked and computed as it is written, operation by operation. What the real
// library refuses, and what the emulator lacks, is reported and ends the program.
//
// A process makes all calls in one thread.
//
// The environment variable EMU_CUDNN chooses the library: 1 is a library, "none" is a library that has no engine for
// any graph. Without the variable the version is 0, which means that there is no library.
#ifndef EMU_CUDNN_H
#define EMU_CUDNN_H

#include "cuda_bf16.h"
#include "cuda_runtime.h"

#define CUDNN_MAJOR 9
#define CUDNN_MINOR 19
#define CUDNN_PATCHLEVEL 0

typedef struct cudnnContext *cudnnHandle_t;
typedef void *cudnnBackendDescriptor_t;

typedef enum {
    CUDNN_STATUS_SUCCESS = 0,
    CUDNN_STATUS_NOT_INITIALIZED = 1001,
    CUDNN_STATUS_BAD_PARAM = 2000,
    CUDNN_STATUS_NOT_SUPPORTED = 3000
} cudnnStatus_t;

typedef enum {
    CUDNN_DATA_FLOAT = 0,
    CUDNN_DATA_INT32 = 4,
    CUDNN_DATA_BFLOAT16 = 9,
    CUDNN_DATA_BOOLEAN = 11
} cudnnDataType_t;

typedef enum { CUDNN_REDUCE_TENSOR_ADD = 0, CUDNN_REDUCE_TENSOR_MAX = 3 } cudnnReduceTensorOp_t;

typedef enum {
    CUDNN_POINTWISE_ADD = 0,
    CUDNN_POINTWISE_MUL = 1,
    CUDNN_POINTWISE_DIV = 6,
    CUDNN_POINTWISE_SUB = 9,
    CUDNN_POINTWISE_EXP = 13,
    CUDNN_POINTWISE_LOG = 15,
    CUDNN_POINTWISE_IDENTITY = 21,
    CUDNN_POINTWISE_CMP_GE = 303,
    CUDNN_POINTWISE_GEN_INDEX = 501,
    CUDNN_POINTWISE_BINARY_SELECT = 601
} cudnnPointwiseMode_t;

// Each attribute: whose it is, its name and number, the type and most of its values, and what the emulator does with
// it.
#define EMU_CUDNN_ATTRIBUTES(ATTRIBUTE)                                                                                \
    ATTRIBUTE(TENSOR, UNIQUE_ID, 906, INT64, 1, NEEDED)                                                                \
    ATTRIBUTE(TENSOR, DATA_TYPE, 901, DATA_TYPE, 1, NEEDED)                                                            \
    ATTRIBUTE(TENSOR, DIMENSIONS, 902, INT64, 4, NEEDED)                                                               \
    ATTRIBUTE(TENSOR, STRIDES, 903, INT64, 4, NEEDED)                                                                  \
    ATTRIBUTE(TENSOR, BYTE_ALIGNMENT, 900, INT64, 1, NEEDED)                                                           \
    ATTRIBUTE(TENSOR, IS_VIRTUAL, 907, BOOLEAN, 1, OPTIONAL)                                                           \
    ATTRIBUTE(TENSOR, IS_BY_VALUE, 908, BOOLEAN, 1, OPTIONAL)                                                          \
    ATTRIBUTE(POINTWISE, MODE, 0, POINTWISE_MODE, 1, NEEDED)                                                           \
    ATTRIBUTE(POINTWISE, MATH_PREC, 1, DATA_TYPE, 1, NEEDED)                                                           \
    ATTRIBUTE(POINTWISE, AXIS, 9, INT64, 1, OPTIONAL)                                                                  \
    ATTRIBUTE(MATMUL, COMP_TYPE, 1500, DATA_TYPE, 1, NEEDED)                                                           \
    ATTRIBUTE(REDUCTION, OPERATOR, 1600, REDUCTION_OPERATOR_TYPE, 1, NEEDED)                                           \
    ATTRIBUTE(REDUCTION, COMP_TYPE, 1601, DATA_TYPE, 1, NEEDED)                                                        \
    ATTRIBUTE(OPERATION_POINTWISE, PW_DESCRIPTOR, 750, BACKEND_DESCRIPTOR, 1, SETTINGS)                                \
    ATTRIBUTE(OPERATION_POINTWISE, XDESC, 751, BACKEND_DESCRIPTOR, 1, INPUT)                                           \
    ATTRIBUTE(OPERATION_POINTWISE, BDESC, 752, BACKEND_DESCRIPTOR, 1, OPTIONAL_INPUT)                                  \
    ATTRIBUTE(OPERATION_POINTWISE, TDESC, 758, BACKEND_DESCRIPTOR, 1, OPTIONAL_INPUT)                                  \
    ATTRIBUTE(OPERATION_POINTWISE, YDESC, 753, BACKEND_DESCRIPTOR, 1, OUTPUT)                                          \
    ATTRIBUTE(OPERATION_MATMUL, DESC, 1523, BACKEND_DESCRIPTOR, 1, SETTINGS)                                           \
    ATTRIBUTE(OPERATION_MATMUL, ADESC, 1520, BACKEND_DESCRIPTOR, 1, INPUT)                                             \
    ATTRIBUTE(OPERATION_MATMUL, BDESC, 1521, BACKEND_DESCRIPTOR, 1, INPUT)                                             \
    ATTRIBUTE(OPERATION_MATMUL, CDESC, 1522, BACKEND_DESCRIPTOR, 1, OUTPUT)                                            \
    ATTRIBUTE(OPERATION_REDUCTION, DESC, 1612, BACKEND_DESCRIPTOR, 1, SETTINGS)                                        \
    ATTRIBUTE(OPERATION_REDUCTION, XDESC, 1610, BACKEND_DESCRIPTOR, 1, INPUT)                                          \
    ATTRIBUTE(OPERATION_REDUCTION, YDESC, 1611, BACKEND_DESCRIPTOR, 1, OUTPUT)                                         \
    ATTRIBUTE(OPERATION_RESHAPE, XDESC, 2200, BACKEND_DESCRIPTOR, 1, INPUT)                                            \
    ATTRIBUTE(OPERATION_RESHAPE, YDESC, 2201, BACKEND_DESCRIPTOR, 1, OUTPUT)                                           \
    ATTRIBUTE(OPERATIONGRAPH, OPS, 801, BACKEND_DESCRIPTOR, 64, NEEDED)                                                \
    ATTRIBUTE(OPERATIONGRAPH, HANDLE, 800, HANDLE, 1, NEEDED)                                                          \
    ATTRIBUTE(ENGINEHEUR, OPERATION_GRAPH, 201, BACKEND_DESCRIPTOR, 1, NEEDED)                                         \
    ATTRIBUTE(ENGINEHEUR, MODE, 200, HEUR_MODE, 1, NEEDED)                                                             \
    ATTRIBUTE(ENGINEHEUR, RESULTS, 202, BACKEND_DESCRIPTOR, 1, ANSWER)                                                 \
    ATTRIBUTE(ENGINECFG, ENGINE, 300, BACKEND_DESCRIPTOR, 1, ANSWER)                                                   \
    ATTRIBUTE(ENGINE, NUMERICAL_NOTE, 1303, NUMERICAL_NOTE, 1, ANSWER)                                                 \
    ATTRIBUTE(EXECUTION_PLAN, ENGINE_CONFIG, 401, BACKEND_DESCRIPTOR, 1, NEEDED)                                       \
    ATTRIBUTE(EXECUTION_PLAN, HANDLE, 400, HANDLE, 1, NEEDED)                                                          \
    ATTRIBUTE(EXECUTION_PLAN, WORKSPACE_SIZE, 402, INT64, 1, ANSWER)                                                   \
    ATTRIBUTE(VARIANT_PACK, UNIQUE_IDS, 1000, INT64, 64, NEEDED)                                                       \
    ATTRIBUTE(VARIANT_PACK, DATA_POINTERS, 1001, VOID_PTR, 64, NEEDED)                                                 \
    ATTRIBUTE(VARIANT_PACK, WORKSPACE, 1003, VOID_PTR, 1, NEEDED)
#define EMU_CUDNN_NAME(of, name, number, type, most, role) CUDNN_ATTR_##of##_##name = number,
typedef enum { EMU_CUDNN_ATTRIBUTES(EMU_CUDNN_NAME) } cudnnBackendAttributeName_t;

typedef enum {
    CUDNN_TYPE_HANDLE = 0,
    CUDNN_TYPE_DATA_TYPE = 1,
    CUDNN_TYPE_BOOLEAN = 2,
    CUDNN_TYPE_INT64 = 3,
    CUDNN_TYPE_VOID_PTR = 6,
    CUDNN_TYPE_HEUR_MODE = 8,
    CUDNN_TYPE_NUMERICAL_NOTE = 11,
    CUDNN_TYPE_POINTWISE_MODE = 14,
    CUDNN_TYPE_BACKEND_DESCRIPTOR = 15,
    CUDNN_TYPE_REDUCTION_OPERATOR_TYPE = 18
} cudnnBackendAttributeType_t;

typedef enum {
    CUDNN_BACKEND_POINTWISE_DESCRIPTOR = 0,
    CUDNN_BACKEND_ENGINE_DESCRIPTOR = 2,
    CUDNN_BACKEND_ENGINECFG_DESCRIPTOR = 3,
    CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR = 4,
    CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR = 5,
    CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR = 13,
    CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR = 15,
    CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR = 16,
    CUDNN_BACKEND_TENSOR_DESCRIPTOR = 17,
    CUDNN_BACKEND_MATMUL_DESCRIPTOR = 18,
    CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR = 19,
    CUDNN_BACKEND_REDUCTION_DESCRIPTOR = 21,
    CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR = 22,
    CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR = 31
} cudnnBackendDescriptorType_t;

typedef enum {
    CUDNN_NUMERICAL_NOTE_TENSOR_CORE = 0,
    CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC = 4
} cudnnBackendNumericalNote_t;

typedef enum { CUDNN_HEUR_MODE_A = 3 } cudnnBackendHeurMode_t;

size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(cudnnStatus_t status);
void cudnnGetLastErrorString(char *message, size_t size); // the last failed call
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle, EMU_HERE);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle, EMU_HERE);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream, EMU_HERE);
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor);
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor, EMU_HERE);
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor, EMU_HERE);
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values, EMU_HERE);
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values,
                                       EMU_HERE);
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack,
                                  EMU_HERE);

#endif // EMU_CUDNN_H
