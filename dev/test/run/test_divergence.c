// When a run counts as diverged: series of losses and norms, and the steps at which a run warns.
#include "dev/test/test.h"
#include "llmc/run/divergence.h"
#include "llmc/run/outlier.h"

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
    {"a streak that one step interrupts", {{200, 3, 1, 0}, {19, 9, 1, 0}, {1, 3, 1, 0}, {19, 9, 1, 0}}, 0, ""},
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
    Divergence divergence = {0, 0, 0.0};
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

// The text names the longer streak. Its limit is the one that the steps were above.
TEST(test_words) {
    Divergence d = {0, 0, 0.0};
    for (int i = 0; i < 20; i++) { divergence_take(&d, V, 7.0, 1.0, (double)NAN); }
    ShortText text = divergence_text(&d, V);
    const char *loss = "the loss has been above 6.7, 1 more than that of an untrained model, for 20 steps";
    CHECK(t, strcmp(text.text, loss) == 0, "%s", text.text);
    for (int i = 0; i < 20; i++) { divergence_take(&d, V, 3.0, 13.0, i < 5 ? 1.25 : (double)NAN); }
    text = divergence_text(&d, V);
    const char *norm = "the gradient norm has been above 12.5, 10 times its median, for 20 steps";
    CHECK(t, strcmp(text.text, norm) == 0, "%s", text.text);
}

// Streaks that no run writes are refused.
TEST(test_impossible_states) {
    static const struct {
        Divergence d;
        bool sound;
    } cases[] = {{{0, 0, 0.0}, true},
                 {{17, 3, 0.1}, true},
                 {{-1, 0, 1.0}, false},
                 {{LARGEST_WHOLE + 1, 0, 1.0}, false},
                 {{0, -1, 1.0}, false},
                 {{0, LARGEST_WHOLE + 1, 1.0}, false},
                 {{0, 0, -1.0}, false},
                 {{0, 0, (double)NAN}, false},
                 {{0, 0, (double)INFINITY}, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK(t, divergence_is_sound(&cases[i].d) == cases[i].sound, "case %zu", i);
    }
}
