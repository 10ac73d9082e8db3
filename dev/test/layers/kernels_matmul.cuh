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

    explicit MatmulContext(bool tf32 = false, int64_t bytes = 1 << 20) : workspace(bytes) {
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
        return format("%s (%d, %d) x (%d, %d)", what, (int)shape.N, shape.C, shape.OC, shape.C);
    }
};

// K terms of size 1 on each side, each in its own order.
static inline double matmul_tolerance(int64_t K, const std::vector<float> &want) {
    return 2 * sum_tolerance(K) * fmax(1.0, largest(want));
}
static const double matmul_rounding = FLOATX_EPSILON / 2 + FLT_EPSILON;

// The layer of a case on the GPU. Gradients begin at 1, as the CPU's.
struct MatmulLayer {
    CublasContext *context;
    int64_t N;
    DeviceArray<floatX> inp, weight, bias, dout, out, pre_gelu, dinp;
    DeviceArray<float> dweight, dbias, scratch;
    Linear layer;

    MatmulLayer(CublasContext *context, const MatmulCase &c)
        : context(context), N(c.shape.N), inp(c.inp), weight(c.weight), bias(c.bias), dout(c.dout), out(N * c.shape.OC),
          pre_gelu(N * c.shape.OC), dinp(N * c.shape.C), dweight(std::vector<float>(c.weight.size(), 1.0f)),
          dbias(std::vector<float>(c.bias.size(), 1.0f)), scratch(linear_backward_bias_scratch_floats(N, c.shape.OC)),
          layer({c.shape.C, c.shape.OC, weight.data, bias.data, dweight.data, dbias.data}) {}

    // pre: where what goes into GELU is written; NULL: without GELU.
    void forward(bool with_bias, floatX *pre = NULL) {
        out.poison();
        layer.bias = with_bias ? bias.data : NULL;
        linear_forward(context, layer, out.data, pre, inp.data, N, 0);
    }
    // pre: what went into the GELU before this layer; NULL: there is none.
    void backward_input(const floatX *pre) {
        dinp.poison();
        linear_backward_input(context, layer, dinp.data, dout.data, pre, N, 0);
    }
    void backward_weight() { linear_backward_weight(context, layer, dout.data, inp.data, N, 0); }
    void backward_bias() {
        scratch.poison();
        linear_backward_bias(layer, dout.data, scratch.data, N, 0);
    }
    // The bits of all products. `inp` is also what goes into GELU.
    uint64_t hash_of_all() {
        uint64_t hash = 0;
        dweight.clear(), dbias.clear(), pre_gelu.poison();
        forward(true), hash = out.hash();
        forward(true, pre_gelu.data), hash = 3 * hash ^ out.hash() ^ 5 * pre_gelu.hash();
        backward_input(NULL), hash = 3 * hash ^ dinp.hash();
        backward_input(inp.data), hash = 3 * hash ^ dinp.hash();
        backward_weight(), backward_bias();
        return 3 * hash ^ dweight.hash() ^ 5 * dbias.hash();
    }
};

// Compares out with and without the bias, dinp and dweight.
TEST(test_matmul) {
    MatmulContext m;
    for (const MatmulShape &s : matmul_shapes) {
        MatmulCase c(s);
        MatmulLayer l(&m.context, c);
        l.forward(true), l.backward_input(NULL), l.backward_weight();
        check_values(t, c.name("out"), l.out.get(), c.out, matmul_tolerance(s.C, c.out), matmul_rounding);
        check_values(t, c.name("dinp"), l.dinp.get(), c.dinp, matmul_tolerance(s.OC, c.dinp), matmul_rounding);
        check_values(t, c.name("dweight"), l.dweight.get(), c.dweight, matmul_tolerance(s.N, c.dweight), FLT_EPSILON);
        cpu_matmul_forward(c.out.data(), NULL, c.inp.data(), c.weight.data(), NULL, s.N, s.C, s.OC);
        l.forward(false);
        check_values(t, c.name("out without bias"), l.out.get(), c.out, matmul_tolerance(s.C, c.out), matmul_rounding);
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

// Fused GELU: pre_gelu is the plain result, bit for bit; out is its GELU, but for the rounding between them. GELU's
// slope is at most 1.13, so half an epsilon before it is less than one after it.
TEST(test_matmul_fused_gelu) {
    MatmulContext m;
    for (const MatmulShape &s : matmul_shapes) {
        MatmulCase c(s);
        MatmulLayer l(&m.context, c);
        DeviceArray<floatX> separate(s.N * s.OC);
        for (bool with_bias : {false, true}) {
            l.forward(with_bias);
            gelu_forward(separate.data, l.out.data, s.N * s.OC, 0);
            std::vector<float> plain = l.out.get();
            l.pre_gelu.poison(), l.forward(with_bias, l.pre_gelu.data);
            double tolerance = matmul_tolerance(s.C, c.out), rounding = 1.13 * matmul_rounding * largest(plain);
            std::vector<float> bounds;
            for (float x : plain) { bounds.push_back((float)(tolerance + rounding + gelu_error((double)x))); }
            check_values(t, c.name("pre_gelu"), l.pre_gelu.get(), plain, tolerance, 2 * matmul_rounding);
            check_within(t, c.name("gelu"), l.out.get(), separate.get(), bounds, 2 * matmul_rounding);
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
        MatmulLayer l(&m.context, c);
        DeviceArray<floatX> pre_gelu(pre);
        l.backward_input(pre_gelu.data);
        double tolerance = 1.13 * matmul_tolerance(s.OC, c.dinp) + 1e-6;
        std::vector<float> bounds; // the slope's error times what it multiplies counts where the slope is near 0
        for (size_t i = 0; i < pre.size(); i++) {
            double slope = fabs((double)c.dinp[i]) * gelu_slope_error((double)pre[i]);
            bounds.push_back((float)(tolerance + slope));
        }
        check_within(t, c.name("dinp through gelu"), l.dinp.get(), want, bounds, matmul_rounding + 1e-5);
        l.backward_input(NULL);
        gelu_backward(l.dinp.data, pre_gelu.data, l.dinp.data, NULL, NULL, s.N, s.C, 0);
        check_values(t, c.name("in two steps"), l.dinp.get(), want, tolerance, 2 * matmul_rounding + 1e-5);
    }
}

// ---- The gradient of the bias ----

static inline void check_bias_gradient(Test *t, int64_t N, int OC) {
    MatmulCase c({N, 8, OC});
    MatmulLayer plain(NULL, c), with_amax(NULL, c);
    std::string name = format("dbias of %d x %d", (int)N, OC);
    plain.backward_bias();
    check_values(t, name, plain.dbias.get(), c.dbias, matmul_tolerance(N, c.dbias), FLT_EPSILON);
    Amax amax(1e-3f);
    with_amax.layer.fp8.on = true;
    with_amax.layer.fp8.dout_scale = reinterpret_cast<Fp8Scale *>(amax.data()); // which amax begins
    with_amax.backward_bias();
    CHECK(t, with_amax.dbias.hash() == plain.dbias.hash(), "%s: other bits with amax", name.c_str());
    amax.check(t, name, c.dout, 1e-3f);
}

// OC below, at and above the 128 or 256 columns of a block; N below, at and above what the warps' loads cover at once,
// a chunk of rows, and the 64 chunks that the second stage adds at a time.
TEST(test_matmul_bias_gradient) {
    for (int OC : {8, 128, 136, 264, 520}) {
        for (int64_t N : {1, 7, 63, 64, 65, 127, 129}) { check_bias_gradient(t, N, OC); }
    }
    check_bias_gradient(t, BIAS_ROWS * COLUMN_SUMS_ROWS + 1, 8);
}

// ---- cuBLASLt's part ----

// The heuristic is asked once per problem, however often it is met; problems that differ in one thing (here: the inner
// width, as attention's projection and the MLP's do) are two.
TEST(test_matmul_plans) {
    MatmulContext m;
    MatmulCase c({9, 16, 24});
    MatmulLayer l(&m.context, c);
    Linear narrow = l.layer;
    CublasContext *context = &m.context;
    narrow.C = 8;
    for (int repeat = 0; repeat < 3; repeat++) {
        l.forward(true), l.forward(false), l.forward(true, l.pre_gelu.data), l.backward_input(NULL);
        linear_forward(context, narrow, l.out.data, NULL, l.inp.data, 9, 0);
        CHECK(t, context->plan_count == 5, "5 problems, the heuristic was asked %d times", (int)context->plan_count);
    }
}

// Problems that differ in one thing have two plans.
TEST(test_matmul_problems) {
    CublasProblem one, problems[11];
    memset(&one, 0, sizeof(one)), memset(problems, 0, sizeof(problems));
    problems[0].m = 1, problems[1].n = 1, problems[2].k = 1, problems[3].batch.count = 1;
    problems[4].transpose_a = true, problems[5].transpose_b = true, problems[6].accumulate = true;
    problems[7].fp32_output = true, problems[8].fast_sums = true;
    problems[9].epilogue = CUBLASLT_EPILOGUE_BIAS, problems[10].factors = CUBLAS_E4M3_E5M2;
    CHECK(t, cublas_same_problem(&one, &one), "one problem is two");
    FOR_EACH(i, problems) { CHECK(t, !cublas_same_problem(&one, &problems[i]), "change %zu", i); }
}

// More problems than the table holds: the oldest give way, and come back when they are met again.
TEST(test_matmul_many_plans) {
    MatmulContext m;
    MatmulCase c({CUBLAS_MAX_PLANS + 6, 8, 16});
    MatmulLayer l(&m.context, c);
    for (int64_t i = 1; i <= c.shape.N + 1; i++) {
        l.N = i <= c.shape.N ? i : 1;
        l.forward(true);
        std::vector<float> got = l.out.get(), want = c.out;
        got.resize((size_t)(l.N * 16)), want.resize(got.size());
        check_values(t, format("out of %d rows", (int)l.N), got, want, matmul_tolerance(8, want), matmul_rounding);
    }
    CHECK(t, m.context.plan_count == c.shape.N + 1, "asked %d times", (int)m.context.plan_count);
}

// One plan serves all layers: its bias and auxiliary pointers are those of the call, not those it was made with.
TEST(test_matmul_pointers_of_the_call) {
    MatmulContext m;
    MatmulCase c({20, 16, 24});
    MatmulLayer first(&m.context, c), second(&m.context, c);
    first.bias.clear();
    first.forward(true, first.pre_gelu.data), second.forward(true, second.pre_gelu.data);
    check_values(t, "second layer", second.pre_gelu.get(), c.out, matmul_tolerance(16, c.out), matmul_rounding);
    cpu_matmul_forward(c.out.data(), NULL, c.inp.data(), c.weight.data(), NULL, 20, 16, 24);
    check_values(t, "first layer", first.pre_gelu.get(), c.out, matmul_tolerance(16, c.out), matmul_rounding);
}

// tf32 keeps 10 bits of mantissa: each factor is off by up to 2^-10 (if cut), the sum of K random terms of size 1 by
// about sqrt(K) 2^-9, 4 times that for the worst. Without the switch the sums are those of fp32. In bf16 there is
// nothing to round.
TEST(test_matmul_tf32) {
    MatmulCase c({65, 264, 72});
    MatmulContext off(false), on(true);
    MatmulLayer plain(&off.context, c), fast(&on.context, c);
    plain.forward(true), fast.forward(true);
    check_values(t, "without tf32", plain.out.get(), c.out, matmul_tolerance(264, c.out), matmul_rounding);
#ifdef PRECISION_FP32
    CHECK(t, plain.out.hash() != fast.out.hash(), "tf32 changes nothing");
    check_values(t, "tf32", fast.out.get(), c.out, 4 * sqrt(264.0) / 512, 0);
#else
    CHECK(t, plain.out.hash() == fast.out.hash(), "tf32 changes bf16");
#endif
}

TEST(test_matmul_schedules) {
    MatmulContext m;
    MatmulLayer l(&m.context, MatmulCase({300, 72, 264}));
    for_each_schedule(t, "matmul", [&] { return l.hash_of_all(); });
}

#endif // KERNELS_MATMUL_CUH
