// Reads the state of a GPU while it trains: power, clock, temperature, memory, utilisation.
//
// The readings come from NVIDIA's management library (NVML), which comes with the driver. It is loaded at run time, so
// that a machine without a driver builds and runs this program. A value that cannot be read is left out; it never stops
// a run, and a monitor that did not open reads nothing. This header needs no CUDA.
//
//   GpuMonitor monitor;
//   if (!gpu_monitor_open(&monitor, GPU_MONITOR_LIBRARY, bus_id)) { say(stdout, "%s\n", monitor.why); }
//   if (gpu_monitor_text(&monitor, text, sizeof(text))) { say(stdout, "%s\n", text); }
//   gpu_monitor_close(&monitor);
#ifndef LLMC_GPU_MONITOR_H
#define LLMC_GPU_MONITOR_H

#include <dlfcn.h>

#include "llmc/base/utils.h"

#define GPU_MONITOR_LIBRARY "libnvidia-ml.so.1"

// Types, numbers and functions as NVML's documentation has them; its header is not needed.
typedef struct GpuMonitorDevice *NvmlDevice;
typedef struct {
    unsigned long long total, free, used; // bytes
} NvmlMemory;
typedef struct {
    unsigned gpu, memory; // percent of the time since the last look
} NvmlUtilization;
enum { NVML_OK = 0, NVML_SENSOR_GPU = 0, NVML_CLOCK_OF_SM = 1 };

#define NVML_FUNCTIONS(X)                                                                                              \
    X(init, "nvmlInit_v2", (void))                                                                                     \
    X(shutdown, "nvmlShutdown", (void))                                                                                \
    X(find, "nvmlDeviceGetHandleByPciBusId_v2", (const char *bus_id, NvmlDevice *))                                    \
    X(power, "nvmlDeviceGetPowerUsage", (NvmlDevice, unsigned *milliwatts))                                            \
    X(power_limit, "nvmlDeviceGetEnforcedPowerLimit", (NvmlDevice, unsigned *milliwatts))                              \
    X(clock, "nvmlDeviceGetClockInfo", (NvmlDevice, int which, unsigned *megahertz))                                   \
    X(temperature, "nvmlDeviceGetTemperature", (NvmlDevice, int sensor, unsigned *celsius))                            \
    X(memory, "nvmlDeviceGetMemoryInfo", (NvmlDevice, NvmlMemory *))                                                   \
    X(utilization, "nvmlDeviceGetUtilizationRates", (NvmlDevice, NvmlUtilization *))

#define NVML_POINTER(name, symbol, parameters) int(*name) parameters; // NULL: the driver is too old to have it
typedef struct {
    void *library; // NULL: nothing can be read
    bool started;
    NvmlDevice device;
    char why[256]; // one line, if it could not be opened
    NVML_FUNCTIONS(NVML_POINTER)
} GpuMonitor;

static inline void gpu_monitor_close(GpuMonitor *monitor) {
    if (monitor->started && monitor->shutdown != NULL) { monitor->shutdown(); }
    if (monitor->library != NULL) { dlclose(monitor->library); }
    monitor->library = NULL, monitor->started = false;
}

static inline bool gpu_monitor_fail(GpuMonitor *monitor, const char *library, const char *what, int status) {
    snprintf(monitor->why, sizeof(monitor->why), "no GPU power, clock and temperature: %.100s: %s (status %d)", library,
             what, status);
    gpu_monitor_close(monitor);
    return false;
}

// Sets a function pointer by name. It is copied as bytes: C has no conversion from an object pointer.
#define NVML_LOAD(name, symbol, parameters)                                                                            \
    address = dlsym(monitor->library, symbol);                                                                         \
    memcpy(&monitor->name, &address, sizeof(address));

// Opens the monitor of the GPU at a bus address such as "0000:3B:00.0" (cudaDeviceGetPCIBusId); the runtime and NVML
// number GPUs differently. library: GPU_MONITOR_LIBRARY, or a test's. Returns false without NVML or without that GPU,
// and `why` says so. The monitor can be read and closed in any case.
static inline bool gpu_monitor_open(GpuMonitor *monitor, const char *library, const char *pci_bus_id) {
    void *address;
    memset(monitor, 0, sizeof(*monitor));
    monitor->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (monitor->library == NULL) {
        snprintf(monitor->why, sizeof(monitor->why), "no GPU power, clock and temperature: there is no %.100s here",
                 library);
        return false;
    }
    NVML_FUNCTIONS(NVML_LOAD)
    bool complete = monitor->init != NULL && monitor->find != NULL;
    if (!complete) { return gpu_monitor_fail(monitor, library, "it lacks the functions of NVML", -1); }
    int status = monitor->init();
    monitor->started = status == NVML_OK;
    if (status != NVML_OK) { return gpu_monitor_fail(monitor, library, "nvmlInit failed", status); }
    status = monitor->find(pci_bus_id, &monitor->device);
    return status == NVML_OK || gpu_monitor_fail(monitor, library, "it does not know the GPU", status);
}

static inline bool gpu_monitor_is_open(const GpuMonitor *monitor) { return monitor->library != NULL; }

// Did NVML answer? A missing function has no answer.
#define gpu_monitor_asks(function, ...) ((function) != NULL && (function)(__VA_ARGS__) == NVML_OK)

// Appends a piece behind "GPU ", or ", " if it is not the first piece. Cuts what does not fit.
PRINTF_LIKE(3, 4) static inline void gpu_monitor_append(char *text, size_t size, const char *format, ...) {
    char piece[64];
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(piece, sizeof(piece), format, arguments);
    va_end(arguments);
    snprintf(text + used, size - used, "%s%s", used == 0 ? "GPU " : ", ", piece);
}

// Reads the GPU's state: "GPU 412 W of 700 W, 1755 MHz, 61 C, 34.2 GiB of 79.6 GiB, 98% busy", without the values that
// cannot be read. The memory is that of all programs on the GPU, and it is busy while some kernel runs. Takes well
// under a millisecond and does not disturb the GPU's work. Returns false, and "", if nothing can be read.
static inline bool gpu_monitor_text(const GpuMonitor *m, char *text, size_t size) {
    const double gib = 1024.0 * 1024.0 * 1024.0;
    unsigned value = 0, limit = 0;
    NvmlMemory memory;
    NvmlUtilization utilization;
    text[0] = '\0';
    if (!gpu_monitor_is_open(m)) { return false; }
    bool has_power = gpu_monitor_asks(m->power, m->device, &value);
    if (has_power && gpu_monitor_asks(m->power_limit, m->device, &limit)) {
        gpu_monitor_append(text, size, "%.0f W of %.0f W", 1e-3 * value, 1e-3 * limit);
    } else if (has_power) {
        gpu_monitor_append(text, size, "%.0f W", 1e-3 * value);
    }
    if (gpu_monitor_asks(m->clock, m->device, NVML_CLOCK_OF_SM, &value)) {
        gpu_monitor_append(text, size, "%u MHz", value);
    }
    if (gpu_monitor_asks(m->temperature, m->device, NVML_SENSOR_GPU, &value)) {
        gpu_monitor_append(text, size, "%u C", value);
    }
    if (gpu_monitor_asks(m->memory, m->device, &memory)) {
        gpu_monitor_append(text, size, "%.1f GiB of %.1f GiB", (double)memory.used / gib, (double)memory.total / gib);
    }
    if (gpu_monitor_asks(m->utilization, m->device, &utilization)) {
        gpu_monitor_append(text, size, "%u%% busy", utilization.gpu);
    }
    return text[0] != '\0';
}

#endif // LLMC_GPU_MONITOR_H
