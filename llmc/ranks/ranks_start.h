// How the processes of a run find each other: each learns the address of rank 0 (from MPI, from the command line, or
// from a file in a shared folder), connects to it, and waits until all have come. Whatever goes wrong is one clear line
// on every rank that could be reached, at once where possible, and after start_timeout at the latest.
//
// Each rank makes two connections to rank 0, for exchanges and for the watch, and greets on each (CommHello). Rank 0
// answers WELCOME at once, so that a rank knows that it speaks to the right program; when all are there, START with a
// table of who is who. When one rank is refused, or ends meanwhile, the run does not start: all get REFUSED.
//
// Nothing is encrypted, and TCP starts know no password: run on a network you trust.
#ifndef LLMC_COMM_START_H
#define LLMC_COMM_START_H

#include <dirent.h>

#include "llmc/ranks/ranks_watch.h"
#include "llmc/base/files.h"
#include "llmc/base/hash.h"

#ifdef USE_MPI
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>
#endif

#define COMM_DEFAULT_PORT 29500
#define COMM_GREETING_SECONDS 10.0  // for the other end of a new connection to say who it is
#define COMM_CONNECT_SECONDS 2.0    // to connect to one address
#define COMM_RETRY_SECONDS 0.1      // between two attempts
#define COMM_PORT_SECONDS 3.0       // for a port to become free: a run that ended just now may still hold it
#define COMM_CALLERS 64             // connections that have not said yet who they are
#define COMM_ADDRESS_FILE "address" // in the folder below, in the shared one
#define COMM_ADDRESS_FOLDER "gpt2c_start"
#define COMM_MAX_ADDRESSES 24

typedef enum { COMM_MPI, COMM_TCP, COMM_FOLDER } CommStart;

typedef struct {
    CommStart start;
    int num_ranks;        // 0: as mpirun or srun has started it
    int rank;             // -1: as started; MPI always knows it better
    int gpus_per_node;    // 0: as many as ranks have the same host name
    const char *address;  // TCP: of rank 0, "host", "host:port" or "[IPv6]:port"
    const char *folder;   // FOLDER: that all machines see
    double start_timeout; // seconds until all ranks must have come
    double watchdog;      // seconds without progress until a rank counts as hanging; 0: never
    const char *program;  // begins messages of the watch; may be NULL
    // For tests; 0 or NULL: the usual.
    double beat;      // seconds between two signs of life
    double silence;   // seconds without one until a rank counts as gone
    const char *host; // the name of this machine
} CommOptions;

// A start in progress, and what comes of it.
typedef struct {
    const CommOptions *options;
    int rank, num_ranks;
    uint64_t nonce; // of this run; 0: none
    CommWho me;
    double deadline;
    CommWatch *watch; // gets the sockets of the watch, and who is who
    int *sockets;     // for exchanges: rank 0 has one of each other rank, these have [0]; else -1
    bool told;        // the error came from rank 0, where it is printed too
} CommStartup;

// ---- What started this process ----

typedef struct {
    const char *name;           // NULL: no launcher
    int rank, size, local_rank; // -1: it does not say
} CommLauncher;

// A number of the environment; -1 if there is none.
static inline int comm_environment_number(const char *name) {
    const char *text = name != NULL ? getenv(name) : NULL;
    if (text == NULL || text[0] < '0' || text[0] > '9') { return -1; }
    char *end;
    long value = strtol(text, &end, 10);
    return *end == '\0' && value <= COMM_MAX_RANKS ? (int)value : -1;
}

// SLURM_NTASKS would be there in the batch script itself, too, which srun has not started.
static inline CommLauncher comm_find_launcher(void) {
    static const char *const known[][4] = {
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
        {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
        {"a PMIx launcher", "PMIX_RANK", NULL, NULL},
    };
    CommLauncher launcher = {NULL, -1, -1, -1};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        launcher.rank = comm_environment_number(known[i][1]);
        launcher.size = comm_environment_number(known[i][2]);
        launcher.local_rank = comm_environment_number(known[i][3]);
        if (launcher.rank < 0 || (known[i][2] != NULL && launcher.size < 1)) { continue; }
        launcher.name = known[i][0];
        return launcher;
    }
    launcher.rank = launcher.size = launcher.local_rank = -1;
    return launcher;
}

// Is this process the one of those started together that speaks for all, where all have the same to say?
static inline bool comm_launcher_shows(void) { return comm_find_launcher().rank <= 0; }

// How long a greeting or its answer may take.
static inline double comm_greeting_seconds(const CommOptions *options) {
    return options->start_timeout < COMM_GREETING_SECONDS ? options->start_timeout : COMM_GREETING_SECONDS;
}

// ---- Rank 0: waiting for the others ----

// A connection that has not said yet who it is.
typedef struct {
    int fd;
    double deadline;
    size_t have; // bytes of the greeting
    CommHello hello;
} CommCaller;

typedef struct {
    CommStartup *s;
    int listener;
    int num_callers, num_strangers; // strangers: connections of other programs, and silent ones
    CommCaller callers[COMM_CALLERS];
    struct pollfd *polled;
} CommGathering;

static inline void comm_drop_caller(CommGathering *g, int i, bool close_it) {
    if (close_it) { socket_close(&g->callers[i].fd); }
    g->callers[i] = g->callers[--g->num_callers];
}

static inline bool comm_is_here(const CommStartup *s, int rank) {
    return s->sockets[rank] >= 0 && s->watch->peers[rank].fd >= 0;
}

static inline int comm_count_missing(const CommStartup *s) {
    int missing = 0;
    for (int i = 1; i < s->num_ranks; i++) { missing += !comm_is_here(s, i); }
    return missing;
}

// Describes who has not come: "ranks 2, 5 of 8 have not come within 300 s".
static inline bool comm_fail_missing(const CommGathering *g, Error *error) {
    const CommStartup *s = g->s;
    int missing = comm_count_missing(s), named = 0;
    char names[256] = "", strangers[96] = "";
    for (int i = 1; i < s->num_ranks && named < 16; i++) {
        if (comm_is_here(s, i)) { continue; }
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, "%s%d", named++ > 0 ? ", " : "", i);
    }
    if (missing > named) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, " and %d more", missing - named);
    }
    if (g->num_strangers > 0) {
        snprintf(strangers, sizeof(strangers), "; %d connection%s of other programs came instead", g->num_strangers,
                 g->num_strangers > 1 ? "s" : "");
    }
    return fail(error,
                "rank%s %s of %d ha%s not come within %g s (--start-timeout): %s started, and can they reach rank 0 "
                "on %s?%s",
                missing > 1 ? "s" : "", names, s->num_ranks, missing > 1 ? "ve" : "s", s->options->start_timeout,
                missing > 1 ? "are they" : "is it", s->me.host, strangers);
}

static inline void comm_accept_callers(CommGathering *g) {
    while (g->num_callers < COMM_CALLERS) {
        int fd = socket_accept(g->listener);
        if (fd < 0) { return; }
        CommCaller *caller = &g->callers[g->num_callers++];
        memset(caller, 0, sizeof(*caller));
        caller->fd = fd;
        caller->deadline = seconds_now() + comm_greeting_seconds(g->s->options);
    }
}

// Tells all that are connected why the run does not start. Always false.
static inline bool comm_refuse_all(CommGathering *g, const Error *error) {
    CommStartup *s = g->s;
    double deadline = seconds_now() + WATCH_TELL_SECONDS;
    comm_accept_callers(g); // who has just come gets an answer too
    for (int i = 1; i < s->num_ranks; i++) {
        if (s->sockets[i] >= 0) { comm_send_text(s->sockets[i], FRAME_REFUSED, error->text, deadline); }
    }
    for (int i = 0; i < g->num_callers; i++) {
        comm_send_text(g->callers[i].fd, FRAME_REFUSED, error->text, deadline);
        shutdown(g->callers[i].fd, SHUT_WR);
    }
    for (int i = 1; i < s->num_ranks; i++) { socket_close_gently(&s->sockets[i], deadline); }
    for (int i = 0; i < g->num_callers; i++) { socket_close_gently(&g->callers[i].fd, deadline); }
    g->num_callers = 0;
    return false;
}

// Does this greeting fit the run? `name` is the rank's, for messages.
static inline bool comm_check_hello(const CommStartup *s, const CommHello *hello, const char *name, Error *error) {
    if (hello->protocol != COMM_PROTOCOL) {
        return fail(error, "%s runs another version of the program than rank 0 (%s): start the same build everywhere",
                    name, s->me.host);
    }
    if (hello->num_ranks != s->num_ranks) {
        return fail(error,
                    "%s was started as one of %d processes, rank 0 (%s) as one of %d: give all the same "
                    "--num-processes",
                    name, hello->num_ranks, s->me.host, s->num_ranks);
    }
    if (hello->rank < 0 || hello->rank >= s->num_ranks) {
        return fail(error, "%s: --process-rank must be from 0 to %d", name, s->num_ranks - 1);
    }
    return true;
}

// The rank of a greeting is free, or this is its second connection.
static inline bool comm_check_place(const CommStartup *s, const CommHello *hello, const char *name, Error *error) {
    int rank = hello->rank;
    const CommWho *holder = rank == 0 ? &s->me : &s->watch->who[rank];
    bool same = memcmp(holder, &hello->who, sizeof(*holder)) == 0;
    bool first = hello->purpose == COMM_FOR_EXCHANGES;
    bool taken = rank == 0 || (first ? s->sockets[rank] >= 0 : s->watch->peers[rank].fd >= 0 || !same);
    if (!taken && (first || s->sockets[rank] >= 0)) { return true; }
    char other[COMM_NAME_BYTES];
    return fail(error, "%s came, but %s has that rank already: each process needs its own --process-rank", name,
                comm_who_process(other, rank, holder));
}

static inline void comm_send_welcome(const CommStartup *s, int fd) {
    CommWelcome welcome;
    memset(&welcome, 0, sizeof(welcome));
    welcome.who = s->me;
    welcome.protocol = COMM_PROTOCOL;
    welcome.num_ranks = s->num_ranks;
    welcome.start_timeout = s->options->start_timeout;
    CommFrame frame = comm_frame(FRAME_WELCOME, (int64_t)sizeof(welcome));
    comm_send(fd, &frame, &welcome, seconds_now() + 1.0); // one that fails is seen as closed
}

// A caller has said who it is. False: the run cannot start.
static inline bool comm_admit(CommGathering *g, int i, Error *error) {
    CommStartup *s = g->s;
    CommCaller *caller = &g->callers[i];
    CommHello *hello = &caller->hello;
    char name[COMM_NAME_BYTES];
    hello->who.host[COMM_HOST_BYTES - 1] = '\0';
    if (hello->nonce != s->nonce) { // it has found an old address, and looks for another run
        comm_send_text(caller->fd, FRAME_STRANGER, "", seconds_now() + 1.0);
        comm_drop_caller(g, i, true);
        return true;
    }
    comm_who_process(name, hello->rank, &hello->who);
    if (!comm_check_hello(s, hello, name, error) || !comm_check_place(s, hello, name, error)) { return false; }
    comm_send_welcome(s, caller->fd);
    if (hello->purpose == COMM_FOR_EXCHANGES) {
        s->sockets[hello->rank] = caller->fd;
        s->watch->who[hello->rank] = hello->who;
    } else {
        s->watch->peers[hello->rank].fd = caller->fd;
    }
    comm_drop_caller(g, i, false);
    return true;
}

// Reads what a caller says. Other programs (and what scans ports) are dropped without a word.
static inline bool comm_hear_caller(CommGathering *g, int i, Error *error) {
    CommCaller *caller = &g->callers[i];
    ssize_t n = recv(caller->fd, (char *)&caller->hello + caller->have, sizeof(caller->hello) - caller->have, 0);
    if (n < 0 && socket_would_wait() && seconds_now() < caller->deadline) { return true; }
    caller->have += n > 0 ? (size_t)n : 0;
    bool stranger = n <= 0 || (caller->have >= sizeof(uint64_t) && caller->hello.magic != COMM_HELLO_MAGIC);
    if (stranger) {
        g->num_strangers++;
        comm_drop_caller(g, i, true);
        return true;
    }
    return caller->have < sizeof(caller->hello) || comm_admit(g, i, error);
}

// Those that are here have nothing to say until the start: their connection speaks only when it closes.
static inline bool comm_check_present(const CommStartup *s, Error *error) {
    for (int rank = 1; rank < s->num_ranks; rank++) {
        int fds[2] = {s->sockets[rank], s->watch->peers[rank].fd};
        for (int i = 0; i < 2; i++) {
            char byte, name[COMM_NAME_BYTES];
            if (fds[i] < 0) { continue; }
            ssize_t n = recv(fds[i], &byte, 1, MSG_PEEK);
            if (n < 0 && socket_would_wait()) { continue; }
            return fail(error, "%s ended while the run was starting (its own message says why)",
                        comm_who_process(name, rank, &s->watch->who[rank]));
        }
    }
    return true;
}

// Sleeps until something happens on a connection, for half a second at most.
static inline void comm_gather_wait(CommGathering *g) {
    CommStartup *s = g->s;
    int count = 0;
    if (g->num_callers < COMM_CALLERS) { g->polled[count++].fd = g->listener; }
    for (int i = 0; i < g->num_callers; i++) { g->polled[count++].fd = g->callers[i].fd; }
    for (int i = 1; i < s->num_ranks; i++) {
        if (s->sockets[i] >= 0) { g->polled[count++].fd = s->sockets[i]; }
        if (s->watch->peers[i].fd >= 0) { g->polled[count++].fd = s->watch->peers[i].fd; }
    }
    for (int i = 0; i < count; i++) { g->polled[i].events = POLLIN; }
    poll(g->polled, (nfds_t)count, socket_milliseconds(s->deadline, 500));
}

static inline bool comm_gather_round(CommGathering *g, Error *error) {
    comm_gather_wait(g);
    comm_accept_callers(g);
    for (int i = g->num_callers - 1; i >= 0; i--) { // from the end: a caller that is dropped is replaced by the last
        if (!comm_hear_caller(g, i, error)) { return false; }
    }
    if (!comm_check_present(g->s, error)) { return false; }
    return seconds_now() < g->s->deadline || comm_count_missing(g->s) == 0 || comm_fail_missing(g, error);
}

// All are here: tells them so, and who is who. A rank that dies now is the watch's to find.
static inline void comm_send_start(CommStartup *s) {
    CommFrame frame = comm_frame(FRAME_START, (int64_t)sizeof(CommWho) * s->num_ranks);
    for (int i = 1; i < s->num_ranks; i++) {
        comm_send(s->sockets[i], &frame, s->watch->who, seconds_now() + COMM_GREETING_SECONDS);
    }
}

// Rank 0: waits on a listening socket until all ranks have come.
static inline bool comm_gather(CommStartup *s, int listener, Error *error) {
    CommGathering *g = (CommGathering *)calloc(1, sizeof(CommGathering));
    struct pollfd *polled = (struct pollfd *)calloc((size_t)(2 * s->num_ranks + COMM_CALLERS + 1), sizeof(*polled));
    bool ok = g != NULL && polled != NULL;
    if (!ok) { fail(error, "out of memory for %d ranks", s->num_ranks); }
    if (ok) {
        g->s = s, g->listener = listener, g->polled = polled;
        s->watch->who[0] = s->me;
        while (ok && comm_count_missing(s) > 0) { ok = comm_gather_round(g, error); }
        if (!ok) { comm_refuse_all(g, error); }
        for (int i = 0; i < g->num_callers; i++) { socket_close(&g->callers[i].fd); }
        if (ok) { comm_send_start(s); }
    }
    free(polled);
    free(g);
    return ok;
}

// ---- The other ranks: joining rank 0 ----

typedef enum { JOIN_DONE, JOIN_AGAIN, JOIN_FAILED } JoinStatus;

// Something answers at the address that is not rank 0 of this run. Where the address comes from a file or from a list
// of all addresses of a machine, the right one may still come.
static inline JoinStatus comm_join_foreign(const CommStartup *s, const char *where, const char *what, Error *error) {
    fail(error, "%s: %s: is another program on this port? Rank 0 of gpt2.c is expected there", where, what);
    return s->options->start == COMM_TCP ? JOIN_FAILED : JOIN_AGAIN;
}

// The answer to a greeting, and what it means.
static inline JoinStatus comm_join_answer(CommStartup *s, int fd, const char *where, CommWelcome *welcome,
                                          Error *error) {
    CommFrame frame;
    double deadline = seconds_now() + comm_greeting_seconds(s->options);
    SocketStatus status = socket_receive(fd, &frame, sizeof(frame), deadline);
    if (status == SOCKET_TIMEOUT) { return comm_join_foreign(s, where, "connects, but does not answer", error); }
    if (status != SOCKET_DONE) {
        fail(error, "%s: closes the connection", where);
        return JOIN_AGAIN;
    }
    if (frame.magic != COMM_FRAME_MAGIC) { return comm_join_foreign(s, where, "answers something else", error); }
    if (frame.type == FRAME_REFUSED) {
        s->told = comm_receive_text(fd, &frame, error->text, deadline) == SOCKET_DONE;
        return JOIN_FAILED;
    }
    if (frame.type == FRAME_WELCOME && frame.bytes == (int64_t)sizeof(*welcome) &&
        socket_receive(fd, welcome, sizeof(*welcome), deadline) == SOCKET_DONE) {
        return JOIN_DONE;
    }
    fail(error, "%s: rank 0 of another run answers", where);
    return JOIN_AGAIN;
}

// Makes one connection to rank 0.
static inline JoinStatus comm_join_connect(CommStartup *s, const SocketAddress *address, int purpose, int *fd,
                                           CommWelcome *welcome, Error *error) {
    char where[SOCKET_HOST_BYTES + 16];
    int lookup = 0;
    socket_address_text(address, where, sizeof(where));
    *fd = socket_connect(address, COMM_CONNECT_SECONDS, s->deadline, &lookup);
    if (*fd < 0) {
        if (lookup == 0) {
            fail(error, "%s: %s", where, strerror(errno));
        } else {
            fail(error, "--server-ip %s: no such address: %s", address->host, gai_strerror(lookup));
        }
        return lookup != 0 && lookup != EAI_AGAIN ? JOIN_FAILED : JOIN_AGAIN;
    }
    CommHello hello;
    memset(&hello, 0, sizeof(hello));
    hello.magic = COMM_HELLO_MAGIC, hello.nonce = s->nonce;
    hello.protocol = COMM_PROTOCOL, hello.purpose = purpose;
    hello.rank = s->rank, hello.num_ranks = s->num_ranks;
    hello.who = s->me;
    JoinStatus status = JOIN_AGAIN;
    if (socket_send(*fd, &hello, sizeof(hello), seconds_now() + COMM_GREETING_SECONDS) == SOCKET_DONE) {
        status = comm_join_answer(s, *fd, where, welcome, error);
    } else {
        fail(error, "%s: closes the connection", where);
    }
    if (status != JOIN_DONE) { socket_close(fd); }
    return status;
}

// Waits for the start. Rank 0 counts the time; should it be silent, this rank ends a little later on its own.
static inline bool comm_join_wait(CommStartup *s, double seconds, Error *error) {
    CommFrame frame;
    char name[COMM_NAME_BYTES];
    double deadline = seconds_now() + seconds + comm_greeting_seconds(s->options);
    int64_t bytes = (int64_t)sizeof(CommWho) * s->num_ranks;
    SocketStatus status = socket_receive(s->sockets[0], &frame, sizeof(frame), deadline);
    comm_who_process(name, 0, &s->watch->who[0]);
    if (status == SOCKET_DONE && frame.type == FRAME_REFUSED) {
        s->told = comm_receive_text(s->sockets[0], &frame, error->text, deadline) == SOCKET_DONE;
        return false;
    }
    if (status == SOCKET_DONE && frame.type == FRAME_START && frame.bytes == bytes) {
        status = socket_receive(s->sockets[0], s->watch->who, (size_t)bytes, deadline);
        if (status == SOCKET_DONE) { return true; }
    }
    if (status == SOCKET_TIMEOUT) { return fail(error, "%s does not start the run, and is silent", name); }
    return fail(error, "%s ended while the run was starting (its own message says why)", name);
}

// Joins the run whose rank 0 is at this address.
static inline JoinStatus comm_join_at(CommStartup *s, const SocketAddress *address, Error *error) {
    CommWelcome welcome;
    JoinStatus status = comm_join_connect(s, address, COMM_FOR_EXCHANGES, &s->sockets[0], &welcome, error);
    if (status != JOIN_DONE) { return status; }
    s->watch->who[0] = welcome.who;
    s->watch->who[0].host[COMM_HOST_BYTES - 1] = '\0';
    double seconds = welcome.start_timeout;
    // From here on rank 0 counts on this rank: whatever fails now ends the start.
    if (comm_join_connect(s, address, COMM_FOR_WATCH, &s->watch->peers[0].fd, &welcome, error) != JOIN_DONE &&
        !s->told) {
        comm_join_wait(s, 0.0, error); // the reason is on the first connection
        return JOIN_FAILED;
    }
    return !s->told && comm_join_wait(s, seconds, error) ? JOIN_DONE : JOIN_FAILED;
}

// Sleeps before another attempt; false when there is no time left.
static inline bool comm_try_again(double deadline) {
    if (seconds_now() >= deadline) { return false; }
    poll(NULL, 0, socket_milliseconds(deadline, (int)(1e3 * COMM_RETRY_SECONDS)));
    return true;
}

// What to say when rank 0 could not be joined until the deadline; error holds the outcome of the last attempt.
static inline bool comm_fail_unreached(const CommStartup *s, Error *error) {
    char last[1024];
    snprintf(last, sizeof(last), "%.1000s", error->text);
    return fail(error,
                "rank %d (%s) cannot reach rank 0 within %g s (--start-timeout), last attempt: %s; is rank 0 started, "
                "and does no firewall come between?",
                s->rank, s->me.host, s->options->start_timeout, last);
}

// ---- TCP: the address is known ----

static inline bool comm_fail_listen(const CommStartup *s, const char *where, int code, Error *error) {
    if (code == EADDRINUSE) {
        return fail(error,
                    "%s: the port is in use on %s: another run, or a second process with --process-rank 0? Choose "
                    "another port (--server-ip ADDRESS:PORT)",
                    where, s->me.host);
    }
    if (code == EADDRNOTAVAIL) {
        return fail(error,
                    "%s: this machine (%s), where rank 0 runs, does not have that address: --server-ip is rank "
                    "0's own",
                    where, s->me.host);
    }
    return fail(error, "%s: cannot listen there on %s: %s", where, s->me.host, strerror(code));
}

// Is one of these addresses this machine's own? Only then can a socket be bound to it.
static inline bool comm_is_own_address(const struct addrinfo *list) {
    bool own = false;
    for (const struct addrinfo *i = list; i != NULL && !own; i = i->ai_next) {
        struct sockaddr_storage address;
        memset(&address, 0, sizeof(address));
        memcpy(&address, i->ai_addr, i->ai_addrlen);
        if (i->ai_family == AF_INET) { ((struct sockaddr_in *)(void *)&address)->sin_port = 0; }
        if (i->ai_family == AF_INET6) { ((struct sockaddr_in6 *)(void *)&address)->sin6_port = 0; }
        int fd = socket_create(i->ai_family);
        own = fd >= 0 && bind(fd, (struct sockaddr *)&address, i->ai_addrlen) == 0;
        socket_close(&fd);
    }
    return own;
}

// A number is listened at itself, "localhost" too. A name may stand for the loopback address on its own machine and
// for another one elsewhere: there, all addresses. -1 and errno on failure.
static inline int comm_listen_once(const SocketAddress *address, const struct addrinfo *list) {
    bool itself = strcmp(address->host, "localhost") == 0 || socket_address_is_number(address);
    int fd = -1;
    if (!itself && comm_is_own_address(list)) { return socket_listen_everywhere(address->port); }
    if (!itself) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    for (const struct addrinfo *i = list; i != NULL && fd < 0; i = i->ai_next) {
        fd = socket_listen_at(i->ai_addr, i->ai_addrlen);
        if (fd < 0 && errno == EADDRINUSE) { return -1; }
    }
    return fd;
}

static inline int comm_listen(const CommStartup *s, const SocketAddress *address, Error *error) {
    char where[SOCKET_HOST_BYTES + 16];
    struct addrinfo *list;
    int lookup, fd, code;
    socket_address_text(address, where, sizeof(where));
    do { lookup = socket_resolve(address, false, &list); } while (lookup == EAI_AGAIN && comm_try_again(s->deadline));
    if (lookup != 0) {
        fail(error, "--server-ip %s: no such address: %s", address->host, gai_strerror(lookup));
        return -1;
    }
    double until = seconds_now() + COMM_PORT_SECONDS;
    do {
        fd = comm_listen_once(address, list);
        code = errno;
    } while (fd < 0 && code == EADDRINUSE && comm_try_again(until < s->deadline ? until : s->deadline));
    freeaddrinfo(list);
    if (fd < 0) { comm_fail_listen(s, where, code, error); }
    return fd;
}

static inline bool comm_join_tcp(CommStartup *s, const SocketAddress *address, Error *error) {
    JoinStatus status;
    do { status = comm_join_at(s, address, error); } while (status == JOIN_AGAIN && comm_try_again(s->deadline));
    return status == JOIN_DONE || (status == JOIN_AGAIN && comm_fail_unreached(s, error));
}

static inline bool comm_start_tcp(CommStartup *s, Error *error) {
    SocketAddress address;
    const char *text = s->options->address;
    if (text == NULL || text[0] == '\0') {
        return fail(error, "--server-ip is missing: a start by TCP needs the address of the machine of rank 0");
    }
    if (!socket_parse_address(&address, text, COMM_DEFAULT_PORT, "--server-ip", error)) { return false; }
    if (s->rank != 0) { return comm_join_tcp(s, &address, error); }
    int listener = comm_listen(s, &address, error);
    bool ok = listener >= 0 && comm_gather(s, listener, error);
    socket_close(&listener);
    return ok;
}

// ---- MPI and a shared folder: rank 0 says where it is ----

typedef struct {
    uint64_t nonce;
    int32_t port; // 0: rank 0 could not listen, and text says why
    char host[COMM_HOST_BYTES];
    char text[1024]; // rank 0's addresses, separated by spaces
} CommContact;

// A number that no other run has.
static inline uint64_t comm_random(void) {
    uint64_t value = 0;
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, &value, sizeof(value)) != (ssize_t)sizeof(value)) {
        uint64_t parts[3] = {(uint64_t)time(NULL), (uint64_t)getpid(), (uint64_t)(1e9 * seconds_now())};
        value = hash64(parts, sizeof(parts));
    }
    socket_close(&fd);
    return value | 1; // 0 means none
}

// Rank 0 listens at a free port of all its addresses, and describes it. -1 on failure; contact tells the others.
static inline int comm_make_contact(CommStartup *s, CommContact *contact, Error *error) {
    memset(contact, 0, sizeof(*contact));
    int fd = socket_listen_everywhere(0);
    int code = errno;
    contact->port = fd >= 0 ? socket_port(fd) : 0;
    contact->nonce = s->nonce = comm_random();
    memcpy(contact->host, s->me.host, sizeof(contact->host));
    if (contact->port > 0) {
        socket_own_addresses(contact->text, sizeof(contact->text));
        return fd;
    }
    fail(error, "rank 0 (%s) cannot listen for the other ranks: %s", s->me.host, strerror(code));
    snprintf(contact->text, sizeof(contact->text), "%.1000s", error->text);
    socket_close(&fd);
    return -1;
}

// Tries all addresses of rank 0, once each. On its own machine, the loopback address is the one that always works; from
// another machine it would lead to that machine itself.
static inline JoinStatus comm_join_contact(CommStartup *s, const CommContact *contact, Error *error) {
    bool same_host = strcmp(contact->host, s->me.host) == 0;
    char list[sizeof(contact->text) + 32];
    snprintf(list, sizeof(list), "%s%s", same_host ? "127.0.0.1 ::1 " : "", contact->text);
    char *rest = list, *host;
    s->nonce = contact->nonce;
    fail(error, "rank 0 (%s) has no address that another machine can use", contact->host);
    for (int i = 0; i < COMM_MAX_ADDRESSES && (host = strtok_r(rest, " ", &rest)) != NULL; i++) {
        SocketAddress address;
        snprintf(address.host, sizeof(address.host), "%s", host);
        address.port = contact->port;
        JoinStatus status = comm_join_at(s, &address, error);
        if (status != JOIN_AGAIN) { return status; }
    }
    return JOIN_AGAIN;
}

// ---- A shared folder ----

static inline bool comm_folder_paths(const CommStartup *s, char *folder, char *file, Error *error) {
    if (s->options->folder == NULL || s->options->folder[0] == '\0') {
        return fail(error, "--nccl-fs-path is missing: a start through a folder needs one that all machines see");
    }
    return path_check(s->options->folder, "--nccl-fs-path", error) &&
           path_join(folder, s->options->folder, COMM_ADDRESS_FOLDER, error) &&
           path_join(file, folder, COMM_ADDRESS_FILE, error);
}

static inline bool comm_write_contact(const CommContact *contact, const char *file, Error *error) {
    char text[2048];
    int n = snprintf(text, sizeof(text), "nonce %016llx\nport %d\nhost %s\naddresses %s\n",
                     (unsigned long long)contact->nonce, contact->port, contact->host, contact->text);
    return write_whole_file(file, text, n, error);
}

// Reads rank 0's file; false, for any reason, means that it is not there yet.
static inline bool comm_read_contact(CommContact *contact, const char *folder, const char *file) {
    Error unused;
    uint8_t *text;
    int64_t size;
    // Network file systems remember for a while that a file was not there, unless its folder is read.
    DIR *look = opendir(folder);
    while (look != NULL && readdir(look) != NULL) {}
    if (look != NULL) { closedir(look); }
    if (!path_exists(file) || !read_whole_file(file, 4096, &text, &size, &unused)) { return false; }
    unsigned long long nonce = 0;
    int port = 0, end = 0;
    memset(contact, 0, sizeof(*contact));
    bool ok = sscanf((const char *)text, "nonce %16llx\nport %d\nhost %71s\naddresses%n", &nonce, &port, contact->host,
                     &end) == 3 &&
              end > 0 && port > 0 && port <= 65535;
    if (ok) {
        contact->nonce = nonce, contact->port = port;
        snprintf(contact->text, sizeof(contact->text), "%.1000s", (const char *)text + end);
        contact->text[strcspn(contact->text, "\n")] = '\0';
    }
    free(text);
    return ok;
}

// Only one run at a time may start in a folder: its rank 0 holds a lock on it, until all have come.
static inline bool comm_gather_folder(CommStartup *s, const char *folder, const char *file, Error *error) {
    DirectoryLock lock;
    CommContact contact;
    if (!make_directories(folder, error) || !directory_lock(&lock, folder, error)) { return false; }
    int listener = comm_make_contact(s, &contact, error);
    bool ok = listener >= 0 && comm_write_contact(&contact, file, error) && comm_gather(s, listener, error);
    unlink(file);
    socket_close(&listener);
    directory_unlock(&lock);
    return ok;
}

// The file may be that of an earlier run that was killed, so whatever is wrong with it, another one may still come.
static inline bool comm_join_folder(CommStartup *s, const char *folder, const char *file, Error *error) {
    JoinStatus status = JOIN_AGAIN;
    do {
        CommContact contact;
        if (comm_read_contact(&contact, folder, file)) {
            status = comm_join_contact(s, &contact, error);
        } else {
            fail(error, "%s: rank 0 has not written it yet", file);
        }
    } while (status == JOIN_AGAIN && comm_try_again(s->deadline));
    return status == JOIN_DONE || (status == JOIN_AGAIN && comm_fail_unreached(s, error));
}

static inline bool comm_start_folder(CommStartup *s, Error *error) {
    char folder[MAX_PATH_BYTES], file[MAX_PATH_BYTES];
    if (!comm_folder_paths(s, folder, file, error)) { return false; }
    return s->rank == 0 ? comm_gather_folder(s, folder, file, error) : comm_join_folder(s, folder, file, error);
}

// ---- MPI: used for the ranks and for telling rank 0's address, nothing else ----

#ifdef USE_MPI
static inline bool comm_mpi_begin(const CommLauncher *launcher, int *rank, int *num_ranks, Error *error) {
    int provided = 0, started = 0;
    MPI_Initialized(&started);
    if (!started && MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return fail(error, "MPI_Init_thread failed");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, num_ranks);
    if (launcher->size < 1 || launcher->size == *num_ranks) { return true; }
    return fail(error,
                "%s has started %d processes, but MPI sees %d: the launcher and the MPI library do not fit together "
                "(srun: try --mpi=pmix; mpirun: use that of the library)",
                launcher->name, launcher->size, *num_ranks);
}

static inline bool comm_start_mpi(CommStartup *s, Error *error) {
    CommContact contact;
    memset(&contact, 0, sizeof(contact));
    int listener = s->rank == 0 ? comm_make_contact(s, &contact, error) : -1;
    MPI_Bcast(&contact, (int)sizeof(contact), MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD); // some MPIs send the last of a broadcast only when they are called again
    s->deadline = seconds_now() + s->options->start_timeout; // MPI itself may have taken long
    bool ok = contact.port > 0 || fail(error, "%s", contact.text);
    s->told = !ok && s->rank != 0;
    if (ok && s->rank == 0) {
        ok = comm_gather(s, listener, error);
    } else if (ok) {
        JoinStatus status;
        do {
            status = comm_join_contact(s, &contact, error);
        } while (status == JOIN_AGAIN && comm_try_again(s->deadline));
        ok = status == JOIN_DONE || (status == JOIN_AGAIN && comm_fail_unreached(s, error));
    }
    socket_close(&listener);
    return ok;
}

static inline void comm_mpi_end(void) {
    int ended = 0;
    MPI_Finalized(&ended);
    if (!ended) { MPI_Finalize(); }
}

// Its name and version ("Open MPI v4.1.4"), "" for a program without MPI.
static inline void comm_mpi_version_text(char *text, size_t size) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    if (MPI_Get_library_version(version, &length) != MPI_SUCCESS) { version[0] = '\0'; }
    version[strcspn(version, ",\n")] = '\0'; // what follows says where it was built
    snprintf(text, size, "%.60s", version);
}
#else
static inline bool comm_mpi_begin(const CommLauncher *launcher, int *rank, int *num_ranks, Error *error) {
    (void)rank, (void)num_ranks;
    return fail(error,
                "%s has started several processes, but this program was built without MPI: build it where MPI is "
                "installed (make doctor says how), or add --nccl-init tcp or fs",
                launcher->name);
}

static inline bool comm_start_mpi(CommStartup *s, Error *error) {
    (void)s;
    return fail(error, "built without MPI");
}

static inline void comm_mpi_end(void) {}

static inline void comm_mpi_version_text(char *text, size_t size) { snprintf(text, size, "%s", ""); }
#endif

#endif // LLMC_COMM_START_H
