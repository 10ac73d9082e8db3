// Chapter 15, what would come next: the worked example of doc/15_next.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#ifdef SOLUTIONS
#include "dev/exercises/15_next/solutions.h"
#else
#include "dev/exercises/15_next/exercises.h"
#endif
#include <float.h>

#include "llmc/base/rand.h"
#include "llmc/model/params.h"

#define SIXTH_OF_PI (3.14159265358979323846 / 6.0) // 30 degrees

// Turns the pair (x[0], x[1]) by 30 degrees for each position.
static void turn(float *x, int position) {
    double cosine = cos(position * SIXTH_OF_PI), sine = sin(position * SIXTH_OF_PI), a = (double)x[0], b = (double)x[1];
    x[0] = (float)(a * cosine - b * sine), x[1] = (float)(a * sine + b * cosine);
}

// Attention of three equal queries and keys, whose pairs are turned by their positions, which begin at `first`.
static void turned_attention(int first) {
    enum { T = 3, HS = 2 };
    float qkv[T][3 * HS], out[T * HS], lse[T], scores[T * T], shown[T];
    for (int i = 0; i < T; i++) {
        float row[3 * HS] = {2, 0, 1, 0, (float)(12 * i), 1}; // q, k, v
        memcpy(qkv[i], row, sizeof(row));
        turn(qkv[i], first + i), turn(qkv[i] + HS, first + i);
    }
    for (int i = 0; i < T; i++) {
        for (int j = 0; j < T; j++) { scores[i * T + j] = qkv[i][0] * qkv[j][HS] + qkv[i][1] * qkv[j][HS + 1]; }
    }
    cpu_attention_forward(out, lse, &qkv[0][0], 1, T, HS, 1);
    for (int i = 0; i < T; i++) { shown[i] = out[i * HS]; }
    printf("positions %d, %d, %d\n", first, first + 1, first + 2);
    print_row("last q", qkv[2], HS);
    for (int i = 0; i < T; i++) { print_row(i == 0 ? "scores" : "", scores + i * T, i + 1); }
    print_row("out", shown, T);
}

// Prints the MiB of keys and values of 1,024 tokens in fp32, with all heads, a third or a fifth of them, and one.
static void caches(void) {
    const struct {
        const char *name;
        int groups;
    } models[] = {{"124M", 4}, {"1558M", 5}};
    printf("\nMiB of keys and values of 1,024 tokens, with so many heads of them\n");
    for (int i = 0; i < 2; i++) {
        const ModelSize *size = model_find_size(models[i].name);
        int heads[] = {size->heads, models[i].groups, 1};
        printf("%-6s", models[i].name);
        for (int j = 0; j < 3; j++) {
            double bytes = 2.0 * size->layers * heads[j] * (size->channels / size->heads) * 1024 * sizeof(float);
            printf("  with %2d: %5.1f", heads[j], bytes / (1 << 20));
        }
        printf("\n");
    }
}

// Muon's idea: f(s) = 1.5 s - 0.5 s^3 brings every singular value between 0 and sqrt(3) to 1.
static void singular_values(void) {
    float s[3] = {1.0f, 0.5f, 0.1f};
    printf("\n");
    for (int step = 0; step <= 8; step += 2) {
        char name[24];
        snprintf(name, sizeof(name), "step %d", step);
        print_row(name, s, 3);
        for (int i = 0; i < 6; i++) { s[i % 3] = 1.5f * s[i % 3] - 0.5f * s[i % 3] * s[i % 3] * s[i % 3]; }
    }
}

static void example(void) {
    turned_attention(0);
    turned_attention(9);
    caches();
    singular_values();
}

enum { HEAD = 64, HIDDEN = 100, ROWS = 5, NH = 6, NKV = 2, HS = 4, C = NH * HS, GROUPED = C + 2 * NKV * HS };

static void random_floats(float *x, int n, uint64_t stream) {
    for (int i = 0; i < n; i++) {
        float pair[2];
        rand_normal_pair(15, stream, (uint64_t)i, pair);
        x[i] = pair[0];
    }
}

// An angle below 128 that was computed in float is off by up to 128 half epsilons, and so is its sine. A number is made
// of two products with numbers below 4.
#define ROPE_ERROR (2 * 4 * (128 + 4) * (double)FLT_EPSILON)

static void check_rope(Test *t) {
    const int positions[] = {0, 1, 7, 100};
    for (int p = 0; p < 4; p++) {
        float x[HEAD], before[HEAD], want[HEAD];
        random_floats(before, HEAD, 1), memcpy(x, before, sizeof(x));
        for (int i = 0; i < HEAD / 2; i++) {
            double angle = positions[p] * pow(10000.0, -2.0 * i / HEAD), a = (double)x[2 * i], b = (double)x[2 * i + 1];
            want[2 * i] = (float)(a * cos(angle) - b * sin(angle));
            want[2 * i + 1] = (float)(a * sin(angle) + b * cos(angle));
        }
        rope(x, positions[p], HEAD, false);
        check_close(t, "forward", x, want, HEAD, ROPE_ERROR, 0.0);
        rope(x, positions[p], HEAD, true);
        check_close(t, "forward, then backward", x, before, HEAD, 2.0 * ROPE_ERROR, 0.0);
    }
}

static double swiglu_formula(double gate, double up) { return gate / (1.0 + exp(-gate)) * up; }

// Central differences in double are right to 1e-9 here. The backward rounds about ten times, numbers below 16.
static void check_swiglu(Test *t) {
    float gate[HIDDEN], up[HIDDEN], dout[HIDDEN], dgate[HIDDEN], dup[HIDDEN], want_gate[HIDDEN], want_up[HIDDEN];
    random_floats(gate, HIDDEN, 2), random_floats(up, HIDDEN, 3), random_floats(dout, HIDDEN, 4);
    for (int i = 0; i < HIDDEN; i++) {
        const double h = 1e-5;
        double g = (double)(gate[i] *= 2.0f), u = (double)up[i], scale = (double)dout[i] / (2.0 * h);
        want_gate[i] = (float)(scale * (swiglu_formula(g + h, u) - swiglu_formula(g - h, u)));
        want_up[i] = (float)(scale * (swiglu_formula(g, u + h) - swiglu_formula(g, u - h)));
    }
    swiglu_backward(dgate, dup, dout, gate, up, HIDDEN);
    check_close(t, "dgate", dgate, want_gate, HIDDEN, 10.0 * 16.0 * FLT_EPSILON, 0.0);
    check_close(t, "dup", dup, want_up, HIDDEN, 10.0 * 16.0 * FLT_EPSILON, 0.0);
}

// A loss: attention's outputs, each with a weight of its own.
static float grouped_loss(const float *grouped, const float *dout) {
    float qkv[ROWS * 3 * C], out[ROWS * C], lse[NH * ROWS];
    double loss = 0.0;
    share_heads(qkv, grouped, ROWS, NH, NKV, HS);
    cpu_attention_forward(out, lse, qkv, 1, ROWS, C, NH);
    for (int i = 0; i < ROWS * C; i++) { loss += (double)out[i] * (double)dout[i]; }
    return (float)loss;
}

static void check_shared_heads(Test *t) {
    float grouped[ROWS * GROUPED], dgrouped[ROWS * GROUPED] = {0}, qkv[ROWS * 3 * C], dqkv[ROWS * 3 * C] = {0};
    float out[ROWS * C], lse[NH * ROWS], dout[ROWS * C], slopes[ROWS * GROUPED];
    random_floats(grouped, ROWS * GROUPED, 5), random_floats(dout, ROWS * C, 6);
    share_heads(qkv, grouped, ROWS, NH, NKV, HS);
    cpu_attention_forward(out, lse, qkv, 1, ROWS, C, NH);
    cpu_attention_backward(dqkv, dout, qkv, out, lse, 1, ROWS, C, NH);
    share_heads_backward(dgrouped, dqkv, ROWS, NH, NKV, HS);
    for (int i = 0; i < ROWS * GROUPED; i++) {
        const float h = 1.0f / 64, before = grouped[i];
        grouped[i] = before + h;
        float above = grouped_loss(grouped, dout);
        grouped[i] = before - h;
        slopes[i] = (above - grouped_loss(grouped, dout)) / (2.0f * h);
        grouped[i] = before;
    }
    // h^2/6 = 4e-5 times third derivatives of up to 20; losses near 30 are rounded by 2e-6, over 2 h = 1/32.
    check_close(t, "dgrouped", dgrouped, slopes, ROWS * GROUPED, 1e-3, 0.0);
}

int main(void) {
    example();
    printf("\nExercises, in dev/exercises/15_next/exercises.h\n");
    exercise("15.1 RoPE", check_rope);
    exercise("15.2 the backward of SwiGLU", check_swiglu);
    exercise("15.3 shared heads", check_shared_heads);
    return 0;
}
