// Hands out device, pinned and shared memory from arenas: ranges of addresses that are reserved once. Addresses of
// freed memory are never used again, so a stale pointer is always recognised.
#include "runtime.h"
#include "memory.h"
#include "streams.h"
#include "include/emu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#if EMU_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, bytes) ((void)(begin), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(begin, bytes) ((void)(begin), (void)(bytes))
#endif

namespace emu {

static std::atomic<int64_t> allocations;
static std::atomic<uint64_t> version{1};
uint64_t allocations_version() { return version.load(std::memory_order_relaxed); }
int64_t allocation_count() { return allocations.load(); }

size_t device_capacity() {
    static const size_t bytes = [] {
        const char *text = getenv("EMU_MEMORY");
        long long mib = text ? atoll(text) : 4096;
        return static_cast<size_t>(mib < 1 ? 1 : mib) << 20;
    }();
    return bytes;
}

void reserve_arenas() {
    static const bool done = [] {
        void *want = reinterpret_cast<void *>(ARENA);
        void *got =
            mmap(want, ARENA_SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (got != want) { report({nullptr, 0}, "cannot reserve the addresses of device memory", "  see ulimit -v"); }
        reserve_shadows();
        catch_faults();
        return true;
    }();
    (void)done;
}

char *shared_window(int worker) {
    reserve_arenas();
    char *window = reinterpret_cast<char *>(SHARED + static_cast<uintptr_t>(worker) * SHARED_WINDOW);
    if (mprotect(window, SHARED_WINDOW, PROT_READ | PROT_WRITE) != 0) {
        report({nullptr, 0}, "cannot map shared memory");
    }
    return window;
}

// Tells AddressSanitizer the bounds, because it knows none in the arenas.
void set_accessible(const void *pointer, size_t bytes, bool yes) {
    if (yes) { ASAN_UNPOISON_MEMORY_REGION(pointer, bytes); }
    if (!yes) { ASAN_POISON_MEMORY_REGION(pointer, bytes); }
}

// ---- Allocations ----

Heap &device_heap() {
    static Heap *heap = new Heap{ARENA, DEVICE_SPAN};
    return *heap;
}
Heap &pinned_heap() {
    static Heap *heap = new Heap{PINNED, PINNED_SPAN};
    return *heap;
}

static size_t page_bytes() {
    static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

// Large allocations are multiples of this and have huge pages, where the system gives some: each launch protects device
// memory twice, and small pages would take a tenth of a short run.
constexpr size_t HUGE_PAGE = 2 << 20;

static size_t page_of(size_t bytes) { return bytes < HUGE_PAGE ? page_bytes() : HUGE_PAGE; }
static size_t whole_pages(size_t bytes) { return (bytes + page_of(bytes) - 1) / page_of(bytes) * page_of(bytes); }

// Makes new pages between pages that stay inaccessible. Where nothing checks reads of what was never written, they are
// filled with 0xff: NaN in every float format.
void *Heap::allocate(size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex);
    reserve_arenas();
    size_t pages = whole_pages(bytes), align = page_of(bytes);
    uintptr_t begin = (base + used + page_bytes() + align - 1) / align * align;
    if (begin + pages + page_bytes() > base + span) { return nullptr; }
    void *memory = reinterpret_cast<void *>(begin);
    if (mprotect(memory, pages, PROT_READ | PROT_WRITE) != 0) { return nullptr; }
    madvise(memory, pages, MADV_HUGEPAGE);
    used = begin + pages - base;
    live_bytes += bytes;
    blocks[begin] = {begin, bytes, true, static_cast<int>(blocks.size())};
    live.push_back(&blocks[begin]);
    if (!access_checks) { memset(memory, 0xff, bytes); }
    set_accessible(static_cast<char *>(memory) + bytes, pages - bytes, false);
    allocations++, version++;
    return memory;
}

// Returns null if no live allocation begins at the pointer.
Allocation *Heap::find_begin(const void *pointer) {
    auto found = blocks.find(reinterpret_cast<uintptr_t>(pointer));
    return found == blocks.end() || !found->second.live ? nullptr : &found->second;
}

void Heap::release(Allocation *allocation) {
    std::lock_guard<std::mutex> guard(mutex);
    size_t pages = whole_pages(allocation->bytes);
    void *memory = reinterpret_cast<void *>(allocation->begin);
    mprotect(memory, pages, PROT_NONE);
    madvise(memory, pages, MADV_DONTNEED);
    set_initialised(memory, allocation->bytes, false);
    allocation->live = false;
    live.erase(std::find(live.begin(), live.end(), allocation));
    version++;
    live_bytes -= allocation->bytes;
}

// Returns the allocation, live or freed, that holds the address or lies nearest.
const Allocation *Heap::nearest(uintptr_t address) {
    std::lock_guard<std::mutex> guard(mutex);
    auto after = blocks.upper_bound(address);
    const Allocation *next = after == blocks.end() ? nullptr : &after->second;
    const Allocation *before = after == blocks.begin() ? nullptr : &std::prev(after)->second;
    if (!before || !next) { return before ? before : next; }
    return address - before->begin < before->bytes || address - (before->begin + before->bytes) < next->begin - address
               ? before
               : next;
}

// ---- Host code cannot touch device memory ----

static std::mutex lock_mutex;
static int unlocked;

void Heap::protect(int protection) {
    std::lock_guard<std::mutex> guard(mutex);
    for (const Allocation *a : live) {
        mprotect(reinterpret_cast<void *>(a->begin), whole_pages(a->bytes), protection);
    }
}

void unlock_device_memory() {
    std::lock_guard<std::mutex> guard(lock_mutex);
    if (unlocked++ == 0) { device_heap().protect(PROT_READ | PROT_WRITE); }
}
void lock_device_memory() {
    std::lock_guard<std::mutex> guard(lock_mutex);
    if (--unlocked == 0) { device_heap().protect(PROT_NONE); }
}

static cudaError_t allocate(Heap &heap, void **pointer, size_t bytes, size_t limit) {
    if (pointer == nullptr) { return remember_error(cudaErrorInvalidValue); }
    *pointer = nullptr;
    if (bytes == 0) { return cudaSuccess; }
    if (bytes > limit || heap.live_bytes > limit - bytes) { return remember_error(cudaErrorMemoryAllocation); }
    unlock_device_memory();
    *pointer = heap.allocate(bytes);
    lock_device_memory();
    if (*pointer && &heap == &pinned_heap()) {
        set_initialised(*pointer, bytes, true);
    } // the checks do not see the host's writes
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

bool is_managed(const void *pointer) {
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    const Allocation *a = in_pinned_arena(pointer) ? pinned_heap().nearest(address) : nullptr;
    return a != nullptr && a->managed && address - a->begin < a->bytes;
}

std::string describe_address(uintptr_t address) {
    const void *pointer = reinterpret_cast<const void *>(address);
    if (!in_device_arena(pointer) && !in_pinned_arena(pointer)) { return ""; }
    const Allocation *a = (in_device_arena(pointer) ? device_heap() : pinned_heap()).nearest(address);
    if (a == nullptr) { return "  nothing is allocated"; }
    const char *state = a->live ? "" : "freed ";
    if (address < a->begin) {
        return format("  %zu bytes before the %sallocation of %zu bytes at 0x%zx", a->begin - address, state, a->bytes,
                      a->begin);
    }
    size_t offset = address - a->begin;
    if (offset < a->bytes) {
        return format("  %zu bytes into the %sallocation of %zu bytes at 0x%zx", offset, state, a->bytes, a->begin);
    }
    return format("  %zu bytes after the end of the %sallocation of %zu bytes at 0x%zx", offset - a->bytes, state,
                  a->bytes, a->begin);
}

} // namespace emu

using namespace emu;

cudaError_t cudaMalloc(void **pointer, size_t bytes, const char *file, int line) {
    host_only("cudaMalloc", {file, line});
    use_device("cudaMalloc", {file, line});
    return allocate(device_heap(), pointer, bytes, device_capacity());
}
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned, const char *file, int line) {
    host_only("cudaHostAlloc", {file, line});
    return allocate(pinned_heap(), pointer, bytes, PINNED_SPAN / 4);
}
cudaError_t cudaMallocHost(void **pointer, size_t bytes, unsigned flags, const char *file, int line) {
    return cudaHostAlloc(pointer, bytes, flags, file, line);
}
// Host and device may access it. The host must have waited for the operations that did.
cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned, const char *file, int line) {
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
cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height, const char *file, int line) {
    constexpr size_t multiple = 512;
    *pitch = (width + multiple - 1) / multiple * multiple;
    return cudaMalloc(pointer, *pitch * height, file, line);
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
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
