// Trains Llama 3 and its relatives on GPUs. Read train_gpt2.cu first: this file has the same parts, keeps the same four
// rules, and shares the same rooms. train_llama3.c says what a Llama changes, and tells the story for the CPU.
//
// Shapes: B sequences of T tokens, N = B*T rows, C channels, NH heads of HS channels, KV heads of keys and values, F
// the width of the MLP, L layers, V tokens in the vocabulary (Vp with padding). A row of qkv has (NH + 2 KV) * HS
// values.
#ifndef PROGRAM_NAME // the Makefile gives the emulated program its own
#define PROGRAM_NAME "train_llama3cu"
#endif
#include "llmc/model/llama3.h" // the tables of this trainer; the rooms loop over them
#include "llmc/layers/embedding.cuh"
#include "llmc/layers/rope.cuh"
#include "llmc/layers/swiglu.cuh"
#include "llmc/trainer/program.cuh"

// ---------------------------------------------------------------------------------------------------------------------
// 1. A block by name

// Describes a block: the linear layers of llmc/model/llama3.h, of which only qkv may have a bias, and the RMSNorms.
static Block block_of(const Model *model, int layer, LinearUse use) {
    Block b = describe_block(model, layer, use);
    if (model->config.qkv_bias) { b.qkv.bias = b.p.qb, b.qkv.dbias = b.g.qb; }
    b.ln1.weight = b.p.ln1w, b.ln1.dweight = b.g.ln1w;
    b.ln2.weight = b.p.ln2w, b.ln2.dweight = b.g.ln2w;
    return b;
}

static LayerNorm lnf_of(const Model *model) {
    return describe_lnf(model, params_of_layer(model, 0).lnfw, grads_of_layer(model, 0).lnfw);
}

// A head of its own, or, if it is tied, the token embedding's weights.
Linear lm_head_of(const Model *model) {
    auto weights = [model](auto tensors) { return model->config.tied ? tensors.wte : tensors.headw; };
    Linear head = describe_head(model);
    head.weight = weights(params_of_layer(model, 0)), head.dweight = weights(grads_of_layer(model, 0));
    return head;
}

// The layers that sum over rows take turns with one scratch buffer: the norms, and qkv's bias.
int64_t model_sum_scratch_floats(const ModelConfig *c, int64_t N) {
    int64_t biases = c->qkv_bias ? linear_backward_bias_scratch_floats(N, (int)model_dim(c, DIM_QKV)) : 0;
    return max_i64(layernorm_backward_scratch_floats(N, c->channels), biases);
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. From tokens to the last norm

// swiglu = silu(gate) * up, the input of fcproj. The kernel measures its largest magnitude for --fp8.
static void activate(Gpu *gpu, const Block &b, int64_t N) {
    swiglu_forward(b.acts.swiglu, b.acts.fc, N, b.fcproj.C, gpu->stream, b.fcproj.inp_amax());
}

// Computes a block from qkv to swiglu. Leaves out fcproj, because the backward pass needs no output of fcproj:
//   mid = x + attention(rope(qkv(ln1))) attprojw^T; ln2 = rmsnorm(mid); fc = gate and up of ln2; swiglu
static void block_up_to_swiglu(const Model *model, Gpu *gpu, const Block &b, int B, int T) {
    const ModelConfig &c = model->config;
    const LayerActs &a = b.acts;
    int64_t N = (int64_t)B * T;
    cudaStream_t stream = gpu->stream;
    linear_forward(&gpu->cublas, b.qkv, a.qkv, NULL, a.ln1, N, stream);
    rope_forward(a.qkv, model->rope, N, T, c.num_heads, c.num_kv_heads, c.head_size, stream);
    attend(model, gpu, b, B, T);
    linear_forward(&gpu->cublas, b.attproj, a.projection, NULL, a.att, N, stream);
    fused_residual_layernorm_forward<RMSNORM>(b.ln2, a.residual_mid, a.residual, a.projection, N, stream);
    linear_forward(&gpu->cublas, b.fc, a.fc, NULL, a.ln2, N, stream);
    activate(gpu, b, N);
}

// residual[layer + 1] = mid + swiglu fcprojw^T, and its norm: ln1 of the next block, whose parameters must be there, or
// the last norm.
static void block_output(const Model *model, Gpu *gpu, const Block &b, int layer, const LayerNorm &next, int64_t N) {
    linear_forward(&gpu->cublas, b.fcproj, b.acts.projection, NULL, b.acts.swiglu, N, gpu->stream);
    fused_residual_layernorm_forward<RMSNORM>(next, model->acts.residual.of(layer + 1), b.acts.residual_mid,
                                              b.acts.projection, N, gpu->stream);
}

void model_forward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, int B, int T, LinearUse use) {
    Range range("forward");
    int last = model->config.num_layers - 1;
    begin_forward(model, gpu, shards);
    embedding_forward(model->acts.residual.of(0), tokens, params_of_layer(model, 0).wte, NULL, B, T,
                      model->config.channels, gpu->stream);
    layernorm_forward<RMSNORM>(block_of(model, 0, use).ln1, model->acts.residual.of(0), (int64_t)B * T, gpu->stream);
    for (int layer = 0; layer <= last; layer++) {
        begin_block(model, gpu, shards, layer);
        Block b = block_of(model, layer, use);
        block_up_to_swiglu(model, gpu, b, B, T);
        if (layer < last) { await_bucket(shards, model->params, 2 + layer); }
        LayerNorm next = layer < last ? block_of(model, layer + 1, use).ln1 : lnf_of(model);
        block_output(model, gpu, b, layer, next, (int64_t)B * T);
        end_block(model, shards, layer);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. From the head's gradient to the tokens

// Recomputes what --recompute did not keep of a block, with equal bits.
static void recompute_block(const Model *model, Gpu *gpu, int layer, int B, int T) {
    Block again = block_of(model, layer, LINEAR_AGAIN), b = block_of(model, layer, LINEAR_BACKWARD);
    int64_t N = (int64_t)B * T;
    bool all = model->shape.recompute == RECOMPUTE_BLOCK, norms = model->shape.recompute == RECOMPUTE_LAYERNORM;
    if (all || norms) { layernorm_forward<RMSNORM>(b.ln1, b.acts.residual, N, gpu->stream); }
    if (all) { block_up_to_swiglu(model, gpu, again, B, T); }
    if (norms) {
        layernorm_forward<RMSNORM>(b.ln2, b.acts.residual_mid, N, gpu->stream);
        linear_quantize_input(b.qkv, b.acts.ln1, N, gpu->stream);
        linear_quantize_input(b.attproj, b.acts.att, N, gpu->stream);
        linear_quantize_input(b.fc, b.acts.ln2, N, gpu->stream);
    }
    if (!all) { activate(gpu, b, N); }
    linear_quantize_input(b.fcproj, b.acts.swiglu, N, gpu->stream);
}

// From the block's output to mid: fcproj, SwiGLU, gate and up, ln2. dresidual is the gradient of the residual stream.
static void mlp_backward(const Model *model, Gpu *gpu, const Block &b, int64_t N) {
    const LayerActs &a = b.acts;
    linear_backward(&gpu->cublas, b.fcproj, a.dswiglu, a.dresidual, a.swiglu, NULL, N, gpu->stream);
    swiglu_backward(a.dfc, a.fc, a.dswiglu, N, b.fcproj.C, gpu->stream, b.fc.dout_amax());
    linear_backward(&gpu->cublas, b.fc, a.dln, a.dfc, a.ln2, NULL, N, gpu->stream);
    normalize_backward<RMSNORM>(model, gpu, b.ln2, false, b.attproj, a.dln, a.residual_mid, N);
}

// From mid to the block's input: attproj, attention, the rotation back, qkv, ln1. below: the linear layer whose output
// is the block's input.
static void attention_block_backward(const Model *model, Gpu *gpu, const Block &b, const Linear &below, int B, int T) {
    const ModelConfig &c = model->config;
    const LayerActs &a = b.acts;
    int64_t N = (int64_t)B * T;
    linear_backward(&gpu->cublas, b.attproj, a.datt, a.dresidual, a.att, NULL, N, gpu->stream);
    attend_backward(model, gpu, a, B, T);
    rope_backward(a.dqkv, model->rope, N, T, c.num_heads, c.num_kv_heads, c.head_size, gpu->stream);
    if (b.qkv.bias != NULL) {
        linear_backward_bias(b.qkv, a.dqkv, model->sum_scratch, N, gpu->stream);
    } else if (b.qkv.dout_amax() != NULL) {
        fp8_amax(b.qkv.fp8.dout_scale, a.dqkv, N * b.qkv.OC, gpu->stream);
    }
    linear_backward(&gpu->cublas, b.qkv, a.dln, a.dqkv, a.ln1, NULL, N, gpu->stream);
    normalize_backward<RMSNORM>(model, gpu, b.ln1, false, below, a.dln, a.residual, N);
}

void model_backward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, const int32_t *order, int B,
                    int T, const BatchRole *role) {
    Range range("backward");
    int last = model->config.num_layers - 1;
    const Activations &acts = model->acts;
    Block b = block_of(model, last, LINEAR_BACKWARD);
    normalize_backward<RMSNORM>(model, gpu, lnf_of(model), true, b.fcproj, acts.dlnf.data, acts.residual.of(last + 1),
                                (int64_t)B * T);
    for (int layer = last; layer >= 0; layer--) {
        begin_block_backward(model, gpu, shards, layer);
        begin_gradient(shards, model->grads, 1 + layer, role->first);
        // The last block's activations are still there.
        if (layer < last && model->shape.recompute > RECOMPUTE_NOTHING) { recompute_block(model, gpu, layer, B, T); }
        b = block_of(model, layer, LINEAR_BACKWARD);
        mlp_backward(model, gpu, b, (int64_t)B * T);
        Linear below = layer > 0 ? block_of(model, layer - 1, LINEAR_BACKWARD).fcproj : Linear();
        attention_block_backward(model, gpu, b, below, B, T);
        release_bucket(shards, model->params, 1 + layer);
        end_gradient(shards, model->grads, 1 + layer, role->last);
    }
    embedding_backward(grads_of_layer(model, 0).wte, NULL, acts.dresidual.data, tokens, order, B, T,
                       model->config.channels, gpu->stream);
    end_gradient(shards, model->grads, 0, role->last);
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. The program

int main(int argc, char **argv) { return trainer_main(argc, argv); }
