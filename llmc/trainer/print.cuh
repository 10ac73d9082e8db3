// What a GPU trainer prints before its first step, and what run.jsonl says of its machine.
#ifndef LLMC_TRAINER_PRINT_CUH
#define LLMC_TRAINER_PRINT_CUH

#include <vector>

#include "llmc/base/json_out.h"
#include "llmc/layers/attention.cuh"
#include "llmc/ranks/rank_gpus.cuh"
#include "llmc/run/run_record.h"
#include "llmc/run/run_report.h"
#include "llmc/ranks/traffic.h"
#include "llmc/trainer/plan.cuh"
#include "llmc/trainer/update.cuh"

static inline void print_config(const Trainer *t, const TrainRun *run) {
    const RunShape *shape = &t->model.shape;
    const RankGrid *grid = &shape->grid;
    int HS = attention_shape(&t->model.config, 1, 1).HS;
    if (grid->dp < grid_ranks(grid)) {
        say(stdout, "grid        %d data x %d pipeline x %d context x %d tensor parallel\n", grid->dp, grid->pp,
            grid->cp, grid->tp);
    }
    if (grid->pp > 1 && shape->zero_stage >= ZERO_GRADIENTS) {
        say(stdout, "            --zero-stage %d sends gradients in each micro-batch, 1 only once a step\n",
            shape->zero_stage);
    }
    if (shape->offload != 0) {
        say(stdout, "offload     %s: %s of pinned memory for each GPU\n", offload_text(shape->offload).text,
            bytes_text(t->host_plan.total).text);
    }
    say(stdout, "precision   %s%s%s%s; attention ", PRECISION_NAME, shape->has_master ? ", fp32 master weights" : "",
        shape->narrow ? ", moments in bf16" : "", shape->fp8 ? ", linear layers of the blocks in fp8" : "");
    if (shape->cudnn) {
        say(stdout, "by %s%s", run->record.attention,
            shape->repeats ? "" : ", whose backward has other bits each time");
    } else {
        say(stdout, "on %s", attention_uses_tensor_cores(HS) ? "tensor cores" : "plain cores");
    }
    say(stdout, ", heads of %d\n", HS);
    if (run->choices.no_cudnn[0] != '\0') { say(stdout, "            not by cuDNN: %s\n", run->choices.no_cudnn); }
}

static inline void print_machine(Trainer *t) {
    gpu_print(&t->gpu.device, t->shards.all.size, t->model.shape.fp8);
    if (has_peers(&t->shards)) { rank_gpus_print(t->shards.ranks, t->model.shape.zero_stage); }
}

// Prints what a GPU sends. first: begins the first line; who: ends each line.
static inline void print_traffic(const char *first, const Traffic *sent, const char *who) {
    const struct {
        int64_t bytes;
        const char *what;
    } others[] = {{sent->matrices, "of Muon's matrices"},
                  {sent->tensor, "for tensor parallelism"},
                  {sent->context, "of keys and values"},
                  {sent->pipeline, "to other stages"}};
    say(stdout, "%-12s%lld bytes of gradients, %lld of parameters, %s\n", first, (long long)sent->gradients,
        (long long)sent->parameters, who);
    for (const auto &other : others) {
        if (other.bytes > 0) {
            say(stdout, "            %lld bytes %s, %s\n", (long long)other.bytes, other.what, who);
        }
    }
}

// Prints what passes between a GPU and its host.
static inline void print_bus(const Traffic *sent) {
    long long to = (long long)sent->to_gpu, from = (long long)sent->from_gpu;
    if (to + from > 0) { say(stdout, "bus         %lld bytes to each GPU, %lld from it\n", to, from); }
}

// Adds to *bytes what passes to or from the host in a step of a planned GPU, but for parameters that a pass fetches.
static inline void add_bus(const Trainer *t, bool to_gpu, int64_t *bytes) {
    const ZeroLayout *zero = &t->shards.layout;
    int64_t m = t->model.shape.pipeline.micro_batches, waiting = t->model.config.num_layers - 1;
    if (t->model.shape.offload & OFFLOAD_RESIDUALS) {
        *bytes += m * waiting * t->model.acts.residual.stride * (int64_t)sizeof(floatX);
    }
    for (int b = 0; b < zero->num_buckets; b++) {
        BucketRange adamw = adamw_range(t, b);
        int64_t own = zero_end(zero, b, t->shards.rank) - zero_begin(zero, b, t->shards.rank);
        *bytes += own * chunk_bytes(t, ADAMW_USES & ~USES_V, to_gpu); // Muon uses as much, in two walks
        *bytes += max_i64(0, adamw.end - adamw.begin) * chunk_bytes(t, USES_V, to_gpu);
        if (t->model.grads.on_host) { *bytes += 4 * (m - to_gpu) * zero_shard(zero, b); }
    }
}

// Says what a step sends, of a planned rank. Its micro-batches are its largest batches.
static inline Traffic planned_traffic(const Trainer *t) {
    const RunShape *run = &t->model.shape;
    bool block = run->recompute == RECOMPUTE_BLOCK;
    bool mlp = !block && run->recompute > RECOMPUTE_NOTHING && run->gelu_fusion >= FUSE_GELU_FORWARD;
    TrafficShape shape = {
        &t->shards.layout, &run->pipeline, t->shards.rank,          t->shards.stage, run->grid.cp, sizeof(floatX),
        batch_rows(run),   run->sp,        block ? 2 : mlp ? 1 : 0, block,           block};
    std::vector<PipeInstruction> list((size_t)pipe_length(&run->pipeline));
    Traffic sent = traffic_of_step(&shape, list.data());
    if (t->model.params.on_host) { sent.to_gpu += shape.value * traffic_fetched(&shape, list.data()); }
    add_bus(t, true, &sent.to_gpu), add_bus(t, false, &sent.from_gpu);
    return sent;
}

// Prints the layers and the memory of each stage of a pipeline, and what each GPU sends in a step.
static inline void print_stages(const TrainRun *run) {
    static Trainer scratch; // large, so not on the stack
    RunShape shape = shape_of(run, run->options->batch_size, (int)run->options->recompute);
    for (int stage = 0; stage < shape.grid.pp; stage++) {
        plan_stage(&scratch, run, shape, stage);
        const ModelPart *part = &scratch.shards.layout.part;
        if (shape.grid.pp > 1) {
            say(stdout, "stage %-6d%s on each GPU, %d layers from layer %d on%s%s%s\n", stage,
                bytes_text(scratch.device_plan.total).text, part->local.num_layers, part_whole_layer(part, 0),
                part->at.chunks > 1 ? ", in chunks" : "", part_begins(part) ? ", embedding" : "",
                part_ends(part) ? ", head" : "");
        }
        if (shape.kind != RUN_TRAINS) { continue; }
        Traffic sent = planned_traffic(&scratch);
        if (run->num_ranks > 1) { print_traffic("", &sent, "sent by each GPU"); }
        print_bus(&sent);
    }
}

// Prints the host's buffers (--plan all), the work and the traffic of a step on each GPU, and whether the plan fits.
static inline void print_plan(const Trainer *t, const TrainRun *run) {
    int64_t bytes = trainer_plan_bytes(run, run->options->batch_size, (int)run->options->recompute);
    int64_t missing = bytes - run_gpu_budget(run);
    ShortText takes = bytes_text(bytes), where = run_gpu_budget_text(run);
    if (train_options_plans_all(run->options)) {
        say(stdout, "\nOn the host\n");
        plan_print(&t->host_plan, stdout);
    }
    if (run_kind(run) == RUN_TRAINS) {
        say(stdout, "a step      %.4g FLOPs on each GPU\n", run_step_flops(run) / run->num_ranks);
    }
    print_stages(run);
    if (missing <= 0) {
        say(stdout, "fits        yes, %s of %s\n", takes.text, where.text);
    } else {
        say(stdout, "fits        no, %s are missing: %s of %s\n", bytes_text(missing).text, takes.text, where.text);
    }
}

// Prints what the GPUs of a run have sent: those of the first rank of each stage.
static inline bool print_sent(Trainer *t, Error *error) {
    Text all;
    const RankGrid *grid = &t->model.shape.grid;
    if (!comm_gather(t->shards.ranks, "traffic", &t->shards.sent, (int64_t)sizeof(Traffic), &all, error)) {
        return false;
    }
    for (int stage = 0; stage < grid->pp; stage++) {
        RankGrid place = {0, stage, 0, 0};
        char first[32] = "sent";
        if (stage > 0) { snprintf(first, sizeof(first), "by stage %d", stage); }
        print_traffic(first, (const Traffic *)all.data + grid_rank(grid, &place), "by each GPU");
    }
    text_free(&all);
    return true;
}

static inline void add_versions(Text *versions) {
    char text[64];
    auto add = [&](const char *name, const char *version) {
        if (version[0] != '\0') { json_put_text(versions, name, version); }
    };
    gpu_each_version(add);
    cublas_version_text(text, sizeof(text)), add("cublaslt", text);
    cudnn_att_version_text(text, sizeof(text)), add("cudnn", text);
    nccl_version_text(text, sizeof(text)), add("nccl", text);
}

// Describes rank 0's GPU, and how many there are, for run.jsonl.
static inline void describe(Trainer *t, const TrainRun *run, RunMachine *machine) {
    Text *hardware = &machine->hardware;
    const cudaDeviceProp *gpu = &t->gpu.device.properties;
    json_put(hardware, "machines", "%d", t->shards.ranks->num_machines);
    json_put(hardware, "gpus", "{");
    json_put(hardware, "number", "%d", run->num_ranks);
    json_put_text(hardware, "name", gpu->name);
    json_put(hardware, "memory_bytes", "%lld", (long long)gpu->totalGlobalMem);
    json_put(hardware, "compute_capability", "\"%d.%d\"", gpu->major, gpu->minor);
    text_words(hardware, "}");
    add_versions(&machine->versions);
}

#endif // LLMC_TRAINER_PRINT_CUH
