// What a test may ask of the emulator. Everything else that a .cu file needs is in cuda_runtime.h.
#ifndef EMU_EMU_H
#define EMU_EMU_H

#include <stdint.h>
#include <string>
#include <vector>

namespace emu {

// Sets the order in which blocks, the warps of a block and the lanes of a warp run: "forward", "reversed" or
// "random:SEED". The environment variable EMU_SCHEDULE sets the order at the start. A correct kernel gives equal bits
// in all orders.
void set_schedule(const char *schedule);

// Counts the calls of cudaMalloc, cudaMallocHost and cudaHostAlloc so far. Code that must not allocate leaves the
// number unchanged.
int64_t allocation_count();

// Counts how often the host has waited for the device so far: cudaStreamSynchronize, cudaDeviceSynchronize, copies by
// cudaMemcpy, asynchronous copies from or to memory that is not pinned, cudaFree. Not counted: cudaEventSynchronize.
int64_t synchronization_count();

// ---- The meter: what a profiler of a GPU would count (README.md, "The meter") ----

// Loads or stores of device memory. A request is one instruction of a warp. A sector is 32 aligned bytes.
struct MemoryCounts {
    uint64_t requests;
    uint64_t lanes;   // threads that took part
    uint64_t aligned; // requests whose lowest address is a multiple of 128
    uint64_t sectors; // of each request
    uint64_t bytes;   // different bytes of each request: a byte that two lanes read counts once
    // Different bytes and sectors of a whole launch: what a perfect cache would move.
    uint64_t unique_bytes, unique_sectors;
};

// Loads or stores of shared memory. A wavefront serves each of the 32 banks once. An access of 8 bytes a lane needs 2
// of them, one of 16 bytes needs 4. More are conflicts.
struct SharedCounts {
    uint64_t requests, lanes, wavefronts, conflicts;
};

struct AtomicCounts {
    uint64_t requests, lanes;
    uint64_t addresses; // different ones of each request; lanes - addresses had to wait for another lane
    uint64_t hottest;   // most lanes at one address in a launch, summed over launches
};

// The counts of a kernel, summed over its launches.
struct Meter {
    uint64_t launches, blocks, warps, threads;
    MemoryCounts loads, stores;
    SharedCounts shared_loads, shared_stores;
    AtomicCounts atomics, shared_atomics;
    uint64_t shuffles, votes, warp_syncs; // of a warp
    uint64_t barriers;                    // of a block
    uint64_t async_bytes;                 // of cp.async
    uint64_t tensor_flops;
    uint64_t steps, step_lanes; // basic blocks that warps have run, and the lanes that took part: 32 of 32 at best
    uint64_t flops;             // additions, subtractions, multiplications, divisions, square roots
    uint64_t functions;         // calls of expf, tanhf and their kind
};

// A call of a library, of cudaMemcpy or of cudaMemset, summed over calls.
struct MeterLibrary {
    uint64_t calls, loaded_bytes, stored_bytes;
    double flops;
};

// Starts with all counts at zero, as EMU_METER=1 does at the program's beginning.
void meter_start();
void meter_stop();
// The counts of the kernels of this name, with any template arguments. A null pointer stands for all kernels.
Meter meter_of(const char *kernel);
MeterLibrary meter_of_library(const char *function);
// The names of what was counted, for meter_of and meter_of_library.
std::vector<std::string> meter_kernels();
std::vector<std::string> meter_libraries();

// The least time that a GPU needs for counts: the longest of its parts. gpu: a short name of llmc/model/gpu_peak.h.
struct MeterBound {
    double seconds;
    const char *part; // "launch", "memory", "L2", "shared", "fp32", "functions", "tensor", "atomics"
};
MeterBound meter_bound(const Meter &meter, const char *gpu);

} // namespace emu

#endif // EMU_EMU_H
