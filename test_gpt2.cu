// The GPU trainer against PyTorch's numbers and against the CPU trainer, in the emulator or on hardware.
//
// PyTorch's numbers lie in dev/test/fixtures: computed in float64 and rounded once, so that what is measured here is
// the error of this program's arithmetic alone.
#define main train_gpt2cu_main
#include "train_gpt2.cu"
#undef main

#include <memory>

#include "dev/test/fixture.h"
#include "dev/test/gpu_test.h"
#include "dev/test/temp_dir.h"
#include "llmc/checkpoint.h"
#include "llmc/model_file.h"

#define FIXTURES "dev/test/fixtures/"

// ---------------------------------------------------------------------------------------------------------------------
// Tolerances
//
// A value that D roundings in a row have been applied to, each off by up to half the distance of neighbouring numbers,
// is off by about sqrt(D) * epsilon / 2 of the largest values around it, the worst of thousands by some 4 times that.
// In fp32 a reduction of K terms counts as K roundings of its own; in bf16 sums are fp32 and only stored values round.
static double tolerance(int64_t K, int64_t D) {
    return PRECISION_IS_FP32 ? 2.0 * sqrt((double)(D * K)) * FLT_EPSILON : 2.0 * sqrt((double)D) * FLOATX_EPSILON;
}

static int64_t longest_reduction(const GPT2 *model) {
    const GPT2Config *config = &model->config;
    return max_i64(max_i64(4 * (int64_t)config->channels, (int64_t)model->shape.B * model->shape.T),
                   config->vocab_size);
}
// Values that are stored on the way: in a block two LayerNorms, qkv, the attention's weights and its output, two
// projections, two residuals, fc and GELU; then the final LayerNorm and the logits. The backward passes all of them
// again. (The fixture's weights are exact in both precisions.)
static int64_t forward_depth(const GPT2 *model) { return 11 * model->config.num_layers + 2; }
static int64_t backward_depth(const GPT2 *model) { return 2 * forward_depth(model); }

static bool check_tensor(Test *t, const std::string &what, const std::vector<float> &got, const float *want,
                         double tol) {
    std::vector<float> expected(want, want + got.size());
    return check_values(t, what, got, expected, tol * largest(expected), 0.0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Models

template <class T> static std::vector<float> to_host(const T *device, int64_t n) {
    std::vector<T> stored((size_t)n);
    std::vector<float> values((size_t)n);
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemcpy(stored.data(), device, (size_t)n * sizeof(T), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < values.size(); i++) { values[i] = floatX_to_host(stored[i]); }
    return values;
}

// What lies whole in an array of buckets, in the order of the parameter table.
template <class T> static std::vector<float> in_table_order(const GPT2 *model, Buckets<T> array) {
    const ZeroLayout *zero = &model->zero;
    std::vector<float> ordered((size_t)gpt2_num_params(&model->config), NAN);
    for (int b = 0; b < zero->num_buckets; b++) {
        ZeroPiece pieces[NUM_PARAM_TENSORS];
        std::vector<float> bucket = to_host(element(model, array, b, 0), zero_size(zero, b));
        int n = zero_pieces(zero, b, 0, zero_size(zero, b), pieces);
        for (int i = 0; i < n; i++) {
            memcpy(&ordered[(size_t)pieces[i].in_file], &bucket[(size_t)pieces[i].in_bucket],
                   (size_t)pieces[i].count * sizeof(float));
        }
    }
    return ordered;
}

static uint64_t hash_of(const std::vector<float> &values) {
    return hash64(values.data(), values.size() * sizeof(float));
}

// A model with its memory and its GPU, and as much of a run as its state is read and written for.
struct Model {
    GPT2 gpt2;
    Comm comm;
    std::unique_ptr<TrainRun> run{new TrainRun()};
    bool ok = false;

    Model(Test *t, const GPT2Config *config, RunShape shape) {
        Error error;
        comm_single(&comm);
        comm_single(&run->comm);
        run->config = *config;
        run->options.seed = 42;
        gpt2_plan(&gpt2, config, shape);
        ok = CHECK(t, gpt2_open(&gpt2, &comm, false, &error), "%s", error.text);
    }
    ~Model() { gpt2_close(&gpt2); }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    // What a fresh run begins with: the parameters of a file, or those of a new model.
    bool load(Test *t, const char *path) {
        Error error;
        ok = ok && CHECK(t, model_file_open(&run->model_file, path, &error), "%s", error.text) && read(t, NULL);
        return ok;
    }
    bool init(Test *t) {
        run->model_file.kind = MODEL_FROM_SIZE;
        ok = ok && read(t, NULL);
        return ok;
    }
    bool read(Test *t, CheckpointReader *reader) {
        Error error;
        if (!CHECK(t, read_state(&gpt2, run.get(), reader, &error), "%s", error.text)) { return false; }
        share_state(&gpt2);
        return true;
    }
    // The fp32 weights, and those that the layers read.
    uint64_t hash() {
        uint64_t weights[2] = {0, hash_of(in_table_order(&gpt2, gpt2.params))};
        Error error;
        if (!hash_params(&gpt2, &weights[0], &error)) { abort(); } // one process has nobody to fail it
        return hash64(weights, sizeof(weights));
    }
};

static RunShape trains(int B, int T, int recompute, int gelu_fusion) {
    RunShape shape;
    memset(&shape, 0, sizeof(shape));
    shape.kind = RUN_TRAINS;
    shape.B = B, shape.T = T;
    shape.recompute = recompute, shape.gelu_fusion = gelu_fusion;
    shape.has_master = !PRECISION_IS_FP32;
    shape.exports = true;
    shape.num_ranks = 1;
    return shape;
}

// Loss of a batch, the gradients added to what is there.
static double gradient(GPT2 *model, const int32_t *tokens, const int32_t *targets, int B, int T, float dloss) {
    int64_t N = (int64_t)B * T;
    double sum = NAN;
    BatchSlot *slot = next_slot(model);
    memcpy(slot->staging, tokens, (size_t)N * sizeof(int32_t));
    memcpy(slot->staging + N, targets, (size_t)N * sizeof(int32_t));
    BatchRole role = {true, true, true, dloss, model->loss_sum};
    run_batch(model, slot, B, T, &role);
    cuda_check(cudaStreamSynchronize(model->stream));
    cuda_check(cudaMemcpy(&sum, model->loss_sum, sizeof(sum), cudaMemcpyDeviceToHost));
    return sum / (double)N;
}

// One update from the gradients there are.
static StepResult update(GPT2 *model, double grad_clip, float lr, float beta1, float beta2, float epsilon, float decay,
                         int64_t number, int64_t rows) {
    AdamWStep step = {lr, beta1, beta2, epsilon, number, rounding_key(42, number)};
    reduce_step(model, 1.0 / (double)rows, grad_clip, false, 0);
    gpt2_update(model, &step, decay);
    cuda_check(cudaStreamSynchronize(model->stream));
    return model->results[0];
}

// ---------------------------------------------------------------------------------------------------------------------
// One batch of the small model against PyTorch

typedef struct {
    unsigned char *data;
    int B, T;
    const int32_t *inputs, *targets;    // (B,T)
    const float *logits, *loss, *grads; // (B,T,V), one number, the 16 tensors in file order
    GPT2Config config;
} Wanted;

static Wanted wanted_open(Test *t) {
    Wanted w;
    Error error;
    ModelFile file;
    int64_t size;
    CHECK(t, model_file_open(&file, FIXTURES "small.bin", &error), "%s", error.text);
    w.config = file.config;
    w.data = fixture_read_file(FIXTURES "small_debug_state.bin", &size);
    const int32_t *header = (const int32_t *)w.data;
    w.B = header[2], w.T = header[3];
    int64_t N = (int64_t)w.B * w.T;
    w.inputs = header + 256;
    w.targets = w.inputs + N;
    w.logits = (const float *)(w.targets + N);
    w.loss = w.logits + N * w.config.vocab_size;
    w.grads = w.loss + 1;
    int64_t numbers = 256 + 2 * N + N * w.config.vocab_size + 1 + gpt2_num_params(&w.config);
    if (size != 4 * numbers) { fixture_fail("small_debug_state.bin", "another size than its header says", ""); }
    return w;
}

static void check_gradients(Test *t, GPT2 *model, const float *want, const char *what) {
    std::vector<float> grads = in_table_order(model, model->grads);
    double tol = tolerance(longest_reduction(model), backward_depth(model));
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int64_t at = gpt2_param_offset(&model->config, i), n = gpt2_param_size(&model->config, i);
        std::vector<float> tensor(grads.begin() + at, grads.begin() + at + n);
        check_tensor(t, std::string(what) + ", gradient of " + gpt2_param_specs[i].name, tensor, want + at, tol);
    }
}

static void test_logits_and_loss(Test *t) {
    Wanted w = wanted_open(t);
    Model m(t, &w.config, trains(w.B, w.T, RECOMPUTE_NOTHING, FUSE_NOTHING));
    if (!m.load(t, FIXTURES "small.bin")) { return; }
    GPT2 *model = &m.gpt2;
    int64_t N = (int64_t)w.B * w.T, V = w.config.vocab_size, Vp = w.config.padded_vocab_size;
    double tol = tolerance(longest_reduction(model), forward_depth(model));
    BatchSlot *slot = next_slot(model);
    memcpy(slot->staging, w.inputs, (size_t)N * sizeof(int32_t));
    memcpy(slot->staging + N, w.targets, (size_t)N * sizeof(int32_t));
    BatchRole role = {false, true, true, 0.0f, model->loss_sum};
    run_batch(model, slot, w.B, w.T, &role);
    std::vector<float> padded = to_host(model->logits, N * Vp), logits;
    for (int64_t i = 0; i < N * Vp; i++) {
        if (i % Vp < V) { logits.push_back(padded[(size_t)i]); }
    }
    check_tensor(t, "logits", logits, w.logits, tol);
    double sum;
    cuda_check(cudaMemcpy(&sum, model->loss_sum, sizeof(sum), cudaMemcpyDeviceToHost));
    float loss = (float)(sum / (double)N);
    check_tensor(t, "loss", std::vector<float>(1, loss), w.loss, tol);
    free(w.data);
}

// Every recompute level and every fusion of GELU: PyTorch's gradients, and among the levels the same bits.
static void test_gradients(Test *t) {
    Wanted w = wanted_open(t);
    for (int fusion = FUSE_NOTHING; fusion <= FUSE_GELU_BACKWARD; fusion++) {
        uint64_t first = 0;
        for (int level = RECOMPUTE_NOTHING; level <= RECOMPUTE_BLOCK; level++) {
            Model m(t, &w.config, trains(w.B, w.T, level, fusion));
            if (!m.load(t, FIXTURES "small.bin")) { return; }
            zero_gradients(&m.gpt2);
            gradient(&m.gpt2, w.inputs, w.targets, w.B, w.T, 1.0f / (float)(w.B * w.T));
            char what[64];
            snprintf(what, sizeof(what), "recompute %d, GELU fusion %d", level, fusion);
            uint64_t hash = hash_of(in_table_order(&m.gpt2, m.gpt2.grads));
            if (level == RECOMPUTE_NOTHING) {
                check_gradients(t, &m.gpt2, w.grads, what);
                first = hash;
            }
            CHECK(t, hash == first, "%s: other gradients than without recompute", what);
        }
    }
    free(w.data);
}

// The head may work on any number of rows at a time; and memory that a step did not write must not matter.
static void test_chunks_and_stale_memory(Test *t) {
    Wanted w = wanted_open(t);
    Model m(t, &w.config, trains(w.B, w.T, RECOMPUTE_GELU, FUSE_NOTHING));
    if (!m.load(t, FIXTURES "small.bin")) { return; }
    GPT2 *model = &m.gpt2;
    const int chunks[] = {w.B * w.T, 16, 5, 1};
    for (int rows : chunks) {
        for (int i = 0; i < model->device_plan.count; i++) {
            const PlanRow *row = &model->device_plan.rows[i];
            if (row->category != PLAN_ACTIVATION) { continue; }
            cuda_check(cudaMemsetAsync((char *)model->device_plan.memory + row->offset, 0xff, (size_t)row->bytes,
                                       model->stream));
        }
        model->head_rows = rows;
        zero_gradients(model);
        double loss = gradient(model, w.inputs, w.targets, w.B, w.T, 1.0f / (float)(w.B * w.T));
        char what[64];
        snprintf(what, sizeof(what), "%d rows of logits at a time", rows);
        check_tensor(t, std::string(what) + ", loss", std::vector<float>(1, (float)loss), w.loss,
                     tolerance(longest_reduction(model), forward_depth(model)));
        check_gradients(t, model, w.grads, what);
    }
    free(w.data);
}

// Two micro-batches of one sequence each add up to the gradient of both at once, every tensor of it, biases too.
static void test_accumulation(Test *t) {
    Wanted w = wanted_open(t);
    Model whole(t, &w.config, trains(w.B, w.T, RECOMPUTE_GELU, FUSE_NOTHING));
    Model parts(t, &w.config, trains(1, w.T, RECOMPUTE_GELU, FUSE_NOTHING));
    if (!whole.load(t, FIXTURES "small.bin") || !parts.load(t, FIXTURES "small.bin")) { return; }
    float dloss = 1.0f / (float)(w.B * w.T);
    zero_gradients(&whole.gpt2);
    zero_gradients(&parts.gpt2);
    gradient(&whole.gpt2, w.inputs, w.targets, w.B, w.T, dloss);
    for (int b = 0; b < w.B; b++) { gradient(&parts.gpt2, w.inputs + b * w.T, w.targets + b * w.T, 1, w.T, dloss); }
    std::vector<float> want = in_table_order(&whole.gpt2, whole.gpt2.grads);
    check_gradients(t, &parts.gpt2, want.data(), "one sequence at a time");
    free(w.data);
}

// Ten updates with clipping, warm-up and decay: loss and norm of each.
static void test_ten_updates(Test *t) {
    Wanted w = wanted_open(t);
    Fixture f = fixture_open(FIXTURES "small_steps.bin");
    Model m(t, &w.config, trains(w.B, w.T, RECOMPUTE_GELU, FUSE_NOTHING));
    if (!m.load(t, FIXTURES "small.bin")) { return; }
    GPT2 *model = &m.gpt2;
    int steps = *fixture_ints(&f, "total", 1), N = w.B * w.T, clipped = 0;
    const int32_t *inputs = fixture_ints(&f, "inputs", steps * N), *targets = fixture_ints(&f, "targets", steps * N);
    float clip = fixture_float(&f, "grad_clip");
    double tol = tolerance(longest_reduction(model), backward_depth(model) * steps);
    for (int step = 0; step < steps; step++) {
        zero_gradients(model);
        gradient(model, inputs + step * N, targets + step * N, w.B, w.T, 1.0f / (float)N);
        StepResult result = update(model, clip, fixture_floats(&f, "lr", steps)[step], fixture_float(&f, "beta1"),
                                   fixture_float(&f, "beta2"), fixture_float(&f, "eps"),
                                   fixture_float(&f, "weight_decay"), step + 1, N);
        float loss = (float)result.loss, norm = (float)result.norm;
        check_close(t, "loss", &loss, fixture_floats(&f, "loss", steps) + step, 1, 0.0, tol);
        check_close(t, "norm", &norm, fixture_floats(&f, "norm", steps) + step, 1, 0.0, tol);
        CHECK(t, !result.stopped, "step %d: stopped %d", step, result.stopped);
        clipped += norm > clip;
    }
    CHECK(t, clipped > 0, "no update was clipped");
    fixture_close(&f);
    free(w.data);
}

// ---------------------------------------------------------------------------------------------------------------------
// Twenty steps beside the CPU trainer

#define STEPS 20
static const GPT2Config two_heads = {24, 257, 384, 2, 2, 128};

// Batches with something to learn: each token says what the next is likely to be.
static void make_batch(int step, int B, int T, int32_t *tokens, int32_t *targets) {
    for (int b = 0; b < B; b++) {
        int32_t token = (int32_t)(rand_u64(5, (uint64_t)step, (uint64_t)b) % 257);
        for (int i = 0; i < T; i++) {
            uint64_t draw = rand_u64(6, (uint64_t)(step * B + b), (uint64_t)i);
            tokens[b * T + i] = token;
            token = draw % 4 == 0 ? (int32_t)(draw / 4 % 257) : (3 * token + 7) % 257;
            targets[b * T + i] = token;
        }
    }
}

static double train_one(GPT2 *model, int step, int B, int T) {
    std::vector<int32_t> tokens((size_t)(B * T)), targets((size_t)(B * T));
    make_batch(step, B, T, tokens.data(), targets.data());
    zero_gradients(model);
    gradient(model, tokens.data(), targets.data(), B, T, 1.0f / (float)(B * T));
    return update(model, 1.0, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, step + 1, B * T).loss;
}

static void test_against_cpu_trainer(Test *t) {
    enum { B = 3, T = 21 };
    CpuModelShape shape = {two_heads.max_seq_len,
                           two_heads.vocab_size,
                           two_heads.num_layers,
                           two_heads.num_heads,
                           two_heads.channels,
                           B,
                           T};
    CpuModel *cpu = cpu_model_new(&shape, 42);
    Model m(t, &two_heads, trains(B, T, RECOMPUTE_GELU, FUSE_NOTHING));
    if (!m.init(t)) { return; }
    double first = 0.0, last = 0.0, limit = PRECISION_IS_FP32 ? 1e-5 : 1e-2;
    for (int step = 0; step < STEPS; step++) {
        int32_t tokens[B * T], targets[B * T];
        make_batch(step, B, T, tokens, targets);
        double want = cpu_model_gradient(cpu, tokens, targets), got = train_one(&m.gpt2, step, B, T);
        cpu_model_update(cpu, 1e-3f, 0.1f, step + 1);
        CHECK(t, fabs(got - want) <= limit * want, "step %d: loss %.7f, on the CPU %.7f", step, got, want);
        if (step == 0) { first = want; }
        last = want;
    }
    CHECK(t, last < 0.95 * first, "nothing is learnt: loss %.4f, then %.4f", first, last);
    cpu_model_free(cpu);
}

// ---------------------------------------------------------------------------------------------------------------------
// The same bits

static uint64_t train_and_hash(Test *t, RunShape shape, int steps) {
    Model m(t, &two_heads, shape);
    if (!m.init(t)) { return 0; }
    for (int step = 0; step < steps; step++) { train_one(&m.gpt2, step, shape.B, shape.T); }
    return m.hash();
}

static void test_same_bits_with_any_schedule(Test *t) {
    for_each_schedule(t, "weights", [&] { return train_and_hash(t, trains(2, 17, RECOMPUTE_GELU, FUSE_NOTHING), 2); });
}

static void test_same_bits_with_any_recompute(Test *t) {
    for (int fusion = FUSE_NOTHING; fusion <= FUSE_GELU_BACKWARD; fusion += FUSE_GELU_BACKWARD) {
        uint64_t want = train_and_hash(t, trains(2, 17, RECOMPUTE_NOTHING, fusion), 2);
        for (int level = RECOMPUTE_GELU; level <= RECOMPUTE_BLOCK; level++) {
            uint64_t got = train_and_hash(t, trains(2, 17, level, fusion), 2);
            CHECK(t, got == want, "GELU fusion %d: other weights with recompute %d", fusion, level);
        }
    }
}

static bool write_checkpoint(Test *t, Model *m, const char *dir, int64_t step) {
    CheckpointWriter writer;
    StateHeader header;
    Error error;
    state_init(&header);
    bool ok = checkpoint_write_begin(&writer, dir, step, &two_heads, &header, NULL, 0, true, &error) &&
              write_state(&m->gpt2, &writer, &error) && checkpoint_write_flush(&writer, &error) &&
              checkpoint_write_commit(&writer, &writer.sums, &error);
    return CHECK(t, ok, "%s", error.text);
}

static bool read_checkpoint(Test *t, Model *m, const char *dir, int64_t step) {
    CheckpointReader reader;
    StateHeader header;
    Error error;
    m->run->updates = step;
    return CHECK(t, checkpoint_read_begin(&reader, dir, step, &two_heads, &header, &error), "%s", error.text) &&
           m->read(t, &reader) &&
           CHECK(t, checkpoint_read_end(&reader, &reader.sums, NULL, 0, &error), "%s", error.text);
}

// A run that is taken to a checkpoint and back between two steps; with and without master weights.
static void test_same_bits_when_resumed(Test *t) {
    for (int has_master = 0; has_master <= !PRECISION_IS_FP32; has_master++) {
        TempDir dir = temp_dir_make();
        RunShape shape = trains(2, 17, RECOMPUTE_GELU, FUSE_NOTHING);
        shape.has_master = has_master;
        uint64_t want = train_and_hash(t, shape, 3);
        Model m(t, &two_heads, shape), resumed(t, &two_heads, shape);
        if (!resumed.ok || !m.init(t)) { return; }
        for (int step = 0; step < 2; step++) { train_one(&m.gpt2, step, 2, 17); }
        if (write_checkpoint(t, &m, dir.path, 2) && read_checkpoint(t, &resumed, dir.path, 2)) {
            CHECK(t, resumed.hash() == m.hash(), "master weights %d: other weights were read", has_master);
            train_one(&resumed.gpt2, 2, 2, 17);
            CHECK(t, resumed.hash() == want, "master weights %d: other weights when resumed", has_master);
        }
        temp_dir_remove(&dir);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory, and numbers that are none

// All memory is taken at the start, as much as was planned. (How much a process takes can be seen in the emulator
// only.)
static void test_memory_is_what_was_planned(Test *t) {
    size_t before = 0, total = 0;
    cuda_check(cudaMemGetInfo(&before, &total));
    Model m(t, &two_heads, trains(2, 17, RECOMPUTE_GELU, FUSE_NOTHING));
    if (!m.ok) { return; }
    const MemoryPlan *plan = &m.gpt2.device_plan;
    for (int i = 0; i < plan->count; i++) {
        void *pointer;
        memcpy(&pointer, plan->rows[i].pointer, sizeof(pointer));
        bool inside =
            pointer >= plan->memory && (char *)pointer + plan->rows[i].bytes <= (char *)plan->memory + plan->total;
        CHECK(t, inside, "%s lies outside of the plan's memory", plan->rows[i].name);
    }
#ifdef GPT2_EMU
    size_t after = 0;
    cuda_check(cudaMemGetInfo(&after, &total));
    int64_t taken = (int64_t)(before - after);
    CHECK(t, taken == plan->total, "%lld bytes of GPU memory taken, planned %lld", (long long)taken,
          (long long)plan->total);
    if (!m.init(t)) { return; }
    long allocations = emu::allocation_count();
    for (int step = 0; step < 2; step++) { train_one(&m.gpt2, step, 2, 17); }
    CHECK(t, emu::allocation_count() == allocations, "%ld allocations by CUDA calls in two steps",
          emu::allocation_count() - allocations);
#endif
}

// The program's own training step: the host reads results one step late, by an event, and waits for nothing else; it
// allocates nothing. (Only the emulator counts.)
static void test_host_does_not_wait_in_a_step(Test *t) {
#ifdef GPT2_EMU
    const char *arguments[] = {"train_gpt2cu", "-i",        "README.md", "--layers", "1",  "--heads", "1", "--channels",
                               "64",           "--context", "16",        "-t",       "16", "-b",      "2", "-d",
                               "64",           "-x",        "5"};
    int count = (int)(sizeof(arguments) / sizeof(arguments[0]));
    std::unique_ptr<TrainRun> run(new TrainRun());
    std::unique_ptr<GPT2> model(new GPT2());
    ArgsOutcome outcome;
    Error error;
    comm_single(&run->comm);
    run->num_ranks = 1;
    bool ok = train_options_parse(&run->options, count, (char **)arguments, true, &outcome, &error) &&
              run_open(run.get(), DEFAULT_SEQ_LEN, PRECISION_NAME, &error);
    if (!CHECK(t, ok, "%s", error.text)) { return; }
    gpt2_plan(model.get(), &run->config, choose_shape(run.get()));
    ok = start(model.get(), run.get(), &error);
    int64_t waits = 0;
    long allocations = 0;
    for (int step = 0; ok && step < 5; step++) {
        if (step == 1) { waits = emu::synchronization_count(), allocations = emu::allocation_count(); }
        ok = train_step(model.get(), run.get(), step > 0, &error);
    }
    CHECK(t, ok, "%s", error.text);
    CHECK(t, emu::synchronization_count() == waits, "the host waited %lld times in four steps",
          (long long)(emu::synchronization_count() - waits));
    CHECK(t, emu::allocation_count() == allocations, "%ld allocations in four steps",
          (long)(emu::allocation_count() - allocations));
    CHECK(t, run->step == 5 && model->pending.info.step == 4, "step %lld, pending %lld", (long long)run->step,
          (long long)model->pending.info.step);
    ok = settle_step(model.get(), run.get(), &error);
    CHECK(t, ok && run->loss_outliers.count == 5, "%lld losses were read, expected 5",
          (long long)run->loss_outliers.count);
    run_close(run.get());
    gpt2_close(model.get());
#else
    SKIP(t, "only the emulator counts how often the host waits");
#endif
}

// A NaN in a weight or in a gradient: nothing is updated, then nor later, and the tensor is named.
static void test_nan_stops_updates(Test *t) {
    Model m(t, &two_heads, trains(2, 17, RECOMPUTE_NOTHING, FUSE_NOTHING));
    if (!m.init(t)) { return; }
    GPT2 *model = &m.gpt2;
    uint64_t want = m.hash();
    int bucket = zero_bucket_of(PARAM_fcb, 1);
    int64_t at = zero_tensor_offset(&model->zero, PARAM_fcb) + 3;
    floatX *weight = element(model, model->params, bucket, at);
    floatX nan_value, old_value;
    floatX_from_host(&nan_value, NAN);
    cuda_check(cudaMemcpy(&old_value, weight, sizeof(floatX), cudaMemcpyDeviceToHost));
    cuda_check(cudaMemcpy(weight, &nan_value, sizeof(floatX), cudaMemcpyHostToDevice));
    train_one(model, 0, 2, 17);
    CHECK(t, model->results[0].stopped == 1, "stopped is %d, expected 1", model->results[0].stopped);
    char name[64] = "";
    gpt2_forward(model, model->slots[0].device, 2, 17);
    bool found = name_nonfinite_tensor(model, model->params, "parameter", name, sizeof(name));
    CHECK(t, found && strcmp(name, "parameter fcb of layer 1") == 0, "named '%s'", name);
    cuda_check(cudaMemcpy(weight, &old_value, sizeof(floatX), cudaMemcpyHostToDevice));
    found = name_nonfinite_tensor(model, model->params, "parameter", name, sizeof(name));
    CHECK(t, !found, "named '%s' although all parameters are numbers", name);
    name_nonfinite_activation(model, 2 * 17, name, sizeof(name));
    CHECK(t, strcmp(name, "activation fc of layer 1") == 0, "named '%s'", name);
    train_one(model, 1, 2, 17); // a sound step after the bad one
    CHECK(t, m.hash() == want, "the weights changed");
    float bad = INFINITY;
    cuda_check(cudaMemcpy(element(model, model->grads, bucket, at), &bad, sizeof(bad), cudaMemcpyHostToDevice));
    CHECK(t,
          name_nonfinite_tensor(model, model->grads, "gradient of", name, sizeof(name)) &&
              strcmp(name, "gradient of fcb of layer 1") == 0,
          "named '%s'", name);
}

// What a sample's logits are: those of the last row of a batch, whatever stands behind it in the window.
static void test_sample_logits(Test *t) {
    Wanted w = wanted_open(t);
    Model m(t, &w.config, trains(w.B, w.T, RECOMPUTE_GELU, FUSE_NOTHING));
    if (!m.load(t, FIXTURES "small.bin")) { return; }
    GPT2 *model = &m.gpt2;
    int V = w.config.vocab_size;
    double tol = tolerance(longest_reduction(model), forward_depth(model));
    for (int i = 0; i < model->shape.T; i++) { model->history_staging[i] = V - 1; }
    for (int i = 0; i < w.T; i++) {
        append_to_sample(model, w.inputs[i]);
        const float *logits = sample_logits(model);
        check_tensor(t, "logits of a sample", std::vector<float>(logits, logits + V), w.logits + (int64_t)i * V, tol);
    }
    append_to_sample(model, 1);
    CHECK(t, model->history_length == w.T / 2 + 1, "a full window leaves %d tokens", model->history_length);
    CHECK(t, model->history_staging[0] == w.inputs[w.T - w.T / 2], "the newer half does not stay");
    free(w.data);
}

int main(void) {
    Suite s = suite_begin("test_gpt2cu_" PRECISION_NAME);
    RUN(&s, test_logits_and_loss);
    RUN(&s, test_gradients);
    RUN(&s, test_chunks_and_stale_memory);
    RUN(&s, test_accumulation);
    RUN(&s, test_ten_updates);
    RUN(&s, test_against_cpu_trainer);
    RUN(&s, test_same_bits_with_any_schedule);
    RUN(&s, test_same_bits_with_any_recompute);
    RUN(&s, test_same_bits_when_resumed);
    RUN(&s, test_memory_is_what_was_planned);
    RUN(&s, test_host_does_not_wait_in_a_step);
    RUN(&s, test_nan_stops_updates);
    RUN(&s, test_sample_logits);
    return suite_end(&s);
}
