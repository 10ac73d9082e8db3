// What the ranks of emulated NCCL communicators share: a file in memory, which they open as /proc/PID/fd/N of a process
// that has it. It has no other name, so nothing is left when its last user ends. A process makes all ids in the file of
// its first communicator.
#ifndef EMU_NCCL_SHARED_H
#define EMU_NCCL_SHARED_H

#include "runtime.h"
#include "include/nccl.h"

#include <thread>

namespace emu::nccl {

constexpr int GROUPS_MOST = 256, MEMBERS_MOST = 1024; // of a file
constexpr size_t CALLS_MOST = 2048;                   // in ncclGroupStart..End, by NCCL's documentation
constexpr size_t DATA_MOST = size_t(8) << 30;         // bytes that a rank sends in a call

enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, INIT, DESTROY, SEND, RECEIVE };

struct Piece { // of device memory
    char *begin;
    size_t bytes;
};

struct Call { // what a rank calls. Other ranks do not follow the pointers
    Kind kind;
    uint32_t type;
    int root; // of a send or a receive: the peer
    size_t count;
    Piece from = {}, to = {}; // the buffers
    ncclComm *comm = nullptr;
    cudaStream_t stream = nullptr;
    Source source = {};
    char at[192] = {};          // the source, for other ranks
    size_t part = 0, place = 0; // bytes of a rank's part, and where the part of this rank begins
    ptrdiff_t in_place = 0;     // how far the buffer to lies behind the buffer from, if the call is in place
    bool is_in_place() const { return to.begin - from.begin == in_place; }
    bool is_transfer() const { return kind >= SEND; }
    bool reduces() const { return kind == ALL_REDUCE || kind == REDUCE_SCATTER; }
};

struct Transfer { // to a peer, or from a peer. A collective is one to each rank and one from each rank
    Call call;
    int own, peer; // members of the file
    bool sends, done;
    size_t begin; // of what it sends, in the rank's data
};

struct Member { // a rank of a communicator
    bool joined, left, ended;
    int rank, device, group, process; // process: the first member of its process
    pid_t pid;
    uint32_t bell; // a futex; it changes when the rank may go on
    char host[64], at[192];
    size_t count; // transfers of its call
    Transfer transfers[CALLS_MOST];
};

struct Group {          // a communicator
    int ranks, first;   // first: of its members
    char problem[1024]; // why it has failed
};

struct alignas(4096) Shared { // the beginning of the file; the data of each member follow
    int groups, members;
    Group group[GROUPS_MOST];
    Member member[MEMBERS_MOST];
    char *data(int m) { return reinterpret_cast<char *>(this + 1) + static_cast<size_t>(m) * DATA_MOST; }
};

constexpr size_t FILE_BYTES = sizeof(Shared) + MEMBERS_MOST * DATA_MOST;
struct File { // as a process has opened it
    uint64_t inode;
    pid_t pid;
    int descriptor;
    Shared *shared;
};

} // namespace emu::nccl

struct ncclComm { // never freed, so that a stale handle is recognised
    int rank, ranks, device;
    emu::nccl::File file;
    emu::nccl::Group *group;
    bool has_failed = false, was_destroyed = false; // then every call fails, or is reported
    size_t collectives = 0;
    emu::nccl::Member &member(int r) const { return file.shared->member[group->first + r]; }
    emu::nccl::Member &own() const { return member(rank); }
};

namespace emu::nccl {

std::string words(const char *text, ...) __attribute__((format(printf, 1, 2))); // formats what is no report
const char *name_of(Kind kind);                                                 // "ncclAllReduce"
std::string to_text(const Call &call); // "ncclAllReduce of 8 float32, at a.cu:3"
std::string who(const Member &member);

// If shared is null, errno says why.
File own_file();                       // of this process's first communicator; a new one if there is none
File open_file(const File &file);      // of another process
void hold(const File &file, int byte); // until the process ends

// One rank at a time has it. If its process is killed, the kernel unlocks it.
struct SharedGuard {
    const File &file;
    bool locked = true;
    explicit SharedGuard(const File &file);
    void unlock();
    ~SharedGuard() { unlock(); }
};

Transfer *partner_of(Shared *shared, const Transfer &transfer); // null: the peer has not called it
void ring(Member *member);
bool sleep_at(Member *member, uint32_t heard);                // returns false if the bell has not rung for 20 ms
void blame(const ncclComm &comm, const std::string &problem); // the communicator fails; its first problem stays
void find_ended(const ncclComm &comm);                        // blames a rank whose process has ended
void find_cycle(const ncclComm &comm);                        // reports it if ranks wait for each other

struct Type {
    const char *name;
    size_t bytes;                                           // 0: no such type
    void (*add)(void *sum, const void *next, size_t count); // sum[i] += next[i], rounded to the type
};
extern const Type TYPES[ncclNumTypes];

} // namespace emu::nccl

#endif // EMU_NCCL_SHARED_H
