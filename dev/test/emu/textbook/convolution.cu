// A 2D convolution with the filter in constant memory. A block of IN x IN threads loads a tile; the inner ones compute.
#include "textbook.h"

#define SIZE 5
#define IN 16
#define OUT (IN - SIZE + 1)

__constant__ float filter[SIZE][SIZE];

__global__ void convolve(const float *in, float *out, int width, int height) {
    __shared__ float tile[IN][IN];
    int x = int(blockIdx.x * OUT + threadIdx.x) - SIZE / 2, y = int(blockIdx.y * OUT + threadIdx.y) - SIZE / 2;
    bool inside = x >= 0 && x < width && y >= 0 && y < height;
    tile[threadIdx.y][threadIdx.x] = inside ? in[y * width + x] : 0.0f;
    __syncthreads();
    int col = int(threadIdx.x) - SIZE / 2, row = int(threadIdx.y) - SIZE / 2;
    if (!inside || col < 0 || col >= OUT || row < 0 || row >= OUT) { return; }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SIZE; i++) {
        for (int j = 0; j < SIZE; j++) { sum += filter[i][j] * tile[row + i][col + j]; }
    }
    out[y * width + x] = sum;
}

int main() {
    const int width = 50, height = 30;
    std::vector<float> x = some_numbers(width * height), f = some_numbers(SIZE * SIZE, 2);
    float *out;
    must(cudaMemcpyToSymbol(filter, f.data(), SIZE * SIZE * sizeof(float)));
    must(cudaMalloc(&out, width * height * sizeof(float)));
    dim3 grid((width + OUT - 1) / OUT, (height + OUT - 1) / OUT), block(IN, IN);
    convolve<<<grid, block>>>(on_device(x), out, width, height);
    std::vector<float> got = on_host(out, width * height);
    for (int p = 0; p < width * height; p++) {
        double want = 0.0;
        for (int k = 0; k < SIZE * SIZE; k++) {
            int i = p / width + k / SIZE - SIZE / 2, j = p % width + k % SIZE - SIZE / 2;
            want += i >= 0 && i < height && j >= 0 && j < width ? f[k] * x[i * width + j] : 0.0f;
        }
        compare("convolution", p, got[p], want, 1e-5);
    }
    return 0;
}
