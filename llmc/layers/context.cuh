// The copies of context parallelism (llmc/model/context.h). A row of k and v has W = 2*KV*HS values. In the forward
// each rank packs k and v of its own rows, the ranks all-gather them in order of rank, and each rank puts them in order
// of position, for attention_gathered_context. The backward goes the other way: it splits dkv by rank, the ranks
// reduce-scatter the parts, and each rank unpacks its own part. s: the shape of one rank's rows.
#ifndef LLMC_CONTEXT_CUH
#define LLMC_CONTEXT_CUH

#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/layers/attention_tiles.cuh"
#include "llmc/model/context.h"

// kv (B,s.T,W) = k and v of qkv (B,s.T,(NH+2*KV)*HS).
static inline void context_pack_kv(floatX *kv, const floatX *qkv, const AttentionShape &s, cudaStream_t stream) {
    size_t row = 2 * s.KV * s.HS * sizeof(floatX), width = attention_width(s) * sizeof(floatX);
    cuda_check(
        cudaMemcpy2DAsync(kv, row, qkv + s.NH * s.HS, width, row, (size_t)s.B * s.T, cudaMemcpyDeviceToDevice, stream));
}

// The reverse: k and v of dqkv = dkv (B,s.T,W). The q part of dqkv stays.
static inline void context_unpack_dkv(floatX *dqkv, const floatX *dkv, const AttentionShape &s, cudaStream_t stream) {
    size_t row = 2 * s.KV * s.HS * sizeof(floatX), width = attention_width(s) * sizeof(floatX);
    cuda_check(cudaMemcpy2DAsync(dqkv + s.NH * s.HS, width, dkv, row, row, (size_t)s.B * s.T, cudaMemcpyDeviceToDevice,
                                 stream));
}

// Copies from rows in order of rank (size,B,T/size,W) to rows in order of position (B,T,W), or with SPLIT the other
// way. all: size and T. A block copies one row, 16 bytes a thread at a time.
template <bool SPLIT>
static __global__ void __launch_bounds__(MAX_BLOCK)
    context_order_kernel(floatX *to, const floatX *from, int B, ContextPlace all, int W) {
    int rows = context_rows(&all), i = (int)blockIdx.x;
    ContextPlace place = {all.size, i / rows / B, all.T};
    int64_t at = i / rows % B * (int64_t)all.T + context_position(&place, i % rows);
    to += (SPLIT ? i : at) * W, from += (SPLIT ? at : i) * W;
    for (int d = (int)threadIdx.x * x128::size; d < W; d += (int)blockDim.x * x128::size) {
        store128(to + d, load128(from + d));
    }
}

template <bool SPLIT>
static inline void context_order_launch(floatX *to, const floatX *from, const AttentionShape &s, int size,
                                        cudaStream_t stream) {
    const ContextPlace all = {size, 0, size * s.T};
    int64_t N = (int64_t)s.B * all.T;
    int W = 2 * s.KV * s.HS, threads = block_for(W / x128::size, MAX_BLOCK);
    cuda_require(N > 0 && N <= INT32_MAX && s.KV * s.HS % 8 == 0 && context_divides(size, all.T));
    context_order_kernel<SPLIT><<<(unsigned)N, threads, 0, stream>>>(to, from, s.B, all, W);
    cuda_check_launch("context_order_kernel");
}

// kv (B,size*s.T,W), in order of position, = the gathered rows (size,B,s.T,W).
static inline void context_order_kv(floatX *kv, const floatX *gathered, const AttentionShape &s, int size,
                                    cudaStream_t stream) {
    context_order_launch<false>(kv, gathered, s, size, stream);
}

// The reverse: parts (size,B,s.T,W) = dkv (B,size*s.T,W).
static inline void context_split_dkv(floatX *parts, const floatX *dkv, const AttentionShape &s, int size,
                                     cudaStream_t stream) {
    context_order_launch<true>(parts, dkv, s, size, stream);
}

#endif // LLMC_CONTEXT_CUH
