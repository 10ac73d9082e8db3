// Trains GPT-2 on the CPU, in fp32. Read the file from top to bottom:
//
//   1. the layers      each with its formula, its forward and its backward
//   2. the model       the memory plan, a forward and a backward pass over all layers
//   3. the update      gradient norm, AdamW, and Muon if --optimizer asks for it
//   4. generation      the model a few tokens at a time, with a cache of keys and values
//   5. the program     load, plan, train, evaluate, sample, save
//
// Shapes use the field's letters: B sequences of T tokens, C channels, NH heads of size HS = C / NH, L layers, V tokens
// in the vocabulary (Vp with padding). N = B*T counts rows if a layer does not care about sequences. Matrices are
// row-major. Weights are (out, in).
//
// Three rules hold throughout:
// - The formula above a backward function says which gradients it writes (=), and to which it adds (+=). The gradients
//   of parameters add up over the micro-batches of a step, which begins with zeros.
// - One thread computes an output value, in an order that depends on no thread count and no batch size. The weights
//   therefore have equal bits on 1 thread and on 64, and a row has equal bits alone and in a batch.
// - No function allocates. Memory comes from the plan in section 2.
#include <math.h>
#include <string.h>

#include "llmc/base/utils.h"
#include "llmc/model/gpt2.h" // the tables of this trainer; the rooms loop over them
#include "llmc/model/activations.h"
#include "llmc/model/memory_plan.h"
#include "llmc/cpu/kernels.h"
#include "llmc/cpu/muon.h"
#include "llmc/cpu/nonfinite.h"
#include "llmc/cpu/packed_weights.h"
#include "llmc/cpu/rows.h"
#include "llmc/cpu/simd.h"
#include "llmc/run/one_rank.h"
#include "llmc/run/train_loop.h"

// ---------------------------------------------------------------------------------------------------------------------
// 1. The layers

// Token and position embedding: out[b,t,:] = wte[tokens[b,t],:] + wpe[first_position + t,:].
// out (B,T,C), tokens (B,T), wte (Vp,C), wpe (maxT,C).
static void embedding_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe, int B, int T,
                              int C, int first_position) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < (int64_t)B * T; row++) {
        const float *token = wte + (int64_t)tokens[row] * C;
        const float *position = wpe + (first_position + row % T) * C;
        for (int c = 0; c < C; c++) { out[row * C + c] = token[c] + position[c]; }
    }
}

// dwte[tokens[b,t],:] += dout[b,t,:], dwpe[t,:] += dout[b,t,:]. A token may occur in several rows, so threads split the
// channels, not the rows.
static void embedding_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens, int B, int T,
                               int C) {
#pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < C; c0 += COLUMN_BLOCK) {
        int c1 = (int)min_i64(C, c0 + COLUMN_BLOCK);
        for (int64_t row = 0; row < (int64_t)B * T; row++) {
            float *dtoken = dwte + (int64_t)tokens[row] * C;
            float *dposition = dwpe + row % T * C;
            for (int c = c0; c < c1; c++) {
                dtoken[c] += dout[row * C + c];
                dposition[c] += dout[row * C + c];
            }
        }
    }
}

// LayerNorm over the channels of each row (Ba, Kiros, Hinton 2016):
//   mean = sum(x)/C, rstd = 1/sqrt(sum((x-mean)^2)/C + epsilon), out = (x - mean) * rstd * weight + bias
// out, inp (N,C); mean, rstd (N), kept for the backward; weight, bias (C).
static void layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                              const float *bias, int64_t N, int C) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++) {
        const float *x = inp + row * C;
        float *y = out + row * C;
        float m = row_sum(x, C) / (float)C;
        for (int c = 0; c < C; c++) { y[c] = x[c] - m; }
        float r = 1.0f / sqrtf(row_dot(y, y, C) / (float)C + GPT2_LAYERNORM_EPSILON);
        for (int c = 0; c < C; c++) { y[c] = y[c] * r * weight[c] + bias[c]; }
        mean[row] = m;
        rstd[row] = r;
    }
}

// With n = (x - mean) * rstd and g = weight * dout of a row, and means over the row:
//   dinp += rstd * (g - mean(g) - n * mean(g * n))
//   dweight += sum over rows of dout * n; dbias += sum over rows of dout
static void layernorm_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                               const float *mean, const float *rstd, const float *weight, int64_t N, int C) {
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < N; row++) {
            const float *x = inp + row * C, *dy = dout + row * C;
            float *dx = dinp + row * C;
            float m = mean[row], r = rstd[row];
            vf sum_g = vf_set1(0.0f), sum_gn = vf_set1(0.0f);
            for (int c = 0; c < C; c += VF_WIDTH) {
                vf g = vf_load_n(weight + c, C - c) * vf_load_n(dy + c, C - c);
                sum_g += g;
                sum_gn += g * ((vf_load_n(x + c, C - c) - vf_set1(m)) * vf_set1(r)); // lanes past C have g = 0
            }
            float mean_g = vf_sum(sum_g) / (float)C, mean_gn = vf_sum(sum_gn) / (float)C;
            for (int c = 0; c < C; c++) {
                float n = (x[c] - m) * r;
                dx[c] += r * (weight[c] * dy[c] - mean_g - n * mean_gn);
            }
        }
#pragma omp for schedule(static)
        for (int c0 = 0; c0 < C; c0 += COLUMN_BLOCK) {
            int c1 = (int)min_i64(C, c0 + COLUMN_BLOCK);
            for (int64_t row = 0; row < N; row++) {
                const float *x = inp + row * C, *dy = dout + row * C;
                for (int c = c0; c < c1; c++) {
                    dweight[c] += dy[c] * ((x[c] - mean[row]) * rstd[row]);
                    dbias[c] += dy[c];
                }
            }
        }
    }
}

// Linear layer: out = inp weight^T + bias, plus residual unless it is NULL.
// out, residual (N,OC), inp (N,C), weight (OC,C), bias (OC) or NULL. residual may be out.
static void matmul_forward(float *out, const float *residual, const float *inp, const float *weight, const float *bias,
                           int64_t N, int C, int OC, const Gemm *mm) {
    if (residual != NULL && residual != out) { copy_rows(out, residual, N * OC); }
    gemm(out, OC, rows_of(inp, C), transpose_of(weight, C), bias, N, OC, C, residual != NULL, mm);
}

// dinp = dout weight; dweight += dout^T inp; dbias += sum of the rows of dout (dbias may be NULL).
static void matmul_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                            const float *weight, int64_t N, int C, int OC, const Gemm *mm) {
    gemm(dinp, C, rows_of(dout, OC), rows_of(weight, C), NULL, N, C, OC, false, mm);
    gemm(dweight, C, transpose_of(dout, OC), rows_of(inp, C), NULL, OC, C, N, true, mm);
    if (dbias != NULL) { add_column_sums(dbias, dout, N, OC); }
}

// GELU in the tanh form that GPT-2 uses (Hendrycks, Gimpel 2016):
//   gelu(x) = x/2 * (1 + tanh(u)), u = sqrt(2/pi) * (x + 0.044715 x^3)     another activation is another MODEL_VARIANT
#define GELU_SCALE 0.79788456080286536f // sqrt(2/pi)
#define GELU_CUBIC 0.044715f

static vf gelu_tanh(vf x) { return vf_tanh(vf_set1(GELU_SCALE) * (x + vf_set1(GELU_CUBIC) * x * x * x)); }

static void gelu_forward(float *out, const float *inp, int64_t n) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += VF_WIDTH) {
        vf x = vf_load_n(inp + i, n - i);
        vf_store_n(out + i, vf_set1(0.5f) * x * (vf_set1(1.0f) + gelu_tanh(x)), n - i);
    }
}

// dinp = gelu'(inp) * dout, gelu'(x) = (1 + tanh(u))/2 + x/2 * (1 - tanh(u)^2) * sqrt(2/pi) * (1 + 3 * 0.044715 x^2)
static void gelu_backward(float *dinp, const float *inp, const float *dout, int64_t n) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += VF_WIDTH) {
        vf x = vf_load_n(inp + i, n - i), one = vf_set1(1.0f), half = vf_set1(0.5f);
        vf th = gelu_tanh(x);
        vf du = vf_set1(GELU_SCALE) * (one + vf_set1(3.0f * GELU_CUBIC) * x * x);
        vf slope = half * (one + th) + half * x * (one - th * th) * du;
        vf_store_n(dinp + i, slope * vf_load_n(dout + i, n - i), n - i);
    }
}

// Causal multi-head attention (Vaswani et al. 2017). It works on a tile of query rows of one head at a time, so that no
// T x T matrix ever exists. With q, k, v the head's rows and scale = 1/sqrt(HS):
//   s[i,j] = scale * q[i].k[j];  p[i,j] = softmax over j <= i of s[i,j];  out[i] = sum over j of p[i,j] v[j]
// The backward recomputes p[i,j] = e^(s[i,j] - lse[i]) from lse[i] = log(sum over j of e^s[i,j]), one number per row.
#define ATTENTION_TILE 32 // query rows

// Floats of T keys or values when they are packed, and of a thread's scratch: three such matrices and two tiles.
static int64_t attention_packed_floats(int64_t T, int HS, const GemmKernel *kernel) {
    return max_i64(gemm_packed_floats(HS, T, kernel), gemm_packed_floats(T, HS, kernel));
}
static int64_t attention_scratch_floats(int64_t T, int HS, const GemmKernel *kernel) {
    return 3 * attention_packed_floats(T, HS, kernel) + 2 * ATTENTION_TILE * round_up_i64(T, VF_WIDTH);
}

// Query rows i = 0..rows-1 of one head stand at positions first+i and see keys 0..first+i. The sum of e^(s - max)
// divides out at the end, not each p. q (rows,HS), kT (HS,keys), v (keys,HS); out: row i at out + i * out_stride;
// lse (rows) or NULL.
static void attention_tile_forward(float *out, int64_t out_stride, float *lse, GemmMatrix q, GemmMatrix kT,
                                   GemmMatrix v, int64_t first, int rows, int HS, float *scratch, const Gemm *mm) {
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

// out (B,T,C), lse (B,NH,T), qkv (B,T,3C): the rows of q, k and v side by side, each split into NH heads.
// Keys and values are packed once for all tiles of a head. scratch: attention_scratch_floats for each thread.
static void attention_forward(float *out, float *lse, const float *qkv, int B, int T, int C, int NH, float *scratch,
                              const Gemm *mm) {
    int HS = C / NH, stride = 3 * C;
    int64_t each = attention_scratch_floats(T, HS, mm->kernel), packed = attention_packed_floats(T, HS, mm->kernel);
#pragma omp parallel for schedule(dynamic)
    for (int64_t item = 0; item < (int64_t)B * NH; item++) {
        int64_t h = item % NH, b = item / NH;
        const float *q = qkv + b * T * stride + h * HS, *k = q + C, *v = k + C;
        float *own = scratch + gemm_thread() * each;
        GemmMatrix kT = gemm_pack_serial(own, transpose_of(k, stride), HS, T, mm->kernel);
        GemmMatrix values = gemm_pack_serial(own + packed, rows_of(v, stride), T, HS, mm->kernel);
        for (int64_t first = 0; first < T; first += ATTENTION_TILE) {
            int rows = (int)min_i64(ATTENTION_TILE, T - first);
            attention_tile_forward(out + (b * T + first) * C + h * HS, C, lse + (b * NH + h) * T + first,
                                   rows_of(q + first * stride, stride), kT, values, first, rows, HS, own + 2 * packed,
                                   mm);
        }
    }
}

// One query row of the backward: the products q.k become p, and dp becomes ds. dot = do.out; lse: of this row.
static void attention_row_backward(float *p, float *dp, float lse, float dot, float scale, int64_t visible,
                                   int64_t keys) {
    float *ds = dp; // in place
    for (int64_t j = 0; j < visible; j++) { p[j] *= scale; }
    row_exp(p, p, lse, visible); // the softmax
    for (int64_t j = 0; j < visible; j++) { ds[j] = scale * p[j] * (dp[j] - dot); }
    for (int64_t j = visible; j < keys; j++) { p[j] = ds[j] = 0.0f; }
}

// With do = dout:
//   dp[i,j] = do[i].v[j];  ds[i,j] = scale * p[i,j] * (dp[i,j] - do[i].out[i])     (the softmax's gradient)
//   dq[i] += sum_j ds[i,j] k[j];  dk[j] += sum_i ds[i,j] q[i];  dv[j] += sum_i p[i,j] do[i]
// dqkv (B,T,3C), dout, out (B,T,C), lse (B,NH,T). All tiles of a head add to one dk and one dv, so one thread takes
// these tiles in order.
static void attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out, const float *lse,
                               int B, int T, int C, int NH, float *scratch, const Gemm *mm) {
    int HS = C / NH, stride = 3 * C;
    int64_t each = attention_scratch_floats(T, HS, mm->kernel), packed = attention_packed_floats(T, HS, mm->kernel);
    float scale = 1.0f / sqrtf((float)HS);
#pragma omp parallel for schedule(dynamic)
    for (int64_t item = 0; item < (int64_t)B * NH; item++) {
        int64_t h = item % NH, b = item / NH, begin = b * T * stride + h * HS;
        const float *q = qkv + begin, *k = q + C, *v = k + C;
        float *dq = dqkv + begin, *dk = dq + C, *dv = dk + C, *own = scratch + gemm_thread() * each;
        GemmMatrix keys_packed = gemm_pack_serial(own, rows_of(k, stride), T, HS, mm->kernel);
        GemmMatrix kT = gemm_pack_serial(own + packed, transpose_of(k, stride), HS, T, mm->kernel);
        GemmMatrix vT = gemm_pack_serial(own + 2 * packed, transpose_of(v, stride), HS, T, mm->kernel);
        for (int64_t first = 0; first < T; first += ATTENTION_TILE) {
            int rows = (int)min_i64(ATTENTION_TILE, T - first);
            int64_t keys = first + rows, ld = round_up_i64(keys, VF_WIDTH), at = (b * T + first) * C + h * HS;
            float *p = own + 3 * packed, *ds = p + rows * ld; // (rows, keys)
            GemmMatrix q_tile = rows_of(q + first * stride, stride), dO = rows_of(dout + at, C);
            gemm_serial(p, ld, q_tile, kT, NULL, rows, keys, HS, false, mm);
            gemm_serial(ds, ld, dO, vT, NULL, rows, keys, HS, false, mm); // dp at first
            for (int i = 0; i < rows; i++) {
                float dot = row_dot(dout + at + i * C, out + at + i * C, HS);
                attention_row_backward(p + i * ld, ds + i * ld, lse[item * T + first + i], dot, scale, first + i + 1,
                                       keys);
            }
            gemm_serial(dq + first * stride, stride, rows_of(ds, ld), keys_packed, NULL, rows, HS, keys, true, mm);
            gemm_serial(dk, stride, transpose_of(ds, ld), q_tile, NULL, keys, HS, rows, true, mm);
            gemm_serial(dv, stride, transpose_of(p, ld), dO, NULL, keys, HS, rows, true, mm);
        }
    }
}

// Softmax and cross entropy. One pass over the logits computes the forward and the backward:
//   losses[i] = log(sum over v of exp(logits[i,v])) - logits[i,target]
//   logits[i,v] becomes its own gradient, dloss * (softmax(logits[i])[v] - (v == target)), if wanted
// logits (N,Vp), with V columns in use; targets, losses (N).
static void cross_entropy(float *losses, float *logits, const int32_t *targets, int64_t N, int V, int Vp, float dloss,
                          bool wants_gradient) {
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

// ---------------------------------------------------------------------------------------------------------------------
// 2. The model

// An activation has a copy for each layer (stride > 0), or one copy (stride 0).
typedef struct {
    float *data;
    int64_t stride;
} Activation;

#define ACTIVATION_FIELD(name, ...) Activation name;
typedef struct {
    MODEL_ACTIVATIONS(ACTIVATION_FIELD)
} Activations;

// Holds the activations by name. A layer's activation belongs to one layer.
#define ACTIVATION_POINTER(name, ...) float *name;
typedef struct {
    MODEL_ACTIVATIONS(ACTIVATION_POINTER)
} LayerActs;

// Holds 16 tensors by name, of parameters or of their gradients. A tensor of a block belongs to one layer.
#define TENSOR_POINTER(name, ...) float *name;
typedef struct {
    MODEL_PARAMETERS(TENSOR_POINTER)
} Tensors;

static float *of_layer(Activation a, int layer) { return a.data == NULL ? NULL : a.data + layer * a.stride; }

typedef struct {
    RunKind kind;
    int B, T;               // the largest batch; generation sees T positions
    int recompute;          // the level of --recompute
    int eval_T;             // the longest sequence of an evaluation, which may exceed T. 0: none
    int64_t eval_sequences; // the most completions of an evaluation
    OptimizerKind optimizer;
} RunShape;

typedef struct {
    float *m, *v;      // AdamW's moments. m is the momentum of Muon's matrices, v (param_length_of_v) leaves them out
    float *muon;       // scratch
    double *norm_sums; // sums of the squares of NORM_BLOCK gradients each
} Optimizer;

// Generation passes a few new rows at a time through the model, beside the keys and values of all earlier rows.
typedef struct {
    int32_t *history;      // (T): the tokens so far
    int length;            // tokens in the history
    int cached;            // tokens of the history whose keys and values are in the cache
    float *cache;          // (L,2,T,C): keys and values
    float *rows;           // the activations of GENERATE_ROWS rows, of one layer at a time
    float *logits, *probs; // (V), of the last row
    float *packed;         // the weights in bf16; NULL: the run multiplies in fp32
} Generation;

typedef struct {
    ModelConfig config;
    RunShape shape;
    float *params, *grads;     // (number of parameters) each, in the order of the table
    Activations acts;          // with the gradients of activations, for one layer at a time
    int32_t *tokens, *targets; // (B,T): the batch
    int chunk_rows;            // rows of logits that exist at a time
    double *eval_means;        // (eval_sequences): the mean loss of each completion, by its number
    Gemm mm;                   // the matrix multiply: kernel and workspace
    float *attention_scratch;
    Optimizer optimizer;
    Generation generation;
} Model;

#define CHUNK_ROWS 256   // enough rows for the matrix multiply to run at full speed
#define GENERATE_ROWS 64 // tokens of a prompt that go through the model at once
#define NORM_BLOCK 65536 // elements whose squares are summed by one thread

// Finds the slots of all activations.
static void activation_slots(Activations *acts, ActSlot slots[NUM_ACTIVATIONS]) {
    int n = 0;
#define ACTIVATION_SLOT(name, ...) slots[n++] = (ActSlot){&acts->name.data, &acts->name.stride};
    MODEL_ACTIVATIONS(ACTIVATION_SLOT)
}

// A batch has at most (B,T) rows, or one sequence of an evaluation.
static ActShape activation_shape(const Model *model) {
    const RunShape *run = &model->shape;
    int64_t N = run->kind == RUN_GENERATES ? 0 : max_i64((int64_t)run->B * run->T, run->eval_T);
    int level = run->kind == RUN_TRAINS ? run->recompute : NO_BACKWARD;
    ActShape shape = {model->config, N, N, min_i64(N, CHUNK_ROWS), level, false, ON_CPU, PLAN_F32};
    return shape;
}

// Plans the batch and all activations. Plans the activations' gradients only if the run trains.
static void plan_activations(Model *model, MemoryPlan *plan) {
    ActShape shape = activation_shape(model);
    ActSlot slots[NUM_ACTIVATIONS];
    int count = model->shape.kind == RUN_TRAINS ? NUM_ACTIVATIONS : ACT_dresidual;
    model->chunk_rows = (int)shape.chunk_rows;
    plan_add(plan, &model->tokens, "tokens", PLAN_DATA, PLAN_I32, shape1(shape.rows), FORWARD, BACKWARD_ATTENTION);
    plan_add(plan, &model->targets, "targets", PLAN_DATA, PLAN_I32, shape1(shape.rows), FORWARD, LM_HEAD);
    activation_slots(&model->acts, slots);
    for (int i = 0; i < count; i++) { plan_activation(plan, &shape, i, slots[i]); }
}

static void plan_generation(Model *model, MemoryPlan *plan) {
    int L = model->config.num_layers, C = model->config.channels, V = model->config.vocab_size, at = GENERATE;
    int T = model->shape.T;
    PlanCategory act = PLAN_ACTIVATION, work = PLAN_WORKSPACE;
    Generation *g = &model->generation;
    plan_add(plan, &g->history, "history", PLAN_DATA, PLAN_I32, shape1(T), at, at);
    plan_add(plan, &g->cache, "kv_cache", act, PLAN_F32, shape4(L, 2, T, C), at, at);
    plan_add(plan, &g->rows, "new_rows", act, PLAN_F32, shape2(GENERATE_ROWS, 10 * C + 2), at, at); // generate_rows
    plan_add(plan, &g->logits, "new_logits", act, PLAN_F32, shape1(V), at, at);
    int64_t packed = packed_weights_floats(&model->config, model->mm.kernel);
    plan_add(plan, &g->packed, "packed_weights", work, PLAN_F32, shape1(packed), at, at);
    plan_add(plan, &g->probs, "sampler_probs", work, PLAN_F32, shape1(V), at, at);
}

// Plans every buffer of a run that multiplies with this kernel.
static void gpt2_plan(Model *model, MemoryPlan *plan, const ModelConfig *config, RunShape shape,
                      const GemmKernel *kernel) {
    memset(model, 0, sizeof(*model));
    model->config = *config, model->shape = shape, model->mm.kernel = kernel;
    bool trains = shape.kind == RUN_TRAINS;
    int64_t num_params = model_num_params(config), trained = trains ? num_params : 0;
    int64_t with_v = trains ? param_length_of_v(config, shape.optimizer) : 0;
    int64_t muon = trains ? muon_most_scratch(config, shape.optimizer) : 0;
    PlanCategory work = PLAN_WORKSPACE;
    plan_init(plan, phase_names);
    plan_add(plan, &model->params, "params", PLAN_PARAMETER, PLAN_F32, shape1(num_params), FORWARD, GENERATE);
    plan_add(plan, &model->grads, "grads", PLAN_GRADIENT, PLAN_F32, shape1(trained), FORWARD, GENERATE);
    plan_add(plan, &model->optimizer.m, "adam_m", PLAN_OPTIMIZER, PLAN_F32, shape1(trained), FORWARD, GENERATE);
    plan_add(plan, &model->optimizer.v, "adam_v", PLAN_OPTIMIZER, PLAN_F32, shape1(with_v), FORWARD, GENERATE);
    plan_activations(model, plan);
    plan_add(plan, &model->optimizer.norm_sums, "norm_sums", work, PLAN_F64, shape1(ceil_div_i64(trained, NORM_BLOCK)),
             UPDATE, UPDATE);
    plan_add(plan, &model->optimizer.muon, "muon_scratch", work, PLAN_F32, shape1(muon), UPDATE, UPDATE);
    plan_generation(model, plan);
    plan_add(plan, &model->eval_means, "eval_means", work, PLAN_F64, shape1(shape.eval_sequences), FORWARD, GENERATE);
    plan_add(plan, &model->mm.workspace, "gemm_workspace", work, PLAN_F32,
             shape1(gemm_workspace_floats(gemm_max_threads())), FORWARD, GENERATE);
    int64_t scratch = attention_scratch_floats(max_i64(shape.T, shape.eval_T), config->channels / config->num_heads,
                                               model->mm.kernel);
    plan_add(plan, &model->attention_scratch, "attention_tiles", work, PLAN_F32, shape2(gemm_max_threads(), scratch),
             FORWARD, GENERATE);
    plan_layout(plan);
}

// Sets the moments of the optimizer to zero. A run that does not train has none.
static void clear_moments(Model *model) {
    if (model->optimizer.m == NULL) { return; }
    clear_rows(model->optimizer.m, model_num_params(&model->config));
    clear_rows(model->optimizer.v, param_length_of_v(&model->config, model->shape.optimizer));
}

// Finds the tensors of a layer in an array of all parameters, or of all gradients.
static Tensors tensors_of(const ModelConfig *config, float *all, int layer) {
    Tensors tensors;
#define TENSOR_OF_LAYER(name, ...) tensors.name = all + param_layer_offset(config, PARAM_##name, layer);
    MODEL_PARAMETERS(TENSOR_OF_LAYER)
    return tensors;
}

static Tensors params_of(const Model *model, int layer) { return tensors_of(&model->config, model->params, layer); }
static Tensors grads_of(const Model *model, int layer) { return tensors_of(&model->config, model->grads, layer); }

// Finds the activations of a layer, and the activations that no layer owns.
static LayerActs acts_of(const Model *model, int layer) {
    LayerActs acts;
#define ACTIVATION_OF_LAYER(name, ...) acts.name = of_layer(model->acts.name, layer);
    MODEL_ACTIVATIONS(ACTIVATION_OF_LAYER)
    return acts;
}

// Computes a block up to gelu, the input of fcproj:
//   mid = x + attproj(attention(qkv(ln1(x)))); the block's output is mid + fcproj(gelu(fc(ln2(mid))))
static void block_forward(Model *model, int layer, int B, int T) {
    int C = model->config.channels, NH = model->config.num_heads;
    int64_t N = (int64_t)B * T;
    Tensors p = params_of(model, layer);
    LayerActs a = acts_of(model, layer);
    const Gemm *mm = &model->mm;
    layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.residual, p.ln1w, p.ln1b, N, C);
    matmul_forward(a.qkv, NULL, a.ln1, p.qkvw, p.qkvb, N, C, 3 * C, mm);
    attention_forward(a.att, a.att_lse, a.qkv, B, T, C, NH, model->attention_scratch, mm);
    matmul_forward(a.residual_mid, a.residual, a.att, p.attprojw, p.attprojb, N, C, C, mm);
    layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.residual_mid, p.ln2w, p.ln2b, N, C);
    matmul_forward(a.fc, NULL, a.ln2, p.fcw, p.fcb, N, C, 4 * C, mm);
    gelu_forward(a.gelu, a.fc, N * 4 * C);
}

// Computes the lm_head and the loss for a chunk of rows at a time: logits = lnf wte^T. Returns the mean loss. The next
// chunk overwrites the logits. The lm_head's backward therefore runs here too, if a gradient is
// wanted: it sets dlnf and adds to dwte. dloss is the gradient of each row's loss.
static double lm_head_forward_backward(Model *model, int64_t N, float dloss, bool wants_gradient) {
    int C = model->config.channels, V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    LayerActs a = acts_of(model, 0);
    float *wte = params_of(model, 0).wte;
    const Gemm *mm = &model->mm;
    for (int64_t row = 0; row < N; row += model->chunk_rows) {
        int64_t rows = min_i64(model->chunk_rows, N - row);
        GemmMatrix lnf = rows_of(a.lnf + row * C, C);
        gemm(a.logits, Vp, lnf, transpose_of(wte, C), NULL, rows, V, C, false, mm);
        cross_entropy(a.losses + row, a.logits, model->targets + row, rows, V, Vp, dloss, wants_gradient);
        if (!wants_gradient) { continue; }
        gemm(a.dlnf + row * C, C, rows_of(a.logits, Vp), rows_of(wte, C), NULL, rows, C, V, false, mm);
        gemm(grads_of(model, 0).wte, C, transpose_of(a.logits, Vp), lnf, NULL, V, C, rows, true, mm);
    }
    return row_mean(a.losses, N);
}

// Returns the mean loss of the batch in model->tokens and model->targets, (B,T) each. B and T are at most as planned.
// If a gradient is wanted, gpt2_backward follows. dloss is the gradient of the result with respect to one row's loss:
// 1/(B*T) for a whole batch, less for a micro-batch of a larger batch.
static double gpt2_forward(Model *model, int B, int T, float dloss, bool wants_gradient) {
    int C = model->config.channels, L = model->config.num_layers;
    int64_t N = (int64_t)B * T;
    Tensors outside = params_of(model, 0); // only those that no layer owns are used
    embedding_forward(acts_of(model, 0).residual, model->tokens, outside.wte, outside.wpe, B, T, C, 0);
    for (int layer = 0; layer < L; layer++) {
        LayerActs a = acts_of(model, layer), next = acts_of(model, layer + 1);
        Tensors p = params_of(model, layer);
        block_forward(model, layer, B, T);
        matmul_forward(next.residual, a.residual_mid, a.gelu, p.fcprojw, p.fcprojb, N, 4 * C, C, &model->mm);
    }
    LayerActs last = acts_of(model, L);
    layernorm_forward(last.lnf, last.lnf_mean, last.lnf_rstd, last.residual, outside.lnfw, outside.lnfb, N, C);
    return lm_head_forward_backward(model, N, dloss, wants_gradient);
}

// Recomputes the activations of this layer that --recompute did not keep. It calls the forward's functions on the
// forward's inputs, which gives equal bits.
static void recompute_layer(Model *model, int layer, int B, int T) {
    int C = model->config.channels, level = model->shape.recompute;
    int64_t N = (int64_t)B * T;
    Tensors p = params_of(model, layer);
    LayerActs a = acts_of(model, layer);
    if (level == RECOMPUTE_BLOCK) {
        block_forward(model, layer, B, T);
        return;
    }
    if (level >= RECOMPUTE_LAYERNORM) {
        layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.residual, p.ln1w, p.ln1b, N, C);
        layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.residual_mid, p.ln2w, p.ln2b, N, C);
    }
    if (level >= RECOMPUTE_GELU) { gelu_forward(a.gelu, a.fc, N * 4 * C); }
}

// A block's backward has two halves. dresidual holds the gradient of the block's output at first, and of the block's
// input at the end. The residual stream passes through both halves unchanged, and each half adds its own gradient.
static void block_backward_mlp(Model *model, int layer, int64_t N) {
    int C = model->config.channels;
    Tensors p = params_of(model, layer), g = grads_of(model, layer);
    LayerActs a = acts_of(model, layer);
    const Gemm *mm = &model->mm;
    matmul_backward(a.dgelu, g.fcprojw, g.fcprojb, a.dresidual, a.gelu, p.fcprojw, N, 4 * C, C, mm);
    gelu_backward(a.dfc, a.fc, a.dgelu, N * 4 * C);
    matmul_backward(a.dln, g.fcw, g.fcb, a.dfc, a.ln2, p.fcw, N, C, 4 * C, mm);
    layernorm_backward(a.dresidual, g.ln2w, g.ln2b, a.dln, a.residual_mid, a.ln2_mean, a.ln2_rstd, p.ln2w, N, C);
}

static void block_backward_attention(Model *model, int layer, int B, int T) {
    int C = model->config.channels, NH = model->config.num_heads;
    int64_t N = (int64_t)B * T;
    Tensors p = params_of(model, layer), g = grads_of(model, layer);
    LayerActs a = acts_of(model, layer);
    const Gemm *mm = &model->mm;
    matmul_backward(a.datt, g.attprojw, g.attprojb, a.dresidual, a.att, p.attprojw, N, C, C, mm);
    clear_rows(a.dqkv, N * 3 * C);
    attention_backward(a.dqkv, a.datt, a.qkv, a.att, a.att_lse, B, T, C, NH, model->attention_scratch, mm);
    matmul_backward(a.dln, g.qkvw, g.qkvb, a.dqkv, a.ln1, p.qkvw, N, C, 3 * C, mm);
    layernorm_backward(a.dresidual, g.ln1w, g.ln1b, a.dln, a.residual, a.ln1_mean, a.ln1_rstd, p.ln1w, N, C);
}

// Adds the gradients of the last gpt2_forward to those that are there.
static void gpt2_backward(Model *model, int B, int T) {
    int C = model->config.channels, L = model->config.num_layers;
    int64_t N = (int64_t)B * T;
    Tensors outside = params_of(model, 0), g = grads_of(model, 0);
    LayerActs a = acts_of(model, L);
    clear_rows(a.dresidual, N * C);
    layernorm_backward(a.dresidual, g.lnfw, g.lnfb, a.dlnf, a.residual, a.lnf_mean, a.lnf_rstd, outside.lnfw, N, C);
    for (int layer = L - 1; layer >= 0; layer--) {
        if (layer < L - 1) { recompute_layer(model, layer, B, T); } // the last layer's activations are still there
        block_backward_mlp(model, layer, N);
        block_backward_attention(model, layer, B, T);
    }
    embedding_backward(g.wte, g.wpe, a.dresidual, model->tokens, B, T, C);
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. The update

// Returns the Euclidean norm of all gradients. Threads sum blocks of a fixed size. The blocks' sums are added in order
// and in double precision.
static double gradient_norm(Model *model) {
    int64_t n = model_num_params(&model->config), blocks = ceil_div_i64(n, NORM_BLOCK);
    double sum = 0.0, *sums = model->optimizer.norm_sums;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        sums[i] = row_sumsq(model->grads + i * NORM_BLOCK, min_i64(NORM_BLOCK, n - i * NORM_BLOCK));
    }
    for (int64_t i = 0; i < blocks; i++) { sum += sums[i]; }
    return sqrt(sum);
}

typedef struct {
    float lr, beta1, beta2, epsilon, weight_decay;
    float grad_scale; // a factor for all gradients: it clips them by their global norm
    int64_t update;   // the number of this update, t below, from 1
} AdamW;

// AdamW (Loshchilov, Hutter 2019), one pass over parameters, gradients and both moments:
//   m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2
//   param -= lr * (m / (1-beta1^t) / (sqrt(v / (1-beta2^t)) + epsilon) + decay * param)
// Blocks have a fixed size, so that the arithmetic of an element does not depend on the number of threads.
static void adamw_tensor(float *param, float *m, float *v, const float *grad, int64_t n, const AdamW *a, float decay) {
    float c1 = (float)(1.0 / (1.0 - pow(a->beta1, (double)a->update)));
    float c2 = (float)(1.0 / (1.0 - pow(a->beta2, (double)a->update)));
    float lr = a->lr, beta1 = a->beta1, beta2 = a->beta2, epsilon = a->epsilon, scale = a->grad_scale;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += ROWS_BLOCK) {
        int64_t end = min_i64(n, begin + ROWS_BLOCK);
        for (int64_t i = begin; i < end; i++) {
            float g = scale * grad[i];
            m[i] = beta1 * m[i] + (1.0f - beta1) * g;
            v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
            param[i] -= lr * (c1 * m[i] / (sqrtf(c2 * v[i]) + epsilon) + decay * param[i]);
        }
    }
}

// Updates the matrices of the blocks with Muon if the run asks for it, and all other tensors with AdamW.
static void gpt2_update(Model *model, const AdamW *a, const Muon *muon) {
    const ModelConfig *config = &model->config;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int64_t at = param_offset(config, i), at_v = param_place_in_v(config, model->shape.optimizer, at);
        float *param = model->params + at, *grad = model->grads + at, *m = model->optimizer.m + at;
        if (muon_takes(model->shape.optimizer, i)) {
            muon_tensor(param, m, grad, config, i, muon, model->optimizer.muon, &model->mm);
        } else {
            adamw_tensor(param, m, model->optimizer.v + at_v, grad, param_size(config, i), a,
                         param_specs[i].decay ? a->weight_decay : 0.0f);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. Generation

// Runs tokens first .. first+rows-1 of the history through the model. Reads the keys and values of all earlier tokens
// from the cache, and adds those of the new tokens. Leaves the logits of the last row. rows is at most GENERATE_ROWS.
static void generate_rows(Model *model, int first, int rows) {
    Generation *g = &model->generation;
    const ModelConfig *config = &model->config;
    int C = config->channels, NH = config->num_heads, HS = C / NH;
    int64_t half = (int64_t)model->shape.T * C; // the keys or the values of one layer
    int64_t scratch = attention_scratch_floats(model->shape.T, HS, model->mm.kernel); // for each thread
    int64_t each = (int64_t)GENERATE_ROWS * C;                                        // floats in C columns
    float *x = g->rows, *ln = x + each, *att = ln + each, *qkv = att + each, *fc = qkv + 3 * each;
    float *mean = fc + 4 * each, *rstd = mean + GENERATE_ROWS;
    Tensors outside = params_of(model, 0);
    LinearWeights weights = {config, model->params, g->packed, &model->mm};
    embedding_forward(x, g->history + first, outside.wte, outside.wpe, 1, rows, C, first);
    for (int layer = 0; layer < config->num_layers; layer++) {
        Tensors p = params_of(model, layer);
        float *keys = g->cache + 2 * layer * half, *values = keys + half;
        layernorm_forward(ln, mean, rstd, x, p.ln1w, p.ln1b, rows, C);
        linear_forward(&weights, qkv, false, ln, PARAM_qkvw, layer, p.qkvb, rows);
        for (int64_t i = 0; i < rows; i++) {
            memcpy(keys + (first + i) * C, qkv + i * 3 * C + C, (size_t)C * sizeof(float));
            memcpy(values + (first + i) * C, qkv + i * 3 * C + 2 * C, (size_t)C * sizeof(float));
        }
#pragma omp parallel for schedule(static)
        for (int h = 0; h < NH; h++) {
            GemmMatrix kT = transpose_of(keys + h * HS, C), v = rows_of(values + h * HS, C);
            for (int at = 0; at < rows; at += ATTENTION_TILE) {
                GemmMatrix q = rows_of(qkv + (int64_t)at * 3 * C + h * HS, 3 * C);
                attention_tile_forward(att + (int64_t)at * C + h * HS, C, NULL, q, kT, v, first + at,
                                       (int)min_i64(ATTENTION_TILE, rows - at), HS,
                                       model->attention_scratch + gemm_thread() * scratch, &model->mm);
            }
        }
        linear_forward(&weights, x, true, att, PARAM_attprojw, layer, p.attprojb, rows);
        layernorm_forward(ln, mean, rstd, x, p.ln2w, p.ln2b, rows, C);
        linear_forward(&weights, fc, false, ln, PARAM_fcw, layer, p.fcb, rows);
        gelu_forward(fc, fc, (int64_t)rows * 4 * C);
        linear_forward(&weights, x, true, fc, PARAM_fcprojw, layer, p.fcprojb, rows);
    }
    layernorm_forward(ln, mean, rstd, x + (int64_t)(rows - 1) * C, outside.lnfw, outside.lnfb, 1, C);
    linear_forward(&weights, g->logits, false, ln, PARAM_wte, 0, NULL, 1);
}

// Begins a sample. Call it when the parameters are as they shall be. Returns memory for the sampler (V).
static float *generate_begin(Model *model) {
    Generation *g = &model->generation;
    g->length = g->cached = 0;
    if (g->packed != NULL) { packed_weights_fill(g->packed, model->params, &model->config, model->mm.kernel); }
    return g->probs;
}

// Adds a token to the history. If the window is full, the tokens move, and the cache is void.
static void generate_append(Model *model, int token) {
    Generation *g = &model->generation;
    if (sampler_append(g->history, &g->length, model->shape.T, token)) { g->cached = 0; }
}

// Returns the logits (V) of the token after the history, which must not be empty. The cache changes no bit, since a row
// of a layer does not depend on the number of rows beside it.
static const float *generate_logits(Model *model) {
    Generation *g = &model->generation;
    while (g->cached < g->length) {
        int rows = (int)min_i64(GENERATE_ROWS, g->length - g->cached);
        generate_rows(model, g->cached, rows);
        g->cached += rows;
    }
    return g->logits;
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. The program

// Returns the source's revision. The Makefile links another function of this name, so that a commit recompiles nothing.
__attribute__((weak)) const char *gpt2c_revision(void) { return ""; }

struct Trainer {
    Model model;
    MemoryPlan plan;
    double val_sum;    // of the mean losses of a validation's sequences so far
    double peak_flops; // of this machine, measured
    GemmKernel kernel; // of the matrix multiply
};

static StopRequest stop_request;
static void on_signal(int number) { stop_on_signal(&stop_request, number); }

const TrainerFacts trainer_facts = {.program = "train_gpt2",
                                    .revision = gpt2c_revision,
                                    .default_seq_len = 64, // a laptop's CPU can bear this
                                    .stop = &stop_request,
                                    .on_signal = on_signal};

// Adds up the gradient of a step over its micro-batches. If the run is asked to stop between two of them, sets
// *interrupted and returns early. Nothing is lost: a resumed run begins the step anew.
static bool accumulate_gradient(Model *model, TrainRun *run, double *loss, bool *interrupted, Error *error) {
    int B = (int)run->options->batch_size, T = (int)run->options->seq_len;
    float dloss = 1.0f / (float)run->options->total_batch;
    clear_rows(model->grads, model_num_params(&model->config));
    *loss = 0.0;
    for (int64_t i = 0; i < run->micro_batches; i++) {
        *interrupted = is_stopping(&stop_request) && i > 0;
        if (*interrupted) { return true; }
        if (!run_read_batch(run, i, model->tokens, model->targets, error)) { return false; }
        double batch_loss = gpt2_forward(model, B, T, dloss, true);
        if (!isfinite(batch_loss)) {
            char place[64];
            ActShape shape = activation_shape(model);
            ActSlot slots[NUM_ACTIVATIONS];
            activation_slots(&model->acts, slots);
            name_nonfinite_forward(model->params, slots, &shape, (int64_t)B * T, place, sizeof(place));
            return run_fail_nonfinite(run, run->step, "loss", batch_loss, place, error);
        }
        gpt2_backward(model, B, T);
        *loss += batch_loss / (double)run->micro_batches;
    }
    return true;
}

static void update_params(Model *model, TrainRun *run, const StepInfo *info) {
    const TrainOptions *o = run->options;
    bool clips = o->grad_clip > 0.0 && info->norm > o->grad_clip;
    float scale = clips ? (float)(o->grad_clip / info->norm) : 1.0f, decay = (float)o->weight_decay;
    AdamW adamw = {.lr = (float)info->lr,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .epsilon = (float)o->adam_eps,
                   .weight_decay = decay,
                   .grad_scale = scale,
                   .update = ++run->updates};
    Muon muon = {run_muon_rate(run), run_muon_momentum(run), decay, scale, run_muon_scale(run)};
    gpt2_update(model, &adamw, &muon);
}

// Refuses a norm that is not a number or is too large to clip.
static bool check_norm(const Model *model, TrainRun *run, double norm, Error *error) {
    char place[64] = "the sum of squares";
    if (norm <= LARGEST_NORM || (isfinite(norm) && run->options->grad_clip > 0.0)) { return true; }
    find_nonfinite_tensor(&model->config, model->grads, "gradient of", place, sizeof(place));
    return run_fail_nonfinite(run, run->step, "gradient norm", norm, place, error);
}

// Runs one step: gradient, norm, update, one line in the log.
static bool train_step(Trainer *t, TrainRun *run, Error *error) {
    Model *model = &t->model;
    double start = seconds_now();
    bool interrupted = false;
    StepInfo info = run_begin_step(run, schedule_lr(&run->schedule, run->step));
    if (!accumulate_gradient(model, run, &info.loss, &interrupted, error)) { return false; }
    if (interrupted) { return true; }
    info.norm = gradient_norm(model);
    if (!check_norm(model, run, info.norm, error)) { return false; }
    if (!run_skips_update(run, &info)) { update_params(model, run, &info); }
    info.seconds = seconds_now() - start;
    info.peak_fraction = run_step_flops(run) / info.seconds / t->peak_flops;
    run_advance(run);
    return run_log_step(run, &info, error);
}

// Adds up the mean losses of the sequences of one batch. Each sequence has its own sum, and the sequences are added in
// order, so that the result does not depend on the size of a batch.
bool trainer_validate_batch(Trainer *t, TrainRun *run, Round round, Error *error) {
    Model *model = &t->model;
    int64_t B = run->options->batch_size, first = round.batch * B;
    int T = (int)run->options->seq_len, rows = (int)min_i64(B, run_val_sequences(run) - first);
    if (round.number == 0) { t->val_sum = 0.0; }
    if (!run_read_val(run, first, rows, model->tokens, model->targets, error)) { return false; }
    gpt2_forward(model, rows, T, 0.0f, false);
    for (int b = 0; b < rows; b++) { t->val_sum += row_mean(model->acts.losses.data + b * T, T); }
    return true;
}

double trainer_validation_loss(Trainer *t, TrainRun *run, Round last) {
    return (void)last, t->val_sum / (double)run_val_sequences(run);
}

// Computes the mean loss of each completion of a batch, over the completion's own tokens.
void trainer_evaluate_batch(Trainer *t, TrainRun *run, int which, Round round) {
    Model *model = &t->model;
    const EvalLoader *eval = &run->evals[which];
    EvalBatch batch = eval_batch(eval, round.batch);
    eval_read(eval, batch, model->tokens, model->targets);
    gpt2_forward(model, batch.sequences, eval->T, 0.0f, false);
    for (int64_t i = 0; i < batch.sequences; i++) {
        int64_t row = batch.first + i;
        int begin, end;
        eval_scored(eval, row, &begin, &end);
        model->eval_means[row] = row_mean(model->acts.losses.data + i * eval->T + begin, end - begin);
    }
}

const double *trainer_evaluation_means(Trainer *t, TrainRun *run, int which, Round last) {
    return (void)run, (void)which, (void)last, t->model.eval_means;
}

float *trainer_begin_sample(Trainer *t) { return generate_begin(&t->model); }
void trainer_append_token(Trainer *t, int token) { generate_append(&t->model, token); }
const float *trainer_next_logits(Trainer *t) { return generate_logits(&t->model); }

// A fresh run has no reader: a model's file has its parameters, or GPT-2's initialisation draws them from the seed.
bool trainer_read_state(Trainer *t, TrainRun *run, CheckpointReader *reader, Error *error) {
    Model *model = &t->model;
    float *arrays[CHECKPOINT_ARRAYS] = {model->params, model->optimizer.m, model->optimizer.v};
    clear_moments(model);
    if (reader != NULL) { return checkpoint_read_whole(reader, arrays, error); }
    if (run->model_file != NULL) { return model_file_read(run->model_file, model->params, error); }
    param_init_all(model->params, &run->config, (uint64_t)run->options->seed);
    return true;
}

bool trainer_check_state(Trainer *t, TrainRun *run, Error *error) { return (void)t, (void)run, (void)error, true; }

bool trainer_write_state(Trainer *t, CheckpointWriter *writer, Error *error) {
    const Model *model = &t->model;
    const float *arrays[CHECKPOINT_ARRAYS] = {model->params, model->optimizer.m, model->optimizer.v};
    return checkpoint_write_whole(writer, arrays, error);
}

// Completes the options: micro-batch, steps, kernels. They stay constant from then on. An edited activation needs
// another MODEL_VARIANT: GPT-2 programs would load its models.
static bool settle(Trainer *t, TrainRun *run, TrainOptions *o, Error *error) {
    float gelu = 1.0f;
    gelu_forward(&gelu, &gelu, 1);
    bool ok = MODEL_VARIANT != 0 || fabsf(gelu - 0.8412f) < 1e-3f ||
              fail(error, "an activation other than GPT-2's needs another MODEL_VARIANT (llmc/model/gpt2.h)");
    if (!ok || !run_settle_batch(run, o, error) ||
        !kernel_choose(&t->kernel, o->cpu_kernels, strcmp(o->precision, "bf16") == 0, error)) {
        return false;
    }
    kernel_describe(&t->kernel, run->record.arithmetic, sizeof(run->record.arithmetic));
    return run_settle_steps(run, o, error);
}

static void plan_run(Trainer *t, const TrainRun *run) {
    const TrainOptions *o = run->options;
    RunShape shape = {.kind = run_kind(run),
                      .B = (int)o->batch_size,
                      .T = (int)o->seq_len,
                      .recompute = (int)o->recompute,
                      .eval_T = run_eval_length(run),
                      .eval_sequences = run_eval_sequences(run),
                      .optimizer = train_options_optimizer(o)};
    gpt2_plan(&t->model, &t->plan, &run->config, shape, &t->kernel);
}

// Trains from the run's step to its last, or until a signal stops it.
static bool train(Trainer *t, TrainRun *run, Error *error) {
    for (;;) {
        Due due = run_what_is_due(run); // save, validate, evaluate, sample
        if (!run_do_what_is_due(run, due, error)) { return false; }
        if (run_ends(run, due)) { return run_end_training(run, error); }
        if (!train_step(t, run, error)) { return false; }
    }
}

static void print_run(const Trainer *t, TrainRun *run) {
    run_print_config(run);
    run_print_needs(run, &t->plan);
    if (!train_options_plan(run->options)) { return run_warn_of_memory(&t->plan); }
    if (train_options_plans_all(run->options)) { run_print_buffers(&t->plan); }
    run_print_machine_fit(run, &t->plan);
}

// Opens the machine, loads the model, and begins the logs.
static bool start(Trainer *t, TrainRun *run, Error *error) {
    RunMachine machine = {0};
    if (!plan_allocate(&t->plan, error)) { return false; }
    t->peak_flops = 1e9 * kernel_peak(&t->kernel, gemm_max_threads());
    if (!run_claim_folder(run, error) || !run_load(run, error) || !run_begin_log(run, error) ||
        !run_record_start(run, &machine, error)) {
        return false;
    }
    say(stdout, "machine     %d threads, matrix multiply in %s by %s, measured peak %.0f GFLOP/s\n", gemm_max_threads(),
        run->options->precision, t->kernel.name, 1e-9 * t->peak_flops);
    run_catch_signals(run);
    return true;
}

int main(int argc, char **argv) {
    static Trainer trainer; // zero; large, so not on the stack
    static TrainOptions options;
    static TrainRun run;
    Trainer *t = run.trainer = &trainer;
    Error error;
    int status;
    if (!run_parse(&run, &options, argc, argv, &status)) { return status; }
    bool ok = one_rank_check(trainer_facts.program, &error) && run_open_inputs(&run, &options, &error) &&
              settle(t, &run, &options, &error);
    if (ok) { plan_run(t, &run), print_run(t, &run); }
    if (ok && !train_options_plan(&options)) {
        ok = start(t, &run, &error) &&
             (run_kind(&run) == RUN_TRAINS ? train(t, &run, &error) : run_evaluate_only(&run, &error)) &&
             run_finish(&run, sum64(0, t->model.params, model_num_params(&run.config)), &error);
    }
    if (!ok) { run_fail(&run, &error); }
    run_close(&run);
    plan_free(&t->plan);
    return run_exit(&run, ok, &error);
}
