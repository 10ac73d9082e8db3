// The ladder of causal attention, forward. The formulas are at the top of llmc/layers/attention.cuh.
// qkv (B,T,3C) -> out (B,T,C) and lse (B,NH,T) fp32. C = NH * 64.
#include "dev/cuda/attention_ladder.cuh"

struct Forward : AttentionSizes {
    std::vector<float> inp, want_out, want_lse, sizes;
    DeviceArray<floatX> qkv, out;
    DeviceArray<float> lse, scores; // scores (B,NH,T,T)

    explicit Forward(const AttentionSizes &sizes_of)
        : AttentionSizes(sizes_of), inp(random_values(3 * outputs, 1.0f, 1)), want_out((size_t)outputs),
          want_lse((size_t)rows), sizes((size_t)outputs), qkv(inp), out(outputs), lse(rows), scores(rows * T) {
        std::vector<float> positive_v = inp, unused((size_t)rows);
        for (size_t i = 0; i < inp.size(); i++) {
            if ((int)(i / (size_t)C % 3) == 2) { positive_v[i] = fabsf(inp[i]); }
        }
        cpu_attention_forward(want_out.data(), want_lse.data(), inp.data(), B, T, C, NH);
        cpu_attention_forward(sizes.data(), unused.data(), positive_v.data(), B, T, C, NH);
    }
    void clear() { out.poison(), lse.poison(), scores.poison(); }

    // out is a sum of T products p v. Both sides have an error of 2e in p, so out's is relative to the sum of p |v|.
    void check(Test *t) const {
        double e = exp_error(inp);
        check_values(t, "lse", lse.get(), want_lse, 2.0 * e, 4.0 * FLT_EPSILON);
        check_within(t, "out", out.get(), want_out, sizes, 4.0 * e + operand_error() + sum_tolerance(T));
    }
};

// ---- Version 1: three kernels, as the formulas say ----
//
// All scores go to memory, 805 MB of them for 12 heads and 16 x 1,024 tokens. They are read and written for the
// softmax, and read again to multiply the values. In the first kernel neighbouring lanes take neighbouring keys, which
// lie 3 C numbers apart, so each lane needs a sector of its own and uses 2 of its 32 bytes.

static __global__ void scores_kernel1(float *scores, const floatX *qkv, int T, int C, int NH) {
    int query = blockIdx.y, key = blockIdx.x * blockDim.x + threadIdx.x;
    if (key > query) { return; }
    AttentionHead head = attention_head(blockIdx.z, T, C, NH);
    const floatX *q = qkv + head.q + query * (int64_t)(3 * C), *k = qkv + head.q + C + key * (int64_t)(3 * C);
    float sum = 0.0f;
    for (int d = 0; d < HS; d++) { sum += to_float(q[d]) * to_float(k[d]); }
    scores[(head.row + query) * T + key] = SCALE * sum;
}

// Each thread takes a row. scores become p.
static __global__ void softmax_kernel1(float *scores, float *lse, int64_t rows, int T) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= rows) { return; }
    float *row = scores + i * T, largest = -INFINITY, sum = 0.0f;
    int keys = (int)(i % T) + 1;
    for (int j = 0; j < keys; j++) { largest = fmaxf(largest, row[j]); }
    for (int j = 0; j < keys; j++) { sum += expf(row[j] - largest); }
    for (int j = 0; j < keys; j++) { row[j] = expf(row[j] - largest) / sum; }
    lse[i] = largest + logf(sum);
}

// Each thread takes a channel of a query.
static __global__ void values_kernel1(floatX *out, const float *scores, const floatX *qkv, int T, int C, int NH) {
    int query = blockIdx.x, d = threadIdx.x;
    AttentionHead head = attention_head(blockIdx.y, T, C, NH);
    const floatX *v = qkv + head.q + 2 * C + d;
    float sum = 0.0f;
    for (int j = 0; j <= query; j++) { sum += scores[(head.row + query) * T + j] * to_float(v[j * (int64_t)(3 * C)]); }
    out[head.out + query * (int64_t)C + d] = from_float<floatX>(sum);
}

static void forward1(Forward &p) {
    unsigned T = (unsigned)p.T, heads = (unsigned)p.heads;
    scores_kernel1<<<dim3(T / 64, T, heads), 64>>>(p.scores.data, p.qkv.data, p.T, p.C, p.NH);
    softmax_kernel1<<<blocks_for(p.rows, 64), 64>>>(p.scores.data, p.lse.data, p.rows, p.T);
    values_kernel1<<<dim3(T, heads), HS>>>(p.out.data, p.scores.data, p.qkv.data, p.T, p.C, p.NH);
}

// ---- Version 2: the three kernels in tiles ----
//
// A block takes 32 queries and reads 32 keys or values once for all of them, into shared memory. The lanes of a warp
// read neighbouring numbers. Most of what still moves is the matrix of scores: written twice and read four times.

// A block of 32 x 32 threads has one tile of scores. Keys after a query get -inf, so that the softmax makes them 0.
static __global__ void scores_kernel2(float *scores, const floatX *qkv, int T, int C, int NH) {
    __shared__ float queries[TILE][HS];
    __shared__ float keys[TILE][HS + 1];
    int first = blockIdx.y * TILE, key = blockIdx.x * TILE, row = threadIdx.y, lane = threadIdx.x;
    if (key > first) { return; }
    AttentionHead head = attention_head(blockIdx.z, T, C, NH);
    const floatX *q = qkv + head.q, *k = q + C;
    load_tile(queries, q + first * (int64_t)(3 * C), 3 * C);
    load_tile(keys, k + key * (int64_t)(3 * C), 3 * C);
    __syncthreads();
    float sum = 0.0f;
    for (int d = 0; d < HS; d++) { sum += queries[row][d] * keys[lane][d]; }
    scores[(head.row + first + row) * T + key + lane] = key + lane <= first + row ? SCALE * sum : -INFINITY;
}

// Each warp takes a row. scores become p.
static __global__ void softmax_kernel2(float *scores, float *lse, int64_t rows, int T) {
    int64_t i = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
    if (i >= rows) { return; }
    float *row = scores + i * T, largest = -INFINITY, sum = 0.0f;
    int keys = ((int)(i % T) / TILE + 1) * TILE;
    for (int j = threadIdx.x; j < keys; j += WARP_SIZE) { largest = fmaxf(largest, row[j]); }
    largest = warp_max(largest);
    for (int j = threadIdx.x; j < keys; j += WARP_SIZE) { sum += expf(row[j] - largest); }
    sum = warp_sum(sum);
    for (int j = threadIdx.x; j < keys; j += WARP_SIZE) { row[j] = expf(row[j] - largest) / sum; }
    if (threadIdx.x == 0) { lse[i] = largest + logf(sum); }
}

// A warp takes a query. A lane takes the channels lane and lane + 32.
static __global__ void values_kernel2(floatX *out, const float *scores, const floatX *qkv, int T, int C, int NH) {
    __shared__ float p[TILE][TILE];
    __shared__ float values[TILE][HS];
    int first = blockIdx.x * TILE, row = threadIdx.y, lane = threadIdx.x;
    AttentionHead head = attention_head(blockIdx.y, T, C, NH);
    const floatX *v = qkv + head.q + 2 * C;
    float low = 0.0f, high = 0.0f;
    for (int key = 0; key <= first; key += TILE) {
        __syncthreads(); // all warps have read the previous tile
        p[row][lane] = scores[(head.row + first + row) * T + key + lane];
        load_tile(values, v + key * (int64_t)(3 * C), 3 * C);
        __syncthreads();
        for (int j = 0; j < TILE; j++) {
            low += p[row][j] * values[j][lane], high += p[row][j] * values[j][lane + WARP_SIZE];
        }
    }
    floatX *result = out + head.out + (first + row) * (int64_t)C;
    result[lane] = from_float<floatX>(low), result[lane + WARP_SIZE] = from_float<floatX>(high);
}

static void forward2(Forward &p) {
    unsigned tiles = (unsigned)p.T / TILE, heads = (unsigned)p.heads;
    dim3 block(WARP_SIZE, TILE);
    scores_kernel2<<<dim3(tiles, tiles, heads), block>>>(p.scores.data, p.qkv.data, p.T, p.C, p.NH);
    softmax_kernel2<<<blocks_for(p.rows, 4), dim3(WARP_SIZE, 4)>>>(p.scores.data, p.lse.data, p.rows, p.T);
    values_kernel2<<<dim3(tiles, heads), block>>>(p.out.data, p.scores.data, p.qkv.data, p.T, p.C, p.NH);
}

// ---- Version 3: one kernel, online softmax ----
//
// No T x T matrix is in memory. A block could keep all scores of its queries in shared memory, 4 KiB a query for 1,024
// keys, so few queries would share a tile, and T would have a limit. Instead a query keeps the largest score so far and
// the sum of exp(score - largest). When a larger score comes, this sum and the sum of the values are scaled down. So
// shared memory holds 32 scores of a query, and T may be any size. A block takes 64 queries, two a warp: each tile of
// keys and values is read for twice as many. The bound is that of shared memory: each multiplication of a score waits
// for two numbers from there.
static __global__ void forward_kernel3(floatX *out, float *lse, const floatX *qkv, int T, int C, int NH) {
    constexpr int R = 2, ROWS = TILE * R;
    __shared__ float queries[ROWS][HS];
    __shared__ float keys[TILE][HS + 1];
    __shared__ float values[TILE][HS];
    __shared__ float weights[ROWS][TILE]; // exp(score - largest)
    int first = blockIdx.x * ROWS, row = threadIdx.y * R, lane = threadIdx.x;
    AttentionHead head = attention_head(blockIdx.y, T, C, NH);
    const floatX *q = qkv + head.q, *k = q + C, *v = k + C;
    float largest[R] = {-INFINITY, -INFINITY}, sum[R] = {}, low[R] = {}, high[R] = {};
    load_tile(queries, q + first * (int64_t)(3 * C), 3 * C);
    for (int key = 0; key < first + ROWS; key += TILE) {
        __syncthreads(); // all warps have read the previous tile
        load_tile(keys, k + key * (int64_t)(3 * C), 3 * C);
        load_tile(values, v + key * (int64_t)(3 * C), 3 * C);
        __syncthreads();
        if (key >= first + row + R) { continue; } // all keys come after this warp's queries
        for (int r = 0; r < R; r++) {
            float score = 0.0f, before = largest[r];
            for (int d = 0; d < HS; d++) { score += queries[row + r][d] * keys[lane][d]; }
            score = key + lane <= first + row + r ? SCALE * score : -INFINITY;
            largest[r] = fmaxf(before, warp_max(score)); // finite, because every query sees key 0
            float weight = expf(score - largest[r]), correction = expf(before - largest[r]);
            weights[row + r][lane] = weight;
            sum[r] = sum[r] * correction + warp_sum(weight);
            low[r] *= correction, high[r] *= correction;
        }
        __syncwarp();
        for (int r = 0; r < R; r++) {
            for (int j = 0; j < TILE; j++) {
                float weight = weights[row + r][j];
                low[r] += weight * values[j][lane], high[r] += weight * values[j][lane + WARP_SIZE];
            }
        }
    }
    for (int r = 0; r < R; r++) {
        int query = first + row + r;
        floatX *result = out + head.out + query * (int64_t)C + lane;
        result[0] = from_float<floatX>(low[r] / sum[r]), result[WARP_SIZE] = from_float<floatX>(high[r] / sum[r]);
        if (lane == 0) { lse[head.row + query] = largest[r] + logf(sum[r]); }
    }
}

static void forward3(Forward &p) {
    forward_kernel3<<<dim3((unsigned)p.T / (2 * TILE), (unsigned)p.heads), dim3(WARP_SIZE, TILE)>>>(
        p.out.data, p.lse.data, p.qkv.data, p.T, p.C, p.NH);
}

// Version 4. The trainer's SIMT kernel. A warp takes four queries and reads 16 bytes at a time from shared memory. A
// key that a lane has read serves four queries, so there are fewer wavefronts. The kernel takes any head size up to
// 256. Its block has 16 queries only, so keys and values travel more often than in version 3.
static void forward4(Forward &p) { attention_forward(p.out.data, p.lse.data, p.qkv.data, p.shape, 0, NULL, true); }

#ifndef PRECISION_FP32

// ---- Version 5: tensor cores, p through shared memory ----
//
// A block takes 64 queries, 16 a warp, and visits tiles of 64 keys. mma leaves a row of scores in four lanes, so the
// warp writes the scores to shared memory, computes the softmax as version 3 does, and writes p there, in bf16. From
// there p is the left operand of the second product. Each score is written and read twice.

constexpr int ROWS = 64, KEYS = 64, MMA_TILE = ROWS * MmaTile<HS>::stride;
constexpr int SCORES = KEYS + 8; // floats from row to row: four rows of pairs lie in different banks

// sums += p values. p (16,KEYS) in shared memory, in bf16.
__device__ __forceinline__ void add_values(float (&sums)[1][HS / 8][4], const floatX *ps, const floatX *values) {
    int lane = threadIdx.x % WARP_SIZE;
    for (int key = 0; key < KEYS; key += 16) {
        uint32_t a[1][4], b[4];
        mma_load_left<HS>(a[0], ps, 0, key);
        for (int d = 0; d < HS / 8; d += 2) {
            ldmatrix_x4_trans(b, values + (key + lane % 16) * MmaTile<HS>::stride + lane / 16 * 8 + d * 8);
            mma_pair(sums, d, a, b);
        }
    }
}

// Writes accumulators to shared memory, as rows of scores.
__device__ __forceinline__ void store_scores(float *scores, const float (&products)[1][KEYS / 8][4]) {
    for (int n = 0; n < KEYS / 8; n++) {
        for (int i = 0; i < 4; i += 2) {
            float2 pair = make_float2(products[0][n][i], products[0][n][i + 1]);
            *reinterpret_cast<float2 *>(scores + mma_row(0, i) * SCORES + mma_column(n, i)) = pair;
        }
    }
}

// Turns the warp's 16 rows of scores into p. visible: the keys of the tile that row 0 sees; row r sees r more.
// corrections: of the sums so far, a row each.
__device__ __forceinline__ void softmax_step(floatX *ps, float *corrections, float (&largest)[16], float (&sum)[16],
                                             const float *scores, int visible) {
    int lane = threadIdx.x % WARP_SIZE;
    for (int r = 0; r < 16; r++) {
        float low = lane < visible + r ? SCALE * scores[r * SCORES + lane] : -INFINITY;
        float high = lane + WARP_SIZE < visible + r ? SCALE * scores[r * SCORES + lane + WARP_SIZE] : -INFINITY;
        float before = largest[r];
        largest[r] = fmaxf(before, warp_max(fmaxf(low, high)));
        float p_low = expf(low - largest[r]), p_high = expf(high - largest[r]);
        float correction = expf(before - largest[r]);
        sum[r] = sum[r] * correction + warp_sum(p_low + p_high);
        ps[r * MmaTile<HS>::stride + lane] = from_float<floatX>(p_low);
        ps[r * MmaTile<HS>::stride + lane + WARP_SIZE] = from_float<floatX>(p_high);
        if (lane == 0) { corrections[r] = correction; }
    }
    __syncwarp();
}

// The rows of the warp's accumulators times their factors in shared memory.
__device__ __forceinline__ void scale_rows(float (&sums)[1][HS / 8][4], const float *factors) {
    const float of_lane[1][2] = {{factors[mma_row(0, 0)], factors[mma_row(0, 2)]}};
    mma_scale_rows(sums, of_lane);
}

static __global__ void __launch_bounds__(ATTENTION_BLOCK)
    forward_kernel5(floatX *out, float *lse, const floatX *qkv, int T, int C, int NH) {
    extern __shared__ int4 attention_shared[];
    int row = threadIdx.x / WARP_SIZE * 16, lane = threadIdx.x % WARP_SIZE, first = blockIdx.x * ROWS;
    floatX *queries = reinterpret_cast<floatX *>(attention_shared), *keys = queries + MMA_TILE;
    floatX *values = keys + MMA_TILE, *ps = values + MMA_TILE + row * MmaTile<HS>::stride;
    float *scores = reinterpret_cast<float *>(values + 2 * MMA_TILE) + row * SCORES;
    float *factors = reinterpret_cast<float *>(values + 2 * MMA_TILE) + ROWS * SCORES + row;
    AttentionHead head = attention_head(blockIdx.y, T, C, NH);
    const floatX *q = qkv + head.q, *k = q + C, *v = k + C;
    float largest[16], sum[16] = {}, sums[1][HS / 8][4], products[1][KEYS / 8][4];
    for (float &x : largest) { x = -INFINITY; }
    mma_clear(sums);
    mma_load_tile<HS, ROWS>(queries, q + first * (int64_t)(3 * C), 3 * C, ROWS);
    for (int key = 0; key <= first; key += KEYS) {
        __syncthreads(); // all warps have read the previous tile
        mma_load_tile<HS, KEYS>(keys, k + key * (int64_t)(3 * C), 3 * C, KEYS);
        mma_load_tile<HS, KEYS>(values, v + key * (int64_t)(3 * C), 3 * C, KEYS);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads(); // the tile is here
        mma_dot_products<HS, HS / 16>(products, queries, row, keys);
        store_scores(scores, products);
        __syncwarp();
        softmax_step(ps, factors, largest, sum, scores, first + row - key + 1);
        scale_rows(sums, factors);
        add_values(sums, ps, values);
        __syncwarp(); // all lanes have read p and the factors
    }
    for (int r = 0; r < 16; r++) {
        if (lane == 0) { factors[r] = 1.0f / sum[r], lse[head.row + first + row + r] = largest[r] + logf(sum[r]); }
    }
    __syncwarp();
    scale_rows(sums, factors);
    mma_store_rows<HS>(out + head.out + (first + row) * (int64_t)C, C, 16, sums, queries + row * MmaTile<HS>::stride,
                       false);
}

static void forward5(Forward &p) {
    size_t bytes = 4 * MMA_TILE * sizeof(floatX) + ROWS * (SCORES + 1) * sizeof(float);
    allow_dynamic_shared(forward_kernel5, bytes);
    forward_kernel5<<<dim3((unsigned)p.T / ROWS, (unsigned)p.heads), ATTENTION_BLOCK, bytes>>>(
        p.out.data, p.lse.data, p.qkv.data, p.T, p.C, p.NH);
}

// ---- Version 6: p in registers ----
//
// Two neighbouring accumulators of a lane have the layout of a left operand of 16 keys (mma_add_weighted). So p goes to
// the second product as it is, rounded to bf16. A row's maximum and sum take two shuffles over its four lanes. No score
// is in shared memory.
//
// Version 7. Two stages: a block computes with a tile of keys and values while it copies the next. The bound does not
// see this, because it counts no waiting.
template <int STAGES>
static __global__ void __launch_bounds__(ATTENTION_BLOCK)
    forward_kernel6(floatX *out, float *lse, const floatX *qkv, int T, int C, int NH) {
    extern __shared__ int4 attention_shared[];
    int row = threadIdx.x / WARP_SIZE * 16, first = blockIdx.x * ROWS, tiles = first / KEYS + 1;
    floatX *queries = reinterpret_cast<floatX *>(attention_shared), *stages = queries + MMA_TILE;
    AttentionHead head = attention_head(blockIdx.y, T, C, NH);
    const floatX *q = qkv + head.q, *k = q + C, *v = k + C;
    float largest[1][2] = {{-INFINITY, -INFINITY}}, sum[1][2] = {}, sums[1][HS / 8][4], scores[1][KEYS / 8][4];
    mma_clear(sums);
    mma_load_tile<HS, ROWS>(queries, q + first * (int64_t)(3 * C), 3 * C, ROWS);
    mma_load_stage<HS, KEYS>(stages, 0, k, 3 * C, v, 3 * C, 0, T);
    for (int tile = 0; tile < tiles; tile++) {
        int stage = tile % STAGES;
        if (STAGES == 1 && tile > 0) {
            __syncthreads(); // all warps have read the previous tile
            mma_load_stage<HS, KEYS>(stages, 0, k, 3 * C, v, 3 * C, tile * KEYS, T);
        }
        cp_async_wait<0>();
        __syncthreads(); // this tile is here, and no warp reads the other stage now
        if (STAGES == 2 && tile + 1 < tiles) {
            mma_load_stage<HS, KEYS>(stages, tile + 1, k, 3 * C, v, 3 * C, (tile + 1) * KEYS, T);
        }
        const floatX *keys = stages + stage * 2 * MMA_TILE, *values = keys + MMA_TILE;
        mma_dot_products<HS, HS / 16>(scores, queries, row, keys);
        if (tile + 1 == tiles) { mma_hide_later_keys<false>(scores, first + row, tile * KEYS); }
        mma_online_softmax_step(scores, largest, sum, sums, SCALE * ATTENTION_LOG2E);
        mma_add_weighted<HS>(sums, scores, values);
    }
    float factor[1][2];
    for (int half = 0; half < 2; half++) {
        float total = quad_sum(sum[0][half]);
        factor[0][half] = 1.0f / total;
        int64_t query = head.row + first + row + mma_row(0, 2 * half);
        if (threadIdx.x % 4 == 0) { lse[query] = SCALE * largest[0][half] + logf(total); }
    }
    mma_scale_rows(sums, factor);
    mma_store_rows<HS>(out + head.out + (first + row) * (int64_t)C, C, 16, sums, queries + row * MmaTile<HS>::stride,
                       false);
}

template <int STAGES> static void forward6(Forward &p) {
    size_t bytes = (1 + 2 * STAGES) * MMA_TILE * sizeof(floatX);
    allow_dynamic_shared(forward_kernel6<STAGES>, bytes);
    forward_kernel6<STAGES><<<dim3((unsigned)p.T / ROWS, (unsigned)p.heads), ATTENTION_BLOCK, bytes>>>(
        p.out.data, p.lse.data, p.qkv.data, p.T, p.C, p.NH);
}

#endif // PRECISION_FP32

// The last version. The trainer's kernel for bf16. 128 queries share a tile, a warp has 32 of them, and registers hold
// its queries, so that a key from shared memory serves twice as many. It takes any T, groups of heads, and parts of a
// sequence.
static void forward_llmc(Forward &p) { attention_forward(p.out.data, p.lse.data, p.qkv.data, p.shape, 0); }

static double bytes_of(const AttentionSizes &s) {
    return 4.0 * sizeof(floatX) * (double)s.outputs + 4.0 * (double)s.rows;
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Forward small(small_sizes), deep(deep_sizes), *p = &small;
    auto choose = [&](int problem) { p = problem == 0 ? &small : &deep; };
    ladder.layer({format("attention forward, %d heads, %d tokens", (int)p->heads, p->T), bytes_of(small),
                  4.0 * HS * small.pairs, [&] { p->clear(); }, [&](Test *t) { p->check(t); },
                  attention_real_shape(bytes_of(gpt2_sizes), 4.0 * HS * gpt2_sizes.pairs, choose)});
    ladder.version("T x T in memory, naive", [&] { forward1(*p); });
    ladder.version("T x T in memory, tiles", [&] { forward2(*p); });
    ladder.version("one kernel, online softmax", [&] { forward3(*p); });
    ladder.version("llmc, SIMT", [&] { forward4(*p); });
#ifndef PRECISION_FP32
    ladder.version("tensor cores, p in shared", [&] { forward5(*p); });
    ladder.version("p in registers", [&] { forward6<1>(*p); });
    ladder.version("next tile in background", [&] { forward6<2>(*p); });
#endif
    if (attention_uses_tensor_cores(HS)) {
        ladder.version("llmc, on tensor cores", [&] { forward_llmc(*p); });
    }
    return ladder.end();
}
