// Trains GPT-2 on GPUs. The file tells the story of a step, from tokens to updated weights. The kernels are in
// llmc/layers and llmc/optim. train_gpt2.c tells this story for the CPU.
//
// The story:
//   1. blocks     the parts of a transformer block, by name
//   2. forward    embedding, blocks
//   3. backward   the gradients, from the last layer to the first
//   4. main
// What a trainer of another model needs, too, stands in llmc/trainer: the head and the losses, the step, the update,
// evaluation, state, the plan, the loop over steps, the start. Its README says in which order to read it.
//
// Shapes use the field's letters: B sequences of T tokens, C channels, NH heads of size HS = C / NH, L layers, V tokens
// in the vocabulary (Vp with padding), N = B*T rows. Weights are bf16 beside fp32 master weights, or fp32
// (make PRECISION=FP32). With --fp8 the linear layers of the blocks multiply in 8 bits.
//
// Each GPU has one process, its rank. Every rank runs this whole program, trains on its part of every batch and owns a
// part of every bucket of parameters (llmc/ranks/zero.h). With --tp ranks also split each layer: gather_rows and
// sum_rows are what that takes (llmc/trainer/tensor.cuh). A single rank owns everything and sends nothing.
//
// Four rules hold throughout:
// - Gradients of parameters are fp32 and are added to (+=). Gradients of activations are floatX and are written (=).
//   Only the gradient of the residual stream is added to.
// - Equal inputs give equal bits. Sums run in an order that follows from the shapes alone.
// - The host never waits for the GPU inside a step, and allocates nothing after the start.
// - Ranks that must decide alike decide from equal bits. They need not ask each other.
#include "llmc/model/gpt2.h" // the tables of this trainer; the rooms loop over them
#include "llmc/layers/gelu.cuh"
#include "llmc/trainer/program.cuh"

// ---------------------------------------------------------------------------------------------------------------------
// 1. The blocks

// Describes a block: the linear layers of llmc/model/gpt2.h with their biases, and the LayerNorms.
static Block block_of(const Model *model, int layer, LinearUse use) {
    Block b = describe_block(model, layer, use);
    b.qkv.bias = b.p.qkvb, b.qkv.dbias = b.g.qkvb;
    b.attproj.bias = added_once(model->shards, b.p.attprojb), b.attproj.dbias = b.g.attprojb;
    b.fc.bias = b.p.fcb, b.fc.dbias = b.g.fcb;
    b.fcproj.bias = added_once(model->shards, b.p.fcprojb), b.fcproj.dbias = b.g.fcprojb;
    b.ln1.weight = b.p.ln1w, b.ln1.bias = b.p.ln1b, b.ln1.mean = b.acts.ln1_mean;
    b.ln1.dweight = b.g.ln1w, b.ln1.dbias = b.g.ln1b;
    b.ln2.weight = b.p.ln2w, b.ln2.bias = b.p.ln2b, b.ln2.mean = b.acts.ln2_mean;
    b.ln2.dweight = b.g.ln2w, b.ln2.dbias = b.g.ln2b;
    return b;
}

// Describes the final LayerNorm.
static LayerNorm lnf_of(const Model *model) {
    Tensors<floatX> p = params_of_layer(model, 0);
    Tensors<float> g = grads_of_layer(model, 0);
    LayerNorm ln = describe_lnf(model, p.lnfw, g.lnfw);
    ln.bias = p.lnfb, ln.dbias = g.lnfb, ln.mean = model->acts.lnf_mean.data;
    return ln;
}

// The language model head shares its weights with the token embedding.
Linear lm_head_of(const Model *model) {
    Linear head = describe_head(model);
    head.weight = params_of_layer(model, 0).wte, head.dweight = grads_of_layer(model, 0).wte;
    return head;
}

// The layers that sum over rows take turns with one scratch buffer.
int64_t model_sum_scratch_floats(const ModelConfig *config, int64_t N) {
    int C = config->channels;
    int64_t most = max_i64(layernorm_backward_scratch_floats(N, C), gelu_backward_scratch_floats(N, 4 * C));
    for (int width = C; width <= 4 * C; width += C) {
        most = max_i64(most, linear_backward_bias_scratch_floats(N, width));
    }
    return most;
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. Forward

// fc = ln2 fcw^T + fcb; gelu = GELU(fc), the input of fcproj.
static void mlp_forward(const Model *model, Gpu *gpu, Shards *shards, const Block &b, int64_t N) {
    const LayerActs &a = b.acts;
    const floatX *ln2 = gather_rows(model, shards, a.ln2, N);
    bool fused = model->shape.gelu_fusion >= FUSE_GELU_FORWARD; // the multiply also computes GELU
    linear_forward(&gpu->cublas, b.fc, fused ? a.gelu : a.fc, fused ? a.fc : NULL, ln2, N, gpu->stream);
    if (!fused) { linear_gelu_input(b.fcproj, a.gelu, a.fc, N, gpu->stream); }
}

// Computes a block from qkv to gelu. Leaves out fcproj, because the backward pass needs no output of fcproj:
//   mid = x + attention(ln1) attprojw^T + attprojb; ln2 = layernorm(mid); gelu = GELU(ln2 fcw^T + fcb)
static void block_forward(const Model *model, Gpu *gpu, Shards *shards, const Block &b, int B, int T) {
    const LayerActs &a = b.acts;
    int64_t N = (int64_t)B * T;
    linear_forward(&gpu->cublas, b.qkv, a.qkv, NULL, gather_rows(model, shards, a.ln1, N), N, gpu->stream);
    attend(model, gpu, shards, b, B, T);
    linear_forward(&gpu->cublas, b.attproj, a.projection, NULL, a.att, N, gpu->stream);
    add_projection(model, gpu, shards, a.residual_mid, a.residual, &b.ln2, N);
    mlp_forward(model, gpu, shards, b, N);
}

// Computes the last linear layer of a block, then the next block's ln1, if the pass has that block:
//   residual[layer + 1] = mid + gelu fcprojw^T + fcprojb
static void block_finish(const Model *model, Gpu *gpu, Shards *shards, int layer, int64_t N, LinearUse use) {
    bool last = layer == model->pass.end - 1;
    Block b = block_of(model, layer, use), next;
    linear_forward(&gpu->cublas, b.fcproj, b.acts.projection, NULL, b.acts.gelu, N, gpu->stream);
    if (!last) { await_bucket(shards, model->params, 2 + layer); } // the next block's LayerNorm reads its parameters
    if (!last) { next = block_of(model, layer + 1, use); }
    add_projection(model, gpu, shards, residual_of(model, layer + 1), b.acts.residual_mid, last ? NULL : &next.ln1, N);
}

void final_norm_forward(const Model *model, Gpu *gpu, int64_t rows) {
    layernorm_forward(lnf_of(model), residual_of(model, model->pass.end), rows, gpu->stream);
}

// Computes the layers of a pass: all of them, or in a pipeline those of a chunk. tokens (B,T) are on the GPU.
void model_forward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, int B, int T, LinearUse use) {
    int64_t N = (int64_t)B * T;
    const Pass &pass = model->pass;
    Block b = block_of(model, pass.begin, use);
    if (pass.first) { embed(model, gpu, shards, tokens, b.p.wte, b.p.wpe, B, T); }
    layernorm_forward(b.ln1, b.acts.residual, own_rows(model, N), gpu->stream);
    for (int layer = pass.begin; layer < pass.end; layer++) {
        begin_block(model, gpu, shards, layer);
        block_forward(model, gpu, shards, block_of(model, layer, use), B, T);
        block_finish(model, gpu, shards, layer, N, use);
        end_block(model, shards, layer);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. Backward

// Recomputes the activations of a layer that --recompute did not keep. It runs the forward's kernels on the forward's
// inputs, which gives equal bits. The last layer's activations are still there, if no other pass came between.
static void recompute_layer(const Model *model, Gpu *gpu, Shards *shards, int layer, int B, int T) {
    int level = model->shape.recompute;
    int64_t N = (int64_t)B * T;
    if (level == RECOMPUTE_NOTHING || !needs_recompute(model, layer)) { return; }
    Block again = block_of(model, layer, LINEAR_AGAIN), b = block_of(model, layer, LINEAR_BACKWARD);
    const LayerActs &a = b.acts;
    if (level == RECOMPUTE_BLOCK) {
        layernorm_forward(b.ln1, a.residual, own_rows(model, N), gpu->stream);
        block_forward(model, gpu, shards, again, B, T);
        return;
    }
    if (level == RECOMPUTE_LAYERNORM) { recompute_norms(model, gpu, b, N); }
    if (model->shape.gelu_fusion >= FUSE_GELU_FORWARD) { // a kernel of GELU alone might round differently
        mlp_forward(model, gpu, shards, again, N);
    } else {
        linear_gelu_input(b.fcproj, a.gelu, a.fc, N, gpu->stream);
    }
}

// dresidual holds the gradient of a block's output at first, and of the block's input at the end. The residual stream
// passes through both halves of a block unchanged, and the LayerNorm of each half adds its own gradient.
//
// Runs the backward from the block's output to mid: fcproj, GELU, fc, ln2.
static void block_backward_mlp(const Model *model, Gpu *gpu, Shards *shards, const Block &b, int64_t N) {
    const LayerActs &a = b.acts;
    bool fused = model->shape.gelu_fusion >= FUSE_GELU_BACKWARD; // the multiply also computes GELU's backward
    backward_from_stream(model, gpu, shards, b.fcproj, a.dfc, a.gelu, fused ? a.fc : NULL, N);
    if (fused) {
        linear_backward_bias(b.fc, a.dfc, model->sum_scratch, N, gpu->stream);
    } else { // one kernel computes dfc and fc's bias gradient, which saves one read of dfc
        gelu_backward(a.dfc, a.fc, a.dfc, b.fc.dbias, model->sum_scratch, N, b.fc.OC, gpu->stream, b.fc.dout_amax());
    }
    linear_backward(&gpu->cublas, b.fc, a.dln, a.dfc, gather_rows(model, shards, a.ln2, N), NULL, N, gpu->stream);
    normalize_backward(model, gpu, b.ln2, false, b.attproj, sum_rows(model, shards, a.dln, N), a.residual_mid, N);
}

// Runs the backward from mid to the block's input: attproj, attention, qkv, ln1. The LayerNorm adds to a bias gradient
// of the block below, so begin_gradient makes room for that block's gradients first.
static void block_backward_attention(const Model *model, Gpu *gpu, Shards *shards, int layer, int B, int T,
                                     const BatchRole *role) {
    int64_t N = (int64_t)B * T;
    Block b = block_of(model, layer, LINEAR_BACKWARD);
    const LayerActs &a = b.acts;
    Linear below;
    backward_from_stream(model, gpu, shards, b.attproj, a.datt, a.att, NULL, N);
    attend_backward(model, gpu, shards, a, B, T);
    linear_backward_bias(b.qkv, a.dqkv, model->sum_scratch, N, gpu->stream);
    linear_backward(&gpu->cublas, b.qkv, a.dln, a.dqkv, gather_rows(model, shards, a.ln1, N), NULL, N, gpu->stream);
    if (layer > model->pass.begin) {
        begin_gradient(shards, model->grads, layer, role->first); // the bucket of layer - 1
        below = block_of(model, layer - 1, LINEAR_BACKWARD).fcproj;
    }
    normalize_backward(model, gpu, b.ln1, false, below, sum_rows(model, shards, a.dln, N), a.residual, N);
}

// Adds the gradients of a pass to model->grads after its model_forward, and after model_loss if the pass has the last
// layer, from its last layer to its first. Sends each bucket to the other ranks when it is done. tokens and order (B,T)
// are on the GPU.
void model_backward(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, const int32_t *order, int B,
                    int T, const BatchRole *role) {
    const Pass &pass = model->pass;
    int64_t N = (int64_t)B * T;
    Linear fcproj = block_of(model, pass.end - 1, LINEAR_BACKWARD).fcproj;
    begin_gradient(shards, model->grads, pass.end, role->first); // the bucket of layer pass.end - 1
    if (pass.last) {
        normalize_backward(model, gpu, lnf_of(model), true, fcproj, sum_rows(model, shards, model->acts.dlnf.data, N),
                           residual_of(model, pass.end), N);
    } else { // the next stage has the LayerNorm that would sum this bias gradient
        sum_bias_of_stage(model, gpu, fcproj, N);
    }
    for (int layer = pass.end - 1; layer >= pass.begin; layer--) {
        int bucket = 1 + layer;
        begin_block_backward(model, gpu, shards, layer, role);
        recompute_layer(model, gpu, shards, layer, B, T);
        block_backward_mlp(model, gpu, shards, block_of(model, layer, LINEAR_BACKWARD), N);
        block_backward_attention(model, gpu, shards, layer, B, T, role);
        release_bucket(shards, model->params, bucket);
        end_bucket(model, shards, bucket, role);
    }
    Tensors<float> g = grads_of_layer(model, pass.begin);
    if (pass.first) { embed_backward(model, gpu, shards, g.wte, g.wpe, tokens, order, B, T, role); }
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. Main

int main(int argc, char **argv) { return trainer_main(argc, argv); }
