// The processes ("ranks") of a run, one for each GPU, and the bytes that they exchange besides gradients. start.h opens
// a Comm, agree.h builds agreement on the exchange, and watch.h ends the run when a rank dies.
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
#define COMM_PHASE_BYTES 64      // the phase of a rank, and a NUL
#define COMM_TEXT_BYTES 8192     // an Error's text
#define COMM_GOODBYE_SECONDS 2.0 // for the other ranks to see that this rank leaves
#define COMM_TELL_SECONDS 1.0    // for the other ranks to see that the run ends

// A process of the run.
typedef struct {
    int32_t pid;
    char host[COMM_HOST_BYTES];
} CommWho;

typedef struct {
    char text[128];
} CommName;

// The progress of a rank's main thread.
typedef struct {
    double idle;    // seconds since it got further
    double limit;   // seconds that this may take; 0: for ever
    uint64_t count; // how often it got further
    int32_t waits;  // for other ranks
    char phase[COMM_PHASE_BYTES];
} CommBeat;

typedef bool (*CommHealthy)(void *context, char *reason, size_t size);
typedef void (*CommLastAct)(void *context, const char *words);

// The functions that the watch calls. It holds the mutex during a call: a function that is replaced runs no more.
typedef struct {
    pthread_mutex_t mutex;
    CommHealthy healthy;
    CommLastAct abort, note;
    void *guarded, *note_context;
} CommCallbacks;

typedef struct {
    bool gone, failed; // it has said goodbye, or why it ends
    Frame *inbox[2];   // of exchanges: a result, and the failure of the next exchange
    CommBeat beat;     // the last that it sent
} CommPeer;

// The state that the main thread and the watch's thread share. The links form a star around rank 0.
typedef struct {
    // Fixed while the watch runs.
    int rank, num_ranks;
    double beat, silence; // seconds
    double watchdog;      // seconds; 0: off
    char program[64];     // begins a message; may be ""
    bool prints;          // this process prints why the run ends
    int wake[2];          // a pipe: the main thread wakes the watch
    pthread_t thread;
    bool running;
    // Under mutex. `changed` tells of frames that came or left, and of ranks that left.
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    CommWho *who; // num_ranks
    Link *links;  // num_ranks: rank 0 has one to each rank, each other rank has links[0]
    CommPeer *peers;
    struct pollfd *polled; // room for all links and more
    CommBeat main;         // idle and limit are filled in when it is sent
    double since;          // when the main thread got further
    double step_seconds;
    bool slow, resumable;
    bool ending;                   // the main thread leaves: in order, or because of a failure
    char failure[COMM_TEXT_BYTES]; // "": none
    CommCallbacks callbacks;
} CommShared;

typedef struct Comm {
    int rank, num_ranks;
    int local_rank, num_local; // among the ranks of this machine: the GPU to use
    CommShared *shared;        // NULL: one process, or closed
    uint64_t sequence;         // exchanges so far
    bool prints, mpi;
    bool told;                   // this rank's error has been told to the other ranks
    bool broken;                 // an exchange has failed: no later one can succeed
    char known[COMM_TEXT_BYTES]; // the last error that all ranks have
} Comm;

// ---- Names ----

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
// prints. Every other process has its own output and prints. A rank always prints an error of its own.
static inline bool comm_prints(const Comm *comm) { return comm->prints; }

// The name of a rank's machine.
static inline const char *comm_host(const Comm *comm, int rank) {
    return comm->shared != NULL ? comm->shared->who[rank].host : "this machine";
}

// Does no lower rank run on this rank's machine?
static inline bool comm_is_first_of_machine(const Comm *comm, int rank) {
    int first = 0;
    while (strcmp(comm_host(comm, first), comm_host(comm, rank)) != 0) { first++; }
    return first == rank;
}

// Returns the number of machines that the ranks run on.
static inline int comm_num_machines(const Comm *comm) {
    int machines = 0;
    for (int r = 0; r < comm->num_ranks; r++) { machines += comm_is_first_of_machine(comm, r); }
    return machines;
}

static inline CommName comm_name(const Comm *comm, int rank) { return comm_who_name(rank, &comm->shared->who[rank]); }

// ---- Facts for the watch. Cheap enough for every micro-batch ----
// These return only while the run goes on: a watch that ends the process keeps the mutex.

// Locks the state that the watch reads. NULL: one process, which has no watch.
static inline CommShared *comm_lock(Comm *comm) {
    if (comm->shared != NULL) { pthread_mutex_lock(&comm->shared->mutex); }
    return comm->shared;
}

// This rank got further. phase: a short text for messages, such as "step 12" or "saving".
static inline void comm_progress(Comm *comm, const char *phase) {
    CommShared *s = comm_lock(comm);
    if (s == NULL) { return; }
    s->main.count++;
    s->since = seconds_now();
    snprintf(s->main.phase, sizeof(s->main.phase), "%s", phase);
    pthread_mutex_unlock(&s->mutex);
}

// Tells the watch that this rank has got further, to "step 12".
static inline void comm_progress_to(Comm *comm, const char *what, int64_t number) {
    char phase[64];
    if (comm->num_ranks == 1) { return; }
    snprintf(phase, sizeof(phase), "%s %lld", what, (long long)number);
    comm_progress(comm, phase);
}

// The next steps may take long (loading, tokenizing, saving): the watchdog then allows 30 times as long.
static inline void comm_slow(Comm *comm, bool slow) {
    CommShared *s = comm_lock(comm);
    if (s == NULL) { return; }
    if (s->slow != slow) { s->since = seconds_now(); }
    s->slow = slow;
    pthread_mutex_unlock(&s->mutex);
}

// The main thread waits for other ranks (a collective, or a GPU that waits for one): it is then not to blame. Exchanges
// say so themselves. Returns the state before.
static inline bool comm_waits(Comm *comm, bool waits) {
    CommShared *s = comm_lock(comm);
    if (s == NULL) { return false; }
    bool before = s->main.waits != 0;
    if (before != waits) { s->since = seconds_now(); } // a wait counts neither for nor against this rank
    s->main.waits = waits;
    pthread_mutex_unlock(&s->mutex);
    return before;
}

// The longest normal time between two calls of comm_progress (a step). The watchdog allows at least 10 times as long.
static inline void comm_expects(Comm *comm, double seconds) {
    CommShared *s = comm_lock(comm);
    if (s == NULL) { return; }
    s->step_seconds = seconds;
    pthread_mutex_unlock(&s->mutex);
}

// From now on there is a checkpoint: messages say how to go on from it.
static inline void comm_resumable(Comm *comm, bool resumable) {
    CommShared *s = comm_lock(comm);
    if (s == NULL) { return; }
    s->resumable = resumable;
    pthread_mutex_unlock(&s->mutex);
}

// Names the functions of the library that connects the GPUs; NULL: none. The watch calls `healthy` once a second. Two
// bad answers in a row (with a reason) end all ranks. Before the watch ends the process, another thread calls `abort`,
// which has 5 seconds.
static inline void comm_guard(Comm *comm, CommHealthy healthy, CommLastAct abort, void *context) {
    if (comm->shared == NULL) { return; }
    CommCallbacks *c = &comm->shared->callbacks;
    pthread_mutex_lock(&c->mutex);
    c->healthy = healthy, c->abort = abort, c->guarded = context;
    pthread_mutex_unlock(&c->mutex);
}

// That thread calls `note` first, which writes down the words that the watch ends this process with.
static inline void comm_on_failure(Comm *comm, CommLastAct note, void *context) {
    if (comm->shared == NULL) { return; }
    CommCallbacks *c = &comm->shared->callbacks;
    pthread_mutex_lock(&c->mutex);
    c->note = note, c->note_context = context;
    pthread_mutex_unlock(&c->mutex);
}

// Another rank's death may have caused an error (of a collective). Gives the watch some seconds to find it. The watch
// then names the cause and ends the process, and this does not return.
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

// Ends a message with the remedy when there is a checkpoint. A message from another rank may have it already. Needs the
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
// A watch that has found the end of the run ends the process instead, and this does not return.
static inline void comm_end_watch(CommShared *s, const char *failure) {
    pthread_mutex_lock(&s->mutex);
    s->ending = true;
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

// Notes that all ranks have this error, so that comm_fail tells nobody.
static inline void comm_all_know(Comm *comm, const Error *error) {
    snprintf(comm->known, sizeof(comm->known), "%.*s", COMM_TEXT_BYTES - 1, error->text);
}

// Can no exchange succeed any more?
static inline bool comm_is_broken(const Comm *comm) { return comm->broken; }

// This rank has failed: the other ranks end with "rank 3 (host): <error>". Does not repeat an error that all ranks have
// from comm_agree, so call this for every error. Returns within seconds. Does not print. If another rank has failed at
// this moment, and all ranks end with that rank's error, this does not return.
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

// ---- The exchange: each rank brings bytes, and all ranks get the bytes of all. All ranks call the same in one order
// ----

// Sends a frame to ranks [first, end), releases it, and waits until it is sent: a rank that leaves now must not take it
// with it.
static inline void comm_post(CommShared *s, int first, int end, Frame *frame) {
    pthread_mutex_lock(&s->mutex);
    for (int i = first; i < end; i++) { link_send(&s->links[i], frame); }
    frame_release(frame);
    comm_wake(s);
    for (int i = first; i < end; i++) {
        while (s->links[i].fd >= 0 && s->links[i].num_out > 0) { pthread_cond_wait(&s->changed, &s->mutex); }
    }
    pthread_mutex_unlock(&s->mutex);
}

// Waits for a frame of a rank. The wait ends, because the watch ends this process when that rank dies or hangs. NULL
// and false: the rank has left in order.
static inline bool comm_await(Comm *comm, const char *name, int rank, Frame **frame, Error *error) {
    CommShared *s = comm->shared;
    CommPeer *peer = &s->peers[rank];
    pthread_mutex_lock(&s->mutex);
    while (peer->inbox[0] == NULL && !peer->gone) { pthread_cond_wait(&s->changed, &s->mutex); }
    *frame = peer->inbox[0];
    peer->inbox[0] = peer->inbox[1], peer->inbox[1] = NULL;
    pthread_mutex_unlock(&s->mutex);
    return *frame != NULL ||
           fail(error, "%s has ended while the others wait for it in %s", comm_name(comm, rank).text, name);
}

// Does a rank's contribution belong to the exchange that rank 0 is in?
static inline bool comm_check_frame(const Comm *comm, const FrameHead *zero, int rank, FrameHead *head, Error *error) {
    head->name[FRAME_NAME_BYTES - 1] = '\0';
    bool fits = head->type == FRAME_MINE && strcmp(head->name, zero->name) == 0;
    if (fits && head->sequence == zero->sequence && head->size == zero->size) { return true; }
    return fail(error,
                "the ranks do not do the same: %s is in exchange %llu, %s of %lld bytes; %s in exchange %llu, %s of "
                "%lld bytes",
                comm_name(comm, rank).text, (unsigned long long)head->sequence, head->name, (long long)head->size,
                comm_name(comm, 0).text, (unsigned long long)zero->sequence, zero->name, (long long)zero->size);
}

// Appends a rank's contribution to *all.
static inline bool comm_collect(Comm *comm, int rank, Frame **all, Error *error) {
    Frame *frame;
    if (!comm_await(comm, (*all)->head.name, rank, &frame, error)) { return false; }
    bool ok = comm_check_frame(comm, &(*all)->head, rank, &frame->head, error);
    if (ok && !frame_append(all, frame)) { ok = fail(error, "out of memory for what %d ranks exchange", rank + 1); }
    frame_release(frame);
    return ok;
}

// Rank 0's part. *all begins with its own contribution. All ranks get all contributions, or the reason for none.
static inline bool comm_exchange_lead(Comm *comm, Frame **all, Error *error) {
    bool ok = true;
    for (int i = 1; ok && i < comm->num_ranks; i++) { ok = comm_collect(comm, i, all, error); }
    FrameHead failure = frame_head(FRAME_FAILURE, ok ? 0 : (int64_t)strlen(error->text));
    Frame *answer = ok ? *all : frame_create(&failure, error->text);
    if (ok) { answer->head.type = FRAME_RESULT, answer->refs++; }
    comm_post(comm->shared, 1, comm->num_ranks, answer);
    return ok;
}

// The part of every other rank. *all is its own contribution first, and then rank 0's answer.
static inline bool comm_exchange_follow(Comm *comm, const char *name, Frame **all, Error *error) {
    comm_post(comm->shared, 0, 1, *all);
    if (!comm_await(comm, name, 0, all, error)) { return false; }
    if ((*all)->head.type == FRAME_FAILURE) { return fail(error, "%s", (const char *)(*all)->data); }
    return (*all)->head.type == FRAME_RESULT || fail(error, "rank 0 answers %s with something else", name);
}

// An exchange. size must be equal on all ranks; the length of a rank's contribution (`bytes`) need not. *all gets the
// contributions in order of rank, and a NUL after them: the caller releases it. The exchange waits as long as the watch
// finds all ranks alive and well. An error ends all later exchanges too.
static inline bool comm_exchange(Comm *comm, const char *name, int64_t size, const void *mine, int64_t bytes,
                                 Frame **all, Error *error) {
    FrameHead head = frame_head(FRAME_MINE, bytes);
    *all = NULL;
    if (comm->num_ranks > 1 && comm->shared == NULL) { return fail(error, "the connections of this run are closed"); }
    if (comm->broken) { return fail(error, "%s", comm->known); }
    if (comm->told) { return fail(error, "this rank has failed already"); }
    head.sequence = ++comm->sequence, head.size = size;
    snprintf(head.name, sizeof(head.name), "%s", name);
    *all = frame_create(&head, mine);
    if (*all == NULL) { return fail(error, "out of memory for %s of %lld bytes", name, (long long)bytes); }
    if (comm->num_ranks == 1) { return true; }
    bool before = comm_waits(comm, true);
    bool ok = comm->rank == 0 ? comm_exchange_lead(comm, all, error) : comm_exchange_follow(comm, name, all, error);
    comm_waits(comm, before);
    if (ok) { return true; }
    frame_release(*all);
    *all = NULL;
    comm->broken = true;
    snprintf(comm->known, sizeof(comm->known), "%s", error->text);
    return false;
}

#endif // LLMC_COMM_H
