// Each layer of train_gpt2.c on its own: the forward against the formula in double precision, the backward against
// finite differences of that formula. The sizes are small and odd; attention is longer than one tile.
#ifndef TRAIN_GPT2_INCLUDED
#define TRAIN_GPT2_INCLUDED
#define main train_gpt2_main
#include "train_gpt2.c"
#undef main
#endif

#include <float.h>

#include "dev/test/test.h"

// The forward of a layer in double: reads the inputs (all in one array), writes the outputs.
typedef struct Layer Layer;
struct Layer {
    const char *name;
    void (*forward)(const Layer *layer, const double *inputs, double *outputs);
    int B, T, C, OC, NH, V;
    const int32_t *ids; // tokens or targets
    int num_inputs, num_outputs;
    int reduction; // the longest sum behind a value: what the tolerance grows with
    int written;   // so many inputs, the first ones, have their gradient written. The others have it added to.
};

static float *random_floats(int64_t n, float scale, int stream) {
    float *x = (float *)malloc((size_t)(n + 1) * sizeof(float));
    for (int64_t i = 0; i < n; i += 2) {
        float pair[2];
        rand_normal_pair(1234, (uint64_t)stream, (uint64_t)i, pair);
        x[i] = scale * pair[0];
        x[i + 1] = scale * pair[1];
    }
    return x;
}

static float *ones(int64_t n) {
    float *x = (float *)malloc((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) { x[i] = 1.0f; }
    return x;
}

typedef struct {
    float *in, *weights, *out, *din; // weights: of the outputs, in the sum whose gradient is taken
} Arrays;

static Arrays new_arrays(const Layer *layer, float scale, int stream) {
    Arrays a = {random_floats(layer->num_inputs, scale, stream), random_floats(layer->num_outputs, 1.0f, stream + 1),
                ones(layer->num_outputs), ones(layer->num_inputs)};
    return a;
}

static void free_arrays(Arrays *a) { free(a->in), free(a->weights), free(a->out), free(a->din); }

static double largest_double(const double *x, int n) {
    double max = 0.0;
    for (int i = 0; i < n; i++) { max = fmax(max, fabs(x[i])); }
    return max;
}

// A sum of K products in fp32 is off by at most about K epsilon times the size of its terms; 16 more for the few
// operations around it (exp, tanh, division). The size of the terms is taken as the largest value of the tensor.
static void close_to(Test *t, const Layer *layer, const char *what, const float *got, const double *want, int n) {
    char name[64];
    double tolerance = (layer->reduction + 16) * (double)FLT_EPSILON * fmax(largest_double(want, n), 1e-3);
    float *rounded = (float *)malloc((size_t)n * sizeof(float));
    for (int i = 0; i < n; i++) { rounded[i] = (float)want[i]; }
    snprintf(name, sizeof(name), "%s: %s", layer->name, what);
    check_close(t, name, got, rounded, (size_t)n, tolerance, 0.0);
    free(rounded);
}

// d(sum of outputs * weights)/d(input i) by central differences of the double forward.
static void finite_differences(const Layer *layer, const float *inputs, const float *weights, double *gradient) {
    double *x = (double *)malloc((size_t)layer->num_inputs * sizeof(double));
    double *y = (double *)malloc((size_t)layer->num_outputs * sizeof(double));
    const double h = 1e-5;
    for (int i = 0; i < layer->num_inputs; i++) { x[i] = inputs[i]; }
    for (int i = 0; i < layer->num_inputs; i++) {
        double loss[2];
        for (int side = 0; side < 2; side++) {
            x[i] = (double)inputs[i] + (side ? h : -h);
            layer->forward(layer, x, y);
            loss[side] = 0.0;
            for (int j = 0; j < layer->num_outputs; j++) { loss[side] += y[j] * weights[j]; }
        }
        x[i] = inputs[i];
        gradient[i] = (loss[1] - loss[0]) / (2.0 * h);
    }
    free(x), free(y);
}

// Compares a forward's outputs, and a backward's gradients (which were written over ones or added to ones), with the
// formula.
static void check_layer(Test *t, const Layer *layer, const Arrays *a) {
    double *x = (double *)malloc((size_t)layer->num_inputs * sizeof(double));
    double *y = (double *)malloc((size_t)layer->num_outputs * sizeof(double));
    double *gradient = (double *)malloc((size_t)layer->num_inputs * sizeof(double));
    for (int i = 0; i < layer->num_inputs; i++) { x[i] = a->in[i]; }
    layer->forward(layer, x, y);
    close_to(t, layer, "forward", a->out, y, layer->num_outputs);
    finite_differences(layer, a->in, a->weights, gradient);
    CHECK(t, largest_double(gradient, layer->num_inputs) > 1e-3, "%s: the gradient is all zero", layer->name);
    for (int i = layer->written; i < layer->num_inputs; i++) { gradient[i] += 1.0; }
    close_to(t, layer, "backward", a->din, gradient, layer->num_inputs);
    free(x), free(y), free(gradient);
}

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
    Layer layer = {"embedding", embedding_formula, B, T, C, 0, 0, V, ids, V * C + T * C, B * T * C, B * T, 0};
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
    Layer layer = {"layernorm", layernorm_formula, B, T, C, 0, 0, 0, NULL, N * C + 2 * C, N * C, C, 0};
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
    Layer layer = {"matmul", matmul_formula, B, T, C, OC, 0, 0, NULL, N * C + OC * C + OC + N * OC, N * OC, OC, N * C};
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
    for (int s = 0; s < 3; s++) {
        Layer layer = {"gelu", gelu_formula, 1, 1, 1, 0, 0, 0, NULL, N, N, 1, N};
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

// ---- Attention: inputs qkv (B,T,3C) ----

static void attention_formula(const Layer *l, const double *in, double *out) {
    int T = l->T, C = l->C, HS = C / l->NH;
    double *p = (double *)malloc((size_t)T * sizeof(double));
    for (int row = 0; row < l->B * T * l->NH; row++) {
        int h = row % l->NH, i = row / l->NH % T, b = row / l->NH / T;
        const double *sequence = in + b * T * 3 * C + h * HS;
        double sum = 0.0;
        for (int j = 0; j <= i; j++) {
            double dot = 0.0;
            for (int d = 0; d < HS; d++) { dot += sequence[i * 3 * C + d] * sequence[j * 3 * C + C + d]; }
            p[j] = exp(dot / sqrt((double)HS));
            sum += p[j];
        }
        for (int d = 0; d < HS; d++) {
            double value = 0.0;
            for (int j = 0; j <= i; j++) { value += p[j] / sum * sequence[j * 3 * C + 2 * C + d]; }
            out[(b * T + i) * C + h * HS + d] = value;
        }
    }
    free(p);
}

// Scores of +-10,000, with inputs of 100, must neither overflow nor become NaN.
static void attention_case(Test *t, int B, int T, int C, int NH, float scale) {
    Layer layer = {"attention", attention_formula, B, T, C, 0, NH, 0, NULL, B * T * 3 * C, B * T * C, T + C / NH, 0};
    Arrays a = new_arrays(&layer, scale, 9);
    float *lse = ones(B * NH * T);
    float *scratch = ones(gemm_max_threads() * attention_scratch_floats(T, C / NH, &gemm_portable));
    Gemm mm = {&gemm_portable, ones(gemm_workspace_floats(gemm_max_threads()))};
    attention_forward(a.out, lse, a.in, B, T, C, NH, scratch, &mm);
    attention_backward(a.din, a.weights, a.in, a.out, lse, B, T, C, NH, scratch, &mm);
    if (scale == 1.0f) { check_layer(t, &layer, &a); }
    CHECK(t, row_is_finite(a.out, B * T * C) && row_is_finite(a.din, B * T * 3 * C), "attention: not finite");
    free_arrays(&a), free(lse), free(scratch), free(mm.workspace);
}

TEST(test_attention) {
    attention_case(t, 2, 5, 9, 3, 1.0f);
    attention_case(t, 1, ATTENTION_TILE, 4, 2, 1.0f);
    attention_case(t, 1, ATTENTION_TILE + 5, 10, 2, 1.0f);
    attention_case(t, 3, 1, 7, 1, 1.0f);
    attention_case(t, 1, 17, 25, 1, 1.0f); // a head wider than a vector
    attention_case(t, 1, 40, 8, 1, 100.0f);
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
    Layer layer = {"cross_entropy", cross_entropy_formula, N, 1, 1, 0, 0, V, targets, N * V, N, V, 0};
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
