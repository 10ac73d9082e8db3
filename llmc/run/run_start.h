// Begins and ends a run: claims the folder, loads the parameters, begins the log.
#ifndef LLMC_RUN_START_H
#define LLMC_RUN_START_H

#include "llmc/base/launcher.h"
#include "llmc/run/run_state.h"

// Creates and locks the run folder. Checks that no other process has saved in it since this one looked.
static inline bool run_claim_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    if (!run_writes_files(run)) { return true; }
    if (run->folder.newest < 0 && !run_check_disk(run, error)) { return false; }
    if (!make_directories(o->out_dir, error) || !directory_lock(&run->folder.lock, o->out_dir, error) ||
        !checkpoint_clean(o->out_dir, error)) {
        return false;
    }
    return checkpoint_before(o->out_dir, "state", "", INT64_MAX) == max_i64(run->folder.newest, -1) ||
           fail(error, "--out-dir (-o): another process has saved in %.4000s just now; start again", o->out_dir);
}

// Checks that the folder is rank 0's on all ranks. The file that locks it holds rank 0's process id.
static inline bool run_check_shared_folder(TrainRun *run, Error *error) {
    const char *dir = run->options->out_dir;
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

// Keeps a copy of the tokenizer in the run folder: whoever has the folder can sample and evaluate.
static inline bool run_keep_tokenizer(const TrainRun *run, Error *error) {
    char path[MAX_PATH_BYTES];
    if (!run_writes_files(run)) { return true; }
    if (!path_join(path, run->options->out_dir, RUN_TOKENIZER_NAME, error)) { return false; }
    if (run->tokenizer.is_open) { return tokenizer_copy_to(&run->tokenizer.tokenizer, path, error); }
    return !run->options->overwrite || files_remove(path, error);
}

// Begins the log, when everything else has proved to be in order. A fresh run that may overwrite an older run removes
// its checkpoints here. A resumed run removes those that --keep does not want: the disk may need their space.
static inline bool run_begin_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    const char *dir = o->out_dir;
    if (run_resumes(run)) { checkpoint_prune(dir, run->step, o->keep, o->keep_major); }
    if (o->overwrite) { checkpoint_delete_all(dir); }
    if (run_writes_files(run) && !run_check_disk(run, error)) { return false; }
    if (!run_keep_tokenizer(run, error) ||
        !logger_open(&run->logger, run_writes_files(run) ? dir : NULL, run->step, run->num_steps, error)) {
        return false;
    }
    run->logger.show_every = o->log_every;
    // mpirun gives its processes terminals, wherever their output goes. They write a line for each step.
    if (launcher_find().name != NULL) { run->logger.terminal = false; }
    if (run_resumes(run) && run->step >= run->num_steps) {
        logger_event(&run->logger, "the run in %s has done %lld of %lld steps: --steps N --allow-changes goes on to N",
                     dir, (long long)run->step, (long long)run->num_steps);
    } else if (run->options->resume && !run_resumes(run)) {
        logger_event(&run->logger, "nothing to resume in %s: starts afresh", dir);
    }
    return true;
}

// Fills the parameters of a fresh run, or parameters, moments and position of a resumed run.
static inline bool run_load(TrainRun *run, Error *error) {
    return run_resumes(run) ? run_resume(run, error)
                            : ranks_agree(run->comm, trainer_read_state(run->trainer, run, NULL, error), error);
}

// Begins the log, when everything else has proved to be in order.
static inline bool run_begin_log(TrainRun *run, Error *error) {
    bool ok = run_lead(run, run_begin_folder, error) && run_check_shared_folder(run, error);
    ranks_resumable(run->comm, run_resumes(run));
    return ok && trainer_check_state(run->trainer, run, error);
}

static inline void run_close(TrainRun *run) {
    logger_close(&run->logger);
    log_close(&run->record.file);
    if (run_has_train(run)) { dataloader_close(&run->train); }
    if (run_has_val(run)) { dataloader_close(&run->val); }
    for (int i = 0; i < NUM_EVALS; i++) { eval_close(&run->evals[i]); }
    if (run->tokenizer.is_open) { tokenizer_free(&run->tokenizer.tokenizer); }
    directory_unlock(&run->folder.lock);
    free(run->model_file);
    free(run->folder.taken);
    free(run->texts.prompt);
    free(run->texts.train);
    free(run->texts.val);
}

#endif // LLMC_RUN_START_H
