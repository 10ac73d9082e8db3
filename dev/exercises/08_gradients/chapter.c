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

// The value is near 100, as a loss may be, and every third derivative is at most 2.
static double wave(const double *x, int n) {
    double sum = 100.0;
    for (int i = 0; i < n; i++) { sum += sin(x[i]) * x[(i + 1) % n]; }
    return sum;
}

// A step between 1e-6 and 1e-4 is good enough here: with 1e-6 two roundings at 100 make 1.4e-14 / 1e-6 = 1.4e-8, with
// 1e-4 the third derivative makes 2/6 * 1e-8.
static void check_numeric_gradient(Test *t) {
    double x[N], before[N], got[N];
    float error[N], zeros[N] = {0}; // the error, because a float could not hold the gradient this exactly
    for (int i = 0; i < N; i++) { x[i] = before[i] = 2.0 * rand_uniform(8, 1, (uint64_t)i); }
    x[0] = before[0] = 1e-9 / 3.0; // so small that adding a step and subtracting it changes it
    numeric_gradient(got, wave, x, N);
    for (int i = 0; i < N; i++) {
        error[i] = (float)(got[i] - cos(before[i]) * before[(i + 1) % N] - sin(before[(i + N - 1) % N]));
        CHECK(t, x[i] == before[i], "x[%d] has changed", i);
    }
    check_close(t, "numeric_gradient", error, zeros, N, 2e-8, 0.0);
}

// A tensor whose sums had 100 terms, with the largest value 4: the tolerance is 4 * 100 * FLT_EPSILON.
static void check_is_close(Test *t) {
    const float tolerance = 4.0f * 100.0f * FLT_EPSILON, bad[] = {NAN, INFINITY, -INFINITY};
    float want[N] = {4, -1, 0, 1e-3f, 2, -4, 3, 1}, got[N];
    memcpy(got, want, sizeof(want));
    CHECK(t, is_close(got, want, N, 100), "equal tensors are refused");
    got[2] = 0.5f * tolerance;
    CHECK(t, is_close(got, want, N, 100), "half the tolerance is refused");
    got[2] = -2.0f * tolerance;
    CHECK(t, !is_close(got, want, N, 100), "twice the tolerance passes");
    for (int i = 0; i < 3; i++) {
        got[2] = bad[i];
        CHECK(t, !is_close(got, want, N, 100), "%f passes", (double)bad[i]);
        CHECK(t, !is_close(want, got, N, 100), "%f as the wanted value passes", (double)bad[i]);
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
    float x[SUM], one, want = 0.0f;
    double sum = 0.0;
    for (int i = 0; i < SUM; i++) {
        x[i] = (float)rand_uniform(8, 2, (uint64_t)i);
        sum += (double)x[i];
    }
    one = sum_on_threads(x, 1), want = (float)sum;
    check_close(t, "the sum", &one, &want, 1, 0.5 * SUM * SUM * (double)FLT_EPSILON, 0.0);
    for (int threads = 2; threads <= 9; threads++) {
        float many = sum_on_threads(x, threads);
        CHECK(t, memcmp(&one, &many, sizeof(one)) == 0, "%d threads: %.9g, 1 thread: %.9g", threads, (double)many,
              (double)one);
    }
}

static const Exercise exercises[] = {{"8.1 a gradient by differences", check_numeric_gradient},
                                     {"8.2 a comparison that can fail", check_is_close},
                                     {"8.3 a sum that knows no threads", check_partial_sums}};

int main(void) { return run_chapter("08_gradients", example, exercises); }
