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

void final_norm_forward(const Model *model, Gpu *gpu, int64_t rows) {
    layernorm_forward<RMSNORM>(lnf_of(model), residual_of(model, model->pass.end), rows, gpu->stream);
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
static void block_up_to_swiglu(const Model *model, Gpu *gpu, Shards *shards, const Block &b, int B, int T) {
    const ModelConfig &c = model->config;
    const LayerActs &a = b.acts;
    int64_t N = (int64_t)B * T;
    cudaStream_t stream = gpu->stream;
    linear_forward(&gpu->cublas, b.qkv, a.qkv, NULL, gather_rows(model, shards, a.ln1, N), N, stream);
    rope_forward(a.qkv, model->rope, N, context_place(model, T), c.num_heads, c.num_kv_heads, c.head_size, stream);
    attend(model, gpu, shards, b, B, T);
    linear_forward(&gpu->cublas, b.attproj, a.projection, NULL, a.att, N, stream);
    add_projection<RMSNORM>(model, gpu, shards, a.residual_mid, a.residual, &b.ln2, N);
    linear_forward(&gpu->cublas, b.fc, a.fc, NULL, gather_rows(model, shards, a.ln2, N), N, stream);
    activate(gpu, b, N);
}

// residual[layer + 1] = mid + swiglu fcprojw^T, and the norm ln1 of the next block; NULL: the pass ends here.
static void block_output(const Model *model, Gpu *gpu, Shards *shards, const Block &b, int layer, const Block *next,
                         int64_t N) {
    linear_forward(&gpu->cublas, b.fcproj, b.acts.projection, NULL, b.acts.swiglu, N, gpu->stream);
    if (next != NULL) { await_bucket(shards, model->params, 2 + layer); }
    add_projection<RMSNORM>(model, gpu, shards, residual_of(model, layer + 1), b.acts.residual_mid,
                            next != NULL ? &next->ln1 : NULL, N);
}

void model_forward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, int B, int T, LinearUse use) {
    const Pass &pass = model->pass;
    int64_t N = (int64_t)B * T;
    Block b = block_of(model, pass.begin, use), next;
    if (pass.first) { embed(model, gpu, shards, tokens, b.p.wte, NULL, B, T); }
    layernorm_forward<RMSNORM>(b.ln1, b.acts.residual, own_rows(model, N), gpu->stream);
    for (int layer = pass.begin; layer < pass.end; layer++, b = next) {
        bool ends = layer + 1 == pass.end;
        begin_block(model, gpu, shards, layer);
        block_up_to_swiglu(model, gpu, shards, b, B, T);
        if (!ends) { next = block_of(model, layer + 1, use); }
        block_output(model, gpu, shards, b, layer, ends ? NULL : &next, N);
        end_block(model, shards, layer);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. From the head's gradient to the tokens

// Recomputes what --recompute did not keep of a block, with equal bits.
static void recompute_block(const Model *model, Gpu *gpu, Shards *shards, int layer, int B, int T) {
    Block again = block_of(model, layer, LINEAR_AGAIN), b = block_of(model, layer, LINEAR_BACKWARD);
    int64_t N = (int64_t)B * T;
    if (model->shape.recompute == RECOMPUTE_BLOCK) {
        layernorm_forward<RMSNORM>(b.ln1, b.acts.residual, own_rows(model, N), gpu->stream);
        block_up_to_swiglu(model, gpu, shards, again, B, T);
    } else {
        if (model->shape.recompute == RECOMPUTE_LAYERNORM) { recompute_norms<RMSNORM>(model, gpu, b, N); }
        activate(gpu, b, N);
    }
    linear_quantize_input(b.fcproj, b.acts.swiglu, N, gpu->stream);
}

// From the block's output to mid: fcproj, SwiGLU, gate and up, ln2. dresidual is the gradient of the residual stream.
static void mlp_backward(const Model *model, Gpu *gpu, Shards *shards, const Block &b, int64_t N) {
    const LayerActs &a = b.acts;
    backward_from_stream(model, gpu, shards, b.fcproj, a.dswiglu, a.swiglu, NULL, N);
    swiglu_backward(a.dfc, a.fc, a.dswiglu, N, b.fcproj.C, gpu->stream, b.fc.dout_amax());
    linear_backward(&gpu->cublas, b.fc, a.dln, a.dfc, gather_rows(model, shards, a.ln2, N), NULL, N, gpu->stream);
    normalize_backward<RMSNORM>(model, gpu, b.ln2, false, b.attproj, sum_rows(model, shards, a.dln, N), a.residual_mid,
                                N);
}

// From mid to the block's input: attproj, attention, the rotation back, qkv, ln1. below: the linear layer whose output
// is the block's input.
static void attention_block_backward(const Model *model, Gpu *gpu, Shards *shards, const Block &b, const Linear &below,
                                     int B, int T) {
    const ModelConfig &c = model->config;
    const LayerActs &a = b.acts;
    int64_t N = (int64_t)B * T;
    backward_from_stream(model, gpu, shards, b.attproj, a.datt, a.att, NULL, N);
    attend_backward(model, gpu, shards, a, B, T);
    rope_backward(a.dqkv, model->rope, N, context_place(model, T), c.num_heads, c.num_kv_heads, c.head_size,
                  gpu->stream);
    if (b.qkv.bias != NULL) {
        linear_backward_bias(b.qkv, a.dqkv, model->sum_scratch, N, gpu->stream);
    } else if (b.qkv.dout_amax() != NULL) {
        fp8_amax(b.qkv.fp8.dout_scale, a.dqkv, N * b.qkv.OC, gpu->stream);
    }
    linear_backward(&gpu->cublas, b.qkv, a.dln, a.dqkv, gather_rows(model, shards, a.ln1, N), NULL, N, gpu->stream);
    normalize_backward<RMSNORM>(model, gpu, b.ln1, false, below, sum_rows(model, shards, a.dln, N), a.residual, N);
}

void model_backward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, const int32_t *order, int B,
                    int T, const BatchRole *role) {
    const Pass &pass = model->pass;
    int64_t N = (int64_t)B * T;
    Block b = block_of(model, pass.end - 1, LINEAR_BACKWARD);
    if (pass.last) {
        normalize_backward<RMSNORM>(model, gpu, lnf_of(model), true, b.fcproj,
                                    sum_rows(model, shards, model->acts.dlnf.data, N), residual_of(model, pass.end), N);
    }
    for (int layer = pass.end; layer-- > pass.begin;) {
        begin_block_backward(model, gpu, shards, layer, role);
        begin_gradient(shards, model->grads, 1 + layer, role->first);
        if (model->shape.recompute > RECOMPUTE_NOTHING && needs_recompute(model, layer)) {
            recompute_block(model, gpu, shards, layer, B, T);
        }
        b = block_of(model, layer, LINEAR_BACKWARD);
        mlp_backward(model, gpu, shards, b, N);
        Linear below = layer > pass.begin ? block_of(model, layer - 1, LINEAR_BACKWARD).fcproj : Linear();
        attention_block_backward(model, gpu, shards, b, below, B, T);
        release_bucket(shards, model->params, 1 + layer);
        end_bucket(model, shards, 1 + layer, role);
    }
    if (pass.first) {
        embed_backward(model, gpu, shards, grads_of_layer(model, pass.begin).wte, NULL, tokens, order, B, T, role);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. The program

int main(int argc, char **argv) { return trainer_main(argc, argv); }
