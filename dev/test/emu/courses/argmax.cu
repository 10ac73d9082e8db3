// The largest number of each row and where it stands: packed in 64 bits for atomicMax, and for atomicCAS.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cmath>

static void HandleError(cudaError_t err, const char *file, int line) {
    if (err != cudaSuccess) {
        printf("%s in %s at line %d\n", cudaGetErrorString(err), file, line);
        exit(EXIT_FAILURE);
    }
}
#define HANDLE_ERROR(err) (HandleError(err, __FILE__, __LINE__))
typedef unsigned long long int u64;

// Orders as floats do, and of equal numbers the lower index is the larger key. NaN loses.
__host__ __device__ inline u64 key(float v, unsigned i) {
    if (isnan(v)) v = -INFINITY;
#ifdef __CUDA_ARCH__
    unsigned bits = __float_as_uint(v);
#else
    unsigned bits;
    memcpy(&bits, &v, 4);
#endif
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return u64(bits) << 32 | ~i;
}

__global__ void argmax_atomic(u64 *best, const float *x, int cols) {
    for (int c = threadIdx.x; c < cols; c += blockDim.x) atomicMax(&best[blockIdx.x], key(x[blockIdx.x * cols + c], c));
}
__global__ void argmax_cas(u64 *best, const float *x, int cols) {
    __shared__ u64 shared;
    if (threadIdx.x == 0) shared = 0;
    __syncthreads();
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        u64 mine = key(x[blockIdx.x * cols + c], c), old = 0;
        while (old < mine) {
            u64 assumed = old;
            old = atomicCAS(&shared, assumed, mine);
            if (old == assumed) break;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) best[blockIdx.x] = shared;
}

int main(int argc, char **argv) {
    const int rows = 12, cols = 777;
    float *x = new float[rows * cols], *dev_x;
    u64 *dev_best, best[rows];
    for (int i = 0; i < rows * cols; i++) x[i] = i % 97 == 0 ? nanf("") : floorf(200.0f * rand() / RAND_MAX) - 150.0f;
    HANDLE_ERROR(cudaMalloc((void **)&dev_x, rows * cols * sizeof(float)));
    HANDLE_ERROR(cudaMalloc((void **)&dev_best, sizeof(best)));
    HANDLE_ERROR(cudaMemcpy(dev_x, x, rows * cols * sizeof(float), cudaMemcpyHostToDevice));
    int wrong = 0;
    for (int version = 0; version < 2; version++) {
        HANDLE_ERROR(cudaMemset(dev_best, 0, sizeof(best)));
        if (version == 0) argmax_atomic<<<rows, 96>>>(dev_best, dev_x, cols);
        else argmax_cas<<<rows, 96>>>(dev_best, dev_x, cols);
        HANDLE_ERROR(cudaMemcpy(best, dev_best, sizeof(best), cudaMemcpyDeviceToHost));
        for (int r = 0; r < rows; r++) {
            int at = -1;
            for (int c = 0; c < cols; c++)
                if (!isnan(x[r * cols + c]) && (at < 0 || x[r * cols + c] > x[r * cols + at])) at = c;
            wrong += int(~unsigned(best[r])) != at;
        }
    }
    cudaFree(dev_x), cudaFree(dev_best);
    delete[] x;
    cudaDeviceReset();
    printf("%d wrong\n%s\n", wrong, wrong ? "FAILED" : "ok");
    return wrong;
}
