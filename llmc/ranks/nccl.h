// NCCL: the collectives between the GPUs of a run, one process and one GPU for each rank. All of them go through one
// communicator and one stream, so that every rank issues them in the same order, which NCCL asks for.
//
// Sums of gradients are made by reduce-scatter alone, also where every rank then wants the whole: which rank adds what
// in which order is then the same in all stages of sharding, and so are the bits.
//
// Built without -DUSE_NCCL (no NCCL was found) the program runs on one GPU and refuses to be one of several.
#ifndef LLMC_NCCL_COMMON_H
#define LLMC_NCCL_COMMON_H

#include <stdlib.h>

#include "llmc/ranks/ranks.h"
#include "llmc/cuda/cuda_common.h"

#ifdef USE_NCCL
#include <nccl.h>
#else
typedef void *ncclComm_t;
#endif

// The most blocks that a collective between machines may have. Each keeps a multiprocessor to itself for as long as the
// collective lasts, and NCCL takes up to 32 by itself. A matrix multiply has one block for each multiprocessor; those
// that find none free begin when others end, and it takes twice as long. So multiplies beside communication count on
// the multiprocessors that are left (CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET), and there are few of these blocks: 8 of 132
// slow a multiply down by 6 %, and send some 20 GB/s each, more than a network card of 50 GB/s takes. Within a machine
// a step sends for so short a time that neither pays: all of NCCL's blocks are soon done.
#define NCCL_MAX_BLOCKS 8
static inline bool nccl_is_slow(const Comm *ranks) { return ranks->num_local < ranks->num_ranks; }

// The multiprocessors that are left of a GPU's beside communication; 0: multiplies count on all.
static inline int nccl_spared_multiprocessors(const Comm *ranks, int multiprocessors) {
    bool spares = nccl_is_slow(ranks) && multiprocessors >= 4 * NCCL_MAX_BLOCKS; // of a smaller GPU nothing is spared
    return spares ? multiprocessors - NCCL_MAX_BLOCKS : 0;
}

typedef struct {
    Comm *ranks;
    ncclComm_t handle; // NULL: one rank, or not open
    cudaStream_t stream;
    int device;
    int64_t gradient_bytes, parameter_bytes; // sent by this rank so far, as rings send them
} NcclContext;

// What a rank of R sends when a ring gathers, or reduces and scatters, `bytes` in all.
static inline int64_t nccl_ring_bytes(const NcclContext *nccl, int64_t bytes) {
    return bytes / nccl->ranks->num_ranks * (nccl->ranks->num_ranks - 1);
}

// After an error that the end of another rank may have caused, which is then named instead: ends this rank and all
// others. Not by exit(), which may wait for what is under way on the GPU.
static inline void nccl_end_ranks(Comm *ranks, const Error *error) {
    fflush(stdout);
    comm_await_verdict(ranks, 10.0);
    comm_fail(ranks, error);
    fprintf(stderr, "%s\n", error->text);
    _exit(EXIT_FAILURE);
}

#ifdef USE_NCCL

// Only rank 0 has a screen, which NCCL would write to.
#define NCCL_SHOWS_WHY "NCCL_DEBUG=INFO with NCCL_DEBUG_FILE=nccl.%%h.%%p shows why"

static inline void nccl_check_status(NcclContext *nccl, ncclResult_t status, const char *call, const char *file,
                                     int line) {
    if (status == ncclSuccess) { return; }
    Error error;
    fail(&error, "%s:%d: %s failed: %s (%s); " NCCL_SHOWS_WHY, file, line, call, ncclGetErrorString(status),
         ncclGetLastError(nccl->handle));
    nccl_end_ranks(nccl->ranks, &error);
}
#define nccl_check(nccl, call) nccl_check_status((nccl), (call), #call, __FILE__, __LINE__)

// For the watch thread: NCCL finds out by itself that a connection is broken, but tells only who asks.
static inline bool nccl_is_healthy(void *context, char *reason, size_t size) {
    NcclContext *nccl = (NcclContext *)context;
    ncclResult_t status = ncclSuccess;
    if (ncclCommGetAsyncError(nccl->handle, &status) != ncclSuccess || status == ncclSuccess ||
        status == ncclInProgress) {
        return true;
    }
    snprintf(reason, size, "NCCL: %s (%s)", ncclGetErrorString(status), ncclGetLastError(nccl->handle));
    return false;
}

// Ends what is under way on the GPU, so that the process can end. Called in a thread that has chosen no GPU yet.
static inline void nccl_abort(void *context) {
    NcclContext *nccl = (NcclContext *)context;
    cudaSetDevice(nccl->device);
    ncclCommAbort(nccl->handle);
}

// NCCL may let NVLink switches add up (NVLS): the bits then differ from call to call, and more GPU memory is taken. It
// stays out unless the user has said something else.
static inline void nccl_leave_out_nvls(void) { setenv("NCCL_NVLS_ENABLE", "0", 0); }

// Connects the GPUs of all ranks; every rank has set its device. The collectives are issued on `stream`. May fail on
// this rank alone: comm_fail.
static inline bool nccl_open(NcclContext *nccl, Comm *ranks, cudaStream_t stream, Error *error) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    memset(nccl, 0, sizeof(*nccl));
    nccl->ranks = ranks;
    nccl->stream = stream;
    if (ranks->num_ranks == 1) { return true; }
    cuda_check(cudaGetDevice(&nccl->device));
    nccl_leave_out_nvls();
    memset(&id, 0, sizeof(id));
    ncclResult_t status = ranks->rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
    bool ok =
        status == ncclSuccess || fail(error, "NCCL: no unique id: %s; " NCCL_SHOWS_WHY, ncclGetErrorString(status));
    if (!comm_agree(ranks, ok, error) || !comm_broadcast(ranks, &id, (int64_t)sizeof(id), error)) { return false; }
    comm_progress(ranks, "connecting the GPUs");
    comm_waits(ranks, true);
    if (nccl_is_slow(ranks)) { config.maxCTAs = NCCL_MAX_BLOCKS; }
    status = ncclCommInitRankConfig(&nccl->handle, ranks->num_ranks, id, ranks->rank, &config);
    comm_waits(ranks, false);
    if (status != ncclSuccess) { // the others may still wait in there for this rank, so there is no asking them
        nccl->handle = NULL;
        return fail(error, "NCCL: cannot connect the GPUs: %s (%s); " NCCL_SHOWS_WHY, ncclGetErrorString(status),
                    ncclGetLastError(NULL));
    }
    comm_on_end(ranks, nccl_abort, nccl);
    comm_poll(ranks, nccl_is_healthy, nccl);
    return true;
}

static inline void nccl_close(NcclContext *nccl) {
    if (nccl->handle == NULL) { return; }
    comm_poll(nccl->ranks, NULL, NULL);
    comm_on_end(nccl->ranks, NULL, NULL);
    ncclCommDestroy(nccl->handle);
    nccl->handle = NULL;
}

// The host goes on queueing work, and may stop there too, since the GPU's queue is not endless: it waits as the GPU
// does.
static inline void nccl_queued(NcclContext *nccl) {
    comm_waits(nccl->ranks, false); // it got this far
    comm_waits(nccl->ranks, true);
}

// own (count) = the sum over all ranks of elements [rank * count, (rank + 1) * count) of their `all` (R * count); own
// may be that part of all.
static inline void nccl_reduce_scatter(NcclContext *nccl, float *own, const float *all, int64_t count) {
    comm_waits(nccl->ranks, true);
    nccl_check(nccl, ncclReduceScatter(all, own, (size_t)count, ncclFloat32, ncclSum, nccl->handle, nccl->stream));
    nccl_queued(nccl);
    nccl->gradient_bytes += nccl_ring_bytes(nccl, nccl->ranks->num_ranks * count * (int64_t)sizeof(float));
}

// all (R * bytes) = the `own` (bytes) of all ranks, in order; own may be this rank's part of all. sent: what to count
// the traffic under, or NULL.
static inline void nccl_all_gather(NcclContext *nccl, void *all, const void *own, int64_t bytes, int64_t *sent) {
    comm_waits(nccl->ranks, true);
    nccl_check(nccl, ncclAllGather(own, all, (size_t)bytes, ncclUint8, nccl->handle, nccl->stream));
    nccl_queued(nccl);
    if (sent != NULL) { *sent += nccl_ring_bytes(nccl, nccl->ranks->num_ranks * bytes); }
}

// "2.18.3"; "" without NCCL.
static inline void nccl_version_text(char *text, size_t size) {
    int version = 0;
    text[0] = '\0';
    if (ncclGetVersion(&version) != ncclSuccess) { return; }
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

#else

static inline bool nccl_open(NcclContext *nccl, Comm *ranks, cudaStream_t stream, Error *error) {
    memset(nccl, 0, sizeof(*nccl));
    nccl->ranks = ranks;
    nccl->stream = stream;
    return ranks->num_ranks == 1 ||
           fail(error, "this program was built without NCCL, which several GPUs need; install NCCL (libnccl-dev) and "
                       "build again: make train_gpt2cu");
}

static inline void nccl_close(NcclContext *nccl) { (void)nccl; }

static inline void nccl_version_text(char *text, size_t size) { snprintf(text, size, "%s", ""); }

// Only called with several ranks, which nccl_open has refused.
static inline void nccl_reduce_scatter(NcclContext *, float *, const float *, int64_t) { abort(); }
static inline void nccl_all_gather(NcclContext *, void *, const void *, int64_t, int64_t *) { abort(); }

#endif

#endif // LLMC_NCCL_COMMON_H
