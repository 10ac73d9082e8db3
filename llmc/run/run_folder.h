// The run folder: who may use it, what the disk will hold, and how a run begins in it.
#ifndef LLMC_RUN_FOLDER_H
#define LLMC_RUN_FOLDER_H

#include "llmc/run/run_state.h"

// ---- Finding ----

static inline bool run_folder_is_used(TrainRun *run) {
    char log[MAX_PATH_BYTES];
    Error ignored;
    bool has_log = path_join(log, run->options.out_dir, MAIN_LOG_NAME, &ignored) && path_exists(log);
    return run->found.num_checkpoints > 0 || has_log;
}

static inline void run_list_checkpoints(TrainRun *run) {
    run->found.num_checkpoints = checkpoint_list(run->options.out_dir, run->found.checkpoints, RUN_MAX_CHECKPOINTS);
}

// Locks the run folder for this process and finds the checkpoints in it. A fresh run does not begin in the folder of an
// older one unless told to.
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

// Looks at the run folder. Does not make one: run_begin does, after all else has proved to be in order. --plan only
// reads.
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

// All ranks take rank 0's word: only one may clean up a folder, and a network file system may show others something
// else.
static inline bool run_open_folder(TrainRun *run, Error *error) {
    if (!run_writes_files(run)) { return true; }
    bool ok = !run_leads(run) || run_look_at_folder(run, error);
    return run_agree(run, ok, error) && run_broadcast(run, &run->found, (int64_t)sizeof(run->found), error);
}

// ---- The disk ----

// Sets the checkpoints in the folder that the run builds on. An older run's checkpoints do not count, and neither do
// checkpoints after step disk->from. *replaced: how many of the uncounted ones the run will remove or overwrite.
static inline void run_disk_existing(const TrainRun *run, DiskRun *disk, int *replaced) {
    const RunFound *found = &run->found;
    bool begins = run->logger.main.path[0] == '\0', removes_all = begins && run->options.overwrite;
    int newer = 0;
    *replaced = 0;
    while (newer < found->num_checkpoints && (removes_all || found->checkpoints[newer] > disk->from)) {
        int64_t step = found->checkpoints[newer++];
        bool due = step == disk->last || (disk->every > 0 && step % disk->every == 0);
        *replaced += removes_all || (step <= disk->last && (due || disk->keep > 0));
    }
    disk->existing = found->checkpoints + newer;
    disk->num_existing = found->num_checkpoints - newer;
}

// Plans the files that a run at step `from` still writes. False if it saves nothing.
#define RUN_LOG_LINE_BYTES 100                   // of main.log and speed.log together
#define RUN_SMALL_FILES_BYTES ((int64_t)1 << 16) // run.json and loss.svg, while they are replaced
static inline bool run_disk_plan(TrainRun *run, int64_t from, DiskRun *disk, int *replaced) {
    const int64_t block = 4096;
    const TrainOptions *o = &run->options;
    int64_t model_bytes, state_bytes;
    StateHeader header;
    Error ignored;
    memset(disk, 0, sizeof(*disk));
    if (!run_writes_files(run) || !run_has_train(run)) { return false; }
    run_describe(run, &header);
    if (!checkpoint_size(&run->config, &header, run->kept.sections, run->kept.count, &model_bytes, &state_bytes,
                         &ignored)) {
        return false;
    }
    disk->from = from, disk->last = run->num_steps, disk->every = o->checkpoint_every;
    disk->keep = o->keep, disk->keep_major = o->keep_major;
    disk->checkpoint_bytes = round_up_i64(model_bytes, block) + round_up_i64(state_bytes, block);
    disk->other_bytes = RUN_SMALL_FILES_BYTES + max_i64(0, disk->last - from) * RUN_LOG_LINE_BYTES;
    run_disk_existing(run, disk, replaced);
    return true;
}

// Warns when the rest of the disk will not last, once until that gets worse.
static inline void run_warn_of_disk(TrainRun *run, const DiskRun *disk, int64_t free_bytes) {
    char text[MAX_PATH_BYTES + 512];
    DiskState now = disk_outlook(disk, run->options.out_dir, free_bytes, text, sizeof(text));
    if (now > run->folder.disk) { logger_event(&run->logger, "warning: %s", text); }
    run->folder.disk = now;
}

// Comes before the run touches its folder. Refuses a run that the disk cannot hold, and warns of one that fills it.
static inline bool run_check_disk(TrainRun *run, Error *error) {
    DiskRun disk;
    int replaced;
    if (!run_disk_plan(run, run->step, &disk, &replaced)) { return true; }
    int64_t free_bytes = disk_free_bytes(run->options.out_dir);
    if (free_bytes >= 0) { free_bytes += replaced * disk.checkpoint_bytes; }
    if (!disk_check(&disk, run->options.out_dir, free_bytes, error)) { return false; }
    run_warn_of_disk(run, &disk, free_bytes);
    return true;
}

// After a save.
static inline void run_watch_disk(TrainRun *run) {
    DiskRun disk;
    int replaced;
    if (!run_leads(run)) { return; }
    run_list_checkpoints(run);
    if (!run_disk_plan(run, run->step, &disk, &replaced)) { return; }
    run_warn_of_disk(run, &disk, disk_free_bytes(run->options.out_dir));
}

// ---- The beginning ----

// Makes and claims the folder, and begins the log. A fresh run that was told to overwrite an older one removes its
// checkpoints here, after everything else has proved to be in order.
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
    // mpirun gives its processes terminals, wherever their output goes: no bar, whole lines.
    if (run->ranks.launched) { run->logger.terminal = false; }
    return true;
}

// Do all ranks see rank 0's folder? The file that locks it holds rank 0's process id.
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

static inline bool run_begin(TrainRun *run, Error *error) {
    bool ok = !run_leads(run) || run_begin_folder(run, error);
    return run_agree(run, ok, error) && run_check_shared_folder(run, error);
}

// Fills the parameters of a fresh run, or of a resumed one with both moments and the position, and begins the log.
static inline bool run_load(TrainRun *run, const RunArrays *arrays, Error *error) {
    run_slow(run, true);
    bool ok = run->found.resumes ? run_resume(run, arrays, error)
                                 : run_agree(run, arrays->read(arrays->model, run, NULL, error), error);
    ok = ok && run_begin(run, error);
    run_slow(run, false);
    return ok;
}

#endif // LLMC_RUN_FOLDER_H
