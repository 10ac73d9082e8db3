// Streams, events and the operations on them. clocks.cpp says which operation is ordered before which.
#include "access.h"
#include "memory.h"
#include "streams.h"

#include "include/emu.h"

#include <atomic>

namespace emu {

constexpr size_t REMEMBERED_OPERATIONS = 1 << 16;

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

// ---- Operations ----

static void begin_operation(cudaStream_t handle, const char *kind, const char *name, Source at) {
    Device &d = device();
    use_device(name, at);
    d.mutex.lock();
    reserve_arenas();
    catch_faults();
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

// A call of the host API. It holds the device until it returns, and its streams and events must exist.
struct HostCall {
    const char *function;
    Source at;
    Guard guard;
    HostCall(const char *function, const char *file, int line)
        : function(function), at{file, line}, guard((host_only(function, at), device().mutex)) {}
    cudaStream_t stream(cudaStream_t handle) const { return find_stream(handle, function, at); }
    cudaEvent_t event(cudaEvent_t handle) const { return find_event(handle, function, at); }
};

} // namespace emu

using namespace emu;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags, const char *file, int line) {
    const HostCall host("cudaStreamCreate", file, line);
    use_device(host.function, host.at);
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
    const HostCall host("cudaStreamDestroy", file, line);
    if (stream == nullptr) { return remember_error(cudaErrorInvalidResourceHandle); }
    host.stream(stream)->alive = false; // its operations go on, and the program may wait for them
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream, const char *file, int line) {
    const HostCall host("cudaStreamSynchronize", file, line);
    wait_for_stream(host.stream(stream));
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream, const char *file, int line) {
    const HostCall host("cudaStreamQuery", file, line);
    host_waits_for(clock_of_next(host.stream(stream))); // everything is always done
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned, const char *file, int line) {
    const HostCall host("cudaStreamWaitEvent", file, line);
    cudaStream_t waits = host.stream(stream);
    merge(&waits->clock, host.event(event)->clock);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(const char *file, int line) {
    const HostCall host("cudaDeviceSynchronize", file, line);
    Clock all;
    for (cudaStream_t stream : device().streams) { merge(&all, stream->clock); }
    synchronize(all);
    return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaDeviceSynchronize(); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags, const char *file, int line) {
    const HostCall host("cudaEventCreate", file, line);
    use_device(host.function, host.at);
    *event = new CUevent_st{{}, {}, false, true, (flags & cudaEventDisableTiming) == 0};
    all_events().push_back(*event);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event, const char *file, int line) {
    return cudaEventCreateWithFlags(event, cudaEventDefault, file, line);
}
cudaError_t cudaEventDestroy(cudaEvent_t event, const char *file, int line) {
    const HostCall host("cudaEventDestroy", file, line);
    host.event(event)->alive = false;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream, const char *file, int line) {
    const HostCall host("cudaEventRecord", file, line);
    cudaEvent_t e = host.event(event);
    e->clock = clock_of_next(host.stream(stream));
    e->time = std::chrono::steady_clock::now();
    e->recorded = true;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event, const char *file, int line) {
    const HostCall host("cudaEventSynchronize", file, line);
    host_waits_for(host.event(event)->clock);
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
