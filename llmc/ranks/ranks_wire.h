// What the processes of a run say to each other over TCP: a greeting on each new connection, frames after it. All
// machines of a run have the same byte order and run the same program (ranks.h compares the builds).
#ifndef LLMC_COMM_WIRE_H
#define LLMC_COMM_WIRE_H

#include "llmc/ranks/sockets.h"

#define COMM_PROTOCOL 1 // another number: another version of what is in this file
#define COMM_HELLO_MAGIC 0x6c65682d632e3267ULL
#define COMM_FRAME_MAGIC 0x6d6f6363u
#define COMM_HOST_BYTES 72   // a host's name and a NUL; longer ones are cut
#define COMM_PHASE_BYTES 64  // what a rank is doing, and a NUL
#define COMM_TEXT_BYTES 8192 // an Error's text
#define COMM_NAME_BYTES 128  // "rank 3 (host)"
#define COMM_MAX_RANKS 4096

// A process of the run.
typedef struct {
    int32_t pid;
    char host[COMM_HOST_BYTES];
} CommWho;

enum { COMM_FOR_EXCHANGES, COMM_FOR_WATCH }; // what a connection is for: each rank has one of each to rank 0

// The first bytes on a connection, from the rank that connects to rank 0.
typedef struct {
    uint64_t magic, nonce; // the nonce tells runs apart; 0 where there was no way to agree on one
    int32_t protocol, purpose, rank, num_ranks;
    CommWho who;
} CommHello;

typedef enum {
    // The start, from rank 0.
    FRAME_WELCOME = 1, // CommWelcome: the greeting has arrived, wait for the others
    FRAME_STRANGER,    // this is the rank 0 of another run (another nonce)
    FRAME_REFUSED,     // text: the run does not start
    FRAME_START,       // CommWho of each rank: all are here
    // Exchanges.
    FRAME_MINE,    // to rank 0: what this rank contributes
    FRAME_RESULT,  // from rank 0
    FRAME_FAILURE, // text, from rank 0: the exchange has failed
    // The watch.
    FRAME_BEAT,    // CommBeat
    FRAME_GOODBYE, // this rank ends in order
    FRAME_FAILED,  // text, to rank 0: the run is to end
    FRAME_END      // text, from rank 0: the run ends
} FrameType;

typedef struct {
    uint32_t magic;
    uint16_t type, kind; // kind: of an exchange
    uint64_t sequence;   // of an exchange
    int64_t size;        // of an exchange: must be the same on all ranks
    int64_t bytes;       // that follow
} CommFrame;

typedef struct {
    CommWho who;
    int32_t protocol, num_ranks;
    double start_timeout; // rank 0's, seconds
} CommWelcome;

// What a rank's main thread is doing.
typedef struct {
    double idle;  // seconds since it got further
    double limit; // seconds that this may take; 0: for ever
    uint64_t count;
    int32_t waits; // for other ranks
    char phase[COMM_PHASE_BYTES];
} CommBeat;

// Writes "rank 3 (host)" into text (COMM_NAME_BYTES).
static inline const char *comm_who_name(char *text, int rank, const CommWho *who) {
    snprintf(text, COMM_NAME_BYTES, "rank %d (%.*s)", rank, COMM_HOST_BYTES - 1, who->host);
    return text;
}

// Writes "rank 3 (host, pid 12)" into text (COMM_NAME_BYTES).
static inline const char *comm_who_process(char *text, int rank, const CommWho *who) {
    snprintf(text, COMM_NAME_BYTES, "rank %d (%.*s, pid %d)", rank, COMM_HOST_BYTES - 1, who->host, (int)who->pid);
    return text;
}

// This process, on a host of the given name (NULL: as the system calls it).
static inline void comm_who_am_i(CommWho *who, const char *host) {
    memset(who, 0, sizeof(*who));
    who->pid = (int32_t)getpid();
    if (host != NULL) {
        snprintf(who->host, sizeof(who->host), "%s", host);
    } else if (gethostname(who->host, sizeof(who->host) - 1) != 0 || who->host[0] == '\0') {
        snprintf(who->host, sizeof(who->host), "localhost");
    }
}

static inline CommFrame comm_frame(FrameType type, int64_t bytes) {
    CommFrame frame;
    memset(&frame, 0, sizeof(frame));
    frame.magic = COMM_FRAME_MAGIC;
    frame.type = (uint16_t)type;
    frame.bytes = bytes;
    return frame;
}

// Sends a frame and its content.
static inline SocketStatus comm_send(int fd, const CommFrame *frame, const void *data, double deadline) {
    SocketStatus status = socket_send(fd, frame, sizeof(*frame), deadline);
    if (status != SOCKET_DONE || frame->bytes == 0) { return status; }
    return socket_send(fd, data, (size_t)frame->bytes, deadline);
}

// The bytes of a text that go into a frame: no NUL, not more than the receiver takes.
static inline int64_t comm_text_bytes(const char *text) { return min_i64((int64_t)strlen(text), COMM_TEXT_BYTES - 1); }

static inline SocketStatus comm_send_text(int fd, FrameType type, const char *text, double deadline) {
    CommFrame frame = comm_frame(type, comm_text_bytes(text));
    return comm_send(fd, &frame, text, deadline);
}

// Receives the text of a frame into text (COMM_TEXT_BYTES). One that is too long has not come from this program.
static inline SocketStatus comm_receive_text(int fd, const CommFrame *frame, char *text, double deadline) {
    text[0] = '\0';
    if (frame->bytes < 0 || frame->bytes >= COMM_TEXT_BYTES) {
        errno = EBADMSG;
        return SOCKET_ERROR;
    }
    SocketStatus status = socket_receive(fd, text, (size_t)frame->bytes, deadline);
    text[status == SOCKET_DONE ? frame->bytes : 0] = '\0';
    return status;
}

#endif // LLMC_COMM_WIRE_H
