// Tests of llmc/optim/global_norm.cuh and llmc/optim/adamw.cuh.
#ifndef KERNELS_UPDATE_CUH
#define KERNELS_UPDATE_CUH

#include "llmc/optim/adamw.cuh"
#include "llmc/optim/global_norm.cuh"
#include "dev/test/layers/gpu_test.h"

// ---- What both parts share ----

static const StepResult step_goes_on = {0.0, 0.0, 1.0f, STEP_GOES_ON, 0, 0};

// Normal numbers that use all bits of a float, unlike those of random_values in bf16.
static std::vector<float> float_values(int64_t n, float scale, int stream) {
    std::vector<float> values = random_values(n, scale, stream), more = random_values(n, 0.01f * scale, stream + 1000);
    for (size_t i = 0; i < values.size(); i++) { values[i] += more[i] / 3.0f; }
    return values;
}

// ---- Global norm ----

// The result of one step with these gradients and this sum of losses, after `before`.
static StepResult norm_result(const std::vector<float> &grads, double loss_sum, float grad_clip,
                              StepResult before = step_goes_on) {
    int64_t n = (int64_t)grads.size();
    DeviceArray<float> device(grads);
    DeviceArray<double> partials(global_norm_scratch_doubles(n)), sum(1);
    DeviceArray<uint64_t> checksum(1);
    DeviceArray<StepResult> result(1);
    DeviceArray<StepRecord> record(1);
    checksum.put(0), sum.put(loss_sum), result.put(before);
    global_norm_squared(partials.data, device.data, n, 0);
    step_record(record.data, partials.data, global_norm_scratch_doubles(n), sum.data, 0, checksum.data, 0, 0);
    step_finish(result.data, record.data, 1, 0.5, grad_clip, 0);
    return result.raw()[0];
}

// Sizes around a warp, a block and the span of a block; the last element counts as much as all before it.
TEST(test_norm_matches_host) {
    for (int64_t n : {1, 3, 31, 2047, 2049, GLOBAL_NORM_SPAN - 1, GLOBAL_NORM_SPAN, GLOBAL_NORM_SPAN + 1, 1048579}) {
        std::vector<float> grads = float_values(n, 0.1f, 11);
        grads[(size_t)(n - 1)] = 0.1f * sqrtf((float)n);
        double squares = 0.0, got = norm_result(grads, 1.0, 0.0f).norm;
        for (float g : grads) { squares += (double)g * (double)g; }
        double want = sqrt(squares);
        CHECK(t, fabs(got - want) <= want * 4.0 * sqrt((double)n) * DBL_EPSILON, "%lld gradients: norm %.17g, %.17g",
              (long long)n, got, want);
    }
}

TEST(test_norm_schedules) {
    std::vector<float> grads = float_values(3 * GLOBAL_NORM_SPAN + 777, 1.0f, 12);
    for_each_schedule(t, "global norm", [&] {
        StepResult result = norm_result(grads, 3.0, 1.0f);
        double numbers[] = {result.norm, (double)result.grad_scale};
        return hash64(numbers, sizeof(numbers));
    });
}

// One step: what it is given, and what must come of it.
struct NormCase {
    const char *name;
    std::vector<float> grads;
    double loss_sum;
    float grad_clip;
    int32_t stopped_before, stopped;
    double norm;      // NAN: any that is not finite
    float grad_scale; // NAN: not compared, for the update is not made
};

static const double norm_of_1000 = 0.25 * sqrt(1000.0); // 7.9
static const std::vector<float> quarters(1000, 0.25f);

// A large gradient is an update when clipped, and the end when not: AdamW's v could not hold its square. The loss is
// named when both are bad. The first reason stays, through good steps and through bad ones.
static const NormCase norm_cases[] = {
    {"no clipping", quarters, 6.5, 0.0f, STEP_GOES_ON, STEP_GOES_ON, norm_of_1000, 1.0f},
    {"below the limit", quarters, 6.5, 8.0f, STEP_GOES_ON, STEP_GOES_ON, norm_of_1000, 1.0f},
    {"clipped", quarters, 6.5, 1.0f, STEP_GOES_ON, STEP_GOES_ON, norm_of_1000, (float)(1.0 / norm_of_1000)},
    {"zeros", {0.0f}, 6.5, 1.0f, STEP_GOES_ON, STEP_GOES_ON, 0.0, 1.0f},
    {"large and clipped", {1e19f}, 1.0, 1.0f, STEP_GOES_ON, STEP_GOES_ON, (double)1e19f, (float)(1.0 / (double)1e19f)},
    {"large", {1e19f}, 1.0, 0.0f, STEP_GOES_ON, STEP_NORM_UNUSABLE, (double)1e19f, NAN},
    {"not too large", {9e17f}, 1.0, 0.0f, STEP_GOES_ON, STEP_GOES_ON, (double)9e17f, 1.0f},
    {"whose square would vanish in fp32", {1e-30f}, 1.0, 1.0f, STEP_GOES_ON, STEP_GOES_ON, (double)1e-30f, 1.0f},
    {"norm NaN", {0.25f, NAN}, 1.0, 1.0f, STEP_GOES_ON, STEP_NORM_UNUSABLE, NAN, NAN},
    {"norm inf", {-INFINITY, 0.25f}, 1.0, 1.0f, STEP_GOES_ON, STEP_NORM_UNUSABLE, NAN, NAN},
    {"loss NaN", {0.25f}, NAN, 1.0f, STEP_GOES_ON, STEP_LOSS_NOT_FINITE, 0.25, NAN},
    {"loss -inf", {0.25f}, -INFINITY, 1.0f, STEP_GOES_ON, STEP_LOSS_NOT_FINITE, 0.25, NAN},
    {"loss and norm inf", {INFINITY}, INFINITY, 1.0f, STEP_GOES_ON, STEP_LOSS_NOT_FINITE, NAN, NAN},
    {"good after a loss", {0.25f}, 1.0, 1.0f, STEP_LOSS_NOT_FINITE, STEP_LOSS_NOT_FINITE, 0.25, NAN},
    {"bad after a norm", {0.25f}, NAN, 1.0f, STEP_NORM_UNUSABLE, STEP_NORM_UNUSABLE, 0.25, NAN},
};

TEST(test_norm_cases) {
    for (const NormCase &c : norm_cases) {
        StepResult before = {1.0, 1.0, 1.0f, c.stopped_before, 0, 0};
        StepResult got = norm_result(c.grads, c.loss_sum, c.grad_clip, before);
        bool same_norm = isnan(c.norm) ? !isfinite(got.norm) : fabs(got.norm - c.norm) <= 1e-13 * c.norm;
        CHECK(t, got.stopped == c.stopped, "%s: stopped %d, expected %d", c.name, got.stopped, c.stopped);
        CHECK(t, same_norm, "%s: norm %.17g, expected %.17g", c.name, got.norm, c.norm);
        CHECK(t, isnan(c.grad_scale) || got.grad_scale == c.grad_scale, "%s: scale %.9g, expected %.9g", c.name,
              (double)got.grad_scale, (double)c.grad_scale);
        CHECK(t, isfinite(c.loss_sum) ? got.loss == 0.5 * c.loss_sum : !isfinite(got.loss), "%s: loss %g", c.name,
              got.loss);
    }
}

// Three GPUs, each with its part of the gradient: the norm of the whole, the sum of the losses, and whether any process
// was asked to stop; a bad part spoils the whole.
TEST(test_records_of_several) {
    const StepRecord records[] = {{1.5, 4.0, 0, 77, 0}, {2.0, 9.0, 0, 77, 0}, {0.5, 36.0, 0, 77, 0}};
    std::vector<StepRecord> good(records, records + 3), asked = good, no_loss = good, no_norm = good, odd = good;
    asked[2].wants_to_end = 1, no_loss[1].loss_sum = NAN, no_norm[2].squares = INFINITY, odd[2].checksum = 78;
    auto finish = [](const std::vector<StepRecord> &list) {
        DeviceArray<StepResult> result(1);
        DeviceArray<StepRecord> device((int64_t)list.size());
        for (size_t i = 0; i < list.size(); i++) { device.put(list[i], (int64_t)i); }
        result.put(step_goes_on);
        step_finish(result.data, device.data, (int)list.size(), 0.25, 3.5f, 0);
        return result.raw()[0];
    };
    StepResult whole = finish(good), differs = finish(odd), without = finish(no_loss);
    CHECK(t, whole.loss == 1.0 && whole.norm == 7.0 && whole.grad_scale == 0.5f && whole.stopped == STEP_GOES_ON,
          "loss %g, norm %g, scale %g, stopped %d", whole.loss, whole.norm, whole.grad_scale, whole.stopped);
    CHECK(t, whole.wants_to_end == 0 && finish(asked).wants_to_end == 1, "a wish to stop is lost or made up");
    CHECK(t, whole.odd_one == 0 && differs.stopped == STEP_WEIGHTS_DIFFER && differs.odd_one == 2,
          "weights may differ");
    CHECK(t, without.stopped == STEP_LOSS_NOT_FINITE && without.odd_one == 1, "a NaN loss goes on, or is another's");
    CHECK(t, finish(no_norm).stopped == STEP_NORM_UNUSABLE, "an infinite norm of one GPU goes on");
    // Two parts of a model, each on two GPUs, which take turns.
    const StepRecord parts[] = {{1, 1, 0, 77, 0}, {1, 1, 0, 88, 1}, {1, 1, 0, 77, 0}, {1, 1, 0, 88, 1}};
    std::vector<StepRecord> equal(parts, parts + 4), other = equal;
    other[3].checksum = 77;
    CHECK(t, finish(equal).odd_one == 0 && finish(equal).stopped == STEP_GOES_ON && finish(other).odd_one == 3,
          "the weights of a GPU are compared with another part's");
}

// ---- AdamW ----

#define TEST_SEED 77

static AdamWFactors adamw_step(int64_t update, float lr = 0.01f) {
    return adamw_factors(lr, 0.9f, 0.95f, 1e-8f, 0.1f, update, rounding_key(TEST_SEED, update));
}

static void adamw_with(const UpdatePart &part, const AdamWFactors &values, const StepResult *result,
                       int block_size = UPDATE_BLOCK) {
    adamw_update(part, values, result, 0, block_size);
    cuda_check(cudaDeviceSynchronize());
}

// A tensor with everything that belongs to it; m and v as after many updates.
struct UpdateArrays {
    DeviceArray<floatX> params;
    DeviceArray<float> master, m, v, grads;
    DeviceArray<StepResult> result;

    explicit UpdateArrays(int64_t n)
        : params(n), master(float_values(n, 0.5f, 21)), m(float_values(n, 0.1f, 22)), v(n), grads(n), result(1) {
        std::vector<float> squares = float_values(n, 0.1f, 23);
        for (float &x : squares) { x *= x; }
        v.set(squares);
        params.set(random_values(n, 0.5f, 24));
        set_grads(1);
        result.put(step_goes_on);
    }
    void set_grads(int64_t update) { grads.set(float_values(grads.count, 0.1f, 30 + (int)update)); }
    void update(int64_t number, bool with_master = true, int block_size = UPDATE_BLOCK) {
        adamw_with(part(0, params.count, 0, with_master), adamw_step(number), result.data, block_size);
    }
    // Elements begin .. begin + n - 1, whose first is element `index` of the model.
    UpdatePart part(int64_t begin, int64_t n, int64_t index, bool with_master = true) const {
        float *own = with_master ? master.data + begin : NULL;
        return {params.data + begin, own, m.data + begin, v.data + begin, grads.data + begin, NULL, n, n, index};
    }
    uint64_t hash() const {
        uint64_t hashes[] = {params.hash(), master.hash(), m.hash(), v.hash()};
        return hash64(hashes, sizeof(hashes));
    }
};

// x rounded at random, by the definition: what lies k/65536 of the way between two neighbours goes up for exactly k of
// the 65536 draws. What floatX holds exactly stays.
static float rounded_by(float x, uint64_t key, uint64_t index) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (sizeof(floatX) < sizeof(float)) { bits = (bits + (rounding_bits(key, index) & 0xffffu)) & 0xffff0000u; }
    memcpy(&x, &bits, sizeof(bits));
    return x;
}

// The CPU's update of these arrays.
struct UpdateExpected {
    std::vector<float> w, m, v;

    explicit UpdateExpected(const UpdateArrays &arrays, bool with_master = true)
        : w(with_master ? arrays.master.get() : arrays.params.get()), m(arrays.m.get()), v(arrays.v.get()) {}
    void update(const UpdateArrays &arrays, int64_t number, float grad_scale) {
        AdamWFactors step = adamw_step(number);
        std::vector<float> grads = arrays.grads.get();
        cpu_adamw(w.data(), m.data(), v.data(), grads.data(), (int64_t)w.size(), step.lr, step.beta1, step.beta2,
                  step.epsilon, 0.1f, grad_scale, number);
    }
    // After `updates` updates from number 1 on, with lr 0.01. m is a sum of terms of either sign, each within half an
    // epsilon or so of |g| or |m| (at most 1 here). The step m / (1-beta1^t) / sqrt(v / (1-beta2^t)) has that error up
    // to 10 times over a square root of v that is at least |g| / sqrt(20 t): some 300 epsilons at t = 5, times lr.
    void check(Test *t, const std::string &what, const UpdateArrays &arrays, int updates, bool with_master) const {
        double epsilons = 4.0 * updates * FLT_EPSILON, step_error = 0.01 * 500.0 * FLT_EPSILON;
        check_values(t, what + " m", arrays.m.get(), m, epsilons, epsilons);
        check_values(t, what + " v", arrays.v.get(), v, 0.0, epsilons);
        if (with_master) {
            check_values(t, what + " master", arrays.master.get(), w, step_error, epsilons);
            std::vector<float> params = arrays.master.get();
            uint64_t key = adamw_step(updates).key;
            for (size_t i = 0; i < params.size(); i++) { params[i] = rounded_by(params[i], key, i); }
            check_equal(t, what + " params", arrays.params.get(), params);
        } else { // rounded once, up or down
            check_values(t, what + " params", arrays.params.get(), w, step_error, epsilons + FLOATX_EPSILON);
        }
    }
};

// Compares `updates` updates of n elements, one after another, with the CPU's. grad_scale: the factor of the gradients.
static void check_adamw(Test *t, int64_t n, int updates, bool with_master, float grad_scale) {
    UpdateArrays arrays(n);
    UpdateExpected expected(arrays, with_master);
    uint64_t master = arrays.master.hash();
    arrays.result.put({0.0, 0.0, grad_scale, STEP_GOES_ON, 0, 0});
    for (int number = 1; number <= updates; number++) {
        arrays.set_grads(number);
        arrays.update(number, with_master);
        expected.update(arrays, number, grad_scale);
    }
    std::string what = format("%lld elements, scale %g", (long long)n, (double)grad_scale);
    expected.check(t, what, arrays, updates, with_master);
    CHECK(t, with_master || arrays.master.hash() == master, "a master copy that was not given was written");
}

TEST(test_adamw_matches_cpu) {
    for (int64_t n : {1, 4, 5, 129, 1023, 1024, 4999}) { check_adamw(t, n, 5, true, 1.0f); }
    for (int64_t n : {7, 1027}) { check_adamw(t, n, 1, false, 1.0f); }
    for (bool with_master : {true, false}) { check_adamw(t, 1027, 1, with_master, 1.0f / 3.0f); }
}

// Moments in bf16 are those of fp32, rounded at random with keys of their own. The weights do not notice.
TEST(test_adamw_narrow_moments) {
    const int64_t n = 1027, index = 5001;
    for (bool with_master : {true, false}) {
        UpdateArrays wide(n);
        DeviceArray<floatX> m(n), v(n);
        m.set(wide.m.get()), v.set(wide.v.get());
        wide.m.set(m.get()), wide.v.set(v.get());
        UpdateArrays narrow(n);
        UpdatePart part = narrow.part(0, n, index, with_master);
        part.m = part.v = NULL, part.m16 = m.data, part.v16 = v.data;
        adamw_with(part, adamw_step(3), narrow.result.data);
        adamw_with(wide.part(0, n, index, with_master), adamw_step(3), wide.result.data);
        std::vector<float> want_m = wide.m.get(), want_v = wide.v.get();
        uint64_t key = adamw_step(3).key;
        for (size_t i = 0; i < (size_t)n; i++) {
            want_m[i] = rounded_by(want_m[i], key + 1, (uint64_t)index + i);
            want_v[i] = rounded_by(want_v[i], key + 2, (uint64_t)index + i);
        }
        check_values(t, "m in bf16", m.get(), want_m, 0.0, 0.0);
        check_values(t, "v in bf16", v.get(), want_v, 0.0, 0.0);
        CHECK(t, narrow.params.hash() == wide.params.hash() && narrow.master.hash() == wide.master.hash(), "weights");
    }
}

TEST(test_adamw_stopped) {
    for (int32_t reason : {STEP_LOSS_NOT_FINITE, STEP_NORM_UNUSABLE}) {
        UpdateArrays arrays(1027);
        arrays.grads.poison();
        uint64_t before = arrays.hash();
        arrays.result.put({NAN, NAN, 1.0f, reason, 0, 0});
        arrays.update(1, true), arrays.update(1, false);
        CHECK(t, arrays.hash() == before, "reason %d: something was touched", reason);
    }
}

// Replicas: other memory, other block sizes and schedules, same bits.
TEST(test_adamw_replicas) {
    for (bool with_master : {false, true}) {
        UpdateArrays replica(2051);
        replica.update(3, with_master);
        for (int block_size : {32, 96, 256}) {
            for_each_schedule(t, "adamw_update", [&] {
                UpdateArrays arrays(2051);
                arrays.update(3, with_master, block_size);
                CHECK(t, arrays.hash() == replica.hash(), "block size %d: other bits", block_size);
                return arrays.hash();
            });
        }
    }
}

// Elements begin..end-1 of `whole`, which are the elements first + begin.. of a model, updated as a shard. own_v: its v
// is a copy in memory of its own, which begins at another alignment than the parameters.
static void update_shard(UpdateArrays &whole, int64_t begin, int64_t end, int64_t first, bool own_v) {
    UpdatePart part = whole.part(begin, end - begin, first + begin);
    size_t bytes = (size_t)part.n * sizeof(float);
    DeviceArray<float> own(part.n + 1);
    float *v = part.v, *copy = own.data + 1;
    cuda_check(cudaMemcpy(copy, v, bytes, cudaMemcpyDeviceToDevice));
    if (own_v) { part.v = copy; }
    adamw_with(part, adamw_step(4), whole.result.data);
    if (own_v) { cuda_check(cudaMemcpy(v, copy, bytes, cudaMemcpyDeviceToDevice)); }
}

// However a tensor is cut, each element's bits stay what they are; elsewhere in the model they are others.
TEST(test_adamw_shards) {
    const int64_t n = 1037, firsts[] = {0, 8, ((int64_t)5 << 32) + 7};
    const std::vector<int64_t> cuts[] = {{1}, {4, 8, 12}, {5, 6, 518, 1030}, {511, 1033}, {1036}};
    uint64_t at_0 = 0;
    for (int64_t first : firsts) {
        UpdateArrays whole(n);
        update_shard(whole, 0, n, first, false);
        bool same = whole.params.hash() == at_0;
        CHECK(t, !same || sizeof(floatX) == sizeof(float), "first index %lld: the bits of 0", (long long)first);
        if (first == 0) { at_0 = whole.params.hash(); }
        for (const std::vector<int64_t> &cut : cuts) {
            for (bool own_v : {false, true}) {
                UpdateArrays sharded(n);
                int64_t begin = 0;
                for (int64_t end : cut) {
                    update_shard(sharded, begin, end, first, own_v);
                    begin = end;
                }
                update_shard(sharded, begin, n, first, own_v);
                CHECK(t, sharded.hash() == whole.hash(), "first index %lld, cut first at %lld%s: other bits",
                      (long long)first, (long long)cut[0], own_v ? ", own v" : "");
            }
        }
    }
}

// ---- Stochastic rounding ----

// Returns the parameters of elements `index` and behind it, rounded at random or to the nearest.
static std::vector<float> params_of(const std::vector<float> &values, uint64_t key, int64_t index, bool at_random) {
    DeviceArray<float> master(values);
    DeviceArray<floatX> params(master.count);
    params_from_master(params.data, master.data, master.count, index, key, at_random, 0);
    return params.get();
}

// Values of all sizes, at all fractions between two neighbours, to the last bit. Infinities stay. A NaN stays one, even
// if all its bits are in the lower half.
TEST(test_rounding) {
    std::vector<float> values = random_values(1000, 1.0f, 42);
    for (float scale : {1.0f, 1e-30f, 1e30f}) {
        for (float x : float_values(20000, scale, 41)) { values.push_back(x); }
    }
    values.insert(values.end(), {0.0f, -0.0f, FLT_MIN, INFINITY, -INFINITY, rounded(3e38f), 1.0f + FLT_EPSILON});
    for (uint64_t key : {(uint64_t)4242, rounding_key(5, 1), rounding_key(5, 2)}) {
        std::vector<float> got = params_of(values, key, 7, true);
        for (size_t i = 0; i < got.size(); i++) {
            float want = rounded_by(values[i], key, 7 + i);
            CHECK(t, got[i] == want && signbit(got[i]) == signbit(want), "%.9g became %.9g, expected %.9g", values[i],
                  got[i], want);
        }
    }
    std::vector<float> nearest = params_of(values, 0, 0, false);
    for (size_t i = 0; i < nearest.size(); i++) {
        CHECK(t, nearest[i] == rounded(values[i]), "%.9g became %.9g, not its nearest", values[i], nearest[i]);
    }
    uint32_t bits = 0x7f800001u;
    float hidden;
    memcpy(&hidden, &bits, sizeof(bits));
    for (float got : params_of({NAN, -NAN, hidden}, 7, 0, true)) { CHECK(t, isnan(got), "a NaN became %g", got); }
}

// The draws are even: over many elements of one update, and over many updates of one element. The mean of n numbers
// that are even between 0 and 1 has a standard deviation of 1 / sqrt(12 n); 5 times that but once in a million keys.
TEST(test_rounding_draws) {
    const int n = 20000;
    double elements = -0.5 * n, updates = -0.5 * n, most = 5.0 * sqrt(n / 12.0);
    for (int i = 0; i < n; i++) {
        elements += (rounding_bits(99, (uint64_t)i) & 0xffffu) / 65536.0;
        updates += (rounding_bits(rounding_key(5, i), 0) & 0xffffu) / 65536.0;
    }
    CHECK(t, fabs(elements) <= most && fabs(updates) <= most, "sums off by %g over the elements, %g over the updates",
          elements, updates);
}

// Elements without decay have the bits of a step of their own that never decays, wherever the boundary lies.
TEST(test_adamw_decay) {
    const int64_t n = 1037;
    AdamWFactors step = adamw_step(2), undecayed = step;
    undecayed.weight_decay = 0.0f;
    for (int64_t decayed : {-3, 0, 1, 6, 512, 1036, 1037, 2000}) {
        for (bool with_master : {true, false}) {
            UpdateArrays at_once(n), in_two(n);
            int64_t cut = min_i64(max_i64(decayed, 0), n);
            UpdatePart whole = at_once.part(0, n, 9, with_master),
                       rest = in_two.part(cut, n - cut, 9 + cut, with_master);
            whole.decayed = decayed, rest.decayed = 0;
            adamw_with(whole, step, at_once.result.data);
            adamw_with(in_two.part(0, cut, 9, with_master), step, in_two.result.data);
            adamw_with(rest, undecayed, in_two.result.data);
            CHECK(t, at_once.hash() == in_two.hash(), "%lld of %lld decay: other bits", (long long)decayed,
                  (long long)n);
        }
    }
}

// ---- Strips ----

// Cuts the columns of a matrix (rows,cols) at `cut`. update(part, result) updates a part. Each strip is updated in two
// parts, which meet at a row, and must get the bits of its columns in the whole matrix.
template <class Update>
static void check_strips(Test *t, int64_t rows, int64_t cols, int64_t cut, bool with_master, Update update) {
    const int64_t model = 12345;
    UpdateArrays whole(rows * cols), before(rows * cols);
    update(whole.part(0, rows * cols, model, with_master), whole.result.data);
    for (int64_t first : {(int64_t)0, cut}) {
        int64_t width = first == 0 ? cut : cols - cut, n = rows * width, begin = 0;
        auto columns = [&](const auto &array) { return columns_of(array.get(), first, width, cols); };
        UpdateArrays strip(n);
        strip.params.set(columns(before.params)), strip.master.set(columns(before.master));
        strip.m.set(columns(before.m)), strip.v.set(columns(before.v)), strip.grads.set(columns(before.grads));
        for (int64_t end : {rows / 3 * width, n}) {
            UpdatePart part = strip.part(begin, end - begin, model + first + begin / width * cols, with_master);
            part.width = width, part.stride = cols;
            update(part, strip.result.data);
            begin = end;
        }
        std::string what = format("columns %d to %d of %d", (int)first, (int)(first + width), (int)cols);
        check_equal(t, what + ": params", strip.params.get(), columns(whole.params));
        check_equal(t, what + ": master", strip.master.get(), columns(whole.master));
        check_equal(t, what + ": m", strip.m.get(), columns(whole.m));
        DeviceArray<floatX> params(n), whole_params(rows * cols);
        params_from_master(params.data, strip.master.data, n, model + first, 7, true, 0, 64, width, cols);
        params_from_master(whole_params.data, whole.master.data, rows * cols, model, 7, true, 0);
        check_equal(t, what + ": params from master", params.get(), columns(whole_params));
    }
}

// Strips that are wide, as narrow as they may be, and that begin within groups.
template <class Update> static void check_all_strips(Test *t, Update update) {
    for (bool with_master : {true, false}) {
        check_strips(t, 16, 64, 32, with_master, update);
        check_strips(t, 29, 9, 4, with_master, update);
        check_strips(t, 100, 41, 13, with_master, update);
    }
}

TEST(test_adamw_strips) {
    check_all_strips(t,
                     [](const UpdatePart &part, const StepResult *result) { adamw_with(part, adamw_step(4), result); });
}

#endif // KERNELS_UPDATE_CUH
