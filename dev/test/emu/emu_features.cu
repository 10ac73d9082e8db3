// What the emulator must do as a GPU does. test_compilers.py also runs it with AddressSanitizer and under a debugger.
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <emu.h>
#include <emu_ptx.h>
#include <mma.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>
#include <vector>

#include "dev/test/test_main.h"

#define FULL 0xffffffffu
namespace cg = cooperative_groups;
using namespace nvcuda;

// Device memory with host access through copies, for short tests.
template <class T> struct Buffer {
    T *data = nullptr;
    size_t n;
    explicit Buffer(size_t n) : n(n) { cudaMalloc(&data, n * sizeof(T)); }
    explicit Buffer(const std::vector<T> &values) : Buffer(values.size()) {
        cudaMemcpy(data, values.data(), n * sizeof(T), cudaMemcpyHostToDevice);
    }
    ~Buffer() { cudaFree(data); }
    Buffer(const Buffer &) = delete;
    std::vector<T> host() const {
        std::vector<T> values(n);
        cudaMemcpy(values.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost);
        return values;
    }
};

// ---- Grids and blocks ----

__global__ void store_numbers(int *out) {
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    out[i] = i;
}

TEST(test_grids) {
    const dim3 shapes[][2] = {{dim3(1), dim3(1)},
                              {dim3(5), dim3(33)},
                              {dim3(3, 4), dim3(16, 3)},
                              {dim3(2, 3, 4), dim3(2, 3, 4)},
                              {dim3(1, 1, 7), dim3(1, 1, 64)},
                              {dim3(2), dim3(1024)}};
    for (auto &shape : shapes) {
        size_t n = size_t(shape[0].x) * shape[0].y * shape[0].z * shape[1].x * shape[1].y * shape[1].z;
        Buffer<int> out(n);
        store_numbers<<<shape[0], shape[1]>>>(out.data);
        std::vector<int> got = out.host();
        for (size_t i = 0; i < n; i++) { CHECK(t, got[i] == int(i), "thread %zu of %zu stored %d", i, n, got[i]); }
    }
}

// ---- Launches: template kernels, qualified names, macros, arguments by value ----

namespace inner {
template <class T, int N> __global__ void add_constant(T *out, T value) { out[threadIdx.x] = value + N; }
struct Config {
    int bias[20];
    float scale;
};
} // namespace inner
static __global__ void use_config(float *out, inner::Config config, const int add) {
    out[threadIdx.x] = config.scale * config.bias[threadIdx.x] + add;
}
__global__ void no_arguments() {}
#define LAUNCH(kernel, n, ...)                                                                                         \
    do { kernel<<<1, (n)>>>(__VA_ARGS__); } while (0)

TEST(test_launches) {
    Buffer<float> out(20);
    inner::add_constant<float, 3><<<1, 20>>>(out.data, 1);
    CHECK(t, out.host()[19] == 4.0f, "qualified template kernel");
    ::inner::add_constant<float, (2 > 1 ? 5 : 6)><<<dim3(1, 1), dim3(20)>>>(out.data, 1.0);
    CHECK(t, out.host()[7] == 6.0f, "an operator among the template arguments");
    LAUNCH((inner::add_constant<float, 9>), 20, out.data, 1.0f);
    CHECK(t, out.host()[0] == 10.0f, "launch in a macro");
    inner::Config config = {{}, 2.0f};
    for (int i = 0; i < 20; i++) { config.bias[i] = i; }
    use_config<<<1, 20, 0, 0>>>(out.data, config, short(1));
    CHECK(t, out.host()[19] == 39.0f, "a structure as argument");
    int64_t before = emu::launch_count();
    no_arguments<<<2, 2>>>();
    CHECK(t, emu::launch_count() == before + 1, "a kernel without arguments");
    auto *kernel = inner::add_constant<float, 1>;
    kernel<<<1, 20>>>(out.data, 1);
    CHECK(t, out.host()[0] == 2.0f, "a kernel by pointer");
}

// ---- Shared memory ----

template <int N> __global__ void reverse_static(int *out, const int *in) {
    __shared__ int tile[N][2];
    __shared__ alignas(16) int scalar;
    int i = threadIdx.x;
    tile[i][1] = in[i];
    if (i == N / 2) { scalar = 7; }
    __syncthreads();
    out[i] = tile[N - 1 - i][1] + scalar;
}
__global__ void reverse_dynamic(int *out, const int *in, int n) {
    extern __shared__ __align__(16) unsigned char memory[];
    int *tile = reinterpret_cast<int *>(memory);
    tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[n - 1 - threadIdx.x];
}
__global__ void reverse_both(int *out, const int *in) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ int tile[50];
    int i = threadIdx.x, *rest = reinterpret_cast<int *>(memory);
    (i < 50 ? tile[i % 50] : rest[i - 50]) = in[i];
    __syncthreads();
    out[i] = i < 50 ? rest[49 - i] : tile[99 - i];
}

static void check_reversed(Test *t, const char *what, const Buffer<int> &out, int more) {
    std::vector<int> got = out.host();
    for (int i = 0; i < 100; i++) { CHECK(t, got[i] == (99 - i) * (99 - i) + more, "%s, %d: %d", what, i, got[i]); }
}

TEST(test_shared_memory) {
    const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    std::vector<int> numbers(100);
    for (int i = 0; i < 100; i++) { numbers[i] = i * i; }
    Buffer<int> in(numbers), out(100);
    reverse_static<100><<<1, 100>>>(out.data, in.data);
    check_reversed(t, "static", out, 7);
    CHECK(t, cudaFuncSetAttribute(reverse_dynamic, most, 200 << 10) == cudaSuccess, "200 KiB refused");
    reverse_dynamic<<<1, 100, 200 << 10>>>(out.data, in.data, 100);
    check_reversed(t, "dynamic", out, 0);
    CHECK(t, cudaFuncSetAttribute(reverse_both, most, 48 << 10) == cudaSuccess, "48 KiB refused");
    reverse_both<<<1, 100, 48 << 10>>>(out.data, in.data); // and static memory beside them
    check_reversed(t, "both", out, 0);
    CHECK(t, cudaFuncSetAttribute(reverse_dynamic, most, 228 << 10) == cudaErrorInvalidValue, "228 KiB accepted");
    CHECK(t, cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess, "last error");
}

// ---- Warp functions ----

template <class T> __global__ void shuffle_all(T *out, int width) {
    int lane = threadIdx.x;
    T value = T(lane + 1);
    out[0 * 32 + lane] = __shfl_sync(FULL, value, 5, width);
    out[1 * 32 + lane] = __shfl_up_sync(FULL, value, 3, width);
    out[2 * 32 + lane] = __shfl_down_sync(FULL, value, 3, width);
    out[3 * 32 + lane] = __shfl_xor_sync(FULL, value, 4, width);
}

template <class T> static void check_shuffles(Test *t, const char *type) {
    for (int width = 8; width <= 32; width *= 2) {
        Buffer<T> out(128);
        shuffle_all<T><<<1, 32>>>(out.data, width);
        std::vector<T> got = out.host();
        for (int lane = 0; lane < 32; lane++) {
            int first = lane / width * width, end = first + width;
            int want[4] = {first + 5, lane - 3 < first ? lane : lane - 3, lane + 3 >= end ? lane : lane + 3, lane ^ 4};
            for (int kind = 0; kind < 4; kind++) {
                float value = float(got[kind * 32 + lane]);
                CHECK(t, value == want[kind] + 1, "%s width %d kind %d lane %d: %g", type, width, kind, lane, value);
            }
        }
    }
}

TEST(test_shuffles) {
    check_shuffles<int>(t, "int");
    check_shuffles<unsigned>(t, "unsigned");
    check_shuffles<long long>(t, "long long");
    check_shuffles<float>(t, "float");
    check_shuffles<double>(t, "double");
    check_shuffles<__nv_bfloat16>(t, "bf16");
}

__global__ void vote_all(unsigned *out) {
    int lane = threadIdx.x;
    unsigned ballot = __ballot_sync(FULL, lane % 3 == 0);
    int any = __any_sync(FULL, lane == 9), none = __any_sync(FULL, lane == 32);
    int all = __all_sync(FULL, lane < 32), not_all = __all_sync(FULL, lane < 31);
    if (lane < 16) { ballot ^= __ballot_sync(0x0000ffffu, lane == 1); }
    if (lane >= 16) { ballot ^= __ballot_sync(0xffff0000u, lane == 17); }
    __syncwarp();
    out[lane] = any && !none && all && !not_all ? ballot : 0;
}
__global__ void block_votes(int *out) {
    int i = threadIdx.x;
    int count = __syncthreads_count(i % 2), all = __syncthreads_and(i < 40), any = __syncthreads_or(i == 39);
    int not_all = __syncthreads_and(i < 39), none = __syncthreads_or(i == 40);
    out[i] = count * 10000 + all * 1000 + any * 100 + not_all * 10 + none;
}

TEST(test_votes) {
    Buffer<unsigned> out(32);
    vote_all<<<1, 32>>>(out.data);
    std::vector<unsigned> got = out.host();
    for (int lane = 0; lane < 32; lane++) {
        unsigned want = 0x49249249u ^ (lane < 16 ? 1u << 1 : 1u << 17);
        CHECK(t, got[lane] == want, "lane %d: 0x%08x", lane, got[lane]);
    }
    Buffer<int> counts(40);
    block_votes<<<1, 40>>>(counts.data);
    for (int i = 0; i < 40; i++) { CHECK(t, counts.host()[i] == 201100, "thread %d: %d", i, counts.host()[i]); }
}

// ---- Cooperative groups ----

__device__ int sum_of_group(cg::thread_group group, int *room, int value) {
    int rank = int(group.thread_rank());
    for (int half = int(group.size()) / 2; half > 0; half /= 2) {
        room[rank] = value;
        group.sync();
        if (rank < half) { value += room[rank + half]; }
        group.sync();
    }
    return value;
}

template <unsigned N> __device__ bool tile_is_right(const cg::thread_block &block, int i) {
    cg::thread_block_tile<N> tile = cg::tiled_partition<N>(block);
    int lane = i % int(N), first = i - lane, last = first + int(N) - 1;
    unsigned odd = N == 1 ? unsigned(i) % 2 : 0xaaaaaaaau >> (32 - N) & ~0u >> (32 - N);
    bool right = tile.size() == N && tile.thread_rank() == unsigned(lane);
    right &= tile.meta_group_rank() == unsigned(i) / N && tile.meta_group_size() == 64 / N;
    right &= tile.shfl(i, N - 1) == last && tile.shfl_xor(i, N / 2) == (i ^ int(N / 2));
    right &= tile.shfl_up(i, 1) == (lane == 0 ? i : i - 1) && tile.shfl_down(i, 1) == (i == last ? i : i + 1);
    right &= tile.ballot(i % 2) == odd && tile.any(i == last) == 1 && tile.all(i == last) == (N == 1);
    right &= cg::reduce(tile, i, cg::plus<int>()) == int(N) * (first + last) / 2;
    right &= cg::reduce(tile, float(i), cg::less<float>()) == float(first);
    right &= cg::reduce(tile, i, cg::greater<int>()) == last;
    right &=
        cg::reduce(tile, i, cg::bit_or<int>()) == (first | last) && cg::reduce(tile, i, cg::bit_and<int>()) == first;
    right &= cg::reduce(tile, i, cg::bit_xor<int>()) == (N == 1 ? i : N == 2 ? 1 : 0);
    tile.sync();
    cg::thread_block_tile<N / 2 + (N == 1)> half = cg::tiled_partition<N / 2 + (N == 1)>(tile);
    return right && half.meta_group_rank() == (N == 1 ? 0 : unsigned(lane) / (N / 2));
}

// Of every third lane.
__device__ bool third_is_right(const cg::coalesced_group &group, int i) {
    int rank = int(group.thread_rank()), first = i - 3 * rank, last = first + 3 * int(group.size()) - 3;
    bool right = (first == 0 || first == 33) && (last == 30 || last == 63) && group.shfl(i, 1) == first + 3;
    right &= cg::inclusive_scan(group, i) == (first + i) * (rank + 1) / 2 && cg::exclusive_scan(group, 1) == rank;
    right &= cg::reduce(group, i, cg::greater<int>()) == last && group.ballot(i == last) == 1u << (group.size() - 1);
    return right && group.shfl_down(i, 1) == (i == last ? i : i + 3) && group.match_any(i / 6) >> rank & 1;
}

__global__ void use_groups(int *sums, int *wrong) {
    __shared__ int room[64];
    cg::thread_block block = cg::this_thread_block();
    cg::grid_group grid = cg::this_grid();
    int i = int(block.thread_rank());
    bool right = tile_is_right<1>(block, i) && tile_is_right<2>(block, i) && tile_is_right<4>(block, i);
    right = right && tile_is_right<8>(block, i) && tile_is_right<16>(block, i) && tile_is_right<32>(block, i);
    right &= block.size() == 64 && block.group_index().x == blockIdx.x && block.thread_index().y == threadIdx.y;
    right &= block.dim_threads().y == 4 && grid.size() == 192 && grid.thread_rank() == 64 * blockIdx.x + unsigned(i);
    if (i % 3 == 0) { right &= third_is_right(cg::coalesced_threads(), i); }
    cg::coalesced_group pair = cg::labeled_partition(cg::coalesced_threads(), i / 2);
    right &= pair.size() == 2 && pair.shfl_xor(i, 1) == (i ^ 1) && cg::exclusive_scan(pair, i) == (i % 2 ? i - 1 : 0);
    if (!right) { atomicAdd(wrong, 1); }
    int of_block = sum_of_group(block, room, i),
        of_eight = sum_of_group(cg::tiled_partition(block, 8), room + i / 8 * 8, i);
    cg::sync(block);
    if (i % 8 == 0) { sums[9 * blockIdx.x + 1 + unsigned(i) / 8] = of_eight; }
    if (i == 0) { sums[9 * blockIdx.x] = of_block; }
}

TEST(test_groups) {
    Buffer<int> sums(27), wrong(std::vector<int>(1, 0));
    use_groups<<<3, dim3(16, 4)>>>(sums.data, wrong.data);
    CHECK(t, wrong.host()[0] == 0, "%d threads disagree", wrong.host()[0]);
    for (int b = 0; b < 3; b++) {
        CHECK(t, sums.host()[9 * b] == 63 * 32, "block: %d", sums.host()[9 * b]);
        for (int i = 0; i < 8; i++) { CHECK(t, sums.host()[9 * b + 1 + i] == 8 * (8 * i) + 28, "tile %d", i); }
    }
}

// ---- Atomics ----

struct Totals {
    int sum, low, high, inc, swaps, in_block;
    unsigned bits, wraps, left, least;
    unsigned long long big, largest;
    float real;
    double twice;
    __half half;
    __nv_bfloat16 bf16;
    __half2 halves;
    __nv_bfloat162 bf16s;
    float2 two;
    float4 four;
    unsigned short token;
};
__global__ void count(Totals *totals) {
    __shared__ int block_sum;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) { block_sum = 0; }
    __syncthreads();
    atomicAdd(&block_sum, 1);
    __syncthreads();
    if (threadIdx.x == 0) { atomicAdd(&totals->sum, block_sum); }
    atomicMin(&totals->low, -i);
    atomicMax(&totals->high, i);
    atomicOr(&totals->bits, 1u << (i % 32));
    atomicAdd(&totals->big, 1ull << 32);
    atomicMax(&totals->largest, 1ull << 40 | threadIdx.x);
    atomicAdd(&totals->real, 0.5f);
    atomicAdd(&totals->twice, 2.0);
    atomicInc(&totals->wraps, 6);
    atomicSub(&totals->left, 3u);
    atomicMin_system(&totals->least, blockIdx.x + 5);
    atomicAdd_block(&totals->in_block, 2);
    if (atomicCAS(&totals->swaps, i, i + 1) == i) { atomicExch(&totals->inc, 9); }
    atomicCAS(&totals->token, static_cast<unsigned short>(threadIdx.x), static_cast<unsigned short>(threadIdx.x + 1));
    atomicAdd(&totals->half, __float2half(0.5f));
    atomicAdd(&totals->bf16, __float2bfloat16(0.25f));
    atomicAdd(&totals->halves, __floats2half2_rn(1.0f, -2.0f));
    atomicAdd(&totals->bf16s, __floats2bfloat162_rn(3.0f, -1.0f));
    atomicAdd(&totals->two, make_float2(1.0f, 2.0f));
    atomicAdd(&totals->four, make_float4(1.0f, 2.0f, 3.0f, 4.0f));
}

TEST(test_atomics) {
    Totals start = Totals();
    start.left = 1000, start.least = 100;
    Buffer<Totals> totals(std::vector<Totals>(1, start));
    count<<<4, 20>>>(totals.data);
    Totals got = totals.host()[0];
    CHECK(t, got.sum == 80 && got.low == -79 && got.high == 79 && got.bits == FULL && got.inc == 9, "%d %d %d 0x%08x",
          got.sum, got.low, got.high, got.bits);
    CHECK(t, got.big == 80ull << 32 && got.largest == (1ull << 40 | 19) && got.real == 40.0f && got.twice == 160.0,
          "%llu %llu %g %g", got.big, got.largest, got.real, got.twice);
    CHECK(t, got.wraps == 80 % 7 && got.left == 760 && got.least == 5 && got.in_block == 160, "%u %u %u %d", got.wraps,
          got.left, got.least, got.in_block);
    CHECK(t, got.swaps >= 1 && got.swaps <= 80 && got.token >= 1 && got.token <= 20, "%d %d", got.swaps, got.token);
    CHECK(t, float(got.half) == 40.0f && float(got.bf16) == 20.0f, "%g %g", float(got.half), float(got.bf16));
    CHECK(t, float(got.halves.x) == 80.0f && float(got.halves.y) == -160.0f, "two halves");
    CHECK(t, float(got.bf16s.x) == 240.0f && float(got.bf16s.y) == -80.0f, "two bf16");
    CHECK(t, got.two.x == 80.0f && got.two.y == 160.0f && got.four.x == 80.0f && got.four.w == 320.0f, "vectors");
}

// ---- Matrix instructions that llmc does not use ----

static float small_value(int i) { return float((i * 37 + 11) % 23 - 11) / 4.0f; } // exact in bf16 and tf32

__global__ void mma_tf32(float *D, const float *A, const float *B, const float *C) {
    int g = threadIdx.x / 4, k = threadIdx.x % 4;
    uint32_t a[4], b[2];
    float d[4];
    for (int i = 0; i < 4; i++) { a[i] = __float_as_uint(A[(g + i % 2 * 8) * 8 + k + i / 2 * 4]); }
    for (int i = 0; i < 2; i++) { b[i] = __float_as_uint(B[g * 8 + k + i * 4]); }
    for (int i = 0; i < 4; i++) { d[i] = C[(g + i / 2 * 8) * 8 + k * 2 + i % 2]; }
    emu::mma_m16n8k8_tf32(d, a, b, d);
    for (int i = 0; i < 4; i++) { D[(g + i / 2 * 8) * 8 + k * 2 + i % 2] = d[i]; }
}

TEST(test_mma_tf32) {
    std::vector<float> A(128), B(64), C(128);
    for (int i = 0; i < 128; i++) { A[i] = small_value(i), C[i] = small_value(i + 5); }
    for (int i = 0; i < 64; i++) { B[i] = small_value(i + 3); }
    Buffer<float> a(A), b(B), c(C), d(128);
    mma_tf32<<<1, 32>>>(d.data, a.data, b.data, c.data);
    std::vector<float> D = d.host();
    for (int m = 0; m < 16; m++) {
        for (int n = 0; n < 8; n++) {
            float want = C[m * 8 + n];
            for (int k = 0; k < 8; k++) { want += A[m * 8 + k] * B[n * 8 + k]; }
            CHECK(t, D[m * 8 + n] == want, "D[%d][%d] = %g, want %g", m, n, D[m * 8 + n], want);
        }
    }
}

// Rows of 16 elements with a stride of 24, element (row, column) = 100 * row + column.
template <int N, bool TRANS> __global__ void load_matrices(uint32_t *out) {
    __shared__ alignas(16) uint16_t tile[32 * 24];
    for (int i = threadIdx.x; i < 32 * 24; i += 32) { tile[i] = uint16_t(i / 24 * 100 + i % 24); }
    __syncthreads();
    uint32_t r[N];
    const uint16_t *row = &tile[threadIdx.x * 24 + 8];
    TRANS ? emu::ldmatrix_trans(r, row) : emu::ldmatrix(r, row);
    for (int i = 0; i < N; i++) { out[threadIdx.x * N + i] = r[i]; }
}

template <int N, bool TRANS> static void check_ldmatrix(Test *t) {
    Buffer<uint32_t> out(32 * N);
    load_matrices<N, TRANS><<<1, 32>>>(out.data);
    std::vector<uint32_t> got = out.host();
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < N; i++) {
            int a = lane / 4, b = lane % 4 * 2;
            uint32_t low = TRANS ? (8 * i + b) * 100 + 8 + a : (8 * i + a) * 100 + 8 + b;
            uint32_t high = TRANS ? low + 100 : low + 1;
            CHECK(t, got[lane * N + i] == (high << 16 | low), "x%d%s lane %d: 0x%x", N, TRANS ? ".trans" : "", lane,
                  got[lane * N + i]);
        }
    }
}

TEST(test_ldmatrix) {
    check_ldmatrix<1, false>(t);
    check_ldmatrix<2, false>(t);
    check_ldmatrix<1, true>(t);
    check_ldmatrix<2, true>(t);
}

// ---- Schedules ----

__global__ void record_order(int *order, int *next) { order[atomicAdd(next, 1)] = threadIdx.x; }

TEST(test_schedule_orders) {
    const char *schedules[] = {"forward", "reversed", "random:3"};
    for (int s = 0; s < 3; s++) {
        Buffer<int> order(64), next(std::vector<int>(1, 0));
        emu::set_schedule(schedules[s]);
        record_order<<<1, 64>>>(order.data, next.data);
        std::vector<int> got = order.host();
        int forward = 0, backward = 0;
        for (int i = 1; i < 64; i++) { forward += got[i] == got[i - 1] + 1, backward += got[i] == got[i - 1] - 1; }
        CHECK(t, (s == 0) == (forward == 63) && (s == 1) == (backward == 63), "%s: %d up, %d down", schedules[s],
              forward, backward);
    }
    emu::set_schedule("forward");
}

// ---- The host API ----

TEST(test_device) {
    cudaDeviceProp p;
    int count = 0, value = 0;
    CHECK(t, cudaGetDeviceCount(&count) == cudaSuccess && count == 8, "%d devices", count);
    CHECK(t, cudaGetDeviceProperties(&p, 0) == cudaSuccess && p.major == 9 && p.warpSize == 32, "%s", p.name);
    CHECK(t,
          cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess &&
              value == p.multiProcessorCount,
          "%d multiprocessors", value);
    CHECK(t, cudaSetDevice(8) == cudaErrorInvalidDevice && cudaGetLastError() == cudaErrorInvalidDevice, "device 8");
    char bus[2][16];
    CHECK(t, cudaDeviceGetPCIBusId(bus[0], 16, 0) == cudaSuccess && cudaDeviceGetPCIBusId(bus[1], 16, 7) == cudaSuccess,
          "bus addresses");
    CHECK(t, strcmp(bus[0], bus[1]) != 0, "two devices at the bus address %s", bus[0]);
    size_t free_bytes, total, now_free;
    int64_t allocations = emu::allocation_count();
    cudaMemGetInfo(&free_bytes, &total);
    void *huge = &huge;
    CHECK(t, cudaMalloc(&huge, total + 1) == cudaErrorMemoryAllocation && huge == nullptr, "too much memory");
    CHECK(t, cudaGetLastError() == cudaErrorMemoryAllocation, "last error");
    Buffer<char> some(1000);
    cudaMemGetInfo(&now_free, &total);
    CHECK(t, now_free == free_bytes - 1000 && uintptr_t(some.data) % 256 == 0, "%zu of %zu", now_free, free_bytes);
    CHECK(t, emu::allocation_count() == allocations + 1, "allocations");
    CHECK(t, strcmp(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice") == 0, "error name");
}

// ---- Intrinsics, device variables ----

__device__ int device_counter;
__device__ float device_table[4];
__constant__ float constants[4];
__device__ static inline float twice(float x) { return 2.0f * x; }
__device__ __noinline__ float thrice(float x) { return 3.0f * x; }

__global__ void intrinsics(float2 *out, const float4 *in, int *wrong, float x) {
    int lane = int(threadIdx.x), value = 10 - lane, all = 0;
    float s, c;
    float4 v = __ldcs(in);
    __stcs(out + lane, make_float2(v.x + __ldg(&in->y), v.z));
    sincosf(x, &s, &c);
    bool right = s == sinf(x) && c == cosf(x) && norm3df(2.0f, 3.0f, 6.0f) == 7.0f && rcbrtf(8.0f) == 0.5f;
    right &= rsqrtf(4.0f) == 0.5f && __expf(0.0f) == 1.0f && fmaxf(1.0f, 2.0f) == 2.0f && min(3, 4) == 3;
    right &= __popc(0xf0u) == 4 && __clz(1) == 31 && __ffs(8) == 4 && __brev(1u) == 1u << 31 && max(1.0f, 5.0f) == 5.0f;
    right &= __uint_as_float(__float_as_uint(1.5f)) == 1.5f && twice(constants[2]) + thrice(1.0f) == 45.0f;
    right &= __umulhi(0x80000000u, 6u) == 3 && __byte_perm(0x33221100u, 0x77665544u, 0x0007) == 0x77;
    right &= __reduce_min_sync(FULL, value) == -21 && __reduce_max_sync(FULL, value) == 10;
    right &= __reduce_add_sync(FULL, value) == -176 && __reduce_max_sync(FULL, unsigned(value)) == 0xffffffffu;
    right &= __reduce_and_sync(FULL, unsigned(lane) | 32) == 32 && __reduce_or_sync(FULL, unsigned(lane)) == 31;
    right &= __reduce_xor_sync(FULL, unsigned(lane)) == 0;
    right &= __match_any_sync(FULL, lane / 8) == 0xffu << lane / 8 * 8;
    right &= __match_all_sync(FULL, 7.0f, &all) == FULL && all == 1 && __match_all_sync(FULL, lane, &all) == 0;
    right &= __brevll(2) == 1ull << 62 && __mul24(-3, 7) == -21 && __sad(3, -4, 1) == 8 && __usad(3, 9, 1) == 7;
    right &= __fmaf_rn(2.0f, 3.0f, 1.0f) == 7.0f && __fdividef(1.0f, 4.0f) == 0.25f && __saturatef(2.0f) == 1.0f;
    right &= __double2int_rn(2.5) == 2 && __float2uint_rz(3.9f) == 3;
    if (lane < 4) { device_table[lane] = 1.0f; }
    atomicAdd(&device_counter, 5);
    if (!right) { atomicAdd(wrong, 1); }
}

TEST(test_intrinsics) {
    const float table[4] = {1.0f, 2.0f, 21.0f, 4.0f};
    int counter = 1;
    float *device, one = 0.0f;
    cudaMemcpyToSymbol(constants, table, sizeof(table));
    cudaMemcpyToSymbol(device_counter, &counter, sizeof(counter));
    Buffer<float4> in(std::vector<float4>(1, make_float4(1.0f, 2.0f, 3.0f, 4.0f)));
    Buffer<float2> out(32);
    Buffer<int> wrong(std::vector<int>(1, 0));
    intrinsics<<<1, 32>>>(out.data, in.data, wrong.data, 0.7f);
    CHECK(t, wrong.host()[0] == 0, "%d lanes disagree", wrong.host()[0]);
    CHECK(t, out.host()[31].x == 3.0f && out.host()[31].y == 3.0f, "%g %g", out.host()[31].x, out.host()[31].y);
    cudaMemcpyFromSymbol(&counter, device_counter, sizeof(counter));
    cudaGetSymbolAddress(&device, device_table);
    cudaMemcpy(&one, device + 2, sizeof(one), cudaMemcpyDeviceToHost);
    CHECK(t, counter == 1 + 32 * 5 && one == 1.0f, "device variables: %d, %g", counter, one);
}

// A signal may come at any moment: its handler is host code, never a part of a kernel.
static volatile sig_atomic_t ticks;
static void on_tick(int) { ticks = ticks + 1; }

TEST(test_signals) {
    const itimerval often = {{0, 500}, {0, 500}}, never = {};
    Buffer<int> sums(27), wrong(std::vector<int>(1, 0));
    signal(SIGALRM, on_tick);
    setitimer(ITIMER_REAL, &often, nullptr);
    for (int i = 0; i < 2000 && ticks < 50; i++) { use_groups<<<3, dim3(16, 4)>>>(sums.data, wrong.data); }
    setitimer(ITIMER_REAL, &never, nullptr);
    CHECK(t, ticks >= 20 && wrong.host()[0] == 0, "%d signals, %d threads disagree", int(ticks), wrong.host()[0]);
}

// ---- wmma ----

// D = A B + C for a tile, with A by rows or columns, B by rows or columns, C and D by rows or columns.
template <class T, class Sum, class LayoutA, class LayoutB>
__global__ void multiply_tile(Sum *d, const T *a, const T *b, const Sum *c, wmma::layout_t layout) {
    __shared__ __align__(32) T tile[16 * 24];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, LayoutA> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, LayoutB> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, Sum> sum, start;
    for (int i = int(threadIdx.x); i < 16 * 24; i += 32) { tile[i] = a[i]; }
    __syncwarp();
    wmma::load_matrix_sync(left, tile, 24);
    wmma::load_matrix_sync(right, b, 32);
    wmma::load_matrix_sync(start, c, 16, layout);
    wmma::fill_fragment(sum, 0.0f);
    wmma::mma_sync(sum, left, right, sum);
    for (int i = 0; i < sum.num_elements; i++) { sum.x[i] = Sum(float(sum.x[i]) + float(start.x[i])); }
    wmma::store_matrix_sync(d, sum, 16, layout);
}

template <class T, class Sum, class LayoutA, class LayoutB> static void check_tile(Test *t, wmma::layout_t layout) {
    std::vector<float> a(16 * 24), b(16 * 32), c(256);
    for (size_t i = 0; i < a.size(); i++) { a[i] = float(i * 7 % 11) - 5.0f; }
    for (size_t i = 0; i < b.size(); i++) { b[i] = float(i * 5 % 7) - 3.0f; }
    for (size_t i = 0; i < c.size(); i++) { c[i] = float(i % 13); }
    Buffer<T> A(std::vector<T>(a.begin(), a.end())), B(std::vector<T>(b.begin(), b.end()));
    Buffer<Sum> C(std::vector<Sum>(c.begin(), c.end())), D(256);
    multiply_tile<T, Sum, LayoutA, LayoutB><<<1, 32>>>(D.data, A.data, B.data, C.data, layout);
    std::vector<Sum> got = D.host();
    bool a_by_rows = std::is_same_v<LayoutA, wmma::row_major>, b_by_rows = std::is_same_v<LayoutB, wmma::row_major>;
    for (int m = 0; m < 16; m++) {
        for (int n = 0; n < 16; n++) {
            int at = layout == wmma::mem_row_major ? 16 * m + n : 16 * n + m;
            float want = c[at];
            for (int k = 0; k < 16; k++) {
                want += (a_by_rows ? a[24 * m + k] : a[24 * k + m]) * (b_by_rows ? b[32 * k + n] : b[32 * n + k]);
            }
            CHECK(t, float(got[at]) == want, "(%d, %d): %g, expected %g", m, n, float(got[at]), want);
        }
    }
}

TEST(test_wmma) {
    check_tile<__half, float, wmma::row_major, wmma::col_major>(t, wmma::mem_row_major);
    check_tile<__half, __half, wmma::col_major, wmma::row_major>(t, wmma::mem_col_major);
    check_tile<__nv_bfloat16, float, wmma::row_major, wmma::row_major>(t, wmma::mem_row_major);
    check_tile<__nv_bfloat16, float, wmma::col_major, wmma::col_major>(t, wmma::mem_col_major);
}

__global__ void add_value(float *data, int n, float x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { data[i] += x; }
}

TEST(test_questions_about_kernels) {
    int grid = 0, block = 0, fit = 0, value = 0;
    cudaFuncAttributes attributes;
    cudaDeviceProp p;
    CHECK(t, cudaOccupancyMaxPotentialBlockSize(&grid, &block, add_value) == cudaSuccess, "block size");
    cudaGetDeviceProperties(&p, 0);
    CHECK(t, block == 1024 && grid == 2 * p.multiProcessorCount, "block %d, grid %d", block, grid);
    cudaOccupancyMaxPotentialBlockSize(&grid, &block, add_value, 0, 256);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, add_value, 256, 0);
    CHECK(t, block == 256 && fit == 8 && grid == 8 * p.multiProcessorCount, "block %d, %d fit", block, fit);
    CHECK(t, cudaFuncGetAttributes(&attributes, add_value) == cudaSuccess && attributes.numRegs > 0, "attributes");
    CHECK(t, cudaFuncSetCacheConfig(add_value, cudaFuncCachePreferL1) == cudaSuccess, "cache");
    CHECK(t, p.managedMemory == 1 && p.clockRate > 0 && p.cooperativeLaunch == 1, "properties");
    CHECK(t, cudaDeviceGetAttribute(&value, cudaDevAttrManagedMemory, 0) == cudaSuccess && value == 1, "managed");
}

// ---- cuBLAS: small integers, so that every sum is exact ----

static float small_integer(size_t i) { return float(int(i * 2654435761u >> 7 & 7) - 3); }

static std::vector<float> small_integers(size_t n, size_t salt) {
    std::vector<float> values(n);
    for (size_t i = 0; i < n; i++) { values[i] = small_integer(i + 1000 * salt); }
    return values;
}
template <class To, class From> static std::vector<To> converted(const std::vector<From> &x) {
    return std::vector<To>(x.begin(), x.end());
}

struct Product {
    cublasOperation_t op_a, op_b;
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
    size_t size_a() const { return size_t(lda) * (op_a == CUBLAS_OP_N ? k : m); }
    size_t size_b() const { return size_t(ldb) * (op_b == CUBLAS_OP_N ? n : k); }
    size_t size_c() const { return size_t(ldc) * n; }
    std::vector<float> result(const float *A, const float *B, const float *C) const {
        std::vector<float> D(C, C + size_c());
        for (int i = 0; i < m; i++) {
            for (int j = 0; j < n; j++) {
                float sum = 0.0f;
                for (int l = 0; l < k; l++) {
                    float a = op_a == CUBLAS_OP_N ? A[i + l * lda] : A[l + i * lda];
                    sum += a * (op_b == CUBLAS_OP_N ? B[l + j * ldb] : B[j + l * ldb]);
                }
                D[i + j * ldc] = alpha * sum + beta * C[i + j * ldc];
            }
        }
        return D;
    }
};

static const Product PRODUCTS[] = {
    {CUBLAS_OP_N, CUBLAS_OP_N, 5, 4, 7, 5, 7, 5, 1.0f, 0.0f},
    {CUBLAS_OP_T, CUBLAS_OP_N, 5, 4, 7, 9, 8, 6, 2.0f, 1.0f},
    {CUBLAS_OP_N, CUBLAS_OP_T, 3, 6, 2, 4, 6, 3, -1.0f, 2.0f},
    {CUBLAS_OP_T, CUBLAS_OP_C, 4, 4, 4, 5, 5, 7, 0.5f, -1.0f},
    {CUBLAS_OP_N, CUBLAS_OP_N, 3, 2, 0, 3, 1, 3, 1.0f, 2.0f},
};

struct Blas {
    cublasHandle_t handle;
    Blas() { cublasCreate(&handle); }
    ~Blas() { cublasDestroy(handle); }
};

// Three products: one by one, in one call with strides, and in one call with pointers.
static void check_sgemm(Test *t, cublasHandle_t handle, const Product &p) {
    const size_t na = p.size_a() + 3, nb = p.size_b() + 2, nc = p.size_c() + 1;
    std::vector<float> a = small_integers(3 * na, 1), b = small_integers(3 * nb, 2), c = small_integers(3 * nc, 3),
                       want = c;
    std::vector<float *> as, bs, ds;
    Buffer<float> A(a), B(b), C(c), D(c), E(c);
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < 3; i++) {
        std::vector<float> one = p.result(&a[i * na], &b[i * nb], &c[i * nc]);
        std::copy(one.begin(), one.end(), want.begin() + ptrdiff_t(i * nc));
        as.push_back(A.data + i * na), bs.push_back(B.data + i * nb), ds.push_back(D.data + i * nc);
        status = cublasSgemm(handle, p.op_a, p.op_b, p.m, p.n, p.k, &p.alpha, as[i], p.lda, bs[i], p.ldb, &p.beta,
                             E.data + i * nc, p.ldc);
        CHECK(t, status == CUBLAS_STATUS_SUCCESS, "m %d n %d k %d: %d", p.m, p.n, p.k, status);
    }
    CHECK(t, E.host() == want, "one by one: m %d n %d k %d", p.m, p.n, p.k);
    status = cublasSgemmStridedBatched(handle, p.op_a, p.op_b, p.m, p.n, p.k, &p.alpha, A.data, p.lda, (long long)na,
                                       B.data, p.ldb, (long long)nb, &p.beta, C.data, p.ldc, (long long)nc, 3);
    CHECK(t, status == CUBLAS_STATUS_SUCCESS && C.host() == want, "strided: %d", status);
    Buffer<float *> A_pointers(as), B_pointers(bs), D_pointers(ds);
    status = cublasSgemmBatched(handle, p.op_a, p.op_b, p.m, p.n, p.k, &p.alpha, A_pointers.data, p.lda,
                                B_pointers.data, p.ldb, &p.beta, D_pointers.data, p.ldc, 3);
    CHECK(t, status == CUBLAS_STATUS_SUCCESS && D.host() == want, "by pointers: %d", status);
}

TEST(test_cublas_sgemm) {
    Blas blas;
    for (const Product &p : PRODUCTS) { check_sgemm(t, blas.handle, p); }
}

template <class In, class Out>
static void check_gemm_ex(Test *t, cublasHandle_t handle, cudaDataType in, cudaDataType out) {
    const Product &p = PRODUCTS[2];
    std::vector<float> a = small_integers(p.size_a(), 1), b = small_integers(p.size_b(), 2);
    std::vector<float> c = small_integers(p.size_c(), 3), want = p.result(a.data(), b.data(), c.data());
    Buffer<In> A(converted<In>(a)), B(converted<In>(b));
    Buffer<Out> C(converted<Out>(c)), D(converted<Out>(c));
    cublasStatus_t status = cublasGemmEx(handle, p.op_a, p.op_b, p.m, p.n, p.k, &p.alpha, A.data, in, p.lda, B.data, in,
                                         p.ldb, &p.beta, C.data, out, p.ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    CHECK(t, status == CUBLAS_STATUS_SUCCESS && converted<float>(C.host()) == want, "%d, %d: %d", in, out, status);
    status = cublasGemmStridedBatchedEx(handle, p.op_a, p.op_b, p.m, p.n, p.k, &p.alpha, A.data, in, p.lda, 0, B.data,
                                        in, p.ldb, 0, &p.beta, D.data, out, p.ldc, 0, 1, CUBLAS_COMPUTE_32F,
                                        CUBLAS_GEMM_DEFAULT);
    CHECK(t, status == CUBLAS_STATUS_SUCCESS && converted<float>(D.host()) == want, "%d, %d: %d", in, out, status);
}

TEST(test_cublas_types) {
    Blas blas;
    check_gemm_ex<float, float>(t, blas.handle, CUDA_R_32F, CUDA_R_32F);
    check_gemm_ex<__half, __half>(t, blas.handle, CUDA_R_16F, CUDA_R_16F);
    check_gemm_ex<__half, float>(t, blas.handle, CUDA_R_16F, CUDA_R_32F);
    check_gemm_ex<__nv_bfloat16, __nv_bfloat16>(t, blas.handle, CUDA_R_16BF, CUDA_R_16BF);
    check_gemm_ex<__nv_bfloat16, float>(t, blas.handle, CUDA_R_16BF, CUDA_R_32F);
    float one = 1.0f, zero = 0.0f, thousandth = 1.0009765625f + 0.0001f; // tf32 keeps 10 bits
    Buffer<float> A(std::vector<float>(1, thousandth)), B(std::vector<float>(1, 1.0f)), C(1);
    for (bool tf32 : {true, false}) {
        cublasSetMathMode(blas.handle, tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH);
        cublasSgemm(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, A.data, 1, B.data, 1, &zero, C.data, 1);
        CHECK(t, C.host()[0] == (tf32 ? 1.0009765625f : thousandth), "tf32 %d: %.9g", tf32, C.host()[0]);
    }
}

TEST(test_cublas_vectors) {
    Blas blas;
    const std::vector<float> a = small_integers(40, 1), x = small_integers(16, 2), y = small_integers(16, 3);
    Buffer<float> A(a), X(x), Y(y), result(1);
    float two = 2.0f, minus = -1.0f, dot = 0.0f, norm = 0.0f;
    cublasSaxpy(blas.handle, 5, &two, X.data, 3, Y.data, -2); // y[8 - 2 i] += 2 x[3 i]
    std::vector<float> want = y, got;
    for (int i = 0; i < 5; i++) { want[8 - 2 * i] += 2.0f * x[3 * i]; }
    CHECK(t, Y.host() == want, "axpy");
    cublasSscal(blas.handle, 4, &minus, Y.data, 2);
    for (int i = 0; i < 4; i++) { want[2 * i] = -want[2 * i]; }
    CHECK(t, Y.host() == want, "scal");
    float sum = 0.0f, square = 0.0f;
    for (int i = 0; i < 8; i++) { sum += x[2 * i] * want[i], square += want[i] * want[i]; }
    cublasSdot(blas.handle, 8, X.data, 2, Y.data, 1, &dot);
    cublasSnrm2(blas.handle, 8, Y.data, 1, &norm);
    CHECK(t, dot == sum && norm == sqrtf(square), "dot %g, norm %g", dot, norm);
    for (int transposed = 0; transposed < 2; transposed++) { // A (4, 3) in columns of 5
        int rows = transposed ? 3 : 4, cols = 7 - rows;
        std::vector<float> before = Y.host(), after = before;
        for (int i = 0; i < rows; i++) {
            float dots = 0.0f;
            for (int j = 0; j < cols; j++) { dots += (transposed ? a[j + 5 * i] : a[i + 5 * j]) * x[2 * j]; }
            after[3 * i] = 2.0f * dots - before[3 * i];
        }
        cublasSgemv(blas.handle, transposed ? CUBLAS_OP_T : CUBLAS_OP_N, 4, 3, &two, A.data, 5, X.data, 2, &minus,
                    Y.data, 3);
        CHECK(t, Y.host() == after, "gemv %d", transposed);
    }
    cublasSetPointerMode(blas.handle, CUBLAS_POINTER_MODE_DEVICE);
    cublasSdot(blas.handle, 1, X.data, 1, X.data, 1, result.data);
    cublasSscal(blas.handle, 1, result.data, result.data, 1);
    CHECK(t, result.host()[0] == powf(x[0], 4.0f), "on the device: %g", result.host()[0]);
    float box[6] = {1, 2, 3, 4, 5, 6}, back[4] = {0, 0, 0, 0};
    Buffer<float> M(6);
    cublasSetMatrix(2, 2, sizeof(float), box, 3, M.data, 2);
    cublasGetVector(2, sizeof(float), M.data, 2, back, 3);
    CHECK(t, back[0] == 1.0f && back[3] == 4.0f && back[1] == 0.0f, "copies: %g %g", back[0], back[3]);
}

TEST(test_cublas_refusals) {
    Blas blas;
    Buffer<double> A(std::vector<double>(4, 1.0));
    float one = 1.0f, *data = reinterpret_cast<float *>(A.data);
    cublasOperation_t n = CUBLAS_OP_N;
    CHECK(t,
          cublasSgemm(nullptr, n, n, 1, 1, 1, &one, data, 1, data, 1, &one, data, 1) == CUBLAS_STATUS_NOT_INITIALIZED,
          "no handle");
    CHECK(t,
          cublasSgemm(blas.handle, n, n, 2, 1, 1, &one, data, 1, data, 1, &one, data, 2) == CUBLAS_STATUS_INVALID_VALUE,
          "lda below m");
    char said[200] = "";
    int standard_error = dup(2), file = memfd_create("said", MFD_CLOEXEC);
    dup2(file, 2);
    cublasStatus_t status = cublasGemmEx(blas.handle, n, n, 1, 1, 1, &one, data, CUDA_R_64F, 1, data, CUDA_R_64F, 1,
                                         &one, data, CUDA_R_64F, 1, CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT);
    dup2(standard_error, 2);
    close(standard_error);
    bool named = pread(file, said, sizeof(said) - 1, 0) > 0 && strstr(said, "cublasGemmEx of CUDA_R_64F x") != nullptr;
    close(file);
    CHECK(t, status == CUBLAS_STATUS_NOT_SUPPORTED && named, "double: %s, %s", cublasGetStatusString(status), said);
}

// ---- Managed memory, copies of rows ----

TEST(test_managed_memory) {
    float *data, copy[100];
    cudaPointerAttributes attributes;
    CHECK(t, cudaMallocManaged(&data, sizeof(copy)) == cudaSuccess, "managed");
    for (int i = 0; i < 100; i++) { data[i] = float(i); }
    CHECK(t, cudaMemPrefetchAsync(data, sizeof(copy), 0) == cudaSuccess, "prefetch of CUDA 12");
    CHECK(t, cudaMemPrefetchAsync(data, sizeof(copy), {cudaMemLocationTypeDevice, 0}, 0) == cudaSuccess, "of CUDA 13");
    CHECK(t, cudaMemAdvise(data, sizeof(copy), cudaMemAdviseSetReadMostly, 0) == cudaSuccess, "advise");
    CHECK(t, cudaMemPrefetchAsync(copy, sizeof(copy), 0) == cudaErrorInvalidValue, "prefetch of other memory");
    cudaGetLastError();
    cudaPointerGetAttributes(&attributes, data + 3);
    CHECK(t, attributes.type == cudaMemoryTypeManaged, "type %d", attributes.type);
    add_value<<<1, 128>>>(data, 100, 0.5f);
    cudaMemcpy(copy, data, sizeof(copy), cudaMemcpyDeviceToHost);
    cudaMemcpy(data, copy, sizeof(copy) / 2, cudaMemcpyHostToDevice);
    for (int i = 0; i < 100; i++) { CHECK(t, data[i] == i + 0.5f && copy[i] == data[i], "%d: %g", i, data[i]); }
    cudaFree(data);
}

TEST(test_copies_of_rows) {
    std::vector<int> host(5 * 7);
    for (int i = 0; i < 35; i++) { host[i] = i; }
    int *device, back[3 * 4];
    size_t pitch;
    cudaMallocPitch(&device, &pitch, 4 * sizeof(int), 3);
    CHECK(t, pitch % 256 == 0 && pitch >= 16, "pitch %zu", pitch);
    cudaMemset2D(device, pitch, 0, 4 * sizeof(int), 3);
    cudaMemcpy2D(device, pitch, &host[8], 7 * sizeof(int), 3 * sizeof(int), 3, cudaMemcpyHostToDevice);
    cudaMemcpy2D(back, 4 * sizeof(int), device, pitch, 4 * sizeof(int), 3, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 12; i++) {
        int want = i % 4 < 3 ? 8 + i / 4 * 7 + i % 4 : 0;
        CHECK(t, back[i] == want, "%d: %d, expected %d", i, back[i], want);
    }
    CHECK(t, cudaMemcpy2D(device, 8, &host[8], 28, 12, 3, cudaMemcpyHostToDevice) == cudaErrorInvalidPitchValue,
          "pitch");
    cudaGetLastError();
    cudaFree(device);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
