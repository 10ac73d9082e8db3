// Programs that a test starts, watches and kills: their output through pipes, and limits for everything, so that a test
// of processes that hang does not hang itself. They die with the test where the system can do that (Linux).
#ifndef PROCESSES_H
#define PROCESSES_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include "llmc/base/utils.h"

#define PROCESS_OUTPUT_BYTES 16384

typedef struct {
    int fd;
    size_t bytes;
    char text[PROCESS_OUTPUT_BYTES]; // what does not fit is dropped
} ProcessOutput;

typedef struct {
    pid_t pid;
    bool ended;
    int status; // as exit() has it; 128 + signal, as a shell says it
    ProcessOutput out, err;
} Process;

// Starts a program (argv[0], looked up in PATH, NULL at the end) with an empty standard input.
static inline void process_start(Process *p, const char *const *argv) {
    int out[2], err[2];
    memset(p, 0, sizeof(*p));
    if (pipe(out) != 0 || pipe(err) != 0) { perror("pipe"), exit(EXIT_FAILURE); }
    int fds[4] = {out[0], out[1], err[0], err[1]};
    for (int i = 0; i < 4; i++) { fcntl(fds[i], F_SETFD, FD_CLOEXEC); }
    fflush(stdout);
    p->pid = fork();
    if (p->pid == 0) {
#if defined(__linux__)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
        int empty = open("/dev/null", O_RDONLY);
        dup2(empty, 0), dup2(out[1], 1), dup2(err[1], 2);
        execvp(argv[0], (char *const *)argv);
        perror(argv[0]);
        _exit(127);
    }
    if (p->pid < 0) { perror("fork"), exit(EXIT_FAILURE); }
    close(out[1]), close(err[1]);
    fcntl(out[0], F_SETFL, O_NONBLOCK), fcntl(err[0], F_SETFL, O_NONBLOCK);
    p->out.fd = out[0], p->err.fd = err[0];
}

// Takes the bytes that have come.
static inline void process_read(ProcessOutput *output) {
    char chunk[4096];
    ssize_t n;
    while (output->fd >= 0 && (n = read(output->fd, chunk, sizeof(chunk))) != 0) {
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0) { return; }
        size_t room = sizeof(output->text) - 1 - output->bytes;
        size_t take = (size_t)n < room ? (size_t)n : room;
        memcpy(output->text + output->bytes, chunk, take);
        output->bytes += take;
        output->text[output->bytes] = '\0';
    }
    if (output->fd >= 0) { close(output->fd); }
    output->fd = -1;
}

// Looks after a process: its output, and whether it has ended.
static inline void process_look(Process *p) {
    int status;
    if (!p->ended && waitpid(p->pid, &status, WNOHANG) == p->pid) {
        p->ended = true;
        p->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    process_read(&p->out);
    process_read(&p->err);
}

static inline void process_pause(void) { poll(NULL, 0, 5); }

// Waits until a process has written this on its standard output; false when it ended before, or after some seconds.
static inline bool process_wait_text(Process *p, const char *text, double seconds) {
    for (double deadline = seconds_now() + seconds;;) {
        bool ended = p->ended;
        process_look(p);
        if (strstr(p->out.text, text) != NULL) { return true; }
        if (ended || seconds_now() > deadline) { return false; }
        process_pause();
    }
}

static inline void process_signal(Process *p, int number) {
    if (!p->ended) { kill(p->pid, number); }
}

// Waits until all have ended. After some seconds those that have not are killed, and the answer is false.
static inline bool process_wait_all(Process *p, int count, double seconds) {
    double deadline = seconds_now() + seconds;
    bool killed = false;
    for (;;) {
        int alive = 0;
        for (int i = 0; i < count; i++) {
            process_look(&p[i]);
            alive += !p[i].ended;
        }
        if (alive == 0) { break; }
        if (!killed && seconds_now() > deadline) {
            for (int i = 0; i < count; i++) { process_signal(&p[i], SIGKILL); }
            killed = true;
        }
        process_pause();
    }
    for (int i = 0; i < count; i++) {
        process_look(&p[i]);
        if (p[i].out.fd >= 0) { close(p[i].out.fd); }
        if (p[i].err.fd >= 0) { close(p[i].err.fd); }
        p[i].out.fd = p[i].err.fd = -1;
    }
    return !killed;
}

#endif // PROCESSES_H
