// Model weights in llm.c's .bin format: a header of 256 int32, then the tensors in the order of the parameter table.
//
// header: [0] magic, [1] version (3: float32, 5: bfloat16), from [2] on the first MODEL_STORED_FIELDS fields of the
// configuration (floats as their bits), [8] MODEL_VARIANT, which is 0 for GPT-2, the last two the
// hash of the tokenizer, the rest 0.
// All fields are checked against the exact file size before any tensor is read or memory is allocated.
#ifndef LLMC_MODEL_BIN_H
#define LLMC_MODEL_BIN_H

#include <float.h>

#include "llmc/base/input_file.h"
#include "llmc/model/params.h"

enum { MODEL_BIN_FP32 = 3, MODEL_BIN_BF16 = 5 };
enum { MODEL_BIN_CONFIG = 2, MODEL_BIN_VARIANT = 8 }; // places in a header

// ---- Floats ----

// bfloat16 is the upper half of a float.
static inline float float_from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// Returns true for all values but NaN and the infinities. It tests the bits, so no compiler option can optimise it
// away.
static inline bool float_is_finite(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (bits & 0x7f800000) != 0x7f800000;
}

// Returns the index of the first value that is not finite or, with least 0, is negative. n: there is none. least: 0, or
// -FLT_MAX for any finite value.
static inline int64_t first_outside(const float *values, int64_t n, float least) {
    enum { BLOCK = 4096 }; // the inner loop has no branch, so compilers vectorise it
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t end = min_i64(start + BLOCK, n);
        int bad = 0;
        for (int64_t i = start; i < end; i++) { bad |= !float_is_finite(values[i]) | (values[i] < least); }
        for (int64_t i = start; bad && i < end; i++) {
            if (!float_is_finite(values[i]) || values[i] < least) { return i; }
        }
    }
    return n;
}

// Reads elements first .. first + n - 1 behind the header as floats. The conversion is exact.
static inline bool model_bin_read_floats(const InputFile *file, int version, int64_t first, float *out, int64_t n,
                                         Error *error) {
    enum { BLOCK = 8192 };
    uint16_t raw[BLOCK];
    if (version == MODEL_BIN_FP32) { return input_read(file, DATA_HEADER_BYTES + 4 * first, out, 4 * n, error); }
    for (int64_t done = 0; done < n; done += BLOCK) {
        int64_t count = min_i64(n - done, BLOCK);
        if (!input_read(file, DATA_HEADER_BYTES + 2 * (first + done), raw, 2 * count, error)) { return false; }
        for (int64_t i = 0; i < count; i++) { out[done + i] = float_from_bf16(raw[i]); }
    }
    return true;
}

// ---- Checks of values ----

// Sets the rows V..Vp-1 of wte and of an untied head to zero in `out`, which holds elements first .. first + n - 1 of
// all parameters. A file may hold anything there, and it must never leak into a gradient.
static inline void model_zero_padding_range(float *out, const ModelConfig *config, int64_t first, int64_t n) {
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamOverlap part = param_overlap(config, i, first, n);
        int64_t begin = max_i64(part.begin, param_used(config, i));
        if (begin >= part.end) { continue; }
        memset(out + part.at + (begin - part.begin), 0, (size_t)(part.end - begin) * sizeof(float));
    }
}

// Says which parameter holds a NaN or infinity, by its index `place`. `where` begins the message. Always returns false.
static inline bool model_fail_not_finite(const ModelConfig *config, int64_t place, float value, const char *where,
                                         Error *error) {
    int i = 0;
    char text[96];
    while (place >= param_offset(config, i + 1)) { i++; }
    int64_t one_layer = param_rows(config, i) * param_cols(config, i), element = place - param_offset(config, i);
    param_text(text, sizeof(text), "tensor", i, (int)(element / one_layer));
    return fail(error, "%s: %s holds %g at element %lld; the file is damaged or its training diverged", where, text,
                (double)value, (long long)(element % one_layer));
}

static inline bool model_check_range(const ModelConfig *config, int64_t first, int64_t n, const char *where,
                                     Error *error) {
    int64_t all = model_num_params(config);
    return (first >= 0 && n >= 0 && first <= all && n <= all - first) ||
           fail(error, "%s: elements %lld to %lld of %lld do not exist", where, (long long)first,
                (long long)(first + n), (long long)all); // a mistake of the caller
}

// ---- Header ----

// Returns the bytes of a whole file.
static inline int64_t model_bin_bytes(const ModelConfig *config, int version) {
    int64_t element = version == MODEL_BIN_BF16 ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(float);
    return DATA_HEADER_BYTES + model_num_params(config) * element;
}

static inline void model_bin_config_from_header(ModelConfig *config, const int32_t *header) {
    memset(config, 0, sizeof(*config));
    for (int i = 0; i < MODEL_STORED_FIELDS; i++) {
        memcpy((char *)config + model_fields[i].offset, &header[MODEL_BIN_CONFIG + i], sizeof(int32_t));
    }
    if (MODEL_CONFIG_FIELDS - MODEL_STORED_FIELDS > 0) { model_complete(config); }
    config->tokenizer = bin_tokenizer(header);
}

static inline void model_bin_make_header(int32_t *header, const ModelConfig *config, int version) {
    memset(header, 0, (size_t)DATA_HEADER_BYTES);
    header[0] = MODEL_BIN_MAGIC;
    header[1] = version;
    for (int i = 0; i < MODEL_STORED_FIELDS; i++) { header[MODEL_BIN_CONFIG + i] = model_field_word(config, i); }
    header[MODEL_BIN_VARIANT] = MODEL_VARIANT;
    bin_set_tokenizer(header, config->tokenizer);
}

// Opens a model file and checks everything that its header and size can show. The file stays open only after success.
static inline bool model_bin_open(BinFile *bin, const char *path, ModelConfig *config, Error *error) {
    if (!bin_open(bin, path, BIN_MODEL, error)) { return false; }
    model_bin_config_from_header(config, bin->header);
    int variant = bin->header[MODEL_BIN_VARIANT];
    if (variant != MODEL_VARIANT) {
        input_close(&bin->file);
        return fail(error,
                    "%s: holds a model of variant %d, this program computes %d, " MODEL_NAME
                    " (0: GPT-2, for train_gpt2; 3: Llama 3, for train_llama3; MODEL_VARIANT in llmc/model)",
                    path, variant, MODEL_VARIANT);
    }
    if (model_check_config(config, path, error)) { return bin_check_size(bin, model_num_params(config), error); }
    input_close(&bin->file);
    return false;
}

// Reads the config of a model file, and checks what model_bin_open checks.
static inline bool model_bin_read_config(const char *path, ModelConfig *config, Error *error) {
    BinFile bin;
    if (!model_bin_open(&bin, path, config, error)) { return false; }
    input_close(&bin.file);
    return true;
}

// ---- Reading ----

// Reads elements first .. first + n - 1 of all parameters from a float32 or bfloat16 file. config comes from
// model_bin_read_config. NaN and infinity are refused. Padding rows become zero.
static inline bool model_bin_read_range(const char *path, const ModelConfig *config, int64_t first, int64_t n,
                                        float *out, Error *error) {
    BinFile bin;
    ModelConfig found;
    if (!model_check_range(config, first, n, path, error) || !model_bin_open(&bin, path, &found, error)) {
        return false;
    }
    bool ok = model_configs_equal(config, &found) || fail(error, "%s: holds a model of another shape", path);
    ok = ok && model_bin_read_floats(&bin.file, bin.header[1], first, out, n, error);
    input_close(&bin.file);
    if (!ok) { return false; }
    model_zero_padding_range(out, config, first, n);
    int64_t bad = first_outside(out, n, -FLT_MAX);
    return bad == n || model_fail_not_finite(config, first + bad, out[bad], path, error);
}

#endif // LLMC_MODEL_BIN_H
