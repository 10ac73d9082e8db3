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
//   if (!ok && comm_prints(&comm)) { print_error(...); }
//
// All functions work with one process too, and then cost nothing. They are for the main thread. A Comm must stay where
// it is while it is open.
#ifndef LLMC_COMM_H
#define LLMC_COMM_H

#include <pthread.h>

#include "llmc/base/launcher.h"
#include "llmc/base/text.h"
#include "llmc/ranks/transport.h"

#define COMM_MAX_RANKS LAUNCHER_MAX_RANKS
#define COMM_HOST_BYTES 72       // a host's name and a NUL; longer names are cut
#define COMM_PHASE_BYTES 64      // the phase of a rank, and a NUL
#define COMM_TEXT_BYTES 8192     // an Error's text
#define COMM_GOODBYE_SECONDS 2.0 // for the other ranks to see that this rank leaves
#define COMM_TELL_SECONDS 1.0    // for the other ranks to see that the run ends

typedef enum { COMM_MPI, COMM_TCP, COMM_FOLDER } CommStart;

typedef struct {
    CommStart start;
    int num_ranks;        // 0: the launcher knows it
    int rank;             // -1: the launcher knows it; MPI always knows it better
    int gpus_per_node;    // 0: as many as ranks have one host name
    const char *address;  // TCP: of rank 0, "host", "host:port" or "[IPv6]:port"
    const char *folder;   // FOLDER: all machines see it
    const char *secret;   // TCP: the file with the secret; NULL or "": the environment has it, or there is none
    double start_timeout; // seconds until all ranks must have come
    double watchdog;      // seconds without progress until a rank counts as hanging; 0: never
    const char *program;  // begins messages of the watch; NULL: ""
    // For tests; 0 or NULL: the default.
    double beat;      // seconds between two signs of life
    double silence;   // seconds without one until a rank counts as gone
    const char *host; // the name of this machine
} CommOptions;

// Names a process of the run.
typedef struct {
    int32_t pid;
    char host[COMM_HOST_BYTES];
} CommWho;

typedef struct {
    char text[128];
} CommName;

// Says how far a rank's main thread is.
typedef struct {
    double idle;    // seconds since it got further
    double limit;   // seconds that this may take; 0: for ever
    uint64_t count; // how often it got further
    int32_t waits;  // for other ranks
    char phase[COMM_PHASE_BYTES];
} CommBeat;

typedef bool (*CommHealthy)(void *context, char *reason, size_t size);
typedef void (*CommLastAct)(void *context, const char *words);

// Holds the functions that the watch calls. It holds the mutex during a call: a function that is replaced runs no more.
typedef struct {
    pthread_mutex_t mutex;
    CommHealthy healthy;
    CommLastAct abort;
    void *guarded;
} CommCallbacks;

// Holds the thread of the watch.
typedef struct {
    bool runs;
    pthread_t thread;
    int wake[2]; // a pipe: the main thread wakes it
} CommThread;

// Holds what this rank knows of a rank.
typedef struct {
    CommWho who;
    bool gone, failed; // it has said goodbye, or why it ends
    Frame *inbox[2];   // of exchanges: a result, and the failure of the next exchange
    CommBeat beat;     // the last that it sent
} CommPeer;

typedef struct Comm {
    int rank, num_ranks;
    int local_rank, num_local; // among the ranks of this machine: the GPU to use
    CommOptions options;
    // Of the main thread.
    bool mpi, broken;            // broken: an exchange has failed, and no later one can succeed
    uint64_t sequence;           // exchanges so far
    double start_deadline;       // of the first exchange; 0: it has passed, and the watch guards all others
    char known[COMM_TEXT_BYTES]; // the last error that all ranks have
    CommThread watch;
    CommCallbacks callbacks;
    // Shared with the watch, under mutex. `changed` tells of frames that came or left, and of ranks that left.
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Link *links; // num_ranks, a star: rank 0 has one to each rank, each other rank has links[0]. NULL: one process
    CommPeer *peers;
    CommBeat main; // idle, limit and waits are filled in when it is sent
    double since;  // when the main thread got further
    double step_seconds;
    bool slow, waits, resumable;
    bool prints;                   // this process prints what all ranks know
    bool ending;                   // the main thread leaves: in order, or because of a failure
    char failure[COMM_TEXT_BYTES]; // "": none
} Comm;

// ---- Names ----

// Gives "rank 3 (host, pid 12)".
static inline CommName comm_process_name(int rank, const CommWho *who) {
    CommName name;
    snprintf(name.text, sizeof(name.text), "rank %d (%.*s, pid %d)", rank, COMM_HOST_BYTES - 1, who->host,
             (int)who->pid);
    return name;
}

// Returns the name of a rank's machine.
static inline const char *comm_host(const Comm *comm, int rank) {
    return comm->peers != NULL ? comm->peers[rank].who.host : "this machine";
}

// Gives "rank 3 (host)".
static inline CommName comm_name(const Comm *comm, int rank) {
    CommName name;
    snprintf(name.text, sizeof(name.text), "rank %d (%.*s)", rank, COMM_HOST_BYTES - 1, comm_host(comm, rank));
    return name;
}

// Tells whether this process prints what all ranks know. The ranks that MPI starts share one output: the first of each
// machine prints. Every other process has its own output and prints. A rank always prints an error of its own.
static inline bool comm_prints(const Comm *comm) { return comm->prints; }

// Tells whether no lower rank runs on this rank's machine.
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

// ---- Facts for the watch. Cheap enough for every micro-batch ----
// These return only while the run goes on: a watch that ends the process keeps the mutex.

// Locks what the watch reads. False: one process, which has no watch.
static inline bool comm_lock(Comm *comm) {
    if (comm->links == NULL) { return false; }
    pthread_mutex_lock(&comm->mutex);
    return true;
}

// Tells the watch that this rank got further. phase: a short text for messages, such as "step 12" or "saving".
static inline void comm_progress(Comm *comm, const char *phase) {
    if (!comm_lock(comm)) { return; }
    comm->main.count++;
    comm->since = seconds_now();
    snprintf(comm->main.phase, sizeof(comm->main.phase), "%s", phase);
    pthread_mutex_unlock(&comm->mutex);
}

// Tells the watch that this rank got further, to "step 12".
static inline void comm_progress_to(Comm *comm, const char *what, int64_t number) {
    char phase[COMM_PHASE_BYTES];
    if (comm->num_ranks == 1) { return; }
    snprintf(phase, sizeof(phase), "%s %lld", what, (long long)number);
    comm_progress(comm, phase);
}

// Changes what the main thread does, and returns what it did before. Time then counts from here: a slow phase or a wait
// counts neither for nor against this rank.
static inline bool comm_change(Comm *comm, bool *fact, bool value) {
    if (!comm_lock(comm)) { return false; }
    bool before = *fact;
    if (before != value) { comm->since = seconds_now(); }
    *fact = value;
    pthread_mutex_unlock(&comm->mutex);
    return before;
}

// Tells the watch that the next steps may take long (loading, tokenizing, saving): the watchdog then allows 30 times as
// long.
static inline void comm_slow(Comm *comm, bool slow) { comm_change(comm, &comm->slow, slow); }

// Tells the watch that the main thread waits for other ranks (a collective, or a GPU that waits for one): it is then
// not to blame. Exchanges say so themselves. Returns the state before.
static inline bool comm_waits(Comm *comm, bool waits) { return comm_change(comm, &comm->waits, waits); }

// Tells the watch that there is a checkpoint: messages say how to go on from it.
static inline void comm_resumable(Comm *comm, bool resumable) { comm_change(comm, &comm->resumable, resumable); }

// Tells the watch the longest normal time between two calls of comm_progress (a step). The watchdog allows at least 10
// times as long.
static inline void comm_expects(Comm *comm, double seconds) {
    if (!comm_lock(comm)) { return; }
    comm->step_seconds = seconds;
    pthread_mutex_unlock(&comm->mutex);
}

// Names the functions of the library that connects the GPUs; NULL: none. The watch calls `healthy` once a second. Two
// bad answers in a row (with a reason) end all ranks. Before the watch ends the process, another thread calls `abort`,
// which has 5 seconds.
static inline void comm_guard(Comm *comm, CommHealthy healthy, CommLastAct abort, void *context) {
    CommCallbacks *c = &comm->callbacks;
    if (comm->links == NULL) { return; }
    pthread_mutex_lock(&c->mutex);
    c->healthy = healthy, c->abort = abort, c->guarded = context;
    pthread_mutex_unlock(&c->mutex);
}

// Gives the watch some seconds to find another rank's death, which may have caused an error (of a collective). The
// watch then names the cause and ends the process, and this does not return.
static inline void comm_await_verdict(const Comm *comm, double seconds) {
    double deadline = seconds_now() + seconds;
    while (comm->watch.runs && seconds_now() < deadline) { poll(NULL, 0, socket_milliseconds(deadline, 100)); }
}

// ---- Failing and ending ----

// Makes a Comm of one process: no connection, no thread.
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
static inline void comm_add_remedy(const Comm *comm, char *text) {
    const char *remedy = "; start again with --resume to go on from the last checkpoint";
    if (comm->resumable && strstr(text, remedy) == NULL) { comm_append(text, remedy); }
}

static inline void comm_wake(Comm *comm) {
    char byte = 0;
    ssize_t n = write(comm->watch.wake[1], &byte, 1); // a full pipe wakes as well
    (void)n;
}

// Has the watch say goodbye, or the failure (""), and waits for its thread to end, which takes seconds at most. A watch
// that has found the end of the run ends the process instead, and this does not return.
static inline void comm_end_watch(Comm *comm, const char *failure) {
    pthread_mutex_lock(&comm->mutex);
    comm->ending = true;
    snprintf(comm->failure, sizeof(comm->failure), "%s", failure);
    if (failure[0] != '\0') { comm_add_remedy(comm, comm->failure); }
    pthread_mutex_unlock(&comm->mutex);
    if (!comm->watch.runs) { return; }
    comm_wake(comm);
    pthread_join(comm->watch.thread, NULL);
    comm->watch.runs = false;
}

// Notes that all ranks have this error, so that comm_fail tells nobody.
static inline void comm_all_know(Comm *comm, const Error *error) {
    snprintf(comm->known, sizeof(comm->known), "%.*s", COMM_TEXT_BYTES - 1, error->text);
}

// Tells whether no exchange can succeed any more.
static inline bool comm_is_broken(const Comm *comm) { return comm->broken; }

// Tells the other ranks that this rank has failed: they end with "rank 3 (host): <error>". Does not repeat an error
// that all ranks have from comm_agree, so call this for every error. Returns within seconds. Does not print. If another
// rank has failed at this moment, and all ranks end with that rank's error, this does not return.
static inline void comm_fail(Comm *comm, const Error *error) {
    char text[COMM_TEXT_BYTES] = "";
    bool known = strcmp(comm->known, error->text) == 0;
    if (comm->links == NULL || comm->ending || (known && !comm->broken)) { return; }
    if (!known) { comm_append(text, comm_name(comm, comm->rank).text), comm_append(text, ": "); }
    comm_append(text, error->text);
    comm_end_watch(comm, text);
    comm->prints = comm->prints || !known;
}

// ---- The exchange: each rank brings bytes, and all ranks get the bytes of all. All ranks call the same in one order
// ----

// Sends a frame over some links and waits until it is sent: a rank that leaves now must not take it with it.
static inline void comm_post(Comm *comm, Link *links, int count, const FrameHead *head, const void *data) {
    pthread_mutex_lock(&comm->mutex);
    for (int i = 0; i < count; i++) { link_send(&links[i], head, data); }
    comm_wake(comm);
    for (int i = 0; i < count; i++) {
        while (link_waits(&links[i])) { pthread_cond_wait(&comm->changed, &comm->mutex); }
    }
    pthread_mutex_unlock(&comm->mutex);
}

// Waits for a frame of a rank. The wait ends, because the watch ends this process when that rank dies or hangs, and the
// start has a limit. NULL: the rank has left in order, or the limit has come.
static inline Frame *comm_await(Comm *comm, const char *name, int rank, Error *error) {
    CommPeer *peer = &comm->peers[rank];
    pthread_mutex_lock(&comm->mutex);
    bool late = false; // the watch signals in each of its rounds
    while (peer->inbox[0] == NULL && !peer->gone && !late) {
        pthread_cond_wait(&comm->changed, &comm->mutex);
        late = comm->start_deadline > 0.0 && seconds_now() > comm->start_deadline;
    }
    Frame *frame = peer->inbox[0];
    peer->inbox[0] = peer->inbox[1], peer->inbox[1] = NULL;
    pthread_mutex_unlock(&comm->mutex);
    if (frame == NULL && late) {
        fail(error, "%s has come, but does not begin the run within %g s (--start-timeout)", comm_name(comm, rank).text,
             comm->options.start_timeout);
    } else if (frame == NULL) {
        fail(error, "%s has ended while the others wait for it in %s", comm_name(comm, rank).text, name);
    }
    return frame;
}

// Checks that a rank's contribution belongs to the exchange that rank 0 is in.
static inline bool comm_check_frame(const Comm *comm, const FrameHead *zero, int rank, FrameHead *head, Error *error) {
    head->name[FRAME_NAME_BYTES - 1] = '\0';
    bool one_name = strcmp(head->name, zero->name) == 0;
    if (one_name && head->sequence == zero->sequence && head->size == zero->size) { return true; }
    return fail(error,
                "the ranks do not do the same: %s is in exchange %llu, %s of %lld bytes; %s in exchange %llu, %s of "
                "%lld bytes",
                comm_name(comm, rank).text, (unsigned long long)head->sequence, head->name, (long long)head->size,
                comm_name(comm, 0).text, (unsigned long long)zero->sequence, zero->name, (long long)zero->size);
}

// Does rank 0's part. mine: the head of its own contribution, with which *all begins. All ranks get all contributions,
// or the reason for none.
static inline bool comm_exchange_lead(Comm *comm, const FrameHead *mine, Text *all, Error *error) {
    bool ok = true;
    for (int rank = 1; ok && rank < comm->num_ranks; rank++) {
        Frame *frame = comm_await(comm, mine->name, rank, error);
        ok = frame != NULL && comm_check_frame(comm, mine, rank, &frame->head, error);
        if (ok) { text_bytes(all, frame->data, (size_t)frame->head.bytes); }
        if (all->failed) { ok = fail(error, "out of memory for what %d ranks exchange", rank + 1); }
        free(frame);
    }
    FrameHead head =
        ok ? frame_head(FRAME_RESULT, (int64_t)all->used) : frame_head(FRAME_FAILURE, (int64_t)strlen(error->text));
    comm_post(comm, comm->links + 1, comm->num_ranks - 1, &head, ok ? all->data : error->text);
    return ok;
}

// Does the part of every other rank.
static inline bool comm_exchange_follow(Comm *comm, const FrameHead *mine, const void *data, Text *all, Error *error) {
    comm_post(comm, comm->links, 1, mine, data);
    Frame *answer = comm_await(comm, mine->name, 0, error);
    if (answer == NULL) { return false; }
    bool ok = answer->head.type == FRAME_RESULT; // or else a FRAME_FAILURE
    if (ok) { text_bytes(all, answer->data, (size_t)answer->head.bytes); }
    if (!ok) { fail(error, "%s", frame_text(answer)); }
    free(answer);
    return ok;
}

// Brings `mine` (bytes), and gets what all ranks bring. size must be equal on all ranks; the length of a rank's
// contribution (`bytes`) need not. *all gets the contributions in order of rank, and is empty after a failure; the
// caller frees it. The exchange waits as long as the watch finds all ranks alive and well. An error ends all later
// exchanges too.
static inline bool comm_exchange(Comm *comm, const char *name, int64_t size, const void *mine, int64_t bytes, Text *all,
                                 Error *error) {
    FrameHead head = frame_head(FRAME_MINE, bytes);
    bool ok = true, lead = comm->rank == 0;
    memset(all, 0, sizeof(*all));
    if (comm->num_ranks > 1 && comm->links == NULL) { return fail(error, "the connections of this run are closed"); }
    if (comm->broken) { return fail(error, "%s", comm->known); }
    if (comm->ending) { return fail(error, "this rank has failed already"); }
    head.sequence = ++comm->sequence, head.size = size;
    snprintf(head.name, sizeof(head.name), "%s", name);
    if (lead) { text_bytes(all, (const char *)mine, (size_t)bytes); }
    if (comm->num_ranks > 1) {
        bool before = comm_waits(comm, true);
        ok = lead ? comm_exchange_lead(comm, &head, all, error) : comm_exchange_follow(comm, &head, mine, all, error);
        comm_waits(comm, before);
    }
    if (ok && all->failed) { ok = fail(error, "out of memory for %s of %lld bytes", name, (long long)bytes); }
    if (ok) { return true; }
    text_free(all);
    comm->broken = true;
    comm_all_know(comm, error);
    return false;
}

#endif // LLMC_COMM_H
