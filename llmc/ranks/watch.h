// The watch over the ranks of a run. It is a thread in each process. It moves the frames of all links and tells the
// other ranks that this rank is alive. It ends the process when a rank has died, is silent, hangs or has failed,
// because the other ranks would wait for ever. It works whatever the main thread and the GPU do.
//
// Rank 0's watch judges who hangs and tells all ranks. Each other watch judges rank 0's silence. A run ends like this:
//
//   a rank ends in order      GOODBYE; the other ranks go on without it
//   a rank fails (comm_fail)  it sends END, rank 0 sends END with its text to all; each prints it and exits
//   a rank is killed          rank 0 sees its link close without GOODBYE, and sends END
//   rank 0 is killed          every rank sees its link close
//   silence, no progress      rank 0 sends END after the time limit
//
// Every wait of the thread has a limit, so that a process that must end does so.
#ifndef LLMC_WATCH_H
#define LLMC_WATCH_H

#include <signal.h>

#include "llmc/ranks/ranks.h"

#define WATCH_SLOW_FACTOR 30.0   // a slow phase may take so many times as long
#define WATCH_STEPS_FACTOR 10.0  // steps that a rank may be late
#define WATCH_HEALTH_SECONDS 1.0 // between two questions about the GPUs' connection
#define WATCH_HEALTH_STRIKES 2   // bad answers in a row that end the run: a dead rank, their cause, is seen earlier
#define WATCH_ABORT_SECONDS 5.0  // for the last acts of a process
#define WATCH_STUCK_SECONDS 1.0  // all ranks wait for each other so long before the watch believes it

// Says why a run ends, the most telling reason first. The first of the reasons found at one moment is the cause of the
// rest.
typedef enum { VERDICT_TOLD, VERDICT_DEAD, VERDICT_FAILED, VERDICT_SILENT, VERDICT_HANGS, VERDICT_NONE } Verdict;

typedef struct {
    Comm *comm;
    double round; // when the present round began: the watch judges by this time
    double next_beat, next_health;
    double stuck; // since when all ranks seem to wait for each other; 0: they do not
    int strikes, num_dead;
    bool own; // the failure is this rank's own, which prints it
    Verdict verdict;
    Error words;   // of the verdict
    int acts_done; // of the last acts; atomic
} Watch;

// ---- Verdicts ----

// Keeps the most telling verdict of a round.
PRINTF_LIKE(3, 4) static inline void watch_find(Watch *w, Verdict verdict, const char *format, ...) {
    if (verdict == VERDICT_DEAD) { w->num_dead++; }
    if (verdict >= w->verdict) { return; }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->words.text, sizeof(w->words.text), format, arguments);
    va_end(arguments);
    w->verdict = verdict;
}

static inline CommName watch_process(const Watch *w, int rank) {
    return comm_process_name(rank, &w->comm->peers[rank].who);
}

// ---- The last acts of a process ----

static inline void watch_print(const Watch *w) {
    if (w->comm->prints || w->own) { print_error(w->comm->options.program, &w->words); }
}

// Runs in its own thread, because each act can block for ever: stderr or stdout may be a pipe that nobody reads, and
// the GPU may not answer to its abort.
static inline void *watch_last_acts(void *argument) {
    Watch *w = (Watch *)argument;
    CommCallbacks *c = &w->comm->callbacks;
    watch_print(w);
    __atomic_fetch_add(&w->acts_done, 1, __ATOMIC_SEQ_CST);
    fflush(stdout);
    pthread_mutex_lock(&c->mutex);
    if (c->abort != NULL) { c->abort(c->guarded, w->words.text); }
    pthread_mutex_unlock(&c->mutex);
    __atomic_fetch_add(&w->acts_done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static inline void watch_wait_for_acts(Watch *w, int count, double seconds) {
    double deadline = seconds_now() + seconds;
    while (__atomic_load_n(&w->acts_done, __ATOMIC_SEQ_CST) < count && seconds_now() < deadline) { poll(NULL, 0, 2); }
}

// Sends a last word to all ranks, and ends the links once it is read. Needs the mutex.
static inline void watch_say_last(Watch *w, FrameType type, const char *text, double seconds) {
    links_send(w->comm->links, w->comm->num_ranks, type, text, (int64_t)strlen(text));
    links_hang_up(w->comm->links, w->comm->num_ranks, seconds_now() + seconds);
}

// Ends the run: prints why, tells the other ranks, and ends the process. Needs the mutex and keeps it, so that the
// main thread gets no further: an abort leaves numbers on the GPU that must not be logged or saved.
static inline void watch_end_process(Watch *w) {
    pthread_t acts;
    Comm *comm = w->comm;
    if (w->verdict == VERDICT_DEAD && w->num_dead > 1) {
        char more[64];
        snprintf(more, sizeof(more), "; so did %d other rank%s", w->num_dead - 1, w->num_dead > 2 ? "s" : "");
        comm_append(w->words.text, more);
    }
    comm_add_remedy(comm, w->words.text);
    bool threaded = pthread_create(&acts, NULL, watch_last_acts, w) == 0 && pthread_detach(acts) == 0;
    if (!threaded) { watch_print(w); }
    if (threaded) { watch_wait_for_acts(w, 1, 0.2); } // a launcher ends all ranks when the first one exits
    if (w->verdict != VERDICT_TOLD) { watch_say_last(w, FRAME_END, w->words.text, COMM_TELL_SECONDS); }
    if (threaded) { watch_wait_for_acts(w, 2, WATCH_ABORT_SECONDS); }
    _exit(EXIT_FAILURE); // not exit(): the main thread may be anywhere, and the functions that exit() calls may hang
}

// ---- Receiving ----

// Takes a rank's progress. Returns false if it makes no sense: a time that is no number would never be too long.
static inline bool watch_take_beat(CommBeat *beat, const char *data) {
    CommBeat b;
    memcpy(&b, data, sizeof(b));
    bool times = b.idle >= 0.0 && b.idle < 1e12 && b.limit >= 0.0 && b.limit < 1e12;
    if (!times || memchr(b.phase, '\0', sizeof(b.phase)) == NULL) { return false; }
    *beat = b;
    return true;
}

// Takes a frame. Sets *frame to NULL if the main thread shall have it. Returns false if it makes no sense.
static inline bool watch_take_frame(Watch *w, int rank, Frame **frame) {
    CommPeer *peer = &w->comm->peers[rank];
    const FrameHead *head = &(*frame)->head;
    switch (head->type) {
    case FRAME_MINE:
    case FRAME_RESULT:
    case FRAME_FAILURE:
        if ((rank == 0) == (head->type == FRAME_MINE) || peer->inbox[1] != NULL) { return false; }
        peer->inbox[peer->inbox[0] != NULL] = *frame;
        *frame = NULL;
        return true;
    case FRAME_BEAT: return head->bytes == (int64_t)sizeof(CommBeat) && watch_take_beat(&peer->beat, (*frame)->data);
    case FRAME_GOODBYE:
        peer->gone = true;
        link_close(&w->comm->links[rank]);
        return true;
    case FRAME_END:
        peer->failed = true;
        watch_find(w, rank == 0 ? VERDICT_TOLD : VERDICT_FAILED, "%s", frame_text(*frame));
        return true;
    default: return false;
    }
}

// Notes that a link has ended without a goodbye.
static inline void watch_lost(Watch *w, int rank, LinkStatus status, int code) {
    CommName name = watch_process(w, rank);
    link_close(&w->comm->links[rank]);
    if (w->comm->peers[rank].failed) { return; }
    if (status == LINK_CLOSED) {
        watch_find(w, VERDICT_DEAD, "%s ended without a word (killed, or crashed?)", name.text);
    } else {
        watch_find(w, VERDICT_DEAD, "the connection to %s broke: %s", name.text, strerror(code));
    }
}

// Reads from a rank until nothing more is here.
static inline void watch_read(Watch *w, int rank) {
    Link *link = &w->comm->links[rank];
    while (link->fd >= 0) {
        Frame *frame;
        LinkStatus status = link_receive(link, &frame);
        if (status == LINK_WAIT) { return; }
        if (status != LINK_FRAME) {
            watch_lost(w, rank, status, errno);
            return;
        }
        if (!watch_take_frame(w, rank, &frame)) { watch_lost(w, rank, LINK_BROKEN, EBADMSG); }
        free(frame);
    }
}

// ---- Judging ----

static inline void watch_judge_silence(Watch *w) {
    for (int i = 0; i < w->comm->num_ranks; i++) {
        const Link *link = &w->comm->links[i];
        if (link->fd < 0 || w->round - link->heard <= w->comm->options.silence) { continue; }
        watch_find(w, VERDICT_SILENT,
                   "%s has not been heard of for %.3g s: stopped, or its machine or the network is down",
                   watch_process(w, i).text, w->comm->options.silence);
    }
}

// Returns the progress of this rank's main thread.
static inline CommBeat watch_own_beat(const Watch *w) {
    const Comm *comm = w->comm;
    CommBeat beat = comm->main;
    double watchdog = comm->options.watchdog, step = WATCH_STEPS_FACTOR * comm->step_seconds;
    beat.waits = comm->waits;
    beat.idle = w->round > comm->since ? w->round - comm->since : 0.0;
    beat.limit = watchdog <= 0.0 ? 0.0 : watchdog > step ? watchdog : step;
    if (comm->slow) { beat.limit *= WATCH_SLOW_FACTOR; }
    return beat;
}

// Tells whether rank a is further than rank b: it has made more steps, or its last step later.
static inline bool watch_is_ahead(const Watch *w, int a, int b) {
    const CommBeat *x = &w->comm->peers[a].beat, *y = &w->comm->peers[b].beat;
    return x->count != y->count ? x->count > y->count : x->idle < y->idle;
}

// Judges when all ranks wait, and each for too long. Their beats are some moments old, and the rank that all waited for
// may have come and gone meanwhile: so each rank must have said it once more.
static inline void watch_judge_waiting(Watch *w, int furthest, int last) {
    const Comm *comm = w->comm;
    if (w->stuck == 0.0) { w->stuck = w->round; }
    if (w->round - w->stuck < WATCH_STUCK_SECONDS + 2.0 * comm->options.beat) { return; }
    const CommBeat *beat = &comm->peers[last].beat, *ahead = &comm->peers[furthest].beat;
    char cause[2 * sizeof(CommName)] = "";
    if (beat->count != ahead->count) {
        snprintf(cause, sizeof(cause), "; %s is the furthest behind, in %s", comm_name(comm, last).text, beat->phase);
    }
    for (int i = comm->num_ranks - 1; i >= 0; i--) {
        if (comm->links[i].fd >= 0 && comm->links[i].heard <= w->stuck + comm->options.beat) { return; }
        if (comm->peers[i].gone) { snprintf(cause, sizeof(cause), "; %s has ended", comm_name(comm, i).text); }
    }
    watch_find(w, VERDICT_HANGS, "all ranks wait for each other, for %.0f s in %s: the network or a GPU hangs%s",
               beat->idle, ahead->phase, cause);
}

// Finds who has got no further for too long. Rank 0 judges all ranks. When it has ended in order, each rank judges
// itself. A rank that waits for other ranks is not to blame, unless all wait.
static inline void watch_judge_progress(Watch *w) {
    Comm *comm = w->comm;
    int hangs = -1, last = -1, furthest = -1;
    bool all_wait = true;
    comm->peers[comm->rank].beat = watch_own_beat(w);
    for (int i = 0; i < comm->num_ranks; i++) {
        const CommBeat *beat = &comm->peers[i].beat;
        bool late = beat->limit > 0.0 && beat->idle > beat->limit;
        if (i != comm->rank && comm->links[i].fd < 0) { continue; }
        if (last < 0 || watch_is_ahead(w, last, i)) { last = i; }
        if (furthest < 0 || watch_is_ahead(w, i, furthest)) { furthest = i; }
        if (late && !beat->waits && (hangs < 0 || watch_is_ahead(w, hangs, i))) { hangs = i; }
        all_wait = all_wait && late && beat->waits;
    }
    if (hangs >= 0) {
        watch_find(w, VERDICT_HANGS, "%s hangs: no progress for %.0f s in %s", comm_name(comm, hangs).text,
                   comm->peers[hangs].beat.idle, comm->peers[hangs].beat.phase);
    }
    if (all_wait) { watch_judge_waiting(w, furthest, last); }
    if (!all_wait) { w->stuck = 0.0; }
}

// Asks whether this rank's connection of GPUs is well. Two bad answers in a row are this rank's failure. Must not hold
// the mutex.
static inline void watch_judge_health(Watch *w) {
    char reason[COMM_TEXT_BYTES / 2] = "";
    CommCallbacks *c = &w->comm->callbacks;
    if (w->round < w->next_health) { return; }
    w->next_health = w->round + WATCH_HEALTH_SECONDS;
    pthread_mutex_lock(&c->mutex);
    bool well = c->healthy == NULL || c->healthy(c->guarded, reason, sizeof(reason));
    pthread_mutex_unlock(&c->mutex);
    w->strikes = well ? 0 : w->strikes + 1;
    if (w->strikes < WATCH_HEALTH_STRIKES) { return; }
    w->own = true;
    watch_find(w, VERDICT_FAILED, "%s: %s", comm_name(w->comm, w->comm->rank).text, reason);
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
    if (gap < 1.0 + 2.0 * comm->options.beat) { return; }
    for (Link *link = comm->links; link < comm->links + comm->num_ranks; link++) {
        link->heard = watch_excuse(link->heard, gap, now);
    }
    comm->since = watch_excuse(comm->since, gap, now);
    w->stuck = 0.0;
}

// Tells the other ranks the progress of this rank. A busy link is a sign of life itself.
static inline void watch_beat(Watch *w) {
    double now = seconds_now();
    if (now < w->next_beat) { return; }
    w->next_beat = now + w->comm->options.beat;
    CommBeat beat = watch_own_beat(w);
    for (int i = 0; i < w->comm->num_ranks; i++) {
        Link *link = &w->comm->links[i];
        if (!link_waits(link)) { links_send(link, 1, FRAME_BEAT, &beat, (int64_t)sizeof(beat)); }
    }
}

// Waits for a link to speak, for the main thread, or for the next beat. Gives the mutex away meanwhile.
static inline void watch_wait(Watch *w) {
    Comm *comm = w->comm;
    char bytes[64];
    struct pollfd polled[COMM_MAX_RANKS + 1] = {{comm->watch.wake[0], POLLIN, 0}};
    int count = links_poll(comm->links, comm->num_ranks, polled, 1);
    pthread_mutex_unlock(&comm->mutex);
    poll(polled, (nfds_t)count, socket_milliseconds(w->next_beat, 1000));
    while (read(comm->watch.wake[0], bytes, sizeof(bytes)) > 0) {}
    pthread_mutex_lock(&comm->mutex);
}

static inline void watch_look(Watch *w) {
    Comm *comm = w->comm;
    w->verdict = VERDICT_NONE;
    w->num_dead = 0;
    pthread_mutex_unlock(&comm->mutex);
    watch_judge_health(w);
    pthread_mutex_lock(&comm->mutex);
    for (int i = 0; i < comm->num_ranks; i++) {
        link_flush(&comm->links[i]);
        watch_read(w, i);
    }
    pthread_cond_broadcast(&comm->changed);
    watch_judge_silence(w);
    if (comm->rank == 0 || comm->links[0].fd < 0) { watch_judge_progress(w); }
}

// Does what the main thread has asked for. Leaving in order comes before anything found at this moment, because this
// rank's work is complete. Failing comes after it, because the failure may be its consequence.
static inline bool watch_leaves(Watch *w) {
    bool fails = w->comm->failure[0] != '\0';
    if (w->verdict != VERDICT_NONE && (fails || !w->comm->ending)) { watch_end_process(w); }
    if (w->comm->ending) { // the main thread prints its error itself
        watch_say_last(w, fails ? FRAME_END : FRAME_GOODBYE, w->comm->failure, COMM_GOODBYE_SECONDS);
    }
    return w->comm->ending;
}

static inline void watch_begin(Watch *w, Comm *comm) {
    memset(w, 0, sizeof(*w));
    w->comm = comm;
    w->verdict = VERDICT_NONE;
    w->round = comm->since;
}

static inline void *watch_thread(void *argument) {
    Comm *comm = (Comm *)argument;
    Watch w;
    pthread_mutex_lock(&comm->mutex);
    watch_begin(&w, comm);
    do {
        watch_beat(&w);
        watch_wait(&w);
        watch_begin_round(&w);
        watch_look(&w);
    } while (!watch_leaves(&w));
    pthread_mutex_unlock(&comm->mutex);
    return NULL;
}

// Starts the watch over open links. The main thread takes the signals: the watch's thread blocks all but its own
// faults.
static inline bool watch_start(Comm *comm, Error *error) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    sigset_t all, before;
    if (pipe(comm->watch.wake) != 0) { return fail(error, "cannot create a pipe: %s", strerror(errno)); }
    for (int i = 0; i < 2; i++) {
        fcntl(comm->watch.wake[i], F_SETFD, FD_CLOEXEC);
        fcntl(comm->watch.wake[i], F_SETFL, O_NONBLOCK);
    }
    comm->since = seconds_now();
    for (int i = 0; i < comm->num_ranks; i++) {
        comm->links[i].heard = comm->since;
        comm->links[i].limit = LINK_MAX_BYTES;
    }
    snprintf(comm->main.phase, sizeof(comm->main.phase), "the start");
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) { sigdelset(&all, faults[i]); }
    pthread_sigmask(SIG_SETMASK, &all, &before);
    comm->watch.runs = pthread_create(&comm->watch.thread, NULL, watch_thread, comm) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return comm->watch.runs || fail(error, "cannot start a thread that watches the other ranks");
}

#endif // LLMC_WATCH_H
