// The layers that the CPU trainers share: the linear layer, attention, cross entropy. Each has its formula, its forward
// and its backward. The rules of train_gpt2.c hold: formulas with = write, formulas with += add, one thread computes an
// output value in an order that depends on no thread count and no batch size, and no function allocates.
#ifndef LLMC_CPU_LAYERS_H
#define LLMC_CPU_LAYERS_H

#include "llmc/cpu/rows.h"
#include "llmc/cpu/simd.h"
#include "llmc/model/model_config.h"

// Linear layer: out = inp weight^T + bias, plus residual unless it is NULL.
// out, residual (N,OC), inp (N,C), weight (OC,C), bias (OC) or NULL. residual may be out.
static inline void matmul_forward(float *out, const float *residual, const float *inp, const float *weight,
                                  const float *bias, int64_t N, int C, int OC, const Gemm *mm) {
    if (residual != NULL && residual != out) { copy_rows(out, residual, N * OC); }
    gemm(out, OC, rows_of(inp, C), transpose_of(weight, C), bias, N, OC, C, residual != NULL, mm);
}

// dinp = dout weight; dweight += dout^T inp; dbias += sum of the rows of dout (dbias may be NULL).
static inline void matmul_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                                   const float *weight, int64_t N, int C, int OC, const Gemm *mm) {
    gemm(dinp, C, rows_of(dout, OC), rows_of(weight, C), NULL, N, C, OC, false, mm);
    gemm(dweight, C, transpose_of(dout, OC), rows_of(inp, C), NULL, OC, C, N, true, mm);
    if (dbias != NULL) { add_column_sums(dbias, dout, N, OC); }
}

// Causal multi-head attention (Vaswani et al. 2017). It works on a tile of query rows of one head at a time, so that no
// T x T matrix ever exists. With q, k, v the head's rows and scale = 1/sqrt(HS):
//   s[i,j] = scale * q[i].k[j];  p[i,j] = softmax over j <= i of s[i,j];  out[i] = sum over j of p[i,j] v[j]
// The backward recomputes p[i,j] = e^(s[i,j] - lse[i]) from lse[i] = log(sum over j of e^s[i,j]), one number per row.
#define ATTENTION_TILE 32 // query rows

// Floats of T keys or values when they are packed, and of a thread's scratch: three such matrices and two tiles.
static inline int64_t attention_packed_floats(int64_t T, int HS, const GemmKernel *kernel) {
    return max_i64(gemm_packed_floats(HS, T, kernel), gemm_packed_floats(T, HS, kernel));
}
static inline int64_t attention_scratch_floats(int64_t T, int HS, const GemmKernel *kernel) {
    return 3 * attention_packed_floats(T, HS, kernel) + 2 * ATTENTION_TILE * round_up_i64(T, VF_WIDTH);
}

// Query rows i = 0..rows-1 of one head stand at positions first+i and see keys 0..first+i. The sum of e^(s - max)
// divides out at the end, not each p. q (rows,HS), kT (HS,keys), v (keys,HS); out: row i at out + i * out_stride;
// lse (rows) or NULL.
static inline void attention_tile_forward(float *out, int64_t out_stride, float *lse, GemmMatrix q, GemmMatrix kT,
                                          GemmMatrix v, int64_t first, int rows, int HS, float *scratch,
                                          const Gemm *mm) {
    float scale = 1.0f / sqrtf((float)HS), *p = scratch, sums[ATTENTION_TILE]; // p (rows, keys)
    int64_t keys = first + rows, ld = round_up_i64(keys, VF_WIDTH);
    gemm_serial(p, ld, q, kT, NULL, rows, keys, HS, false, mm);
    for (int i = 0; i < rows; i++) {
        float *row = p + i * ld;
        int64_t visible = first + i + 1;
        for (int64_t j = 0; j < visible; j++) { row[j] *= scale; }
        float max = row_max(row, visible);
        sums[i] = row_exp(row, row, max, visible);
        for (int64_t j = visible; j < keys; j++) { row[j] = 0.0f; }
        if (lse != NULL) { lse[i] = max + logf(sums[i]); }
    }
    gemm_serial(out, out_stride, rows_of(p, ld), v, NULL, rows, HS, keys, false, mm);
    for (int i = 0; i < rows; i++) {
        for (int d = 0; d < HS; d++) { out[i * out_stride + d] /= sums[i]; }
    }
}

// The heads of a model: NH of queries, KV of keys and values, each of HS channels. NH/KV neighbouring heads of queries
// share a head of keys and values (grouped-query attention, Ainslie et al. 2023); GPT-2 has KV = NH. A row of qkv holds
// the queries of all heads, then the keys, then the values.
typedef struct {
    int NH, KV, HS;
} Heads;

static inline Heads heads_of(const ModelConfig *config) {
    Heads heads = {config->num_heads, config->num_kv_heads, config->head_size};
    return heads;
}
static inline int64_t heads_q(Heads h) { return (int64_t)h.NH * h.HS; }                // channels of out
static inline int64_t heads_qkv(Heads h) { return (int64_t)(h.NH + 2 * h.KV) * h.HS; } // channels of qkv

// out (B,T,NH*HS), lse (B,NH,T), qkv (B,T,(NH+2KV)*HS). Keys and values are packed once for all tiles of all heads that
// share them. scratch: attention_scratch_floats for each thread.
static inline void attention_forward(float *out, float *lse, const float *qkv, int B, int T, Heads heads,
                                     float *scratch, const Gemm *mm) {
    int HS = heads.HS, NH = heads.NH, KV = heads.KV, group = NH / KV;
    int64_t stride = heads_qkv(heads), C = heads_q(heads);
    int64_t each = attention_scratch_floats(T, HS, mm->kernel), packed = attention_packed_floats(T, HS, mm->kernel);
#pragma omp parallel for schedule(dynamic)
    for (int64_t item = 0; item < (int64_t)B * KV; item++) {
        int64_t kv = item % KV, b = item / KV;
        const float *row = qkv + b * T * stride, *k = row + C + kv * HS, *v = k + (int64_t)KV * HS;
        float *own = scratch + gemm_thread() * each;
        GemmMatrix kT = gemm_pack_serial(own, transpose_of(k, stride), HS, T, mm->kernel);
        GemmMatrix values = gemm_pack_serial(own + packed, rows_of(v, stride), T, HS, mm->kernel);
        for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
            for (int64_t first = 0; first < T; first += ATTENTION_TILE) {
                int rows = (int)min_i64(ATTENTION_TILE, T - first);
                attention_tile_forward(out + (b * T + first) * C + h * HS, C, lse + (b * NH + h) * T + first,
                                       rows_of(row + first * stride + h * HS, stride), kT, values, first, rows, HS,
                                       own + 2 * packed, mm);
            }
        }
    }
}

// One query row of the backward: the products q.k become p, and dp becomes ds. dot = do.out; lse: of this row.
static inline void attention_row_backward(float *p, float *dp, float lse, float dot, float scale, int64_t visible,
                                          int64_t keys) {
    float *ds = dp; // in place
    for (int64_t j = 0; j < visible; j++) { p[j] *= scale; }
    row_exp(p, p, lse, visible); // the softmax
    for (int64_t j = 0; j < visible; j++) { ds[j] = scale * p[j] * (dp[j] - dot); }
    for (int64_t j = visible; j < keys; j++) { p[j] = ds[j] = 0.0f; }
}

// The backward of one head h of queries, whose keys and values are packed in `own`. Adds to dq, and to dk and dv (rows
// `stride` apart), which its group shares.
static inline void attention_head_backward(float *dq, float *dk, float *dv, const float *q, const float *dout,
                                           const float *out, const float *lse, int T, Heads heads,
                                           const GemmMatrix packed_keys[3], float *tiles, const Gemm *mm) {
    int64_t stride = heads_qkv(heads), C = heads_q(heads), HS = heads.HS;
    float scale = 1.0f / sqrtf((float)HS);
    for (int64_t first = 0; first < T; first += ATTENTION_TILE) {
        int rows = (int)min_i64(ATTENTION_TILE, T - first);
        int64_t keys = first + rows, ld = round_up_i64(keys, VF_WIDTH), at = first * C;
        float *p = tiles, *ds = p + rows * ld; // (rows, keys)
        GemmMatrix q_tile = rows_of(q + first * stride, stride), dO = rows_of(dout + at, C);
        gemm_serial(p, ld, q_tile, packed_keys[1], NULL, rows, keys, HS, false, mm);
        gemm_serial(ds, ld, dO, packed_keys[2], NULL, rows, keys, HS, false, mm); // dp at first
        for (int i = 0; i < rows; i++) {
            float dot = row_dot(dout + at + i * C, out + at + i * C, HS);
            attention_row_backward(p + i * ld, ds + i * ld, lse[first + i], dot, scale, first + i + 1, keys);
        }
        gemm_serial(dq + first * stride, stride, rows_of(ds, ld), packed_keys[0], NULL, rows, HS, keys, true, mm);
        gemm_serial(dk, stride, transpose_of(ds, ld), q_tile, NULL, keys, HS, rows, true, mm);
        gemm_serial(dv, stride, transpose_of(p, ld), dO, NULL, keys, HS, rows, true, mm);
    }
}

// With do = dout:
//   dp[i,j] = do[i].v[j];  ds[i,j] = scale * p[i,j] * (dp[i,j] - do[i].out[i])     (the softmax's gradient)
//   dq[i] += sum_j ds[i,j] k[j];  dk[j] += sum_i ds[i,j] q[i];  dv[j] += sum_i p[i,j] do[i]
// Shapes as in attention_forward. All heads of a group and all their tiles add to one dk and one dv, so one thread
// takes them in order.
static inline void attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out,
                                      const float *lse, int B, int T, Heads heads, float *scratch, const Gemm *mm) {
    int HS = heads.HS, NH = heads.NH, KV = heads.KV, group = NH / KV;
    int64_t stride = heads_qkv(heads), C = heads_q(heads);
    int64_t each = attention_scratch_floats(T, HS, mm->kernel), packed = attention_packed_floats(T, HS, mm->kernel);
#pragma omp parallel for schedule(dynamic)
    for (int64_t item = 0; item < (int64_t)B * KV; item++) {
        int64_t kv = item % KV, b = item / KV, row = b * T * stride, key = row + C + kv * HS, value = key + KV * HS;
        const float *k = qkv + key, *v = qkv + value;
        float *own = scratch + gemm_thread() * each;
        const GemmMatrix packed_keys[3] = {
            gemm_pack_serial(own, rows_of(k, stride), T, HS, mm->kernel),
            gemm_pack_serial(own + packed, transpose_of(k, stride), HS, T, mm->kernel),
            gemm_pack_serial(own + 2 * packed, transpose_of(v, stride), HS, T, mm->kernel)};
        for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
            int64_t q = row + h * HS, o = b * T * C + h * HS;
            attention_head_backward(dqkv + q, dqkv + key, dqkv + value, qkv + q, dout + o, out + o,
                                    lse + (b * NH + h) * T, T, heads, packed_keys, own + 3 * packed, mm);
        }
    }
}

// Attention of `rows` new rows of one sequence at positions first .. first+rows-1, beside the keys and values of all
// earlier rows, for sampling. keys, values (T, KV*HS): the cache, to which the new rows are added. out (rows, NH*HS),
// qkv (rows, (NH+2KV)*HS).
static inline void attention_with_cache(float *out, float *keys, float *values, const float *qkv, int first, int rows,
                                        Heads heads, float *scratch, int64_t scratch_floats, const Gemm *mm) {
    int64_t stride = heads_qkv(heads), C = heads_q(heads), width = (int64_t)heads.KV * heads.HS;
    for (int64_t i = 0; i < rows; i++) {
        memcpy(keys + (first + i) * width, qkv + i * stride + C, (size_t)width * sizeof(float));
        memcpy(values + (first + i) * width, qkv + i * stride + C + width, (size_t)width * sizeof(float));
    }
#pragma omp parallel for schedule(static)
    for (int h = 0; h < heads.NH; h++) {
        int64_t kv = (int64_t)(h / (heads.NH / heads.KV)) * heads.HS;
        GemmMatrix kT = transpose_of(keys + kv, width), v = rows_of(values + kv, width);
        for (int at = 0; at < rows; at += ATTENTION_TILE) {
            GemmMatrix q = rows_of(qkv + at * stride + h * heads.HS, stride);
            attention_tile_forward(out + at * C + h * heads.HS, C, NULL, q, kT, v, first + at,
                                   (int)min_i64(ATTENTION_TILE, rows - at), heads.HS,
                                   scratch + gemm_thread() * scratch_floats, mm);
        }
    }
}

// Softmax and cross entropy. One pass over the logits computes the forward and the backward:
//   losses[i] = log(sum over v of exp(logits[i,v])) - logits[i,target]
//   logits[i,v] becomes its own gradient, dloss * (softmax(logits[i])[v] - (v == target)), if wanted
// logits (N,Vp), with V columns in use; targets, losses (N).
static inline void cross_entropy(float *losses, float *logits, const int32_t *targets, int64_t N, int V, int Vp,
                                 float dloss, bool wants_gradient) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < N; i++) {
        float *row = logits + i * Vp;
        float target_logit = row[targets[i]], max = row_max(row, V);
        float sum = row_exp(row, row, max, V);
        losses[i] = logf(sum) + max - target_logit;
        if (!wants_gradient) { continue; }
        float factor = dloss / sum;
        for (int v = 0; v < V; v++) { row[v] *= factor; }
        row[targets[i]] -= dloss;
    }
}

#endif // LLMC_CPU_LAYERS_H
