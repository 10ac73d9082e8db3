// Tests the GPU trainer against PyTorch's numbers, in the emulator or on hardware. test_llama3.cu includes this file.
//
// PyTorch's numbers lie in dev/test/fixtures. They were computed in float64 and rounded once. So a difference is the
// error of this program's arithmetic alone.
#ifdef TEST_LLAMA3
#define main train_llama3cu_main
#include "train_llama3.cu"
#undef main
#else
#define main train_gpt2cu_main
#include "train_gpt2.cu"
#undef main
#endif

#include <algorithm>
#include <array>
#include <memory>

#include "dev/test/fixture.h"
#include "dev/test/layers/gpu_test.h"
#include "dev/test/temp_dir.h"
#include "dev/test/test_main.h"
#include "llmc/files/checkpoint.h"
#include "llmc/files/model_file.h"

#define FIXTURES "dev/test/fixtures/"
#ifdef TEST_LLAMA3
// T, V, L, NH, C, Vp, variant, KV, HS, F, tied, biases, epsilon, theta, factor, low, high, original context
#define SIZES(T, V, Vp, L, NH, C)                                                                                      \
    { T, V, L, NH, C, Vp, 3, (NH) % 4 ? 1 : 2, (C) / (NH), 3 * (C), (L) % 2, !((NH) % 2), 1e-5f, 1e4f, 8, 1, 4, 16, 0 }
#else
#define SIZES GPT2_CONFIG
#endif

#ifdef GPT2_EMU
static const bool is_emulated = true;
#else
static const bool is_emulated = false;
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Tolerances
//
// Each rounding is off by up to half the distance of neighbouring numbers. D roundings in a row are off by about
// sqrt(D) * epsilon / 2 of the largest values, and the worst of thousands of elements by about 4 times that.
// In fp32 each of the K terms of a reduction counts as a rounding. In bf16 sums are fp32 and only stores round.
static double tolerance(int64_t K, int64_t D) {
    return PRECISION_IS_FP32 ? 2.0 * sqrt((double)(D * K)) * FLT_EPSILON : 2.0 * sqrt((double)D) * FLOATX_EPSILON;
}

static int64_t longest_reduction(const Trainer *trainer) {
    const ModelConfig *config = &trainer->model.config;
    return max_i64(max_i64(config->mlp_width, (int64_t)trainer->model.shape.B * trainer->model.shape.T),
                   config->vocab_size);
}
// The values stored one after another. A block stores 11: two LayerNorms, qkv, the attention's weights and its output,
// two projections, two residuals, fc and GELU. The final LayerNorm and the logits follow. The backward pass goes
// through all of them again. The fixture's weights are exact in both precisions. Llama also stores rotated q and k.
static int64_t forward_depth(const Trainer *trainer) {
    return (MODEL_VARIANT == 0 ? 11 : 12) * trainer->model.config.num_layers + 2;
}
static int64_t backward_depth(const Trainer *trainer) { return 2 * forward_depth(trainer); }

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

// Reads one number of the GPU's, after all work that is queued.
template <class T> static T value_at(const T *device) {
    T value;
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemcpy(&value, device, sizeof(value), cudaMemcpyDeviceToHost));
    return value;
}

// Waits for the copy. From pageable memory cudaMemcpy may return before the data has arrived, and the model's streams
// do not wait for it.
template <class T> static void to_gpu(T *device, const T *host, size_t n) {
    cuda_check(cudaMemcpy(device, host, n * sizeof(T), cudaMemcpyHostToDevice));
    cuda_check(cudaDeviceSynchronize());
}

// Copies this rank's part of an array of buckets to its places in the order of the parameter table. The rest stays.
template <class T> static void take_own_part(const Trainer *trainer, Buckets<T> array, std::vector<float> *ordered) {
    visit_own_pieces(&trainer->shards, [&](const ZeroPiece &piece) {
        std::vector<float> values = to_host(piece_element(&trainer->shards, array, piece), piece.strips * piece.count);
        for (int64_t i = 0; i < piece.strips; i++) {
            const float *strip = values.data() + i * piece.count;
            std::copy(strip, strip + piece.count, ordered->begin() + piece.in_file + i * piece.stride);
        }
        return true;
    });
}

// Returns an array in the order of the parameter table. There is one rank, which has all of it.
template <class T> static std::vector<float> in_table_order(const Trainer *trainer, Buckets<T> array) {
    std::vector<float> ordered((size_t)model_num_params(&trainer->model.config), NAN);
    take_own_part(trainer, array, &ordered);
    return ordered;
}

// A model with its memory and its GPU, and a run for its state.
struct Rig {
    Trainer trainer;
    Comm comm;
    TrainOptions options = {};
    std::unique_ptr<TrainRun> run{new TrainRun()};
    bool ok = false;

    Rig(Test *t, const ModelConfig *config, RunShape shape);
    ~Rig() { trainer_close(&trainer); }
    Rig(const Rig &) = delete;
    Rig &operator=(const Rig &) = delete;
};

Rig::Rig(Test *t, const ModelConfig *config, RunShape shape) {
    Error error;
    comm_single(&comm);
    take_ranks(run.get(), &comm);
    run->config = *config;
    run->options = &options;
    options.seed = 42;
    trainer_plan(&trainer, config, shape);
    ok = CHECK(t, trainer_open(&trainer, &comm, false, &error), "%s", error.text) &&
         CHECK(t, upload_rope(&trainer.model, &trainer.gpu, &error), "%s", error.text);
}

// Reads what this rank owns. The test runs several ranks in one process, so no rank can send its part.
static bool rig_read(Test *t, Rig *m, CheckpointReader *reader) {
    Error error;
    m->ok = m->ok && CHECK(t, trainer_read_state(&m->trainer, m->run.get(), reader, &error), "%s", error.text);
    if (m->ok && m->trainer.shards.all.size == 1) { share_state(&m->trainer); }
    return m->ok;
}

// Starts a run with the parameters of a file, or with those of a new model.
static bool rig_load(Test *t, Rig *m, const char *path) {
    Error error;
    ModelFile file;
    m->run->model_file = &file;
    m->ok = m->ok && CHECK(t, model_file_open(&file, path, &error), "%s", error.text) && rig_read(t, m, NULL);
    m->run->model_file = NULL;
    return m->ok;
}
static bool rig_init(Test *t, Rig *m) { return rig_read(t, m, NULL); }

// Returns the SUM64 of the fp32 weights that this rank owns.
static uint64_t sum_of_own(Rig *m) {
    uint64_t sum = 0;
    Error error;
    if (!hash_params(&m->trainer, &sum, &error)) { abort(); } // one process has no rank that could fail
    return sum;
}

// Hashes the fp32 weights and the weights that the layers read.
static uint64_t hash_of(Rig *m) {
    uint64_t weights[2] = {sum_of_own(m), hash_of(in_table_order(&m->trainer, m->trainer.model.params))};
    return hash64(weights, sizeof(weights));
}

static RunShape trains(int B, int T, int recompute, int gelu_fusion) {
    RunShape shape;
    memset(&shape, 0, sizeof(shape));
    shape.kind = RUN_TRAINS;
    shape.B = B, shape.T = T;
    shape.recompute = recompute, shape.gelu_fusion = gelu_fusion;
    shape.head_rows = 8192;
    shape.has_master = !PRECISION_IS_FP32;
    shape.grid = {1, 1, 1, 1};
    shape.pipeline = {PIPE_1F1B, 1, 0, 1, 1};
    return shape;
}

// Runs the forward of a batch in a slot's staging memory, and its losses or its backward.
static void run_batch(Trainer *trainer, BatchSlot *slot, int B, int T, const BatchRole *role) {
    int64_t N = (int64_t)B * T;
    send_batch(trainer, slot, B, T, true);
    trainer->model.pass = pass_of(&trainer->model, {PIPE_FORWARD, 0, 0, 0, false}, 0);
    forward_pass(trainer, slot, B, T, role->trains ? LINEAR_FOR_GRADIENTS : LINEAR_FOR_LOSS);
    if (role->trains) {
        backward_pass(trainer, slot, B, T, role);
    } else {
        model_loss(&trainer->model, &trainer->gpu, &trainer->shards, slot->device + N, N, role);
    }
    release_batch(&trainer->gpu, slot);
}

// Runs a batch. Returns the sum of its losses, added to the losses of the step's earlier batches.
static double run_tokens(Trainer *trainer, const int32_t *tokens, const int32_t *targets, int B, int T,
                         const BatchRole *role) {
    size_t N = (size_t)(B * T);
    BatchSlot *slot = next_slot(&trainer->feeder, &trainer->shards);
    std::copy(tokens, tokens + N, slot->staging);
    std::copy(targets, targets + N, slot->staging + N);
    run_batch(trainer, slot, B, T, role);
    return value_at(role->loss_sum);
}

// Returns the mean loss of a batch and adds the batch's gradients: grads += dloss/dparams.
static double gradient(Trainer *trainer, const int32_t *tokens, const int32_t *targets, int B, int T, float dloss) {
    BatchRole role;
    role.trains = true, role.dloss = dloss;
    role.loss_sum = trainer->stats.loss_sum;
    return run_tokens(trainer, tokens, targets, B, T, &role) / (double)(B * T);
}

// Makes one update from the gradients in memory. Muon takes its own rate and momentum, if the trainer has Muon.
static StepResult update(Trainer *trainer, double grad_clip, float lr, float beta1, float beta2, float epsilon,
                         float decay, int64_t number, int64_t rows, float muon_lr, float momentum) {
    uint64_t key = rounding_key(42, number);
    reduce_step(trainer, 1.0 / (double)rows, grad_clip, false, 0);
    trainer_update(trainer, adamw_factors(lr, beta1, beta2, epsilon, decay, number, key),
                   {muon_lr, momentum, decay, key});
    cuda_check(cudaStreamSynchronize(trainer->gpu.stream));
    return trainer->stats.results[0];
}

// ---------------------------------------------------------------------------------------------------------------------
// One batch of a small model against PyTorch

struct Wanted {
    std::string model;
    std::unique_ptr<unsigned char, void (*)(void *)> data{NULL, free};
    int B, T, N;
    const int32_t *inputs, *targets; // (B,T)
    const float *logits, *losses;    // (B,T,V) of GPT-2, (B,T) of Llama
    const float *loss, *grads;       // the mean, the tensors in file order
    ModelConfig config;
};

static Wanted wanted_open(Test *t,
                          const std::string &name = MODEL_VARIANT == 0 ? "small" : "llama/g4_untied_bias_hs16") {
    Wanted w;
    Error error;
    ModelFile file;
    int64_t size;
    std::string state = FIXTURES + name + (MODEL_VARIANT == 0 ? "_debug_state.bin" : "_state.bin");
    w.model = FIXTURES + name + ".bin";
    CHECK(t, model_file_open(&file, w.model.c_str(), &error), "%s", error.text);
    w.config = file.config;
    w.data.reset(fixture_read_file(state.c_str(), &size));
    const int32_t *header = (const int32_t *)w.data.get();
    w.B = header[2], w.T = header[3], w.N = w.B * w.T;
    w.inputs = header + 256;
    w.targets = w.inputs + w.N;
    w.logits = w.losses = (const float *)(w.targets + w.N);
    int64_t P = model_num_params(&w.config), outputs = w.N, more = header[4]; // losses, and those of some steps
    if (MODEL_VARIANT == 0) { outputs *= w.config.vocab_size, more = 1; }
    w.grads = w.losses + outputs + (MODEL_VARIANT == 0 ? 1 : 0);
    w.loss = MODEL_VARIANT == 0 ? w.grads - 1 : w.grads + P;
    if (size != 4 * (256 + 2 * w.N + outputs + more + P)) { fixture_fail(state.c_str(), "another size", ""); }
    return w;
}

// Computes the gradients of the batch alone and returns its loss.
static double gradient_of(Trainer *trainer, const Wanted &w) {
    zero_gradients(&trainer->shards, trainer->model.grads);
    return gradient(trainer, w.inputs, w.targets, w.B, w.T, 1.0f / (float)w.N);
}

static bool check_loss(Test *t, const Trainer *trainer, const std::string &what, double loss, const Wanted &w) {
    double tol = tolerance(longest_reduction(trainer), forward_depth(trainer));
    return check_tensor(t, what, std::vector<float>(1, (float)loss), w.loss, tol);
}

static void check_gradients(Test *t, Trainer *trainer, const float *want, const char *what) {
    std::vector<float> grads = in_table_order(trainer, trainer->model.grads);
    double tol = tolerance(longest_reduction(trainer), backward_depth(trainer));
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int64_t at = param_offset(&trainer->model.config, i), n = param_size(&trainer->model.config, i);
        std::vector<float> tensor(grads.begin() + at, grads.begin() + at + n);
        check_tensor(t, std::string(what) + ", gradient of " + param_specs[i].name, tensor, want + at, tol);
    }
}

#ifndef TEST_LLAMA3
TEST(test_logits_and_loss) {
    Wanted w = wanted_open(t);
    Rig m(t, &w.config, trains(w.B, w.T, RECOMPUTE_NOTHING, FUSE_NOTHING));
    if (!rig_load(t, &m, w.model.c_str())) { return; }
    Trainer *trainer = &m.trainer;
    int64_t V = w.config.vocab_size, Vp = w.config.padded_vocab_size;
    BatchRole role;
    role.loss_sum = trainer->stats.loss_sum;
    double loss = run_tokens(trainer, w.inputs, w.targets, w.B, w.T, &role) / w.N;
    std::vector<float> padded = to_host(trainer->model.acts.logits.data, w.N * Vp), logits;
    for (size_t i = 0; i < padded.size(); i++) {
        if ((int64_t)i % Vp < V) { logits.push_back(padded[i]); }
    }
    check_tensor(t, "logits", logits, w.logits, tolerance(longest_reduction(trainer), forward_depth(trainer)));
    check_loss(t, trainer, "loss", loss, w);
}
#endif

// Checks every recompute level and every fusion of GELU against PyTorch's gradients. All levels must give equal bits.
TEST(test_gradients) {
    Wanted w = wanted_open(t);
    for (int fusion = FUSE_NOTHING; fusion <= MODEL_GELU_FUSION; fusion++) {
        uint64_t first = 0;
        for (int level = RECOMPUTE_NOTHING; level <= RECOMPUTE_BLOCK; level++) {
            Rig m(t, &w.config, trains(w.B, w.T, level, fusion));
            if (!rig_load(t, &m, w.model.c_str())) { return; }
            gradient_of(&m.trainer, w);
            char what[64];
            snprintf(what, sizeof(what), "recompute %d, GELU fusion %d", level, fusion);
            uint64_t hash = hash_of(in_table_order(&m.trainer, m.trainer.model.grads));
            if (level == RECOMPUTE_NOTHING) {
                check_gradients(t, &m.trainer, w.grads, what);
                first = hash;
            }
            CHECK(t, hash == first, "%s: other gradients than without recompute", what);
        }
    }
}

// The head may work on any number of rows at a time. Memory that a step did not write must not matter.
TEST(test_chunks_and_stale_memory) {
    Wanted w = wanted_open(t);
    Rig m(t, &w.config, trains(w.B, w.T, RECOMPUTE_GELU, FUSE_NOTHING));
    if (!rig_load(t, &m, w.model.c_str())) { return; }
    Trainer *trainer = &m.trainer;
    const int chunks[] = {w.N, 16, 5, 1};
    for (int rows : chunks) {
        for (int i = 0; i < trainer->device_plan.count; i++) {
            const PlanRow *row = &trainer->device_plan.rows[i];
            if (row->category != PLAN_ACTIVATION) { continue; }
            cuda_check(cudaMemsetAsync((char *)trainer->device_plan.memory + row->offset, 0xff, (size_t)row->bytes,
                                       trainer->gpu.stream));
        }
        trainer->model.head_rows = rows;
        std::string what = std::to_string(rows) + " rows of logits at a time";
        check_loss(t, trainer, what + ", loss", gradient_of(trainer, w), w);
        check_gradients(t, trainer, w.grads, what.c_str());
    }
}

// Two micro-batches of one sequence each must add up to the gradient of both at once, in every tensor.
TEST(test_accumulation) {
    Wanted w = wanted_open(t);
    Rig whole(t, &w.config, trains(w.B, w.T, RECOMPUTE_GELU, FUSE_NOTHING));
    Rig parts(t, &w.config, trains(1, w.T, RECOMPUTE_GELU, FUSE_NOTHING));
    if (!rig_load(t, &whole, w.model.c_str()) || !rig_load(t, &parts, w.model.c_str())) { return; }
    float dloss = 1.0f / (float)w.N;
    gradient_of(&whole.trainer, w);
    zero_gradients(&parts.trainer.shards, parts.trainer.model.grads);
    for (int b = 0; b < w.B; b++) { gradient(&parts.trainer, w.inputs + b * w.T, w.targets + b * w.T, 1, w.T, dloss); }
    std::vector<float> want = in_table_order(&whole.trainer, whole.trainer.model.grads);
    check_gradients(t, &parts.trainer, want.data(), "one sequence at a time");
}

#ifndef TEST_LLAMA3
// Returns Muon's learning rate and momentum for a step of the fixture; zeros for a fixture of AdamW.
static std::array<float, 2> muon_of_step(const Fixture *f, int step, OptimizerKind optimizer) {
    if (optimizer == OPTIMIZER_ADAMW) { return {0.0f, 0.0f}; }
    int steps = *fixture_ints(f, "total", 1), warmup = *fixture_ints(f, "muon_warmup", 1);
    float of_peak = fixture_floats(f, "lr", steps)[step] / fixture_float(f, "peak");
    return {of_peak * fixture_float(f, "muon_lr"),
            muon_momentum_of_step(fixture_float(f, "muon_momentum"), warmup, step)};
}

// Checks the loss and the norm of each of ten updates with clipping, warm-up and decay.
static void check_ten_updates(Test *t, const char *fixture, OptimizerKind optimizer) {
    Wanted w = wanted_open(t);
    Fixture f = fixture_open(fixture);
    RunShape shape = trains(w.B, w.T, RECOMPUTE_GELU, FUSE_NOTHING);
    shape.optimizer = optimizer;
    if (optimizer == OPTIMIZER_MUON) { shape.muon_scale = (MuonScale)*fixture_ints(&f, "muon_scale", 1); }
    Rig m(t, &w.config, shape);
    if (!rig_load(t, &m, w.model.c_str())) { return; }
    Trainer *trainer = &m.trainer;
    int total = *fixture_ints(&f, "total", 1), N = w.N, clipped = 0;
    const int32_t *inputs = fixture_ints(&f, "inputs", total * N), *targets = fixture_ints(&f, "targets", total * N);
    const float *rates = fixture_floats(&f, "lr", total), *losses = fixture_floats(&f, "loss", total);
    const float *norms = fixture_floats(&f, "norm", total);
    float clip = fixture_float(&f, "grad_clip");
    int steps = test_is_quick() && optimizer == OPTIMIZER_MUON ? 2 : total;
    int64_t rounds = optimizer == OPTIMIZER_MUON ? 3 * MUON_ROUNDS : 0; // a round of Muon stores three matrices
    double tol = tolerance(longest_reduction(trainer), (backward_depth(trainer) + rounds) * steps);
    for (int step = 0; step < steps; step++) {
        std::array<float, 2> muon = muon_of_step(&f, step, optimizer);
        zero_gradients(&trainer->shards, trainer->model.grads);
        gradient(trainer, inputs + step * N, targets + step * N, w.B, w.T, 1.0f / (float)N);
        StepResult result =
            update(trainer, clip, rates[step], fixture_float(&f, "beta1"), fixture_float(&f, "beta2"),
                   fixture_float(&f, "eps"), fixture_float(&f, "weight_decay"), step + 1, N, muon[0], muon[1]);
        float loss = (float)result.loss, norm = (float)result.norm;
        check_close(t, "loss", &loss, losses + step, 1, 0.0, tol);
        check_close(t, "norm", &norm, norms + step, 1, 0.0, tol);
        CHECK(t, !result.stopped, "step %d: stopped %d", step, result.stopped);
        clipped += norm > clip;
    }
    CHECK(t, clipped > 0, "no update was clipped");
    fixture_close(&f);
}

TEST(test_ten_updates) { check_ten_updates(t, FIXTURES "small_steps.bin", OPTIMIZER_ADAMW); }
TEST(test_ten_updates_with_muon) { check_ten_updates(t, FIXTURES "small_muon_steps.bin", OPTIMIZER_MUON); }
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Equal bits

static const ModelConfig two_heads = SIZES(24, 257, 384, 2, 2, 128);
static const ModelConfig narrow = SIZES(24, 257, 384, 2, 4, 32); // where no width shows more; two ranks can split it

// Makes a batch with something to learn: each token makes one next token likely.
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

static double train_one(Trainer *trainer, int step, int B, int T) {
    std::vector<int32_t> tokens((size_t)(B * T)), targets((size_t)(B * T));
    make_batch(step, B, T, tokens.data(), targets.data());
    zero_gradients(&trainer->shards, trainer->model.grads);
    gradient(trainer, tokens.data(), targets.data(), B, T, 1.0f / (float)(B * T));
    return update(trainer, 1.0, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, step + 1, B * T, 0.02f, 0.9f).loss;
}

static uint64_t train_and_hash(Test *t, RunShape shape, int steps) {
    Rig m(t, &two_heads, shape);
    if (!rig_init(t, &m)) { return 0; }
    for (int step = 0; step < steps; step++) { train_one(&m.trainer, step, shape.B, shape.T); }
    return hash_of(&m);
}

TEST(test_same_bits_with_any_schedule) {
    int steps = test_is_quick() ? 1 : 2;
    for_each_schedule(t, "weights",
                      [&] { return train_and_hash(t, trains(2, 17, RECOMPUTE_GELU, FUSE_NOTHING), steps); });
}

typedef std::vector<std::unique_ptr<Rig>> Ranks;

// All ranks save together, as run_save does.
static bool write_checkpoint(Test *t, const Ranks &ranks, const char *dir, int64_t step) {
    std::vector<CheckpointWriter> writers(ranks.size());
    CheckpointSums all = {{0}};
    StateHeader header;
    Error error;
    bool ok = true;
    state_init(&header);
    if (ranks[0]->trainer.model.shape.optimizer == OPTIMIZER_MUON) { state_add(&header, "--optimizer muon\n"); }
    for (size_t r = 0; ok && r < ranks.size(); r++) {
        ok = checkpoint_write_begin(&writers[r], dir, step, &narrow, &header, NULL, 0, r == 0, &error);
    }
    for (size_t r = 0; ok && r < ranks.size(); r++) {
        ok =
            trainer_write_state(&ranks[r]->trainer, &writers[r], &error) && checkpoint_write_flush(&writers[r], &error);
        for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { all.sums[a] += writers[r].sums.sums[a]; }
    }
    return CHECK(t, ok && checkpoint_write_commit(&writers[0], &all, &error), "%s", error.text);
}

static bool read_checkpoint(Test *t, const Ranks &ranks, const char *dir, int64_t step) {
    std::vector<CheckpointReader> readers(ranks.size());
    CheckpointSums all = {{0}};
    StateHeader header;
    Error error;
    bool ok = true;
    for (size_t r = 0; ok && r < ranks.size(); r++) {
        ranks[r]->run->updates = step;
        ok = CHECK(t, checkpoint_read_begin(&readers[r], dir, step, &narrow, &header, &error), "%s", error.text) &&
             rig_read(t, ranks[r].get(), &readers[r]);
        for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { all.sums[a] += readers[r].sums.sums[a]; }
    }
    for (size_t r = 0; ok && r < ranks.size(); r++) {
        ok = CHECK(t, checkpoint_read_end(&readers[r], &all, NULL, 0, &error), "%s", error.text);
    }
    return ok;
}

static Ranks open_ranks(Test *t, RunShape shape, RankGrid grid, int stage) {
    Ranks ranks;
    shape.grid = grid;
    shape.zero_stage = stage;
    for (shape.rank = 0; shape.rank < grid_ranks(&grid); shape.rank++) {
        ranks.push_back(std::unique_ptr<Rig>(new Rig(t, &narrow, shape)));
    }
    return ranks;
}

static bool are_open(const Ranks &ranks) {
    for (const std::unique_ptr<Rig> &rank : ranks) {
        if (!rank->ok) { return false; }
    }
    return true;
}

static void check_same_file(Test *t, const std::string &a, const std::string &b, const char *name, const char *what) {
    size_t size_a, size_b;
    uint8_t *data_a = temp_read((a + "/" + name).c_str(), &size_a);
    uint8_t *data_b = temp_read((b + "/" + name).c_str(), &size_b);
    CHECK(t, size_a == size_b && memcmp(data_a, data_b, size_a) == 0, "%s: another %s", what, name);
    free(data_a);
    free(data_b);
}

// Several ranks each read their part of one rank's checkpoint, and write the checkpoint again. A single rank trains one
// step more, which gives the weights *next.
static void check_checkpoint_of(Test *t, const std::string &folder, const Ranks &run, RankGrid grid, int stage,
                                uint64_t *next) {
    Ranks ranks = open_ranks(t, run[0]->trainer.model.shape, grid, stage);
    std::string again = test_new_folder(t);
    std::string what = format("a grid of %d x %d, stage %d", grid.dp, grid.tp, stage);
    if (are_open(ranks) && read_checkpoint(t, ranks, folder.c_str(), 2)) {
        uint64_t sum = 0;
        std::vector<float> params((size_t)model_num_params(&narrow), NAN);
        for (const std::unique_ptr<Rig> &rank : ranks) {
            sum += sum_of_own(rank.get());
            take_own_part(&rank->trainer, rank->trainer.model.params, &params);
        }
        CHECK(t, sum == sum_of_own(run[0].get()), "%s: other fp32 weights", what.c_str());
        CHECK(t, hash_of(params) == hash_of(in_table_order(&run[0]->trainer, run[0]->trainer.model.params)),
              "%s: other weights for the layers", what.c_str());
        if (write_checkpoint(t, ranks, again.c_str(), 2)) {
            check_same_file(t, folder, again, "model_00000002.bin", what.c_str());
            check_same_file(t, folder, again, "state_00000002.bin", what.c_str());
        }
        if (ranks.size() == 1) {
            train_one(&ranks[0]->trainer, 2, 2, 17);
            *next = hash_of(ranks[0].get());
        }
    }
}

static void check_checkpoints(Test *t, OptimizerKind optimizer, bool has_master, int count) {
    const struct {
        RankGrid grid;
        int stage;
    } ranks[] = {{{1, 1, 1, 1}, ZERO_REPLICATE}, {{3, 1, 1, 2}, ZERO_PARAMETERS}, {{2, 1, 1, 1}, ZERO_REPLICATE},
                 {{3, 1, 1, 1}, ZERO_OPTIMIZER}, {{4, 1, 1, 1}, ZERO_GRADIENTS},  {{5, 1, 1, 1}, ZERO_PARAMETERS},
                 {{1, 1, 1, 2}, ZERO_REPLICATE}, {{4, 1, 1, 2}, ZERO_OPTIMIZER}};
    RunShape shape = trains(2, 17, RECOMPUTE_GELU, FUSE_NOTHING);
    shape.optimizer = optimizer, shape.has_master = has_master;
    std::string folder = test_new_folder(t);
    uint64_t next = 0;
    Ranks run = open_ranks(t, shape, {1, 1, 1, 1}, ZERO_REPLICATE);
    if (!rig_init(t, run[0].get())) { return; }
    for (int step = 0; step < 2; step++) { train_one(&run[0]->trainer, step, 2, 17); }
    if (write_checkpoint(t, run, folder.c_str(), 2)) {
        for (int i = 0; i < count; i++) { check_checkpoint_of(t, folder, run, ranks[i].grid, ranks[i].stage, &next); }
        train_one(&run[0]->trainer, 2, 2, 17);
        CHECK(t, hash_of(run[0].get()) == next, "other weights when resumed");
    }
}

// A checkpoint must not depend on the number of ranks, nor on what they shard. A resumed run must go on as the run did.
TEST(test_checkpoints_of_any_ranks) {
    for (int has_master = 0; has_master <= !PRECISION_IS_FP32; has_master++) {
        bool few = test_is_quick() && !has_master; // the ranks share any array alike
        check_checkpoints(t, OPTIMIZER_ADAMW, has_master, few ? 2 : 8);
    }
}
TEST(test_checkpoints_of_any_ranks_with_muon) {
    check_checkpoints(t, OPTIMIZER_MUON, !PRECISION_IS_FP32, test_is_quick() ? 3 : 8);
}

// ---------------------------------------------------------------------------------------------------------------------
// What each of several ranks holds, and where

// Their buckets cover three cases: the last ranks own nothing, a bucket has fewer elements than there are ranks, and a
// bucket is many times larger than the staging memory.
static const ModelConfig layouts[] = {two_heads, SIZES(1, 3, 8, 1, 1, 8), SIZES(7, 50, 56, 3, 1, 40),
                                      SIZES(1024, 50257, 50304, 12, 12, 768), SIZES(1024, 50257, 50304, 2, 25, 1600)};
static const int rank_counts[] = {1, 2, 3, 4, 7, 64, 3000};

static RunShape shape_of_rank(RunKind kind, int num_ranks, int rank, int stage,
                              OptimizerKind optimizer = OPTIMIZER_ADAMW) {
    RunShape shape = trains(2, 1, RECOMPUTE_GELU, FUSE_NOTHING);
    shape.kind = kind;
    shape.grid = {num_ranks, 1, 1, 1};
    shape.rank = rank;
    shape.zero_stage = stage;
    shape.loss_places = 40 * num_ranks;
    shape.eval_sequences = 33;
    shape.optimizer = optimizer;
    return shape;
}

// Calls body(trainer, what) for a few ranks of each world size, in every stage. The rows have addresses without memory.
template <class Body> static void for_each_plan(OptimizerKind optimizer, Body body) {
    std::unique_ptr<Trainer> trainer(new Trainer());
    for (const ModelConfig &config : layouts) {
        for (int num_ranks : rank_counts) {
            for (int rank : {0, num_ranks / 2, num_ranks - 1}) {
                for (int stage = ZERO_REPLICATE; stage <= ZERO_PARAMETERS; stage++) {
                    char what[96];
                    snprintf(what, sizeof(what), "%d layers of %d channels, rank %d of %d, stage %d", config.num_layers,
                             config.channels, rank, num_ranks, stage);
                    trainer_plan(trainer.get(), &config, shape_of_rank(RUN_TRAINS, num_ranks, rank, stage, optimizer));
                    plan_set_pointers(&trainer->device_plan, (void *)((uintptr_t)1 << 40));
                    body(trainer.get(), what);
                }
            }
        }
    }
}

// Returns the elements of the plan's row that sets this pointer, or 0 without such a row.
template <class T> static int64_t planned(const MemoryPlan *plan, T *const *pointer) {
    for (int i = 0; i < plan->count; i++) {
        if (plan->rows[i].pointer == (const void *)pointer) { return plan->rows[i].bytes / (int64_t)sizeof(T); }
    }
    return 0;
}

// Checks the length of an array, and of its room for whole buckets. Its buckets lie one after another and fill it. A
// rank's part is elements [rank * shard, (rank + 1) * shard) of each bucket, in every array.
template <class T>
static void check_array(Test *t, const Trainer *trainer, const Buckets<T> *array, const char *name, int64_t length,
                        int64_t room, const char *what) {
    const Shards *s = &trainer->shards;
    const ZeroLayout *zero = &s->layout;
    const T *next = array->data;
    int64_t got = planned(&trainer->device_plan, &array->data), slots = planned(&trainer->device_plan, &array->slots);
    CHECK(t, got == length && slots == room, "%s: %lld and %lld %s, expected %lld and %lld", what, (long long)got,
          (long long)slots, name, (long long)length, (long long)room);
    CHECK(t, length == 0 || array->parts == (length < zero_offset(zero, zero->num_buckets)), "%s: parts of %s", what,
          name);
    for (int b = 0; b < zero->num_buckets && length > 0; b++) {
        int64_t shard = zero_shard(zero, b), first = trainer->shards.rank * shard;
        const T *own = bucket_part(s, *array, b), *begin = array->parts ? own : bucket_element(s, *array, b, 0);
        CHECK(t, begin == next && own == begin + (array->parts ? 0 : first), "%s: bucket %d of %s begins at %lld", what,
              b, name, (long long)(begin - array->data));
        CHECK(t, bucket_element(s, *array, b, first + shard - 1) == own + shard - 1, "%s: the end of bucket %d of %s",
              what, b, name);
        CHECK(t, (uintptr_t)own % 128 == 0, "%s: part of bucket %d of %s is not aligned", what, b, name);
        CHECK(t, room == 0 || whole_bucket(s, *array, b) == array->slots + zero_slot_offset(zero, b),
              "%s: room of bucket %d of %s", what, b, name);
        next = begin + (array->parts ? shard : zero_padded(zero, b));
    }
    CHECK(t, next == array->data + length, "%s: %s ends %lld elements before its end", what, name,
          (long long)(array->data + length - next));
    CHECK(t, length > 0 || bucket_part(s, *array, 0) == NULL, "%s: %s is not there", what, name);
}

// Lengths and rooms are those of zero_lengths, which test_zero.c tests. Buckets with one slot have one room.
TEST(test_buckets_are_where_they_are_planned) {
    for_each_plan(OPTIMIZER_ADAMW, [&](const Trainer *trainer, const char *what) {
        const ZeroLayout *zero = &trainer->shards.layout;
        ZeroLengths n = zero_lengths(zero, trainer->model.shape.zero_stage);
        int64_t partials = 0;
        check_array(t, trainer, &trainer->model.params, "params", n.params, n.param_slots, what);
        check_array(t, trainer, &trainer->model.grads, "grads", n.grads, n.grad_slots, what);
        check_array(t, trainer, &trainer->optimizer.m, "adam_m", n.m, 0, what);
        check_array(t, trainer, &trainer->optimizer.v, "adam_v", n.v, 0, what);
        check_array(t, trainer, &trainer->optimizer.master, "master", PRECISION_IS_FP32 ? 0 : n.master, 0, what);
        for (int b = 0; b < zero->num_buckets; b++) {
            partials += global_norm_scratch_doubles(zero_shard(zero, b));
            int slot = zero_slot(zero, b);
            CHECK(t, slot >= 0 && slot < ZERO_NUM_SLOTS, "slot %d", slot);
            for (int other = 0; other < b; other++) {
                CHECK(t,
                      (slot == zero_slot(zero, other)) == (zero_slot_offset(zero, b) == zero_slot_offset(zero, other)),
                      "%s: buckets %d and %d have one room or one slot, not both", what, b, other);
            }
        }
        CHECK(t, planned(&trainer->device_plan, &trainer->stats.norm_partials) == partials, "%s: sums of squares",
              what);
    });
}

// Checks v beside Muon: bucket 0 as with AdamW, then the vectors of each block, whole on every rank, then the bucket of
// a head that is not tied, up to the end.
static void check_rest(Test *t, const Trainer *trainer, const char *what) {
    const Shards *s = &trainer->shards;
    const ZeroLayout *zero = &s->layout;
    Buckets<float> v = trainer->optimizer.v;
    int64_t length = zero_lengths(zero, trainer->model.shape.zero_stage).v, vectors = zero_muon(zero, 1);
    const float *next = v.data + (v.parts ? zero_shard(zero, 0) : zero_padded(zero, 0));
    CHECK(t, planned(&trainer->device_plan, &trainer->optimizer.v.data) == length && buckets_length(s, v) == length,
          "%s: %lld elements of v, expected %lld", what, (long long)buckets_length(s, v), (long long)length);
    CHECK(t, bucket_part(s, v, 0) == v.data + (v.parts ? 0 : s->rank * zero_shard(zero, 0)), "%s: bucket 0", what);
    for (int b = 1; b <= zero->config.num_layers; b++) {
        const float *first = bucket_element(s, v, b, vectors), *last = bucket_element(s, v, b, zero_size(zero, b) - 1);
        CHECK(t, bucket_element(s, v, b, vectors - 1) == NULL, "%s: a matrix of bucket %d has v", what, b);
        CHECK(t, first == next && last - first == zero_size(zero, b) - vectors - 1, "%s: v of bucket %d", what, b);
        next += zero_rest(zero);
        CHECK(t, next > last, "%s: v of bucket %d has no room", what, b);
    }
    if (zero_head(zero) != 0) {
        int64_t own = v.parts ? 0 : s->rank * zero_shard(zero, zero_head(zero));
        CHECK(t, bucket_part(s, v, zero_head(zero)) == next + own, "%s: v of the head", what);
        next += v.parts ? zero_shard(zero, zero_head(zero)) : zero_padded(zero, zero_head(zero));
    }
    CHECK(t, next == v.data + length, "%s: v ends %lld elements before its end", what,
          (long long)(v.data + length - next));
}

// With Muon, all arrays but v are those of AdamW. A rank has room for the blocks that it owns, and in stages 1 to 3 for
// its shards of the blocks of all owners and for one block more.
TEST(test_buckets_with_muon) {
    for_each_plan(OPTIMIZER_MUON, [&](const Trainer *trainer, const char *what) {
        const ZeroLayout *zero = &trainer->shards.layout;
        const Optimizer *o = &trainer->optimizer;
        ZeroLengths n = zero_lengths(zero, trainer->model.shape.zero_stage);
        bool shards = trainer->shards.stage >= ZERO_OPTIMIZER;
        int64_t own = ceil_div_i64(zero->config.num_layers, shards ? zero->num_ranks : 1);
        int64_t room = own * zero_padded(zero, 1);
        check_array(t, trainer, &trainer->optimizer.m, "adam_m", n.m, 0, what);
        check_rest(t, trainer, what);
        CHECK(t, planned(&trainer->device_plan, &o->muon.blocks) == room, "%s: blocks of this rank", what);
        CHECK(t, planned(&trainer->device_plan, &o->muon.parts) == (shards ? room : 0), "%s: shards of blocks", what);
        CHECK(t, planned(&trainer->device_plan, &o->muon.spare) == (shards ? zero_padded(zero, 1) : 0), "%s: a block",
              what);
    });
}

// The pieces of all ranks cover every element of every bucket once and in order, and fit the staging memory.
TEST(test_pieces_are_everything_once) {
    std::unique_ptr<Trainer> trainer(new Trainer());
    Shards *s = &trainer->shards;
    const ZeroLayout *zero = &s->layout;
    bool split = false, empty = false;
    for (const ModelConfig &config : layouts) {
        for (int num_ranks : rank_counts) {
            trainer_plan(trainer.get(), &config, shape_of_rank(RUN_TRAINS, num_ranks, 0, ZERO_OPTIMIZER));
            std::vector<int64_t> done((size_t)zero->num_buckets, 0);
            int64_t room = min_i64(planned(&trainer->host_plan, &trainer->transfer.staging),
                                   planned(&trainer->device_plan, &trainer->gpu.cublas_workspace));
            for (s->rank = 0; s->rank < num_ranks; s->rank++) {
                int tensor = -1, bucket = -1;
                visit_own_pieces(s, [&](const ZeroPiece &piece) {
                    int b = piece.bucket;
                    int64_t *at = &done[(size_t)b], n = piece.strips * piece.count;
                    CHECK(t, piece.in_bucket == *at && n > 0 && n <= room && b >= bucket,
                          "%d ranks: a piece of %lld at %lld of bucket %d, expected at %lld", num_ranks, (long long)n,
                          (long long)piece.in_bucket, b, (long long)*at);
                    CHECK(t, piece.in_bucket / zero_shard(zero, b) == s->rank, "another rank's part");
                    int64_t in_tensor = piece.in_bucket - zero_tensor_offset(zero, piece.tensor);
                    int64_t size = param_rows(&config, piece.tensor) * param_cols(&config, piece.tensor);
                    CHECK(t, piece.in_file == param_offset(&config, piece.tensor) + piece.layer * size + in_tensor,
                          "a piece of tensor %d has another place in the file", piece.tensor);
                    split = split || (piece.tensor == tensor && b == bucket);
                    tensor = piece.tensor, bucket = b, *at += n;
                    return true;
                });
                empty = empty || tensor < 0;
            }
            for (int b = 0; b < zero->num_buckets; b++) {
                CHECK(t, done[(size_t)b] == zero_size(zero, b), "%d ranks: %lld of bucket %d", num_ranks,
                      (long long)done[(size_t)b], b);
            }
        }
    }
    CHECK(t, split && empty, "no tensor was cut, or no rank had nothing: nothing was tested");
}

// The room for the gradients of a bucket in parts must begin with the sum so far of this rank's part.
TEST(test_room_for_gradients) {
    Rig m(t, &two_heads, shape_of_rank(RUN_TRAINS, 4, 1, ZERO_GRADIENTS));
    if (!m.ok) { return; }
    Shards *s = &m.trainer.shards;
    Buckets<float> grads = m.trainer.model.grads;
    for (int b = 0; b < s->layout.num_buckets; b++) {
        int64_t shard = zero_shard(&s->layout, b), padded = 4 * shard;
        std::vector<float> own = random_values(shard, 1.0f, 60 + b);
        to_gpu(bucket_part(s, grads, b), own.data(), own.size());
        for (bool first : {true, false}) {
            std::vector<float> want((size_t)padded, 0.0f);
            if (!first) { std::copy(own.begin(), own.end(), want.begin() + (std::ptrdiff_t)shard); }
            cuda_check(cudaMemset(whole_bucket(s, grads, b), 0xff, (size_t)padded * sizeof(float)));
            cuda_check(cudaDeviceSynchronize()); // the model's streams do not wait for the copy
            begin_gradient(s, grads, b, first);
            check_values(t, "room of bucket " + std::to_string(b), to_host(whole_bucket(s, grads, b), padded), want,
                         0.0, 0.0);
        }
    }
    zero_gradients(s, grads); // must do nothing, and must not take the parts for whole buckets
    std::vector<float> own = random_values(zero_shard(&s->layout, 0), 1.0f, 60);
    check_values(t, "this rank's part", to_host(bucket_part(s, grads, 0), (int64_t)own.size()), own, 0.0, 0.0);
}

// Checks the mean losses of `rows` sequences, each over some of its tokens.
static void check_means(Test *t, Trainer *trainer, int rows, int length) {
    BatchSlot *slot = next_slot(&trainer->feeder, &trainer->shards);
    int32_t *counts = slot->staging + 2 * rows * length;
    make_batch(1, rows, length, slot->staging, slot->staging + rows * length);
    for (int i = 0; i < rows * length; i++) { counts[i] = i % length >= length / 3; }
    run_losses(trainer, slot, rows, length, trainer->evaluation.losses);
    std::vector<float> losses = to_host(trainer->model.acts.losses.data, rows * length);
    std::vector<SequenceLoss> found((size_t)rows);
    cuda_check(cudaMemcpy(found.data(), trainer->evaluation.losses, found.size() * sizeof(SequenceLoss),
                          cudaMemcpyDeviceToHost));
    for (int b = 0; b < rows; b++) {
        double sum = 0.0;
        for (int i = length / 3; i < length; i++) { sum += losses[(size_t)(b * length + i)]; }
        double want = sum / (length - length / 3), mean = found[(size_t)b].sum / found[(size_t)b].number;
        CHECK(t, fabs(mean - want) <= 1e-12 * want, "sequence %d of %d: mean %.17g, expected %.17g", b, length, mean,
              want);
    }
}

// Evaluates full and last batches of more lengths than an evaluation has. Each matrix multiply is planned once.
static void check_evaluation(Test *t, Trainer *trainer, int B, int T) {
    int64_t planned = 0;
    for (int repeat = 0; repeat < 2; repeat++) {
        for (int length : {1, 2, 5, 8, T, B * T}) {
            check_means(t, trainer, B * T / length, length);
            if (length < B * T) { check_means(t, trainer, 1, length); }
        }
        CHECK(t, repeat == 0 || trainer->gpu.cublas.plan_count == planned,
              "the heuristic was asked %lld times, then %lld", (long long)planned,
              (long long)trainer->gpu.cublas.plan_count);
        planned = trainer->gpu.cublas.plan_count;
    }
}

// The first micro-batch of a step replaces the sum of the losses, and later ones add to it. An evaluated batch leaves
// the step alone.
TEST(test_roles_of_batches) {
    enum { B = 2, T = 17, BATCHES = 3 };
    RunShape shape = trains(B, T, RECOMPUTE_GELU, FUSE_NOTHING);
    shape.loss_places = shape.eval_T = B * T;
    Rig m(t, &narrow, shape);
    if (!rig_init(t, &m)) { return; }
    Trainer *trainer = &m.trainer;
    double alone[BATCHES] = {0.0}, sum = NAN;
    m.run->micro_batches = BATCHES;
    m.options.total_batch = 1000;
    auto run_one = [&](int batch, BatchRole role) {
        int32_t tokens[B * T], targets[B * T];
        make_batch(batch, B, T, tokens, targets);
        return sum = run_tokens(trainer, tokens, targets, B, T, &role);
    };
    uint64_t grads = 0;
    auto check_step = [&](const char *who) {
        CHECK(t, value_at(trainer->stats.loss_sum) == alone[0] + alone[1] + alone[2], "%s changes the step's loss",
              who);
        CHECK(t, hash_of(in_table_order(trainer, trainer->model.grads)) == grads, "%s changes the gradients", who);
    };
    zero_gradients(&trainer->shards, trainer->model.grads);
    for (int i = 0; i < BATCHES; i++) { alone[i] = run_one(i, training_role(trainer, m.run.get())); }
    for (int i = 0; i < BATCHES; i++) {
        BatchRole role = training_role(trainer, m.run.get());
        role.first = i == 0, role.last = i == BATCHES - 1;
        CHECK(t, role.trains && role.dloss == 1e-3f, "micro-batch %d: gradient %g", i, (double)role.dloss);
        run_one(i, role);
    }
    CHECK(t, sum == alone[0] + alone[1] + alone[2], "sum of losses %.17g, expected %.17g", sum,
          alone[0] + alone[1] + alone[2]);
    grads = hash_of(in_table_order(trainer, trainer->model.grads));
    check_evaluation(t, trainer, B, T);
    check_step("an evaluation");
}

// A rank that shares sequences keeps its positions of all three arrays of a batch, and drops no flag of a loss.
TEST(test_own_positions) {
    enum { B = 3, T = 16 };
    RunShape shape = trains(B, T, RECOMPUTE_GELU, FUSE_NOTHING);
    shape.grid.cp = 2, shape.rank = 1;
    Rig m(t, &narrow, shape);
    if (!m.ok) { return; }
    BatchSlot *slot = next_slot(&m.trainer.feeder, &m.trainer.shards);
    ContextPlace place = {2, 1, T};
    for (int i = 0; i < 3 * B * T; i++) { slot->staging[i] = i; }
    send_batch(&m.trainer, slot, B, T / 2, false);
    for (int i = 0; i < 3 * B * T / 2; i++) {
        int want = i / (T / 2) * T + context_position(&place, i % (T / 2));
        CHECK(t, slot->staging[i] == want, "element %d is %d, expected %d", i, slot->staging[i], want);
    }
}

// Returns the loss of a validation in batches of B.
static double validate_in_batches(Test *t, Rig *m, int B) {
    Error error;
    m->options.batch_size = B;
    Round round = run_first_round(m->run.get(), ceil_div_i64(run_val_sequences(m->run.get()), B));
    while (++round.number < round.rounds) {
        round.batch = round.number;
        CHECK(t, trainer_validate_batch(&m->trainer, m->run.get(), round, &error), "%s", error.text);
    }
    return trainer_validation_loss(&m->trainer, m->run.get(), round);
}

// A validation has equal bits in any batches, as long as the multiplies of all batches have. The emulator's have.
TEST(test_validation_does_not_depend_on_its_batches) {
    enum { B = 8, T = 17, SEQUENCES = 11 };
    if (!is_emulated) {
        SKIP(t, "a GPU may multiply batches of another size by another algorithm");
        return;
    }
    RunShape shape = trains(B, T, RECOMPUTE_GELU, FUSE_NOTHING);
    uint32_t tokens[SEQUENCES * T + 1];
    shape.loss_places = 2 * B;
    Rig m(t, &narrow, shape);
    Error error;
    if (!rig_init(t, &m)) { return; }
    for (int i = 0; i <= SEQUENCES * T; i++) { tokens[i] = (uint32_t)(rand_u64(3, 1, (uint64_t)i) % 50); }
    m.run->num_ranks = m.run->data.ranks = 1, m.options.seq_len = T, m.options.tp = 1;
    bool ok = dataloader_open(&m.run->val, "tokens", tokens, SEQUENCES * T + 1, T, 50, false, 0, &error);
    if (!CHECK(t, ok, "%s", error.text)) { return; }
    for (int sequences : {7, 0}) {
        m.options.val_sequences = sequences;
        double alone = validate_in_batches(t, &m, 1);
        CHECK(t, fabs(alone - log(257)) < 0.5, "%d sequences: %.17g", sequences, alone);
        for (int batch : {3, 4, 8}) {
            if (test_is_quick() && batch == 4) { continue; }
            double loss = validate_in_batches(t, &m, batch);
            CHECK(t, loss == alone, "%d sequences in batches of %d: %.17g, one by one %.17g", sequences, batch, loss,
                  alone);
        }
    }
    dataloader_close(&m.run->val);
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory, and values that are not numbers

// Checks that every row can be written at its beginning and at its end.
static void check_rows(Test *t, const MemoryPlan *plan) {
    for (int i = 0; i < plan->count; i++) {
        const PlanRow *row = &plan->rows[i];
        char *pointer;
        memcpy(&pointer, row->pointer, sizeof(pointer));
        bool inside = pointer >= plan->memory && pointer + row->bytes <= (char *)plan->memory + plan->total;
        CHECK(t, inside, "%s lies outside of the plan's memory", row->name);
        cuda_check(cudaMemset(pointer, 0xff, 1));
        cuda_check(cudaMemset(pointer + row->bytes - 1, 0xff, 1));
    }
}

static int64_t free_memory(void) {
    size_t free_bytes = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free_bytes, &total));
    return (int64_t)free_bytes;
}

// The start must take all memory, exactly as planned. Only the emulator can see how much a process takes.
static void check_memory(Test *t, RunShape shape, const char *what) {
    int64_t before = free_memory();
    Rig m(t, &two_heads, shape);
    if (!m.ok) { return; }
    int64_t taken = before - free_memory(), wanted = m.trainer.device_plan.total;
    CHECK(t, !is_emulated || taken == wanted, "%s: %lld bytes of GPU memory taken, planned %lld", what,
          (long long)taken, (long long)wanted);
    check_rows(t, &m.trainer.device_plan);
}

TEST(test_memory_is_what_was_planned) {
    const int ranks[][2] = {{1, 0}, {3, 0}, {4, 1}, {4, 3}};
    for (int run = 0; run < 4; run++) {
        RunKind kind = run == 0 ? RUN_GENERATES : run == 1 ? RUN_EVALUATES : RUN_TRAINS;
        for (const int *rank : ranks) {
            for (int stage = ZERO_REPLICATE; stage <= ZERO_PARAMETERS; stage++) {
                char what[64];
                OptimizerKind optimizer = run == 3 ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
                RunShape shape = shape_of_rank(kind, rank[0], rank[1], stage, optimizer);
                snprintf(what, sizeof(what), "run %d, rank %d of %d, stage %d", run, rank[1], rank[0], stage);
                check_memory(t, shape, what);
            }
        }
    }
}

// The program's own training step must not allocate. The host reads results one step late, by an event, and waits for
// nothing else. Only the emulator counts waits.
TEST(test_host_does_not_wait_in_a_step) {
#ifdef GPT2_EMU
    const char *arguments[] = {PROGRAM_NAME, "-i", "README.md", "--layers", "1",  "--heads", "1",
                               "--channels", "64", "--context", "16",       "-t", "16",      "-b",
                               "2",          "-d", "64",        "-x",       "5"};
    int count = (int)(sizeof(arguments) / sizeof(arguments[0]));
    std::unique_ptr<TrainRun> run(new TrainRun());
    std::unique_ptr<Trainer> trainer(new Trainer());
    static TrainOptions options;
    ArgsOutcome outcome;
    Error error;
    Comm comm;
    comm_single(&comm);
    run->trainer = trainer.get();
    run->options = &options;
    take_ranks(run.get(), &comm);
    bool ok = train_options_parse(&options, PROGRAM_NAME, count, (char **)arguments, true, &outcome, &error) &&
              run_open_inputs(run.get(), &options, &error) && settle(run.get(), &options, &error);
    if (!CHECK(t, ok, "%s", error.text)) { return; }
    plan(trainer.get(), run.get());
    ok = start(trainer.get(), run.get(), &error);
    int64_t waits = 0;
    long allocations = 0;
    for (int step = 0; ok && step < 5; step++) {
        if (step == 1) { waits = emu::synchronization_count(), allocations = emu::allocation_count(); }
        ok = train_step(trainer.get(), run.get(), &error);
    }
    CHECK(t, ok, "%s", error.text);
    CHECK(t, emu::synchronization_count() == waits, "the host waited %lld times in four steps",
          (long long)(emu::synchronization_count() - waits));
    CHECK(t, emu::allocation_count() == allocations, "%ld allocations in four steps",
          (long)(emu::allocation_count() - allocations));
    CHECK(t, run->step == 5 && trainer->stats.pending.info.step == 4, "step %lld, pending %lld", (long long)run->step,
          (long long)trainer->stats.pending.info.step);
    ok = settle_step(trainer.get(), run.get(), &error);
    CHECK(t, ok && run->kept.outliers.loss.count == 5, "%lld losses were read, expected 5",
          (long long)run->kept.outliers.loss.count);
    run_close(run.get());
    trainer_close(trainer.get());
#else
    SKIP(t, "only the emulator counts how often the host waits");
#endif
}

// Hashes the weights, and m of all parameters.
static uint64_t hash_with_moments(Rig *m) {
    uint64_t hashes[2] = {hash_of(m), hash_of(in_table_order(&m->trainer, m->trainer.optimizer.m))};
    return hash64(hashes, sizeof(hashes));
}

// A step with a NaN must leave Muon's momentum and matrices alone.
TEST(test_nan_stops_muon) {
    RunShape shape = trains(2, 17, RECOMPUTE_NOTHING, FUSE_NOTHING);
    shape.optimizer = OPTIMIZER_MUON;
    Rig m(t, &narrow, shape);
    if (!rig_init(t, &m)) { return; }
    train_one(&m.trainer, 0, 2, 17);
    uint64_t want = hash_with_moments(&m);
    int64_t at = zero_tensor_offset(&m.trainer.shards.layout, PARAM_fcprojw) + 3;
    float bad = NAN;
    to_gpu(bucket_element(&m.trainer.shards, m.trainer.model.grads, 1, at), &bad, 1);
    update(&m.trainer, 1.0, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 2, 2 * 17, 0.02f, 0.9f);
    CHECK(t, m.trainer.stats.results[0].stopped != 0, "the update was made");
    CHECK(t, hash_with_moments(&m) == want, "weights or momentum changed");
}

// A NaN in a weight or in a gradient must stop this update and all later ones, and the tensor must be named. After a
// whole step the activations of the first forward pass are still there.
TEST(test_nan_stops_updates) {
    Rig m(t, &narrow, trains(2, 17, RECOMPUTE_NOTHING, FUSE_NOTHING));
    if (!rig_init(t, &m)) { return; }
    Trainer *trainer = &m.trainer;
    uint64_t want = hash_of(&m);
    int bucket = zero_bucket_of(&trainer->shards.layout, PARAM_ln2w, 1);
    int64_t at = zero_tensor_offset(&trainer->shards.layout, PARAM_ln2w) + 3;
    floatX *weight = bucket_element(&trainer->shards, trainer->model.params, bucket, at);
    floatX nan_value, old_value = value_at(weight);
    floatX_from_host(&nan_value, NAN);
    to_gpu(weight, &nan_value, 1);
    train_one(trainer, 0, 2, 17);
    CHECK(t, trainer->stats.results[0].stopped == 1, "stopped is %d, expected 1", trainer->stats.results[0].stopped);
    auto check_found = [&](int place, const char *name, auto find) {
        Nonfinite first = {INT_MAX, ""};
        find(&first);
        CHECK(t, first.place == place && strcmp(first.name, name) == 0, "'%s' at %d", first.name, first.place);
    };
    auto in_params = [&](Nonfinite *first) { find_in_shards(trainer, trainer->model.params, "parameter", 0, first); };
    auto in_acts = [&](Nonfinite *first) { find_in_activations(trainer, 10, first); };
    auto in_grads = [&](Nonfinite *first) { find_in_shards(trainer, trainer->model.grads, "gradient of", 20, first); };
    check_found(bucket, "parameter ln2w of layer 1", in_params);
    to_gpu(weight, &old_value, 1);
    check_found(INT_MAX, "", in_params);
    check_found(11, "activation ln2 of layer 1", in_acts);
    train_one(trainer, 1, 2, 17); // a step without a NaN after the step with one
    CHECK(t, hash_of(&m) == want, "the weights changed");
    check_found(INT_MAX, "", in_acts);
    float bad = INFINITY;
    to_gpu(bucket_element(&trainer->shards, trainer->model.grads, bucket, at), &bad, 1);
    check_found(20 + bucket, "gradient of ln2w of layer 1", in_grads);
}

// A function: after `if (true) return` nvcc warns that what follows is not reachable.
static bool has_8_bits() { return !PRECISION_IS_FP32 && gpu_has_fp8(); }

static Fp8Linear fp8_of(const Trainer *trainer, int layer, int which, LinearUse use) {
    Block b = block_of(&trainer->model, layer, use);
    const Linear *linears[] = {&b.qkv, &b.attproj, &b.fc, &b.fcproj};
    return linears[which]->fp8;
}

// With --fp8 a linear layer's input is stored transposed only if the backward pass reads it: not for a loss alone, and
// not if --recompute makes it again. The code 0xff is a NaN, so it marks bytes that were not written.
TEST(test_inputs_kept_in_8_bits) {
    if (!has_8_bits()) { SKIP(t, "no 8-bit multiplies here"); }
    for (int level = RECOMPUTE_NOTHING; level <= RECOMPUTE_BLOCK; level++) {
        RunShape shape = trains(2, 17, level, FUSE_NOTHING);
        shape.fp8 = true;
        Rig m(t, &narrow, shape);
        if (!rig_init(t, &m)) { return; }
        Trainer *trainer = &m.trainer;
        int L = trainer->model.config.num_layers;
        train_one(trainer, 0, 2, 17);
        for (LinearUse use : {LINEAR_FOR_LOSS, LINEAR_FOR_GRADIENTS}) {
            for (int which = 0; which < NUM_LINEARS; which++) {
                int below = which == LINEAR_FCPROJ ? RECOMPUTE_GELU : RECOMPUTE_LAYERNORM;
                int kept = use == LINEAR_FOR_LOSS ? 0 : level < below ? L : 1, found = 0;
                for (int layer = 0; layer < L; layer++) {
                    found += fp8_of(trainer, layer, which, use).inp_t != NULL ? 1 : 0;
                    CHECK(t, fp8_of(trainer, layer, which, LINEAR_AGAIN).inp_t != NULL, "none is made again");
                    CHECK(t, fp8_of(trainer, layer, which, LINEAR_BACKWARD).inp_t != NULL, "none for dweight");
                }
                CHECK(t, fp8_of(trainer, 0, which, LINEAR_AGAIN).inp != trainer->model.fp8.inp,
                      "it lives in the forward only");
                CHECK(t, found == kept, "level %d: %d inputs of layer %d are kept, expected %d", level, found, which,
                      kept);
                cuda_check(cudaMemsetAsync(trainer->model.fp8.inp_t[which].of(L - 1), 0xff, 16, trainer->gpu.stream));
            }
            model_forward(&trainer->model, &trainer->gpu, &trainer->shards, trainer->feeder.slots[0].device, 2, 17,
                          use);
            for (int which = 0; which < NUM_LINEARS; which++) {
                unsigned char code = value_at((const unsigned char *)trainer->model.fp8.inp_t[which].of(L - 1));
                CHECK(t, (code == 0xff) == (use == LINEAR_FOR_LOSS), "level %d, layer %d: code %02x", level, which,
                      code);
            }
        }
    }
}

// The scale of an 8-bit tensor must come from the tensor's largest magnitude, whichever kernel looked for it.
static void check_scales(Test *t, const ModelConfig *config) {
    RunShape shape = trains(2, 17, RECOMPUTE_NOTHING, FUSE_NOTHING);
    shape.fp8 = true;
    Rig m(t, config, shape);
    if (!rig_init(t, &m)) { return; }
    Trainer *trainer = &m.trainer;
    int64_t N = 2 * 17, C = trainer->model.config.channels;
    std::vector<int32_t> tokens = random_ids(2 * N, trainer->model.config.vocab_size, 41);
    zero_gradients(&trainer->shards, trainer->model.grads);
    gradient(trainer, tokens.data(), tokens.data() + N, 2, 17, 1.0f);
    auto check = [&](const char *what, int operand, int layer, int which, double expected) {
        Fp8Scale scale = value_at(fp8_scale(&trainer->model.fp8, operand, layer, which));
        float amax;
        memcpy(&amax, &scale.amax, sizeof(amax));
        CHECK(t, (double)amax == expected, "%s of layer %d: amax %g, expected %g", what, layer, (double)amax, expected);
    };
    for (int layer = 0; layer < trainer->model.config.num_layers; layer++) {
        for (int i = 0; i < 2 * NUM_LINEARS; i++) {
            int operand = i < NUM_LINEARS ? FP8_INPUT : FP8_DOUT, which = i % NUM_LINEARS;
            CHECK(t, value_at(fp8_scale(&trainer->model.fp8, operand, layer, which)).amax != 0,
                  "operand %d of linear layer %d in layer %d was not measured", operand, which, layer);
        }
#ifndef TEST_LLAMA3
        std::vector<float> gelu = to_host(trainer->model.acts.fc.of(layer), N * 4 * C);
        cpu_gelu_forward(gelu.data(), gelu.data(), (int64_t)gelu.size());
        for (float &x : gelu) { x = rounded(x); }
        check("gelu", FP8_INPUT, layer, LINEAR_FCPROJ, largest(gelu));
#endif
        check("att", FP8_INPUT, layer, LINEAR_ATTPROJ, largest(to_host(trainer->model.acts.att.of(layer), N * C)));
    }
    check("dqkv", FP8_DOUT, 0, LINEAR_QKV,
          largest(to_host(trainer->model.acts.dqkv.data, N * model_dim(&trainer->model.config, DIM_QKV))));
    // dqkv is that of the layer whose backward pass ran last.
}

TEST(test_scales_of_8_bits) {
    if (!has_8_bits()) { SKIP(t, "no 8-bit multiplies here"); }
    static const ModelConfig one_head = SIZES(24, 257, 384, 2, 1, 64); // a Llama with one head has no biases
    check_scales(t, &two_heads), check_scales(t, &one_head);
}

// A sample's logits must be those of the last row of a batch, whatever stands behind that row in the window. Llama's
// fixture has their losses.
TEST(test_sample_logits) {
    Wanted w = wanted_open(t);
    Rig m(t, &w.config, trains(w.B, w.T, RECOMPUTE_GELU, FUSE_NOTHING));
    if (!rig_load(t, &m, w.model.c_str())) { return; }
    Trainer *trainer = &m.trainer;
    int V = w.config.vocab_size;
    double tol = tolerance(longest_reduction(trainer), forward_depth(trainer));
    for (int i = 0; i < trainer->model.shape.T; i++) { trainer->sample.history.staging[i] = V - 1; }
    for (int i = 0; i < w.T; i++) {
        trainer_append_token(trainer, w.inputs[i]);
        const float *logits = trainer_next_logits(trainer);
        if (MODEL_VARIANT == 0) {
            check_tensor(t, "logits of a sample", std::vector<float>(logits, logits + V), w.logits + (int64_t)i * V,
                         tol);
            continue;
        }
        double sum = 0.0;
        for (int v = 0; v < V; v++) { sum += exp((double)(logits[v] - logits[w.targets[i]])); }
        check_tensor(t, "loss of a sample", std::vector<float>(1, (float)log(sum)), w.losses + i,
                     tol * largest(std::vector<float>(w.losses, w.losses + w.N)) / (double)w.losses[i]);
    }
    trainer_append_token(trainer, 1);
    CHECK(t, trainer->sample.history_length == w.T / 2 + 1, "a full window leaves %d tokens",
          trainer->sample.history_length);
    CHECK(t, trainer->sample.history.staging[0] == w.inputs[w.T - w.T / 2], "the newer half does not stay");
}

#if !defined(IN_GPU_TESTS) && !defined(TEST_LLAMA3)
int main(int argc, char **argv) { return test_main(argc, argv); }
#endif
