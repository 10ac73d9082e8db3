// NCCL: the collectives between the GPUs of a run. Each rank is one process with one GPU. A rank is a member of several
// groups, each with a communicator. All collectives go through one stream, so that every rank issues them in one order:
// communicators that wait for each other would lock each other out.
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

// The ranks that differ in some axes of the grid only (grid.h), and talk through a communicator of their own.
typedef struct {
    Comm *ranks;       // of the whole run
    int rank, size;    // this rank's number in the group, and how many it has
    int leader;        // the first of them, as the run counts
    ncclComm_t handle; // NULL: one rank, or not open
    cudaStream_t stream;
} Group;

// Returns the bytes that a rank of the group sends while a ring gathers, or reduces and scatters, `bytes` in all.
static inline int64_t group_ring_bytes(const Group *group, int64_t bytes) {
    return bytes / group->size * (group->size - 1);
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

static inline void nccl_check_status(Group *group, ncclResult_t status, const char *call, const char *file, int line) {
    if (status == ncclSuccess) { return; }
    Error error;
    fail(&error, "%s:%d: %s failed: %s (%s); " NCCL_SHOWS_WHY, file, line, call, ncclGetErrorString(status),
         ncclGetLastError(group->handle));
    nccl_end_ranks(group->ranks, &error);
}
#define nccl_check(group, call) nccl_check_status((group), (call), #call, __FILE__, __LINE__)

static inline void group_close(Group *group) {
    if (group->handle == NULL) { return; }
    ncclCommDestroy(group->handle);
    group->handle = NULL;
}

// Notes that a collective is queued, so the host has got further. The host goes on queueing work. It may stop there,
// because the GPU's queue is finite, so from now on it waits as the GPU does.
static inline void group_queued(Group *group) {
    comm_waits(group->ranks, false);
    comm_waits(group->ranks, true);
}

static inline ncclDataType_t nccl_type(const float *) { return ncclFloat32; }
static inline ncclDataType_t nccl_type(const uint32_t *) { return ncclUint32; }
[[maybe_unused]] static inline ncclDataType_t nccl_type(const __nv_bfloat16 *) { return ncclBfloat16; }

// own (count) = the sum over the group of elements [rank * count, (rank + 1) * count) of their `all` (size * count).
// own may be that part of all. *sent counts the traffic; NULL: not counted.
template <class T>
static inline void group_reduce_scatter(Group *group, T *own, const T *all, int64_t count, int64_t *sent) {
    comm_waits(group->ranks, true);
    nccl_check(group,
               ncclReduceScatter(all, own, (size_t)count, nccl_type(own), ncclSum, group->handle, group->stream));
    group_queued(group);
    if (sent != NULL) { *sent += group_ring_bytes(group, group->size * count * (int64_t)sizeof(T)); }
}

// all (size * bytes) = the `own` (bytes) of the group, in order of rank. own may be this rank's part of all. *sent
// counts the traffic; NULL: not counted.
static inline void group_all_gather(Group *group, void *all, const void *own, int64_t bytes, int64_t *sent) {
    comm_waits(group->ranks, true);
    nccl_check(group, ncclAllGather(own, all, (size_t)bytes, ncclUint8, group->handle, group->stream));
    group_queued(group);
    if (sent != NULL) { *sent += group_ring_bytes(group, group->size * bytes); }
}

// Send `count` elements to a rank of the group, and receive them there. Between group_begin and group_end they run at
// once, and neither waits for the other.
template <class T> static inline void group_send(Group *group, const T *data, int64_t count, int to, int64_t *sent) {
    comm_waits(group->ranks, true);
    nccl_check(group, ncclSend(data, (size_t)count, nccl_type(data), to, group->handle, group->stream));
    group_queued(group);
    *sent += count * (int64_t)sizeof(T);
}
template <class T> static inline void group_receive(Group *group, T *data, int64_t count, int from) {
    comm_waits(group->ranks, true);
    nccl_check(group, ncclRecv(data, (size_t)count, nccl_type(data), from, group->handle, group->stream));
    group_queued(group);
}
static inline void group_begin(Group *group) { nccl_check(group, ncclGroupStart()); }
static inline void group_end(Group *group) { nccl_check(group, ncclGroupEnd()); }

// Gives all ranks of the group the data of one of them.
static inline void group_broadcast(Group *group, void *data, int64_t bytes, int root) {
    comm_waits(group->ranks, true);
    nccl_check(group, ncclBroadcast(data, data, (size_t)bytes, ncclUint8, root, group->handle, group->stream));
    group_queued(group);
}

// Writes "2.18.3", or "" without NCCL.
static inline void nccl_version_text(char *text, size_t size) {
    int version = 0;
    text[0] = '\0';
    if (ncclGetVersion(&version) != ncclSuccess) { return; }
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

#else

static inline void group_close(Group *group) { (void)group; }

static inline void nccl_version_text(char *text, size_t size) { snprintf(text, size, "%s", ""); }

// Nothing calls these functions, because group_connect refuses several ranks.
template <class T> static inline void group_reduce_scatter(Group *, T *, const T *, int64_t, int64_t *) { abort(); }
static inline void group_all_gather(Group *, void *, const void *, int64_t, int64_t *) { abort(); }
template <class T> static inline void group_send(Group *, const T *, int64_t, int, int64_t *) { abort(); }
template <class T> static inline void group_receive(Group *, T *, int64_t, int) { abort(); }
static inline void group_begin(Group *) { abort(); }
static inline void group_end(Group *) { abort(); }
static inline void group_broadcast(Group *, void *, int64_t, int) { abort(); }

#endif

#endif // LLMC_NCCL_COMMON_H
