// What --init accepts: the name of a size, or a model from a file or folder, whatever its format.
#ifndef LLMC_MODEL_FILE_H
#define LLMC_MODEL_FILE_H

#include "checkpoint.h"
#include "files.h"
#include "gpt2.h"
#include "model_bin.h"
#include "safetensors.h"

typedef enum { MODEL_FROM_SIZE, MODEL_FROM_BIN, MODEL_FROM_SAFETENSORS } ModelFileKind;

typedef struct {
    ModelFileKind kind;
    char path[MAX_PATH_BYTES]; // of the file with the weights; empty for a size
    GPT2Config config;         // of a size: vocab_size and padded_vocab_size are 0, the caller sets them
    Error note;                // of a run folder: why a newer model was passed over; empty text if none was
} ModelFile;

// Finds the model to take from step `step` of a run folder: a checkpoint must verify, a model without a state must have
// a sound header.
static inline bool model_file_try_step(ModelFile *file, const char *dir, int64_t step, Error *error) {
    CheckpointPaths paths;
    int version;
    if (!checkpoint_paths(&paths, dir, step, error)) { return false; }
    const char *model = paths.model;
    if (path_exists(paths.state)) {
        StateHeader header;
        uint64_t checksum;
        if (!checkpoint_verify(dir, step, error) || !state_read_header(paths.state, &header, error) ||
            !checkpoint_find_model(&paths, &header, &model, &checksum, error)) {
            return false;
        }
    }
    path_copy(file->path, model, strlen(model));
    return model_bin_read_config(model, &file->config, &version, error);
}

// The newest good model_<step>.bin of a run folder.
static inline bool model_file_open_run(ModelFile *file, const char *dir, Error *error) {
    int64_t *steps;
    Error problem;
    int count = checkpoint_collect(dir, "model", ".bin", &steps);
    bool found = false;
    for (int i = 0; i < count && !found; i++) {
        found = model_file_try_step(file, dir, steps[i], &problem);
        if (!found && file->note.text[0] == '\0') { file->note = problem; }
    }
    free(steps);
    if (count < 0) { return fail_system(error, dir, "read folder"); }
    if (count == 0) {
        return fail(error, "%s: this folder holds no model: neither %s nor model_<step>.bin", dir,
                    SAFETENSORS_FILE_NAME);
    }
    if (!found) { *error = file->note; }
    return found;
}

// Finds out what `init` is and reads the config; the weights are left for model_file_read. `init` is a size (d12), a
// file .bin or .safetensors, or a folder with model.safetensors or with the models of a run (the newest good one).
static inline bool model_file_open(ModelFile *file, const char *init, Error *error) {
    memset(file, 0, sizeof(*file));
    file->kind = MODEL_FROM_SIZE;
    if (gpt2_config_from_size(&file->config, init)) { return true; }
    if (!path_check(init, "--init", error)) { return false; }
    bool folder = path_is_directory(init);
    file->kind = MODEL_FROM_BIN;
    path_copy(file->path, init, strlen(init));
    if (folder && !path_join(file->path, init, SAFETENSORS_FILE_NAME, error)) { return false; }
    if (folder && !path_exists(file->path)) { return model_file_open_run(file, init, error); }
    if (folder || ends_with(init, ".safetensors")) {
        file->kind = MODEL_FROM_SAFETENSORS;
        return safetensors_read_config(file->path, &file->config, error);
    }
    if (ends_with(init, ".bin")) {
        int version;
        return model_bin_read_config(file->path, &file->config, &version, error);
    }
    return fail(error, "--init %s: neither a size (%s) nor a file .bin or .safetensors nor a folder with a model", init,
                GPT2_SIZE_NAMES);
}

// Reads the weights of a model opened from a file into params, gpt2_num_params(&file->config) floats.
static inline bool model_file_read(const ModelFile *file, float *params, Error *error) {
    switch (file->kind) {
    case MODEL_FROM_BIN: return model_bin_read(file->path, &file->config, params, error);
    case MODEL_FROM_SAFETENSORS: return safetensors_read(file->path, &file->config, params, error);
    default: return fail(error, "--init: a size has no weights to read"); // a mistake of the caller
    }
}

#endif // LLMC_MODEL_FILE_H
