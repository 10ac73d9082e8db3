// Chapter 19, reproducing GPT-2: the worked example of doc/19_reproducing.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

#include "llmc/data/dataloader.h"
#include "llmc/model/params.h"
#include "llmc/run/schedulers.h"

// scripts/run_gpt2_124M.sh
enum { SEQ_LEN = 1024, TOTAL_BATCH = 524288, STEPS = 18865, WARMUP = 700, SHARD_TOKENS = 100000000 };
#define LR 6e-4f
#define FLOPS_OF_GPU 989.4e12 // of an H100 in bf16, by its datasheet
#define PREDICTED_MFU 0.44    // by dev/bench/predict.py

static ModelConfig model_124M(void) {
    ModelConfig config = GPT2_CONFIG(0, GPT2_VOCAB_SIZE, model_pad_vocab(GPT2_VOCAB_SIZE), 0, 0, 0);
    model_config_from_size(&config, "124M");
    return config;
}

// ---- The worked example ----

static void print_flops(const ModelConfig *config) {
    double padding = (double)(config->padded_vocab_size - config->vocab_size) * config->channels;
    double parameters = (double)model_num_params(config) - padding, tokens = (double)STEPS * TOTAL_BATCH;
    printf("parameters                %14.0f\n", parameters);
    printf("tokens                    %14.0f, %.1f for each parameter\n", tokens, tokens / parameters);
    printf("FLOPs of a token          %14.0f, counted by layers\n", flops_per_token(config, SEQ_LEN));
    printf("6 N                       %14.0f\n", 6.0 * parameters);
    printf("FLOPs of the run          %14.3g\n", tokens * flops_per_token(config, SEQ_LEN));
    printf("shards read               %14.1f\n",
           (double)STEPS * (TOTAL_BATCH / SEQ_LEN) / ((SHARD_TOKENS - 1) / SEQ_LEN));
}

// The seconds of the FLOPs at the part of the GPUs' peak that a step reaches.
static void print_time(const ModelConfig *config, int num_gpus) {
    double flops = flops_per_token(config, SEQ_LEN) * TOTAL_BATCH;
    double seconds = flops / (num_gpus * FLOPS_OF_GPU * PREDICTED_MFU);
    printf("on %d H100, MFU %.0f %%      %9.1f ms a step, %.1f hours\n", num_gpus, 100.0 * PREDICTED_MFU, 1e3 * seconds,
           STEPS * seconds / 3600.0);
}

static void print_rates(void) {
    const Schedule schedule = {SCHEDULE_COSINE, LR, WARMUP, STEPS, 0.0f};
    const int64_t steps[] = {0, 349, 699, 5000, 9782, 15000, STEPS - 1};
    printf("step          ");
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) { printf(" %9lld", (long long)steps[i]); }
    printf("\nlearning rate ");
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        printf(" %9.2e", (double)schedule_lr(&schedule, steps[i]));
    }
    printf("\n");
}

// A new model's logits are sums of C products of a normalised number and a weight of deviation MODEL_INIT_STD. This
// computes the mean loss of N rows of such logits, by the trainer's own function.
static double loss_of_noise(const ModelConfig *config, int N) {
    int V = config->vocab_size, Vp = config->padded_vocab_size;
    size_t size = (size_t)N * (size_t)Vp;
    float *logits = (float *)calloc(size, sizeof(float)), *losses = (float *)calloc((size_t)N, sizeof(float));
    int32_t *targets = (int32_t *)calloc((size_t)N, sizeof(int32_t));
    double deviation = (double)MODEL_INIT_STD * sqrt(config->channels), sum = 0.0;
    if (logits == NULL || losses == NULL || targets == NULL) { abort(); }
    for (int r = 0; r < N; r++) {
        targets[r] = r;
        for (int v = 0; v < V; v++) {
            float pair[2];
            rand_normal_pair(14, (uint64_t)r, (uint64_t)v, pair);
            logits[(size_t)r * (size_t)Vp + (size_t)v] = (float)deviation * pair[0];
        }
    }
    cpu_cross_entropy(losses, logits, targets, N, V, Vp, 0.0f, false);
    for (int r = 0; r < N; r++) { sum += (double)losses[r]; }
    free(logits), free(losses), free(targets);
    return sum / N;
}

static void print_first_loss(const ModelConfig *config) {
    double ln_v = log((double)config->vocab_size),
           variance = config->channels * (double)MODEL_INIT_STD * MODEL_INIT_STD;
    printf("first loss: ln V %.4f, with the variance of the logits %.4f, of 200 random rows %.4f\n", ln_v,
           ln_v + 0.5 * variance, loss_of_noise(config, 200));
}

// ---- The checks ----

// FLOPs that a mistake takes for the budget, as parts of it.
static void explain_budget(double used, double budget, double gpus) {
    const Mistake mistakes[] = {{1.0 / 3600.0, "an hour counts as a second"},
                                {1.0 / gpus, "the number of GPUs is missing"},
                                {1.0 / 0.4, "mfu is missing"},
                                {1e-12, "teraflops count as FLOPs a second; multiply by 1e12"},
                                {6.0, "a parameter and token cost 6 FLOPs, not 1"},
                                {3.0, "the backward pass is forgotten: 6 FLOPs, not 2"}};
    const char *words = likely_mistake(used / budget, 1.0, 1e-6, mistakes, COUNT_OF(mistakes));
    if (words[0] != '\0') { printf("  Likely: %s\n", words); }
}

static void check_compute_optimal(Test *t) {
    const double hours[] = {2.0, 24.0, 5000.0}, teraflops[] = {312.0, 989.4, 2250.0};
    for (int i = 0; i < 3; i++) {
        double parameters = 0.0, tokens = 0.0, budget = hours[i] * 3600.0 * (8 << i) * teraflops[i] * 1e12 * 0.4;
        compute_optimal(hours[i], 8 << i, teraflops[i], 0.4, &parameters, &tokens);
        double used = 6.0 * parameters * tokens;
        bool fits =
            CHECK(t, fabs(used - budget) <= 20.0 * DBL_EPSILON * budget,
                  "%g hours, %d GPUs, %g teraflops, mfu 0.4: got %g parameters and %g tokens, which use %g FLOPs, "
                  "want %g",
                  hours[i], 8 << i, teraflops[i], parameters, tokens, used, budget);
        if (!fits) { explain_budget(used, budget, 8 << i); }
        CHECK(t, fabs(tokens - 20.0 * parameters) <= 20.0 * DBL_EPSILON * tokens,
              "got %g tokens for %g parameters, want 20 for each", tokens, parameters);
    }
}

// A text of 1,000 tokens, and a text of bytes that all cost one bit.
static void check_bits_per_byte(Test *t) {
    enum { N = 1000 };
    float losses[N];
    int lengths[N], ones[N];
    double bits = 0.0, bytes = 0.0, ratios = 0.0;
    for (int i = 0; i < N; i++) {
        uint64_t random = rand_u64(14, 1, (uint64_t)i);
        lengths[i] = 1 + (int)(random % 9), ones[i] = 1;
        losses[i] = (float)(random >> 40) * 0x1p-24f * 8.0f; // below 8
        bits += (double)losses[i] / log(2.0), bytes += lengths[i];
        ratios += (double)losses[i] / log(2.0) / lengths[i] / N;
    }
    double got = bits_per_byte(losses, lengths, N), want = bits / bytes, nats = bits * log(2.0);
    const Mistake mistakes[] = {
        {nats / N, "this is the mean loss, nats for each token"},
        {nats / bytes, "these are nats, not bits: divide by log(2)"},
        {bits / N, "these are bits for each token"},
        {nats * log(2.0) / bytes, "bits are nats divided by log(2), not times log(2)"},
        {ratios, "a mean over tokens of bits by bytes; divide the sums, so that long tokens count"}};
    check_number(t, "1,000 tokens of 1 to 9 bytes", got, want, N * DBL_EPSILON * want, mistakes);
    for (int i = 0; i < N; i++) { losses[i] = logf(2.0f); }
    const Mistake in_nats[] = {{log(2.0), mistakes[1].words}};
    got = bits_per_byte(losses, ones, N);
    check_number(t, "1,000 tokens of 1 byte and of log(2) nats", got, 1.0, FLT_EPSILON, in_nats);
}

// Where sequences begin that lie `apart`, if a shard of n tokens has n / `needs` of them.
static void mistaken_text(float place[2], int64_t sequence, int apart, int needs, const int64_t *tokens, int shards) {
    int64_t in_epoch = 0;
    int i = 0;
    for (int k = 0; k < shards; k++) { in_epoch += tokens[k] / needs; }
    for (sequence %= in_epoch; sequence >= tokens[i] / needs; i++) { sequence -= tokens[i] / needs; }
    place[0] = (float)i, place[1] = (float)(sequence * apart);
}

// Compares with the trainer's loader, for shards of several lengths: one has no sequence, one has its last token to
// spare, and one lacks a token.
static void check_find_text(Test *t) {
    enum { T = 8, SHARDS = 5, SEQUENCES = 40 };
    const int64_t tokens[SHARDS] = {4 * T + 1, 3 * T, T, 7 * T + 5, 2 * T + 2};
    float places[2 * SEQUENCES], longer[2 * SEQUENCES], full[2 * SEQUENCES];
    DataLoader loader;
    Error error;
    dataloader_init(&loader, T, 256, false, 0);
    if (!CHECK(t, dataloader_allocate(&loader, SHARDS, &error), "no memory")) { return; }
    for (int i = 0; i < SHARDS; i++) { dataloader_set_shard(&loader, i, "", tokens[i]); }
    for (int64_t sequence = 0; sequence < SEQUENCES; sequence++) {
        int got_shard = -1, want_shard;
        int64_t got = -1, window;
        find_text(sequence, T, tokens, SHARDS, &got_shard, &got);
        dataloader_locate(&loader, sequence, &want_shard, &window);
        CHECK(
            t, got_shard == want_shard && got == window * T,
            "T 8, shards of 33 24 8 61 18 tokens, sequence %lld: got token %lld of shard %d, want token %lld of shard "
            "%d",
            (long long)sequence, (long long)got, got_shard, (long long)(window * T), want_shard);
        places[2 * sequence] = (float)got_shard, places[2 * sequence + 1] = (float)got;
        mistaken_text(longer + 2 * sequence, sequence, T + 1, T + 1, tokens, SHARDS);
        mistaken_text(full + 2 * sequence, sequence, T, T, tokens, SHARDS);
    }
    dataloader_close(&loader);
    likely(t, places, longer, 2 * SEQUENCES, "a sequence begins T tokens after the one before, not T + 1");
    likely(t, places, full, 2 * SEQUENCES,
           "a shard of n tokens has (n - 1) / T sequences: the last needs a target, too");
}

static void example(void) {
    ModelConfig config = model_124M();
    print_flops(&config);
    print_time(&config, 1);
    print_time(&config, 8);
    print_rates();
    print_first_loss(&config);
}

static const Exercise exercises[] = {{"19.1 the model for a budget", check_compute_optimal},
                                     {"19.2 bits for each byte", check_bits_per_byte},
                                     {"19.3 the text of a step", check_find_text}};

int main(void) { return run_chapter("19_reproducing", example, exercises); }
