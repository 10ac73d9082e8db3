// The state of a GPU while it trains: power, clock, temperature, memory, utilisation, read through NVIDIA's management
// library (NVML), which comes with the driver. It is loaded when the program runs, so that a machine without a driver
// builds and runs the same program; what cannot be read is left out, and never stops a run.
//
//   GpuMonitor monitor;
//   if (!gpu_monitor_open(&monitor, bus_id)) { printf("%s\n", monitor.why); } // once; reading then gives nothing
//   GpuState state;
//   if (gpu_monitor_read(&monitor, &state)) { gpu_monitor_text(&state, text, sizeof(text)); ... }
//   gpu_monitor_close(&monitor);
#ifndef LLMC_GPU_MONITOR_H
#define LLMC_GPU_MONITOR_H

#include "llmc/base/utils.h"

#include <dlfcn.h>

#define GPU_MONITOR_LIBRARY "libnvidia-ml.so.1"

// As the documentation of NVML's interface has them; its header is not needed.
typedef struct GpuMonitorDevice *NvmlDevice;
typedef struct {
    unsigned long long total, free, used; // bytes
} NvmlMemory;
typedef struct {
    unsigned gpu, memory; // percent of the time since the last look
} NvmlUtilization;
enum { NVML_OK = 0, NVML_SENSOR_GPU = 0, NVML_CLOCK_OF_SM = 1 };

typedef struct {
    void *library; // NULL: nothing can be read
    NvmlDevice device;
    char why[256]; // one line, if it could not be opened
    int (*shutdown)(void);
    // Any of these may be NULL: a driver too old to have it.
    int (*power)(NvmlDevice, unsigned *milliwatts);
    int (*power_limit)(NvmlDevice, unsigned *milliwatts);
    int (*clock)(NvmlDevice, int which, unsigned *megahertz);
    int (*temperature)(NvmlDevice, int sensor, unsigned *celsius);
    int (*memory)(NvmlDevice, NvmlMemory *);
    int (*utilization)(NvmlDevice, NvmlUtilization *);
} GpuMonitor;

typedef struct {
    double watts, watt_limit; // -1, as everywhere here: not known
    int sm_megahertz;
    int celsius;
    int64_t memory_used, memory_total; // bytes, of all programs on the GPU
    int busy_percent;                  // of the time, some kernel ran
} GpuState;

// A function of the library by name; NULL if it has none. Copied as bytes: C has no conversion from an object pointer.
static inline void gpu_monitor_function(void *library, const char *name, void *function) {
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof(address));
}

static inline void gpu_monitor_find_functions(GpuMonitor *monitor) {
    void *library = monitor->library;
    gpu_monitor_function(library, "nvmlShutdown", &monitor->shutdown);
    gpu_monitor_function(library, "nvmlDeviceGetPowerUsage", &monitor->power);
    gpu_monitor_function(library, "nvmlDeviceGetEnforcedPowerLimit", &monitor->power_limit);
    gpu_monitor_function(library, "nvmlDeviceGetClockInfo", &monitor->clock);
    gpu_monitor_function(library, "nvmlDeviceGetTemperature", &monitor->temperature);
    gpu_monitor_function(library, "nvmlDeviceGetMemoryInfo", &monitor->memory);
    gpu_monitor_function(library, "nvmlDeviceGetUtilizationRates", &monitor->utilization);
}

static inline void gpu_monitor_close(GpuMonitor *monitor) {
    if (monitor->library == NULL) { return; }
    if (monitor->device != NULL && monitor->shutdown != NULL) { monitor->shutdown(); }
    dlclose(monitor->library);
    monitor->library = NULL;
}

// Starts the library and finds the device. *what: the call that failed, or NULL. Returns NVML's status.
static inline int gpu_monitor_find_device(GpuMonitor *monitor, const char *pci_bus_id, const char **what) {
    int (*init)(void), (*by_bus)(const char *, NvmlDevice *);
    gpu_monitor_function(monitor->library, "nvmlInit_v2", &init);
    gpu_monitor_function(monitor->library, "nvmlDeviceGetHandleByPciBusId_v2", &by_bus);
    *what = init == NULL || by_bus == NULL ? "it lacks the functions of NVML" : NULL;
    if (*what != NULL) { return -1; }
    int status = init();
    *what = "nvmlInit failed";
    if (status != NVML_OK) { return status; }
    NvmlDevice device = NULL;
    status = by_bus(pci_bus_id, &device);
    *what = status == NVML_OK ? NULL : "it does not know the GPU";
    if (status == NVML_OK) { monitor->device = device; }
    if (status != NVML_OK && monitor->shutdown != NULL) { monitor->shutdown(); }
    return status;
}

// As gpu_monitor_open, with the library's name.
static inline bool gpu_monitor_open_library(GpuMonitor *monitor, const char *library_name, const char *pci_bus_id) {
    memset(monitor, 0, sizeof(*monitor));
    monitor->library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (monitor->library == NULL) {
        snprintf(monitor->why, sizeof(monitor->why), "no GPU power, clock and temperature: there is no %.100s here",
                 library_name);
        return false;
    }
    gpu_monitor_find_functions(monitor);
    const char *what;
    int status = gpu_monitor_find_device(monitor, pci_bus_id, &what);
    if (what == NULL) { return true; }
    snprintf(monitor->why, sizeof(monitor->why), "no GPU power, clock and temperature: %.100s: %s (status %d)",
             library_name, what, status);
    gpu_monitor_close(monitor);
    return false;
}

// Opens the monitor of the GPU at a bus address such as "0000:3B:00.0" (cudaDeviceGetPCIBusId: other numberings differ
// between the runtime and NVML). False without NVML or without that GPU, and `why` says so; the monitor can be used and
// closed all the same.
static inline bool gpu_monitor_open(GpuMonitor *monitor, const char *pci_bus_id) {
    return gpu_monitor_open_library(monitor, GPU_MONITOR_LIBRARY, pci_bus_id);
}

static inline bool gpu_monitor_is_open(const GpuMonitor *monitor) { return monitor->library != NULL; }

// Did NVML answer? A function that the library lacks (NULL) has no answer.
#define gpu_monitor_asks(function, ...) ((function) != NULL && (function)(__VA_ARGS__) == NVML_OK)

// What the GPU does now; takes well under a millisecond and does not disturb the GPU's work. False, and a state of
// unknowns, when nothing could be read.
static inline bool gpu_monitor_read(GpuMonitor *m, GpuState *state) {
    const GpuState unknown = {-1.0, -1.0, -1, -1, -1, -1, -1};
    unsigned value = 0;
    NvmlMemory memory;
    NvmlUtilization utilization;
    *state = unknown;
    if (!gpu_monitor_is_open(m)) { return false; }
    if (gpu_monitor_asks(m->power, m->device, &value)) { state->watts = 1e-3 * value; }
    if (gpu_monitor_asks(m->power_limit, m->device, &value)) { state->watt_limit = 1e-3 * value; }
    if (gpu_monitor_asks(m->clock, m->device, NVML_CLOCK_OF_SM, &value)) { state->sm_megahertz = (int)value; }
    if (gpu_monitor_asks(m->temperature, m->device, NVML_SENSOR_GPU, &value)) { state->celsius = (int)value; }
    if (gpu_monitor_asks(m->memory, m->device, &memory)) {
        state->memory_used = (int64_t)memory.used, state->memory_total = (int64_t)memory.total;
    }
    if (gpu_monitor_asks(m->utilization, m->device, &utilization)) { state->busy_percent = (int)utilization.gpu; }
    return state->watts >= 0.0 || state->sm_megahertz >= 0 || state->celsius >= 0 || state->memory_used >= 0 ||
           state->busy_percent >= 0;
}

// Appends a piece, after "GPU " if it is the first and ", " otherwise; cuts what does not fit.
PRINTF_LIKE(3, 4) static inline void gpu_monitor_append(char *text, size_t size, const char *format, ...) {
    char piece[64];
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(piece, sizeof(piece), format, arguments);
    va_end(arguments);
    snprintf(text + used, size - used, "%s%s", used == 0 ? "GPU " : ", ", piece);
}

// Writes what is known: "GPU 412 W of 700 W, 1755 MHz, 61 C, 34.2 GiB of 79.6 GiB, 98% busy"; "" when nothing is.
static inline void gpu_monitor_text(const GpuState *state, char *text, size_t size) {
    const double gib = 1024.0 * 1024.0 * 1024.0;
    text[0] = '\0';
    if (state->watts >= 0.0 && state->watt_limit >= 0.0) {
        gpu_monitor_append(text, size, "%.0f W of %.0f W", state->watts, state->watt_limit);
    } else if (state->watts >= 0.0) {
        gpu_monitor_append(text, size, "%.0f W", state->watts);
    }
    if (state->sm_megahertz >= 0) { gpu_monitor_append(text, size, "%d MHz", state->sm_megahertz); }
    if (state->celsius >= 0) { gpu_monitor_append(text, size, "%d C", state->celsius); }
    if (state->memory_used >= 0) {
        gpu_monitor_append(text, size, "%.1f GiB of %.1f GiB", (double)state->memory_used / gib,
                           (double)state->memory_total / gib);
    }
    if (state->busy_percent >= 0) { gpu_monitor_append(text, size, "%d%% busy", state->busy_percent); }
}

#endif // LLMC_GPU_MONITOR_H
