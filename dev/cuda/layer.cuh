// A layer as a ladder sees it: what every version must compute, and the least time that a GPU needs for it.
#ifndef LAYER_CUH
#define LAYER_CUH

#include <algorithm>
#include <functional>

#include "dev/test/layers/gpu_test.h"
#include "llmc/model/gpu_peak.h"

#define LADDER_GPU "h100" // the GPU of the emulator's bounds

// The layer at GPT-2's shape, which is too large for the emulator. Its counts follow from those of small problems. Each
// count of a kernel is a * size 0 + b * size 1 + ... : a kernel works tile by tile and step by step within a tile, so
// two sizes are the outputs and the terms of their sums. As many problems as there are sizes give a, b, ...
struct RealShape {
    std::string name;                       // with its sizes; "": the layer has no such bound
    std::vector<std::vector<double>> sizes; // of problem 0, which the row shows, of the others, and at this shape
    double bytes, flops;                    // as in Layer
    bool tiles_share_inputs;                // memory sends an input once, though many tiles read it
    std::function<void(int)> choose;        // lets the versions run on a problem
};

// The real shape of a layer without tiles, whose counts grow with its rows. Problem 1 has half the rows of problem 0.
// columns: how many times as wide a row is at this shape.
static inline RealShape rows_real_shape(const std::string &name, double rows, double real_rows, double bytes,
                                        const std::function<void(int)> &choose, double columns = 1.0) {
    return {name, {{rows, 1.0}, {rows / 2.0, 1.0}, {real_rows * columns, columns}}, bytes, 0.0, false, choose};
}

struct Layer {
    std::string name;                  // with its sizes: "layernorm forward, 64 x 768"
    double bytes;                      // at least: reads each input once and writes each output once
    double flops;                      // of products for tensor cores; 0: there are none
    std::function<void()> clear;       // fills the outputs with NaN, or with the values that the layer adds to
    std::function<void(Test *)> check; // compares the outputs with the CPU's
    RealShape real = {};
};

struct Column {
    const char *name;
    int width;
    bool always; // false: only with --all-columns
};

// A row of a table: a cell for each column but the first and the last, and the seconds that the last one compares.
struct Row {
    std::vector<std::string> cells;
    double seconds;
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

// Returns a cell of a table. It is empty where there was nothing to count.
static inline std::string ladder_cell(const char *format_of_value, double value, bool is_there) {
    char text[64];
    snprintf(text, sizeof(text), format_of_value, value);
    return is_there ? text : "";
}

#endif // LAYER_CUH
