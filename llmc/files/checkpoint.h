// Checkpoints: pairs model_<step>.bin + state_<step>.bin in a run folder. A complete pair survives a kill at any
// moment.
//
// The state holds the checksums of its model. One rule decides which model belongs to a state: the one under the
// temporary name model_<step>.bin.tmp if it has these checksums, otherwise model_<step>.bin. A save writes both files
// under temporary names and flushes them to the disk. Then it renames the state, then the model. A kill leaves one of
// these situations, also when the step already exists:
//   before the renames:        the old pair is untouched, and the temporary files are leftovers;
//   with the new state placed: its model still has the temporary name, and a reader finds it there;
//   with the new model placed: the new pair is complete.
// The folder is flushed after each rename, so the names survive a power failure. checkpoint_clean gives a model that a
// kill left under its temporary name its own name, and removes all other leftovers.
//
// Any number of processes save and load one checkpoint together. Each handles its pieces of the three arrays: the
// parameters and both moments of AdamW, in the order of the parameter table. With Muon the first moment of its matrices
// is their momentum, and the second moment leaves them out. The number of processes does not change the bytes of the
// files. One process, the leader, creates, names and removes the files. In a save the leader calls
// checkpoint_write_begin first, then every other process calls it. All call checkpoint_write and
// checkpoint_write_flush. The leader calls checkpoint_write_commit when all have flushed. When a process fails or is
// killed before the commit, the leader removes the new files, and the folder is as before. The caller synchronises the
// processes and passes on their failures.
//
// model_best.bin is a model alone, written by the same protocol. No run resumes from it, and it stays when checkpoints
// go.
//
// One run at a time may write to a folder (directory_lock).
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H

#include <dirent.h>

#include "llmc/files/model_bin.h"
#include "llmc/files/state_file.h"

// The arrays of floats. The parameters follow the header of the model file. The moments are sections of the state. All
// three come first in the state's table. Parameters are counted as param_offset counts them.
enum { CHECKPOINT_PARAMS, CHECKPOINT_ADAM_M, CHECKPOINT_ADAM_V, CHECKPOINT_ARRAYS };
static const char *const checkpoint_array_names[CHECKPOINT_ARRAYS] = {"params", "adam_m", "adam_v"};

// Returns the optimizer of a saved run: AdamW unless its training state says otherwise.
static inline OptimizerKind checkpoint_optimizer(const StateHeader *header) {
    char name[16];
    bool says = state_get_text(header, "--optimizer", name, sizeof(name));
    return says && strcmp(name, "muon") == 0 ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
}

// Returns where in an array the element of a parameter lies. place = model_num_params: the length of the array.
static inline int64_t checkpoint_place(const ModelConfig *config, OptimizerKind optimizer, int array, int64_t place) {
    return array == CHECKPOINT_ADAM_V ? param_place_in_v(config, optimizer, place) : place;
}

// Makes the record of an array.
static inline StateRecord checkpoint_record(const ModelConfig *config, OptimizerKind optimizer, int array) {
    int64_t bytes = checkpoint_place(config, optimizer, array, model_num_params(config)) * (int64_t)sizeof(float);
    return state_record(checkpoint_array_names[array], array == CHECKPOINT_PARAMS ? STATE_ELSEWHERE : STATE_SECTION,
                        bytes);
}

// SUM64 of the pieces that one process has written or read. Added over all processes they are the sums of the arrays.
// The sum of the parameters is the weights hash.
typedef struct {
    uint64_t sums[CHECKPOINT_ARRAYS];
} CheckpointSums;

// ---- Names ----

#define CHECKPOINT_BEST_NAME "model_best.bin"

typedef struct {
    char model[MAX_PATH_BYTES], state[MAX_PATH_BYTES]; // model_<step>.bin, state_<step>.bin
    char temporary_model[MAX_PATH_BYTES], temporary_state[MAX_PATH_BYTES];
} CheckpointPaths;

static inline void checkpoint_name(char name[64], const char *kind, int64_t step, const char *suffix) {
    snprintf(name, 64, "%s_%08lld.bin%s", kind, (long long)step, suffix);
}

static inline bool checkpoint_paths(CheckpointPaths *paths, const char *dir, int64_t step, Error *error) {
    char *const out[] = {paths->model, paths->state, paths->temporary_model, paths->temporary_state};
    if (!path_check(dir, "run folder", error)) { return false; }
    for (int i = 0; i < 4; i++) {
        char name[64];
        checkpoint_name(name, i % 2 == 0 ? "model" : "state", step, i < 2 ? "" : TEMPORARY_SUFFIX);
        if (!path_join(out[i], dir, name, error)) { return false; }
    }
    return true;
}

// Returns the step in a name like state_00000020.bin (kind "state", suffix ""), -1 if the name has another form.
static inline int64_t checkpoint_step_of_name(const char *name, const char *kind, const char *suffix) {
    char same[64];
    const char *digits = strchr(name, '_');
    int64_t step = digits == NULL ? -1 : (int64_t)strtoll(digits + 1, NULL, 10);
    checkpoint_name(same, kind, step, suffix);
    return step >= 0 && step <= LARGEST_WHOLE && strcmp(name, same) == 0 ? step : -1;
}

// Returns the largest step below `before` among the names of this form in a folder. -1: there is none. -2: the folder
// is there but cannot be read, and errno says why.
static inline int64_t checkpoint_before(const char *dir, const char *kind, const char *suffix, int64_t before) {
    int64_t largest = -1;
    DIR *folder = opendir(dir);
    if (folder == NULL) { return errno == ENOENT ? -1 : -2; }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int64_t step = checkpoint_step_of_name(entry->d_name, kind, suffix);
        if (step < before) { largest = max_i64(largest, step); }
    }
    closedir(folder);
    return largest;
}

// ---- Values ----

// Refuses values that no run computes with: parameters and moments are finite, and the second moment, a mean of
// squares, is not negative. data: n values of an array, from its place `at` on. where: the file.
static inline bool checkpoint_check_values(const ModelConfig *config, int array, int64_t at, const float *data,
                                           int64_t n, const char *where, Error *error) {
    int64_t bad = first_outside(data, n, array == CHECKPOINT_ADAM_V ? 0.0f : -FLT_MAX);
    if (bad == n) { return true; }
    if (array == CHECKPOINT_PARAMS) { return model_fail_not_finite(config, at + bad, data[bad], where, error); }
    return fail(error, "%s: %s holds %g at element %lld; the file is damaged or its training diverged", where,
                checkpoint_array_names[array], (double)data[bad], (long long)(at + bad));
}

// ---- Opening ----

// Holds a checkpoint that is open for reading.
typedef struct CheckpointReader {
    StateFile state;
    InputFile model; // its path may be the temporary name
    ModelConfig config;
    OptimizerKind optimizer;
    bool skips_moments; // the caller reads the parameters only: another optimizer goes on with them
    CheckpointSums sums;
} CheckpointReader;

// Closes both files. Harmless after a failure of the functions below, and after checkpoint_read_end.
static inline void checkpoint_read_close(CheckpointReader *r) {
    input_close(&r->state.file);
    input_close(&r->model);
}

static inline bool checkpoint_verify_params(const CheckpointReader *r, Error *error) {
    uint64_t found;
    return input_checksum(&r->model, DATA_HEADER_BYTES, r->model.size - DATA_HEADER_BYTES, &found, error) &&
           state_check_sum(&r->state.table.records[CHECKPOINT_PARAMS], r->model.path, found, error);
}

// Opens a model and reads its config. The facts hold the hash of its header.
static inline bool checkpoint_try_model(CheckpointReader *r, const char *path, const StateHeader *header,
                                        Error *error) {
    BinFile bin;
    char expected[32] = "", found[32];
    if (!model_bin_open(&bin, path, &r->config, error)) { return false; }
    r->model = bin.file;
    snprintf(found, sizeof(found), "%llu", (unsigned long long)hash64(bin.header, sizeof(bin.header)));
    state_get_text(header, "model_header", expected, sizeof(expected));
    if (strcmp(found, expected) == 0) { return true; }
    input_close(&r->model);
    return fail(error, "%s: is damaged: its header is not the one its training state expects", path);
}

// Checks that the open state is of this step, and opens the model that belongs to it.
static inline bool checkpoint_open_model(CheckpointReader *r, const CheckpointPaths *paths, const StateHeader *header,
                                         int64_t step, Error *error) {
    Error ignored;
    if (!state_get_number(header, paths->state, "step", step, step, &step, error)) { return false; } // renamed
    if (checkpoint_try_model(r, paths->temporary_model, header, &ignored) && checkpoint_verify_params(r, &ignored)) {
        return true;
    }
    input_close(&r->model);
    return checkpoint_try_model(r, paths->model, header, error);
}

// Opens a checkpoint to be read in pieces, and reads its facts into header and its model's config. Verifies names,
// sizes and headers. config: the model must have this one; NULL: any. No file stays open after this or a following
// function fails.
static inline bool checkpoint_read_begin(CheckpointReader *r, const char *dir, int64_t step, const ModelConfig *config,
                                         StateHeader *header, Error *error) {
    CheckpointPaths paths;
    memset(&r->sums, 0, sizeof(r->sums));
    r->model.fd = -1;
    if (!checkpoint_paths(&paths, dir, step, error) || !state_open(&r->state, paths.state, header, error)) {
        return false;
    }
    r->optimizer = checkpoint_optimizer(header), r->skips_moments = false;
    bool ok = checkpoint_open_model(r, &paths, header, step, error) &&
              (config == NULL || model_configs_equal(config, &r->config) ||
               fail(error, "%s: holds a model of another shape", r->model.path));
    for (int a = 0; ok && a < CHECKPOINT_ARRAYS; a++) {
        ok = state_expect(&r->state, a, checkpoint_record(&r->config, r->optimizer, a), error);
    }
    if (!ok) { checkpoint_read_close(r); }
    return ok;
}

// ---- The newest good checkpoint ----

// What a checkpoint is for. A run that resumes verifies the arrays when it loads them. Whoever takes the model only
// needs its parameters verified first.
typedef enum { CHECKPOINT_TO_RESUME, CHECKPOINT_AS_MODEL } CheckpointUse;

typedef struct CheckpointFound {
    int64_t step;               // -1: the folder holds none; -2: it cannot be read
    char model[MAX_PATH_BYTES]; // the file with the weights; it may have its temporary name
    ModelConfig config;
    StateHeader header; // the facts
    Error passed;       // what is wrong with the newest checkpoint; empty: nothing, it was found
} CheckpointFound;

// Checks the checkpoint of one step for its use.
static inline bool checkpoint_look(CheckpointFound *found, const char *dir, int64_t step, CheckpointUse use,
                                   Error *error) {
    CheckpointReader r;
    found->step = step;
    if (!checkpoint_read_begin(&r, dir, step, NULL, &found->header, error)) { return false; }
    found->config = r.config;
    path_copy(found->model, r.model.path, strlen(r.model.path));
    bool ok = use == CHECKPOINT_TO_RESUME || checkpoint_verify_params(&r, error);
    checkpoint_read_close(&r);
    return ok;
}

// Finds the newest good checkpoint of a run's folder among the steps below `before` (INT64_MAX: of all). If there is
// none, the error says what is wrong with the newest one.
static inline bool checkpoint_newest(CheckpointFound *found, const char *dir, int64_t before, CheckpointUse use,
                                     Error *error) {
    Error problem;
    found->passed.text[0] = '\0';
    while ((before = checkpoint_before(dir, "state", "", before)) >= 0) {
        if (checkpoint_look(found, dir, before, use, &problem)) { return true; }
        if (found->passed.text[0] == '\0') { found->passed = problem; }
    }
    if (found->passed.text[0] != '\0') { return fail(error, "%s", found->passed.text); }
    found->step = before;
    if (before == -2) { return fail_system(error, dir, "read folder"); }
    return fail(error, "%s: this folder holds no checkpoint", dir);
}

// ---- Loading in pieces ----

// Reads what an array has of parameters first .. first + n - 1, without gaps, in chunks that stay in the cache until
// they are checked. No end of the range lies in a tensor that the array leaves out. The values are good only when
// checkpoint_read_end succeeds.
static inline bool checkpoint_read(CheckpointReader *r, int array, int64_t first, float *data, int64_t n,
                                   Error *error) {
    bool params = array == CHECKPOINT_PARAMS, ok = model_check_range(&r->config, first, n, r->state.file.path, error);
    const InputFile *file = params ? &r->model : &r->state.file;
    int64_t offset = params ? DATA_HEADER_BYTES : state_offset(&r->state.table, array);
    int64_t at = ok ? checkpoint_place(&r->config, r->optimizer, array, first) : 0;
    int64_t end = ok ? checkpoint_place(&r->config, r->optimizer, array, first + n) : 0;
    for (int64_t count; ok && at < end; at += count, data += count) {
        count = min_i64(end - at, SUM_CHUNK_BYTES / 4);
        ok = input_read(file, offset + 4 * at, data, 4 * count, error);
        if (!ok) { break; }
        r->sums.sums[array] += sum64(at, data, count);
        if (params) { model_zero_padding_range(data, &r->config, at, count); }
        ok = checkpoint_check_values(&r->config, array, at, data, count, file->path, error);
    }
    if (!ok) { checkpoint_read_close(r); }
    return ok;
}

// Reads the arrays of a CPU trainer.
static inline bool checkpoint_read_whole(CheckpointReader *r, float *const arrays[CHECKPOINT_ARRAYS], Error *error) {
    ParamPiece piece = PARAM_PIECE_BEGIN;
    while (param_next_piece(&r->config, r->optimizer, &piece)) {
        for (int a = 0; a < (r->skips_moments ? CHECKPOINT_ADAM_M : CHECKPOINT_ARRAYS); a++) {
            int64_t at = a == CHECKPOINT_ADAM_V ? piece.place_v : piece.place;
            if (at >= 0 && !checkpoint_read(r, a, piece.in_file, arrays[a] + at, piece.count, error)) { return false; }
        }
    }
    return true;
}

// Ends the reading. All processes together have read every element of the arrays once, and `all` holds their sums,
// added. Verifies the arrays, then reads and verifies the other sections. Their names and sizes must match the file.
static inline bool checkpoint_read_end(CheckpointReader *r, const CheckpointSums *all, const StateSection *sections,
                                       int count, Error *error) {
    bool ok = true;
    for (int a = 0; ok && a < (r->skips_moments ? CHECKPOINT_ADAM_M : CHECKPOINT_ARRAYS); a++) {
        const StateRecord *record = &r->state.table.records[a];
        const char *path = a == CHECKPOINT_PARAMS ? r->model.path : r->state.file.path;
        ok = state_check_sum(record, path, hash64_end(all->sums[a], record->bytes), error);
    }
    ok = ok && state_read_sections(&r->state, CHECKPOINT_ARRAYS, sections, count, error);
    checkpoint_read_close(r);
    return ok;
}

// ---- Cleaning up after a kill ----

// Ends a save or prune of one step that was killed. The model under the temporary name gets its own name if it belongs
// to the state, and is removed otherwise. It stays while the state or its model cannot be read.
static inline bool checkpoint_settle(const char *dir, int64_t step, const CheckpointPaths *paths, Error *error) {
    CheckpointReader r;
    StateHeader header;
    Error ignored;
    if (!path_exists(paths->temporary_model)) { return true; }
    if (!path_exists(paths->state)) { return files_remove(paths->temporary_model, error); }
    if (!checkpoint_read_begin(&r, dir, step, NULL, &header, &ignored)) { return true; }
    bool belongs = strcmp(r.model.path, paths->temporary_model) == 0;
    checkpoint_read_close(&r);
    if (!belongs) { return files_remove(paths->temporary_model, error); }
    if (rename(paths->temporary_model, paths->model) == 0) { return sync_parent(paths->model, error); }
    return fail_system(error, paths->temporary_model, "rename");
}

// Removes all leftovers of killed saves from a run folder, and nothing else. The caller holds the folder's lock.
static inline bool checkpoint_clean(const char *dir, Error *error) {
    static const char *const kinds[] = {"model", "state"};
    CheckpointPaths paths;
    for (int i = 0; i < 2; i++) {
        int64_t step = INT64_MAX;
        while ((step = checkpoint_before(dir, kinds[i], TEMPORARY_SUFFIX, step)) >= 0) {
            bool ok = checkpoint_paths(&paths, dir, step, error) && checkpoint_settle(dir, step, &paths, error) &&
                      files_remove(paths.temporary_state, error);
            if (!ok) { return false; }
        }
        if (step == -2) { return fail_system(error, dir, "read folder"); }
    }
    return path_join(paths.model, dir, CHECKPOINT_BEST_NAME TEMPORARY_SUFFIX, error) &&
           files_remove(paths.model, error);
}

// ---- Saving ----

typedef struct CheckpointWriter {
    CheckpointPaths paths;
    ModelConfig config;
    OptimizerKind optimizer;
    bool leader;
    int num_arrays; // CHECKPOINT_ARRAYS, or 1: the parameters alone, without a state
    StateHeader header;
    StateTable table; // CHECKPOINT_ARRAYS arrays, then the sections
    const StateSection *sections;
    AtomicFile model, state;
    CheckpointSums sums;
} CheckpointWriter;

static inline void checkpoint_write_init(CheckpointWriter *w) {
    atomic_init(&w->model);
    atomic_init(&w->state);
}

// Closes both files. The leader removes those that are not committed. Harmless after a failure and after a commit.
static inline void checkpoint_write_close(CheckpointWriter *w) {
    atomic_close(&w->state);
    atomic_close(&w->model);
}

// Lays out the state: adds the facts step and model_header, and makes the records.
static inline bool checkpoint_describe(CheckpointWriter *w, int64_t step, uint64_t model_header,
                                       const StateSection *sections, int count, Error *error) {
    state_add(&w->header, "step %lld\nmodel_header %llu\n", (long long)step, (unsigned long long)model_header);
    w->table.text_bytes = w->header.length, w->table.count = CHECKPOINT_ARRAYS + count;
    if (w->header.length < 0 || w->table.count > STATE_MAX_SECTIONS) {
        return fail(error, "%s: the facts or the %d sections do not fit into a state file", w->paths.state,
                    w->table.count);
    }
    w->sections = sections;
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        w->table.records[a] = checkpoint_record(&w->config, w->optimizer, a);
    }
    for (int i = 0; i < count; i++) {
        w->table.records[CHECKPOINT_ARRAYS + i] = state_record(sections[i].name, STATE_SECTION, sections[i].bytes);
    }
    return true;
}

// Returns about the bytes of a checkpoint, rather more, so that a run can look at the disk's free space.
static inline int64_t checkpoint_size(const ModelConfig *config, OptimizerKind optimizer, const StateSection *sections,
                                      int count) {
    int64_t bytes = DATA_HEADER_BYTES + STATE_TEXT_BYTES;
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { bytes += checkpoint_record(config, optimizer, a).bytes; }
    for (int i = 0; i < count; i++) { bytes += sections[i].bytes; }
    return bytes;
}

// Begins the file of the model, whose name is set. The leader creates it at its full size, and the others open it.
static inline bool checkpoint_begin_model(CheckpointWriter *w, const ModelConfig *config, bool leader, int num_arrays,
                                          Error *error) {
    int32_t start[DATA_HEADER_INTS];
    int64_t bytes = model_bin_bytes(config, MODEL_BIN_FP32);
    memset(&w->sums, 0, sizeof(w->sums));
    w->config = *config, w->leader = leader, w->num_arrays = num_arrays;
    model_bin_make_header(start, config, MODEL_BIN_FP32);
    return leader ? atomic_create(&w->model, w->paths.model, bytes, error) &&
                        atomic_write_at(&w->model, 0, start, DATA_HEADER_BYTES, error)
                  : atomic_join(&w->model, w->paths.model, bytes, error);
}

// Begins model_best.bin as checkpoint_write_begin begins a checkpoint.
static inline bool checkpoint_write_best(CheckpointWriter *w, const char *dir, const ModelConfig *config, bool leader,
                                         Error *error) {
    checkpoint_write_init(w);
    return path_join(w->paths.model, dir, CHECKPOINT_BEST_NAME, error) &&
           checkpoint_begin_model(w, config, leader, 1, error);
}

// Begins model_<step>.bin and state_<step>.bin in a folder. All processes give equal facts, and sections of equal names
// and sizes. The commit stores what the leader's sections then hold. After a failure of this function no file is open.
// When a following function fails, the caller calls checkpoint_write_close.
static inline bool checkpoint_write_begin(CheckpointWriter *w, const char *dir, int64_t step, const ModelConfig *config,
                                          const StateHeader *header, const StateSection *sections, int count,
                                          bool leader, Error *error) {
    int32_t start[DATA_HEADER_INTS];
    checkpoint_write_init(w);
    w->config = *config, w->header = *header;
    w->optimizer = checkpoint_optimizer(header);
    model_bin_make_header(start, config, MODEL_BIN_FP32);
    bool ok = checkpoint_paths(&w->paths, dir, step, error) &&
              checkpoint_describe(w, step, hash64(start, sizeof(start)), sections, count, error) &&
              (!leader || checkpoint_settle(dir, step, &w->paths, error)) &&
              checkpoint_begin_model(w, config, leader, CHECKPOINT_ARRAYS, error);
    const char *state = w->paths.state;
    int64_t bytes = ok ? state_offset(&w->table, w->table.count) : 0;
    ok = ok && (leader ? atomic_create(&w->state, state, bytes, error) : atomic_join(&w->state, state, bytes, error));
    if (!ok) { checkpoint_write_close(w); }
    return ok;
}

// Writes what an array has of parameters first .. first + n - 1, as checkpoint_read reads it. All processes together
// write every element once. Values that loading would refuse are refused here, too: the good checkpoints would be gone
// by then.
static inline bool checkpoint_write(CheckpointWriter *w, int array, int64_t first, const float *data, int64_t n,
                                    Error *error) {
    bool params = array == CHECKPOINT_PARAMS, ok = model_check_range(&w->config, first, n, w->paths.state, error);
    int64_t offset = params ? DATA_HEADER_BYTES : state_offset(&w->table, array);
    int64_t at = ok ? checkpoint_place(&w->config, w->optimizer, array, first) : 0;
    int64_t end = ok ? checkpoint_place(&w->config, w->optimizer, array, first + n) : 0;
    for (int64_t count; ok && at < end; at += count, data += count) {
        count = min_i64(end - at, SUM_CHUNK_BYTES / 4);
        ok = checkpoint_check_values(&w->config, array, at, data, count, "the model to be saved", error) &&
             atomic_write_at(params ? &w->model : &w->state, offset + 4 * at, data, 4 * count, error);
        if (ok) { w->sums.sums[array] += sum64(at, data, count); }
    }
    return ok;
}

// Writes the arrays of a CPU trainer.
static inline bool checkpoint_write_whole(CheckpointWriter *w, const float *const arrays[CHECKPOINT_ARRAYS],
                                          Error *error) {
    ParamPiece piece = PARAM_PIECE_BEGIN;
    while (param_next_piece(&w->config, w->optimizer, &piece)) {
        for (int a = 0; a < w->num_arrays; a++) {
            int64_t at = a == CHECKPOINT_ADAM_V ? piece.place_v : piece.place;
            if (at >= 0 && !checkpoint_write(w, a, piece.in_file, arrays[a] + at, piece.count, error)) { return false; }
        }
    }
    return true;
}

// Flushes what this process has written to the disk. The save ends here for all processes but the leader, which
// flushes its state in the commit.
static inline bool checkpoint_write_flush(CheckpointWriter *w, Error *error) {
    return atomic_flush(&w->model, error) && (w->leader || w->num_arrays == 1 || atomic_flush(&w->state, error));
}

// Writes the sections and the head of the state, and gives the files their names. The leader calls this when all
// processes have flushed. `all` holds the sums of all processes, added.
static inline bool checkpoint_write_commit(CheckpointWriter *w, const CheckpointSums *all, Error *error) {
    if (w->num_arrays == 1) { return atomic_commit(&w->model, error); }
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        w->table.records[a].checksum = hash64_end(all->sums[a], w->table.records[a].bytes);
    }
    bool ok = true;
    for (int i = CHECKPOINT_ARRAYS; ok && i < w->table.count; i++) {
        const StateSection *section = &w->sections[i - CHECKPOINT_ARRAYS];
        w->table.records[i].checksum = hash64(section->data, (size_t)section->bytes);
        ok = atomic_write_at(&w->state, state_offset(&w->table, i), section->data, section->bytes, error);
    }
    ok = ok && state_write_head(&w->state, &w->header, &w->table, error) && atomic_flush(&w->state, error);
    if (!ok || !atomic_place(&w->state, error)) { return false; }
    w->model.pending = false; // the state has its name: closing must not remove its model
    return sync_parent(w->state.path, error) && atomic_commit(&w->model, error);
}

// Removes one checkpoint. Its model first gets its temporary name, so that checkpoint_clean ends what a kill
// interrupts.
static inline void checkpoint_delete(const char *dir, int64_t step) {
    CheckpointPaths paths;
    Error ignored;
    if (!checkpoint_paths(&paths, dir, step, &ignored)) { return; }
    if (rename(paths.model, paths.temporary_model) != 0 && errno != ENOENT) { return; }
    if (files_remove(paths.state, &ignored)) { files_remove(paths.temporary_model, &ignored); }
}

// Removes all checkpoints of a folder, and its best model.
static inline void checkpoint_delete_all(const char *dir) {
    int64_t step = INT64_MAX;
    char best[MAX_PATH_BYTES];
    Error ignored;
    if (path_join(best, dir, CHECKPOINT_BEST_NAME, &ignored)) { files_remove(best, &ignored); }
    while ((step = checkpoint_before(dir, "state", "", step)) >= 0) { checkpoint_delete(dir, step); }
}

// Removes the checkpoints up to newest_step but the `keep` newest (0: all stay) and those of steps divisible by
// keep_major (0: none). Later steps are not touched. A file that cannot be removed stays.
static inline void checkpoint_prune(const char *dir, int64_t newest_step, int64_t keep, int64_t keep_major) {
    if (keep == 0) { return; }
    for (int64_t step = newest_step + 1; (step = checkpoint_before(dir, "state", "", step)) >= 0; keep--) {
        bool stays = keep > 0 || (keep_major > 0 && step % keep_major == 0);
        if (!stays) { checkpoint_delete(dir, step); }
    }
}

#endif // LLMC_CHECKPOINT_H
