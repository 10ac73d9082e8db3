// The part of the CUDA runtime's host API that this project uses. Copies, fills and launches are done when the call
// returns. The clocks of the streams (clocks.cpp) find a program that relies on a result without waiting for it.
#ifndef EMU_CUDA_RUNTIME_API_H
#define EMU_CUDA_RUNTIME_API_H

#include <stddef.h>
#include "vector_types.h"

#define CUDART_VERSION 12080

enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidPitchValue = 12,
    cudaErrorInvalidSymbol = 13,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorUnsupportedPtxVersion = 222,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorCooperativeLaunchTooLarge = 720,
    cudaErrorNotSupported = 801,
    cudaErrorUnknown = 999,
};
typedef enum cudaError cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4,
};

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};

enum cudaFuncCache {
    cudaFuncCachePreferNone = 0,
    cudaFuncCachePreferShared = 1,
    cudaFuncCachePreferL1 = 2,
    cudaFuncCachePreferEqual = 3,
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrClockRate = 13,
    cudaDevAttrMaxRegistersPerBlock = 12,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrManagedMemory = 83,
    cudaDevAttrConcurrentManagedAccess = 89,
    cudaDevAttrCooperativeLaunch = 95,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrMaxBlocksPerMultiprocessor = 106,
};

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int regsPerBlock;
    int warpSize;
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    size_t totalConstMem;
    int major, minor;
    int multiProcessorCount;
    int l2CacheSize;
    int persistingL2CacheMaxSize;
    int maxThreadsPerMultiProcessor;
    int maxBlocksPerMultiProcessor;
    size_t sharedMemPerMultiprocessor;
    size_t sharedMemPerBlockOptin;
    int regsPerMultiprocessor;
    int memoryBusWidth;
    size_t memPitch, textureAlignment;
    int clockRate, memoryClockRate; // kHz
    int deviceOverlap, canMapHostMemory, computeMode, kernelExecTimeoutEnabled, streamPrioritiesSupported;
    int concurrentManagedAccess, pageableMemoryAccess, cooperativeLaunch;
    int integrated, managedMemory, concurrentKernels, asyncEngineCount, unifiedAddressing, ECCEnabled;
    int pciBusID, pciDeviceID, pciDomainID;
};

struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs;
    int maxDynamicSharedSizeBytes;
};

enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3,
};
struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};

enum cudaMemoryAdvise { // hints, which change nothing here
    cudaMemAdviseSetReadMostly = 1,
    cudaMemAdviseUnsetReadMostly = 2,
    cudaMemAdviseSetPreferredLocation = 3,
    cudaMemAdviseUnsetPreferredLocation = 4,
    cudaMemAdviseSetAccessedBy = 5,
    cudaMemAdviseUnsetAccessedBy = 6,
};
enum cudaMemLocationType {
    cudaMemLocationTypeInvalid = 0,
    cudaMemLocationTypeDevice = 1,
    cudaMemLocationTypeHost = 2,
};
struct cudaMemLocation {
    enum cudaMemLocationType type;
    int id;
};
#define cudaCpuDeviceId (-1)
#define cudaMemAttachGlobal 0x01
#define cudaMemAttachHost 0x02

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventWaitDefault 0x00
#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaHostAllocWriteCombined 0x04
#define cudaDeviceScheduleAuto 0x00
#define cudaDeviceScheduleBlockingSync 0x04

namespace emu {
struct Out { // where a function puts a pointer of any type
    void **at;
    template <class T> Out(T **p) : at((void **)p) {}
    operator void **() const { return at; }
};
struct Function { // a kernel of any type
    const void *address;
    template <class T> Function(T *f) : address((const void *)f) {}
    operator const void *() const { return address; }
};
} // namespace emu

// Errors
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

// The device
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);

// Memory
cudaError_t cudaDeviceSynchronize(EMU_HERE);
cudaError_t cudaMalloc(emu::Out pointer, size_t bytes, EMU_HERE);
cudaError_t cudaFree(void *pointer, EMU_HERE);
cudaError_t cudaMallocAsync(emu::Out pointer, size_t bytes, cudaStream_t stream, EMU_HERE);
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream, EMU_HERE);
cudaError_t cudaMallocHost(emu::Out pointer, size_t bytes, unsigned flags = 0, EMU_HERE);
cudaError_t cudaHostAlloc(emu::Out pointer, size_t bytes, unsigned flags, EMU_HERE);
cudaError_t cudaFreeHost(void *pointer, EMU_HERE);
cudaError_t cudaHostGetDevicePointer(emu::Out device, void *host, unsigned flags);
cudaError_t cudaMallocManaged(emu::Out pointer, size_t bytes, unsigned flags = cudaMemAttachGlobal, EMU_HERE);
cudaError_t cudaMallocPitch(emu::Out pointer, size_t *pitch, size_t width, size_t height, EMU_HERE);
// In CUDA 12 a device, in CUDA 13 a place: both are known here.
cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, int device, cudaStream_t stream = 0);
cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, struct cudaMemLocation place, unsigned flags,
                                 cudaStream_t stream = 0);
cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, enum cudaMemoryAdvise advice, int device);
cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, enum cudaMemoryAdvise advice,
                          struct cudaMemLocation place);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, EMU_HERE);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream = 0,
                            EMU_HERE);
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind, EMU_HERE);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream = 0, EMU_HERE);
cudaError_t cudaMemset(void *to, int value, size_t bytes, EMU_HERE);
cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height, EMU_HERE);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream = 0, EMU_HERE);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer);

// Streams and events
cudaError_t cudaStreamCreate(cudaStream_t *stream, EMU_HERE);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags, EMU_HERE);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority, EMU_HERE);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream, EMU_HERE);
cudaError_t cudaStreamSynchronize(cudaStream_t stream, EMU_HERE);
cudaError_t cudaStreamQuery(cudaStream_t stream, EMU_HERE);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0, EMU_HERE);
cudaError_t cudaEventCreate(cudaEvent_t *event, EMU_HERE);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags, EMU_HERE);
cudaError_t cudaEventDestroy(cudaEvent_t event, EMU_HERE);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = 0, EMU_HERE);
cudaError_t cudaEventSynchronize(cudaEvent_t event, EMU_HERE);
cudaError_t cudaEventQuery(cudaEvent_t event, EMU_HERE);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end);

// Kernels
cudaError_t cudaFuncSetAttribute(emu::Function kernel, enum cudaFuncAttribute attribute, int value);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, emu::Function kernel);
inline cudaError_t cudaFuncSetCacheConfig(emu::Function, enum cudaFuncCache) { return cudaSuccess; } // a hint
cudaError_t cudaOccupancyMaxPotentialBlockSize(int *min_grid, int *block, emu::Function kernel,
                                               size_t dynamic_shared_bytes = 0, int limit = 0);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, emu::Function kernel, int block_size,
                                                          size_t dynamic_shared_bytes);

#endif // EMU_CUDA_RUNTIME_API_H
