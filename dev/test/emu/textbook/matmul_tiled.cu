// C = A B, row-major, any sizes, through tiles in shared memory.
#include "textbook.h"

#define TILE 16

__global__ void matmul(float *C, const float *A, const float *B, int M, int N, int K) {
    __shared__ float As[TILE][TILE], Bs[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < K; k += TILE) {
        int a = k + threadIdx.x, b = k + threadIdx.y;
        As[threadIdx.y][threadIdx.x] = row < M && a < K ? A[row * K + a] : 0.0f;
        Bs[threadIdx.y][threadIdx.x] = b < K && col < N ? B[b * N + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; i++) { sum += As[threadIdx.y][i] * Bs[i][threadIdx.x]; }
        __syncthreads();
    }
    if (row < M && col < N) { C[row * N + col] = sum; }
}

int main() {
    const int M = 37, N = 50, K = 41;
    std::vector<float> a = some_numbers(M * K, 1), b = some_numbers(K * N, 2);
    float *C;
    must(cudaMalloc(&C, M * N * sizeof(float)));
    dim3 block(TILE, TILE), grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
    matmul<<<grid, block>>>(C, on_device(a), on_device(b), M, N, K);
    std::vector<float> got = on_host(C, M * N);
    for (int i = 0; i < M * N; i++) {
        double want = 0.0;
        for (int k = 0; k < K; k++) { want += double(a[i / N * K + k]) * b[k * N + i % N]; }
        compare("C", i, got[i], want, 1e-5);
    }
    return 0;
}
