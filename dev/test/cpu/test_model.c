// The whole model of train_gpt2.c, or of train_llama3.c (test_llama3.c), on small random configurations: what
// must hold whatever the weights are.
#include <stdint.h>
#include <stdlib.h>

// Every allocation the project makes is counted: its functions are all in this file.
static int64_t allocations, planned_bytes;
static void *counted(void *memory) {
    allocations++;
    return memory;
}
static int counted_memalign(void **memory, size_t alignment, size_t bytes) {
    allocations++;
    planned_bytes += (int64_t)bytes;
    return posix_memalign(memory, alignment, bytes);
}
#define malloc(bytes) counted(malloc(bytes))
#define calloc(count, bytes) counted(calloc(count, bytes))
#define realloc(memory, bytes) counted(realloc(memory, bytes))
#define posix_memalign(memory, alignment, bytes) counted_memalign(memory, alignment, bytes)

#ifdef TEST_LLAMA3
#define main train_llama3_main
#include "train_llama3.c"
#undef main
#else
#define TRAIN_GPT2_INCLUDED
#define main train_gpt2_main
#include "train_gpt2.c"
#undef main
#endif

#include "dev/test/refused.h"

#ifdef TEST_LLAMA3
// maxT, V, L, NH, C, Vp, variant, KV, HS, F, tied, biases, epsilon, theta, factor, low, high, original context
static const ModelConfig small = {48, 101, 3, 6, 36, 128, 3, 2, 10, 50, 0, 1, 1e-5f, 1e4f, 8.0f, 1.0f, 4.0f, 16, 0};
#else
static const ModelConfig small = GPT2_CONFIG(48, 101, 128, 3, 3, 36); // maxT, V, Vp, L, NH, C
#endif

typedef struct {
    Model model;
    MemoryPlan plan;
} Instance;

static int model_threads = 2; // of the next models: a plan has room for the threads that there are when it is made

static OptimizerKind model_optimizer; // of the models that are made
static GemmKernel model_kernel;       // of the models that are made; none: the portable one

// A model with room for B x T tokens and initial weights from a seed; biases and gains are random too, so that none of
// them can be left out unnoticed.
static Instance *make_model(Test *t, const ModelConfig *config, int B, int T, int recompute) {
    Instance *instance = (Instance *)calloc(1, sizeof(Instance));
    omp_set_num_threads(model_threads);
    RunShape shape = {RUN_TRAINS, B, T, recompute, 0, 0, model_optimizer};
    model_plan(&instance->model, &instance->plan, config, shape,
               model_kernel.name != NULL ? &model_kernel : &gemm_portable);
    if (!OK(t, plan_allocate(&instance->plan, &error))) { exit(1); }
    float *params = instance->model.params;
    param_init_all(params, config, 7);
    clear_moments(&instance->model);
    clear_rows(instance->model.grads, model_num_params(config));
    prepare_rope(&instance->model);
    ParamPiece p = PARAM_PIECE_BEGIN;
    while (param_next_piece(config, OPTIMIZER_ADAMW, &p)) {
        for (int64_t j = 0; param_specs[p.tensor].rows == DIM_NONE && j < p.count; j++) {
            params[p.place + j] += (float)(0.2 * rand_uniform(5, (uint64_t)p.tensor, (uint64_t)(p.in_file + j)) - 0.1);
        }
    }
    return instance;
}

static void free_model(Instance *instance) {
    plan_free(&instance->plan);
    free(instance);
}

static void fill_batch(Model *model, int64_t first, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        model->tokens[i] = (int32_t)(rand_u64(seed, 1, (uint64_t)(first + i)) % (uint64_t)model->config.vocab_size);
        model->targets[i] = (int32_t)(rand_u64(seed, 2, (uint64_t)(first + i)) % (uint64_t)model->config.vocab_size);
    }
}

// The hash of as many floats as the small model has parameters.
static uint64_t hash_of(const float *data) { return hash64(data, (size_t)model_num_params(&small) * sizeof(float)); }

// An update as a training step makes it.
static void update_step(Model *model, int step) {
    float scale = (float)(1.0 / fmax(1.0, model_gradient_norm(model)));
    AdamW a = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, scale, step + 1};
    Muon muon = {0.02f, 0.9f, 0.1f, scale, MUON_SCALE_ORIGINAL};
    model_update(model, &a, &muon);
}

// Returns the loss of a batch of B x T, and leaves the gradients.
static double forward_backward(Model *model, int B, int T, uint64_t seed) {
    clear_rows(model->grads, model_num_params(&model->config));
    fill_batch(model, 0, (int64_t)B * T, seed);
    double loss = model_forward(model, B, T, 1.0f / (float)(B * T), true);
    model_backward(model, B, T);
    return loss;
}

static void one_step(Model *model, int B, int T, int step) {
    forward_backward(model, B, T, (uint64_t)step);
    update_step(model, step);
}

// A few training steps; returns the hash of the weights.
static uint64_t train_steps(Instance *instance, int B, int T, int steps) {
    for (int step = 0; step < steps; step++) { one_step(&instance->model, B, T, step); }
    return hash_of(instance->model.params);
}

// The weights after some steps are equal whatever the number of threads, on a second run, and at every level of
// --recompute, which needs less memory.
TEST(test_weights_depend_on_the_optimizer_only) {
    static const int runs[][2] = {{1, 0}, {2, 0}, {4, 0}, {4, 1}, {4, 2}, {4, 3}}; // threads, level
    uint64_t firsts[2];
    for (int optimizer = 0; optimizer < 2; optimizer++) {
        int64_t bytes = INT64_MAX;
        model_optimizer = optimizer == 0 ? OPTIMIZER_ADAMW : OPTIMIZER_MUON;
        FOR_EACH(i, runs) {
            int level = runs[i][1];
            model_threads = runs[i][0];
            Instance *instance = make_model(t, &small, 3, 41, level);
            CHECK(t, level == 0 || instance->plan.total < bytes, "--recompute %d: not less memory", level);
            bytes = instance->plan.total;
            uint64_t hash = train_steps(instance, 3, 41, 4);
            free_model(instance);
            if (i == 0) { firsts[optimizer] = hash; }
            CHECK(t, hash == firsts[optimizer], "%d threads, --recompute %d: other weights", model_threads, level);
        }
    }
    CHECK(t, firsts[0] != firsts[1], "Muon leaves the weights that AdamW leaves");
    model_threads = 2, model_optimizer = OPTIMIZER_ADAMW;
}

// Returns the loss of a validation of `sequences` sequences of T tokens, in batches of B.
static double validate_in_batches(Test *t, const uint32_t *tokens, int T, int sequences, int B) {
    static Trainer trainer;
    static TrainRun run;
    static TrainOptions options;
    RunShape shape = {RUN_EVALUATES, B, T, 0, 0, 0, OPTIMIZER_ADAMW};
    memset(&run, 0, sizeof(run));
    run.num_ranks = run.data.ranks = run.connected = 1;
    run.options = &options;
    options.batch_size = B, options.seq_len = T, options.val_sequences = sequences;
    model_plan(&trainer.model, &trainer.plan, &small, shape, &gemm_portable);
    bool ok = plan_allocate(&trainer.plan, &error) &&
              dataloader_open(&run.val, "tokens", tokens, 9 * T + 1, T, small.vocab_size, false, 0, &error);
    if (!OK(t, ok)) { return NAN; }
    param_init_all(trainer.model.params, &small, 7);
    prepare_rope(&trainer.model);
    Round round = run_first_round(&run, ceil_div_i64(run_val_sequences(&run), B));
    while (++round.number < round.rounds) {
        round.batch = round.number;
        OK(t, trainer_validate_batch(&trainer, &run, round, &error));
    }
    double loss = trainer_validation_loss(&trainer, &run, round);
    dataloader_close(&run.val);
    plan_free(&trainer.plan);
    return loss;
}

// A validation has equal bits in any batches, also if the last batch is not full.
TEST(test_validation_does_not_depend_on_its_batches) {
    enum { T = 23 };
    uint32_t tokens[9 * T + 1];
    for (int i = 0; i <= 9 * T; i++) { tokens[i] = (uint32_t)(rand_u64(3, 1, (uint64_t)i) % 101); }
    for (int sequences = 1; sequences <= 9; sequences += 4) {
        double alone = validate_in_batches(t, tokens, T, sequences, 1);
        CHECK(t, fabs(alone - log(101)) < 0.1, "%d sequences: %.17g", sequences, alone);
        for (int B = 2; B <= 9; B++) {
            double loss = validate_in_batches(t, tokens, T, sequences, B);
            CHECK(t, loss == alone, "%d sequences in batches of %d: %.17g, not %.17g", sequences, B, loss, alone);
        }
    }
}

// B = 4 against 2 x B = 2 accumulated: every gradient equal within rounding, which for a sum over 4*T rows is at most
// about that many epsilons of the largest value.
TEST(test_accumulation) {
    enum { T = 33 };
    Instance *whole = make_model(t, &small, 4, T, 0), *parts = make_model(t, &small, 2, T, 0);
    Model *a = &whole->model, *b = &parts->model;
    double loss = forward_backward(a, 4, T, 5), loss_parts = 0.0;
    for (int part = 0; part < 2; part++) {
        fill_batch(b, part * 2 * T, 2 * T, 5);
        loss_parts += model_forward(b, 2, T, 1.0f / (4 * T), true) / 2.0;
        model_backward(b, 2, T);
    }
    CHECK(t, fabs(loss - loss_parts) <= 1e-12, "loss %.15f in one, %.15f in parts", loss, loss_parts);
    ParamPiece p = PARAM_PIECE_BEGIN;
    while (param_next_piece(&small, OPTIMIZER_ADAMW, &p)) {
        float largest = row_max(a->grads + p.place, p.count);
        check_close(t, param_specs[p.tensor].name, b->grads + p.place, a->grads + p.place, (size_t)p.count,
                    4 * T * 1.2e-7 * (double)largest, 0.0);
    }
    free_model(whole), free_model(parts);
}

static void check_cached_decoding(Test *t) {
    enum { V = 101, N = 48 + 30 };
    Instance *instances[3];
    for (int i = 0; i < 3; i++) { instances[i] = make_model(t, &small, 1, 48, 0); }
    Model *cached = &instances[0]->model, *uncached = &instances[1]->model, *training = &instances[2]->model;
    generate_begin(cached), generate_begin(uncached);
    for (int i = 0; i < N; i++) {
        int token = (int)(rand_u64(3, 3, (uint64_t)i) % V);
        generate_append(cached, token), generate_append(uncached, token);
        const float *logits = generate_logits(cached);
        if (i % 3 != 2) { continue; }    // the comparisons take long
        uncached->generation.cached = 0; // so all tokens are computed again
        const float *want = generate_logits(uncached);
        CHECK(t, memcmp(logits, want, V * sizeof(float)) == 0, "token %d: cached and uncached logits differ", i);
        if (i >= 48) { continue; }
        for (int j = 0; j <= i; j++) { training->tokens[j] = cached->generation.history[j], training->targets[j] = j; }
        model_forward(training, 1, i + 1, 0.0f, false);
        float loss, row[V];
        int32_t target = i;
        memcpy(row, logits, sizeof(row));
        cross_entropy(&loss, row, &target, 1, V, V, 0.0f, false);
        CHECK(t, loss == training->acts.losses.data[i], "token %d: loss %.9g in generation, %.9g in training", i,
              (double)loss, (double)training->acts.losses.data[i]);
    }
    for (int i = 0; i < 3; i++) { free_model(instances[i]); }
}

// Cached, uncached and training forward agree bit for bit, past the end of the window too, with every kernel.
TEST(test_cached_decoding_is_exact) {
    for (int i = 0; i < NUM_KERNELS; i++) {
        if (!kernel_choices[i].is_here()) { continue; }
        model_kernel = *kernel_choices[i].kernel;
        check_cached_decoding(t);
    }
    memset(&model_kernel, 0, sizeof(model_kernel));
}

// What stands in the padding rows of a loaded wte or head must not matter, and their gradient is zero.
TEST(test_padding_does_not_leak) {
    Instance *clean = make_model(t, &small, 2, 20, 0), *dirty = make_model(t, &small, 2, 20, 0);
    int64_t other_than_zero = 0;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        for (int64_t j = param_used(&small, i); j < param_size(&small, i); j++) {
            dirty->model.params[param_place(&small, i, 0) + j] = 1e6f;
        }
    }
    double loss = forward_backward(&clean->model, 2, 20, 1), other = forward_backward(&dirty->model, 2, 20, 1);
    CHECK(t, loss == other, "loss %.15f with clean padding, %.15f with other", loss, other);
    CHECK(t, hash_of(clean->model.grads) == hash_of(dirty->model.grads), "gradients differ");
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        for (int64_t j = param_used(&small, i); j < param_size(&small, i); j++) {
            other_than_zero += !(dirty->model.grads[param_place(&small, i, 0) + j] == 0.0f);
        }
    }
    CHECK(t, other_than_zero == 0, "%lld gradients in the padding", (long long)other_than_zero);
    free_model(clean), free_model(dirty);
}

// The rows of the plan are aligned and inside, and none overlap while both are live.
TEST(test_plan) {
    for (int level = 0; level < 4; level++) {
        Instance *instance = make_model(t, &small, 2, 16, level);
        const MemoryPlan *plan = &instance->plan;
        int64_t unshared = 0;
        for (int i = 0; i < plan->count; i++) {
            const PlanRow *a = &plan->rows[i];
            unshared += a->bytes;
            CHECK(t, a->offset % PLAN_ALIGNMENT == 0 && a->offset + a->bytes <= plan->total, "%s", a->name);
            for (int j = 0; j < i; j++) {
                const PlanRow *b = &plan->rows[j];
                bool meet = a->first <= b->last && b->first <= a->last;
                bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
                CHECK(t, apart || !meet, "%s and %s overlap", a->name, b->name);
            }
        }
        CHECK(t, plan->total < unshared, "nothing is shared");
        free_model(instance);
    }
}

// Before each phase, everything that is not live in it is filled with NaN: a buffer that is used outside its declared
// life would spread them.
static void poison_others(MemoryPlan *plan, int phase) {
    char *live = (char *)calloc((size_t)plan->total, 1);
    for (int i = 0; i < plan->count; i++) {
        const PlanRow *row = &plan->rows[i];
        if (row->first <= phase && phase <= row->last) { memset(live + row->offset, 1, (size_t)plan_row_size(row)); }
    }
    for (int64_t i = 0; i < plan->total; i++) {
        if (!live[i]) { ((unsigned char *)plan->memory)[i] = 0xff; } // all ones is a NaN
    }
    free(live);
}

// model_backward, with what is not live poisoned between its phases.
static void poisoned_backward(Instance *poisoned, int B, int T) {
    Model *model = &poisoned->model;
    int64_t N = (int64_t)B * T;
    int C = small.channels, L = small.num_layers;
    LayerActs a = acts_of(model, L);
    Tensors p = params_of(model, 0), g = grads_of(model, 0);
    poison_others(&poisoned->plan, LM_HEAD);
    clear_rows(a.dresidual, N * C);
#ifdef TEST_LLAMA3
    rmsnorm_backward(a.dresidual, g.lnfw, a.dlnf, a.residual, a.lnf_rstd, p.lnfw, N, C);
#else
    layernorm_backward(a.dresidual, g.lnfw, g.lnfb, a.dlnf, a.residual, a.lnf_mean, a.lnf_rstd, p.lnfw, N, C);
#endif
    for (int layer = L - 1; layer >= 0; layer--) {
#ifdef TEST_LLAMA3
        Block b = block_of(model, layer);
        recompute_block(model, &b, B, T);
        poison_others(&poisoned->plan, BACKWARD_MLP);
        mlp_backward(&b, N);
        poison_others(&poisoned->plan, BACKWARD_ATTENTION);
        attention_block_backward(model, &b, B, T);
#else
        recompute_layer(model, layer, B, T);
        poison_others(&poisoned->plan, BACKWARD_MLP);
        block_backward_mlp(model, layer, N);
        poison_others(&poisoned->plan, BACKWARD_ATTENTION);
        block_backward_attention(model, layer, B, T);
#endif
    }
#ifdef TEST_LLAMA3
    embedding_backward(g.wte, a.dresidual, model->tokens, N, C);
#else
    embedding_backward(g.wte, g.wpe, a.dresidual, model->tokens, B, T, C);
#endif
}

TEST(test_lifetimes_are_true) {
    for (int i = 0; i < 5; i++) {
        int level = i % 4;
        model_optimizer = i < 4 ? OPTIMIZER_ADAMW : OPTIMIZER_MUON;
        Instance *plain = make_model(t, &small, 2, 16, level), *poisoned = make_model(t, &small, 2, 16, level);
        uint64_t want = train_steps(plain, 2, 16, 1);
        Model *model = &poisoned->model;
        int64_t N = 32;
        poison_others(&poisoned->plan, GENERATE);
        poison_others(&poisoned->plan, FORWARD);
        fill_batch(model, 0, N, 0);
        model_forward(model, 2, 16, 1.0f / 32.0f, true);
        poisoned_backward(poisoned, 2, 16);
        poison_others(&poisoned->plan, UPDATE);
        update_step(model, 0);
        CHECK(t, hash_of(model->params) == want, "--recompute %d: a buffer is used outside its life", level);
        free_model(plain), free_model(poisoned);
    }
    model_optimizer = OPTIMIZER_ADAMW;
}

// The plan is allocated to the byte and at once. Training, and a validation and a sample before each step, allocate
// nothing; these two leave no trace in the weights.
TEST(test_one_allocation) {
    for (int level = 0; level < 4; level++) {
        Instance *plain = make_model(t, &small, 2, 24, level);
        uint64_t want = train_steps(plain, 2, 24, 2);
        free_model(plain);
        int64_t bytes_before = planned_bytes, allocations_before = allocations;
        Instance *instance = make_model(t, &small, 2, 24, level);
        Model *model = &instance->model;
        CHECK(t, planned_bytes - bytes_before == instance->plan.total, "planned %lld bytes, allocated %lld",
              (long long)instance->plan.total, (long long)(planned_bytes - bytes_before));
        CHECK(t, allocations - allocations_before == 2, "more allocations than the plan's and the test's");
        allocations_before = allocations;
        for (int step = 0; step < 2; step++) {
            fill_batch(model, 0, 13, 77);
            model_forward(model, 1, 13, 0.0f, false);
            generate_begin(model);
            for (int i = 0; i < 60; i++) {
                generate_append(model, i);
                if (i % 2 != 0) { model->generation.cached = 0; }
                sample_token(generate_logits(model), small.vocab_size, 0.8f, 0.9f, 0.5, model->generation.probs);
            }
            one_step(model, 2, 24, step);
        }
        CHECK(t, allocations == allocations_before, "allocations after the plan's");
        CHECK(t, hash_of(model->params) == want, "--recompute %d: other weights", level);
        free_model(instance);
    }
}

#ifndef TEST_LLAMA3
// (One that only needs too much memory: test_options.py, test_practice.py.)
TEST(test_plan_that_overflows) {
    ModelConfig largest = GPT2_CONFIG(1 << 20, 1 << 20, 1 << 20, 1000, 1024, 1 << 16);
    RunShape shape = {RUN_TRAINS, 65536, 1 << 20, 0, 0, 0, OPTIMIZER_ADAMW};
    Model model;
    MemoryPlan plan;
    model_plan(&model, &plan, &largest, shape, &gemm_portable);
    FAILS(t, plan_allocate(&plan, &error), "overflows 64 bits");
}
#endif

// Puts a NaN where the forward pass is to find it first, and takes it away again.
static void check_named(Test *t, Model *model, float *place, const char *want) {
    char name[128] = "";
    float old = *place;
    ActShape shape = activation_shape(model);
    ActSlot slots[NUM_ACTIVATIONS];
    activation_slots(&model->acts, slots);
    *place = NAN;
    name_nonfinite_forward(model->params, slots, &shape, 8, name, sizeof(name));
    CHECK(t, strcmp(name, want) == 0, "named '%s', want '%s'", name, want);
    *place = old;
}

TEST(test_nonfinite_is_named) {
    Instance *instance = make_model(t, &small, 1, 8, 0);
    Model *model = &instance->model;
    char name[128];
    int L = small.num_layers;
    fill_batch(model, 0, 8, 1);
    model_forward(model, 1, 8, 1.0f / 8.0f, true);
#ifdef TEST_LLAMA3
    check_named(t, model, &params_of(model, 0).headw[100 * 36 + 35], "parameter headw");
    check_named(t, model, &params_of(model, 2).vw[20 * 36 - 1], "parameter vw of layer 2");
    check_named(t, model, &of_layer(model->acts.swiglu, 1)[8 * 50 - 1], "activation swiglu of layer 1");
#else
    check_named(t, model, &params_of(model, 0).lnfb[35], "parameter lnfb");
    check_named(t, model, &params_of(model, 2).qkvw[3 * 36 * 36 - 1], "parameter qkvw of layer 2");
    check_named(t, model, &of_layer(model->acts.gelu, 1)[8 * 4 * 36 - 1], "activation gelu of layer 1");
#endif
    check_named(t, model, &of_layer(model->acts.qkv, 2)[3], "activation qkv of layer 2");
    check_named(t, model, &of_layer(model->acts.residual, L)[8 * 36 - 1], "activation residual");
    check_named(t, model, &model->acts.losses.data[7], "activation losses");
    model_backward(model, 1, 8);
    grads_of(model, 1).fcprojw[5] = INFINITY;
    find_nonfinite_tensor(&small, model->grads, "gradient of", name, sizeof(name));
    CHECK(t, strcmp(name, "gradient of fcprojw of layer 1") == 0, "named: %s", name);
    free_model(instance);
}
