// The lowest validation loss: series of losses with resumes, and numbers that no training state holds.
#include "dev/test/test.h"
#include "llmc/run/lowest.h"

TEST(test_series) {
    static const struct {
        uint64_t source;
        int64_t step;
        double loss;
        bool lower;
        int64_t best, since; // afterwards
    } rows[] = {
        {7, 0, 5.0, true, 0, 0},
        {7, 10, 4.0, true, 10, 0},
        {7, 10, 4.0, true, 10, 0}, // saved there, resumed
        {7, 20, 4.0, false, 10, 1},
        {7, 20, 4.0, false, 10, 1}, // the same validation again
        {7, 30, (double)NAN, false, 10, 2},
        {7, 40, 3.5, true, 40, 0},
        {7, 50, 3.6, false, 40, 1},
        {8, 50, 9.0, true, 50, 0}, // of other data
        {8, 60, 9.5, false, 50, 1},
    };
    Lowest lowest = {0.0, 0, 0, 0, 0};
    FOR_EACH(i, rows) {
        bool lower = lowest_take(&lowest, rows[i].source, rows[i].step, rows[i].loss);
        CHECK(t, lower == rows[i].lower && lowest.step == rows[i].best && lowest.since == rows[i].since,
              "row %zu: %d, step %lld, %lld since", i, lower, (long long)lowest.step, (long long)lowest.since);
        CHECK(t, lowest_is_sound(&lowest), "row %zu is not sound", i);
    }
}

TEST(test_soundness) {
    static const struct {
        Lowest lowest;
        bool sound;
    } cases[] = {{{0.0, 0, 0, 0, 0}, true},          {{1.0, 5, 9, 2, 1}, true},
                 {{(double)NAN, 5, 9, 2, 1}, false}, {{1.0, -1, 9, 2, 1}, false},
                 {{1.0, 5, 4, 2, 1}, false},         {{1.0, 5, 9, -2, 1}, false},
                 {{1.0, 5, INT64_MAX, 2, 1}, false}, {{1.0, 5, 9, INT64_MAX, 1}, false}};
    FOR_EACH(i, cases) { CHECK(t, lowest_is_sound(&cases[i].lowest) == cases[i].sound, "case %zu", i); }
}
