// The ladder of the all-reduce: R ranks, each with a gradient of n numbers (fp32), and afterwards each with the sum of
// all gradients. The program starts its ranks itself: R processes, one for each GPU.
//
// Where all ranks share the work, each sends at least 2 (R-1)/R n numbers: its own numbers, but for the part that it
// sums itself, and then the sum of that part to R-1 ranks. The columns of the table:
//   steps        messages that wait for each other
//   sent         by the rank that sends most
//   in turn      what the busiest link carries in each step, in its busier direction, summed over the steps
//   over needed  `in turn` over 2 (R-1)/R n
//   bound        `in turn` at the rate of an H100's links; on GPUs the measured time stands here
//
//   ladder_allreduce            all versions
//   ladder_allreduce --ends     only the first and the last version
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "dev/cuda/ladder.cuh"
#include "llmc/ranks/nccl.h"

#define RANKS 4 // at most
#define MAX_STEPS 16
#define LIMIT_SECONDS 300
#define BLOCK 256

#ifdef USE_NCCL

// ---- The ranks ----

struct Step { // bytes that a rank sends and receives at a time
    double sent, received;
};

// Memory that all ranks see. Each rank writes its own places.
struct Board {
    pthread_barrier_t barrier;
    ncclUniqueId id;
    uint64_t hash[RANKS]; // of the result
    Step step[RANKS][MAX_STEPS];
};

struct Rank {
    Board *board;
    int rank, ranks;
    int64_t n, part; // R parts, each a multiple of 4
    Group group;
    Comm comm; // without a watch: the barrier and SIGCHLD stand for it
    std::vector<float> want;
    double sizes; // the largest sum of the ranks' |gradient|
    DeviceArray<float> grads, other;

    Rank(Board *shared, int rank, int ranks);
    int next() const { return (rank + 1) % ranks; }
    int previous() const { return (rank + ranks - 1) % ranks; }
    Step *steps() { return board->step[rank]; }
};

static std::vector<float> gradient_of(int rank, int64_t n) { return random_values(n, 0.1f, 1 + rank); }

Rank::Rank(Board *shared, int me, int count)
    : board(shared), rank(me), ranks(count), n(ladder_size(49152, 1 << 26)), part(n / count / 4 * 4), group(), comm(),
      want((size_t)(part * count)), sizes(0.0), grads(part * count), other(part * count) {
    std::vector<float> size(want.size());
    n = part * ranks;
    for (int r = 0; r < ranks; r++) {
        std::vector<float> gradient = gradient_of(r, n);
        for (size_t i = 0; i < want.size(); i++) { want[i] += gradient[i], size[i] += fabsf(gradient[i]); }
    }
    sizes = largest(size);
    comm.rank = rank, comm.num_ranks = ranks;
    group.ranks = &comm, group.rank = rank, group.size = ranks;
    if (rank == 0) { nccl_check(&group, ncclGetUniqueId(&board->id)); }
    pthread_barrier_wait(&board->barrier);
    nccl_check(&group, ncclCommInitRank(&group.handle, ranks, board->id, rank));
}

// Each rank has its gradient, and NaN where a version receives.
static void clear(Rank &r) {
    r.grads.set(gradient_of(r.rank, r.n)), r.other.poison();
    memset(r.steps(), 0, sizeof(r.board->step[0]));
}

// Sums of R terms in any order. All ranks must have equal bits, or their weights drift apart.
static bool check(Rank &r, const char *name) {
    Test t = {0, NULL, NULL, ""};
    check_values(&t, format("%s, rank %d", name, r.rank), r.grads.get(), r.want, r.ranks * FLT_EPSILON * r.sizes, 0.0);
    r.board->hash[r.rank] = r.grads.hash();
    pthread_barrier_wait(&r.board->barrier);
    CHECK(&t, r.board->hash[r.rank] == r.board->hash[0], "%s: rank %d has other bits than rank 0", name, r.rank);
    return t.failures == 0;
}

// ---- What the versions are made of: each counts its bytes ----

static void send(Rank &r, int step, const float *data, int64_t count, int to) {
    nccl_check(&r.group, ncclSend(data, (size_t)count, ncclFloat32, to, r.group.handle, r.group.stream));
    r.steps()[step].sent += (double)count * sizeof(float);
}

static void receive(Rank &r, int step, float *data, int64_t count, int from) {
    nccl_check(&r.group, ncclRecv(data, (size_t)count, ncclFloat32, from, r.group.handle, r.group.stream));
    r.steps()[step].received += (double)count * sizeof(float);
}

// The library's collectives tell nobody what they send. This counts R-1 steps as a ring makes them, from step `first`.
static void count_ring(Rank &r, int first) {
    double bytes = (double)r.part * sizeof(float);
    for (int s = first; s < first + r.ranks - 1; s++) { r.steps()[s] = {bytes, bytes}; }
}

static __global__ void add_kernel(float *sum, const float *other, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { sum[i] += other[i]; }
}

static void add(Rank &r, float *sum, const float *other, int64_t n) {
    add_kernel<<<blocks_for(n, BLOCK), BLOCK, 0, r.group.stream>>>(sum, other, n);
}

// ---- The versions ----

// Version 1. Rank 0 receives the gradients one after another, adds them, and sends the sum to all ranks. It moves
// 2 (R-1) n numbers over its link, R times what a rank must, while the links of all other ranks are idle most of the
// time. With more ranks it takes longer, though each has no more to add.
static void all_reduce1(Rank &r) {
    if (r.rank > 0) {
        send(r, r.rank - 1, r.grads.data, r.n, 0);
        receive(r, r.ranks - 1, r.grads.data, r.n, 0);
        return;
    }
    for (int other = 1; other < r.ranks; other++) {
        receive(r, other - 1, r.other.data, r.n, other);
        add(r, r.grads.data, r.other.data, r.n);
    }
    nccl_check(&r.group, ncclGroupStart());
    for (int other = 1; other < r.ranks; other++) { send(r, r.ranks - 1, r.grads.data, r.n, other); }
    nccl_check(&r.group, ncclGroupEnd());
}

// One step around the ring: sends a part to the next rank, and receives another part from the rank before. All ranks
// send first, so without the group all would wait for ever.
static void ring_step(Rank &r, int step, int sent, float *received_data, int received) {
    nccl_check(&r.group, ncclGroupStart());
    send(r, step, r.grads.data + sent * r.part, r.part, r.next());
    receive(r, step, received_data + received * r.part, r.part, r.previous());
    nccl_check(&r.group, ncclGroupEnd());
}

// Version 2. A ring. The gradient is cut into R parts. Each part travels around the ring once and grows by a rank's
// numbers at each stop: after R-1 steps each rank has the whole sum of one part (reduce-scatter). Then each sum travels
// around once more (all-gather). In each step every link carries one part in each direction: no rank sends more than it
// must, whatever R is. The price is 2 (R-1) steps, each with its own latency. One rank makes the sum of a part, so all
// ranks have equal bits.
static void all_reduce2(Rank &r) {
    for (int s = 0; s < r.ranks - 1; s++) {
        int sent = (r.rank - s + r.ranks) % r.ranks, received = (sent + r.ranks - 1) % r.ranks;
        ring_step(r, s, sent, r.other.data, received);
        add(r, r.grads.data + received * r.part, r.other.data + received * r.part, r.part);
    }
    for (int s = 0; s < r.ranks - 1; s++) {
        int sent = (r.rank + 1 - s + r.ranks) % r.ranks, received = (sent + r.ranks - 1) % r.ranks;
        ring_step(r, r.ranks - 1 + s, sent, r.grads.data, received);
    }
}

// Version 3. The library's all-reduce: one call. It moves what the ring moves, but cuts the parts into pieces, so that
// a piece goes on while the next one arrives, and receives and adds in one kernel. For small n it takes trees, which
// have fewer steps. The order of its sums is its own choice.
static void all_reduce3(Rank &r) {
    nccl_check(&r.group, ncclAllReduce(r.grads.data, r.grads.data, (size_t)r.n, ncclFloat32, ncclSum, r.group.handle,
                                       r.group.stream));
    count_ring(r, 0);
    count_ring(r, r.ranks - 1);
}

// Version 4. The trainer's: the two halves of the ring as two collectives of the library. The bytes stay. The trainer
// can leave out or move the second half: ranks that shard the optimizer update only their part after the first half,
// and gather parameters, which have half the bytes in bf16. All stages of sharding add in one order, so their bits are
// equal.
static void all_reduce4(Rank &r) {
    float *own = r.grads.data + r.rank * r.part;
    group_reduce_scatter(&r.group, own, r.grads.data, r.part, NULL);
    count_ring(r, 0);
    group_all_gather(&r.group, r.grads.data, own, r.part * (int64_t)sizeof(float), NULL);
    count_ring(r, r.ranks - 1);
}

// ---- The table ----

struct Version {
    const char *name;
    void (*run)(Rank &);
};

static const Version versions[] = {{"rank 0 sums", all_reduce1},
                                   {"ring of sends", all_reduce2},
                                   {"ncclAllReduce", all_reduce3},
                                   {"llmc, in two halves", all_reduce4}};
#define NUM_VERSIONS (int)(sizeof(versions) / sizeof(versions[0]))

static double needed_bytes(const Rank &r) { return 2.0 * (r.ranks - 1) * (double)r.part * sizeof(float); }

static void table_head(const Rank &r) {
    printf("**all-reduce of %lld numbers, %d ranks.** Each must send %.3g MB.\n\n", (long long)r.n, r.ranks,
           1e-6 * needed_bytes(r));
    printf("| version                      | steps | sent MB | in turn MB | over needed | %s us | gain |\n",
           ladder_size(1, 0) == 1 ? "bound" : " time");
    printf("|------------------------------|-------|---------|------------|-------------|----------|------|\n");
}

// What a version has sent, see the columns of the table.
struct Traffic {
    int steps;
    double most_sent, in_turn; // bytes
};

static Traffic traffic_of(const Rank &r) {
    Traffic traffic = {0, 0.0, 0.0};
    double sent[RANKS] = {0.0};
    for (int s = 0; s < MAX_STEPS; s++) {
        double busiest = 0.0;
        for (int i = 0; i < r.ranks; i++) {
            const Step &step = r.board->step[i][s];
            sent[i] += step.sent;
            traffic.most_sent = fmax(traffic.most_sent, sent[i]);
            busiest = fmax(busiest, fmax(step.sent, step.received));
        }
        traffic.in_turn += busiest;
        traffic.steps += busiest > 0.0;
    }
    return traffic;
}

static double seconds_of(Rank &r, const Version &version, const Traffic &traffic) {
#ifdef GPT2_EMU
    (void)r, (void)version;
    return 1e-9 * traffic.in_turn / ladder_peak()->link_gigabytes_per_second;
#else
    (void)traffic;
    return ladder_measure([&] { version.run(r); });
#endif
}

// Returns the seconds. Rank 0 prints the row. A measurement counts bytes again, so all ranks read the counts before.
static double row(Rank &r, int number, const Version &version, double seconds_before) {
    Traffic traffic = traffic_of(r);
    pthread_barrier_wait(&r.board->barrier);
    double seconds = seconds_of(r, version, traffic);
    if (r.rank > 0) { return seconds; }
    printf("| %-28s | %5d |", format("%d %s", number, version.name), traffic.steps);
    ladder_cell(7, "%.3f", 1e-6 * traffic.most_sent, true);
    ladder_cell(10, "%.3f", 1e-6 * traffic.in_turn, true);
    ladder_cell(11, "%.2f", traffic.in_turn / needed_bytes(r), true);
    ladder_cell(8, "%.3f", 1e6 * seconds, true);
    ladder_cell(4, "%.2f", seconds_before / seconds, seconds_before > 0.0);
    printf("\n");
    fflush(stdout);
    return seconds;
}

// What each rank does. Returns its exit status.
static int rank_main(Board *board, int rank, int ranks, bool only_ends) {
    double seconds = 0.0;
    bool ok = true;
    alarm(LIMIT_SECONDS); // ranks that wait for each other would wait for ever
    cuda_check(cudaSetDevice(rank));
    Rank r(board, rank, ranks);
    if (rank == 0) { table_head(r); }
    for (int i = 0; i < NUM_VERSIONS; i++) {
        if (only_ends && i > 0 && i + 1 < NUM_VERSIONS) { continue; }
        clear(r);
        versions[i].run(r);
        cuda_check(cudaDeviceSynchronize());
        ok = check(r, versions[i].name) && ok;
        seconds = row(r, i + 1, versions[i], seconds);
    }
    if (rank == 0) { printf("\n"); }
    group_close(&r.group);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

// ---- Processes ----

// A process that has called CUDA cannot fork any more, so another process asks for the number of GPUs.
static int count_ranks(void) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        int devices = 0;
        bool ok = cudaGetDeviceCount(&devices) == cudaSuccess;
        _exit(ok ? std::min(devices, RANKS) : 0);
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

// Rank 0 ends when another rank has failed, and the system ends the other ranks when rank 0 has ended.
static void other_rank_ended(int) {
    static const char text[] = "ladder_allreduce: another rank has failed\n";
    int status;
    while (waitpid(-1, &status, WNOHANG) > 0) {
        if (status == 0) { continue; }
        ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
        _exit(written > 0 ? EXIT_FAILURE : 2);
    }
}

static Board *new_board(int ranks) {
    void *memory = mmap(NULL, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) { perror("mmap"), exit(EXIT_FAILURE); }
    Board *board = (Board *)memory;
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&board->barrier, &shared, (unsigned)ranks);
    return board;
}

// Starts ranks 1 .. R-1 and becomes rank 0.
static int run_ranks(int ranks, bool only_ends) {
    Board *board = new_board(ranks);
    signal(SIGCHLD, other_rank_ended);
    for (int rank = 1; rank < ranks; rank++) {
        pid_t pid = fork();
        if (pid < 0) { perror("fork"), exit(EXIT_FAILURE); }
        if (pid > 0) { continue; }
        signal(SIGCHLD, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        exit(rank_main(board, rank, ranks, only_ends));
    }
    int status = rank_main(board, 0, ranks, only_ends), other;
    signal(SIGCHLD, SIG_DFL);
    while (wait(&other) > 0) { status = other == 0 ? status : EXIT_FAILURE; }
    return status;
}

int main(int argc, char **argv) {
    bool only_ends = argc == 2 && strcmp(argv[1], "--ends") == 0;
    if (argc > 1 && !only_ends) {
        fprintf(stderr, "%s: unknown argument '%s', expected --ends or nothing\n", argv[0], argv[argc - 1]);
        return EXIT_FAILURE;
    }
    int ranks = count_ranks();
    if (ranks >= 2) { return run_ranks(ranks, only_ends); }
    printf("The ladder of the all-reduce needs several GPUs. Here: %d\n", ranks);
    return EXIT_SUCCESS;
}

#else

int main(void) {
    printf("The ladder of the all-reduce needs NCCL, and was built without it\n");
    return EXIT_SUCCESS;
}

#endif
