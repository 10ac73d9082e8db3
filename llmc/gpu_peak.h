// What NVIDIA's datasheets promise of a GPU's arithmetic, by the name that the CUDA runtime gives the device: the
// denominator of model-FLOPs utilisation. Dense rates: a datasheet's figure "with sparsity" is twice the one here.
//
// Cards are missing whose figures nobody has looked up, and slices of a card (MIG): an unknown name gives 0, and the
// caller then shows no utilisation rather than a wrong one.
#ifndef LLMC_GPU_PEAK_H
#define LLMC_GPU_PEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef enum {
    GPU_BF16, // tensor cores, sums in fp32
    GPU_TF32, // tensor cores on fp32 data
    GPU_FP32, // no tensor cores
    NUM_GPU_PRECISIONS
} GpuPrecision;

typedef struct {
    const char *name;                     // without "NVIDIA "; a '*' at the end stands for any rest
    double teraflops[NUM_GPU_PRECISIONS]; // bf16, tf32, fp32
} GpuPeak;

// Consumer cards: their tensor cores run at half the rate when they sum in fp32, as training must; the figures are
// those.
static const GpuPeak gpu_peaks[] = {
    // A100, A40, A30, A10, RTX A6000 datasheets, 2020 to 2022
    {"A100*", {312.0, 156.0, 19.5}},
    {"A40", {149.7, 74.8, 37.4}},
    {"A30", {165.0, 82.0, 10.3}},
    {"A10", {125.0, 62.5, 31.2}},
    {"RTX A6000", {154.8, 77.4, 38.7}},
    // H100 datasheet (SXM, PCIe, NVL), 2023; SXM also in the Hopper whitepaper: 989.4 and 494.7
    {"H100 80GB HBM3*", {989.4, 494.7, 66.9}},
    {"H100 SXM*", {989.4, 494.7, 66.9}},
    {"H100 PCIe", {756.0, 378.0, 51.0}},
    {"H100 NVL", {835.5, 417.5, 60.0}},
    // GH200 and H200 datasheets (SXM, NVL), 2024: the arithmetic of the H100
    {"GH200*", {989.4, 494.7, 66.9}},
    {"H200", {989.4, 494.7, 66.9}},
    {"H200 NVL", {835.5, 417.5, 60.0}},
    // HGX B200 and HGX B300 datasheets, 2025: an eighth of a board of eight
    {"B200", {2250.0, 1125.0, 75.0}},
    {"B300*", {2250.0, 1125.0, 75.0}},
    // GB200 NVL72 datasheet, 2025: a 72nd of a rack
    {"GB200", {2500.0, 1250.0, 80.0}},
    // L4, L40 and L40S datasheets, 2023; RTX 6000 Ada datasheet, 2023
    {"L4", {121.0, 60.0, 30.3}},
    {"L40", {181.0, 90.5, 90.5}},
    {"L40S", {362.0, 183.0, 91.6}},
    {"RTX 6000 Ada Generation", {364.2, 182.1, 91.1}},
    // Whitepaper of the GA102 (Ampere), 2021
    {"GeForce RTX 3080", {59.5, 29.8, 29.8}},
    {"GeForce RTX 3090", {71.0, 35.6, 35.6}},
    {"GeForce RTX 3090 Ti", {80.0, 40.0, 40.0}},
    // Whitepaper of the Ada GPUs, 2023
    {"GeForce RTX 4080", {97.5, 48.7, 48.7}},
    {"GeForce RTX 4090", {165.2, 82.6, 82.6}},
    // Whitepaper of the RTX Blackwell GPUs, 2025
    {"GeForce RTX 5080", {112.6, 56.3, 56.3}},
    {"GeForce RTX 5090", {209.5, 104.8, 104.8}},
};

static inline bool gpu_peak_matches(const char *pattern, const char *name) {
    size_t n = strlen(pattern);
    if (n > 0 && pattern[n - 1] == '*') { return strncmp(pattern, name, n - 1) == 0; }
    return strcmp(pattern, name) == 0;
}

// TFLOP/s of the device with this name in cudaDeviceProp (with or without "NVIDIA " before it); 0: not known.
static inline double gpu_peak_tflops(const char *device_name, GpuPrecision precision) {
    const char *name = strncmp(device_name, "NVIDIA ", 7) == 0 ? device_name + 7 : device_name;
    if (strstr(name, "MIG") != NULL) { return 0.0; } // a part of the card has a part of its rate
    for (size_t i = 0; i < sizeof(gpu_peaks) / sizeof(gpu_peaks[0]); i++) {
        if (gpu_peak_matches(gpu_peaks[i].name, name)) { return gpu_peaks[i].teraflops[precision]; }
    }
    return 0.0;
}

#endif // LLMC_GPU_PEAK_H
