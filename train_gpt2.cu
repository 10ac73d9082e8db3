// GPT-2 training on GPUs, in bf16 with fp32 master weights, where asked with the blocks' matrix multiplies in 8 bits
// (--fp8), or all in fp32 (make PRECISION=FP32). The layers are the kernels in llmc/*.cuh; here is what they make up.
// Read it from top to bottom:
//
//   1. the plan        where everything lies, and who of several GPUs has what
//   2. the model       buckets on their way between GPUs, a forward and a backward pass over all layers
//   3. the update      gradient norm, AdamW, results that arrive one step late
//   4. batches         token windows on their way to the GPU
//   5. state           weights and moments between the GPU and files
//   6. the program     start, load, train, evaluate, sample, save
//
// Shapes use the field's letters: B sequences of T tokens, C channels, NH heads of size HS = C / NH, L layers, V tokens
// in the vocabulary (Vp with padding), N = B*T rows. The same model, layer by layer, on the CPU: train_gpt2.c.
//
// Of several GPUs each is worked by a process of its own, a rank, that runs this program from top to bottom: it trains
// on its part of every batch, and owns a part of every bucket of parameters (llmc/ranks/zero.h). One GPU is a rank that
// owns all; nothing is then sent.
//
// Four rules hold throughout:
// - Gradients of parameters are fp32 and are added to (+=); gradients of activations are floatX and, but for the
//   residual stream's, written (=).
// - The same inputs give the same bits: sums run in an order that follows from the shapes alone.
// - The host never waits for the GPU inside a step. What it wants to know of a step (loss, norm) it reads while the
//   next one runs. Nothing is allocated after the start, but for what the driver keeps of a step's CUDA graphs.
// - What ranks decide alike they decide from the same bits, so that nobody need ask.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <nvtx3/nvToolsExt.h>

#include "llmc/optim/adamw.cuh"
#include "llmc/layers/attention.cuh"
#include "llmc/layers/attention_tune.cuh"
#include "llmc/model/activations.h"
#include "llmc/model/auto_plan.h"
#include "llmc/cuda/checksum.cuh"
#include "llmc/ranks/findings.h"
#include "llmc/ranks/buckets.cuh"
#include "llmc/ranks/gpu_state.cuh"
#include "llmc/ranks/rank_gpus.cuh"
#include "llmc/ranks/ranks.h"
#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/cuda_graph.h"
#include "llmc/layers/attention_cudnn.h"
#include "llmc/layers/embedding.cuh"
#include "llmc/optim/finite.cuh"
#include "llmc/layers/fp8.cuh"
#include "llmc/layers/loss.cuh"
#include "llmc/layers/gelu.cuh"
#include "llmc/optim/global_norm.cuh"
#include "llmc/optim/outlier.h"
#include "llmc/optim/schedulers.h"
#include "llmc/model/gpt2.h"
#include "llmc/cuda/gpu.h"
#include "llmc/layers/layernorm.cuh"
#include "llmc/layers/linear.cuh"
#include "llmc/cuda/matmul_tune.cuh"
#include "llmc/model/memory_plan.h"
#include "llmc/ranks/step_link.h"
#include "llmc/run/gpu_choices.h"
#include "llmc/run/run_report.h"
#include "llmc/run/run_start.h"
#include "llmc/run/signals.h"
#include "llmc/run/train_run.h"
#include "llmc/base/utils.h"

// ---------------------------------------------------------------------------------------------------------------------
// 1. The plan

static const char *const host_phase_names[] = {"all"};

// The 16 tensors of the model by name; those of a block are the ones of one layer.
#define TENSOR_POINTER(name, ...) T *name;
template <class T> struct Tensors { GPT2_PARAMETERS(TENSOR_POINTER) };

// outside: bucket 0, block: the bucket of one layer, where they stand now.
template <class T> static Tensors<T> tensors_of(const ZeroLayout *zero, T *outside, T *block) {
    Tensors<T> tensors;
#define TENSOR_AT(name, ...)                                                                                           \
    tensors.name =                                                                                                     \
        (gpt2_param_specs[PARAM_##name].per_layer ? block : outside) + zero_tensor_offset(zero, PARAM_##name);
    GPT2_PARAMETERS(TENSOR_AT)
    return tensors;
}

// The linear layers of a block.
enum { LINEAR_QKV, LINEAR_ATTPROJ, LINEAR_FC, LINEAR_FCPROJ, NUM_LINEARS };

// An activation with a copy for each layer (stride > 0), or with one copy (stride 0).
template <class T> struct Activation {
    T *data;
    int64_t stride;
    T *of(int64_t layer) const { return data + layer * stride; }
};

#define ACTIVATION_FIELD(name, type, ...) Activation<type> name;
struct Activations {
    GPT2_ACTIVATIONS(ACTIVATION_FIELD)
};

// What a run needs memory for. Whoever evaluates needs no gradients, and each activation for one layer only.
typedef enum { RUN_GENERATES, RUN_EVALUATES, RUN_TRAINS } RunKind;

typedef struct {
    RunKind kind;
    int B, T;         // the largest batch there is room for
    int recompute;    // one of the levels above
    int gelu_fusion;  // likewise
    bool cudnn;       // attention of batches of this shape by cuDNN
    bool needs_cudnn; // or not at all
    bool times_cudnn; // or by our own kernels, if these are faster
    bool repeats;     // attention has the same bits each time
    bool fp8;         // the linear layers of the blocks multiply in 8 bits
    int head_rows;    // rows of logits at a time; fewer if there are fewer
    bool head_overlap;
    bool cuda_graph; // launch the passes of a step as CUDA graphs: of one GPU, collectives are queued call by call
    bool has_master; // fp32 weights beside the bf16 ones
    bool exports;    // rank 0 collects all parameters in the end
    int rank, num_ranks;
    int zero_stage;        // what is sharded: ZERO_.. in llmc/ranks/zero.h
    int64_t cublas_bytes;  // cuBLASLt's workspace
    int64_t val_sequences; // of a validation
    int64_t eval_means;    // of an evaluation: places for the mean losses of all batches of all ranks
    int64_t eval_rows;     // the most rows of one
} RunShape;

#define NUM_SLOTS 2 // batches under way
#define NUM_STEPS 3 // steps whose events are held: the one being queued, the one not yet read, and the one before it

// A batch on its way: what the GPU works on and what is copied there meanwhile never share memory.
typedef struct {
    // (3,N) in pinned and in GPU memory: tokens, targets, and rows in order of tokens; of an evaluation, in their
    // place, which losses count.
    int32_t *staging, *device;
    cudaEvent_t uploaded, no_longer_used;
} BatchSlot;

// The passes of a micro-batch in training.
enum { PASS_FORWARD, PASS_LM_HEAD, PASS_BACKWARD, NUM_PASSES };

// What a step's kernels are told that was not so in the step before.
typedef struct {
    AdamWFactors factors;
    int64_t wants_to_end; // this process has been asked to stop
} StepInput;

// A step whose results have not been read.
typedef struct {
    bool waiting; // there is one
    bool judged;  // its loss and norm have already been looked at for outliers
    bool adjoins; // nothing came between it and the step before it
    int slot;
    StepInfo info; // without loss, norm and time
    int64_t next_sequence;
} PendingStep;

typedef struct {
    GPT2Config config;
    RunShape shape;
    Shards shards;

    Buckets<floatX> params;
    Buckets<float> master, grads, adam_m, adam_v;

    Activations acts; // and the gradients of activations, for one layer at a time
    Fp8Copies fp8;    // of --fp8
    int head_rows;    // rows of logits in a chunk
    float *att_delta, *sum_scratch;
    double *norm_partials, *loss_sum;
    StepInput *input;
    StepRecord *records; // (ranks)
    StepResult *result;
    double *val_sums;   // (ranks, rounds of validation): the sum of the losses of each batch
    double *eval_means; // (ranks, rounds of an evaluation, most rows of a batch)
    uint64_t *checksum;
    float *export_bucket;
    int32_t *flag, *history;
    void *cublas_workspace;
    CudnnAttention cudnn;
    Error no_cudnn;    // why it is not used, where it would have been
    bool cudnn_failed; // it had no plan
    void *cudnn_forward, *cudnn_backward;

    BatchSlot slots[NUM_SLOTS];
    int64_t batches;          // uploaded so far
    StepInput *inputs;        // (NUM_STEPS), pinned
    StepResult *results;      // (NUM_STEPS), pinned
    double *host_val_sums;    // pinned, like val_sums
    double *host_eval_means;  // pinned, like eval_means
    double *row_means;        // (eval_rows): the same by the number of the row
    uint64_t *host_checksum;  // pinned
    float *staging;           // (STAGING_FLOATS), pinned: parameters and state on their way
    floatX *sample_logits;    // (Vp), pinned
    int32_t *history_staging; // (T), pinned: the tokens so far of a sample
    int history_length;
    float *host_params;                    // (number of parameters), to be exported
    float *host_logits, *sampler_probs;    // (V)
    int32_t *sampler_index, *token_counts; // (V), (V+1)

    MemoryPlan device_plan, pinned_plan, host_plan;
    CublasContext cublas;
    Tuning tuning; // the choices of algorithms, and of kernels for attention
    int spared;    // multiprocessors that multiplies beside communication count on; 0: all
    bool reduces;  // gradients are on their way while the backward pass goes on
    Comm *ranks;
    cudaStream_t stream, copy_stream, lm_head_stream;
    cudaEvent_t evaluated;                // a round of an evaluation
    cudaEvent_t multiplied[2], scored[2]; // rows of logits: see lm_head_forward
    cudaEvent_t step_begun[NUM_STEPS], step_reduced[NUM_STEPS], step_done[NUM_STEPS];
    CudaGraphs graphs;
    CudaGraph pass_graphs[NUM_SLOTS][2][NUM_PASSES]; // [1]: of the first micro-batch of a step
    CudaGraph norm_graph, update_graph;
    PendingStep pending;
    int64_t steps_begun;
    bool stop_agreed; // all ranks know that one of them was asked to stop
    GpuDevice gpu;
    Outliers outliers;
} GPT2;

// A name over what is launched until the end of the scope, for the profiler's time line.
struct Range {
    explicit Range(const char *name) { nvtxRangePushA(name); }
    ~Range() { nvtxRangePop(); }
    Range(const Range &) = delete;
    Range &operator=(const Range &) = delete;
};

// What --fp8 takes beside the rest.
static void plan_fp8(GPT2 *model, MemoryPlan *plan, int64_t N) {
    int C = model->config.channels, r = model->shape.recompute;
    bool keeps_ln = r < RECOMPUTE_LAYERNORM, keeps_gelu = r < RECOMPUTE_GELU;
    const Fp8PlanRow rows[NUM_LINEARS] = {{"qkvw_fp8", "qkvw_fp8_t", "ln1_fp8_t", C, 3 * C, keeps_ln},
                                          {"attprojw_fp8", "attprojw_fp8_t", "att_fp8_t", C, C, keeps_ln},
                                          {"fcw_fp8", "fcw_fp8_t", "ln2_fp8_t", C, 4 * C, keeps_ln},
                                          {"fcprojw_fp8", "fcprojw_fp8_t", "gelu_fp8_t", 4 * C, C, keeps_gelu}};
    const Fp8PlanShape shape = {model->config.num_layers, N,       model->shape.kind == RUN_TRAINS,
                                !model->params.parts,     FORWARD, BACKWARD_MLP,
                                BACKWARD_ATTENTION,       UPDATE};
    fp8_plan(&model->fp8, plan, rows, NUM_LINEARS, &shape);
}

// Finds the slots of all activations.
static void activation_slots(Activations *acts, ActSlot slots[NUM_ACTIVATIONS]) {
    int n = 0;
#define ACTIVATION_SLOT(name, ...) slots[n++] = {&acts->name.data, &acts->name.stride};
    GPT2_ACTIVATIONS(ACTIVATION_SLOT)
}

// With --head-overlap the losses of a chunk are computed beside the logits of the next one: two chunks are there.
static ActShape activation_shape(const GPT2 *model) {
    const RunShape *run = &model->shape;
    int64_t N = (int64_t)run->B * run->T, chunk = min_i64(N, run->head_rows);
    int level = run->kind == RUN_TRAINS ? run->recompute : NO_BACKWARD, chunks = run->head_overlap && chunk < N ? 2 : 1;
    return {model->config, N, linear_rows(run->fp8, N), chunk, chunks, level, run->fp8, ON_GPU, PLAN_FLOATX};
}

// Plans the activations from `first` to `last`.
static void plan_activations(GPT2 *model, MemoryPlan *plan, int first, int last) {
    ActShape shape = activation_shape(model);
    ActSlot slots[NUM_ACTIVATIONS];
    model->head_rows = (int)shape.chunk_rows;
    activation_slots(&model->acts, slots);
    for (int i = first; i <= last; i++) { plan_activation(plan, &shape, i, slots[i]); }
}

// The layers that sum over rows take turns with one scratch buffer.
static int64_t sum_scratch_floats(int64_t N, int C) {
    int64_t most = max_i64(layernorm_backward_scratch_floats(N, C), gelu_backward_scratch_floats(N, 4 * C));
    for (int width = C; width <= 4 * C; width += C) {
        most = max_i64(most, linear_backward_bias_scratch_floats(N, width));
    }
    return most;
}

// The sums of squares of one bucket's part stand behind those of the buckets before.
static int64_t norm_partials_of(const GPT2 *model, int bucket) {
    return global_norm_scratch_doubles(zero_shard(&model->shards.layout, bucket));
}

// What cuDNN is asked for, where it does the attention.
static CudnnShape cudnn_shape(const GPT2 *model) {
    const RunShape *run = &model->shape;
    CudnnShape shape = {run->B, run->T, model->config.channels, model->config.num_heads, run->repeats};
    return shape;
}

static void plan_backward(GPT2 *model, MemoryPlan *plan, int64_t N) {
    int C = model->config.channels, NH = model->config.num_heads;
    PlanCategory work = PLAN_WORKSPACE;
    plan_activations(model, plan, ACT_dresidual, ACT_dqkv);
    CudnnShape attention = cudnn_shape(model);
    int64_t cudnn_bytes = model->shape.cudnn ? cudnn_att_backward_bytes(&attention) : 0;
    plan_add(plan, &model->cudnn_backward, "cudnn_backward", work, PLAN_F32, shape1(ceil_div_i64(cudnn_bytes, 4)),
             BACKWARD_ATTENTION, BACKWARD_ATTENTION);
    plan_add(plan, &model->att_delta, "att_delta", work, PLAN_F32, shape2(N, NH), BACKWARD_ATTENTION,
             BACKWARD_ATTENTION);
    plan_add(plan, &model->sum_scratch, "sum_scratch", work, PLAN_F32, shape1(sum_scratch_floats(N, C)), LM_HEAD,
             BACKWARD_ATTENTION);
    int64_t partials = 0;
    for (int b = 0; b < model->shards.layout.num_buckets; b++) { partials += norm_partials_of(model, b); }
    plan_add(plan, &model->norm_partials, "norm_partials", work, PLAN_F64, shape1(partials), UPDATE, UPDATE);
}

static_assert(sizeof(StepResult) % sizeof(double) == 0, "results are planned as doubles");
static_assert(sizeof(StepRecord) % sizeof(double) == 0, "records are planned as doubles");
static_assert(sizeof(StepInput) % sizeof(double) == 0, "inputs are planned as doubles");
#define RESULT_DOUBLES ((int64_t)(sizeof(StepResult) / sizeof(double)))
#define RECORD_DOUBLES ((int64_t)(sizeof(StepRecord) / sizeof(double)))
#define INPUT_DOUBLES ((int64_t)(sizeof(StepInput) / sizeof(double)))

// Batches of a validation are dealt out to the ranks in rounds.
static int64_t validation_rounds(const GPT2 *model) {
    return ceil_div_i64(ceil_div_i64(model->shape.val_sequences, model->shape.B), model->shape.num_ranks);
}

template <class T>
static void plan_buckets(MemoryPlan *plan, Buckets<T> *array, const char *name, PlanCategory category, int64_t length,
                         bool parts) {
    array->parts = parts;
    plan_add(plan, &array->data, name, category, sizeof(T) == 2 ? PLAN_BF16 : PLAN_F32, shape1(length), FORWARD,
             UPDATE);
}

// Parameters, gradients and the optimizer's state: what this rank holds of them.
static void plan_state(GPT2 *model, MemoryPlan *plan) {
    int stage = model->shape.zero_stage;
    int64_t trains = model->shape.kind == RUN_TRAINS;
    ZeroLengths n = zero_lengths(&model->shards.layout, stage);
    plan_buckets(plan, &model->params, "params", PLAN_PARAMETER, n.params, stage >= ZERO_PARAMETERS);
    plan_buckets(plan, &model->master, "master", PLAN_OPTIMIZER, model->shape.has_master ? trains * n.master : 0,
                 stage >= ZERO_OPTIMIZER);
    plan_buckets(plan, &model->grads, "grads", PLAN_GRADIENT, trains * n.grads, stage >= ZERO_GRADIENTS);
    plan_buckets(plan, &model->adam_m, "adam_m", PLAN_OPTIMIZER, trains * n.m, stage >= ZERO_OPTIMIZER);
    plan_buckets(plan, &model->adam_v, "adam_v", PLAN_OPTIMIZER, trains * n.v, stage >= ZERO_OPTIMIZER);
    plan_add(plan, &model->params.slots, "param_slots", PLAN_PARAMETER, PLAN_FLOATX, shape1(n.param_slots), FORWARD,
             UPDATE);
    // The last gradients of a micro-batch are on their way while the next is in its forward pass.
    plan_add(plan, &model->grads.slots, "grad_slots", PLAN_GRADIENT, PLAN_F32, shape1(trains * n.grad_slots), FORWARD,
             UPDATE);
}

// Everything on the GPU. N: rows of the largest batch.
static void plan_device(GPT2 *model, int64_t N) {
    MemoryPlan *plan = &model->device_plan;
    int64_t ranks = model->shape.num_ranks;
    bool trains = model->shape.kind == RUN_TRAINS;
    plan_init(plan, phase_names);
    plan_state(model, plan);
    for (int i = 0; i < NUM_SLOTS; i++) {
        plan_add(plan, &model->slots[i].device, i == 0 ? "batch_0" : "batch_1", PLAN_DATA, PLAN_I32, shape2(3, N),
                 FORWARD, UPDATE);
    }
    plan_add(plan, &model->history, "history", PLAN_DATA, PLAN_I32, shape1(model->shape.T), FORWARD, UPDATE);
    plan_activations(model, plan, ACT_residual, ACT_fc);
    if (model->shape.fp8) { plan_fp8(model, plan, N); }
    plan_activations(model, plan, ACT_gelu, ACT_logits);
    if (trains) { plan_backward(model, plan, N); }
    plan_add(plan, &model->loss_sum, "loss_sum", PLAN_WORKSPACE, PLAN_F64, shape1(1), FORWARD, UPDATE);
    plan_add(plan, &model->input, "step_input", PLAN_WORKSPACE, PLAN_F64, shape1(trains * INPUT_DOUBLES), FORWARD,
             UPDATE);
    plan_add(plan, &model->records, "records", PLAN_WORKSPACE, PLAN_F64, shape2(ranks, RECORD_DOUBLES), UPDATE, UPDATE);
    plan_add(plan, &model->result, "result", PLAN_WORKSPACE, PLAN_F64, shape1(RESULT_DOUBLES), FORWARD, UPDATE);
    plan_add(plan, &model->val_sums, "val_sums", PLAN_WORKSPACE, PLAN_F64, shape2(ranks, validation_rounds(model)),
             FORWARD, UPDATE);
    plan_add(plan, &model->eval_means, "eval_means", PLAN_WORKSPACE, PLAN_F64, shape1(model->shape.eval_means), FORWARD,
             UPDATE);
    plan_add(plan, &model->checksum, "checksum", PLAN_WORKSPACE, PLAN_F64, shape1(1), FORWARD, UPDATE);
    plan_add(plan, &model->export_bucket, "export_bucket", PLAN_WORKSPACE, PLAN_F32,
             shape1(model->shape.exports
                        ? max_i64(zero_padded(&model->shards.layout, 0), zero_padded(&model->shards.layout, 1))
                        : 0),
             FORWARD, UPDATE);
    plan_add(plan, &model->flag, "flag", PLAN_WORKSPACE, PLAN_I32, shape1(1), FORWARD, UPDATE);
    plan_add(plan, &model->cublas_workspace, "cublas", PLAN_WORKSPACE, PLAN_F32,
             shape1(model->shape.cublas_bytes / (int64_t)sizeof(float)), FORWARD, UPDATE);
    int64_t cudnn_bytes = model->shape.cudnn ? CUDNN_ATT_SLACK : 0;
    plan_add(plan, &model->cudnn_forward, "cudnn_forward", PLAN_WORKSPACE, PLAN_F32,
             shape1(cudnn_bytes / (int64_t)sizeof(float)), FORWARD, BACKWARD_ATTENTION);
    plan_layout(plan);
}

static_assert(STATE_MAX_CHUNK * (int64_t)sizeof(float) <= CUBLAS_SMALL_WORKSPACE,
              "parameters on their way to bf16 pass through cuBLAS's workspace");
static_assert((int)STATE_PARAMS == CHECKPOINT_PARAMS && (int)STATE_ADAM_M == CHECKPOINT_ADAM_M &&
                  (int)STATE_ADAM_V == CHECKPOINT_ADAM_V,
              "the arrays of a checkpoint are those on the GPU");

// What the host shares with the GPU (pinned), and what it keeps for itself.
static void plan_host(GPT2 *model, int64_t N) {
    const GPT2Config *config = &model->config;
    int64_t V = config->vocab_size, Vp = config->padded_vocab_size;
    bool collects = model->shape.exports && model->shape.rank == 0;
    MemoryPlan *plan = &model->pinned_plan;
    plan_init(plan, host_phase_names);
    for (int i = 0; i < NUM_SLOTS; i++) {
        plan_add(plan, &model->slots[i].staging, i == 0 ? "staging_0" : "staging_1", PLAN_DATA, PLAN_I32, shape2(3, N),
                 0, 0);
    }
    plan_add(plan, &model->inputs, "step_inputs", PLAN_DATA, PLAN_F64, shape2(NUM_STEPS, INPUT_DOUBLES), 0, 0);
    plan_add(plan, &model->results, "results", PLAN_DATA, PLAN_F64, shape2(NUM_STEPS, RESULT_DOUBLES), 0, 0);
    plan_add(plan, &model->host_val_sums, "val_sums", PLAN_DATA, PLAN_F64,
             shape2(model->shape.num_ranks, validation_rounds(model)), 0, 0);
    plan_add(plan, &model->host_eval_means, "eval_means", PLAN_DATA, PLAN_F64, shape1(model->shape.eval_means), 0, 0);
    plan_add(plan, &model->host_checksum, "checksum", PLAN_DATA, PLAN_F64, shape1(1), 0, 0);
    plan_add(plan, &model->staging, "staging", PLAN_DATA, PLAN_F32, shape1(state_chunk_floats(&model->shards.layout)),
             0, 0);
    plan_add(plan, &model->sample_logits, "sample_logits", PLAN_DATA, PLAN_FLOATX, shape1(Vp), 0, 0);
    plan_add(plan, &model->history_staging, "history_staging", PLAN_DATA, PLAN_I32, shape1(model->shape.T), 0, 0);
    plan_layout(plan);
    plan = &model->host_plan;
    plan_init(plan, host_phase_names);
    plan_add(plan, &model->host_params, "host_params", PLAN_PARAMETER, PLAN_F32,
             shape1(collects ? gpt2_num_params(config) : 0), 0, 0);
    plan_add(plan, &model->row_means, "row_means", PLAN_WORKSPACE, PLAN_F64, shape1(model->shape.eval_rows), 0, 0);
    plan_add(plan, &model->host_logits, "host_logits", PLAN_WORKSPACE, PLAN_F32, shape1(V), 0, 0);
    plan_add(plan, &model->sampler_probs, "sampler_probs", PLAN_WORKSPACE, PLAN_F32, shape1(V), 0, 0);
    plan_add(plan, &model->sampler_index, "sampler_index", PLAN_WORKSPACE, PLAN_I32, shape1(V), 0, 0);
    plan_add(plan, &model->token_counts, "token_counts", PLAN_WORKSPACE, PLAN_I32, shape1(V + 1), 0, 0);
    plan_layout(plan);
}

// Plans every buffer of a run.
static void gpt2_plan(GPT2 *model, const GPT2Config *config, RunShape shape) {
    memset(model, 0, sizeof(*model));
    shape.zero_stage = zero_effective_stage(shape.zero_stage, shape.num_ranks);
    model->config = *config, model->shape = shape;
    shards_plan(&model->shards, config, shape.rank, shape.num_ranks, shape.zero_stage);
    int64_t N = (int64_t)shape.B * shape.T;
    plan_device(model, N);
    plan_host(model, N);
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. The model

// Tensors of bucket 0 and of one layer: their parameters, after await_bucket, and their gradients, after
// begin_gradient.
static Tensors<floatX> params_of_layer(const GPT2 *model, int layer) {
    return tensors_of(&model->shards.layout, whole_bucket(&model->shards, model->params, 0),
                      whole_bucket(&model->shards, model->params, 1 + layer));
}

static Tensors<float> grads_of_layer(const GPT2 *model, int layer) {
    return tensors_of(&model->shards.layout, whole_bucket(&model->shards, model->grads, 0),
                      whole_bucket(&model->shards, model->grads, 1 + layer));
}

// A batch's place in its step.
typedef struct {
    bool trains;      // its gradients are wanted
    bool first, last; // of the micro-batches of a step
    float dloss;      // the gradient of each row's loss
    double *loss_sum; // on the GPU: the losses replace what is there when it is the first, else they are added; or NULL
    double *means;    // of an evaluation, on the GPU: the mean loss of each sequence; else NULL
} BatchRole;

// ---- The linear layers ----

// use: see llmc/layers/fp8.cuh.
static Linear linear_of(const GPT2 *model, int layer, int which, LinearUse use) {
    int C = model->config.channels;
    Tensors<floatX> p = params_of_layer(model, layer);
    Tensors<float> g = {};
    if (model->shape.kind == RUN_TRAINS) { g = grads_of_layer(model, layer); }
    Fp8Linear fp8 = fp8_linear(&model->fp8, layer, which, use);
    switch (which) {
    case LINEAR_QKV: return {C, 3 * C, p.qkvw, p.qkvb, g.qkvw, g.qkvb, fp8};
    case LINEAR_ATTPROJ: return {C, C, p.attprojw, p.attprojb, g.attprojw, g.attprojb, fp8};
    case LINEAR_FC: return {C, 4 * C, p.fcw, p.fcb, g.fcw, g.fcb, fp8};
    default: return {4 * C, C, p.fcprojw, p.fcprojb, g.fcprojw, g.fcprojb, fp8};
    }
}

// The language model head, which shares its weights with the token embedding: logits (N,Vp) = lnf wte^T.
static Linear lm_head_of(const GPT2 *model) {
    Linear head;
    head.C = model->config.channels, head.OC = model->config.padded_vocab_size;
    head.weight = params_of_layer(model, 0).wte;
    if (model->shape.kind == RUN_TRAINS) { head.dweight = grads_of_layer(model, 0).wte; }
    return head;
}

// Brings a block's weights, which have changed or just come, to 8 bits.
static void quantize_weights(GPT2 *model, int layer) {
    Linear linears[NUM_LINEARS];
    for (int i = 0; i < NUM_LINEARS; i++) { linears[i] = linear_of(model, layer, i, LINEAR_BACKWARD); }
    linear_quantize_weights(linears, NUM_LINEARS, model->stream);
}

// The parameters have changed, and all are here.
static void quantize_all_weights(GPT2 *model) {
    if (!model->shape.fp8 || model->params.parts) { return; }
    for (int layer = 0; layer < model->config.num_layers; layer++) { quantize_weights(model, layer); }
}

// Where parameters are only passing through, those of a block are brought to 8 bits whenever its work begins; where
// they are gathered after an update, in the forward pass, which waits for each bucket.
static void quantize_passing_weights(GPT2 *model, int layer) {
    if (model->shape.fp8 && (model->params.parts || model->shards.gathering)) { quantize_weights(model, layer); }
}

// What is computed from here on may read all parameters: for whoever is no forward pass.
static void await_parameters(GPT2 *model) {
    if (!model->shards.gathering) { return; }
    model->shards.gathering = false;
    compute_after_communicate(&model->shards);
    quantize_all_weights(model);
}

// How many multiprocessors the next multiplications count on.
static void count_on(GPT2 *model, bool communicates) {
    model->cublas.multiprocessors = communicates ? model->spared : 0;
}

#define MAX_MATMUL_PROBLEMS 32

// The multiplications of a layer by the multiprocessors that they count on: see count_on. Of the backward pass they are
// there twice if only a step's last micro-batch sends gradients.
static int shared_problems(const GPT2 *model, int which, int64_t N, CublasProblem *problems) {
    bool makes_gelu = which == LINEAR_FC && model->shape.gelu_fusion >= FUSE_GELU_FORWARD;
    bool takes_gelu = which == LINEAR_FCPROJ && model->shape.gelu_fusion >= FUSE_GELU_BACKWARD;
    int n = LINEAR_PRODUCTS;
    linear_problems(problems, linear_of(model, 0, which, LINEAR_FOR_GRADIENTS), N, makes_gelu, takes_gelu);
    if (model->spared == 0) { return n; }
    if (model->params.parts) { problems[0].multiprocessors = model->spared; } // the forward's
    for (int i = 1; i < LINEAR_PRODUCTS; i++) {
        if (!model->grads.parts) { problems[n++] = problems[i]; }
        problems[i].multiprocessors = model->spared;
    }
    return n;
}

// All multiplications of a training micro-batch, so that the best algorithms can be found before the first. Returns how
// many there are, at most MAX_MATMUL_PROBLEMS.
static int matmul_problems(const GPT2 *model, CublasProblem *problems) {
    int n = 0;
    int64_t N = (int64_t)model->shape.B * model->shape.T;
    for (int which = 0; which < NUM_LINEARS; which++) { n += shared_problems(model, which, N, problems + n); }
    const int64_t head_rows[] = {model->head_rows, N % model->head_rows}; // all but the last time, and the last
    for (int64_t rows : head_rows) {
        if (rows == 0) { continue; }
        linear_problems(problems + n, lm_head_of(model), rows, false, false);
        n += LINEAR_PRODUCTS;
    }
    return n;
}

// ---- The layers ----

// att and att_lse of qkv, for the linear layer attproj. cuDNN does not tell the largest magnitude in att.
static void attend(GPT2 *model, int layer, int B, int T, const Linear &attproj) {
    int C = model->config.channels, NH = model->config.num_heads;
    const floatX *qkv = model->acts.qkv.of(layer);
    floatX *att = model->acts.att.of(layer);
    float *lse = model->acts.att_lse.of(layer);
    if (!cudnn_att_takes(&model->cudnn, B, T)) {
        attention_forward(att, lse, qkv, B, T, C, NH, model->stream, attproj.inp_amax());
        return;
    }
    cudnn_att_forward(&model->cudnn, att, lse, qkv, model->stream);
    linear_measure_input(attproj, att, (int64_t)B * T, model->stream);
}

// dqkv of datt. Its largest magnitude comes with the sums of its rows.
static void attend_backward(GPT2 *model, int layer, int B, int T) {
    int C = model->config.channels, NH = model->config.num_heads;
    const floatX *qkv = model->acts.qkv.of(layer), *att = model->acts.att.of(layer);
    const float *lse = model->acts.att_lse.of(layer);
    if (!cudnn_att_takes(&model->cudnn, B, T)) {
        attention_backward(model->acts.dqkv.data, model->acts.datt.data, qkv, att, lse, model->att_delta, B, T, C, NH,
                           model->stream);
        return;
    }
    cudnn_att_backward(&model->cudnn, model->acts.dqkv.data, model->acts.datt.data, qkv, att, lse, model->stream);
}

// A block up to the input of its last matmul, from ln1, which the block before has left:
//   mid = x + attention(ln1); ln2 = layernorm(mid); fc, gelu
static void block_forward(GPT2 *model, int layer, int B, int T, LinearUse use) {
    int C = model->config.channels;
    int64_t N = (int64_t)B * T;
    Tensors<floatX> p = params_of_layer(model, layer);
    CublasContext *cublas = &model->cublas;
    cudaStream_t stream = model->stream;
    floatX *att = model->acts.att.of(layer), *mid = model->acts.residual_mid.of(layer),
           *ln2 = model->acts.ln2.of(layer);
    floatX *fc = model->acts.fc.of(layer), *gelu = model->acts.gelu.of(layer);
    Linear attproj = linear_of(model, layer, LINEAR_ATTPROJ, use), to_fc = linear_of(model, layer, LINEAR_FC, use);
    count_on(model, model->params.parts); // also when it is computed again: the same bits
    linear_forward(cublas, linear_of(model, layer, LINEAR_QKV, use), model->acts.qkv.of(layer), NULL,
                   model->acts.ln1.of(layer), N, stream);
    attend(model, layer, B, T, attproj);
    linear_forward(cublas, attproj, model->acts.projection.data, NULL, att, N, stream);
    fused_residual_layernorm_forward(mid, ln2, model->acts.ln2_mean.of(layer), model->acts.ln2_rstd.of(layer),
                                     model->acts.residual.of(layer), model->acts.projection.data, p.ln2w, p.ln2b, N, C,
                                     stream, to_fc.inp_amax());
    if (model->shape.gelu_fusion >= FUSE_GELU_FORWARD) {
        linear_forward(cublas, to_fc, gelu, fc, ln2, N, stream);
        return;
    }
    linear_forward(cublas, to_fc, fc, NULL, ln2, N, stream);
    LinearUse next = use == LINEAR_AGAIN ? LINEAR_BACKWARD : use; // the backward pass needs no output of fcproj
    linear_gelu_input(linear_of(model, layer, LINEAR_FCPROJ, next), gelu, fc, N, stream);
}

// All layers up to the final LayerNorm, whose output is model->acts.lnf.data. tokens (B,T) on the GPU.
static void gpt2_forward(GPT2 *model, const int32_t *tokens, int B, int T, LinearUse use) {
    Range range("forward");
    int C = model->config.channels, L = model->config.num_layers;
    int64_t N = (int64_t)B * T;
    Tensors<floatX> p = params_of_layer(model, 0);
    fetch_bucket(&model->shards, model->params, 0);
    fetch_bucket(&model->shards, model->params, 1);
    await_bucket(&model->shards, model->params, 0);
    await_bucket(&model->shards, model->params, 1);
    fp8_clear_activation_scales(&model->fp8, model->stream);
    embedding_forward(model->acts.residual.of(0), tokens, p.wte, p.wpe, B, T, C, model->stream);
    layernorm_forward(model->acts.ln1.of(0), model->acts.ln1_mean.of(0), model->acts.ln1_rstd.of(0),
                      model->acts.residual.of(0), p.ln1w, p.ln1b, N, C, model->stream,
                      linear_of(model, 0, LINEAR_QKV, use).inp_amax());
    for (int layer = 0; layer < L; layer++) {
        bool last = layer == L - 1;
        if (!last) { fetch_bucket(&model->shards, model->params, 2 + layer); }
        p = params_of_layer(model, layer);
        quantize_passing_weights(model, layer);
        block_forward(model, layer, B, T, use);
        linear_forward(&model->cublas, linear_of(model, layer, LINEAR_FCPROJ, use), model->acts.projection.data, NULL,
                       model->acts.gelu.of(layer), N, model->stream);
        if (!last) { await_bucket(&model->shards, model->params, 2 + layer); }
        Tensors<floatX> next = params_of_layer(model, last ? layer : layer + 1);
        fused_residual_layernorm_forward(
            model->acts.residual.of(layer + 1), last ? model->acts.lnf.data : model->acts.ln1.of(layer + 1),
            last ? model->acts.lnf_mean.data : model->acts.ln1_mean.of(layer + 1),
            last ? model->acts.lnf_rstd.data : model->acts.ln1_rstd.of(layer + 1), model->acts.residual_mid.of(layer),
            model->acts.projection.data, last ? p.lnfw : next.ln1w, last ? p.lnfb : next.ln1b, N, C, model->stream,
            last ? NULL : linear_of(model, layer + 1, LINEAR_QKV, use).inp_amax());
        release_bucket(&model->shards, model->params, 1 + layer);
    }
    model->shards.gathering = false; // every bucket has been waited for
}

// Some rows of the head: those from `first` on, the logits in one of two rooms.
typedef struct {
    int64_t first, rows;
    int slot;
    floatX *logits;
} LmHeadRows;

static LmHeadRows lm_head_rows_of(const GPT2 *model, int64_t chunk, int64_t N) {
    int64_t first = chunk * model->head_rows;
    int slot = model->acts.logits.stride > 0 ? (int)(chunk % 2) : 0;
    LmHeadRows rows = {first, min_i64(model->head_rows, N - first), slot, model->acts.logits.of(slot)};
    return rows;
}

// Computes the logits of some rows, and from them losses and gradients in place: with --head-overlap in another stream,
// so that this, which waits for memory, goes on beside the matrix multiplies of other rows. lm_head_backward joins it.
static void lm_head_forward(GPT2 *model, LmHeadRows h, const int32_t *targets, const BatchRole *role) {
    int C = model->config.channels, V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    bool overlaps = model->acts.logits.stride > 0;
    cudaStream_t stream = overlaps ? model->lm_head_stream : model->stream;
    linear_forward(&model->cublas, lm_head_of(model), h.logits, NULL, model->acts.lnf.data + h.first * C, h.rows,
                   model->stream);
    if (overlaps) {
        cuda_check(cudaEventRecord(model->multiplied[h.slot], model->stream));
        cuda_check(cudaStreamWaitEvent(stream, model->multiplied[h.slot], 0));
    }
    cross_entropy(model->acts.losses.data + h.first, h.logits, targets + h.first, h.rows, V, Vp, role->dloss,
                  role->trains, stream);
    if (overlaps) { cuda_check(cudaEventRecord(model->scored[h.slot], stream)); }
}

// The head's backward of rows that lm_head_forward has begun.
static void lm_head_backward(GPT2 *model, LmHeadRows h, const BatchRole *role) {
    int64_t at = h.first * model->config.channels;
    if (model->acts.logits.stride > 0) { cuda_check(cudaStreamWaitEvent(model->stream, model->scored[h.slot], 0)); }
    if (!role->trains) { return; }
    linear_backward(&model->cublas, lm_head_of(model), model->acts.dlnf.data + at, h.logits, model->acts.lnf.data + at,
                    NULL, h.rows, model->stream);
}

// The language model head and the loss, for head_rows rows at a time, so that the logits of a whole batch never exist.
// Where gradients are wanted it is also the head's backward, because the logits are gone afterwards: dlnf is set, dwte
// is added to, in the order of the rows.
static void lm_head_forward_backward(GPT2 *model, const int32_t *targets, int64_t N, const BatchRole *role) {
    Range range("lm_head");
    int64_t chunks = ceil_div_i64(N, model->head_rows), ahead = model->acts.logits.stride > 0;
    if (role->trains) { begin_gradient(&model->shards, model->grads, 0, role->first); }
    count_on(model, false);
    for (int64_t i = 0; i < chunks + ahead; i++) {
        if (i < chunks) { lm_head_forward(model, lm_head_rows_of(model, i, N), targets, role); }
        if (i >= ahead) { lm_head_backward(model, lm_head_rows_of(model, i - ahead, N), role); }
    }
    if (role->loss_sum != NULL) { sum_losses(role->loss_sum, model->acts.losses.data, N, !role->first, model->stream); }
}

// Brings back what --recompute did not keep for this layer. The same kernels on the same inputs: the same bits. The
// last layer's activations are still there.
static void recompute_layer(GPT2 *model, int layer, int B, int T) {
    int C = model->config.channels, level = model->shape.recompute;
    int64_t N = (int64_t)B * T;
    if (layer == model->config.num_layers - 1 || level == RECOMPUTE_NOTHING) { return; }
    Tensors<floatX> p = params_of_layer(model, layer);
    cudaStream_t stream = model->stream;
    floatX *ln1 = model->acts.ln1.of(layer), *ln2 = model->acts.ln2.of(layer);
    floatX *fc = model->acts.fc.of(layer), *gelu = model->acts.gelu.of(layer);
    if (level >= RECOMPUTE_LAYERNORM) {
        layernorm_forward(ln1, model->acts.ln1_mean.of(layer), model->acts.ln1_rstd.of(layer),
                          model->acts.residual.of(layer), p.ln1w, p.ln1b, N, C, stream);
    }
    if (level == RECOMPUTE_BLOCK) {
        block_forward(model, layer, B, T, LINEAR_AGAIN);
        return;
    }
    if (level >= RECOMPUTE_LAYERNORM) {
        layernorm_forward(ln2, model->acts.ln2_mean.of(layer), model->acts.ln2_rstd.of(layer),
                          model->acts.residual_mid.of(layer), p.ln2w, p.ln2b, N, C, stream);
        linear_quantize_input(linear_of(model, layer, LINEAR_QKV, LINEAR_BACKWARD), ln1, N, stream);
        linear_quantize_input(linear_of(model, layer, LINEAR_ATTPROJ, LINEAR_BACKWARD), model->acts.att.of(layer), N,
                              stream);
        linear_quantize_input(linear_of(model, layer, LINEAR_FC, LINEAR_BACKWARD), ln2, N, stream);
    }
    if (model->shape.gelu_fusion >= FUSE_GELU_FORWARD) { // another GELU than the multiply's might round differently
        count_on(model, model->params.parts);
        linear_forward(&model->cublas, linear_of(model, layer, LINEAR_FC, LINEAR_AGAIN), gelu, fc, ln2, N, stream);
    } else {
        linear_gelu_input(linear_of(model, layer, LINEAR_FCPROJ, LINEAR_BACKWARD), gelu, fc, N, stream);
    }
}

// The two halves of a block's backward. dresidual holds the gradient of the block's output on entry and of its input in
// the end: the residual stream passes through both halves unchanged, and each half adds its own. Whoever leaves
// dresidual behind also adds the sums of its columns to the gradient of the next bias: of the linear layer whose output
// was added to the stream there.
static void block_backward_mlp(GPT2 *model, int layer, int B, int T) {
    int C = model->config.channels;
    int64_t N = (int64_t)B * T;
    Tensors<floatX> p = params_of_layer(model, layer);
    Tensors<float> g = grads_of_layer(model, layer);
    const floatX *fc = model->acts.fc.of(layer);
    bool fused = model->shape.gelu_fusion >= FUSE_GELU_BACKWARD;
    Linear to_fc = linear_of(model, layer, LINEAR_FC, LINEAR_BACKWARD);
    Linear attproj = linear_of(model, layer, LINEAR_ATTPROJ, LINEAR_BACKWARD);
    count_on(model, model->reduces);
    linear_backward(&model->cublas, linear_of(model, layer, LINEAR_FCPROJ, LINEAR_BACKWARD), model->acts.dfc.data,
                    model->acts.dresidual.data, model->acts.gelu.of(layer), fused ? fc : NULL, N, model->stream);
    if (fused) {
        linear_backward_bias(to_fc, model->acts.dfc.data, model->sum_scratch, N, model->stream);
    } else {
        gelu_backward(model->acts.dfc.data, fc, model->acts.dfc.data, to_fc.dbias, model->sum_scratch, N, 4 * C,
                      model->stream, to_fc.dout_amax());
    }
    linear_backward(&model->cublas, to_fc, model->acts.dln.data, model->acts.dfc.data, model->acts.ln2.of(layer), NULL,
                    N, model->stream);
    layernorm_backward({model->acts.dresidual.data, false, attproj.dbias, attproj.dout_amax()}, g.ln2w, g.ln2b,
                       model->acts.dln.data, model->acts.residual_mid.of(layer), model->acts.ln2_mean.of(layer),
                       model->acts.ln2_rstd.of(layer), p.ln2w, model->sum_scratch, N, C, model->stream);
}

// Also makes room for the gradients of the block below.
static void block_backward_attention(GPT2 *model, int layer, int B, int T, const BatchRole *role) {
    int C = model->config.channels;
    int64_t N = (int64_t)B * T;
    Tensors<floatX> p = params_of_layer(model, layer);
    Tensors<float> g = grads_of_layer(model, layer);
    Linear qkv = linear_of(model, layer, LINEAR_QKV, LINEAR_BACKWARD), below;
    linear_backward(&model->cublas, linear_of(model, layer, LINEAR_ATTPROJ, LINEAR_BACKWARD), model->acts.datt.data,
                    model->acts.dresidual.data, model->acts.att.of(layer), NULL, N, model->stream);
    attend_backward(model, layer, B, T);
    linear_backward_bias(qkv, model->acts.dqkv.data, model->sum_scratch, N, model->stream);
    linear_backward(&model->cublas, qkv, model->acts.dln.data, model->acts.dqkv.data, model->acts.ln1.of(layer), NULL,
                    N, model->stream);
    if (layer > 0) {
        begin_gradient(&model->shards, model->grads, layer, role->first); // a bucket's number is its layer's + 1
        below = linear_of(model, layer - 1, LINEAR_FCPROJ, LINEAR_BACKWARD);
    }
    layernorm_backward({model->acts.dresidual.data, false, below.dbias, below.dout_amax()}, g.ln1w, g.ln1b,
                       model->acts.dln.data, model->acts.residual.of(layer), model->acts.ln1_mean.of(layer),
                       model->acts.ln1_rstd.of(layer), p.ln1w, model->sum_scratch, N, C, model->stream);
}

// Adds the gradients of the last gpt2_forward and lm_head_forward_backward to model->grads, bucket by bucket from the
// last layer to the first. tokens, order (B,T) on the GPU.
static void gpt2_backward(GPT2 *model, const int32_t *tokens, const int32_t *order, int B, int T,
                          const BatchRole *role) {
    Range range("backward");
    int C = model->config.channels, L = model->config.num_layers;
    int64_t N = (int64_t)B * T;
    Tensors<floatX> p = params_of_layer(model, 0);
    model->reduces = sends_gradients(&model->shards, model->grads, role->last);
    begin_gradient(&model->shards, model->grads, L, role->first);
    Tensors<float> g = grads_of_layer(model, L - 1);
    Linear fcproj = linear_of(model, L - 1, LINEAR_FCPROJ, LINEAR_BACKWARD);
    layernorm_backward({model->acts.dresidual.data, true, fcproj.dbias, fcproj.dout_amax()}, g.lnfw, g.lnfb,
                       model->acts.dlnf.data, model->acts.residual.of(L), model->acts.lnf_mean.data,
                       model->acts.lnf_rstd.data, p.lnfw, model->sum_scratch, N, C, model->stream);
    for (int layer = L - 1; layer >= 0; layer--) {
        int bucket = 1 + layer;
        if (layer > 0) { fetch_bucket(&model->shards, model->params, bucket - 1); }
        await_bucket(&model->shards, model->params, bucket);
        quantize_passing_weights(model, layer);
        recompute_layer(model, layer, B, T);
        block_backward_mlp(model, layer, B, T);
        block_backward_attention(model, layer, B, T, role);
        release_bucket(&model->shards, model->params, bucket);
        end_gradient(&model->shards, model->grads, bucket, role->last);
    }
    embedding_backward(g.wte, g.wpe, model->acts.dresidual.data, tokens, order, B, T, C, model->stream);
    end_gradient(&model->shards, model->grads, 0, role->last);
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. The update

// A checksum of all that this rank should hold like the others, as far as it takes no longer than the update: of the
// parameters. Where a memory or network fault has changed a bit of them, every rank finds out before the next update.
static void sum_weights(GPT2 *model) {
    int64_t whole = zero_offset(&model->shards.layout, model->shards.layout.num_buckets) * (int64_t)sizeof(floatX);
    cuda_check(cudaMemsetAsync(model->checksum, 0, sizeof(uint64_t), model->stream));
    if (has_peers(&model->shards) && !model->params.parts) {
        add_checksum(model->checksum, model->params.data, whole, model->stream);
    }
}

// This rank's part of a bucket's gradient, and of those of the `repeats` - 1 buckets after it.
static NormPart norm_part(const GPT2 *model, int bucket, int64_t repeats) {
    NormPart part = {bucket_part(&model->shards, model->grads, bucket), zero_shard(&model->shards.layout, bucket),
                     repeats, bucket_stride(&model->shards, model->grads)};
    return part;
}

// Loss and gradient of this rank become its record.
static void record_gradient(GPT2 *model) {
    NormPart outside = norm_part(model, 0, 1), blocks = norm_part(model, 1, model->config.num_layers);
    global_norm_squared(model->norm_partials, &outside, &blocks, model->stream);
    sum_weights(model);
    step_record(model->records + model->shape.rank, model->norm_partials,
                norm_part_doubles(&outside) + norm_part_doubles(&blocks), model->loss_sum, &model->input->wants_to_end,
                model->checksum, model->stream);
}

// Reduces loss and gradient to model->result, the same on all ranks, and sends that to the host. loss_factor turns the
// sum of the losses into their mean. From here on the GPU knows the step's input.
static void reduce_step(GPT2 *model, double loss_factor, double grad_clip, const StepInput *input, int slot) {
    StepRecord *record = model->records + model->shape.rank;
    compute_after_communicate(&model->shards);
    model->inputs[slot] = *input; // the step that was in the slot before has been settled
    cuda_check(
        cudaMemcpyAsync(model->input, &model->inputs[slot], sizeof(StepInput), cudaMemcpyHostToDevice, model->stream));
    cuda_graph_launch_or_queue(&model->graphs, &model->norm_graph, "norm", model->stream, [&] {
        Range range("norm");
        record_gradient(model);
        gather_results(&model->shards, model->records, record, (int64_t)sizeof(*record));
        step_finish(model->result, model->records, model->shape.num_ranks, loss_factor, (float)grad_clip,
                    model->stream);
    });
    cuda_check(cudaMemcpyAsync(&model->results[slot], model->result, sizeof(StepResult), cudaMemcpyDeviceToHost,
                               model->stream));
    cuda_check(cudaEventRecord(model->step_reduced[slot], model->stream));
}

// What this rank updates of a bucket, which is what it holds the moments of, and of the `repeats` - 1 buckets after it.
static AdamWPart update_part(const GPT2 *model, int bucket, int64_t repeats) {
    const ZeroLayout *zero = &model->shards.layout;
    bool all = !model->adam_m.parts;
    int64_t begin = all ? 0 : zero_begin(zero, bucket, model->shape.rank);
    int64_t end = all ? zero_size(zero, bucket) : zero_end(zero, bucket, model->shape.rank);
    AdamWPart part = adamw_part(bucket_element(&model->shards, model->params, bucket, begin),
                                bucket_element(&model->shards, model->master, bucket, begin),
                                bucket_element(&model->shards, model->adam_m, bucket, begin),
                                bucket_element(&model->shards, model->adam_v, bucket, begin),
                                bucket_element(&model->shards, model->grads, bucket, begin), end - begin,
                                zero_first_index(zero, bucket) + begin);
    part.decayed = zero_decayed(zero, bucket) - begin; // of a rank that has only others: less than 0
    part.repeats = repeats;
    part.params_stride = bucket_stride(&model->shards, model->params);
    part.state_stride = bucket_stride(&model->shards, model->adam_m);
    part.grads_stride = bucket_stride(&model->shards, model->grads);
    part.index_stride = zero_size(zero, 1);
    return part;
}

// AdamW for all that this rank updates.
static void update_all(GPT2 *model) {
    AdamWPart outside = update_part(model, 0, 1), blocks = update_part(model, 1, model->config.num_layers);
    cuda_graph_launch_or_queue(&model->graphs, &model->update_graph, "update", model->stream, [&] {
        Range range("update");
        adamw_update(&outside, &blocks, &model->input->factors, model->result, model->stream);
        quantize_all_weights(model);
    });
}

// The same where others update the rest of the parameters: bucket by bucket, each on its way to them while the next is
// updated. Nobody waits here: the next forward pass waits for each bucket where it reads it (await_bucket), all else
// that reads parameters waits for all of them (await_parameters).
static void update_and_share(GPT2 *model) {
    Range range("update");
    for (int b = 0; b < model->shards.layout.num_buckets; b++) {
        AdamWPart part = update_part(model, b, 1);
        adamw_update(&part, NULL, &model->input->factors, model->result, model->stream);
        share_updated_bucket(&model->shards, model->params, b);
    }
    model->shards.gathering = true;
}

// AdamW with the factors of reduce_step's input. The kernels read the gradient's scale from model->result, and touch
// nothing when it says that the loss or the norm is not a number, or that ranks have other weights: then and ever
// after, until the host has read it.
static void gpt2_update(GPT2 *model) {
    if (model->adam_m.parts && !model->params.parts) {
        update_and_share(model);
        return;
    }
    update_all(model);
    if (model->params.parts) {
        communicate_after_compute(&model->shards);
        forget_fetched(&model->shards);
    }
}

template <class T> static bool find_nonfinite(GPT2 *model, const T *data, int64_t n) {
    return any_nonfinite(data, n, model->flag, model->stream);
}

// Finds the first tensor in this rank's part of the parameters or gradients that holds a NaN or an infinity, and writes
// its name.
template <class T>
static bool name_nonfinite_tensor(GPT2 *model, Buckets<T> array, const char *what, char *name, size_t size) {
    const ZeroLayout *zero = &model->shards.layout;
    ZeroPiece pieces[NUM_PARAM_TENSORS];
    for (int b = 0; b < zero->num_buckets; b++) {
        int n =
            zero_pieces(zero, b, zero_begin(zero, b, model->shape.rank), zero_end(zero, b, model->shape.rank), pieces);
        for (int i = 0; i < n; i++) {
            if (!find_nonfinite(model, bucket_element(&model->shards, array, b, pieces[i].in_bucket),
                                pieces[i].count)) {
                continue;
            }
            char where[32] = "";
            if (b > 0) { snprintf(where, sizeof(where), " of layer %d", pieces[i].layer); }
            snprintf(name, size, "%s %s%s", what, gpt2_param_specs[pieces[i].tensor].name, where);
            return true;
        }
    }
    return false;
}

static bool activation_is_nonfinite(void *model, const void *data, PlanType type, int64_t n) {
    if (type == PLAN_F32) { return find_nonfinite((GPT2 *)model, (const float *)data, n); }
    return find_nonfinite((GPT2 *)model, (const floatX *)data, n);
}

// After a forward pass whose loss is not a number although all parameters are, and before the backward, which writes to
// some of the same memory: names where a NaN or an infinity first stands, in the order of the computation. Activations
// that were not kept for each layer are passed over.
static void name_nonfinite_activation(GPT2 *model, int64_t N, char *name, size_t size) {
    ActShape shape = activation_shape(model);
    ActSlot slots[NUM_ACTIVATIONS];
    activation_slots(&model->acts, slots);
    if (gpt2_find_nonfinite(slots, &shape, N, activation_is_nonfinite, model, name, size)) { return; }
    snprintf(name, size, "the losses");
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. Batches

// A slot for the next batch, its staging memory free to be written to.
static BatchSlot *next_slot(GPT2 *model) {
    BatchSlot *slot = &model->slots[model->batches++ % NUM_SLOTS];
    wait_for_event(&model->shards, slot->uploaded); // of the batch before in this slot: long past
    return slot;
}

// Sends a slot's N rows to the GPU on a stream of their own, beside the work on the batch before. What is launched on
// model->stream from here on may use them.
static void upload_batch(GPT2 *model, BatchSlot *slot, int64_t N) {
    cuda_check(cudaStreamWaitEvent(model->copy_stream, slot->no_longer_used, 0));
    cuda_check(cudaMemcpyAsync(slot->device, slot->staging, (size_t)(3 * N) * sizeof(int32_t), cudaMemcpyHostToDevice,
                               model->copy_stream));
    cuda_check(cudaEventRecord(slot->uploaded, model->copy_stream));
    cuda_check(cudaStreamWaitEvent(model->stream, slot->uploaded, 0));
}

static void order_tokens(GPT2 *model, BatchSlot *slot, int64_t N) {
    embedding_order_tokens(slot->staging + 2 * N, slot->staging, N, model->config.vocab_size, model->token_counts);
}

static void release_batch(GPT2 *model, BatchSlot *slot) {
    cuda_check(cudaEventRecord(slot->no_longer_used, model->stream));
}

// Forward and backward of a micro-batch in training, each pass a CUDA graph where these are used.
static void run_passes(GPT2 *model, const BatchSlot *slot, int B, int T, const BatchRole *role) {
    int64_t N = (int64_t)B * T;
    const int32_t *tokens = slot->device, *targets = tokens + N, *order = targets + N;
    CudaGraph *passes = model->pass_graphs[slot - model->slots][role->first];
    cuda_require(!model->graphs.wanted || (B == model->shape.B && T == model->shape.T)); // a graph has one shape
    cuda_graph_launch_or_queue(&model->graphs, &passes[PASS_FORWARD], "forward", model->stream,
                               [&] { gpt2_forward(model, tokens, B, T, LINEAR_FOR_GRADIENTS); });
    cuda_graph_launch_or_queue(&model->graphs, &passes[PASS_LM_HEAD], "lm_head", model->stream,
                               [&] { lm_head_forward_backward(model, targets, N, role); });
    cuda_graph_launch_or_queue(&model->graphs, &passes[PASS_BACKWARD], "backward", model->stream,
                               [&] { gpt2_backward(model, tokens, order, B, T, role); });
}

// Forward, and where gradients are wanted backward, of the batch of N = B*T rows in a slot's staging memory: tokens and
// targets, and for an evaluation which losses count.
static void run_batch(GPT2 *model, BatchSlot *slot, int B, int T, const BatchRole *role) {
    int64_t N = (int64_t)B * T;
    comm_waits(model->ranks, true); // should the GPU's queue be full: see nccl_queued
    if (role->means == NULL) { order_tokens(model, slot, N); }
    upload_batch(model, slot, N);
    const int32_t *tokens = slot->device, *targets = tokens + N, *counts = targets + N;
    if (role->trains) {
        run_passes(model, slot, B, T, role);
    } else {
        gpt2_forward(model, tokens, B, T, LINEAR_FOR_LOSS);
        lm_head_forward_backward(model, targets, N, role);
        if (role->means != NULL) { mean_losses(role->means, model->acts.losses.data, counts, B, T, model->stream); }
    }
    release_batch(model, slot);
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. State

// Parameters and optimizer state as llmc/ranks/gpu_state.cuh takes them.
static ModelState state_of(GPT2 *model) {
    ModelState state = {&model->shards,
                        model->params,
                        model->master,
                        model->adam_m,
                        model->adam_v,
                        model->staging,
                        (float *)model->cublas_workspace,
                        model->export_bucket,
                        model->host_params};
    return state;
}

// For run_load. reader: NULL for a fresh run, whose optimizer state stays zero. The bf16 weights of a resumed run are
// rounded as its last update rounded them.
static bool read_state(void *context, TrainRun *run, CheckpointReader *reader, Error *error) {
    GPT2 *model = (GPT2 *)context;
    ModelState state = state_of(model);
    uint64_t key = rounding_key((uint64_t)run->options.seed, run->updates);
    bool rounds = model->master.data != NULL && run->updates > 0; // without master weights the parameters are exact
    int arrays = reader == NULL || model->shape.kind != RUN_TRAINS ? 1 : CHECKPOINT_ARRAYS;
    bool ok = true;
    state_clear(&state);
    if (model->grads.parts) { clear_buckets(&model->shards, model->grads); }
    cuda_check(cudaMemsetAsync(model->result, 0, sizeof(StepResult), model->stream));
    for (int array = 0; ok && array < arrays; array++) {
        auto read = [&](float *to, int64_t in_file, int64_t n) {
            return reader == NULL ? run_read_params(run, in_file, n, to, error)
                                  : checkpoint_read(reader, array, in_file, to, n, error);
        };
        auto make_params = [&](floatX *params, const float *fp32, int64_t n, int64_t index) {
            params_from_master(params, fp32, n, index, key, rounds, model->stream);
        };
        ok = state_upload(&state, array, read, make_params);
    }
    return ok;
}

// Every rank has loaded its part.
static void share_state(GPT2 *model) {
    ModelState state = state_of(model);
    state_share(&state);
    quantize_all_weights(model);
    wait_for_stream(&model->shards);
}

// For run_save: writes this rank's part of all arrays.
static bool write_state(void *context, CheckpointWriter *writer, Error *error) {
    ModelState state = state_of((GPT2 *)context);
    bool ok = true;
    for (int array = 0; ok && array < CHECKPOINT_ARRAYS; array++) {
        ok = state_download(&state, array, "saving", [&](const float *from, int64_t in_file, int64_t n) {
            return checkpoint_write(writer, array, in_file, from, n, error);
        });
    }
    return ok;
}

// The SUM64 of the parameters in fp32, in the order of files: it does not depend on the number of ranks.
static bool hash_params(GPT2 *model, uint64_t *hash, Error *error) {
    ModelState state = state_of(model);
    *hash = 0;
    state_download(&state, CHECKPOINT_PARAMS, "the end", [&](const float *from, int64_t in_file, int64_t n) {
        *hash += sum64(in_file, from, n);
        return true;
    });
    return comm_sum_u64(model->ranks, hash, 1, error);
}

// What several ranks keep whole must be the same on all, to the bit; a memory or network fault would show here. Comes
// before parameters are saved, summed up or exported, and waits until they are here.
static bool check_replicas(GPT2 *model, TrainRun *run, Error *error) {
    if (!has_peers(&model->shards) || model->params.parts) { return true; }
    int64_t whole = zero_offset(&model->shards.layout, model->shards.layout.num_buckets);
    const Buckets<float> state[] = {model->master, model->adam_m, model->adam_v};
    await_parameters(model);
    sum_weights(model);
    for (const Buckets<float> &array : state) {
        if (array.data == NULL || array.parts) { continue; }
        add_checksum(model->checksum, array.data, whole * (int64_t)sizeof(float), model->stream);
    }
    cuda_check(cudaMemcpyAsync(model->host_checksum, model->checksum, sizeof(uint64_t), cudaMemcpyDeviceToHost,
                               model->stream));
    wait_for_stream(&model->shards);
    return comm_check_replicas(model->ranks, *model->host_checksum, run->step, error);
}

// ---------------------------------------------------------------------------------------------------------------------
// 6. The program

static const char *const PROGRAM = "train_gpt2cu";

// The revision of the source. The Makefile links another function of this name, so that a commit compiles nothing anew.
extern "C" __attribute__((weak)) const char *gpt2c_revision(void) { return ""; }

#define DEFAULT_SEQ_LEN 1024

// Set by SIGINT, SIGTERM, SIGHUP and SIGUSR1: the run saves and ends at the next chance. A second signal ends it at
// once; those that start many processes may send the first one twice, so that there it counts only after a while.
// SIGHUP, which a terminal that goes may send more than once, beside others, never counts as one.
static volatile sig_atomic_t stop_requested = 0;
static double seconds_to_second_signal = 0.0;

static void on_stop_signal(int signal_number) {
    static volatile sig_atomic_t asked = 0;
    static double first;
    double now = seconds_now();
    stop_requested = 1;
    if (signal_number == SIGHUP) { return; }
    if (asked && now - first >= seconds_to_second_signal) { _exit(128 + signal_number); }
    if (!asked) { first = now; }
    asked = 1;
}

// Is the run to stop here? Ranks can only do so together: they tell each other with the results of each step, and in
// the middle of other things ask (ask_to_stop).
static bool is_stopping(const GPT2 *model) {
    return has_peers(&model->shards) ? model->stop_agreed : stop_requested != 0;
}

static bool ask_to_stop(GPT2 *model, Error *error) {
    bool any = false;
    if (has_peers(&model->shards) && !comm_any(model->ranks, stop_requested != 0, &any, error)) { return false; }
    model->stop_agreed = model->stop_agreed || any;
    return true;
}

// Can cuDNN be asked for this run's attention?
static bool check_cudnn(const TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    CudnnShape shape = {(int)o->batch_size, (int)o->seq_len, run->config.channels, run->config.num_heads,
                        o->deterministic};
    return cudnn_att_check(&shape, error);
}

// Refuses what this build or these kernels cannot do, before anything is opened on the GPU.
static bool check_shape(const TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    const GPT2Config *c = &run->config;
    int HS = c->channels / c->num_heads;
    if (c->channels % 8 != 0 || c->channels > LAYERNORM_MAX_CHANNELS) {
        return fail(error,
                    "model: %d channels; the GPU trainer needs a multiple of 8, at most %d (train_gpt2 takes any)",
                    c->channels, LAYERNORM_MAX_CHANNELS);
    }
    if (HS > ATTENTION_MAX_HEAD_SIZE) {
        return fail(error, "model: heads of %d channels (%d / %d); the GPU trainer has attention for up to %d", HS,
                    c->channels, c->num_heads, ATTENTION_MAX_HEAD_SIZE);
    }
    if (c->padded_vocab_size % 8 != 0) {
        return fail(error, "model: padded vocabulary of %d; the GPU trainer needs a multiple of 8",
                    c->padded_vocab_size);
    }
    if (o->fp8 && c->channels % FP8_WIDTH_MULTIPLE != 0) {
        return fail(error, "--fp8: the model has %d channels; 8-bit matrix multiplies need a multiple of %d",
                    c->channels, FP8_WIDTH_MULTIPLE);
    }
    Error why = {};
    if (strcmp(o->attention, "cudnn") == 0 && !check_cudnn(run, &why)) {
        return fail(error, "--attention cudnn: %s", why.text);
    }
    if (!o->deterministic && !check_cudnn(run, &why)) {
        return fail(error, "--deterministic 0: is for cuDNN's attention; %s", why.text);
    }
#ifdef PRECISION_FP32
    if (o->fp8) { return fail(error, "--fp8: is for the bf16 build; this one is fp32 (make PRECISION=FP32)"); }
    if (!o->master_weights) {
        return fail(error, "--master-weights (-w): 0 is for the bf16 build; in fp32 there is one copy of the weights");
    }
#else
    if (!o->tf32) {
        return fail(error, "--tf32 (-f): 0 is for the fp32 build (make PRECISION=FP32); this one multiplies in bf16");
    }
#endif
    return true;
}

// Two ranks on one GPU would share its memory and wait for each other for ever.
static bool check_gpu_is_ours(GPT2 *model, Error *error) {
    char id[FINDING_BYTES], uuid[40];
    gpu_uuid_text(uuid, sizeof(uuid), &model->gpu.properties);
    snprintf(id, sizeof(id), "%s %s", comm_host(model->ranks, model->ranks->rank), uuid);
    return comm_check_unlike(model->ranks, id, "GPU", "give each process a GPU of its own (nvidia-smi -L lists them)",
                             error);
}

// A rank whose cuDNN has no plan would compute with other bits than the others, and be slower than they.
static bool check_attention_is_alike(GPT2 *model, Error *error) {
    CommFacts facts;
    comm_facts_init(&facts);
    comm_fact(&facts, "attention (alike with --attention own; --attention cudnn says what is wrong)",
              model->cudnn.is_open ? "by cuDNN" : "by our own kernels");
    bool ok = comm_check_facts(model->ranks, &facts, error);
    comm_facts_free(&facts);
    return ok;
}

static void create_streams(GPT2 *model) {
    gpu_create_stream(&model->stream);
    gpu_create_stream(&model->copy_stream);
    gpu_create_stream(&model->lm_head_stream);
    shards_open(&model->shards, model->ranks, model->stream);
    gpu_create_event(&model->evaluated);
    for (int i = 0; i < 2; i++) {
        gpu_create_event(&model->multiplied[i]);
        gpu_create_event(&model->scored[i]);
    }
    for (int i = 0; i < NUM_SLOTS; i++) {
        gpu_create_event(&model->slots[i].uploaded);
        gpu_create_event(&model->slots[i].no_longer_used);
    }
    for (int i = 0; i < NUM_STEPS; i++) {
        gpu_create_timed_event(&model->step_begun[i]);
        gpu_create_event(&model->step_reduced[i]);
        gpu_create_timed_event(&model->step_done[i]);
    }
}

static bool check_gpu(const GPT2 *model, Error *error) {
    const cudaDeviceProp *gpu = &model->gpu.properties;
    return !model->shape.fp8 || fp8_is_supported(gpu->major, gpu->minor) ||
           fail(error,
                "--fp8: %s has compute capability %d.%d; 8-bit matrix multiplies need 8.9 or later (Ada, Hopper, "
                "Blackwell); leave --fp8 out",
                gpu->name, gpu->major, gpu->minor);
}

// Before the memory is taken, since cuDNN takes some, too. Without a plan of cuDNN's our own kernels do it, and what it
// would have worked in is left out.
static bool open_attention(GPT2 *model, Error *error) {
    RunShape *shape = &model->shape;
    CudnnShape attention = cudnn_shape(model);
    if (!shape->cudnn || cudnn_att_open(&model->cudnn, &attention, &model->no_cudnn)) { return true; }
    if (shape->needs_cudnn) {
        return fail(error, "%s: %s", shape->repeats ? "--attention cudnn" : "--deterministic 0", model->no_cudnn.text);
    }
    shape->cudnn = false, model->cudnn_failed = true;
    plan_device(model, (int64_t)shape->B * shape->T);
    return true;
}

// Opens the GPU of this rank and allocates what was planned.
static bool gpt2_open(GPT2 *model, Comm *ranks, bool tf32, Error *error) {
    model->ranks = ranks;
    model->graphs.wanted = model->shape.cuda_graph;
    if (!gpu_open(&model->gpu, ranks->local_rank, tf32, error) || !check_gpu(model, error)) { return false; }
    create_streams(model);
    model->spared = nccl_spared_multiprocessors(ranks, model->gpu.properties.multiProcessorCount);
    if (!cublas_open(&model->cublas, tf32, error) || !open_attention(model, error) ||
        !plan_allocate_device(&model->device_plan, error) || !plan_allocate_pinned(&model->pinned_plan, error) ||
        !plan_allocate(&model->host_plan, error)) {
        return false;
    }
    cublas_set_workspace(&model->cublas, model->cublas_workspace, (size_t)model->shape.cublas_bytes);
    cudnn_att_set_workspace(&model->cudnn, model->cudnn_forward, model->cudnn_backward);
    return true;
}

// Are the algorithms of the multiplications a choice by the clock, which the run then keeps to?
static bool keeps_choices(const GPT2 *model, const TrainRun *run) {
    return model->shape.kind == RUN_TRAINS && run->options.matmul_tune == TUNE_ANY_BITS;
}

// Opens the files of choices. Rank 0 reads the run's file for all ranks.
static bool open_tuning(GPT2 *model, const TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    const cudaDeviceProp *gpu = &model->gpu.properties;
    bool keeps = keeps_choices(model, run);
    TuneWants wants;
    wants.user_path = o->matmul_tune_file;
    wants.run_folder = run->found.resumes && run_leads(run) ? o->out_dir : "";
    wants.writes_user = model->ranks->local_rank == 0;
    wants.must_know = keeps && run->found.resumes && !o->allow_changes;
    wants.must_keep = keeps && !run_writes_files(run);
    return tuning_open(&model->tuning, &wants, gpu->name, gpu->multiProcessorCount, (long)cublasLtGetVersion(), error);
}

// Chooses the algorithms for the multiplications of training, in the memory that holds nothing yet.
static bool tune_matmuls(GPT2 *model, const TrainRun *run, const CublasProblem *problems, int count, Error *error) {
    const MemoryPlan *plan = &model->device_plan;
    TuneLevel level = (TuneLevel)run->options.matmul_tune;
    return (level == TUNE_NOTHING || open_tuning(model, run, error)) &&
           matmul_tune(&model->tuning, &model->cublas, problems, count, plan->memory, plan->total, level, model->stream,
                       error);
}

// Gives all ranks the choices of rank 0.
static bool share_choices(GPT2 *model, TrainRun *run, const CublasProblem *problems, int count, Error *error) {
    TuneTable *choices = &model->tuning.run;
    int64_t bytes = tune_table_bytes(choices);
    return run_broadcast(run, &bytes, (int64_t)sizeof(bytes), error) && run_broadcast(run, choices, bytes, error) &&
           (run_leads(run) || matmul_follow(choices, &model->cublas, problems, count, &model->gpu.properties, error));
}

// The same on all ranks. Choices by the clock are rank 0's, so that all ranks compute alike.
static bool choose_algorithms(GPT2 *model, TrainRun *run, Error *error) {
    CublasProblem problems[MAX_MATMUL_PROBLEMS];
    if (model->shape.kind != RUN_TRAINS) { return true; }
    Range range("tuning");
    int count = matmul_problems(model, problems);
    bool shares = keeps_choices(model, run) && has_peers(&model->shards);
    bool ok = (shares && !run_leads(run)) || tune_matmuls(model, run, problems, count, error);
    if (!shares) { return ok; }
    return run_agree(run, ok, error) && share_choices(model, run, problems, count, error);
}

// Writes choices for later starts, and those that change bits beside the checkpoints.
static bool record_choices(GPT2 *model, TrainRun *run, Error *error) {
    const char *folder = run_leads(run) && run_writes_files(run) ? run->options.out_dir : "";
    return run_agree(run, tuning_save(&model->tuning, folder, error), error);
}

// A forward and a backward of one layer's attention, as attend and attend_backward do them.
static void run_attention(void *context) {
    GPT2 *model = (GPT2 *)context;
    int B = model->shape.B, T = model->shape.T, C = model->config.channels, NH = model->config.num_heads;
    const floatX *qkv = model->acts.qkv.of(0);
    floatX *att = model->acts.att.of(0);
    float *lse = model->acts.att_lse.of(0);
    if (model->cudnn.is_open) {
        cudnn_att_forward(&model->cudnn, att, lse, qkv, model->stream);
        cudnn_att_backward(&model->cudnn, model->acts.dqkv.data, model->acts.datt.data, qkv, att, lse, model->stream);
    } else {
        attention_forward(att, lse, qkv, B, T, C, NH, model->stream);
        attention_backward(model->acts.dqkv.data, model->acts.datt.data, qkv, att, lse, model->att_delta, B, T, C, NH,
                           model->stream);
    }
}

// Rank 0's part of tune_attention, in the memory that holds nothing yet.
static int choose_attention(GPT2 *model) {
    int64_t N = (int64_t)model->shape.B * model->shape.T, C = model->config.channels;
    AttentionTuner tuner = {&model->cudnn, cudnn_shape(model), run_attention, model, model->stream};
    // Bytes of 0x3c: 0.01 in each precision.
    cuda_check(cudaMemsetAsync(model->acts.qkv.of(0), 0x3c, (size_t)(3 * N * C) * sizeof(floatX), model->stream));
    cuda_check(cudaMemsetAsync(model->acts.datt.data, 0x3c, (size_t)(N * C) * sizeof(floatX), model->stream));
    return attention_choose(&tuner, &model->tuning);
}

// Settles who does the attention where that is to be found by timing. All ranks do what rank 0 chooses.
static bool tune_attention(GPT2 *model, TrainRun *run, Error *error) {
    AttentionTuner tuner = {&model->cudnn, cudnn_shape(model), run_attention, model, model->stream};
    int32_t choice = 0;
    if (!model->shape.times_cudnn || !model->cudnn.is_open) { return true; }
    Range range("tuning");
    if (run_leads(run)) { choice = choose_attention(model); }
    if (!run_broadcast(run, &choice, (int64_t)sizeof(choice), error)) { return false; }
    return run_agree(run, attention_use(&tuner, choice, error), error);
}

static void free_graphs(GPT2 *model) {
    for (auto &slot : model->pass_graphs) {
        for (auto &passes : slot) {
            for (CudaGraph &graph : passes) { cuda_graph_free(&graph); }
        }
    }
    cuda_graph_free(&model->norm_graph);
    cuda_graph_free(&model->update_graph);
}

// Frees what gpt2_open took, however far it came.
static void gpt2_close(GPT2 *model) {
    if (model->stream == NULL) { return; }
    cudaDeviceSynchronize();
    free_graphs(model); // what they launch belongs to the libraries
    nccl_close(&model->shards.nccl);
    gpu_close(&model->gpu);
    tuning_close(&model->tuning);
    cudnn_att_close(&model->cudnn);
    cublas_close(&model->cublas);
    shards_close(&model->shards);
    cudaEventDestroy(model->evaluated);
    for (int i = 0; i < 2; i++) {
        cudaEventDestroy(model->multiplied[i]);
        cudaEventDestroy(model->scored[i]);
    }
    for (int i = 0; i < NUM_SLOTS; i++) {
        cudaEventDestroy(model->slots[i].uploaded);
        cudaEventDestroy(model->slots[i].no_longer_used);
    }
    for (int i = 0; i < NUM_STEPS; i++) {
        cudaEventDestroy(model->step_begun[i]);
        cudaEventDestroy(model->step_reduced[i]);
        cudaEventDestroy(model->step_done[i]);
    }
    cudaStreamDestroy(model->stream);
    cudaStreamDestroy(model->copy_stream);
    cudaStreamDestroy(model->lm_head_stream);
    plan_free_device(&model->device_plan);
    plan_free_pinned(&model->pinned_plan);
    plan_free(&model->host_plan);
}

// The i-th micro-batch of a step of this run.
static BatchRole training_role(GPT2 *model, const TrainRun *run, int64_t i) {
    BatchRole role = {
        true, i == 0, i == run->micro_batches - 1, 1.0f / (float)run->options.total_batch, model->loss_sum, NULL};
    return role;
}

// Queues the gradient of the step that begins at the run's position: all its micro-batches, added up. Sets *interrupted
// and returns early when asked to stop before the last of them; nothing is lost, the step begins anew when the run is
// resumed. One of several ranks finishes the step first.
static bool accumulate_gradient(GPT2 *model, TrainRun *run, bool *interrupted, Error *error) {
    int B = (int)run->options.batch_size, T = (int)run->options.seq_len;
    int64_t N = (int64_t)B * T;
    zero_gradients(&model->shards, model->grads);
    for (int64_t i = 0; i < run->micro_batches; i++) {
        *interrupted = !has_peers(&model->shards) && stop_requested && i > 0;
        if (*interrupted) { return true; }
        comm_progress_to(model->ranks, "step", run->step + 1);
        BatchSlot *slot = next_slot(model);
        BatchRole role = training_role(model, run, i);
        if (!run_read_batch(run, i, slot->staging, slot->staging + N, error)) { return false; }
        run_batch(model, slot, B, T, &role);
    }
    return true;
}

// The loss's share of one row, as reduce_step wants it.
static double loss_factor(const TrainRun *run) { return 1.0 / (double)run->options.total_batch; }

// One micro-batch of a step that went wrong, once more. *found: the losses of some rank are no numbers; *place: where
// that began.
static bool repeat_batch(GPT2 *model, TrainRun *run, int64_t i, bool *found, char *place, size_t size, Error *error) {
    int B = (int)run->options.batch_size, T = (int)run->options.seq_len;
    int64_t N = (int64_t)B * T;
    BatchSlot *slot = next_slot(model);
    const int32_t *tokens = slot->device, *targets = tokens + N, *order = targets + N;
    BatchRole role = training_role(model, run, i);
    double sum = 0.0;
    if (!run_read_batch(run, i, slot->staging, slot->staging + N, error)) { return false; }
    order_tokens(model, slot, N);
    upload_batch(model, slot, N);
    gpt2_forward(model, tokens, B, T, LINEAR_FOR_LOSS);
    lm_head_forward_backward(model, targets, N, &role);
    cuda_check(cudaMemcpyAsync(&sum, model->loss_sum, sizeof(sum), cudaMemcpyDeviceToHost, model->stream));
    wait_for_stream(&model->shards);
    *found = !isfinite(sum);
    if (*found) { name_nonfinite_activation(model, N, place, size); }
    if (!comm_share_finding(model->ranks, found, place, size, error)) { return false; }
    if (*found) { return true; }
    gpt2_backward(model, tokens, order, B, T, &role);
    release_batch(model, slot);
    return true;
}

// The step's gradient once more, a batch at a time, to name the tensor where a NaN or an infinity began. The weights
// are still those of that step, since nothing has been updated since (see gpt2_update). All ranks do so together.
static bool explain_stop(GPT2 *model, TrainRun *run, const PendingStep *step, const StepResult *result, Error *error) {
    char place[128] = "";
    await_parameters(model);
    bool found = name_nonfinite_tensor(model, model->params, "parameter", place, sizeof(place));
    bool loss_is_bad = result->stopped == STEP_LOSS_NOT_FINITE;
    if (!comm_share_finding(model->ranks, &found, place, sizeof(place), error)) { return false; }
    run->next_sequence = step->next_sequence;
    zero_gradients(&model->shards, model->grads);
    for (int64_t i = 0; i < run->micro_batches && !found; i++) {
        if (!repeat_batch(model, run, i, &found, place, sizeof(place), error)) { return false; }
    }
    if (!found) {
        compute_after_communicate(&model->shards);
        found = name_nonfinite_tensor(model, model->grads, "gradient of", place, sizeof(place));
        if (!comm_share_finding(model->ranks, &found, place, sizeof(place), error)) { return false; }
    }
    run_fail_nonfinite(run, step->info.step, loss_is_bad ? "loss" : "gradient norm",
                       loss_is_bad ? result->loss : result->norm, found ? place : "the sum of squares", error);
    comm_all_know(model->ranks, error);
    return false;
}

// Waits for loss and norm of a step. Fails when no update may be made with them.
static bool read_result(GPT2 *model, TrainRun *run, PendingStep *step, Error *error) {
    wait_for_event(&model->shards, model->step_reduced[step->slot]);
    const StepResult *result = &model->results[step->slot];
    model->stop_agreed = model->stop_agreed || result->wants_to_end != 0;
    if (result->stopped == STEP_WEIGHTS_DIFFER) {
        return comm_fail_replicas(model->ranks, (int)result->odd_one, run->step, error);
    }
    if (result->stopped) { return explain_stop(model, run, step, result, error); }
    step->info.loss = result->loss;
    step->info.norm = result->norm;
    return true;
}

// The time of a step: from the end of the one before, so that gaps count, or from its own beginning.
static double step_seconds(const GPT2 *model, const PendingStep *step) {
    float milliseconds = 0.0f;
    int before = (step->slot + NUM_STEPS - 1) % NUM_STEPS;
    cudaEvent_t begin = step->adjoins ? model->step_done[before] : model->step_begun[step->slot];
    cuda_check(cudaEventElapsedTime(&milliseconds, begin, model->step_done[step->slot]));
    return 1e-3 * (double)milliseconds;
}

// Takes a step's loss and norm into the statistics. True if its update is to be skipped; then it says so.
static bool skips_update(GPT2 *model, TrainRun *run, const StepInfo *info) {
    char why[96];
    double loss_limit = run->options.skip_loss_z, norm_limit = run->options.skip_grad_z;
    bool skip = outliers_skip(&model->outliers, info->loss, info->norm, loss_limit, norm_limit, why, sizeof(why));
    if (skip) { run_report_skip(run, info->step, why); }
    return skip;
}

// Waits for the step that has not been read yet, if there is one, and logs it.
static bool settle_step(GPT2 *model, TrainRun *run, Error *error) {
    PendingStep *step = &model->pending;
    if (!step->waiting) { return true; }
    step->waiting = false;
    if (!step->judged) {
        if (!read_result(model, run, step, error)) { return false; }
        skips_update(model, run, &step->info); // no limits are set: it only keeps the statistics
    }
    wait_for_event(&model->shards, model->step_done[step->slot]);
    step->info.seconds = step_seconds(model, step);
    comm_expects(model->ranks, step->info.seconds / (double)run->micro_batches);
    if (model->gpu.peak_flops > 0.0) {
        double flops = flops_per_token(&run->config, run->options.seq_len) * (double)step->info.tokens;
        step->info.peak_fraction = flops / step->info.seconds / (model->gpu.peak_flops * model->shape.num_ranks);
    }
    return logger_step(&run->logger, &step->info, error);
}

// The input of a step whose update would be the next one.
static StepInput step_input(const TrainRun *run, double lr) {
    const TrainOptions *o = &run->options;
    AdamWStep step;
    StepInput input;
    step.lr = (float)lr;
    step.beta1 = (float)o->beta1;
    step.beta2 = (float)o->beta2;
    step.epsilon = (float)o->adam_eps;
    step.weight_decay = (float)o->weight_decay;
    step.update = run->updates + 1;
    step.key = rounding_key((uint64_t)o->seed, step.update);
    input.factors = adamw_factors(&step);
    input.wants_to_end = stop_requested != 0;
    return input;
}

// Says once that the driver would not make graphs.
static void report_refusal(GPT2 *model, TrainRun *run) {
    if (model->graphs.refusal[0] == '\0') { return; }
    logger_event(&run->logger, "%s", model->graphs.refusal);
    model->graphs.refusal[0] = '\0';
}

static void print_gpu_state(GPT2 *model, TrainRun *run) {
    GpuState state;
    char text[160];
    if (!gpu_monitor_read(&model->gpu.monitor, &state)) { return; }
    gpu_monitor_text(&state, text, sizeof(text));
    logger_event(&run->logger, "step %lld: %s", (long long)run->step, text);
}

// Queues one step, gradient and update, and logs the one before. Only where updates may be skipped does it wait for its
// own loss and norm.
static bool train_step(GPT2 *model, TrainRun *run, bool adjoins, Error *error) {
    const TrainOptions *o = &run->options;
    Schedule schedule = schedule_named(o->schedule, o->lr, o->warmup, run->num_steps, o->final_lr_frac);
    bool interrupted = false, skip = false;
    PendingStep step;
    memset(&step, 0, sizeof(step));
    step.waiting = true;
    step.adjoins = adjoins && model->pending.waiting;
    step.slot = (int)(model->steps_begun++ % NUM_STEPS);
    step.next_sequence = run->next_sequence;
    step.info.step = run->step;
    step.info.tokens = o->total_batch;
    step.info.lr = schedule_lr(&schedule, run->step);
    cuda_check(cudaEventRecord(model->step_begun[step.slot], model->stream));
    if (!accumulate_gradient(model, run, &interrupted, error)) { return false; }
    if (interrupted) { return settle_step(model, run, error); }
    StepInput input = step_input(run, step.info.lr);
    reduce_step(model, loss_factor(run), o->grad_clip, &input, step.slot);
    if (o->skip_loss_z > 0.0 || o->skip_grad_z > 0.0) {
        if (!settle_step(model, run, error) || !read_result(model, run, &step, error)) { return false; }
        skip = skips_update(model, run, &step.info);
        step.judged = true;
    }
    if (!skip) {
        run->updates++;
        gpt2_update(model);
    }
    cuda_check(cudaEventRecord(model->step_done[step.slot], model->stream));
    report_refusal(model, run);
    if (!settle_step(model, run, error)) { return false; }
    model->pending = step;
    run_advance(run);
    if (o->gpu_log_every > 0 && run->step % o->gpu_log_every == 0) { print_gpu_state(model, run); }
    return true;
}

// Batch number `batch` of a validation. Its losses' sum goes to *sum, in GPU memory.
static bool validate_batch(GPT2 *model, TrainRun *run, int64_t batch, double *sum, Error *error) {
    int64_t first = batch * run->options.batch_size, T = run->options.seq_len;
    int rows = (int)min_i64(run->options.batch_size, model->shape.val_sequences - first);
    BatchRole role = {false, true, true, 0.0f, sum, NULL};
    BatchSlot *slot = next_slot(model);
    if (!dataloader_read(&run->val, first, rows, slot->staging, slot->staging + rows * T, error)) { return false; }
    run_batch(model, slot, rows, (int)T, &role);
    return true;
}

// Adds up the sums of all batches in their order, whichever rank made them: the same bits on any number of ranks.
static double sum_of_validation(GPT2 *model, int64_t rounds, int64_t batches) {
    int64_t ranks = model->shape.num_ranks;
    double *own = model->val_sums + model->shape.rank * rounds, sum = 0.0;
    gather_results(&model->shards, model->val_sums, own, rounds * (int64_t)sizeof(double));
    cuda_check(cudaMemcpyAsync(model->host_val_sums, model->val_sums, (size_t)(ranks * rounds) * sizeof(double),
                               cudaMemcpyDeviceToHost, model->stream));
    wait_for_stream(&model->shards);
    for (int64_t i = 0; i < batches; i++) { sum += model->host_val_sums[i % ranks * rounds + i / ranks]; }
    return sum;
}

// The mean loss over the validation sequences, always the same ones, batch by batch, each rank one in each round. In
// the last round some have nothing left and repeat the first batch: they may be needed for its parameters. Returns
// early when asked to stop: *loss is NaN.
static bool validate(GPT2 *model, TrainRun *run, double *loss, Error *error) {
    Range range("validation");
    int64_t total = model->shape.val_sequences, rounds = validation_rounds(model), ranks = model->shape.num_ranks;
    int64_t batches = ceil_div_i64(total, run->options.batch_size);
    *loss = NAN;
    for (int64_t round = 0; round < rounds; round++) {
        if (!ask_to_stop(model, error)) { return false; }
        if (is_stopping(model)) { return true; }
        comm_progress_to(model->ranks, "the validation after step", run->step);
        int64_t batch = round * ranks + model->shape.rank;
        double *sum = model->val_sums + model->shape.rank * rounds + round;
        if (!validate_batch(model, run, batch < batches ? batch : 0, sum, error)) { return false; }
    }
    *loss = sum_of_validation(model, rounds, batches) / (double)(total * run->options.seq_len);
    return true;
}

static bool validate_and_log(GPT2 *model, TrainRun *run, Error *error) {
    double loss;
    if (!validate(model, run, &loss, error)) { return false; }
    if (is_stopping(model)) { return true; }
    return logger_val(&run->logger, run->step, loss, error) && run_draw_losses(run, error);
}

// Queues batch number `number` of an evaluation. The mean losses of its rows go to *means, in GPU memory.
static void evaluate_batch(GPT2 *model, const EvalLoader *eval, int64_t number, double *means) {
    EvalBatch batch = eval_batch(eval, number);
    int64_t T = batch.T;
    BatchRole role = {false, true, true, 0.0f, NULL, means};
    BatchSlot *slot = next_slot(model);
    int32_t *counts = slot->staging + 2 * batch.rows * T;
    eval_read(eval, &batch, slot->staging, slot->staging + batch.rows * T);
    for (int i = 0; i < batch.rows; i++) {
        int begin, end;
        eval_scored(eval, eval->order[batch.first + i], batch.T, &begin, &end);
        for (int t = 0; t < T; t++) { counts[i * T + t] = t >= begin && t < end; }
    }
    run_batch(model, slot, batch.rows, batch.T, &role);
}

// Rounds of an evaluation: each rank has a batch in each, but for the last.
static int64_t evaluation_rounds(const EvalLoader *eval, int64_t ranks) {
    return ceil_div_i64(eval_num_batches(eval), ranks);
}

// Brings the means of all batches to all hosts, and each to the place of its row.
static void gather_means(GPT2 *model, const EvalLoader *eval) {
    int64_t ranks = model->shape.num_ranks, rounds = evaluation_rounds(eval, ranks), own = rounds * eval->B;
    int64_t batches = eval_num_batches(eval);
    gather_results(&model->shards, model->eval_means, model->eval_means + model->shape.rank * own,
                   own * (int64_t)sizeof(double));
    cuda_check(cudaMemcpyAsync(model->host_eval_means, model->eval_means, (size_t)(ranks * own) * sizeof(double),
                               cudaMemcpyDeviceToHost, model->stream));
    wait_for_stream(&model->shards);
    for (int64_t number = 0; number < batches; number++) {
        EvalBatch batch = eval_batch(eval, number);
        const double *means = model->host_eval_means + (number % ranks * rounds + number / ranks) * eval->B;
        for (int i = 0; i < batch.rows; i++) { model->row_means[eval->order[batch.first + i]] = means[i]; }
    }
}

// The mean losses of all rows of an evaluation, batch by batch as validate does, so that a batch and the bits of its
// losses are the same on any number of ranks. In a round, ranks may have rows of different lengths. The host is one
// round ahead of the GPU. Returns early when asked to stop.
static bool evaluate(GPT2 *model, TrainRun *run, int which, Error *error) {
    Range range("evaluation");
    const EvalLoader *eval = &run->evals[which];
    int64_t ranks = model->shape.num_ranks, batches = eval_num_batches(eval), rounds = evaluation_rounds(eval, ranks);
    double *own = model->eval_means + model->shape.rank * rounds * eval->B, start = seconds_now();
    char phase[48];
    snprintf(phase, sizeof(phase), "%s after step", run_evals[which].name);
    cuda_check(cudaMemsetAsync(model->eval_means, 0, (size_t)(ranks * rounds * eval->B) * sizeof(double),
                               model->stream)); // a batch may have fewer rows, all of them are sent
    for (int64_t round = 0; round < rounds; round++) {
        if (!ask_to_stop(model, error)) { return false; }
        if (is_stopping(model)) { return true; }
        comm_progress_to(model->ranks, phase, run->step);
        int64_t number = round * ranks + model->shape.rank;
        evaluate_batch(model, eval, number < batches ? number : 0, own + round * eval->B);
        if (round > 0) {
            wait_for_event(&model->shards, model->evaluated);
            run_show_eval(run, which, round * ranks, start);
        }
        cuda_check(cudaEventRecord(model->evaluated, model->stream));
    }
    gather_means(model, eval);
    return true;
}

static bool evaluate_and_log(GPT2 *model, TrainRun *run, Error *error) {
    for (int which = 0; which < NUM_EVALS; which++) {
        if (!eval_is_open(&run->evals[which])) { continue; }
        if (!evaluate(model, run, which, error)) { return false; }
        if (is_stopping(model)) { return true; }
        if (!run_log_eval(run, which, model->row_means, error)) { return false; }
    }
    return true;
}

// Adds a token to the sample so far. When the window is full, the newer half stays.
static void append_to_sample(void *context, int token) {
    GPT2 *model = (GPT2 *)context;
    int window = model->shape.T;
    if (model->history_length == window) {
        int kept = window / 2;
        memmove(model->history_staging, model->history_staging + window - kept, (size_t)kept * sizeof(int32_t));
        memset(model->history_staging + kept, 0, (size_t)(window - kept) * sizeof(int32_t));
        model->history_length = kept;
    }
    model->history_staging[model->history_length++] = token;
}

// The logits (V) of the token after the sample so far: a forward pass over the whole window. What stands in the window
// after the sample is never looked back at, attention being causal.
static const float *sample_logits(void *context) {
    GPT2 *model = (GPT2 *)context;
    int T = model->shape.T, C = model->config.channels, V = model->config.vocab_size, last = model->history_length - 1;
    cuda_check(cudaMemcpyAsync(model->history, model->history_staging, (size_t)T * sizeof(int32_t),
                               cudaMemcpyHostToDevice, model->stream));
    comm_progress(model->ranks, "a sample");
    gpt2_forward(model, model->history, 1, T, LINEAR_FOR_LOSS);
    count_on(model, false);
    linear_forward(&model->cublas, lm_head_of(model), model->acts.logits.data, NULL,
                   model->acts.lnf.data + (int64_t)last * C, 1, model->stream);
    cuda_check(cudaMemcpyAsync(model->sample_logits, model->acts.logits.data, (size_t)V * sizeof(floatX),
                               cudaMemcpyDeviceToHost, model->stream));
    wait_for_stream(&model->shards);
    memcpy(model->host_logits, model->sample_logits, (size_t)V * sizeof(floatX));
    widen_in_place(model->host_logits, V);
    return model->host_logits;
}

// All ranks make the same sample, since all are needed where parameters are sharded; rank 0's is seen.
static bool sample_stops(void *context) {
    GPT2 *model = (GPT2 *)context;
    Error ignored; // that a rank is gone ends the run elsewhere
    return !ask_to_stop(model, &ignored) || is_stopping(model);
}

static bool sample(GPT2 *model, TrainRun *run) {
    SampleSource source = {model,        append_to_sample,     sample_logits,
                           sample_stops, model->sampler_probs, model->sampler_index};
    model->history_length = 0;
    memset(model->history_staging, 0, (size_t)model->shape.T * sizeof(int32_t));
    return run_sample(run, &source);
}

static RunArrays arrays_of(GPT2 *model) {
    RunArrays arrays = {model, read_state, write_state};
    return arrays;
}

static bool save(GPT2 *model, TrainRun *run, Error *error) {
    RunArrays arrays = arrays_of(model);
    if (!check_replicas(model, run, error) || !run_save(run, &arrays, error)) { return false; }
    run_report_saved(run);
    comm_resumable(model->ranks, true);
    return true;
}

// What is due before the current step: save, validate, evaluate, sample, in the order that train_run.h relies on. The
// step before has been settled.
static bool do_what_is_due(GPT2 *model, TrainRun *run, bool last, Error *error) {
    const TrainOptions *o = &run->options;
    bool save_now = run_writes_files(run) && run->saved_step != run->step;
    if (save_now && (last || (run->step > 0 && run_is_due(run, o->checkpoint_every))) && !save(model, run, error)) {
        return false;
    }
    if (run->has_val && run_is_due(run, o->val_every) && !validate_and_log(model, run, error)) { return false; }
    if (run_evals_are_due(run) && !is_stopping(model) && !evaluate_and_log(model, run, error)) { return false; }
    if (run->step > 0 && run_is_due(run, o->sample_every) && !is_stopping(model)) { sample(model, run); }
    return true;
}

static bool anything_is_due(const TrainRun *run) {
    const TrainOptions *o = &run->options;
    return run_is_due(run, o->val_every) || run_evals_are_due(run) || run_is_due(run, o->sample_every) ||
           (run_writes_files(run) && run_is_due(run, o->checkpoint_every));
}

// The training loop.
static bool train(GPT2 *model, TrainRun *run, Error *error) {
    for (;;) {
        bool last = run->step >= run->num_steps || is_stopping(model), due = last || anything_is_due(run);
        if (due && !(settle_step(model, run, error) && do_what_is_due(model, run, last, error))) { return false; }
        if (last || is_stopping(model)) { break; }
        if (!train_step(model, run, !due, error)) { return false; }
    }
    if (!settle_step(model, run, error)) { return false; }
    if (!is_stopping(model)) { return true; }
    if (run_writes_files(run) && run->saved_step != run->step && !save(model, run, error)) { return false; }
    run_report_stopped(run);
    return true;
}

// What --steps 0 does: evaluates and samples from the model as it is.
static bool evaluate_only(GPT2 *model, TrainRun *run, Error *error) {
    if (run->has_val && run->options.val_every > 0 && !validate_and_log(model, run, error)) { return false; }
    if (!is_stopping(model) && !evaluate_and_log(model, run, error)) { return false; }
    bool ok = run->options.sample_every == 0 || sample(model, run) ||
              fail(error, "the model's logits are not numbers; its parameters are damaged");
    return run_agree(run, ok, error);
}

static RunShape choose_shape(const TrainRun *run) {
    const TrainOptions *o = &run->options;
    RunShape shape;
    Error why;
    memset(&shape, 0, sizeof(shape));
    bool evaluates = run->has_val || run_has_evals(run);
    shape.kind = o->steps != 0 ? RUN_TRAINS : evaluates ? RUN_EVALUATES : RUN_GENERATES;
    shape.B = shape.kind == RUN_GENERATES ? 1 : (int)o->batch_size;
    shape.T = (int)o->seq_len;
    shape.recompute = (int)o->recompute;
    shape.gelu_fusion = (int)o->gelu_fusion;
    shape.fp8 = o->fp8;
    shape.head_rows = (int)o->head_rows;
    shape.head_overlap = o->head_overlap;
    shape.cuda_graph = o->cuda_graph && run->num_ranks == 1;
    bool any = shape.kind == RUN_TRAINS && strcmp(o->attention, "auto") == 0;
    shape.repeats = o->deterministic;
    shape.needs_cudnn = shape.kind == RUN_TRAINS && (!o->deterministic || strcmp(o->attention, "cudnn") == 0);
    shape.cudnn = shape.needs_cudnn || (any && check_cudnn(run, &why));
    shape.times_cudnn = shape.cudnn && !shape.needs_cudnn && o->matmul_tune;
    shape.has_master = o->master_weights && !PRECISION_IS_FP32;
    shape.exports = o->export_dir[0] != '\0';
    shape.cublas_bytes = cublas_workspace_for(run->gpu_bytes);
    shape.rank = run->ranks.rank;
    shape.num_ranks = run->num_ranks;
    shape.zero_stage = (int)o->zero_stage;
    shape.val_sequences = run->has_val ? run_val_sequences(run) : 0;
    for (const EvalLoader &eval : run->evals) {
        if (!eval_is_open(&eval)) { continue; }
        int64_t places = run->num_ranks * evaluation_rounds(&eval, run->num_ranks) * eval.B;
        shape.eval_means = max_i64(shape.eval_means, places);
        shape.eval_rows = max_i64(shape.eval_rows, eval.num_rows);
    }
    return shape;
}

// What the time of a planned model's step depends on.
static StepShape step_shape(const GPT2 *model, const TrainRun *run) {
    const RunShape *shape = &model->shape;
    bool tensor_cores = attention_uses_tensor_cores(model->config.channels / model->config.num_heads);
    CudnnShape attention = cudnn_shape(model);
    StepShape step;
    memset(&step, 0, sizeof(step));
    step.config = model->config;
    step.B = shape->B, step.T = shape->T, step.recompute = shape->recompute;
    step.gelu_fusion = shape->gelu_fusion, step.fp8 = shape->fp8;
    step.attention = shape->cudnn ? ATTENTION_CUDNN : tensor_cores ? ATTENTION_TENSOR : ATTENTION_PLAIN;
    if (shape->cudnn && shape->repeats) { step.attention_chunk = cudnn_att_chunk(&attention); }
    step.head_rows = shape->head_rows, step.head_overlap = shape->head_overlap;
    step.has_master = shape->has_master;
    step.sizeof_activation = (int)sizeof(floatX);
    step.matmul_workspace_bytes = shape->cublas_bytes;
    step_share(&step, shape->num_ranks, shape->zero_stage);
    step.micro_batches = run->micro_batches;
    return step;
}

// For llmc/run/gpu_choices.h: memory, traffic and shape of a step, without taking memory.
static PlannedRun plan_run(void *context, const TrainRun *run, PlanVariant variant, const StepGpu *gpu,
                           Error *overflow) {
    GPT2 *model = (GPT2 *)context;
    RunShape shape = choose_shape(run);
    if (variant.recompute != AS_ASKED) { shape.recompute = variant.recompute; }
    if (variant.zero_stage != AS_ASKED) { shape.zero_stage = variant.zero_stage; }
    if (variant.unsharded) {
        shape.kind = RUN_TRAINS;
        shape.recompute = RECOMPUTE_NOTHING;
        shape.cudnn = shape.head_overlap = shape.exports = false;
        shape.rank = 0, shape.num_ranks = 1, shape.zero_stage = ZERO_REPLICATE;
        shape.val_sequences = shape.eval_means = shape.eval_rows = 0;
    }
    gpt2_plan(model, &run->config, shape);
    PlannedRun planned;
    StepShape step = step_shape(model, run);
    planned.B = shape.B;
    planned.bytes = model->device_plan.total;
    planned.overflows = !plan_check_overflow(&model->device_plan, overflow);
    step_rows_of_rank(&planned.rows, gpu, &step, model->shape.zero_stage);
    zero_step_bytes(&model->shards.layout, shape.zero_stage, (int)sizeof(floatX), run->micro_batches,
                    &planned.gradient_bytes, &planned.parameter_bytes);
    return planned;
}

static RunPlanner planner_of(GPT2 *model) {
    RunPlanner planner = {plan_run, model, PRECISION_IS_FP32};
    return planner;
}

// Settles what the options leave to the GPUs. --plan supposes GPUs.
static bool settle_by_gpus(GPT2 *model, TrainRun *run, Error *error) {
    RunPlanner planner = planner_of(model);
    AutoGpus gpus = run_planned_gpus(run, &planner, cublas_fuses_gelu);
    bool known = run->options.plan || rank_gpus_ask(&gpus, run->ranks.comm, run->options.tf32, error);
    return known && run_settle(&planner, run, &gpus, error);
}

// "by cuDNN 9.19.0", or where our own kernels compute.
static void attention_text(char *text, size_t size, const GPT2 *model) {
    const RunShape *shape = &model->shape;
    char version[32];
    cudnn_att_version_text(version, sizeof(version));
    bool tensor_cores = attention_uses_tensor_cores(model->config.channels / model->config.num_heads);
    const char *own = tensor_cores ? "tensor cores" : "plain cores";
    if (!shape->cudnn) {
        snprintf(text, size, "on %s", own);
    } else if (shape->times_cudnn) {
        snprintf(text, size, "by cuDNN %s or our own on %s", version, own);
    } else {
        snprintf(text, size, "by cuDNN %s%s", version,
                 shape->repeats ? "" : ", whose backward has other bits each time");
    }
}

// "by cuDNN 9.19.0, in the backward 8 sequences at a time", when that is settled.
static void attention_used_text(char *text, size_t size, const GPT2 *model) {
    char version[32];
    cudnn_att_version_text(version, sizeof(version));
    if (model->cudnn.is_open) {
        snprintf(text, size, "by cuDNN %s, in the backward %d sequence%s at a time%s", version, model->cudnn.chunk,
                 model->cudnn.chunk == 1 ? "" : "s", model->shape.repeats ? "" : ", with other bits each time");
    } else {
        snprintf(text, size, "by our own kernels");
    }
}

// Why cuDNN, which is there, is not asked for this run's attention. "": it is, or it is not there.
static void explain_attention(GPT2 *model, const TrainRun *run) {
    char version[32];
    bool any = model->shape.kind == RUN_TRAINS && strcmp(run->options.attention, "auto") == 0;
    cudnn_att_version_text(version, sizeof(version));
    if (any && !PRECISION_IS_FP32 && version[0] != '\0' && !model->shape.cudnn) { check_cudnn(run, &model->no_cudnn); }
}

static void print_config(const GPT2 *model, TrainRun *run) {
    char attention[128];
    attention_text(attention, sizeof(attention), model);
    run_print_config(run);
    printf("precision   %s%s%s; attention %s, heads of %d\n", PRECISION_NAME,
           model->shape.has_master ? ", fp32 master weights" : "",
           model->shape.fp8 ? ", linear layers of the blocks in fp8" : "", attention,
           model->config.channels / model->config.num_heads);
    if (model->no_cudnn.text[0] != '\0') { printf("            not by cuDNN: %s\n", model->no_cudnn.text); }
    if (model->shape.kind == RUN_TRAINS) {
        printf("launches    %s\n", model->shape.cuda_graph ? "a step is CUDA graphs"
                                   : run->num_ranks > 1    ? "kernel by kernel: CUDA graphs are for one GPU"
                                                           : "kernel by kernel");
    }
    if (model->shape.head_overlap && model->acts.logits.stride == 0) {
        printf("            --head-overlap has nothing to overlap: --head-rows takes all %d rows of logits at once\n",
               model->head_rows);
    }
    run_print_memory(&model->device_plan, " on the GPU");
    run_print_output(run);
    run_print_disk(run);
}

static void print_machine(const GPT2 *model, const TrainRun *run) {
    printf("machine     ");
    if (has_peers(&model->shards)) { printf("%d x ", model->shape.num_ranks); }
    printf("%s, %d multiprocessors, compute capability %d.%d", model->gpu.properties.name,
           model->gpu.properties.multiProcessorCount, model->gpu.properties.major, model->gpu.properties.minor);
    if (model->gpu.peak_flops > 0.0) {
        printf(", %.0f TFLOP/s %sby its datasheet", 1e-12 * model->gpu.peak_flops, model->shape.fp8 ? "in bf16 " : "");
    }
    printf("\n");
    if (has_peers(&model->shards)) {
        static const char *const sharded[] = {"nothing", "optimizer state", "optimizer state and gradients",
                                              "optimizer state, gradients and parameters"};
        int machines = comm_num_machines(model->ranks);
        printf("ranks       %d on %d machine%s; sharded: %s\n", model->shape.num_ranks, machines,
               machines > 1 ? "s" : "", sharded[model->shape.zero_stage]);
        if (model->spared > 0) {
            printf("            multiplies beside communication count on %d of %d multiprocessors\n", model->spared,
                   model->gpu.properties.multiProcessorCount);
        }
    }
    if (model->shape.fp8 && !fp8_has_conversion()) {
        printf("fp8         slow: this program has no code for 8.9 or later, and converts to 8 bits in software; build "
               "it with GPU_ARCH=%d%d\n",
               model->gpu.properties.major, model->gpu.properties.minor);
    }
    if (model->cudnn_failed) {
        printf("attention   by our own kernels: %s\n", model->no_cudnn.text);
        run_print_memory(&model->device_plan, " on the GPU without it");
    }
    if (model->tuning.text.used > 0) { printf("%s", model->tuning.text.data); }
    if (model->shape.times_cudnn && model->shape.cudnn) {
        char attention[128];
        attention_used_text(attention, sizeof(attention), model);
        printf("            it is done %s\n", attention);
    }
    if (run->options.gpu_log_every > 0 && !gpu_monitor_is_open(&model->gpu.monitor)) {
        printf("            %s\n", model->gpu.monitor.why);
    }
    printf("\n");
    fflush(stdout); // into a file it would be seen with the first step only
}

static void print_plan(const GPT2 *model, const TrainRun *run) {
    run_print_tensors(run);
    printf("On the GPU\n");
    plan_print(&model->device_plan, stdout);
    printf(
        "The GPU is supposed to have %g GiB (--gpu-memory); from 40 GB on, cuBLAS works in %lld MiB, below in %lld\n",
        (double)run->gpu_bytes / 0x1p30, (long long)CUBLAS_LARGE_WORKSPACE >> 20,
        (long long)CUBLAS_SMALL_WORKSPACE >> 20);
    printf("\nOn the host, pinned for copies to and from the GPU\n");
    plan_print(&model->pinned_plan, stdout);
    printf("\nOn the host\n");
    plan_print(&model->host_plan, stdout);
}

static bool load(GPT2 *model, TrainRun *run, Error *error) {
    RunArrays arrays = arrays_of(model);
    if (!run_load(run, &arrays, error)) { return false; }
    share_state(model);
    comm_resumable(model->ranks, run->found.resumes);
    return check_replicas(model, run, error);
}

static void add_versions(RunMachine *machine) {
    char text[64];
    int version = 0;
    run_machine_common(machine);
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) {
        gpu_version_text(text, sizeof(text), version);
        run_machine_version(machine, "cuda_runtime", "%s", text);
    }
    if (cudaDriverGetVersion(&version) == cudaSuccess) {
        gpu_version_text(text, sizeof(text), version);
        run_machine_version(machine, "cuda_driver", "%s", text);
    }
    version = (int)cublasLtGetVersion();
    run_machine_version(machine, "cublaslt", "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    cudnn_att_version_text(text, sizeof(text));
    if (text[0] != '\0') { run_machine_version(machine, "cudnn", "%s", text); }
    nccl_version_text(text, sizeof(text));
    if (text[0] != '\0') { run_machine_version(machine, "nccl", "%s", text); }
    comm_mpi_version_text(text, sizeof(text));
    if (text[0] != '\0') { run_machine_version(machine, "mpi", "%s", text); }
}

// Writes run.json, with the GPU of every rank.
static bool record_run(GPT2 *model, TrainRun *run, Error *error) {
    RunMachine machine;
    RunGpu gpu;
    memset(&machine, 0, sizeof(machine));
    memset(&gpu, 0, sizeof(gpu));
    snprintf(gpu.name, sizeof(gpu.name), "%.*s", (int)sizeof(gpu.name) - 1, model->gpu.properties.name);
    gpu.memory_bytes = (int64_t)model->gpu.properties.totalGlobalMem;
    gpu.major = model->gpu.properties.major, gpu.minor = model->gpu.properties.minor;
    machine.program = PROGRAM;
    machine.revision = gpt2c_revision();
    machine.specs = train_specs_gpu;
    machine.num_gpus = run->num_ranks;
    machine.num_machines = comm_num_machines(model->ranks);
    attention_used_text(machine.attention, sizeof(machine.attention), model);
    machine.gpus = (RunGpu *)malloc((size_t)run->num_ranks * sizeof(RunGpu));
    bool ok = machine.gpus != NULL || fail(error, "out of memory");
    add_versions(&machine);
    ok = run_agree(run, ok, error) &&
         comm_all_gather(run->ranks.comm, &gpu, machine.gpus, (int64_t)sizeof(gpu), error) &&
         run_json_begin(run, &machine, error);
    free(machine.gpus);
    return ok;
}

// What the run may ask of the ranks.
static RunRanks ranks_of(Comm *comm) {
    RunRanks ranks = {comm->rank,
                      comm->num_ranks,
                      comm_find_launcher().name != NULL,
                      comm,
                      comm_agree,
                      comm_broadcast,
                      comm_sum_u64,
                      comm_check_facts_text,
                      comm_is_broken,
                      comm_all_know,
                      comm_slow,
                      comm_on_failure};
    return ranks;
}

// Finds the other processes of this run, if there are any. Only rank 0 is to be seen on the screen.
static bool open_ranks(TrainRun *run, Comm *comm, Error *error) {
    const TrainOptions *o = &run->options;
    CommOptions options;
    memset(&options, 0, sizeof(options));
    bool tcp = strcmp(o->nccl_init, "tcp") == 0, folder = strcmp(o->nccl_init, "fs") == 0;
    options.start = tcp ? COMM_TCP : folder ? COMM_FOLDER : COMM_MPI;
    options.num_ranks = (int)o->num_processes;
    options.rank = (int)o->process_rank;
    options.gpus_per_node = (int)o->gpus_per_node;
    options.address = o->server_ip;
    options.folder = o->nccl_fs_path;
    options.start_timeout = o->start_timeout;
    options.watchdog = o->watchdog;
    options.program = PROGRAM;
    options.silence = o->watchdog > 0.0 ? 0.0 : 1e9; // 0: as usual; a debugger stops the watch itself
    comm_single(comm);
    run->ranks = ranks_of(comm);
    run->num_ranks = (int)max_i64(max_i64(1, comm_find_launcher().size), o->num_processes);
    if (o->plan) { return true; }
    run->num_ranks = 1;
    if (!comm_open(comm, &options, error)) { return false; }
    run->ranks = ranks_of(comm);
    run->num_ranks = comm->num_ranks;
    if (run->num_ranks > 1) { seconds_to_second_signal = 2.0; }
    return comm->rank == 0 || freopen("/dev/null", "w", stdout) != NULL || fail_system(error, "/dev/null", "open");
}

// Opens GPU and NCCL, and loads the model.
static bool start(GPT2 *model, TrainRun *run, Error *error) {
    run_slow(run, true); // CUDA's libraries may come from far away, and hundreds of ranks connect
    bool ok = gpt2_open(model, run->ranks.comm, run->options.tf32, error);
    ok = run_agree(run, ok, error) && choose_algorithms(model, run, error);
    ok = run_agree(run, ok, error) && check_gpu_is_ours(model, error) && check_attention_is_alike(model, error) &&
         tune_attention(model, run, error) &&
         nccl_open(&model->shards.nccl, model->ranks, model->shards.comm_stream, error);
    run_slow(run, false);
    return ok && load(model, run, error) && record_run(model, run, error) && record_choices(model, run, error);
}

// The end of a run: what --export asks for, the hash of the weights.
static bool finish(GPT2 *model, TrainRun *run, Error *error) {
    bool trained = model->shape.kind == RUN_TRAINS;
    uint64_t hash = 0;
    comm_progress(model->ranks, "the end");
    comm_slow(model->ranks, true);
    if (!check_replicas(model, run, error) || !hash_params(model, &hash, error)) { return false; }
    if (model->shape.exports && !is_stopping(model)) {
        ModelState state = state_of(model);
        state_export(&state);
    }
    if (has_peers(&model->shards) && trained) {
        printf("sent        %lld bytes of gradients, %lld of parameters\n",
               (long long)model->shards.nccl.gradient_bytes, (long long)model->shards.nccl.parameter_bytes);
    }
    bool ok = model->shape.rank > 0 || run_finish(run, model->host_params, hash, trained, is_stopping(model), error);
    return run_agree(run, ok, error);
}

// Checksums and initial weights are made on all cores, which the ranks of a machine share, unless their launcher has
// given each its own.
static void set_threads(const TrainRun *run) {
#ifdef _OPENMP
    int64_t cores = omp_get_max_threads(), ranks = run->ranks.comm->num_local;
    bool own = getenv("OMP_NUM_THREADS") != NULL || cores * ranks <= (int64_t)sysconf(_SC_NPROCESSORS_ONLN);
    int64_t share = own ? cores : max_i64(1, cores / ranks);
    omp_set_num_threads((int)(run->options.threads > 0 ? run->options.threads : share));
#else
    (void)run;
#endif
}

static bool run_program(GPT2 *model, TrainRun *run, Comm *comm, Error *error) {
    const TrainOptions *o = &run->options;
    run_keep_section(run, "loss_outliers", &model->outliers.loss, sizeof(model->outliers.loss));
    run_keep_section(run, "norm_outliers", &model->outliers.norm, sizeof(model->outliers.norm));
    if (!open_ranks(run, comm, error) || !run_open(run, DEFAULT_SEQ_LEN, PRECISION_NAME, error) ||
        !run_agree(run, check_shape(run, error), error)) {
        return false;
    }
    catch_stop_signal(SIGUSR1, on_stop_signal); // who sends this one wants a run to end in order, and has time
    if (!settle_by_gpus(model, run, error)) { return false; }
    gpt2_plan(model, &run->config, choose_shape(run));
    explain_attention(model, run);
    print_config(model, run);
    if (o->plan) {
        print_plan(model, run);
        if (model->shape.kind == RUN_TRAINS) {
            RunPlanner planner = planner_of(model);
            run_print_step(&planner, run);
            run_print_levels(&planner, run);
            run_print_stages(&planner, run);
        }
        return true;
    }
    set_threads(run);
    if (!start(model, run, error)) { return false; }
    print_machine(model, run);
    catch_stop_signals(on_stop_signal);
    bool trains = model->shape.kind == RUN_TRAINS;
    return (trains ? train(model, run, error) : evaluate_only(model, run, error)) && finish(model, run, error);
}

// What only this rank knows it tells the others; what all know of is said once for each output. Then ends at once: what
// is under way on the GPU may wait for others and never be done.
static void end_in_failure(TrainRun *run, Comm *comm, const Error *error) {
    run_json_fail(run, error);
    comm_fail(comm, error);
    comm_close(comm);
    fflush(stdout);
    if (comm_prints(comm)) { print_error(PROGRAM, error); }
    _exit(EXIT_FAILURE);
}

int main(int argc, char **argv) {
    static TrainRun run; // zero; large, so not on the stack
    static GPT2 model;
    static Comm comm;
    static Error error;
    ArgsOutcome outcome;
    reserve_standard_files();
    ignore_write_signals();
    bool parsed = train_options_parse(&run.options, argc, argv, true, &outcome, &error);
    exit_unless(parsed || !comm_launcher_shows(), PROGRAM, &error);
    if (!parsed) { return EXIT_FAILURE; }
    if (outcome != ARGS_RUN || (run.options.plan && !comm_launcher_shows())) { return EXIT_SUCCESS; }
    run.record.arguments = argv;
    run.record.num_arguments = argc;
    bool ok = run_program(&model, &run, &comm, &error);
    if (!ok && run.num_ranks > 1) { end_in_failure(&run, &comm, &error); }
    if (!ok) { run_json_fail(&run, &error); }
    run_close(&run);
    gpt2_close(&model);
    comm_close(&comm);
    exit_unless(ok, PROGRAM, &error);
    exit_unless(stdout_is_written(&error), PROGRAM, &error);
    return EXIT_SUCCESS;
}
