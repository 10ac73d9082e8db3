// The watch over the ranks of a run. It is a thread in each process. It tells the other ranks that this rank is alive,
// and it ends the process when a rank has died, is silent, hangs or has failed, because the other ranks would wait for
// ever. It works whatever the main thread and the GPU do.
//
// Rank 0's watch judges who hangs and tells all ranks. Each other watch judges rank 0's silence. A run ends like this:
//
//   a rank ends in order      GOODBYE; the other ranks go on without it
//   a rank fails (comm_fail)  it sends END, rank 0 sends END with its text to all; each prints it and exits
//   a rank is killed          rank 0 sees its socket close without GOODBYE, and sends END
//   rank 0 is killed          every rank sees its socket close
//   silence, no progress      rank 0 sends END after the time limit
//
// Nothing that the thread does waits for ever. An alarm bounds the end of the process.
#ifndef LLMC_WATCH_H
#define LLMC_WATCH_H

#include <signal.h>

#include "llmc/ranks/star.h"

#define WATCH_TICK 20          // milliseconds of a round
#define WATCH_SLOW_FACTOR 30.0 // a slow phase may take so many times as long
#define WATCH_BEAT_SECONDS 0.5 // between two signs of life
#define WATCH_END_SECONDS 5    // for the end of a process: stderr may be a pipe that nobody reads

// A beat has one size. An END brings COMM_TEXT_BYTES more, the reason.
enum { BEAT_ALIVE = 0x62656101, BEAT_GOODBYE, BEAT_END };

// Says why a run ends, the most telling reason first. The first of the reasons found in one round is the cause of the
// rest.
typedef enum { VERDICT_TOLD, VERDICT_DEAD, VERDICT_FAILED, VERDICT_SILENT, VERDICT_HANGS, VERDICT_NONE } Verdict;

typedef struct {
    Comm *comm;
    double round; // when the present round began: the watch judges by this time
    double next_beat;
    Verdict verdict;
    Error words; // of the verdict
} Watch;

// Keeps the most telling verdict of a round.
PRINTF_LIKE(3, 4) static inline void watch_find(Watch *w, Verdict verdict, const char *format, ...) {
    if (verdict >= w->verdict) { return; }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->words.text, sizeof(w->words.text), format, arguments);
    va_end(arguments);
    w->verdict = verdict;
}

// ---- Ending ----

// Sends a last word to all ranks.
static inline void watch_say_last(Comm *comm, int kind, const char *text, double deadline) {
    struct {
        CommBeat beat;
        char text[COMM_TEXT_BYTES];
    } last;
    memset(&last, 0, sizeof(last));
    last.beat.kind = kind;
    snprintf(last.text, sizeof(last.text), "%s", text);
    for (CommPeer *peer = comm->peers; peer < comm->peers + comm->num_ranks; peer++) {
        if (peer->watch < 0) { continue; }
        socket_write(peer->watch, &last, kind == BEAT_END ? sizeof(last) : sizeof(last.beat), deadline);
        shutdown(peer->watch, SHUT_WR);
    }
}

// Waits until all ranks have read the last word.
static inline void watch_hang_up(Comm *comm, double deadline) {
    for (int i = 0; i < comm->num_ranks; i++) { socket_hang_up(&comm->peers[i].watch, deadline); }
}

static inline void watch_exit(int number) {
    (void)number;
    _exit(EXIT_FAILURE);
}

// Ends the run: tells the other ranks, prints why, and ends the process. Needs the mutex and keeps it, so that the main
// thread gets no further.
static inline void watch_end_process(Watch *w) {
    Comm *comm = w->comm;
    double deadline = seconds_now() + STAR_TELL_SECONDS;
    signal(SIGALRM, watch_exit);
    alarm(WATCH_END_SECONDS);
    size_t n = strlen(w->words.text);
    if (comm->resumable && strstr(w->words.text, COMM_REMEDY) == NULL) { // another rank may have added it
        snprintf(w->words.text + n, sizeof(w->words.text) - n, "%s", COMM_REMEDY);
    }
    if (w->verdict != VERDICT_TOLD) { watch_say_last(comm, BEAT_END, w->words.text, deadline); }
    if (comm->prints) { print_error(comm->options.program, &w->words); }
    if (w->verdict != VERDICT_TOLD) { watch_hang_up(comm, deadline); }
    if (comm->mpi && !comm->prints) { poll(NULL, 0, 200); } // mpirun ends all ranks when the first one exits
    fflush(stdout);
    _exit(EXIT_FAILURE); // not exit(): the main thread may be anywhere, and the functions that exit() calls may hang
}

// ---- Receiving ----

// Takes what a rank's watch says. Returns false if it makes no sense: a time that is no number would never be too long.
static inline bool watch_take(Watch *w, int rank, const CommBeat *beat) {
    char text[COMM_TEXT_BYTES];
    CommPeer *peer = &w->comm->peers[rank];
    bool times = beat->idle >= 0.0 && beat->idle < 1e12 && beat->limit >= 0.0 && beat->limit < 1e12;
    if (!times || memchr(beat->phase, '\0', sizeof(beat->phase)) == NULL) { return false; }
    if (beat->kind == BEAT_ALIVE) { peer->beat = *beat; }
    if (beat->kind == BEAT_END) {
        if (!socket_read(peer->watch, text, sizeof(text), seconds_now() + STAR_TELL_SECONDS)) { return false; }
        text[sizeof(text) - 1] = '\0';
        watch_find(w, rank == 0 ? VERDICT_TOLD : VERDICT_FAILED, "%s", text[0] != '\0' ? text : STAR_NO_REASON);
    }
    if (beat->kind == BEAT_GOODBYE || beat->kind == BEAT_END) { socket_close(&peer->watch); }
    return beat->kind >= BEAT_ALIVE && beat->kind <= BEAT_END;
}

// Reads what a rank's watch has said. A beat whose end has not come yet waits for a later round.
static inline void watch_read(Watch *w, int rank) {
    CommBeat beat;
    CommPeer *peer = &w->comm->peers[rank];
    while (peer->watch >= 0) {
        ssize_t n = recv(peer->watch, &beat, sizeof(beat), MSG_PEEK | MSG_DONTWAIT);
        if ((n < 0 && socket_would_wait()) || (n > 0 && n < (ssize_t)sizeof(beat))) { return; }
        if (n > 0 && recv(peer->watch, &beat, sizeof(beat), MSG_DONTWAIT) == n) {
            peer->heard = seconds_now();
            if (watch_take(w, rank, &beat)) { continue; }
        }
        socket_close(&peer->watch);
        watch_find(w, VERDICT_DEAD, "%s ended without a word (killed, or crashed?)", comm_name(w->comm, rank).text);
    }
}

// ---- Judging ----

static inline void watch_judge_silence(Watch *w) {
    double silence = w->comm->options.silence;
    for (int i = 0; i < w->comm->num_ranks; i++) {
        const CommPeer *peer = &w->comm->peers[i];
        if (peer->watch < 0 || w->round - peer->heard <= silence) { continue; }
        watch_find(w, VERDICT_SILENT,
                   "%s has not been heard of for %.3g s: stopped, or its machine or the network is down",
                   comm_name(w->comm, i).text, silence);
    }
}

// Returns the progress of this rank's main thread.
static inline CommBeat watch_own_beat(const Watch *w) {
    const Comm *comm = w->comm;
    CommBeat beat = comm->main;
    beat.kind = BEAT_ALIVE, beat.waits = comm->waits;
    beat.idle = w->round > comm->since ? w->round - comm->since : 0.0;
    beat.limit = comm->options.watchdog * (comm->slow ? WATCH_SLOW_FACTOR : 1.0);
    return beat;
}

// Finds who has got no further for too long. Rank 0 judges all ranks. When it has ended in order, each rank judges
// itself. A rank that waits for other ranks is not to blame, unless all wait. Of several the one with the fewest steps
// is named, of these the one whose last step is the oldest.
static inline void watch_judge_progress(Watch *w) {
    Comm *comm = w->comm;
    int hangs = -1, last = -1;
    bool all_wait = true;
    comm->peers[comm->rank].beat = watch_own_beat(w);
    for (int i = 0; i < comm->num_ranks; i++) {
        const CommBeat *beat = &comm->peers[i].beat;
        bool late = beat->limit > 0.0 && beat->idle > beat->limit;
        int *worst = late && !beat->waits ? &hangs : &last;
        if (i != comm->rank && comm->peers[i].watch < 0) { continue; }
        const CommBeat *other = *worst < 0 ? beat : &comm->peers[*worst].beat;
        bool behind = beat->count != other->count ? beat->count < other->count : beat->idle > other->idle;
        if (*worst < 0 || behind) { *worst = i; }
        all_wait = all_wait && late && beat->waits;
    }
    if (hangs < 0 && !all_wait) { return; }
    int rank = hangs >= 0 ? hangs : last;
    const CommBeat *beat = &comm->peers[rank].beat;
    const char *why = hangs >= 0 ? "hangs" : "waits, as all ranks do: a rank has ended, or the network or a GPU hangs";
    watch_find(w, VERDICT_HANGS, "%s %s: no progress for %.0f s (--watchdog) in %s", comm_name(comm, rank).text, why,
               beat->idle, beat->phase);
}

// ---- The thread ----

// Moves a time past a stop, but not beyond now: a rank that was heard of after the stop needs no excuse.
static inline double watch_excuse(double since, double gap, double now) {
    return since + gap < now ? since + gap : now;
}

// Begins a round. This process itself may have been stopped for a while. Then the other ranks were not silent, and
// nobody is to blame that this rank got no further. A stop within a round is found in the next round: until then time
// stands at w->round.
static inline void watch_begin_round(Watch *w) {
    Comm *comm = w->comm;
    double now = seconds_now(), gap = now - w->round;
    w->round = now;
    if (gap < 1.0 + 2.0 * WATCH_BEAT_SECONDS) { return; }
    for (int i = 0; i < comm->num_ranks; i++) { comm->peers[i].heard = watch_excuse(comm->peers[i].heard, gap, now); }
    comm->since = watch_excuse(comm->since, gap, now);
}

// Tells the other ranks the progress of this rank. A socket that can be written to has room for a whole beat. A rank
// that reads nothing gets none.
static inline void watch_beat(Watch *w) {
    if (w->round < w->next_beat) { return; }
    w->next_beat = w->round + WATCH_BEAT_SECONDS;
    CommBeat beat = watch_own_beat(w);
    for (CommPeer *peer = w->comm->peers; peer < w->comm->peers + w->comm->num_ranks; peer++) {
        if (peer->watch >= 0 && socket_wait(peer->watch, POLLOUT, 0.0)) {
            socket_write(peer->watch, &beat, sizeof(beat), 0.0);
        }
    }
}

// Does what a round finds, and what the main thread has asked for. Leaving in order comes before anything found at this
// moment, because this rank's work is complete. Failing comes after it, because the failure may be its consequence.
// Returns true when the watch is over.
static inline bool watch_act(Watch *w) {
    Comm *comm = w->comm;
    bool fails = comm->failure[0] != '\0';
    if (w->verdict != VERDICT_NONE && (fails || !comm->ending)) { watch_end_process(w); }
    if (!comm->ending) { return false; }
    double deadline = seconds_now() + 2.0 * STAR_TELL_SECONDS;
    watch_say_last(comm, fails ? BEAT_END : BEAT_GOODBYE, comm->failure, deadline); // main prints its error itself
    watch_hang_up(comm, deadline);
    return true;
}

static inline void watch_begin(Watch *w, Comm *comm) {
    memset(w, 0, sizeof(*w));
    w->comm = comm;
    w->round = comm->since;
}

// Does one round. Returns true when the watch is over.
static inline bool watch_round(Watch *w) {
    Comm *comm = w->comm;
    pthread_mutex_lock(&comm->mutex);
    watch_begin_round(w);
    w->verdict = VERDICT_NONE;
    watch_beat(w);
    for (int i = 0; i < comm->num_ranks; i++) { watch_read(w, i); }
    watch_judge_silence(w);
    if (comm->rank == 0 || comm->peers[0].watch < 0) { watch_judge_progress(w); }
    bool over = watch_act(w);
    pthread_mutex_unlock(&comm->mutex);
    return over;
}

static inline void *watch_thread(void *comm) {
    Watch w;
    watch_begin(&w, (Comm *)comm);
    while (!watch_round(&w)) { poll(NULL, 0, WATCH_TICK); }
    return NULL;
}

// Starts the watch over open sockets. The main thread takes the signals: the watch's thread blocks all but the alarm
// and its own faults.
static inline bool watch_start(Comm *comm, Error *error) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGALRM};
    sigset_t all, before;
    comm->since = seconds_now();
    for (int i = 0; i < comm->num_ranks; i++) { comm->peers[i].heard = comm->since; }
    snprintf(comm->main.phase, sizeof(comm->main.phase), "the start");
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) { sigdelset(&all, own[i]); }
    pthread_sigmask(SIG_SETMASK, &all, &before);
    comm->watched = pthread_create(&comm->watch, NULL, watch_thread, comm) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return comm->watched || fail(error, "cannot start a thread that watches the other ranks");
}

#endif // LLMC_WATCH_H
