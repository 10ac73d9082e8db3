// Chapter 5, attention: the worked example of doc/05_attention.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

enum { T = 3, HS = 2, KEYS = 37, WIDE = 8 };

// ---- The worked example: one head, three tokens ----

// Puts rows of q, k and v side by side, as the linear layer before attention does. qkv (rows,3 HS).
static void join(float *qkv, const float *q, const float *k, const float *v, int rows, int head_size) {
    for (int i = 0; i < rows; i++) {
        for (int d = 0; d < head_size; d++) {
            float *row = qkv + i * 3 * head_size + d;
            row[0] = q[i * head_size + d];
            row[head_size] = k[i * head_size + d];
            row[2 * head_size] = v[i * head_size + d];
        }
    }
}

static float dot(const float *x, const float *y, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) { sum += x[i] * y[i]; }
    return sum;
}

// The softmax of the last query, key by key: what the GPU does tile by tile.
static void print_online(const float *q, const float *k, const float *v) {
    float m = -INFINITY, l = 0.0f, sum[HS] = {0};
    printf("query 2, key by key:  m, l, sum\n");
    for (int j = 0; j < T; j++) {
        float score = dot(q + 2 * HS, k + j * HS, HS) / sqrtf(HS), before = m;
        m = fmaxf(m, score);
        float correction = expf(before - m), weight = expf(score - m);
        l = l * correction + weight;
        for (int d = 0; d < HS; d++) { sum[d] = sum[d] * correction + weight * v[j * HS + d]; }
        const float state[] = {m, l, sum[0], sum[1]};
        char name[24];
        snprintf(name, sizeof(name), "after key %d", j);
        print_row(name, state, 4);
    }
}

static void example(void) {
    const float ln2 = sqrtf(2.0f) * logf(2.0f), ln3 = sqrtf(2.0f) * logf(3.0f); // the scale of HS = 2 removes the root
    const float q[T * HS] = {1, 0, 1, 0, 0, 1}, k[T * HS] = {ln3, 0, 0, ln2, 0, ln3}, v[T * HS] = {12, 0, 0, 12, 2, 2};
    const float dout[T * HS] = {1, 0, 1, 0, 0, 1};
    float qkv[3 * T * HS], out[T * HS], lse[T], dqkv[3 * T * HS] = {0}, p[T * T] = {0}, ds[T * T] = {0}, delta[T];
    join(qkv, q, k, v, T, HS);
    cpu_attention_forward(out, lse, qkv, 1, T, HS, 1);
    cpu_attention_backward(dqkv, dout, qkv, out, lse, 1, T, HS, 1);
    for (int i = 0; i < T; i++) {
        delta[i] = dot(dout + i * HS, out + i * HS, HS);
        for (int j = 0; j <= i; j++) {
            p[i * T + j] = expf(dot(q + i * HS, k + j * HS, HS) / sqrtf(HS) - lse[i]);
            ds[i * T + j] = p[i * T + j] * (dot(dout + i * HS, v + j * HS, HS) - delta[i]);
        }
    }
    print_rows("q", q, T, HS, HS), print_rows("k", k, T, HS, HS), print_rows("v", v, T, HS, HS);
    print_row("lse", lse, T);
    print_rows("p", p, T, T, T), print_rows("out", out, T, HS, HS);
    print_online(q, k, v);
    print_rows("dout", dout, T, HS, HS);
    print_row("delta", delta, T);
    print_rows("ds", ds, T, T, T);
    print_rows("dq", dqkv, T, HS, 3 * HS), print_rows("dk", dqkv + HS, T, HS, 3 * HS);
    print_rows("dv", dqkv + 2 * HS, T, HS, 3 * HS);
    int64_t rows = 4 * 12 * 1024; // B NH T of GPT-2 124M
    printf("a layer of GPT-2 124M, B = 4, T = 1024: p has %lld bytes in bf16, lse has %lld bytes in fp32\n",
           (long long)(rows * 1024 * 2), (long long)(rows * 4));
}

// ---- The checks ----

// One head of KEYS tokens, with its forward.
typedef struct {
    float q[KEYS * WIDE], k[KEYS * WIDE], v[KEYS * WIDE], qkv[3 * KEYS * WIDE], out[KEYS * WIDE], lse[KEYS];
} Problem;

// Channel 0 adds `shift` to every score, which changes no p.
static void make_problem(Problem *problem, float shift, uint64_t stream) {
    random_floats(problem->q, KEYS * WIDE, 5, stream);
    random_floats(problem->k, KEYS * WIDE, 5, stream + 1);
    random_floats(problem->v, KEYS * WIDE, 5, stream + 2);
    for (int i = 0; i < KEYS; i++) { problem->q[i * WIDE] = sqrtf(WIDE) * shift, problem->k[i * WIDE] = 1.0f; }
    join(problem->qkv, problem->q, problem->k, problem->v, KEYS, WIDE);
    cpu_attention_forward(problem->out, problem->lse, problem->qkv, 1, KEYS, WIDE, 1);
}

// A score is a sum of WIDE products with magnitudes of SCORES together at most. Two such sums differ by at most WIDE
// epsilons of that. p changes by so much of itself, and out by so much of the largest |v|, which is below 4, and again
// because the p are divided by their sum. The sums over the keys add KEYS epsilons.
#define SCORES 160.0
#define SCORE_ERROR (WIDE * FLT_EPSILON * SCORES + KEYS * FLT_EPSILON)

static void check_online_attention_near(Test *t, float shift) {
    Problem problem;
    make_problem(&problem, shift, 1);
    for (int n = 1; n <= KEYS && t->failures == 0; n++) {
        const float *q = problem.q + (n - 1) * WIDE, *want_lse = problem.lse + n - 1;
        float out[WIDE], lse, largest = -INFINITY;
        online_attention(out, &lse, q, problem.k, problem.v, n, WIDE);
        const char *keys = format("%d keys, scores near %g", n, (double)shift);
        same_numbers(t, format("%s: out", keys), out, problem.out + (n - 1) * WIDE, WIDE, 8.0 * SCORE_ERROR, 0.0);
        same_numbers(t, format("%s: lse", keys), &lse, want_lse, 1, SCORE_ERROR, 0.0);
        for (int j = 0; j < n; j++) { largest = fmaxf(largest, dot(q, problem.k + j * WIDE, WIDE) / sqrtf(WIDE)); }
        float no_largest = *want_lse - largest;
        likely(t, &lse, &no_largest, 1, "lse lacks the largest score: it is m + log(l).");
    }
}

// exp(120) is too large for a float, and exp(-120) is 0 in one.
static void check_online_attention(Test *t) {
    check_online_attention_near(t, 120.0f);
    check_online_attention_near(t, -120.0f);
}

// dk and dv are sums of at most KEYS products, here with magnitudes below 16 each, with a p that is as exact as the
// scores, whose magnitudes stay below 16.
static void check_key_gradient(Test *t) {
    const double tolerance = KEYS * 16.0 * (WIDE * 16.0 + KEYS) * FLT_EPSILON;
    Problem problem;
    float dout[KEYS * WIDE], dqkv[3 * KEYS * WIDE] = {0};
    make_problem(&problem, 0.0f, 4);
    random_floats(dout, KEYS * WIDE, 5, 7);
    cpu_attention_backward(dqkv, dout, problem.qkv, problem.out, problem.lse, 1, KEYS, WIDE, 1);
    for (int j = 0; j < KEYS; j++) {
        float dk[WIDE], dv[WIDE];
        key_gradient(dk, dv, j, problem.q, problem.k, problem.v, problem.out, dout, problem.lse, KEYS, WIDE);
        const float *want = dqkv + (j * 3 + 1) * WIDE;
        float no_scale[WIDE];
        same_numbers(t, format("dk of key %d of %d", j, KEYS), dk, want, WIDE, tolerance, 0.0);
        same_numbers(t, format("dv of key %d of %d", j, KEYS), dv, want + WIDE, WIDE, tolerance, 0.0);
        for (int d = 0; d < WIDE; d++) { no_scale[d] = want[d] * sqrtf(WIDE); }
        likely(t, dk, no_scale, WIDE, "dk lacks the factor scale: score = scale * q.k.");
        if (t->failures > 0) { return; }
    }
}

// Counts from the keys' side: key j is read by all tiles but those that end before it.
static void check_key_value_bytes(Test *t) {
    const int lengths[] = {1, 5, 128, 1000, 1024, 100000}, tiles[] = {1, 7, 32, 128};
    for (int i = 0; i < 24; i++) {
        int length = lengths[i % 6], rows = tiles[i / 6], all = (length + rows - 1) / rows;
        int64_t want = 0;
        for (int j = 0; j < length; j++) { want += (int64_t)(all - j / rows) * 64 * 4; }
        int64_t got = key_value_bytes(length, rows, 64);
        CHECK(t, got == want, "key_value_bytes(%d, %d, 64) is %lld, expected %lld", length, rows, (long long)got,
              (long long)want);
    }
}

static const Exercise exercises[] = {{"5.1 attention in one pass over the keys", check_online_attention},
                                     {"5.2 the gradient of a key and its value", check_key_gradient},
                                     {"5.3 the bytes that the tiles read", check_key_value_bytes}};

int main(void) { return run_chapter("05_attention", example, exercises); }
