// The program that both trainers share: start, training loop, validation, evaluations, samples, saving, end. A trainer
// supplies its functions in one table, TrainerOps. This file knows neither GPUs nor how ranks talk to each other.
//
// Three things stay apart in the trainers, each for a reason:
// - Recomputation. The GPU fuses layers into kernels and recomputes these, the CPU calls the layers one by one. Both
//   take the levels from the table of activations (llmc/model/activations.h).
// - A batch of an evaluation. The GPU works on it while the host queues the next one, and its results lie in the
//   memory of the rank that had the batch. The CPU has the losses at once.
// - The logits of a sample. The CPU keeps keys and values, because each row of the window costs it time. The GPU
//   computes the whole window, which needs no further kernels and no cache.
#ifndef LLMC_TRAIN_LOOP_H
#define LLMC_TRAIN_LOOP_H

#include "llmc/base/launcher.h"
#include "llmc/run/run_report.h"
#include "llmc/run/run_start.h"
#include "llmc/run/signals.h"

// A round of a validation or an evaluation: each rank takes one batch. A rank with no batch left in the last round
// repeats batch 0, because other ranks may need its parameters. The batches do not depend on the number of ranks.
typedef struct {
    int64_t batches, rounds; // of the whole validation or evaluation
    int64_t number, batch;   // this round, and this rank's batch
} Round;

// The facts of a trainer.
typedef struct {
    const char *program;
    const char *(*revision)(void); // of the source, from git
    const char *precision;         // "fp32" or "bf16"
    int default_seq_len;
    bool on_gpu;      // the program takes the options of a GPU run
    int rounds_ahead; // evaluation rounds that are queued and not done when evaluate_batch returns
    StopRequest *stop;
    void (*on_signal)(int number); // passes the signal on to `stop`
} TrainerFacts;

// A trainer's functions, in the order in which a run calls them. All ranks call each function at once. "or NULL" marks
// a function that a trainer may leave out.
typedef struct {
    TrainerFacts facts;

    bool (*join)(Trainer *t, TrainRun *run, Error *error); // finds the other ranks of the run; or NULL
    bool (*plan)(Trainer *t, TrainRun *run, Error *error); // settles options that are open, plans all memory
    const MemoryPlan *(*memory)(Trainer *t);               // the plan of the machine that computes
    void (*print_config)(Trainer *t, TrainRun *run);       // more than run_print_config does; or NULL
    void (*print_plan)(Trainer *t, TrainRun *run);         // for --plan: more than `memory`; or NULL
    bool (*open)(Trainer *t, TrainRun *run, Error *error); // opens the machine and allocates the plan
    bool (*read_state)(void *trainer, TrainRun *run, CheckpointReader *reader, Error *error); // see RunArrays
    void (*share_state)(Trainer *t, TrainRun *run);                                 // once it is read; or NULL
    bool (*describe)(Trainer *t, TrainRun *run, RunMachine *machine, Error *error); // for run.json; or NULL
    void (*print_machine)(Trainer *t, TrainRun *run);

    bool (*train_step)(Trainer *t, TrainRun *run, Error *error);
    bool (*settle_step)(Trainer *t, TrainRun *run, Error *error); // logs a step whose results come late; or NULL
    bool (*check_state)(Trainer *t, TrainRun *run, Error *error); // before it is saved; or NULL
    bool (*write_state)(void *trainer, CheckpointWriter *writer, Error *error);

    bool (*validate_batch)(Trainer *t, TrainRun *run, Round round, Error *error);
    double (*validation_loss)(Trainer *t, TrainRun *run, Round last); // the mean over all sequences
    void (*evaluate_batch)(Trainer *t, TrainRun *run, int which, Round round);
    const double *(*evaluation_means)(Trainer *t, TrainRun *run, int which, Round last); // of each row's losses

    float *(*begin_sample)(Trainer *t); // an empty sample; returns scratch memory of the sampler (V)
    void (*append_token)(Trainer *t, int token);
    const float *(*next_logits)(Trainer *t); // (V): of the token after the sample

    bool (*finish)(Trainer *t, TrainRun *run, const float **params, uint64_t *hash, Error *error); // for run_finish
    void (*close)(Trainer *t); // frees everything that the run has opened
} TrainerOps;

typedef struct {
    const TrainerOps *ops;
    Trainer *t;
    TrainRun *run;
} TrainLoop;

// ---- Stopping ----

// Asks all ranks whether one of them must stop.
static inline bool loop_ask_to_stop(const TrainLoop *l, Error *error) {
    StopRequest *stop = l->ops->facts.stop;
    bool any = false;
    if (!stop->by_agreement) { return true; }
    if (!l->run->ranks.any(l->run->ranks.comm, stop->asked != 0, &any, error)) { return false; }
    stop->agreed = stop->agreed || any;
    return true;
}

static inline bool loop_is_stopping(const TrainLoop *l) { return is_stopping(l->ops->facts.stop); }

// ---- Validation and evaluations ----

static inline Round loop_first_round(const TrainRun *run, int64_t batches) {
    Round round = {batches, ceil_div_i64(batches, run->num_ranks), -1, 0};
    return round;
}

// Goes on to the next round. Returns false after the last round, or if the run stops or fails.
static inline bool loop_next_round(const TrainLoop *l, Round *round, bool *ok, Error *error) {
    if (++round->number == round->rounds) { return false; }
    int64_t batch = round->number * l->run->num_ranks + l->run->ranks.rank;
    round->batch = batch < round->batches ? batch : 0;
    *ok = loop_ask_to_stop(l, error);
    return *ok && !loop_is_stopping(l);
}

// Logs the mean loss over the validation sequences, which never change. Returns early if the run stops.
static inline bool loop_validate(const TrainLoop *l, Error *error) {
    TrainRun *run = l->run;
    Round round = loop_first_round(run, ceil_div_i64(run_val_sequences(run), run->options.batch_size));
    bool ok = true;
    while (loop_next_round(l, &round, &ok, error)) {
        if (!l->ops->validate_batch(l->t, run, round, error)) { return false; }
    }
    if (!ok || loop_is_stopping(l)) { return ok; }
    double loss = l->ops->validation_loss(l->t, run, round);
    return logger_val(&run->logger, run->step, loss, error) && run_draw_losses(run, error);
}

// Logs the score of an evaluation. Returns early if the run stops. In a round, ranks may have rows of different
// lengths.
static inline bool loop_evaluate(const TrainLoop *l, int which, Error *error) {
    TrainRun *run = l->run;
    Round round = loop_first_round(run, eval_num_batches(&run->evals[which]));
    double start = seconds_now();
    bool ok = true;
    while (loop_next_round(l, &round, &ok, error)) {
        l->ops->evaluate_batch(l->t, run, which, round);
        int64_t done = round.number + 1 - l->ops->facts.rounds_ahead;
        if (done > 0) { run_show_eval(run, which, min_i64(done * run->num_ranks, round.batches), start); }
    }
    if (!ok || loop_is_stopping(l)) { return ok; }
    return run_log_eval(run, which, l->ops->evaluation_means(l->t, run, which, round), error);
}

static inline bool loop_evaluate_all(const TrainLoop *l, Error *error) {
    for (int which = 0; which < NUM_EVALS && !loop_is_stopping(l); which++) {
        if (eval_is_open(&l->run->evals[which]) && !loop_evaluate(l, which, error)) { return false; }
    }
    return true;
}

// ---- Samples ----

// Takes the prompt into the sample, and shows it if the user gave it.
static inline void loop_begin_sample(const TrainLoop *l, TextOut *out) {
    TrainRun *run = l->run;
    logger_clear(&run->logger);
    if (run->num_steps > 0) {
        logger_event(&run->logger, "sample after %lld steps:", (long long)run->step);
    } else {
        logger_event(&run->logger, "sample:");
    }
    text_out_begin(out, stdout);
    for (int64_t i = 0; i < run->texts.prompt_count; i++) {
        l->ops->append_token(l->t, run->texts.prompt[i]);
        if (run->options.prompt[0] != '\0') { run_print_token(run, out, run->texts.prompt[i]); }
    }
}

// True if the sample must end here. All ranks compute a sample together, because sharded parameters need every rank.
static inline bool loop_sample_stops(const TrainLoop *l) {
    Error ignored; // another place ends the run if a rank is gone
    return !loop_ask_to_stop(l, &ignored) || loop_is_stopping(l);
}

// Writes a sample to the screen, token by token, until the run stops. It never fails a training run. Logits that are
// not numbers end the sample with a message and the result false. The next step's loss will show where they come from.
static inline bool loop_sample(const TrainLoop *l) {
    TrainRun *run = l->run;
    const TrainOptions *o = &run->options;
    SamplerOptions options = {(float)o->temperature, (int)o->top_k, (float)o->top_p};
    float *probs = l->ops->begin_sample(l->t);
    TextOut out;
    int token = 0;
    loop_begin_sample(l, &out);
    for (int64_t i = 0; i < o->sample_tokens && !loop_sample_stops(l); i++) {
        double uniform = rand_uniform((uint64_t)o->seed, RAND_SAMPLER, ((uint64_t)run->step << 32) + (uint64_t)i);
        const float *logits = l->ops->next_logits(l->t);
        token = sample_token(logits, run->config.vocab_size, &options, uniform, probs);
        if (token < 0) { break; }
        l->ops->append_token(l->t, token);
        run_print_token(run, &out, token);
    }
    text_out_end(&out);
    logger_event(&run->logger, "%s", token < 0 ? " [the logits are not numbers]" : "");
    return token >= 0;
}

// ---- The training loop ----

static inline RunArrays loop_arrays(const TrainLoop *l) {
    RunArrays arrays = {l->t, l->ops->read_state, l->ops->write_state};
    return arrays;
}

static inline bool loop_check_state(const TrainLoop *l, Error *error) {
    return l->ops->check_state == NULL || l->ops->check_state(l->t, l->run, error);
}

static inline bool loop_settle(const TrainLoop *l, Error *error) {
    return l->ops->settle_step == NULL || l->ops->settle_step(l->t, l->run, error);
}

// Saves a checkpoint if the run writes files and has not saved this step.
static inline bool loop_save(const TrainLoop *l, Error *error) {
    RunArrays arrays = loop_arrays(l);
    if (!run_writes_files(l->run) || l->run->saved_step == l->run->step) { return true; }
    if (!loop_check_state(l, error) || !run_save(l->run, &arrays, error)) { return false; }
    run_report_saved(l->run);
    run_resumable(l->run, true);
    return true;
}

static inline bool loop_anything_is_due(const TrainRun *run) {
    const TrainOptions *o = &run->options;
    return run_is_due(run, o->val_every) || run_evals_are_due(run) || run_is_due(run, o->sample_every) ||
           (run_writes_files(run) && run_is_due(run, o->checkpoint_every));
}

// Does everything that is due before the current step: save, validate, evaluate, sample. train_run.h relies on this
// order. The step before must be settled.
static inline bool loop_do_what_is_due(const TrainLoop *l, bool last, Error *error) {
    TrainRun *run = l->run;
    const TrainOptions *o = &run->options;
    if ((last || (run->step > 0 && run_is_due(run, o->checkpoint_every))) && !loop_save(l, error)) { return false; }
    if (run->has_val && run_is_due(run, o->val_every) && !loop_validate(l, error)) { return false; }
    if (run_evals_are_due(run) && !loop_evaluate_all(l, error)) { return false; }
    if (run->step > 0 && run_is_due(run, o->sample_every) && !loop_is_stopping(l)) { loop_sample(l); }
    return true;
}

static inline bool loop_train(const TrainLoop *l, Error *error) {
    TrainRun *run = l->run;
    for (;;) {
        bool last = run->step >= run->num_steps || loop_is_stopping(l), due = last || loop_anything_is_due(run);
        if (due && !(loop_settle(l, error) && loop_do_what_is_due(l, last, error))) { return false; }
        if (last || loop_is_stopping(l)) { break; }
        if (!l->ops->train_step(l->t, run, error)) { return false; }
    }
    if (!loop_settle(l, error)) { return false; }
    if (!loop_is_stopping(l)) { return true; }
    if (!loop_save(l, error)) { return false; }
    run_report_stopped(run);
    return true;
}

// Evaluates the model as it is and samples from it, for --steps 0.
static inline bool loop_evaluate_only(const TrainLoop *l, Error *error) {
    TrainRun *run = l->run;
    if (run->has_val && run->options.val_every > 0 && !loop_validate(l, error)) { return false; }
    if (!loop_evaluate_all(l, error)) { return false; }
    bool ok = run->options.sample_every == 0 || loop_sample(l) ||
              fail(error, "the model's logits are not numbers; its parameters are damaged");
    return run_agree(run, ok, error);
}

// ---- Start and end ----

// Writes run.json, with what the trainer knows about its machine.
static inline bool loop_record(const TrainLoop *l, Error *error) {
    RunMachine machine;
    memset(&machine, 0, sizeof(machine));
    machine.program = l->ops->facts.program, machine.revision = l->ops->facts.revision();
    machine.specs = l->ops->facts.on_gpu ? train_specs_gpu : train_specs_cpu;
    machine.num_machines = 1;
    run_machine_common(&machine);
    bool ok = l->ops->describe == NULL || l->ops->describe(l->t, l->run, &machine, error);
    ok = ok && run_json_begin(l->run, &machine, error);
    free(machine.gpus);
    return ok;
}

static inline bool loop_load(const TrainLoop *l, Error *error) {
    RunArrays arrays = loop_arrays(l);
    if (!run_load(l->run, &arrays, error)) { return false; }
    if (l->ops->share_state != NULL) { l->ops->share_state(l->t, l->run); }
    run_resumable(l->run, l->run->found.resumes);
    return loop_check_state(l, error);
}

static inline bool loop_start(const TrainLoop *l, Error *error) {
    run_slow(l->run, true); // libraries may load over a network, and hundreds of ranks connect
    bool ok = l->ops->open(l->t, l->run, error);
    run_slow(l->run, false);
    return ok && loop_load(l, error) && loop_record(l, error);
}

// Hashes the weights, and exports them if --export asks for it.
static inline bool loop_finish(const TrainLoop *l, Error *error) {
    const float *params = NULL;
    uint64_t hash = 0;
    TrainRun *run = l->run;
    if (!l->ops->finish(l->t, run, &params, &hash, error)) { return false; }
    bool trained = run_kind(run) == RUN_TRAINS;
    bool ok = !run_leads(run) || run_finish(run, params, hash, trained, loop_is_stopping(l), error);
    return run_agree(run, ok, error);
}

static inline void loop_print_config(const TrainLoop *l) {
    run_print_config(l->run);
    if (l->ops->print_config != NULL) { l->ops->print_config(l->t, l->run); }
    run_print_memory(l->ops->memory(l->t), l->ops->facts.on_gpu ? " on the GPU" : "");
    run_print_output(l->run);
    run_print_disk(l->run);
}

static inline void loop_print_plan(const TrainLoop *l) {
    run_print_tensors(l->run);
    if (l->ops->facts.on_gpu) { printf("On the GPU\n"); }
    plan_print(l->ops->memory(l->t), stdout);
    if (l->ops->print_plan != NULL) { l->ops->print_plan(l->t, l->run); }
}

static inline bool loop_run(const TrainLoop *l, Error *error) {
    const TrainerOps *ops = l->ops;
    TrainRun *run = l->run;
    run->ranks = run_one_rank();
    run->num_ranks = 1;
    if ((ops->join != NULL && !ops->join(l->t, run, error)) ||
        !run_open(run, ops->facts.default_seq_len, ops->facts.precision, error)) {
        return false;
    }
    ops->facts.stop->by_agreement = run->ranks.num_ranks > 1;
    catch_stop_signal(SIGUSR1, ops->facts.on_signal); // its sender wants the run to end in order, and has time
    if (!ops->plan(l->t, run, error)) { return false; }
    loop_print_config(l);
    if (run->options.plan) {
        loop_print_plan(l);
        return true;
    }
    if (!loop_start(l, error)) { return false; }
    ops->print_machine(l->t, run);
    printf("\n");
    fflush(stdout); // a file would otherwise show it only with the first step
    catch_stop_signals(ops->facts.on_signal);
    bool ok = run_kind(run) == RUN_TRAINS ? loop_train(l, error) : loop_evaluate_only(l, error);
    return ok && loop_finish(l, error);
}

// Tells the other ranks an error that only this rank knows. An error that all ranks know is printed once for each
// output. Then ends the process at once, because the machine's work may wait forever for other ranks.
static inline void loop_end_in_failure(const TrainLoop *l, const Error *error) {
    const RunRanks *ranks = &l->run->ranks;
    run_json_fail(l->run, error);
    ranks->fail(ranks->comm, error);
    ranks->close(ranks->comm);
    fflush(stdout);
    if (ranks->prints(ranks->comm)) { print_error(l->ops->facts.program, error); }
    _exit(EXIT_FAILURE);
}

// The main function of a trainer. *t and *run are zero. Where ranks start together, one of them speaks for all: of
// options that are wrong, and of a plan.
static inline int train_main(const TrainerOps *ops, Trainer *t, TrainRun *run, int argc, char **argv) {
    TrainLoop loop = {ops, t, run};
    bool shows = ops->join == NULL || launcher_shows();
    ArgsOutcome outcome;
    Error error;
    reserve_standard_files();
    ignore_write_signals();
    bool ok = train_options_parse(&run->options, argc, argv, ops->facts.on_gpu, &outcome, &error);
    exit_unless(ok || !shows, ops->facts.program, &error);
    if (!ok) { return EXIT_FAILURE; }
    if (outcome != ARGS_RUN || (run->options.plan && !shows)) { return EXIT_SUCCESS; }
    run->record.arguments = argv;
    run->record.num_arguments = argc;
    ok = loop_run(&loop, &error);
    if (!ok && run->ranks.num_ranks > 1) { loop_end_in_failure(&loop, &error); }
    if (!ok) { run_json_fail(run, &error); }
    run_close(run);
    ops->close(t);
    if (run->ranks.close != NULL) { run->ranks.close(run->ranks.comm); }
    exit_unless(ok, ops->facts.program, &error);
    exit_unless(stdout_is_written(&error), ops->facts.program, &error);
    return EXIT_SUCCESS;
}

#endif // LLMC_TRAIN_LOOP_H
