// Fuzz target: the wire between the ranks. The input is what the other end of a connection says, from its first byte
// on: a caller to rank 0, or rank 0 to rank 1. All of it goes through the handshake, the watch, and what the exchanges
// make of it. Nothing waits: all bytes are there, in a pair of sockets.
//
//   byte 0   who reads, and what follows: see Reader
//   byte 1   flags: there is a secret; the other end proves what it can; bytes come in small pieces; the kind of
//   exchange then     frames
//
// A proof cannot be guessed, so the target puts the right one into a CHALLENGE or JOIN, if the flag says so. Without it
// the other end must get nowhere.
#include "dev/test/fuzz.h"
#include "llmc/ranks/agree.h"
#include "llmc/ranks/start.h"

typedef enum { READER_ZERO, READER_ONE, READER_FOLDER, NUM_READERS } Reader;
enum { FLAG_SECRET = 1, FLAG_PROVES = 2, FLAG_PIECES = 4, FLAG_TEXTS = 8, FLAG_FACTS = 16, RANKS = 4 };

// Holds one conversation.
typedef struct {
    CommStartup s;
    Comm comm;
    Watch watch;
    CommNonces nonces; // of rank 1
    int flags, other;  // other: the other end's socket
    int step;          // of rank 1: 0: greeted, 1: introduced, 2: welcome, -1: refused
} Talk;

static void require_text(const char *text, size_t size) {
    require(memchr(text, '\0', size) != NULL && text[0] != '\0');
}

static void require_process(const CommWho *who) {
    require(who->pid > 0);
    require_text(who->host, sizeof(who->host));
}

// ---- Both ends ----

static void begin(Talk *talk, int rank, int flags) {
    CommOptions options;
    Error error;
    int fds[2];
    memset(talk, 0, sizeof(*talk));
    memset(&options, 0, sizeof(options));
    options.host = "here", options.start = COMM_TCP, options.start_timeout = 1000.0;
    require(comm_create(&talk->comm, &options, rank, RANKS, &error));
    talk->flags = flags;
    talk->s.comm = &talk->comm;
    talk->s.me = &talk->comm.peers[rank].who;
    talk->s.deadline = seconds_now() + 1000.0;
    talk->s.num_missing = RANKS - 1;
    talk->s.secret.known = (flags & FLAG_SECRET) != 0;
    memset(talk->s.secret.key, talk->s.secret.known ? 5 : 0, sizeof(talk->s.secret.key));
    memset(talk->nonces.caller, 3, sizeof(talk->nonces.caller));
    for (int i = 0; i < COMM_CALLERS; i++) { talk->s.links[i].fd = -1; }
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    link_open(rank == 0 ? &talk->s.links[0] : &talk->comm.links[0], socket_prepare(fds[0]), COMM_GREETING_BYTES);
    talk->other = socket_prepare(fds[1]);
    watch_begin(&talk->watch, &talk->comm);
}

// Puts the right proof into a message.
static void prove(Talk *talk, const CommNonces *nonces, CommSpeaker speaker, uint8_t *message, size_t bytes) {
    if (!(talk->flags & FLAG_PROVES) || bytes < SHA256_BYTES) { return; }
    secret_prove(&talk->s.secret, nonces, speaker, message + SHA256_BYTES, bytes - SHA256_BYTES, message);
}

static void hear_zero(Talk *talk) {
    Error error = {""};
    for (int i = 0; i < 2 && talk->s.links[0].fd >= 0; i++) { // two frames may have come at once
        if (!comm_hear_caller(&talk->s, 0, &error)) {
            require(talk->s.secret.known && (talk->flags & FLAG_PROVES));
            require_text(error.text, sizeof(error.text));
        }
    }
    for (int rank = 1; rank < RANKS; rank++) { watch_read(&talk->watch, rank); }
}

static void hear_one(Talk *talk) {
    Link *link = &talk->comm.links[0];
    Error error = {""};
    for (Frame *frame; talk->step >= 0 && talk->step < 2 && link_receive(link, &frame) == LINK_FRAME;) {
        bool ok = talk->step == 0 ? comm_take_challenge(&talk->s, &talk->nonces, frame, "there", &error)
                                  : comm_take_answer(&talk->s, frame, "there", &error);
        if (!ok) { require_text(error.text, sizeof(error.text)); }
        talk->step = ok ? talk->step + 1 : -1;
        link->limit = LINK_MAX_BYTES;
    }
    if (talk->step == 2) { watch_read(&talk->watch, 0); }
}

// Lets the other end say something.
static void speak(Talk *talk, const uint8_t *bytes, size_t size) {
    size_t piece = talk->flags & FLAG_PIECES ? 41 : 4096;
    for (size_t n; size > 0; bytes += n, size -= n) {
        n = size < piece ? size : piece;
        if (send(talk->other, bytes, n, MSG_NOSIGNAL) != (ssize_t)n) { return; }
        if (talk->comm.rank == 0) { hear_zero(talk); }
        if (talk->comm.rank == 1) { hear_one(talk); }
    }
}

// Lets the other end say the input, frame by frame.
static void speak_all(Talk *talk, uint8_t *bytes, size_t size) {
    for (size_t n; size > 0; bytes += n, size -= n) {
        FrameHead head;
        n = size;
        if (size >= sizeof(head)) {
            memcpy(&head, bytes, sizeof(head));
            size_t left = size - sizeof(head);
            if (head.bytes >= 0 && (uint64_t)head.bytes <= left) { n = sizeof(head) + (size_t)head.bytes; }
            uint8_t *message = bytes + sizeof(head);
            if (talk->comm.rank == 0 && head.type == FRAME_JOIN) {
                prove(talk, &talk->s.callers[0].nonces, SPEAKS_CALLER, message, n - sizeof(head));
            }
            if (talk->comm.rank == 1 && head.type == FRAME_CHALLENGE && n - sizeof(head) == sizeof(CommChallenge)) {
                memcpy(talk->nonces.zero, message + SHA256_BYTES, sizeof(talk->nonces.zero));
                prove(talk, &talk->nonces, SPEAKS_ZERO, message, n - sizeof(head));
            }
        }
        speak(talk, bytes, n);
    }
}

// ---- What the exchanges make of what has come ----

static void use_result(Talk *talk, const Frame *frame) {
    static const char facts[] = "model\0d12\0--seq-len\0"
                                "64"; // with its zero
    Comm *comm = &talk->comm;
    CommFirst first;
    Error error = {""};
    char words[COMM_TEXT_BYTES] = "";
    size_t bytes = (size_t)frame->head.bytes;
    Text all = {(char *)malloc(bytes + 1), bytes, bytes + 1, false}; // no byte more: a sanitizer sees what is beyond
    if (all.data == NULL) { return; }
    memcpy(all.data, frame->data, bytes + 1);
    if (talk->flags & FLAG_FACTS) {
        comm_compare_facts(comm, all.data, all.data + all.used, facts, facts + sizeof(facts), words, sizeof(words));
        require(memchr(words, '\0', sizeof(words)) != NULL);
    } else if (talk->flags & FLAG_TEXTS) {
        bool ok = comm_find_text(comm, "a question", &all, &first, &error);
        require(!ok || (first.rank >= 0 && first.rank < RANKS && first.alike >= 0 && first.alike <= RANKS));
        require(memchr(first.text, '\0', sizeof(first.text)) != NULL);
    } else if (comm_take_names(comm, &all, &error)) {
        for (int i = 0; i < RANKS; i++) { require_process(&comm->peers[i].who); }
        comm_find_local(comm);
        require(comm->local_rank >= 0 && comm->local_rank < comm->num_local && comm->num_local <= RANKS);
    }
    text_free(&all);
}

static void use_inbox(Talk *talk, CommPeer *peer, int rank) {
    Error error = {""};
    FrameHead mine = frame_head(FRAME_MINE, 8);
    snprintf(mine.name, sizeof(mine.name), "a sum");
    for (int i = 0; i < 2; i++) {
        Frame *frame = peer->inbox[i];
        if (frame == NULL) { continue; }
        require(frame->head.bytes >= 0 && frame->data[frame->head.bytes] == '\0');
        require(frame_text(frame)[0] != '\0');
        if (!comm_check_frame(&talk->comm, &mine, rank, &frame->head, &error)) {
            require_text(error.text, sizeof(error.text));
        }
        if (frame->head.type != FRAME_FAILURE) { use_result(talk, frame); }
    }
}

static void end(Talk *talk) {
    Comm *comm = &talk->comm;
    int joined = 0;
    bool trusts = (talk->flags & FLAG_PROVES) != 0;
    for (int rank = 0; rank < RANKS; rank++) {
        CommPeer *peer = &comm->peers[rank];
        joined += rank != comm->rank && peer->who.pid != 0;
        if (peer->who.pid != 0) { require_process(&peer->who); }
        require(peer->beat.idle >= 0.0 && peer->beat.limit >= 0.0);
        use_inbox(talk, peer, rank);
    }
    require(trusts || joined == 0);
    require(trusts || !(talk->s.told || talk->s.hopeless));
    if (talk->watch.verdict != VERDICT_NONE) {
        require(trusts);
        require_text(talk->watch.words.text, sizeof(talk->watch.words.text));
    }
    close(talk->other);
    link_close(&talk->s.links[0]);
    comm_free(comm);
}

static void read_folder(const uint8_t *data, size_t size) {
    CommContact contact;
    CommSecret secret;
    Error error;
    char *text = (char *)malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    memset(&contact, 0, sizeof(contact));
    if (comm_parse_contact(&contact, text)) {
        require(contact.port > 0 && contact.port <= 65535);
        require_text(contact.host, sizeof(contact.host));
        require(memchr(contact.text, '\0', sizeof(contact.text)) != NULL);
    }
    if (secret_take(&secret, "it", text, size, &error)) { require(secret.known && size >= SECRET_LEAST); }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Talk talk;
    if (size < 2) { return 0; }
    Reader reader = (Reader)(data[0] % NUM_READERS);
    if (reader == READER_FOLDER) {
        read_folder(data + 2, size - 2);
        return 0;
    }
    uint8_t *bytes = (uint8_t *)malloc(size);
    memcpy(bytes, data + 2, size - 2);
    begin(&talk, reader == READER_ZERO ? 0 : 1, data[1]);
    speak_all(&talk, bytes, size - 2);
    shutdown(talk.other, SHUT_WR);
    if (talk.comm.rank == 0) { hear_zero(&talk); }
    if (talk.comm.rank == 1) { hear_one(&talk); }
    end(&talk);
    free(bytes);
    return 0;
}

// ---- Valid conversations ----

static size_t put_frame(uint8_t *buffer, size_t at, FrameType type, const void *data, size_t bytes, const char *name) {
    FrameHead head = frame_head(type, (int64_t)bytes);
    head.size = 8;
    snprintf(head.name, sizeof(head.name), "%s", name);
    memcpy(buffer + at, &head, sizeof(head));
    if (bytes > 0) { memcpy(buffer + at + sizeof(head), data, bytes); }
    return at + sizeof(head) + bytes;
}

// What a caller says that becomes rank `rank`: it joins, lives, brings something and leaves.
static size_t put_caller(uint8_t *buffer, int rank, int num_ranks, int protocol) {
    struct {
        CommJoin join;
        char more[100]; // of another protocol
    } joins;
    CommJoin join;
    CommBeat beat;
    uint8_t nonce[SHA256_BYTES] = {1};
    memset(&join, 0, sizeof(join)), memset(&beat, 0, sizeof(beat));
    join.protocol = protocol, join.rank = rank, join.num_ranks = num_ranks, join.who = comm_who_am_i("there");
    beat.idle = 0.5, beat.limit = 45.0;
    snprintf(beat.phase, sizeof(beat.phase), "step 3");
    size_t n = put_frame(buffer, 2, FRAME_HELLO, nonce, sizeof(nonce), "");
    memset(&joins, 1, sizeof(joins));
    joins.join = join;
    n = put_frame(buffer, n, FRAME_JOIN, &joins, protocol == COMM_PROTOCOL ? sizeof(join) : sizeof(joins), "");
    n = put_frame(buffer, n, FRAME_BEAT, &beat, sizeof(beat), "");
    n = put_frame(buffer, n, FRAME_MINE, "a\0b\0\0c", 7, "a sum");
    return put_frame(buffer, n, rank == 1 ? FRAME_GOODBYE : FRAME_END, "no more paper", rank == 1 ? 0 : 13, "");
}

// What rank 0 says to rank 1: its challenge, an answer, a beat, and the result of an exchange.
static size_t put_zero(uint8_t *buffer, FrameType answer, FrameType result, const void *data, size_t bytes) {
    CommChallenge challenge;
    CommBeat beat;
    CommWho who = comm_who_am_i("there");
    memset(&challenge, 2, sizeof(challenge)), memset(&beat, 0, sizeof(beat));
    challenge.protocol = COMM_PROTOCOL;
    size_t n = put_frame(buffer, 2, FRAME_CHALLENGE, &challenge, sizeof(challenge), "");
    bool welcome = answer == FRAME_WELCOME;
    n = put_frame(buffer, n, answer, welcome ? (const void *)&who : "not you", welcome ? sizeof(who) : 7, "");
    n = put_frame(buffer, n, FRAME_BEAT, &beat, sizeof(beat), "");
    n = put_frame(buffer, n, result, data, bytes, "a sum");
    return put_frame(buffer, n, FRAME_END, "rank 2 (there): no more paper", 29, "");
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char contact[] =
        "xxsecret 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nport 29500\n"
        "host there\naddresses 192.0.2.1 2001:db8::1\n";
    static const char ports[] =
        "xxsecret 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nport 65536\n"
        "host there\naddresses";
    CommWho names[RANKS];
    static const char facts[] = "model\0d12\0--seq-len\0"
                                "32";
    const int both = FLAG_SECRET | FLAG_PROVES;
    (void)capacity; // all of them are small
    for (int i = 0; i < RANKS; i++) { names[i] = comm_who_am_i(i < 2 ? "here" : "there"); }
    buffer[0] = which < 6 ? READER_ZERO : READER_ONE;
    switch (which) {
    case 0: return buffer[1] = (uint8_t)both, put_caller(buffer, 1, RANKS, COMM_PROTOCOL);
    case 1: return buffer[1] = FLAG_PROVES | FLAG_PIECES | FLAG_TEXTS, put_caller(buffer, 2, RANKS, COMM_PROTOCOL);
    case 2: return buffer[1] = FLAG_SECRET, put_caller(buffer, 1, RANKS, COMM_PROTOCOL);
    case 3: return buffer[1] = (uint8_t)both, put_caller(buffer, 2, RANKS + 1, COMM_PROTOCOL);
    case 4: return buffer[1] = FLAG_PROVES, put_caller(buffer, RANKS, RANKS, COMM_PROTOCOL);
    case 5: return buffer[1] = (uint8_t)both, put_caller(buffer, 3, RANKS, COMM_PROTOCOL + 1);
    case 6: return buffer[1] = (uint8_t)both, put_zero(buffer, FRAME_WELCOME, FRAME_RESULT, names, sizeof(names));
    case 7:
        return buffer[1] = (uint8_t)(both | FLAG_TEXTS),
               put_zero(buffer, FRAME_WELCOME, FRAME_RESULT, "\0disk full\0\0", 13);
    case 8:
        return buffer[1] = (uint8_t)(both | FLAG_FACTS | FLAG_PIECES),
               put_zero(buffer, FRAME_WELCOME, FRAME_RESULT, facts, sizeof(facts));
    case 9: return buffer[1] = FLAG_PROVES, put_zero(buffer, FRAME_WELCOME, FRAME_FAILURE, "it failed", 9);
    case 10: return buffer[1] = (uint8_t)both, put_zero(buffer, FRAME_REFUSED, FRAME_RESULT, "", 0);
    case 11: return buffer[1] = FLAG_SECRET, put_zero(buffer, FRAME_WELCOME, FRAME_RESULT, names, sizeof(names));
    case 12: return memcpy(buffer, contact, sizeof(contact)), buffer[0] = READER_FOLDER, sizeof(contact) - 1;
    case 13: return memcpy(buffer, ports, sizeof(ports)), buffer[0] = READER_FOLDER, sizeof(ports) - 1;
    default: return 0;
    }
}
