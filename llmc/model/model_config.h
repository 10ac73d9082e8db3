// The configuration of a model, and the words of its tables (gpt2.h, llama3.h).
#ifndef LLMC_MODEL_CONFIG_H
#define LLMC_MODEL_CONFIG_H

#include <stdint.h>

// The fields of a configuration, in the order of a model's file: type, name, what messages call it, least, most. A file
// has the first MODEL_STORED_FIELDS of them, and model_complete sets the rest. The bounds are far beyond any model, and
// small enough that no product of sizes overflows 64 bits.
#define MODEL_CONFIG(X)                                                                                                \
    X(int, max_seq_len, "context length", 1, 1 << 20)          /* maxT */                                              \
    X(int, vocab_size, "vocabulary size", 1, 1 << 20)          /* V */                                                 \
    X(int, num_layers, "number of layers", 1, 1000)            /* L */                                                 \
    X(int, num_heads, "number of heads", 1, 1024)              /* NH: of queries */                                    \
    X(int, channels, "channels", 1, 1 << 16)                   /* C */                                                 \
    X(int, padded_vocab_size, "padded vocabulary", 1, 1 << 20) /* Vp: the rows from V on are zero */                   \
    X(int, variant, "variant", 0, 1 << 30)                     /* MODEL_VARIANT */                                     \
    X(int, num_kv_heads, "number of KV heads", 1, 1024)        /* KV: each serves NH/KV heads of queries */            \
    X(int, head_size, "head size", 1, 1 << 16)                 /* HS */                                                \
    X(int, mlp_width, "width of the MLP", 1, 1 << 18)          /* F */                                                 \
    X(int, tied, "tied head", 0, 1)                            /* the head's weights are the embedding's */            \
    X(int, qkv_bias, "bias of q, k, v", 0, 1)                                                                          \
    X(float, norm_epsilon, "epsilon of the norm", 1e-12f, 0.1f)                                                        \
    X(float, rope_theta, "rope_theta", 1.0f, 1e12f)  /* of rotary embeddings */                                        \
    X(float, rope_factor, "rope factor", 1.0f, 1e6f) /* 1: no scaling of their frequencies */                          \
    X(float, rope_low, "low_freq_factor", 1e-6f, 1e6f)                                                                 \
    X(float, rope_high, "high_freq_factor", 1e-6f, 1e6f)                                                               \
    X(int, rope_context, "original context", 0, 1 << 24) /* of the scaling; 0: there is none */

#define MODEL_CONFIG_FIELD(type, name, ...) type name;
#define MODEL_CONFIG_COUNT(...) +1
typedef struct {
    MODEL_CONFIG(MODEL_CONFIG_FIELD)
    uint64_t tokenizer; // the hash of the tokenizer that it was trained with; 0: not known
} ModelConfig;
enum { MODEL_CONFIG_FIELDS = MODEL_CONFIG(MODEL_CONFIG_COUNT) };

// The dimensions of tensors as functions of the configuration c: name, value.
#define MODEL_DIMS(X)                                                                                                  \
    X(NONE, 1) /* a vector is one row */                                                                               \
    X(Vp, c->padded_vocab_size)                                                                                        \
    X(maxT, c->max_seq_len)                                                                                            \
    X(C, c->channels)                                                                                                  \
    X(NH, c->num_heads)                                                                                                \
    X(Q, (int64_t)c->num_heads * c->head_size)                           /* the queries of all heads */                \
    X(KV, (int64_t)c->num_kv_heads * c->head_size)                       /* the keys or the values of all heads */     \
    X(QKV, (c->num_heads + 2 * (int64_t)c->num_kv_heads) * c->head_size) /* queries, keys and values side by side */   \
    X(F, c->mlp_width)                                                                                                 \
    X(2F, 2 * (int64_t)c->mlp_width)                                                                                   \
    X(HEAD, c->tied ? 0 : c->padded_vocab_size)                       /* empty if the head is tied */                  \
    X(QB, c->qkv_bias ? (int64_t)c->num_heads * c->head_size : 0)     /* the biases of q */                            \
    X(KVB, c->qkv_bias ? (int64_t)c->num_kv_heads * c->head_size : 0) /* the biases of k or v */

#define MODEL_DIM_ENUM(name, value) DIM_##name,
typedef enum { MODEL_DIMS(MODEL_DIM_ENUM) } ModelDim;

static inline int64_t model_dim(const ModelConfig *c, ModelDim dim) {
#define MODEL_DIM_CASE(name, value)                                                                                    \
    case DIM_##name: return value;
    switch (dim) { MODEL_DIMS(MODEL_DIM_CASE) }
    return 1;
}

typedef enum { INIT_NORMAL, INIT_RESIDUAL, INIT_ZERO, INIT_ONE } ParamInit; // RESIDUAL: normal scaled by 1/sqrt(2L)
// Where a tensor belongs: one in each block, or one in the model, before or behind the blocks.
typedef enum { AT_START, PER_LAYER, AT_END } ParamPlace;
enum { IN_BLOCK_AT_START = 0, IN_BLOCK_PER_LAYER = 1, IN_BLOCK_AT_END = 0 };
enum { NO_DECAY = 0, DECAY = 1 };
enum { ADAMW = 0, MUON = 1, MUON_QKV = 3 }; // matrices in one layer that --optimizer muon updates (llmc/model/muon.h)

// How tensor parallelism splits a tensor over ranks (model_part.h). THIRDS: q, k and v lie in one tensor, and each of
// them is split by rows.
typedef enum { SPLIT_WHOLE, SPLIT_ROWS, SPLIT_COLS, SPLIT_THIRDS } ParamSplit;

// A row of the table of sizes.
typedef struct {
    const char *name;
    const char *millions; // another name, by parameters; "": it has none
    ModelConfig config;   // fields that are 0 follow from the others (model_complete)
} ModelSize;

#endif // LLMC_MODEL_CONFIG_H
