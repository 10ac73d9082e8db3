// The program of the GPU trainers: its facts, the way of a run, the loop over steps. A main file defines its
// PROGRAM_NAME first.
#ifndef LLMC_TRAINER_PROGRAM_CUH
#define LLMC_TRAINER_PROGRAM_CUH

#include "llmc/layers/attention.cuh"
#include "llmc/layers/layernorm.cuh"
#include "llmc/model/rope.h"
#include "llmc/run/train_loop.h"
#include "llmc/trainer/block.cuh"
#include "llmc/trainer/evaluate.cuh"
#include "llmc/trainer/head.cuh"
#include "llmc/trainer/open.cuh"
#include "llmc/trainer/pipeline.cuh"
#include "llmc/trainer/print.cuh"
#include "llmc/trainer/state.cuh"
#include "llmc/trainer/step.cuh"

#ifndef PROGRAM_NAME
#define PROGRAM_NAME "train_gpt2cu"
#endif

// Returns the source's revision. The Makefile links another function of this name, so that a commit recompiles nothing.
extern "C" __attribute__((weak)) const char *gpt2c_revision(void) { return ""; }

static StopRequest stop_request;
static void on_signal(int number) { stop_on_signal(&stop_request, number); }

const TrainerFacts trainer_facts = {PROGRAM_NAME,  gpt2c_revision, PRECISION_NAME, 1024, true, 1,
                                    &stop_request, on_signal};

// Refuses shapes and options that this build or its kernels cannot compute. Runs before the GPU is opened.
static inline bool check_shape(const TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    const ModelConfig *c = &run->config;
    const char *where = run_shape_origin(run);
    if (!layernorm_check(where, c->channels, error) || !attention_check(where, attention_shape(c, 1, 1), error) ||
        !cross_entropy_check(c->padded_vocab_size, error)) {
        return false;
    }
    const ModelDim widths[] = {DIM_C, DIM_Q, DIM_QKV, DIM_F}; // of the linear layers
    for (ModelDim width : widths) {
        if (o->fp8 && !fp8_check_width((int)model_dim(c, width), error)) { return false; }
    }
#ifdef PRECISION_FP32
    if (o->fp8) { return fail(error, "--fp8: is for the bf16 build; this one is fp32 (make PRECISION=FP32)"); }
    if (strcmp(o->moments, "bf16") == 0) {
        return fail(error, "--moments bf16: is for the bf16 build; this one is fp32 (make PRECISION=FP32)");
    }
    if (!o->master_weights) {
        return fail(error, "--master-weights (-w): 0 is for the bf16 build; in fp32 there is one copy of the weights");
    }
#else
    if (!o->tf32) {
        return fail(error, "--tf32 (-f): 0 is for the fp32 build (make PRECISION=FP32); this one multiplies in bf16");
    }
#endif
    return true;
}

// Hashes the weights.
static inline bool finish(Trainer *t, TrainRun *run, Error *error) {
    uint64_t hash;
    comm_progress(t->shards.ranks, "the end");
    comm_slow(t->shards.ranks, true);
    if (!trainer_check_state(t, run, error) || !hash_params(t, &hash, error)) { return false; }
    if (has_peers(&t->shards) && t->model.shape.kind == RUN_TRAINS && !print_sent(t, error)) { return false; }
    print_bus(&t->shards.sent);
    bool ok = !run_leads(run) || run_finish(run, hash, error);
    return ranks_agree(run->comm, ok, error);
}

// Settles the grid, this rank's place in it and the stage that a pipeline implies. Refuses what a grid cannot do.
static inline bool settle_grid(TrainRun *run, TrainOptions *o, Error *error) {
    RankGrid grid, wanted = {0, (int)o->pp, (int)o->cp, (int)o->tp};
    int chunks = strcmp(o->pp_schedule, "interleaved") == 0 ? (int)o->pp_chunks : 1;
    if (!grid_make(&grid, &run->config, run->num_ranks, &wanted, chunks, error)) { return false; }
    if (o->tp * o->pp > 1 && o->fp8) { return fail(error, "--fp8: goes with --cp, not with --tp or --pp"); }
    if (o->pp > 1 && !o->given[OPTION_zero_stage]) { o->zero_stage = ZERO_OPTIMIZER; } // 2 and 3 send each micro-batch
    int tp = o->sp ? grid.tp : 1, rows = grid.cp > 1 ? grid.cp * tp * (1 + tp % 2) : tp; // equal parts of a sequence
    const char *const needs[] = {"--seq-len", "--hellaswag", "--mmlu"};
    const int lengths[] = {(int)o->seq_len, run->evals[EVAL_HELLASWAG].T, run->evals[EVAL_MMLU].T}; // 0: not wanted
    for (int i = 0; i < 3; i++) {
        if (lengths[i] % rows == 0) { continue; }
        return fail(error,
                    "%s: the ranks of --cp %d and --tp %d (--sp %d) cannot share a sequence of %d tokens evenly, but a "
                    "multiple of %d",
                    needs[i], grid.cp, grid.tp, (int)o->sp, lengths[i], rows);
    }
    for (int r = 0; r < run->connected && grid.dp < run->num_ranks; r++) {
        RankGrid at = grid_place(&grid, r);
        char place[72];
        snprintf(place, sizeof(place), " at dp %d, pp %d, cp %d, tp %d", at.dp, at.pp, at.cp, at.tp);
        comm_set_place(run->comm, r, place);
    }
    run->data.ranks = grid.dp, run->data.rank = grid_place(&grid, run->rank).dp;
    return true;
}

// Refuses micro-batches that the schedule of the pipeline cannot do.
static inline bool check_pipeline(const TrainRun *run, Error *error) {
    Pipeline p = run_pipeline(run, run_grid(run), run->options->batch_size);
    Error why;
    return run_kind(run) != RUN_TRAINS || pipe_check(&p, &why) ||
           fail(error, "--pp-schedule %s; change --total-batch or --batch-size", why.text);
}

// Settles what waits on the host.
static inline bool settle_offload(TrainRun *run, const TrainOptions *o, Error *error) {
    RankGrid grid = run_grid(run);
    bool trains = run_kind(run) == RUN_TRAINS, whole = o->pp == 1;
    const bool has[NUM_OFFLOADS] = {trains, trains && o->master_weights && !PRECISION_IS_FP32, trains && whole,
                                    trains && whole, whole};
    for (int i = 0; i < NUM_OFFLOADS; i++) {
        bool shared_out = grid.dp * grid.cp == 1 || o->zero_stage >= offloads[i].stage;
        if (has[i] && shared_out) { run->choices.offloads |= 1 << i; }
    }
    return offload_parse(&run->choices.offload, o->offload, run->choices.offloads, error);
}

// Completes the options: micro-batch, level of recomputation, steps. They stay constant from then on.
static inline bool settle(TrainRun *run, TrainOptions *o, Error *error) {
    char facts[256];
    bool ok = settle_grid(run, o, error) && settle_offload(run, o, error) && run_settle_batch(run, o, error) &&
              check_shape(run, error) && settle_attention(run, error);
    int n = snprintf(facts, sizeof(facts), "attention (alike with --attention own)%c%s", '\0', run->record.attention);
    return ranks_agree(run->comm, ok, error) && ranks_alike(run->comm, facts, (size_t)n + 1, error) &&
           settle_by_gpus(run, o, error) &&
           ranks_agree(run->comm, run_settle_steps(run, o, error) && check_pipeline(run, error), error);
}

static inline void plan(Trainer *t, const TrainRun *run) {
    trainer_plan(t, &run->config, shape_of(run, run->options->batch_size, (int)run->options->recompute));
}

static inline void print_run(Trainer *t, TrainRun *run) {
    run_print_config(run);
    print_config(t, run);
    run_print_needs(run, &t->device_plan);
    if (!train_options_plan(run->options)) { return (void)fflush(stdout); }
    if (train_options_plans_all(run->options)) { run_print_buffers(&t->device_plan); }
    print_plan(t, run);
}

// Fills the table of rotary embeddings, if the model has one.
static inline bool upload_rope(const Model *model, Gpu *gpu, Error *error) {
    size_t bytes = (size_t)rope_table_floats(&model->config, model_positions(model)) * sizeof(float);
    if (bytes == 0) { return true; }
    float *table = (float *)malloc(bytes);
    if (table == NULL) { return fail(error, "out of memory for the table of rotary embeddings"); }
    rope_table(table, model_positions(model), &model->config);
    cuda_check(cudaMemcpyAsync(model->rope, table, bytes, cudaMemcpyHostToDevice, gpu->stream));
    cuda_check(cudaStreamSynchronize(gpu->stream));
    free(table);
    return true;
}

// Opens the machine, loads the model, and begins the logs.
static inline bool start(Trainer *t, TrainRun *run, Error *error) {
    RunMachine machine;
    memset(&machine, 0, sizeof(machine));
    ranks_slow(run->comm, true); // libraries and files may come over a network, and hundreds of ranks connect
    bool ok = open_trainer(t, run, error) && upload_rope(&t->model, &t->gpu, error) &&
              run_lead(run, run_claim_folder, error) && run_load(run, error);
    if (ok) { share_state(t); }
    ok = ok && run_begin_log(run, error);
    if (ok) { describe(t, run, &machine); }
    ok = ok && run_record_start(run, &machine, error);
    ranks_slow(run->comm, false);
    if (!ok) { return false; }
    print_machine(t);
    run_catch_signals(run);
    return true;
}

// Trains from the run's step to its last, or until a signal stops it.
static inline bool train(Trainer *t, TrainRun *run, Error *error) {
    for (;;) {
        Due due = run_what_is_due(run); // save, validate, evaluate, sample
        if ((due.any && !settle_step(t, run, error)) || !run_do_what_is_due(run, due, error)) { return false; }
        if (run_ends(run, due)) { return settle_step(t, run, error) && run_end_training(run, error); }
        if (!train_step(t, run, error)) { return false; }
    }
}

// Runs the program. main returns what it returns.
static inline int trainer_main(int argc, char **argv) {
    static Trainer trainer; // zero; large, so not on the stack
    static TrainOptions options;
    static TrainRun run;
    Trainer *t = run.trainer = &trainer;
    Error error;
    int status;
    if (!run_parse(&run, &options, argc, argv, &status)) { return status; }
    bool ok = join(&run, &error) && run_open_inputs(&run, &options, &error) && settle(&run, &options, &error);
    if (ok) {
        plan(t, &run);
        print_run(t, &run);
    }
    if (ok && !train_options_plan(&options)) {
        ok = start(t, &run, &error) &&
             (run_kind(&run) == RUN_TRAINS ? train(t, &run, &error) : run_evaluate_only(&run, &error)) &&
             finish(t, &run, &error);
    }
    if (!ok) { run_fail(&run, &error); }
    run_close(&run);
    trainer_close(t);
    ranks_close(run.comm);
    return run_exit(&run, ok, &error);
}

#endif // LLMC_TRAINER_PROGRAM_CUH
