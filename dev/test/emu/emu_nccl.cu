// The emulated NCCL: what it must do as NCCL does, how it must end when a rank does, and what it must report. Each test
// runs a function of this file in several processes of this program, `emu_nccl NAME RANKS RANK VICTIM BUG PIPE..`, one
// for each rank; a rank has failed if it prints anything, or ends with another status than expected.
//
// A BUG has its mistake in one run and not in the other. With it, one rank must end with exactly the report before BUG
// (see emu_reports.h) and the other ranks in silence; without it all ranks must.
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <nccl.h>
#include <signal.h>
#include <atomic>
#include <thread>

#include "dev/test/emu/emu_reports.h"
#include "dev/test/test_main.h"

constexpr int MAX_RANKS = 4;

// ---- What runs in a rank's process ----

// Prints and ends the rank with status 2 if something is not so.
#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) { rank_fails(__LINE__, #condition, words(__VA_ARGS__)); }                                    \
    } while (0)
#define NCCL(call)                                                                                                     \
    do {                                                                                                               \
        ncclResult_t result_ = (call);                                                                                 \
        EXPECT(result_ == ncclSuccess, "%s: %s", ncclGetErrorString(result_), ncclGetLastError(nullptr));              \
    } while (0)

__attribute__((format(printf, 1, 2))) static std::string words(const char *text, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(line, sizeof(line), text, arguments);
    va_end(arguments);
    return line;
}
static int my_rank;
[[noreturn]] static void rank_fails(int line, const char *condition, const std::string &text) {
    fprintf(stderr, "rank %d, line %d: not %s: %s\n", my_rank, line, condition, text.c_str());
    _exit(2);
}

static float *zeros(size_t n) {
    float *data;
    cudaMalloc(&data, n * sizeof(float));
    cudaMemset(data, 0, n * sizeof(float));
    cudaDeviceSynchronize();
    return data;
}

struct World {
    int ranks, rank, victim; // victim: the rank that ends, or to which something is done
    bool bug;
    int pipe[MAX_RANKS][2]; // to each rank
    cudaStream_t stream, kernels;
    ncclComm_t comm;
    float *data; // 16 zeros

    // From rank 0 to all.
    void share(void *data, size_t bytes) {
        for (int r = 1; r < ranks && rank == 0; r++) {
            EXPECT(write(pipe[r][1], data, bytes) == ssize_t(bytes), "rank %d is gone", r);
        }
        EXPECT(rank == 0 || read(pipe[rank][0], data, bytes) == ssize_t(bytes), "rank 0 is gone");
    }
    ncclUniqueId shared_id() {
        ncclUniqueId id;
        if (rank == 0) { NCCL(ncclGetUniqueId(&id)); }
        share(&id, sizeof(id));
        return id;
    }
    void begin() {
        cudaSetDevice(rank);
        for (cudaStream_t *s : {&stream, &kernels}) { cudaStreamCreateWithFlags(s, cudaStreamNonBlocking); }
        data = zeros(16);
        NCCL(ncclCommInitRank(&comm, ranks, shared_id(), rank)); // @I
    }
    // A further communicator of these ranks. All ranks call this, each with the members of its own communicator.
    ncclComm_t part(const std::vector<int> &members) {
        ncclUniqueId id;
        ncclComm_t made = nullptr;
        const int place = int(std::find(members.begin(), members.end(), rank) - members.begin());
        const int count = int(members.size());
        if (place == 0) { NCCL(ncclGetUniqueId(&id)); }
        for (int i = 1; i < count && place == 0; i++) {
            EXPECT(write(pipe[members[i]][1], &id, sizeof(id)) > 0, "rank %d is gone", members[i]);
        }
        if (place > 0 && place < count) { EXPECT(read(pipe[rank][0], &id, sizeof(id)) > 0, "nobody has an id"); }
        if (place < count) {
            NCCL(ncclCommInitRank(&made, count, id, place)); // @M
        }
        NCCL(sum(data, 1));
        return made;
    }
    // Whatever a bug has made of the communicator.
    void end() {
        cudaStreamSynchronize(stream);
        ncclResult_t result = ncclCommDestroy(comm);
        EXPECT(result == ncclSuccess || bug, "%s: %s", ncclGetErrorString(result), ncclGetLastError(nullptr));
    }
    ncclResult_t sum(float *data, size_t n) { return sum_in(comm, data, n); }
    ncclResult_t sum_in(ncclComm_t in, float *data, size_t n) {
        return ncclAllReduce(data, data, n, ncclFloat32, ncclSum, in, stream);
    }
    // The communicator has failed, and says which rank has ended.
    void expect_failure(ncclResult_t result) {
        const std::string culprit = words("rank %d (pid ", victim), text = ncclGetLastError(comm);
        EXPECT(result == ncclRemoteError, "%s: %s", ncclGetErrorString(result), text.c_str());
        EXPECT(text.find(culprit) != std::string::npos, "\"%s\" does not name rank %d", text.c_str(), victim);
    }
};

template <class T> struct Buffer {
    T *data = nullptr;
    size_t n;
    explicit Buffer(size_t n) : n(n) { cudaMalloc(&data, n * sizeof(T)); }
    explicit Buffer(const std::vector<T> &values) : Buffer(values.size()) {
        cudaMemcpy(data, values.data(), n * sizeof(T), cudaMemcpyHostToDevice);
        cudaDeviceSynchronize(); // the memory is pageable, and the test's streams do not wait for the default stream
    }
    ~Buffer() { cudaDeviceSynchronize(), cudaFree(data); }
    Buffer(const Buffer &) = delete;
    std::vector<T> host() const {
        std::vector<T> values(n);
        cudaDeviceSynchronize();
        cudaMemcpy(values.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost);
        return values;
    }
};

// Values that differ from rank to rank, small enough for exact sums in every type.
template <class T> static std::vector<T> values_of(int rank, size_t n) {
    std::vector<T> values(n);
    for (size_t i = 0; i < n; i++) { values[i] = T(float(1 + (i * 7 + size_t(rank) * 3) % 3)); }
    return values;
}

template <class T> static void expect_same(const std::vector<T> &got, const std::vector<T> &want, const char *what) {
    EXPECT(got.size() == want.size(), "%s", what);
    for (size_t i = 0; i < got.size(); i++) {
        EXPECT(memcmp(&got[i], &want[i], sizeof(T)) == 0, "%s: element %zu is %g, expected %g", what, i,
               double(float(got[i])), double(float(want[i])));
    }
}

template <class T> static std::vector<T> summed(int ranks, size_t n) {
    std::vector<T> all = values_of<T>(0, n);
    for (int r = 1; r < ranks; r++) {
        std::vector<T> next = values_of<T>(r, n);
        for (size_t i = 0; i < n; i++) { all[i] = T(float(all[i]) + float(next[i])); }
    }
    return all;
}

// ---- The tests ----

static void test_case(Test *t);
static void test_bug(Test *t);

struct RankTest {
    void (*function)(World *w); // what a rank's process does
    int min_ranks, max_ranks;
    int status;        // of the victim, or of the rank that reports; NO_VICTIM
    int reporter;      // the rank that reports a bug, or ANY
    bool begins_alone; // else World::begin comes before the function, and World::end behind it
    TestCase test;

    RankTest(const char *name, int line, void (*f)(World *), void (*check)(Test *), int min, int max, int end, int who,
             bool alone)
        : function(f), min_ranks(min), max_ranks(max), status(end), reporter(who),
          begins_alone(alone), test{name, __FILE__, line, check, this, nullptr} {
        test_add(&test);
    }
};
constexpr int ANY = -1, NO_VICTIM = -1, STATUS_OF_VICTIM = 7, KILLED = 128 + SIGKILL;

// Tests whose name ends with ALONE make their communicator themselves.
#define RANK_TEST(name, ...)                                                                                           \
    static void rank_##name(World *w);                                                                                 \
    static RankTest test_##name(#name, __LINE__, rank_##name, __VA_ARGS__);                                            \
    static void rank_##name(World *w)
#define CASE(name, min_ranks, max_ranks) RANK_TEST(name, test_case, min_ranks, max_ranks, NO_VICTIM, 0, false)
#define VICTIM(name, max_ranks, status) RANK_TEST(name, test_case, 2, max_ranks, status, 0, false)
#define VICTIM_ALONE(name, max_ranks, status) RANK_TEST(name, test_case, 2, max_ranks, status, 0, true)
#define BUG(name, ranks, reporter) RANK_TEST(name, test_bug, ranks, ranks, 1, reporter, false)
#define BUG_ALONE(name, reporter, status) RANK_TEST(name, test_bug, 2, 2, status, reporter, true)

// ---- The collectives: every type, out of place and in place ----

template <class T> static void check_all_reduce(World *w, ncclDataType_t type) {
    const size_t n = 37;
    Buffer<T> send(values_of<T>(w->rank, n)), receive(n);
    NCCL(ncclAllReduce(send.data, receive.data, n, type, ncclSum, w->comm, w->stream));
    NCCL(ncclAllReduce(send.data, send.data, n, type, ncclSum, w->comm, w->stream));
    expect_same(receive.host(), summed<T>(w->ranks, n), "all-reduce");
    expect_same(send.host(), summed<T>(w->ranks, n), "all-reduce in place");
}
CASE(all_reduce, 1, 3) {
    check_all_reduce<unsigned char>(w, ncclUint8);
    check_all_reduce<unsigned>(w, ncclUint32);
    check_all_reduce<float>(w, ncclFloat32);
    check_all_reduce<__nv_bfloat16>(w, ncclBfloat16);
}

CASE(shares, 1, 4) {
    const size_t share = 13, n = share * size_t(w->ranks), own = share * size_t(w->rank);
    const std::vector<float> sums = summed<float>(w->ranks, n);
    std::vector<float> values = values_of<float>(w->rank, n);
    Buffer<float> send(values), part(share), all(n);
    NCCL(ncclReduceScatter(send.data, part.data, share, ncclFloat32, ncclSum, w->comm, w->stream));
    expect_same(part.host(), {&sums[own], &sums[own] + share}, "reduce-scatter");
    NCCL(ncclAllGather(part.data, all.data, share, ncclFloat32, w->comm, w->stream));
    expect_same(all.host(), sums, "all-gather");
    NCCL(ncclReduceScatter(send.data, send.data + own, share, ncclFloat32, ncclSum, w->comm, w->stream));
    std::copy(&sums[own], &sums[own] + share, &values[own]);
    expect_same(send.host(), values, "reduce-scatter in place");
    NCCL(ncclAllGather(send.data + own, send.data, share, ncclFloat32, w->comm, w->stream));
    expect_same(send.host(), sums, "all-gather in place");
}

CASE(broadcast, 1, 3) {
    for (int root = 0; root < w->ranks; root++) {
        Buffer<float> data(values_of<float>(w->rank, 9)), receive(9);
        const float *send = w->rank == root ? data.data : nullptr;
        NCCL(ncclBroadcast(send, receive.data, 9, ncclFloat32, root, w->comm, w->stream));
        expect_same(receive.host(), values_of<float>(root, 9), "broadcast");
        NCCL(ncclBroadcast(data.data, data.data, 9, ncclFloat32, root, w->comm, w->stream));
        expect_same(data.host(), values_of<float>(root, 9), "broadcast in place");
    }
}

// The sum is ((x0 + x1) + x2) + x3, whatever arrives first.
CASE(order_of_sums, 2, 4) {
    const float parts[MAX_RANKS] = {1.0f, 1e8f, -1e8f, 0.25f};
    float want = parts[0];
    for (int r = 1; r < w->ranks; r++) { want += parts[r]; }
    for (int round = 0; round < 5; round++) {
        if (round % w->ranks == w->rank) { usleep(2000); }
        Buffer<float> data(std::vector<float>(1, parts[w->rank]));
        NCCL(ncclAllReduce(data.data, data.data, 1, ncclFloat32, ncclSum, w->comm, w->stream));
        expect_same(data.host(), {want}, "sum");
    }
}

// ---- Sends and receives ----

template <class T> static void expect_from(const Buffer<T> &got, int rank, const char *what) {
    expect_same(got.host(), values_of<T>(rank, got.n), what);
}

// Every rank sends to every rank, itself included, different counts (up to 1.5 MiB) and types in one group. All ranks
// send first: without a group all would wait for ever.
CASE(all_to_all, 1, 4) {
    auto count = [](int to) { return to == 1 ? size_t(3 << 17) : size_t(5 + to); };
    std::vector<Buffer<float> *> sent, received;
    Buffer<unsigned> id(std::vector<unsigned>(1, unsigned(w->rank))), ids{size_t(w->ranks)};
    NCCL(ncclGroupStart());
    for (int r = 0; r < w->ranks; r++) {
        sent.push_back(new Buffer<float>(values_of<float>(w->rank, count(r))));
        received.push_back(new Buffer<float>(count(w->rank)));
        NCCL(ncclSend(sent.back()->data, sent.back()->n, ncclFloat32, r, w->comm, w->stream));
        NCCL(ncclSend(id.data, 1, ncclUint32, r, w->comm, w->kernels));
        NCCL(ncclRecv(received.back()->data, received.back()->n, ncclFloat32, r, w->comm, w->stream));
        NCCL(ncclRecv(ids.data + r, 1, ncclUint32, r, w->comm, w->kernels));
    }
    EXPECT(ncclGroupStart() == ncclInvalidUsage, "a group in a group");
    NCCL(ncclGroupEnd());
    EXPECT(ncclGroupEnd() == ncclInvalidUsage, "a group that has not begun");
    for (int r = 0; r < w->ranks; r++) {
        expect_from(*received[size_t(r)], r, "from each rank");
        expect_same({ids.host()[size_t(r)]}, std::vector<unsigned>(1, unsigned(r)), "the second from each rank");
        delete sent[size_t(r)];
        delete received[size_t(r)];
    }
}

// A group on one side, single calls on the other side.
CASE(group_and_single, 2, 3) {
    Buffer<float> mine(values_of<float>(w->rank, 8)), first(8), second(8);
    if (w->rank == 0) {
        NCCL(ncclGroupStart());
        NCCL(ncclRecv(first.data, 8, ncclFloat32, 1, w->comm, w->stream));
        NCCL(ncclSend(mine.data, 8, ncclFloat32, 1, w->comm, w->stream));
        NCCL(ncclRecv(second.data, 8, ncclFloat32, 1, w->comm, w->stream));
        NCCL(ncclGroupEnd());
    } else if (w->rank == 1) {
        NCCL(ncclRecv(first.data, 8, ncclFloat32, 0, w->comm, w->stream));
        NCCL(ncclSend(mine.data, 8, ncclFloat32, 0, w->comm, w->stream));
        NCCL(ncclSend(first.data, 8, ncclFloat32, 0, w->comm, w->stream));
    }
    if (w->rank < 2) { expect_from(first, 1 - w->rank, "the first"); }
    if (w->rank == 0) { expect_from(second, 0, "the second: sent, received and sent back"); }
    EXPECT(ncclSend(mine.data, 8, ncclFloat32, w->ranks, w->comm, w->stream) == ncclInvalidArgument, "no such rank");
    EXPECT(ncclRecv(first.data, 8, ncclDataType_t(8), 0, w->comm, w->stream) == ncclInvalidArgument, "double");
}

// ---- Several communicators ----

// The ranks of a 2 x 2 grid, with a communicator for each row and each column.
struct Grid {
    ncclComm_t row, column;
    explicit Grid(World *w) {
        const int left = w->rank / 2 * 2, top = w->rank % 2;
        row = w->part({left, left + 1});
        column = w->part({top, top + 2});
    }
    ~Grid() { ncclCommDestroy(row), ncclCommDestroy(column); }
};

// A rank may be slow between any two calls. Nothing is reported.
CASE(grid, 4, 4) {
    Grid grid(w);
    const float mine = float(w->rank);
    for (int round = 0; round < 8; round++) {
        usleep(unsigned((w->rank * 7 + round * 13) % 9) * 5000);
        Buffer<float> a(std::vector<float>(4, mine)), b(std::vector<float>(4, mine));
        NCCL(w->sum_in(grid.row, a.data, 4));
        NCCL(w->sum_in(grid.column, a.data, 4));
        expect_same(a.host(), std::vector<float>(4, 6.0f), "over rows and then columns");
        NCCL(ncclReduceScatter(b.data, b.data + w->rank / 2 * 2, 2, ncclFloat32, ncclSum, grid.column, w->stream));
        NCCL(ncclAllGather(b.data + w->rank / 2 * 2, b.data, 2, ncclFloat32, grid.column, w->stream));
        NCCL(w->sum(b.data, 4));
        expect_same(b.host(), std::vector<float>(4, 12.0f), "scattered and gathered");
    }
}

// Signals interrupt what waits, and change nothing.
static volatile sig_atomic_t signals;
CASE(signals, 2, 3) {
    struct sigaction action = {};
    action.sa_handler = [](int) { signals = signals + 1; };
    sigaction(SIGUSR1, &action, nullptr);
    std::atomic<bool> done{false};
    pthread_t main_thread = pthread_self();
    std::thread disturber([&] {
        while (!done) { pthread_kill(main_thread, SIGUSR1), kill(getpid(), SIGUSR1), usleep(100); }
    });
    Buffer<float> data(std::vector<float>(4096, 0.0f));
    for (int round = 0; round < 50; round++) { NCCL(w->sum(data.data, 4096)); }
    expect_same(data.host(), std::vector<float>(4096, 0.0f), "under signals");
    while (signals == 0) { usleep(100); }
    done = true;
    disturber.join();
}

// ---- When a rank ends: the calls of the other ranks fail, and say which. Each rank is the victim once ----

// At any moment of a transfer.
VICTIM(killed, 3, KILLED) {
    const size_t n = 1 << 16;
    Buffer<float> data(std::vector<float>(n, 0.0f));
    std::thread killer([=] {
        if (w->rank == w->victim) { usleep(30000), raise(SIGKILL); }
    });
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess) { result = w->sum(data.data, n); }
    killer.join();
    w->expect_failure(result);
}

// While another rank has not come, and never will.
VICTIM_ALONE(killed_at_start, 2, KILLED) {
    cudaSetDevice(w->rank);
    ncclUniqueId id = w->shared_id();
    std::thread killer([=] {
        if (w->rank == w->victim) { usleep(30000), raise(SIGKILL); }
    });
    ncclResult_t result = ncclCommInitRank(&w->comm, w->ranks + 1, id, w->rank);
    killer.join();
    EXPECT(result == ncclRemoteError || result == ncclSystemError, "%s", ncclGetErrorString(result));
}

// A rank that ends fails the transfers of all ranks, also those that it has no part in.
VICTIM(ends_before_sending, 3, STATUS_OF_VICTIM) {
    if (w->rank == w->victim) { _exit(STATUS_OF_VICTIM); }
    Buffer<float> receive(values_of<float>(w->rank, 8));
    w->expect_failure(ncclRecv(receive.data, 8, ncclFloat32, w->victim, w->comm, w->stream));
    w->expect_failure(ncclRecv(receive.data, 8, ncclFloat32, w->rank, w->comm, w->stream));
}

// Two ranks go on in a communicator without the third. What one of them has waited for in vain is no part of a cycle.
RANK_TEST(goes_on_in_part, test_case, 3, 3, STATUS_OF_VICTIM, 0, false) {
    const int low = w->victim == 0, high = 3 - w->victim - low;
    ncclComm_t part = w->part({low, high});
    float *data = zeros(8);
    if (w->rank == w->victim) { _exit(STATUS_OF_VICTIM); }
    if (w->rank == high) { w->expect_failure(ncclRecv(w->data, 8, ncclFloat32, low, w->comm, w->stream)); }
    NCCL(w->sum_in(part, data, 8));
    NCCL(ncclCommDestroy(part));
}

// ---- Faults on request: the tests of the trainer use the other kinds ----

// A fault's rank is that of the first communicator. It counts the collectives of all.
VICTIM_ALONE(fault_die_in_part, 2, KILLED) {
    setenv("EMU_NCCL_FAULT", words("die@%d:3", w->victim).c_str(), 1);
    w->begin();
    ncclComm_t part = w->part({1, 0}); // with the first collective
    NCCL(w->sum(w->data, 8));
    ncclResult_t result = w->sum_in(part, w->data, 8);
    const std::string text = ncclGetLastError(part), culprit = words("rank %d (pid ", 1 - w->victim);
    EXPECT(result == ncclRemoteError && text.find(culprit) != std::string::npos, "%s", text.c_str());
    w->expect_failure(w->sum(zeros(8), 8));
    EXPECT(w->sum(zeros(8), 8) == ncclRemoteError, "it stays so");
    ncclCommDestroy(part);
    w->end();
}

// ---- Planted bugs ----

//! emu: 2 ranks wait for each other, at @A
//!   rank 0 (pid %p): ncclAllGather of 8 float32, at @A, as rank 0 of communicator 2, made at @M
//!   rank 1 (pid %p): ncclReduceScatter of 8 float32, at @B, as rank 1 of communicator 3, made at @M
BUG(other_order, 2, 0) {
    ncclComm_t first = w->part({0, 1}), second = w->part({0, 1});
    float *to = zeros(16), *from = zeros(16);
    if (w->rank == 0) { usleep(50000); } // so rank 1 is the first to look for a cycle, and rank 0 reports it
    for (int turn = 0; turn < 2; turn++) {
        if ((turn == 0) == (!w->bug || w->rank == 0)) {
            ncclAllGather(from, to, 8, ncclFloat32, first, w->stream); // @A
        } else {
            ncclReduceScatter(from, to, 8, ncclFloat32, ncclSum, second, w->stream); // @B
        }
    }
    ncclCommDestroy(first), ncclCommDestroy(second);
}

//! emu: 3 ranks wait for each other, at @A
//!   rank 0 (pid %p): ncclAllReduce of 1 float32, at @A, as rank 0 of communicator 2, made at @M
//!   rank 1 (pid %p): ncclAllReduce of 1 float32, at @A, as rank 0 of communicator 3, made at @M
//!   rank 2 (pid %p): ncclAllReduce of 1 float32, at @A, as rank 0 of communicator 4, made at @M
BUG(cycle, 3, 0) {
    ncclComm_t comms[3] = {w->part({0, 1}), w->part({1, 2}), w->part({2, 0})};
    const bool reversed = w->bug && w->rank > 0;
    for (int turn = 0; turn < 3; turn++) {
        ncclComm_t comm = comms[reversed ? 2 - turn : turn];
        float *data = zeros(1);
        if (comm) { ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, comm, w->stream); } // @A
    }
    for (ncclComm_t comm : comms) {
        if (comm) { ncclCommDestroy(comm); }
    }
}

//! emu: 2 ranks wait for each other, at @C
//!   rank 0 (pid %p): ncclSend of 8 float32 to rank 1, at @C, as rank 0 of communicator 1, made at @I
//!   rank 1 (pid %p): ncclSend of 8 float32 to rank 0, at @C, as rank 1 of communicator 1, made at @I
BUG(sends_without_group, 2, 0) {
    float *receive = zeros(8);
    if (!w->bug) { ncclGroupStart(); }
    ncclSend(w->data, 8, ncclFloat32, 1 - w->rank, w->comm, w->stream); // @C
    ncclRecv(receive, 8, ncclFloat32, 1 - w->rank, w->comm, w->stream);
    if (!w->bug) { ncclGroupEnd(); }
}

//! emu: a rank waits for itself, at @C
//!   rank 0 (pid %p): ncclSend of 8 float32 to rank 0, at @C, as rank 0 of communicator 1, made at @I
BUG(sends_to_itself, 1, 0) {
    float *receive = zeros(8);
    if (!w->bug) { ncclGroupStart(); }
    ncclSend(w->data, 8, ncclFloat32, 0, w->comm, w->stream); // @C
    ncclRecv(receive, 8, ncclFloat32, 0, w->comm, w->stream);
    if (!w->bug) { ncclGroupEnd(); }
}

//! emu: 2 ranks wait for each other, at @C
//!   rank 0 (pid %p): ncclRecv of 8 float32 from rank 1, at @C, as rank 0 of communicator 1, made at @I
//!   rank 1 (pid %p): ncclCommDestroy, at @D, as rank 1 of communicator 1, made at @I
BUG_ALONE(peer_left_early, 0, 1) {
    w->begin();
    if (w->rank == 1 && !w->bug) { ncclSend(w->data, 8, ncclFloat32, 0, w->comm, w->stream); }
    if (w->rank == 0) {
        ncclRecv(w->data, 8, ncclFloat32, 1, w->comm, w->stream); // @C
    }
    ncclCommDestroy(w->comm); // @D
}

//! emu: a receive differs from the send of its peer, at @R
//!   rank 1 calls ncclRecv of 4 float32 from rank 0, at @R
//!   rank 0 calls ncclSend of 8 float32 to rank 1, at @C
BUG(other_count_received, 2, 1) {
    if (w->rank == 0) {
        ncclSend(w->data, 8, ncclFloat32, 1, w->comm, w->stream); // @C
    } else {
        ncclRecv(w->data, w->bug ? 4 : 8, ncclFloat32, 0, w->comm, w->stream); // @R
    }
}

//! emu: a receive differs from the send of its peer, at @R
//!   rank 0 calls ncclRecv of 8 uint32 from rank 1, at @R
//!   rank 1 calls ncclSend of 8 float32 to rank 0, at @C
BUG(other_type_received, 2, 0) {
    if (w->rank == 1) {
        ncclSend(w->data, 8, ncclFloat32, 0, w->comm, w->stream); // @C
    } else {
        ncclRecv(w->data, 8, w->bug ? ncclUint32 : ncclFloat32, 1, w->comm, w->stream); // @R
    }
}

//! emu: the buffer of ncclRecv overlaps the buffer of ncclSend in one group, at @R
//!   at @C
BUG(received_over_sent, 2, 1) {
    float *receive = zeros(8);
    ncclGroupStart();
    ncclSend(w->data, 8, ncclFloat32, 1 - w->rank, w->comm, w->stream);                                        // @C
    ncclRecv(w->bug && w->rank == 1 ? w->data + 4 : receive, 8, ncclFloat32, 1 - w->rank, w->comm, w->stream); // @R
    ncclGroupEnd();
}

//! emu: collective 1 of the communicator differs, at @B
//!   rank 1 calls ncclAllReduce of 8 float32, at @B
//!   rank 0 calls ncclAllGather of 8 float32, at @A
BUG(other_operation, 2, 1) {
    if (w->rank == 0 || !w->bug) {
        ncclAllGather(w->data + 8 * w->rank, w->data, 8, ncclFloat32, w->comm, w->stream); // @A
    } else {
        ncclAllReduce(w->data, w->data, 8, ncclFloat32, ncclSum, w->comm, w->stream); // @B
    }
}

//! emu: collective 2 of the communicator differs, at @C
//!   rank 1 calls ncclReduceScatter of 4 float32, at @C
//!   rank 0 calls ncclReduceScatter of 8 float32, at @C
BUG(other_count, 2, 1) {
    size_t n = w->bug && w->rank == 1 ? 4 : 8;
    ncclReduceScatter(w->data, w->data + 4 * w->rank, 4, ncclFloat32, ncclSum, w->comm, w->stream);
    ncclReduceScatter(w->data, w->data + n * w->rank, n, ncclFloat32, ncclSum, w->comm, w->stream); // @C
}

//! emu: collective 1 of the communicator differs, at @C
//!   rank 2 calls ncclAllReduce of 8 bfloat16, at @C
//!   rank 0 calls ncclAllReduce of 8 float32, at @C
BUG(other_type, 3, 2) {
    ncclDataType_t type = w->bug && w->rank == 2 ? ncclBfloat16 : ncclFloat32;
    ncclAllReduce(w->data, w->data, 8, type, ncclSum, w->comm, w->stream); // @C
}

//! emu: collective 1 of the communicator differs, at @C
//!   rank 1 calls ncclBroadcast of 8 float32 from rank 1, at @C
//!   rank 0 calls ncclBroadcast of 8 float32 from rank 0, at @C
BUG(other_root, 2, 1) {
    ncclBroadcast(w->data, w->data, 8, ncclFloat32, w->bug ? w->rank : 0, w->comm, w->stream); // @C
}

//! emu: collective 1 of the communicator differs, at @D
//!   rank 1 calls ncclCommDestroy, at @D
//!   rank 0 calls ncclAllReduce of 8 float32, at @W
BUG_ALONE(left_early, 1, 1) {
    w->begin();
    if (w->rank == 0 || !w->bug) {
        ncclAllReduce(w->data, w->data, 8, ncclFloat32, ncclSum, w->comm, w->stream); // @W
    }
    ncclCommDestroy(w->comm); // @D
}

//! emu: out of bounds: write of 64 bytes by ncclAllGather in device memory, at @C
//!   0 bytes into the allocation of 32 bytes at %x
BUG(small_buffer, 2, 1) {
    float *send = zeros(8), *receive = zeros(w->bug && w->rank == 1 ? 8 : 16);
    ncclAllGather(send, receive, 8, ncclFloat32, w->comm, w->stream); // @C
}

//! emu: uninitialised memory: read of 64 bytes by ncclReduceScatter in device memory, at @C
//!   32 bytes into the allocation of 64 bytes at %x
BUG(unwritten_buffer, 2, 0) {
    float *send, *receive = zeros(8);
    cudaMalloc(&send, 64);
    cudaMemsetAsync(send, 0, w->bug && w->rank == 0 ? 32 : 64, w->stream);
    ncclReduceScatter(send, receive, 8, ncclFloat32, ncclSum, w->comm, w->stream); // @C
}

//! emu: ncclAllGather: recvbuff overlaps sendbuff, and not as in place, at @C
//!   recvbuff lies 0 bytes behind sendbuff, and in place on rank 1 of 2 it lies -32 bytes behind
BUG(gathered_in_wrong_place, 2, 1) {
    ncclAllGather(w->data + (w->bug ? 0 : 8 * w->rank), w->data, 8, ncclFloat32, w->comm, w->stream); // @C
}

//! emu: unsynchronised use across streams: read of 32 bytes by ncclAllReduce in device memory, at @C
//!   kernel add_to in stream 2, called at @K, wrote it (at @S), and nothing orders it before ncclAllReduce
//!   0 bytes into the allocation of 32 bytes at %x
__global__ void add_to(float *data) { data[threadIdx.x] += 1.0f; } // @S
BUG(sent_before_written, 2, 1) {
    float *data = zeros(8);
    add_to<<<1, 8, 0, w->kernels>>>(data); // @K
    if (!w->bug || w->rank == 0) { cudaStreamSynchronize(w->kernels); }
    ncclAllReduce(data, data, 8, ncclFloat32, ncclSum, w->comm, w->stream); // @C
}

//! emu: unsynchronised use across streams: read of 4 bytes in device memory in kernel plus_one[0,0] at @R
//!   the call of ncclAllGather in stream 1, called at @C, wrote it, and nothing orders it before this kernel
//!   0 bytes into the allocation of 64 bytes at %x
__global__ void plus_one(float *out, const float *in) { out[threadIdx.x] = in[threadIdx.x] + 1.0f; } // @R
BUG(used_before_received, 2, 1) {
    cudaEvent_t gathered;
    cudaEventCreateWithFlags(&gathered, cudaEventDisableTiming);
    float *out = zeros(16);
    ncclAllGather(w->data + 8 * w->rank, w->data, 8, ncclFloat32, w->comm, w->stream); // @C
    cudaEventRecord(gathered, w->stream);
    if (!w->bug || w->rank == 0) { cudaStreamWaitEvent(w->kernels, gathered); }
    plus_one<<<1, 16, 0, w->kernels>>>(out, w->data); // @L
}

//! emu: ncclAllReduce in a group: the emulator has groups of sends and receives of one communicator, at @C
BUG(collective_in_group, 2, 1) {
    if (w->bug && w->rank == 1) { ncclGroupStart(); }
    if (!w->bug || w->rank == 1) {
        ncclAllReduce(w->data, w->data, 8, ncclFloat32, ncclSum, w->comm, w->stream); // @C
    }
}

//! emu: ncclRecv in a group: the emulator has groups of sends and receives of one communicator, at @C
BUG(group_of_two_communicators, 2, 0) {
    ncclComm_t other = w->part({0, 1});
    float *receive = zeros(8);
    ncclGroupStart();
    ncclSend(w->data, 8, ncclFloat32, 1 - w->rank, other, w->stream);
    ncclRecv(receive, 8, ncclFloat32, 1 - w->rank, w->bug && w->rank == 0 ? w->comm : other, w->stream); // @C
    ncclGroupEnd();
    ncclCommDestroy(other);
}

//! emu: ncclAllReduce in another thread than the first call of NCCL: the emulator knows one, at @C
BUG(second_thread, 1, 0) {
    auto sum = [=] {
        cudaSetDevice(w->rank);
        ncclAllReduce(w->data, w->data, 8, ncclFloat32, ncclSum, w->comm, w->stream); // @C
    };
    if (w->bug) { std::thread(sum).join(); }
    sum();
}

//! emu: ncclAllReduce with a communicator that does not exist, or was destroyed, at @C
BUG(no_communicator, 2, 0) {
    ncclComm_t comm = w->bug && w->rank == 0 ? nullptr : w->comm;
    ncclAllReduce(w->data, w->data, 8, ncclFloat32, ncclSum, comm, w->stream); // @C
}

//! emu: ncclAllReduce with a communicator that does not exist, or was destroyed, at @C
BUG_ALONE(used_after_destroy, 1, 1) {
    w->begin();
    if (w->bug) { ncclCommDestroy(w->comm); }
    if (!w->bug || w->rank == 1) {
        ncclAllReduce(w->data, w->data, 8, ncclFloat32, ncclSum, w->comm, w->stream); // @C
    }
    if (!w->bug) { w->end(); }
}

static void join(World *w, int device, int ranks, int rank) {
    cudaSetDevice(device);
    ncclCommInitRank(&w->comm, ranks, w->shared_id(), rank); // @J
    if (!w->bug) { w->end(); }
}

//! emu: ncclCommInitRank of rank %n of %n on device 0, which rank %n uses, at @J
//!   rank %n (pid %p) called it at @J
BUG_ALONE(one_device_for_two, ANY, 1) { join(w, w->bug ? 0 : w->rank, 2, w->rank); }

//! emu: ncclCommInitRank of rank %n of %n, and there is such a rank already, at @J
//!   rank %n (pid %p) called it at @J
BUG_ALONE(one_rank_twice, ANY, 1) { join(w, w->rank, 2, w->bug ? 0 : w->rank); }

//! emu: ncclCommInitRank of rank %n of %n, and another rank says %n ranks, at @J
//!   rank %n (pid %p) called it at @J
BUG_ALONE(other_number_of_ranks, ANY, 1) { join(w, w->rank, w->bug ? 3 - w->rank : 2, w->rank); }

//! emu: EMU_NCCL_FAULT="x@0:1": expected die, hang, delay or corrupt, with @rank:n[:seconds], at an unknown line
BUG_ALONE(wrong_fault, 1, 1) {
    if (w->rank == 1) { setenv("EMU_NCCL_FAULT", w->bug ? "x@0:1" : "die@0:1000", 1); }
    w->begin();
    w->sum(w->data, 8);
    w->end();
}

// ---- Running them ----

static std::vector<std::string> words_of(const char *name, const World &w) {
    std::vector<std::string> words = {name};
    for (int number : {w.ranks, w.rank, w.victim, int(w.bug)}) { words.push_back(std::to_string(number)); }
    for (int i = 0; i < 2 * w.ranks; i++) { words.push_back(std::to_string(w.pipe[i / 2][i % 2])); }
    return words;
}

static int run_rank(const RankTest &test, char **words) {
    World w = {};
    w.ranks = atoi(words[0]), w.rank = my_rank = atoi(words[1]), w.victim = atoi(words[2]), w.bug = atoi(words[3]);
    for (int i = 0; i < 2 * w.ranks; i++) { w.pipe[i / 2][i % 2] = atoi(words[4 + i]); }
    alarm(60); // rather than hang
    if (!test.begins_alone) { w.begin(); }
    test.function(&w);
    if (!test.begins_alone) { w.end(); }
    return 0;
}

// Runs all ranks to their end.
static std::vector<Result> run_ranks(const char *name, int ranks, int victim, bool bug) {
    World w = {};
    std::vector<Child> children;
    std::vector<Result> results;
    w.ranks = ranks, w.victim = victim, w.bug = bug;
    for (int r = 0; r < ranks; r++) {
        if (pipe(w.pipe[r]) != 0) { exit(2); }
    }
    for (w.rank = 0; w.rank < ranks; w.rank++) { children.push_back(start_child(words_of(name, w))); }
    for (int r = 0; r < ranks; r++) { close(w.pipe[r][0]), close(w.pipe[r][1]); }
    for (const Child &child : children) { results.push_back(wait_for_child(child)); }
    return results;
}

// The victim ends with the status of the test, the other ranks with 0, and all in silence.
static void check_silence(Test *t, const RankTest &test, int ranks, int victim) {
    std::vector<Result> results = run_ranks(test.test.name, ranks, victim, false);
    for (int r = 0; r < ranks; r++) {
        const int want = r == victim ? test.status : 0;
        CHECK(t, results[r].status == want && results[r].text.empty(), "rank %d of %d, victim %d: status %d\n%s", r,
              ranks, victim, results[r].status, results[r].text.c_str());
    }
}

static void test_case(Test *t) {
    const RankTest &test = *static_cast<const RankTest *>(t->data);
    for (int ranks = test.min_ranks; ranks <= test.max_ranks; ranks++) {
        if (test.status == NO_VICTIM) { check_silence(t, test, ranks, -1); }
        for (int victim = 0; victim < ranks && test.status != NO_VICTIM; victim++) {
            check_silence(t, test, ranks, victim);
        }
    }
}

// Processes are %p. Where any rank may report: which one it is, and what it asks for, is %n.
static std::string report_of(const Result &result, bool any_rank) {
    std::string text = comparable(result.text);
    replace_each(&text, "(pid ", "(pid %p", ")");
    for (const std::string word : {"rank ", "rank %n of ", "says "}) {
        for (char digit = '0'; digit <= '9' && any_rank; digit++) { replace_each(&text, word + digit, word + "%n"); }
    }
    return text;
}

static std::map<std::string, std::string> expectations;

static void check_report(Test *t, const RankTest &bug) {
    std::vector<Result> results = run_ranks(bug.test.name, bug.max_ranks, -1, true);
    int reports = 0;
    for (int rank = 0; rank < bug.max_ranks; rank++) {
        const std::string got = report_of(results[rank], bug.reporter == ANY);
        const bool reports_it = bug.reporter == ANY ? !got.empty() : rank == bug.reporter;
        const std::string want = reports_it ? expectations[bug.test.name] : "";
        const int status = reports_it ? bug.status : 0;
        CHECK(t, results[rank].status == status, "rank %d: status %d, not %d", rank, results[rank].status, status);
        CHECK(t, got == want, "rank %d reports\n%s\n  expected\n%s", rank, got.c_str(), want.c_str());
        reports += reports_it;
    }
    CHECK(t, reports >= 1, "no rank reports anything");
}

// Without the emulator's checks (EMU_CHECK=0) nothing reports a bug.
static void test_bug(Test *t) {
    const RankTest &bug = *static_cast<const RankTest *>(t->data);
    static const bool is_checked = getenv("EMU_CHECK") == nullptr || strcmp(getenv("EMU_CHECK"), "0") != 0;
    if (is_checked) { check_report(t, bug); }
    check_silence(t, bug, bug.max_ranks, -1);
}

int main(int argc, char **argv) {
    for (const TestCase *test = tests; test != nullptr && argc > 6; test = test->next) {
        if (strcmp(test->name, argv[1]) != 0) { continue; }
        return run_rank(*static_cast<const RankTest *>(test->data), argv + 2);
    }
    setenv("EMU_THREADS", "1", 1);
    expectations = read_expectations(__FILE__);
    return test_main(argc, argv);
}
