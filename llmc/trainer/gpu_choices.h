// Settles what the options of a GPU run leave to the memory of its GPUs: the micro-batch and the level of --recompute.
// All ranks make equal choices, because they decide from equal numbers.
#ifndef LLMC_GPU_CHOICES_H
#define LLMC_GPU_CHOICES_H

#include "llmc/model/activations.h"
#include "llmc/model/offload.h"
#include "llmc/run/train_run.h"

// GPU memory that no plan counts: our kernels, kernels of cuBLASLt and cuDNN, and the driver's tables. With
// several ranks NCCL's buffers come too. A GPU that answers has its CUDA context already. A planned one has none.
#define GPU_RESERVE_BYTES ((int64_t)1 << 30)
#define GPU_NCCL_BYTES ((int64_t)2 << 30) // one communicator's; those of a grid, and sends, may take more
#define GPU_CONTEXT_BYTES ((int64_t)1 << 29)

// A micro-batch of so many tokens keeps a GPU busy. More are worth less than a lower level of --recompute.
#define AUTO_TOKENS 8192

// The trainer defines this function. It returns the bytes of GPU memory that the run takes with a micro-batch of B
// sequences at a level of --recompute, INT64_MAX if they do not fit into 63 bits. It allocates nothing.
int64_t trainer_plan_bytes(const TrainRun *run, int64_t B, int level);

static inline int64_t run_gpu_reserve(const TrainRun *run) {
    return GPU_RESERVE_BYTES + (run->num_ranks > 1 ? GPU_NCCL_BYTES : 0) +
           (train_options_plan(run->options) ? GPU_CONTEXT_BYTES : 0);
}

static inline int64_t run_gpu_budget(const TrainRun *run) {
    return max_i64(0, run->choices.gpu_bytes - run_gpu_reserve(run));
}

// "75.50 GiB (79.00 GiB less an assumed 3.50 GiB for CUDA and its libraries, of which NCCL may take 2.00 GiB)"
static inline ShortText run_gpu_budget_text(const TrainRun *run) {
    ShortText text;
    const char *nccl = run->num_ranks > 1 ? ", of which NCCL may take " : "";
    snprintf(text.text, sizeof(text.text), "%.16s (%.16s less an assumed %.16s for CUDA and its libraries%s%.16s)",
             bytes_text(run_gpu_budget(run)).text, bytes_text(run->choices.gpu_bytes).text,
             bytes_text(run_gpu_reserve(run)).text, nccl, run->num_ranks > 1 ? bytes_text(GPU_NCCL_BYTES).text : "");
    return text;
}

// Returns the next micro-batch that --auto may choose, in descending order: a divisor of `sequences`, a rank's share of
// a step. The first call has batch_size 0. The result 0 is the end.
static inline int64_t run_next_batch(int64_t sequences, int64_t batch_size) {
    int64_t next = batch_size == 0 ? min_i64(sequences, TRAIN_MAX_BATCH) : batch_size - 1;
    while (next > 0 && sequences % next != 0) { next--; }
    return next;
}

// Returns the largest micro-batch that fits at a level: of those that divide a rank's share of a step, or the one that
// is given. All stages of a pipeline get as many micro-batches as there are stages, or a multiple. 0: none fits.
static inline int64_t run_largest_batch(const TrainRun *run, int level) {
    const TrainOptions *o = run->options;
    int64_t share = o->total_batch / (o->seq_len * run->data.ranks);
    if (share % max_i64(o->pp, 1) == 0) { share /= max_i64(o->pp, 1); }
    int64_t B = run_chooses_batch(run) ? run_next_batch(share, 0) : o->batch_size;
    while (B > 0 && trainer_plan_bytes(run, B, level) > run_gpu_budget(run)) {
        B = run_chooses_batch(run) ? run_next_batch(share, B) : 0;
    }
    return B;
}

// Chooses the lowest level at which the largest micro-batch has AUTO_TOKENS tokens. If no level has so many, chooses
// the lowest one that has most. Where the micro-batch is given, this is the lowest level that fits. If none fits,
// --auto leaves one array after another to the host, until a micro-batch has AUTO_TOKENS tokens.
static inline bool run_choose(TrainRun *run, TrainOptions *o, Error *error) {
    int first = (int)max_i64(o->recompute, 0), last = o->recompute < 0 ? NUM_RECOMPUTE_LEVELS - 1 : first;
    int level = last;
    int64_t most = 0;
    char batch[40] = "", offload[80] = "";
    ShortText where = run_gpu_budget_text(run);
    for (int i = first; i <= last && most * o->seq_len < AUTO_TOKENS; i++) {
        int64_t B = run_largest_batch(run, i);
        if (B > most) { most = B, level = i; }
    }
    bool offloads = most == 0 && o->auto_plan && !o->given[OPTION_offload];
    for (int i = 0; offloads && i < NUM_OFFLOADS && most * o->seq_len < AUTO_TOKENS; i++) {
        run->choices.offload |= run->choices.offloads & 1 << i;
        most = run_largest_batch(run, last), level = last;
    }
    bool must_fit = o->auto_plan || (o->gpu_memory > 0.0 && !train_options_plan(o));
    if (most == 0 && must_fit) {
        fail(error,
             "%s: nothing fits: --batch-size %lld --recompute %d takes more than %s; %suse more GPUs with --zero-stage "
             "3, or choose a smaller model",
             o->auto_plan ? "--auto" : "--gpu-memory", (long long)o->batch_size, level, where.text,
             o->batch_size > 1 ? "lower --batch-size, " : "");
        return run_fail_together(run, error);
    }
    o->recompute = level;
    if (run_chooses_batch(run)) {
        o->batch_size = most;
        snprintf(batch, sizeof(batch), "--batch-size %lld ", (long long)most);
    }
    if (run->choices.offload != 0 && !o->given[OPTION_offload]) {
        run->choices.offloaded = offload_text(run->choices.offload), o->offload = run->choices.offloaded.text;
        snprintf(offload, sizeof(offload), " --offload %.60s", o->offload);
    }
    snprintf(run->choices.note, sizeof(run->choices.note), "%s--recompute %d%s: %s %s", batch, level, offload,
             most > 0 ? "fits into" : "takes the least memory, but more than", where.text);
    return true;
}

// Settles everything that the options leave to the GPUs. gpu_bytes: the least that is free on the GPU of any rank, or
// the memory of a planned GPU.
static inline bool run_settle_gpu_choices(TrainRun *run, TrainOptions *o, int64_t gpu_bytes, Error *error) {
    int64_t limit = (int64_t)(o->gpu_memory * 0x1p30);
    run->choices.gpu_bytes = limit > 0 ? min_i64(limit, gpu_bytes) : gpu_bytes;
    if (o->steps == 0) { o->recompute = 0; } // there is no backward pass
    return (!o->auto_plan && o->recompute >= 0) || run_choose(run, o, error);
}

#endif // LLMC_GPU_CHOICES_H
