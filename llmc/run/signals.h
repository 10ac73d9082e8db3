// The signals and the standard output of a trainer: which signals stop a run in order, and which must not end it.
#ifndef LLMC_SIGNALS_H
#define LLMC_SIGNALS_H

#include "llmc/base/utils.h"

#include <signal.h>
#include <unistd.h>

// A request to end the run in order: SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGPIPE. The run then saves and ends at the
// next chance. Zero at first.
typedef struct {
    volatile sig_atomic_t asked;   // this process must stop
    volatile sig_atomic_t counted; // a signal other than SIGHUP has come
    double first;                  // when it came, in seconds_now()
    bool by_agreement, agreed;     // several ranks stop together: once all of them know it
    bool answers;                  // somebody waits at a terminal
    volatile sig_atomic_t unread;  // nobody reads standard output any more
} StopRequest;

// Between two signals that count. Who starts a run may send one signal twice: `timeout` at once, a launcher of several
// ranks after a while.
#define STOP_SECOND_SIGNAL_SECONDS 0.25
#define STOP_SECOND_SIGNAL_SECONDS_RANKS 2.0

// True if the run must stop here.
static inline bool is_stopping(const StopRequest *stop) { return stop->by_agreement ? stop->agreed : stop->asked != 0; }

// Writes to the terminal from a signal handler, where nothing else may be called.
static inline void stop_say(const char *words) {
    ssize_t ignored = write(STDERR_FILENO, words, strlen(words));
    (void)ignored;
}

// The first signal is answered at a terminal, because the computation under way may take long. A second signal ends the
// process at once, without saving. SIGHUP and SIGPIPE never count as the second: a closing terminal may send SIGHUP
// several times, and each line that nobody reads brings a SIGPIPE.
static inline void stop_on_signal(StopRequest *stop, int number) {
    double now = seconds_now(),
           least = stop->by_agreement ? STOP_SECOND_SIGNAL_SECONDS_RANKS : STOP_SECOND_SIGNAL_SECONDS;
    stop->asked = 1;
    stop->unread = stop->unread || number == SIGPIPE;
    if (number == SIGHUP || number == SIGPIPE) { return; }
    if (stop->counted && now - stop->first >= least) {
        stop_say("\nended by a second signal, without saving\n");
        _exit(128 + number);
    }
    if (!stop->counted) { stop->first = now; }
    if (!stop->counted && stop->answers) {
        stop_say("\nstopping in order; a second signal ends at once, without saving\n");
    }
    stop->counted = 1;
}

// Calls handler for this signal. Reads and writes under way go on. A signal that was ignored when the program started
// stays ignored: SIGHUP under nohup, and SIGINT if a shell started the program in the background.
static inline void catch_stop_signal(int number, void (*handler)(int)) {
    struct sigaction action;
    if (sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN) { return; }
    memset(&action, 0, sizeof(action));
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(number, &action, NULL);
}

// SIGHUP: the terminal is gone. SIGUSR1: Slurm sends it ahead of time if asked to, and mpirun passes it on. SIGPIPE:
// the reader of standard output is gone (`| head`, a pager that is closed).
static inline void catch_stop_signals(void (*handler)(int)) {
    catch_stop_signal(SIGINT, handler);
    catch_stop_signal(SIGTERM, handler);
    catch_stop_signal(SIGHUP, handler);
    catch_stop_signal(SIGUSR1, handler);
    catch_stop_signal(SIGPIPE, handler);
}

// Ends the process as other programs end whose output nobody reads any more.
static inline void end_as_reader_went(const StopRequest *stop) {
    if (!stop->unread) { return; }
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

// A program calls this last: standard output may be a full disk. A terminal that has gone is no error.
static inline bool output_is_written(FILE *out, Error *error) {
    bool terminal_is_gone = !isatty(fileno(out)) && errno == EIO;
    return (fflush(out) == 0 && !ferror(out)) || terminal_is_gone ||
           fail(error, "standard output: could not be written (disk full?)");
}

#endif // LLMC_SIGNALS_H
