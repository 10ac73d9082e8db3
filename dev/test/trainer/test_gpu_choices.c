// Unit tests of --auto: its choice fits to the byte, and follows its rule. The memory of a run is made up.
#include "llmc/trainer/gpu_choices.h"
#include "llmc/run/one_rank.h"
#include "dev/test/refused.h"
#include "llmc/base/rand.h"

static TrainOptions options;
static int64_t bytes_of_token[NUM_RECOMPUTE_LEVELS];

int64_t trainer_plan_bytes(const TrainRun *run, int64_t B, int level) {
    return 1000 + B * run->options->seq_len * bytes_of_token[level];
}

// A run of `sequences` of T tokens in a step, on GPUs with so many bytes for plans.
static TrainRun *run_of(int64_t T, int64_t sequences, int64_t budget) {
    static TrainRun run;
    memset(&run, 0, sizeof(run));
    memset(&options, 0, sizeof(options));
    run.num_ranks = run.data.ranks = run.connected = 1;
    run.options = &options;
    options.plan = "0", options.steps = 10, options.auto_plan = true, options.recompute = -1;
    options.seq_len = T, options.total_batch = sequences * T, options.batch_size = 1;
    run.choices.gpu_bytes = budget;
    run.choices.gpu_bytes += run_gpu_reserve(&run);
    return &run;
}

static int64_t largest(int64_t T, int64_t sequences, int level, int64_t budget) {
    for (int64_t B = sequences; B > 0; B--) {
        if (sequences % B == 0 && 1000 + B * T * bytes_of_token[level] <= budget) { return B; }
    }
    return 0;
}

static void check_choice(Test *t, int64_t T, int64_t sequences, int64_t budget) {
    int want = -1;
    for (int level = 0; level < NUM_RECOMPUTE_LEVELS && want < 0; level++) {
        if (T * largest(T, sequences, level, budget) >= AUTO_TOKENS) { want = level; }
    }
    if (want < 0) {
        want = 0;
        for (int level = 1; level < NUM_RECOMPUTE_LEVELS; level++) {
            if (largest(T, sequences, level, budget) > largest(T, sequences, want, budget)) { want = level; }
        }
    }
    int64_t B = largest(T, sequences, want, budget);
    TrainRun *run = run_of(T, sequences, budget);
    bool ok = run_settle_gpu_choices(run, &options, run->choices.gpu_bytes, &error);
    CHECK(t, ok == (B > 0), "%lld of %lld in %lld bytes: %s", (long long)B, (long long)sequences, (long long)budget,
          ok ? "chosen" : error.text);
    CHECK(t, !ok || (options.batch_size == B && options.recompute == want),
          "%lld sequences of %lld tokens in %lld bytes: %lld at level %lld, expected %lld at level %d",
          (long long)sequences, (long long)T, (long long)budget, (long long)options.batch_size,
          (long long)options.recompute, (long long)B, want);
}

// A pipeline with one micro-batch would have nothing to overlap.
TEST(test_micro_batches_for_all_stages) {
    const int64_t cases[][2] = {{4, 3}, {3, 4}, {5, 12}}; // stages, and the largest of 12 sequences in a micro-batch
    FOR_EACH(i, cases) {
        TrainRun *run = run_of(64, 12, INT32_MAX);
        bytes_of_token[0] = 1, options.pp = cases[i][0];
        bool ok = run_settle_gpu_choices(run, &options, run->choices.gpu_bytes, &error);
        CHECK(t, ok && options.batch_size == cases[i][1], "%d stages: %d sequences", (int)options.pp,
              (int)options.batch_size);
    }
}

TEST(test_rule) {
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t random = rand_u64(34, 1, i);
        int64_t T = (int64_t)1 << random % 13, sequences = 1 + (int64_t)(random >> 8) % 200;
        for (int level = 0; level < NUM_RECOMPUTE_LEVELS; level++) {
            bytes_of_token[level] = 40 - 10 * level + (int64_t)(random >> (16 + 8 * level)) % 10;
        }
        check_choice(t, T, sequences, 900 + (int64_t)(random >> 48) * 10);
    }
}

// What is given stays, and decides alone what is left.
TEST(test_given) {
    bytes_of_token[0] = 40, bytes_of_token[1] = 30, bytes_of_token[2] = 20, bytes_of_token[3] = 10;
    for (int level = 0; level < NUM_RECOMPUTE_LEVELS; level++) {
        for (int less = 0; less < 2; less++) { // a byte less takes the next level
            int64_t budget = 1000 + 4 * 16 * bytes_of_token[level] - less;
            TrainRun *run = run_of(16, 8, budget);
            options.batch_size = 4, options.auto_plan = false;
            OK(t, run_settle_gpu_choices(run, &options, run->choices.gpu_bytes, &error));
            int want = level + less < NUM_RECOMPUTE_LEVELS ? level + less : level;
            CHECK(t, options.recompute == want && options.batch_size == 4, "level %lld, expected %d",
                  (long long)options.recompute, want);
            const char *says = level + less < NUM_RECOMPUTE_LEVELS ? "fits into" : "takes the least memory, but more";
            CHECK(t, strstr(run->choices.note, says) != NULL, "%s", run->choices.note);
        }
    }
    TrainRun *run = run_of(16, 8, 1000 + 2 * 16 * 20);
    options.recompute = 2;
    OK(t, run_settle_gpu_choices(run, &options, run->choices.gpu_bytes, &error));
    CHECK(t, options.recompute == 2 && options.batch_size == 2, "%lld", (long long)options.batch_size);
}

TEST(test_batches) {
    for (int64_t sequences = 1; sequences <= 600; sequences++) {
        int64_t found = 0, divisors = 0, before = sequences + 1;
        for (int64_t B = 0; (B = run_next_batch(sequences, B)) > 0;) {
            CHECK(t, sequences % B == 0 && B < before, "%lld of %lld", (long long)B, (long long)sequences);
            before = B, found++;
        }
        for (int64_t i = 1; i <= sequences; i++) { divisors += sequences % i == 0; }
        CHECK(t, found == divisors, "%lld: %lld of %lld", (long long)sequences, (long long)found, (long long)divisors);
    }
    CHECK(t, run_next_batch(3 * TRAIN_MAX_BATCH, 0) == TRAIN_MAX_BATCH, "the largest");
}
