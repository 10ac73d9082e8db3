// Trains GPT-2 on the CPU, in fp32. Read the file from top to bottom:
//
//   1. the layers      those that only GPT-2 has, each with its formula, its forward and its backward
//   2. forward         the model from tokens to losses
//   3. backward        the gradients, from the last layer to the first
//   4. generation      the model a few tokens at a time, with a cache of keys and values
//   5. main
// What a trainer of another model needs, too, stands in the rooms: the linear layer, attention and cross entropy
// (llmc/cpu/layers.h), the update (llmc/cpu/adamw.h), the plan of the memory (llmc/trainer/cpu_model.h), the step, the
// loop over steps and the start (llmc/trainer/cpu_program.h).
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
// - No function allocates. Memory comes from the plan.
#define PROGRAM_NAME "train_gpt2"
#include "llmc/model/gpt2.h" // the tables of this trainer; the rooms loop over them
#include "llmc/trainer/cpu_program.h"

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

// ---------------------------------------------------------------------------------------------------------------------
// 2. Forward

// Computes a block up to gelu, the input of fcproj:
//   mid = x + attproj(attention(qkv(ln1(x)))); the block's output is mid + fcproj(gelu(fc(ln2(mid))))
static void block_forward(Model *model, int layer, int B, int T) {
    int C = model->config.channels;
    int64_t N = (int64_t)B * T;
    Tensors p = params_of(model, layer);
    LayerActs a = acts_of(model, layer);
    const Gemm *mm = &model->mm;
    layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.residual, p.ln1w, p.ln1b, N, C);
    matmul_forward(a.qkv, NULL, a.ln1, p.qkvw, p.qkvb, N, C, 3 * C, mm);
    attention_forward(a.att, a.att_lse, a.qkv, B, T, heads_of(&model->config), model->attention_scratch, mm);
    matmul_forward(a.residual_mid, a.residual, a.att, p.attprojw, p.attprojb, N, C, C, mm);
    layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.residual_mid, p.ln2w, p.ln2b, N, C);
    matmul_forward(a.fc, NULL, a.ln2, p.fcw, p.fcb, N, C, 4 * C, mm);
    gelu_forward(a.gelu, a.fc, N * 4 * C);
}

// See cpu_model.h.
double model_forward(Model *model, int B, int T, float dloss, bool wants_gradient) {
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
    return lm_head_forward_backward(model, N, outside.wte, grads_of(model, 0).wte, dloss, wants_gradient);
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. Backward

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
    int C = model->config.channels;
    int64_t N = (int64_t)B * T;
    Tensors p = params_of(model, layer), g = grads_of(model, layer);
    LayerActs a = acts_of(model, layer);
    const Gemm *mm = &model->mm;
    matmul_backward(a.datt, g.attprojw, g.attprojb, a.dresidual, a.att, p.attprojw, N, C, C, mm);
    clear_rows(a.dqkv, N * 3 * C);
    attention_backward(a.dqkv, a.datt, a.qkv, a.att, a.att_lse, B, T, heads_of(&model->config),
                       model->attention_scratch, mm);
    matmul_backward(a.dln, g.qkvw, g.qkvb, a.dqkv, a.ln1, p.qkvw, N, C, 3 * C, mm);
    layernorm_backward(a.dresidual, g.ln1w, g.ln1b, a.dln, a.residual, a.ln1_mean, a.ln1_rstd, p.ln1w, N, C);
}

// Adds the gradients of the last model_forward to those that are there.
void model_backward(Model *model, int B, int T) {
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
// 4. Generation

// x, ln and att (C), qkv (3C), fc (4C), mean and rstd.
int64_t model_new_row_floats(const ModelConfig *config) { return 10 * (int64_t)config->channels + 2; }

// Runs new tokens of a sample through the model (cpu_model.h).
void model_generate(Model *model, int first, int rows) {
    Generation *g = &model->generation;
    const ModelConfig *config = &model->config;
    int C = config->channels;
    int64_t each = (int64_t)GENERATE_ROWS * C; // floats in C columns
    float *x = g->rows, *ln = x + each, *att = ln + each, *qkv = att + each, *fc = qkv + 3 * each;
    float *mean = fc + 4 * each, *rstd = mean + GENERATE_ROWS;
    Tensors outside = params_of(model, 0);
    LinearWeights weights = {config, model->params, g->packed, &model->mm};
    embedding_forward(x, g->history + first, outside.wte, outside.wpe, 1, rows, C, first);
    for (int layer = 0; layer < config->num_layers; layer++) {
        Tensors p = params_of(model, layer);
        layernorm_forward(ln, mean, rstd, x, p.ln1w, p.ln1b, rows, C);
        linear_forward(&weights, qkv, 3 * C, false, ln, PARAM_qkvw, layer, p.qkvb, rows);
        generate_attention(model, att, qkv, layer, first, rows);
        linear_forward(&weights, x, C, true, att, PARAM_attprojw, layer, p.attprojb, rows);
        layernorm_forward(ln, mean, rstd, x, p.ln2w, p.ln2b, rows, C);
        linear_forward(&weights, fc, 4 * C, false, ln, PARAM_fcw, layer, p.fcb, rows);
        gelu_forward(fc, fc, (int64_t)rows * 4 * C);
        linear_forward(&weights, x, C, true, fc, PARAM_fcprojw, layer, p.fcprojb, rows);
    }
    layernorm_forward(ln, mean, rstd, x + (int64_t)(rows - 1) * C, outside.lnfw, outside.lnfb, 1, C);
    linear_forward(&weights, g->logits, config->vocab_size, false, ln, PARAM_wte, 0, NULL, 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. Main

// Refuses an edited activation under GPT-2's number: GPT-2 programs would load its models.
bool model_check_program(Error *error) {
    float gelu = 1.0f;
    gelu_forward(&gelu, &gelu, 1);
    return MODEL_VARIANT != 0 || fabsf(gelu - 0.8412f) < 1e-3f ||
           fail(error, "an activation other than GPT-2's needs another MODEL_VARIANT (llmc/model/gpt2.h)");
}

int main(int argc, char **argv) { return trainer_main(argc, argv); }
