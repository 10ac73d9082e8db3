// Permutes (B, T, NH, HS) to (B, NH, T, HS), and transposes the last two dimensions through a tile, for any type.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(x)                                                                                                       \
    if ((x) != cudaSuccess) {                                                                                          \
        printf("%s failed in line %d: %s\n", #x, __LINE__, cudaGetErrorString(cudaPeekAtLastError()));                 \
        abort();                                                                                                       \
    }
#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))
enum { TILE = 16 };

template <class T> __global__ void swap_middle(T *__restrict__ out, const T *in, int A, int M, int N, int K) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x; // of out[a][n][m][k]
    if (idx >= A * M * N * K) return;
    int k = idx % K, m = idx / K % M, n = idx / K / M % N, a = idx / K / M / N;
    out[idx] = in[((a * M + m) * N + n) * K + k];
}

template <typename T, int ROWS = TILE> __global__ void transpose_last(T *out, const T *in, int rows, int cols) {
    __shared__ T tile[ROWS][ROWS + 1];
    const T *from = in + (size_t)blockIdx.z * rows * cols;
    T *to = out + (size_t)blockIdx.z * rows * cols;
    int c = blockIdx.x * ROWS + threadIdx.x, r = blockIdx.y * ROWS + threadIdx.y;
    if (r < rows && c < cols) tile[threadIdx.y][threadIdx.x] = from[r * cols + c];
    __syncthreads();
    r = blockIdx.x * ROWS + threadIdx.y, c = blockIdx.y * ROWS + threadIdx.x;
    if (r < cols && c < rows) to[r * rows + c] = tile[threadIdx.x][threadIdx.y];
}

template <typename T> int test(const char *type) {
    const int B = 2, NT = 19, NH = 3, HS = 21, n = B * NT * NH * HS;
    T *host = (T *)malloc(n * sizeof(T)), *back = (T *)malloc(n * sizeof(T)), *a, *b;
    for (int i = 0; i < n; i++) host[i] = (T)(rand() % 120);
    CHECK(cudaMalloc((void **)&a, n * sizeof(T)));
    CHECK(cudaMalloc((void **)&b, n * sizeof(T)));
    CHECK(cudaMemcpy(a, host, n * sizeof(T), cudaMemcpyHostToDevice));
    dim3 blockDim(256), gridDim = dim3(CEIL_DIV(n, 256));
    swap_middle<<<gridDim, blockDim, 0, NULL>>>(b, a, B, NT, NH, HS);
    blockDim = dim3(TILE, TILE);
    gridDim.x = CEIL_DIV(HS, TILE), gridDim.y = CEIL_DIV(NT, TILE), gridDim.z = B * NH;
    transpose_last<<<gridDim, blockDim>>>(a, b, NT, HS);
    CHECK(cudaMemcpy(back, a, n * sizeof(T), cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < n; i++) { // back[b][h][s][t]
        int t = i % NT, s = i / NT % HS, h = i / NT / HS % NH, batch = i / NT / HS / NH;
        wrong += back[i] != host[((batch * NT + t) * NH + h) * HS + s];
    }
    printf("%s: %d of %d wrong\n", type, wrong, n);
    cudaFree(a), cudaFree(b), free(host), free(back);
    return wrong;
}

int main(void) {
    srand(time(NULL)); // any numbers
    int wrong = test<float>("float") + test<uint8_t>("uint8_t") + test<double>("double") + test<short>("short");
    printf("%s\n", wrong ? "WRONG" : "ok");
    return wrong != 0;
}
