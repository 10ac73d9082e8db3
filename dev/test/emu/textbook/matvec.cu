// y = A x: a warp for each row, reading float4.
#include "textbook.h"

__global__ void matvec(float *y, const float *A, const float *x, int rows, int cols) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) { return; }
    const float4 *a4 = reinterpret_cast<const float4 *>(A + row * cols);
    const float4 *x4 = reinterpret_cast<const float4 *>(x);
    float sum = 0.0f;
    for (int i = lane; i < cols / 4; i += 32) {
        float4 a = a4[i], v = x4[i];
        sum += a.x * v.x + a.y * v.y + a.z * v.z + a.w * v.w;
    }
    for (int mask = 16; mask > 0; mask /= 2) { sum += __shfl_xor_sync(0xffffffff, sum, mask); }
    if (lane == 0) { y[row] = sum; }
}

int main() {
    const int rows = 45, cols = 200;
    std::vector<float> a = some_numbers(rows * cols, 1), x = some_numbers(cols, 2);
    float *y;
    must(cudaMalloc(&y, rows * sizeof(float)));
    matvec<<<(rows + 3) / 4, 128>>>(y, on_device(a), on_device(x), rows, cols);
    std::vector<float> got = on_host(y, rows);
    for (int i = 0; i < rows; i++) {
        double want = 0.0;
        for (int j = 0; j < cols; j++) { want += double(a[i * cols + j]) * x[j]; }
        compare("y", i, got[i], want, 1e-5);
    }
    return 0;
}
