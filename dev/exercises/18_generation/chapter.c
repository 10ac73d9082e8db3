// Chapter 18, generation: the worked example of doc/18_generation.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include "llmc/run/sampler.h"
#include ANSWERS

#include "llmc/data/evalloader.h"
#include "llmc/model/params.h"

// ---- The cache ----

// The sequence of chapter 5: three tokens, one head with two channels.
static void cache_example(void) {
    enum { T = 3, C = 2 };
    const float ln2 = sqrtf(2.0f) * logf(2.0f), ln3 = sqrtf(2.0f) * logf(3.0f);
    const float qkv[T][3 * C] = {{1, 0, ln3, 0, 12, 0}, {1, 0, 0, ln2, 0, 12}, {0, 1, 0, ln3, 2, 2}};
    float whole[T * C], lse[T], out[C], keys[T * C], values[T * C];
    cpu_attention_forward(whole, lse, qkv[0], 1, T, C, 1);
    print_rows("at once", whole, T, C, C);
    for (int t = 0; t < T; t++) {
        cpu_attention_with_cache(out, keys, values, qkv[t], t, 1, T, C, 1);
        print_numbered("with cache", t, out, C);
    }
}

enum { CONTEXT = 1024 };

static void print_cache(const char *size) {
    ModelConfig config = GPT2_CONFIG(CONTEXT, GPT2_VOCAB_SIZE, model_pad_vocab(GPT2_VOCAB_SIZE), 0, 0, 0);
    model_config_from_size(&config, size);
    double numbers = 2.0 * config.num_layers * (double)model_dim(&config, DIM_KV);
    double weights = 2e-6 * (double)model_num_params(&config);
    printf("%-12s %12.0f %12.1f %12.1f %13.0f\n", size, numbers, numbers * 2.0 / 1024.0,
           numbers * 2.0 * CONTEXT / (1024.0 * 1024.0), weights);
}

// ---- The draw ----

enum { WORDS = 5, DRAWS = 10000 };
static const float word_logits[WORDS] = {2.0794415f, 1.3862944f, 0.6931472f, 0.0f, 0.0f}; // ln 8, ln 4, ln 2, ln 1

// The probabilities that the trainer's sampler leaves, and how often it draws each token.
static void print_draws(float temperature, float top_p) {
    float probs[WORDS], p[WORDS];
    int drawn[WORDS] = {0};
    for (int i = 0; i < DRAWS; i++) {
        drawn[sample_token(word_logits, WORDS, temperature, top_p, rand_uniform(18, 0, (uint64_t)i), probs)]++;
    }
    for (int i = 0; i < WORDS; i++) { p[i] = probs[i] / (float)sampler_sum(probs, WORDS, 0.0f); }
    printf("t %.1f, top-p %.1f", (double)temperature, (double)top_p);
    for (int i = 0; i < WORDS; i++) { printf(" %9.4f", (double)p[i]); }
    printf("\ndrawn          ");
    for (int i = 0; i < WORDS; i++) { printf(" %9d", drawn[i]); }
    printf("\n");
}

// ---- Scores ----

// The losses of a text of four tokens, to which the model gave the probabilities 1/2, 1/4, 1/8 and 1/64.
static void perplexity_example(void) {
    const float p[4] = {0.5f, 0.25f, 0.125f, 0.015625f};
    float losses[4], mean = 0.0f;
    for (int i = 0; i < 4; i++) {
        float logits[2] = {logf(p[i]), logf(1.0f - p[i])};
        const int32_t target = 0;
        cpu_cross_entropy(&losses[i], logits, &target, 1, 2, 2, 0.0f, false);
        mean += losses[i] / 4.0f;
    }
    print_row("losses", losses, 4);
    printf("mean %.4f, perplexity %.4f, %.4f bits for each of 16 bytes\n", (double)mean, exp((double)mean),
           4.0 * (double)mean / log(2.0) / 16.0);
}

static void question_example(void) {
    enum { N = 4, MOST = 5 };
    const char *const completions[N] = {"pours the coffee in cups", "sleeps", "pours a cup cup", "flies away"};
    const float losses[N][MOST] = {{2.0f, 0.5f, 1.0f, 0.3f, 0.2f}, {3.5f}, {2.0f, 1.8f, 0.4f, 4.2f}, {4.5f, 0.9f}};
    const int lengths[N] = {5, 1, 4, 2};
    double sums[N] = {0}, means[N];
    printf("completion                        sum      mean\n");
    for (int i = 0; i < N; i++) {
        for (int t = 0; t < lengths[i]; t++) { sums[i] += (double)losses[i][t]; }
        means[i] = sums[i] / lengths[i];
        printf("%d %-26s %8.2f  %8.2f\n", i, completions[i], sums[i], means[i]);
    }
    printf("picked by the sum: %d, by the mean: %d\n", eval_prediction(sums, N), eval_prediction(means, N));
}

static void example(void) {
    cache_example();
    printf("\n%-12s %12s %12s %12s %12s\n", "cache, bf16", "a token", "KiB", "MiB of 1,024", "MB of weights");
    print_cache("124M"), print_cache("1558M");
    printf("\n%-15s %9s %9s %9s %9s %9s\n", "The cat", "sat", "ran", "is", "was", "fog");
    print_draws(1.0f, 1.0f), print_draws(0.5f, 1.0f), print_draws(2.0f, 1.0f), print_draws(1.0f, 0.7f);
    printf("\n");
    perplexity_example();
    printf("\n");
    question_example();
}

// ---- The checks ----

enum { V = 20, CASES = 60 };

// The k largest of logits that have ties: their values are multiples of 1/2.
static int want_top_k(float logits[V], int k, float temperature, double uniform) {
    float kept[V], probs[V];
    bool taken[V] = {false};
    for (int i = 0; i < V; i++) { kept[i] = -INFINITY; }
    for (int i = 0; i < k; i++) {
        int best = -1;
        for (int v = 0; v < V; v++) {
            if (!taken[v] && (best < 0 || logits[v] > logits[best])) { best = v; }
        }
        taken[best] = true, kept[best] = logits[best];
    }
    return sample_token(kept, V, temperature, 1.0f, uniform, probs);
}

static void check_top_k(Test *t) {
    float got[CASES], all[CASES], plain[CASES], more[CASES];
    for (int i = 0; i < CASES; i++) {
        float logits[V], probs[V], temperature = 0.5f + 0.05f * (float)i;
        int k = 1 + i % 7;
        double uniform = rand_uniform(18, 1, (uint64_t)i);
        random_floats(logits, V, 18, 100 + (uint64_t)i);
        for (int v = 0; v < V; v++) { logits[v] = roundf(2.0f * logits[v]) / 2.0f; }
        int token = top_k_token(logits, V, k, temperature, uniform), want = want_top_k(logits, k, temperature, uniform);
        CHECK(t, token == want, "k %d, temperature %.2f, uniform %.4f: got token %d, want %d", k, (double)temperature,
              uniform, token, want);
        got[i] = (float)token, all[i] = (float)sample_token(logits, V, temperature, 1.0f, uniform, probs);
        plain[i] = (float)want_top_k(logits, k, 1.0f, uniform);
        more[i] = (float)want_top_k(logits, k + 1, temperature, uniform);
    }
    likely(t, got, all, CASES, "the token is drawn from all tokens");
    likely(t, got, plain, CASES, "the temperature is missing");
    likely(t, got, more, CASES, "k + 1 tokens are kept");
}

enum { T = 9, NH = 3, HS = 5, C = NH * HS };

// One wrong attention: queries are scaled by `scale`, and each meets the keys before its own only, if `misses`.
static void mistaken_attention(float *out, const float *qkv, float scale, bool misses) {
    float moved[T * 3 * C], lse[T * NH], all[T * C];
    memcpy(moved, qkv, sizeof(moved));
    for (int i = 0; i < T; i++) {
        for (int c = 0; c < C; c++) {
            const float *q = qkv + (misses && i < T - 1 ? i + 1 : i) * 3 * C;
            moved[i * 3 * C + c] = scale * q[c];
        }
    }
    cpu_attention_forward(all, lse, moved, 1, T, C, NH);
    memcpy(out, all + (misses ? T - 2 : T - 1) * C, C * sizeof(float));
}

// Sums of T products of numbers below 4, each rounded a few times.
#define ATTENTION_ERROR (16 * T * 4 * (double)FLT_EPSILON)

static void check_cache(Test *t) {
    float qkv[T * 3 * C], want[T * C], got[T * C], keys[T * C] = {0}, values[T * C] = {0}, lse[T * NH], mistaken[C];
    random_floats(qkv, T * 3 * C, 18, 2);
    cpu_attention_forward(want, lse, qkv, 1, T, C, NH);
    for (int i = 0; i < T; i++) {
        char what[48];
        snprintf(what, sizeof(what), "the output at position %d", i);
        attend_new_token(got + i * C, keys, values, qkv + i * 3 * C, i, NH, HS);
        check_close(t, what, got + i * C, want + i * C, C, ATTENTION_ERROR, 0.0);
    }
    const float *last = got + (T - 1) * C, *new_row = qkv + (T - 1) * 3 * C;
    mistaken_attention(mistaken, qkv, sqrtf((float)HS), false);
    likely(t, last, mistaken, C, "the scores are not divided by the root of HS");
    mistaken_attention(mistaken, qkv, 1.0f, true);
    likely(t, last, mistaken, C, "the new token does not see itself");
    likely(t, last, new_row + 2 * C, C, "the new token sees only itself");
}

// The pick by sums of losses from a position on, each divided by `by` of its completion.
static int pick(const float *losses, int n, int length, int first, const int *lengths, const int *by) {
    double scores[8];
    for (int i = 0; i < n; i++) {
        scores[i] = 0.0;
        for (int k = first; k < first + lengths[i]; k++) { scores[i] += (double)losses[i * length + k]; }
        scores[i] /= by[i];
    }
    return eval_prediction(scores, n);
}

static void check_pick(Test *t) {
    enum { N = 4, LENGTH = 24, MOST = 8 };
    const int ones[N] = {1, 1, 1, 1};
    float got[CASES], late[CASES], sum[CASES], mean[CASES];
    for (int i = 0; i < CASES; i++) {
        float losses[N * LENGTH];
        int lengths[N], bytes[N], context = 1 + i % 9;
        bool ties = i % 10 == 0; // all losses are 3, and all tokens have 3 bytes
        for (int k = 0; k < N * LENGTH; k++) {
            losses[k] = ties ? 3.0f : 6.0f * (float)rand_uniform(18, 3, (uint64_t)(i * 100 + k));
        }
        for (int k = 0; k < N; k++) {
            uint64_t random = rand_u64(18, 4, (uint64_t)(i * N + k));
            lengths[k] = 1 + (int)(random % MOST), bytes[k] = lengths[k] * (ties ? 3 : 2 + (int)(random >> 8 & 3));
        }
        int one = pick_by_bytes(losses, N, LENGTH, context, lengths, bytes);
        int want = pick(losses, N, LENGTH, context - 1, lengths, bytes);
        CHECK(t, one == want,
              "context of %d tokens, completions of %d %d %d %d tokens and %d %d %d %d bytes: got %d, "
              "want %d",
              context, lengths[0], lengths[1], lengths[2], lengths[3], bytes[0], bytes[1], bytes[2], bytes[3], one,
              want);
        got[i] = (float)one, late[i] = (float)pick(losses, N, LENGTH, context, lengths, bytes);
        sum[i] = (float)pick(losses, N, LENGTH, context - 1, lengths, ones);
        mean[i] = (float)pick(losses, N, LENGTH, context - 1, lengths, lengths);
    }
    likely(t, got, late, CASES, "the losses are those of one position later: position t predicts token t + 1");
    likely(t, got, sum, CASES, "this picks by the sum of the losses");
    likely(t, got, mean, CASES, "this picks by the mean over tokens, not over bytes");
}

static const Exercise exercises[] = {{"18.1 top-k", check_top_k},
                                     {"18.2 attention with a cache", check_cache},
                                     {"18.3 scores for each byte", check_pick}};

int main(void) { return run_chapter("18_generation", example, exercises); }
