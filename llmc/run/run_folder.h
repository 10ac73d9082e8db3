// The run folder: which process may use it, which checkpoints it holds, and whether all ranks see it.
#ifndef LLMC_RUN_FOLDER_H
#define LLMC_RUN_FOLDER_H

#include "llmc/run/train_run.h"

// Tells whether the folder holds an earlier run.
static inline bool run_folder_is_used(TrainRun *run) {
    char log[MAX_PATH_BYTES];
    Error ignored;
    bool has_log = path_join(log, run->options.out_dir, MAIN_LOG_NAME, &ignored) && path_exists(log);
    return run->found.num_checkpoints > 0 || has_log;
}

// Locks the run folder for this process and finds its checkpoints. A fresh run does not begin in the folder of an older
// run unless an option allows it.
static inline bool run_claim_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (!directory_lock(&run->folder.lock, o->out_dir, error)) { return false; }
    run->folder.locked = true;
    if (!checkpoint_clean(o->out_dir, error)) { return false; }
    run_list_checkpoints(run);
    if (o->resume || o->overwrite || !run_folder_is_used(run)) { return true; }
    return fail(error,
                "%s: holds an earlier run; give --resume to go on with it, --overwrite to start afresh in its "
                "place, or another --out-dir",
                o->out_dir);
}

// Looks at the run folder, and --plan only reads it. run_begin creates it later, when everything else is in order.
static inline bool run_look_at_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (!path_check(o->out_dir, "--out-dir (-o)", error)) { return false; }
    if (o->plan) {
        run_list_checkpoints(run);
    } else if (path_exists(o->out_dir) && !run_claim_folder(run, error)) {
        return false;
    }
    run->found.resumes = o->resume && run->found.num_checkpoints > 0;
    return true;
}

// Only rank 0 looks at the folder, and all ranks use its findings: only one rank may clean up a folder, and a network
// file system may show the rest something else.
static inline bool run_open_folder(TrainRun *run, Error *error) {
    if (!run_writes_files(run)) { return true; }
    bool ok = !run_leads(run) || run_look_at_folder(run, error);
    return run_agree(run, ok, error) && run_broadcast(run, &run->found, (int64_t)sizeof(run->found), error);
}

// Checks that all ranks see rank 0's folder. The file that locks it holds rank 0's process id.
static inline bool run_check_shared_folder(TrainRun *run, Error *error) {
    char path[MAX_PATH_BYTES], text[32] = "", expected[32];
    int64_t pid = (int64_t)getpid();
    if (!run_writes_files(run) || run->ranks.num_ranks == 1) { return true; }
    if (!run_broadcast(run, &pid, (int64_t)sizeof(pid), error)) { return false; }
    snprintf(expected, sizeof(expected), "%lld\n", (long long)pid);
    bool ok = path_join(path, run->options.out_dir, ".lock", error);
    int fd = ok ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0 && read(fd, text, sizeof(text) - 1) < 0) { text[0] = '\0'; }
    if (fd >= 0) { close(fd); }
    ok = ok && (strcmp(text, expected) == 0 ||
                fail(error,
                     "--out-dir (-o): %.4000s is not the folder that rank 0 sees under this name; choose one on "
                     "a file system that all machines share",
                     run->options.out_dir));
    return run_agree(run, ok, error);
}

#endif // LLMC_RUN_FOLDER_H
