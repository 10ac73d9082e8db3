// The outlier detector: the z-score, which steps enter the statistics, which are skipped, and restarts.
#include "dev/test/test.h"
#include "llmc/run/outlier.h"
#include "llmc/base/rand.h"

enum { ROUNDS = 1000 };

// A loss that wobbles around level.
static double noisy(double level, uint64_t i) {
    float pair[2];
    rand_normal_pair(7, 1, i, pair);
    return level + 0.05 * pair[0];
}

static OutlierDetector filled(double level) {
    OutlierDetector d;
    outlier_init(&d);
    for (uint64_t i = 0; i < OUTLIER_WINDOW; i++) { outlier_accept(&d, noisy(level, i)); }
    return d;
}

TEST(test_nan_until_full) {
    OutlierDetector d;
    outlier_init(&d);
    double z;
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        CHECK(t, isnan(outlier_zscore(&d, 1e9)), "a z-score after %d values", i);
        CHECK(t, !outlier_check(&d, i % 2, 0.001, &z) && isnan(z), "value %d is skipped", i);
    }
    CHECK(t, !isnan(outlier_zscore(&d, 0.0)), "no z-score with a full window");
}

// 64 zeros and 64 ones: mean 1/2, standard deviation 1/2.
TEST(test_known_zscore) {
    OutlierDetector d;
    outlier_init(&d);
    for (int i = 0; i < OUTLIER_WINDOW; i++) { outlier_accept(&d, i % 2); }
    double want[][2] = {{0.5, 0.0}, {1.0, 1.0}, {0.0, -1.0}, {2.0, 3.0}, {-1.0, -3.0}};
    for (int i = 0; i < 5; i++) {
        double z = outlier_zscore(&d, want[i][0]);
        CHECK(t, fabs(z - want[i][1]) <= 1e-12, "z of %g is %g, want %g", want[i][0], z, want[i][1]);
    }
    CHECK(t, isnan(outlier_zscore(&d, NAN)) && isnan(outlier_zscore(&d, INFINITY)), "z of what is not finite");
}

// The lower of the two middle values, whatever their order. A value that comes often counts so often.
TEST(test_median) {
    OutlierDetector d;
    outlier_init(&d);
    CHECK(t, isnan(outlier_median(&d)), "a median of nothing");
    for (int i = 0; i < OUTLIER_WINDOW - 1; i++) { outlier_accept(&d, 127 - i * 37 % 128); }
    CHECK(t, isnan(outlier_median(&d)), "a median before the window is full");
    outlier_accept(&d, 127 - 127 * 37 % 128);
    CHECK(t, outlier_median(&d) == OUTLIER_WINDOW / 2 - 1, "the median of 0 to 127 is %g", outlier_median(&d));
    for (int i = 0; i < OUTLIER_WINDOW / 2; i++) { outlier_accept(&d, 5.0); }
    CHECK(t, outlier_median(&d) == 5.0, "the median is %g, and half of the values are 5", outlier_median(&d));
}

// After more values than the window holds, only the last 128 count.
TEST(test_window_slides) {
    OutlierDetector d, last;
    outlier_init(&d);
    outlier_init(&last);
    for (int i = 0; i < ROUNDS; i++) {
        outlier_accept(&d, noisy(i < 500 ? 100.0 : 3.0, (uint64_t)i));
        if (i >= ROUNDS - OUTLIER_WINDOW) { outlier_accept(&last, noisy(3.0, (uint64_t)i)); }
    }
    double a = outlier_zscore(&d, 3.2), b = outlier_zscore(&last, 3.2);
    CHECK(t, fabs(a - b) <= 1e-9 * fabs(b), "z %.15g with the whole history, %.15g with the last 128", a, b);
}

TEST(test_spike_is_skipped_and_not_learned) {
    OutlierDetector d = filled(3.0);
    OutlierDetector before = d;
    double z;
    bool skip = outlier_check(&d, 300.0, 5.0, &z);
    CHECK(t, skip && z > 1000.0, "a spike of 100x passes, z %g", z);
    CHECK(t, memcmp(d.values, before.values, sizeof(d.values)) == 0 && d.count == before.count,
          "the spike entered the statistics");
    CHECK(t, outlier_check(&d, 300.0, 5.0, &z), "the second spike passes");
    CHECK(t, d.rejected == 2, "%lld rejections counted", (long long)d.rejected);
    CHECK(t, !outlier_check(&d, 3.0, 5.0, &z) && d.rejected == 0, "a usual value is skipped or does not end the row");
    skip = outlier_check(&d, 0.001, 5.0, &z);
    CHECK(t, !skip && z < -5.0, "a fall is skipped, z %g", z);
}

TEST(test_not_finite) {
    double broken[] = {NAN, INFINITY, -INFINITY};
    for (int full = 0; full < 2; full++) {
        OutlierDetector d;
        outlier_init(&d);
        if (full) { d = filled(3.0); }
        OutlierDetector before = d;
        double z = 0.0;
        for (int i = 0; i < 3 * ROUNDS; i++) {
            CHECK(t, outlier_check(&d, broken[i % 3], 3.0, &z) && isnan(z), "%g is not skipped", broken[i % 3]);
            CHECK(t, !outlier_check(&d, broken[i % 3], 0.0, &z), "%g is skipped although off", broken[i % 3]);
            outlier_accept(&d, broken[i % 3]);
        }
        CHECK(t, memcmp(&d, &before, sizeof(d)) == 0, "%s window: NaN or Inf changed the detector",
              full ? "full" : "empty");
    }
}

TEST(test_off) {
    OutlierDetector d = filled(3.0);
    double z;
    bool skip = outlier_check(&d, 300.0, 0.0, &z);
    CHECK(t, !skip && z > 1000.0, "threshold 0 skips, or gives no z (%g)", z);
    CHECK(t, d.count == OUTLIER_WINDOW + 1, "threshold 0 keeps no statistics");
}

// The level jumps from 3 to 6 for good: 16 updates are lost, then training goes on and the new level is learned.
TEST(test_new_level) {
    OutlierDetector d = filled(3.0);
    int skipped = 0;
    double z;
    for (uint64_t i = 0; i < ROUNDS; i++) { skipped += outlier_check(&d, noisy(6.0, i), 6.0, &z); }
    CHECK(t, skipped == OUTLIER_MAX_REJECTED, "%d updates skipped at the new level", skipped);
    CHECK(t, fabs(outlier_zscore(&d, 6.0)) <= 1.0, "6 has z %g at the level of 6", outlier_zscore(&d, 6.0));
    CHECK(t, outlier_check(&d, 9.0, 6.0, &z), "an outlier passes after the restart");
}

// 15 in a row, a usual value, 15 in a row: no restart.
TEST(test_row_must_be_unbroken) {
    OutlierDetector d = filled(3.0);
    double z;
    for (int i = 0; i < 160; i++) {
        bool spike = i % 16 != 15;
        CHECK(t, outlier_check(&d, spike ? 50.0 : 3.0, 6.0, &z) == spike, "value %d", i);
    }
}

// A run that is level to the last bit has no spread to measure with: equal values pass, real changes do not.
TEST(test_constant_values) {
    OutlierDetector d;
    outlier_init(&d);
    for (int i = 0; i < OUTLIER_WINDOW; i++) { outlier_accept(&d, (double)0.1f); }
    double z;
    bool skip = outlier_check(&d, (double)0.1f, 3.0, &z);
    CHECK(t, !skip && fabs(z) <= 1.0, "an equal value has z %g", z);
    skip = outlier_check(&d, (double)nextafterf(0.1f, 1.0f), 3.0, &z);
    CHECK(t, !skip, "one ulp has z %g", z);
    skip = outlier_check(&d, 0.1001, 3.0, &z);
    CHECK(t, skip, "a permille more has z %g", z);
    outlier_init(&d);
    for (int i = 0; i < OUTLIER_WINDOW; i++) { outlier_accept(&d, 0.0); }
    skip = outlier_check(&d, 0.0, 3.0, &z);
    CHECK(t, !skip && z == 0.0, "0 among zeros has z %g", z);
    skip = outlier_check(&d, 1e-30, 3.0, &z);
    CHECK(t, skip && isinf(z), "1e-30 among zeros has z %g", z);
}

// Few false alarms: of 100,000 normal values about 3 are beyond 4 standard deviations; with the error of an estimate
// from 128 values, some more.
TEST(test_false_alarms) {
    OutlierDetector d;
    outlier_init(&d);
    int skipped = 0;
    double z;
    for (uint64_t i = 0; i < 100000; i++) { skipped += outlier_check(&d, noisy(3.0, i), 4.0, &z); }
    CHECK(t, skipped >= 1 && skipped <= 30, "%d of 100,000 normal values skipped at z > 4", skipped);
}

// A resume: bytes saved in the middle of a run and read back go on as the run did.
TEST(test_resume) {
    CHECK(t, sizeof(OutlierDetector) == 16 + 8 * OUTLIER_WINDOW, "padding: %zu bytes", sizeof(OutlierDetector));
    for (int stop = 0; stop < 400; stop += 37) {
        OutlierDetector straight, resumed;
        outlier_init(&straight);
        for (int i = 0; i < 500; i++) {
            if (i == stop) { memcpy(&resumed, &straight, sizeof(resumed)); }
            double value = noisy(i > 300 ? 9.0 : 3.0, (uint64_t)i) + (i % 41 == 7 ? 20.0 : 0.0), z, z2 = 0.0;
            bool skip = outlier_check(&straight, value, 3.0, &z);
            bool same = i < stop || (outlier_check(&resumed, value, 3.0, &z2) == skip && memcmp(&z, &z2, 8) == 0);
            CHECK(t, same, "saved at %d: step %d differs, z %g and %g", stop, i, z, z2);
        }
    }
}

// Which numbers of a training state are refused. The others leave the detector at work.
TEST(test_sound) {
    static const struct {
        uint64_t count;
        int64_t rejected;
        double value;
        bool sound;
    } cases[] = {{0, 0, 0.0, true},
                 {5, 15, -1e-308, true},
                 {(uint64_t)LARGEST_WHOLE - 40, 0, 1e100, true},
                 {1000, 0, 2e100, false},
                 {1000, 0, -1e308, false},
                 {1000, 0, (double)NAN, false},
                 {1000, 0, HUGE_VAL, false},
                 {1000, 0, -HUGE_VAL, false},
                 {UINT64_MAX, 0, 1.0, false},
                 {(uint64_t)LARGEST_WHOLE + 1, 0, 1.0, false},
                 {1000, 16, 1.0, false},
                 {1000, -1, 1.0, false},
                 {1000, INT64_MAX, 1.0, false},
                 {1000, INT64_MIN, 1.0, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        OutlierDetector d = filled(3.0);
        double z = 0.0;
        d.count = cases[i].count, d.rejected = cases[i].rejected, d.values[OUTLIER_WINDOW - 1] = cases[i].value;
        CHECK(t, outlier_is_sound(&d) == cases[i].sound, "case %zu", i);
        for (int j = 0; j < 40 && cases[i].sound; j++) { outlier_check(&d, 3.0, 2.0, &z); }
        CHECK(t, !isinf(z) && outlier_is_sound(&d) == cases[i].sound, "case %zu: z %g", i, z);
    }
}

// A damaged state file may hold anything in the fields.
TEST(test_any_bytes) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        union {
            OutlierDetector detector;
            uint64_t words[sizeof(OutlierDetector) / 8];
        } any;
        for (size_t i = 0; i < sizeof(any) / 8; i++) { any.words[i] = rand_u64(round, 0, i); }
        if (any.detector.rejected == INT64_MAX) { continue; } // would overflow: one value in 2^64
        double z = 0.0;
        for (int i = 0; i < 40; i++) { outlier_check(&any.detector, i, 2.0, &z); }
        CHECK(t, isnan(z) || z <= 1e300 || isinf(z), "round %llu", (unsigned long long)round);
    }
}
