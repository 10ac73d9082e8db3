// Begins and ends a run: opens what the options name, loads the parameters, begins the log, and closes everything.
#ifndef LLMC_RUN_START_H
#define LLMC_RUN_START_H

#include "llmc/base/launcher.h"
#include "llmc/run/run_folder.h"
#include "llmc/run/run_inputs.h"
#include "llmc/run/run_state.h"

// Opens everything that the parsed and checked options name. run->ranks and run->num_ranks are set. precision: the
// trainer's, "fp32" or "bf16".
static inline bool run_open(TrainRun *run, int default_seq_len, const char *precision, Error *error) {
    run->precision = precision;
    run->saved_step = -1;
    logger_init(&run->logger);
    run_slow(run, true);
    bool ok = run_open_folder(run, error) && run_agree(run, run_open_inputs(run, default_seq_len, error), error) &&
              run_check_same(run, error);
    run_slow(run, false);
    return ok;
}

// Creates and locks the folder, and begins the log. A fresh run that may overwrite an older run removes its checkpoints
// here, after everything else has proved to be in order.
static inline bool run_begin_folder(TrainRun *run, Error *error) {
    const char *dir = run->options.out_dir;
    if (!run_check_disk(run, error)) { return false; }
    if (run_writes_files(run) && !run->folder.locked &&
        !(make_directories(dir, error) && run_claim_folder(run, error))) {
        return false;
    }
    if (run->options.overwrite) {
        for (int i = 0; i < run->found.num_checkpoints; i++) { checkpoint_delete(dir, run->found.checkpoints[i]); }
    }
    if (!logger_open(&run->logger, dir, run->step, run->num_steps, error)) { return false; }
    // mpirun gives its processes terminals, wherever their output goes. They write whole lines and no progress bar.
    if (launcher_find().name != NULL) { run->logger.terminal = false; }
    return true;
}

// All ranks call this.
static inline bool run_begin(TrainRun *run, Error *error) {
    bool ok = !run_leads(run) || run_begin_folder(run, error);
    return run_agree(run, ok, error) && run_check_shared_folder(run, error);
}

// Fills the parameters of a fresh run, or parameters, moments and position of a resumed run, and begins the log.
static inline bool run_load(TrainRun *run, const RunArrays *arrays, Error *error) {
    run_slow(run, true);
    bool ok = run->found.resumes ? run_resume(run, arrays, error)
                                 : run_agree(run, arrays->read(arrays->model, run, NULL, error), error);
    ok = ok && run_begin(run, error);
    run_slow(run, false);
    return ok;
}

static inline void run_close(TrainRun *run) {
    logger_close(&run->logger);
    json_out_free(&run->record.json);
    if (run_has_train(run)) { dataloader_close(&run->train); }
    if (run->has_val) { dataloader_close(&run->val); }
    for (int i = 0; i < NUM_EVALS; i++) { eval_close(&run->evals[i]); }
    if (run->tokenizer.is_open) { tokenizer_free(&run->tokenizer.tokenizer); }
    if (run->folder.locked) { directory_unlock(&run->folder.lock); }
    free(run->texts.prompt);
    free(run->texts.train);
    free(run->texts.val);
}

#endif // LLMC_RUN_START_H
