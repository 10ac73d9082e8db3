// Writes a model as a whole. The trainers write and read it in pieces.
#ifndef WHOLE_MODEL_H
#define WHOLE_MODEL_H

#include "llmc/base/files.h"
#include "llmc/files/model_bin.h"

// Writes params (model_num_params(config) floats) as a version 3 file, complete or not at all. (A checkpoint's model:
// checkpoint.h.)
static inline bool model_bin_write(const char *path, const ModelConfig *config, const float *params, Error *error) {
    int32_t header[DATA_HEADER_INTS];
    AtomicFile file;
    model_bin_make_header(header, config, MODEL_BIN_FP32);
    return atomic_open(&file, path, 0666, error) && atomic_write(&file, header, DATA_HEADER_BYTES, error) &&
           atomic_write(&file, params, model_num_params(config) * (int64_t)sizeof(float), error) &&
           atomic_commit(&file, error);
}

#endif // WHOLE_MODEL_H
