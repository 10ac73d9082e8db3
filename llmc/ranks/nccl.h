// NCCL: the collectives between the GPUs of a run. Each rank is one process with one GPU. All collectives go through
// one communicator and one stream, so that every rank issues them in one order, as NCCL requires.
//
// Gradients are added up by reduce-scatter alone, even when every rank then needs the whole sum. So all stages of
// sharding add equal terms in equal order on each rank, and their bits are equal.
//
// A program built without -DUSE_NCCL (no NCCL was found) runs on one GPU and refuses to be one of several ranks.
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

typedef struct {
    Comm *ranks;
    ncclComm_t handle; // NULL: one rank, or not open
    cudaStream_t stream;
    int64_t gradient_bytes, parameter_bytes; // sent by this rank so far, as rings send them
    int64_t matrix_bytes;                    // of Muon's matrices, in the same way
} NcclContext;

// Returns the bytes that one of R ranks sends while a ring gathers, or reduces and scatters, `bytes` in all.
static inline int64_t nccl_ring_bytes(const NcclContext *nccl, int64_t bytes) {
    return bytes / nccl->ranks->num_ranks * (nccl->ranks->num_ranks - 1);
}

// Ends this rank and all other ranks after an error. Another rank's end may have caused the error: the watch then names
// that rank. exit() is not used, because it would wait for work on the GPU.
static inline void nccl_end_ranks(Comm *ranks, const Error *error) {
    fflush(stdout);
    comm_await_verdict(ranks, 10.0);
    comm_fail(ranks, error);
    say(stderr, "%s\n", error->text);
    _exit(EXIT_FAILURE);
}

#ifdef USE_NCCL

// NCCL writes its reasons to stdout, which only rank 0 has. So the hint sends them to a file.
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

static inline void nccl_close(NcclContext *nccl) {
    if (nccl->handle == NULL) { return; }
    ncclCommDestroy(nccl->handle);
    nccl->handle = NULL;
}

// Notes that a collective is queued, so the host has got further. The host goes on queueing work. It may stop there,
// because the GPU's queue is finite, so from now on it waits as the GPU does.
static inline void nccl_queued(NcclContext *nccl) {
    comm_waits(nccl->ranks, false);
    comm_waits(nccl->ranks, true);
}

static inline ncclDataType_t nccl_type(const float *) { return ncclFloat32; }
static inline ncclDataType_t nccl_type(const uint32_t *) { return ncclUint32; }

// own (count) = the sum over all ranks of elements [rank * count, (rank + 1) * count) of their `all` (R * count). own
// may be that part of all. *sent counts the traffic; NULL: not counted.
template <class T>
static inline void nccl_reduce_scatter(NcclContext *nccl, T *own, const T *all, int64_t count, int64_t *sent) {
    comm_waits(nccl->ranks, true);
    nccl_check(nccl, ncclReduceScatter(all, own, (size_t)count, nccl_type(own), ncclSum, nccl->handle, nccl->stream));
    nccl_queued(nccl);
    if (sent != NULL) { *sent += nccl_ring_bytes(nccl, nccl->ranks->num_ranks * count * (int64_t)sizeof(T)); }
}

// all (R * bytes) = the `own` (bytes) of all ranks, in order of rank. own may be this rank's part of all. *sent counts
// the traffic; NULL: not counted.
static inline void nccl_all_gather(NcclContext *nccl, void *all, const void *own, int64_t bytes, int64_t *sent) {
    comm_waits(nccl->ranks, true);
    nccl_check(nccl, ncclAllGather(own, all, (size_t)bytes, ncclUint8, nccl->handle, nccl->stream));
    nccl_queued(nccl);
    if (sent != NULL) { *sent += nccl_ring_bytes(nccl, nccl->ranks->num_ranks * bytes); }
}

// Writes "2.18.3", or "" without NCCL.
static inline void nccl_version_text(char *text, size_t size) {
    int version = 0;
    text[0] = '\0';
    if (ncclGetVersion(&version) != ncclSuccess) { return; }
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

#else

static inline void nccl_close(NcclContext *nccl) { (void)nccl; }

static inline void nccl_version_text(char *text, size_t size) { snprintf(text, size, "%s", ""); }

// Nothing calls these functions, because rank_gpus_connect refuses several ranks.
template <class T> static inline void nccl_reduce_scatter(NcclContext *, T *, const T *, int64_t, int64_t *) {
    abort();
}
static inline void nccl_all_gather(NcclContext *, void *, const void *, int64_t, int64_t *) { abort(); }

#endif

#endif // LLMC_NCCL_COMMON_H
