// Streams and events. All work is done when the call returns. Vector clocks track which operation the hardware promises
// to order before which. A clock holds for each stream the last operation up to which everything is done. A stream has
// the clock of its next operation, an event the clock of its record, and the host its own clock. Waiting takes the
// maximum of two clocks.
#include "access.h"
#include "memory.h"
#include "streams.h"

#include "include/emu.h"

#include <atomic>

namespace emu {

void merge(Clock *into, const Clock &from) {
    if (into->size() < from.size()) { into->resize(from.size()); }
    for (size_t s = 0; s < from.size(); s++) {
        if ((*into)[s] < from[s]) { (*into)[s] = from[s]; }
    }
}

constexpr size_t REMEMBERED_OPERATIONS = 1 << 16;

uint64_t host_order = ~uint64_t(0);

Device &device() {
    static Device *the_device = [] {
        Device *d = new Device();
        d->streams.push_back(new CUstream_st{0, true, true, {}, 0, {}});
        return d;
    }();
    return *the_device;
}

const Operation *current_operation() { return &device().current; }
bool current_operation_copies() { return device().copies_uninitialised; }
void operation_may_copy_uninitialised() { device().copies_uninitialised = true; }

// ---- Handles ----

cudaStream_t find_stream(cudaStream_t stream, const char *function, Source at) {
    Device &d = device();
    if (stream == nullptr) { return d.streams[0]; }
    for (cudaStream_t s : d.streams) {
        if (s == stream && s->alive) { return s; }
    }
    report(at, format("%s with a stream that does not exist (destroyed, or never created)", function));
}

cudaStream_t add_stream(bool blocking) {
    uint32_t number = static_cast<uint32_t>(device().streams.size());
    device().streams.push_back(new CUstream_st{number, blocking, true, {}, 0, {}});
    return device().streams.back();
}

static std::vector<cudaEvent_t> &all_events() {
    static std::vector<cudaEvent_t> *events = new std::vector<cudaEvent_t>;
    return *events;
}

cudaEvent_t find_event(cudaEvent_t event, const char *function, Source at) {
    for (cudaEvent_t e : all_events()) {
        if (e == event && e->alive) { return e; }
    }
    report(at, format("%s with an event that does not exist (destroyed, or never created)", function));
}

std::string stream_text(uint32_t number) { return format("stream %u", number); }

// ---- The order of operations ----

// The default stream waits for all blocking streams, and all blocking streams wait for it.
Clock clock_of_next(cudaStream_t stream) {
    Device &d = device();
    Clock clock = stream->clock;
    merge(&clock, d.host);
    for (cudaStream_t other : d.streams) {
        bool waits = stream->blocking && other->blocking && (stream->number == 0 || other->number == 0);
        if (waits) { merge(&clock, other->clock); }
    }
    return clock;
}

// Returns the stamp of the oldest operation that is not done according to the clock, or `next` if all are done.
static uint64_t oldest_not_done(const Clock &clock, uint64_t next) {
    uint64_t oldest = next;
    for (cudaStream_t stream : device().streams) {
        const uint64_t done = emu::at(clock, stream->number);
        for (const Operation &operation : stream->unfinished) {
            if (operation.position <= done) { continue; }
            uint64_t stamp = stamp_of_interval(operation.first_interval);
            if (stamp < oldest) { oldest = stamp; }
            break;
        }
    }
    return oldest;
}

static void host_has_waited() {
    for (cudaStream_t stream : device().streams) {
        uint64_t done = emu::at(device().host, stream->number);
        while (!stream->unfinished.empty() && stream->unfinished.front().position <= done) {
            stream->unfinished.pop_front();
        }
    }
    host_order = oldest_not_done(device().host, ~uint64_t(0));
}

bool host_is_behind() { return host_order != ~uint64_t(0); }

const Operation *find_operation(uint32_t number) {
    Device &d = device();
    size_t i = number - d.first_number;
    return number >= d.first_number && i < d.operations.size() ? &d.operations[i] : nullptr;
}

const Operation *unordered_operation(uint32_t number, bool in_host_code) {
    std::unique_lock<std::recursive_mutex> guard(device().mutex, std::defer_lock);
    if (in_host_code) { guard.lock(); } // a kernel's launch holds the lock already
    const Operation *operation = find_operation(number);
    if (operation == nullptr) { return nullptr; }
    const Clock &clock = in_host_code ? device().host : device().current_clock;
    return emu::at(clock, operation->stream) >= operation->position ? nullptr : operation;
}

// ---- Operations ----

static void begin_operation(cudaStream_t handle, const char *kind, const char *name, Source at) {
    Device &d = device();
    use_device(name, at);
    d.mutex.lock();
    reserve_arenas();
    if (access_checks) { renew_intervals(); }
    cudaStream_t stream = find_stream(handle, name, at);
    Clock clock = clock_of_next(stream);
    clock.resize(std::max(clock.size(), d.streams.size()));
    clock[stream->number] = ++stream->position;
    stream->clock = d.current_clock = clock;
    d.current_number = d.first_number + static_cast<uint32_t>(d.operations.size());
    uint32_t interval = take_intervals(d.current_number, 0);
    d.current = {kind, name, at, stream->number, stream->position, interval};
    d.current_me = stamp_of_interval(interval);
    d.current_order = oldest_not_done(clock, d.current_me);
    d.copies_uninitialised = false;
    d.operations.push_back(d.current);
    stream->unfinished.push_back(d.current);
    if (d.operations.size() > REMEMBERED_OPERATIONS) { d.operations.pop_front(), d.first_number++; }
    if (host_order > d.current_me) { host_order = d.current_me; }
    unlock_device_memory();
}

static void end_operation() {
    lock_device_memory();
    device().mutex.unlock();
}

void begin_kernel(Kernel *kernel) {
    begin_operation(kernel->stream, "kernel", kernel->name, kernel->launched);
    kernel->operation = device().current_number;
    kernel->order = device().current_order;
    forget_releases();
}
void end_kernel() { end_operation(); }

void op_begin(cudaStream_t stream, const char *name, const char *file, int line) {
    host_only(name, {file, line});
    begin_operation(stream, "the call of", name, {file, line});
    meter_operation(name);
}
void op_read(const void *pointer, size_t bytes) {
    meter_operation_bytes(bytes, false);
    check_operation_read(pointer, bytes, device().current_me, device().current_order);
}
void op_write(void *pointer, size_t bytes) {
    meter_operation_bytes(bytes, true);
    check_operation_write(pointer, bytes, device().current_me, device().current_order);
}
void op_scratch(void *pointer, size_t bytes) {
    check_operation_write(pointer, bytes, device().current_me, device().current_order);
}
void op_end() { end_operation(); }

static void host_waits_for(const Clock &clock) {
    merge(&device().host, clock);
    host_has_waited();
}

static std::atomic<int64_t> synchronizations;
int64_t synchronization_count() { return synchronizations.load(); }

void wait_for_stream(cudaStream_t handle) {
    synchronizations++;
    std::lock_guard<std::recursive_mutex> guard(device().mutex);
    host_waits_for(clock_of_next(handle ? handle : device().streams[0]));
}

} // namespace emu

using namespace emu;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags, const char *file, int line) {
    host_only("cudaStreamCreate", {file, line});
    use_device("cudaStreamCreate", {file, line});
    Guard guard(device().mutex);
    *stream = add_stream((flags & cudaStreamNonBlocking) == 0);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream, const char *file, int line) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault, file, line);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int, const char *file, int line) {
    return cudaStreamCreateWithFlags(stream, flags, file, line);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) { *least = 0; }
    if (greatest) { *greatest = -5; }
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream, const char *file, int line) {
    host_only("cudaStreamDestroy", {file, line});
    Guard guard(device().mutex);
    if (stream == nullptr) { return remember_error(cudaErrorInvalidResourceHandle); }
    cudaStream_t s = find_stream(stream, "cudaStreamDestroy", {file, line});
    s->alive = false; // its operations go on, and the program may wait for them
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream, const char *file, int line) {
    host_only("cudaStreamSynchronize", {file, line});
    Guard guard(device().mutex);
    cudaStream_t s = find_stream(stream, "cudaStreamSynchronize", {file, line});
    wait_for_stream(s);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream, const char *file, int line) {
    host_only("cudaStreamQuery", {file, line});
    Guard guard(device().mutex);
    cudaStream_t s = find_stream(stream, "cudaStreamQuery", {file, line});
    host_waits_for(clock_of_next(s)); // everything is always done
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned, const char *file, int line) {
    host_only("cudaStreamWaitEvent", {file, line});
    Guard guard(device().mutex);
    cudaStream_t s = find_stream(stream, "cudaStreamWaitEvent", {file, line});
    cudaEvent_t e = find_event(event, "cudaStreamWaitEvent", {file, line});
    merge(&s->clock, e->clock);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(const char *file, int line) {
    host_only("cudaDeviceSynchronize", {file, line});
    Guard guard(device().mutex);
    Clock all;
    synchronizations++;
    for (cudaStream_t stream : device().streams) { merge(&all, stream->clock); }
    host_waits_for(all);
    return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaDeviceSynchronize(); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags, const char *file, int line) {
    host_only("cudaEventCreate", {file, line});
    use_device("cudaEventCreate", {file, line});
    Guard guard(device().mutex);
    *event = new CUevent_st{{}, {}, false, true, (flags & cudaEventDisableTiming) == 0};
    all_events().push_back(*event);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event, const char *file, int line) {
    return cudaEventCreateWithFlags(event, cudaEventDefault, file, line);
}
cudaError_t cudaEventDestroy(cudaEvent_t event, const char *file, int line) {
    host_only("cudaEventDestroy", {file, line});
    Guard guard(device().mutex);
    find_event(event, "cudaEventDestroy", {file, line})->alive = false;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream, const char *file, int line) {
    host_only("cudaEventRecord", {file, line});
    Guard guard(device().mutex);
    cudaEvent_t e = find_event(event, "cudaEventRecord", {file, line});
    cudaStream_t s = find_stream(stream, "cudaEventRecord", {file, line});
    e->clock = clock_of_next(s);
    e->time = std::chrono::steady_clock::now();
    e->recorded = true;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event, const char *file, int line) {
    host_only("cudaEventSynchronize", {file, line});
    Guard guard(device().mutex);
    cudaEvent_t e = find_event(event, "cudaEventSynchronize", {file, line});
    host_waits_for(e->clock);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event, const char *file, int line) {
    return cudaEventSynchronize(event, file, line); // everything is always done
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    Guard guard(device().mutex);
    if (!start->recorded || !end->recorded || !start->timing || !end->timing) {
        return remember_error(cudaErrorInvalidResourceHandle);
    }
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
    return cudaSuccess;
}
