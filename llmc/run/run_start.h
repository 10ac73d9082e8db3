// Begins and ends a run: opens what the options name, claims the folder, loads the parameters, begins the log.
#ifndef LLMC_RUN_START_H
#define LLMC_RUN_START_H

#include "llmc/base/launcher.h"
#include "llmc/base/openmp.h"
#include "llmc/files/model_file.h"
#include "llmc/run/run_inputs.h"
#include "llmc/run/run_state.h"

// ---- The run folder ----

// Checks that the run may have its folder. A fresh run does not begin in the folder of an older run unless an option
// allows it.
static inline bool run_check_use(const TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    int64_t step;
    char log[MAX_PATH_BYTES];
    if (!path_join(log, o->out_dir, MAIN_LOG_NAME, error)) { return false; }
    bool is_used = run->found.num_checkpoints > 0 || path_exists(log);
    if (o->resume && run->found.num_checkpoints == 0 && checkpoint_list(o->out_dir, "model", &step, 1) > 0) {
        return fail(error,
                    "%.4000s: has models, but no state file (state_*.bin), so no run can resume here; --init %.4000s "
                    "with another --out-dir trains the newest model, --overwrite starts afresh in its place",
                    o->out_dir, o->out_dir);
    }
    if (o->resume || o->overwrite || !is_used) { return true; }
    return fail(error,
                "%s: holds an earlier run; give --resume to go on with it, --overwrite to start afresh in its "
                "place, or another --out-dir",
                o->out_dir);
}

// Says that --resume finds nothing, or that the run is at its end.
static inline void run_say_how_it_resumes(TrainRun *run) {
    const char *dir = run->options.out_dir;
    if (run->found.resumes && run->step >= run->num_steps) {
        logger_event(&run->logger,
                     "the run in %s is finished (step %lld of %lld): --steps N --allow-changes goes on to N", dir,
                     (long long)run->step, (long long)run->num_steps);
    }
    if (run->options.resume && !run->found.resumes) {
        logger_event(&run->logger, "nothing to resume in %s: starts afresh", dir);
    }
}

// Refuses a file as the place of a run.
static inline bool run_check_place(const char *dir, Error *error) {
    if (!path_check(dir, "--out-dir (-o)", error)) { return false; }
    return !path_exists(dir) || path_is_directory(dir) ||
           fail(error, "--out-dir (-o): %.4000s is a file; give the name of a folder for the run's files", dir);
}

// Finds the checkpoints in the run folder. Only reads.
static inline bool run_look_at_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (!run_check_place(o->out_dir, error)) { return false; }
    run_list_checkpoints(run);
    run->found.resumes = o->resume && run->found.num_checkpoints > 0;
    return train_options_plan(o) || run_check_use(run, error);
}

// Creates and locks the run folder. Checks that no other process has saved in it since this one looked.
static inline bool run_claim_folder(TrainRun *run, Error *error) {
    const char *dir = run->options.out_dir;
    const int64_t newest = run->found.checkpoints[0], count = run->found.num_checkpoints;
    if (!run_writes_files(run)) { return true; }
    if (!run->found.resumes && !run_check_disk(run, run->options.overwrite ? (int)count : 0, error)) { return false; }
    if (!make_directories(dir, error) || !directory_lock(&run->folder.lock, dir, error)) { return false; }
    run->folder.locked = true;
    if (!checkpoint_clean(dir, error)) { return false; }
    run_list_checkpoints(run);
    return (run->found.num_checkpoints == count && (count == 0 || run->found.checkpoints[0] == newest)) ||
           fail(error, "--out-dir (-o): another process has saved in %.4000s just now; start again", dir);
}

// Checks what rank 0 has sent.
static inline bool run_check_found(const RunFound *found, Error *error) {
    int32_t n = found->num_checkpoints;
    bool ok = n >= 0 && n <= RUN_MAX_CHECKPOINTS && found->first_usable >= 0 &&
              (found->first_usable < n || found->first_usable == 0) && found->resumes >= 0 && found->resumes <= (n > 0);
    for (int i = 0; ok && i < n; i++) { ok = found->checkpoints[i] >= 0 && found->checkpoints[i] <= LARGEST_WHOLE; }
    return ok || fail(error, "rank 0 has not sent what the run folder holds, but something else");
}

// Only rank 0 looks at the folder, and all ranks use its findings: only one rank may clean up a folder, and a network
// file system may show the rest something else.
static inline bool run_open_folder(TrainRun *run, Error *error) {
    if (!run_writes_files(run)) { return true; }
    return run_lead(run, run_look_at_folder, error) &&
           ranks_broadcast(run->comm, &run->found, (int64_t)sizeof(run->found), error) &&
           run_check_found(&run->found, error);
}

// Checks that the folder is rank 0's on all ranks. The file that locks it holds rank 0's process id.
static inline bool run_check_shared_folder(TrainRun *run, Error *error) {
    const char *dir = run->options.out_dir;
    char path[MAX_PATH_BYTES], expected[32];
    int64_t pid = (int64_t)getpid(), bytes;
    uint8_t *text = NULL;
    if (!run_writes_files(run) || run->connected == 1) { return true; }
    if (!ranks_broadcast(run->comm, &pid, (int64_t)sizeof(pid), error)) { return false; }
    snprintf(expected, sizeof(expected), "%lld\n", (long long)pid);
    bool same = path_join(path, dir, LOCK_NAME, error) && read_whole_file(path, MAX_PATH_BYTES, &text, &bytes, error) &&
                strcmp((const char *)text, expected) == 0;
    free(text);
    return ranks_agree(run->comm,
                       same ||
                           fail(error,
                                "--out-dir (-o): %.4000s is not the folder that rank 0 sees under this name; choose "
                                "one on a file system that all machines share",
                                dir),
                       error);
}

// ---- The model ----

// Takes the config of the newest checkpoint whose header can be read. Those of another version are not damaged: if no
// older one can be read, the start ends with the version and what to do.
static inline bool run_config_from_checkpoint(TrainRun *run, Error *error) {
    Error other = {""};
    for (int i = 0; i < run->found.num_checkpoints; i++) {
        StateHeader header;
        int64_t step = run->found.checkpoints[i];
        run->found.first_usable = i;
        if (checkpoint_load_header(run->options.out_dir, step, &run->config, &header, error)) { return true; }
        if (!header.of_other_version) { logger_event(&run->logger, "damaged checkpoint: %s", error->text); }
        if (header.of_other_version && other.text[0] == '\0') { other = *error; }
    }
    return other.text[0] != '\0' ? fail(error, "%s", other.text) : run_fail_all_damaged(run, error);
}

// Gives a new model the sizes that options name. An existing model has its own sizes and refuses the options.
static inline bool run_take_sizes(TrainRun *run, Error *error) {
    int given = train_options_take_sizes(&run->options, &run->config);
    return given < 0 || run->model_file == NULL ||
           fail(error, "--%s: is for new models; --init %.4000s names a model that exists", train_options_name(given),
                run->options.init);
}

// Finds the model and its config. A size leaves the vocabulary at 0. Rank 0 finds out what --init is, which may mean
// reading a whole checkpoint. All ranks use its answer. run_check_same finds out whether they have equal files.
static inline bool run_open_model(TrainRun *run, Error *error) {
    if (run->found.resumes) { return run_config_from_checkpoint(run, error); }
    ModelFile *file = run->model_file = (ModelFile *)malloc(sizeof(ModelFile));
    bool ok = file != NULL || fail(error, "out of memory");
    ok = ok && (!run_leads(run) || model_file_open(file, run->options.init, error));
    ok = ranks_agree(run->comm, ok, error) && ranks_broadcast(run->comm, file, (int64_t)sizeof(*file), error) &&
         model_file_check(file, error);
    if (!ok) { return false; }
    if (file->note.text[0] != '\0') { logger_event(&run->logger, "damaged checkpoint: %s", file->note.text); }
    run->config = file->config;
    if (file->path[0] == '\0') { // a size
        free(file);
        run->model_file = NULL;
    }
    return run_take_sizes(run, error);
}

// ---- All inputs ----

// Lists what all ranks must have in common, as name NUL value NUL. model: the model file's fingerprint.
static inline void run_list_facts(const TrainRun *run, uint64_t model, Text *facts) {
    uint64_t program = 0;
    Error ignored;
    const RunFound *found = &run->found;
    if (!file_checksum("/proc/self/exe", &program, &ignored)) { program = 0; }
    const struct {
        const char *name;
        uint64_t value;
    } files[] = {
        {"the program file's checksum", program},
        {"the checkpoint to go on from", found->resumes ? (uint64_t)found->checkpoints[found->first_usable] : 0},
        {"the model file's fingerprint", model},
        {"the tokenizer's fingerprint", run->tokenizer.fingerprint},
        {"the training data's fingerprint", run->train.fingerprint},
        {"the validation data's fingerprint", run->val.fingerprint},
        {"the HellaSwag file's fingerprint", run->evals[EVAL_HELLASWAG].fingerprint},
        {"the MMLU file's fingerprint", run->evals[EVAL_MMLU].fingerprint}};
    text_printf(facts, "the version of the program%c" GPT2C_VERSION "%c", '\0', '\0');
    run_list_options(run, true, '\0', '\0', facts);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        text_printf(facts, "%s%c%016llx%c", files[i].name, '\0', (unsigned long long)files[i].value, '\0');
    }
}

// Fails if a rank has other options, is another program, or sees other files. Training would then be wrong.
static inline bool run_check_same(TrainRun *run, Error *error) {
    Text facts = {NULL, 0, 0, false};
    uint64_t model = 0;
    if (run->connected == 1) { return true; }
    bool ok = run->model_file == NULL || model_file_fingerprint(run->model_file, &model, error);
    if (!ranks_agree(run->comm, ok, error)) { return false; }
    run_list_facts(run, model, &facts);
    ok = ranks_agree(run->comm, !facts.failed || fail(error, "out of memory"), error) &&
         ranks_alike(run->comm, facts.data, facts.used, error);
    text_free(&facts);
    return ok;
}

static inline bool run_open_inputs(TrainRun *run, Error *error) {
    return run_open_model(run, error) && run_open_tokenizer(run, error) && run_settle_vocab(run, error) &&
           run_settle_seq_len(run, error) && run_settle_batch(run, error) && run_encode_prompt(run, error) &&
           run_open_data(run, error) && run_open_evals(run, error) && run_settle_steps(run, error);
}

// ---- Beginning and ending ----

// Reads elements [first, first + n) of a fresh run's parameters, in the order of the parameter table.
static inline bool run_read_params(TrainRun *run, int64_t first, int64_t n, float *out, Error *error) {
    if (run->model_file != NULL) { return model_file_read_range(run->model_file, first, n, out, error); }
    gpt2_init_range(out, &run->config, (uint64_t)run->options.seed, first, n);
    return true;
}

// Opens everything that the parsed and checked options name. run->comm and run->num_ranks are set. Several ranks stop
// together from here on.
static inline bool run_open(TrainRun *run, Error *error) {
    run->folder.saved_step = -1;
    run_keep_section(run, "divergence", &run->divergence, sizeof(run->divergence), divergence_is_sound);
    logger_init(&run->logger);
    ranks_slow(run->comm, true);
    bool ok = openmp_set_threads(run->options.threads, error) && run_open_folder(run, error) &&
              ranks_agree(run->comm, run_open_inputs(run, error), error) && run_check_same(run, error);
    ranks_slow(run->comm, false);
    trainer_facts.stop->by_agreement = run->connected > 1;
    catch_stop_signal(SIGUSR1, trainer_facts.on_signal); // its sender wants the run to end in order, and has time
    return ok;
}

// Keeps a copy of the tokenizer in the run folder: whoever has the folder can sample and evaluate.
static inline bool run_keep_tokenizer(const TrainRun *run, Error *error) {
    char path[MAX_PATH_BYTES];
    if (!run_writes_files(run)) { return true; }
    if (!path_join(path, run->options.out_dir, RUN_TOKENIZER_NAME, error)) { return false; }
    if (run->tokenizer.is_open) { return tokenizer_copy_to(&run->tokenizer.tokenizer, path, error); }
    return !run->options.overwrite || files_remove(path, error);
}

// Begins the log. A fresh run that may overwrite an older run removes its checkpoints here, after everything else has
// proved to be in order. A resumed run removes those that --keep does not want: the disk may need their space.
static inline bool run_begin_folder(TrainRun *run, Error *error) {
    const char *dir = run->options.out_dir;
    if (run->found.resumes) { run_prune(run); }
    if (run->found.resumes && !run_check_disk(run, 0, error)) { return false; }
    if (run->options.overwrite) {
        for (int i = 0; i < run->found.num_checkpoints; i++) { checkpoint_delete(dir, run->found.checkpoints[i]); }
    }
    if (!run_keep_tokenizer(run, error) ||
        !logger_open(&run->logger, run_writes_files(run) ? dir : NULL, run->step, run->num_steps, error)) {
        return false;
    }
    // mpirun gives its processes terminals, wherever their output goes. They write a line for each step.
    if (launcher_find().name != NULL) { run->logger.terminal = false; }
    run_say_how_it_resumes(run);
    return true;
}

// Fills the parameters of a fresh run, or parameters, moments and position of a resumed run.
static inline bool run_load(TrainRun *run, Error *error) {
    ranks_slow(run->comm, true);
    bool ok = run->found.resumes ? run_resume(run, error)
                                 : ranks_agree(run->comm, trainer_read_state(run->trainer, run, NULL, error), error);
    ranks_slow(run->comm, false);
    return ok;
}

// Begins the log, when everything else has proved to be in order.
static inline bool run_begin_log(TrainRun *run, Error *error) {
    ranks_slow(run->comm, true);
    bool ok = run_lead(run, run_begin_folder, error) && run_check_shared_folder(run, error);
    ranks_slow(run->comm, false);
    ranks_resumable(run->comm, run->found.resumes);
    return ok && trainer_check_state(run->trainer, run, error);
}

static inline void run_close(TrainRun *run) {
    logger_close(&run->logger);
    log_close(&run->record.file);
    if (run_has_train(run)) { dataloader_close(&run->train); }
    if (run_has_val(run)) { dataloader_close(&run->val); }
    for (int i = 0; i < NUM_EVALS; i++) { eval_close(&run->evals[i]); }
    if (run->tokenizer.is_open) { tokenizer_free(&run->tokenizer.tokenizer); }
    if (run->folder.locked) { directory_unlock(&run->folder.lock); }
    free(run->model_file);
    free(run->texts.prompt);
    free(run->texts.train);
    free(run->texts.val);
}

#endif // LLMC_RUN_START_H
