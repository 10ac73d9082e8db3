// Settles the choices that the options of a GPU run leave open: micro-batch, level of --recompute, --gelu-fusion and
// --head-rows. Prints what --plan says about them.
//
// The trainer plans a variant of the run without taking memory (trainer_plan_variant), and this file compares the
// variants. All ranks make equal choices, because they decide from equal numbers.
#ifndef LLMC_GPU_CHOICES_H
#define LLMC_GPU_CHOICES_H

#include "llmc/model/auto_plan.h"
#include "llmc/run/run_inputs.h"

// A variant of the run: its options, but with this level of --recompute and this --zero-stage.
typedef struct {
    int recompute, zero_stage;
    bool unsharded; // one GPU holds the whole model and only trains, without recomputation
} PlanVariant;

typedef struct {
    int B;
    StepRows rows;                           // a step's time
    int64_t bytes;                           // of GPU memory
    bool overflows;                          // the size of a buffer does not fit into 63 bits
    int64_t gradient_bytes, parameter_bytes; // sent by a rank in a step
} PlannedRun;

// Plans memory and time of a variant of the run. The GPU trainer defines it.
PlannedRun trainer_plan_variant(Trainer *t, const TrainRun *run, PlanVariant variant, const StepGpu *gpu,
                                Error *overflow);

// *overflow says what is too large.
static inline PlannedRun run_plan_variant(const TrainRun *run, const StepGpu *gpu, int64_t recompute,
                                          int64_t zero_stage, Error *overflow) {
    PlanVariant variant = {(int)recompute, (int)zero_stage, false};
    return trainer_plan_variant(run->trainer, run, variant, gpu, overflow);
}

// ---- GPUs ----

static inline bool run_is_fp32(const TrainRun *run) { return strcmp(run_precision(run), "fp32") == 0; }

// Returns the GPU that --plan predicts times for. A GPU of unknown speed is treated as this GPU.
static inline StepGpu run_planned_gpu(const TrainRun *run) {
    const TrainOptions *o = &run->options;
    bool one_machine = run->num_ranks <= (o->gpus_per_node > 0 ? o->gpus_per_node : 8);
    GpuPrecision precision = run_is_fp32(run) ? (o->tf32 ? GPU_TF32 : GPU_FP32) : GPU_BF16;
    StepGpu gpu = step_gpu(train_options_gpu(o), precision, one_machine);
    if (o->link_speed > 0.0) { gpu.link_bytes_per_second = 1e9 * o->link_speed; }
    return gpu;
}

// Returns the GPUs that --plan plans for. Nothing else is in their memory.
static inline AutoGpus run_planned_gpus(const TrainRun *run, bool (*fuses_gelu)(int, int)) {
    const GpuPeak *gpu = train_options_gpu(&run->options);
    int64_t bytes = run->choices.bytes_here > 0 ? run->choices.bytes_here : (int64_t)gpu->gib << 30;
    if (run->options.gpu_memory > 0.0) { bytes = (int64_t)(run->options.gpu_memory * 0x1p30); }
    AutoGpus gpus = {run_planned_gpu(run), bytes, bytes, fuses_gelu(gpu->capability / 10, gpu->capability % 10)};
    return gpus;
}

// ---- Choices that round ----

// Tells whether such GPUs, with nothing else in their memory, would hold the whole model and train it without
// recomputation. The bits of a run depend on the answer. So the answer may not depend on anything that must leave the
// bits alone: free memory, levels of recompute, stages of sharding, where attention is computed, what is evaluated.
static inline bool run_fits_whole(const TrainRun *run, const AutoGpus *gpus) {
    PlanVariant variant = {RECOMPUTE_NOTHING, 0, true};
    Error ignored;
    PlannedRun whole = trainer_plan_variant(run->trainer, run, variant, NULL, &ignored);
    return !whole.overflows && whole.bytes <= gpus->total_bytes - auto_reserve(run->num_ranks, false);
}

#define HEAD_ROWS_FEW 8192
#define HEAD_ROWS_MANY 16384

// Settles the choices that change how sums round, if run->choices.asked leaves them open, for the run's current
// micro-batch. Kept activations are worth more than many rows of logits. A GPU that recomputes GELU must not repeat a
// multiply for it.
static inline void run_settle_rounding(TrainRun *run, const AutoGpus *gpus) {
    TrainOptions *o = &run->options;
    const TrainOptions *asked = &run->choices.asked;
    bool all_are_few = o->batch_size * o->seq_len <= HEAD_ROWS_FEW;
    o->head_rows = asked->head_rows > 0 ? asked->head_rows : HEAD_ROWS_MANY;
    bool fits = run_fits_whole(run, gpus), fewer = asked->head_rows == 0 && !all_are_few && !fits;
    if (fewer) { o->head_rows = HEAD_ROWS_FEW, fits = run_fits_whole(run, gpus); }
    o->gelu_fusion = asked->gelu_fusion;
    if (asked->gelu_fusion >= 0) { return; }
    o->gelu_fusion = fits && gpus->fuses_gelu && !o->fp8 ? FUSE_GELU_BACKWARD : FUSE_NOTHING;
}

static inline void run_explain_rounding(TrainRun *run) {
    const TrainOptions *o = &run->options, *asked = &run->choices.asked;
    char *note = run->choices.note, fusion[32] = "", rows[32] = "";
    size_t used = strlen(note);
    if (asked->gelu_fusion < 0 && !o->fp8 && !run_is_fp32(run)) {
        snprintf(fusion, sizeof(fusion), "--gelu-fusion %lld", (long long)o->gelu_fusion);
    }
    if (asked->head_rows == 0 && o->batch_size * o->seq_len > HEAD_ROWS_FEW) {
        snprintf(rows, sizeof(rows), "--head-rows %lld", (long long)o->head_rows);
    }
    if (fusion[0] == '\0' && rows[0] == '\0') { return; }
    snprintf(note + used, sizeof(run->choices.note) - used, "%s%s%s%s: by the kind of GPU and all its memory",
             used > 0 ? "\n            " : "", fusion, fusion[0] != '\0' && rows[0] != '\0' ? " " : "", rows);
}

// ---- Micro-batch and level of recomputation ----

// Computes memory and, with a gpu, time of a step with the run's current micro-batch. *overflow says what is too large.
static inline AutoCandidate run_candidate(const TrainRun *run, const StepGpu *gpu, int recompute, Error *overflow) {
    PlannedRun planned = run_plan_variant(run, gpu, recompute, run->options.zero_stage, overflow);
    int64_t bytes = planned.overflows ? -1 : planned.bytes;
    AutoCandidate candidate = {planned.B, recompute, bytes, gpu != NULL ? step_rows_seconds(&planned.rows) : 0.0};
    return candidate;
}

static inline void run_all_levels(const TrainRun *run, const StepGpu *gpu, AutoCandidate levels[NUM_RECOMPUTE_LEVELS]) {
    Error ignored;
    for (int i = 0; i < NUM_RECOMPUTE_LEVELS; i++) { levels[i] = run_candidate(run, gpu, i, &ignored); }
}

// Lists every choice that the options leave open to --auto and returns their number. A choice that is impossible for
// another reason than memory is left out or marked, and *error then says why.
static inline int run_candidates(TrainRun *run, const AutoGpus *gpus, AutoCandidate *candidates, Error *error) {
    const TrainOptions *o = &run->options;
    bool batch_is_given = o->given[TRAIN_ROW_batch_size], level_is_given = o->recompute >= 0;
    int first = level_is_given ? (int)o->recompute : 0, last = level_is_given ? first : NUM_RECOMPUTE_LEVELS - 1,
        count = 0;
    int64_t B = o->batch_size; // the largest micro-batch
    while (B > 0) {
        bool possible = run_change_batch_size(run, B, error);
        if (possible) { run_settle_rounding(run, gpus); }
        for (int level = first; possible && level <= last && count < AUTO_MAX_CANDIDATES; level++) {
            candidates[count++] = run_candidate(run, &gpus->speed, level, error);
        }
        B = batch_is_given ? 0 : train_options_next_batch(o->total_batch / (o->seq_len * run->num_ranks), B);
    }
    return count;
}

// Fails because not even `least` fits, and says what helps.
static inline bool run_fail_no_room(TrainRun *run, const char *option, const AutoCandidate *least, const AutoRoom *room,
                                    Error *error) {
    const TrainOptions *o = &run->options;
    char remedy[160];
    snprintf(remedy, sizeof(remedy), "%s%s%suse more GPUs with --zero-stage 3, or choose a smaller model",
             o->gpu_memory > 0.0 ? "raise --gpu-memory, " : "", least->B > 1 ? "lower --batch-size, " : "",
             run->num_ranks > 1 && o->zero_stage < 3 ? "raise --zero-stage, " : "");
    auto_fail_no_room(option, least, room, remedy, error);
    return run_fail_together(run, error);
}

// Settles --batch-size and --recompute if they are not given.
static inline bool run_choose_all(TrainRun *run, const AutoGpus *gpus, const AutoRoom *room, Error *error) {
    AutoCandidate *all = (AutoCandidate *)malloc(AUTO_MAX_CANDIDATES * sizeof(AutoCandidate));
    if (all == NULL) { return fail(error, "out of memory"); }
    int count = run_candidates(run, gpus, all, error), best = auto_choose(all, count, auto_budget(room));
    int least = auto_smallest(all, count);
    if (best >= 0) { auto_explain(run->choices.note, sizeof(run->choices.note), all, count, best, room); }
    AutoCandidate chosen = all[best >= 0 ? best : max_i64(least, 0)];
    free(all);
    if (best < 0 && least >= 0) { return run_fail_no_room(run, "--auto", &chosen, room, error); }
    if (best < 0) { return run_fail_together(run, error); }
    run->options.recompute = chosen.recompute;
    if (!run_change_batch_size(run, chosen.B, error)) { return false; }
    run_settle_rounding(run, gpus);
    return true;
}

// Settles --recompute: the lowest level that fits. If none fits, --gpu-memory refuses the run. Without it the highest
// level is tried and reports the shortage.
static inline bool run_choose_level(TrainRun *run, const StepGpu *gpu, const AutoRoom *room, Error *error) {
    AutoCandidate levels[NUM_RECOMPUTE_LEVELS], *last = &levels[NUM_RECOMPUTE_LEVELS - 1];
    bool limited = run->options.gpu_memory > 0.0 && !train_options_plan(&run->options);
    run_all_levels(run, gpu, levels);
    int lowest = auto_lowest(levels, NUM_RECOMPUTE_LEVELS, auto_budget(room));
    if (lowest < 0 && limited && last->bytes >= 0) { return run_fail_no_room(run, "--gpu-memory", last, room, error); }
    auto_explain_level(run->choices.note, sizeof(run->choices.note), lowest, room);
    run->options.recompute = lowest < 0 ? NUM_RECOMPUTE_LEVELS - 1 : lowest;
    return true;
}

// Settles everything that the options leave to the GPUs.
static inline bool run_settle_gpu_choices(TrainRun *run, const AutoGpus *gpus, Error *error) {
    TrainOptions *o = &run->options;
    int64_t limit = (int64_t)(o->gpu_memory * 0x1p30);
    AutoRoom room = {limit > 0 ? min_i64(limit, gpus->free_bytes) : gpus->free_bytes,
                     auto_reserve(run->num_ranks, !train_options_plan(o))};
    run->choices.asked = *o;
    run->choices.gpu_bytes = gpus->total_bytes;
    run_settle_rounding(run, gpus);
    if (o->steps == 0) {
        o->recompute = 0; // there is no backward pass
        return true;
    }
    if (o->auto_plan) {
        if (!run_choose_all(run, gpus, &room, error)) { return false; }
    } else if (o->recompute < 0 && !run_choose_level(run, &gpus->speed, &room, error)) {
        return false;
    }
    run_explain_rounding(run);
    return true;
}

// ---- The micro-batches that fit ----

// Plans the memory of the run with another micro-batch and level of --recompute. The run keeps the micro-batch.
static inline AutoCandidate run_candidate_with(TrainRun *run, const AutoGpus *gpus, int64_t B, int level) {
    Error ignored;
    run->options.batch_size = B;
    run_pack_evals(run, &ignored); // may fail for a batch that is too small, and no memory is short then
    run_settle_rounding(run, gpus);
    return run_candidate(run, NULL, level, &ignored);
}

// Returns the largest micro-batch with which a level fits into `budget` bytes, among those that divide --total-batch if
// it is given. 0: none. More sequences take more memory, so the search halves; of the few that divide it tries each.
static inline int64_t run_largest_batch(TrainRun *run, const AutoGpus *gpus, int level, int64_t budget) {
    const TrainOptions *o = &run->options;
    int64_t tokens = o->seq_len * run->num_ranks, given = o->given[TRAIN_ROW_total_batch] ? o->total_batch / tokens : 0;
    int64_t fits = 0, too_many = min_i64(TRAIN_MAX_BATCH, given > 0 ? given : TRAIN_MAX_TOTAL_BATCH / tokens) + 1;
    while (too_many - fits > 1 && (given == 0 || fits == 0)) {
        int64_t B = given > 0 ? train_options_next_batch(given, too_many) : fits + (too_many - fits) / 2;
        AutoCandidate candidate = run_candidate_with(run, gpus, B, level);
        *(auto_fits(&candidate, budget) ? &fits : &too_many) = B;
    }
    return fits;
}

// What a GPU holds.
typedef struct {
    char fits[64];                         // does the planned run: "yes", "no, 3.00 MiB missing", or how
    int64_t largest[NUM_RECOMPUTE_LEVELS]; // micro-batch at each level, if it trains
} GpuFit;

// Writes whether the planned run fits into `budget` bytes of such GPUs. If --recompute is not given, a run there takes
// the lowest level that fits.
static inline void run_fit_text(TrainRun *run, const AutoGpus *gpus, int64_t budget, char *text, size_t size) {
    AutoCandidate levels[NUM_RECOMPUTE_LEVELS];
    int64_t B = run->options.batch_size;
    int level = (int)run->options.recompute, last = run->choices.asked.recompute < 0 ? NUM_RECOMPUTE_LEVELS - 1 : level;
    for (int i = level; i <= last; i++) { levels[i] = run_candidate_with(run, gpus, B, i); }
    int lowest = auto_lowest(levels + level, last - level + 1, budget);
    char missing[32];
    format_bytes(missing, sizeof(missing), levels[last].bytes - budget);
    if (lowest < 0) { snprintf(text, size, "no, %s missing", missing); }
    if (lowest == level) { snprintf(text, size, "yes"); }
    if (lowest > level) { snprintf(text, size, "with --recompute %d", lowest); }
}

// Finds out what a GPU with so many bytes holds.
static inline GpuFit run_fit_gpu(TrainRun *run, AutoGpus gpus, int64_t bytes) {
    GpuFit fit = {"", {0}};
    const TrainOptions before = run->options;
    int64_t budget = bytes - auto_reserve(run->num_ranks, false), planned_for = run->choices.gpu_bytes;
    gpus.total_bytes = gpus.free_bytes = run->choices.gpu_bytes = bytes;
    run_fit_text(run, &gpus, budget, fit.fits, sizeof(fit.fits));
    for (int level = 0; run_kind(run) == RUN_TRAINS && level < NUM_RECOMPUTE_LEVELS; level++) {
        fit.largest[level] = run_largest_batch(run, &gpus, level, budget);
    }
    Error ignored;
    run->options = before, run->choices.gpu_bytes = planned_for;
    run_pack_evals(run, &ignored); // as it was at the start
    return fit;
}

// Prints a row of the table of GPUs. bytes: the memory of each GPU.
static inline void run_print_gpu(TrainRun *run, const AutoGpus *gpus, const char *name, int64_t bytes) {
    GpuFit fit = run_fit_gpu(run, *gpus, bytes);
    bool trains = run_kind(run) == RUN_TRAINS;
    say(stdout, "%-24s %-*s", name, trains ? 22 : 0, fit.fits);
    for (int level = 0; trains && level < NUM_RECOMPUTE_LEVELS; level++) {
        say(stdout, " %8lld", (long long)fit.largest[level]);
    }
    say(stdout, "\n");
}

// Prints on which GPUs the planned run fits: the one of --gpu-memory, or the one of --gpu and the usual ones.
static inline void run_print_fits(TrainRun *run, const AutoGpus *gpus) {
    const TrainOptions *o = &run->options;
    char name[96];
    bool trains = run_kind(run) == RUN_TRAINS, memory_is_given = o->gpu_memory > 0.0, gpu_is_given = o->gpu[0] != '\0';
    say(stdout, "\n");
    if (trains) {
        say(stdout, "%-48s largest --batch-size%s with --recompute\n", "",
            o->given[TRAIN_ROW_total_batch] ? " that divides the step," : "");
    }
    say(stdout, "%-24s %s\n", "GPU memory",
        trains ? "the run fits                  0        1        2        3" : "the run fits");
    if (memory_is_given || gpu_is_given) {
        snprintf(name, sizeof(name), "%.40s (%.4g GiB)",
                 memory_is_given ? "--gpu-memory" : train_options_gpu(o)->option, (double)gpus->total_bytes / 0x1p30);
        run_print_gpu(run, gpus, name, gpus->total_bytes);
    }
    for (size_t i = 0; !memory_is_given && i < NUM_GPU_MEMORIES; i++) {
        if (gpu_is_given && gpu_memories[i].gib == train_options_gpu(o)->gib) { continue; }
        snprintf(name, sizeof(name), "%d GB (%d GiB)", gpu_memories[i].gb, gpu_memories[i].gib);
        run_print_gpu(run, gpus, name, (int64_t)gpu_memories[i].gib << 30);
    }
}

// ---- What --plan prints of a step ----

// Returns the operations of a step on each GPU, without those of recomputation.
static inline double run_flops_of_step(const TrainRun *run) {
    const TrainOptions *o = &run->options;
    return flops_per_token(&run->config, o->seq_len) * (double)o->total_batch / run->num_ranks;
}

// Prints the time of a step, kernel by kernel.
static inline void run_print_step(const TrainRun *run, const StepGpu *gpu) {
    const TrainOptions *o = &run->options;
    Error ignored;
    PlannedRun planned = run_plan_variant(run, gpu, o->recompute, o->zero_stage, &ignored);
    say(stdout,
        "\nA step on %s %s, predicted kernel by kernel, not measured. Assumed: its datasheet, %g TFLOP/s, %g TB/s,\n",
        run->num_ranks > 1 ? "each" : "one", train_options_gpu(o)->option, 1e-12 * gpu->flops_per_second,
        1e-12 * gpu->bytes_per_second);
    say(stdout, "%d multiprocessors\n\n", gpu->multiprocessors);
    step_print(&planned.rows, stdout);
}

// Prints the memory that each level of recomputation saves, and the time that it costs.
static inline void run_print_levels(const TrainRun *run, const StepGpu *gpu) {
    AutoCandidate levels[NUM_RECOMPUTE_LEVELS];
    int order[NUM_RECOMPUTE_LEVELS] = {0};
    run_all_levels(run, gpu, levels);
    auto_rank_levels(levels, order + 1);
    say(stdout,
        "\nThe levels of --recompute, the one that saves most for its time first. The times are predicted.\n\n");
    say(stdout, "%-12s %14s %10s %10s %22s %17s\n", "--recompute", "bytes", "GiB", "GiB saved", "longer a step by",
        "MiB saved per ms");
    for (int i = 0; i < NUM_RECOMPUTE_LEVELS; i++) {
        const AutoCandidate *level = &levels[order[i]];
        double lost = auto_added_seconds(levels, order[i]);
        say(stdout, "%-12d %14lld %10.2f %10.2f %11.3f ms (%4.1f%%) %17.1f\n", order[i], (long long)level->bytes,
            (double)level->bytes / 0x1p30, (double)(levels[0].bytes - level->bytes) / 0x1p30, 1e3 * lost,
            100.0 * lost / levels[0].seconds, auto_bytes_per_ms(levels, order[i]) / 0x1p20);
    }
}

// Tells whether the assumed rate between GPUs is that of PCIe.
static inline bool run_link_is_bus(const TrainRun *run, const StepGpu *gpu) {
    const GpuPeak *peak = train_options_gpu(&run->options);
    return run->options.link_speed == 0.0 && peak->link_gigabytes_per_second <= GPU_PCIE_GIGABYTES_PER_SECOND &&
           gpu->link_bytes_per_second == step_link(peak, true);
}

// Prints for each stage of sharding its memory, the bytes it sends, and the time of a step.
static inline void run_print_stages(const TrainRun *run, const StepGpu *gpu) {
    Error ignored;
    say(stdout,
        "\nThe stages of --zero-stage, on each of %d GPUs. The times are predicted. Assumed: a GPU sends %g GB/s\n",
        run->num_ranks, 1e-9 * gpu->link_bytes_per_second);
    say(stdout,
        "%swhile all send (nccl-tests' busbw, --link-speed). Left out: single messages' time, NCCL's memory.\n\n",
        run_link_is_bus(run, gpu) ? "over the bus (PCIe) " : "");
    say(stdout, "%-12s %14s %10s %16s %16s %10s %10s %6s\n", "--zero-stage", "bytes", "GiB", "gradients sent",
        "parameters sent", "GB sent", "a step", "MFU");
    for (int stage = 0; stage < 4; stage++) {
        PlannedRun planned = run_plan_variant(run, gpu, run->options.recompute, stage, &ignored);
        double seconds = step_rows_seconds(&planned.rows);
        say(stdout, "%-12d %14lld %10.2f %16lld %16lld %10.2f %8.3f s %5.1f%%\n", stage, (long long)planned.bytes,
            (double)planned.bytes / 0x1p30, (long long)planned.gradient_bytes, (long long)planned.parameter_bytes,
            1e-9 * (double)(planned.gradient_bytes + planned.parameter_bytes), seconds,
            100.0 * run_flops_of_step(run) / (gpu->flops_per_second * seconds));
    }
}

// Prints the predicted speed of a run, and its time if the number of steps is known. attention: where it is computed.
static inline void run_print_speed(const TrainRun *run, const StepGpu *gpu, const char *attention) {
    const TrainOptions *o = &run->options;
    Error ignored;
    char time[32], step[32];
    PlannedRun planned = run_plan_variant(run, gpu, o->recompute, o->zero_stage, &ignored);
    double seconds = step_rows_seconds(&planned.rows), flops = run_flops_of_step(run);
    int64_t steps = max_i64(run->num_steps, o->steps);
    say(stdout, "predicted   %.0f tokens/s, %.1f%% MFU, attention %s\n", (double)o->total_batch / seconds,
        100.0 * flops / (gpu->flops_per_second * seconds), attention);
    format_duration(time, sizeof(time), (double)steps * seconds);
    step_time_text(step, sizeof(step), seconds);
    say(stdout, "            %s a step of %.5g FLOPs on each GPU", step, flops);
    if (steps > 0) { say(stdout, ", %s for %lld steps", time, (long long)steps); }
    say(stdout, "%s\n", steps > 0 ? "" : "; the run's time follows from --steps or --train-data");
}

// Prints what most people look for. bytes: what the run takes of each GPU.
static inline void run_print_summary(TrainRun *run, const AutoGpus *gpus, int64_t bytes, const char *attention) {
    const TrainOptions *o = &run->options;
    AutoRoom room = {gpus->total_bytes, auto_reserve(run->num_ranks, false)};
    GpuFit fit = run_fit_gpu(run, *gpus, gpus->total_bytes);
    char takes[32], where[192], largest[96];
    format_bytes(takes, sizeof(takes), bytes);
    auto_room_text(where, sizeof(where), &room);
    say(stdout, "\nIn short, for %s %s with %.4g GiB (%s: --gpu, --gpu-memory)\n", run->num_ranks > 1 ? "each" : "one",
        train_options_gpu(o)->option, (double)gpus->total_bytes / 0x1p30,
        run->choices.bytes_here > 0 ? "as here, or another" : "assumed");
    say(stdout, "memory      %s; fits: %s; room: %s\n", takes, fit.fits, where);
    if (run_kind(run) != RUN_TRAINS) { return; }
    snprintf(largest, sizeof(largest), "--batch-size %lld%s", (long long)fit.largest[o->recompute],
             o->given[TRAIN_ROW_total_batch] ? ", of those that divide the step," : "");
    say(stdout, "largest     %s with --recompute %lld\n",
        fit.largest[o->recompute] > 0 ? largest : "no --batch-size fits", (long long)o->recompute);
    run_print_speed(run, &gpus->speed, attention);
}

// Prints the predictions of a run that trains, on which GPUs a run fits, and a summary.
static inline void run_print_predictions(TrainRun *run, const AutoGpus *gpus, int64_t bytes, const char *attention) {
    if (run_kind(run) == RUN_TRAINS) {
        if (train_options_plans_all(&run->options)) { run_print_step(run, &gpus->speed); }
        run_print_levels(run, &gpus->speed);
        if (run->num_ranks > 1) { run_print_stages(run, &gpus->speed); } // one GPU shards nothing
    }
    run_print_fits(run, gpus);
    run_print_summary(run, gpus, bytes, attention);
}

#endif // LLMC_GPU_CHOICES_H
