// The softmax of each row: a block for a row, maximum and sum by trees of shuffles and shared memory.
#include "textbook.h"

struct Largest {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};

template <class Operation> __device__ float of_block(float x, float none, Operation op) {
    __shared__ float warps[32];
    for (int mask = 16; mask > 0; mask /= 2) { x = op(x, __shfl_xor_sync(0xffffffffu, x, mask)); }
    __syncthreads(); // all have read what was here before
    if (threadIdx.x % 32 == 0) { warps[threadIdx.x / 32] = x; }
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : none;
    for (int mask = 16; mask > 0; mask /= 2) { x = op(x, __shfl_xor_sync(0xffffffffu, x, mask)); }
    return x;
}

__global__ void softmax(float *out, const float *in, int cols) {
    const float *row = in + blockIdx.x * cols;
    float largest = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) { largest = fmaxf(largest, row[i]); }
    largest = of_block(largest, -INFINITY, Largest());
    for (int i = threadIdx.x; i < cols; i += blockDim.x) { sum += expf(row[i] - largest); }
    sum = of_block(sum, 0.0f, Sum());
    for (int i = threadIdx.x; i < cols; i += blockDim.x) { out[blockIdx.x * cols + i] = expf(row[i] - largest) / sum; }
}

int main() {
    const int rows = 9, cols = 333;
    std::vector<float> x = some_numbers(rows * cols);
    for (float &value : x) { value *= 10.0f; }
    float *out;
    must(cudaMalloc(&out, rows * cols * sizeof(float)));
    softmax<<<rows, 128>>>(out, on_device(x), cols);
    std::vector<float> got = on_host(out, rows * cols);
    for (int r = 0; r < rows; r++) {
        double sum = 0.0;
        for (int i = 0; i < cols; i++) { sum += exp(double(x[r * cols + i])); }
        for (int i = 0; i < cols; i++) {
            compare("softmax", r * cols + i, got[r * cols + i], exp(double(x[r * cols + i])) / sum, 1e-5);
        }
    }
    return 0;
}
