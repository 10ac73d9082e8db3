// The star: each rank has two sockets to rank 0. The main threads exchange bytes over one of them (talk), and the
// watches send their beats over the other (watch). This file has the sockets, the way in, and the exchange.
//
// A process says for each socket who it is. Both ends show their half of the run's token, before anything else that
// they say is believed:
//
//   caller   StarJoin                its half, its protocol, who it is
//   rank 0   its half, and a message  who it is, or the reason of a refusal
//
// Rank 0 hears one caller after another. The system holds a caller back until it has said something (TCP_DEFER_ACCEPT),
// so that a silent one keeps nobody waiting. A caller without the token gets one read of STAR_GREETING_BYTES. It never
// ends the run. Rank 0 counts such callers.
#ifndef LLMC_STAR_H
#define LLMC_STAR_H

#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "llmc/base/files.h"
#include "llmc/base/text.h"
#include "llmc/ranks/ranks.h"

#define STAR_PROTOCOL 9           // another number: other messages
#define STAR_GREETING_SECONDS 0.1 // for a caller to say who it is, where the system does not hold it back
#define STAR_ANSWER_SECONDS 10.0  // for rank 0 to answer: other callers may come first
#define STAR_GREETING_BYTES 256   // the most that is read of a caller
#define STAR_CONNECT_SECONDS 2    // to connect to one address
#define STAR_VERDICT_SECONDS 5.0  // for the watch to find that a rank has died
#define STAR_TELL_SECONDS 1.0     // for other processes to learn that the run ends
#define STAR_MAX_BYTES ((int64_t)1 << 28)
#define STAR_NAME_BYTES 32 // the name of an exchange and a NUL
#define STAR_NO_REASON "no reason is given"
#define TOKEN_HALF 32 // hexadecimal digits

// ---- Sockets: no function waits beyond its deadline, and no call raises SIGPIPE ----

// Closes a socket, if there is one. Keeps errno.
static inline void socket_close(int *fd) {
    int code = errno;
    if (*fd >= 0) { close(*fd); }
    errno = code;
    *fd = -1;
}

static inline bool socket_would_wait(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Waits until fd is ready (POLLIN or POLLOUT). Returns false when the deadline comes first.
static inline bool socket_wait(int fd, short events, double deadline) {
    for (;;) {
        double left = deadline - seconds_now();
        struct pollfd p = {fd, events, 0};
        int n = poll(&p, 1, left <= 0.0 ? 0 : left > 60.0 ? 60000 : (int)(left * 1e3) + 1);
        if (n > 0 || (n < 0 && !socket_would_wait())) { return true; } // the next call on fd says why
        if (n == 0 && left <= 0.0) { return false; }
    }
}

// Programs do not inherit the socket, no call on it waits, and small messages leave at once.
static inline int socket_prepare(int fd) {
    int on = 1;
    fcntl(fd, F_SETFD, FD_CLOEXEC), fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
}

// Listens at an address; -1 and errno on failure. The port is free again when the process ends (SO_REUSEADDR).
static inline int socket_listen(const void *address, socklen_t bytes) {
    int family = ((const struct sockaddr *)address)->sa_family, on = 1, off = 0, hold = 60; // seconds
    int fd = socket_prepare(socket(family, SOCK_STREAM, 0));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &hold, sizeof(hold));
    if (family == AF_INET6) { setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)); }
    if (bind(fd, (const struct sockaddr *)address, bytes) == 0 && listen(fd, SOMAXCONN) == 0) { return fd; }
    socket_close(&fd);
    return -1;
}

// Connects to an address within STAR_CONNECT_SECONDS; -1 and errno (ETIMEDOUT: too late) on failure.
static inline int socket_connect(const struct addrinfo *to) {
    struct timeval limit = {STAR_CONNECT_SECONDS, 0};
    int fd = socket(to->ai_family, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) { return socket_prepare(fd); }
    socket_close(&fd);
    if (errno == EINPROGRESS) { errno = ETIMEDOUT; }
    return -1;
}

// Reads exactly so many bytes. On failure errno is ETIMEDOUT at the deadline, 0 at the end of the connection, or why.
static inline bool socket_read(int fd, void *data, size_t bytes, double deadline) {
    for (char *to = (char *)data, *end = to + bytes; to < end;) {
        ssize_t n = recv(fd, to, (size_t)(end - to), MSG_DONTWAIT);
        bool waits = n < 0 && socket_would_wait(), late = waits && !socket_wait(fd, POLLIN, deadline);
        if (n == 0 || late) { errno = late ? ETIMEDOUT : 0; }
        if (n == 0 || late || (n < 0 && !waits)) { return false; }
        if (n > 0) { to += n; }
    }
    return true;
}

// Sends all bytes, or as many as go. What fails here shows when the other end is read.
static inline void socket_write(int fd, const void *data, size_t bytes, double deadline) {
    for (size_t sent = 0; sent < bytes;) {
        ssize_t n = send(fd, (const char *)data + sent, bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (!socket_would_wait() || !socket_wait(fd, POLLOUT, deadline))) { return; }
        if (n > 0) { sent += (size_t)n; }
    }
}

// Tells whether the other end has closed the connection, or its process is gone.
static inline bool socket_has_ended(int fd) {
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && !socket_would_wait());
}

// Closes a socket when the other end has read everything and closed, or at the deadline. close() alone sends a reset if
// bytes are unread, and the reset may overtake the last message.
static inline void socket_hang_up(int *fd, double deadline) {
    char waste[4096];
    ssize_t n = 0;
    if (*fd >= 0) { shutdown(*fd, SHUT_WR); }
    do {
        n = *fd >= 0 ? recv(*fd, waste, sizeof(waste), MSG_DONTWAIT) : 0;
    } while ((n > 0 && seconds_now() < deadline) ||
             (n < 0 && socket_would_wait() && socket_wait(*fd, POLLIN, deadline)));
    socket_close(fd);
}

// ---- Messages ----

// Holds the token of a run. Without one its bytes are zeros, which prove nothing.
typedef struct {
    bool known;
    char caller[TOKEN_HALF], zero[TOKEN_HALF]; // what callers show, and what rank 0 shows them
} StarToken;

// Compares in a time that does not depend on the bytes, so that nobody can find them one by one.
static inline bool token_equal(const char *a, const char *b) {
    const volatile char *x = a, *y = b;
    int difference = 0;
    for (int i = 0; i < TOKEN_HALF; i++) { difference |= x[i] ^ y[i]; }
    return difference == 0;
}

// Says who a process is. The first three fields stay in all protocols.
typedef struct {
    char token[TOKEN_HALF];
    int32_t protocol, rank, num_ranks, watches; // watches: this socket is the watch's
    CommWho who;
} StarJoin;

typedef enum { TALK_MINE = 0x6d6f6301, TALK_RESULT, TALK_FAILURE } StarKind; // FAILURE: the data is the reason

// Begins a message of an exchange. All machines of a run have one byte order.
typedef struct {
    uint32_t kind, unused;
    int64_t bytes; // of the data that follows
    int64_t size;  // of the exchange. Size and name must be equal on all ranks
    char name[STAR_NAME_BYTES];
} StarHead;

static inline void star_say(int fd, StarHead head, StarKind kind, const void *data, size_t bytes) {
    head.kind = kind, head.bytes = (int64_t)bytes;
    socket_write(fd, &head, sizeof(head), HUGE_VAL);
    socket_write(fd, data, bytes, HUGE_VAL);
}

// Reads a message, and adds its data to *all. On failure errno is as after socket_read, or EBADMSG: it makes no sense.
static inline bool star_read(int fd, StarHead *head, Text *all, double deadline) {
    if (!socket_read(fd, head, sizeof(*head), deadline)) { return false; }
    bool fits = head->kind >= TALK_MINE && head->kind <= TALK_FAILURE && head->bytes >= 0;
    head->name[STAR_NAME_BYTES - 1] = '\0';
    errno = EBADMSG;
    if (!fits || head->bytes > STAR_MAX_BYTES || !text_reserve(all, (size_t)head->bytes)) { return false; }
    if (!socket_read(fd, all->data + all->used, (size_t)head->bytes, deadline)) { return false; }
    all->used += (size_t)head->bytes;
    all->data[all->used] = '\0';
    return true;
}

// Tells whether this can be a process.
static inline bool comm_is_process(const CommWho *who) {
    return who->pid > 0 && who->host[0] != '\0' && memchr(who->host, '\0', sizeof(who->host)) != NULL;
}

// ---- Rank 0: waiting for the other ranks ----

// Holds a start in progress.
typedef struct {
    Comm *comm;
    double deadline;
    StarToken token;
    int port;
    char hosts[1024];                                  // rank 0's names or numbers, separated by spaces
    bool told;                                         // the error came from rank 0, where it is printed too
    char folder[MAX_PATH_BYTES], file[MAX_PATH_BYTES]; // of a start through a folder
    DirectoryLock lock;
    // Of rank 0.
    int listener;                   // -1: none
    int num_missing, num_strangers; // sockets that have not come; connections that did not show the token
    const char *refusal;            // why the run does not start; NULL: it may
} Start;

#define STAR_STRANGERS "connections turned away at the start, because they did not show this run's token: %d"

// Names the ranks that have not come.
static inline bool star_fail_missing(const Start *s, Error *error) {
    char names[200] = "", strangers[200] = "";
    const Comm *comm = s->comm;
    size_t used = 0;
    for (int i = 1; i < comm->num_ranks && used < sizeof(names) - 16; i++) {
        if (comm->peers[i].watch >= 0) { continue; }
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%d", used > 0 ? ", " : "", i);
    }
    if (s->num_strangers > 0) { snprintf(strangers, sizeof(strangers), " " STAR_STRANGERS, s->num_strangers); }
    return fail(error,
                "no connection within %g s (--start-timeout) from rank %s of %d: are they started, and can they reach "
                "%s?%s",
                comm->options.start_timeout, names, comm->num_ranks, comm_name(comm, 0).text, strangers);
}

// Checks that a process fits the run. Its message may be another version's.
static inline bool star_check_join(const Comm *comm, const StarJoin *join, ssize_t bytes, Error *error) {
    int rank = join->rank;
    CommName name = comm_who_name(rank, &join->who), zero = comm_name(comm, 0);
    if (join->protocol != STAR_PROTOCOL || bytes != (ssize_t)sizeof(*join)) {
        return fail(error, "rank %d runs another version of the program than %s: start one build everywhere", rank,
                    zero.text);
    }
    if (join->num_ranks != comm->num_ranks || rank < 0 || rank >= comm->num_ranks) {
        return fail(error,
                    "%s was started as one of %d processes, %s as one of %d: give all the same --num-processes, and "
                    "each a --process-rank below it",
                    name.text, join->num_ranks, zero.text, comm->num_ranks);
    }
    const CommPeer *peer = &comm->peers[rank];
    bool second = peer->talk >= 0 && peer->watch < 0 && memcmp(&peer->who, &join->who, sizeof(join->who)) == 0;
    if (join->watches ? second : peer->who.pid == 0) { return true; }
    return fail(error, "%s came, but %s has that rank already: each process needs its own --process-rank", name.text,
                comm_name(comm, rank).text);
}

// Answers a caller that has shown the token. words: why it is no rank of this run; NULL: it is welcome.
static inline void star_answer(const Start *s, int fd, const char *words) {
    const CommWho *zero = &s->comm->peers[0].who;
    StarHead head;
    memset(&head, 0, sizeof(head));
    socket_write(fd, s->token.zero, TOKEN_HALF, HUGE_VAL);
    if (words == NULL) { star_say(fd, head, TALK_RESULT, zero, sizeof(*zero)); }
    if (words != NULL) { star_say(fd, head, TALK_FAILURE, words, strlen(words)); }
}

// Makes a caller with the token one of the two sockets of a rank, or tells it why it is none. False: the run cannot
// start. Without a token a caller proves nothing, and only the caller itself learns what is wrong.
static inline bool star_judge(Start *s, int *caller, const StarJoin *join, ssize_t bytes, Error *error) {
    bool begins = s->refusal == NULL;
    if (begins && star_check_join(s->comm, join, bytes, error)) {
        CommPeer *peer = &s->comm->peers[join->rank];
        star_answer(s, *caller, NULL);
        peer->who = join->who;
        if (join->watches) { peer->watch = *caller; }
        if (!join->watches) { peer->talk = *caller; }
        *caller = -1;
        s->num_missing--;
        return true;
    }
    star_answer(s, *caller, begins ? error->text : s->refusal);
    socket_close(caller);
    s->num_strangers += begins && !s->token.known;
    return !begins || !s->token.known;
}

// Reads what a caller says, once. Turns other programs (such as port scanners) and callers without the token away,
// without a word. False: the run cannot start.
static inline bool star_hear(Start *s, int *caller, Error *error) {
    char said[STAR_GREETING_BYTES];
    StarJoin join;
    socket_wait(*caller, POLLIN, seconds_now() + STAR_GREETING_SECONDS);
    ssize_t n = recv(*caller, said, sizeof(said), MSG_DONTWAIT);
    memset(&join, 0, sizeof(join));
    if (n > 0) { memcpy(&join, said, (size_t)min_i64(n, (int64_t)sizeof(join))); }
    bool belongs = n >= (ssize_t)offsetof(StarJoin, num_ranks) && token_equal(join.token, s->token.caller) &&
                   (join.protocol != STAR_PROTOCOL || comm_is_process(&join.who));
    s->num_strangers += !belongs;
    // One that has gone gave up while this process was stopped, say, and tries again.
    return !belongs || socket_has_ended(*caller) || star_judge(s, caller, &join, n, error);
}

// Hears the next caller, if there is one. Ranks that have come say nothing before all are there, so that one that can
// be read has died.
static inline bool star_round(Start *s, Error *error) {
    bool came = socket_wait(s->listener, POLLIN, seconds_now() + 0.02), ok = true;
    int caller = came ? accept(s->listener, NULL, NULL) : -1;
    if (caller >= 0) { ok = star_hear(s, &caller, error); }
    socket_close(&caller);
    for (int i = 1; ok && i < s->comm->num_ranks && s->refusal == NULL; i++) {
        const CommPeer *peer = &s->comm->peers[i];
        int fd = peer->watch >= 0 ? peer->watch : peer->talk;
        ok = fd < 0 || !socket_has_ended(fd) ||
             fail(error, "%s ended without a word (killed, or crashed?)", comm_name(s->comm, i).text);
    }
    return ok;
}

// Waits, on rank 0, until all ranks have come with both sockets. On failure tells the ranks that have come, and for a
// moment the callers that come.
static inline bool star_gather(Start *s, Error *error) {
    StarHead head;
    Error ignored;
    bool ok = true;
    memset(&head, 0, sizeof(head));
    s->num_missing = 2 * (s->comm->num_ranks - 1);
    while (ok && s->num_missing > 0) {
        ok =
            star_round(s, error) && (s->num_missing == 0 || seconds_now() < s->deadline || star_fail_missing(s, error));
    }
    for (int i = 1; !ok && i < s->comm->num_ranks; i++) {
        star_say(s->comm->peers[i].talk, head, TALK_FAILURE, error->text, strlen(error->text));
    }
    s->refusal = error->text;
    for (double end = seconds_now() + STAR_TELL_SECONDS; !ok && seconds_now() < end;) { star_round(s, &ignored); }
    return ok;
}

// ---- The other ranks: joining rank 0 ----

// Reads rank 0's answer. where: for messages.
static inline bool star_hear_answer(Start *s, int fd, const char *where, double deadline, Error *error) {
    StarHead head;
    Text said = {NULL, 0, 0, false};
    CommWho *zero = &s->comm->peers[0].who;
    char half[TOKEN_HALF];
    bool belongs = socket_read(fd, half, sizeof(half), deadline) && token_equal(half, s->token.zero);
    bool heard = belongs && star_read(fd, &head, &said, deadline);
    s->told = heard && head.kind == TALK_FAILURE;
    bool welcome = heard && !s->told && said.used == sizeof(*zero);
    if (welcome) { memcpy(zero, said.data, sizeof(*zero)); }
    welcome = welcome && comm_is_process(zero);
    if (s->told) {
        fail(error, "%s", said.data[0] != '\0' ? said.data : STAR_NO_REASON);
    } else if (!welcome) {
        fail(error, "%s: no answer of this run's rank 0: another program, or a rank 0 with another secret?", where);
    }
    text_free(&said);
    return welcome;
}

// Opens one of this rank's two sockets to rank 0 at an address.
static inline bool star_call(Start *s, const struct addrinfo *at, const char *where, bool watches, double deadline,
                             Error *error) {
    StarJoin join;
    Comm *comm = s->comm;
    int fd = socket_connect(at);
    if (fd < 0) { return fail(error, "%s: %s", where, strerror(errno)); }
    memset(&join, 0, sizeof(join));
    memcpy(join.token, s->token.caller, sizeof(join.token));
    join.protocol = STAR_PROTOCOL, join.rank = comm->rank, join.num_ranks = comm->num_ranks;
    join.watches = watches, join.who = comm->peers[comm->rank].who;
    socket_write(fd, &join, sizeof(join), deadline);
    bool ok = star_hear_answer(s, fd, where, deadline, error);
    if (ok && watches) { comm->peers[0].watch = fd; }
    if (ok && !watches) { comm->peers[0].talk = fd; }
    if (!ok) { socket_close(&fd); }
    return ok;
}

// Joins the rank 0 at an address with both sockets. The second one may take as long as the start.
static inline bool star_join(Start *s, const struct addrinfo *at, const char *where, Error *error) {
    double greeting = fmin(s->deadline, seconds_now() + STAR_ANSWER_SECONDS);
    if (star_call(s, at, where, false, greeting, error) && star_call(s, at, where, true, s->deadline, error)) {
        return true;
    }
    socket_close(&s->comm->peers[0].talk);
    return false;
}

// ---- The exchange: each rank brings bytes, and all ranks get the bytes of all. All ranks call the same in one order
// ----

// Fails because a rank's talk has ended. If the rank has died, the watch names it and ends this process.
static inline bool star_fail_talk(Comm *comm, int rank, const char *name, int code, Error *error) {
    comm_await_verdict(comm, STAR_VERDICT_SECONDS);
    return fail(error, "%s %s, while the others wait for it in %s", comm_name(comm, rank).text,
                code == ETIMEDOUT ? "has come, but does not begin the run within the time (--start-timeout)"
                                  : "has ended (in order, killed, or crashed?)",
                name);
}

// Receives a message of a rank, and adds its data to *all. The wait ends, because the watch ends this process when that
// rank dies or hangs, and the start has a limit.
static inline bool star_receive(Comm *comm, int rank, const char *name, StarHead *head, Text *all, Error *error) {
    double deadline = comm->start_deadline > 0.0 ? comm->start_deadline : HUGE_VAL;
    bool ok = star_read(comm->peers[rank].talk, head, all, deadline);
    if (!ok && errno != EBADMSG) { return star_fail_talk(comm, rank, name, errno, error); }
    if (all->failed) { return fail(error, "out of memory for %s", name); }
    return (ok && (head->kind == TALK_MINE) == (rank > 0)) ||
           fail(error, "%s answers %s with something else", comm_name(comm, rank).text, name);
}

// Checks that a rank's contribution belongs to the exchange that rank 0 is in.
static inline bool star_check_head(const Comm *comm, const StarHead *zero, int rank, const StarHead *head,
                                   Error *error) {
    bool one_name = strcmp(head->name, zero->name) == 0;
    return (one_name && head->size == zero->size) ||
           fail(error, "the ranks do not do the same: %s is in %s of %lld bytes; %s in %s of %lld bytes",
                comm_name(comm, rank).text, head->name, (long long)head->size, comm_name(comm, 0).text, zero->name,
                (long long)zero->size);
}

// Does rank 0's part. All ranks get all contributions, or the reason for none.
static inline bool star_lead(Comm *comm, const StarHead *mine, Text *all, Error *error) {
    bool ok = true;
    for (int rank = 1; ok && rank < comm->num_ranks; rank++) {
        StarHead head;
        ok = star_receive(comm, rank, mine->name, &head, all, error) && star_check_head(comm, mine, rank, &head, error);
    }
    for (int rank = 1; rank < comm->num_ranks; rank++) {
        star_say(comm->peers[rank].talk, *mine, ok ? TALK_RESULT : TALK_FAILURE, ok ? all->data : error->text,
                 ok ? all->used : strlen(error->text));
    }
    return ok;
}

// Does the part of every other rank.
static inline bool star_follow(Comm *comm, const StarHead *mine, const void *data, size_t bytes, Text *all,
                               Error *error) {
    StarHead head;
    star_say(comm->peers[0].talk, *mine, TALK_MINE, data, bytes);
    if (!star_receive(comm, 0, mine->name, &head, all, error)) { return false; }
    return head.kind == TALK_RESULT || fail(error, "%s", all->data[0] != '\0' ? all->data : STAR_NO_REASON);
}

// Brings `mine` (bytes), and gets what all ranks bring. size must be equal on all ranks; the length of a rank's
// contribution (`bytes`) need not. *all gets the contributions in order of rank, and is empty after a failure; the
// caller frees it. The exchange waits as long as the watch finds all ranks alive and well. An error ends all later
// exchanges too.
static inline bool comm_exchange(Comm *comm, const char *name, int64_t size, const void *mine, int64_t bytes, Text *all,
                                 Error *error) {
    StarHead head;
    bool ok = true, lead = comm->rank == 0, several = comm->num_ranks > 1;
    memset(all, 0, sizeof(*all)), memset(&head, 0, sizeof(head));
    if (comm->broken) { return fail(error, "%s", comm->known); }
    if (several && (comm->peers == NULL || comm->ending)) { return fail(error, "this rank has failed already"); }
    head.size = size;
    snprintf(head.name, sizeof(head.name), "%s", name);
    if (lead) { text_bytes(all, (const char *)mine, (size_t)bytes); }
    bool before = comm_waits(comm, true);
    if (several && lead) { ok = star_lead(comm, &head, all, error); }
    if (!lead) { ok = star_follow(comm, &head, mine, (size_t)bytes, all, error); }
    comm_waits(comm, before);
    if (ok && all->failed) { ok = fail(error, "out of memory for %s of %lld bytes", name, (long long)bytes); }
    if (ok) { return true; }
    text_free(all);
    comm->broken = true;
    comm_all_know(comm, error);
    return false;
}

#endif // LLMC_STAR_H
