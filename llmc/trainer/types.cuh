// The structs of a GPU trainer, and the functions that a model's main file defines.
#ifndef LLMC_TRAINER_TYPES_CUH
#define LLMC_TRAINER_TYPES_CUH

#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/gpu.h"
#include "llmc/cuda/range.h"
#include "llmc/layers/attention_cudnn.h"
#include "llmc/layers/fp8.cuh"
#include "llmc/layers/linear.cuh"
#include "llmc/model/activations.h"
#include "llmc/model/memory_plan.h"
#include "llmc/optim/adamw.cuh"
#include "llmc/optim/global_norm.cuh"
#include "llmc/optim/muon.cuh"
#include "llmc/ranks/buckets.cuh"
#include "llmc/run/train_run.h"

// Holds the model's tensors by name. A tensor of a block belongs to one layer.
#define TENSOR_POINTER(name, ...) T *name;
template <class T> struct Tensors { MODEL_PARAMETERS(TENSOR_POINTER) };

// Finds the tensors in two buckets. outside points to bucket 0, block points to the bucket of one layer.
template <class T> static inline Tensors<T> tensors_of(const ZeroLayout *zero, T *outside, T *block) {
    Tensors<T> tensors;
#define TENSOR_AT(name, ...)                                                                                           \
    tensors.name = (param_specs[PARAM_##name].per_layer ? block : outside) + zero_tensor_offset(zero, PARAM_##name);
    MODEL_PARAMETERS(TENSOR_AT)
    return tensors;
}

// An activation has a copy for each layer (stride > 0), or one copy (stride 0).
template <class T> struct Activation {
    T *data;
    int64_t stride;
    T *of(int64_t layer) const { return data + layer * stride; }
};

#define ACTIVATION_FIELD(name, type, ...) Activation<type> name;
struct Activations {
    MODEL_ACTIVATIONS(ACTIVATION_FIELD)
};

// Holds the activations of one layer by name.
#define ACTIVATION_POINTER(name, type, ...) type *name;
struct LayerActs {
    MODEL_ACTIVATIONS(ACTIVATION_POINTER)
};

typedef struct {
    RunKind kind;
    int B, T;        // the largest batch, unless eval_T is longer
    int eval_T;      // the longest sequence of an evaluation. 0: none
    int recompute;   // the level of --recompute
    int gelu_fusion; // the level of --gelu-fusion
    bool cudnn;      // cuDNN computes the attention of (B,T) batches
    bool repeats;    // attention gives equal bits each time
    bool fp8;        // the linear layers of the blocks multiply in 8 bits
    int head_rows;   // the most rows of logits at a time
    bool has_master; // fp32 weights beside the bf16 ones
    int rank, num_ranks;
    int zero_stage;         // the sharded arrays: ZERO_.. in llmc/ranks/zero.h
    int64_t mean_places;    // for the mean losses of a validation or an evaluation: all batches of all ranks
    int64_t eval_sequences; // the most of an evaluation
    OptimizerKind optimizer;
    MuonScale muon_scale;
} RunShape;

#define NUM_SLOTS 2 // batches on their way
#define NUM_STEPS 3 // steps whose events are held: the step being queued, the pending step and the step before it

// Holds a batch on its way. Two slots take turns, so that a copy to the GPU never touches the batch that the GPU works
// on.
typedef struct {
    // (3,N) in pinned and in GPU memory: tokens, targets, rows sorted by token. A batch without a backward pass has no
    // rows sorted by token: it has flags there, 1 for each loss that counts.
    int32_t *staging, *device;
    cudaEvent_t uploaded, no_longer_used;
} BatchSlot;

// Describes a queued step.
typedef struct {
    bool waiting;  // its results are not logged yet
    bool is_read;  // info has loss and norm: the host waited for them to decide on the update
    bool adjoins;  // nothing ran between the step before and this step
    int slot;      // of its events and results
    StepInfo info; // loss, norm and time are filled in when they are read
} PendingStep;

// The model of a run holds parameters, their gradients and activations.
struct Model {
    ModelConfig config;
    RunShape shape;
    const Shards *shards; // where this rank keeps the buckets
    Buckets<floatX> params;
    Buckets<float> grads;
    Activations acts;               // with the gradients of activations, for one layer at a time
    Fp8Copies fp8;                  // 8-bit copies, with --fp8
    int head_rows;                  // rows of logits in a chunk
    float *att_delta, *sum_scratch; // scratch of the backward pass
    float *rope;                    // (positions,HS/2,2): the table of rotary embeddings; NULL: the model has none
};

// Holds AdamW's moments, and the fp32 weights beside bf16 weights. m of a matrix that Muon updates is its momentum.
struct Optimizer {
    Buckets<float> m, v, master;
    // For Muon: the blocks of a group that this rank works on; if the optimizer state is sharded, its shards of all
    // blocks of the group, and room for a block of another rank; scratch.
    floatX *muon_blocks, *muon_parts, *muon_spare, *muon_scratch;
};

// Holds the GPU and the state of its libraries.
struct Gpu {
    GpuDevice device;
    cudaStream_t stream;
    CublasContext cublas;
    float *cublas_workspace;
    CudnnAttention cudnn;
    float *cudnn_forward, *cudnn_backward; // workspaces
};

// Brings batches to the GPU.
struct Feeder {
    BatchSlot slots[NUM_SLOTS];
    int64_t batches; // uploaded so far
    cudaStream_t copy_stream;
    int32_t *token_counts; // (V+1): scratch of order_tokens
};

// Holds the results of steps. The host reads them while the next step runs.
struct StepStats {
    double *loss_sum, *norm_partials;
    StepRecord *records; // (ranks)
    StepResult *result;
    StepResult *results; // (NUM_STEPS), pinned
    cudaEvent_t begun[NUM_STEPS], reduced[NUM_STEPS], done[NUM_STEPS];
    int64_t steps_begun;
    PendingStep pending;
};

// Holds the losses of validations and of questions.
struct Evaluation {
    double *means;         // (ranks, rounds, most sequences of a batch): the mean loss of each sequence
    double *host_means;    // pinned, like means
    double *row_means;     // (eval_sequences): the mean loss of each sequence of an evaluation, by its number
    cudaEvent_t evaluated; // the GPU has finished a round of an evaluation
};

// Holds the sample that is being generated.
struct Sample {
    int32_t *history, *history_staging; // (T) on the GPU and pinned: the tokens so far
    int history_length;
    float *logits, *probs; // (V), logits pinned
};

// Holds buffers for parameters and state on their way between the GPU and files.
struct Transfer {
    float *staging;                     // pinned, one piece of a tensor
    uint64_t *checksum, *host_checksum; // on the GPU, pinned
    int32_t *flag;
};

struct Trainer {
    Model model;
    Optimizer optimizer;
    Gpu gpu;
    Shards shards;
    Feeder feeder;
    StepStats stats;
    Evaluation evaluation;
    Sample sample;
    Transfer transfer;
    MemoryPlan device_plan, host_plan; // host: pinned
};

// Describes a batch's place in its step, and where its losses go. By default nobody wants the losses.
struct BatchRole {
    bool trains = false;            // its gradients are wanted
    bool first = true, last = true; // of the micro-batches of a step
    float dloss = 0.0f;             // the gradient of each row's loss
    double *loss_sum = NULL; // on the GPU: the sum of the losses. The first micro-batch sets it, later ones add to it
    double *means = NULL;    // on the GPU: the mean loss of each sequence
};

// Finds the tensors of bucket 0 and a layer. Parameters are valid after await_bucket, gradients after begin_gradient.
static inline Tensors<floatX> params_of_layer(const Model *model, int layer) {
    return tensors_of(&model->shards->layout, whole_bucket(model->shards, model->params, 0),
                      whole_bucket(model->shards, model->params, 1 + layer));
}

// All are NULL in a run without gradients.
static inline Tensors<float> grads_of_layer(const Model *model, int layer) {
    if (model->shape.kind != RUN_TRAINS) { return {}; }
    return tensors_of(&model->shards->layout, whole_bucket(model->shards, model->grads, 0),
                      whole_bucket(model->shards, model->grads, 1 + layer));
}

static inline LayerActs acts_of_layer(const Model *model, int layer) {
    LayerActs acts;
#define ACTIVATION_OF(name, ...) acts.name = model->acts.name.of(layer);
    MODEL_ACTIVATIONS(ACTIVATION_OF)
    return acts;
}

// Finds the slots of all activations.
static inline void activation_slots(Activations *acts, ActSlot slots[NUM_ACTIVATIONS]) {
    int n = 0;
#define ACTIVATION_SLOT(name, ...) slots[n++] = {&acts->name.data, &acts->name.stride};
    MODEL_ACTIVATIONS(ACTIVATION_SLOT)
}

// Returns the most rows of a batch: (B,T), or one sequence of an evaluation.
static inline int64_t batch_rows(const RunShape *run) { return max_i64((int64_t)run->B * run->T, run->eval_T); }

static inline ActShape activation_shape(const Model *model) {
    const RunShape *run = &model->shape;
    int64_t N = batch_rows(run);
    int level = run->kind == RUN_TRAINS ? run->recompute : NO_BACKWARD;
    return {model->config, N,          linear_rows(run->fp8, N), min_i64(N, run->head_rows), level, run->fp8,
            ON_GPU,        PLAN_FLOATX};
}

static inline AttentionShape attention_shape(const ModelConfig *c, int B, int T) {
    return {B, T, c->num_heads, c->num_kv_heads, c->head_size};
}

// Describes the attention that cuDNN computes.
static inline CudnnShape cudnn_shape(const Model *model) {
    const RunShape *run = &model->shape;
    return {attention_shape(&model->config, run->B, run->T), run->repeats};
}

// Returns the most blocks that go through Muon's rounds at once on each rank.
static inline int muon_blocks_at_once(const Trainer *t) {
    int owners = t->optimizer.m.parts ? t->model.shape.num_ranks : 1;
    return (int)min_i64(MUON_BATCH, ceil_div_i64(t->model.config.num_layers, owners));
}

// Returns the longest sequence that the run computes.
static inline int model_positions(const Model *model) { return max(model->shape.T, model->shape.eval_T); }

// ---- What a model's main file defines ----

// Describes the head: logits (N,Vp) = lnf weight^T.
Linear lm_head_of(const Model *model);

// Returns the floats of model->sum_scratch for a batch of N rows.
int64_t model_sum_scratch_floats(const ModelConfig *config, int64_t N);

// Computes all layers up to the final norm, which writes acts.lnf. tokens (B,T) are on the GPU.
void model_forward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, int B, int T, LinearUse use);

// Adds the gradients of a batch to model->grads after model_forward and model_loss, from the last layer to the first.
// Sends each bucket to the other ranks when it is done. tokens and order (B,T) are on the GPU (embedding_order_tokens).
void model_backward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, const int32_t *order, int B,
                    int T, const BatchRole *role);

// ---- What other files of this room define ----

// Plans the model's scratch memory on the GPU.
void plan_model(Trainer *t, MemoryPlan *plan);

// Computes the losses of a batch after model_forward, and the head's gradients if they are wanted.
void model_loss(const Model *model, Gpu *gpu, Shards *shards, const int32_t *targets, int64_t N, const BatchRole *role);

// Computes the logits of row `row` after model_forward into acts.logits.
void model_logits(const Model *model, Gpu *gpu, int64_t row);

// Converts all weights to 8 bits after an update, if they are kept in 8 bits.
void quantize_all_weights(const Model *model, Gpu *gpu);

#endif // LLMC_TRAINER_TYPES_CUH
