// How many threads a run uses on machines that other programs use, too. The machines are simulated.
#include "dev/test/test.h"
#include "llmc/base/rand.h"
#include "llmc/cpu/threads.h"

// A part of a series: so many steps beside so many other busy threads.
typedef struct {
    int steps, others;
    double slower; // all steps take so many times as long, with any number of threads; 0: as long as before
} Part;

typedef struct {
    const char *name;
    int cores;
    double late; // times as long if a core has two threads
    Part parts[3];
    int ends_with;               // threads
    int fewer_least, fewer_most; // steps with fewer threads than cores
} Series;

static const Series series[] = {
    {"one core", 1, 2.6, {{1000, 1, 0}}, 1, 0, 0},
    {"a quiet machine", 2, 2.6, {{3000, 0, 0}}, 2, 1, 1},
    {"a quiet machine, 64 cores", 64, 2.6, {{3000, 0, 0}}, 64, 4, 4},
    {"busy from the start", 2, 2.6, {{1000, 1, 0}}, 1, 950, 995},
    {"becomes busy", 2, 2.6, {{500, 0, 0}, {500, 1, 0}}, 1, 440, 495},
    {"becomes busy and quiet", 2, 2.6, {{500, 0, 0}, {500, 1, 0}, {500, 0, 0}}, 2, 440, 540},
    {"64 cores, 8 busy", 64, 2.6, {{500, 0, 0}, {500, 8, 0}}, 56, 450, 500},
    {"64 cores, 8 busy, then quiet", 64, 2.6, {{100, 0, 0}, {500, 8, 0}, {500, 0, 0}}, 64, 440, 560},
    {"busy, but all threads are faster", 2, 1.7, {{100, 0, 0}, {900, 1, 0}}, 2, 1, 8},
    {"a processor that has become hot", 2, 2.6, {{100, 0, 0}, {900, 0, 1.5}}, 2, 2, 2},
    {"a processor that was hot, busy later", 2, 2.6, {{100, 0, 3.0}, {100, 0, 0}, {500, 1, 0}}, 1, 440, 495},
};

// Returns the seconds of a step with n threads, which vary by a tenth. A step on one thread takes one second, but the
// run's first step takes longer.
static double step_seconds(const Series *s, const Part *part, int n, uint64_t step) {
    double seconds = n + part->others <= s->cores ? 1.0 / n : s->late / n;
    seconds *= step == 0 ? 5.0 : 1.0;
    return seconds * (part->slower > 0.0 ? part->slower : 1.0) * (1.0 + 0.1 * rand_uniform(1, RAND_SAMPLER, step));
}

TEST(test_series) {
    for (size_t i = 0; i < sizeof(series) / sizeof(series[0]); i++) {
        const Series *s = &series[i];
        Threads threads;
        int fewer = 0, step = 0;
        bool sound = true;
        threads_begin(&threads, s->cores);
        for (int part = 0; part < 3; part++) {
            for (int k = 0; k < s->parts[part].steps; k++) {
                fewer += threads.now < s->cores;
                threads_take(&threads, step_seconds(s, &s->parts[part], threads.now, (uint64_t)step++));
                sound = sound && threads.now >= 1 && threads.now <= s->cores;
            }
        }
        int kept = threads_kept(&threads);
        CHECK(t, sound && kept == s->ends_with && fewer >= s->fewer_least && fewer <= s->fewer_most,
              "%s: ends with %d threads, expected %d; %d steps with fewer than all, expected %d to %d", s->name, kept,
              s->ends_with, fewer, s->fewer_least, s->fewer_most);
    }
}

// A time that is not a number changes nothing for good.
TEST(test_no_number) {
    Threads threads;
    threads_begin(&threads, 4);
    for (int k = 0; k < 200; k++) { threads_take(&threads, k == 50 ? (double)NAN : 1.0 / threads.now); }
    CHECK(t, threads.now == 4 && threads.usual > 0.0, "%d threads, usual time %g", threads.now, threads.usual);
}
