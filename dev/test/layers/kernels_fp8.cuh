// Quantising to 8 bits and the linear layer of 8-bit factors, against plain sums in double precision.
#ifndef KERNELS_FP8_CUH
#define KERNELS_FP8_CUH

#include "llmc/layers/linear.cuh"
#include "dev/test/layers/gpu_test.h"
#include "dev/test/layers/kernels_matmul.cuh"

// ---- The formats, written down once more ----

struct Fp8Rules {
    int mantissa_bits, smallest_exponent; // of a normal number
    double largest;
};
static const Fp8Rules e4m3_rules = {3, -6, 448.0}, e5m2_rules = {2, -14, 57344.0};

template <class T> static inline const Fp8Rules &fp8_rules();
template <> inline const Fp8Rules &fp8_rules<fp8e4>() { return e4m3_rules; }
template <> inline const Fp8Rules &fp8_rules<fp8e5>() { return e5m2_rules; }

// The neighbour of x in the format, ties to even; saturating.
static inline double fp8_nearest(double x, const Fp8Rules &rules) {
    if (x == 0.0) { return 0.0; }
    int exponent = (int)fmax(ilogb(x), rules.smallest_exponent);
    double unit = ldexp(1.0, exponent - rules.mantissa_bits);
    return fmax(-rules.largest, fmin(rules.largest, nearbyint(x / unit) * unit));
}

// The largest power of two that keeps amax in the format, found by trying.
static inline double fp8_factor(double amax, const Fp8Rules &rules) {
    double factor = ldexp(1.0, -140);
    if (amax == 0.0) { return 1.0; }
    while (2.0 * factor * amax <= rules.largest && factor < ldexp(1.0, FP8_MAX_EXPONENT)) { factor *= 2.0; }
    return factor;
}

static inline double fp8_decoded(uint8_t code, const Fp8Rules &rules) {
    int field = (code & 0x7f) >> rules.mantissa_bits, mantissa = code & ((1 << rules.mantissa_bits) - 1);
    double units = field > 0 ? mantissa + (1 << rules.mantissa_bits) : mantissa;
    double magnitude = ldexp(units, rules.smallest_exponent - rules.mantissa_bits + (field > 0 ? field - 1 : 0));
    bool finite = rules.mantissa_bits == 3 ? (code & 0x7f) != 0x7f : field != 31;
    return (code >> 7 != 0 ? -1.0 : 1.0) * (finite ? magnitude : NAN);
}

// ---- A quantised tensor ----

// A tensor on the device in all its forms. amax is taken by fp8_amax.
template <class T> struct Fp8Tensor {
    int64_t rows;
    int cols;
    DeviceArray<floatX> x;
    DeviceArray<uint8_t> q, q_t;
    DeviceArray<Fp8Scale> scale;

    Fp8Tensor(const std::vector<float> &values, int64_t r, int c)
        : rows(r), cols(c), x(values), q(fp8_padded_rows(r) * c), q_t(q.count), scale(1) {
        scale.clear();
    }
    T *codes() { return (T *)q.data; }
    T *transposed() { return (T *)q_t.data; }
    void quantize() {
        fp8_amax(scale.data, x.data, rows * cols, 0);
        fp8_quantize(codes(), transposed(), scale.data, x.data, rows, cols, 0);
    }
    void clear() { scale.clear(), q.poison(), q_t.poison(); }
    uint64_t hash() const { return q.hash() ^ (3 * q_t.hash()) ^ (5 * scale.hash()); }
    // What the multiplications see, in double.
    std::vector<double> values() const {
        double inverse = scale.raw()[0].inverse;
        std::vector<double> decoded;
        for (uint8_t code : q.raw()) { decoded.push_back(inverse * fp8_decoded(code, fp8_rules<T>())); }
        decoded.resize((size_t)(rows * cols)); // without the padding
        return decoded;
    }
};

// Normal numbers of one size, and a few that are much larger or smaller, or on the edges of the format.
static inline std::vector<float> fp8_inputs(int64_t n, float size, int stream) {
    std::vector<float> x = random_values(n, size, stream);
    const float odd[] = {0.0f, -0.0f, 1e-3f, -1e-3f, 1e-6f, 13.0f, -13.0f, 1e-9f, 3.5f, -1.75f};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]) && 3 * i < x.size(); i++) { x[3 * i] = rounded(size * odd[i]); }
    return x;
}

// Each code is exactly the one of the rules, with rows of zeros behind; q_t is q transposed.
template <class T> static inline void check_codes(Test *t, const std::string &what, Fp8Tensor<T> &tensor) {
    std::vector<float> x = tensor.x.get();
    std::vector<uint8_t> q = tensor.q.raw(), q_t = tensor.q_t.raw();
    Fp8Scale scale = tensor.scale.raw()[0];
    double factor = fp8_factor(largest(x), fp8_rules<T>());
    int wrong = 0, moved = 0, behind = 0;
    int64_t padded = fp8_padded_rows(tensor.rows);
    for (size_t i = 0; i < x.size(); i++) {
        wrong += fp8_decoded(q[i], fp8_rules<T>()) != fp8_nearest(factor * (double)x[i], fp8_rules<T>());
    }
    for (int64_t c = 0; c < tensor.cols; c++) {
        for (int64_t r = 0; r < padded; r++) {
            uint8_t want = q[(size_t)(r * tensor.cols + c)];
            moved += q_t[(size_t)(c * padded + r)] != want;
            behind += r >= tensor.rows && want != 0;
        }
    }
    CHECK(t, (double)scale.inverse == 1.0 / factor && wrong + moved + behind == 0,
          "%s: inverse %g, expected %g; %d wrong codes, %d of the transpose, %d behind the last row that are not zero",
          what.c_str(), scale.inverse, 1.0 / factor, wrong, moved, behind);
}

// ---- Quantising ----

struct Fp8Shape {
    int64_t rows;
    int cols;
};
// Below, at and above a tile, a group of 16 rows, and the last columns of a tile.
static const Fp8Shape fp8_shapes[] = {{1, 16},    {15, 48},   {16, 64},  {17, 112}, {127, 128},
                                      {128, 144}, {129, 240}, {260, 16}, {33, 272}};

// Quantises x (rows, cols) to both formats.
static void check_quantize(Test *t, const std::string &what, const std::vector<float> &x, int64_t rows, int cols) {
    Fp8Tensor<fp8e4> weights(x, rows, cols);
    Fp8Tensor<fp8e5> gradients(x, rows, cols);
    weights.quantize(), gradients.quantize();
    check_codes(t, "e4m3, " + what, weights);
    check_codes(t, "e5m2, " + what, gradients);
}

TEST(test_fp8_quantize) {
    for (const Fp8Shape &s : fp8_shapes) {
        std::string what = format("%d x %d", (int)s.rows, s.cols);
        check_quantize(t, what, fp8_inputs(s.rows * s.cols, 1.0f, 31), s.rows, s.cols);
    }
}

// amax just below, at and above what the largest number of the format is to a power of two, and far away from 1, to
// the ends of the floats.
TEST(test_fp8_factors) {
    const float sizes[] = {1.0f, 1.734375f, 1.75f, 1.765625f, 448.0f, 1e-12f, 1e12f, 1e-30f, 3e38f, 1e-38f, 1e-40f};
    for (float size : sizes) {
        std::vector<float> x = random_values(16 * 16, 0.1f, 32);
        for (float &value : x) { value = rounded(value * size); }
        x[77] = rounded(-size);
        for (float &value : x) { value = fabsf(value) > fabsf(x[77]) ? 0.0f : value; }
        check_quantize(t, format("amax %g", size), x, 16, 16);
    }
    check_quantize(t, "zeros", std::vector<float>(16 * 16, 0.0f), 16, 16);
}

// A NaN or an infinity anywhere is in the inverse, and so in everything that is computed from the tensor.
TEST(test_fp8_not_finite) {
    for (float value : {NAN, INFINITY, -INFINITY}) {
        std::vector<float> x = random_values(40 * 32, 1.0f, 33);
        x[700] = value;
        Fp8Tensor<fp8e4> tensor(x, 40, 32);
        tensor.quantize();
        float inverse = tensor.scale.raw()[0].inverse;
        CHECK(t, isnan(inverse), "inverse %g of a tensor with %g", inverse, value);
    }
}

// Only one of the two may be wanted, and the other's memory is left alone. amax joins the amax before it.
TEST(test_fp8_one_of_two) {
    const int64_t rows = 70;
    const int cols = 144;
    std::vector<float> x = fp8_inputs(rows * cols, 2.0f, 34);
    Fp8Tensor<fp8e5> both(x, rows, cols), one(x, rows, cols), other(x, rows, cols);
    both.quantize();
    fp8_amax(one.scale.data, one.x.data, rows * cols, 0), fp8_amax(other.scale.data, other.x.data, rows * cols, 0);
    fp8_quantize(one.codes(), (fp8e5 *)NULL, one.scale.data, one.x.data, rows, cols, 0);
    fp8_quantize((fp8e5 *)NULL, other.transposed(), other.scale.data, other.x.data, rows, cols, 0);
    CHECK(t, one.q.hash() == both.q.hash() && other.q_t.hash() == both.q_t.hash(), "alone they have other bits");
    DeviceArray<floatX> small(std::vector<float>(8, 0.5f));
    fp8_amax(one.scale.data, small.data, 8, 0);
    CHECK(t, one.scale.raw()[0].amax == both.scale.raw()[0].amax, "a smaller tensor changes amax");
}

// More than a block: the first and the last value, and one that a thread's later loads bring.
TEST(test_fp8_amax_of_many) {
    const int64_t n = ((int64_t)3 * FP8_AMAX_LOADS + 1) * FP8_AMAX_BLOCK * x128::size + 8;
    DeviceArray<floatX> x(n);
    DeviceArray<Fp8Scale> scale(1);
    x.clear();
    float size = 1.0f, amax;
    for (int64_t place : {(int64_t)0, n - 1, n / 2 + 5}) {
        floatX value;
        floatX_from_host(&value, -(size *= 2.0f));
        x.put(value, place), scale.clear();
        fp8_amax(scale.data, x.data, n, 0);
        memcpy(&amax, &scale.raw()[0].amax, sizeof(amax));
        CHECK(t, amax == size, "amax %g with %g at %lld", amax, -size, (long long)place);
    }
}

// GELU in 8 bits without its bf16: the bits of the plain way.
TEST(test_fp8_gelu) {
    for (const Fp8Shape &s : fp8_shapes) {
        std::vector<float> x = random_values(s.rows * s.cols, 2.0f, 35);
        Fp8Tensor<fp8e4> fused(x, s.rows, s.cols), plain(x, s.rows, s.cols);
        fp8_amax<GeluOfPack>(fused.scale.data, fused.x.data, s.rows * s.cols, 0);
        fp8_quantize<fp8e4, GeluOfPack>(fused.codes(), fused.transposed(), fused.scale.data, fused.x.data, s.rows,
                                        s.cols, 0);
        gelu_forward(plain.x.data, plain.x.data, s.rows * s.cols, 0);
        plain.quantize();
        CHECK(t, fused.hash() == plain.hash(), "%d x %d: other bits", (int)s.rows, s.cols);
    }
}

// ---- The linear layer ----

#ifndef PRECISION_FP32

#define NEEDS_FP8(t)                                                                                                   \
    if (!gpu_has_fp8()) { SKIP(t, "this GPU does not multiply 8-bit numbers"); }

static const MatmulShape fp8_matmul_shapes[] = {
    {1, 64, 192}, {35, 48, 16}, {65, 80, 144}, {33, 192, 320}, {64, 320, 64}};

// A layer of quantised tensors with its results. The gradient is small, as a training step's is.
struct Fp8Layer {
    MatmulShape shape;
    Fp8Tensor<fp8e4> inp, weight;
    Fp8Tensor<fp8e5> dout;
    DeviceArray<floatX> bias, out, dinp;
    DeviceArray<float> dweight;

    explicit Fp8Layer(MatmulShape s, float size = 1.0f)
        : shape(s), inp(fp8_inputs(s.N * s.C, size, 37), s.N, s.C),
          weight(fp8_inputs((int64_t)s.OC * s.C, 0.02f, 38), s.OC, s.C),
          dout(fp8_inputs(s.N * s.OC, 1e-6f, 39), s.N, s.OC), bias(random_values(s.OC, 1.0f, 3)),
          out(fp8_padded_rows(s.N) * s.OC), dinp(fp8_padded_rows(s.N) * s.C), dweight((int64_t)s.OC * s.C) {
        inp.quantize(), weight.quantize(), dout.quantize();
    }

    std::string name(const char *what) const {
        return format("%s of %d, %d, %d", what, (int)shape.N, shape.C, shape.OC);
    }
    // Its products read the 8-bit copies.
    Linear linear(bool with_bias) {
        Linear l = {shape.C, shape.OC, NULL, with_bias ? bias.data : NULL, dweight.data};
        l.fp8.on = true;
        l.fp8.inp = inp.codes(), l.fp8.inp_t = inp.transposed(), l.fp8.inp_scale = inp.scale.data;
        l.fp8.weight = weight.codes(), l.fp8.weight_t = weight.transposed(), l.fp8.weight_scale = weight.scale.data;
        l.fp8.dout = dout.codes(), l.fp8.dout_t = dout.transposed(), l.fp8.dout_scale = dout.scale.data;
        return l;
    }
    // The first N rows of a result, without its padding.
    std::vector<float> rows_of(const DeviceArray<floatX> &result, int width) const {
        std::vector<float> values = result.get();
        values.resize((size_t)(shape.N * width));
        return values;
    }
    std::vector<float> forward(CublasContext *context, bool with_bias) {
        out.poison();
        linear_forward(context, linear(with_bias), out.data, NULL, NULL, shape.N, 0);
        return rows_of(out, shape.OC);
    }
    std::vector<float> backward_input(CublasContext *context) {
        dinp.poison();
        linear_backward_input(context, linear(false), dinp.data, NULL, NULL, shape.N, 0);
        return rows_of(dinp, shape.C);
    }
    // Added to `before` in each place.
    std::vector<float> backward_weight(CublasContext *context, float before) {
        dweight.set(std::vector<float>((size_t)dweight.count, before));
        linear_backward_weight(context, linear(false), NULL, NULL, shape.N, 0);
        return dweight.get();
    }
};

// What the K products of a sum may be off by, for sums of the size of `want`. The emulator's are fp32; the tensor cores
// keep 13 bits behind the point of the largest number that they add, 16 or 32 products at a time.
static inline double fp8_tolerance(int64_t K, const std::vector<float> &want) {
#ifdef GPT2_EMU
    return 4.0 * sum_tolerance(K) * largest(want);
#else
    return (2.0 + (double)K / 16.0) * ldexp(1.0, -13) * largest(want);
#endif
}

// sums[i * n + j] = sum over k of a[i * a_row + k * a_k] b[j * b_row + k * b_k].
static inline std::vector<float> fp8_products(const std::vector<double> &a, int64_t m, int64_t a_row, int64_t a_k,
                                              const std::vector<double> &b, int64_t n, int64_t b_row, int64_t b_k,
                                              int64_t K) {
    std::vector<float> sums;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < K; k++) {
                sum += a[(size_t)(i * a_row + k * a_k)] * b[(size_t)(j * b_row + k * b_k)];
            }
            sums.push_back((float)sum);
        }
    }
    return sums;
}

// Compares out with and without the bias, dinp and dweight.
TEST(test_fp8_products) {
    NEEDS_FP8(t);
    MatmulContext m;
    for (const MatmulShape &s : fp8_matmul_shapes) {
        Fp8Layer l(s);
        std::vector<float> bias = l.bias.get();
        std::vector<double> inp = l.inp.values(), weight = l.weight.values(), dout = l.dout.values();
        std::vector<float> want = fp8_products(inp, s.N, s.C, 1, weight, s.OC, s.C, 1, s.C);
        double tolerance = fp8_tolerance(s.C, want);
        check_values(t, l.name("out without bias"), l.forward(&m.context, false), want, tolerance, matmul_rounding);
        for (size_t i = 0; i < want.size(); i++) { want[i] += bias[i % (size_t)s.OC]; }
        tolerance += FLT_EPSILON * largest(bias);
        check_values(t, l.name("out"), l.forward(&m.context, true), want, tolerance, matmul_rounding);
        want = fp8_products(dout, s.N, s.OC, 1, weight, s.C, 1, s.C, s.OC);
        check_values(t, l.name("dinp"), l.backward_input(&m.context), want, fp8_tolerance(s.OC, want), matmul_rounding);
        want = fp8_products(dout, s.OC, 1, s.OC, inp, s.C, 1, s.C, s.N);
        tolerance = fp8_tolerance(s.N, want) + FLT_EPSILON * (largest(want) + 1e-5);
        for (float &value : want) { value += 1e-5f; }
        check_values(t, l.name("dweight"), l.backward_weight(&m.context, 1e-5f), want, tolerance, FLT_EPSILON);
    }
}

// One plan for all layers of a shape: the scales are those of the call. Formats and the speed of the sums make plans of
// their own.
TEST(test_fp8_plans) {
    NEEDS_FP8(t);
    const MatmulShape s = {48, 48, 48};
    MatmulContext m;
    Fp8Layer l(s), larger(s, 64.0f);
    for (int repeat = 0; repeat < 2; repeat++) {
        std::vector<float> want = l.forward(&m.context, false);
        for (float &value : want) { value *= 64.0f; }
        check_equal(t, "64 times the input", larger.forward(&m.context, false), want);
        l.backward_input(&m.context);
        linear_forward(&m.context, {s.C, s.OC, l.weight.x.data, NULL}, l.out.data, NULL, l.inp.x.data, s.N, 0);
        CHECK(t, m.context.plan_count == 3, "3 problems, the heuristic was asked %lld times",
              (long long)m.context.plan_count);
    }
}

// What was not finite before quantising is NaN behind the product, even of zeros.
TEST(test_fp8_nan_arrives) {
    NEEDS_FP8(t);
    MatmulContext m;
    Fp8Layer l({20, 32, 16});
    std::vector<float> x(20 * 32, 0.0f);
    x[5] = INFINITY;
    l.inp.x.set(x), l.inp.clear(), l.inp.quantize();
    int finite = 0;
    for (float value : l.forward(&m.context, false)) { finite += !isnan(value); }
    CHECK(t, finite == 0, "%d values are not NaN", finite);
}

TEST(test_fp8_matmul_schedules) {
    NEEDS_FP8(t);
    MatmulContext m;
    Fp8Layer l({300, 80, 272});
    for_each_schedule(t, "matmul fp8", [&] {
        return hash_of(l.forward(&m.context, true)) ^ 3 * hash_of(l.backward_input(&m.context)) ^
               5 * hash_of(l.backward_weight(&m.context, 0.0f));
    });
}

#endif // PRECISION_FP32

TEST(test_fp8_schedules) {
    const int64_t rows = 300;
    const int cols = 272;
    std::vector<float> x = fp8_inputs(rows * cols, 1.0f, 40);
    Fp8Tensor<fp8e4> weights(x, rows, cols);
    Fp8Tensor<fp8e5> gradients(x, rows, cols);
    for_each_schedule(t, "fp8_quantize", [&] { // no bit of it depends on the machine
        weights.clear(), gradients.clear();
        weights.quantize(), gradients.quantize();
        return weights.hash() ^ (3 * gradients.hash());
    });
}

#endif // KERNELS_FP8_CUH
