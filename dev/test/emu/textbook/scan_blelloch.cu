// The exclusive scan of an array of any length: up and down a tree in each block, scan of the blocks' sums, and a third
// kernel that adds them.
#include "textbook.h"

const int BLOCK = 64, ITEMS = 2 * BLOCK; // a thread holds two numbers

__global__ void scan_blocks(int *out, int *sums, const int *in, int n) {
    __shared__ int tree[ITEMS];
    int t = threadIdx.x, first = blockIdx.x * ITEMS;
    for (int i = t; i < ITEMS; i += BLOCK) { tree[i] = first + i < n ? in[first + i] : 0; }
    int offset = 1;
    for (int nodes = BLOCK; nodes > 0; nodes /= 2, offset *= 2) { // up: sums of pairs
        __syncthreads();
        if (t < nodes) { tree[offset * (2 * t + 2) - 1] += tree[offset * (2 * t + 1) - 1]; }
    }
    __syncthreads();
    if (t == 0) {
        if (sums != nullptr) { sums[blockIdx.x] = tree[ITEMS - 1]; }
        tree[ITEMS - 1] = 0;
    }
    for (int nodes = 1; nodes <= BLOCK; nodes *= 2) { // down: each node hands its sum to its children
        offset /= 2;
        __syncthreads();
        if (t < nodes) {
            int left = offset * (2 * t + 1) - 1, right = offset * (2 * t + 2) - 1, sum = tree[left];
            tree[left] = tree[right];
            tree[right] += sum;
        }
    }
    __syncthreads();
    for (int i = t; i < ITEMS && first + i < n; i += BLOCK) { out[first + i] = tree[i]; }
}

__global__ void add_sums(int *out, const int *sums, int n) {
    int i = blockIdx.x * ITEMS + threadIdx.x;
    if (i < n) { out[i] += sums[blockIdx.x]; }
}

int main() {
    const int n = 5000, blocks = (n + ITEMS - 1) / ITEMS;
    std::vector<int> x(n);
    for (int i = 0; i < n; i++) { x[i] = i * 31 % 17; }
    int *out, *sums, *starts, sum = 0;
    must(cudaMalloc(&out, n * sizeof(int)));
    must(cudaMalloc(&sums, blocks * sizeof(int)));
    must(cudaMalloc(&starts, blocks * sizeof(int)));
    scan_blocks<<<blocks, BLOCK>>>(out, sums, on_device(x), n);
    scan_blocks<<<1, BLOCK>>>(starts, nullptr, sums, blocks);
    add_sums<<<blocks, ITEMS>>>(out, starts, n);
    std::vector<int> got = on_host(out, n);
    for (int i = 0; i < n; sum += x[i++]) { compare("exclusive sum", i, got[i], sum, 0.0); }
    return 0;
}
