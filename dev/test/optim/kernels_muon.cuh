// Tests of llmc/optim/muon.cuh.
#ifndef KERNELS_MUON_CUH
#define KERNELS_MUON_CUH

#include "llmc/optim/muon.cuh"
#include "dev/test/layers/gpu_test.h"
#include "dev/test/layers/kernels_matmul.cuh"
#include "dev/test/optim/kernels_update.cuh"

// ---- The momentum and the step ----

// A part of n elements. It begins `lead` elements after an aligned address, in array number `odd` one element later (0:
// params, 1: master and m, 2: grads, 3: update; -1: none).
struct MuonShape {
    int64_t n, lead;
    bool with_master;
    int odd = -1;
};

static const MuonShape muon_shapes[] = {{1024, 0, false},  {2051, 0, true}, {1031, 1, false},  {7, 3, true},
                                        {4, 4, true},      {0, 0, true},    {64, 0, false, 0}, {64, 0, false, 1},
                                        {64, 0, false, 2}, {64, 0, true, 3}};

struct MuonArrays {
    MuonShape shape;
    DeviceArray<floatX> params, update;
    DeviceArray<float> master, m, grads;
    MuonFactors factors = {0.02f, 0.9f, 0.1f, rounding_key(TEST_SEED, 3)};
    DeviceArray<StepResult> result;

    MuonArrays(MuonShape s, int32_t stopped)
        : shape(s), params(random_values(count(), 0.5f, 51)), update(random_values(count(), 1.0f, 52)),
          master(float_values(count(), 0.5f, 53)), m(float_values(count(), 0.1f, 54)),
          grads(float_values(count(), 0.1f, 55)), result(1) {
        StepResult step = step_goes_on;
        step.grad_scale = 0.37f, step.stopped = stopped;
        result.put(step);
    }
    int64_t count() const { return shape.lead + shape.n + 9; }
    size_t place(int array, int64_t i) const { return (size_t)(shape.lead + (array == shape.odd) + i); }
    UpdatePart part() const {
        floatX *w = params.data + place(0, 0), *step = update.data + place(3, 0);
        float *own = shape.with_master ? master.data + place(1, 0) : NULL, *state = m.data + place(1, 0);
        return {w, own, state, NULL, grads.data + place(2, 0), step, shape.n, 0, 1000};
    }
    std::string name() const {
        return format("%lld elements, lead %lld, odd %d", (long long)shape.n, (long long)shape.lead, shape.odd);
    }
};

// Both sides round each operation alike, so their bits are equal. What lies around the part stays. Gradients of a step
// that has stopped may be NaN. They reach neither m nor the rounds.
static void check_muon_momentum(Test *t, const MuonShape &shape, int32_t stopped) {
    MuonArrays a(shape, stopped);
    if (stopped) { a.grads.poison(); }
    std::vector<float> m = a.m.get(), update = a.update.get(), grads = a.grads.get();
    for (int64_t i = 0; i < shape.n; i++) {
        float g = 0.37f * grads[a.place(2, i)], *state = &m[a.place(1, i)];
        if (!stopped) { *state = fmaf(0.9f, *state, g); }
        update[a.place(3, i)] = stopped ? 0.0f : rounded(fmaf(0.9f, *state, g));
    }
    muon_momentum(a.part(), a.factors, a.result.data, 0);
    check_equal(t, "m of " + a.name(), a.m.get(), m);
    check_equal(t, "update of " + a.name(), a.update.get(), update);
}

// params_from_master says what a parameter becomes that is rounded with the element's index in the model.
static void check_muon_apply(Test *t, const MuonShape &shape, int32_t stopped) {
    MuonArrays a(shape, stopped);
    DeviceArray<floatX> params(a.params.get());
    std::vector<float> update = a.update.get(), old_params = a.params.get(), master = a.master.get();
    std::vector<float> moved;
    for (int64_t i = 0; i < shape.n && !stopped; i++) {
        float *w = &(shape.with_master ? master[a.place(1, i)] : old_params[a.place(0, i)]);
        moved.push_back(fmaf(-0.02f, fmaf(0.1f, *w, update[a.place(3, i)]), *w));
        *w = moved.back();
    }
    DeviceArray<float> exact(moved);
    params_from_master(params.data + a.place(0, 0), exact.data, (int64_t)moved.size(), a.part().first_index,
                       rounding_key(TEST_SEED, 3), true, 0);
    muon_apply(a.part(), a.factors, a.result.data, 0);
    check_equal(t, "params of " + a.name(), a.params.get(), params.get());
    check_equal(t, "master of " + a.name(), a.master.get(), master);
}

// A momentum in bf16 is that of fp32, rounded at random. The update is that of fp32.
TEST(test_muon_narrow_momentum) {
    for (const MuonShape &shape : muon_shapes) {
        MuonArrays a(shape, STEP_GOES_ON), narrow(shape, STEP_GOES_ON);
        DeviceArray<floatX> m(a.count());
        m.set(a.m.get());
        a.m.set(m.get());
        UpdatePart part = narrow.part();
        part.m = NULL, part.m16 = m.data + a.place(1, 0);
        muon_momentum(part, narrow.factors, narrow.result.data, 0);
        muon_momentum(a.part(), a.factors, a.result.data, 0);
        std::vector<float> want = a.m.get();
        for (int64_t i = 0; i < shape.n; i++) {
            float *x = &want[a.place(1, i)];
            *x = rounded_by(*x, a.factors.key + 1, (uint64_t)(1000 + i));
        }
        check_equal(t, "m in bf16 of " + a.name(), m.get(), want);
        check_equal(t, "update of " + a.name(), narrow.update.get(), a.update.get());
    }
}

TEST(test_muon_momentum_and_step) {
    for (const MuonShape &shape : muon_shapes) {
        for (int32_t stopped : {STEP_GOES_ON, STEP_LOSS_NOT_FINITE}) {
            check_muon_momentum(t, shape, stopped);
            check_muon_apply(t, shape, stopped);
        }
    }
}

TEST(test_muon_strips) {
    check_all_strips(t, [](UpdatePart part, const StepResult *result) {
        MuonFactors factors = {0.02f, 0.9f, 0.1f, rounding_key(TEST_SEED, 3)};
        DeviceArray<floatX> update(part.n);
        part.update = update.data;
        muon_momentum(part, factors, result, 0);
        muon_apply(part, factors, result, 0);
    });
}

// ---- NS5 ----

// More elements than all blocks of a matrix take at once, and a few. Each value is rounded, so the norm is off by at
// most half of FLOATX_EPSILON. A block's stretch that is missing counts 1/64 of the squares.
TEST(test_muon_normalize) {
    const int64_t count = 2, at_once = MUON_NORM_BLOCKS * MUON_BLOCK * x128::size;
    const std::vector<std::pair<int64_t, float>> cases = {{at_once, 3.0f}, {at_once + 64, 0x1p-16f}, {64, 0x1p40f}};
    for (auto [n, size] : cases) {
        DeviceArray<floatX> x(random_values(count * n, size, 56)), out(count * n);
        DeviceArray<double> partials(count * MUON_NORM_BLOCKS);
        muon_normalize(out.data, x.data, partials.data, {n / 8, 8, n, count}, 0);
        std::vector<float> values = out.get();
        for (int64_t i = 0; i < count; i++) {
            double squares = 0.0;
            for (int64_t k = 0; k < n; k++) { squares += pow((double)values[(size_t)(i * n + k)], 2.0); }
            CHECK(t, fabs(sqrt(squares) - 1.0) <= 0.5 * FLOATX_EPSILON + FLT_EPSILON, "%lld elements: norm %.9g",
                  (long long)n, sqrt(squares));
        }
    }
}

// A matrix by rows, in double.
struct Matrix64 {
    int64_t rows, cols;
    std::vector<double> values;

    Matrix64(int64_t rows, int64_t cols) : rows(rows), cols(cols), values((size_t)(rows * cols)) {}
    double *row(int64_t i) { return values.data() + i * cols; }
    const double *row(int64_t i) const { return values.data() + i * cols; }
    Matrix64 transposed() const {
        Matrix64 t(cols, rows);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < cols; j++) { t.row(j)[i] = row(i)[j]; }
        }
        return t;
    }
    double norm() const { return distance(Matrix64(rows, cols)); }
    double distance(const Matrix64 &other) const { // Frobenius
        double sum = 0.0;
        for (size_t i = 0; i < values.size(); i++) {
            sum += (values[i] - other.values[i]) * (values[i] - other.values[i]);
        }
        return sqrt(sum);
    }
    double largest() const {
        double most = 0.0;
        for (double x : values) { most = fmax(most, fabs(x)); }
        return most;
    }
};

// The emulator need not check these millions of accesses of the host.
__attribute__((no_sanitize("thread"))) static Matrix64 product(const Matrix64 &a, const Matrix64 &b) {
    Matrix64 c(a.rows, b.cols);
    for (int64_t i = 0; i < a.rows; i++) {
        for (int64_t k = 0; k < a.cols; k++) {
            double factor = a.row(i)[k], *to = c.row(i);
            const double *from = b.row(k);
            for (int64_t j = 0; j < b.cols; j++) { to[j] += factor * from[j]; }
        }
    }
    return c;
}

// alpha x + beta y. y may be x.
static Matrix64 combined(double alpha, const Matrix64 &x, double beta, const Matrix64 &y) {
    Matrix64 sum = x;
    for (size_t i = 0; i < x.values.size(); i++) { sum.values[i] = alpha * x.values[i] + beta * y.values[i]; }
    return sum;
}

// NS5 with exact sums. Every matrix is rounded to floatX where the GPU stores it. noisy: each sum has a random error of
// the size that a sum in fp32 may have.
struct Ns5 {
    bool noisy;
    uint64_t draws = 0;

    Matrix64 stored(Matrix64 x, int64_t terms) {
        double size = noisy ? sum_tolerance(terms) * x.largest() : 0.0;
        for (double &value : x.values) {
            double random = 2.0 * (double)(rand_u64(99, 7, draws++) >> 11) / (double)(1ull << 53) - 1.0;
            value = (double)rounded((float)(value + random * size));
        }
        return x;
    }
    // x (n, m) with n <= m.
    Matrix64 wide(const Matrix64 &x, double scale) {
        Matrix64 X = stored(combined(1.0 / fmax(x.norm(), (double)MUON_EPSILON), x, 0.0, x), 1);
        for (int round = 1; round <= MUON_ROUNDS; round++) {
            double factor = round == MUON_ROUNDS ? scale : 1.0;
            Matrix64 A = stored(product(X, X.transposed()), x.cols);
            Matrix64 B = stored(combined((double)MUON_B, A, (double)MUON_C, product(A, A)), x.rows);
            X = stored(combined(factor * (double)MUON_A, X, factor, product(B, X)), x.rows);
        }
        return X;
    }
    Matrix64 of(const Matrix64 &x, double scale) {
        return x.rows <= x.cols ? wide(x, scale) : wide(x.transposed(), scale).transposed();
    }
};

struct Ns5Case {
    int64_t rows, cols, count, gap; // gap: between two matrices
    int64_t stride() const { return rows * cols + gap; }
};

static const Ns5Case ns5_cases[] = {
    {8, 8, 1, 0},    {64, 64, 2, 8},          {72, 40, 2, 0},   {40, 72, 3, 64}, {24, 136, 1, 0},
    {136, 24, 1, 0}, {8, 16, MUON_BATCH, 24}, {72, 104, 2, 64}, {104, 72, 2, 8}, {104, 104, 1, 0},
};

static std::vector<float> orthogonalized(const Ns5Case &c, const std::vector<float> &values, float scale) {
    MatmulContext matmul;
    MuonBatch batch = {c.rows, c.cols, c.stride(), c.count};
    DeviceArray<floatX> x(values), scratch(muon_scratch_elements(batch));
    muon_orthogonalize(&matmul.context, x.data, scratch.data, batch, scale, 0);
    return x.get();
}

// Returns matrix i of a batch.
static Matrix64 matrix_of_batch(const Ns5Case &c, const std::vector<float> &values, int64_t i) {
    Matrix64 x(c.rows, c.cols);
    for (size_t k = 0; k < x.values.size(); k++) { x.values[k] = (double)values[(size_t)(i * c.stride()) + k]; }
    return x;
}

// The GPU's result differs from the reference because it sums in fp32. Nearly equal sums may be rounded to neighbours
// in floatX, and the rounds amplify the difference. The reference with noise shows how much: its errors are several
// times those of real sums (sum_tolerance). Twice that is allowed. In a small matrix it may happen that no value of the
// noisy reference changes but one of the GPU's. A round multiplies a difference by at most MUON_A, so 16 units of the
// largest value stand for one value and two rounds.
static void check_ns5(Test *t, const Ns5Case &c, const std::vector<float> &values, float scale) {
    std::vector<float> result = orthogonalized(c, values, scale);
    for (int64_t i = 0; i < c.count; i++) {
        Matrix64 x = matrix_of_batch(c, values, i), got = matrix_of_batch(c, result, i);
        Matrix64 want = Ns5{false}.of(x, (double)scale), noisy = Ns5{true}.of(x, (double)scale);
        double tolerance = 2.0 * want.distance(noisy) + 16.0 * FLOATX_EPSILON * want.largest();
        double error = got.distance(want);
        CHECK(t, error <= tolerance, "matrix %lld of %lld (%lld, %lld): off by %g of %g, tolerance %g", (long long)i,
              (long long)c.count, (long long)c.rows, (long long)c.cols, error, want.norm(), tolerance);
        for (int64_t k = i * c.stride() + c.rows * c.cols; k < (i + 1) * c.stride(); k++) {
            CHECK(t, result[(size_t)k] == values[(size_t)k], "element %lld behind matrix %lld changed", (long long)k,
                  (long long)i);
        }
    }
}

TEST(test_ns5_matches_reference) {
    for (const Ns5Case &c : ns5_cases) { check_ns5(t, c, random_values(c.count * c.stride(), 0.3f, 61), 0.7f); }
}

// A gradient of zeros has no direction. It leaves no trace in the matrices beside it.
TEST(test_ns5_of_zeros) {
    const Ns5Case c = {16, 24, 3, 0};
    std::vector<float> values = random_values(c.count * c.rows * c.cols, 0.3f, 62);
    for (int64_t i = 0; i < c.rows * c.cols; i++) { values[(size_t)(c.rows * c.cols + i)] = 0.0f; }
    check_ns5(t, c, values, 1.0f);
    CHECK(t, matrix_of_batch(c, orthogonalized(c, values, 1.0f), 1).largest() == 0.0, "zeros became something else");
}

TEST(test_ns5_schedules) {
    const Ns5Case c = {72, 104, 2, 32};
    std::vector<float> values = random_values(c.count * c.stride(), 0.3f, 64);
    for_each_schedule(t, "muon", [&] { return hash_of(orthogonalized(c, values, 0.7f)); });
}

#endif // KERNELS_MUON_CUH
