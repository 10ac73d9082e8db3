// Unit tests of --auto's arithmetic: what it chooses fits to the byte, and nothing that fits is faster.
#include "dev/test/test.h"
#include "llmc/model/auto_plan.h"
#include "llmc/base/rand.h"
#include "llmc/run/train_options.h"

// ---- The choice ----

enum { MANY = 40 };

static uint64_t random_below(uint64_t *state, uint64_t limit) {
    *state = rand_mix(*state + RAND_GOLDEN);
    return *state % limit;
}

static void check_choice(Test *t, const AutoCandidate *c, int count, int64_t budget) {
    int best = auto_choose(c, count, budget), fitting = 0;
    for (int i = 0; i < count; i++) {
        if (c[i].bytes < 0 || c[i].bytes > budget) { continue; }
        fitting++;
        if (best < 0) { continue; }
        CHECK(t, c[best].seconds <= c[i].seconds * (1.0 + AUTO_TIE), "%d is faster than %d", i, best);
        bool recomputes_alike = c[i].recompute == c[best].recompute;
        bool better = recomputes_alike ? c[i].bytes < c[best].bytes : c[i].recompute < c[best].recompute;
        CHECK(t, !better || c[i].seconds > c[best].seconds, "%d is as fast as %d and better", i, best);
    }
    CHECK(t, (best >= 0) == (fitting > 0), "chose %d of %d that fit", best, fitting);
    CHECK(t, best < 0 || (c[best].bytes >= 0 && c[best].bytes <= budget), "does not fit");
    CHECK(t, auto_count_fitting(c, count, budget) == fitting, "%d fit", fitting);
    int smallest = auto_smallest(c, count);
    for (int i = 0; i < count; i++) {
        CHECK(t, c[i].bytes < 0 || (smallest >= 0 && c[smallest].bytes <= c[i].bytes), "%d is smaller", i);
    }
    CHECK(t, smallest < 0 || c[smallest].bytes >= 0, "the smallest is impossible");
}

TEST(test_choices_fit) {
    uint64_t state = 1;
    for (int round = 0; round < 2000; round++) {
        AutoCandidate c[MANY];
        int count = (int)random_below(&state, MANY + 1);
        for (int i = 0; i < count; i++) {
            c[i].B = i, c[i].recompute = (int)random_below(&state, NUM_RECOMPUTE_LEVELS);
            c[i].bytes = (int64_t)random_below(&state, 60) - 3; // a few impossible ones, many equal ones
            c[i].seconds = 1.0 + 1e-3 * (double)random_below(&state, 50);
        }
        for (int64_t budget = -2; budget < 60; budget += 1 + (int64_t)random_below(&state, 9)) {
            check_choice(t, c, count, budget);
        }
    }
}

TEST(test_ties_take_less_memory) {
    const AutoCandidate c[3] = {{64, 0, 1000, 1.0}, {32, 0, 500, 1.0 + 0.9 * AUTO_TIE}, {16, 0, 250, 1.02}};
    CHECK(t, auto_choose(c, 3, 2000) == 1, "chose %d", auto_choose(c, 3, 2000));
}

// Recomputation that is not needed to fit is not switched on to save memory.
TEST(test_ties_recompute_less) {
    const double tie = 1.0 + 0.9 * AUTO_TIE;
    const AutoCandidate c[3] = {{16, 1, 500, 1.0}, {16, 0, 1000, tie}, {8, 0, 900, tie}};
    const int64_t budgets[] = {2000, 999, 899};
    for (int want = 2, i = 0; i < 3; i++) {
        if (budgets[i] < 900) { want = 0; }
        CHECK(t, auto_choose(c, 3, budgets[i]) == want, "chose %d", auto_choose(c, 3, budgets[i]));
    }
}

TEST(test_words) {
    const AutoCandidate c[2] = {{8, 1, (int64_t)3 << 30, 0.25}, {1, 3, (int64_t)1 << 30, 2.0}};
    AutoRoom room = {(int64_t)4 << 30, (int64_t)1 << 30}, less = {(int64_t)3 << 29, (int64_t)1 << 30};
    char text[400];
    Error error;
    auto_explain(text, sizeof(text), c, 2, 0, &room);
    CHECK(t, strstr(text, "--batch-size 8 --recompute 1: ") == text, "%s", text);
    CHECK(t, strstr(text, "250 ms a step, of 2 choices of 2 that fit into 3.00 GiB") != NULL, "%s", text);
    CHECK(t, !auto_fail_no_room("--auto", &c[1], &less, "buy more", &error), "no failure");
    CHECK(t, strstr(error.text, "512.00 MiB are missing; buy more") != NULL, "%s", error.text);
}

// The level of --recompute alone: the first that fits, to the byte.
TEST(test_lowest_level) {
    const AutoCandidate levels[4] = {{8, 0, 1000, 1.0}, {8, 1, 900, 1.1}, {8, 2, -1, 1.2}, {8, 3, 100, 1.4}};
    const struct {
        int64_t budget;
        int level;
    } cases[] = {{5000, 0}, {1000, 0}, {999, 1}, {900, 1}, {899, 3}, {100, 3}, {99, -1}, {-5, -1}};
    AutoRoom room = {(int64_t)4 << 30, (int64_t)1 << 30};
    char text[320];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int level = auto_lowest(levels, 4, cases[i].budget);
        CHECK(t, level == cases[i].level, "%lld bytes: level %d", (long long)cases[i].budget, level);
    }
    auto_explain_level(text, sizeof(text), 1, &room);
    CHECK(t, strstr(text, "--recompute 1: the lowest level that fits into 3.00 GiB (4.00 GiB less") == text, "%s",
          text);
    auto_explain_level(text, sizeof(text), -1, &room);
    CHECK(t, strstr(text, "--recompute 3: ") == text && strstr(text, "more than 3.00 GiB") != NULL, "%s", text);
}

TEST(test_batches) {
    for (int64_t sequences = 1; sequences <= 600; sequences++) {
        int64_t found = 0, divisors = 0, before = sequences + 1;
        for (int64_t B = 0; (B = train_options_next_batch(sequences, B)) > 0;) {
            CHECK(t, sequences % B == 0 && B < before, "%lld of %lld", (long long)B, (long long)sequences);
            before = B, found++;
        }
        for (int64_t i = 1; i <= sequences; i++) { divisors += sequences % i == 0; }
        CHECK(t, found == divisors, "%lld: %lld of %lld", (long long)sequences, (long long)found, (long long)divisors);
    }
    CHECK(t, train_options_next_batch(3 * TRAIN_MAX_BATCH, 0) == TRAIN_MAX_BATCH, "the largest");
    // The number below 2^31 that has the most divisors: all candidates have room.
    int64_t count = 0;
    for (int64_t B = 0; (B = train_options_next_batch(2095133040, B)) > 0;) { count++; }
    CHECK(t, count > 100 && 4 * count <= AUTO_MAX_CANDIDATES, "%lld", (long long)count);
}

// ---- The order of levels ----

TEST(test_order_of_levels) {
    AutoCandidate levels[4] = {{4, 0, 1000, 1.0}, {4, 1, 900, 1.1}, {4, 2, 800, 1.15}, {4, 3, 100, 2.0}};
    int order[3];
    auto_rank_levels(levels, order); // 1.0, 1.33 and 0.9 bytes a ms
    CHECK(t, order[0] == 2 && order[1] == 1 && order[2] == 3, "%d %d %d", order[0], order[1], order[2]);
    CHECK(t, fabs(auto_bytes_per_ms(levels, 1) - 1.0) <= 1e-9, "%g", auto_bytes_per_ms(levels, 1));
    CHECK(t, auto_bytes_per_ms(levels, 0) == 0.0, "level 0 saves something");
    levels[1].seconds = 1.0 + 1e-15; // a sum of equal times in another order
    CHECK(t, auto_bytes_per_ms(levels, 1) == 0.0, "roundings take time: %g", auto_bytes_per_ms(levels, 1));
}
