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
        StopRequest stop = {0, 0, 0.0, ranks, false, false, 0};
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
    FOR_EACH(i, cases) {
        int got = status_after(cases[i].first, cases[i].second, cases[i].seconds, cases[i].ranks);
        CHECK(t, got == cases[i].want, "case %zu: status %d, want %d", i, got, cases[i].want);
    }
}

// What two signals, a second apart, write to stderr.
static void words_after(bool answers, char *words, size_t size) {
    int ends[2];
    if (pipe(ends) != 0) { abort(); }
    pid_t child = fork();
    if (child == 0) {
        StopRequest stop = {0, 0, 0.0, false, false, answers, 0};
        dup2(ends[1], STDERR_FILENO);
        stop_on_signal(&stop, SIGINT);
        stop_on_signal(&stop, SIGINT); // at once: the same signal
        stop.first -= 1.0;
        stop_on_signal(&stop, SIGINT);
    }
    close(ends[1]);
    waitpid(child, NULL, 0);
    ssize_t bytes = read(ends[0], words, size - 1);
    words[bytes > 0 ? bytes : 0] = '\0';
    close(ends[0]);
}

TEST(test_words) {
    static const char end[] = "\nended by a second signal, without saving\n";
    char words[200];
    words_after(false, words, sizeof(words));
    CHECK(t, strcmp(words, end) == 0, "no terminal: %s", words);
    words_after(true, words, sizeof(words));
    const char *rest = strstr(words, "\nstopping in order; a second signal ends at once, without saving\n");
    CHECK(t, rest == words && ends_with(words, end) && strlen(words) < 120, "%s", words);
}
