// The sampler: exact choices, and temperature and top-p against a brute-force reference: the probabilities, and
// the draw as the inverse of their cumulative distribution in id order.
#include "dev/test/test.h"
#include "llmc/base/rand.h"
#include "llmc/run/sampler.h"

enum { MAX_V = 300 };

static int draw(const float *logits, int V, float temperature, float top_p, double uniform) {
    float probs[MAX_V];
    return sample_token(logits, V, temperature, top_p, uniform, probs);
}

static void random_logits(float *logits, int V, uint64_t seed, float scale, bool coarse) {
    for (int i = 0; i < V; i++) {
        float pair[2];
        rand_normal_pair(seed, 5, (uint64_t)i, pair);
        logits[i] = coarse ? roundf(2.0f * pair[0]) * scale : pair[0] * scale; // coarse: many equal values
    }
}

TEST(test_argmax) {
    float logits[] = {-3.0f, 2.0f, 7.5f, 7.5f, 7.5f, -1e30f};
    for (double u = 0.0; u < 1.0; u += 0.24) {
        CHECK(t, draw(logits, 6, 0.0f, 1.0f, u) == 2, "temperature 0 does not give the lowest of the best");
        CHECK(t, draw(logits, 6, 1.0f, 0.0f, u) == 2, "top-p 0 does not keep exactly the best");
    }
}

TEST(test_extreme_logits) {
    const float giant[] = {-3.4e38f, 3.4e38f}, masked[] = {-INFINITY, 0.0f, -INFINITY, 0.0f}, level[] = {1e4f, 1e4f};
    for (double u = 0.0; u < 1.0; u += 0.01) {
        for (float temperature = 1e-30f; temperature < 1e30f; temperature *= 1e3f) {
            CHECK(t, draw(giant, 2, temperature, 1.0f, u) == 1, "+-3.4e38 at T %g", (double)temperature);
            int token = draw(masked, 4, temperature, 1.0f, u);
            CHECK(t, token == (u < 0.5 ? 1 : 3), "-inf at T %g, u %g: drew %d", (double)temperature, u, token);
        }
        CHECK(t, draw(level, 2, 1.0f, 1.0f, u) == (u < 0.5 ? 0 : 1), "two of 1e4 at u %g", u);
    }
}

TEST(test_broken_logits) {
    const float broken[] = {NAN, INFINITY, -INFINITY};
    for (int kind = 0; kind < 3; kind++) {
        for (int at = 0; at < 5; at++) {
            float logits[5] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f};
            logits[at] = broken[kind];
            for (int i = 0; i < 5 && kind == 2; i++) { logits[i] = broken[kind]; } // one -inf is no fault, all are
            CHECK(t, draw(logits, 5, 1.0f, 1.0f, 0.5) == -1, "%g at %d", (double)broken[kind], at);
            CHECK(t, draw(logits, 5, 0.0f, 0.5f, 0.5) == -1, "%g at %d, temperature 0", (double)broken[kind], at);
        }
    }
}

// The largest uniform below 1 and 0 draw tokens that have a probability.
TEST(test_ends_of_the_range) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        float logits[50];
        random_logits(logits, 50, seed, 3.0f, false);
        logits[0] = logits[49] = -INFINITY;
        int first = draw(logits, 50, 1.0f, 1.0f, 0.0), last = draw(logits, 50, 1.0f, 1.0f, 1.0 - 0x1p-53);
        CHECK(t, first == 1, "uniform 0 draws %d", first);
        CHECK(t, last == 48, "uniform just below 1 draws %d", last);
    }
}

// The filter a reader would write: sort all tokens, keep the first whose share reaches p.
static const double *reference_probs;
static int compare_tokens(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    if (reference_probs[x] != reference_probs[y]) { return reference_probs[x] > reference_probs[y] ? -1 : 1; }
    return x - y;
}

static void reference_filter(const float *logits, int V, float temperature, float top_p, double *probs) {
    int order[MAX_V];
    float top = logits[0];
    for (int i = 0; i < V; i++) { top = fmaxf(top, logits[i]), order[i] = i; }
    for (int i = 0; i < V; i++) { probs[i] = (double)expf((logits[i] - top) / temperature); }
    reference_probs = probs;
    qsort(order, (size_t)V, sizeof(int), compare_tokens);
    double all = 0.0, sum = 0.0;
    for (int i = 0; i < V; i++) { all += probs[order[i]]; }
    int share = 0;
    while (share < V && (share == 0 || sum < top_p * all)) { sum += probs[order[share++]]; }
    if (top_p >= 1.0f) { share = V; }
    for (int i = 0; i < V; i++) { probs[order[i]] = i < share ? probs[order[i]] / sum : 0.0; }
}

// Each token is drawn just inside both ends of its interval of the cumulative distribution.
static void check_draws(Test *t, const float *logits, int V, float temperature, float top_p, const double *probs) {
    double below = 0.0;
    for (int i = 0; i < V; below += probs[i++]) {
        if (probs[i] < 1e-9) { continue; } // an interval must be wider than its roundings
        for (int end = 0; end < 2; end++) {
            double uniform = below + probs[i] * (end ? 1.0 - 1e-3 : 1e-3);
            int token = draw(logits, V, temperature, top_p, uniform);
            CHECK(t, token == i, "V %d top-p %g: uniform %g draws %d, want %d", V, (double)top_p, uniform, token, i);
        }
    }
}

TEST(test_against_reference) {
    const int sizes[] = {1, 2, 3, 7, 64, 300};
    const float top_ps[] = {0.0f, 1e-9f, 0.1f, 0.5f, 0.9f, 0.99f, 0.999999f, 1.0f};
    const float temperatures[] = {1.0f, 0.3f, 1.0f, 0.7f, 2.5f};
    for (uint64_t round = 0; round < 6 * 8 * 20; round++) {
        int V = sizes[round % 6];
        float temperature = temperatures[round % 5], top_p = top_ps[round / 6 % 8];
        float logits[MAX_V] = {0};
        random_logits(logits, V, round, 2.0f, round % 2 == 0);
        double want[MAX_V];
        float got[MAX_V];
        reference_filter(logits, V, temperature, top_p, want);
        sample_token(logits, V, temperature, top_p, 0.5, got);
        double total = sampler_sum(got, V, 0.0f);
        for (int i = 0; i < V; i++) {
            CHECK(t, fabs(got[i] / total - want[i]) <= 1e-12, "V %d top-p %g: p(%d) is %g, want %g", V, (double)top_p,
                  i, got[i] / total, want[i]);
        }
        if (V <= 64) { check_draws(t, logits, V, temperature, top_p, want); }
    }
}

// A large vocabulary, ascending, descending, or of equal tokens. A quadratic selection would take minutes.
TEST(test_large_vocabulary) {
    enum { V = 200000 };
    float *logits = (float *)malloc(V * sizeof(float)), *probs = (float *)malloc(V * sizeof(float));
    for (int shape = 0; shape < 3; shape++) {
        for (int i = 0; i < V; i++) { logits[i] = 1e-5f * (float)(shape == 0 ? i : shape == 1 ? V - i : 0); }
        int token = sample_token(logits, V, 1.0f, 0.0025f, 0.7, probs);
        int kept = 0;
        for (int i = 0; i < V; i++) { kept += probs[i] > 0.0f; }
        CHECK(t, kept >= 200 && kept <= 500, "shape %d: %d tokens kept, not 200 to 500", shape, kept);
        CHECK(t, token >= 0 && probs[token] > 0.0f, "shape %d: drew an excluded token", shape);
        if (shape == 2) { CHECK(t, kept == 500 && probs[499] > 0.0f, "ties are not kept from the lowest id"); }
    }
    free(logits), free(probs);
}
