// Trains GPT-2 on GPUs. The file tells the story of a step, from tokens to updated weights. The kernels are in
// llmc/layers and llmc/optim. train_gpt2.c tells this story for the CPU.
//
// The story:
//   1. blocks     the parts of a transformer block, by name
//   2. plan       the memory of the model's activations and scratch
//   3. forward    embedding, blocks
//   4. head       logits, losses, and their gradients
//   5. backward   the gradients, from the last layer to the first
//   6. main       the training loop
// What a trainer of another model needs, too, stands in llmc/trainer: the step, the update, evaluation, state, the plan
// of parameters, the start. Its README says in which order to read it.
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
#include "llmc/model/gpt2.h" // the tables of this trainer; the rooms loop over them
#include "llmc/run/train_loop.h"
#include "llmc/layers/attention.cuh"
#include "llmc/layers/attention_cudnn.h"
#include "llmc/layers/embedding.cuh"
#include "llmc/layers/fp8.cuh"
#include "llmc/layers/gelu.cuh"
#include "llmc/layers/layernorm.cuh"
#include "llmc/layers/linear.cuh"
#include "llmc/layers/loss.cuh"
#include "llmc/trainer/evaluate.cuh"
#include "llmc/trainer/open.cuh"
#include "llmc/trainer/plan.cuh"
#include "llmc/trainer/print.cuh"
#include "llmc/trainer/state.cuh"
#include "llmc/trainer/step.cuh"

// ---------------------------------------------------------------------------------------------------------------------
// 1. The blocks

// The linear layers of a block: id, name, the activation that it reads, the level of --recompute that gives it up.
// The names are fields of Block (b.qkv).
#define BLOCK_LINEARS(X)                                                                                               \
    X(QKV, qkv, ln1, RECOMPUTE_LAYERNORM)                                                                              \
    X(ATTPROJ, attproj, att, RECOMPUTE_LAYERNORM)                                                                      \
    X(FC, fc, ln2, RECOMPUTE_LAYERNORM)                                                                                \
    X(FCPROJ, fcproj, gelu, RECOMPUTE_GELU)
#define LINEAR_ID(ID, ...) LINEAR_##ID,
enum { BLOCK_LINEARS(LINEAR_ID) NUM_LINEARS };

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
    int C = model->config.channels;
    float epsilon = GPT2_LAYERNORM_EPSILON;
    b.ln1 = {C, epsilon, p.ln1w, p.ln1b, g.ln1w, g.ln1b, a.ln1, a.ln1_mean, a.ln1_rstd, b.qkv.inp_amax()};
    b.ln2 = {C, epsilon, p.ln2w, p.ln2b, g.ln2w, g.ln2b, a.ln2, a.ln2_mean, a.ln2_rstd, b.fc.inp_amax()};
    return b;
}

static LayerNorm lnf_of(const Model *model) {
    Tensors<floatX> p = params_of_layer(model, 0);
    Tensors<float> g = grads_of_layer(model, 0);
    const Activations *a = &model->acts;
    return {model->config.channels, GPT2_LAYERNORM_EPSILON, p.lnfw, p.lnfb, g.lnfw, g.lnfb, a->lnf.data,
            a->lnf_mean.data,       a->lnf_rstd.data,       NULL};
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

void quantize_all_weights(const Model *model, Gpu *gpu) {
    if (!model->shape.fp8 || model->params.parts) { return; }
    for (int layer = 0; layer < model->config.num_layers; layer++) { quantize_weights(model, gpu, layer); }
}

// Converts a block's weights at each use if they pass through a slot. Weights that are gathered after an update are
// converted in the forward pass, which waits for each bucket.
static void quantize_passing_weights(const Model *model, Gpu *gpu, const Shards *shards, int layer) {
    if (model->shape.fp8 && (model->params.parts || shards->gathering)) { quantize_weights(model, gpu, layer); }
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. The plan: the model's memory besides its parameters, and besides what llmc/trainer/plan.cuh plans for all models

// Plans the 8-bit copies of --fp8.
static void plan_fp8(Model *model, MemoryPlan *plan, int64_t N) {
#define FP8_ROW(ID, name, inp, level)                                                                                  \
    {#name "w_fp8",                                                                                                    \
     #name "w_fp8_t",                                                                                                  \
     #inp "_fp8_t",                                                                                                    \
     (int)param_cols(&model->config, PARAM_##name##w),                                                                 \
     (int)param_rows(&model->config, PARAM_##name##w),                                                                 \
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

// The rows: pointer, name, shape, first phase, last phase.
#define MODEL_ROWS(X)                                                                                                  \
    X(gpu.cudnn_forward, "cudnn_forward", shape1(forward_bytes / 4), FORWARD, BACKWARD_ATTENTION)                      \
    X(gpu.cudnn_backward, "cudnn_backward", shape1(ceil_div_i64(backward_bytes, 4)), BACKWARD_ATTENTION,               \
      BACKWARD_ATTENTION)                                                                                              \
    X(model.att_delta, "att_delta", shape2(trains *N, NH), BACKWARD_ATTENTION, BACKWARD_ATTENTION)                     \
    X(model.sum_scratch, "sum_scratch", shape1(trains *sum_scratch_floats(N, C)), LM_HEAD, BACKWARD_ATTENTION)
#define PLAN_MODEL_ROW(pointer, name, ...) plan_row(plan, &t->pointer, name, PLAN_WORKSPACE, __VA_ARGS__);

void plan_model(Trainer *t, MemoryPlan *plan) {
    const RunShape *run = &t->model.shape;
    CudnnShape attention = cudnn_shape(&t->model);
    int C = t->model.config.channels, NH = t->model.config.num_heads;
    int64_t N = batch_rows(run), trains = run->kind == RUN_TRAINS, forward_bytes = run->cudnn ? CUDNN_ATT_SLACK : 0;
    int64_t backward_bytes = trains && run->cudnn ? cudnn_att_backward_bytes(&attention) : 0;
    if (run->fp8) { plan_fp8(&t->model, plan, N); }
    MODEL_ROWS(PLAN_MODEL_ROW)
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. Forward

// Computes att and att_lse from qkv. The linear layer attproj reads att. cuDNN does not measure att's largest
// magnitude, so linear_measure_input does.
static void attend(const Model *model, Gpu *gpu, const Block &b, int B, int T) {
    const LayerActs &a = b.acts;
    if (!cudnn_att_takes(&gpu->cudnn, B, T)) {
        attention_forward(a.att, a.att_lse, a.qkv, attention_shape(&model->config, B, T), gpu->stream,
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
void model_forward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, int B, int T, LinearUse use) {
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

// ---------------------------------------------------------------------------------------------------------------------
// 4. The language model head
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
void model_loss(const Model *model, Gpu *gpu, Shards *shards, const int32_t *targets, int64_t N,
                const BatchRole *role) {
    Range range("lm_head");
    if (role->trains) { begin_gradient(shards, model->grads, 0, role->first); }
    for (int64_t first = 0; first < N; first += model->head_rows) {
        lm_head_rows(model, gpu, first, min_i64(model->head_rows, N - first), targets, role);
    }
    if (role->loss_sum != NULL) { sum_losses(role->loss_sum, model->acts.losses.data, N, !role->first, gpu->stream); }
}

void model_logits(const Model *model, Gpu *gpu, int64_t row) {
    linear_forward(&gpu->cublas, lm_head_of(model), model->acts.logits.data, NULL,
                   model->acts.lnf.data + row * model->config.channels, 1, gpu->stream);
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. Backward

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
        attention_backward(a.dqkv, a.datt, a.qkv, a.att, a.att_lse, model->att_delta,
                           attention_shape(&model->config, B, T), gpu->stream);
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
void model_backward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, const int32_t *order, int B,
                    int T, const BatchRole *role) {
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
// 6. Main

#ifndef PROGRAM_NAME // the Makefile gives the emulated program its own
#define PROGRAM_NAME "train_gpt2cu"
#endif

// Returns the source's revision. The Makefile links another function of this name, so that a commit recompiles nothing.
extern "C" __attribute__((weak)) const char *gpt2c_revision(void) { return ""; }

static StopRequest stop_request;
static void on_signal(int number) { stop_on_signal(&stop_request, number); }

const TrainerFacts trainer_facts = {PROGRAM_NAME,  gpt2c_revision, PRECISION_NAME, 1024, true, 1,
                                    &stop_request, on_signal};

// Refuses shapes and options that this build or its kernels cannot compute. Runs before the GPU is opened.
static bool check_shape(const TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    const ModelConfig *c = &run->config;
    const char *where = run_shape_origin(run);
    if (!layernorm_check(where, c->channels, error) || !attention_check(where, attention_shape(c, 1, 1), error) ||
        !cross_entropy_check(c->padded_vocab_size, error) || (o->fp8 && !fp8_check_width(c->channels, error))) {
        return false;
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

// Hashes the weights.
static bool finish(Trainer *t, TrainRun *run, Error *error) {
    uint64_t hash;
    comm_progress(t->shards.ranks, "the end");
    comm_slow(t->shards.ranks, true);
    if (!trainer_check_state(t, run, error) || !hash_params(t, &hash, error)) { return false; }
    if (has_peers(&t->shards) && t->model.shape.kind == RUN_TRAINS) {
        const NcclContext *nccl = &t->shards.nccl;
        say(stdout, "sent        %lld bytes of gradients, %lld of parameters, by each GPU\n",
            (long long)nccl->gradient_bytes, (long long)nccl->parameter_bytes);
        if (nccl->matrix_bytes > 0) {
            say(stdout, "            %lld bytes of Muon's matrices, by each GPU\n", (long long)nccl->matrix_bytes);
        }
    }
    bool ok = !run_leads(run) || run_finish(run, hash, error);
    return ranks_agree(run->comm, ok, error);
}

// Completes the options: micro-batch, level of recomputation, steps. They stay constant from then on.
static bool settle(TrainRun *run, TrainOptions *o, Error *error) {
    char facts[256];
    bool ok = run_settle_batch(run, o, error) && check_shape(run, error) && settle_attention(run, error);
    int n = snprintf(facts, sizeof(facts), "attention (alike with --attention own)%c%s", '\0', run->record.attention);
    return ranks_agree(run->comm, ok, error) && ranks_alike(run->comm, facts, (size_t)n + 1, error) &&
           settle_by_gpus(run, o, error) && ranks_agree(run->comm, run_settle_steps(run, o, error), error);
}

static void plan(Trainer *t, const TrainRun *run) {
    trainer_plan(t, &run->config, shape_of(run, run->options->batch_size, (int)run->options->recompute));
}

static void print_run(Trainer *t, TrainRun *run) {
    run_print_config(run);
    print_config(t, run);
    run_print_needs(run, &t->device_plan);
    if (!train_options_plan(run->options)) { return (void)fflush(stdout); }
    if (train_options_plans_all(run->options)) { run_print_buffers(&t->device_plan); }
    print_plan(t, run);
}

// Opens the machine, loads the model, and begins the logs.
static bool start(Trainer *t, TrainRun *run, Error *error) {
    RunMachine machine;
    memset(&machine, 0, sizeof(machine));
    ranks_slow(run->comm, true); // libraries and files may come over a network, and hundreds of ranks connect
    bool ok = open_trainer(t, run, error) && run_lead(run, run_claim_folder, error) && run_load(run, error);
    if (ok) { share_state(t); }
    ok = ok && run_begin_log(run, error);
    if (ok) { describe(t, run, &machine); }
    ok = ok && run_record_start(run, &machine, error);
    ranks_slow(run->comm, false);
    if (!ok) { return false; }
    print_machine(t);
    run_catch_signals(run);
    return true;
}

// Trains from the run's step to its last, or until a signal stops it.
static bool train(Trainer *t, TrainRun *run, Error *error) {
    for (;;) {
        Due due = run_what_is_due(run); // save, validate, evaluate, sample
        if ((due.any && !settle_step(t, run, error)) || !run_do_what_is_due(run, due, error)) { return false; }
        if (run_ends(run, due)) { return settle_step(t, run, error) && run_end_training(run, error); }
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
    trainer_close(t);
    ranks_close(run.comm);
    return run_exit(&run, ok, &error);
}
