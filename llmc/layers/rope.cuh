// RoPE, the rotary position embedding (Su et al. 2021), in place on the queries and keys before attention.
//
// Components j and j + HS/2 of a head are a pair, j < HS/2. At position t the pair is rotated by t * f[j]:
//   forward   a = x[j], b = x[j+HS/2];  x[j] = a cos - b sin,  x[j+HS/2] = b cos + a sin
//   backward  rotates the gradients back: the transpose of a rotation has the sine's sign changed
// qkv (N,(NH+2KV)*HS): a row holds the queries of NH heads, then the keys, then the values of KV heads. Row n is row
// n % context_rows of its sequence (context.h). table (T,HS/2,2) fp32: cosine and sine of t * f[j] (rope.h).
//
// Arithmetic is done in fp32 and rounded once. Both directions move 2*N*(NH+KV)*HS floatX: they read and write queries
// and keys. All heads of a row use one row of the table, so it comes from the caches.
#ifndef LLMC_ROPE_CUH
#define LLMC_ROPE_CUH

#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/model/context.h"

__device__ __forceinline__ void rope_rotate(floatX *low, floatX *high, float cosine, float sine) {
    float a = to_float(*low), b = to_float(*high);
    *low = from_float<floatX>(fmaf(a, cosine, -b * sine));
    *high = from_float<floatX>(fmaf(b, cosine, a * sine));
}

// A block rotates a row, and a thread SIZE pairs at a time: x128::size, or 1 if 16 bytes do not divide half a head.
// heads: NH + KV. turn: 1, or -1 to rotate back.
template <int SIZE>
static __global__ void __launch_bounds__(MAX_BLOCK)
    rope_kernel(floatX *qkv, const float *__restrict__ table, ContextPlace place, int heads, int HS, int row_width,
                float turn) {
    floatX *row = qkv + (int64_t)blockIdx.x * row_width;
    const float *angles = table + (int64_t)context_position(&place, (int)blockIdx.x % context_rows(&place)) * HS;
    int half = HS / 2, parts = half / SIZE;
    for (int i = threadIdx.x; i < heads * parts; i += blockDim.x) {
        int j = i % parts * SIZE;
        floatX *low = row + i / parts * HS + j, *high = low + half;
        if (SIZE == 1) {
            rope_rotate(low, high, angles[2 * j], turn * angles[2 * j + 1]);
            continue;
        }
        x128 a = load128(low), b = load128(high);
#pragma unroll
        for (int k = 0; k < x128::size; k += 2) {
            f128 angle = load128(angles + 2 * (j + k)); // of two pairs
            rope_rotate(&a[k], &b[k], angle[0], turn * angle[1]);
            rope_rotate(&a[k + 1], &b[k + 1], angle[2], turn * angle[3]);
        }
        store128(low, a);
        store128(high, b);
    }
}

static inline void rope_launch(floatX *qkv, const float *table, int64_t N, const ContextPlace &place, int NH, int KV,
                               int HS, float turn, cudaStream_t stream) {
    cuda_require(N > 0 && N <= INT32_MAX && place.T > 0 && NH > 0 && KV > 0 && HS > 0 && HS % 2 == 0);
    bool packed = HS / 2 % x128::size == 0;
    auto kernel = packed ? rope_kernel<x128::size> : rope_kernel<1>;
    int threads = block_for((int64_t)(NH + KV) * (HS / 2) / (packed ? x128::size : 1), MAX_BLOCK);
    kernel<<<(unsigned)N, threads, 0, stream>>>(qkv, table, place, NH + KV, HS, (NH + 2 * KV) * HS, turn);
    cuda_check_launch("rope_kernel");
}

// Rotates the queries and keys of qkv by the positions of its rows. The values stay. HS is even. qkv and table are
// aligned to 16 bytes.
static inline void rope_forward(floatX *qkv, const float *table, int64_t N, const ContextPlace &place, int NH, int KV,
                                int HS, cudaStream_t stream) {
    rope_launch(qkv, table, N, place, NH, KV, HS, 1.0f, stream);
}

// Turns the gradients of rotated queries and keys into those of the queries and keys before.
static inline void rope_backward(floatX *dqkv, const float *table, int64_t N, const ContextPlace &place, int NH, int KV,
                                 int HS, cudaStream_t stream) {
    rope_launch(dqkv, table, N, place, NH, KV, HS, -1.0f, stream);
}

#endif // LLMC_ROPE_CUH
