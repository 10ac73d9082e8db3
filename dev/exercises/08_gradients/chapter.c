// Chapter 8, checking gradients: the worked example of doc/08_gradients.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

#include "llmc/base/hash.h"

// Not inlined: a compiler that fused a product with the subtraction outside would round less often.
__attribute__((noinline)) static float cube(float x) { return x * x * x; }
__attribute__((noinline)) static double cube_in_double(double x) { return x * x * x; }

// The errors of three ways to find the slope of x^3 at 1.7.
static void step_sizes(void) {
    float x = 1.7f;
    double exact = 3.0 * (double)x * (double)x;
    printf("h         one-sided, double   central, double   central, float\n");
    for (int bits = 1; bits <= 25; bits += 2) {
        double h = ldexp(1.0, -bits), d = (double)x;
        double one_sided = (cube_in_double(d + h) - cube_in_double(d)) / h;
        double central = (cube_in_double(d + h) - cube_in_double(d - h)) / (2.0 * h);
        float in_float = (cube(x + (float)h) - cube(x - (float)h)) / (2.0f * (float)h);
        printf("2^-%-2d %20.1e %17.1e %16.1e\n", bits, fabs(one_sided - exact), fabs(central - exact),
               fabs((double)in_float - exact));
    }
}

enum { C = 4 };

static float layernorm_loss(const float *x, const float *dout) {
    float weight[C] = {1, 2, 1, 3}, bias[C] = {0, 0, 1, 1}, out[C], mean, rstd, loss = 0.0f;
    cpu_layernorm_forward(out, &mean, &rstd, x, weight, bias, 1, C);
    for (int c = 0; c < C; c++) { loss += dout[c] * out[c]; }
    return loss;
}

static void print_slopes(const char *name, const float *x) {
    printf("%-20s", name);
    for (int c = 0; c < C; c++) { printf("%8.3f", (double)x[c]); }
    printf("\n");
}

// The row of chapter 3: its backward, finite differences of its forward, and two backwards with a mistake.
static void layernorm_row(void) {
    float x[C] = {0, 8, 6, 6}, weight[C] = {1, 2, 1, 3}, bias[C] = {0, 0, 1, 1}, dout[C] = {3, 0, 0, 1};
    float out[C], mean, rstd, dx[C] = {0}, dweight[C] = {0}, dbias[C] = {0}, slope[C], no_g[C], no_gn[C];
    cpu_layernorm_forward(out, &mean, &rstd, x, weight, bias, 1, C);
    cpu_layernorm_backward(dx, dweight, dbias, dout, x, &mean, &rstd, weight, 1, C);
    for (int c = 0; c < C; c++) {
        const float h = 1.0f / 64, at = x[c];
        float mean_g = 1.5f, mean_gn = -1.0f; // see chapter 3
        x[c] = at + h;
        float above = layernorm_loss(x, dout);
        x[c] = at - h;
        float below = layernorm_loss(x, dout);
        x[c] = at;
        slope[c] = (above - below) / (2.0f * h);
        no_g[c] = dx[c] + rstd * mean_g;
        no_gn[c] = dx[c] + rstd * (x[c] - mean) * rstd * mean_gn;
    }
    print_slopes("layernorm_backward", dx);
    print_slopes("differences", slope);
    print_slopes("without mean(g)", no_g);
    print_slopes("without mean(g n)", no_gn);
}

__attribute__((noinline)) static float plus(float a, float b) { return a + b; }

static void orders_of_a_sum(void) {
    float left = plus(plus(16777216.0f, 1.0f), 1.0f), right = plus(16777216.0f, plus(1.0f, 1.0f));
    printf("(2^24 + 1) + 1 = %.0f, hash %016llx\n", (double)left, (unsigned long long)sum64(0, &left, 1));
    printf("2^24 + (1 + 1) = %.0f, hash %016llx\n", (double)right, (unsigned long long)sum64(0, &right, 1));
}

static void example(void) {
    step_sizes();
    printf("\n");
    layernorm_row();
    printf("\n");
    orders_of_a_sum();
}

enum { N = 8, SUM = 1000 };

static double asked_at[N], below, above; // where the gradient is asked for, and the farthest steps from there

// The value is near 100, as a loss may be, and every third derivative is at most 2.
static double wave(const double *x, int n) {
    double sum = 100.0;
    for (int i = 0; i < n; i++) {
        below = fmin(below, x[i] - asked_at[i]), above = fmax(above, x[i] - asked_at[i]);
        sum += sin(x[i]) * x[(i + 1) % n];
    }
    return sum;
}

// Says what the steps that were taken have to do with a wrong slope.
static const char *about_steps(void) {
    if (above <= 0.0 && below >= 0.0) { return ". Likely: f was never called at another place than x"; }
    if (above <= 0.0 || below >= 0.0) { return ". Likely: a difference to one side is off by h/2 f''"; }
    double h = fmax(above, -below);
    if (h > 1.1e-4) { return ". Likely: the step is large, and h^2/6 f''' counts"; }
    return h < 0.9e-6 ? ". Likely: the step is small, and the rounding of f is divided by it" : "";
}

// A step between 1e-6 and 1e-4 is good enough here: with 1e-6 two roundings at 100 make 1.4e-14 / 1e-6 = 1.4e-8, with
// 1e-4 the third derivative makes 2/6 * 1e-8.
static void check_numeric_gradient(Test *t) {
    double x[N], got[N];
    for (int i = 0; i < N; i++) { x[i] = asked_at[i] = 2.0 * rand_uniform(8, 1, (uint64_t)i); }
    x[0] = asked_at[0] = 1e-9 / 3.0; // so small that adding a step and subtracting it changes it
    below = above = 0.0;
    numeric_gradient(got, wave, x, N);
    for (int i = 0; i < N; i++) {
        const double *at = asked_at;
        double want = cos(at[i]) * at[(i + 1) % N] + sin(at[(i + N - 1) % N]);
        bool twice = is_near(got[i], 2.0 * want, 2e-8);
        if (!CHECK(t, is_near(got[i], want, 2e-8), "sum of sin(x[i]) x[i+1] at x[%d] = %.9g: got %.12g, want %.12g%s",
                   i, at[i], got[i], want, twice ? ". Likely: the points are 2 h apart" : about_steps()) ||
            !CHECK(t, x[i] == at[i], "x[%d] was %.17g and is %.17g now. Likely: x + h - h rounds; keep the old value",
                   i, at[i], x[i])) {
            return;
        }
    }
}

// A tensor whose sums had 100 terms, with the largest magnitude 4: the tolerance is 4 * 100 * FLT_EPSILON.
static void check_is_close(Test *t) {
    const float tolerance = 4.0f * 100.0f * FLT_EPSILON, bad[] = {NAN, INFINITY, -INFINITY};
    float want[N] = {1, -1, 0, 1e-3f, 0.5f, -4, 1, 1}, got[N];
    memcpy(got, want, sizeof(want));
    CHECK(t, is_close(got, want, N, 100), "equal tensors are refused");
    got[2] = 0.5f * tolerance;
    CHECK(t, is_close(got, want, N, 100),
          "got[2] = %g where want[2] = 0 and the largest |want| is 4: refused, and is half "
          "the tolerance. Likely: the tolerance is not of the largest |want|",
          (double)got[2]);
    got[2] = -2.0f * tolerance;
    CHECK(t, !is_close(got, want, N, 100),
          "got[2] = %g where want[2] = 0 passes, and is twice the tolerance. Likely: a "
          "difference without its absolute value",
          (double)got[2]);
    for (int i = 0; i < 3; i++) {
        got[2] = bad[i];
        const char *why =
            isnan(bad[i]) ? "a comparison with a NaN is false: ask for what must hold" : "inf <= inf holds";
        CHECK(t, !is_close(got, want, N, 100), "got[2] = %f passes. Likely: %s", (double)bad[i], why);
        CHECK(t, !is_close(want, got, N, 100), "want[2] = %f passes. Likely: %s", (double)bad[i], why);
    }
}

static float sum_on_threads(const float *x, int threads) {
    float sums[SUM] = {0}, sum = 0.0f;
    for (int thread = threads - 1; thread >= 0; thread--) { partial_sums(sums, x, SUM, thread, threads); }
    for (int i = 0; i < SUM; i++) { sum += sums[i]; }
    return sum;
}

// SUM float additions are off by at most SUM half epsilons of the sum of magnitudes, which is below SUM.
static void check_partial_sums(Test *t) {
    float x[SUM];
    double sum = 0.0;
    for (int i = 0; i < SUM; i++) {
        x[i] = (float)rand_uniform(8, 2, (uint64_t)i);
        sum += (double)x[i];
    }
    const Mistake none[] = {{0.0, "nothing was added"}};
    double tolerance = 0.5 * SUM * SUM * (double)FLT_EPSILON;
    float one = sum_on_threads(x, 1);
    for (int threads = 1; threads <= 9; threads++) {
        float many = sum_on_threads(x, threads);
        const char *input = format("the sum of %d numbers on %d threads", SUM, threads);
        if (!check_number(t, input, (double)many, sum, tolerance, none) ||
            !CHECK(t, memcmp(&one, &many, sizeof(one)) == 0,
                   "%s has other bits: %.9g, on 1 thread %.9g. Likely: the "
                   "borders of the blocks depend on the number of threads",
                   input, (double)many, (double)one)) {
            return;
        }
    }
}

static const Exercise exercises[] = {{"8.1 a gradient by differences", check_numeric_gradient},
                                     {"8.2 a comparison that can fail", check_is_close},
                                     {"8.3 a sum that knows no threads", check_partial_sums}};

int main(void) { return run_chapter("08_gradients", example, exercises); }
