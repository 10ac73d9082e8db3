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

// A dimension of a tensor as a function of the configuration.
typedef enum {
    DIM_NONE, // a vector is one row
    DIM_Vp,
    DIM_maxT,
    DIM_C,
    DIM_NH,
    DIM_Q,   // NH*HS: the queries of all heads
    DIM_KV,  // KV*HS: the keys or the values of all heads
    DIM_QKV, // NH*HS + 2*KV*HS: queries, keys and values side by side
    DIM_F,
    DIM_2F,
    DIM_HEAD, // Vp, or 0 if the head is tied
    DIM_QB,   // as DIM_Q, or 0 without biases of q, k, v
    DIM_KVB
} ModelDim;

static inline int64_t model_dim(const ModelConfig *c, ModelDim dim) {
    int64_t q = (int64_t)c->num_heads * c->head_size, kv = (int64_t)c->num_kv_heads * c->head_size;
    switch (dim) {
    case DIM_Vp: return c->padded_vocab_size;
    case DIM_maxT: return c->max_seq_len;
    case DIM_C: return c->channels;
    case DIM_NH: return c->num_heads;
    case DIM_Q: return q;
    case DIM_KV: return kv;
    case DIM_QKV: return q + 2 * kv;
    case DIM_F: return c->mlp_width;
    case DIM_2F: return 2 * (int64_t)c->mlp_width;
    case DIM_HEAD: return c->tied ? 0 : c->padded_vocab_size;
    case DIM_QB: return c->qkv_bias ? q : 0;
    case DIM_KVB: return c->qkv_bias ? kv : 0;
    default: return 1; // DIM_NONE
    }
}

typedef enum { INIT_NORMAL, INIT_RESIDUAL, INIT_ZERO, INIT_ONE } ParamInit; // RESIDUAL: normal scaled by 1/sqrt(2L)
enum { ONCE = 0, PER_LAYER = 1 };
enum { NO_DECAY = 0, DECAY = 1 };
enum { ADAMW = 0, MUON = 1, MUON_QKV = 3 }; // matrices in one layer that --optimizer muon updates (llmc/model/muon.h)

// A row of the table of sizes. Fields that are 0 follow from the others (model_complete).
typedef struct {
    const char *name;
    const char *millions; // another name, by parameters; "": it has none
    const char *release;  // what the Hub calls the released weights; "": there are none
    int layers, heads, channels, context, vocab, kv_heads, head_size, mlp_width, tied;
    float rope_theta, rope_factor;
} ModelSize;

#endif // LLMC_MODEL_CONFIG_H
