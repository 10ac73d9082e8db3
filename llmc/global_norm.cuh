// The end of a step's gradient: is the loss a number, how long is the gradient, may an update be made with it and by
// how much is it to be clipped? All of it is settled on the GPU; the host reads the result when it likes.
//   norm = sqrt(sum over all parameters of grad^2)
#ifndef LLMC_GLOBAL_NORM_CUH
#define LLMC_GLOBAL_NORM_CUH

#include "cuda_utils.cuh"

enum { STEP_GOES_ON = 0, STEP_LOSS_NOT_FINITE = 1, STEP_NORM_UNUSABLE = 2 };

// What a step came to, in device memory. Cleared (zero bytes) once, before the first step.
typedef struct {
    double loss;
    double norm;
    float grad_scale; // AdamW multiplies gradients by it
    int32_t stopped;  // STEP_..: the first reason not to update; it stays, and no later step updates anything
} StepResult;

#define GLOBAL_NORM_BLOCK 512
#define GLOBAL_NORM_SPAN 32768 // gradients whose squares one block sums: fixed, so that no bit depends on the GPU
// The square of a larger gradient overflows fp32, and AdamW's v would never recover. Clipping makes it harmless.
#define GLOBAL_NORM_USABLE 1e18

static inline int64_t global_norm_scratch_doubles(int64_t n) { return ceil_div_i64(n, GLOBAL_NORM_SPAN); }

__device__ __forceinline__ double squared(float x) { return (double)x * (double)x; }

// partials[b] = the sum over the b-th span of grad^2. Squares and sums are double: they neither overflow nor vanish.
static __global__ void __launch_bounds__(GLOBAL_NORM_BLOCK)
    global_norm_squared_kernel(double *partials, const float *grads, int64_t n) {
    __shared__ double partial[WARP_SIZE];
    const float *span = grads + (int64_t)blockIdx.x * GLOBAL_NORM_SPAN;
    int count = (int)min((int64_t)GLOBAL_NORM_SPAN, n - (int64_t)blockIdx.x * GLOBAL_NORM_SPAN);
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

// partials (global_norm_scratch_doubles(n)) = sums of squares of grads (n), which begin at a multiple of 16 bytes.
// Reads 4 bytes a parameter. Deterministic: the order of the sum depends on n only.
static inline void global_norm_squared(double *partials, const float *grads, int64_t n, cudaStream_t stream) {
    int64_t blocks = global_norm_scratch_doubles(n);
    cuda_require(n > 0 && blocks <= INT32_MAX);
    cuda_require((uintptr_t)grads % 16 == 0);
    global_norm_squared_kernel<<<(unsigned)blocks, GLOBAL_NORM_BLOCK, 0, stream>>>(partials, grads, n);
    cuda_check_launch("global_norm_squared_kernel");
}

// A step is bad when its loss is no number, or its norm is none, or too large to go unclipped.
__device__ __forceinline__ void step_result_set(StepResult *result, double loss, double norm, float grad_clip) {
    int32_t stopped = STEP_GOES_ON;
    if (!isfinite(loss)) {
        stopped = STEP_LOSS_NOT_FINITE;
    } else if (!isfinite(norm) || (norm > GLOBAL_NORM_USABLE && !(grad_clip > 0.0f))) {
        stopped = STEP_NORM_UNUSABLE;
    }
    result->loss = loss;
    result->norm = norm;
    result->grad_scale = grad_clip > 0.0f && norm > (double)grad_clip ? (float)((double)grad_clip / norm) : 1.0f;
    if (result->stopped == STEP_GOES_ON) { result->stopped = stopped; }
}

// One block: each thread sums every 1024th partial, the block adds up the threads' sums.
static __global__ void __launch_bounds__(MAX_BLOCK)
    global_norm_finish_kernel(StepResult *result, const double *partials, int64_t count, double loss_factor,
                              const double *loss_sum, float grad_clip) {
    __shared__ double partial[WARP_SIZE];
    double sum = 0.0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < count; i += MAX_BLOCK) { sum += partials[i]; }
    sum = block_sum(sum, partial);
    if (threadIdx.x == 0) { step_result_set(result, *loss_sum * loss_factor, sqrt(sum), grad_clip); }
}

// From the partials of global_norm_squared over the same n and the sum of the losses (in device memory):
//   result->loss = *loss_sum * loss_factor, result->norm,
//   result->grad_scale = grad_clip / norm if grad_clip > 0 and norm > grad_clip, else 1
//   result->stopped    is set, never cleared
static inline void global_norm_finish(StepResult *result, const double *partials, int64_t n, double loss_factor,
                                      const double *loss_sum, float grad_clip, cudaStream_t stream) {
    cuda_require(n > 0);
    cuda_require(grad_clip >= 0.0f);
    global_norm_finish_kernel<<<1, MAX_BLOCK, 0, stream>>>(result, partials, global_norm_scratch_doubles(n),
                                                           loss_factor, loss_sum, grad_clip);
    cuda_check_launch("global_norm_finish_kernel");
}

#endif // LLMC_GLOBAL_NORM_CUH
