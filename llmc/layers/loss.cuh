// The loss: softmax and cross entropy, forward and backward in one kernel over the logits of some rows:
//   losses[i]   = log(sum over v < V of exp(logits[i,v])) - logits[i,target]
//   logits[i,v] becomes its own gradient, dloss * (softmax(logits[i])[v] - (v == target))
// It works in place and on any number of rows, so the caller never needs memory for the logits of a whole batch.
#ifndef LLMC_FUSED_CROSS_ENTROPY_CUH
#define LLMC_FUSED_CROSS_ENTROPY_CUH

#include <float.h>

#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/cuda/ptx.cuh"

// With 1024 threads a multiprocessor works on two rows of GPT-2's vocabulary. Rows that are not in shared memory (22 MB
// on 108 multiprocessors) stay in the L2 cache between the two passes. Smaller blocks work on more rows at once, and
// the L2 cache would not hold them. A shorter row has a thread for each 16 bytes: others would only wait.
#define CROSS_ENTROPY_BLOCK 1024

#define CROSS_ENTROPY_LOG2_E 1.4426950408889634f

// exp(x) for x <= 0, within 2 + 1.3 |x| units in the last place. Results below 2^-126 are 0. The caller subtracts the
// maximum first. A fused multiply-add with log2(e) max would round: the largest logit would not give exactly 1, and a
// large logit could give anything.
__device__ __forceinline__ float cross_entropy_exp(float x) { return exp2_approx(CROSS_ENTROPY_LOG2_E * x); }

// Holds the softmax's state over the logits so far. max begins with -FLT_MAX, so that a logit of -infinity counts as 0.
// If max began with -infinity, -infinity - -infinity would make the whole row NaN. fmaxf drops a NaN, the sum keeps it.
typedef struct {
    float max;
    float sum; // of exp(logit - max)
} SoftmaxState;

// Unpacks columns v, v+1, .. of a row from 16 bytes. Columns from V on are padding and become -infinity.
__device__ __forceinline__ void unpack_logits(float (&x)[x128::size], const x128 &packed, int v, int V) {
#pragma unroll
    for (int k = 0; k < x128::size; k++) { x[k] = to_float(packed[k]); }
    if (v + x128::size <= V) { return; }
#pragma unroll
    for (int k = 0; k < x128::size; k++) { x[k] = v + k < V ? x[k] : -INFINITY; }
}

// Returns the state over this thread's columns: x128::size neighbours in every blockDim.x * x128::size columns. The
// thread loads its next columns before it sums the current columns.
__device__ __forceinline__ SoftmaxState row_softmax_state(const floatX *row, int V) {
    SoftmaxState state = {-FLT_MAX, 0.0f};
    int v = (int)threadIdx.x * x128::size, stride = (int)blockDim.x * x128::size;
    x128 next = v < V ? load128(row + v) : packed_zeros<floatX>();
    for (; v < V; v += stride) {
        float x[x128::size], max = state.max;
        unpack_logits(x, next, v, V);
        if (v + stride < V) { next = load128(row + v + stride); }
#pragma unroll
        for (int k = 0; k < x128::size; k++) { max = fmaxf(max, x[k]); }
        state.sum *= cross_entropy_exp(state.max - max);
#pragma unroll
        for (int k = 0; k < x128::size; k++) { state.sum += cross_entropy_exp(x[k] - max); }
        state.max = max;
    }
    return state;
}

// Columns v, v+1, .. of the gradient. factor: dloss / sum.
__device__ __forceinline__ x128 logits_gradient(const x128 &logits, int v, int V, int target, float max, float factor,
                                                float dloss) {
    float x[x128::size];
    unpack_logits(x, logits, v, V);
#pragma unroll
    for (int k = 0; k < x128::size; k++) { x[k] = factor * cross_entropy_exp(x[k] - max); }
    if ((unsigned)(target - v) < (unsigned)x128::size || v + x128::size > V) { // one or two packs of the row
#pragma unroll
        for (int k = 0; k < x128::size; k++) {
            x[k] -= v + k == target ? dloss : 0.0f;
            x[k] = v + k < V ? x[k] : 0.0f; // factor * exp(-infinity) is NaN if factor is NaN
        }
    }
    x128 gradient;
#pragma unroll
    for (int k = 0; k < x128::size; k++) { gradient[k] = from_float<floatX>(x[k]); }
    return gradient;
}

// row (Vp) = the gradient of the logits in source (Vp), which may be the row. softmax: the state of the whole row.
__device__ __forceinline__ void row_gradient(floatX *row, const floatX *source, int V, int Vp, int target,
                                             SoftmaxState softmax, float dloss) {
    int packs = Vp / x128::size, threads = (int)blockDim.x;
    float factor = dloss / softmax.sum;
    // The loop goes from the last columns to the first, because the caches most likely hold the columns read last.
    for (int first = (packs - 1) / threads * threads; first >= 0; first -= threads) {
        int pack = first + (int)threadIdx.x;
        if (pack >= packs) { continue; }
        int v = pack * x128::size;
        store128(row + v, logits_gradient(load128(source + v), v, V, target, softmax.max, factor, dloss));
    }
}

// Starts copying this thread's part of a row to shared memory. Other threads read only the target's logit.
__device__ __forceinline__ void stage_row(int4 *staged, const floatX *row, int packs) {
    for (int pack = (int)threadIdx.x; pack < packs; pack += (int)blockDim.x) {
        cp_async_16(staged + pack, row + (int64_t)pack * x128::size);
    }
    cp_async_commit();
}

// Each row has one block. Each thread overwrites only columns that it alone reads. All threads read the target's logit,
// between the barriers of block_max and block_sum. STAGED: the kernel reads the row from memory once. Otherwise the
// gradient reads the row again, from the L2 cache at best.
template <bool STAGED>
static __global__ void __launch_bounds__(MAX_BLOCK, 2)
    cross_entropy_kernel(float *losses, floatX *logits, const int32_t *targets, int V, int Vp, float dloss,
                         bool want_gradient) {
    extern __shared__ int4 cross_entropy_row[];
    __shared__ float partial[WARP_SIZE];
    floatX *row = logits + (int64_t)blockIdx.x * Vp;
    const floatX *source = STAGED ? reinterpret_cast<const floatX *>(cross_entropy_row) : row;
    if (STAGED) { stage_row(cross_entropy_row, row, Vp / x128::size); }
    int target = targets[blockIdx.x];
    if (STAGED) { cp_async_wait<0>(); }
    SoftmaxState state = row_softmax_state(source, V);
    float max = block_max(state.max, partial);
    float target_logit = to_float(source[target]);
    float sum = block_sum(state.sum * cross_entropy_exp(state.max - max), partial);
    if (threadIdx.x == 0) { losses[blockIdx.x] = logf(sum) + (max - target_logit); }
    if (want_gradient) { row_gradient(row, source, V, Vp, target, {max, sum}, dloss); }
}

// Do two rows fit into the shared memory of a multiprocessor, each with 1 KiB for the driver and 1 KiB for sums? Rows
// of GPT-2's vocabulary in bf16, 98 KiB each, fit on an H100 (228 KiB), but not on an A100 (164 KiB). If only one row
// fits, it is not staged: it would use half the warps, and no load would overlap with its computation.
static inline bool cross_entropy_stages(int Vp) {
    int device, bytes_of_multiprocessor;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&bytes_of_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    return 2 * (Vp * (int64_t)sizeof(floatX) + 2048) <= bytes_of_multiprocessor;
}

// Refuses a model whose rows of logits the kernel cannot take.
static inline bool cross_entropy_check(int Vp, Error *error) {
    return Vp % 8 == 0 || fail(error, "model: padded vocabulary of %d; the GPU trainer needs a multiple of 8", Vp);
}

template <bool STAGED>
static inline void cross_entropy_launch(float *losses, floatX *logits, const int32_t *targets, int64_t rows, int V,
                                        int Vp, float dloss, bool want_gradient, cudaStream_t stream, int block_size) {
    cuda_require(rows > 0 && rows <= INT32_MAX && (uintptr_t)logits % 16 == 0);
    cuda_require(V > 0 && V <= Vp && Vp % 8 == 0 && Vp <= INT32_MAX - 8 * MAX_BLOCK);
    cuda_require(block_size % WARP_SIZE == 0 && block_size > 0 && block_size <= MAX_BLOCK);
    block_size = block_for(Vp / x128::size, block_size);
    size_t shared = STAGED ? (size_t)Vp * sizeof(floatX) : 0;
    allow_dynamic_shared(cross_entropy_kernel<STAGED>, shared);
    cross_entropy_kernel<STAGED>
        <<<(unsigned)rows, block_size, shared, stream>>>(losses, logits, targets, V, Vp, dloss, want_gradient);
    cuda_check_launch("cross_entropy_kernel");
}

// Writes (=) losses (rows) and, if want_gradient, the gradient over logits (rows,Vp). Columns V..Vp-1 of the gradient
// are 0 for any logits. Without want_gradient the logits stay. targets (rows) are in 0..V-1. Vp is a multiple of 8, and
// logits are aligned to 16 bytes. A NaN or +infinity among a row's logits makes its loss NaN. For each logit it reads 2
// bytes and writes 2 bytes of memory in bf16 (4 and 4 in fp32). Without staging it also reads 2 bytes from the L2
// cache. Deterministic: the order of the sums depends on the block size only. Staging changes no bit.
static inline void cross_entropy(float *losses, floatX *logits, const int32_t *targets, int64_t rows, int V, int Vp,
                                 float dloss, bool want_gradient, cudaStream_t stream,
                                 int block_size = CROSS_ENTROPY_BLOCK) {
    auto launch = cross_entropy_stages(Vp) ? cross_entropy_launch<true> : cross_entropy_launch<false>;
    launch(losses, logits, targets, rows, V, Vp, dloss, want_gradient, stream, block_size);
}

// ---- A vocabulary split over ranks ----
//
// Each rank has the logits (N,Vl) of its columns of the vocabulary. The first V_own columns are real, perhaps none, the
// others are padding. targets (N) count from the rank's first column; -1: another rank has it. cross_entropy_states
// writes this rank's states. The caller gathers the states of all ranks, for cross_entropy_from_states. All ranks add
// them in one order, so they get equal losses, bit for bit. One part gives the bits of cross_entropy. Deterministic.

#define CROSS_ENTROPY_STATE 3 // floats of a row: SoftmaxState and the target's logit, 0 if another rank has it

// Each row has one block, as in cross_entropy_kernel.
static __global__ void __launch_bounds__(MAX_BLOCK, 2)
    cross_entropy_states_kernel(float *states, const floatX *logits, const int32_t *targets, int V_own, int Vl) {
    __shared__ float partial[WARP_SIZE];
    const floatX *row = logits + (int64_t)blockIdx.x * Vl;
    SoftmaxState state = row_softmax_state(row, V_own);
    float max = block_max(state.max, partial);
    float sum = block_sum(state.sum * cross_entropy_exp(state.max - max), partial);
    if (threadIdx.x > 0) { return; }
    int target = targets[blockIdx.x];
    float *to = states + (int64_t)blockIdx.x * CROSS_ENTROPY_STATE;
    to[0] = max, to[1] = sum, to[2] = target >= 0 ? to_float(row[target]) : 0.0f;
}

// Each row has one block. Every thread joins the row's states.
static __global__ void __launch_bounds__(MAX_BLOCK, 2)
    cross_entropy_from_states_kernel(float *losses, floatX *logits, const float *states, int parts,
                                     const int32_t *targets, int V_own, int Vl, float dloss, bool write_gradient) {
    int64_t stride = (int64_t)gridDim.x * CROSS_ENTROPY_STATE;
    const float *of_row = states + (int64_t)blockIdx.x * CROSS_ENTROPY_STATE, *end = of_row + parts * stride;
    SoftmaxState whole = {-FLT_MAX, 0.0f};
    float target_logit = 0.0f;
    for (const float *part = of_row; part < end; part += stride) { whole.max = fmaxf(whole.max, part[0]); }
    for (const float *part = of_row; part < end; part += stride) {
        whole.sum += part[1] * cross_entropy_exp(part[0] - whole.max);
        target_logit += part[2];
    }
    if (threadIdx.x == 0) { losses[blockIdx.x] = logf(whole.sum) + (whole.max - target_logit); }
    floatX *row = logits + (int64_t)blockIdx.x * Vl;
    if (write_gradient) { row_gradient(row, row, V_own, Vl, targets[blockIdx.x], whole, dloss); }
}

static inline void cross_entropy_require_part(const floatX *logits, int64_t N, int V_own, int Vl) {
    cuda_require(N > 0 && N <= INT32_MAX && (uintptr_t)logits % 16 == 0);
    cuda_require(V_own >= 0 && V_own <= Vl && Vl > 0 && Vl % 8 == 0 && Vl <= INT32_MAX - 8 * MAX_BLOCK);
}

// states (N,3) = see CROSS_ENTROPY_STATE. Without a real column max is -FLT_MAX and sum is 0. A NaN or +infinity among
// a row's logits makes its sum NaN, so that all ranks see it. Reads 2 bytes a logit in bf16, 4 in fp32.
static inline void cross_entropy_states(float *states, const floatX *logits, const int32_t *targets, int64_t N,
                                        int V_own, int Vl, cudaStream_t stream) {
    cross_entropy_require_part(logits, N, V_own, Vl);
    int block_size = block_for(Vl / x128::size, CROSS_ENTROPY_BLOCK);
    cross_entropy_states_kernel<<<(unsigned)N, block_size, 0, stream>>>(states, logits, targets, V_own, Vl);
    cuda_check_launch("cross_entropy_states_kernel");
}

// losses (N) = and, with write_gradient, logits = their gradient, as cross_entropy writes them. states (parts,N,3) are
// in the order of the ranks. Moves 4 bytes a logit in bf16, 8 in fp32, without write_gradient none.
static inline void cross_entropy_from_states(float *losses, floatX *logits, const float *states, int parts,
                                             const int32_t *targets, int64_t N, int V_own, int Vl, float dloss,
                                             bool write_gradient, cudaStream_t stream) {
    cross_entropy_require_part(logits, N, V_own, Vl);
    cuda_require(parts > 0);
    int block_size = block_for(write_gradient ? Vl / x128::size : 1, CROSS_ENTROPY_BLOCK);
    cross_entropy_from_states_kernel<<<(unsigned)N, block_size, 0, stream>>>(losses, logits, states, parts, targets,
                                                                             V_own, Vl, dloss, write_gradient);
    cuda_check_launch("cross_entropy_from_states_kernel");
}

// ---- Sums and means of losses ----

// One block. Each thread sums every 1024th loss, and the block adds up the threads' sums.
static __global__ void __launch_bounds__(MAX_BLOCK)
    sum_losses_kernel(double *sum, const float *losses, int64_t N, bool accumulate) {
    __shared__ double partial[WARP_SIZE];
    double thread_sum = 0.0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < N; i += MAX_BLOCK) { thread_sum += (double)losses[i]; }
    double total = block_sum(thread_sum, partial);
    if (threadIdx.x == 0) { *sum = accumulate ? *sum + total : total; }
}

// *sum = (or += with accumulate) the sum of losses (N) in double precision, in an order that depends on N only.
static inline void sum_losses(double *sum, const float *losses, int64_t N, bool accumulate, cudaStream_t stream) {
    cuda_require(N >= 0);
    sum_losses_kernel<<<1, block_for(N, MAX_BLOCK), 0, stream>>>(sum, losses, N, accumulate);
    cuda_check_launch("sum_losses_kernel");
}

// What a rank knows of a sequence's losses: their sum, and how many they are.
typedef struct {
    double sum, number;
} SequenceLoss;

#define SEQUENCE_LOSSES_BLOCK 128

// Each sequence has one warp. Each lane sums every 32nd loss, and the warp adds up the lanes' sums.
static __global__ void __launch_bounds__(SEQUENCE_LOSSES_BLOCK)
    sequence_losses_kernel(SequenceLoss *sequences, const float *losses, const int32_t *counts, int B, int T) {
    int lane = (int)threadIdx.x % WARP_SIZE;
    int64_t b = ((int64_t)blockIdx.x * SEQUENCE_LOSSES_BLOCK + threadIdx.x) / WARP_SIZE;
    if (b >= B) { return; } // a whole warp
    double sum = 0.0, number = 0.0;
    for (int64_t i = b * T + lane; i < (b + 1) * T; i += WARP_SIZE) {
        if (counts[i] == 0) { continue; }
        sum += (double)losses[i];
        number += 1.0;
    }
    sum = warp_sum(sum);
    number = warp_sum(number);
    if (lane == 0) { sequences[b] = {sum, number}; }
}

// sequences[b] = the sum and the number of losses[b,t] (B,T) over all t with counts[b,t] != 0, in double precision. A
// loss with count 0 may be anything. Deterministic: the order of a sum depends on T only.
static inline void sequence_losses(SequenceLoss *sequences, const float *losses, const int32_t *counts, int B, int T,
                                   cudaStream_t stream) {
    cuda_require(B > 0 && T > 0);
    unsigned blocks = blocks_for(B, SEQUENCE_LOSSES_BLOCK / WARP_SIZE);
    sequence_losses_kernel<<<blocks, SEQUENCE_LOSSES_BLOCK, 0, stream>>>(sequences, losses, counts, B, T);
    cuda_check_launch("sequence_losses_kernel");
}

#endif // LLMC_FUSED_CROSS_ENTROPY_CUH
