// Models and checkpoints, read and written as a whole by one process. The trainers read and write them in pieces.
#ifndef TEST_ONE_PROCESS_H
#define TEST_ONE_PROCESS_H

#include "llmc/files/checkpoint.h"
#include "llmc/files/safetensors.h"

static inline void model_zero_padding(float *params, const GPT2Config *config) {
    model_zero_padding_range(params, config, 0, gpt2_num_params(config));
}

// Reads all weights into params, gpt2_num_params(config) floats.
static inline bool model_bin_read(const char *path, const GPT2Config *config, float *params, Error *error) {
    return model_bin_read_range(path, config, 0, gpt2_num_params(config), params, error);
}

// Writes params (gpt2_num_params(config) floats) as a version 3 file, complete or not at all. (A checkpoint's model:
// checkpoint.h.)
static inline bool model_bin_write(const char *path, const GPT2Config *config, const float *params, Error *error) {
    int32_t header[DATA_HEADER_INTS];
    AtomicFile file;
    model_bin_make_header(header, config, MODEL_BIN_FP32);
    return atomic_open(&file, path, error) && atomic_write(&file, header, DATA_HEADER_BYTES, error) &&
           atomic_write(&file, params, gpt2_num_params(config) * (int64_t)sizeof(float), error) &&
           atomic_commit(&file, error);
}

// Reads all weights into params, gpt2_num_params(config) floats.
static inline bool safetensors_read(const char *path, const GPT2Config *config, float *params, Error *error) {
    return safetensors_read_range(path, config, 0, gpt2_num_params(config), params, error);
}

// Writes dir/model.safetensors (float32, wte without its padding rows) and dir/config.json as Hugging Face transformers
// reads them, with the last token as end-of-text; the folder is created. Neither file is there half-written. What
// --export writes: hf_export.
static inline bool safetensors_write(const char *dir, const GPT2Config *config, const float *params, Error *error) {
    char model_path[MAX_PATH_BYTES], config_path[MAX_PATH_BYTES];
    AtomicFile model, json;
    if (!make_directories(dir, error) || !path_join(model_path, dir, SAFETENSORS_FILE_NAME, error) ||
        !path_join(config_path, dir, SAFETENSORS_CONFIG_NAME, error) ||
        !safetensors_write_pending(&model, model_path, config, params, error)) {
        return false;
    }
    bool ok = atomic_open(&json, config_path, error) &&
              safetensors_write_config_json(&json, config, config->vocab_size - 1, error) &&
              atomic_commit(&json, error) && atomic_commit(&model, error);
    if (!ok) {
        atomic_abort(&json);
        atomic_abort(&model);
    }
    return ok;
}

static inline bool checkpoint_verify(const char *dir, int64_t step, Error *error) {
    char model[MAX_PATH_BYTES];
    return checkpoint_verify_model(dir, step, model, error);
}

// Finds the arrays among the sections of checkpoint_save and checkpoint_load: the first two are adam_m and adam_v.
static inline bool checkpoint_take_arrays(const GPT2Config *config, float *params, const StateSection *sections,
                                          int count, float *arrays[CHECKPOINT_ARRAYS], Error *error) {
    int64_t bytes = gpt2_num_params(config) * (int64_t)sizeof(float);
    arrays[CHECKPOINT_PARAMS] = params;
    for (int a = 1; a < CHECKPOINT_ARRAYS; a++) {
        const char *name = checkpoint_array_names[a];
        if (count < a || strcmp(sections[a - 1].name, name) != 0 || sections[a - 1].bytes != bytes) {
            return fail(error, "checkpoint: section %d is not %s of %lld bytes", a - 1, name, (long long)bytes);
        } // a mistake of the caller
        arrays[a] = (float *)sections[a - 1].data;
    }
    return true;
}

// Loads a checkpoint in one process: params (gpt2_num_params(config) floats), facts, and the sections: adam_m and
// adam_v (as long as params), then those that checkpoint_save was given. Every byte is verified; after a failure params
// and sections hold nothing of use.
static inline bool checkpoint_load(const char *dir, int64_t step, const GPT2Config *config, float *params,
                                   StateHeader *header, const StateSection *sections, int count, Error *error) {
    CheckpointReader r;
    float *arrays[CHECKPOINT_ARRAYS];
    if (!checkpoint_take_arrays(config, params, sections, count, arrays, error) ||
        !checkpoint_read_begin(&r, dir, step, config, header, error)) {
        return false;
    }
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        if (!checkpoint_read(&r, a, 0, arrays[a], gpt2_num_params(config), error)) { return false; }
    }
    const int taken = CHECKPOINT_ARRAYS - 1;
    return checkpoint_read_end(&r, &r.sums, sections + taken, count - taken, error);
}

// Finds the newest checkpoint that verifies. false if there is none. *problem says what was wrong with the newest one
// that had to be passed over; its text is empty when none had to.
static inline bool checkpoint_find_good(const char *dir, int64_t *step, Error *problem) {
    int64_t *steps;
    int count = checkpoint_collect(dir, "state", "", &steps);
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

// Saves a checkpoint from one process: params (gpt2_num_params(config) floats), facts, and the sections: adam_m and
// adam_v (as long as params), then any others. A failure (a full disk) and a kill at any moment leave what was there
// before usable.
static inline bool checkpoint_save(const char *dir, int64_t step, const GPT2Config *config, const float *params,
                                   const StateHeader *header, const StateSection *sections, int count, Error *error) {
    CheckpointWriter w;
    float *arrays[CHECKPOINT_ARRAYS];
    const int taken = CHECKPOINT_ARRAYS - 1;
    if (!checkpoint_take_arrays(config, (float *)params, sections, count, arrays, error) ||
        !checkpoint_write_begin(&w, dir, step, config, header, sections + taken, count - taken, true, error)) {
        return false;
    }
    bool ok = true;
    for (int a = 0; ok && a < CHECKPOINT_ARRAYS; a++) {
        ok = checkpoint_write(&w, a, 0, arrays[a], gpt2_num_params(config), error);
    }
    ok = ok && checkpoint_write_flush(&w, error) && checkpoint_write_commit(&w, &w.sums, error);
    if (!ok) { checkpoint_write_abort(&w); }
    return ok;
}

#endif // TEST_ONE_PROCESS_H
