// Opening the GPU of a process: finds it, reads its properties, and takes memory for a plan.
// Most first runs fail here, so each cause of failure has its own message and remedy.
#ifndef LLMC_GPU_H
#define LLMC_GPU_H

#include "llmc/cuda/cuda_common.h"
#include "llmc/model/gpu_peak.h"
#include "llmc/model/memory_plan.h"

#define GPU_LEAST_CAPABILITY 8 // Ampere: bf16, cp.async, mma

typedef struct {
    cudaDeviceProp properties;
    double peak_flops; // matrix multiplies per second, from the datasheet; 0: not known
} GpuDevice;

// The version as people write it: 13000 is 13.0.
static inline void gpu_version_text(char *text, size_t size, int version) {
    snprintf(text, size, "%d.%d", version / 1000, version % 1000 / 10);
}

// The precision in which this build multiplies matrices.
static inline GpuPrecision gpu_matmul_precision(bool tf32) {
    return PRECISION_IS_FP32 ? (tf32 ? GPU_TF32 : GPU_FP32) : GPU_BF16;
}

// Counts the GPUs that this process sees. Fails if there are none that it can use.
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
        return fail(error, "no GPU: there is no NVIDIA driver here (nvidia-smi shows it); the CPU trainer needs none");
    }
    if (status == cudaErrorInsufficientDriver || (driver / 1000 < runtime / 1000)) {
        return fail(error,
                    "the NVIDIA driver is too old: it supports CUDA %s, this program was built with CUDA %s; update "
                    "the driver, or build with an older toolkit",
                    driver_text, runtime_text);
    }
    if (status == cudaErrorNoDevice || (status == cudaSuccess && *devices == 0)) {
        return fail(error, "no GPU: the driver shows none; see nvidia-smi and CUDA_VISIBLE_DEVICES (the CPU trainer "
                           "needs none)");
    }
    return status == cudaSuccess ||
           fail(error, "no GPU: %s (%s); see nvidia-smi", cudaGetErrorString(status), cudaGetErrorName(status));
}

// Makes GPU `number` of this machine the current one and reads its properties. A launcher may show each process only
// its own GPU; then `number` is not used.
static inline bool gpu_select(cudaDeviceProp *properties, int number, Error *error) {
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

// Opens GPU `number` of this machine.
static inline bool gpu_open(GpuDevice *gpu, int number, bool tf32, Error *error) {
    if (!gpu_select(&gpu->properties, number, error)) { return false; }
    gpu->peak_flops = 1e12 * gpu_peak_tflops(gpu->properties.name, gpu_matmul_precision(tf32));
    return true;
}

// Streams that do not wait for the default stream.
static inline void gpu_create_stream(cudaStream_t *stream) {
    cuda_check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
}

static inline void gpu_create_event(cudaEvent_t *event) {
    cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
}
static inline void gpu_create_timed_event(cudaEvent_t *event) {
    cuda_check(cudaEventCreateWithFlags(event, cudaEventDefault));
}

// Prints the line of the machine: `count` GPUs of this kind.
static inline void gpu_print(const GpuDevice *gpu, int count, bool fp8) {
    const cudaDeviceProp *p = &gpu->properties;
    say(stdout, "machine     ");
    if (count > 1) { say(stdout, "%d x ", count); }
    say(stdout, "%s, %d multiprocessors, compute capability %d.%d", p->name, p->multiProcessorCount, p->major,
        p->minor);
    if (gpu->peak_flops > 0.0) {
        say(stdout, ", %.0f TFLOP/s %sby its datasheet", 1e-12 * gpu->peak_flops, fp8 ? "in bf16 " : "");
    }
    say(stdout, "\n");
}

// Calls add(name, version) for CUDA's runtime and driver.
template <class Add> static inline void gpu_each_version(Add add) {
    char text[32];
    int version = 0;
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) {
        gpu_version_text(text, sizeof(text), version), add("cuda_runtime", text);
    }
    if (cudaDriverGetVersion(&version) == cudaSuccess) {
        gpu_version_text(text, sizeof(text), version), add("cuda_driver", text);
    }
}

// ---- Memory for a plan ----

#define PLAN_FLOATX (PRECISION_IS_FP32 ? PLAN_F32 : PLAN_BF16)

// Takes plan->total bytes of GPU memory in one piece and sets every row's pointer.
static inline bool plan_allocate_device(MemoryPlan *plan, Error *error) {
    if (!plan_check_overflow(plan, error)) { return false; }
    size_t available = 0, installed = 0;
    void *memory = NULL;
    cuda_check(cudaMemGetInfo(&available, &installed));
    cudaError_t status = cudaMalloc(&memory, (size_t)max_i64(plan->total, PLAN_ALIGNMENT));
    if (status == cudaSuccess) {
        plan_set_pointers(plan, memory);
        return true;
    }
    cudaGetLastError(); // the failure is reported here, not by the next check
    return fail(error, "memory plan: needs %s of GPU memory, %s of %s are free (%s); " MEMORY_REMEDY PLAN_HINT,
                bytes_text(plan->total).text, bytes_text((int64_t)available).text, bytes_text((int64_t)installed).text,
                cudaGetErrorString(status));
}

static inline void plan_free_device(MemoryPlan *plan) {
    cudaFree(plan->memory);
    plan->memory = NULL;
}

// Takes plan->total bytes of pinned host memory: copies between it and the GPU do not block the host. Each of `ranks`
// processes of this machine takes as much.
static inline bool plan_allocate_pinned(MemoryPlan *plan, int ranks, Error *error) {
    if (!plan_check_overflow(plan, error)) { return false; }
    void *memory = NULL;
    if (plan->total > machine_memory("") / ranks) {
        return fail(error,
                    "memory plan: needs %s of pinned host memory for each of %d GPUs, this machine has %s; --offload "
                    "less, or --moments bf16" PLAN_HINT,
                    bytes_text(plan->total).text, ranks, bytes_text(machine_memory("")).text);
    }
    cudaError_t status = cudaMallocHost(&memory, (size_t)max_i64(plan->total, PLAN_ALIGNMENT));
    if (status == cudaSuccess) {
        plan_set_pointers(plan, memory);
        return true;
    }
    cudaGetLastError();
    return fail(error, "memory plan: cannot pin %s of host memory (%s); see ulimit -l", bytes_text(plan->total).text,
                cudaGetErrorString(status));
}

static inline void plan_free_pinned(MemoryPlan *plan) {
    cudaFreeHost(plan->memory);
    plan->memory = NULL;
}

#endif // LLMC_GPU_H
