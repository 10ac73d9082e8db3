// A model's configuration and parameters: what follows from its tables (gpt2.h). The table of a program that names no
// other is GPT-2's.
#ifndef LLMC_PARAMS_H
#define LLMC_PARAMS_H

#include "llmc/base/rand.h"
#include "llmc/base/utils.h"
#ifndef MODEL_PARAMETERS
#include "llmc/model/gpt2.h"
#endif

typedef struct {
    int max_seq_len;       // maxT: positions that wpe knows
    int vocab_size;        // V
    int padded_vocab_size; // Vp: V rounded up to a multiple of 128; rows V..Vp-1 of wte are zero and never predicted
    int num_layers;        // L
    int num_heads;         // NH
    int channels;          // C
} ModelConfig;

static inline int model_pad_vocab(int vocab_size) { return (int)round_up_i64(vocab_size, 128); }

// A dimension of a tensor as a function of the config.
typedef enum { DIM_NONE, DIM_Vp, DIM_maxT, DIM_C, DIM_3C, DIM_4C, DIM_NH } ModelDim;

static inline int64_t model_dim(const ModelConfig *config, ModelDim dim) {
    switch (dim) {
    case DIM_Vp: return config->padded_vocab_size;
    case DIM_maxT: return config->max_seq_len;
    case DIM_C: return config->channels;
    case DIM_3C: return 3 * (int64_t)config->channels;
    case DIM_4C: return 4 * (int64_t)config->channels;
    case DIM_NH: return config->num_heads;
    default: return 1; // DIM_NONE: a vector is one row
    }
}

typedef enum { INIT_NORMAL, INIT_RESIDUAL, INIT_ZERO, INIT_ONE } ParamInit; // RESIDUAL: normal scaled by 1/sqrt(2L)
enum { ONCE = 0, PER_LAYER = 1 };
enum { NO_DECAY = 0, DECAY = 1 };
enum { ADAMW = 0, MUON = 1, MUON_QKV = 3 }; // matrices in one layer that --optimizer muon updates (llmc/model/muon.h)

#define PARAM_ENUM(name, ...) PARAM_##name,
typedef enum { MODEL_PARAMETERS(PARAM_ENUM) NUM_PARAM_TENSORS } Param;

typedef struct {
    const char *name;
    int per_layer;       // PER_LAYER: one such tensor in each block, stored together; ONCE: one in the model
    ModelDim rows, cols; // rows DIM_NONE: a vector of cols
    ParamInit init;
    int decay;
    int muon; // matrices; 0: AdamW updates the tensor with either optimizer
} ParamSpec;

#define PARAM_SPEC(name, layers, rows, cols, init, decay, muon) {#name, layers, rows, cols, init, decay, muon},
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

// First element of tensor i (i = NUM_PARAM_TENSORS: the total) when all tensors lie one after another in table order.
static inline int64_t param_offset(const ModelConfig *config, int i) {
    int64_t offset = 0;
    for (int j = 0; j < i; j++) { offset += param_size(config, j); }
    return offset;
}

// Returns the number of all stored elements, the padding of wte included.
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

// First element of one layer of tensor i. The layer of a tensor outside the blocks does not matter.
static inline int64_t param_layer_offset(const ModelConfig *config, int i, int layer) {
    int64_t before = param_specs[i].per_layer ? layer : 0;
    return param_offset(config, i) + before * param_rows(config, i) * param_cols(config, i);
}

// Writes what a message calls tensor i of a layer, behind `what`, e.g. "gradient of fcw of layer 3".
static inline void param_text(char *text, size_t size, const char *what, int i, int layer) {
    int n = snprintf(text, size, "%s %s", what, param_specs[i].name);
    if (param_specs[i].per_layer) { snprintf(text + n, size - (size_t)n, " of layer %d", layer); }
}

// Writes the shape of tensor i with all its layers, e.g. "(12, 2304, 768)".
static inline void param_shape(char *text, size_t size, const ModelConfig *config, int i) {
    const ParamSpec *spec = &param_specs[i];
    char layers[24] = "", rows[24] = "";
    if (spec->per_layer) { snprintf(layers, sizeof(layers), "%d, ", config->num_layers); }
    if (spec->rows != DIM_NONE) { snprintf(rows, sizeof(rows), "%lld, ", (long long)param_rows(config, i)); }
    snprintf(text, size, "(%s%s%lld)", layers, rows, (long long)param_cols(config, i));
}

// Returns the floating-point operations to train on one token: 6 for each weight of a matrix multiply (2 forward, 4
// backward), with wte in the head, and 12 L C T/2 for attention, where a token sees T/2 tokens on average.
static inline double flops_per_token(const ModelConfig *config, int64_t T) {
    double L = config->num_layers, C = config->channels;
    return 6.0 * (12.0 * L * C * C + (double)config->vocab_size * C) + 6.0 * L * C * (double)T;
}

// Checks a config. `where` begins the message: a file name or an option. The bounds are far beyond any GPT-2, and small
// enough that no product of them overflows 64 bits.
static inline bool model_check_config(const ModelConfig *config, const char *where, Error *error) {
    const struct {
        const char *field;
        int value, max;
    } checks[] = {
        {"context length", config->max_seq_len, 1 << 20}, {"vocabulary size", config->vocab_size, 1 << 20},
        {"number of layers", config->num_layers, 1000},   {"number of heads", config->num_heads, 1024},
        {"channels", config->channels, 1 << 16},
    };
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        if (checks[i].value < 1 || checks[i].value > checks[i].max) {
            return fail(error, "%s: %s is %d, expected 1 to %d", where, checks[i].field, checks[i].value,
                        checks[i].max);
        }
    }
    if (config->channels % config->num_heads != 0) {
        return fail(error, "%s: %d channels cannot be divided among %d heads; choose heads that divide channels", where,
                    config->channels, config->num_heads);
    }
    if (config->padded_vocab_size < config->vocab_size || config->padded_vocab_size > (1 << 20)) {
        return fail(error, "%s: padded vocabulary is %d, expected %d (vocabulary size) to %d", where,
                    config->padded_vocab_size, config->vocab_size, 1 << 20);
    }
    return true;
}

// ---- Sizes by name ----

typedef struct {
    const char *name;
    const char *millions; // the name by parameters; "": it has none
    const char *release;  // what OpenAI's and Hugging Face's programs call the released weights; "": there are none
    int layers, heads, channels, context;
} ModelSize;

#define MODEL_RELEASED_ROW(...) {__VA_ARGS__},
#define MODEL_UNRELEASED_ROW(name, ...) {name, "", "", __VA_ARGS__},
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

// Finds the size of released weights by their name ("gpt2-xl"). NULL: there are none.
static inline const ModelSize *model_find_release(const char *name) {
    for (size_t i = 0; name[0] != '\0' && i < NUM_MODEL_SIZES; i++) {
        if (strcmp(name, model_sizes[i].release) == 0) { return &model_sizes[i]; }
    }
    return NULL;
}

// Sets layers, heads, channels and context from the name of a size. The vocabulary is left alone. Returns false if no
// size has this name.
static inline bool model_config_from_size(ModelConfig *config, const char *name) {
    const ModelSize *size = model_find_size(name);
    if (size == NULL) { return false; }
    config->num_layers = size->layers;
    config->num_heads = size->heads;
    config->channels = size->channels;
    config->max_seq_len = size->context;
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
// standard deviation 0.02, the two projections into the residual stream scaled by 1/sqrt(2L) (Radford et al. 2019,
// section 2.3), biases 0, LayerNorm gains 1, padding rows 0. The values follow from the seed alone, however ranges are
// cut.
static inline void param_init_range(float *out, const ModelConfig *config, uint64_t seed, int64_t first, int64_t n) {
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamInit init = param_specs[i].init;
        ParamOverlap part = param_overlap(config, i, first, n);
        float *tensor = out + part.at;
        int64_t drawn = part.begin; // end of the random elements
        if (init == INIT_NORMAL || init == INIT_RESIDUAL) {
            float std = MODEL_INIT_STD;
            if (init == INIT_RESIDUAL) { std /= sqrtf(2.0f * (float)config->num_layers); }
            int64_t used = param_specs[i].rows == DIM_Vp ? config->vocab_size * param_cols(config, i) : part.end;
            drawn = max_i64(part.begin, min_i64(part.end, used));
            param_init_normal(tensor, i, std, seed, part.begin, drawn);
        }
        for (int64_t j = drawn; j < part.end; j++) { tensor[j - part.begin] = init == INIT_ONE ? 1.0f : 0.0f; }
    }
}

// Initialises all parameters: model_num_params floats.
static inline void param_init_all(float *params, const ModelConfig *config, uint64_t seed) {
    param_init_range(params, config, seed, 0, model_num_params(config));
}

#endif // LLMC_PARAMS_H
