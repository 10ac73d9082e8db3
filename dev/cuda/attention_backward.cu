// The ladder of causal attention, backward. The formulas are at the top of llmc/layers/attention.cuh.
// dout, out (B,T,C), qkv (B,T,3C), lse (B,NH,T) fp32 -> dqkv (B,T,3C). C = NH * 64.
#include "dev/cuda/attention_ladder.cuh"

struct Backward : AttentionSizes {
    std::vector<float> inp, grad, saved_out, saved_lse, want, sizes;
    DeviceArray<floatX> qkv, dout, out, dqkv;
    DeviceArray<float> lse, delta, ps, ds; // ps, ds (B,NH,T,T)

    explicit Backward(const AttentionSizes &sizes_of)
        : AttentionSizes(sizes_of), inp(random_values(3 * outputs, 1.0f, 1)), grad(random_values(outputs, 1.0f, 2)),
          saved_out((size_t)outputs), saved_lse((size_t)rows), want(inp.size(), 0.0f), sizes(inp.size(), 0.0f),
          qkv(inp), dout(grad), out(outputs), dqkv(3 * outputs), lse(rows), delta(rows), ps(rows * T), ds(rows * T) {
        cpu_attention_forward(saved_out.data(), saved_lse.data(), inp.data(), B, T, C, NH);
        for (float &x : saved_out) { x = rounded(x); }
        out.set(saved_out);
        lse.set(saved_lse);
        cpu_attention_backward(want.data(), grad.data(), inp.data(), saved_out.data(), saved_lse.data(), B, T, C, NH);
        double norms = largest_norm(grad) * (largest_norm(inp) + largest_norm(saved_out));
        float p_error = (float)(2.0 * exp_error(inp) + operand_error() + sum_tolerance(T));
#pragma omp parallel for
        for (int64_t head = 0; head < heads; head++) {
            add_bounds_of_head(head, p_error, (float)(2.0 * sum_tolerance(HS) * norms));
        }
    }
    void clear() { dqkv.poison(), delta.poison(), ps.poison(), ds.poison(); }

    // p_error: relative, of p as an operand and of the sum of T products. slope_error: of dp - delta, which are sums of
    // HS products. So ds is off by p * (p_error * |dp - delta| + slope_error).
    void add_bounds_of_head(int64_t head, float p_error, float slope_error) {
        int64_t b = head / NH, h = head % NH;
        for (int64_t i = 0; i < T; i++) {
            int64_t row = (b * T + i) * C + h * HS;
            const float *q = inp.data() + 3 * b * T * C + i * 3 * C + h * HS, *dO = grad.data() + row;
            float D = dot_of(dO, saved_out.data() + row), L = saved_lse[(size_t)(head * T + i)];
            for (int64_t j = 0; j <= i; j++) {
                const float *k = q + (j - i) * 3 * C + C, *v = k + C;
                float *dq = sizes.data() + (q - inp.data()), *dk = sizes.data() + (k - inp.data()), *dv = dk + C;
                float p = expf(SCALE * dot_of(q, k) - L);
                float ds_error = SCALE * p * (p_error * fabsf(dot_of(dO, v) - D) + slope_error);
                for (int d = 0; d < HS; d++) {
                    dq[d] += ds_error * fabsf(k[d]), dk[d] += ds_error * fabsf(q[d]);
                    dv[d] += p_error * p * fabsf(dO[d]);
                }
            }
        }
    }
    void check(Test *t) const { check_within(t, "dqkv", dqkv.get(), want, sizes, 1.0); }
};

// All versions begin with the trainer's kernel for delta.
static void compute_delta(Backward &p) { attention_delta(p.delta.data, p.out.data, p.dout.data, p.shape, 0); }

// ---- Version 1: p and ds as T x T matrices in memory ----
//
// One kernel computes p and ds, one sums dq over the keys, one sums dk and dv over the queries. The two matrices take
// 1.6 GB for 12 heads and 16 x 1,024 tokens. They are written once, p is read once and ds twice. In the first kernel
// neighbouring lanes take neighbouring keys, so each lane needs a sector of its own and uses 2 of its 32 bytes.

static __global__ void p_kernel1(float *ps, float *ds, const floatX *dout, const floatX *qkv, const float *lse,
                                 const float *delta, int T, int C, int NH) {
    int query = blockIdx.y, key = blockIdx.x * blockDim.x + threadIdx.x;
    if (key > query) { return; }
    AttentionHead head = attention_head(blockIdx.z, T, C, NH);
    const floatX *q = qkv + head.q + query * (int64_t)(3 * C), *dO = dout + head.out + query * (int64_t)C;
    const floatX *k = qkv + head.q + C + key * (int64_t)(3 * C), *v = k + C;
    float score = 0.0f, dp = 0.0f;
    for (int d = 0; d < HS; d++) { score += to_float(q[d]) * to_float(k[d]), dp += to_float(dO[d]) * to_float(v[d]); }
    float p = expf(SCALE * score - lse[head.row + query]);
    ps[(head.row + query) * T + key] = p;
    ds[(head.row + query) * T + key] = p * (dp - delta[head.row + query]);
}

// Each thread takes a channel of a query.
static __global__ void q_kernel1(floatX *dqkv, const float *ds, const floatX *qkv, int T, int C, int NH) {
    int query = blockIdx.x, d = threadIdx.x;
    AttentionHead head = attention_head(blockIdx.y, T, C, NH);
    const floatX *k = qkv + head.q + C + d;
    float sum = 0.0f;
    for (int j = 0; j <= query; j++) { sum += ds[(head.row + query) * T + j] * to_float(k[j * (int64_t)(3 * C)]); }
    dqkv[head.q + query * (int64_t)(3 * C) + d] = from_float<floatX>(SCALE * sum);
}

// Each thread takes a channel of a key.
static __global__ void kv_kernel1(floatX *dqkv, const float *ps, const float *ds, const floatX *dout, const floatX *qkv,
                                  int T, int C, int NH) {
    int key = blockIdx.x, d = threadIdx.x;
    AttentionHead head = attention_head(blockIdx.y, T, C, NH);
    float dk = 0.0f, dv = 0.0f;
    for (int i = key; i < T; i++) {
        int64_t at = (head.row + i) * T + key;
        dk += ds[at] * to_float(qkv[head.q + i * (int64_t)(3 * C) + d]);
        dv += ps[at] * to_float(dout[head.out + i * (int64_t)C + d]);
    }
    floatX *result = dqkv + head.q + C + key * (int64_t)(3 * C) + d;
    result[0] = from_float<floatX>(SCALE * dk), result[C] = from_float<floatX>(dv);
}

static void backward1(Backward &p) {
    unsigned T = (unsigned)p.T, heads = (unsigned)p.heads;
    compute_delta(p);
    p_kernel1<<<dim3(T / 64, T, heads), 64>>>(p.ps.data, p.ds.data, p.dout.data, p.qkv.data, p.lse.data, p.delta.data,
                                              p.T, p.C, p.NH);
    q_kernel1<<<dim3(T, heads), HS>>>(p.dqkv.data, p.ds.data, p.qkv.data, p.T, p.C, p.NH);
    kv_kernel1<<<dim3(T, heads), HS>>>(p.dqkv.data, p.ps.data, p.ds.data, p.dout.data, p.qkv.data, p.T, p.C, p.NH);
}

// ---- Version 2: p again from lse ----
//
// Two kernels compute tiles of p and ds in shared memory and use them at once, so no T x T matrix is in memory. As in
// the forward, a block reads 32 rows once for all its rows. In one kernel a block takes 32 queries and sums dq. In the
// other one it takes 32 keys and sums dk and dv. Each sum has one owner and a fixed order, so equal inputs give equal
// bits. The price is that p and ds are computed twice: seven products in place of five. One kernel could add its parts
// of dk and dv with atomics, but their order changes from run to run, and so would the last bits.

// A lane's two channels of a row of 64: lane and lane + 32.
struct Channels {
    float low, high;
};

__device__ __forceinline__ void add_channels(Channels *sum, float weight, const float *row) {
    sum->low += weight * row[threadIdx.x], sum->high += weight * row[threadIdx.x + WARP_SIZE];
}
__device__ __forceinline__ void store_channels(floatX *row, Channels x) {
    row[threadIdx.x] = from_float<floatX>(x.low), row[threadIdx.x + WARP_SIZE] = from_float<floatX>(x.high);
}

static __global__ void q_kernel2(floatX *dqkv, const floatX *dout, const floatX *qkv, const float *lse,
                                 const float *delta, int T, int C, int NH) {
    __shared__ float queries[TILE][HS];
    __shared__ float douts[TILE][HS];
    __shared__ float keys[TILE][HS + 1];
    __shared__ float values[TILE][HS + 1];
    __shared__ float ds[TILE][TILE];
    int first = blockIdx.x * TILE, row = threadIdx.y, lane = threadIdx.x;
    AttentionHead head = attention_head(blockIdx.y, T, C, NH);
    const floatX *q = qkv + head.q, *k = q + C, *v = k + C;
    Channels dq = {0.0f, 0.0f};
    load_tile(queries, q + first * (int64_t)(3 * C), 3 * C);
    load_tile(douts, dout + head.out + first * (int64_t)C, C);
    for (int key = 0; key <= first; key += TILE) {
        __syncthreads(); // all warps have read the previous tile
        load_tile(keys, k + key * (int64_t)(3 * C), 3 * C);
        load_tile(values, v + key * (int64_t)(3 * C), 3 * C);
        __syncthreads();
        float score = 0.0f, dp = 0.0f;
        for (int d = 0; d < HS; d++) {
            score += queries[row][d] * keys[lane][d], dp += douts[row][d] * values[lane][d];
        }
        int64_t query = head.row + first + row;
        float p = key + lane <= first + row ? expf(SCALE * score - lse[query]) : 0.0f;
        ds[row][lane] = SCALE * p * (dp - delta[query]);
        __syncwarp();
        for (int j = 0; j < TILE; j++) { add_channels(&dq, ds[row][j], keys[j]); }
    }
    store_channels(dqkv + head.q + (first + row) * (int64_t)(3 * C), dq);
}

static __global__ void kv_kernel2(floatX *dqkv, const floatX *dout, const floatX *qkv, const float *lse,
                                  const float *delta, int T, int C, int NH) {
    __shared__ float keys[TILE][HS];
    __shared__ float values[TILE][HS];
    __shared__ float queries[TILE][HS + 1];
    __shared__ float douts[TILE][HS + 1];
    __shared__ float ps[TILE][TILE];
    __shared__ float ds[TILE][TILE];
    int first = blockIdx.x * TILE, row = threadIdx.y, lane = threadIdx.x;
    AttentionHead head = attention_head(blockIdx.y, T, C, NH);
    const floatX *q = qkv + head.q, *k = q + C, *v = k + C;
    Channels dk = {0.0f, 0.0f}, dv = {0.0f, 0.0f};
    load_tile(keys, k + first * (int64_t)(3 * C), 3 * C);
    load_tile(values, v + first * (int64_t)(3 * C), 3 * C);
    for (int query = first; query < T; query += TILE) {
        __syncthreads(); // all warps have read the previous tile
        load_tile(queries, q + query * (int64_t)(3 * C), 3 * C);
        load_tile(douts, dout + head.out + query * (int64_t)C, C);
        __syncthreads();
        float score = 0.0f, dp = 0.0f;
        for (int d = 0; d < HS; d++) {
            score += keys[row][d] * queries[lane][d], dp += values[row][d] * douts[lane][d];
        }
        int64_t column = head.row + query + lane;
        float p = first + row <= query + lane ? expf(SCALE * score - lse[column]) : 0.0f;
        ps[row][lane] = p;
        ds[row][lane] = SCALE * p * (dp - delta[column]);
        __syncwarp();
        for (int i = 0; i < TILE; i++) {
            add_channels(&dk, ds[row][i], queries[i]);
            add_channels(&dv, ps[row][i], douts[i]);
        }
    }
    floatX *result = dqkv + head.q + C + (first + row) * (int64_t)(3 * C);
    store_channels(result, dk);
    store_channels(result + C, dv);
}

static void backward2(Backward &p) {
    dim3 grid((unsigned)p.T / TILE, (unsigned)p.heads), block(WARP_SIZE, TILE);
    compute_delta(p);
    kv_kernel2<<<grid, block>>>(p.dqkv.data, p.dout.data, p.qkv.data, p.lse.data, p.delta.data, p.T, p.C, p.NH);
    q_kernel2<<<grid, block>>>(p.dqkv.data, p.dout.data, p.qkv.data, p.lse.data, p.delta.data, p.T, p.C, p.NH);
}

// Version 3. The trainer's SIMT kernels. A warp takes four rows and reads 16 bytes at a time from shared memory. A
// column that a lane has read serves four rows, so there are fewer wavefronts. They take any head size up to 256.
static void backward3(Backward &p) {
    attention_backward(p.dqkv.data, p.dout.data, p.qkv.data, p.out.data, p.lse.data, p.delta.data, p.shape, 0, true);
}

// Version 4. The trainer's kernels for bf16. Tensor cores multiply, p and ds never leave the registers, 128 rows share
// a tile, and the next tile is copied while one is computed.
static void backward4(Backward &p) {
    attention_backward(p.dqkv.data, p.dout.data, p.qkv.data, p.out.data, p.lse.data, p.delta.data, p.shape, 0);
}

static double bytes_of(const AttentionSizes &s) {
    return 8.0 * sizeof(floatX) * (double)s.outputs + 4.0 * (double)s.rows;
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Backward small(small_sizes), deep(deep_sizes), *p = &small;
    auto choose = [&](int problem) { p = problem == 0 ? &small : &deep; };
    ladder.layer({format("attention backward, %d heads, %d tokens", (int)p->heads, p->T), bytes_of(small),
                  10.0 * HS * small.pairs, [&] { p->clear(); }, [&](Test *t) { p->check(t); },
                  attention_real_shape(bytes_of(gpt2_sizes), 10.0 * HS * gpt2_sizes.pairs, choose)});
    ladder.version("T x T in memory, naive", [&] { backward1(*p); });
    ladder.version("p again, two kernels", [&] { backward2(*p); });
    ladder.version("llmc, SIMT", [&] { backward3(*p); });
    if (attention_uses_tensor_cores(HS)) {
        ladder.version("llmc, on tensor cores", [&] { backward4(*p); });
    }
    return ladder.end();
}
