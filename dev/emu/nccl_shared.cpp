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
#include <cmath>
#include <type_traits>

namespace emu {
namespace nccl {

// ---- Types. Each partial sum of 16-bit floats is rounded, as a ring of GPUs passes it on ----

// Arithmetic of 16-bit floats is that of float. Sums and products of integers wrap around.
template <class T> using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
template <class T> using Sum = std::conditional_t<std::is_integral<T>::value, uint64_t, Wide<T>>;

template <class T> static T combine(uint32_t reduction, T a, T b) {
    const Wide<T> x = static_cast<Wide<T>>(a), y = static_cast<Wide<T>>(b);
    const Sum<T> u = static_cast<Sum<T>>(x), v = static_cast<Sum<T>>(y);
    if (reduction == ncclProd) { return static_cast<T>(u * v); }
    if (reduction != ncclMax && reduction != ncclMin) { return static_cast<T>(u + v); }
    if constexpr (std::is_integral<T>::value) { return (x < y) == (reduction == ncclMax) ? b : a; }
    return static_cast<T>(reduction == ncclMax ? std::fmax(x, y) : std::fmin(x, y));
}

template <class T> static void reduce(uint32_t reduction, void *sum, const void *next, size_t count) {
    T *to = static_cast<T *>(sum);
    for (size_t i = 0; i < count; i++) { to[i] = combine(reduction, to[i], static_cast<const T *>(next)[i]); }
}

template <class T> static void divide(void *sum, size_t count, int ranks) {
    T *to = static_cast<T *>(sum);
    const Wide<T> n = static_cast<Wide<T>>(ranks);
    for (size_t i = 0; i < count; i++) { to[i] = static_cast<T>(static_cast<Wide<T>>(to[i]) / n); }
}

template <class T> static constexpr Type type(const char *name) { return {name, sizeof(T), reduce<T>, divide<T>}; }
const Type TYPES[ncclNumTypes] = {
    type<int8_t>("int8"),    type<uint8_t>("uint8"),          type<int32_t>("int32"),  type<uint32_t>("uint32"),
    type<int64_t>("int64"),  type<uint64_t>("uint64"),        type<__half>("float16"), type<float>("float32"),
    type<double>("float64"), type<__nv_bfloat16>("bfloat16"),
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
    static const char *const REDUCTIONS[ncclNumOps] = {"sum", "product", "maximum", "minimum", "average"};
    std::string text = name_of(c.kind);
    if (c.kind != INIT && c.kind != DESTROY) { text += words(" of %zu %s", c.count, TYPES[c.type].name); }
    if (c.reduces()) { text += words(" (%s)", REDUCTIONS[c.reduction]); }
    if (c.kind == SEND) { text += words(" to rank %d", c.root); }
    if (c.kind == BROADCAST || c.kind == RECEIVE) { text += words(" from rank %d", c.root); }
    return text + ", at " + c.at;
}

std::string who(const Member &m) { return words("rank %d (pid %d on %s)", m.rank, m.pid, m.host); }

// ---- Files ----

static std::recursive_mutex files_mutex;
static std::vector<File> &files = *new std::vector<File>; // that this process has opened

// Pages that nobody touches take no memory.
File own_file() {
    std::lock_guard<std::recursive_mutex> guard(files_mutex);
    if (!files.empty()) { return files[0]; }
    struct stat status = {};
    const int made = memfd_create("emu_nccl", MFD_CLOEXEC);
    if (ftruncate(made, FILE_BYTES) != 0 || fstat(made, &status) != 0) { return {}; }
    const File file = open_file({status.st_ino, getpid(), made, nullptr});
    close(made);
    if (file.shared == nullptr) { return file; }
    pthread_mutexattr_t shares;
    pthread_mutexattr_init(&shares);
    pthread_mutexattr_setpshared(&shares, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shares, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&file.shared->mutex.mutex, &shares);
    return file;
}

File open_file(const File &there) {
    std::lock_guard<std::recursive_mutex> guard(files_mutex);
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

// ---- Life and death ----

// A rank locks a byte of the file. The kernel unlocks it when the process ends, however it does.
static struct flock lock_of(int byte) { return {F_WRLCK, SEEK_SET, byte, 1, 0}; }
void hold(const File &file, int byte) {
    struct flock lock = lock_of(byte);
    fcntl(file.descriptor, F_OFD_SETLK, &lock);
}

static bool is_alive(const File &file, int pid, ptrdiff_t byte) {
    struct flock lock = lock_of(static_cast<int>(byte));
    return pid == file.pid || fcntl(file.descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
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

// A rank that has left may end when this rank has left, too. Before all have joined the maker of the id must live.
void find_ended(const ncclComm &comm) {
    const File &file = comm.file;
    const ptrdiff_t of_maker = MEMBERS_MOST + (comm.group - file.shared->group);
    for (int r = 0; r < comm.group->ranks; r++) {
        Member &m = comm.member(r);
        const bool lives =
            m.joined ? is_alive(file, m.pid, &m - file.shared->member) : is_alive(file, comm.group->maker, of_maker);
        if (lives || m.ended || (m.left && comm.own().left)) { continue; }
        m.ended = true;
        blame(comm, (m.joined ? who(m) : "the process that made the id") + " has ended");
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

// Returns the rank as which a process waits, or null. While one of several threads waits another thread may come.
static const Member *waiting(Shared *shared, int process) {
    const Member *found = nullptr;
    for (const Member *m = shared->member; m < shared->member + shared->members; m++) {
        if (m->process != process || m->count == 0) { continue; }
        if (found || m->several_threads) { return nullptr; }
        found = m;
    }
    return found;
}

typedef std::vector<const Transfer *> Path; // each waits for the process of the next one

// Extends the path from this rank back to its beginning. Returns false if nothing leads there.
static bool leads_back(Shared *shared, const Member *from, std::vector<const Member *> *met, Path *path) {
    met->push_back(from);
    for (const Transfer *t = from->transfers; t < from->transfers + from->count; t++) {
        if (t->done || partner_of(shared, *t)) { continue; }
        const Member &peer = shared->member[t->peer], *next = peer.joined ? waiting(shared, peer.process) : nullptr;
        path->push_back(t);
        if (next == &shared->member[path->front()->own]) { return true; }
        const bool is_new = next && std::find(met->begin(), met->end(), next) == met->end();
        if (is_new && leads_back(shared, next, met, path)) { return true; }
        path->pop_back();
    }
    return false;
}

// Do the waits of a communicator end soon, because a rank has ended?
static bool fails(const File &file, const Group &group) {
    const Member *first = file.shared->member + group.first;
    auto is_dead = [&](const Member &m) { return !is_alive(file, m.pid, &m - file.shared->member); };
    return group.problem[0] != '\0' || std::any_of(first, first + group.ranks, is_dead);
}

// The lock lets this see all waits at once, so a cycle can never end. Its lowest rank reports it.
void find_cycle(const ncclComm &comm) {
    std::vector<const Member *> met;
    Path path;
    std::string lines;
    Shared *shared = comm.file.shared;
    if (!leads_back(shared, &comm.own(), &met, &path)) { return; }
    for (const Transfer *t : path) {
        const Member &m = shared->member[t->own];
        if (m.process < comm.own().process || fails(comm.file, shared->group[m.group])) { return; }
        lines += words("%s  rank %d (pid %d): ", lines.empty() ? "" : "\n", shared->member[m.process].rank, m.pid);
        lines += to_text(t->call) + words(", as rank %d of communicator %d, made at %s", m.rank, m.group + 1, m.at);
    }
    const bool alone = path.size() == 1;
    report(path[0]->call.source,
           alone ? "a rank waits for itself" : words("%zu ranks wait for each other", path.size()), lines);
}

} // namespace nccl
} // namespace emu
