// Names a tensor that holds a NaN or an infinity, after the GPU has refused to update the weights
// (llmc/optim/global_norm.cuh). Nothing is computed again: the search looks at what is in memory. The host learns of a
// bad step while the GPU computes the next one, with the same weights. So the search finds
//   - the parameters of the bad step;
//   - the activations of the last micro-batch that was queued, which may be one of the next step. They are the ones
//     that each layer keeps for the backward pass, and of them those where no buffer of a later phase lies;
//   - the gradients that the last step that was queued has added up.
// It looks in this order, because each spoils the next. Nothing names what is overwritten: recomputed activations,
// logits, gradients of activations. Each rank searches its shards and its batch. All name the tensor that comes first.
#ifndef LLMC_NONFINITE_CUH
#define LLMC_NONFINITE_CUH

#include <limits.h>

#include "llmc/ranks/agree.h"
#include "llmc/run/run_report.h"
#include "llmc/trainer/types.cuh"

// *found = 1 if any of the n values is not finite. Every thread that writes *found writes 1.
template <class T> static __global__ void any_nonfinite_kernel(int32_t *found, const T *data, int64_t n) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        if (!isfinite(to_float(data[i]))) { atomicExch(found, 1); }
    }
}

// Is any of the n values not finite? Waits for the GPU's answer. flag: one int32 of device memory.
template <class T> static inline bool any_nonfinite(const T *data, int64_t n, int32_t *flag, cudaStream_t stream) {
    const int block_size = 256, blocks = (int)min_i64(1024, ceil_div_i64(max_i64(n, 1), block_size));
    int32_t found = 0;
    cuda_check(cudaMemsetAsync(flag, 0, sizeof(*flag), stream));
    any_nonfinite_kernel<T><<<blocks, block_size, 0, stream>>>(flag, data, n);
    cuda_check_launch("any_nonfinite_kernel");
    cuda_check(cudaMemcpyAsync(&found, flag, sizeof(found), cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    return found != 0;
}

// The first bad tensor that was found.
typedef struct {
    int place; // in the order of the search. INT_MAX: there is none
    char name[288];
} Nonfinite;

// Searches this rank's part of parameters or gradients. Their places follow `place`, by buckets.
template <class T>
static inline void find_in_shards(Trainer *t, Buckets<T> array, const char *what, int place, Nonfinite *first) {
    visit_own_pieces(&t->shards, [&](const ZeroPiece &piece) {
        const T *data = piece_element(&t->shards, array, piece);
        if (!any_nonfinite(data, piece.strips * piece.count, t->transfer.flag, t->gpu.stream)) { return true; }
        first->place = place + (param_specs[piece.tensor].per_layer ? 1 + piece.layer : 0);
        param_text(first->name, sizeof(first->name), what, piece.tensor, piece.layer);
        return false;
    });
}

// Is activation i bad, and still in memory after a step up to its update? The form that acts_find_nonfinite asks.
static inline bool activation_is_nonfinite(void *context, int i, const void *data, int64_t n) {
    Trainer *t = (Trainer *)context;
    const ActivationSpec *a = &activation_specs[i];
    bool is_float = a->type == ACT_float;
    int64_t bytes = n * (int64_t)(is_float ? sizeof(float) : sizeof(floatX));
    if (!plan_keeps(&t->device_plan, data, bytes, a->last)) { return false; }
    return is_float ? any_nonfinite((const float *)data, n, t->transfer.flag, t->gpu.stream)
                    : any_nonfinite((const floatX *)data, n, t->transfer.flag, t->gpu.stream);
}

// Searches the activations. Their places follow `place`, by layers.
static inline void find_in_activations(Trainer *t, int place, Nonfinite *first) {
    ActShape shape = activation_shape(&t->model);
    ActSlot slots[NUM_ACTIVATIONS];
    const ModelPart *part = &t->shards.layout.part;
    int64_t rows = (int64_t)t->model.shape.B * t->model.shape.T / t->model.shape.grid.cp;
    if (part->at.chunks > 1) { return; } // whose layers a slot has is not known
    activation_slots(&t->model.acts, slots);
    int layer = acts_find_nonfinite(slots, &shape, rows, activation_is_nonfinite, t, first->name, sizeof(first->name));
    if (layer >= 0) { first->place = place + shape.first_layer + layer; }
}

// Makes a rank's finding the first one of all ranks. Its name then says which rank found it.
static inline bool nonfinite_share(Comm *ranks, Nonfinite *first, Error *error) {
    Text all;
    size_t used = strlen(first->name);
    if (ranks->num_ranks > 1) {
        snprintf(first->name + used, sizeof(first->name) - used, " on %s", comm_name(ranks, ranks->rank).text);
    }
    if (!comm_gather(ranks, "a finding", first, (int64_t)sizeof(*first), &all, error)) { return false; }
    for (int r = 0; r < ranks->num_ranks; r++) {
        const Nonfinite *found = (const Nonfinite *)all.data + r;
        if (r == 0 || found->place < first->place) { *first = *found; }
    }
    first->name[sizeof(first->name) - 1] = '\0';
    text_free(&all);
    return true;
}

// Names the first bad tensor that is in memory on any rank, or says where the number itself was bad. All parameters and
// gradients have arrived. Returns false.
static inline bool explain_stop(Trainer *t, TrainRun *run, const PendingStep *step, const StepResult *result,
                                Error *error) {
    Comm *ranks = t->shards.ranks;
    bool loss_is_bad = result->stopped == STEP_LOSS_NOT_FINITE;
    int places = t->shards.layout.part.whole.num_layers + 1;
    Nonfinite first = {INT_MAX, ""};
    find_in_shards(t, t->model.params, "parameter", 0, &first);
    if (first.place == INT_MAX) { find_in_activations(t, places, &first); }
    if (first.place == INT_MAX && !loss_is_bad) { // a bad loss begins before the gradients
        find_in_shards(t, t->model.grads, "gradient of", 2 * places, &first);
    }
    if (!nonfinite_share(ranks, &first, error)) { return false; }
    if (first.place == INT_MAX && loss_is_bad && has_peers(&t->shards)) {
        snprintf(first.name, sizeof(first.name), "the losses of %s", comm_name(ranks, (int)result->odd_one).text);
    } else if (first.place == INT_MAX) {
        snprintf(first.name, sizeof(first.name), loss_is_bad ? "the losses" : "the sum of squares");
    }
    run_fail_nonfinite(run, step->info.step, loss_is_bad ? "loss" : "gradient norm",
                       loss_is_bad ? result->loss : result->norm, first.name, error);
    comm_all_know(ranks, error);
    return false;
}

#endif // LLMC_NONFINITE_CUH
