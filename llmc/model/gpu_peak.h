// The figures of NVIDIA's datasheets, by the name that the CUDA runtime gives a device and by a short name. The peak
// arithmetic is the denominator of model-FLOPs utilisation. Rates are dense: a datasheet's figure "with sparsity" is
// twice the figure here.
//
// Some cards are missing, and so are slices of a card (MIG). An unknown name gives 0. The caller then shows no
// utilisation rather than a wrong one.
#ifndef LLMC_GPU_PEAK_H
#define LLMC_GPU_PEAK_H

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef enum {
    GPU_BF16, // tensor cores, sums in fp32
    GPU_TF32, // tensor cores on fp32 data
    GPU_FP32, // no tensor cores
    GPU_FP8,  // tensor cores, sums in fp32; 0: the card has none for 8 bits
    NUM_GPU_PRECISIONS
} GpuPrecision;

typedef struct {
    const char *option;                   // a short name; "": it has none
    const char *name;                     // of the device, without "NVIDIA "; a '*' stands for any text
    double teraflops[NUM_GPU_PRECISIONS]; // bf16, tf32, fp32, fp8
    // The rest is 0 where there is no short name.
    double gigabytes_per_second;      // of its memory
    double link_gigabytes_per_second; // NVLink, else PCIe, in one direction
    int multiprocessors;
    int capability; // compute capability, 90 for 9.0
    int gib;        // of memory, as the CUDA runtime reports it, in whole GiB
    int l2_mib;     // MiB of L2 cache
} GpuPeak;

// Consumer cards: their tensor cores run at half the rate when they sum in fp32, as training must. The figures
// give this rate. Sources: the datasheets of the A100 (SXM, 40 GB 2020, 80 GB 2022), H100 (SXM, PCIe, NVL, 2023; SXM
// also the Hopper whitepaper: 989.4 and 494.7), H200 (2024), HGX B200 (2025, an eighth of a board of eight), L4, L40
// and L40S (2023), A10 and RTX A6000 (2021); the whitepapers of the GA102 (2021), the Ada GPUs (2023) and the RTX
// Blackwell GPUs (2025).
//  option, device, bf16, tf32, fp32, fp8, GB/s, link GB/s, multiprocessors, compute capability, GiB, MiB of L2
#define GPU_PLANNED(X)                                                                                                 \
    X("a100-40gb", "A100*-40GB", 312.0, 156.0, 19.5, 0.0, 1555, 300, 108, 80, 39, 40)                                  \
    X("a100", "A100*", 312.0, 156.0, 19.5, 0.0, 2039, 300, 108, 80, 79, 40)                                            \
    X("h100", "H100 80GB HBM3*", 989.4, 494.7, 66.9, 1978.9, 3350, 450, 132, 90, 79, 50)                               \
    X("h100-pcie", "H100 PCIe", 756.0, 378.0, 51.0, 1513.0, 2000, 64, 114, 90, 79, 50)                                 \
    X("h100-nvl", "H100 NVL", 835.5, 417.5, 60.0, 1671.0, 3900, 64, 132, 90, 93, 50)                                   \
    X("h200", "H200", 989.4, 494.7, 66.9, 1978.9, 4800, 450, 132, 90, 139, 50)                                         \
    X("b200", "B200", 2250.0, 1125.0, 75.0, 4500.0, 8000, 900, 148, 100, 178, 126)                                     \
    X("l4", "L4", 121.0, 60.0, 30.3, 242.0, 300, 32, 58, 89, 22, 48)                                                   \
    X("l40", "L40", 181.0, 90.5, 90.5, 362.0, 864, 32, 142, 89, 44, 96)                                                \
    X("l40s", "L40S", 362.0, 183.0, 91.6, 733.0, 864, 32, 142, 89, 44, 96)                                             \
    X("a10", "A10", 125.0, 62.5, 31.2, 0.0, 600, 32, 72, 86, 22, 6)                                                    \
    X("a6000", "RTX A6000", 154.8, 77.4, 38.7, 0.0, 768, 32, 84, 86, 47, 6)                                            \
    X("3090", "GeForce RTX 3090", 71.0, 35.6, 35.6, 0.0, 936, 32, 82, 86, 23, 6)                                       \
    X("4090", "GeForce RTX 4090", 165.2, 82.6, 82.6, 330.3, 1008, 32, 128, 89, 23, 72)                                 \
    X("5090", "GeForce RTX 5090", 209.5, 104.8, 104.8, 419.0, 1792, 64, 170, 120, 31, 96)

// Cards without a short name: device, bf16, tf32, fp32, fp8. Sources: the datasheets of the A40 and A30 (2020
// to 2022), GH200 and H200 NVL (2024), HGX B300 and GB200 NVL72 (2025, a 72nd of a rack) and RTX 6000 Ada (2023), and
// the whitepapers above.
#define GPU_OTHERS(X)                                                                                                  \
    X("A40", 149.7, 74.8, 37.4, 0.0)                                                                                   \
    X("A30", 165.0, 82.0, 10.3, 0.0)                                                                                   \
    X("H100 SXM*", 989.4, 494.7, 66.9, 1978.9)                                                                         \
    X("GH200*", 989.4, 494.7, 66.9, 1978.9)                                                                            \
    X("H200 NVL", 835.5, 417.5, 60.0, 1671.0)                                                                          \
    X("B300*", 2250.0, 1125.0, 75.0, 4500.0)                                                                           \
    X("GB200", 2500.0, 1250.0, 80.0, 5000.0)                                                                           \
    X("RTX 6000 Ada Generation", 364.2, 182.1, 91.1, 728.5)                                                            \
    X("GeForce RTX 3080", 59.5, 29.8, 29.8, 0.0)                                                                       \
    X("GeForce RTX 3090 Ti", 80.0, 40.0, 40.0, 0.0)                                                                    \
    X("GeForce RTX 4080", 97.5, 48.7, 48.7, 194.9)                                                                     \
    X("GeForce RTX 5080", 112.6, 56.3, 56.3, 225.1)

#define GPU_PLANNED_ROW(option, name, bf16, tf32, fp32, fp8, ...) {option, name, {bf16, tf32, fp32, fp8}, __VA_ARGS__},
#define GPU_OTHER_ROW(name, ...) {"", name, {__VA_ARGS__}, 0, 0, 0, 0, 0, 0},
static const GpuPeak gpu_peaks[] = {GPU_PLANNED(GPU_PLANNED_ROW) GPU_OTHERS(GPU_OTHER_ROW)};
#define NUM_GPU_PEAKS (sizeof(gpu_peaks) / sizeof(gpu_peaks[0]))

// The short names: " a100 h100 ...".
#define GPU_OPTION_WORD(option, ...) " " option
#define GPU_OPTION_NAMES GPU_PLANNED(GPU_OPTION_WORD)

// Writes a card's name as people shorten it: small letters and digits, without the brands before it and the GB behind.
static inline void gpu_name_short(char *text, size_t size, const char *name) {
    size_t n = 0;
    text[0] = '\0';
    for (; *name != '\0' && n + 1 < size; name++) {
        if (isalnum((unsigned char)*name) || *name == '*') { text[n++] = (char)tolower((unsigned char)*name); }
        text[n] = '\0';
        if (strcmp(text, "nvidia") == 0 || strcmp(text, "geforce") == 0) { n = 0; }
    }
    if (n > 2 && strcmp(text + n - 2, "gb") == 0) { n -= 2; }
    text[n] = '\0';
}

static inline bool gpu_peak_matches(const char *pattern, const char *name) {
    char want[64], got[64];
    gpu_name_short(want, sizeof(want), pattern);
    gpu_name_short(got, sizeof(got), name);
    const char *star = strchr(want, '*');
    if (star == NULL) { return want[0] != '\0' && strcmp(want, got) == 0; }
    size_t before = (size_t)(star - want), after = strlen(star + 1), n = strlen(got);
    return n >= before + after && strncmp(want, got, before) == 0 && strcmp(star + 1, got + n - after) == 0;
}

// The card with this name in cudaDeviceProp; NULL: not known.
static inline const GpuPeak *gpu_peak_of_device(const char *name) {
    if (strstr(name, "MIG") != NULL) { return NULL; } // a part of the card has a part of its rate
    for (size_t i = 0; i < NUM_GPU_PEAKS; i++) {
        if (gpu_peak_matches(gpu_peaks[i].name, name)) { return &gpu_peaks[i]; }
    }
    return NULL;
}

// TFLOP/s of the device with this name; 0: not known.
static inline double gpu_peak_tflops(const char *device_name, GpuPrecision precision) {
    const GpuPeak *peak = gpu_peak_of_device(device_name);
    return peak != NULL ? peak->teraflops[precision] : 0.0;
}

// The card with this short name or device's name. NULL: not all figures of this card are here.
static inline const GpuPeak *gpu_peak_of_option(const char *name) {
    for (size_t i = 0; i < NUM_GPU_PEAKS; i++) {
        if (gpu_peak_matches(gpu_peaks[i].option, name)) { return &gpu_peaks[i]; }
    }
    const GpuPeak *peak = gpu_peak_of_device(name);
    return peak != NULL && peak->option[0] != '\0' ? peak : NULL;
}

#endif // LLMC_GPU_PEAK_H
