// An example for the meter: three ways to transpose a matrix.
//
//   dev/emu/emucc --meter -g -I. dev/emu/transpose.cu -o build/transpose && EMU_METER=1 build/transpose
#include <cuda_runtime.h>
#include <stdio.h>
#include <vector>

#define N 1024 // rows and columns

// Lanes read along a row and write down a column: each of their 32 numbers lies in another sector.
__global__ void transpose_naive(float *out, const float *in) {
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    out[column * N + row] = in[row * N + column];
}

// WIDTH 32: through shared memory both sides go along rows. But a column of the tile lies in one bank, so that 32 lanes
// wait for each other. WIDTH 33: the numbers of a column lie in 32 banks.
template <int WIDTH> __global__ void transpose_tile(float *out, const float *in) {
    __shared__ float tile[32][WIDTH];
    int x = blockIdx.x * 32, y = blockIdx.y * 32;
    tile[threadIdx.y][threadIdx.x] = in[(y + threadIdx.y) * N + x + threadIdx.x];
    __syncthreads();
    out[(x + threadIdx.y) * N + y + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}

int main() {
    float *in, *out;
    std::vector<float> numbers(N * N), got(N * N);
    for (int i = 0; i < N * N; i++) { numbers[i] = static_cast<float>(i); }
    cudaMalloc(&in, N * N * sizeof(float));
    cudaMalloc(&out, N * N * sizeof(float));
    cudaMemcpy(in, numbers.data(), N * N * sizeof(float), cudaMemcpyHostToDevice);
    for (int way = 0; way < 3; way++) {
        const dim3 grid(N / 32, N / 32), block(32, 32);
        if (way == 0) { transpose_naive<<<grid, block>>>(out, in); }
        if (way == 1) { transpose_tile<32><<<grid, block>>>(out, in); }
        if (way == 2) { transpose_tile<33><<<grid, block>>>(out, in); }
        cudaMemcpy(got.data(), out, N * N * sizeof(float), cudaMemcpyDeviceToHost);
        for (int i = 0; i < N * N; i++) {
            if (got[i] != numbers[i % N * N + i / N]) {
                printf("way %d: element %d is %g\n", way, i, got[i]);
                return 1;
            }
        }
    }
    cudaFree(in), cudaFree(out);
    return 0;
}
