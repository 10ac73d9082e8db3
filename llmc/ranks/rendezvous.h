// How the processes of a run find rank 0. Each process learns its rank, the number of ranks and the address of rank 0
// from MPI, from the command line (TCP), or from a file in a shared folder. start.h then connects them.
#ifndef LLMC_RENDEZVOUS_H
#define LLMC_RENDEZVOUS_H

#include <dirent.h>

#include "llmc/base/files.h"
#include "llmc/ranks/ranks.h"
#include "llmc/ranks/secret.h"

#ifdef USE_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

#define COMM_DEFAULT_PORT 29500
#define COMM_RETRY_SECONDS 0.1      // between two attempts
#define COMM_PORT_SECONDS 3.0       // for a port to become free: a run that ended just now may still hold it
#define COMM_CALLERS 256            // callers at a time: connections that have not proven yet that they belong here
#define COMM_LISTENERS 8            // addresses of one name
#define COMM_ADDRESS_FILE "address" // in the folder below, in the shared one
#define COMM_ADDRESS_FOLDER "gpt2c_start"

// Says where rank 0 is.
typedef struct {
    int32_t port;              // 0: rank 0 could not listen, and text says why
    uint8_t key[SHA256_BYTES]; // of the secret that rank 0 has made
    char host[COMM_HOST_BYTES];
    char text[1024]; // names or numbers of rank 0's machine, separated by spaces
} CommContact;

// Says how far the conversation with a caller is.
typedef enum { CALLER_NEW, CALLER_GREETED, CALLER_REFUSED } CallerState;

// Holds what rank 0 knows of a caller besides its link.
typedef struct {
    CallerState state;
    CommNonces nonces;
} CommCaller;

// Holds a start in progress.
typedef struct {
    Comm *comm; // gets the links, and who is who
    const CommWho *me;
    double deadline;
    CommSecret secret;
    CommContact contact;
    bool told;     // the error came from rank 0, where it is printed too
    bool unlike;   // the last attempt met a rank 0 with another secret
    bool hopeless; // another attempt to reach rank 0 would fail too
    // Of rank 0.
    int listeners[COMM_LISTENERS], num_listeners;
    Link links[COMM_CALLERS]; // of the callers
    CommCaller callers[COMM_CALLERS];
    int num_missing, num_strangers; // ranks that have not come; connections that have proven nothing
    const char *refusal;            // why the run does not start; NULL: it may
    char last_refused[512];         // the words that the last caller was sent away with; "": none
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

// Looks an address up, again while the resolver asks for it. Without a secret, one result must be a loopback address.
static inline bool comm_resolve(const CommStartup *s, const SocketAddress *address, struct addrinfo **list,
                                Error *error) {
    int lookup;
    do { lookup = socket_resolve(address, list); } while (lookup == EAI_AGAIN && comm_try_again(s->deadline));
    if (lookup != 0) { return comm_fail_lookup(address, lookup, error); }
    if (s->secret.known || socket_list_has(*list, true)) { return true; }
    freeaddrinfo(*list);
    return fail(error,
                "--server-ip %s: other machines may reach this address, and no secret keeps others out; " SECRET_REMEDY,
                address->host);
}

static inline bool comm_add_listener(CommStartup *s, int fd) {
    if (fd >= 0) { s->listeners[s->num_listeners++] = fd; }
    return fd >= 0;
}

static inline void comm_close_listeners(CommStartup *s) {
    while (s->num_listeners > 0) { close(s->listeners[--s->num_listeners]); }
}

// Listens at all addresses that a name stands for. The name of a machine may mean the loopback address on that machine
// and another address elsewhere: rank 0 then listens at all its addresses, for which it needs a secret. Returns 0, or
// errno.
static inline int comm_listen_once(CommStartup *s, const SocketAddress *address, const struct addrinfo *list) {
    int code = EADDRNOTAVAIL;
    bool own_name = !socket_address_is_number(address) && strcmp(address->host, "localhost") != 0;
    if (own_name && s->secret.known && !socket_list_has(list, false)) {
        return comm_add_listener(s, socket_listen_everywhere(address->port)) ? 0 : errno;
    }
    for (const struct addrinfo *i = list; i != NULL && s->num_listeners < COMM_LISTENERS; i = i->ai_next) {
        if (!s->secret.known && !socket_is_loopback(i->ai_addr)) { continue; }
        if (comm_add_listener(s, socket_listen_at(i->ai_addr, i->ai_addrlen))) { continue; }
        code = errno;
        if (code == EADDRINUSE) { comm_close_listeners(s); }
        if (code == EADDRINUSE) { break; }
    }
    return s->num_listeners > 0 ? 0 : code;
}

static inline bool comm_listen(CommStartup *s, const SocketAddress *address, Error *error) {
    struct addrinfo *list;
    int code;
    if (!comm_resolve(s, address, &list, error)) { return false; }
    double until = seconds_now() + COMM_PORT_SECONDS;
    do {
        code = comm_listen_once(s, address, list);
    } while (code == EADDRINUSE && comm_try_again(until < s->deadline ? until : s->deadline));
    freeaddrinfo(list);
    return code == 0 || comm_fail_listen(s, address, code, error);
}

static inline bool comm_meet_tcp(CommStartup *s, Error *error) {
    SocketAddress address;
    const char *text = s->comm->options.address;
    if (text == NULL || text[0] == '\0') {
        return fail(error, "--server-ip is missing: a start by TCP needs the address of the machine of rank 0");
    }
    if (!socket_parse_address(&address, text, COMM_DEFAULT_PORT, "--server-ip", error)) { return false; }
    if (!secret_find(&s->secret, s->comm->options.secret, error)) { return false; }
    s->contact.port = address.port;
    snprintf(s->contact.text, sizeof(s->contact.text), "%s", address.host);
    if (s->comm->rank == 0) { return comm_listen(s, &address, error); }
    struct addrinfo *list;
    if (!comm_resolve(s, &address, &list, error)) { return false; }
    freeaddrinfo(list);
    return true;
}

// ---- Rank 0 listens anywhere, and says where (MPI and folder) ----

// Lets rank 0 listen at a free port of all its addresses, and makes the secret of the run. Describes the port, or why
// rank 0 cannot.
static inline bool comm_make_contact(CommStartup *s, Error *error) {
    CommContact *contact = &s->contact;
    bool ok = secret_make(&s->secret, error);
    if (ok && !comm_add_listener(s, socket_listen_everywhere(0))) { ok = fail(error, "%s", strerror(errno)); }
    if (ok) { contact->port = socket_port(s->listeners[0]); }
    memcpy(contact->key, s->secret.key, sizeof(contact->key));
    memcpy(contact->host, s->me->host, sizeof(contact->host));
    socket_own_addresses(contact->text, sizeof(contact->text));
    if (contact->port > 0) { return true; }
    snprintf(contact->text, sizeof(contact->text), "rank 0 (%s) cannot listen for the other ranks: %.800s", s->me->host,
             error->text);
    return fail(error, "%s", contact->text);
}

// Takes the secret that rank 0 has made.
static inline void comm_take_key(CommStartup *s) {
    s->secret.known = true;
    memcpy(s->secret.key, s->contact.key, sizeof(s->secret.key));
}

// ---- A shared folder: only one run at a time may start in it ----

static inline bool comm_write_contact(const CommStartup *s, Error *error) {
    const CommContact *contact = &s->contact;
    char text[2048], key[2 * SHA256_BYTES + 1];
    for (int i = 0; i < SHA256_BYTES; i++) { snprintf(key + 2 * i, 3, "%02x", contact->key[i]); }
    int n = snprintf(text, sizeof(text), "secret %s\nport %d\nhost %s\naddresses %s\n", key, contact->port,
                     contact->host, contact->text);
    return write_whole_file(s->file, text, n, 0600, error);
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
    return make_own_directory(s->folder, error) && directory_lock(&s->lock, s->folder, error) &&
           comm_make_contact(s, error) && comm_write_contact(s, error);
}

// Reads the text of rank 0's file.
static inline bool comm_parse_contact(CommContact *contact, const char *text) {
    char key[2 * SHA256_BYTES + 1];
    int port = 0, end = 0;
    if (sscanf(text, "secret %64[0-9a-f]\nport %5d\nhost %71s\naddresses%n", key, &port, contact->host, &end) != 3) {
        return false;
    }
    for (int i = 0; i < SHA256_BYTES && strlen(key) == 2 * SHA256_BYTES; i++) {
        unsigned byte = 0;
        sscanf(key + 2 * i, "%2x", &byte);
        contact->key[i] = (uint8_t)byte;
    }
    contact->port = port;
    snprintf(contact->text, sizeof(contact->text), "%.1000s", text + end);
    contact->text[strcspn(contact->text, "\n")] = '\0';
    return end > 0 && port > 0 && port <= 65535 && strlen(key) == 2 * SHA256_BYTES;
}

// Finds rank 0's address, in its file if there is one. The file may be left by an earlier run that was killed, so
// another file may come whatever is wrong with it.
static inline bool comm_find_contact(CommStartup *s, Error *error) {
    char text[SECRET_MOST + 1];
    size_t bytes;
    if (s->comm->options.start != COMM_FOLDER) { return true; }
    // Network file systems remember for a while that a file is missing, unless its folder is read.
    DIR *look = opendir(s->folder);
    while (look != NULL && readdir(look) != NULL) {}
    if (look != NULL) { closedir(look); }
    if (!path_exists(s->file)) { return fail(error, "%s: rank 0 has not written it yet", s->file); }
    if (!secret_read_file(s->file, text, &bytes, error)) { return false; }
    if (!comm_parse_contact(&s->contact, text)) { return fail(error, "%s: is no address of rank 0", s->file); }
    comm_take_key(s);
    return true;
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
    comm_take_key(s);
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
                "mpirun -np %d%s, or add --nccl-init tcp or fs",
                o->num_ranks, o->num_ranks, geteuid() == 0 ? " (Open MPI as root: --allow-run-as-root)" : "");
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
    s->lock.fd = -1;
    if (start == COMM_MPI) { return comm_meet_mpi(s, error); }
    return start == COMM_TCP ? comm_meet_tcp(s, error) : comm_meet_folder(s, error);
}

// Ends a start, when the ranks have met or will not.
static inline void comm_part(CommStartup *s) {
    if (s->lock.fd >= 0) { unlink(s->file); }
    directory_unlock(&s->lock);
    comm_close_listeners(s);
}

#endif // LLMC_RENDEZVOUS_H
