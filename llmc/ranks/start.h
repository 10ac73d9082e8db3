// Opens and closes the ranks of a run. A process that knows where rank 0 is (rendezvous.h) connects, says HELLO, and
// gets WELCOME at once, so that it knows that it speaks to the right program. When all ranks have come, START brings
// the table of their hosts, and the watch begins. When one rank is refused, or ends meanwhile, all get REFUSED. Every
// fault is one line on every rank that can be reached, at once if possible, and after start_timeout (and some seconds)
// at the latest.
//
// Nothing is encrypted, and TCP starts know no password: run on a network you trust.
#ifndef LLMC_START_H
#define LLMC_START_H

#include "llmc/ranks/rendezvous.h"
#include "llmc/ranks/watch.h"

#define COMM_PROTOCOL 3            // another number: other frames
#define COMM_GREETING_SECONDS 10.0 // for the other end of a new connection to say who it is
#define COMM_CONNECT_SECONDS 2.0   // to connect to one address
#define COMM_MAX_ADDRESSES 24

// The first words of a process.
typedef struct {
    int32_t protocol, rank, num_ranks, unused;
    uint64_t nonce;
    CommWho who;
} CommHello;

// How long a greeting or its answer may take.
static inline double comm_greeting_seconds(const CommStartup *s) {
    return s->options->start_timeout < COMM_GREETING_SECONDS ? s->options->start_timeout : COMM_GREETING_SECONDS;
}

// ---- Rank 0: waiting for the other ranks ----

// Forgets a caller. Its link is closed, or is now the link of a rank.
static inline void comm_forget_caller(CommStartup *s, int i) { s->callers[i] = s->callers[--s->num_callers]; }

static inline void comm_drop_caller(CommStartup *s, int i) {
    link_close(&s->callers[i]);
    comm_forget_caller(s, i);
}

static inline int comm_count_missing(const CommStartup *s) {
    int missing = 0;
    for (int i = 1; i < s->num_ranks; i++) { missing += s->shared->links[i].fd < 0; }
    return missing;
}

// Names the ranks that have not come.
static inline bool comm_fail_missing(const CommStartup *s, Error *error) {
    char names[200] = "", strangers[96] = "";
    size_t used = 0;
    for (int i = 1; i < s->num_ranks && used < sizeof(names) - 16; i++) {
        if (s->shared->links[i].fd >= 0) { continue; }
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%d", used > 0 ? ", " : "", i);
    }
    if (s->num_strangers > 0) {
        snprintf(strangers, sizeof(strangers), "; connections of other programs that came instead: %d",
                 s->num_strangers);
    }
    return fail(error,
                "no connection within %g s (--start-timeout) from rank %s of %d: are they started, and can they reach "
                "rank 0 on %s?%s",
                s->options->start_timeout, names, s->num_ranks, s->me.host, strangers);
}

static inline void comm_accept_callers(CommStartup *s) {
    while (s->num_callers < COMM_CALLERS) {
        int fd = socket_accept(s->listener);
        if (fd < 0) { return; }
        link_open(&s->callers[s->num_callers++], fd, (int64_t)sizeof(CommHello));
    }
}

// Tells all that are connected why the run does not start.
static inline void comm_refuse_all(CommStartup *s, const Error *error) {
    double deadline = seconds_now() + COMM_TELL_SECONDS;
    comm_accept_callers(s); // callers that have just come get an answer too
    int64_t bytes = (int64_t)strlen(error->text);
    links_send(s->shared->links, s->num_ranks, FRAME_REFUSED, error->text, bytes);
    links_send(s->callers, s->num_callers, FRAME_REFUSED, error->text, bytes);
    links_hang_up(s->callers, s->num_callers, deadline);
    links_hang_up(s->shared->links, s->num_ranks, deadline);
}

// Does this greeting fit the run? A secret that all ranks share would be proven here, before anything else is believed.
static inline bool comm_check_hello(const CommStartup *s, const CommHello *hello, Error *error) {
    int rank = hello->rank;
    CommName name = comm_who_process(rank, &hello->who);
    if (hello->protocol != COMM_PROTOCOL) {
        return fail(error, "%s runs another version of the program than rank 0 (%s): start the same build everywhere",
                    name.text, s->me.host);
    }
    if (hello->num_ranks != s->num_ranks) {
        return fail(error,
                    "%s was started as one of %d processes, rank 0 (%s) as one of %d: give all the same "
                    "--num-processes",
                    name.text, hello->num_ranks, s->me.host, s->num_ranks);
    }
    if (rank < 0 || rank >= s->num_ranks) {
        return fail(error, "%s: --process-rank must be from 0 to %d", name.text, s->num_ranks - 1);
    }
    if (rank > 0 && s->shared->links[rank].fd < 0) { return true; }
    return fail(error, "%s came, but %s has that rank already: each process needs its own --process-rank", name.text,
                comm_who_process(rank, &s->shared->who[rank]).text);
}

// A caller has said who it is. False: the run cannot start.
static inline bool comm_admit(CommStartup *s, int i, const CommHello *hello, Error *error) {
    Link *caller = &s->callers[i];
    if (hello->nonce != s->contact.nonce) { // it has found an old address, and looks for another run
        links_send(caller, 1, FRAME_STRANGER, NULL, 0);
        comm_drop_caller(s, i);
        return true;
    }
    if (!comm_check_hello(s, hello, error)) { return false; }
    links_send(caller, 1, FRAME_WELCOME, &s->shared->who[0], (int64_t)sizeof(CommWho));
    s->shared->links[hello->rank] = *caller;
    s->shared->who[hello->rank] = hello->who;
    comm_forget_caller(s, i);
    return true;
}

// Reads what a caller says. Drops other programs (such as port scanners) and silent callers without a word.
static inline bool comm_hear_caller(CommStartup *s, int i, Error *error) {
    Link *caller = &s->callers[i];
    Frame *frame = NULL;
    CommHello hello;
    LinkStatus status = link_receive(caller, &frame);
    if (status == LINK_WAIT && seconds_now() < caller->opened + comm_greeting_seconds(s)) { return true; }
    if (status == LINK_FRAME && frame_take(frame, FRAME_HELLO, &hello, sizeof(hello))) {
        hello.who.host[COMM_HOST_BYTES - 1] = '\0';
        return comm_admit(s, i, &hello, error);
    }
    s->num_strangers++;
    comm_drop_caller(s, i);
    return true;
}

// The ranks that are here say nothing until the start: their links speak only when they close.
static inline bool comm_check_present(const CommStartup *s, Error *error) {
    for (int rank = 1; rank < s->num_ranks; rank++) {
        Link *link = &s->shared->links[rank];
        Frame *frame = NULL;
        if (link->fd < 0 || link_receive(link, &frame) == LINK_WAIT) { continue; }
        frame_release(frame);
        return fail(error, "%s ended while the run was starting (its own message says why)",
                    comm_who_process(rank, &s->shared->who[rank]).text);
    }
    return true;
}

// Waits until something happens on a connection, for half a second at most, and handles it.
static inline bool comm_gather_round(CommStartup *s, Error *error) {
    struct pollfd *polled = s->shared->polled;
    polled[0].fd = s->num_callers < COMM_CALLERS ? s->listener : -1, polled[0].events = POLLIN;
    int count = links_poll(s->callers, s->num_callers, polled, 1);
    count = links_poll(s->shared->links, s->num_ranks, polled, count);
    poll(polled, (nfds_t)count, socket_milliseconds(s->deadline, 500));
    comm_accept_callers(s);
    for (int i = s->num_callers - 1; i >= 0; i--) { // from the end: the last caller takes the place of a dropped one
        if (!comm_hear_caller(s, i, error)) { return false; }
    }
    if (!comm_check_present(s, error)) { return false; }
    return seconds_now() < s->deadline || comm_count_missing(s) == 0 || comm_fail_missing(s, error);
}

// Rank 0: waits until all ranks have come, and tells them who is who. The watch finds a rank that dies from then on.
static inline bool comm_gather(CommStartup *s, Error *error) {
    bool ok = true;
    while (ok && comm_count_missing(s) > 0) { ok = comm_gather_round(s, error); }
    if (!ok) { comm_refuse_all(s, error); }
    while (s->num_callers > 0) { comm_drop_caller(s, 0); }
    int64_t bytes = s->num_ranks * (int64_t)sizeof(CommWho);
    if (ok) { links_send(s->shared->links, s->num_ranks, FRAME_START, s->shared->who, bytes); }
    return ok;
}

// ---- The other ranks: joining rank 0 ----

typedef enum { JOIN_DONE, JOIN_AGAIN, JOIN_FAILED } JoinStatus;

// Another program answers at the address. If the address comes from a file or from a list of all addresses of a
// machine, the right one may still come.
static inline JoinStatus comm_join_foreign(const CommStartup *s, const char *where, const char *what, Error *error) {
    fail(error, "%s: %s: is another program on this port? Rank 0 of gpt2.c is expected there", where, what);
    return s->options->start == COMM_TCP ? JOIN_FAILED : JOIN_AGAIN;
}

// Waits for rank 0 to say this. If it refuses the run instead, s->told is set and *error says why.
static inline bool comm_hear_zero(CommStartup *s, Link *link, FrameType type, CommWho *who, int count, double deadline,
                                  LinkStatus *status, Error *error) {
    Frame *frame = NULL;
    *status = link_await(link, &frame, deadline);
    if (*status != LINK_FRAME) { return false; }
    s->told = frame->head.type == FRAME_REFUSED;
    if (s->told) { fail(error, "%s", (const char *)frame->data); }
    bool heard = frame_take(frame, type, who, (size_t)count * sizeof(CommWho));
    for (int i = 0; heard && i < count; i++) { who[i].host[COMM_HOST_BYTES - 1] = '\0'; }
    return heard;
}

// Greets rank 0, and waits for its welcome.
static inline JoinStatus comm_join_greet(CommStartup *s, Link *link, const char *where, Error *error) {
    CommHello hello;
    LinkStatus status;
    memset(&hello, 0, sizeof(hello));
    hello.protocol = COMM_PROTOCOL, hello.rank = s->rank, hello.num_ranks = s->num_ranks;
    hello.nonce = s->contact.nonce;
    hello.who = s->me;
    links_send(link, 1, FRAME_HELLO, &hello, (int64_t)sizeof(hello));
    double deadline = seconds_now() + comm_greeting_seconds(s);
    if (comm_hear_zero(s, link, FRAME_WELCOME, s->shared->who, 1, deadline, &status, error)) { return JOIN_DONE; }
    if (s->told) { return JOIN_FAILED; }
    if (status == LINK_TIMEOUT) { return comm_join_foreign(s, where, "connects, but does not answer", error); }
    if (status == LINK_BROKEN && errno == EBADMSG) {
        return comm_join_foreign(s, where, "answers something else", error);
    }
    fail(error, "%s: %s", where, status == LINK_FRAME ? "rank 0 of another run answers" : "closes the connection");
    return JOIN_AGAIN;
}

// Waits for the start. Rank 0 counts the time. If it is silent, this rank ends a little later by itself.
static inline JoinStatus comm_join_wait(CommStartup *s, Link *link, Error *error) {
    LinkStatus status;
    CommName name = comm_who_process(0, &s->shared->who[0]);
    double deadline = seconds_now() + s->options->start_timeout + comm_greeting_seconds(s);
    if (comm_hear_zero(s, link, FRAME_START, s->shared->who, s->num_ranks, deadline, &status, error)) {
        return JOIN_DONE;
    }
    if (!s->told && status == LINK_TIMEOUT) {
        fail(error, "%s does not start the run, and is silent", name.text);
    } else if (!s->told) {
        fail(error, "%s ended while the run was starting (its own message says why)", name.text);
    }
    return JOIN_FAILED;
}

// Joins the run whose rank 0 is at this address.
static inline JoinStatus comm_join_at(CommStartup *s, const SocketAddress *address, Error *error) {
    SocketAddressText where = socket_address_text(address);
    int lookup = 0, fd = socket_connect(address, COMM_CONNECT_SECONDS, s->deadline, &lookup);
    if (fd < 0 && lookup != 0) {
        comm_fail_lookup(address, lookup, error);
        return lookup != EAI_AGAIN ? JOIN_FAILED : JOIN_AGAIN;
    }
    if (fd < 0) {
        fail(error, "%s: %s", where.text, strerror(errno));
        return JOIN_AGAIN;
    }
    Link *link = &s->shared->links[0];
    link_open(link, fd, COMM_MAX_RANKS * (int64_t)sizeof(CommWho));
    JoinStatus status = comm_join_greet(s, link, where.text, error);
    // From here on rank 0 counts on this rank: any failure now ends the start.
    if (status == JOIN_DONE) { status = comm_join_wait(s, link, error); }
    if (status != JOIN_DONE) { link_close(link); }
    return status;
}

// Tries each address of rank 0 once. On rank 0's own machine the loopback address always works. On another machine it
// would lead to that machine itself.
static inline JoinStatus comm_join_contact(CommStartup *s, Error *error) {
    const CommContact *contact = &s->contact;
    bool same_host = strcmp(contact->host, s->me.host) == 0;
    char list[sizeof(contact->text) + 32];
    snprintf(list, sizeof(list), "%s%s", same_host ? "127.0.0.1 ::1 " : "", contact->text);
    char *rest = list, *host;
    JoinStatus status = JOIN_AGAIN;
    fail(error, "rank 0 (%s) has no address that another machine can use", contact->host);
    for (int i = 0; status == JOIN_AGAIN && i < COMM_MAX_ADDRESSES && (host = strtok_r(rest, " ", &rest)); i++) {
        SocketAddress address;
        snprintf(address.host, sizeof(address.host), "%s", host);
        address.port = contact->port;
        status = comm_join_at(s, &address, error);
    }
    return status;
}

// Joins rank 0, again and again until the deadline. The message tells the outcome of the last attempt.
static inline bool comm_join(CommStartup *s, Error *error) {
    JoinStatus status;
    do {
        status = comm_find_contact(s, error) ? comm_join_contact(s, error) : JOIN_AGAIN;
    } while (status == JOIN_AGAIN && comm_try_again(s->deadline));
    if (status != JOIN_AGAIN) { return status == JOIN_DONE; }
    char last[1024];
    snprintf(last, sizeof(last), "%.1000s", error->text);
    return fail(error,
                "rank %d (%s) cannot reach rank 0 within %g s (--start-timeout), last attempt: %s; is rank 0 started, "
                "and does no firewall come between?",
                s->rank, s->me.host, s->options->start_timeout, last);
}

// ---- Opening and closing ----

static inline void comm_free_shared(CommShared *s) {
    for (int i = 0; i < s->num_ranks; i++) {
        if (s->links != NULL) { link_close(&s->links[i]); }
        for (int k = 0; s->peers != NULL && k < 2; k++) { frame_release(s->peers[i].inbox[k]); }
    }
    socket_close(&s->wake[0]);
    socket_close(&s->wake[1]);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    pthread_mutex_destroy(&s->callbacks.mutex);
    free(s->who), free(s->links), free(s->peers), free(s->polled);
    free(s);
}

// Makes the state of a rank, without connections. NULL: out of memory.
static inline CommShared *comm_create_shared(int rank, int num_ranks) {
    CommShared *s = (CommShared *)calloc(1, sizeof(CommShared));
    if (s == NULL) { return NULL; }
    s->rank = rank, s->num_ranks = num_ranks;
    s->wake[0] = s->wake[1] = -1;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_mutex_init(&s->callbacks.mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->who = (CommWho *)calloc((size_t)num_ranks, sizeof(CommWho));
    s->links = (Link *)calloc((size_t)num_ranks, sizeof(Link));
    s->peers = (CommPeer *)calloc((size_t)num_ranks, sizeof(CommPeer));
    s->polled = (struct pollfd *)calloc((size_t)num_ranks + COMM_CALLERS + 1, sizeof(struct pollfd));
    for (int i = 0; s->links != NULL && i < num_ranks; i++) { s->links[i].fd = -1; }
    if (s->who != NULL && s->links != NULL && s->peers != NULL && s->polled != NULL) { return s; }
    comm_free_shared(s);
    return NULL;
}

// Counts the ranks of this machine, and finds this rank's place among them.
static inline void comm_find_local(Comm *comm, int gpus_per_node) {
    comm->local_rank = comm->num_local = 0;
    for (int i = 0; i < comm->num_ranks; i++) {
        bool here = gpus_per_node > 0 ? i / gpus_per_node == comm->rank / gpus_per_node
                                      : strcmp(comm_host(comm, i), comm_host(comm, comm->rank)) == 0;
        if (here && i < comm->rank) { comm->local_rank++; }
        if (here) { comm->num_local++; }
    }
}

static inline CommWho comm_who_am_i(const char *host) {
    CommWho who;
    memset(&who, 0, sizeof(who));
    who.pid = (int32_t)getpid();
    if (host != NULL) {
        snprintf(who.host, sizeof(who.host), "%s", host);
    } else if (gethostname(who.host, sizeof(who.host) - 1) != 0 || who.host[0] == '\0') {
        snprintf(who.host, sizeof(who.host), "localhost");
    }
    return who;
}

// Connects all ranks, and starts the watch.
static inline bool comm_connect(Comm *comm, const CommOptions *options, bool *told, Error *error) {
    CommStartup s;
    if (comm->num_ranks > COMM_MAX_RANKS || !socket_allow_open_files((int64_t)comm->num_ranks + 256)) {
        return fail(error, "%d processes are more than this system has connections for (ulimit -n)", comm->num_ranks);
    }
    CommShared *shared = comm->shared = comm_create_shared(comm->rank, comm->num_ranks);
    if (shared == NULL) { return fail(error, "out of memory"); }
    memset(&s, 0, sizeof(s));
    s.options = options, s.shared = shared;
    s.rank = comm->rank, s.num_ranks = comm->num_ranks;
    s.deadline = seconds_now() + options->start_timeout;
    s.me = shared->who[comm->rank] = comm_who_am_i(options->host);
    shared->beat = options->beat > 0.0 ? options->beat : 0.5;
    shared->silence = options->silence > 0.0 ? options->silence : 20.0;
    shared->watchdog = options->watchdog;
    snprintf(shared->program, sizeof(shared->program), "%s", options->program != NULL ? options->program : "");
    bool ok = comm_meet(&s, error) && (s.rank == 0 ? comm_gather(&s, error) : comm_join(&s, error));
    comm_part(&s);
    *told = s.told;
    if (!ok) { return false; }
    comm_find_local(comm, options->gpus_per_node);
    comm->prints = shared->prints = options->start != COMM_MPI || comm_is_first_of_machine(comm, comm->rank);
    return watch_start(shared, error);
}

// Finds out how many processes there are and connects them. A single process is as after comm_single. The error is one
// line: an option, the ranks concerned, the remedy.
static inline bool comm_open(Comm *comm, const CommOptions *options, Error *error) {
    Launcher launcher = launcher_find();
    int rank = 0, num_ranks = 1;
    comm_single(comm);
    bool ok = comm_find_place(options, &launcher, &rank, &num_ranks, error);
    bool told = !ok; // all processes of a launcher find one mistake in their number
    if (ok) { comm->rank = rank, comm->num_ranks = num_ranks; }
    comm->mpi = ok && options->start == COMM_MPI && launcher.name != NULL && launcher.size != 1;
    if (ok && num_ranks == 1) { return true; }
    if (ok && comm_connect(comm, options, &told, error)) { return true; }
    // The machines' names are not known yet: the launcher's first process of a machine tells what all know.
    bool first = launcher.local_rank >= 0 ? launcher.local_rank == 0 : launcher.rank <= 0;
    comm->prints = first || options->start != COMM_MPI || !told;
    comm->mpi = false; // MPI_Finalize would wait for ranks that may never come
    if (comm->shared != NULL) { comm_free_shared(comm->shared); }
    comm->shared = NULL;
    return false;
}

// Ends this rank's part in order: says goodbye, so that the other ranks can go on without it. When an exchange has
// failed, it tells the other ranks that instead. Ends within seconds, except with MPI, which waits for all ranks (under
// the watch). Harmless on a Comm of zeros, and on one that is closed or failed to open.
static inline void comm_close(Comm *comm) {
    CommShared *s = comm->shared;
    if (comm->mpi && !comm->told && !comm->broken) {
        comm_progress(comm, "the end"), comm_waits(comm, true);
        comm_mpi_end();
    }
    if (s != NULL) {
        if (!comm->told) { comm_end_watch(s, comm->broken ? comm->known : NULL); }
        comm_free_shared(s);
    }
    comm->shared = NULL;
    // mpirun ends all processes as soon as one has failed: a rank that prints must come first.
    if (comm->mpi && comm->known[0] != '\0' && !comm->prints) { poll(NULL, 0, 200); }
    comm->mpi = false;
}

#endif // LLMC_START_H
