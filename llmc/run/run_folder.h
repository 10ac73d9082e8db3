// The run folder: who may use it, what the disk will hold, and how a run begins in it.
#ifndef LLMC_RUN_FOLDER_H
#define LLMC_RUN_FOLDER_H

#include "llmc/base/disk_space.h"
#include "llmc/base/files.h"
#include "llmc/run/run_state.h"

static inline bool run_folder_is_used(TrainRun *run) {
    char log[MAX_PATH_BYTES];
    Error ignored;
    return run->num_checkpoints > 0 || (path_join(log, run->options.out_dir, "main.log", &ignored) && path_exists(log));
}

// Makes the run folder this process's own and finds the checkpoints in it. A fresh run does not begin in the folder of
// an older one unless told to.
static inline bool run_claim_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (!directory_lock(&run->lock, o->out_dir, error)) { return false; }
    run->locked = true;
    if (!checkpoint_clean(o->out_dir, error)) { return false; }
    run->num_checkpoints = checkpoint_list(o->out_dir, run->checkpoints, RUN_MAX_CHECKPOINTS);
    if (o->resume || o->overwrite || !run_folder_is_used(run)) { return true; }
    return fail(error,
                "%s: holds an earlier run; give --resume to go on with it, --overwrite to start afresh in its "
                "place, or another --out-dir",
                o->out_dir);
}

// What rank 0 found in the run folder.
typedef struct {
    int64_t checkpoints[RUN_MAX_CHECKPOINTS];
    int32_t num_checkpoints;
    int32_t resumes;
} RunFolder;

// The other ranks take rank 0's word for what the folder holds: only one may clean it up, and a network file system may
// show each something else.
static inline bool run_share_folder(TrainRun *run, Error *error) {
    if (run->ranks.num_ranks == 1) { return true; }
    RunFolder *folder = (RunFolder *)calloc(1, sizeof(RunFolder));
    if (!run_agree(run, folder != NULL || fail(error, "out of memory"), error)) {
        free(folder);
        return false;
    }
    memcpy(folder->checkpoints, run->checkpoints, sizeof(folder->checkpoints));
    folder->num_checkpoints = run->num_checkpoints;
    folder->resumes = run->resumes;
    bool ok = run_broadcast(run, folder, (int64_t)sizeof(*folder), error);
    memcpy(run->checkpoints, folder->checkpoints, sizeof(folder->checkpoints));
    run->num_checkpoints = folder->num_checkpoints;
    run->resumes = folder->resumes != 0;
    free(folder);
    return ok;
}

// Looks at the run folder. One that does not exist is made when all else has proved to be in order (run_begin); --plan
// only reads.
static inline bool run_look_at_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (!path_check(o->out_dir, "--out-dir (-o)", error)) { return false; }
    if (o->plan) {
        run->num_checkpoints = checkpoint_list(o->out_dir, run->checkpoints, RUN_MAX_CHECKPOINTS);
    } else if (path_exists(o->out_dir) && !run_claim_folder(run, error)) {
        return false;
    }
    run->resumes = o->resume && run->num_checkpoints > 0;
    return true;
}

static inline bool run_open_folder(TrainRun *run, Error *error) {
    if (!run_writes_files(run)) { return true; }
    bool ok = !run_leads(run) || run_look_at_folder(run, error);
    return run_agree(run, ok, error) && run_share_folder(run, error);
}

// ---- The disk ----

// Which of the checkpoints in the folder the run builds on: not those of an older run, nor those that come after the
// one that it goes back to. *replaced: how many of these it will remove or overwrite.
static inline void run_disk_existing(const TrainRun *run, DiskRun *disk, int *replaced) {
    bool begins = run->logger.path[0] == '\0', removes_all = begins && run->options.overwrite;
    int newer = 0;
    *replaced = 0;
    while (newer < run->num_checkpoints && (removes_all || run->checkpoints[newer] > disk->from)) {
        int64_t step = run->checkpoints[newer++];
        bool due = step == disk->last || (disk->every > 0 && step % disk->every == 0);
        *replaced += removes_all || (step <= disk->last && (due || disk->keep > 0));
    }
    disk->existing = run->checkpoints + newer;
    disk->num_existing = run->num_checkpoints - newer;
}

// What a run that stands at step `from` still writes. False for one that saves nothing.
#define RUN_LOG_LINE_BYTES 100                   // of main.log and speed.log together
#define RUN_SMALL_FILES_BYTES ((int64_t)1 << 16) // run.json and loss.svg, while they are replaced
static inline bool run_disk_plan(TrainRun *run, int64_t from, DiskRun *disk, int *replaced) {
    const int64_t block = 4096;
    const TrainOptions *o = &run->options;
    int64_t model_bytes, state_bytes;
    StateHeader header;
    Error ignored;
    memset(disk, 0, sizeof(*disk));
    if (!run_writes_files(run) || !run->has_train) { return false; }
    run_describe(run, &header);
    if (!checkpoint_size(&run->config, &header, run->sections, run->num_sections, &model_bytes, &state_bytes,
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

// Before the run touches its folder: refuses one that the disk cannot hold, and warns of one that will fill it.
static inline bool run_check_disk(TrainRun *run, Error *error) {
    char text[MAX_PATH_BYTES + 512];
    DiskRun disk;
    int replaced;
    if (!run_disk_plan(run, run->step, &disk, &replaced)) { return true; }
    int64_t free_bytes = disk_free_bytes(run->options.out_dir);
    if (free_bytes >= 0) { free_bytes += replaced * disk.checkpoint_bytes; }
    if (!disk_check(&disk, run->options.out_dir, free_bytes, error)) { return false; }
    run->disk = disk_outlook(&disk, run->options.out_dir, free_bytes, text, sizeof(text));
    if (run->disk != DISK_LASTS) { logger_event(&run->logger, "warning: %s", text); }
    return true;
}

// After a save: warns when the rest of the disk will not last, once until that changes.
static inline void run_watch_disk(TrainRun *run) {
    char text[MAX_PATH_BYTES + 512];
    DiskRun disk;
    int replaced;
    if (!run_leads(run)) { return; }
    run->num_checkpoints = checkpoint_list(run->options.out_dir, run->checkpoints, RUN_MAX_CHECKPOINTS);
    if (!run_disk_plan(run, run->step, &disk, &replaced)) { return; }
    DiskState now =
        disk_outlook(&disk, run->options.out_dir, disk_free_bytes(run->options.out_dir), text, sizeof(text));
    if (now > run->disk) { logger_event(&run->logger, "warning: %s", text); }
    run->disk = now;
}

// ---- The beginning ----

// Begins the log, when the parameters are in place. A fresh run that was told to overwrite an older one removes that
// one's checkpoints now, not before everything else has proved to be in order.
static inline bool run_begin_folder(TrainRun *run, Error *error) {
    const char *dir = run->options.out_dir;
    if (!run_check_disk(run, error)) { return false; }
    if (run_writes_files(run) && !run->locked && !(make_directories(dir, error) && run_claim_folder(run, error))) {
        return false;
    }
    if (run->options.overwrite) {
        for (int i = 0; i < run->num_checkpoints; i++) { checkpoint_delete(dir, run->checkpoints[i]); }
    }
    if (!logger_open(&run->logger, dir, run->step, run->num_steps, error)) { return false; }
    // mpirun gives the processes terminals of its own making, wherever their output goes: no bar, whole lines.
    if (run->ranks.launched) { run->logger.terminal = false; }
    return true;
}

// Do all ranks see rank 0's folder? It is locked by a file that holds rank 0's process id.
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

// Fills the parameters of a fresh run, or of a resumed one together with both moments and the position, and begins the
// log.
static inline bool run_load(TrainRun *run, const RunArrays *arrays, Error *error) {
    run_slow(run, true);
    bool ok = run->resumes ? run_resume(run, arrays, error)
                           : run_agree(run, arrays->read(arrays->model, run, NULL, error), error);
    ok = ok && run_begin(run, error);
    run_slow(run, false);
    return ok;
}

#endif // LLMC_RUN_FOLDER_H
