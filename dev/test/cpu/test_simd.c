// llmc/cpu/simd.h against libm in double precision: accuracy over the whole range, ends of rows, NaN, any alignment.
#include "dev/test/test.h"
#include "llmc/base/rand.h"
#include "llmc/cpu/simd.h"

static float float_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

// The distance between neighbouring floats at x, in double.
static double unit_in_last_place(double x) {
    if (!(fabs(x) > 1.1754944e-38)) { return ldexp(1.0, -149); } // subnormal: one distance for all
    int exponent;
    frexp(x, &exponent);
    return ldexp(1.0, exponent - 24);
}

static double error_in_units(float got, double want) {
    if (isinf(want) || fabs(want) > 3.4028235e38) { return got == (float)want ? 0.0 : INFINITY; }
    return fabs((double)got - want) / unit_in_last_place(want);
}

// The largest error of f over every 331st float there is (13 million, both signs, subnormals; NaNs apart).
static void check_function(Test *t, vf (*f)(vf), double (*reference)(double), double tolerance) {
    double worst = 0.0;
    float worst_x = 0.0f;
    for (uint64_t bits = 0; bits + 331 * VF_WIDTH < (1ULL << 32); bits += 331 * VF_WIDTH) {
        float x[VF_WIDTH], y[VF_WIDTH];
        for (int i = 0; i < VF_WIDTH; i++) { x[i] = float_from_bits((uint32_t)bits + 331 * (uint32_t)i); }
        vf_store(y, f(vf_load(x)));
        for (int i = 0; i < VF_WIDTH; i++) {
            bool nan_matches = !isnan(x[i]) || isnan(y[i]);
            if (!CHECK(t, nan_matches, "NaN in, %g out", (double)y[i]) || isnan(x[i])) { continue; }
            double error = error_in_units(y[i], reference((double)x[i]));
            if (!(error <= worst)) { worst = error, worst_x = x[i]; }
        }
    }
    CHECK(t, worst <= tolerance, "error of %.2f units at x = %.9g", worst, (double)worst_x);
}

TEST(test_exp_accuracy) { check_function(t, vf_exp, exp, 2.0); }
TEST(test_tanh_accuracy) { check_function(t, vf_tanh, tanh, 3.0); }

static float exp_of(float x) { return vf_exp(vf_set1(x))[VF_WIDTH - 1]; }
static float tanh_of(float x) { return vf_tanh(vf_set1(x))[0]; }

TEST(test_special_values) {
    CHECK(t, exp_of(0.0f) == 1.0f && exp_of(-0.0f) == 1.0f, "exp(0) is %g", (double)exp_of(0.0f));
    CHECK(t, exp_of(-INFINITY) == 0.0f && exp_of(-200.0f) == 0.0f, "exp(-inf) is %g", (double)exp_of(-INFINITY));
    CHECK(t, isinf(exp_of(INFINITY)) && isinf(exp_of(88.8f)) && exp_of(1e30f) > 0.0f, "exp(inf), exp(88.8) infinite");
    CHECK(t, isfinite(exp_of(88.72f)), "exp(88.72) is finite");
    CHECK(t, exp_of(-103.0f) > 0.0f, "exp(-103) is subnormal, not 0");
    CHECK(t, isnan(exp_of(NAN)) && isnan(tanh_of(NAN)), "NaN in, NaN out");
    CHECK(t, tanh_of(20.0f) == 1.0f && tanh_of(-20.0f) == -1.0f, "tanh saturates at +-1");
    CHECK(t, tanh_of(INFINITY) == 1.0f && tanh_of(-INFINITY) == -1.0f, "tanh(+-inf) is +-1");
    CHECK(t, bits_of(tanh_of(-0.0f)) == bits_of(-0.0f), "tanh(-0) is -0");
    CHECK(t, bits_of(vf_set1(-0.0f)[1]) == bits_of(-0.0f), "vf_set1 keeps the sign of 0");
    CHECK(t, vf_max(vf_set1(NAN), vf_set1(1.0f))[0] == 1.0f, "vf_max passes over a NaN in its first argument");
    CHECK(t, isnan(vf_max(vf_set1(1.0f), vf_set1(NAN))[0]), "vf_max keeps its second argument");
    CHECK(t, vf_max(vf_set1(1.0f), vf_set1(2.0f))[0] == 2.0f && vf_min(vf_set1(1.0f), vf_set1(2.0f))[0] == 1.0f,
          "vf_max, vf_min");
}

TEST(test_loads_and_stores) {
    for (int64_t n = 0; n <= VF_WIDTH + 3; n++) {
        int64_t used = n < VF_WIDTH ? n : VF_WIDTH;
        float *exact = (float *)malloc((size_t)(n + 1) * sizeof(float)); // a sanitizer sees accesses beyond it
        for (int64_t i = 0; i < n; i++) { exact[i] = (float)(i + 1); }
        exact[n] = -1.0f;
        vf v = vf_load_n(exact, n);
        for (int64_t i = 0; i < VF_WIDTH; i++) {
            CHECK(t, v[i] == (i < n ? (float)(i + 1) : 0.0f), "n %d, lane %d: %g", (int)n, (int)i, (double)v[i]);
        }
        vf_store_n(exact, vf_set1(7.0f), n);
        for (int64_t i = 0; i < used; i++) { CHECK(t, exact[i] == 7.0f, "n %d: lane %d not stored", (int)n, (int)i); }
        CHECK(t, exact[n] == -1.0f, "n %d: stored beyond the end", (int)n);
        free(exact);
    }
}

static void check_row(Test *t, const float *x, const float *y, float *out, int n) {
    double sum = 0.0, dot = 0.0, squares = 0.0, exps = 0.0, absolute = 0.0, max = -INFINITY;
    for (int i = 0; i < n; i++) {
        sum += (double)x[i], absolute += fabs((double)x[i]), dot += (double)x[i] * (double)y[i];
        squares += (double)x[i] * (double)x[i], exps += exp((double)x[i] - 1.5);
        max = fmax(max, (double)x[i]);
    }
    double tolerance = 1e-7 * (n + 2); // rounding of n additions in any order
    CHECK(t, fabs((double)row_sum(x, n) - sum) <= tolerance * absolute, "n %d: sum", n);
    CHECK(t, fabs((double)row_dot(x, y, n) - dot) <= tolerance * absolute * 4.0, "n %d: dot", n);
    CHECK(t, (double)row_max(x, n) == max, "n %d: max %g, want %g", n, (double)row_max(x, n), max);
    CHECK(t, fabs(row_sumsq(x, n) - squares) <= 1e-15 * n * squares, "n %d: sum of squares", n);
    CHECK(t, fabs((double)row_exp(out, x, 1.5f, n) - exps) <= tolerance * exps, "n %d: sum of exp", n);
    for (int i = 0; i < n; i++) {
        CHECK(t, error_in_units(out[i], exp((double)(x[i] - 1.5f))) <= 2.0, "n %d: exp at %d", n, i);
    }
}

TEST(test_rows) {
    for (int n = 0; n < 5 * VF_WIDTH; n++) {
        float *x = (float *)malloc((size_t)(3 * n + 1) * sizeof(float)), *y = x + n, *out = x + 2 * n;
        for (int i = 0; i < 2 * n; i++) { x[i] = 4.0f * (float)rand_uniform(1, (uint64_t)n, (uint64_t)i) - 2.0f; }
        out[n] = -7.0f;
        check_row(t, x, y, out, n);
        CHECK(t, out[n] == -7.0f, "n %d: wrote beyond the row", n);
        row_exp(x, x, 1.5f, n); // in place
        CHECK(t, memcmp(x, out, (size_t)n * sizeof(float)) == 0, "n %d: in place differs", n);
        free(x);
    }
}

TEST(test_alignment_changes_no_bit) {
    enum { N = 101 };
    float buffer[4][N + 32];
    float sums[4] = {0};
    for (int offset = 0; offset < 32; offset++) {
        float *x = buffer[0] + offset, *y = buffer[1] + 31 - offset, *out = buffer[2] + (offset * 7) % 32;
        for (int i = 0; i < N; i++) {
            x[i] = (float)rand_uniform(2, 0, (uint64_t)i), y[i] = (float)rand_uniform(2, 1, (uint64_t)i);
        }
        float now[4] = {row_sum(x, N), row_dot(x, y, N), row_exp(out, x, 0.5f, N), (float)row_sumsq(x, N)};
        if (offset == 0) { memcpy(sums, now, sizeof(sums)); }
        CHECK(t, memcmp(sums, now, sizeof(sums)) == 0, "offset %d gives other bits", offset);
    }
}

TEST(test_nan_in_a_row) {
    float x[40], out[40];
    for (int at = 0; at < 40; at++) {
        for (int i = 0; i < 40; i++) { x[i] = i == at ? NAN : (float)i; }
        float largest = at == 39 ? 38.0f : 39.0f;
        CHECK(t, row_max(x, 40) == largest, "NaN at %d: max is %g", at, (double)row_max(x, 40));
        CHECK(t, isnan(row_sum(x, 40)) && isnan(row_dot(x, x, 40)) && isnan(row_sumsq(x, 40)), "NaN at %d lost", at);
        CHECK(t, isnan(row_exp(out, x, 39.0f, 40)), "NaN at %d lost by exp", at);
    }
}
