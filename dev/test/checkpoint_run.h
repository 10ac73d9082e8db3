// Checkpoints whose every value tells which save they come from ("generation"), so that a mixture is recognised.
#ifndef CHECKPOINT_RUN_H
#define CHECKPOINT_RUN_H

#include "llmc/checkpoint.h"

// The smallest model with a padding row: 90 parameters.
static inline GPT2Config tiny_config(void) {
    GPT2Config config = {2, 3, 4, 1, 1, 2}; // maxT, V, Vp, L, NH, C
    return config;
}

typedef struct {
    GPT2Config config;
    float *params;
    int64_t generation[1000];
    StateSection section;
    StateHeader header;
} Run;

static inline void run_init(Run *run, GPT2Config config) {
    run->config = config;
    run->params = (float *)malloc((size_t)gpt2_num_params(&config) * sizeof(float));
    run->section.name = "generation";
    run->section.data = run->generation;
    run->section.bytes = (int64_t)sizeof(run->generation);
}

// Saves a checkpoint all of whose values tell its generation.
static inline bool run_save(Run *run, const char *dir, int64_t step, int64_t generation, Error *error) {
    for (int i = 0; i < 1000; i++) { run->generation[i] = generation; }
    int64_t n = gpt2_num_params(&run->config);
    for (int64_t i = 0; i < n; i++) { run->params[i] = (float)generation; }
    model_zero_padding(run->params, &run->config);
    state_init(&run->header);
    state_set_i64(&run->header, "generation", generation);
    return checkpoint_save(dir, step, &run->config, run->params, &run->header, &run->section, 1, error);
}

// Loads a checkpoint and returns its generation; -1 if it does not load, -2 if its parts disagree.
static inline int64_t run_load(Run *run, const char *dir, int64_t step, Error *error) {
    GPT2Config config;
    int64_t generation = -2;
    if (!checkpoint_load_header(dir, step, &config, &run->header, error)) { return -1; }
    if (!checkpoint_load(dir, step, &config, run->params, &run->header, &run->section, 1, error)) { return -1; }
    if (!state_get_i64(&run->header, "generation", &generation)) { return -2; }
    for (int i = 0; i < 1000; i++) {
        if (run->generation[i] != generation) { return -2; }
    }
    int64_t padding = (int64_t)config.vocab_size * config.channels;
    int64_t after = (int64_t)config.padded_vocab_size * config.channels;
    for (int64_t i = 0; i < gpt2_num_params(&config); i++) {
        float want = i >= padding && i < after ? 0.0f : (float)generation;
        if (run->params[i] != want) { return -2; }
    }
    return generation;
}

static inline int count_files(const char *dir) {
    DIR *folder = opendir(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) { count += entry->d_name[0] != '.'; }
    closedir(folder);
    return count;
}

#endif // CHECKPOINT_RUN_H
