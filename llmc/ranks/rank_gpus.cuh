// Asks all ranks about their GPUs, before a run can be planned.
#ifndef LLMC_RANK_GPUS_CUH
#define LLMC_RANK_GPUS_CUH

#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/gpu.h"
#include "llmc/model/auto_plan.h"
#include "llmc/ranks/agree.h"

// Opens this rank's GPU and describes it. Only an opened GPU shows how much memory CUDA takes.
static inline bool rank_gpu_ask(AutoGpus *mine, const Comm *comm, bool tf32, Error *error) {
    cudaDeviceProp properties;
    size_t available = 0, installed = 0;
    if (!gpu_select(&properties, comm->local_rank, error)) { return false; }
    cuda_check(cudaMemGetInfo(&available, &installed));
    mine->speed = gpu_speed(&properties, tf32, mine->speed);
    mine->total_bytes = (int64_t)properties.totalGlobalMem;
    mine->free_bytes = (int64_t)available;
    mine->fuses_gelu = cublas_fuses_gelu(properties.major, properties.minor);
    return true;
}

// Replaces the supposed *gpus by facts that hold for the GPUs of all ranks. All ranks get one answer.
static inline bool rank_gpus_ask(AutoGpus *gpus, Comm *comm, bool tf32, Error *error) {
    AutoGpus mine, *all = (AutoGpus *)malloc((size_t)comm->num_ranks * sizeof(AutoGpus));
    memset(&mine, 0, sizeof(mine)); // padding is sent, too
    mine.speed = gpus->speed;
    comm_slow(comm, true);
    bool ok = (all != NULL || fail(error, "out of memory")) && rank_gpu_ask(&mine, comm, tf32, error);
    ok = comm_agree(comm, ok, error) && comm_all_gather(comm, &mine, all, (int64_t)sizeof(mine), error);
    comm_slow(comm, false);
    for (int r = 0; ok && r < comm->num_ranks; r++) {
        if (r == 0) { *gpus = all[0]; }
        gpus->total_bytes = min_i64(gpus->total_bytes, all[r].total_bytes);
        gpus->free_bytes = min_i64(gpus->free_bytes, all[r].free_bytes);
        gpus->fuses_gelu = gpus->fuses_gelu && all[r].fuses_gelu;
    }
    if (comm_num_machines(comm) > 1) { gpus->speed.link_bytes_per_second = STEP_LINK_BETWEEN; }
    free(all);
    return ok;
}

// Refuses two ranks on one GPU. They would share its memory and wait for each other forever.
static inline bool rank_gpus_check_unlike(Comm *comm, const cudaDeviceProp *gpu, Error *error) {
    char id[FINDING_BYTES], uuid[40];
    gpu_uuid_text(uuid, sizeof(uuid), gpu);
    snprintf(id, sizeof(id), "%s %s", comm_host(comm, comm->rank), uuid);
    return comm_check_unlike(comm, id, "GPU", "give each process a GPU of its own (nvidia-smi -L lists them)", error);
}

// Prints the line of the ranks. spared: the multiprocessors for multiplies beside communication; 0: all.
static inline void rank_gpus_print(const Comm *comm, int zero_stage, int spared, const cudaDeviceProp *gpu) {
    static const char *const sharded[] = {"nothing", "optimizer state", "optimizer state and gradients",
                                          "optimizer state, gradients and parameters"};
    int machines = comm_num_machines(comm);
    printf("ranks       %d on %d machine%s; sharded: %s\n", comm->num_ranks, machines, machines > 1 ? "s" : "",
           sharded[zero_stage]);
    if (spared == 0) { return; }
    printf("            multiplies beside communication count on %d of %d multiprocessors\n", spared,
           gpu->multiProcessorCount);
}

#endif // LLMC_RANK_GPUS_CUH
