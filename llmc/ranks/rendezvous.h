// How the processes of a run find rank 0. Each process learns its rank, the number of ranks and the address of rank 0
// from MPI, from the command line (TCP), or from a file in a shared folder. start.h then connects them.
#ifndef LLMC_RENDEZVOUS_H
#define LLMC_RENDEZVOUS_H

#include <dirent.h>

#include "llmc/base/files.h"
#include "llmc/base/hash.h"
#include "llmc/ranks/ranks.h"

#ifdef USE_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

#define COMM_DEFAULT_PORT 29500
#define COMM_RETRY_SECONDS 0.1      // between two attempts
#define COMM_PORT_SECONDS 3.0       // for a port to become free: a run that ended just now may still hold it
#define COMM_CALLERS 64             // callers at a time: connections that have not said yet who they are
#define COMM_ADDRESS_FILE "address" // in the folder below, in the shared one
#define COMM_ADDRESS_FOLDER "gpt2c_start"

// Says where rank 0 is.
typedef struct {
    uint64_t nonce; // tells runs apart; 0 for TCP, which cannot agree on one
    int32_t port;   // 0: rank 0 could not listen, and text says why
    char host[COMM_HOST_BYTES];
    char text[1024]; // names or numbers of rank 0's machine, separated by spaces
} CommContact;

// Holds a start in progress.
typedef struct {
    Comm *comm; // gets the links, and who is who
    const CommWho *me;
    double deadline;
    CommContact contact;
    bool told;     // the error came from rank 0, where it is printed too
    bool hopeless; // another attempt to reach rank 0 would fail too
    // Of rank 0.
    int listener; // else -1
    Link callers[COMM_CALLERS];
    int num_missing, num_strangers; // ranks that have not come; connections of other programs, and silent ones
    DirectoryLock lock;
    char folder[MAX_PATH_BYTES], file[MAX_PATH_BYTES]; // of a start through a folder
} CommStartup;

// Sleeps before another attempt; false when there is no time left.
static inline bool comm_try_again(double deadline) {
    if (seconds_now() >= deadline) { return false; }
    poll(NULL, 0, socket_milliseconds(deadline, (int)(1e3 * COMM_RETRY_SECONDS)));
    return true;
}

// ---- Rank 0 listens at a given address (TCP) ----

static inline bool comm_fail_lookup(const SocketAddress *address, int status, Error *error) {
    return fail(error, "--server-ip %s: no such address: %s", address->host, gai_strerror(status));
}

static inline bool comm_fail_listen(const CommStartup *s, const SocketAddress *address, int code, Error *error) {
    SocketAddressText where = socket_address_text(address);
    if (code == EADDRINUSE) {
        return fail(error,
                    "%s: the port is in use on %s: another run, or a second process with --process-rank 0? Choose "
                    "another port (--server-ip ADDRESS:PORT)",
                    where.text, s->me->host);
    }
    if (code == EADDRNOTAVAIL) {
        return fail(error,
                    "%s: this machine (%s), where rank 0 runs, does not have that address: --server-ip is rank "
                    "0's own",
                    where.text, s->me->host);
    }
    return fail(error, "%s: cannot listen there on %s: %s", where.text, s->me->host, strerror(code));
}

// Listens at a number, or at "localhost". A name may stand for the loopback address on its own machine and for another
// address elsewhere, so for a name rank 0 listens at all addresses. -1 and errno on failure.
static inline int comm_listen_once(const SocketAddress *address, const struct addrinfo *list) {
    int fd = -1;
    for (const struct addrinfo *i = list; i != NULL && fd < 0; i = i->ai_next) {
        fd = socket_listen_at(i->ai_addr, i->ai_addrlen);
        if (fd < 0 && errno == EADDRINUSE) { return -1; }
    }
    if (fd < 0 || strcmp(address->host, "localhost") == 0 || socket_address_is_number(address)) { return fd; }
    close(fd);
    return socket_listen_everywhere(address->port);
}

static inline bool comm_listen(CommStartup *s, const SocketAddress *address, Error *error) {
    struct addrinfo *list;
    int lookup, code;
    do { lookup = socket_resolve(address, &list); } while (lookup == EAI_AGAIN && comm_try_again(s->deadline));
    if (lookup != 0) { return comm_fail_lookup(address, lookup, error); }
    double until = seconds_now() + COMM_PORT_SECONDS;
    do {
        s->listener = comm_listen_once(address, list);
        code = errno;
    } while (s->listener < 0 && code == EADDRINUSE && comm_try_again(until < s->deadline ? until : s->deadline));
    freeaddrinfo(list);
    return s->listener >= 0 || comm_fail_listen(s, address, code, error);
}

static inline bool comm_meet_tcp(CommStartup *s, Error *error) {
    SocketAddress address;
    const char *text = s->comm->options.address;
    if (text == NULL || text[0] == '\0') {
        return fail(error, "--server-ip is missing: a start by TCP needs the address of the machine of rank 0");
    }
    if (!socket_parse_address(&address, text, COMM_DEFAULT_PORT, "--server-ip", error)) { return false; }
    s->contact.port = address.port;
    snprintf(s->contact.text, sizeof(s->contact.text), "%s", address.host);
    return s->comm->rank > 0 || comm_listen(s, &address, error);
}

// ---- Rank 0 listens anywhere, and says where (MPI and folder) ----

// Returns a number that no other run has.
static inline uint64_t comm_random(const CommWho *me) {
    uint64_t parts[3] = {(uint64_t)time(NULL), (uint64_t)(1e9 * seconds_now()), hash64(me, sizeof(*me))};
    return hash64(parts, sizeof(parts)) | 1; // 0 means none
}

// Lets rank 0 listen at a free port of all its addresses. Describes the port, or why rank 0 cannot.
static inline bool comm_make_contact(CommStartup *s, Error *error) {
    CommContact *contact = &s->contact;
    s->listener = socket_listen_everywhere(0);
    int code = errno;
    contact->port = s->listener >= 0 ? socket_port(s->listener) : 0;
    contact->nonce = comm_random(s->me);
    memcpy(contact->host, s->me->host, sizeof(contact->host));
    socket_own_addresses(contact->text, sizeof(contact->text));
    if (contact->port > 0) { return true; }
    fail(error, "rank 0 (%s) cannot listen for the other ranks: %s", s->me->host, strerror(code));
    snprintf(contact->text, sizeof(contact->text), "%.1000s", error->text);
    return false;
}

// ---- A shared folder: only one run at a time may start in it ----

static inline bool comm_write_contact(const CommContact *contact, const char *file, Error *error) {
    char text[2048];
    int n = snprintf(text, sizeof(text), "nonce %016llx\nport %d\nhost %s\naddresses %s\n",
                     (unsigned long long)contact->nonce, contact->port, contact->host, contact->text);
    return write_whole_file(file, text, n, error);
}

// Writes rank 0's address into the folder. Rank 0 holds a lock on the folder until all ranks have come.
static inline bool comm_meet_folder(CommStartup *s, Error *error) {
    const char *shared = s->comm->options.folder;
    if (shared == NULL || shared[0] == '\0') {
        return fail(error, "--nccl-fs-path is missing: a start through a folder needs one that all machines see");
    }
    bool ok = path_check(shared, "--nccl-fs-path", error) && path_join(s->folder, shared, COMM_ADDRESS_FOLDER, error) &&
              path_join(s->file, s->folder, COMM_ADDRESS_FILE, error);
    if (!ok || s->comm->rank > 0) { return ok; }
    return make_directories(s->folder, error) && directory_lock(&s->lock, s->folder, error) &&
           comm_make_contact(s, error) && comm_write_contact(&s->contact, s->file, error);
}

// Finds rank 0's address, in its file if there is one. The file may be left by an earlier run that was killed, so
// another file may come whatever is wrong with it.
static inline bool comm_find_contact(CommStartup *s, Error *error) {
    CommContact *contact = &s->contact;
    uint8_t *text;
    int64_t size;
    if (s->comm->options.start != COMM_FOLDER) { return true; }
    fail(error, "%s: rank 0 has not written it yet", s->file);
    // Network file systems remember for a while that a file is missing, unless its folder is read.
    DIR *look = opendir(s->folder);
    while (look != NULL && readdir(look) != NULL) {}
    if (look != NULL) { closedir(look); }
    if (!path_exists(s->file) || !read_whole_file(s->file, 4096, &text, &size, error)) { return false; }
    unsigned long long nonce = 0;
    int port = 0, end = 0;
    bool ok = sscanf((const char *)text, "nonce %16llx\nport %d\nhost %71s\naddresses%n", &nonce, &port, contact->host,
                     &end) == 3 &&
              end > 0 && port > 0 && port <= 65535;
    contact->nonce = nonce, contact->port = port;
    snprintf(contact->text, sizeof(contact->text), "%.1000s", ok ? (const char *)text + end : "");
    contact->text[strcspn(contact->text, "\n")] = '\0';
    free(text);
    return ok;
}

// ---- MPI: used for the ranks and for telling rank 0's address, nothing else ----

#ifdef USE_MPI
static inline bool comm_mpi_begin(const Launcher *launcher, int *rank, int *num_ranks, Error *error) {
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

static inline bool comm_meet_mpi(CommStartup *s, Error *error) {
    if (s->comm->rank == 0) { comm_make_contact(s, error); }
    MPI_Bcast(&s->contact, (int)sizeof(s->contact), MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD); // some MPIs send the last of a broadcast only when they are called again
    s->deadline = seconds_now() + s->comm->options.start_timeout; // MPI itself may have taken long
    s->told = s->contact.port == 0 && s->comm->rank > 0;
    return s->contact.port > 0 || fail(error, "%s", s->contact.text);
}

static inline void comm_mpi_end(void) {
    int ended = 0;
    MPI_Finalized(&ended);
    if (!ended) { MPI_Finalize(); }
}

// Writes the name and version of the MPI library ("Open MPI v4.1.4"), "" for a program without MPI.
static inline void comm_mpi_version_text(char *text, size_t size) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    if (MPI_Get_library_version(version, &length) != MPI_SUCCESS) { version[0] = '\0'; }
    version[strcspn(version, ",\n")] = '\0'; // what follows says where it was built
    snprintf(text, size, "%.60s", version);
}
#else
static inline bool comm_mpi_begin(const Launcher *launcher, int *rank, int *num_ranks, Error *error) {
    (void)rank, (void)num_ranks;
    return fail(error,
                "%s has started several processes, but this program was built without MPI: build it where MPI is "
                "installed (make doctor says how), or add --nccl-init tcp or fs",
                launcher->name);
}

static inline bool comm_meet_mpi(CommStartup *s, Error *error) {
    (void)s;
    return fail(error, "built without MPI");
}

static inline void comm_mpi_end(void) {}
static inline void comm_mpi_version_text(char *text, size_t size) { snprintf(text, size, "%s", ""); }
#endif

// ---- Rank, number of ranks, address of rank 0 ----

// Finds them for a start by MPI: as many processes as the launcher has started.
static inline bool comm_find_place_mpi(const CommOptions *o, const Launcher *launcher, int *rank, int *num_ranks,
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

// Finds the number of ranks, and this process's rank. One process is rank 0 of 1.
static inline bool comm_find_place(const CommOptions *o, const Launcher *launcher, int *rank, int *num_ranks,
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

// Lets rank 0 listen and make its address known. Any other rank knows the address now, or reads it later.
static inline bool comm_meet(CommStartup *s, Error *error) {
    CommStart start = s->comm->options.start;
    s->listener = s->lock.fd = -1;
    if (start == COMM_MPI) { return comm_meet_mpi(s, error); }
    return start == COMM_TCP ? comm_meet_tcp(s, error) : comm_meet_folder(s, error);
}

// Ends a start, when the ranks have met or will not.
static inline void comm_part(CommStartup *s) {
    if (s->lock.fd >= 0) { unlink(s->file); }
    directory_unlock(&s->lock);
    socket_close(&s->listener);
}

#endif // LLMC_RENDEZVOUS_H
