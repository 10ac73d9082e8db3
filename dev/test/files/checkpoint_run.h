// Checkpoints whose every value tells which save they come from ("generation"), so that a mixture is recognised.
#ifndef CHECKPOINT_RUN_H
#define CHECKPOINT_RUN_H

#include "dev/test/files/one_process.h"
#include "llmc/files/checkpoint.h"

// The smallest model with a padding row: 90 parameters.
static inline GPT2Config tiny_config(void) {
    GPT2Config config = {2, 3, 4, 1, 1, 2}; // maxT, V, Vp, L, NH, C
    return config;
}

typedef struct {
    GPT2Config config;
    float *arrays[CHECKPOINT_ARRAYS];
    int64_t generation[1000];
    StateSection sections[3];
    StateHeader header;
} Run;

static inline void run_init(Run *run, GPT2Config config) {
    int64_t bytes = gpt2_num_params(&config) * (int64_t)sizeof(float);
    run->config = config;
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { run->arrays[a] = (float *)malloc((size_t)bytes); }
    const StateSection sections[3] = {{"adam_m", run->arrays[CHECKPOINT_ADAM_M], bytes},
                                      {"adam_v", run->arrays[CHECKPOINT_ADAM_V], bytes},
                                      {"generation", run->generation, (int64_t)sizeof(run->generation)}};
    memcpy(run->sections, sections, sizeof(sections));
}

static inline void run_free(Run *run) {
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { free(run->arrays[a]); }
}

// What element i of an array holds in this generation; in the padding of wte 0.
static inline float run_value(const Run *run, int array, int64_t i, int64_t generation) {
    int64_t C = run->config.channels;
    bool padding = i >= run->config.vocab_size * C && i < run->config.padded_vocab_size * C;
    return array == CHECKPOINT_PARAMS && padding ? 0.0f : (float)(4 * generation + array) + 0.5f * (float)(i % 7);
}

// Fills everything with what belongs to this generation.
static inline void run_fill(Run *run, int64_t generation) {
    int64_t n = gpt2_num_params(&run->config);
    for (int i = 0; i < 1000; i++) { run->generation[i] = generation; }
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        for (int64_t i = 0; i < n; i++) { run->arrays[a][i] = run_value(run, a, i, generation); }
    }
    state_init(&run->header);
    state_set_i64(&run->header, "generation", generation);
}

// Saves a checkpoint all of whose values tell its generation.
static inline bool run_save(Run *run, const char *dir, int64_t step, int64_t generation, Error *error) {
    run_fill(run, generation);
    return checkpoint_save(dir, step, &run->config, run->arrays[CHECKPOINT_PARAMS], &run->header, run->sections, 3,
                           error);
}

// The generation that everything in memory belongs to; -2 if its parts disagree.
static inline int64_t run_generation(const Run *run) {
    int64_t generation = -2, n = gpt2_num_params(&run->config);
    if (!state_get_i64(&run->header, "generation", &generation)) { return -2; }
    for (int i = 0; i < 1000; i++) {
        if (run->generation[i] != generation) { return -2; }
    }
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        for (int64_t i = 0; i < n; i++) {
            if (run->arrays[a][i] != run_value(run, a, i, generation)) { return -2; }
        }
    }
    return generation;
}

// Loads a checkpoint and returns its generation; -1 if it does not load, -2 if its parts disagree.
static inline int64_t run_load(Run *run, const char *dir, int64_t step, Error *error) {
    GPT2Config config;
    if (!checkpoint_load_header(dir, step, &config, &run->header, error) ||
        !checkpoint_load(dir, step, &config, run->arrays[CHECKPOINT_PARAMS], &run->header, run->sections, 3, error)) {
        return -1;
    }
    return run_generation(run);
}

static inline int count_files(const char *dir) {
    DIR *folder = opendir(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) { count += entry->d_name[0] != '.'; }
    closedir(folder);
    return count;
}

#endif // CHECKPOINT_RUN_H
