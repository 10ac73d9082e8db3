// The structs of a GPU trainer, and the functions that a model's main file defines.
#ifndef LLMC_TRAINER_TYPES_CUH
#define LLMC_TRAINER_TYPES_CUH

#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/gpu.h"
#include "llmc/cuda/range.h"
#include "llmc/layers/attention_cudnn.h"
#include "llmc/layers/fp8.cuh"
#include "llmc/layers/linear.cuh"
#include "llmc/layers/loss.cuh"
#include "llmc/model/context.h"
#include "llmc/model/activations.h"
#include "llmc/model/memory_plan.h"
#include "llmc/model/offload.h"
#include "llmc/optim/adamw.cuh"
#include "llmc/optim/global_norm.cuh"
#include "llmc/optim/muon.cuh"
#include "llmc/ranks/matrices.cuh"
#include "llmc/ranks/schedule.h"
#include "llmc/run/train_run.h"

// Holds the model's tensors by name. A tensor of a block belongs to one layer.
#define TENSOR_POINTER(name, ...) T *name;
template <class T> struct Tensors { MODEL_PARAMETERS(TENSOR_POINTER) };

// Finds the tensors of a layer and those outside the blocks, where their buckets are whole.
template <class T> static inline Tensors<T> whole_tensors(const Shards *s, Buckets<T> array, int layer) {
    const ZeroLayout *zero = &s->layout;
    Tensors<T> tensors;
#define TENSOR_AT(name, ...)                                                                                           \
    tensors.name =                                                                                                     \
        whole_bucket(s, array, zero_bucket_of(zero, PARAM_##name, layer)) + zero_tensor_offset(zero, PARAM_##name);
    MODEL_PARAMETERS(TENSOR_AT)
    return tensors;
}

// An activation has a copy for each layer (stride > 0), or one copy (stride 0). copy_of finds the copy of a layer.
template <class T> struct Activation {
    T *data;
    int64_t stride;
    T *of(int64_t copy) const { return data + copy * stride; }
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
    int rank;
    RankGrid grid;
    bool sp;                // ranks of tensor parallelism share the rows out
    Pipeline pipeline;      // its schedule of a step; one stage without a pipeline
    int zero_stage;         // the sharded arrays: ZERO_.. in llmc/ranks/zero.h
    int64_t loss_places;    // for the losses of a validation or an evaluation: sequences of all batches of all ranks
    int64_t eval_sequences; // the most of an evaluation
    OptimizerKind optimizer;
    MuonScale muon_scale;
    bool narrow; // --moments bf16
    int offload; // what waits in the host's memory: OFFLOAD_..
} RunShape;

// What a pass works on: a chunk of the layers of this stage (schedule.h), and the slot that holds its activations.
typedef struct {
    int begin, end;   // layers of this stage
    bool first, last; // the chunk has the model's first or last layer
    int slot, turn;   // turn: the copy of dresidual
} Pass;

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
    Pass pass;            // that is being queued
    const Shards *shards; // where this rank keeps the buckets
    Buckets<floatX> params;
    Buckets<float> grads;
    Activations acts;               // with the gradients of activations, for one layer at a time
    Fp8Copies fp8;                  // 8-bit copies, with --fp8
    int head_rows;                  // rows of logits in a chunk
    float *att_delta, *sum_scratch; // scratch of the backward pass
    float *head_states;             // (tp, rows, 3): of the losses, if the vocabulary is split (loss.cuh)
    floatX *residuals;              // (L-1, rows, C) in pinned memory, with --offload residuals
    floatX *context_kv, *context_dkv, *context_parts; // (rows, 2, KV heads): keys and values of whole sequences
    float *rope; // (positions,HS/2,2): the table of rotary embeddings; NULL: the model has none
};

// Holds AdamW's moments, and the fp32 weights beside bf16 weights. m of a matrix that Muon updates is its momentum. The
// moments are m16 and v16 with --moments bf16.
struct Optimizer {
    Buckets<float> m, v, master;
    Buckets<floatX> m16, v16;
    MatrixRoom muon; // for a group of blocks
    floatX *muon_scratch;
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
    int64_t batches;       // uploaded so far
    int loaded;            // the micro-batch in the newest slot
    PipeInstruction *list; // of a training step (pipe_write)
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
    SequenceLoss *losses;      // (ranks, rounds, most sequences of a batch)
    SequenceLoss *host_losses; // pinned, like losses
    double *row_means;         // (eval_sequences): the mean loss of each sequence of an evaluation, by its number
    cudaEvent_t evaluated;     // the GPU has finished a round of an evaluation
};

// Holds the sample that is being generated.
struct Sample {
    BatchSlot history; // (T): the tokens so far
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
    double *squares = NULL;  // on the GPU: the gradients' partial sums of squares (end_bucket)
};

// Finds the tensors of a layer and those outside the blocks. Parameters are valid after await_bucket, gradients after
// begin_gradient.
static inline Tensors<floatX> params_of_layer(const Model *model, int layer) {
    return whole_tensors(model->shards, model->params, layer);
}

// All are NULL in a run without gradients.
static inline Tensors<float> grads_of_layer(const Model *model, int layer) {
    if (model->shape.kind != RUN_TRAINS) { return {}; }
    return whole_tensors(model->shards, model->grads, layer);
}

// Returns which copy of an activation belongs to a layer of this stage, in the pass that is being queued. A slot of a
// pipeline has the copies of one pass.
static inline int copy_of(const Model *model, ActCopies copies, int layer) {
    const Pass &pass = model->pass;
    if (copies == COPIES_TURNS) { return pass.turn; }
    if (copies == COPIES_BOUNDARY && model->residuals != NULL) { return layer % 2; } // see send_residual
    int each = part_most_layers(&model->shards->layout.part) + (copies == COPIES_BOUNDARY);
    return pass.slot * each + layer - pass.begin;
}

// Returns the residual stream (own rows, C) in front of a layer.
static inline floatX *residual_of(const Model *model, int layer) {
    return model->acts.residual.of(copy_of(model, COPIES_BOUNDARY, layer));
}

static inline LayerActs acts_of_layer(const Model *model, int layer) {
    LayerActs acts;
#define ACTIVATION_OF(name, type, copies, ...) acts.name = model->acts.name.of(copy_of(model, COPIES_##copies, layer));
    MODEL_ACTIVATIONS(ACTIVATION_OF)
    return acts;
}

// Finds the slots of all activations.
static inline void activation_slots(Activations *acts, ActSlot slots[NUM_ACTIVATIONS]) {
    int n = 0;
#define ACTIVATION_SLOT(name, ...) slots[n++] = {&acts->name.data, &acts->name.stride};
    MODEL_ACTIVATIONS(ACTIVATION_SLOT)
}

// Returns the most rows of a batch on this rank: of (B,T), or of one sequence of an evaluation.
static inline int64_t batch_rows(const RunShape *run) {
    return max_i64((int64_t)run->B * run->T, run->eval_T) / run->grid.cp;
}

// Returns the ranks that share the rows of a batch out, between the multiplies.
static inline int row_ranks(const RunShape *run) { return run->sp ? run->grid.tp : 1; }

static inline ActShape activation_shape(const Model *model) {
    const RunShape *run = &model->shape;
    int64_t N = batch_rows(run);
    int level = run->kind == RUN_TRAINS ? run->recompute : NO_BACKWARD;
    return {model->config,
            N,
            linear_rows(run->fp8, N),
            max_i64(min_i64(N, run->head_rows), run->grid.tp), // model_logits gathers a row of each rank
            level,
            run->fp8,
            ON_GPU,
            PLAN_FLOATX,
            row_ranks(run),
            part_most_layers(&model->shards->layout.part),
            run->kind == RUN_TRAINS ? pipe_num_slots(&run->pipeline) : 1,
            run->pipeline.stages > 1 ? 2 : 1,
            part_whole_layer(&model->shards->layout.part, 0),
            part_ends(&model->shards->layout.part),
            (run->offload & OFFLOAD_RESIDUALS) != 0};
}

// Returns the rows of a batch of N rows that this rank holds between the multiplies.
static inline int64_t own_rows(const Model *model, int64_t N) { return N / row_ranks(&model->shape); }

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
    return (int)min_i64(MUON_BATCH, ceil_div_i64(t->model.config.num_layers, matrices_owners(&t->shards)));
}

// Returns the most elements of a chunk of an update (update.cuh). Chunks of a small model are so small that they, too,
// pass through windows one behind the other.
#define UPDATE_CHUNK ((int64_t)1 << 24)
static inline int64_t update_chunk(const ZeroLayout *zero) {
    int64_t most = 0;
    for (int64_t shard : zero->shard) { most = max_i64(most, shard); }
    return min_i64(UPDATE_CHUNK, round_up_i64(ceil_div_i64(most, 4), ZERO_ALIGNMENT));
}

// ---- The gradients of a bucket ----

// Returns where the partial sums of squares of a bucket begin: the buckets' sums lie one behind the other. For bucket =
// num_buckets, how many there are.
static inline int64_t norm_place(const Shards *s, int bucket) {
    int64_t place = 0;
    for (int b = 0; b < bucket; b++) {
        BucketRange counted = counted_range(s, b);
        place += global_norm_scratch_doubles(counted.end - counted.begin);
    }
    return place;
}

// Computes the partial sums of squares of what this rank counts of a bucket. part: this rank's part of it.
static inline void sum_squares(const Shards *s, double *partials, const float *part, int bucket, cudaStream_t stream) {
    BucketRange counted = counted_range(s, bucket);
    if (counted.begin == counted.end) { return; }
    global_norm_squared(partials + norm_place(s, bucket),
                        part + counted.begin - s->rank * zero_shard(&s->layout, bucket), counted.end - counted.begin,
                        stream);
}

// The gradients of a bucket are complete in this micro-batch. If they go to the host, their squares are summed up
// first.
static inline void end_bucket(const Model *model, Shards *shards, int bucket, const BatchRole *role) {
    end_gradient(shards, model->grads, bucket, role->last);
    if (model->grads.on_host && role->last) {
        const float *own =
            whole_bucket(shards, model->grads, bucket) + shards->rank * zero_shard(&shards->layout, bucket);
        sum_squares(shards, role->squares, own, bucket, shards->comm_stream);
    }
    release_gradient(shards, model->grads, bucket);
}

// ---- Sizes ----

// Returns which positions the T rows of a sequence have that this rank holds.
static inline ContextPlace context_place(const Model *model, int T) {
    const Group *group = &model->shards->context;
    return {group->size, group->rank, group->size * T};
}

// Returns the longest sequence that the run computes.
static inline int model_positions(const Model *model) { return max(model->shape.T, model->shape.eval_T); }

// ---- What a model's main file defines ----

// Describes the head: logits (N,Vp) = lnf weight^T.
Linear lm_head_of(const Model *model);

// Returns the floats of model->sum_scratch for a batch of N rows.
int64_t model_sum_scratch_floats(const ModelConfig *config, int64_t N);

// Computes acts.lnf (own rows, C), the final norm of the last layer's output.
void final_norm_forward(const Model *model, Gpu *gpu, int64_t rows);

// Computes the layers of a pass, the embedding in front of the first one too. tokens (B,T) are on the GPU.
void model_forward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, int B, int T, LinearUse use);

// Adds the gradients of a pass to model->grads, from its last layer to its first, and those of the embedding. The
// gradient of its output is in acts.dlnf if the pass has the model's last layer, else in acts.dresidual. Sends the
// bucket of each block to the other ranks when it is done. tokens and order (B,T) are on the GPU
// (embedding_order_tokens).
void model_backward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, const int32_t *order, int B,
                    int T, const BatchRole *role);

// ---- What other files of this room define ----

// Starts a pass: gathers bucket 0 and its first block's.
void begin_forward(const Model *model, Gpu *gpu, Shards *shards);

// Plans the model's scratch memory on the GPU.
void plan_model(Trainer *t, MemoryPlan *plan);

// Computes the final norm and the losses of a batch after model_forward, and the head's gradients if they are wanted.
void model_loss(const Model *model, Gpu *gpu, Shards *shards, const int32_t *targets, int64_t N, const BatchRole *role);

// Computes the logits of row `row` after model_forward over N rows into acts.logits (Vp).
void model_logits(const Model *model, Gpu *gpu, Shards *shards, int64_t row, int64_t N);

// Converts all weights to 8 bits after an update, if they are kept in 8 bits.
void quantize_all_weights(const Model *model, Gpu *gpu);

#endif // LLMC_TRAINER_TYPES_CUH
