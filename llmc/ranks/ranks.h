// The processes ("ranks") of a run, one for each GPU, as one of them sees them: who they are, and what this rank tells
// its watch. meet.h opens a Comm, star.h exchanges bytes, agree.h builds agreement on the exchange, and watch.h ends
// the run when a rank dies.
//
//   Comm comm;
//   if (!comm_open(&comm, &options, &error)) { ... }               // or comm_single(&comm)
//   for (step ...) { comm_progress(&comm, "step %d", step); ... }
//   ok = save(&error);
//   if (!comm_agree(&comm, ok, &error)) { ... all ranks fail ... }
//   if (!ok) { comm_fail(&comm, &error); }                          // the other ranks end with this error too
//   comm_close(&comm);
//   if (!ok && comm.prints) { print_error(...); }
//
// All functions work with one process too, and then cost nothing. They are for the main thread. A Comm must stay where
// it is while it is open.
#ifndef LLMC_COMM_H
#define LLMC_COMM_H

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "llmc/base/launcher.h"

#define COMM_MAX_RANKS LAUNCHER_MAX_RANKS
#define COMM_HOST_BYTES 72   // a host's name and a NUL; longer names are cut
#define COMM_PHASE_BYTES 64  // the phase of a rank, and a NUL
#define COMM_TEXT_BYTES 8192 // an Error's text
#define COMM_REMEDY "; start again with --resume to go on from the last checkpoint"

typedef enum { COMM_MPI, COMM_TCP, COMM_FOLDER } CommStart;

typedef struct {
    CommStart start;
    int num_ranks;        // 0: the launcher knows it
    int rank;             // -1: the launcher knows it; MPI always knows it better
    int gpus_per_node;    // 0: as many as ranks have one host name
    const char *address;  // TCP: of rank 0, "host", "host:port" or "[IPv6]:port"
    const char *folder;   // FOLDER: all machines see it
    const char *secret;   // TCP: the file with the token; NULL or "": the environment has it, or there is none
    double start_timeout; // seconds until all ranks must have come
    double watchdog;      // seconds without progress until a rank counts as hanging; 0: never
    const char *program;  // begins messages of the watch
    // For tests; 0 or NULL: the default.
    double silence;   // seconds without one until a rank counts as gone
    const char *host; // the name of this machine
} CommOptions;

// Names a process of the run.
typedef struct {
    int32_t pid;
    char host[COMM_HOST_BYTES];
} CommWho;

typedef struct {
    char text[192];
} CommName;

// Says how far a rank's main thread is. The watches send it.
typedef struct {
    int32_t kind, waits; // kind: see watch.h; waits: for other ranks
    uint64_t count;      // how often it got further
    double idle;         // seconds since it got further
    double limit;        // seconds that this may take; 0: for ever
    char phase[COMM_PHASE_BYTES];
} CommBeat;

// Holds what this rank knows of a rank. Rank 0 is the centre of a star: it has two sockets to each rank, and each other
// rank has two to rank 0. The main thread alone uses talk, and the watch alone uses watch. -1: none.
typedef struct {
    CommWho who;
    char place[72]; // in the grid; "": not known yet, or it has no other axes than data parallelism
    int talk, watch;
    double heard;  // when its watch spoke last
    CommBeat beat; // the last that it sent
} CommPeer;

typedef struct Comm {
    int rank, num_ranks;
    int local_rank, num_local; // among the ranks of this machine: the GPU to use
    int num_machines;
    CommOptions options;
    CommPeer *peers; // (num_ranks); NULL: one process
    // Of the main thread.
    bool mpi, broken;            // broken: an exchange has failed, and no later one can succeed
    double start_deadline;       // of the first exchange; 0: it has passed, and the watch guards all others
    char known[COMM_TEXT_BYTES]; // the last error that all ranks have
    bool watched;                // the thread of the watch runs
    pthread_t watch;
    // Shared with the watch, under mutex. A watch that ends the process keeps the mutex.
    pthread_mutex_t mutex;
    CommBeat main; // idle, limit and waits are filled in when it is sent
    double since;  // when the main thread got further
    bool slow, waits;
    bool resumable; // there is a checkpoint: messages say how to go on from it
    // This process prints what all ranks know. The ranks that MPI starts share one output: the first of each machine
    // prints. Every other process has its own output and prints. A rank always prints an error of its own.
    bool prints;
    bool ending;                   // the main thread leaves: in order, or because of a failure
    char failure[COMM_TEXT_BYTES]; // "": none
} Comm;

// ---- Names ----

// Gives "rank 3 (host, pid 12)", or "rank 3" while this rank does not know who that is.
static inline CommName comm_who_name(int rank, const CommWho *who) {
    CommName name;
    snprintf(name.text, sizeof(name.text), who->pid > 0 ? "rank %d (%.*s, pid %d)" : "rank %d", rank,
             COMM_HOST_BYTES - 1, who->host, (int)who->pid);
    return name;
}

static inline CommName comm_name(const Comm *comm, int rank) {
    CommName name = comm_who_name(rank, &comm->peers[rank].who);
    strncat(name.text, comm->peers[rank].place, sizeof(name.text) - strlen(name.text) - 1);
    return name;
}

// ---- Facts for the watch. Cheap enough for every micro-batch ----

// Locks what the watch reads. False: one process, which has no watch.
static inline bool comm_lock(Comm *comm) { return comm->peers != NULL && pthread_mutex_lock(&comm->mutex) == 0; }

// Tells the watch that this rank got further. format: of a short text for messages, such as "step 12" or "saving".
PRINTF_LIKE(2, 3) static inline void comm_progress(Comm *comm, const char *format, ...) {
    va_list arguments;
    if (!comm_lock(comm)) { return; }
    va_start(arguments, format);
    vsnprintf(comm->main.phase, sizeof(comm->main.phase), format, arguments);
    va_end(arguments);
    comm->main.count++;
    comm->since = seconds_now();
    pthread_mutex_unlock(&comm->mutex);
}

// Says where a rank is in the grid, such as " at tp 1", for messages.
static inline void comm_set_place(Comm *comm, int rank, const char *place) {
    if (!comm_lock(comm)) { return; }
    snprintf(comm->peers[rank].place, sizeof(comm->peers[rank].place), "%s", place);
    pthread_mutex_unlock(&comm->mutex);
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

// Gives the watch some seconds to find another rank's death, which may have caused an error (of a collective). The
// watch then names the cause and ends the process, and this does not return.
static inline void comm_await_verdict(const Comm *comm, double seconds) {
    double deadline = seconds_now() + seconds;
    while (comm->watched && seconds_now() < deadline) { poll(NULL, 0, 20); }
}

// ---- Failing and ending ----

// Makes a Comm of one process: no connection, no thread.
static inline void comm_single(Comm *comm) {
    memset(comm, 0, sizeof(*comm));
    comm->num_ranks = comm->num_local = comm->num_machines = 1;
    comm->prints = true;
}

// Has the watch say goodbye, or the failure (""), and waits for its thread to end, which takes seconds at most. A watch
// that has found the end of the run ends the process instead, and this does not return.
static inline void comm_end_watch(Comm *comm, const char *failure) {
    pthread_mutex_lock(&comm->mutex);
    comm->ending = true;
    snprintf(comm->failure, sizeof(comm->failure), "%s", failure);
    pthread_mutex_unlock(&comm->mutex);
    if (comm->watched) { pthread_join(comm->watch, NULL); }
    comm->watched = false;
}

// Notes that all ranks have this error, so that comm_fail tells nobody.
static inline void comm_all_know(Comm *comm, const Error *error) {
    snprintf(comm->known, sizeof(comm->known), "%s", error->text);
}

// Tells the other ranks that this rank has failed: they end with "rank 3 (host, pid 12): <error>". Does not repeat an
// error that all ranks have from comm_agree, so call this for every error. Returns within seconds. Does not print. If
// another rank has failed at this moment, and all ranks end with that rank's error, this does not return.
static inline void comm_fail(Comm *comm, const Error *error) {
    char text[COMM_TEXT_BYTES];
    bool known = strcmp(comm->known, error->text) == 0;
    if (comm->peers == NULL || comm->ending || (known && !comm->broken)) { return; }
    snprintf(text, sizeof(text), "%s%s%.7900s", known ? "" : comm_name(comm, comm->rank).text, known ? "" : ": ",
             error->text);
    comm_end_watch(comm, text);
    comm->prints = comm->prints || !known;
}

#endif // LLMC_COMM_H
