// cuBLASLt: the handle, its workspace, and a table of the problems so far with an algorithm for each.
//
// cuBLASLt's heuristic takes long compared with a launch, so it is asked once for each problem. The table holds all
// that a problem needs: no memory is taken after cublas_open.
//
// Deterministic: where the sum over k is split among blocks, a second step adds the parts in fp32 and in a fixed order.
// Adding them in the order of their arrival is not allowed. Another GPU or another version of cuBLAS may choose other
// algorithms and then gives other bits.
#ifndef LLMC_CUBLAS_COMMON_H
#define LLMC_CUBLAS_COMMON_H

#include <cublasLt.h>

#include "llmc/cuda/cuda_common.h"

// cuBLASLt's workspace, as NVIDIA recommends. An algorithm that splits a sum over k keeps the parts there in fp32: 4 m
// n bytes each. With another workspace cuBLASLt may take other algorithms and give other bits.
#define CUBLAS_WORKSPACE ((int64_t)32 << 20)
// Training needs about 20 plans, and Muon up to 40 more. An evaluation needs 5 for each number of tokens in a batch:
// about 5 lengths, full batches and a last one of each. The oldest plan makes room for a new one.
#define CUBLAS_MAX_PLANS 128
#define CUBLAS_ALIGNMENT 16 // bytes, of every matrix and vector: rows are multiples of 8 elements

#ifdef PRECISION_FP32
#define CUBLAS_FLOATX CUDA_R_32F
#else
#define CUBLAS_FLOATX CUDA_R_16BF
#endif

static inline void cublas_version_text(char *text, size_t size) {
    int version = (int)cublasLtGetVersion();
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

// The types of A and B. cuBLASLt multiplies 8-bit matrices, each with a scale, only with A transposed and B not, with
// leading dimensions that are multiples of 16, and not two of e5m2.
typedef enum { CUBLAS_FLOATX_BOTH, CUBLAS_E4M3, CUBLAS_E4M3_E5M2 } CublasFactors;

// `count` products at once. Each matrix has a leading dimension (the distance of its columns) and a stride (the
// distance to the matrix of the next product), both in elements. C has those of D. All 0: one product, without gaps
// between columns.
typedef struct {
    int64_t count, lda, ldb, ldd, stride_a, stride_b, stride_d;
} CublasBatch;

// D (m, n) = epilogue(alpha op(A) (m, k) op(B) (k, n) + beta C), all column-major. D is floatX, or fp32 for gradients
// of parameters.
typedef struct {
    int64_t m, n, k;
    bool transpose_a, transpose_b; // A is (k, m) in memory, B is (n, k)
    bool accumulate;               // false: beta = 0
    bool fp32_output;
    cublasLtEpilogue_t epilogue;
    CublasFactors factors;
    bool fast_sums; // 8-bit factors: sums may keep fewer bits than fp32 has
    CublasBatch batch;
} CublasProblem;

typedef struct {
    CublasProblem problem;
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t A, B, D;
    cublasLtMatmulAlgo_t algo;
} CublasPlan;

typedef struct {
    cublasLtHandle_t handle;
    void *workspace;
    size_t workspace_bytes;
    bool tf32;          // fp32 build: round the factors to tf32 (10 bits of mantissa) for the tensor cores
    int64_t plan_count; // plans made so far
    CublasPlan plans[CUBLAS_MAX_PLANS];
} CublasContext;

// The operands of a multiply, in device memory. bias (m) and aux (m, n) are NULL unless the epilogue uses them. A_scale
// and B_scale are one fp32 factor each for the values of 8-bit matrices, else NULL. C is the matrix that the product is
// added to. C NULL: D.
typedef struct {
    void *D;
    const void *A, *B, *bias, *aux;
    const float *A_scale, *B_scale;
    const void *C;
    float alpha, beta; // beta counts if the problem accumulates
} CublasOperands;

// What a person can do about a call that failed. cuBLASLt loads its kernels when they are first used, into memory that
// no plan counts, and does not always say that memory is short.
static inline const char *cublas_remedy(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
    case CUBLAS_STATUS_ALLOC_FAILED: return "the GPU's memory is short: " MEMORY_REMEDY;
    case CUBLAS_STATUS_MAPPING_ERROR:
    case CUBLAS_STATUS_EXECUTION_FAILED:
    case CUBLAS_STATUS_INTERNAL_ERROR: return "the GPU's memory may be short: " MEMORY_REMEDY;
    default: return "CUBLASLT_LOG_LEVEL=2 shows what it objects to";
    }
}

static inline void cublas_check_status(cublasStatus_t status, const char *call, const char *file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) { return; }
    fflush(stdout);
    say(stderr, "%s:%d: %s failed: %s (%s); %s\n", file, line, call, cublasLtGetStatusString(status),
        cublasLtGetStatusName(status), cublas_remedy(status));
    _exit(EXIT_FAILURE);
}
#define cublas_check(call) cublas_check_status((call), #call, __FILE__, __LINE__)

// cublas_set_workspace must follow.
static inline bool cublas_open(CublasContext *context, bool tf32, Error *error) {
    memset(context, 0, sizeof(*context));
    context->tf32 = tf32;
    cublasStatus_t status = cublasLtCreate(&context->handle);
    if (status == CUBLAS_STATUS_SUCCESS) { return true; }
    return fail(error, "cuBLASLt does not start: %s; expected a cuBLAS library that fits the driver (see nvidia-smi)",
                cublasLtGetStatusName(status));
}

// Gives cuBLASLt device memory that one stream uses at a time. Plans count on it, so all plans are dropped.
static inline void cublas_set_workspace(CublasContext *context, void *workspace, size_t bytes) {
    context->workspace = workspace;
    context->workspace_bytes = bytes;
    context->plan_count = 0;
}

static inline void cublas_close(CublasContext *context) {
    cublasLtDestroy(context->handle);
    context->handle = NULL;
}

// ---- Problems ----

// Returns a product without transposes into floatX. The caller changes what differs.
static inline CublasProblem cublas_problem(int64_t m, int64_t n, int64_t k, cublasLtEpilogue_t epilogue) {
    CublasProblem problem = {m, n, k, false, false, false, false, epilogue, CUBLAS_FLOATX_BOTH, false, {}};
    return problem;
}

// Returns a product without bias, aux, scales and C, with alpha = beta = 1. The caller changes what differs.
static inline CublasOperands cublas_operands(void *D, const void *A, const void *B) {
    CublasOperands operands = {D, A, B, NULL, NULL, NULL, NULL, NULL, 1.0f, 1.0f};
    return operands;
}

static inline bool cublas_same_problem(const CublasProblem *a, const CublasProblem *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->transpose_a == b->transpose_a &&
           a->transpose_b == b->transpose_b && a->accumulate == b->accumulate && a->fp32_output == b->fp32_output &&
           a->epilogue == b->epilogue && a->factors == b->factors && a->fast_sums == b->fast_sums &&
           memcmp(&a->batch, &b->batch, sizeof(a->batch)) == 0;
}

static inline bool cublas_is_8_bit(const CublasProblem *p) { return p->factors != CUBLAS_FLOATX_BOTH; }

static inline cudaDataType_t cublas_type_of_a(const CublasProblem *p) {
    return cublas_is_8_bit(p) ? CUDA_R_8F_E4M3 : CUBLAS_FLOATX;
}
static inline cudaDataType_t cublas_type_of_b(const CublasProblem *p) {
    return p->factors == CUBLAS_E4M3_E5M2 ? CUDA_R_8F_E5M2 : cublas_type_of_a(p);
}
static inline cudaDataType_t cublas_type_of_d(const CublasProblem *p) {
    return p->fp32_output ? CUDA_R_32F : CUBLAS_FLOATX;
}

static inline bool cublas_reads_bias(const CublasProblem *p) { return (p->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
static inline bool cublas_reads_aux(const CublasProblem *p) { return p->epilogue == CUBLASLT_EPILOGUE_DGELU; }
static inline bool cublas_writes_aux(const CublasProblem *p) {
    return p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

// ---- Descriptions for cuBLASLt ----

template <class T> static inline void cublas_set(CublasPlan *plan, cublasLtMatmulDescAttributes_t attribute, T value) {
    cublas_check(cublasLtMatmulDescSetAttribute(&plan->operation, attribute, &value, sizeof(value)));
}

// Sets the pointers that are not NULL; the matrices themselves are arguments of the multiply.
static inline void cublas_set_pointers(CublasPlan *plan, const CublasOperands *on) {
    if (on->bias != NULL) { cublas_set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, on->bias); }
    if (on->aux != NULL) { cublas_set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, on->aux); }
    if (on->A_scale != NULL) { cublas_set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, on->A_scale); }
    if (on->B_scale != NULL) { cublas_set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, on->B_scale); }
}

static inline void cublas_describe_operation(CublasPlan *plan, bool tf32) {
    const CublasProblem *p = &plan->problem;
    bool rounds = tf32 && PRECISION_IS_FP32 && !cublas_is_8_bit(p),
         uses_aux = cublas_reads_aux(p) || cublas_writes_aux(p);
    cublasComputeType_t compute = rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublas_check(cublasLtMatmulDescInit(&plan->operation, compute, CUDA_R_32F));
    cublas_set(plan, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)(p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    cublas_set(plan, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)(p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    cublas_set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)p->epilogue);
    if (cublas_is_8_bit(p)) { cublas_set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, (int8_t)p->fast_sums); }
    if (uses_aux) { cublas_set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p->m); }
    // The heuristic looks at the alignment of pointers only.
    char *stand_in = (char *)(uintptr_t)CUBLAS_ALIGNMENT;
    CublasOperands on = cublas_operands(stand_in, stand_in, stand_in);
    if (cublas_reads_bias(p)) { on.bias = stand_in; }
    if (uses_aux) { on.aux = stand_in; }
    if (cublas_is_8_bit(p)) { on.A_scale = on.B_scale = (const float *)stand_in; }
    cublas_set_pointers(plan, &on);
}

static inline void cublas_describe_matrix(cublasLtMatrixLayout_t layout, cudaDataType_t type, int64_t rows,
                                          int64_t cols, const CublasBatch *batch, int64_t ld, int64_t stride) {
    auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
        cublas_check(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof(value)));
    };
    bool batched = batch->count > 0;
    cublas_check(cublasLtMatrixLayoutInit(layout, type, (uint64_t)rows, (uint64_t)cols, batched ? ld : rows));
    if (!batched) { return; }
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (int32_t)batch->count);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
}

// Fills in the plan of a problem, without the algorithm.
static inline void cublas_describe(const CublasContext *context, CublasPlan *plan, const CublasProblem *p) {
    plan->problem = *p;
    cublas_describe_operation(plan, context->tf32);
    const CublasBatch *b = &p->batch;
    cublas_describe_matrix(&plan->A, cublas_type_of_a(p), p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k, b,
                           b->lda, b->stride_a);
    cublas_describe_matrix(&plan->B, cublas_type_of_b(p), p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, b,
                           b->ldb, b->stride_b);
    cublas_describe_matrix(&plan->D, cublas_type_of_d(p), p->m, p->n, b, b->ldd, b->stride_d);
}

// No algorithm may split the sum over k among blocks. A public report (pull request 2767 of
// facebookexperimental/triton: cuBLAS 12.8 to 13.1 on an H100, GB200 and GB300) says that such algorithms drop the last
// terms of some shapes.
static inline void cublas_describe_wishes(cublasLtMatmulPreference_t wishes, uint64_t workspace_bytes) {
    auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
        cublas_check(cublasLtMatmulPreferenceSetAttribute(wishes, attribute, &value, sizeof(value)));
    };
    cublas_check(cublasLtMatmulPreferenceInit(wishes));
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (uint32_t)CUBLASLT_REDUCTION_SCHEME_NONE);
    for (auto alignment : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
        set(alignment, (uint32_t)CUBLAS_ALIGNMENT);
    }
}

// ---- Algorithms ----

static inline void cublas_no_algorithm(const CublasContext *context, const CublasProblem *p, cublasStatus_t status) {
    bool fuses_gelu = cublas_reads_aux(p) || cublas_writes_aux(p), in_8_bits = cublas_is_8_bit(p);
    fflush(stdout);
    say(stderr,
        "cuBLASLt has no algorithm for m %lld, n %lld, k %lld with epilogue %d%s in %zu MiB of workspace (%s); if "
        "the GPU's memory is short, " MEMORY_REMEDY "; else try %sanother version of CUDA\n",
        (long long)p->m, (long long)p->n, (long long)p->k, (int)p->epilogue, in_8_bits ? " in 8 bits" : "",
        context->workspace_bytes >> 20, cublasLtGetStatusName(status),
        in_8_bits    ? "without --fp8, or "
        : fuses_gelu ? "without fused GELU, or "
                     : "");
    _exit(EXIT_FAILURE);
}

// Gives a plan the first algorithm of the heuristic's that does not split the sum over k.
static inline void cublas_choose(const CublasContext *context, CublasPlan *plan) {
    cublasLtMatmulPreferenceOpaque_t wishes;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublas_describe_wishes(&wishes, context->workspace_bytes);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(context->handle, &plan->operation, &plan->A, &plan->B,
                                                           &plan->D, &plan->D, &wishes, 1, &found, &count);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0) { cublas_no_algorithm(context, &plan->problem, status); }
    plan->algo = found.algo;
}

// ---- Plans ----

// Returns the plan of a problem, which may be new.
static inline CublasPlan *cublas_plan(CublasContext *context, const CublasProblem *problem) {
    for (int64_t i = 0; i < min_i64(context->plan_count, CUBLAS_MAX_PLANS); i++) {
        if (cublas_same_problem(&context->plans[i].problem, problem)) { return &context->plans[i]; }
    }
    CublasPlan *plan = &context->plans[context->plan_count++ % CUBLAS_MAX_PLANS];
    cublas_describe(context, plan, problem);
    cublas_choose(context, plan);
    return plan;
}

// D = epilogue(alpha op(A) op(B) + beta C).
static inline void cublas_multiply(CublasContext *context, const CublasProblem *problem, const CublasOperands *on,
                                   cudaStream_t stream) {
    CublasPlan *plan = cublas_plan(context, problem);
    const float beta = problem->accumulate ? on->beta : 0.0f;
    const void *C = on->C != NULL ? on->C : on->D;
    cublas_set_pointers(plan, on);
    cublas_check(cublasLtMatmul(context->handle, &plan->operation, &on->alpha, on->A, &plan->A, on->B, &plan->B, &beta,
                                C, &plan->D, on->D, &plan->D, &plan->algo, context->workspace, context->workspace_bytes,
                                stream));
}

#endif // LLMC_CUBLAS_COMMON_H
