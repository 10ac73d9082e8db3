// Chapter 11, memory: the worked example of doc/11_memory.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS
#include "llmc/model/activations.h"

static const ModelConfig gpt2_124M = GPT2_CONFIG(1024, 50257, 50304, 12, 12, 768); // maxT, V, Vp, L, NH, C

// Plans five small buffers over three phases.
static void small_plan(void) {
    static const char *const phases[] = {"forward", "backward", "update"};
    enum { FIRST, SECOND, THIRD };
    static MemoryPlan plan;
    void *pointers[5];
    plan_init(&plan, phases);
    plan_add(&plan, &pointers[0], "weights", PLAN_PARAMETER, PLAN_F32, shape2(8, 16), FIRST, THIRD);
    plan_add(&plan, &pointers[1], "x", PLAN_ACTIVATION, PLAN_F32, shape2(4, 16), FIRST, SECOND);
    plan_add(&plan, &pointers[2], "logits", PLAN_ACTIVATION, PLAN_F32, shape2(4, 48), FIRST, FIRST);
    plan_add(&plan, &pointers[3], "dx", PLAN_GRADIENT, PLAN_F32, shape2(8, 16), SECOND, SECOND);
    plan_add(&plan, &pointers[4], "norms", PLAN_WORKSPACE, PLAN_F64, shape1(32), THIRD, THIRD);
    plan_layout(&plan);
    plan_print(&plan, stdout);
}

// Returns the bytes of all activations of a model with L layers and N tokens at a level of --recompute. fp32 means the
// CPU trainer, with logits of 256 rows at a time; bf16 means the GPU trainer, with logits of 8,192 rows.
static int64_t activation_bytes_of(const ModelConfig *config, int L, int64_t N, int level, PlanType type) {
    static MemoryPlan plan;
    void *pointer;
    int64_t stride;
    bool gpu = type == PLAN_BF16;
    int64_t chunk = min_i64(N, gpu ? 8192 : 256);
    ActShape shape = {*config, N, N, chunk, level, false, gpu ? ON_GPU : ON_CPU, type, 1, L, 1, 1, 0, true, false};
    shape.config.num_layers = L;
    plan_init(&plan, phase_names);
    for (int i = 0; i < ACT_dresidual; i++) { plan_activation(&plan, &shape, i, (ActSlot){&pointer, &stride}); }
    int64_t bytes = 0;
    for (int i = 0; i < plan.count; i++) { bytes += plan.rows[i].bytes; }
    return bytes;
}

// Returns what a further layer takes, for each token.
static int64_t bytes_of_layer(const ModelConfig *config, int level, PlanType type) {
    enum { N = 256 };
    return (activation_bytes_of(config, 9, N, level, type) - activation_bytes_of(config, 8, N, level, type)) / N;
}

static double gib(int64_t bytes) { return (double)bytes / (1 << 30); }

static void levels(void) {
    printf("\n--recompute   bytes of a token and layer      GPT-2 124M, 8 x 1024 tokens\n");
    printf("                    fp32       bf16                 fp32       bf16\n");
    for (int level = RECOMPUTE_NOTHING; level < NUM_RECOMPUTE_LEVELS; level++) {
        printf("%6d %17lld %10lld %16.2f GiB %6.2f GiB\n", level,
               (long long)bytes_of_layer(&gpt2_124M, level, PLAN_F32),
               (long long)bytes_of_layer(&gpt2_124M, level, PLAN_BF16),
               gib(activation_bytes_of(&gpt2_124M, 12, 8192, level, PLAN_F32)),
               gib(activation_bytes_of(&gpt2_124M, 12, 8192, level, PLAN_BF16)));
    }
}

static void example(void) {
    int64_t n = model_num_params(&gpt2_124M);
    small_plan();
    levels();
    printf("\nnumbers of GPT-2 124M %lld: %.2f GiB at 16 bytes, %.2f GiB at 18\n", (long long)n, gib(16 * n),
           gib(18 * n));
}

static void check_layer_bytes(Test *t) {
    const ModelConfig odd = GPT2_CONFIG(32, 101, 128, 1, 3, 21);
    for (int level = RECOMPUTE_NOTHING; level < NUM_RECOMPUTE_LEVELS; level++) {
        const ModelConfig *configs[] = {&gpt2_124M, &odd};
        for (int i = 0; i < 4; i++) {
            const ModelConfig *c = configs[i / 2];
            int64_t want = bytes_of_layer(c, level, i % 2 ? PLAN_BF16 : PLAN_F32);
            int64_t got = layer_bytes(c->channels, c->num_heads, i % 2 ? 2 : 4, level);
            CHECK(t, got == want, "C %d, NH %d, level %d: %lld, want %lld", c->channels, c->num_heads, level,
                  (long long)got, (long long)want);
        }
    }
}

enum { ROWS = 12, PHASES = 6 };

static void check_live_peak(Test *t) {
    for (uint64_t round = 0; round < 100; round++) {
        Lifetime rows[ROWS];
        int64_t live[PHASES] = {0}, want = 0;
        for (int i = 0; i < ROWS; i++) {
            uint64_t random = rand_u64(11, round, (uint64_t)i);
            int first = (int)(random % PHASES), last = first + (int)(random / PHASES % (uint64_t)(PHASES - first));
            rows[i] = (Lifetime){(int64_t)(random >> 40), first, last};
            for (int phase = first; phase <= last; phase++) { live[phase] += rows[i].bytes; }
        }
        for (int phase = 0; phase < PHASES; phase++) { want = max_i64(want, live[phase]); }
        int64_t got = live_peak(rows, ROWS);
        if (!CHECK(t, got == want, "got %lld, want %lld", (long long)got, (long long)want)) { return; }
    }
}

static void check_best_segment(Test *t) {
    const struct {
        int L, want;
        int64_t boundary, layer;
    } cases[] = {{48, 4, 1, 3}, {12, 3, 1, 1}, {12, 1, 1, 16}, {12, 12, 100, 1}, {13, 3, 3, 4}, {1, 1, 5, 5}};
    for (int i = 0; i < 6; i++) {
        int got = best_segment(cases[i].L, cases[i].boundary, cases[i].layer);
        CHECK(t, got == cases[i].want, "L %d, boundary %lld, layer %lld: %d, want %d", cases[i].L,
              (long long)cases[i].boundary, (long long)cases[i].layer, got, cases[i].want);
    }
}

static const Exercise exercises[] = {{"11.1 the bytes of a layer", check_layer_bytes},
                                     {"11.2 the peak", check_live_peak},
                                     {"11.3 recompute in segments", check_best_segment}};

int main(void) { return run_chapter("11_memory", example, exercises); }
