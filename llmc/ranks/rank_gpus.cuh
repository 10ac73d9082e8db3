// The GPUs of all ranks: asks about them before a run is planned, compares and prints them, and connects them.
#ifndef LLMC_RANK_GPUS_CUH
#define LLMC_RANK_GPUS_CUH

#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/gpu.h"
#include "llmc/ranks/agree.h"
#include "llmc/ranks/buckets.cuh"

// Finds the least memory that is free on the GPU of any rank. All ranks get one answer. Only an opened GPU shows how
// much memory CUDA takes.
static inline bool rank_gpus_ask(int64_t *free_bytes, Comm *comm, Error *error) {
    cudaDeviceProp properties;
    size_t available = 0, installed = 0;
    Text all;
    comm_slow(comm, true);
    bool ok = gpu_select(&properties, comm->local_rank, error);
    if (ok) { cuda_check(cudaMemGetInfo(&available, &installed)); }
    int64_t least = (int64_t)available;
    ok = comm_agree(comm, ok, error) && comm_gather(comm, "free memory", &least, (int64_t)sizeof(least), &all, error);
    comm_slow(comm, false);
    if (!ok) { return false; }
    for (int r = 0; r < comm->num_ranks; r++) { least = min_i64(least, ((const int64_t *)all.data)[r]); }
    text_free(&all);
    *free_bytes = least;
    return true;
}

// Prints the line of the ranks.
static inline void rank_gpus_print(const Comm *comm, int zero_stage) {
    static const char *const sharded[] = {"nothing", "optimizer state", "optimizer state and gradients",
                                          "optimizer state, gradients and parameters"};
    int machines = comm->num_machines;
    say(stdout, "ranks       %d on %d machine%s; sharded: %s\n", comm->num_ranks, machines, machines > 1 ? "s" : "",
        sharded[zero_stage]);
}

// Connects the GPUs of a group. Every rank of the run calls this function, and has set its device; a group may be
// smaller on some ranks, down to one rank. If only this rank fails, the other ranks may wait for it inside NCCL, so the
// caller calls comm_fail.
static inline bool group_connect(Group *group, Error *error) {
#ifdef USE_NCCL
    ncclUniqueId id;
    Text all;
    Comm *ranks = group->ranks;
    // NVLink switches that add up (NVLS) change the bits from call to call and take GPU memory. The user may want them.
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    memset(&id, 0, sizeof(id));
    ncclResult_t status = group->size > 1 && group->rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
    bool ok =
        status == ncclSuccess || fail(error, "NCCL: no unique id: %s; " NCCL_SHOWS_WHY, ncclGetErrorString(status));
    if (!comm_agree(ranks, ok, error) || !comm_gather(ranks, "ids of NCCL", &id, (int64_t)sizeof(id), &all, error)) {
        return false;
    }
    memcpy(&id, all.data + (size_t)group->leader * sizeof(id), sizeof(id));
    text_free(&all);
    if (group->size == 1) { return true; }
    comm_progress(ranks, "connecting the GPUs");
    comm_waits(ranks, true);
    status = ncclCommInitRank(&group->handle, group->size, id, group->rank);
    comm_waits(ranks, false);
    if (status != ncclSuccess) {
        group->handle = NULL;
        return fail(error, "NCCL: cannot connect the GPUs: %s (%s); " NCCL_SHOWS_WHY, ncclGetErrorString(status),
                    ncclGetLastError(NULL));
    }
    return true;
#else
    (void)group;
    return fail(error, "this program was built without NCCL, which several GPUs need; install NCCL (libnccl-dev) and "
                       "make it again");
#endif
}

// Connects the groups. A group of all ranks has their communicator.
static inline bool shards_connect(Shards *s, Error *error) {
    Group *const groups[] = {&s->all, &s->data, &s->tensor, &s->context, &s->pipe, &s->ends};
    bool tied = part_is_tied(&s->layout.part) && s->pipe.size > 1;
    for (Group *group : groups) {
        bool connected = group != &s->all && group->size == s->all.size, wanted = group->size > 1;
        group->ranks = s->ranks, group->stream = s->comm_stream;
        if (connected) { group->handle = s->all.handle; }
        if (group == &s->ends) { wanted = tied; }
        if (wanted && !connected && !group_connect(group, error)) { return false; }
    }
    return true;
}

#endif // LLMC_RANK_GPUS_CUH
