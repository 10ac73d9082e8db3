// Checkpoints whose every value tells which save they come from ("generation"), so that a mixture is recognised.
#ifndef CHECKPOINT_RUN_H
#define CHECKPOINT_RUN_H

#include "llmc/files/checkpoint.h"

// The smallest model with a padding row: 90 parameters.
static inline ModelConfig tiny_config(void) {
    ModelConfig config = GPT2_CONFIG(2, 3, 4, 1, 1, 2); // maxT, V, Vp, L, NH, C
    return config;
}

enum { RUN_GENERATIONS = 100, RUN_PIECES = 11, RUN_READERS = 3, RUN_WRITERS = 5 };

typedef struct {
    ModelConfig config;
    OptimizerKind optimizer;          // OPTIMIZER_ADAMW after run_init. The facts then do not say it, as in old states
    float *arrays[CHECKPOINT_ARRAYS]; // with room for all parameters
    int64_t generation[RUN_GENERATIONS];
    StateSection section; // the one behind the arrays: generation
    StateHeader header;
} Run;

// Gives a run, which is zero or another model's, room for this model.
static inline void run_init(Run *run, ModelConfig config) {
    size_t bytes = (size_t)model_num_params(&config) * sizeof(float);
    run->config = config, run->optimizer = OPTIMIZER_ADAMW;
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        free(run->arrays[a]);
        run->arrays[a] = (float *)malloc(bytes);
    }
    run->section.name = "generation";
    run->section.data = run->generation;
    run->section.bytes = (int64_t)sizeof(run->generation);
}

// Tells whether an array has the element of parameter i.
static inline bool run_has(const Run *run, int array, int64_t i) {
    if (array != CHECKPOINT_ADAM_V || run->optimizer == OPTIMIZER_ADAMW) { return true; }
    int tensor = 0;
    while (param_offset(&run->config, tensor + 1) <= i) { tensor++; }
    return param_specs[tensor].muon == 0;
}

// Skips the parameters from `first` on that an array leaves out. Returns the first one that it has, and writes the end
// of the elements that follow one another in the array. `last`: the most of either.
static inline int64_t run_next(const Run *run, int array, int64_t first, int64_t last, int64_t *end) {
    while (first < last && !run_has(run, array, first)) { first++; }
    for (*end = first; *end < last && run_has(run, array, *end);) { ++*end; }
    return first;
}

// What element i of an array holds in this generation; in the padding of wte 0.
static inline float run_value(const Run *run, int array, int64_t i, int64_t generation) {
    int64_t C = run->config.channels;
    bool padding = i >= run->config.vocab_size * C && i < run->config.padded_vocab_size * C;
    return array == CHECKPOINT_PARAMS && padding ? 0.0f : (float)(4 * generation + array) + 0.5f * (float)(i % 7);
}

// Fills everything with what belongs to this generation.
static inline void run_fill(Run *run, int64_t generation) {
    int64_t n = model_num_params(&run->config);
    for (int i = 0; i < RUN_GENERATIONS; i++) { run->generation[i] = generation; }
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        for (int64_t i = 0; i < n; i++) { run->arrays[a][i] = run_value(run, a, i, generation); }
    }
    state_init(&run->header);
    state_add(&run->header, "generation %lld\n", (long long)generation);
    if (run->optimizer == OPTIMIZER_MUON) { state_add(&run->header, "--optimizer muon\n"); }
}

// The generation that everything in memory belongs to; -2 if its parts disagree.
static inline int64_t run_generation(const Run *run) {
    int64_t generation, n = model_num_params(&run->config);
    Error ignored;
    if (!state_get_number(&run->header, "", "generation", 0, LARGEST_WHOLE, &generation, &ignored)) { return -2; }
    for (int i = 0; i < RUN_GENERATIONS; i++) {
        if (run->generation[i] != generation) { return -2; }
    }
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        for (int64_t i = 0; i < n; i++) {
            if (run_has(run, a, i) && run->arrays[a][i] != run_value(run, a, i, generation)) { return -2; }
        }
    }
    return generation;
}

// ---- Saving ----

static inline bool run_write_begin(const Run *run, CheckpointWriter *w, const char *dir, int64_t step, bool is_leader,
                                   Error *error) {
    return checkpoint_write_begin(w, dir, step, &run->config, &run->header, &run->section, 1, is_leader, error);
}

// Writes a writer's pieces of all arrays, dealt out like cards. One writer alone writes whole arrays.
static inline bool run_write_arrays(const Run *run, CheckpointWriter *w, int rank, int size, Error *error) {
    int pieces = 4 * size - 3;
    int64_t n = model_num_params(&run->config), piece = n / pieces + 1; // which divides nothing
    for (int j = rank; j < CHECKPOINT_ARRAYS * pieces; j += size) {
        int array = j / pieces;
        int64_t first = j % pieces * piece, last = min_i64(first + piece, n);
        for (int64_t end; (first = run_next(run, array, first, last, &end)) < last; first = end) {
            if (!checkpoint_write(w, array, first, run->arrays[array] + first, end - first, error)) { return false; }
        }
    }
    return true;
}

// Saves what is in memory, by several writers. The first one leads.
static inline bool run_write(const Run *run, const char *dir, int size, int64_t step, Error *error) {
    static CheckpointWriter writers[RUN_WRITERS];
    CheckpointSums all = {{0, 0, 0}};
    bool ok = true;
    for (int i = 0; ok && i < size; i++) { ok = run_write_begin(run, &writers[i], dir, step, i == 0, error); }
    for (int i = size - 1; ok && i >= 0; i--) {
        ok = run_write_arrays(run, &writers[i], i, size, error) && checkpoint_write_flush(&writers[i], error);
        for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { all.sums[a] += writers[i].sums.sums[a]; }
        if (i > 0) { checkpoint_write_close(&writers[i]); }
    }
    ok = ok && checkpoint_write_commit(&writers[0], &all, error);
    if (!ok) { checkpoint_write_close(&writers[0]); }
    return ok;
}

// Saves a checkpoint all of whose values tell its generation.
static inline bool run_save(Run *run, const char *dir, int64_t step, int64_t generation, Error *error) {
    run_fill(run, generation);
    return run_write(run, dir, 1, step, error);
}

// ---- Loading ----

static inline bool run_read_begin(Run *run, CheckpointReader *r, const char *dir, int64_t step, Error *error) {
    return checkpoint_read_begin(r, dir, step, &run->config, &run->header, error);
}

// Adds the sums of several readers, and ends their reading.
static inline bool run_read_end(Run *run, CheckpointReader *readers, int count, Error *error) {
    CheckpointSums all = {{0, 0, 0}};
    for (int i = 0; i < count; i++) {
        for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { all.sums[a] += readers[i].sums.sums[a]; }
    }
    bool ok = true;
    for (int i = 0; i < count; i++) { ok = checkpoint_read_end(&readers[i], &all, &run->section, 1, error) && ok; }
    return ok;
}

// Loads a checkpoint as several processes do, each its pieces. Returns its generation; -1 if it does not load, -2 if
// its parts disagree.
static inline int64_t run_load(Run *run, const char *dir, int64_t step, Error *error) {
    static CheckpointReader readers[RUN_READERS];
    int64_t n = model_num_params(&run->config), piece = n / RUN_PIECES + 1;
    bool ok = true;
    for (int i = 0; i < RUN_READERS; i++) { readers[i].model.fd = readers[i].state.file.fd = -1; }
    for (int i = 0; ok && i < RUN_READERS; i++) { ok = run_read_begin(run, &readers[i], dir, step, error); }
    for (int j = 0; ok && j < CHECKPOINT_ARRAYS * RUN_PIECES; j++) {
        int array = j / RUN_PIECES;
        int64_t first = j % RUN_PIECES * piece, last = min_i64(first + piece, n);
        for (int64_t end; ok && (first = run_next(run, array, first, last, &end)) < last; first = end) {
            float *data = run->arrays[array] + first;
            ok = checkpoint_read(&readers[j % RUN_READERS], array, first, data, end - first, error);
        }
    }
    if (ok) { return run_read_end(run, readers, RUN_READERS, error) ? run_generation(run) : -1; }
    for (int i = 0; i < RUN_READERS; i++) { checkpoint_read_close(&readers[i]); }
    return -1;
}

static inline bool checkpoint_verify(const char *dir, int64_t step, Error *error) {
    static CheckpointFound found;
    return checkpoint_look(&found, dir, step, CHECKPOINT_AS_MODEL, error);
}

// Writes the steps of up to max states in a folder, newest first, and returns their number.
static inline int list_steps(const char *dir, int64_t *steps, int max) {
    int count = 0;
    int64_t step = INT64_MAX;
    while (count < max && (step = checkpoint_before(dir, "state", "", step)) >= 0) { steps[count++] = step; }
    return count;
}

static inline int count_files(const char *dir) {
    DIR *folder = opendir(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) { count += entry->d_name[0] != '.'; }
    closedir(folder);
    return count;
}

#endif // CHECKPOINT_RUN_H
