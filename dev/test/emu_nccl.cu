// The emulated NCCL: what it must do as NCCL does, between real processes. Each test runs a function of this file in
// several processes of this program, `emu_nccl --rank NAME RANKS RANK PIPE..`, one for each rank; a rank has failed if
// it prints anything or ends with another status than the test expects.
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nccl.h>
#include <arpa/inet.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "test.h"

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

struct World {
    int ranks, rank;
    int pipe[MAX_RANKS][2]; // from rank 0 to each other rank
    cudaStream_t stream;
    ncclComm_t comm;

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
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        NCCL(ncclCommInitRank(&comm, ranks, shared_id(), rank));
    }
    void end() {
        cudaStreamSynchronize(stream);
        NCCL(ncclCommDestroy(comm));
    }
};

template <class T> struct Buffer {
    T *data = nullptr;
    size_t n;
    explicit Buffer(size_t n) : n(n) { cudaMalloc(&data, n * sizeof(T)); }
    explicit Buffer(const std::vector<T> &values) : Buffer(values.size()) {
        cudaMemcpy(data, values.data(), n * sizeof(T), cudaMemcpyHostToDevice);
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

// Values that differ from rank to rank, small enough to be exact in every type, also as products of four.
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

template <class T> static T combined(ncclRedOp_t reduction, T a, T b) {
    float x = float(a), y = float(b);
    return T(reduction == ncclProd  ? x * y
             : reduction == ncclMax ? fmaxf(x, y)
             : reduction == ncclMin ? fminf(x, y)
                                    : x + y);
}
template <class T> static std::vector<T> reduced(ncclRedOp_t reduction, int ranks, size_t n) {
    std::vector<T> all = values_of<T>(0, n);
    for (int r = 1; r < ranks; r++) {
        std::vector<T> next = values_of<T>(r, n);
        for (size_t i = 0; i < n; i++) { all[i] = combined(reduction, all[i], next[i]); }
    }
    for (size_t i = 0; i < n && reduction == ncclAvg; i++) {
        bool integer = T(1.5f) == T(1.0f);
        all[i] = T(integer ? float(int(float(all[i])) / ranks) : float(all[i]) / float(ranks));
    }
    return all;
}

// ---- The collectives: every type and reduction, out of place and in place ----

template <class T> static void check_all_reduce(World *w, ncclDataType_t type) {
    for (int r = 0; r < ncclNumOps; r++) {
        const ncclRedOp_t reduction = ncclRedOp_t(r);
        const size_t n = 37;
        Buffer<T> send(values_of<T>(w->rank, n)), receive(n);
        NCCL(ncclAllReduce(send.data, receive.data, n, type, reduction, w->comm, w->stream));
        NCCL(ncclAllReduce(send.data, send.data, n, type, reduction, w->comm, w->stream));
        expect_same(receive.host(), reduced<T>(reduction, w->ranks, n), "all-reduce");
        expect_same(send.host(), reduced<T>(reduction, w->ranks, n), "all-reduce in place");
    }
}
static void rank_all_reduce(World *w) {
    w->begin();
    check_all_reduce<signed char>(w, ncclInt8);
    check_all_reduce<unsigned char>(w, ncclUint8);
    check_all_reduce<int>(w, ncclInt32);
    check_all_reduce<unsigned>(w, ncclUint32);
    check_all_reduce<long long>(w, ncclInt64);
    check_all_reduce<unsigned long long>(w, ncclUint64);
    check_all_reduce<__half>(w, ncclFloat16);
    check_all_reduce<float>(w, ncclFloat32);
    check_all_reduce<double>(w, ncclFloat64);
    check_all_reduce<__nv_bfloat16>(w, ncclBfloat16);
    w->end();
}

template <class T> static void check_reduce_scatter(World *w, ncclDataType_t type, size_t share) {
    const size_t n = share * size_t(w->ranks), own = share * size_t(w->rank);
    std::vector<T> values = values_of<T>(w->rank, n), all = reduced<T>(ncclSum, w->ranks, n);
    Buffer<T> send(values), receive(share);
    NCCL(ncclReduceScatter(send.data, receive.data, share, type, ncclSum, w->comm, w->stream));
    std::vector<T> want(all.begin() + ptrdiff_t(own), all.begin() + ptrdiff_t(own + share));
    expect_same(receive.host(), want, "reduce-scatter");
    expect_same(send.host(), values, "reduce-scatter: what was sent");
    NCCL(ncclReduceScatter(send.data, send.data + own, share, type, ncclSum, w->comm, w->stream));
    for (size_t i = 0; i < share; i++) { values[own + i] = all[own + i]; }
    expect_same(send.host(), values, "reduce-scatter in place");
}
static void rank_reduce_scatter(World *w) {
    w->begin();
    check_reduce_scatter<float>(w, ncclFloat32, 64);
    check_reduce_scatter<float>(w, ncclFloat32, 1);
    check_reduce_scatter<__nv_bfloat16>(w, ncclBfloat16, 33);
    w->end();
}

template <class T> static void check_all_gather(World *w, ncclDataType_t type, size_t share) {
    const size_t n = share * size_t(w->ranks), own = share * size_t(w->rank);
    std::vector<T> want;
    for (int r = 0; r < w->ranks; r++) {
        for (T x : values_of<T>(r, share)) { want.push_back(x); }
    }
    Buffer<T> send(values_of<T>(w->rank, share)), receive(n), in_place(n);
    NCCL(ncclAllGather(send.data, receive.data, share, type, w->comm, w->stream));
    expect_same(receive.host(), want, "all-gather");
    cudaMemcpy(in_place.data + own, send.data, share * sizeof(T), cudaMemcpyDeviceToDevice);
    cudaDeviceSynchronize();
    NCCL(ncclAllGather(in_place.data + own, in_place.data, share, type, w->comm, w->stream));
    expect_same(in_place.host(), want, "all-gather in place");
}
static void rank_all_gather(World *w) {
    w->begin();
    check_all_gather<float>(w, ncclFloat32, 50);
    check_all_gather<__nv_bfloat16>(w, ncclBfloat16, 64);
    check_all_gather<unsigned char>(w, ncclUint8, 13);
    check_all_gather<double>(w, ncclFloat64, 1);
    w->end();
}

static void rank_rooted(World *w) {
    w->begin();
    for (int root = 0; root < w->ranks; root++) {
        Buffer<float> send(values_of<float>(w->rank, 9)), receive(9);
        const bool is_root = w->rank == root;
        NCCL(ncclBroadcast(is_root ? send.data : nullptr, receive.data, 9, ncclFloat32, root, w->comm, w->stream));
        expect_same(receive.host(), values_of<float>(root, 9), "broadcast");
        NCCL(
            ncclReduce(send.data, is_root ? receive.data : nullptr, 9, ncclFloat32, ncclSum, root, w->comm, w->stream));
        expect_same(receive.host(), is_root ? reduced<float>(ncclSum, w->ranks, 9) : values_of<float>(root, 9),
                    "reduce");
        NCCL(ncclBroadcast(send.data, send.data, 9, ncclFloat32, root, w->comm, w->stream));
        expect_same(send.host(), values_of<float>(root, 9), "broadcast in place");
        NCCL(ncclReduce(send.data, send.data, 9, ncclFloat32, ncclMax, root, w->comm, w->stream));
        expect_same(send.host(), values_of<float>(root, 9), "reduce in place");
    }
    w->end();
}

// The sum is ((x0 + x1) + x2) + x3, whatever arrives first.
static void rank_order_of_sums(World *w) {
    w->begin();
    const float parts[MAX_RANKS] = {1.0f, 1e8f, -1e8f, 0.25f};
    float want = parts[0];
    for (int r = 1; r < w->ranks; r++) { want += parts[r]; }
    for (int round = 0; round < 5; round++) {
        if (round % w->ranks == w->rank) { usleep(2000); }
        Buffer<float> data(std::vector<float>(1, parts[w->rank]));
        NCCL(ncclAllReduce(data.data, data.data, 1, ncclFloat32, ncclSum, w->comm, w->stream));
        expect_same(data.host(), {want}, "sum");
    }
    w->end();
}

// More than the buffers of a socket hold.
static void rank_large(World *w) {
    w->begin();
    const size_t share = 3 << 17, n = share * size_t(w->ranks);
    Buffer<float> data(std::vector<float>(n, float(w->rank + 1)));
    NCCL(ncclReduceScatter(data.data, data.data + share * size_t(w->rank), share, ncclFloat32, ncclSum, w->comm,
                           w->stream));
    NCCL(ncclAllGather(data.data + share * size_t(w->rank), data.data, share, ncclFloat32, w->comm, w->stream));
    expect_same(data.host(), std::vector<float>(n, float(w->ranks * (w->ranks + 1) / 2)), "large");
    w->end();
}

static void rank_empty(World *w) {
    w->begin();
    Buffer<float> data(std::vector<float>(4, 1.0f));
    NCCL(ncclAllGather(data.data, data.data, 0, ncclFloat32, w->comm, w->stream));
    NCCL(ncclAllReduce(data.data, data.data, 0, ncclFloat32, ncclSum, w->comm, w->stream));
    NCCL(ncclBroadcast(nullptr, nullptr, 0, ncclFloat32, 0, w->comm, w->stream));
    expect_same(data.host(), std::vector<float>(4, 1.0f), "nothing");
    w->end();
}

// ---- Groups, streams, several communicators ----

__global__ void add_one(float *data) { data[threadIdx.x] += 1.0f; }

static void rank_group(World *w) {
    w->begin();
    Buffer<float> a(values_of<float>(w->rank, 8)), b(values_of<float>(w->rank, 8));
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(a.data, a.data, 8, ncclFloat32, ncclSum, w->comm, w->stream));
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(b.data, b.data, 8, ncclFloat32, ncclMax, w->comm, w->stream));
    NCCL(ncclGroupEnd());
    expect_same(b.host(), values_of<float>(w->rank, 8), "nothing is done before the end of the outer group");
    NCCL(ncclGroupEnd());
    expect_same(a.host(), reduced<float>(ncclSum, w->ranks, 8), "the first of the group");
    expect_same(b.host(), reduced<float>(ncclMax, w->ranks, 8), "the second of the group");
    EXPECT(ncclGroupEnd() == ncclInvalidUsage, "a group that has not begun");
    w->end();
}

// As the trainer does it: kernels in one stream, collectives in another, events in between.
static void rank_streams(World *w) {
    cudaEvent_t ready, reduced_event;
    w->begin();
    cudaStream_t kernels;
    cudaStreamCreateWithFlags(&kernels, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&reduced_event, cudaEventDisableTiming);
    Buffer<float> data(std::vector<float>(64, 0.0f));
    float want = 0.0f;
    for (int step = 0; step < 10; step++) {
        add_one<<<1, 64, 0, kernels>>>(data.data);
        cudaEventRecord(ready, kernels);
        cudaStreamWaitEvent(w->stream, ready);
        NCCL(ncclAllReduce(data.data, data.data, 64, ncclFloat32, ncclSum, w->comm, w->stream));
        cudaEventRecord(reduced_event, w->stream);
        cudaStreamWaitEvent(kernels, reduced_event);
        want = (want + 1.0f) * float(w->ranks);
    }
    expect_same(data.host(), std::vector<float>(64, want), "ten steps");
    w->end();
}

static void rank_several(World *w) {
    w->begin();
    ncclComm_t second = nullptr;
    NCCL(ncclCommInitRank(&second, w->ranks, w->shared_id(), w->rank));
    Buffer<float> a(values_of<float>(w->rank, 8)), b(values_of<float>(w->rank, 8));
    NCCL(ncclAllReduce(a.data, a.data, 8, ncclFloat32, ncclSum, second, w->stream));
    NCCL(ncclAllReduce(b.data, b.data, 8, ncclFloat32, ncclMax, w->comm, w->stream));
    expect_same(a.host(), reduced<float>(ncclSum, w->ranks, 8), "the second communicator");
    expect_same(b.host(), reduced<float>(ncclMax, w->ranks, 8), "the first communicator");
    NCCL(ncclCommFinalize(second));
    NCCL(ncclCommDestroy(second));
    w->end();
    w->begin(); // a third, when all others are gone
    w->end();
}

static void rank_questions(World *w) {
    int version = 0, count = 0, rank = -1, device = -1;
    ncclResult_t error = ncclNumResults;
    w->begin();
    NCCL(ncclGetVersion(&version));
    NCCL(ncclCommCount(w->comm, &count));
    NCCL(ncclCommUserRank(w->comm, &rank));
    NCCL(ncclCommCuDevice(w->comm, &device));
    NCCL(ncclCommGetAsyncError(w->comm, &error));
    EXPECT(version == NCCL_VERSION_CODE && count == w->ranks && rank == w->rank && device == w->rank, "%d", version);
    EXPECT(error == ncclSuccess, "%d", error);
    EXPECT(strcmp(ncclGetErrorString(ncclRemoteError), ncclGetErrorString(ncclSuccess)) != 0, "texts");
    w->end();
}

static void rank_config(World *w) {
    cudaSetDevice(w->rank);
    cudaStreamCreate(&w->stream);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER, wrong = {};
    ncclUniqueId id = w->shared_id(), nonsense = {};
    config.blocking = 1;
    EXPECT(ncclCommInitRankConfig(&w->comm, w->ranks, id, w->rank, &wrong) == ncclInvalidArgument, "no initializer");
    EXPECT(ncclCommInitRank(&w->comm, w->ranks, id, w->ranks) == ncclInvalidArgument, "rank too large");
    EXPECT(ncclCommInitRank(&w->comm, w->ranks, nonsense, w->rank) == ncclInvalidArgument, "no id");
    NCCL(ncclCommInitRankConfig(&w->comm, w->ranks, id, w->rank, &config));
    EXPECT(ncclAllReduce(nullptr, nullptr, 1, ncclNumTypes, ncclSum, w->comm, w->stream) == ncclInvalidArgument,
           "type");
    EXPECT(ncclBroadcast(nullptr, nullptr, 1, ncclInt8, w->ranks, w->comm, w->stream) == ncclInvalidArgument, "root");
    w->end();
}

// ---- The tests, and the processes ----

struct Case {
    const char *name;
    void (*function)(World *w);
    int min_ranks, max_ranks;
};
#define CASE(name, min_ranks, max_ranks)                                                                               \
    { #name, rank_##name, min_ranks, max_ranks }
static const Case CASES[] = {
    CASE(all_reduce, 1, 3),    CASE(reduce_scatter, 1, 4), CASE(all_gather, 1, 4), CASE(rooted, 1, 3),
    CASE(order_of_sums, 2, 4), CASE(large, 2, 3),          CASE(empty, 2, 2),      CASE(group, 2, 3),
    CASE(streams, 1, 3),       CASE(several, 2, 3),        CASE(questions, 1, 2),  CASE(config, 2, 2),
};

struct Result {
    int status; // exit status, or 128 + the signal
    std::string text;
};

// Runs all ranks of a case to their end.
static std::vector<Result> run_ranks(const Case &test, int ranks) {
    int pipes[MAX_RANKS][2], output[MAX_RANKS];
    pid_t children[MAX_RANKS];
    std::vector<Result> results;
    for (int r = 0; r < ranks; r++) {
        output[r] = memfd_create("output", MFD_CLOEXEC);
        if (pipe(pipes[r]) != 0 || output[r] < 0) { exit(2); }
    }
    fflush(stdout);
    for (int r = 0; r < ranks; r++) {
        children[r] = fork();
        if (children[r] != 0) { continue; }
        std::vector<std::string> words = {"emu_nccl", "--rank", test.name, std::to_string(ranks), std::to_string(r)};
        for (int i = 0; i < ranks; i++) {
            for (int end : pipes[i]) { words.push_back(std::to_string(end)); }
        }
        std::vector<char *> arguments;
        for (std::string &word : words) { arguments.push_back(&word[0]); }
        arguments.push_back(nullptr);
        dup2(output[r], 1), dup2(output[r], 2);
        execv("/proc/self/exe", arguments.data());
        _exit(127);
    }
    for (int r = 0; r < ranks; r++) { close(pipes[r][0]), close(pipes[r][1]); }
    for (int r = 0; r < ranks; r++) {
        int status;
        char buffer[4096];
        Result result;
        waitpid(children[r], &status, 0);
        result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        lseek(output[r], 0, SEEK_SET);
        for (ssize_t n; (n = read(output[r], buffer, sizeof(buffer))) > 0;) { result.text.append(buffer, size_t(n)); }
        close(output[r]);
        results.push_back(result);
    }
    return results;
}

static const Case *current;
static void test_case(Test *t) {
    for (int ranks = current->min_ranks; ranks <= current->max_ranks; ranks++) {
        for (const Result &result : run_ranks(*current, ranks)) {
            CHECK(t, result.status == 0 && result.text.empty(), "%d ranks: status %d\n%s", ranks, result.status,
                  result.text.c_str());
        }
    }
}

static int run_rank(const Case &test, char **arguments) {
    World w = {};
    w.ranks = atoi(arguments[0]), w.rank = my_rank = atoi(arguments[1]);
    for (int i = 0; i < 2 * w.ranks; i++) { w.pipe[i / 2][i % 2] = atoi(arguments[2 + i]); }
    test.function(&w);
    return 0;
}

int main(int argc, char **argv) {
    for (const Case &test : CASES) {
        if (argc > 4 && strcmp(argv[2], test.name) == 0) { return run_rank(test, argv + 3); }
    }
    setenv("EMU_THREADS", "1", 1);
    Suite s = suite_begin("emu_nccl");
    for (const Case &test : CASES) {
        if (argc > 1 && strcmp(argv[1], test.name) != 0) { continue; }
        current = &test;
        suite_run(&s, test.name, test_case);
    }
    return suite_end(&s);
}
