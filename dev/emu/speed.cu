// Measures what the emulator's steps cost, for dev/emu/README.md:
//   dev/emu/emucc -O2 dev/emu/speed.cu -o build/emu_speed && EMU_THREADS=1 build/emu_speed
#include <cuda_runtime.h>
#include <stdio.h>
#include <time.h>

__global__ void wait_often(int n) {
    for (int i = 0; i < n; i++) { __syncthreads(); }
}
__global__ void shuffle_often(float *out, int n) {
    float x = threadIdx.x;
    for (int i = 0; i < n; i++) { x += __shfl_xor_sync(0xffffffffu, x, 1); }
    out[threadIdx.x] = x;
}
__global__ void add_one(float4 *out, const float4 *in) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 v = __ldcs(&in[i]);
    __stcs(&out[i], make_float4(v.x + 1.0f, v.y, v.z, v.w));
}
__global__ void nothing() {}

static double cpu_seconds() { return double(clock()) / CLOCKS_PER_SEC; }

int main(void) {
    const int n = 1 << 20; // vectors
    float4 *out, *in;
    cudaMalloc(&out, n * sizeof(float4));
    cudaMalloc(&in, n * sizeof(float4));
    cudaMemset(in, 0, n * sizeof(float4));
    add_one<<<n / 256, 256>>>(out, in); // the first touch of all pages

    double start = cpu_seconds();
    wait_often<<<1, 256>>>(20000);
    printf("a thread's wait at __syncthreads      %6.1f ns\n", (cpu_seconds() - start) / 20000 / 256 * 1e9);
    start = cpu_seconds();
    shuffle_often<<<1, 256>>>(reinterpret_cast<float *>(out), 20000);
    printf("a lane's shuffle                      %6.1f ns\n", (cpu_seconds() - start) / 20000 / 256 * 1e9);
    start = cpu_seconds();
    nothing<<<10000, 256>>>();
    printf("a thread that does nothing            %6.1f ns\n", (cpu_seconds() - start) / 10000 / 256 * 1e9);
    start = cpu_seconds();
    add_one<<<n / 256, 256>>>(out, in);
    printf("a thread that loads and stores 16 B   %6.1f ns\n", (cpu_seconds() - start) / n * 1e9);
    start = cpu_seconds();
    for (int i = 0; i < 1000; i++) { nothing<<<1, 1>>>(); }
    printf("a launch                              %6.1f us\n", (cpu_seconds() - start) / 1000 * 1e6);
    return 0;
}
