// NCCL between processes of one machine. A collective, a send or a receive is an operation of its stream with the
// checks of an operation. A rank puts its data into the shared file, waits for the ranks that it needs and takes their
// data. The work that a GPU would do later is done when the call returns.
#include "nccl_shared.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <memory>
#include <thread>

struct ncclComm { // never freed, so that a stale handle is recognised
    int rank, ranks, device;
    emu::nccl::File file;
    int index;                                      // in the file
    bool has_failed = false, was_destroyed = false; // then every call fails, or is reported
    size_t collectives = 0;
    emu::nccl::Group &group() const { return file.shared->groups[index]; }
};

using namespace emu;
using namespace emu::nccl;

namespace {

// ---- Errors and handles ----

std::vector<ncclComm *> &handles = *new std::vector<ncclComm *>;
std::string last_error;

ncclResult_t fail(ncclResult_t result, const std::string &text) {
    last_error = text;
    return result;
}

// A process makes all its calls in one thread. So a rank that waits makes no other call.
void check_thread(const char *function, Source at) {
    static const std::thread::id first = std::this_thread::get_id();
    host_only(function, at);
    if (std::this_thread::get_id() == first) { return; }
    report(at, format("%s in another thread than the first call of NCCL: the emulator knows one", function));
}

void check_handle(const ncclComm *comm, const char *function, Source at) {
    check_thread(function, at);
    if (std::count(handles.begin(), handles.end(), comm) == 0 || comm->was_destroyed) {
        report(at, format("%s with a communicator that does not exist, or was destroyed", function));
    }
}

// ---- Mistakes that are planted on purpose: EMU_NCCL_FAULT="kind@rank:n[:seconds]" ----

// Injects the fault of the n-th collective. rank: in the first communicator. Returns true if a bit must be flipped.
bool inject_fault(int rank) {
    static const char *const text = getenv("EMU_NCCL_FAULT");
    static int calls;
    char kind[16] = "";
    int victim = -1, n = 0, seconds = 1, end = 0;
    if (text == nullptr) { return false; }
    sscanf(text, "%15[a-z]@%d:%d%n:%d%n", kind, &victim, &n, &end, &seconds, &end);
    auto is = [&](const char *other) { return strcmp(kind, other) == 0; };
    if (end == 0 || text[end] != '\0' || !(is("die") || is("hang") || is("delay") || is("corrupt"))) {
        const char *const expected = "expected die, hang, delay or corrupt, with @rank:n[:seconds]";
        report({nullptr, 0}, format("EMU_NCCL_FAULT=\"%s\": %s", text, expected));
    }
    if (victim != rank || ++calls != n) { return false; }
    if (is("die")) { raise(SIGKILL); }
    while (is("hang")) { pause(); }
    if (is("delay")) { std::this_thread::sleep_for(std::chrono::seconds(seconds)); }
    return is("corrupt");
}

// ---- The buffers of a call ----

Call new_call(Call c, const void *send, void *receive, ncclComm *comm, cudaStream_t stream, Source at) {
    const bool sends = c.kind != RECEIVE && (c.kind != BROADCAST || comm->rank == c.root);
    c.comm = comm, c.stream = stream, c.source = at;
    snprintf(c.at, sizeof(c.at), "%s:%d", at.file, at.line);
    c.part = c.count * TYPES[c.type].bytes;
    c.place = c.part * static_cast<size_t>(comm->rank);
    const size_t all = c.part * static_cast<size_t>(comm->ranks);
    c.from = {static_cast<char *>(const_cast<void *>(send)), !sends ? 0 : c.kind == REDUCE_SCATTER ? all : c.part};
    c.to = {static_cast<char *>(receive), c.kind == SEND ? 0 : c.kind == ALL_GATHER ? all : c.part};
    if (c.kind == ALL_GATHER) { c.in_place = -static_cast<ptrdiff_t>(c.place); }
    if (c.kind == REDUCE_SCATTER) { c.in_place = static_cast<ptrdiff_t>(c.place); }
    return c;
}

bool overlap(const Piece &a, const Piece &b) {
    return a.bytes > 0 && b.bytes > 0 && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

// The calls of a group run at once, so nothing may be written that another call uses. A call may write what it reads
// only in place.
void check_buffers(const std::vector<Call> &group) {
    for (const Call &a : group) {
        const char *name = name_of(a.kind);
        if (overlap(a.from, a.to) && !a.is_in_place()) {
            const char *const text = "  recvbuff lies %td bytes behind sendbuff, and in place on rank %d of %d it lies "
                                     "%td bytes behind";
            report(a.source, format("%s: recvbuff overlaps sendbuff, and not as in place", name),
                   format(text, a.to.begin - a.from.begin, a.comm->rank, a.comm->ranks, a.in_place));
        }
        for (const Call &b : group) {
            if (&a == &b || (!overlap(a.to, b.to) && !overlap(a.to, b.from))) { continue; }
            report(a.source, format("the buffer of %s overlaps the buffer of %s in one group", name, name_of(b.kind)),
                   "  at " + to_text(b.source));
        }
    }
}

// The operation on the stream: checks all accesses, and puts what is sent into the file.
void begin_operation(const Call &c, char *data) {
    op_begin(c.stream, name_of(c.kind), c.source.file, c.source.line);
    op_read(c.from.begin, c.from.bytes);
    op_write(c.to.begin, c.to.bytes);
    if (c.from.bytes > 0) { memcpy(data, c.from.begin, c.from.bytes); }
    op_end();
}

// Puts what a peer has sent in its place, or adds it to what the ranks before it have sent.
void store(const Call &c, int peer, const char *data) {
    char *to = c.to.begin + (c.kind == ALL_GATHER ? static_cast<size_t>(peer) * c.part : 0);
    data += c.kind == REDUCE_SCATTER ? c.place : 0;
    if (c.to.bytes == 0 || (c.kind == BROADCAST && peer != c.root)) { return; }
    if (c.reduces() && peer > 0) {
        TYPES[c.type].add(to, data, c.count);
    } else {
        memcpy(to, data, c.part);
    }
}

// ---- Between the ranks ----

// Shows all ranks what this rank sends and receives. Wakes the ranks that can go on.
void post(const std::vector<Call> &group) {
    const ncclComm &comm = *group[0].comm;
    Shared *shared = comm.file.shared;
    Process &own = comm.file.own();
    size_t count = 0, begin = 0;
    for (const Call &c : group) {
        for (int r = c.is_transfer() ? c.root : 0; r <= (c.is_transfer() ? c.root : comm.ranks - 1); r++) {
            if (c.kind != RECEIVE) { own.transfers[count++] = {c, comm.index, comm.rank, r, true, false, begin}; }
            if (c.kind != SEND) { own.transfers[count++] = {c, comm.index, comm.rank, r, false, false, 0}; }
        }
        if (c.from.bytes > DATA_MOST - begin) { report(c.source, "a rank sends more than 8 GiB at once"); }
        if (c.kind != INIT && c.kind != DESTROY) { begin_operation(c, shared->data(comm.file.process) + begin); }
        begin += c.from.bytes;
    }
    SharedGuard guard(comm.file);
    own.count = count;
    for (size_t i = 0; i < count; i++) {
        Process &peer = shared->processes[comm.group().members[own.transfers[i].peer].process];
        if (group[0].is_transfer() || !wait_of(shared, peer)) { ring(&peer); }
    }
}

bool belong_together(const Call &a, const Call &b) {
    const bool same = a.type == b.type && a.count == b.count;
    return same && (a.is_transfer() || (a.kind == b.kind && a.root == b.root));
}

// Of a collective, the rank that differs from rank 0 reports. The other ranks then find that it has ended.
void report_difference(const Call &mine, const Call &theirs, int peer) {
    const ncclComm &comm = *mine.comm;
    if (peer != 0 && !mine.is_transfer()) { return; }
    report(mine.source,
           mine.is_transfer() ? "a receive differs from the send of its peer"
                              : format("collective %zu of the communicator differs", comm.collectives),
           format("  rank %d calls ", comm.rank) + to_text(mine) + format("\n  rank %d calls ", peer) +
               to_text(theirs));
}

// Takes what peers have sent; they take what this rank sends. A collective begins when all ranks have called it.
// Returns true if all is done.
bool exchange(const ncclComm &comm) {
    Shared *shared = comm.file.shared;
    Process &own = comm.file.own();
    const bool is_served = !wait_of(shared, own);
    auto is_done = [](const Transfer &t) { return t.done; };
    unlock_device_memory();
    for (Transfer *t = own.transfers; t < own.transfers + own.count; t++) {
        Transfer *partner = t->done || t->sends ? nullptr : partner_of(shared, *t);
        if (!partner || !(is_served || t->call.is_transfer())) { continue; }
        if (!belong_together(t->call, partner->call)) {
            report_difference(t->call, partner->call, t->peer);
            continue;
        }
        const int process = comm.group().members[t->peer].process;
        Process &peer = shared->processes[process];
        store(t->call, t->peer, shared->data(process) + partner->begin);
        t->done = partner->done = true;
        if (std::all_of(peer.transfers, peer.transfers + peer.count, is_done)) { ring(&peer); }
    }
    lock_device_memory();
    return std::all_of(own.transfers, own.transfers + own.count, is_done);
}

// Does what can be done now. Returns true if the process waits no more: all is done, or *culprit has ended.
bool proceed(const ncclComm &comm, bool rung, uint32_t *heard, std::string *culprit) {
    SharedGuard guard(comm.file);
    *heard = comm.file.own().bell;
    const bool done = exchange(comm);
    if (!done && !rung) { *culprit = find_ended(comm.file, &comm.group()); }
    if (!done && !rung && culprit->empty()) { find_cycle(comm.file); }
    const bool waits = !done && culprit->empty();
    if (!waits) { comm.file.own().count = 0; }
    return !waits;
}

// Runs the calls. Returns false, and sets the error, if a rank has ended.
bool meet(const std::vector<Call> &group) {
    ncclComm *comm = group[0].comm;
    std::string culprit;
    uint32_t heard = 0;
    bool rung = true;
    comm->collectives += group[0].kind != INIT && !group[0].is_transfer();
    post(group);
    while (!proceed(*comm, rung, &heard, &culprit)) { rung = sleep_at(&comm->file.own(), heard); }
    comm->has_failed = !culprit.empty();
    if (comm->has_failed) {
        fail(ncclRemoteError, format("rank %d in ", comm->rank) + to_text(group[0]) + ": " + culprit + " has ended");
    }
    return !comm->has_failed;
}

// Flips a bit in the middle of what a call has received.
void corrupt(const Call &c) {
    unlock_device_memory();
    if (c.to.bytes > 0) { c.to.begin[c.to.bytes / 2] ^= 16; }
    lock_device_memory();
}

// Runs a collective, or the sends and receives of a group.
ncclResult_t run(const std::vector<Call> &group) {
    ncclComm *comm = group[0].comm;
    check_handle(comm, name_of(group[0].kind), group[0].source);
    const bool corrupts = inject_fault(comm->file.own().rank);
    if (comm->has_failed) { return ncclRemoteError; }
    check_buffers(group);
    const bool ok = meet(group);
    if (corrupts) { corrupt(group[0]); }
    return ok ? ncclSuccess : ncclRemoteError;
}

// ---- Groups: sends and receives between ncclGroupStart and ncclGroupEnd are done by the latter ----

bool in_group;
std::vector<Call> group;

ncclResult_t run_group() {
    std::vector<Call> calls;
    calls.swap(group);
    return calls.empty() ? ncclSuccess : run(calls);
}

ncclResult_t call(const Call &c, const void *send, void *receive, ncclComm *comm, cudaStream_t stream, Source at) {
    const char *name = name_of(c.kind);
    check_handle(comm, name, at);
    if (c.type >= ncclNumTypes || TYPES[c.type].bytes == 0) {
        return fail(ncclInvalidArgument, format("%s: the emulator has no type %u", name, c.type));
    }
    if (c.root < 0 || c.root >= comm->ranks) {
        return fail(ncclInvalidArgument, format("%s: rank %d of %d ranks", name, c.root, comm->ranks));
    }
    if (group.size() == CALLS_MOST) { return fail(ncclInvalidUsage, format("%s: call 2049 of a group", name)); }
    if (in_group && (!c.is_transfer() || (!group.empty() && group[0].comm != comm))) {
        report(at, format("%s in a group: the emulator has groups of sends and receives of one communicator", name));
    }
    group.push_back(new_call(c, send, receive, comm, stream, at));
    return in_group ? ncclSuccess : run_group();
}

// ---- Into the communicator ----

struct Id { // the contents of an ncclUniqueId
    char magic[8];
    File file;
    int group;
};
static_assert(sizeof(Id) <= sizeof(ncclUniqueId), "fits");
const char ID_MAGIC[8] = "emunccl";

// Returns what keeps a newcomer out beside a member, or "".
std::string conflict(const ncclComm &comm, const Member &m) {
    const Shared &shared = *comm.file.shared;
    if (!m.joined) { return ""; }
    if (comm.ranks != comm.group().ranks) { return format(", and another rank says %d ranks", comm.group().ranks); }
    if (m.rank == comm.rank) { return ", and there is such a rank already"; }
    // A test may give processes of one machine the names of several hosts.
    if (m.device != comm.device || strcmp(shared.processes[m.process].host, comm.file.own().host) != 0) { return ""; }
    return format(" on device %d, which rank %d uses", m.device, m.rank);
}

void enter(const ncclComm &comm, Source at) {
    Group &group = comm.group();
    Process &own = comm.file.own();
    SharedGuard guard(comm.file);
    Member newcomer = {true, comm.rank, comm.device, comm.file.process, ""};
    snprintf(newcomer.at, sizeof(newcomer.at), "%s:%d", at.file, at.line);
    if (group.ranks == 0) { group.ranks = comm.ranks; }
    for (const Member &m : group.members) {
        const std::string problem = conflict(comm, m);
        if (problem.empty()) { continue; }
        snprintf(group.ended, sizeof(group.ended), "%s", who(comm.file, newcomer).c_str());
        report(at, format("ncclCommInitRank of rank %d of %d", comm.rank, comm.ranks) + problem,
               "  " + who(comm.file, m) + " called it at " + m.at);
    }
    group.members[comm.rank] = newcomer;
    if (own.rank < 0) { own.rank = comm.rank; }
}

} // namespace

// ---- The interface ----

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const TEXTS[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage",
                                        "remote process exited or there was a network error"};
    return result < ncclNumResults ? TEXTS[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id, const char *file, int line) {
    check_thread("ncclGetUniqueId", {file, line});
    if (id == nullptr) { return fail(ncclInvalidArgument, "ncclGetUniqueId: null"); }
    Id made = {"", own_file(), 0};
    Shared *shared = made.file.shared;
    if (!shared) { return fail(ncclSystemError, format("ncclGetUniqueId: no shared memory: %s", strerror(errno))); }
    SharedGuard guard(made.file);
    if (shared->num_groups == GROUPS_MOST) { return fail(ncclSystemError, "ncclGetUniqueId: too many communicators"); }
    memcpy(made.magic, ID_MAGIC, sizeof(made.magic));
    made.group = shared->num_groups++;
    memset(id, 0, sizeof(*id));
    memcpy(id, &made, sizeof(made));
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, const char *file, int line) {
    Id where;
    int device = 0;
    memcpy(&where, &id, sizeof(where));
    check_thread("ncclCommInitRank", {file, line});
    if (comm == nullptr || ranks < 1 || ranks > PROCESSES_MOST || rank < 0 || rank >= ranks) {
        const char *const text = "ncclCommInitRank: rank %d of %d, and the emulator has at most %d";
        return fail(ncclInvalidArgument, format(text, rank, ranks, PROCESSES_MOST));
    }
    if (memcmp(where.magic, ID_MAGIC, sizeof(where.magic)) != 0) {
        return fail(ncclInvalidArgument, "ncclCommInitRank: the id is not one of ncclGetUniqueId's");
    }
    // With NCCL_DEBUG=INFO the library names the settings that it takes from the environment. This prints one.
    const char *wish = getenv("NCCL_DEBUG"), *nvls = getenv("NCCL_NVLS_ENABLE");
    if (wish && strcmp(wish, "INFO") == 0 && nvls) {
        fprintf(stderr, "emu: NCCL INFO NCCL_NVLS_ENABLE set by environment to %s.\n", nvls);
    }
    *comm = nullptr;
    const File found = open_file(where.file);
    if (found.shared == nullptr) {
        return fail(ncclSystemError, format("no memory is shared with process %d, which made the id (%s): all ranks "
                                            "must run on one machine",
                                            where.file.pid, strerror(errno)));
    }
    if (cudaGetDevice(&device) != cudaSuccess) { return fail(ncclUnhandledCudaError, "there is no device"); }
    auto made = std::unique_ptr<ncclComm>(new ncclComm{rank, ranks, device, found, where.group});
    const Call init = new_call({INIT, 0, 0, 0}, nullptr, nullptr, made.get(), nullptr, {file, line});
    enter(*made, {file, line});
    if (!meet({init})) { return ncclRemoteError; }
    handles.push_back(*comm = made.release());
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm, const char *file, int line) {
    check_handle(comm, "ncclCommDestroy", {file, line});
    if (!comm->has_failed) { meet({new_call({DESTROY, 0, 0, 0}, nullptr, nullptr, comm, nullptr, {file, line})}); }
    comm->was_destroyed = true;
    return ncclSuccess;
}

// ncclSum is the only reduction.
ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream, const char *file, int line) {
    return call({ALL_REDUCE, type, 0, count}, send, receive, comm, stream, {file, line});
}
ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream, const char *file, int line) {
    return call({REDUCE_SCATTER, type, 0, count}, send, receive, comm, stream, {file, line});
}
ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream, const char *file, int line) {
    return call({ALL_GATHER, type, 0, count}, send, receive, comm, stream, {file, line});
}
ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream, const char *file, int line) {
    return call({BROADCAST, type, root, count}, send, receive, comm, stream, {file, line});
}
ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream, const char *file, int line) {
    return call({SEND, type, peer, count}, send, nullptr, comm, stream, {file, line});
}
ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream,
                      const char *file, int line) {
    return call({RECEIVE, type, peer, count}, nullptr, receive, comm, stream, {file, line});
}

ncclResult_t ncclGroupStart(const char *file, int line) {
    check_thread("ncclGroupStart", {file, line});
    if (in_group) { return fail(ncclInvalidUsage, "ncclGroupStart in a group"); }
    in_group = true;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(const char *file, int line) {
    check_thread("ncclGroupEnd", {file, line});
    if (!in_group) { return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart"); }
    in_group = false;
    return run_group();
}
