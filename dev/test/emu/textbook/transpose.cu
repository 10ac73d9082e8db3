// Transposes a matrix through a tile in shared memory, padded against bank conflicts.
#include "textbook.h"

const int TILE = 16, ROWS = 4; // a block of TILE x ROWS threads moves TILE x TILE numbers

__global__ void transpose(float *out, const float *in, int width, int height) {
    __shared__ float tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS) {
        if (x < width && y + j < height) { tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x]; }
    }
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x, y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS) {
        if (x < height && y + j < width) { out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j]; }
    }
}

int main() {
    const int width = 70, height = 45;
    std::vector<float> x = some_numbers(width * height);
    float *out;
    must(cudaMalloc(&out, width * height * sizeof(float)));
    dim3 grid((width + TILE - 1) / TILE, (height + TILE - 1) / TILE), block(TILE, ROWS);
    transpose<<<grid, block>>>(out, on_device(x), width, height);
    std::vector<float> got = on_host(out, width * height);
    for (int i = 0; i < width * height; i++) {
        compare("transposed", i, got[i], x[i % height * width + i / height], 0.0);
    }
    return 0;
}
