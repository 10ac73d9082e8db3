// What the models' blocks share: their linear layers, in floatX or 8 bits, and the norm's backward with its fusions.
#ifndef LLMC_TRAINER_BLOCK_CUH
#define LLMC_TRAINER_BLOCK_CUH

#include "llmc/layers/attention.cuh"
#include "llmc/layers/attention_cudnn.h"
#include "llmc/layers/context.cuh"
#include "llmc/layers/layernorm.cuh"
#include "llmc/layers/loss.cuh"
#include "llmc/model/rope.h"
#include "llmc/trainer/plan.cuh"
#include "llmc/trainer/tensor.cuh"

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

inline void begin_forward(const Model *model, Gpu *gpu, Shards *shards) {
    const int buckets[] = {0, 1 + model->pass.begin};
    for (int bucket : buckets) { fetch_bucket(shards, model->params, bucket); }
    for (int bucket : buckets) { await_bucket(shards, model->params, bucket); }
    fp8_clear_activation_scales(&model->fp8, gpu->stream);
}

// With --offload residuals the GPU has two copies of the residual stream, which take turns. The input of each block but
// the last one goes to the host while the block computes. It comes back while the backward of the block above computes.
static inline void send_residual(const Model *model, Shards *s, int layer) {
    int64_t n = model->acts.residual.stride;
    if (model->residuals == NULL) { return; }
    cuda_check(cudaStreamWaitEvent(s->stream, s->host.left[(layer + 1) % 2], 0)); // the block's output goes there
    if (layer == model->config.num_layers - 1) { return; }
    stream_follows(s->host.out, s->stream, s->host.reached);
    copy_out(s, model->residuals + layer * n, residual_of(model, layer), n);
    cuda_check(cudaEventRecord(s->host.left[layer % 2], s->host.out));
}

static inline void fetch_residual(const Model *model, Shards *s, int layer) {
    int64_t n = model->acts.residual.stride;
    communicate_after_compute(s); // the block above has read what lies there
    copy_in(s, residual_of(model, layer), model->residuals + layer * n, n);
    cuda_check(cudaEventRecord(s->host.arrived[layer % 2], s->comm_stream));
}

static inline void begin_block(const Model *model, Gpu *gpu, Shards *shards, int layer) {
    send_residual(model, shards, layer);
    bool behind = model->pass.last && shards->layout.num_buckets > 2 + layer; // a block, or the head
    if (layer < model->pass.end - 1 || behind) { fetch_bucket(shards, model->params, 2 + layer); }
    quantize_passing_weights(model, gpu, shards, layer);
}

static inline void end_block(const Model *model, Shards *shards, int layer) {
    release_bucket(shards, model->params, 1 + layer);
    if (layer < model->config.num_layers - 1) { return; }
    await_bucket(shards, model->params, zero_head(&shards->layout));
    shards->gathering = false; // every bucket was awaited
}

static inline void begin_block_backward(const Model *model, Gpu *gpu, Shards *shards, int layer,
                                        const BatchRole *role) {
    int head = zero_head(&shards->layout);
    bool after_head = layer == model->pass.end - 1 && model->pass.last;
    bool complete = head != 0 || !model->pass.first; // else the embedding adds to the bucket (embed_backward)
    if (after_head && complete) { end_bucket(model, shards, head, role); }
    if (layer == model->pass.end - 1) { fetch_bucket(shards, model->params, 1 + layer); } // another pass came between
    if (layer > model->pass.begin) { fetch_bucket(shards, model->params, layer); }
    await_bucket(shards, model->params, 1 + layer);
    if (model->residuals != NULL) {
        if (layer > 0) { fetch_residual(model, shards, layer - 1); }
        cuda_check(cudaStreamWaitEvent(shards->stream, shards->host.arrived[layer % 2], 0));
    }
    fetch_gradient(shards, model->grads, layer > model->pass.begin ? layer : 0, role->first);
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
    X(model.context_kv, "context_kv", shape2(shared *N, 2 * KV), FORWARD, BACKWARD_ATTENTION)                          \
    X(model.context_dkv, "context_dkv", shape2(trains *shared *N, 2 * KV), BACKWARD_ATTENTION, BACKWARD_ATTENTION)     \
    X(model.context_parts, "context_parts", shape2(shared *N, 2 * KV), FORWARD, BACKWARD_ATTENTION)                    \
    X(model.head_states, "head_states", shape1(split * t->model.head_rows * CROSS_ENTROPY_STATE), LM_HEAD, LM_HEAD)    \
    X(model.rope, "rope", shape1(rope_table_floats(config, model_positions(&t->model))), FORWARD, GENERATE)
#define PLAN_MODEL_ROW(pointer, name, ...) plan_row(plan, &t->pointer, name, PLAN_WORKSPACE, __VA_ARGS__);

inline void plan_model(Trainer *t, MemoryPlan *plan) {
    const RunShape *run = &t->model.shape;
    const ModelConfig *config = &t->model.config;
    CudnnShape attention = cudnn_shape(&t->model);
    int64_t N = batch_rows(run), trains = run->kind == RUN_TRAINS, forward_bytes = run->cudnn ? CUDNN_ATT_SLACK : 0;
    int64_t backward_bytes = trains && run->cudnn ? cudnn_att_backward_bytes(&attention) : 0;
    int64_t split = run->grid.tp > 1 ? run->grid.tp : 0, shared = run->grid.cp > 1 ? run->grid.cp : 0;
    int64_t KV = model_dim(config, DIM_KV);
    if (run->fp8) { plan_fp8(&t->model, plan, N); }
    MODEL_ROWS(PLAN_MODEL_ROW)
}

// ---- Attention, and the norm's backward ----

// Returns the keys and values of whole sequences. Ranks that share sequences gather those of all.
static inline AttentionContext gather_context(const Model *model, Gpu *gpu, Shards *shards, const floatX *qkv,
                                              const AttentionShape &s) {
    Group *group = &shards->context;
    int64_t n = (int64_t)s.B * s.T * 2 * s.KV * s.HS;
    floatX *own = model->context_parts + group->rank * n;
    if (group->size == 1) { return attention_own_context(qkv, s); }
    context_pack_kv(own, qkv, s, gpu->stream);
    communicate_after_compute(shards);
    group_all_gather(group, model->context_parts, own, n * (int64_t)sizeof(floatX), &shards->sent.context);
    compute_after_communicate(shards);
    context_order_kv(model->context_kv, model->context_parts, s, group->size, gpu->stream);
    return attention_gathered_context(model->context_kv, s, context_place(model, s.T));
}

// Adds up the gradients of keys and values over the ranks that share sequences. Each rank gets those of its rows.
static inline void sum_context(const Model *model, Gpu *gpu, Shards *shards, floatX *dqkv, const AttentionShape &s) {
    Group *group = &shards->context;
    int64_t n = (int64_t)s.B * s.T * 2 * s.KV * s.HS;
    floatX *own = model->context_parts + group->rank * n;
    if (group->size == 1) { return; }
    context_split_dkv(model->context_parts, model->context_dkv, s, group->size, gpu->stream);
    communicate_after_compute(shards);
    group_reduce_scatter(group, own, model->context_parts, n, &shards->sent.context);
    compute_after_communicate(shards);
    context_unpack_dkv(dqkv, own, s, gpu->stream);
}

// Computes att and att_lse from qkv. The linear layer attproj reads att. cuDNN does not measure att's largest
// magnitude, so linear_measure_input does.
static inline void attend(const Model *model, Gpu *gpu, Shards *shards, const Block &b, int B, int T) {
    const LayerActs &a = b.acts;
    if (!cudnn_att_takes(&gpu->cudnn, B, T)) {
        AttentionShape shape = attention_shape(&model->config, B, T);
        AttentionContext context = gather_context(model, gpu, shards, a.qkv, shape);
        attention_forward(a.att, a.att_lse, a.qkv, context, shape, gpu->stream, b.attproj.inp_amax());
        return;
    }
    cudnn_att_forward(&gpu->cudnn, a.att, a.att_lse, a.qkv, gpu->cudnn_forward, gpu->stream);
    linear_measure_input(b.attproj, a.att, (int64_t)B * T, gpu->stream);
}

// Computes dqkv from datt. linear_backward_bias measures dqkv's largest magnitude.
static inline void attend_backward(const Model *model, Gpu *gpu, Shards *shards, const LayerActs &a, int B, int T) {
    if (cudnn_att_takes(&gpu->cudnn, B, T)) {
        cudnn_att_backward(&gpu->cudnn, a.dqkv, a.datt, a.qkv, a.att, a.att_lse, gpu->cudnn_backward, gpu->stream);
        return;
    }
    AttentionShape shape = attention_shape(&model->config, B, T);
    AttentionContext context = gather_context(model, gpu, shards, a.qkv, shape);
    floatX *dkv = shards->context.size > 1 ? model->context_dkv : a.dqkv + shape.NH * shape.HS;
    attention_backward(a.dqkv, dkv, a.datt, a.qkv, context, a.att, a.att_lse, model->att_delta, shape, gpu->stream);
    sum_context(model, gpu, shards, a.dqkv, shape);
}

// Tells whether the activations that --recompute gives up must be computed again for a layer. Those of the last layer
// are still there, but in a pipeline another pass may have come between.
static inline bool needs_recompute(const Model *model, int layer) {
    return layer < model->pass.end - 1 || model->shape.pipeline.stages > 1;
}

// Adds the column sums of the gradient that another stage has sent to the bias gradient of the layer whose output it
// belongs to, with the bits that normalize_backward would add.
static inline void sum_bias_of_stage(const Model *model, Gpu *gpu, const Linear &from, int64_t N) {
    layernorm_column_sums(from.dbias, model->acts.dresidual.of(model->pass.turn), model->sum_scratch,
                          own_rows(model, N), model->config.channels, from.dout_amax(), gpu->stream);
}

// Runs the backward of a linear layer whose output goes into the residual stream: of the gradient of the stream.
static inline void backward_from_stream(const Model *model, Gpu *gpu, Shards *shards, const Linear &l, floatX *dinp,
                                        const floatX *inp, const floatX *pre_gelu, int64_t N) {
    const floatX *dout = gather_rows(model, shards, model->acts.dresidual.of(model->pass.turn), N);
    linear_backward(&gpu->cublas, l, dinp, dout, inp, pre_gelu, N, gpu->stream);
}

// Computes the norms of a block again, and the 8-bit copies of what its linear layers read.
template <bool RMS = LAYERNORM>
static inline void recompute_norms(const Model *model, Gpu *gpu, const Block &b, int64_t N) {
    layernorm_forward<RMS>(b.ln1, b.acts.residual, own_rows(model, N), gpu->stream);
    layernorm_forward<RMS>(b.ln2, b.acts.residual_mid, own_rows(model, N), gpu->stream);
    linear_quantize_input(b.qkv, b.acts.ln1, N, gpu->stream);
    linear_quantize_input(b.attproj, b.acts.att, N, gpu->stream);
    linear_quantize_input(b.fc, b.acts.ln2, N, gpu->stream);
}

// Adds acts.projection (N,C), the output of a linear layer, to the residual stream: out = inp + projection, of the rows
// of this rank. Also computes the norm that reads the stream there; NULL: none does on this stage.
template <bool RMS = LAYERNORM>
static inline void add_projection(const Model *model, Gpu *gpu, Shards *shards, floatX *out, const floatX *inp,
                                  const LayerNorm *norm, int64_t N) {
    const floatX *projection = sum_rows(model, shards, model->acts.projection.data, N);
    int64_t own = own_rows(model, N);
    if (norm != NULL) {
        fused_residual_layernorm_forward<RMS>(*norm, out, inp, projection, own, gpu->stream);
    } else {
        residual_forward(out, inp, projection, own * model->config.channels, gpu->stream);
    }
}

// A LayerNorm reads the stream where the linear layer `from` wrote to it, so dresidual is the gradient of from's
// output. The LayerNorm's backward completes dresidual. It also adds dresidual's column sums to from's bias gradient.
// For --fp8 it measures dresidual's largest magnitude. A separate kernel would read all N*C values again. dout and inp
// have the rows of this rank, of N in all.
template <bool RMS = LAYERNORM>
static inline void normalize_backward(const Model *model, Gpu *gpu, const LayerNorm &ln, bool is_new,
                                      const Linear &from, const floatX *dout, const floatX *inp, int64_t N) {
    floatX *dresidual = model->acts.dresidual.of(model->pass.turn);
    layernorm_backward_with_column_sums<RMS>({dresidual, is_new, from.dbias, from.dout_amax()}, ln, dout, inp,
                                             model->sum_scratch, own_rows(model, N), gpu->stream);
}

#endif // LLMC_TRAINER_BLOCK_CUH
