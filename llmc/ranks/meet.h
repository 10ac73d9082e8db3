// How the processes of a run find each other. MPI, the command line (TCP) or a file in a shared folder give each
// process its rank, the number of ranks, the address of rank 0, and the token. Opens and closes the ranks of a run.
//
// MPI and the folder carry a token that rank 0 makes afresh. A TCP start takes the user's. Without one it stays on
// 127.0.0.1. Every fault is one line on every rank that can be reached, at once if possible, and some seconds
// after start_timeout at the latest.
#ifndef LLMC_MEET_H
#define LLMC_MEET_H

#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>

#include "llmc/base/input_file.h"
#include "llmc/ranks/agree.h"
#include "llmc/ranks/watch.h"

#ifdef USE_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

#define MEET_DEFAULT_PORT 29500
#define MEET_GRACE_SECONDS 3.0    // after its own limit, in which a rank lets rank 0 say which ranks are missing
#define MEET_FOLDER "gpt2c_start" // in the shared folder
#define MEET_FILE "address"       // in that folder
#define MEET_TEXT_BYTES 2048      // of the text by which rank 0 says where it is
#define TOKEN_DIGITS (2 * TOKEN_HALF)
#define TOKEN_VARIABLE "GPT2C_SECRET"
#define TOKEN_REMEDY                                                                                                   \
    "give all processes one secret: the output of 'openssl rand -hex 32' in " TOKEN_VARIABLE ", or in a file that "    \
    "--secret-file names (mode 600)"

// ---- The token: 64 hexadecimal digits as text ----

// Takes a text as the token. what: begins the message, which must not repeat the text.
static inline bool token_take(StarToken *token, const char *what, const char *text, Error *error) {
    size_t digits = strspn(text, "0123456789abcdefABCDEF"), end = digits + strspn(text + digits, "\r\n");
    if (digits != TOKEN_DIGITS || text[end] != '\0') {
        return fail(error, "%s: expected %d hexadecimal digits, as 'openssl rand -hex 32' prints", what, TOKEN_DIGITS);
    }
    memcpy(token->caller, text, TOKEN_HALF), memcpy(token->zero, text + TOKEN_HALF, TOKEN_HALF);
    return token->known = true;
}

// Reads the beginning of a file that only this user has written and may read.
static inline bool token_read_file(const char *path, char *text, size_t size, Error *error) {
    InputFile file;
    struct stat info;
    if (!input_open(&file, path, error)) { return false; }
    bool ok = fstat(file.fd, &info) == 0 || fail_system(error, path, "read");
    ok = ok && (info.st_uid == geteuid() || fail(error, "%s: belongs to user %ld, expected %ld, who runs this process",
                                                 path, (long)info.st_uid, (long)geteuid()));
    ok = ok && ((info.st_mode & 077) == 0 || fail(error, "%s: others may use it (mode %03o), expected 600: chmod 600",
                                                  path, (unsigned)(info.st_mode & 0777)));
    int64_t bytes = min_i64(file.size, (int64_t)size - 1);
    ok = ok && input_read(&file, 0, text, bytes, error);
    text[bytes] = '\0';
    input_close(&file);
    return ok;
}

// Finds the user's token: in a file, if one is named, or in the environment, from where it is removed. Neither is no
// error: the token is then not known.
static inline bool token_find(StarToken *token, const char *file, Error *error) {
    char text[TOKEN_DIGITS + 8];
    const char *variable = getenv(TOKEN_VARIABLE);
    memset(token, 0, sizeof(*token));
    if (file != NULL && file[0] != '\0') {
        return token_read_file(file, text, sizeof(text), error) && token_take(token, file, text, error);
    }
    if (variable == NULL) { return true; }
    bool ok = token_take(token, TOKEN_VARIABLE, variable, error);
    unsetenv(TOKEN_VARIABLE);
    return ok;
}

// ---- Addresses ----

// Reads "host", "host:port" or "[IPv6]:port".
static inline bool meet_parse_address(Start *s, const char *text, Error *error) {
    bool six = text[0] == '[';
    char more;
    s->port = MEET_DEFAULT_PORT;
    int found = sscanf(text, six ? "[%255[^]]]:%5d%c" : "%255[^:]:%5d%c", s->hosts, &s->port, &more);
    bool bare = !six && found == 1 && text[strlen(s->hosts)] == '\0';
    if ((bare || found == 2) && s->port >= 1 && s->port <= 65535) { return true; }
    return fail(error,
                "--server-ip %.200s: expected ADDRESS, ADDRESS:PORT or [IPv6]:PORT, of the machine of rank 0, and a "
                "port from 1 to 65535",
                text);
}

// Looks a name or a number up; freeaddrinfo frees *list.
static inline bool meet_look_up(const char *host, int port, struct addrinfo **list, Error *error) {
    struct addrinfo hints;
    char digits[16];
    memset(&hints, 0, sizeof(hints));
    hints.ai_family = AF_UNSPEC, hints.ai_socktype = SOCK_STREAM, hints.ai_flags = AI_NUMERICSERV;
    snprintf(digits, sizeof(digits), "%d", port);
    int status = getaddrinfo(host, digits, &hints, list);
    return status == 0 || fail(error, "%s: no such address: %s", host, gai_strerror(status));
}

// Tells whether an address means this machine on each machine.
static inline bool meet_is_loopback(const char *host) {
    bool four = strncmp(host, "127.", 4) == 0 && host[strspn(host, "0123456789.")] == '\0';
    return four || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

// Writes this machine's numbers that another machine can reach, separated by spaces, as far as they fit.
static inline void meet_own_addresses(char *text, size_t size) {
    struct ifaddrs *list = NULL;
    snprintf(text, size, "127.0.0.1 ::1"); // another machine finds nothing there, or another run, and goes on
    if (getifaddrs(&list) != 0) { return; }
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        char number[128];
        size_t used = strlen(text);
        int family = i->ifa_addr != NULL && (i->ifa_flags & IFF_UP) ? i->ifa_addr->sa_family : AF_UNSPEC;
        socklen_t bytes = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        if ((family != AF_INET && family != AF_INET6) || (i->ifa_flags & IFF_LOOPBACK)) { continue; }
        if (getnameinfo(i->ifa_addr, bytes, number, sizeof(number), NULL, 0, NI_NUMERICHOST) != 0) { continue; }
        bool local = strchr(number, '%') != NULL; // to a link: it means nothing without the interface's name
        if (!local && used + strlen(number) + 2 < size) { snprintf(text + used, size - used, " %s", number); }
    }
    freeifaddrs(list);
}

// Listens at all of this machine's addresses, IPv6 and IPv4, or where no other machine can call; port 0 takes any free
// one. -1 and errno on failure.
static inline int meet_listen(int port, bool everywhere) {
    struct sockaddr_in6 all;
    struct sockaddr_in four;
    memset(&all, 0, sizeof(all)), memset(&four, 0, sizeof(four)); // no address means all
    all.sin6_family = AF_INET6, four.sin_family = AF_INET;
    all.sin6_port = four.sin_port = htons((uint16_t)port);
    four.sin_addr.s_addr = htonl(everywhere ? INADDR_ANY : INADDR_LOOPBACK);
    int fd = everywhere ? socket_listen(&all, sizeof(all)) : -1;
    bool ends = everywhere && (fd >= 0 || errno == EADDRINUSE); // another failure: a machine without IPv6
    return ends ? fd : socket_listen(&four, sizeof(four));
}

// Returns the port of a listening socket.
static inline int meet_port(int fd) {
    struct sockaddr_in6 address;
    socklen_t bytes = sizeof(address);
    memset(&address, 0, sizeof(address));
    getsockname(fd, (struct sockaddr *)&address, &bytes);
    return ntohs(address.sin6_port); // IPv4 has it at one place with IPv6
}

// ---- TCP: the user says where rank 0 is ----

// With a token rank 0 listens at all addresses of its machine. Without one the ranks talk through 127.0.0.1.
static inline bool meet_by_tcp(Start *s, Error *error) {
    const CommOptions *o = &s->comm->options;
    if (o->address == NULL || o->address[0] == '\0') {
        return fail(error, "--server-ip is missing: a start by TCP needs the address of the machine of rank 0");
    }
    if (!meet_parse_address(s, o->address, error) || !token_find(&s->token, o->secret, error)) { return false; }
    if (!s->token.known && !meet_is_loopback(s->hosts)) {
        return fail(error,
                    "--server-ip %s: without a secret the ranks are on one machine, and this must be localhost, "
                    "127.0.0.1 or [::1]:PORT; for several machines " TOKEN_REMEDY,
                    s->hosts);
    }
    if (!s->token.known) { strcpy(s->hosts, "127.0.0.1"); }
    if (s->comm->rank == 0) { s->listener = meet_listen(s->port, s->token.known); }
    return s->comm->rank > 0 || s->listener >= 0 ||
           fail(error, "--server-ip %s: %s cannot listen at this port: %s; choose another", o->address,
                comm_name(s->comm, 0).text, strerror(errno));
}

// ---- MPI and the folder: rank 0 listens anywhere and says where ----

// Reads the text by which rank 0 says where it is.
static inline bool meet_parse_contact(Start *s, const char *text) {
    Error ignored;
    char token[TOKEN_DIGITS + 1];
    int end = 0, port = 0, found = sscanf(text, "token %64s\nport %5d\naddresses%n", token, &port, &end);
    s->port = port;
    snprintf(s->hosts, sizeof(s->hosts), "%.*s", (int)strcspn(text + end, "\n"), text + end);
    return found == 2 && end > 0 && port > 0 && port <= 65535 && token_take(&s->token, "", token, &ignored);
}

// Lets rank 0 listen at a free port of all its addresses, and makes the token of the run. Describes both in text, or
// why rank 0 cannot listen.
static inline bool meet_make_contact(Start *s, char text[MEET_TEXT_BYTES], Error *error) {
    uint8_t bytes[TOKEN_DIGITS / 2];
    char token[TOKEN_DIGITS + 1], numbers[MEET_TEXT_BYTES / 2];
    bool ok = getentropy(bytes, sizeof(bytes)) == 0 && (s->listener = meet_listen(0, true)) >= 0;
    snprintf(text, MEET_TEXT_BYTES, "%s cannot listen for the other ranks: %s", comm_name(s->comm, 0).text,
             strerror(errno));
    if (!ok) { return fail(error, "%s", text); }
    for (size_t i = 0; i < sizeof(bytes); i++) { snprintf(token + 2 * i, 3, "%02x", bytes[i]); }
    meet_own_addresses(numbers, sizeof(numbers));
    snprintf(text, MEET_TEXT_BYTES, "token %s\nport %d\naddresses %s\n", token, meet_port(s->listener), numbers);
    return meet_parse_contact(s, text) || fail(error, "rank 0 does not understand its own address");
}

// Writes rank 0's address into the folder. Rank 0 holds a lock on the folder until all ranks have come, so that one run
// at a time starts in it.
static inline bool meet_by_folder(Start *s, Error *error) {
    char text[MEET_TEXT_BYTES];
    const char *shared = s->comm->options.folder;
    if (shared == NULL || shared[0] == '\0') {
        return fail(error, "--nccl-fs-path is missing: a start through a folder needs one that all machines see");
    }
    bool ok = path_check(shared, "--nccl-fs-path", error) && path_join(s->folder, shared, MEET_FOLDER, error) &&
              path_join(s->file, s->folder, MEET_FILE, error);
    if (!ok || s->comm->rank > 0) { return ok; }
    return make_own_directory(s->folder, error) && directory_lock(&s->lock, s->folder, error) &&
           meet_make_contact(s, text, error) && write_whole_file(s->file, text, (int64_t)strlen(text), 0600, error);
}

// Reads rank 0's address from its file if there is one. An earlier run that was killed may have left the file, so
// another file may come whatever is wrong with it.
static inline bool meet_read_contact(Start *s, Error *error) {
    char text[MEET_TEXT_BYTES];
    // Network file systems remember for a while that a file is missing, unless its folder is read.
    DIR *look = opendir(s->folder);
    while (look != NULL && readdir(look) != NULL) {}
    if (look != NULL) { closedir(look); }
    if (!path_exists(s->file)) { return fail(error, "%s: rank 0 has not written it yet", s->file); }
    return token_read_file(s->file, text, sizeof(text), error) &&
           (meet_parse_contact(s, text) || fail(error, "%s: is no address of rank 0", s->file));
}

// MPI is used for the ranks and for telling rank 0's address, nothing else.
#ifdef USE_MPI
static inline bool meet_begin_mpi(const Launcher *launcher, int *rank, int *num_ranks, Error *error) {
    int provided = 0;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided); // ends the process if it fails
    MPI_Comm_rank(MPI_COMM_WORLD, rank), MPI_Comm_size(MPI_COMM_WORLD, num_ranks);
    return launcher->size < 1 || launcher->size == *num_ranks ||
           fail(error,
                "%s has started %d processes, but MPI sees %d: the launcher and the MPI library do not fit "
                "together (srun: try --mpi=pmix; mpirun: use that of the library)",
                launcher->name, launcher->size, *num_ranks);
}

static inline bool meet_by_mpi(Start *s, Error *error) {
    char text[MEET_TEXT_BYTES] = "";
    if (s->comm->rank == 0) { meet_make_contact(s, text, error); }
    MPI_Bcast(text, sizeof(text), MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD); // some MPIs send the last of a broadcast only when they are called again
    s->deadline = seconds_now() + s->comm->options.start_timeout; // MPI itself may have taken long
    bool ok = meet_parse_contact(s, text);
    s->told = !ok && s->comm->rank > 0;
    return ok || fail(error, "%s", text);
}

static inline void meet_end_mpi(void) { MPI_Finalize(); }
#else
static inline bool meet_begin_mpi(const Launcher *launcher, int *rank, int *num_ranks, Error *error) {
    (void)rank, (void)num_ranks;
    return fail(error,
                "%s has started several processes, but this program was built without MPI: build it where MPI "
                "is installed (make doctor says how), or add --nccl-init tcp or fs",
                launcher->name);
}
static inline bool meet_by_mpi(Start *s, Error *error) { return (void)s, fail(error, "built without MPI"); }
static inline void meet_end_mpi(void) {}
#endif

// Finds the number of ranks, and this process's rank. One process is rank 0 of 1. By MPI there are as many as the
// launcher has started (-1: it does not say).
static inline bool meet_find_place(const CommOptions *o, const Launcher *launcher, int *rank, int *num_ranks,
                                   Error *error) {
    const char *how = o->start == COMM_TCP ? "tcp" : "fs";
    bool mpi = o->start == COMM_MPI, several = mpi && launcher->name != NULL && launcher->size != 1;
    if (several && o->num_ranks > 0 && launcher->size > 0 && launcher->size != o->num_ranks) {
        return fail(error, "--num-processes is %d, but %s has started %d processes", o->num_ranks, launcher->name,
                    launcher->size);
    }
    if (several) { return meet_begin_mpi(launcher, rank, num_ranks, error); }
    if (mpi && o->num_ranks > 1) {
        return fail(error,
                    "--num-processes is %d, but neither mpirun nor srun has started several processes: start "
                    "with mpirun -np %d%s, or add --nccl-init tcp or fs",
                    o->num_ranks, o->num_ranks, geteuid() == 0 ? " (Open MPI as root: --allow-run-as-root)" : "");
    }
    if (mpi) { return true; }
    *num_ranks = o->num_ranks > 0 ? o->num_ranks : launcher->size;
    *rank = o->rank >= 0 ? o->rank : launcher->rank >= 0 ? launcher->rank : *num_ranks == 1 ? 0 : -1;
    if (*num_ranks <= 0) { return fail(error, "--nccl-init %s: --num-processes is missing", how); }
    if (*rank < 0) { return fail(error, "--nccl-init %s: --process-rank is missing", how); }
    return *rank < *num_ranks || fail(error, "--process-rank is %d, but must be from 0 to %d: --num-processes is %d",
                                      *rank, *num_ranks - 1, *num_ranks);
}

// ---- Joining ----

// Tries once each address that a name or a number stands for.
static inline bool meet_try_host(Start *s, const char *host, Error *error) {
    struct addrinfo *list;
    char where[300];
    bool ok = false;
    if (!meet_look_up(host, s->port, &list, error)) { return false; }
    snprintf(where, sizeof(where), strchr(host, ':') != NULL ? "[%.255s]:%d" : "%.255s:%d", host, s->port);
    for (const struct addrinfo *i = list; i != NULL && !ok && !s->told && seconds_now() < s->deadline; i = i->ai_next) {
        ok = star_join(s, i, where, error);
    }
    freeaddrinfo(list);
    return ok;
}

// Joins rank 0, again and again until the deadline. The message tells the outcome of the last attempt that the deadline
// did not cut short.
static inline bool meet_join(Start *s, Error *error) {
    char last[1024] = "", list[sizeof(s->hosts)];
    const Comm *comm = s->comm;
    do {
        bool found = comm->options.start != COMM_FOLDER || meet_read_contact(s, error);
        snprintf(list, sizeof(list), "%s", found ? s->hosts : "");
        for (char *rest = list, *host; !s->told && (host = strtok_r(rest, " ", &rest)) != NULL;) {
            if (meet_try_host(s, host, error)) { return true; }
        }
        if (last[0] == '\0' || seconds_now() < s->deadline) { snprintf(last, sizeof(last), "%.1000s", error->text); }
    } while (!s->told && seconds_now() < s->deadline && poll(NULL, 0, 100) == 0);
    return !s->told && fail(error,
                            "%s cannot reach rank 0 within %g s (--start-timeout), last attempt: %s; is rank 0 "
                            "started, and does no firewall come between?",
                            comm_name(comm, comm->rank).text, comm->options.start_timeout, last);
}

// ---- Opening and closing ----

// Releases the connections. The watch has ended.
static inline void comm_free(Comm *comm) {
    double deadline = seconds_now() + STAR_TELL_SECONDS;
    for (int i = 0; i < comm->num_ranks; i++) {
        if (comm->broken) { socket_hang_up(&comm->peers[i].talk, deadline); }
        socket_close(&comm->peers[i].talk), socket_close(&comm->peers[i].watch);
    }
    pthread_mutex_destroy(&comm->mutex);
    free(comm->peers);
    comm->peers = NULL;
}

static inline CommWho comm_who_am_i(const char *host) {
    CommWho who;
    memset(&who, 0, sizeof(who));
    who.pid = (int32_t)getpid();
    if (gethostname(who.host, sizeof(who.host) - 1) != 0 || who.host[0] == '\0') { strcpy(who.host, "localhost"); }
    if (host != NULL) { snprintf(who.host, sizeof(who.host), "%s", host); }
    return who;
}

// Makes a rank of several, without connections.
static inline bool comm_create(Comm *comm, const CommOptions *options, int rank, int num_ranks, Error *error) {
    struct rlimit files = {0, 0};
    rlim_t most = 2 * (rlim_t)num_ranks + 256;
    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < most) { files.rlim_cur = most; }
    if (num_ranks > COMM_MAX_RANKS || setrlimit(RLIMIT_NOFILE, &files) != 0) {
        return fail(error, "%d processes are more than this system has connections for (ulimit -n)", num_ranks);
    }
    comm->peers = (CommPeer *)calloc((size_t)num_ranks, sizeof(CommPeer));
    if (comm->peers == NULL) { return fail(error, "out of memory"); }
    comm->rank = rank, comm->num_ranks = num_ranks;
    for (int i = 0; i < num_ranks; i++) { comm->peers[i].talk = comm->peers[i].watch = -1; }
    pthread_mutex_init(&comm->mutex, NULL);
    comm->peers[rank].who = comm_who_am_i(options->host);
    comm->options = *options;
    comm->options.silence = options->silence > 0.0 ? options->silence : 20.0;
    return true;
}

static inline void start_begin(Start *s, Comm *comm) {
    memset(s, 0, sizeof(*s));
    s->comm = comm;
    s->deadline = seconds_now() + comm->options.start_timeout;
    s->listener = s->lock.fd = -1;
}

// Connects this rank to rank 0, or rank 0 to all ranks.
static inline bool comm_connect(Comm *comm, bool *told, Error *error) {
    Start start, *s = &start;
    Error words;
    start_begin(s, comm);
    bool ok = comm->options.start == COMM_MPI   ? meet_by_mpi(s, error)
              : comm->options.start == COMM_TCP ? meet_by_tcp(s, error)
                                                : meet_by_folder(s, error);
    ok = ok && (comm->rank == 0 ? star_gather(s, error) : meet_join(s, error));
    if (s->lock.fd >= 0) { unlink(s->file); }
    directory_unlock(&s->lock);
    socket_close(&s->listener);
    comm->start_deadline = s->deadline + MEET_GRACE_SECONDS;
    *told = s->told;
    if (ok && s->num_strangers > 0) {
        fail(&words, STAR_STRANGERS, s->num_strangers);
        print_error(comm->options.program, &words);
    }
    return ok;
}

// Tells all ranks who is who, in the first exchange. Then this rank knows its place, and the watch begins.
static inline bool comm_introduce(Comm *comm, Error *error) {
    int gpus = comm->options.gpus_per_node, me = comm->rank;
    Text all;
    bool ok = comm_gather(comm, "names", &comm->peers[me].who, (int64_t)sizeof(CommWho), &all, error);
    for (int i = 0; ok && i < comm->num_ranks; i++) {
        comm->peers[i].who = ((const CommWho *)all.data)[i];
        comm->peers[i].who.host[COMM_HOST_BYTES - 1] = '\0';
    }
    text_free(&all);
    comm->local_rank = comm->num_local = comm->num_machines = 0;
    for (int i = 0; i < comm->num_ranks; i++) {
        const char *host = comm->peers[i].who.host;
        bool here = gpus > 0 ? i / gpus == me / gpus : strcmp(host, comm->peers[me].who.host) == 0, first = true;
        comm->local_rank += here && i < me;
        comm->num_local += here;
        for (int j = 0; first && j < i; j++) { first = strcmp(host, comm->peers[j].who.host) != 0; }
        comm->num_machines += first;
    }
    comm->start_deadline = 0.0;
    return ok && watch_start(comm, error);
}

// Ends this rank's part in order: says goodbye, so that the other ranks can go on without it. When an exchange has
// failed, it tells the other ranks that instead. Ends within seconds, except with MPI, which waits for all ranks (under
// the watch). Harmless on a Comm of zeros, and on one that is closed or failed to open.
static inline void comm_close(Comm *comm) {
    if (comm->mpi && !comm->ending && !comm->broken) {
        comm_progress(comm, "the end"), comm_waits(comm, true);
        meet_end_mpi();
    }
    if (comm->peers != NULL) {
        if (!comm->ending) { comm_end_watch(comm, comm->broken ? comm->known : ""); }
        comm_free(comm);
    }
    // mpirun ends all processes as soon as one has failed: a rank that prints must come first.
    if (comm->mpi && comm->known[0] != '\0' && !comm->prints) { poll(NULL, 0, 200); }
    comm->mpi = false;
}

// Finds out how many processes there are and connects them. A single process is as after comm_single. The error is one
// line: an option, the ranks concerned, the remedy.
static inline bool comm_open(Comm *comm, const CommOptions *options, Error *error) {
    Launcher launcher = launcher_find();
    int rank = 0, num_ranks = 1;
    comm_single(comm);
    bool ok = meet_find_place(options, &launcher, &rank, &num_ranks, error);
    bool told = !ok; // all processes of a launcher find one mistake in their number
    comm->mpi = ok && options->start == COMM_MPI && launcher.name != NULL && launcher.size != 1;
    if (ok && num_ranks == 1) { return true; }
    bool first = launcher.local_rank >= 0 ? launcher.local_rank == 0 : launcher.rank <= 0;
    comm->prints = first || options->start != COMM_MPI;
    if (ok && comm_create(comm, options, rank, num_ranks, error) && comm_connect(comm, &told, error) &&
        comm_introduce(comm, error)) {
        return true;
    }
    bool own = !told && !comm->broken; // an exchange fails on all ranks
    comm->mpi = false;                 // MPI_Finalize would wait for ranks that may never come
    comm->broken = true;
    comm_all_know(comm, error);
    comm_close(comm);
    comm->prints = comm->prints || own;
    return false;
}

#endif // LLMC_MEET_H
