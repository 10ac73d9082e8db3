// What a GPU trainer prints before its first step, and what run.jsonl says of its machine.
#ifndef LLMC_TRAINER_PRINT_CUH
#define LLMC_TRAINER_PRINT_CUH

#include "llmc/base/json_out.h"
#include "llmc/layers/attention.cuh"
#include "llmc/ranks/rank_gpus.cuh"
#include "llmc/run/run_record.h"
#include "llmc/run/run_report.h"
#include "llmc/trainer/plan.cuh"

static inline void print_config(const Trainer *t, const TrainRun *run) {
    const RunShape *shape = &t->model.shape;
    int HS = attention_shape(&t->model.config, 1, 1).HS;
    say(stdout, "precision   %s%s%s; attention ", PRECISION_NAME, shape->has_master ? ", fp32 master weights" : "",
        shape->fp8 ? ", linear layers of the blocks in fp8" : "");
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
    gpu_print(&t->gpu.device, t->model.shape.num_ranks, t->model.shape.fp8);
    if (has_peers(&t->shards)) { rank_gpus_print(t->shards.ranks, t->model.shape.zero_stage); }
}

// Prints the host's buffers (--plan all), the work and the traffic of a step on each GPU, and whether the plan fits.
static inline void print_plan(const Trainer *t, const TrainRun *run) {
    int64_t bytes = t->device_plan.total, missing = bytes - run_gpu_budget(run);
    ZeroTraffic sent =
        zero_traffic(&t->shards.layout, t->model.shape.zero_stage, (int)sizeof(floatX), run->micro_batches);
    bool trains = run_kind(run) == RUN_TRAINS;
    ShortText takes = bytes_text(bytes), where = run_gpu_budget_text(run);
    if (train_options_plans_all(run->options)) {
        say(stdout, "\nOn the host\n");
        plan_print(&t->host_plan, stdout);
    }
    if (trains) { say(stdout, "a step      %.4g FLOPs on each GPU\n", run_step_flops(run) / run->num_ranks); }
    if (trains && run->num_ranks > 1) {
        say(stdout, "            %.0f bytes of gradients, %.0f of parameters, sent by each GPU\n", sent.gradients,
            sent.parameters);
    }
    if (sent.matrices > 0.0) {
        say(stdout,
            "            %.0f bytes of Muon's matrices, sent by each GPU; rank l mod %d runs the rounds of block l\n",
            sent.matrices, run->num_ranks);
    }
    if (missing <= 0) {
        say(stdout, "fits        yes, %s of %s\n", takes.text, where.text);
    } else {
        say(stdout, "fits        no, %s are missing: %s of %s\n", bytes_text(missing).text, takes.text, where.text);
    }
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
