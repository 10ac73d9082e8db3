// The GPT-2 model as data: its configuration, THE parameter table, sizes by name, and initialisation.
//
// Allocation, initialisation, optimizer groups, checkpoints, the printed plan and the tests are
// loops over the table below. To add a tensor, add a row.
#ifndef LLMC_GPT2_H
#define LLMC_GPT2_H

#include "llmc/base/rand.h"
#include "llmc/base/utils.h"

typedef struct {
    int max_seq_len;       // maxT: positions that wpe knows
    int vocab_size;        // V
    int padded_vocab_size; // Vp: V rounded up to a multiple of 128; rows V..Vp-1 of wte are zero and never predicted
    int num_layers;        // L
    int num_heads;         // NH
    int channels;          // C
} GPT2Config;

#define GPT2_VOCAB_SIZE 50257
#define GPT2_LAYERNORM_EPSILON 1e-5f
#define GPT2_INIT_STD 0.02f

static inline int gpt2_pad_vocab(int vocab_size) { return (int)round_up_i64(vocab_size, 128); }

// A dimension of a tensor as a function of the config.
typedef enum { DIM_NONE, DIM_Vp, DIM_maxT, DIM_C, DIM_3C, DIM_4C, DIM_NH } GPT2Dim;
typedef enum { INIT_NORMAL, INIT_RESIDUAL, INIT_ZERO, INIT_ONE } GPT2Init; // RESIDUAL: normal scaled by 1/sqrt(2L)
enum { ONCE = 0, PER_LAYER = 1 };
enum { NO_DECAY = 0, DECAY = 1 };
enum { ADAMW = 0, MUON = 1, MUON_QKV = 3 }; // matrices in one layer that --optimizer muon updates (llmc/model/muon.h)

// THE parameter table, in file order. The names are fields of the trainers' Tensors (p.wte).
//  name, how often, rows (DIM_NONE: a vector), columns, initialisation, weight decay, matrices for Muon
#define GPT2_PARAMETERS(X)                                                                                             \
    X(wte, ONCE, DIM_Vp, DIM_C, INIT_NORMAL, DECAY, ADAMW)                                                             \
    X(wpe, ONCE, DIM_maxT, DIM_C, INIT_NORMAL, DECAY, ADAMW)                                                           \
    X(ln1w, PER_LAYER, DIM_NONE, DIM_C, INIT_ONE, NO_DECAY, ADAMW)                                                     \
    X(ln1b, PER_LAYER, DIM_NONE, DIM_C, INIT_ZERO, NO_DECAY, ADAMW)                                                    \
    X(qkvw, PER_LAYER, DIM_3C, DIM_C, INIT_NORMAL, DECAY, MUON_QKV)                                                    \
    X(qkvb, PER_LAYER, DIM_NONE, DIM_3C, INIT_ZERO, NO_DECAY, ADAMW)                                                   \
    X(attprojw, PER_LAYER, DIM_C, DIM_C, INIT_RESIDUAL, DECAY, MUON)                                                   \
    X(attprojb, PER_LAYER, DIM_NONE, DIM_C, INIT_ZERO, NO_DECAY, ADAMW)                                                \
    X(ln2w, PER_LAYER, DIM_NONE, DIM_C, INIT_ONE, NO_DECAY, ADAMW)                                                     \
    X(ln2b, PER_LAYER, DIM_NONE, DIM_C, INIT_ZERO, NO_DECAY, ADAMW)                                                    \
    X(fcw, PER_LAYER, DIM_4C, DIM_C, INIT_NORMAL, DECAY, MUON)                                                         \
    X(fcb, PER_LAYER, DIM_NONE, DIM_4C, INIT_ZERO, NO_DECAY, ADAMW)                                                    \
    X(fcprojw, PER_LAYER, DIM_C, DIM_4C, INIT_RESIDUAL, DECAY, MUON)                                                   \
    X(fcprojb, PER_LAYER, DIM_NONE, DIM_C, INIT_ZERO, NO_DECAY, ADAMW)                                                 \
    X(lnfw, ONCE, DIM_NONE, DIM_C, INIT_ONE, NO_DECAY, ADAMW)                                                          \
    X(lnfb, ONCE, DIM_NONE, DIM_C, INIT_ZERO, NO_DECAY, ADAMW)

#define GPT2_PARAM_ENUM(name, ...) PARAM_##name,
typedef enum { GPT2_PARAMETERS(GPT2_PARAM_ENUM) NUM_PARAM_TENSORS } GPT2Param;

typedef struct {
    const char *name;
    int per_layer;      // PER_LAYER: one such tensor in each block, stored together; ONCE: one in the model
    GPT2Dim rows, cols; // rows DIM_NONE: a vector of cols
    GPT2Init init;
    int decay;
    int muon; // matrices; 0: AdamW updates the tensor with either optimizer
} GPT2ParamSpec;

#define GPT2_PARAM_SPEC(name, layers, rows, cols, init, decay, muon) {#name, layers, rows, cols, init, decay, muon},
static const GPT2ParamSpec gpt2_param_specs[NUM_PARAM_TENSORS] = {GPT2_PARAMETERS(GPT2_PARAM_SPEC)};

static inline int64_t gpt2_dim(const GPT2Config *config, GPT2Dim dim) {
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

static inline int64_t gpt2_param_rows(const GPT2Config *config, int i) {
    return gpt2_dim(config, gpt2_param_specs[i].rows);
}

static inline int64_t gpt2_param_cols(const GPT2Config *config, int i) {
    return gpt2_dim(config, gpt2_param_specs[i].cols);
}

// How many copies of tensor i the model holds: L for a block's tensor, 1 otherwise.
static inline int gpt2_param_layers(const GPT2Config *config, int i) {
    return gpt2_param_specs[i].per_layer ? config->num_layers : 1;
}

// Elements of tensor i, all layers together.
static inline int64_t gpt2_param_size(const GPT2Config *config, int i) {
    return gpt2_param_layers(config, i) * gpt2_param_rows(config, i) * gpt2_param_cols(config, i);
}

// First element of tensor i (i = NUM_PARAM_TENSORS: the total) when all tensors lie one after another in table order.
static inline int64_t gpt2_param_offset(const GPT2Config *config, int i) {
    int64_t offset = 0;
    for (int j = 0; j < i; j++) { offset += gpt2_param_size(config, j); }
    return offset;
}

// Returns the number of all stored elements, the padding of wte included.
static inline int64_t gpt2_num_params(const GPT2Config *config) { return gpt2_param_offset(config, NUM_PARAM_TENSORS); }

// What updates the weights: AdamW, or Muon for the matrices of the blocks and AdamW for all else (llmc/model/muon.h).
typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_MUON } GPT2Optimizer;

// Tells whether Muon updates tensor i.
static inline bool muon_takes(GPT2Optimizer optimizer, int i) {
    return optimizer == OPTIMIZER_MUON && gpt2_param_specs[i].muon > 0;
}

// AdamW's second moment v exists only for the tensors that AdamW updates. They lie one after another, in the order of
// the table. Returns the place in v of the element at `place` in the order of the parameters, as gpt2_param_offset
// counts. The element belongs to AdamW. place = gpt2_num_params: the length of v.
static inline int64_t gpt2_place_in_v(const GPT2Config *config, GPT2Optimizer optimizer, int64_t place) {
    int64_t left_out = 0;
    for (int i = 0; i < NUM_PARAM_TENSORS && gpt2_param_offset(config, i) < place; i++) {
        if (muon_takes(optimizer, i)) { left_out += gpt2_param_size(config, i); }
    }
    return place - left_out;
}

static inline int64_t gpt2_length_of_v(const GPT2Config *config, GPT2Optimizer optimizer) {
    return gpt2_place_in_v(config, optimizer, gpt2_num_params(config));
}

// Returns the floating-point operations to train on one token: 6 for each weight of a matrix multiply (2 forward, 4
// backward), with wte in the head, and 12 L C T/2 for attention, where a token sees T/2 tokens on average.
static inline double flops_per_token(const GPT2Config *config, int64_t T) {
    double L = config->num_layers, C = config->channels;
    return 6.0 * (12.0 * L * C * C + (double)config->vocab_size * C) + 6.0 * L * C * (double)T;
}

// First element of one layer of tensor i. The layer of a tensor outside the blocks does not matter.
static inline int64_t gpt2_layer_offset(const GPT2Config *config, int i, int layer) {
    int64_t before = gpt2_param_specs[i].per_layer ? layer : 0;
    return gpt2_param_offset(config, i) + before * gpt2_param_rows(config, i) * gpt2_param_cols(config, i);
}

// Writes what a message calls tensor i of a layer, behind `what`, e.g. "gradient of fcw of layer 3".
static inline void gpt2_param_text(char *text, size_t size, const char *what, int i, int layer) {
    int n = snprintf(text, size, "%s %s", what, gpt2_param_specs[i].name);
    if (gpt2_param_specs[i].per_layer) { snprintf(text + n, size - (size_t)n, " of layer %d", layer); }
}

// Writes the shape of tensor i with all its layers, e.g. "(12, 2304, 768)".
static inline void gpt2_param_shape(char *text, size_t size, const GPT2Config *config, int i) {
    const GPT2ParamSpec *spec = &gpt2_param_specs[i];
    char layers[24] = "", rows[24] = "";
    if (spec->per_layer) { snprintf(layers, sizeof(layers), "%d, ", config->num_layers); }
    if (spec->rows != DIM_NONE) { snprintf(rows, sizeof(rows), "%lld, ", (long long)gpt2_param_rows(config, i)); }
    snprintf(text, size, "(%s%s%lld)", layers, rows, (long long)gpt2_param_cols(config, i));
}

// Checks a config. `where` begins the message: a file name or an option. The bounds are far beyond any GPT-2, and small
// enough that no product of them overflows 64 bits.
static inline bool gpt2_check_config(const GPT2Config *config, const char *where, Error *error) {
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

// THE table of sizes: the four of GPT-2's release, then others of the GPT-2 series, by depth, and of the GPT-3 series,
// by channels.
//  name, name by parameters, name of the released weights (not of a new model), layers, heads, channels, context
#define GPT2_RELEASED(X)                                                                                               \
    X("d12", "124M", "gpt2", 12, 12, 768, 1024)                                                                        \
    X("d24", "350M", "gpt2-medium", 24, 16, 1024, 1024)                                                                \
    X("d36", "774M", "gpt2-large", 36, 20, 1280, 1024)                                                                 \
    X("d48", "1558M", "gpt2-xl", 48, 25, 1600, 1024)
//  name, layers, heads, channels, context
#define GPT2_UNRELEASED(X)                                                                                             \
    X("d6", 6, 6, 384, 1024)                                                                                           \
    X("d60", 60, 30, 1920, 1024)                                                                                       \
    X("d72", 72, 30, 2880, 1024)                                                                                       \
    X("d84", 84, 36, 3456, 1024)                                                                                       \
    X("gpt3:c768", 12, 12, 768, 2048)                                                                                  \
    X("gpt3:c1024", 24, 16, 1024, 2048)                                                                                \
    X("gpt3:c1536", 24, 16, 1536, 2048)                                                                                \
    X("gpt3:c2048", 24, 16, 2048, 2048)                                                                                \
    X("gpt3:c2560", 32, 32, 2560, 2048)                                                                                \
    X("gpt3:c4096", 32, 32, 4096, 2048)                                                                                \
    X("gpt3:c5120", 40, 40, 5120, 2048)                                                                                \
    X("gpt3:c12288", 96, 96, 12288, 2048)

typedef struct {
    const char *name;
    const char *millions; // the name by parameters; "": it has none
    const char *release;  // what OpenAI's and Hugging Face's programs call the released weights; "": there are none
    int layers, heads, channels, context;
} GPT2Size;

#define GPT2_RELEASED_ROW(...) {__VA_ARGS__},
#define GPT2_UNRELEASED_ROW(name, ...) {name, "", "", __VA_ARGS__},
static const GPT2Size gpt2_sizes[] = {GPT2_RELEASED(GPT2_RELEASED_ROW) GPT2_UNRELEASED(GPT2_UNRELEASED_ROW)};
#define NUM_GPT2_SIZES (sizeof(gpt2_sizes) / sizeof(gpt2_sizes[0]))

// The names that --init takes for a new model: " d12 124M d24 350M ...".
#define GPT2_RELEASED_WORDS(name, millions, ...) " " name " " millions
#define GPT2_UNRELEASED_WORD(name, ...) " " name
#define GPT2_SIZE_NAMES GPT2_RELEASED(GPT2_RELEASED_WORDS) GPT2_UNRELEASED(GPT2_UNRELEASED_WORD)

// Finds a size by one of its two names for a new model ("d12", "124M"). NULL: there is none of this name.
static inline const GPT2Size *gpt2_find_size(const char *name) {
    for (size_t i = 0; name[0] != '\0' && i < NUM_GPT2_SIZES; i++) {
        if (strcmp(name, gpt2_sizes[i].name) == 0 || strcmp(name, gpt2_sizes[i].millions) == 0) {
            return &gpt2_sizes[i];
        }
    }
    return NULL;
}

// Finds the size of released weights by their name ("gpt2-xl"). NULL: there are none.
static inline const GPT2Size *gpt2_find_release(const char *name) {
    for (size_t i = 0; name[0] != '\0' && i < NUM_GPT2_SIZES; i++) {
        if (strcmp(name, gpt2_sizes[i].release) == 0) { return &gpt2_sizes[i]; }
    }
    return NULL;
}

// Sets layers, heads, channels and context from the name of a size. The vocabulary is left alone. Returns false if no
// size has this name.
static inline bool gpt2_config_from_size(GPT2Config *config, const char *name) {
    const GPT2Size *size = gpt2_find_size(name);
    if (size == NULL) { return false; }
    config->num_layers = size->layers;
    config->num_heads = size->heads;
    config->channels = size->channels;
    config->max_seq_len = size->context;
    return true;
}

// The part of a range of elements, counted as gpt2_param_offset counts, that lies in one tensor.
typedef struct {
    int64_t begin, end; // elements of the tensor, all layers together; begin = end: none
    int64_t at;         // where the part begins in the range
} GPT2Overlap;

static inline GPT2Overlap gpt2_overlap(const GPT2Config *config, int i, int64_t first, int64_t n) {
    int64_t offset = gpt2_param_offset(config, i), size = gpt2_param_size(config, i);
    GPT2Overlap part = {max_i64(0, first - offset), min_i64(size, first + n - offset), 0};
    if (part.end <= part.begin) { part.begin = part.end = 0; }
    part.at = part.begin < part.end ? offset + part.begin - first : 0;
    return part;
}

// Elements [begin, end) of tensor i, drawn in pairs: pair p makes up elements 2p and 2p + 1.
static inline void gpt2_init_normal(float *out, int i, float std, uint64_t seed, int64_t begin, int64_t end) {
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
static inline void gpt2_init_range(float *out, const GPT2Config *config, uint64_t seed, int64_t first, int64_t n) {
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        GPT2Init init = gpt2_param_specs[i].init;
        GPT2Overlap part = gpt2_overlap(config, i, first, n);
        float *tensor = out + part.at;
        int64_t drawn = part.begin; // end of the random elements
        if (init == INIT_NORMAL || init == INIT_RESIDUAL) {
            float std = GPT2_INIT_STD;
            if (init == INIT_RESIDUAL) { std /= sqrtf(2.0f * (float)config->num_layers); }
            int64_t used = i == PARAM_wte ? (int64_t)config->vocab_size * config->channels : part.end;
            drawn = max_i64(part.begin, min_i64(part.end, used));
            gpt2_init_normal(tensor, i, std, seed, part.begin, drawn);
        }
        for (int64_t j = drawn; j < part.end; j++) { tensor[j - part.begin] = init == INIT_ONE ? 1.0f : 0.0f; }
    }
}

// Initialises all parameters: gpt2_num_params floats.
static inline void gpt2_init_params(float *params, const GPT2Config *config, uint64_t seed) {
    gpt2_init_range(params, config, seed, 0, gpt2_num_params(config));
}

#endif // LLMC_GPT2_H
