// What a test may ask of the emulator. Everything else that a .cu file needs is in cuda_runtime.h.
#ifndef EMU_EMU_H
#define EMU_EMU_H

#include <stdint.h>

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

// Counts kernel launches so far.
int64_t launch_count();

} // namespace emu

#endif // EMU_EMU_H
