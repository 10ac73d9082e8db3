// Opens what --init accepts: the name of a size, or a model in a file or folder of any supported format.
#ifndef LLMC_MODEL_FILE_H
#define LLMC_MODEL_FILE_H

#include "llmc/files/checkpoint.h"
#include "llmc/base/files.h"
#include "llmc/model/gpt2.h"
#include "llmc/files/model_bin.h"
#include "llmc/files/safetensors.h"

typedef enum { MODEL_FROM_SIZE, MODEL_FROM_BIN, MODEL_FROM_SAFETENSORS } ModelFileKind;

typedef struct ModelFile {
    ModelFileKind kind;
    char path[MAX_PATH_BYTES]; // file with the weights; empty for a size
    GPT2Config config;         // for a size, vocab_size and padded_vocab_size are 0 and the caller sets them
    int64_t trained_positions; // as its checkpoint or our export says; 0: the whole context
    Error note;                // for a run folder, why a newer model was passed over; otherwise empty
} ModelFile;

// Finds the model of step `step` in a run folder. A checkpoint must verify. A model without a state needs a valid
// header.
static inline bool model_file_try_step(ModelFile *file, const char *dir, int64_t step, Error *error) {
    CheckpointPaths paths;
    int version;
    if (!checkpoint_paths(&paths, dir, step, error)) { return false; }
    path_copy(file->path, paths.model, strlen(paths.model));
    if (path_exists(paths.state) && !checkpoint_verify_model(dir, step, file->path, error)) { return false; }
    return model_bin_read_config(file->path, &file->config, &version, error);
}

// Explains how to convert Hugging Face models whose form is not read.
static inline bool model_file_fail_empty(const char *dir, Error *error) {
    static const char *const others[] = {"model.safetensors.index.json", "pytorch_model.bin"};
    char path[MAX_PATH_BYTES];
    for (int i = 0; i < 2; i++) {
        if (!path_join(path, dir, others[i], error)) { return false; }
        if (!path_exists(path)) { continue; }
        return fail(
            error, "%s: %s; load it with transformers and save it as one %s (save_pretrained, max_shard_size='1TB')",
            path, i == 0 ? "the model is in several files" : "is in PyTorch's own format", SAFETENSORS_FILE_NAME);
    }
    return fail(error, "%s: this folder holds no model: neither %s nor model_<step>.bin", dir, SAFETENSORS_FILE_NAME);
}

// Opens the newest good model_<step>.bin of a run folder.
static inline bool model_file_open_run(ModelFile *file, const char *dir, Error *error) {
    int64_t *steps, newest = -1;
    Error problem;
    int count = checkpoint_collect(dir, "model", "", &steps);
    // A kill may have left the newest model under its temporary name. Its state finds it there.
    checkpoint_list(dir, "state", &newest, 1);
    bool found = newest > (count > 0 ? steps[0] : -1) && model_file_try_step(file, dir, newest, &problem);
    for (int i = 0; i < count && !found; i++) {
        found = model_file_try_step(file, dir, steps[i], &problem);
        if (!found && file->note.text[0] == '\0') { file->note = problem; }
    }
    free(steps);
    if (found) { return true; }
    if (count < 0) { return fail_system(error, dir, "read folder"); }
    if (count == 0) { return model_file_fail_empty(dir, error); }
    *error = file->note;
    return false;
}

// Says how to get released weights.
static inline bool model_file_fail_release(const GPT2Size *release, Error *error) {
    return fail(error,
                "--init %s: its weights are not in %s; `python3 dev/data/gpt2.py %s` fetches them, --init %s is a new "
                "model of this size",
                release->release, release->folder, release->release, release->millions);
}

// Returns the trained positions of a checkpoint's model, from the state beside it. 0: the whole context.
static inline int64_t model_file_trained_positions(const char *model) {
    char dir[MAX_PATH_BYTES];
    int64_t step = checkpoint_step_of_name(path_name(model), "model", "");
    GPT2Config config;
    StateHeader header;
    Error ignored;
    if (step < 0) { return 0; }
    path_parent(dir, model);
    bool ok = checkpoint_load_header(dir, step, &config, &header, &ignored);
    return ok ? checkpoint_trained_positions(&header, &config) : 0;
}

// Identifies `init` and reads the config. model_file_read reads the weights. `init` is a size (d12, 124M), a file .bin
// or .safetensors, a folder with model.safetensors, or a run folder (its newest good model).
static inline bool model_file_open(ModelFile *file, const char *init, Error *error) {
    memset(file, 0, sizeof(*file));
    file->kind = MODEL_FROM_SIZE;
    if (gpt2_config_from_size(&file->config, init)) { return true; }
    if (!path_check(init, "--init", error)) { return false; }
    const GPT2Size *release = gpt2_find_release(init);
    bool folder = path_is_directory(init);
    file->kind = MODEL_FROM_BIN;
    path_copy(file->path, init, strlen(init));
    if (folder && !path_join(file->path, init, SAFETENSORS_FILE_NAME, error)) { return false; }
    if (folder && !path_exists(file->path)) {
        bool unfinished = strcmp(init, release != NULL ? release->folder : "") == 0; // gpt2.py was stopped
        bool ok = unfinished ? model_file_fail_release(release, error) : model_file_open_run(file, init, error);
        file->trained_positions = ok ? model_file_trained_positions(file->path) : 0;
        return ok;
    }
    if (folder || ends_with(init, ".safetensors")) {
        file->kind = MODEL_FROM_SAFETENSORS;
        bool ok = safetensors_read_config(file->path, &file->config, error);
        file->trained_positions = ok ? safetensors_trained_positions(file->path, &file->config) : 0;
        return ok;
    }
    if (path_exists(init) || ends_with(init, ".bin")) {
        int version;
        file->trained_positions = model_file_trained_positions(file->path);
        return model_bin_read_config(file->path, &file->config, &version, error);
    }
    if (release != NULL) { return model_file_fail_release(release, error); }
    return fail(error, "--init %s: neither a size (one of%s) nor a model's file nor a folder with a model", init,
                GPT2_SIZE_NAMES);
}

// Checks a description that another process has sent.
static inline bool model_file_check(const ModelFile *file, Error *error) {
    int kind;
    memcpy(&kind, &file->kind, sizeof(kind));
    bool ok = kind >= MODEL_FROM_SIZE && kind <= MODEL_FROM_SAFETENSORS && file->trained_positions >= 0 &&
              memchr(file->path, '\0', sizeof(file->path)) != NULL &&
              memchr(file->note.text, '\0', sizeof(file->note.text)) != NULL;
    if (!ok) { return fail(error, "rank 0 has not sent what --init is, but something else"); }
    return kind == MODEL_FROM_SIZE || gpt2_check_config(&file->config, "the model that rank 0 has sent", error);
}

// Reads elements first .. first + n - 1 of all weights (gpt2_num_params(&file->config)) of a model opened from a file,
// in our order and layout whatever the file's. NaN and infinity are refused. Padding rows of wte become zero. Takes 4
// MiB for staging.
static inline bool model_file_read_range(const ModelFile *file, int64_t first, int64_t n, float *out, Error *error) {
    switch (file->kind) {
    case MODEL_FROM_BIN: return model_bin_read_range(file->path, &file->config, first, n, out, error);
    case MODEL_FROM_SAFETENSORS: return safetensors_read_range(file->path, &file->config, first, n, out, error);
    default: return fail(error, "--init: a size has no weights to read"); // a mistake of the caller
    }
}

// Reads all weights into params, gpt2_num_params(&file->config) floats.
static inline bool model_file_read(const ModelFile *file, float *params, Error *error) {
    return model_file_read_range(file, 0, gpt2_num_params(&file->config), params, error);
}

// Computes a number that tells models apart without reading all of them: from kind, config, file size and 64 samples of
// 4 KiB over the whole file. Processes compare it to see whether all were given one model.
static inline bool model_file_fingerprint(const ModelFile *file, uint64_t *fingerprint, Error *error) {
    enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };
    uint8_t sample[SAMPLE_BYTES];
    uint64_t hash;
    InputFile input;
    int32_t kind = (int32_t)file->kind;
    bool ok = true;
    hash = hash64_join(hash64(&kind, sizeof(kind)), &file->config, sizeof(file->config));
    if (file->kind != MODEL_FROM_SIZE) {
        if (!input_open(&input, file->path, error)) { return false; }
        hash = hash64_join(hash, &input.size, sizeof(input.size));
        int64_t bytes = min_i64(SAMPLE_BYTES, input.size), space = input.size - bytes;
        for (int64_t i = 0; ok && i < SAMPLES; i++) {
            int64_t offset = i * (space / (SAMPLES - 1)) + i * (space % (SAMPLES - 1)) / (SAMPLES - 1);
            ok = input_read(&input, offset, sample, bytes, error);
            if (ok) { hash = hash64_join(hash, sample, (size_t)bytes); }
        }
        input_close(&input);
    }
    *fingerprint = hash;
    return ok;
}

#endif // LLMC_MODEL_FILE_H
