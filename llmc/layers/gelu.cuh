// GELU in the tanh form, which GPT-2 and cuBLASLt's epilogues use:
//
//   gelu(x) = x/2 (1 + tanh(u)) = x s,   u = sqrt(2/pi) (x + 0.044715 x^3),   s = 1 / (1 + exp(-2u))
//   gelu'(x) = s + 2 x s (1 - s) u',     u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
//
// s = (1 + tanh(u))/2 is the logistic function of 2u, so it needs one exponential instead of a tanh. It is computed in
// fp32. The bf16 build takes the hardware's approximations of exponential and quotient, which are good to a few units
// in fp32's last place. With exact functions the kernels on an H100 would wait for arithmetic, not for memory.
#ifndef LLMC_GELU_CUH
#define LLMC_GELU_CUH

#include "llmc/layers/column_sums.cuh"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/cuda/ptx.cuh"

#define GELU_SQRT_2_OVER_PI 0.79788456080286536f
#define GELU_CUBE_FACTOR 0.044715f
#define GELU_EXPONENT (-2.0f * 1.4426950408889634f * GELU_SQRT_2_OVER_PI) // exp(-2u) = 2^(this (x + 0.044715 x^3))

// 1 / (1 + 2^exponent).
__device__ __forceinline__ float logistic_of_power(float exponent) {
#ifdef PRECISION_FP32
    return 1.0f / (1.0f + exp2f(exponent));
#else
    return reciprocal_approx(1.0f + exp2_approx(exponent));
#endif
}

// s of the formula at the top.
__device__ __forceinline__ float gelu_gate(float x) {
    return logistic_of_power(x * fmaf(GELU_EXPONENT * GELU_CUBE_FACTOR, x * x, GELU_EXPONENT));
}

__device__ __forceinline__ float gelu_value(float x) { return x * gelu_gate(x); }

__device__ __forceinline__ float gelu_slope(float x) {
    float gate = gelu_gate(x), du = GELU_SQRT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBE_FACTOR * x * x);
    return gate + 2.0f * x * gate * (1.0f - gate) * du;
}

// out = gelu(inp) of `packs` packs of 16 bytes, one for each thread. Pointers are aligned to 16 bytes; out may be inp.
static __global__ void __launch_bounds__(MAX_BLOCK)
    gelu_forward_kernel(floatX *out, const floatX *inp, int64_t packs, uint32_t *amax) {
    int64_t pack = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t largest = 0;
    if (pack < packs) {
        x128 x = load128_streaming(inp + pack * x128::size), y;
        for (int i = 0; i < x128::size; i++) {
            float value = gelu_value(to_float(x[i]));
            if (amax != NULL) { largest = amax_join(largest, value); }
            y[i] = from_float<floatX>(value);
        }
        store128(out + pack * x128::size, y); // not streaming: the next multiplication reads out
    }
    amax_add_rounded(amax, largest);
}

// out (n) = gelu(inp (n)), n a multiple of 8. out may be inp. amax: of out, see amax_add_rounded. block_size is a
// multiple of 32.
static inline void gelu_forward(floatX *out, const floatX *inp, int64_t n, cudaStream_t stream, uint32_t *amax = NULL,
                                int block_size = 256) {
    cuda_require(n > 0 && n % 8 == 0);
    cuda_require(block_size % WARP_SIZE == 0 && block_size >= WARP_SIZE && block_size <= MAX_BLOCK);
    int64_t packs = n / x128::size;
    gelu_forward_kernel<<<blocks_for(packs, block_size), block_size, 0, stream>>>(out, inp, packs, amax);
    cuda_check_launch("gelu_forward_kernel");
}

// ---- Backward ----
//
// dinp is the gradient of the output of the linear layer before GELU, and the sums of dinp's columns are the gradient
// of that layer's bias. The backward sums dinp while it computes dinp, in two stages (column_sums.cuh). A block takes
// 32 x 16 bytes of columns of a chunk of GELU_BACKWARD_ROWS rows. A lane takes 16 bytes, a warp every 8th row.

#define GELU_BACKWARD_WARPS 8
#define GELU_BACKWARD_ROWS 64 // the sums (8 bytes a column, written and read) are 2 % of the rows' bytes in bf16

static inline int64_t gelu_backward_chunks(int64_t N) { return ceil_div_i64(N, GELU_BACKWARD_ROWS); }
static inline int64_t gelu_backward_scratch_floats(int64_t N, int width) { return gelu_backward_chunks(N) * width; }

// dinp (N,width) = dout gelu'(inp). dinp may be dout or inp. scratch (chunks,width) = the first stage's sums; NULL: not
// wanted. Moves 3*N*width floatX.
template <bool AMAX>
static __global__ void __launch_bounds__(GELU_BACKWARD_WARPS *WARP_SIZE)
    gelu_backward_kernel(floatX *dinp, const floatX *inp, const floatX *dout, float *scratch, int64_t N, int width,
                         uint32_t *amax) {
    ColumnChunk c = column_chunk(N, width, GELU_BACKWARD_ROWS);
    float sums[x128::size] = {};
    uint32_t largest = 0;
    if (c.column < width) {
#pragma unroll 1
        for (int64_t row = c.first + threadIdx.x / WARP_SIZE; row < c.end; row += GELU_BACKWARD_WARPS) {
            int64_t at = row * width + c.column;
            x128 x = load128_streaming(inp + at), dy = load128_streaming(dout + at), dx;
#pragma unroll
            for (int i = 0; i < x128::size; i++) {
                float value = to_float(dy[i]) * gelu_slope(to_float(x[i]));
                if (AMAX) { largest = amax_join(largest, value); }
                dx[i] = from_float<floatX>(value);
                sums[i] += to_float(dx[i]);
            }
            store128(dinp + at, dx);
        }
    }
    if (scratch != NULL) {
        column_sums_store<GELU_BACKWARD_WARPS>(scratch + c.chunk * width, sums, c.first_column, width);
    }
    if (AMAX) { amax_add_rounded(amax, largest); }
}

// dinp (N,width) = dout gelu'(inp). dinp may be dout. dbias (width), fp32, += the sums of the columns of the rounded
// dinp; it belongs to the linear layer before GELU; NULL: not wanted. amax: of dinp. scratch has
// gelu_backward_scratch_floats(N, width) floats, aligned to 16 bytes; NULL without dbias.
static inline void gelu_backward(floatX *dinp, const floatX *inp, const floatX *dout, float *dbias, float *scratch,
                                 int64_t N, int width, cudaStream_t stream, uint32_t *amax = NULL) {
    cuda_require(N > 0 && width > 0 && width % 8 == 0 && (dbias == NULL || scratch != NULL));
    int64_t chunks = gelu_backward_chunks(N), blocks = chunks * blocks_for(width, COLUMN_CHUNK_COLUMNS);
    cuda_require(blocks <= INT32_MAX);
    auto backward_kernel = amax != NULL ? gelu_backward_kernel<true> : gelu_backward_kernel<false>;
    backward_kernel<<<(unsigned)blocks, GELU_BACKWARD_WARPS * WARP_SIZE, 0, stream>>>(
        dinp, inp, dout, dbias != NULL ? scratch : NULL, N, width, amax);
    cuda_check_launch("gelu_backward_kernel");
    if (dbias != NULL) { column_sums_reduce({{dbias, NULL, NULL}}, 1, scratch, chunks, width, stream); }
}

#endif // LLMC_GELU_CUH
