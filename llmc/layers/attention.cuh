// Causal multi-head attention (Vaswani et al. 2017) without a T x T matrix. Each head has rows q, k, v of HS values,
// and scale = 1/sqrt(HS). Query heads may share k and v in groups (AttentionShape). i and j are positions: a rank may
// have some of the queries and all keys (AttentionContext).
//   p[i,j] = softmax over j <= i of (scale * q[i].k[j]);  out[i] = sum over j of p[i,j] v[j]
//   lse[i] = log(sum over j <= i of exp(scale * q[i].k[j]))
// The forward goes over the keys tile by tile. For each query it keeps the largest score so far (m), the sum of
// exp(score - m) (l), and the sum of exp(score - m) v. When a larger score comes, it scales both sums down
// (online softmax, Milakov and Gimelshein 2018).
//
// The backward computes p again from lse. With do = dout:
//   delta[i] = do[i].out[i];  dp[i,j] = do[i].v[j];  ds[i,j] = p[i,j] * (dp[i,j] - delta[i])
//   dq[i] = scale * sum over j of ds[i,j] k[j]
//   dk[j] = scale * sum over i of ds[i,j] q[i];  dv[j] = sum over i of p[i,j] do[i]
// dk and dv are also sums over the query heads of a group. Blocks that own queries sum dq, and blocks that own keys of
// a KV head sum dk and dv. So p is computed twice. Each sum has one owner and a fixed order, so the backward is
// deterministic without atomics.
//
// Each kernel has two versions: a SIMT kernel here, and an MMA kernel in attention_mma.cuh. A simt_ function and the
// mma_ function of equal name do equal work, so that the two versions can be read side by side.
#ifndef LLMC_ATTENTION_CUH
#define LLMC_ATTENTION_CUH

#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/layers/attention_mma.cuh"
#include "llmc/layers/attention_tiles.cuh"

#define ATTENTION_MAX_HEAD_SIZE 256

// Refuses a model whose heads the kernels cannot take. where: begins the message, as in model_check_config. k and v
// begin at multiples of 16 bytes in a row, because linear layers write them there.
static inline bool attention_check(const char *where, const AttentionShape &s, Error *error) {
    if (s.HS > ATTENTION_MAX_HEAD_SIZE) {
        return fail(error, "%s: heads of %d channels; the GPU trainer has attention for up to %d", where, s.HS,
                    ATTENTION_MAX_HEAD_SIZE);
    }
    return s.KV * s.HS % 8 == 0 ||
           fail(error, "%s: keys of %d channels (%d heads of %d); the GPU trainer takes multiples of 8", where,
                s.KV * s.HS, s.KV, s.HS);
}

// delta (B,NH,T) = the dot products of out and dout (B,T,NH*HS), head by head. Eight lanes take one head of one row.
// Loads have 16 bytes if heads begin at multiples of 16 bytes.
#define ATTENTION_DELTA_LANES 8
static __global__ void attention_delta_kernel(float *delta, const floatX *out, const floatX *dout,
                                              int64_t heads_of_rows, int T, int NH, int HS) {
    int64_t index = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / ATTENTION_DELTA_LANES; // (b * T + t) * NH + h
    int lane = threadIdx.x % ATTENTION_DELTA_LANES;
    bool exists = index < heads_of_rows;
    const floatX *x = out + index * HS, *y = dout + index * HS;
    float sum = 0.0f;
    if (exists && HS % x128::size == 0) {
        for (int d = lane * x128::size; d < HS; d += ATTENTION_DELTA_LANES * x128::size) {
            x128 a = load128(x + d), b = load128(y + d);
            for (int i = 0; i < x128::size; i++) { sum += to_float(a[i]) * to_float(b[i]); }
        }
    } else if (exists) {
        for (int d = lane; d < HS; d += ATTENTION_DELTA_LANES) { sum += to_float(x[d]) * to_float(y[d]); }
    }
    for (int offset = ATTENTION_DELTA_LANES / 2; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    }
    if (exists && lane == 0) {
        int64_t h = index % NH, t = index / NH % T, b = index / NH / T;
        delta[(b * NH + h) * T + t] = sum;
    }
}

static inline void attention_delta(float *delta, const floatX *out, const floatX *dout, const AttentionShape &s,
                                   cudaStream_t stream) {
    int64_t heads_of_rows = (int64_t)s.B * s.T * s.NH;
    unsigned blocks = blocks_for(heads_of_rows, ATTENTION_BLOCK / ATTENTION_DELTA_LANES);
    attention_delta_kernel<<<blocks, ATTENTION_BLOCK, 0, stream>>>(delta, out, dout, heads_of_rows, s.T, s.NH, s.HS);
    cuda_check_launch("attention_delta_kernel");
}

// ---- SIMT kernels ----
//
// They take both precisions and any head size up to 256. A block owns a tile of rows. Rows are queries and columns are
// keys, but in the kernel for dk and dv rows are keys and columns are the queries of a group's heads in turn. Each warp
// owns R rows and goes over the columns, 32 at a time. A lane takes one column to compute p and ds, and the channels
// lane, lane + 32, ... to multiply them. Shared memory holds the block's rows and the tile of columns as floats. Memory
// is read and written value by value, because heads of odd sizes are not aligned. All arithmetic is in float.

#define SIMT_COLUMNS WARP_SIZE

// BOUND: the head size rounded up to 64, 128 or 256. R: rows of a warp, as many as registers and shared memory hold.
template <int BOUND> struct SimtTile {
    static constexpr int R = BOUND <= 128 ? 4 : 2;
    static constexpr int rows = ATTENTION_WARPS * R;
    // A multiprocessor holds at least so many; the compiler's own choice is more blocks and spilled registers.
    static constexpr int blocks = BOUND <= 64 ? 4 : 3;
    static constexpr int channels = BOUND / WARP_SIZE; // of a lane
};

// Floats from row to row in shared memory: HS rounded up to an odd multiple of 4. So eight lanes that read 16 bytes
// each of eight rows read different banks. The padding is zeros.
__host__ __device__ __forceinline__ int simt_stride(int HS) {
    int quads = (HS + 3) / 4;
    return 4 * (quads + 1 - quads % 2);
}

// The block copies `count` rows from global to shared memory. Rows from `valid` on, and the padding, become zeros.
__device__ __forceinline__ void simt_load_tile(float *tile, const floatX *source, int source_stride, int count,
                                               int valid, int HS) {
    int lane = threadIdx.x % WARP_SIZE, stride = simt_stride(HS);
    for (int row = threadIdx.x / WARP_SIZE; row < count; row += ATTENTION_WARPS) {
        for (int d = lane; d < stride; d += WARP_SIZE) {
            bool exists = row < valid && d < HS;
            tile[row * stride + d] = exists ? to_float(source[row * source_stride + d]) : 0.0f;
        }
    }
}

// products[r] = row r of the warp's rows times this lane's column.
template <int R>
__device__ __forceinline__ void simt_dot_products(float (&products)[R], const float *rows, const float *columns,
                                                  int HS) {
    int stride = simt_stride(HS);
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
__device__ __forceinline__ void simt_add_weighted(float (&sums)[R][CHANNELS], const float *weights,
                                                  const float *columns, int HS) {
    int lane = threadIdx.x % WARP_SIZE, stride = simt_stride(HS);
    for (int j = 0; j < SIMT_COLUMNS; j += 4) {
        float4 w[R];
        for (int r = 0; r < R; r++) { w[r] = *reinterpret_cast<const float4 *>(weights + r * SIMT_COLUMNS + j); }
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

// Turns the scores of one tile of keys into weights (online softmax). scores: of this lane's key; weights (R,32). Every
// query sees key 0, so `largest` is finite after the first tile.
template <int R, int CHANNELS>
__device__ __forceinline__ void simt_online_softmax_step(float *weights, float (&largest)[R], float (&sum)[R],
                                                         float (&out)[R][CHANNELS], const float (&scores)[R], int query,
                                                         int key) {
    int lane = threadIdx.x % WARP_SIZE;
    for (int r = 0; r < R; r++) {
        float score = key + lane <= query + r ? scores[r] : -INFINITY;
        float before = largest[r];
        largest[r] = fmaxf(before, warp_max(score));
        float weight = expf(score - largest[r]), correction = expf(before - largest[r]);
        sum[r] = sum[r] * correction + weight; // over this lane's keys
        for (int i = 0; i < CHANNELS; i++) { out[r][i] *= correction; }
        weights[r * SIMT_COLUMNS + lane] = weight;
    }
    __syncwarp();
}

// Stores row r of the warp times factor[r], for r < valid. Returns this lane's largest magnitude, for amax_add_rounded.
template <int R, int CHANNELS>
__device__ __forceinline__ uint32_t simt_store_rows(floatX *out, int64_t stride, int valid,
                                                    const float (&sums)[R][CHANNELS], const float (&factor)[R],
                                                    int HS) {
    uint32_t largest = 0;
    for (int r = 0; r < R; r++) {
        for (int i = 0; i < CHANNELS; i++) {
            int d = i * WARP_SIZE + (int)threadIdx.x % WARP_SIZE;
            if (r >= valid || d >= HS) { continue; }
            out[r * stride + d] = from_float<floatX>(sums[r][i] * factor[r]);
            largest = amax_join(largest, sums[r][i] * factor[r]);
        }
    }
    return largest;
}

// out = attention of the queries of qkv to the keys of the context, and lse (AttentionShape). One block for each tile
// of queries of each query head.
template <int BOUND>
static __global__ void __launch_bounds__(ATTENTION_BLOCK, SimtTile<BOUND>::blocks)
    attention_forward_simt_kernel(floatX *out, float *lse, const floatX *qkv, AttentionShape shape,
                                  AttentionContext context, uint32_t *amax) {
    constexpr int R = SimtTile<BOUND>::R, ROWS = SimtTile<BOUND>::rows, CHANNELS = SimtTile<BOUND>::channels;
    extern __shared__ int4 attention_shared[];
    int HS = shape.HS, stride = simt_stride(HS), row_of_warp = threadIdx.x / 32 * R;
    float *queries = reinterpret_cast<float *>(attention_shared), *keys = queries + ROWS * stride;
    float *values = keys + SIMT_COLUMNS * stride, *weights = values + SIMT_COLUMNS * stride; // weights (ROWS,32)
    const float *rows = queries + row_of_warp * stride;
    weights += row_of_warp * SIMT_COLUMNS;

    AttentionQueries own = attention_queries(shape, context, ROWS);
    AttentionHead head = own.head;
    const floatX *q = qkv + head.q, *k = context.kv + attention_keys(own.index, shape, context), *v = k + shape.KV * HS;
    int first = own.first, end = own.end, query = first + row_of_warp;
    int q_stride = attention_width(shape), kv_stride = context.stride, out_stride = shape.NH * HS;
    float scale = 1.0f / sqrtf((float)HS), largest[R], sum[R], sums[R][CHANNELS] = {};
    for (int r = 0; r < R; r++) { largest[r] = -INFINITY, sum[r] = 0.0f; }

    simt_load_tile(queries, q + first * (int64_t)q_stride, q_stride, ROWS, end - first, HS);
    for (int key = 0; key < min(first + ROWS, end); key += SIMT_COLUMNS) {
        __syncthreads(); // all warps have read the previous tile
        simt_load_tile(keys, k + key * (int64_t)kv_stride, kv_stride, SIMT_COLUMNS, end - key, HS);
        simt_load_tile(values, v + key * (int64_t)kv_stride, kv_stride, SIMT_COLUMNS, end - key, HS);
        __syncthreads();
        float scores[R];
        simt_dot_products(scores, rows, keys, HS);
        for (int r = 0; r < R; r++) { scores[r] *= scale; }
        simt_online_softmax_step(weights, largest, sum, sums, scores, query, key);
        simt_add_weighted(sums, weights, values, HS);
    }
    float factor[R];
    for (int r = 0; r < R; r++) {
        sum[r] = warp_sum(sum[r]);
        factor[r] = 1.0f / sum[r];
        if (threadIdx.x % WARP_SIZE == 0 && query + r < end) { lse[head.row + query + r] = largest[r] + logf(sum[r]); }
    }
    uint32_t largest_out =
        simt_store_rows(out + head.out + query * (int64_t)out_stride, out_stride, end - query, sums, factor, HS);
    amax_add_rounded(amax, largest_out);
}

// dq of dqkv = its gradient. One block for each tile of queries of each query head.
template <int BOUND>
static __global__ void __launch_bounds__(ATTENTION_BLOCK, SimtTile<BOUND>::blocks)
    attention_backward_q_simt_kernel(floatX *dqkv, const floatX *dout, const floatX *qkv, const float *lse,
                                     const float *delta, AttentionShape shape, AttentionContext context) {
    constexpr int R = SimtTile<BOUND>::R, ROWS = SimtTile<BOUND>::rows, CHANNELS = SimtTile<BOUND>::channels;
    extern __shared__ int4 attention_shared[];
    int HS = shape.HS, stride = simt_stride(HS), row_of_warp = threadIdx.x / 32 * R;
    float *queries = reinterpret_cast<float *>(attention_shared), *douts = queries + ROWS * stride;
    float *keys = douts + ROWS * stride, *values = keys + SIMT_COLUMNS * stride;
    float *ds = values + SIMT_COLUMNS * stride + row_of_warp * SIMT_COLUMNS; // (R,32): this warp's part of (ROWS,32)

    AttentionQueries own = attention_queries(shape, context, ROWS);
    AttentionHead head = own.head;
    const floatX *q = qkv + head.q, *k = context.kv + attention_keys(own.index, shape, context), *v = k + shape.KV * HS;
    const floatX *dO = dout + head.out;
    int first = own.first, end = own.end, query = first + row_of_warp, lane = threadIdx.x % WARP_SIZE;
    int q_stride = attention_width(shape), kv_stride = context.stride, out_stride = shape.NH * HS;
    float scale = 1.0f / sqrtf((float)HS), lse_of_row[R], delta_of_row[R], factor[R], dq[R][CHANNELS] = {};
    for (int r = 0; r < R; r++) {
        lse_of_row[r] = query + r < end ? lse[head.row + query + r] : INFINITY; // p = 0 for rows that do not exist
        delta_of_row[r] = query + r < end ? delta[head.row + query + r] : 0.0f;
        factor[r] = scale;
    }

    simt_load_tile(queries, q + first * (int64_t)q_stride, q_stride, ROWS, end - first, HS);
    simt_load_tile(douts, dO + first * (int64_t)out_stride, out_stride, ROWS, end - first, HS);
    for (int key = 0; key < min(first + ROWS, end); key += SIMT_COLUMNS) {
        __syncthreads();
        simt_load_tile(keys, k + key * (int64_t)kv_stride, kv_stride, SIMT_COLUMNS, end - key, HS);
        simt_load_tile(values, v + key * (int64_t)kv_stride, kv_stride, SIMT_COLUMNS, end - key, HS);
        __syncthreads();
        float scores[R], dp[R];
        simt_dot_products(scores, queries + row_of_warp * stride, keys, HS);
        simt_dot_products(dp, douts + row_of_warp * stride, values, HS);
        for (int r = 0; r < R; r++) {
            float p = key + lane <= query + r ? expf(scale * scores[r] - lse_of_row[r]) : 0.0f;
            ds[r * SIMT_COLUMNS + lane] = p * (dp[r] - delta_of_row[r]);
        }
        __syncwarp();
        simt_add_weighted(dq, ds, keys, HS);
    }
    simt_store_rows(dqkv + head.q + query * (int64_t)q_stride, q_stride, end - query, dq, factor, HS);
}

// dkv = the gradient of the context's kv from these queries, with its strides. One block for each tile of keys of each
// KV head. It goes over the group's query heads from the first to the last, and over the queries of each, and sums dk
// and dv in registers all the way. Keys that no query sees get zeros.
template <int BOUND>
static __global__ void __launch_bounds__(ATTENTION_BLOCK, SimtTile<BOUND>::blocks)
    attention_backward_kv_simt_kernel(floatX *dkv, const floatX *dout, const floatX *qkv, const float *lse,
                                      const float *delta, AttentionShape shape, AttentionContext context) {
    constexpr int R = SimtTile<BOUND>::R, ROWS = SimtTile<BOUND>::rows, CHANNELS = SimtTile<BOUND>::channels;
    extern __shared__ int4 attention_shared[];
    int T = context.T, HS = shape.HS, stride = simt_stride(HS), tiles = attention_tiles(T, ROWS);
    int row_of_warp = threadIdx.x / 32 * R;
    float *keys = reinterpret_cast<float *>(attention_shared), *values = keys + ROWS * stride;
    float *queries = values + ROWS * stride, *douts = queries + SIMT_COLUMNS * stride;
    float *ps = douts + SIMT_COLUMNS * stride + row_of_warp * SIMT_COLUMNS; // (R,32): this warp's part of (ROWS,32)
    float *ds = ps + ROWS * SIMT_COLUMNS;                                   // (R,32)

    int group = shape.NH / shape.KV; // neighbouring query heads, the first is `head`
    int64_t index = (int64_t)(blockIdx.x / tiles) * group;
    AttentionHead head = attention_head(index, shape);
    const floatX *q = qkv + head.q, *k = context.kv + attention_keys(index, shape, context), *v = k + shape.KV * HS;
    const floatX *dO = dout + head.out;
    int first = attention_ascending_tile(tiles) * ROWS, key = first + row_of_warp, lane = threadIdx.x % WARP_SIZE;
    int q_stride = attention_width(shape), kv_stride = context.stride, out_stride = shape.NH * HS;
    float scale = 1.0f / sqrtf((float)HS), dk[R][CHANNELS] = {}, dv[R][CHANNELS] = {}, scales[R], ones[R];
    for (int r = 0; r < R; r++) { scales[r] = scale, ones[r] = 1.0f; }

    simt_load_tile(keys, k + first * (int64_t)kv_stride, kv_stride, ROWS, T - first, HS);
    simt_load_tile(values, v + first * (int64_t)kv_stride, kv_stride, ROWS, T - first, HS);
    for (; group > 0; group--, q += HS, dO += HS, head.row += shape.T) {
        for (int row = attention_first_row(first, context), next; row < shape.T; row = next) {
            int end = attention_chunk_end(row, shape, context), query = row + attention_shift(row, context);
            next = min(row + SIMT_COLUMNS, end);
            __syncthreads();
            simt_load_tile(queries, q + row * (int64_t)q_stride, q_stride, SIMT_COLUMNS, end - row, HS);
            simt_load_tile(douts, dO + row * (int64_t)out_stride, out_stride, SIMT_COLUMNS, end - row, HS);
            __syncthreads();
            float scores[R], dp[R];
            simt_dot_products(scores, keys + row_of_warp * stride, queries, HS);
            simt_dot_products(dp, values + row_of_warp * stride, douts, HS);
            bool exists = row + lane < end;
            float lse_of_column = exists ? lse[head.row + row + lane] : INFINITY; // p = 0 for rows that do not exist
            float delta_of_column = exists ? delta[head.row + row + lane] : 0.0f;
            for (int r = 0; r < R; r++) {
                float p = key + r <= query + lane ? expf(scale * scores[r] - lse_of_column) : 0.0f;
                ps[r * SIMT_COLUMNS + lane] = p;
                ds[r * SIMT_COLUMNS + lane] = p * (dp[r] - delta_of_column);
            }
            __syncwarp();
            simt_add_weighted(dv, ps, douts, HS);
            simt_add_weighted(dk, ds, queries, HS);
        }
    }
    floatX *dk_rows = dkv + (k - context.kv) + key * (int64_t)kv_stride, *dv_rows = dk_rows + shape.KV * HS;
    simt_store_rows(dk_rows, kv_stride, T - key, dk, scales, HS);
    simt_store_rows(dv_rows, kv_stride, T - key, dv, ones, HS);
}

// The kernels for heads of up to BOUND channels. Each has the rows of a block and the shared memory that it needs.
template <int BOUND> struct SimtAttention {
    static constexpr int forward_rows = SimtTile<BOUND>::rows, q_rows = forward_rows, kv_rows = forward_rows;
    static constexpr auto forward = attention_forward_simt_kernel<BOUND>;
    static constexpr auto backward_q = attention_backward_q_simt_kernel<BOUND>;
    static constexpr auto backward_kv = attention_backward_kv_simt_kernel<BOUND>;

    // held: tiles (rows,HS) of the block's own rows. weights: matrices (rows,32), p or ds.
    static size_t bytes(int HS, int held, int weights) {
        int rows = SimtTile<BOUND>::rows;
        int floats = (held * rows + 2 * SIMT_COLUMNS) * simt_stride(HS) + weights * rows * SIMT_COLUMNS;
        return (size_t)floats * sizeof(float);
    }
    static size_t forward_bytes(int HS) { return bytes(HS, 1, 1); }
    static size_t q_bytes(int HS) { return bytes(HS, 2, 1); }
    static size_t kv_bytes(int HS) { return bytes(HS, 2, 2); }
};

// ---- The model's entry points ----

static inline bool attention_uses_tensor_cores(int HS) {
    return !PRECISION_IS_FP32 && (HS == 64 || HS == 80 || HS == 96 || HS == 128);
}

// Rows need no alignment: tensor cores take heads of multiples of 16 values only.
static inline void attention_require(const AttentionShape &s) {
    cuda_require(s.B > 0 && s.T > 0 && s.KV > 0 && s.NH > 0 && s.NH % s.KV == 0);
    cuda_require(s.HS > 0 && s.HS <= ATTENTION_MAX_HEAD_SIZE);
}

// Calls work(kernels) with the kernels for a head size. simt: never with MMA kernels.
template <class Work> static inline void attention_with_kernels_for(int HS, bool simt, const Work &work) {
    switch (attention_uses_tensor_cores(HS) && !simt ? HS : 0) {
#ifndef PRECISION_FP32
    case 64: return work(MmaAttention<64>());
    case 80: return work(MmaAttention<80>());
    case 96: return work(MmaAttention<96>());
    case 128: return work(MmaAttention<128>());
#endif
    default: break;
    }
    if (HS <= 64) { return work(SimtAttention<64>()); }
    if (HS <= 128) { return work(SimtAttention<128>()); }
    work(SimtAttention<256>());
}

// out and lse = attention of the queries of qkv to the context's keys. amax: of out, see amax_add_rounded; NULL: not
// wanted. simt: takes the SIMT kernels for any head size, as a test does.
static inline void attention_forward(floatX *out, float *lse, const floatX *qkv, const AttentionContext &context,
                                     const AttentionShape &shape, cudaStream_t stream, uint32_t *amax = NULL,
                                     bool simt = false) {
    attention_require(shape);
    attention_with_kernels_for(shape.HS, simt, [=](auto kernels) {
        attention_launch(kernels.forward, shape.B * (int64_t)shape.NH,
                         attention_query_tiles(shape, context, kernels.forward_rows), kernels.forward_bytes(shape.HS),
                         stream, out, lse, qkv, shape, context, amax);
        cuda_check_launch("attention's forward kernel");
    });
}

// The q part of dqkv = the gradient of the queries, and dkv = what they add to the gradient of the context's kv, with
// kv's strides. From dout and the forward's qkv, out and lse. delta: scratch. simt: see attention_forward.
static inline void attention_backward(floatX *dqkv, floatX *dkv, const floatX *dout, const floatX *qkv,
                                      const AttentionContext &context, const floatX *out, const float *lse,
                                      float *delta, const AttentionShape &shape, cudaStream_t stream,
                                      bool simt = false) {
    attention_require(shape);
    attention_delta(delta, out, dout, shape, stream);
    attention_with_kernels_for(shape.HS, simt, [=](auto kernels) {
        attention_launch(kernels.backward_kv, shape.B * (int64_t)shape.KV, attention_tiles(context.T, kernels.kv_rows),
                         kernels.kv_bytes(shape.HS), stream, dkv, dout, qkv, lse, delta, shape, context);
        cuda_check_launch("attention's kernel for dk and dv");
        attention_launch(kernels.backward_q, shape.B * (int64_t)shape.NH,
                         attention_query_tiles(shape, context, kernels.q_rows), kernels.q_bytes(shape.HS), stream, dqkv,
                         dout, qkv, lse, delta, shape, context);
        cuda_check_launch("attention's kernel for dq");
    });
}

// The two with the keys of qkv itself: out and lse = attention of qkv, and dqkv = the gradient of qkv.
static inline void attention_forward(floatX *out, float *lse, const floatX *qkv, const AttentionShape &shape,
                                     cudaStream_t stream, uint32_t *amax = NULL, bool simt = false) {
    attention_forward(out, lse, qkv, attention_own_context(qkv, shape), shape, stream, amax, simt);
}
static inline void attention_backward(floatX *dqkv, const floatX *dout, const floatX *qkv, const floatX *out,
                                      const float *lse, float *delta, const AttentionShape &shape, cudaStream_t stream,
                                      bool simt = false) {
    attention_backward(dqkv, dqkv + shape.NH * shape.HS, dout, qkv, attention_own_context(qkv, shape), out, lse, delta,
                       shape, stream, simt);
}

#endif // LLMC_ATTENTION_CUH
