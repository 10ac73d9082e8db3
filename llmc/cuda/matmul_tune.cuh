// The algorithms of matrix multiplies, tried and timed at the start of a run.
//
// cuBLASLt's heuristic orders algorithms by an estimate; here up to 16 of them are run, each some times, and the
// fastest is kept for the rest of the run. Only among those that give the same bits as the one that the heuristic puts
// first: so tuning, whose clock is never the same twice, changes no bit of a run, and ranks may choose differently.
// --matmul-tune 2 takes the fastest of all that give the same bits each time: rank 0 then chooses for all ranks, and
// the choices stand beside the run's checkpoints, where a resumed run takes them from.
//
// Same bits, that is tried, too, on numbers for which it is hard. fp32 sums of bf16 products hide their order well:
// most of what it changes is lost when the sum is rounded to bf16. So in every second column of the result the second
// half of the terms undoes the first; what remains of these sums is rounding errors alone, and another order has
// others. In every second row nothing else is added to them (bias, or what was there).
//
// Nothing is allocated: at the start the run's memory still is empty.
#ifndef LLMC_MATMUL_TUNE_CUH
#define LLMC_MATMUL_TUNE_CUH

#include <cuda_fp8.h>

#include "llmc/cuda/checksum.cuh"
#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/tune_file.h"

#define TUNE_CANDIDATES 16
#define TUNE_ROUNDS 5   // in each of which every candidate runs once; the median counts
#define TUNE_GAIN 0.99f // who takes at least this part of the first one's time does not replace it: that may be noise
#define TUNE_ALIGNMENT 256

static_assert(sizeof(cublasLtMatmulAlgo_t) == TUNE_CHOICE_BYTES, "an algorithm is what the file keeps");

// The values of --matmul-tune.
typedef enum {
    TUNE_NOTHING,   // the heuristic's first algorithm, if it adds up all terms
    TUNE_SAME_BITS, // the fastest of those with its bits
    TUNE_ANY_BITS   // the fastest
} TuneLevel;

// Free device memory, in two pieces: the workspace lies between them.
typedef struct {
    char *begin[2], *end[2];
} TuneMemory;

typedef struct {
    CublasContext *context;
    cudaStream_t stream;
    TuneMemory memory;
    uint64_t *sums;                          // (TUNE_CANDIDATES), device
    cudaEvent_t events[TUNE_CANDIDATES + 1]; // between the runs of a round
    TuneTable *table;                        // what is known, and what is found
    TuneLevel level;
    int incomplete; // problems for which the heuristic's first leaves out terms of the sum
    int known;      // problems whose choice the table had
    int timed;      // problems that were timed
    int replaced;   // of both: where it is not the heuristic's first
    int refused;    // choices of the table that could not be used: not run, or other bits
} Tuner;

// The algorithms among which one is to be chosen for a problem; [0] is the heuristic's first.
typedef struct {
    CublasPlan *plan;
    CublasOperands on;
    int count;
    cublasLtMatmulAlgo_t algos[TUNE_CANDIDATES];
} TuneCase;

// ---- What ends the program ----

static inline void tune_end(const CublasProblem *p, const char *what) {
    fflush(stdout);
    fprintf(stderr, "%s (m %lld, n %lld, k %lld)\n", what, (long long)p->m, (long long)p->n, (long long)p->k);
    _exit(EXIT_FAILURE);
}

// Waits for what was tried of a problem. An algorithm that faults on the GPU leaves nothing to go on with.
static inline void tune_wait(const Tuner *t, const CublasProblem *p) {
    char text[512];
    cudaError_t status = cudaStreamSynchronize(t->stream);
    if (status == cudaSuccess) { return; }
    snprintf(
        text, sizeof(text),
        "an algorithm of cuBLASLt failed on the GPU while it was tried: %s (%s); --matmul-tune 0 tries fewer; if the "
        "GPU's memory is short, " PLAN_REMEDY,
        cudaGetErrorString(status), cudaGetErrorName(status));
    tune_end(p, text);
}

static inline void tune_fail_incomplete(const CublasProblem *p) {
    tune_end(p,
             "cuBLASLt names no algorithm that runs and adds up all terms of the sum; install another version of CUDA, "
             "or give a --batch-size (-b) with which B x T is a multiple of 256");
}

// ---- Operands ----

// Takes `bytes` bytes of the memory. False: there is no room.
static inline bool tune_take(TuneMemory *memory, int64_t bytes, void **out) {
    int64_t size = round_up_i64(bytes, TUNE_ALIGNMENT);
    for (int i = 0; i < 2; i++) {
        if (memory->end[i] - memory->begin[i] < size) { continue; }
        *out = memory->begin[i];
        memory->begin[i] += size;
        return true;
    }
    return false;
}

// The memory but for the workspace that lies in it.
static inline TuneMemory tune_memory(const CublasContext *context, void *memory, int64_t bytes) {
    char *workspace = (char *)context->workspace, *begin = (char *)memory, *end = begin + bytes;
    bool inside = workspace >= begin && workspace < end;
    TuneMemory free_memory = {{begin, end}, {inside ? workspace : end, end}};
    if (inside) { free_memory.begin[1] = workspace + round_up_i64((int64_t)context->workspace_bytes, TUNE_ALIGNMENT); }
    return free_memory;
}

// What a matrix is filled with, element by its place along k and by the other one (its row or column of the result).
typedef enum {
    TUNE_LEFT,   // op(A): the second half of k is the first again
    TUNE_RIGHT,  // op(B): the same in even columns (so that there is one), with the other sign
    TUNE_RESULT, // D and what is added to it, "k" being the column: 0 in odd rows
    TUNE_ONES,   // 1
    TUNE_HALVES, // 1 in the first half, -1 in the second, and 1 behind them
    TUNE_COUNT   // the number of `half`
} TuneFill;

// A sign, an exponent of -8 to 7 and a mantissa, so that additions round; e4m3, too, holds such numbers.
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
    bool in_half = k < 2 * half; // or the last of an odd number
    if (fill == TUNE_RIGHT && !in_half) { return 0.0f; }
    float value = tune_value(fill, in_half ? k % half : k, other);
    return fill == TUNE_RIGHT && k >= half ? -value : value;
}

__device__ __forceinline__ void tune_store(float *out, float x) { *out = x; }
__device__ __forceinline__ void tune_store(__nv_bfloat16 *out, float x) { *out = from_float<__nv_bfloat16>(x); }
__device__ __forceinline__ void tune_store(__nv_fp8_e4m3 *out, float x) { *out = __nv_fp8_e4m3(x); }
__device__ __forceinline__ void tune_store(__nv_fp8_e5m2 *out, float x) { *out = __nv_fp8_e5m2(x); }

// data (rows, cols), by columns; k runs along the columns (k_is_row) or the rows. half: of what cancels, see TuneFill.
template <class T>
static __global__ void __launch_bounds__(CHECKSUM_BLOCK)
    tune_fill_kernel(T *data, int64_t rows, int64_t cols, bool k_is_row, int64_t half, TuneFill fill) {
    int64_t stride = (int64_t)gridDim.x * CHECKSUM_BLOCK;
    for (int64_t i = (int64_t)blockIdx.x * CHECKSUM_BLOCK + threadIdx.x; i < rows * cols; i += stride) {
        int64_t row = i % rows, col = i / rows;
        tune_store(&data[i], tune_element(fill, k_is_row ? row : col, k_is_row ? col : row, half));
    }
}

template <class T>
static inline void tune_launch_fill(void *data, int64_t rows, int64_t cols, bool k_is_row, int64_t half, TuneFill fill,
                                    cudaStream_t stream) {
    unsigned blocks = (unsigned)min_i64(1024, ceil_div_i64(rows * cols, CHECKSUM_BLOCK));
    tune_fill_kernel<T><<<blocks, CHECKSUM_BLOCK, 0, stream>>>((T *)data, rows, cols, k_is_row, half, fill);
    cuda_check_launch("tune_fill_kernel");
}

static inline void tune_fill(void *data, cudaDataType_t type, int64_t rows, int64_t cols, bool k_is_row, int64_t half,
                             TuneFill fill, cudaStream_t stream) {
    auto *launch = type == CUDA_R_32F       ? tune_launch_fill<float>
                   : type == CUDA_R_16BF    ? tune_launch_fill<__nv_bfloat16>
                   : type == CUDA_R_8F_E4M3 ? tune_launch_fill<__nv_fp8_e4m3>
                                            : tune_launch_fill<__nv_fp8_e5m2>;
    launch(data, rows, cols, k_is_row, half, fill, stream);
}

static inline int64_t tune_type_bytes(cudaDataType_t type) {
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1;
}

static inline bool tune_reads_bias(const CublasProblem *p) { return (p->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
static inline bool tune_reads_aux(const CublasProblem *p) { return p->epilogue == CUBLASLT_EPILOGUE_DGELU; }
static inline bool tune_writes_aux(const CublasProblem *p) {
    return p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static inline cudaDataType_t tune_result_type(const CublasProblem *p) {
    return p->fp32_output ? CUDA_R_32F : CUBLAS_FLOATX;
}
static inline int64_t tune_result_bytes(const CublasProblem *p) {
    return p->m * p->n * tune_type_bytes(tune_result_type(p));
}
static inline int64_t tune_aux_bytes(const CublasProblem *p) { return p->m * p->n * (int64_t)sizeof(floatX); }

// D and aux as they are before a run, so that what a run does not write shows.
static inline void tune_fill_result(Tuner *t, const CublasProblem *p, const CublasOperands *on) {
    tune_fill(on->D, tune_result_type(p), p->m, p->n, false, 0, TUNE_RESULT, t->stream);
    if (on->aux != NULL) { tune_fill((void *)on->aux, CUBLAS_FLOATX, p->m, p->n, false, 0, TUNE_RESULT, t->stream); }
}

static inline void tune_fill_factors(Tuner *t, const CublasProblem *p, const CublasOperands *on, int64_t half,
                                     TuneFill left, TuneFill right) {
    tune_fill((void *)on->A, cublas_type_of_a(p), p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k,
              p->transpose_a, half, left, t->stream);
    tune_fill((void *)on->B, cublas_type_of_b(p), p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n,
              !p->transpose_b, half, right, t->stream);
}

// Takes memory for all that a problem works on. False: it does not fit.
static inline bool tune_place(const Tuner *t, const CublasProblem *p, CublasOperands *on) {
    TuneMemory memory = t->memory;
    void *A, *B, *D, *bias = NULL, *aux = NULL, *scale = NULL;
    bool has_aux = tune_reads_aux(p) || tune_writes_aux(p), has_scales = p->factors != CUBLAS_FLOATX_BOTH;
    if (!tune_take(&memory, p->m * p->k * tune_type_bytes(cublas_type_of_a(p)), &A) ||
        !tune_take(&memory, p->k * p->n * tune_type_bytes(cublas_type_of_b(p)), &B) ||
        !tune_take(&memory, tune_result_bytes(p), &D) ||
        (tune_reads_bias(p) && !tune_take(&memory, p->m * (int64_t)sizeof(floatX), &bias)) ||
        (has_scales && !tune_take(&memory, sizeof(float), &scale)) ||
        (has_aux && !tune_take(&memory, tune_aux_bytes(p), &aux))) {
        return false;
    }
    *on = cublas_operands(D, A, B);
    on->bias = bias, on->aux = aux;
    on->A_scale = on->B_scale = (const float *)scale;
    return true;
}

// The same, and fills it.
static inline bool tune_operands(Tuner *t, const CublasProblem *p, CublasOperands *on) {
    if (!tune_place(t, p, on)) { return false; }
    tune_fill_factors(t, p, on, max_i64(1, p->k / 2), TUNE_LEFT, TUNE_RIGHT);
    if (on->bias != NULL) { tune_fill((void *)on->bias, CUBLAS_FLOATX, p->m, 1, false, 0, TUNE_RESULT, t->stream); }
    if (on->A_scale != NULL) { tune_fill((void *)on->A_scale, CUDA_R_32F, 1, 1, false, 0, TUNE_RESULT, t->stream); }
    return true;
}

// ---- Which algorithms add up all terms ----

// Asks for algorithms without the pointers of a run, which are better aligned than others.
static inline int tune_ask(Tuner *t, TuneCase *c, cublasLtMatmulHeuristicResult_t *found, int most, bool split) {
    CublasProblem problem = c->plan->problem;
    cublas_describe(t->context, c->plan, &problem);
    return cublas_ask(t->context, c->plan, found, most, split);
}

// Is a missing term sure to be seen? The sum must arrive in D as it is, and small whole numbers must be exact.
static inline bool tune_shows_tail(const CublasProblem *p) {
    bool plain = p->epilogue == CUBLASLT_EPILOGUE_DEFAULT || p->epilogue == CUBLASLT_EPILOGUE_BIAS;
    return plain && p->factors == CUBLAS_FLOATX_BOTH;
}

// Does an algorithm add up the last terms of the sum, too (cublas_tail)? op(A) is 1, op(B) is 1 in the first half of
// the other terms, -1 in the second, and 1 in the tail: they cancel, and D is the number of terms in the tail, exactly:
// at most 255, which bf16 holds, and all sums on the way are whole numbers below 2^24. c->on: see tune_place.
static inline bool tune_adds_tail(Tuner *t, TuneCase *c, const cublasLtMatmulAlgo_t *algo) {
    const CublasProblem *p = &c->plan->problem;
    int64_t tail = cublas_tail(p), bytes = tune_result_bytes(p);
    uint64_t sums[2];
    tune_fill_factors(t, p, &c->on, (p->k - tail) / 2, TUNE_ONES, TUNE_HALVES);
    tune_fill(c->on.D, tune_result_type(p), p->m, p->n, false, 0, TUNE_COUNT, t->stream);
    if (c->on.bias != NULL) { cuda_check(cudaMemsetAsync((void *)c->on.bias, 0, p->m * sizeof(floatX), t->stream)); }
    if (cublas_run(t->context, c->plan, algo, &c->on, t->stream) != CUBLAS_STATUS_SUCCESS) { return false; }
    cuda_check(cudaMemsetAsync(t->sums, 0, sizeof(sums), t->stream));
    add_checksum(&t->sums[0], c->on.D, bytes, t->stream);
    tune_fill(c->on.D, tune_result_type(p), p->m, p->n, false, tail, TUNE_COUNT, t->stream);
    add_checksum(&t->sums[1], c->on.D, bytes, t->stream);
    cuda_check(cudaMemcpyAsync(sums, t->sums, sizeof(sums), cudaMemcpyDeviceToHost, t->stream));
    tune_wait(t, p);
    return sums[0] == sums[1];
}

// The first candidate: the heuristic's first, and if that leaves out terms of the sum, the next one that does not.
// Where this cannot be tried, none that splits the sum is taken.
static inline void tune_first(Tuner *t, TuneCase *c) {
    cublasLtMatmulHeuristicResult_t found[TUNE_CANDIDATES];
    const CublasProblem *p = &c->plan->problem;
    bool tail = cublas_tail(p) > 0, tries = tail && tune_shows_tail(p) && tune_place(t, p, &c->on);
    tune_ask(t, c, found, 1, !tail || tries);
    c->algos[0] = found[0].algo;
    c->count = 1;
    if (!tries || tune_adds_tail(t, c, &c->algos[0])) { return; }
    t->incomplete++;
    int count = tune_ask(t, c, found, TUNE_CANDIDATES, true);
    for (int i = 0; i < count; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || !tune_adds_tail(t, c, &found[i].algo)) { continue; }
        c->algos[0] = found[i].algo;
        return;
    }
    tune_ask(t, c, found, 1, false);
    c->algos[0] = found[0].algo;
    if (!tune_adds_tail(t, c, &c->algos[0])) { tune_fail_incomplete(p); }
}

// ---- Which algorithms give the same bits ----

// Runs candidate i and adds the checksum of what it wrote to its place in t->sums. False: cuBLASLt cannot run it.
static inline bool tune_sum_of_run(Tuner *t, TuneCase *c, int i) {
    const CublasProblem *p = &c->plan->problem;
    tune_fill_result(t, p, &c->on);
    if (cublas_run(t->context, c->plan, &c->algos[i], &c->on, t->stream) != CUBLAS_STATUS_SUCCESS) { return false; }
    add_checksum(t->sums + i, c->on.D, tune_result_bytes(p), t->stream);
    if (tune_writes_aux(p)) { add_checksum(t->sums + i, c->on.aux, tune_aux_bytes(p), t->stream); }
    return true;
}

// The checksum of what each candidate writes, sums (TUNE_CANDIDATES), and whether it ran.
static inline void tune_sums_of_runs(Tuner *t, TuneCase *c, uint64_t *sums, bool *ran) {
    const size_t bytes = TUNE_CANDIDATES * sizeof(uint64_t);
    cuda_check(cudaMemsetAsync(t->sums, 0, bytes, t->stream));
    for (int i = 0; i < c->count; i++) { ran[i] = tune_sum_of_run(t, c, i); }
    cuda_check(cudaMemcpyAsync(sums, t->sums, bytes, cudaMemcpyDeviceToHost, t->stream));
    tune_wait(t, &c->plan->problem);
}

// Leaves of the candidates the first one, and those that may be taken in its place: that give its bits, or if any bits
// will do, the same bits each time, and add up all terms. False: there is no room to try.
static inline bool tune_keep_usable(Tuner *t, TuneCase *c) {
    const CublasProblem *p = &c->plan->problem;
    uint64_t sums[TUNE_CANDIDATES], again[TUNE_CANDIDATES];
    bool ran[TUNE_CANDIDATES], any = t->level == TUNE_ANY_BITS, complete[TUNE_CANDIDATES];
    int kept = 1;
    if (!tune_operands(t, p, &c->on)) { return false; }
    tune_sums_of_runs(t, c, sums, ran);
    if (any) { tune_sums_of_runs(t, c, again, ran); }
    for (int i = 0; i < c->count; i++) {
        bool tries = any && ran[i] && cublas_tail(p) > 0 && tune_shows_tail(p);
        complete[i] = !tries || tune_adds_tail(t, c, &c->algos[i]);
    }
    for (int i = 1; i < c->count && ran[0]; i++) {
        bool bits = sums[i] == (any ? again[i] : sums[0]);
        if (ran[i] && bits && complete[i]) { c->algos[kept++] = c->algos[i]; }
    }
    c->count = kept;
    return true;
}

// ---- Which is the fastest ----

static inline void tune_run(Tuner *t, TuneCase *c, int i) {
    cublas_check(cublas_run(t->context, c->plan, &c->algos[i], &c->on, t->stream));
}

// Every candidate once: milliseconds[i]. One run goes ahead, so that no other waits for the host to launch it.
static inline void tune_round(Tuner *t, TuneCase *c, float *milliseconds) {
    tune_run(t, c, 0);
    for (int i = 0; i < c->count; i++) {
        cuda_check(cudaEventRecord(t->events[i], t->stream));
        tune_run(t, c, i);
    }
    cuda_check(cudaEventRecord(t->events[c->count], t->stream));
    cuda_check(cudaEventSynchronize(t->events[c->count]));
    for (int i = 0; i < c->count; i++) {
        cuda_check(cudaEventElapsedTime(&milliseconds[i], t->events[i], t->events[i + 1]));
    }
}

static inline float tune_median(float *values, int n) {
    for (int i = 1; i < n; i++) {
        for (int j = i; j > 0 && values[j] < values[j - 1]; j--) {
            float larger = values[j - 1];
            values[j - 1] = values[j], values[j] = larger;
        }
    }
    return values[n / 2];
}

// The number of the fastest candidate.
static inline int tune_fastest(Tuner *t, TuneCase *c) {
    float rounds[TUNE_ROUNDS][TUNE_CANDIDATES], times[TUNE_ROUNDS], least = 0.0f;
    int best = 0;
    for (int r = 0; r < TUNE_ROUNDS; r++) { tune_round(t, c, rounds[r]); }
    for (int i = 0; i < c->count; i++) {
        for (int r = 0; r < TUNE_ROUNDS; r++) { times[r] = rounds[r][i]; }
        float time = tune_median(times, TUNE_ROUNDS);
        if (i == 0) { least = TUNE_GAIN * time; }
        if (i > 0 && time < least) { best = i, least = time; }
    }
    return best;
}

// ---- One problem ----

static inline bool tune_same_algo(const cublasLtMatmulAlgo_t *a, const cublasLtMatmulAlgo_t *b) {
    return memcmp(a, b, sizeof(*a)) == 0;
}

// Does cuBLASLt have this algorithm for a plan's problem, with the workspace that there is?
static inline bool cublas_can_run(const CublasContext *context, CublasPlan *plan, const cublasLtMatmulAlgo_t *algo) {
    cublasLtMatmulHeuristicResult_t checked;
    cublasStatus_t status = cublasLtMatmulAlgoCheck(context->handle, &plan->operation, &plan->A, &plan->B, &plan->D,
                                                    &plan->D, algo, &checked);
    return status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= context->workspace_bytes;
}

// What stands for a problem in the table. Choices of any bits are no choices of the same bits.
static inline void tune_key(const CublasContext *context, TuneLevel level, const CublasProblem *problem, char *key) {
    int n = snprintf(key, TUNE_KEY_BYTES, "%s", level == TUNE_ANY_BITS ? "any bits " : "");
    cublas_problem_text(context, problem, key + n, (size_t)(TUNE_KEY_BYTES - n));
}

// Does the table's choice for this problem exist here, and may it replace the heuristic's first? Then it is taken.
static inline bool tune_from_table(Tuner *t, TuneCase *c, const char *key) {
    const TuneEntry *entry = tune_table_find(t->table, key);
    if (entry == NULL) { return false; }
    memcpy(&c->algos[1], entry->choice, sizeof(c->algos[1]));
    if (!tune_same_algo(&c->algos[0], &c->algos[1])) {
        c->count = 2;
        if (!cublas_can_run(t->context, c->plan, &c->algos[1]) || !tune_keep_usable(t, c) || c->count == 1) {
            t->refused++;
            return false;
        }
        c->plan->algo = c->algos[1];
        t->replaced++;
    }
    t->known++;
    return true;
}

// Adds what the heuristic knows to the candidates, behind the first.
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

// Makes the plan of a problem, unless there is one already, with the best algorithm for it.
static inline void tune_problem(Tuner *t, const CublasProblem *problem) {
    char key[TUNE_KEY_BYTES];
    TuneCase c;
    if (cublas_find_plan(t->context, problem) != NULL) { return; }
    c.plan = cublas_add_plan(t->context, problem);
    tune_first(t, &c);
    c.plan->algo = c.algos[0];
    if (t->level == TUNE_NOTHING) { return; }
    tune_key(t->context, t->level, problem, key);
    if (tune_from_table(t, &c, key)) { return; }
    tune_candidates(t, &c);
    if (c.count == 1 || !tune_keep_usable(t, &c)) { return; } // no choice
    int best = c.count > 1 ? tune_fastest(t, &c) : 0;
    c.plan->algo = c.algos[best];
    t->timed++;
    t->replaced += best > 0;
    tune_table_set(t->table, key, &c.plan->algo);
}

// ---- All of a run ----

// Makes the plans of these problems: with cuBLASLt's own choice, or with the fastest algorithm of the level, by the
// table or by trying; what is found goes into the table (TUNE_NOTHING: NULL). memory: `bytes` bytes on the
// device that hold nothing yet, in which the workspace may lie; problems that do not fit in there keep cuBLASLt's
// choice. Waits for the device.
static inline void matmul_tune(Tuner *t, CublasContext *context, const CublasProblem *problems, int count, void *memory,
                               int64_t bytes, TuneLevel level, TuneTable *table, cudaStream_t stream) {
    void *sums = NULL;
    memset(t, 0, sizeof(*t));
    t->context = context, t->stream = stream, t->level = level, t->table = table;
    t->memory = tune_memory(context, memory, bytes);
    if (!tune_take(&t->memory, TUNE_CANDIDATES * (int64_t)sizeof(uint64_t), &sums)) { return; }
    t->sums = (uint64_t *)sums;
    for (cudaEvent_t &event : t->events) { cuda_check(cudaEventCreateWithFlags(&event, cudaEventDefault)); }
    for (int i = 0; i < count; i++) { tune_problem(t, &problems[i]); }
    cuda_check(cudaStreamSynchronize(stream));
    for (cudaEvent_t &event : t->events) { cuda_check(cudaEventDestroy(event)); }
    context->kept_plans = min_i64(context->plan_count, CUBLAS_MAX_PLANS / 2);
}

// ---- With the file of earlier starts ----

// Where choices are kept, and what a person is told about them.
typedef struct {
    char path[MAX_PATH_BYTES];     // "": nowhere
    bool writes;                   // this process writes the file; others of its machine only read it
    bool must_know;                // the file must be whole and usable, or there is no run
    bool must_keep;                // so must be what is written to it
    char text[4 * MAX_PATH_BYTES]; // whole lines, or "": there was nothing to choose
} TuneReport;

PRINTF_LIKE(2, 3) static inline void tune_add_line(TuneReport *report, const char *format, ...) {
    size_t used = strlen(report->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(report->text + used, sizeof(report->text) - used, format, arguments);
    va_end(arguments);
}

static inline void tune_add_notice(TuneReport *report, const Error *notice) {
    tune_add_line(report, "            %.6000s\n", notice->text);
}

static inline void tune_describe(TuneReport *report, const Tuner *t, double seconds) {
    int shapes = t->known + t->timed;
    if (t->incomplete > 0) {
        tune_add_line(report,
                      "matmul      cuBLASLt's first choice leaves out the last terms of the sum for %d shape%s, where "
                      "another is taken\n",
                      t->incomplete, t->incomplete == 1 ? "" : "s");
    }
    if (shapes == 0) { return; }
    tune_add_line(report, "matmul      %d shapes", shapes);
    if (t->timed > 0 && t->known > 0) { tune_add_line(report, ", %d", t->timed); }
    if (t->timed > 0) { tune_add_line(report, " timed in %.1f s", seconds); }
    if (t->timed > 0 && t->known > 0) { tune_add_line(report, ", %d", t->known); }
    if (t->known > 0) { tune_add_line(report, " known from before"); }
    const char *bits = t->level == TUNE_ANY_BITS ? ", whatever their bits" : "";
    tune_add_line(report, "; %d faster than by cuBLASLt's first choice%s\n", t->replaced, bits);
}

// Why a file of choices that must be known cannot be used.
static inline bool tune_fail_unknown(const TuneReport *report, const char *why, Error *error) {
    return fail(
        error,
        "--matmul-tune 2: %.2000s: %.2000s; a resumed run needs its algorithms for the same bits; resume where they "
        "can be had, or give --allow-changes to choose anew",
        report->path, why);
}

// matmul_tune without a choice.
static inline void matmul_check(CublasContext *context, const CublasProblem *problems, int count, void *memory,
                                int64_t bytes, TuneReport *report, cudaStream_t stream) {
    Tuner t;
    matmul_tune(&t, context, problems, count, memory, bytes, TUNE_NOTHING, NULL, stream);
    tune_describe(report, &t, 0.0);
}

// Writes what was found, if there is a place for it.
static inline bool tune_keep_table(const TuneTable *table, TuneReport *report, Error *error) {
    Error notice;
    bool ok = tune_file_write(table, report->path, &notice);
    if (ok) { tune_add_line(report, "            kept in %s\n", report->path); }
    if (!ok && !report->must_keep) { tune_add_notice(report, &notice); }
    return ok || !report->must_keep || fail(error, "--matmul-tune 2: %s", notice.text);
}

// matmul_tune with the choices that the file in report->path holds for this GPU ("": the user's own, in the folder for
// caches), which afterwards holds the new ones, too. Fails when there is no memory for the table, and over the file
// only if it must be known or kept.
static inline bool matmul_tune_with_file(CublasContext *context, const CublasProblem *problems, int count, void *memory,
                                         int64_t bytes, TuneLevel level, const cudaDeviceProp *gpu, TuneReport *report,
                                         cudaStream_t stream, Error *error) {
    TuneTable *table = (TuneTable *)malloc(sizeof(TuneTable));
    long version = (long)cublasLtGetVersion();
    double start = seconds_now();
    Error notice;
    Tuner t;
    if (table == NULL) { return fail(error, "out of memory"); }
    tune_table_init(table, gpu->name, gpu->multiProcessorCount, version);
    bool has_path = report->path[0] != '\0' || tune_file_default(report->path, gpu->name, version, &notice);
    TuneFileState state = has_path ? tune_file_read(table, report->path, &notice) : TUNE_FILE_FOREIGN;
    bool known = state == TUNE_FILE_READ && table->count > 0, ok = true;
    if (report->must_know && !known) {
        ok = tune_fail_unknown(
            report,
            state == TUNE_FILE_READ ? "not there, or empty (was the run one of another --matmul-tune?)" : notice.text,
            error);
    }
    if (ok && report->must_keep && state == TUNE_FILE_FOREIGN) { ok = fail(error, "--matmul-tune 2: %s", notice.text); }
    if (ok) { matmul_tune(&t, context, problems, count, memory, bytes, level, table, stream); }
    if (ok && report->must_know && t.refused > 0) {
        ok = tune_fail_unknown(report, "it holds an algorithm that cannot be run here", error);
    }
    if (!ok) {
        free(table);
        return false;
    }
    tune_describe(report, &t, seconds_now() - start);
    if (t.known + t.timed > 0 && state != TUNE_FILE_READ) { tune_add_notice(report, &notice); }
    if (t.refused > 0) {
        tune_add_line(report, "            %d choice%s of the file not to be had here, or of other bits; made anew\n",
                      t.refused, t.refused == 1 ? "" : "s");
    }
    if (t.timed > 0 && state != TUNE_FILE_FOREIGN && report->writes) { ok = tune_keep_table(table, report, error); }
    free(table);
    return ok;
}

// ---- Choices of any bits: for other ranks, and for the run when it is resumed ----

#define TUNE_RECORD "matmul_choices.txt" // in the run's folder
#define TUNE_MAX_PROBLEMS 64

// The algorithms that the plans of some problems have.
typedef struct {
    char header[TUNE_HEADER_BYTES]; // GPU and version, as in the file
    cublasLtMatmulAlgo_t algos[TUNE_MAX_PROBLEMS];
} TuneChoices;

static inline void matmul_get_choices(CublasContext *context, const CublasProblem *problems, int count,
                                      const cudaDeviceProp *gpu, TuneChoices *choices) {
    cuda_require(count <= TUNE_MAX_PROBLEMS);
    memset(choices, 0, sizeof(*choices));
    tune_header(choices->header, gpu->name, gpu->multiProcessorCount, (long)cublasLtGetVersion());
    for (int i = 0; i < count; i++) { choices->algos[i] = cublas_plan(context, &problems[i])->algo; }
}

// Makes the plans of these problems with the choices of rank 0.
static inline bool matmul_take_choices(CublasContext *context, const CublasProblem *problems, int count,
                                       const cudaDeviceProp *gpu, const TuneChoices *choices, Error *error) {
    char header[TUNE_HEADER_BYTES];
    tune_header(header, gpu->name, gpu->multiProcessorCount, (long)cublasLtGetVersion());
    for (int i = 0; i < count; i++) {
        CublasPlan *plan = cublas_add_plan(context, &problems[i]);
        plan->algo = choices->algos[i];
        if (strcmp(header, choices->header) != 0 || !cublas_can_run(context, plan, &plan->algo)) {
            return fail(
                error,
                "--matmul-tune 2: takes the algorithms that rank 0 has chosen, and this is another GPU or cuBLAS "
                "(%s; rank 0: %s); give --matmul-tune 1",
                header + strlen(TUNE_MAGIC), choices->header + strlen(TUNE_MAGIC));
        }
    }
    context->kept_plans = min_i64(context->plan_count, CUBLAS_MAX_PLANS / 2);
    return true;
}

// Writes the choices for these problems into a file, beside those of other problems that are there already.
static inline bool matmul_record_choices(CublasContext *context, const CublasProblem *problems, int count,
                                         const cudaDeviceProp *gpu, const char *path, Error *error) {
    TuneTable *table = (TuneTable *)malloc(sizeof(TuneTable));
    Error ignored; // what is damaged is made anew
    char key[TUNE_KEY_BYTES];
    if (table == NULL) { return fail(error, "out of memory"); }
    tune_table_init(table, gpu->name, gpu->multiProcessorCount, (long)cublasLtGetVersion());
    tune_file_read(table, path, &ignored);
    for (int i = 0; i < count; i++) {
        tune_key(context, TUNE_ANY_BITS, &problems[i], key);
        tune_table_set(table, key, &cublas_plan(context, &problems[i])->algo);
    }
    bool ok = tune_file_write(table, path, error);
    free(table);
    return ok;
}

#endif // LLMC_MATMUL_TUNE_CUH
