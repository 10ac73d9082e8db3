// Chapter 17, the grid: the worked example of doc/17_grid.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

#include "dev/exercises/pipeline.h"
#include "llmc/model/context.h"

// ---- A multiply, split by columns, then by rows ----

// out = (x A) B of one row. Rank r has column r of A and row r of B. The trainer's weights are transposed.
static void multiply_example(void) {
    enum { C = 2, RANKS = 2 };
    const float x[C] = {1, 2}, a[RANKS][C] = {{1, 1}, {3, 1}}, b[RANKS][C] = {{1, 2}, {3, -1}}, dout[C] = {1, 2};
    float sum[C] = {0}, dsum[C] = {0};
    printf("split multiply       y       x A B               dy          dx               dA\n");
    for (int r = 0; r < RANKS; r++) {
        float y, out[C], dy, dx[C], da[C] = {0}, db[C] = {0};
        cpu_matmul_forward(&y, NULL, x, a[r], NULL, 1, C, 1);
        cpu_matmul_forward(out, NULL, &y, b[r], NULL, 1, 1, C);
        cpu_matmul_backward(&dy, db, NULL, dout, &y, b[r], 1, 1, C);
        cpu_matmul_backward(dx, da, NULL, &dy, x, a[r], 1, C, 1);
        printf("rank %d        %8.0f %8.0f %4.0f %16.0f %8.0f %4.0f %11.0f %4.0f\n", r, (double)y, (double)out[0],
               (double)out[1], (double)dy, (double)dx[0], (double)dx[1], (double)da[0], (double)da[1]);
        for (int c = 0; c < C; c++) { sum[c] += out[c], dsum[c] += dx[c]; }
    }
    printf("sum                    %8.0f %4.0f                  %8.0f %4.0f\n", (double)sum[0], (double)sum[1],
           (double)dsum[0], (double)dsum[1]);
}

// ---- A row of logits in two parts ----

static void vocabulary_example(void) {
    enum { TOKENS = 4, RANKS = 2, OWN = TOKENS / RANKS };
    const int32_t target = 1;
    float logits[TOKENS] = {0.0f, logf(3.0f), logf(4.0f), logf(8.0f)}, states[RANKS][3], all[3], loss;
    all[0] = -FLT_MAX, all[1] = all[2] = 0.0f;
    printf("\nsplit vocabulary     max       sum    target\n");
    for (int r = 0; r < RANKS; r++) {
        const float *own = logits + r * OWN;
        float *s = states[r];
        s[0] = fmaxf(own[0], own[1]);
        s[1] = expf(own[0] - s[0]) + expf(own[1] - s[0]);
        s[2] = target / OWN == r ? own[target % OWN] : 0.0f;
        all[0] = fmaxf(all[0], s[0]), all[2] += s[2];
        print_row(r == 0 ? "rank 0" : "rank 1", s, 3);
    }
    for (int r = 0; r < RANKS; r++) { all[1] += states[r][1] * expf(states[r][0] - all[0]); }
    print_row("merged", all, 3);
    cpu_cross_entropy(&loss, logits, &target, 1, TOKENS, TOKENS, 1.0f, false);
    printf("loss: merged %.4f, of the whole row %.4f\n", (double)(all[0] + logf(all[1]) - all[2]), (double)loss);
}

// ---- Pipelines ----

static void print_passes(const Pipeline *p, int stage) {
    PipeInstruction list[MOST_INSTRUCTIONS];
    Pipeline of_stage = *p;
    int length = list_of_stage(list, *p, stage);
    of_stage.stage = stage;
    printf("stage %d        ", stage);
    for (int k = 0; k < length; k++) {
        bool forward = list[k].action == PIPE_FORWARD;
        if (forward || list[k].action == PIPE_BACKWARD) { printf(" %c%d", forward ? 'F' : 'B', list[k].micro_batch); }
    }
    printf("   slots %d\n", pipe_num_slots(&of_stage));
}

// The part of a step for which a stage is idle.
static double idle_part(const Pipeline *p) { return 1.0 - 3.0 * pipe_num_forwards(p) / play_pipeline(p, NULL); }

static void pipeline_example(void) {
    const Pipeline small = {PIPE_1F1B, 3, 0, 1, 4};
    const int micro_batches[] = {4, 8, 16, 32};
    printf("\n1f1b, 3 stages, 4 micro-batches\n");
    for (int s = 0; s < small.stages; s++) { print_passes(&small, s); }
    printf("\n4 stages idle, by micro-batches   4       8      16      32\n");
    for (int chunks = 1; chunks <= MOST_CHUNKS; chunks *= 2) {
        printf(chunks == 1 ? "1f1b, afab              " : "interleaved, %d chunks   ", chunks);
        for (int i = 0; i < 4; i++) {
            Pipeline p = {chunks == 1 ? PIPE_1F1B : PIPE_INTERLEAVED, 4, 0, chunks, micro_batches[i]};
            printf("%6.1f %%", 100.0 * idle_part(&p));
        }
        printf("\n");
    }
}

// ---- Sequences in parts ----

// The query at position p has p + 1 scores.
static void context_example(void) {
    enum { TOKENS = 16, RANKS = 4, OWN = TOKENS / RANKS };
    printf("\n16 tokens, 4 ranks   positions      scores     without zig-zag\n");
    for (int r = 0; r < RANKS; r++) {
        ContextPlace place = {RANKS, r, TOKENS};
        int scores = 0, in_order = 0;
        printf("rank %d           ", r);
        for (int t = 0; t < context_rows(&place); t++) {
            printf("%3d", context_position(&place, t));
            scores += context_position(&place, t) + 1, in_order += r * OWN + t + 1;
        }
        printf(" %12d %19d\n", scores, in_order);
    }
}

// ---- Bytes ----

// What a rank sends in a step of llama:8B in bf16, by the formulas of the chapter. A micro-batch is a sequence of N
// tokens.
static void bytes_example(void) {
    enum { R = 8, N = 8192, M = 16, BF16 = 2, FP32 = 4 };
    const LlamaSize size = cpu_llama_size("llama:8B", N);
    const ModelConfig config = size.config;
    const int64_t L = config.num_layers, C = config.channels, KV = config.num_kv_heads * config.head_size;
    const int64_t unit = N * C * BF16 / R * (R - 1);                // a gather or a sum of all rows
    const int64_t states = N * 3 * FP32 * (R - 1);                  // of the split vocabulary
    const int64_t norms = 2 * FP32 * (2 * L + 1) * C / R * (R - 1); // gradients of the norms' weights, once a step
    printf("\nllama:8B, 8 ranks, 16 x 8192 tokens: bytes that a rank sends in a step\n");
    printf("dp 8, ZeRO-1      %14lld\n", (long long)((FP32 + BF16) * (size.parameters / R * (R - 1))));
    printf("tp 8              %14lld\n", (long long)(M * ((10 * L + 4) * unit + states) + norms));
    printf("cp 8, k and v     %14lld\n", (long long)(M * 3 * L * (N * 2 * KV * BF16 / R * (R - 1))));
    printf("pp 8              %14lld\n", (long long)(M * 2 * N * C * BF16));
}

// ---- The checks ----

// Compares the passes of a stage with the trainer's list.
static bool check_stage(Test *t, const Pipeline *p) {
    PipeInstruction list[MOST_INSTRUCTIONS];
    StagePass order[2 * MOST_MICRO_BATCHES];
    int length = list_of_stage(list, *p, p->stage), n = 0;
    memset(order, 0, sizeof(order));
    one_forward_one_backward(order, p->stages, p->stage, p->micro_batches);
    for (int k = 0; k < length; k++) {
        bool backward = list[k].action == PIPE_BACKWARD;
        if (!backward && list[k].action != PIPE_FORWARD) { continue; }
        if (!CHECK(t, order[n].backward == backward && order[n].micro_batch == list[k].micro_batch,
                   "stage %d of %d, %d micro-batches: pass %d: got %c%d, want %c%d", p->stage, p->stages,
                   p->micro_batches, n, order[n].backward ? 'B' : 'F', order[n].micro_batch, backward ? 'B' : 'F',
                   list[k].micro_batch)) {
            return false;
        }
        n++;
    }
    return true;
}

enum { FOUR = 4, EIGHT = 8, PASSES = 2 * FOUR * EIGHT };

// Writes passes of stages 0 to 3 with 8 micro-batches. A stage does so many forwards first, then a forward and a
// backward in turn.
static void passes_after(float *codes, const int forwards_first[FOUR]) {
    for (int s = 0; s < FOUR; s++) {
        for (int k = 0, f = 0, b = 0; k < 2 * EIGHT; k++) {
            bool forward = f < EIGHT && (f < forwards_first[s] || (k - forwards_first[s]) % 2 == 0);
            *codes++ = (float)(forward ? 2 * f++ : 2 * b++ + 1);
        }
    }
}

static void explain_order(Test *t) {
    const struct {
        int forwards_first[FOUR];
        const char *words;
    } mistakes[] = {
        {{8, 8, 8, 8}, "all forwards come first; so a stage keeps the activations of all micro-batches"},
        {{4, 3, 2, 1}, "one forward too many comes first; the pair of a forward and a backward has it already"},
        {{0, 1, 2, 3}, "stages are counted from the other end: stage 0 has the most stages behind it"}};
    float got[PASSES], mistaken[PASSES];
    StagePass order[2 * EIGHT];
    for (int k = 0; k < PASSES; k++) {
        if (k % (2 * EIGHT) == 0) { one_forward_one_backward(order, FOUR, k / (2 * EIGHT), EIGHT); }
        got[k] = (float)(2 * order[k % (2 * EIGHT)].micro_batch + order[k % (2 * EIGHT)].backward);
    }
    FOR_EACH(i, mistakes) {
        passes_after(mistaken, mistakes[i].forwards_first);
        likely(t, got, mistaken, PASSES, mistakes[i].words);
    }
}

static void check_order(Test *t) {
    for (int stages = 1; stages <= MOST_STAGES; stages++) {
        for (int stage = 0; stage < stages; stage++) {
            for (int micro_batches = 1; micro_batches <= MOST_MICRO_BATCHES; micro_batches++) {
                Pipeline p = {PIPE_1F1B, stages, stage, 1, micro_batches};
                if (!check_stage(t, &p)) {
                    explain_order(t);
                    return;
                }
            }
        }
    }
}

enum { ROWS = 3, CHANNELS = 8, WIDTH = 16, NUMBERS = ROWS * CHANNELS, WEIGHTS = WIDTH * CHANNELS };

// One rank's MLP of `width` channels: out (ROWS,CHANNELS) and the gradient of x.
static void mlp_of_rank(float *out, float *dx, const float *x, const float *w, const float *v, const float *bias,
                        const float *dout, int width) {
    float fc[ROWS * WIDTH], gelu[ROWS * WIDTH], dfc[ROWS * WIDTH], dw[WEIGHTS] = {0}, dv[WEIGHTS] = {0};
    cpu_matmul_forward(fc, NULL, x, w, NULL, ROWS, CHANNELS, width);
    cpu_gelu_forward(gelu, fc, ROWS * width);
    cpu_matmul_forward(out, NULL, gelu, v, bias, ROWS, width, CHANNELS);
    cpu_matmul_backward(dfc, dv, NULL, dout, gelu, v, ROWS, width, CHANNELS);
    cpu_gelu_backward(dfc, fc, dfc, ROWS * width);
    cpu_matmul_backward(dx, dw, NULL, dfc, x, w, ROWS, CHANNELS, width);
}

// The three functions alone, with numbers that show what is wrong.
static void check_pieces(Test *t) {
    const float v[8] = {0, 1, 2, 3, 4, 5, 6, 7}, parts[3] = {1, 10, 100}, rows[4] = {4, 5, 6, 7};
    float v_r[4] = {-1, -1, -1, -1}, sum = -1.0f;
    int handed = 0;
    columns_of_rank(v_r, v, 1, 2, 2, 4);
    CHECK(t, v_r[0] == 2.0f && v_r[1] == 3.0f && v_r[2] == 6.0f && v_r[3] == 7.0f,
          "v has rows 0 1 2 3 and 4 5 6 7; of rank 1 of 2: got %g %g %g %g, want 2 3 6 7", (double)v_r[0],
          (double)v_r[1], (double)v_r[2], (double)v_r[3]);
    likely(t, v_r, rows, 4, "these are rows of v");
    for (int r = 0; r < 4; r++) { handed += bias_of_rank(v, r) == v; }
    CHECK(t, handed == 1, "of 4 ranks, %d are handed the bias, so the sum has it %d times, want once", handed, handed);
    combine_parts(&sum, parts, 3, 1);
    CHECK(t, sum == 111.0f, "parts 1, 10 and 100: got %g, want their sum 111", (double)sum);
}

// Sums of up to WIDTH + 1 products below 100: each order of a sum is off by so many half epsilons.
static void check_split(Test *t) {
    float x[NUMBERS], w[WEIGHTS], v[WEIGHTS], bias[CHANNELS], dout[NUMBERS], want[NUMBERS], want_dx[NUMBERS];
    check_pieces(t);
    random_floats(x, NUMBERS, 17, 1), random_floats(w, WEIGHTS, 17, 2), random_floats(v, WEIGHTS, 17, 3);
    random_floats(bias, CHANNELS, 17, 4), random_floats(dout, NUMBERS, 17, 5);
    mlp_of_rank(want, want_dx, x, w, v, bias, dout, WIDTH);
    for (int R = 1; R <= 8; R *= 2) {
        float outs[8 * NUMBERS], dxs[8 * NUMBERS], out[NUMBERS], dx[NUMBERS], v_r[WEIGHTS];
        for (int r = 0; r < R; r++) {
            columns_of_rank(v_r, v, r, R, CHANNELS, WIDTH);
            mlp_of_rank(outs + r * NUMBERS, dxs + r * NUMBERS, x, w + r * WEIGHTS / R, v_r, bias_of_rank(bias, r), dout,
                        WIDTH / R);
        }
        combine_parts(out, outs, R, NUMBERS);
        combine_parts(dx, dxs, R, NUMBERS);
        check_close(t, "the MLP's out", out, want, NUMBERS, 100.0 * WIDTH * (double)FLT_EPSILON, 0.0);
        check_close(t, "the MLP's dx", dx, want_dx, NUMBERS, 100.0 * WIDTH * (double)FLT_EPSILON, 0.0);
        if (t->failures > 0) { return; }
    }
}

enum { NUM_SCORES = 12 };

// Returns the part that has scores [begin, end).
static SoftmaxPart part_of(const float *scores, const float *values, int begin, int end) {
    SoftmaxPart part = {-INFINITY, 0.0f, 0.0f};
    for (int i = begin; i < end; i++) { part.max = fmaxf(part.max, scores[i]); }
    for (int i = begin; i < end; i++) {
        float e = expf(scores[i] - part.max);
        part.sum += e, part.value += e * values[i];
    }
    return part;
}

// Two scores, each a part of its own, and two parts without scores.
static void check_two_scores(Test *t) {
    const SoftmaxPart a = {0.0f, 1.0f, 2.0f}, b = {logf(4.0f), 1.0f, 8.0f}, none = {-INFINITY, 0.0f, 0.0f};
    const SoftmaxPart both = merge_parts(a, b), empty = merge_parts(none, none);
    const float got[3] = {both.max, both.sum, both.value}, want[3] = {b.max, 1.25f, 8.5f};
    const float unscaled[3] = {b.max, 2.0f, 10.0f}, sum_only[3] = {b.max, 1.25f, 10.0f};
    CHECK(t, fabsf(got[0] - want[0]) <= 1e-5f && fabsf(got[1] - want[1]) <= 1e-5f && fabsf(got[2] - want[2]) <= 1e-5f,
          "parts {0, 1, 2} and {log 4, 1, 8}: got {%g, %g, %g}, want {%g, %g, %g}", (double)got[0], (double)got[1],
          (double)got[2], (double)want[0], (double)want[1], (double)want[2]);
    likely(t, got, unscaled, 3, "sums of unequal maxima are added; bring both to the larger maximum first");
    likely(t, got, sum_only, 3, "the values are not brought to the larger maximum");
    CHECK(t, empty.sum == 0.0f && empty.value == 0.0f,
          "two parts without scores: got {%g, %g, %g}, want {-inf, 0, 0}; -inf minus -inf is NaN", (double)empty.max,
          (double)empty.sum, (double)empty.value);
}

// Cuts the scores in three parts, some of them empty, and merges these from either end. Scores of up to 300 have
// infinite exponentials. Each of two factors e^-x is off by x half epsilons of itself, so by less than an epsilon, as x
// e^-x < 1. The sums stay below 4 * NUM_SCORES.
static void check_merge(Test *t) {
    float scores[NUM_SCORES], values[NUM_SCORES];
    check_two_scores(t);
    random_floats(scores, NUM_SCORES, 17, 6), random_floats(values, NUM_SCORES, 17, 7);
    for (int i = 0; i < NUM_SCORES; i++) { scores[i] *= i % 2 == 0 ? 1.0f : 100.0f; }
    SoftmaxPart all = part_of(scores, values, 0, NUM_SCORES);
    float want[] = {all.max, all.sum, all.value};
    for (int a = 0; a <= NUM_SCORES; a++) {
        for (int b = a; b <= NUM_SCORES; b++) {
            SoftmaxPart first = part_of(scores, values, 0, a), second = part_of(scores, values, a, b);
            SoftmaxPart third = part_of(scores, values, b, NUM_SCORES);
            SoftmaxPart merged[] = {merge_parts(merge_parts(first, second), third),
                                    merge_parts(first, merge_parts(second, third))};
            for (int k = 0; k < 2; k++) {
                float got[] = {merged[k].max, merged[k].sum, merged[k].value};
                char what[96];
                snprintf(what, sizeof(what), "scores [0, %d), [%d, %d), [%d, %d) merged: max, sum, value", a, a, b, b,
                         NUM_SCORES);
                check_close(t, what, got, want, 3, 4.0 * NUM_SCORES * NUM_SCORES * (double)FLT_EPSILON, 0.0);
                if (t->failures > 0) { return; }
            }
        }
    }
}

static void example(void) {
    multiply_example();
    vocabulary_example();
    pipeline_example();
    context_example();
    bytes_example();
}

static const Exercise exercises[] = {{"17.1 one forward, one backward", check_order},
                                     {"17.2 a split MLP", check_split},
                                     {"17.3 two parts of a softmax", check_merge}};

int main(void) { return run_chapter("17_grid", example, exercises); }
