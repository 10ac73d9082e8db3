// Attention by cuDNN 9, if it is linked (make finds it and sets -DUSE_CUDNN). It has the inputs and outputs of
// llmc/layers/attention.cuh, lse included. So each of them can do the forward, the backward or both.
//
// The caller describes attention to cuDNN as a graph of operations, in the pattern that cuDNN's documentation calls
// fused flash attention. cuDNN's engines recognise the pattern and compute it in one kernel or three. The single
// attention operation of later 9.x knows no causal mask, so it is not used. Tensors are (B, NH, T, HS) by their
// strides, so that q, k and v stay interleaved in qkv (B,T,3C). Tensors between the operations are virtual, not stored.
//
// The deterministic backward stores dS (B,NH,T,T) in bf16 in the workspace, and computes dq as a product, dS K. The
// backward of --deterministic 0 stores no dS. It adds up parts of dq in fp32 with atomics, in any order, so the bits of
// dq differ from run to run. The backward takes a chunk of sequences at a time, so that its memory does not grow with
// the batch. The size of the chunk changes no bit of the deterministic backward.
//
// A run makes its plan at the start, for one (B, T). This takes 0.1 to 1 s, because cuDNN compiles kernels.
// llmc/layers/attention.cuh takes all other shapes, for example in evaluations.
#ifndef LLMC_CUDNN_ATT_H
#define LLMC_CUDNN_ATT_H

#include <float.h>
#include <math.h>

#include <initializer_list>

#include "llmc/cuda/cuda_common.h"

#ifdef USE_CUDNN
#include <cudnn.h>
#if CUDNN_MAJOR != 9
#error "cudnn.h is not of version 9: make CUDNN_HOME=/folder says where cuDNN 9 is, CUDNN=0 leaves it out"
#endif

typedef cudnnBackendDescriptor_t CudnnDescriptor;

#define CUDNN_GRAPH_DESCRIPTORS 128
#define CUDNN_GRAPH_OPERATIONS 32
#define CUDNN_FIRST_VIRTUAL 16 // the number of a graph's first virtual tensor

// Describes a tensor with memory of the caller. Its number is its place in the graph's list, from 1.
typedef struct {
    int array;
    int64_t row_bytes, first_byte; // from one token to the next; of the first one
} CudnnNamed;

// The description of a graph. After a failed call, all later calls do nothing.
typedef struct {
    CudnnDescriptor made[CUDNN_GRAPH_DESCRIPTORS], operations[CUDNN_GRAPH_OPERATIONS];
    CudnnNamed named[CUDNN_FIRST_VIRTUAL];
    int num_made, num_operations, num_named;
    int64_t virtual_uid;
    int64_t B, NH, T, HS;
    cudnnStatus_t status;
    char error[256];
} CudnnGraph;

typedef struct {
    CudnnDescriptor descriptor; // of the graph's
    CudnnGraph graph;           // it must live as long as the plan
} CudnnPlan;
#endif

// The largest workspace in bytes of a chunk of two or more sequences. Up to 256 MiB NVIDIA's own frontend also prefers
// the backward with a stored dS. One sequence may take more.
#define CUDNN_ATT_MAX_WORKSPACE (256 << 20)
#define CUDNN_ATT_SLACK (64 << 10)  // bytes of a workspace for cuDNN's additions to its tensors (256 in 9.19)
#define CUDNN_ATT_MAX_HEAD_SIZE 128 // of the backward on all GPUs; only sm_90 takes larger heads
#define CUDNN_ATT_TOKENS 128        // T is a multiple of it

// The attention that a run asks of cuDNN.
typedef struct {
    int B, T, C, NH;
    bool deterministic;
} CudnnShape;

typedef struct {
    bool is_open;
    CudnnShape shape;
    int chunk; // sequences that the backward takes at a time; the last chunk has B % chunk, if that is not 0
    void *forward_workspace, *backward_workspace;
#ifdef USE_CUDNN
    cudnnHandle_t handle;
    CudnnPlan forward, backward, rest; // rest: the backward of B % chunk sequences
#endif
} CudnnAttention;

// The bytes of dq's fp32 sums (sequences, NH, T, HS), which the backward with atomics adds to. The deterministic
// backward needs 0.
static inline int64_t cudnn_att_sum_bytes(const CudnnShape *shape, int sequences) {
    return shape->deterministic ? 0 : (int64_t)sequences * shape->T * shape->C * (int64_t)sizeof(float);
}

// The most bytes that the backward of `sequences` sequences needs, plus slack: delta = sum(do * out) of each row in
// fp32, and dS. Without dS it needs dq's sums twice, because some GPUs' engines add up in memory of their own.
static inline int64_t cudnn_att_workspace_for(const CudnnShape *shape, int sequences) {
    int64_t rows = (int64_t)sequences * shape->NH * shape->T;
    int64_t larger = shape->deterministic ? rows * shape->T * 2 : 2 * cudnn_att_sum_bytes(shape, sequences);
    return larger + rows * (int64_t)sizeof(float) + CUDNN_ATT_SLACK;
}

// The number of sequences that the backward takes at a time: as many as the workspace holds, at least one. A divisor of
// B needs only one plan, so it is preferred if it is at least half of that number. Otherwise all chunks but the last
// have one size.
static inline int cudnn_att_chunk(const CudnnShape *shape) {
    int most = shape->B;
    while (most > 1 && cudnn_att_workspace_for(shape, most) > CUDNN_ATT_MAX_WORKSPACE) { most--; }
    int divisor = most;
    while (shape->B % divisor != 0) { divisor--; }
    int passes = (shape->B + most - 1) / most;
    return 2 * divisor >= most ? divisor : (shape->B + passes - 1) / passes;
}

// Returns the bytes of the backward workspace for cudnn_att_set_workspace. They follow from the shape, without a GPU,
// and suffice for every smaller chunk. The forward workspace needs CUDNN_ATT_SLACK bytes.
static inline int64_t cudnn_att_backward_bytes(const CudnnShape *shape) {
    return cudnn_att_workspace_for(shape, cudnn_att_chunk(shape));
}

// Is there a plan for this batch?
static inline bool cudnn_att_takes(const CudnnAttention *att, int B, int T) {
    return att->is_open && att->shape.B == B && att->shape.T == T;
}

// Sets the workspaces, which are device memory. Only one stream at a time may use them.
static inline void cudnn_att_set_workspace(CudnnAttention *att, void *forward, void *backward) {
    att->forward_workspace = forward;
    att->backward_workspace = backward;
}

// Writes the version, as "9.19.0", or "" without cuDNN.
static inline void cudnn_att_version_text(char *text, size_t size) {
    text[0] = '\0';
#ifdef USE_CUDNN
    int version = (int)cudnnGetVersion();
    if (version == 0) { return; }
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
#else
    (void)size;
#endif
}

#ifdef USE_CUDNN

// Returns the reason to refuse a version (91900: 9.19.0) even if it has a plan, or NULL. NVIDIA's own frontend for
// cuDNN refuses these versions because their results are wrong.
static inline const char *cudnn_att_fault(int version) {
    bool faulty = version == 91000 || version == 91001;
    return faulty ? "has faults in attention's backward; expected 9.10.2 or later" : NULL;
}

// Is there a deterministic backward for this version and GPU? On Blackwell (10.x) there is none before 9.18.0.
static inline bool cudnn_att_repeats(int version, int compute_major) { return compute_major != 10 || version >= 91800; }

// Can cuDNN be asked for attention of this shape? The answer needs no GPU. Only cudnn_att_open finds out whether there
// is a plan. Public reports of NaNs name cuDNN's kernel for a T that is no multiple of 128, so no version is asked for
// such a T.
static inline bool cudnn_att_check(const CudnnShape *shape, Error *error) {
    int HS = shape->C / shape->NH, version = (int)cudnnGetVersion();
    if (PRECISION_IS_FP32) { return fail(error, "cuDNN's attention is for bf16, and this is the fp32 build"); }
    if (version == 0) { return fail(error, "the emulator has a cuDNN only with EMU_CUDNN=1"); }
    if (version / 10000 != 9) { return fail(error, "the cuDNN library says version %d, expected 9", version); }
    if (HS % 8 != 0 || HS > CUDNN_ATT_MAX_HEAD_SIZE) {
        return fail(error, "heads of %d channels, cuDNN takes multiples of 8 up to %d", HS, CUDNN_ATT_MAX_HEAD_SIZE);
    }
    if (shape->T % CUDNN_ATT_TOKENS != 0) {
        return fail(error, "sequences of %d tokens, cuDNN is asked for multiples of %d only", shape->T,
                    CUDNN_ATT_TOKENS);
    }
    const char *fault = cudnn_att_fault(version);
    if (fault != NULL) {
        char text[32];
        cudnn_att_version_text(text, sizeof(text));
        return fail(error, "cuDNN %s %s", text, fault);
    }
    return true;
}

// ---- Descriptors ----

static inline bool cudnn_ok(CudnnGraph *graph, cudnnStatus_t status, const char *what) {
    if (graph->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS) {
        char reason[160] = "";
        cudnnGetLastErrorString(reason, sizeof(reason));
        graph->status = status;
        snprintf(graph->error, sizeof(graph->error), "%s: %s (%s)", what, cudnnGetErrorString(status), reason);
    }
    return graph->status == CUDNN_STATUS_SUCCESS;
}

// cuDNN's word for the type of an attribute's values.
#define CUDNN_TYPE_OF(T, word)                                                                                         \
    static inline cudnnBackendAttributeType_t cudnn_type_of(const T *) { return word; }
CUDNN_TYPE_OF(int64_t, CUDNN_TYPE_INT64)
CUDNN_TYPE_OF(bool, CUDNN_TYPE_BOOLEAN)
CUDNN_TYPE_OF(cudnnDataType_t, CUDNN_TYPE_DATA_TYPE)
CUDNN_TYPE_OF(cudnnHandle_t, CUDNN_TYPE_HANDLE)
CUDNN_TYPE_OF(CudnnDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR)
CUDNN_TYPE_OF(cudnnPointwiseMode_t, CUDNN_TYPE_POINTWISE_MODE)
CUDNN_TYPE_OF(cudnnReduceTensorOp_t, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE)
CUDNN_TYPE_OF(cudnnBackendHeurMode_t, CUDNN_TYPE_HEUR_MODE)
CUDNN_TYPE_OF(cudnnBackendNumericalNote_t, CUDNN_TYPE_NUMERICAL_NOTE)

// An attribute of a descriptor. With count 0 the descriptor does not get it.
struct CudnnAttribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values;

    template <class T>
    CudnnAttribute(cudnnBackendAttributeName_t of, const T *first, int64_t number = 1)
        : name(of), type(cudnn_type_of(first)), count(number), values(first) {}
};

// Makes a descriptor without attributes. cudnn_graph_end destroys it.
static inline CudnnDescriptor cudnn_make(CudnnGraph *graph, cudnnBackendDescriptorType_t type) {
    CudnnDescriptor descriptor = NULL;
    if (graph->status != CUDNN_STATUS_SUCCESS) { return NULL; }
    if (graph->num_made == CUDNN_GRAPH_DESCRIPTORS) { abort(); } // a programming error: graphs are written by hand
    if (cudnn_ok(graph, cudnnBackendCreateDescriptor(type, &descriptor), "a descriptor")) {
        graph->made[graph->num_made++] = descriptor;
    }
    return descriptor;
}

// Makes a descriptor with its attributes and finalizes it. what: in words, for an error.
static inline CudnnDescriptor cudnn_describe(CudnnGraph *graph, const char *what, cudnnBackendDescriptorType_t type,
                                             std::initializer_list<CudnnAttribute> attributes) {
    CudnnDescriptor descriptor = cudnn_make(graph, type);
    for (const CudnnAttribute &a : attributes) {
        if (graph->status != CUDNN_STATUS_SUCCESS) { return NULL; }
        if (a.count == 0) { continue; }
        cudnn_ok(graph, cudnnBackendSetAttribute(descriptor, a.name, a.type, a.count, a.values), what);
    }
    if (graph->status == CUDNN_STATUS_SUCCESS) { cudnn_ok(graph, cudnnBackendFinalize(descriptor), what); }
    return descriptor;
}

// Reads up to `room` values of an attribute. Returns their number.
template <class T>
static inline int64_t cudnn_get(CudnnGraph *graph, CudnnDescriptor descriptor, cudnnBackendAttributeName_t name,
                                T *values, int64_t room) {
    int64_t count = 0;
    if (graph->status != CUDNN_STATUS_SUCCESS) { return 0; }
    bool ok = cudnn_ok(graph, cudnnBackendGetAttribute(descriptor, name, cudnn_type_of(values), room, &count, values),
                       "a question");
    return ok ? min_i64(count, room) : 0;
}

// ---- Tensors ----

// Holds the caller's arrays. The last three are numbers in host memory.
enum {
    CUDNN_QKV,
    CUDNN_DQKV,
    CUDNN_OUT,
    CUDNN_DOUT,
    CUDNN_LSE,
    CUDNN_DQ_SUMS,
    CUDNN_SCALE,
    CUDNN_MASKED,
    CUDNN_ONE,
    CUDNN_ARRAYS
};
enum { CUDNN_Q, CUDNN_K, CUDNN_V }; // the parts of a row of qkv and dqkv

typedef struct {
    int64_t of[4];
} CudnnDims;

static inline CudnnDescriptor cudnn_tensor(CudnnGraph *graph, int64_t uid, cudnnDataType_t type, CudnnDims dims,
                                           CudnnDims strides) {
    int64_t alignment = dims.of[3] % 8 == 0 ? 16 : 4; // bytes; rows are of one value or a multiple of 8
    bool is_virtual = uid >= CUDNN_FIRST_VIRTUAL, by_value = !is_virtual && graph->named[uid - 1].array >= CUDNN_SCALE;
    return cudnn_describe(graph, "a tensor", CUDNN_BACKEND_TENSOR_DESCRIPTOR,
                          {{CUDNN_ATTR_TENSOR_UNIQUE_ID, &uid},
                           {CUDNN_ATTR_TENSOR_DATA_TYPE, &type},
                           {CUDNN_ATTR_TENSOR_DIMENSIONS, dims.of, 4},
                           {CUDNN_ATTR_TENSOR_STRIDES, strides.of, 4},
                           {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &alignment},
                           {CUDNN_ATTR_TENSOR_IS_VIRTUAL, &is_virtual},
                           {CUDNN_ATTR_TENSOR_IS_BY_VALUE, &by_value}});
}

// Numbers a tensor with memory of the caller, and notes where it lies for cudnn_run.
static inline int64_t cudnn_name(CudnnGraph *graph, int array, int64_t row_bytes, int64_t first_byte) {
    if (graph->num_named == CUDNN_FIRST_VIRTUAL - 1) { abort(); }
    graph->named[graph->num_named++] = {array, row_bytes, first_byte};
    return graph->num_named;
}

// Returns a tensor (B, NH, T, HS) of an array in bf16, or (B, NH, HS, T) if transposed. A row of qkv and dqkv has
// three parts.
static inline CudnnDescriptor cudnn_heads(CudnnGraph *graph, int array, int part = 0, bool transposed = false) {
    int64_t T = graph->T, HS = graph->HS, C = graph->NH * HS, row = array <= CUDNN_DQKV ? 3 * C : C;
    int64_t uid = cudnn_name(graph, array, row * 2, part * C * 2);
    CudnnDims dims = {{graph->B, graph->NH, transposed ? HS : T, transposed ? T : HS}};
    CudnnDims strides = {{T * row, HS, transposed ? 1 : row, transposed ? row : 1}};
    return cudnn_tensor(graph, uid, CUDNN_DATA_BFLOAT16, dims, strides);
}

// Returns a packed tensor (B, NH, T, width).
static inline CudnnDescriptor cudnn_packed(CudnnGraph *graph, int64_t uid, cudnnDataType_t type, int64_t width) {
    CudnnDims dims = {{graph->B, graph->NH, graph->T, width}};
    CudnnDims strides = {{graph->NH * graph->T * width, graph->T * width, width, 1}};
    return cudnn_tensor(graph, uid, type, dims, strides);
}

static inline CudnnDescriptor cudnn_lse(CudnnGraph *graph) {
    int64_t uid = cudnn_name(graph, CUDNN_LSE, graph->NH * (int64_t)sizeof(float), 0);
    return cudnn_packed(graph, uid, CUDNN_DATA_FLOAT, 1);
}

// One fp32 number.
static inline CudnnDescriptor cudnn_number(CudnnGraph *graph, int array) {
    CudnnDims ones = {{1, 1, 1, 1}};
    return cudnn_tensor(graph, cudnn_name(graph, array, 0, 0), CUDNN_DATA_FLOAT, ones, ones);
}

// Returns a tensor between operations (B, NH, T, width).
static inline CudnnDescriptor cudnn_virtual(CudnnGraph *graph, cudnnDataType_t type, int64_t width) {
    return cudnn_packed(graph, graph->virtual_uid++, type, width);
}

// ---- Operations ----

static inline void cudnn_operation(CudnnGraph *graph, const char *what, cudnnBackendDescriptorType_t type,
                                   std::initializer_list<CudnnAttribute> attributes) {
    CudnnDescriptor operation = cudnn_describe(graph, what, type, attributes);
    if (graph->status != CUDNN_STATUS_SUCCESS) { return; }
    if (graph->num_operations == CUDNN_GRAPH_OPERATIONS) { abort(); }
    graph->operations[graph->num_operations++] = operation;
}

static const cudnnDataType_t cudnn_fp32 = CUDNN_DATA_FLOAT; // the precision of all operations

// y = mode(x, b), or y = mask ? x : b for a selection. b and mask may be NULL. axis: of CUDNN_POINTWISE_GEN_INDEX.
static inline void cudnn_pointwise(CudnnGraph *graph, cudnnPointwiseMode_t mode, CudnnDescriptor x, CudnnDescriptor b,
                                   CudnnDescriptor y, CudnnDescriptor mask = NULL, int64_t axis = -1) {
    const char *what = "a pointwise operation";
    CudnnDescriptor settings = cudnn_describe(graph, what, CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                                              {{CUDNN_ATTR_POINTWISE_MODE, &mode},
                                               {CUDNN_ATTR_POINTWISE_MATH_PREC, &cudnn_fp32},
                                               {CUDNN_ATTR_POINTWISE_AXIS, &axis, axis >= 0}});
    cudnn_operation(graph, what, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                    {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &settings},
                     {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &x},
                     {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &b, b != NULL},
                     {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &mask, mask != NULL},
                     {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &y}});
}

// mode(x, b) as a virtual tensor in fp32 (B, NH, T, width).
static inline CudnnDescriptor cudnn_map(CudnnGraph *graph, cudnnPointwiseMode_t mode, CudnnDescriptor x,
                                        CudnnDescriptor b, int64_t width) {
    CudnnDescriptor y = cudnn_virtual(graph, CUDNN_DATA_FLOAT, width);
    cudnn_pointwise(graph, mode, x, b, y);
    return y;
}

// c = a b for each head.
static inline void cudnn_matmul(CudnnGraph *graph, CudnnDescriptor a, CudnnDescriptor b, CudnnDescriptor c) {
    CudnnDescriptor settings = cudnn_describe(graph, "a matrix product", CUDNN_BACKEND_MATMUL_DESCRIPTOR,
                                              {{CUDNN_ATTR_MATMUL_COMP_TYPE, &cudnn_fp32}});
    cudnn_operation(graph, "a matrix product", CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                    {{CUDNN_ATTR_OPERATION_MATMUL_DESC, &settings},
                     {CUDNN_ATTR_OPERATION_MATMUL_ADESC, &a},
                     {CUDNN_ATTR_OPERATION_MATMUL_BDESC, &b},
                     {CUDNN_ATTR_OPERATION_MATMUL_CDESC, &c}});
}

// The sum or the largest value of each row of x, as a virtual tensor (B, NH, T, 1).
static inline CudnnDescriptor cudnn_reduce(CudnnGraph *graph, cudnnReduceTensorOp_t how, CudnnDescriptor x) {
    CudnnDescriptor y = cudnn_virtual(graph, CUDNN_DATA_FLOAT, 1);
    CudnnDescriptor settings =
        cudnn_describe(graph, "a reduction", CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                       {{CUDNN_ATTR_REDUCTION_OPERATOR, &how}, {CUDNN_ATTR_REDUCTION_COMP_TYPE, &cudnn_fp32}});
    cudnn_operation(graph, "a reduction", CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                    {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, &settings},
                     {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &x},
                     {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &y}});
    return y;
}

// Returns the transpose of each head of x (B, NH, T, T), as bf16: a reshape to swapped strides.
static inline CudnnDescriptor cudnn_transpose(CudnnGraph *graph, CudnnDescriptor x) {
    int64_t NH = graph->NH, T = graph->T;
    CudnnDescriptor y = cudnn_tensor(graph, graph->virtual_uid++, CUDNN_DATA_BFLOAT16, {{graph->B, NH, T, T}},
                                     {{NH * T * T, T * T, 1, T}});
    cudnn_operation(graph, "a reshape", CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                    {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &x}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &y}});
    return y;
}

// ---- Attention as graphs ----

static inline void cudnn_graph_begin(CudnnGraph *graph, const CudnnShape *shape, int sequences) {
    memset(graph, 0, sizeof(*graph));
    graph->virtual_uid = CUDNN_FIRST_VIRTUAL;
    graph->B = sequences, graph->T = shape->T, graph->NH = shape->NH, graph->HS = shape->C / shape->NH;
}

static inline void cudnn_graph_end(CudnnGraph *graph) {
    while (graph->num_made > 0) { cudnnBackendDestroyDescriptor(graph->made[--graph->num_made]); }
}

// Returns the scores (B, NH, T, T) without a mask: scale q[i].k[j].
static inline CudnnDescriptor cudnn_scores(CudnnGraph *graph, CudnnDescriptor q, CudnnDescriptor scale) {
    CudnnDescriptor products = cudnn_virtual(graph, CUDNN_DATA_FLOAT, graph->T);
    cudnn_matmul(graph, q, cudnn_heads(graph, CUDNN_QKV, CUDNN_K, true), products);
    return cudnn_map(graph, CUDNN_POINTWISE_MUL, products, scale, graph->T);
}

// y (B, NH, T, T) = x for j <= i, and the number CUDNN_MASKED for j > i.
static inline CudnnDescriptor cudnn_mask(CudnnGraph *graph, CudnnDescriptor x) {
    CudnnDescriptor i = cudnn_virtual(graph, CUDNN_DATA_INT32, graph->T);
    CudnnDescriptor j = cudnn_virtual(graph, CUDNN_DATA_INT32, graph->T);
    CudnnDescriptor is_seen = cudnn_virtual(graph, CUDNN_DATA_BOOLEAN, graph->T);
    CudnnDescriptor y = cudnn_virtual(graph, CUDNN_DATA_FLOAT, graph->T);
    cudnn_pointwise(graph, CUDNN_POINTWISE_GEN_INDEX, x, NULL, i, NULL, 2);
    cudnn_pointwise(graph, CUDNN_POINTWISE_GEN_INDEX, x, NULL, j, NULL, 3);
    cudnn_pointwise(graph, CUDNN_POINTWISE_CMP_GE, i, j, is_seen);
    cudnn_pointwise(graph, CUDNN_POINTWISE_BINARY_SELECT, x, cudnn_number(graph, CUDNN_MASKED), y, is_seen);
    return y;
}

// p = exp(s - max) / sum;  out = p v;  lse = max + log(sum)
static inline void cudnn_describe_forward(CudnnGraph *graph) {
    int64_t T = graph->T;
    CudnnDescriptor q = cudnn_heads(graph, CUDNN_QKV, CUDNN_Q), scale = cudnn_number(graph, CUDNN_SCALE);
    CudnnDescriptor scores = cudnn_mask(graph, cudnn_scores(graph, q, scale));
    CudnnDescriptor max = cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_MAX, scores);
    CudnnDescriptor below = cudnn_map(graph, CUDNN_POINTWISE_SUB, scores, max, T);
    CudnnDescriptor exps = cudnn_map(graph, CUDNN_POINTWISE_EXP, below, NULL, T);
    CudnnDescriptor sum = cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, exps);
    CudnnDescriptor log_sum = cudnn_map(graph, CUDNN_POINTWISE_LOG, sum, NULL, 1);
    CudnnDescriptor p = cudnn_virtual(graph, CUDNN_DATA_BFLOAT16, T);
    cudnn_pointwise(graph, CUDNN_POINTWISE_ADD, max, log_sum, cudnn_lse(graph));
    cudnn_pointwise(graph, CUDNN_POINTWISE_DIV, exps, sum, p);
    cudnn_matmul(graph, p, cudnn_heads(graph, CUDNN_QKV, CUDNN_V), cudnn_heads(graph, CUDNN_OUT));
}

// delta = sum(do * out) of each row. cuDNN stores delta, and looks for it behind a factor: dropout's 1 / (1 - p), which
// is 1 here. Without the factor, 9.19 stores the next (B, NH, T, T) tensor instead, as the workspace's size shows.
static inline CudnnDescriptor cudnn_delta(CudnnGraph *graph, CudnnDescriptor dout) {
    CudnnDescriptor products = cudnn_map(graph, CUDNN_POINTWISE_MUL, dout, cudnn_heads(graph, CUDNN_OUT), graph->HS);
    CudnnDescriptor sums = cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, products);
    return cudnn_map(graph, CUDNN_POINTWISE_MUL, sums, cudnn_number(graph, CUDNN_ONE), 1);
}

// dS (B, NH, T, T) = scale * p * (do v^T - delta)
static inline CudnnDescriptor cudnn_dscores(CudnnGraph *graph, CudnnDescriptor p, CudnnDescriptor dout,
                                            CudnnDescriptor delta, CudnnDescriptor scale) {
    int64_t T = graph->T;
    CudnnDescriptor dp = cudnn_virtual(graph, CUDNN_DATA_FLOAT, T), ds = cudnn_virtual(graph, CUDNN_DATA_BFLOAT16, T);
    cudnn_matmul(graph, dout, cudnn_heads(graph, CUDNN_QKV, CUDNN_V, true), dp);
    CudnnDescriptor above = cudnn_map(graph, CUDNN_POINTWISE_SUB, dp, delta, T);
    cudnn_pointwise(graph, CUDNN_POINTWISE_MUL, cudnn_map(graph, CUDNN_POINTWISE_MUL, above, p, T), scale, ds);
    return ds;
}

// dq = dS k. With atomics the product comes in fp32 first. The caller clears these sums, because cuDNN adds to them.
static inline void cudnn_describe_dq(CudnnGraph *graph, CudnnDescriptor ds, bool deterministic) {
    CudnnDescriptor k = cudnn_heads(graph, CUDNN_QKV, CUDNN_K), dq = cudnn_heads(graph, CUDNN_DQKV, CUDNN_Q);
    if (deterministic) {
        cudnn_matmul(graph, ds, k, dq);
        return;
    }
    CudnnDescriptor sums = cudnn_packed(graph, cudnn_name(graph, CUDNN_DQ_SUMS, 0, 0), CUDNN_DATA_FLOAT, graph->HS);
    cudnn_matmul(graph, ds, k, sums);
    cudnn_pointwise(graph, CUDNN_POINTWISE_IDENTITY, sums, NULL, dq);
}

// p = exp(mask(s - lse));  dv = p^T do;  dq = dS k;  dk = dS^T q. The mask comes after the subtraction of lse. So
// cuDNN's kernels take scale and lse in one fused multiply-add, and p of a masked score is exp of the mask's number.
static inline void cudnn_describe_backward(CudnnGraph *graph, bool deterministic) {
    int64_t T = graph->T;
    CudnnDescriptor q = cudnn_heads(graph, CUDNN_QKV, CUDNN_Q), dout = cudnn_heads(graph, CUDNN_DOUT);
    CudnnDescriptor scale = cudnn_number(graph, CUDNN_SCALE), delta = cudnn_delta(graph, dout);
    CudnnDescriptor scores = cudnn_scores(graph, q, scale), lse = cudnn_lse(graph);
    CudnnDescriptor below = cudnn_map(graph, CUDNN_POINTWISE_SUB, scores, lse, T);
    CudnnDescriptor p = cudnn_map(graph, CUDNN_POINTWISE_EXP, cudnn_mask(graph, below), NULL, T);
    cudnn_matmul(graph, cudnn_transpose(graph, p), dout, cudnn_heads(graph, CUDNN_DQKV, CUDNN_V));
    CudnnDescriptor ds = cudnn_dscores(graph, p, dout, delta, scale);
    cudnn_describe_dq(graph, ds, deterministic);
    cudnn_matmul(graph, cudnn_transpose(graph, ds), q, cudnn_heads(graph, CUDNN_DQKV, CUDNN_K));
}

// ---- Plans ----

// Does this configuration's engine say that its bits differ from run to run?
static inline bool cudnn_is_random(CudnnGraph *graph, CudnnDescriptor config) {
    cudnnBackendNumericalNote_t notes[32];
    CudnnDescriptor engine = cudnn_make(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnn_get(graph, config, CUDNN_ATTR_ENGINECFG_ENGINE, &engine, 1);
    int64_t count = cudnn_get(graph, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes, 32);
    for (int64_t i = 0; i < count; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) { return true; }
    }
    return false;
}

// Makes the plan of one configuration. If it fails, it returns false and leaves the graph usable, so that the caller
// can try the next configuration.
static inline bool cudnn_try_config(CudnnPlan *plan, CudnnDescriptor config, cudnnHandle_t handle,
                                    int64_t workspace_bytes, bool deterministic) {
    CudnnGraph *graph = &plan->graph;
    bool is_random = deterministic && cudnn_is_random(graph, config);
    int64_t bytes = 0;
    if (!is_random) {
        plan->descriptor = cudnn_describe(
            graph, "a plan", CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
            {{CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &handle}, {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &config}});
        cudnn_get(graph, plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &bytes, 1);
    }
    if (!is_random && graph->status == CUDNN_STATUS_SUCCESS && bytes <= workspace_bytes) { return true; }
    if (graph->error[0] == '\0') {
        snprintf(graph->error, sizeof(graph->error),
                 is_random ? "its engine is not deterministic" : "it wants %lld bytes of workspace, not %lld",
                 (long long)bytes, (long long)workspace_bytes);
    }
    graph->status = CUDNN_STATUS_SUCCESS;
    return false;
}

// Finds the engines' configurations for the graph, best first. Returns their number.
#define CUDNN_MAX_CONFIGS 8
static inline int64_t cudnn_find_configs(CudnnGraph *graph, CudnnDescriptor *configs, cudnnHandle_t handle) {
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    CudnnDescriptor operations =
        cudnn_describe(graph, "the graph", CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                       {{CUDNN_ATTR_OPERATIONGRAPH_OPS, graph->operations, graph->num_operations},
                        {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &handle}});
    CudnnDescriptor heuristic =
        cudnn_describe(graph, "the choice of an engine", CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
                       {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &operations}, {CUDNN_ATTR_ENGINEHEUR_MODE, &mode}});
    for (int i = 0; i < CUDNN_MAX_CONFIGS; i++) { configs[i] = cudnn_make(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR); }
    return cudnn_get(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, configs, CUDNN_MAX_CONFIGS);
}

// Makes the plan for plan->graph, which must be described. It takes the best engine that needs at most workspace_bytes,
// and that is deterministic if `deterministic` asks for it.
static inline bool cudnn_make_plan(CudnnPlan *plan, cudnnHandle_t handle, int64_t workspace_bytes, bool deterministic,
                                   const char *what, Error *error) {
    char version[32];
    CudnnDescriptor configs[CUDNN_MAX_CONFIGS];
    int64_t count = cudnn_find_configs(&plan->graph, configs, handle);
    for (int64_t i = 0; i < count; i++) {
        if (cudnn_try_config(plan, configs[i], handle, workspace_bytes, deterministic)) { return true; }
    }
    cudnn_att_version_text(version, sizeof(version));
    return fail(error,
                "cuDNN %s has no plan for attention's %s (%s); it needs NVRTC of its CUDA release (see `make doctor`); "
                "CUDNN_LOGLEVEL_DBG=2 CUDNN_LOGDEST_DBG=stderr shows why",
                version, what, plan->graph.error[0] != '\0' ? plan->graph.error : "no engine takes it");
}

static inline void cudnn_att_close(CudnnAttention *att) {
    for (CudnnPlan *plan : {&att->forward, &att->backward, &att->rest}) { cudnn_graph_end(&plan->graph); }
    if (att->handle != NULL) { cudnnDestroy(att->handle); }
    memset(att, 0, sizeof(*att));
}

static inline bool cudnn_att_plan_forward(CudnnAttention *att, Error *error) {
    cudnn_graph_begin(&att->forward.graph, &att->shape, att->shape.B);
    cudnn_describe_forward(&att->forward.graph);
    return cudnn_make_plan(&att->forward, att->handle, CUDNN_ATT_SLACK, true, "forward", error);
}

// Makes the plan of the backward of `sequences` sequences. For 0 sequences it makes none.
static inline bool cudnn_att_plan_backward(CudnnAttention *att, CudnnPlan *plan, int sequences, Error *error) {
    const CudnnShape *shape = &att->shape;
    int64_t bytes = cudnn_att_workspace_for(shape, sequences) - cudnn_att_sum_bytes(shape, sequences);
    if (sequences == 0) { return true; }
    cudnn_graph_begin(&plan->graph, shape, sequences);
    cudnn_describe_backward(&plan->graph, shape->deterministic);
    return cudnn_make_plan(plan, att->handle, bytes, shape->deterministic, "backward", error);
}

// Does the work of cudnn_att_open with a given chunk: the number of sequences that the backward takes at a time.
static inline bool cudnn_att_open_chunked(CudnnAttention *att, const CudnnShape *shape, int chunk, Error *error) {
    memset(att, 0, sizeof(*att));
    att->shape = *shape, att->chunk = chunk;
    int device = 0, major = 0;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (shape->deterministic && !cudnn_att_repeats((int)cudnnGetVersion(), major)) {
        return fail(error, "before 9.18.0 cuDNN's attention is not deterministic on GPUs of compute capability 10.x");
    }
    cudnnStatus_t status = cudnnCreate(&att->handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        att->handle = NULL;
        return fail(error, "cuDNN does not start: %s; expected a cuDNN 9 for this CUDA and driver",
                    cudnnGetErrorString(status));
    }
    att->is_open = cudnn_att_plan_forward(att, error) && cudnn_att_plan_backward(att, &att->backward, chunk, error) &&
                   cudnn_att_plan_backward(att, &att->rest, shape->B % chunk, error);
    if (!att->is_open) { cudnn_att_close(att); }
    return att->is_open;
}

// ---- Running them ----

static inline void cudnn_check_status(cudnnStatus_t status, const char *call, const char *file, int line) {
    char reason[512] = "";
    if (status == CUDNN_STATUS_SUCCESS) { return; }
    cudnnGetLastErrorString(reason, sizeof(reason));
    fflush(stdout);
    say(stderr, "%s:%d: %s failed: %s (%s); --attention own does without cuDNN\n", file, line, call,
        cudnnGetErrorString(status), reason);
    _exit(EXIT_FAILURE);
}
#define cudnn_check(call) cudnn_check_status((call), #call, __FILE__, __LINE__)

// Returns the number for masked scores. Before 9.10 NVIDIA's own frontend masks with the lowest finite number. Its
// exponential is also 0.
static inline float cudnn_att_masked(int version) { return version >= 91000 ? -INFINITY : -FLT_MAX; }

// Runs a plan for its sequences from `first` on. arrays (CUDNN_ARRAYS): of the whole batch, without the numbers.
static inline void cudnn_run(const CudnnAttention *att, const CudnnPlan *plan, const void **arrays, int64_t first,
                             void *workspace, cudaStream_t stream) {
    const CudnnGraph *graph = &plan->graph;
    const float scale = 1.0f / sqrtf((float)graph->HS), masked = cudnn_att_masked((int)cudnnGetVersion()), one = 1.0f;
    const void *pointers[CUDNN_FIRST_VIRTUAL];
    int64_t uids[CUDNN_FIRST_VIRTUAL];
    CudnnDescriptor pack = NULL;
    arrays[CUDNN_SCALE] = &scale, arrays[CUDNN_MASKED] = &masked, arrays[CUDNN_ONE] = &one;
    for (int i = 0; i < graph->num_named; i++) {
        const CudnnNamed *tensor = &graph->named[i];
        pointers[i] = (const char *)arrays[tensor->array] + first * graph->T * tensor->row_bytes + tensor->first_byte;
        uids[i] = i + 1;
    }
    cudnn_check(cudnnSetStream(att->handle, stream));
    cudnn_check(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    cudnn_check(
        cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, graph->num_named, uids));
    cudnn_check(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                         graph->num_named, pointers));
    cudnn_check(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
    cudnn_check(cudnnBackendFinalize(pack));
    cudnn_check(cudnnBackendExecute(att->handle, plan->descriptor, pack));
    cudnn_check(cudnnBackendDestroyDescriptor(pack));
}

// out (B,T,C) and lse (B,NH,T) = attention of qkv (B,T,3C).
static inline void cudnn_att_forward(const CudnnAttention *att, floatX *out, float *lse, const floatX *qkv,
                                     cudaStream_t stream) {
    const void *arrays[CUDNN_ARRAYS] = {qkv, NULL, out, NULL, lse}; // in the order of CUDNN_QKV ..
    cudnn_run(att, &att->forward, arrays, 0, att->forward_workspace, stream);
}

// dqkv (B,T,3C) = the gradient of qkv, from dout (B,T,C) and the forward's qkv, out and lse.
static inline void cudnn_att_backward(const CudnnAttention *att, floatX *dqkv, const floatX *dout, const floatX *qkv,
                                      const floatX *out, const float *lse, cudaStream_t stream) {
    int B = att->shape.B, chunk = att->chunk;
    char *workspace = (char *)att->backward_workspace;
    // dq's sums, if there are any, lie in front of cuDNN's own workspace.
    const void *arrays[CUDNN_ARRAYS] = {qkv, dqkv, out, dout, lse, workspace};
    for (int first = 0; first < B; first += chunk) {
        const CudnnPlan *plan = B - first >= chunk ? &att->backward : &att->rest;
        int64_t sum_bytes = cudnn_att_sum_bytes(&att->shape, (int)plan->graph.B);
        if (sum_bytes > 0) { cuda_check(cudaMemsetAsync(workspace, 0, (size_t)sum_bytes, stream)); }
        cudnn_run(att, plan, arrays, first, workspace + sum_bytes, stream);
    }
}

#else

static inline bool cudnn_att_check(const CudnnShape *, Error *error) {
    return fail(error, "this program was built without cuDNN; install cuDNN 9 and build again: make train_gpt2cu");
}
static inline bool cudnn_att_open_chunked(CudnnAttention *, const CudnnShape *shape, int, Error *error) {
    return cudnn_att_check(shape, error);
}
static inline void cudnn_att_close(CudnnAttention *) {}

// Callers call these two only if cudnn_att_takes returns true.
static inline void cudnn_att_forward(const CudnnAttention *, floatX *, float *, const floatX *, cudaStream_t) {
    abort();
}
static inline void cudnn_att_backward(const CudnnAttention *, floatX *, const floatX *, const floatX *, const floatX *,
                                      const float *, cudaStream_t) {
    abort();
}

#endif

// Makes the plans for batches of B sequences of T tokens, on the current GPU. After a failure nothing is open.
static inline bool cudnn_att_open(CudnnAttention *att, const CudnnShape *shape, Error *error) {
    memset(att, 0, sizeof(*att));
    return cudnn_att_check(shape, error) && cudnn_att_open_chunked(att, shape, cudnn_att_chunk(shape), error);
}

#endif // LLMC_CUDNN_ATT_H
