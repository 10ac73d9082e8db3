// SwiGLU (Shazeer 2020), the activation of a Llama's MLP: a gate times a second linear layer of the same input.
//
//   forward   out = silu(gate) * up,   silu(x) = x s,   s = 1 / (1 + exp(-x))
//   backward  dgate = dout * up * (s + gate s (1 - s)),   dup = dout * gate s
// fc, dfc (N,2F): a row holds gate (F), then up (F). out, dout (N,F). F is a multiple of 8, pointers are aligned to 16
// bytes. A large |gate| makes s 0 or 1, never NaN.
//
// An amax may be NULL. Otherwise it becomes at least the largest magnitude that is written (amax_add_rounded).
#ifndef LLMC_SWIGLU_CUH
#define LLMC_SWIGLU_CUH

#include "llmc/layers/gelu.cuh" // the logistic function

#define SWIGLU_BLOCK 256

__device__ __forceinline__ float swiglu_gate(float x) { return logistic_of_power(-1.4426950408889634f * x); }

// The 16 bytes of out or dout that a thread takes, and the gate's in fc. up's are F values behind the gate's.
typedef struct {
    bool exists;
    int64_t out, gate;
} SwigluPlace;

__device__ __forceinline__ SwigluPlace swiglu_place(uint32_t packs, int F) {
    uint32_t pack = blockIdx.x * SWIGLU_BLOCK + threadIdx.x, row = pack / (uint32_t)(F / x128::size);
    int64_t out = (int64_t)pack * x128::size;
    return {pack < packs, out, out + (int64_t)row * F};
}

// packs: of out. Moves 3*N*F floatX.
static __global__ void __launch_bounds__(SWIGLU_BLOCK)
    swiglu_forward_kernel(floatX *__restrict__ out, const floatX *__restrict__ fc, uint32_t packs, int F,
                          uint32_t *amax) {
    SwigluPlace at = swiglu_place(packs, F);
    uint32_t largest = 0;
    if (at.exists) {
        x128 gate = load128_streaming(fc + at.gate), up = load128_streaming(fc + at.gate + F), y;
#pragma unroll
        for (int i = 0; i < x128::size; i++) {
            float x = to_float(gate[i]), value = x * swiglu_gate(x) * to_float(up[i]);
            if (amax != NULL) { largest = amax_join(largest, value); }
            y[i] = from_float<floatX>(value);
        }
        store128(out + at.out, y); // not streaming: the next multiplication reads out
    }
    amax_add_rounded(amax, largest);
}

// Moves 5*N*F floatX. A thread reads its values of fc before it writes them, so dfc may be fc.
static __global__ void __launch_bounds__(SWIGLU_BLOCK)
    swiglu_backward_kernel(floatX *dfc, const floatX *fc, const floatX *__restrict__ dout, uint32_t packs, int F,
                           uint32_t *amax) {
    SwigluPlace at = swiglu_place(packs, F);
    uint32_t largest = 0;
    if (at.exists) {
        x128 gate = load128_streaming(fc + at.gate), up = load128_streaming(fc + at.gate + F);
        x128 dy = load128_streaming(dout + at.out);
#pragma unroll
        for (int i = 0; i < x128::size; i++) {
            float x = to_float(gate[i]), d = to_float(dy[i]), s = swiglu_gate(x), silu = x * s;
            float dgate = d * to_float(up[i]) * fmaf(silu, 1.0f - s, s), dup = d * silu;
            if (amax != NULL) { largest = amax_join(amax_join(largest, dgate), dup); }
            gate[i] = from_float<floatX>(dgate);
            up[i] = from_float<floatX>(dup);
        }
        store128(dfc + at.gate, gate);
        store128(dfc + at.gate + F, up);
    }
    amax_add_rounded(amax, largest);
}

// Returns the number of 16 bytes of out.
static inline uint32_t swiglu_packs(int64_t N, int F) {
    cuda_require(N > 0 && F > 0 && F % 8 == 0 && N <= INT32_MAX && N * F / x128::size <= INT32_MAX);
    return (uint32_t)(N * F / x128::size);
}

// out (N,F) = silu(gate) * up. out may not be fc. amax: of out.
static inline void swiglu_forward(floatX *out, const floatX *fc, int64_t N, int F, cudaStream_t stream,
                                  uint32_t *amax = NULL) {
    uint32_t packs = swiglu_packs(N, F);
    swiglu_forward_kernel<<<blocks_for(packs, SWIGLU_BLOCK), SWIGLU_BLOCK, 0, stream>>>(out, fc, packs, F, amax);
    cuda_check_launch("swiglu_forward_kernel");
}

// dfc (N,2F) = dgate and dup. dfc may be fc. amax: of dfc.
static inline void swiglu_backward(floatX *dfc, const floatX *fc, const floatX *dout, int64_t N, int F,
                                   cudaStream_t stream, uint32_t *amax = NULL) {
    uint32_t packs = swiglu_packs(N, F);
    swiglu_backward_kernel<<<blocks_for(packs, SWIGLU_BLOCK), SWIGLU_BLOCK, 0, stream>>>(dfc, fc, dout, packs, F, amax);
    cuda_check_launch("swiglu_backward_kernel");
}

#endif // LLMC_SWIGLU_CUH
