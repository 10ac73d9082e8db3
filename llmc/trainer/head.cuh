// The language model head of the GPU trainers: logits, losses, and their gradients.
//
// The logits of a few rows exist at a time, never those of a whole batch. The next rows overwrite the logits, so the
// head's backward runs here too if gradients are wanted.
#ifndef LLMC_TRAINER_HEAD_CUH
#define LLMC_TRAINER_HEAD_CUH

#include "llmc/layers/loss.cuh"
#include "llmc/trainer/types.cuh"

// Computes the logits of `rows` rows from `first` on and their losses, and overwrites the logits with their gradients.
// Then sets dlnf of these rows and adds to dwte, if gradients are wanted.
static inline void lm_head_rows(const Model *model, Gpu *gpu, int64_t first, int64_t rows, const int32_t *targets,
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
inline void model_loss(const Model *model, Gpu *gpu, Shards *shards, const int32_t *targets, int64_t N,
                       const BatchRole *role) {
    Range range("lm_head");
    if (role->trains) { begin_gradient(shards, model->grads, 0, role->first); }
    for (int64_t first = 0; first < N; first += model->head_rows) {
        lm_head_rows(model, gpu, first, min_i64(model->head_rows, N - first), targets, role);
    }
    if (role->loss_sum != NULL) { sum_losses(role->loss_sum, model->acts.losses.data, N, !role->first, gpu->stream); }
}

inline void model_logits(const Model *model, Gpu *gpu, int64_t row) {
    linear_forward(&gpu->cublas, lm_head_of(model), model->acts.logits.data, NULL,
                   model->acts.lnf.data + row * model->config.channels, 1, gpu->stream);
}

#endif // LLMC_TRAINER_HEAD_CUH
