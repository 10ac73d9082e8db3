// Projects 2, 3, 4 and 6 of doc/projects.md: what their answers use, and their checks. Runs in the emulator, whose
// meter counts what the kernels move.
#include <sched.h>
#include <sys/mman.h>

#include <nccl.h>

#include "dev/exercises/metered.h"

// ---- What the answers use ----

enum { HEAD_SIZE = 32 };
// Of AdamW. Without so large an epsilon no parameter would show that the gradients were not divided.
static constexpr float LEARNING_RATE = 0.01f, BETA1 = 0.9f, BETA2 = 0.95f, ADAM_EPSILON = 0.1f;

typedef struct {
    float *param, *grad, *m, *v;
    int n, rank, ranks; // n is a multiple of ranks
    ncclComm_t comm;
    cudaStream_t stream;
} GpuRank;

#include ANSWERS

// The bytes of all sectors that a kernel loads or stores may be so many times the least bytes.
static void check_moved(Test *t, const emu::Meter &m, double needed, double most) {
    double moved = (double)bytes_of(m.loads) + bytes_of(m.stores);
    CHECK(t, moved <= most * needed, "the kernels move %.0f bytes, %.2f times the least; expected at most %.2f times",
          moved, moved / needed, most);
}

// ---- Project 2 ----

// Names an array with its shape, so that a reader finds the row and column of a number.
static std::string shaped(const char *name, std::initializer_list<int> shape) {
    std::string text = name;
    for (int size : shape) { text += (text == name ? " (" : ",") + std::to_string(size); }
    return text + ")";
}

// e^100 overflows and e^-110 is 0, so a row near 100 or -110 needs its own maximum, not 0. A sum of C numbers is off by
// C half epsilons at most, and expf by 2.
static void check_softmax(Test *t) {
    const int sizes[][2] = {{64, 1000}, {5, 72}, {3, 1024}};
    for (const int *size : sizes) {
        int N = size[0], C = size[1];
        std::vector<float> x = random_values((int64_t)N * C, 4.0f, 1), want(x.size());
        for (int n = 0; n < N; n++) {
            float *row = &x[(size_t)(n * C)], max = -INFINITY;
            double sum = 0.0;
            for (int c = 0; c < C; c++) { row[c] += n % 2 == 0 ? 100.0f : -110.0f; }
            for (int c = 0; c < C; c++) { max = fmaxf(max, row[c]); }
            for (int c = 0; c < C; c++) { sum += exp((double)row[c] - (double)max); }
            for (int c = 0; c < C; c++) {
                want[(size_t)(n * C + c)] = (float)(exp((double)row[c] - (double)max) / sum);
            }
        }
        DeviceArray<float> inp(x), out(N * C);
        emu::Meter m = metered([&] { softmax(out.data, inp.data, N, C); });
        // The difference to the maximum is rounded, too: by half an epsilon of up to 256.
        check_values(t, shaped("out", {N, C}), out.get(), want, FLT_MIN, 200.0 * FLT_EPSILON);
        if (size == sizes[0]) { check_moved(t, m, 8.0 * N * C, 1.0 / 0.7); }
    }
}

// ---- Project 3 ----

static void check_matmul(Test *t) {
    const int sizes[][3] = {{128, 128, 128}, {70, 33, 50}, {1, 1, 1}};
    for (const int *size : sizes) {
        int N = size[0], C = size[1], OC = size[2];
        std::vector<float> x = random_values((int64_t)N * C, 1.0f, 2), w = random_values((int64_t)OC * C, 1.0f, 3);
        std::vector<float> want((size_t)(N * OC));
        cpu_matmul_forward(want.data(), NULL, x.data(), w.data(), NULL, N, C, OC);
        DeviceArray<float> inp(x), weight(w), out(N * OC);
        emu::Meter m = metered([&] { matmul(out.data, inp.data, weight.data, N, C, OC); });
        check_values(t, shaped("out", {N, OC}), out.get(), want, sum_tolerance(C) * largest(want), 0.0);
        if (size != sizes[0]) { continue; }
        check_moved(t, m, 4.0 * (N * C + OC * C + N * OC), 4.0);
        double loads = (double)m.shared_loads.wavefronts, stores = (double)m.shared_stores.wavefronts;
        double each = (double)N * C * OC / fmax(loads + stores, 1.0);
        CHECK(t, loads > 0.0, "no kernel loads from shared memory");
        CHECK(t, each >= 50.0,
              "%.1f multiply-adds for each wavefront of shared memory, expected at least 50; loads take %.0f "
              "wavefronts, stores %.0f",
              each, loads, stores);
    }
}

// ---- Project 4 ----

static void check_flash_attention(Test *t) {
    const int sizes[][3] = {{1, 128, 2}, {2, 45, 3}, {1, 1, 1}};
    for (const int *size : sizes) {
        int B = size[0], T = size[1], NH = size[2], C = NH * HEAD_SIZE;
        std::vector<float> x = random_values((int64_t)B * T * 3 * C, 2.0f, 4);
        // A lone token's score is about 140, and e^140 overflows.
        for (float &number : x) { number += T == 1 ? 5.0f : 0.0f; }
        std::vector<float> want((size_t)(B * T * C)), want_lse((size_t)(B * NH * T));
        cpu_attention_forward(want.data(), want_lse.data(), x.data(), B, T, C, NH);
        DeviceArray<float> qkv(x), out(B * T * C), lse(B * NH * T);
        emu::Meter m = metered([&] { flash_attention(out.data, lse.data, qkv.data, B, T, NH); });
        // Scores of up to about 2 * 2 * sqrt(HEAD_SIZE) * 4 are off by their sum's rounding, and so are exponentials.
        double tolerance = 128.0 * sum_tolerance(HEAD_SIZE);
        check_values(t, shaped("out", {B, T, C}), out.get(), want, tolerance * largest(want), 0.0);
        check_values(t, shaped("lse", {B, NH, T}), lse.get(), want_lse, tolerance, 0.0);
        if (size != sizes[0]) { continue; }
        check_moved(t, m, 4.0 * B * T * (4 * C + NH), 2.0);
        double stored = 32.0 * (double)m.stores.sectors, results = 4.0 * B * T * (C + NH);
        CHECK(t, stored <= 1.25 * results,
              "the kernels store %.0f bytes in whole sectors, and out and lse have %.0f; expected at most 1.25 times "
              "so many",
              stored, results);
    }
}

// ---- Project 6 ----

enum { RANKS = 2, PARAMETERS = 600, STEPS = 3 };

struct RanksResults { // in memory that the processes share
    ncclUniqueId id;
    volatile bool has_id;
    float param[RANKS][PARAMETERS];
};

static std::vector<float> gradient_of(int rank, int step) {
    return random_values(PARAMETERS, 1.0f, 10 + RANKS * step + rank);
}

// The parameters that one GPU would have after all steps, from the sums of the ranks' gradients, times scale.
static std::vector<float> trained_alone(float scale) {
    std::vector<float> param = random_values(PARAMETERS, 1.0f, 9), m(PARAMETERS), v(PARAMETERS);
    for (int step = 1; step <= STEPS; step++) {
        std::vector<float> sum = gradient_of(0, step), other = gradient_of(1, step);
        for (size_t i = 0; i < PARAMETERS; i++) { sum[i] += other[i]; }
        cpu_adamw(param.data(), m.data(), v.data(), sum.data(), PARAMETERS, LEARNING_RATE, BETA1, BETA2, ADAM_EPSILON,
                  0.0f, scale, step);
    }
    return param;
}

// What a rank does, in a process of its own.
static void run_rank(RanksResults *results, int rank) {
    alarm(SECONDS_OF_AN_EXERCISE / 2);
    cuda_check(cudaSetDevice(rank));
    GpuRank r = {};
    if (rank == 0) { ncclGetUniqueId(&results->id), results->has_id = true; }
    while (!results->has_id) { sched_yield(); }
    DeviceArray<float> param(random_values(PARAMETERS, 1.0f, 9)), grad(PARAMETERS);
    DeviceArray<float> m(PARAMETERS / RANKS), v(PARAMETERS / RANKS);
    m.clear(), v.clear();
    cuda_check(cudaStreamCreate(&r.stream));
    r.param = param.data, r.grad = grad.data, r.m = m.data, r.v = v.data;
    r.n = PARAMETERS, r.rank = rank, r.ranks = RANKS;
    ncclCommInitRank(&r.comm, RANKS, results->id, rank);
    for (int step = 1; step <= STEPS; step++) {
        grad.set(gradient_of(rank, step));
        data_parallel_step(&r, step);
        cuda_check(cudaDeviceSynchronize());
    }
    std::vector<float> got = param.get();
    memcpy(results->param[rank], got.data(), sizeof(results->param[rank]));
    ncclCommDestroy(r.comm);
    _exit(0);
}

static void check_two_gpus(Test *t) {
    RanksResults *results =
        (RanksResults *)mmap(NULL, sizeof(RanksResults), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t ranks[RANKS];
    fflush(stdout);
    for (int rank = 0; rank < RANKS; rank++) {
        ranks[rank] = fork();
        if (ranks[rank] == 0) { run_rank(results, rank); }
    }
    for (int rank = 0; rank < RANKS; rank++) {
        int status = -1;
        waitpid(ranks[rank], &status, 0);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
            CHECK(t, false, "rank %d waits for ever, perhaps for a call of the other rank", rank);
        } else {
            CHECK(t, status == 0, "rank %d has not ended as it should", rank);
        }
    }
    std::vector<float> want = trained_alone(1.0f / RANKS), not_divided = trained_alone(1.0f);
    // A step moves a parameter by about LEARNING_RATE, off by some epsilons of it and by half an epsilon of the
    // parameter.
    for (int rank = 0; rank < RANKS && t->failures == 0; rank++) {
        check_close(t, rank == 0 ? "param of rank 0" : "param of rank 1", results->param[rank], want.data(), PARAMETERS,
                    STEPS * 64.0 * (double)LEARNING_RATE * FLT_EPSILON, STEPS * FLT_EPSILON);
    }
    likely(t, results->param[0], not_divided.data(), PARAMETERS, "the sum was not divided by the number of ranks.");
    CHECK(t, memcmp(results->param[0], results->param[1], sizeof(results->param[0])) == 0, "the ranks' param differ");
    munmap(results, sizeof(RanksResults));
}

static void example(void) {}

static const Exercise exercises[] = {{"project 2, a softmax that moves little", check_softmax},
                                     {"project 3, a tiled multiply", check_matmul},
                                     {"project 4, FlashAttention's forward", check_flash_attention},
                                     {"project 6, a step on two GPUs", check_two_gpus}};

int main(void) { return run_chapter("projects_gpu", example, exercises); }
