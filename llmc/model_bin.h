// Model weights in llm.c's .bin format: a header of 256 int32, then the 16 tensors in the order of the parameter table.
//
// header: [0] magic, [1] version (3: float32, 5: bfloat16), [2] maxT, [3] V, [4] L, [5] NH, [6] C, [7] Vp, the rest 0.
// Everything is checked against the exact file size before a tensor is read or memory is needed.
#ifndef LLMC_MODEL_BIN_H
#define LLMC_MODEL_BIN_H

#include "dtype.h"
#include "files.h"
#include "gpt2.h"

#define BIN_HEADER_INTS 256
#define BIN_HEADER_BYTES ((int64_t)(BIN_HEADER_INTS * sizeof(int32_t)))
#define MODEL_BIN_MAGIC 20240326
enum { MODEL_BIN_FP32 = 3, MODEL_BIN_BF16 = 5 };

// ---- What every model file is held to ----

// Sets the padding rows V..Vp-1 of wte to zero, whatever a file held there: they must never leak into a gradient.
static inline void model_zero_padding(float *params, const GPT2Config *config) {
    float *wte = params + gpt2_param_offset(config, PARAM_wte);
    int64_t used = (int64_t)config->vocab_size * config->channels;
    int64_t all = (int64_t)config->padded_vocab_size * config->channels;
    memset(wte + used, 0, (size_t)(all - used) * sizeof(float));
}

// Refuses weights with a NaN or infinity, naming tensor and element. `where` begins the message: the file.
static inline bool model_check_finite(const float *params, const GPT2Config *config, const char *where, Error *error) {
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        const float *tensor = params + gpt2_param_offset(config, i);
        int64_t n = gpt2_param_size(config, i), bad = first_not_finite(tensor, n);
        if (bad == n) { continue; }
        char shape[96];
        gpt2_param_shape(shape, sizeof(shape), config, i);
        return fail(error, "%s: tensor %s holds %g at element %lld of %s; the file is damaged or its training diverged",
                    where, gpt2_param_specs[i].name, (double)tensor[bad], (long long)bad, shape);
    }
    return true;
}

static inline bool model_configs_equal(const GPT2Config *a, const GPT2Config *b) {
    return a->max_seq_len == b->max_seq_len && a->vocab_size == b->vocab_size && a->num_layers == b->num_layers &&
           a->padded_vocab_size == b->padded_vocab_size && a->num_heads == b->num_heads && a->channels == b->channels;
}

// ---- Header ----

// Bytes of a whole file.
static inline int64_t model_bin_bytes(const GPT2Config *config, int version) {
    int64_t element = version == MODEL_BIN_BF16 ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(float);
    return BIN_HEADER_BYTES + gpt2_num_params(config) * element;
}

static inline bool model_bin_check_magic(const char *path, const int32_t *header, Error *error) {
    static const struct {
        int32_t magic;
        const char *what;
    } others[] = {{20240520, "a token shard"},
                  {20240327, "a debug state of a PyTorch twin"},
                  {20240328, "a tokenizer"},
                  {20240522, "an eval file"},
                  {20240801, "a token shard of Llama 3"}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (header[0] == others[i].magic) { return fail(error, "%s: is %s, expected a model", path, others[i].what); }
    }
    if (header[0] != MODEL_BIN_MAGIC) {
        return fail(error, "%s: not a model file: magic number is %d, expected %d", path, header[0], MODEL_BIN_MAGIC);
    }
    if (header[1] == 1 || header[1] == 2) {
        return fail(error,
                    "%s: model file version %d is obsolete, expected 3 (float32) or 5 (bfloat16); export it again",
                    path, header[1]);
    }
    if (header[1] != MODEL_BIN_FP32 && header[1] != MODEL_BIN_BF16) {
        return fail(error, "%s: model file version is %d, expected 3 (float32) or 5 (bfloat16)", path, header[1]);
    }
    return true;
}

static inline void model_bin_config_from_header(GPT2Config *config, const int32_t *header) {
    config->max_seq_len = header[2];
    config->vocab_size = header[3];
    config->num_layers = header[4];
    config->num_heads = header[5];
    config->channels = header[6];
    config->padded_vocab_size = header[7];
}

static inline void model_bin_make_header(int32_t *header, const GPT2Config *config, int version) {
    memset(header, 0, (size_t)BIN_HEADER_BYTES);
    header[0] = MODEL_BIN_MAGIC;
    header[1] = version;
    header[2] = config->max_seq_len;
    header[3] = config->vocab_size;
    header[4] = config->num_layers;
    header[5] = config->num_heads;
    header[6] = config->channels;
    header[7] = config->padded_vocab_size;
}

// Opens a model file and checks all that its header and size can tell. Open only after success.
static inline bool model_bin_open(InputFile *file, const char *path, int32_t *header, GPT2Config *config,
                                  Error *error) {
    if (!input_open(file, path, error)) { return false; }
    bool ok = file->size >= BIN_HEADER_BYTES ||
              fail(error, "%s: has %lld bytes, a model file begins with a header of %lld (truncated? fetch it again)",
                   path, (long long)file->size, (long long)BIN_HEADER_BYTES);
    ok = ok && input_read(file, 0, header, BIN_HEADER_BYTES, error) && model_bin_check_magic(path, header, error);
    if (ok) {
        model_bin_config_from_header(config, header);
        ok = gpt2_check_config(config, path, error);
    }
    if (ok && file->size != model_bin_bytes(config, header[1])) {
        int64_t expected = model_bin_bytes(config, header[1]);
        ok = fail(error, "%s: header asks for %lld bytes, file has %lld (%s)", path, (long long)expected,
                  (long long)file->size, file->size < expected ? "truncated? fetch it again" : "damaged?");
    }
    if (!ok) { input_close(file); }
    return ok;
}

// Reads the config of a model file and its version (3: float32, 5: bfloat16) after checking magic, version, every field
// and the exact size.
static inline bool model_bin_read_config(const char *path, GPT2Config *config, int *version, Error *error) {
    InputFile file;
    int32_t header[BIN_HEADER_INTS];
    if (!model_bin_open(&file, path, header, config, error)) { return false; }
    *version = header[1];
    input_close(&file);
    return true;
}

// ---- Reading ----

static inline bool model_bin_read_bf16(const InputFile *file, float *params, int64_t n, Hash64 *hash, Error *error) {
    uint16_t buffer[8192];
    const int64_t capacity = (int64_t)(sizeof(buffer) / sizeof(buffer[0]));
    for (int64_t done = 0; done < n; done += capacity) {
        int64_t count = min_i64(n - done, capacity), offset = BIN_HEADER_BYTES + 2 * done;
        if (!input_read_hashed(file, offset, buffer, 2 * count, hash, error)) { return false; }
        for (int64_t i = 0; i < count; i++) { params[done + i] = float_from_bf16(buffer[i]); }
    }
    return true;
}

// Like model_bin_read, and tells the checksum of the bytes read (the whole file) without reading it twice. The values
// are not judged here: a damaged file is to be recognised by its checksum first.
static inline bool model_bin_read_unchecked(const char *path, const GPT2Config *config, float *params,
                                            uint64_t *checksum, Error *error) {
    InputFile file;
    GPT2Config found;
    Hash64 hash;
    int32_t header[BIN_HEADER_INTS];
    if (!model_bin_open(&file, path, header, &found, error)) { return false; }
    hash64_init(&hash, 0);
    hash64_update(&hash, header, (size_t)BIN_HEADER_BYTES);
    int64_t n = gpt2_num_params(config);
    bool ok = model_configs_equal(config, &found) || fail(error, "%s: holds a model of another shape", path);
    if (ok && header[1] == MODEL_BIN_BF16) {
        ok = model_bin_read_bf16(&file, params, n, &hash, error);
    } else if (ok) {
        ok = input_read_hashed(&file, BIN_HEADER_BYTES, params, n * (int64_t)sizeof(float), &hash, error);
    }
    input_close(&file);
    *checksum = hash64_final(&hash);
    return ok;
}

// Reads the weights of a float32 or bfloat16 file into params, gpt2_num_params(config) floats; config is what
// model_bin_read_config said. NaN and infinity are refused, padding rows of wte become zero.
static inline bool model_bin_read(const char *path, const GPT2Config *config, float *params, Error *error) {
    uint64_t checksum;
    if (!model_bin_read_unchecked(path, config, params, &checksum, error)) { return false; }
    model_zero_padding(params, config);
    return model_check_finite(params, config, path, error);
}

// ---- Writing ----

// Writes a float32 model file up to, but without, the rename that makes it visible (atomic_commit).
static inline bool model_bin_write_pending(AtomicFile *file, const char *path, const GPT2Config *config,
                                           const float *params, uint64_t *checksum, Error *error) {
    int32_t header[BIN_HEADER_INTS];
    Hash64 hash;
    hash64_init(&hash, 0);
    model_bin_make_header(header, config, MODEL_BIN_FP32);
    int64_t bytes = gpt2_num_params(config) * (int64_t)sizeof(float);
    if (!atomic_open(file, path, error) || !atomic_write_hashed(file, header, BIN_HEADER_BYTES, &hash, error) ||
        !atomic_write_hashed(file, params, bytes, &hash, error) || !atomic_flush(file, error)) {
        return false;
    }
    *checksum = hash64_final(&hash);
    return true;
}

// Writes params (gpt2_num_params(config) floats) as a version 3 file, complete or not at all. *checksum, unless NULL,
// becomes the XXH64 of the whole file.
static inline bool model_bin_write(const char *path, const GPT2Config *config, const float *params, uint64_t *checksum,
                                   Error *error) {
    AtomicFile file;
    uint64_t sum;
    if (!model_bin_write_pending(&file, path, config, params, &sum, error)) { return false; }
    if (checksum != NULL) { *checksum = sum; }
    return atomic_commit(&file, error);
}

#endif // LLMC_MODEL_BIN_H
