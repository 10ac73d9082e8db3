// Hugging Face GPT-2: reads and writes model.safetensors with the config.json beside it, without Python.
//
// A safetensors file: uint64 N, N bytes of JSON (name -> dtype, shape, data_offsets; padded with spaces), then the
// data. The tensors cover the data without gap or overlap. The file stores the four linear weights of a block as (in,
// out), and memory here holds (out, in). Reading transposes them in blocks, so no second copy of the model exists.
//
// The head is tied to wte: a file is refused if its tensor lm_head.weight differs from wte.weight.
#ifndef LLMC_SAFETENSORS_H
#define LLMC_SAFETENSORS_H

#include "llmc/base/files.h"
#include "llmc/model/gpt2.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/files/model_bin.h"

#define SAFETENSORS_MAX_HEADER 100000000             // bytes; limit of the public specification
#define SAFETENSORS_MAX_CONFIG (1 << 20)             // bytes of config.json
#define SAFETENSORS_BUFFER_FLOATS ((int64_t)1 << 20) // staging for one block of rows; longer than the longest row
#define SAFETENSORS_FILE_NAME "model.safetensors"
#define SAFETENSORS_CONFIG_NAME "config.json"
#define SAFETENSORS_VERSION_KEY "gpt2c_version" // in config.json: the writer; other programs keep such members
#define SAFETENSORS_TRAINED_KEY "gpt2c_trained_positions" // likewise, if these are fewer than n_positions

// Describes one tensor of the header.
typedef struct {
    const char *name; // without "transformer."; it lives as long as the JSON text
    int key;          // its place in the JSON text
    bool known;
    Dtype type;
    int rank;
    int64_t shape[2];      // the first two dimensions
    int64_t offset, bytes; // offset in the data
} SafetensorsEntry;

typedef struct {
    InputFile file;
    GPT2Config config;
    int64_t data_start;        // first byte of the data in the file
    SafetensorsEntry *entries; // (count), in the order of their names
    int count;
    SafetensorsEntry **params; // [NUM_PARAM_TENSORS][L], into entries
    SafetensorsEntry *head;    // lm_head.weight; NULL: the file does not have it
} Safetensors;

// ---- config.json ----

// Checks members that change the computation: each must be absent (null: absent) or have GPT-2's value.
static inline bool safetensors_check_variant(const Json *json, const GPT2Config *config, Error *error) {
    char inner[24];
    snprintf(inner, sizeof(inner), "%lld", 4LL * config->channels);
    const struct {
        const char *key;
        JsonKind kind;
        const char *accepted[2];
    } rules[] = {
        {"model_type", JSON_STRING, {"gpt2", "gpt2"}},
        {"activation_function", JSON_STRING, {"gelu_new", "gelu_pytorch_tanh"}}, // two names of one function
        {"n_inner", JSON_NUMBER, {inner, inner}},
        {"scale_attn_weights", JSON_BOOL, {"true", "true"}},
        {"scale_attn_by_inverse_layer_idx", JSON_BOOL, {"false", "false"}},
        {"add_cross_attention", JSON_BOOL, {"false", "false"}},
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        int member = json_find(json, 0, rules[i].key);
        if (member < 0 || json->values[member].kind == JSON_NULL) { continue; }
        bool ok = json->values[member].kind == rules[i].kind &&
                  (json_equals(json, member, rules[i].accepted[0]) || json_equals(json, member, rules[i].accepted[1]));
        if (!ok) {
            return fail(error, "%s: \"%s\" is not %s: a variant of GPT-2 that is not supported", json->name,
                        rules[i].key, rules[i].accepted[0]);
        }
    }
    int member = json_find(json, 0, "layer_norm_epsilon");
    double epsilon = 1e-5;
    if (member >= 0 && !json_double(json, member, &epsilon, error)) { return false; }
    return (epsilon > 0.999e-5 && epsilon < 1.001e-5) ||
           fail(error, "%s: \"layer_norm_epsilon\" is %g, expected 1e-05", json->name, epsilon);
}

static inline bool safetensors_parse_config(const Json *json, GPT2Config *config, Error *error) {
    if (json->values[0].kind != JSON_OBJECT) { return fail(error, "%s: not a JSON object", json->name); }
    const struct {
        const char *key;
        int *value;
    } fields[] = {{"n_positions", &config->max_seq_len},
                  {"vocab_size", &config->vocab_size},
                  {"n_layer", &config->num_layers},
                  {"n_head", &config->num_heads},
                  {"n_embd", &config->channels}};
    for (int i = 0; i < 5; i++) {
        int member = json_find(json, 0, fields[i].key);
        int64_t number;
        if (member < 0) { return fail(error, "%s: \"%s\" is missing", json->name, fields[i].key); }
        if (!json_int(json, member, 1, INT32_MAX, &number, error)) {
            return fail(error, "%s: \"%s\" is not a positive whole number", json->name, fields[i].key);
        }
        *fields[i].value = (int)number;
    }
    config->padded_vocab_size = (int)min_i64(round_up_i64(config->vocab_size, 128), INT32_MAX);
    return gpt2_check_config(config, json->name, error) && safetensors_check_variant(json, config, error);
}

// Reads the config.json in the folder of the file `path`.
static inline bool safetensors_read_config_json(const char *path, GPT2Config *config, Error *error) {
    char folder[MAX_PATH_BYTES], config_path[MAX_PATH_BYTES];
    Json json;
    path_parent(folder, path);
    if (!path_join(config_path, folder, SAFETENSORS_CONFIG_NAME, error)) { return false; }
    if (!path_exists(config_path)) {
        return fail(error, "%s: missing; it belongs beside %s and tells the number of heads", config_path, path);
    }
    bool ok =
        json_load(&json, config_path, SAFETENSORS_MAX_CONFIG, error) && safetensors_parse_config(&json, config, error);
    json_free(&json);
    return ok;
}

// Returns the trained positions of the model in the file `path`, from the config.json beside it. 0: the whole context.
static inline int64_t safetensors_trained_positions(const char *path, const GPT2Config *config) {
    char folder[MAX_PATH_BYTES], config_path[MAX_PATH_BYTES];
    int64_t positions = 0;
    Json json;
    Error ignored;
    path_parent(folder, path);
    if (!path_join(config_path, folder, SAFETENSORS_CONFIG_NAME, &ignored)) { return 0; }
    int member = json_load(&json, config_path, SAFETENSORS_MAX_CONFIG, &ignored)
                     ? json_find(&json, 0, SAFETENSORS_TRAINED_KEY)
                     : -1;
    bool says = member >= 0 && json_int(&json, member, 1, config->max_seq_len, &positions, &ignored);
    json_free(&json);
    return says ? positions : 0;
}

// ---- The header ----

// Sets the type and returns the bytes of one element. Returns 0 if the specification has no such dtype, or if GPT-2
// files use it for neither weights nor mask buffers.
static inline int64_t safetensors_parse_type(const char *name, Dtype *type) {
    static const struct {
        const char *name;
        Dtype type;
        int bytes;
    } types[] = {{"F32", DTYPE_F32, 4},   {"F16", DTYPE_F16, 2},  {"BF16", DTYPE_BF16, 2}, {"BOOL", DTYPE_OTHER, 1},
                 {"U8", DTYPE_OTHER, 1},  {"I8", DTYPE_OTHER, 1}, {"I16", DTYPE_OTHER, 2}, {"I32", DTYPE_OTHER, 4},
                 {"I64", DTYPE_OTHER, 8}, {"F64", DTYPE_OTHER, 8}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(name, types[i].name) != 0) { continue; }
        *type = types[i].type;
        return types[i].bytes;
    }
    return 0;
}

// Reads a shape and multiplies `bytes` by it. A product beyond `most` becomes most + 1 instead of overflowing.
static inline bool safetensors_parse_shape(const Json *json, int array, int64_t most, SafetensorsEntry *entry,
                                           int64_t *bytes, Error *error) {
    entry->rank = json->values[array].count;
    for (int d = 0; d < entry->rank; d++) {
        int64_t dim;
        if (!json_int(json, array + 1 + d, 0, LARGEST_WHOLE, &dim, error)) { return false; }
        if (d < 2) { entry->shape[d] = dim; }
        *bytes = dim > 0 && *bytes > most / dim ? most + 1 : *bytes * dim;
    }
    return true;
}

// Reads dtype, byte range and shape of one tensor. Range and shape must agree, and the range must lie in the data.
static inline bool safetensors_parse_entry(const Json *json, int key, int64_t data_bytes, SafetensorsEntry *entry,
                                           Error *error) {
    static const char prefix[] = "transformer.";
    char name[101], type[16];
    json_show(json, key, name);
    entry->key = key;
    entry->name = json_decoded(json, key);
    if (strncmp(entry->name, prefix, strlen(prefix)) == 0) { entry->name += strlen(prefix); }
    int dtype = json_find(json, key + 1, "dtype"), dims = json_find(json, key + 1, "shape");
    int range = json_find(json, key + 1, "data_offsets");
    if (dtype < 0 || dims < 0 || range < 0 || json->values[dims].kind != JSON_ARRAY ||
        json->values[range].kind != JSON_ARRAY || json->values[range].count != 2) {
        return fail(error, "%s: tensor %s: expected dtype, shape and two data_offsets", json->name, name);
    }
    if (!json_string(json, dtype, type, sizeof(type), error)) { return false; }
    int64_t bytes = safetensors_parse_type(type, &entry->type), end;
    if (bytes == 0) { return fail(error, "%s: tensor %s: unknown dtype %s", json->name, name, type); }
    if (!safetensors_parse_shape(json, dims, data_bytes, entry, &bytes, error)) { return false; }
    if (!json_int(json, range + 1, 0, data_bytes, &entry->offset, error) ||
        !json_int(json, range + 2, entry->offset, data_bytes, &end, error)) {
        return fail(error, "%s: tensor %s: data_offsets are not within the %lld bytes of data (truncated?)", json->name,
                    name, (long long)data_bytes);
    }
    entry->bytes = end - entry->offset;
    return entry->bytes == bytes || fail(error, "%s: tensor %s: %lld bytes of data do not fit its shape", json->name,
                                         name, (long long)entry->bytes);
}

// ---- The tensors of the model ----

// Sets the shape that a parameter has in the file and returns its rank. The file does not pad the vocabulary.
static inline int safetensors_shape(const GPT2Config *config, int i, int64_t shape[2]) {
    const GPT2ParamSpec *spec = &gpt2_param_specs[i];
    int64_t rows = i == PARAM_wte ? config->vocab_size : gpt2_param_rows(config, i), cols = gpt2_param_cols(config, i);
    shape[0] = spec->rows == DIM_NONE ? cols : spec->hf_transposed ? cols : rows;
    shape[1] = spec->hf_transposed ? rows : cols;
    return spec->rows == DIM_NONE ? 1 : 2;
}

static inline int64_t safetensors_elements(int rank, const int64_t shape[2]) {
    return rank == 1 ? shape[0] : shape[0] * shape[1];
}

// Checks that a tensor is that of parameter i.
static inline bool safetensors_check_shape(const Safetensors *model, const Json *json, const SafetensorsEntry *entry,
                                           int i, Error *error) {
    char name[101], found[101], expected[64];
    int64_t want[2];
    int rank = safetensors_shape(&model->config, i, want);
    json_show(json, entry->key, name);
    if (entry->type == DTYPE_OTHER) {
        return fail(error, "%s: tensor %s: its dtype is none of F32, F16, BF16", json->name, name);
    }
    if (entry->rank == rank && entry->shape[0] == want[0] && (rank < 2 || entry->shape[1] == want[1])) { return true; }
    snprintf(expected, sizeof(expected), rank == 1 ? "[%lld]" : "[%lld, %lld]", (long long)want[0], (long long)want[1]);
    return fail(error, "%s: tensor %s: shape is %s, config.json asks for %s", json->name, name,
                json_show(json, json_find(json, entry->key + 1, "shape"), found), expected);
}

static inline int safetensors_compare_names(const void *a, const void *b) {
    return strcmp(((const SafetensorsEntry *)a)->name, ((const SafetensorsEntry *)b)->name);
}

// Returns NULL if the file has no tensor of this name.
static inline SafetensorsEntry *safetensors_find(const Safetensors *model, const char *name) {
    SafetensorsEntry wanted = {name, 0, false, DTYPE_OTHER, 0, {0, 0}, 0, 0};
    SafetensorsEntry *found = (SafetensorsEntry *)bsearch(&wanted, model->entries, (size_t)model->count,
                                                          sizeof(SafetensorsEntry), safetensors_compare_names);
    if (found != NULL) { found->known = true; }
    return found;
}

// Finds the tensors of one layer. missing: the first name that the file does not have.
static inline bool safetensors_find_layer(Safetensors *model, const Json *json, int layer, char missing[80],
                                          Error *error) {
    static const char *const masks[] = {"attn.bias", "attn.masked_bias"};
    char name[80];
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        if (layer >= gpt2_param_layers(&model->config, i)) { continue; }
        gpt2_hf_name(name, sizeof(name), i, layer);
        SafetensorsEntry *entry = safetensors_find(model, name);
        model->params[i * model->config.num_layers + layer] = entry;
        if (entry != NULL && !safetensors_check_shape(model, json, entry, i, error)) { return false; }
        if (entry == NULL && missing[0] == '\0') { memcpy(missing, name, sizeof(name)); }
    }
    for (int i = 0; i < 2; i++) { // buffers that transformers once saved too
        snprintf(name, sizeof(name), "h.%d.%s", layer, masks[i]);
        safetensors_find(model, name);
    }
    return true;
}

// Finds all tensors of the model. Refuses a file that lacks one or has others.
static inline bool safetensors_find_all(Safetensors *model, const Json *json, Error *error) {
    char name[101], missing[80] = "";
    qsort(model->entries, (size_t)model->count, sizeof(SafetensorsEntry), safetensors_compare_names);
    for (int layer = 0; layer < model->config.num_layers; layer++) {
        if (!safetensors_find_layer(model, json, layer, missing, error)) { return false; }
    }
    model->head = safetensors_find(model, "lm_head.weight");
    if (model->head != NULL && !safetensors_check_shape(model, json, model->head, PARAM_wte, error)) { return false; }
    for (int j = 0; j < model->count; j++) {
        const SafetensorsEntry *entry = &model->entries[j];
        if (j + 1 < model->count && strcmp(entry->name, entry[1].name) == 0) {
            return fail(error, "%s: tensor %s is there twice, with and without \"transformer.\"", json->name,
                        entry->name);
        }
        if (entry->known && strlen(json_decoded(json, entry->key)) == (size_t)json->values[entry->key].count) {
            continue;
        }
        return fail(error, "%s: tensor %s does not belong to a GPT-2 of %d layers", json->name,
                    json_show(json, entry->key, name), model->config.num_layers);
    }
    return missing[0] == '\0' || fail(error, "%s: tensor %s is missing", json->name, missing);
}

static inline int safetensors_compare_entries(const void *a, const void *b) {
    const SafetensorsEntry *x = (const SafetensorsEntry *)a, *y = (const SafetensorsEntry *)b;
    if (x->offset != y->offset) { return x->offset < y->offset ? -1 : 1; }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

// Sorts the tensors by their places. They must cover the data from its first to its last byte, each byte once.
static inline bool safetensors_check_cover(Safetensors *model, int64_t data_bytes, Error *error) {
    const char *path = model->file.path;
    int64_t covered = 0;
    qsort(model->entries, (size_t)model->count, sizeof(SafetensorsEntry), safetensors_compare_entries);
    for (int j = 0; j < model->count; j++) {
        const SafetensorsEntry *entry = &model->entries[j];
        if (entry->offset != covered) {
            return fail(error, "%s: data at byte %lld: tensors %s", path, (long long)entry->offset,
                        entry->offset < covered ? "overlap" : "leave a gap");
        }
        covered += entry->bytes;
    }
    return covered == data_bytes || fail(error, "%s: tensors cover %lld bytes, the file has %lld bytes of data", path,
                                         (long long)covered, (long long)data_bytes);
}

static inline bool safetensors_parse_header(Safetensors *model, const Json *json, Error *error) {
    int64_t data_bytes = model->file.size - model->data_start;
    if (json->values[0].kind != JSON_OBJECT || json->values[0].start != 0) {
        return fail(error, "%s: the header does not begin with {", json->name);
    }
    size_t slots = (size_t)NUM_PARAM_TENSORS * (size_t)model->config.num_layers;
    model->entries = (SafetensorsEntry *)calloc((size_t)json->values[0].count + 1, sizeof(SafetensorsEntry));
    model->params = (SafetensorsEntry **)calloc(slots, sizeof(SafetensorsEntry *));
    if (model->entries == NULL || model->params == NULL) { return fail(error, "%s: out of memory", json->name); }
    for (int key = 1; key < json->count; key = json->values[key + 1].next) {
        if (json_equals(json, key, "__metadata__")) { continue; }
        if (!safetensors_parse_entry(json, key, data_bytes, &model->entries[model->count++], error)) { return false; }
    }
    return safetensors_check_cover(model, data_bytes, error) && safetensors_find_all(model, json, error);
}

// Reads the length and the JSON text, and checks the length against the file.
static inline bool safetensors_read_header(Safetensors *model, Error *error) {
    const char *path = model->file.path;
    uint64_t length = 0;
    if (model->file.size < 8) {
        return fail(error, "%s: has %lld bytes, too few for a safetensors file (truncated?)", path,
                    (long long)model->file.size);
    }
    if (!input_read(&model->file, 0, &length, 8, error)) { return false; }
    if (length > SAFETENSORS_MAX_HEADER || (int64_t)length > model->file.size - 8) {
        return fail(error, "%s: not a safetensors file, or truncated: a header of %llu bytes in a file of %lld", path,
                    (unsigned long long)length, (long long)model->file.size);
    }
    model->data_start = 8 + (int64_t)length;
    char *text = (char *)malloc((size_t)length + 1);
    if (text == NULL) { return fail(error, "%s: out of memory", path); }
    Json json;
    memset(&json, 0, sizeof(json));
    bool ok = input_read(&model->file, 8, text, (int64_t)length, error) &&
              json_parse(&json, path, text, (int64_t)length, error) && safetensors_parse_header(model, &json, error);
    json_free(&json);
    free(text);
    return ok;
}

static inline void safetensors_close(Safetensors *model) {
    input_close(&model->file);
    free(model->entries);
    free(model->params);
    model->entries = NULL;
    model->params = NULL;
}

// Opens a model and checks config, header, names, shapes and ranges. Reads no weights. Stays open only after success.
static inline bool safetensors_open(Safetensors *model, const char *path, Error *error) {
    memset(model, 0, sizeof(*model));
    if (!input_open(&model->file, path, error)) { return false; }
    bool ok = safetensors_read_config_json(path, &model->config, error) && safetensors_read_header(model, error);
    if (!ok) { safetensors_close(model); }
    return ok;
}

// Reads the config of model.safetensors from the config.json beside it. First checks that the file is complete and
// holds all tensors of that config with the right shapes.
static inline bool safetensors_read_config(const char *path, GPT2Config *config, Error *error) {
    Safetensors model;
    if (!safetensors_open(&model, path, error)) { return false; }
    *config = model.config;
    safetensors_close(&model);
    return true;
}

// ---- Weights in ----

// Reads `count` elements of a tensor from element `first` on, as floats.
static inline bool safetensors_read_floats(const Safetensors *model, const SafetensorsEntry *entry, int64_t first,
                                           int64_t count, float *out, Error *error) {
    int64_t offset = model->data_start + entry->offset + first * dtype_bytes(entry->type);
    return input_read_floats(&model->file, offset, entry->type, out, count, error);
}

// Reads elements [begin, end) of the transpose (cols, rows) of a tensor that the file holds as (rows, cols). Reads the
// columns that hold them, block by block, in whole rows where all columns do.
static inline bool safetensors_read_transposed(const Safetensors *model, const SafetensorsEntry *entry, int64_t begin,
                                               int64_t end, float *out, float *buffer, Error *error) {
    int64_t rows = entry->shape[0], cols = entry->shape[1];
    int64_t col = begin / rows, width = ceil_div_i64(end, rows) - col, block = SAFETENSORS_BUFFER_FLOATS / width;
    for (int64_t row = 0; row < rows; row += block) {
        int64_t n = min_i64(block, rows - row), reads = width == cols ? 1 : n, each = n * width / reads;
        for (int64_t i = 0; i < reads; i++) {
            int64_t first = (row + i) * cols + col;
            if (!safetensors_read_floats(model, entry, first, each, buffer + i * each, error)) { return false; }
        }
        for (int64_t c = 0; c < width; c++) {
            int64_t at = (col + c) * rows + row; // of the first element of this column in the buffer
            for (int64_t i = max_i64(0, begin - at); i < min_i64(n, end - at); i++) {
                out[at + i - begin] = buffer[i * width + c];
            }
        }
    }
    return true;
}

// Reads elements [part->begin, part->end) of tensor i, layer by layer. Does not touch the padding rows of wte, because
// no file holds them.
static inline bool safetensors_read_tensor(const Safetensors *model, int i, const GPT2Overlap *part, float *out,
                                           float *buffer, Error *error) {
    int64_t size = gpt2_param_rows(&model->config, i) * gpt2_param_cols(&model->config, i);
    for (int64_t at = part->begin; at < part->end;) {
        int64_t layer = at / size, begin = at % size, next = min_i64(part->end, (layer + 1) * size);
        const SafetensorsEntry *entry = model->params[i * model->config.num_layers + layer];
        int64_t end = min_i64(entry->bytes / dtype_bytes(entry->type), next - layer * size);
        float *to = out + (at - part->begin);
        bool ok = gpt2_param_specs[i].hf_transposed
                      ? safetensors_read_transposed(model, entry, begin, end, to, buffer, error)
                      : safetensors_read_floats(model, entry, begin, end - begin, to, error);
        if (!ok) { return false; }
        at = next;
    }
    return true;
}

// Compares elements [part->begin, part->end) of lm_head.weight with wte. Does nothing if the file has no such tensor.
static inline bool safetensors_check_head(const Safetensors *model, const GPT2Overlap *part, const float *wte,
                                          float *buffer, Error *error) {
    int64_t end = model->head != NULL ? (int64_t)model->config.vocab_size * model->config.channels : 0;
    end = min_i64(end, part->end);
    for (int64_t at = part->begin; at < end; at += SAFETENSORS_BUFFER_FLOATS) {
        int64_t count = min_i64(end - at, SAFETENSORS_BUFFER_FLOATS);
        if (!safetensors_read_floats(model, model->head, at, count, buffer, error)) { return false; }
        if (memcmp(buffer, wte + (at - part->begin), (size_t)count * sizeof(float)) != 0) {
            return fail(error, "%s: lm_head.weight differs from wte.weight; only models with a tied head are supported",
                        model->file.path);
        }
    }
    return true;
}

static inline bool safetensors_read_parts(const Safetensors *model, int64_t first, int64_t n, float *out, float *buffer,
                                          Error *error) {
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        GPT2Overlap part = gpt2_overlap(&model->config, i, first, n);
        if (!safetensors_read_tensor(model, i, &part, out + part.at, buffer, error)) { return false; }
    }
    GPT2Overlap wte = gpt2_overlap(&model->config, PARAM_wte, first, n);
    return safetensors_check_head(model, &wte, out + wte.at, buffer, error);
}

// Reads elements first .. first + n - 1 of all weights into out, in our order and layout. config comes from
// safetensors_read_config. Rows V..Vp-1 of wte become zero. NaN and infinity are refused. Takes 4 MiB for staging.
static inline bool safetensors_read_range(const char *path, const GPT2Config *config, int64_t first, int64_t n,
                                          float *out, Error *error) {
    Safetensors model;
    if (!model_check_range(config, first, n, path, error) || !safetensors_open(&model, path, error)) { return false; }
    float *buffer = (float *)malloc((size_t)SAFETENSORS_BUFFER_FLOATS * sizeof(float));
    bool ok = buffer != NULL || fail(error, "%s: out of memory", path);
    ok = ok && (model_configs_equal(config, &model.config) || fail(error, "%s: holds a model of another shape", path));
    ok = ok && safetensors_read_parts(&model, first, n, out, buffer, error);
    free(buffer);
    safetensors_close(&model);
    if (!ok) { return false; }
    model_zero_padding_range(out, config, first, n);
    return model_check_finite(out, config, first, n, path, error);
}

// ---- Weights out ----

// Writes the JSON header, padded with spaces so that the data begins at a multiple of 8 bytes.
static inline bool safetensors_write_header(AtomicFile *file, const GPT2Config *config, Error *error) {
    Text text = {NULL, 0, 0, false};
    int64_t offset = 0;
    text_words(&text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int64_t shape[2];
        int rank = safetensors_shape(config, i, shape);
        for (int layer = 0; layer < gpt2_param_layers(config, i); layer++) {
            char name[64];
            gpt2_hf_name(name, sizeof(name), i, layer);
            int64_t end = offset + safetensors_elements(rank, shape) * (int64_t)sizeof(float);
            text_printf(&text, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld", name, (long long)shape[0]);
            if (rank == 2) { text_printf(&text, ",%lld", (long long)shape[1]); }
            text_printf(&text, "],\"data_offsets\":[%lld,%lld]}", (long long)offset, (long long)end);
            offset = end;
        }
    }
    text_words(&text, "}");
    while (text.used % 8 != 0 && !text.failed) { text_words(&text, " "); }
    uint64_t length = text.used;
    bool ok = !text.failed && atomic_write(file, &length, 8, error) &&
              atomic_write(file, text.data, (int64_t)text.used, error);
    if (text.failed) {
        atomic_abort(file);
        fail(error, "%s: out of memory", file->path);
    }
    text_free(&text);
    return ok;
}

// Writes the transpose (rows, cols) of data (cols, rows) in blocks of rows.
static inline bool safetensors_write_transposed(AtomicFile *file, const float *data, int64_t rows, int64_t cols,
                                                float *buffer, Error *error) {
    int64_t block = SAFETENSORS_BUFFER_FLOATS / cols;
    for (int64_t row = 0; row < rows; row += block) {
        int64_t n = min_i64(block, rows - row);
        for (int64_t col = 0; col < cols; col++) {
            for (int64_t i = 0; i < n; i++) { buffer[i * cols + col] = data[col * rows + row + i]; }
        }
        if (!atomic_write(file, buffer, n * cols * (int64_t)sizeof(float), error)) { return false; }
    }
    return true;
}

static inline bool safetensors_write_tensors(AtomicFile *file, const GPT2Config *config, const float *params,
                                             float *buffer, Error *error) {
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int layers = gpt2_param_layers(config, i);
        int64_t layer_size = gpt2_param_size(config, i) / layers, shape[2];
        int rank = safetensors_shape(config, i, shape);
        for (int layer = 0; layer < layers; layer++) {
            const float *data = params + gpt2_param_offset(config, i) + layer * layer_size;
            int64_t bytes = safetensors_elements(rank, shape) * (int64_t)sizeof(float);
            bool ok = gpt2_param_specs[i].hf_transposed
                          ? safetensors_write_transposed(file, data, shape[0], shape[1], buffer, error)
                          : atomic_write(file, data, bytes, error);
            if (!ok) { return false; }
        }
    }
    return true;
}

// Writes config.json. end_of_text: the id that begins and ends documents. A version member of ours tells an export from
// other models.
static inline void safetensors_add_config(Text *text, const GPT2Config *config, int trained_positions,
                                          int end_of_text) {
    text_printf(text,
                "{\n  \"activation_function\": \"gelu_new\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n"
                "  \"attn_pdrop\": 0.0,\n  \"bos_token_id\": %d,\n  \"embd_pdrop\": 0.0,\n"
                "  \"eos_token_id\": %d,\n  \"%s\": \"%s\",\n  \"initializer_range\": 0.02,\n"
                "  \"layer_norm_epsilon\": 1e-05,\n  \"model_type\": \"gpt2\",\n  \"n_ctx\": %d,\n"
                "  \"n_embd\": %d,\n  \"n_head\": %d,\n  \"n_layer\": %d,\n"
                "  \"n_positions\": %d,\n  \"resid_pdrop\": 0.0,\n"
                "  \"tie_word_embeddings\": true,\n  \"torch_dtype\": \"float32\",\n  \"use_cache\": true,\n"
                "  \"vocab_size\": %d",
                end_of_text, end_of_text, SAFETENSORS_VERSION_KEY, GPT2C_VERSION, config->max_seq_len, config->channels,
                config->num_heads, config->num_layers, config->max_seq_len, config->vocab_size);
    if (trained_positions < config->max_seq_len) {
        text_printf(text, ",\n  \"%s\": %d", SAFETENSORS_TRAINED_KEY, trained_positions);
    }
    text_printf(text, "\n}\n");
}

static inline bool safetensors_write_pending(AtomicFile *file, const char *path, const GPT2Config *config,
                                             const float *params, Error *error) {
    float *buffer = (float *)malloc((size_t)SAFETENSORS_BUFFER_FLOATS * sizeof(float));
    if (buffer == NULL) { return fail(error, "%s: out of memory", path); }
    bool ok = atomic_open(file, path, error) && safetensors_write_header(file, config, error) &&
              safetensors_write_tensors(file, config, params, buffer, error) && atomic_flush(file, error);
    free(buffer);
    return ok;
}

#endif // LLMC_SAFETENSORS_H
