// The learning-rate schedules: shapes, corners, names.
#include "dev/test/test.h"
#include "llmc/run/train_options.h"

static Schedule make(ScheduleKind kind, int64_t warmup, int64_t total, float final_fraction) {
    Schedule s = {kind, 3e-4f, warmup, total, final_fraction};
    return s;
}

// The rate as a fraction of the peak equals want within the rounding of a float.
static void check_fraction(Test *t, const Schedule *s, int64_t step, double want) {
    double got = schedule_lr(s, step) / (double)s->peak;
    CHECK(t, fabs(got - want) <= 2e-7, "%s, warmup %lld, total %lld, step %lld: %.9g of the peak, want %.9g",
          schedule_names[s->kind], (long long)s->warmup, (long long)s->total, (long long)step, got, want);
}

// --schedule accepts exactly the names of the schedules.
TEST(test_names) {
    const ArgSpec *spec = &train_specs_gpu[OPTION_schedule];
    char choices[1000] = "";
    for (int i = 0; i < NUM_SCHEDULES; i++) {
        CHECK(t, (int)schedule_kind(schedule_names[i]) == i, "%s", schedule_names[i]);
        snprintf(choices + strlen(choices), sizeof(choices) - strlen(choices), "%s%s", i ? "|" : "", schedule_names[i]);
    }
    CHECK(t, strcmp(choices, spec->value) == 0, "--schedule accepts %s", spec->value);
}

// The rate of a step, as a fraction of the peak.
TEST(test_known_steps) {
    const Schedule cosine = make(SCHEDULE_COSINE, 20, 120, 0.1f), wsd = make(SCHEDULE_WSD, 5, 100, 0.2f);
    const Schedule linear = make(SCHEDULE_LINEAR, 0, 10, 0.0f), level = make(SCHEDULE_CONSTANT, 0, 10, 0.3f);
    const Schedule longest = make(SCHEDULE_LINEAR, 0, 1LL << 40, 0.0f);
    const struct {
        const Schedule *schedule;
        int64_t step;
        double want;
    } cases[] = {{&cosine, 0, 0.05}, // of a warm-up
                 {&cosine, 20, 1.0},
                 {&cosine, 45, 0.1 + 0.9 * 0.5 * (1 + sqrt(0.5))}, // a quarter of the way: cos 45 degrees
                 {&cosine, 70, 0.55},
                 {&cosine, 95, 0.1 + 0.9 * 0.5 * (1 - sqrt(0.5))},
                 {&cosine, 1000000, 0.1},
                 {&linear, 0, 1.0},
                 {&linear, 9, 0.1},
                 {&level, 20, 1.0},
                 {&wsd, 80, 1.0},
                 {&wsd, 85, 0.2 + 0.8 * 0.5}, // a quarter of the decay: 1 - sqrt(1/4)
                 {&wsd, 100, 0.2},
                 {&longest, 1LL << 39, 0.5},
                 {&longest, INT64_MAX, 0.0}};
    FOR_EACH(i, cases) { check_fraction(t, cases[i].schedule, cases[i].step, cases[i].want); }
}

// No schedule is anything but a finite rate within [final, peak] after the warm-up, falling or level, however the
// numbers lie: warm-ups that fill or outlast the run, runs of one step, steps after the end.
TEST(test_corners) {
    for (int kind = 0; kind < NUM_SCHEDULES; kind++) {
        for (int total = 0; total <= 12; total++) {
            for (int warmup = 0; warmup <= 14; warmup++) {
                Schedule s = make((ScheduleKind)kind, warmup, total, 0.25f);
                double last = INFINITY;
                for (int step = 0; step < 20; step++) {
                    double got = schedule_lr(&s, step) / (double)s.peak;
                    bool warming = step < warmup;
                    double low = warming ? (step + 1.0) / warmup - 1e-7 : 0.25 - 1e-7;
                    CHECK(t, got >= low && got <= 1.0 + 1e-7, "%s %d/%d step %d: %g", schedule_names[kind], warmup,
                          total, step, got);
                    CHECK(t, warming || got <= last, "%s %d/%d rises at step %d", schedule_names[kind], warmup, total,
                          step);
                    last = warming ? INFINITY : got;
                }
                if (warmup < total) { check_fraction(t, &s, warmup, 1.0); }
                if (schedule_falls(s.kind)) { check_fraction(t, &s, max_i64(warmup, total), 0.25); }
            }
        }
    }
}
