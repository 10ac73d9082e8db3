// Answers questions about the device and its kernels, and keeps the errors that calls return.
#include "runtime.h"
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <atomic>

namespace emu {

size_t device_capacity();

static __thread cudaError_t last_error;

cudaError_t remember_error(cudaError_t error) {
    if (error != cudaSuccess) { last_error = error; }
    return error;
}

static bool no_device() { return getenv("EMU_NO_GPU") != nullptr && strcmp(getenv("EMU_NO_GPU"), "1") == 0; }

static int device_count() {
    static const int count = getenv("EMU_GPUS") ? atoi(getenv("EMU_GPUS")) : 8;
    return no_device() ? 0 : count < 1 ? 1 : count > 64 ? 64 : count;
}

// Each thread has a current device, at first 0. A process has the memory of one device: the first device that it uses.
static __thread int current_device;
static std::atomic<int> used_device{-1};
int device_in_use() { return used_device < 0 ? current_device : used_device.load(); }

void use_device(const char *what, Source at) {
    int none = -1;
    if (used_device.compare_exchange_strong(none, current_device) || none == current_device) { return; }
    report(at, format("%s on device %d, and this process has used device %d", what, current_device, none),
           "  an emulated process has one device; each thread begins with device 0, until it calls cudaSetDevice");
}

constexpr int MULTIPROCESSORS = 4;

// The compute capability: "9.0", or what EMU_CAPABILITY says.
static void set_capability(struct cudaDeviceProp *p) {
    const char *wish = getenv("EMU_CAPABILITY");
    p->major = 9, p->minor = 0;
    if (wish != nullptr) { sscanf(wish, "%d.%d", &p->major, &p->minor); }
}

constexpr int CLOCK_KHZ = 1000000;
constexpr int PCI_DOMAIN = 0xeeee; // no real GPU has this domain

struct ErrorText {
    cudaError_t error;
    const char *name, *text;
};
static const ErrorText ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion",
     "the provided PTX was compiled with an unsupported toolchain."},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

static const ErrorText &entry_of(cudaError_t error) {
    static const ErrorText unknown = {cudaErrorUnknown, "unrecognized error code", "unrecognized error code"};
    auto found = std::find_if(std::begin(ERRORS), std::end(ERRORS), [=](auto &entry) { return entry.error == error; });
    return found == std::end(ERRORS) ? unknown : *found;
}

} // namespace emu

using namespace emu;

const char *cudaGetErrorName(cudaError_t error) { return entry_of(error).name; }
const char *cudaGetErrorString(cudaError_t error) { return entry_of(error).text; }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = device_count();
    return no_device() ? remember_error(cudaErrorNoDevice) : cudaSuccess;
}
static cudaError_t check_device(int device) {
    if (no_device()) { return remember_error(cudaErrorNoDevice); }
    return device >= 0 && device < device_count() ? cudaSuccess : remember_error(cudaErrorInvalidDevice);
}
cudaError_t cudaSetDevice(int device) {
    host_only("cudaSetDevice");
    cudaError_t error = check_device(device);
    if (error == cudaSuccess) { current_device = device; }
    return error;
}
cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return check_device(current_device);
}
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    *p = cudaDeviceProp();
    snprintf(p->name, sizeof(p->name), "%s", getenv("EMU_NAME") ? getenv("EMU_NAME") : "emulated GPU");
    p->totalGlobalMem = device_capacity();
    p->sharedMemPerBlock = SHARED_BYTES_DEFAULT;
    p->sharedMemPerBlockOptin = SHARED_BYTES_MAX;
    p->sharedMemPerMultiprocessor = SHARED_BYTES_MAX + 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = WARP_LANES;
    p->maxThreadsPerBlock = MAX_BLOCK_THREADS;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    set_capability(p);
    p->multiProcessorCount = MULTIPROCESSORS;
    p->l2CacheSize = 50 << 20;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->memoryBusWidth = 5120;
    p->memPitch = 0x7fffffff, p->textureAlignment = 512;
    p->clockRate = p->memoryClockRate = CLOCK_KHZ;
    p->managedMemory = p->concurrentManagedAccess = p->canMapHostMemory = p->deviceOverlap = 1;
    p->streamPrioritiesSupported = 1;
    p->concurrentKernels = p->asyncEngineCount = p->unifiedAddressing = p->cooperativeLaunch = 1;
    p->pciDomainID = PCI_DOMAIN, p->pciBusID = device;
    return check_device(device);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrClockRate: *value = CLOCK_KHZ; break;
    case cudaDevAttrMemoryClockRate: *value = CLOCK_KHZ; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
    case cudaDevAttrManagedMemory: *value = p.managedMemory; break;
    case cudaDevAttrConcurrentManagedAccess: *value = p.concurrentManagedAccess; break;
    case cudaDevAttrCooperativeLaunch: *value = p.cooperativeLaunch; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    default: return remember_error(cudaErrorInvalidValue);
    }
    return error;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    if (text == nullptr || size < 13) { return remember_error(cudaErrorInvalidValue); }
    cudaError_t error = check_device(device);
    if (error == cudaSuccess) { snprintf(text, static_cast<size_t>(size), "%04X:%02X:00.0", PCI_DOMAIN, device); }
    return error;
}
cudaError_t cudaDriverGetVersion(int *version) {
    const char *driver = getenv("EMU_DRIVER_VERSION");
    *version = no_device() ? 0 : driver ? atoi(driver) : CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

cudaError_t cudaFuncSetAttribute(Function kernel, enum cudaFuncAttribute attribute, int value) {
    host_only("cudaFuncSetAttribute");
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) { return cudaSuccess; } // other attributes are hints
    if (value < 0 || static_cast<size_t>(value) > SHARED_BYTES_MAX) { return remember_error(cudaErrorInvalidValue); }
    allow_shared_bytes(kernel, static_cast<size_t>(value));
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, Function kernel) {
    *attributes = cudaFuncAttributes();
    attributes->maxThreadsPerBlock = MAX_BLOCK_THREADS;
    attributes->numRegs = 32;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(allowed_shared_bytes(kernel));
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function kernel, int block_size,
                                                          size_t dynamic_shared_bytes) {
    *blocks = 0;
    if (block_size < 1 || dynamic_shared_bytes > SHARED_BYTES_MAX) { return remember_error(cudaErrorInvalidValue); }
    if (block_size > MAX_BLOCK_THREADS || dynamic_shared_bytes > allowed_shared_bytes(kernel)) { return cudaSuccess; }
    const size_t by_threads = 2048 / static_cast<size_t>(block_size);
    const size_t by_shared = (SHARED_BYTES_MAX + 1024) / (dynamic_shared_bytes + 1024);
    *blocks = static_cast<int>(std::min<size_t>({by_threads, by_shared, 32}));
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxPotentialBlockSize(int *min_grid, int *block, Function kernel, size_t dynamic_shared_bytes,
                                               int limit) {
    int blocks = 0;
    *block = limit > 0 && limit < MAX_BLOCK_THREADS ? limit : MAX_BLOCK_THREADS;
    cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, *block, dynamic_shared_bytes);
    *min_grid = blocks * MULTIPROCESSORS;
    return error;
}
