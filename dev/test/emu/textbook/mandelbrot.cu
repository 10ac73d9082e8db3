// The Mandelbrot set in rows with a pitch, copied back with cudaMemcpy2D. In integers, so that the CPU gives equal
// counts.
#include "textbook.h"

#define ONE (1 << 12) // numbers are in units of 1 / ONE

__host__ __device__ inline int steps_of(int cx, int cy, int most) {
    int x = 0, y = 0, steps = 0;
    while (steps < most && x * x + y * y < 4 * ONE * ONE) {
        int next = (x * x - y * y) / ONE + cx;
        y = 2 * x * y / ONE + cy;
        x = next;
        steps++;
    }
    return steps;
}

__host__ __device__ inline int count_at(int row, int col, int width, int height) {
    return steps_of(-2 * ONE + 3 * ONE * col / width, -ONE + 2 * ONE * row / height, 40);
}

__global__ void mandelbrot(int *image, size_t pitch, int width, int height) {
    int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (col >= width || row >= height) { return; }
    int *line = reinterpret_cast<int *>(reinterpret_cast<char *>(image) + row * pitch);
    line[col] = count_at(row, col, width, height);
}

int main() {
    const int width = 60, height = 40;
    int *image;
    size_t pitch;
    std::vector<int> got(width * height);
    must(cudaMallocPitch(&image, &pitch, width * sizeof(int), height));
    mandelbrot<<<dim3((width + 15) / 16, (height + 7) / 8), dim3(16, 8)>>>(image, pitch, width, height);
    must(cudaMemcpy2D(got.data(), width * sizeof(int), image, pitch, width * sizeof(int), height,
                      cudaMemcpyDeviceToHost));
    for (int i = 0; i < width * height; i++) {
        compare("steps", i, got[i], count_at(i / width, i % width, width, height), 0.0);
    }
    return 0;
}
