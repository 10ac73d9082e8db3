// Chapter 15, FlashAttention: the worked example of doc/15_flash_attention.md, and the checks of its exercises.
#include "dev/exercises/metered.h"
#include "llmc/layers/attention.cuh"

enum { HEAD = 32 };                              // channels of the head in the exercises
static const float SCALE_OF_HEAD = 0.176776695f; // 1 / sqrt(HEAD)

#include ANSWERS

// ---- The worked example ----

// A row of 6 scores comes in tiles of 2. A value is one number.
static void print_online_softmax(void) {
    static const float scores[] = {1.0f, 3.0f, 2.0f, 5.0f, -1.0f, 4.0f},
                       values[] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
    float m = -INFINITY, l = 0.0f, o = 0.0f, all = 0.0f, weighted = 0.0f;
    printf("keys   scores            m   correction        l        o      o / l\n");
    for (int key = 0; key < 6; key += 2) {
        float before = m;
        m = fmaxf(m, fmaxf(scores[key], scores[key + 1]));
        float correction = expf(before - m);
        l *= correction, o *= correction;
        for (int j = key; j < key + 2; j++) { l += expf(scores[j] - m), o += expf(scores[j] - m) * values[j]; }
        printf("%d %d %7.1f %6.1f %7.1f %11.6f %9.6f %9.6f %9.6f\n", key, key + 1, (double)scores[key],
               (double)scores[key + 1], (double)m, (double)correction, (double)l, (double)o, (double)(o / l));
    }
    for (int j = 0; j < 6; j++) { all += expf(scores[j] - 5.0f), weighted += expf(scores[j] - 5.0f) * values[j]; }
    printf("all six at once: %.6f\n", (double)(weighted / all));
}

// What the trainer's kernel moves for a head of 64 channels. A block has `rows` queries and visits keys in tiles of 64,
// up to its last query.
static void print_bytes(int T) {
    const int HS = 64, rows = 128;
    const AttentionShape shape = {1, T, 1, 1, HS};
    DeviceArray<floatX> qkv(random_values((int64_t)T * 3 * HS, 1.0f, 1)), out((int64_t)T * HS);
    DeviceArray<float> lse(T);
    emu::Meter m = metered([&] { attention_forward(out.data, lse.data, qkv.data, shape, 0); });
    int visited = 0, bytes = T * (2 * HS * (int)sizeof(floatX) + 4); // of q, out and lse
    for (int first = 0; first < T; first += rows) {
        visited += (first + rows) / 64;
        bytes += (first + rows) * 2 * HS * (int)sizeof(floatX); // of k and v
    }
    printf("%4d %14d %10d %9d %8d of %d\n", T, 4 * T * T, bytes, bytes_of(m.loads) + bytes_of(m.stores), visited,
           T / rows * (T / 64));
}

static void example(void) {
    print_online_softmax();
    printf("\nOne head of 64 channels, bf16          bytes moved       tiles\n");
    printf("   T   T x T floats    formula   counted     visited\n");
    for (int T = 128; T <= 512; T *= 2) { print_bytes(T); }
}

// ---- The checks ----

// How far a weight may be off, relative to its size: its score is a sum of HEAD products, and at most L in size.
static double weight_error(double L) { return sum_tolerance(HEAD) * L + 8.0 * FLT_EPSILON * (L + 1.0); }

struct Head {
    int T;
    std::vector<float> qkv, out, lse;
    // offset: of all scores.
    Head(int T, float offset)
        : T(T), qkv(random_values((int64_t)T * 3 * HEAD, 1.0f, 1)), out((size_t)(T * HEAD)), lse((size_t)T) {
        for (size_t t = 0; offset > 0.0f && t < (size_t)T; t++) {
            qkv[t * 3 * HEAD] = 10.0f, qkv[t * 3 * HEAD + HEAD] = offset / 10.0f / SCALE_OF_HEAD;
        }
        cpu_attention_forward(out.data(), lse.data(), qkv.data(), 1, T, HEAD, 1);
    }
};

// The parts of a row of 60 keys, some of them without a key. Scores lie around 200, where exp is infinite.
static void check_merge(Test *t) {
    static const int ends[] = {0, 7, 7, 20, 60};
    std::vector<float> scores = random_values(60, 3.0f, 2), values = random_values(60 * HEAD, 1.0f, 3);
    float lse = -INFINITY, out[HEAD] = {};
    double want[HEAD] = {}, sum = 0.0;
    int first = 0;
    for (int end : ends) {
        double part_sum = 0.0, part[HEAD] = {};
        for (int j = first; j < end; j++) {
            double p = exp((double)scores[(size_t)j]);
            part_sum += p, sum += p;
            for (int d = 0; d < HEAD; d++) {
                part[d] += p * (double)values[(size_t)(j * HEAD + d)];
                want[d] += p * (double)values[(size_t)(j * HEAD + d)];
            }
        }
        float part_out[HEAD];
        for (int d = 0; d < HEAD; d++) { part_out[d] = end > first ? (float)(part[d] / part_sum) : 0.0f; }
        merge(&lse, out, end > first ? (float)(200.0 + log(part_sum)) : -INFINITY, part_out);
        first = end;
    }
    CHECK(t, fabs((double)lse - 200.0 - log(sum)) <= 8.0 * FLT_EPSILON * 200.0, "lse: got %.6f, want %.6f", (double)lse,
          200.0 + log(sum));
    int bad = 0;
    for (int d = 0; d < HEAD; d++) { bad += !(fabs((double)out[d] - want[d] / sum) <= 64.0 * FLT_EPSILON * 200.0); }
    CHECK(t, bad == 0, "%d of %d channels differ; channel 0: got %.6f, want %.6f", bad, HEAD, (double)out[0],
          want[0] / sum);
}

// Tiles of 32 keys that the blocks of 32 queries visit: 1, 2, 3, ...
static int tiles_of(int T) { return T / 32 * (T / 32 + 1) / 2; }

static void check_cost(Test *t, const emu::Meter &m, int bytes, int exponentials) {
    CHECK(t, bytes_of(m.loads) <= bytes,
          "loads move %d bytes, want at most %d: keys and values once for each block, none after its last query",
          bytes_of(m.loads), bytes);
    CHECK(t, (int)m.functions <= exponentials, "%d exponentials and logarithms, want at most %d", (int)m.functions,
          exponentials);
    int conflicts = (int)(m.shared_loads.conflicts + m.shared_stores.conflicts);
    CHECK(t, conflicts == 0, "%d conflicts in shared memory, want 0: lanes that read one channel of 32 keys?",
          conflicts);
}

static void check_forward(Test *t) {
    const int T = 96;
    Head head(T, 100.0f);
    DeviceArray<float> qkv(head.qkv), out(T * HEAD), lse(T);
    out.poison(), lse.poison();
    emu::Meter m = metered([&] { attention<<<T / 32, dim3(32, 32)>>>(out.data, lse.data, qkv.data, T); });
    double e = weight_error(120.0);
    check_values(t, "lse", lse.get(), head.lse, 2.0 * e, 4.0 * FLT_EPSILON);
    check_values(t, "out", out.get(), head.out, (4.0 * e + sum_tolerance(T)) * 4.0, 4.0 * FLT_EPSILON);
    int row = HEAD * (int)sizeof(float);
    check_cost(t, m, T * row + tiles_of(T) * 32 * 2 * row, 1024 * (2 * tiles_of(T) + T / 32));
}

static void check_backward(Test *t) {
    const int T = 96;
    Head head(T, 0.0f);
    std::vector<float> dout = random_values(T * HEAD, 1.0f, 4), dqkv(head.qkv.size()), delta((size_t)T);
    std::vector<float> want((size_t)(T * HEAD));
    cpu_attention_backward(dqkv.data(), dout.data(), head.qkv.data(), head.out.data(), head.lse.data(), 1, T, HEAD, 1);
    for (int i = 0; i < T * HEAD; i++) {
        want[(size_t)i] = dqkv[(size_t)(i / HEAD * 3 * HEAD + i % HEAD)];
        delta[(size_t)(i / HEAD)] += dout[(size_t)i] * head.out[(size_t)i];
    }
    DeviceArray<float> qkv(head.qkv), dq(T * HEAD), grad(dout), lse(head.lse), deltas(delta);
    dq.poison();
    emu::Meter m = metered(
        [&] { attention_dq<<<T / 32, dim3(32, 32)>>>(dq.data, grad.data, qkv.data, lse.data, deltas.data, T); });
    // A weight is off by 2e. |dp - delta| is at most 200: both are products of two rows of Euclidean norm 10 or less.
    double e = weight_error(20.0), slope = 200.0 * (2.0 * e + 2.0 * sum_tolerance(HEAD) + sum_tolerance(T));
    double bound = (double)SCALE_OF_HEAD * largest(head.qkv) * slope;
    check_values(t, "dq", dq.get(), want, bound, 4.0 * FLT_EPSILON);
    int row = HEAD * (int)sizeof(float), sectors = 2 * 32 * T; // of lse and delta, one a row
    check_cost(t, m, T * 2 * row + tiles_of(T) * 32 * 2 * row + sectors, 1024 * tiles_of(T));
}

static const Exercise exercises[] = {{"15.1 two parts of a row", check_merge},
                                     {"15.2 the forward in one kernel", check_forward},
                                     {"15.3 the gradient of the queries", check_backward}};

int main(void) { return run_chapter("15_flash_attention", example, exercises); }
