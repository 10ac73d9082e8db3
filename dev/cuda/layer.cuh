// A layer as a ladder sees it: what every version must compute, and the least time that a GPU needs for it.
#ifndef LAYER_CUH
#define LAYER_CUH

#include <algorithm>
#include <functional>

#include "dev/test/layers/gpu_test.h"
#include "llmc/model/gpu_peak.h"

#define LADDER_GPU "h100" // the GPU of the emulator's bounds

struct Layer {
    std::string name;                  // with its sizes: "layernorm forward, 64 x 768"
    double bytes;                      // at least: reads each input once and writes each output once
    double flops;                      // of products for tensor cores; 0: there are none
    std::function<void()> clear;       // fills the outputs with NaN, or with the values that the layer adds to
    std::function<void(Test *)> check; // compares the outputs with the CPU's
};

// Returns a size: a small one for the emulator, the size of a training step for a GPU.
static inline int ladder_size(int emulated, int on_gpu) {
#ifdef GPT2_EMU
    (void)on_gpu;
    return emulated;
#else
    (void)emulated;
    return on_gpu;
#endif
}

static inline const GpuPeak *ladder_peak(void) {
#ifdef GPT2_EMU
    return gpu_peak_of_device(LADDER_GPU);
#else
    struct cudaDeviceProp device;
    cuda_check(cudaGetDeviceProperties(&device, 0));
    return gpu_peak_of_device(device.name);
#endif
}

// Returns the seconds in which the GPU can move the bytes and compute the products. 0: its figures are not known.
static inline double ladder_ideal(double bytes, double flops) {
    const GpuPeak *peak = ladder_peak();
    if (peak == NULL || peak->gigabytes_per_second == 0.0) { return 0.0; }
    double rate = peak->teraflops[PRECISION_IS_FP32 ? GPU_FP32 : GPU_BF16];
    return fmax(1e-9 * bytes / peak->gigabytes_per_second, 1e-12 * flops / rate);
}

// Prints a cell of a table, `width` columns wide. The cell is empty where there was nothing to count.
static inline void ladder_cell(int width, const char *format, double value, bool is_there) {
    char text[64];
    snprintf(text, sizeof(text), format, value);
    printf(" %*s |", width, is_there ? text : "");
}

#endif // LAYER_CUH
