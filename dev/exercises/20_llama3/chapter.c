// Chapter 20, Llama 3: the worked example of doc/20_llama3.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

#include "llmc/model/rope.h"

#define DEGREE (3.14159265358979323846 / 180.0)

static void example_rmsnorm(void) {
    enum { C = 4 };
    float x[C] = {1, 7, 5, 5}, weight[C] = {1, 2, 1, 3}, dout[C] = {3, 0, 0, 1};
    float out[C], n[C], rstd, dx[C] = {0}, dweight[C] = {0};
    cpu_rmsnorm_forward(out, &rstd, x, weight, 1, C, 1e-5f);
    cpu_rmsnorm_backward(dx, dweight, dout, x, &rstd, weight, 1, C);
    for (int c = 0; c < C; c++) { n[c] = x[c] * rstd; }
    printf("RMSNorm: rstd %.4f\n", (double)rstd);
    print_row("x", x, C), print_row("n", n, C), print_row("weight", weight, C), print_row("out", out, C);
    print_row("dout", dout, C), print_row("dx", dx, C), print_row("dweight", dweight, C);
}

// What is 0 but for rounding becomes 0.
static float tidy(double x) { return fabs(x) < 1e-5 ? 0.0f : (float)x; }

// Rotates three equal queries and keys, pair 0 by 90 degrees a position and pair 1 by 30, and prints their scores.
static void example_rope(int first) {
    enum { T = 3, HS = 4 };
    float table[T * HS], qkv[T][3 * HS] = {{0}};
    for (int i = 0; i < T; i++) {
        for (int j = 0; j < 2; j++) {
            double angle = (first + i) * (j == 0 ? 90.0 : 30.0) * DEGREE;
            table[i * HS + 2 * j] = (float)cos(angle), table[i * HS + 2 * j + 1] = (float)sin(angle);
        }
        qkv[i][0] = 1, qkv[i][1] = 2, qkv[i][HS] = 1, qkv[i][HS + 1] = 1;
    }
    cpu_rope_forward(&qkv[0][0], table, T, T, 1, 1, HS);
    printf("\nRoPE: positions %d, %d, %d: q, then its scores\n", first, first + 1, first + 2);
    for (int i = 0; i < T; i++) {
        float shown[HS + T];
        for (int c = 0; c < HS; c++) { shown[c] = tidy((double)qkv[i][c]); }
        for (int j = 0; j <= i; j++) {
            double sum = 0.0;
            for (int c = 0; c < HS; c++) { sum += (double)qkv[i][c] * (double)qkv[j][HS + c]; }
            shown[HS + j] = tidy(sum);
        }
        print_numbered("q", i, shown, HS + i + 1);
    }
}

// Prints wavelengths of Llama 3.2 1B, as they are and stretched.
static void example_scaling(void) {
    const int pairs[] = {0, 14, 15, 16, 17, 18, 31};
    ModelConfig scaled = cpu_llama_size("llama:1B", 1).config, plain = scaled;
    plain.rope_context = 0;
    printf("\nLlama 3.2 1B: pair, wavelength in positions, stretched by\n");
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        double before = rope_frequency(&plain, pairs[i]), after = rope_frequency(&scaled, pairs[i]);
        printf("%4d %12.1f %8.2f\n", pairs[i], 360.0 * DEGREE / before, before / after);
    }
}

// Two tokens, two heads of queries, one of keys and values. With `heads` 1 only head `first` of the queries is there.
static void group_backward(float *dkv, float *out, int first, int heads) {
    enum { T = 2, HS = 2 };
    const float q[T][4] = {{1, 0, 0, 1}, {1, 0, 0, 1}}, dO[T][4] = {{1, 0, 2, 0}, {1, 0, 2, 0}};
    const float root2_ln3 = 1.55367f, kv[T][4] = {{root2_ln3, 0, 4, 0}, {0, root2_ln3, 0, 4}};
    float qkv[T * 8], dqkv[T * 8] = {0}, dout[T * 4], lse[T * 2];
    int width = heads * HS + 4;
    for (int t = 0; t < T; t++) {
        memcpy(qkv + t * width, q[t] + first * HS, (size_t)(heads * HS) * sizeof(float));
        memcpy(qkv + t * width + heads * HS, kv[t], sizeof(kv[t]));
        memcpy(dout + t * heads * HS, dO[t] + first * HS, (size_t)(heads * HS) * sizeof(float));
    }
    cpu_grouped_attention_forward(out, lse, qkv, 1, T, heads, 1, HS);
    cpu_grouped_attention_backward(dqkv, dout, qkv, out, lse, 1, T, heads, 1, HS);
    for (int t = 0; t < T; t++) { memcpy(dkv + t * 4, dqkv + t * width + heads * HS, 4 * sizeof(float)); }
}

static void example_group(void) {
    float dkv[8], out[8];
    group_backward(dkv, out, 0, 2);
    printf("\nTwo heads of queries share k and v; token 1:\n");
    print_row("out", out + 4, 4);
    for (int h = 0; h < 2; h++) {
        char name[32];
        snprintf(name, sizeof(name), "dk, dv, head %d", h);
        group_backward(dkv, out, h, 1);
        print_row(name, dkv + 4, 4);
    }
    group_backward(dkv, out, 0, 2);
    print_row("dk, dv, both", dkv + 4, 4);
}

static void example_swiglu(void) {
    enum { F = 3 };
    const float ln3 = 1.0986123f;
    float fc[2 * F] = {ln3, 0, -ln3, 4, 4, 4}, dout[F] = {1, 1, 1}, out[F], dfc[2 * F];
    cpu_swiglu_forward(out, fc, 1, F);
    cpu_swiglu_backward(dfc, fc, dout, 1, F);
    printf("\nSwiGLU: up = 4, dout = 1\n");
    print_row("gate", fc, F), print_row("out", out, F), print_row("dgate", dfc, F), print_row("dup", dfc + F, F);
}

// Prints what a model is made of, the KiB of its cache for a token in bf16, with KV heads and with NH, and the
// arithmetic to train on a token.
static void example_sizes(void) {
    const char *names[] = {"smollm2:135M", "llama:1B", "llama:3B", "llama:8B"};
    const int64_t T = 8192;
    printf("\n%-14s %11s %11s %9s %9s %9s\n", "", "parameters", "embeddings", "cache", "NH heads", "GFLOP");
    for (int i = 0; i < 4; i++) {
        LlamaSize size = cpu_llama_size(names[i], T);
        const ModelConfig *c = &size.config;
        double embedding = (c->tied ? 1.0 : 2.0) * c->vocab_size * c->channels / (double)size.parameters;
        double head = 2.0 * 2.0 * c->num_layers * c->head_size / 1024.0; // of keys and values
        printf("%-14s %11lld %9.1f %% %9.1f %9.1f %9.2f\n", names[i], (long long)size.parameters, 100.0 * embedding,
               head * c->num_kv_heads, head * c->num_heads, size.flops_per_token / 1e9);
    }
}

static void example(void) {
    example_rmsnorm();
    example_rope(0);
    example_rope(9);
    example_scaling();
    example_group();
    example_swiglu();
    example_sizes();
}

enum { HEAD = 64, WIDE = 96, ROWS = 5, NH = 6, KV = 2, HS = 4, C = NH * HS, GROUPED = C + 2 * KV * HS };

static float head_angles[HEAD], head_dout[HEAD];

// A loss: the rotated head's numbers, each with a weight of its own. The head of keys is not looked at.
static double rope_loss(const double *x) {
    float qkv[3 * HEAD] = {0};
    double loss = 0.0;
    for (int i = 0; i < HEAD; i++) { qkv[i] = (float)x[i]; }
    cpu_rope_forward(qkv, head_angles, 1, 1, 1, 1, HEAD);
    for (int i = 0; i < HEAD; i++) { loss += (double)qkv[i] * (double)head_dout[i]; }
    return loss;
}

// The loss is linear, so that a central difference with h = 1 is exact, but for the roundings: a step changes two
// numbers below 6 in the forward, each off by 1.5 half epsilons of their parts, twice, times a weight below 4.
static void check_rope(Test *t) {
    float x[HEAD], dx[HEAD], slopes[HEAD], forward[3 * HEAD] = {0}, neighbours[HEAD];
    double numbers[HEAD];
    random_floats(x, HEAD, 16, 1), random_floats(dx, HEAD, 16, 2);
    memcpy(head_dout, dx, sizeof(dx));
    for (int j = 0; j < HEAD / 2; j++) {
        double angle = 100.0 * pow(5e5, -2.0 * j / HEAD);
        head_angles[2 * j] = (float)cos(angle), head_angles[2 * j + 1] = (float)sin(angle);
    }
    as_doubles(numbers, x, HEAD);
    slopes_of(slopes, numbers, HEAD, 1.0, rope_loss);
    rope_head_backward(dx, head_angles, HEAD);
    check_close(t, "a head of 64 numbers at position 100: dx", dx, slopes, HEAD, 2 * 6 * 4 * 1.5 * (double)FLT_EPSILON,
                0.0);
    likely(t, dx, head_dout, HEAD, "nothing is rotated");
    memcpy(forward, head_dout, sizeof(head_dout));
    cpu_rope_forward(forward, head_angles, 1, 1, 1, 1, HEAD);
    likely(t, dx, forward, HEAD, "this rotates forward once more; the transpose of a rotation rotates back");
    for (int j = 0; j < HEAD; j += 2) {
        float cosine = head_angles[j], sine = head_angles[j + 1], a = head_dout[j], b = head_dout[j + 1];
        neighbours[j] = a * cosine + b * sine, neighbours[j + 1] = b * cosine - a * sine;
    }
    likely(t, dx, neighbours, HEAD, "pairs are j and j + HS/2, not neighbours");
}

#define EPSILON 0.1 // so large that leaving it out shows

static float row_dout[WIDE];

// numbers: x, then the weight.
static double rmsnorm_loss(const double *numbers) {
    const double *x = numbers, *weight = numbers + WIDE;
    double squares = 0.0, loss = 0.0;
    for (int c = 0; c < WIDE; c++) { squares += x[c] * x[c]; }
    for (int c = 0; c < WIDE; c++) { loss += x[c] / sqrt(squares / WIDE + EPSILON) * weight[c] * (double)row_dout[c]; }
    return loss;
}

// Central differences in double are right to 1e-9 here. A float sum of WIDE terms is off by WIDE half epsilons.
static void check_rmsnorm(Test *t) {
    float x[2 * WIDE], *weight = x + WIDE, out[WIDE], rstd, got[2 * WIDE], slopes[2 * WIDE];
    float constant[WIDE], unweighted[WIDE], sum[WIDE];
    double gn = 0.0, plain = 0.0;
    double numbers[2 * WIDE];
    random_floats(x, 2 * WIDE, 16, 3), random_floats(row_dout, WIDE, 16, 5);
    as_doubles(numbers, x, 2 * WIDE);
    slopes_of(slopes, numbers, 2 * WIDE, 1e-5, rmsnorm_loss);
    cpu_rmsnorm_forward(out, &rstd, x, weight, 1, WIDE, (float)EPSILON);
    rmsnorm_row_backward(got, got + WIDE, row_dout, x, rstd, weight, WIDE);
    // The values stay below 8.
    check_close(t, "a row of 96 numbers: dx", got, slopes, WIDE, WIDE * (double)FLT_EPSILON * 8.0, 0.0);
    check_close(t, "dweight", got + WIDE, slopes + WIDE, WIDE, WIDE * (double)FLT_EPSILON * 8.0, 0.0);
    for (int c = 0; c < WIDE; c++) {
        double part = (double)row_dout[c] * (double)x[c] * (double)rstd / WIDE;
        gn += (double)weight[c] * part, plain += part;
    }
    for (int c = 0; c < WIDE; c++) {
        float n = x[c] * rstd;
        constant[c] = rstd * weight[c] * row_dout[c];
        unweighted[c] = constant[c] - rstd * n * (float)plain;
        sum[c] = constant[c] - rstd * n * (float)gn * WIDE;
    }
    likely(t, got, constant, WIDE, "rstd depends on x, too");
    likely(t, got, unweighted, WIDE, "the mean is that of weight * dout * n; the weight is missing");
    likely(t, got, sum, WIDE, "the sum is not divided by C");
}

static float grouped_dout[ROWS * C];

// A loss: attention's outputs, each with a weight of its own.
static double grouped_loss(const double *numbers) {
    float grouped[ROWS * GROUPED], out[ROWS * C], lse[NH * ROWS];
    double loss = 0.0;
    for (int i = 0; i < ROWS * GROUPED; i++) { grouped[i] = (float)numbers[i]; }
    cpu_grouped_attention_forward(out, lse, grouped, 1, ROWS, NH, KV, HS);
    for (int i = 0; i < ROWS * C; i++) { loss += (double)out[i] * (double)grouped_dout[i]; }
    return loss;
}

static void check_groups(Test *t) {
    float grouped[ROWS * GROUPED], dgrouped[ROWS * GROUPED] = {0}, qkv[ROWS * 3 * C], dqkv[ROWS * 3 * C] = {0};
    float out[ROWS * C], lse[NH * ROWS], *dout = grouped_dout, slopes[ROWS * GROUPED];
    double numbers[ROWS * GROUPED];
    random_floats(grouped, ROWS * GROUPED, 16, 6), random_floats(dout, ROWS * C, 16, 7);
    copy_heads(qkv, grouped, ROWS, NH, KV, HS);
    cpu_attention_forward(out, lse, qkv, 1, ROWS, C, NH);
    cpu_attention_backward(dqkv, dout, qkv, out, lse, 1, ROWS, C, NH);
    copy_heads_backward(dgrouped, dqkv, ROWS, NH, KV, HS);
    as_doubles(numbers, grouped, ROWS * GROUPED);
    slopes_of(slopes, numbers, ROWS * GROUPED, 1.0 / 64, grouped_loss);
    // h^2/6 = 4e-5 times third derivatives of up to 20; the outputs' float errors make 2e-6, over 2 h = 1/32.
    check_close(t, "5 rows of 6 heads of q and 2 of k and v, of 4 numbers: dgrouped", dgrouped, slopes, ROWS * GROUPED,
                1e-3, 0.0);
    float first[ROWS * GROUPED], last[ROWS * GROUPED], as_they_lie[ROWS * GROUPED];
    for (int i = 0; i < ROWS * GROUPED; i++) {
        int row = i / GROUPED, at = i % GROUPED - C, kind = at / (KV * HS), head = at / HS % KV * (NH / KV);
        const float *from = dqkv + row * 3 * C + (1 + kind) * C + at % HS;
        as_they_lie[i] = dqkv[row * 3 * C + i % GROUPED];
        first[i] = at < 0 ? dqkv[row * 3 * C + i % GROUPED] : from[head * HS];
        last[i] = at < 0 ? first[i] : from[(head + NH / KV - 1) * HS];
    }
    likely(t, dgrouped, as_they_lie, ROWS * GROUPED, "a row of dqkv has the k of all heads before any v");
    likely(t, dgrouped, first, ROWS * GROUPED, "a group has the gradient of its first head only");
    likely(t, dgrouped, last, ROWS * GROUPED, "a group has the gradient of its last head only: = in place of +=");
}

static const Exercise exercises[] = {{"20.1 the backward of RoPE", check_rope},
                                     {"20.2 the backward of RMSNorm", check_rmsnorm},
                                     {"20.3 the sum over a group", check_groups}};

int main(void) { return run_chapter("20_llama3", example, exercises); }
