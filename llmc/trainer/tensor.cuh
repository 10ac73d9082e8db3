// Tensor parallelism in a step. The ranks of the tensor group split each multiply: qkv and fc by outputs, so that they
// need no sum, attproj and fcproj by inputs, so that the outputs of the ranks add up to the layer's output. The head
// and the embedding are split by tokens. model_part.h makes a rank's part of the model; this file has what travels.
//
// With --sp 1 (sequence parallelism, Korthikanti et al. 2022) a rank holds its part of the rows wherever no multiply
// needs them all: in the residual stream and the norms. Sums then give each rank its rows only. With --sp 0 all ranks
// hold all rows, and compute equal bits.
//
// Sums are in floatX, by reduce-scatter, and an all-gather where all ranks need them. So all ranks have equal bits.
#ifndef LLMC_TRAINER_TENSOR_CUH
#define LLMC_TRAINER_TENSOR_CUH

#include "llmc/layers/embedding.cuh"
#include "llmc/trainer/types.cuh"

// Returns all rows (N,C) of an activation, of which each rank holds its own.
static inline const floatX *gather_rows(const Model *model, Shards *shards, const floatX *own, int64_t N) {
    floatX *all = model->acts.gathered.data;
    int64_t bytes = own_rows(model, N) * model->config.channels * (int64_t)sizeof(floatX);
    if (row_ranks(&model->shape) == 1) { return own; }
    communicate_after_compute(shards);
    group_all_gather(&shards->tensor, all, own, bytes, &shards->sent.tensor);
    compute_after_communicate(shards);
    return all;
}

// Adds up the ranks' parts (N,C) of an activation in place, and returns the rows that this rank holds.
static inline floatX *sum_rows(const Model *model, Shards *shards, floatX *parts, int64_t N) {
    Group *group = &shards->tensor;
    int64_t count = N * model->config.channels / group->size;
    floatX *own = parts + group->rank * count;
    if (group->size == 1) { return parts; }
    communicate_after_compute(shards);
    group_reduce_scatter(group, own, parts, count, &shards->sent.tensor);
    if (!model->shape.sp) {
        group_all_gather(group, parts, own, count * (int64_t)sizeof(floatX), &shards->sent.tensor);
    }
    compute_after_communicate(shards);
    return model->shape.sp ? own : parts;
}

// Returns a bias, or a table of positions, that must be added once to a sum over the ranks.
template <class T> static inline T *added_once(const Shards *shards, T *values) {
    return shards->tensor.rank == 0 ? values : NULL;
}

// ---- The embedding: each rank has the rows of some tokens ----

// residual (own rows, C) = the embeddings of tokens (B,T). wpe: see embedding.cuh.
static inline void embed(const Model *model, Gpu *gpu, Shards *shards, const int32_t *tokens, const floatX *wte,
                         const floatX *wpe, int B, int T) {
    int C = model->config.channels;
    int64_t N = (int64_t)B * T, own = own_rows(model, N);
    bool split = shards->tensor.size > 1;
    floatX *residual = residual_of(model, model->pass.begin), *out = split ? model->acts.projection.data : residual;
    ContextPlace place = context_place(model, T);
    embedding_forward(out, tokens, wte, added_once(shards, wpe), B, T, C, gpu->stream, &place);
    if (!split) { return; }
    const floatX *sum = sum_rows(model, shards, out, N);
    cuda_check(
        cudaMemcpyAsync(residual, sum, (size_t)(own * C) * sizeof(floatX), cudaMemcpyDeviceToDevice, gpu->stream));
}

// Adds the gradients of the embeddings, from the gradient of the residual stream. Ranks that hold parts of the rows add
// up dwpe afterwards, so one of them computes it. A head with a bucket of its own has left their bucket's slot.
static inline void embed_backward(const Model *model, Gpu *gpu, Shards *shards, float *dwte, float *dwpe,
                                  const int32_t *tokens, const int32_t *order, int B, int T, const BatchRole *role) {
    if (zero_head(&shards->layout) != 0) { begin_gradient(shards, model->grads, 0, role->first); }
    const floatX *dresidual = model->acts.dresidual.of(model->pass.turn);
    const floatX *dout = gather_rows(model, shards, dresidual, (int64_t)B * T);
    ContextPlace place = context_place(model, T);
    embedding_backward(dwte, shards->sums_unsplit ? added_once(shards, dwpe) : dwpe, dout, tokens, order, B, T,
                       model->config.channels, gpu->stream, &place);
    end_bucket(model, shards, 0, role);
}

#endif // LLMC_TRAINER_TENSOR_CUH
