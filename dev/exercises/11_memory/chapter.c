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
    const ModelConfig odd = GPT2_CONFIG(32, 101, 128, 1, 3, 21), *configs[] = {&gpt2_124M, &odd};
    for (int i = 0; i < 4 * NUM_RECOMPUTE_LEVELS; i++) {
        const ModelConfig *c = configs[i % 4 / 2];
        int level = i / 4, width = i % 2 ? 2 : 4, C = c->channels, NH = c->num_heads;
        int floats = level == RECOMPUTE_BLOCK ? 0 : NH + 4;
        double want = (double)bytes_of_layer(c, level, width == 2 ? PLAN_BF16 : PLAN_F32);
        double got = (double)layer_bytes(C, NH, width, level);
        const Mistake mistakes[] = {{want - 4 * floats, "the floats of the right column are missing"},
                                    {want + 4 * (NH + 4 - floats), "level 3 keeps no statistics"},
                                    {want - (4 - width) * floats, "the right column has 4 bytes a number in bf16, too"},
                                    {want - C * width, "one row of C is missing: the residual counts"},
                                    {want - 4.0 * NH, "att_lse has NH numbers"},
                                    {want - 4.0 * (NH + 2), "two LayerNorms have two statistics each"},
                                    {want + 4.0 * C * width, "gelu is given up from level 1 on"},
                                    {want + 2.0 * C * width, "ln1 and ln2 are given up from level 2 on"}};
        const char *where = format("C %d, NH %d, %d bytes a number, level %d", C, NH, width, level);
        if (!check_number(t, where, got, want, 0.0, mistakes)) { return; }
    }
}

enum { ROWS = 12, PHASES = 6 };

// The fullest phase. A row lives up to `beyond` phases after its last one: 0 is right.
static double fullest_phase(const Lifetime *rows, int count, int beyond) {
    double most = 0.0;
    for (int phase = 0; phase < PHASES; phase++) {
        double live = 0.0;
        for (int i = 0; i < count; i++) {
            live += rows[i].first <= phase && phase <= rows[i].last + beyond ? (double)rows[i].bytes : 0.0;
        }
        most = fmax(most, live);
    }
    return most;
}

static bool check_peak_of(Test *t, const char *which, const Lifetime *rows, int count) {
    double sum = 0.0, largest = 0.0;
    for (int i = 0; i < count; i++) { sum += (double)rows[i].bytes, largest = fmax(largest, (double)rows[i].bytes); }
    const Mistake mistakes[] = {{sum, "this is the sum of all buffers: not all live at once"},
                                {fullest_phase(rows, count, -1), "a buffer lives in its last phase, too"},
                                {fullest_phase(rows, count, 1), "a buffer is gone after its last phase"},
                                {largest, "this is the largest buffer: several live at once"}};
    double got = (double)live_peak(rows, count);
    return check_number(t, which, got, fullest_phase(rows, count, 0), 0.0, mistakes);
}

// The five buffers of the worked example, then random ones.
static void check_live_peak(Test *t) {
    const Lifetime example_rows[] = {{512, 0, 2}, {256, 0, 1}, {768, 0, 0}, {512, 1, 1}, {256, 2, 2}};
    if (!check_peak_of(t, "the five buffers of the example", example_rows, 5)) { return; }
    for (uint64_t round = 0; round < 100; round++) {
        Lifetime rows[ROWS];
        for (int i = 0; i < ROWS; i++) {
            uint64_t random = rand_u64(11, round, (uint64_t)i);
            int first = (int)(random % PHASES), last = first + (int)(random / PHASES % (uint64_t)(PHASES - first));
            rows[i] = (Lifetime){(int64_t)(random >> 40), first, last};
        }
        if (!check_peak_of(t, format("%d random buffers in %d phases", ROWS, PHASES), rows, ROWS)) { return; }
    }
}

static void check_best_segment(Test *t) {
    const struct {
        int L, want;
        double rounded_down, last_of_equals;
        int64_t boundary, layer;
    } cases[] = {{48, 4, 4, 4, 1, 3}, {12, 3, 3, 4, 1, 1}, {12, 1, 1, 1, 1, 16}, {12, 12, 7, 12, 100, 1},
                 {13, 3, 3, 3, 3, 4}, {10, 5, 4, 5, 2, 1}, {1, 1, 1, 1, 5, 5}};
    for (int i = 0; i < 7; i++) {
        int L = cases[i].L, want = cases[i].want;
        int64_t boundary = cases[i].boundary, layer = cases[i].layer;
        const Mistake mistakes[] = {
            {cases[i].rounded_down, "L / k must be rounded up"},
            {(double)L, "this is L: one segment keeps the activations of all layers"},
            {cases[i].last_of_equals, "of several best k the smallest is asked for"},
            {floor(sqrt((double)(L * boundary) / (double)layer)), "the root is not always the best"}};
        const char *where = format("L %d, boundary %lld, layer %lld: k", L, (long long)boundary, (long long)layer);
        if (!check_number(t, where, best_segment(L, boundary, layer), want, 0.0, mistakes)) { return; }
    }
}

static const Exercise exercises[] = {{"11.1 the bytes of a layer", check_layer_bytes},
                                     {"11.2 the peak", check_live_peak},
                                     {"11.3 recompute in segments", check_best_segment}};

int main(void) { return run_chapter("11_memory", example, exercises); }
