// NCCL between processes: the ranks' side. A collective, a send or a receive is an operation of its stream with the
// checks of an operation.
// Its data is copied out and goes to the server (nccl_server.cpp) over a socket, and the answer is copied in. No lock
// is held meanwhile, so other threads go on. The work that a GPU would do later is done when the call returns.
#include "nccl_wire.h"
#include "memory.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

using namespace emu;
using namespace emu::nccl;

enum CommState { LIVE, FINALIZED, DESTROYED, ABORTED };

// Never freed, so that a stale handle is recognised.
struct ncclComm {
    int rank, ranks, device, socket;
    std::string server; // the process that runs it: "rank 0 (pid 12 on host)"
    std::atomic<int> state{LIVE};
    Source ended = {nullptr, 0}; // where it was finalized, destroyed or aborted
    std::thread::id ended_by = {};
    std::atomic<int> error{ncclSuccess}; // once it is set, every call fails
    std::atomic<bool> in_call{false};
    std::mutex socket_mutex = {};
    uint64_t calls = 0;
};

namespace {

struct Collective { // a call's arguments; also of a send or a receive
    Kind kind;
    const void *send;
    void *receive;
    size_t count;
    uint32_t type, reduction;
    int root; // of a send or a receive: the peer
    ncclComm_t comm;
    cudaStream_t stream;
    Source at;
};

// ---- Errors ----

struct LastError {
    std::mutex mutex;
    char text[1024];
};
LastError &last_error() {
    static LastError *error = new LastError{};
    return *error;
}

// The library prints only if it is asked to, and so does this.
ncclResult_t fail(ncclResult_t result, const std::string &text) {
    const char *wish = getenv("NCCL_DEBUG");
    std::lock_guard<std::mutex> guard(last_error().mutex);
    snprintf(last_error().text, sizeof(last_error().text), "%s", text.c_str());
    if (wish && strcmp(wish, "VERSION") != 0) { fprintf(stderr, "emu: %s\n", text.c_str()); }
    return result;
}

// Another thread that sees the error finds the text.
ncclResult_t fail_comm(ncclComm *comm, ncclResult_t result, const std::string &text) {
    fail(result, text);
    comm->error = result;
    return result;
}

// ---- Handles ----

struct Comms {
    std::mutex mutex;
    std::vector<ncclComm *> all;
};
Comms &comms() {
    static Comms *the_comms = new Comms;
    return *the_comms;
}

void warn_of_live_comms(int status, void *) {
    for (ncclComm *comm : comms().all) {
        if (status == 0 && comm->state == LIVE && comm->error == ncclSuccess) {
            fprintf(stderr, "emu: warning: rank %d ends without ncclCommDestroy\n", comm->rank);
        }
    }
}

ncclComm *new_comm(int ranks, int rank, int device, int socket) {
    ncclComm *comm = new ncclComm{rank, ranks, device, socket, "the process that made the id"};
    std::lock_guard<std::mutex> guard(comms().mutex);
    if (comms().all.empty()) { on_exit(warn_of_live_comms, nullptr); }
    comms().all.push_back(comm);
    return comm;
}

const char *past_of(int state) {
    return state == FINALIZED ? "finalized" : state == DESTROYED ? "destroyed" : "aborted";
}

// Can the communicator be used? If another thread has aborted it, it cannot, and this thread made no mistake.
ncclResult_t use(const ncclComm *comm, const char *function, Source at, bool collective = false) {
    host_only(function, at);
    std::unique_lock<std::mutex> guard(comms().mutex);
    bool known = false;
    for (const ncclComm *c : comms().all) { known = known || c == comm; }
    guard.unlock();
    if (!known) { report(at, format("%s with a communicator that does not exist", function)); }
    const int state = comm->state;
    if (state == LIVE || (state == FINALIZED && !collective)) { return ncclSuccess; }
    if (state == ABORTED && comm->ended_by != std::this_thread::get_id()) {
        return fail(ncclInvalidUsage, words("%s: another thread has aborted the communicator", function));
    }
    report(at, format("%s with a communicator that was %s", function, past_of(state)),
           "  at " + emu::to_text(comm->ended));
}

void end_comm(ncclComm *comm, CommState state, Source at) {
    comm->ended = at;
    comm->ended_by = std::this_thread::get_id();
    comm->state = state;
}

// ---- Mistakes that are planted on purpose: EMU_NCCL_FAULT="kind@rank:n[:seconds]" ----

struct Fault {
    char kind[16];
    int rank, n, seconds;
};

Fault parse_fault(const char *text) {
    Fault fault = {"", -1, 0, 1};
    char rest = 0;
    int fields = sscanf(text, "%15[a-z]@%d:%d%c", fault.kind, &fault.rank, &fault.n, &rest);
    bool complete = fields == 3;
    if (fields == 4) { complete = sscanf(text, "%*[a-z]@%*d:%*d:%d%c", &fault.seconds, &rest) == 1; }
    for (const char *kind : {"die", "hang", "delay", "rest", "corrupt"}) {
        if (complete && strcmp(kind, fault.kind) == 0) { return fault; }
    }
    report({nullptr, 0},
           format("EMU_NCCL_FAULT=\"%s\": expected die, hang, delay, rest or corrupt, with @rank:n[:seconds]", text));
}

// Injects the fault of this rank's n-th collective. Returns true if a bit must be flipped.
bool inject_fault(int rank) {
    static const Fault fault = getenv("EMU_NCCL_FAULT") ? parse_fault(getenv("EMU_NCCL_FAULT")) : Fault{"", -1, 0, 0};
    static std::atomic<int> calls;
    if (fault.rank != rank || ++calls != fault.n) { return false; }
    if (strcmp(fault.kind, "die") == 0) { raise(SIGKILL); }
    while (strcmp(fault.kind, "hang") == 0) { pause(); }
    if (strcmp(fault.kind, "rest") == 0) { sleep(static_cast<unsigned>(fault.seconds)); } // a signal ends it
    if (strcmp(fault.kind, "delay") == 0) { std::this_thread::sleep_for(std::chrono::seconds(fault.seconds)); }
    return strcmp(fault.kind, "corrupt") == 0;
}

// ---- One collective ----

struct Piece { // of device memory
    char *begin;
    size_t bytes;
};

size_t bytes_of(const Collective &c) { return c.count * size_of_type(c.type); }
bool is_root(const Collective &c) { return c.comm->rank == c.root; }

Piece sent(const Collective &c) {
    char *send = static_cast<char *>(const_cast<void *>(c.send));
    if (c.kind == REDUCE_SCATTER) { return {send, bytes_of(c) * static_cast<size_t>(c.comm->ranks)}; }
    if (c.kind == RECEIVE) { return {send, 0}; }
    return {send, c.kind == BROADCAST && !is_root(c) ? 0 : bytes_of(c)};
}

Piece received(const Collective &c) {
    char *receive = static_cast<char *>(c.receive);
    if (c.kind == ALL_GATHER) { return {receive, bytes_of(c) * static_cast<size_t>(c.comm->ranks)}; }
    if (c.kind == SEND) { return {receive, 0}; }
    return {receive, c.kind == REDUCE && !is_root(c) ? 0 : bytes_of(c)};
}

// "In place" as NCCL's documentation defines it.
bool is_in_place(const Collective &c) {
    const size_t own = bytes_of(c) * static_cast<size_t>(c.comm->rank);
    const char *send = static_cast<const char *>(c.send), *receive = static_cast<const char *>(c.receive);
    if (c.kind == ALL_GATHER) { return send == receive + own; }
    if (c.kind == REDUCE_SCATTER) { return receive == send + own; }
    return send == receive;
}

// Returns the pieces that a collective writes. In place, an all-gather leaves this rank's part alone, and a broadcast
// leaves the root's buffer alone.
std::vector<Piece> written(const Collective &c) {
    Piece all = received(c);
    const size_t own = bytes_of(c) * static_cast<size_t>(c.comm->rank), after = own + bytes_of(c);
    if (!is_in_place(c)) { return {all}; }
    if (c.kind == BROADCAST && is_root(c)) { return {}; }
    if (c.kind != ALL_GATHER) { return {all}; }
    return {{all.begin, own}, {all.begin + after, all.bytes - after}};
}

bool overlap(const Piece &a, const Piece &b) {
    return a.bytes > 0 && b.bytes > 0 && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

void check_buffers(const Collective &c) {
    const Piece from = sent(c), to = received(c);
    const char *name = name_of(c.kind);
    for (const Piece &piece : {from, to}) {
        if (piece.bytes && reinterpret_cast<uintptr_t>(piece.begin) % size_of_type(c.type)) {
            report(c.at, format("misaligned buffer of %s: %p, expected a multiple of %zu", name, piece.begin,
                                size_of_type(c.type)));
        }
    }
    if (!overlap(from, to) || is_in_place(c)) { return; }
    const char *rule = c.kind == ALL_GATHER       ? "sendbuff == recvbuff + rank * sendcount"
                       : c.kind == REDUCE_SCATTER ? "recvbuff == sendbuff + rank * recvcount"
                                                  : "sendbuff == recvbuff";
    report(c.at, format("%s: recvbuff overlaps sendbuff, and not as in place", name),
           format("  sendbuff %p and recvbuff %p differ by %td bytes; in place on rank %d of %d means %s", from.begin,
                  to.begin, to.begin - from.begin, c.comm->rank, c.comm->ranks, rule));
}

// The operation on the stream: checks all accesses and takes the data to send.
std::vector<char> begin_collective(const Collective &c) {
    check_buffers(c);
    const Piece from = sent(c);
    op_begin(c.stream, name_of(c.kind), c.at.file, c.at.line);
    op_read(from.begin, from.bytes);
    for (const Piece &piece : written(c)) { op_write(piece.begin, piece.bytes); }
    std::vector<char> data(from.bytes);
    if (from.bytes) { memcpy(data.data(), from.begin, from.bytes); }
    op_end();
    return data;
}

// The transfers of a group run at once, so nothing may be written that another transfer uses.
void check_transfers(const std::vector<Collective> &calls) {
    for (const Collective &a : calls) {
        for (const Collective &b : calls) {
            if (&a == &b || (!overlap(received(a), received(b)) && !overlap(received(a), sent(b)))) { continue; }
            report(a.at,
                   format("the buffer of %s overlaps the buffer of %s in one group", name_of(a.kind), name_of(b.kind)),
                   "  at " + emu::to_text(b.at));
        }
    }
}

Call to_call(const Collective &c) {
    return {c.kind, c.type, c.reduction, c.root, c.count, 0, sent(c).bytes, 0, to_line(c.at)};
}

// The transfers of a group: a Call for each of them, and then the data of the sends.
std::vector<char> begin_transfers(const std::vector<Collective> &calls) {
    std::vector<char> all(calls.size() * sizeof(Call));
    check_transfers(calls);
    for (size_t i = 0; i < calls.size(); i++) {
        const Call call = to_call(calls[i]);
        const std::vector<char> data = begin_collective(calls[i]);
        memcpy(all.data() + i * sizeof(Call), &call, sizeof(Call));
        all.insert(all.end(), data.begin(), data.end());
    }
    return all;
}

// Stores the received data. After a failure the contents are unknown, so the memory counts as uninitialised.
void end_collective(const Collective &c, const char *data, bool ok) {
    const Piece all = received(c);
    unlock_device_memory();
    for (const Piece &piece : written(c)) {
        if (piece.bytes == 0) { continue; }
        if (ok) { memcpy(piece.begin, data + (piece.begin - all.begin), piece.bytes); }
        if (!ok) { memset(piece.begin, 0xff, piece.bytes); }
        if (!ok) { set_initialised(piece.begin, piece.bytes, false); }
    }
    lock_device_memory();
}

// data: what all receives of the group received.
void end_transfers(const std::vector<Collective> &calls, const char *data, bool ok) {
    size_t at = 0;
    for (const Collective &c : calls) {
        end_collective(c, ok ? data + at : nullptr, ok);
        at += received(c).bytes;
    }
}

// Flips a bit in the middle of the data of another rank. In a float it is a bit of the mantissa.
void corrupt(const Collective &c, std::vector<char> *data) {
    const size_t size = size_of_type(c.type), rank = static_cast<size_t>(c.comm->rank + 1);
    size_t element = c.count / 2 + (c.kind == ALL_GATHER ? rank % static_cast<size_t>(c.comm->ranks) * c.count : 0);
    if (is_transfer(c.kind)) { element = data->size() / size / 2; }
    size_t at = element * size + (size > 1 ? size - 2 : 0);
    if (at < data->size()) { (*data)[at] = static_cast<char>((*data)[at] ^ 16); }
}

// ---- The connection to the server ----

// Ends a call that the server has not done.
ncclResult_t not_done(ncclComm *comm, AnswerKind kind, const std::string &text, const std::string &call, Source at) {
    if (kind == REPORT) {
        size_t line = text.find('\n');
        report(at, text.substr(0, line), line == std::string::npos ? "" : text.substr(line + 1));
    }
    std::string where = words("%s on rank %d, at %s:%d: ", call.c_str(), comm->rank, at.file, at.line);
    return fail_comm(comm, ncclRemoteError, where + text);
}

ncclResult_t lost(ncclComm *comm, const std::string &call, Source at) {
    if (comm->state == ABORTED) {
        return fail_comm(comm, ncclInternalError,
                         words("%s, at %s:%d: aborted by ncclCommAbort", call.c_str(), at.file, at.line));
    }
    return not_done(comm, FAILED, comm->server + " has ended", call, at);
}

// Waits for the answer and puts its data into *data.
ncclResult_t wait_for_answer(ncclComm *comm, std::vector<char> *data, const std::string &call, Source at) {
    Answer answer;
    if (!receive_all(comm->socket, &answer, sizeof(answer))) { return lost(comm, call, at); }
    data->resize(answer.bytes);
    if (!receive_all(comm->socket, data->data(), data->size())) { return lost(comm, call, at); }
    if (answer.kind == DONE) { return ncclSuccess; }
    return not_done(comm, answer.kind, std::string(data->begin(), data->end()), call, at);
}

// Sends the call's data in *data and puts the answer's data there.
ncclResult_t exchange(ncclComm *comm, Call call, std::vector<char> *data, Source at) {
    std::lock_guard<std::mutex> guard(comm->socket_mutex);
    call.number = ++comm->calls;
    call.bytes = data->size();
    call.at = to_line(at);
    // A server that has ended may have left an answer.
    if (send_unless_answered(comm->socket, &call, sizeof(call))) {
        send_unless_answered(comm->socket, data->data(), data->size());
    }
    return wait_for_answer(comm, data, to_text(call), at);
}

// A collective of a communicator that has failed. On a GPU the call has returned long ago, and its stream stands still
// until ncclCommAbort. With EMU_NCCL_STALL=1 the call itself waits until ncclCommAbort.
ncclResult_t run_in_vain(const ncclComm *comm) {
    const char *stall = getenv("EMU_NCCL_STALL");
    while (stall && strcmp(stall, "1") == 0 && comm->state != ABORTED) { usleep(1000); }
    return static_cast<ncclResult_t>(comm->error.load());
}

// Runs a collective, or the sends and receives of a group.
ncclResult_t run(const std::vector<Collective> &calls) {
    const Collective &c = calls[0];
    const bool transfers = is_transfer(c.kind);
    ncclComm *comm = c.comm;
    ncclResult_t usable = use(comm, name_of(c.kind), c.at, true);
    if (usable != ncclSuccess) { return usable; }
    const bool corrupts = inject_fault(comm->rank);
    if (comm->error != ncclSuccess) { return run_in_vain(comm); }
    std::vector<char> data = transfers ? begin_transfers(calls) : begin_collective(c), kept;
    if (comm->in_call.exchange(true)) {
        report(c.at, format("%s on a communicator that another thread is using", name_of(c.kind)));
    }
    if (c.kind == BROADCAST && is_root(c)) { kept = data; }
    Call call = to_call(c);
    call.transfers = transfers ? calls.size() : 0;
    ncclResult_t result = exchange(comm, call, &data, c.at);
    comm->in_call = false;
    if (corrupts) { corrupt(c, &data); }
    if (c.kind == BROADCAST && is_root(c)) { data = kept; }
    if (transfers) { end_transfers(calls, data.data(), result == ncclSuccess); }
    if (!transfers) { end_collective(c, data.data(), result == ncclSuccess); }
    return result == ncclSuccess ? result : run_in_vain(comm);
}

// ---- Groups: calls between ncclGroupStart and ncclGroupEnd are done by the latter ----

const size_t GROUP_MOST = 2048; // calls, by NCCL's documentation

thread_local int group_depth;
thread_local std::vector<Collective> group;

ncclResult_t call(const Collective &c) {
    const char *name = name_of(c.kind);
    ncclResult_t usable = use(c.comm, name, c.at, true);
    if (usable != ncclSuccess) { return usable; }
    if (c.type >= ncclNumTypes || c.reduction >= ncclNumOps) {
        return fail(ncclInvalidArgument, words("%s: type %u, reduction %u", name, c.type, c.reduction));
    }
    if (c.root < 0 || c.root >= c.comm->ranks) {
        return fail(ncclInvalidArgument, words("%s: rank %d of %d ranks", name, c.root, c.comm->ranks));
    }
    if (group_depth == 0) { return run({c}); }
    if (group.size() == GROUP_MOST) {
        return fail(ncclInvalidUsage, words("%s: more than 2048 calls in a group", name));
    }
    group.push_back(c);
    return ncclSuccess;
}

// Returns the calls of a group as they run: first the transfers, those of a communicator at once, because they may wait
// for each other; then each collective, in the order of the calls.
std::vector<std::vector<Collective>> in_order(const std::vector<Collective> &calls) {
    std::vector<std::vector<Collective>> transfers, collectives;
    for (const Collective &c : calls) {
        auto same = [&c](const std::vector<Collective> &other) { return other[0].comm == c.comm; };
        auto found = std::find_if(transfers.begin(), transfers.end(), same);
        if (!is_transfer(c.kind)) {
            collectives.push_back({c});
        } else if (found == transfers.end()) {
            transfers.push_back({c});
        } else {
            found->push_back(c);
        }
    }
    transfers.insert(transfers.end(), collectives.begin(), collectives.end());
    return transfers;
}

// ---- Into the communicator, and out of it ----

Id to_id(const ncclUniqueId &id) {
    Id result;
    memcpy(&result, &id, sizeof(result));
    return result;
}

Hello hello_of(const Id &id, int ranks, int rank, int device, Source at) {
    Hello hello = {};
    memcpy(hello.magic, ID_MAGIC, sizeof(hello.magic));
    hello.nonce = id.nonce, hello.network = network_number();
    hello.ranks = ranks, hello.rank = rank, hello.pid = getpid(), hello.device = device;
    snprintf(hello.host, sizeof(hello.host), "%s", host_name().c_str());
    hello.at = to_line(at);
    return hello;
}

// With NCCL_DEBUG=INFO the library names the settings that it takes from the environment. This prints NCCL_NVLS_ENABLE.
void tell_settings() {
    const char *wish = getenv("NCCL_DEBUG"), *nvls = getenv("NCCL_NVLS_ENABLE");
    if (!wish || strcmp(wish, "INFO") != 0 || !nvls) { return; }
    fprintf(stderr, "emu: NCCL INFO NCCL_NVLS_ENABLE set by environment to %s.\n", nvls);
}

ncclResult_t join(ncclComm_t *comm, int ranks, const Id &id, int rank, Source at) {
    int device = 0;
    std::string why;
    *comm = nullptr;
    tell_settings();
    if (cudaGetDevice(&device) != cudaSuccess) { return fail(ncclUnhandledCudaError, "there is no device"); }
    int socket = connect_to(id, &why);
    if (socket < 0) { return fail(ncclSystemError, "no connection to the process that made the id: " + why); }
    ncclComm *made = new_comm(ranks, rank, device, socket);
    Hello hello = hello_of(id, ranks, rank, device, at);
    std::vector<char> server;
    send_unless_answered(socket, &hello, sizeof(hello));
    ncclResult_t result = wait_for_answer(made, &server, "ncclCommInitRank", at);
    if (result != ncclSuccess) {
        end_comm(made, DESTROYED, at);
        close(socket);
        return result;
    }
    made->server.assign(server.begin(), server.end());
    *comm = made;
    return ncclSuccess;
}

} // namespace

// ---- The interface ----

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "operation in progress";
    default: return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t) { return last_error().text; }

ncclResult_t ncclGetVersion(int *version) {
    if (version == nullptr) { return fail(ncclInvalidArgument, "ncclGetVersion: null"); }
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id, const char *file, int line) {
    host_only("ncclGetUniqueId", {file, line});
    if (id == nullptr) { return fail(ncclInvalidArgument, "ncclGetUniqueId: null"); }
    Id made = {};
    int listener = listen_anywhere(&made.port);
    if (listener < 0) { return fail(ncclSystemError, words("ncclGetUniqueId: no socket: %s", strerror(errno))); }
    memcpy(made.magic, ID_MAGIC, sizeof(made.magic));
    made.nonce = random_number(), made.network = network_number();
    for (const Address &address : own_addresses()) {
        if (made.addresses < MAX_ADDRESSES) { made.address[made.addresses++] = address; }
    }
    start_server(listener, made.nonce);
    memset(id, 0, sizeof(*id));
    memcpy(id, &made, sizeof(made));
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, const char *file, int line) {
    const Source at = {file, line};
    const Id where = to_id(id);
    host_only("ncclCommInitRank", at);
    if (comm == nullptr || ranks < 1 || rank < 0 || rank >= ranks) {
        return fail(ncclInvalidArgument, words("ncclCommInitRank: rank %d of %d", rank, ranks));
    }
    if (memcmp(where.magic, ID_MAGIC, sizeof(where.magic)) != 0) {
        return fail(ncclInvalidArgument, "ncclCommInitRank: the id is not one of ncclGetUniqueId's");
    }
    return join(comm, ranks, where, rank, at);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm, const char *file, int line) {
    ncclResult_t usable = use(comm, "ncclCommFinalize", {file, line}, true);
    if (usable == ncclSuccess) { end_comm(comm, FINALIZED, {file, line}); } // every call is done when it returns
    return usable;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm, const char *file, int line) {
    const Source at = {file, line};
    ncclResult_t usable = use(comm, "ncclCommDestroy", at);
    if (usable != ncclSuccess) { return usable; }
    std::vector<char> nothing;
    if (comm->error == ncclSuccess) { exchange(comm, {GOODBYE, 0, 0, 0, 0, 0, 0, 0, {}}, &nothing, at); }
    if (comm->state == ABORTED) { return ncclSuccess; }
    end_comm(comm, DESTROYED, at);
    close(comm->socket);
    return ncclSuccess;
}

// If a call is using the socket, the end of the process closes it.
ncclResult_t ncclCommAbort(ncclComm_t comm, const char *file, int line) {
    ncclResult_t usable = use(comm, "ncclCommAbort", {file, line});
    if (usable != ncclSuccess) { return usable; }
    end_comm(comm, ABORTED, {file, line});
    shutdown(comm->socket, SHUT_RDWR);
    if (comm->socket_mutex.try_lock()) {
        close(comm->socket);
        comm->socket_mutex.unlock();
    }
    return ncclSuccess;
}

// Between two calls only a failure can have arrived.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error, const char *file, int line) {
    ncclResult_t usable = use(comm, "ncclCommGetAsyncError", {file, line});
    if (usable != ncclSuccess || error == nullptr) { return usable == ncclSuccess ? ncclInvalidArgument : usable; }
    std::unique_lock<std::mutex> idle(comm->socket_mutex, std::try_to_lock);
    char byte;
    ssize_t n =
        idle.owns_lock() && comm->error == ncclSuccess ? recv(comm->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) : -1;
    if (n >= 0) {
        std::vector<char> nothing;
        wait_for_answer(comm, &nothing, "ncclCommGetAsyncError", {file, line});
    }
    *error = static_cast<ncclResult_t>(comm->error.load());
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count, const char *file, int line) {
    ncclResult_t usable = use(comm, "ncclCommCount", {file, line});
    if (usable == ncclSuccess) { *count = comm->ranks; }
    return usable;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device, const char *file, int line) {
    ncclResult_t usable = use(comm, "ncclCommCuDevice", {file, line});
    if (usable == ncclSuccess) { *device = comm->device; }
    return usable;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank, const char *file, int line) {
    ncclResult_t usable = use(comm, "ncclCommUserRank", {file, line});
    if (usable == ncclSuccess) { *rank = comm->rank; }
    return usable;
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream, const char *file, int line) {
    return call({ALL_REDUCE, send, receive, count, type, reduction, 0, comm, stream, {file, line}});
}
ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream, const char *file,
                               int line) {
    return call({REDUCE_SCATTER, send, receive, count, type, reduction, 0, comm, stream, {file, line}});
}
ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream, const char *file, int line) {
    return call({ALL_GATHER, send, receive, count, type, 0, 0, comm, stream, {file, line}});
}
ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream, const char *file, int line) {
    return call({BROADCAST, send, receive, count, type, 0, root, comm, stream, {file, line}});
}
ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                        int root, ncclComm_t comm, cudaStream_t stream, const char *file, int line) {
    return call({REDUCE, send, receive, count, type, reduction, root, comm, stream, {file, line}});
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream, const char *file, int line) {
    return call({SEND, send, nullptr, count, type, 0, peer, comm, stream, {file, line}});
}
ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream,
                      const char *file, int line) {
    return call({RECEIVE, nullptr, receive, count, type, 0, peer, comm, stream, {file, line}});
}

ncclResult_t ncclGroupStart(const char *file, int line) {
    host_only("ncclGroupStart", {file, line});
    group_depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(const char *file, int line) {
    host_only("ncclGroupEnd", {file, line});
    if (group_depth == 0) { return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart"); }
    if (--group_depth > 0) { return ncclSuccess; }
    std::vector<Collective> calls;
    calls.swap(group);
    ncclResult_t result = ncclSuccess;
    for (const std::vector<Collective> &together : in_order(calls)) {
        if (result == ncclSuccess) { result = run(together); }
    }
    return result;
}
