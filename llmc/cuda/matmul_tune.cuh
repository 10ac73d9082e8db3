// Times the algorithms of matrix multiplies at the start of a run and keeps the fastest for the rest of it.
//
// cuBLASLt's heuristic orders algorithms by an estimate. The tuner runs up to 16 of them. TuneLevel says which
// algorithms may replace the heuristic's first algorithm:
//   --matmul-tune 1   Algorithms that give the first algorithm's bits. The clock then changes no bit of a run, so each
//                     rank may choose for itself.
//   --matmul-tune 2   Algorithms that give equal bits each time. Rank 0 chooses for all ranks, and the run's file keeps
//                     the choices for a resumed run (tune_file.h).
// No level uses an algorithm that leaves out terms of a sum (cublas_tail).
//
// The comparison of bits uses numbers that expose a difference. A sum in fp32 hides its order well: rounding it to bf16
// drops most of the difference. So in every second column of the result the second half of the terms cancels the first
// half. Only rounding errors remain of these sums, and each order of a sum has its own errors. In every second row
// nothing else is added to them: no bias and no earlier value.
//
// The tuner allocates nothing: at the start the run's memory holds nothing yet.
#ifndef LLMC_MATMUL_TUNE_CUH
#define LLMC_MATMUL_TUNE_CUH

#include <algorithm>

#include <cuda_fp8.h>

#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/tune_file.h"

#define TUNE_CANDIDATES 16
#define TUNE_ROUNDS 5   // each candidate runs once in a round; the median counts
#define TUNE_GAIN 0.99f // a candidate must take less than this part of the first one's time: less gain may be noise
#define TUNE_ALIGNMENT 256

static_assert(sizeof(cublasLtMatmulAlgo_t) == TUNE_CHOICE_BYTES, "the file keeps an algorithm");

// The values of --matmul-tune.
typedef enum {
    TUNE_NOTHING,   // the heuristic's first algorithm that adds up all terms
    TUNE_SAME_BITS, // the fastest algorithm that gives the first one's bits
    TUNE_ANY_BITS   // the fastest
} TuneLevel;

// Free device memory.
typedef struct {
    char *begin, *end;
} TuneMemory;

typedef struct {
    CublasContext *context;
    cudaStream_t stream;
    TuneMemory memory;
    uint64_t *sums;  // (TUNE_CANDIDATES), device
    Tuning *choices; // TUNE_NOTHING: not used
    TuneLevel level;
    int incomplete;     // problems for which the heuristic's first algorithm leaves out terms of the sum
    int known;          // problems whose choice a file had
    int timed;          // problems that were timed
    int replaced;       // known or timed problems that do not use the heuristic's first algorithm
    int refused;        // choices of the files that could not be used: they do not run, or have other bits
    int refused_of_run; // refused choices of the run's file
} Tuner;

// Describes a column-major matrix without gaps.
typedef struct {
    void *data; // NULL: the problem has none
    cudaDataType_t type;
    int64_t rows, cols;
    bool k_is_row; // the terms of a sum run along a column
} TuneMatrix;

// Holds a problem, its matrices, and the algorithms to choose from. algos[0] is used without tuning.
typedef struct {
    CublasPlan *plan;
    TuneMatrix A, B, D, bias, aux, scale;
    CublasOperands on;
    int count;
    cublasLtMatmulAlgo_t algos[TUNE_CANDIDATES];
} TuneCase;

// ---- Failures that end the program ----

static inline void tune_end(const CublasProblem *p, const char *what) {
    fflush(stdout);
    say(stderr, "%s (m %lld, n %lld, k %lld)\n", what, (long long)p->m, (long long)p->n, (long long)p->k);
    _exit(EXIT_FAILURE);
}

// Waits for the runs of a problem. After an algorithm that faults on the GPU the program cannot go on.
static inline void tune_wait(const Tuner *t, const CublasProblem *p) {
    char text[512];
    cudaError_t status = cudaStreamSynchronize(t->stream);
    if (status == cudaSuccess) { return; }
    snprintf(text, sizeof(text),
             "an algorithm of cuBLASLt failed on the GPU while it was tried: %s (%s); --matmul-tune 0 tries fewer; if "
             "the GPU's memory is short, " MEMORY_REMEDY,
             cudaGetErrorString(status), cudaGetErrorName(status));
    tune_end(p, text);
}

// ---- Operands ----

// Takes `bytes` bytes of the memory. Returns false if there is no room.
static inline bool tune_take(TuneMemory *memory, int64_t bytes, void **out) {
    int64_t size = round_up_i64(bytes, TUNE_ALIGNMENT);
    if (memory->end - memory->begin < size) { return false; }
    *out = memory->begin;
    memory->begin += size;
    return true;
}

// Returns the free part of the memory. A workspace that lies in the memory moves to its front.
static inline TuneMemory tune_memory(CublasContext *context, void *memory, int64_t bytes) {
    TuneMemory all = {(char *)memory, (char *)memory + bytes};
    char *workspace = (char *)context->workspace;
    if (workspace >= all.begin && workspace < all.end) {
        tune_take(&all, (int64_t)context->workspace_bytes, &context->workspace);
    }
    return all;
}

// The values of a matrix. An element depends on its place along k and on its other place, the row or column of the
// result.
typedef enum {
    TUNE_LEFT,   // op(A): the second half of k repeats the first half
    TUNE_RIGHT,  // op(B): in even columns the second half of k is the first half with the other sign
    TUNE_RESULT, // D and its addends; k is the column: 0 in odd rows
    TUNE_ONES,   // 1
    TUNE_HALVES, // 1 in the first half of k, -1 in the second half, 1 behind them
    TUNE_COUNT   // the number `half`
} TuneFill;

// Returns a sign, an exponent of -8 to 7 and a mantissa: additions of such numbers round, and e4m3 holds their size.
__device__ __forceinline__ float tune_value(uint64_t key, int64_t k, int64_t other) {
    uint32_t bits = rounding_bits(key, ((uint64_t)other << 32) + (uint64_t)k);
    return __uint_as_float((bits & 0x807fffffu) | ((119u + (bits >> 23 & 15u)) << 23));
}

__device__ __forceinline__ float tune_element(TuneFill fill, int64_t k, int64_t other, int64_t half) {
    bool odd = other % 2 != 0;
    if (fill == TUNE_ONES) { return 1.0f; }
    if (fill == TUNE_HALVES) { return k >= half && k < 2 * half ? -1.0f : 1.0f; }
    if (fill == TUNE_COUNT) { return (float)half; }
    if (fill == TUNE_RESULT) { return odd ? 0.0f : tune_value(TUNE_RESULT, k, other); }
    if (fill == TUNE_RIGHT && odd) { return tune_value(TUNE_RIGHT, k, other); }
    bool in_half = k < 2 * half; // false: the last term of an odd number
    if (fill == TUNE_RIGHT && !in_half) { return 0.0f; }
    float value = tune_value(fill, in_half ? k % half : k, other);
    return fill == TUNE_RIGHT && k >= half ? -value : value;
}

__device__ __forceinline__ void tune_store(void *data, cudaDataType_t type, int64_t i, float x) {
    switch (type) {
    case CUDA_R_32F: ((float *)data)[i] = x; break;
    case CUDA_R_16BF: ((__nv_bfloat16 *)data)[i] = from_float<__nv_bfloat16>(x); break;
    case CUDA_R_8F_E4M3: ((__nv_fp8_e4m3 *)data)[i] = __nv_fp8_e4m3(x); break;
    default: ((__nv_fp8_e5m2 *)data)[i] = __nv_fp8_e5m2(x); break;
    }
}

// half: the number of terms that cancel as many others, see TuneFill.
static __global__ void __launch_bounds__(CHECKSUM_BLOCK) tune_fill_kernel(TuneMatrix m, TuneFill fill, int64_t half) {
    int64_t stride = (int64_t)gridDim.x * CHECKSUM_BLOCK;
    for (int64_t i = (int64_t)blockIdx.x * CHECKSUM_BLOCK + threadIdx.x; i < m.rows * m.cols; i += stride) {
        int64_t row = i % m.rows, col = i / m.rows;
        tune_store(m.data, m.type, i, tune_element(fill, m.k_is_row ? row : col, m.k_is_row ? col : row, half));
    }
}

static inline void tune_fill(const Tuner *t, const TuneMatrix *m, TuneFill fill, int64_t half) {
    if (m->data == NULL) { return; }
    unsigned blocks = (unsigned)min_i64(1024, ceil_div_i64(m->rows * m->cols, CHECKSUM_BLOCK));
    tune_fill_kernel<<<blocks, CHECKSUM_BLOCK, 0, t->stream>>>(*m, fill, half);
    cuda_check_launch("tune_fill_kernel");
}

static inline int64_t tune_bytes(const TuneMatrix *m) {
    return m->rows * m->cols * (m->type == CUDA_R_32F ? 4 : m->type == CUDA_R_16BF ? 2 : 1);
}

// The matrices of a problem, without memory. A matrix that the problem does not have is empty.
static inline void tune_describe_matrices(TuneCase *c) {
    const CublasProblem *p = &c->plan->problem;
    bool has_aux = cublas_reads_aux(p) || cublas_writes_aux(p), has_scales = p->factors != CUBLAS_FLOATX_BOTH;
    int64_t m = p->m, n = p->n, k = p->k;
    c->A = {NULL, cublas_type_of_a(p), p->transpose_a ? k : m, p->transpose_a ? m : k, p->transpose_a};
    c->B = {NULL, cublas_type_of_b(p), p->transpose_b ? n : k, p->transpose_b ? k : n, !p->transpose_b};
    c->D = {NULL, cublas_type_of_d(p), m, n, false};
    c->bias = {NULL, CUBLAS_FLOATX, cublas_reads_bias(p) ? m : 0, 1, false};
    c->aux = {NULL, CUBLAS_FLOATX, has_aux ? m : 0, n, false};
    c->scale = {NULL, CUDA_R_32F, has_scales ? 1 : 0, 1, false};
}

// Takes memory for all that a problem works on. Returns false if it does not fit.
static inline bool tune_place(const Tuner *t, TuneCase *c) {
    TuneMemory memory = t->memory;
    tune_describe_matrices(c);
    for (TuneMatrix *m : {&c->A, &c->B, &c->D, &c->bias, &c->scale, &c->aux}) {
        if (m->rows > 0 && !tune_take(&memory, tune_bytes(m), &m->data)) { return false; }
    }
    c->on = cublas_operands(c->D.data, c->A.data, c->B.data);
    c->on.bias = c->bias.data, c->on.aux = c->aux.data;
    c->on.A_scale = c->on.B_scale = (const float *)c->scale.data;
    return true;
}

static inline cublasStatus_t tune_run(Tuner *t, TuneCase *c, const cublasLtMatmulAlgo_t *algo) {
    return cublas_run(t->context, c->plan, algo, &c->on, t->stream);
}

// ---- Which algorithms add up all terms ----

// Asks for algorithms again: a run has left its pointers in the plan, and they are aligned better than the next ones.
static inline int tune_ask(Tuner *t, TuneCase *c, cublasLtMatmulHeuristicResult_t *found, int most, bool split) {
    CublasProblem problem = c->plan->problem;
    cublas_describe(t->context, c->plan, &problem);
    return cublas_ask(t->context, c->plan, found, most, split);
}

// Does a missing term show for certain? The sum must arrive in D unchanged, and small whole numbers must be exact.
static inline bool tune_shows_tail(const CublasProblem *p) {
    bool plain = p->epilogue == CUBLASLT_EPILOGUE_DEFAULT || p->epilogue == CUBLASLT_EPILOGUE_BIAS;
    return plain && p->factors == CUBLAS_FLOATX_BOTH;
}

// Does an algorithm add up the last terms of the sum too (cublas_tail)? op(A) is 1. op(B) is 1 in the first half of the
// other terms, -1 in the second half, and 1 in the tail. The halves cancel, and D is the number of terms in the tail,
// exactly: it is at most 255, which bf16 holds, and all partial sums are whole numbers below 2^24. c is placed.
static inline bool tune_adds_tail(Tuner *t, TuneCase *c, const cublasLtMatmulAlgo_t *algo) {
    const CublasProblem *p = &c->plan->problem;
    int64_t tail = cublas_tail(p), half = (p->k - tail) / 2;
    uint64_t sums[2];
    tune_fill(t, &c->A, TUNE_ONES, half);
    tune_fill(t, &c->B, TUNE_HALVES, half);
    tune_fill(t, &c->D, TUNE_COUNT, 0);
    tune_fill(t, &c->bias, TUNE_COUNT, 0);
    if (tune_run(t, c, algo) != CUBLAS_STATUS_SUCCESS) { return false; }
    cuda_check(cudaMemsetAsync(t->sums, 0, sizeof(sums), t->stream));
    add_checksum(&t->sums[0], c->D.data, tune_bytes(&c->D), t->stream);
    tune_fill(t, &c->D, TUNE_COUNT, tail);
    add_checksum(&t->sums[1], c->D.data, tune_bytes(&c->D), t->stream);
    cuda_check(cudaMemcpyAsync(sums, t->sums, sizeof(sums), cudaMemcpyDeviceToHost, t->stream));
    tune_wait(t, p);
    return sums[0] == sums[1];
}

// Finds algos[0]: the heuristic's first algorithm, or the first one that adds up all terms. If that cannot be tried, an
// algorithm that does not split the sum adds up all terms.
static inline void tune_first(Tuner *t, TuneCase *c) {
    const struct {
        int most;
        bool split;
    } asks[] = {{1, true}, {TUNE_CANDIDATES, true}, {1, false}};
    cublasLtMatmulHeuristicResult_t found[TUNE_CANDIDATES];
    const CublasProblem *p = &c->plan->problem;
    bool has_tail = cublas_tail(p) > 0, tries = has_tail && tune_shows_tail(p) && tune_place(t, c);
    c->count = 1;
    if (!tries) {
        tune_ask(t, c, found, 1, !has_tail);
        c->algos[0] = found[0].algo;
        return;
    }
    for (const auto &ask : asks) {
        int count = tune_ask(t, c, found, ask.most, ask.split);
        for (int i = 0; i < count; i++) {
            c->algos[0] = found[i].algo;
            if (found[i].state == CUBLAS_STATUS_SUCCESS && tune_adds_tail(t, c, &c->algos[0])) { return; }
        }
        if (&ask == &asks[0]) { t->incomplete++; }
    }
    tune_end(p, "cuBLASLt names no algorithm that runs and adds up all terms of the sum; install another version of "
                "CUDA, or give a --batch-size (-b) with which B x T is a multiple of 256");
}

// ---- Which algorithms give equal bits ----

// Runs candidate i and adds the checksum of its output to t->sums[i]. Returns false if cuBLASLt cannot run it.
static inline bool tune_sum_of_run(Tuner *t, TuneCase *c, int i) {
    tune_fill(t, &c->D, TUNE_RESULT, 0); // shows elements that a run does not write
    tune_fill(t, &c->aux, TUNE_RESULT, 0);
    if (tune_run(t, c, &c->algos[i]) != CUBLAS_STATUS_SUCCESS) { return false; }
    add_checksum(t->sums + i, c->D.data, tune_bytes(&c->D), t->stream);
    if (cublas_writes_aux(&c->plan->problem)) {
        add_checksum(t->sums + i, c->aux.data, tune_bytes(&c->aux), t->stream);
    }
    return true;
}

// Computes the checksums of the candidates' outputs, sums (TUNE_CANDIDATES), and whether each ran.
static inline void tune_sums_of_runs(Tuner *t, TuneCase *c, uint64_t *sums, bool *ran) {
    const size_t bytes = TUNE_CANDIDATES * sizeof(uint64_t);
    cuda_check(cudaMemsetAsync(t->sums, 0, bytes, t->stream));
    for (int i = 0; i < c->count; i++) { ran[i] = tune_sum_of_run(t, c, i); }
    cuda_check(cudaMemcpyAsync(sums, t->sums, bytes, cudaMemcpyDeviceToHost, t->stream));
    tune_wait(t, &c->plan->problem);
}

// Drops the candidates that may not replace the first one. Returns false if there is no room to try.
//   --matmul-tune 1   keeps algorithms that give the bits of the first algorithm, which adds up all terms
//   --matmul-tune 2   keeps algorithms that give equal bits twice and add up all terms
static inline bool tune_keep_usable(Tuner *t, TuneCase *c) {
    const CublasProblem *p = &c->plan->problem;
    uint64_t sums[TUNE_CANDIDATES], again[TUNE_CANDIDATES];
    bool ran[TUNE_CANDIDATES], any = t->level == TUNE_ANY_BITS, tries = any && cublas_tail(p) > 0 && tune_shows_tail(p);
    int kept = 1;
    if (!tune_place(t, c)) { return false; }
    tune_fill(t, &c->A, TUNE_LEFT, max_i64(1, p->k / 2));
    tune_fill(t, &c->B, TUNE_RIGHT, max_i64(1, p->k / 2));
    tune_fill(t, &c->bias, TUNE_RESULT, 0);
    tune_fill(t, &c->scale, TUNE_RESULT, 0);
    tune_sums_of_runs(t, c, sums, ran);
    if (any) { tune_sums_of_runs(t, c, again, ran); }
    for (int i = 1; i < c->count && ran[0]; i++) {
        bool usable = ran[i] && sums[i] == (any ? again[i] : sums[0]);
        if (usable && (!tries || tune_adds_tail(t, c, &c->algos[i]))) { c->algos[kept++] = c->algos[i]; }
    }
    c->count = kept;
    return true;
}

// ---- Which is the fastest ----

// medians[i] = the median time of run(i) in milliseconds, for i < count. Each round runs each of them once, after a run
// of the first that goes ahead, so that the GPU never waits for the host.
template <class Run> static inline void tune_time(float *medians, int count, cudaStream_t stream, const Run &run) {
    float times[TUNE_CANDIDATES][TUNE_ROUNDS];
    cudaEvent_t events[TUNE_CANDIDATES + 1]; // between the runs of a round
    for (cudaEvent_t &event : events) { cuda_check(cudaEventCreateWithFlags(&event, cudaEventDefault)); }
    for (int round = 0; round < TUNE_ROUNDS; round++) {
        run(0);
        for (int i = 0; i <= count; i++) {
            cuda_check(cudaEventRecord(events[i], stream));
            if (i < count) { run(i); }
        }
        cuda_check(cudaEventSynchronize(events[count]));
        for (int i = 0; i < count; i++) {
            cuda_check(cudaEventElapsedTime(&times[i][round], events[i], events[i + 1]));
        }
    }
    for (cudaEvent_t event : events) { cuda_check(cudaEventDestroy(event)); }
    for (int i = 0; i < count; i++) {
        std::sort(times[i], times[i] + TUNE_ROUNDS);
        medians[i] = times[i][TUNE_ROUNDS / 2];
    }
}

// The number of the least time, or 0 if no time is clearly less than the first.
static inline int tune_least(const float *milliseconds, int count) {
    const float *least = std::min_element(milliseconds, milliseconds + count);
    return *least < TUNE_GAIN * milliseconds[0] ? (int)(least - milliseconds) : 0;
}

// Returns the number of the fastest candidate.
static inline int tune_fastest(Tuner *t, TuneCase *c) {
    float medians[TUNE_CANDIDATES];
    if (c->count == 1) { return 0; }
    tune_time(medians, c->count, t->stream, [&](int i) { cublas_check(tune_run(t, c, &c->algos[i])); });
    return tune_least(medians, c->count);
}

// ---- One problem ----

static inline bool tune_same_algo(const cublasLtMatmulAlgo_t *a, const cublasLtMatmulAlgo_t *b) {
    return memcmp(a, b, sizeof(*a)) == 0;
}

// The key of a problem in the files. Choices of --matmul-tune 1 and 2 have different keys.
static inline void tune_key(const CublasContext *context, TuneLevel level, const CublasProblem *problem, char *key) {
    int n = snprintf(key, TUNE_KEY_BYTES, "%s", level == TUNE_ANY_BITS ? TUNE_ANY_BITS_KEY : "");
    cublas_problem_text(context, problem, key + n, (size_t)(TUNE_KEY_BYTES - n));
}

// Takes the files' choice for this problem, if there is one that exists here and may replace the first algorithm.
static inline bool tune_from_files(Tuner *t, TuneCase *c, const char *key) {
    const TuneEntry *entry = tuning_find(t->choices, key, t->level == TUNE_ANY_BITS);
    if (entry == NULL) { return false; }
    memcpy(&c->algos[1], entry->choice, sizeof(c->algos[1]));
    if (!tune_same_algo(&c->algos[0], &c->algos[1])) {
        c->count = 2;
        if (!cublas_can_run(t->context, c->plan, &c->algos[1]) || !tune_keep_usable(t, c) || c->count == 1) {
            t->refused++;
            t->refused_of_run += tuning_is_of_run(t->choices, entry);
            return false;
        }
        c->plan->algo = c->algos[1];
        t->replaced++;
    }
    t->known++;
    return true;
}

// Adds the heuristic's algorithms to the candidates, behind the first.
static inline void tune_candidates(Tuner *t, TuneCase *c) {
    cublasLtMatmulHeuristicResult_t found[TUNE_CANDIDATES];
    const CublasProblem *p = &c->plan->problem;
    int count = tune_ask(t, c, found, TUNE_CANDIDATES, cublas_tail(p) == 0 || tune_shows_tail(p));
    c->count = 1;
    for (int i = 0; i < count && c->count < TUNE_CANDIDATES; i++) {
        bool other = found[i].state == CUBLAS_STATUS_SUCCESS && !tune_same_algo(&found[i].algo, &c->algos[0]);
        if (other) { c->algos[c->count++] = found[i].algo; }
    }
}

// Makes the plan of a problem with the best algorithm. Does nothing if there is a plan.
static inline void tune_problem(Tuner *t, const CublasProblem *problem) {
    char key[TUNE_KEY_BYTES];
    TuneCase c;
    cuda_require(problem->batch.count == 0);
    if (cublas_find_plan(t->context, problem) != NULL) { return; }
    c.plan = cublas_add_plan(t->context, problem);
    tune_first(t, &c);
    c.plan->algo = c.algos[0];
    if (t->level == TUNE_NOTHING) { return; }
    tune_key(t->context, t->level, problem, key);
    if (tune_from_files(t, &c, key)) { return; }
    tune_candidates(t, &c);
    if (c.count == 1 || !tune_keep_usable(t, &c)) { return; } // no choice
    int best = tune_fastest(t, &c);
    c.plan->algo = c.algos[best];
    t->timed++;
    t->replaced += best > 0;
    tuning_set_timed(t->choices, key, &c.plan->algo);
}

// ---- All problems of a run ----

// Makes the plans of these problems. memory: `bytes` bytes on the device that hold nothing yet; the workspace may lie
// in them. A problem that does not fit keeps the algorithm without tuning. Waits for the device.
static inline void tune_problems(Tuner *t, CublasContext *context, const CublasProblem *problems, int count,
                                 void *memory, int64_t bytes, TuneLevel level, Tuning *choices, cudaStream_t stream) {
    void *sums = NULL, *workspace = context->workspace;
    memset(t, 0, sizeof(*t));
    t->context = context, t->stream = stream, t->level = level, t->choices = choices;
    t->memory = tune_memory(context, memory, bytes);
    if (tune_take(&t->memory, TUNE_CANDIDATES * (int64_t)sizeof(uint64_t), &sums)) {
        t->sums = (uint64_t *)sums;
        for (int i = 0; i < count; i++) { tune_problem(t, &problems[i]); }
        cuda_check(cudaStreamSynchronize(stream));
        cublas_keep_plans(context);
    }
    context->workspace = workspace;
}

static inline void tune_explain(Tuning *choices, const Tuner *t, double seconds) {
    Text *text = &choices->text;
    int shapes = t->known + t->timed;
    if (t->incomplete > 0) {
        text_printf(text,
                    "matmul      cuBLASLt's first choice leaves out the last terms of the sum for %d shape%s, where "
                    "another is taken\n",
                    t->incomplete, t->incomplete == 1 ? "" : "s");
    }
    if (shapes > 0) {
        char timed[16] = "", known[16] = "";
        if (t->timed > 0 && t->known > 0) {
            snprintf(timed, sizeof(timed), ", %d", t->timed), snprintf(known, sizeof(known), ", %d", t->known);
        }
        text_printf(text, "matmul      %d shapes", shapes);
        if (t->timed > 0) { text_printf(text, "%s timed in %.1f s", timed, seconds); }
        if (t->known > 0) { text_printf(text, "%s known from before", known); }
        text_printf(text, "; %d faster than by cuBLASLt's first choice%s\n", t->replaced,
                    t->level == TUNE_ANY_BITS ? ", whatever their bits" : "");
        if (choices->user_state != TUNE_FILE_READ) { tuning_notice(choices, &choices->user_notice); }
    }
    if (t->refused > 0) {
        text_printf(text, "            %d choice%s of the file not to be had here, or of other bits; made anew\n",
                    t->refused, t->refused == 1 ? "" : "s");
    }
}

// Makes the plans of the problems of a run, and reports in choices->text. choices must be open except at TUNE_NOTHING.
// At TUNE_ANY_BITS they then hold the run's choices. Fails if the run's file must be known and has a choice that cannot
// be used here. tune_problems describes `memory`.
static inline bool matmul_tune(Tuning *choices, CublasContext *context, const CublasProblem *problems, int count,
                               void *memory, int64_t bytes, TuneLevel level, cudaStream_t stream, Error *error) {
    double start = seconds_now();
    char key[TUNE_KEY_BYTES];
    Tuner t;
    tune_problems(&t, context, problems, count, memory, bytes, level, choices, stream);
    if (choices->wants.must_know && t.refused_of_run > 0) {
        return tuning_fail_unknown(choices->wants.run_folder, "it holds an algorithm that cannot be run here", error);
    }
    tune_explain(choices, &t, seconds_now() - start);
    for (int i = 0; i < count && level == TUNE_ANY_BITS; i++) {
        tune_key(context, level, &problems[i], key);
        tune_table_set(&choices->run, key, &cublas_plan(context, &problems[i])->algo);
    }
    return true;
}

// Makes the plans of a run's problems with the choices of rank 0. gpu: the GPU of this rank.
static inline bool matmul_follow(const TuneTable *rank_0, CublasContext *context, const CublasProblem *problems,
                                 int count, const cudaDeviceProp *gpu, Error *error) {
    char header[TUNE_HEADER_BYTES], key[TUNE_KEY_BYTES];
    tune_header(header, gpu->name, gpu->multiProcessorCount, (long)cublasLtGetVersion());
    for (int i = 0; i < count; i++) {
        CublasPlan *plan = cublas_add_plan(context, &problems[i]);
        tune_key(context, TUNE_ANY_BITS, &problems[i], key);
        const TuneEntry *entry = tune_table_find(rank_0, key);
        if (entry != NULL) { memcpy(&plan->algo, entry->choice, sizeof(plan->algo)); }
        if (entry == NULL || strcmp(header, rank_0->header) != 0 || !cublas_can_run(context, plan, &plan->algo)) {
            return fail(error,
                        "--matmul-tune 2: takes the algorithms that rank 0 has chosen, and this is another GPU or "
                        "cuBLAS (%s; rank 0: %s); give --matmul-tune 1",
                        header + strlen(TUNE_MAGIC), rank_0->header + strlen(TUNE_MAGIC));
        }
    }
    cublas_keep_plans(context);
    return true;
}

#endif // LLMC_MATMUL_TUNE_CUH
