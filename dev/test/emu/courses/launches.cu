// Ways to launch: cudaLaunchKernel, templates whose arguments the compiler finds, NULL for a pointer, a lambda, more
// than 48 KiB of shared memory, streams that pass work on by events.
#include <algorithm>
#include <stdio.h>

#define CUDA_TRY(...)                                                                                                  \
    do {                                                                                                               \
        cudaError_t const status = (__VA_ARGS__);                                                                      \
        if (cudaSuccess != status) { fprintf(stderr, "%s\n", cudaGetErrorString(status)); return -1; }                 \
    } while (0)

struct Affine { float a, b; };

__global__ void affine(float *y, const float *x, Affine f, size_t n, const float *shift) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        y[i] = f.a * x[i] + f.b + (shift != NULL ? shift[i] : 0.0f);
}
template <typename T, int UNROLL = 2> __global__ void scale(T *x, const T *factors, T factor, size_t n) {
    size_t base = (size_t)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
    for (int u = 0; u < UNROLL; u++)
        if (size_t i = base + u * blockDim.x; i < n) x[i] *= factors ? factors[i] : factor;
}
template <int ROWS, class T> __global__ void reverse(T *x, int n) { // a block, the whole array in shared memory
    extern __shared__ __align__(16) unsigned char raw[];
    T *all = reinterpret_cast<T *>(raw);
    for (int i = threadIdx.x; i < n; i += ROWS) all[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += ROWS) x[i] = all[n - 1 - i];
}
namespace tools {
template <class F> __global__ void for_each(float *x, int n, F f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = f(x[i]);
}
} // namespace tools
__global__ void hello(int *count) {
    int before = atomicAdd(count, 1);
    if (before == 0) printf("hello from block (%d, %d) of (%d, %d)\n", blockIdx.x, blockIdx.y, gridDim.x, gridDim.y);
}

int main() {
    int n = 15000, zero = 0, *count, counted;
    size_t bytes = n * sizeof(float);
    float *x, *y, *pinned;
    cudaStream_t first, second;
    cudaEvent_t done;
    CUDA_TRY(cudaMalloc(&x, bytes));
    CUDA_TRY(cudaMalloc(&y, bytes));
    CUDA_TRY(cudaMalloc(&count, 4));
    CUDA_TRY(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault));
    CUDA_TRY(cudaStreamCreate(&first));
    CUDA_TRY(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    for (int i = 0; i < n; i++) pinned[i] = i % 1000;
    CUDA_TRY(cudaMemcpyAsync(x, pinned, bytes, cudaMemcpyHostToDevice, first));
    Affine f = {2, 1};
    size_t length = n;
    const float *none = NULL;
    void *args[] = {(void *)&y, (void *)&x, &f, &length, &none};
    CUDA_TRY(cudaLaunchKernel(reinterpret_cast<const void *>(&affine), dim3(4), dim3(256), args, 0, first)); // 2 x + 1
    affine<<<dim3(8, 1), 128, 0, first>>>(y, y, {1, 1}, n, NULL);                                         // 2 x + 2
    scale<<<n / 512 + 1, 256, 0, first>>>(y, (float *)0, 0.5f, n);                                           // x + 1
    scale<float><<<n / 512 + 1, 256, 0, first>>>(y, NULL, 2, n);                                             // 2 x + 2
    CUDA_TRY(cudaFuncSetAttribute(reverse<256, float>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    reverse<256><<<1, 256, bytes, first>>>(y, n);
    CUDA_TRY(cudaEventRecord(done, first));
    CUDA_TRY(cudaStreamWaitEvent(second, done, 0));
    float limit = INFINITY;
    tools::for_each<<<(n + 255) / 256, 256, 0, second>>>(y, n, [=] __device__(float v) { return fminf(v * v, limit); });
    CUDA_TRY(cudaMemcpyAsync(pinned, y, bytes, cudaMemcpyDeviceToHost, second));
    CUDA_TRY(cudaMemcpy(count, &zero, 4, cudaMemcpyHostToDevice));
    dim3 grid = {2, 3}, gridDim = grid, blockDim;
    blockDim.x = 32;
    auto kernel = hello;
    kernel<<<gridDim, blockDim>>>(count);
    CUDA_TRY(cudaMemcpy(&counted, count, 4, cudaMemcpyDeviceToHost));
    CUDA_TRY(cudaStreamSynchronize(second));
    bool ok = counted == 192;
    for (int i = 0; i < n; i++) {
        float v = 2 * ((n - 1 - i) % 1000) + 2;
        ok = ok && pinned[i] == v * v;
    }
    printf("%s\n", ok ? "ok" : "wrong");
    return ok ? 0 : 1;
}
