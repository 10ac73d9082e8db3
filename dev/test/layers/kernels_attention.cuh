// Attention against the CPU trainer's, and the two versions of it against each other.
#ifndef KERNELS_ATTENTION_CUH
#define KERNELS_ATTENTION_CUH

#include "llmc/layers/attention.cuh"
#include "dev/test/layers/gpu_test.h"

static int64_t channels_of(AttentionShape s) { return (int64_t)s.NH * s.HS; }
static int64_t outputs_of(AttentionShape s) { return s.B * s.T * channels_of(s); }
static int64_t inputs_of(AttentionShape s) { return (int64_t)s.B * s.T * attention_width(s); }
static int64_t rows_of(AttentionShape s) { return (int64_t)s.B * s.NH * s.T; }

static std::string attention_name(AttentionShape s) {
    return format("B %d T %d NH %d KV %d HS %d", s.B, s.T, s.NH, s.KV, s.HS);
}

typedef enum { ATTENTION_AS_THE_MODEL, ATTENTION_SIMT } AttentionVersion;

// A forward and a backward on the device, all results poisoned before.
struct AttentionRun {
    AttentionShape shape;
    DeviceArray<floatX> qkv, dout, out, dqkv;
    DeviceArray<float> lse, delta;
    Amax amax_out;

    AttentionRun(AttentionShape s, const std::vector<float> &qkv_values, const std::vector<float> &dout_values)
        : shape(s), qkv(qkv_values), dout(dout_values), out(outputs_of(s)), dqkv(inputs_of(s)), lse(rows_of(s)),
          delta(rows_of(s)) {}

    void forward(AttentionVersion version) {
        out.poison(), lse.poison(), amax_out.value.put(0.0f);
        attention_forward(out.data, lse.data, qkv.data, shape, 0, amax_out.data(), version == ATTENTION_SIMT);
    }
    void backward(AttentionVersion version) {
        dqkv.poison(), delta.poison();
        attention_backward(dqkv.data, dout.data, qkv.data, out.data, lse.data, delta.data, shape, 0,
                           version == ATTENTION_SIMT);
    }
    void run(AttentionVersion version) {
        forward(version);
        backward(version);
        cuda_check(cudaDeviceSynchronize());
    }
    uint64_t hash() const { return out.hash() ^ 3 * lse.hash() ^ 5 * dqkv.hash(); }
};

// ---- How far a result may be from the exact one ----
//
// u is half an epsilon of floatX, what a result loses when it is stored. u_p is the same for p and ds where tensor
// cores take them as operands, 0 in the SIMT kernels. epsilon is of float.
//   A score is a sum of HS products of size up to L, the largest score, then multiplied, subtracted and an exponent:
//     e = sum_tolerance(HS) * L + 8 epsilon * (L + 1), which is the relative error of an exp.
//   The CPU's is as large: 2e in p, where lse is given, and 4e where the sum of the row is computed, too.
//   out is a sum of p v:  |error| <= (4e + u_p + sum_tolerance(T)) * sum of p |v| + u |out|;  lse: 2e + 4 epsilon |lse|
//   dp and delta are sums of HS products of the sizes |do||v| and |do||out|, taken as products of Euclidean norms N:
//     |error of ds| <= (2e + u_p) |ds| + p * 2 sum_tolerance(HS) * N, and with this
//   dq: scale * sum of |error of ds| |k| + sum_tolerance(T) * scale * sum of |ds| |k| + u |dq|;  dk the same with q
// Where NH / KV query heads share keys, the sums for dk and dv have T * NH / KV terms.
//   dv: (2e + u_p + sum_tolerance(T)) * sum of p |do| + u |dv|
// A p below FLT_MIN, the smallest float with all its bits, may as well be 0: FLT_MIN is added to its error.
struct AttentionBounds {
    std::vector<float> out, lse, dqkv;
};

static double norm_of(const float *x, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) { sum += (double)x[i] * x[i]; }
    return sqrt(sum);
}
static double dot_of(const float *x, const float *y, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) { sum += (double)x[i] * y[i]; }
    return sum;
}

// Where row 0 of a head of queries begins in qkv, and of the keys that it reads. head = b * NH + h.
static int64_t q_of(AttentionShape s, int64_t head) {
    return head / s.NH * s.T * attention_width(s) + head % s.NH * s.HS;
}
static int64_t k_of(AttentionShape s, int64_t head) {
    int64_t group = s.NH / s.KV, kv = head % s.NH / group;
    return head / s.NH * s.T * attention_width(s) + (s.NH + kv) * s.HS;
}

// The largest score that any query of the model sees, in size.
static double largest_score(AttentionShape s, const std::vector<float> &qkv) {
    int64_t row = attention_width(s);
    double max = 0.0;
    for (int64_t head = 0; head < (int64_t)s.B * s.NH; head++) {
        const float *q = qkv.data() + q_of(s, head), *k = qkv.data() + k_of(s, head);
        for (int i = 0; i < s.T; i++) {
            for (int j = 0; j <= i; j++) {
                max = fmax(max, fabs(dot_of(q + i * row, k + j * row, s.HS)) / sqrt((double)s.HS));
            }
        }
    }
    return max;
}

// Adds one query's share to the bounds of its head. p_i, dp_i: scratch (T).
static void add_bounds_of_row(AttentionBounds *bounds, AttentionShape s, int64_t head, int i, double e, double u_p,
                              const std::vector<float> &qkv, const std::vector<float> &dout,
                              const std::vector<float> &out, double lse) {
    int64_t row = attention_width(s), q_at = q_of(s, head) + i * row, k_at = k_of(s, head), v_at = k_at + s.KV * s.HS;
    int64_t out_at = (head / s.NH * s.T + i) * channels_of(s) + head % s.NH * s.HS;
    const float *q = qkv.data() + q_at, *k = qkv.data() + k_at, *v = qkv.data() + v_at, *dO = dout.data() + out_at;
    float *dq = bounds->dqkv.data() + q_at, *dk = bounds->dqkv.data() + k_at, *dv = bounds->dqkv.data() + v_at;
    double scale = 1.0 / sqrt((double)s.HS), D = dot_of(dO, out.data() + out_at, s.HS);
    double long_sum = sum_tolerance((int64_t)s.T * s.NH / s.KV);
    double norms = norm_of(dO, s.HS) * norm_of(out.data() + out_at, s.HS);
    for (int j = 0; j <= i; j++) {
        const float *kj = k + j * row, *vj = v + j * row;
        double p = exp(scale * dot_of(q, kj, s.HS) - lse), slope = fabs(dot_of(dO, vj, s.HS) - D);
        double dp_error = 2.0 * sum_tolerance(s.HS) * (norms + norm_of(dO, s.HS) * norm_of(vj, s.HS));
        double p_bound = (2.0 * e + u_p + long_sum) * p + FLT_MIN, ds_bound = scale * (p_bound * slope + p * dp_error);
        for (int d = 0; d < s.HS; d++) {
            bounds->out[(size_t)(out_at + d)] += (float)((2.0 * e * p + p_bound) * fabs((double)vj[d]));
            dq[d] += (float)(ds_bound * fabs((double)kj[d]));
            dk[j * row + d] += (float)(ds_bound * fabs((double)q[d]));
            dv[j * row + d] += (float)(p_bound * fabs((double)dO[d]));
        }
    }
}

// All but the last term, u times the result, which check_within adds.
static AttentionBounds attention_bounds(AttentionShape s, double u_p, const std::vector<float> &qkv,
                                        const std::vector<float> &dout, const std::vector<float> &out,
                                        const std::vector<float> &lse) {
    double L = largest_score(s, qkv), e = sum_tolerance(s.HS) * L + 8.0 * FLT_EPSILON * (L + 1.0);
    AttentionBounds bounds;
    bounds.out.assign(out.size(), 0.0f), bounds.dqkv.assign(qkv.size(), 0.0f), bounds.lse.assign(lse.size(), 0.0f);
    for (int64_t head = 0; head < (int64_t)s.B * s.NH; head++) {
        for (int i = 0; i < s.T; i++) {
            size_t row = (size_t)(head * s.T + i);
            bounds.lse[row] = (float)(2.0 * e + 4.0 * FLT_EPSILON * fabs((double)lse[row]));
            add_bounds_of_row(&bounds, s, head, i, e, u_p, qkv, dout, out, lse[row]);
        }
    }
    return bounds;
}

// ---- Against the CPU trainer ----

// Compares the GPU's results for whole sequences with the CPU's. The backward of both begins with what the GPU's
// forward has stored. parts: the sizes of summands of dqkv that were rounded, each for itself; empty: none was.
static void check_attention_results(Test *t, const std::string &name, AttentionShape s, AttentionVersion version,
                                    const std::vector<float> &qkv, const std::vector<float> &dout,
                                    const std::vector<float> &gpu_out, const std::vector<float> &gpu_lse,
                                    const std::vector<float> &gpu_dqkv, const std::vector<float> &parts = {}) {
    bool tensor_cores = version == ATTENTION_AS_THE_MODEL && attention_uses_tensor_cores(s.HS);
    double u = FLOATX_EPSILON / 2.0, u_p = tensor_cores ? u : 0.0;
    std::vector<float> out((size_t)outputs_of(s)), lse((size_t)rows_of(s)), dqkv(qkv.size(), 0.0f);
    cpu_grouped_attention_forward(out.data(), lse.data(), qkv.data(), s.B, s.T, s.NH, s.KV, s.HS);
    cpu_grouped_attention_backward(dqkv.data(), dout.data(), qkv.data(), gpu_out.data(), gpu_lse.data(), s.B, s.T, s.NH,
                                   s.KV, s.HS);
    AttentionBounds bounds = attention_bounds(s, u_p, qkv, dout, gpu_out, lse);
    for (size_t i = 0; i < parts.size(); i++) { bounds.dqkv[i] += (float)(1.01 * u * parts[i]); }
    check_within(t, name + ": out", gpu_out, out, bounds.out, u);
    check_within(t, name + ": lse", gpu_lse, lse, bounds.lse, 0.0);
    check_within(t, name + ": dqkv", gpu_dqkv, dqkv, bounds.dqkv, u);
}

static void check_attention_on(Test *t, AttentionShape s, AttentionVersion version, const std::vector<float> &qkv,
                               const std::vector<float> &dout) {
    std::string name = attention_name(s) + (version == ATTENTION_SIMT ? " simt" : "");
    AttentionRun gpu(s, qkv, dout);
    gpu.run(version);
    check_attention_results(t, name, s, version, qkv, dout, gpu.out.get(), gpu.lse.get(), gpu.dqkv.get());
    gpu.amax_out.check(t, name + ": out", gpu.out.get());
}

static void check_attention(Test *t, const std::vector<AttentionShape> &shapes,
                            AttentionVersion version = ATTENTION_AS_THE_MODEL) {
    for (AttentionShape s : shapes) {
        check_attention_on(t, s, version, random_values(inputs_of(s), 1.0f, 40),
                           random_values(outputs_of(s), 1.0f, 41));
    }
}

// The SIMT kernels, of heads up to 64, 128 and 256: heads that begin at odd addresses, of one value, and larger than
// any tile's width; below, at and above a tile of keys; and in the bf16 build head sizes that tensor cores take.
TEST(test_attention_simt) {
    check_attention(t, {{3, 19, 8, 8, 3}, {3, 7, 8, 8, 1}, {1, 65, 1, 1, 24}, {1, 17, 8, 8, 33}, {1, 37, 8, 8, 7}});
    for (int T : {1, 7, 64, 65}) { check_attention(t, {{T < 64 ? 3 : 1, T, 3, 3, 8}}); }
    check_attention(t, {{1, 130, 1, 1, 8}, {1, 45, 1, 1, 136}, {1, 45, 1, 1, 200}});
    check_attention(t, {{1, 45, 1, 1, 256}, {3, 7, 3, 3, 256}});
    check_attention(t, {{1, 70, 1, 1, 64}, {3, 18, 1, 1, 80}, {1, 33, 2, 2, 96}, {1, 50, 1, 1, 128}}, ATTENTION_SIMT);
}

// The head sizes with kernels of their own: below and above a tile of queries, and more than two tiles of keys.
TEST(test_attention_tiles) {
    for (int HS : {64, 80, 96, 128}) {
        for (int T : {1, 33, 64, 65, 130}) { check_attention(t, {{1, T, 1, 1, HS}}); }
        check_attention(t, {{3, 11, 3, 3, HS}});
    }
}

// Query heads that share keys: groups of 1, 2, 3 (SmolLM2's), 4 and 8, two KV heads or three beside each other, one
// KV head for all, and more tiles of keys and of queries than one.
TEST(test_attention_groups) {
    check_attention(t, {{1, 70, 6, 2, 64}, {1, 33, 4, 1, 128}});
    check_attention(t, {{2, 21, 9, 3, 6}, {1, 37, 8, 2, 20}, {1, 18, 4, 1, 64}}, ATTENTION_SIMT);
    if (test_is_quick()) { return; }   // all sizes of groups with all kernels
    for (int HS : {64, 80, 96, 128}) { // on tensor cores
        check_attention(t, {{2, 35, 4, 2, HS}, {1, 65, 9, 3, HS}, {1, 33, 8, 1, HS}, {1, 130, 4, 1, HS}});
    }
    for (int HS : {1, 6, 20, 48, 130}) {
        check_attention(t, {{2, 37, 4, 2, HS}, {1, 21, 9, 3, HS}, {1, 18, 8, 1, HS}});
    }
}

// A forward of another version than SIMT, and its backward from there, against the SIMT kernels. Both have equal
// inputs, so they may be apart by what both may be away from the exact result.
static void check_against_simt(Test *t, const std::string &name, const AttentionRun &other,
                               const std::vector<float> &qkv, const std::vector<float> &dout,
                               double u_p = FLOATX_EPSILON / 2.0) {
    AttentionRun simt(other.shape, qkv, dout);
    simt.forward(ATTENTION_SIMT);
    AttentionBounds bounds = attention_bounds(other.shape, u_p, qkv, dout, simt.out.get(), simt.lse.get());
    check_within(t, name + ": out", other.out.get(), simt.out.get(), bounds.out, FLOATX_EPSILON);
    check_within(t, name + ": lse", other.lse.get(), simt.lse.get(), bounds.lse, 0.0);
    simt.out.set(other.out.get()); // one input for both backward passes
    simt.lse.set(other.lse.get());
    simt.backward(ATTENTION_SIMT);
    check_within(t, name + ": dqkv", other.dqkv.get(), simt.dqkv.get(), bounds.dqkv, FLOATX_EPSILON);
}

// ---- Scores that overflow or vanish without the softmax's care ----

// Scores of about +-1000 at random, then all alike: +1000 for every seventh key and -1000 for the rest, or all -1000.
TEST(test_attention_extreme_scores) {
    for (int HS : {8, 64}) {
        AttentionShape s = {1, 130, 1, 1, HS};
        float size = sqrtf(1000.0f * sqrtf((float)HS) / (float)HS); // of a value: HS products of size^2 / sqrt(HS)
        std::vector<float> dout = random_values(outputs_of(s), 1.0f, 45),
                           random = random_values(inputs_of(s), 1.0f, 44);
        for (int kind = 0; kind < 3; kind++) {
            std::vector<float> qkv = random;
            for (int64_t i = 0; i < s.T * 3 * HS; i++) {
                int64_t row = i / (3 * HS), part = i / HS % 3; // 0: q, 1: k, 2: v
                float sign = kind == 1 && row % 7 == 0 ? 1.0f : -1.0f;
                if (part == 2) { continue; }
                qkv[(size_t)i] = rounded(kind == 0 ? 0.6f * size * qkv[(size_t)i] : part == 0 ? size : sign * size);
            }
            check_attention_on(t, s, ATTENTION_AS_THE_MODEL, qkv, dout);
        }
    }
}

// ---- What must be equal to the bit ----

// A row of the batch alone has the bits that it has in company. The first tokens alone have them, too: of row 0.
static void check_company(Test *t, AttentionShape s, int prefix) {
    std::vector<float> qkv = random_values(inputs_of(s), 1.0f, 49), dout = random_values(outputs_of(s), 1.0f, 50);
    AttentionRun batch(s, qkv, dout);
    batch.run(ATTENTION_AS_THE_MODEL);
    std::vector<float> out = batch.out.get(), dqkv = batch.dqkv.get();
    for (int b = 0; b < s.B; b++) {
        AttentionShape alone = {1, b == 0 ? prefix : s.T, s.NH, s.KV, s.HS};
        auto part = [&](const std::vector<float> &values, int64_t n) {
            auto begin = values.begin() + b * ((int64_t)values.size() / s.B);
            return std::vector<float>(begin, begin + n);
        };
        AttentionRun row(alone, part(qkv, inputs_of(alone)), part(dout, outputs_of(alone)));
        row.run(ATTENTION_AS_THE_MODEL);
        std::string name = format("%s, row %d", attention_name(alone).c_str(), b);
        check_equal(t, name + ": out", row.out.get(), part(out, outputs_of(alone)));
        if (b > 0) { check_equal(t, name + ": dqkv", row.dqkv.get(), part(dqkv, inputs_of(alone))); }
    }
}

TEST(test_attention_company) {
    check_company(t, {3, 40, 3, 3, 8}, 33);  // SIMT
    check_company(t, {2, 70, 2, 1, 64}, 65); // on tensor cores in bf16
}

// The bits depend on no schedule, nor on whether the largest magnitude is asked for.
TEST(test_attention_schedules) {
    for (AttentionShape s :
         {AttentionShape{1, 40, 3, 3, 8}, AttentionShape{1, 130, 1, 1, 64}, AttentionShape{1, 63, 2, 1, 80},
          AttentionShape{1, 100, 1, 1, 96}, AttentionShape{1, 34, 3, 1, 128}, AttentionShape{1, 40, 4, 2, 6}}) {
        AttentionRun gpu(s, random_values(inputs_of(s), 1.0f, 51), random_values(outputs_of(s), 1.0f, 52));
        for_each_schedule(t, attention_name(s).c_str(), [&] {
            gpu.run(ATTENTION_AS_THE_MODEL);
            return gpu.hash();
        });
        uint64_t hash = gpu.hash();
        gpu.out.poison(), gpu.lse.poison();
        attention_forward(gpu.out.data, gpu.lse.data, gpu.qkv.data, s, 0);
        CHECK(t, gpu.hash() == hash, "%s: other bits without amax", attention_name(s).c_str());
    }
}

// ---- Places ----

struct HeadOffsets {
    AttentionHead head;
    int64_t k;
};
static __global__ void attention_head_kernel(HeadOffsets *at, int64_t index, AttentionShape shape,
                                             AttentionContext context) {
    *at = {attention_head(index, shape), attention_keys(index, shape, context)};
}

// Batches of more than 2^31 values: 1558M's shape, and Llama 3.1 8B's.
TEST(test_attention_offsets) {
    DeviceArray<int64_t> memory(sizeof(HeadOffsets) / sizeof(int64_t));
    const floatX *nowhere = reinterpret_cast<const floatX *>(memory.data);
    for (AttentionShape s : {AttentionShape{1024, 1024, 25, 25, 64}, AttentionShape{128, 8192, 32, 8, 128}}) {
        int64_t b = s.B - 1, h = s.NH - 2, rows = b * s.T, kv = h * s.KV / s.NH; // the last KV head of the second shape
        int64_t begin = rows * attention_width(s);
        HeadOffsets at;
        attention_head_kernel<<<1, 1>>>(reinterpret_cast<HeadOffsets *>(memory.data), b * s.NH + h, s,
                                        attention_own_context(nowhere, s));
        cuda_check_launch("attention_head_kernel");
        cuda_check(cudaMemcpy(&at, memory.data, sizeof(at), cudaMemcpyDeviceToHost));
        const int64_t got[] = {at.head.q, at.k, at.head.out, at.head.row};
        const int64_t want[] = {begin + h * s.HS, begin + kv * s.HS, (rows * s.NH + h) * s.HS, (b * s.NH + h) * s.T};
        FOR_EACH(i, want) {
            CHECK(t, got[i] == want[i], "%s: place %zu of q, k, out, lse is %lld, expected %lld",
                  attention_name(s).c_str(), i, (long long)got[i], (long long)want[i]);
        }
    }
}

// What the trainer is told where heads do not fit.
TEST(test_attention_check) {
    const struct {
        AttentionShape shape;
        const char *says;
    } cases[] = {{{1, 1, 12, 12, 64}, NULL},
                 {{1, 1, 9, 3, 64}, NULL},
                 {{1, 1, 4, 1, 264}, "m: heads of 264 channels; the GPU trainer has attention for up to 256"},
                 {{1, 1, 9, 3, 20}, "m: keys of 60 channels (3 heads of 20); the GPU trainer takes multiples of 8"}};
    for (auto c : cases) {
        Error error = {};
        bool ok = attention_check("m", c.shape, &error);
        CHECK(t, ok == (c.says == NULL) && strcmp(error.text, ok ? "" : c.says) == 0, "%s: \"%s\"",
              attention_name(c.shape).c_str(), error.text);
    }
}

#endif // KERNELS_ATTENTION_CUH
