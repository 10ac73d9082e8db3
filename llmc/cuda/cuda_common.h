// Every CUDA file includes this: the floating-point type of the build and the check around every call.
//
// The compiler sets the precision: bf16, or fp32 with -DPRECISION_FP32. floatX is the type of activations, of their
// gradients, and of the weights that the matrix multiplies read. Parameter gradients, the optimizer's state and every
// sum are fp32 in both builds.
#ifndef LLMC_CUDA_COMMON_H
#define LLMC_CUDA_COMMON_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include "llmc/base/utils.h"

#ifdef PRECISION_FP32
typedef float floatX;
#define PRECISION_NAME "fp32"
#define PRECISION_IS_FP32 true
#else
typedef __nv_bfloat16 floatX;
#define PRECISION_NAME "bf16"
#define PRECISION_IS_FP32 false
#endif

// The remedy for a failure that has a usual cause.
static inline const char *cuda_remedy(cudaError_t status) {
    switch (status) {
    case cudaErrorNoDevice: return "no GPU is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES";
    case cudaErrorInsufficientDriver:
        return "there is no NVIDIA driver, or one too old for this CUDA version; see nvidia-smi";
    case cudaErrorMemoryAllocation: return MEMORY_REMEDY;
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
        return "the program was built for other GPUs; build it again on this machine, or with GPU_ARCH=..";
    case cudaErrorUnsupportedPtxVersion:
        return "the program has no code for this GPU, and the driver is too old to translate it; build it again on "
               "this machine, or with GPU_ARCH=..";
    default: return "CUDA_LAUNCH_BLOCKING=1 shows which kernel, compute-sanitizer which line of it";
    }
}

// A call that fails after the start is a bug or a broken GPU: says where, and ends. _exit, because the functions that
// exit() calls may wait for a kernel that never ends.
static inline void cuda_check_status(cudaError_t status, const char *call, const char *file, int line) {
    if (status == cudaSuccess) { return; }
    fflush(stdout);
    say(stderr, "%s:%d: %s failed: %s (%s); %s\n", file, line, call, cudaGetErrorString(status),
        cudaGetErrorName(status), cuda_remedy(status));
    _exit(EXIT_FAILURE);
}

// cuda_check(cudaMemcpyAsync(...)); after a launch: cuda_check_launch("layernorm_forward_kernel");
#define cuda_check(call) cuda_check_status((call), #call, __FILE__, __LINE__)
#define cuda_check_launch(kernel) cuda_check_status(cudaGetLastError(), "the launch of " kernel, __FILE__, __LINE__)

// Ends the program if a launcher got a shape that its kernel cannot do. That is a mistake in the program: input is
// checked where it enters.
static inline void cuda_require_shape(bool ok, const char *what, const char *file, int line) {
    if (ok) { return; }
    fflush(stdout);
    say(stderr, "%s:%d: this kernel needs %s\n", file, line, what);
    abort();
}
#define cuda_require(condition) cuda_require_shape((condition), #condition, __FILE__, __LINE__)

#endif // LLMC_CUDA_COMMON_H
