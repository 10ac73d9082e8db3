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

#include "llmc/cuda/cuda_common.h"

#ifdef USE_CUDNN
#include <cudnn.h>
#if CUDNN_MAJOR != 9
#error "cudnn.h is not of version 9: make CUDNN_HOME=/folder says where cuDNN 9 is, CUDNN=0 leaves it out"
#endif

typedef cudnnBackendDescriptor_t CudnnDescriptor;

// The description of a graph. After a failed call, all later calls do nothing.
#define CUDNN_GRAPH_DESCRIPTORS 96
#define CUDNN_GRAPH_OPERATIONS 32
typedef struct {
    CudnnDescriptor made[CUDNN_GRAPH_DESCRIPTORS], operations[CUDNN_GRAPH_OPERATIONS];
    int num_made, num_operations;
    int64_t virtual_uid;
    int64_t B, NH, T, HS;
    cudnnStatus_t status;
    char error[256];
} CudnnGraph;

typedef struct {
    CudnnDescriptor descriptor; // NULL: none
    int64_t workspace_bytes;
    CudnnGraph graph; // of the plan; it must live as long as the plan
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

// The bytes of the backward workspace for cudnn_att_set_workspace. They follow from the shape, without a GPU, and
// suffice for every smaller chunk. The forward workspace needs CUDNN_ATT_SLACK bytes.
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

// The reason to refuse a version (91900: 9.19.0) even if it has a plan; NULL: none. NVIDIA's own frontend for cuDNN
// refuses these versions because their results are wrong.
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

// ---- Graphs ----

// The numbers of the tensors with a pointer from the caller. Virtual tensors have numbers from CUDNN_FIRST_VIRTUAL on.
enum {
    CUDNN_Q = 1,
    CUDNN_K,
    CUDNN_K_TRANSPOSED, // another tensor in the memory of k
    CUDNN_V,
    CUDNN_OUT,
    CUDNN_LSE,
    CUDNN_DQ,
    CUDNN_DK,
    CUDNN_DV,
    CUDNN_DOUT,
    CUDNN_SCALE,
    CUDNN_MASKED,
    CUDNN_ONE,
    CUDNN_DQ_SUMS,
    CUDNN_FIRST_VIRTUAL
};

typedef struct {
    int64_t of[4];
} CudnnDims;

static inline CudnnDims cudnn_dims(int64_t a, int64_t b, int64_t c, int64_t d) {
    CudnnDims dims = {{a, b, c, d}};
    return dims;
}

static inline bool cudnn_ok(CudnnGraph *graph, cudnnStatus_t status, const char *what) {
    if (graph->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS) {
        char reason[160] = "";
        cudnnGetLastErrorString(reason, sizeof(reason));
        graph->status = status;
        snprintf(graph->error, sizeof(graph->error), "%s: %s (%s)", what, cudnnGetErrorString(status), reason);
    }
    return graph->status == CUDNN_STATUS_SUCCESS;
}

// Makes a descriptor. cudnn_graph_end destroys it.
static inline CudnnDescriptor cudnn_make(CudnnGraph *graph, cudnnBackendDescriptorType_t type) {
    CudnnDescriptor descriptor = NULL;
    if (graph->status != CUDNN_STATUS_SUCCESS) { return NULL; }
    if (graph->num_made == CUDNN_GRAPH_DESCRIPTORS) { abort(); } // a programming error: graphs are written by hand
    if (cudnn_ok(graph, cudnnBackendCreateDescriptor(type, &descriptor), "a descriptor")) {
        graph->made[graph->num_made++] = descriptor;
    }
    return descriptor;
}

static inline void cudnn_set(CudnnGraph *graph, CudnnDescriptor descriptor, cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    if (graph->status != CUDNN_STATUS_SUCCESS) { return; }
    cudnn_ok(graph, cudnnBackendSetAttribute(descriptor, name, type, count, values), "an attribute");
}

static inline void cudnn_set_descriptor(CudnnGraph *graph, CudnnDescriptor descriptor, cudnnBackendAttributeName_t name,
                                        CudnnDescriptor value) {
    if (value != NULL) { cudnn_set(graph, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value); }
}

static inline void cudnn_finalize(CudnnGraph *graph, CudnnDescriptor descriptor, const char *what) {
    if (graph->status == CUDNN_STATUS_SUCCESS) { cudnn_ok(graph, cudnnBackendFinalize(descriptor), what); }
}

static inline void cudnn_add_operation(CudnnGraph *graph, CudnnDescriptor operation, const char *what) {
    cudnn_finalize(graph, operation, what);
    if (graph->status != CUDNN_STATUS_SUCCESS) { return; }
    if (graph->num_operations == CUDNN_GRAPH_OPERATIONS) { abort(); }
    graph->operations[graph->num_operations++] = operation;
}

static inline CudnnDescriptor cudnn_tensor(CudnnGraph *graph, int64_t uid, cudnnDataType_t type, CudnnDims dims,
                                           CudnnDims strides, bool by_value) {
    CudnnDescriptor tensor = cudnn_make(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = dims.of[3] % 8 == 0 ? 16 : 4; // bytes; rows are of one value or a multiple of 8
    bool is_virtual = uid >= CUDNN_FIRST_VIRTUAL;
    cudnn_set(graph, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    cudnn_set(graph, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    cudnn_set(graph, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.of);
    cudnn_set(graph, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.of);
    cudnn_set(graph, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    cudnn_set(graph, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    cudnn_set(graph, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    cudnn_finalize(graph, tensor, "a tensor");
    return tensor;
}

// Describes a tensor (B, NH, T, HS), or (B, NH, HS, T) if transposed. In memory a row holds all heads of a token, and
// rows are row_stride values apart.
static inline CudnnDescriptor cudnn_heads(CudnnGraph *graph, int64_t uid, int64_t row_stride, bool transposed) {
    CudnnDims dims = cudnn_dims(graph->B, graph->NH, graph->T, graph->HS);
    CudnnDims strides = cudnn_dims(graph->T * row_stride, graph->HS, row_stride, 1);
    if (transposed) {
        dims = cudnn_dims(graph->B, graph->NH, graph->HS, graph->T);
        strides = cudnn_dims(graph->T * row_stride, graph->HS, 1, row_stride);
    }
    return cudnn_tensor(graph, uid, CUDNN_DATA_BFLOAT16, dims, strides, false);
}

// Describes a packed tensor (B, NH, T, width). uid 0: virtual.
static inline CudnnDescriptor cudnn_rows(CudnnGraph *graph, int64_t uid, cudnnDataType_t type, int64_t width) {
    CudnnDims dims = cudnn_dims(graph->B, graph->NH, graph->T, width);
    CudnnDims strides = cudnn_dims(graph->NH * graph->T * width, graph->T * width, width, 1);
    return cudnn_tensor(graph, uid != 0 ? uid : graph->virtual_uid++, type, dims, strides, false);
}

// Describes one number in host memory.
static inline CudnnDescriptor cudnn_scalar(CudnnGraph *graph, int64_t uid) {
    CudnnDims ones = cudnn_dims(1, 1, 1, 1);
    return cudnn_tensor(graph, uid, CUDNN_DATA_FLOAT, ones, ones, true);
}

// Finalizes `settings` and makes the operation that uses them.
static inline CudnnDescriptor cudnn_operation(CudnnGraph *graph, CudnnDescriptor settings, const char *what,
                                              cudnnBackendDescriptorType_t type, cudnnBackendAttributeName_t name) {
    cudnn_finalize(graph, settings, what);
    CudnnDescriptor operation = cudnn_make(graph, type);
    cudnn_set_descriptor(graph, operation, name, settings);
    return operation;
}

// y = mode(x, b), or y = mask ? x : b for a selection. b and mask may be NULL. axis: of CUDNN_POINTWISE_GEN_INDEX.
static inline void cudnn_pointwise_full(CudnnGraph *graph, cudnnPointwiseMode_t mode, CudnnDescriptor x,
                                        CudnnDescriptor b, CudnnDescriptor mask, CudnnDescriptor y, int64_t axis) {
    const char *what = "a pointwise operation";
    CudnnDescriptor settings = cudnn_make(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    cudnn_set(graph, settings, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    cudnn_set(graph, settings, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
        cudnn_set(graph, settings, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    }
    CudnnDescriptor operation = cudnn_operation(graph, settings, what, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                                                CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    cudnn_add_operation(graph, operation, what);
}

static inline void cudnn_pointwise(CudnnGraph *graph, cudnnPointwiseMode_t mode, CudnnDescriptor x, CudnnDescriptor b,
                                   CudnnDescriptor y) {
    cudnn_pointwise_full(graph, mode, x, b, NULL, y, -1);
}

// A virtual tensor in fp32 (B, NH, T, width).
static inline CudnnDescriptor cudnn_between(CudnnGraph *graph, int64_t width) {
    return cudnn_rows(graph, 0, CUDNN_DATA_FLOAT, width);
}

// mode(x, b) as a virtual tensor in fp32 (B, NH, T, width).
static inline CudnnDescriptor cudnn_map(CudnnGraph *graph, cudnnPointwiseMode_t mode, CudnnDescriptor x,
                                        CudnnDescriptor b, int64_t width) {
    CudnnDescriptor y = cudnn_between(graph, width);
    cudnn_pointwise(graph, mode, x, b, y);
    return y;
}

// c = a b for each head.
static inline void cudnn_matmul(CudnnGraph *graph, CudnnDescriptor a, CudnnDescriptor b, CudnnDescriptor c) {
    CudnnDescriptor settings = cudnn_make(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    cudnn_set(graph, settings, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    CudnnDescriptor operation =
        cudnn_operation(graph, settings, "a matrix product", CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_MATMUL_DESC);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    cudnn_add_operation(graph, operation, "a matrix product");
}

// The sum or the largest value of each row of x, as a virtual tensor (B, NH, T, 1).
static inline CudnnDescriptor cudnn_reduce(CudnnGraph *graph, cudnnReduceTensorOp_t how, CudnnDescriptor x) {
    CudnnDescriptor y = cudnn_between(graph, 1), settings = cudnn_make(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    cudnn_set(graph, settings, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    cudnn_set(graph, settings, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    CudnnDescriptor operation =
        cudnn_operation(graph, settings, "a reduction", CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    cudnn_add_operation(graph, operation, "a reduction");
    return y;
}

// The transpose of each head of x (B, NH, T, T), as bf16: a reshape to swapped strides.
static inline CudnnDescriptor cudnn_transpose(CudnnGraph *graph, CudnnDescriptor x) {
    int64_t T = graph->T;
    CudnnDescriptor y =
        cudnn_tensor(graph, graph->virtual_uid++, CUDNN_DATA_BFLOAT16, cudnn_dims(graph->B, graph->NH, T, T),
                     cudnn_dims(graph->NH * T * T, T * T, 1, T), false);
    CudnnDescriptor operation = cudnn_make(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    cudnn_set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    cudnn_add_operation(graph, operation, "a reshape");
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

// The scores (B, NH, T, T) without a mask: scale q[i].k[j].
static inline CudnnDescriptor cudnn_scores(CudnnGraph *graph, CudnnDescriptor q, CudnnDescriptor scale) {
    int64_t row_stride = 3 * graph->NH * graph->HS;
    CudnnDescriptor products = cudnn_between(graph, graph->T);
    cudnn_matmul(graph, q, cudnn_heads(graph, CUDNN_K_TRANSPOSED, row_stride, true), products);
    return cudnn_map(graph, CUDNN_POINTWISE_MUL, products, scale, graph->T);
}

// y (B, NH, T, T) = x for j <= i, and the number CUDNN_MASKED for j > i.
static inline CudnnDescriptor cudnn_mask(CudnnGraph *graph, CudnnDescriptor x) {
    CudnnDescriptor i = cudnn_rows(graph, 0, CUDNN_DATA_INT32, graph->T);
    CudnnDescriptor j = cudnn_rows(graph, 0, CUDNN_DATA_INT32, graph->T);
    CudnnDescriptor is_seen = cudnn_rows(graph, 0, CUDNN_DATA_BOOLEAN, graph->T), y = cudnn_between(graph, graph->T);
    cudnn_pointwise_full(graph, CUDNN_POINTWISE_GEN_INDEX, x, NULL, NULL, i, 2);
    cudnn_pointwise_full(graph, CUDNN_POINTWISE_GEN_INDEX, x, NULL, NULL, j, 3);
    cudnn_pointwise(graph, CUDNN_POINTWISE_CMP_GE, i, j, is_seen);
    cudnn_pointwise_full(graph, CUDNN_POINTWISE_BINARY_SELECT, x, cudnn_scalar(graph, CUDNN_MASKED), is_seen, y, -1);
    return y;
}

// p = exp(s - max) / sum;  out = p v;  lse = max + log(sum)
static inline void cudnn_describe_forward(CudnnGraph *graph) {
    int64_t C = graph->NH * graph->HS, T = graph->T;
    CudnnDescriptor q = cudnn_heads(graph, CUDNN_Q, 3 * C, false), v = cudnn_heads(graph, CUDNN_V, 3 * C, false);
    CudnnDescriptor scores = cudnn_mask(graph, cudnn_scores(graph, q, cudnn_scalar(graph, CUDNN_SCALE)));
    CudnnDescriptor max = cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_MAX, scores);
    CudnnDescriptor below = cudnn_map(graph, CUDNN_POINTWISE_SUB, scores, max, T);
    CudnnDescriptor exps = cudnn_map(graph, CUDNN_POINTWISE_EXP, below, NULL, T);
    CudnnDescriptor sum = cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, exps);
    CudnnDescriptor log_sum = cudnn_map(graph, CUDNN_POINTWISE_LOG, sum, NULL, 1);
    CudnnDescriptor p = cudnn_rows(graph, 0, CUDNN_DATA_BFLOAT16, T);
    cudnn_pointwise(graph, CUDNN_POINTWISE_ADD, max, log_sum, cudnn_rows(graph, CUDNN_LSE, CUDNN_DATA_FLOAT, 1));
    cudnn_pointwise(graph, CUDNN_POINTWISE_DIV, exps, sum, p);
    cudnn_matmul(graph, p, v, cudnn_heads(graph, CUDNN_OUT, C, false));
}

// delta = sum(do * out) of each row. cuDNN stores delta, and looks for it behind a factor: dropout's 1 / (1 - p), which
// is 1 here. Without the factor, 9.19 stores the next (B, NH, T, T) tensor instead, as the workspace's size shows.
static inline CudnnDescriptor cudnn_delta(CudnnGraph *graph, CudnnDescriptor dout) {
    CudnnDescriptor out = cudnn_heads(graph, CUDNN_OUT, graph->NH * graph->HS, false);
    CudnnDescriptor products = cudnn_map(graph, CUDNN_POINTWISE_MUL, dout, out, graph->HS);
    CudnnDescriptor sums = cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, products);
    return cudnn_map(graph, CUDNN_POINTWISE_MUL, sums, cudnn_scalar(graph, CUDNN_ONE), 1);
}

// dS (B, NH, T, T) = scale * p * (do v^T - delta)
static inline CudnnDescriptor cudnn_dscores(CudnnGraph *graph, CudnnDescriptor p, CudnnDescriptor dout,
                                            CudnnDescriptor delta, CudnnDescriptor scale) {
    int64_t T = graph->T, row_stride = 3 * graph->NH * graph->HS;
    CudnnDescriptor dp = cudnn_between(graph, T), ds = cudnn_rows(graph, 0, CUDNN_DATA_BFLOAT16, T);
    cudnn_matmul(graph, dout, cudnn_heads(graph, CUDNN_V, row_stride, true), dp);
    CudnnDescriptor above = cudnn_map(graph, CUDNN_POINTWISE_SUB, dp, delta, T);
    cudnn_pointwise(graph, CUDNN_POINTWISE_MUL, cudnn_map(graph, CUDNN_POINTWISE_MUL, above, p, T), scale, ds);
    return ds;
}

// dq = dS k. With atomics the product comes in fp32 first. The caller clears these sums, because cuDNN adds to them.
static inline void cudnn_describe_dq(CudnnGraph *graph, CudnnDescriptor ds, bool deterministic) {
    int64_t row_stride = 3 * graph->NH * graph->HS;
    CudnnDescriptor k = cudnn_heads(graph, CUDNN_K, row_stride, false);
    CudnnDescriptor dq = cudnn_heads(graph, CUDNN_DQ, row_stride, false);
    CudnnDescriptor product = deterministic ? dq : cudnn_rows(graph, CUDNN_DQ_SUMS, CUDNN_DATA_FLOAT, graph->HS);
    cudnn_matmul(graph, ds, k, product);
    if (!deterministic) { cudnn_pointwise(graph, CUDNN_POINTWISE_IDENTITY, product, NULL, dq); }
}

// p = exp(mask(s - lse));  dv = p^T do;  dq = dS k;  dk = dS^T q. The mask comes after the subtraction of lse. So
// cuDNN's kernels take scale and lse in one fused multiply-add, and p of a masked score is exp of the mask's number.
static inline void cudnn_describe_backward(CudnnGraph *graph, bool deterministic) {
    int64_t C = graph->NH * graph->HS, T = graph->T;
    CudnnDescriptor q = cudnn_heads(graph, CUDNN_Q, 3 * C, false), dout = cudnn_heads(graph, CUDNN_DOUT, C, false);
    CudnnDescriptor scale = cudnn_scalar(graph, CUDNN_SCALE), delta = cudnn_delta(graph, dout);
    CudnnDescriptor lse = cudnn_rows(graph, CUDNN_LSE, CUDNN_DATA_FLOAT, 1);
    CudnnDescriptor below = cudnn_map(graph, CUDNN_POINTWISE_SUB, cudnn_scores(graph, q, scale), lse, T);
    CudnnDescriptor p = cudnn_map(graph, CUDNN_POINTWISE_EXP, cudnn_mask(graph, below), NULL, T);
    cudnn_matmul(graph, cudnn_transpose(graph, p), dout, cudnn_heads(graph, CUDNN_DV, 3 * C, false));
    CudnnDescriptor ds = cudnn_dscores(graph, p, dout, delta, scale);
    cudnn_describe_dq(graph, ds, deterministic);
    cudnn_matmul(graph, cudnn_transpose(graph, ds), q, cudnn_heads(graph, CUDNN_DK, 3 * C, false));
}

// ---- Plans ----

static inline void cudnn_get(CudnnGraph *graph, CudnnDescriptor descriptor, cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values) {
    if (graph->status != CUDNN_STATUS_SUCCESS) { return; }
    cudnn_ok(graph, cudnnBackendGetAttribute(descriptor, name, type, room, count, values), "a question");
}

// Does this configuration's engine say that its bits differ from run to run?
static inline bool cudnn_is_random(CudnnGraph *graph, CudnnDescriptor config) {
    cudnnBackendNumericalNote_t notes[32];
    CudnnDescriptor engine = cudnn_make(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t count = 0;
    cudnn_get(graph, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine);
    count = 0;
    cudnn_get(graph, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 32, &count, notes);
    for (int64_t i = 0; i < min_i64(count, 32); i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) { return true; }
    }
    return false;
}

// Makes the plan of one configuration. If it fails, it returns false and leaves the graph usable, so that the caller
// can try the next configuration.
static inline bool cudnn_try_config(CudnnGraph *graph, CudnnPlan *plan, CudnnDescriptor config, cudnnHandle_t handle,
                                    int64_t workspace_bytes, bool deterministic) {
    CudnnDescriptor descriptor = NULL;
    bool is_random = deterministic && cudnn_is_random(graph, config);
    int64_t count = 0, bytes = 0;
    if (!is_random && graph->status == CUDNN_STATUS_SUCCESS &&
        cudnn_ok(graph, cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &descriptor), "a plan")) {
        cudnn_set(graph, descriptor, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
        cudnn_set_descriptor(graph, descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
        cudnn_finalize(graph, descriptor, "a plan");
        cudnn_get(graph, descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes);
    }
    if (descriptor != NULL && graph->status == CUDNN_STATUS_SUCCESS && bytes <= workspace_bytes) {
        plan->descriptor = descriptor, plan->workspace_bytes = bytes;
        return true;
    }
    if (descriptor != NULL) { cudnnBackendDestroyDescriptor(descriptor); }
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
    CudnnDescriptor operations = cudnn_make(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    cudnn_set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->num_operations,
              graph->operations);
    cudnn_set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    cudnn_finalize(graph, operations, "the graph");
    CudnnDescriptor heuristic = cudnn_make(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnn_set_descriptor(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    cudnn_set(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    cudnn_finalize(graph, heuristic, "the choice of an engine");
    for (int i = 0; i < CUDNN_MAX_CONFIGS; i++) { configs[i] = cudnn_make(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR); }
    cudnn_get(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, CUDNN_MAX_CONFIGS, &count,
              configs);
    return graph->status == CUDNN_STATUS_SUCCESS ? min_i64(count, CUDNN_MAX_CONFIGS) : 0;
}

// Makes the plan for plan->graph, which must be described. It takes the best engine that needs at most workspace_bytes,
// and that is deterministic if `deterministic` asks for it.
static inline bool cudnn_make_plan(CudnnPlan *plan, cudnnHandle_t handle, int64_t workspace_bytes, bool deterministic,
                                   const char *what, Error *error) {
    CudnnGraph *graph = &plan->graph;
    CudnnDescriptor configs[CUDNN_MAX_CONFIGS];
    int64_t count = cudnn_find_configs(graph, configs, handle);
    bool ok = false;
    for (int64_t i = 0; i < count && !ok; i++) {
        ok = cudnn_try_config(graph, plan, configs[i], handle, workspace_bytes, deterministic);
    }
    if (!ok) {
        char version[32];
        cudnn_att_version_text(version, sizeof(version));
        fail(error,
             "cuDNN %s has no plan for attention's %s (%s); it needs NVRTC of its CUDA release (see `make doctor`); "
             "CUDNN_LOGLEVEL_DBG=2 CUDNN_LOGDEST_DBG=stderr shows why",
             version, what, graph->error[0] != '\0' ? graph->error : "no engine takes it");
    }
    return ok;
}

static inline void cudnn_close_plan(CudnnPlan *plan) {
    if (plan->descriptor != NULL) { cudnnBackendDestroyDescriptor(plan->descriptor); }
    cudnn_graph_end(&plan->graph);
}

static inline void cudnn_att_close(CudnnAttention *att) {
    cudnn_close_plan(&att->forward);
    cudnn_close_plan(&att->backward);
    cudnn_close_plan(&att->rest);
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

// Makes the plans for batches of B sequences of T tokens, on the current GPU. After a failure nothing is open.
static inline bool cudnn_att_open(CudnnAttention *att, const CudnnShape *shape, Error *error) {
    memset(att, 0, sizeof(*att));
    return cudnn_att_check(shape, error) && cudnn_att_open_chunked(att, shape, cudnn_att_chunk(shape), error);
}

// ---- Running them ----

#define CUDNN_MAX_POINTERS 16
typedef struct {
    int64_t uids[CUDNN_MAX_POINTERS];
    void *pointers[CUDNN_MAX_POINTERS];
    int count;
} CudnnPointers;

static inline void cudnn_point(CudnnPointers *p, int64_t uid, const void *pointer) {
    p->uids[p->count] = uid;
    p->pointers[p->count++] = (void *)(uintptr_t)pointer;
}

static inline void cudnn_check_status(cudnnStatus_t status, const char *call, const char *file, int line) {
    char reason[512] = "";
    if (status == CUDNN_STATUS_SUCCESS) { return; }
    cudnnGetLastErrorString(reason, sizeof(reason));
    fflush(stdout);
    fprintf(stderr, "%s:%d: %s failed: %s (%s); --attention own does without cuDNN\n", file, line, call,
            cudnnGetErrorString(status), reason);
    _exit(EXIT_FAILURE);
}
#define cudnn_check(call) cudnn_check_status((call), #call, __FILE__, __LINE__)

static inline void cudnn_run(const CudnnAttention *att, const CudnnPlan *plan, const CudnnPointers *p, void *workspace,
                             cudaStream_t stream) {
    CudnnDescriptor pack = NULL;
    cudnn_check(cudnnSetStream(att->handle, stream));
    cudnn_check(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    cudnn_check(
        cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, p->count, p->uids));
    cudnn_check(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, p->count,
                                         p->pointers));
    cudnn_check(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
    cudnn_check(cudnnBackendFinalize(pack));
    cudnn_check(cudnnBackendExecute(att->handle, plan->descriptor, pack));
    cudnn_check(cudnnBackendDestroyDescriptor(pack));
}

// The scalars of the graphs. They must stay valid until cudnn_run has returned.
typedef struct {
    float scale, masked, one;
} CudnnNumbers;

// The number for masked scores. Before 9.10 NVIDIA's own frontend masks with the lowest finite number. Its exponential
// is also 0.
static inline float cudnn_att_masked(int version) { return version >= 91000 ? -INFINITY : -FLT_MAX; }

static inline CudnnNumbers cudnn_numbers(const CudnnAttention *att) {
    int HS = att->shape.C / att->shape.NH;
    CudnnNumbers numbers = {1.0f / sqrtf((float)HS), cudnn_att_masked((int)cudnnGetVersion()), 1.0f};
    return numbers;
}

// out (B,T,C) and lse (B,NH,T) = attention of qkv (B,T,3C).
static inline void cudnn_att_forward(const CudnnAttention *att, floatX *out, float *lse, const floatX *qkv,
                                     cudaStream_t stream) {
    CudnnNumbers numbers = cudnn_numbers(att);
    CudnnPointers p;
    p.count = 0;
    cudnn_point(&p, CUDNN_Q, qkv);
    cudnn_point(&p, CUDNN_K_TRANSPOSED, qkv + att->shape.C);
    cudnn_point(&p, CUDNN_V, qkv + 2 * att->shape.C);
    cudnn_point(&p, CUDNN_OUT, out);
    cudnn_point(&p, CUDNN_LSE, lse);
    cudnn_point(&p, CUDNN_SCALE, &numbers.scale);
    cudnn_point(&p, CUDNN_MASKED, &numbers.masked);
    cudnn_run(att, &att->forward, &p, att->forward_workspace, stream);
}

// Computes the backward of plan->graph.B sequences from `first` on.
static inline void cudnn_att_backward_chunk(const CudnnAttention *att, const CudnnPlan *plan, int64_t first,
                                            floatX *dqkv, const floatX *dout, const floatX *qkv, const floatX *out,
                                            const float *lse, cudaStream_t stream) {
    CudnnNumbers numbers = cudnn_numbers(att);
    int64_t C = att->shape.C, row = first * att->shape.T;
    int64_t sum_bytes = cudnn_att_sum_bytes(&att->shape, (int)plan->graph.B);
    char *workspace = (char *)att->backward_workspace;
    CudnnPointers p;
    p.count = 0;
    cudnn_point(&p, CUDNN_Q, qkv + row * 3 * C);
    cudnn_point(&p, CUDNN_K, qkv + row * 3 * C + C);
    cudnn_point(&p, CUDNN_K_TRANSPOSED, qkv + row * 3 * C + C);
    cudnn_point(&p, CUDNN_V, qkv + row * 3 * C + 2 * C);
    cudnn_point(&p, CUDNN_OUT, out + row * C);
    cudnn_point(&p, CUDNN_DOUT, dout + row * C);
    cudnn_point(&p, CUDNN_LSE, lse + row * att->shape.NH);
    cudnn_point(&p, CUDNN_DQ, dqkv + row * 3 * C);
    cudnn_point(&p, CUDNN_DK, dqkv + row * 3 * C + C);
    cudnn_point(&p, CUDNN_DV, dqkv + row * 3 * C + 2 * C);
    cudnn_point(&p, CUDNN_SCALE, &numbers.scale);
    cudnn_point(&p, CUDNN_MASKED, &numbers.masked);
    cudnn_point(&p, CUDNN_ONE, &numbers.one);
    if (sum_bytes > 0) {
        cuda_check(cudaMemsetAsync(workspace, 0, (size_t)sum_bytes, stream));
        cudnn_point(&p, CUDNN_DQ_SUMS, workspace);
    }
    cudnn_run(att, plan, &p, workspace + sum_bytes, stream);
}

// dqkv (B,T,3C) = the gradient of qkv, from dout (B,T,C) and the forward's qkv, out and lse.
static inline void cudnn_att_backward(const CudnnAttention *att, floatX *dqkv, const floatX *dout, const floatX *qkv,
                                      const floatX *out, const float *lse, cudaStream_t stream) {
    int B = att->shape.B, chunk = att->chunk;
    for (int first = 0; first < B; first += chunk) {
        const CudnnPlan *plan = B - first >= chunk ? &att->backward : &att->rest;
        cudnn_att_backward_chunk(att, plan, first, dqkv, dout, qkv, out, lse, stream);
    }
}

#else

static inline bool cudnn_att_check(const CudnnShape *, Error *error) {
    return fail(error, "this program was built without cuDNN; install cuDNN 9 and build again: make train_gpt2cu");
}
static inline bool cudnn_att_open_chunked(CudnnAttention *att, const CudnnShape *shape, int, Error *error) {
    memset(att, 0, sizeof(*att));
    return cudnn_att_check(shape, error);
}
static inline bool cudnn_att_open(CudnnAttention *att, const CudnnShape *shape, Error *error) {
    return cudnn_att_open_chunked(att, shape, 0, error);
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

#endif // LLMC_CUDNN_ATT_H
