// Predicts the time of a step on several ranks: the kernels of one GPU (llmc/model/step_model.h), and the communication
// that no kernel hides.
#ifndef LLMC_STEP_LINK_H
#define LLMC_STEP_LINK_H

#include "llmc/model/step_model.h"
#include "llmc/ranks/zero.h"

// Enters into a step's shape what a stage of sharding leaves to each rank.
static inline void step_share(StepShape *s, int num_ranks, int stage) {
    s->num_ranks = num_ranks;
    s->shards_state = stage >= ZERO_OPTIMIZER;
    s->shards_gradients = stage >= ZERO_GRADIENTS;
    s->shards_parameters = stage >= ZERO_PARAMETERS;
}

// Divides the computation of a step, of so many seconds. What --recompute adds belongs to the backward pass. Of the
// rest of a block, a third is forward.
static inline ZeroCompute step_divide(const StepGpu *gpu, const StepShape *s, double seconds) {
    StepRows head, update;
    StepShape plain = *s;
    plain.recompute = RECOMPUTE_NOTHING;
    head.count = update.count = 0;
    step_lm_head(&head, gpu, s);
    step_update(&update, gpu, s);
    double passes = (double)s->micro_batches, blocks = passes * s->config.num_layers;
    double outside = step_rows_seconds(&head) + step_rows_seconds(&update);
    double forward = (step_seconds(gpu, &plain) - outside) / 3.0, backward = seconds - outside - forward;
    ZeroCompute compute = {forward / blocks, backward / blocks, step_rows_seconds(&head) / passes,
                           step_rows_seconds(&update)};
    return compute;
}

// Lists every kernel of a step on one GPU, and the communication as one more row.
static inline void step_rows_of_rank(StepRows *r, const StepGpu *gpu, const StepShape *s, int stage) {
    ZeroLayout layout;
    int64_t gradient_bytes, parameter_bytes;
    step_rows(r, gpu, s);
    if (s->num_ranks == 1) { return; }
    zero_layout(&layout, &s->config, s->num_ranks, s->optimizer);
    double alone = step_rows_seconds(r), muon_bytes = (double)zero_matrix_bytes(&layout, stage, s->sizeof_activation);
    ZeroStep step = {
        stage,     s->sizeof_activation, s->micro_batches, step_divide(gpu, s, alone), gpu->link_bytes_per_second,
        muon_bytes};
    zero_step_bytes(&layout, stage, s->sizeof_activation, s->micro_batches, &gradient_bytes, &parameter_bytes);
    step_add(r, "nccl not hidden", 1.0, (double)gradient_bytes + (double)parameter_bytes + muon_bytes, 0.0,
             fmax(0.0, zero_step_seconds(&layout, &step) - alone), BOUND_LINK);
}

static inline double step_seconds_of_rank(const StepGpu *gpu, const StepShape *s, int stage) {
    StepRows rows;
    step_rows_of_rank(&rows, gpu, s, stage);
    return step_rows_seconds(&rows);
}

#endif // LLMC_STEP_LINK_H
