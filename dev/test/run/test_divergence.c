// When a run counts as diverged: series of losses and norms, and the steps at which a run warns.
#include "dev/test/test.h"
#include "llmc/optim/outlier.h"
#include "llmc/run/run_state.h"
#include "dev/test/refused.h"

enum { V = 300 }; // ln V + 1 = 6.7038

// A part of a series: so many steps with this loss, and norms that grow by a factor from step to step. growth 0: level.
typedef struct {
    int steps;
    double loss, norm, growth;
} Part;

typedef struct {
    const char *name;
    Part parts[4];
    double skip_z;     // of the norm, as --skip-grad-z; 0: no update is skipped
    const char *warns; // the steps of the warnings, counted from 1
} Series;

static const Series series[] = {
    {"an ordinary run", {{300, 5.7, 1, 0}}, 0, ""},
    {"a spike of 1 step", {{200, 3, 1, 0}, {1, 1e6, 1e16, 0}, {100, 3, 1, 0}}, 0, ""},
    {"a loss too high for 19 steps", {{200, 3, 1, 0}, {19, 9, 1, 0}, {100, 3, 1, 0}}, 0, ""},
    {"a loss too high for 20 steps", {{200, 3, 1, 0}, {20, 9, 1, 0}, {100, 3, 1, 0}}, 0, " 220"},
    {"a loss just below the limit", {{200, 6.70, 1, 0}}, 0, ""},
    {"a loss just above the limit", {{200, 6.71, 1, 0}}, 0, " 20"},
    {"a row that one step interrupts", {{200, 3, 1, 0}, {19, 9, 1, 0}, {1, 3, 1, 0}, {19, 9, 1, 0}}, 0, ""},
    {"a loss that stays high", {{200, 3, 1, 0}, {1000, 9, 1, 0}}, 0, " 220"},
    {"recovery and a second episode", {{200, 3, 1, 0}, {50, 9, 1, 0}, {1, 3, 1, 0}, {50, 9, 1, 0}}, 0, " 220 271"},
    {"a bad model at the start", {{30, 20, 5, 0}, {100, 3, 1, 0}}, 0, " 20"},
    {"a bad model that learns in time", {{19, 20, 5, 0}, {100, 3, 1, 0}}, 0, ""},
    {"a norm too high for 19 steps", {{200, 3, 1, 0}, {19, 3, 11, 0}, {100, 3, 1, 0}}, 0, ""},
    {"a norm too high for 20 steps", {{200, 3, 1, 0}, {20, 3, 11, 0}, {100, 3, 1, 0}}, 0, " 220"},
    {"a norm just below the limit", {{200, 3, 1, 0}, {60, 3, 9.9, 0}}, 0, ""},
    {"a norm that finds a new level", {{200, 3, 1, 0}, {200, 3, 100, 0}, {30, 3, 1e4, 0}}, 0, " 220 420"},
    {"a norm before there is a median", {{100, 3, 1, 0}, {27, 3, 100, 0}, {100, 3, 1, 0}}, 0, ""},
    {"a norm from the first median on", {{127, 3, 1, 0}, {40, 3, 100, 0}}, 0, " 148"},
    {"a norm that drifts slowly", {{200, 3, 1, 0}, {500, 3, 1, 1.02}}, 0, ""},
    {"a norm that drifts fast", {{200, 3, 1, 0}, {100, 3, 1, 1.5}}, 0, " 226"},
    {"the norm of a warm-up", {{300, 5, 40, 0.97}, {100, 4, 0.01, 0}}, 0, ""},
    {"a norm of zeros", {{200, 3, 0, 0}, {100, 3, 1e-9, 0}}, 0, ""},
    {"the loss first, then both", {{200, 3, 1, 0}, {5, 9, 1, 0}, {50, 9, 100, 0}}, 0, " 220"},
    {"the norm first, then both", {{200, 3, 1, 0}, {5, 3, 100, 0}, {50, 9, 100, 0}}, 0, " 220"},
    {"a loss that is NaN", {{200, 3, 1, 0}, {20, (double)NAN, 1, 0}}, 0, " 220"},
    {"a norm that is infinite", {{200, 3, 1, 0}, {20, 3, (double)INFINITY, 0}}, 0, " 220"},
    {"skipped updates, which empty the window", {{200, 3, 1, 0}, {40, 3, 100, 0}}, 5, " 220"},
    {"a spike that is skipped", {{200, 3, 1, 0}, {10, 3, 100, 0}, {100, 3, 1, 0}}, 5, ""},
};

// Runs a series as a trainer does, and writes the steps of its warnings.
static void run_series(const Series *s, char *warns, size_t size) {
    Outliers outliers;
    Divergence divergence = {0, 0, 0.0, 0};
    int step = 0;
    outlier_init(&outliers.loss);
    outlier_init(&outliers.norm);
    warns[0] = '\0';
    for (int part = 0; part < 4; part++) {
        double norm = s->parts[part].norm;
        for (int i = 0; i < s->parts[part].steps; i++) {
            char why[96];
            double loss = s->parts[part].loss, usual = outlier_median(&outliers.norm);
            outliers_skip(&outliers, loss, norm, 0.0, s->skip_z, why, sizeof(why));
            divergence_take(&divergence, V, loss, norm, usual);
            step++;
            size_t n = strlen(warns);
            if (divergence_steps(&divergence) == DIVERGENCE_STEPS) { snprintf(warns + n, size - n, " %d", step); }
            norm *= s->parts[part].growth > 0.0 ? s->parts[part].growth : 1.0;
        }
    }
}

TEST(test_series) {
    for (size_t i = 0; i < sizeof(series) / sizeof(series[0]); i++) {
        char warns[200];
        run_series(&series[i], warns, sizeof(warns));
        CHECK(t, strcmp(warns, series[i].warns) == 0, "%s: warns at%s, expected%s", series[i].name, warns,
              series[i].warns);
    }
}

// A run that learns nothing is told once, at the step that a row of the untrained model's loss makes 100, warm-up left
// out. ln V = 5.704, 0.98 of it is 5.590.
TEST(test_idle) {
    static const struct {
        const char *name;
        Part parts[3]; // of a run with a warm-up of so many steps
        int warmup;
        const char *warns;
    } runs[] = {
        {"weights of zeros", {{500, 5.704, 0, 0}}, 0, " 100"},
        {"a rate far too low", {{500, 5.60, 0, 0}}, 30, " 130"},
        {"an untrained model of large weights", {{500, 6.70, 0, 0}}, 0, " 100"},
        {"too short to tell", {{99, 5.704, 0, 0}}, 0, ""},
        {"too short after the warm-up", {{400, 5.704, 0, 0}}, 301, ""},
        {"an ordinary beginning", {{99, 5.8, 0, 0}, {500, 5.58, 0, 0}}, 0, ""},
        {"a long warm-up", {{300, 5.704, 0, 0}, {400, 5, 0, 0}}, 250, ""},
        {"a run that has diverged", {{50, 3, 0, 0}, {500, 6.71, 0, 0}}, 0, ""},
        {"not a number", {{500, (double)NAN, 0, 0}}, 0, ""},
        {"one good batch, then none again", {{150, 5.7, 0, 0}, {1, 5.5, 0, 0}, {150, 5.7, 0, 0}}, 0, " 100 251"},
    };
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        Divergence d = {0, 0, 0.0, 0};
        char warns[100] = "";
        int step = 0;
        for (int part = 0; part < 3; part++) {
            for (int k = 0; k < runs[i].parts[part].steps; k++, step++) {
                divergence_take_idle(&d, V, runs[i].parts[part].loss, step < runs[i].warmup);
                size_t n = strlen(warns);
                if (d.idle_steps == IDLE_STEPS) { snprintf(warns + n, sizeof(warns) - n, " %d", step + 1); }
            }
        }
        CHECK(t, strcmp(warns, runs[i].warns) == 0, "%s: warns at%s, expected%s", runs[i].name, warns, runs[i].warns);
    }
}

// The text names the longer row. Its limit is the one that the steps were above.
TEST(test_words) {
    Divergence d = {0, 0, 0.0, 0};
    char text[160];
    for (int i = 0; i < 20; i++) { divergence_take(&d, V, 7.0, 1.0, (double)NAN); }
    divergence_text(&d, V, text, sizeof(text));
    CHECK(t, strcmp(text, "the loss has been above 6.70, that of an untrained model + 1, for 20 steps") == 0, "%s",
          text);
    for (int i = 0; i < 20; i++) { divergence_take(&d, V, 3.0, 13.0, i < 5 ? 1.25 : (double)NAN); }
    divergence_text(&d, V, text, sizeof(text));
    CHECK(t, strcmp(text, "the gradient norm has been above 12.5, 10 times its median, for 20 steps") == 0, "%s", text);
}

// Begins a run that stands before step 100.
static TrainRun *run_at_100(void) {
    static TrainRun run;
    memset(&run, 0, sizeof(run));
    run.step = 100;
    return &run;
}

// Restores these facts.
static bool restore(TrainRun *run, const char *loss, const char *norm, const char *limit, const char *good,
                    Error *error) {
    StateHeader header;
    state_init(&header);
    state_set_text(&header, "steps_above_loss_limit", loss);
    state_set_text(&header, "steps_above_norm_limit", norm);
    state_set_text(&header, "norm_limit", limit);
    state_set_text(&header, "good_step", good);
    return run_restore_divergence(run, &header, "state", error);
}

// The rows go on from a training state, to the last bit of the limit. An older training state has none.
TEST(test_state) {
    TrainRun *run = run_at_100();
    StateHeader header;
    Error error;
    Divergence *d = &run->divergence;
    CHECK(t, restore(run, "17", "3", "0.10000000000000001", "80", &error), "%s", error.text);
    CHECK(t, d->loss_steps == 17 && d->norm_steps == 3 && d->norm_limit == 0.1 && run->folder.good_step == 80, "facts");
    state_init(&header);
    CHECK(t, run_restore_divergence(run, &header, "state", &error), "%s", error.text);
    CHECK(t, divergence_steps(d) == 0 && d->norm_limit == 0.0 && run->folder.good_step == 100, "an older state");
}

TEST(test_impossible_states) {
    static const char *const bad[][6] = {
        {"-1", "0", "1", "80", "steps_above_loss_limit -1", "a whole number from 0 to 100"},
        {"101", "0", "1", "80", "steps_above_loss_limit 101", "a whole number from 0 to 100"},
        {"0", "101", "1", "80", "steps_above_norm_limit 101", "a whole number from 0 to 100"},
        {"0", "0", "-1", "80", "norm_limit -1", "a number from 0 on"},
        {"0", "0", "nan", "80", "norm_limit nan", "a number from 0 on"},
        {"0", "0", "1e999", "80", "norm_limit 1e999", "a number from 0 on"},
        {"0", "0", "1x", "80", "norm_limit 1x", "a number from 0 on"},
        {"0", "0", "1", "101", "good_step 101", "a whole number from -1 to 100"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char says[200];
        TrainRun *run = run_at_100();
        Error error;
        snprintf(says, sizeof(says), ": the training state says %s, expected %s", bad[i][4], bad[i][5]);
        CHECK_REFUSED(t, restore(run, bad[i][0], bad[i][1], bad[i][2], bad[i][3], &error), &error, "state", says);
    }
}
