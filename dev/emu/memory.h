// The tables of allocations.
#ifndef EMU_MEMORY_H
#define EMU_MEMORY_H

#include "runtime.h"

#include <map>
#include <mutex>

namespace emu {

struct Allocation {
    uintptr_t begin;
    size_t bytes;
    bool live;
    int number;
    bool managed = false; // in the heap of pinned memory, but the device owns it too
};

struct Heap {
    uintptr_t base, span;
    uintptr_t used = 0; // addresses handed out so far, in bytes
    size_t live_bytes = 0;
    std::map<uintptr_t, Allocation> blocks = {}; // by address; freed blocks stay, for the reports
    std::vector<const Allocation *> live = {};
    std::mutex mutex = {};

    void *allocate(size_t bytes);
    Allocation *find_begin(const void *pointer);
    void release(Allocation *allocation);
    void protect(int protection); // of all live blocks
    const Allocation *nearest(uintptr_t address);
};
Heap &device_heap();
Heap &pinned_heap();

void set_accessible(const void *pointer, size_t bytes, bool yes);
uint64_t allocations_version(); // changes with each allocation and release
void reserve_shadows();
const Operation *current_operation();
bool current_operation_copies(); // the current operation copies uninitialised bytes without reading their values
void operation_may_copy_uninitialised(); // marks the current operation so

std::string describe_address(uintptr_t address);
bool is_managed(const void *pointer);
bool is_device_data(const void *pointer); // allocated, or a __device__ or __constant__ variable
void check_free(uintptr_t begin, size_t bytes, const char *function, Source at);
void wait_for_stream(cudaStream_t stream);
cudaError_t remember_error(cudaError_t error); // for cudaGetLastError

} // namespace emu

#endif // EMU_MEMORY_H
