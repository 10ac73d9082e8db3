// The watch over the processes of a run: a thread in each that tells the others it is alive, and ends its process when
// a rank has died, is silent, hangs or has failed. Without it, the others would wait for ever for that rank.
//
// The threads form a star around rank 0, over connections of their own, so that they work whatever the main threads
// and GPUs do. Rank 0's thread judges who hangs and tells all; the others watch rank 0 itself. A run ends like this:
//
//   a rank ends in order      GOODBYE; the others go on without it
//   a rank fails (comm_fail)  it sends FAILED, rank 0 sends END with its text to all; each prints it and exits
//   a rank is killed          rank 0 sees its connection close without GOODBYE, and sends END
//   rank 0 is killed          all others see it themselves
//   silence, no progress      the same, after the time limits of ranks.h
//
// Every wait of the thread has a limit, so that a process that must end does so.
#ifndef LLMC_COMM_WATCH_H
#define LLMC_COMM_WATCH_H

#include <pthread.h>
#include <signal.h>

#include "llmc/ranks/ranks_wire.h"

#define WATCH_BUFFER_BYTES (2 * (int)sizeof(CommFrame) + COMM_TEXT_BYTES)
#define WATCH_SLOW_FACTOR 30.0    // times as long may a phase take that is known to be slow
#define WATCH_STEPS_FACTOR 10.0   // steps that a rank may be late
#define WATCH_HEALTH_SECONDS 1.0  // between two questions whether the GPUs' connection is well
#define WATCH_HEALTH_STRIKES 2    // so often in a row not: a dead rank, which is the cause, is seen earlier
#define WATCH_GOODBYE_SECONDS 2.0 // for the others to have seen that this rank leaves
#define WATCH_TELL_SECONDS 1.0    // for the others to have seen that the run ends
#define WATCH_ABORT_SECONDS 5.0   // for the last acts of a process
#define WATCH_STUCK_SECONDS 1.0   // before it is believed that all ranks wait for each other

typedef struct {
    int fd;       // -1: gone, or never watched by this rank
    double heard; // when anything came last
    CommBeat beat;
    bool failed; // it has said why it ends
    int in_bytes, out_bytes;
    uint8_t in[WATCH_BUFFER_BYTES];
    uint8_t out[WATCH_BUFFER_BYTES]; // what could not be sent yet
} WatchPeer;

// Why a run ends, the most telling first: of what is found at the same moment, the first is the cause of the others.
typedef enum { VERDICT_TOLD, VERDICT_DEAD, VERDICT_FAILED, VERDICT_SILENT, VERDICT_HANGS, VERDICT_NONE } Verdict;

typedef bool (*CommHealthy)(void *context, char *reason, size_t size);
typedef void (*CommAtEnd)(void *context);
typedef void (*CommNote)(void *context, const char *words);

typedef struct {
    // Fixed while the thread runs.
    int rank, num_ranks;
    CommWho *who;         // of each rank
    double beat, silence; // seconds
    double watchdog;      // seconds; 0: off
    char program[64];     // begins a message; "" without
    bool prints;          // does this process print why the run ends?
    int wake[2];          // a pipe: the main thread wakes the watch
    pthread_t thread;
    bool running;

    // The thread's own.
    WatchPeer *peers; // num_ranks; rank 0 watches all others, these watch rank 0
    struct pollfd *polled;
    double round; // when the present round began: the time by which it judges
    double next_beat, next_health;
    double stuck; // since when all ranks wait for each other, as far as known here; 0: they do not
    int strikes, num_dead;
    Verdict verdict;
    char text[COMM_TEXT_BYTES]; // of the verdict

    // Shared with the main thread, under mutex.
    pthread_mutex_t mutex;
    CommBeat main; // what the main thread does; idle and limit are filled in when it is sent
    double since;  // when it got further
    double step_seconds;
    bool slow, resumable, closing, failing;
    bool ending; // the process
    bool *gone;  // of each rank: it has said goodbye
    char failure[COMM_TEXT_BYTES];
    int acts_done; // of the last acts

    // Under callbacks, which is held while they run: after comm_poll(comm, NULL, NULL), say, none runs any more.
    pthread_mutex_t callbacks;
    CommHealthy healthy;
    void *healthy_context;
    CommAtEnd at_end;
    void *at_end_context;
    CommNote note;
    void *note_context;
} CommWatch;

// ---- What the main thread says ----

// Keeps the main thread where it is while the watch ends the process: what is aborted on the GPU leaves numbers behind
// that must not be logged or saved.
static inline void watch_stay(bool ending) {
    while (ending) { pause(); }
}

static inline void watch_wake(CommWatch *w) {
    char byte = 0;
    ssize_t n = write(w->wake[1], &byte, 1); // a full pipe wakes as well
    (void)n;
}

static inline void watch_progress(CommWatch *w, const char *phase) {
    pthread_mutex_lock(&w->mutex);
    w->main.count++;
    w->since = seconds_now();
    snprintf(w->main.phase, sizeof(w->main.phase), "%s", phase);
    bool ending = w->ending;
    pthread_mutex_unlock(&w->mutex);
    watch_stay(ending);
}

// Returns what it was before.
static inline bool watch_set_waits(CommWatch *w, bool waits) {
    pthread_mutex_lock(&w->mutex);
    bool before = w->main.waits != 0;
    if (before != waits) { w->since = seconds_now(); } // waiting for others counts neither for nor against this rank
    w->main.waits = waits;
    bool ending = w->ending;
    pthread_mutex_unlock(&w->mutex);
    watch_stay(ending);
    return before;
}

static inline void watch_set_slow(CommWatch *w, bool slow) {
    pthread_mutex_lock(&w->mutex);
    if (w->slow != slow) { w->since = seconds_now(); }
    w->slow = slow;
    pthread_mutex_unlock(&w->mutex);
}

static inline bool watch_is_gone(CommWatch *w, int rank) {
    pthread_mutex_lock(&w->mutex);
    bool gone = w->gone[rank];
    pthread_mutex_unlock(&w->mutex);
    return gone;
}

// ---- Verdicts ----

// Keeps the most telling verdict of a round.
PRINTF_LIKE(3, 4) static inline void watch_find(CommWatch *w, Verdict verdict, const char *format, ...) {
    if (verdict == VERDICT_DEAD) { w->num_dead++; }
    if (verdict >= w->verdict) { return; }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->text, sizeof(w->text), format, arguments);
    va_end(arguments);
    w->verdict = verdict;
}

// Appends to a text of COMM_TEXT_BYTES, as far as it fits.
static inline void watch_append(char *text, const char *more) {
    size_t n = strlen(text);
    snprintf(text + n, COMM_TEXT_BYTES - n, "%s", more);
}

// What a message ends with when there is a checkpoint to go on from; one from another rank may end with it already.
static inline void watch_add_remedy(CommWatch *w, char *text) {
    const char *remedy = "; start again with --resume to go on from the last checkpoint";
    pthread_mutex_lock(&w->mutex);
    bool resumable = w->resumable;
    pthread_mutex_unlock(&w->mutex);
    if (resumable && strstr(text, remedy) == NULL) { watch_append(text, remedy); }
}

static inline void watch_finish_text(CommWatch *w) {
    if (w->verdict == VERDICT_DEAD && w->num_dead > 1) {
        char more[64];
        snprintf(more, sizeof(more), "; so did %d other rank%s", w->num_dead - 1, w->num_dead > 2 ? "s" : "");
        watch_append(w->text, more);
    }
    watch_add_remedy(w, w->text);
}

// ---- The last acts of a process ----

// One line on stderr, in one write, so that the lines of several processes do not mix.
static inline void watch_print(const CommWatch *w) {
    char line[COMM_TEXT_BYTES + 80];
    int n = snprintf(line, sizeof(line) - 1, "%s%s%s", w->program, w->program[0] != '\0' ? ": " : "", w->text);
    n = n < (int)sizeof(line) - 1 ? n : (int)sizeof(line) - 2;
    for (int i = 0; i < n; i++) {
        if ((unsigned char)line[i] < 32 || line[i] == 127) { line[i] = '?'; }
    }
    line[n] = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)n + 1);
    (void)written;
}

static inline void watch_act_done(CommWatch *w) {
    pthread_mutex_lock(&w->mutex);
    w->acts_done++;
    pthread_mutex_unlock(&w->mutex);
}

// In a thread of its own, since each of these can block for ever: stderr or stdout a pipe that nobody reads, and the
// abort of a GPU that does not answer.
static inline void *watch_last_acts(void *argument) {
    CommWatch *w = (CommWatch *)argument;
    if (w->prints) { watch_print(w); }
    watch_act_done(w);
    fflush(stdout);
    pthread_mutex_lock(&w->callbacks);
    if (w->note != NULL) { w->note(w->note_context, w->text); }
    if (w->at_end != NULL) { w->at_end(w->at_end_context); }
    pthread_mutex_unlock(&w->callbacks);
    watch_act_done(w);
    return NULL;
}

static inline void watch_wait_for_acts(CommWatch *w, int count, double seconds) {
    double deadline = seconds_now() + seconds;
    for (;;) {
        pthread_mutex_lock(&w->mutex);
        bool done = w->acts_done >= count;
        pthread_mutex_unlock(&w->mutex);
        if (done || seconds_now() >= deadline) { return; }
        poll(NULL, 0, 2);
    }
}

// ---- Sending ----

// Sends what is waiting, as far as it goes without blocking. Errors show up when reading.
static inline void watch_flush(WatchPeer *peer) {
    while (peer->fd >= 0 && peer->out_bytes > 0) {
        ssize_t n = send(peer->fd, peer->out, (size_t)peer->out_bytes, SOCKET_SEND_FLAGS);
        if (n <= 0) { return; }
        peer->out_bytes -= (int)n;
        memmove(peer->out, peer->out + n, (size_t)peer->out_bytes);
    }
}

// Adds a frame to what is sent. One that does not fit is dropped: the other end has not read for long.
static inline void watch_send(WatchPeer *peer, FrameType type, const void *data, int64_t bytes) {
    CommFrame frame = comm_frame(type, bytes);
    if (peer->fd < 0 || peer->out_bytes + (int64_t)sizeof(frame) + bytes > WATCH_BUFFER_BYTES) { return; }
    memcpy(peer->out + peer->out_bytes, &frame, sizeof(frame));
    peer->out_bytes += (int)sizeof(frame);
    if (bytes > 0) { memcpy(peer->out + peer->out_bytes, data, (size_t)bytes); }
    peer->out_bytes += (int)bytes;
    watch_flush(peer);
}

static inline void watch_send_all(CommWatch *w, FrameType type, const void *data, int64_t bytes) {
    for (int i = 0; i < w->num_ranks; i++) { watch_send(&w->peers[i], type, data, bytes); }
}

// Ends all connections once the other ends have read everything, or after some seconds.
static inline void watch_hang_up(CommWatch *w, double seconds) {
    double deadline = seconds_now() + seconds;
    for (int i = 0; i < w->num_ranks; i++) {
        if (w->peers[i].fd >= 0 && w->peers[i].out_bytes == 0) { shutdown(w->peers[i].fd, SHUT_WR); }
    }
    for (int i = 0; i < w->num_ranks; i++) { socket_close_gently(&w->peers[i].fd, deadline); }
}

// The run is over: prints why, tells the others, and ends the process.
static inline void watch_end_process(CommWatch *w) {
    pthread_t acts;
    pthread_mutex_lock(&w->mutex);
    w->ending = true;
    pthread_mutex_unlock(&w->mutex);
    watch_finish_text(w);
    bool threaded = pthread_create(&acts, NULL, watch_last_acts, w) == 0 && pthread_detach(acts) == 0;
    if (!threaded && w->prints) { watch_print(w); }
    if (threaded) { watch_wait_for_acts(w, 1, 0.2); } // a launcher ends all when the first that is told exits
    if (w->verdict != VERDICT_TOLD) {
        watch_send_all(w, w->rank == 0 ? FRAME_END : FRAME_FAILED, w->text, comm_text_bytes(w->text));
        watch_hang_up(w, WATCH_TELL_SECONDS);
    }
    if (threaded) { watch_wait_for_acts(w, 2, WATCH_ABORT_SECONDS); }
    _exit(EXIT_FAILURE); // not exit(): the main thread may be anywhere, and what exit() calls may hang
}

// ---- Receiving ----

static inline void watch_mark_gone(CommWatch *w, int rank) {
    pthread_mutex_lock(&w->mutex);
    w->gone[rank] = true;
    pthread_mutex_unlock(&w->mutex);
    socket_close(&w->peers[rank].fd);
}

// Takes a whole frame; false if it makes no sense.
static inline bool watch_take_frame(CommWatch *w, int rank, const CommFrame *frame, const uint8_t *data) {
    WatchPeer *peer = &w->peers[rank];
    bool from_zero = rank == 0;
    switch (frame->type) {
    case FRAME_BEAT:
        if (frame->bytes != (int64_t)sizeof(CommBeat)) { return false; }
        memcpy(&peer->beat, data, sizeof(CommBeat));
        peer->beat.phase[COMM_PHASE_BYTES - 1] = '\0';
        return true;
    case FRAME_GOODBYE: watch_mark_gone(w, rank); return true;
    case FRAME_FAILED:
    case FRAME_END:
        if (from_zero != (frame->type == FRAME_END)) { return false; }
        peer->failed = true;
        watch_find(w, from_zero ? VERDICT_TOLD : VERDICT_FAILED, "%.*s", (int)frame->bytes, (const char *)data);
        return true;
    default: return false;
    }
}

// Takes all whole frames that have arrived; false if they make no sense.
static inline bool watch_take_frames(CommWatch *w, int rank) {
    WatchPeer *peer = &w->peers[rank];
    int at = 0;
    while (peer->fd >= 0 && peer->in_bytes - at >= (int)sizeof(CommFrame)) {
        CommFrame frame;
        memcpy(&frame, peer->in + at, sizeof(frame));
        if (frame.magic != COMM_FRAME_MAGIC || frame.bytes < 0 || frame.bytes >= COMM_TEXT_BYTES) { return false; }
        int whole = (int)sizeof(frame) + (int)frame.bytes;
        if (peer->in_bytes - at < whole) { break; }
        if (!watch_take_frame(w, rank, &frame, peer->in + at + sizeof(frame))) { return false; }
        at += whole;
    }
    peer->in_bytes -= at;
    memmove(peer->in, peer->in + at, (size_t)peer->in_bytes);
    return true;
}

// The connection is over, without a goodbye.
static inline void watch_lost(CommWatch *w, int rank, SocketStatus status, int code) {
    char name[COMM_NAME_BYTES];
    comm_who_process(name, rank, &w->who[rank]);
    socket_close(&w->peers[rank].fd);
    if (w->peers[rank].failed) { return; }
    if (status == SOCKET_CLOSED) {
        watch_find(w, VERDICT_DEAD, "%s ended without a word (killed, or crashed?)", name);
    } else {
        watch_find(w, VERDICT_DEAD, "the connection to %s broke: %s", name, strerror(code));
    }
}

// Reads from a rank until nothing more is there.
static inline void watch_read(CommWatch *w, int rank) {
    WatchPeer *peer = &w->peers[rank];
    while (peer->fd >= 0) {
        ssize_t n = recv(peer->fd, peer->in + peer->in_bytes, (size_t)(WATCH_BUFFER_BYTES - peer->in_bytes), 0);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0 && socket_would_wait()) { return; }
        if (n <= 0) {
            int code = errno;
            watch_lost(w, rank, n == 0 ? SOCKET_CLOSED : socket_failed(), code);
            return;
        }
        peer->heard = seconds_now();
        peer->in_bytes += (int)n;
        if (!watch_take_frames(w, rank)) { watch_lost(w, rank, SOCKET_ERROR, EBADMSG); }
    }
}

// ---- Judging ----

static inline void watch_judge_silence(CommWatch *w) {
    for (int i = 0; i < w->num_ranks; i++) {
        char name[COMM_NAME_BYTES];
        if (w->peers[i].fd < 0 || w->round - w->peers[i].heard <= w->silence) { continue; }
        watch_find(w, VERDICT_SILENT,
                   "%s has not been heard of for %.3g s: stopped, or its machine or the network is down",
                   comm_who_process(name, i, &w->who[i]), w->silence);
    }
}

// What this rank's main thread does now.
static inline CommBeat watch_own_beat(CommWatch *w) {
    pthread_mutex_lock(&w->mutex);
    CommBeat beat = w->main;
    double step = WATCH_STEPS_FACTOR * w->step_seconds;
    beat.idle = w->round > w->since ? w->round - w->since : 0.0;
    beat.limit = w->watchdog <= 0.0 ? 0.0 : w->watchdog > step ? w->watchdog : step;
    if (w->slow) { beat.limit *= WATCH_SLOW_FACTOR; }
    pthread_mutex_unlock(&w->mutex);
    return beat;
}

static inline bool watch_is_late(const CommBeat *beat) { return beat->limit > 0.0 && beat->idle > beat->limit; }

static inline bool watch_is_behind(const CommBeat *a, const CommBeat *b) {
    return a->count != b->count ? a->count < b->count : a->idle > b->idle;
}

// The first rank that has said goodbye; -1: none.
static inline int watch_first_gone(const CommWatch *w) {
    for (int i = 0; i < w->num_ranks; i++) {
        if (w->gone[i]) { return i; } // written by this thread alone
    }
    return -1;
}

// All ranks wait, and each for too long. What they say is some moments old, and a rank that all waited for may have
// come and gone meanwhile: so each must have said it once more.
static inline void watch_judge_waiting(CommWatch *w, int furthest, int last) {
    if (w->stuck == 0.0) { w->stuck = w->round; }
    if (w->round - w->stuck < WATCH_STUCK_SECONDS + 2.0 * w->beat) { return; }
    for (int i = 0; i < w->num_ranks; i++) {
        if (w->peers[i].fd >= 0 && w->peers[i].heard <= w->stuck + w->beat) { return; }
    }
    const CommBeat *beat = &w->peers[last].beat, *ahead = &w->peers[furthest].beat;
    char name[COMM_NAME_BYTES], cause[2 * COMM_NAME_BYTES] = "";
    int left = watch_first_gone(w);
    if (left >= 0) {
        snprintf(cause, sizeof(cause), "; %s has ended", comm_who_name(name, left, &w->who[left]));
    } else if (beat->count != ahead->count) {
        snprintf(cause, sizeof(cause), "; %s is the furthest behind, in %s", comm_who_name(name, last, &w->who[last]),
                 beat->phase);
    }
    watch_find(w, VERDICT_HANGS, "all ranks wait for each other, for %.0f s in %s: the network or a GPU hangs%s",
               beat->idle, ahead->phase, cause);
}

// Who has got no further for too long? Rank 0 judges all; when it has ended in order, each other rank itself.
// A rank that waits for others is not to blame, unless all wait.
static inline void watch_judge_progress(CommWatch *w) {
    int hangs = -1, last = -1, furthest = -1;
    bool all_wait = true;
    w->peers[w->rank].beat = watch_own_beat(w);
    for (int i = 0; i < w->num_ranks; i++) {
        const CommBeat *beat = &w->peers[i].beat;
        if (i != w->rank && w->peers[i].fd < 0) { continue; }
        if (!beat->waits || !watch_is_late(beat)) { all_wait = false; }
        if (last < 0 || watch_is_behind(beat, &w->peers[last].beat)) { last = i; }
        if (furthest < 0 || watch_is_behind(&w->peers[furthest].beat, beat)) { furthest = i; }
        if (beat->waits || !watch_is_late(beat)) { continue; }
        if (hangs < 0 || watch_is_behind(beat, &w->peers[hangs].beat)) { hangs = i; }
    }
    if (hangs >= 0) {
        char name[COMM_NAME_BYTES];
        watch_find(w, VERDICT_HANGS, "%s hangs: no progress for %.0f s in %s",
                   comm_who_name(name, hangs, &w->who[hangs]), w->peers[hangs].beat.idle, w->peers[hangs].beat.phase);
    } else if (all_wait) {
        watch_judge_waiting(w, furthest, last);
        return;
    }
    w->stuck = 0.0;
}

// Asks whether this rank's part is well. Not well twice in a row is this rank's failure.
static inline void watch_judge_health(CommWatch *w) {
    char reason[COMM_TEXT_BYTES / 2] = "", name[COMM_NAME_BYTES];
    if (seconds_now() < w->next_health) { return; }
    w->next_health = seconds_now() + WATCH_HEALTH_SECONDS;
    pthread_mutex_lock(&w->callbacks);
    bool well = w->healthy == NULL || w->healthy(w->healthy_context, reason, sizeof(reason));
    pthread_mutex_unlock(&w->callbacks);
    w->strikes = well ? 0 : w->strikes + 1;
    if (w->strikes < WATCH_HEALTH_STRIKES) { return; }
    w->prints = true; // nobody else knows it first-hand
    watch_find(w, VERDICT_FAILED, "%s: %s", comm_who_name(name, w->rank, &w->who[w->rank]), reason);
}

// ---- The thread ----

// Waits for a connection to speak, the main thread, or the time for the next beat.
static inline void watch_wait(CommWatch *w) {
    int count = 0;
    w->polled[count].fd = w->wake[0];
    w->polled[count++].events = POLLIN;
    for (int i = 0; i < w->num_ranks; i++) {
        if (w->peers[i].fd < 0) { continue; }
        w->polled[count].fd = w->peers[i].fd;
        w->polled[count++].events = (short)(POLLIN | (w->peers[i].out_bytes > 0 ? POLLOUT : 0));
    }
    poll(w->polled, (nfds_t)count, socket_milliseconds(w->next_beat, 1000));
    char bytes[64];
    while (read(w->wake[0], bytes, sizeof(bytes)) > 0) {}
}

// A time that a stop has passed over; whoever was heard of after the stop needs no excuse.
static inline double watch_excuse(double since, double gap, double now) {
    return since + gap < now ? since + gap : now;
}

// When this process itself was stopped for a while, the others' silence is not theirs, and that it got no further is
// not its fault. A stop within a round is found in the next one: until then time stands still at w->round.
static inline void watch_begin_round(CommWatch *w) {
    double now = seconds_now(), gap = now - w->round;
    w->round = now;
    if (gap < 1.0 + 2.0 * w->beat) { return; }
    for (int i = 0; i < w->num_ranks; i++) { w->peers[i].heard = watch_excuse(w->peers[i].heard, gap, now); }
    pthread_mutex_lock(&w->mutex);
    w->since = watch_excuse(w->since, gap, now);
    pthread_mutex_unlock(&w->mutex);
    w->stuck = 0.0;
}

// Tells the others what this rank's main thread does.
static inline void watch_beat(CommWatch *w) {
    double now = seconds_now();
    if (now < w->next_beat) { return; }
    w->next_beat = now + w->beat;
    CommBeat beat = watch_own_beat(w);
    for (int i = 0; i < w->num_ranks; i++) {
        if (w->peers[i].out_bytes == 0) { watch_send(&w->peers[i], FRAME_BEAT, &beat, (int64_t)sizeof(beat)); }
    }
}

static inline void watch_look(CommWatch *w) {
    w->verdict = VERDICT_NONE;
    w->num_dead = 0;
    for (int i = 0; i < w->num_ranks; i++) {
        watch_flush(&w->peers[i]);
        watch_read(w, i);
    }
    watch_judge_health(w);
    watch_judge_silence(w);
    if (w->rank == 0 || w->peers[0].fd < 0) { watch_judge_progress(w); }
}

// What the main thread has asked for. Leaving in order comes before anything seen at that moment: this rank's work is
// complete. Failing does not: it may well be the consequence of what is seen.
static inline bool watch_leaves(CommWatch *w) {
    pthread_mutex_lock(&w->mutex);
    bool closing = w->closing, failing = w->failing;
    pthread_mutex_unlock(&w->mutex);
    if (closing) {
        watch_send_all(w, FRAME_GOODBYE, NULL, 0);
        watch_hang_up(w, WATCH_GOODBYE_SECONDS);
        return true;
    }
    if (w->verdict != VERDICT_NONE) { watch_end_process(w); }
    if (failing) { // the main thread prints its error itself
        watch_send_all(w, w->rank == 0 ? FRAME_END : FRAME_FAILED, w->failure, comm_text_bytes(w->failure));
        watch_hang_up(w, WATCH_GOODBYE_SECONDS);
    }
    return failing;
}

static inline void *watch_thread(void *argument) {
    CommWatch *w = (CommWatch *)argument;
    do {
        watch_beat(w);
        watch_wait(w);
        watch_begin_round(w);
        watch_look(w);
    } while (!watch_leaves(w));
    return NULL;
}

// ---- Starting and ending it ----

static inline void watch_free(CommWatch *w) {
    for (int i = 0; w->peers != NULL && i < w->num_ranks; i++) { socket_close(&w->peers[i].fd); }
    socket_close(&w->wake[0]);
    socket_close(&w->wake[1]);
    pthread_mutex_destroy(&w->mutex);
    pthread_mutex_destroy(&w->callbacks);
    free(w->peers);
    free(w->polled);
    free(w->gone);
    free(w->who);
    free(w);
}

// A watch without connections: the caller sets peers[].fd, who and the limits, then starts it. NULL: out of memory.
static inline CommWatch *watch_create(int rank, int num_ranks) {
    CommWatch *w = (CommWatch *)calloc(1, sizeof(CommWatch));
    if (w == NULL) { return NULL; }
    w->rank = rank, w->num_ranks = num_ranks;
    w->wake[0] = w->wake[1] = -1;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_mutex_init(&w->callbacks, NULL);
    w->peers = (WatchPeer *)calloc((size_t)num_ranks, sizeof(WatchPeer));
    w->polled = (struct pollfd *)calloc((size_t)num_ranks + 1, sizeof(struct pollfd));
    w->gone = (bool *)calloc((size_t)num_ranks, sizeof(bool));
    w->who = (CommWho *)calloc((size_t)num_ranks, sizeof(CommWho));
    for (int i = 0; w->peers != NULL && i < num_ranks; i++) { w->peers[i].fd = -1; }
    if (w->peers != NULL && w->polled != NULL && w->gone != NULL && w->who != NULL) { return w; }
    watch_free(w);
    return NULL;
}

// Signals are the main thread's business: the watch's thread blocks all but those that are its own fault.
static inline bool watch_create_thread(CommWatch *w) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) { sigdelset(&all, faults[i]); }
    pthread_sigmask(SIG_SETMASK, &all, &before);
    w->running = pthread_create(&w->thread, NULL, watch_thread, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return w->running;
}

static inline bool watch_start(CommWatch *w, Error *error) {
    if (pipe(w->wake) != 0) { return fail(error, "cannot create a pipe: %s", strerror(errno)); }
    for (int i = 0; i < 2; i++) {
        fcntl(w->wake[i], F_SETFD, FD_CLOEXEC);
        fcntl(w->wake[i], F_SETFL, O_NONBLOCK);
    }
    w->since = w->round = w->next_health = seconds_now();
    for (int i = 0; i < w->num_ranks; i++) { w->peers[i].heard = w->since; }
    snprintf(w->main.phase, sizeof(w->main.phase), "the start");
    return watch_create_thread(w) || fail(error, "cannot start a thread that watches the other ranks");
}

// Waits for the thread to end, which it does within seconds once it is told to close or fail. When it has found that
// the run is over, it ends the process instead, and this does not return.
static inline void watch_join(CommWatch *w) {
    if (!w->running) { return; }
    watch_wake(w);
    pthread_join(w->thread, NULL);
    w->running = false;
}

// Says goodbye.
static inline void watch_close(CommWatch *w) {
    pthread_mutex_lock(&w->mutex);
    w->closing = true;
    pthread_mutex_unlock(&w->mutex);
    watch_join(w);
}

// Tells all others to end, with this text.
static inline void watch_fail(CommWatch *w, const char *text) {
    char failure[COMM_TEXT_BYTES];
    snprintf(failure, sizeof(failure), "%.*s", COMM_TEXT_BYTES - 1, text);
    watch_add_remedy(w, failure);
    pthread_mutex_lock(&w->mutex);
    memcpy(w->failure, failure, sizeof(failure));
    w->failing = true;
    pthread_mutex_unlock(&w->mutex);
    watch_join(w);
}

#endif // LLMC_COMM_WATCH_H
