// Random numbers: uniformity, the normal distribution, independence between seeds, streams and neighbours, and the
// permutation. (Published values: test_hash.c.)
//
// All inputs are fixed, so every statistic below is one number that either passes always or fails always. Bounds are
// five standard deviations of the statistic, which a sound generator misses once in two million.
#include "dev/test/test.h"
#include "llmc/base/rand.h"

enum { DRAWS = 1 << 20 };

static double uniform(uint64_t seed, uint64_t stream, uint64_t i) { return rand_uniform(seed, stream, i); }

// A statistic with this mean and standard deviation is within five of them.
static void check_sigma(Test *t, const char *what, double got, double mean, double deviation) {
    CHECK(t, fabs(got - mean) <= 5.0 * deviation, "%s: %.9g, expected %.9g, %.1f standard deviations away", what, got,
          mean, (got - mean) / deviation);
}

// The counts of `bins` equally probable outcomes.
static void check_even(Test *t, const char *what, const int *counts, int bins, double draws) {
    double statistic = 0.0, expected = draws / bins;
    for (int i = 0; i < bins; i++) { statistic += (counts[i] - expected) * (counts[i] - expected) / expected; }
    check_sigma(t, what, statistic, bins - 1, sqrt(2.0 * (bins - 1)));
}

// Uniform numbers are in [0, 1), and pairs of neighbours in any coordinate fill the unit square evenly.
TEST(test_neighbours_are_independent) {
    enum { SIDE = 32 };
    const char *names[] = {"next index", "next stream", "next seed", "stream and index exchanged",
                           "index 2^32 further"};
    for (int kind = 0; kind < 5; kind++) {
        static int counts[SIDE * SIDE];
        memset(counts, 0, sizeof(counts));
        for (uint64_t i = 0; i < DRAWS; i++) {
            double a = uniform(9, 1000, i), b = kind == 0   ? uniform(9, 1000, i + 1)
                                                : kind == 1 ? uniform(9, 1001, i)
                                                : kind == 2 ? uniform(10, 1000, i)
                                                : kind == 3 ? uniform(9, i, 1000)
                                                            : uniform(9, 1000, i + (1ULL << 32));
            if (!CHECK(t, a >= 0.0 && a < 1.0 && b >= 0.0 && b < 1.0, "draw %d: %g %g", (int)i, a, b)) { return; }
            counts[(int)(a * SIDE) * SIDE + (int)(b * SIDE)]++;
        }
        check_even(t, names[kind], counts, SIDE * SIDE, DRAWS);
    }
}

// Values lie evenly between quantiles. The halves of a pair do not depend on each other: neither they nor their squares
// are correlated.
TEST(test_normal_distribution) {
    enum { BINS = 200 };
    static int counts[BINS];
    double largest = 0.0, products = 0.0, squares = 0.0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        float x[2];
        rand_normal_pair(7, RAND_INIT + 5, i, x);
        products += (double)x[0] * x[1];
        squares += ((double)x[0] * x[0] - 1) * ((double)x[1] * x[1] - 1);
        for (int h = 0; h < 2; h++) {
            if (!CHECK(t, isfinite(x[h]), "draw %d is %g", (int)i, (double)x[h])) { return; }
            double cumulative = 0.5 * erfc(-(double)x[h] / sqrt(2.0));
            counts[(int)fmin(cumulative * BINS, BINS - 1)]++;
            largest = fmax(largest, fabs((double)x[h]));
        }
    }
    check_even(t, "normal quantiles", counts, BINS, 2.0 * DRAWS);
    check_sigma(t, "correlation of the halves", products / DRAWS, 0.0, sqrt(1.0 / DRAWS));
    check_sigma(t, "correlation of their squares", squares / DRAWS, 0.0, sqrt(4.0 / DRAWS));
    CHECK(t, largest > 4.5 && largest < 6.0, "the largest of two million is %g", largest); // 24 bits end at 5.9
}

// The two ends of the radius, found by a search: its 24 bits are all 0 (log must not see 0) and all 1.
TEST(test_normal_extremes) {
    float far[2], near[2];
    rand_normal_pair(0, 0, 14103612, far);
    rand_normal_pair(0, 0, 12036261, near);
    double largest = hypot(far[0], far[1]), smallest = hypot(near[0], near[1]);
    CHECK(t, rand_u64(0, 0, 14103612) >> 40 == 0 && rand_u64(0, 0, 12036261) >> 40 == 0xffffff, "not the ends");
    CHECK(t, fabs(largest - sqrt(2.0 * 25 * log(2.0))) <= 1e-5, "the largest radius is %.9g", largest); // -log 2^-25
    CHECK(t, smallest <= 1e-3, "the smallest radius is %.9g", smallest);
}

static void check_bijection(Test *t, uint64_t seed, uint64_t n) {
    uint8_t *seen = (uint8_t *)calloc(n, 1);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t p = rand_permute(seed, RAND_WINDOWS, i, n);
        bool is_new = p < n && !seen[p];
        if (!CHECK(t, is_new, "n %lld: %lld goes to %lld, not alone", (long long)n, (long long)i, (long long)p)) {
            break;
        }
        seen[p] = 1;
    }
    free(seen);
}

TEST(test_permute_is_a_bijection) {
    for (uint64_t n = 1; n <= 1030; n++) { check_bijection(t, n * n, n); }
    const uint64_t sizes[] = {4093, 4096, 4097, 65521, 65535, 65536, 65537, 99991, 262144, 262145, 1000003};
    FOR_EACH(i, sizes) { check_bijection(t, 5, sizes[i]); }
}

// Over many seeds, where the first index goes, where the last goes, and how far the first and second come apart are
// spread evenly. Small numbers of shards and windows are where a weak network shows.
TEST(test_permute_is_fair) {
    const uint64_t sizes[] = {2, 3, 4, 5, 6, 7, 8, 13, 16, 20, 50, 64, 65, 100, 251, 256, 257};
    enum { SEEDS = 20000 };
    FOR_EACH(s, sizes) {
        uint64_t n = sizes[s];
        int first[257] = {0}, last[257] = {0}, distance[257] = {0};
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            uint64_t a = rand_permute(seed, RAND_SHARDS, 0, n), b = rand_permute(seed, RAND_SHARDS, 1, n);
            first[a]++;
            last[rand_permute(seed, RAND_SHARDS, n - 1, n)]++;
            distance[(a + n - b) % n - 1]++; // 1 .. n-1: never one place
        }
        check_even(t, "place of the first", first, (int)n, SEEDS);
        check_even(t, "place of the last", last, (int)n, SEEDS);
        if (n > 2) { check_even(t, "distance of neighbours", distance, (int)n - 1, SEEDS); }
    }
}
