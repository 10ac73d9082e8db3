// Bitonic sort: each launch compares the pairs of one distance.
#include "textbook.h"

#include <algorithm>

__global__ void compare_pairs(int *data, int distance, int run) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, other = i ^ distance;
    if (other < i) { return; } // the lower one does the work
    bool up = (i & run) == 0;
    int a = data[i], b = data[other];
    if ((a > b) == up) { data[i] = b, data[other] = a; }
}

int main() {
    const int n = 512;
    std::vector<int> x(n);
    for (int i = 0; i < n; i++) { x[i] = i * 7919 % 1009 - 500; }
    int *data = on_device(x);
    for (int run = 2; run <= n; run *= 2) {
        for (int distance = run / 2; distance > 0; distance /= 2) {
            compare_pairs<<<n / 128, 128>>>(data, distance, run);
        }
    }
    must(cudaDeviceSynchronize());
    std::vector<int> got = on_host(data, n);
    std::sort(x.begin(), x.end());
    for (int i = 0; i < n; i++) { compare("sorted", i, got[i], x[i], 0.0); }
    return 0;
}
