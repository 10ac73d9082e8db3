// Trains GPT-2 on GPUs. The file tells the story of a step, from tokens to updated weights. The kernels are in
// llmc/layers and llmc/optim. train_gpt2.c tells this story for the CPU. llmc/run/train_loop.h holds the program of
// both, and says what they do not share and why.
//
// The story:
//   1. types      the structs of a trainer
//   2. forward    embedding, blocks, language model head, loss
//   3. backward   the gradients, from the last layer to the first
//   4. update     checksum of the weights, gradient norm, AdamW
//   5. the step   batches on their way, micro-batches, one update, results that arrive late
//   6. validation, questions, samples
// What it takes besides:
//   7. the plan   all memory, planned before it is allocated; what a step costs
//   8. NaNs       where one began
//   9. state      load, save and check parameters and optimizer state
//   10. program   open, tune, print, main; the loop is in llmc/run/train_loop.h
//
// Shapes use the field's letters: B sequences of T tokens, C channels, NH heads of size HS = C / NH, L layers, V tokens
// in the vocabulary (Vp with padding), N = B*T rows. Weights are bf16 beside fp32 master weights, or fp32
// (make PRECISION=FP32). With --fp8 the linear layers of the blocks multiply in 8 bits.
//
// Each GPU has one process, its rank. Every rank runs this whole program, trains on its part of every batch and owns a
// part of every bucket of parameters (llmc/ranks/zero.h). A single rank owns everything and sends nothing.
//
// Four rules hold throughout:
// - Gradients of parameters are fp32 and are added to (+=). Gradients of activations are floatX and are written (=).
//   Only the gradient of the residual stream is added to.
// - Equal inputs give equal bits. Sums run in an order that follows from the shapes alone.
// - The host never waits for the GPU inside a step, and allocates nothing after the start. Only the driver takes
//   memory, for the CUDA graphs of a step.
// - Ranks that must decide alike decide from equal bits. They need not ask each other.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <nvtx3/nvToolsExt.h>

#include "llmc/base/utils.h"
#include "llmc/model/activations.h"
#include "llmc/model/auto_plan.h"
#include "llmc/model/gpt2.h"
#include "llmc/model/memory_plan.h"
#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/cuda_graph.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/cuda/gpu.h"
#include "llmc/cuda/matmul_tune.cuh"
#include "llmc/layers/attention.cuh"
#include "llmc/layers/attention_cudnn.h"
#include "llmc/layers/attention_tune.cuh"
#include "llmc/layers/embedding.cuh"
#include "llmc/layers/fp8.cuh"
#include "llmc/layers/gelu.cuh"
#include "llmc/layers/layernorm.cuh"
#include "llmc/layers/linear.cuh"
#include "llmc/layers/loss.cuh"
#include "llmc/optim/adamw.cuh"
#include "llmc/optim/finite.cuh"
#include "llmc/optim/global_norm.cuh"
#include "llmc/optim/outlier.h"
#include "llmc/optim/schedulers.h"
#include "llmc/ranks/agree.h"
#include "llmc/ranks/buckets.cuh"
#include "llmc/ranks/gpu_state.cuh"
#include "llmc/ranks/rank_gpus.cuh"
#include "llmc/ranks/start.h"
#include "llmc/ranks/step_link.h"
#include "llmc/run/gpu_choices.h"
#include "llmc/run/train_loop.h"

// ---------------------------------------------------------------------------------------------------------------------
// 1. Types

static const char *const host_phase_names[] = {"all"};

// Holds the model's 16 tensors by name. A tensor of a block belongs to one layer.
#define TENSOR_POINTER(name, ...) T *name;
template <class T> struct Tensors { GPT2_PARAMETERS(TENSOR_POINTER) };

// Finds the tensors in two buckets. outside points to bucket 0, block points to the bucket of one layer.
template <class T> static Tensors<T> tensors_of(const ZeroLayout *zero, T *outside, T *block) {
    Tensors<T> tensors;
#define TENSOR_AT(name, ...)                                                                                           \
    tensors.name =                                                                                                     \
        (gpt2_param_specs[PARAM_##name].per_layer ? block : outside) + zero_tensor_offset(zero, PARAM_##name);
    GPT2_PARAMETERS(TENSOR_AT)
    return tensors;
}

// The linear layers of a block: id, name, the activation that it reads, the level of --recompute that gives it up.
#define BLOCK_LINEARS(X)                                                                                               \
    X(QKV, qkv, ln1, RECOMPUTE_LAYERNORM)                                                                              \
    X(ATTPROJ, attproj, att, RECOMPUTE_LAYERNORM)                                                                      \
    X(FC, fc, ln2, RECOMPUTE_LAYERNORM)                                                                                \
    X(FCPROJ, fcproj, gelu, RECOMPUTE_GELU)
#define LINEAR_ID(ID, ...) LINEAR_##ID,
enum { BLOCK_LINEARS(LINEAR_ID) NUM_LINEARS };

// An activation has a copy for each layer (stride > 0), or one copy (stride 0).
template <class T> struct Activation {
    T *data;
    int64_t stride;
    T *of(int64_t layer) const { return data + layer * stride; }
};

#define ACTIVATION_FIELD(name, type, ...) Activation<type> name;
struct Activations {
    GPT2_ACTIVATIONS(ACTIVATION_FIELD)
};

// Holds the activations of one layer by name.
#define ACTIVATION_POINTER(name, type, ...) type *name;
struct LayerActs {
    GPT2_ACTIVATIONS(ACTIVATION_POINTER)
};

typedef struct {
    RunKind kind;
    int B, T;         // the largest batch
    int recompute;    // the level of --recompute
    int gelu_fusion;  // the level of --gelu-fusion
    bool cudnn;       // cuDNN computes the attention of (B,T) batches
    bool needs_cudnn; // the run fails if cuDNN cannot
    bool times_cudnn; // timing chooses between cuDNN and our own kernels
    bool repeats;     // attention gives equal bits each time
    bool fp8;         // the linear layers of the blocks multiply in 8 bits
    int head_rows;    // the most rows of logits at a time
    bool head_overlap;
    bool cuda_graph; // launch a step's passes as CUDA graphs: only on one GPU, since collectives are queued one by one
    bool has_master; // fp32 weights beside the bf16 ones
    bool exports;    // rank 0 collects all parameters at the end
    int rank, num_ranks;
    int zero_stage;        // the sharded arrays: ZERO_.. in llmc/ranks/zero.h
    int64_t cublas_bytes;  // cuBLASLt's workspace
    int64_t val_sequences; // sequences of a validation
    int64_t eval_means;    // places for the mean losses of an evaluation: all batches of all ranks
    int64_t eval_rows;     // the most rows of an evaluation
} RunShape;

#define NUM_SLOTS 2 // batches on their way
#define NUM_STEPS 3 // steps whose events are held: the step being queued, the pending step and the step before it

// A batch on its way. Two slots take turns, so that a copy to the GPU never touches the batch that the GPU works on.
typedef struct {
    // (3,N) in pinned and in GPU memory: tokens, targets, rows sorted by token. An evaluation has no rows sorted by
    // token: it puts flags there, 1 for each loss that counts.
    int32_t *staging, *device;
    cudaEvent_t uploaded, no_longer_used;
} BatchSlot;

// A training micro-batch has three passes.
enum { PASS_FORWARD, PASS_LM_HEAD, PASS_BACKWARD, NUM_PASSES };

// A step's kernels read these inputs, which change with every step.
typedef struct {
    AdamWFactors factors;
    int64_t wants_to_end; // this process has been asked to stop
} StepInput;

// Describes a queued step.
typedef struct {
    bool waiting;          // its results are not logged yet
    bool is_read;          // info has loss and norm: the host waited for them to decide on the update
    bool adjoins;          // nothing ran between the step before and this step
    int slot;              // of its events and results
    StepInfo info;         // loss, norm and time are filled in when they are read
    int64_t next_sequence; // the position in the data where the step began
} PendingStep;

// The model of a run holds parameters, their gradients and activations.
struct Model {
    GPT2Config config;
    RunShape shape;
    const Shards *shards; // where this rank keeps the buckets
    Buckets<floatX> params;
    Buckets<float> grads;
    Activations acts;               // with the gradients of activations, for one layer at a time
    Fp8Copies fp8;                  // 8-bit copies, with --fp8
    int head_rows;                  // rows of logits in a chunk
    float *att_delta, *sum_scratch; // scratch of the backward pass
};

// Holds AdamW's moments, and the fp32 weights beside bf16 weights.
struct Optimizer {
    Buckets<float> m, v, master;
};

// Holds the GPU and the state of its libraries.
struct Gpu {
    GpuDevice device;
    cudaStream_t stream, lm_head_stream;
    cudaEvent_t multiplied[2], scored[2]; // chunks of logits: see lm_head_forward
    CublasContext cublas;
    float *cublas_workspace;
    int spared;   // multiprocessors for multiplies that run beside communication; 0: all
    bool reduces; // gradients are sent while the backward pass goes on
    CudnnAttention cudnn;
    float *cudnn_forward, *cudnn_backward; // workspaces
    bool cudnn_failed;                     // cuDNN had no plan
    Error no_cudnn;                        // why cuDNN is not used
    Tuning tuning;                         // chosen matmul algorithms and attention kernels
    CudaGraphs graphs;
    CudaGraph pass_graphs[NUM_SLOTS][2][NUM_PASSES]; // [slot][1]: for the first micro-batch of a step
    CudaGraph norm_graph, update_graph;
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
    StepInput *input;    // on the GPU
    StepRecord *records; // (ranks)
    StepResult *result;
    StepInput *inputs;   // (NUM_STEPS), pinned
    StepResult *results; // (NUM_STEPS), pinned
    cudaEvent_t begun[NUM_STEPS], reduced[NUM_STEPS], done[NUM_STEPS];
    int64_t steps_begun;
    PendingStep pending;
    Outliers outliers;
};

// Holds the losses of validations and of questions.
struct Evaluation {
    double *val_sums;        // (ranks, rounds of a validation): the sum of each batch's losses
    double *eval_means;      // (ranks, rounds of an evaluation, most rows of a batch)
    double *host_val_sums;   // pinned, like val_sums
    double *host_eval_means; // pinned, like eval_means
    double *row_means;       // (eval_rows): the mean loss of each row, by its number
    cudaEvent_t evaluated;   // the GPU has finished a round of an evaluation
};

// Holds the sample that is being generated.
struct Sample {
    int32_t *history, *history_staging; // (T) on the GPU and pinned: the tokens so far
    int history_length;
    floatX *pinned_logits; // (Vp)
    float *logits, *probs; // (V)
};

// Holds buffers for parameters and state on their way between the GPU and files.
struct Transfer {
    float *staging;                     // pinned, one chunk
    float *export_bucket;               // on the GPU
    float *host_params;                 // (number of parameters), for --export
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
    MemoryPlan device_plan, pinned_plan, host_plan;
};

// Names everything launched until the end of the scope, for the profiler's time line.
struct Range {
    explicit Range(const char *name) { nvtxRangePushA(name); }
    ~Range() { nvtxRangePop(); }
    Range(const Range &) = delete;
    Range &operator=(const Range &) = delete;
};

// ---------------------------------------------------------------------------------------------------------------------
// 2. Forward

// Finds the tensors of bucket 0 and a layer. Parameters are valid after await_bucket, gradients after begin_gradient.
static Tensors<floatX> params_of_layer(const Model *model, int layer) {
    return tensors_of(&model->shards->layout, whole_bucket(model->shards, model->params, 0),
                      whole_bucket(model->shards, model->params, 1 + layer));
}

// All are NULL in a run without gradients.
static Tensors<float> grads_of_layer(const Model *model, int layer) {
    if (model->shape.kind != RUN_TRAINS) { return {}; }
    return tensors_of(&model->shards->layout, whole_bucket(model->shards, model->grads, 0),
                      whole_bucket(model->shards, model->grads, 1 + layer));
}

static LayerActs acts_of_layer(const Model *model, int layer) {
    LayerActs acts;
#define ACTIVATION_OF(name, ...) acts.name = model->acts.name.of(layer);
    GPT2_ACTIVATIONS(ACTIVATION_OF)
    return acts;
}

// Describes a batch's place in its step, and where its losses go. By default nobody wants the losses.
struct BatchRole {
    bool trains = false;            // its gradients are wanted
    bool first = true, last = true; // of the micro-batches of a step
    float dloss = 0.0f;             // the gradient of each row's loss
    double *loss_sum = NULL; // on the GPU: the sum of the losses. The first micro-batch sets it, later ones add to it
    double *means = NULL;    // on the GPU: the mean loss of each sequence
};

// ---- The layers of a block ----

#define BLOCK_LINEAR(ID, name, ...) Linear name;
struct Block {
    LayerActs acts;
    LayerNorm ln1, ln2;
    BLOCK_LINEARS(BLOCK_LINEAR)
};

// Describes a block. llmc/layers/fp8.cuh explains `use`. A recomputed forward ends before fcproj: the
// backward pass needs only fcproj's input.
static Block block_of(const Model *model, int layer, LinearUse use) {
    Tensors<floatX> p = params_of_layer(model, layer);
    Tensors<float> g = grads_of_layer(model, layer);
    Block b;
    LayerActs &a = b.acts;
    a = acts_of_layer(model, layer);
#define FIND_LINEAR(ID, name, ...)                                                                                     \
    b.name.C = (int)gpt2_param_cols(&model->config, PARAM_##name##w);                                                  \
    b.name.OC = (int)gpt2_param_rows(&model->config, PARAM_##name##w);                                                 \
    b.name.weight = p.name##w, b.name.bias = p.name##b, b.name.dweight = g.name##w, b.name.dbias = g.name##b;          \
    b.name.fp8 = fp8_linear(&model->fp8, layer, LINEAR_##ID, use);
    BLOCK_LINEARS(FIND_LINEAR)
    if (use == LINEAR_AGAIN) { b.fcproj.fp8 = fp8_linear(&model->fp8, layer, LINEAR_FCPROJ, LINEAR_BACKWARD); }
    b.ln1 = {model->config.channels, p.ln1w, p.ln1b, g.ln1w, g.ln1b, a.ln1, a.ln1_mean, a.ln1_rstd, b.qkv.inp_amax()};
    b.ln2 = {model->config.channels, p.ln2w, p.ln2b, g.ln2w, g.ln2b, a.ln2, a.ln2_mean, a.ln2_rstd, b.fc.inp_amax()};
    return b;
}

static LayerNorm lnf_of(const Model *model) {
    Tensors<floatX> p = params_of_layer(model, 0);
    Tensors<float> g = grads_of_layer(model, 0);
    const Activations *a = &model->acts;
    return {model->config.channels, p.lnfw,           p.lnfb, g.lnfw, g.lnfb, a->lnf.data,
            a->lnf_mean.data,       a->lnf_rstd.data, NULL};
}

// The language model head shares its weights with the token embedding: logits (N,Vp) = lnf wte^T.
static Linear lm_head_of(const Model *model) {
    Linear head;
    head.C = model->config.channels, head.OC = model->config.padded_vocab_size;
    head.weight = params_of_layer(model, 0).wte, head.dweight = grads_of_layer(model, 0).wte;
    return head;
}

// Converts a block's weights to 8 bits, after they have changed or arrived.
static void quantize_weights(const Model *model, Gpu *gpu, int layer) {
    Block b = block_of(model, layer, LINEAR_BACKWARD);
    const Linear linears[] = {b.qkv, b.attproj, b.fc, b.fcproj};
    linear_quantize_weights(linears, NUM_LINEARS, gpu->stream);
}

// Converts all weights. Does nothing if this rank holds only parts of them.
static void quantize_all_weights(const Model *model, Gpu *gpu) {
    if (!model->shape.fp8 || model->params.parts) { return; }
    for (int layer = 0; layer < model->config.num_layers; layer++) { quantize_weights(model, gpu, layer); }
}

// Converts a block's weights at each use if they pass through a slot. Weights that are gathered after an update are
// converted in the forward pass, which waits for each bucket.
static void quantize_passing_weights(const Model *model, Gpu *gpu, const Shards *shards, int layer) {
    if (model->shape.fp8 && (model->params.parts || shards->gathering)) { quantize_weights(model, gpu, layer); }
}

// Waits for all parameters. A forward pass does not need it: it waits for one bucket at a time.
static void await_parameters(const Model *model, Gpu *gpu, Shards *shards) {
    if (!shards->gathering) { return; }
    shards->gathering = false;
    compute_after_communicate(shards);
    quantize_all_weights(model, gpu);
}

// Sets the number of multiprocessors that the next multiplies use. NCCL's kernels need some for themselves.
static void count_on(Gpu *gpu, bool communicates) { gpu->cublas.multiprocessors = communicates ? gpu->spared : 0; }

#define MAX_MATMUL_PROBLEMS 32

// Lists all multiplications of a training micro-batch, so that algorithms can be chosen before the first step. Each has
// the number of multiprocessors that it uses: see count_on. Those of the backward pass are listed twice if only a
// step's last micro-batch sends gradients. Returns their number, at most MAX_MATMUL_PROBLEMS.
static int matmul_problems(const Model *model, const Gpu *gpu, CublasProblem *problems) {
    int n = 0, fusion = model->shape.gelu_fusion;
    int64_t N = (int64_t)model->shape.B * model->shape.T;
    Block b = block_of(model, 0, LINEAR_FOR_GRADIENTS);
    for (const Linear *l : {&b.qkv, &b.attproj, &b.fc, &b.fcproj}) {
        CublasProblem *forward = problems + n, *backward = forward + 1;
        linear_problems(forward, *l, N, l == &b.fc && fusion >= FUSE_GELU_FORWARD,
                        l == &b.fcproj && fusion >= FUSE_GELU_BACKWARD);
        n += LINEAR_PRODUCTS;
        if (model->params.parts) { forward->multiprocessors = gpu->spared; }
        for (int i = 0; gpu->spared > 0 && i < LINEAR_PRODUCTS - 1; i++) {
            if (!model->grads.parts) { problems[n++] = backward[i]; }
            backward[i].multiprocessors = gpu->spared;
        }
    }
    for (int64_t rows : {(int64_t)model->head_rows, N % model->head_rows}) { // a full chunk, the last chunk
        if (rows == 0) { continue; }
        linear_problems(problems + n, lm_head_of(model), rows, false, false);
        n += LINEAR_PRODUCTS;
    }
    return n;
}

// ---- Forward ----

// Computes att and att_lse from qkv. The linear layer attproj reads att. cuDNN does not measure att's largest
// magnitude, so linear_measure_input does.
static void attend(const Model *model, Gpu *gpu, const Block &b, int B, int T) {
    const LayerActs &a = b.acts;
    if (!cudnn_att_takes(&gpu->cudnn, B, T)) {
        attention_forward(a.att, a.att_lse, a.qkv, B, T, model->config.channels, model->config.num_heads, gpu->stream,
                          b.attproj.inp_amax());
        return;
    }
    cudnn_att_forward(&gpu->cudnn, a.att, a.att_lse, a.qkv, gpu->stream);
    linear_measure_input(b.attproj, a.att, (int64_t)B * T, gpu->stream);
}

// fc = ln2 fcw^T + fcb; gelu = GELU(fc), the input of fcproj.
static void mlp_forward(const Model *model, Gpu *gpu, const Block &b, int64_t N) {
    const LayerActs &a = b.acts;
    bool fused = model->shape.gelu_fusion >= FUSE_GELU_FORWARD; // the multiply also computes GELU
    linear_forward(&gpu->cublas, b.fc, fused ? a.gelu : a.fc, fused ? a.fc : NULL, a.ln2, N, gpu->stream);
    if (!fused) { linear_gelu_input(b.fcproj, a.gelu, a.fc, N, gpu->stream); }
}

// Computes a block from qkv to gelu. Leaves out fcproj, because the backward pass needs no output of fcproj:
//   mid = x + attention(ln1) attprojw^T + attprojb; ln2 = layernorm(mid); gelu = GELU(ln2 fcw^T + fcb)
static void block_forward(const Model *model, Gpu *gpu, const Block &b, int B, int T) {
    const LayerActs &a = b.acts;
    int64_t N = (int64_t)B * T;
    count_on(gpu, model->params.parts); // a recomputed block counts on as many, which gives equal bits
    linear_forward(&gpu->cublas, b.qkv, a.qkv, NULL, a.ln1, N, gpu->stream);
    attend(model, gpu, b, B, T);
    linear_forward(&gpu->cublas, b.attproj, a.projection, NULL, a.att, N, gpu->stream);
    fused_residual_layernorm_forward(b.ln2, a.residual_mid, a.residual, a.projection, N, gpu->stream);
    mlp_forward(model, gpu, b, N);
}

// Computes the last linear layer of a block, then the next block's ln1 or the final LayerNorm:
//   residual[layer + 1] = mid + gelu fcprojw^T + fcprojb
static void block_finish(const Model *model, Gpu *gpu, Shards *shards, int layer, int64_t N, LinearUse use) {
    bool last = layer == model->config.num_layers - 1;
    Block b = block_of(model, layer, use);
    const LayerActs &a = b.acts;
    linear_forward(&gpu->cublas, b.fcproj, a.projection, NULL, a.gelu, N, gpu->stream);
    if (!last) { await_bucket(shards, model->params, 2 + layer); } // the next block's LayerNorm reads its parameters
    LayerNorm next = last ? lnf_of(model) : block_of(model, layer + 1, use).ln1;
    fused_residual_layernorm_forward(next, model->acts.residual.of(layer + 1), a.residual_mid, a.projection, N,
                                     gpu->stream);
}

// Computes all layers up to the final LayerNorm, which writes acts.lnf. tokens (B,T) are on the GPU.
static void model_forward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, int B, int T,
                          LinearUse use) {
    Range range("forward");
    int C = model->config.channels, L = model->config.num_layers;
    int64_t N = (int64_t)B * T;
    floatX *embedded = model->acts.residual.of(0);
    fetch_bucket(shards, model->params, 0);
    fetch_bucket(shards, model->params, 1);
    await_bucket(shards, model->params, 0);
    await_bucket(shards, model->params, 1);
    fp8_clear_activation_scales(&model->fp8, gpu->stream);
    Tensors<floatX> p = params_of_layer(model, 0);
    embedding_forward(embedded, tokens, p.wte, p.wpe, B, T, C, gpu->stream);
    layernorm_forward(block_of(model, 0, use).ln1, embedded, N, gpu->stream);
    for (int layer = 0; layer < L; layer++) {
        if (layer < L - 1) { fetch_bucket(shards, model->params, 2 + layer); }
        quantize_passing_weights(model, gpu, shards, layer);
        block_forward(model, gpu, block_of(model, layer, use), B, T);
        block_finish(model, gpu, shards, layer, N, use);
        release_bucket(shards, model->params, 1 + layer);
    }
    shards->gathering = false; // await_bucket has waited for every bucket
}

// ---- The language model head ----
//
// The logits of a few rows exist at a time, never those of a whole batch. The next rows overwrite the logits, so the
// head's backward runs here too if gradients are wanted.

// Describes a chunk of rows and its logits.
struct LogitRows {
    int64_t first, rows;
    int slot;       // 0; with --head-overlap 0 or 1
    floatX *logits; // (rows,Vp)
};

static LogitRows logit_rows(const Model *model, int64_t chunk, int64_t N) {
    int64_t first = chunk * model->head_rows;
    int slot = model->acts.logits.stride > 0 ? (int)(chunk % 2) : 0;
    return {first, min_i64(model->head_rows, N - first), slot, model->acts.logits.of(slot)};
}

// Computes the logits of some rows and their losses, and overwrites the logits with their gradients. With
// --head-overlap a second stream computes the losses. They wait for memory, so the next rows' multiplies run beside.
static void lm_head_forward(const Model *model, Gpu *gpu, LogitRows h, const int32_t *targets, const BatchRole *role) {
    int C = model->config.channels, V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    bool overlaps = model->acts.logits.stride > 0;
    cudaStream_t stream = overlaps ? gpu->lm_head_stream : gpu->stream;
    linear_forward(&gpu->cublas, lm_head_of(model), h.logits, NULL, model->acts.lnf.data + h.first * C, h.rows,
                   gpu->stream);
    if (overlaps) {
        cuda_check(cudaEventRecord(gpu->multiplied[h.slot], gpu->stream));
        cuda_check(cudaStreamWaitEvent(stream, gpu->multiplied[h.slot], 0));
    }
    cross_entropy(model->acts.losses.data + h.first, h.logits, targets + h.first, h.rows, V, Vp, role->dloss,
                  role->trains, stream);
    if (overlaps) { cuda_check(cudaEventRecord(gpu->scored[h.slot], stream)); }
}

// Sets dlnf of the rows that lm_head_forward has scored, and adds to dwte.
static void lm_head_backward(const Model *model, Gpu *gpu, LogitRows h, const BatchRole *role) {
    int64_t at = h.first * model->config.channels;
    if (model->acts.logits.stride > 0) { cuda_check(cudaStreamWaitEvent(gpu->stream, gpu->scored[h.slot], 0)); }
    if (!role->trains) { return; }
    linear_backward(&gpu->cublas, lm_head_of(model), model->acts.dlnf.data + at, h.logits, model->acts.lnf.data + at,
                    NULL, h.rows, gpu->stream);
}

// Computes the losses of a batch, and the head's gradients if they are wanted, chunk by chunk in the order of the rows.
static void model_loss(const Model *model, Gpu *gpu, Shards *shards, const int32_t *targets, int64_t N,
                       const BatchRole *role) {
    Range range("lm_head");
    int64_t chunks = ceil_div_i64(N, model->head_rows), ahead = model->acts.logits.stride > 0;
    if (role->trains) { begin_gradient(shards, model->grads, 0, role->first); }
    count_on(gpu, false);
    for (int64_t i = 0; i < chunks + ahead; i++) {
        if (i < chunks) { lm_head_forward(model, gpu, logit_rows(model, i, N), targets, role); }
        if (i >= ahead) { lm_head_backward(model, gpu, logit_rows(model, i - ahead, N), role); }
    }
    if (role->loss_sum != NULL) { sum_losses(role->loss_sum, model->acts.losses.data, N, !role->first, gpu->stream); }
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. Backward

// Recomputes the activations of a layer that --recompute did not keep. It runs the forward's kernels on the forward's
// inputs, which gives equal bits. The last layer's activations are still there.
static void recompute_layer(const Model *model, Gpu *gpu, int layer, int B, int T) {
    int level = model->shape.recompute;
    int64_t N = (int64_t)B * T;
    if (layer == model->config.num_layers - 1 || level == RECOMPUTE_NOTHING) { return; }
    Block again = block_of(model, layer, LINEAR_AGAIN), b = block_of(model, layer, LINEAR_BACKWARD);
    const LayerActs &a = b.acts;
    if (level >= RECOMPUTE_LAYERNORM) { layernorm_forward(b.ln1, a.residual, N, gpu->stream); }
    if (level == RECOMPUTE_BLOCK) {
        block_forward(model, gpu, again, B, T);
        return;
    }
    if (level >= RECOMPUTE_LAYERNORM) {
        layernorm_forward(b.ln2, a.residual_mid, N, gpu->stream);
        linear_quantize_input(b.qkv, a.ln1, N, gpu->stream);
        linear_quantize_input(b.attproj, a.att, N, gpu->stream);
        linear_quantize_input(b.fc, a.ln2, N, gpu->stream);
    }
    if (model->shape.gelu_fusion >= FUSE_GELU_FORWARD) { // a kernel of GELU alone might round differently
        count_on(gpu, model->params.parts);
        mlp_forward(model, gpu, again, N);
    } else {
        linear_gelu_input(b.fcproj, a.gelu, a.fc, N, gpu->stream);
    }
}

// dresidual holds the gradient of a block's output at first, and of the block's input at the end. The residual stream
// passes through both halves of a block unchanged, and the LayerNorm of each half adds its own gradient.
//
// A LayerNorm reads the stream where the linear layer `from` wrote to it, so dresidual is the gradient of from's
// output. The LayerNorm's backward completes dresidual. It also adds dresidual's column sums to from's bias gradient.
// For --fp8 it measures dresidual's largest magnitude. A separate kernel would read all N*C values again.
static void normalize_backward(const Model *model, Gpu *gpu, const LayerNorm &ln, bool is_new, const Linear &from,
                               const floatX *dout, const floatX *inp, int64_t N) {
    layernorm_backward_with_column_sums({model->acts.dresidual.data, is_new, from.dbias, from.dout_amax()}, ln, dout,
                                        inp, model->sum_scratch, N, gpu->stream);
}

// Computes dqkv from datt. linear_backward_bias measures dqkv's largest magnitude.
static void attend_backward(const Model *model, Gpu *gpu, const LayerActs &a, int B, int T) {
    if (cudnn_att_takes(&gpu->cudnn, B, T)) {
        cudnn_att_backward(&gpu->cudnn, a.dqkv, a.datt, a.qkv, a.att, a.att_lse, gpu->stream);
    } else {
        attention_backward(a.dqkv, a.datt, a.qkv, a.att, a.att_lse, model->att_delta, B, T, model->config.channels,
                           model->config.num_heads, gpu->stream);
    }
}

// Runs the backward from the block's output to mid: fcproj, GELU, fc, ln2.
static void block_backward_mlp(const Model *model, Gpu *gpu, const Block &b, int64_t N) {
    const LayerActs &a = b.acts;
    bool fused = model->shape.gelu_fusion >= FUSE_GELU_BACKWARD; // the multiply also computes GELU's backward
    count_on(gpu, gpu->reduces);
    linear_backward(&gpu->cublas, b.fcproj, a.dfc, a.dresidual, a.gelu, fused ? a.fc : NULL, N, gpu->stream);
    if (fused) {
        linear_backward_bias(b.fc, a.dfc, model->sum_scratch, N, gpu->stream);
    } else { // one kernel computes dfc and fc's bias gradient, which saves one read of dfc
        gelu_backward(a.dfc, a.fc, a.dfc, b.fc.dbias, model->sum_scratch, N, b.fc.OC, gpu->stream, b.fc.dout_amax());
    }
    linear_backward(&gpu->cublas, b.fc, a.dln, a.dfc, a.ln2, NULL, N, gpu->stream);
    normalize_backward(model, gpu, b.ln2, false, b.attproj, a.dln, a.residual_mid, N);
}

// Runs the backward from mid to the block's input: attproj, attention, qkv, ln1. The LayerNorm adds to a bias gradient
// of the block below, so begin_gradient makes room for that block's gradients first.
static void block_backward_attention(const Model *model, Gpu *gpu, Shards *shards, int layer, int B, int T,
                                     const BatchRole *role) {
    int64_t N = (int64_t)B * T;
    Block b = block_of(model, layer, LINEAR_BACKWARD);
    const LayerActs &a = b.acts;
    Linear below;
    linear_backward(&gpu->cublas, b.attproj, a.datt, a.dresidual, a.att, NULL, N, gpu->stream);
    attend_backward(model, gpu, a, B, T);
    linear_backward_bias(b.qkv, a.dqkv, model->sum_scratch, N, gpu->stream);
    linear_backward(&gpu->cublas, b.qkv, a.dln, a.dqkv, a.ln1, NULL, N, gpu->stream);
    if (layer > 0) {
        begin_gradient(shards, model->grads, layer, role->first); // the bucket of layer - 1
        below = block_of(model, layer - 1, LINEAR_BACKWARD).fcproj;
    }
    normalize_backward(model, gpu, b.ln1, false, below, a.dln, a.residual, N);
}

// Adds the gradients of a batch to model->grads after its model_forward and model_loss, from the last layer to the
// first. Sends each bucket to the other ranks when it is done. tokens and order (B,T) are on the GPU.
static void model_backward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, const int32_t *order,
                           int B, int T, const BatchRole *role) {
    Range range("backward");
    int C = model->config.channels, L = model->config.num_layers;
    const Activations *a = &model->acts;
    gpu->reduces = sends_gradients(shards, model->grads, role->last);
    begin_gradient(shards, model->grads, L, role->first);
    normalize_backward(model, gpu, lnf_of(model), true, block_of(model, L - 1, LINEAR_BACKWARD).fcproj, a->dlnf.data,
                       a->residual.of(L), (int64_t)B * T);
    for (int layer = L - 1; layer >= 0; layer--) {
        int bucket = 1 + layer;
        if (layer > 0) { fetch_bucket(shards, model->params, bucket - 1); }
        await_bucket(shards, model->params, bucket);
        quantize_passing_weights(model, gpu, shards, layer);
        recompute_layer(model, gpu, layer, B, T);
        block_backward_mlp(model, gpu, block_of(model, layer, LINEAR_BACKWARD), (int64_t)B * T);
        block_backward_attention(model, gpu, shards, layer, B, T, role);
        release_bucket(shards, model->params, bucket);
        end_gradient(shards, model->grads, bucket, role->last);
    }
    Tensors<float> g = grads_of_layer(model, 0);
    embedding_backward(g.wte, g.wpe, a->dresidual.data, tokens, order, B, T, C, gpu->stream);
    end_gradient(shards, model->grads, 0, role->last);
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. Update

// Computes a checksum of the parameters if every rank holds them all. If a memory or network fault has changed a bit,
// every rank finds out before the next update. Sums no optimizer state, so that this takes no longer than the update.
static void sum_weights(Trainer *t) {
    int64_t whole = zero_offset(&t->shards.layout, t->shards.layout.num_buckets) * (int64_t)sizeof(floatX);
    cuda_check(cudaMemsetAsync(t->transfer.checksum, 0, sizeof(uint64_t), t->gpu.stream));
    if (has_peers(&t->shards) && !t->model.params.parts) {
        add_checksum(t->transfer.checksum, t->model.params.data, whole, t->gpu.stream);
    }
}

// Describes this rank's part of the gradients of `repeats` buckets, from `bucket` on.
static NormPart norm_part(const Model *model, int bucket, int64_t repeats) {
    NormPart part = {bucket_part(model->shards, model->grads, bucket), zero_shard(&model->shards->layout, bucket),
                     repeats, bucket_stride(model->shards, model->grads)};
    return part;
}

// Writes this rank's record: its loss, its sum of squared gradients, its checksum.
static void record_gradient(Trainer *t) {
    NormPart outside = norm_part(&t->model, 0, 1), blocks = norm_part(&t->model, 1, t->model.config.num_layers);
    global_norm_squared(t->stats.norm_partials, &outside, &blocks, t->gpu.stream);
    sum_weights(t);
    step_record(t->stats.records + t->model.shape.rank, t->stats.norm_partials,
                norm_part_doubles(&outside) + norm_part_doubles(&blocks), t->stats.loss_sum,
                &t->stats.input->wants_to_end, t->transfer.checksum, t->gpu.stream);
}

// Reduces loss and gradient norm to t->stats.result, with equal bits on all ranks, and copies the result to the host.
// loss_factor turns the sum of the losses into their mean. Copies the step's input to the GPU first.
static void reduce_step(Trainer *t, double loss_factor, double grad_clip, const StepInput *input, int slot) {
    StepRecord *record = t->stats.records + t->model.shape.rank;
    compute_after_communicate(&t->shards);
    t->stats.inputs[slot] = *input; // the slot's earlier step is settled
    cuda_check(cudaMemcpyAsync(t->stats.input, &t->stats.inputs[slot], sizeof(StepInput), cudaMemcpyHostToDevice,
                               t->gpu.stream));
    cuda_graph_launch_or_queue(&t->gpu.graphs, &t->gpu.norm_graph, "norm", t->gpu.stream, [&] {
        Range range("norm");
        record_gradient(t);
        gather_results(&t->shards, t->stats.records, record, (int64_t)sizeof(*record));
        step_finish(t->stats.result, t->stats.records, t->model.shape.num_ranks, loss_factor, (float)grad_clip,
                    t->gpu.stream);
    });
    cuda_check(cudaMemcpyAsync(&t->stats.results[slot], t->stats.result, sizeof(StepResult), cudaMemcpyDeviceToHost,
                               t->gpu.stream));
    cuda_check(cudaEventRecord(t->stats.reduced[slot], t->gpu.stream));
}

// Describes the part of `repeats` buckets, from `bucket` on, that this rank updates. It holds the moments of this part.
static AdamWPart update_part(const Model *model, const Optimizer *optimizer, int bucket, int64_t repeats) {
    const ZeroLayout *zero = &model->shards->layout;
    bool all = !optimizer->m.parts;
    int64_t begin = all ? 0 : zero_begin(zero, bucket, model->shape.rank);
    int64_t end = all ? zero_size(zero, bucket) : zero_end(zero, bucket, model->shape.rank);
    auto from = [&](auto array) { return bucket_element(model->shards, array, bucket, begin); };
    AdamWPart part = adamw_part(from(model->params), from(optimizer->master), from(optimizer->m), from(optimizer->v),
                                from(model->grads), end - begin, zero_first_index(zero, bucket) + begin);
    part.decayed = zero_decayed(zero, bucket) - begin; // negative if the part begins after the decayed tensors
    part.repeats = repeats;
    part.params_stride = bucket_stride(model->shards, model->params);
    part.state_stride = bucket_stride(model->shards, optimizer->m);
    part.grads_stride = bucket_stride(model->shards, model->grads);
    part.index_stride = zero_size(zero, 1);
    return part;
}

// Updates all buckets with AdamW, or this rank's parts of them.
static void update_all(Trainer *t) {
    AdamWPart outside = update_part(&t->model, &t->optimizer, 0, 1),
              blocks = update_part(&t->model, &t->optimizer, 1, t->model.config.num_layers);
    cuda_graph_launch_or_queue(&t->gpu.graphs, &t->gpu.update_graph, "update", t->gpu.stream, [&] {
        Range range("update");
        adamw_update(&outside, &blocks, &t->stats.input->factors, t->stats.result, t->gpu.stream);
        quantize_all_weights(&t->model, &t->gpu);
    });
}

// Updates this rank's parts with AdamW and sends them to the other ranks: each bucket while the next one is updated.
// Nothing waits here: the next forward pass waits for each bucket before it reads it (await_bucket), and all other
// readers wait for all parameters (await_parameters).
static void update_and_share(Trainer *t) {
    Range range("update");
    for (int b = 0; b < t->shards.layout.num_buckets; b++) {
        AdamWPart part = update_part(&t->model, &t->optimizer, b, 1);
        adamw_update(&part, NULL, &t->stats.input->factors, t->stats.result, t->gpu.stream);
        share_updated_bucket(&t->shards, t->model.params, b);
    }
    t->shards.gathering = true;
}

// Runs AdamW with the factors of reduce_step's input. The kernels read the gradient's scale from t->stats.result. They
// change nothing if it says that the loss or the norm is not a number, or that the ranks' weights differ. Later steps
// change nothing either, until the host has read the result.
static void gpt2_update(Trainer *t) {
    if (t->optimizer.m.parts && !t->model.params.parts) {
        update_and_share(t);
        return;
    }
    update_all(t);
    if (t->model.params.parts) {
        communicate_after_compute(&t->shards);
        forget_fetched(&t->shards);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. A training step

// Returns a slot for the next batch. Its staging memory is free to be written.
static BatchSlot *next_slot(Feeder *feeder, Shards *shards) {
    BatchSlot *slot = &feeder->slots[feeder->batches++ % NUM_SLOTS];
    wait_for_event(shards, slot->uploaded); // the slot's last batch was uploaded long ago
    return slot;
}

// Copies a slot's N rows to the GPU on the copy stream, beside the work on the batch before. Kernels launched on
// gpu->stream after this call may read them.
static void upload_batch(Feeder *feeder, Gpu *gpu, BatchSlot *slot, int64_t N) {
    cuda_check(cudaStreamWaitEvent(feeder->copy_stream, slot->no_longer_used, 0));
    cuda_check(cudaMemcpyAsync(slot->device, slot->staging, (size_t)(3 * N) * sizeof(int32_t), cudaMemcpyHostToDevice,
                               feeder->copy_stream));
    cuda_check(cudaEventRecord(slot->uploaded, feeder->copy_stream));
    cuda_check(cudaStreamWaitEvent(gpu->stream, slot->uploaded, 0));
}

static void order_tokens(Trainer *t, BatchSlot *slot, int64_t N) {
    embedding_order_tokens(slot->staging + 2 * N, slot->staging, N, t->model.config.vocab_size, t->feeder.token_counts);
}

static void release_batch(Gpu *gpu, BatchSlot *slot) { cuda_check(cudaEventRecord(slot->no_longer_used, gpu->stream)); }

// Runs the forward, and the backward if role->trains, of the N = B*T rows in a slot's staging memory. The caller has
// written tokens and targets there, and for an evaluation the flags of the losses that count. With --cuda-graph each
// pass of a training micro-batch is a CUDA graph.
static void run_batch(Trainer *t, BatchSlot *slot, int B, int T, const BatchRole *role) {
    int64_t N = (int64_t)B * T;
    const int32_t *tokens = slot->device, *targets = tokens + N, *order = targets + N, *counts = order;
    CudaGraph *graphs = t->gpu.pass_graphs[slot - t->feeder.slots][role->first];
    auto run_pass = [&](int pass, const char *name, auto queue) {
        if (!role->trains) { return queue(); }
        cuda_graph_launch_or_queue(&t->gpu.graphs, &graphs[pass], name, t->gpu.stream, queue);
    };
    bool has_shape = B == t->model.shape.B && T == t->model.shape.T;
    cuda_require(!role->trains || !t->gpu.graphs.wanted || has_shape); // a graph has one shape
    comm_waits(t->shards.ranks, true); // the host waits here if the GPU's queue is full: see nccl_queued
    if (role->means == NULL) { order_tokens(t, slot, N); }
    upload_batch(&t->feeder, &t->gpu, slot, N);
    run_pass(PASS_FORWARD, "forward", [&] {
        model_forward(&t->model, &t->gpu, &t->shards, tokens, B, T,
                      role->trains ? LINEAR_FOR_GRADIENTS : LINEAR_FOR_LOSS);
    });
    run_pass(PASS_LM_HEAD, "lm_head", [&] { model_loss(&t->model, &t->gpu, &t->shards, targets, N, role); });
    if (role->trains) {
        run_pass(PASS_BACKWARD, "backward",
                 [&] { model_backward(&t->model, &t->gpu, &t->shards, tokens, order, B, T, role); });
    }
    if (role->means != NULL) { mean_losses(role->means, t->model.acts.losses.data, counts, B, T, t->gpu.stream); }
    release_batch(&t->gpu, slot);
}

static StopRequest stop_request;
static void on_signal(int number) { stop_on_signal(&stop_request, number); }

// Describes the i-th micro-batch of a step of this run.
static BatchRole training_role(Trainer *t, const TrainRun *run, int64_t i) {
    BatchRole role;
    role.trains = true;
    role.first = i == 0, role.last = i == run->micro_batches - 1;
    role.dloss = 1.0f / (float)run->options.total_batch;
    role.loss_sum = t->stats.loss_sum;
    return role;
}

// Queues all micro-batches of the step at the run's position, which add up its gradient. If the run is asked to stop
// between two of them, sets *interrupted and returns early. Nothing is lost: a resumed run begins the step anew. A rank
// with peers is not interrupted: it finishes the step.
static bool accumulate_gradient(Trainer *t, TrainRun *run, bool *interrupted, Error *error) {
    *interrupted = false;
    int B = (int)run->options.batch_size, T = (int)run->options.seq_len;
    int64_t N = (int64_t)B * T;
    zero_gradients(&t->shards, t->model.grads);
    for (int64_t i = 0; i < run->micro_batches; i++) {
        *interrupted = !has_peers(&t->shards) && is_stopping(&stop_request) && i > 0;
        if (*interrupted) { return true; }
        comm_progress_to(t->shards.ranks, "step", run->step + 1);
        BatchSlot *slot = next_slot(&t->feeder, &t->shards);
        BatchRole role = training_role(t, run, i);
        if (!run_read_batch(run, i, slot->staging, slot->staging + N, error)) { return false; }
        run_batch(t, slot, B, T, &role);
    }
    return true;
}

// Returns the weight of one row's loss in the mean loss, for reduce_step.
static double loss_factor(const TrainRun *run) { return 1.0 / (double)run->options.total_batch; }

// Logs once that the driver refused to make graphs.
static void report_refusal(Trainer *t, TrainRun *run) {
    if (t->gpu.graphs.refusal[0] == '\0') { return; }
    logger_event(&run->logger, "%s", t->gpu.graphs.refusal);
    t->gpu.graphs.refusal[0] = '\0';
}

static void print_gpu_state(Trainer *t, TrainRun *run) {
    char text[160];
    if (!gpu_monitor_text(&t->gpu.device.monitor, text, sizeof(text))) { return; }
    logger_event(&run->logger, "step %lld: %s", (long long)run->step, text);
}

// ---- Results that arrive late ----
//
// The GPU must never wait for the host. The host therefore queues a step without waiting for its loss and norm, and
// reads them while the next step runs: one step waits in stats.pending until settle_step logs it. The GPU itself
// decides whether a step may update the weights (step_finish, adamw_update), so a NaN that the host sees late has
// changed nothing. Only a run that skips outliers (--skip-loss-z, --skip-grad-z) waits for the step's loss and norm.

// Begins a step: takes a slot for its events and records its beginning.
static PendingStep begin_step(Trainer *t, const TrainRun *run) {
    const TrainOptions *o = &run->options;
    Schedule schedule = schedule_named(o->schedule, o->lr, o->warmup, run->num_steps, o->final_lr_frac);
    PendingStep step;
    memset(&step, 0, sizeof(step));
    step.waiting = true;
    step.adjoins = t->stats.pending.waiting; // else the loop has settled it, to do something between the steps
    step.slot = (int)(t->stats.steps_begun++ % NUM_STEPS);
    step.next_sequence = run->next_sequence;
    step.info = run_begin_step(run, schedule_lr(&schedule, run->step));
    cuda_check(cudaEventRecord(t->stats.begun[step.slot], t->gpu.stream));
    return step;
}

// Names the tensor where a NaN or an infinity of a step began: see section 8. Returns false.
static bool explain_stop(Trainer *t, TrainRun *run, const PendingStep *step, const StepResult *result, Error *error);

// Waits for the loss and norm of a step. Fails if the GPU refused to update the weights with them.
static bool read_result(Trainer *t, TrainRun *run, PendingStep *step, Error *error) {
    wait_for_event(&t->shards, t->stats.reduced[step->slot]);
    const StepResult *result = &t->stats.results[step->slot];
    stop_request.agreed = stop_request.agreed || result->wants_to_end != 0;
    if (result->stopped == STEP_WEIGHTS_DIFFER) {
        return comm_fail_replicas(t->shards.ranks, (int)result->odd_one, run->step, error);
    }
    if (result->stopped) { return explain_stop(t, run, step, result, error); }
    step->info.loss = result->loss;
    step->info.norm = result->norm;
    step->is_read = true;
    return true;
}

// Adds a step's loss and norm to the statistics of outliers. True if the step is an outlier whose update is skipped.
static bool is_outlier(Trainer *t, TrainRun *run, const StepInfo *info) {
    char why[96];
    double loss_limit = run->options.skip_loss_z, norm_limit = run->options.skip_grad_z;
    bool skip = outliers_skip(&t->stats.outliers, info->loss, info->norm, loss_limit, norm_limit, why, sizeof(why));
    if (skip) { run_report_skip(run, info->step, why); }
    return skip;
}

// Returns the seconds of a step. They count from the end of an adjoining step before it, which includes gaps, or else
// from the step's beginning.
static double measured_seconds(const StepStats *stats, const PendingStep *step) {
    float milliseconds = 0.0f;
    int before = (step->slot + NUM_STEPS - 1) % NUM_STEPS;
    cudaEvent_t begin = step->adjoins ? stats->done[before] : stats->begun[step->slot];
    cuda_check(cudaEventElapsedTime(&milliseconds, begin, stats->done[step->slot]));
    return 1e-3 * (double)milliseconds;
}

// Waits for the pending step's results and logs them. Does nothing if no step is pending.
static bool settle_step(Trainer *t, TrainRun *run, Error *error) {
    PendingStep *step = &t->stats.pending;
    if (!step->waiting) { return true; }
    step->waiting = false;
    if (!step->is_read) {
        if (!read_result(t, run, step, error)) { return false; }
        is_outlier(t, run, &step->info); // no limits are set, so this only keeps the statistics
    }
    wait_for_event(&t->shards, t->stats.done[step->slot]);
    step->info.seconds = measured_seconds(&t->stats, step);
    comm_expects(t->shards.ranks, step->info.seconds / (double)run->micro_batches);
    if (t->gpu.device.peak_flops > 0.0) {
        double peak = t->gpu.device.peak_flops * t->model.shape.num_ranks;
        step->info.peak_fraction = run_peak_fraction(run, step->info.seconds, peak);
    }
    return logger_step(&run->logger, &step->info, error);
}

// Decides whether a step updates the weights. The host waits here only in a run that skips outliers.
static bool decide_update(Trainer *t, TrainRun *run, PendingStep *step, bool *skip, Error *error) {
    *skip = false;
    if (run->options.skip_loss_z <= 0.0 && run->options.skip_grad_z <= 0.0) { return true; }
    if (!settle_step(t, run, error) || !read_result(t, run, step, error)) { return false; }
    *skip = is_outlier(t, run, &step->info);
    return true;
}

// Logs the step before while the GPU works on the queued step, which becomes the pending step.
static bool queue_results(Trainer *t, TrainRun *run, const PendingStep *step, Error *error) {
    cuda_check(cudaEventRecord(t->stats.done[step->slot], t->gpu.stream));
    report_refusal(t, run);
    if (!settle_step(t, run, error)) { return false; }
    t->stats.pending = *step;
    return true;
}

// ---- The step ----

// Returns the input of a step that makes the next update.
static StepInput step_input(const TrainRun *run, double lr) {
    const TrainOptions *o = &run->options;
    int64_t update = run->updates + 1;
    StepInput input;
    input.factors = adamw_factors((float)lr, (float)o->beta1, (float)o->beta2, (float)o->adam_eps,
                                  (float)o->weight_decay, update, rounding_key((uint64_t)o->seed, update));
    input.wants_to_end = stop_request.asked != 0;
    return input;
}

// Queues one step: the gradients of all micro-batches, their sum over the ranks, the update. Logs the step before.
static bool train_step(Trainer *t, TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    bool interrupted, skip;
    PendingStep step = begin_step(t, run);
    if (!accumulate_gradient(t, run, &interrupted, error)) { return false; }
    if (interrupted) { return settle_step(t, run, error); }
    StepInput input = step_input(run, step.info.lr);
    reduce_step(t, loss_factor(run), o->grad_clip, &input, step.slot);
    if (!decide_update(t, run, &step, &skip, error)) { return false; }
    if (!skip) { gpt2_update(t); }
    run->updates += !skip;
    if (!queue_results(t, run, &step, error)) { return false; }
    run_advance(run);
    if (o->gpu_log_every > 0 && run->step % o->gpu_log_every == 0) { print_gpu_state(t, run); }
    return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// 6. Validation, questions, samples

// Queues a batch of a validation. The sum of its losses goes to its place in val_sums, in GPU memory.
static bool validate_batch(Trainer *t, TrainRun *run, Round round, Error *error) {
    Range range("validation");
    int64_t first = round.batch * run->options.batch_size, T = run->options.seq_len;
    int rows = (int)min_i64(run->options.batch_size, t->model.shape.val_sequences - first);
    BatchRole role;
    comm_progress_to(t->shards.ranks, "the validation after step", run->step);
    role.loss_sum = t->evaluation.val_sums + t->model.shape.rank * round.rounds + round.number;
    BatchSlot *slot = next_slot(&t->feeder, &t->shards);
    if (!dataloader_read(&run->val, first, rows, slot->staging, slot->staging + rows * T, error)) { return false; }
    run_batch(t, slot, rows, (int)T, &role);
    return true;
}

// Brings a result of each round and rank, (ranks, rounds, size), to all hosts. Each rank has computed its own.
static void gather_rounds(Trainer *t, double *host, double *device, Round last, int64_t size) {
    int64_t ranks = t->model.shape.num_ranks, own = last.rounds * size;
    gather_results(&t->shards, device, device + t->model.shape.rank * own, own * (int64_t)sizeof(double));
    cuda_check(
        cudaMemcpyAsync(host, device, (size_t)(ranks * own) * sizeof(double), cudaMemcpyDeviceToHost, t->gpu.stream));
    wait_for_stream(&t->shards);
}

// Returns the place of a batch's result in the gathered results.
static int64_t place_of(const Trainer *t, Round last, int64_t batch) {
    int64_t ranks = t->model.shape.num_ranks;
    return batch % ranks * last.rounds + batch / ranks;
}

// Adds up the sums of all batches in the order of the batches, which gives equal bits on any number of ranks.
static double validation_loss(Trainer *t, TrainRun *run, Round last) {
    double sum = 0.0;
    gather_rounds(t, t->evaluation.host_val_sums, t->evaluation.val_sums, last, 1);
    for (int64_t i = 0; i < last.batches; i++) { sum += t->evaluation.host_val_sums[place_of(t, last, i)]; }
    return sum / (double)(t->model.shape.val_sequences * run->options.seq_len);
}

// Writes to counts (rows, T) which losses of a batch count: 1 or 0.
static void count_scored(const EvalLoader *eval, EvalBatch batch, int32_t *counts) {
    for (int i = 0; i < batch.rows; i++) {
        int begin, end;
        eval_scored(eval, eval->order[batch.first + i], batch.T, &begin, &end);
        for (int t = 0; t < batch.T; t++) { counts[i * batch.T + t] = t >= begin && t < end; }
    }
}

// Queues a batch of an evaluation. The mean losses of its rows go to their place in eval_means, in GPU memory. The host
// is one round ahead of the GPU.
static void evaluate_batch(Trainer *t, TrainRun *run, int which, Round round) {
    Range range("evaluation");
    const EvalLoader *eval = &run->evals[which];
    EvalBatch batch = eval_batch(eval, round.batch);
    int64_t N = (int64_t)batch.rows * batch.T, places = round.rounds * eval->B;
    char phase[48];
    BatchRole role;
    snprintf(phase, sizeof(phase), "%s after step", run_evals[which].name);
    comm_progress_to(t->shards.ranks, phase, run->step);
    if (round.number == 0) { // all places are sent, and a batch may fill fewer than eval->B
        cuda_check(cudaMemsetAsync(t->evaluation.eval_means, 0,
                                   (size_t)(t->model.shape.num_ranks * places) * sizeof(double), t->gpu.stream));
    }
    role.means = t->evaluation.eval_means + t->model.shape.rank * places + round.number * eval->B;
    BatchSlot *slot = next_slot(&t->feeder, &t->shards);
    eval_read(eval, &batch, slot->staging, slot->staging + N);
    count_scored(eval, batch, slot->staging + 2 * N);
    run_batch(t, slot, batch.rows, batch.T, &role);
    if (round.number > 0) { wait_for_event(&t->shards, t->evaluation.evaluated); }
    cuda_check(cudaEventRecord(t->evaluation.evaluated, t->gpu.stream));
}

// Brings the means of all batches to all hosts, and puts each mean at the place of its row.
static const double *evaluation_means(Trainer *t, TrainRun *run, int which, Round last) {
    const EvalLoader *eval = &run->evals[which];
    gather_rounds(t, t->evaluation.host_eval_means, t->evaluation.eval_means, last, eval->B);
    for (int64_t number = 0; number < last.batches; number++) {
        EvalBatch batch = eval_batch(eval, number);
        const double *means = t->evaluation.host_eval_means + place_of(t, last, number) * eval->B;
        for (int i = 0; i < batch.rows; i++) { t->evaluation.row_means[eval->order[batch.first + i]] = means[i]; }
    }
    return t->evaluation.row_means;
}

static void append_token(Trainer *t, int token) {
    sampler_append(t->sample.history_staging, &t->sample.history_length, t->model.shape.T, token);
}

// Computes the logits (V) of the token after the sample so far, by a forward pass over the whole window. The tokens in
// the window after the sample have no influence, because attention is causal.
static const float *next_logits(Trainer *t) {
    int T = t->model.shape.T, C = t->model.config.channels, V = t->model.config.vocab_size,
        last = t->sample.history_length - 1;
    cuda_check(cudaMemcpyAsync(t->sample.history, t->sample.history_staging, (size_t)T * sizeof(int32_t),
                               cudaMemcpyHostToDevice, t->gpu.stream));
    comm_progress(t->shards.ranks, "a sample");
    model_forward(&t->model, &t->gpu, &t->shards, t->sample.history, 1, T, LINEAR_FOR_LOSS);
    count_on(&t->gpu, false);
    linear_forward(&t->gpu.cublas, lm_head_of(&t->model), t->model.acts.logits.data, NULL,
                   t->model.acts.lnf.data + (int64_t)last * C, 1, t->gpu.stream);
    cuda_check(cudaMemcpyAsync(t->sample.pinned_logits, t->model.acts.logits.data, (size_t)V * sizeof(floatX),
                               cudaMemcpyDeviceToHost, t->gpu.stream));
    wait_for_stream(&t->shards);
    memcpy(t->sample.logits, t->sample.pinned_logits, (size_t)V * sizeof(floatX));
    widen_in_place(t->sample.logits, V);
    return t->sample.logits;
}

static float *begin_sample(Trainer *t) {
    t->sample.history_length = 0;
    memset(t->sample.history_staging, 0, (size_t)t->model.shape.T * sizeof(int32_t));
    return t->sample.probs;
}

// ---------------------------------------------------------------------------------------------------------------------
// 7. The plan of all memory: every buffer is a row

// The type of a row follows from its pointer. A struct counts as so many doubles.
static PlanType plan_type(const float *) { return PLAN_F32; }
static PlanType plan_type(const int32_t *) { return PLAN_I32; }
[[maybe_unused]] static PlanType plan_type(const __nv_bfloat16 *) { return PLAN_BF16; } // not in the fp32 build
static PlanType plan_type(const void *) { return PLAN_F64; }
template <class T> static constexpr int64_t doubles_in() {
    static_assert(sizeof(T) % sizeof(double) == 0, "a struct is planned as doubles");
    return (int64_t)(sizeof(T) / sizeof(double));
}

template <class T>
static void plan_row(MemoryPlan *plan, T **pointer, const char *name, PlanCategory category, PlanShape shape,
                     int first = FORWARD, int last = UPDATE) {
    plan_add(plan, pointer, name, category, plan_type(*pointer), shape, first, last);
}

template <class T>
static void plan_buckets(MemoryPlan *plan, Buckets<T> *array, const char *name, PlanCategory category, int64_t length,
                         bool parts) {
    array->parts = parts;
    plan_row(plan, &array->data, name, category, shape1(length));
}

// Plans this rank's parts of parameters, gradients and optimizer state.
static void plan_state(Trainer *t, MemoryPlan *plan) {
    int stage = t->model.shape.zero_stage;
    bool trains = t->model.shape.kind == RUN_TRAINS, in_parts = stage >= ZERO_OPTIMIZER;
    ZeroLengths n = zero_lengths(&t->shards.layout, stage);
    if (!trains) { n.master = n.grads = n.m = n.v = n.grad_slots = 0; }
    if (!t->model.shape.has_master) { n.master = 0; }
    plan_buckets(plan, &t->model.params, "params", PLAN_PARAMETER, n.params, stage >= ZERO_PARAMETERS);
    plan_buckets(plan, &t->optimizer.master, "master", PLAN_OPTIMIZER, n.master, in_parts);
    plan_buckets(plan, &t->model.grads, "grads", PLAN_GRADIENT, n.grads, stage >= ZERO_GRADIENTS);
    plan_buckets(plan, &t->optimizer.m, "adam_m", PLAN_OPTIMIZER, n.m, in_parts);
    plan_buckets(plan, &t->optimizer.v, "adam_v", PLAN_OPTIMIZER, n.v, in_parts);
    plan_row(plan, &t->model.params.slots, "param_slots", PLAN_PARAMETER, shape1(n.param_slots));
    // A micro-batch's last gradients are still being sent during the next micro-batch's forward pass.
    plan_row(plan, &t->model.grads.slots, "grad_slots", PLAN_GRADIENT, shape1(n.grad_slots));
}

// Finds the slots of all activations.
static void activation_slots(Activations *acts, ActSlot slots[NUM_ACTIVATIONS]) {
    int n = 0;
#define ACTIVATION_SLOT(name, ...) slots[n++] = {&acts->name.data, &acts->name.stride};
    GPT2_ACTIVATIONS(ACTIVATION_SLOT)
}

// With --head-overlap the losses of a chunk are computed beside the logits of the next chunk, so two chunks exist.
static ActShape activation_shape(const Model *model) {
    const RunShape *run = &model->shape;
    int64_t N = (int64_t)run->B * run->T, chunk = min_i64(N, run->head_rows);
    int level = run->kind == RUN_TRAINS ? run->recompute : NO_BACKWARD, chunks = run->head_overlap && chunk < N ? 2 : 1;
    return {model->config, N, linear_rows(run->fp8, N), chunk, chunks, level, run->fp8, ON_GPU, PLAN_FLOATX};
}

// Plans the activations from `first` to `last`.
static void plan_activations(Model *model, MemoryPlan *plan, int first, int last) {
    ActShape shape = activation_shape(model);
    ActSlot slots[NUM_ACTIVATIONS];
    model->head_rows = (int)shape.chunk_rows;
    activation_slots(&model->acts, slots);
    for (int i = first; i <= last; i++) { plan_activation(plan, &shape, i, slots[i]); }
}

// Plans the 8-bit copies of --fp8.
static void plan_fp8(Model *model, MemoryPlan *plan, int64_t N) {
#define FP8_ROW(ID, name, inp, level)                                                                                  \
    {#name "w_fp8",                                                                                                    \
     #name "w_fp8_t",                                                                                                  \
     #inp "_fp8_t",                                                                                                    \
     (int)gpt2_param_cols(&model->config, PARAM_##name##w),                                                            \
     (int)gpt2_param_rows(&model->config, PARAM_##name##w),                                                            \
     model->shape.recompute < level},
    const Fp8PlanRow rows[NUM_LINEARS] = {BLOCK_LINEARS(FP8_ROW)};
    const Fp8PlanShape shape = {model->config.num_layers, N,       model->shape.kind == RUN_TRAINS,
                                !model->params.parts,     FORWARD, BACKWARD_MLP,
                                BACKWARD_ATTENTION,       UPDATE};
    fp8_plan(&model->fp8, plan, rows, NUM_LINEARS, &shape);
}

// The layers that sum over rows take turns with one scratch buffer.
static int64_t sum_scratch_floats(int64_t N, int C) {
    int64_t most = max_i64(layernorm_backward_scratch_floats(N, C), gelu_backward_scratch_floats(N, 4 * C));
    for (int width = C; width <= 4 * C; width += C) {
        most = max_i64(most, linear_backward_bias_scratch_floats(N, width));
    }
    return most;
}

// Returns the number of partial sums of squares of this rank's gradients. The buckets' sums lie one behind the other.
static int64_t norm_partials(const Trainer *t) {
    const ZeroLayout *zero = &t->shards.layout;
    return global_norm_scratch_doubles(zero_shard(zero, 0)) +
           t->model.config.num_layers * global_norm_scratch_doubles(zero_shard(zero, 1));
}

// Describes the attention that cuDNN computes.
static CudnnShape cudnn_shape(const Model *model) {
    const RunShape *run = &model->shape;
    return {run->B, run->T, model->config.channels, model->config.num_heads, run->repeats};
}

static void plan_backward(Trainer *t, MemoryPlan *plan, int64_t N) {
    int C = t->model.config.channels, NH = t->model.config.num_heads, from = BACKWARD_ATTENTION, to = from;
    CudnnShape attention = cudnn_shape(&t->model);
    int64_t cudnn_bytes = t->model.shape.cudnn ? cudnn_att_backward_bytes(&attention) : 0;
    plan_activations(&t->model, plan, ACT_dresidual, ACT_dqkv);
    plan_row(plan, &t->gpu.cudnn_backward, "cudnn_backward", PLAN_WORKSPACE, shape1(ceil_div_i64(cudnn_bytes, 4)), from,
             to);
    plan_row(plan, &t->model.att_delta, "att_delta", PLAN_WORKSPACE, shape2(N, NH), from, to);
    plan_row(plan, &t->model.sum_scratch, "sum_scratch", PLAN_WORKSPACE, shape1(sum_scratch_floats(N, C)), LM_HEAD, to);
    plan_row(plan, &t->stats.norm_partials, "norm_partials", PLAN_WORKSPACE, shape1(norm_partials(t)), UPDATE);
}

// Returns the rounds of a validation. In each round every rank takes one batch.
static int64_t validation_rounds(const Model *model) {
    return ceil_div_i64(ceil_div_i64(model->shape.val_sequences, model->shape.B), model->shape.num_ranks);
}

// Plans everything on the GPU for batches of at most N rows.
static void plan_device(Trainer *t, int64_t N) {
    MemoryPlan *plan = &t->device_plan;
    const RunShape *run = &t->model.shape;
    PlanCategory work = PLAN_WORKSPACE;
    bool trains = run->kind == RUN_TRAINS;
    int64_t whole = max_i64(zero_padded(&t->shards.layout, 0), zero_padded(&t->shards.layout, 1));
    int64_t cudnn_bytes = run->cudnn ? CUDNN_ATT_SLACK : 0, rounds = validation_rounds(&t->model);
    plan_init(plan, phase_names);
    plan_state(t, plan);
    plan_row(plan, &t->feeder.slots[0].device, "batch_0", PLAN_DATA, shape2(3, N));
    plan_row(plan, &t->feeder.slots[1].device, "batch_1", PLAN_DATA, shape2(3, N));
    plan_row(plan, &t->sample.history, "history", PLAN_DATA, shape1(run->T));
    plan_activations(&t->model, plan, ACT_residual, ACT_fc);
    if (run->fp8) { plan_fp8(&t->model, plan, N); }
    plan_activations(&t->model, plan, ACT_gelu, ACT_logits);
    if (trains) { plan_backward(t, plan, N); }
    plan_row(plan, &t->stats.loss_sum, "loss_sum", work, shape1(1));
    plan_row(plan, &t->stats.input, "step_input", work, shape1(trains * doubles_in<StepInput>()));
    plan_row(plan, &t->stats.records, "records", work, shape2(run->num_ranks, doubles_in<StepRecord>()), UPDATE);
    plan_row(plan, &t->stats.result, "result", work, shape1(doubles_in<StepResult>()));
    plan_row(plan, &t->evaluation.val_sums, "val_sums", work, shape2(run->num_ranks, rounds));
    plan_row(plan, &t->evaluation.eval_means, "eval_means", work, shape1(run->eval_means));
    plan_row(plan, &t->transfer.checksum, "checksum", work, shape1(1));
    plan_row(plan, &t->transfer.export_bucket, "export_bucket", work, shape1(run->exports ? whole : 0));
    plan_row(plan, &t->transfer.flag, "flag", work, shape1(1));
    plan_row(plan, &t->gpu.cublas_workspace, "cublas", work, shape1(run->cublas_bytes / 4));
    plan_row(plan, &t->gpu.cudnn_forward, "cudnn_forward", work, shape1(cudnn_bytes / 4), FORWARD, BACKWARD_ATTENTION);
    plan_layout(plan);
}

static_assert(STATE_MAX_CHUNK * (int64_t)sizeof(float) <= CUBLAS_SMALL_WORKSPACE,
              "parameters on their way to bf16 pass through cuBLAS's workspace");
static_assert((int)STATE_PARAMS == CHECKPOINT_PARAMS && (int)STATE_ADAM_M == CHECKPOINT_ADAM_M &&
                  (int)STATE_ADAM_V == CHECKPOINT_ADAM_V,
              "the arrays of a checkpoint are those on the GPU");

// Plans the host's pinned memory, for copies to and from the GPU, and its ordinary memory.
static void plan_host(Trainer *t, int64_t N) {
    const GPT2Config *config = &t->model.config;
    const RunShape *run = &t->model.shape;
    MemoryPlan *pinned = &t->pinned_plan, *host = &t->host_plan;
    int64_t V = config->vocab_size, collected = run->exports && run->rank == 0 ? gpt2_num_params(config) : 0;
    PlanCategory data = PLAN_DATA, work = PLAN_WORKSPACE;
    plan_init(pinned, host_phase_names);
    plan_row(pinned, &t->feeder.slots[0].staging, "staging_0", data, shape2(3, N), 0, 0);
    plan_row(pinned, &t->feeder.slots[1].staging, "staging_1", data, shape2(3, N), 0, 0);
    plan_row(pinned, &t->stats.inputs, "step_inputs", data, shape2(NUM_STEPS, doubles_in<StepInput>()), 0, 0);
    plan_row(pinned, &t->stats.results, "results", data, shape2(NUM_STEPS, doubles_in<StepResult>()), 0, 0);
    plan_row(pinned, &t->evaluation.host_val_sums, "val_sums", data,
             shape2(run->num_ranks, validation_rounds(&t->model)), 0, 0);
    plan_row(pinned, &t->evaluation.host_eval_means, "eval_means", data, shape1(run->eval_means), 0, 0);
    plan_row(pinned, &t->transfer.host_checksum, "checksum", data, shape1(1), 0, 0);
    plan_row(pinned, &t->transfer.staging, "staging", data, shape1(state_chunk_floats(&t->shards.layout)), 0, 0);
    plan_row(pinned, &t->sample.pinned_logits, "sample_logits", data, shape1(config->padded_vocab_size), 0, 0);
    plan_row(pinned, &t->sample.history_staging, "history_staging", data, shape1(run->T), 0, 0);
    plan_layout(pinned);
    plan_init(host, host_phase_names);
    plan_row(host, &t->transfer.host_params, "host_params", PLAN_PARAMETER, shape1(collected), 0, 0);
    plan_row(host, &t->evaluation.row_means, "row_means", work, shape1(run->eval_rows), 0, 0);
    plan_row(host, &t->sample.logits, "host_logits", work, shape1(V), 0, 0);
    plan_row(host, &t->sample.probs, "sampler_probs", work, shape1(V), 0, 0);
    plan_row(host, &t->feeder.token_counts, "token_counts", work, shape1(V + 1), 0, 0);
    plan_layout(host);
}

// Plans every buffer of a run.
static void gpt2_plan(Trainer *t, const GPT2Config *config, RunShape shape) {
    memset(t, 0, sizeof(*t));
    t->model.shards = &t->shards;
    shape.zero_stage = zero_effective_stage(shape.zero_stage, shape.num_ranks);
    t->model.config = *config, t->model.shape = shape;
    shards_plan(&t->shards, config, shape.rank, shape.num_ranks, shape.zero_stage);
    plan_device(t, (int64_t)shape.B * shape.T);
    plan_host(t, (int64_t)shape.B * shape.T);
}

// True if cuDNN takes attention of this run's shape.
static bool check_cudnn(const TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    CudnnShape shape = {(int)o->batch_size, (int)o->seq_len, run->config.channels, run->config.num_heads,
                        o->deterministic};
    return cudnn_att_check(&shape, error);
}

static RunShape choose_shape(const TrainRun *run) {
    const TrainOptions *o = &run->options;
    RunShape shape;
    Error why;
    memset(&shape, 0, sizeof(shape));
    shape.kind = run_kind(run);
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
        int64_t places = run->num_ranks * ceil_div_i64(eval_num_batches(&eval), run->num_ranks) * eval.B;
        shape.eval_means = max_i64(shape.eval_means, places);
        shape.eval_rows = max_i64(shape.eval_rows, eval.num_rows);
    }
    return shape;
}

// Collects everything on which the time of a planned model's step depends.
static StepShape step_shape(const Model *model, const TrainRun *run) {
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

// Plans the memory, traffic and shape of a step for llmc/run/gpu_choices.h. Allocates nothing.
static PlannedRun plan_run(void *context, const TrainRun *run, PlanVariant variant, const StepGpu *gpu,
                           Error *overflow) {
    Trainer *t = (Trainer *)context;
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
    gpt2_plan(t, &run->config, shape);
    PlannedRun planned;
    StepShape step = step_shape(&t->model, run);
    planned.B = shape.B;
    planned.bytes = t->device_plan.total;
    planned.overflows = !plan_check_overflow(&t->device_plan, overflow);
    step_rows_of_rank(&planned.rows, gpu, &step, t->model.shape.zero_stage);
    zero_step_bytes(&t->shards.layout, shape.zero_stage, (int)sizeof(floatX), run->micro_batches,
                    &planned.gradient_bytes, &planned.parameter_bytes);
    return planned;
}

static RunPlanner planner_of(Trainer *t) {
    RunPlanner planner = {plan_run, t, PRECISION_IS_FP32};
    return planner;
}

// ---------------------------------------------------------------------------------------------------------------------
// 8. Where a NaN began

template <class T> static bool find_nonfinite(Trainer *t, const T *data, int64_t n) {
    return any_nonfinite(data, n, t->transfer.flag, t->gpu.stream);
}

// Writes the name of the first tensor in this rank's part of `array` that holds a NaN or an infinity.
template <class T>
static bool name_nonfinite_tensor(Trainer *t, Buckets<T> array, const char *what, char *name, size_t size) {
    return !visit_own_part(&t->shards, array, [&](const T *data, const ZeroPiece &piece) {
        if (!find_nonfinite(t, data, piece.count)) { return true; }
        const GPT2ParamSpec *spec = &gpt2_param_specs[piece.tensor];
        int n = snprintf(name, size, "%s %s", what, spec->name);
        if (spec->per_layer) { snprintf(name + n, size - (size_t)n, " of layer %d", piece.layer); }
        return false;
    });
}

static bool activation_is_nonfinite(void *context, const void *data, PlanType type, int64_t n) {
    Trainer *t = (Trainer *)context;
    return type == PLAN_F32 ? find_nonfinite(t, (const float *)data, n) : find_nonfinite(t, (const floatX *)data, n);
}

// Names the activation where a NaN or an infinity first stands, in the order of the computation. The parameters are
// finite and the forward pass gave a loss that is not. The backward must not have run, since it overwrites some
// activations. Activations that were not kept for each layer are passed over.
static void name_nonfinite_activation(Trainer *t, int64_t N, char *name, size_t size) {
    ActShape shape = activation_shape(&t->model);
    ActSlot slots[NUM_ACTIVATIONS];
    activation_slots(&t->model.acts, slots);
    if (gpt2_find_nonfinite(slots, &shape, N, activation_is_nonfinite, t, name, size)) { return; }
    snprintf(name, size, "the losses");
}

// Runs one micro-batch of a failed step again. Sets *found if a rank's losses are not finite. *place then names the
// tensor where that began.
static bool repeat_batch(Trainer *t, TrainRun *run, int64_t i, bool *found, char *place, size_t size, Error *error) {
    int B = (int)run->options.batch_size, T = (int)run->options.seq_len;
    int64_t N = (int64_t)B * T;
    BatchSlot *slot = next_slot(&t->feeder, &t->shards);
    const int32_t *tokens = slot->device, *targets = tokens + N, *order = targets + N;
    BatchRole role = training_role(t, run, i);
    double sum = 0.0;
    if (!run_read_batch(run, i, slot->staging, slot->staging + N, error)) { return false; }
    order_tokens(t, slot, N);
    upload_batch(&t->feeder, &t->gpu, slot, N);
    model_forward(&t->model, &t->gpu, &t->shards, tokens, B, T, LINEAR_FOR_LOSS);
    model_loss(&t->model, &t->gpu, &t->shards, targets, N, &role);
    cuda_check(cudaMemcpyAsync(&sum, t->stats.loss_sum, sizeof(sum), cudaMemcpyDeviceToHost, t->gpu.stream));
    wait_for_stream(&t->shards);
    *found = !isfinite(sum);
    if (*found) { name_nonfinite_activation(t, N, place, size); }
    if (!comm_share_finding(t->shards.ranks, found, place, size, error)) { return false; }
    if (*found) { return true; }
    model_backward(&t->model, &t->gpu, &t->shards, tokens, order, B, T, &role);
    release_batch(&t->gpu, slot);
    return true;
}

// Computes the step's gradient again, a batch at a time, to name the tensor where a NaN or an infinity began. The
// weights are still those of that step, because no update has happened since (see gpt2_update). All ranks take part.
static bool explain_stop(Trainer *t, TrainRun *run, const PendingStep *step, const StepResult *result, Error *error) {
    char place[128] = "";
    await_parameters(&t->model, &t->gpu, &t->shards);
    bool found = name_nonfinite_tensor(t, t->model.params, "parameter", place, sizeof(place));
    bool loss_is_bad = result->stopped == STEP_LOSS_NOT_FINITE;
    if (!comm_share_finding(t->shards.ranks, &found, place, sizeof(place), error)) { return false; }
    run->next_sequence = step->next_sequence;
    zero_gradients(&t->shards, t->model.grads);
    for (int64_t i = 0; i < run->micro_batches && !found; i++) {
        if (!repeat_batch(t, run, i, &found, place, sizeof(place), error)) { return false; }
    }
    if (!found) {
        compute_after_communicate(&t->shards);
        found = name_nonfinite_tensor(t, t->model.grads, "gradient of", place, sizeof(place));
        if (!comm_share_finding(t->shards.ranks, &found, place, sizeof(place), error)) { return false; }
    }
    run_fail_nonfinite(run, step->info.step, loss_is_bad ? "loss" : "gradient norm",
                       loss_is_bad ? result->loss : result->norm, found ? place : "the sum of squares", error);
    comm_all_know(t->shards.ranks, error);
    return false;
}

// ---------------------------------------------------------------------------------------------------------------------
// 9. State

// Collects parameters and optimizer state for llmc/ranks/gpu_state.cuh.
static ModelState state_of(Trainer *t) {
    ModelState state = {
        &t->shards,          t->model.params,         t->optimizer.master,       t->optimizer.m,         t->optimizer.v,
        t->transfer.staging, t->gpu.cublas_workspace, t->transfer.export_bucket, t->transfer.host_params};
    return state;
}

// Reads the state for run_load. A fresh run has no reader (NULL), and its optimizer state stays zero. A resumed run
// rounds its bf16 weights as its last update rounded them.
static bool read_state(void *context, TrainRun *run, CheckpointReader *reader, Error *error) {
    Trainer *t = (Trainer *)context;
    ModelState state = state_of(t);
    uint64_t key = rounding_key((uint64_t)run->options.seed, run->updates);
    bool rounds =
        t->optimizer.master.data != NULL && run->updates > 0; // without master weights the parameters are exact
    int arrays = reader == NULL || t->model.shape.kind != RUN_TRAINS ? 1 : CHECKPOINT_ARRAYS;
    bool ok = true;
    state_clear(&state);
    cuda_check(cudaMemsetAsync(t->stats.result, 0, sizeof(StepResult), t->gpu.stream));
    for (int array = 0; ok && array < arrays; array++) {
        auto read = [&](float *to, int64_t in_file, int64_t n) {
            return reader == NULL ? run_read_params(run, in_file, n, to, error)
                                  : checkpoint_read(reader, array, in_file, to, n, error);
        };
        auto make_params = [&](floatX *params, const float *fp32, int64_t n, int64_t index) {
            params_from_master(params, fp32, n, index, key, rounds, t->gpu.stream);
        };
        ok = state_upload(&state, array, read, make_params);
    }
    return ok;
}

// Gives every rank the parameters that it needs, after each rank has loaded its part.
static void share_state(Trainer *t, TrainRun *run) {
    (void)run;
    ModelState state = state_of(t);
    state_share(&state);
    quantize_all_weights(&t->model, &t->gpu);
    wait_for_stream(&t->shards);
}

// Writes this rank's part of all arrays for run_save.
static bool write_state(void *context, CheckpointWriter *writer, Error *error) {
    ModelState state = state_of((Trainer *)context);
    bool ok = true;
    for (int array = 0; ok && array < CHECKPOINT_ARRAYS; array++) {
        ok = state_download(&state, array, "saving", [&](const float *from, int64_t in_file, int64_t n) {
            return checkpoint_write(writer, array, in_file, from, n, error);
        });
    }
    return ok;
}

// Computes the SUM64 of the fp32 parameters in the order of files. It does not depend on the number of ranks.
static bool hash_params(Trainer *t, uint64_t *hash, Error *error) {
    ModelState state = state_of(t);
    *hash = 0;
    state_download(&state, CHECKPOINT_PARAMS, "the end", [&](const float *from, int64_t in_file, int64_t n) {
        *hash += sum64(in_file, from, n);
        return true;
    });
    return comm_sum_u64(t->shards.ranks, hash, 1, error);
}

// Checks that arrays which every rank holds whole have equal bits on all ranks. A memory or network fault shows here.
// Waits for all parameters. Call it before parameters are saved, hashed or exported.
static bool check_replicas(Trainer *t, TrainRun *run, Error *error) {
    if (!has_peers(&t->shards) || t->model.params.parts) { return true; }
    int64_t whole = zero_offset(&t->shards.layout, t->shards.layout.num_buckets);
    const Buckets<float> state[] = {t->optimizer.master, t->optimizer.m, t->optimizer.v};
    await_parameters(&t->model, &t->gpu, &t->shards);
    sum_weights(t);
    for (const Buckets<float> &array : state) {
        if (array.data == NULL || array.parts) { continue; }
        add_checksum(t->transfer.checksum, array.data, whole * (int64_t)sizeof(float), t->gpu.stream);
    }
    cuda_check(cudaMemcpyAsync(t->transfer.host_checksum, t->transfer.checksum, sizeof(uint64_t),
                               cudaMemcpyDeviceToHost, t->gpu.stream));
    wait_for_stream(&t->shards);
    return comm_check_replicas(t->shards.ranks, *t->transfer.host_checksum, run->step, error);
}

// ---------------------------------------------------------------------------------------------------------------------
// 10. The program

static const char *const PROGRAM = "train_gpt2cu";

// Returns the source's revision. The Makefile links another function of this name, so that a commit recompiles nothing.
extern "C" __attribute__((weak)) const char *gpt2c_revision(void) { return ""; }

#define DEFAULT_SEQ_LEN 1024

// Refuses shapes and options that this build or its kernels cannot compute. Runs before the GPU is opened.
static bool check_shape(const TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    const GPT2Config *c = &run->config;
    if (!layernorm_check(c->channels, error) || !attention_check(c->channels, c->num_heads, error) ||
        !cross_entropy_check(c->padded_vocab_size, error) || (o->fp8 && !fp8_check_width(c->channels, error))) {
        return false;
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

// Visits all events of a trainer. Some take times.
template <class Visit> static void each_event(Trainer *t, Visit visit) {
    visit(&t->evaluation.evaluated, false);
    for (int i = 0; i < 2; i++) { visit(&t->gpu.multiplied[i], false), visit(&t->gpu.scored[i], false); }
    for (BatchSlot &slot : t->feeder.slots) { visit(&slot.uploaded, false), visit(&slot.no_longer_used, false); }
    for (int i = 0; i < NUM_STEPS; i++) {
        visit(&t->stats.begun[i], true), visit(&t->stats.reduced[i], false), visit(&t->stats.done[i], true);
    }
}

static void create_streams(Trainer *t) {
    gpu_create_stream(&t->gpu.stream);
    gpu_create_stream(&t->feeder.copy_stream);
    gpu_create_stream(&t->gpu.lm_head_stream);
    shards_open(&t->shards, t->shards.ranks, t->gpu.stream);
    each_event(t,
               [](cudaEvent_t *event, bool timed) { timed ? gpu_create_timed_event(event) : gpu_create_event(event); });
}

// Opens cuDNN. Runs before memory is allocated, because cuDNN takes some too. If cuDNN has no plan, our own kernels
// compute attention, and the memory is planned again without cuDNN's workspaces.
static bool open_attention(Trainer *t, Error *error) {
    RunShape *shape = &t->model.shape;
    CudnnShape attention = cudnn_shape(&t->model);
    if (!shape->cudnn || cudnn_att_open(&t->gpu.cudnn, &attention, &t->gpu.no_cudnn)) { return true; }
    if (shape->needs_cudnn) {
        return fail(error, "%s: %s", shape->repeats ? "--attention cudnn" : "--deterministic 0", t->gpu.no_cudnn.text);
    }
    shape->cudnn = false, t->gpu.cudnn_failed = true;
    plan_device(t, (int64_t)shape->B * shape->T);
    return true;
}

// Opens this rank's GPU and allocates the memory plans.
static bool gpt2_open(Trainer *t, Comm *ranks, bool tf32, Error *error) {
    t->shards.ranks = ranks;
    t->gpu.graphs.wanted = t->model.shape.cuda_graph;
    if (!gpu_open(&t->gpu.device, ranks->local_rank, tf32, error) ||
        (t->model.shape.fp8 && !fp8_check_gpu(&t->gpu.device.properties, error))) {
        return false;
    }
    create_streams(t);
    t->gpu.spared = nccl_spared_multiprocessors(ranks, t->gpu.device.properties.multiProcessorCount);
    if (!cublas_open(&t->gpu.cublas, tf32, error) || !open_attention(t, error) ||
        !plan_allocate_device(&t->device_plan, error) || !plan_allocate_pinned(&t->pinned_plan, error) ||
        !plan_allocate(&t->host_plan, error)) {
        return false;
    }
    cublas_set_workspace(&t->gpu.cublas, t->gpu.cublas_workspace, (size_t)t->model.shape.cublas_bytes);
    cudnn_att_set_workspace(&t->gpu.cudnn, t->gpu.cudnn_forward, t->gpu.cudnn_backward);
    return true;
}

// True if timing may choose algorithms that change bits. The run then keeps its choices.
static bool keeps_choices(const Trainer *t, const TrainRun *run) {
    return t->model.shape.kind == RUN_TRAINS && run->options.matmul_tune == TUNE_ANY_BITS;
}

// Opens the files of choices. Rank 0 reads the run's file for all ranks.
static bool open_tuning(Trainer *t, const TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    const cudaDeviceProp *gpu = &t->gpu.device.properties;
    bool keeps = keeps_choices(t, run);
    TuneWants wants;
    wants.user_path = o->matmul_tune_file;
    wants.run_folder = run->found.resumes && run_leads(run) ? o->out_dir : "";
    wants.writes_user = t->shards.ranks->local_rank == 0;
    wants.must_know = keeps && run->found.resumes && !o->allow_changes;
    wants.must_keep = keeps && !run_writes_files(run);
    return tuning_open(&t->gpu.tuning, &wants, gpu->name, gpu->multiProcessorCount, (long)cublasLtGetVersion(), error);
}

// Chooses the algorithms of the training multiplications. Times them in the device memory, which holds nothing yet.
static bool tune_matmuls(Trainer *t, const TrainRun *run, const CublasProblem *problems, int count, Error *error) {
    const MemoryPlan *plan = &t->device_plan;
    TuneLevel level = (TuneLevel)run->options.matmul_tune;
    return (level == TUNE_NOTHING || open_tuning(t, run, error)) &&
           matmul_tune(&t->gpu.tuning, &t->gpu.cublas, problems, count, plan->memory, plan->total, level, t->gpu.stream,
                       error);
}

// Gives all ranks the choices of rank 0.
static bool share_choices(Trainer *t, TrainRun *run, const CublasProblem *problems, int count, Error *error) {
    TuneTable *choices = &t->gpu.tuning.run;
    int64_t bytes = tune_table_bytes(choices);
    return run_broadcast(run, &bytes, (int64_t)sizeof(bytes), error) && run_broadcast(run, choices, bytes, error) &&
           (run_leads(run) ||
            matmul_follow(choices, &t->gpu.cublas, problems, count, &t->gpu.device.properties, error));
}

// Chooses algorithms. If timing may change bits, all ranks take rank 0's choices, so that all compute equal bits.
static bool choose_algorithms(Trainer *t, TrainRun *run, Error *error) {
    CublasProblem problems[MAX_MATMUL_PROBLEMS];
    if (t->model.shape.kind != RUN_TRAINS) { return true; }
    Range range("tuning");
    int count = matmul_problems(&t->model, &t->gpu, problems);
    bool shares = keeps_choices(t, run) && has_peers(&t->shards);
    bool ok = (shares && !run_leads(run)) || tune_matmuls(t, run, problems, count, error);
    if (!shares) { return ok; }
    return run_agree(run, ok, error) && share_choices(t, run, problems, count, error);
}

// Writes the choices for later starts. Choices that change bits are also written beside the checkpoints.
static bool record_choices(Trainer *t, TrainRun *run, Error *error) {
    const char *folder = run_leads(run) && run_writes_files(run) ? run->options.out_dir : "";
    return run_agree(run, tuning_save(&t->gpu.tuning, folder, error), error);
}

// Runs a forward and a backward of one layer's attention, as attend and attend_backward do.
static void run_attention(void *context) {
    Trainer *t = (Trainer *)context;
    int B = t->model.shape.B, T = t->model.shape.T, C = t->model.config.channels, NH = t->model.config.num_heads;
    LayerActs a = acts_of_layer(&t->model, 0);
    if (t->gpu.cudnn.is_open) {
        cudnn_att_forward(&t->gpu.cudnn, a.att, a.att_lse, a.qkv, t->gpu.stream);
    } else {
        attention_forward(a.att, a.att_lse, a.qkv, B, T, C, NH, t->gpu.stream);
    }
    attend_backward(&t->model, &t->gpu, a, B, T);
}

// Chooses cuDNN or our own kernels for attention by timing, if the run wants that. All ranks take rank 0's choice.
// Times the kernels in the device memory, which holds nothing yet.
static bool tune_attention(Trainer *t, TrainRun *run, Error *error) {
    int64_t N = (int64_t)t->model.shape.B * t->model.shape.T, C = t->model.config.channels;
    AttentionTuner tuner = {&t->gpu.cudnn, cudnn_shape(&t->model), run_attention, t, t->gpu.stream};
    int32_t choice = 0;
    if (!t->model.shape.times_cudnn || !t->gpu.cudnn.is_open) { return true; }
    Range range("tuning");
    if (run_leads(run)) { // bytes of 0x3c make values of about 0.01 in either precision
        cuda_check(cudaMemsetAsync(t->model.acts.qkv.of(0), 0x3c, (size_t)(3 * N * C) * sizeof(floatX), t->gpu.stream));
        cuda_check(cudaMemsetAsync(t->model.acts.datt.data, 0x3c, (size_t)(N * C) * sizeof(floatX), t->gpu.stream));
        choice = attention_choose(&tuner, &t->gpu.tuning);
    }
    if (!run_broadcast(run, &choice, (int64_t)sizeof(choice), error)) { return false; }
    return run_agree(run, attention_use(&tuner, choice, error), error);
}

static void free_graphs(Gpu *gpu) {
    for (auto &slot : gpu->pass_graphs) {
        for (auto &passes : slot) {
            for (CudaGraph &graph : passes) { cuda_graph_free(&graph); }
        }
    }
    cuda_graph_free(&gpu->norm_graph);
    cuda_graph_free(&gpu->update_graph);
}

// Frees everything that gpt2_open took, even if gpt2_open failed halfway.
static void gpt2_close(Trainer *t) {
    if (t->gpu.stream == NULL) { return; }
    cudaDeviceSynchronize();
    free_graphs(&t->gpu); // first, since the graphs launch kernels of the libraries
    nccl_close(&t->shards.nccl);
    gpu_close(&t->gpu.device);
    tuning_close(&t->gpu.tuning);
    cudnn_att_close(&t->gpu.cudnn);
    cublas_close(&t->gpu.cublas);
    shards_close(&t->shards);
    each_event(t, [](cudaEvent_t *event, bool) { cudaEventDestroy(*event); });
    cudaStreamDestroy(t->gpu.stream);
    cudaStreamDestroy(t->feeder.copy_stream);
    cudaStreamDestroy(t->gpu.lm_head_stream);
    plan_free_device(&t->device_plan);
    plan_free_pinned(&t->pinned_plan);
    plan_free(&t->host_plan);
}

// Settles the options that depend on the GPUs. With --plan the GPUs are supposed, not asked.
static bool settle_by_gpus(Trainer *t, TrainRun *run, Error *error) {
    RunPlanner planner = planner_of(t);
    AutoGpus gpus = run_planned_gpus(run, &planner, cublas_fuses_gelu);
    bool known = run->options.plan || rank_gpus_ask(&gpus, run->ranks.comm, run->options.tf32, error);
    return known && run_settle(&planner, run, &gpus, error);
}

// Notes in gpu.no_cudnn why this run leaves out an available cuDNN. It stays "" if cuDNN is used or missing.
static void explain_attention(Trainer *t, const TrainRun *run) {
    char version[32];
    bool any = t->model.shape.kind == RUN_TRAINS && strcmp(run->options.attention, "auto") == 0;
    cudnn_att_version_text(version, sizeof(version));
    if (any && !PRECISION_IS_FP32 && version[0] != '\0' && !t->model.shape.cudnn) {
        check_cudnn(run, &t->gpu.no_cudnn);
    }
}

static const MemoryPlan *memory_of(Trainer *t) { return &t->device_plan; }

static void print_config(Trainer *t, TrainRun *run) {
    char attention[128];
    AttentionPlan planned = {attention_uses_tensor_cores(t->model.config.channels / t->model.config.num_heads),
                             t->model.shape.cudnn, t->model.shape.times_cudnn, t->model.shape.repeats};
    attention_plan_text(attention, sizeof(attention), &planned);
    printf("precision   %s%s%s; attention %s, heads of %d\n", PRECISION_NAME,
           t->model.shape.has_master ? ", fp32 master weights" : "",
           t->model.shape.fp8 ? ", linear layers of the blocks in fp8" : "", attention,
           t->model.config.channels / t->model.config.num_heads);
    if (t->gpu.no_cudnn.text[0] != '\0') { printf("            not by cuDNN: %s\n", t->gpu.no_cudnn.text); }
    if (t->model.shape.kind == RUN_TRAINS) {
        printf("launches    %s\n", t->model.shape.cuda_graph ? "a step is CUDA graphs"
                                   : run->num_ranks > 1      ? "kernel by kernel: CUDA graphs are for one GPU"
                                                             : "kernel by kernel");
    }
    if (t->model.shape.head_overlap && t->model.acts.logits.stride == 0) {
        printf("            --head-overlap has nothing to overlap: --head-rows takes all %d rows of logits at once\n",
               t->model.head_rows);
    }
}

static void print_machine(Trainer *t, TrainRun *run) {
    gpu_print(&t->gpu.device, t->model.shape.num_ranks, t->model.shape.fp8);
    if (has_peers(&t->shards)) {
        rank_gpus_print(t->shards.ranks, t->model.shape.zero_stage, t->gpu.spared, &t->gpu.device.properties);
    }
    if (t->model.shape.fp8 && !fp8_has_conversion()) {
        printf("fp8         slow: this program has no code for 8.9 or later, and converts to 8 bits in software; build "
               "it with GPU_ARCH=%d%d\n",
               t->gpu.device.properties.major, t->gpu.device.properties.minor);
    }
    if (t->gpu.cudnn_failed) {
        printf("attention   by our own kernels: %s\n", t->gpu.no_cudnn.text);
        run_print_memory(&t->device_plan, " on the GPU without it");
    }
    if (t->gpu.tuning.text.used > 0) { printf("%s", t->gpu.tuning.text.data); }
    if (t->model.shape.times_cudnn && t->model.shape.cudnn) {
        char attention[128];
        attention_used_text(attention, sizeof(attention), &t->gpu.cudnn);
        printf("            it is done %s\n", attention);
    }
    if (run->options.gpu_log_every > 0 && !gpu_monitor_is_open(&t->gpu.device.monitor)) {
        printf("            %s\n", t->gpu.device.monitor.why);
    }
}

static void print_plan(Trainer *t, TrainRun *run) {
    printf(
        "The GPU is supposed to have %g GiB (--gpu-memory); from 40 GB on, cuBLAS works in %lld MiB, below in %lld\n",
        (double)run->gpu_bytes / 0x1p30, (long long)CUBLAS_LARGE_WORKSPACE >> 20,
        (long long)CUBLAS_SMALL_WORKSPACE >> 20);
    printf("\nOn the host, pinned for copies to and from the GPU\n");
    plan_print(&t->pinned_plan, stdout);
    printf("\nOn the host\n");
    plan_print(&t->host_plan, stdout);
    if (t->model.shape.kind == RUN_TRAINS) {
        RunPlanner planner = planner_of(t);
        run_print_step(&planner, run);
        run_print_levels(&planner, run);
        run_print_stages(&planner, run);
    }
}

static void add_versions(RunMachine *machine) {
    char text[64];
    auto add = [&](const char *name, const char *version) {
        if (version[0] != '\0') { run_machine_version(machine, name, "%s", version); }
    };
    gpu_each_version(add);
    cublas_version_text(text, sizeof(text)), add("cublaslt", text);
    cudnn_att_version_text(text, sizeof(text)), add("cudnn", text);
    nccl_version_text(text, sizeof(text)), add("nccl", text);
    comm_mpi_version_text(text, sizeof(text)), add("mpi", text);
}

// Describes the GPUs of all ranks for run.json. Also writes the choices of algorithms, because the run folder exists
// now.
static bool describe(Trainer *t, TrainRun *run, RunMachine *machine, Error *error) {
    RunGpu gpu;
    memset(&gpu, 0, sizeof(gpu));
    snprintf(gpu.name, sizeof(gpu.name), "%.*s", (int)sizeof(gpu.name) - 1, t->gpu.device.properties.name);
    gpu.memory_bytes = (int64_t)t->gpu.device.properties.totalGlobalMem;
    gpu.major = t->gpu.device.properties.major, gpu.minor = t->gpu.device.properties.minor;
    machine->num_gpus = run->num_ranks;
    machine->num_machines = comm_num_machines(t->shards.ranks);
    attention_used_text(machine->attention, sizeof(machine->attention), &t->gpu.cudnn);
    machine->gpus = (RunGpu *)malloc((size_t)run->num_ranks * sizeof(RunGpu));
    bool ok = machine->gpus != NULL || fail(error, "out of memory");
    add_versions(machine);
    return run_agree(run, ok, error) &&
           comm_all_gather(run->ranks.comm, &gpu, machine->gpus, (int64_t)sizeof(gpu), error) &&
           record_choices(t, run, error);
}

// Returns the functions by which a run talks to its ranks.
static RunRanks ranks_of(Comm *comm) {
    return {comm->rank,      comm->num_ranks,  comm,           comm_agree,    comm_broadcast, comm_sum_u64,
            comm_any,        comm_check_facts, comm_is_broken, comm_all_know, comm_slow,      comm_resumable,
            comm_on_failure, comm_fail,        comm_close,     comm_prints};
}

// Finds the other processes of this run, if there are any. Only rank 0 prints to the screen.
static bool join(Trainer *t, TrainRun *run, Error *error) {
    static Comm ranks;
    Comm *comm = &ranks;
    const TrainOptions *o = &run->options;
    (void)t;
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
    options.silence = o->watchdog > 0.0 ? 0.0 : 1e9; // 0: the default; without a watchdog a debugger may stop the watch
    comm_single(comm);
    run->ranks = ranks_of(comm);
    run->num_ranks = (int)max_i64(max_i64(1, launcher_find().size), o->num_processes);
    if (o->plan) { return true; }
    run->num_ranks = 1;
    if (!comm_open(comm, &options, error)) { return false; }
    run->ranks = ranks_of(comm);
    run->num_ranks = comm->num_ranks;
    return comm->rank == 0 || freopen("/dev/null", "w", stdout) != NULL || fail_system(error, "/dev/null", "open");
}

// Checksums and initial weights use all cores. The ranks of a machine share its cores, unless their launcher has given
// each rank its own.
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

// Opens GPU and NCCL.
static bool open_trainer(Trainer *t, TrainRun *run, Error *error) {
    run_keep_section(run, "loss_outliers", &t->stats.outliers.loss, sizeof(t->stats.outliers.loss));
    run_keep_section(run, "norm_outliers", &t->stats.outliers.norm, sizeof(t->stats.outliers.norm));
    set_threads(run);
    Comm *comm = run->ranks.comm;
    bool ok = gpt2_open(t, comm, run->options.tf32, error);
    ok = run_agree(run, ok, error) && choose_algorithms(t, run, error);
    // A rank whose cuDNN has no plan would compute attention with different bits, and slower.
    return run_agree(run, ok, error) && rank_gpus_check_unlike(comm, &t->gpu.device.properties, error) &&
           comm_check_alike(comm, "attention (alike with --attention own; --attention cudnn says what is wrong)",
                            t->gpu.cudnn.is_open ? "by cuDNN" : "by our own kernels", error) &&
           tune_attention(t, run, error) && rank_gpus_connect(&t->shards.nccl, comm, t->shards.comm_stream, error);
}

// Hashes the weights, and brings them to rank 0 if --export asks for it.
static bool finish(Trainer *t, TrainRun *run, const float **params, uint64_t *hash, Error *error) {
    comm_progress(t->shards.ranks, "the end");
    comm_slow(t->shards.ranks, true);
    if (!check_replicas(t, run, error) || !hash_params(t, hash, error)) { return false; }
    if (t->model.shape.exports && !is_stopping(&stop_request)) {
        ModelState state = state_of(t);
        state_export(&state);
    }
    if (has_peers(&t->shards) && t->model.shape.kind == RUN_TRAINS) {
        printf("sent        %lld bytes of gradients, %lld of parameters\n", (long long)t->shards.nccl.gradient_bytes,
               (long long)t->shards.nccl.parameter_bytes);
    }
    *params = t->transfer.host_params;
    return true;
}

static bool plan(Trainer *t, TrainRun *run, Error *error) {
    if (!run_agree(run, check_shape(run, error), error) || !settle_by_gpus(t, run, error)) { return false; }
    gpt2_plan(t, &run->config, choose_shape(run));
    explain_attention(t, run);
    return true;
}

static const TrainerOps trainer_ops = {
    {PROGRAM, gpt2c_revision, PRECISION_NAME, DEFAULT_SEQ_LEN, true, 1, &stop_request, on_signal},
    // start
    join,
    plan,
    memory_of,
    print_config,
    print_plan,
    open_trainer,
    read_state,
    share_state,
    describe,
    print_machine,
    // train
    train_step,
    settle_step,
    check_replicas,
    write_state,
    // validate, evaluate, sample
    validate_batch,
    validation_loss,
    evaluate_batch,
    evaluation_means,
    begin_sample,
    append_token,
    next_logits,
    // end
    finish,
    gpt2_close,
};

int main(int argc, char **argv) {
    static Trainer trainer; // zero; large, so not on the stack
    static TrainRun run;
    return train_main(&trainer_ops, &trainer, &run, argc, argv);
}
