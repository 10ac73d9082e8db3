// Tests the CPU trainer against PyTorch's numbers: the whole model, then ten updates. Each layer alone stands in
// dev/test/cpu/test_layers.c.
//
// The numbers lie in dev/test/fixtures. make_fixtures.py computed them in float64 and rounded them once. So a
// difference is the error of this program's float32 arithmetic alone.
#ifndef TRAIN_GPT2_INCLUDED
#define TRAIN_GPT2_INCLUDED
#define main train_gpt2_main
#include "train_gpt2.c"
#undef main
#endif

#include <float.h>

#include "dev/test/fixture.h"
#include "dev/test/test_main.h"
#include "llmc/files/checkpoint.h"
#include "llmc/files/model_file.h"

#define FIXTURES "dev/test/fixtures/"

// ---------------------------------------------------------------------------------------------------------------------
// Tolerances
//
// A float32 sum of K products of random sign is off by about sqrt(K) * FLT_EPSILON/2 times the size of its terms. The
// errors of D reductions in a row add up like a random walk: sqrt(D*K) * FLT_EPSILON/2, relative to the largest values
// of the result. The largest of some thousand such errors is about 4 times the usual one, so the tolerance is 2 *
// sqrt(D*K) * FLT_EPSILON. A mistake in a formula is larger by orders of magnitude.
static double tolerance(int64_t K, int64_t D) { return 2.0 * sqrt((double)(D * K)) * FLT_EPSILON; }

static double largest(const float *values, int64_t n) {
    double max = 0.0;
    for (int64_t i = 0; i < n; i++) { max = fmax(max, fabs((double)values[i])); }
    return max;
}

// Compares a tensor that D reductions of length K in a row made with PyTorch's tensor.
static bool check_tensor(Test *t, const char *what, const float *got, const float *want, int64_t n, int64_t K,
                         int64_t D) {
    return check_close(t, what, got, want, (size_t)n, tolerance(K, D) * largest(want, n), 0.0);
}

TEST(test_comparison_rejects) {
    enum { N = 57, K = 21, D = 3 };
    float want[N], got[N];
    for (int i = 0; i < N; i++) { want[i] = got[i] = 0.3f * (float)(i % 7 - 3); }
    double tol = tolerance(K, D) * largest(want, N);
    Test inner = {.failures = 100}; // a high count of failures keeps it from printing more
    CHECK(t, check_tensor(&inner, "equal", got, want, N, K, D), "equal tensors are rejected");
    got[31] = (float)(want[31] + 0.5 * tol);
    CHECK(t, check_tensor(&inner, "near", got, want, N, K, D), "half the tolerance is rejected");
    got[31] = (float)(want[31] + 10.0 * tol);
    CHECK(t, !check_tensor(&inner, "perturbed", got, want, N, K, D), "ten times the tolerance passes");
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        got[31] = bad[i];
        CHECK(t, !check_tensor(&inner, "not finite", got, want, N, K, D), "%f passes", (double)bad[i]);
        CHECK(t, !check_tensor(&inner, "not finite", want, got, N, K, D), "%f as the wanted value passes",
              (double)bad[i]);
    }
    CHECK(t, inner.failures == 107, "%d comparisons failed, expected 7", inner.failures - 100);
}

// ---------------------------------------------------------------------------------------------------------------------
// The whole model

static float *zeros(int64_t n) {
    float *memory = (float *)calloc((size_t)n, sizeof(float));
    if (memory == NULL) { abort(); }
    return memory;
}

typedef struct {
    unsigned char *data;
    int B, T;
    const int32_t *inputs, *targets;    // (B,T)
    const float *logits, *loss, *grads; // (B,T,V), one number, the 16 tensors in file order
} DebugState;

static DebugState debug_state_open(const ModelConfig *config) {
    const char *path = FIXTURES "tiny_debug_state.bin";
    DebugState s;
    int64_t size;
    s.data = fixture_read_file(path, &size);
    const int32_t *header = (const int32_t *)s.data;
    if (size < 1024 || header[0] != 20240327 || header[1] != 2) { fixture_fail(path, "not a reference state", ""); }
    s.B = header[2], s.T = header[3];
    int64_t N = (int64_t)s.B * s.T;
    s.inputs = header + 256;
    s.targets = s.inputs + N;
    s.logits = (const float *)(s.targets + N);
    s.loss = s.logits + N * config->vocab_size;
    s.grads = s.loss + 1;
    int64_t numbers = 256 + 2 * N + N * config->vocab_size + 1 + model_num_params(config);
    if (size != 4 * numbers) { fixture_fail(path, "another size than its header says", ""); }
    return s;
}

// A model with its memory. B, T and the weights come from the files.
typedef struct {
    Model gpt2;
    MemoryPlan plan;
    DebugState want;
} Tiny;

static void tiny_close(Tiny *tiny) {
    plan_free(&tiny->plan);
    free(tiny->want.data);
}

// Returns false and fails the test if the model cannot be loaded. Then there is nothing to close.
static bool tiny_open_for(Test *t, Tiny *tiny, const char *init, int recompute, OptimizerKind optimizer) {
    Error error;
    ModelFile file;
    if (!CHECK(t, model_file_open(&file, init, &error), "%s", error.text)) { return false; }
    tiny->want = debug_state_open(&file.config);
    RunShape shape = {RUN_TRAINS, tiny->want.B, tiny->want.T, recompute, 0, 0, optimizer};
    model_plan(&tiny->gpt2, &tiny->plan, &file.config, shape, &gemm_portable);
    bool ok = plan_allocate(&tiny->plan, &error) && model_file_read(&file, tiny->gpt2.params, &error);
    if (ok) {
        clear_moments(&tiny->gpt2);
        clear_rows(tiny->gpt2.grads, model_num_params(&file.config));
    } else {
        tiny_close(tiny);
    }
    return CHECK(t, ok, "%s", error.text);
}

static bool tiny_open(Test *t, Tiny *tiny, const char *init, int recompute) {
    return tiny_open_for(t, tiny, init, recompute, OPTIMIZER_ADAMW);
}

// Returns the parameters of a model of tiny's config; the caller frees them. Returns NULL and fails the test on
// failure.
static float *load_params(Test *t, const Tiny *tiny, const char *init) {
    Error error;
    ModelFile file;
    if (!CHECK(t, model_file_open(&file, init, &error), "%s", error.text)) { return NULL; }
    bool same = memcmp(&file.config, &tiny->gpt2.config, sizeof(ModelConfig)) == 0;
    if (!CHECK(t, same, "%s: another config than tiny.bin", init)) { return NULL; }
    float *params = zeros(model_num_params(&file.config));
    bool ok = model_file_read_range(&file, 0, model_num_params(&file.config), params, &error);
    CHECK(t, ok, "%s", error.text);
    return params; // in the order of a file
}

// Returns an array of the trainer in the order of a file. The caller frees it.
static float *in_file_order(const ModelConfig *config, const float *array) {
    float *ordered = zeros(model_num_params(config));
    ParamPiece piece = PARAM_PIECE_BEGIN;
    while (param_next_piece(config, OPTIMIZER_ADAMW, &piece)) {
        memcpy(ordered + piece.in_file, array + piece.place, (size_t)piece.count * sizeof(float));
    }
    return ordered;
}

static double tiny_forward(Tiny *tiny, const int32_t *inputs, const int32_t *targets, bool wants_gradient) {
    int B = tiny->want.B, T = tiny->want.T;
    memcpy(tiny->gpt2.tokens, inputs, sizeof(int32_t) * (size_t)(B * T));
    memcpy(tiny->gpt2.targets, targets, sizeof(int32_t) * (size_t)(B * T));
    return model_forward(&tiny->gpt2, B, T, 1.0f / (float)(B * T), wants_gradient);
}

// The longest reductions are over the 4C channels of an MLP, the V tokens of the vocabulary, or the B*T rows of a
// weight's gradient. A block has 9 in a row: two LayerNorms, qkv, scores, softmax, weighted sum, two projections and
// fc. The final LayerNorm, the head and the loss make 3 more. The backward pass goes through all of them again.
static int64_t longest_reduction(const Tiny *tiny) {
    const ModelConfig *config = &tiny->gpt2.config;
    int64_t channels = 4 * (int64_t)config->channels, rows = (int64_t)tiny->want.B * tiny->want.T;
    return max_i64(max_i64(channels, rows), config->vocab_size);
}
static int64_t forward_depth(const Tiny *tiny) { return 9 * tiny->gpt2.config.num_layers + 3; }
static int64_t backward_depth(const Tiny *tiny) { return 2 * forward_depth(tiny); }

TEST(test_logits_and_loss) {
    Tiny tiny;
    if (!tiny_open(t, &tiny, FIXTURES "tiny.bin", RECOMPUTE_NOTHING)) { return; }
    Model *model = &tiny.gpt2;
    int V = model->config.vocab_size, C = model->config.channels;
    int64_t N = (int64_t)tiny.want.B * tiny.want.T, K = longest_reduction(&tiny), D = forward_depth(&tiny);
    float *logits = zeros(N * V), loss = (float)tiny_forward(&tiny, tiny.want.inputs, tiny.want.targets, false);
    matmul_forward(logits, NULL, model->acts.lnf.data, params_of(model, 0).wte, NULL, N, C, V, &model->mm);
    check_tensor(t, "logits", logits, tiny.want.logits, N * V, K, D);
    check_tensor(t, "loss", &loss, tiny.want.loss, 1, K, D);
    free(logits);
    tiny_close(&tiny);
}

TEST(test_gradients) {
    for (int recompute = RECOMPUTE_NOTHING; recompute <= RECOMPUTE_BLOCK; recompute++) {
        Tiny tiny;
        if (!tiny_open(t, &tiny, FIXTURES "tiny.bin", recompute)) { return; }
        const ModelConfig *config = &tiny.gpt2.config;
        tiny_forward(&tiny, tiny.want.inputs, tiny.want.targets, true);
        model_backward(&tiny.gpt2, tiny.want.B, tiny.want.T);
        float *grads = in_file_order(config, tiny.gpt2.grads);
        for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
            int64_t at = param_offset(config, i);
            check_tensor(t, param_specs[i].name, grads + at, tiny.want.grads + at, param_size(config, i),
                         longest_reduction(&tiny), backward_depth(&tiny));
        }
        free(grads);
        tiny_close(&tiny);
    }
}

// logf, sinf and cosf differ between libraries by a few units in the last place.
TEST(test_initialisation) {
    Fixture f = fixture_open(FIXTURES "init.bin");
    Tiny tiny;
    if (!tiny_open(t, &tiny, FIXTURES "tiny.bin", RECOMPUTE_NOTHING)) { return; }
    int stride = *fixture_ints(&f, "stride", 1);
    int64_t n = ceil_div_i64(model_num_params(&tiny.gpt2.config), stride);
    param_init_all(tiny.gpt2.params, &tiny.gpt2.config, (uint64_t)*fixture_ints(&f, "seed", 1));
    float *params = in_file_order(&tiny.gpt2.config, tiny.gpt2.params);
    for (int64_t i = 0; i < n; i++) { params[i] = params[i * stride]; }
    check_close(t, "weights", params, fixture_floats(&f, "weights", n), (size_t)n, 8 * FLT_EPSILON * MODEL_INIT_STD,
                8 * FLT_EPSILON);
    free(params);
    tiny_close(&tiny);
    fixture_close(&f);
}

// ---------------------------------------------------------------------------------------------------------------------
// Ten updates

static Schedule schedule_of(const Fixture *f) {
    Schedule s;
    s.kind = SCHEDULE_COSINE;
    s.peak = fixture_float(f, "peak");
    s.warmup = *fixture_ints(f, "warmup", 1);
    s.total = *fixture_ints(f, "total", 1);
    s.final_fraction = fixture_float(f, "final_fraction");
    return s;
}

static Muon muon_of(const Fixture *f, int step, float grad_scale) {
    Schedule s = schedule_of(f);
    s.peak = fixture_float(f, "muon_lr");
    float last = fixture_float(f, "muon_momentum");
    Muon muon = {schedule_lr(&s, step), muon_momentum_of_step(last, *fixture_ints(f, "muon_warmup", 1), step),
                 fixture_float(f, "weight_decay"), grad_scale, (MuonScale)*fixture_ints(f, "muon_scale", 1)};
    return muon;
}

// Makes one update as the training loop does: zero, forward, backward, clip, AdamW or Muon. Returns the loss.
static float update(Tiny *tiny, const Fixture *f, int step, float lr, float *norm) {
    int B = tiny->want.B, T = tiny->want.T, steps = *fixture_ints(f, "total", 1);
    const int32_t *inputs = fixture_ints(f, "inputs", steps * B * T) + step * B * T;
    const int32_t *targets = fixture_ints(f, "targets", steps * B * T) + step * B * T;
    clear_rows(tiny->gpt2.grads, model_num_params(&tiny->gpt2.config));
    double loss = tiny_forward(tiny, inputs, targets, true);
    model_backward(&tiny->gpt2, B, T);
    *norm = (float)model_gradient_norm(&tiny->gpt2);
    float clip = fixture_float(f, "grad_clip"), grad_scale = *norm > clip ? clip / *norm : 1.0f;
    AdamW adamw = {lr,
                   fixture_float(f, "beta1"),
                   fixture_float(f, "beta2"),
                   fixture_float(f, "eps"),
                   fixture_float(f, "weight_decay"),
                   grad_scale,
                   step + 1};
    Muon muon = {0.0f, 0.0f, 0.0f, 0.0f, MUON_SCALE_ORIGINAL};
    if (tiny->gpt2.shape.optimizer == OPTIMIZER_MUON) { muon = muon_of(f, step, grad_scale); }
    model_update(&tiny->gpt2, &adamw, &muon);
    return (float)loss;
}

// Compares what the updates added to tensor i with what they added in PyTorch. The norm of the difference is relative
// to the norm of the movement. Its largest element is relative to the sum of the learning rates, about the most that
// AdamW can move an element. Muon moves elements farther, so this bound is strict for its matrices. AdamW divides a
// gradient's error by sqrt(v) + epsilon. The fixture's epsilon of 1e-3 keeps the error small also for elements whose
// gradient is nearly 0, and makes epsilon's place in the formula matter.
static void check_movement(Test *t, const ModelConfig *config, int i, const float *got, const float *want,
                           const float *start, double rates, double tol) {
    int64_t at = param_offset(config, i);
    double difference = 0.0, movement = 0.0, worst = 0.0;
    bool all_close = true;
    for (int64_t j = at; j < at + param_size(config, i); j++) {
        double d = (double)got[j] - want[j], moved = (double)want[j] - start[j];
        double rounding = fabs((double)want[j]) * FLT_EPSILON * 10.0; // of the parameter itself, once in each update
        difference += d * d;
        movement += moved * moved;
        worst = fmax(worst, fabs(d));
        all_close = all_close && fabs(d) <= tol * rates + rounding;
    }
    const char *name = param_specs[i].name;
    CHECK(t, all_close, "%s: an element is off by %g, the learning rates add up to %g", name, worst, rates);
    CHECK(t, sqrt(difference) <= tol * sqrt(movement), "%s moved by %g in all and is off by %g", name, sqrt(movement),
          sqrt(difference));
}

static void check_ten_updates(Test *t, const char *fixture, const char *after, OptimizerKind optimizer) {
    Fixture f = fixture_open(fixture);
    Tiny tiny;
    if (!tiny_open_for(t, &tiny, FIXTURES "tiny.bin", RECOMPUTE_NOTHING, optimizer)) { return; }
    Schedule schedule = schedule_of(&f);
    int steps = (int)schedule.total, clipped = 0;
    double tol = tolerance(longest_reduction(&tiny), backward_depth(&tiny) * steps), rates = 0.0;
    for (int step = 0; step < steps; step++) {
        float norm, lr = schedule_lr(&schedule, step), loss = update(&tiny, &f, step, lr, &norm);
        check_close(t, "lr", &lr, fixture_floats(&f, "lr", steps) + step, 1, 0.0, 4 * FLT_EPSILON);
        check_close(t, "loss", &loss, fixture_floats(&f, "loss", steps) + step, 1, 0.0, tol);
        check_close(t, "norm", &norm, fixture_floats(&f, "norm", steps) + step, 1, 0.0, tol);
        clipped += norm > fixture_float(&f, "grad_clip");
        rates += lr;
    }
    CHECK(t, clipped > 0 && clipped < steps, "%d of %d updates were clipped, expected some", clipped, steps);
    float *start = load_params(t, &tiny, FIXTURES "tiny.bin");
    float *want = load_params(t, &tiny, after), *got = in_file_order(&tiny.gpt2.config, tiny.gpt2.params);
    for (int i = 0; start != NULL && want != NULL && i < NUM_PARAM_TENSORS; i++) {
        check_movement(t, &tiny.gpt2.config, i, got, want, start, rates, tol);
    }
    free(start), free(want), free(got);
    tiny_close(&tiny);
    fixture_close(&f);
}

TEST(test_ten_updates) {
    check_ten_updates(t, FIXTURES "tiny_steps.bin", FIXTURES "tiny_after_10.bin", OPTIMIZER_ADAMW);
}

TEST(test_ten_updates_with_muon) {
    check_ten_updates(t, FIXTURES "tiny_muon_steps.bin", FIXTURES "tiny_muon_after_10.bin", OPTIMIZER_MUON);
}

// ---------------------------------------------------------------------------------------------------------------------
// Muon's rounds

// Compares NS5 of one matrix (rows,cols) with PyTorch's. A round makes three products in a row. It enlarges small
// singular values, and the errors in them, by at most MUON_A.
static void check_ns5(Test *t, const Fixture *f, const char *name, int64_t rows, int64_t cols) {
    char result[32];
    Gemm mm = {&gemm_portable, zeros(gemm_workspace_floats(gemm_max_threads()))};
    snprintf(result, sizeof(result), "%s_ns5", name);
    int64_t n = rows * cols;
    float *x = zeros(n), *scratch = zeros(muon_scratch_floats(rows, cols));
    memcpy(x, fixture_floats(f, name, n), sizeof(float) * (size_t)n);
    muon_orthogonalize(x, scratch, rows, cols, &mm);
    const float *want = fixture_floats(f, result, n);
    double tol = tolerance(max_i64(rows, cols), 3 * MUON_ROUNDS) * pow((double)MUON_A, MUON_ROUNDS);
    check_close(t, name, x, want, (size_t)n, tol * largest(want, n), 0.0);
    free(mm.workspace);
    free(scratch);
    free(x);
}

TEST(test_ns5) {
    Fixture f = fixture_open(FIXTURES "ns5.bin");
    check_ns5(t, &f, "square", 21, 21);
    check_ns5(t, &f, "tall", 40, 12);
    check_ns5(t, &f, "wide", 12, 40);
    fixture_close(&f);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
