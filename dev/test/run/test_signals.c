// Which second signal ends a run at once. The signals come at times that the test chooses.
#include <sys/wait.h>

#include "dev/test/test.h"
#include "llmc/run/signals.h"

// Sends the signals `first` and `second`, `seconds` apart, to the request of a process of its own, and writes what it
// says to stderr. Returns its exit status; 0: it is still there.
static int status_after(StopRequest stop, int first, int second, double seconds, char words[200]) {
    int status = -1, ends[2];
    if (pipe(ends) != 0) { abort(); }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        stop_on_signal(&stop, first);
        stop.first -= seconds;
        stop_on_signal(&stop, second);
        _exit(stop.asked ? 0 : 1);
    }
    close(ends[1]);
    waitpid(child, &status, 0);
    ssize_t bytes = read(ends[0], words, 199);
    words[bytes > 0 ? bytes : 0] = '\0';
    close(ends[0]);
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
        {SIGHUP, SIGTERM, 60.0, false, 0},
    };
    FOR_EACH(i, cases) {
        char words[200];
        StopRequest stop = {0, 0, 0.0, cases[i].ranks, false, false, 0};
        int got = status_after(stop, cases[i].first, cases[i].second, cases[i].seconds, words);
        CHECK(t, got == cases[i].want, "case %zu: status %d, want %d", i, got, cases[i].want);
    }
}

TEST(test_words) {
    static const char end[] = "\nended by a second signal, without saving\n";
    char words[200];
    for (int answers = 0; answers < 2; answers++) {
        const char *first = answers ? "\nstopping in order; a second signal ends at once, without saving\n" : "";
        status_after((StopRequest){0, 0, 0.0, false, false, answers, 0}, SIGINT, SIGINT, 1.0, words);
        CHECK(t, strncmp(words, first, strlen(first)) == 0 && ends_with(words, end), "answers %d: %s", answers, words);
        CHECK(t, answers || strcmp(words, end) == 0, "no terminal: %s", words);
    }
}
