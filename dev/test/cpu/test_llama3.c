// The tests that see the structs and static functions of train_llama3.c, in one program:
//
//   build/test_llama3          all
//   build/test_llama3 model    the suite of test_model.c; also layers (this file)

// Static: the compiler leaves out what only main needs.
static int train_llama3_main(int argc, char *argv[]) __attribute__((unused));
#define TEST_LLAMA3
#include "dev/test/cpu/test_model.c" // comes first, because it counts the allocations of what it includes

#include "dev/test/cpu/check_layer.h"
#include "dev/test/fixture.h"
#include "dev/test/test_main.h"

// ---- Embedding: input wte (V,C) ----

static void embedding_formula(const Layer *l, const double *in, double *out) {
    for (int i = 0; i < l->B * l->C; i++) { out[i] = in[l->ids[i / l->C] * l->C + i % l->C]; }
}

TEST(test_embedding) {
    enum { N = 10, C = 70, V = 7 };
    const int32_t ids[N] = {3, 0, 3, 6, 3, 1, 1, 0, 6, 3}; // tokens repeat
    Layer layer = {"embedding", embedding_formula, N, 1, C, 0, 0, V, ids, V * C, N * C, N, 0, 0, 0};
    Arrays a = new_arrays(&layer, 1.0f, 1);
    embedding_forward(a.out, ids, a.in, N, C);
    embedding_backward(a.din, a.weights, ids, N, C);
    check_layer(t, &layer, &a);
    free_arrays(&a);
}

// ---- RMSNorm: inputs x (N,C), weight (C) ----

#define EPSILON 1e-2f // so large that leaving it out shows

static void rmsnorm_formula(const Layer *l, const double *in, double *out) {
    int N = l->B, C = l->C;
    const double *weight = in + N * C;
    for (int row = 0; row < N; row++) {
        const double *x = in + row * C;
        double square = 0.0;
        for (int c = 0; c < C; c++) { square += x[c] * x[c] / C; }
        for (int c = 0; c < C; c++) { out[row * C + c] = x[c] / sqrt(square + (double)EPSILON) * weight[c]; }
    }
}

TEST(test_rmsnorm) {
    enum { C = 67, N = 15 };
    Layer layer = {"rmsnorm", rmsnorm_formula, N, 1, C, 0, 0, 0, NULL, N * C + C, N * C, C, 0, 0, 0};
    Arrays a = new_arrays(&layer, 0.3f, 3);
    float rstd[N], *weight = a.in + N * C;
    rmsnorm_forward(a.out, rstd, a.in, weight, N, C, EPSILON);
    rmsnorm_backward(a.din, a.din + N * C, a.weights, a.in, rstd, weight, N, C);
    check_layer(t, &layer, &a);
    free_arrays(&a);
}

// ---- Rotary embeddings: input qkv (B*T,(NH+2KV)*HS) ----

static ModelConfig rope_config; // of the layer that is checked

// The angle of component j of a head at a position, straight from Llama 3's description.
static double rope_angle(int position, int j) {
    const ModelConfig *c = &rope_config;
    double f = 1.0 / pow((double)c->rope_theta, 2.0 * j / c->head_size), turns = 0.0;
    if (c->rope_context > 0) { turns = c->rope_context * f / (2.0 * acos(-1.0)); } // in the original context
    if (c->rope_context > 0 && turns < (double)c->rope_high) {
        double low = (double)c->rope_low, high = (double)c->rope_high;
        double kept = fmax(0.0, (turns - low) / (high - low)); // of the frequency
        f = kept * f + (1.0 - kept) * f / (double)c->rope_factor;
    }
    return position * f;
}

static void rope_formula(const Layer *l, const double *in, double *out) {
    int HS = l->HS, width = (l->NH + 2 * l->KV) * HS;
    for (int i = 0; i < l->num_outputs; i++) {
        int row = i / width, c = i % width, d = c % HS, j = d % (HS / 2);
        double angle = rope_angle(row % l->T, j), other = d < HS / 2 ? -in[i + HS / 2] : in[i - HS / 2];
        bool rotates = c < (l->NH + l->KV) * HS;
        out[i] = rotates ? in[i] * cos(angle) + other * sin(angle) : in[i];
    }
}

static void rope_case(Test *t, int B, int T, Heads heads, float factor, int context) {
    ModelConfig config = {.head_size = heads.HS, .rope_theta = 100.0f, .rope_factor = factor, .rope_context = context};
    config.rope_low = 1.0f, config.rope_high = 4.0f;
    int n = B * T * (int)heads_qkv(heads);
    Layer layer = {.name = "rope", .forward = rope_formula, .B = B, .T = T, .NH = heads.NH};
    layer.KV = heads.KV, layer.HS = heads.HS, layer.reduction = 2;
    layer.num_inputs = layer.num_outputs = layer.written = n;
    Arrays a = new_arrays(&layer, 1.0f, 5);
    float *table = ones(rope_table_floats(&config, T));
    rope_config = config;
    rope_table(table, T, &config);
    memcpy(a.out, a.in, (size_t)n * sizeof(float)), memcpy(a.din, a.weights, (size_t)n * sizeof(float));
    rope_forward(a.out, table, B * T, T, 0, heads);
    rope_backward(a.din, table, B * T, T, heads);
    check_layer(t, &layer, &a);
    free_arrays(&a), free(table);
}

TEST(test_rope) {
    rope_case(t, 2, 7, (Heads){3, 1, 10}, 1.0f, 0);
    rope_case(t, 1, 20, (Heads){2, 1, 8}, 8.0f, 32); // wavelengths of 6, 20, 63 and 199 positions: all three cases
    rope_case(t, 1, 5, (Heads){1, 1, 2}, 1.0f, 0);
}

// ---- SwiGLU: input fc (N,2F) ----

static void swiglu_formula(const Layer *l, const double *in, double *out) {
    int F = l->C;
    for (int i = 0; i < l->B * F; i++) {
        double gate = in[i / F * 2 * F + i % F], up = in[i / F * 2 * F + F + i % F];
        out[i] = gate / (1.0 + exp(-gate)) * up;
    }
}

TEST(test_swiglu) {
    enum { N = 3, F = 53 };
    const float scales[] = {1.0f, 30.0f}; // 30: gates beyond e^80
    FOR_EACH(s, scales) {
        Layer layer = {"swiglu", swiglu_formula, N, 1, F, 0, 0, 0, NULL, N * 2 * F, N * F, 4, N * 2 * F, 0, 0};
        Arrays a = new_arrays(&layer, scales[s], 7);
        swiglu_forward(a.out, a.in, N, F);
        swiglu_backward(a.din, a.in, a.weights, N, F);
        check_layer(t, &layer, &a);
        free_arrays(&a);
    }
}

// ---- Eight models against the numbers of transformers in float64 (dev/test/fixtures/README.md, "Llama") ----

typedef struct {
    Instance *instance;
    unsigned char *data; // of NAME_state.bin
    int B, T, steps;
    const int32_t *inputs, *targets;           // (B,T)
    const float *losses, *grads, *step_losses; // (B,T), as in a file, (steps)
} Reference;

static Reference reference_open(Test *t, const char *name) {
    static ModelFile file;
    Reference r;
    int64_t size;
    const char *path = format("dev/test/fixtures/llama/%s.bin", name);
    if (!OK(t, model_file_open(&file, path, &error))) { exit(1); }
    path = format("dev/test/fixtures/llama/%s_state.bin", name);
    r.data = fixture_read_file(path, &size);
    const int32_t *header = (const int32_t *)r.data;
    r.B = header[2], r.T = header[3], r.steps = header[4];
    int64_t N = (int64_t)r.B * r.T, numbers = 256 + 3 * N + model_num_params(&file.config) + r.steps;
    CHECK(t, header[0] == 20240327 && header[1] == 3 && size == 4 * numbers, "%s: another format", path);
    r.inputs = header + 256, r.targets = r.inputs + N;
    r.losses = (const float *)(r.targets + N), r.grads = r.losses + N;
    r.step_losses = r.grads + model_num_params(&file.config);
    r.instance = make_model(t, &file.config, r.B, r.T, RECOMPUTE_NOTHING);
    OK(t, model_file_read(&file, r.instance->model.params, &error));
    return r;
}

static void reference_close(Reference *r) { free_model(r->instance), free(r->data); }

// A float32 sum of K terms of random sign is off by about sqrt(K) * FLT_EPSILON/2, and D reductions in a row by sqrt(D)
// times that; the largest of many such errors is about 4 times the usual one (test_gpt2.c). The longest reduction is
// over the rows of a batch, the vocabulary or the MLP. A block has 9 in a row, the head 3 more.
static double reference_tolerance(const Reference *r, bool backward) {
    const ModelConfig *c = &r->instance->model.config;
    int64_t K = max_i64(max_i64(c->vocab_size, 3 * c->mlp_width), backward ? (int64_t)r->B * r->T : r->T);
    int64_t D = (backward ? 2 : 1) * (9 * c->num_layers + 3);
    return 2.0 * sqrt((double)(D * K)) * (double)FLT_EPSILON;
}

static double largest_float(const float *x, int64_t n) {
    double max = 0.0;
    for (int64_t i = 0; i < n; i++) { max = fmax(max, fabs((double)x[i])); }
    return max;
}

// Losses of each position, gradients of each tensor, and the losses of 20 AdamW steps.
static void check_reference(Test *t, const char *name) {
    Reference r = reference_open(t, name);
    Model *model = &r.instance->model;
    const ModelConfig *config = &model->config;
    int64_t N = (int64_t)r.B * r.T;
    for (int step = 0; step < r.steps; step++) {
        memcpy(model->tokens, r.inputs, (size_t)N * sizeof(int32_t));
        memcpy(model->targets, r.targets, (size_t)N * sizeof(int32_t));
        clear_rows(model->grads, model_num_params(config));
        double loss = model_forward(model, r.B, r.T, 1.0f / (float)N, true);
        CHECK(t, fabs(loss - (double)r.step_losses[step]) <= 1e-4, "%s: loss %.7f at step %d, want %.7f", name, loss,
              step, (double)r.step_losses[step]);
        if (step == 0) {
            check_close(t, format("%s: losses", name), model->acts.losses.data, r.losses, (size_t)N,
                        reference_tolerance(&r, false) * largest_float(r.losses, N), 0.0);
        }
        model_backward(model, r.B, r.T);
        ParamPiece p = PARAM_PIECE_BEGIN;
        while (step == 0 && param_next_piece(config, OPTIMIZER_ADAMW, &p)) {
            double largest = largest_float(r.grads + param_offset(config, p.tensor), param_size(config, p.tensor));
            const char *what = format("%s: gradient of %s of layer %d", name, param_specs[p.tensor].name, p.layer);
            check_close(t, what, model->grads + p.place, r.grads + p.in_file, (size_t)p.count,
                        reference_tolerance(&r, true) * largest, 0.0);
        }
        AdamW adamw = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, step + 1};
        Muon none = {0.0f, 0.0f, 0.0f, 0.0f, MUON_SCALE_ORIGINAL};
        model_update(model, &adamw, &none);
    }
    reference_close(&r);
}

static const char *const references[] = {"g1_untied",      "g2_tied_scaled",      "g4_untied_scaled_hs16",
                                         "g8_tied_hs8",    "g2_tied_bias",        "g4_untied_bias_hs16",
                                         "g3_tied_scaled", "g2_untied_scaled_odd"};

TEST(test_like_transformers) {
    FOR_EACH(i, references) { check_reference(t, references[i]); }
}

int main(int argc, char **argv) { return test_main(argc, argv); }
