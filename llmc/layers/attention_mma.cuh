// Attention (attention.cuh) on tensor cores, for bf16 and head sizes 64, 80, 96 and 128.
//
// A block owns a tile of rows and goes over the columns, like the SIMT kernels. One mma covers 16 rows and 8 columns.
// The first product leaves its accumulators in registers. The kernel turns them into p and ds there, rounds p and ds to
// bf16, and feeds them to the second product as its left operand. Everything else is float. The block computes one tile
// while it copies the next tile to shared memory.
#ifndef LLMC_ATTENTION_MMA_CUH
#define LLMC_ATTENTION_MMA_CUH

#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/cuda/ptx.cuh"
#include "llmc/layers/attention_tiles.cuh"

#ifndef PRECISION_FP32

// exp(x) = 2^(x * ATTENTION_LOG2E). The scale and this factor cost one multiplication, and 2^x is one instruction.
#define ATTENTION_LOG2E 1.44269504f

template <int HS> struct MmaTile {
    // Values from row to row in shared memory. The 8 extra values (16 bytes) make the distance an odd multiple of 16
    // bytes. So the eight rows that ldmatrix reads at once lie in different banks.
    static constexpr int stride = HS + 8;
    // Groups of 16 rows of each warp. The tensor cores wait for columns from shared memory. More groups read the
    // columns less often, so a warp has as many groups as its registers hold.
    static constexpr int forward_groups = HS <= 64 ? 2 : 1;
    static constexpr int backward_q_groups = HS <= 64 ? 2 : 1;
    static constexpr int backward_kv_groups = HS <= 64 ? 2 : 1;
    // Whether the kernel for dq keeps its rows of q and dout in registers. Then shared memory serves only columns.
    static constexpr bool backward_q_holds_rows = HS <= 64;
    static constexpr int forward_columns = 64; // of a tile
    // Blocks that a multiprocessor must hold; 0: the compiler chooses. Without these numbers the kernels use a few
    // registers too many for the last block. With these numbers the kernels spill no registers.
    static constexpr int forward_blocks = HS == 128 ? 3 : 0;
    static constexpr int backward_q_blocks = HS == 80 ? 4 : 0;
    static constexpr int backward_kv_blocks = HS == 80 || HS == 96 ? 3 : 0;
    static constexpr int backward_columns = 32;
};

// These return the row and column of accumulator element i of the m-th group of 16 rows and the n-th group of 8
// columns.
__device__ __forceinline__ int mma_row(int m, int i) { return m * 16 + i / 2 * 8 + (int)threadIdx.x % WARP_SIZE / 4; }
__device__ __forceinline__ int mma_column(int n, int i) { return n * 8 + (int)threadIdx.x % 4 * 2 + i % 2; }

// Four neighbouring lanes hold a row of 8 columns. All four lanes get the result.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

template <int M, int N> __device__ __forceinline__ void mma_clear(float (&sums)[M][N][4]) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) { sums[m][n][i] = 0.0f; }
        }
    }
}

// The block starts to copy the first WIDTH channels of ROWS rows from global to shared memory. The first `valid` >= 1
// rows exist. Rows from `valid` on become zeros. WIDTH / 8 is a power of two, so that one thread's copies are a
// constant number of rows apart and the loop has a constant trip count. An offset within a tile fits in an int.
template <int HS, int ROWS, int WIDTH>
__device__ __forceinline__ void mma_load_channels(floatX *tile, const floatX *source, int source_stride, int valid) {
    constexpr int PIECES = WIDTH / 8, ROWS_AT_ONCE = ATTENTION_BLOCK / PIECES; // pieces of 16 bytes in a row
    int first = (int)threadIdx.x / PIECES, d = (int)threadIdx.x % PIECES * 8;
#pragma unroll
    for (int n = 0; n < ROWS; n += ROWS_AT_ONCE) {
        int row = first + n;
        if (ROWS % ROWS_AT_ONCE != 0 && row >= ROWS) { break; }
        cp_async_16(tile + row * MmaTile<HS>::stride + d, source + min(row, valid - 1) * source_stride + d,
                    row < valid ? 16 : 0);
    }
}

// Starts to copy all channels of a head, as mma_load_channels does. 64 and HS - 64 are powers of two, or HS - 64 is 0.
template <int HS, int ROWS>
__device__ __forceinline__ void mma_load_tile(floatX *tile, const floatX *source, int source_stride, int valid) {
    mma_load_channels<HS, ROWS, 64>(tile, source, source_stride, valid);
    if constexpr (HS > 64) { mma_load_channels<HS, ROWS, HS - 64>(tile + 64, source + 64, source_stride, valid); }
}

// Starts to copy rows first..first+ROWS-1 of two tensors to stage number % 2. Each stage holds two tiles.
template <int HS, int ROWS>
__device__ __forceinline__ void mma_load_stage(floatX *stages, int number, const floatX *a, int a_stride,
                                               const floatX *b, int b_stride, int first, int T) {
    constexpr int TILE = ROWS * MmaTile<HS>::stride;
    floatX *stage = stages + number % 2 * 2 * TILE;
    mma_load_tile<HS, ROWS>(stage, a + first * (int64_t)a_stride, a_stride, T - first);
    mma_load_tile<HS, ROWS>(stage + TILE, b + first * (int64_t)b_stride, b_stride, T - first);
    cp_async_commit();
}

// The left operand of an mma: 16 x 16 values of a tile in shared memory.
template <int HS> __device__ __forceinline__ void mma_load_left(uint32_t (&a)[4], const floatX *tile, int row, int d) {
    int lane = threadIdx.x % WARP_SIZE;
    ldmatrix_x4(a, tile + (row + lane % 16) * MmaTile<HS>::stride + d + lane / 16 * 8);
}

// sums[n] += a b[0..1] and sums[n + 1] += a b[2..3], for column groups n and n + 1 and each of M row groups.
template <int M, int N>
__device__ __forceinline__ void mma_pair(float (&sums)[M][N][4], int n, const uint32_t (&a)[M][4],
                                         const uint32_t (&b)[4]) {
    const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    for (int m = 0; m < M; m++) {
        mma_m16n8k16_bf16(sums[m][n], a[m], low, sums[m][n]);
        mma_m16n8k16_bf16(sums[m][n + 1], a[m], high, sums[m][n + 1]);
    }
}

// Loads all channels of the warp's 16 M rows from `row` on into registers.
template <int HS, int M>
__device__ __forceinline__ void mma_load_rows(uint32_t (&rows)[HS / 16][M][4], const floatX *tile, int row) {
#pragma unroll
    for (int d = 0; d < HS / 16; d++) {
        for (int m = 0; m < M; m++) { mma_load_left<HS>(rows[d][m], tile, row + m * 16, d * 16); }
    }
}

// products += rows times columns over channels d..d+15. a: channels d..d+15 of the rows.
template <int HS, int M, int N>
__device__ __forceinline__ void mma_dot_products_step(float (&products)[M][N][4], const uint32_t (&a)[M][4],
                                                      const floatX *columns, int d) {
    int lane = threadIdx.x % WARP_SIZE;
    const floatX *matrix_row = columns + (lane / 16 * 8 + lane % 8) * MmaTile<HS>::stride + d + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, matrix_row + n * 8 * MmaTile<HS>::stride);
        mma_pair(products, n, a, b);
    }
}

// products[row][column] = the warp's 16 M rows from `row` on times the columns, both in shared memory. The compiler
// unrolls STEPS steps of 16 channels, so that one step loads its operands while another step multiplies.
template <int HS, int STEPS, int M, int N>
__device__ __forceinline__ void mma_dot_products(float (&products)[M][N][4], const floatX *rows, int row,
                                                 const floatX *columns) {
    mma_clear(products);
#pragma unroll STEPS
    for (int d = 0; d < HS; d += 16) {
        uint32_t a[M][4];
        for (int m = 0; m < M; m++) { mma_load_left<HS>(a[m], rows, row + m * 16, d); }
        mma_dot_products_step<HS>(products, a, columns, d);
    }
}

// products[row][column] = the rows times the columns. The rows are in registers, the columns in shared memory.
template <int HS, int M, int N>
__device__ __forceinline__ void mma_dot_products(float (&products)[M][N][4], const uint32_t (&rows)[HS / 16][M][4],
                                                 const floatX *columns) {
    mma_clear(products);
#pragma unroll
    for (int d = 0; d < HS / 16; d++) { mma_dot_products_step<HS>(products, rows[d], columns, d * 16); }
}

__device__ __forceinline__ uint32_t mma_pack(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof(bits));
    return bits;
}

// sums[row][d] += sum over columns of weights[row][column] * column[d], with weights rounded to bf16. Two neighbouring
// accumulators have the layout of a left operand of 16 columns.
template <int HS, int M, int N>
__device__ __forceinline__ void mma_add_weighted(float (&sums)[M][HS / 8][4], const float (&weights)[M][N][4],
                                                 const floatX *columns) {
    int lane = threadIdx.x % WARP_SIZE;
    const floatX *matrix_row = columns + lane % 16 * MmaTile<HS>::stride + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t a[M][4];
        for (int m = 0; m < M; m++) {
            for (int i = 0; i < 4; i++) {
                a[m][i] = mma_pack(weights[m][n + i / 2][i % 2 * 2], weights[m][n + i / 2][i % 2 * 2 + 1]);
            }
        }
#pragma unroll
        for (int d = 0; d < HS / 8; d += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, matrix_row + n * 8 * MmaTile<HS>::stride + d * 8);
            mma_pair(sums, d, a, b);
        }
    }
}

template <int M, int N> __device__ __forceinline__ void mma_scale(float (&sums)[M][N][4], float factor) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) { sums[m][n][i] *= factor; }
        }
    }
}
// sums[row] *= factor[row]
template <int M, int N>
__device__ __forceinline__ void mma_scale_rows(float (&sums)[M][N][4], const float (&factor)[M][2]) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) { sums[m][n][i] *= factor[m][i / 2]; }
        }
    }
}

// Sets the score of each key that comes after its query to -inf. query and key: the first query and the first key of
// the tile. ROWS_ARE_KEYS: rows are keys and columns are queries. Otherwise rows are queries and columns are keys.
template <bool ROWS_ARE_KEYS, int M, int N>
__device__ __forceinline__ void mma_hide_later_keys(float (&scores)[M][N][4], int query, int key) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) {
                int distance = mma_column(n, i) - mma_row(m, i);
                bool hidden = key - query + (ROWS_ARE_KEYS ? -distance : distance) > 0;
                if (hidden) { scores[m][n][i] = -INFINITY; }
            }
        }
    }
}

// Turns the scores q.k of one tile of keys into weights (online softmax). largest: of unscaled scores, over the whole
// row. sum: of the weights of this lane's keys.
template <int M, int N, int CHANNELS>
__device__ __forceinline__ void mma_online_softmax_step(float (&scores)[M][N][4], float (&largest)[M][2],
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
    mma_scale_rows(out, correction);
}

// Stores those of a warp's 16 M rows that are below `valid`. The rows pass through `staging`, the warp's own shared
// memory, so that each store has 16 bytes. Returns the largest magnitude that this lane stores, if wants_amax.
template <int HS, int M>
__device__ __forceinline__ uint32_t mma_store_rows(floatX *out, int64_t stride, int valid,
                                                   const float (&sums)[M][HS / 8][4], floatX *staging,
                                                   bool wants_amax) {
    int lane = threadIdx.x % WARP_SIZE;
    uint32_t largest = 0;
    __syncwarp(); // all lanes have read the old content of `staging`
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < HS / 8; n++) {
            for (int i = 0; i < 4; i += 2) {
                floatX *pair = staging + mma_row(m, i) * MmaTile<HS>::stride + mma_column(n, i);
                *reinterpret_cast<uint32_t *>(pair) = mma_pack(sums[m][n][i], sums[m][n][i + 1]);
            }
        }
    }
    __syncwarp();
    for (int i = lane; i < 16 * M * (HS / 8); i += WARP_SIZE) {
        int row = i / (HS / 8), d = i % (HS / 8) * 8;
        if (row >= valid) { continue; }
        // An int4: nvcc 13.0 stores a Packed128 that comes from shared memory here as four words of 4 bytes.
        int4 piece = *reinterpret_cast<const int4 *>(staging + row * MmaTile<HS>::stride + d);
        *reinterpret_cast<int4 *>(out + row * stride + d) = piece;
        if (wants_amax) { largest = amax_join(largest, packed_from_bits<floatX>(piece)); }
    }
    return largest;
}

// out = attention of the queries of qkv to the keys of the context, and lse (AttentionShape). One block for each tile
// of queries of each query head.
template <int HS>
static __global__ void __launch_bounds__(ATTENTION_BLOCK, MmaTile<HS>::forward_blocks)
    attention_forward_mma_kernel(floatX *out, float *lse, const floatX *qkv, AttentionShape shape,
                                 AttentionContext context, uint32_t *amax) {
    typedef MmaTile<HS> Tile;
    constexpr int M = Tile::forward_groups, ROWS = 64 * M, KEYS = Tile::forward_columns, TILE = KEYS * Tile::stride;
    extern __shared__ int4 attention_shared[];
    floatX *shared = reinterpret_cast<floatX *>(attention_shared); // two stages, each a tile of keys and one of values
    AttentionQueries own = attention_queries(shape, context, ROWS);
    AttentionHead head = own.head;
    int first = own.first, end = own.end;
    int row_of_warp = (int)threadIdx.x / WARP_SIZE * 16 * M, query = first + row_of_warp;
    const floatX *q = qkv + head.q, *k = context.kv + attention_keys(own.index, shape, context), *v = k + shape.KV * HS;
    int q_stride = attention_width(shape), kv_stride = context.stride, out_stride = shape.NH * HS;

    floatX *queries = shared + 2 * TILE; // in the second stage until registers hold them
    mma_load_tile<HS, ROWS>(queries, q + first * (int64_t)q_stride, q_stride, end - first);
    cp_async_commit();
    mma_load_stage<HS, KEYS>(shared, 0, k, kv_stride, v, kv_stride, 0, end);
    cp_async_wait<1>();
    __syncthreads();
    uint32_t rows[HS / 16][M][4];
    mma_load_rows<HS>(rows, queries, row_of_warp);

    float scale = 1.0f / sqrtf((float)HS), largest[M][2], sum[M][2], sums[M][HS / 8][4];
    mma_clear(sums);
    for (int m = 0; m < M; m++) {
        for (int half = 0; half < 2; half++) { largest[m][half] = -INFINITY, sum[m][half] = 0.0f; }
    }
    int key_tiles = attention_tiles(min(first + ROWS, end), KEYS);
    for (int tile = 0; tile < key_tiles; tile++) {
        int key = tile * KEYS;
        floatX *keys = shared + tile % 2 * 2 * TILE, *values = keys + TILE;
        cp_async_wait<0>();
        __syncthreads(); // this tile is here, and no warp reads the other stage now
        if (tile + 1 < key_tiles) {
            mma_load_stage<HS, KEYS>(shared, tile + 1, k, kv_stride, v, kv_stride, key + KEYS, end);
        }
        if (key >= query + 16 * M) { continue; } // all keys come after this warp's queries
        float scores[M][KEYS / 8][4];
        mma_dot_products<HS>(scores, rows, keys);
        if (key + KEYS > query + 1) { mma_hide_later_keys<false>(scores, query, key); }
        mma_online_softmax_step(scores, largest, sum, sums, scale * ATTENTION_LOG2E);
        mma_add_weighted<HS>(sums, scores, values);
    }

    float factor[M][2];
    for (int m = 0; m < M; m++) {
        for (int half = 0; half < 2; half++) {
            int row = query + mma_row(m, 2 * half);
            float total = quad_sum(sum[m][half]);
            factor[m][half] = 1.0f / total;
            if (threadIdx.x % 4 == 0 && row < end) { lse[head.row + row] = scale * largest[m][half] + logf(total); }
        }
    }
    mma_scale_rows(sums, factor);
    floatX *staging = shared + key_tiles % 2 * 2 * TILE + row_of_warp * Tile::stride; // no warp reads this stage now
    floatX *rows_out = out + head.out + query * (int64_t)out_stride;
    uint32_t largest_out = mma_store_rows<HS>(rows_out, out_stride, end - query, sums, staging, amax != NULL);
    amax_add_rounded(amax, largest_out);
}

// Turns scores into p and dp into ds = p * (dp - delta). Rows are queries.
template <int M, int N>
__device__ __forceinline__ void mma_softmax_backward_of_rows(float (&scores)[M][N][4], float (&dp)[M][N][4],
                                                             const float (&lse_log2)[M][2], const float (&delta)[M][2],
                                                             float scale_log2) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) {
                scores[m][n][i] = exp2_approx(scores[m][n][i] * scale_log2 - lse_log2[m][i / 2]);
                dp[m][n][i] = scores[m][n][i] * (dp[m][n][i] - delta[m][i / 2]);
            }
        }
    }
}

// dq of dqkv = its gradient. One block for each tile of queries of each query head.
template <int HS>
static __global__ void __launch_bounds__(ATTENTION_BLOCK, MmaTile<HS>::backward_q_blocks)
    attention_backward_q_mma_kernel(floatX *dqkv, const floatX *dout, const floatX *qkv, const float *lse,
                                    const float *delta, AttentionShape shape, AttentionContext context) {
    typedef MmaTile<HS> Tile;
    constexpr int M = Tile::backward_q_groups, ROWS = 64 * M, KEYS = Tile::backward_columns;
    constexpr int TILE = KEYS * Tile::stride;
    constexpr bool HOLDS = Tile::backward_q_holds_rows;
    extern __shared__ int4 attention_shared[];
    // Two stages, each a tile of keys and a tile of values. With HOLDS, the rows of q and dout start in the place of
    // the second stage, until registers hold them.
    floatX *stages = reinterpret_cast<floatX *>(attention_shared);
    floatX *queries = stages + (HOLDS ? 2 : 4) * TILE, *douts = queries + ROWS * Tile::stride;
    AttentionQueries own = attention_queries(shape, context, ROWS);
    AttentionHead head = own.head;
    int first = own.first, end = own.end;
    int row_of_warp = (int)threadIdx.x / WARP_SIZE * 16 * M, query = first + row_of_warp;
    const floatX *q = qkv + head.q, *k = context.kv + attention_keys(own.index, shape, context), *v = k + shape.KV * HS;
    const floatX *dO = dout + head.out;
    int q_stride = attention_width(shape), kv_stride = context.stride, out_stride = shape.NH * HS;

    mma_load_tile<HS, ROWS>(queries, q + first * (int64_t)q_stride, q_stride, end - first);
    mma_load_tile<HS, ROWS>(douts, dO + first * (int64_t)out_stride, out_stride, end - first);
    mma_load_stage<HS, KEYS>(stages, 0, k, kv_stride, v, kv_stride, 0, end);

    float scale = 1.0f / sqrtf((float)HS), lse_log2[M][2], delta_of_row[M][2], dq[M][HS / 8][4];
    mma_clear(dq);
    for (int m = 0; m < M; m++) {
        for (int half = 0; half < 2; half++) {
            int row = query + mma_row(m, 2 * half);
            lse_log2[m][half] =
                row < end ? ATTENTION_LOG2E * lse[head.row + row] : INFINITY; // p = 0 for rows that do not exist
            delta_of_row[m][half] = row < end ? delta[head.row + row] : 0.0f;
        }
    }
    static_assert(!HOLDS || 2 * KEYS <= ROWS, "the second stage and the place where dq is staged are apart");
    uint32_t query_rows[HS / 16][M][4], dout_rows[HS / 16][M][4];
    if (HOLDS) {
        cp_async_wait<0>();
        __syncthreads();
        mma_load_rows<HS>(query_rows, queries, row_of_warp);
        mma_load_rows<HS>(dout_rows, douts, row_of_warp);
    }
    int key_tiles = attention_tiles(min(first + ROWS, end), KEYS);
    for (int tile = 0; tile < key_tiles; tile++) {
        int key = tile * KEYS;
        floatX *keys = stages + tile % 2 * 2 * TILE, *values = keys + TILE;
        cp_async_wait<0>();
        __syncthreads(); // this tile is here, and no warp reads the other stage now
        if (tile + 1 < key_tiles) {
            mma_load_stage<HS, KEYS>(stages, tile + 1, k, kv_stride, v, kv_stride, key + KEYS, end);
        }
        if (key >= query + 16 * M) { continue; } // all keys come after this warp's queries
        float scores[M][KEYS / 8][4], ds[M][KEYS / 8][4];
        if (HOLDS) {
            mma_dot_products<HS>(scores, query_rows, keys);
            mma_dot_products<HS>(ds, dout_rows, values);
        } else {
            mma_dot_products<HS, HS / 16>(scores, queries, row_of_warp, keys);
            mma_dot_products<HS, HS / 16>(ds, douts, row_of_warp, values);
        }
        if (key + KEYS > query + 1) { mma_hide_later_keys<false>(scores, query, key); }
        mma_softmax_backward_of_rows(scores, ds, lse_log2, delta_of_row, scale * ATTENTION_LOG2E);
        mma_add_weighted<HS>(dq, ds, keys);
    }
    mma_scale(dq, scale);
    // Only this warp reads these rows. The offset is computed again, because HS = 80 has no register for row_of_warp.
    floatX *staging = douts + (int)(threadIdx.x / WARP_SIZE * 16 * M) * Tile::stride;
    floatX *dq_rows = dqkv + head.q + query * (int64_t)q_stride;
    mma_store_rows<HS>(dq_rows, q_stride, end - query, dq, staging, false);
}

// Reads lse and delta of the N queries from row `first` on, one value per thread: threads 0..N-1 read lse, threads
// N..2N-1 read delta. source: the address of this thread's value for first = 0. For a query that does not exist lse is
// infinite, so that p is 0, and delta is 0.
template <int N> __device__ __forceinline__ float mma_column_statistic(const float *source, int first, int end) {
    if (first + (int)threadIdx.x % N < end && threadIdx.x < 2 * N) { return source[first]; }
    return threadIdx.x < N ? INFINITY : 0.0f;
}

// Turns scores into p. Columns are queries. lse: in shared memory.
template <int M, int N>
__device__ __forceinline__ void mma_probabilities_of_columns(float (&scores)[M][N][4], const float *lse,
                                                             float scale_log2) {
    for (int n = 0; n < N; n++) {
        float2 l = *reinterpret_cast<const float2 *>(lse + mma_column(n, 0));
        float low = l.x * ATTENTION_LOG2E, high = l.y * ATTENTION_LOG2E;
        for (int m = 0; m < M; m++) {
            for (int i = 0; i < 4; i++) {
                scores[m][n][i] = exp2_approx(scores[m][n][i] * scale_log2 - (i % 2 == 0 ? low : high));
            }
        }
    }
}

// Turns dp into ds = p * (dp - delta). Columns are queries. delta: in shared memory.
template <int M, int N>
__device__ __forceinline__ void mma_softmax_backward_of_columns(float (&dp)[M][N][4], const float (&p)[M][N][4],
                                                                const float *delta) {
    for (int n = 0; n < N; n++) {
        float2 dot = *reinterpret_cast<const float2 *>(delta + mma_column(n, 0));
        for (int m = 0; m < M; m++) {
            for (int i = 0; i < 4; i++) { dp[m][n][i] = p[m][n][i] * (dp[m][n][i] - (i % 2 == 0 ? dot.x : dot.y)); }
        }
    }
}

// dkv = the gradient of the context's kv from these queries, with its strides. One block for each tile of keys of each
// KV head. It goes over the group's query heads from the last to the first, and over the query tiles of each, and sums
// dk and dv in registers all the way. The first tile of the next head is copied while the last tile of a head is
// computed. A block whose keys no query sees visits the last query, which adds zeros.
template <int HS>
static __global__ void __launch_bounds__(ATTENTION_BLOCK, MmaTile<HS>::backward_kv_blocks)
    attention_backward_kv_mma_kernel(floatX *dkv, const floatX *dout, const floatX *qkv, const float *lse,
                                     const float *delta, AttentionShape shape, AttentionContext context) {
    typedef MmaTile<HS> Tile;
    constexpr int M = Tile::backward_kv_groups, ROWS = 64 * M, QUERIES = Tile::backward_columns;
    constexpr int TILE = QUERIES * Tile::stride;
    // p stays in registers while dp is computed. A warp with 32 rows has no registers left for more than 2 steps.
    constexpr int DP_STEPS = M == 1 ? HS / 16 : 2;
    extern __shared__ int4 attention_shared[];
    __shared__ alignas(8) float statistics[2][2 * QUERIES];
    floatX *keys = reinterpret_cast<floatX *>(attention_shared), *values = keys + ROWS * Tile::stride;
    floatX *stages = values + ROWS * Tile::stride; // two stages, each a tile of queries and one of dout
    int T = shape.T, tiles = attention_tiles(context.T, ROWS), first = attention_ascending_tile(tiles) * ROWS;
    int row_of_warp = (int)threadIdx.x / WARP_SIZE * 16 * M, key = first + row_of_warp;
    int group = shape.NH / shape.KV, h = group - 1;
    int64_t index = (int64_t)(blockIdx.x / tiles) * group;
    AttentionHead head = attention_head(index, shape);
    const floatX *q = qkv + head.q, *k = context.kv + attention_keys(index, shape, context), *v = k + shape.KV * HS;
    const floatX *dO = dout + head.out;
    const float *statistic_source = (threadIdx.x < QUERIES ? lse : delta) + head.row + h * T + threadIdx.x % QUERIES;
    int q_stride = attention_width(shape), kv_stride = context.stride, out_stride = shape.NH * HS;
    int start = min(attention_first_row(first, context), T - 1), end = attention_chunk_end(start, shape, context);

    mma_load_tile<HS, ROWS>(keys, k + first * (int64_t)kv_stride, kv_stride, context.T - first);
    mma_load_tile<HS, ROWS>(values, v + first * (int64_t)kv_stride, kv_stride, context.T - first);
    mma_load_stage<HS, QUERIES>(stages, 0, q + h * HS, q_stride, dO + h * HS, out_stride, start, end);
    float statistic = mma_column_statistic<QUERIES>(statistic_source, start, end);

    float scale = 1.0f / sqrtf((float)HS), dk[M][HS / 8][4], dv[M][HS / 8][4];
    mma_clear(dk);
    mma_clear(dv);
    for (int tile = 0, row = start, next = start; row < T; tile++, row = next) {
        floatX *queries = stages + tile % 2 * 2 * TILE, *douts = queries + TILE;
        if (threadIdx.x < 2 * QUERIES) { statistics[tile % 2][threadIdx.x] = statistic; }
        cp_async_wait<0>();
        __syncthreads(); // this tile is here, and no warp reads the other stage now
        int query = row + attention_shift(row, context);
        next = min(row + QUERIES, end);
        if (next >= T && h > 0) { next = start, h--, statistic_source -= T; } // the group's next head
        if (next < T) {
            end = attention_chunk_end(next, shape, context);
            mma_load_stage<HS, QUERIES>(stages, tile + 1, q + h * HS, q_stride, dO + h * HS, out_stride, next, end);
            statistic = mma_column_statistic<QUERIES>(statistic_source, next, end);
        }
        if (key >= query + QUERIES) { continue; } // all queries come before this warp's keys
        float scores[M][QUERIES / 8][4], ds[M][QUERIES / 8][4];
        mma_dot_products<HS, HS / 16>(scores, keys, row_of_warp, queries);
        if (query < key + 16 * M - 1) { mma_hide_later_keys<true>(scores, query, key); }
        mma_probabilities_of_columns(scores, statistics[tile % 2], scale * ATTENTION_LOG2E);
        mma_add_weighted<HS>(dv, scores, douts);
        mma_dot_products<HS, DP_STEPS>(ds, values, row_of_warp, douts);
        mma_softmax_backward_of_columns(ds, scores, statistics[tile % 2] + QUERIES);
        mma_add_weighted<HS>(dk, ds, queries);
    }
    mma_scale(dk, scale);
    // dk and dv are staged in the place of this warp's keys and values, which only this warp reads.
    floatX *dk_rows = dkv + (k - context.kv) + key * (int64_t)kv_stride, *dv_rows = dk_rows + shape.KV * HS;
    floatX *dk_staging = keys + row_of_warp * Tile::stride, *dv_staging = values + row_of_warp * Tile::stride;
    mma_store_rows<HS>(dk_rows, kv_stride, context.T - key, dk, dk_staging, false);
    mma_store_rows<HS>(dv_rows, kv_stride, context.T - key, dv, dv_staging, false);
}

// The kernels for one head size, for attention.cuh. Each has the rows of a block and the shared memory that it needs.
template <int HS> struct MmaAttention {
    typedef MmaTile<HS> Tile;
    static constexpr int forward_rows = 64 * Tile::forward_groups;
    static constexpr int q_rows = 64 * Tile::backward_q_groups, kv_rows = 64 * Tile::backward_kv_groups;
    static constexpr auto forward = attention_forward_mma_kernel<HS>;
    static constexpr auto backward_q = attention_backward_q_mma_kernel<HS>;
    static constexpr auto backward_kv = attention_backward_kv_mma_kernel<HS>;

    static constexpr size_t bytes(int rows, int column_tiles, int columns) {
        return (size_t)(rows + column_tiles * columns) * Tile::stride * sizeof(floatX);
    }
    static size_t forward_bytes(int) { return bytes(0, 4, Tile::forward_columns); }
    // Two tiles of rows, and two stages of two tiles of columns. Rows in registers leave their place to a stage.
    static size_t q_bytes(int) {
        return bytes(2 * q_rows, Tile::backward_q_holds_rows ? 2 : 4, Tile::backward_columns);
    }
    static size_t kv_bytes(int) { return bytes(2 * kv_rows, 4, Tile::backward_columns); }
};

#endif // PRECISION_FP32

#endif // LLMC_ATTENTION_MMA_CUH
