// The figures of NVIDIA's datasheets, by the name that the CUDA runtime gives a device. The peak arithmetic is the
// denominator of model-FLOPs utilisation. Benchmarks and the emulator's meter read the other figures. Rates are dense:
// a datasheet's figure "with sparsity" is twice the figure here. A card that is missing, and a slice of a card (MIG),
// has no row. The caller then shows no utilisation rather than a wrong one.
#ifndef LLMC_GPU_PEAK_H
#define LLMC_GPU_PEAK_H

#include <fnmatch.h>
#include <stddef.h>
#include <string.h>

// Tensor cores on bf16, on fp32 data (TF32) and on 8 bits sum in fp32. GPU_FP32 is without tensor cores.
typedef enum { GPU_BF16, GPU_TF32, GPU_FP32, GPU_FP8, NUM_GPU_PRECISIONS } GpuPrecision;

typedef struct {
    const char *option;                   // a short name; "": the figures after the peaks are not here
    const char *name;                     // of the device, without "NVIDIA "; a '*' stands for any text
    double teraflops[NUM_GPU_PRECISIONS]; // fp8 0: it has no 8-bit multiplies
    double gigabytes_per_second;          // of its memory
    double link_gigabytes_per_second;     // NVLink, else PCIe, in one direction
    int multiprocessors;
    int capability; // compute capability, 90 for 9.0
} GpuPeak;

// Consumer cards: their tensor cores run at half the rate when they sum in fp32, as training must. The figures
// give this rate. Sources: the datasheets of the A100 (SXM, 40 GB 2020, 80 GB 2022), H100 (SXM, PCIe, NVL, 2023; SXM
// also the Hopper whitepaper: 989.4 and 494.7), H200 and GH200 (2024), HGX B200 and B300 (2025, an eighth of a board of
// eight), GB200 NVL72 (2025, a 72nd of a rack), L4, L40, L40S and RTX 6000 Ada (2023), A10, A30, A40 and RTX A6000
// (2020 to 2022); the whitepapers of the GA102 (2021), the Ada GPUs (2023) and the RTX Blackwell GPUs (2025).
static const GpuPeak gpu_peaks[] = {
    // option, device, {bf16, tf32, fp32, fp8}, GB/s, link GB/s, multiprocessors, compute capability
    {"a100-40gb", "A100*-40GB", {312.0, 156.0, 19.5, 0.0}, 1555, 300, 108, 80},
    {"a100", "A100*", {312.0, 156.0, 19.5, 0.0}, 2039, 300, 108, 80},
    {"h100", "H100 80GB HBM3*", {989.4, 494.7, 66.9, 1978.9}, 3350, 450, 132, 90},
    {"h100-pcie", "H100 PCIe", {756.0, 378.0, 51.0, 1513.0}, 2000, 64, 114, 90},
    {"h100-nvl", "H100 NVL", {835.5, 417.5, 60.0, 1671.0}, 3900, 64, 132, 90},
    {"h200", "H200", {989.4, 494.7, 66.9, 1978.9}, 4800, 450, 132, 90},
    {"b200", "B200", {2250.0, 1125.0, 75.0, 4500.0}, 8000, 900, 148, 100},
    {"l4", "L4", {121.0, 60.0, 30.3, 242.0}, 300, 32, 58, 89},
    {"l40", "L40", {181.0, 90.5, 90.5, 362.0}, 864, 32, 142, 89},
    {"l40s", "L40S", {362.0, 183.0, 91.6, 733.0}, 864, 32, 142, 89},
    {"a10", "A10", {125.0, 62.5, 31.2, 0.0}, 600, 32, 72, 86},
    {"a6000", "RTX A6000", {154.8, 77.4, 38.7, 0.0}, 768, 32, 84, 86},
    {"3090", "GeForce RTX 3090", {71.0, 35.6, 35.6, 0.0}, 936, 32, 82, 86},
    {"4090", "GeForce RTX 4090", {165.2, 82.6, 82.6, 330.3}, 1008, 32, 128, 89},
    {"5090", "GeForce RTX 5090", {209.5, 104.8, 104.8, 419.0}, 1792, 64, 170, 120},
    {"", "A40", {149.7, 74.8, 37.4, 0.0}, 0, 0, 0, 0},
    {"", "A30", {165.0, 82.0, 10.3, 0.0}, 0, 0, 0, 0},
    {"", "GH200*", {989.4, 494.7, 66.9, 1978.9}, 0, 0, 0, 0},
    {"", "H200 NVL", {835.5, 417.5, 60.0, 1671.0}, 0, 0, 0, 0},
    {"", "B300*", {2250.0, 1125.0, 75.0, 4500.0}, 0, 0, 0, 0},
    {"", "GB200", {2500.0, 1250.0, 80.0, 5000.0}, 0, 0, 0, 0},
    {"", "RTX 6000 Ada Generation", {364.2, 182.1, 91.1, 728.5}, 0, 0, 0, 0},
    {"", "GeForce RTX 3080", {59.5, 29.8, 29.8, 0.0}, 0, 0, 0, 0},
    {"", "GeForce RTX 3090 Ti", {80.0, 40.0, 40.0, 0.0}, 0, 0, 0, 0},
    {"", "GeForce RTX 4080", {97.5, 48.7, 48.7, 194.9}, 0, 0, 0, 0},
    {"", "GeForce RTX 5080", {112.6, 56.3, 56.3, 225.1}, 0, 0, 0, 0},
};
#define NUM_GPU_PEAKS (sizeof(gpu_peaks) / sizeof(gpu_peaks[0]))

// Returns the card with this name in cudaDeviceProp, or with this short name. NULL: it is not known.
static inline const GpuPeak *gpu_peak_of_device(const char *name) {
    if (strstr(name, "MIG") != NULL || name[0] == '\0') { return NULL; } // a part of a card has a part of its rate
    if (strncmp(name, "NVIDIA ", 7) == 0) { name += 7; }                 // older drivers leave it out
    for (size_t i = 0; i < NUM_GPU_PEAKS; i++) {
        const GpuPeak *peak = &gpu_peaks[i];
        if (strcmp(peak->option, name) == 0 || fnmatch(peak->name, name, 0) == 0) { return peak; }
    }
    return NULL;
}

// Returns the TFLOP/s of the device with this name. 0: it is not known.
static inline double gpu_peak_tflops(const char *device_name, GpuPrecision precision) {
    const GpuPeak *peak = gpu_peak_of_device(device_name);
    return peak != NULL ? peak->teraflops[precision] : 0.0;
}

#endif // LLMC_GPU_PEAK_H
