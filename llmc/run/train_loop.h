// What all trainers share around their training loop: start, what is due at a step (saving, validation, evaluations,
// samples), end. The loop itself is in each trainer's main file. This file knows neither GPUs nor how ranks talk to
// each other.
#ifndef LLMC_TRAIN_LOOP_H
#define LLMC_TRAIN_LOOP_H

#include <sys/resource.h>

#include "llmc/base/launcher.h"
#include "llmc/base/openmp.h"
#include "llmc/run/run_evaluate.h"
#include "llmc/run/run_inputs.h"
#include "llmc/run/run_record.h"
#include "llmc/run/run_report.h"
#include "llmc/run/run_start.h"

// ---- Samples ----

// Takes the prompt into the sample, and shows it if the user gave it. Samples after the first follow a line "---".
static inline void loop_begin_sample(TrainRun *run, TextOut *out, int64_t number) {
    logger_clear(&run->logger);
    if (run->num_steps > 0 && number == 0) {
        logger_event(&run->logger, "sample after %lld steps:", (long long)run->step);
    }
    if (number > 0) { say(out->out, "---\n"); }
    for (int64_t i = 0; i < run->texts.prompt_count; i++) {
        const int token = (int)run->texts.prompt[i];
        trainer_append_token(run->trainer, token);
        bool shows = run->texts.prompt_is_given && !tokenizer_is_special(&run->tokenizer.tokenizer, token);
        if (shows) { run_print_token(run, out, token); }
    }
}

// Writes a sample, token by token, until the run stops. It never fails a training run. Logits that are not numbers end
// the sample with a message and the result false. The next step's loss will show where they come from. All ranks
// compute a sample together, because sharded parameters need every rank.
static inline bool loop_sample(TrainRun *run, int64_t number) {
    const TrainOptions *o = run->options;
    float temperature = (float)o->temperature, top_p = (float)o->top_p;
    float *probs = trainer_begin_sample(run->trainer);
    uint64_t first = (uint64_t)(run->step + number) << 32;
    Error ignored; // another place ends the run if a rank is gone
    TextOut out = {run->texts.out, {0}, 0};
    int token = 0;
    loop_begin_sample(run, &out, number);
    for (int64_t i = 0; i < o->sample_tokens && run_ask_to_stop(run, &ignored) && !run_is_stopping(); i++) {
        double uniform = rand_uniform((uint64_t)o->seed, RAND_SAMPLER, first + (uint64_t)i);
        const float *logits = trainer_next_logits(run->trainer);
        token = sample_token(logits, run->config.vocab_size, temperature, top_p, uniform, probs);
        if (token < 0) { break; }
        trainer_append_token(run->trainer, token);
        run_print_token(run, &out, token);
    }
    text_out_end(&out);
    say_lines(out.out, token < 0 ? " [the logits are not numbers]\n" : "\n");
    fflush(out.out);
    return token >= 0;
}

// Writes --num-samples samples, each with random numbers of its own.
static inline bool loop_sample_all(TrainRun *run) {
    bool ok = true;
    for (int64_t i = 0; ok && i < run->options->num_samples && !run_is_stopping(); i++) { ok = loop_sample(run, i); }
    return ok;
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
    if (due.validates && !run_validate(run, error)) { return false; }
    if (due.evaluates && !run_ask_all(run, error)) { return false; }
    if (due.samples && !run_is_stopping()) { loop_sample_all(run); }
    return true;
}

// Tells whether the training ends here: after the last step, by a signal, or by --patience.
static inline bool run_ends(const TrainRun *run, Due due) {
    int64_t patience = run->options->patience;
    return due.last || run_is_stopping() || (patience > 0 && run->kept.lowest.since >= patience);
}

// Ends the training of a run before its last step: saves, and says why.
static inline bool run_end_training(TrainRun *run, Error *error) {
    bool by_signal = run_is_stopping();
    if (!by_signal && run->step >= run->num_steps) { return true; }
    if (!run_save(run, error)) { return false; }
    const char *how = by_signal ? "--resume goes on from here" : "--resume --patience 0 goes on from here";
    logger_event(&run->logger, "stopped by %s after %lld of %lld steps; %s", by_signal ? "a signal" : "--patience",
                 (long long)run->step, (long long)run->num_steps,
                 run_writes_files(run) ? how : "without --out-dir nothing was saved");
    return true;
}

// Evaluates the model as it is and samples from it, for --steps 0.
static inline bool run_evaluate_only(TrainRun *run, Error *error) {
    if (run_has_val(run) && run->options->val_every > 0 && !run_validate(run, error)) { return false; }
    if (!run_ask_all(run, error)) { return false; }
    bool ok = !run_leads(run) || run_is_stopping() || run_record_evaluation(run, error);
    if (!ranks_agree(run->comm, ok, error)) { return false; }
    bool samples = run->options->sample_every > 0 && strcmp(run->options->json, "-") != 0;
    ok = !samples || loop_sample_all(run) ||
         fail(error, "the model's logits are not numbers; its parameters are damaged");
    if (!ranks_agree(run->comm, ok, error) || !run_is_stopping()) { return ok; }
    fail(error, "stopped by a signal, before the end of the evaluation");
    return run_fail_together(run, error);
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
    ArgsOutcome outcome = ARGS_RUN;
    Error error;
    openmp_wait_briefly(argv);
    reserve_standard_files();
    signal(SIGXFSZ, SIG_IGN); // a file size limit is reported where a write fails, like a full disk
    bool ok = run_check_stack(&error) &&
              train_options_parse(options, trainer_facts.program, argc, argv, trainer_facts.on_gpu, &outcome, &error);
    exit_unless(ok || !shows, trainer_facts.program, &error);
    run->options = options;
    run->record.arguments = argv;
    run->record.num_arguments = argc;
    run->record.file.fd = run->folder.lock.fd = -1;
    run->connected = run->num_ranks = run->data.ranks = 1;
    *status = ok ? EXIT_SUCCESS : EXIT_FAILURE;
    return ok && outcome == ARGS_RUN && (!train_options_plan(run->options) || shows);
}

// From here on, a signal stops the run in order.
static inline void run_catch_signals(const TrainRun *run) {
    trainer_facts.stop->answers = run_leads(run) && isatty(STDERR_FILENO);
    catch_stop_signals(trainer_facts.on_signal);
    say(stdout, "\n");
    fflush(stdout); // a file would otherwise show it only with the first step
}

// Prints what the run leaves behind. weights_hash: the SUM64 of its parameters in fp32.
static inline bool run_finish(TrainRun *run, uint64_t weights_hash, Error *error) {
    const TrainOptions *o = run->options;
    bool stopped = run_is_stopping();
    logger_close(&run->logger);
    if (run_kind(run) != RUN_TRAINS) { return true; }
    const Lowest *lowest = &run->kept.lowest;
    if (lowest->source != 0) {
        say(stdout, "lowest validation loss %.4f after step %lld%s\n", lowest->loss, (long long)lowest->step,
            run_writes_files(run) ? " (" CHECKPOINT_BEST_NAME ")" : "");
    }
    if (run_writes_files(run)) {
        say(stdout, "output      %s: checkpoints, main.log, speed.log, run.jsonl\n", o->out_dir);
    } else {
        say(stdout, "output      none: without --out-dir no model is saved\n");
    }
    say(stdout, "weights hash %016llx\n", (unsigned long long)weights_hash);
    const char *message = stopped ? "by a signal" : run->step < run->num_steps ? "by --patience" : "";
    return run_record_end(run, message[0] != '\0' ? "stopped" : "done", message, &weights_hash, error);
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
    end_as_reader_went(trainer_facts.stop);
    if (!ok && !ranks_print(run->comm)) { return EXIT_FAILURE; }
    exit_unless(ok, trainer_facts.program, error);
    ok = output_is_written(stdout, error) && output_is_written(run->texts.out, error);
    exit_unless(ok, trainer_facts.program, error);
    return EXIT_SUCCESS;
}

#endif // LLMC_TRAIN_LOOP_H
