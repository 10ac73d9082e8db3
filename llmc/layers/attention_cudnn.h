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

// The largest workspace in bytes of a chunk of two or more sequences. Up to 256 MiB NVIDIA's own frontend also prefers
// the backward with a stored dS. One sequence may take more.
#define CUDNN_ATT_MAX_WORKSPACE (256 << 20)
#define CUDNN_ATT_SLACK (64 << 10)  // bytes of a workspace for cuDNN's additions to its tensors (256 in 9.19)
#define CUDNN_ATT_MAX_HEAD_SIZE 128 // of the backward on all GPUs; only sm_90 takes larger heads
#define CUDNN_ATT_TOKENS 128        // T is a multiple of it
#define CUDNN_ATT_MAX_BATCH 65535   // cuDNN counts sequences in 16 bits; its kernels fail with more

// The attention that a run asks of cuDNN.
typedef struct {
    int B, T, C, NH;
    bool deterministic;
} CudnnShape;

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

// The number of sequences that the backward takes at a time: the largest divisor of B whose workspace is allowed, or 1.
static inline int cudnn_att_chunk(const CudnnShape *shape) {
    int chunk = shape->B;
    while (chunk > 1 && (shape->B % chunk != 0 || cudnn_att_workspace_for(shape, chunk) > CUDNN_ATT_MAX_WORKSPACE)) {
        chunk--;
    }
    return chunk;
}

// The bytes of the backward's workspace. They follow from the shape, without a GPU. The forward's needs
// CUDNN_ATT_SLACK.
static inline int64_t cudnn_att_backward_bytes(const CudnnShape *shape) {
    return cudnn_att_workspace_for(shape, cudnn_att_chunk(shape));
}

#ifdef USE_CUDNN
#include <cudnn.h>
#if CUDNN_MAJOR != 9
#error "cudnn.h is not of version 9: make CUDNN_HOME=/folder says where cuDNN 9 is, CUDNN=0 leaves it out"
#endif

typedef cudnnBackendDescriptor_t CudnnDescriptor;

#define CUDNN_GRAPH_DESCRIPTORS 128
#define CUDNN_GRAPH_OPERATIONS 32
#define CUDNN_GRAPH_TENSORS 40

typedef struct {
    int array, part; // memory of the caller and the part of its rows
} CudnnTensor;

// The description of a graph, and the plan made of it. After a failed call, all later calls do nothing.
typedef struct {
    CudnnDescriptor made[CUDNN_GRAPH_DESCRIPTORS], operations[CUDNN_GRAPH_OPERATIONS], plan;
    CudnnTensor tensors[CUDNN_GRAPH_TENSORS]; // a tensor's id is its place in this list, from 1
    int num_made, num_operations, num_tensors;
    int64_t B, NH, T, HS;
    cudnnStatus_t status;
    char error[256];
} CudnnGraph;

#endif

typedef struct {
    bool is_open;
    CudnnShape shape;
    int chunk; // sequences that the backward takes at a time
#ifdef USE_CUDNN
    cudnnHandle_t handle;
    CudnnGraph forward, backward;
#endif
} CudnnAttention;

// Is there a plan for this batch?
static inline bool cudnn_att_takes(const CudnnAttention *att, int B, int T) {
    return att->is_open && att->shape.B == B && att->shape.T == T;
}

// Writes the version, as "9.19.0", or "" without cuDNN.
static inline void cudnn_att_version_text(char *text, size_t size) {
    int version = 0;
#ifdef USE_CUDNN
    version = (int)cudnnGetVersion();
#endif
    text[0] = '\0';
    if (version == 0) { return; }
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

#ifdef USE_CUDNN

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
    if (shape->B > CUDNN_ATT_MAX_BATCH) {
        return fail(error, "a batch of %d sequences, cuDNN takes at most %d", shape->B, CUDNN_ATT_MAX_BATCH);
    }
    if (version == 91000 || version == 91001) { // NVIDIA's own frontend refuses them, because their results are wrong
        return fail(error, "cuDNN 9.10.%d has faults in attention's backward; expected 9.10.2 or later", version % 100);
    }
    return true;
}

// ---- Descriptors ----

static inline bool cudnn_ok(CudnnGraph *graph, cudnnStatus_t status) {
    if (graph->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS) {
        char reason[160] = "";
        cudnnGetLastErrorString(reason, sizeof(reason));
        graph->status = status;
        snprintf(graph->error, sizeof(graph->error), "%s (%s)", cudnnGetErrorString(status), reason);
    }
    return graph->status == CUDNN_STATUS_SUCCESS;
}

// An attribute of a descriptor. With count 0 the descriptor does not get it.
typedef struct {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values;
} CudnnAttribute;
#define CUDNN_SET(name, type, count, values) CudnnAttribute({CUDNN_ATTR_##name, CUDNN_TYPE_##type, count, values})
#define CUDNN_PART(name, part) CUDNN_SET(name, BACKEND_DESCRIPTOR, *(part) != NULL, part)

// Makes a descriptor without attributes. cudnn_graph_end destroys it.
static inline CudnnDescriptor cudnn_make(CudnnGraph *graph, cudnnBackendDescriptorType_t type) {
    CudnnDescriptor descriptor = NULL;
    if (graph->status != CUDNN_STATUS_SUCCESS) { return NULL; }
    if (graph->num_made == CUDNN_GRAPH_DESCRIPTORS) { abort(); } // a programming error: graphs are written by hand
    if (cudnn_ok(graph, cudnnBackendCreateDescriptor(type, &descriptor))) {
        graph->made[graph->num_made++] = descriptor;
    }
    return descriptor;
}

// Makes a descriptor with its attributes and finalizes it.
static inline CudnnDescriptor cudnn_describe(CudnnGraph *graph, cudnnBackendDescriptorType_t type,
                                             std::initializer_list<CudnnAttribute> attributes) {
    CudnnDescriptor descriptor = cudnn_make(graph, type);
    for (const CudnnAttribute &a : attributes) {
        if (graph->status != CUDNN_STATUS_SUCCESS) { return NULL; }
        if (a.count == 0) { continue; }
        cudnn_ok(graph, cudnnBackendSetAttribute(descriptor, a.name, a.type, a.count, a.values));
    }
    if (graph->status == CUDNN_STATUS_SUCCESS) { cudnn_ok(graph, cudnnBackendFinalize(descriptor)); }
    return descriptor;
}

// Reads up to `room` values of an attribute. Returns their number.
static inline int64_t cudnn_get(CudnnGraph *graph, CudnnDescriptor descriptor, cudnnBackendAttributeName_t name,
                                cudnnBackendAttributeType_t type, int64_t room, void *values) {
    int64_t count = 0;
    if (graph->status != CUDNN_STATUS_SUCCESS) { return 0; }
    cudnn_ok(graph, cudnnBackendGetAttribute(descriptor, name, type, room, &count, values));
    return graph->status == CUDNN_STATUS_SUCCESS ? min_i64(count, room) : 0;
}

// ---- Tensors ----

// The caller's arrays, then numbers in host memory. A tensor between operations is virtual.
enum { CUDNN_QKV, CUDNN_DQKV, CUDNN_OUT, CUDNN_DOUT, CUDNN_LSE, CUDNN_DQ_SUMS, CUDNN_SCALE, CUDNN_MASKED, CUDNN_ONE };
#define CUDNN_ARRAYS (CUDNN_ONE + 1)
#define CUDNN_VIRTUAL CUDNN_ARRAYS

enum { CUDNN_Q, CUDNN_K, CUDNN_V }; // the parts of a row of qkv and dqkv

// Describes a tensor of 4 dimensions. part: of the rows of qkv and dqkv.
static inline CudnnDescriptor cudnn_tensor(CudnnGraph *graph, int array, int part, cudnnDataType_t type,
                                           std::initializer_list<int64_t> dims,
                                           std::initializer_list<int64_t> strides) {
    int64_t alignment = dims.begin()[3] % 8 == 0 ? 16 : 4; // bytes; rows are of one value or a multiple of 8
    bool is_virtual = array == CUDNN_VIRTUAL, by_value = array >= CUDNN_SCALE && !is_virtual;
    if (graph->num_tensors == CUDNN_GRAPH_TENSORS) { abort(); }
    graph->tensors[graph->num_tensors++] = {array, part};
    int64_t uid = graph->num_tensors;
    return cudnn_describe(
        graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR,
        {CUDNN_SET(TENSOR_UNIQUE_ID, INT64, 1, &uid), CUDNN_SET(TENSOR_DATA_TYPE, DATA_TYPE, 1, &type),
         CUDNN_SET(TENSOR_DIMENSIONS, INT64, 4, dims.begin()), CUDNN_SET(TENSOR_STRIDES, INT64, 4, strides.begin()),
         CUDNN_SET(TENSOR_BYTE_ALIGNMENT, INT64, 1, &alignment), CUDNN_SET(TENSOR_IS_VIRTUAL, BOOLEAN, 1, &is_virtual),
         CUDNN_SET(TENSOR_IS_BY_VALUE, BOOLEAN, 1, &by_value)});
}

// The values from one token to the next in an array of bf16.
static inline int64_t cudnn_row(const CudnnGraph *g, int array) {
    return (array <= CUDNN_DQKV ? 3 : 1) * g->NH * g->HS;
}

// The bytes from the begin of a tensor's array to its first value for sequence `first`.
static inline int64_t cudnn_offset(const CudnnGraph *graph, CudnnTensor tensor, int64_t first) {
    int64_t token = first * graph->T;
    if (tensor.array > CUDNN_LSE) { return 0; }
    if (tensor.array == CUDNN_LSE) { return token * graph->NH * (int64_t)sizeof(float); }
    return (token * cudnn_row(graph, tensor.array) + tensor.part * graph->NH * graph->HS) * (int64_t)sizeof(floatX);
}

// Returns a tensor (B, NH, T, HS) of an array in bf16, or (B, NH, HS, T) if transposed.
static inline CudnnDescriptor cudnn_heads(CudnnGraph *graph, int array, int part = 0, bool transposed = false) {
    int64_t B = graph->B, NH = graph->NH, T = graph->T, HS = graph->HS, row = cudnn_row(graph, array);
    return transposed ? cudnn_tensor(graph, array, part, CUDNN_DATA_BFLOAT16, {B, NH, HS, T}, {T * row, HS, 1, row})
                      : cudnn_tensor(graph, array, part, CUDNN_DATA_BFLOAT16, {B, NH, T, HS}, {T * row, HS, row, 1});
}

// Returns a packed tensor (B, NH, T, width).
static inline CudnnDescriptor cudnn_packed(CudnnGraph *graph, cudnnDataType_t type, int64_t width,
                                           int array = CUDNN_VIRTUAL) {
    int64_t NH = graph->NH, T = graph->T;
    return cudnn_tensor(graph, array, 0, type, {graph->B, NH, T, width}, {NH * T * width, T * width, width, 1});
}

// Returns a virtual tensor (B, NH, T, T).
static inline CudnnDescriptor cudnn_scores(CudnnGraph *graph, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return cudnn_packed(graph, type, graph->T);
}

static inline CudnnDescriptor cudnn_lse(CudnnGraph *graph) {
    return cudnn_packed(graph, CUDNN_DATA_FLOAT, 1, CUDNN_LSE);
}

// One fp32 number.
static inline CudnnDescriptor cudnn_number(CudnnGraph *graph, int array) {
    return cudnn_tensor(graph, array, 0, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1});
}

// ---- Operations ----

static inline void cudnn_operation(CudnnGraph *graph, cudnnBackendDescriptorType_t type,
                                   std::initializer_list<CudnnAttribute> parts) {
    if (graph->num_operations == CUDNN_GRAPH_OPERATIONS) { abort(); }
    graph->operations[graph->num_operations++] = cudnn_describe(graph, type, parts);
}

static const cudnnDataType_t cudnn_fp32 = CUDNN_DATA_FLOAT; // the precision of all operations

// y = mode(x, b), or y = mask ? x : b for a selection. b and mask may be NULL. axis: of CUDNN_POINTWISE_GEN_INDEX.
// Returns y.
static inline CudnnDescriptor cudnn_map(CudnnGraph *graph, cudnnPointwiseMode_t mode, CudnnDescriptor x,
                                        CudnnDescriptor b, CudnnDescriptor y, CudnnDescriptor mask = NULL,
                                        int64_t axis = -1) {
    CudnnDescriptor settings = cudnn_describe(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                                              {CUDNN_SET(POINTWISE_MODE, POINTWISE_MODE, 1, &mode),
                                               CUDNN_SET(POINTWISE_MATH_PREC, DATA_TYPE, 1, &cudnn_fp32),
                                               CUDNN_SET(POINTWISE_AXIS, INT64, axis >= 0, &axis)});
    cudnn_operation(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                    {CUDNN_PART(OPERATION_POINTWISE_PW_DESCRIPTOR, &settings),
                     CUDNN_PART(OPERATION_POINTWISE_XDESC, &x), CUDNN_PART(OPERATION_POINTWISE_BDESC, &b),
                     CUDNN_PART(OPERATION_POINTWISE_TDESC, &mask), CUDNN_PART(OPERATION_POINTWISE_YDESC, &y)});
    return y;
}

// c = a b for each head. Returns c.
static inline CudnnDescriptor cudnn_matmul(CudnnGraph *graph, CudnnDescriptor a, CudnnDescriptor b, CudnnDescriptor c) {
    CudnnDescriptor settings = cudnn_describe(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR,
                                              {CUDNN_SET(MATMUL_COMP_TYPE, DATA_TYPE, 1, &cudnn_fp32)});
    cudnn_operation(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                    {CUDNN_PART(OPERATION_MATMUL_DESC, &settings), CUDNN_PART(OPERATION_MATMUL_ADESC, &a),
                     CUDNN_PART(OPERATION_MATMUL_BDESC, &b), CUDNN_PART(OPERATION_MATMUL_CDESC, &c)});
    return c;
}

// Returns the sum or the largest value of each row of x, as a virtual tensor (B, NH, T, 1).
static inline CudnnDescriptor cudnn_reduce(CudnnGraph *graph, cudnnReduceTensorOp_t how, CudnnDescriptor x) {
    CudnnDescriptor y = cudnn_packed(graph, CUDNN_DATA_FLOAT, 1);
    CudnnDescriptor settings = cudnn_describe(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                                              {CUDNN_SET(REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, 1, &how),
                                               CUDNN_SET(REDUCTION_COMP_TYPE, DATA_TYPE, 1, &cudnn_fp32)});
    cudnn_operation(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                    {CUDNN_PART(OPERATION_REDUCTION_DESC, &settings), CUDNN_PART(OPERATION_REDUCTION_XDESC, &x),
                     CUDNN_PART(OPERATION_REDUCTION_YDESC, &y)});
    return y;
}

// Returns the transpose of each head of x (B, NH, T, T), as bf16: a reshape to swapped strides.
static inline CudnnDescriptor cudnn_transpose(CudnnGraph *graph, CudnnDescriptor x) {
    int64_t NH = graph->NH, T = graph->T;
    CudnnDescriptor y =
        cudnn_tensor(graph, CUDNN_VIRTUAL, 0, CUDNN_DATA_BFLOAT16, {graph->B, NH, T, T}, {NH * T * T, T * T, 1, T});
    cudnn_operation(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                    {CUDNN_PART(OPERATION_RESHAPE_XDESC, &x), CUDNN_PART(OPERATION_RESHAPE_YDESC, &y)});
    return y;
}

// ---- Attention as graphs ----

static inline void cudnn_graph_begin(CudnnGraph *graph, const CudnnShape *shape, int sequences) {
    memset(graph, 0, sizeof(*graph));
    graph->B = sequences, graph->T = shape->T, graph->NH = shape->NH, graph->HS = shape->C / shape->NH;
}

static inline void cudnn_graph_end(CudnnGraph *graph) {
    while (graph->num_made > 0) { cudnnBackendDestroyDescriptor(graph->made[--graph->num_made]); }
}

// Returns x (B, NH, T, T) for j <= i, and the number CUDNN_MASKED for j > i.
static inline CudnnDescriptor cudnn_mask(CudnnGraph *graph, CudnnDescriptor x) {
    CudnnDescriptor i = cudnn_scores(graph, CUDNN_DATA_INT32), j = cudnn_scores(graph, CUDNN_DATA_INT32);
    cudnn_map(graph, CUDNN_POINTWISE_GEN_INDEX, x, NULL, i, NULL, 2);
    cudnn_map(graph, CUDNN_POINTWISE_GEN_INDEX, x, NULL, j, NULL, 3);
    CudnnDescriptor is_seen = cudnn_map(graph, CUDNN_POINTWISE_CMP_GE, i, j, cudnn_scores(graph, CUDNN_DATA_BOOLEAN));
    CudnnDescriptor masked = cudnn_number(graph, CUDNN_MASKED), y = cudnn_scores(graph);
    return cudnn_map(graph, CUDNN_POINTWISE_BINARY_SELECT, x, masked, y, is_seen);
}

// s = scale q k^T;  p = exp(s - max) / sum;  out = p v;  lse = max + log(sum)
static inline void cudnn_describe_forward(CudnnGraph *g) {
    CudnnDescriptor q = cudnn_heads(g, CUDNN_QKV, CUDNN_Q), k_t = cudnn_heads(g, CUDNN_QKV, CUDNN_K, true);
    CudnnDescriptor v = cudnn_heads(g, CUDNN_QKV, CUDNN_V), out = cudnn_heads(g, CUDNN_OUT), lse = cudnn_lse(g);
    CudnnDescriptor products = cudnn_matmul(g, q, k_t, cudnn_scores(g)), scale = cudnn_number(g, CUDNN_SCALE);
    CudnnDescriptor scores = cudnn_map(g, CUDNN_POINTWISE_MUL, products, scale, cudnn_scores(g));
    CudnnDescriptor seen = cudnn_mask(g, scores);
    CudnnDescriptor max = cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, seen);
    CudnnDescriptor below = cudnn_map(g, CUDNN_POINTWISE_SUB, seen, max, cudnn_scores(g));
    CudnnDescriptor exps = cudnn_map(g, CUDNN_POINTWISE_EXP, below, NULL, cudnn_scores(g));
    CudnnDescriptor sum = cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, exps);
    CudnnDescriptor log_sum = cudnn_map(g, CUDNN_POINTWISE_LOG, sum, NULL, cudnn_packed(g, CUDNN_DATA_FLOAT, 1));
    cudnn_map(g, CUDNN_POINTWISE_ADD, max, log_sum, lse);
    CudnnDescriptor p = cudnn_map(g, CUDNN_POINTWISE_DIV, exps, sum, cudnn_scores(g, CUDNN_DATA_BFLOAT16));
    cudnn_matmul(g, p, v, out);
}

// delta = sum(do * out) of each row. cuDNN stores delta, and looks for it behind a factor: dropout's 1 / (1 - p), which
// is 1 here. Without the factor, 9.19 stores the next (B, NH, T, T) tensor instead, as the workspace's size shows.
static inline CudnnDescriptor cudnn_delta(CudnnGraph *g, CudnnDescriptor dout) {
    CudnnDescriptor out = cudnn_heads(g, CUDNN_OUT), products = cudnn_packed(g, CUDNN_DATA_FLOAT, g->HS);
    cudnn_map(g, CUDNN_POINTWISE_MUL, dout, out, products);
    CudnnDescriptor sums = cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, products), one = cudnn_number(g, CUDNN_ONE);
    return cudnn_map(g, CUDNN_POINTWISE_MUL, sums, one, cudnn_packed(g, CUDNN_DATA_FLOAT, 1));
}

// dq = dS k. With atomics the product comes in fp32 first. The caller clears these sums, because cuDNN adds to them.
static inline void cudnn_describe_dq(CudnnGraph *g, CudnnDescriptor ds, bool deterministic) {
    CudnnDescriptor k = cudnn_heads(g, CUDNN_QKV, CUDNN_K), dq = cudnn_heads(g, CUDNN_DQKV, CUDNN_Q);
    if (deterministic) {
        cudnn_matmul(g, ds, k, dq);
    } else {
        CudnnDescriptor sums = cudnn_matmul(g, ds, k, cudnn_packed(g, CUDNN_DATA_FLOAT, g->HS, CUDNN_DQ_SUMS));
        cudnn_map(g, CUDNN_POINTWISE_IDENTITY, sums, NULL, dq);
    }
}

// p = exp(mask(s - lse));  dv = p^T do;  dS = scale p (do v^T - delta);  dq = dS k;  dk = dS^T q. The mask comes after
// the subtraction of lse. So cuDNN's kernels take scale and lse in one fused multiply-add, and p of a masked score is
// exp of the mask's number.
static inline void cudnn_describe_backward(CudnnGraph *g, bool deterministic) {
    CudnnDescriptor q = cudnn_heads(g, CUDNN_QKV, CUDNN_Q), k_t = cudnn_heads(g, CUDNN_QKV, CUDNN_K, true);
    CudnnDescriptor v_t = cudnn_heads(g, CUDNN_QKV, CUDNN_V, true), dout = cudnn_heads(g, CUDNN_DOUT);
    CudnnDescriptor dk = cudnn_heads(g, CUDNN_DQKV, CUDNN_K), dv = cudnn_heads(g, CUDNN_DQKV, CUDNN_V);
    CudnnDescriptor scale = cudnn_number(g, CUDNN_SCALE), lse = cudnn_lse(g), delta = cudnn_delta(g, dout);
    CudnnDescriptor products = cudnn_matmul(g, q, k_t, cudnn_scores(g));
    CudnnDescriptor scores = cudnn_map(g, CUDNN_POINTWISE_MUL, products, scale, cudnn_scores(g));
    CudnnDescriptor below = cudnn_map(g, CUDNN_POINTWISE_SUB, scores, lse, cudnn_scores(g));
    CudnnDescriptor p = cudnn_map(g, CUDNN_POINTWISE_EXP, cudnn_mask(g, below), NULL, cudnn_scores(g));
    cudnn_matmul(g, cudnn_transpose(g, p), dout, dv);
    CudnnDescriptor dp = cudnn_matmul(g, dout, v_t, cudnn_scores(g));
    CudnnDescriptor above = cudnn_map(g, CUDNN_POINTWISE_SUB, dp, delta, cudnn_scores(g));
    CudnnDescriptor p_above = cudnn_map(g, CUDNN_POINTWISE_MUL, above, p, cudnn_scores(g));
    CudnnDescriptor ds = cudnn_map(g, CUDNN_POINTWISE_MUL, p_above, scale, cudnn_scores(g, CUDNN_DATA_BFLOAT16));
    cudnn_describe_dq(g, ds, deterministic);
    cudnn_matmul(g, cudnn_transpose(g, ds), q, dk);
}

// ---- Plans ----

// Does this configuration's engine say that its bits differ from run to run?
static inline bool cudnn_is_random(CudnnGraph *graph, CudnnDescriptor config) {
    cudnnBackendNumericalNote_t notes[32];
    CudnnDescriptor engine = cudnn_make(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnn_get(graph, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    int64_t count = cudnn_get(graph, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 32, notes);
    for (int64_t i = 0; i < count; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) { return true; }
    }
    return false;
}

// Makes the plan of one configuration. If it is not to be taken, notes why and leaves the graph usable for the next
// one.
static inline bool cudnn_try_config(CudnnGraph *graph, CudnnDescriptor config, cudnnHandle_t handle,
                                    int64_t workspace_bytes, bool deterministic) {
    int64_t bytes = 0;
    if (deterministic && cudnn_is_random(graph, config)) {
        snprintf(graph->error, sizeof(graph->error), "its engine is not deterministic");
        return false;
    }
    graph->plan = cudnn_describe(
        graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
        {CUDNN_SET(EXECUTION_PLAN_HANDLE, HANDLE, 1, &handle), CUDNN_PART(EXECUTION_PLAN_ENGINE_CONFIG, &config)});
    cudnn_get(graph, graph->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
    bool is_made = graph->status == CUDNN_STATUS_SUCCESS;
    graph->status = CUDNN_STATUS_SUCCESS;
    if (is_made && bytes > workspace_bytes) {
        snprintf(graph->error, sizeof(graph->error), "it wants %lld bytes of workspace, not %lld", (long long)bytes,
                 (long long)workspace_bytes);
    }
    return is_made && bytes <= workspace_bytes;
}

// Makes the plan for a graph that is described. It takes the best engine that needs at most workspace_bytes, and that
// is deterministic if `deterministic` asks for it.
static inline bool cudnn_make_plan(CudnnGraph *graph, cudnnHandle_t handle, int64_t workspace_bytes, bool deterministic,
                                   const char *what, Error *error) {
    char version[32];
    CudnnDescriptor configs[8];
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    CudnnDescriptor operations =
        cudnn_describe(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                       {CUDNN_SET(OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, graph->num_operations, graph->operations),
                        CUDNN_SET(OPERATIONGRAPH_HANDLE, HANDLE, 1, &handle)});
    CudnnDescriptor heuristic = cudnn_describe(
        graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
        {CUDNN_PART(ENGINEHEUR_OPERATION_GRAPH, &operations), CUDNN_SET(ENGINEHEUR_MODE, HEUR_MODE, 1, &mode)});
    for (CudnnDescriptor &config : configs) { config = cudnn_make(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR); }
    int64_t count =
        cudnn_get(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 8, configs);
    for (int64_t i = 0; i < count; i++) { // best first
        if (cudnn_try_config(graph, configs[i], handle, workspace_bytes, deterministic)) { return true; }
    }
    cudnn_att_version_text(version, sizeof(version));
    return fail(error,
                "cuDNN %s has no plan for attention's %s (%s); it needs NVRTC of its CUDA release (see `make doctor`); "
                "CUDNN_LOGLEVEL_DBG=2 CUDNN_LOGDEST_DBG=stderr shows why",
                version, what, graph->error[0] != '\0' ? graph->error : "no engine takes it");
}

static inline void cudnn_att_close(CudnnAttention *att) {
    cudnn_graph_end(&att->forward);
    cudnn_graph_end(&att->backward);
    if (att->handle != NULL) { cudnnDestroy(att->handle); }
    memset(att, 0, sizeof(*att));
}

static inline bool cudnn_att_plan(CudnnAttention *att, Error *error) {
    const CudnnShape *shape = &att->shape;
    int64_t bytes = cudnn_att_workspace_for(shape, att->chunk) - cudnn_att_sum_bytes(shape, att->chunk);
    cudnn_graph_begin(&att->forward, shape, shape->B);
    cudnn_describe_forward(&att->forward);
    cudnn_graph_begin(&att->backward, shape, att->chunk);
    cudnn_describe_backward(&att->backward, shape->deterministic);
    return cudnn_make_plan(&att->forward, att->handle, CUDNN_ATT_SLACK, true, "forward", error) &&
           cudnn_make_plan(&att->backward, att->handle, bytes, shape->deterministic, "backward", error);
}

// Makes the plans for batches of B sequences of T tokens, on the current GPU. After a failure nothing is open. chunk:
// cudnn_att_chunk, or a smaller divisor of B.
static inline bool cudnn_att_open(CudnnAttention *att, const CudnnShape *shape, int chunk, Error *error) {
    memset(att, 0, sizeof(*att));
    if (!cudnn_att_check(shape, error)) { return false; }
    att->shape = *shape, att->chunk = chunk;
    int device = 0, major = 0;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (shape->deterministic && major == 10 && cudnnGetVersion() < 91801) {
        return fail(error, "before 9.18.1 cuDNN's attention is not deterministic on GPUs of compute capability 10.x");
    }
    cudnnStatus_t status = cudnnCreate(&att->handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        att->handle = NULL;
        return fail(error, "cuDNN does not start: %s; expected a cuDNN 9 for this CUDA and driver",
                    cudnnGetErrorString(status));
    }
    att->is_open = cudnn_att_plan(att, error);
    if (!att->is_open) { cudnn_att_close(att); }
    return att->is_open;
}

// ---- Running them ----

// Runs a graph's plan for its sequences from `first` on. arrays (CUDNN_ARRAYS): of the whole batch, without the
// numbers.
static inline void cudnn_run(const CudnnAttention *att, const CudnnGraph *graph, const void **arrays, int64_t first,
                             const void *workspace, cudaStream_t stream) {
    // Before 9.10 NVIDIA's own frontend masks with the lowest finite number. Its exponential is also 0.
    const float masked = cudnnGetVersion() >= 91000 ? -INFINITY : -FLT_MAX;
    const float scale = 1.0f / sqrtf((float)graph->HS), one = 1.0f;
    const void *pointers[CUDNN_GRAPH_TENSORS];
    int64_t uids[CUDNN_GRAPH_TENSORS], count = 0;
    CudnnGraph run = {}; // owns the descriptor of the pointers
    arrays[CUDNN_SCALE] = &scale, arrays[CUDNN_MASKED] = &masked, arrays[CUDNN_ONE] = &one;
    for (int i = 0; i < graph->num_tensors; i++) {
        CudnnTensor tensor = graph->tensors[i];
        if (tensor.array == CUDNN_VIRTUAL) { continue; }
        pointers[count] = (const char *)arrays[tensor.array] + cudnn_offset(graph, tensor, first);
        uids[count++] = i + 1;
    }
    cudnn_ok(&run, cudnnSetStream(att->handle, stream));
    CudnnDescriptor pack = cudnn_describe(&run, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
                                          {CUDNN_SET(VARIANT_PACK_UNIQUE_IDS, INT64, count, uids),
                                           CUDNN_SET(VARIANT_PACK_DATA_POINTERS, VOID_PTR, count, pointers),
                                           CUDNN_SET(VARIANT_PACK_WORKSPACE, VOID_PTR, 1, &workspace)});
    if (run.status == CUDNN_STATUS_SUCCESS) { cudnn_ok(&run, cudnnBackendExecute(att->handle, graph->plan, pack)); }
    cudnn_graph_end(&run);
    if (run.status == CUDNN_STATUS_SUCCESS) { return; }
    fflush(stdout);
    say(stderr, "cuDNN's attention failed: %s; --attention own does without cuDNN\n", run.error);
    _exit(EXIT_FAILURE);
}

// out (B,T,C) and lse (B,NH,T) = attention of qkv (B,T,3C). workspace: device memory of CUDNN_ATT_SLACK bytes. Only one
// stream at a time may use a workspace.
static inline void cudnn_att_forward(const CudnnAttention *att, floatX *out, float *lse, const floatX *qkv,
                                     float *workspace, cudaStream_t stream) {
    const void *arrays[CUDNN_ARRAYS] = {qkv, NULL, out, NULL, lse}; // in the order of CUDNN_QKV ..
    cudnn_run(att, &att->forward, arrays, 0, workspace, stream);
}

// dqkv (B,T,3C) = the gradient of qkv, from dout (B,T,C) and the forward's qkv, out and lse. workspace: device memory
// of cudnn_att_backward_bytes. dq's sums, if there are any, lie in front of cuDNN's own workspace.
static inline void cudnn_att_backward(const CudnnAttention *att, floatX *dqkv, const floatX *dout, const floatX *qkv,
                                      const floatX *out, const float *lse, float *workspace, cudaStream_t stream) {
    int64_t sum_bytes = cudnn_att_sum_bytes(&att->shape, att->chunk);
    const void *arrays[CUDNN_ARRAYS] = {qkv, dqkv, out, dout, lse, workspace};
    for (int first = 0; first < att->shape.B; first += att->chunk) {
        if (sum_bytes > 0) { cuda_check(cudaMemsetAsync(workspace, 0, (size_t)sum_bytes, stream)); }
        cudnn_run(att, &att->backward, arrays, first, (char *)workspace + sum_bytes, stream);
    }
}

#else

static inline bool cudnn_att_check(const CudnnShape *, Error *error) {
    return fail(error, "this program was built without cuDNN; install cuDNN 9 and build again: make train_gpt2cu");
}
static inline bool cudnn_att_open(CudnnAttention *, const CudnnShape *shape, int, Error *error) {
    return cudnn_att_check(shape, error);
}
static inline void cudnn_att_close(CudnnAttention *) {}

// Callers call these two only if cudnn_att_takes returns true.
static inline void cudnn_att_forward(const CudnnAttention *, floatX *, float *, const floatX *, float *, cudaStream_t) {
    abort();
}
static inline void cudnn_att_backward(const CudnnAttention *, floatX *, const floatX *, const floatX *, const floatX *,
                                      const float *, float *, cudaStream_t) {
    abort();
}

#endif

#endif // LLMC_CUDNN_ATT_H
