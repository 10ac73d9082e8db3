// The inclusive scan of a block with two buffers in dynamic shared memory: log n steps, n log n additions.
#include "textbook.h"

__global__ void scan(int *out, const int *in, int n) {
    extern __shared__ int buffers[]; // (2, n)
    int t = threadIdx.x, from = 0, to = 1;
    buffers[t] = in[t];
    __syncthreads();
    for (int offset = 1; offset < n; offset *= 2) {
        int left = t >= offset ? buffers[from * n + t - offset] : 0;
        buffers[to * n + t] = buffers[from * n + t] + left;
        __syncthreads();
        from = to, to = 1 - to;
    }
    out[t] = buffers[from * n + t];
}

int main() {
    const int n = 300;
    std::vector<int> x(n);
    for (int i = 0; i < n; i++) { x[i] = i * 7 % 13 - 5; }
    int *out, sum = 0;
    must(cudaMalloc(&out, n * sizeof(int)));
    scan<<<1, n, 2 * n * sizeof(int)>>>(out, on_device(x), n);
    std::vector<int> got = on_host(out, n);
    for (int i = 0; i < n; i++) {
        sum += x[i];
        compare("inclusive sum", i, got[i], sum, 0.0);
    }
    return 0;
}
