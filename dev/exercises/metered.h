// What the chapters about kernels share. They run in the emulator, whose meter counts what the kernels do.
#ifndef METERED_H
#define METERED_H

#include "dev/exercises/chapter.h"
#include "dev/test/layers/gpu_test.h"

// Runs kernels, and returns what the meter has counted.
template <class Run> static emu::Meter metered(Run run) {
    emu::meter_start();
    run();
    cuda_check(cudaDeviceSynchronize());
    emu::meter_stop();
    return emu::meter_of(NULL);
}

static inline int bytes_of(const emu::MemoryCounts &counts) { return 32 * (int)counts.sectors; }

#endif // METERED_H
