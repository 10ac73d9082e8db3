// GELU on the GPU, the tanh form GPT-2 uses, which is also that of cuBLASLt's epilogues:
//
//   gelu(x) = x/2 (1 + tanh(u)) = x s,   u = sqrt(2/pi) (x + 0.044715 x^3),   s = 1 / (1 + exp(-2u))
//   gelu'(x) = s + 2 x s (1 - s) u',     u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
//
// (1 + tanh(u))/2 is the logistic function of 2u: one exponential instead of a tanh. Computed in fp32.
#ifndef LLMC_GELU_CUH
#define LLMC_GELU_CUH

#include "cuda_utils.cuh"

#define GELU_SQRT_2_OVER_PI 0.79788456080286536f
#define GELU_CUBE_FACTOR 0.044715f

// s of the formula above.
__device__ __forceinline__ float gelu_gate(float x) {
    float u = GELU_SQRT_2_OVER_PI * (x + GELU_CUBE_FACTOR * x * x * x);
    return 1.0f / (1.0f + expf(-2.0f * u));
}

__device__ __forceinline__ float gelu_value(float x) { return x * gelu_gate(x); }

__device__ __forceinline__ float gelu_slope(float x) {
    float gate = gelu_gate(x), du = GELU_SQRT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBE_FACTOR * x * x);
    return gate + 2.0f * x * gate * (1.0f - gate) * du;
}

// out[i] = gelu(inp[i]), i < 16 bytes * packs. Pointers aligned to 16 bytes; out may be inp. A thread does 16 bytes.
static __global__ void __launch_bounds__(MAX_BLOCK) gelu_forward_kernel(floatX *out, const floatX *inp, int64_t packs) {
    int64_t pack = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (pack >= packs) { return; }
    x128 x = load128_streaming(inp + pack * x128::size), y;
    for (int i = 0; i < x128::size; i++) { y[i] = from_float<floatX>(gelu_value(to_float(x[i]))); }
    store128(out + pack * x128::size, y); // the next multiplication reads it
}

// dinp[i] = dout[i] gelu'(inp[i]). dinp may be dout or inp.
static __global__ void __launch_bounds__(MAX_BLOCK)
    gelu_backward_kernel(floatX *dinp, const floatX *inp, const floatX *dout, int64_t packs) {
    int64_t pack = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (pack >= packs) { return; }
    x128 x = load128_streaming(inp + pack * x128::size), dy = load128_streaming(dout + pack * x128::size), dx;
    for (int i = 0; i < x128::size; i++) { dx[i] = from_float<floatX>(to_float(dy[i]) * gelu_slope(to_float(x[i]))); }
    store128(dinp + pack * x128::size, dx);
}

static inline void gelu_require_shape(int64_t n, int block_size) {
    cuda_require(n > 0 && n % 8 == 0);
    cuda_require(block_size >= 1 && block_size <= MAX_BLOCK);
}

// out = gelu(inp), n values, n a multiple of 8. out may be inp.
static inline void gelu_forward(floatX *out, const floatX *inp, int64_t n, cudaStream_t stream, int block_size = 256) {
    gelu_require_shape(n, block_size);
    int64_t packs = n / x128::size;
    gelu_forward_kernel<<<blocks_for(packs, block_size), block_size, 0, stream>>>(out, inp, packs);
    cuda_check_launch("gelu_forward_kernel");
}

// dinp = dout gelu'(inp), n values, n a multiple of 8. dinp may be dout.
static inline void gelu_backward(floatX *dinp, const floatX *inp, const floatX *dout, int64_t n, cudaStream_t stream,
                                 int block_size = 256) {
    gelu_require_shape(n, block_size);
    int64_t packs = n / x128::size;
    gelu_backward_kernel<<<blocks_for(packs, block_size), block_size, 0, stream>>>(dinp, inp, dout, packs);
    cuda_check_launch("gelu_backward_kernel");
}

#endif // LLMC_GELU_CUH
