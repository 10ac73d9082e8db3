// For the programs of this folder. They are written as textbooks write CUDA, compile with nvcc and with dev/emu/emucc,
// compare their results with a loop on the CPU, and exit with 1 and a line if one is wrong.
#ifndef TEXTBOOK_H
#define TEXTBOOK_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

static inline void must(cudaError_t error) {
    if (error == cudaSuccess) { return; }
    printf("CUDA: %s\n", cudaGetErrorString(error));
    exit(1);
}

// Passes only if |got - want| <= tolerance (1 + |want|), so a NaN fails.
static inline void compare(const char *what, int i, double got, double want, double tolerance) {
    if (fabs(got - want) <= tolerance * (1.0 + fabs(want))) { return; }
    printf("%s: element %d is %g, expected %g\n", what, i, got, want);
    exit(1);
}

// Numbers in [-1, 1).
static inline std::vector<float> some_numbers(int n, unsigned seed = 1) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float &value : x) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

template <class T> static inline T *on_device(const std::vector<T> &x) {
    T *data;
    must(cudaMalloc(&data, x.size() * sizeof(T)));
    must(cudaMemcpy(data, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
    return data;
}
template <class T> static inline std::vector<T> on_host(const T *data, int n) {
    std::vector<T> x(static_cast<size_t>(n));
    must(cudaMemcpy(x.data(), data, x.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return x;
}

#endif // TEXTBOOK_H
