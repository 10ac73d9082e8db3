// Which second signal ends a run at once. The signals come at times that the test chooses.
#include <sys/wait.h>

#include "dev/test/test.h"
#include "llmc/run/signals.h"

// Sends the signals `first` and `second`, `seconds` apart, to the request of a process of its own. Returns its exit
// status; 0: it is still there.
static int status_after(int first, int second, double seconds, bool ranks) {
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        StopRequest stop = {0, 0, 0.0, ranks, false};
        fclose(stderr);
        stop_on_signal(&stop, first);
        stop.first -= seconds;
        stop_on_signal(&stop, second);
        _exit(stop.asked ? 0 : 1);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(test_second_signal) {
    const struct {
        int first, second;
        double seconds;
        bool ranks;
        int want;
    } cases[] = {
        {SIGTERM, SIGINT, 0.0, false, 0}, // `timeout` sends its signal twice at once
        {SIGTERM, SIGINT, 0.3, false, 128 + SIGINT},
        {SIGINT, SIGTERM, 60.0, false, 128 + SIGTERM},
        {SIGINT, SIGINT, 0.3, true, 0}, // mpirun may send it twice
        {SIGINT, SIGINT, 2.1, true, 128 + SIGINT},
        {SIGHUP, SIGHUP, 60.0, false, 0}, // a terminal closes
        {SIGTERM, SIGHUP, 60.0, false, 0},
        {SIGHUP, SIGTERM, 60.0, false, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int got = status_after(cases[i].first, cases[i].second, cases[i].seconds, cases[i].ranks);
        CHECK(t, got == cases[i].want, "case %zu: status %d, want %d", i, got, cases[i].want);
    }
}
