// GPT-2 training on one GPU, in bf16 with fp32 master weights (or in fp32: make PRECISION=FP32). The layers are the
// kernels in llmc/*.cuh; here is what is made of them. Read it from top to bottom:
//
//   1. the model       the memory plan, a forward and a backward pass over all layers
//   2. the update      gradient norm, AdamW, results that arrive one step late
//   3. batches         token windows on their way to the GPU
//   4. state           weights and moments to and from the host
//   5. the program     load, plan, train, evaluate, sample, save
//
// Shapes use the field's letters: B sequences of T tokens, C channels, NH heads of size HS = C / NH, L layers, V tokens
// in the vocabulary (Vp with padding), N = B*T rows. The same model, layer by layer, on the CPU: train_gpt2.c.
//
// Three rules hold throughout:
// - Gradients of parameters are fp32 and are added to (+=); gradients of activations are floatX and, but for the
//   residual stream's, written (=).
// - The same inputs give the same bits: sums run in an order that follows from the shapes alone.
// - The host never waits for the GPU inside a step. What it wants to know of a step (loss, norm) it reads while the
// next
//   one runs. Nothing is allocated after the start.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <nvtx3/nvToolsExt.h>

#include "llmc/adamw.cuh"
#include "llmc/attention.cuh"
#include "llmc/cublas_common.h"
#include "llmc/cuda_common.h"
#include "llmc/encoder.cuh"
#include "llmc/finite.cuh"
#include "llmc/fused_classifier.cuh"
#include "llmc/gelu.cuh"
#include "llmc/global_norm.cuh"
#include "llmc/gpt2.h"
#include "llmc/gpu_monitor.h"
#include "llmc/gpu_peak.h"
#include "llmc/layernorm.cuh"
#include "llmc/matmul.cuh"
#include "llmc/memory_plan.h"
#include "llmc/run_report.h"
#include "llmc/train_run.h"
#include "llmc/utils.h"

// ---------------------------------------------------------------------------------------------------------------------
// 1. The model

// The phases of a step, in time order: rows of the plan that never live in the same phase may share memory. Samples are
// a forward and a head like any other.
enum { FORWARD, HEAD, BACKWARD_MLP, BACKWARD_ATTENTION, UPDATE };
static const char *const phase_names[] = {"forward", "head", "backward mlp", "backward attention", "update"};
static const char *const host_phase_names[] = {"all"};

// What --recompute gives up: these activations are kept for one layer only and computed again in the backward.
enum { RECOMPUTE_NOTHING, RECOMPUTE_GELU, RECOMPUTE_LAYERNORM, RECOMPUTE_BLOCK };

// What --gelu-fusion moves into the matrix multiplies.
enum { FUSE_NOTHING, FUSE_GELU_FORWARD, FUSE_GELU_BACKWARD };

// The 16 tensors of the model by name; those of a block are the ones of one layer.
#define TENSOR_POINTER(name, ...) T *name;
template <class T> struct Tensors { GPT2_PARAMETERS(TENSOR_POINTER) };

template <class T> static Tensors<T> tensors_of(T *memory, const GPT2Config *config, int layer) {
    Tensors<T> tensors;
    T **pointers[NUM_PARAM_TENSORS];
    int n = 0;
#define TENSOR_ADDRESS(name, ...) pointers[n++] = &tensors.name;
    GPT2_PARAMETERS(TENSOR_ADDRESS)
    for (int i = 0; i < n; i++) {
        int64_t of_layer = gpt2_param_size(config, i) / gpt2_param_layers(config, i);
        *pointers[i] = memory + gpt2_param_offset(config, i) + (gpt2_param_specs[i].per_layer ? layer * of_layer : 0);
    }
    return tensors;
}

// An activation that is kept for each layer (stride > 0), or for one layer at a time (stride 0).
template <class T> struct PerLayer {
    T *data;
    int64_t stride;
    T *of(int layer) const { return data + layer * stride; }
};

// What a run needs memory for. Whoever evaluates needs no gradients, and each activation for one layer only.
typedef enum { RUN_GENERATES, RUN_EVALUATES, RUN_TRAINS } RunKind;

typedef struct {
    RunKind kind;
    int B, T;         // the largest batch there is room for
    int recompute;    // one of the levels above
    int gelu_fusion;  // likewise
    bool has_master;  // fp32 weights beside the bf16 ones
    bool keeps_state; // the host has room for the optimizer's state, to save or resume
} RunShape;

#define NUM_SLOTS 2 // batches under way
#define NUM_STEPS 3 // steps whose events are held: the one being queued, the one not yet read, and the one before it

// A batch on its way: what the GPU works on and what is copied there meanwhile never share memory.
typedef struct {
    int32_t *staging, *device; // (3,N) in pinned and in GPU memory: tokens, targets, rows in order of tokens
    cudaEvent_t uploaded, no_longer_used;
} BatchSlot;

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

    floatX *params; // (number of parameters) each
    float *master, *grads, *adam_m, *adam_v;

    PerLayer<floatX> residual; // (L+1) x (N,C): the input of each block, and the output of the last
    PerLayer<floatX> ln1, qkv, att, residual_mid, ln2, fc, gelu;
    PerLayer<float> ln1_mean, ln1_rstd, att_lse, ln2_mean, ln2_rstd;
    floatX *projection, *lnf; // (N,C)
    float *lnf_mean, *lnf_rstd, *losses;
    int head_rows;  // rows of logits that exist at a time
    floatX *logits; // (head_rows,Vp)

    floatX *dresidual, *dln, *dlnf, *dqkv, *datt, *dfc; // gradients of activations, for one layer at a time
    float *att_dots, *sum_scratch;
    double *norm_partials, *loss_sum;
    StepResult *result;
    int32_t *flag, *history;
    void *cublas_workspace;

    BatchSlot slots[NUM_SLOTS];
    int64_t batches;          // uploaded so far
    StepResult *results;      // (NUM_STEPS), pinned
    double *validation_sum;   // pinned
    floatX *sample_logits;    // (Vp), pinned
    int32_t *history_staging; // (T), pinned: the tokens so far of a sample
    int history_length;
    float *host_params, *host_m, *host_v;  // (number of parameters) each
    float *host_logits, *sampler_probs;    // (V)
    int32_t *sampler_index, *token_counts; // (V), (V+1)

    MemoryPlan device_plan, pinned_plan, host_plan;
    CublasContext cublas;
    cudaStream_t stream, copy_stream;
    cudaEvent_t step_begun[NUM_STEPS], step_reduced[NUM_STEPS], step_done[NUM_STEPS];
    PendingStep pending;
    int64_t steps_begun;
    cudaDeviceProp gpu;
    double peak_flops; // of the GPU; 0: not known
    GpuMonitor monitor;
} GPT2;

// A name over what is launched until the end of the scope, for the profiler's time line.
struct Range {
    explicit Range(const char *name) { nvtxRangePushA(name); }
    ~Range() { nvtxRangePop(); }
    Range(const Range &) = delete;
    Range &operator=(const Range &) = delete;
};

#define HEAD_ROWS 8192 // enough rows for the matrix multiplies to fill any GPU

template <class T>
static void plan_per_layer(MemoryPlan *plan, PerLayer<T> *activation, const char *name, int layers, bool keep,
                           int64_t N, int64_t width) {
    activation->stride = keep ? N * width : 0;
    PlanShape shape = width > 1 ? shape3(keep ? layers : 1, N, width) : shape2(keep ? layers : 1, N);
    plan_add(plan, &activation->data, name, PLAN_ACTIVATION, sizeof(T) == 2 ? PLAN_BF16 : PLAN_F32, shape, FORWARD,
             BACKWARD_ATTENTION);
}

// Activations: a block's are there from its forward to its backward.
static void plan_activations(GPT2 *model, MemoryPlan *plan, int64_t N) {
    const GPT2Config *config = &model->config;
    int L = config->num_layers, C = config->channels;
    bool trains = model->shape.kind == RUN_TRAINS;
    int r = trains ? model->shape.recompute : RECOMPUTE_BLOCK;
    PlanCategory act = PLAN_ACTIVATION;
    plan_per_layer(plan, &model->residual, "residual", L + 1, trains, N, C);
    plan_per_layer(plan, &model->ln1_mean, "ln1_mean", L, r < RECOMPUTE_BLOCK, N, 1);
    plan_per_layer(plan, &model->ln1_rstd, "ln1_rstd", L, r < RECOMPUTE_BLOCK, N, 1);
    plan_per_layer(plan, &model->ln1, "ln1", L, r < RECOMPUTE_LAYERNORM, N, C);
    plan_per_layer(plan, &model->qkv, "qkv", L, r < RECOMPUTE_BLOCK, N, 3 * C);
    plan_per_layer(plan, &model->att, "att", L, r < RECOMPUTE_BLOCK, N, C);
    plan_per_layer(plan, &model->att_lse, "att_lse", L, r < RECOMPUTE_BLOCK, N, config->num_heads);
    plan_per_layer(plan, &model->residual_mid, "residual_mid", L, r < RECOMPUTE_BLOCK, N, C);
    plan_per_layer(plan, &model->ln2_mean, "ln2_mean", L, r < RECOMPUTE_BLOCK, N, 1);
    plan_per_layer(plan, &model->ln2_rstd, "ln2_rstd", L, r < RECOMPUTE_BLOCK, N, 1);
    plan_per_layer(plan, &model->ln2, "ln2", L, r < RECOMPUTE_LAYERNORM, N, C);
    plan_per_layer(plan, &model->fc, "fc", L, r < RECOMPUTE_BLOCK, N, 4 * C);
    plan_per_layer(plan, &model->gelu, "gelu", L, r < RECOMPUTE_GELU, N, 4 * C);
    model->head_rows = (int)min_i64(N, HEAD_ROWS);
    plan_add(plan, &model->projection, "projection", act, PLAN_FLOATX, shape2(N, C), FORWARD, BACKWARD_ATTENTION);
    plan_add(plan, &model->lnf, "lnf", act, PLAN_FLOATX, shape2(N, C), FORWARD, HEAD);
    plan_add(plan, &model->lnf_mean, "lnf_mean", act, PLAN_F32, shape1(N), FORWARD, HEAD);
    plan_add(plan, &model->lnf_rstd, "lnf_rstd", act, PLAN_F32, shape1(N), FORWARD, HEAD);
    plan_add(plan, &model->losses, "losses", act, PLAN_F32, shape1(N), HEAD, HEAD);
    plan_add(plan, &model->logits, "logits", act, PLAN_FLOATX, shape2(model->head_rows, config->padded_vocab_size),
             HEAD, HEAD);
}

// The layers that sum over rows take turns with one scratch buffer.
static int64_t sum_scratch_floats(int64_t N, int C) {
    int64_t most = layernorm_backward_scratch_floats(N, C);
    for (int width = C; width <= 4 * C; width += C) {
        most = max_i64(most, matmul_backward_bias_scratch_floats(N, width));
    }
    return most;
}

static void plan_backward(GPT2 *model, MemoryPlan *plan, int64_t N, int64_t num_params) {
    int C = model->config.channels, NH = model->config.num_heads;
    PlanCategory gradient = PLAN_GRADIENT, work = PLAN_WORKSPACE;
    plan_add(plan, &model->dresidual, "dresidual", gradient, PLAN_FLOATX, shape2(N, C), HEAD, BACKWARD_ATTENTION);
    plan_add(plan, &model->dlnf, "dlnf", gradient, PLAN_FLOATX, shape2(N, C), HEAD, HEAD);
    plan_add(plan, &model->dfc, "dfc", gradient, PLAN_FLOATX, shape2(N, 4 * C), BACKWARD_MLP, BACKWARD_MLP);
    plan_add(plan, &model->dln, "dln", gradient, PLAN_FLOATX, shape2(N, C), BACKWARD_MLP, BACKWARD_ATTENTION);
    plan_add(plan, &model->datt, "datt", gradient, PLAN_FLOATX, shape2(N, C), BACKWARD_ATTENTION, BACKWARD_ATTENTION);
    plan_add(plan, &model->dqkv, "dqkv", gradient, PLAN_FLOATX, shape2(N, 3 * C), BACKWARD_ATTENTION,
             BACKWARD_ATTENTION);
    plan_add(plan, &model->att_dots, "att_dots", work, PLAN_F32, shape2(N, NH), BACKWARD_ATTENTION, BACKWARD_ATTENTION);
    plan_add(plan, &model->sum_scratch, "sum_scratch", work, PLAN_F32, shape1(sum_scratch_floats(N, C)), HEAD,
             BACKWARD_ATTENTION);
    plan_add(plan, &model->norm_partials, "norm_partials", work, PLAN_F64,
             shape1(global_norm_scratch_doubles(num_params)), UPDATE, UPDATE);
}

static_assert(sizeof(StepResult) % sizeof(double) == 0, "results are planned as doubles");
static_assert(GLOBAL_NORM_USABLE == LARGEST_NORM, "the GPU refuses the norms that the CPU trainer refuses");
#define RESULT_DOUBLES ((int64_t)(sizeof(StepResult) / sizeof(double)))

// Everything on the GPU. N: rows of the largest batch.
static void plan_device(GPT2 *model, int64_t N) {
    MemoryPlan *plan = &model->device_plan;
    bool trains = model->shape.kind == RUN_TRAINS;
    int64_t num_params = gpt2_num_params(&model->config), trained = trains ? num_params : 0;
    PlanCategory optimizer = PLAN_OPTIMIZER;
    plan_init(plan, phase_names);
    plan_add(plan, &model->params, "params", PLAN_PARAMETER, PLAN_FLOATX, shape1(num_params), FORWARD, UPDATE);
    plan_add(plan, &model->master, "master", optimizer, PLAN_F32, shape1(model->shape.has_master ? trained : 0),
             FORWARD, UPDATE);
    plan_add(plan, &model->grads, "grads", PLAN_GRADIENT, PLAN_F32, shape1(trained), FORWARD, UPDATE);
    plan_add(plan, &model->adam_m, "adam_m", optimizer, PLAN_F32, shape1(trained), FORWARD, UPDATE);
    plan_add(plan, &model->adam_v, "adam_v", optimizer, PLAN_F32, shape1(trained), FORWARD, UPDATE);
    for (int i = 0; i < NUM_SLOTS; i++) {
        plan_add(plan, &model->slots[i].device, i == 0 ? "batch_0" : "batch_1", PLAN_DATA, PLAN_I32, shape2(3, N),
                 FORWARD, UPDATE);
    }
    plan_add(plan, &model->history, "history", PLAN_DATA, PLAN_I32, shape1(model->shape.T), FORWARD, UPDATE);
    plan_activations(model, plan, N);
    if (trains) { plan_backward(model, plan, N, num_params); }
    plan_add(plan, &model->loss_sum, "loss_sum", PLAN_WORKSPACE, PLAN_F64, shape1(1), FORWARD, UPDATE);
    plan_add(plan, &model->result, "result", PLAN_WORKSPACE, PLAN_F64, shape1(RESULT_DOUBLES), FORWARD, UPDATE);
    plan_add(plan, &model->flag, "flag", PLAN_WORKSPACE, PLAN_I32, shape1(1), FORWARD, UPDATE);
    plan_add(plan, &model->cublas_workspace, "cublas", PLAN_WORKSPACE, PLAN_F32,
             shape1(CUBLAS_WORKSPACE_BYTES / (int64_t)sizeof(float)), FORWARD, UPDATE);
    plan_layout(plan);
}

// What the host shares with the GPU (pinned), and what it keeps for itself.
static void plan_host(GPT2 *model, int64_t N) {
    const GPT2Config *config = &model->config;
    int64_t num_params = gpt2_num_params(config), state = model->shape.keeps_state ? num_params : 0;
    int64_t V = config->vocab_size, Vp = config->padded_vocab_size;
    MemoryPlan *plan = &model->pinned_plan;
    plan_init(plan, host_phase_names);
    for (int i = 0; i < NUM_SLOTS; i++) {
        plan_add(plan, &model->slots[i].staging, i == 0 ? "staging_0" : "staging_1", PLAN_DATA, PLAN_I32, shape2(3, N),
                 0, 0);
    }
    plan_add(plan, &model->results, "results", PLAN_DATA, PLAN_F64, shape2(NUM_STEPS, RESULT_DOUBLES), 0, 0);
    plan_add(plan, &model->validation_sum, "validation_sum", PLAN_DATA, PLAN_F64, shape1(1), 0, 0);
    plan_add(plan, &model->sample_logits, "sample_logits", PLAN_DATA, PLAN_FLOATX, shape1(Vp), 0, 0);
    plan_add(plan, &model->history_staging, "history_staging", PLAN_DATA, PLAN_I32, shape1(model->shape.T), 0, 0);
    plan_layout(plan);
    plan = &model->host_plan;
    plan_init(plan, host_phase_names);
    plan_add(plan, &model->host_params, "host_params", PLAN_PARAMETER, PLAN_F32, shape1(num_params), 0, 0);
    plan_add(plan, &model->host_m, "host_m", PLAN_OPTIMIZER, PLAN_F32, shape1(state), 0, 0);
    plan_add(plan, &model->host_v, "host_v", PLAN_OPTIMIZER, PLAN_F32, shape1(state), 0, 0);
    plan_add(plan, &model->host_logits, "host_logits", PLAN_WORKSPACE, PLAN_F32, shape1(V), 0, 0);
    plan_add(plan, &model->sampler_probs, "sampler_probs", PLAN_WORKSPACE, PLAN_F32, shape1(V), 0, 0);
    plan_add(plan, &model->sampler_index, "sampler_index", PLAN_WORKSPACE, PLAN_I32, shape1(V), 0, 0);
    plan_add(plan, &model->token_counts, "token_counts", PLAN_WORKSPACE, PLAN_I32, shape1(V + 1), 0, 0);
    plan_layout(plan);
}

// Plans every buffer of a run.
static void gpt2_plan(GPT2 *model, const GPT2Config *config, RunShape shape) {
    memset(model, 0, sizeof(*model));
    model->config = *config, model->shape = shape;
    int64_t N = (int64_t)shape.B * shape.T;
    plan_device(model, N);
    plan_host(model, N);
}

// A block up to the input of its last matmul, from ln1, which the block before has left:
//   mid = x + attention(ln1); ln2 = layernorm(mid); fc, gelu
static void block_forward(GPT2 *model, int layer, int B, int T) {
    int C = model->config.channels, NH = model->config.num_heads;
    int64_t N = (int64_t)B * T;
    Tensors<floatX> p = tensors_of(model->params, &model->config, layer);
    CublasContext *cublas = &model->cublas;
    cudaStream_t stream = model->stream;
    floatX *qkv = model->qkv.of(layer), *att = model->att.of(layer), *mid = model->residual_mid.of(layer);
    floatX *ln2 = model->ln2.of(layer), *fc = model->fc.of(layer), *gelu = model->gelu.of(layer);
    matmul_forward(cublas, qkv, NULL, model->ln1.of(layer), p.qkvw, p.qkvb, N, C, 3 * C, stream);
    attention_forward(att, model->att_lse.of(layer), qkv, B, T, C, NH, stream);
    matmul_forward(cublas, model->projection, NULL, att, p.attprojw, p.attprojb, N, C, C, stream);
    fused_residual_layernorm_forward(mid, ln2, model->ln2_mean.of(layer), model->ln2_rstd.of(layer),
                                     model->residual.of(layer), model->projection, p.ln2w, p.ln2b, N, C, stream);
    if (model->shape.gelu_fusion >= FUSE_GELU_FORWARD) {
        matmul_forward(cublas, gelu, fc, ln2, p.fcw, p.fcb, N, C, 4 * C, stream);
    } else {
        matmul_forward(cublas, fc, NULL, ln2, p.fcw, p.fcb, N, C, 4 * C, stream);
        gelu_forward(gelu, fc, N * 4 * C, stream);
    }
}

// All layers up to the final LayerNorm, whose output is model->lnf. tokens (B,T) on the GPU.
static void gpt2_forward(GPT2 *model, const int32_t *tokens, int B, int T) {
    Range range("forward");
    int C = model->config.channels, L = model->config.num_layers;
    int64_t N = (int64_t)B * T;
    Tensors<floatX> p = tensors_of(model->params, &model->config, 0);
    encoder_forward(model->residual.of(0), tokens, p.wte, p.wpe, B, T, C, model->stream);
    layernorm_forward(model->ln1.of(0), model->ln1_mean.of(0), model->ln1_rstd.of(0), model->residual.of(0), p.ln1w,
                      p.ln1b, N, C, model->stream);
    for (int layer = 0; layer < L; layer++) {
        p = tensors_of(model->params, &model->config, layer);
        block_forward(model, layer, B, T);
        matmul_forward(&model->cublas, model->projection, NULL, model->gelu.of(layer), p.fcprojw, p.fcprojb, N, 4 * C,
                       C, model->stream);
        bool last = layer == L - 1;
        Tensors<floatX> next = tensors_of(model->params, &model->config, last ? layer : layer + 1);
        fused_residual_layernorm_forward(model->residual.of(layer + 1), last ? model->lnf : model->ln1.of(layer + 1),
                                         last ? model->lnf_mean : model->ln1_mean.of(layer + 1),
                                         last ? model->lnf_rstd : model->ln1_rstd.of(layer + 1),
                                         model->residual_mid.of(layer), model->projection, last ? p.lnfw : next.ln1w,
                                         last ? p.lnfb : next.ln1b, N, C, model->stream);
    }
}

// The language model head and the loss, for HEAD_ROWS rows at a time, so that the logits of a whole batch never exist.
// With want_gradient it is also the head's backward, because the logits are gone afterwards: dlnf is set, dwte is added
// to. dloss is the gradient of each row's loss. The sum of the losses replaces *loss_sum, or is added to it.
static void head_forward_backward(GPT2 *model, const int32_t *targets, int64_t N, float dloss, bool want_gradient,
                                  bool add_losses) {
    Range range("head");
    int C = model->config.channels, V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    CublasContext *cublas = &model->cublas;
    floatX *wte = model->params;
    for (int64_t row = 0; row < N; row += model->head_rows) {
        int64_t rows = min_i64(model->head_rows, N - row);
        const floatX *lnf = model->lnf + row * C;
        matmul_forward(cublas, model->logits, NULL, lnf, wte, NULL, rows, C, Vp, model->stream);
        fused_classifier(model->losses + row, model->logits, targets + row, rows, V, Vp, dloss, want_gradient,
                         model->stream);
        if (!want_gradient) { continue; }
        matmul_backward_input(cublas, model->dlnf + row * C, model->logits, wte, NULL, rows, C, Vp, model->stream);
        matmul_backward_weight(cublas, model->grads, model->logits, lnf, rows, C, Vp, model->stream);
    }
    sum_losses(model->loss_sum, model->losses, N, add_losses, model->stream);
}

// Brings back what --recompute did not keep for this layer. The same kernels on the same inputs: the same bits. The
// last layer's activations are still there.
static void recompute_layer(GPT2 *model, int layer, int B, int T) {
    int C = model->config.channels, level = model->shape.recompute;
    int64_t N = (int64_t)B * T;
    if (layer == model->config.num_layers - 1 || level == RECOMPUTE_NOTHING) { return; }
    Tensors<floatX> p = tensors_of(model->params, &model->config, layer);
    cudaStream_t stream = model->stream;
    if (level >= RECOMPUTE_LAYERNORM) {
        layernorm_forward(model->ln1.of(layer), model->ln1_mean.of(layer), model->ln1_rstd.of(layer),
                          model->residual.of(layer), p.ln1w, p.ln1b, N, C, stream);
    }
    if (level == RECOMPUTE_BLOCK) {
        block_forward(model, layer, B, T);
        return;
    }
    if (level >= RECOMPUTE_LAYERNORM) {
        layernorm_forward(model->ln2.of(layer), model->ln2_mean.of(layer), model->ln2_rstd.of(layer),
                          model->residual_mid.of(layer), p.ln2w, p.ln2b, N, C, stream);
    }
    if (model->shape.gelu_fusion >= FUSE_GELU_FORWARD) { // another GELU than the multiply's might round differently
        matmul_forward(&model->cublas, model->gelu.of(layer), model->fc.of(layer), model->ln2.of(layer), p.fcw, p.fcb,
                       N, C, 4 * C, stream);
    } else {
        gelu_forward(model->gelu.of(layer), model->fc.of(layer), N * 4 * C, stream);
    }
}

// The gradients of a linear layer: dinp = dout weight (NULL: not wanted), dweight += dout^T inp, dbias += sum of the
// rows of dout. pre_gelu: see matmul_backward_input.
static void linear_backward(GPT2 *model, floatX *dinp, float *dweight, float *dbias, const floatX *dout,
                            const floatX *inp, const floatX *weight, const floatX *pre_gelu, int64_t N, int C, int OC) {
    matmul_backward_bias(dbias, dout, model->sum_scratch, N, OC, model->stream);
    matmul_backward_weight(&model->cublas, dweight, dout, inp, N, C, OC, model->stream);
    matmul_backward_input(&model->cublas, dinp, dout, weight, pre_gelu, N, C, OC, model->stream);
}

// The two halves of a block's backward. dresidual holds the gradient of the block's output on entry and of its input in
// the end: the residual stream passes through both halves unchanged, and each half adds its own.
static void block_backward_mlp(GPT2 *model, int layer, int B, int T) {
    int C = model->config.channels;
    int64_t N = (int64_t)B * T;
    Tensors<floatX> p = tensors_of(model->params, &model->config, layer);
    Tensors<float> g = tensors_of(model->grads, &model->config, layer);
    const floatX *fc = model->fc.of(layer);
    bool fused = model->shape.gelu_fusion >= FUSE_GELU_BACKWARD;
    linear_backward(model, model->dfc, g.fcprojw, g.fcprojb, model->dresidual, model->gelu.of(layer), p.fcprojw,
                    fused ? fc : NULL, N, 4 * C, C);
    if (!fused) { gelu_backward(model->dfc, fc, model->dfc, N * 4 * C, model->stream); }
    linear_backward(model, model->dln, g.fcw, g.fcb, model->dfc, model->ln2.of(layer), p.fcw, NULL, N, C, 4 * C);
    layernorm_backward(model->dresidual, g.ln2w, g.ln2b, model->dln, model->residual_mid.of(layer),
                       model->ln2_mean.of(layer), model->ln2_rstd.of(layer), p.ln2w, model->sum_scratch, N, C,
                       model->stream);
}

static void block_backward_attention(GPT2 *model, int layer, int B, int T) {
    int C = model->config.channels, NH = model->config.num_heads;
    int64_t N = (int64_t)B * T;
    Tensors<floatX> p = tensors_of(model->params, &model->config, layer);
    Tensors<float> g = tensors_of(model->grads, &model->config, layer);
    const floatX *att = model->att.of(layer);
    linear_backward(model, model->datt, g.attprojw, g.attprojb, model->dresidual, att, p.attprojw, NULL, N, C, C);
    attention_backward(model->dqkv, model->datt, model->qkv.of(layer), att, model->att_lse.of(layer), model->att_dots,
                       B, T, C, NH, model->stream);
    linear_backward(model, model->dln, g.qkvw, g.qkvb, model->dqkv, model->ln1.of(layer), p.qkvw, NULL, N, C, 3 * C);
    layernorm_backward(model->dresidual, g.ln1w, g.ln1b, model->dln, model->residual.of(layer),
                       model->ln1_mean.of(layer), model->ln1_rstd.of(layer), p.ln1w, model->sum_scratch, N, C,
                       model->stream);
}

// Adds the gradients of the last gpt2_forward and head_forward_backward to model->grads. tokens, order (B,T) on the
// GPU.
static void gpt2_backward(GPT2 *model, const int32_t *tokens, const int32_t *order, int B, int T) {
    Range range("backward");
    int C = model->config.channels, L = model->config.num_layers;
    int64_t N = (int64_t)B * T;
    Tensors<floatX> p = tensors_of(model->params, &model->config, 0);
    Tensors<float> g = tensors_of(model->grads, &model->config, 0);
    cuda_check(cudaMemsetAsync(model->dresidual, 0, (size_t)(N * C) * sizeof(floatX), model->stream));
    layernorm_backward(model->dresidual, g.lnfw, g.lnfb, model->dlnf, model->residual.of(L), model->lnf_mean,
                       model->lnf_rstd, p.lnfw, model->sum_scratch, N, C, model->stream);
    for (int layer = L - 1; layer >= 0; layer--) {
        recompute_layer(model, layer, B, T);
        block_backward_mlp(model, layer, B, T);
        block_backward_attention(model, layer, B, T);
    }
    encoder_backward(g.wte, g.wpe, model->dresidual, tokens, order, B, T, C, model->stream);
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. The update

static void zero_gradients(GPT2 *model) {
    size_t bytes = (size_t)gpt2_num_params(&model->config) * sizeof(float);
    cuda_check(cudaMemsetAsync(model->grads, 0, bytes, model->stream));
}

// Reduces loss and gradient to model->result, and sends that to the host. loss_factor turns the sum of the losses into
// their mean.
static void reduce_step(GPT2 *model, double loss_factor, double grad_clip, int slot) {
    int64_t n = gpt2_num_params(&model->config);
    global_norm_squared(model->norm_partials, model->grads, n, model->stream);
    global_norm_finish(model->result, model->norm_partials, n, loss_factor, model->loss_sum, (float)grad_clip,
                       model->stream);
    cuda_check(cudaMemcpyAsync(&model->results[slot], model->result, sizeof(StepResult), cudaMemcpyDeviceToHost,
                               model->stream));
    cuda_check(cudaEventRecord(model->step_reduced[slot], model->stream));
}

// AdamW over all tensors. The kernels read the gradient's scale from model->result, and touch nothing when it says that
// the loss or the norm is not a number: then and ever after, until the host has read it.
static void gpt2_update(GPT2 *model, const AdamWStep *step, float weight_decay) {
    Range range("update");
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int64_t at = gpt2_param_offset(&model->config, i), n = gpt2_param_size(&model->config, i);
        adamw_update(model->params + at, model->master == NULL ? NULL : model->master + at, model->adam_m + at,
                     model->adam_v + at, model->grads + at, n, at, gpt2_param_specs[i].decay ? weight_decay : 0.0f,
                     step, model->result, model->stream);
    }
}

template <class T> static bool find_nonfinite(GPT2 *model, const T *data, int64_t n) {
    return any_nonfinite(data, n, model->flag, model->stream);
}

// Finds the first tensor among parameters or gradients that holds a NaN or an infinity and writes its name.
template <class T>
static bool name_nonfinite_tensor(GPT2 *model, const T *memory, const char *what, char *name, size_t size) {
    const GPT2Config *config = &model->config;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int layers = gpt2_param_layers(config, i);
        int64_t n = gpt2_param_size(config, i) / layers;
        for (int layer = 0; layer < layers; layer++) {
            if (!find_nonfinite(model, memory + gpt2_param_offset(config, i) + layer * n, n)) { continue; }
            char where[32] = "";
            if (gpt2_param_specs[i].per_layer) { snprintf(where, sizeof(where), " of layer %d", layer); }
            snprintf(name, size, "%s %s%s", what, gpt2_param_specs[i].name, where);
            return true;
        }
    }
    return false;
}

// After a forward pass whose loss is not a number, and before the backward, which writes to some of the same memory:
// names where a NaN or an infinity first stands, in the order of the computation. Activations that were not kept for
// each layer are passed over.
static void name_nonfinite_forward(GPT2 *model, int64_t N, char *name, size_t size) {
    int L = model->config.num_layers, C = model->config.channels;
    const PerLayer<floatX> lnf = {model->lnf, 0};
    const struct {
        const char *name;
        PerLayer<floatX> activation;
        int64_t width;
        int first, last; // layers
    } order[] = {{"residual", model->residual, C, 0, L - 1},
                 {"ln1", model->ln1, C, 0, L - 1},
                 {"qkv", model->qkv, 3 * C, 0, L - 1},
                 {"att", model->att, C, 0, L - 1},
                 {"residual_mid", model->residual_mid, C, 0, L - 1},
                 {"ln2", model->ln2, C, 0, L - 1},
                 {"fc", model->fc, 4 * C, 0, L - 1},
                 {"gelu", model->gelu, 4 * C, 0, L - 1},
                 {"residual", model->residual, C, L, L},
                 {"lnf", lnf, C, L, L}};
    if (name_nonfinite_tensor(model, model->params, "parameter", name, size)) { return; }
    for (int layer = 0; layer <= L; layer++) {
        for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
            bool there = order[i].activation.stride > 0 || layer == L;
            if (layer < order[i].first || layer > order[i].last || !there) { continue; }
            if (!find_nonfinite(model, order[i].activation.of(layer), N * order[i].width)) { continue; }
            snprintf(name, size, "activation %s", order[i].name);
            if (layer < L) { snprintf(name, size, "activation %s of layer %d", order[i].name, layer); }
            return;
        }
    }
    snprintf(name, size, "the losses");
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. Batches

// A slot for the next batch, its staging memory free to be written to.
static BatchSlot *next_slot(GPT2 *model) {
    BatchSlot *slot = &model->slots[model->batches++ % NUM_SLOTS];
    cuda_check(cudaEventSynchronize(slot->uploaded)); // of the batch before in this slot: long past
    return slot;
}

// Sends a slot's N rows to the GPU on a stream of their own, beside the work on the batch before. What is launched on
// model->stream from here on may use them.
static void upload_batch(GPT2 *model, BatchSlot *slot, int64_t N) {
    encoder_order_tokens(slot->staging + 2 * N, slot->staging, N, model->config.vocab_size, model->token_counts);
    cuda_check(cudaStreamWaitEvent(model->copy_stream, slot->no_longer_used, 0));
    cuda_check(cudaMemcpyAsync(slot->device, slot->staging, (size_t)(3 * N) * sizeof(int32_t), cudaMemcpyHostToDevice,
                               model->copy_stream));
    cuda_check(cudaEventRecord(slot->uploaded, model->copy_stream));
    cuda_check(cudaStreamWaitEvent(model->stream, slot->uploaded, 0));
}

static void release_batch(GPT2 *model, BatchSlot *slot) {
    cuda_check(cudaEventRecord(slot->no_longer_used, model->stream));
}

// Forward, and with want_gradient backward, of the batch of N = B*T rows in a slot's staging memory.
static void run_batch(GPT2 *model, BatchSlot *slot, int B, int T, float dloss, bool want_gradient, bool add_losses) {
    int64_t N = (int64_t)B * T;
    upload_batch(model, slot, N);
    const int32_t *tokens = slot->device, *targets = tokens + N, *order = targets + N;
    gpt2_forward(model, tokens, B, T);
    head_forward_backward(model, targets, N, dloss, want_gradient, add_losses);
    if (want_gradient) { gpt2_backward(model, tokens, order, B, T); }
    release_batch(model, slot);
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. State

// Parameters pass through a buffer on the GPU on their way to bf16, so many at a time.
#define CHUNK_FLOATS (CUBLAS_WORKSPACE_BYTES / (int64_t)sizeof(float))

// Sets the GPU's parameters from host_params. updates: how many have been made of them. The bf16 weights of a resumed
// run are rounded as its last update rounded them: the same bits.
static void upload_params(GPT2 *model, uint64_t seed, int64_t updates) {
    int64_t n = gpt2_num_params(&model->config);
    size_t bytes = (size_t)n * sizeof(float);
    float *chunk = (float *)model->cublas_workspace;
    uint64_t key = rounding_key(seed, updates);
    if (model->master != NULL) {
        cuda_check(cudaMemcpyAsync(model->master, model->host_params, bytes, cudaMemcpyHostToDevice, model->stream));
        params_from_master(model->params, model->master, n, 0, key, updates > 0, model->stream);
        return;
    }
    for (int64_t at = 0; at < n; at += CHUNK_FLOATS) { // without master weights the host's are exact
        int64_t count = min_i64(CHUNK_FLOATS, n - at);
        cuda_check(cudaMemcpyAsync(chunk, model->host_params + at, (size_t)count * sizeof(float),
                                   cudaMemcpyHostToDevice, model->stream));
        params_from_master(model->params + at, chunk, count, at, key, false, model->stream);
    }
}

static void upload_state(GPT2 *model, uint64_t seed, int64_t updates, bool moments) {
    size_t bytes = (size_t)gpt2_num_params(&model->config) * sizeof(float);
    upload_params(model, seed, updates);
    if (model->shape.kind == RUN_TRAINS) {
        if (moments) {
            cuda_check(cudaMemcpyAsync(model->adam_m, model->host_m, bytes, cudaMemcpyHostToDevice, model->stream));
            cuda_check(cudaMemcpyAsync(model->adam_v, model->host_v, bytes, cudaMemcpyHostToDevice, model->stream));
        } else {
            cuda_check(cudaMemsetAsync(model->adam_m, 0, bytes, model->stream));
            cuda_check(cudaMemsetAsync(model->adam_v, 0, bytes, model->stream));
        }
    }
    cuda_check(cudaMemsetAsync(model->result, 0, sizeof(StepResult), model->stream));
    cuda_check(cudaStreamSynchronize(model->stream));
}

// n values of floatX at the beginning of a buffer become floats, in place.
static void widen_in_place(float *memory, int64_t n) {
#ifdef PRECISION_FP32
    (void)memory, (void)n;
#else
    const unsigned char *narrow = (const unsigned char *)memory;
    for (int64_t i = n - 1; i >= 0; i--) { // from the end: a float is written where only later bf16 stood
        uint16_t bits;
        memcpy(&bits, narrow + 2 * i, sizeof(bits));
        memory[i] = float_from_bf16(bits);
    }
#endif
}

// Brings the parameters to host_params in fp32: the master weights where there are any.
static void download_params(GPT2 *model) {
    int64_t n = gpt2_num_params(&model->config);
    if (model->master != NULL) {
        cuda_check(cudaMemcpyAsync(model->host_params, model->master, (size_t)n * sizeof(float), cudaMemcpyDeviceToHost,
                                   model->stream));
        cuda_check(cudaStreamSynchronize(model->stream));
        return;
    }
    cuda_check(cudaMemcpyAsync(model->host_params, model->params, (size_t)n * sizeof(floatX), cudaMemcpyDeviceToHost,
                               model->stream));
    cuda_check(cudaStreamSynchronize(model->stream));
    widen_in_place(model->host_params, n);
}

static void download_moments(GPT2 *model) {
    size_t bytes = (size_t)gpt2_num_params(&model->config) * sizeof(float);
    cuda_check(cudaMemcpyAsync(model->host_m, model->adam_m, bytes, cudaMemcpyDeviceToHost, model->stream));
    cuda_check(cudaMemcpyAsync(model->host_v, model->adam_v, bytes, cudaMemcpyDeviceToHost, model->stream));
    cuda_check(cudaStreamSynchronize(model->stream));
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. The program

static const char *const PROGRAM = "train_gpt2cu";
#define DEFAULT_SEQ_LEN 1024

// Set by SIGINT and SIGTERM: the run saves and ends at the next chance. A second signal ends it at once.
static volatile sig_atomic_t stop_requested = 0;

static void on_stop_signal(int signal_number) {
    if (stop_requested) { _exit(128 + signal_number); }
    stop_requested = 1;
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
#ifdef PRECISION_FP32
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

// The version as people write it: 13000 is 13.0.
static void cuda_version_text(char *text, size_t size, int version) {
    snprintf(text, size, "%d.%d", version / 1000, version % 1000 / 10);
}

// Finds the GPU. Describes what is missing in words of its own, since this is where most first runs fail.
static bool find_gpu(cudaDeviceProp *properties, Error *error) {
    int devices = 0, driver = 0, runtime = 0;
    char driver_text[32], runtime_text[32];
    cudaError_t status = cudaGetDeviceCount(&devices);
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cuda_version_text(driver_text, sizeof(driver_text), driver);
    cuda_version_text(runtime_text, sizeof(runtime_text), runtime);
    if (driver == 0) {
        return fail(error, "no GPU: there is no NVIDIA driver here (nvidia-smi shows it); train_gpt2 runs on the CPU");
    }
    if (status == cudaErrorInsufficientDriver || (driver / 1000 < runtime / 1000)) {
        return fail(error,
                    "the NVIDIA driver is too old: it supports CUDA %s, this program was built with CUDA %s; update "
                    "the driver, or build with an older toolkit",
                    driver_text, runtime_text);
    }
    if (status == cudaErrorNoDevice || (status == cudaSuccess && devices == 0)) {
        return fail(error, "no GPU: the driver shows none; see nvidia-smi and CUDA_VISIBLE_DEVICES (train_gpt2 runs on "
                           "the CPU)");
    }
    if (status != cudaSuccess) {
        return fail(error, "no GPU: %s (%s); see nvidia-smi", cudaGetErrorString(status), cudaGetErrorName(status));
    }
    cuda_check(cudaSetDevice(0));
    cuda_check(cudaGetDeviceProperties(properties, 0));
    if (properties->major < 8) {
        return fail(error, "%s has compute capability %d.%d; this program needs 8.0 (Ampere) or later",
                    properties->name, properties->major, properties->minor);
    }
    return true;
}

static void create_event(cudaEvent_t *event, unsigned flags) { cuda_check(cudaEventCreateWithFlags(event, flags)); }

// Opens the GPU and allocates what was planned.
static bool gpt2_open(GPT2 *model, bool tf32, Error *error) {
    char bus_id[32] = "";
    if (!find_gpu(&model->gpu, error)) { return false; }
    model->peak_flops =
        1e12 * gpu_peak_tflops(model->gpu.name, PRECISION_IS_FP32 ? (tf32 ? GPU_TF32 : GPU_FP32) : GPU_BF16);
    cuda_check(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), 0));
    gpu_monitor_open(&model->monitor, bus_id);
    cuda_check(cudaStreamCreateWithFlags(&model->stream, cudaStreamNonBlocking));
    cuda_check(cudaStreamCreateWithFlags(&model->copy_stream, cudaStreamNonBlocking));
    for (int i = 0; i < NUM_SLOTS; i++) {
        create_event(&model->slots[i].uploaded, cudaEventDisableTiming);
        create_event(&model->slots[i].no_longer_used, cudaEventDisableTiming);
    }
    for (int i = 0; i < NUM_STEPS; i++) {
        create_event(&model->step_begun[i], cudaEventDefault);
        create_event(&model->step_reduced[i], cudaEventDisableTiming);
        create_event(&model->step_done[i], cudaEventDefault);
    }
    if (!cublas_open(&model->cublas, tf32, error) || !plan_allocate_device(&model->device_plan, error) ||
        !plan_allocate_pinned(&model->pinned_plan, error) || !plan_allocate(&model->host_plan, error)) {
        return false;
    }
    cublas_set_workspace(&model->cublas, model->cublas_workspace, CUBLAS_WORKSPACE_BYTES);
    return true;
}

// Frees what gpt2_open took, however far it came.
static void gpt2_close(GPT2 *model) {
    if (model->stream == NULL) { return; }
    cudaDeviceSynchronize();
    gpu_monitor_close(&model->monitor);
    cublas_close(&model->cublas);
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
    plan_free_device(&model->device_plan);
    plan_free_pinned(&model->pinned_plan);
    plan_free(&model->host_plan);
}

// Queues the gradient of the step that begins at the run's position: all its micro-batches, added up. Sets *interrupted
// and returns early when asked to stop before the last of them; nothing is lost, the step begins anew when the run is
// resumed.
static bool accumulate_gradient(GPT2 *model, TrainRun *run, bool *interrupted, Error *error) {
    int B = (int)run->options.batch_size, T = (int)run->options.seq_len;
    int64_t N = (int64_t)B * T;
    float dloss = 1.0f / (float)run->options.total_batch;
    zero_gradients(model);
    for (int64_t i = 0; i < run->micro_batches; i++) {
        *interrupted = stop_requested && i > 0;
        if (*interrupted) { return true; }
        BatchSlot *slot = next_slot(model);
        if (!run_read_batch(run, i, slot->staging, slot->staging + N, error)) { return false; }
        run_batch(model, slot, B, T, dloss, true, i > 0);
    }
    return true;
}

// The loss's share of one row, as reduce_step wants it.
static double loss_factor(const TrainRun *run) { return 1.0 / (double)run->options.total_batch; }

// The step's gradient once more, a batch at a time, to name the tensor where a NaN or an infinity began. The weights
// are still those of that step, since nothing has been updated since (see gpt2_update).
static bool explain_stop(GPT2 *model, TrainRun *run, const PendingStep *step, const StepResult *result, Error *error) {
    int B = (int)run->options.batch_size, T = (int)run->options.seq_len;
    int64_t N = (int64_t)B * T;
    char place[64] = "the sum of squares";
    double sum = 0.0;
    run->next_sequence = step->next_sequence;
    zero_gradients(model);
    for (int64_t i = 0; i < run->micro_batches; i++) {
        BatchSlot *slot = next_slot(model);
        const int32_t *tokens = slot->device, *targets = tokens + N, *order = targets + N;
        if (!run_read_batch(run, i, slot->staging, slot->staging + N, error)) { return false; }
        upload_batch(model, slot, N);
        gpt2_forward(model, tokens, B, T);
        head_forward_backward(model, targets, N, 1.0f / (float)run->options.total_batch, true, false);
        cuda_check(cudaMemcpyAsync(&sum, model->loss_sum, sizeof(sum), cudaMemcpyDeviceToHost, model->stream));
        cuda_check(cudaStreamSynchronize(model->stream));
        if (!isfinite(sum)) {
            name_nonfinite_forward(model, N, place, sizeof(place));
            return run_fail_nonfinite(run, step->info.step, "loss", result->loss, place, error);
        }
        gpt2_backward(model, tokens, order, B, T);
        release_batch(model, slot);
    }
    name_nonfinite_tensor(model, model->grads, "gradient of", place, sizeof(place));
    return run_fail_nonfinite(run, step->info.step, "gradient norm", result->norm, place, error);
}

// Waits for loss and norm of a step. Fails when no update may be made with them.
static bool read_result(GPT2 *model, TrainRun *run, PendingStep *step, Error *error) {
    cuda_check(cudaEventSynchronize(model->step_reduced[step->slot]));
    const StepResult *result = &model->results[step->slot];
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

// Waits for the step that has not been read yet, if there is one, and logs it.
static bool settle_step(GPT2 *model, TrainRun *run, Error *error) {
    PendingStep *step = &model->pending;
    if (!step->waiting) { return true; }
    step->waiting = false;
    if (!step->judged) {
        if (!read_result(model, run, step, error)) { return false; }
        run_skips_update(run, &step->info); // no limits are set: it only keeps the statistics
    }
    cuda_check(cudaEventSynchronize(model->step_done[step->slot]));
    step->info.seconds = step_seconds(model, step);
    if (model->peak_flops > 0.0) {
        double flops = flops_per_token(&run->config, run->options.seq_len) * (double)step->info.tokens;
        step->info.peak_fraction = flops / step->info.seconds / model->peak_flops;
    }
    return logger_step(&run->logger, &step->info, error);
}

static void update_params(GPT2 *model, TrainRun *run, double lr) {
    const TrainOptions *o = &run->options;
    AdamWStep step;
    step.lr = (float)lr;
    step.beta1 = (float)o->beta1;
    step.beta2 = (float)o->beta2;
    step.epsilon = (float)o->adam_eps;
    step.update = ++run->updates;
    step.key = rounding_key((uint64_t)o->seed, step.update);
    gpt2_update(model, &step, (float)o->weight_decay);
}

static void print_gpu_state(GPT2 *model, TrainRun *run) {
    GpuState state;
    char text[160];
    if (!gpu_monitor_read(&model->monitor, &state)) { return; }
    gpu_monitor_text(&state, text, sizeof(text));
    logger_event(&run->logger, "step %lld: %s", (long long)run->step, text);
}

// Queues one step, gradient and update, and logs the one before. Only where updates may be skipped does it wait for its
// own loss and norm.
static bool train_step(GPT2 *model, TrainRun *run, bool adjoins, Error *error) {
    const TrainOptions *o = &run->options;
    bool interrupted = false, skip = false;
    PendingStep step;
    memset(&step, 0, sizeof(step));
    step.waiting = true;
    step.adjoins = adjoins && model->pending.waiting;
    step.slot = (int)(model->steps_begun++ % NUM_STEPS);
    step.next_sequence = run->next_sequence;
    step.info.step = run->step;
    step.info.tokens = o->total_batch;
    step.info.lr = schedule_lr(&run->schedule, run->step);
    cuda_check(cudaEventRecord(model->step_begun[step.slot], model->stream));
    if (!accumulate_gradient(model, run, &interrupted, error)) { return false; }
    if (interrupted) { return settle_step(model, run, error); }
    reduce_step(model, loss_factor(run), o->grad_clip, step.slot);
    if (o->skip_loss_z > 0.0 || o->skip_grad_z > 0.0) {
        if (!settle_step(model, run, error) || !read_result(model, run, &step, error)) { return false; }
        skip = run_skips_update(run, &step.info);
        step.judged = true;
    }
    if (!skip) { update_params(model, run, step.info.lr); }
    cuda_check(cudaEventRecord(model->step_done[step.slot], model->stream));
    if (!settle_step(model, run, error)) { return false; }
    model->pending = step;
    run_advance(run);
    if (o->gpu_log_every > 0 && run->step % o->gpu_log_every == 0) { print_gpu_state(model, run); }
    return true;
}

// The mean loss over the validation sequences, always the same ones. Returns early when asked to stop: *loss is NaN.
static bool validate(GPT2 *model, TrainRun *run, double *loss, Error *error) {
    Range range("validation");
    int64_t total = run_val_sequences(run), B = run->options.batch_size, T = run->options.seq_len;
    *loss = NAN;
    for (int64_t first = 0; first < total; first += B) {
        if (stop_requested) { return true; }
        int rows = (int)min_i64(B, total - first);
        BatchSlot *slot = next_slot(model);
        if (!dataloader_read(&run->val, first, rows, slot->staging, slot->staging + rows * T, error)) { return false; }
        run_batch(model, slot, rows, (int)T, 0.0f, false, first > 0);
    }
    cuda_check(
        cudaMemcpyAsync(model->validation_sum, model->loss_sum, sizeof(double), cudaMemcpyDeviceToHost, model->stream));
    cuda_check(cudaStreamSynchronize(model->stream));
    *loss = *model->validation_sum / (double)(total * T);
    return true;
}

static bool validate_and_log(GPT2 *model, TrainRun *run, Error *error) {
    double loss;
    if (!validate(model, run, &loss, error)) { return false; }
    if (stop_requested) { return true; }
    return logger_val(&run->logger, run->step, loss, error) && run_draw_losses(run, error);
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
    int Vp = model->config.padded_vocab_size;
    cuda_check(cudaMemcpyAsync(model->history, model->history_staging, (size_t)T * sizeof(int32_t),
                               cudaMemcpyHostToDevice, model->stream));
    gpt2_forward(model, model->history, 1, T);
    matmul_forward(&model->cublas, model->logits, NULL, model->lnf + (int64_t)last * C, model->params, NULL, 1, C, Vp,
                   model->stream);
    cuda_check(cudaMemcpyAsync(model->sample_logits, model->logits, (size_t)V * sizeof(floatX), cudaMemcpyDeviceToHost,
                               model->stream));
    cuda_check(cudaStreamSynchronize(model->stream));
    memcpy(model->host_logits, model->sample_logits, (size_t)V * sizeof(floatX));
    widen_in_place(model->host_logits, V);
    return model->host_logits;
}

static bool sample(GPT2 *model, TrainRun *run) {
    SampleSource source = {model, append_to_sample, sample_logits, model->sampler_probs, model->sampler_index};
    model->history_length = 0;
    memset(model->history_staging, 0, (size_t)model->shape.T * sizeof(int32_t));
    return run_sample(run, &source, &stop_requested);
}

static bool save(GPT2 *model, TrainRun *run, Error *error) {
    download_params(model);
    download_moments(model);
    if (!run_save(run, model->host_params, model->host_m, model->host_v, error)) { return false; }
    run_report_saved(run);
    return true;
}

// What is due before the current step: save, validate, sample, in the order that train_run.h relies on. The step before
// has been settled. *busy: something was.
static bool do_what_is_due(GPT2 *model, TrainRun *run, bool last, Error *error) {
    const TrainOptions *o = &run->options;
    bool save_now = run_writes_files(run) && run->saved_step != run->step;
    if (save_now && (last || (run->step > 0 && run_is_due(run, o->checkpoint_every))) && !save(model, run, error)) {
        return false;
    }
    if (run->has_val && run_is_due(run, o->val_every) && !validate_and_log(model, run, error)) { return false; }
    if (run->step > 0 && run_is_due(run, o->sample_every) && !stop_requested) { sample(model, run); }
    return true;
}

static bool anything_is_due(const TrainRun *run) {
    const TrainOptions *o = &run->options;
    return run_is_due(run, o->val_every) || run_is_due(run, o->sample_every) ||
           (run_writes_files(run) && run_is_due(run, o->checkpoint_every));
}

// The training loop.
static bool train(GPT2 *model, TrainRun *run, Error *error) {
    for (;;) {
        bool last = run->step >= run->num_steps || stop_requested, due = last || anything_is_due(run);
        if (due && !(settle_step(model, run, error) && do_what_is_due(model, run, last, error))) { return false; }
        if (last || stop_requested) { break; }
        if (!train_step(model, run, !due, error)) { return false; }
    }
    if (!settle_step(model, run, error)) { return false; }
    if (!stop_requested) { return true; }
    if (run_writes_files(run) && run->saved_step != run->step && !save(model, run, error)) { return false; }
    run_report_stopped(run);
    return true;
}

// What --steps 0 does: evaluates and samples from the model as it is.
static bool evaluate_only(GPT2 *model, TrainRun *run, Error *error) {
    if (run->has_val && run->options.val_every > 0 && !validate_and_log(model, run, error)) { return false; }
    if (run->options.sample_every == 0 || sample(model, run)) { return true; }
    return fail(error, "the model's logits are not numbers; its parameters are damaged");
}

static RunShape choose_shape(const TrainRun *run) {
    const TrainOptions *o = &run->options;
    RunShape shape;
    memset(&shape, 0, sizeof(shape));
    shape.kind = o->steps != 0 ? RUN_TRAINS : run->has_val ? RUN_EVALUATES : RUN_GENERATES;
    shape.B = shape.kind == RUN_GENERATES ? 1 : (int)o->batch_size;
    shape.T = (int)o->seq_len;
    shape.recompute = (int)o->recompute;
    shape.gelu_fusion = (int)o->gelu_fusion;
    shape.has_master = o->master_weights && !PRECISION_IS_FP32;
    shape.keeps_state = shape.kind == RUN_TRAINS && run_writes_files(run);
    return shape;
}

static void print_config(const GPT2 *model, const TrainRun *run) {
    int HS = model->config.channels / model->config.num_heads;
    run_print_config(run);
    printf("precision   %s%s; attention on %s, heads of %d\n", PRECISION_NAME,
           model->shape.has_master ? ", fp32 master weights" : "",
           attention_uses_tensor_cores(HS) ? "tensor cores" : "plain cores", HS);
    run_print_memory(&model->device_plan, " on the GPU");
    run_print_output(run);
}

static void print_machine(const GPT2 *model, const TrainRun *run) {
    printf("machine     %s, %d multiprocessors, compute capability %d.%d", model->gpu.name,
           model->gpu.multiProcessorCount, model->gpu.major, model->gpu.minor);
    if (model->peak_flops > 0.0) { printf(", %.0f TFLOP/s by its datasheet", 1e-12 * model->peak_flops); }
    printf("\n");
    if (run->options.gpu_log_every > 0 && !gpu_monitor_is_open(&model->monitor)) {
        printf("            %s\n", model->monitor.why);
    }
    printf("\n");
}

static void print_plan(const GPT2 *model, const TrainRun *run) {
    run_print_tensors(run);
    printf("On the GPU\n");
    plan_print(&model->device_plan, stdout);
    printf("\nOn the host, pinned for copies to and from the GPU\n");
    plan_print(&model->pinned_plan, stdout);
    printf("\nOn the host\n");
    plan_print(&model->host_plan, stdout);
}

static bool load(GPT2 *model, TrainRun *run, Error *error) {
    if (!run_load(run, model->host_params, model->host_m, model->host_v, error)) { return false; }
    upload_state(model, (uint64_t)run->options.seed, run->updates, run->resumes);
    return true;
}

static bool run_program(GPT2 *model, TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (!run_open(run, 1, DEFAULT_SEQ_LEN, PRECISION_NAME, error) || !check_shape(run, error)) { return false; }
    gpt2_plan(model, &run->config, choose_shape(run));
    print_config(model, run);
    if (o->plan) {
        print_plan(model, run);
        return true;
    }
#ifdef _OPENMP
    if (o->threads > 0) { omp_set_num_threads((int)o->threads); }
#endif
    if (!gpt2_open(model, o->tf32, error) || !load(model, run, error)) { return false; }
    print_machine(model, run);
    catch_stop_signals(on_stop_signal);
    bool trains = model->shape.kind == RUN_TRAINS;
    if (!(trains ? train(model, run, error) : evaluate_only(model, run, error))) { return false; }
    if (trains) { download_params(model); }
    return run_finish(run, model->host_params, trains, stop_requested, error);
}

int main(int argc, char **argv) {
    static TrainRun run; // zero; large, so not on the stack
    static GPT2 model;
    static Error error;
    ArgsOutcome outcome;
    ignore_write_signals();
    exit_unless(train_options_parse(&run.options, argc, argv, true, &outcome, &error), PROGRAM, &error);
    if (outcome != ARGS_RUN) { return EXIT_SUCCESS; }
    bool ok = run_program(&model, &run, &error);
    run_close(&run);
    gpt2_close(&model);
    exit_unless(ok, PROGRAM, &error);
    exit_unless(stdout_is_written(&error), PROGRAM, &error);
    return EXIT_SUCCESS;
}
