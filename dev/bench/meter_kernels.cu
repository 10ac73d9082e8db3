// Kernels whose loads and stores make well-known counts. dev/gpu_check.py compares what the emulator's meter counts
// with what a GPU counts. In the emulator the program prints the counts itself; on a GPU NVIDIA's profiler ncu prints
// them.
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef GPT2_EMU
#include <emu.h>
#endif

#define THREADS 256
#define BLOCKS 4
#define TILE 32

__device__ static int global_thread(void) { return blockIdx.x * blockDim.x + threadIdx.x; }

static __global__ void copy_kernel(float *out, const float *in) { out[global_thread()] = in[global_thread()]; }

// Each sector is asked for, half of it is used.
static __global__ void stride_2_kernel(float *out, const float *in) { out[global_thread()] = in[2 * global_thread()]; }

// Each lane has a sector of its own.
static __global__ void stride_32_kernel(float *out, const float *in) {
    out[global_thread()] = in[32 * global_thread()];
}

// 128 bytes that begin in the middle of a sector lie in 5 sectors.
static __global__ void shifted_kernel(float *out, const float *in) {
    out[global_thread() + 1] = in[global_thread() + 3];
}

static __global__ void float4_kernel(float4 *out, const float4 *in) { out[global_thread()] = in[global_thread()]; }

// Half of the lanes load and store.
static __global__ void half_kernel(float *out, const float *in) {
    if (threadIdx.x % 32 < 16) { out[global_thread()] = in[global_thread()]; }
}

// A warp writes a row of a tile and reads a column. With a width of 32 all numbers of a column are in one bank.
template <int WIDTH> __device__ static void transpose_tile(float *out, const float *in) {
    __shared__ float tile[TILE][WIDTH];
    for (int row = threadIdx.y; row < TILE; row += blockDim.y) {
        tile[row][threadIdx.x] = in[row * TILE + threadIdx.x];
    }
    __syncthreads();
    for (int row = threadIdx.y; row < TILE; row += blockDim.y) {
        out[row * TILE + threadIdx.x] = tile[threadIdx.x][row];
    }
}
static __global__ void conflicts_kernel(float *out, const float *in) { transpose_tile<TILE>(out, in); }
static __global__ void padded_kernel(float *out, const float *in) { transpose_tile<TILE + 1>(out, in); }

static void check(cudaError_t status) {
    if (status != cudaSuccess) {
        fprintf(stderr, "meter_kernels: %s\n", cudaGetErrorString(status));
        exit(EXIT_FAILURE);
    }
}

#ifdef GPT2_EMU
static void print_count(const std::string &kernel, const char *what, uint64_t count) {
    printf("count %s %s %llu\n", kernel.c_str(), what, (unsigned long long)count);
}

static void print_counts(void) {
    for (const std::string &kernel : emu::meter_kernels()) {
        emu::Meter m = emu::meter_of(kernel.c_str());
        print_count(kernel, "load_requests", m.loads.requests);
        print_count(kernel, "load_sectors", m.loads.sectors);
        print_count(kernel, "store_requests", m.stores.requests);
        print_count(kernel, "store_sectors", m.stores.sectors);
        print_count(kernel, "shared_load_wavefronts", m.shared_loads.wavefronts);
        print_count(kernel, "shared_store_wavefronts", m.shared_stores.wavefronts);
    }
}
#endif

int main(void) {
    size_t bytes = (size_t)32 * BLOCKS * THREADS * sizeof(float);
    float *in, *out;
    check(cudaMalloc(&in, bytes));
    check(cudaMalloc(&out, bytes));
    check(cudaMemset(in, 0, bytes));
#ifdef GPT2_EMU
    emu::meter_start();
#endif
    copy_kernel<<<BLOCKS, THREADS>>>(out, in);
    stride_2_kernel<<<BLOCKS, THREADS>>>(out, in);
    stride_32_kernel<<<BLOCKS, THREADS>>>(out, in);
    shifted_kernel<<<BLOCKS, THREADS>>>(out, in);
    float4_kernel<<<BLOCKS, THREADS>>>((float4 *)out, (const float4 *)in);
    half_kernel<<<BLOCKS, THREADS>>>(out, in);
    conflicts_kernel<<<1, dim3(TILE, 8)>>>(out, in);
    padded_kernel<<<1, dim3(TILE, 8)>>>(out, in);
    check(cudaGetLastError());
    check(cudaDeviceSynchronize());
#ifdef GPT2_EMU
    emu::meter_stop();
    print_counts();
#endif
    return EXIT_SUCCESS;
}
