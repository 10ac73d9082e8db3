// Tests of llmc/layers/loss.cuh.
#ifndef KERNELS_CROSS_ENTROPY_CUH
#define KERNELS_CROSS_ENTROPY_CUH

#include <algorithm>
#include <memory>

#include "llmc/layers/loss.cuh"
#include "dev/test/layers/gpu_test.h"

typedef struct {
    int64_t rows;
    int V, Vp;
} CrossEntropyShape;

// V below, at and beyond a pack and the columns that one round of a block covers; never only multiples of 8.
static const CrossEntropyShape cross_entropy_shapes[] = {{1, 1, 8},     {3, 5, 8},       {7, 8, 8},      {5, 50, 64},
                                                         {2, 257, 384}, {3, 1021, 1024}, {2, 1026, 1152}};

typedef struct {
    CrossEntropyShape shape;
    std::vector<float> logits; // (rows,Vp)
    std::vector<int32_t> targets;
} CrossEntropyInput;

typedef struct {
    std::vector<float> losses, logits; // logits: the gradient, where one was wanted
    uint64_t hash;
} CrossEntropyOutput;

// Targets include the first and the last token. The padding columns hold `padding`.
static CrossEntropyInput cross_entropy_input(CrossEntropyShape shape, float scale, float padding) {
    CrossEntropyInput input = {shape, random_values(shape.rows * shape.Vp, scale, 1),
                               random_ids(shape.rows, shape.V, 2)};
    input.targets[0] = shape.V - 1;
    if (shape.rows > 1) { input.targets[1] = 0; }
    for (int64_t i = 0; i < shape.rows * shape.Vp; i++) {
        if (i % shape.Vp >= shape.V) { input.logits[(size_t)i] = padding; }
    }
    return input;
}

typedef decltype(&cross_entropy_launch<true>) CrossEntropyLaunch; // that chooses, or is one of the two

static CrossEntropyOutput cross_entropy_run(const CrossEntropyInput &input, float dloss, bool want_gradient,
                                            int block_size = CROSS_ENTROPY_BLOCK,
                                            CrossEntropyLaunch launch = cross_entropy) {
    DeviceArray<float> losses(input.shape.rows);
    DeviceArray<floatX> logits(input.logits);
    DeviceArray<int32_t> targets(input.targets);
    launch(losses.data, logits.data, targets.data, input.shape.rows, input.shape.V, input.shape.Vp, dloss,
           want_gradient, 0, block_size);
    cuda_check(cudaDeviceSynchronize());
    return {losses.get(), logits.get(), losses.hash() ^ logits.hash()};
}

// Takes the gradients at the targets out of `gradient`, leaving 0.
static std::vector<float> take_targets(std::vector<float> &gradient, const CrossEntropyInput &input) {
    std::vector<float> taken;
    for (int64_t i = 0; i < input.shape.rows; i++) {
        float &at_target = gradient[(size_t)(i * input.shape.Vp + input.targets[(size_t)i])];
        taken.push_back(at_target);
        at_target = 0.0f;
    }
    return taken;
}

static void cross_entropy_compare(Test *t, const std::string &what, const CrossEntropyInput &input, float dloss,
                                  const CrossEntropyOutput &got) {
    CrossEntropyShape s = input.shape;
    std::vector<float> want_losses((size_t)s.rows), want = input.logits, gradient = got.logits;
    cpu_cross_entropy(want_losses.data(), want.data(), input.targets.data(), s.rows, s.V, s.Vp, dloss, true);
    for (size_t i = 0; i < want.size(); i++) { want[i] = (int)(i % (size_t)s.Vp) < s.V ? want[i] : 0.0f; }
    // cross_entropy_exp(x) is off by up to 2 + 1.3 |x| units in the last place; |x| is at most the range of the logits.
    double range = 2.0 * largest(input.logits), exp_error = (4.0 + 1.2 * range) * FLT_EPSILON;
    double softmax_error = 2.0 * exp_error + sum_tolerance(s.V);
    check_values(t, what + " losses", got.losses, want_losses, softmax_error + 4.0 * range * FLT_EPSILON, 0.0);
    // At the target the difference softmax - 1 keeps the absolute error only.
    std::vector<float> got_targets = take_targets(gradient, input), want_targets = take_targets(want, input);
    check_values(t, what + " gradient", gradient, want, FLT_MIN, softmax_error + 0.51 * FLOATX_EPSILON);
    check_values(t, what + " gradient at targets", got_targets, want_targets, dloss * softmax_error,
                 0.51 * FLOATX_EPSILON);
}

// The padding is NaN: nothing notices what lies in columns V..Vp-1.
TEST(test_cross_entropy_matches_cpu) {
    for (CrossEntropyShape shape : cross_entropy_shapes) {
        CrossEntropyInput input = cross_entropy_input(shape, 3.0f, NAN);
        for (int block_size : {32, 96, 128, CROSS_ENTROPY_BLOCK}) {
            float dloss = 1.0f / (float)(3 * shape.rows);
            cross_entropy_compare(t, format("V %d, block %d", shape.V, block_size), input, dloss,
                                  cross_entropy_run(input, dloss, true, block_size));
        }
    }
    CrossEntropyInput input = cross_entropy_input({2, 50257, 50304}, 5.0f, NAN);
    cross_entropy_compare(t, "GPT-2's vocabulary", input, 0.5f, cross_entropy_run(input, 0.5f, true));
    input = cross_entropy_input({5, 1100, 1152}, 3.0f, NAN);
    for_each_schedule(t, "cross_entropy", [&] { return cross_entropy_run(input, 0.2f, true, 64).hash; });
}

// Rows in shared memory and rows read twice give equal bits, whatever they hold. Without a gradient the logits, padding
// included, stay as they were. What a GPU has no shared memory for is left out there.
static void cross_entropy_check_forms(Test *t, const CrossEntropyInput &input, int block_size) {
    struct cudaDeviceProp device;
    cuda_check(cudaGetDeviceProperties(&device, 0));
    if (input.shape.Vp * sizeof(floatX) + 1024 > device.sharedMemPerBlockOptin) { return; }
    auto run = [&](bool want_gradient, CrossEntropyLaunch launch) {
        return cross_entropy_run(input, 0.3f, want_gradient, block_size, launch);
    };
    CrossEntropyOutput staged = run(true, cross_entropy_launch<true>), direct = run(true, cross_entropy_launch<false>);
    CHECK(t, staged.hash == direct.hash, "V %d, block %d: other bits from shared memory", input.shape.V, block_size);
    uint64_t logits = DeviceArray<floatX>(input.logits).hash(), losses = DeviceArray<float>(direct.losses).hash();
    for (CrossEntropyLaunch launch : {cross_entropy_launch<true>, cross_entropy_launch<false>}) {
        CHECK(t, run(false, launch).hash == (losses ^ logits), "V %d, block %d: other losses or logits", input.shape.V,
              block_size);
    }
}

TEST(test_cross_entropy_forms) {
    for (CrossEntropyShape shape : cross_entropy_shapes) {
        for (float special : {0.0f, INFINITY, -INFINITY, rounded(3e38f), NAN}) {
            CrossEntropyInput input = cross_entropy_input(shape, 3.0f, special);
            if (special != 0.0f) { input.logits[(size_t)(shape.V / 2)] = special; }
            cross_entropy_check_forms(t, input, shape.V > 1000 ? CROSS_ENTROPY_BLOCK : 32);
        }
    }
    cross_entropy_check_forms(t, cross_entropy_input({1, 50257, 50304}, 5.0f, 0.0f), CROSS_ENTROPY_BLOCK);
}

// One row whose logits are all `rest`, but for `value` at `column`.
static CrossEntropyInput one_hot_input(float rest, float value, int column, int target) {
    CrossEntropyShape shape = {1, 203, 256};
    CrossEntropyInput input = cross_entropy_input(shape, 0.0f, NAN);
    for (int v = 0; v < shape.V; v++) { input.logits[(size_t)v] = rounded(v == column ? value : rest); }
    input.targets[0] = target;
    return input;
}

static bool all_zero(const std::vector<float> &values) {
    return std::all_of(values.begin(), values.end(), [](float x) { return x == 0.0f; }); // a NaN is not
}

// All the probability lies on the one large logit; neither the exponentials nor the loss overflow before they must.
TEST(test_cross_entropy_huge_logits) {
    for (float height : {100.0f, 1e4f, 1e20f, 3e38f}) {
        CrossEntropyOutput right = cross_entropy_run(one_hot_input(-height, height, 77, 77), 1.0f, true);
        CHECK(t, right.losses[0] == 0.0f, "height %g: loss %g, expected 0", height, right.losses[0]);
        CHECK(t, all_zero(right.logits), "height %g: a gradient of %g, expected 0", height, largest(right.logits));
        CrossEntropyOutput wrong = cross_entropy_run(one_hot_input(-height, height, 77, 202), 1.0f, true);
        float want = 2.0f * rounded(height); // infinite for the last
        CHECK(t, wrong.losses[0] == want, "height %g: loss %g, expected %g", height, wrong.losses[0], want);
        CHECK(t, wrong.logits[77] == 1.0f && wrong.logits[202] == -1.0f, "height %g: gradients %g and %g", height,
              wrong.logits[77], wrong.logits[202]);
    }
    for (float level : {3e38f, -3e38f}) {
        CrossEntropyOutput flat = cross_entropy_run(one_hot_input(level, level, 0, 5), 1.0f, true);
        check_values(t, "equal logits", flat.losses, {logf(203.0f)}, sum_tolerance(203), 2.0 * FLT_EPSILON);
    }
}

// A NaN or an infinity makes the loss of its row NaN, wherever it stands, and touches no other row. A logit of
// -infinity is a probability of 0.
TEST(test_cross_entropy_nonfinite_logits) {
    CrossEntropyShape shape = {3, 203, 256};
    CrossEntropyInput input = cross_entropy_input(shape, 1.0f, 0.0f);
    CrossEntropyOutput clean = cross_entropy_run(input, 1.0f, true);
    for (float bad : {NAN, INFINITY, -INFINITY}) {
        for (int column : {0, 9, 202}) {
            CrossEntropyInput broken = input;
            broken.logits[(size_t)(shape.Vp + column)] = bad;
            broken.targets[1] = 100;
            CrossEntropyOutput got = cross_entropy_run(broken, 1.0f, true);
            bool harmless = bad == -INFINITY;
            CHECK(t, harmless ? fabsf(got.losses[1]) < 20.0f : isnan(got.losses[1]), "%g at column %d: loss %g", bad,
                  column, got.losses[1]);
            CHECK(t, !harmless || got.logits[(size_t)(shape.Vp + column)] == 0.0f, "-inf has a gradient");
            got.losses[1] = clean.losses[1]; // what is left to compare: the other rows, and the padding
            std::copy_n(clean.logits.begin() + shape.Vp, shape.V, got.logits.begin() + shape.Vp);
            check_equal(t, format("%g at column %d: losses", bad, column), got.losses, clean.losses);
            check_equal(t, format("%g at column %d: gradient", bad, column), got.logits, clean.logits);
        }
    }
    CrossEntropyOutput single = cross_entropy_run(one_hot_input(-INFINITY, 5.0f, 200, 200), 1.0f, true);
    CHECK(t, single.losses[0] == 0.0f && all_zero(single.logits), "one logit among -inf: loss %g, gradient %g",
          single.losses[0], largest(single.logits));
    CrossEntropyOutput nothing = cross_entropy_run(one_hot_input(-INFINITY, -INFINITY, 0, 5), 1.0f, true);
    CHECK(t, isnan(nothing.losses[0]), "all logits -inf: loss %g, expected NaN", nothing.losses[0]);
}

// ---- A vocabulary split over ranks ----

// Columns [first, first + V_own) of an input on the rank that owns them, and padding up to Vl, which holds NaN.
struct VocabularyPart {
    int first, V_own, Vl;
    DeviceArray<floatX> logits;
    DeviceArray<int32_t> targets;
    DeviceArray<float> losses;

    VocabularyPart(const CrossEntropyInput &input, int first, int end, int Vl)
        : first(first), V_own(end - first), Vl(Vl), logits(input.shape.rows * Vl), targets(input.shape.rows),
          losses(input.shape.rows) {
        std::vector<float> own((size_t)logits.count, NAN);
        for (int i = 0; i < (int)input.shape.rows; i++) {
            int32_t target = input.targets[(size_t)i];
            auto row = input.logits.begin() + i * input.shape.Vp + first;
            targets.put(target >= first && target < end ? target - first : -1, i);
            std::copy(row, row + V_own, own.begin() + i * Vl);
        }
        logits.set(own);
    }
    // Copies the gradient to its columns of `whole` (rows,Vp). The gradient of padding must be 0.
    void join(Test *t, int Vp, std::vector<float> *whole) const {
        std::vector<float> own = logits.get();
        for (int i = 0; i < (int)losses.count; i++) {
            auto row = own.begin() + i * Vl;
            std::copy(row, row + V_own, whole->begin() + i * Vp + first);
            CHECK(t, all_zero({row + V_own, row + Vl}), "columns from %d: padding of row %d has a gradient", first, i);
        }
    }
};

// The columns of rank r are cuts[r] .. cuts[r+1]-1. All ranks must have equal losses. A run without a gradient comes
// first and must leave the logits.
static CrossEntropyOutput cross_entropy_run_split(Test *t, const CrossEntropyInput &input, const std::vector<int> &cuts,
                                                  float dloss) {
    int parts = (int)cuts.size() - 1, V = input.shape.V, Vp = input.shape.Vp, Vl = parts == 1 ? Vp : V / 8 * 8 + 16;
    int64_t rows = input.shape.rows, floats = rows * CROSS_ENTROPY_STATE;
    DeviceArray<float> states(parts * floats);
    std::vector<std::unique_ptr<VocabularyPart>> ranks;
    for (int r = 0; r < parts; r++) {
        ranks.emplace_back(new VocabularyPart(input, cuts[(size_t)r], cuts[(size_t)r + 1], Vl));
        const VocabularyPart &p = *ranks.back();
        cross_entropy_states(states.data + r * floats, p.logits.data, p.targets.data, rows, p.V_own, Vl, 0);
    }
    std::vector<float> gradient((size_t)(rows * Vp), 0.0f);
    for (const auto &p : ranks) {
        uint64_t before = p->logits.hash();
        for (bool write_gradient : {false, true}) {
            p->losses.poison();
            cross_entropy_from_states(p->losses.data, p->logits.data, states.data, parts, p->targets.data, rows,
                                      p->V_own, Vl, dloss, write_gradient, 0);
            CHECK(t, write_gradient || p->logits.hash() == before, "columns from %d: the logits are written", p->first);
            CHECK(t, p->losses.hash() == ranks[0]->losses.hash(), "columns from %d: other losses", p->first);
        }
        p->join(t, Vp, &gradient);
    }
    return {ranks[0]->losses.get(), gradient, ranks[0]->losses.hash() ^ hash_of(gradient)};
}

// Cuts within packs, and ranks without columns at the front, in the middle and at the end.
TEST(test_cross_entropy_split) {
    for (CrossEntropyShape shape : cross_entropy_shapes) {
        int V = shape.V;
        const std::vector<int> cuts_of_V[] = {{0, V}, {0, V / 2, V}, {0, 0, V}, {0, 1, 1, V / 2 + 1, V, V}};
        CrossEntropyInput input = cross_entropy_input(shape, 3.0f, 0.0f);
        CrossEntropyOutput whole = cross_entropy_run(input, 0.25f, true);
        for (const std::vector<int> &cuts : cuts_of_V) {
            CrossEntropyOutput got = cross_entropy_run_split(t, input, cuts, 0.25f);
            cross_entropy_compare(t, format("V %d, cut at %d", V, cuts[1]), input, 0.25f, got);
            bool equal = got.losses == whole.losses && got.logits == whole.logits;
            CHECK(t, equal || cuts.size() > 2, "V %d: one part has other bits than the fused kernel", V);
        }
    }
    CrossEntropyInput input = cross_entropy_input({2, 50257, 50304}, 5.0f, 0.0f);
    cross_entropy_compare(t, "GPT-2's vocabulary in 4 parts", input, 0.5f,
                          cross_entropy_run_split(t, input, {0, 12576, 25152, 37728, 50257}, 0.5f));
    input = cross_entropy_input({5, 203, 256}, 3.0f, NAN);
    for_each_schedule(t, "cross_entropy split", [&] {
        return cross_entropy_run_split(t, input, {0, 67, 134, 203}, 0.2f).hash;
    });
}

// Compares as check_values does, but an infinity equals itself, and a NaN equals a NaN.
static void check_near(Test *t, const std::string &what, const std::vector<float> &got, const std::vector<float> &want,
                       float tolerance) {
    for (size_t i = 0; i < want.size(); i++) {
        bool near = isnan(want[i]) ? isnan(got[i]) : got[i] == want[i] || fabsf(got[i] - want[i]) <= tolerance;
        CHECK(t, near, "%s: value %zu is %g, expected %g", what.c_str(), i, got[i], want[i]);
    }
}

// All ranks see a logit of one rank that is not finite, or large, as the fused kernel sees it.
TEST(test_cross_entropy_split_odd_logits) {
    for (float odd : {NAN, INFINITY, -INFINITY, rounded(3e38f), rounded(-3e38f)}) {
        for (int column : {66, 67, 202}) {
            for (int target : {column, 100}) {
                CrossEntropyInput input = cross_entropy_input({3, 203, 256}, 1.0f, 0.0f);
                input.logits[(size_t)(256 + column)] = odd, input.targets[1] = target;
                CrossEntropyOutput want = cross_entropy_run(input, 1.0f, true);
                CrossEntropyOutput got = cross_entropy_run_split(t, input, {0, 67, 134, 134, 203}, 1.0f);
                std::string what = format("%g at %d, target %d", odd, column, target);
                check_near(t, what + ": losses", got.losses, want.losses, 1e-5f);
                check_near(t, what + ": gradient", got.logits, want.logits, (float)FLOATX_EPSILON);
            }
        }
    }
    for (float one : {5.0f, -INFINITY}) {
        CrossEntropyInput input = one_hot_input(-INFINITY, one, 200, 200);
        CrossEntropyOutput got = cross_entropy_run_split(t, input, {0, 100, 150, 203}, 1.0f);
        check_near(t, "-inf but for one", got.losses, {one == 5.0f ? 0.0f : NAN}, 0.0f);
    }
}

static double losses_summed(const std::vector<float> &losses, double before, bool accumulate) {
    DeviceArray<float> device(losses);
    DeviceArray<double> sum(1);
    sum.put(before);
    sum_losses(sum.data, device.data, device.count, accumulate, 0);
    return sum.raw()[0];
}

// Sums that a float cannot hold: exact in double precision, whatever the order.
TEST(test_sum_losses) {
    for (int64_t N : {1, 31, 1024, 1025, 5000}) {
        std::vector<float> losses((size_t)N, 1.0f);
        losses[0] = 16777216.0f; // 2^24: the next float is 2 further
        double want = (double)(N - 1) + 16777216.0;
        double got = losses_summed(losses, NAN, false), added = losses_summed(losses, 0.125, true) - 0.125;
        losses[(size_t)(N / 2)] = NAN;
        CHECK(t, got == want && added == want && isnan(losses_summed(losses, 0.0, true)),
              "%lld losses: %.17g, added %.17g, expected %.17g, and NaN with a NaN", (long long)N, got, added, want);
    }
    std::vector<float> losses = random_values(3001, 1.0f, 3);
    for_each_schedule(t, "sum_losses", [&] {
        double sum = losses_summed(losses, 0.0, false);
        return hash64(&sum, sizeof(sum));
    });
}

static std::vector<double> means_of(const std::vector<float> &losses, const std::vector<int32_t> &counts, int B) {
    DeviceArray<float> device(losses);
    DeviceArray<int32_t> device_counts(counts);
    DeviceArray<SequenceLoss> sequences(B);
    std::vector<double> means;
    sequence_losses(sequences.data, device.data, device_counts.data, B, (int)losses.size() / B, 0);
    for (const SequenceLoss &sequence : sequences.raw()) { means.push_back(sequence.sum / sequence.number); }
    return means;
}

// Losses that a float's sum cannot hold, among others that do not count and may be NaN.
TEST(test_sequence_losses) {
    const int shapes[][2] = {{1, 1}, {5, 32}, {2, 33}, {9, 100}, {1, 1000}};
    for (const int *shape : shapes) {
        int B = shape[0], T = shape[1];
        std::vector<float> losses((size_t)(B * T), NAN);
        std::vector<int32_t> counts((size_t)(B * T), 0);
        std::vector<double> want;
        for (int b = 0; b < B; b++) { // tokens [begin, end) count
            int begin = b % T, end = begin + 1 + (T - begin - 1) / (1 + b % 3);
            for (int i = begin; i < end; i++) {
                losses[(size_t)(b * T + i)] = i == begin ? 16777216.0f : (float)b;
                counts[(size_t)(b * T + i)] = 1 + i % 2;
            }
            want.push_back((16777216.0 + (double)(end - begin - 1) * b) / (end - begin));
        }
        CHECK(t, means_of(losses, counts, B) == want, "(%d,%d): other means", B, T);
        counts[0] = 1, losses[0] = NAN;
        CHECK(t, isnan(means_of(losses, counts, B)[0]), "(%d,%d): a NaN was lost", B, T);
        std::fill(counts.begin(), counts.begin() + T, 0);
        CHECK(t, isnan(means_of(losses, counts, B)[0]), "(%d,%d): the mean of nothing", B, T);
    }
    std::vector<float> losses = random_values(7 * 203, 1.0f, 4);
    std::vector<int32_t> counts = random_ids(7 * 203, 2, 5);
    for_each_schedule(t, "sequence_losses", [&] {
        std::vector<double> means = means_of(losses, counts, 7);
        return hash64(means.data(), means.size() * sizeof(double));
    });
}

#endif // KERNELS_CROSS_ENTROPY_CUH
