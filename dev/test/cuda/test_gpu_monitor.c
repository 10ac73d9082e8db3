// llmc/cuda/gpu_monitor.h against a stand-in for NVIDIA's library, compiled here.
#include "llmc/cuda/gpu_monitor.h"
#include "dev/test/temp_dir.h"
#include "dev/test/test.h"

// NVML as its documentation describes it. NO_POWER etc. leave functions out; FAILS makes the sensors fail.
static const char nvml_source[] =
    "#include <string.h>\n"
    "typedef struct { unsigned long long total, free, used; } Memory;\n"
    "typedef struct { unsigned gpu, memory; } Utilization;\n"
    "static int device, started;\n"
    "#ifdef FAILS\n"
    "#define ANSWER return 999\n"
    "#else\n"
    "#define ANSWER return started == 1 && handle == (void *)&device ? 0 : 1\n"
    "#endif\n"
    "#ifndef NO_INIT\n"
    "int nvmlInit_v2(void) { started++; return INIT_STATUS; }\n"
    "#endif\n"
    "int nvmlShutdown(void) { started--; return 0; }\n"
    "int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {\n"
    "    *handle = &device; return strcmp(id, \"0000:3B:00.0\") == 0 ? 0 : 6; }\n"
    "#ifndef NO_POWER\n"
    "int nvmlDeviceGetPowerUsage(void *handle, unsigned *mw) { *mw = 412300; ANSWER; }\n"
    "int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *mw) { *mw = 700000; ANSWER; }\n"
    "#endif\n"
    "int nvmlDeviceGetClockInfo(void *handle, int type, unsigned *mhz) { *mhz = type == 1 ? 1755 : 1; ANSWER; }\n"
    "int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *c) { *c = sensor == 0 ? 61 : 1; ANSWER; }\n"
    "int nvmlDeviceGetMemoryInfo(void *handle, Memory *m) {\n"
    "    m->total = 85520809984ull, m->used = 36722180096ull, m->free = m->total - m->used; ANSWER; }\n"
    "int nvmlDeviceGetUtilizationRates(void *handle, Utilization *u) { u->gpu = 98, u->memory = 1; ANSWER; }\n";

// Compiles the stand-in into a folder of this name. Returns its path, or NULL if there is no compiler called cc, gcc or
// clang.
static const char *build_library(Test *t, const char *name, const char *flags) {
    const char *folder = test_path(t, name);
    static char path[600];
    char command[4096];
    mkdir(folder, 0755);
    snprintf(path, sizeof(path), "%s/libnvidia-ml.so.1", folder);
    temp_write(test_path(t, "nvml.c"), nvml_source, strlen(nvml_source));
    snprintf(command, sizeof(command),
             "for c in cc gcc clang; do $c -shared -fPIC %s -o %s %s/nvml.c 2>%s/messages && exit 0; done; exit 1",
             flags, path, test_folder(t), folder);
    return system(command) == 0 ? path : NULL;
}

#define NO_COMPILER "no C compiler builds a shared library"
#define GOOD_BUS "0000:3B:00.0"

TEST(test_state_of_a_gpu) {
    static const struct {
        const char *flags, *bus_id, *want;
    } cases[] = {
        {"-DINIT_STATUS=0", GOOD_BUS, "GPU 412 W of 700 W, 1755 MHz, 61 C, 34.2 GiB of 79.6 GiB, 98% busy"},
        {"-DINIT_STATUS=0 -DNO_POWER", GOOD_BUS, "GPU 1755 MHz, 61 C, 34.2 GiB of 79.6 GiB, 98% busy"},
        {"-DINIT_STATUS=0", "0000:01:00.0",
         "no GPU power, clock and temper ... libnvidia-ml.so.1: it does not know the GPU (status 6)"},
        {"-DINIT_STATUS=9", GOOD_BUS,
         "no GPU power, clock and temper ... libnvidia-ml.so.1: nvmlInit failed (status 9)"},
        {"-DNO_INIT", GOOD_BUS,
         "no GPU power, clock and temper ... libnvidia-ml.so.1: it lacks the functions of NVML (status -1)"},
        {"-DINIT_STATUS=0 -DFAILS", GOOD_BUS, ""}, // sensors that fail are left out
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[256] = "x", name[16];
        GpuMonitor monitor;
        snprintf(name, sizeof(name), "%zu", i);
        const char *path = build_library(t, name, cases[i].flags);
        if (path == NULL) { SKIP(t, NO_COMPILER); }
        bool opened = gpu_monitor_open(&monitor, path, cases[i].bus_id);
        bool known = gpu_monitor_text(&monitor, text, sizeof(text));
        CHECK(t, known == (text[0] != '\0'), "%s: gpu_monitor_text returned %d", cases[i].flags, known);
        if (!opened) {
            const char *library = strstr(monitor.why, "libnvidia"); // leaves out the folder
            snprintf(text, sizeof(text), "%.30s ... %s", monitor.why, library ? library : "");
        }
        CHECK(t, strcmp(text, cases[i].want) == 0, "%s: '%s', expected '%s'", cases[i].flags, text, cases[i].want);
        gpu_monitor_close(&monitor);
        gpu_monitor_close(&monitor); // harmless
    }
}

TEST(test_no_library) {
    GpuMonitor monitor;
    char text[64] = "x";
    CHECK(t, !gpu_monitor_open(&monitor, "libnone-such.so.1", GOOD_BUS), "opened what does not exist");
    CHECK(t, strstr(monitor.why, "libnone-such.so.1") != NULL, "'%s' does not name the library", monitor.why);
    CHECK(t, !gpu_monitor_text(&monitor, text, sizeof(text)) && text[0] == '\0', "'%s' without a library", text);
    gpu_monitor_close(&monitor);
}

TEST(test_text_is_cut) {
    char whole[256], text[256];
    GpuMonitor monitor;
    const char *path = build_library(t, "library", "-DINIT_STATUS=0");
    if (path == NULL) { SKIP(t, NO_COMPILER); }
    CHECK(t, gpu_monitor_open(&monitor, path, GOOD_BUS), "%s", monitor.why);
    gpu_monitor_text(&monitor, whole, sizeof(whole));
    for (size_t size = 1; size <= strlen(whole) + 1; size++) {
        memset(text, '#', sizeof(text));
        gpu_monitor_text(&monitor, text, size);
        CHECK(t, strlen(text) == size - 1, "%zu bytes: '%s'", size, text);
        CHECK(t, strncmp(text, whole, size - 1) == 0, "%zu bytes: '%s' does not begin '%s'", size, text, whole);
        CHECK(t, text[size] == '#', "%zu bytes: written beyond", size);
    }
    gpu_monitor_close(&monitor);
}
