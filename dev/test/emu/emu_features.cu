// What the emulator must do as a GPU does, and no program of dev/test/emu/courses shows. test_compilers.py also runs it
// with AddressSanitizer.
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <emu.h>
#include <emu_ptx.h>
#include <signal.h>
#include <sys/time.h>
#include <vector>

#include "dev/test/test_main.h"

#define FULL 0xffffffffu
namespace cg = cooperative_groups;

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

// Small integers, so that every sum is exact.
static std::vector<float> small_integers(size_t n, size_t salt) {
    std::vector<float> values(n);
    for (size_t i = 0; i < n; i++) { values[i] = float(int((i + 1000 * salt) * 2654435761u >> 7 & 7) - 3); }
    return values;
}

// ---- Indices in three dimensions ----

__global__ void store_numbers(int *out) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    out[i] = int(i);
}
TEST(test_indices) {
    Buffer<int> out(24 * 60);
    store_numbers<<<dim3(2, 3, 4), dim3(5, 4, 3)>>>(out.data);
    const std::vector<int> got = out.host();
    for (int i = 0; i < 24 * 60; i++) { CHECK(t, got[i] == i, "thread %d of the grid stored %d", i, got[i]); }
}

// ---- Warp functions ----

__global__ void use_warps(int *wrong) {
    int i = int(threadIdx.x), lane = i % 32, first = lane / 8 * 8, odd = i % 2;
    bool right = __shfl_sync(FULL, lane, 5, 8) == first + 5 && __shfl_xor_sync(FULL, double(lane), 4) == (lane ^ 4);
    right &= __shfl_up_sync(FULL, lane, 3, 8) == (lane - 3 < first ? lane : lane - 3);
    right &= __shfl_down_sync(FULL, lane, 3, 8) == (lane + 3 < first + 8 ? lane + 3 : lane);
    right &= float(__shfl_xor_sync(FULL, __float2bfloat16(float(lane)), 1)) == float(lane ^ 1);
    right &= __ballot_sync(FULL, lane % 3 == 0) == 0x49249249 && __any_sync(FULL, lane == 9);
    right &= !__any_sync(FULL, lane == 32) && __all_sync(FULL, lane < 32) && !__all_sync(FULL, lane < 31);
    if (lane < 16) { right &= __ballot_sync(0xffff, lane == 1) == 2; }
    if (lane >= 16) { right &= __ballot_sync(0xffff0000, lane == 17) == 1 << 17; }
    right &= __syncthreads_count(odd) == 32 && __syncthreads_and(i < 64) && !__syncthreads_and(i < 63);
    right &= __syncthreads_or(i == 63) && !__syncthreads_or(i == 64);
    if (!right) { atomicAdd(wrong, 1); }
}

TEST(test_warp_functions) {
    Buffer<int> wrong(std::vector<int>(1, 0));
    use_warps<<<1, 64>>>(wrong.data);
    CHECK(t, wrong.host()[0] == 0, "%d threads disagree", wrong.host()[0]);
}

// ---- Cooperative groups ----

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
    return right && __activemask() == (i < 32 ? 0x49249249 : 0x92492492);
}

__global__ void use_groups(int *wrong) {
    cg::thread_block block = cg::this_thread_block();
    cg::grid_group grid = cg::this_grid();
    int i = int(block.thread_rank());
    bool right = tile_is_right<1>(block, i) && tile_is_right<2>(block, i) && tile_is_right<4>(block, i);
    right = right && tile_is_right<8>(block, i) && tile_is_right<16>(block, i) && tile_is_right<32>(block, i);
    right &= block.size() == 64 && block.group_index().x == blockIdx.x && block.thread_index().y == threadIdx.y;
    right &= block.dim_threads().y == 4 && grid.size() == 192 && grid.thread_rank() == 64 * blockIdx.x + unsigned(i);
    if (i % 3 == 0) { right &= third_is_right(cg::coalesced_threads(), i); }
    if (!right) { atomicAdd(wrong, 1); }
}

// A signal may come at any moment: its handler is host code, never a part of a kernel.
static volatile sig_atomic_t ticks;
static void on_tick(int) { ticks = ticks + 1; }

TEST(test_groups_and_signals) {
    const itimerval often = {{0, 500}, {0, 500}}, never = {};
    Buffer<int> wrong(std::vector<int>(1, 0));
    signal(SIGALRM, on_tick);
    setitimer(ITIMER_REAL, &often, nullptr);
    for (int i = 0; i < 2000 && ticks < 50; i++) { use_groups<<<3, dim3(16, 4)>>>(wrong.data); }
    setitimer(ITIMER_REAL, &never, nullptr);
    CHECK(t, ticks >= 20 && wrong.host()[0] == 0, "%d signals, %d threads disagree", int(ticks), wrong.host()[0]);
}

// ---- Atomics ----

struct Totals {
    int low, high, swaps, last;
    unsigned bits, wraps, left, least;
    unsigned long long largest;
    double twice;
    __half half;
    __nv_bfloat16 bf16;
    __half2 halves;
    __nv_bfloat162 bf16s;
    float4 four;
    unsigned short token;
};
__global__ void count(Totals *totals) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicMin(&totals->low, -i);
    atomicMax(&totals->high, i);
    atomicOr(&totals->bits, 1u << (i % 32));
    atomicMax(&totals->largest, 1ull << 40 | threadIdx.x);
    atomicAdd(&totals->twice, 2.0);
    atomicInc(&totals->wraps, 6);
    atomicSub(&totals->left, 3u);
    atomicMin_system(&totals->least, blockIdx.x + 5);
    if (atomicCAS(&totals->swaps, i, i + 1) == i) { atomicExch(&totals->last, 9); }
    atomicCAS(&totals->token, static_cast<unsigned short>(threadIdx.x), static_cast<unsigned short>(threadIdx.x + 1));
    atomicAdd(&totals->half, __float2half(0.5f));
    atomicAdd(&totals->bf16, __float2bfloat16(0.25f));
    atomicAdd(&totals->halves, __floats2half2_rn(1.0f, -2.0f));
    atomicAdd(&totals->bf16s, __floats2bfloat162_rn(3.0f, -1.0f));
    atomicAdd(&totals->four, make_float4(1.0f, 2.0f, 3.0f, 4.0f));
}

TEST(test_atomics) {
    Totals start = Totals();
    start.left = 1000, start.least = 100;
    Buffer<Totals> totals(std::vector<Totals>(1, start));
    count<<<4, 20>>>(totals.data);
    Totals got = totals.host()[0];
    CHECK(t, got.low == -79 && got.high == 79 && got.bits == FULL && got.last == 9, "%d %d 0x%08x %d", got.low,
          got.high, got.bits, got.last);
    CHECK(t, got.largest == (1ull << 40 | 19) && got.twice == 160.0, "%llu %g", got.largest, got.twice);
    CHECK(t, got.wraps == 80 % 7 && got.left == 760 && got.least == 5, "%u %u %u", got.wraps, got.left, got.least);
    CHECK(t, got.swaps >= 1 && got.swaps <= 80 && got.token >= 1 && got.token <= 20, "%d %d", got.swaps, got.token);
    CHECK(t, float(got.half) == 40.0f && float(got.bf16) == 20.0f, "%g %g", float(got.half), float(got.bf16));
    CHECK(t, float(got.halves.y) == -160.0f && float(got.bf16s.x) == 240.0f && got.four.w == 320.0f, "vectors");
}

// ---- A matrix instruction that llmc does not use ----

__global__ void mma_tf32(float *D, const float *A, const float *B) {
    int g = threadIdx.x / 4, k = threadIdx.x % 4;
    uint32_t a[4], b[2];
    float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    for (int i = 0; i < 4; i++) { a[i] = __float_as_uint(A[(g + i % 2 * 8) * 8 + k + i / 2 * 4]); }
    for (int i = 0; i < 2; i++) { b[i] = __float_as_uint(B[g * 8 + k + i * 4]); }
    emu::mma_m16n8k8_tf32(d, a, b, d);
    for (int i = 0; i < 4; i++) { D[(g + i / 2 * 8) * 8 + k * 2 + i % 2] = d[i]; }
}

TEST(test_mma_tf32) {
    std::vector<float> A = small_integers(128, 1), B = small_integers(64, 2);
    Buffer<float> a(A), b(B), d(128);
    mma_tf32<<<1, 32>>>(d.data, a.data, b.data);
    std::vector<float> D = d.host();
    for (int i = 0; i < 128; i++) {
        float want = 1.0f;
        for (int k = 0; k < 8; k++) { want += A[i / 8 * 8 + k] * B[i % 8 * 8 + k]; }
        CHECK(t, D[i] == want, "D[%d][%d] = %g, want %g", i / 8, i % 8, D[i], want);
    }
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
    int count = 0;
    char bus[2][16] = {"", ""};
    CHECK(t, cudaGetDeviceCount(&count) == cudaSuccess && count == 8, "%d devices", count);
    CHECK(t, cudaGetDeviceProperties(&p, 0) == cudaSuccess && p.major == 9 && p.warpSize == 32, "%s", p.name);
    CHECK(t, cudaSetDevice(8) == cudaErrorInvalidDevice && cudaGetLastError() == cudaErrorInvalidDevice, "device 8");
    cudaDeviceGetPCIBusId(bus[0], 16, 0), cudaDeviceGetPCIBusId(bus[1], 16, 7);
    CHECK(t, strcmp(bus[0], bus[1]) != 0, "two devices at the bus address %s", bus[0]);
    size_t free_bytes, total, now_free;
    int64_t allocations = emu::allocation_count();
    cudaMemGetInfo(&free_bytes, &total);
    void *huge = &huge;
    CHECK(t, cudaMalloc(&huge, total + 1) == cudaErrorMemoryAllocation && huge == nullptr, "too much memory");
    CHECK(t, cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess, "last error");
    Buffer<char> some(1000);
    cudaMemGetInfo(&now_free, &total);
    CHECK(t, now_free == free_bytes - 1000 && uintptr_t(some.data) % 256 == 0, "%zu of %zu", now_free, free_bytes);
    CHECK(t, emu::allocation_count() == allocations + 1, "allocations");
    cudaError_t too_much =
        cudaFuncSetAttribute(use_warps, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10); // 227 KiB are there
    CHECK(t, too_much == cudaErrorInvalidValue && cudaGetLastError() == too_much, "228 KiB of shared memory accepted");
}

TEST(test_managed_memory) {
    float *data, other = 0.0f;
    cudaPointerAttributes attributes;
    cudaMallocManaged(&data, sizeof(float));
    CHECK(t, cudaMemPrefetchAsync(data, sizeof(float), 0) == cudaSuccess, "prefetch of CUDA 12");
    CHECK(t, cudaMemPrefetchAsync(data, 4, {cudaMemLocationTypeDevice, 0}, 0) == cudaSuccess, "of CUDA 13");
    CHECK(t, cudaMemPrefetchAsync(&other, 4, 0) == cudaErrorInvalidValue, "prefetch of other memory");
    cudaGetLastError();
    cudaPointerGetAttributes(&attributes, data);
    CHECK(t, attributes.type == cudaMemoryTypeManaged, "type %d", attributes.type);
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
    cudaFree(device);
}

// ---- Intrinsics, device variables ----

__device__ float device_table[4];

__global__ void intrinsics(int *wrong, float x) {
    int lane = int(threadIdx.x), value = 10 - lane, all = 0;
    float s, c;
    sincosf(x, &s, &c);
    bool right = s == sinf(x) && c == cosf(x) && norm3df(2.0f, 3.0f, 6.0f) == 7.0f && rcbrtf(8.0f) == 0.5f;
    right &= rsqrtf(4.0f) == 0.5f && __expf(0.0f) == 1.0f && fmaxf(1.0f, 2.0f) == 2.0f && min(3, 4) == 3;
    right &= __popc(0xf0u) == 4 && __clz(1) == 31 && __ffs(8) == 4 && __brev(1u) == 1u << 31 && max(1.0f, 5.0f) == 5.0f;
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
    if (!right) { atomicAdd(wrong, 1); }
}

TEST(test_intrinsics) {
    float *device, one = 0.0f;
    Buffer<int> wrong(std::vector<int>(1, 0));
    intrinsics<<<1, 32>>>(wrong.data, 0.7f);
    CHECK(t, wrong.host()[0] == 0, "%d lanes disagree", wrong.host()[0]);
    cudaGetSymbolAddress(&device, device_table);
    cudaMemcpy(&one, device + 2, sizeof(one), cudaMemcpyDeviceToHost);
    CHECK(t, one == 1.0f, "a device variable: %g", one);
}

// ---- cuBLAS. The engine is that of emu_cublaslt.cu ----

struct Blas {
    cublasHandle_t handle;
    Blas() { cublasCreate(&handle); }
    ~Blas() { cublasDestroy(handle); }
};

// D (3, 6) = 2 C - A B^T in columns of 4 (A), 7 (B) and 5 (C), for three matrices, by each function.
template <class In, class Out> struct Products {
    enum { M = 3, N = 6, K = 2, LDA = 4, LDB = 7, LDC = 5, BATCH = 3, SIZE_A = 9, SIZE_B = 15, SIZE_C = 31 };
    std::vector<float> a = small_integers(BATCH * SIZE_A, 1), b = small_integers(BATCH * SIZE_B, 2);
    std::vector<float> c = small_integers(BATCH * SIZE_C, 3), want = c;
    Buffer<In> A{std::vector<In>(a.begin(), a.end())}, B{std::vector<In>(b.begin(), b.end())};
    Buffer<Out> D{BATCH * SIZE_C};
    Products() {
        for (int at = 0; at < BATCH * M * N; at++) {
            int matrix = at / (M * N), i = at % M, j = at / M % N;
            float sum = 0.0f;
            for (int k = 0; k < K; k++) { sum += a[matrix * SIZE_A + i + k * LDA] * b[matrix * SIZE_B + j + k * LDB]; }
            want[matrix * SIZE_C + i + j * LDC] = 2.0f * c[matrix * SIZE_C + i + j * LDC] - sum;
        }
    }
    template <class Call> void check(Test *t, const char *name, Call call) {
        const std::vector<Out> before(c.begin(), c.end());
        cudaMemcpy(D.data, before.data(), before.size() * sizeof(Out), cudaMemcpyHostToDevice);
        cublasStatus_t status = call();
        std::vector<Out> got = D.host();
        CHECK(t, status == CUBLAS_STATUS_SUCCESS && std::vector<float>(got.begin(), got.end()) == want,
              "%s of %zu into %zu bytes: %d", name, sizeof(In), sizeof(Out), status);
    }
};

static const float minus_one = -1.0f, two = 2.0f;
static const cublasOperation_t PLAIN = CUBLAS_OP_N, TRANSPOSED = CUBLAS_OP_T;

TEST(test_cublas_sgemm) {
    Blas blas;
    Products<float, float> p;
    typedef Products<float, float> P;
    p.check(t, "cublasSgemm", [&] {
        cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
        for (int i = 0; i < P::BATCH && status == CUBLAS_STATUS_SUCCESS; i++) {
            status = cublasSgemm(blas.handle, PLAIN, TRANSPOSED, P::M, P::N, P::K, &minus_one,
                                 p.A.data + i * P::SIZE_A, P::LDA, p.B.data + i * P::SIZE_B, P::LDB, &two,
                                 p.D.data + i * P::SIZE_C, P::LDC);
        }
        return status;
    });
    p.check(t, "cublasSgemmStridedBatched", [&] {
        return cublasSgemmStridedBatched(blas.handle, PLAIN, TRANSPOSED, P::M, P::N, P::K, &minus_one, p.A.data, P::LDA,
                                         P::SIZE_A, p.B.data, P::LDB, P::SIZE_B, &two, p.D.data, P::LDC, P::SIZE_C,
                                         P::BATCH);
    });
}

template <class In, class Out> static void check_gemm_ex(Test *t, cudaDataType in, cudaDataType out) {
    Blas blas;
    Products<In, Out> p;
    typedef Products<In, Out> P;
    p.check(t, "cublasGemmStridedBatchedEx", [&] {
        return cublasGemmStridedBatchedEx(blas.handle, PLAIN, TRANSPOSED, P::M, P::N, P::K, &minus_one, p.A.data, in,
                                          P::LDA, P::SIZE_A, p.B.data, in, P::LDB, P::SIZE_B, &two, p.D.data, out,
                                          P::LDC, P::SIZE_C, P::BATCH, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    });
}

TEST(test_cublas_types) {
    check_gemm_ex<float, float>(t, CUDA_R_32F, CUDA_R_32F);
    check_gemm_ex<__half, __half>(t, CUDA_R_16F, CUDA_R_16F);
    check_gemm_ex<__half, float>(t, CUDA_R_16F, CUDA_R_32F);
    check_gemm_ex<__nv_bfloat16, __nv_bfloat16>(t, CUDA_R_16BF, CUDA_R_16BF);
    check_gemm_ex<__nv_bfloat16, float>(t, CUDA_R_16BF, CUDA_R_32F);
}

TEST(test_cublas_refusals) {
    Blas blas;
    Buffer<double> A(std::vector<double>(4, 1.0));
    float *data = reinterpret_cast<float *>(A.data);
    cublasStatus_t none = cublasSgemm(nullptr, PLAIN, PLAIN, 1, 1, 1, &two, data, 1, data, 1, &two, data, 1);
    cublasStatus_t rows = cublasSgemm(blas.handle, PLAIN, PLAIN, 2, 1, 1, &two, data, 1, data, 1, &two, data, 2);
    cublasStatus_t type =
        cublasGemmEx(blas.handle, PLAIN, PLAIN, 1, 1, 1, &two, data, CUDA_R_64F, 1, data, CUDA_R_64F, 1, &two, data,
                     CUDA_R_64F, 1, CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT);
    CHECK(t, none == CUBLAS_STATUS_NOT_INITIALIZED, "no handle: %d", none);
    CHECK(t, rows == CUBLAS_STATUS_INVALID_VALUE, "columns shorter than m: %d", rows);
    CHECK(t, type == CUBLAS_STATUS_NOT_SUPPORTED, "double: %d", type);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
