// NCCL for the emulator: collectives between processes of one machine (dev/emu/nccl.cpp). A call blocks until all ranks
// have made it, and its work is done when it returns; the checks of streams and accesses treat it as an operation of
// its stream. A communicator blocks in all configurations.
#ifndef EMU_NCCL_H
#define EMU_NCCL_H

#include <stddef.h>

#include "cuda_bf16.h"
#include "cuda_runtime.h"

#define NCCL_MAJOR 2
#define NCCL_MINOR 20
#define NCCL_PATCH 5
#define NCCL_SUFFIX ""
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)

typedef struct ncclComm *ncclComm_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclNumResults = 7
} ncclResult_t;

typedef enum { ncclSum = 0 } ncclRedOp_t;

typedef enum {
    ncclUint8 = 1,
    ncclUint32 = 3,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclBfloat16 = 9,
    ncclNumTypes = 10
} ncclDataType_t;

const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm); // of the last failed call
ncclResult_t ncclGetVersion(int *version);

// The process that makes the id must live until all ranks have joined. A process makes all calls in one thread.
ncclResult_t ncclGetUniqueId(ncclUniqueId *id, EMU_HERE);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, EMU_HERE);
ncclResult_t ncclCommDestroy(ncclComm_t comm, EMU_HERE); // waits until each rank has called it or has ended

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream, EMU_HERE);
ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream, EMU_HERE);
ncclResult_t ncclAllGather(const void *send, void *receive, size_t send_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream, EMU_HERE);
ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream, EMU_HERE);
// A send waits for the peer's receive of the same count and type, and a receive for the peer's send. Those of a group
// wait together, so their order does not matter. A group has sends and receives of one communicator.
ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream, EMU_HERE);
ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream,
                      EMU_HERE);
ncclResult_t ncclGroupStart(EMU_HERE);
ncclResult_t ncclGroupEnd(EMU_HERE);

#endif // EMU_NCCL_H
