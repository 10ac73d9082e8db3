// cuBLASLt: the handle, its workspace, and a table of the problems asked so far with the algorithm for each.
//
// cuBLASLt's heuristic takes long compared with a launch, so it is asked once per problem. Everything that a problem
// needs lies in the table itself: no memory is taken after cublas_open.
//
// Deterministic: where the sum over k is split among blocks, the parts are added in a step of their own, in fp32 and in
// a fixed order; adding them in place in the order of their arrival is not allowed. (Another GPU or another version of
// cuBLAS may choose other algorithms, and give other bits.)
#ifndef LLMC_CUBLAS_COMMON_H
#define LLMC_CUBLAS_COMMON_H

#include <cublasLt.h>

#include "llmc/cuda/cuda_common.h"

// cuBLASLt's workspace, of a GPU with less than 40 GB of memory and of a larger one. NVIDIA recommends 32 MiB. An
// algorithm that splits a sum over k keeps the parts there in fp32: 4 m n bytes each, so that qkv's and fc's gradients
// of weights (GPT-2 124M: 7 and 9 MB, 1558M: 31 and 41 MB) can be split into 3 parts or none in 32 MiB. GPUs with other
// workspaces may take other algorithms, and give other bits.
#define CUBLAS_SMALL_WORKSPACE ((int64_t)32 << 20)
#define CUBLAS_LARGE_WORKSPACE ((int64_t)128 << 20)
#define CUBLAS_LARGE_GPU ((int64_t)40000000000) // bytes
// Training needs about 20 plans, an evaluation 5 for each number of tokens in a batch: at each of about 5 lengths that
// of full batches and that of the last one. The oldest makes room for a new one.
#define CUBLAS_MAX_PLANS 128
#define CUBLAS_ALIGNMENT 16 // bytes, of every matrix and vector: rows are multiples of 8 elements

#ifdef PRECISION_FP32
#define CUBLAS_FLOATX CUDA_R_32F
#else
#define CUBLAS_FLOATX CUDA_R_16BF
#endif

// Is GELU really computed inside the multiply? Known of Hopper in bf16, with cuBLAS of CUDA 12.5 or later; elsewhere
// cuBLASLt may run a kernel of its own for it, or a slower multiply.
static inline bool cublas_fuses_gelu(int major, int minor) {
    return !PRECISION_IS_FP32 && major == 9 && minor == 0 && cublasLtGetVersion() >= 120500;
}

// The types of A and B. cuBLASLt multiplies 8-bit matrices (each with a scale) only with A transposed
// and B not, of leading dimensions that are multiples of 16, and not two of e5m2.
typedef enum { CUBLAS_FLOATX_BOTH, CUBLAS_E4M3, CUBLAS_E4M3_E5M2 } CublasFactors;

// D (m, n) = epilogue(op(A) (m, k) op(B) (k, n) + beta D), all column-major and without gaps between columns. D is
// floatX, or fp32 for gradients of parameters.
typedef struct {
    int64_t m, n, k;
    bool transpose_a, transpose_b; // A is (k, m) in memory, B is (n, k)
    bool accumulate;               // beta = 1
    bool fp32_output;
    cublasLtEpilogue_t epilogue;
    CublasFactors factors;
    bool fast_sums;      // of 8-bit factors: sums may keep fewer bits than fp32 has
    int multiprocessors; // that it may count on, others being in use; 0: all
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
    int multiprocessors; // that the next multiplications may count on; 0: all
    bool tf32;           // fp32 build: round the factors to tf32 (10 bits of mantissa) for the tensor cores
    int64_t plan_count;  // made so far: of how many problems the heuristic was asked
    int64_t kept_plans;  // so many, the first ones, never make room for others
    CublasPlan plans[CUBLAS_MAX_PLANS];
} CublasContext;

// What a multiplication works on, in device memory. bias (m) and aux (m, n): for the epilogues that use them, otherwise
// NULL. A_scale and B_scale: for 8-bit factors, one fp32 each that their values are multiplied by; otherwise NULL.
typedef struct {
    void *D;
    const void *A, *B, *bias, *aux;
    const float *A_scale, *B_scale;
} CublasOperands;

// What a person can do about a call that failed. Memory may be short without a word of it: cuBLASLt loads its kernels
// when they are first used, into memory that no plan counts.
static inline const char *cublas_remedy(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
    case CUBLAS_STATUS_ALLOC_FAILED: return "the GPU's memory is short: " PLAN_REMEDY;
    case CUBLAS_STATUS_MAPPING_ERROR:
    case CUBLAS_STATUS_EXECUTION_FAILED:
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "the GPU's memory may be short (" PLAN_REMEDY
               "), or an algorithm faulty (--matmul-tune 0 takes cuBLASLt's "
               "own choices)";
    default: return "--matmul-tune 0 takes cuBLASLt's own choices; CUBLASLT_LOG_LEVEL=2 shows what it objects to";
    }
}

static inline void cublas_check_status(cublasStatus_t status, const char *call, const char *file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) { return; }
    fflush(stdout);
    fprintf(stderr, "%s:%d: %s failed: %s (%s); %s\n", file, line, call, cublasLtGetStatusString(status),
            cublasLtGetStatusName(status), cublas_remedy(status));
    _exit(EXIT_FAILURE);
}
#define cublas_check(call) cublas_check_status((call), #call, __FILE__, __LINE__)

// Without a workspace yet: see cublas_set_workspace.
static inline bool cublas_open(CublasContext *context, bool tf32, Error *error) {
    memset(context, 0, sizeof(*context));
    context->tf32 = tf32;
    cublasStatus_t status = cublasLtCreate(&context->handle);
    if (status == CUBLAS_STATUS_SUCCESS) { return true; }
    return fail(error, "cuBLASLt does not start: %s; expected a cuBLAS library that fits the driver (see nvidia-smi)",
                cublasLtGetStatusName(status));
}

// Device memory for cuBLASLt's own use, on one stream at a time; before the first multiplication.
static inline void cublas_set_workspace(CublasContext *context, void *workspace, size_t bytes) {
    context->workspace = workspace;
    context->workspace_bytes = bytes;
    context->plan_count = context->kept_plans = 0; // plans count on the workspace that they were made with
}

static inline int64_t cublas_workspace_for(int64_t gpu_bytes) {
    return gpu_bytes >= CUBLAS_LARGE_GPU ? CUBLAS_LARGE_WORKSPACE : CUBLAS_SMALL_WORKSPACE;
}

static inline void cublas_close(CublasContext *context) {
    cublasLtDestroy(context->handle);
    context->handle = NULL;
}

// ---- Plans ----

// A product without transposes into floatX; the caller changes what is different.
static inline CublasProblem cublas_problem(int64_t m, int64_t n, int64_t k, cublasLtEpilogue_t epilogue) {
    CublasProblem problem = {m, n, k, false, false, false, false, epilogue, CUBLAS_FLOATX_BOTH, false, 0};
    return problem;
}

static inline bool cublas_same_problem(const CublasProblem *a, const CublasProblem *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->transpose_a == b->transpose_a &&
           a->transpose_b == b->transpose_b && a->accumulate == b->accumulate && a->fp32_output == b->fp32_output &&
           a->epilogue == b->epilogue && a->factors == b->factors && a->fast_sums == b->fast_sums &&
           a->multiprocessors == b->multiprocessors;
}

// A product without bias, aux and scales; the caller adds them.
static inline CublasOperands cublas_operands(void *D, const void *A, const void *B) {
    CublasOperands operands = {D, A, B, NULL, NULL, NULL, NULL};
    return operands;
}

static inline void cublas_set_pointer(CublasPlan *plan, cublasLtMatmulDescAttributes_t attribute, const void *pointer) {
    cublas_check(cublasLtMatmulDescSetAttribute(&plan->operation, attribute, &pointer, sizeof(pointer)));
}

static inline cudaDataType_t cublas_type_of_a(const CublasProblem *p) {
    return p->factors == CUBLAS_FLOATX_BOTH ? CUBLAS_FLOATX : CUDA_R_8F_E4M3;
}
static inline cudaDataType_t cublas_type_of_b(const CublasProblem *p) {
    return p->factors == CUBLAS_E4M3_E5M2 ? CUDA_R_8F_E5M2 : cublas_type_of_a(p);
}

static inline void cublas_set_scales(CublasPlan *plan, const void *A_scale, const void *B_scale) {
    cublas_set_pointer(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, A_scale);
    cublas_set_pointer(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, B_scale);
}

static inline void cublas_describe_scales(CublasPlan *plan, const void *stand_in) {
    int8_t fast = plan->problem.fast_sums;
    cublas_set_scales(plan, stand_in, stand_in);
    cublas_check(
        cublasLtMatmulDescSetAttribute(&plan->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)));
}

// The operation, with stand-ins for the pointers: the heuristic looks at their alignment only.
static inline void cublas_describe_operation(CublasPlan *plan, bool tf32) {
    const CublasProblem *p = &plan->problem;
    const void *stand_in = (const void *)(uintptr_t)CUBLAS_ALIGNMENT;
    int32_t a = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, b = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = p->epilogue;
    int64_t aux_ld = p->m;
    bool rounds = tf32 && PRECISION_IS_FP32 && p->factors == CUBLAS_FLOATX_BOTH;
    cublasComputeType_t compute = rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasLtMatmulDesc_t operation = &plan->operation;
    cublas_check(cublasLtMatmulDescInit(operation, compute, CUDA_R_32F));
    cublas_check(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof(a)));
    cublas_check(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof(b)));
    cublas_check(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    if (p->factors != CUBLAS_FLOATX_BOTH) { cublas_describe_scales(plan, stand_in); }
    if (p->multiprocessors > 0) {
        int32_t target = p->multiprocessors;
        cublas_check(
            cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &target, sizeof(target)));
    }
    if ((epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) {
        cublas_set_pointer(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, stand_in);
    }
    if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
        epilogue == CUBLASLT_EPILOGUE_DGELU) {
        cublas_set_pointer(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, stand_in);
        cublas_check(
            cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof(aux_ld)));
    }
}

static inline void cublas_describe_matrix(cublasLtMatrixLayout_t layout, cudaDataType_t type, int64_t rows,
                                          int64_t cols) {
    cublas_check(cublasLtMatrixLayoutInit(layout, type, (uint64_t)rows, (uint64_t)cols, rows));
}

static inline void cublas_describe_wishes(cublasLtMatmulPreference_t wishes, size_t workspace_bytes, bool split) {
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint64_t bytes = workspace_bytes;
    uint32_t alignment = CUBLAS_ALIGNMENT; // a reduction scheme may also be none: NONE is no bit of the mask, but 0
    uint32_t reductions = split ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    cublas_check(cublasLtMatmulPreferenceInit(wishes));
    cublas_check(
        cublasLtMatmulPreferenceSetAttribute(wishes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
    cublas_check(cublasLtMatmulPreferenceSetAttribute(wishes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                      sizeof(reductions)));
    for (int i = 0; i < 4; i++) {
        cublas_check(cublasLtMatmulPreferenceSetAttribute(wishes, alignments[i], &alignment, sizeof(alignment)));
    }
}

static inline void cublas_no_algorithm(const CublasContext *context, const CublasProblem *p, cublasStatus_t status) {
    bool plain = p->epilogue == CUBLASLT_EPILOGUE_DEFAULT || p->epilogue == CUBLASLT_EPILOGUE_BIAS;
    bool in_8_bits = p->factors != CUBLAS_FLOATX_BOTH;
    fflush(stdout);
    fprintf(stderr,
            "cuBLASLt has no algorithm for m %lld, n %lld, k %lld with epilogue %d%s in %zu MiB of workspace (%s); if "
            "the GPU's memory is short, " PLAN_REMEDY "; else try %sanother version of CUDA\n",
            (long long)p->m, (long long)p->n, (long long)p->k, (int)p->epilogue, in_8_bits ? " in 8 bits" : "",
            context->workspace_bytes >> 20, cublasLtGetStatusName(status),
            in_8_bits ? "without --fp8, or "
            : plain   ? ""
                      : "without fused GELU, or ");
    _exit(EXIT_FAILURE);
}

// The plan of a problem, but for the algorithm.
static inline void cublas_describe(const CublasContext *context, CublasPlan *plan, const CublasProblem *p) {
    cudaDataType_t output = p->fp32_output ? CUDA_R_32F : CUBLAS_FLOATX;
    plan->problem = *p;
    cublas_describe_operation(plan, context->tf32);
    cublas_describe_matrix(&plan->A, cublas_type_of_a(p), p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k);
    cublas_describe_matrix(&plan->B, cublas_type_of_b(p), p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n);
    cublas_describe_matrix(&plan->D, output, p->m, p->n);
}

// Asks the heuristic for up to `most` algorithms for a plan, the one that it takes for the fastest first. split: also
// for those that split the sum over k among blocks. Returns how many there are, at least one.
static inline int cublas_ask(CublasContext *context, CublasPlan *plan, cublasLtMatmulHeuristicResult_t *found, int most,
                             bool split) {
    cublasLtMatmulPreferenceOpaque_t wishes;
    int count = 0;
    cublas_describe_wishes(&wishes, context->workspace_bytes, split);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(context->handle, &plan->operation, &plan->A, &plan->B,
                                                           &plan->D, &plan->D, &wishes, most, found, &count);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0) { cublas_no_algorithm(context, &plan->problem, status); }
    return count;
}

// The problem in words, all that cublas_same_problem compares, and what else an algorithm was chosen for.
static inline void cublas_problem_text(const CublasContext *context, const CublasProblem *p, char *text, size_t size) {
    static const char *const factors[] = {"", " e4m3", " e4m3 e5m2"};
    char part[32] = "";
    if (p->multiprocessors > 0) { snprintf(part, sizeof(part), " of %d", p->multiprocessors); }
    snprintf(text, size, "%s%s%s%s m %lld n %lld k %lld transposed %d%d beta %d fp32 %d epilogue %d workspace %zu%s",
             PRECISION_NAME, context->tf32 && PRECISION_IS_FP32 ? " tf32" : "", factors[p->factors],
             p->fast_sums ? " fast" : "", (long long)p->m, (long long)p->n, (long long)p->k, p->transpose_a,
             p->transpose_b, p->accumulate, p->fp32_output, (int)p->epilogue, context->workspace_bytes, part);
}

// The plan of a problem, or NULL.
static inline CublasPlan *cublas_find_plan(CublasContext *context, const CublasProblem *problem) {
    for (int64_t i = 0; i < min_i64(context->plan_count, CUBLAS_MAX_PLANS); i++) {
        if (cublas_same_problem(&context->plans[i].problem, problem)) { return &context->plans[i]; }
    }
    return NULL;
}

// A new plan, but for the algorithm.
static inline CublasPlan *cublas_add_plan(CublasContext *context, const CublasProblem *problem) {
    int64_t kept = context->kept_plans;
    CublasPlan *plan = &context->plans[kept + (context->plan_count - kept) % (CUBLAS_MAX_PLANS - kept)];
    context->plan_count++;
    cublas_describe(context, plan, problem);
    return plan;
}

// The last terms of a sum over k that an algorithm which splits the sum may leave out, or 0. A public report (pull
// request 2767 of facebookexperimental/triton: cuBLAS 12.8 to 13.1 on an H100, GB200 and GB300) says that such
// algorithms drop the last k % block_k terms for some shapes. A block takes a power of two of terms at a time, for 8 to
// 32 bits 256 at most (CUBLASLT_MATMUL_STAGES_256x...), so a multiple of 256 leaves no such terms. k is a width of the
// model, or for gradients of weights the rows of a batch: only odd shapes are exposed.
#define CUBLAS_LARGEST_BLOCK_K 256
static inline int64_t cublas_tail(const CublasProblem *p) { return p->k % CUBLAS_LARGEST_BLOCK_K; }

// The plan of a problem. Those of training have been made at the start, and their algorithms were tried
// (matmul_tune.cuh). Another gets the heuristic's first; with a tail, the first one that does not split the sum.
static inline CublasPlan *cublas_plan(CublasContext *context, const CublasProblem *problem) {
    CublasPlan *plan = cublas_find_plan(context, problem);
    cublasLtMatmulHeuristicResult_t found;
    if (plan != NULL) { return plan; }
    plan = cublas_add_plan(context, problem);
    cublas_ask(context, plan, &found, 1, cublas_tail(problem) == 0);
    plan->algo = found.algo;
    return plan;
}

// Runs a plan with an algorithm. That cuBLASLt cannot do it is for the caller to judge.
static inline cublasStatus_t cublas_run(const CublasContext *context, CublasPlan *plan,
                                        const cublasLtMatmulAlgo_t *algo, const CublasOperands *on,
                                        cudaStream_t stream) {
    const float alpha = 1.0f, beta = plan->problem.accumulate ? 1.0f : 0.0f;
    if (on->bias != NULL) { cublas_set_pointer(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, on->bias); }
    if (on->aux != NULL) { cublas_set_pointer(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, on->aux); }
    if (on->A_scale != NULL) { cublas_set_scales(plan, on->A_scale, on->B_scale); }
    return cublasLtMatmul(context->handle, &plan->operation, &alpha, on->A, &plan->A, on->B, &plan->B, &beta, on->D,
                          &plan->D, on->D, &plan->D, algo, context->workspace, context->workspace_bytes, stream);
}

// D = epilogue(op(A) op(B) + beta D), by context->multiprocessors.
static inline void cublas_multiply(CublasContext *context, const CublasProblem *problem, const CublasOperands *on,
                                   cudaStream_t stream) {
    CublasProblem wanted = *problem;
    wanted.multiprocessors = context->multiprocessors;
    CublasPlan *plan = cublas_plan(context, &wanted);
    cublas_check(cublas_run(context, plan, &plan->algo, on, stream));
}

#endif // LLMC_CUBLAS_COMMON_H
