// The outlier detector: the z-score, which steps enter the statistics, which are skipped, restarts, and states.
#include "dev/test/test.h"
#include "llmc/run/outlier.h"
#include "llmc/base/rand.h"

// A loss that wobbles around level.
static double noisy(double level, uint64_t i) {
    float pair[2];
    rand_normal_pair(7, 1, i, pair);
    return level + 0.05 * pair[0];
}

static OutlierDetector filled(double level) {
    OutlierDetector d;
    double z;
    outlier_init(&d);
    for (uint64_t i = 0; i < OUTLIER_WINDOW; i++) { outlier_check(&d, noisy(level, i), 0.0, &z); }
    return d;
}

// A full window of two values in turn.
static OutlierDetector filled_with(double even, double odd) {
    OutlierDetector d;
    double z;
    outlier_init(&d);
    for (int i = 0; i < OUTLIER_WINDOW; i++) { outlier_check(&d, i % 2 == 0 ? even : odd, 0.0, &z); }
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
    OutlierDetector d = filled_with(0.0, 1.0);
    const double want[][2] = {{0.5, 0.0}, {1.0, 1.0}, {0.0, -1.0}, {2.0, 3.0}, {-1.0, -3.0}};
    FOR_EACH(i, want) {
        double z = outlier_zscore(&d, want[i][0]);
        CHECK(t, fabs(z - want[i][1]) <= 1e-12, "z of %g is %g, want %g", want[i][0], z, want[i][1]);
    }
    CHECK(t, isnan(outlier_zscore(&d, NAN)) && isnan(outlier_zscore(&d, INFINITY)), "z of no number");
}

// What enters no statistics and is skipped, unless the threshold is 0.
TEST(test_spikes) {
    OutlierDetector d = filled(3.0), before = d;
    double z = 0.0;
    CHECK(t, outlier_check(&d, 300.0, 5.0, &z) && z > 1000.0, "a spike of 100x passes, z %g", z);
    CHECK(t, memcmp(d.values, before.values, sizeof(d.values)) == 0 && d.count == before.count,
          "the spike entered the statistics");
    CHECK(t, !outlier_check(&d, 3.0, 5.0, &z) && d.rejected == 0, "a usual value is skipped, or ends no streak");
    CHECK(t, !outlier_check(&d, 0.001, 5.0, &z) && z < -5.0, "a fall is skipped, z %g", z);
    d = filled(3.0);
    CHECK(t, !outlier_check(&d, 300.0, 0.0, &z) && z > 1000.0, "threshold 0 skips, or gives no z (%g)", z);
    CHECK(t, d.count == OUTLIER_WINDOW + 1, "threshold 0 keeps no statistics");
}

TEST(test_not_finite) {
    const double broken[] = {NAN, INFINITY, -INFINITY};
    OutlierDetector d = filled(3.0), before = d;
    for (int i = 0; i < 3 * 20; i++) {
        double z = 0.0;
        CHECK(t, outlier_check(&d, broken[i % 3], 3.0, &z) && isnan(z), "%g is not skipped", broken[i % 3]);
        CHECK(t, !outlier_check(&d, broken[i % 3], 0.0, &z), "%g is skipped although off", broken[i % 3]);
    }
    CHECK(t, memcmp(&d, &before, sizeof(d)) == 0, "NaN or Inf changed the detector");
}

// The level jumps from 3 to 6 for good: 16 updates are lost, then training goes on and the new level is learned.
TEST(test_new_level) {
    OutlierDetector d = filled(3.0);
    int skipped = 0;
    double z;
    for (uint64_t i = 0; i < 1000; i++) { skipped += outlier_check(&d, noisy(6.0, i), 6.0, &z); }
    CHECK(t, skipped == OUTLIER_MAX_REJECTED, "%d updates skipped at the new level", skipped);
    CHECK(t, fabs(outlier_zscore(&d, 6.0)) <= 1.0, "6 has z %g at the level of 6", outlier_zscore(&d, 6.0));
    CHECK(t, outlier_check(&d, 9.0, 6.0, &z), "an outlier passes after the restart");
}

// A run that is level to the last bit has no spread to measure with: equal values pass, real changes do not.
TEST(test_constant_values) {
    const double level = (double)0.1f;
    const struct {
        double level, value;
        bool skip;
    } cases[] = {{level, level, false},
                 {level, (double)nextafterf(0.1f, 1.0f), false},
                 {level, 0.1001, true},
                 {0.0, 0.0, false},
                 {0.0, 1e-30, true}};
    FOR_EACH(i, cases) {
        OutlierDetector d = filled_with(cases[i].level, cases[i].level);
        double z = 0.0;
        bool skip = outlier_check(&d, cases[i].value, 3.0, &z);
        CHECK(t, skip == cases[i].skip, "%g among values of %g has z %g", cases[i].value, cases[i].level, z);
    }
}

// Which numbers of a training state are refused. The others leave the detector at work. The state has its bytes.
TEST(test_sound) {
    CHECK(t, sizeof(OutlierDetector) == 16 + 8 * OUTLIER_WINDOW, "padding: %zu bytes", sizeof(OutlierDetector));
    static const struct {
        uint64_t count;
        int64_t rejected;
        double value;
        bool sound;
    } cases[] = {{0, 0, 0.0, true},
                 {(uint64_t)LARGEST_WHOLE - 40, 0, 1e100, true},
                 {1000, 0, 2e100, false},
                 {1000, 0, HUGE_VAL, false},
                 {(uint64_t)LARGEST_WHOLE + 1, 0, 1.0, false},
                 {1000, 16, 1.0, false},
                 {1000, INT64_MIN, 1.0, false}};
    FOR_EACH(i, cases) {
        OutlierDetector d = filled(3.0);
        double z = 0.0;
        d.count = cases[i].count, d.rejected = cases[i].rejected, d.values[OUTLIER_WINDOW - 1] = cases[i].value;
        CHECK(t, outlier_is_sound(&d) == cases[i].sound, "case %zu", i);
        for (int j = 0; j < 40 && cases[i].sound; j++) { outlier_check(&d, 3.0, 2.0, &z); }
        CHECK(t, !isinf(z) && outlier_is_sound(&d) == cases[i].sound, "case %zu: z %g", i, z);
    }
}
