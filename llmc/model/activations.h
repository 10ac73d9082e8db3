// The activations of a model: what follows from its table of them.
#ifndef LLMC_ACTIVATIONS_H
#define LLMC_ACTIVATIONS_H

#include "llmc/model/memory_plan.h"
#include "llmc/model/params.h"

// The phases of a step in time order. Buffers that never live in one phase may share memory. In the backward pass of a
// block the MLP comes before the attention, and no half needs the scratch memory of the other.
enum { FORWARD, LM_HEAD, BACKWARD_MLP, BACKWARD_ATTENTION, UPDATE, GENERATE };
static const char *const phase_names[] = {"forward", "lm_head", "backward mlp", "backward attention",
                                          "update",  "generate"};

// The levels of --recompute. Each level gives up what the levels below it give up, and more. An activation that is
// given up has memory for one layer only, and the backward pass computes it again. Without a backward pass everything
// is given up.
enum {
    RECOMPUTE_NOTHING,
    RECOMPUTE_GELU,
    RECOMPUTE_LAYERNORM,
    RECOMPUTE_BLOCK,
    NUM_RECOMPUTE_LEVELS,
    NO_BACKWARD = NUM_RECOMPUTE_LEVELS,
    NEVER // for the table: no level gives it up
};

// The levels of --gelu-fusion: the passes whose multiplies compute GELU too.
enum { FUSE_NOTHING, FUSE_GELU_FORWARD, FUSE_GELU_BACKWARD };

// How many copies of an activation there are, if it is not given up.
typedef enum {
    COPIES_ONE,
    COPIES_LAYER,    // L: one in each block
    COPIES_BOUNDARY, // L+1: the input of each block, and the output of the last one
    COPIES_CHUNK,    // a chunk of the rows at a time
    COPIES_TURNS     // one. In a pipeline two take turns: one arrives while the other leaves
} ActCopies;

// Says what --fp8 changes.
typedef enum {
    FP8_SAME,
    FP8_PADDED, // a linear layer writes it: its rows are padded (see ActShape)
    FP8_ONE,    // a linear layer reads it, and keeps it in 8 bits instead: one copy for all layers is left
    FP8_NONE    // it exists in 8 bits only
} ActFp8;

typedef enum { ON_BOTH, ON_CPU, ON_GPU } ActPlace; // the trainers that have it

// Says which rows of a batch a rank of tensor parallelism holds.
typedef enum {
    ROWS_ALL,
    ROWS_OWN,     // with --sp 1 its part of the rows, else all
    ROWS_GATHERED // all, with --sp 1 only: the parts of all ranks put together
} ActRows;

typedef enum { ACT_float, ACT_floatX } ActType; // floatX: the precision of a GPU run; float on the CPU

#define ACT_ENUM(name, ...) ACT_##name,
typedef enum { MODEL_ACTIVATIONS(ACT_ENUM) NUM_ACTIVATIONS } ActivationId;

typedef struct {
    const char *name;
    ActType type;
    ActCopies copies;
    int given_up;  // the level of --recompute
    ModelDim cols; // DIM_NONE: one number a row
    ActFp8 fp8;
    int first, last; // phases
    PlanCategory category;
    ActPlace place;
    ActRows rows;
} ActivationSpec;

#define ACT_SPEC(name, type, copies, given_up, cols, fp8, first, last, category, place, rows)                          \
    {#name, ACT_##type, COPIES_##copies, given_up, cols, FP8_##fp8, first, last, PLAN_##category, place, ROWS_##rows},
static const ActivationSpec activation_specs[NUM_ACTIVATIONS] = {MODEL_ACTIVATIONS(ACT_SPEC)};

// Holds what the sizes of activations depend on.
typedef struct {
    ModelConfig config;
    int64_t rows;        // N = B*T of the largest batch
    int64_t padded_rows; // rows that a linear layer writes: with --fp8 more than N, else N
    int64_t chunk_rows;  // rows of logits in a chunk
    int recompute;       // the level, or NO_BACKWARD
    bool fp8;
    ActPlace place;  // ON_CPU or ON_GPU
    PlanType floatX; // PLAN_F32 or PLAN_BF16
    int row_ranks;   // the ranks that share the rows out (ROWS_OWN)
    int layers;      // that a pass computes: L, or in a pipeline those of a chunk
    int slots;       // passes whose activations are kept at once: 1, but in a pipeline
    int turns;       // copies of COPIES_TURNS
    int first_layer; // what number the first layer has in the whole model, for messages
    bool head;       // has the head. Activations whose last phase is LM_HEAD belong to it
    bool offloaded;  // COPIES_BOUNDARY: two copies take turns, the host has the others
} ActShape;

// Where a trainer keeps an activation: the address of its pointer, and of the number of elements from one copy to the
// next. The stride is 0 if there is memory for one copy only.
typedef struct {
    void *pointer;
    int64_t *stride;
} ActSlot;

// Adds activation i to the plan, if the run has it.
static inline void plan_activation(MemoryPlan *plan, const ActShape *s, int i, ActSlot slot) {
    const ActivationSpec *a = &activation_specs[i];
    if ((s->fp8 && a->fp8 == FP8_NONE) || (a->place != ON_BOTH && a->place != s->place)) { return; }
    if ((a->rows == ROWS_GATHERED && s->row_ranks == 1) || (a->last == LM_HEAD && !s->head)) { return; }
    bool kept = s->recompute < a->given_up && !(s->fp8 && a->fp8 == FP8_ONE);
    int64_t L = s->layers, boundaries = s->offloaded ? 2 : s->slots * (L + 1);
    int64_t all[] = {0, s->slots * L, boundaries, 0, s->turns > 1 ? s->turns : 0}; // 0: one
    int64_t copies = kept ? all[a->copies] : 1;
    int64_t rows = a->copies == COPIES_CHUNK ? s->chunk_rows : a->fp8 == FP8_PADDED ? s->padded_rows : s->rows;
    if (a->rows == ROWS_OWN) { rows /= s->row_ranks; }
    PlanShape shape = shape1(rows);
    if (a->cols != DIM_NONE) { shape = shape2(rows, model_dim(&s->config, a->cols)); }
    *slot.stride = kept && copies > 0 ? rows * model_dim(&s->config, a->cols) : 0;
    if (copies > 0) { shape = shape_of_copies(copies, &shape); }
    plan_add(plan, slot.pointer, a->name, a->category, a->type == ACT_float ? PLAN_F32 : s->floatX, shape, a->first,
             a->last);
}

// Do n values of activation i hold a NaN or an infinity?
typedef bool (*ActTest)(void *context, int i, const void *data, int64_t n);

// Finds the activation where a NaN or an infinity first stands after a forward pass over `rows` rows, in the order of
// the computation, writes its name and returns its layer; L: after the blocks; -1: there is none. Passes over
// activations that have memory for one layer only, because later layers have overwritten them. Of the passes of a
// pipeline it looks at the first slot only. Passes over what waits on the host.
static inline int acts_find_nonfinite(const ActSlot slots[NUM_ACTIVATIONS], const ActShape *s, int64_t rows,
                                      ActTest is_nonfinite, void *context, char *name, size_t size) {
    int L = s->layers;
    for (int layer = 0; layer <= L; layer++) {
        for (int i = 0; i < NUM_ACTIVATIONS; i++) {
            const ActivationSpec *a = &activation_specs[i];
            bool boundary = a->copies == COPIES_BOUNDARY && !s->offloaded;
            bool in_layer = a->copies == COPIES_LAYER || boundary, after_layers = a->copies == COPIES_ONE || boundary;
            bool there = layer < L ? in_layer && *slots[i].stride > 0 : after_layers;
            char *data = (char *)plan_get_pointer(slots[i].pointer);
            if (a->category != PLAN_ACTIVATION || !there || data == NULL) { continue; }
            data += layer * *slots[i].stride * plan_types[a->type == ACT_float ? PLAN_F32 : s->floatX].bytes;
            int64_t held = a->rows == ROWS_OWN ? rows / s->row_ranks : rows;
            if (!is_nonfinite(context, i, data, held * model_dim(&s->config, a->cols))) { continue; }
            snprintf(name, size, "activation %s", a->name);
            if (layer < L) { snprintf(name, size, "activation %s of layer %d", a->name, s->first_layer + layer); }
            return layer;
        }
    }
    return -1;
}

#endif // LLMC_ACTIVATIONS_H
