// Unit tests of Muon's numbers (llmc/model/muon.h), and of the places in a second moment that leaves its matrices out.
#include "dev/test/test.h"
#include "llmc/model/muon.h"

// Checks a float that takes few operations: one rounding each.
static void check_near(Test *t, const char *what, double got, double want) {
    CHECK(t, fabs(got - want) <= 4.0 * 0x1p-24 * fabs(want), "%s: %.9g, expected %.9g", what, got, want);
}

// sqrt(max(1, rows/cols)), and 0.2 sqrt(max(rows, cols)).
TEST(test_scale) {
    static const struct {
        int64_t rows, cols;
        double original, rms;
    } cases[] = {{1, 1, 1.0, 0.2},
                 {768, 768, 1.0, 5.542562584220407},
                 {100, 25, 2.0, 2.0},
                 {25, 100, 1.0, 2.0},
                 {3, 2, 1.224744871391589, 0.3464101615137755}};
    FOR_EACH(i, cases) {
        int64_t rows = cases[i].rows, cols = cases[i].cols;
        check_near(t, "original", muon_scale(MUON_SCALE_ORIGINAL, rows, cols), cases[i].original);
        check_near(t, "rms", muon_scale(MUON_SCALE_RMS, rows, cols), cases[i].rms);
    }
}

// The momentum rises from 0.85 to its last value, or stays where the last value is below 0.85.
TEST(test_momentum) {
    static const struct {
        float last;
        int64_t warmup, step;
        double want;
    } cases[] = {{0.95f, 300, 0, 0.85},   {0.95f, 300, 150, 0.90}, {0.95f, 300, 299, 0.85 + 0.1 * 299 / 300},
                 {0.95f, 300, 300, 0.95}, {0.95f, 0, 0, 0.95},     {0.5f, 300, 150, 0.5}};
    FOR_EACH(i, cases) {
        float got = muon_momentum_of_step(cases[i].last, cases[i].warmup, cases[i].step);
        check_near(t, "momentum", got, cases[i].want);
    }
}

// maxT 3, Vp 4, L 2, C 2. Muon takes 2*12 of qkvw, 2*4 of attprojw, 2*16 of fcw and of fcprojw.
TEST(test_places_in_v) {
    const ModelConfig config = GPT2_CONFIG(3, 4, 4, 2, 1, 2);
    static const struct {
        int tensor;
        int64_t place, in_v;
    } first[] = {{PARAM_wte, 0, 0},    {PARAM_wpe, 8, 8},        {PARAM_ln1w, 14, 14},  {PARAM_ln1b, 18, 18},
                 {PARAM_qkvb, 46, 22}, {PARAM_attprojb, 66, 34}, {PARAM_ln2w, 70, 38},  {PARAM_ln2b, 74, 42},
                 {PARAM_fcb, 110, 46}, {PARAM_fcprojb, 158, 62}, {PARAM_lnfw, 162, 66}, {PARAM_lnfb, 164, 68}};
    FOR_EACH(i, first) {
        int64_t place = first[i].place, last = place + param_size(&config, first[i].tensor) - 1;
        CHECK(t, param_offset(&config, first[i].tensor) == place, "case %zu", i);
        CHECK(t, param_place_in_v(&config, OPTIMIZER_MUON, place) == first[i].in_v, "case %zu", i);
        CHECK(t, param_place_in_v(&config, OPTIMIZER_MUON, last) == first[i].in_v + last - place, "case %zu: end", i);
        CHECK(t, param_place_in_v(&config, OPTIMIZER_ADAMW, last) == last, "case %zu: AdamW", i);
    }
    int64_t muon = param_length_of_v(&config, OPTIMIZER_MUON), adamw = param_length_of_v(&config, OPTIMIZER_ADAMW);
    CHECK(t, muon == 70 && adamw == 166, "lengths %lld and %lld", (long long)muon, (long long)adamw);
}
