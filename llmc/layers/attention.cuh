// Causal multi-head attention (Vaswani et al. 2017) without a T x T matrix. For each head, with q, k, v its rows of HS
// values and scale = 1/sqrt(HS):
//   p[i,j] = softmax over j <= i of (scale * q[i].k[j]);  out[i] = sum over j of p[i,j] v[j]
//   lse[i] = log(sum over j <= i of exp(scale * q[i].k[j]))
// The forward goes over the keys tile by tile and keeps, for each query, the largest score so far, the sum of
// exp(score - largest) and the sum of the values with these weights; when a larger score comes, both sums are scaled
// down to it (the online softmax of Milakov and Gimelshein 2018).
// The backward computes p again from lse. With do = dout:
//   dots[i] = do[i].out[i];  dp[i,j] = do[i].v[j];  ds[i,j] = p[i,j] * (dp[i,j] - dots[i])
//   dq[i] = scale * sum over j of ds[i,j] k[j]
//   dk[j] = scale * sum over i of ds[i,j] q[i];  dv[j] = sum over i of p[i,j] do[i]
// Here dq is summed by blocks that own queries, dk and dv by blocks that own keys. p is computed twice for that, but
// every value has one owner, who sums in a fixed order: the same bits each time, without atomics.
//
// Two versions of each kernel: a plain one for both precisions and any head size up to 256, and one for bf16 on tensor
// cores for the head sizes of GPT models. Their functions have the same names but for the first word, plain or tensor,
// so that the second version can be read beside the first.
#ifndef LLMC_ATTENTION_CUH
#define LLMC_ATTENTION_CUH

#include "llmc/layers/amax.cuh"
#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/cuda/ptx.cuh"

#define ATTENTION_MAX_HEAD_SIZE 256
#define ATTENTION_BLOCK 128 // threads
#define ATTENTION_WARPS (ATTENTION_BLOCK / WARP_SIZE)

// One head of one sequence: where its row 0 begins in each array. Row t follows at t * 3C in qkv and dqkv, where k and
// v stand C and 2C behind q, at t * C in out and dout, and at t in lse and dots.
typedef struct {
    int64_t qkv, out, row;
} AttentionHead;

// index = b * NH + h.
__device__ __forceinline__ AttentionHead attention_head(int64_t index, int T, int C, int NH) {
    int64_t b = index / NH, first_channel = index % NH * (C / NH);
    AttentionHead head = {b * T * 3 * C + first_channel, b * T * C + first_channel, index * T};
    return head;
}

// Each head's tiles are neighbours in the grid, so that blocks that run together read the same keys from the L2 cache.
// Of a head's tiles the one with the longest way starts first: the last one where earlier rows are visited, the first
// one where later rows are.
__device__ __forceinline__ int attention_descending_tile(int tiles) { return tiles - 1 - (int)(blockIdx.x % tiles); }
__device__ __forceinline__ int attention_ascending_tile(int tiles) { return (int)(blockIdx.x % tiles); }

__host__ __device__ __forceinline__ int attention_tiles(int T, int rows) { return (T + rows - 1) / rows; }

// dots (B,NH,T) = the dot products of out and dout (B,T,C), head by head. Eight lanes take one head of one row, with
// 128-bit loads where heads begin at multiples of 16 bytes.
#define ATTENTION_DOT_LANES 8
static __global__ void attention_dots_kernel(float *dots, const floatX *out, const floatX *dout, int64_t heads_of_rows,
                                             int T, int C, int NH) {
    int64_t index = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / ATTENTION_DOT_LANES; // (b * T + t) * NH + h
    int lane = threadIdx.x % ATTENTION_DOT_LANES, HS = C / NH;
    bool exists = index < heads_of_rows;
    const floatX *x = out + index * HS, *y = dout + index * HS;
    float sum = 0.0f;
    if (exists && HS % x128::size == 0) {
        for (int d = lane * x128::size; d < HS; d += ATTENTION_DOT_LANES * x128::size) {
            x128 a = load128(x + d), b = load128(y + d);
            for (int i = 0; i < x128::size; i++) { sum += to_float(a[i]) * to_float(b[i]); }
        }
    } else if (exists) {
        for (int d = lane; d < HS; d += ATTENTION_DOT_LANES) { sum += to_float(x[d]) * to_float(y[d]); }
    }
    for (int offset = ATTENTION_DOT_LANES / 2; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    }
    if (exists && lane == 0) {
        int64_t h = index % NH, t = index / NH % T, b = index / NH / T;
        dots[(b * NH + h) * T + t] = sum;
    }
}

static inline void attention_dots(float *dots, const floatX *out, const floatX *dout, int B, int T, int C, int NH,
                                  cudaStream_t stream) {
    int64_t heads_of_rows = (int64_t)B * T * NH;
    unsigned blocks = blocks_for(heads_of_rows, ATTENTION_BLOCK / ATTENTION_DOT_LANES);
    attention_dots_kernel<<<blocks, ATTENTION_BLOCK, 0, stream>>>(dots, out, dout, heads_of_rows, T, C, NH);
    cuda_check_launch("attention_dots_kernel");
}

// Kernels that use more shared memory than the 48 KiB that every kernel may use have to say so. All stay within the
// 99 KiB of the smallest GPUs that are supported (sm_86, sm_89).
template <class Kernel> static inline void attention_allow_shared(Kernel *kernel, size_t bytes) {
    if (bytes > 48 * 1024) {
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    }
}

static inline unsigned attention_blocks(int B, int NH, int T, int rows) {
    return (unsigned)((int64_t)B * NH * attention_tiles(T, rows));
}

// ---------------------------------------------------------------------------------------------------------------------
// The plain version. A block owns a tile of rows (queries; in the kernel for dk and dv: keys), each warp R of them, and
// goes over the others, the columns, 32 at a time: a lane for each column where p and ds are computed; where they are
// multiplied, a lane for the channels lane, lane + 32, ... The block's rows and the tile of columns are in shared
// memory as floats. Read and written value by value: heads of odd sizes begin anywhere. All arithmetic is in float.

#define PLAIN_COLUMNS WARP_SIZE
#define PLAIN_BLOCKS 3 // at least, on a multiprocessor: the compiler's own guess is more, with registers spilled for it

// BOUND: the head size rounded up to 64, 128 or 256. R: as many rows as registers and shared memory hold.
template <int BOUND> struct PlainTile {
    static constexpr int R = BOUND <= 128 ? 4 : 2;
    static constexpr int rows = ATTENTION_WARPS * R;
    static constexpr int channels = BOUND / WARP_SIZE; // of a lane
};

// Floats from row to row in shared memory: HS, zeros up to a multiple of 4, and on to an odd multiple of 4, because
// then eight lanes that read 16 bytes of eight rows meet no bank twice.
__host__ __device__ __forceinline__ int plain_stride(int HS) {
    int quads = (HS + 3) / 4;
    return 4 * (quads + 1 - quads % 2);
}

// `count` rows from global to shared memory by the whole block. Rows from `valid` on, and the padding, become zeros.
__device__ __forceinline__ void plain_load_tile(float *tile, const floatX *source, int64_t source_stride, int count,
                                                int valid, int HS) {
    int lane = threadIdx.x % WARP_SIZE, stride = plain_stride(HS);
    for (int row = threadIdx.x / WARP_SIZE; row < count; row += ATTENTION_WARPS) {
        for (int d = lane; d < stride; d += WARP_SIZE) {
            bool exists = row < valid && d < HS;
            tile[row * stride + d] = exists ? to_float(source[row * source_stride + d]) : 0.0f;
        }
    }
}

// products[r] = row r of the warp's rows times this lane's column.
template <int R>
__device__ __forceinline__ void plain_dot_products(float (&products)[R], const float *rows, const float *columns,
                                                   int HS) {
    int stride = plain_stride(HS);
    const float *column = columns + threadIdx.x % WARP_SIZE * stride;
    for (int r = 0; r < R; r++) { products[r] = 0.0f; }
    for (int d = 0; d < HS; d += 4) {
        float4 y = *reinterpret_cast<const float4 *>(column + d);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 x = *reinterpret_cast<const float4 *>(rows + r * stride + d);
            products[r] += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
        }
    }
}

// sums[r] += sum over the 32 columns of weights[r][column] * column. weights (R,32) in shared memory.
template <int R, int CHANNELS>
__device__ __forceinline__ void plain_add_weighted(float (&sums)[R][CHANNELS], const float *weights,
                                                   const float *columns, int HS) {
    int lane = threadIdx.x % WARP_SIZE, stride = plain_stride(HS);
    for (int j = 0; j < PLAIN_COLUMNS; j += 4) {
        float4 w[R];
        for (int r = 0; r < R; r++) { w[r] = *reinterpret_cast<const float4 *>(weights + r * PLAIN_COLUMNS + j); }
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) {
            int d = i * WARP_SIZE + lane;
            if (d >= HS) { continue; }
            const float *x = columns + j * stride + d;
            float x0 = x[0], x1 = x[stride], x2 = x[2 * stride], x3 = x[3 * stride];
            for (int r = 0; r < R; r++) { sums[r][i] += w[r].x * x0 + w[r].y * x1 + w[r].z * x2 + w[r].w * x3; }
        }
    }
}

// One tile of keys of the online softmax, from the scores of this lane's key to its weights. Every query sees key 0, so
// that largest is finite after the first tile.
template <int R, int CHANNELS>
__device__ __forceinline__ void plain_online_softmax_step(float *weights, float (&largest)[R], float (&sum)[R],
                                                          float (&out)[R][CHANNELS], const float (&scores)[R],
                                                          int query, int key) {
    int lane = threadIdx.x % WARP_SIZE;
    for (int r = 0; r < R; r++) {
        float score = key + lane <= query + r ? scores[r] : -INFINITY;
        float before = largest[r];
        largest[r] = fmaxf(before, warp_max(score));
        float weight = expf(score - largest[r]), correction = expf(before - largest[r]);
        sum[r] = sum[r] * correction + weight; // this lane's keys
        for (int i = 0; i < CHANNELS; i++) { out[r][i] *= correction; }
        weights[r * PLAIN_COLUMNS + lane] = weight;
    }
    __syncwarp();
}

// Row r of the warp times factor[r], for rows below `valid`. largest: see amax_add_rounded.
template <int R, int CHANNELS>
__device__ __forceinline__ void plain_store_rows(floatX *out, int64_t stride, int valid,
                                                 const float (&sums)[R][CHANNELS], const float (&factor)[R], int HS,
                                                 uint32_t *largest) {
    for (int r = 0; r < R; r++) {
        for (int i = 0; i < CHANNELS; i++) {
            int d = i * WARP_SIZE + (int)threadIdx.x % WARP_SIZE;
            if (r >= valid || d >= HS) { continue; }
            out[r * stride + d] = from_float<floatX>(sums[r][i] * factor[r]);
            *largest = amax_join(*largest, sums[r][i] * factor[r]);
        }
    }
}

// out (B,T,C) = attention of qkv (B,T,3C), lse (B,NH,T). One block for each tile of queries of each head.
template <int BOUND>
static __global__ void __launch_bounds__(ATTENTION_BLOCK, PLAIN_BLOCKS)
    attention_forward_plain_kernel(floatX *out, float *lse, const floatX *qkv, int T, int C, int NH, uint32_t *amax) {
    constexpr int R = PlainTile<BOUND>::R, ROWS = PlainTile<BOUND>::rows, CHANNELS = PlainTile<BOUND>::channels;
    extern __shared__ int4 attention_shared[];
    int HS = C / NH, stride = plain_stride(HS), tiles = attention_tiles(T, ROWS), row_of_warp = threadIdx.x / 32 * R;
    float *queries = reinterpret_cast<float *>(attention_shared), *keys = queries + ROWS * stride;
    float *values = keys + PLAIN_COLUMNS * stride, *weights = values + PLAIN_COLUMNS * stride; // weights (ROWS,32)
    const float *rows = queries + row_of_warp * stride;
    weights += row_of_warp * PLAIN_COLUMNS;

    AttentionHead head = attention_head(blockIdx.x / tiles, T, C, NH);
    const floatX *q = qkv + head.qkv, *k = q + C, *v = k + C;
    int first = attention_descending_tile(tiles) * ROWS, query = first + row_of_warp;
    int64_t qkv_stride = 3 * (int64_t)C;
    float scale = 1.0f / sqrtf((float)HS), largest[R], sum[R], sums[R][CHANNELS] = {};
    for (int r = 0; r < R; r++) { largest[r] = -INFINITY, sum[r] = 0.0f; }

    plain_load_tile(queries, q + first * qkv_stride, qkv_stride, ROWS, T - first, HS);
    for (int key = 0; key < min(first + ROWS, T); key += PLAIN_COLUMNS) {
        __syncthreads(); // nobody reads the tile before any more
        plain_load_tile(keys, k + key * qkv_stride, qkv_stride, PLAIN_COLUMNS, T - key, HS);
        plain_load_tile(values, v + key * qkv_stride, qkv_stride, PLAIN_COLUMNS, T - key, HS);
        __syncthreads();
        float scores[R];
        plain_dot_products(scores, rows, keys, HS);
        for (int r = 0; r < R; r++) { scores[r] *= scale; }
        plain_online_softmax_step(weights, largest, sum, sums, scores, query, key);
        plain_add_weighted(sums, weights, values, HS);
    }
    float factor[R];
    for (int r = 0; r < R; r++) {
        sum[r] = warp_sum(sum[r]);
        factor[r] = 1.0f / sum[r];
        if (threadIdx.x % WARP_SIZE == 0 && query + r < T) { lse[head.row + query + r] = largest[r] + logf(sum[r]); }
    }
    uint32_t largest_out = 0;
    plain_store_rows(out + head.out + query * (int64_t)C, C, T - query, sums, factor, HS, &largest_out);
    amax_add_rounded(amax, largest_out);
}

// dq of dqkv (B,T,3C) = its gradient. One block for each tile of queries of each head.
template <int BOUND>
static __global__ void __launch_bounds__(ATTENTION_BLOCK, PLAIN_BLOCKS)
    attention_backward_q_plain_kernel(floatX *dqkv, const floatX *dout, const floatX *qkv, const float *lse,
                                      const float *dots, int T, int C, int NH, uint32_t *amax) {
    constexpr int R = PlainTile<BOUND>::R, ROWS = PlainTile<BOUND>::rows, CHANNELS = PlainTile<BOUND>::channels;
    extern __shared__ int4 attention_shared[];
    int HS = C / NH, stride = plain_stride(HS), tiles = attention_tiles(T, ROWS), row_of_warp = threadIdx.x / 32 * R;
    float *queries = reinterpret_cast<float *>(attention_shared), *douts = queries + ROWS * stride;
    float *keys = douts + ROWS * stride, *values = keys + PLAIN_COLUMNS * stride;
    float *ds = values + PLAIN_COLUMNS * stride + row_of_warp * PLAIN_COLUMNS; // (ROWS,32), this warp's

    AttentionHead head = attention_head(blockIdx.x / tiles, T, C, NH);
    const floatX *q = qkv + head.qkv, *k = q + C, *v = k + C, *dO = dout + head.out;
    int first = attention_descending_tile(tiles) * ROWS, query = first + row_of_warp, lane = threadIdx.x % WARP_SIZE;
    int64_t qkv_stride = 3 * (int64_t)C;
    float scale = 1.0f / sqrtf((float)HS), lse_of_row[R], dot_of_row[R], factor[R], dq[R][CHANNELS] = {};
    for (int r = 0; r < R; r++) {
        lse_of_row[r] = query + r < T ? lse[head.row + query + r] : INFINITY; // p of rows that do not exist is 0
        dot_of_row[r] = query + r < T ? dots[head.row + query + r] : 0.0f;
        factor[r] = scale;
    }

    plain_load_tile(queries, q + first * qkv_stride, qkv_stride, ROWS, T - first, HS);
    plain_load_tile(douts, dO + first * (int64_t)C, C, ROWS, T - first, HS);
    for (int key = 0; key < min(first + ROWS, T); key += PLAIN_COLUMNS) {
        __syncthreads();
        plain_load_tile(keys, k + key * qkv_stride, qkv_stride, PLAIN_COLUMNS, T - key, HS);
        plain_load_tile(values, v + key * qkv_stride, qkv_stride, PLAIN_COLUMNS, T - key, HS);
        __syncthreads();
        float scores[R], dp[R];
        plain_dot_products(scores, queries + row_of_warp * stride, keys, HS);
        plain_dot_products(dp, douts + row_of_warp * stride, values, HS);
        for (int r = 0; r < R; r++) {
            float p = key + lane <= query + r ? expf(scale * scores[r] - lse_of_row[r]) : 0.0f;
            ds[r * PLAIN_COLUMNS + lane] = p * (dp[r] - dot_of_row[r]);
        }
        __syncwarp();
        plain_add_weighted(dq, ds, keys, HS);
    }
    uint32_t largest = 0;
    plain_store_rows(dqkv + head.qkv + query * qkv_stride, qkv_stride, T - query, dq, factor, HS, &largest);
    amax_add_rounded(amax, largest);
}

// dk and dv of dqkv (B,T,3C) = their gradients. One block for each tile of keys of each head.
template <int BOUND>
static __global__ void __launch_bounds__(ATTENTION_BLOCK, PLAIN_BLOCKS)
    attention_backward_kv_plain_kernel(floatX *dqkv, const floatX *dout, const floatX *qkv, const float *lse,
                                       const float *dots, int T, int C, int NH, uint32_t *amax) {
    constexpr int R = PlainTile<BOUND>::R, ROWS = PlainTile<BOUND>::rows, CHANNELS = PlainTile<BOUND>::channels;
    extern __shared__ int4 attention_shared[];
    int HS = C / NH, stride = plain_stride(HS), tiles = attention_tiles(T, ROWS), row_of_warp = threadIdx.x / 32 * R;
    float *keys = reinterpret_cast<float *>(attention_shared), *values = keys + ROWS * stride;
    float *queries = values + ROWS * stride, *douts = queries + PLAIN_COLUMNS * stride;
    float *ps = douts + PLAIN_COLUMNS * stride + row_of_warp * PLAIN_COLUMNS; // (ROWS,32), this warp's
    float *ds = ps + ROWS * PLAIN_COLUMNS;                                    // the same

    AttentionHead head = attention_head(blockIdx.x / tiles, T, C, NH);
    const floatX *q = qkv + head.qkv, *k = q + C, *v = k + C, *dO = dout + head.out;
    int first = attention_ascending_tile(tiles) * ROWS, key = first + row_of_warp, lane = threadIdx.x % WARP_SIZE;
    int64_t qkv_stride = 3 * (int64_t)C;
    float scale = 1.0f / sqrtf((float)HS), dk[R][CHANNELS] = {}, dv[R][CHANNELS] = {}, scales[R], ones[R];
    for (int r = 0; r < R; r++) { scales[r] = scale, ones[r] = 1.0f; }

    plain_load_tile(keys, k + first * qkv_stride, qkv_stride, ROWS, T - first, HS);
    plain_load_tile(values, v + first * qkv_stride, qkv_stride, ROWS, T - first, HS);
    for (int query = first; query < T; query += PLAIN_COLUMNS) {
        __syncthreads();
        plain_load_tile(queries, q + query * qkv_stride, qkv_stride, PLAIN_COLUMNS, T - query, HS);
        plain_load_tile(douts, dO + query * (int64_t)C, C, PLAIN_COLUMNS, T - query, HS);
        __syncthreads();
        float scores[R], dp[R];
        plain_dot_products(scores, keys + row_of_warp * stride, queries, HS);
        plain_dot_products(dp, values + row_of_warp * stride, douts, HS);
        bool exists = query + lane < T;
        float lse_of_column = exists ? lse[head.row + query + lane] : INFINITY; // p of rows that do not exist is 0
        float dot_of_column = exists ? dots[head.row + query + lane] : 0.0f;
        for (int r = 0; r < R; r++) {
            float p = key + r <= query + lane ? expf(scale * scores[r] - lse_of_column) : 0.0f;
            ps[r * PLAIN_COLUMNS + lane] = p;
            ds[r * PLAIN_COLUMNS + lane] = p * (dp[r] - dot_of_column);
        }
        __syncwarp();
        plain_add_weighted(dv, ps, douts, HS);
        plain_add_weighted(dk, ds, queries, HS);
    }
    uint32_t largest = 0;
    plain_store_rows(dqkv + head.qkv + C + key * qkv_stride, qkv_stride, T - key, dk, scales, HS, &largest);
    plain_store_rows(dqkv + head.qkv + 2 * C + key * qkv_stride, qkv_stride, T - key, dv, ones, HS, &largest);
    amax_add_rounded(amax, largest);
}

// `held`: tiles of the block's own rows; `weights`: matrices of a weight for each row and column.
template <int BOUND> static inline size_t plain_shared_bytes(int HS, int held, int weights) {
    int rows = PlainTile<BOUND>::rows;
    int floats = (held * rows + 2 * PLAIN_COLUMNS) * plain_stride(HS) + weights * rows * PLAIN_COLUMNS;
    return (size_t)floats * sizeof(float);
}

template <int BOUND>
static inline void attention_forward_plain_bounded(floatX *out, float *lse, const floatX *qkv, int B, int T, int C,
                                                   int NH, cudaStream_t stream, uint32_t *amax) {
    size_t shared = plain_shared_bytes<BOUND>(C / NH, 1, 1);
    unsigned blocks = attention_blocks(B, NH, T, PlainTile<BOUND>::rows);
    attention_allow_shared(attention_forward_plain_kernel<BOUND>, shared);
    attention_forward_plain_kernel<BOUND><<<blocks, ATTENTION_BLOCK, shared, stream>>>(out, lse, qkv, T, C, NH, amax);
    cuda_check_launch("attention_forward_plain_kernel");
}

// dots: filled by attention_dots.
template <int BOUND>
static inline void attention_backward_plain_bounded(floatX *dqkv, const floatX *dout, const floatX *qkv,
                                                    const float *lse, const float *dots, int B, int T, int C, int NH,
                                                    cudaStream_t stream, uint32_t *amax) {
    size_t shared_kv = plain_shared_bytes<BOUND>(C / NH, 2, 2), shared_q = plain_shared_bytes<BOUND>(C / NH, 2, 1);
    unsigned blocks = attention_blocks(B, NH, T, PlainTile<BOUND>::rows);
    attention_allow_shared(attention_backward_kv_plain_kernel<BOUND>, shared_kv);
    attention_backward_kv_plain_kernel<BOUND>
        <<<blocks, ATTENTION_BLOCK, shared_kv, stream>>>(dqkv, dout, qkv, lse, dots, T, C, NH, amax);
    cuda_check_launch("attention_backward_kv_plain_kernel");
    attention_allow_shared(attention_backward_q_plain_kernel<BOUND>, shared_q);
    attention_backward_q_plain_kernel<BOUND>
        <<<blocks, ATTENTION_BLOCK, shared_q, stream>>>(dqkv, dout, qkv, lse, dots, T, C, NH, amax);
    cuda_check_launch("attention_backward_q_plain_kernel");
}

static inline void attention_forward_plain(floatX *out, float *lse, const floatX *qkv, int B, int T, int C, int NH,
                                           cudaStream_t stream, uint32_t *amax) {
    int HS = C / NH;
    if (HS <= 64) {
        attention_forward_plain_bounded<64>(out, lse, qkv, B, T, C, NH, stream, amax);
    } else if (HS <= 128) {
        attention_forward_plain_bounded<128>(out, lse, qkv, B, T, C, NH, stream, amax);
    } else {
        attention_forward_plain_bounded<256>(out, lse, qkv, B, T, C, NH, stream, amax);
    }
}

static inline void attention_backward_plain(floatX *dqkv, const floatX *dout, const floatX *qkv, const float *lse,
                                            const float *dots, int B, int T, int C, int NH, cudaStream_t stream,
                                            uint32_t *amax) {
    int HS = C / NH;
    if (HS <= 64) {
        attention_backward_plain_bounded<64>(dqkv, dout, qkv, lse, dots, B, T, C, NH, stream, amax);
    } else if (HS <= 128) {
        attention_backward_plain_bounded<128>(dqkv, dout, qkv, lse, dots, B, T, C, NH, stream, amax);
    } else {
        attention_backward_plain_bounded<256>(dqkv, dout, qkv, lse, dots, B, T, C, NH, stream, amax);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The version on tensor cores, for bf16 and head sizes 64, 80, 96 and 128. As above, a block owns a tile of rows and
// goes over the columns, but 16 rows of a warp and 8 columns are one mma: p and ds are computed where the first product
// left them, in the registers of its accumulators, and are there the left operand of the second. They are rounded to
// bf16 for that; everything else is float. The next tile is copied to shared memory while the present one is computed.

#ifndef PRECISION_FP32

// exp(x) = 2^(x * ATTENTION_LOG2E): one multiplication for the scale and this, and one instruction.
#define ATTENTION_LOG2E 1.44269504f

template <int HS> struct TensorTile {
    // From row to row in shared memory: 16 bytes more than the row, an odd multiple of 16, because then the eight rows
    // of a matrix that ldmatrix reads at once meet no bank twice.
    static constexpr int stride = HS + 8;
    // Groups of 16 rows of each warp: the more, the less often columns are read from shared memory, which is what the
    // tensor cores wait for; as many as there are registers for.
    static constexpr int forward_groups = HS <= 64 ? 2 : 1;
    static constexpr int backward_q_groups = HS <= 64 ? 2 : 1;
    static constexpr int backward_kv_groups = HS <= 64 ? 2 : 1;
    // Whether the kernel for dq has registers for its rows of q and dout: then only columns are read from shared
    // memory.
    static constexpr bool backward_q_holds_rows = HS <= 64;
    static constexpr int forward_columns = 64; // of a tile
    // Blocks that a multiprocessor must hold, 0: as the compiler likes. Heads of 128 miss a third block by a few
    // registers if the compiler is not told, and spill none if it is.
    static constexpr int forward_blocks = HS == 128 ? 3 : 0;
    static constexpr int backward_columns = 32;
};

// Where element i of the accumulator of the m-th group of 16 rows and the n-th group of 8 columns stands.
__device__ __forceinline__ int tensor_row(int m, int i) {
    return m * 16 + i / 2 * 8 + (int)threadIdx.x % WARP_SIZE / 4;
}
__device__ __forceinline__ int tensor_column(int n, int i) { return n * 8 + (int)threadIdx.x % 4 * 2 + i % 2; }

// A row of 8 columns is with 4 neighbouring lanes; every one gets the result.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

template <int M, int N> __device__ __forceinline__ void tensor_clear(float (&sums)[M][N][4]) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) { sums[m][n][i] = 0.0f; }
        }
    }
}

// Starts to copy the first WIDTH channels of ROWS rows from global to shared memory by the whole block. The first
// `valid` rows exist, at least one; the others become zeros. WIDTH / 8 is a power of two: then the copies of one thread
// are a constant number of rows apart, and the loop has a constant trip count. An offset within a tile fits in an int.
template <int HS, int ROWS, int WIDTH>
__device__ __forceinline__ void tensor_load_channels(floatX *tile, const floatX *source, int source_stride, int valid) {
    constexpr int PIECES = WIDTH / 8, ROWS_AT_ONCE = ATTENTION_BLOCK / PIECES; // pieces of 16 bytes in a row
    int first = (int)threadIdx.x / PIECES, d = (int)threadIdx.x % PIECES * 8;
#pragma unroll
    for (int n = 0; n < ROWS; n += ROWS_AT_ONCE) {
        int row = first + n;
        if (ROWS % ROWS_AT_ONCE != 0 && row >= ROWS) { break; }
        cp_async_16(tile + row * TensorTile<HS>::stride + d, source + min(row, valid - 1) * source_stride + d,
                    row < valid ? 16 : 0);
    }
}

// The same for all channels of a head. The first 64 and the others each have a width that is a power of two.
template <int HS, int ROWS>
__device__ __forceinline__ void tensor_load_tile(floatX *tile, const floatX *source, int source_stride, int valid) {
    tensor_load_channels<HS, ROWS, 64>(tile, source, source_stride, valid);
    if constexpr (HS > 64) { tensor_load_channels<HS, ROWS, HS - 64>(tile + 64, source + 64, source_stride, valid); }
}

// The left operand of an mma: 16 x 16 values of a tile in shared memory.
template <int HS>
__device__ __forceinline__ void tensor_load_left(uint32_t (&a)[4], const floatX *tile, int row, int d) {
    int lane = threadIdx.x % WARP_SIZE;
    ldmatrix_x4(a, tile + (row + lane % 16) * TensorTile<HS>::stride + d + lane / 16 * 8);
}

// Two groups of 8 columns, n and n + 1: sums += left operand times right operands b[0..1] and b[2..3].
template <int M, int N>
__device__ __forceinline__ void tensor_mma_pair(float (&sums)[M][N][4], int n, const uint32_t (&a)[M][4],
                                                const uint32_t (&b)[4]) {
    const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    for (int m = 0; m < M; m++) {
        mma_m16n8k16_bf16(sums[m][n], a[m], low, sums[m][n]);
        mma_m16n8k16_bf16(sums[m][n + 1], a[m], high, sums[m][n + 1]);
    }
}

// All channels of the warp's 16 M rows from `row` on, to stay in registers.
template <int HS, int M>
__device__ __forceinline__ void tensor_load_rows(uint32_t (&rows)[HS / 16][M][4], const floatX *tile, int row) {
#pragma unroll
    for (int d = 0; d < HS / 16; d++) {
        for (int m = 0; m < M; m++) { tensor_load_left<HS>(rows[d][m], tile, row + m * 16, d * 16); }
    }
}

// products += rows times columns, as far as channels d..d+15 go. a: those channels of the rows.
template <int HS, int M, int N>
__device__ __forceinline__ void tensor_dot_products_step(float (&products)[M][N][4], const uint32_t (&a)[M][4],
                                                         const floatX *columns, int d) {
    int lane = threadIdx.x % WARP_SIZE;
    const floatX *matrix_row = columns + (lane / 16 * 8 + lane % 8) * TensorTile<HS>::stride + d + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, matrix_row + n * 8 * TensorTile<HS>::stride);
        tensor_mma_pair(products, n, a, b);
    }
}

// products[row][column] = the warp's 16 M rows from `row` on times the columns, both in shared memory. STEPS: as many
// steps of 16 channels are unrolled, so that operands are on their way to registers while others are multiplied.
template <int HS, int STEPS, int M, int N>
__device__ __forceinline__ void tensor_dot_products(float (&products)[M][N][4], const floatX *rows, int row,
                                                    const floatX *columns) {
    tensor_clear(products);
#pragma unroll STEPS
    for (int d = 0; d < HS; d += 16) {
        uint32_t a[M][4];
        for (int m = 0; m < M; m++) { tensor_load_left<HS>(a[m], rows, row + m * 16, d); }
        tensor_dot_products_step<HS>(products, a, columns, d);
    }
}

// The same with rows that are in registers.
template <int HS, int M, int N>
__device__ __forceinline__ void tensor_dot_products(float (&products)[M][N][4], const uint32_t (&rows)[HS / 16][M][4],
                                                    const floatX *columns) {
    tensor_clear(products);
#pragma unroll
    for (int d = 0; d < HS / 16; d++) { tensor_dot_products_step<HS>(products, rows[d], columns, d * 16); }
}

__device__ __forceinline__ uint32_t tensor_pack(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof(bits));
    return bits;
}

// sums[row][d] += sum over columns of weights[row][column] * column[d]; the weights are rounded to bf16. Two
// accumulators side by side have the layout of a left operand 16 columns wide.
template <int HS, int M, int N>
__device__ __forceinline__ void tensor_add_weighted(float (&sums)[M][HS / 8][4], const float (&weights)[M][N][4],
                                                    const floatX *columns) {
    int lane = threadIdx.x % WARP_SIZE;
    const floatX *matrix_row = columns + lane % 16 * TensorTile<HS>::stride + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t a[M][4];
        for (int m = 0; m < M; m++) {
            for (int i = 0; i < 4; i++) {
                a[m][i] = tensor_pack(weights[m][n + i / 2][i % 2 * 2], weights[m][n + i / 2][i % 2 * 2 + 1]);
            }
        }
#pragma unroll
        for (int d = 0; d < HS / 8; d += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, matrix_row + n * 8 * TensorTile<HS>::stride + d * 8);
            tensor_mma_pair(sums, d, a, b);
        }
    }
}

template <int M, int N> __device__ __forceinline__ void tensor_scale(float (&sums)[M][N][4], float factor) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) { sums[m][n][i] *= factor; }
        }
    }
}
// sums[row] *= factor[row]
template <int M, int N>
__device__ __forceinline__ void tensor_scale_rows(float (&sums)[M][N][4], const float (&factor)[M][2]) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) { sums[m][n][i] *= factor[m][i / 2]; }
        }
    }
}

// Keys that come after a query are hidden from it: their scores become -inf. query, key: of the first row and column,
// or of the first column and row where rows are keys.
template <bool ROWS_ARE_KEYS, int M, int N>
__device__ __forceinline__ void tensor_hide_later_keys(float (&scores)[M][N][4], int query, int key) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) {
                int distance = tensor_column(n, i) - tensor_row(m, i);
                bool hidden = key - query + (ROWS_ARE_KEYS ? -distance : distance) > 0;
                if (hidden) { scores[m][n][i] = -INFINITY; }
            }
        }
    }
}

// One tile of keys of the online softmax, from scores q.k to weights. `largest` is of scores without the scale;
// sum: of this lane's keys.
template <int M, int N, int CHANNELS>
__device__ __forceinline__ void tensor_online_softmax_step(float (&scores)[M][N][4], float (&largest)[M][2],
                                                           float (&sum)[M][2], float (&out)[M][CHANNELS][4],
                                                           float scale_log2) {
    float correction[M][2];
    for (int m = 0; m < M; m++) {
        for (int half = 0; half < 2; half++) {
            float before = largest[m][half], now = before, tile_sum = 0.0f;
            for (int n = 0; n < N; n++) { now = fmaxf(now, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1])); }
            now = quad_max(now);
            for (int n = 0; n < N; n++) {
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    scores[m][n][i] = exp2_approx(scores[m][n][i] * scale_log2 - now * scale_log2);
                    tile_sum += scores[m][n][i];
                }
            }
            correction[m][half] = exp2_approx((before - now) * scale_log2);
            sum[m][half] = sum[m][half] * correction[m][half] + tile_sum;
            largest[m][half] = now;
        }
    }
    tensor_scale_rows(out, correction);
}

// Stores 16 M rows of a warp, those below `valid`, by way of shared memory of its own, so that 16 bytes go out at once.
// Returns their largest magnitude, where that is wanted, of what this lane stores.
template <int HS, int M>
__device__ __forceinline__ uint32_t tensor_store_rows(floatX *out, int64_t stride, int valid,
                                                      const float (&sums)[M][HS / 8][4], floatX *staging,
                                                      bool wants_amax) {
    int lane = threadIdx.x % WARP_SIZE;
    uint32_t largest = 0;
    __syncwarp(); // what stood there has been read
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < HS / 8; n++) {
            for (int i = 0; i < 4; i += 2) {
                floatX *pair = staging + tensor_row(m, i) * TensorTile<HS>::stride + tensor_column(n, i);
                *reinterpret_cast<uint32_t *>(pair) = tensor_pack(sums[m][n][i], sums[m][n][i + 1]);
            }
        }
    }
    __syncwarp();
    for (int i = lane; i < 16 * M * (HS / 8); i += WARP_SIZE) {
        int row = i / (HS / 8), d = i % (HS / 8) * 8;
        if (row >= valid) { continue; }
        // An int4: nvcc 13.0 stores a Packed128 that comes from shared memory here as four words of 4 bytes.
        int4 piece = *reinterpret_cast<const int4 *>(staging + row * TensorTile<HS>::stride + d);
        *reinterpret_cast<int4 *>(out + row * stride + d) = piece;
        if (wants_amax) { largest = amax_join(largest, packed_from_bits<floatX>(piece)); }
    }
    return largest;
}

// out (B,T,C) = attention of qkv (B,T,3C), lse (B,NH,T). One block for each tile of queries of each head.
template <int HS>
static __global__ void __launch_bounds__(ATTENTION_BLOCK, TensorTile<HS>::forward_blocks)
    attention_forward_tensor_kernel(floatX *out, float *lse, const floatX *qkv, int T, int C, int NH, uint32_t *amax) {
    typedef TensorTile<HS> Tile;
    constexpr int M = Tile::forward_groups, ROWS = 64 * M, KEYS = Tile::forward_columns, TILE = KEYS * Tile::stride;
    extern __shared__ int4 attention_shared[];
    floatX *shared = reinterpret_cast<floatX *>(attention_shared); // two stages of a tile of keys and one of values
    int tiles = attention_tiles(T, ROWS), first = attention_descending_tile(tiles) * ROWS;
    int row_of_warp = (int)threadIdx.x / WARP_SIZE * 16 * M, query = first + row_of_warp;
    AttentionHead head = attention_head(blockIdx.x / tiles, T, C, NH);
    const floatX *q = qkv + head.qkv, *k = q + C, *v = k + C;
    int stride = 3 * C;

    floatX *queries = shared + 2 * TILE; // in the second stage, until they are in registers
    tensor_load_tile<HS, ROWS>(queries, q + first * (int64_t)stride, stride, T - first);
    cp_async_commit();
    tensor_load_tile<HS, KEYS>(shared, k, stride, T);
    tensor_load_tile<HS, KEYS>(shared + TILE, v, stride, T);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    uint32_t rows[HS / 16][M][4];
    tensor_load_rows<HS>(rows, queries, row_of_warp);

    float scale = 1.0f / sqrtf((float)HS), largest[M][2], sum[M][2], sums[M][HS / 8][4];
    tensor_clear(sums);
    for (int m = 0; m < M; m++) {
        for (int half = 0; half < 2; half++) { largest[m][half] = -INFINITY, sum[m][half] = 0.0f; }
    }
    int key_tiles = attention_tiles(min(first + ROWS, T), KEYS);
    for (int tile = 0; tile < key_tiles; tile++) {
        int key = tile * KEYS;
        floatX *keys = shared + tile % 2 * 2 * TILE, *values = keys + TILE;
        cp_async_wait<0>();
        __syncthreads(); // this tile is here, and nobody reads the other stage any more
        if (tile + 1 < key_tiles) {
            int next = key + KEYS;
            floatX *other = shared + (tile + 1) % 2 * 2 * TILE;
            tensor_load_tile<HS, KEYS>(other, k + next * (int64_t)stride, stride, T - next);
            tensor_load_tile<HS, KEYS>(other + TILE, v + next * (int64_t)stride, stride, T - next);
            cp_async_commit();
        }
        if (key >= query + 16 * M) { continue; } // nothing here for this warp
        float scores[M][KEYS / 8][4];
        tensor_dot_products<HS>(scores, rows, keys);
        if (key + KEYS > query + 1) { tensor_hide_later_keys<false>(scores, query, key); }
        tensor_online_softmax_step(scores, largest, sum, sums, scale * ATTENTION_LOG2E);
        tensor_add_weighted<HS>(sums, scores, values);
    }

    float factor[M][2];
    for (int m = 0; m < M; m++) {
        for (int half = 0; half < 2; half++) {
            int row = query + tensor_row(m, 2 * half);
            float total = quad_sum(sum[m][half]);
            factor[m][half] = 1.0f / total;
            if (threadIdx.x % 4 == 0 && row < T) { lse[head.row + row] = scale * largest[m][half] + logf(total); }
        }
    }
    tensor_scale_rows(sums, factor);
    floatX *staging = shared + key_tiles % 2 * 2 * TILE + row_of_warp * Tile::stride; // in the stage that nobody reads
    floatX *rows_out = out + head.out + query * (int64_t)C;
    uint32_t largest_out = tensor_store_rows<HS>(rows_out, C, T - query, sums, staging, amax != NULL);
    amax_add_rounded(amax, largest_out);
}

// scores become p, dp becomes ds, of the rows' queries.
template <int M, int N>
__device__ __forceinline__ void tensor_softmax_backward_of_rows(float (&scores)[M][N][4], float (&dp)[M][N][4],
                                                                const float (&lse_log2)[M][2],
                                                                const float (&dots)[M][2], float scale_log2) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) {
                scores[m][n][i] = exp2_approx(scores[m][n][i] * scale_log2 - lse_log2[m][i / 2]);
                dp[m][n][i] = scores[m][n][i] * (dp[m][n][i] - dots[m][i / 2]);
            }
        }
    }
}

// dq of dqkv (B,T,3C) = its gradient. One block for each tile of queries of each head.
template <int HS>
static __global__ void __launch_bounds__(ATTENTION_BLOCK)
    attention_backward_q_tensor_kernel(floatX *dqkv, const floatX *dout, const floatX *qkv, const float *lse,
                                       const float *dots, int T, int C, int NH, uint32_t *amax) {
    typedef TensorTile<HS> Tile;
    constexpr int M = Tile::backward_q_groups, ROWS = 64 * M, KEYS = Tile::backward_columns;
    constexpr int TILE = KEYS * Tile::stride;
    constexpr bool HOLDS = Tile::backward_q_holds_rows;
    extern __shared__ int4 attention_shared[];
    // Two stages of a tile of keys and one of values. Rows that are held in registers are where the second will be.
    floatX *stages = reinterpret_cast<floatX *>(attention_shared);
    floatX *queries = stages + (HOLDS ? 2 : 4) * TILE, *douts = queries + ROWS * Tile::stride;
    int tiles = attention_tiles(T, ROWS), first = attention_descending_tile(tiles) * ROWS;
    int row_of_warp = (int)threadIdx.x / WARP_SIZE * 16 * M, query = first + row_of_warp;
    AttentionHead head = attention_head(blockIdx.x / tiles, T, C, NH);
    const floatX *q = qkv + head.qkv, *k = q + C, *v = k + C, *dO = dout + head.out;
    int stride = 3 * C;

    tensor_load_tile<HS, ROWS>(queries, q + first * (int64_t)stride, stride, T - first);
    tensor_load_tile<HS, ROWS>(douts, dO + first * (int64_t)C, C, T - first);
    tensor_load_tile<HS, KEYS>(stages, k, stride, T);
    tensor_load_tile<HS, KEYS>(stages + TILE, v, stride, T);
    cp_async_commit();

    float scale = 1.0f / sqrtf((float)HS), lse_log2[M][2], dot_of_row[M][2], dq[M][HS / 8][4];
    tensor_clear(dq);
    for (int m = 0; m < M; m++) {
        for (int half = 0; half < 2; half++) {
            int row = query + tensor_row(m, 2 * half);
            lse_log2[m][half] =
                row < T ? ATTENTION_LOG2E * lse[head.row + row] : INFINITY; // p of rows that do not exist is 0
            dot_of_row[m][half] = row < T ? dots[head.row + row] : 0.0f;
        }
    }
    static_assert(!HOLDS || 2 * KEYS <= ROWS, "the second stage and the place where dq is staged are apart");
    uint32_t query_rows[HS / 16][M][4], dout_rows[HS / 16][M][4];
    if (HOLDS) {
        cp_async_wait<0>();
        __syncthreads();
        tensor_load_rows<HS>(query_rows, queries, row_of_warp);
        tensor_load_rows<HS>(dout_rows, douts, row_of_warp);
    }
    int key_tiles = attention_tiles(min(first + ROWS, T), KEYS);
    for (int tile = 0; tile < key_tiles; tile++) {
        int key = tile * KEYS;
        floatX *keys = stages + tile % 2 * 2 * TILE, *values = keys + TILE;
        cp_async_wait<0>();
        __syncthreads(); // this tile is here, and nobody reads the other stage any more
        if (tile + 1 < key_tiles) {
            int next = key + KEYS;
            floatX *other = stages + (tile + 1) % 2 * 2 * TILE;
            tensor_load_tile<HS, KEYS>(other, k + next * (int64_t)stride, stride, T - next);
            tensor_load_tile<HS, KEYS>(other + TILE, v + next * (int64_t)stride, stride, T - next);
            cp_async_commit();
        }
        if (key >= query + 16 * M) { continue; } // nothing here for this warp
        float scores[M][KEYS / 8][4], ds[M][KEYS / 8][4];
        if (HOLDS) {
            tensor_dot_products<HS>(scores, query_rows, keys);
            tensor_dot_products<HS>(ds, dout_rows, values);
        } else {
            tensor_dot_products<HS, HS / 16>(scores, queries, row_of_warp, keys);
            tensor_dot_products<HS, HS / 16>(ds, douts, row_of_warp, values);
        }
        if (key + KEYS > query + 1) { tensor_hide_later_keys<false>(scores, query, key); }
        tensor_softmax_backward_of_rows(scores, ds, lse_log2, dot_of_row, scale * ATTENTION_LOG2E);
        tensor_add_weighted<HS>(dq, ds, keys);
    }
    tensor_scale(dq, scale);
    floatX *staging = douts + row_of_warp * Tile::stride; // this warp's rows, which nobody else reads
    floatX *dq_rows = dqkv + head.qkv + query * (int64_t)stride;
    amax_add_rounded(amax, tensor_store_rows<HS>(dq_rows, stride, T - query, dq, staging, amax != NULL));
}

// What a tile of N columns needs of its queries besides q and dout, one value from each of 2 N threads: lse from the
// first N, dots from the others. source: where this thread finds its value for query 0. p of queries that do not exist
// becomes 0.
template <int N> __device__ __forceinline__ float tensor_column_statistic(const float *source, int first, int T) {
    if (first + (int)threadIdx.x % N < T && threadIdx.x < 2 * N) { return source[first]; }
    return threadIdx.x < N ? INFINITY : 0.0f;
}

// scores become p of the columns' queries, whose lse is in shared memory.
template <int M, int N>
__device__ __forceinline__ void tensor_probabilities_of_columns(float (&scores)[M][N][4], const float *lse,
                                                                float scale_log2) {
    for (int n = 0; n < N; n++) {
        float2 l = *reinterpret_cast<const float2 *>(lse + tensor_column(n, 0));
        float low = l.x * ATTENTION_LOG2E, high = l.y * ATTENTION_LOG2E;
        for (int m = 0; m < M; m++) {
            for (int i = 0; i < 4; i++) {
                scores[m][n][i] = exp2_approx(scores[m][n][i] * scale_log2 - (i % 2 == 0 ? low : high));
            }
        }
    }
}

// dp becomes ds = p * (dp - dots), the same.
template <int M, int N>
__device__ __forceinline__ void tensor_softmax_backward_of_columns(float (&dp)[M][N][4], const float (&p)[M][N][4],
                                                                   const float *dots) {
    for (int n = 0; n < N; n++) {
        float2 dot = *reinterpret_cast<const float2 *>(dots + tensor_column(n, 0));
        for (int m = 0; m < M; m++) {
            for (int i = 0; i < 4; i++) { dp[m][n][i] = p[m][n][i] * (dp[m][n][i] - (i % 2 == 0 ? dot.x : dot.y)); }
        }
    }
}

// dk and dv of dqkv (B,T,3C) = their gradients. One block for each tile of keys of each head.
template <int HS>
static __global__ void __launch_bounds__(ATTENTION_BLOCK)
    attention_backward_kv_tensor_kernel(floatX *dqkv, const floatX *dout, const floatX *qkv, const float *lse,
                                        const float *dots, int T, int C, int NH, uint32_t *amax) {
    typedef TensorTile<HS> Tile;
    constexpr int M = Tile::backward_kv_groups, ROWS = 64 * M, QUERIES = Tile::backward_columns;
    constexpr int TILE = QUERIES * Tile::stride;
    // While dp is computed, p is in registers, too: 32 rows of a warp have none left for more steps.
    constexpr int DP_STEPS = M == 1 ? HS / 16 : 2;
    extern __shared__ int4 attention_shared[];
    __shared__ float statistics[2][2 * QUERIES];
    floatX *keys = reinterpret_cast<floatX *>(attention_shared), *values = keys + ROWS * Tile::stride;
    floatX *stages = values + ROWS * Tile::stride; // two of a tile of queries and one of dout
    int tiles = attention_tiles(T, ROWS), first = attention_ascending_tile(tiles) * ROWS;
    int row_of_warp = (int)threadIdx.x / WARP_SIZE * 16 * M, key = first + row_of_warp;
    AttentionHead head = attention_head(blockIdx.x / tiles, T, C, NH);
    const floatX *q = qkv + head.qkv, *k = q + C, *v = k + C, *dO = dout + head.out;
    const float *statistic_source = (threadIdx.x < QUERIES ? lse : dots) + head.row + threadIdx.x % QUERIES;
    int stride = 3 * C;

    tensor_load_tile<HS, ROWS>(keys, k + first * (int64_t)stride, stride, T - first);
    tensor_load_tile<HS, ROWS>(values, v + first * (int64_t)stride, stride, T - first);
    tensor_load_tile<HS, QUERIES>(stages, q + first * (int64_t)stride, stride, T - first);
    tensor_load_tile<HS, QUERIES>(stages + TILE, dO + first * (int64_t)C, C, T - first);
    cp_async_commit();
    float statistic = tensor_column_statistic<QUERIES>(statistic_source, first, T);

    float scale = 1.0f / sqrtf((float)HS), dk[M][HS / 8][4], dv[M][HS / 8][4];
    tensor_clear(dk);
    tensor_clear(dv);
    int query_tiles = attention_tiles(T - first, QUERIES);
    for (int tile = 0; tile < query_tiles; tile++) {
        int query = first + tile * QUERIES;
        floatX *queries = stages + tile % 2 * 2 * TILE, *douts = queries + TILE;
        if (threadIdx.x < 2 * QUERIES) { statistics[tile % 2][threadIdx.x] = statistic; }
        cp_async_wait<0>();
        __syncthreads(); // this tile is here, and nobody reads the other stage any more
        if (tile + 1 < query_tiles) {
            int next = query + QUERIES;
            floatX *other = stages + (tile + 1) % 2 * 2 * TILE;
            tensor_load_tile<HS, QUERIES>(other, q + next * (int64_t)stride, stride, T - next);
            tensor_load_tile<HS, QUERIES>(other + TILE, dO + next * (int64_t)C, C, T - next);
            cp_async_commit();
            statistic = tensor_column_statistic<QUERIES>(statistic_source, next, T);
        }
        if (key >= query + QUERIES) { continue; } // nothing here for this warp
        float scores[M][QUERIES / 8][4], ds[M][QUERIES / 8][4];
        tensor_dot_products<HS, HS / 16>(scores, keys, row_of_warp, queries);
        if (query < key + 16 * M - 1) { tensor_hide_later_keys<true>(scores, query, key); }
        tensor_probabilities_of_columns(scores, statistics[tile % 2], scale * ATTENTION_LOG2E);
        tensor_add_weighted<HS>(dv, scores, douts);
        tensor_dot_products<HS, DP_STEPS>(ds, values, row_of_warp, douts);
        tensor_softmax_backward_of_columns(ds, scores, statistics[tile % 2] + QUERIES);
        tensor_add_weighted<HS>(dk, ds, queries);
    }
    tensor_scale(dk, scale);
    // By way of this warp's keys and values, which nobody else reads.
    floatX *dk_rows = dqkv + head.qkv + C + key * (int64_t)stride, *dv_rows = dk_rows + C;
    floatX *dk_staging = keys + row_of_warp * Tile::stride, *dv_staging = values + row_of_warp * Tile::stride;
    uint32_t of_dk = tensor_store_rows<HS>(dk_rows, stride, T - key, dk, dk_staging, amax != NULL);
    uint32_t of_dv = tensor_store_rows<HS>(dv_rows, stride, T - key, dv, dv_staging, amax != NULL);
    amax_add_rounded(amax, max(of_dk, of_dv));
}

template <int HS>
static inline void attention_forward_tensor(floatX *out, float *lse, const floatX *qkv, int B, int T, int C, int NH,
                                            cudaStream_t stream, uint32_t *amax) {
    typedef TensorTile<HS> Tile;
    size_t shared = (size_t)4 * Tile::forward_columns * Tile::stride * sizeof(floatX);
    unsigned blocks = attention_blocks(B, NH, T, 64 * Tile::forward_groups);
    attention_allow_shared(attention_forward_tensor_kernel<HS>, shared);
    attention_forward_tensor_kernel<HS><<<blocks, ATTENTION_BLOCK, shared, stream>>>(out, lse, qkv, T, C, NH, amax);
    cuda_check_launch("attention_forward_tensor_kernel");
}

// Two tiles of the block's rows, two stages of two tiles of columns; the second stage shares the rows' place if they
// are held in registers.
template <int HS> static inline size_t tensor_backward_shared_bytes(int rows, bool holds_rows) {
    int tiles = holds_rows ? 2 : 4;
    return (size_t)(2 * rows + tiles * TensorTile<HS>::backward_columns) * TensorTile<HS>::stride * sizeof(floatX);
}

// dots: filled by attention_dots.
template <int HS>
static inline void attention_backward_tensor(floatX *dqkv, const floatX *dout, const floatX *qkv, const float *lse,
                                             const float *dots, int B, int T, int C, int NH, cudaStream_t stream,
                                             uint32_t *amax) {
    typedef TensorTile<HS> Tile;
    int rows_kv = 64 * Tile::backward_kv_groups, rows_q = 64 * Tile::backward_q_groups;
    size_t shared_kv = tensor_backward_shared_bytes<HS>(rows_kv, false);
    size_t shared_q = tensor_backward_shared_bytes<HS>(rows_q, Tile::backward_q_holds_rows);
    attention_allow_shared(attention_backward_kv_tensor_kernel<HS>, shared_kv);
    attention_backward_kv_tensor_kernel<HS>
        <<<attention_blocks(B, NH, T, rows_kv), ATTENTION_BLOCK, shared_kv, stream>>>(dqkv, dout, qkv, lse, dots, T, C,
                                                                                      NH, amax);
    cuda_check_launch("attention_backward_kv_tensor_kernel");
    attention_allow_shared(attention_backward_q_tensor_kernel<HS>, shared_q);
    attention_backward_q_tensor_kernel<HS><<<attention_blocks(B, NH, T, rows_q), ATTENTION_BLOCK, shared_q, stream>>>(
        dqkv, dout, qkv, lse, dots, T, C, NH, amax);
    cuda_check_launch("attention_backward_q_tensor_kernel");
}

#endif // PRECISION_FP32

// ---------------------------------------------------------------------------------------------------------------------
// What the model calls

static inline bool attention_uses_tensor_cores(int HS) {
#ifdef PRECISION_FP32
    (void)HS;
    return false;
#else
    return HS == 64 || HS == 80 || HS == 96 || HS == 128;
#endif
}

// C % 8 == 0: rows are 16-byte aligned.
static inline void attention_require(int B, int T, int C, int NH) {
    cuda_require(B > 0 && T > 0 && NH > 0 && C > 0);
    cuda_require(C % 8 == 0 && C % NH == 0 && C / NH <= ATTENTION_MAX_HEAD_SIZE);
}

// out (B,T,C) and lse (B,NH,T) = attention of qkv (B,T,3C). amax: of out, see amax_add_rounded.
static inline void attention_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int C, int NH,
                                     cudaStream_t stream, uint32_t *amax = NULL) {
    attention_require(B, T, C, NH);
    switch (attention_uses_tensor_cores(C / NH) ? C / NH : 0) {
#ifndef PRECISION_FP32
    case 64: attention_forward_tensor<64>(out, lse, qkv, B, T, C, NH, stream, amax); break;
    case 80: attention_forward_tensor<80>(out, lse, qkv, B, T, C, NH, stream, amax); break;
    case 96: attention_forward_tensor<96>(out, lse, qkv, B, T, C, NH, stream, amax); break;
    case 128: attention_forward_tensor<128>(out, lse, qkv, B, T, C, NH, stream, amax); break;
#endif
    default: attention_forward_plain(out, lse, qkv, B, T, C, NH, stream, amax);
    }
}

// dqkv (B,T,3C) = the gradient, from dout (B,T,C) and the forward's input and outputs. dots (B,NH,T): scratch. amax: of
// dqkv, see amax_add_rounded.
static inline void attention_backward(floatX *dqkv, const floatX *dout, const floatX *qkv, const floatX *out,
                                      const float *lse, float *dots, int B, int T, int C, int NH, cudaStream_t stream,
                                      uint32_t *amax = NULL) {
    attention_require(B, T, C, NH);
    attention_dots(dots, out, dout, B, T, C, NH, stream);
    switch (attention_uses_tensor_cores(C / NH) ? C / NH : 0) {
#ifndef PRECISION_FP32
    case 64: attention_backward_tensor<64>(dqkv, dout, qkv, lse, dots, B, T, C, NH, stream, amax); break;
    case 80: attention_backward_tensor<80>(dqkv, dout, qkv, lse, dots, B, T, C, NH, stream, amax); break;
    case 96: attention_backward_tensor<96>(dqkv, dout, qkv, lse, dots, B, T, C, NH, stream, amax); break;
    case 128: attention_backward_tensor<128>(dqkv, dout, qkv, lse, dots, B, T, C, NH, stream, amax); break;
#endif
    default: attention_backward_plain(dqkv, dout, qkv, lse, dots, B, T, C, NH, stream, amax);
    }
}

#endif // LLMC_ATTENTION_CUH
