// Attention by cuDNN 9, if it is linked (make finds it and sets -DUSE_CUDNN). It has the inputs and outputs of
// llmc/layers/attention.cuh, lse included. So each of them can do the forward, the backward or both.
//
// cuDNN gets a graph of operations, in the pattern that its documentation calls fused flash attention. Its engines
// recognise the pattern and compute it in one kernel or three. The single attention operation of later 9.x knows no
// causal mask, so it is not used. Tensors are (B, heads, T, HS) by their strides, so that q, k and v stay interleaved
// in the rows of qkv. Where query heads share k and v, dk and dv are sums of the query heads' products. cuDNN stores
// these products in its workspace, in bf16: for fp32 products one of 9.19's engines for sm_100 does not compile. All
// other tensors between the operations are virtual, not stored.
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
#include "llmc/layers/attention_tiles.cuh"

// The largest workspace in bytes of a chunk of two or more sequences. Up to 256 MiB NVIDIA's own frontend also prefers
// the backward with a stored dS. One sequence may take more.
#define CUDNN_ATT_MAX_WORKSPACE (256 << 20)
#define CUDNN_ATT_SLACK (64 << 10)  // bytes of a workspace for cuDNN's additions to its tensors (256 in 9.19)
#define CUDNN_ATT_MAX_HEAD_SIZE 128 // of the backward on all GPUs; only sm_90 takes larger heads
#define CUDNN_ATT_TOKENS 128        // T is a multiple of it
#define CUDNN_ATT_MAX_BATCH 65535   // cuDNN counts sequences in 16 bits; its kernels fail with more

// The attention that a run asks of cuDNN.
struct CudnnShape : AttentionShape {
    bool deterministic;
};

// The bytes of dq's fp32 sums (sequences, NH, T, HS), which the backward with atomics adds to.
static inline int64_t cudnn_att_sum_bytes(const CudnnShape *shape, int sequences) {
    return shape->deterministic ? 0 : (int64_t)sequences * shape->T * shape->NH * shape->HS * (int64_t)sizeof(float);
}

// The most bytes that the backward of `sequences` sequences needs, plus slack: delta = sum(do * out) of each row in
// fp32, and dS. Without dS it needs dq's sums twice, because some GPUs' engines add up in memory of their own. With
// KV < NH it also needs bf16 products (sequences, NH, T, HS) for dk and for dv.
static inline int64_t cudnn_att_workspace_for(const CudnnShape *shape, int sequences) {
    int64_t rows = (int64_t)sequences * shape->NH * shape->T;
    int64_t larger = shape->deterministic ? rows * shape->T * 2 : 2 * cudnn_att_sum_bytes(shape, sequences);
    int64_t products = shape->KV < shape->NH ? 2 * rows * shape->HS * 2 : 0;
    return larger + products + rows * (int64_t)sizeof(float) + CUDNN_ATT_SLACK;
}

// The number of sequences that the backward takes at a time: the largest divisor of B whose workspace is allowed, or 1.
static inline int cudnn_att_chunk(const CudnnShape *shape) {
    int chunk = shape->B;
    while (chunk > 1 && (shape->B % chunk != 0 || cudnn_att_workspace_for(shape, chunk) > CUDNN_ATT_MAX_WORKSPACE)) {
        chunk--;
    }
    return chunk;
}

// The bytes of the backward's workspace follow from the shape, without a GPU. The forward needs CUDNN_ATT_SLACK.
static inline int64_t cudnn_att_backward_bytes(const CudnnShape *shape) {
    return cudnn_att_workspace_for(shape, cudnn_att_chunk(shape));
}

#ifdef USE_CUDNN
#include <cudnn.h>
#if CUDNN_MAJOR != 9
#error "cudnn.h is not of version 9: make CUDNN_HOME=/folder says where cuDNN 9 is, CUDNN=0 leaves it out"
#endif

typedef cudnnBackendDescriptor_t CudnnDescriptor;

// The description of a graph, and the plan made of it. Tensors and operations are descriptors, too.
#define CUDNN_GRAPH_DESCRIPTORS 128
typedef struct {
    CudnnShape shape; // B: the sequences that it takes at a time
    CudnnDescriptor made[CUDNN_GRAPH_DESCRIPTORS], operations[CUDNN_GRAPH_DESCRIPTORS], plan;
    int num_made, num_operations, num_stored;
    // Of each tensor that is not virtual: its id, its array, and the bytes from one sequence to the next.
    int64_t ids[CUDNN_GRAPH_DESCRIPTORS], arrays[CUDNN_GRAPH_DESCRIPTORS], sequence_bytes[CUDNN_GRAPH_DESCRIPTORS];
    bool failed;
    Error error;
} CudnnGraph;

typedef struct {
    bool is_open;
    CudnnShape shape;
    cudnnHandle_t handle;
    CudnnGraph forward, backward;
} CudnnAttention;

// Is there a plan for this batch?
static inline bool cudnn_att_takes(const CudnnAttention *att, int B, int T) {
    return att->is_open && att->shape.B == B && att->shape.T == T;
}

// Writes the version, as "9.19.0", or "" without cuDNN.
static inline void cudnn_att_version_text(char *text, size_t size) {
    int version = (int)cudnnGetVersion();
    text[0] = '\0';
    if (version != 0) { snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100); }
}

// Can cuDNN be asked for attention of this shape? The answer needs no GPU. Only cudnn_att_open finds out whether there
// is a plan. For a T that is no multiple of 128 public reports name NaNs, so no version is asked for it.
static inline bool cudnn_att_check(const CudnnShape *shape, Error *error) {
    int HS = shape->HS, version = (int)cudnnGetVersion();
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

// Keeps the reason of a failure.
static inline bool cudnn_ok(CudnnGraph *graph, cudnnStatus_t status) {
    char reason[160] = "";
    if (status == CUDNN_STATUS_SUCCESS) { return true; }
    cudnnGetLastErrorString(reason, sizeof(reason));
    graph->failed = true;
    return fail(&graph->error, "%s (%s)", cudnnGetErrorString(status), reason);
}

#define CUDNN_TRY(graph, call) (!(graph)->failed && cudnn_ok(graph, call)) // no call is made after a failed one

// An attribute of a descriptor. With count 0 the descriptor does not get it.
typedef struct {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values;
} CudnnAttribute;
#define CUDNN_SET(name, type, count, values) CudnnAttribute({CUDNN_ATTR_##name, CUDNN_TYPE_##type, count, values})
#define CUDNN_PART(name, part) CUDNN_SET(name, BACKEND_DESCRIPTOR, *(part) != NULL, part)

// Makes a descriptor and finalizes it. A descriptor without attributes is for cudnn_get to fill.
static inline CudnnDescriptor cudnn_make(CudnnGraph *graph, cudnnBackendDescriptorType_t type,
                                         std::initializer_list<CudnnAttribute> attributes = {}) {
    CudnnDescriptor made = NULL;
    if (graph->num_made == CUDNN_GRAPH_DESCRIPTORS) { abort(); } // a programming error: graphs are written by hand
    if (!CUDNN_TRY(graph, cudnnBackendCreateDescriptor(type, &made))) { return NULL; }
    graph->made[graph->num_made++] = made;
    for (const CudnnAttribute &a : attributes) {
        if (a.count > 0) { CUDNN_TRY(graph, cudnnBackendSetAttribute(made, a.name, a.type, a.count, a.values)); }
    }
    if (attributes.size() > 0) { CUDNN_TRY(graph, cudnnBackendFinalize(made)); }
    return made;
}

// Reads up to `room` values of an attribute. Returns their number.
static inline int64_t cudnn_get(CudnnGraph *graph, CudnnDescriptor descriptor, cudnnBackendAttributeName_t name,
                                cudnnBackendAttributeType_t type, int64_t room, void *values) {
    int64_t count = 0;
    CUDNN_TRY(graph, cudnnBackendGetAttribute(descriptor, name, type, room, &count, values));
    return graph->failed ? 0 : min_i64(count, room);
}

static inline void cudnn_graph_end(CudnnGraph *graph) {
    while (graph->num_made > 0) { cudnnBackendDestroyDescriptor(graph->made[--graph->num_made]); }
}

// ---- Tensors ----

// The caller's arrays, in this order: bf16 of KV heads in qkv's rows, bf16 of NH heads there, bf16 in out's rows, fp32.
// Then numbers in host memory.
enum { CUDNN_K, CUDNN_V, CUDNN_DK, CUDNN_DV, CUDNN_Q, CUDNN_DQ, CUDNN_OUT, CUDNN_DOUT, CUDNN_LSE, CUDNN_DQ_SUMS };
enum { CUDNN_VIRTUAL = CUDNN_DQ_SUMS + 1, CUDNN_SCALE, CUDNN_MASKED, CUDNN_ONE, CUDNN_ARRAYS };

// Describes a tensor (B, heads, T, width), or (B, heads, width, T) if transposed. In bf16 arrays the heads of a token
// lie beside each other. All others are packed. A number has only one value.
static inline CudnnDescriptor cudnn_tensor(CudnnGraph *graph, int array, cudnnDataType_t type, int64_t width,
                                           bool transposed = false) {
    bool has_heads = array <= CUDNN_DOUT, is_virtual = array == CUDNN_VIRTUAL, by_value = array > CUDNN_VIRTUAL;
    const CudnnShape number = {{1, 1, 1, 1, 1}, true}, *shape = by_value ? &number : &graph->shape;
    int64_t T = shape->T, heads = array <= CUDNN_DV ? shape->KV : shape->NH;
    int64_t row = !has_heads ? width : array <= CUDNN_DQ ? attention_width(*shape) : heads * width;
    int64_t head = has_heads ? width : T * width, sequence = has_heads ? T * row : heads * head;
    int64_t dims[] = {shape->B, heads, transposed ? width : T, transposed ? T : width};
    int64_t strides[] = {sequence, head, transposed ? 1 : row, transposed ? row : 1};
    int64_t alignment = width % 8 == 0 ? 16 : 4; // bytes; a width is 1 or a multiple of 8
    int64_t id = graph->num_made + 1;            // each tensor makes a descriptor
    if (!is_virtual) {
        graph->ids[graph->num_stored] = id, graph->arrays[graph->num_stored] = array;
        graph->sequence_bytes[graph->num_stored++] = array > CUDNN_LSE ? 0 : sequence * (has_heads ? 2 : 4);
    }
    return cudnn_make(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR,
                      {CUDNN_SET(TENSOR_UNIQUE_ID, INT64, 1, &id), CUDNN_SET(TENSOR_DATA_TYPE, DATA_TYPE, 1, &type),
                       CUDNN_SET(TENSOR_DIMENSIONS, INT64, 4, dims), CUDNN_SET(TENSOR_STRIDES, INT64, 4, strides),
                       CUDNN_SET(TENSOR_BYTE_ALIGNMENT, INT64, 1, &alignment),
                       CUDNN_SET(TENSOR_IS_VIRTUAL, BOOLEAN, 1, &is_virtual),
                       CUDNN_SET(TENSOR_IS_BY_VALUE, BOOLEAN, 1, &by_value)});
}

static inline CudnnDescriptor cudnn_array(CudnnGraph *graph, int array, bool transposed = false) {
    int HS = graph->shape.HS;
    if (array <= CUDNN_DOUT) { return cudnn_tensor(graph, array, CUDNN_DATA_BFLOAT16, HS, transposed); }
    return cudnn_tensor(graph, array, CUDNN_DATA_FLOAT, array == CUDNN_DQ_SUMS ? HS : 1);
}

static inline CudnnDescriptor cudnn_virtual(CudnnGraph *graph, int64_t width, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return cudnn_tensor(graph, CUDNN_VIRTUAL, type, width);
}

// ---- Operations ----

static const cudnnDataType_t cudnn_precision = CUDNN_DATA_FLOAT; // of all operations

// Adds an operation that writes y. Returns y.
static inline CudnnDescriptor cudnn_operation(CudnnGraph *g, cudnnBackendDescriptorType_t type, CudnnDescriptor y,
                                              std::initializer_list<CudnnAttribute> parts) {
    g->operations[g->num_operations++] = cudnn_make(g, type, parts);
    return y;
}

// y = mode(x, b), or y = mask ? x : b for a selection. b and mask may be NULL. axis: of CUDNN_POINTWISE_GEN_INDEX.
static inline CudnnDescriptor cudnn_map(CudnnGraph *g, cudnnPointwiseMode_t mode, CudnnDescriptor x, CudnnDescriptor b,
                                        CudnnDescriptor y, CudnnDescriptor mask = NULL, int64_t axis = -1) {
    CudnnDescriptor settings = cudnn_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                                          {CUDNN_SET(POINTWISE_MODE, POINTWISE_MODE, 1, &mode),
                                           CUDNN_SET(POINTWISE_MATH_PREC, DATA_TYPE, 1, &cudnn_precision),
                                           CUDNN_SET(POINTWISE_AXIS, INT64, axis >= 0, &axis)});
    return cudnn_operation(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, y,
                           {CUDNN_PART(OPERATION_POINTWISE_PW_DESCRIPTOR, &settings),
                            CUDNN_PART(OPERATION_POINTWISE_XDESC, &x), CUDNN_PART(OPERATION_POINTWISE_BDESC, &b),
                            CUDNN_PART(OPERATION_POINTWISE_TDESC, &mask), CUDNN_PART(OPERATION_POINTWISE_YDESC, &y)});
}

// c = a b for each head.
static inline CudnnDescriptor cudnn_matmul(CudnnGraph *g, CudnnDescriptor a, CudnnDescriptor b, CudnnDescriptor c) {
    CudnnDescriptor settings =
        cudnn_make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, {CUDNN_SET(MATMUL_COMP_TYPE, DATA_TYPE, 1, &cudnn_precision)});
    return cudnn_operation(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, c,
                           {CUDNN_PART(OPERATION_MATMUL_DESC, &settings), CUDNN_PART(OPERATION_MATMUL_ADESC, &a),
                            CUDNN_PART(OPERATION_MATMUL_BDESC, &b), CUDNN_PART(OPERATION_MATMUL_CDESC, &c)});
}

// y = the sum or the largest value of each row of x.
static inline CudnnDescriptor cudnn_reduce(CudnnGraph *g, cudnnReduceTensorOp_t how, CudnnDescriptor x,
                                           CudnnDescriptor y) {
    CudnnDescriptor settings = cudnn_make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                                          {CUDNN_SET(REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, 1, &how),
                                           CUDNN_SET(REDUCTION_COMP_TYPE, DATA_TYPE, 1, &cudnn_precision)});
    return cudnn_operation(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, y,
                           {CUDNN_PART(OPERATION_REDUCTION_DESC, &settings), CUDNN_PART(OPERATION_REDUCTION_XDESC, &x),
                            CUDNN_PART(OPERATION_REDUCTION_YDESC, &y)});
}

// Computes dk or dv = a b, a sum over the query heads of a group.
static inline void cudnn_matmul_of_group(CudnnGraph *g, CudnnDescriptor a, CudnnDescriptor b, int array) {
    CudnnDescriptor sum = cudnn_array(g, array);
    bool is_shared = g->shape.KV < g->shape.NH;
    CudnnDescriptor product = is_shared ? cudnn_virtual(g, g->shape.HS, CUDNN_DATA_BFLOAT16) : sum;
    cudnn_matmul(g, a, b, product);
    if (is_shared) { cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, product, sum); }
}

// Returns the transpose of each head of x (B, NH, T, T), as bf16: a reshape to swapped strides.
static inline CudnnDescriptor cudnn_transpose(CudnnGraph *g, CudnnDescriptor x) {
    CudnnDescriptor y = cudnn_tensor(g, CUDNN_VIRTUAL, CUDNN_DATA_BFLOAT16, g->shape.T, true);
    return cudnn_operation(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, y,
                           {CUDNN_PART(OPERATION_RESHAPE_XDESC, &x), CUDNN_PART(OPERATION_RESHAPE_YDESC, &y)});
}

// ---- Attention as graphs ----

// Returns x (B, NH, T, T) for j <= i, and the number CUDNN_MASKED for j > i.
static inline CudnnDescriptor cudnn_mask(CudnnGraph *g, CudnnDescriptor x) {
    int T = g->shape.T;
    CudnnDescriptor i = cudnn_virtual(g, T, CUDNN_DATA_INT32), j = cudnn_virtual(g, T, CUDNN_DATA_INT32);
    CudnnDescriptor is_seen = cudnn_virtual(g, T, CUDNN_DATA_BOOLEAN), masked = cudnn_array(g, CUDNN_MASKED);
    cudnn_map(g, CUDNN_POINTWISE_GEN_INDEX, x, NULL, i, NULL, 2);
    cudnn_map(g, CUDNN_POINTWISE_GEN_INDEX, x, NULL, j, NULL, 3);
    cudnn_map(g, CUDNN_POINTWISE_CMP_GE, i, j, is_seen);
    return cudnn_map(g, CUDNN_POINTWISE_BINARY_SELECT, x, masked, cudnn_virtual(g, T), is_seen);
}

// s = scale q k^T;  p = exp(s - max) / sum;  out = p v;  lse = max + log(sum)
static inline void cudnn_describe_forward(CudnnGraph *g) {
    int T = g->shape.T;
    CudnnDescriptor q = cudnn_array(g, CUDNN_Q), k_t = cudnn_array(g, CUDNN_K, true);
    CudnnDescriptor v = cudnn_array(g, CUDNN_V), scale = cudnn_array(g, CUDNN_SCALE);
    CudnnDescriptor products = cudnn_matmul(g, q, k_t, cudnn_virtual(g, T));
    CudnnDescriptor seen = cudnn_mask(g, cudnn_map(g, CUDNN_POINTWISE_MUL, products, scale, cudnn_virtual(g, T)));
    CudnnDescriptor max = cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, seen, cudnn_virtual(g, 1));
    CudnnDescriptor below = cudnn_map(g, CUDNN_POINTWISE_SUB, seen, max, cudnn_virtual(g, T));
    CudnnDescriptor exps = cudnn_map(g, CUDNN_POINTWISE_EXP, below, NULL, cudnn_virtual(g, T));
    CudnnDescriptor sum = cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, exps, cudnn_virtual(g, 1));
    CudnnDescriptor log_sum = cudnn_map(g, CUDNN_POINTWISE_LOG, sum, NULL, cudnn_virtual(g, 1));
    cudnn_map(g, CUDNN_POINTWISE_ADD, max, log_sum, cudnn_array(g, CUDNN_LSE));
    CudnnDescriptor p = cudnn_map(g, CUDNN_POINTWISE_DIV, exps, sum, cudnn_virtual(g, T, CUDNN_DATA_BFLOAT16));
    cudnn_matmul(g, p, v, cudnn_array(g, CUDNN_OUT));
}

// p = exp(mask(s - lse));  dv = p^T do;  dS = scale p (do v^T - delta);  dq = dS k;  dk = dS^T q. The mask comes after
// the subtraction of lse. So cuDNN's kernels take scale and lse in one fused multiply-add, and p of a masked score is
// exp of the mask's number.
static inline void cudnn_describe_backward(CudnnGraph *g) {
    int T = g->shape.T, HS = g->shape.HS;
    CudnnDescriptor q = cudnn_array(g, CUDNN_Q), k_t = cudnn_array(g, CUDNN_K, true);
    CudnnDescriptor k = cudnn_array(g, CUDNN_K), v_t = cudnn_array(g, CUDNN_V, true);
    CudnnDescriptor out = cudnn_array(g, CUDNN_OUT), dout = cudnn_array(g, CUDNN_DOUT);
    CudnnDescriptor dq = cudnn_array(g, CUDNN_DQ), lse = cudnn_array(g, CUDNN_LSE);
    CudnnDescriptor scale = cudnn_array(g, CUDNN_SCALE), one = cudnn_array(g, CUDNN_ONE);
    // delta = sum(do * out) of each row. cuDNN stores delta, and looks for it behind a factor: dropout's 1 / (1 - p),
    // which is 1 here. Without it, 9.19 stores the next (B, NH, T, T) tensor instead, as the workspace's size shows.
    CudnnDescriptor terms = cudnn_map(g, CUDNN_POINTWISE_MUL, dout, out, cudnn_virtual(g, HS));
    CudnnDescriptor sums = cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, terms, cudnn_virtual(g, 1));
    CudnnDescriptor delta = cudnn_map(g, CUDNN_POINTWISE_MUL, sums, one, cudnn_virtual(g, 1));
    CudnnDescriptor products = cudnn_matmul(g, q, k_t, cudnn_virtual(g, T));
    CudnnDescriptor scores = cudnn_map(g, CUDNN_POINTWISE_MUL, products, scale, cudnn_virtual(g, T));
    CudnnDescriptor below = cudnn_map(g, CUDNN_POINTWISE_SUB, scores, lse, cudnn_virtual(g, T));
    CudnnDescriptor p = cudnn_map(g, CUDNN_POINTWISE_EXP, cudnn_mask(g, below), NULL, cudnn_virtual(g, T));
    cudnn_matmul_of_group(g, cudnn_transpose(g, p), dout, CUDNN_DV);
    CudnnDescriptor dp = cudnn_matmul(g, dout, v_t, cudnn_virtual(g, T));
    CudnnDescriptor above = cudnn_map(g, CUDNN_POINTWISE_SUB, dp, delta, cudnn_virtual(g, T));
    CudnnDescriptor p_above = cudnn_map(g, CUDNN_POINTWISE_MUL, above, p, cudnn_virtual(g, T));
    CudnnDescriptor ds = cudnn_map(g, CUDNN_POINTWISE_MUL, p_above, scale, cudnn_virtual(g, T, CUDNN_DATA_BFLOAT16));
    // cuDNN adds to the fp32 sums of the backward with atomics. The caller clears them.
    CudnnDescriptor product = g->shape.deterministic ? dq : cudnn_array(g, CUDNN_DQ_SUMS);
    cudnn_matmul(g, ds, k, product);
    if (!g->shape.deterministic) { cudnn_map(g, CUDNN_POINTWISE_IDENTITY, product, NULL, dq); }
    cudnn_matmul_of_group(g, cudnn_transpose(g, ds), q, CUDNN_DK);
}

// ---- Plans ----

// Does this configuration's engine say that its bits differ from run to run?
static inline bool cudnn_is_random(CudnnGraph *g, CudnnDescriptor config) {
    cudnnBackendNumericalNote_t notes[32];
    CudnnDescriptor engine = cudnn_make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnn_get(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    int64_t count = cudnn_get(g, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 32, notes);
    for (int64_t i = 0; i < count; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) { return true; }
    }
    return false;
}

// Makes the plan for a graph that is described, with the best engine that needs at most workspace_bytes.
static inline bool cudnn_make_plan(CudnnGraph *g, cudnnHandle_t handle, int64_t workspace_bytes, const char *what,
                                   Error *error) {
    char version[32];
    CudnnDescriptor configs[8];
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    CudnnDescriptor operations =
        cudnn_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                   {CUDNN_SET(OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, g->num_operations, g->operations),
                    CUDNN_SET(OPERATIONGRAPH_HANDLE, HANDLE, 1, &handle)});
    CudnnDescriptor heuristic = cudnn_make(
        g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
        {CUDNN_PART(ENGINEHEUR_OPERATION_GRAPH, &operations), CUDNN_SET(ENGINEHEUR_MODE, HEUR_MODE, 1, &mode)});
    for (CudnnDescriptor &config : configs) { config = cudnn_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR); }
    int64_t count = cudnn_get(g, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 8, configs);
    for (int64_t i = 0; i < count; i++) { // best first
        int64_t bytes = 0;
        if (g->shape.deterministic && cudnn_is_random(g, configs[i])) {
            fail(&g->error, "its engine is not deterministic");
            continue;
        }
        g->plan = cudnn_make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                             {CUDNN_SET(EXECUTION_PLAN_HANDLE, HANDLE, 1, &handle),
                              CUDNN_PART(EXECUTION_PLAN_ENGINE_CONFIG, &configs[i])});
        cudnn_get(g, g->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
        if (!g->failed && bytes <= workspace_bytes) { return true; }
        if (!g->failed) {
            fail(&g->error, "it wants %lld bytes of workspace, not %lld", (long long)bytes, (long long)workspace_bytes);
        }
        g->failed = false; // the next configuration may do
    }
    cudnn_att_version_text(version, sizeof(version));
    return fail(error,
                "cuDNN %s has no plan for attention's %s (%s); it needs NVRTC of its CUDA release (see `make doctor`); "
                "CUDNN_LOGLEVEL_DBG=2 CUDNN_LOGDEST_DBG=stderr shows why",
                version, what, g->error.text[0] != '\0' ? g->error.text : "no engine takes it");
}

static inline void cudnn_att_close(CudnnAttention *att) {
    cudnn_graph_end(&att->forward);
    cudnn_graph_end(&att->backward);
    if (att->handle != NULL) { cudnnDestroy(att->handle); }
    memset(att, 0, sizeof(*att));
}

// Makes the plans for batches of B sequences of T tokens, on the current GPU. After a failure nothing is open. chunk:
// cudnn_att_chunk, or a smaller divisor of B.
static inline bool cudnn_att_open(CudnnAttention *att, const CudnnShape *shape, int chunk, Error *error) {
    int device = 0, major = 0;
    memset(att, 0, sizeof(*att));
    if (!cudnn_att_check(shape, error)) { return false; }
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (shape->deterministic && major == 10 && cudnnGetVersion() < 91801) {
        return fail(error, "before 9.18.1 cuDNN's attention is not deterministic on GPUs of compute capability 10.x");
    }
    if (!CUDNN_TRY(&att->forward, cudnnCreate(&att->handle))) {
        att->handle = NULL;
        return fail(error, "cuDNN does not start: %s; expected a cuDNN 9 for this CUDA and driver",
                    att->forward.error.text);
    }
    att->shape = att->forward.shape = att->backward.shape = *shape;
    att->forward.shape.deterministic = true; // only the backward has a choice
    att->backward.shape.B = chunk;
    cudnn_describe_forward(&att->forward);
    cudnn_describe_backward(&att->backward);
    int64_t bytes = cudnn_att_workspace_for(shape, chunk) - cudnn_att_sum_bytes(shape, chunk);
    att->is_open = cudnn_make_plan(&att->forward, att->handle, CUDNN_ATT_SLACK, "forward", error) &&
                   cudnn_make_plan(&att->backward, att->handle, bytes, "backward", error);
    if (!att->is_open) { cudnn_att_close(att); }
    return att->is_open;
}

// ---- Running them ----

// Runs a graph's plan for its sequences from `first` on. arrays: of the whole batch, without the numbers.
static inline void cudnn_run(const CudnnAttention *att, const CudnnGraph *graph, const void **arrays, int64_t first,
                             const void *workspace, cudaStream_t stream) {
    // Before 9.10 NVIDIA's own frontend masks with the lowest finite number. Its exponential is also 0.
    const float masked = cudnnGetVersion() >= 91000 ? -INFINITY : -FLT_MAX;
    const float scale = 1.0f / sqrtf((float)att->shape.HS), one = 1.0f;
    const void *pointers[CUDNN_GRAPH_DESCRIPTORS];
    CudnnGraph run = {}; // owns the descriptor of the pointers
    arrays[CUDNN_SCALE] = &scale, arrays[CUDNN_MASKED] = &masked, arrays[CUDNN_ONE] = &one;
    for (int i = 0; i < graph->num_stored; i++) {
        pointers[i] = (const char *)arrays[graph->arrays[i]] + first * graph->sequence_bytes[i];
    }
    CUDNN_TRY(&run, cudnnSetStream(att->handle, stream));
    CudnnDescriptor pack = cudnn_make(&run, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
                                      {CUDNN_SET(VARIANT_PACK_UNIQUE_IDS, INT64, graph->num_stored, graph->ids),
                                       CUDNN_SET(VARIANT_PACK_DATA_POINTERS, VOID_PTR, graph->num_stored, pointers),
                                       CUDNN_SET(VARIANT_PACK_WORKSPACE, VOID_PTR, 1, &workspace)});
    CUDNN_TRY(&run, cudnnBackendExecute(att->handle, graph->plan, pack));
    cudnn_graph_end(&run);
    if (!run.failed) { return; }
    fflush(stdout);
    say(stderr, "cuDNN's attention failed: %s; --attention own does without cuDNN\n", run.error.text);
    _exit(EXIT_FAILURE);
}

// out and lse = attention of qkv (AttentionShape). workspace: device memory of CUDNN_ATT_SLACK bytes. Only one stream
// at a time may use a workspace.
static inline void cudnn_att_forward(const CudnnAttention *att, floatX *out, float *lse, const floatX *qkv,
                                     float *workspace, cudaStream_t stream) {
    int k = att->shape.NH * att->shape.HS, v = k + att->shape.KV * att->shape.HS;
    const void *arrays[CUDNN_ARRAYS] = {qkv + k, qkv + v};
    arrays[CUDNN_Q] = qkv, arrays[CUDNN_OUT] = out, arrays[CUDNN_LSE] = lse;
    cudnn_run(att, &att->forward, arrays, 0, workspace, stream);
}

// dqkv = the gradient of qkv, from dout and the forward's qkv, out and lse. workspace: device memory of
// cudnn_att_backward_bytes. dq's sums, if there are any, lie in front of cuDNN's own workspace.
static inline void cudnn_att_backward(const CudnnAttention *att, floatX *dqkv, const floatX *dout, const floatX *qkv,
                                      const floatX *out, const float *lse, float *workspace, cudaStream_t stream) {
    int k = att->shape.NH * att->shape.HS, v = k + att->shape.KV * att->shape.HS, chunk = att->backward.shape.B;
    int64_t sum_bytes = cudnn_att_sum_bytes(&att->shape, chunk);
    const void *arrays[CUDNN_ARRAYS] = {qkv + k, qkv + v, dqkv + k, dqkv + v, qkv, dqkv, out, dout, lse};
    arrays[CUDNN_DQ_SUMS] = workspace;
    for (int first = 0; first < att->shape.B; first += chunk) {
        if (sum_bytes > 0) { cuda_check(cudaMemsetAsync(workspace, 0, (size_t)sum_bytes, stream)); }
        cudnn_run(att, &att->backward, arrays, first, (char *)workspace + sum_bytes, stream);
    }
}

#else

typedef struct {
    bool is_open;
} CudnnAttention;

static inline void cudnn_att_version_text(char *text, size_t) { text[0] = '\0'; }
static inline bool cudnn_att_takes(const CudnnAttention *, int, int) { return false; }
static inline bool cudnn_att_check(const CudnnShape *, Error *error) {
    return fail(error, "this program was built without cuDNN; install cuDNN 9 and make it again");
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
