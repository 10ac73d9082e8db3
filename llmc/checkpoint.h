// Checkpoints: pairs model_<step>.bin + state_<step>.bin in a run folder, of which a complete one survives whatever
// happens, at any moment.
//
// The state is made visible last and holds the model's size and checksum, so a state that verifies together with its
// model is a complete checkpoint. A save writes both files under temporary names, brings them to the disk, then renames
// the model, then the state. When the step exists already, its model is first kept as model_<step>.bin.old. Killed
//   before the renames:        the old pair is untouched;
//   with the old model aside:  the old state names the checksum of .old, and that is where a reader finds it;
//   with the new model placed: the same (the checksum tells which of the two models belongs to the state);
//   with the new state placed: the new pair is complete, .old is a leftover.
// The old step is never removed before the new one is complete. Power failure is covered by flushing the folder after
// each rename. What a kill leaves behind is removed by checkpoint_clean.
//
// One process at a time may write to a folder (directory_lock).
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H

#include <dirent.h>

#include "files.h"
#include "gpt2.h"
#include "model_bin.h"
#include "state_file.h"

#define CHECKPOINT_KEPT_SUFFIX ".old"

// ---- Names ----

typedef struct {
    char model[MAX_PATH_BYTES], kept_model[MAX_PATH_BYTES]; // model_<step>.bin and, while a step is overwritten, .old
    char state[MAX_PATH_BYTES];
    char temporary_model[MAX_PATH_BYTES], temporary_state[MAX_PATH_BYTES];
} CheckpointPaths;

static inline bool checkpoint_paths(CheckpointPaths *paths, const char *dir, int64_t step, Error *error) {
    char *const out[] = {paths->model, paths->kept_model, paths->state, paths->temporary_model, paths->temporary_state};
    static const char *const kinds[] = {"model", "model", "state", "model", "state"};
    static const char *const suffixes[] = {"", CHECKPOINT_KEPT_SUFFIX, "", TEMPORARY_SUFFIX, TEMPORARY_SUFFIX};
    if (!path_check(dir, "run folder", error)) { return false; }
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof(name), "%s_%08lld.bin%s", kinds[i], (long long)step, suffixes[i]);
        if (!path_join(out[i], dir, name, error)) { return false; }
    }
    return true;
}

// The step in a name like state_00000020.bin (kind "state", suffix ".bin"), -1 if the name is not exactly of that form.
static inline int64_t checkpoint_step_of_name(const char *name, const char *kind, const char *suffix) {
    size_t n = strlen(kind);
    if (strncmp(name, kind, n) != 0 || name[n] != '_') { return -1; }
    const char *digits = name + n + 1;
    size_t count = strspn(digits, "0123456789");
    if (count < 8 || count > 18 || (count > 8 && digits[0] == '0') || strcmp(digits + count, suffix) != 0) {
        return -1;
    }
    return (int64_t)strtoll(digits, NULL, 10);
}

static inline int checkpoint_compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x > y ? -1 : x < y;
}

// Collects the steps of all names of this form in a folder, newest first. The caller frees *steps. -1: folder
// unreadable.
static inline int checkpoint_collect(const char *dir, const char *kind, const char *suffix, int64_t **steps) {
    *steps = NULL;
    DIR *folder = opendir(dir);
    if (folder == NULL) { return -1; }
    int count = 0, capacity = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int64_t step = checkpoint_step_of_name(entry->d_name, kind, suffix);
        if (step < 0) { continue; }
        if (count == capacity) {
            capacity = 2 * capacity + 16;
            int64_t *larger = (int64_t *)realloc(*steps, (size_t)capacity * sizeof(int64_t));
            if (larger == NULL) { break; }
            *steps = larger;
        }
        (*steps)[count++] = step;
    }
    closedir(folder);
    if (count > 0) { qsort(*steps, (size_t)count, sizeof(int64_t), checkpoint_compare_steps); }
    return count;
}

// Writes the steps of up to max checkpoints in a folder, newest first, and returns how many. They have a state file;
// whether all is well with them, checkpoint_verify or checkpoint_load tells. A missing folder holds none.
static inline int checkpoint_list(const char *dir, int64_t *steps, int max) {
    int64_t *all;
    int count = checkpoint_collect(dir, "state", ".bin", &all);
    count = count < 0 ? 0 : count < max ? count : max;
    for (int i = 0; i < count; i++) { steps[i] = all[i]; }
    free(all);
    return count;
}

// ---- The model that belongs to a state ----

static inline bool checkpoint_file_matches(const char *path, int64_t bytes, uint64_t checksum) {
    struct stat info;
    uint64_t found = 0;
    Error ignored;
    return stat(path, &info) == 0 && info.st_size == bytes && file_checksum(path, &found, &ignored) &&
           found == checksum;
}

static inline bool checkpoint_model_facts(const StateHeader *header, const char *state_path, int64_t *bytes,
                                          uint64_t *checksum, Error *error) {
    return (state_get_i64(header, "model_bytes", bytes) && state_get_u64(header, "model_checksum", checksum)) ||
           fail(error, "%s: does not say which model file it belongs to", state_path);
}

// Where the model of this state is. Only after a kill in the middle of an overwrite are there two to choose from.
static inline bool checkpoint_find_model(const CheckpointPaths *paths, const StateHeader *header, const char **model,
                                         uint64_t *checksum, Error *error) {
    int64_t bytes = 0;
    struct stat info;
    if (!checkpoint_model_facts(header, paths->state, &bytes, checksum, error)) { return false; }
    *model = paths->model;
    if (path_exists(paths->kept_model) && checkpoint_file_matches(paths->kept_model, bytes, *checksum)) {
        *model = paths->kept_model;
    }
    if (stat(*model, &info) != 0) { return fail_system(error, *model, "open"); }
    return info.st_size == bytes || fail(error, "%s: has %lld bytes, its training state expects %lld", *model,
                                         (long long)info.st_size, (long long)bytes);
}

static inline bool checkpoint_check_step(const CheckpointPaths *paths, const StateHeader *header, int64_t step,
                                         Error *error) {
    int64_t found = -1;
    return (state_get_i64(header, "step", &found) && found == step) ||
           fail(error, "%s: is the training state of step %lld, renamed?", paths->state, (long long)found);
}

// ---- Loading ----

// Reads a checkpoint's facts and its model's config, without the weights. Sizes and headers are verified.
static inline bool checkpoint_load_header(const char *dir, int64_t step, GPT2Config *config, StateHeader *header,
                                          Error *error) {
    CheckpointPaths paths;
    const char *model = NULL;
    uint64_t checksum = 0;
    int version;
    return checkpoint_paths(&paths, dir, step, error) && state_read_header(paths.state, header, error) &&
           checkpoint_check_step(&paths, header, step, error) &&
           checkpoint_find_model(&paths, header, &model, &checksum, error) &&
           model_bin_read_config(model, config, &version, error);
}

// Loads a checkpoint: params (gpt2_num_params(config) floats), facts, and the sections, whose names and sizes must be
// those of the file. Every byte is verified; after a failure params and sections hold nothing of use.
static inline bool checkpoint_load(const char *dir, int64_t step, const GPT2Config *config, float *params,
                                   StateHeader *header, const StateSection *sections, int count, Error *error) {
    CheckpointPaths paths;
    const char *model = NULL;
    uint64_t expected = 0, found = 0;
    if (!checkpoint_paths(&paths, dir, step, error) || !state_read(paths.state, header, sections, count, error) ||
        !checkpoint_check_step(&paths, header, step, error) ||
        !checkpoint_find_model(&paths, header, &model, &expected, error) ||
        !model_bin_read_unchecked(model, config, params, &found, error)) {
        return false;
    }
    if (found != expected) { return fail(error, "%s: is damaged: its checksum does not match", model); }
    model_zero_padding(params, config);
    return model_check_finite(params, config, model, error);
}

// Verifies every byte of a checkpoint without loading it.
static inline bool checkpoint_verify(const char *dir, int64_t step, Error *error) {
    CheckpointPaths paths;
    GPT2Config config;
    const char *model = NULL;
    uint64_t expected = 0, found = 0;
    int version;
    StateHeader header;
    if (!checkpoint_paths(&paths, dir, step, error) || !state_verify(paths.state, &header, error) ||
        !checkpoint_check_step(&paths, &header, step, error) ||
        !checkpoint_find_model(&paths, &header, &model, &expected, error) ||
        !model_bin_read_config(model, &config, &version, error) || !file_checksum(model, &found, error)) {
        return false;
    }
    return found == expected || fail(error, "%s: is damaged: its checksum does not match", model);
}

// Finds the newest checkpoint that verifies. false if there is none. *problem says what was wrong with the newest one
// that had to be passed over; its text is empty when none had to.
static inline bool checkpoint_find_good(const char *dir, int64_t *step, Error *problem) {
    int64_t *steps;
    int count = checkpoint_collect(dir, "state", ".bin", &steps);
    bool found = false;
    problem->text[0] = '\0';
    for (int i = 0; i < count && !found; i++) {
        Error error;
        *step = steps[i];
        found = checkpoint_verify(dir, steps[i], &error);
        if (!found && problem->text[0] == '\0') { *problem = error; }
    }
    free(steps);
    return found;
}

// ---- Cleaning up after a kill ----

// Ends an interrupted overwrite of one step: of the two models, the one that belongs to the state stays. While the
// state cannot be read, both stay.
static inline bool checkpoint_settle(const CheckpointPaths *paths, Error *error) {
    if (!path_exists(paths->kept_model)) { return true; }
    StateHeader header;
    const char *model = NULL;
    uint64_t checksum = 0;
    char dir[MAX_PATH_BYTES];
    bool restore = !path_exists(paths->model);
    if (!restore) {
        if (!state_read_header(paths->state, &header, error) ||
            !checkpoint_find_model(paths, &header, &model, &checksum, error)) {
            return true;
        }
        restore = model == paths->kept_model;
    }
    if (restore && rename(paths->kept_model, paths->model) != 0) {
        return fail_system(error, paths->kept_model, "rename");
    }
    if (!restore && unlink(paths->kept_model) != 0) { return fail_system(error, paths->kept_model, "remove"); }
    path_parent(dir, paths->model);
    return sync_directory(dir, error);
}

static inline bool checkpoint_remove(const char *path, Error *error) {
    return unlink(path) == 0 || errno == ENOENT || fail_system(error, path, "remove");
}

// Removes what an interrupted save or prune of one step left. A model without a state is only touched when a temporary
// state beside it proves that it is a leftover of ours: any other may be somebody's only copy.
static inline bool checkpoint_clean_step(const char *dir, int64_t step, Error *error) {
    CheckpointPaths paths;
    if (!checkpoint_paths(&paths, dir, step, error) || !checkpoint_settle(&paths, error)) { return false; }
    bool orphan = path_exists(paths.temporary_state) && !path_exists(paths.state);
    if (orphan && !checkpoint_remove(paths.model, error)) { return false; }
    return checkpoint_remove(paths.temporary_model, error) && checkpoint_remove(paths.temporary_state, error);
}

// Removes all leftovers of killed saves from a run folder, and only those. For the holder of the folder's lock.
static inline bool checkpoint_clean(const char *dir, Error *error) {
    static const char *const leftovers[][2] = {{"model", ".bin" CHECKPOINT_KEPT_SUFFIX},
                                               {"model", ".bin" TEMPORARY_SUFFIX},
                                               {"state", ".bin" TEMPORARY_SUFFIX}};
    for (int i = 0; i < 3; i++) {
        int64_t *steps;
        int count = checkpoint_collect(dir, leftovers[i][0], leftovers[i][1], &steps);
        bool ok = count >= 0 || fail_system(error, dir, "read folder");
        for (int j = 0; ok && j < count; j++) { ok = checkpoint_clean_step(dir, steps[j], error); }
        free(steps);
        if (!ok) { return false; }
    }
    return true;
}

// ---- Saving ----

static inline bool checkpoint_rename(const char *from, const char *to, const char *dir, Error *error) {
    if (rename(from, to) != 0) { return fail_system(error, from, "rename"); }
    return sync_directory(dir, error);
}

// Makes both complete files visible, in the order that the argument at the top of this file rests on.
static inline bool checkpoint_publish(const char *dir, const CheckpointPaths *paths, AtomicFile *model,
                                      AtomicFile *state, Error *error) {
    bool overwrite = path_exists(paths->state) && path_exists(paths->model);
    if (overwrite && !checkpoint_rename(paths->model, paths->kept_model, dir, error)) { return false; }
    if (!atomic_commit(model, error) || !atomic_commit(state, error)) { return false; }
    return !overwrite || checkpoint_remove(paths->kept_model, error);
}

// Saves model_<step>.bin and state_<step>.bin into an existing folder; the facts step, model_bytes and model_checksum
// are added to header. A failure (a full disk) and a kill at any moment leave what was there before usable.
static inline bool checkpoint_save(const char *dir, int64_t step, const GPT2Config *config, const float *params,
                                   StateHeader *header, const StateSection *sections, int count, Error *error) {
    CheckpointPaths paths;
    AtomicFile model, state;
    uint64_t checksum = 0;
    if (!checkpoint_paths(&paths, dir, step, error) || !checkpoint_settle(&paths, error) ||
        !model_bin_write_pending(&model, paths.model, config, params, &checksum, error)) {
        return false;
    }
    state_set_i64(header, "step", step);
    state_set_i64(header, "model_bytes", model.bytes);
    state_set_u64(header, "model_checksum", checksum);
    bool ok = state_write_pending(&state, paths.state, header, sections, count, error) &&
              checkpoint_publish(dir, &paths, &model, &state, error);
    if (!ok) {
        atomic_abort(&state);
        atomic_abort(&model);
    }
    return ok;
}

// Removes one checkpoint. The state loses its name first, and is the last to go: a kill in between leaves what
// checkpoint_clean recognises.
static inline void checkpoint_delete(const char *dir, int64_t step) {
    CheckpointPaths paths;
    Error ignored;
    if (!checkpoint_paths(&paths, dir, step, &ignored)) { return; }
    if (rename(paths.state, paths.temporary_state) != 0) { return; }
    unlink(paths.model);
    unlink(paths.temporary_state);
}

// Removes checkpoints before newest_step: the `keep` newest stay (newest_step counts as one; 0: all stay), and those
// whose step is divisible by keep_major (0: none). Later steps are not touched. A file that cannot be removed stays.
static inline void checkpoint_prune(const char *dir, int64_t newest_step, int keep, int64_t keep_major) {
    if (keep <= 0) { return; }
    int64_t *steps;
    int count = checkpoint_collect(dir, "state", ".bin", &steps), seen = 0;
    for (int i = 0; i < count; i++) {
        if (steps[i] > newest_step) { continue; }
        bool major = keep_major > 0 && steps[i] % keep_major == 0;
        if (++seen > keep && !major) { checkpoint_delete(dir, steps[i]); }
    }
    free(steps);
}

#endif // LLMC_CHECKPOINT_H
