// RMSNorm, alone and fused with the residual sum, against the CPU trainer's: all model widths, row counts that fill no
// block, rows near zero, and the two-stage backward. What it shares with LayerNorm, kernels_layernorm.cuh tests.
#ifndef KERNELS_RMSNORM_CUH
#define KERNELS_RMSNORM_CUH

#include "dev/test/layers/kernels_layernorm.cuh"

typedef struct {
    int64_t N;
    int C;
    float epsilon;
    std::vector<float> x, weight, out, rstd; // out, rstd: expected
} RmsNormCase;

static void rmsnorm_expect(RmsNormCase *c) {
    c->out.resize((size_t)(c->N * c->C));
    c->rstd.resize((size_t)c->N);
    cpu_rmsnorm_forward(c->out.data(), c->rstd.data(), c->x.data(), c->weight.data(), c->N, c->C, c->epsilon);
}

// Rows whose mean is not zero, and an epsilon beside which their squares are not large.
static RmsNormCase rmsnorm_case(int64_t N, int C) {
    RmsNormCase c = {N, C, 0.25f, random_values(N * C, 0.5f, 31), random_values(C, 0.5f, 32), {}, {}};
    for (int64_t i = 0; i < N * C; i++) { c.x[(size_t)i] = rounded(c.x[(size_t)i] + 0.25f * (float)(i / C % 5 + 1)); }
    for (float &w : c.weight) { w = rounded(w + 1.0f); }
    rmsnorm_expect(&c);
    return c;
}

// mean is NULL: a write to it would end the program.
static LayerNorm rmsnorm_layer(const RmsNormCase &c, const LayerNormOutputs &to, const DeviceArray<floatX> &weight,
                               uint32_t *amax) {
    return {c.C, c.epsilon, weight.data, NULL, NULL, NULL, to.out.data, NULL, to.rstd.data, amax};
}

// Tolerances: the sum of C squares is off by sum_tolerance(C) of itself, its root by half of that. out has two
// products more, and is rounded to floatX.
static void rmsnorm_check_forward(Test *t, const std::string &what, const RmsNormCase &c, const LayerNormOutputs &got,
                                  const Amax &amax) {
    double relative = sum_tolerance(c.C) + 4.0 * FLT_EPSILON; // both sides round about four times
    std::vector<float> out = got.out.first(t, what, c.N * c.C);
    check_values(t, what + ": rstd", got.rstd.first(t, what, c.N), c.rstd, 0.0, relative);
    check_values(t, what + ": out", out, c.out, 0.0, relative + 0.5 * FLOATX_EPSILON);
    amax.check(t, what, out);
}

static uint64_t rmsnorm_run_forward(Test *t, const RmsNormCase &c, int block_size) {
    DeviceArray<floatX> x(c.x), weight(c.weight);
    LayerNormOutputs got(c.N, c.C), plain(c.N, c.C);
    Amax amax;
    layernorm_forward<RMSNORM>(rmsnorm_layer(c, got, weight, amax.data()), x.data, c.N, 0, block_size);
    layernorm_forward<RMSNORM>(rmsnorm_layer(c, plain, weight, NULL), x.data, c.N, 0, block_size);
    std::string what = layernorm_name("forward", c.N, c.C, block_size);
    rmsnorm_check_forward(t, what, c, got, amax);
    CHECK(t, got.hash() == plain.hash(), "%s: other bits without amax", what.c_str());
    return got.hash();
}

TEST(test_rmsnorm_forward_widths) {
    for (int C : layernorm_widths) { rmsnorm_run_forward(t, rmsnorm_case(C > 4000 ? 1 : 3, C), 256); }
    for (int C : {576, 960, 3072}) { rmsnorm_run_forward(t, rmsnorm_case(3, C), 256); } // of SmolLM2 and Llama 3.2
}

TEST(test_rmsnorm_forward_blocks) {
    for (int64_t N : {1, 7, 8, 17}) {
        RmsNormCase c = rmsnorm_case(N, 520);
        uint64_t first = rmsnorm_run_forward(t, c, 256);
        for (int block_size : {32, 96, 1024}) {
            CHECK(t, rmsnorm_run_forward(t, c, block_size) == first, "N %d: other bits with blocks of %d", (int)N,
                  block_size);
        }
    }
}

// Squares about as large as a small epsilon, and a row of zeros.
TEST(test_rmsnorm_near_zero) {
    RmsNormCase c = rmsnorm_case(3, 576);
    c.epsilon = 1e-6f;
    for (size_t i = 0; i < c.x.size(); i++) { c.x[i] = i < 576 ? 0.0f : rounded(1e-3f * c.x[i]); }
    rmsnorm_expect(&c);
    rmsnorm_run_forward(t, c, 256);
}

// The residual sum is the rounded sum. The outputs have the bits of RMSNorm alone. residual may be an input.
TEST(test_rmsnorm_fused) {
    for (int C : {8, 520, 576, 3072}) {
        RmsNormCase c = rmsnorm_case(9, C);
        std::vector<float> other = random_values(c.N * C, 1.0f, 33);
        DeviceArray<floatX> inp1(c.x), inp2(other), residual(c.N * C), weight(c.weight);
        for (size_t i = 0; i < c.x.size(); i++) { c.x[i] = rounded(c.x[i] + other[i]); }
        rmsnorm_expect(&c);
        residual_check_alone(t, inp1, inp2, DeviceArray<floatX>(c.x).hash());
        LayerNormOutputs got(c.N, C);
        std::string what = format("fused, C %d", C);
        for (floatX *to : {residual.data, inp1.data}) {
            got.out.poison();
            Amax amax;
            fused_residual_layernorm_forward<RMSNORM>(rmsnorm_layer(c, got, weight, amax.data()), to, inp1.data,
                                                      inp2.data, c.N, 0);
            rmsnorm_check_forward(t, what, c, got, amax);
            CHECK(t, got.hash() == rmsnorm_run_forward(t, c, 256), "%s: not the bits of RMSNorm alone", what.c_str());
        }
        check_equal(t, what + ": residual", residual.get(), c.x);
        check_equal(t, what + ": residual in place", inp1.get(), c.x);
    }
}

// ---- Backward ----

typedef struct {
    std::vector<float> dinp, dweight;
} RmsNormGradients;

// One backward on the GPU, as layernorm_run_backward does it. Without biases the scratch memory holds one kind of sums.
static RmsNormGradients rmsnorm_run_backward(Test *t, const RmsNormCase &c, const std::vector<float> &dout,
                                             const RmsNormGradients &start, bool overwrites, bool wants_amax) {
    DeviceArray<floatX> dinp(layernorm_with_tail(start.dinp)), d_dout(dout), x(c.x), weight(c.weight);
    DeviceArray<float> dweight(layernorm_with_tail(start.dweight)), rstd(c.rstd);
    int64_t floats = layernorm_backward_scratch_floats(c.N, c.C);
    DeviceArray<float> scratch(floats + 4 * c.C);
    Amax amax;
    LayerNorm ln = {c.C, c.epsilon, weight.data, NULL, dweight.data, NULL, NULL, NULL, rstd.data, NULL};
    layernorm_backward_with_column_sums<RMSNORM>({dinp.data, overwrites, NULL, wants_amax ? amax.data() : NULL}, ln,
                                                 d_dout.data, x.data, scratch.data, c.N, 0);
    scratch.first(t, "scratch", floats);
    RmsNormGradients got = {layernorm_without_tail(t, "dinp", dinp.get()),
                            layernorm_without_tail(t, "dweight", dweight.get())};
    if (wants_amax) { amax.check(t, layernorm_name("backward", c.N, c.C, 0), got.dinp); }
    return got;
}

// The first backward replaces dinp, the second adds to it, and what else is wanted changes no bit. Tolerances: dinp's
// new part contains a mean over C and is rounded to floatX with what it is added to; dweight is a sum over N rows.
static void rmsnorm_check_backward(Test *t, int64_t N, int C) {
    RmsNormCase c = rmsnorm_case(N, C);
    std::vector<float> dout = random_values(N * C, 1.0f, 34);
    RmsNormGradients got = {std::vector<float>((size_t)(N * C), NAN), random_values(C, 1.0f, 35)};
    for (bool overwrites : {true, false}) {
        RmsNormGradients start = got, want = got;
        if (overwrites) { want.dinp.assign(want.dinp.size(), 0.0f); }
        cpu_rmsnorm_backward(want.dinp.data(), want.dweight.data(), dout.data(), c.x.data(), c.rstd.data(),
                             c.weight.data(), N, C);
        got = rmsnorm_run_backward(t, c, dout, start, overwrites, true);
        std::string name = format("backward, N %d, C %d", (int)N, C);
        check_values(t, name + ": dinp", got.dinp, want.dinp, sum_tolerance(C) * largest(want.dinp),
                     0.5 * FLOATX_EPSILON);
        check_values(t, name + ": dweight", got.dweight, want.dweight, sum_tolerance(N) * largest(want.dweight),
                     FLT_EPSILON);
        RmsNormGradients plain = rmsnorm_run_backward(t, c, dout, start, overwrites, false);
        check_equal(t, name + ": dinp without amax", plain.dinp, got.dinp);
        check_equal(t, name + ": dweight without amax", plain.dweight, got.dweight);
    }
}

TEST(test_rmsnorm_backward_widths) {
    for (int C : layernorm_widths) { rmsnorm_check_backward(t, C > 2000 ? 1 : 3, C); }
    for (int C : {576, 960, 3072}) { rmsnorm_check_backward(t, 3, C); }
}

TEST(test_rmsnorm_backward_rows) {
    for (int64_t N : {1, 15, 16, 17, 33, 100}) { rmsnorm_check_backward(t, N, 72); }
    rmsnorm_check_backward(t, 1043, 8);
}

TEST(test_rmsnorm_schedules) {
    for (int C : {80, 2056}) {
        RmsNormCase c = rmsnorm_case(35, C);
        std::vector<float> dout = random_values(c.N * C, 1.0f, 34);
        RmsNormGradients start = {random_values(c.N * C, 1.0f, 36), random_values(C, 1.0f, 35)};
        for_each_schedule(t, "rmsnorm", [&] {
            RmsNormGradients got = rmsnorm_run_backward(t, c, dout, start, false, false);
            return rmsnorm_run_forward(t, c, 256) * 9 ^ hash_of(got.dinp) * 3 ^ hash_of(got.dweight);
        });
    }
}

#endif // KERNELS_RMSNORM_CUH
