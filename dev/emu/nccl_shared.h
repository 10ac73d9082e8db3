// What the processes of emulated NCCL communicators share: a file in memory, which they open as /proc/PID/fd/N of a
// process that has it. It has no other name, so nothing is left when its last user ends. A process makes all ids in the
// file of its first communicator. Here stands what the file holds, how processes wait, and how they notice that a
// process has ended or that processes wait for each other.
#ifndef EMU_NCCL_SHARED_H
#define EMU_NCCL_SHARED_H

#include "runtime.h"
#include "include/nccl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>

namespace emu::nccl {

constexpr int GROUPS_MOST = 256, PROCESSES_MOST = 256; // of a file
constexpr size_t CALLS_MOST = 2048;                    // in ncclGroupStart..End, by NCCL's documentation
constexpr size_t DATA_MOST = size_t(8) << 30;          // bytes that a process sends at once

enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, INIT, DESTROY, SEND, RECEIVE };

struct Piece { // of device memory
    char *begin;
    size_t bytes;
};

struct Call { // what a rank calls. Other processes do not follow the pointers
    Kind kind;
    uint32_t type;
    int root; // of a send or a receive: the peer
    size_t count;
    Piece from = {}, to = {}; // the buffers
    ncclComm *comm = nullptr;
    cudaStream_t stream = nullptr;
    Source source = {};
    char at[192] = {};          // the source, for other processes
    size_t part = 0, place = 0; // bytes of a rank's part, and where the part of this rank begins
    ptrdiff_t in_place = 0;     // how far the buffer to lies behind the buffer from, if the call is in place
    bool is_in_place() const { return to.begin - from.begin == in_place; }
    bool is_transfer() const { return kind >= SEND; }
    bool reduces() const { return kind == ALL_REDUCE || kind == REDUCE_SCATTER; }
};

struct Transfer { // to a rank, or from a rank. A collective is one to each rank and one from each rank
    Call call;
    int group, own, peer; // the communicator and two of its ranks
    bool sends, done;
    size_t begin; // of what it sends, in the data of its process
};

struct Process {
    int rank; // in its first communicator, or -1
    pid_t pid;
    char host[64];
    uint32_t bell; // a futex; it changes when the process may go on
    size_t count;  // transfers that it has called
    Transfer transfers[CALLS_MOST];
};

struct Member { // a rank of a communicator
    bool joined;
    int rank, device, process; // process: its index in the file
    char at[192];
};

struct Group { // a communicator
    int ranks;
    char ended[64]; // the first rank whose process has ended
    Member members[PROCESSES_MOST];
};

struct alignas(4096) Shared { // the beginning of the file; the data of each process follow
    int num_groups, num_processes;
    Group groups[GROUPS_MOST];
    Process processes[PROCESSES_MOST];
    char *data(int p) { return reinterpret_cast<char *>(this + 1) + static_cast<size_t>(p) * DATA_MOST; }
};

constexpr size_t FILE_BYTES = sizeof(Shared) + PROCESSES_MOST * DATA_MOST;
struct File { // as a process has opened it
    uint64_t inode;
    pid_t pid;
    int descriptor;
    Shared *shared;
    int process; // its index
    Process &own() const { return shared->processes[process]; }
};

// ---- Types ----

struct Type {
    const char *name;
    size_t bytes;                                           // 0: no such type
    void (*add)(void *sum, const void *next, size_t count); // sum[i] += next[i], rounded to the type
};

// Each partial sum of 16-bit floats is rounded, as a ring of GPUs passes it on.
template <class T> void add_to(void *sum, const void *next, size_t count) {
    T *to = static_cast<T *>(sum);
    for (size_t i = 0; i < count; i++) { to[i] = static_cast<T>(to[i] + static_cast<const T *>(next)[i]); }
}
template <class T> constexpr Type type(const char *name) { return {name, sizeof(T), add_to<T>}; }
const Type TYPES[ncclNumTypes] = {
    {}, type<uint8_t>("uint8"), {}, type<uint32_t>("uint32"), {}, {}, {}, type<float>("float32"),
    {}, type<__nv_bfloat16>("bfloat16"),
};

// ---- Texts ----

inline const char *name_of(Kind kind) {
    static const char *const NAMES[] = {"ncclAllReduce",    "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
                                        "ncclCommInitRank", "ncclCommDestroy",   "ncclSend",      "ncclRecv"};
    return NAMES[kind];
}

inline std::string to_text(const Call &c) { // "ncclAllReduce of 8 float32, at a.cu:3"
    std::string text = name_of(c.kind);
    if (c.kind != INIT && c.kind != DESTROY) { text += format(" of %zu %s", c.count, TYPES[c.type].name); }
    if (c.kind == SEND) { text += format(" to rank %d", c.root); }
    if (c.kind == BROADCAST || c.kind == RECEIVE) { text += format(" from rank %d", c.root); }
    return text + ", at " + c.at;
}

// ---- Locks: bytes of the file. The kernel unlocks them when the process ends, however it does ----

inline int lock(const File &file, int how, int byte, short type) {
    struct flock lock = {type, SEEK_SET, byte, 1, 0};
    int result;
    do { result = fcntl(file.descriptor, how, &lock); } while (result != 0 && errno == EINTR);
    return lock.l_type;
}

struct SharedGuard { // one process at a time has it
    const File &file;
    explicit SharedGuard(const File &file) : file(file) { lock(file, F_OFD_SETLKW, PROCESSES_MOST, F_WRLCK); }
    ~SharedGuard() { lock(file, F_OFD_SETLK, PROCESSES_MOST, F_UNLCK); }
};

// Each process holds the byte of its index.
inline bool is_alive(const File &file, int process) {
    return process == file.process || lock(file, F_OFD_GETLK, process, F_WRLCK) != F_UNLCK;
}

// ---- Files. If the returned file is not shared, errno says why ----

inline std::vector<File> &files = *new std::vector<File>; // that this process has opened

// Opens a file of another process. Pages that nobody touches take no memory.
inline File open_file(const File &there) {
    for (const File &file : files) {
        if (file.inode == there.inode) { return file; }
    }
    const std::string path = format("/proc/%d/fd/%d", there.pid, there.descriptor);
    struct stat status;
    if (stat(path.c_str(), &status) != 0) { return {}; }
    errno = ESTALE; // another file is there
    const bool is_it = status.st_ino == there.inode && status.st_size == static_cast<off_t>(FILE_BYTES);
    const int found = is_it ? open(path.c_str(), O_RDWR | O_CLOEXEC) : -1;
    if (found < 0) { return {}; }
    void *memory = mmap(nullptr, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, found, 0);
    if (memory == MAP_FAILED) { return {}; }
    madvise(memory, FILE_BYTES, MADV_DONTDUMP);
    File file = {there.inode, getpid(), found, static_cast<Shared *>(memory), 0};
    SharedGuard guard(file);
    errno = EUSERS;
    if (file.shared->num_processes == PROCESSES_MOST) { return {}; }
    file.process = file.shared->num_processes++;
    file.own().rank = -1, file.own().pid = file.pid;
    gethostname(file.own().host, sizeof(file.own().host) - 1);
    lock(file, F_OFD_SETLK, file.process, F_WRLCK);
    files.push_back(file);
    return file;
}

// Returns the file of this process's first communicator; a new one if there is none.
inline File own_file() {
    if (!files.empty()) { return files[0]; }
    struct stat status = {};
    const int made = memfd_create("emu_nccl", MFD_CLOEXEC);
    if (ftruncate(made, FILE_BYTES) != 0 || fstat(made, &status) != 0) { return {}; }
    const File file = open_file({status.st_ino, getpid(), made, nullptr, 0});
    close(made);
    return file;
}

// ---- Waiting ----

inline void ring(Process *p) {
    __atomic_fetch_add(&p->bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &p->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Returns false if the bell has not rung for 20 ms.
inline bool sleep_at(Process *p, uint32_t heard) {
    const timespec patience = {0, 20000000};
    return syscall(SYS_futex, &p->bell, FUTEX_WAIT, heard, &patience, nullptr, 0) == 0 || errno != ETIMEDOUT;
}

// Returns what the peer has called for this transfer, or null. The n-th send belongs to the n-th receive, so the first
// ones that are not done belong together.
inline Transfer *partner_of(Shared *shared, const Transfer &t) {
    const Member &peer = shared->groups[t.group].members[t.peer];
    Process &p = shared->processes[peer.process];
    Transfer *end = p.transfers + p.count, *found = std::find_if(p.transfers, end, [&](const Transfer &other) {
        return !other.done && other.group == t.group && other.peer == t.own && other.sends != t.sends &&
               other.call.is_transfer() == t.call.is_transfer();
    });
    return peer.joined && found != end ? found : nullptr;
}

// Returns what a process waits for: its first transfer that the peer has not called. Null: it does not wait.
inline const Transfer *wait_of(Shared *shared, const Process &p) {
    const Transfer *end = p.transfers + p.count;
    const Transfer *t =
        std::find_if(p.transfers, end, [=](const Transfer &t) { return !t.done && !partner_of(shared, t); });
    return t == end ? nullptr : t;
}

inline std::string who(const File &file, const Member &m) {
    return format("rank %d (pid %d)", m.rank, file.shared->processes[m.process].pid);
}

// Returns which rank of a communicator has ended first, or "". The ranks that then fail may end, too.
inline std::string find_ended(const File &file, Group *group) {
    for (const Member &m : group->members) {
        if (group->ended[0] != '\0' || !m.joined || is_alive(file, m.process)) { continue; }
        snprintf(group->ended, sizeof(group->ended), "%s", who(file, m).c_str());
    }
    return group->ended;
}

// Goes from this process to the process that it waits for, and so on. Reports a way back to this process: the lock lets
// this see all waits at once, so it can never end. The lowest rank on it reports it. What a communicator waits for ends
// soon, though, if one of its ranks has ended.
inline void find_cycle(const File &file) {
    Shared *shared = file.shared;
    std::string lines;
    Source source = {};
    int count = 0, process = file.process;
    do {
        const Process &p = shared->processes[process];
        const Transfer *t = wait_of(shared, p);
        if (t == nullptr || p.rank < file.own().rank || count == PROCESSES_MOST) { return; }
        Group &group = shared->groups[t->group];
        const Member &own = group.members[t->own], &peer = group.members[t->peer];
        if (!peer.joined || !find_ended(file, &group).empty()) { return; }
        lines += format("%s  rank %d (pid %d): ", count == 0 ? "" : "\n", p.rank, p.pid) + to_text(t->call);
        lines += format(", as rank %d of communicator %d, made at %s", own.rank, t->group + 1, own.at);
        if (count++ == 0) { source = t->call.source; }
        process = peer.process;
    } while (process != file.process);
    report(source, count == 1 ? "a rank waits for itself" : format("%d ranks wait for each other", count), lines);
}

} // namespace emu::nccl

#endif // EMU_NCCL_SHARED_H
