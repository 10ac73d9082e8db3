// What the CPU trainers share, part 2: a step, evaluation, the state, the start and the end. A main file defines its
// PROGRAM_NAME first.
#ifndef LLMC_TRAINER_CPU_PROGRAM_H
#define LLMC_TRAINER_CPU_PROGRAM_H

#include "llmc/run/one_rank.h"
#include "llmc/trainer/cpu_model.h"

#ifndef PROGRAM_NAME
#define PROGRAM_NAME "train_gpt2"
#endif

struct Trainer {
    Model model;
    MemoryPlan plan;
    double val_sum;    // of the mean losses of a validation's sequences so far
    double peak_flops; // of this machine, measured
    GemmKernel kernel; // of the matrix multiply
};

static StopRequest stop_request;
static inline void on_signal(int number) { stop_on_signal(&stop_request, number); }

// Returns the source's revision. The Makefile links another function of this name, so that a commit recompiles nothing.
__attribute__((weak)) const char *gpt2c_revision(void) { return ""; }

const TrainerFacts trainer_facts = {PROGRAM_NAME,  gpt2c_revision,
                                    NULL,          64, // tokens that a laptop's CPU can bear
                                    false,         0,
                                    &stop_request, on_signal};

// Refuses a loss that is not a number: names the tensor where the NaN or the infinity first stands.
static inline bool fail_nonfinite_loss(Model *model, TrainRun *run, int64_t rows, double loss, Error *error) {
    char place[64];
    ActShape shape = activation_shape(model);
    ActSlot slots[NUM_ACTIVATIONS];
    activation_slots(&model->acts, slots);
    name_nonfinite_forward(model->params, slots, &shape, rows, place, sizeof(place));
    return run_fail_nonfinite(run, run->step, "loss", loss, place, error);
}

// Adds up the gradient of a step over its micro-batches. If the run is asked to stop between two of them, sets
// *interrupted and returns early. Nothing is lost: a resumed run begins the step anew.
static inline bool accumulate_gradient(Model *model, TrainRun *run, double *loss, bool *interrupted, Error *error) {
    int B = (int)run->options->batch_size, T = (int)run->options->seq_len;
    float dloss = 1.0f / (float)run->options->total_batch;
    clear_rows(model->grads, model_num_params(&model->config));
    *loss = 0.0;
    for (int64_t i = 0; i < run->micro_batches; i++) {
        *interrupted = is_stopping(&stop_request) && i > 0;
        if (*interrupted) { return true; }
        if (!run_read_batch(run, i, model->tokens, model->targets, error)) { return false; }
        double batch_loss = model_forward(model, B, T, dloss, true);
        if (!isfinite(batch_loss)) { return fail_nonfinite_loss(model, run, (int64_t)B * T, batch_loss, error); }
        model_backward(model, B, T);
        *loss += batch_loss / (double)run->micro_batches;
    }
    return true;
}

static inline void update_params(Model *model, TrainRun *run, const StepInfo *info) {
    const TrainOptions *o = run->options;
    bool clips = o->grad_clip > 0.0 && info->norm > o->grad_clip;
    float scale = clips ? (float)(o->grad_clip / info->norm) : 1.0f, decay = (float)o->weight_decay;
    AdamW adamw = {(float)info->lr, 0.9f, 0.95f, (float)o->adam_eps, decay, scale, ++run->updates};
    Muon muon = {run_muon_rate(run), run_muon_momentum(run), decay, scale, run_muon_scale(run)};
    model_update(model, &adamw, &muon);
}

// Refuses a norm that is not a number or is too large to clip.
static inline bool check_norm(const Model *model, TrainRun *run, double norm, Error *error) {
    char place[64] = "the sum of squares";
    if (norm <= LARGEST_NORM || (isfinite(norm) && run->options->grad_clip > 0.0)) { return true; }
    find_nonfinite_tensor(&model->config, model->grads, "gradient of", place, sizeof(place));
    return run_fail_nonfinite(run, run->step, "gradient norm", norm, place, error);
}

// Runs one step: gradient, norm, update, one line in the log.
static inline bool train_step(Trainer *t, TrainRun *run, Error *error) {
    Model *model = &t->model;
    double start = seconds_now();
    bool interrupted = false;
    StepInfo info = run_begin_step(run, schedule_lr(&run->schedule, run->step));
    if (!accumulate_gradient(model, run, &info.loss, &interrupted, error)) { return false; }
    if (interrupted) { return true; }
    info.norm = model_gradient_norm(model);
    if (!check_norm(model, run, info.norm, error)) { return false; }
    if (!run_skips_update(run, &info)) { update_params(model, run, &info); }
    info.seconds = seconds_now() - start;
    info.peak_fraction = run_step_flops(run) / info.seconds / t->peak_flops;
    run_advance(run);
    return run_log_step(run, &info, error);
}

// Adds up the mean losses of the sequences of one batch. Each sequence has its own sum, and the sequences are added in
// order, so that the result does not depend on the size of a batch.
bool trainer_validate_batch(Trainer *t, TrainRun *run, Round round, Error *error) {
    Model *model = &t->model;
    int64_t B = run->options->batch_size, first = round.batch * B;
    int T = (int)run->options->seq_len, rows = (int)min_i64(B, run_val_sequences(run) - first);
    if (round.number == 0) { t->val_sum = 0.0; }
    if (!run_read_val(run, first, rows, model->tokens, model->targets, error)) { return false; }
    model_forward(model, rows, T, 0.0f, false);
    for (int b = 0; b < rows; b++) { t->val_sum += row_mean(model->acts.losses.data + b * T, T); }
    return true;
}

double trainer_validation_loss(Trainer *t, TrainRun *run, Round last) {
    return (void)last, t->val_sum / (double)run_val_sequences(run);
}

// Computes the mean loss of each completion of a batch, over the completion's own tokens.
void trainer_evaluate_batch(Trainer *t, TrainRun *run, int which, Round round) {
    Model *model = &t->model;
    const EvalLoader *eval = &run->evals[which];
    EvalBatch batch = eval_batch(eval, round.batch);
    eval_read(eval, batch, model->tokens, model->targets);
    model_forward(model, batch.sequences, eval->T, 0.0f, false);
    for (int64_t i = 0; i < batch.sequences; i++) {
        int64_t row = batch.first + i;
        int begin, end;
        eval_scored(eval, row, &begin, &end);
        model->eval_means[row] = row_mean(model->acts.losses.data + i * eval->T + begin, end - begin);
    }
}

const double *trainer_evaluation_means(Trainer *t, TrainRun *run, int which, Round last) {
    return (void)run, (void)which, (void)last, t->model.eval_means;
}

float *trainer_begin_sample(Trainer *t) { return generate_begin(&t->model); }
void trainer_append_token(Trainer *t, int token) { generate_append(&t->model, token); }
const float *trainer_next_logits(Trainer *t) { return generate_logits(&t->model); }

// A fresh run has no reader: a model's file has its parameters, or the initialisation draws them from the seed.
bool trainer_read_state(Trainer *t, TrainRun *run, CheckpointReader *reader, Error *error) {
    Model *model = &t->model;
    float *arrays[CHECKPOINT_ARRAYS] = {model->params, model->optimizer.m, model->optimizer.v};
    clear_moments(model);
    if (reader != NULL) { return checkpoint_read_whole(reader, arrays, error); }
    if (run->model_file != NULL) { return model_file_read(run->model_file, model->params, error); }
    param_init_all(model->params, &run->config, (uint64_t)run->options->seed);
    return true;
}

bool trainer_check_state(Trainer *t, TrainRun *run, Error *error) { return (void)t, (void)run, (void)error, true; }

bool trainer_write_state(Trainer *t, CheckpointWriter *writer, Error *error) {
    const Model *model = &t->model;
    const float *arrays[CHECKPOINT_ARRAYS] = {model->params, model->optimizer.m, model->optimizer.v};
    return checkpoint_write_whole(writer, arrays, error);
}

// Completes the options: micro-batch, steps, kernels. They stay constant from then on.
static inline bool settle(Trainer *t, TrainRun *run, TrainOptions *o, Error *error) {
    bool bf16 = strcmp(o->precision, "bf16") == 0, generates = run_kind(run) == RUN_GENERATES;
    if (!run_settle_batch(run, o, error) || !kernel_choose(&t->kernel, o->cpu_kernels, bf16, generates, error)) {
        return false;
    }
    kernel_describe(&t->kernel, run->record.arithmetic, sizeof(run->record.arithmetic));
    return run_settle_steps(run, o, error);
}

static inline void plan_run(Trainer *t, const TrainRun *run) {
    const TrainOptions *o = run->options;
    RunShape shape = {run_kind(run),        (int)o->batch_size,      (int)o->seq_len,           (int)o->recompute,
                      run_eval_length(run), run_eval_sequences(run), train_options_optimizer(o)};
    model_plan(&t->model, &t->plan, &run->config, shape, &t->kernel);
}

static inline void print_run(const Trainer *t, TrainRun *run) {
    run_print_config(run);
    run_print_needs(run, &t->plan);
    if (train_options_plans_all(run->options)) { run_print_buffers(&t->plan); }
    if (train_options_plan(run->options)) { run_print_machine_fit(run, &t->plan); }
    fflush(stdout); // before memory is taken
}

// Opens the machine, loads the model, and begins the logs.
static inline bool start(Trainer *t, TrainRun *run, Error *error) {
    RunMachine machine;
    memset(&machine, 0, sizeof(machine));
    if (!plan_allocate(&t->plan, error)) { return false; }
    prepare_rope(&t->model);
    t->peak_flops = 1e9 * kernel_peak(&t->kernel, gemm_max_threads());
    if (!run_claim_folder(run, error) || !run_load(run, error) || !run_begin_log(run, error) ||
        !run_record_start(run, &machine, error)) {
        return false;
    }
    say(stdout, "machine     %d threads, matrix multiply in %s by %s, measured peak %.0f GFLOP/s\n", gemm_max_threads(),
        run->options->precision, t->kernel.name, 1e-9 * t->peak_flops);
    run_catch_signals(run);
    return true;
}

// Hashes the weights in the order of a file, and ends the run.
static inline bool finish(Trainer *t, TrainRun *run, Error *error) {
    uint64_t hash = 0;
    ParamPiece piece = PARAM_PIECE_BEGIN;
    while (param_next_piece(&run->config, OPTIMIZER_ADAMW, &piece)) {
        hash += sum64(piece.in_file, t->model.params + piece.place, piece.count);
    }
    return run_finish(run, hash, error);
}

// Trains from the run's step to its last, or until a signal stops it.
static inline bool train(Trainer *t, TrainRun *run, Error *error) {
    for (;;) {
        Due due = run_what_is_due(run); // save, validate, evaluate, sample
        if (!run_do_what_is_due(run, due, error)) { return false; }
        if (run_ends(run, due)) { return run_end_training(run, error); }
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
    bool ok = model_check_program(&error) && one_rank_check(PROGRAM_NAME, &error) &&
              run_open_inputs(&run, &options, &error) && settle(t, &run, &options, &error);
    if (ok) { plan_run(t, &run), print_run(t, &run); }
    if (ok && !train_options_plan(&options)) {
        ok = start(t, &run, &error) &&
             (run_kind(&run) == RUN_TRAINS ? train(t, &run, &error) : run_evaluate_only(&run, &error)) &&
             finish(t, &run, &error);
    }
    if (!ok) { run_fail(&run, &error); }
    run_close(&run);
    plan_free(&t->plan);
    return run_exit(&run, ok, &error);
}

#endif // LLMC_TRAINER_CPU_PROGRAM_H
