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
    COPIES_CHUNK     // a chunk of the rows at a time.
} ActCopies;

// Says what --fp8 changes.
typedef enum {
    FP8_SAME,
    FP8_PADDED, // a linear layer writes it: its rows are padded (see ActShape)
    FP8_ONE,    // a linear layer reads it, and keeps it in 8 bits instead: one copy for all layers is left
    FP8_NONE    // it exists in 8 bits only
} ActFp8;

typedef enum { ON_BOTH, ON_CPU, ON_GPU } ActPlace; // the trainers that have it
typedef enum { ACT_float, ACT_floatX } ActType;    // floatX: the precision of a GPU run; float on the CPU

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
} ActivationSpec;

#define ACT_SPEC(name, type, copies, given_up, cols, fp8, first, last, category, place)                                \
    {#name, ACT_##type, COPIES_##copies, given_up, cols, FP8_##fp8, first, last, PLAN_##category, place},
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
    bool kept = s->recompute < a->given_up && !(s->fp8 && a->fp8 == FP8_ONE);
    int64_t L = s->config.num_layers, all[] = {0, L, L + 1, 0}; // by ActCopies; 0: one
    int64_t copies = kept ? all[a->copies] : 1;
    int64_t rows = a->copies == COPIES_CHUNK ? s->chunk_rows : a->fp8 == FP8_PADDED ? s->padded_rows : s->rows;
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
// activations that have memory for one layer only, because later layers have overwritten them.
static inline int acts_find_nonfinite(const ActSlot slots[NUM_ACTIVATIONS], const ActShape *s, int64_t rows,
                                      ActTest is_nonfinite, void *context, char *name, size_t size) {
    int L = s->config.num_layers;
    for (int layer = 0; layer <= L; layer++) {
        for (int i = 0; i < NUM_ACTIVATIONS; i++) {
            const ActivationSpec *a = &activation_specs[i];
            bool in_layer = a->copies == COPIES_LAYER || a->copies == COPIES_BOUNDARY;
            bool after_layers = a->copies == COPIES_ONE || a->copies == COPIES_BOUNDARY;
            bool there = layer < L ? in_layer && *slots[i].stride > 0 : after_layers;
            char *data = (char *)plan_get_pointer(slots[i].pointer);
            if (a->category != PLAN_ACTIVATION || !there || data == NULL) { continue; }
            data += layer * *slots[i].stride * plan_types[a->type == ACT_float ? PLAN_F32 : s->floatX].bytes;
            if (!is_nonfinite(context, i, data, rows * model_dim(&s->config, a->cols))) { continue; }
            snprintf(name, size, "activation %s", a->name);
            if (layer < L) { snprintf(name, size, "activation %s of layer %d", a->name, layer); }
            return layer;
        }
    }
    return -1;
}

#endif // LLMC_ACTIVATIONS_H
