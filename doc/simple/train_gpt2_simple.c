// A whole trainer of GPT-2 for the CPU in one file. It needs libc, libm and, to use all cores, OpenMP:
//
//   gcc -O3 -fopenmp train_gpt2_simple.c -lm -o train_gpt2_simple
//   ./train_gpt2_simple --train-data book.txt --steps 500 --save model.bin
//   ./train_gpt2_simple --init model.bin --steps 0 --prompt 'It was'
//
// Read it from top to bottom. Weights, batches and losses are those of ./train_gpt2 with equal options, but for
// rounding.
//
// Shapes use the field's letters: B sequences of T tokens, C channels, NH heads of size HS = C / NH, L layers, V tokens
// in the vocabulary (Vp with padding). N = B*T counts rows where a layer does not care about sequences. Matrices are
// row-major. Weights are (out, in). All numbers are fp32. A token is a byte of the text. Token 256 stands before it.
// One thread computes an output value, in an order that no number of threads changes. So no bit of the weights changes.
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#pragma GCC diagnostic ignored "-Wunknown-pragmas" // without -fopenmp, the parallel loops run on one core

enum { BYTE_VOCAB = 257, PADDED_VOCAB = 384, NUM_PARAMS = 16, MODEL_MAGIC = 20240326, MODEL_FP32 = 3 };

// Ends the program with one line that says what is wrong.
#define fail(...) (fflush(stdout), fprintf(stderr, "train_gpt2_simple: " __VA_ARGS__), fputc('\n', stderr), exit(1))
static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- 1. The model and its memory ------------------------------------------------------------------------------------
typedef struct {
    int32_t maxT, V, L, NH, C, Vp; // in the order of a file's header; maxT: positions that the model knows
} Config;
typedef union { // the parameters of a block, and those that no block owns, by name or in order
    struct {
        float *wte, *wpe;                                       // embeddings of tokens and of positions
        float *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb; // of a block: the attention sublayer
        float *ln2w, *ln2b, *fcw, *fcb, *fcprojw, *fcprojb;     // and the MLP sublayer
        float *lnfw, *lnfb, *end;                               // the last LayerNorm
    };
    float *tensor[NUM_PARAMS + 1];
} Params;
typedef struct {
    float *residual;                                                       // before each block, and behind the last
    float *ln1_mean, *ln1_rstd, *ln1, *qkv, *att_lse, *att, *residual_mid; // of a block
    float *ln2_mean, *ln2_rstd, *ln2, *fc, *gelu;
    float *lnf_mean, *lnf_rstd, *lnf, *logits, *losses;
    float *dresidual, *dln, *datt, *dqkv, *dfc; // gradients, for one block at a time
} Acts;
typedef struct {
    Config config;
    int B, T;                             // the largest batch
    int64_t num_params;                   // with the padding of the vocabulary
    float *params, *grads, *m, *v, *acts; // all parameters, their gradients, AdamW's moments, all activations
    int32_t *tokens, *targets;            // (B,T): the batch
} Model;

// Takes a tensor from the memory at `at`. It has L copies, one for each block, or one. They lie together, as in a file.
#define TAKE(tensor, copies, floats) (tensor = at + layer % (copies) * (floats), at += (copies) * (floats))
static Params params_of(const Config *config, float *at, int layer) {
    const int64_t maxT = config->maxT, L = config->L, C = config->C, CC = C * C, Vp = config->Vp;
    Params p;
    TAKE(p.wte, 1, Vp * C), TAKE(p.wpe, 1, maxT * C), TAKE(p.ln1w, L, C), TAKE(p.ln1b, L, C), TAKE(p.qkvw, L, 3 * CC);
    TAKE(p.qkvb, L, 3 * C), TAKE(p.attprojw, L, CC), TAKE(p.attprojb, L, C), TAKE(p.ln2w, L, C), TAKE(p.ln2b, L, C);
    TAKE(p.fcw, L, 4 * CC), TAKE(p.fcb, L, 4 * C), TAKE(p.fcprojw, L, 4 * CC), TAKE(p.fcprojb, L, C);
    TAKE(p.lnfw, 1, C), TAKE(p.lnfb, 1, C), p.end = at;
    return p;
}

static Acts acts_of(const Model *model, int layer) {
    const int64_t L = model->config.L, N = (int64_t)model->B * model->T, NC = N * model->config.C;
    float *at = model->acts;
    Acts a;
    TAKE(a.residual, L + 1, NC), TAKE(a.ln1_mean, L, N), TAKE(a.ln1_rstd, L, N), TAKE(a.ln1, L, NC);
    TAKE(a.qkv, L, 3 * NC), TAKE(a.att_lse, L, N * model->config.NH), TAKE(a.att, L, NC), TAKE(a.residual_mid, L, NC);
    TAKE(a.ln2_mean, L, N), TAKE(a.ln2_rstd, L, N), TAKE(a.ln2, L, NC), TAKE(a.fc, L, 4 * NC), TAKE(a.gelu, L, 4 * NC);
    TAKE(a.lnf_mean, 1, N), TAKE(a.lnf_rstd, 1, N), TAKE(a.lnf, 1, NC), TAKE(a.logits, 1, N * model->config.Vp);
    TAKE(a.losses, 1, N), TAKE(a.dresidual, 1, NC), TAKE(a.dln, 1, NC), TAKE(a.datt, 1, NC), TAKE(a.dfc, 1, 4 * NC);
    TAKE(a.dqkv, 1, 3 * NC);
    return a;
}

// Prints the plan of the memory, and allocates it all at once, as zeros. A block keeps 16 C + NH + 4 floats of a row.
static void model_allocate(Model *model) {
    const int64_t maxT = model->config.maxT, L = model->config.L, NH = model->config.NH, C = model->config.C;
    if (model->T == 0) { model->T = (int)min_i64(64, maxT); }
    const int64_t Vp = model->config.Vp, N = (int64_t)model->B * model->T;
    if (NH < 1 || C < 1 || C % NH != 0) { fail("%d heads, %d channels: heads must divide channels", (int)NH, (int)C); }
    if (model->T < 1 || model->T > maxT) { fail("--seq-len %d: the model knows %d positions", model->T, (int)maxT); }
    const int64_t params = (Vp + maxT + 2 + L * (12 * C + 13)) * C;
    const int64_t acts = N * (L * (16 * C + NH + 4) + 12 * C + Vp + 3), total = 4 * params + acts + 2 * N;
    printf("model       %d layers, %d heads, %d channels, context %d\n"
           "memory      %.2f MiB: parameters, gradients, two moments %.2f each; activations and batch %.2f\n",
           (int)L, (int)NH, (int)C, (int)maxT, (double)total / (1 << 18), (double)params / (1 << 18),
           (double)(acts + 2 * N) / (1 << 18));
    float *at = calloc((size_t)total, sizeof(float));
    if (at == NULL) { fail("out of memory; give a smaller model or a smaller --batch-size"); }
    model->num_params = params, model->params = at, model->grads = at + params, model->m = at + 2 * params;
    model->v = at + 3 * params, model->acts = at + 4 * params;
    model->tokens = (int32_t *)(model->acts + acts), model->targets = model->tokens + N;
}

// ---- 2. The layers: the formula of a backward says which gradients it writes (=), and to which it adds (+=) ---------
// A compiler may not reorder a sum of floats, so it cannot use vectors for one sum. It can for 16 sums side by side.
static float dot(const float *x, const float *y, int n) {
    float lanes[16] = {0}, sum = 0.0f;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int lane = 0; lane < 16; lane++) { lanes[lane] += x[i + lane] * y[i + lane]; }
    }
    for (; i < n; i++) { sum += x[i] * y[i]; }
    for (int lane = 0; lane < 16; lane++) { sum += lanes[lane]; }
    return sum;
}

// y += factor * x. `restrict` promises that the two do not overlap, so that a compiler may use vectors.
static void add_scaled(float *restrict y, float factor, const float *restrict x, int n) {
    for (int i = 0; i < n; i++) { y[i] += factor * x[i]; }
}

// Token and position embedding: out[b,t,:] = wte[ids[b,t],:] + wpe[t,:].  out (N,C), ids (N), wte (Vp,C), wpe (maxT,C)
static void embedding_forward(float *out, const int32_t *ids, const float *wte, const float *wpe, int N, int T, int C) {
#pragma omp parallel for
    for (int64_t i = 0; i < N; i++) {
        for (int c = 0; c < C; c++) { out[i * C + c] = wte[(int64_t)ids[i] * C + c] + wpe[i % T * C + c]; }
    }
}

// dwte[ids[b,t],:] += dout[b,t,:];  dwpe[t,:] += dout[b,t,:]    One thread: a token may occur in several rows.
static void embedding_backward(float *dwte, float *dwpe, const float *dout, const int32_t *ids, int N, int T, int C) {
    for (int64_t i = 0; i < N; i++) {
        add_scaled(dwte + (int64_t)ids[i] * C, 1.0f, dout + i * C, C);
        add_scaled(dwpe + i % T * C, 1.0f, dout + i * C, C);
    }
}

// LayerNorm over the channels of each row (Ba, Kiros, Hinton 2016):
//   mean = sum(x)/C, rstd = 1/sqrt(sum((x-mean)^2)/C + 1e-5), out = (x - mean) * rstd * weight + bias
// out, inp (N,C); mean, rstd (N), kept for the backward; weight, bias (C).
static void layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                              const float *bias, int N, int C) {
#pragma omp parallel for
    for (int64_t i = 0; i < N; i++) {
        const float *x = inp + i * C;
        float *y = out + i * C, sum = 0.0f;
        for (int c = 0; c < C; c++) { sum += x[c]; }
        mean[i] = sum / (float)C;
        for (int c = 0; c < C; c++) { y[c] = x[c] - mean[i]; }
        rstd[i] = 1.0f / sqrtf(dot(y, y, C) / (float)C + 1e-5f);
        for (int c = 0; c < C; c++) { y[c] = y[c] * rstd[i] * weight[c] + bias[c]; }
    }
}

// With n = (x - mean) * rstd and g = weight * dout of a row, and means over the row:
//   dinp += rstd * (g - mean(g) - n * mean(g * n))
//   dweight += sum over rows of dout * n;  dbias += sum over rows of dout
static void layernorm_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                               const float *mean, const float *rstd, const float *weight, int N, int C) {
#pragma omp parallel for
    for (int64_t i = 0; i < N; i++) {
        const float *x = inp + i * C, *dy = dout + i * C, m = mean[i], r = rstd[i];
        float *dx = dinp + i * C, mean_g = dot(weight, dy, C) / (float)C, mean_gn = 0.0f;
        for (int c = 0; c < C; c++) { mean_gn += weight[c] * dy[c] * (x[c] - m) * r / (float)C; }
        for (int c = 0; c < C; c++) { dx[c] += r * (weight[c] * dy[c] - mean_g - (x[c] - m) * r * mean_gn); }
    }
    for (int64_t i = 0; i < N; i++) {
        for (int c = 0; c < C; c++) { dweight[c] += dout[i * C + c] * (inp[i * C + c] - mean[i]) * rstd[i]; }
        add_scaled(dbias, 1.0f, dout + i * C, C);
    }
}

// Linear layer: out = inp weight^T + bias, plus residual unless it is NULL.
// out, residual (N,OC), inp (N,C), weight (OC,C), bias (OC) or NULL. A row of the weights stays in the L1 cache.
static void matmul_forward(float *out, const float *residual, const float *inp, const float *weight, const float *bias,
                           int N, int C, int OC) {
#pragma omp parallel for
    for (int64_t o = 0; o < OC; o++) {
        for (int64_t i = 0; i < N; i++) {
            float y = dot(inp + i * C, weight + o * C, C) + (bias == NULL ? 0.0f : bias[o]);
            out[i * OC + o] = residual == NULL ? y : residual[i * OC + o] + y;
        }
    }
}

// dinp = dout weight;  dweight += dout^T inp;  dbias += sum of the rows of dout (dbias may be NULL)
// A row of dinp is a sum of rows of the weights. A row of the weights comes from memory once for 16 rows of dinp. A row
// of dweight is a sum of rows of inp. The residual's gradient is dout itself.
static void matmul_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                            const float *weight, int N, int C, int OC) {
    memset(dinp, 0, (size_t)N * (size_t)C * sizeof(float));
#pragma omp parallel for
    for (int64_t begin = 0; begin < N; begin += 16) {
        for (int64_t o = 0; o < OC; o++) {
            for (int64_t i = begin; i < min_i64(N, begin + 16); i++) {
                add_scaled(dinp + i * C, dout[i * OC + o], weight + o * C, C);
            }
        }
    }
#pragma omp parallel for
    for (int64_t o = 0; o < OC; o++) {
        for (int64_t i = 0; i < N; i++) {
            add_scaled(dweight + o * C, dout[i * OC + o], inp + i * C, C);
            if (dbias != NULL) { dbias[o] += dout[i * OC + o]; }
        }
    }
}

// Causal multi-head attention (Vaswani et al. 2017). With q, k, v the rows of one head and scale = 1/sqrt(HS):
//   s[i,j] = scale * q[i].k[j];  p[i,j] = softmax over j <= i of s[i,j];  out[i] = sum over j of p[i,j] v[j]
// No T x T matrix is stored. The forward keeps a running maximum m and a running sum l of e^(s - m). The backward finds
// p[i,j] = e^(s[i,j] - lse[i]) anew, lse = m + log(l). out (B,T,C), lse (B,NH,T), qkv (B,T,3C): q, k, v of all heads.
static void attention_forward(float *out, float *lse, const float *qkv, int B, int T, int C, int NH) {
    const int HS = C / NH, stride = 3 * C;
    const float scale = 1.0f / sqrtf((float)HS);
#pragma omp parallel for
    for (int64_t head = 0; head < (int64_t)B * NH; head++) {
        const float *q = qkv + head / NH * T * stride + head % NH * HS, *k = q + C, *v = k + C;
        for (int64_t i = 0; i < T; i++) {
            float *y = out + (head / NH * T + i) * C + head % NH * HS, m = -INFINITY, l = 0.0f;
            for (int d = 0; d < HS; d++) { y[d] = 0.0f; }
            for (int64_t j = 0; j <= i; j++) {
                float s = scale * dot(q + i * stride, k + j * stride, HS), max = fmaxf(m, s);
                float shrink = expf(m - max), p = expf(s - max); // m has grown, or p is less than 1
                for (int d = 0; d < HS; d++) { y[d] = shrink * y[d] + p * v[j * stride + d]; }
                l = shrink * l + p, m = max;
            }
            for (int d = 0; d < HS; d++) { y[d] /= l; }
            lse[head * T + i] = m + logf(l);
        }
    }
}

// With do = dout:
//   dp[i,j] = do[i].v[j];  ds[i,j] = scale * p[i,j] * (dp[i,j] - do[i].out[i])     (the softmax's gradient)
//   dq[i] = sum_j ds[i,j] k[j];  dk[j] = sum_i ds[i,j] q[i];  dv[j] = sum_i p[i,j] do[i]
static void attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out, const float *lse,
                               int B, int T, int C, int NH) {
    const int HS = C / NH, stride = 3 * C;
    const float scale = 1.0f / sqrtf((float)HS);
    memset(dqkv, 0, (size_t)B * (size_t)T * (size_t)stride * sizeof(float));
#pragma omp parallel for
    for (int64_t head = 0; head < (int64_t)B * NH; head++) {
        const int64_t first = head / NH * T * stride + head % NH * HS, first_out = head / NH * T * C + head % NH * HS;
        const float *q = qkv + first, *k = q + C, *v = k + C;
        float *dq = dqkv + first, *dk = dq + C, *dv = dk + C;
        for (int64_t i = 0; i < T; i++) {
            const float *dy = dout + first_out + i * C, delta = dot(dy, out + first_out + i * C, HS);
            for (int64_t j = 0; j <= i; j++) {
                float p = expf(scale * dot(q + i * stride, k + j * stride, HS) - lse[head * T + i]);
                float ds = scale * p * (dot(dy, v + j * stride, HS) - delta);
                add_scaled(dq + i * stride, ds, k + j * stride, HS);
                add_scaled(dk + j * stride, ds, q + i * stride, HS);
                add_scaled(dv + j * stride, p, dy, HS);
            }
        }
    }
}

// GELU in the tanh form that GPT-2 uses (Hendrycks, Gimpel 2016):
//   gelu(x) = x/2 * (1 + tanh(u)), u = sqrt(2/pi) * (x + 0.044715 x^3)
static float gelu_tanh(float x) { return tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)); }
static void gelu_forward(float *out, const float *inp, int64_t n) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) { out[i] = 0.5f * inp[i] * (1.0f + gelu_tanh(inp[i])); }
}

// dinp = gelu'(inp) * dout, gelu'(x) = (1 + tanh(u))/2 + x/2 * (1 - tanh(u)^2) * sqrt(2/pi) * (1 + 3 * 0.044715 x^2)
static void gelu_backward(float *dinp, const float *inp, const float *dout, int64_t n) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) {
        float x = inp[i], th = gelu_tanh(x), du = 0.79788456080286536f * (1.0f + 3.0f * 0.044715f * x * x);
        dinp[i] = dout[i] * (0.5f * (1.0f + th) + 0.5f * x * (1.0f - th * th) * du);
    }
}

// Softmax and cross entropy, forward and backward together. logits (N,Vp), V columns in use; targets, losses (N):
//   losses[i] = log(sum over v of e^logits[i,v]) - logits[i,target]
//   logits[i,v] becomes the gradient of the mean loss, (softmax(logits[i])[v] - (v == target)) / N
static void cross_entropy(float *losses, float *logits, const int32_t *targets, int N, int V, int Vp) {
#pragma omp parallel for
    for (int64_t i = 0; i < N; i++) {
        float *row = logits + i * Vp, target = row[targets[i]], max = -INFINITY, sum = 0.0f;
        for (int v = 0; v < V; v++) { max = fmaxf(max, row[v]); }
        for (int v = 0; v < V; v++) { sum += row[v] = expf(row[v] - max); }
        for (int v = 0; v < Vp; v++) { row[v] = v < V ? row[v] / sum / (float)N : 0.0f; }
        row[targets[i]] -= 1.0f / (float)N;
        losses[i] = logf(sum) + max - target;
    }
}

// ---- 3. The network -------------------------------------------------------------------------------------------------
// x = residual + attention(ln1(residual)). The block's output is x + mlp(ln2(x)).
static void block_forward(Model *model, int layer, int B, int T) {
    int C = model->config.C, N = B * T;
    Params p = params_of(&model->config, model->params, layer);
    Acts a = acts_of(model, layer), next = acts_of(model, layer + 1);
    layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.residual, p.ln1w, p.ln1b, N, C);
    matmul_forward(a.qkv, NULL, a.ln1, p.qkvw, p.qkvb, N, C, 3 * C);
    attention_forward(a.att, a.att_lse, a.qkv, B, T, C, model->config.NH);
    matmul_forward(a.residual_mid, a.residual, a.att, p.attprojw, p.attprojb, N, C, C);
    layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.residual_mid, p.ln2w, p.ln2b, N, C);
    matmul_forward(a.fc, NULL, a.ln2, p.fcw, p.fcb, N, C, 4 * C);
    gelu_forward(a.gelu, a.fc, (int64_t)N * 4 * C);
    matmul_forward(next.residual, a.residual_mid, a.gelu, p.fcprojw, p.fcprojb, N, 4 * C, C);
}

// dresidual: from the block's output to its input. The backward of a LayerNorm adds what comes through its sublayer.
static void block_backward(Model *model, int layer, int B, int T) {
    int C = model->config.C, N = B * T;
    Params p = params_of(&model->config, model->params, layer), g = params_of(&model->config, model->grads, layer);
    Acts a = acts_of(model, layer);
    matmul_backward(a.dfc, g.fcprojw, g.fcprojb, a.dresidual, a.gelu, p.fcprojw, N, 4 * C, C);
    gelu_backward(a.dfc, a.fc, a.dfc, (int64_t)N * 4 * C); // in place
    matmul_backward(a.dln, g.fcw, g.fcb, a.dfc, a.ln2, p.fcw, N, C, 4 * C);
    layernorm_backward(a.dresidual, g.ln2w, g.ln2b, a.dln, a.residual_mid, a.ln2_mean, a.ln2_rstd, p.ln2w, N, C);
    matmul_backward(a.datt, g.attprojw, g.attprojb, a.dresidual, a.att, p.attprojw, N, C, C);
    attention_backward(a.dqkv, a.datt, a.qkv, a.att, a.att_lse, B, T, C, model->config.NH);
    matmul_backward(a.dln, g.qkvw, g.qkvb, a.dqkv, a.ln1, p.qkvw, N, C, 3 * C);
    layernorm_backward(a.dresidual, g.ln1w, g.ln1b, a.dln, a.residual, a.ln1_mean, a.ln1_rstd, p.ln1w, N, C);
}

// From model->tokens (B,T) to the logits of the next tokens. The head has the weights of the token embedding. With
// targets, returns the mean loss, and the logits become their own gradients. B and T are at most as planned.
static double model_forward(Model *model, int B, int T, const int32_t *targets) {
    int C = model->config.C, L = model->config.L, V = model->config.V, Vp = model->config.Vp, N = B * T;
    Params p = params_of(&model->config, model->params, 0);
    Acts a = acts_of(model, 0), last = acts_of(model, L);
    double loss = 0.0;
    embedding_forward(a.residual, model->tokens, p.wte, p.wpe, N, T, C);
    for (int layer = 0; layer < L; layer++) { block_forward(model, layer, B, T); }
    layernorm_forward(a.lnf, a.lnf_mean, a.lnf_rstd, last.residual, p.lnfw, p.lnfb, N, C);
    matmul_forward(a.logits, NULL, a.lnf, p.wte, NULL, N, C, Vp);
    if (targets != NULL) { cross_entropy(a.losses, a.logits, targets, N, V, Vp); }
    for (int i = 0; targets != NULL && i < N; i++) { loss += a.losses[i] / (double)N; }
    return loss;
}

// Computes the gradients of the loss that the last model_forward returned.
static void model_backward(Model *model, int B, int T) {
    int C = model->config.C, L = model->config.L, N = B * T;
    Params p = params_of(&model->config, model->params, 0), g = params_of(&model->config, model->grads, 0);
    Acts a = acts_of(model, 0), last = acts_of(model, L);
    memset(model->grads, 0, (size_t)model->num_params * sizeof(float));
    memset(a.dresidual, 0, (size_t)N * (size_t)C * sizeof(float));
    matmul_backward(a.dln, g.wte, NULL, a.logits, a.lnf, p.wte, N, C, model->config.Vp);
    layernorm_backward(a.dresidual, g.lnfw, g.lnfb, a.dln, last.residual, a.lnf_mean, a.lnf_rstd, p.lnfw, N, C);
    for (int layer = L - 1; layer >= 0; layer--) { block_backward(model, layer, B, T); }
    embedding_backward(g.wte, g.wpe, a.dresidual, model->tokens, N, T, C);
}

// ---- 4. The optimizer -----------------------------------------------------------------------------------------------
// Random numbers are a function of (seed, stream, index): SplitMix64's finaliser (Steele, Lea, Flood 2014) mixes each.
static uint64_t rand_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}
static uint64_t rand_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    const uint64_t golden = 0x9e3779b97f4a7c15ULL; // 2^64 / golden ratio, odd
    return rand_mix(rand_mix(rand_mix(seed + golden) + (stream + 1) * golden) + (index + 1) * golden);
}

// Initialises the parameters as GPT-2 was (Radford et al. 2019): matrices and embeddings are normal (Box-Muller),
// LayerNorm's weights are 1, all else is 0. Each tensor has a stream of random numbers.
static const char param_kinds[] = "nn10n0p010n0p010"; // in order; p: normal, and smaller: it feeds the residual stream
static void params_init(Model *model, uint64_t seed) {
    const Config *c = &model->config;
    const Params p = params_of(c, model->params, 0);
    for (uint64_t t = 0; t < NUM_PARAMS; t++) {
        const float std = param_kinds[t] == 'p' ? 0.02f / sqrtf(2.0f * (float)c->L) : 0.02f;
        for (int64_t i = 0; i < p.tensor[t + 1] - p.tensor[t]; i++) {
            uint64_t bits = rand_u64(seed, 1000 + t, (uint64_t)i / 2);
            float u = ((float)(bits >> 40) + 0.5f) / 16777216.0f; // in (0, 1), from 24 bits
            float angle = (float)(bits >> 16 & 0xffffff) * (6.2831853071795865f / 16777216.0f);
            float normal = sqrtf(-2.0f * logf(u)) * (i % 2 == 0 ? cosf(angle) : sinf(angle));
            p.tensor[t][i] = param_kinds[t] <= '1' ? (float)(param_kinds[t] - '0') : std * normal;
        }
    }
    memset(p.wte + (int64_t)c->V * c->C, 0, (size_t)(c->Vp - c->V) * (size_t)c->C * sizeof(float)); // no token's rows
}

static double gradient_norm(const float *grads, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i += 4096) { sum += dot(grads + i, grads + i, (int)min_i64(4096, n - i)); }
    return sqrt(sum);
}

// AdamW (Loshchilov, Hutter 2019) for update t, from 1, with beta1 = 0.9, beta2 = 0.95:
//   m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2
//   param -= lr * (m / (1-beta1^t) / (sqrt(v / (1-beta2^t)) + 1e-8) + decay * param)
// g is the gradient times grad_scale, which clips it. Only matrices and embeddings decay.
static void model_update(Model *model, float lr, float weight_decay, float grad_scale, int64_t update) {
    const float beta1 = 0.9f, beta2 = 0.95f;
    const double t = (double)update, c1 = 1.0 / (1.0 - pow(beta1, t)), c2 = 1.0 / (1.0 - pow(beta2, t));
    const Params p = params_of(&model->config, model->params, 0);
    for (int k = 0; k < NUM_PARAMS; k++) {
        const int64_t at = p.tensor[k] - model->params, n = p.tensor[k + 1] - p.tensor[k];
        const float decay = param_kinds[k] <= '1' ? 0.0f : weight_decay;
        float *param = model->params + at, *grad = model->grads + at, *m = model->m + at, *v = model->v + at;
#pragma omp parallel for
        for (int64_t i = 0; i < n; i++) {
            float g = grad_scale * grad[i];
            m[i] = beta1 * m[i] + (1.0f - beta1) * g;
            v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
            param[i] -= lr * ((float)c1 * m[i] / (sqrtf((float)c2 * v[i]) + 1e-8f) + decay * param[i]);
        }
    }
}

// The learning rate of a step, counted from 0: a linear warm-up to the peak, then half a cosine down to a tenth of it.
static float learning_rate(float peak, int64_t warmup, int64_t steps, int64_t step) {
    if (step < warmup) { return (float)(peak * ((double)(step + 1) / (double)warmup)); }
    double x = (double)(step - warmup) / (double)(steps - warmup);
    return (float)(peak * (0.1f + (1.0 - 0.1f) * 0.5 * (1.0 + cos(3.14159265358979323846 * x))));
}

// ---- 5. Files -------------------------------------------------------------------------------------------------------
typedef struct {
    uint8_t *bytes;
    int64_t count, train; // tokens, and how many of them are for training; the others, at the end, are for validation
} Text;

// Reads a text. Its last tenth is for validation, or a sequence if that is more, or nothing if training would get none.
static Text text_read(const char *path, int T) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) { fail("--train-data %s: %s", path, strerror(errno)); }
    const int64_t size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0, most = 1LL << 40;
    if (size < T || size > most) { fail("--train-data %s: expected a text of at least %d bytes, a sequence", path, T); }
    const int64_t tenth = (int64_t)(0.1 * (double)(size + 1)), val = tenth > T ? tenth : T + 1;
    Text text = {malloc((size_t)size), size + 1, size - val < T ? size + 1 : size + 1 - val};
    rewind(file);
    bool ok = text.bytes != NULL && fread(text.bytes, 1, (size_t)size, file) == (size_t)size;
    if (!ok) { fail("--train-data %s: cannot read it", path); }
    fclose(file);
    return text;
}

// Sets sequence b of the batch to the T tokens from `begin` on, and its targets to the token that follows each of them.
static void batch_set(Model *model, int64_t b, const Text *text, int64_t begin) {
    for (int64_t t = 0, T = model->T; t < T; t++) {
        model->tokens[b * T + t] = begin + t == 0 ? BYTE_VOCAB - 1 : text->bytes[begin + t - 1];
        model->targets[b * T + t] = text->bytes[begin + t];
    }
}

// Loads a model from llm.c's .bin: 256 int32 (magic, version, the Config at 2, a variant at 8), then the parameters.
static void model_load(Model *model, const char *path) {
    Config *c = &model->config;
    int32_t header[256] = {0};
    FILE *file = fopen(path, "rb");
    if (file == NULL) { fail("--init %s: %s", path, strerror(errno)); }
    bool ok = fread(header, sizeof(header), 1, file) == 1 && header[0] == MODEL_MAGIC && header[1] == MODEL_FP32;
    memcpy(c, header + 2, sizeof(*c));
    ok = ok && header[8] == 0 && c->V == BYTE_VOCAB && c->Vp >= c->V && c->L > 0 && c->L <= 1000 && c->C <= 65536;
    if (!ok) { fail("--init %s: expected a GPT-2 of bytes in fp32, as --save writes it", path); }
    model_allocate(model);
    ok = (int64_t)fread(model->params, sizeof(float), (size_t)model->num_params, file) == model->num_params;
    for (int64_t i = 0; i < model->num_params; i++) { ok = ok && isfinite(model->params[i]); }
    if (!ok || getc(file) != EOF) { fail("--init %s: is damaged: its size is wrong, or not all is finite", path); }
    fclose(file);
}

// Writes a model under another name, and renames it when it is complete.
static void model_save(const Model *model, const char *path) {
    int32_t header[256] = {MODEL_MAGIC, MODEL_FP32};
    char name[4096];
    memcpy(header + 2, &model->config, sizeof(model->config));
    FILE *file = snprintf(name, sizeof(name), "%s.tmp", path) < (int)sizeof(name) ? fopen(name, "wb") : NULL;
    bool ok = file != NULL && fwrite(header, sizeof(header), 1, file) == 1 &&
              (int64_t)fwrite(model->params, sizeof(float), (size_t)model->num_params, file) == model->num_params;
    ok = file != NULL && fclose(file) == 0 && ok && rename(name, path) == 0;
    if (!ok) { fail("--save %s: %s", path, strerror(errno)); }
}

// ---- 6. The run -----------------------------------------------------------------------------------------------------
typedef struct {
    const char *prompt;
    int64_t steps, warmup, val_every, sample_every, sample_tokens, seed;
    float lr, weight_decay, temperature;
} Run;

// Shows the mean loss of up to 80 sequences, spread evenly over the validation part.
static void validate(Model *model, const Text *text, int64_t step) {
    const int64_t all = (text->count - text->train - 1) / model->T, count = min_i64(80, all);
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        batch_set(model, 0, text, text->train + all * i / count * model->T);
        sum += model_forward(model, 1, model->T, model->targets);
    }
    if (count > 0) { printf("step %4lld | val loss %.6f\n", (long long)step, sum / (double)count); }
}

// Draws the token behind n tokens from softmax(logits / temperature); `uniform` is in [0, 1). Temperature 0: the best.
static int sample_token(Model *model, int n, float temperature, double uniform) {
    model_forward(model, 1, n, NULL);
    const float *logits = acts_of(model, 0).logits + (int64_t)(n - 1) * model->config.Vp;
    int best = 0, token = 0;
    double sum = 0.0;
    for (int v = 1; v < BYTE_VOCAB; v++) { best = logits[v] > logits[best] ? v : best; }
    if (temperature == 0.0f) { return best; }
    for (int v = 0; v < BYTE_VOCAB; v++) { sum += expf((logits[v] - logits[best]) / temperature); }
    double left = uniform * sum;
    while (token < BYTE_VOCAB - 1 && (left -= expf((logits[token] - logits[best]) / temperature)) >= 0.0) { token++; }
    return token;
}

// Writes the prompt and what follows. A forward sees at most T tokens. When they are full, the newer half stays.
static void sample(Model *model, const Run *run, int64_t step) {
    const int given = (int)strlen(run->prompt), T = model->T, half = T / 2;
    int n = 0;
    printf("sample after %lld steps:\n", (long long)step);
    for (int64_t i = -given; i < run->sample_tokens; i++) {
        uint64_t bits = rand_u64((uint64_t)run->seed, 3, ((uint64_t)step << 32) + (uint64_t)i) >> 11;
        int token = (uint8_t)run->prompt[i < 0 ? given + i : 0];
        if (i >= 0) { token = sample_token(model, n, run->temperature, (double)bits / 9007199254740992.0); }
        if (n == T) { memmove(model->tokens, model->tokens + T - half, (size_t)half * sizeof(int32_t)), n = half; }
        model->tokens[n++] = token;
        putchar(token == '\n' || (token >= ' ' && token < BYTE_VOCAB - 1) ? token : '?'); // no control characters
    }
    printf("\n");
}

static void train_step(Model *model, const Text *text, const Run *run, int64_t step) {
    const int64_t B = model->B, T = model->T, windows = (text->train - 1) / T;
    struct timespec start, end;
    timespec_get(&start, TIME_UTC);
    for (int64_t b = 0; b < B; b++) { batch_set(model, b, text, (step * B + b) % windows * T); }
    double loss = model_forward(model, model->B, model->T, model->targets);
    model_backward(model, model->B, model->T);
    double norm = gradient_norm(model->grads, model->num_params);
    if (!isfinite(loss + norm)) { fail("step %lld: the loss is not finite; try a lower --lr", (long long)step + 1); }
    float lr = learning_rate(run->lr, run->warmup, run->steps, step);
    model_update(model, lr, run->weight_decay, norm > 1.0 ? (float)(1.0 / norm) : 1.0f, step + 1);
    timespec_get(&end, TIME_UTC);
    double seconds = difftime(end.tv_sec, start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    printf("step %4lld/%lld | loss %.6f | norm %.4f | lr %.2e | %.2f ms | %.0f tok/s\n", (long long)step + 1,
           (long long)run->steps, loss, norm, lr, 1e3 * seconds, (double)(B * T) / seconds);
    fflush(stdout);
}

static const char option_names[] =
    "train-data init save prompt layers heads channels batch-size seq-len steps lr warmup "
    "weight-decay val-every sample-every sample-tokens temperature seed";
// Returns the text behind --name, or the fallback. Marks the option as read.
static const char *option(char **args, const char *name, const char *fallback) {
    for (; *args != NULL; args += 2) {
        if (strncmp(*args, "--", 2) == 0 && strcmp(*args + 2, name) == 0) { return *args = "", args[1]; }
    }
    return fallback;
}
static double number(char **args, const char *name, double fallback, double least, double most, bool whole) {
    const char *text = option(args, name, NULL);
    char *end = NULL;
    double x = text == NULL ? fallback : strtod(text, &end);
    bool ok = text == NULL || (end != text && *end == '\0' && x >= least && x <= most && (!whole || x == floor(x)));
    if (!ok) { fail("--%s %s: expected a %snumber from %g to %g", name, text, whole ? "whole " : "", least, most); }
    return x;
}
static int64_t whole(char **args, const char *name, int fallback, double least, double most) {
    return (int64_t)number(args, name, fallback, least, most, true);
}

int main(int argc, char **argv) {
    char **args = argv + 1;
    if (argc % 2 == 0) { fail("%s: expected --name value, names: %s", argv[argc - 1], option_names); }
    const char *data = option(args, "train-data", NULL), *init = option(args, "init", NULL);
    const char *save = option(args, "save", NULL);
    Run run = {.prompt = option(args, "prompt", "\n"), .lr = (float)number(args, "lr", 3e-4, 0, 100, false)};
    run.steps = whole(args, "steps", -1, -1, 1e9), run.warmup = whole(args, "warmup", -1, -1, 1e9);
    run.val_every = whole(args, "val-every", 100, 0, 1e9), run.sample_every = whole(args, "sample-every", 100, 0, 1e9);
    run.sample_tokens = whole(args, "sample-tokens", 64, 1, 1e6), run.seed = whole(args, "seed", 42, 0, 4294967295.0);
    run.weight_decay = (float)number(args, "weight-decay", 0, 0, 100, false);
    run.temperature = (float)number(args, "temperature", 1, 0, 100, false);
    const int B = (int)whole(args, "batch-size", 4, 1, 1024), T = (int)whole(args, "seq-len", 0, 1, 65536);
    Model model = {.config = {T > 0 ? T : 64, BYTE_VOCAB, 0, 0, 0, PADDED_VOCAB}, .B = B, .T = T};
    if (init == NULL) { // otherwise the file has the sizes
        const int L = (int)whole(args, "layers", 6, 1, 1000), NH = (int)whole(args, "heads", 6, 1, 1024);
        model.config.L = L, model.config.NH = NH, model.config.C = (int)whole(args, "channels", 384, 1, 65536);
    }
    while (*args != NULL && **args == '\0') { args += 2; }
    if (*run.prompt == '\0') { run.prompt = "\n"; }
    if (*args != NULL) { fail("%s: is unknown, given twice or not for --init; names: %s", *args, option_names); }
    if (data == NULL && (init == NULL || run.steps != 0)) { fail("--train-data: missing; give a text to train on"); }
    if (init != NULL) { model_load(&model, init); }
    if (init == NULL) { model_allocate(&model), params_init(&model, (uint64_t)run.seed); }
    Text text = data == NULL ? (Text){NULL, 0, 0} : text_read(data, model.T);
    const int64_t epoch = (text.train - 1) / model.T / model.B;
    if (run.steps < 0) { run.steps = epoch > 0 ? epoch : 1; }
    if (run.warmup < 0) { run.warmup = init == NULL ? min_i64(run.steps / 10, 100) : 0; }
    printf("train data  %lld tokens, %lld steps an epoch\n", (long long)text.train, (long long)epoch);
    for (int64_t step = 0;; step++) {
        bool last = step == run.steps, due = run.val_every > 0 && (step % run.val_every == 0 || last);
        if (due) { validate(&model, &text, step); }
        if (save != NULL && (due || last)) { model_save(&model, save); }
        bool writes = run.sample_every > 0 && (last || (step > 0 && step % run.sample_every == 0));
        if (writes) { sample(&model, &run, step); }
        if (last) { return free(text.bytes), free(model.params), 0; }
        train_step(&model, &text, &run, step);
    }
}
