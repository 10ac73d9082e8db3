// What the meter must count: kernels whose counts follow from arithmetic, in three schedules.
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <emu.h>
#include <emu_ptx.h>
#include <vector>

#include "dev/test/test_main.h"

#define BLOCKS 2
#define THREADS 128
#define WARPS (BLOCKS * THREADS / 32)
#define N (BLOCKS * THREADS)
#define MANY 512 // blocks: enough for all workers

// Device memory of zeros.
template <class T> struct Zeros {
    T *data = nullptr;
    explicit Zeros(size_t n) {
        cudaMalloc(&data, n * sizeof(T));
        cudaMemset(data, 0, n * sizeof(T));
    }
    ~Zeros() { cudaFree(data); }
    Zeros(const Zeros &) = delete;
};

// A count, and what it must be.
struct Want {
    const char *what;
    uint64_t (*count)(const emu::Meter &m);
    uint64_t wanted;
};
#define WANT(what, want)                                                                                               \
    Want({#what, [](const emu::Meter &m) -> uint64_t { return what; }, static_cast<uint64_t>(want)})

// Runs a launch in each schedule. The counts of the kernel must be the same each time.
template <class Launch>
static void in_all_schedules(Test *t, const char *name, Launch launch, const std::vector<Want> &wants) {
    for (const char *schedule : {"forward", "reversed", "random:7"}) {
        emu::set_schedule(schedule);
        emu::meter_start();
        launch();
        emu::meter_stop();
        for (const Want &want : wants) {
            uint64_t got = want.count(emu::meter_of(nullptr));
            CHECK(t, got == want.wanted, "%s (%s): %s is %llu, expected %llu", name, schedule, want.what,
                  static_cast<unsigned long long>(got), static_cast<unsigned long long>(want.wanted));
        }
    }
    emu::set_schedule("forward");
}

// ---- Device memory ----

__device__ inline int global_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

template <class T> __global__ void load_kernel(T *out, const T *in, int stride, int offset) {
    int i = global_thread();
    out[i] = in[i * stride + offset];
}

struct LoadCase {
    const char *name;
    int stride, offset;
    int sectors, bytes; // of a request
    int aligned;        // requests that begin at a multiple of 128
    int unique_sectors; // of the launch
};

template <class T> static void check_loads(Test *t, const LoadCase &c) {
    Zeros<T> in(N * static_cast<size_t>(c.stride) + 32), out(N);
    auto launch = [&] { load_kernel<T><<<BLOCKS, THREADS>>>(out.data, in.data, c.stride, c.offset); };
    in_all_schedules(t, c.name, launch,
                     {WANT(m.launches, 1), WANT(m.blocks, BLOCKS), WANT(m.warps, WARPS), WANT(m.threads, N),
                      WANT(m.loads.requests, WARPS), WANT(m.loads.lanes, N), WANT(m.loads.sectors, WARPS * c.sectors),
                      WANT(m.loads.bytes, WARPS * c.bytes), WANT(m.loads.aligned, c.aligned),
                      WANT(m.loads.unique_sectors, c.unique_sectors), WANT(m.stores.requests, WARPS),
                      WANT(m.stores.sectors, WARPS * sizeof(T)), WANT(m.stores.unique_bytes, N * sizeof(T)),
                      WANT(m.shared_loads.requests + m.shared_stores.requests + m.atomics.requests, 0)});
}

TEST(test_strides) {
    // 32 lanes x 4 bytes: 4 sectors side by side. One element later they begin in the middle of a sector: 5.
    check_loads<float>(t, {"stride 1", 1, 0, 4, 128, 8, 32});
    check_loads<float>(t, {"stride 32", 32, 0, 32, 128, 8, 256});
    check_loads<float>(t, {"misaligned by 4", 1, 1, 5, 128, 0, 33});
    check_loads<float>(t, {"one address", 0, 0, 1, 4, 8, 1});
    check_loads<float4>(t, {"float4", 1, 0, 16, 512, 8, 128});
    check_loads<__nv_bfloat16>(t, {"bf16", 1, 0, 2, 64, 4, 16});
    check_loads<unsigned char>(t, {"bytes", 1, 0, 1, 32, 2, 8});
}

// Every block loads the same numbers: the cache of a perfect GPU would fetch them once.
__global__ void load_again_kernel(float *out, const float *in) { out[global_thread()] = in[threadIdx.x]; }
// In round r lanes below 8 (r + 1) load, all from one sector. The rounds must not mix: after a barrier the lanes are
// together again, however many rounds they have left out.
__global__ void rounds_kernel(float *out, const float *in) {
    float sum = 0.0f;
    for (int r = 0; r < 4; r++) {
        if (static_cast<int>(threadIdx.x) < 8 * (r + 1)) { sum += in[8 * r + threadIdx.x % 8]; }
        __syncwarp();
    }
    out[threadIdx.x] = sum;
}

TEST(test_lanes) {
    Zeros<float> in(N), out(N);
    in_all_schedules(t, "load_again", [&] { load_again_kernel<<<BLOCKS, THREADS>>>(out.data, in.data); },
                     {WANT(m.loads.sectors, WARPS * 4), WANT(m.loads.unique_bytes, THREADS * 4),
                      WANT(m.stores.unique_bytes, N * 4)});
    in_all_schedules(t, "rounds", [&] { rounds_kernel<<<1, 32>>>(out.data, in.data); },
                     {WANT(m.loads.requests, 4), WANT(m.loads.lanes, 32 + 24 + 16 + 8), WANT(m.loads.sectors, 4),
                      WANT(m.warp_syncs, 4)});
}

// ---- Shared memory ----

template <int WIDTH> __global__ void tile_kernel(float *out) {
    __shared__ float tile[32 * WIDTH];
    for (int row = 0; row < 32; row++) { tile[row * WIDTH + threadIdx.x] = 1.0f; } // along the rows
    __syncthreads();
    float sum = 0.0f;
    for (int column = 0; column < 32; column++) { sum += tile[threadIdx.x * WIDTH + column]; } // along the columns
    out[threadIdx.x] = sum;
}

__global__ void shared_vector_kernel(float *out) {
    __shared__ float4 values[32];
    values[threadIdx.x] = float4();
    __syncthreads();
    float4 value = values[threadIdx.x];
    out[threadIdx.x] = value.x;
}

template <class Kernel>
static void check_shared(Test *t, const char *name, Kernel kernel, int requests, int stored, int loaded,
                         int conflicts) {
    Zeros<float> out(32);
    in_all_schedules(t, name, [&] { kernel<<<1, 32>>>(out.data); },
                     {WANT(m.shared_stores.requests, requests), WANT(m.shared_stores.lanes, 32 * requests),
                      WANT(m.shared_stores.wavefronts, stored), WANT(m.shared_stores.conflicts, 0),
                      WANT(m.shared_loads.requests, requests), WANT(m.shared_loads.wavefronts, loaded),
                      WANT(m.shared_loads.conflicts, conflicts), WANT(m.barriers, 1)});
}

TEST(test_shared_memory) {
    check_shared(t, "column of 32 x 32", tile_kernel<32>, 32, 32, 32 * 32, 32 * 31);
    check_shared(t, "column of 32 x 33", tile_kernel<33>, 32, 32, 32, 0);
    check_shared(t, "float4", shared_vector_kernel, 1, 4, 4, 0);
}

// All rows of a matrix begin in the same banks.
__global__ void ldmatrix_kernel(uint32_t *out) {
    __shared__ alignas(16) __nv_bfloat16 rows[32 * 64];
    for (int i = threadIdx.x; i < 32 * 64; i += 32) { rows[i] = __float2bfloat16(0.0f); }
    __syncthreads();
    uint32_t r[4];
    emu::ldmatrix_x4(r, rows + threadIdx.x * 64);
    out[threadIdx.x] = r[0] + r[1] + r[2] + r[3];
}

__global__ void async_kernel(float *out, const float *in) {
    __shared__ alignas(16) float tile[4 * 32];
    emu::cp_async_16(tile + 4 * threadIdx.x, in + 4 * threadIdx.x, threadIdx.x < 31 ? 16 : 8);
    emu::cp_async_wait_all();
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}

TEST(test_matrices_and_async_copies) {
    Zeros<float> in(128), out(32);
    Zeros<uint32_t> registers(32);
    in_all_schedules(t, "ldmatrix", [&] { ldmatrix_kernel<<<1, 32>>>(registers.data); },
                     {WANT(m.shared_loads.requests, 1), WANT(m.shared_loads.wavefronts, 4 * 8),
                      WANT(m.shared_loads.conflicts, 4 * 7)});
    // The last 8 bytes are an instruction of their own.
    in_all_schedules(t, "cp.async", [&] { async_kernel<<<1, 32>>>(out.data, in.data); },
                     {WANT(m.async_bytes, 31 * 16 + 8), WANT(m.loads.bytes, 31 * 16 + 8), WANT(m.loads.sectors, 16 + 1),
                      WANT(m.shared_stores.requests, 1), WANT(m.shared_stores.wavefronts, 4),
                      WANT(m.shared_loads.wavefronts, 1)});
}

// ---- Atomics ----

__global__ void one_address_kernel(float *sum) { atomicAdd(sum, 1.0f); }
__global__ void shared_atomic_kernel(int *out) {
    __shared__ int sums[2];
    if (threadIdx.x < 2) { sums[threadIdx.x] = 0; }
    __syncthreads();
    atomicAdd(&sums[threadIdx.x % 2], 1);
    __syncthreads();
    if (threadIdx.x < 2) { out[threadIdx.x] = sums[threadIdx.x]; }
}

TEST(test_atomics) {
    Zeros<float> sum(1);
    Zeros<int> sums(32);
    // The hottest address counts the lanes of all workers.
    in_all_schedules(t, "one address", [&] { one_address_kernel<<<MANY, THREADS>>>(sum.data); },
                     {WANT(m.atomics.requests, MANY * THREADS / 32), WANT(m.atomics.lanes, MANY * THREADS),
                      WANT(m.atomics.addresses, MANY * THREADS / 32), WANT(m.atomics.hottest, MANY * THREADS),
                      WANT(m.loads.unique_bytes, 4), WANT(m.stores.unique_bytes, 4)});
    in_all_schedules(t, "two shared addresses", [&] { shared_atomic_kernel<<<1, THREADS>>>(sums.data); },
                     {WANT(m.shared_atomics.requests, THREADS / 32), WANT(m.shared_atomics.addresses, 2 * THREADS / 32),
                      WANT(m.shared_atomics.hottest, THREADS / 2), WANT(m.atomics.requests, 0)});
}

// ---- Warp functions and arithmetic ----

__global__ void warp_sum_kernel(float *out, const float *in) {
    float sum = in[global_thread()];
    for (int offset = 16; offset > 0; offset /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, offset); }
    if (__any_sync(0xffffffffu, sum > 1.0f)) { sum = 1.0f; }
    out[global_thread()] = sum;
}

__global__ void saxpy_kernel(float *y, const float *x, float a) {
    int i = global_thread();
    y[i] = a * x[i] + y[i];
}
__global__ void functions_kernel(float *y, const float *x) {
    int i = global_thread();
    y[i] = expf(x[i]) / tanhf(x[i]);
}
__global__ void half_warp_kernel(float *y, const float *x) {
    int i = global_thread();
    if (threadIdx.x % 32 < 16) {
        for (int k = 0; k < 100; k++) { y[i] += x[k]; }
    }
}

TEST(test_arithmetic) {
    Zeros<float> x(N), y(N);
    in_all_schedules(t, "warp_sum", [&] { warp_sum_kernel<<<BLOCKS, THREADS>>>(y.data, x.data); },
                     {WANT(m.shuffles, 5 * WARPS), WANT(m.votes, WARPS), WANT(m.flops, 5 * N)});
    in_all_schedules(t, "saxpy", [&] { saxpy_kernel<<<BLOCKS, THREADS>>>(y.data, x.data, 2.0f); },
                     {WANT(m.flops, 2 * N), WANT(m.functions, 0), WANT(m.step_lanes - 32 * m.steps, 0)});
    in_all_schedules(t, "functions", [&] { functions_kernel<<<BLOCKS, THREADS>>>(y.data, x.data); },
                     {WANT(m.flops, N), WANT(m.functions, 2 * N)});
    // At least 16 lanes of 32 take part on average, and fewer than 18.
    in_all_schedules(t, "half_warp", [&] { half_warp_kernel<<<BLOCKS, THREADS>>>(y.data, x.data); },
                     {WANT(m.flops, 100 * N / 2), WANT(m.loads.lanes, 200 * N / 2), WANT(m.loads.requests, 200 * WARPS),
                      WANT(m.step_lanes / (2 * m.steps), 8)});
}

__global__ void mma_kernel(float *out) {
    float d[4] = {};
    uint32_t a[4] = {}, b[2] = {};
    for (int i = 0; i < 3; i++) { emu::mma_m16n8k16_bf16(d, a, b, d); }
    out[threadIdx.x] = d[0];
}

TEST(test_tensor_cores) {
    Zeros<float> out(32);
    in_all_schedules(t, "mma", [&] { mma_kernel<<<1, 32>>>(out.data); },
                     {WANT(m.tensor_flops, 3 * 2 * 16 * 8 * 16), WANT(m.shuffles + m.votes + m.warp_syncs, 0)});
}

// ---- Sums, names, libraries, bounds ----

#define CHECK_COUNT(what, want)                                                                                        \
    CHECK(t, (what) == static_cast<uint64_t>(want), "%s is %llu", #what, static_cast<unsigned long long>(what))

TEST(test_names) {
    Zeros<float> x(N), y(N);
    emu::meter_start();
    load_kernel<float><<<BLOCKS, THREADS>>>(y.data, x.data, 1, 0);
    load_kernel<float><<<BLOCKS, THREADS>>>(y.data, x.data, 1, 0);
    one_address_kernel<<<1, 32>>>(y.data);
    one_address_kernel<<<1, 32>>>(y.data);
    cudaMemcpy(y.data, x.data, 100, cudaMemcpyDeviceToDevice);
    emu::meter_stop();
    one_address_kernel<<<1, 32>>>(y.data);
    CHECK_COUNT(emu::meter_of("load_kernel").launches, 2);
    CHECK_COUNT(emu::meter_of("load_kernel<float>").loads.requests, 2 * WARPS);
    CHECK_COUNT(emu::meter_of("load").launches, 0);
    CHECK_COUNT(emu::meter_of("one_address_kernel").launches, 2);
    CHECK_COUNT(emu::meter_of("one_address_kernel").atomics.hottest, 2 * 32);
    CHECK_COUNT(emu::meter_of(nullptr).launches, 4);
    CHECK_COUNT(emu::meter_of_library("cudaMemcpy").calls, 1);
    CHECK_COUNT(emu::meter_of_library("cudaMemcpy").loaded_bytes, 100);
    CHECK_COUNT(emu::meter_of_library("cudaMemcpy").stored_bytes, 100);
    emu::meter_start();
    CHECK_COUNT(emu::meter_of(nullptr).launches, 0);
    emu::meter_stop();
}

static void check_bound(Test *t, const emu::Meter &m, const char *gpu, double seconds, const char *part) {
    emu::MeterBound bound = emu::meter_bound(m, gpu);
    CHECK(t, strcmp(bound.part, part) == 0, "bound of %s by %s, expected %s", gpu, bound.part, part);
    CHECK(t, bound.seconds > 0.999 * seconds && bound.seconds < 1.001 * seconds, "%s: bound %g s, expected %g", part,
          bound.seconds, seconds);
}

TEST(test_bounds) {
    emu::Meter m = emu::Meter();
    m.launches = 1;
    check_bound(t, m, "h100", 2e-6, "launch");
    m.loads.unique_sectors = m.stores.unique_sectors = 1 << 20; // 64 MiB at 3350 GB/s
    check_bound(t, m, "h100", 67108864 / 3350e9, "memory");
    m.tensor_flops = 989400000000; // 989.4 TFLOP/s
    check_bound(t, m, "h100", 1e-3, "tensor");
    m.flops = 133800000000; // 66.9 TFLOP/s
    check_bound(t, m, "h100", 2e-3, "fp32");
    m.shared_loads.wavefronts = 783984375 * 2; // 132 multiprocessors at 1.98 GHz: 261.3e9 a second
    check_bound(t, m, "h100", 1567968750 / (66.9e12 / 256), "shared");
}

int main(int argc, char **argv) { return test_main(argc, argv); }
