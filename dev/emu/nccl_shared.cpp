// The file that emulated NCCL communicators share: types, texts, how processes open it, how they wait, and how they
// notice that a rank has ended or that ranks wait for each other.
#include "nccl_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>

namespace emu::nccl {

// Each partial sum of 16-bit floats is rounded, as a ring of GPUs passes it on.
template <class T> static void add_to(void *sum, const void *next, size_t count) {
    T *to = static_cast<T *>(sum);
    for (size_t i = 0; i < count; i++) { to[i] = static_cast<T>(to[i] + static_cast<const T *>(next)[i]); }
}
template <class T> static constexpr Type type(const char *name) { return {name, sizeof(T), add_to<T>}; }
const Type TYPES[ncclNumTypes] = {
    {}, type<uint8_t>("uint8"), {}, type<uint32_t>("uint32"), {}, {}, {}, type<float>("float32"),
    {}, type<__nv_bfloat16>("bfloat16"),
};

std::string words(const char *text, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(line, sizeof(line), text, arguments);
    va_end(arguments);
    return line;
}

const char *name_of(Kind kind) {
    static const char *const NAMES[] = {"ncclAllReduce",    "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
                                        "ncclCommInitRank", "ncclCommDestroy",   "ncclSend",      "ncclRecv"};
    return NAMES[kind];
}

std::string to_text(const Call &c) {
    std::string text = name_of(c.kind);
    if (c.kind != INIT && c.kind != DESTROY) { text += words(" of %zu %s", c.count, TYPES[c.type].name); }
    if (c.kind == SEND) { text += words(" to rank %d", c.root); }
    if (c.kind == BROADCAST || c.kind == RECEIVE) { text += words(" from rank %d", c.root); }
    return text + ", at " + c.at;
}

std::string who(const Member &m) { return words("rank %d (pid %d)", m.rank, m.pid); }

// ---- Files ----

static std::vector<File> &files = *new std::vector<File>; // that this process has opened

// Pages that nobody touches take no memory.
File own_file() {
    if (!files.empty()) { return files[0]; }
    struct stat status = {};
    const int made = memfd_create("emu_nccl", MFD_CLOEXEC);
    if (ftruncate(made, FILE_BYTES) != 0 || fstat(made, &status) != 0) { return {}; }
    const File file = open_file({status.st_ino, getpid(), made, nullptr});
    close(made);
    return file;
}

File open_file(const File &there) {
    for (const File &file : files) {
        if (file.inode == there.inode) { return file; }
    }
    const std::string path = words("/proc/%d/fd/%d", there.pid, there.descriptor);
    struct stat status;
    if (stat(path.c_str(), &status) != 0) { return {}; }
    errno = ESTALE; // another file is there
    const bool is_it = status.st_ino == there.inode && status.st_size == static_cast<off_t>(FILE_BYTES);
    const int found = is_it ? open(path.c_str(), O_RDWR | O_CLOEXEC) : -1;
    if (found < 0) { return {}; }
    void *memory = mmap(nullptr, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, found, 0);
    if (memory == MAP_FAILED) { return {}; }
    madvise(memory, FILE_BYTES, MADV_DONTDUMP);
    files.push_back({there.inode, getpid(), found, static_cast<Shared *>(memory)});
    return files.back();
}

// ---- Locks: bytes of the file. The kernel unlocks them when the process ends, however it does ----

static int lock(const File &file, int how, int byte, short type) {
    struct flock lock = {type, SEEK_SET, byte, 1, 0};
    int result;
    do { result = fcntl(file.descriptor, how, &lock); } while (result != 0 && errno == EINTR);
    return lock.l_type;
}

SharedGuard::SharedGuard(const File &file) : file(file) { lock(file, F_OFD_SETLKW, MEMBERS_MOST, F_WRLCK); }
void SharedGuard::unlock() {
    if (locked) { lock(file, F_OFD_SETLK, MEMBERS_MOST, F_UNLCK); }
    locked = false;
}

void hold(const File &file, int byte) { lock(file, F_OFD_SETLK, byte, F_WRLCK); }

static bool is_alive(const File &file, const Member &m) {
    const int byte = static_cast<int>(&m - file.shared->member);
    return m.pid == file.pid || lock(file, F_OFD_GETLK, byte, F_WRLCK) != F_UNLCK;
}

void ring(Member *m) {
    __atomic_fetch_add(&m->bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &m->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool sleep_at(Member *m, uint32_t heard) {
    const timespec patience = {0, 20000000};
    return syscall(SYS_futex, &m->bell, FUTEX_WAIT, heard, &patience, nullptr, 0) == 0 || errno != ETIMEDOUT;
}

void blame(const ncclComm &comm, const std::string &problem) {
    char *text = comm.group->problem;
    if (text[0] == '\0') { snprintf(text, sizeof(comm.group->problem), "%s", problem.c_str()); }
    for (int r = 0; r < comm.group->ranks; r++) { ring(&comm.member(r)); }
}

// A rank that has left may end when this rank has left, too.
void find_ended(const ncclComm &comm) {
    for (int r = 0; r < comm.group->ranks; r++) {
        Member &m = comm.member(r);
        if (!m.joined || m.ended || (m.left && comm.own().left) || is_alive(comm.file, m)) { continue; }
        m.ended = true;
        blame(comm, who(m) + " has ended");
    }
}

// ---- Cycles ----

// The n-th send belongs to the n-th receive, so the first ones that are not done belong together.
Transfer *partner_of(Shared *shared, const Transfer &t) {
    Member &peer = shared->member[t.peer];
    Transfer *end = peer.transfers + peer.count;
    Transfer *found = std::find_if(peer.transfers, end, [&](const Transfer &p) {
        return !p.done && p.peer == t.own && p.sends != t.sends && p.call.is_transfer() == t.call.is_transfer();
    });
    return found == end ? nullptr : found;
}

// Returns what a process waits for: its first transfer that the peer has not called. Null: it does not wait.
static const Transfer *wait_of(Shared *shared, int process) {
    for (const Member *m = shared->member; m < shared->member + shared->members; m++) {
        for (const Transfer *t = m->transfers; m->process == process && t < m->transfers + m->count; t++) {
            if (!t->done && !partner_of(shared, *t)) { return t; }
        }
    }
    return nullptr;
}

// Do the waits of a communicator end soon, because a rank has ended?
static bool fails(const File &file, const Group &group) {
    const Member *first = file.shared->member + group.first;
    auto is_dead = [&](const Member &m) { return m.joined && !is_alive(file, m); };
    return group.problem[0] != '\0' || std::any_of(first, first + group.ranks, is_dead);
}

// Goes from this rank to the rank that it waits for, and so on. The lock lets this see all waits at once, so a way back
// to this rank can never end. The lowest rank on it reports it.
void find_cycle(const ncclComm &comm) {
    Shared *shared = comm.file.shared;
    const int start = comm.own().process;
    std::string lines;
    Source source = {};
    int count = 0, process = start;
    do {
        const Transfer *t = wait_of(shared, process);
        if (t == nullptr || process < start || count == MEMBERS_MOST) { return; }
        const Member &m = shared->member[t->own], &peer = shared->member[t->peer];
        if (!peer.joined || fails(comm.file, shared->group[m.group])) { return; }
        lines += words("%s  rank %d (pid %d): ", count == 0 ? "" : "\n", shared->member[process].rank, m.pid);
        lines += to_text(t->call) + words(", as rank %d of communicator %d, made at %s", m.rank, m.group + 1, m.at);
        if (count++ == 0) { source = t->call.source; }
        process = peer.process;
    } while (process != start);
    report(source, count == 1 ? "a rank waits for itself" : words("%d ranks wait for each other", count), lines);
}

} // namespace emu::nccl
