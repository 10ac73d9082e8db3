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

// The ways to write exercise 9.1: right, or with one mistake.
enum { RIGHT, NO_CORRECTION, EPSILON_IN_ROOT, DECAY_IN_GRADIENT, DECAY_WITHOUT_LR, NO_DECAY_AT_ALL, NO_ROOT, WAYS };
static const char *const ways[] = {"",
                                   "m and v are not divided by 1 - beta^t",
                                   "epsilon stands inside the root",
                                   "decay went through m and v, as if it were a gradient",
                                   "decay is not multiplied by lr",
                                   "decay is missing",
                                   "the root is missing"};
static const double lr = 0.05, beta1 = 0.9, beta2 = 0.95, epsilon = 0.1, decay = 0.25;

// One update of one weight in double precision.
static void update_one(int way, double *w, double *m, double *v, double g, int t) {
    if (way == DECAY_IN_GRADIENT) { g += decay * *w; }
    *m = beta1 * *m + (1.0 - beta1) * g;
    *v = beta2 * *v + (1.0 - beta2) * g * g;
    double m_hat = way == NO_CORRECTION ? *m : *m / (1.0 - pow(beta1, t));
    double v_hat = way == NO_CORRECTION ? *v : *v / (1.0 - pow(beta2, t));
    double below = way == EPSILON_IN_ROOT ? sqrt(v_hat + epsilon) : (way == NO_ROOT ? v_hat : sqrt(v_hat)) + epsilon;
    double pulled = way == DECAY_IN_GRADIENT || way == NO_DECAY_AT_ALL ? 0.0 : decay * *w;
    *w -= lr * (m_hat / below + (way == DECAY_WITHOUT_LR ? pulled / lr : pulled));
}

// epsilon is large here, so that its place counts. An update rounds a weight about eight times, at the size of the
// weight or of the step, which are both below 8.
static void check_adamw_update(Test *t) {
    const double tolerance = UPDATES * 8.0 * 8.0 * FLT_EPSILON;
    static double w[WAYS][N], m[WAYS][N], v[WAYS][N];
    float got_w[N], got_m[N] = {0}, got_v[N] = {0}, grad[N];
    random_floats(got_w, N, 9, 1);
    for (int way = 0; way < WAYS; way++) {
        as_doubles(w[way], got_w, N), memset(m[way], 0, sizeof(m[way])), memset(v[way], 0, sizeof(v[way]));
    }
    for (int update = 1; update <= UPDATES; update++) {
        random_floats(grad, N, 9, 1 + (uint64_t)update);
        adamw_update(got_w, got_m, got_v, grad, N, (float)lr, (float)beta1, (float)beta2, (float)epsilon, (float)decay,
                     update);
        for (int i = 0; i < N; i++) {
            Mistake of_w[WAYS], of_m[] = {{m[RIGHT][i], "m is not updated"}, {(double)grad[i], "m forgets its past"}};
            for (int way = 0; way < WAYS; way++) {
                update_one(way, &w[way][i], &m[way][i], &v[way][i], (double)grad[i], update);
                of_w[way] = (Mistake){w[way][i], ways[way]};
            }
            const Mistake of_v[] = {{v[DECAY_IN_GRADIENT][i], ways[DECAY_IN_GRADIENT]}};
            const char *where = format("update %d, weight %d, gradient %g", update, i, (double)grad[i]);
            if (!check_number(t, format("%s: m", where), (double)got_m[i], m[RIGHT][i], tolerance, of_m) ||
                !check_number(t, format("%s: v", where), (double)got_v[i], v[RIGHT][i], tolerance, of_v) ||
                !check_number(t, format("%s: w", where), (double)got_w[i], w[RIGHT][i], tolerance, of_w)) {
                return;
            }
        }
    }
}

// Two tensors of a gradient with a norm far above 2, then with one below it.
static void check_clip(Test *t) {
    float tensors[2][N];
    const float *pointers[2] = {tensors[0], tensors[1]};
    const int sizes[2] = {N, N / 2};
    for (int round = 0; round < 2; round++) {
        double squares[2] = {0.0, 0.0}, size = round == 0 ? 1.0 : 0.01;
        for (int i = 0; i < 2; i++) {
            random_floats(tensors[i], N, 9, 10 + (uint64_t)i);
            for (int j = 0; j < N; j++) { tensors[i][j] *= (float)(size * (1.0 + 3.0 * i)); }
            for (int j = 0; j < sizes[i]; j++) { squares[i] += (double)tensors[i][j] * (double)tensors[i][j]; }
        }
        double sum = squares[0] + squares[1], norm = sqrt(sum), want = fmin(1.0, 2.0 / norm);
        const Mistake mistakes[] = {{2.0 / norm, "a short gradient is made longer"},
                                    {fmin(1.0, 2.0 / sum), "the root of the sum is missing"},
                                    {fmin(1.0, 2.0 / sqrt(squares[0])), "only the first tensor was summed"},
                                    {fmin(1.0, 2.0 / sqrt(squares[1])), "only the last tensor was summed"},
                                    {2.0 / (sqrt(squares[0]) + sqrt(squares[1])), "norms do not add up, squares do"},
                                    {norm / 2.0, "the factor is max_norm / norm"},
                                    {1.0, "nothing is clipped"}};
        const char *where =
            format("two tensors with norms %.4g and %.4g, max_norm 2", sqrt(squares[0]), sqrt(squares[1]));
        double got = (double)clip_scale(pointers, sizes, 2, 2.0f);
        if (!check_number(t, where, got, want, want * 2 * N * FLT_EPSILON, mistakes)) { return; }
    }
}

// The schedule of exercise 9.3 with warm-up 10, decay 90 and total 100, as a part of the peak.
static double exact_rate(double step) {
    if (step < 10) { return (step + 1) / 10; }
    return step < 90 ? sqrt(10 / (step + 1)) : (100 - step) / 30;
}

// A step of the schedule takes at most five roundings.
static void check_inverse_sqrt(Test *t) {
    const int steps[] = {0, 4, 9, 10, 39, 89, 90, 95, 99};
    for (int i = 0; i < 9; i++) {
        double peak = (double)3e-3f, want = peak * exact_rate(steps[i]);
        double got = (double)inverse_sqrt_lr(3e-3f, 10, 90, 100, steps[i]);
        const Mistake mistakes[] = {
            {peak * exact_rate(steps[i] - 1), "the rate of the step before: steps count from 0"},
            {peak * exact_rate(steps[i] + 1), "the rate of the step after"},
            {peak * sqrt(10.0 / (steps[i] + 1)), "the straight end is missing"},
            {peak * (100 - steps[i]) / 10, "the end begins at the rate of step decay - 1"},
            {peak, "the warm-up and the fall are missing"}};
        const char *where = format("peak 0.003, warm-up 10, decay 90, total 100, step %d", steps[i]);
        if (!check_number(t, where, got, want, want * 5.0 * FLT_EPSILON, mistakes)) { return; }
    }
}

static const Exercise exercises[] = {
    {"9.1 the update", check_adamw_update}, {"9.2 clipping", check_clip}, {"9.3 another schedule", check_inverse_sqrt}};

int main(void) { return run_chapter("09_adamw", example, exercises); }
