// Chapter 13, GPU kernels: the worked example of doc/13_gpu.md, and the checks of its exercises. Runs in the
// emulator, whose meter counts what the kernels do.
#include "dev/exercises/chapter.h"
#include "dev/test/layers/gpu_test.h"

enum { BINS = 64 }; // of exercise 13.3

#include ANSWERS

// Runs kernels, and returns what the meter has counted.
template <class Run> static emu::Meter metered(Run run) {
    emu::meter_start();
    run();
    cuda_check(cudaDeviceSynchronize());
    emu::meter_stop();
    return emu::meter_of(NULL);
}

// ---- The worked example: one warp, one instruction ----

// Lane l loads number first + l * stride.
static __global__ void load_numbers(float *out, const float *in, int first, int stride) {
    out[threadIdx.x] = in[first + threadIdx.x * stride];
}

static __global__ void load_vectors(float4 *out, const float4 *in) { out[threadIdx.x] = in[threadIdx.x]; }

// Lane l stores number l * stride of shared memory.
static __global__ void store_shared(float *out, int stride) {
    __shared__ float tile[32 * 33];
    tile[threadIdx.x * stride] = 1.0f;
    out[threadIdx.x] = tile[threadIdx.x * stride];
}

static __global__ void store_shared_vectors(float4 *out, const float4 *in) {
    __shared__ float4 tile[32];
    tile[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = tile[threadIdx.x];
}

// Lanes with an odd number load number `odd` of shared memory, and the others number 0.
static __global__ void load_shared(float *out, int odd) {
    __shared__ float tile[64];
    tile[threadIdx.x] = 1.0f;
    tile[threadIdx.x + 32] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x % 2 * odd];
}

// Lane l adds to counts[l % bins].
static __global__ void add_numbers(int *counts, int bins) { atomicAdd(&counts[threadIdx.x % bins], 1); }

static void print_load(const char *name, const emu::Meter &m) {
    printf("%-36s %9d %7.0f %%\n", name, (int)m.loads.sectors,
           100.0 * (double)m.loads.bytes / (32.0 * (double)m.loads.sectors));
}

static void print_wavefronts(const char *name, const emu::SharedCounts &counts) {
    printf("%-36s %9d %9d\n", name, (int)counts.wavefronts, (int)counts.conflicts);
}

static void print_stores(const char *name, const emu::Meter &m) { print_wavefronts(name, m.shared_stores); }
static void print_shared_loads(const char *name, const emu::Meter &m) { print_wavefronts(name, m.shared_loads); }

static void print_atomics(const char *name, const emu::Meter &m) {
    printf("%-36s %9d %9d\n", name, (int)m.atomics.lanes, (int)m.atomics.hottest);
}

static void example(void) {
    DeviceArray<float> in(1024), out(128);
    DeviceArray<int32_t> counts(32);
    in.clear(), counts.clear();
    float4 *out4 = (float4 *)out.data, *in4 = (float4 *)in.data;
    printf("One warp loads from device memory      sectors      used\n");
    print_load("32 neighbours of 4 bytes", metered([&] { load_numbers<<<1, 32>>>(out.data, in.data, 0, 1); }));
    print_load("32 neighbours, from byte 4 on", metered([&] { load_numbers<<<1, 32>>>(out.data, in.data, 1, 1); }));
    print_load("every second number", metered([&] { load_numbers<<<1, 32>>>(out.data, in.data, 0, 2); }));
    print_load("every eighth number", metered([&] { load_numbers<<<1, 32>>>(out.data, in.data, 0, 8); }));
    print_load("one number for all lanes", metered([&] { load_numbers<<<1, 32>>>(out.data, in.data, 0, 0); }));
    print_load("32 neighbours of 16 bytes", metered([&] { load_vectors<<<1, 32>>>(out4, in4); }));
    printf("One warp stores in shared memory    wavefronts conflicts\n");
    print_stores("32 neighbours of 4 bytes", metered([&] { store_shared<<<1, 32>>>(out.data, 1); }));
    print_stores("every second number", metered([&] { store_shared<<<1, 32>>>(out.data, 2); }));
    print_stores("every 32nd number", metered([&] { store_shared<<<1, 32>>>(out.data, 32); }));
    print_stores("every 33rd number", metered([&] { store_shared<<<1, 32>>>(out.data, 33); }));
    print_stores("32 neighbours of 16 bytes", metered([&] { store_shared_vectors<<<1, 32>>>(out4, in4); }));
    printf("One warp loads from shared memory   wavefronts conflicts\n");
    print_shared_loads("one number for all lanes", metered([&] { load_shared<<<1, 32>>>(out.data, 0); }));
    print_shared_loads("two numbers of different banks", metered([&] { load_shared<<<1, 32>>>(out.data, 1); }));
    print_shared_loads("two numbers of one bank", metered([&] { load_shared<<<1, 32>>>(out.data, 32); }));
    printf("One warp adds with atomics               lanes   hottest\n");
    print_atomics("each lane to its own number", metered([&] { add_numbers<<<1, 32>>>(counts.data, 32); }));
    print_atomics("all lanes to one number", metered([&] { add_numbers<<<1, 32>>>(counts.data, 1); }));
}

// ---- The checks: the right result, and the meter's counts ----

// Rows of 168 numbers: 5 requests of 32 lanes and one of 8. They begin at sectors.
static void check_sum_rows(Test *t) {
    const int N = 20, C = 168;
    std::vector<float> x = random_values(N * C, 1.0f, 1), want((size_t)N);
    DeviceArray<float> inp(x), sums(N);
    for (int i = 0; i < N * C; i++) { want[(size_t)(i / C)] += x[(size_t)i]; }
    emu::Meter m = metered([&] { sum_rows<<<N, 32>>>(sums.data, inp.data, C); });
    check_values(t, "sums", sums.get(), want, sum_tolerance(C) * largest(want), 0.0);
    CHECK(t, 32 * m.loads.sectors == (uint64_t)(N * C) * sizeof(float), "the loads move %d bytes, x has %d",
          32 * (int)m.loads.sectors, N * C * (int)sizeof(float));
}

static __global__ void transpose_tile(float *out, const float *in) {
    __shared__ float tile[1024];
    tile[place_in_tile(threadIdx.y, threadIdx.x)] = in[threadIdx.y * 32 + threadIdx.x];
    __syncthreads();
    out[threadIdx.y * 32 + threadIdx.x] = tile[place_in_tile(threadIdx.x, threadIdx.y)];
}

static void check_place_in_tile(Test *t) {
    std::vector<float> x = random_values(1024, 1.0f, 2), want(1024);
    std::vector<int> taken(1024);
    DeviceArray<float> in(x), out(1024);
    for (int i = 0; i < 1024; i++) {
        int place = place_in_tile(i / 32, i % 32);
        if (!CHECK(t, place >= 0 && place < 1024 && taken[(size_t)place]++ == 0,
                   "row %d, column %d: place %d does not exist or is taken", i / 32, i % 32, place)) {
            return;
        }
        want[(size_t)i] = x[(size_t)(i % 32 * 32 + i / 32)];
    }
    emu::Meter m = metered([&] { transpose_tile<<<1, dim3(32, 32)>>>(out.data, in.data); });
    check_equal(t, "transposed", out.get(), want);
    CHECK(t, m.shared_stores.wavefronts == m.shared_stores.requests, "a row needs %.1f wavefronts, expected 1",
          (double)m.shared_stores.wavefronts / (double)m.shared_stores.requests);
    CHECK(t, m.shared_loads.wavefronts == m.shared_loads.requests, "a column needs %.1f wavefronts, expected 1",
          (double)m.shared_loads.wavefronts / (double)m.shared_loads.requests);
}

// The last block has fewer tokens. The counts are not zero at first.
static void check_histogram(Test *t) {
    const int n = 1900, threads = 256, blocks = 8;
    std::vector<int32_t> ids = random_ids(n, BINS, 3), want(BINS, 5);
    DeviceArray<int32_t> tokens(ids), counts(want);
    for (int id : ids) { want[(size_t)id]++; }
    emu::Meter m = metered([&] { histogram<<<blocks, threads>>>(counts.data, tokens.data, n); });
    std::vector<int32_t> got = counts.raw();
    for (size_t v = 0; v < BINS; v++) {
        CHECK(t, got[v] == want[v], "token %d: counted %d, expected %d", (int)v, (int)got[v], (int)want[v]);
    }
    CHECK(t, m.atomics.lanes <= (uint64_t)(blocks * BINS), "%d atomics on device memory, expected at most %d",
          (int)m.atomics.lanes, blocks * BINS);
}

static const Exercise exercises[] = {{"13.1 the sums of rows", check_sum_rows},
                                     {"13.2 a tile without conflicts", check_place_in_tile},
                                     {"13.3 a histogram", check_histogram}};

int main(void) { return run_chapter("13_gpu", example, exercises); }
