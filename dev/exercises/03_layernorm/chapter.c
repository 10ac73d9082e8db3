// Chapter 3, LayerNorm: the worked example of doc/03_layernorm.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

enum { C = 4, WIDE = 96 };

static void example(void) {
    float x[C] = {0, 8, 6, 6}, weight[C] = {1, 2, 1, 3}, bias[C] = {0, 0, 1, 1}, dout[C] = {3, 0, 0, 1};
    float out[C], n[C], g[C], mean, rstd, dx[C] = {0}, dweight[C] = {0}, dbias[C] = {0};
    cpu_layernorm_forward(out, &mean, &rstd, x, weight, bias, 1, C);
    cpu_layernorm_backward(dx, dweight, dbias, dout, x, &mean, &rstd, weight, 1, C);
    for (int c = 0; c < C; c++) { n[c] = (x[c] - mean) * rstd, g[c] = weight[c] * dout[c]; }
    print_row("x", x, C);
    printf("mean %.4f, rstd %.4f\n", (double)mean, (double)rstd);
    print_row("n", n, C), print_row("weight", weight, C), print_row("bias", bias, C), print_row("out", out, C);
    print_row("dout", dout, C), print_row("g", g, C), print_row("dx", dx, C);
    print_row("dweight", dweight, C), print_row("dbias", dbias, C);
}

static void random_row(float *x, float mean, uint64_t stream) {
    random_floats(x, WIDE, 3, stream);
    for (int c = 0; c < WIDE; c++) { x[c] += mean; }
}

// Tolerances: float sums of WIDE terms are off by at most WIDE half epsilons of the sum of their magnitudes.
#define SUM_ERROR (WIDE * FLT_EPSILON)

static void check_rms_norm_of(Test *t, float size) {
    float x[WIDE], weight[WIDE], out[WIDE], want[WIDE], outside[WIDE], without[WIDE];
    random_row(x, 0.5f, 1), random_row(weight, 1.0f, 2);
    double squares = 0.0;
    for (int c = 0; c < WIDE; c++) { x[c] *= size, squares += (double)x[c] * (double)x[c]; }
    for (int c = 0; c < WIDE; c++) {
        double product = (double)x[c] * (double)weight[c];
        want[c] = (float)(product / sqrt(squares / WIDE + 1e-5));
        outside[c] = (float)(product / (sqrt(squares / WIDE) + 1e-5)),
        without[c] = (float)(product * sqrt(WIDE / squares));
    }
    rms_norm(out, x, weight, WIDE, 1e-5f);
    same_numbers(t, format("96 numbers of about %g, epsilon 1e-5: out", (double)size), out, want, WIDE, 0.0, SUM_ERROR);
    likely(t, out, outside, WIDE, "epsilon is added to the root, but it should be added to the mean below the root.");
    likely(t, out, without, WIDE, "epsilon is missing.");
}

// Numbers of 0.001 have squares of a tenth of epsilon.
static void check_rms_norm(Test *t) {
    check_rms_norm_of(t, 1.0f);
    check_rms_norm_of(t, 0.001f);
}

static void check_row_gradient(Test *t) {
    float x[WIDE], weight[WIDE], dout[WIDE], bias[WIDE], out[WIDE], mean, rstd;
    float dx[WIDE], want[WIDE] = {0}, dweight[WIDE] = {0}, dbias[WIDE] = {0};
    random_row(x, 1.0f, 3), random_row(weight, 1.0f, 4), random_row(dout, 0.0f, 5), random_row(bias, 0.0f, 6);
    cpu_layernorm_forward(out, &mean, &rstd, x, weight, bias, 1, WIDE);
    cpu_layernorm_backward(want, dweight, dbias, dout, x, &mean, &rstd, weight, 1, WIDE);
    row_gradient(dx, dout, x, weight, mean, rstd, WIDE);
    same_numbers(t, "a row of 96 numbers: dx", dx, want, WIDE, SUM_ERROR * 8.0, 0.0); // the values stay below 8
    float direct[WIDE], no_weight[WIDE] = {0}, ones[WIDE];
    for (int c = 0; c < WIDE; c++) { direct[c] = rstd * weight[c] * dout[c], ones[c] = 1.0f; }
    cpu_layernorm_backward(no_weight, dweight, dbias, dout, x, &mean, &rstd, ones, 1, WIDE);
    likely(t, dx, direct, WIDE, "mean and rstd depend on x, too: the two means are missing.");
    likely(t, dx, no_weight, WIDE, "g is weight * dout, not dout.");
}

static void check_mean_and_variance_near(Test *t, float centre) {
    float x[WIDE], mean, variance, want_mean, want_variance;
    random_row(x, centre, 7);
    double sum = 0.0, squares = 0.0;
    for (int c = 0; c < WIDE; c++) { sum += (double)x[c]; }
    for (int c = 0; c < WIDE; c++) { squares += ((double)x[c] - sum / WIDE) * ((double)x[c] - sum / WIDE); }
    want_mean = (float)(sum / WIDE), want_variance = (float)(squares / WIDE);
    mean_and_variance(&mean, &variance, x, WIDE);
    const char *row = format("96 numbers near %g with deviation 1", (double)centre);
    same_numbers(t, format("%s: mean", row), &mean, &want_mean, 1, 0.0, SUM_ERROR);
    // Each step of the mean is rounded by half an epsilon of it. WIDE such errors add up like a random walk.
    double walk = 4.0 * sqrt((double)WIDE) * (double)centre * FLT_EPSILON / 2.0;
    same_numbers(t, format("%s: variance", row), &variance, &want_variance, 1, walk, SUM_ERROR);
    float sample = want_variance * WIDE / (WIDE - 1);
    likely(t, &variance, &sample, 1, "this is the sum divided by C - 1, but LayerNorm divides by C.");
}

// With a mean of 4,096 deviations the squares have 24 bits more than the variance, and a float has 24 in all.
static void check_mean_and_variance(Test *t) {
    check_mean_and_variance_near(t, 1.0f);
    check_mean_and_variance_near(t, 4096.0f);
}

static const Exercise exercises[] = {{"3.1 RMSNorm", check_rms_norm},
                                     {"3.2 the gradient of a row", check_row_gradient},
                                     {"3.3 mean and variance in one pass", check_mean_and_variance}};

int main(void) { return run_chapter("03_layernorm", example, exercises); }
