// The language model head of the GPU trainers: logits, losses, and their gradients.
//
// The logits of at most --head-rows rows exist at a time. A batch with more rows has several chunks, and each chunk
// overwrites the logits of the one before it. So the head's backward runs here too if gradients are wanted.
#ifndef LLMC_TRAINER_HEAD_CUH
#define LLMC_TRAINER_HEAD_CUH

#include "llmc/layers/loss.cuh"
#include "llmc/trainer/tensor.cuh"

// Computes the losses of some rows from their logits, and overwrites the logits with their gradients. Where the
// vocabulary is split, each rank has some of a row's logits: the ranks exchange three numbers a row.
static inline void lm_head_losses(const Model *model, Gpu *gpu, Shards *shards, float *losses, const int32_t *targets,
                                  int64_t rows, const BatchRole *role) {
    Group *group = &shards->tensor;
    floatX *logits = model->acts.logits.data;
    float *states = model->head_states, *own = states + group->rank * rows * CROSS_ENTROPY_STATE;
    int V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    if (group->size == 1) {
        cross_entropy(losses, logits, targets, rows, V, Vp, role->dloss, role->trains, gpu->stream);
        return;
    }
    cross_entropy_states(own, logits, targets, rows, V, Vp, gpu->stream);
    communicate_after_compute(shards);
    group_all_gather(group, states, own, rows * CROSS_ENTROPY_STATE * (int64_t)sizeof(float), &shards->sent.tensor);
    compute_after_communicate(shards);
    cross_entropy_from_states(losses, logits, states, group->size, targets, rows, V, Vp, role->dloss, role->trains,
                              gpu->stream);
}

// Computes the logits of `rows` rows from `first` on and their losses. lnf: of all rows. Then sets dlnf of these rows
// and adds to the head's gradient, if gradients are wanted. With tensor parallelism dlnf is this rank's part of a sum.
static inline void lm_head_rows(const Model *model, Gpu *gpu, Shards *shards, const floatX *lnf, int64_t first,
                                int64_t rows, const int32_t *targets, const BatchRole *role) {
    const Activations *a = &model->acts;
    int64_t at = first * model->config.channels;
    linear_forward(&gpu->cublas, lm_head_of(model), a->logits.data, NULL, lnf + at, rows, gpu->stream);
    lm_head_losses(model, gpu, shards, a->losses.data + first, targets + first, rows, role);
    if (!role->trains) { return; }
    linear_backward(&gpu->cublas, lm_head_of(model), a->dlnf.data + at, a->logits.data, lnf + at, NULL, rows,
                    gpu->stream);
}

// Computes the losses of a batch, and the head's gradients if they are wanted, chunk by chunk in the order of the rows.
inline void model_loss(const Model *model, Gpu *gpu, Shards *shards, const int32_t *targets, int64_t N,
                       const BatchRole *role) {
    Range range("lm_head");
    final_norm_forward(model, gpu, own_rows(model, N));
    const floatX *lnf = gather_rows(model, shards, model->acts.lnf.data, N);
    for (int64_t first = 0; first < N; first += model->head_rows) {
        lm_head_rows(model, gpu, shards, lnf, first, min_i64(model->head_rows, N - first), targets, role);
    }
    if (role->loss_sum != NULL) { sum_losses(role->loss_sum, model->acts.losses.data, N, !role->first, gpu->stream); }
}

inline void model_logits(const Model *model, Gpu *gpu, Shards *shards, int64_t row, int64_t N) {
    Group *group = &shards->tensor;
    int Vp = model->config.padded_vocab_size;
    final_norm_forward(model, gpu, own_rows(model, N));
    const floatX *lnf = gather_rows(model, shards, model->acts.lnf.data, N) + row * model->config.channels;
    floatX *logits = model->acts.logits.data, *own = logits + group->rank * Vp;
    linear_forward(&gpu->cublas, lm_head_of(model), own, NULL, lnf, 1, gpu->stream);
    if (group->size == 1) { return; }
    communicate_after_compute(shards);
    group_all_gather(group, logits, own, Vp * (int64_t)sizeof(floatX), NULL);
    compute_after_communicate(shards);
}

#endif // LLMC_TRAINER_HEAD_CUH
