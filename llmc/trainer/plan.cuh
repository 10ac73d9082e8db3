// The plan of a GPU trainer's memory: every buffer is a row of one of the tables below, or of plan_model's.
#ifndef LLMC_TRAINER_PLAN_CUH
#define LLMC_TRAINER_PLAN_CUH

#include "llmc/files/checkpoint.h"
#include "llmc/trainer/gpu_choices.h"
#include "llmc/trainer/types.cuh"

// The type of a row follows from its pointer. A struct counts as so many doubles.
static inline PlanType plan_type(const float *) { return PLAN_F32; }
static inline PlanType plan_type(const int32_t *) { return PLAN_I32; }
[[maybe_unused]] static inline PlanType plan_type(const __nv_bfloat16 *) { return PLAN_BF16; } // not in the fp32 build
static inline PlanType plan_type(const PipeInstruction *) { return PLAN_I32; }                 // as words
static inline PlanType plan_type(const void *) { return PLAN_F64; }
#define PIPE_WORDS ((int64_t)(sizeof(PipeInstruction) / sizeof(int32_t)))
template <class T> static inline constexpr int64_t doubles_in() {
    static_assert(sizeof(T) % sizeof(double) == 0, "a struct is planned as doubles");
    return (int64_t)(sizeof(T) / sizeof(double));
}

template <class T>
static inline void plan_row(MemoryPlan *plan, T **pointer, const char *name, PlanCategory category, PlanShape shape,
                            int first = FORWARD, int last = UPDATE) {
    plan_add(plan, pointer, name, category, plan_type(*pointer), shape, first, last);
}

// ---- Parameters, gradients, optimizer state ----

// Plans an array: whole or in parts, on the GPU, or on the host with windows for updates on the GPU.
template <class T>
static inline void plan_buckets(Trainer *t, Buckets<T> *array, const char *name, const char *window,
                                PlanCategory category, int64_t length, bool parts, int offload) {
    bool trains = t->model.shape.kind == RUN_TRAINS;
    array->on_host = (t->model.shape.offload & offload) != 0 && length > 0;
    array->parts = parts || array->on_host;
    int64_t windows = array->on_host && trains ? 2 : 0;
    plan_row(array->on_host ? &t->host_plan : &t->device_plan, &array->data, name, category, shape1(length));
    plan_row(&t->device_plan, &array->window, window, PLAN_WORKSPACE, shape2(windows, update_chunk(&t->shards.layout)),
             UPDATE);
}

// Plans this rank's parts of parameters, gradients and optimizer state.
static inline void plan_state(Trainer *t, MemoryPlan *plan) {
    int stage = t->model.shape.zero_stage;
    bool trains = t->model.shape.kind == RUN_TRAINS, in_parts = stage >= ZERO_OPTIMIZER;
    bool narrow = t->model.shape.narrow;
    Model *model = &t->model;
    Optimizer *o = &t->optimizer;
    ZeroLengths n = zero_lengths(&t->shards.layout, stage);
    int64_t slots = zero_slots_length(&t->shards.layout);
    if (!trains) { n.master = n.grads = n.m = n.v = 0; }
    if (!t->model.shape.has_master) { n.master = 0; }
    plan_buckets(t, &model->params, "params", "params_window", PLAN_PARAMETER, n.params, stage >= ZERO_PARAMETERS,
                 OFFLOAD_PARAMETERS);
    plan_buckets(t, &o->master, "master", "master_window", PLAN_OPTIMIZER, n.master, in_parts, OFFLOAD_MASTER);
    plan_buckets(t, &model->grads, "grads", "grads_window", PLAN_GRADIENT, n.grads, stage >= ZERO_GRADIENTS,
                 OFFLOAD_GRADIENTS);
    plan_buckets(t, &o->m, "adam_m", "m_window", PLAN_OPTIMIZER, narrow ? 0 : n.m, in_parts, OFFLOAD_OPTIMIZER);
    plan_buckets(t, &o->v, "adam_v", "v_window", PLAN_OPTIMIZER, narrow ? 0 : n.v, in_parts, OFFLOAD_OPTIMIZER);
    plan_buckets(t, &o->m16, "adam_m", "m_window", PLAN_OPTIMIZER, narrow ? n.m : 0, in_parts, OFFLOAD_OPTIMIZER);
    plan_buckets(t, &o->v16, "adam_v", "v_window", PLAN_OPTIMIZER, narrow ? n.v : 0, in_parts, OFFLOAD_OPTIMIZER);
    o->v.rest = o->v16.rest = zero_muon(&t->shards.layout, 1) > 0;
    plan_row(plan, &model->params.slots, "param_slots", PLAN_PARAMETER, shape1(model->params.parts ? slots : 0));
    // A micro-batch's last gradients are still being sent during the next micro-batch's forward pass.
    plan_row(plan, &model->grads.slots, "grad_slots", PLAN_GRADIENT, shape1(model->grads.parts ? slots : 0));
}

// Plans what Muon needs between gradients and weights, for a group of blocks (update_with_muon).
static inline void plan_muon(Trainer *t, MemoryPlan *plan) {
    const ZeroLayout *zero = &t->shards.layout;
    Optimizer *o = &t->optimizer;
    if (zero_muon(zero, 1) == 0) { return; }
    int64_t own = muon_blocks_at_once(t), block = zero_block(zero), scratch = 0;
    int64_t parts = matrices_travel(&t->shards) ? own * matrices_owners(&t->shards) : 0;
    int64_t slices = zero->part.at.tp > 1 ? zero->part.at.tp * zero_muon(zero, 1) : 0;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        if (!muon_takes(OPTIMIZER_MUON, i)) { continue; }
        const ModelConfig *whole = &zero->part.whole;
        MuonBatch batch = {muon_rows(whole, i), muon_cols(whole, i), block, own};
        scratch = max_i64(scratch, muon_scratch_elements(batch));
    }
    plan_row(plan, &o->muon.blocks, "muon_blocks", PLAN_WORKSPACE, shape2(own, block), UPDATE);
    plan_row(plan, &o->muon.parts, "muon_parts", PLAN_WORKSPACE, shape2(parts, matrices_held(&t->shards)), UPDATE);
    plan_row(plan, &o->muon.spare, "muon_spare", PLAN_WORKSPACE,
             shape1(t->shards.stage > ZERO_REPLICATE ? zero_padded(zero, 1) : 0), UPDATE);
    plan_row(plan, &o->muon.slices, "muon_slices", PLAN_WORKSPACE, shape1(slices), UPDATE);
    plan_row(plan, &o->muon_scratch, "muon_scratch", PLAN_WORKSPACE, shape1(scratch), UPDATE);
}

// Returns the number of partial sums of squares of this rank's gradients. The buckets' sums lie one behind the other.
static inline int64_t norm_partials(const Trainer *t) {
    const ZeroLayout *zero = &t->shards.layout;
    int64_t partials = 0;
    for (int b = 0; b < zero->num_buckets; b++) { partials += global_norm_scratch_doubles(zero_shard(zero, b)); }
    return partials;
}

// ---- Activations ----

// Plans the activations. A run without a backward pass has no gradients of activations.
static inline void plan_activations(Model *model, MemoryPlan *plan, MemoryPlan *host) {
    ActShape shape = activation_shape(model);
    ActSlot slots[NUM_ACTIVATIONS];
    model->head_rows = (int)shape.chunk_rows;
    activation_slots(&model->acts, slots);
    int64_t waiting = shape.offloaded ? model->config.num_layers - 1 : 0;
    plan_row(host, &model->residuals, "residuals", PLAN_ACTIVATION,
             shape3(waiting, shape.rows / shape.row_ranks, model->config.channels));
    for (int i = 0; i < NUM_ACTIVATIONS; i++) {
        bool wanted = model->shape.kind == RUN_TRAINS || activation_specs[i].category != PLAN_GRADIENT;
        if (wanted) { plan_activation(plan, &shape, i, slots[i]); }
    }
}

// ---- The tables ----

// The rows of device memory that all models have: pointer, name, category, shape, and for a row
// that does not live through the whole step its phases.
#define DEVICE_ROWS(X)                                                                                                 \
    X(feeder.slots[0].device, "batch_0", DATA, shape2(3, N))                                                           \
    X(feeder.slots[1].device, "batch_1", DATA, shape2(3, N))                                                           \
    X(sample.history.device, "history", DATA, shape1(run->T))                                                          \
    X(stats.norm_partials, "norm_partials", WORKSPACE, shape1(trains *norm_partials(t)))                               \
    X(stats.loss_sum, "loss_sum", WORKSPACE, shape1(1))                                                                \
    X(stats.records, "records", WORKSPACE, shape2(t->shards.all.size, doubles_in<StepRecord>()))                       \
    X(stats.result, "result", WORKSPACE, shape1(doubles_in<StepResult>()))                                             \
    X(evaluation.losses, "eval_losses", WORKSPACE, shape2(run->loss_places, doubles_in<SequenceLoss>()))               \
    X(transfer.checksum, "checksum", WORKSPACE, shape1(1))                                                             \
    X(transfer.flag, "flag", WORKSPACE, shape1(1))                                                                     \
    X(gpu.cublas_workspace, "cublas", WORKSPACE, shape1(CUBLAS_WORKSPACE / 4))

// The host's memory. All of it is pinned, as copies to and from the GPU want it.
#define HOST_ROWS(X)                                                                                                   \
    X(feeder.slots[0].staging, "staging_0", DATA, shape2(3, cp *N))                                                    \
    X(feeder.slots[1].staging, "staging_1", DATA, shape2(3, cp *N))                                                    \
    X(stats.results, "results", DATA, shape2(NUM_STEPS, doubles_in<StepResult>()))                                     \
    X(evaluation.host_losses, "eval_losses", DATA, shape2(run->loss_places, doubles_in<SequenceLoss>()))               \
    X(transfer.host_checksum, "checksum", DATA, shape1(1))                                                             \
    X(transfer.staging, "staging", DATA, shape1(piece))                                                                \
    X(sample.logits, "sample_logits", DATA, shape1(V))                                                                 \
    X(sample.history.staging, "history_staging", DATA, shape2(2, run->T))                                              \
    X(evaluation.row_means, "row_means", WORKSPACE, shape1(run->eval_sequences))                                       \
    X(sample.probs, "sampler_probs", WORKSPACE, shape1(V))                                                             \
    X(feeder.list, "instructions", DATA, shape2(trains *pipe_length(&run->pipeline), PIPE_WORDS))                      \
    X(feeder.token_counts, "token_counts", WORKSPACE, shape1(V + 1))

#define PLAN_TRAINER_ROW(pointer, name, category, ...) plan_row(plan, &t->pointer, name, PLAN_##category, __VA_ARGS__);

static_assert(ZERO_MAX_PIECE * (int64_t)sizeof(float) <= CUBLAS_WORKSPACE,
              "parameters on their way to bf16 pass through cuBLAS's workspace");

static inline void plan_device(Trainer *t) {
    MemoryPlan *plan = &t->device_plan;
    const RunShape *run = &t->model.shape;
    int64_t N = batch_rows(run), trains = run->kind == RUN_TRAINS;
    plan_state(t, plan);
    plan_activations(&t->model, plan, &t->host_plan);
    plan_model(t, plan);
    if (trains) { plan_muon(t, plan); }
    DEVICE_ROWS(PLAN_TRAINER_ROW)
    plan_layout(plan);
}

static inline void plan_host(Trainer *t) {
    const RunShape *run = &t->model.shape;
    const int64_t *shard = t->shards.layout.shard;
    int64_t N = batch_rows(run), V = t->shards.layout.part.whole.vocab_size, trains = run->kind == RUN_TRAINS;
    int64_t cp = run->grid.cp; // a batch is read whole
    int64_t piece = min_i64(ZERO_MAX_PIECE, max_i64(max_i64(shard[ZERO_OUTSIDE], shard[ZERO_HEAD]), shard[ZERO_BLOCK]));
    MemoryPlan *plan = &t->host_plan;
    HOST_ROWS(PLAN_TRAINER_ROW)
    plan_layout(plan);
}

// Plans every buffer of a rank of a run. config: of the whole model. *t is new, or was planned before and never opened.
static inline void trainer_plan(Trainer *t, const ModelConfig *config, RunShape shape) {
    memset(t, 0, sizeof(*t));
    t->model.shards = &t->shards;
    shape.zero_stage = zero_effective_stage(shape.zero_stage, shape.grid.dp * shape.grid.cp);
    shards_plan(&t->shards, config, &shape.grid, shape.rank, shape.pipeline.chunks, shape.zero_stage, shape.optimizer,
                row_ranks(&shape) > 1);
    t->model.config = t->shards.layout.config, t->model.shape = shape;
    plan_init(&t->device_plan, phase_names), plan_init(&t->host_plan, phase_names);
    plan_device(t);
    plan_host(t);
}

// ---- From a run's options to a plan ----

// How a training state records our own attention.
#define OWN_ATTENTION "our own kernels"

static_assert(TRAIN_MAX_BATCH <= CUDNN_ATT_MAX_BATCH, "whether cuDNN takes attention does not depend on the batch");

// Settles what computes attention: cuDNN where it takes the shape, unless --attention says otherwise, or the resumed
// run had our own kernels. Notes why it is not cuDNN.
static inline bool settle_attention(TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    CudnnShape shape = {attention_shape(&run->config, 1, (int)o->seq_len), o->deterministic};
    bool own = strcmp(o->attention, "own") == 0, asked = strcmp(o->attention, "cudnn") == 0 || !o->deterministic;
    char was[sizeof(run->record.attention)] = "", version[32];
    Error why = {};
    bool cudnn = cudnn_att_check(&shape, &why);
    if (o->cp > 1) { cudnn = fail(&why, "context parallelism takes " OWN_ATTENTION); }
    if (asked && !cudnn) {
        const char *given = o->deterministic ? "--attention cudnn" : "--deterministic 0: is for cuDNN's attention";
        return fail(error, "%s: %s", given, why.text);
    }
    if (run_kind(run) != RUN_TRAINS) { return true; }
    bool resumes = run_resumes(run) && state_get_text(&run->folder.facts, "attention-by", was, sizeof(was));
    if (resumes && !own && !asked && strcmp(was, OWN_ATTENTION) == 0) {
        cudnn = fail(&why, "the resumed run has taken " OWN_ATTENTION);
    }
    cudnn = cudnn && !own;
    cudnn_att_version_text(version, sizeof(version));
    snprintf(run->record.attention, sizeof(was), "%s%s", cudnn ? "cuDNN " : OWN_ATTENTION, cudnn ? version : "");
    if (!cudnn && !own) { snprintf(run->choices.no_cudnn, sizeof(run->choices.no_cudnn), "%.250s", why.text); }
    return true;
}

// Returns the places for the losses of batches of `most` sequences, shared by the ranks in rounds.
static inline int64_t loss_places(const TrainRun *run, int64_t batches, int64_t most) {
    return run->num_ranks * ceil_div_i64(batches, run->data.ranks) * most;
}

// Returns the grid of a run, which grid_make has checked.
static inline RankGrid run_grid(const TrainRun *run) {
    int tp = (int)run->options->tp, cp = (int)run->options->cp, pp = (int)run->options->pp;
    return {run->num_ranks / (tp * cp * pp), pp, cp, tp};
}

// Describes the pipeline of a step with micro-batches of B sequences.
static inline Pipeline run_pipeline(const TrainRun *run, const RankGrid &grid, int64_t B) {
    const TrainOptions *o = run->options;
    Pipeline p = {PIPE_1F1B, grid.pp, grid_place(&grid, run->rank).pp, 1, 1};
    for (int i = PIPE_AFAB; i <= PIPE_INTERLEAVED; i++) {
        if (strcmp(pipe_names[i], o->pp_schedule) == 0) { p.schedule = (PipeSchedule)i; }
    }
    if (p.schedule == PIPE_INTERLEAVED) { p.chunks = (int)o->pp_chunks; }
    if (run_kind(run) == RUN_TRAINS) { p.micro_batches = (int)(o->total_batch / (B * o->seq_len * grid.dp)); }
    return p;
}

// Lists what a run computes, with a micro-batch of B sequences and a level of recomputation.
static inline RunShape shape_of(const TrainRun *run, int64_t B, int level) {
    const TrainOptions *o = run->options;
    RunShape shape;
    memset(&shape, 0, sizeof(shape));
    shape.kind = run_kind(run);
    shape.B = shape.kind == RUN_GENERATES ? 1 : (int)B;
    shape.T = (int)o->seq_len;
    shape.eval_T = run_eval_length(run);
    shape.recompute = level;
    shape.gelu_fusion = (int)o->gelu_fusion;
    shape.fp8 = o->fp8;
    shape.head_rows = (int)o->head_rows;
    shape.repeats = o->deterministic;
    shape.cudnn = strncmp(run->record.attention, "cuDNN", 5) == 0;
    shape.has_master = o->master_weights && !PRECISION_IS_FP32;
    shape.rank = run->rank;
    shape.grid = run_grid(run), shape.sp = o->sp && shape.grid.tp > 1;
    shape.pipeline = run_pipeline(run, shape.grid, B);
    shape.zero_stage = (int)o->zero_stage;
    shape.optimizer = train_options_optimizer(o), shape.muon_scale = run_muon_scale(run);
    shape.offload = run->choices.offload, shape.narrow = strcmp(o->moments, "bf16") == 0;
    shape.loss_places = loss_places(run, ceil_div_i64(run_val_sequences(run), B), B);
    for (const EvalLoader &eval : run->evals) {
        if (!eval_is_open(&eval)) { continue; }
        int64_t most = eval_batch_sequences(&eval, B * o->seq_len), batches = ceil_div_i64(eval.num_sequences, most);
        shape.loss_places = max_i64(shape.loss_places, loss_places(run, batches, most));
        shape.eval_sequences = max_i64(shape.eval_sequences, eval.num_sequences);
    }
    return shape;
}

// Plans the first rank of a stage of a pipeline. shape: of any rank.
static inline void plan_stage(Trainer *t, const TrainRun *run, RunShape shape, int stage) {
    RankGrid place = {0, stage, 0, 0};
    shape.rank = grid_rank(&shape.grid, &place), shape.pipeline.stage = stage;
    trainer_plan(t, &run->config, shape);
}

inline int64_t trainer_plan_bytes(const TrainRun *run, int64_t B, int level) {
    static Trainer scratch; // large, so not on the stack
    Error ignored;
    int64_t most = 0;
    RunShape shape = shape_of(run, B, level);
    for (int stage = 0; stage < shape.grid.pp; stage++) {
        plan_stage(&scratch, run, shape, stage);
        if (!plan_check_overflow(&scratch.device_plan, &ignored)) { return INT64_MAX; }
        int ranks = run->comm != NULL ? run->comm->num_local : 1;
        bool pins = shape.offload != 0 && !train_options_plan(run->options);
        if (pins && scratch.host_plan.total > machine_memory("") / ranks) { return INT64_MAX; }
        most = max_i64(most, scratch.device_plan.total);
    }
    return most;
}

#endif // LLMC_TRAINER_PLAN_CUH
