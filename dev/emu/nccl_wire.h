// The messages between the ranks of an emulated NCCL communicator and its server, over a TCP connection for each rank:
//   rank -> server   a Hello, then a Call and its data for each collective, and at the end a Call of GOODBYE.
//                    The sends and receives of a group are one Call, which repeats the first of them. Its data are a
//                    Call for each of them and then the data of the sends
//   server -> rank   an Answer to each message, with a text or data behind it; at any time an Answer that says why the
//                    communicator has failed
// Both sides are one program on machines of one kind, so structures travel as they are.
#ifndef EMU_NCCL_WIRE_H
#define EMU_NCCL_WIRE_H

#include "runtime.h"
#include "include/nccl.h"

#include <netinet/in.h>

namespace emu {
namespace nccl {

// The contents of an ncclUniqueId: where the server listens.
struct Address {
    uint8_t is_v6, bytes[16];
};
constexpr int MAX_ADDRESSES = 5;
struct Id {
    char magic[8];
    uint64_t nonce;
    uint64_t network; // see network_number
    uint16_t port, addresses;
    Address address[MAX_ADDRESSES]; // without loopback addresses
};
static_assert(sizeof(Id) <= sizeof(ncclUniqueId), "fits");
constexpr char ID_MAGIC[8] = {'e', 'm', 'u', 'n', 'c', 'c', 'l', '1'};

struct Line { // a Source that can travel
    char file[188];
    int32_t line;
};

struct Hello {
    char magic[8];
    uint64_t nonce, network;
    int32_t ranks, rank, pid, device;
    char host[64];
    Line at;
};

enum Kind : uint32_t { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, SEND, RECEIVE, GOODBYE };
inline bool is_transfer(Kind kind) { return kind == SEND || kind == RECEIVE; }

struct Call {
    Kind kind;
    uint32_t type, reduction;
    int32_t root;       // the peer of a transfer; 0 if the collective has none
    uint64_t count;     // as the caller gave it
    uint64_t number;    // index among this rank's collectives, from 1
    uint64_t bytes;     // of the data that follows
    uint64_t transfers; // Calls at the beginning of the data; 0: a collective
    Line at;
};

enum AnswerKind : uint32_t {
    DONE,   // with the data that the rank receives
    FAILED, // with a text: another rank has ended or made a mistake
    REPORT  // with a text: this rank made a mistake
};
struct Answer {
    AnswerKind kind;
    uint32_t unused;
    uint64_t bytes; // of the text or data that follows
};

// ---- Sockets (nccl_wire.cpp) ----

// Formats texts that are no part of a report.
std::string words(const char *text, ...) __attribute__((format(printf, 1, 2)));
uint64_t network_number(); // equal in processes that reach each other by the loopback address
uint64_t random_number();
std::string host_name();
Line to_line(Source at);
std::string to_text(const Line &at);
const char *name_of(Kind kind);        // "ncclAllReduce"
std::string to_text(const Call &call); // "ncclAllReduce of 8 float32 (sum)", "ncclSend of 8 float32 to rank 1"

int listen_anywhere(uint16_t *port); // returns -1 on failure; errno says why
std::vector<Address> own_addresses();
int connect_to(const Id &id, std::string *why);

bool send_all(int socket, const void *data, size_t bytes);
bool receive_all(int socket, void *data, size_t bytes);
// Sends, and stops when something arrives meanwhile. Only a failure can arrive.
bool send_unless_answered(int socket, const void *data, size_t bytes);

// ---- The server (nccl_server.cpp) ----

// Serves the communicator of this id in its own thread until all ranks are gone.
void start_server(int listener, uint64_t nonce);

// ---- Arithmetic (nccl_reduce.cpp) ----

size_t size_of_type(uint32_t type);
const char *name_of_type(uint32_t type);
const char *name_of_reduction(uint32_t reduction);
// sum[i] = sum[i] (reduction) next[i], rounded to the type.
void reduce(uint32_t type, uint32_t reduction, void *sum, const void *next, size_t count);
void divide(uint32_t type, void *sum, size_t count, int ranks); // divides each element: the end of ncclAvg

} // namespace nccl
} // namespace emu

#endif // EMU_NCCL_WIRE_H
