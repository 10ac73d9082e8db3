// Fuzz target: what comes from the network, before a process has joined and after. The input is what the other end of a
// connection says. Nothing waits: all bytes are there, in a pair of sockets, and then the connection ends.
//
//   byte 0   who reads: see Reader
//   byte 1   flags: the run has a token; the other end knows it; this process is rank 1 and not 0; the kind of
//            exchange; a caller has gone
//   then     what is said
//
// A token cannot be guessed, so the target puts the right half into a greeting or an answer, if the flag says so.
// Without it the other end must get nowhere.
#include "dev/test/fuzz.h"
#include "llmc/ranks/agree.h"
#include "llmc/ranks/meet.h"

typedef enum { READER_JOIN, READER_ANSWER, READER_TALK, READER_WATCH, READER_TEXT, NUM_READERS } Reader;
enum { FLAG_TOKEN = 1, FLAG_KNOWS = 2, FLAG_ONE = 4, FLAG_TEXTS = 8, FLAG_FACTS = 16, FLAG_GONE = 32, RANKS = 4 };

#define FACTS "model\0d12\0--seq-len\0"

static void require_text(const char *text, size_t size) {
    require(memchr(text, '\0', size) != NULL && text[0] != '\0');
}

static void require_process(const CommWho *who) {
    require(who->pid > 0);
    require_text(who->host, sizeof(who->host));
}

// ---- Before joining ----

// A caller at rank 0. What it says ends the run only if it knows the token. One that has gone, as while rank 0 was
// stopped, is not admitted, and may come again.
static void read_join(Start *s, int fd, int flags, bool belongs) {
    Comm *comm = s->comm;
    s->num_missing = 2 * (RANKS - 1);
    if (!star_hear(s, &fd, &error)) {
        require((flags & FLAG_TOKEN) && belongs);
        require_text(error.text, sizeof(error.text));
    }
    int joined = 0;
    for (int rank = 1; rank < RANKS; rank++) {
        joined += comm->peers[rank].talk >= 0;
        if (comm->peers[rank].talk >= 0) { require_process(&comm->peers[rank].who); }
        require(comm->peers[rank].watch < 0);
    }
    require(joined + s->num_missing == 2 * (RANKS - 1) && (belongs || joined == 0));
    socket_close(&fd);
}

// Rank 0's answer to rank 1.
static void read_answer(Start *s, int fd, bool belongs) {
    if (star_hear_answer(s, fd, "there", seconds_now() + 1000.0, &error)) {
        require(belongs);
        require_process(&s->comm->peers[0].who);
    } else {
        require_text(error.text, sizeof(error.text));
        require(belongs || !s->told);
    }
    close(fd);
}

// ---- After joining ----

// What the exchanges make of what has come.
static void use_result(Comm *comm, const Text *brought, int flags) {
    static const char facts[] = FACTS "64";                                                  // with its zero
    Text all = {(char *)malloc(brought->used + 1), brought->used, brought->used + 1, false}; // no byte more
    memcpy(all.data, brought->data, brought->used + 1);
    bool ok = true;
    if (flags & FLAG_FACTS) {
        ok = comm_compare_facts(comm, all.data, all.data + all.used, facts, facts + sizeof(facts), &error);
    } else if (flags & FLAG_TEXTS) {
        ok = comm_all_well(comm, &all, &error);
        require(ok == (all.used == RANKS && memcmp(all.data, "\0\0\0", RANKS) == 0)); // a zero of each
    }
    if (!ok) { require_text(error.text, sizeof(error.text)); }
    text_free(&all);
}

static void read_talk(Comm *comm, int fd, int flags) {
    int other = comm->rank == 0 ? 1 : 0;
    StarHead head, mine;
    Text all = {NULL, 0, 0, false};
    memset(&mine, 0, sizeof(mine));
    snprintf(mine.name, sizeof(mine.name), "a sum");
    comm->peers[other].talk = fd;
    if (!star_receive(comm, other, "a sum", &head, &all, &error)) {
        require_text(error.text, sizeof(error.text));
        require(all.capacity <= 2 * (size_t)STAR_MAX_BYTES + 1024); // no more memory than for the longest message
    } else {
        require(head.bytes >= 0 && all.used == (size_t)head.bytes && all.data[all.used] == '\0');
        require((head.kind == TALK_MINE) == (comm->rank == 0) && memchr(head.name, '\0', sizeof(head.name)) != NULL);
        if (!star_check_head(comm, &mine, other, &head, &error)) { require_text(error.text, sizeof(error.text)); }
        if (head.kind != TALK_FAILURE) { use_result(comm, &all, flags); }
    }
    text_free(&all);
}

static void read_watch(Comm *comm, int fd) {
    static Watch w;
    int other = comm->rank == 0 ? 1 : 0;
    watch_begin(&w, comm);
    w.verdict = VERDICT_NONE;
    comm->peers[other].watch = fd;
    watch_read(&w, other);
    const CommBeat *beat = &comm->peers[other].beat;
    require(beat->idle >= 0.0 && isfinite(beat->idle) && beat->limit >= 0.0 && isfinite(beat->limit));
    require(memchr(comm->peers[other].beat.phase, '\0', COMM_PHASE_BYTES) != NULL);
    if (w.verdict != VERDICT_NONE) { require_text(w.words.text, sizeof(w.words.text)); }
}

// ---- Texts: rank 0's file, the user's token and address ----

static void read_text(const uint8_t *data, size_t size) {
    static Start s;
    StarToken token;
    char *text = (char *)malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    memset(&s, 0, sizeof(s)), memset(&token, 0, sizeof(token));
    if (meet_parse_contact(&s, text)) {
        require(s.port > 0 && s.port <= 65535 && s.token.known);
        require(memchr(s.hosts, '\0', sizeof(s.hosts)) != NULL);
    }
    if (token_take(&token, "it", text, &error)) { require(strspn(text, "0123456789abcdefABCDEF") == TOKEN_DIGITS); }
    if (meet_parse_address(&s, text, &error)) { require(s.port > 0 && s.port <= 65535 && s.hosts[0] != '\0'); }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Start s;
    static Comm comm;
    CommOptions options;
    int fds[2];
    if (size < 2) { return 0; }
    error.text[0] = '\0';
    Reader reader = (Reader)(data[0] % NUM_READERS);
    int flags = data[1];
    if (reader == READER_TEXT) {
        read_text(data + 2, size - 2);
        return 0;
    }
    size = size - 2 < 60000 ? size - 2 : 60000; // what a pair of sockets holds
    uint8_t *said = (uint8_t *)malloc(size + 1);
    memcpy(said, data + 2, size);
    memset(&options, 0, sizeof(options)), memset(&comm, 0, sizeof(comm));
    options.host = "here", options.start = COMM_TCP, options.start_timeout = 1000.0;
    bool one = reader == READER_ANSWER || (reader > READER_ANSWER && (flags & FLAG_ONE));
    require(comm_create(&comm, &options, one ? 1 : 0, RANKS, &error));
    start_begin(&s, &comm);
    s.token.known = (flags & FLAG_TOKEN) != 0;
    if (s.token.known) { memset(s.token.caller, 5, TOKEN_HALF), memset(s.token.zero, 6, TOKEN_HALF); }
    const char *half = one ? s.token.zero : s.token.caller;
    if ((flags & FLAG_KNOWS) && size >= TOKEN_HALF) { memcpy(said, half, TOKEN_HALF); }
    bool gone = (flags & FLAG_GONE) && size <= sizeof(StarJoin); // all that it said has been read
    bool belongs = size >= TOKEN_HALF && memcmp(said, half, TOKEN_HALF) == 0 && !(reader == READER_JOIN && gone);
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    require(send(fds[1], said, size, MSG_NOSIGNAL) == (ssize_t)size);
    if (reader != READER_JOIN || (flags & FLAG_GONE)) { shutdown(fds[1], SHUT_WR); }
    socket_prepare(fds[0]);
    if (reader == READER_JOIN) { read_join(&s, fds[0], flags, belongs); }
    if (reader == READER_ANSWER) { read_answer(&s, fds[0], belongs); }
    if (reader == READER_TALK) { read_talk(&comm, fds[0], flags); }
    if (reader == READER_WATCH) { read_watch(&comm, fds[0]); }
    close(fds[1]);
    comm_free(&comm);
    free(said);
    return 0;
}

// ---- Valid inputs ----

static size_t put(uint8_t *buffer, size_t at, const void *data, size_t bytes) {
    memcpy(buffer + at, data, bytes);
    return at + bytes;
}

// Begins an input: who reads, the flags, and room for half a token.
static void begin(uint8_t *buffer, Reader reader, int flags) {
    memset(buffer, 0, 2 + TOKEN_HALF);
    buffer[0] = (uint8_t)reader, buffer[1] = (uint8_t)flags;
}

static size_t put_join(uint8_t *buffer, int flags, int rank, int protocol) {
    StarJoin join;
    begin(buffer, READER_JOIN, flags);
    memset(&join, 0, sizeof(join));
    join.protocol = protocol, join.rank = rank, join.num_ranks = RANKS, join.who = comm_who_am_i("there");
    return put(buffer, 2, &join, sizeof(join));
}

static size_t put_message(uint8_t *buffer, Reader reader, int flags, StarKind kind, const void *data, size_t bytes) {
    StarHead head;
    begin(buffer, reader, flags);
    memset(&head, 0, sizeof(head));
    head.kind = kind, head.bytes = (int64_t)bytes, head.size = 8;
    snprintf(head.name, sizeof(head.name), "a sum");
    size_t at = put(buffer, reader == READER_ANSWER ? 2 + TOKEN_HALF : 2, &head, sizeof(head));
    return put(buffer, at, data, bytes);
}

static size_t put_beats(uint8_t *buffer, int flags, int last) {
    static const char words[COMM_TEXT_BYTES] = "rank 2 (there): no more paper";
    CommBeat beat;
    begin(buffer, READER_WATCH, flags);
    memset(&beat, 0, sizeof(beat));
    beat.kind = BEAT_ALIVE, beat.idle = 0.5, beat.limit = 45.0;
    snprintf(beat.phase, sizeof(beat.phase), "step 3");
    size_t n = put(buffer, 2, &beat, sizeof(beat));
    beat.kind = last;
    n = put(buffer, n, &beat, sizeof(beat));
    return last == BEAT_END ? put(buffer, n, words, 1000) : n; // cut: an input is small
}

static size_t put_text(uint8_t *buffer, const char *text, size_t bytes) {
    begin(buffer, READER_TEXT, 0);
    return put(buffer, 2, text, bytes);
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char contact[] = "token 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nport 29500\n"
                                  "addresses 192.0.2.1 2001:db8::1\n";
    static const char facts[] = FACTS "32";
    const int knows = FLAG_TOKEN | FLAG_KNOWS;
    CommWho names[RANKS];
    (void)capacity; // all of them are small
    for (int i = 0; i < RANKS; i++) { names[i] = comm_who_am_i(i < 2 ? "here" : "there"); }
    switch (which) {
    case 0: return put_join(buffer, knows, 1, STAR_PROTOCOL);
    case 1: return put_join(buffer, FLAG_KNOWS, 1, STAR_PROTOCOL);
    case 2: return put_join(buffer, knows, 3, STAR_PROTOCOL + 1);
    case 3: return put_message(buffer, READER_ANSWER, knows, TALK_RESULT, names, sizeof(names[0]));
    case 4: return put_message(buffer, READER_ANSWER, knows, TALK_FAILURE, "not you", 7);
    case 5: return put_message(buffer, READER_TALK, FLAG_ONE, TALK_RESULT, names, sizeof(names));
    case 6: return put_message(buffer, READER_TALK, FLAG_TEXTS, TALK_MINE, "\0disk full\0\0", 13);
    case 7: return put_message(buffer, READER_TALK, FLAG_ONE | FLAG_FACTS, TALK_RESULT, facts, sizeof(facts));
    case 8: return put_beats(buffer, FLAG_ONE, BEAT_END);
    case 9: return put_beats(buffer, 0, BEAT_GOODBYE);
    case 10: return put_text(buffer, contact, sizeof(contact) - 1);
    case 11: return put_text(buffer, contact + 6, TOKEN_DIGITS);
    case 12: return put_text(buffer, "[2001:db8::1]:29500", 19);
    case 13: return put_join(buffer, knows | FLAG_GONE, 1, STAR_PROTOCOL);
    case 14: return put_message(buffer, READER_TALK, FLAG_TEXTS, TALK_MINE, "\0\0\0", RANKS);
    case 15: return put_message(buffer, READER_TALK, FLAG_ONE, TALK_MINE, names, sizeof(names)); // not to rank 1
    default: return 0;
    }
}
