// The start and the end of a GPU trainer's machine: its ranks, its GPU, NCCL.
#ifndef LLMC_TRAINER_OPEN_CUH
#define LLMC_TRAINER_OPEN_CUH

#include <stdlib.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "llmc/ranks/agree.h"
#include "llmc/ranks/meet.h"
#include "llmc/ranks/rank_gpus.cuh"
#include "llmc/trainer/plan.cuh"

// The functions by which a run talks to its ranks (llmc/run/ranks_api.h).
inline bool ranks_agree(Comm *comm, bool ok, Error *error) { return comm_agree(comm, ok, error); }
inline bool ranks_broadcast(Comm *comm, void *data, int64_t n, Error *error) {
    return comm_broadcast(comm, data, n, error);
}
inline bool ranks_sum(Comm *comm, uint64_t *values, int n, Error *error) {
    return comm_sum_u64(comm, values, n, error);
}
inline bool ranks_any(Comm *comm, bool mine, bool *any, Error *error) {
    uint64_t count = mine;
    bool ok = comm_sum_u64(comm, &count, 1, error);
    *any = count > 0;
    return ok;
}
inline bool ranks_alike(Comm *comm, const char *facts, size_t bytes, Error *error) {
    return comm_check_facts(comm, facts, bytes, error);
}
inline bool ranks_are_broken(const Comm *comm) { return comm->broken; }
inline void ranks_all_know(Comm *comm, const Error *error) { comm_all_know(comm, error); }
inline void ranks_slow(Comm *comm, bool slow) { comm_slow(comm, slow); }
inline void ranks_resumable(Comm *comm, bool resumable) { comm_change(comm, &comm->resumable, resumable); }
inline void ranks_fail(Comm *comm, const Error *error) { comm_fail(comm, error); }
inline bool ranks_print(const Comm *comm) { return comm->prints; }
inline void ranks_close(Comm *comm) { comm_close(comm); }

// Takes the connected ranks into the run.
static inline void take_ranks(TrainRun *run, Comm *comm) {
    run->comm = comm, run->rank = comm->rank;
    run->connected = run->num_ranks = comm->num_ranks;
}

// Finds the other processes of this run, if there are any. Only rank 0 prints to the screen.
static inline bool join(TrainRun *run, Error *error) {
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
    options.program = trainer_facts.program;
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
static inline void set_threads(const TrainRun *run) {
#ifdef _OPENMP
    int64_t cores = omp_get_max_threads(), ranks = run->comm->num_local;
    bool own = getenv("OMP_NUM_THREADS") != NULL || cores * ranks <= (int64_t)sysconf(_SC_NPROCESSORS_ONLN);
    int64_t share = own ? cores : max_i64(1, cores / ranks);
    omp_set_num_threads((int)(run->options->threads > 0 ? run->options->threads : share));
#else
    (void)run;
#endif
}

// The memory that --plan assumes where no GPU is: what the CUDA runtime reports for a card of 80 GB.
#define PLANNED_GPU_BYTES ((int64_t)79 << 30)

// Returns the memory of the GPU that --plan plans for: the one that is here, if its datasheet is known.
static inline int64_t planned_gpu_bytes(void) {
    int devices = 0;
    cudaDeviceProp properties;
    bool found = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 &&
                 cudaGetDeviceProperties(&properties, 0) == cudaSuccess;
    cudaGetLastError(); // no GPU is no failure
    return found && gpu_peak_of_device(properties.name) != NULL ? (int64_t)properties.totalGlobalMem
                                                                : PLANNED_GPU_BYTES;
}

// Settles the options that depend on the GPUs.
static inline bool settle_by_gpus(TrainRun *run, TrainOptions *o, Error *error) {
    int64_t limit = (int64_t)(o->gpu_memory * 0x1p30), bytes;
    bool plans = train_options_plan(o);
    if (plans) { bytes = limit > 0 ? limit : planned_gpu_bytes(); }
    return (plans || rank_gpus_ask(&bytes, run->comm, error)) && run_settle_gpu_choices(run, o, bytes, error);
}

// Visits the events of a trainer.
template <class Visit> static inline void each_event(Trainer *t, Visit visit) {
    visit(&t->evaluation.evaluated);
    for (BatchSlot *slot : {&t->feeder.slots[0], &t->feeder.slots[1], &t->sample.history}) {
        visit(&slot->uploaded), visit(&slot->no_longer_used);
    }
    for (int i = 0; i < NUM_STEPS; i++) {
        visit(&t->stats.begun[i]), visit(&t->stats.reduced[i]), visit(&t->stats.done[i]);
    }
}

// Opens cuDNN. Runs before memory is allocated, because cuDNN takes some too.
static inline bool open_attention(Trainer *t, Error *error) {
    CudnnShape attention = cudnn_shape(&t->model);
    Error why;
    return !t->model.shape.cudnn || cudnn_att_open(&t->gpu.cudnn, &attention, cudnn_att_chunk(&attention), &why) ||
           fail(error, "attention: %s; --attention own goes without cuDNN", why.text);
}

// Opens this rank's GPU and allocates the memory plans.
static inline bool trainer_open(Trainer *t, Comm *ranks, bool tf32, Error *error) {
    t->shards.ranks = ranks;
    if (!gpu_open(&t->gpu.device, ranks->local_rank, tf32, error) ||
        (t->model.shape.fp8 && !fp8_check_gpu(&t->gpu.device.properties, error))) {
        return false;
    }
    gpu_create_stream(&t->gpu.stream);
    gpu_create_stream(&t->feeder.copy_stream);
    shards_open(&t->shards, ranks, t->gpu.stream);
    each_event(t, gpu_create_timed_event);
    if (!cublas_open(&t->gpu.cublas, tf32, error) || !open_attention(t, error) ||
        !plan_allocate_device(&t->device_plan, error) ||
        !plan_allocate_pinned(&t->host_plan, ranks->num_local, error)) {
        return false;
    }
    cublas_set_workspace(&t->gpu.cublas, t->gpu.cublas_workspace, (size_t)CUBLAS_WORKSPACE);
    if (t->model.shape.kind == RUN_TRAINS) { pipe_write(&t->model.shape.pipeline, t->feeder.list); }
    return true;
}

// Frees everything that trainer_open took, even if trainer_open failed halfway.
static inline void trainer_close(Trainer *t) {
    if (t->gpu.stream == NULL) { return; }
    cudaDeviceSynchronize();
    cudnn_att_close(&t->gpu.cudnn);
    cublas_close(&t->gpu.cublas);
    shards_close(&t->shards);
    each_event(t, [](cudaEvent_t *event) { cudaEventDestroy(*event); });
    cudaStreamDestroy(t->gpu.stream);
    cudaStreamDestroy(t->feeder.copy_stream);
    plan_free_device(&t->device_plan);
    plan_free_pinned(&t->host_plan);
}

// Opens GPU and NCCL.
static inline bool open_trainer(Trainer *t, TrainRun *run, Error *error) {
    set_threads(run);
    bool ok = trainer_open(t, run->comm, run->options->tf32, error);
    return ranks_agree(run->comm, ok, error) && shards_connect(&t->shards, error);
}

#endif // LLMC_TRAINER_OPEN_CUH
