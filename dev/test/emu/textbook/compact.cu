// Stream compaction: keeps the positive numbers. Lanes count with a ballot, warps take room with one atomic.
#include "textbook.h"

#include <algorithm>

__global__ void keep_positive(float *out, int *count, const float *in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, begin = 0;
    float x = i < n ? in[i] : 0.0f;
    unsigned keep = __ballot_sync(0xffffffffu, x > 0.0f), before = keep & ((1u << lane) - 1);
    if (lane == 0) { begin = atomicAdd(count, __popc(keep)); }
    begin = __shfl_sync(0xffffffffu, begin, 0);
    if (x > 0.0f) { out[begin + __popc(before)] = x; }
}

int main() {
    const int n = 3000;
    std::vector<float> x = some_numbers(n), want;
    for (float value : x) {
        if (value > 0.0f) { want.push_back(value); }
    }
    float *out;
    int *count;
    must(cudaMalloc(&out, n * sizeof(float)));
    must(cudaMalloc(&count, sizeof(int)));
    must(cudaMemset(count, 0, sizeof(int)));
    keep_positive<<<(n + 127) / 128, 128>>>(out, count, on_device(x), n);
    int kept = on_host(count, 1)[0];
    compare("count", 0, kept, double(want.size()), 0.0);
    std::vector<float> got = on_host(out, kept);
    std::sort(got.begin(), got.end()); // the warps come in any order
    std::sort(want.begin(), want.end());
    for (int i = 0; i < kept; i++) { compare("kept", i, got[i], want[i], 0.0); }
    return 0;
}
