// CUDA's functions that allocate, copy and fill memory. The memory itself is in heap.cpp.
#include "memory.h"
#include "streams.h"

#include <stdlib.h>
#include <string.h>

namespace emu {

size_t device_capacity() {
    static const size_t bytes = [] {
        const char *text = getenv("EMU_MEMORY");
        long long mib = text ? atoll(text) : 4096;
        return static_cast<size_t>(mib < 1 ? 1 : mib) << 20;
    }();
    return bytes;
}

static cudaError_t allocate(Heap &heap, void **pointer, size_t bytes, size_t limit) {
    if (pointer == nullptr) { return remember_error(cudaErrorInvalidValue); }
    *pointer = nullptr;
    if (bytes == 0) { return cudaSuccess; }
    if (bytes > limit || heap.live_bytes > limit - bytes) { return remember_error(cudaErrorMemoryAllocation); }
    catch_faults();
    unlock_device_memory();
    *pointer = heap.allocate(bytes);
    lock_device_memory();
    // The checks do not see the host's writes.
    if (*pointer && &heap == &pinned_heap()) { set_initialised(*pointer, bytes, true); }
    return *pointer ? cudaSuccess : remember_error(cudaErrorMemoryAllocation);
}

static cudaError_t release(Heap &heap, void *pointer, const char *function, Source at) {
    host_only(function, at);
    if (pointer == nullptr) { return cudaSuccess; }
    Allocation *allocation = heap.find_begin(pointer);
    if (allocation == nullptr) {
        report(at, format("%s of %p, which is not a live allocation", function, pointer),
               describe_address(reinterpret_cast<uintptr_t>(pointer)));
    }
    check_free(allocation->begin, allocation->bytes, function, at);
    heap.release(allocation);
    return cudaSuccess;
}

} // namespace emu

using namespace emu;

cudaError_t cudaMalloc(Out pointer, size_t bytes, const char *file, int line) {
    host_only("cudaMalloc", {file, line});
    use_device("cudaMalloc", {file, line});
    return allocate(device_heap(), pointer, bytes, device_capacity());
}
cudaError_t cudaHostAlloc(Out pointer, size_t bytes, unsigned, const char *file, int line) {
    host_only("cudaHostAlloc", {file, line});
    return allocate(pinned_heap(), pointer, bytes, PINNED_SPAN / 4);
}
cudaError_t cudaMallocHost(Out pointer, size_t bytes, unsigned flags, const char *file, int line) {
    return cudaHostAlloc(pointer, bytes, flags, file, line);
}
// Host and device may access it. The host must have waited for the operations that did.
cudaError_t cudaMallocManaged(Out pointer, size_t bytes, unsigned, const char *file, int line) {
    use_device("cudaMallocManaged", {file, line});
    cudaError_t error = cudaHostAlloc(pointer, bytes, cudaHostAllocDefault, file, line);
    Allocation *allocation = error == cudaSuccess ? pinned_heap().find_begin(*pointer) : nullptr;
    if (allocation != nullptr) { allocation->managed = true; }
    return error;
}
cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t, int, cudaStream_t) {
    return is_managed(pointer) ? cudaSuccess : remember_error(cudaErrorInvalidValue);
}
cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, struct cudaMemLocation, unsigned,
                                 cudaStream_t stream) {
    return cudaMemPrefetchAsync(pointer, bytes, 0, stream);
}
cudaError_t cudaMemAdvise(const void *pointer, size_t, enum cudaMemoryAdvise, int) {
    return is_managed(pointer) ? cudaSuccess : remember_error(cudaErrorInvalidValue);
}
cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, enum cudaMemoryAdvise advice, struct cudaMemLocation) {
    return cudaMemAdvise(pointer, bytes, advice, 0);
}
cudaError_t cudaMallocPitch(Out pointer, size_t *pitch, size_t width, size_t height, const char *file, int line) {
    constexpr size_t multiple = 512;
    *pitch = (width + multiple - 1) / multiple * multiple;
    return cudaMalloc(pointer, *pitch * height, file, line);
}
cudaError_t cudaHostGetDevicePointer(Out device, void *host, unsigned) {
    *device = host;
    return in_pinned_arena(host) ? cudaSuccess : remember_error(cudaErrorInvalidValue);
}
cudaError_t cudaFree(void *pointer, const char *file, int line) {
    return release(is_managed(pointer) ? pinned_heap() : device_heap(), pointer, "cudaFree", {file, line});
}
cudaError_t cudaFreeHost(void *pointer, const char *file, int line) {
    if (is_managed(pointer)) { report({file, line}, "cudaFreeHost of memory of cudaMallocManaged: use cudaFree"); }
    return release(pinned_heap(), pointer, "cudaFreeHost", {file, line});
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    host_only("cudaMemGetInfo");
    *total_bytes = device_capacity();
    *free_bytes = device_capacity() - device_heap().live_bytes;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    void *p = const_cast<void *>(pointer);
    if (in_device_arena(p)) {
        *attributes = {cudaMemoryTypeDevice, device_in_use(), p, nullptr};
    } else if (in_pinned_arena(p)) {
        *attributes = {is_managed(p) ? cudaMemoryTypeManaged : cudaMemoryTypeHost, device_in_use(), p, p};
    } else {
        *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, p};
    }
    return cudaSuccess;
}

// ---- Copies and fills ----

// The direction that the caller names must match the pointers.
static bool direction_is_right(const void *to, const void *from, enum cudaMemcpyKind kind) {
    bool to_device = is_device_data(to), from_device = is_device_data(from);
    if (is_managed(to)) { to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice; }
    if (is_managed(from)) { from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice; }
    switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    case cudaMemcpyDefault: return true;
    }
    return false;
}

static bool is_tracked(const void *pointer) { return is_device_data(pointer) || in_pinned_arena(pointer); }

// Rows of bytes. A copy of one piece is one row.
struct Rows {
    char *data;
    size_t pitch; // bytes from one row to the next
};
struct Copy {
    Rows to, from;
    size_t width, height; // bytes of a row, rows
    enum cudaMemcpyKind kind;
    const char *name;
    Source at;
};

static Copy copy_of(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                    enum cudaMemcpyKind kind, const char *name, Source at) {
    char *from_bytes = static_cast<char *>(const_cast<void *>(from));
    return {{static_cast<char *>(to), to_pitch}, {from_bytes, from_pitch}, width, height, kind, name, at};
}

static void copy_row(char *to, char *from, size_t bytes) {
    bool both = is_tracked(to) && is_tracked(from);
    if (is_tracked(from)) { op_read(from, bytes); }
    if (is_tracked(to)) { op_write(to, bytes); }
    if (both && in_device_arena(to) && in_device_arena(from)) { copy_initialised(to, from, bytes); }
    if (bytes > 0) { memmove(to, from, bytes); } // for 0 bytes the addresses may be null
}

static cudaError_t copy(const Copy &c, cudaStream_t stream) {
    char *to = c.to.data, *from = c.from.data;
    host_only(c.name, c.at);
    if (c.height > 1 && (c.to.pitch < c.width || c.from.pitch < c.width)) {
        return remember_error(cudaErrorInvalidPitchValue);
    }
    if (!direction_is_right(to, from, c.kind)) {
        report(c.at, format("%s from %s to %s memory with a kind that says otherwise (%d)", c.name,
                            is_device_data(from) ? "device" : "host", is_device_data(to) ? "device" : "host", c.kind));
    }
    op_begin(stream, c.name, c.at.file, c.at.line);
    if (is_tracked(to) && is_tracked(from)) { operation_may_copy_uninitialised(); }
    for (size_t row = 0; row < c.height; row++) { copy_row(to + row * c.to.pitch, from + row * c.from.pitch, c.width); }
    op_end();
    return cudaSuccess;
}

static cudaError_t fill(Rows to, int value, size_t width, size_t height, cudaStream_t stream, const char *name,
                        Source at) {
    host_only(name, at);
    if (!is_device_data(to.data) && !in_pinned_arena(to.data)) { report(at, format("%s of host memory", name)); }
    op_begin(stream, name, at.file, at.line);
    for (size_t row = 0; row < height; row++) {
        op_write(to.data + row * to.pitch, width);
        memset(to.data + row * to.pitch, value, width);
    }
    op_end();
    return cudaSuccess;
}

// Only a copy to the host has arrived when the call returns. A copy from pageable memory to the device has read that
// memory, but a stream that does not wait for the copy's stream may run ahead of it.
static bool arrives_before_return(const void *to) { return !is_device_data(to); }

static cudaError_t copy_and_wait(const Copy &c) {
    cudaError_t error = copy(c, nullptr);
    if (arrives_before_return(c.to.data) || in_pinned_arena(c.from.data)) { wait_for_stream(nullptr); }
    return error;
}
static cudaError_t copy_async(const Copy &c, cudaStream_t stream) {
    cudaError_t error = copy(c, stream);
    bool pageable = !is_tracked(c.to.data) || !is_tracked(c.from.data);
    if (pageable && arrives_before_return(c.to.data)) { wait_for_stream(stream); }
    return error;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, const char *file, int line) {
    return copy_and_wait(copy_of(to, bytes, from, bytes, bytes, 1, kind, "cudaMemcpy", {file, line}));
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream,
                            const char *file, int line) {
    return copy_async(copy_of(to, bytes, from, bytes, bytes, 1, kind, "cudaMemcpyAsync", {file, line}), stream);
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind, const char *file, int line) {
    return copy_and_wait(copy_of(to, to_pitch, from, from_pitch, width, height, kind, "cudaMemcpy2D", {file, line}));
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream, const char *file,
                              int line) {
    Copy c = copy_of(to, to_pitch, from, from_pitch, width, height, kind, "cudaMemcpy2DAsync", {file, line});
    return copy_async(c, stream);
}
cudaError_t cudaMemset(void *to, int value, size_t bytes, const char *file, int line) {
    cudaError_t error = fill({static_cast<char *>(to), 0}, value, bytes, 1, nullptr, "cudaMemset", {file, line});
    if (in_pinned_arena(to)) { wait_for_stream(nullptr); } // for device memory it is asynchronous
    return error;
}
cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height, const char *file, int line) {
    return fill({static_cast<char *>(to), pitch}, value, width, height, nullptr, "cudaMemset2D", {file, line});
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream, const char *file, int line) {
    return fill({static_cast<char *>(to), 0}, value, bytes, 1, stream, "cudaMemsetAsync", {file, line});
}

// Memory in the order of a stream. To operations that are not ordered after it, the allocation is a write; a release is
// a write that must be ordered after all accesses.
cudaError_t cudaMallocAsync(Out pointer, size_t bytes, cudaStream_t stream, const char *file, int line) {
    cudaError_t error = cudaMalloc(pointer, bytes, file, line);
    if (error != cudaSuccess || *pointer == nullptr) { return error; }
    op_begin(stream, "cudaMallocAsync", file, line);
    op_scratch(*pointer, bytes);
    set_initialised(*pointer, bytes, false);
    op_end();
    return cudaSuccess;
}
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream, const char *file, int line) {
    Allocation *allocation = device_heap().find_begin(pointer);
    if (allocation == nullptr) { return cudaFree(pointer, file, line); } // reports all but a null pointer
    op_begin(stream, "cudaFreeAsync", file, line);
    op_scratch(pointer, allocation->bytes);
    op_end();
    device_heap().release(allocation);
    return cudaSuccess;
}
