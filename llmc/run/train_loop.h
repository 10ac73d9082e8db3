// The program that both trainers share: start, training loop, validation, evaluations, samples, saving, end. train_main
// at the end of this file runs it. A trainer supplies its functions in one table, TrainerOps (trainer.h). This file
// knows neither GPUs nor how ranks talk to each other.
#ifndef LLMC_TRAIN_LOOP_H
#define LLMC_TRAIN_LOOP_H

#include "llmc/base/launcher.h"
#include "llmc/base/openmp.h"
#include "llmc/run/run_report.h"
#include "llmc/run/run_start.h"

// ---- Stopping ----

// Asks all ranks whether one of them must stop.
static inline bool loop_ask_to_stop(TrainRun *run, Error *error) {
    StopRequest *stop = run->ops->facts.stop;
    bool any = false;
    if (!stop->by_agreement) { return true; }
    if (!run->ranks.any(run->ranks.comm, stop->asked != 0, &any, error)) { return false; }
    stop->agreed = stop->agreed || any;
    return true;
}

// ---- Validation and evaluations ----

static inline Round loop_first_round(const TrainRun *run, int64_t batches) {
    Round round = {batches, ceil_div_i64(batches, run->num_ranks), -1, 0};
    return round;
}

// Goes on to the next round. Returns false after the last round, or if the run stops or fails.
static inline bool loop_next_round(TrainRun *run, Round *round, bool *ok, Error *error) {
    if (++round->number == round->rounds) { return false; }
    int64_t batch = round->number * run->num_ranks + run->ranks.rank;
    round->batch = batch < round->batches ? batch : 0;
    *ok = loop_ask_to_stop(run, error);
    return *ok && !run_is_stopping(run);
}

// Logs the mean loss over the validation sequences, which never change. Returns early if the run stops.
static inline bool loop_validate(TrainRun *run, Error *error) {
    Round round = loop_first_round(run, ceil_div_i64(run_val_sequences(run), run->options.batch_size));
    bool ok = true;
    while (loop_next_round(run, &round, &ok, error)) {
        if (!run->ops->validate_batch(run->trainer, run, round, error)) { return false; }
    }
    if (!ok || run_is_stopping(run)) { return ok; }
    double loss = run->ops->validation_loss(run->trainer, run, round);
    return logger_val(&run->logger, run->step, loss, error);
}

// Logs the score of an evaluation. Returns early if the run stops. In a round, ranks may have rows of different
// lengths.
static inline bool loop_evaluate(TrainRun *run, int which, Error *error) {
    Round round = loop_first_round(run, eval_num_batches(&run->evals[which]));
    double start = seconds_now();
    bool ok = true;
    while (loop_next_round(run, &round, &ok, error)) {
        run->ops->evaluate_batch(run->trainer, run, which, round);
        int64_t done = round.number + 1 - run->ops->facts.rounds_ahead;
        if (done > 0) { run_show_eval(run, which, min_i64(done * run->num_ranks, round.batches), start); }
    }
    if (!ok || run_is_stopping(run)) { return ok; }
    int64_t correct = eval_judge(&run->evals[which], run->ops->evaluation_means(run->trainer, run, which, round));
    return logger_eval(&run->logger, run->step, run_evals[which].name, run_evals[which].log_key, correct,
                       run->evals[which].num_examples, error);
}

static inline bool loop_evaluate_all(TrainRun *run, Error *error) {
    for (int which = 0; which < NUM_EVALS && !run_is_stopping(run); which++) {
        if (eval_is_open(&run->evals[which]) && !loop_evaluate(run, which, error)) { return false; }
    }
    return true;
}

// ---- Samples ----

// Takes the prompt into the sample, and shows it if the user gave it.
static inline void loop_begin_sample(TrainRun *run, TextOut *out) {
    logger_clear(&run->logger);
    if (run->num_steps > 0) {
        logger_event(&run->logger, "sample after %lld steps:", (long long)run->step);
    } else {
        logger_event(&run->logger, "sample:");
    }
    text_out_begin(out, stdout);
    for (int64_t i = 0; i < run->texts.prompt_count; i++) {
        run->ops->append_token(run->trainer, run->texts.prompt[i]);
        if (run->options.prompt[0] != '\0') { run_print_token(run, out, run->texts.prompt[i]); }
    }
}

// True if the sample must end here. All ranks compute a sample together, because sharded parameters need every rank.
static inline bool loop_sample_stops(TrainRun *run) {
    Error ignored; // another place ends the run if a rank is gone
    return !loop_ask_to_stop(run, &ignored) || run_is_stopping(run);
}

// Writes a sample to the screen, token by token, until the run stops. It never fails a training run. Logits that are
// not numbers end the sample with a message and the result false. The next step's loss will show where they come from.
static inline bool loop_sample(TrainRun *run) {
    const TrainOptions *o = &run->options;
    SamplerOptions options = {(float)o->temperature, (int)o->top_k, (float)o->top_p};
    float *probs = run->ops->begin_sample(run->trainer);
    TextOut out;
    int token = 0;
    loop_begin_sample(run, &out);
    for (int64_t i = 0; i < o->sample_tokens && !loop_sample_stops(run); i++) {
        double uniform = rand_uniform((uint64_t)o->seed, RAND_SAMPLER, ((uint64_t)run->step << 32) + (uint64_t)i);
        const float *logits = run->ops->next_logits(run->trainer);
        token = sample_token(logits, run->config.vocab_size, &options, uniform, probs);
        if (token < 0) { break; }
        run->ops->append_token(run->trainer, token);
        run_print_token(run, &out, token);
    }
    text_out_end(&out);
    logger_event(&run->logger, "%s", token < 0 ? " [the logits are not numbers]" : "");
    return token >= 0;
}

// ---- The training loop ----

static inline bool loop_settle(TrainRun *run, Error *error) {
    return run->ops->settle_step == NULL || run->ops->settle_step(run->trainer, run, error);
}

// Does everything that is due before the current step: save, validate, draw the losses, evaluate, sample. train_run.h
// relies on this order. The step before is settled first. last: the run ends here.
static inline bool loop_do_what_is_due(TrainRun *run, bool last, Error *error) {
    const TrainOptions *o = &run->options;
    bool saves = last || (run->step > 0 && run_is_due(run, o->checkpoint_every));
    bool validates = run_has_val(run) && run_is_due(run, o->val_every), evaluates = run_evals_are_due(run);
    bool samples = run->step > 0 && run_is_due(run, o->sample_every);
    if (!saves && !validates && !evaluates && !samples) { return true; }
    if (!loop_settle(run, error)) { return false; }
    run->busy.after_a_pause = run->step;
    if (saves && !run_save(run, error)) { return false; }
    if (validates && !loop_validate(run, error)) { return false; }
    if ((saves || validates) && !run_draw(run, error)) { return false; }
    if (evaluates && !loop_evaluate_all(run, error)) { return false; }
    if (samples && !run_is_stopping(run)) { loop_sample(run); }
    return true;
}

static inline bool loop_train(TrainRun *run, Error *error) {
    run->busy.after_a_pause = run->step;
    for (;;) {
        bool last = run->step >= run->num_steps || run_is_stopping(run);
        if (!loop_do_what_is_due(run, last, error)) { return false; }
        if (last || run_is_stopping(run)) { break; }
        if (!run->ops->train_step(run->trainer, run, error)) { return false; }
    }
    if (!loop_settle(run, error)) { return false; }
    if (!run_is_stopping(run)) { return true; }
    if (!run_save(run, error) || !run_draw(run, error)) { return false; }
    logger_event(&run->logger, "stopped by a signal after %lld of %lld steps; %s", (long long)run->step,
                 (long long)run->num_steps,
                 run_writes_files(run) ? "--resume goes on from here" : "without --out-dir nothing was saved");
    return true;
}

// Tells whether a run of 0 steps writes a sample. A run that exports does not, unless an option for samples is given.
static inline bool loop_samples_only(const TrainOptions *o) {
    static const int rows[] = {TRAIN_ROW_prompt,      TRAIN_ROW_sample_every, TRAIN_ROW_sample_tokens,
                               TRAIN_ROW_temperature, TRAIN_ROW_top_k,        TRAIN_ROW_top_p};
    bool asked = o->export_dir[0] == '\0';
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) { asked = asked || o->given[rows[i]]; }
    return asked && o->sample_every > 0;
}

// Evaluates the model as it is and samples from it, for --steps 0.
static inline bool loop_evaluate_only(TrainRun *run, Error *error) {
    if (run_has_val(run) && run->options.val_every > 0 && !loop_validate(run, error)) { return false; }
    if (!loop_evaluate_all(run, error)) { return false; }
    bool ok = !loop_samples_only(&run->options) || loop_sample(run) ||
              fail(error, "the model's logits are not numbers; its parameters are damaged");
    return run_agree(run, ok, error);
}

// ---- Start and end ----

// Opens the machine, loads the model, and begins log and run.json.
static inline bool loop_start(TrainRun *run, Error *error) {
    run_slow(run, true); // libraries may load over a network, and hundreds of ranks connect
    bool ok = run->ops->open(run->trainer, run, error);
    run_slow(run, false);
    return ok && run_load(run, error) && run_json_begin(run, error);
}

// Hashes the weights, and exports them if --export asks for it.
static inline bool loop_finish(TrainRun *run, Error *error) {
    const float *params = NULL;
    uint64_t hash = 0;
    if (!run->ops->finish(run->trainer, run, &params, &hash, error)) { return false; }
    return run_agree(run, !run_leads(run) || run_finish(run, params, hash, error), error);
}

// Does everything between the command line and the end of the process.
static inline bool loop_run(TrainRun *run, Error *error) {
    const TrainerOps *ops = run->ops;
    run->ranks.num_ranks = run->num_ranks = 1;
    if ((ops->join != NULL && !ops->join(run->trainer, run, error)) || !run_open(run, error)) { return false; }
    ops->facts.stop->by_agreement = run->ranks.num_ranks > 1;
    catch_stop_signal(SIGUSR1, ops->facts.on_signal); // its sender wants the run to end in order, and has time
    const MemoryPlan *plan = ops->plan(run->trainer, run, error);
    if (plan == NULL) { return false; }
    run_print_config(run, plan);
    if (train_options_plan(&run->options)) {
        run_print_plan(run, plan);
        return true;
    }
    if (!loop_start(run, error)) { return false; }
    ops->print_machine(run->trainer, run);
    say(stdout, "\n");
    fflush(stdout); // a file would otherwise show it only with the first step
    ops->facts.stop->answers = run_leads(run) && isatty(STDERR_FILENO);
    catch_stop_signals(ops->facts.on_signal);
    bool ok = run_kind(run) == RUN_TRAINS ? loop_train(run, error) : loop_evaluate_only(run, error);
    return ok && loop_finish(run, error);
}

// Tells the other ranks an error that only this rank knows. An error that all ranks know is printed once for each
// output. Then ends the process at once, because the machine's work may wait forever for other ranks.
static inline void loop_end_in_failure(TrainRun *run, const Error *error) {
    const RunRanks *ranks = &run->ranks;
    ranks->fail(ranks->comm, error);
    ranks->close(ranks->comm);
    fflush(stdout);
    if (ranks->prints(ranks->comm)) { print_error(run->ops->facts.program, error); }
    _exit(EXIT_FAILURE);
}

// Refuses to be one of several processes if this trainer knows no ranks: each would train the same run.
static inline bool train_check_launcher(const TrainerOps *ops, Error *error) {
    Launcher launcher = launcher_find();
    if (ops->join != NULL || launcher.size <= 1) { return true; }
    return fail(error,
                "%s has started %d processes, and this trainer runs as one; start it without %s, or start "
                "train_gpt2cu or train_gpt2emu on several GPUs",
                launcher.name, launcher.size, launcher.name);
}

// The main function of a trainer. *t and *run are zero. Where ranks start together, one of them speaks for all: of
// options that are wrong, and of a plan.
static inline int train_main(const TrainerOps *ops, Trainer *t, TrainRun *run, int argc, char **argv) {
    bool shows = launcher_shows();
    ArgsOutcome outcome;
    Error error;
    openmp_wait_briefly(argv);
    reserve_standard_files();
    ignore_write_signals();
    bool ok = train_options_parse(&run->options, ops->facts.program, argc, argv, ops->facts.on_gpu, &outcome, &error);
    if (ok && outcome == ARGS_RUN) { ok = train_check_launcher(ops, &error); }
    exit_unless(ok || !shows, ops->facts.program, &error);
    if (!ok) { return EXIT_FAILURE; }
    if (outcome != ARGS_RUN || (train_options_plan(&run->options) && !shows)) { return EXIT_SUCCESS; }
    run->ops = ops;
    run->trainer = t;
    run->record.arguments = argv;
    run->record.num_arguments = argc;
    ok = loop_run(run, &error);
    if (!ok) { run_json_fail(run, &error); }
    if (!ok && run->ranks.num_ranks > 1) { loop_end_in_failure(run, &error); }
    run_close(run);
    ops->close(t);
    if (run->ranks.close != NULL) { run->ranks.close(run->ranks.comm); }
    exit_unless(ok, ops->facts.program, &error);
    exit_unless(stdout_is_written(&error), ops->facts.program, &error);
    return EXIT_SUCCESS;
}

#endif // LLMC_TRAIN_LOOP_H
