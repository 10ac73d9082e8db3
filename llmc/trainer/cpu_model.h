// What the CPU trainers share, part 1: the structs of a model, the plan of its memory, and a sample.
#ifndef LLMC_TRAINER_CPU_MODEL_H
#define LLMC_TRAINER_CPU_MODEL_H

#include "llmc/cpu/kernels.h"
#include "llmc/cpu/layers.h"
#include "llmc/cpu/nonfinite.h"
#include "llmc/cpu/packed_weights.h"
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/muon.h"
#include "llmc/model/activations.h"
#include "llmc/model/rope.h"
#include "llmc/run/train_loop.h"

// ---- What a model's main file defines ----

typedef struct Model Model;

// Returns the mean loss of the batch in model->tokens and model->targets, (B,T) each. B and T are at most as planned.
// If a gradient is wanted, model_backward follows. dloss is the gradient of the result with respect to one row's loss:
// 1/(B*T) for a whole batch, less for a micro-batch of a larger batch.
double model_forward(Model *model, int B, int T, float dloss, bool wants_gradient);

// Adds the gradients of the last model_forward to those that are there.
void model_backward(Model *model, int B, int T);

// Runs tokens first .. first+rows-1 of the history through the model. Reads the keys and values of all earlier tokens
// from the cache, and adds those of the new tokens. Leaves the logits of the last row. rows is at most GENERATE_ROWS.
void model_generate(Model *model, int first, int rows);

// Returns the floats of a row that model_generate needs.
int64_t model_new_row_floats(const ModelConfig *config);

// Refuses an edited program whose MODEL_VARIANT is another program's.
bool model_check_program(Error *error);

// An activation has a copy for each layer (stride > 0), or one copy (stride 0).
typedef struct {
    float *data;
    int64_t stride;
} Activation;

#define ACTIVATION_FIELD(name, ...) Activation name;
typedef struct {
    MODEL_ACTIVATIONS(ACTIVATION_FIELD)
} Activations;

// Holds the activations by name. A layer's activation belongs to one layer.
#define ACTIVATION_POINTER(name, ...) float *name;
typedef struct {
    MODEL_ACTIVATIONS(ACTIVATION_POINTER)
} LayerActs;

// Holds the tensors by name, of parameters or of their gradients. A tensor of a block belongs to one layer.
#define TENSOR_POINTER(name, ...) float *name;
typedef struct {
    MODEL_PARAMETERS(TENSOR_POINTER)
} Tensors;

static inline float *of_layer(Activation a, int layer) { return a.data == NULL ? NULL : a.data + layer * a.stride; }

typedef struct {
    RunKind kind;
    int B, T;               // the largest batch; generation sees T positions
    int recompute;          // the level of --recompute
    int eval_T;             // the longest sequence of an evaluation, which may exceed T. 0: none
    int64_t eval_sequences; // the most completions of an evaluation
    OptimizerKind optimizer;
} RunShape;

typedef struct {
    float *m, *v;      // AdamW's moments. m is the momentum of Muon's matrices, v (param_length_of_v) leaves them out
    float *muon;       // scratch
    double *norm_sums; // sums of the squares of NORM_BLOCK gradients each
} Optimizer;

// Generation passes a few new rows at a time through the model, beside the keys and values of all earlier rows.
typedef struct {
    int32_t *history;      // (T): the tokens so far
    int length;            // tokens in the history
    int cached;            // tokens of the history whose keys and values are in the cache
    float *cache;          // (L,2,T,KV*HS): keys and values
    float *rows;           // the activations of GENERATE_ROWS rows, of one layer at a time
    float *logits, *probs; // (V), of the last row
    float *packed;         // the weights in bf16; NULL: the run multiplies in fp32
} Generation;

struct Model {
    ModelConfig config;
    RunShape shape;
    float *params, *grads;     // (number of parameters) each, as param_place says
    Activations acts;          // with the gradients of activations, for one layer at a time
    int32_t *tokens, *targets; // (B,T): the batch
    int chunk_rows;            // rows of logits that exist at a time
    double *eval_means;        // (eval_sequences): the mean loss of each completion, by its number
    Gemm mm;                   // the matrix multiply: kernel and workspace
    float *attention_scratch;
    float *rope; // (T,HS/2,2): cosines and sines of the rotary embeddings; NULL: the model has none
    Optimizer optimizer;
    Generation generation;
};

#define CHUNK_ROWS 256   // enough rows for the matrix multiply to run at full speed
#define GENERATE_ROWS 64 // tokens of a prompt that go through the model at once

// Finds the slots of all activations.
static inline void activation_slots(Activations *acts, ActSlot slots[NUM_ACTIVATIONS]) {
    int n = 0;
#define ACTIVATION_SLOT(name, ...) slots[n++] = (ActSlot){&acts->name.data, &acts->name.stride};
    MODEL_ACTIVATIONS(ACTIVATION_SLOT)
}

// A batch has at most (B,T) rows, or one sequence of an evaluation.
static inline ActShape activation_shape(const Model *model) {
    const RunShape *run = &model->shape;
    int64_t N = run->kind == RUN_GENERATES ? 0 : max_i64((int64_t)run->B * run->T, run->eval_T);
    int level = run->kind == RUN_TRAINS ? run->recompute : NO_BACKWARD;
    int L = model->config.num_layers;
    ActShape shape = {model->config, N,    N, min_i64(N, CHUNK_ROWS), level, false, ON_CPU, PLAN_F32, 1, L, 1, 1, 0,
                      true,          false};
    return shape;
}

// Plans the batch and all activations. Plans the activations' gradients only if the run trains.
static inline void plan_activations(Model *model, MemoryPlan *plan) {
    ActShape shape = activation_shape(model);
    ActSlot slots[NUM_ACTIVATIONS];
    int count = model->shape.kind == RUN_TRAINS ? NUM_ACTIVATIONS : ACT_dresidual;
    model->chunk_rows = (int)shape.chunk_rows;
    plan_add(plan, &model->tokens, "tokens", PLAN_DATA, PLAN_I32, shape1(shape.rows), FORWARD, BACKWARD_ATTENTION);
    plan_add(plan, &model->targets, "targets", PLAN_DATA, PLAN_I32, shape1(shape.rows), FORWARD, LM_HEAD);
    activation_slots(&model->acts, slots);
    for (int i = 0; i < count; i++) { plan_activation(plan, &shape, i, slots[i]); }
}

static inline void plan_generation(Model *model, MemoryPlan *plan) {
    const ModelConfig *config = &model->config;
    int V = config->vocab_size, at = GENERATE, T = model->shape.T;
    PlanCategory act = PLAN_ACTIVATION, work = PLAN_WORKSPACE;
    Generation *g = &model->generation;
    plan_add(plan, &g->history, "history", PLAN_DATA, PLAN_I32, shape1(T), at, at);
    plan_add(plan, &g->cache, "kv_cache", act, PLAN_F32, shape4(config->num_layers, 2, T, model_dim(config, DIM_KV)),
             at, at);
    plan_add(plan, &g->rows, "new_rows", act, PLAN_F32, shape2(GENERATE_ROWS, model_new_row_floats(config)), at, at);
    plan_add(plan, &g->logits, "new_logits", act, PLAN_F32, shape1(V), at, at);
    int64_t packed = packed_weights_floats(config, model->mm.kernel);
    plan_add(plan, &g->packed, "packed_weights", work, PLAN_F32, shape1(packed), at, at);
    plan_add(plan, &g->probs, "sampler_probs", work, PLAN_F32, shape1(V), at, at);
}

// Plans every buffer of a run that multiplies with this kernel.
static inline void model_plan(Model *model, MemoryPlan *plan, const ModelConfig *config, RunShape shape,
                              const GemmKernel *kernel) {
    memset(model, 0, sizeof(*model));
    model->config = *config, model->shape = shape, model->mm.kernel = kernel;
    bool trains = shape.kind == RUN_TRAINS;
    int64_t num_params = model_num_params(config), trained = trains ? num_params : 0;
    int64_t with_v = trains ? param_length_of_v(config, shape.optimizer) : 0;
    int64_t muon = trains ? muon_most_scratch(config, shape.optimizer) : 0, longest = max_i64(shape.T, shape.eval_T);
    PlanCategory work = PLAN_WORKSPACE;
    plan_init(plan, phase_names);
    plan_add(plan, &model->params, "params", PLAN_PARAMETER, PLAN_F32, shape1(num_params), FORWARD, GENERATE);
    plan_add(plan, &model->grads, "grads", PLAN_GRADIENT, PLAN_F32, shape1(trained), FORWARD, GENERATE);
    plan_add(plan, &model->optimizer.m, "adam_m", PLAN_OPTIMIZER, PLAN_F32, shape1(trained), FORWARD, GENERATE);
    plan_add(plan, &model->optimizer.v, "adam_v", PLAN_OPTIMIZER, PLAN_F32, shape1(with_v), FORWARD, GENERATE);
    plan_activations(model, plan);
    plan_add(plan, &model->optimizer.norm_sums, "norm_sums", work, PLAN_F64, shape1(ceil_div_i64(trained, NORM_BLOCK)),
             UPDATE, UPDATE);
    plan_add(plan, &model->optimizer.muon, "muon_scratch", work, PLAN_F32, shape1(muon), UPDATE, UPDATE);
    plan_generation(model, plan);
    plan_add(plan, &model->eval_means, "eval_means", work, PLAN_F64, shape1(shape.eval_sequences), FORWARD, GENERATE);
    plan_add(plan, &model->mm.workspace, "gemm_workspace", work, PLAN_F32,
             shape1(gemm_workspace_floats(gemm_max_threads())), FORWARD, GENERATE);
    plan_add(plan, &model->attention_scratch, "attention_tiles", work, PLAN_F32,
             shape2(gemm_max_threads(), attention_scratch_floats(longest, config->head_size, kernel)), FORWARD,
             GENERATE);
    plan_add(plan, &model->rope, "rope", work, PLAN_F32, shape1(rope_table_floats(config, longest)), FORWARD, GENERATE);
    plan_layout(plan);
}

// Fills the table of rotary embeddings, if the model has one.
static inline void prepare_rope(Model *model) {
    int positions = (int)max_i64(model->shape.T, model->shape.eval_T);
    if (model->rope != NULL) { rope_table(model->rope, positions, &model->config); }
}

// Sets the moments of the optimizer to zero. A run that does not train has none.
static inline void clear_moments(Model *model) {
    if (model->optimizer.m == NULL) { return; }
    clear_rows(model->optimizer.m, model_num_params(&model->config));
    clear_rows(model->optimizer.v, param_length_of_v(&model->config, model->shape.optimizer));
}

// Finds the tensors of a layer in an array of all parameters, or of all gradients.
static inline Tensors tensors_of(const ModelConfig *config, float *all, int layer) {
    Tensors tensors;
#define TENSOR_OF_LAYER(name, ...) tensors.name = all + param_place(config, PARAM_##name, layer);
    MODEL_PARAMETERS(TENSOR_OF_LAYER)
    return tensors;
}

static inline Tensors params_of(const Model *model, int layer) {
    return tensors_of(&model->config, model->params, layer);
}
// All are NULL in a run without gradients.
static inline Tensors grads_of(const Model *model, int layer) {
    Tensors none;
    memset(&none, 0, sizeof(none));
    return model->grads == NULL ? none : tensors_of(&model->config, model->grads, layer);
}

// Finds the activations of a layer, and the activations that no layer owns.
static inline LayerActs acts_of(const Model *model, int layer) {
    LayerActs acts;
#define ACTIVATION_OF_LAYER(name, ...) acts.name = of_layer(model->acts.name, layer);
    MODEL_ACTIVATIONS(ACTIVATION_OF_LAYER)
    return acts;
}

// ---- The head ----

// Computes the lm_head and the loss for a chunk of rows at a time: logits = lnf weight^T. Returns the mean loss. The
// next chunk overwrites the logits. The lm_head's backward therefore runs here too, if a gradient is wanted: it sets
// dlnf and adds to dweight. weight, dweight (Vp,C). dloss is the gradient of each row's loss.
static inline double lm_head_forward_backward(Model *model, int64_t N, const float *weight, float *dweight, float dloss,
                                              bool wants_gradient) {
    int C = model->config.channels, V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    LayerActs a = acts_of(model, 0);
    const Gemm *mm = &model->mm;
    for (int64_t row = 0; row < N; row += model->chunk_rows) {
        int64_t rows = min_i64(model->chunk_rows, N - row);
        GemmMatrix lnf = rows_of(a.lnf + row * C, C);
        gemm(a.logits, Vp, lnf, transpose_of(weight, C), NULL, rows, V, C, false, mm);
        cross_entropy(a.losses + row, a.logits, model->targets + row, rows, V, Vp, dloss, wants_gradient);
        if (!wants_gradient) { continue; }
        gemm(a.dlnf + row * C, C, rows_of(a.logits, Vp), rows_of(weight, C), NULL, rows, C, V, false, mm);
        gemm(dweight, C, transpose_of(a.logits, Vp), lnf, NULL, V, C, rows, true, mm);
    }
    return row_mean(a.losses, N);
}

// ---- The update ----

static inline double model_gradient_norm(const Model *model) {
    return gradient_norm(model->grads, model_num_params(&model->config), model->optimizer.norm_sums);
}

// Updates the matrices of the blocks with Muon if the run asks for it, and all other tensors with AdamW.
static inline void model_update(Model *model, const AdamW *a, const Muon *muon) {
    const ModelConfig *config = &model->config;
    const Optimizer *o = &model->optimizer;
    ParamPiece p = PARAM_PIECE_BEGIN;
    while (param_next_piece(config, model->shape.optimizer, &p)) {
        float *param = model->params + p.place, *grad = model->grads + p.place, *m = o->m + p.place;
        if (p.place_v < 0) {
            muon_tensor(param, m, grad, config, p.tensor, muon, o->muon, &model->mm);
        } else {
            adamw_tensor(param, m, o->v + p.place_v, grad, p.count, a,
                         param_specs[p.tensor].decay ? a->weight_decay : 0.0f);
        }
    }
}

// ---- A sample ----

// Attends from new rows of a sample in a layer to all rows so far, and adds their keys and values to the cache.
static inline void generate_attention(Model *model, float *att, const float *qkv, int layer, int first, int rows) {
    Heads heads = heads_of(&model->config);
    int64_t half = (int64_t)model->shape.T * heads.KV * heads.HS; // the keys or the values of one layer
    float *keys = model->generation.cache + 2 * layer * half;
    attention_with_cache(att, keys, keys + half, qkv, first, rows, heads, model->attention_scratch,
                         attention_scratch_floats(model->shape.T, heads.HS, model->mm.kernel), &model->mm);
}

// Begins a sample. Call it when the parameters are as they shall be. Returns memory for the sampler (V).
static inline float *generate_begin(Model *model) {
    Generation *g = &model->generation;
    g->length = g->cached = 0;
    if (g->packed != NULL) { packed_weights_fill(g->packed, model->params, &model->config, model->mm.kernel); }
    return g->probs;
}

// Adds a token to the history. If the window is full, the tokens move, and the cache is void.
static inline void generate_append(Model *model, int token) {
    Generation *g = &model->generation;
    if (sampler_append(g->history, &g->length, model->shape.T, token)) { g->cached = 0; }
}

// Returns the logits (V) of the token after the history, which must not be empty. The cache changes no bit, since a row
// of a layer does not depend on the number of rows beside it.
static inline const float *generate_logits(Model *model) {
    Generation *g = &model->generation;
    while (g->cached < g->length) {
        int rows = (int)min_i64(GENERATE_ROWS, g->length - g->cached);
        model_generate(model, g->cached, rows);
        g->cached += rows;
    }
    return g->logits;
}

#endif // LLMC_TRAINER_CPU_MODEL_H
