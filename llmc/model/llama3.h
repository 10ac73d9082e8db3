// Llama 3 and its relatives as data: THE parameter table, THE activation table, and sizes by name. gpt2.h explains the
// tables. SmolLM2 and Qwen 2.5 (with biases of q, k, v) are Llamas of other sizes.
#ifndef LLMC_LLAMA3_H
#define LLMC_LLAMA3_H

#define MODEL_NAME "Llama 3"
#define MODEL_INIT_STD 0.02f     // of all matrices; the projections into the residual stream divide it by sqrt(2L)
#define MODEL_VOCAB_SIZE 128256  // without a tokenizer ...
#define MODEL_END_OF_TEXT 128000 // ... and the token with which a sample begins
#define MODEL_TOKENIZER "llama3_tokenizer.bin"
#define VOCAB_HINT "give --tokenizer; `python3 dev/hf.py import` writes a model's own beside it"
#define MODEL_CPU_SIZE "llama:d6"
#define MODEL_GPU_SIZE "llama:d12"
#define MODEL_GELU_FUSION 0 // there is no GELU
#define MODEL_RECOMPUTES "SwiGLU, 2: RMSNorm too"
#define MODEL_SIZE_EXAMPLES "llama:1B, 3B, 8B, d2 ... d16, smollm2:135M, 360M"

#define MODEL_VARIANT 3
#define MODEL_STORED_FIELDS MODEL_CONFIG_FIELDS // of the configuration, in a file
// A new model's MLP of 8/3 C has as many weights as one of 4C without a gate.
#define MODEL_MLP_WIDTH(C) (((C)*8 / 3 + 63) / 64 * 64)
#define MODEL_ROPE_THETA 5e5f // of a new model

// THE parameter table, in file order. qw, kw and vw are neighbours in a block, so that one multiply takes them as one
// matrix (DIM_QKV, C), and so are gatew and upw, and the biases. headw is empty if the head is tied, and the biases are
// unless a model has them.
//  name, where, rows (DIM_NONE: a vector), columns, initialisation, weight decay, matrices for Muon, split
#define MODEL_PARAMETERS(X)                                                                                            \
    X(wte, AT_START, DIM_Vp, DIM_C, INIT_NORMAL, DECAY, ADAMW, ROWS)                                                   \
    X(ln1w, PER_LAYER, DIM_NONE, DIM_C, INIT_ONE, NO_DECAY, ADAMW, WHOLE)                                              \
    X(qw, PER_LAYER, DIM_Q, DIM_C, INIT_NORMAL, DECAY, MUON, ROWS)                                                     \
    X(kw, PER_LAYER, DIM_KV, DIM_C, INIT_NORMAL, DECAY, MUON, ROWS)                                                    \
    X(vw, PER_LAYER, DIM_KV, DIM_C, INIT_NORMAL, DECAY, MUON, ROWS)                                                    \
    X(qb, PER_LAYER, DIM_NONE, DIM_QB, INIT_ZERO, NO_DECAY, ADAMW, ROWS)                                               \
    X(kb, PER_LAYER, DIM_NONE, DIM_KVB, INIT_ZERO, NO_DECAY, ADAMW, ROWS)                                              \
    X(vb, PER_LAYER, DIM_NONE, DIM_KVB, INIT_ZERO, NO_DECAY, ADAMW, ROWS)                                              \
    X(attprojw, PER_LAYER, DIM_C, DIM_Q, INIT_RESIDUAL, DECAY, MUON, COLS)                                             \
    X(ln2w, PER_LAYER, DIM_NONE, DIM_C, INIT_ONE, NO_DECAY, ADAMW, WHOLE)                                              \
    X(gatew, PER_LAYER, DIM_F, DIM_C, INIT_NORMAL, DECAY, MUON, ROWS)                                                  \
    X(upw, PER_LAYER, DIM_F, DIM_C, INIT_NORMAL, DECAY, MUON, ROWS)                                                    \
    X(fcprojw, PER_LAYER, DIM_C, DIM_F, INIT_RESIDUAL, DECAY, MUON, COLS)                                              \
    X(lnfw, AT_END, DIM_NONE, DIM_C, INIT_ONE, NO_DECAY, ADAMW, WHOLE)                                                 \
    X(headw, AT_END, DIM_HEAD, DIM_C, INIT_NORMAL, DECAY, ADAMW, ROWS)

// THE activation table. The first part is in the order of the computation. fc holds a row's gate and up side by side.
//  name, type, copies, given up from this level on, columns, with --fp8, first phase, last phase, category, where,
//  rows
#define MODEL_ACTIVATIONS(X)                                                                                           \
    X(residual, floatX, BOUNDARY, NO_BACKWARD, DIM_C, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)     \
    X(ln1_rstd, float, LAYER, RECOMPUTE_BLOCK, DIM_NONE, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)  \
    X(ln1, floatX, LAYER, RECOMPUTE_LAYERNORM, DIM_C, ONE, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)      \
    X(qkv, floatX, LAYER, RECOMPUTE_BLOCK, DIM_QKV, PADDED, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, ALL)     \
    X(att, floatX, LAYER, RECOMPUTE_BLOCK, DIM_Q, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, ALL)         \
    X(att_lse, float, LAYER, RECOMPUTE_BLOCK, DIM_NH, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, ALL)     \
    X(residual_mid, floatX, LAYER, RECOMPUTE_BLOCK, DIM_C, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH,     \
      OWN)                                                                                                             \
    X(ln2_rstd, float, LAYER, RECOMPUTE_BLOCK, DIM_NONE, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)  \
    X(ln2, floatX, LAYER, RECOMPUTE_LAYERNORM, DIM_C, ONE, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)      \
    X(fc, floatX, LAYER, RECOMPUTE_BLOCK, DIM_2F, PADDED, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, ALL)       \
    X(swiglu, floatX, LAYER, RECOMPUTE_GELU, DIM_F, ONE, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, ALL)        \
    X(projection, floatX, ONE, NEVER, DIM_C, PADDED, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_GPU, ALL)             \
    X(gathered, floatX, ONE, NEVER, DIM_C, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_GPU, GATHERED)            \
    X(lnf, floatX, ONE, NEVER, DIM_C, SAME, FORWARD, LM_HEAD, ACTIVATION, ON_BOTH, OWN)                                \
    X(lnf_rstd, float, ONE, NEVER, DIM_NONE, SAME, FORWARD, LM_HEAD, ACTIVATION, ON_BOTH, OWN)                         \
    X(losses, float, ONE, NEVER, DIM_NONE, SAME, LM_HEAD, LM_HEAD, ACTIVATION, ON_BOTH, ALL)                           \
    X(logits, floatX, CHUNK, NEVER, DIM_Vp, SAME, LM_HEAD, LM_HEAD, ACTIVATION, ON_BOTH, ALL)                          \
    X(dresidual, floatX, TURNS, NEVER, DIM_C, SAME, LM_HEAD, BACKWARD_ATTENTION, GRADIENT, ON_BOTH, OWN)               \
    X(dlnf, floatX, ONE, NEVER, DIM_C, SAME, LM_HEAD, LM_HEAD, GRADIENT, ON_BOTH, ALL)                                 \
    X(dswiglu, floatX, ONE, NEVER, DIM_F, PADDED, BACKWARD_MLP, BACKWARD_MLP, GRADIENT, ON_BOTH, ALL)                  \
    X(dfc, floatX, ONE, NEVER, DIM_2F, SAME, BACKWARD_MLP, BACKWARD_MLP, GRADIENT, ON_BOTH, ALL)                       \
    X(dln, floatX, ONE, NEVER, DIM_C, PADDED, BACKWARD_MLP, BACKWARD_ATTENTION, GRADIENT, ON_BOTH, ALL)                \
    X(datt, floatX, ONE, NEVER, DIM_Q, PADDED, BACKWARD_ATTENTION, BACKWARD_ATTENTION, GRADIENT, ON_BOTH, ALL)         \
    X(dqkv, floatX, ONE, NEVER, DIM_QKV, SAME, BACKWARD_ATTENTION, BACKWARD_ATTENTION, GRADIENT, ON_BOTH, ALL)

// The linear layers of a block: qkv takes qw, kw and vw as one matrix, fc takes gatew and upw.
#define MODEL_LINEARS(X)                                                                                               \
    X(QKV, qkv, qw, DIM_QKV, ln1, RECOMPUTE_LAYERNORM)                                                                 \
    X(ATTPROJ, attproj, attprojw, DIM_C, att, RECOMPUTE_LAYERNORM)                                                     \
    X(FC, fc, gatew, DIM_2F, ln2, RECOMPUTE_LAYERNORM)                                                                 \
    X(FCPROJ, fcproj, fcprojw, DIM_C, swiglu, RECOMPUTE_GELU)

// THE table of sizes: those of released weights, then small ones by depth.
//  name, another name, layers, heads, channels, context, vocabulary, KV heads, head size, width of the MLP, tied head,
//  rope_theta, rope factor
#define MODEL_SIZE(L, NH, C, maxT, V, KV, HS, F, tied, theta, factor)                                                  \
    { maxT, V, L, NH, C, 0, 0, KV, HS, F, tied, 0, 0.0f, theta, factor, 0.0f, 0.0f, 0, 0 }
#define MODEL_RELEASED(X)                                                                                              \
    X("llama:1B", "1B", 16, 32, 2048, 131072, 128256, 8, 64, 8192, 1, 5e5f, 32.0f)                                     \
    X("llama:3B", "3B", 28, 24, 3072, 131072, 128256, 8, 128, 8192, 1, 5e5f, 32.0f)                                    \
    X("llama:8B", "8B", 32, 32, 4096, 131072, 128256, 8, 128, 14336, 0, 5e5f, 8.0f)                                    \
    X("smollm2:135M", "135M", 30, 9, 576, 8192, 49152, 3, 64, 1536, 1, 1e5f, 1.0f)                                     \
    X("smollm2:360M", "360M", 32, 15, 960, 8192, 49152, 5, 64, 2560, 1, 1e5f, 1.0f)
//  name, layers, heads, ... as above
#define MODEL_UNRELEASED(X)                                                                                            \
    X("llama:d2", 2, 2, 128, 8192, 128256, 1, 64, 384, 1, 5e5f, 1.0f)                                                  \
    X("llama:d4", 4, 4, 256, 8192, 128256, 2, 64, 704, 1, 5e5f, 1.0f)                                                  \
    X("llama:d6", 6, 6, 384, 8192, 128256, 2, 64, 1024, 1, 5e5f, 1.0f)                                                 \
    X("llama:d8", 8, 8, 512, 8192, 128256, 2, 64, 1408, 1, 5e5f, 1.0f)                                                 \
    X("llama:d12", 12, 12, 768, 8192, 128256, 4, 64, 2048, 1, 5e5f, 1.0f)                                              \
    X("llama:d16", 16, 16, 1024, 8192, 128256, 4, 64, 2752, 1, 5e5f, 1.0f)

#endif // LLMC_LLAMA3_H
