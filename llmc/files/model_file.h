// Opens what --init accepts: the name of a size, a model's .bin file, or the folder of a run.
#ifndef LLMC_MODEL_FILE_H
#define LLMC_MODEL_FILE_H

#include "llmc/base/input_file.h"
#include "llmc/files/checkpoint.h"
#include "llmc/model/params.h"
#include "llmc/files/model_bin.h"

typedef struct ModelFile {
    char path[MAX_PATH_BYTES]; // file with the weights; empty for a size
    ModelConfig config;        // for a size, vocab_size and padded_vocab_size are 0 and the caller sets them
    Error note;                // for a run folder, why a newer model was passed over; otherwise empty
} ModelFile;

// Refuses a model in Hugging Face's files, or a folder without a model. The program that converts is in Python.
static inline bool model_file_fail_published(const char *init, Error *error) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"};
    char folder[MAX_PATH_BYTES], path[MAX_PATH_BYTES];
    bool found = !path_is_directory(init);
    path_copy(folder, init, strlen(init));
    if (found) { path_parent(folder, init); }
    for (int i = 0; i < 3 && !found; i++) { found = path_join(path, folder, names[i], error) && path_exists(path); }
    if (!found) { return fail(error, "--init %s: this folder holds no checkpoint; give a model's .bin file", init); }
    return fail(error,
                "--init %.4000s: is a model of Hugging Face; `python3 dev/hf.py import %.4000s model.bin` makes a file "
                "for --init model.bin",
                init, folder);
}

// Opens the model of the newest good checkpoint of a run folder.
static inline bool model_file_open_run(ModelFile *file, const char *dir, Error *error) {
    CheckpointFound found;
    if (!checkpoint_newest(&found, dir, INT64_MAX, CHECKPOINT_AS_MODEL, error)) {
        return found.step == -1 && model_file_fail_published(dir, error);
    }
    path_copy(file->path, found.model, strlen(found.model));
    file->config = found.config, file->note = found.passed;
    return true;
}

// Identifies `init` and reads the config. model_file_read reads the weights. `init` is a size (d12, 124M), a .bin file,
// or a run folder (its newest good checkpoint).
static inline bool model_file_open(ModelFile *file, const char *init, Error *error) {
    memset(file, 0, sizeof(*file));
    if (model_config_from_size(&file->config, init)) { return true; }
    if (!path_check(init, "--init", error)) { return false; }
    if (ends_with(init, ".safetensors")) { return model_file_fail_published(init, error); }
    if (!path_exists(init) && !ends_with(init, ".bin")) {
        return fail(error,
                    "--init %s: neither a size (one of%s) nor a model's file nor the folder of a run; "
                    "`python3 dev/hf.py import NAME model.bin` makes a file of a model of the Hub",
                    init, MODEL_SIZE_NAMES);
    }
    bool folder = path_is_directory(init);
    path_copy(file->path, init, strlen(init));
    return folder ? model_file_open_run(file, init, error) : model_bin_read_config(file->path, &file->config, error);
}

// Checks a description that another process has sent.
static inline bool model_file_check(const ModelFile *file, Error *error) {
    bool ok = memchr(file->path, '\0', sizeof(file->path)) != NULL &&
              memchr(file->note.text, '\0', sizeof(file->note.text)) != NULL;
    if (!ok) { return fail(error, "rank 0 has not sent what --init is, but something else"); }
    return file->path[0] == '\0' || model_check_config(&file->config, "the model that rank 0 has sent", error);
}

// Reads elements first .. first + n - 1 of all weights (model_num_params(&file->config)) of a model opened from a file.
// NaN and infinity are refused. Padding rows become zero.
static inline bool model_file_read_range(const ModelFile *file, int64_t first, int64_t n, float *out, Error *error) {
    return model_bin_read_range(file->path, &file->config, first, n, out, error);
}

// Reads all weights into an array of a CPU trainer.
static inline bool model_file_read(const ModelFile *file, float *params, Error *error) {
    ParamPiece piece = PARAM_PIECE_BEGIN;
    while (param_next_piece(&file->config, OPTIMIZER_ADAMW, &piece)) {
        if (!model_file_read_range(file, piece.in_file, piece.count, params + piece.place, error)) { return false; }
    }
    return true;
}

// Computes a number that tells models apart without reading all of them: from config, file size and 64 samples of
// 4 KiB over the whole file. Processes compare it to see whether all were given one model.
static inline bool model_file_fingerprint(const ModelFile *file, uint64_t *fingerprint, Error *error) {
    enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };
    uint8_t sample[SAMPLE_BYTES];
    InputFile input;
    bool ok = true;
    *fingerprint = hash64(&file->config, sizeof(file->config));
    if (file->path[0] == '\0') { return true; }
    if (!input_open(&input, file->path, error)) { return false; }
    *fingerprint = hash64_join(*fingerprint, &input.size, sizeof(input.size));
    int64_t bytes = min_i64(SAMPLE_BYTES, input.size), space = input.size - bytes;
    for (int64_t i = 0; ok && i < SAMPLES; i++) {
        ok = input_read(&input, space * i / (SAMPLES - 1), sample, bytes, error);
        if (ok) { *fingerprint = hash64_join(*fingerprint, sample, (size_t)bytes); }
    }
    input_close(&input);
    return ok;
}

#endif // LLMC_MODEL_FILE_H
