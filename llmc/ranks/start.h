// Opens and closes the ranks of a run. A process that knows where rank 0 is (rendezvous.h) connects. Both ends prove
// that they know the secret of the run (secret.h). Rank 0 answers with WELCOME at once. From then on the watch guards
// the connection: when a rank ends meanwhile, or cannot be one, all ranks end with the reason. The first exchange tells
// all ranks who is who. Every fault is one line on every rank that can be reached, at once if possible, and after
// start_timeout (and some seconds) at the latest.
//
// A caller that proves nothing gets little: COMM_GREETING_BYTES, COMM_GREETING_SECONDS, and its place only until,
// after COMM_PLACE_SECONDS, another caller needs it. It never ends the run. Rank 0 counts such callers and says so in
// one line.
#ifndef LLMC_START_H
#define LLMC_START_H

#include "llmc/ranks/rendezvous.h"
#include "llmc/ranks/watch.h"

#define COMM_PROTOCOL 6            // another number: other frames
#define COMM_GREETING_SECONDS 10.0 // for the other end of a new connection to say who it is
#define COMM_PLACE_SECONDS 0.25    // that are a caller's own, however many come
#define COMM_GREETING_BYTES 256    // of a frame from a process that has not proven itself
#define COMM_CONNECT_SECONDS 2.0   // to connect to one address
#define COMM_GRACE_SECONDS 3.0     // after its own limit, in which a rank lets rank 0 say which ranks are missing

// Begins the conversation.
typedef struct {
    uint8_t nonce[SHA256_BYTES];
} CommHello;

// Answers it. The proof is for what follows it.
typedef struct {
    uint8_t proof[SHA256_BYTES], nonce[SHA256_BYTES];
    int32_t protocol;
} CommChallenge;

// Says who a process is. The first two fields stay in all protocols.
typedef struct {
    uint8_t proof[SHA256_BYTES];
    int32_t protocol, rank, num_ranks;
    CommWho who;
} CommJoin;

// Returns when a conversation that begins now must have ended.
static inline double comm_greeting_deadline(const CommStartup *s) {
    double deadline = seconds_now() + COMM_GREETING_SECONDS;
    return deadline < s->deadline ? deadline : s->deadline;
}

// Tells whether this can be a process.
static inline bool comm_is_process(const CommWho *who) {
    return who->pid > 0 && who->host[0] != '\0' && memchr(who->host, '\0', sizeof(who->host)) != NULL;
}

// ---- Rank 0: waiting for the other ranks ----

// Says how many callers were turned away, and the words for the last one that got any. "": none were.
static inline void comm_strangers_text(const CommStartup *s, char *text, size_t size) {
    text[0] = '\0';
    if (s->num_strangers == 0) { return; }
    snprintf(text, size,
             "connections turned away at the start, because they did not prove to belong to this run: %d%s%s",
             s->num_strangers, s->last_refused[0] != '\0' ? "; the last word to one of them: " : "", s->last_refused);
}

// Names the ranks that have not come.
static inline bool comm_fail_missing(const CommStartup *s, Error *error) {
    char names[200] = "", strangers[1024];
    size_t used = 0;
    for (int i = 1; i < s->comm->num_ranks && used < sizeof(names) - 16; i++) {
        if (s->comm->peers[i].who.pid != 0) { continue; }
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%d", used > 0 ? ", " : "", i);
    }
    comm_strangers_text(s, strangers, sizeof(strangers));
    return fail(error,
                "no connection within %g s (--start-timeout) from rank %s of %d: are they started, and can they reach "
                "rank 0 on %s?%s%s",
                s->comm->options.start_timeout, names, s->comm->num_ranks, s->me->host, strangers[0] != '\0' ? " " : "",
                strangers);
}

// Closes the connection of a caller that has proven nothing.
static inline void comm_turn_away(CommStartup *s, int caller) {
    s->num_strangers += s->callers[caller].state != CALLER_REFUSED;
    link_close(&s->links[caller]);
}

// Finds a place for a new caller. If none is free, the caller that came first gives way, unless it came just now. -1:
// new callers must wait.
static inline int comm_place(const CommStartup *s) {
    int oldest = 0;
    for (int i = 0; i < COMM_CALLERS; i++) {
        if (s->links[i].fd < 0) { return i; }
        if (s->links[i].opened < s->links[oldest].opened) { oldest = i; }
    }
    return seconds_now() > s->links[oldest].opened + COMM_PLACE_SECONDS ? oldest : -1;
}

// Takes new callers, as far as there are places.
static inline void comm_accept_callers(CommStartup *s) {
    for (int i = 0; i < s->num_listeners; i++) {
        for (int place, fd; (place = comm_place(s)) >= 0 && (fd = socket_accept(s->listeners[i])) >= 0;) {
            if (s->links[place].fd >= 0) { comm_turn_away(s, place); }
            memset(&s->callers[place], 0, sizeof(s->callers[place]));
            link_open(&s->links[place], fd, COMM_GREETING_BYTES);
        }
    }
}

// Checks that a process fits the run. Its frame may be another version's.
static inline bool comm_check_join(const CommStartup *s, const CommJoin *join, int64_t bytes, Error *error) {
    int rank = join->rank;
    CommName name = comm_process_name(rank, &join->who);
    if (join->protocol != COMM_PROTOCOL || bytes != (int64_t)sizeof(*join)) {
        return fail(error,
                    "rank %d runs another version of the program than rank 0 (%s): start the same build "
                    "everywhere",
                    rank, s->me->host);
    }
    if (join->num_ranks != s->comm->num_ranks) {
        return fail(error,
                    "%s was started as one of %d processes, rank 0 (%s) as one of %d: give all the same "
                    "--num-processes",
                    name.text, join->num_ranks, s->me->host, s->comm->num_ranks);
    }
    if (rank < 0 || rank >= s->comm->num_ranks) {
        return fail(error, "%s: --process-rank must be from 0 to %d", name.text, s->comm->num_ranks - 1);
    }
    if (s->comm->peers[rank].who.pid == 0) { return true; }
    return fail(error, "%s came, but %s has that rank already: each process needs its own --process-rank", name.text,
                comm_process_name(rank, &s->comm->peers[rank].who).text);
}

// Makes a caller a rank of this run. From here on the watch guards its link.
static inline void comm_admit(CommStartup *s, int caller, const CommJoin *join) {
    Comm *comm = s->comm;
    links_send(&s->links[caller], 1, FRAME_WELCOME, s->me, (int64_t)sizeof(CommWho));
    pthread_mutex_lock(&comm->mutex);
    comm->peers[join->rank].who = join->who;
    link_move(&comm->links[join->rank], &s->links[caller]);
    comm->links[join->rank].limit = LINK_MAX_BYTES;
    pthread_mutex_unlock(&comm->mutex);
    comm_wake(comm);
    s->num_missing--;
}

// Tells a caller why it is no rank of this run. The caller then closes the connection.
static inline void comm_refuse(CommStartup *s, int caller, const char *words) {
    links_send(&s->links[caller], 1, FRAME_REFUSED, words, (int64_t)strlen(words));
    shutdown(s->links[caller].fd, SHUT_WR);
    s->callers[caller].state = CALLER_REFUSED;
}

// Answers a greeting with rank 0's nonce and proof. False: it is none.
static inline bool comm_hear_hello(CommStartup *s, int caller, const Frame *frame) {
    CommCaller *c = &s->callers[caller];
    CommChallenge challenge;
    Error ignored;
    memset(&challenge, 0, sizeof(challenge));
    if (frame->head.type != FRAME_HELLO || frame->head.bytes != (int64_t)sizeof(CommHello)) { return false; }
    if (!secret_random(c->nonces.zero, sizeof(c->nonces.zero), &ignored)) { return false; }
    memcpy(c->nonces.caller, frame->data, sizeof(c->nonces.caller));
    memcpy(challenge.nonce, c->nonces.zero, sizeof(challenge.nonce));
    challenge.protocol = COMM_PROTOCOL;
    secret_prove(&s->secret, &c->nonces, SPEAKS_ZERO, challenge.nonce, sizeof(challenge) - sizeof(challenge.proof),
                 challenge.proof);
    links_send(&s->links[caller], 1, FRAME_CHALLENGE, &challenge, (int64_t)sizeof(challenge));
    c->state = CALLER_GREETED;
    return true;
}

// Judges who a caller says it is. *belongs: it has proven itself. False: the run cannot start. Without a secret a
// caller proves nothing, and only the caller itself learns what is wrong.
static inline bool comm_hear_join(CommStartup *s, int caller, const Frame *frame, bool *belongs, Error *error) {
    CommJoin join;
    int64_t bytes = frame->head.bytes, least = (int64_t)offsetof(CommJoin, num_ranks);
    memset(&join, 0, sizeof(join));
    *belongs = frame->head.type == FRAME_JOIN && bytes >= least &&
               secret_is_proven(&s->secret, &s->callers[caller].nonces, SPEAKS_CALLER, frame->data, (size_t)bytes);
    if (!*belongs) { return true; }
    memcpy(&join, frame->data, (size_t)min_i64(bytes, (int64_t)sizeof(join)));
    *belongs = comm_is_process(&join.who) || join.protocol != COMM_PROTOCOL;
    if (!*belongs) { return true; }
    if (s->refusal != NULL) {
        comm_refuse(s, caller, s->refusal);
        return true;
    }
    if (comm_check_join(s, &join, bytes, error)) {
        comm_admit(s, caller, &join);
        return true;
    }
    comm_refuse(s, caller, error->text);
    if (s->secret.known) { return false; }
    s->num_strangers++;
    snprintf(s->last_refused, sizeof(s->last_refused), "%.500s", error->text);
    return true;
}

// Reads what a caller says. Drops other programs (such as port scanners), silent callers, and whoever proves nothing,
// without a word.
static inline bool comm_hear_caller(CommStartup *s, int caller, Error *error) {
    Frame *frame = NULL;
    Link *link = &s->links[caller];
    CallerState state = s->callers[caller].state;
    LinkStatus status = link_receive(link, &frame);
    bool ok = true, belongs = status == LINK_WAIT && seconds_now() < link->opened + COMM_GREETING_SECONDS;
    link_flush(link);
    if (status == LINK_FRAME && state == CALLER_NEW) { belongs = comm_hear_hello(s, caller, frame); }
    if (status == LINK_FRAME && state == CALLER_GREETED) { ok = comm_hear_join(s, caller, frame, &belongs, error); }
    free(frame);
    if (!belongs) { comm_turn_away(s, caller); }
    return ok;
}

// Waits until something happens on a connection, for half a second at most, and handles it. While new callers must wait
// for a place, the listeners do not end the wait.
static inline bool comm_gather_round(CommStartup *s, double deadline, Error *error) {
    struct pollfd polled[COMM_CALLERS + COMM_LISTENERS];
    bool ok = true;
    int count = links_poll(s->links, COMM_CALLERS, polled, 0);
    bool full = comm_place(s) < 0;
    for (int i = 0; !full && i < s->num_listeners; i++, count++) {
        polled[count].fd = s->listeners[i], polled[count].events = POLLIN;
    }
    poll(polled, (nfds_t)count, socket_milliseconds(deadline, full ? 50 : 500));
    comm_accept_callers(s);
    for (int i = 0; ok && i < COMM_CALLERS; i++) {
        if (s->links[i].fd >= 0) { ok = comm_hear_caller(s, i, error); }
    }
    return ok;
}

static inline bool comm_has_callers(const CommStartup *s) {
    bool has = false;
    for (int i = 0; i < COMM_CALLERS; i++) { has = has || s->links[i].fd >= 0; }
    return has;
}

// Tells the callers of this moment, once they have proven themselves, why the run does not start.
static inline void comm_refuse_callers(CommStartup *s, const char *words) {
    Error ignored;
    double deadline = seconds_now() + COMM_TELL_SECONDS;
    s->refusal = words;
    comm_accept_callers(s);
    while (comm_has_callers(s) && seconds_now() < deadline) { comm_gather_round(s, deadline, &ignored); }
}

// Waits, on rank 0, until all ranks have come. On failure tells the callers why. The watch tells the ranks.
static inline bool comm_gather(CommStartup *s, Error *error) {
    bool ok = true;
    s->num_missing = s->comm->num_ranks - 1;
    for (int i = 0; i < COMM_CALLERS; i++) { s->links[i].fd = -1; }
    while (ok && s->num_missing > 0) {
        ok = comm_gather_round(s, s->deadline, error) &&
             (s->num_missing == 0 || seconds_now() < s->deadline || comm_fail_missing(s, error));
    }
    if (!ok) { comm_refuse_callers(s, error->text); }
    for (int i = 0; i < COMM_CALLERS; i++) {
        if (s->links[i].fd >= 0) { comm_turn_away(s, i); }
    }
    return ok;
}

// ---- The other ranks: joining rank 0 ----

// Fails because another program answers at the address, or none does. Rank 0 may still come, so this rank tries again.
static inline bool comm_fail_foreign(LinkStatus status, const char *where, Error *error) {
    if (status != LINK_TIMEOUT && !(status == LINK_BROKEN && errno == EBADMSG)) {
        return fail(error, "%s: closes the connection", where);
    }
    return fail(error, "%s: %s: is another program on this port? Rank 0 of gpt2.c is expected there", where,
                status == LINK_TIMEOUT ? "connects, but does not answer" : "answers something else");
}

// Takes the answer to a greeting. The other end is believed from here on if it proves that it knows the secret.
static inline bool comm_take_challenge(CommStartup *s, CommNonces *nonces, Frame *frame, const char *where,
                                       Error *error) {
    CommChallenge challenge;
    if (!frame_take(frame, FRAME_CHALLENGE, &challenge, sizeof(challenge))) {
        errno = EBADMSG;
        return comm_fail_foreign(LINK_BROKEN, where, error);
    }
    memcpy(nonces->zero, challenge.nonce, sizeof(nonces->zero));
    s->unlike = !secret_is_proven(&s->secret, nonces, SPEAKS_ZERO, &challenge, sizeof(challenge));
    return !s->unlike ||
           fail(error,
                "%s: the rank 0 there does not know this process's secret: is it another run's? Else " SECRET_REMEDY,
                where);
}

// Greets rank 0.
static inline bool comm_greet(CommStartup *s, Link *link, CommNonces *nonces, const char *where, Error *error) {
    Frame *frame = NULL;
    if (!secret_random(nonces->caller, sizeof(nonces->caller), error)) { return false; }
    links_send(link, 1, FRAME_HELLO, nonces->caller, (int64_t)sizeof(CommHello));
    LinkStatus status = link_await(link, &frame, comm_greeting_deadline(s));
    if (status != LINK_FRAME) { return comm_fail_foreign(status, where, error); }
    return comm_take_challenge(s, nonces, frame, where, error);
}

// Takes rank 0's answer.
static inline bool comm_take_answer(CommStartup *s, Frame *frame, const char *where, Error *error) {
    CommWho zero;
    s->told = s->hopeless = frame->head.type == FRAME_REFUSED;
    if (s->told) { fail(error, "%s", frame_text(frame)); }
    if (!s->told) { fail(error, "%s: rank 0 answers something else", where); }
    bool welcome = frame_take(frame, FRAME_WELCOME, &zero, sizeof(zero)) && comm_is_process(&zero);
    if (welcome) { s->comm->peers[0].who = zero; }
    return welcome;
}

// Tells rank 0, which has proven itself, who this is, and waits for its answer.
static inline bool comm_introduce_self(CommStartup *s, Link *link, const char *where, Error *error) {
    CommNonces nonces;
    CommJoin join;
    Frame *frame = NULL;
    if (!comm_greet(s, link, &nonces, where, error)) { return false; }
    memset(&join, 0, sizeof(join));
    join.protocol = COMM_PROTOCOL, join.rank = s->comm->rank, join.num_ranks = s->comm->num_ranks;
    join.who = *s->me;
    secret_prove(&s->secret, &nonces, SPEAKS_CALLER, &join.protocol, sizeof(join) - sizeof(join.proof), join.proof);
    link->limit = LINK_MAX_BYTES;
    links_send(link, 1, FRAME_JOIN, &join, (int64_t)sizeof(join));
    LinkStatus status = link_await(link, &frame, comm_greeting_deadline(s));
    return status == LINK_FRAME ? comm_take_answer(s, frame, where, error) : comm_fail_foreign(status, where, error);
}

// Joins the run whose rank 0 is at this address.
static inline bool comm_join_at(CommStartup *s, const SocketAddress *address, Error *error) {
    SocketAddressText where = socket_address_text(address);
    Link *link = &s->comm->links[0];
    int lookup = 0, fd = socket_connect(address, !s->secret.known, COMM_CONNECT_SECONDS, s->deadline, &lookup);
    s->hopeless = lookup != 0 && lookup != EAI_AGAIN;
    if (lookup != 0) { return comm_fail_lookup(address, lookup, error); }
    if (fd < 0) { return fail(error, "%s: %s", where.text, strerror(errno)); }
    link_open(link, fd, COMM_GREETING_BYTES);
    bool ok = comm_introduce_self(s, link, where.text, error);
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

// Joins rank 0, again and again until the deadline. The message tells the outcome of the most telling attempt: the last
// one that met another secret, or else the last one that the deadline did not cut short.
static inline bool comm_join(CommStartup *s, Error *error) {
    char last[1024] = "";
    bool met_unlike = false;
    do {
        s->unlike = false;
        if (comm_find_contact(s, error) && comm_join_contact(s, error)) { return true; }
        bool cut = last[0] != '\0' && seconds_now() >= s->deadline;
        if (s->unlike || (!met_unlike && !cut)) { snprintf(last, sizeof(last), "%.1000s", error->text); }
        met_unlike = met_unlike || s->unlike;
    } while (!s->hopeless && comm_try_again(s->deadline));
    if (s->hopeless) { return false; }
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
    comm->start_deadline = s.deadline + COMM_GRACE_SECONDS;
    *told = s.told;
    if (ok && s.num_strangers > 0) {
        Error words;
        comm_strangers_text(&s, words.text, sizeof(words.text));
        print_error(comm->options.program, &words);
    }
    return ok;
}

// Takes who all ranks are.
static inline bool comm_take_names(Comm *comm, const Text *all, Error *error) {
    const size_t bytes = sizeof(CommWho);
    bool ok = all->used == (size_t)comm->num_ranks * bytes;
    for (int i = 0; ok && i < comm->num_ranks; i++) {
        CommWho who;
        memcpy(&who, all->data + (size_t)i * bytes, bytes);
        ok = comm_is_process(&who);
        if (ok) { comm->peers[i].who = who; }
    }
    return ok || fail(error, "rank 0 answers the start with something else");
}

// Tells all ranks who is who, in the first exchange. Then this rank knows its place, and the watchdog begins.
static inline bool comm_introduce(Comm *comm, double watchdog, Error *error) {
    Text all;
    CommWho who = comm->peers[comm->rank].who;
    if (!comm_exchange(comm, "the start", (int64_t)sizeof(who), &who, (int64_t)sizeof(who), &all, error)) {
        return false;
    }
    pthread_mutex_lock(&comm->mutex);
    bool ok = comm_take_names(comm, &all, error);
    if (ok) { comm_find_local(comm); }
    comm->prints = comm->options.start != COMM_MPI || comm_is_first_of_machine(comm, comm->rank);
    comm->options.watchdog = watchdog;
    comm->since = seconds_now();
    pthread_mutex_unlock(&comm->mutex);
    comm->start_deadline = 0.0;
    comm->sequence = 0; // the first exchange of the caller has number 1
    text_free(&all);
    return ok;
}

static inline bool comm_open_several(Comm *comm, const CommOptions *options, int rank, int num_ranks, bool *told,
                                     Error *error) {
    if (num_ranks > COMM_MAX_RANKS || !socket_allow_open_files((int64_t)num_ranks + COMM_CALLERS + 256)) {
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
