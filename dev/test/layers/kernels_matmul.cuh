// The linear layer and its gradients against the CPU trainer's, with and without fused GELU.
#ifndef KERNELS_MATMUL_CUH
#define KERNELS_MATMUL_CUH

#include "llmc/layers/gelu.cuh"
#include "llmc/layers/linear.cuh"
#include "dev/test/layers/gpu_test.h"

// A context with its workspace.
struct MatmulContext {
    CublasContext context;
    DeviceArray<uint8_t> workspace;

    explicit MatmulContext(bool tf32 = false) : workspace(1 << 20) {
        Error error;
        if (!cublas_open(&context, tf32, &error)) {
            fprintf(stderr, "%s\n", error.text);
            exit(EXIT_FAILURE);
        }
        cublas_set_workspace(&context, workspace.data, (size_t)workspace.count);
    }
    ~MatmulContext() { cublas_close(&context); }
};

struct MatmulShape {
    int64_t N;
    int C, OC;
};

// Rows that fill no tile; every residue of the model widths (384 768 1024 1280 1600 1920 2880 3456, and 3 and 4 times
// that) modulo 64 and 128 is among the widths; 1 row is the sampler's.
static const MatmulShape matmul_shapes[] = {{1, 64, 192},  {7, 8, 24},     {35, 24, 8},    {65, 72, 136},
                                            {129, 48, 64}, {33, 192, 320}, {130, 264, 40}, {64, 320, 64}};

// Inputs, and what the CPU makes of them. The gradients begin at 1, as if another micro-step had been there.
struct MatmulCase {
    MatmulShape shape;
    std::vector<float> inp, weight, bias, dout, out, dinp, dweight, dbias;

    explicit MatmulCase(MatmulShape s) : shape(s) {
        inp = random_values(s.N * s.C, 1.0f, 1), weight = random_values((int64_t)s.OC * s.C, 1.0f, 2);
        bias = random_values(s.OC, 1.0f, 3), dout = random_values(s.N * s.OC, 1.0f, 4);
        out.resize(dout.size()), dinp.resize(inp.size());
        dweight.assign(weight.size(), 1.0f), dbias.assign(bias.size(), 1.0f);
        cpu_matmul_forward(out.data(), NULL, inp.data(), weight.data(), bias.data(), s.N, s.C, s.OC);
        cpu_matmul_backward(dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(), weight.data(), s.N, s.C,
                            s.OC);
    }
    std::string name(const char *what) const {
        return std::string(what) + " (" + std::to_string(shape.N) + ", " + std::to_string(shape.C) + ") x (" +
               std::to_string(shape.OC) + ", " + std::to_string(shape.C) + ")";
    }
};

// K terms of size 1 on each side, each in its own order.
static inline double matmul_tolerance(int64_t K, const std::vector<float> &want) {
    return 2 * sum_tolerance(K) * fmax(1.0, largest(want));
}
static const double matmul_rounding = FLOATX_EPSILON / 2 + FLT_EPSILON;

TEST(test_matmul_forward) {
    MatmulContext m;
    for (const MatmulShape &s : matmul_shapes) {
        MatmulCase c(s);
        DeviceArray<floatX> inp(c.inp), weight(c.weight), bias(c.bias), out(s.N * s.OC);
        linear_forward(&m.context, {s.C, s.OC, weight.data, bias.data}, out.data, NULL, inp.data, s.N, 0);
        check_values(t, c.name("out"), out.get(), c.out, matmul_tolerance(s.C, c.out), matmul_rounding);
        out.poison();
        linear_forward(&m.context, {s.C, s.OC, weight.data, NULL}, out.data, NULL, inp.data, s.N, 0);
        cpu_matmul_forward(c.out.data(), NULL, c.inp.data(), c.weight.data(), NULL, s.N, s.C, s.OC);
        check_values(t, c.name("out without bias"), out.get(), c.out, matmul_tolerance(s.C, c.out), matmul_rounding);
    }
}

TEST(test_matmul_backward) {
    MatmulContext m;
    for (const MatmulShape &s : matmul_shapes) {
        MatmulCase c(s);
        DeviceArray<floatX> inp(c.inp), weight(c.weight), dout(c.dout), dinp(s.N * s.C);
        DeviceArray<float> dweight(std::vector<float>(c.weight.size(), 1.0f));
        linear_backward_input(&m.context, {s.C, s.OC, weight.data}, dinp.data, dout.data, NULL, s.N, 0);
        linear_backward_weight(&m.context, {s.C, s.OC, NULL, NULL, dweight.data}, dout.data, inp.data, s.N, 0);
        check_values(t, c.name("dinp"), dinp.get(), c.dinp, matmul_tolerance(s.OC, c.dinp), matmul_rounding);
        check_values(t, c.name("dweight"), dweight.get(), c.dweight, matmul_tolerance(s.N, c.dweight), FLT_EPSILON);
    }
}

// The relative error of tanh in an epilogue of cuBLASLt, which may be the hardware's: PTX promises 2^-11 for
// tanh.approx.f32. The emulator's is exact in fp32.
#ifdef GPT2_EMU
static const double tanh_error = 0.0;
#else
static const double tanh_error = 1.0 / 2048.0;
#endif

// u and t of gelu(x) = x/2 (1 + t), t = tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3). gelu'(x) = (1 + t)/2 + x/2 (1 -
// t^2) u'(x): an error d of t moves gelu by x/2 d, and its slope by (1/2 - x t u') d.
struct GeluParts {
    double t, du;
    explicit GeluParts(double x)
        : t(tanh(0.7978845608 * (x + 0.044715 * x * x * x))), du(0.7978845608 * (1.0 + 3.0 * 0.044715 * x * x)) {}
};
static double gelu_error(double x) { return fabs(0.5 * x * GeluParts(x).t) * tanh_error; }
static double gelu_slope_error(double x) {
    GeluParts p(x);
    return fabs((0.5 - x * p.t * p.du) * p.t) * tanh_error;
}

// check_values where each value may be off by `extra` of its own beside: both are divided by what they may be off by.
static void check_values_each(Test *t, const std::string &what, std::vector<float> got, std::vector<float> want,
                              double absolute, double relative, const std::vector<double> &extra) {
    for (size_t i = 0; i < want.size() && i < got.size(); i++) {
        double allowed = absolute + relative * fabs((double)want[i]) + extra[i];
        got[i] = (float)((double)got[i] / allowed), want[i] = (float)((double)want[i] / allowed);
    }
    check_values(t, what + ", in parts of its tolerance", got, want, 1.0, FLT_EPSILON);
}

// Fused GELU: pre_gelu is the plain result, bit for bit; out is its GELU, but for the rounding between them. GELU's
// slope is at most 1.13, so half an epsilon before it is less than one after it.
TEST(test_matmul_fused_gelu) {
    MatmulContext m;
    for (const MatmulShape &s : matmul_shapes) {
        MatmulCase c(s);
        DeviceArray<floatX> inp(c.inp), weight(c.weight), bias(c.bias);
        DeviceArray<floatX> plain(s.N * s.OC), separate(s.N * s.OC), out(s.N * s.OC), pre_gelu(s.N * s.OC);
        for (int with_bias = 0; with_bias < 2; with_bias++) {
            const floatX *b = with_bias ? bias.data : NULL;
            out.poison(), pre_gelu.poison();
            linear_forward(&m.context, {s.C, s.OC, weight.data, b}, plain.data, NULL, inp.data, s.N, 0);
            gelu_forward(separate.data, plain.data, s.N * s.OC, 0);
            linear_forward(&m.context, {s.C, s.OC, weight.data, b}, out.data, pre_gelu.data, inp.data, s.N, 0);
            double tolerance = matmul_tolerance(s.C, c.out);
            check_values(t, c.name("pre_gelu"), pre_gelu.get(), plain.get(), tolerance, 2 * matmul_rounding);
            double rounding = 1.13 * matmul_rounding * largest(plain.get());
            std::vector<double> extra;
            for (float x : plain.get()) { extra.push_back(gelu_error((double)x)); }
            check_values_each(t, c.name("gelu"), out.get(), separate.get(), tolerance + rounding, 2 * matmul_rounding,
                              extra);
        }
    }
}

// dinp times the slope of GELU at the layer's input before GELU, fused and in two steps.
TEST(test_matmul_fused_gelu_backward) {
    MatmulContext m;
    for (const MatmulShape &s : matmul_shapes) {
        MatmulCase c(s);
        std::vector<float> pre = random_values(s.N * s.C, 1.5f, 5), want(pre.size(), 0.0f);
        cpu_gelu_backward(want.data(), pre.data(), c.dinp.data(), s.N * s.C);
        DeviceArray<floatX> weight(c.weight), dout(c.dout), pre_gelu(pre), dinp(s.N * s.C), separate(s.N * s.C);
        linear_backward_input(&m.context, {s.C, s.OC, weight.data}, dinp.data, dout.data, pre_gelu.data, s.N, 0);
        double tolerance = 1.13 * matmul_tolerance(s.OC, c.dinp) + 1e-6;
        std::vector<double> extra; // the slope's error times what it multiplies, which counts where the slope is near 0
        for (size_t i = 0; i < pre.size(); i++) {
            extra.push_back(fabs((double)c.dinp[i]) * gelu_slope_error((double)pre[i]));
        }
        check_values_each(t, c.name("dinp through gelu"), dinp.get(), want, tolerance, matmul_rounding + 1e-5, extra);
        linear_backward_input(&m.context, {s.C, s.OC, weight.data}, separate.data, dout.data, NULL, s.N, 0);
        gelu_backward(separate.data, pre_gelu.data, separate.data, NULL, NULL, s.N, s.C, 0);
        check_values(t, c.name("in two steps"), separate.get(), want, tolerance, 2 * matmul_rounding + 1e-5);
    }
}

// ---- The gradient of the bias ----

// A layer that wants the largest magnitude in dout.
static inline Linear bias_layer(int OC, float *dbias, uint32_t *amax) {
    Linear l = {8, OC, NULL, NULL, NULL, dbias};
    l.fp8.on = true;
    l.fp8.dout_scale = reinterpret_cast<Fp8Scale *>(amax); // which amax begins
    return l;
}

static inline void check_bias_gradient(Test *t, int64_t N, int OC) {
    std::vector<float> dout = random_values(N * OC, 1.0f, 6), want((size_t)OC, 1.0f);
    std::vector<float> inp((size_t)N * 8, 0.0f), weight((size_t)OC * 8, 0.0f);
    std::vector<float> dinp(inp.size()), dweight(weight.size());
    cpu_matmul_backward(dinp.data(), dweight.data(), want.data(), dout.data(), inp.data(), weight.data(), N, 8, OC);
    DeviceArray<floatX> gradient(dout);
    DeviceArray<float> dbias(std::vector<float>((size_t)OC, 1.0f)), scratch(linear_backward_bias_scratch_floats(N, OC));
    linear_backward_bias({8, OC, NULL, NULL, NULL, dbias.data}, gradient.data, scratch.data, N, 0);
    std::string name = "dbias of " + std::to_string(N) + " x " + std::to_string(OC);
    check_values(t, name, dbias.get(), want, matmul_tolerance(N, want), FLT_EPSILON);
    DeviceArray<float> again(std::vector<float>((size_t)OC, 1.0f));
    Amax amax(1e-3f);
    linear_backward_bias(bias_layer(OC, again.data, amax.data()), gradient.data, scratch.data, N, 0);
    CHECK(t, again.hash() == dbias.hash(), "%s: other bits with amax", name.c_str());
    amax.check(t, name, dout, 1e-3f);
}

// OC below, at and above the 128 or 256 columns of a block; N below, at and above what the warps' loads cover at once,
// a chunk of rows, and the 64 chunks that the second stage adds at a time.
TEST(test_matmul_bias_gradient) {
    const int widths[] = {8, 120, 128, 136, 248, 264, 520};
    const int64_t rows[] = {1, 7, 63, 64, 65, 127, 128, 129, 200};
    for (int OC : widths) {
        for (int64_t N : rows) { check_bias_gradient(t, N, OC); }
    }
    check_bias_gradient(t, BIAS_ROWS * COLUMN_SUMS_ROWS + 1, 8);
}

// Gradients of two micro-steps: the sum of both, not the second alone.
TEST(test_matmul_micro_steps) {
    const int64_t N = 70;
    const int C = 24, OC = 40;
    MatmulContext m;
    MatmulCase c({N, C, OC});
    std::vector<float> second = random_values(N * OC, 1.0f, 8);
    DeviceArray<floatX> inp(c.inp), dout(c.dout), dout2(second);
    DeviceArray<float> dweight((int64_t)OC * C), dbias(OC), scratch(linear_backward_bias_scratch_floats(N, OC));
    dweight.clear(), dbias.clear();
    std::vector<float> dinp(c.inp.size()), want_weight(c.weight.size()), want_bias(c.bias.size());
    const floatX *gradients[] = {dout.data, dout2.data};
    const std::vector<float> *values[] = {&c.dout, &second};
    for (int micro_step = 0; micro_step < 2; micro_step++) {
        scratch.poison(); // of another layer meanwhile
        linear_backward_weight(&m.context, {C, OC, NULL, NULL, dweight.data}, gradients[micro_step], inp.data, N, 0);
        linear_backward_bias({8, OC, NULL, NULL, NULL, dbias.data}, gradients[micro_step], scratch.data, N, 0);
        cpu_matmul_backward(dinp.data(), want_weight.data(), want_bias.data(), values[micro_step]->data(), c.inp.data(),
                            c.weight.data(), N, C, OC);
    }
    check_values(t, "dweight", dweight.get(), want_weight, matmul_tolerance(2 * N, want_weight), FLT_EPSILON);
    check_values(t, "dbias", dbias.get(), want_bias, matmul_tolerance(2 * N, want_bias), FLT_EPSILON);
}

// ---- cuBLASLt's part ----

// The heuristic is asked once per problem, however often it is met; problems that differ in one thing (here: the inner
// width, as attention's projection and the MLP's do) are two.
TEST(test_matmul_plans) {
    MatmulContext m;
    MatmulCase c({9, 16, 24});
    DeviceArray<floatX> inp(c.inp), weight(c.weight), bias(c.bias), dout(c.dout), out(9 * 24), pre(9 * 24),
        dinp(9 * 16);
    CublasContext *context = &m.context;
    for (int repeat = 0; repeat < 3; repeat++) {
        linear_forward(context, {8, 24, weight.data, NULL}, out.data, NULL, inp.data, 9, 0);
        linear_forward(context, {8, 24, weight.data, bias.data}, out.data, NULL, inp.data, 9, 0);
        linear_forward(context, {8, 24, weight.data, bias.data}, out.data, pre.data, inp.data, 9, 0);
        linear_backward_input(context, {16, 24, weight.data}, dinp.data, dout.data, NULL, 9, 0);
        linear_forward(context, {16, 24, weight.data, bias.data}, out.data, NULL, inp.data, 9, 0);
        CHECK(t, context->plan_count == 5, "%d problems, the heuristic was asked %lld times", 5,
              (long long)context->plan_count);
    }
    context->multiprocessors = 2; // another algorithm may be the best there
    out.poison();
    linear_forward(context, {16, 24, weight.data, bias.data}, out.data, NULL, inp.data, 9, 0);
    CHECK(t, context->plan_count == 6, "of fewer multiprocessors: asked %lld times", (long long)context->plan_count);
    check_values(t, "out", out.get(), c.out, matmul_tolerance(16, c.out), matmul_rounding);
    check_values(t, "dinp", dinp.get(), c.dinp, matmul_tolerance(24, c.dinp), matmul_rounding);
}

// More problems than the table holds: the oldest give way, and come back when they are met again.
TEST(test_matmul_many_plans) {
    MatmulContext m;
    MatmulCase c({CUBLAS_MAX_PLANS + 6, 8, 16});
    DeviceArray<floatX> inp(c.inp), weight(c.weight), bias(c.bias), out(c.shape.N * 16);
    for (int64_t i = 1; i <= c.shape.N + 1; i++) {
        int64_t rows = i <= c.shape.N ? i : 1;
        out.poison();
        linear_forward(&m.context, {8, 16, weight.data, bias.data}, out.data, NULL, inp.data, rows, 0);
        std::vector<float> got = out.get(), want(c.out.begin(), c.out.begin() + rows * 16);
        got.resize(want.size());
        check_values(t, "out of " + std::to_string(rows) + " rows", got, want, matmul_tolerance(8, c.out),
                     matmul_rounding);
    }
    CHECK(t, m.context.plan_count == c.shape.N + 1, "asked %lld times", (long long)m.context.plan_count);
}

// One plan serves all layers: its bias and auxiliary pointers are those of the call, not those it was made with.
TEST(test_matmul_pointers_of_the_call) {
    MatmulContext m;
    MatmulCase c({20, 16, 24});
    DeviceArray<floatX> inp(c.inp), weight(c.weight), bias(c.bias), zeros(24), out(20 * 24), pre(20 * 24),
        pre2(20 * 24);
    zeros.clear();
    linear_forward(&m.context, {16, 24, weight.data, zeros.data}, out.data, pre.data, inp.data, 20, 0);
    linear_forward(&m.context, {16, 24, weight.data, bias.data}, out.data, pre2.data, inp.data, 20, 0);
    check_values(t, "second layer", pre2.get(), c.out, matmul_tolerance(16, c.out), matmul_rounding);
    std::vector<float> first(c.out);
    cpu_matmul_forward(first.data(), NULL, c.inp.data(), c.weight.data(), NULL, 20, 16, 24);
    check_values(t, "first layer", pre.get(), first, matmul_tolerance(16, first), matmul_rounding);
}

// tf32 keeps 10 bits of mantissa: each factor is off by up to 2^-10 (if cut), the sum of K random terms of size 1 by
// about sqrt(K) 2^-9, 4 times that for the worst. Without the switch the sums are those of fp32. In bf16 there is
// nothing to round.
TEST(test_matmul_tf32) {
    MatmulCase c({65, 264, 72});
    DeviceArray<floatX> inp(c.inp), weight(c.weight), out(65 * 72), fast(65 * 72);
    MatmulContext off(false), on(true);
    cpu_matmul_forward(c.out.data(), NULL, c.inp.data(), c.weight.data(), NULL, 65, 264, 72);
    linear_forward(&off.context, {264, 72, weight.data, NULL}, out.data, NULL, inp.data, 65, 0);
    linear_forward(&on.context, {264, 72, weight.data, NULL}, fast.data, NULL, inp.data, 65, 0);
    check_values(t, "without tf32", out.get(), c.out, matmul_tolerance(264, c.out), matmul_rounding);
#ifdef PRECISION_FP32
    CHECK(t, out.hash() != fast.hash(), "tf32 changes nothing");
    check_values(t, "tf32", fast.get(), c.out, 4 * sqrt(264.0) / 512, 0);
#else
    CHECK(t, out.hash() == fast.hash(), "tf32 changes bf16");
#endif
}

TEST(test_matmul_schedules) {
    const int64_t N = 300;
    const int C = 72, OC = 264;
    MatmulContext m;
    MatmulCase c({N, C, OC});
    DeviceArray<floatX> inp(c.inp), weight(c.weight), bias(c.bias), dout(c.dout), out(N * OC), pre(N * OC), dinp(N * C);
    DeviceArray<float> dweight((int64_t)OC * C), dbias(OC), scratch(linear_backward_bias_scratch_floats(N, OC));
    for_each_schedule(t, "matmul", [&] {
        out.poison(), pre.poison(), dinp.poison(), scratch.poison(), dweight.clear(), dbias.clear();
        linear_forward(&m.context, {C, OC, weight.data, bias.data}, out.data, pre.data, inp.data, N, 0);
        linear_backward_input(&m.context, {C, OC, weight.data}, dinp.data, dout.data, inp.data, N, 0);
        linear_backward_weight(&m.context, {C, OC, NULL, NULL, dweight.data}, dout.data, inp.data, N, 0);
        linear_backward_bias({8, OC, NULL, NULL, NULL, dbias.data}, dout.data, scratch.data, N, 0);
        return out.hash() ^ (3 * pre.hash()) ^ (5 * dinp.hash()) ^ (7 * dweight.hash()) ^ (9 * dbias.hash());
    });
}

#endif // KERNELS_MATMUL_CUH
