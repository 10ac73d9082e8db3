// What both trainers share around their training loop: start, what is due at a step (saving, validation, evaluations,
// samples), end. The loop itself is in each trainer's main file. This file knows neither GPUs nor how ranks talk to
// each other.
#ifndef LLMC_TRAIN_LOOP_H
#define LLMC_TRAIN_LOOP_H

#include <sys/resource.h>

#include "llmc/base/launcher.h"
#include "llmc/base/openmp.h"
#include "llmc/run/run_inputs.h"
#include "llmc/run/run_record.h"
#include "llmc/run/run_report.h"
#include "llmc/run/run_start.h"

// ---- Stopping ----

// Asks all ranks whether one of them must stop.
static inline bool loop_ask_to_stop(TrainRun *run, Error *error) {
    StopRequest *stop = trainer_facts.stop;
    bool any = false;
    if (!stop->by_agreement) { return true; }
    if (!ranks_any(run->comm, stop->asked != 0, &any, error)) { return false; }
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
    int64_t batch = round->number * run->num_ranks + run->rank;
    round->batch = batch < round->batches ? batch : 0;
    *ok = loop_ask_to_stop(run, error);
    return *ok && !run_is_stopping();
}

// Logs the mean loss over the validation sequences, which never change. Returns early if the run stops.
static inline bool loop_validate(TrainRun *run, Error *error) {
    Round round = loop_first_round(run, ceil_div_i64(run_val_sequences(run), run->options->batch_size));
    bool ok = true;
    while (loop_next_round(run, &round, &ok, error)) {
        if (!trainer_validate_batch(run->trainer, run, round, error)) { return false; }
    }
    if (!ok || run_is_stopping()) { return ok; }
    double loss = trainer_validation_loss(run->trainer, run, round);
    return logger_val(&run->logger, run->step, loss, error);
}

// Logs the score of an evaluation. Returns early if the run stops.
static inline bool loop_evaluate(TrainRun *run, int which, Error *error) {
    Round round = loop_first_round(run, eval_num_batches(&run->evals[which]));
    bool ok = true;
    while (loop_next_round(run, &round, &ok, error)) {
        trainer_evaluate_batch(run->trainer, run, which, round);
        int64_t done = round.number + 1 - trainer_facts.rounds_ahead;
        if (done > 0) { run_show_eval(run, which, min_i64(done * run->num_ranks, round.batches)); }
    }
    if (!ok || run_is_stopping()) { return ok; }
    int64_t correct = eval_judge(&run->evals[which], trainer_evaluation_means(run->trainer, run, which, round));
    return logger_eval(&run->logger, run->step, run_evals[which].name, run_evals[which].log_key, correct,
                       run->evals[which].num_examples, error);
}

static inline bool loop_evaluate_all(TrainRun *run, Error *error) {
    for (int which = 0; which < NUM_EVALS && !run_is_stopping(); which++) {
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
    for (int64_t i = 0; i < run->texts.prompt_count; i++) {
        trainer_append_token(run->trainer, run->texts.prompt[i]);
        if (run->options->prompt[0] != '\0') { run_print_token(run, out, run->texts.prompt[i]); }
    }
}

// Writes a sample to the screen, token by token, until the run stops. It never fails a training run. Logits that are
// not numbers end the sample with a message and the result false. The next step's loss will show where they come from.
// All ranks compute a sample together, because sharded parameters need every rank.
static inline bool loop_sample(TrainRun *run) {
    const TrainOptions *o = run->options;
    float temperature = (float)o->temperature, top_p = (float)o->top_p;
    float *probs = trainer_begin_sample(run->trainer);
    Error ignored; // another place ends the run if a rank is gone
    TextOut out = {stdout, {0}, 0};
    int token = 0;
    loop_begin_sample(run, &out);
    for (int64_t i = 0; i < o->sample_tokens && loop_ask_to_stop(run, &ignored) && !run_is_stopping(); i++) {
        double uniform = rand_uniform((uint64_t)o->seed, RAND_SAMPLER, ((uint64_t)run->step << 32) + (uint64_t)i);
        const float *logits = trainer_next_logits(run->trainer);
        token = sample_token(logits, run->config.vocab_size, temperature, top_p, uniform, probs);
        if (token < 0) { break; }
        trainer_append_token(run->trainer, token);
        run_print_token(run, &out, token);
    }
    text_out_end(&out);
    logger_event(&run->logger, "%s", token < 0 ? " [the logits are not numbers]" : "");
    return token >= 0;
}

// ---- The training loop ----

// What is due before the current step.
typedef struct {
    bool saves, validates, evaluates, samples;
    bool any;  // one of them
    bool last; // the run ends here
} Due;

static inline Due run_what_is_due(const TrainRun *run) {
    const TrainOptions *o = run->options;
    Due due;
    due.last = run->step >= run->num_steps || run_is_stopping();
    due.saves = due.last || (run->step > 0 && run_is_due(run, o->checkpoint_every));
    due.validates = run_has_val(run) && run_is_due(run, o->val_every);
    due.evaluates = run_has_evals(run) && run_is_due(run, o->val_every);
    due.samples = run->step > 0 && run_is_due(run, o->sample_every);
    due.any = due.saves || due.validates || due.evaluates || due.samples;
    return due;
}

// Does what is due: save, validate, evaluate, sample. train_run.h relies on this order. The trainer has settled the
// step before.
static inline bool run_do_what_is_due(TrainRun *run, Due due, Error *error) {
    if (due.saves && !run_save(run, error)) { return false; }
    if (due.validates && !loop_validate(run, error)) { return false; }
    if (due.evaluates && !loop_evaluate_all(run, error)) { return false; }
    if (due.samples && !run_is_stopping()) { loop_sample(run); }
    return true;
}

// Ends the training of a run that a signal has stopped: saves, and says so.
static inline bool run_end_training(TrainRun *run, Error *error) {
    if (!run_is_stopping()) { return true; }
    if (!run_save(run, error)) { return false; }
    logger_event(&run->logger, "stopped by a signal after %lld of %lld steps; %s", (long long)run->step,
                 (long long)run->num_steps,
                 run_writes_files(run) ? "--resume goes on from here" : "without --out-dir nothing was saved");
    return true;
}

// Evaluates the model as it is and samples from it, for --steps 0.
static inline bool run_evaluate_only(TrainRun *run, Error *error) {
    if (run_has_val(run) && run->options->val_every > 0 && !loop_validate(run, error)) { return false; }
    if (!loop_evaluate_all(run, error)) { return false; }
    bool ok = run->options->sample_every == 0 || loop_sample(run) ||
              fail(error, "the model's logits are not numbers; its parameters are damaged");
    return ranks_agree(run->comm, ok, error);
}

// ---- Start and end ----

// A run takes up to 640 KiB of the stack. With less it would end in SIGSEGV, and only at its first save.
static inline bool run_check_stack(Error *error) {
    struct rlimit stack;
    return getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= 2 << 20 ||
           fail(error, "ulimit -s: the stack has %lld KiB, expected at least 2048; run `ulimit -s 8192` first",
                (long long)stack.rlim_cur >> 10);
}

// Reads the command line into *options. *run is zero but for its trainer. Returns false if the process ends here, with
// *status: after --help, or with an error, which is printed. Where ranks start together, one of them speaks for all: of
// options that are wrong, and of a plan.
static inline bool run_parse(TrainRun *run, TrainOptions *options, int argc, char **argv, int *status) {
    bool shows = launcher_shows();
    ArgsOutcome outcome;
    Error error;
    openmp_wait_briefly(argv);
    reserve_standard_files();
    ignore_write_signals();
    bool ok = run_check_stack(&error) &&
              train_options_parse(options, trainer_facts.program, argc, argv, trainer_facts.on_gpu, &outcome, &error);
    exit_unless(ok || !shows, trainer_facts.program, &error);
    run->options = options;
    run->record.arguments = argv;
    run->record.num_arguments = argc;
    run->record.file.fd = run->folder.lock.fd = -1;
    run->connected = run->num_ranks = 1;
    *status = ok ? EXIT_SUCCESS : EXIT_FAILURE;
    return ok && outcome == ARGS_RUN && (!train_options_plan(run->options) || shows);
}

// From here on, a signal stops the run in order.
static inline void run_catch_signals(const TrainRun *run) {
    say(stdout, "\n");
    fflush(stdout); // a file would otherwise show it only with the first step
    trainer_facts.stop->answers = run_leads(run) && isatty(STDERR_FILENO);
    catch_stop_signals(trainer_facts.on_signal);
}

// Prints what the run leaves behind. weights_hash: the SUM64 of its parameters in fp32.
static inline bool run_finish(TrainRun *run, uint64_t weights_hash, Error *error) {
    const TrainOptions *o = run->options;
    bool stopped = run_is_stopping();
    logger_close(&run->logger);
    if (run_kind(run) != RUN_TRAINS) { return true; }
    if (run_writes_files(run)) {
        say(stdout, "output      %s: checkpoints, main.log, speed.log, run.jsonl\n", o->out_dir);
    }
    say(stdout, "weights hash %016llx\n", (unsigned long long)weights_hash);
    return run_record_end(run, stopped ? "stopped" : "done", stopped ? "by a signal" : "", &weights_hash, error);
}

// Ends a run that has failed. Tells the other ranks an error that only this rank knows. An error that all ranks know is
// printed once for each output. With several ranks this does not return, because the machine's work may wait forever
// for other ranks.
static inline void run_fail(TrainRun *run, const Error *error) {
    Error ignored;
    run_record_end(run, "failed", error->text, NULL, &ignored);
    if (run->connected == 1) { return; }
    ranks_fail(run->comm, error);
    ranks_close(run->comm);
    fflush(stdout);
    if (ranks_print(run->comm)) { print_error(trainer_facts.program, error); }
    _exit(EXIT_FAILURE);
}

// Returns the status of the process, after everything is closed. Prints the error of a run that has failed.
static inline int run_exit(const TrainRun *run, bool ok, Error *error) {
    if (!ok && !ranks_print(run->comm)) { return EXIT_FAILURE; }
    exit_unless(ok, trainer_facts.program, error);
    exit_unless(stdout_is_written(error), trainer_facts.program, error);
    return EXIT_SUCCESS;
}

#endif // LLMC_TRAIN_LOOP_H
