// Each layer of train_gpt2.c and of llmc/cpu/layers.h on its own (check_layer.h). The sizes are small and odd;
// attention is longer than one tile. (test_trainer.c includes the trainer.)
#include "dev/test/cpu/check_layer.h"

// ---- Embedding: inputs wte (V,C), wpe (T,C) ----

static void embedding_formula(const Layer *l, const double *in, double *out) {
    const double *wte = in, *wpe = in + l->V * l->C;
    for (int row = 0; row < l->B * l->T; row++) {
        for (int c = 0; c < l->C; c++) {
            out[row * l->C + c] = wte[l->ids[row] * l->C + c] + wpe[row % l->T * l->C + c];
        }
    }
}

TEST(test_embedding) {
    enum { B = 2, T = 5, C = 70, V = 7 };
    const int32_t ids[B * T] = {3, 0, 3, 6, 3, 1, 1, 0, 6, 3}; // tokens repeat
    Layer layer = {"embedding", embedding_formula, B, T, C, 0, 0, V, ids, V * C + T * C, B * T * C, B * T, 0, 0, 0};
    Arrays a = new_arrays(&layer, 1.0f, 1);
    embedding_forward(a.out, ids, a.in, a.in + V * C, B, T, C, 0);
    embedding_backward(a.din, a.din + V * C, a.weights, ids, B, T, C);
    check_layer(t, &layer, &a);
    free_arrays(&a);
}

// ---- LayerNorm: inputs x (N,C), weight (C), bias (C) ----

static void layernorm_formula(const Layer *l, const double *in, double *out) {
    int N = l->B * l->T, C = l->C;
    const double *weight = in + N * C, *bias = weight + C;
    for (int row = 0; row < N; row++) {
        const double *x = in + row * C;
        double mean = 0.0, variance = 0.0;
        for (int c = 0; c < C; c++) { mean += x[c] / C; }
        for (int c = 0; c < C; c++) { variance += (x[c] - mean) * (x[c] - mean) / C; }
        for (int c = 0; c < C; c++) { out[row * C + c] = (x[c] - mean) / sqrt(variance + 1e-5) * weight[c] + bias[c]; }
    }
}

TEST(test_layernorm) {
    enum { B = 3, T = 5, C = 67, N = B * T };
    Layer layer = {"layernorm", layernorm_formula, B, T, C, 0, 0, 0, NULL, N * C + 2 * C, N * C, C, 0, 0, 0};
    Arrays a = new_arrays(&layer, 1.5f, 3);
    float mean[N], rstd[N], *weight = a.in + N * C, *dweight = a.din + N * C;
    layernorm_forward(a.out, mean, rstd, a.in, weight, weight + C, N, C);
    layernorm_backward(a.din, dweight, dweight + C, a.weights, a.in, mean, rstd, weight, N, C);
    check_layer(t, &layer, &a);
    free_arrays(&a);
}

// ---- Linear: inputs x (N,C), weight (OC,C), bias (OC), residual (N,OC) ----

static void matmul_formula(const Layer *l, const double *in, double *out) {
    int N = l->B * l->T, C = l->C, OC = l->OC;
    const double *weight = in + N * C, *bias = weight + OC * C, *residual = bias + OC;
    for (int i = 0; i < N; i++) {
        for (int o = 0; o < OC; o++) {
            double sum = bias[o] + residual[i * OC + o];
            for (int c = 0; c < C; c++) { sum += in[i * C + c] * weight[o * C + c]; }
            out[i * OC + o] = sum;
        }
    }
}

TEST(test_matmul) {
    enum { B = 2, T = 7, C = 19, OC = 35, N = B * T };
    Layer layer = {"matmul", matmul_formula, B, T, C, OC, 0, 0, NULL, N * C + OC * C + OC + N * OC, N * OC,
                   OC,       N * C,          0, 0};
    Arrays a = new_arrays(&layer, 1.0f, 5);
    float *in = a.in, *din = a.din;
    Gemm mm = {&gemm_portable, ones(gemm_workspace_floats(gemm_max_threads()))};
    int weight = N * C, bias = weight + OC * C, residual = bias + OC;
    matmul_forward(a.out, in + residual, in, in + weight, in + bias, N, C, OC, &mm);
    matmul_backward(din, din + weight, din + bias, a.weights, in, in + weight, N, C, OC, &mm);
    for (int i = 0; i < N * OC; i++) { din[residual + i] += a.weights[i]; } // the residual's gradient is the output's
    check_layer(t, &layer, &a);
    free_arrays(&a), free(mm.workspace);
}

// ---- GELU ----

static void gelu_formula(const Layer *l, const double *in, double *out) {
    for (int i = 0; i < l->num_inputs; i++) {
        double x = in[i];
        out[i] = 0.5 * x * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
}

// From inputs so small that GELU is x / 2 to those where it is saturated. tanh is right to a few units in the last
// place, so each output is right to a few |x| FLT_EPSILON.
TEST(test_gelu) {
    enum { N = 321 };
    const float scales[] = {1e-3f, 1.0f, 30.0f};
    FOR_EACH(s, scales) {
        Layer layer = {"gelu", gelu_formula, 1, 1, 1, 0, 0, 0, NULL, N, N, 1, N, 0, 0};
        Arrays a = new_arrays(&layer, scales[s], 7);
        double x[N], want[N];
        gelu_forward(a.out, a.in, N);
        gelu_backward(a.din, a.in, a.weights, N);
        check_layer(t, &layer, &a);
        for (int i = 0; i < N; i++) { x[i] = a.in[i]; }
        gelu_formula(&layer, x, want);
        for (int i = 0; i < N; i++) {
            CHECK(t, fabs(a.out[i] - want[i]) <= 4.0 * FLT_EPSILON * fabs(x[i]), "gelu(%.9g) is %.9g, want %.9g", x[i],
                  (double)a.out[i], want[i]);
        }
        free_arrays(&a);
    }
}

// ---- Attention: inputs qkv (B,T,(NH+2KV)*HS) ----

static void attention_formula(const Layer *l, const double *in, double *out) {
    int T = l->T, NH = l->NH, HS = l->HS, group = NH / l->KV, width = (NH + 2 * l->KV) * HS;
    double *p = (double *)malloc((size_t)T * sizeof(double));
    for (int row = 0; row < l->B * T * NH; row++) {
        int h = row % NH, i = row / NH % T, b = row / NH / T;
        const double *q = in + b * T * width + h * HS, *k = in + b * T * width + (NH + h / group) * HS;
        const double *v = k + l->KV * HS;
        double sum = 0.0;
        for (int j = 0; j <= i; j++) {
            double dot = 0.0;
            for (int d = 0; d < HS; d++) { dot += q[i * width + d] * k[j * width + d]; }
            p[j] = exp(dot / sqrt((double)HS));
            sum += p[j];
        }
        for (int d = 0; d < HS; d++) {
            double value = 0.0;
            for (int j = 0; j <= i; j++) { value += p[j] / sum * v[j * width + d]; }
            out[((b * T + i) * NH + h) * HS + d] = value;
        }
    }
    free(p);
}

// Scores of +-10,000, with inputs of 100, must neither overflow nor become NaN.
static void attention_case(Test *t, int B, int T, Heads heads, float scale) {
    int in = B * T * (int)heads_qkv(heads), out = B * T * (int)heads_q(heads), group = heads.NH / heads.KV;
    Layer layer = {.name = "attention", .forward = attention_formula, .B = B, .T = T, .NH = heads.NH};
    layer.KV = heads.KV, layer.HS = heads.HS, layer.num_inputs = in, layer.num_outputs = out;
    layer.reduction = group * T + heads.HS;
    Arrays a = new_arrays(&layer, scale, 9);
    float *lse = ones(B * heads.NH * T);
    float *scratch = ones(gemm_max_threads() * attention_scratch_floats(T, heads.HS, &gemm_portable));
    Gemm mm = {&gemm_portable, ones(gemm_workspace_floats(gemm_max_threads()))};
    attention_forward(a.out, lse, a.in, B, T, heads, scratch, &mm);
    attention_backward(a.din, a.weights, a.in, a.out, lse, B, T, heads, scratch, &mm);
    if (scale == 1.0f) { check_layer(t, &layer, &a); }
    CHECK(t, row_is_finite(a.out, out) && row_is_finite(a.din, in), "attention: not finite");
    free_arrays(&a), free(lse), free(scratch), free(mm.workspace);
}

TEST(test_attention) {
    const struct {
        int B, T;
        Heads heads; // NH, KV, HS
        float scale;
    } cases[] = {{2, 5, {3, 3, 3}, 1.0f},
                 {1, ATTENTION_TILE, {2, 2, 2}, 1.0f},
                 {1, ATTENTION_TILE + 5, {2, 2, 5}, 1.0f},
                 {3, 1, {1, 1, 7}, 1.0f},
                 {1, 17, {1, 1, 25}, 1.0f}, // a head wider than a vector
                 {1, 40, {1, 1, 8}, 100.0f},
                 {1, ATTENTION_TILE + 3, {4, 2, 2}, 1.0f}, // two heads of queries share one of keys
                 {1, 7, {9, 3, 4}, 1.0f},
                 {1, 9, {4, 1, 6}, 1.0f}};
    FOR_EACH(i, cases) { attention_case(t, cases[i].B, cases[i].T, cases[i].heads, cases[i].scale); }
}

// ---- Softmax and cross-entropy: inputs logits (N,V), held in rows of Vp ----

static void cross_entropy_formula(const Layer *l, const double *in, double *out) {
    for (int i = 0; i < l->B; i++) {
        double sum = 0.0;
        for (int v = 0; v < l->V; v++) { sum += exp(in[i * l->V + v]); }
        out[i] = log(sum) - in[i * l->V + l->ids[i]];
    }
}

TEST(test_cross_entropy) {
    enum { N = 3, V = 101, Vp = 128 };
    const int32_t targets[N] = {100, 0, 57};
    Layer layer = {"cross_entropy", cross_entropy_formula, N, 1, 1, 0, 0, V, targets, N * V, N, V, 0, 0, 0};
    float *in = random_floats(N * V, 2.0f, 13), losses[N], weights[N] = {0.25f, 0.25f, 0.25f}, gradient[N * V];
    float *logits = ones(N * Vp);
    for (int i = 0; i < N; i++) { memcpy(logits + i * Vp, in + i * V, V * sizeof(float)); }
    cross_entropy(losses, logits, targets, N, V, Vp, 0.25f, true);
    for (int i = 0; i < N * V; i++) { gradient[i] = 1.0f + logits[i / V * Vp + i % V]; }
    for (int i = 0; i < N; i++) { CHECK(t, logits[i * Vp + V] == 1.0f, "cross_entropy: wrote into the padding"); }
    Arrays a = {in, weights, losses, gradient};
    check_layer(t, &layer, &a);
    free(in), free(logits);
}

TEST(test_cross_entropy_extreme_logits) {
    float logits[2 * 3] = {10000.0f, -10000.0f, 9999.0f, -10000.0f, -10000.0f, -10000.0f}, losses[2];
    const int32_t targets[2] = {1, 2};
    cross_entropy(losses, logits, targets, 2, 3, 3, 1.0f, true);
    CHECK(t, fabsf(losses[0] - 20000.3133f) <= 0.01f, "loss %.9g, want 20000.3133", (double)losses[0]);
    CHECK(t, fabsf(losses[1] - logf(3.0f)) <= 0.001f, "loss %.9g, want ln 3", (double)losses[1]);
    CHECK(t, row_is_finite(logits, 6), "the gradient is not finite");
}
