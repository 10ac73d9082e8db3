// Chapter 9, AdamW: the worked example of doc/09_adamw.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

#include "llmc/model/params.h"
#include "llmc/run/outlier.h"
#include "llmc/run/schedulers.h"

// Three updates of one weight, with betas that are easy on paper, lr 0.1 and decay 0.1.
static void three_updates(float scale) {
    float w = 1.0f, m = 0.0f, v = 0.0f, grads[3] = {4, 4, -4};
    for (int t = 1; t <= 3; t++) {
        float g = scale * grads[t - 1];
        cpu_adamw(&w, &m, &v, &g, 1, 0.1f, 0.5f, 0.75f, 0.0f, 0.1f, 1.0f, t);
        double m_hat = (double)m / (1.0 - pow(0.5, t)), v_hat = (double)v / (1.0 - pow(0.75, t));
        printf("%d  %8.4g  %8.4g  %10.4g  %8.4g  %8.4g  %8.4f  %8.4f\n", t, (double)g, (double)m, (double)v, m_hat,
               v_hat, m_hat / sqrt(v_hat), (double)w);
    }
}

// Prints how far a weight moves, in learning rates: 100 updates with the gradient 1, then one with 100, then with 1.
static void spike(const char *name, float spiked) {
    float m = 0.0f, v = 0.0f, moves[5];
    int shown = 0;
    for (int t = 1; t <= 201; t++) {
        float w = 0.0f, g = t == 101 ? spiked : 1.0f;
        cpu_adamw(&w, &m, &v, &g, 1, 1.0f, 0.9f, 0.95f, 1e-8f, 0.0f, 1.0f, t);
        if (t == 100 || t == 101 || t == 111 || t == 151 || t == 201) { moves[shown++] = -w; }
    }
    print_row(name, moves, 5);
}

static void rates_of_gpt2(void) {
    Schedule s = {SCHEDULE_COSINE, 6e-4f, 700, 18865, 0.0f};
    const int64_t steps[] = {0, 349, 699, 6755, 18864};
    printf("\nlearning rate of GPT-2 124M\n");
    for (int i = 0; i < 5; i++) {
        printf("step %5lld  %.3g\n", (long long)steps[i], (double)schedule_lr(&s, steps[i]));
    }
}

static void parameters_that_decay(void) {
    ModelConfig config = GPT2_CONFIG(1024, GPT2_VOCAB_SIZE, model_pad_vocab(GPT2_VOCAB_SIZE), 0, 0, 0);
    model_config_from_size(&config, "124M");
    long long count[2] = {0, 0};
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) { count[param_specs[i].decay] += (long long)param_size(&config, i); }
    printf("\nnumbers with decay %lld, without %lld\n", count[DECAY], count[NO_DECAY]);
}

static void zscores(void) {
    OutlierDetector detector;
    double z;
    outlier_init(&detector);
    for (int i = 0; i < OUTLIER_WINDOW; i++) { outlier_check(&detector, i % 2 == 0 ? 0.75 : 1.25, 3.0, &z); }
    for (int i = 0; i < 2; i++) {
        double norm = i == 0 ? 1.5 : 3.0;
        bool skip = outlier_check(&detector, norm, 3.0, &z);
        printf("norm %.1f, z-score %.2f: %s\n", norm, z, skip ? "skipped" : "taken");
    }
}

static void example(void) {
    printf("t         g         m           v     m hat     v hat      step         w\n");
    three_updates(1.0f);
    three_updates(0.001f);
    printf("\nupdate               100       101       111       151       201\n");
    spike("spike", 100.0f);
    spike("clipped to 1", 1.0f);
    rates_of_gpt2();
    parameters_that_decay();
    zscores();
}

enum { N = 200, UPDATES = 3 };

// epsilon is large here, so that its place counts. An update rounds a weight about eight times, at the size of the
// weight or of the step, which are both below 8.
static void check_adamw_update(Test *t) {
    float w[N], m[N] = {0}, v[N] = {0}, want_w[N], want_m[N] = {0}, want_v[N] = {0}, grad[N];
    random_floats(w, N, 9, 1), memcpy(want_w, w, sizeof(w));
    for (int update = 1; update <= UPDATES; update++) {
        random_floats(grad, N, 9, 1 + (uint64_t)update);
        adamw_update(w, m, v, grad, N, 0.05f, 0.9f, 0.95f, 0.1f, 0.25f, update);
        cpu_adamw(want_w, want_m, want_v, grad, N, 0.05f, 0.9f, 0.95f, 0.1f, 0.25f, 1.0f, update);
    }
    double tolerance = UPDATES * 8.0 * 8.0 * FLT_EPSILON;
    check_close(t, "weights", w, want_w, N, tolerance, 0.0);
    check_close(t, "m", m, want_m, N, tolerance, 0.0);
    check_close(t, "v", v, want_v, N, tolerance, 0.0);
}

// Two tensors of a gradient with norm 1.25 * sqrt(N) and more, then with a norm below the limit.
static void check_clip(Test *t) {
    float tensors[2][N], want[2][N];
    const float *pointers[2] = {tensors[0], tensors[1]};
    const int sizes[2] = {N, N / 2};
    for (int round = 0; round < 2; round++) {
        double squares = 0.0, size = round == 0 ? 1.0 : 0.01;
        for (int i = 0; i < 2; i++) {
            random_floats(tensors[i], N, 9, 10 + (uint64_t)i);
            for (int j = 0; j < N; j++) { tensors[i][j] *= (float)(size * (1.0 + 3.0 * i)); }
            for (int j = 0; j < sizes[i]; j++) { squares += (double)tensors[i][j] * (double)tensors[i][j]; }
        }
        float scale = clip_scale(pointers, sizes, 2, 2.0f);
        want[0][0] = (float)fmin(1.0, 2.0 / sqrt(squares));
        check_close(t, "clip_scale", &scale, want[0], 1, 0.0, 2 * N * (double)FLT_EPSILON);
    }
}

// A step of the schedule takes at most five roundings.
static void check_inverse_sqrt(Test *t) {
    const int64_t steps[] = {0, 4, 9, 10, 39, 89, 90, 95, 99};
    const double want[] = {0.1, 0.5, 1, sqrt(10.0 / 11), 0.5, 1.0 / 3, 1.0 / 3, 1.0 / 6, 1.0 / 30};
    for (int i = 0; i < 9; i++) {
        float lr = inverse_sqrt_lr(3e-3f, 10, 90, 100, steps[i]), expected = (float)(3e-3 * want[i]);
        check_close(t, "inverse_sqrt_lr", &lr, &expected, 1, 0.0, 5.0 * FLT_EPSILON);
    }
}

static const Exercise exercises[] = {
    {"9.1 the update", check_adamw_update}, {"9.2 clipping", check_clip}, {"9.3 another schedule", check_inverse_sqrt}};

int main(void) { return run_chapter("09_adamw", example, exercises); }
