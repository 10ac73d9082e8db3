// Chapter 13, the GPU: the worked example of doc/13_gpu.md, and the checks of its exercises.
#include <algorithm>

#include "dev/exercises/metered.h"

enum { BINS = 64 }; // of exercise 13.3

#include ANSWERS

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

// ---- The checks ----

static void check_resident_warps(Test *t) {
    static const struct {
        int threads, registers, shared_bytes, warps;
        const char *limit;
    } cases[] = {{256, 32, 0, 64, "64 warps"},
                 {256, 128, 72 << 10, 16, "registers: 2 blocks"},
                 {128, 168, 0, 12, "registers: 3 warps a quarter"},
                 {128, 33, 0, 48, "registers: 1,280 a warp, not 1,056"},
                 {96, 40, 0, 48, "registers: 12 warps a quarter, so 16 blocks"},
                 {32, 16, 0, 32, "32 blocks"},
                 {100, 32, 0, 64, "100 threads are 4 warps"},
                 {1024, 72, 0, 0, "registers: not one block"},
                 {64, 32, 8 << 10, 50, "shared memory: 25 blocks of 9 KiB"},
                 {128, 32, 57 << 10, 12, "shared memory: 3 blocks of 58 KiB"}};
    for (const auto &c : cases) {
        int got = resident_warps(c.threads, c.registers, c.shared_bytes);
        CHECK(t, got == c.warps, "%d threads of %d registers, %d bytes of shared memory: got %d, want %d (%s)",
              c.threads, c.registers, c.shared_bytes, got, c.warps, c.limit);
    }
}

// Neither size is a multiple of 32, but all rows begin at sectors.
static void check_transpose(Test *t) {
    const int N = 72, C = 104;
    std::vector<float> x = random_values(N * C, 1.0f, 2), want((size_t)(N * C));
    DeviceArray<float> in(x), out(N * C);
    out.poison();
    for (int i = 0; i < N * C; i++) { want[(size_t)(i % C * N + i / C)] = x[(size_t)i]; }
    emu::Meter m = metered([&] { transpose<<<dim3(4, 3), dim3(32, 8)>>>(out.data, in.data, N, C); });
    check_equal(t, "transposed", out.get(), want);
    int bytes = N * C * (int)sizeof(float);
    CHECK(t, bytes_of(m.loads) == bytes, "loads move %d bytes, the matrix has %d: do lanes load neighbours?",
          bytes_of(m.loads), bytes);
    CHECK(t, bytes_of(m.stores) == bytes, "stores move %d bytes, the matrix has %d: do lanes store neighbours?",
          bytes_of(m.stores), bytes);
    int conflicts = (int)(m.shared_loads.conflicts + m.shared_stores.conflicts);
    CHECK(t, conflicts == 0, "%d conflicts in shared memory, want 0: in which banks is a column of the tile?",
          conflicts);
}

// Nine of ten tokens are equal. The last block has fewer tokens. The counts are not zero at first.
static void check_histogram(Test *t) {
    const int n = 1900, threads = 256, blocks = 8;
    std::vector<int32_t> ids = random_ids(n, BINS, 3), want(BINS, 5);
    for (int i = 0; i < n; i++) { ids[(size_t)i] = i % 10 == 0 ? ids[(size_t)i] : 7; }
    DeviceArray<int32_t> tokens(ids), counts(want);
    for (int id : ids) { want[(size_t)id]++; }
    int different = 0; // tokens of a warp, summed over the warps
    for (int i = 0; i < n; i++) {
        int first = i - i % WARP_SIZE;
        different += std::find(ids.begin() + first, ids.begin() + i, ids[(size_t)i]) == ids.begin() + i;
    }
    emu::Meter m = metered([&] { histogram<<<blocks, threads>>>(counts.data, tokens.data, n); });
    std::vector<int32_t> got = counts.raw();
    for (size_t v = 0; v < BINS; v++) {
        CHECK(t, got[v] == want[v], "token %d: counted %d, want %d", (int)v, (int)got[v], (int)want[v]);
    }
    CHECK(t, m.atomics.lanes <= (uint64_t)(blocks * BINS),
          "%d atomics on device memory, want at most %d: does a block count in shared memory first?",
          (int)m.atomics.lanes, blocks * BINS);
    CHECK(t, m.shared_atomics.lanes <= (uint64_t)different,
          "%d atomics on shared memory, want at most %d: do lanes of a warp with one token add once?",
          (int)m.shared_atomics.lanes, different);
}

static const Exercise exercises[] = {{"13.1 the warps of a multiprocessor", check_resident_warps},
                                     {"13.2 a transposition", check_transpose},
                                     {"13.3 a histogram of few tokens", check_histogram}};

int main(void) { return run_chapter("13_gpu", example, exercises); }
