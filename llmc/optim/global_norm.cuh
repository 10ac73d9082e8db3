// Computes the gradient's norm, and decides whether the step may update and how far it clips the gradient. The GPU
// decides, and the host reads the result later.
//   norm = sqrt(sum over all parameters of grad^2)
//
// Each GPU sums the squares of its part of the gradient into a StepRecord. All GPUs get all records, and each GPU makes
// a StepResult from them. The results of all GPUs have equal bits.
#ifndef LLMC_GLOBAL_NORM_CUH
#define LLMC_GLOBAL_NORM_CUH

#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/base/utils.h"

enum { STEP_GOES_ON = 0, STEP_LOSS_NOT_FINITE = 1, STEP_NORM_UNUSABLE = 2, STEP_WEIGHTS_DIFFER = 3 };

// Holds one GPU's part of a step, in device memory.
typedef struct {
    double loss_sum;      // of its rows
    double squares;       // the sum of squares over its part of the gradient
    int64_t wants_to_end; // its process has been asked to stop
    uint64_t checksum;    // of its weights in this step; 0 if no other GPU holds all of them
    int64_t leader;       // the first GPU that holds equal weights
} StepRecord;

// Holds the result of a step, in device memory. Cleared (zero bytes) once, before the first step.
typedef struct {
    double loss;
    double norm;
    float grad_scale;     // AdamW multiplies gradients by it
    int32_t stopped;      // STEP_..: the first reason not to update; it stays, and no later step updates anything
    int64_t wants_to_end; // some process has been asked to stop
    int64_t odd_one;      // the first GPU whose weights differ from its leader's, or whose loss is bad; 0: none
} StepResult;

#define GLOBAL_NORM_BLOCK 512
#define GLOBAL_NORM_SPAN 32768 // gradients of a block; fixed, so that no bit depends on the GPU

static inline int64_t global_norm_scratch_doubles(int64_t n) { return ceil_div_i64(n, GLOBAL_NORM_SPAN); }

__device__ __forceinline__ double squared(float x) { return (double)x * (double)x; }

// partials[b] = the sum of grad^2 over the b-th span. Squares and sums are double, so that they neither overflow nor
// vanish.
static __global__ void __launch_bounds__(GLOBAL_NORM_BLOCK)
    global_norm_squared_kernel(double *partials, const float *grads, int64_t n) {
    __shared__ double partial[WARP_SIZE];
    int64_t begin = (int64_t)blockIdx.x * GLOBAL_NORM_SPAN;
    const float *span = grads + begin;
    int count = (int)min((int64_t)GLOBAL_NORM_SPAN, n - begin);
    double sum = 0.0;
#pragma unroll 4
    for (int i = (int)threadIdx.x * f128::size; i <= count - f128::size; i += GLOBAL_NORM_BLOCK * f128::size) {
        f128 g = load128(span + i);
        sum += (squared(g[0]) + squared(g[1])) + (squared(g[2]) + squared(g[3]));
    }
    int tail = count - count % f128::size + (int)threadIdx.x;
    if (tail < count) { sum += squared(span[tail]); }
    sum = block_sum(sum, partial);
    if (threadIdx.x == 0) { partials[blockIdx.x] = sum; }
}

// partials (global_norm_scratch_doubles(n)) = sums of squares of n gradients, which are aligned to 16 bytes. Reads 4
// bytes a parameter. Deterministic: n fixes the order of the sum.
static inline void global_norm_squared(double *partials, const float *grads, int64_t n, cudaStream_t stream) {
    int64_t blocks = global_norm_scratch_doubles(n);
    cuda_require(n > 0 && blocks <= INT32_MAX && (uintptr_t)grads % 16 == 0);
    int threads = block_for(ceil_div_i64(n, f128::size), GLOBAL_NORM_BLOCK);
    global_norm_squared_kernel<<<(unsigned)blocks, threads, 0, stream>>>(partials, grads, n);
    cuda_check_launch("global_norm_squared_kernel");
}

// Runs in one block. Each thread sums every 1024th partial, and the block adds up the threads' sums.
static __global__ void __launch_bounds__(MAX_BLOCK)
    step_record_kernel(StepRecord *record, const double *partials, int64_t count, const double *loss_sum,
                       int64_t wants_to_end, const uint64_t *checksum, int64_t leader) {
    __shared__ double partial[WARP_SIZE];
    double sum = 0.0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < count; i += MAX_BLOCK) { sum += partials[i]; }
    sum = block_sum(sum, partial);
    if (threadIdx.x == 0) {
        record->loss_sum = *loss_sum;
        record->squares = sum;
        record->wants_to_end = wants_to_end;
        record->checksum = *checksum;
        record->leader = leader;
    }
}

// Makes this GPU's record from `count` partials of global_norm_squared. All pointers are to device memory.
static inline void step_record(StepRecord *record, const double *partials, int64_t count, const double *loss_sum,
                               int64_t wants_to_end, const uint64_t *checksum, int64_t leader, cudaStream_t stream) {
    cuda_require(count >= 0);
    int threads = block_for(max_i64(count, 1), MAX_BLOCK);
    step_record_kernel<<<1, threads, 0, stream>>>(record, partials, count, loss_sum, wants_to_end, checksum, leader);
    cuda_check_launch("step_record_kernel");
}

// A step is bad if its loss or its norm is not finite, or if its norm is too large without clipping.
__device__ __forceinline__ int32_t step_verdict(double loss, double norm, float grad_clip) {
    if (!isfinite(loss)) { return STEP_LOSS_NOT_FINITE; }
    bool usable = isfinite(norm) && (norm <= LARGEST_NORM || grad_clip > 0.0f);
    return usable ? STEP_GOES_ON : STEP_NORM_UNUSABLE;
}

// One thread sums the few records, in their order.
static __global__ void step_finish_kernel(StepResult *result, const StepRecord *records, int num_records,
                                          double loss_factor, float grad_clip) {
    double loss_sum = 0.0, squares = 0.0;
    int64_t wants_to_end = 0, odd_one = 0, bad_loss = 0;
    for (int i = 0; i < num_records; i++) {
        if (isfinite(loss_sum) && !isfinite(loss_sum + records[i].loss_sum)) { bad_loss = i; }
        loss_sum += records[i].loss_sum;
        squares += records[i].squares;
        wants_to_end |= records[i].wants_to_end;
        if (odd_one == 0 && records[i].checksum != records[records[i].leader].checksum) { odd_one = i; }
    }
    double loss = loss_sum * loss_factor, norm = sqrt(squares);
    result->loss = loss;
    result->norm = norm;
    result->grad_scale = grad_clip > 0.0f && norm > (double)grad_clip ? (float)((double)grad_clip / norm) : 1.0f;
    result->wants_to_end = wants_to_end;
    if (result->stopped != STEP_GOES_ON) { return; }
    result->odd_one = odd_one > 0 ? odd_one : bad_loss;
    result->stopped = odd_one > 0 ? STEP_WEIGHTS_DIFFER : step_verdict(loss, norm, grad_clip);
}

// Makes the result from the records of all GPUs:
//   result->loss = sum of the losses * loss_factor, result->norm, result->wants_to_end,
//   result->grad_scale = grad_clip / norm if grad_clip > 0 and norm > grad_clip, else 1
//   result->stopped is set once and never cleared; result->odd_one is set with it
static inline void step_finish(StepResult *result, const StepRecord *records, int num_records, double loss_factor,
                               float grad_clip, cudaStream_t stream) {
    cuda_require(num_records > 0);
    cuda_require(grad_clip >= 0.0f);
    step_finish_kernel<<<1, 1, 0, stream>>>(result, records, num_records, loss_factor, grad_clip);
    cuda_check_launch("step_finish_kernel");
}

#endif // LLMC_GLOBAL_NORM_CUH
