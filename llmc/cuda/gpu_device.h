// Finding the GPU that a process is to use. What is missing is described in words of its own, since this is where most
// first runs fail.
#ifndef LLMC_GPU_DEVICE_H
#define LLMC_GPU_DEVICE_H

#include "llmc/cuda/cuda_common.h"

#define GPU_LEAST_CAPABILITY 8 // Ampere: bf16, cp.async, mma

// The version as people write it: 13000 is 13.0.
static inline void gpu_version_text(char *text, size_t size, int version) {
    snprintf(text, size, "%d.%d", version / 1000, version % 1000 / 10);
}

// Counts the GPUs that this process sees; fails when there is none that could be used.
static inline bool gpu_count(int *devices, Error *error) {
    int driver = 0, runtime = 0;
    char driver_text[32], runtime_text[32];
    cudaError_t status = cudaGetDeviceCount(devices);
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    gpu_version_text(driver_text, sizeof(driver_text), driver);
    gpu_version_text(runtime_text, sizeof(runtime_text), runtime);
    if (driver == 0) {
        return fail(error, "no GPU: there is no NVIDIA driver here (nvidia-smi shows it); train_gpt2 runs on the CPU");
    }
    if (status == cudaErrorInsufficientDriver || (driver / 1000 < runtime / 1000)) {
        return fail(error,
                    "the NVIDIA driver is too old: it supports CUDA %s, this program was built with CUDA %s; update "
                    "the driver, or build with an older toolkit",
                    driver_text, runtime_text);
    }
    if (status == cudaErrorNoDevice || (status == cudaSuccess && *devices == 0)) {
        return fail(error, "no GPU: the driver shows none; see nvidia-smi and CUDA_VISIBLE_DEVICES (train_gpt2 runs on "
                           "the CPU)");
    }
    return status == cudaSuccess ||
           fail(error, "no GPU: %s (%s); see nvidia-smi", cudaGetErrorString(status), cudaGetErrorName(status));
}

// Makes GPU `number` of this machine the current one, and reads its properties. A launcher may show each process a GPU
// of its own and no other: that one is then meant.
static inline bool gpu_open(cudaDeviceProp *properties, int number, Error *error) {
    int devices = 0;
    if (!gpu_count(&devices, error)) { return false; }
    int device = devices == 1 ? 0 : number;
    if (device >= devices) {
        return fail(error,
                    "no GPU for this process: it is number %d on this machine (from 0), which has %d GPUs; start at "
                    "most as many, or see --gpus-per-node and CUDA_VISIBLE_DEVICES",
                    number, devices);
    }
    cuda_check(cudaSetDevice(device));
    cuda_check(cudaGetDeviceProperties(properties, device));
    return properties->major >= GPU_LEAST_CAPABILITY ||
           fail(error, "%s has compute capability %d.%d; this program needs %d.0 (Ampere) or later", properties->name,
                properties->major, properties->minor, GPU_LEAST_CAPABILITY);
}

#endif // LLMC_GPU_DEVICE_H
