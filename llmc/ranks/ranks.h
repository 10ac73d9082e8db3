// The processes ("ranks") of a run, one for each GPU, and what they say to each other besides gradients: agreement at
// the start and on errors, small exchanges, and what the watch needs to know (watch.h). start.h opens a Comm.
//
//   Comm comm;
//   if (!comm_open(&comm, &options, &error)) { ... }               // or comm_single(&comm)
//   for (step ...) { comm_progress(&comm, "step 12"); ... }
//   ok = save(&error);
//   if (!comm_agree(&comm, ok, &error)) { ... all ranks fail ... }
//   if (!ok) { comm_fail(&comm, &error); }                          // the other ranks end with this error too
//   comm_close(&comm);
//   if (!ok && comm_prints(&comm)) { fprintf(stderr, ...); }
//
// All functions work with one process too, and then cost nothing. They are for the main thread. A Comm must stay where
// it is while it is open.
#ifndef LLMC_COMM_H
#define LLMC_COMM_H

#include <pthread.h>

#include "llmc/ranks/transport.h"

#define COMM_HOST_BYTES 72       // a host's name and a NUL; longer names are cut
#define COMM_PHASE_BYTES 64      // what a rank is doing, and a NUL
#define COMM_TEXT_BYTES 8192     // an Error's text
#define COMM_GOODBYE_SECONDS 2.0 // for the other ranks to see that this one leaves
#define COMM_TELL_SECONDS 1.0    // for the other ranks to see that the run ends

// A process of the run.
typedef struct {
    int32_t pid;
    char host[COMM_HOST_BYTES];
} CommWho;

typedef struct {
    char text[128];
} CommName;

// What a rank's main thread is doing.
typedef struct {
    double idle;    // seconds since it got further
    double limit;   // seconds that this may take; 0: for ever
    uint64_t count; // how often it got further
    int32_t waits;  // for other ranks
    char phase[COMM_PHASE_BYTES];
} CommBeat;

typedef bool (*CommHealthy)(void *context, char *reason, size_t size);
typedef void (*CommLastAct)(void *context, const char *words);

// What the watch calls. It holds the mutex meanwhile: once a function is replaced it does not run any more.
typedef struct {
    pthread_mutex_t mutex;
    CommHealthy healthy;
    CommLastAct abort, note;
    void *guarded, *note_context;
} CommCallbacks;

typedef struct {
    CommWho who;
    bool gone, failed; // it has said goodbye, or why it ends
    Frame *inbox[2];   // of exchanges: a result, and the failure of the next exchange
    CommBeat beat;     // what it said last
} CommPeer;

// What the main thread and the watch's thread share. The links form a star around rank 0.
typedef struct {
    // Fixed while the watch runs.
    int rank, num_ranks;
    double beat, silence; // seconds
    double watchdog;      // seconds; 0: off
    char program[64];     // begins a message; "" without
    bool prints;          // does this process print why the run ends?
    int wake[2];          // a pipe: the main thread wakes the watch
    pthread_t thread;
    bool running;
    // Under mutex. `changed` tells of frames that came or left, and of ranks that left.
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Link *links; // num_ranks: rank 0 has one to each rank, each other rank has links[0]
    CommPeer *peers;
    struct pollfd *polled; // num_ranks + 1: of the watch
    CommBeat main;         // idle and limit are filled in when it is sent
    double since;          // when the main thread got further
    double step_seconds;
    bool slow, resumable, closing, failing;
    char failure[COMM_TEXT_BYTES];
    CommCallbacks callbacks;
} CommShared;

typedef struct Comm {
    int rank, num_ranks;
    int local_rank, num_local; // among the ranks of this machine: the GPU to use
    // Its own.
    CommShared *shared; // NULL: one process, or closed
    uint64_t sequence;  // exchanges so far
    bool prints, mpi;
    bool told;                   // this rank's error has been told to the other ranks
    bool broken;                 // an exchange has failed: no later one can succeed
    char known[COMM_TEXT_BYTES]; // the error that comm_agree or an exchange gave last
} Comm;

// ---- Who is who ----

// Gives "rank 3 (host)".
static inline CommName comm_who_name(int rank, const CommWho *who) {
    CommName name;
    snprintf(name.text, sizeof(name.text), "rank %d (%.*s)", rank, COMM_HOST_BYTES - 1, who->host);
    return name;
}

// Gives "rank 3 (host, pid 12)".
static inline CommName comm_who_process(int rank, const CommWho *who) {
    CommName name;
    snprintf(name.text, sizeof(name.text), "rank %d (%.*s, pid %d)", rank, COMM_HOST_BYTES - 1, who->host,
             (int)who->pid);
    return name;
}

// Does this process print what all ranks know? The ranks that MPI starts share one output: the first of each machine
// prints. Every other process has an output of its own. A rank always prints an error of its own.
static inline bool comm_prints(const Comm *comm) { return comm->prints; }

// The name of the machine of a rank.
static inline const char *comm_host(const Comm *comm, int rank) {
    return comm->shared != NULL ? comm->shared->peers[rank].who.host : "this machine";
}

// Is no lower rank on the machine of this rank?
static inline bool comm_is_first_of_machine(const Comm *comm, int rank) {
    int first = 0;
    while (strcmp(comm_host(comm, first), comm_host(comm, rank)) != 0) { first++; }
    return first == rank;
}

static inline CommName comm_name(const Comm *comm, int rank) {
    return comm_who_name(rank, &comm->shared->peers[rank].who);
}

// ---- What the watch wants to know. Cheap enough for every micro-batch ----
// These return only while the run goes on: a watch that ends the process keeps the mutex.

// This rank got further. phase: a short text for messages, such as "step 12" or "saving".
static inline void comm_progress(Comm *comm, const char *phase) {
    CommShared *s = comm->shared;
    if (s == NULL) { return; }
    pthread_mutex_lock(&s->mutex);
    s->main.count++;
    s->since = seconds_now();
    snprintf(s->main.phase, sizeof(s->main.phase), "%s", phase);
    pthread_mutex_unlock(&s->mutex);
}

// What follows may take long (loading, tokenizing, saving): the watchdog then allows 30 times as long.
static inline void comm_slow(Comm *comm, bool slow) {
    CommShared *s = comm->shared;
    if (s == NULL) { return; }
    pthread_mutex_lock(&s->mutex);
    if (s->slow != slow) { s->since = seconds_now(); }
    s->slow = slow;
    pthread_mutex_unlock(&s->mutex);
}

// Says whether the main thread waits for other ranks (a collective, or the GPU that waits for one): it is then not to
// blame. Exchanges say so themselves. Returns what it was before.
static inline bool comm_waits(Comm *comm, bool waits) {
    CommShared *s = comm->shared;
    if (s == NULL) { return false; }
    pthread_mutex_lock(&s->mutex);
    bool before = s->main.waits != 0;
    if (before != waits) { s->since = seconds_now(); } // a wait counts neither for nor against this rank
    s->main.waits = waits;
    pthread_mutex_unlock(&s->mutex);
    return before;
}

// The longest normal time between two calls of comm_progress (a step). The watchdog allows at least 10 times as long.
static inline void comm_expects(Comm *comm, double seconds) {
    if (comm->shared == NULL) { return; }
    pthread_mutex_lock(&comm->shared->mutex);
    comm->shared->step_seconds = seconds;
    pthread_mutex_unlock(&comm->shared->mutex);
}

// From now on there is a checkpoint: messages say how to go on from it.
static inline void comm_resumable(Comm *comm, bool resumable) {
    if (comm->shared == NULL) { return; }
    pthread_mutex_lock(&comm->shared->mutex);
    comm->shared->resumable = resumable;
    pthread_mutex_unlock(&comm->shared->mutex);
}

// Names the functions of whatever connects the GPUs; NULL: none. The watch asks once a second whether it is healthy:
// twice in a row not (with a reason) ends all ranks. Before the watch ends the process, another thread calls `abort`,
// which has 5 seconds.
static inline void comm_guard(Comm *comm, CommHealthy healthy, CommLastAct abort, void *context) {
    if (comm->shared == NULL) { return; }
    CommCallbacks *c = &comm->shared->callbacks;
    pthread_mutex_lock(&c->mutex);
    c->healthy = healthy, c->abort = abort, c->guarded = context;
    pthread_mutex_unlock(&c->mutex);
}

// Called before that, to write down the words that the watch ends this process with.
static inline void comm_on_failure(Comm *comm, CommLastAct note, void *context) {
    if (comm->shared == NULL) { return; }
    CommCallbacks *c = &comm->shared->callbacks;
    pthread_mutex_lock(&c->mutex);
    c->note = note, c->note_context = context;
    pthread_mutex_unlock(&c->mutex);
}

// After an error that another rank's death may have caused (a collective that failed): gives the watch some seconds to
// find that out. It then names the cause and ends the process, and this does not return.
static inline void comm_await_verdict(const Comm *comm, double seconds) {
    if (comm->shared == NULL || !comm->shared->running) { return; }
    double deadline = seconds_now() + seconds;
    while (seconds_now() < deadline) { poll(NULL, 0, socket_milliseconds(deadline, 100)); }
}

// ---- Failing and ending ----

// One process: no connection, no thread.
static inline void comm_single(Comm *comm) {
    memset(comm, 0, sizeof(*comm));
    comm->num_ranks = comm->num_local = 1;
    comm->prints = true;
}

// Appends to a text of COMM_TEXT_BYTES, as far as it fits.
static inline void comm_append(char *text, const char *more) {
    size_t n = strlen(text);
    snprintf(text + n, COMM_TEXT_BYTES - n, "%s", more);
}

// Ends a message when there is a checkpoint to go on from; one from another rank may end with it already. Needs the
// mutex.
static inline void comm_add_remedy(const CommShared *s, char *text) {
    const char *remedy = "; start again with --resume to go on from the last checkpoint";
    if (s->resumable && strstr(text, remedy) == NULL) { comm_append(text, remedy); }
}

static inline void comm_wake(CommShared *s) {
    char byte = 0;
    ssize_t n = write(s->wake[1], &byte, 1); // a full pipe wakes as well
    (void)n;
}

// Has the watch say goodbye, or the failure (NULL: none), and waits for its thread to end, which takes seconds at most.
// When the watch has found that the run is over it ends the process instead, and this does not return.
static inline void comm_end_watch(CommShared *s, const char *failure) {
    pthread_mutex_lock(&s->mutex);
    s->closing = failure == NULL, s->failing = failure != NULL;
    if (failure != NULL) {
        snprintf(s->failure, sizeof(s->failure), "%s", failure);
        comm_add_remedy(s, s->failure);
    }
    pthread_mutex_unlock(&s->mutex);
    if (!s->running) { return; }
    comm_wake(s);
    pthread_join(s->thread, NULL);
    s->running = false;
}

// This rank has failed: the other ranks end with "rank 3 (host): <error>". An error of comm_agree, which all ranks
// have, is not told again, so call this for every error. Returns within seconds. Does not print. If another rank has
// failed at that moment, and all end with its error, this does not return.
static inline void comm_fail(Comm *comm, const Error *error) {
    if (comm->shared == NULL || comm->told) { return; }
    bool same = strcmp(comm->known, error->text) == 0;
    if (same && !comm->broken) { return; }
    char text[COMM_TEXT_BYTES] = "";
    if (!same) { comm_append(text, comm_name(comm, comm->rank).text), comm_append(text, ": "); }
    comm_append(text, error->text);
    if (!same) { comm->prints = true; }
    comm_end_watch(comm->shared, text);
    comm->told = true;
}

// ---- Exchanges: all ranks call the same ones in the same order ----

// What an exchange sends and how rank 0 puts it together. Rank 0 takes each rank's contribution, its own first, in
// order of rank, and sends the result to all ranks.
typedef struct {
    const char *name;
    int64_t size; // must be equal on all ranks
    const void *mine;
    int64_t bytes;
    bool text; // contributions and the result are texts of any length
    void (*take)(void *context, int rank, const uint8_t *data, int64_t bytes); // may be NULL
    void *context;
    void *result;
    int64_t result_bytes; // of a text: at most
} Exchange;

static inline Frame *comm_frame(const Comm *comm, FrameType type, const Exchange *x, const void *data, int64_t bytes) {
    FrameHead head = frame_head(type, bytes);
    head.size = x->size;
    head.sequence = comm->sequence;
    snprintf(head.name, sizeof(head.name), "%s", x->name);
    return frame_create(&head, data);
}

// Sends a frame to ranks [first, end), and releases it.
static inline void comm_post(CommShared *s, int first, int end, Frame *frame) {
    pthread_mutex_lock(&s->mutex);
    for (int i = first; i < end; i++) { link_send(&s->links[i], frame); }
    frame_release(frame);
    pthread_mutex_unlock(&s->mutex);
    comm_wake(s);
}

// Waits until everything is sent: a rank that leaves after an exchange must not take the result with it.
static inline void comm_await_sent(CommShared *s) {
    pthread_mutex_lock(&s->mutex);
    for (int i = 0; i < s->num_ranks; i++) {
        while (s->links[i].fd >= 0 && s->links[i].num_out > 0) { pthread_cond_wait(&s->changed, &s->mutex); }
    }
    pthread_mutex_unlock(&s->mutex);
}

// Waits for a frame of a rank. The wait ends: a rank that dies or hangs ends the process. False: the rank has left.
static inline bool comm_await(Comm *comm, const Exchange *x, int rank, Frame **frame, Error *error) {
    CommShared *s = comm->shared;
    CommPeer *peer = &s->peers[rank];
    pthread_mutex_lock(&s->mutex);
    while (peer->inbox[0] == NULL && !peer->gone) { pthread_cond_wait(&s->changed, &s->mutex); }
    *frame = peer->inbox[0];
    peer->inbox[0] = peer->inbox[1], peer->inbox[1] = NULL;
    pthread_mutex_unlock(&s->mutex);
    return *frame != NULL ||
           fail(error, "%s has ended while the others wait for it in %s", comm_name(comm, rank).text, x->name);
}

// Does a rank's frame belong to the exchange that rank 0 is in?
static inline bool comm_check_frame(const Comm *comm, const Exchange *x, int rank, FrameHead *head, Error *error) {
    head->name[FRAME_NAME_BYTES - 1] = '\0';
    bool fits = head->type == FRAME_MINE && strcmp(head->name, x->name) == 0 && head->sequence == comm->sequence;
    if (fits && head->size == x->size && (x->text || head->bytes == x->bytes)) { return true; }
    return fail(error,
                "the ranks do not do the same: %s is in exchange %llu, %s of %lld bytes; %s in exchange %llu, %s of "
                "%lld bytes",
                comm_name(comm, rank).text, (unsigned long long)head->sequence, head->name, (long long)head->size,
                comm_name(comm, 0).text, (unsigned long long)comm->sequence, x->name, (long long)x->size);
}

static inline bool comm_collect(Comm *comm, const Exchange *x, int rank, Error *error) {
    Frame *frame;
    if (!comm_await(comm, x, rank, &frame, error)) { return false; }
    bool ok = comm_check_frame(comm, x, rank, &frame->head, error);
    if (ok && x->take != NULL) { x->take(x->context, rank, frame->data, frame->head.bytes); }
    frame_release(frame);
    return ok;
}

// Rank 0's part.
static inline bool comm_exchange_lead(Comm *comm, const Exchange *x, Error *error) {
    bool ok = true;
    if (x->take != NULL) { x->take(x->context, 0, (const uint8_t *)x->mine, x->bytes); }
    for (int i = 1; ok && i < comm->num_ranks; i++) { ok = comm_collect(comm, x, i, error); }
    int64_t bytes = x->text ? (int64_t)strlen((const char *)x->result) : x->result_bytes;
    Frame *frame = ok ? comm_frame(comm, FRAME_RESULT, x, x->result, bytes) : NULL;
    if (ok && frame == NULL) { ok = fail(error, "out of memory for %s of %lld bytes", x->name, (long long)bytes); }
    if (!ok) { frame = comm_frame(comm, FRAME_FAILURE, x, error->text, (int64_t)strlen(error->text)); }
    comm_post(comm->shared, 1, comm->num_ranks, frame);
    if (ok) { comm_await_sent(comm->shared); }
    return ok;
}

// Copies rank 0's answer: the result, or the error.
static inline bool comm_take_result(const Exchange *x, const Frame *frame, Error *error) {
    int64_t bytes = frame->head.bytes;
    if (frame->head.type == FRAME_FAILURE) { return fail(error, "%s", (const char *)frame->data); }
    if (frame->head.type != FRAME_RESULT || (x->text ? bytes >= x->result_bytes : bytes != x->result_bytes)) {
        return fail(error, "rank 0 answers %s with something else", x->name);
    }
    if (bytes > 0) { memcpy(x->result, frame->data, (size_t)bytes); }
    if (x->text) { ((char *)x->result)[bytes] = '\0'; }
    return true;
}

// Another rank's part.
static inline bool comm_exchange_follow(Comm *comm, const Exchange *x, Error *error) {
    Frame *frame = comm_frame(comm, FRAME_MINE, x, x->mine, x->bytes);
    if (frame == NULL) { return fail(error, "out of memory for %s of %lld bytes", x->name, (long long)x->bytes); }
    comm_post(comm->shared, 0, 1, frame);
    if (!comm_await(comm, x, 0, &frame, error)) { return false; }
    bool ok = comm_take_result(x, frame, error);
    frame_release(frame);
    return ok;
}

// An exchange waits as long as the watch finds all ranks alive and well. An error ends all later exchanges too.
static inline bool comm_exchange(Comm *comm, const Exchange *x, Error *error) {
    if (comm->shared == NULL) { return fail(error, "the connections of this run are closed"); }
    if (comm->broken) { return fail(error, "%s", comm->known); }
    if (comm->told) { return fail(error, "this rank has failed already"); }
    comm->sequence++;
    bool before = comm_waits(comm, true);
    bool ok = comm->rank == 0 ? comm_exchange_lead(comm, x, error) : comm_exchange_follow(comm, x, error);
    comm_waits(comm, before);
    comm->broken = !ok;
    if (!ok) { snprintf(comm->known, sizeof(comm->known), "%s", error->text); }
    return ok;
}

static inline void comm_take_gather(void *all, int rank, const uint8_t *data, int64_t bytes) {
    if (bytes > 0) { memcpy((uint8_t *)all + rank * bytes, data, (size_t)bytes); }
}

// all: num_ranks times `bytes` bytes, in order of rank.
static inline bool comm_all_gather(Comm *comm, const void *mine, void *all, int64_t bytes, Error *error) {
    Exchange x = {"an all-gather", bytes, mine, bytes, false, comm_take_gather, all, all, comm->num_ranks * bytes};
    if (comm->num_ranks > 1) { return comm_exchange(comm, &x, error); }
    comm_take_gather(all, 0, (const uint8_t *)mine, bytes);
    return true;
}

// Rank 0's bytes to all. `bytes` must be equal everywhere.
static inline bool comm_broadcast(Comm *comm, void *data, int64_t bytes, Error *error) {
    Exchange x = {"a broadcast", bytes, NULL, 0, false, NULL, NULL, data, bytes};
    return comm->num_ranks == 1 || comm_exchange(comm, &x, error);
}

static inline void comm_take_sum(void *context, int rank, const uint8_t *data, int64_t bytes) {
    uint64_t *values = (uint64_t *)context, value;
    for (int64_t i = 0; rank > 0 && i < bytes / 8; i++) { // rank 0's values are there already
        memcpy(&value, data + 8 * i, sizeof(value));
        values[i] += value;
    }
}

static inline bool comm_add_up(Comm *comm, const char *name, uint64_t *values, int64_t bytes, Error *error) {
    Exchange x = {name, bytes, values, bytes, false, comm_take_sum, values, values, bytes};
    return comm->num_ranks == 1 || comm_exchange(comm, &x, error);
}

// values[i] becomes the sum over all ranks, modulo 2^64.
static inline bool comm_sum_u64(Comm *comm, uint64_t *values, int count, Error *error) {
    return comm_add_up(comm, "a sum", values, 8 * (int64_t)count, error);
}

// *any: is `mine` true on some rank?
static inline bool comm_any(Comm *comm, bool mine, bool *any, Error *error) {
    uint64_t count = mine;
    bool ok = comm_add_up(comm, "a question to all", &count, 8, error);
    *any = count > 0;
    return ok;
}

// ---- Agreement: the result of an exchange is an error's text, or nothing ----

typedef struct {
    const Comm *comm;
    const char *facts; // rank 0's; NULL: contributions are errors
    int64_t facts_bytes;
    int rank, alike; // the first rank with an error, and how many ranks say the same
    char text[COMM_TEXT_BYTES];
} CommFirstError;

static inline bool comm_agree_on(Comm *comm, const Exchange *x, Error *error) {
    CommFirstError *first = (CommFirstError *)x->context;
    if (!comm_exchange(comm, x, error)) { return false; }
    if (first->text[0] == '\0') { return true; }
    memcpy(comm->known, first->text, sizeof(comm->known));
    return fail(error, "%s", first->text);
}

// Keeps the first error in order of rank. The last rank puts the rank's name before it, unless all say the same.
static inline void comm_take_error(void *context, int rank, const uint8_t *data, int64_t bytes) {
    CommFirstError *first = (CommFirstError *)context;
    const int room = COMM_TEXT_BYTES - (int)sizeof(CommName) - 4;
    if (bytes > 0 && first->alike == 0) {
        first->rank = rank;
        snprintf(first->text, sizeof(first->text), "%.*s", room, (const char *)data);
    }
    first->alike += bytes > 0 && strncmp(first->text, (const char *)data, (size_t)room) == 0;
    if (rank < first->comm->num_ranks - 1 || first->alike == 0 || first->alike == rank + 1) { return; }
    char text[COMM_TEXT_BYTES];
    memcpy(text, first->text, sizeof(text));
    snprintf(first->text, sizeof(first->text), "%s: %.*s", comm_name(first->comm, first->rank).text, room, text);
}

// True if ok is true on all ranks. Otherwise false on all, and *error is everywhere the error of the lowest rank that
// failed, after "rank 3 (host): " unless all say the same.
static inline bool comm_agree(Comm *comm, bool ok, Error *error) {
    if (comm->num_ranks == 1) { return ok; }
    CommFirstError first = {comm, NULL, 0, 0, 0, ""};
    const char *mine = ok ? "" : error->text[0] != '\0' ? error->text : "failed";
    Exchange x = {"an agreement",  0,      mine,       (int64_t)strlen(mine), true,
                  comm_take_error, &first, first.text, COMM_TEXT_BYTES};
    return comm_agree_on(comm, &x, error);
}

// Describes the first difference between rank 0's facts and those of the first rank that has one. The NUL behind a
// frame's data ends its last text.
static inline void comm_take_facts(void *context, int rank, const uint8_t *data, int64_t bytes) {
    CommFirstError *first = (CommFirstError *)context;
    const char *a = first->facts, *a_end = a + first->facts_bytes, *b = (const char *)data, *b_end = b + bytes;
    const char *zero = comm_host(first->comm, 0), *other = comm_host(first->comm, rank), *name = "";
    if (rank == 0 || first->text[0] != '\0') { return; }
    while (a < a_end && b < b_end && strcmp(a, b) == 0) {
        name = a;
        a += strlen(a) + 1, b += strlen(b) + 1;
        if (strcmp(a, b) != 0) {
            snprintf(first->text, sizeof(first->text), "%.200s is %.1000s on rank 0 (%s), %.1000s on rank %d (%s)",
                     name, a, zero, b, rank, other);
            return;
        }
        a += strlen(a) + 1, b += strlen(b) + 1;
    }
    if (a >= a_end && b >= b_end) { return; }
    bool here = a < a_end;
    snprintf(first->text, sizeof(first->text), "%.200s is known on rank %d (%s) only: the ranks run different programs",
             here ? a : b, here ? 0 : rank, here ? zero : other);
}

// Compares rank 0's facts ("name NUL value NUL name NUL ...") with those of all ranks. A difference gives one error on
// all ranks, e.g. "--seq-len is 64 on rank 0 (hostA), 32 on rank 2 (hostB)".
static inline bool comm_check_facts(Comm *comm, const char *facts, size_t bytes, Error *error) {
    if (comm->num_ranks == 1) { return true; }
    CommFirstError first = {comm, facts, (int64_t)bytes, 0, 0, ""};
    Exchange x = {"a comparison of facts", 0,      facts,      (int64_t)bytes, true,
                  comm_take_facts,         &first, first.text, COMM_TEXT_BYTES};
    return comm_agree_on(comm, &x, error);
}

#endif // LLMC_COMM_H
