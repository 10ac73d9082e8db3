// Trains Llama 3 and its relatives on the CPU, in fp32. Read train_gpt2.c first: this file has the same parts, and
// shares the same rooms (its top lists them). What Llama changes:
//
//   RMSNorm for LayerNorm, rotary embeddings of queries and keys for learned positions, SwiGLU for GELU, heads of keys
//   and values that several heads of queries share, no biases (but of q, k, v in some), and often a head of its own.
//
// Shapes: B sequences of T tokens, N = B*T rows, C channels, NH heads of HS channels, KV heads of keys and values, F
// the width of the MLP, L layers, V tokens in the vocabulary (Vp with padding). A row of qkv has (NH + 2 KV) * HS
// values.
#define PROGRAM_NAME "train_llama3"
#include "llmc/model/llama3.h" // the tables of this trainer; the rooms loop over them
#include "llmc/trainer/cpu_program.h"

// ---------------------------------------------------------------------------------------------------------------------
// 1. What a Llama computes otherwise

// Token embedding: out[row,:] = wte[tokens[row],:]. out (N,C), wte (Vp,C).
static void embedding_forward(float *out, const int32_t *tokens, const float *wte, int64_t N, int C) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++) {
        memcpy(out + row * C, wte + (int64_t)tokens[row] * C, (size_t)C * sizeof(float));
    }
}

// dwte[tokens[row],:] += dout[row,:]. Threads split the channels, because a token may occur in several rows.
static void embedding_backward(float *dwte, const float *dout, const int32_t *tokens, int64_t N, int C) {
#pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < C; c0 += COLUMN_BLOCK) {
        for (int64_t row = 0; row < N; row++) {
            float *dtoken = dwte + (int64_t)tokens[row] * C;
            for (int c = c0; c < min_i64(C, c0 + COLUMN_BLOCK); c++) { dtoken[c] += dout[row * C + c]; }
        }
    }
}

// RMSNorm over the channels of each row (Zhang, Sennrich 2019): LayerNorm without the mean and the bias.
//   rstd = 1/sqrt(sum(x^2)/C + epsilon), out = x * rstd * weight
// out, inp (N,C); rstd (N), kept for the backward; weight (C).
static void rmsnorm_forward(float *out, float *rstd, const float *inp, const float *weight, int64_t N, int C,
                            float epsilon) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++) {
        const float *x = inp + row * C;
        float r = 1.0f / sqrtf(row_dot(x, x, C) / (float)C + epsilon);
        for (int c = 0; c < C; c++) { out[row * C + c] = x[c] * r * weight[c]; }
        rstd[row] = r;
    }
}

// With n = x * rstd and g = weight * dout of a row, and the mean over the row:
//   dinp += rstd * (g - n * mean(g * n)); dweight += sum over rows of dout * n
static void rmsnorm_backward(float *dinp, float *dweight, const float *dout, const float *inp, const float *rstd,
                             const float *weight, int64_t N, int C) {
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < N; row++) {
            const float *x = inp + row * C, *dy = dout + row * C;
            float r = rstd[row];
            vf sum = vf_set1(0.0f); // of g * x
            for (int c = 0; c < C; c += VF_WIDTH) {
                sum += vf_load_n(weight + c, C - c) * vf_load_n(dy + c, C - c) * vf_load_n(x + c, C - c);
            }
            float mean_gn = r * vf_sum(sum) / (float)C;
            for (int c = 0; c < C; c++) { dinp[row * C + c] += r * (weight[c] * dy[c] - x[c] * r * mean_gn); }
        }
#pragma omp for schedule(static)
        for (int c0 = 0; c0 < C; c0 += COLUMN_BLOCK) {
            int c1 = (int)min_i64(C, c0 + COLUMN_BLOCK);
            for (int64_t row = 0; row < N; row++) {
                const float *x = inp + row * C, *dy = dout + row * C;
                for (int c = c0; c < c1; c++) { dweight[c] += dy[c] * (x[c] * rstd[row]); }
            }
        }
    }
}

// Rotates the queries and keys of one row, each head of each: with the angle a[j] of the row's position,
//   x[j] = x[j] cos a[j] - sign * x[j+HS/2] sin a[j];  x[j+HS/2] = x[j+HS/2] cos a[j] + sign * x[j] sin a[j]
// Queries and keys are neighbours, so their NH + KV heads are one list. angles (HS/2,2): cosines and sines.
static void rope_row(float *row, const float *angles, float sign, Heads heads) {
    int half = heads.HS / 2;
    for (int h = 0; h < heads.NH + heads.KV; h++) {
        float *low = row + h * heads.HS, *high = low + half;
        for (int j = 0; j < half; j++) {
            float cosine = angles[2 * j], sine = sign * angles[2 * j + 1], x = low[j], y = high[j];
            low[j] = x * cosine - y * sine;
            high[j] = y * cosine + x * sine;
        }
    }
}

// Rotary embeddings of qkv (N,(NH+2KV)*HS), in place (llmc/model/rope.h). table (positions,HS/2,2). Row i stands at
// position first + i % T.
static void rope_forward(float *qkv, const float *table, int64_t N, int T, int first, Heads heads) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < N; i++) {
        rope_row(qkv + i * heads_qkv(heads), table + (first + i % T) * heads.HS, 1.0f, heads);
    }
}

// The gradient of a rotation is the rotation back: dq and dk of dqkv, in place.
static void rope_backward(float *dqkv, const float *table, int64_t N, int T, Heads heads) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < N; i++) { rope_row(dqkv + i * heads_qkv(heads), table + i % T * heads.HS, -1.0f, heads); }
}

// The logistic function 1/(1+e^-x), as (1 + tanh(x/2))/2, which overflows nowhere.
static vf sigmoid(vf x) { return vf_set1(0.5f) * (vf_set1(1.0f) + vf_tanh(vf_set1(0.5f) * x)); }

// SwiGLU (Shazeer 2020): out = silu(gate) * up, silu(x) = x * sigmoid(x). fc (N,2F): gate and up side by side; out
// (N,F).
static void swiglu_forward(float *out, const float *fc, int64_t N, int F) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++) {
        const float *gate = fc + row * 2 * F, *up = gate + F;
        for (int c = 0; c < F; c += VF_WIDTH) {
            vf x = vf_load_n(gate + c, F - c);
            vf_store_n(out + row * F + c, x * sigmoid(x) * vf_load_n(up + c, F - c), F - c);
        }
    }
}

// With s = sigmoid(gate): dgate = dout * up * s * (1 + gate * (1 - s)); dup = dout * gate * s. dfc (N,2F), dout (N,F).
static void swiglu_backward(float *dfc, const float *fc, const float *dout, int64_t N, int F) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++) {
        const float *gate = fc + row * 2 * F, *up = gate + F;
        float *dgate = dfc + row * 2 * F, *dup = dgate + F;
        for (int c = 0; c < F; c += VF_WIDTH) {
            vf x = vf_load_n(gate + c, F - c), s = sigmoid(x), d = vf_load_n(dout + row * F + c, F - c);
            vf slope = s * (vf_set1(1.0f) + x * (vf_set1(1.0f) - s));
            vf_store_n(dgate + c, d * vf_load_n(up + c, F - c) * slope, F - c);
            vf_store_n(dup + c, d * x * s, F - c);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. From tokens to losses

// A layer with its widths: channels, queries, queries with keys and values, the MLP.
typedef struct {
    int C, Q, QKV, F;
    Heads heads;
    Tensors p, g; // parameters, gradients
    LayerActs a;
    const Gemm *mm;
} Block;

static Block block_of(const Model *model, int layer) {
    const ModelConfig *c = &model->config;
    Block b = {c->channels, (int)model_dim(c, DIM_Q), (int)model_dim(c, DIM_QKV), c->mlp_width,
               heads_of(c), params_of(model, layer),  grads_of(model, layer),     acts_of(model, layer),
               &model->mm};
    return b;
}

// Biases of q, k, v, or NULL where the model has none.
static float *if_biased(const Model *model, float *bias) { return model->config.qkv_bias ? bias : NULL; }

static void norm_forward(const Model *model, float *out, float *rstd, const float *inp, const float *weight,
                         int64_t N) {
    rmsnorm_forward(out, rstd, inp, weight, N, model->config.channels, model->config.norm_epsilon);
}

// Computes a block up to swiglu, the input of fcproj:
//   mid = x + attproj(attention(rope(qkv(ln1(x))))); the block's output is mid + fcproj(swiglu(gate_up(ln2(mid))))
// qw, kw and vw lie one behind another, as do gatew and upw, so one multiply takes them as one matrix.
static void block_forward(const Model *model, const Block *b, int B, int T) {
    const LayerActs *a = &b->a;
    const Tensors *p = &b->p;
    int64_t N = (int64_t)B * T;
    norm_forward(model, a->ln1, a->ln1_rstd, a->residual, p->ln1w, N);
    matmul_forward(a->qkv, NULL, a->ln1, p->qw, if_biased(model, p->qb), N, b->C, b->QKV, b->mm);
    rope_forward(a->qkv, model->rope, N, T, 0, b->heads);
    attention_forward(a->att, a->att_lse, a->qkv, B, T, b->heads, model->attention_scratch, b->mm);
    matmul_forward(a->residual_mid, a->residual, a->att, p->attprojw, NULL, N, b->Q, b->C, b->mm);
    norm_forward(model, a->ln2, a->ln2_rstd, a->residual_mid, p->ln2w, N);
    matmul_forward(a->fc, NULL, a->ln2, p->gatew, NULL, N, b->C, 2 * b->F, b->mm);
    swiglu_forward(a->swiglu, a->fc, N, b->F);
}

// The weights of the head: the embedding's if it is tied.
static float *head_of(const Model *model, Tensors tensors) { return model->config.tied ? tensors.wte : tensors.headw; }

double model_forward(Model *model, int B, int T, float dloss, bool wants_gradient) {
    int L = model->config.num_layers;
    int64_t N = (int64_t)B * T;
    Block b = block_of(model, 0);
    embedding_forward(b.a.residual, model->tokens, b.p.wte, N, b.C);
    for (int layer = 0; layer < L; layer++) {
        b = block_of(model, layer);
        block_forward(model, &b, B, T);
        matmul_forward(acts_of(model, layer + 1).residual, b.a.residual_mid, b.a.swiglu, b.p.fcprojw, NULL, N, b.F, b.C,
                       b.mm);
    }
    norm_forward(model, b.a.lnf, b.a.lnf_rstd, acts_of(model, L).residual, b.p.lnfw, N);
    return lm_head_forward_backward(model, N, head_of(model, b.p), head_of(model, b.g), dloss, wants_gradient);
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. From losses to gradients

// Recomputes what --recompute did not keep of a layer, with equal bits.
static void recompute_block(const Model *model, const Block *b, int B, int T) {
    const LayerActs *a = &b->a;
    int level = model->shape.recompute;
    int64_t N = (int64_t)B * T;
    if (level == RECOMPUTE_BLOCK) { block_forward(model, b, B, T); }
    if (level == RECOMPUTE_LAYERNORM) {
        norm_forward(model, a->ln1, a->ln1_rstd, a->residual, b->p.ln1w, N);
        norm_forward(model, a->ln2, a->ln2_rstd, a->residual_mid, b->p.ln2w, N);
    }
    if (level == RECOMPUTE_GELU || level == RECOMPUTE_LAYERNORM) { swiglu_forward(a->swiglu, a->fc, N, b->F); }
}

// dresidual holds the gradient of the block's output at first, and of the block's input at the end.
static void mlp_backward(const Block *b, int64_t N) {
    const LayerActs *a = &b->a;
    matmul_backward(a->dswiglu, b->g.fcprojw, NULL, a->dresidual, a->swiglu, b->p.fcprojw, N, b->F, b->C, b->mm);
    swiglu_backward(a->dfc, a->fc, a->dswiglu, N, b->F);
    matmul_backward(a->dln, b->g.gatew, NULL, a->dfc, a->ln2, b->p.gatew, N, b->C, 2 * b->F, b->mm);
    rmsnorm_backward(a->dresidual, b->g.ln2w, a->dln, a->residual_mid, a->ln2_rstd, b->p.ln2w, N, b->C);
}

static void attention_block_backward(const Model *model, const Block *b, int B, int T) {
    const LayerActs *a = &b->a;
    int64_t N = (int64_t)B * T;
    matmul_backward(a->datt, b->g.attprojw, NULL, a->dresidual, a->att, b->p.attprojw, N, b->Q, b->C, b->mm);
    clear_rows(a->dqkv, N * b->QKV);
    attention_backward(a->dqkv, a->datt, a->qkv, a->att, a->att_lse, B, T, b->heads, model->attention_scratch, b->mm);
    rope_backward(a->dqkv, model->rope, N, T, b->heads);
    matmul_backward(a->dln, b->g.qw, if_biased(model, b->g.qb), a->dqkv, a->ln1, b->p.qw, N, b->C, b->QKV, b->mm);
    rmsnorm_backward(a->dresidual, b->g.ln1w, a->dln, a->residual, a->ln1_rstd, b->p.ln1w, N, b->C);
}

void model_backward(Model *model, int B, int T) {
    int last = model->config.num_layers - 1;
    int64_t N = (int64_t)B * T;
    Block b = block_of(model, last);
    clear_rows(b.a.dresidual, N * b.C);
    rmsnorm_backward(b.a.dresidual, b.g.lnfw, b.a.dlnf, acts_of(model, last + 1).residual, b.a.lnf_rstd, b.p.lnfw, N,
                     b.C);
    for (int layer = last; layer >= 0; layer--) {
        b = block_of(model, layer);
        if (layer < last) { recompute_block(model, &b, B, T); }
        mlp_backward(&b, N);
        attention_block_backward(model, &b, B, T);
    }
    embedding_backward(b.g.wte, b.a.dresidual, model->tokens, N, b.C);
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. Samples

// x and ln (C), att (NH*HS), qkv, fc (2F), swiglu (F), rstd.
int64_t model_new_row_floats(const ModelConfig *c) {
    return 2 * (int64_t)c->channels + model_dim(c, DIM_Q) + model_dim(c, DIM_QKV) + 3 * (int64_t)c->mlp_width + 1;
}

void model_generate(Model *model, int first, int rows) {
    const Generation *g = &model->generation;
    const ModelConfig *c = &model->config;
    Block b = block_of(model, 0);
    float *x = g->rows, *ln = x + GENERATE_ROWS * b.C, *att = ln + GENERATE_ROWS * b.C;
    float *qkv = att + GENERATE_ROWS * b.Q, *k = qkv + b.Q, *v = k + model_dim(c, DIM_KV);
    float *fc = qkv + GENERATE_ROWS * b.QKV, *swiglu = fc + 2 * GENERATE_ROWS * b.F;
    float *rstd = swiglu + GENERATE_ROWS * b.F;
    LinearWeights w = {c, model->params, g->packed, b.mm};
    embedding_forward(x, g->history + first, b.p.wte, rows, b.C);
    for (int l = 0; l < c->num_layers; l++) {
        b = block_of(model, l);
        norm_forward(model, ln, rstd, x, b.p.ln1w, rows);
        linear_forward(&w, qkv, b.QKV, false, ln, PARAM_qw, l, if_biased(model, b.p.qb), rows);
        linear_forward(&w, k, b.QKV, false, ln, PARAM_kw, l, if_biased(model, b.p.kb), rows);
        linear_forward(&w, v, b.QKV, false, ln, PARAM_vw, l, if_biased(model, b.p.vb), rows);
        rope_forward(qkv, model->rope, rows, rows, first, b.heads);
        generate_attention(model, att, qkv, l, first, rows);
        linear_forward(&w, x, b.C, true, att, PARAM_attprojw, l, NULL, rows);
        norm_forward(model, ln, rstd, x, b.p.ln2w, rows);
        linear_forward(&w, fc, 2 * b.F, false, ln, PARAM_gatew, l, NULL, rows);
        linear_forward(&w, fc + b.F, 2 * b.F, false, ln, PARAM_upw, l, NULL, rows);
        swiglu_forward(swiglu, fc, rows, b.F);
        linear_forward(&w, x, b.C, true, swiglu, PARAM_fcprojw, l, NULL, rows);
    }
    norm_forward(model, ln, rstd, x + (int64_t)(rows - 1) * b.C, b.p.lnfw, 1);
    linear_forward(&w, g->logits, c->vocab_size, false, ln, c->tied ? PARAM_wte : PARAM_headw, 0, NULL, 1);
}

bool model_check_program(Error *error) { return (void)error, true; }

int main(int argc, char **argv) { return trainer_main(argc, argv); }
