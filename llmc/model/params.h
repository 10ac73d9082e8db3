// A model's configuration and parameters: what follows from its tables (gpt2.h). The table of a program that names no
// other is GPT-2's.
#ifndef LLMC_PARAMS_H
#define LLMC_PARAMS_H

#include "llmc/base/rand.h"
#include "llmc/base/utils.h"
#include "llmc/model/model_config.h"
#ifndef MODEL_PARAMETERS
#include "llmc/model/gpt2.h"
#endif

static inline int model_pad_vocab(int vocab_size) { return (int)round_up_i64(vocab_size, 128); }

#define PARAM_ENUM(name, ...) PARAM_##name,
typedef enum { MODEL_PARAMETERS(PARAM_ENUM) NUM_PARAM_TENSORS } Param;

typedef struct {
    const char *name;
    ParamPlace place;
    bool per_layer;      // one such tensor in each block. In files they lie together
    ModelDim rows, cols; // rows DIM_NONE: a vector of cols
    ParamInit init;
    int decay;
    int muon; // matrices; 0: AdamW updates the tensor with either optimizer
    ParamSplit split;
} ParamSpec;

#define PARAM_SPEC(name, place, rows, cols, init, decay, muon, split)                                                  \
    {#name, place, IN_BLOCK_##place, rows, cols, init, decay, muon, SPLIT_##split},
static const ParamSpec param_specs[NUM_PARAM_TENSORS] = {MODEL_PARAMETERS(PARAM_SPEC)};

static inline int64_t param_rows(const ModelConfig *config, int i) { return model_dim(config, param_specs[i].rows); }

static inline int64_t param_cols(const ModelConfig *config, int i) { return model_dim(config, param_specs[i].cols); }

// How many copies of tensor i the model holds: L for a block's tensor, 1 otherwise.
static inline int param_layers(const ModelConfig *config, int i) {
    return param_specs[i].per_layer ? config->num_layers : 1;
}

// Elements of tensor i, all layers together.
static inline int64_t param_size(const ModelConfig *config, int i) {
    return param_layers(config, i) * param_rows(config, i) * param_cols(config, i);
}

// Elements of tensor i that are not padding. A tensor with a row for each token has rows of zeros from V on.
static inline int64_t param_used(const ModelConfig *config, int i) {
    bool rows_of_tokens = param_specs[i].rows == DIM_Vp || param_specs[i].rows == DIM_HEAD;
    int64_t used = (int64_t)config->vocab_size * param_cols(config, i);
    return rows_of_tokens ? min_i64(used, param_size(config, i)) : param_size(config, i);
}

// First element of tensor i (i = NUM_PARAM_TENSORS: the total) when all tensors lie one after another in table order.
static inline int64_t param_offset(const ModelConfig *config, int i) {
    int64_t offset = 0;
    for (int j = 0; j < i; j++) { offset += param_size(config, j); }
    return offset;
}

// Returns the number of all stored elements, the padding of the vocabulary included.
static inline int64_t model_num_params(const ModelConfig *config) { return param_offset(config, NUM_PARAM_TENSORS); }

// What updates the weights: AdamW, or Muon for the matrices of the blocks and AdamW for all else (llmc/model/muon.h).
typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_MUON } OptimizerKind;

// Tells whether Muon updates tensor i.
static inline bool muon_takes(OptimizerKind optimizer, int i) {
    return optimizer == OPTIMIZER_MUON && param_specs[i].muon > 0;
}

// AdamW's second moment v exists only for the tensors that AdamW updates. They lie one after another, in the order of
// the table. Returns the place in v of the element at `place` in the order of the parameters, as param_offset
// counts. The element belongs to AdamW. place = model_num_params: the length of v.
static inline int64_t param_place_in_v(const ModelConfig *config, OptimizerKind optimizer, int64_t place) {
    int64_t left_out = 0;
    for (int i = 0; i < NUM_PARAM_TENSORS && param_offset(config, i) < place; i++) {
        if (muon_takes(optimizer, i)) { left_out += param_size(config, i); }
    }
    return place - left_out;
}

static inline int64_t param_length_of_v(const ModelConfig *config, OptimizerKind optimizer) {
    return param_place_in_v(config, optimizer, model_num_params(config));
}

// ---- The arrays of the CPU trainers: the tensors outside the blocks, then block after block ----
//
// So tensors of a block that are neighbours in the table are neighbours in memory, and one multiply takes them as one
// matrix. Files have all layers of a tensor together.

// Returns where a layer of tensor i begins in an array of all tensors, or of those that Muon leaves to AdamW (v). The
// layer of a tensor outside the blocks does not matter.
static inline int64_t param_place_in(const ModelConfig *config, int i, int layer, bool of_v) {
    int64_t place = 0;
    bool in_block = param_specs[i].per_layer;
    for (int j = 0; j < NUM_PARAM_TENSORS; j++) {
        int64_t before = param_specs[j].per_layer ? layer + (j < i) : 1; // copies of tensor j in front of the place
        if (!in_block) { before = !param_specs[j].per_layer && j < i; }
        if (!of_v || param_specs[j].muon == 0) { place += before * param_rows(config, j) * param_cols(config, j); }
    }
    return place;
}

static inline int64_t param_place(const ModelConfig *config, int i, int layer) {
    return param_place_in(config, i, layer, false);
}

// One layer of a tensor, in elements. Such pieces are listed by
//   ParamPiece piece = PARAM_PIECE_BEGIN;
//   while (param_next_piece(config, optimizer, &piece)) { ... }
typedef struct {
    int tensor, layer;
    int64_t place, place_v; // in the arrays, and in v; -1: Muon leaves it no v
    int64_t in_file;        // as param_offset counts
    int64_t count;          // > 0
} ParamPiece;
#define PARAM_PIECE_BEGIN                                                                                              \
    { 0, -1, 0, 0, 0, 0 }

// Finds the next piece in the order of the table. Returns false behind the last one.
static inline bool param_next_piece(const ModelConfig *config, OptimizerKind optimizer, ParamPiece *piece) {
    int i = piece->tensor;
    bool more = ++piece->layer < param_layers(config, i);
    while (!more && ++i < NUM_PARAM_TENSORS) { piece->layer = 0, more = param_size(config, i) > 0; }
    if (!more) { return false; }
    piece->tensor = i;
    piece->count = param_rows(config, i) * param_cols(config, i);
    piece->in_file = param_offset(config, i) + piece->layer * piece->count;
    piece->place = param_place(config, i, piece->layer);
    piece->place_v = param_place_in(config, i, piece->layer, optimizer == OPTIMIZER_MUON);
    if (muon_takes(optimizer, i)) { piece->place_v = -1; }
    return true;
}

// Writes what a message calls tensor i of a layer, behind `what`, e.g. "gradient of fcw of layer 3".
static inline void param_text(char *text, size_t size, const char *what, int i, int layer) {
    int n = snprintf(text, size, "%s %s", what, param_specs[i].name);
    if (param_specs[i].per_layer) { snprintf(text + n, size - (size_t)n, " of layer %d", layer); }
}

// Returns the floating-point operations to train on one token: 6 for each weight of a matrix multiply (2 forward, 4
// backward), with the head's V*C, and 12 L NH HS T/2 for attention, where a token sees T/2 tokens on average.
static inline double flops_per_token(const ModelConfig *config, int64_t T) {
    double L = config->num_layers, weights = (double)config->vocab_size * config->channels;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        if (param_specs[i].per_layer && param_specs[i].rows != DIM_NONE) { weights += (double)param_size(config, i); }
    }
    return 6.0 * weights + 6.0 * L * (double)model_dim(config, DIM_Q) * (double)T;
}

typedef struct {
    const char *name; // what messages call it
    size_t offset;    // of the field in ModelConfig
    bool is_float;
    double least, most;
} ModelField;

enum { MODEL_FLOAT_int = 0, MODEL_FLOAT_float = 1 };
#define MODEL_FIELD(type, field, name, least, most)                                                                    \
    {name, offsetof(ModelConfig, field), MODEL_FLOAT_##type, least, most},
static const ModelField model_fields[MODEL_CONFIG_FIELDS] = {MODEL_CONFIG(MODEL_FIELD)};

// Reads field i as the 4 bytes that a file has, or as a number.
static inline int32_t model_field_word(const ModelConfig *config, int i) {
    int32_t word;
    memcpy(&word, (const char *)config + model_fields[i].offset, sizeof(word));
    return word;
}
static inline double model_field_value(const ModelConfig *config, int i) {
    int32_t word = model_field_word(config, i);
    float value;
    memcpy(&value, &word, sizeof(value));
    return model_fields[i].is_float ? (double)value : (double)word;
}

static inline bool model_configs_equal(const ModelConfig *a, const ModelConfig *b) {
    return memcmp(a, b, offsetof(ModelConfig, tokenizer)) == 0; // all fields before have 4 bytes
}

enum { MODEL_PADDED_FIELD = 5 }; // padded_vocab_size

// Sets the fields of a configuration that are 0, from the others. Scaled rotary frequencies are Llama 3's.
static inline void model_complete(ModelConfig *c) {
    bool scaled = c->rope_factor > 1.0f;
    c->variant = MODEL_VARIANT;
    if (c->num_kv_heads == 0) { c->num_kv_heads = c->num_heads; }
    if (c->head_size == 0 && c->num_heads > 0) { c->head_size = c->channels / c->num_heads; }
    if (c->mlp_width == 0) { c->mlp_width = (int)min_i64(MODEL_MLP_WIDTH((int64_t)c->channels), INT32_MAX); }
    if (c->norm_epsilon == 0.0f) { c->norm_epsilon = 1e-5f; }
    if (c->rope_theta == 0.0f) { c->rope_theta = MODEL_ROPE_THETA; }
    if (c->rope_factor == 0.0f) { c->rope_factor = 1.0f; }
    if (c->rope_low == 0.0f) { c->rope_low = 1.0f; }
    if (c->rope_high == 0.0f) { c->rope_high = scaled ? 4.0f : 1.0f; }
    if (scaled && c->rope_context == 0) { c->rope_context = 8192; }
}

// Refuses heads that do not fit. A model with learned positions, GPT-2, has C/NH channels a head, each with its
// own keys.
static inline bool model_check_heads(const ModelConfig *c, const char *where, Error *error) {
    bool rotary = c->rope_theta > 1.0f, shares = c->num_kv_heads > 0 && c->num_heads % c->num_kv_heads == 0;
    const char *why = NULL;
    if (!rotary && c->channels % c->num_heads != 0) { why = "choose heads that divide channels"; }
    if (!rotary && c->num_heads != c->num_kv_heads) { why = "GPT-2 has as many of each (no --kv-heads)"; }
    if (rotary && !shares) { why = "choose --kv-heads that divide heads"; }
    if (rotary && c->head_size % 2 != 0) { why = "rotary embeddings rotate pairs, choose an even head size"; }
    if (c->rope_context != 0 && c->rope_low >= c->rope_high) { why = "low_freq_factor must be below high_freq_factor"; }
    return why == NULL || fail(error, "%s: %d channels, %d heads of size %d, %d heads of keys and values: %s", where,
                               c->channels, c->num_heads, c->head_size, c->num_kv_heads, why);
}

// Checks a config. `where` begins the message: a file name or an option.
static inline bool model_check_config(const ModelConfig *config, const char *where, Error *error) {
    for (int i = 0; i < MODEL_CONFIG_FIELDS; i++) {
        const ModelField *field = &model_fields[i];
        double value = model_field_value(config, i);
        // What follows from the stored fields is sound if their heads are.
        if (i == MODEL_STORED_FIELDS && !model_check_heads(config, where, error)) { return false; }
        double least = i == MODEL_PADDED_FIELD ? (double)config->vocab_size : field->least;
        if (!(value >= least && value <= field->most)) {
            return fail(error, "%s: %s is %.10g, expected %.9g to %.9g", where, field->name, value, least, field->most);
        }
    }
    return model_check_heads(config, where, error);
}

// ---- Sizes by name ----

#define MODEL_RELEASED_ROW(name, millions, ...) {name, millions, MODEL_SIZE(__VA_ARGS__)},
#define MODEL_UNRELEASED_ROW(name, ...) {name, "", MODEL_SIZE(__VA_ARGS__)},
static const ModelSize model_sizes[] = {MODEL_RELEASED(MODEL_RELEASED_ROW) MODEL_UNRELEASED(MODEL_UNRELEASED_ROW)};
#define NUM_MODEL_SIZES (sizeof(model_sizes) / sizeof(model_sizes[0]))

// The names that --init takes for a new model: " d12 124M d24 350M ...".
#define MODEL_RELEASED_WORDS(name, millions, ...) " " name " " millions
#define MODEL_UNRELEASED_WORD(name, ...) " " name
#define MODEL_SIZE_NAMES MODEL_RELEASED(MODEL_RELEASED_WORDS) MODEL_UNRELEASED(MODEL_UNRELEASED_WORD)

// Finds a size by one of its two names for a new model ("d12", "124M"). NULL: there is none of this name.
static inline const ModelSize *model_find_size(const char *name) {
    for (size_t i = 0; name[0] != '\0' && i < NUM_MODEL_SIZES; i++) {
        if (strcmp(name, model_sizes[i].name) == 0 || strcmp(name, model_sizes[i].millions) == 0) {
            return &model_sizes[i];
        }
    }
    return NULL;
}

// Sets a config from the name of a size, all but the vocabulary. Returns false if no size has this name.
static inline bool model_config_from_size(ModelConfig *config, const char *name) {
    const ModelSize *size = model_find_size(name);
    if (size == NULL) { return false; }
    int vocab_size = config->vocab_size, padded_vocab_size = config->padded_vocab_size;
    *config = size->config;
    config->vocab_size = vocab_size, config->padded_vocab_size = padded_vocab_size;
    model_complete(config);
    return true;
}

// ---- Initialisation ----

// The part of a range of elements, counted as param_offset counts, that lies in one tensor.
typedef struct {
    int64_t begin, end; // elements of the tensor, all layers together; begin = end: none
    int64_t at;         // where the part begins in the range
} ParamOverlap;

static inline ParamOverlap param_overlap(const ModelConfig *config, int i, int64_t first, int64_t n) {
    int64_t offset = param_offset(config, i), size = param_size(config, i);
    ParamOverlap part = {max_i64(0, first - offset), min_i64(size, first + n - offset), 0};
    if (part.end <= part.begin) { part.begin = part.end = 0; }
    part.at = part.begin < part.end ? offset + part.begin - first : 0;
    return part;
}

// Elements [begin, end) of tensor i, drawn in pairs: pair p makes up elements 2p and 2p + 1.
static inline void param_init_normal(float *out, int i, float std, uint64_t seed, int64_t begin, int64_t end) {
#pragma omp parallel for schedule(static)
    for (int64_t pair = begin / 2; pair < (end + 1) / 2; pair++) {
        float normal[2];
        rand_normal_pair(seed, RAND_INIT + (uint64_t)i, (uint64_t)pair, normal);
        if (2 * pair >= begin) { out[2 * pair - begin] = std * normal[0]; }
        if (2 * pair + 1 < end) { out[2 * pair + 1 - begin] = std * normal[1]; }
    }
}

// Fills `out` with elements first .. first + n - 1 of all parameters as GPT-2 was initialised: weights normal with
// standard deviation MODEL_INIT_STD (0.02), the two projections into the residual stream scaled by 1/sqrt(2L) (Radford
// et al. 2019, section 2.3), biases 0, LayerNorm gains 1, padding rows 0. The values follow from the seed alone,
// however ranges are cut.
static inline void param_init_range(float *out, const ModelConfig *config, uint64_t seed, int64_t first, int64_t n) {
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamInit init = param_specs[i].init;
        ParamOverlap part = param_overlap(config, i, first, n);
        float *tensor = out + part.at;
        int64_t drawn = part.begin; // end of the random elements
        if (init == INIT_NORMAL || init == INIT_RESIDUAL) {
            float std = MODEL_INIT_STD;
            if (init == INIT_RESIDUAL) { std /= sqrtf(2.0f * (float)config->num_layers); }
            drawn = max_i64(part.begin, min_i64(part.end, param_used(config, i)));
            param_init_normal(tensor, i, std, seed, part.begin, drawn);
        }
        for (int64_t j = drawn; j < part.end; j++) { tensor[j - part.begin] = init == INIT_ONE ? 1.0f : 0.0f; }
    }
}

// Initialises an array of a CPU trainer.
static inline void param_init_all(float *params, const ModelConfig *config, uint64_t seed) {
    ParamPiece piece = PARAM_PIECE_BEGIN;
    while (param_next_piece(config, OPTIMIZER_ADAMW, &piece)) {
        param_init_range(params + piece.place, config, seed, piece.in_file, piece.count);
    }
}

#endif // LLMC_PARAMS_H
