// The processes ("ranks") of a run, one for each GPU, and what they say to each other besides gradients: who is there,
// agreement at the start and on errors, small exchanges, and a watch that ends all when one dies or hangs (how:
// ranks_watch.h; how they find each other: ranks_start.h). Plain C and TCP; gradients go another way (NCCL).
//
//   Comm comm;
//   if (!comm_open(&comm, &options, &error)) { ... }               // or comm_single(&comm)
//   for (step ...) { comm_progress(&comm, "step 12"); ... }
//   ok = save(&error);
//   if (!comm_agree(&comm, ok, &error)) { ... all ranks fail ... }
//   if (!ok) { comm_fail(&comm, &error); }                          // whatever the error: others end with it too
//   comm_close(&comm);
//   if (!ok && comm_prints(&comm)) { fprintf(stderr, ...); }
//
// All functions work with one process too, and then cost nothing. They are for the main thread. A Comm must stay where
// it is while it is open.
#ifndef LLMC_COMM_H
#define LLMC_COMM_H

#include "llmc/ranks/ranks_start.h"

typedef struct Comm {
    int rank, num_ranks;
    int local_rank, num_local; // among the ranks of this machine: the GPU to use

    // Its own.
    CommWatch *watch;  // NULL: one process, or closed
    int *sockets;      // for exchanges: rank 0 has one of each other rank, these have [0]; else -1
    uint64_t sequence; // exchanges so far
    bool prints, mpi;
    bool told;                   // this rank's error has been told to the others
    bool broken;                 // an exchange has failed: no other one can succeed
    char known[COMM_TEXT_BYTES]; // the error that comm_agree or an exchange gave last
} Comm;

// ---- Opening ----

// One process: no connection, no thread.
static inline void comm_single(Comm *comm) {
    memset(comm, 0, sizeof(*comm));
    comm->num_ranks = comm->num_local = 1;
    comm->prints = true;
}

// Does this process print what all ranks know? Started by MPI, all share one output, and the first of each machine
// prints; otherwise, each process has its own. Errors of this rank alone are always printed by it.
static inline bool comm_prints(const Comm *comm) { return comm->prints; }

// The name of the machine of a rank.
static inline const char *comm_host(const Comm *comm, int rank) {
    return comm->watch != NULL ? comm->watch->who[rank].host : "this machine";
}

// Writes "rank 3 (host)" into text (COMM_NAME_BYTES).
static inline const char *comm_name(const Comm *comm, int rank, char *text) {
    snprintf(text, COMM_NAME_BYTES, "rank %d (%.*s)", rank, COMM_HOST_BYTES - 1, comm_host(comm, rank));
    return text;
}

static inline void comm_close_sockets(Comm *comm, double seconds) {
    double deadline = seconds_now() + seconds;
    for (int pass = 0; pass < 2 && comm->sockets != NULL; pass++) {
        for (int i = 0; i < comm->num_ranks; i++) {
            if (comm->sockets[i] < 0) { continue; }
            if (pass == 0) {
                shutdown(comm->sockets[i], SHUT_WR);
            } else {
                socket_close_gently(&comm->sockets[i], deadline);
            }
        }
    }
    free(comm->sockets);
    comm->sockets = NULL;
}

// Ends this rank's part in order: says goodbye, so that the others can go on without it. After comm_fail, or when an
// exchange has failed, the others are told that instead. Ends within seconds, but for MPI, which waits for all ranks
// (under the watch). Harmless on a Comm of zeros, closed already, or that failed to open.
static inline void comm_close(Comm *comm) {
    bool in_order = !comm->told && !comm->broken;
    if (comm->mpi && in_order) {
        if (comm->watch != NULL) { watch_progress(comm->watch, "the end"), watch_set_waits(comm->watch, true); }
        comm_mpi_end();
    }
    if (comm->watch != NULL) {
        if (comm->broken && !comm->told) {
            watch_fail(comm->watch, comm->known);
        } else if (!comm->told) {
            watch_close(comm->watch);
        }
        comm_close_sockets(comm, comm->rank == 0 ? WATCH_TELL_SECONDS : 0.0);
        watch_free(comm->watch);
    }
    comm->watch = NULL;
    // mpirun ends all processes as soon as one has failed: those that print must come first.
    if (comm->mpi && comm->known[0] != '\0' && !comm->prints) { poll(NULL, 0, 200); }
    comm->mpi = false;
}

// A start by MPI: as many processes as the launcher has started.
static inline bool comm_find_place_mpi(const CommOptions *o, const CommLauncher *launcher, int *rank, int *num_ranks,
                                       Error *error) {
    bool several = launcher->name != NULL && launcher->size != 1; // -1: perhaps
    if (several && o->num_ranks > 0 && launcher->size > 0 && launcher->size != o->num_ranks) {
        return fail(error, "--num-processes is %d, but %s has started %d processes", o->num_ranks, launcher->name,
                    launcher->size);
    }
    if (several) { return comm_mpi_begin(launcher, rank, num_ranks, error); }
    *rank = 0, *num_ranks = 1;
    return o->num_ranks <= 1 ||
           fail(error,
                "--num-processes is %d, but neither mpirun nor srun has started several processes: start with "
                "mpirun -np %d, or add --nccl-init tcp or fs",
                o->num_ranks, o->num_ranks);
}

// How many processes, and which is this one? True with *num_ranks 1 for one process.
static inline bool comm_find_place(const CommOptions *o, const CommLauncher *launcher, int *rank, int *num_ranks,
                                   Error *error) {
    const char *how = o->start == COMM_TCP ? "tcp" : "fs";
    if (o->start == COMM_MPI) { return comm_find_place_mpi(o, launcher, rank, num_ranks, error); }
    *num_ranks = o->num_ranks > 0 ? o->num_ranks : launcher->size;
    *rank = o->rank >= 0 ? o->rank : launcher->rank;
    if (*num_ranks <= 0) { return fail(error, "--nccl-init %s: --num-processes is missing", how); }
    if (*rank < 0 && *num_ranks > 1) { return fail(error, "--nccl-init %s: --process-rank is missing", how); }
    *rank = *rank < 0 ? 0 : *rank;
    return *rank < *num_ranks || fail(error, "--process-rank is %d, but must be from 0 to %d: --num-processes is %d",
                                      *rank, *num_ranks - 1, *num_ranks);
}

// The rank among those of its machine, and how many these are.
static inline void comm_find_local(Comm *comm, int gpus_per_node) {
    comm->local_rank = comm->num_local = 0;
    for (int i = 0; i < comm->num_ranks; i++) {
        bool here = gpus_per_node > 0 ? i / gpus_per_node == comm->rank / gpus_per_node
                                      : strcmp(comm_host(comm, i), comm_host(comm, comm->rank)) == 0;
        if (here && i < comm->rank) { comm->local_rank++; }
        if (here) { comm->num_local++; }
    }
}

static inline void comm_find_printer(Comm *comm, CommStart start) {
    comm->prints = true;
    for (int i = 0; start == COMM_MPI && i < comm->rank; i++) {
        if (strcmp(comm_host(comm, i), comm_host(comm, comm->rank)) == 0) { comm->prints = false; }
    }
}

// Memory for num_ranks processes, without connections.
static inline bool comm_allocate(Comm *comm, const CommOptions *options, Error *error) {
    if (comm->num_ranks > COMM_MAX_RANKS || !socket_allow_open_files(2 * (int64_t)comm->num_ranks + 256)) {
        return fail(error, "%d processes are more than this system has connections for (ulimit -n)", comm->num_ranks);
    }
    comm->watch = watch_create(comm->rank, comm->num_ranks);
    comm->sockets = (int *)malloc((size_t)comm->num_ranks * sizeof(int));
    if (comm->watch == NULL || comm->sockets == NULL) { return fail(error, "out of memory"); }
    for (int i = 0; i < comm->num_ranks; i++) { comm->sockets[i] = -1; }
    comm->watch->beat = options->beat > 0.0 ? options->beat : 0.5;
    comm->watch->silence = options->silence > 0.0 ? options->silence : 20.0;
    comm->watch->watchdog = options->watchdog;
    if (options->program != NULL) {
        snprintf(comm->watch->program, sizeof(comm->watch->program), "%s", options->program);
    }
    return true;
}

// Finds the others, and starts the watch.
static inline bool comm_connect(Comm *comm, const CommOptions *options, bool *told, Error *error) {
    CommStartup s;
    memset(&s, 0, sizeof(s));
    if (!comm_allocate(comm, options, error)) { return false; }
    s.options = options;
    s.rank = comm->rank, s.num_ranks = comm->num_ranks;
    s.watch = comm->watch, s.sockets = comm->sockets;
    s.deadline = seconds_now() + options->start_timeout;
    comm_who_am_i(&s.me, options->host);
    bool ok = options->start == COMM_MPI   ? comm_start_mpi(&s, error)
              : options->start == COMM_TCP ? comm_start_tcp(&s, error)
                                           : comm_start_folder(&s, error);
    *told = s.told;
    if (!ok) { return false; }
    for (int i = 0; i < comm->num_ranks; i++) { comm->watch->who[i].host[COMM_HOST_BYTES - 1] = '\0'; }
    comm_find_local(comm, options->gpus_per_node);
    comm_find_printer(comm, options->start);
    comm->watch->prints = comm->prints;
    return watch_start(comm->watch, error);
}

static inline void comm_free(Comm *comm) {
    comm_close_sockets(comm, 0.0);
    if (comm->watch != NULL) { watch_free(comm->watch); }
    comm->watch = NULL;
}

// Finds out how many processes there are and connects them. One process, of which there is no sign that there should
// be more, is as after comm_single. The error is one line: an option, the ranks concerned, what to do. It comes at once
// on all ranks that could be reached, and after start_timeout (and some seconds) at the latest.
static inline bool comm_open(Comm *comm, const CommOptions *options, Error *error) {
    CommLauncher launcher = comm_find_launcher();
    comm_single(comm);
    // Until the machines' names are known: what all processes of a launcher find wrong, the first of each tells.
    bool first = launcher.local_rank >= 0 ? launcher.local_rank == 0 : launcher.rank <= 0;
    bool told = false;
    int rank = 0, num_ranks = 1;
    bool ok = comm_find_place(options, &launcher, &rank, &num_ranks, error);
    if (!ok) {
        comm->prints = first || options->start != COMM_MPI;
        return false;
    }
    comm->mpi = options->start == COMM_MPI && launcher.name != NULL && launcher.size != 1;
    comm->rank = rank, comm->num_ranks = num_ranks;
    if (num_ranks == 1) { return true; }
    if (comm_connect(comm, options, &told, error)) { return true; }
    comm->prints = first || options->start != COMM_MPI || !told;
    comm->mpi = false; // MPI_Finalize would wait for ranks that may never come
    comm_free(comm);
    return false;
}

// ---- What the watch wants to know. Cheap enough for every micro-batch ----

// This rank got further. phase: a short text for messages, such as "step 12" or "saving".
static inline void comm_progress(Comm *comm, const char *phase) {
    if (comm->watch != NULL) { watch_progress(comm->watch, phase); }
}

// What follows may take long (loading, tokenizing, saving): the watchdog then allows 30 times as long.
static inline void comm_slow(Comm *comm, bool slow) {
    if (comm->watch != NULL) { watch_set_slow(comm->watch, slow); }
}

// The main thread waits for other ranks (a collective, or the GPU that waits for one), so that it is not to blame.
// Exchanges say so themselves.
static inline void comm_waits(Comm *comm, bool waits) {
    if (comm->watch != NULL) { watch_set_waits(comm->watch, waits); }
}

// The longest time between two calls of comm_progress that is normal (a step). The watchdog allows at least 10 times
// as long.
static inline void comm_expects(Comm *comm, double seconds) {
    if (comm->watch == NULL) { return; }
    pthread_mutex_lock(&comm->watch->mutex);
    comm->watch->step_seconds = seconds;
    pthread_mutex_unlock(&comm->watch->mutex);
}

// From now on there is a checkpoint: messages say how to go on from it.
static inline void comm_resumable(Comm *comm, bool resumable) {
    if (comm->watch == NULL) { return; }
    pthread_mutex_lock(&comm->watch->mutex);
    comm->watch->resumable = resumable;
    pthread_mutex_unlock(&comm->watch->mutex);
}

// Called (by another thread, for 5 seconds at most) before the watch ends this process: ncclCommAbort. NULL: nothing.
// When this returns, the function before is not running, and will not be called.
static inline void comm_on_end(Comm *comm, CommAtEnd function, void *context) {
    if (comm->watch == NULL) { return; }
    pthread_mutex_lock(&comm->watch->callbacks);
    comm->watch->at_end = function, comm->watch->at_end_context = context;
    pthread_mutex_unlock(&comm->watch->callbacks);
}

// Called likewise, before that, with the words that the watch ends this process with: to write them down.
static inline void comm_on_failure(Comm *comm, CommNote function, void *context) {
    if (comm->watch == NULL) { return; }
    pthread_mutex_lock(&comm->watch->callbacks);
    comm->watch->note = function, comm->watch->note_context = context;
    pthread_mutex_unlock(&comm->watch->callbacks);
}

// Asked by the watch once a second; not healthy (with a reason) twice in a row ends all ranks. NULL: nothing. When this
// returns, the function before is not running, and will not be called.
static inline void comm_poll(Comm *comm, CommHealthy healthy, void *context) {
    if (comm->watch == NULL) { return; }
    pthread_mutex_lock(&comm->watch->callbacks);
    comm->watch->healthy = healthy, comm->watch->healthy_context = context;
    pthread_mutex_unlock(&comm->watch->callbacks);
}

// After an error that may be the consequence of another rank's death (a collective that failed): gives the watch some
// seconds to find that out. It then names the cause and ends the process, and this does not return.
static inline void comm_await_verdict(const Comm *comm, double seconds) {
    if (comm->watch == NULL || !comm->watch->running) { return; }
    double deadline = seconds_now() + seconds;
    while (seconds_now() < deadline) { poll(NULL, 0, socket_milliseconds(deadline, 100)); }
}

// This rank has failed: the others end with "rank 3 (host): <error>". An error that all ranks have already, from
// comm_agree, is not told again; so this can be called for every error. Returns within seconds. Does not print; or, if
// another rank has failed at the same time and all end with its error, does not return.
static inline void comm_fail(Comm *comm, const Error *error) {
    if (comm->watch == NULL || comm->told) { return; }
    bool same = strcmp(comm->known, error->text) == 0;
    if (same && !comm->broken) { return; }
    char text[COMM_TEXT_BYTES] = "";
    if (!same) { comm_name(comm, comm->rank, text), watch_append(text, ": "); }
    watch_append(text, error->text);
    if (!same) { comm->prints = true; }
    watch_fail(comm->watch, text);
    comm->told = true;
}

// ---- Exchanges: all ranks call the same ones in the same order ----

typedef enum {
    EXCHANGE_GATHER = 1,
    EXCHANGE_BROADCAST,
    EXCHANGE_ANY,
    EXCHANGE_SUM,
    EXCHANGE_AGREE, // contributes an error's text, or nothing
    EXCHANGE_FACTS  // the same; the error names its ranks itself
} ExchangeKind;

// What an exchange sends and how rank 0 puts it together. All ranks send `bytes` bytes, or up to so many where they are
// texts; `size` is only compared; `take` gets those of each rank in order of rank, rank 0's first; the result goes to
// all.
typedef struct {
    ExchangeKind kind;
    int64_t size;
    const void *mine;
    int64_t bytes;
    bool text;
    void (*take)(void *context, int rank, const uint8_t *data, int64_t bytes); // may be NULL
    void *context;
    void *result;
    int64_t result_bytes; // at most, for a text
} Exchange;

static inline const char *comm_exchange_name(int kind) {
    static const char *const names[] = {"",      "an all-gather", "a broadcast",          "a question to all",
                                        "a sum", "an agreement",  "a comparison of facts"};
    return kind >= EXCHANGE_GATHER && kind <= EXCHANGE_FACTS ? names[kind] : "something unknown";
}

// Remembers an error that ends all exchanges. Always false.
static inline bool comm_break(Comm *comm, const Error *error) {
    comm->broken = true;
    snprintf(comm->known, sizeof(comm->known), "%.*s", COMM_TEXT_BYTES - 1, error->text);
    return false;
}

// The connection for exchanges with a rank is over. When that rank is dead, the watch knows it within moments and ends
// this process; so wait for the watch. Otherwise it has left in order.
static inline bool comm_fail_lost(Comm *comm, int rank, ExchangeKind kind, Error *error) {
    char name[COMM_NAME_BYTES];
    double deadline = seconds_now() + comm->watch->silence + 2.0 * comm->watch->beat + 1.0;
    while (!watch_is_gone(comm->watch, rank) && seconds_now() < deadline) { poll(NULL, 0, 5); }
    comm_name(comm, rank, name);
    if (watch_is_gone(comm->watch, rank)) {
        return fail(error, "%s has ended while the others wait for it in %s", name, comm_exchange_name((int)kind));
    }
    comm->prints = true;
    return fail(error, "the connection to %s is lost", name);
}

static inline CommFrame comm_exchange_frame(const Comm *comm, FrameType type, const Exchange *x, int64_t bytes) {
    CommFrame frame = comm_frame(type, bytes);
    frame.kind = (uint16_t)x->kind;
    frame.size = x->size;
    frame.sequence = comm->sequence;
    return frame;
}

// Does a rank's frame belong to the exchange that rank 0 is in?
static inline bool comm_check_frame(const Comm *comm, const Exchange *x, int rank, const CommFrame *frame,
                                    Error *error) {
    bool size_fits = x->text ? frame->bytes >= 0 && frame->bytes <= x->bytes : frame->bytes == x->bytes;
    bool fits = frame->magic == COMM_FRAME_MAGIC && frame->type == FRAME_MINE && frame->kind == x->kind;
    if (fits && frame->sequence == comm->sequence && frame->size == x->size && size_fits) { return true; }
    char name[COMM_NAME_BYTES], zero[COMM_NAME_BYTES];
    return fail(error,
                "the ranks do not do the same: %s is in exchange %llu, %s of %lld bytes; %s in exchange %llu, %s of "
                "%lld bytes",
                comm_name(comm, rank, name), (unsigned long long)frame->sequence, comm_exchange_name(frame->kind),
                (long long)frame->size, comm_name(comm, 0, zero), (unsigned long long)comm->sequence,
                comm_exchange_name((int)x->kind), (long long)x->size);
}

// Rank 0: receives the contribution of a rank; data: x->bytes + 1 of scratch memory.
static inline bool comm_exchange_collect(Comm *comm, const Exchange *x, int rank, uint8_t *data, Error *error) {
    CommFrame frame;
    int fd = comm->sockets[rank];
    if (socket_receive(fd, &frame, sizeof(frame), SOCKET_FOREVER) != SOCKET_DONE) {
        return comm_fail_lost(comm, rank, x->kind, error);
    }
    if (!comm_check_frame(comm, x, rank, &frame, error)) { return false; }
    if (socket_receive(fd, data, (size_t)frame.bytes, SOCKET_FOREVER) != SOCKET_DONE) {
        return comm_fail_lost(comm, rank, x->kind, error);
    }
    data[frame.bytes] = '\0'; // of a text
    if (x->take != NULL) { x->take(x->context, rank, data, frame.bytes); }
    return true;
}

static inline int64_t comm_result_bytes(const Exchange *x) {
    return x->text ? (int64_t)strlen((const char *)x->result) + 1 : x->result_bytes;
}

static inline bool comm_exchange_lead(Comm *comm, const Exchange *x, Error *error) {
    uint8_t *data = (uint8_t *)malloc((size_t)x->bytes + 1);
    if (x->take != NULL) { x->take(x->context, 0, (const uint8_t *)x->mine, x->bytes); }
    bool ok = data != NULL ||
              fail(error, "out of memory for %s of %lld bytes", comm_exchange_name((int)x->kind), (long long)x->bytes);
    for (int i = 1; ok && i < comm->num_ranks; i++) { ok = comm_exchange_collect(comm, x, i, data, error); }
    free(data);
    CommFrame frame = comm_exchange_frame(comm, FRAME_RESULT, x, ok ? comm_result_bytes(x) : 0);
    for (int i = 1; i < comm->num_ranks; i++) {
        if (!ok) {
            comm_send_text(comm->sockets[i], FRAME_FAILURE, error->text, seconds_now() + WATCH_TELL_SECONDS);
        } else if (comm_send(comm->sockets[i], &frame, x->result, SOCKET_FOREVER) != SOCKET_DONE) {
            return comm_fail_lost(comm, i, x->kind, error);
        }
    }
    return ok;
}

// The other ranks: send their part, and wait for the result.
static inline bool comm_exchange_follow(Comm *comm, const Exchange *x, Error *error) {
    int fd = comm->sockets[0];
    int64_t bytes = x->text ? (int64_t)strlen((const char *)x->mine) + 1 : x->bytes;
    CommFrame frame = comm_exchange_frame(comm, FRAME_MINE, x, bytes);
    comm_send(fd, &frame, x->mine, SOCKET_FOREVER); // should this fail, rank 0 may still have said why
    if (socket_receive(fd, &frame, sizeof(frame), SOCKET_FOREVER) != SOCKET_DONE) {
        return comm_fail_lost(comm, 0, x->kind, error);
    }
    if (frame.magic == COMM_FRAME_MAGIC && frame.type == FRAME_FAILURE) {
        if (comm_receive_text(fd, &frame, error->text, SOCKET_FOREVER) == SOCKET_DONE) { return false; }
        return comm_fail_lost(comm, 0, x->kind, error);
    }
    if (frame.magic != COMM_FRAME_MAGIC || frame.type != FRAME_RESULT || frame.bytes < 0 ||
        frame.bytes > x->result_bytes) {
        return fail(error, "rank 0 answers %s with something else", comm_exchange_name((int)x->kind));
    }
    return socket_receive(fd, x->result, (size_t)frame.bytes, SOCKET_FOREVER) == SOCKET_DONE ||
           comm_fail_lost(comm, 0, x->kind, error);
}

// Exchanges wait as long as the watch finds all ranks alive and well.
static inline bool comm_exchange(Comm *comm, const Exchange *x, Error *error) {
    if (comm->watch == NULL) { return fail(error, "the connections of this run are closed"); }
    if (comm->broken) { return fail(error, "%s", comm->known); }
    if (comm->told) { return fail(error, "this rank has failed already"); }
    comm->sequence++;
    bool before = watch_set_waits(comm->watch, true);
    bool ok = comm->rank == 0 ? comm_exchange_lead(comm, x, error) : comm_exchange_follow(comm, x, error);
    watch_set_waits(comm->watch, before);
    return ok || comm_break(comm, error);
}

// Where a gather puts what it takes.
typedef struct {
    uint8_t *all;
    int64_t bytes;
} CommGather;

static inline void comm_take_gather(void *context, int rank, const uint8_t *data, int64_t bytes) {
    CommGather *gather = (CommGather *)context;
    if (bytes > 0) { memcpy(gather->all + rank * gather->bytes, data, (size_t)bytes); }
}

// all: num_ranks times `bytes` bytes, in order of rank.
static inline bool comm_all_gather(Comm *comm, const void *mine, void *all, int64_t bytes, Error *error) {
    if (comm->num_ranks == 1) {
        if (bytes > 0) { memcpy(all, mine, (size_t)bytes); }
        return true;
    }
    CommGather gather = {(uint8_t *)all, bytes};
    Exchange x = {EXCHANGE_GATHER, bytes, mine, bytes, false, comm_take_gather, &gather, all, comm->num_ranks * bytes};
    return comm_exchange(comm, &x, error);
}

// Rank 0's bytes to all. `bytes` must be the same everywhere.
static inline bool comm_broadcast(Comm *comm, void *data, int64_t bytes, Error *error) {
    if (comm->num_ranks == 1) { return true; }
    Exchange x = {EXCHANGE_BROADCAST, bytes, "", 0, false, NULL, NULL, data, bytes};
    return comm_exchange(comm, &x, error);
}

// Where a sum is kept.
typedef struct {
    uint64_t *values;
} CommSum;

static inline void comm_take_sum(void *context, int rank, const uint8_t *data, int64_t bytes) {
    CommSum *sum = (CommSum *)context;
    for (int64_t i = 0; rank > 0 && i < bytes / 8; i++) { // rank 0's values are there already
        uint64_t value;
        memcpy(&value, data + 8 * i, sizeof(value));
        sum->values[i] += value;
    }
}

// values[i] becomes the sum over all ranks, modulo 2^64.
static inline bool comm_sum_u64(Comm *comm, uint64_t *values, int count, Error *error) {
    if (comm->num_ranks == 1) { return true; }
    CommSum sum = {values};
    int64_t bytes = 8 * (int64_t)count;
    Exchange x = {EXCHANGE_SUM, bytes, values, bytes, false, comm_take_sum, &sum, values, bytes};
    return comm_exchange(comm, &x, error);
}

// *any: is `mine` true on some rank?
static inline bool comm_any(Comm *comm, bool mine, bool *any, Error *error) {
    uint64_t count = mine;
    *any = mine;
    if (comm->num_ranks == 1) { return true; }
    CommSum sum = {&count};
    Exchange x = {EXCHANGE_ANY, 8, &count, 8, false, comm_take_sum, &sum, &count, 8};
    bool ok = comm_exchange(comm, &x, error);
    *any = count > 0;
    return ok;
}

// The first error in order of rank.
typedef struct {
    const Comm *comm;
    bool named;      // begin it with the rank, unless all ranks say the same
    int rank, alike; // whose it is, and how many say so
    char first[COMM_TEXT_BYTES], text[COMM_TEXT_BYTES];
} CommFirstError;

static inline void comm_take_error(void *context, int rank, const uint8_t *data, int64_t bytes) {
    CommFirstError *error = (CommFirstError *)context;
    const char *text = bytes > 0 ? (const char *)data : "";
    const int room = COMM_TEXT_BYTES - COMM_NAME_BYTES - 4;
    char name[COMM_NAME_BYTES];
    if (text[0] != '\0' && error->alike == 0) {
        error->rank = rank;
        snprintf(error->first, sizeof(error->first), "%.*s", room, text);
    }
    if (text[0] != '\0' && strncmp(error->first, text, (size_t)room) == 0) { error->alike++; }
    if (rank < error->comm->num_ranks - 1 || error->alike == 0) { return; }
    bool named = error->named && error->alike < error->comm->num_ranks;
    comm_name(error->comm, error->rank, name);
    snprintf(error->text, sizeof(error->text), "%s%s%.*s", named ? name : "", named ? ": " : "", room, error->first);
}

static inline bool comm_agree_on(Comm *comm, ExchangeKind kind, bool ok, Error *error) {
    char mine[COMM_TEXT_BYTES] = "";
    CommFirstError first = {comm, kind == EXCHANGE_AGREE, 0, 0, "", ""};
    if (!ok) { snprintf(mine, sizeof(mine), "%s", error->text[0] != '\0' ? error->text : "failed"); }
    Exchange x = {kind, 0, mine, COMM_TEXT_BYTES, true, comm_take_error, &first, first.text, COMM_TEXT_BYTES};
    if (!comm_exchange(comm, &x, error)) { return false; }
    if (first.text[0] == '\0') { return true; }
    first.text[COMM_TEXT_BYTES - 1] = '\0';
    memcpy(comm->known, first.text, sizeof(comm->known));
    return fail(error, "%s", first.text);
}

// True if ok is true on all ranks. Otherwise false on all, and *error is everywhere that of the lowest rank that
// failed, after "rank 3 (host): " unless all say the same.
static inline bool comm_agree(Comm *comm, bool ok, Error *error) {
    return comm->num_ranks == 1 ? ok : comm_agree_on(comm, EXCHANGE_AGREE, ok, error);
}

// ---- Facts that must be the same on all ranks ----

typedef struct {
    char *text; // name NUL value NUL name NUL ...
    size_t bytes, capacity;
    bool out_of_memory;
} CommFacts;

static inline void comm_facts_init(CommFacts *facts) { memset(facts, 0, sizeof(*facts)); }

static inline void comm_facts_free(CommFacts *facts) {
    free(facts->text);
    comm_facts_init(facts);
}

static inline void comm_facts_append(CommFacts *facts, const char *text) {
    size_t n = strlen(text) + 1;
    if (facts->bytes + n > facts->capacity) {
        size_t capacity = 2 * (facts->bytes + n);
        char *larger = (char *)realloc(facts->text, capacity);
        if (larger == NULL) {
            facts->out_of_memory = true;
            return;
        }
        facts->text = larger, facts->capacity = capacity;
    }
    memcpy(facts->text + facts->bytes, text, n);
    facts->bytes += n;
}

// Adds a fact, such as "--seq-len" and "64".
static inline void comm_fact(CommFacts *facts, const char *name, const char *value) {
    if (facts->out_of_memory) { return; }
    comm_facts_append(facts, name);
    comm_facts_append(facts, value);
}

// Describes the first difference between rank 0's facts and this rank's; false if there is one.
static inline bool comm_compare_facts(const Comm *comm, const CommFacts *facts, const char *zero, size_t bytes,
                                      Error *error) {
    const char *a = zero, *a_end = zero + bytes;
    const char *b = facts->text != NULL ? facts->text : "", *b_end = b + facts->bytes;
    char first[COMM_NAME_BYTES], second[COMM_NAME_BYTES];
    comm_name(comm, 0, first), comm_name(comm, comm->rank, second);
    while (a < a_end && b < b_end && strcmp(a, b) == 0) { // the same names
        const char *name = a;
        a += strlen(a) + 1, b += strlen(b) + 1;
        if (strcmp(a, b) != 0) {
            return fail(error, "%.200s is %.1000s on %s, %.1000s on %s", name, a, first, b, second);
        }
        a += strlen(a) + 1, b += strlen(b) + 1;
    }
    if (a >= a_end && b >= b_end) { return true; }
    return fail(error, "%.200s is known on %s only: the ranks run different programs", a < a_end ? a : b,
                a < a_end ? first : second);
}

// Compares rank 0's facts with all others'. A difference gives the same error on all ranks, e.g. "--seq-len is 64 on
// rank 0 (hostA), 32 on rank 2 (hostB)".
static inline bool comm_check_facts(Comm *comm, const CommFacts *facts, Error *error) {
    if (comm->num_ranks == 1) { return true; }
    uint64_t bytes = comm->rank == 0 ? facts->bytes : 0;
    if (!comm_broadcast(comm, &bytes, (int64_t)sizeof(bytes), error)) { return false; }
    char *zero = (char *)malloc((size_t)bytes + 1);
    bool ok = (zero != NULL && !facts->out_of_memory) || fail(error, "out of memory");
    ok = comm_agree(comm, ok, error);
    if (ok) {
        if (comm->rank == 0 && bytes > 0) { memcpy(zero, facts->text, (size_t)bytes); }
        ok = comm_broadcast(comm, zero, (int64_t)bytes, error);
    }
    if (ok) {
        bool same = comm_compare_facts(comm, facts, zero, (size_t)bytes, error);
        ok = comm_agree_on(comm, EXCHANGE_FACTS, same, error);
    }
    free(zero);
    return ok;
}

#endif // LLMC_COMM_H
