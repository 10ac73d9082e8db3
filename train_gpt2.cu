// Trains GPT-2 on GPUs. The file tells the story of a step, from tokens to updated weights. The kernels are in
// llmc/layers and llmc/optim. train_gpt2.c tells this story for the CPU. llmc/run/train_loop.h holds the program of
// both, and says what they do not share and why.
//
// The story:
//   1. types      the structs of a trainer
//   2. forward    embedding, blocks, language model head, loss
//   3. backward   the gradients, from the last layer to the first
//   4. update     checksum of the weights, gradient norm, Muon if --optimizer asks for it, AdamW
//   5. the step   batches on their way, micro-batches, one update, results that arrive late
//   6. validation, questions, samples
//   7. main       the functions that llmc/run/train_loop.h calls
// What it takes besides stands in train_gpt2_program.cuh: the plan of all memory, the search for a NaN, load and save,
// the start.
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
// - The host never waits for the GPU inside a step, and allocates nothing after the start.
// - Ranks that must decide alike decide from equal bits. They need not ask each other.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "llmc/base/utils.h"
#include "llmc/model/gpt2.h" // the tables of this trainer; the rooms loop over them
#include "llmc/model/activations.h"
#include "llmc/model/memory_plan.h"
#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/cuda/gpu.h"
#include "llmc/cuda/matmul_tune.cuh"
#include "llmc/cuda/range.h"
#include "llmc/layers/attention.cuh"
#include "llmc/layers/attention_cudnn.h"
#include "llmc/layers/embedding.cuh"
#include "llmc/layers/fp8.cuh"
#include "llmc/layers/gelu.cuh"
#include "llmc/layers/layernorm.cuh"
#include "llmc/layers/linear.cuh"
#include "llmc/layers/loss.cuh"
#include "llmc/optim/adamw.cuh"
#include "llmc/optim/global_norm.cuh"
#include "llmc/optim/muon.cuh"
#include "llmc/ranks/agree.h"
#include "llmc/ranks/buckets.cuh"
#include "llmc/ranks/gpu_state.cuh"
#include "llmc/run/train_loop.h"

// ---------------------------------------------------------------------------------------------------------------------
// 1. Types

// Holds the model's 16 tensors by name. A tensor of a block belongs to one layer.
#define TENSOR_POINTER(name, ...) T *name;
template <class T> struct Tensors { MODEL_PARAMETERS(TENSOR_POINTER) };

// Finds the tensors in two buckets. outside points to bucket 0, block points to the bucket of one layer.
template <class T> static Tensors<T> tensors_of(const ZeroLayout *zero, T *outside, T *block) {
    Tensors<T> tensors;
#define TENSOR_AT(name, ...)                                                                                           \
    tensors.name = (param_specs[PARAM_##name].per_layer ? block : outside) + zero_tensor_offset(zero, PARAM_##name);
    MODEL_PARAMETERS(TENSOR_AT)
    return tensors;
}

// The linear layers of a block: id, name, the activation that it reads, the level of --recompute that gives it up.
// The names are fields of Block (b.qkv).
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
    MODEL_ACTIVATIONS(ACTIVATION_FIELD)
};

// Holds the activations of one layer by name.
#define ACTIVATION_POINTER(name, type, ...) type *name;
struct LayerActs {
    MODEL_ACTIVATIONS(ACTIVATION_POINTER)
};

typedef struct {
    RunKind kind;
    int B, T;         // the largest batch, unless eval_T is longer
    int eval_T;       // the longest sequence of an evaluation. 0: none
    int recompute;    // the level of --recompute
    int gelu_fusion;  // the level of --gelu-fusion
    bool cudnn;       // cuDNN computes the attention of (B,T) batches
    bool needs_cudnn; // the run fails if cuDNN cannot
    bool times_cudnn; // timing chooses between cuDNN and our own kernels
    bool repeats;     // attention gives equal bits each time
    bool fp8;         // the linear layers of the blocks multiply in 8 bits
    int head_rows;    // the most rows of logits at a time
    bool has_master;  // fp32 weights beside the bf16 ones
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

// Holds the numbers of one update.
typedef struct {
    AdamWFactors adamw;
    MuonFactors muon;
} UpdateFactors;

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
    ModelConfig config;
    RunShape shape;
    const Shards *shards; // where this rank keeps the buckets
    Buckets<floatX> params;
    Buckets<float> grads;
    Activations acts;               // with the gradients of activations, for one layer at a time
    Fp8Copies fp8;                  // 8-bit copies, with --fp8
    int head_rows;                  // rows of logits in a chunk
    float *att_delta, *sum_scratch; // scratch of the backward pass
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
    bool cudnn_failed;                     // cuDNN had no plan
    Error no_cudnn;                        // why cuDNN is not used
    Tuning tuning;                         // chosen matmul algorithms and attention kernels
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
    floatX *pinned_logits; // (Vp)
    float *logits, *probs; // (V)
};

// Holds buffers for parameters and state on their way between the GPU and files.
struct Transfer {
    float *staging;                     // pinned, one chunk
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
    MODEL_ACTIVATIONS(ACTIVATION_OF)
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

// Describes a block. llmc/layers/fp8.cuh explains `use`. A recomputed forward ends before fcproj: the backward pass
// needs only fcproj's input.
static Block block_of(const Model *model, int layer, LinearUse use) {
    Tensors<floatX> p = params_of_layer(model, layer);
    Tensors<float> g = grads_of_layer(model, layer);
    Block b;
    LayerActs &a = b.acts;
    a = acts_of_layer(model, layer);
#define FIND_LINEAR(ID, name, ...)                                                                                     \
    b.name.C = (int)param_cols(&model->config, PARAM_##name##w);                                                       \
    b.name.OC = (int)param_rows(&model->config, PARAM_##name##w);                                                      \
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

#define MAX_MATMUL_PROBLEMS 32

// Lists all multiplications of a training micro-batch, so that algorithms can be chosen before the first step. Returns
// their number, at most MAX_MATMUL_PROBLEMS.
static int matmul_problems(const Model *model, CublasProblem *problems) {
    int n = 0, fusion = model->shape.gelu_fusion;
    int64_t N = (int64_t)model->shape.B * model->shape.T;
    Block b = block_of(model, 0, LINEAR_FOR_GRADIENTS);
    for (const Linear *l : {&b.qkv, &b.attproj, &b.fc, &b.fcproj}) {
        linear_problems(problems + n, *l, N, l == &b.fc && fusion >= FUSE_GELU_FORWARD,
                        l == &b.fcproj && fusion >= FUSE_GELU_BACKWARD);
        n += LINEAR_PRODUCTS;
    }
    for (int64_t rows : {(int64_t)model->head_rows, N % model->head_rows}) { // a full chunk, the last chunk
        if (rows == 0 || rows > N) { continue; }
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
    cudnn_att_forward(&gpu->cudnn, a.att, a.att_lse, a.qkv, gpu->cudnn_forward, gpu->stream);
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

// Computes the logits of `rows` rows from `first` on and their losses, and overwrites the logits with their gradients.
// Then sets dlnf of these rows and adds to dwte, if gradients are wanted.
static void lm_head_rows(const Model *model, Gpu *gpu, int64_t first, int64_t rows, const int32_t *targets,
                         const BatchRole *role) {
    const Activations *a = &model->acts;
    int V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    int64_t at = first * model->config.channels;
    linear_forward(&gpu->cublas, lm_head_of(model), a->logits.data, NULL, a->lnf.data + at, rows, gpu->stream);
    cross_entropy(a->losses.data + first, a->logits.data, targets + first, rows, V, Vp, role->dloss, role->trains,
                  gpu->stream);
    if (!role->trains) { return; }
    linear_backward(&gpu->cublas, lm_head_of(model), a->dlnf.data + at, a->logits.data, a->lnf.data + at, NULL, rows,
                    gpu->stream);
}

// Computes the losses of a batch, and the head's gradients if they are wanted, chunk by chunk in the order of the rows.
static void model_loss(const Model *model, Gpu *gpu, Shards *shards, const int32_t *targets, int64_t N,
                       const BatchRole *role) {
    Range range("lm_head");
    if (role->trains) { begin_gradient(shards, model->grads, 0, role->first); }
    for (int64_t first = 0; first < N; first += model->head_rows) {
        lm_head_rows(model, gpu, first, min_i64(model->head_rows, N - first), targets, role);
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
        cudnn_att_backward(&gpu->cudnn, a.dqkv, a.datt, a.qkv, a.att, a.att_lse, gpu->cudnn_backward, gpu->stream);
    } else {
        attention_backward(a.dqkv, a.datt, a.qkv, a.att, a.att_lse, model->att_delta, B, T, model->config.channels,
                           model->config.num_heads, gpu->stream);
    }
}

// Runs the backward from the block's output to mid: fcproj, GELU, fc, ln2.
static void block_backward_mlp(const Model *model, Gpu *gpu, const Block &b, int64_t N) {
    const LayerActs &a = b.acts;
    bool fused = model->shape.gelu_fusion >= FUSE_GELU_BACKWARD; // the multiply also computes GELU's backward
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

// Writes this rank's record: its loss, its sum of squared gradients, its checksum, whether it has been asked to stop.
static void record_gradient(Trainer *t, bool wants_to_end) {
    NormPart outside = norm_part(&t->model, 0, 1), blocks = norm_part(&t->model, 1, t->model.config.num_layers);
    global_norm_squared(t->stats.norm_partials, &outside, &blocks, t->gpu.stream);
    sum_weights(t);
    step_record(t->stats.records + t->model.shape.rank, t->stats.norm_partials,
                norm_part_doubles(&outside) + norm_part_doubles(&blocks), t->stats.loss_sum, wants_to_end,
                t->transfer.checksum, t->gpu.stream);
}

// Reduces loss and gradient norm to t->stats.result, with equal bits on all ranks, and copies the result to the host.
// loss_factor turns the sum of the losses into their mean. wants_to_end: this process has been asked to stop.
static void reduce_step(Trainer *t, double loss_factor, double grad_clip, bool wants_to_end, int slot) {
    Range range("norm");
    StepRecord *record = t->stats.records + t->model.shape.rank;
    compute_after_communicate(&t->shards);
    record_gradient(t, wants_to_end);
    gather_results(&t->shards, t->stats.records, record, (int64_t)sizeof(*record));
    step_finish(t->stats.result, t->stats.records, t->model.shape.num_ranks, loss_factor, (float)grad_clip,
                t->gpu.stream);
    cuda_check(cudaMemcpyAsync(&t->stats.results[slot], t->stats.result, sizeof(StepResult), cudaMemcpyDeviceToHost,
                               t->gpu.stream));
    cuda_check(cudaEventRecord(t->stats.reduced[slot], t->gpu.stream));
}

// Describes elements [begin, end) of `repeats` buckets, from `bucket` on.
static AdamWPart update_part(const Model *model, const Optimizer *optimizer, int bucket, int64_t repeats, int64_t begin,
                             int64_t end) {
    auto from = [&](auto array) { return bucket_element(model->shards, array, bucket, begin); };
    int64_t first_index = zero_first_index(&model->shards->layout, bucket) + begin;
    AdamWPart part = adamw_part(from(model->params), from(optimizer->master), from(optimizer->m), from(optimizer->v),
                                from(model->grads), max_i64(0, end - begin), first_index);
    part.repeats = repeats;
    part.params_stride = bucket_stride(model->shards, model->params);
    part.state_stride = bucket_stride(model->shards, optimizer->m);
    part.v_stride = bucket_stride(model->shards, optimizer->v);
    part.grads_stride = bucket_stride(model->shards, model->grads);
    part.index_stride = zero_size(&model->shards->layout, 1);
    return part;
}

// Describes the part of `repeats` buckets, from `bucket` on, that this rank updates with AdamW. It holds the moments of
// this part.
static AdamWPart adamw_part_of(const Model *model, const Optimizer *optimizer, int bucket, int64_t repeats) {
    const ZeroLayout *zero = &model->shards->layout;
    bool all = !optimizer->m.parts;
    int64_t begin = max_i64(zero_muon(zero, bucket), all ? 0 : zero_begin(zero, bucket, model->shape.rank));
    int64_t end = all ? zero_size(zero, bucket) : zero_end(zero, bucket, model->shape.rank);
    AdamWPart part = update_part(model, optimizer, bucket, repeats, begin, end);
    part.decayed = zero_decayed(zero, bucket) - begin; // negative if the part begins after the decayed tensors
    return part;
}

// Returns the most blocks that go through Muon's rounds at once on each rank.
static int muon_blocks_at_once(const Trainer *t) {
    int owners = t->optimizer.m.parts ? t->model.shape.num_ranks : 1;
    return (int)min_i64(MUON_BATCH, ceil_div_i64(t->model.config.num_layers, owners));
}

// Describes the part of Muon's matrices that this rank updates, in `blocks` blocks from `first` on. A rank with all of
// the state finds the updates in muon_blocks. A rank with shards finds the updates of its shards in muon_parts.
static MuonPart muon_part_of(const Trainer *t, int first, int blocks) {
    const ZeroLayout *zero = &t->shards.layout;
    const Optimizer *o = &t->optimizer;
    int64_t begin = o->m.parts ? zero_begin(zero, 1, t->model.shape.rank) : 0;
    int64_t end = o->m.parts ? zero_end(zero, 1, t->model.shape.rank) : zero_muon(zero, 1);
    AdamWPart part = update_part(&t->model, o, 1 + first, blocks, begin, min_i64(end, zero_muon(zero, 1)));
    return muon_part(part, o->m.parts ? o->muon_parts : o->muon_blocks,
                     o->m.parts ? zero_shard(zero, 1) : zero_padded(zero, 1));
}

// Runs the rounds for every matrix of `count` blocks in muon_blocks: those with one place in their blocks together.
static void orthogonalize_blocks(Trainer *t, int count) {
    const ModelConfig *config = &t->model.config;
    const ZeroLayout *zero = &t->shards.layout;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        for (int k = 0; k < param_specs[i].muon; k++) {
            MuonBatch b = {muon_rows(config, i), muon_cols(config, i), zero_padded(zero, 1), count};
            floatX *first = t->optimizer.muon_blocks + zero_tensor_offset(zero, i) + k * b.rows * b.cols;
            muon_orthogonalize(&t->gpu.cublas, first, t->optimizer.muon_scratch, b,
                               muon_scale(t->model.shape.muon_scale, b.rows, b.cols), t->gpu.stream);
        }
    }
}

// Updates this rank's part of Muon's matrices, one group of blocks after another. If the state is sharded, rank l mod R
// owns block l (zero_owner): the blocks of a group are put together on their owners, which run the rounds.
static void update_with_muon(Trainer *t, const MuonFactors &factors) {
    Range range("muon");
    const Optimizer *o = &t->optimizer;
    bool sharded = o->m.parts;
    int L = t->model.config.num_layers, owners = sharded ? t->model.shape.num_ranks : 1;
    int rank = sharded ? t->model.shape.rank : 0, group = owners * muon_blocks_at_once(t);
    for (int first = 0; first < L; first += group) {
        int blocks = (int)min_i64(group, L - first), own = (blocks - rank + owners - 1) / owners;
        MuonPart part = muon_part_of(t, first, blocks);
        if (sharded) { // what else is in the shards travels, too
            size_t bytes = (size_t)(blocks * zero_shard(&t->shards.layout, 1)) * sizeof(floatX);
            cuda_check(cudaMemsetAsync(o->muon_parts, 0, bytes, t->gpu.stream));
        }
        muon_momentum(&part, factors, t->stats.result, t->gpu.stream);
        if (sharded) { gather_matrices(&t->shards, o->muon_blocks, o->muon_spare, o->muon_parts, blocks); }
        orthogonalize_blocks(t, own);
        if (sharded) { scatter_matrices(&t->shards, o->muon_parts, o->muon_blocks, o->muon_spare, blocks); }
        muon_apply(&part, factors, t->stats.result, t->gpu.stream);
    }
}

// Updates all buckets, or this rank's parts of them.
static void update_all(Trainer *t, const UpdateFactors &factors) {
    Range range("update");
    AdamWPart outside = adamw_part_of(&t->model, &t->optimizer, 0, 1),
              blocks = adamw_part_of(&t->model, &t->optimizer, 1, t->model.config.num_layers);
    if (t->model.shape.optimizer == OPTIMIZER_MUON) { update_with_muon(t, factors.muon); }
    adamw_update(&outside, &blocks, factors.adamw, t->stats.result, t->gpu.stream);
    quantize_all_weights(&t->model, &t->gpu);
}

// Updates this rank's parts and sends them to the other ranks: each bucket while the next one is updated.
// Nothing waits here: the next forward pass waits for each bucket before it reads it (await_bucket), and all other
// readers wait for all parameters (await_parameters).
static void update_and_share(Trainer *t, const UpdateFactors &factors) {
    Range range("update");
    if (t->model.shape.optimizer == OPTIMIZER_MUON) { update_with_muon(t, factors.muon); }
    for (int b = 0; b < t->shards.layout.num_buckets; b++) {
        AdamWPart part = adamw_part_of(&t->model, &t->optimizer, b, 1);
        adamw_update(&part, NULL, factors.adamw, t->stats.result, t->gpu.stream);
        share_updated_bucket(&t->shards, t->model.params, b);
    }
    t->shards.gathering = true;
}

// Runs the optimizer after reduce_step. The kernels read the gradient's scale from t->stats.result. They change nothing
// if it says that the loss or the norm is not a number, or that the ranks' weights differ. Later steps change nothing
// either, until the host has read the result.
static void gpt2_update(Trainer *t, const UpdateFactors &factors) {
    if (t->optimizer.m.parts && !t->model.params.parts) {
        update_and_share(t, factors);
        return;
    }
    update_all(t, factors);
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
// written tokens and targets there, and for mean losses the flags of the losses that count.
static void run_batch(Trainer *t, BatchSlot *slot, int B, int T, const BatchRole *role) {
    int64_t N = (int64_t)B * T;
    const int32_t *tokens = slot->device, *targets = tokens + N;
    const int32_t *order = targets + N, *counts = order; // the third array: the order of the tokens, or flags for means
    comm_waits(t->shards.ranks, true); // the host waits here if the GPU's queue is full: see nccl_queued
    if (role->means == NULL) { order_tokens(t, slot, N); }
    upload_batch(&t->feeder, &t->gpu, slot, N);
    model_forward(&t->model, &t->gpu, &t->shards, tokens, B, T, role->trains ? LINEAR_FOR_GRADIENTS : LINEAR_FOR_LOSS);
    model_loss(&t->model, &t->gpu, &t->shards, targets, N, role);
    if (role->trains) { model_backward(&t->model, &t->gpu, &t->shards, tokens, order, B, T, role); }
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
    role.dloss = 1.0f / (float)run->options->total_batch;
    role.loss_sum = t->stats.loss_sum;
    return role;
}

// Queues all micro-batches of the step at the run's position, which add up its gradient. If the run is asked to stop
// between two of them, sets *interrupted and returns early. Nothing is lost: a resumed run begins the step anew. A rank
// with peers is not interrupted: it finishes the step.
static bool accumulate_gradient(Trainer *t, TrainRun *run, bool *interrupted, Error *error) {
    *interrupted = false;
    int B = (int)run->options->batch_size, T = (int)run->options->seq_len;
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
static double loss_factor(const TrainRun *run) { return 1.0 / (double)run->options->total_batch; }

// ---- Results that arrive late ----
//
// The GPU must never wait for the host. The host therefore queues a step without waiting for its loss and norm, and
// reads them while the next step runs: one step waits in stats.pending until settle_step logs it. The GPU itself
// decides whether a step may update the weights (step_finish, adamw_update), so a NaN that the host sees late has
// changed nothing. Only a run that skips outliers (--skip-loss-z, --skip-grad-z) waits for the step's loss and norm.

// Begins a step: takes a slot for its events and records its beginning.
static PendingStep begin_step(Trainer *t, const TrainRun *run) {
    PendingStep step;
    memset(&step, 0, sizeof(step));
    step.waiting = true;
    step.adjoins = t->stats.pending.waiting; // else the loop has settled it, to do something between the steps
    step.slot = (int)(t->stats.steps_begun++ % NUM_STEPS);
    step.next_sequence = run->next_sequence;
    step.info = run_begin_step(run, schedule_lr(&run->schedule, run->step));
    cuda_check(cudaEventRecord(t->stats.begun[step.slot], t->gpu.stream));
    return step;
}

// Names the tensor where a NaN or an infinity of a step began: see section 2 of train_gpt2_program.cuh. Returns false.
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
        run_skips_update(run, &step->info); // no limits are set, so this only keeps the statistics
    }
    wait_for_event(&t->shards, t->stats.done[step->slot]);
    step->info.seconds = measured_seconds(&t->stats, step);
    comm_expects(t->shards.ranks, step->info.seconds / (double)run->micro_batches);
    if (t->gpu.device.peak_flops > 0.0) {
        double peak = t->gpu.device.peak_flops * t->model.shape.num_ranks;
        step->info.peak_fraction = run_step_flops(run) / step->info.seconds / peak;
    }
    return run_log_step(run, &step->info, error);
}

// Decides whether a step updates the weights. The host waits here only in a run that skips outliers.
static bool decide_update(Trainer *t, TrainRun *run, PendingStep *step, bool *skip, Error *error) {
    *skip = false;
    if (run->options->skip_loss_z <= 0.0 && run->options->skip_grad_z <= 0.0) { return true; }
    if (!settle_step(t, run, error) || !read_result(t, run, step, error)) { return false; }
    *skip = run_skips_update(run, &step->info);
    return true;
}

// Logs the step before while the GPU works on the queued step, which becomes the pending step.
static bool queue_results(Trainer *t, TrainRun *run, const PendingStep *step, Error *error) {
    cuda_check(cudaEventRecord(t->stats.done[step->slot], t->gpu.stream));
    if (!settle_step(t, run, error)) { return false; }
    t->stats.pending = *step;
    return true;
}

// ---- The step ----

// Returns the numbers of the next update.
static UpdateFactors update_factors(const TrainRun *run, double lr) {
    const TrainOptions *o = run->options;
    int64_t update = run->updates + 1;
    uint64_t key = rounding_key((uint64_t)o->seed, update);
    UpdateFactors factors;
    factors.adamw = adamw_factors((float)lr, 0.9f, 0.95f, (float)o->adam_eps, (float)o->weight_decay, update, key);
    factors.muon = {run_muon_rate(run), run_muon_momentum(run), (float)o->weight_decay, key};
    return factors;
}

// Queues one step: the gradients of all micro-batches, their sum over the ranks, the update. Logs the step before.
static bool train_step(Trainer *t, TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    bool interrupted, skip;
    PendingStep step = begin_step(t, run);
    if (!accumulate_gradient(t, run, &interrupted, error)) { return false; }
    if (interrupted) { return settle_step(t, run, error); }
    reduce_step(t, loss_factor(run), o->grad_clip, stop_request.asked != 0, step.slot);
    if (!decide_update(t, run, &step, &skip, error)) { return false; }
    if (!skip) { gpt2_update(t, update_factors(run, step.info.lr)); }
    run->updates += !skip;
    if (!queue_results(t, run, &step, error)) { return false; }
    run_advance(run);
    return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// 6. Validation, questions, samples

// Queues a batch in a slot's staging memory. The mean losses of its sequences go to their place in GPU memory. A batch
// has `most` places.
static void queue_means(Trainer *t, BatchSlot *slot, Round round, int B, int T, int64_t most) {
    int64_t own = round.rounds * most;
    BatchRole role;
    if (round.number == 0) { // all places are sent, and a batch may fill fewer than `most`
        cuda_check(cudaMemsetAsync(t->evaluation.means, 0, (size_t)(t->model.shape.num_ranks * own) * sizeof(double),
                                   t->gpu.stream));
    }
    role.means = t->evaluation.means + t->model.shape.rank * own + round.number * most;
    run_batch(t, slot, B, T, &role);
}

// Brings the mean losses of all rounds and ranks to all hosts. Each rank has computed its own.
static void gather_means(Trainer *t, Round last, int64_t most) {
    int64_t ranks = t->model.shape.num_ranks, own = last.rounds * most;
    double *device = t->evaluation.means;
    gather_results(&t->shards, device, device + t->model.shape.rank * own, own * (int64_t)sizeof(double));
    cuda_check(cudaMemcpyAsync(t->evaluation.host_means, device, (size_t)(ranks * own) * sizeof(double),
                               cudaMemcpyDeviceToHost, t->gpu.stream));
    wait_for_stream(&t->shards);
}

// Returns the gathered mean losses of a batch.
static const double *means_of_batch(const Trainer *t, Round last, int64_t batch, int64_t most) {
    int64_t ranks = t->model.shape.num_ranks;
    return t->evaluation.host_means + (batch % ranks * last.rounds + batch / ranks) * most;
}

// Queues a batch of a validation.
bool trainer_validate_batch(Trainer *t, TrainRun *run, Round round, Error *error) {
    Range range("validation");
    int64_t B = run->options->batch_size, T = run->options->seq_len, first = round.batch * B;
    int rows = (int)min_i64(B, run_val_sequences(run) - first);
    comm_progress_to(t->shards.ranks, "the validation after step", run->step);
    BatchSlot *slot = next_slot(&t->feeder, &t->shards);
    if (!dataloader_read(&run->val, first, rows, slot->staging, slot->staging + rows * T, error)) { return false; }
    for (int64_t i = 0; i < rows * T; i++) { slot->staging[2 * rows * T + i] = 1; } // all losses count
    queue_means(t, slot, round, rows, (int)T, B);
    return true;
}

// Adds up the mean losses of the sequences in their order. Each sequence has its own sum, so the result does not depend
// on the size of a batch or on the number of ranks.
double trainer_validation_loss(Trainer *t, TrainRun *run, Round last) {
    int64_t B = run->options->batch_size, sequences = run_val_sequences(run);
    double sum = 0.0;
    gather_means(t, last, B);
    for (int64_t i = 0; i < sequences; i++) { sum += means_of_batch(t, last, i / B, B)[i % B]; }
    return sum / (double)sequences;
}

// Writes to counts (rows, T) which losses of a batch count: 1 or 0.
static void count_scored(const EvalLoader *eval, EvalBatch batch, int32_t *counts) {
    for (int i = 0; i < batch.sequences; i++) {
        int begin, end;
        eval_scored(eval, batch.first + i, &begin, &end);
        for (int t = 0; t < eval->T; t++) { counts[i * eval->T + t] = t >= begin && t < end; }
    }
}

// Queues a batch of an evaluation. The host is one round ahead of the GPU.
void trainer_evaluate_batch(Trainer *t, TrainRun *run, int which, Round round) {
    Range range("evaluation");
    const EvalLoader *eval = &run->evals[which];
    EvalBatch batch = eval_batch(eval, round.batch);
    int64_t N = (int64_t)batch.sequences * eval->T;
    char phase[48];
    snprintf(phase, sizeof(phase), "%s after step", run_evals[which].name);
    comm_progress_to(t->shards.ranks, phase, run->step);
    BatchSlot *slot = next_slot(&t->feeder, &t->shards);
    eval_read(eval, batch, slot->staging, slot->staging + N);
    count_scored(eval, batch, slot->staging + 2 * N);
    queue_means(t, slot, round, batch.sequences, eval->T, eval->B);
    if (round.number > 0) { wait_for_event(&t->shards, t->evaluation.evaluated); }
    cuda_check(cudaEventRecord(t->evaluation.evaluated, t->gpu.stream));
}

// Brings the means of all batches to all hosts, and puts each mean at the place of its row.
const double *trainer_evaluation_means(Trainer *t, TrainRun *run, int which, Round last) {
    const EvalLoader *eval = &run->evals[which];
    gather_means(t, last, eval->B);
    for (int64_t number = 0; number < last.batches; number++) {
        EvalBatch batch = eval_batch(eval, number);
        const double *means = means_of_batch(t, last, number, eval->B);
        memcpy(t->evaluation.row_means + batch.first, means, (size_t)batch.sequences * sizeof(double));
    }
    return t->evaluation.row_means;
}

void trainer_append_token(Trainer *t, int token) {
    sampler_append(t->sample.history_staging, &t->sample.history_length, t->model.shape.T, token);
}

// Computes the logits (V) of the token after the sample so far, by a forward pass over the whole window. The tokens in
// the window after the sample have no influence, because attention is causal.
const float *trainer_next_logits(Trainer *t) {
    int T = t->model.shape.T, C = t->model.config.channels, V = t->model.config.vocab_size,
        last = t->sample.history_length - 1;
    cuda_check(cudaMemcpyAsync(t->sample.history, t->sample.history_staging, (size_t)T * sizeof(int32_t),
                               cudaMemcpyHostToDevice, t->gpu.stream));
    comm_progress(t->shards.ranks, "a sample");
    model_forward(&t->model, &t->gpu, &t->shards, t->sample.history, 1, T, LINEAR_FOR_LOSS);
    linear_forward(&t->gpu.cublas, lm_head_of(&t->model), t->model.acts.logits.data, NULL,
                   t->model.acts.lnf.data + (int64_t)last * C, 1, t->gpu.stream);
    cuda_check(cudaMemcpyAsync(t->sample.pinned_logits, t->model.acts.logits.data, (size_t)V * sizeof(floatX),
                               cudaMemcpyDeviceToHost, t->gpu.stream));
    wait_for_stream(&t->shards);
    memcpy(t->sample.logits, t->sample.pinned_logits, (size_t)V * sizeof(floatX));
    widen_in_place(t->sample.logits, V);
    return t->sample.logits;
}

float *trainer_begin_sample(Trainer *t) {
    t->sample.history_length = 0;
    memset(t->sample.history_staging, 0, (size_t)t->model.shape.T * sizeof(int32_t));
    return t->sample.probs;
}

// ---------------------------------------------------------------------------------------------------------------------
// 7. Main

#include "train_gpt2_program.cuh"

const TrainerFacts trainer_facts = {PROGRAM_NAME,  gpt2c_revision, PRECISION_NAME, DEFAULT_SEQ_LEN, true, 1,
                                    &stop_request, on_signal};

// Trains from the run's step to its last, or until a signal stops it.
static bool train(Trainer *t, TrainRun *run, Error *error) {
    for (;;) {
        Due due = run_what_is_due(run); // save, validate, evaluate, sample
        if ((due.any && !settle_step(t, run, error)) || !run_do_what_is_due(run, due, error)) { return false; }
        if (due.last || run_is_stopping()) { return settle_step(t, run, error) && run_end_training(run, error); }
        if (!train_step(t, run, error)) { return false; }
    }
}

int main(int argc, char **argv) {
    static Trainer trainer; // zero; large, so not on the stack
    static TrainOptions options;
    static TrainRun run;
    Trainer *t = run.trainer = &trainer;
    Error error;
    int status;
    if (!run_parse(&run, &options, argc, argv, &status)) { return status; }
    bool ok = join(&run, &error) && run_open_inputs(&run, &options, &error) && settle(&run, &options, &error);
    if (ok) {
        plan(t, &run);
        print_run(t, &run);
    }
    if (ok && !train_options_plan(&options)) {
        ok = start(t, &run, &error) &&
             (run_kind(&run) == RUN_TRAINS ? train(t, &run, &error) : run_evaluate_only(&run, &error)) &&
             finish(t, &run, &error);
    }
    if (!ok) { run_fail(&run, &error); }
    run_close(&run);
    gpt2_close(t);
    ranks_close(run.comm);
    return run_exit(&run, ok, &error);
}
