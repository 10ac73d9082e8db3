// What the models' blocks share: their linear layers, in floatX or 8 bits, and the norm's backward with its fusions.
#ifndef LLMC_TRAINER_BLOCK_CUH
#define LLMC_TRAINER_BLOCK_CUH

#include "llmc/layers/attention.cuh"
#include "llmc/layers/attention_cudnn.h"
#include "llmc/layers/layernorm.cuh"
#include "llmc/model/rope.h"
#include "llmc/trainer/plan.cuh"

#define LINEAR_ID(ID, ...) LINEAR_##ID,
enum { MODEL_LINEARS(LINEAR_ID) NUM_LINEARS };

#define BLOCK_LINEAR(ID, name, ...) Linear name;
struct Block {
    Tensors<floatX> p; // with the tensors outside the blocks
    Tensors<float> g;
    LayerActs acts;
    LayerNorm ln1, ln2;
    MODEL_LINEARS(BLOCK_LINEAR)
};

// Describes the linear layers of a block, without biases, and its norms, without parameters. llmc/layers/fp8.cuh
// explains `use`. A recomputed forward ends before fcproj: the backward pass needs only fcproj's input.
static inline Block describe_block(const Model *model, int layer, LinearUse use) {
    const ModelConfig *config = &model->config;
    Block b;
    b.p = params_of_layer(model, layer), b.g = grads_of_layer(model, layer);
    b.acts = acts_of_layer(model, layer);
#define FIND_LINEAR(ID, name, w, outputs, ...)                                                                         \
    b.name.C = (int)param_cols(config, PARAM_##w), b.name.OC = (int)model_dim(config, outputs);                        \
    b.name.weight = b.p.w, b.name.dweight = b.g.w;                                                                     \
    b.name.fp8 = fp8_linear(&model->fp8, layer, LINEAR_##ID, use);
    MODEL_LINEARS(FIND_LINEAR)
    if (use == LINEAR_AGAIN) { b.fcproj.fp8 = fp8_linear(&model->fp8, layer, LINEAR_FCPROJ, LINEAR_BACKWARD); }
    b.ln1.C = b.ln2.C = config->channels, b.ln1.epsilon = b.ln2.epsilon = config->norm_epsilon;
    b.ln1.out = b.acts.ln1, b.ln1.rstd = b.acts.ln1_rstd, b.ln1.out_amax = b.qkv.inp_amax();
    b.ln2.out = b.acts.ln2, b.ln2.rstd = b.acts.ln2_rstd, b.ln2.out_amax = b.fc.inp_amax();
    return b;
}

// Describes the head, without weights: logits (N,Vp) = lnf weight^T.
static inline Linear describe_head(const Model *model) {
    Linear head;
    head.C = model->config.channels, head.OC = model->config.padded_vocab_size;
    return head;
}

// Describes the last norm, with its gain.
static inline LayerNorm describe_lnf(const Model *model, const floatX *weight, float *dweight) {
    LayerNorm ln;
    ln.weight = weight, ln.dweight = dweight;
    ln.C = model->config.channels, ln.epsilon = model->config.norm_epsilon;
    ln.out = model->acts.lnf.data, ln.rstd = model->acts.lnf_rstd.data;
    return ln;
}

// Converts a block's weights to 8 bits, after they have changed or arrived.
static inline void quantize_weights(const Model *model, Gpu *gpu, int layer) {
    Block b = describe_block(model, layer, LINEAR_BACKWARD);
    const Linear linears[] = {b.qkv, b.attproj, b.fc, b.fcproj};
    linear_quantize_weights(linears, NUM_LINEARS, gpu->stream);
}

inline void quantize_all_weights(const Model *model, Gpu *gpu) {
    if (!model->shape.fp8 || model->params.parts) { return; }
    for (int layer = 0; layer < model->config.num_layers; layer++) { quantize_weights(model, gpu, layer); }
}

// Converts a block's weights at each use if they pass through a slot. Weights that are gathered after an update are
// converted in the forward pass, which waits for each bucket.
static inline void quantize_passing_weights(const Model *model, Gpu *gpu, const Shards *shards, int layer) {
    if (model->shape.fp8 && (model->params.parts || shards->gathering)) { quantize_weights(model, gpu, layer); }
}

// ---- Buckets: a block's parameters arrive while the block before computes ----

static inline void begin_forward(const Model *model, Gpu *gpu, Shards *shards) {
    for (int bucket = 0; bucket < 2; bucket++) { fetch_bucket(shards, model->params, bucket); }
    for (int bucket = 0; bucket < 2; bucket++) { await_bucket(shards, model->params, bucket); }
    fp8_clear_activation_scales(&model->fp8, gpu->stream);
}

static inline void begin_block(const Model *model, Gpu *gpu, Shards *shards, int layer) {
    if (layer < model->config.num_layers - 1) { fetch_bucket(shards, model->params, 2 + layer); }
    quantize_passing_weights(model, gpu, shards, layer);
}

static inline void end_block(const Model *model, Shards *shards, int layer) {
    release_bucket(shards, model->params, 1 + layer);
    if (layer == model->config.num_layers - 1) { shards->gathering = false; } // every bucket was awaited
}

static inline void begin_block_backward(const Model *model, Gpu *gpu, Shards *shards, int layer) {
    if (layer > 0) { fetch_bucket(shards, model->params, layer); }
    await_bucket(shards, model->params, 1 + layer);
    quantize_passing_weights(model, gpu, shards, layer);
}

// Plans the 8-bit copies of --fp8.
static inline void plan_fp8(Model *model, MemoryPlan *plan, int64_t N) {
#define FP8_ROW(ID, name, w, outputs, inp, level)                                                                      \
    {#name "w_fp8",                                                                                                    \
     #name "w_fp8_t",                                                                                                  \
     #inp "_fp8_t",                                                                                                    \
     (int)param_cols(&model->config, PARAM_##w),                                                                       \
     (int)model_dim(&model->config, outputs),                                                                          \
     model->shape.recompute < level},
    const Fp8PlanRow rows[NUM_LINEARS] = {MODEL_LINEARS(FP8_ROW)};
    const Fp8PlanShape shape = {model->config.num_layers, N,       model->shape.kind == RUN_TRAINS,
                                !model->params.parts,     FORWARD, BACKWARD_MLP,
                                BACKWARD_ATTENTION,       UPDATE};
    fp8_plan(&model->fp8, plan, rows, NUM_LINEARS, &shape);
}

// ---- The plan: the model's memory besides its parameters, and besides what plan.cuh plans for all models ----

// The rows: pointer, name, shape, first phase, last phase.
#define MODEL_ROWS(X)                                                                                                  \
    X(gpu.cudnn_forward, "cudnn_forward", shape1(forward_bytes / 4), FORWARD, BACKWARD_ATTENTION)                      \
    X(gpu.cudnn_backward, "cudnn_backward", shape1(ceil_div_i64(backward_bytes, 4)), BACKWARD_ATTENTION,               \
      BACKWARD_ATTENTION)                                                                                              \
    X(model.att_delta, "att_delta", shape2(trains *N, config->num_heads), BACKWARD_ATTENTION, BACKWARD_ATTENTION)      \
    X(model.sum_scratch, "sum_scratch", shape1(trains *model_sum_scratch_floats(config, N)), LM_HEAD,                  \
      BACKWARD_ATTENTION)                                                                                              \
    X(model.rope, "rope", shape1(rope_table_floats(config, model_positions(&t->model))), FORWARD, GENERATE)
#define PLAN_MODEL_ROW(pointer, name, ...) plan_row(plan, &t->pointer, name, PLAN_WORKSPACE, __VA_ARGS__);

inline void plan_model(Trainer *t, MemoryPlan *plan) {
    const RunShape *run = &t->model.shape;
    const ModelConfig *config = &t->model.config;
    CudnnShape attention = cudnn_shape(&t->model);
    int64_t N = batch_rows(run), trains = run->kind == RUN_TRAINS, forward_bytes = run->cudnn ? CUDNN_ATT_SLACK : 0;
    int64_t backward_bytes = trains && run->cudnn ? cudnn_att_backward_bytes(&attention) : 0;
    if (run->fp8) { plan_fp8(&t->model, plan, N); }
    MODEL_ROWS(PLAN_MODEL_ROW)
}

// ---- Attention, and the norm's backward ----

// Computes att and att_lse from qkv. The linear layer attproj reads att. cuDNN does not measure att's largest
// magnitude, so linear_measure_input does.
static inline void attend(const Model *model, Gpu *gpu, const Block &b, int B, int T) {
    const LayerActs &a = b.acts;
    if (!cudnn_att_takes(&gpu->cudnn, B, T)) {
        attention_forward(a.att, a.att_lse, a.qkv, attention_shape(&model->config, B, T), gpu->stream,
                          b.attproj.inp_amax());
        return;
    }
    cudnn_att_forward(&gpu->cudnn, a.att, a.att_lse, a.qkv, gpu->cudnn_forward, gpu->stream);
    linear_measure_input(b.attproj, a.att, (int64_t)B * T, gpu->stream);
}

// Computes dqkv from datt. linear_backward_bias measures dqkv's largest magnitude.
static inline void attend_backward(const Model *model, Gpu *gpu, const LayerActs &a, int B, int T) {
    if (cudnn_att_takes(&gpu->cudnn, B, T)) {
        cudnn_att_backward(&gpu->cudnn, a.dqkv, a.datt, a.qkv, a.att, a.att_lse, gpu->cudnn_backward, gpu->stream);
    } else {
        attention_backward(a.dqkv, a.datt, a.qkv, a.att, a.att_lse, model->att_delta,
                           attention_shape(&model->config, B, T), gpu->stream);
    }
}

// A LayerNorm reads the stream where the linear layer `from` wrote to it, so dresidual is the gradient of from's
// output. The LayerNorm's backward completes dresidual. It also adds dresidual's column sums to from's bias gradient.
// For --fp8 it measures dresidual's largest magnitude. A separate kernel would read all N*C values again.
template <bool RMS = LAYERNORM>
static inline void normalize_backward(const Model *model, Gpu *gpu, const LayerNorm &ln, bool is_new,
                                      const Linear &from, const floatX *dout, const floatX *inp, int64_t N) {
    layernorm_backward_with_column_sums<RMS>({model->acts.dresidual.data, is_new, from.dbias, from.dout_amax()}, ln,
                                             dout, inp, model->sum_scratch, N, gpu->stream);
}

#endif // LLMC_TRAINER_BLOCK_CUH
