// The LayerNorm, RMSNorm and residual kernels against the CPU's: all model widths, row counts that fill no block, rows
// far from zero, fused against separate, and the two-stage backward.
#ifndef KERNELS_LAYERNORM_CUH
#define KERNELS_LAYERNORM_CUH

#include <algorithm>

#include "llmc/layers/layernorm.cuh"
#include "dev/test/layers/gpu_test.h"

// Of the models, of one warp and less, of both sides of the widths where a row takes another warp or another kernel.
static const int layernorm_widths[] = {8,    24,   128,  264,  384,  520,  576,  768,  960,  1024, 1032, 1280,
                                       1600, 1920, 2048, 2056, 2880, 3072, 3456, 4096, 4104, 8200, 12288};

static const bool norm_kinds[] = {LAYERNORM, RMSNORM};

// A layer's inputs, and what the CPU makes of them. RMSNorm takes no bias, and has no mean.
struct LayerNormCase {
    int64_t N;
    int C;
    bool rms;
    float epsilon;
    std::vector<float> x, weight = {}, bias = {};      // inp (N,C), weight, bias (C)
    std::vector<float> out = {}, mean = {}, rstd = {}; // of the CPU
};

static void layernorm_cpu_forward(LayerNormCase *c) {
    float *x = c->x.data(), *weight = c->weight.data();
    c->out.resize((size_t)(c->N * c->C));
    c->mean.resize((size_t)c->N);
    c->rstd.resize((size_t)c->N);
    if (c->rms) {
        cpu_rmsnorm_forward(c->out.data(), c->rstd.data(), x, weight, c->N, c->C, c->epsilon);
    } else {
        cpu_layernorm_forward(c->out.data(), c->mean.data(), c->rstd.data(), x, weight, c->bias.data(), c->N, c->C);
    }
}

// RMSNorm's rows have a mean that is not zero, and an epsilon beside which their squares are not large.
static LayerNormCase layernorm_case(int64_t N, int C, bool rms) {
    LayerNormCase c = {N, C, rms, rms ? 0.25f : LAYERNORM_EPSILON, random_values(N * C, rms ? 0.5f : 1.5f, 1)};
    c.weight = random_values(C, 0.5f, 2), c.bias = random_values(C, 0.3f, 3);
    for (int64_t i = 0; i < N * C; i++) {
        c.x[(size_t)i] = rounded(c.x[(size_t)i] + 0.25f * (float)(i / C % 5 + (rms ? 1 : 0)));
    }
    for (float &w : c.weight) { w = rounded(w + 1.0f); }
    layernorm_cpu_forward(&c);
    return c;
}

static std::string layernorm_name(const char *what, int64_t N, int C, int block_size) {
    return format("%s, N %d, C %d, block %d", what, (int)N, C, block_size);
}

// The forward's outputs on the device.
typedef struct LayerNormOutputs {
    DeviceArray<floatX> out;
    DeviceArray<float> mean, rstd;
    LayerNormOutputs(int64_t N, int C) : out(N * C), mean(N), rstd(N) {}
    // NULL is RMSNorm's bias and mean: an access to it would end the program.
    LayerNorm layer(const LayerNormCase &c, const DeviceArray<floatX> &weight, const DeviceArray<floatX> &bias,
                    uint32_t *amax = NULL) const {
        return {c.C,       c.epsilon, weight.data, c.rms ? NULL : bias.data,
                NULL,      NULL,      out.data,    c.rms ? NULL : mean.data,
                rstd.data, amax};
    }
    uint64_t hash() const { return out.hash() ^ mean.hash() * 3 ^ rstd.hash() * 5; }
} LayerNormOutputs;

// Tolerances: the mean is a sum of C values over C; its error d shifts every difference by d, which is d * rstd *
// weight in the output. The variance is a sum of C positive values, off by sum_tolerance(C) of itself (and by d^2), its
// root by half of that; that part of the output is relative to n * weight, which is the output without the bias. Both
// sides round about four times. Rounding the output adds half a floatX epsilon.
static void layernorm_check_forward(Test *t, const std::string &what, const LayerNormCase &c,
                                    const LayerNormOutputs &got) {
    double shift = c.rms ? 0.0 : sum_tolerance(c.C) * largest(c.x), rstd = largest(c.rstd);
    double relative = sum_tolerance(c.C) + 4.0 * FLT_EPSILON + shift * rstd * shift * rstd;
    double scale = largest(c.out) + largest(c.bias);
    if (!c.rms) { check_values(t, what + ": mean", got.mean.get(), c.mean, shift, 0.0); }
    check_values(t, what + ": rstd", got.rstd.get(), c.rstd, 0.0, relative);
    check_values(t, what + ": out", got.out.get(), c.out, shift * rstd * largest(c.weight) + relative * scale,
                 0.5 * FLOATX_EPSILON);
}

// Runs the forward and compares; returns a hash of the outputs.
static uint64_t layernorm_run_forward(Test *t, const LayerNormCase &c, int block_size) {
    DeviceArray<floatX> x(c.x), weight(c.weight), bias(c.bias);
    LayerNormOutputs got(c.N, c.C);
    Amax amax;
    auto forward = c.rms ? layernorm_forward<RMSNORM> : layernorm_forward<LAYERNORM>;
    forward(got.layer(c, weight, bias, amax.data()), x.data, c.N, 0, block_size);
    std::string what = layernorm_name("forward", c.N, c.C, block_size);
    layernorm_check_forward(t, what, c, got);
    amax.check(t, what, got.out.get());
    return got.hash();
}

TEST(test_layernorm_forward_widths) {
    for (int C : layernorm_widths) {
        for (bool rms : norm_kinds) { layernorm_run_forward(t, layernorm_case(C > 4000 ? 1 : 3, C, rms), 256); }
    }
}

// Rows of one warp and of several, as many a block as its size says: the last block is full, has one row, lacks one.
TEST(test_layernorm_forward_blocks) {
    for (int C : {24, 520, 1280}) {
        for (int64_t N : {1, 8, 9, 15}) {
            LayerNormCase c = layernorm_case(N, C, LAYERNORM);
            uint64_t first = layernorm_run_forward(t, c, 256);
            for (int block_size : {32, 64, 96, 1024}) {
                uint64_t hash = layernorm_run_forward(t, c, block_size);
                CHECK(t, hash == first, "N %d, C %d: other bits with blocks of %d", (int)N, C, block_size);
            }
        }
    }
}

// Rows whose mean is far larger than their spread: E[x^2] - mean^2 would lose all digits of the variance in fp32 (in
// bf16, whose values cannot be further from zero, two of three). The reference is computed in double.
TEST(test_layernorm_forward_far_from_zero) {
    for (int C : {8, 1600}) {
        LayerNormCase c = layernorm_case(3, C, LAYERNORM);
        std::vector<int32_t> steps = random_ids(c.N * C, 9, 4);
        float base = FLOATX_EPSILON < 1e-3 ? 8192.0f : 256.0f, unit = FLOATX_EPSILON < 1e-3 ? 0.5f : 2.0f;
        for (size_t i = 0; i < c.x.size(); i++) { c.x[i] = base + unit * (float)steps[i]; }
        for (size_t row = 0; row < (size_t)c.N; row++) {
            const float *x = c.x.data() + row * (size_t)C;
            double mean = 0.0, square = 0.0;
            for (int k = 0; k < C; k++) { mean += (double)x[k] / C; }
            for (int k = 0; k < C; k++) { square += pow(x[k] - mean, 2.0); }
            double rstd = 1.0 / sqrt(square / C + LAYERNORM_EPSILON);
            c.mean[row] = (float)mean, c.rstd[row] = (float)rstd;
            for (size_t k = 0; k < (size_t)C; k++) {
                c.out[row * (size_t)C + k] = (float)((x[k] - mean) * rstd * c.weight[k] + c.bias[k]);
            }
        }
        layernorm_run_forward(t, c, 256);
    }
}

// A row without any spread gives the bias; a row with a NaN is NaN, and no other row is touched by it.
TEST(test_layernorm_forward_odd_rows) {
    for (int C : {24, 1280}) { // of one warp and of several
        LayerNormCase c = layernorm_case(6, C, LAYERNORM);
        std::fill(c.x.begin() + 3 * C, c.x.begin() + 4 * C, 5.0f);
        c.x[(size_t)(4 * C + 9)] = NAN;
        DeviceArray<floatX> x(c.x), weight(c.weight), bias(c.bias);
        LayerNormOutputs outputs(c.N, C);
        layernorm_forward(outputs.layer(c, weight, bias), x.data, c.N, 0);
        std::vector<float> out = outputs.out.get();
        check_equal(t, "a flat row", {out.begin() + 3 * C, out.begin() + 4 * C}, c.bias);
        for (int row = 0; row < (int)c.N; row++) {
            auto begin = out.begin() + row * C;
            int64_t nans = std::count_if(begin, begin + C, [](float y) { return isnan(y); });
            CHECK(t, nans == (row == 4 ? C : 0), "C %d: row %d holds %d NaN", C, row, (int)nans);
        }
    }
}

// RMSNorm of squares about as large as a small epsilon, and of a row of zeros.
TEST(test_rmsnorm_near_zero) {
    LayerNormCase c = layernorm_case(3, 576, RMSNORM);
    c.epsilon = 1e-6f;
    for (size_t i = 0; i < c.x.size(); i++) { c.x[i] = i < 576 ? 0.0f : rounded(1e-3f * c.x[i]); }
    layernorm_cpu_forward(&c);
    layernorm_run_forward(t, c, 256);
}

// The residual sum alone has the bits of the fused kernel's, out of place and in place.
static void residual_check_alone(Test *t, const DeviceArray<floatX> &inp, const DeviceArray<floatX> &projection,
                                 const std::vector<float> &want) {
    DeviceArray<floatX> out(inp.count), in_place(projection.get());
    residual_forward(out.data, inp.data, projection.data, inp.count, 0);
    residual_forward(in_place.data, inp.data, in_place.data, inp.count, 0);
    check_equal(t, "residual alone", out.get(), want);
    check_equal(t, "residual in place", in_place.get(), want);
}

// The fused kernel: the residual is rounded once, and the other outputs are the bits of LayerNorm alone.
static void layernorm_check_fused(Test *t, int64_t N, int C, int block_size, int alias, bool rms) {
    LayerNormCase c = layernorm_case(N, C, rms);
    std::vector<float> other = random_values(N * C, 0.8f, 5), want((size_t)(N * C));
    for (size_t i = 0; i < want.size(); i++) { want[i] = rounded(c.x[i] + other[i]); }
    DeviceArray<floatX> inp1(c.x), inp2(other), sum(want), weight(c.weight), bias(c.bias), own(N * C);
    residual_check_alone(t, inp1, inp2, want);
    LayerNormOutputs separate(N, C), fused(N, C);
    auto alone = rms ? layernorm_forward<RMSNORM> : layernorm_forward<LAYERNORM>;
    alone(separate.layer(c, weight, bias), sum.data, N, 0, 256);
    Amax amax;
    DeviceArray<floatX> &residual = alias == 1 ? inp1 : alias == 2 ? inp2 : own;
    auto forward = rms ? fused_residual_layernorm_forward<RMSNORM> : fused_residual_layernorm_forward<LAYERNORM>;
    forward(fused.layer(c, weight, bias, amax.data()), residual.data, inp1.data, inp2.data, N, 0, block_size);
    std::string what = layernorm_name("fused", N, C, block_size);
    check_equal(t, what + ": residual", residual.get(), want);
    CHECK(t, fused.hash() == separate.hash(), "%s: not the bits of LayerNorm alone", what.c_str());
    c.x = want;
    layernorm_cpu_forward(&c);
    layernorm_check_forward(t, what, c, fused);
    amax.check(t, what, fused.out.get());
}

TEST(test_layernorm_fused) {
    for (bool rms : norm_kinds) {
        for (int C : layernorm_widths) { layernorm_check_fused(t, C > 4000 ? 1 : 3, C, 256, 0, rms); }
        for (int alias : {1, 2}) { layernorm_check_fused(t, 9, 384, 128, alias, rms); }
        for (int block_size : {32, 1024}) { layernorm_check_fused(t, 33, 72, block_size, 0, rms); }
    }
}

// ---- Backward ----

// sums: of dinp's columns; empty: not wanted.
typedef struct {
    std::vector<float> dinp, dweight, dbias, sums;
} LayerNormGradients;

// The sums of the columns of the backward's dinp, taken alone, have the backward's bits.
static void layernorm_check_column_sums(Test *t, int64_t N, int C, const std::vector<float> &start,
                                        const LayerNormGradients &got) {
    DeviceArray<floatX> dinp(got.dinp);
    std::string what = format("column sums alone, N %d, C %d", (int)N, C);
    for (bool wants_amax : {false, true}) {
        DeviceArray<float> sums(start), scratch(layernorm_backward_scratch_floats(N, C));
        Amax amax;
        layernorm_column_sums(sums.data, dinp.data, scratch.data, N, C, wants_amax ? amax.data() : NULL, 0);
        check_equal(t, what, sums.get(), got.sums);
        if (wants_amax) { amax.check(t, what, got.dinp); }
    }
}

// One backward on the GPU from the given gradients, dinp's replaced or added to; the scratch memory holds NaN and is of
// the stated size. The emulator and compute-sanitizer say what is written behind it and the gradients.
static LayerNormGradients layernorm_run_backward(Test *t, const LayerNormCase &c, const std::vector<float> &dout,
                                                 const LayerNormGradients &start, bool overwrites, bool wants_amax) {
    DeviceArray<floatX> dinp(start.dinp), d_dout(dout), x(c.x), weight(c.weight);
    DeviceArray<float> dweight(start.dweight), dbias(start.dbias), mean(c.mean), rstd(c.rstd), sums(start.sums);
    DeviceArray<float> scratch(layernorm_backward_scratch_floats(c.N, c.C));
    Amax amax;
    LayerNormDinp out = {dinp.data, overwrites, start.sums.empty() ? NULL : sums.data, wants_amax ? amax.data() : NULL};
    LayerNorm ln = {c.C, c.epsilon, weight.data, NULL, dweight.data, dbias.data, NULL, mean.data, rstd.data, NULL};
    if (c.rms) { ln.dbias = ln.mean = NULL; }
    (c.rms ? layernorm_backward_with_column_sums<RMSNORM>
           : layernorm_backward_with_column_sums<LAYERNORM>)(out, ln, d_dout.data, x.data, scratch.data, c.N, 0);
    LayerNormGradients got = {dinp.get(), dweight.get(), dbias.get(), sums.get()};
    if (wants_amax) { amax.check(t, layernorm_name("backward", c.N, c.C, 0), got.dinp); }
    if (!start.sums.empty()) { layernorm_check_column_sums(t, c.N, c.C, start.sums, got); }
    return got;
}

// Two backward passes, the second from where the GPU's first ended, against the CPU's: the first replaces dinp, the
// second adds to it. RMSNorm has neither dbias nor column sums. Tolerances: dinp's new part contains two means over C
// and is rounded to floatX with what it is added to; dweight is a sum over N rows; dbias is exact, for dout is
// random_eighths.
static void layernorm_check_backward(Test *t, int64_t N, int C, bool rms) {
    LayerNormCase c = layernorm_case(N, C, rms);
    std::vector<float> dout = random_eighths(N * C, 8);
    LayerNormGradients got = {random_values(N * C, 1.0f, 9), random_values(C, 1.0f, 10), random_eighths(C, 11),
                              random_values(rms ? 0 : C, 1.0f, 16)};
    for (bool overwrites : {true, false}) {
        LayerNormGradients start = got, want = got;
        if (overwrites) {
            want.dinp.assign(want.dinp.size(), 0.0f);
            start.dinp.assign(start.dinp.size(), NAN);
        }
        float *dinp = want.dinp.data(), *dweight = want.dweight.data(), *dbias = want.dbias.data();
        if (rms) {
            cpu_rmsnorm_backward(dinp, dweight, dout.data(), c.x.data(), c.rstd.data(), c.weight.data(), N, C);
        } else {
            cpu_layernorm_backward(dinp, dweight, dbias, dout.data(), c.x.data(), c.mean.data(), c.rstd.data(),
                                   c.weight.data(), N, C);
        }
        got = layernorm_run_backward(t, c, dout, start, overwrites, true);
        std::string name = format("backward, N %d, C %d%s", (int)N, C, overwrites ? "" : ", added");
        check_values(t, name + ": dinp", got.dinp, want.dinp, sum_tolerance(C) * largest(want.dinp),
                     0.5 * FLOATX_EPSILON);
        check_values(t, name + ": dweight", got.dweight, want.dweight, sum_tolerance(N) * largest(want.dweight),
                     FLT_EPSILON);
        check_equal(t, name + ": dbias", got.dbias, want.dbias);
        if (!rms) { check_column_sums(t, name + ": column sums", got.sums, start.sums, got.dinp); }
    }
}

// Replacing is adding to zeros, bit for bit, and what else is wanted changes no bit of the rest.
static void layernorm_check_extras(Test *t, int64_t N, int C, bool rms) {
    LayerNormCase c = layernorm_case(N, C, rms);
    std::vector<float> dout = random_values(N * C, 1.0f, 12), zeros((size_t)(N * C), 0.0f), nans(zeros.size(), NAN);
    LayerNormGradients start = {zeros, random_values(C, 1.0f, 14), random_values(C, 1.0f, 15), {}};
    LayerNormGradients plain = layernorm_run_backward(t, c, dout, start, false, false);
    start.dinp = nans, start.sums = random_values(rms ? 0 : C, 1.0f, 16);
    LayerNormGradients extras = layernorm_run_backward(t, c, dout, start, true, true);
    check_equal(t, "dinp", extras.dinp, plain.dinp);
    check_equal(t, "dweight", extras.dweight, plain.dweight);
    check_equal(t, "dbias", extras.dbias, plain.dbias);
    if (!rms) { check_column_sums(t, "column sums", extras.sums, start.sums, extras.dinp); }
}

TEST(test_layernorm_backward) {
    for (bool rms : norm_kinds) {
        for (int C : layernorm_widths) { layernorm_check_backward(t, C > 2000 ? 1 : 3, C, rms); }
        // Blocks of the first stage with unequal numbers of rows, and more blocks than the second stage adds at a time.
        for (int64_t N : {1, 15, 16, 17, 33, 100}) { layernorm_check_backward(t, N, 72, rms); }
        layernorm_check_backward(t, 1043, 8, rms);
        // Of each of the three kernels: the second takes 2056 in fp32, 4104 in bf16.
        for (int C : {72, 2056, 4104, LAYERNORM_MAX_CHANNELS}) { layernorm_check_extras(t, C > 8000 ? 2 : 18, C, rms); }
    }
}

// Values of many sizes, so that sums in another order would have other bits. layernorm_run_backward compares them.
TEST(test_layernorm_column_sums_order) {
    const int shapes[][2] = {{1043, 8}, {100, 72}, {40, 2056}, {40, 4104}, {40, LAYERNORM_MAX_CHANNELS}};
    for (const int *shape : shapes) {
        LayerNormCase c = layernorm_case(shape[0], shape[1], LAYERNORM);
        std::vector<float> dinp = random_values(c.N * c.C, 1.0f, 9), dout = random_values(c.N * c.C, 1.0f, 12);
        std::vector<int32_t> exponents = random_ids(c.N * c.C, 24, 17);
        for (size_t i = 0; i < dinp.size(); i++) { dinp[i] = ldexpf(dinp[i], exponents[i]); }
        LayerNormGradients start = {dinp, random_values(c.C, 1.0f, 14), random_values(c.C, 1.0f, 15),
                                    random_values(c.C, 1.0f, 16)};
        layernorm_run_backward(t, c, dout, start, false, false);
    }
}

static void layernorm_check_schedules(Test *t, int C, bool rms) {
    LayerNormCase c = layernorm_case(35, C, rms);
    std::vector<float> dout = random_values(c.N * C, 1.0f, 12);
    LayerNormGradients start = {random_values(c.N * C, 1.0f, 13), random_values(C, 1.0f, 14),
                                random_values(C, 1.0f, 15), random_values(rms ? 0 : C, 1.0f, 16)};
    for_each_schedule(t, rms ? "rmsnorm" : "layernorm", [&] {
        LayerNormGradients got = layernorm_run_backward(t, c, dout, start, false, false);
        uint64_t hash = layernorm_run_forward(t, c, 256);
        for (const std::vector<float> &values : {got.dinp, got.dweight, got.dbias, got.sums}) {
            hash = hash * 3 ^ hash_of(values);
        }
        return hash;
    });
}

TEST(test_layernorm_schedules) {
    for (bool rms : norm_kinds) {
        for (int C : {80, 1600}) { layernorm_check_schedules(t, C, rms); }
    }
}

#endif // KERNELS_LAYERNORM_CUH
