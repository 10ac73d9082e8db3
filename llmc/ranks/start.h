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

// Holds the first words of a process.
typedef struct {
    int32_t protocol, rank, num_ranks, unused;
    uint64_t nonce;
    CommWho who;
} CommHello;

// Returns the time that a greeting or its answer may take.
static inline double comm_greeting_seconds(const CommStartup *s) {
    return s->comm->options.start_timeout < COMM_GREETING_SECONDS ? s->comm->options.start_timeout
                                                                  : COMM_GREETING_SECONDS;
}

// ---- Rank 0: waiting for the other ranks ----

// Names the ranks that have not come.
static inline bool comm_fail_missing(const CommStartup *s, Error *error) {
    char names[200] = "", strangers[96] = "";
    size_t used = 0;
    for (int i = 1; i < s->comm->num_ranks && used < sizeof(names) - 16; i++) {
        if (s->comm->peers[i].who.pid != 0) { continue; }
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%d", used > 0 ? ", " : "", i);
    }
    if (s->num_strangers > 0) {
        snprintf(strangers, sizeof(strangers), "; connections of other programs that came instead: %d",
                 s->num_strangers);
    }
    return fail(error,
                "no connection within %g s (--start-timeout) from rank %s of %d: are they started, and can they reach "
                "rank 0 on %s?%s",
                s->comm->options.start_timeout, names, s->comm->num_ranks, s->me->host, strangers);
}

// Takes new callers, as far as there is room for them.
static inline void comm_accept_callers(CommStartup *s) {
    for (int i = 0; i < COMM_CALLERS; i++) {
        if (s->callers[i].fd >= 0) { continue; }
        int fd = socket_accept(s->listener);
        if (fd < 0) { return; }
        link_open(&s->callers[i], fd, (int64_t)sizeof(CommHello));
    }
}

// Checks that a greeting fits the run.
static inline bool comm_check_hello(const CommStartup *s, const CommHello *hello, Error *error) {
    int rank = hello->rank;
    CommName name = comm_process_name(rank, &hello->who);
    if (hello->protocol != COMM_PROTOCOL) {
        return fail(error, "%s runs another version of the program than rank 0 (%s): start the same build everywhere",
                    name.text, s->me->host);
    }
    if (hello->num_ranks != s->comm->num_ranks) {
        return fail(error,
                    "%s was started as one of %d processes, rank 0 (%s) as one of %d: give all the same "
                    "--num-processes",
                    name.text, hello->num_ranks, s->me->host, s->comm->num_ranks);
    }
    if (rank < 0 || rank >= s->comm->num_ranks) {
        return fail(error, "%s: --process-rank must be from 0 to %d", name.text, s->comm->num_ranks - 1);
    }
    if (s->comm->peers[rank].who.pid == 0) { return true; }
    return fail(error, "%s came, but %s has that rank already: each process needs its own --process-rank", name.text,
                comm_process_name(rank, &s->comm->peers[rank].who).text);
}

// Makes a caller a rank of this run. From here on the watch guards its link.
static inline void comm_admit(CommStartup *s, Link *caller, const CommHello *hello) {
    Comm *comm = s->comm;
    links_send(caller, 1, FRAME_WELCOME, s->me, (int64_t)sizeof(CommWho));
    pthread_mutex_lock(&comm->mutex);
    comm->peers[hello->rank].who = hello->who;
    link_move(&comm->links[hello->rank], caller);
    comm->links[hello->rank].limit = LINK_MAX_BYTES;
    pthread_mutex_unlock(&comm->mutex);
    comm_wake(comm);
    s->num_missing--;
}

// Judges a caller that has said who it is. False: the run cannot start. If all ranks shared a secret, a caller that
// cannot prove that it knows it would be dropped here.
static inline bool comm_judge_caller(CommStartup *s, Link *caller, const CommHello *hello, Error *error) {
    if (hello->nonce != s->contact.nonce) { // it has an old address, and looks for another run
        links_send(caller, 1, FRAME_STRANGER, NULL, 0);
        link_close(caller);
        return true;
    }
    if (!comm_check_hello(s, hello, error)) { return false; }
    comm_admit(s, caller, hello);
    return true;
}

// Reads what a caller says. Drops other programs (such as port scanners) and silent callers without a word.
static inline bool comm_hear_caller(CommStartup *s, Link *caller, Error *error) {
    Frame *frame = NULL;
    CommHello hello;
    LinkStatus status = link_receive(caller, &frame);
    if (status == LINK_WAIT && seconds_now() < caller->opened + comm_greeting_seconds(s)) { return true; }
    if (status == LINK_FRAME && frame_take(frame, FRAME_HELLO, &hello, sizeof(hello)) && hello.who.pid > 0) {
        hello.who.host[COMM_HOST_BYTES - 1] = '\0';
        return comm_judge_caller(s, caller, &hello, error);
    }
    s->num_strangers++;
    link_close(caller);
    return true;
}

// Waits until something happens on a connection, for half a second at most, and handles it.
static inline bool comm_gather_round(CommStartup *s, Error *error) {
    struct pollfd polled[COMM_CALLERS + 1];
    int count = links_poll(s->callers, COMM_CALLERS, polled, 0);
    polled[count].fd = count < COMM_CALLERS ? s->listener : -1, polled[count].events = POLLIN;
    poll(polled, (nfds_t)count + 1, socket_milliseconds(s->deadline, 500));
    comm_accept_callers(s);
    for (int i = 0; i < COMM_CALLERS; i++) {
        if (s->callers[i].fd >= 0 && !comm_hear_caller(s, &s->callers[i], error)) { return false; }
    }
    return seconds_now() < s->deadline || s->num_missing == 0 || comm_fail_missing(s, error);
}

// Waits, on rank 0, until all ranks have come. On failure tells the callers why. The watch tells the ranks.
static inline bool comm_gather(CommStartup *s, Error *error) {
    bool ok = true;
    s->num_missing = s->comm->num_ranks - 1;
    for (int i = 0; i < COMM_CALLERS; i++) { s->callers[i].fd = -1; }
    while (ok && s->num_missing > 0) { ok = comm_gather_round(s, error); }
    if (!ok) {
        comm_accept_callers(s); // callers that have just come get an answer too
        links_send(s->callers, COMM_CALLERS, FRAME_REFUSED, error->text, (int64_t)strlen(error->text));
        links_hang_up(s->callers, COMM_CALLERS, seconds_now() + COMM_TELL_SECONDS);
    }
    for (int i = 0; i < COMM_CALLERS; i++) { link_close(&s->callers[i]); }
    return ok;
}

// ---- The other ranks: joining rank 0 ----

// Fails because another program answers at the address. If the address comes from a file or from a list of all
// addresses of a machine, the right one may still come.
static inline bool comm_fail_foreign(CommStartup *s, const char *where, const char *what, Error *error) {
    s->hopeless = s->comm->options.start == COMM_TCP;
    return fail(error, "%s: %s: is another program on this port? Rank 0 of gpt2.c is expected there", where, what);
}

// Takes the answer to a greeting.
static inline bool comm_take_answer(CommStartup *s, LinkStatus status, const char *where, Frame *frame, Error *error) {
    CommWho *zero = &s->comm->peers[0].who;
    if (status == LINK_TIMEOUT) { return comm_fail_foreign(s, where, "connects, but does not answer", error); }
    if (status == LINK_BROKEN && errno == EBADMSG) {
        return comm_fail_foreign(s, where, "answers something else", error);
    }
    if (status != LINK_FRAME) { return fail(error, "%s: closes the connection", where); }
    fail(error, "%s: rank 0 of another run answers", where);
    s->told = s->hopeless = frame->head.type == FRAME_REFUSED;
    if (s->told) { fail(error, "%s", frame->data); }
    bool welcome = frame_take(frame, FRAME_WELCOME, zero, sizeof(*zero));
    zero->host[COMM_HOST_BYTES - 1] = '\0';
    return welcome;
}

// Greets rank 0, and waits for its answer.
static inline bool comm_greet(CommStartup *s, Link *link, const char *where, Error *error) {
    CommHello hello;
    Frame *frame = NULL;
    memset(&hello, 0, sizeof(hello));
    hello.protocol = COMM_PROTOCOL, hello.rank = s->comm->rank, hello.num_ranks = s->comm->num_ranks;
    hello.nonce = s->contact.nonce;
    hello.who = *s->me;
    links_send(link, 1, FRAME_HELLO, &hello, (int64_t)sizeof(hello));
    LinkStatus status = link_await(link, &frame, seconds_now() + comm_greeting_seconds(s));
    return comm_take_answer(s, status, where, frame, error);
}

// Joins the run whose rank 0 is at this address.
static inline bool comm_join_at(CommStartup *s, const SocketAddress *address, Error *error) {
    SocketAddressText where = socket_address_text(address);
    Link *link = &s->comm->links[0];
    int lookup = 0, fd = socket_connect(address, COMM_CONNECT_SECONDS, s->deadline, &lookup);
    s->hopeless = lookup != 0 && lookup != EAI_AGAIN;
    if (lookup != 0) { return comm_fail_lookup(address, lookup, error); }
    if (fd < 0) { return fail(error, "%s: %s", where.text, strerror(errno)); }
    link_open(link, fd, COMM_TEXT_BYTES);
    bool ok = comm_greet(s, link, where.text, error);
    if (!ok) { link_close(link); }
    return ok;
}

// Tries each address of rank 0 once, and none after the deadline. On rank 0's own machine the loopback address always
// works. On another machine it would lead to that machine itself.
static inline bool comm_join_contact(CommStartup *s, Error *error) {
    const CommContact *contact = &s->contact;
    bool same_host = strcmp(contact->host, s->me->host) == 0, ok = false;
    char list[sizeof(contact->text) + 32];
    snprintf(list, sizeof(list), "%s%s", same_host ? "127.0.0.1 ::1 " : "", contact->text);
    char *rest = list, *host;
    fail(error, "rank 0 (%s) has no address that another machine can use", contact->host);
    while (!ok && !s->hopeless && (host = strtok_r(rest, " ", &rest)) != NULL) {
        SocketAddress address;
        snprintf(address.host, sizeof(address.host), "%s", host);
        address.port = contact->port;
        ok = comm_join_at(s, &address, error);
        if (seconds_now() >= s->deadline) { break; }
    }
    return ok;
}

// Joins rank 0, again and again until the deadline. The message tells the outcome of the last attempt.
static inline bool comm_join(CommStartup *s, Error *error) {
    char last[1024];
    do {
        if (comm_find_contact(s, error) && comm_join_contact(s, error)) { return true; }
    } while (!s->hopeless && comm_try_again(s->deadline));
    if (s->hopeless) { return false; }
    snprintf(last, sizeof(last), "%.1000s", error->text);
    return fail(error,
                "rank %d (%s) cannot reach rank 0 within %g s (--start-timeout), last attempt: %s; is rank 0 started, "
                "and does no firewall come between?",
                s->comm->rank, s->me->host, s->comm->options.start_timeout, last);
}

// ---- Opening and closing ----

// Releases the connections. The watch has ended.
static inline void comm_free(Comm *comm) {
    for (int i = 0; i < comm->num_ranks; i++) {
        link_close(&comm->links[i]);
        free(comm->peers[i].inbox[0]), free(comm->peers[i].inbox[1]);
    }
    socket_close(&comm->watch.wake[0]);
    socket_close(&comm->watch.wake[1]);
    pthread_cond_destroy(&comm->changed);
    pthread_mutex_destroy(&comm->mutex);
    pthread_mutex_destroy(&comm->callbacks.mutex);
    free(comm->links), free(comm->peers);
    comm->links = NULL, comm->peers = NULL;
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

// Makes a rank of several, without connections.
static inline bool comm_create(Comm *comm, const CommOptions *options, int rank, int num_ranks, Error *error) {
    Link *links = (Link *)calloc((size_t)num_ranks, sizeof(Link));
    CommPeer *peers = (CommPeer *)calloc((size_t)num_ranks, sizeof(CommPeer));
    if (links == NULL || peers == NULL) {
        free(links), free(peers);
        return fail(error, "out of memory");
    }
    comm->rank = rank, comm->num_ranks = num_ranks;
    comm->links = links, comm->peers = peers;
    for (int i = 0; i < num_ranks; i++) { links[i].fd = -1; }
    comm->watch.wake[0] = comm->watch.wake[1] = -1;
    pthread_mutex_init(&comm->mutex, NULL);
    pthread_mutex_init(&comm->callbacks.mutex, NULL);
    pthread_cond_init(&comm->changed, NULL);
    comm->peers[rank].who = comm_who_am_i(options->host);
    comm->options = *options;
    comm->options.beat = options->beat > 0.0 ? options->beat : 0.5;
    comm->options.silence = options->silence > 0.0 ? options->silence : 20.0;
    comm->options.program = options->program != NULL ? options->program : "";
    comm->options.watchdog = 0.0; // until all ranks have come
    return true;
}

// Counts the ranks of this machine, and finds this rank's place among them.
static inline void comm_find_local(Comm *comm) {
    int gpus = comm->options.gpus_per_node;
    comm->local_rank = comm->num_local = 0;
    for (int i = 0; i < comm->num_ranks; i++) {
        bool here =
            gpus > 0 ? i / gpus == comm->rank / gpus : strcmp(comm_host(comm, i), comm_host(comm, comm->rank)) == 0;
        comm->local_rank += here && i < comm->rank;
        comm->num_local += here;
    }
}

// Connects this rank to rank 0, or rank 0 to all ranks, and starts the watch.
static inline bool comm_connect(Comm *comm, bool *told, Error *error) {
    CommStartup s;
    memset(&s, 0, sizeof(s));
    s.comm = comm;
    s.me = &comm->peers[comm->rank].who;
    s.deadline = seconds_now() + comm->options.start_timeout;
    bool ok = comm_meet(&s, error);
    if (comm->rank == 0) {
        ok = ok && watch_start(comm, error) && comm_gather(&s, error);
    } else {
        ok = ok && comm_join(&s, error) && watch_start(comm, error);
    }
    comm_part(&s);
    *told = s.told;
    return ok;
}

// Tells all ranks who is who, in the first exchange. Then this rank knows its place, and the watchdog begins.
static inline bool comm_introduce(Comm *comm, double watchdog, Error *error) {
    Text all;
    CommWho who = comm->peers[comm->rank].who;
    const int64_t bytes = (int64_t)sizeof(who);
    if (!comm_exchange(comm, "the start", bytes, &who, bytes, &all, error)) { return false; }
    bool ok = (int64_t)all.used == comm->num_ranks * bytes;
    pthread_mutex_lock(&comm->mutex);
    for (int i = 0; ok && i < comm->num_ranks; i++) {
        memcpy(&comm->peers[i].who, all.data + i * bytes, (size_t)bytes);
        comm->peers[i].who.host[COMM_HOST_BYTES - 1] = '\0';
    }
    comm_find_local(comm);
    comm->prints = comm->options.start != COMM_MPI || comm_is_first_of_machine(comm, comm->rank);
    comm->options.watchdog = watchdog;
    comm->since = seconds_now();
    pthread_mutex_unlock(&comm->mutex);
    comm->sequence = 0; // the first exchange of the caller has number 1
    text_free(&all);
    return ok || fail(error, "rank 0 answers the start with something else");
}

static inline bool comm_open_several(Comm *comm, const CommOptions *options, int rank, int num_ranks, bool *told,
                                     Error *error) {
    if (num_ranks > COMM_MAX_RANKS || !socket_allow_open_files((int64_t)num_ranks + 256)) {
        return fail(error, "%d processes are more than this system has connections for (ulimit -n)", num_ranks);
    }
    return comm_create(comm, options, rank, num_ranks, error) && comm_connect(comm, told, error) &&
           comm_introduce(comm, options->watchdog, error);
}

// Ends this rank's part in order: says goodbye, so that the other ranks can go on without it. When an exchange has
// failed, it tells the other ranks that instead. Ends within seconds, except with MPI, which waits for all ranks (under
// the watch). Harmless on a Comm of zeros, and on one that is closed or failed to open.
static inline void comm_close(Comm *comm) {
    if (comm->mpi && !comm->ending && !comm->broken) {
        comm_progress(comm, "the end"), comm_waits(comm, true);
        comm_mpi_end();
    }
    if (comm->links != NULL) {
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
    bool ok = comm_find_place(options, &launcher, &rank, &num_ranks, error);
    bool told = !ok; // all processes of a launcher find one mistake in their number
    comm->mpi = ok && options->start == COMM_MPI && launcher.name != NULL && launcher.size != 1;
    if (ok && num_ranks == 1) { return true; }
    // The machines' names are not known yet: the launcher's first process of a machine tells what all know.
    bool first = launcher.local_rank >= 0 ? launcher.local_rank == 0 : launcher.rank <= 0;
    comm->prints = first || options->start != COMM_MPI;
    if (ok && comm_open_several(comm, options, rank, num_ranks, &told, error)) { return true; }
    bool own = !told && !comm->broken; // an exchange fails on all ranks
    comm->mpi = false;                 // MPI_Finalize would wait for ranks that may never come
    comm->broken = true;
    comm_all_know(comm, error);
    comm_close(comm); // tells the ranks that have come
    comm->prints = comm->prints || own;
    return false;
}

#endif // LLMC_START_H
