// A library that the CUDA driver loads into any program and that writes down what the GPU does in a training step: each
// kernel's time and the gaps between them, by NVIDIA's profiling interface (CUPTI). The
// program needs no change and no rebuilding. dev/gpu_check.py builds and uses it:
//
//   g++ -shared -fPIC -I. -I$CUDA/include -o libtrace_kernels.so dev/bench/trace_kernels.cpp -L$CUDA/lib64 -lcupti
//   CUDA_INJECTION64_PATH=$PWD/libtrace_kernels.so TRACE_KERNELS=step.csv ./train_gpt2cu ... -x 20
//
// TRACE_KERNELS       the file to write, see trace_write in kernel_trace.h; without it nothing is traced
// TRACE_KERNELS_MARK  the kernel that each step begins with (embedding_forward: one micro-batch a step)
// TRACE_KERNELS_SKIP  steps at the start that do not count (5)
//
// Tracing takes about a microsecond a kernel, on the CPU. Problems are told in a line on stderr; the program goes on.
#include <cupti.h>
#include <cxxabi.h>

#include <mutex>
#include <vector>

#include "dev/bench/kernel_trace.h"

#define BUFFER_BYTES ((size_t)256 << 10) // small: full ones are handed over while the program runs

// What CUPTI's thread adds to and the program's end reads. Never destroyed: the program's end comes in any order.
struct Trace {
    std::mutex lock;
    std::vector<TraceRecord> records;
    size_t dropped;
};
static Trace *trace;

static void complain(const char *what, CUptiResult status) {
    const char *text = NULL;
    cuptiGetResultString(status, &text);
    fprintf(stderr, "trace_kernels: %s: %s; nothing is traced\n", what, text != NULL ? text : "an unknown error");
}

static void add(const char *name, uint64_t start, uint64_t end, uint32_t stream) {
    TraceRecord record;
    trace_short_name(record.name, name);
    record.start = start, record.end = end, record.stream = stream;
    trace->records.push_back(record);
}

static void add_kernel(const char *mangled, uint64_t start, uint64_t end, uint32_t stream) {
    int status = 0;
    char *demangled = abi::__cxa_demangle(mangled, NULL, NULL, &status);
    add(demangled != NULL ? demangled : mangled, start, end, stream);
    free(demangled);
}

static const char *copy_name(uint8_t kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy: host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy: device to host";
    default: return "copy: device to device";
    }
}

// The records of these kinds only ever grew at their ends: the oldest that CUDA 12.0 knows do for all.
static void add_record(const CUpti_Activity *record) {
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel8 *k = (const CUpti_ActivityKernel8 *)record;
        add_kernel(k->name, k->start, k->end, k->streamId);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy5 *c = (const CUpti_ActivityMemcpy5 *)record;
        add(copy_name(c->copyKind), c->start, c->end, c->streamId);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *m = (const CUpti_ActivityMemset4 *)record;
        add("fill", m->start, m->end, m->streamId);
        break;
    }
    default: break;
    }
}

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *max_records) {
    *buffer = (uint8_t *)malloc(BUFFER_BYTES); // aligned to 16 bytes, 8 are asked for
    *size = *buffer != NULL ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t valid) {
    CUpti_Activity *record = NULL;
    size_t dropped = 0;
    std::lock_guard<std::mutex> guard(trace->lock);
    while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) { add_record(record); }
    if (cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped) == CUPTI_SUCCESS) { trace->dropped += dropped; }
    free(buffer);
}

static bool write_summary(const char *path, Error *error) {
    const char *mark = getenv("TRACE_KERNELS_MARK"), *skip = getenv("TRACE_KERNELS_SKIP");
    TraceSummary summary;
    std::vector<TraceRecord> &records = trace->records;
    if (trace->dropped > 0) { return fail(error, "CUPTI lost %zu records, expected none", trace->dropped); }
    if (!trace_summarise(&summary, records.data(), (int64_t)records.size(), mark != NULL ? mark : "embedding_forward",
                         skip != NULL ? atoi(skip) : 5, error)) {
        return false;
    }
    FILE *out = fopen(path, "w");
    bool ok = out != NULL;
    if (ok) { trace_write(out, &summary); }
    if (ok) { ok = ferror(out) == 0; }
    if (out != NULL) { ok = fclose(out) == 0 && ok; }
    trace_free(&summary);
    return ok || fail(error, "%s: cannot be written: %s", path, strerror(errno));
}

static void finish(void) {
    static Error error;
    CUptiResult status = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    if (status != CUPTI_SUCCESS) { complain("cuptiActivityFlushAll", status); }
    std::lock_guard<std::mutex> guard(trace->lock);
    if (!write_summary(getenv("TRACE_KERNELS"), &error)) { print_error("trace_kernels", &error); }
}

static bool is_ok(const char *what, CUptiResult status) {
    if (status != CUPTI_SUCCESS) { complain(what, status); }
    return status == CUPTI_SUCCESS;
}

// The driver calls this when the program first uses it. Not 0: the library stays.
extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
    static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                               CUPTI_ACTIVITY_KIND_MEMSET};
    const char *path = getenv("TRACE_KERNELS");
    if (path == NULL || path[0] == '\0') { return 1; }
    trace = new Trace();
    if (!is_ok("cuptiActivityRegisterCallbacks", cuptiActivityRegisterCallbacks(give_buffer, take_buffer))) {
        return 1;
    }
    for (CUpti_ActivityKind kind : kinds) {
        if (!is_ok("cuptiActivityEnable", cuptiActivityEnable(kind))) { return 1; }
    }
    is_ok("cuptiActivityFlushPeriod", cuptiActivityFlushPeriod(100)); // in ms
    atexit(finish);
    return 1;
}
