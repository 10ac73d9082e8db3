// GPT-2 as data: THE parameter table, THE activation table, and sizes by name.
//
// Everything that concerns tensors is a loop over these tables (params.h, activations.h): structs, allocation,
// initialisation, optimizer groups, shards, checkpoints, the printed plan, the search for a NaN and the tests. To add a
// tensor, add a row. A trainer of another model includes its own tables instead, before all rooms.
#ifndef LLMC_GPT2_H
#define LLMC_GPT2_H

#define MODEL_NAME "GPT-2"
#define GPT2_VOCAB_SIZE 50257
#define GPT2_LAYERNORM_EPSILON 1e-5f
#define MODEL_INIT_STD 0.02f
#define MODEL_VOCAB_SIZE GPT2_VOCAB_SIZE        // without a tokenizer ...
#define MODEL_END_OF_TEXT (GPT2_VOCAB_SIZE - 1) // ... and the token with which a sample begins
#define MODEL_TOKENIZER "gpt2_tokenizer.bin"    // read from the working directory if it is there, as llm.c does
#define MODEL_CPU_SIZE "d6"
#define MODEL_GPU_SIZE "d12"
#define MODEL_GELU_FUSION 2 // the highest level of --gelu-fusion
#define MODEL_RECOMPUTES "GELU, 2: LayerNorm too"
#define MODEL_SIZE_EXAMPLES "124M ... 1558M, d6 ... d84, gpt3:c768 ..."

// Model files say it. A program that computes something else than GPT-2, such as another activation, needs another
// number: programs of different numbers refuse each other's files.
#define MODEL_VARIANT 0
#define MODEL_STORED_FIELDS 6 // the fields of the configuration that a file holds: up to padded_vocab_size
#define MODEL_MLP_WIDTH(C) (4 * (C))
#define MODEL_ROPE_THETA 1.0f // no rotary embeddings

// A constant ModelConfig: what model_complete makes of these sizes.
#define GPT2_CONFIG(maxT, V, Vp, L, NH, C)                                                                             \
    { maxT, V, L, NH, C, Vp, 0, NH, (C) / ((NH) + !(NH)), 4 * (C), 0, 0, GPT2_LAYERNORM_EPSILON, 1, 1, 1, 1, 0, 0 }

// THE parameter table, in file order. The names are fields of the trainers' Tensors (p.wte).
//  name, where, rows (DIM_NONE: a vector), columns, initialisation, weight decay, matrices for Muon, split
#define MODEL_PARAMETERS(X)                                                                                            \
    X(wte, AT_START, DIM_Vp, DIM_C, INIT_NORMAL, DECAY, ADAMW, ROWS)                                                   \
    X(wpe, AT_START, DIM_maxT, DIM_C, INIT_NORMAL, DECAY, ADAMW, WHOLE)                                                \
    X(ln1w, PER_LAYER, DIM_NONE, DIM_C, INIT_ONE, NO_DECAY, ADAMW, WHOLE)                                              \
    X(ln1b, PER_LAYER, DIM_NONE, DIM_C, INIT_ZERO, NO_DECAY, ADAMW, WHOLE)                                             \
    X(qkvw, PER_LAYER, DIM_QKV, DIM_C, INIT_NORMAL, DECAY, MUON_QKV, THIRDS)                                           \
    X(qkvb, PER_LAYER, DIM_NONE, DIM_QKV, INIT_ZERO, NO_DECAY, ADAMW, THIRDS)                                          \
    X(attprojw, PER_LAYER, DIM_C, DIM_Q, INIT_RESIDUAL, DECAY, MUON, COLS)                                             \
    X(attprojb, PER_LAYER, DIM_NONE, DIM_C, INIT_ZERO, NO_DECAY, ADAMW, WHOLE)                                         \
    X(ln2w, PER_LAYER, DIM_NONE, DIM_C, INIT_ONE, NO_DECAY, ADAMW, WHOLE)                                              \
    X(ln2b, PER_LAYER, DIM_NONE, DIM_C, INIT_ZERO, NO_DECAY, ADAMW, WHOLE)                                             \
    X(fcw, PER_LAYER, DIM_F, DIM_C, INIT_NORMAL, DECAY, MUON, ROWS)                                                    \
    X(fcb, PER_LAYER, DIM_NONE, DIM_F, INIT_ZERO, NO_DECAY, ADAMW, ROWS)                                               \
    X(fcprojw, PER_LAYER, DIM_C, DIM_F, INIT_RESIDUAL, DECAY, MUON, COLS)                                              \
    X(fcprojb, PER_LAYER, DIM_NONE, DIM_C, INIT_ZERO, NO_DECAY, ADAMW, WHOLE)                                          \
    X(lnfw, AT_END, DIM_NONE, DIM_C, INIT_ONE, NO_DECAY, ADAMW, WHOLE)                                                 \
    X(lnfb, AT_END, DIM_NONE, DIM_C, INIT_ZERO, NO_DECAY, ADAMW, WHOLE)

// THE activation table. The first part is in the order of the computation. The names are fields of the trainers'
// Activations and LayerActs (acts.residual).
//  name, type, copies, given up from this level on, columns, with --fp8, first phase, last phase, category, where,
//  rows
#define MODEL_ACTIVATIONS(X)                                                                                           \
    X(residual, floatX, BOUNDARY, NO_BACKWARD, DIM_C, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)     \
    X(ln1_mean, float, LAYER, RECOMPUTE_BLOCK, DIM_NONE, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)  \
    X(ln1_rstd, float, LAYER, RECOMPUTE_BLOCK, DIM_NONE, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)  \
    X(ln1, floatX, LAYER, RECOMPUTE_LAYERNORM, DIM_C, ONE, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)      \
    X(qkv, floatX, LAYER, RECOMPUTE_BLOCK, DIM_QKV, PADDED, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, ALL)     \
    X(att, floatX, LAYER, RECOMPUTE_BLOCK, DIM_Q, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, ALL)         \
    X(att_lse, float, LAYER, RECOMPUTE_BLOCK, DIM_NH, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, ALL)     \
    X(residual_mid, floatX, LAYER, RECOMPUTE_BLOCK, DIM_C, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH,     \
      OWN)                                                                                                             \
    X(ln2_mean, float, LAYER, RECOMPUTE_BLOCK, DIM_NONE, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)  \
    X(ln2_rstd, float, LAYER, RECOMPUTE_BLOCK, DIM_NONE, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)  \
    X(ln2, floatX, LAYER, RECOMPUTE_LAYERNORM, DIM_C, ONE, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, OWN)      \
    X(fc, floatX, LAYER, RECOMPUTE_BLOCK, DIM_F, PADDED, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, ALL)        \
    X(gelu, floatX, LAYER, RECOMPUTE_GELU, DIM_F, NONE, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_BOTH, ALL)         \
    X(projection, floatX, ONE, NEVER, DIM_C, PADDED, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_GPU, ALL)             \
    X(gathered, floatX, ONE, NEVER, DIM_C, SAME, FORWARD, BACKWARD_ATTENTION, ACTIVATION, ON_GPU, GATHERED)            \
    X(lnf, floatX, ONE, NEVER, DIM_C, SAME, FORWARD, LM_HEAD, ACTIVATION, ON_BOTH, OWN)                                \
    X(lnf_mean, float, ONE, NEVER, DIM_NONE, SAME, FORWARD, LM_HEAD, ACTIVATION, ON_BOTH, OWN)                         \
    X(lnf_rstd, float, ONE, NEVER, DIM_NONE, SAME, FORWARD, LM_HEAD, ACTIVATION, ON_BOTH, OWN)                         \
    X(losses, float, ONE, NEVER, DIM_NONE, SAME, LM_HEAD, LM_HEAD, ACTIVATION, ON_BOTH, ALL)                           \
    X(logits, floatX, CHUNK, NEVER, DIM_Vp, SAME, LM_HEAD, LM_HEAD, ACTIVATION, ON_BOTH, ALL)                          \
    X(dresidual, floatX, TURNS, NEVER, DIM_C, SAME, LM_HEAD, BACKWARD_ATTENTION, GRADIENT, ON_BOTH, OWN)               \
    X(dlnf, floatX, ONE, NEVER, DIM_C, SAME, LM_HEAD, LM_HEAD, GRADIENT, ON_BOTH, ALL)                                 \
    X(dgelu, floatX, ONE, NEVER, DIM_F, SAME, BACKWARD_MLP, BACKWARD_MLP, GRADIENT, ON_CPU, ALL)                       \
    X(dfc, floatX, ONE, NEVER, DIM_F, PADDED, BACKWARD_MLP, BACKWARD_MLP, GRADIENT, ON_BOTH, ALL)                      \
    X(dln, floatX, ONE, NEVER, DIM_C, PADDED, BACKWARD_MLP, BACKWARD_ATTENTION, GRADIENT, ON_BOTH, ALL)                \
    X(datt, floatX, ONE, NEVER, DIM_Q, PADDED, BACKWARD_ATTENTION, BACKWARD_ATTENTION, GRADIENT, ON_BOTH, ALL)         \
    X(dqkv, floatX, ONE, NEVER, DIM_QKV, SAME, BACKWARD_ATTENTION, BACKWARD_ATTENTION, GRADIENT, ON_BOTH, ALL)

// The linear layers of a block: id, name, the parameter that is its weight (or where its weight begins), outputs, the
// activation that it reads, the level of --recompute that gives it up. The names are fields of Block (b.qkv).
#define MODEL_LINEARS(X)                                                                                               \
    X(QKV, qkv, qkvw, DIM_QKV, ln1, RECOMPUTE_LAYERNORM)                                                               \
    X(ATTPROJ, attproj, attprojw, DIM_C, att, RECOMPUTE_LAYERNORM)                                                     \
    X(FC, fc, fcw, DIM_F, ln2, RECOMPUTE_LAYERNORM)                                                                    \
    X(FCPROJ, fcproj, fcprojw, DIM_C, gelu, RECOMPUTE_GELU)

// THE table of sizes: the four of GPT-2's release, then others of the GPT-2 series, by depth, and of the GPT-3 series,
// by channels.
//  name, name by parameters, layers, heads, channels, context
#define MODEL_SIZE(L, NH, C, maxT) GPT2_CONFIG(maxT, GPT2_VOCAB_SIZE, 0, L, NH, C)
#define MODEL_RELEASED(X)                                                                                              \
    X("d12", "124M", 12, 12, 768, 1024)                                                                                \
    X("d24", "350M", 24, 16, 1024, 1024)                                                                               \
    X("d36", "774M", 36, 20, 1280, 1024)                                                                               \
    X("d48", "1558M", 48, 25, 1600, 1024)
//  name, layers, heads, channels, context
#define MODEL_UNRELEASED(X)                                                                                            \
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

#endif // LLMC_GPT2_H
