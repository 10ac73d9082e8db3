// What the GPU trainer takes besides its story. train_gpt2.cu includes this file at its end, so the types and functions
// of the story are known here.
//   1. the plan     all memory, planned before it is allocated; what a step costs
//   3. state        load, save and check parameters and optimizer state
//   4. the program  join the ranks, open the GPU, print
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "llmc/base/json_out.h"
#include "llmc/base/utils.h"
#include "llmc/cuda/gpu.h"
#include "llmc/ranks/agree.h"
#include "llmc/ranks/gpu_state.cuh"
#include "llmc/ranks/rank_gpus.cuh"
#include "llmc/ranks/meet.h"
#include "llmc/trainer/gpu_choices.h"

// ---------------------------------------------------------------------------------------------------------------------
// 1. The shape of a run

// How a training state records our own attention.
#define OWN_ATTENTION "our own kernels"

// True if cuDNN takes attention of this run's shape, with a micro-batch of B sequences.
static bool check_cudnn(const TrainRun *run, int64_t B, Error *error) {
    const TrainOptions *o = run->options;
    CudnnShape shape = {(int)B, (int)o->seq_len, run->config.channels, run->config.num_heads, o->deterministic};
    return cudnn_att_check(&shape, error);
}

// Tells whether cuDNN computes attention: as --attention says, or as the resumed run had it, or where cuDNN takes the
// shape. If not, *why says why, or is "" if --attention says so.
static bool uses_cudnn(const TrainRun *run, int64_t B, Error *why) {
    const TrainOptions *o = run->options;
    char was[sizeof(run->record.attention)] = "";
    why->text[0] = '\0';
    if (run_kind(run) != RUN_TRAINS || strcmp(o->attention, "own") == 0) { return false; }
    bool any = o->deterministic && strcmp(o->attention, "auto") == 0;
    if (any && run_resumes(run) && state_get_text(&run->folder.facts, "attention-by", was, sizeof(was)) &&
        strcmp(was, OWN_ATTENTION) == 0) {
        return fail(why, "the resumed run has taken " OWN_ATTENTION);
    }
    return check_cudnn(run, B, why);
}

// Returns the places for the mean losses of batches of `most` sequences, shared by the ranks in rounds.
static int64_t mean_places(const TrainRun *run, int64_t batches, int64_t most) {
    return run->num_ranks * ceil_div_i64(batches, run->num_ranks) * most;
}

// Lists what a run computes, with a micro-batch of B sequences and a level of recomputation.
static RunShape shape_of(const TrainRun *run, int64_t B, int level) {
    const TrainOptions *o = run->options;
    RunShape shape;
    Error why;
    memset(&shape, 0, sizeof(shape));
    shape.kind = run_kind(run);
    shape.B = shape.kind == RUN_GENERATES ? 1 : (int)B;
    shape.T = (int)o->seq_len;
    shape.eval_T = run_eval_length(run);
    shape.recompute = level;
    shape.gelu_fusion = (int)o->gelu_fusion;
    shape.fp8 = o->fp8;
    shape.head_rows = (int)o->head_rows;
    shape.repeats = o->deterministic;
    shape.cudnn = uses_cudnn(run, B, &why);
    shape.has_master = o->master_weights && !PRECISION_IS_FP32;
    shape.rank = run->rank;
    shape.num_ranks = run->num_ranks;
    shape.zero_stage = (int)o->zero_stage;
    shape.optimizer = train_options_optimizer(o), shape.muon_scale = run_muon_scale(run);
    shape.mean_places = mean_places(run, ceil_div_i64(run_val_sequences(run), B), B);
    for (const EvalLoader &eval : run->evals) {
        if (!eval_is_open(&eval)) { continue; }
        int64_t most = eval_batch_sequences(&eval, B * o->seq_len), batches = ceil_div_i64(eval.num_sequences, most);
        shape.mean_places = max_i64(shape.mean_places, mean_places(run, batches, most));
        shape.eval_sequences = max_i64(shape.eval_sequences, eval.num_sequences);
    }
    return shape;
}

int64_t trainer_plan_bytes(const TrainRun *run, int64_t B, int level) {
    static Trainer scratch; // large, so not on the stack
    Error ignored;
    trainer_plan(&scratch, &run->config, shape_of(run, B, level));
    return plan_check_overflow(&scratch.device_plan, &ignored) ? scratch.device_plan.total : INT64_MAX;
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. The program

#ifndef PROGRAM_NAME // the Makefile gives the emulated program its own
#define PROGRAM_NAME "train_gpt2cu"
#endif

// Returns the source's revision. The Makefile links another function of this name, so that a commit recompiles nothing.
extern "C" __attribute__((weak)) const char *gpt2c_revision(void) { return ""; }

#define DEFAULT_SEQ_LEN 1024

// Refuses shapes and options that this build or its kernels cannot compute. Runs before the GPU is opened.
static bool check_shape(const TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    const ModelConfig *c = &run->config;
    const char *where = run_shape_origin(run);
    if (!layernorm_check(where, c->channels, error) || !attention_check(where, c->channels, c->num_heads, error) ||
        !cross_entropy_check(c->padded_vocab_size, error) || (o->fp8 && !fp8_check_width(c->channels, error))) {
        return false;
    }
    Error why = {};
    if (strcmp(o->attention, "cudnn") == 0 && !check_cudnn(run, o->batch_size, &why)) {
        return fail(error, "--attention cudnn: %s", why.text);
    }
    if (!o->deterministic && !check_cudnn(run, o->batch_size, &why)) {
        return fail(error, "--deterministic 0: is for cuDNN's attention; %s", why.text);
    }
#ifdef PRECISION_FP32
    if (o->fp8) { return fail(error, "--fp8: is for the bf16 build; this one is fp32 (make PRECISION=FP32)"); }
    if (!o->master_weights) {
        return fail(error, "--master-weights (-w): 0 is for the bf16 build; in fp32 there is one copy of the weights");
    }
#else
    if (!o->tf32) {
        return fail(error, "--tf32 (-f): 0 is for the fp32 build (make PRECISION=FP32); this one multiplies in bf16");
    }
#endif
    return true;
}

// Visits all events of a trainer. Some take times.
template <class Visit> static void each_event(Trainer *t, Visit visit) {
    visit(&t->evaluation.evaluated, false);
    for (BatchSlot &slot : t->feeder.slots) { visit(&slot.uploaded, false), visit(&slot.no_longer_used, false); }
    for (int i = 0; i < NUM_STEPS; i++) {
        visit(&t->stats.begun[i], true), visit(&t->stats.reduced[i], false), visit(&t->stats.done[i], true);
    }
}

static void create_streams(Trainer *t) {
    gpu_create_stream(&t->gpu.stream);
    gpu_create_stream(&t->feeder.copy_stream);
    shards_open(&t->shards, t->shards.ranks, t->gpu.stream);
    each_event(t,
               [](cudaEvent_t *event, bool timed) { timed ? gpu_create_timed_event(event) : gpu_create_event(event); });
}

// Opens cuDNN. Runs before memory is allocated, because cuDNN takes some too.
static bool open_attention(Trainer *t, Error *error) {
    CudnnShape attention = cudnn_shape(&t->model);
    Error why;
    return !t->model.shape.cudnn || cudnn_att_open(&t->gpu.cudnn, &attention, cudnn_att_chunk(&attention), &why) ||
           fail(error, "attention: %s; --attention own goes without cuDNN", why.text);
}

// Opens this rank's GPU and allocates the memory plans.
static bool trainer_open(Trainer *t, Comm *ranks, bool tf32, Error *error) {
    t->shards.ranks = ranks;
    if (!gpu_open(&t->gpu.device, ranks->local_rank, tf32, error) ||
        (t->model.shape.fp8 && !fp8_check_gpu(&t->gpu.device.properties, error))) {
        return false;
    }
    create_streams(t);
    if (!cublas_open(&t->gpu.cublas, tf32, error) || !open_attention(t, error) ||
        !plan_allocate_device(&t->device_plan, error) || !plan_allocate_pinned(&t->pinned_plan, error) ||
        !plan_allocate(&t->host_plan, error)) {
        return false;
    }
    cublas_set_workspace(&t->gpu.cublas, t->gpu.cublas_workspace, (size_t)CUBLAS_WORKSPACE);
    return true;
}

// Frees everything that trainer_open took, even if trainer_open failed halfway.
static void trainer_close(Trainer *t) {
    if (t->gpu.stream == NULL) { return; }
    cudaDeviceSynchronize();
    nccl_close(&t->shards.nccl);
    cudnn_att_close(&t->gpu.cudnn);
    cublas_close(&t->gpu.cublas);
    shards_close(&t->shards);
    each_event(t, [](cudaEvent_t *event, bool) { cudaEventDestroy(*event); });
    cudaStreamDestroy(t->gpu.stream);
    cudaStreamDestroy(t->feeder.copy_stream);
    plan_free_device(&t->device_plan);
    plan_free_pinned(&t->pinned_plan);
    plan_free(&t->host_plan);
}

// The memory that --plan assumes where no GPU is: what the CUDA runtime reports for a card of 80 GB.
#define PLANNED_GPU_BYTES ((int64_t)79 << 30)

// Returns the memory of the GPU that --plan plans for: the one that is here. An emulated GPU stands for none.
static int64_t planned_gpu_bytes(void) {
    int devices = 0;
    cudaDeviceProp properties;
    bool found = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 &&
                 cudaGetDeviceProperties(&properties, 0) == cudaSuccess;
    cudaGetLastError(); // no GPU is no failure
    return found && gpu_peak_of_device(properties.name) != NULL ? (int64_t)properties.totalGlobalMem
                                                                : PLANNED_GPU_BYTES;
}

// Settles the options that depend on the GPUs.
static bool settle_by_gpus(TrainRun *run, TrainOptions *o, Error *error) {
    int64_t limit = (int64_t)(o->gpu_memory * 0x1p30), bytes;
    bool plans = train_options_plan(o);
    if (plans) { bytes = limit > 0 ? limit : planned_gpu_bytes(); }
    return (plans || rank_gpus_ask(&bytes, run->comm, error)) && run_settle_gpu_choices(run, o, bytes, error);
}

static void print_config(const Trainer *t, const TrainRun *run) {
    const RunShape *shape = &t->model.shape;
    int HS = t->model.config.channels / t->model.config.num_heads;
    char version[32];
    Error why;
    cudnn_att_version_text(version, sizeof(version));
    say(stdout, "precision   %s%s%s; attention ", PRECISION_NAME, shape->has_master ? ", fp32 master weights" : "",
        shape->fp8 ? ", linear layers of the blocks in fp8" : "");
    if (shape->cudnn) {
        say(stdout, "by cuDNN %s%s", version, shape->repeats ? "" : ", whose backward has other bits each time");
    } else {
        say(stdout, "on %s", attention_uses_tensor_cores(HS) ? "tensor cores" : "plain cores");
    }
    say(stdout, ", heads of %d\n", HS);
    if (!uses_cudnn(run, shape->B, &why) && why.text[0] != '\0') {
        say(stdout, "            not by cuDNN: %s\n", why.text);
    }
}

static void print_machine(Trainer *t) {
    gpu_print(&t->gpu.device, t->model.shape.num_ranks, t->model.shape.fp8);
    if (has_peers(&t->shards)) { rank_gpus_print(t->shards.ranks, t->model.shape.zero_stage); }
    if (t->model.shape.fp8 && !fp8_has_conversion()) {
        say(stdout,
            "fp8         slow: this program has no code for 8.9 or later, and converts to 8 bits in software; build "
            "it with GPU_ARCH=%d%d\n",
            t->gpu.device.properties.major, t->gpu.device.properties.minor);
    }
}

// Prints the buffers that are not the GPU's.
static void print_host_plans(const Trainer *t) {
    say(stdout, "\nOn the host, pinned for copies to and from the GPU\n");
    plan_print(&t->pinned_plan, stdout);
    say(stdout, "\nOn the host\n");
    plan_print(&t->host_plan, stdout);
}

static void print_plan(Trainer *t, TrainRun *run) {
    int64_t gradient_bytes, parameter_bytes;
    zero_step_bytes(&t->shards.layout, t->model.shape.zero_stage, (int)sizeof(floatX), run->micro_batches,
                    &gradient_bytes, &parameter_bytes);
    if (train_options_plans_all(run->options)) { print_host_plans(t); }
    run_print_gpu_plan(run, t->device_plan.total, gradient_bytes, parameter_bytes,
                       zero_matrix_bytes(&t->shards.layout, t->model.shape.zero_stage, (int)sizeof(floatX)));
}

static void add_versions(Text *versions) {
    char text[64];
    auto add = [&](const char *name, const char *version) {
        if (version[0] != '\0') { json_put_text(versions, name, version); }
    };
    gpu_each_version(add);
    cublas_version_text(text, sizeof(text)), add("cublaslt", text);
    cudnn_att_version_text(text, sizeof(text)), add("cudnn", text);
    nccl_version_text(text, sizeof(text)), add("nccl", text);
    comm_mpi_version_text(text, sizeof(text)), add("mpi", text);
}

// A GPU as its rank sees it.
struct RankGpu {
    char name[128];
    int64_t memory_bytes;
    int32_t major, minor; // compute capability
};

// Adds the GPUs of all ranks. Checks that the names which other ranks have sent end.
static bool add_gpus(Text *hardware, const RankGpu *gpus, int count, Error *error) {
    json_put(hardware, "gpus", "[");
    for (int r = 0; r < count; r++) {
        if (memchr(gpus[r].name, '\0', sizeof(gpus[r].name)) == NULL) {
            return fail(error, "a rank has not sent its GPU's name, but something else");
        }
        json_put(hardware, NULL, "{");
        json_put_text(hardware, "name", gpus[r].name);
        json_put(hardware, "memory_bytes", "%lld", (long long)gpus[r].memory_bytes);
        json_put(hardware, "compute_capability", "\"%d.%d\"", gpus[r].major, gpus[r].minor);
        text_words(hardware, "}");
    }
    text_words(hardware, "]");
    return true;
}

// Describes the GPUs of all ranks for run.jsonl.
static bool describe(Trainer *t, TrainRun *run, RunMachine *machine, Error *error) {
    Text *hardware = &machine->hardware;
    const cudaDeviceProp *properties = &t->gpu.device.properties;
    RankGpu gpu;
    memset(&gpu, 0, sizeof(gpu));
    snprintf(gpu.name, sizeof(gpu.name), "%.*s", (int)sizeof(gpu.name) - 1, properties->name);
    gpu.memory_bytes = (int64_t)properties->totalGlobalMem;
    gpu.major = properties->major, gpu.minor = properties->minor;
    RankGpu *gpus = (RankGpu *)malloc((size_t)run->num_ranks * sizeof(RankGpu));
    json_put(hardware, "machines", "%d", comm_num_machines(t->shards.ranks));
    add_versions(&machine->versions);
    bool ok = ranks_agree(run->comm, gpus != NULL || fail(error, "out of memory"), error) &&
              comm_all_gather(run->comm, &gpu, gpus, (int64_t)sizeof(gpu), error) &&
              add_gpus(hardware, gpus, run->num_ranks, error);
    free(gpus);
    return ok;
}

// The functions by which a run talks to its ranks (llmc/run/ranks_api.h).
bool ranks_agree(Comm *comm, bool ok, Error *error) { return comm_agree(comm, ok, error); }
bool ranks_broadcast(Comm *comm, void *data, int64_t n, Error *error) { return comm_broadcast(comm, data, n, error); }
bool ranks_sum(Comm *comm, uint64_t *values, int n, Error *error) { return comm_sum_u64(comm, values, n, error); }
bool ranks_any(Comm *comm, bool mine, bool *any, Error *error) { return comm_any(comm, mine, any, error); }
bool ranks_alike(Comm *comm, const char *facts, size_t bytes, Error *error) {
    return comm_check_facts(comm, facts, bytes, error);
}
bool ranks_are_broken(const Comm *comm) { return comm->broken; }
void ranks_all_know(Comm *comm, const Error *error) { comm_all_know(comm, error); }
void ranks_slow(Comm *comm, bool slow) { comm_slow(comm, slow); }
void ranks_resumable(Comm *comm, bool resumable) { comm_resumable(comm, resumable); }
void ranks_fail(Comm *comm, const Error *error) { comm_fail(comm, error); }
bool ranks_print(const Comm *comm) { return comm_prints(comm); }
void ranks_close(Comm *comm) { comm_close(comm); }

// Takes the connected ranks into the run.
static void take_ranks(TrainRun *run, Comm *comm) {
    run->comm = comm, run->rank = comm->rank;
    run->connected = run->num_ranks = comm->num_ranks;
}

// Finds the other processes of this run, if there are any. Only rank 0 prints to the screen.
static bool join(TrainRun *run, Error *error) {
    static Comm ranks;
    Comm *comm = &ranks;
    const TrainOptions *o = run->options;
    CommOptions options;
    memset(&options, 0, sizeof(options));
    bool tcp = strcmp(o->nccl_init, "tcp") == 0, folder = strcmp(o->nccl_init, "fs") == 0;
    options.start = tcp ? COMM_TCP : folder ? COMM_FOLDER : COMM_MPI;
    options.num_ranks = (int)o->num_processes;
    options.rank = (int)o->process_rank;
    options.gpus_per_node = (int)o->gpus_per_node;
    options.address = o->server_ip;
    options.folder = o->nccl_fs_path, options.secret = o->secret_file;
    options.start_timeout = o->start_timeout;
    options.watchdog = o->watchdog;
    options.program = PROGRAM_NAME;
    options.silence = o->watchdog > 0.0 ? 0.0 : 1e9; // 0: the default; without a watchdog a debugger may stop the watch
    comm_single(comm);
    take_ranks(run, comm);
    run->num_ranks = (int)max_i64(max_i64(1, launcher_find().size), o->num_processes);
    if (train_options_plan(o)) { return true; }
    run->num_ranks = 1;
    if (!comm_open(comm, &options, error)) { return false; }
    take_ranks(run, comm);
    return comm->rank == 0 || freopen("/dev/null", "w", stdout) != NULL || fail_system(error, "/dev/null", "open");
}

// Checksums and initial weights use all cores. The ranks of a machine share its cores, unless their launcher has given
// each rank its own.
static void set_threads(const TrainRun *run) {
#ifdef _OPENMP
    int64_t cores = omp_get_max_threads(), ranks = run->comm->num_local;
    bool own = getenv("OMP_NUM_THREADS") != NULL || cores * ranks <= (int64_t)sysconf(_SC_NPROCESSORS_ONLN);
    int64_t share = own ? cores : max_i64(1, cores / ranks);
    omp_set_num_threads((int)(run->options->threads > 0 ? run->options->threads : share));
#else
    (void)run;
#endif
}

// Opens GPU and NCCL.
static bool open_trainer(Trainer *t, TrainRun *run, Error *error) {
    set_threads(run);
    Comm *comm = run->comm;
    bool ok = trainer_open(t, comm, run->options->tf32, error);
    return ranks_agree(run->comm, ok, error) && rank_gpus_check_unlike(comm, &t->gpu.device.properties, error) &&
           rank_gpus_connect(&t->shards.nccl, comm, t->shards.comm_stream, error);
}

// Hashes the weights.
static bool finish(Trainer *t, TrainRun *run, Error *error) {
    uint64_t hash;
    comm_progress(t->shards.ranks, "the end");
    comm_slow(t->shards.ranks, true);
    if (!trainer_check_state(t, run, error) || !hash_params(t, &hash, error)) { return false; }
    if (has_peers(&t->shards) && t->model.shape.kind == RUN_TRAINS) {
        const NcclContext *nccl = &t->shards.nccl;
        say(stdout, "sent        %lld bytes of gradients, %lld of parameters, by each GPU\n",
            (long long)nccl->gradient_bytes, (long long)nccl->parameter_bytes);
        if (nccl->matrix_bytes > 0) {
            say(stdout, "            %lld bytes of Muon's matrices, by each GPU\n", (long long)nccl->matrix_bytes);
        }
    }
    bool ok = !run_leads(run) || run_finish(run, hash, error);
    return ranks_agree(run->comm, ok, error);
}

// Notes what computes attention, for the training state. All ranks must have the same.
static bool settle_attention(TrainRun *run, Error *error) {
    char version[32], *text = run->record.attention;
    Error why;
    if (run_kind(run) != RUN_TRAINS) { return true; }
    cudnn_att_version_text(version, sizeof(version));
    if (uses_cudnn(run, run->options->batch_size, &why)) {
        snprintf(text, sizeof(run->record.attention), "cuDNN %s", version);
    } else {
        snprintf(text, sizeof(run->record.attention), OWN_ATTENTION);
    }
    return comm_check_alike(run->comm, "attention (alike with --attention own)", text, error);
}

// Completes the options: micro-batch, level of recomputation, steps. They stay constant from then on.
static bool settle(TrainRun *run, TrainOptions *o, Error *error) {
    bool ok = run_settle_batch(run, o, error) && check_shape(run, error);
    return ranks_agree(run->comm, ok, error) && settle_by_gpus(run, o, error) && settle_attention(run, error) &&
           ranks_agree(run->comm, run_settle_steps(run, error), error);
}

static void plan(Trainer *t, const TrainRun *run) {
    trainer_plan(t, &run->config, shape_of(run, run->options->batch_size, (int)run->options->recompute));
}

static void print_run(Trainer *t, TrainRun *run) {
    run_print_config(run);
    print_config(t, run);
    run_print_needs(run, &t->device_plan);
    if (!train_options_plan(run->options)) { return; }
    if (train_options_plans_all(run->options)) { run_print_buffers(&t->device_plan); }
    print_plan(t, run);
}

// Opens the machine, loads the model, and begins the logs.
static bool start(Trainer *t, TrainRun *run, Error *error) {
    RunMachine machine;
    memset(&machine, 0, sizeof(machine));
    ranks_slow(run->comm, true); // libraries and files may come over a network, and hundreds of ranks connect
    bool ok = open_trainer(t, run, error) && run_lead(run, run_claim_folder, error) && run_load(run, error);
    if (ok) { share_state(t, run); }
    ok = ok && run_begin_log(run, error) && describe(t, run, &machine, error) && run_record_start(run, &machine, error);
    ranks_slow(run->comm, false);
    if (!ok) { return false; }
    print_machine(t);
    run_catch_signals(run);
    return true;
}
