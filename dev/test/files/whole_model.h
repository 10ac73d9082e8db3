// Models, read and written as a whole. The trainers read them in pieces.
#ifndef WHOLE_MODEL_H
#define WHOLE_MODEL_H

#include "llmc/files/model_bin.h"
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
    Text text = {NULL, 0, 0, false};
    if (!make_directories(dir, error) || !path_join(model_path, dir, SAFETENSORS_FILE_NAME, error) ||
        !path_join(config_path, dir, SAFETENSORS_CONFIG_NAME, error) ||
        !safetensors_write_pending(&model, model_path, config, params, error)) {
        return false;
    }
    safetensors_add_config(&text, config, config->max_seq_len, config->vocab_size - 1);
    bool ok = atomic_open(&json, config_path, error) && atomic_write(&json, text.data, (int64_t)text.used, error) &&
              atomic_commit(&json, error) && atomic_commit(&model, error);
    text_free(&text);
    if (!ok) {
        atomic_abort(&json);
        atomic_abort(&model);
    }
    return ok;
}

#endif // WHOLE_MODEL_H
