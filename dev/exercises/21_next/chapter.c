// Chapter 21, what would come next: the worked example of doc/21_next.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

// Muon's idea: f(s) = 1.5 s - 0.5 s^3 brings every singular value between 0 and sqrt(3) to 1.
static void example_singular_values(void) {
    float s[3] = {1.0f, 0.5f, 0.1f};
    for (int step = 0; step <= 8; step += 2) {
        char name[24];
        snprintf(name, sizeof(name), "step %d", step);
        print_row(name, s, 3);
        for (int i = 0; i < 6; i++) { s[i % 3] = 1.5f * s[i % 3] - 0.5f * s[i % 3] * s[i % 3] * s[i % 3]; }
    }
}

// Four experts with one channel, of which a token takes the second and the third.
static void example_experts(void) {
    enum { E = 4 };
    float p[E] = {0.1f, 0.3f, 0.4f, 0.2f}, outs[E] = {7, 10, 5, 9}, out = 0.0f, dp[E] = {0}, dlogits[E], sum = 0.0f;
    for (int e = 1; e < 3; e++) { out += p[e] * outs[e], dp[e] = outs[e], sum += p[e] * dp[e]; } // dout is 1
    for (int e = 0; e < E; e++) { dlogits[e] = p[e] * (dp[e] - sum); }
    printf("\nexperts 1 and 2 of 0 to 3 are chosen: out %.4f\n", (double)out);
    print_row("p", p, E), print_row("outs", outs, E), print_row("dp", dp, E), print_row("dlogits", dlogits, E);
}

// The last query of a sequence of one head, with the keys first .. end-1, as the trainer's attention computes it. The
// query takes the place of the last row, which sees all rows.
static void attend(float *out, float *lse, const float *q, const float *keys, const float *values, int first, int end,
                   int HS) {
    enum { MOST = 32 * 3 * 64 };
    float qkv[MOST] = {0}, outs[MOST], lses[32];
    int T = end - first;
    for (int t = 0; t < T; t++) {
        memcpy(qkv + t * 3 * HS, q, (size_t)HS * sizeof(float));
        memcpy(qkv + t * 3 * HS + HS, keys + (first + t) * HS, (size_t)HS * sizeof(float));
        memcpy(qkv + t * 3 * HS + 2 * HS, values + (first + t) * HS, (size_t)HS * sizeof(float));
    }
    cpu_attention_forward(outs, lses, qkv, 1, T, HS, 1);
    memcpy(out, outs + (T - 1) * HS, (size_t)HS * sizeof(float));
    *lse = lses[T - 1];
}

// The query of chapter 5 that sees three keys, whose scores are 0, ln 2 and ln 3: all at once, and in two parts.
static void example_parts(void) {
    enum { HS = 2 };
    const float root2 = sqrtf(2.0f), ln2 = logf(2.0f), ln3 = logf(3.0f);
    const float q[HS] = {0, 1}, keys[3 * HS] = {root2 * ln3, 0, 0, root2 * ln2, 0, root2 * ln3};
    const float values[3 * HS] = {12, 0, 0, 12, 2, 2};
    const int ends[3][2] = {{0, 3}, {0, 2}, {2, 3}};
    printf("\nattention's out, and e^lse\n");
    for (int i = 0; i < 3; i++) {
        float row[HS + 1], lse;
        char name[24];
        attend(row, &lse, q, keys, values, ends[i][0], ends[i][1], HS);
        row[HS] = expf(lse);
        snprintf(name, sizeof(name), "keys %d to %d", ends[i][0], ends[i][1] - 1);
        print_row(name, row, HS + 1);
    }
}

static void example(void) {
    example_singular_values();
    example_experts();
    example_parts();
}

enum { EXPERTS = 6, WIDTH = 5, KEYS = 23, HEAD = 16, ROWS = 4, C = 7, RANK = 2, OC = 6 };

static const int is_chosen[EXPERTS] = {0, 1, 0, 1, 1, 0};
static float experts_dout[WIDTH];

// numbers: the logits, then the experts' outputs.
static double experts_loss(const double *numbers) {
    double sum = 0.0, loss = 0.0;
    for (int e = 0; e < EXPERTS; e++) { sum += exp(numbers[e]); }
    for (int i = 0; i < EXPERTS * WIDTH; i++) {
        int e = i / WIDTH;
        double part = exp(numbers[e]) / sum * numbers[EXPERTS + i] * (double)experts_dout[i % WIDTH];
        loss += is_chosen[e] ? part : 0.0;
    }
    return loss;
}

// A sum of up to 15 products of numbers below 4, each rounded a few times.
#define SHORT_SUM_ERROR (4 * 15 * 16 * (double)FLT_EPSILON)

// Reports 21.1's likely mistakes. dp is the gradient of a probability.
static void explain_experts(Test *t, const float *got, const float *p, const float *outs) {
    float dp[EXPERTS] = {0}, no_sum[EXPERTS], chosen[EXPERTS], every[EXPERTS], sum = 0.0f, of_all = 0.0f;
    for (int i = 0; i < EXPERTS * WIDTH; i++) { dp[i / WIDTH] += experts_dout[i % WIDTH] * outs[i]; }
    for (int e = 0; e < EXPERTS; e++) {
        of_all += p[e] * dp[e];
        sum += is_chosen[e] ? p[e] * dp[e] : 0.0f;
    }
    for (int e = 0; e < EXPERTS; e++) {
        no_sum[e] = is_chosen[e] ? p[e] * dp[e] : 0.0f;
        chosen[e] = is_chosen[e] ? p[e] * (dp[e] - sum) : 0.0f;
        every[e] = p[e] * (dp[e] - of_all);
        dp[e] = is_chosen[e] ? dp[e] : 0.0f;
    }
    likely(t, got, dp, EXPERTS, "these are the gradients of p, not of the logits");
    likely(t, got, no_sum, EXPERTS, "the sum over p dp is missing in the softmax's gradient");
    likely(t, got, chosen, EXPERTS, "a logit that was not chosen has a gradient, too");
    likely(t, got, every, EXPERTS, "an expert that was not chosen has dp = 0");
}

static void check_experts(Test *t) {
    enum { N = EXPERTS + EXPERTS * WIDTH };
    float x[N], p[EXPERTS], slopes[N], got[N];
    double numbers[N], sum = 0.0;
    random_floats(x, N, 15, 1), random_floats(experts_dout, WIDTH, 15, 2);
    as_doubles(numbers, x, N);
    for (int e = 0; e < EXPERTS; e++) { sum += exp(numbers[e]); }
    for (int e = 0; e < EXPERTS; e++) { p[e] = (float)(exp(numbers[e]) / sum); }
    slopes_of(slopes, numbers, N, 1e-5, experts_loss); // right to 1e-8
    experts_backward(got, got + EXPERTS, experts_dout, p, is_chosen, x + EXPERTS, EXPERTS, WIDTH);
    check_close(t, "experts 1, 3 and 4 of 6: dlogits", got, slopes, EXPERTS, SHORT_SUM_ERROR, 0.0);
    check_close(t, "experts 1, 3 and 4 of 6: douts", got + EXPERTS, slopes + EXPERTS, EXPERTS * WIDTH, SHORT_SUM_ERROR,
                0.0);
    explain_experts(t, got, p, x + EXPERTS);
}

// Scores of a hundred and more, so that e^lse is no float. An lse of 300 is off by 300 half epsilons on either side.
static void check_parts(Test *t) {
    float q[HEAD], keys[KEYS * HEAD], values[KEYS * HEAD], part1[HEAD], part2[HEAD], want[HEAD], got[HEAD];
    float lse1, lse2, want_lse, lse;
    random_floats(q, HEAD, 15, 3), random_floats(keys, KEYS * HEAD, 15, 4), random_floats(values, KEYS * HEAD, 15, 5);
    for (int c = 0; c < HEAD; c++) {
        q[c] *= 4.0f;
        for (int j = 0; j < KEYS; j++) { keys[j * HEAD + c] += 8.0f * q[c]; }
    }
    for (int split = 1; split < KEYS; split += 7) {
        attend(part1, &lse1, q, keys, values, 0, split, HEAD);
        attend(part2, &lse2, q, keys, values, split, KEYS, HEAD);
        attend(want, &want_lse, q, keys, values, 0, KEYS, HEAD);
        join_parts(got, &lse, part1, lse1, part2, lse2, HEAD);
        double error = 8.0 * (double)want_lse * (double)FLT_EPSILON;
        float mean[HEAD], by_lse[HEAD], larger[HEAD];
        for (int c = 0; c < HEAD; c++) {
            mean[c] = 0.5f * (part1[c] + part2[c]), by_lse[c] = (lse1 * part1[c] + lse2 * part2[c]) / (lse1 + lse2);
            larger[c] = lse1 > lse2 ? part1[c] : part2[c];
        }
        char what[64];
        snprintf(what, sizeof(what), "lse %.4f and %.4f: the joined lse", (double)lse1, (double)lse2);
        bool ok = check_close(t, what, &lse, &want_lse, 1, error, 0.0);
        snprintf(what, sizeof(what), "lse %.4f and %.4f: the joined out", (double)lse1, (double)lse2);
        ok = check_close(t, what, got, want, HEAD, 4.0 * error, 0.0) && ok; // the values stay below 4
        if (ok) { continue; }
        if (!isfinite(lse)) { printf("  Likely: e^lse overflows; subtract the larger lse first\n"); }
        likely(t, got, mean, HEAD, "a mean; each part has the weight e^lse");
        likely(t, got, by_lse, HEAD, "the weights are e^lse, not lse");
        likely(t, got, larger, HEAD, "the part with the smaller lse is forgotten");
        return;
    }
}

static float lora_x[ROWS * C], lora_dy[ROWS * OC];

// numbers: A, then B.
static double lora_loss(const double *numbers) {
    double loss = 0.0;
    for (int i = 0; i < ROWS * RANK; i++) {
        double h = 0.0;
        int n = i / RANK, r = i % RANK;
        for (int c = 0; c < C; c++) { h += (double)lora_x[n * C + c] * numbers[r * C + c]; }
        for (int o = 0; o < OC; o++) { loss += h * numbers[RANK * C + o * RANK + r] * (double)lora_dy[n * OC + o]; }
    }
    return loss;
}

static void check_lora(Test *t) {
    enum { N = RANK * C + OC * RANK };
    float x[N], slopes[N], got[N], h[ROWS * RANK], dh[ROWS * RANK], mistaken[N] = {0};
    double numbers[N];
    random_floats(x, N, 15, 6), random_floats(lora_x, ROWS * C, 15, 7), random_floats(lora_dy, ROWS * OC, 15, 8);
    as_doubles(numbers, x, N);
    slopes_of(slopes, numbers, N, 1e-5, lora_loss);
    lora_backward(got, got + RANK * C, lora_dy, lora_x, x, x + RANK * C, ROWS, C, RANK, OC);
    // sums of sums, up to 28 products of three
    check_close(t, "4 rows of x: dA", got, slopes, RANK * C, 4.0 * SHORT_SUM_ERROR, 0.0);
    check_close(t, "4 rows of x: dB", got + RANK * C, slopes + RANK * C, OC * RANK, 4.0 * SHORT_SUM_ERROR, 0.0);
    cpu_matmul_forward(h, NULL, lora_x, x, NULL, ROWS, C, RANK);
    for (int i = 0; i < ROWS * RANK; i++) {
        dh[i] = 0.0f;
        for (int o = 0; o < OC; o++) { dh[i] += lora_dy[i / RANK * OC + o] * x[RANK * C + o * RANK + i % RANK]; }
    }
    const float *last_h = h + (ROWS - 1) * RANK, *last_dh = dh + (ROWS - 1) * RANK;
    const float *last_x = lora_x + (ROWS - 1) * C, *last_dy = lora_dy + (ROWS - 1) * OC;
    for (int i = 0; i < RANK * C; i++) { mistaken[i] = last_dh[i / C] * last_x[i % C]; }
    for (int i = 0; i < OC * RANK; i++) { mistaken[RANK * C + i] = last_dy[i / RANK] * last_h[i % RANK]; }
    likely(t, got, mistaken, N, "this is the gradient of the last row only: = in place of +=");
}

static const Exercise exercises[] = {{"21.1 the gradient of a router", check_experts},
                                     {"21.2 attention in two parts", check_parts},
                                     {"21.3 the gradients of LoRA", check_lora}};

int main(void) { return run_chapter("21_next", example, exercises); }
