// The choice of algorithms for matrix multiplies: it changes no bit, takes the fastest of those that change none, and
// believes no file. What is fast and what has other bits, the emulator says (EMU_CUBLASLT_ALGOS in dev/emu/README.md).
#ifndef KERNELS_TUNE_CUH
#define KERNELS_TUNE_CUH

#include "llmc/layers/linear.cuh"
#include "llmc/cuda/matmul_tune.cuh"
#include "dev/test/layers/gpu_test.h"
#include "dev/test/layers/kernels_matmul.cuh"

// The emulator's algorithms.
enum { TUNE_FIRST = 0, TUNE_SPLIT = 2, TUNE_BEST = 3, TUNE_CANNOT_RUN = 5, TUNE_SPLIT_4 = 7 };

// A context whose workspace lies in the middle of the memory that the tuner gets.
struct TuneSetup {
    CublasContext context;
    DeviceArray<uint8_t> memory;
    Tuner tuner;

    explicit TuneSetup(int64_t bytes = 1 << 20) : memory(bytes) {
        Error error;
        setenv("EMU_CUBLASLT_ALGOS", "8", 1);
        if (!cublas_open(&context, true, &error)) {
            fprintf(stderr, "%s\n", error.text);
            exit(EXIT_FAILURE);
        }
        cublas_set_workspace(&context, memory.data + round_up_i64(bytes / 4, 256), 1 << 14);
    }
    ~TuneSetup() {
        cublas_close(&context);
        unsetenv("EMU_CUBLASLT_ALGOS");
    }
    void tune(const std::vector<CublasProblem> &problems, Tuning *table, TuneLevel level = TUNE_SAME_BITS) {
        tune_problems(&tuner, &context, problems.data(), (int)problems.size(), memory.data, memory.count, level, table,
                      0);
    }
    // The number of the algorithm that a problem's plan has, among those that the heuristic names; -1: none of them.
    int chosen(const CublasProblem &problem) {
        cublasLtMatmulHeuristicResult_t found[TUNE_CANDIDATES];
        CublasPlan plan;
        cublas_describe(&context, &plan, &problem);
        int count = cublas_ask(&context, &plan, found, TUNE_CANDIDATES, true);
        for (int i = 0; i < count; i++) {
            if (tune_same_algo(&found[i].algo, &cublas_plan(&context, &problem)->algo)) { return i; }
        }
        return -1;
    }
    cublasLtMatmulAlgo_t algorithm(const CublasProblem &problem, int number) {
        cublasLtMatmulHeuristicResult_t found[TUNE_CANDIDATES];
        CublasPlan plan;
        cublas_describe(&context, &plan, &problem);
        cuda_require(cublas_ask(&context, &plan, found, TUNE_CANDIDATES, true) > number);
        return found[number].algo;
    }
    std::string key(const CublasProblem &problem) {
        char text[TUNE_KEY_BYTES];
        cublas_problem_text(&context, &problem, text, sizeof(text));
        return text;
    }
};

static Tuning *new_tuning(void) {
    static Tuning table; // large
    memset(&table, 0, sizeof(table));
    tune_table_init(&table.user, "a GPU", 1, 1);
    return &table;
}

// A layer without memory, for its problems.
static Linear layer_of(int C, int OC, bool has_bias = false, bool in_8_bits = false) {
    static const floatX some_bias = {};
    Linear l;
    l.C = C, l.OC = OC, l.bias = has_bias ? &some_bias : NULL, l.fp8.on = in_8_bits;
    return l;
}

// With every epilogue, and with sums of 16 terms and more: fewer may have equal bits in any order.
static std::vector<CublasProblem> problems_to_tune(void) {
    const MatmulShape shapes[] = {{16, 16, 16}, {35, 24, 40}};
    std::vector<CublasProblem> problems;
    for (const MatmulShape &s : shapes) {
        for (int bias = 0; bias < 2; bias++) {
            problems.push_back(linear_forward_problem(layer_of(s.C, s.OC, bias), s.N, false));
            problems.push_back(linear_forward_problem(layer_of(s.C, s.OC, bias), s.N, true));
        }
        problems.push_back(linear_backward_input_problem(layer_of(s.C, s.OC), s.N, false));
        problems.push_back(linear_backward_input_problem(layer_of(s.C, s.OC), s.N, true));
        problems.push_back(linear_backward_weight_problem(layer_of(s.C, s.OC), s.N));
    }
    // A single row, as the head's last may be.
    problems.push_back(linear_forward_problem(layer_of(24, 40, true), 1, false));
    problems.push_back(linear_backward_input_problem(layer_of(24, 40), 1, false));
    // The last term of an odd number counts, too.
    problems.push_back(linear_backward_weight_problem(layer_of(24, 40), 5));
    if (PRECISION_IS_FP32) { return problems; }
    problems.push_back(linear_forward_problem(layer_of(64, 48, true, true), 35, false));
    problems.push_back(linear_backward_input_problem(layer_of(48, 64, false, true), 35, false));
    problems.push_back(linear_backward_weight_problem(layer_of(48, 16, false, true), 64));
    return problems;
}

// The fastest algorithm has other bits (the sum is split), others do not run or are not offered: of the rest the
// fastest is taken, and not the one that the heuristic puts first. At the next start nothing is timed.
TEST(test_tune_choice) {
#ifndef GPT2_EMU
    SKIP(t, "only the emulator says which algorithm is fast and which has other bits");
#endif
    std::vector<CublasProblem> problems = problems_to_tune();
    Tuning *table = new_tuning();
    int count = (int)problems.size();
    for (int start = 0; start < 2; start++) {
        TuneSetup setup;
        setup.tune(problems, table);
        const Tuner &u = setup.tuner;
        CHECK(t,
              u.timed == (start == 0 ? count : 0) && u.known == count - u.timed && u.replaced == count &&
                  u.refused == 0,
              "start %d: %d timed, %d known, %d replaced, %d refused of %d", start, u.timed, u.known, u.replaced,
              u.refused, count);
        for (const CublasProblem &p : problems) {
            int chosen = setup.chosen(p);
            CHECK(t, chosen == TUNE_BEST, "start %d, %s: algorithm %d", start, setup.key(p).c_str(), chosen);
        }
        CHECK(t, setup.context.plan_count == count && table->user.count == count, "%lld plans, %d entries of %d",
              (long long)setup.context.plan_count, table->user.count, count);
    }
}

// With any bits the fastest is one that splits the sum. The table has its choices apart from those of equal bits. An
// algorithm that leaves out terms is not taken, however fast.
TEST(test_tune_any_bits) {
#ifndef GPT2_EMU
    SKIP(t, "only the emulator says which algorithm is fast and which has other bits");
#endif
    std::vector<CublasProblem> problems = problems_to_tune();
    Tuning *table = new_tuning();
    for (int start = 0; start < 3; start++) {
        TuneSetup setup;
        TuneLevel level = start == 1 ? TUNE_SAME_BITS : TUNE_ANY_BITS;
        setup.tune(problems, table, level);
        int known = start == 2 ? (int)problems.size() : 0;
        CHECK(t, setup.tuner.known == known && setup.tuner.refused == 0, "start %d: %d known, %d refused", start,
              setup.tuner.known, setup.tuner.refused);
        for (const CublasProblem &p : problems) {
            int best = level == TUNE_ANY_BITS && tune_shows_tail(&p) ? TUNE_SPLIT : TUNE_BEST;
            CHECK(t, setup.chosen(p) == best, "start %d, %s: algorithm %d", start, setup.key(p).c_str(),
                  setup.chosen(p));
        }
    }
    setenv("EMU_CUBLASLT_FAULT", "tail fast", 1);
    TuneSetup faulty;
    faulty.tune(problems, new_tuning(), TUNE_ANY_BITS);
    for (const CublasProblem &p : problems) {
        int chosen = faulty.chosen(p), best = tune_shows_tail(&p) ? TUNE_SPLIT_4 : TUNE_BEST;
        CHECK(t, chosen == best, "%s: algorithm %d", faulty.key(p).c_str(), chosen);
    }
    unsetenv("EMU_CUBLASLT_FAULT");
}

// The choices of rank 0 on another rank: equal plans. Another GPU is refused.
TEST(test_tune_share) {
    const std::vector<CublasProblem> problems = problems_to_tune();
    int count = (int)problems.size();
    cudaDeviceProp gpu;
    Error error;
    cuda_check(cudaGetDeviceProperties(&gpu, 0));
    TuneSetup first, second, third;
    Tuning *table = new_tuning();
    tune_table_init(&table->user, gpu.name, gpu.multiProcessorCount, (long)cublasLtGetVersion());
    table->run = table->user;
    CHECK(t,
          matmul_tune(table, &first.context, problems.data(), count, first.memory.data, first.memory.count,
                      TUNE_ANY_BITS, 0, &error),
          "%s", error.text);
    CHECK(t, matmul_follow(&table->run, &second.context, problems.data(), count, &gpu, &error), "%s", error.text);
    for (const CublasProblem &p : problems) {
        CHECK(t, tune_same_algo(&cublas_plan(&first.context, &p)->algo, &cublas_plan(&second.context, &p)->algo),
              "another algorithm for %s", first.key(p).c_str());
    }
    CHECK(t, second.context.plan_count == count, "%lld plans", (long long)second.context.plan_count);
    gpu.multiProcessorCount++;
    CHECK(t, !matmul_follow(&table->run, &third.context, problems.data(), count, &gpu, &error), "another GPU's");
    CHECK(t, strstr(error.text, "--matmul-tune 1") != NULL, "%s", error.text);
    tuning_close(table);
}

// A table that names what has other bits, does not run or is no algorithm at all: the choice is made anew. One that
// names the heuristic's first, or another with its bits, is believed.
TEST(test_tune_bad_table) {
#ifndef GPT2_EMU
    SKIP(t, "only the emulator has such algorithms for certain");
#endif
    const CublasProblem problem = linear_forward_problem(layer_of(24, 40, true), 35, false);
    const struct {
        int number; // -1: no algorithm
        int refused, expected;
    } cases[] = {{TUNE_SPLIT, 1, TUNE_BEST},
                 {TUNE_CANNOT_RUN, 1, TUNE_BEST},
                 {-1, 1, TUNE_BEST},
                 {TUNE_FIRST, 0, TUNE_FIRST},
                 {1, 0, 1}};
    for (const auto &c : cases) {
        TuneSetup setup;
        Tuning *table = new_tuning();
        cublasLtMatmulAlgo_t algo = setup.algorithm(problem, c.number < 0 ? 0 : c.number);
        if (c.number < 0) { memset(&algo, 0x5a, sizeof(algo)); }
        tune_table_set(&table->user, setup.key(problem).c_str(), &algo);
        setup.tune({problem}, table);
        const Tuner &u = setup.tuner;
        CHECK(t, u.refused == c.refused && u.known == 1 - c.refused && u.timed == c.refused,
              "algorithm %d: %d refused, %d known, %d timed", c.number, u.refused, u.known, u.timed);
        CHECK(t, setup.chosen(problem) == c.expected, "algorithm %d of the table: %d is used", c.number,
              setup.chosen(problem));
        algo = setup.algorithm(problem, c.expected);
        const TuneEntry *entry = tune_table_find(&table->user, setup.key(problem).c_str());
        CHECK(t, entry != NULL && memcmp(entry->choice, &algo, sizeof(algo)) == 0, "algorithm %d stays in the table",
              c.number);
    }
}

TEST(test_tune_bits) {
    const MatmulShape shapes[] = {{33, 64, 192}, {35, 24, 40}, {65, 72, 136}}; // sums of more than 16 terms, see above
    for (const MatmulShape &s : shapes) {
        TuneSetup plain, tuned;
        MatmulCase c(s);
        std::vector<CublasProblem> problems = {linear_forward_problem(layer_of(s.C, s.OC, true), s.N, false),
                                               linear_forward_problem(layer_of(s.C, s.OC, true), s.N, true),
                                               linear_backward_input_problem(layer_of(s.C, s.OC), s.N, false),
                                               linear_backward_input_problem(layer_of(s.C, s.OC), s.N, true),
                                               linear_backward_weight_problem(layer_of(s.C, s.OC), s.N)};
        tuned.tune(problems, new_tuning());
        plain.tune(problems, NULL, TUNE_NOTHING);
        uint64_t with = MatmulLayer(&tuned.context, c).hash_of_all();
        uint64_t without = MatmulLayer(&plain.context, c).hash_of_all();
        CHECK(t, with == without, "(%lld, %d) x (%d, %d): tuning changes bits", (long long)s.N, s.C, s.OC, s.C);
        CHECK(t, tuned.context.plan_count == (int64_t)problems.size(), "a layer asks for other plans than were tuned");
    }
}

// The heuristic's first algorithm leaves out the last terms of the sum: another is taken, tuned or not, where there is
// a tail; where there is none, the first stays. What cannot be tried for want of room, or is planned later, is one that
// does not split the sum.
TEST(test_tune_tail) {
#ifndef GPT2_EMU
    SKIP(t, "only the emulator leaves out terms");
#endif
    setenv("EMU_CUBLASLT_FAULT", "tail", 1);
    const MatmulShape shapes[] = {{129, 24, 40}, {35, 24, 40}, {257, 256, 512}};
    for (const MatmulShape &s : shapes) {
        MatmulCase c(s);
        std::vector<CublasProblem> problems = {linear_forward_problem(layer_of(s.C, s.OC, true), s.N, false),
                                               linear_backward_input_problem(layer_of(s.C, s.OC), s.N, false),
                                               linear_backward_weight_problem(layer_of(s.C, s.OC), s.N)};
        int exposed = s.C % 256 == 0 ? 1 : 3;
        for (int level = TUNE_NOTHING; level <= TUNE_SAME_BITS; level++) {
            TuneSetup setup(4 << 20);
            setup.context.tf32 = false; // in fp32, factors are compared that were not rounded
            setup.tune(problems, new_tuning(), (TuneLevel)level);
            CHECK(t, setup.tuner.incomplete == exposed, "%d of %d noticed", setup.tuner.incomplete, exposed);
            MatmulLayer l(&setup.context, c);
            l.backward_weight();
            check_values(t, c.name("dweight"), l.dweight.get(), c.dweight, matmul_tolerance(s.N, c.dweight),
                         FLT_EPSILON);
            int chosen = setup.chosen(problems[0]), last = level == TUNE_NOTHING ? 1 : TUNE_BEST;
            if (exposed == 3) { CHECK(t, chosen == last, "level %d: algorithm %d", level, chosen); }
            if (exposed == 1 && level == 0) { CHECK(t, chosen == TUNE_FIRST, "algorithm %d", chosen); }
        }
        TuneSetup small(1 << 12), late;
        small.tune(problems, NULL, TUNE_NOTHING);
        CHECK(t, small.chosen(problems[2]) == 1 && late.chosen(problems[2]) == 1, "a sum that is split, and not tried");
    }
    unsetenv("EMU_CUBLASLT_FAULT");
}

// What does not fit in the memory, or has one algorithm only, keeps it, and nothing is written.
TEST(test_tune_without_room) {
    const std::vector<CublasProblem> small = {linear_forward_problem(layer_of(16, 16, true), 16, false)},
                                     large = {linear_forward_problem(layer_of(512, 512, true), 256, false)};
    Tuning *table = new_tuning();
    TuneSetup setup(1 << 17);
    setup.tune(large, table);
    CHECK(t, setup.tuner.timed == 0 && table->user.count == 0, "timed where there is no room");
    TuneSetup plain(1 << 17); // what the heuristic names if asked for one need not be the first of 16
    plain.tune(large, NULL, TUNE_NOTHING);
    CHECK(t,
          tune_same_algo(&cublas_plan(&setup.context, &large[0])->algo, &cublas_plan(&plain.context, &large[0])->algo),
          "algorithm %d", setup.chosen(large[0]));
    setup.tune({large[0], small[0]}, table);
#ifdef GPT2_EMU
    CHECK(t, setup.tuner.timed == 1 && table->user.count == 1, "%d timed beside what does not fit", setup.tuner.timed);
    TuneSetup single;
    table = new_tuning();
    unsetenv("EMU_CUBLASLT_ALGOS");
    single.tune({linear_forward_problem(layer_of(256, 16, true), 16, false)}, table); // all terms are sure to be added
    CHECK(t, single.tuner.timed == 0 && table->user.count == 0, "timed where there is no choice");
    std::vector<uint8_t> bytes = single.memory.raw();
    bool untouched = true;
    for (uint8_t byte : bytes) { untouched = untouched && byte == 0xff; }
    CHECK(t, untouched, "writes where there is no choice");
#endif
}

TEST(test_tune_memory) {
    static char memory[4096];
    CublasContext context;
    memset(&context, 0, sizeof(context));
    context.workspace = memory + 1024, context.workspace_bytes = 1000; // rounded up to 1024
    TuneMemory free_memory = tune_memory(&context, memory, sizeof(memory));
    void *at[4];
    bool took = tune_take(&free_memory, 1500, &at[0]) && tune_take(&free_memory, 1000, &at[1]) &&
                tune_take(&free_memory, 512, &at[2]);
    CHECK(t, context.workspace == memory, "the workspace is not in front");
    CHECK(t, took && at[0] == memory + 1024 && at[1] == memory + 2560 && at[2] == memory + 3584, "not behind it");
    CHECK(t, !tune_take(&free_memory, 1, &at[3]), "there is no more");
    context.workspace = memory;
    free_memory = tune_memory(&context, memory + 1024, 1024);
    CHECK(t, tune_take(&free_memory, 1024, &at[0]) && at[0] == memory + 1024, "a workspace elsewhere takes no room");
    CHECK(t, !tune_take(&free_memory, 1, &at[1]), "there is no more");
}

// Plans of other shapes, as many as there may be and more, do not push out tuned ones.
TEST(test_tune_stays) {
    const CublasProblem problem = linear_forward_problem(layer_of(24, 40, true), 35, false);
    TuneSetup setup;
    setup.tune({problem}, new_tuning());
    cublasLtMatmulAlgo_t algo = cublas_plan(&setup.context, &problem)->algo;
    for (int i = 1; i <= CUBLAS_MAX_PLANS + 5; i++) {
        CublasProblem other = linear_forward_problem(layer_of(8, 8, false), i, false);
        cublas_plan(&setup.context, &other);
    }
    int64_t plans = setup.context.plan_count;
    CHECK(t, tune_same_algo(&cublas_plan(&setup.context, &problem)->algo, &algo) && setup.context.plan_count == plans,
          "a tuned plan made room for others");
}

#endif // KERNELS_TUNE_CUH
