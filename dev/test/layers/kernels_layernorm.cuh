// The LayerNorm and residual kernels against the CPU's: all model widths, row counts that fill no block, rows far from
// zero, fused against separate, and the two-stage backward. kernels_rmsnorm.cuh takes what begins with layernorm_.
#ifndef KERNELS_LAYERNORM_CUH
#define KERNELS_LAYERNORM_CUH

#include <algorithm>

#include "llmc/layers/layernorm.cuh"
#include "dev/test/layers/gpu_test.h"

// Of the models, of one warp and less, of both sides of the widths where a row takes another warp or another kernel.
static const int layernorm_widths[] = {8,    24,   128,  264,  384,  512,  520,  768,  1024, 1032, 1280,
                                       1600, 1920, 2048, 2056, 2880, 3456, 4096, 4104, 8200, 12288};

// A layer's inputs, and what the CPU makes of them. RMSNorm takes no bias, and has no mean.
typedef struct {
    int64_t N;
    int C;
    bool rms;
    float epsilon;
    std::vector<float> x, weight, bias; // inp (N,C), weight, bias (C)
    std::vector<float> out, mean, rstd; // of the CPU
} LayerNormCase;

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
static LayerNormCase layernorm_case(int64_t N, int C, bool rms = LAYERNORM) {
    LayerNormCase c = {N,
                       C,
                       rms,
                       rms ? 0.25f : LAYERNORM_EPSILON,
                       random_values(N * C, rms ? 0.5f : 1.5f, 1),
                       random_values(C, 0.5f, 2),
                       random_values(C, 0.3f, 3),
                       {},
                       {},
                       {}};
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

// The forward's outputs on the device, with two rows more than are used.
typedef struct LayerNormOutputs {
    DeviceArray<floatX> out;
    DeviceArray<float> mean, rstd;
    LayerNormOutputs(int64_t N, int C) : out((N + 2) * C), mean(N + 2), rstd(N + 2) {}
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
    std::vector<float> out = got.out.first(t, what, c.N * c.C);
    if (!c.rms) { check_values(t, what + ": mean", got.mean.first(t, what, c.N), c.mean, shift, 0.0); }
    check_values(t, what + ": rstd", got.rstd.first(t, what, c.N), c.rstd, 0.0, relative);
    check_values(t, what + ": out", out, c.out, shift * rstd * largest(c.weight) + relative * scale,
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
    amax.check(t, what, got.out.first(t, what, c.N * c.C));
    return got.hash();
}

TEST(test_layernorm_forward_widths) {
    for (int C : layernorm_widths) { layernorm_run_forward(t, layernorm_case(C > 4000 ? 1 : 3, C), 256); }
}

// Rows of one warp and of several, as many a block as its size says: the last block is full, has one row, lacks one.
TEST(test_layernorm_forward_blocks) {
    for (int C : {24, 520, 1280}) {
        for (int64_t N : {1, 7, 8, 9, 17}) {
            LayerNormCase c = layernorm_case(N, C);
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
    for (int C : {8, 384, 1600}) {
        LayerNormCase c = layernorm_case(3, C);
        std::vector<int32_t> steps = random_ids(c.N * C, 9, 4);
        float base = FLOATX_EPSILON < 1e-3 ? 8192.0f : 256.0f, unit = FLOATX_EPSILON < 1e-3 ? 0.5f : 2.0f;
        for (size_t i = 0; i < c.x.size(); i++) { c.x[i] = base + unit * (float)steps[i]; }
        for (int64_t row = 0; row < c.N; row++) {
            double sum = 0.0, square = 0.0;
            for (int k = 0; k < C; k++) { sum += c.x[(size_t)(row * C + k)]; }
            for (int k = 0; k < C; k++) { square += pow(c.x[(size_t)(row * C + k)] - sum / C, 2.0); }
            double rstd = 1.0 / sqrt(square / C + LAYERNORM_EPSILON);
            c.mean[(size_t)row] = (float)(sum / C);
            c.rstd[(size_t)row] = (float)rstd;
            for (int k = 0; k < C; k++) {
                size_t i = (size_t)(row * C + k);
                c.out[i] = (float)((c.x[i] - sum / C) * rstd * c.weight[(size_t)k] + c.bias[(size_t)k]);
            }
        }
        layernorm_run_forward(t, c, 256);
    }
}

// A row without any spread gives the bias; a row with a NaN is NaN, and no other row is touched by it.
TEST(test_layernorm_forward_odd_rows) {
    for (int C : {24, 520, 1280}) {
        LayerNormCase c = layernorm_case(6, C);
        std::fill(c.x.begin() + 3 * C, c.x.begin() + 4 * C, 5.0f);
        c.x[(size_t)(4 * C + 9)] = NAN;
        DeviceArray<floatX> x(c.x), weight(c.weight), bias(c.bias);
        LayerNormOutputs d_got(c.N, C);
        layernorm_forward(d_got.layer(c, weight, bias), x.data, c.N, 0);
        std::vector<float> got = d_got.out.get();
        std::vector<float> flat(got.begin() + 3 * C, got.begin() + 4 * C);
        check_equal(t, "a flat row", flat, c.bias);
        for (int64_t row = 0; row < c.N; row++) {
            auto begin = got.begin() + row * C;
            int64_t nans = std::count_if(begin, begin + C, [](float y) { return isnan(y); });
            CHECK(t, nans == (row == 4 ? C : 0), "C %d: row %d holds %d NaN", C, (int)row, (int)nans);
        }
    }
}

// The residual sum alone has the bits of the fused kernel's, out of place and in place.
static void residual_check_alone(Test *t, const DeviceArray<floatX> &inp, const DeviceArray<floatX> &projection,
                                 uint64_t want) {
    DeviceArray<floatX> out(inp.count + 8), in_place(projection.get());
    residual_forward(out.data, inp.data, projection.data, inp.count, 0);
    std::vector<float> sum = out.first(t, "residual alone", inp.count);
    CHECK(t, DeviceArray<floatX>(sum).hash() == want, "residual_forward gives other bits");
    residual_forward(in_place.data, inp.data, in_place.data, inp.count, 0);
    CHECK(t, in_place.hash() == want, "residual_forward gives other bits in place");
}

// The fused kernel: the residual is rounded once, and the other outputs are the bits of LayerNorm alone.
static void layernorm_check_fused(Test *t, int64_t N, int C, int block_size, int alias, bool rms = LAYERNORM) {
    LayerNormCase c = layernorm_case(N, C, rms);
    std::vector<float> other = random_values(N * C, 0.8f, 5), want((size_t)(N * C));
    for (size_t i = 0; i < want.size(); i++) { want[i] = rounded(c.x[i] + other[i]); }
    DeviceArray<floatX> inp1(c.x), inp2(other), sum(want), weight(c.weight), bias(c.bias), own(N * C);
    residual_check_alone(t, inp1, inp2, sum.hash());
    LayerNormOutputs separate(N, C), fused(N, C);
    (rms ? layernorm_forward<RMSNORM> : layernorm_forward<LAYERNORM>)(separate.layer(c, weight, bias), sum.data, N, 0,
                                                                      256);
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
    amax.check(t, what, fused.out.first(t, what, N * C));
}

TEST(test_layernorm_fused) {
    for (int C : layernorm_widths) { layernorm_check_fused(t, C > 4000 ? 1 : 3, C, 256, 0); }
    for (int alias : {1, 2}) { layernorm_check_fused(t, 9, 384, 128, alias); }
    for (int block_size : {32, 1024}) { layernorm_check_fused(t, 33, 72, block_size, 0); }
}

// ---- Backward ----

// sums: of dinp's columns; empty: not wanted.
typedef struct {
    std::vector<float> dinp, dweight, dbias, sums;
} LayerNormGradients;

// With 8 values of -0 behind the end: adding even a 0 to them would show.
static std::vector<float> layernorm_with_tail(std::vector<float> values) {
    values.resize(values.size() + 8, -0.0f);
    return values;
}

static std::vector<float> layernorm_without_tail(Test *t, const char *what, std::vector<float> values) {
    bool kept = std::all_of(values.end() - 8, values.end(), [](float x) { return x == 0.0f && signbit(x); });
    CHECK(t, kept, "%s: what lies behind the end is written", what);
    values.resize(values.size() - 8);
    return values;
}

// The sums of the columns of the backward's dinp, taken alone, have the backward's bits.
static void layernorm_check_column_sums(Test *t, int64_t N, int C, const std::vector<float> &start,
                                        const LayerNormGradients &got) {
    int64_t floats = layernorm_backward_scratch_floats(N, C);
    DeviceArray<floatX> dinp(got.dinp);
    std::string what = format("column sums alone, N %d, C %d", (int)N, C);
    for (bool wants_amax : {false, true}) {
        DeviceArray<float> sums(layernorm_with_tail(start)), scratch(floats + 4);
        Amax amax;
        layernorm_column_sums(sums.data, dinp.data, scratch.data, N, C, wants_amax ? amax.data() : NULL, 0);
        scratch.first(t, "scratch", floats);
        CHECK(t, layernorm_without_tail(t, what.c_str(), sums.get()) == got.sums, "%s: other bits", what.c_str());
        if (wants_amax) { amax.check(t, what, got.dinp); }
    }
}

// One backward on the GPU from the given gradients, dinp's replaced or added to; the scratch memory holds NaN and is of
// the stated size; what lies behind it and the gradients must stay.
static LayerNormGradients layernorm_run_backward(Test *t, const LayerNormCase &c, const std::vector<float> &dout,
                                                 const LayerNormGradients &start, bool overwrites, bool wants_amax) {
    DeviceArray<floatX> d_dinp(layernorm_with_tail(start.dinp)), d_dout(dout), x(c.x), weight(c.weight);
    DeviceArray<float> dweight(layernorm_with_tail(start.dweight)), dbias(layernorm_with_tail(start.dbias));
    DeviceArray<float> mean(c.mean), rstd(c.rstd), sums(layernorm_with_tail(start.sums));
    int64_t floats = layernorm_backward_scratch_floats(c.N, c.C);
    DeviceArray<float> scratch(floats + 4 * c.C);
    Amax amax;
    LayerNormDinp out = {d_dinp.data, overwrites, start.sums.empty() ? NULL : sums.data,
                         wants_amax ? amax.data() : NULL};
    LayerNorm ln = {c.C, c.epsilon, weight.data, NULL, dweight.data, dbias.data, NULL, mean.data, rstd.data, NULL};
    if (c.rms) { ln.dbias = ln.mean = NULL; }
    (c.rms ? layernorm_backward_with_column_sums<RMSNORM>
           : layernorm_backward_with_column_sums<LAYERNORM>)(out, ln, d_dout.data, x.data, scratch.data, c.N, 0);
    scratch.first(t, "scratch", floats);
    LayerNormGradients got = {
        layernorm_without_tail(t, "dinp", d_dinp.get()), layernorm_without_tail(t, "dweight", dweight.get()),
        layernorm_without_tail(t, "dbias", dbias.get()), layernorm_without_tail(t, "column sums", sums.get())};
    if (wants_amax) { amax.check(t, layernorm_name("backward", c.N, c.C, 0), got.dinp); }
    if (!start.sums.empty()) { layernorm_check_column_sums(t, c.N, c.C, start.sums, got); }
    return got;
}

// Backward passes, each from where the GPU's last ended, against the CPU's: the first replaces dinp, the later ones add
// to it. RMSNorm has neither dbias nor column sums. Tolerances: dinp's new part contains two means over C and is
// rounded to floatX with what it is added to; dweight is a sum over N rows; dbias is exact, for dout is random_eighths.
static void layernorm_check_backward(Test *t, int64_t N, int C, int steps, bool rms = LAYERNORM) {
    LayerNormCase c = layernorm_case(N, C, rms);
    std::vector<float> dout = random_eighths(N * C, 8);
    LayerNormGradients got = {random_values(N * C, 1.0f, 9), random_values(C, 1.0f, 10), random_eighths(C, 11),
                              random_values(rms ? 0 : C, 1.0f, 16)};
    for (int step = 0; step < steps; step++) {
        bool overwrites = step == 0 && steps > 1;
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
        std::string name = format("backward %d, N %d, C %d", step + 1, (int)N, C);
        check_values(t, name + ": dinp", got.dinp, want.dinp, sum_tolerance(C) * largest(want.dinp),
                     0.5 * FLOATX_EPSILON);
        check_values(t, name + ": dweight", got.dweight, want.dweight, sum_tolerance(N) * largest(want.dweight),
                     FLT_EPSILON);
        check_equal(t, name + ": dbias", got.dbias, want.dbias);
        if (!rms) { check_column_sums(t, name + ": column sums", got.sums, start.sums, got.dinp); }
    }
}

// Replacing is adding to zeros, bit for bit, and what else is wanted changes no bit of the rest.
static void layernorm_check_extras(Test *t, bool rms) {
    for (int C : {72, 2056, LAYERNORM_MAX_CHANNELS}) { // of each of the three kernels
        LayerNormCase c = layernorm_case(C > 4000 ? 2 : 18, C, rms);
        std::vector<float> dout = random_values(c.N * C, 1.0f, 12), zeros((size_t)(c.N * C), 0.0f);
        LayerNormGradients start = {zeros, random_values(C, 1.0f, 14), random_values(C, 1.0f, 15), {}};
        LayerNormGradients plain = layernorm_run_backward(t, c, dout, start, false, false);
        start.dinp.assign(start.dinp.size(), NAN);
        start.sums = random_values(rms ? 0 : C, 1.0f, 16);
        LayerNormGradients extras = layernorm_run_backward(t, c, dout, start, true, true);
        check_equal(t, "dinp", extras.dinp, plain.dinp);
        check_equal(t, "dweight", extras.dweight, plain.dweight);
        check_equal(t, "dbias", extras.dbias, plain.dbias);
        if (!rms) { check_column_sums(t, "column sums", extras.sums, start.sums, extras.dinp); }
    }
}

TEST(test_layernorm_backward_extras) { layernorm_check_extras(t, LAYERNORM); }

TEST(test_layernorm_backward_widths) {
    for (int C : layernorm_widths) { layernorm_check_backward(t, C > 2000 ? 1 : 3, C, C > 2000 ? 1 : 2); }
}

// Blocks of the first stage with unequal numbers of rows, and more blocks than the second stage adds at a time.
TEST(test_layernorm_backward_rows) {
    for (int64_t N : {1, 15, 16, 17, 33, 100}) { layernorm_check_backward(t, N, 72, 2); }
    layernorm_check_backward(t, 1043, 8, 2);
}

// Values of many sizes, so that sums in another order would have other bits. layernorm_run_backward compares them.
TEST(test_layernorm_column_sums_order) {
    const int shapes[][2] = {{1043, 8}, {100, 72}, {40, 2056}, {40, LAYERNORM_MAX_CHANNELS}};
    for (const int *shape : shapes) {
        LayerNormCase c = layernorm_case(shape[0], shape[1]);
        std::vector<float> dinp = random_values(c.N * c.C, 1.0f, 9), dout = random_values(c.N * c.C, 1.0f, 12);
        std::vector<int32_t> exponents = random_ids(c.N * c.C, 24, 17);
        for (size_t i = 0; i < dinp.size(); i++) { dinp[i] = ldexpf(dinp[i], exponents[i]); }
        LayerNormGradients start = {dinp, random_values(c.C, 1.0f, 14), random_values(c.C, 1.0f, 15),
                                    random_values(c.C, 1.0f, 16)};
        layernorm_run_backward(t, c, dout, start, false, false);
    }
}

// The blocks follow from the shape alone, none is without a row, and the threads of each hold a row.
TEST(test_layernorm_backward_scratch) {
    for (int C : layernorm_widths) {
        for (int64_t N : {1, 16, 17, 8192, 65536, 1 << 20}) {
            int64_t blocks = layernorm_backward_blocks(N, C), threads = layernorm_backward_threads(C);
            CHECK(t, blocks >= 1 && blocks <= N, "N %d, C %d: %d blocks of %d", (int)N, C, (int)blocks, (int)threads);
            CHECK(t,
                  threads <= LAYERNORM_BACKWARD_MAX_THREADS &&
                      threads * layernorm_backward_vectors(C) * x128::size >= C,
                  "C %d: %d threads of %d vectors", C, (int)threads, layernorm_backward_vectors(C));
        }
    }
}

// The largest grid is one wave on an A100 and on an H100, which have room for more blocks of each multiprocessor than
// it needs, and leaves at most 2 of 11 of the places of its fullest multiprocessors idle. What the kernel's registers
// and shared memory leave room for is the driver's word, of real GPUs only, and of those with an A100's shared memory.
TEST(test_layernorm_backward_wave) {
    struct cudaDeviceProp device;
    cuda_check(cudaGetDeviceProperties(&device, 0));
    for (int C : layernorm_widths) {
        int64_t blocks = layernorm_backward_blocks(1 << 20, C);
        int threads = layernorm_backward_threads(C), vectors = layernorm_backward_vectors(C);
        int registers = vectors == 1 ? 64 : 128, room = 65536 / registers / threads;
        for (int multiprocessors : {108, 132}) {
            int64_t fullest = ceil_div_i64(blocks, multiprocessors);
            CHECK(t, fullest <= room, "C %d: %d blocks on one of %d multiprocessors, room for %d", C, (int)fullest,
                  multiprocessors, room);
            CHECK(t, 11 * blocks >= 9 * fullest * multiprocessors, "C %d: %d blocks on %d multiprocessors", C,
                  (int)blocks, multiprocessors);
        }
        int resident = 0;
        auto kernel = layernorm_backward_kernel_of<true, LAYERNORM>(vectors);
        size_t shared = layernorm_backward_shared(C);
        allow_dynamic_shared(kernel, shared);
        cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared));
        bool is_large = device.sharedMemPerMultiprocessor >= 164 << 10;
        CHECK(t, !is_large || resident >= ceil_div_i64(blocks, 108), "C %d: %d blocks on a multiprocessor, %d expected",
              C, resident, (int)ceil_div_i64(blocks, 108));
    }
}

static void layernorm_check_schedules(Test *t, const char *name, bool rms) {
    for (int C : {80, 1600}) {
        LayerNormCase c = layernorm_case(35, C, rms);
        std::vector<float> dout = random_values(c.N * C, 1.0f, 12);
        LayerNormGradients start = {random_values(c.N * C, 1.0f, 13), random_values(C, 1.0f, 14),
                                    random_values(C, 1.0f, 15), random_values(rms ? 0 : C, 1.0f, 16)};
        for_each_schedule(t, name, [&] {
            LayerNormGradients got = layernorm_run_backward(t, c, dout, start, false, false);
            uint64_t hash = layernorm_run_forward(t, c, 256);
            for (const std::vector<float> &values : {got.dinp, got.dweight, got.dbias, got.sums}) {
                hash = hash * 3 ^ hash_of(values);
            }
            return hash;
        });
    }
}

TEST(test_layernorm_schedules) { layernorm_check_schedules(t, "layernorm", LAYERNORM); }

#endif // KERNELS_LAYERNORM_CUH
