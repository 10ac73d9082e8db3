// Opens and closes the ranks of a run. A process that knows where rank 0 is (rendezvous.h) connects, says HELLO, and
// gets WELCOME at once, so that it knows that it speaks to the right program. From then on the watch guards the
// connection: when a rank ends meanwhile, or cannot be one, all ranks end with the reason. The first exchange tells all
// ranks who is who. Every fault is one line on every rank that can be reached, at once if possible, and after
// start_timeout (and some seconds) at the latest.
//
// Nothing is encrypted, and TCP starts know no password: run on a network you trust.
#ifndef LLMC_START_H
#define LLMC_START_H

#include "llmc/ranks/rendezvous.h"
#include "llmc/ranks/watch.h"

#define COMM_PROTOCOL 5            // another number: other frames
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

// Names the ranks that have not come.
static inline bool comm_fail_missing(const CommStartup *s, Error *error) {
    char names[200] = "", strangers[96] = "";
    size_t used = 0;
    for (int i = 1; i < s->num_ranks && used < sizeof(names) - 16; i++) {
        if (s->shared->who[i].pid != 0) { continue; }
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

// Does this greeting fit the run?
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
    if (s->shared->who[rank].pid == 0) { return true; }
    return fail(error, "%s came, but %s has that rank already: each process needs its own --process-rank", name.text,
                comm_who_process(rank, &s->shared->who[rank]).text);
}

// A caller is a rank of this run. From here on the watch guards its link.
static inline void comm_admit(CommStartup *s, int i, const CommHello *hello) {
    CommShared *shared = s->shared;
    Link *link = &shared->links[hello->rank];
    links_send(&s->callers[i], 1, FRAME_WELCOME, &s->me, (int64_t)sizeof(CommWho));
    pthread_mutex_lock(&shared->mutex);
    shared->who[hello->rank] = hello->who;
    *link = s->callers[i];
    link->limit = LINK_MAX_BYTES;
    pthread_mutex_unlock(&shared->mutex);
    comm_wake(shared);
    comm_forget_caller(s, i);
    s->num_missing--;
}

// Judges a caller that has said who it is. False: the run cannot start. If all ranks shared a secret, a caller that
// cannot prove that it knows it would be dropped here.
static inline bool comm_judge_caller(CommStartup *s, int i, const CommHello *hello, Error *error) {
    if (hello->nonce != s->contact.nonce) { // it has an old address, and looks for another run
        links_send(&s->callers[i], 1, FRAME_STRANGER, NULL, 0);
        comm_drop_caller(s, i);
        return true;
    }
    if (!comm_check_hello(s, hello, error)) { return false; }
    comm_admit(s, i, hello);
    return true;
}

// Reads what a caller says. Drops other programs (such as port scanners) and silent callers without a word.
static inline bool comm_hear_caller(CommStartup *s, int i, Error *error) {
    Link *caller = &s->callers[i];
    Frame *frame = NULL;
    CommHello hello;
    LinkStatus status = link_receive(caller, &frame);
    if (status == LINK_WAIT && seconds_now() < caller->opened + comm_greeting_seconds(s)) { return true; }
    if (status == LINK_FRAME && frame_take(frame, FRAME_HELLO, &hello, sizeof(hello)) && hello.who.pid > 0) {
        hello.who.host[COMM_HOST_BYTES - 1] = '\0';
        return comm_judge_caller(s, i, &hello, error);
    }
    s->num_strangers++;
    comm_drop_caller(s, i);
    return true;
}

// Waits until something happens on a connection, for half a second at most, and handles it.
static inline bool comm_gather_round(CommStartup *s, Error *error) {
    struct pollfd polled[COMM_CALLERS + 1];
    int count = links_poll(s->callers, s->num_callers, polled, 0);
    polled[count].fd = s->num_callers < COMM_CALLERS ? s->listener : -1, polled[count].events = POLLIN;
    poll(polled, (nfds_t)count + 1, socket_milliseconds(s->deadline, 500));
    comm_accept_callers(s);
    for (int i = s->num_callers - 1; i >= 0; i--) { // from the end: the last caller takes the place of a dropped one
        if (!comm_hear_caller(s, i, error)) { return false; }
    }
    return seconds_now() < s->deadline || s->num_missing == 0 || comm_fail_missing(s, error);
}

// Rank 0: waits until all ranks have come. On failure tells the callers why. The watch tells the ranks.
static inline bool comm_gather(CommStartup *s, Error *error) {
    bool ok = true;
    s->num_missing = s->num_ranks - 1;
    while (ok && s->num_missing > 0) { ok = comm_gather_round(s, error); }
    if (!ok) {
        comm_accept_callers(s); // callers that have just come get an answer too
        links_send(s->callers, s->num_callers, FRAME_REFUSED, error->text, (int64_t)strlen(error->text));
        links_hang_up(s->callers, s->num_callers, seconds_now() + COMM_TELL_SECONDS);
    }
    while (s->num_callers > 0) { comm_drop_caller(s, 0); }
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

// Takes the answer to a greeting.
static inline JoinStatus comm_join_answer(CommStartup *s, LinkStatus status, const char *where, Frame *frame,
                                          Error *error) {
    CommWho *zero = &s->shared->who[0];
    if (status == LINK_TIMEOUT) { return comm_join_foreign(s, where, "connects, but does not answer", error); }
    if (status == LINK_BROKEN && errno == EBADMSG) {
        return comm_join_foreign(s, where, "answers something else", error);
    }
    fail(error, "%s: %s", where, status == LINK_FRAME ? "rank 0 of another run answers" : "closes the connection");
    if (status != LINK_FRAME) { return JOIN_AGAIN; }
    s->told = frame->head.type == FRAME_REFUSED;
    if (s->told) { fail(error, "%s", (const char *)frame->data); }
    bool welcome = frame_take(frame, FRAME_WELCOME, zero, sizeof(*zero));
    zero->host[COMM_HOST_BYTES - 1] = '\0';
    return s->told ? JOIN_FAILED : welcome ? JOIN_DONE : JOIN_AGAIN;
}

// Greets rank 0, and waits for its answer.
static inline JoinStatus comm_join_greet(CommStartup *s, Link *link, const char *where, Error *error) {
    CommHello hello;
    Frame *frame = NULL;
    memset(&hello, 0, sizeof(hello));
    hello.protocol = COMM_PROTOCOL, hello.rank = s->rank, hello.num_ranks = s->num_ranks;
    hello.nonce = s->contact.nonce;
    hello.who = s->me;
    links_send(link, 1, FRAME_HELLO, &hello, (int64_t)sizeof(hello));
    LinkStatus status = link_await(link, &frame, seconds_now() + comm_greeting_seconds(s));
    return comm_join_answer(s, status, where, frame, error);
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
    link_open(link, fd, COMM_TEXT_BYTES);
    JoinStatus status = comm_join_greet(s, link, where.text, error);
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
    s->polled = (struct pollfd *)calloc((size_t)num_ranks + 1, sizeof(struct pollfd));
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

// Fills in what the watch needs to know.
static inline void comm_set_shared(CommShared *shared, const CommOptions *options, bool prints) {
    shared->who[shared->rank] = comm_who_am_i(options->host);
    shared->beat = options->beat > 0.0 ? options->beat : 0.5;
    shared->silence = options->silence > 0.0 ? options->silence : 20.0;
    shared->prints = prints;
    snprintf(shared->program, sizeof(shared->program), "%s", options->program != NULL ? options->program : "");
}

// Connects this rank to rank 0, or rank 0 to all ranks, and starts the watch.
static inline bool comm_connect(Comm *comm, const CommOptions *options, bool *told, Error *error) {
    CommStartup s;
    memset(&s, 0, sizeof(s));
    s.options = options, s.shared = comm->shared;
    s.rank = comm->rank, s.num_ranks = comm->num_ranks;
    s.deadline = seconds_now() + options->start_timeout;
    s.me = comm->shared->who[comm->rank];
    bool ok = comm_meet(&s, error);
    if (s.rank == 0) {
        ok = ok && watch_start(comm->shared, error) && comm_gather(&s, error);
    } else {
        ok = ok && comm_join(&s, error) && watch_start(comm->shared, error);
    }
    comm_part(&s);
    *told = s.told;
    return ok;
}

// The first exchange: rank 0 tells all ranks who is who. Then this rank knows its place, and the watchdog begins.
static inline bool comm_introduce(Comm *comm, const CommOptions *options, Error *error) {
    CommShared *s = comm->shared;
    Frame *frame;
    int64_t bytes = comm->num_ranks * (int64_t)sizeof(CommWho);
    if (!comm_exchange(comm, "the start", bytes, s->who, comm->rank == 0 ? bytes : 0, &frame, error)) { return false; }
    comm->sequence = 0; // the first exchange of the caller has number 1
    pthread_mutex_lock(&s->mutex);
    bool ok = frame_take(frame, FRAME_RESULT, s->who, (size_t)bytes);
    for (int i = 0; i < comm->num_ranks; i++) { s->who[i].host[COMM_HOST_BYTES - 1] = '\0'; }
    comm_find_local(comm, options->gpus_per_node);
    comm->prints = s->prints = options->start != COMM_MPI || comm_is_first_of_machine(comm, comm->rank);
    s->watchdog = options->watchdog;
    s->since = seconds_now();
    pthread_mutex_unlock(&s->mutex);
    return ok || fail(error, "rank 0 answers the start with something else");
}

static inline bool comm_open_several(Comm *comm, const CommOptions *options, bool *told, Error *error) {
    if (comm->num_ranks > COMM_MAX_RANKS || !socket_allow_open_files((int64_t)comm->num_ranks + 256)) {
        return fail(error, "%d processes are more than this system has connections for (ulimit -n)", comm->num_ranks);
    }
    comm->shared = comm_create_shared(comm->rank, comm->num_ranks);
    if (comm->shared == NULL) { return fail(error, "out of memory"); }
    comm_set_shared(comm->shared, options, comm->prints);
    return comm_connect(comm, options, told, error) && comm_introduce(comm, options, error);
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
    // The machines' names are not known yet: the launcher's first process of a machine tells what all know.
    bool first = launcher.local_rank >= 0 ? launcher.local_rank == 0 : launcher.rank <= 0;
    comm->prints = first || options->start != COMM_MPI;
    if (ok && comm_open_several(comm, options, &told, error)) { return true; }
    comm->prints = comm->prints || !(told || comm->broken); // an exchange fails on all ranks
    comm->mpi = false;                                      // MPI_Finalize would wait for ranks that may never come
    comm->broken = true;
    snprintf(comm->known, sizeof(comm->known), "%s", error->text);
    comm_close(comm); // tells the ranks that have come
    return false;
}

#endif // LLMC_START_H
