// Chapter 14, a matrix multiply for the GPU: the worked example of doc/14_matmul_gpu.md, and the checks of its
// exercises.
#include "dev/exercises/metered.h"
#include "llmc/cuda/ptx.cuh"
#include "llmc/model/gpu_peak.h"

enum {
    SIDE = 32,     // rows, columns and channels of a tile in shared memory
    CHANNELS = 48, // of exercise 14.3
};

#include ANSWERS

// ---- The worked example: counts that follow from the sizes of tiles ----
//
// out (N,OC) = inp (N,C) weight (OC,C)^T in fp32.

// A thread a value. A warp has 32 columns of a row.
static __global__ void multiply_naive(float *out, const float *inp, const float *weight, int OC, int C) {
    int row = blockIdx.y * SIDE + threadIdx.y, column = blockIdx.x * SIDE + threadIdx.x;
    float sum = 0.0f;
    for (int c = 0; c < C; c++) { sum += inp[row * C + c] * weight[column * C + c]; }
    out[row * OC + column] = sum;
}

// A block has R SIDE x R SIDE values, and a thread R x R of them. Lanes have neighbouring columns.
template <int R>
static __global__ void multiply_tiled(float *out, const float *inp, const float *weight, int OC, int C) {
    __shared__ float inp_tile[R * SIDE][SIDE + 1], weight_tile[R * SIDE][SIDE + 1];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * R * SIDE, column = blockIdx.x * R * SIDE;
    float sums[R][R] = {};
    for (int c = 0; c < C; c += SIDE) {
        for (int i = y; i < R * SIDE; i += SIDE) {
            inp_tile[i][x] = inp[(row + i) * C + c + x];
            weight_tile[i][x] = weight[(column + i) * C + c + x];
        }
        __syncthreads();
        for (int k = 0; k < SIDE; k++) {
            float a[R], b[R];
            for (int i = 0; i < R; i++) {
                a[i] = inp_tile[y + i * SIDE][k];
                b[i] = weight_tile[x + i * SIDE][k];
            }
            for (int i = 0; i < R * R; i++) { sums[i / R][i % R] += a[i / R] * b[i % R]; }
        }
        __syncthreads();
    }
    for (int i = 0; i < R * R; i++) {
        out[(row + y + i / R * SIDE) * OC + column + x + i % R * SIDE] = sums[i / R][i % R];
    }
}

// Prints the bytes from the L2 cache and the wavefronts of shared memory, by formula and counted. 0: no formula.
static void print_counts(const char *name, double bytes, double wavefronts, const emu::Meter &m) {
    int counted = (int)(m.shared_loads.wavefronts + m.shared_stores.wavefronts);
    printf("%-26s %8.0f %8d %10.0f %8d %9.1f\n", name, bytes, bytes_of(m.loads) + bytes_of(m.stores), wavefronts,
           counted, (double)m.flops / (bytes_of(m.loads) + bytes_of(m.stores)));
}

// The bytes of a product whose blocks have tile x tile values. Each reads its rows of both matrices.
static double tile_bytes(double N, double OC, double C, double tile, double size) {
    return size * N * OC * (2.0 * C / tile + 1.0);
}

// A warp stores 32 numbers of the tiles in a wavefront, and loads R + R for R x R values a lane.
static double tile_wavefronts(double N, double OC, double C, double tile, double R) {
    return N * OC * C / 32.0 * (2.0 / tile + 2.0 / R);
}

static void print_small(void) {
    const int N = 64, OC = 128, C = 64;
    DeviceArray<float> inp(random_values(N * C, 1.0f, 1)), weight(random_values(OC * C, 1.0f, 2)), out(N * OC);
    const dim3 block(SIDE, SIDE), blocks(OC / SIDE, N / SIDE), half(OC / SIDE / 2, N / SIDE / 2);
    printf("(64,64) times (128,64)^T       bytes from L2          wavefronts       FLOP\n");
    printf("                            formula  counted    formula  counted    a byte\n");
    print_counts("1 a thread a value", 32.0 * N * OC * (33.0 * C / 32.0 + 0.125), 0.0,
                 metered([&] { multiply_naive<<<blocks, block>>>(out.data, inp.data, weight.data, OC, C); }));
    print_counts("2 tiles of 32", tile_bytes(N, OC, C, 32, 4), tile_wavefronts(N, OC, C, 32, 1),
                 metered([&] { multiply_tiled<1><<<blocks, block>>>(out.data, inp.data, weight.data, OC, C); }));
    print_counts("3 tiles of 64, 2 x 2 a lane", tile_bytes(N, OC, C, 64, 4), tile_wavefronts(N, OC, C, 64, 2),
                 metered([&] { multiply_tiled<2><<<half, block>>>(out.data, inp.data, weight.data, OC, C); }));
}

// The bounds of tiles at GPT-2's shape in bf16. A wavefront of ldmatrix has 128 bytes, and so has one of a copy.
static void print_bounds(void) {
    const double N = 16384, OC = 3072, C = 768, flops = 2.0 * N * OC * C;
    const GpuPeak *h100 = gpu_peak_of_device("h100");
    double clocks = 1e12 * h100->teraflops[GPU_FP32] / 256.0; // of all multiprocessors: 128 multiply-adds a clock each
    printf("\n(16384,768) times (3072,768)^T in bf16 on an H100: tensor cores need %.1f us, memory %.1f us\n",
           1e-6 * flops / h100->teraflops[GPU_BF16],
           1e-3 * 2.0 * (N * C + OC * C + N * OC) / h100->gigabytes_per_second);
    for (double tile = 32; tile <= 256; tile *= 2) {
        printf("a block of %3.0f x %-3.0f  L2 %6.1f us, copies to shared memory %6.1f us\n", tile, tile,
               1e6 * tile_bytes(N, OC, C, tile, 2) / (5120.0 * clocks / h100->multiprocessors),
               1e6 * N * OC * C * 4.0 / tile / 128.0 / clocks);
    }
    static const double warps[][2] = {{16, 16}, {16, 128}, {64, 64}, {64, 128}};
    for (const double *warp : warps) {
        printf("a warp of  %3.0f x %-3.0f  reads of shared memory %6.1f us\n", warp[0], warp[1],
               1e6 * N * OC * C * 2.0 * (1.0 / warp[0] + 1.0 / warp[1]) / 128.0 / clocks);
    }
}

static void example(void) {
    print_small();
    print_bounds();
}

// ---- The checks ----

static void check_register_tile(Test *t) {
    const int N = 64, OC = 96, C = 64;
    std::vector<float> x = random_values(N * C, 1.0f, 1), w = random_values(OC * C, 1.0f, 2), want((size_t)(N * OC));
    DeviceArray<float> inp(x), weight(w), out(N * OC);
    out.poison();
    cpu_matmul_forward(want.data(), NULL, x.data(), w.data(), NULL, N, C, OC);
    emu::Meter m = metered([&] { multiply<<<dim3(OC / 32, N / 32), 64>>>(out.data, inp.data, weight.data, OC, C); });
    check_values(t, "out", out.get(), want, 2 * sum_tolerance(C) * largest(want), FLT_EPSILON);
    int bytes = (int)tile_bytes(N, OC, C, 32, 4), got = bytes_of(m.loads) + bytes_of(m.stores);
    CHECK(t, got <= bytes, "%d bytes moved, want at most %d: does a block load each number of its rows once?", got,
          bytes);
    int loads = N * OC * C / 32 / 2, wavefronts = (int)m.shared_loads.wavefronts;
    CHECK(t, wavefronts <= loads,
          "%d wavefronts of loads, want at most %d: 4 + 4 numbers for 16 products, and no bank conflicts", wavefronts,
          loads);
}

// Stores 64 rows of 4 pieces of 16 bytes, eight pieces of two rows at a time, and loads them as ldmatrix does.
static __global__ void load_pieces(int4 *out, const int4 *in) {
    __shared__ int4 tile[256];
    for (int i = threadIdx.x; i < 256; i += 32) { tile[place_of_piece(i / 4, i % 4)] = in[i]; }
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32) { out[i] = tile[place_of_piece(i % 64, i / 64)]; }
}

static void check_place_of_piece(Test *t) {
    std::vector<float> x = random_values(1024, 1.0f, 3), want(1024);
    std::vector<int> taken(256);
    DeviceArray<float> in(x), out(1024);
    for (int i = 0; i < 256; i++) {
        int place = place_of_piece(i / 4, i % 4);
        if (!CHECK(t, place >= 0 && place < 256 && taken[(size_t)place]++ == 0,
                   "row %d, piece %d: place %d does not exist or is taken", i / 4, i % 4, place)) {
            return;
        }
        for (int e = 0; e < 4; e++) { want[(size_t)(4 * i + e)] = x[(size_t)(i % 64 * 16 + i / 64 * 4 + e)]; }
    }
    emu::Meter m = metered([&] { load_pieces<<<1, 32>>>((int4 *)out.data, (const int4 *)in.data); });
    check_equal(t, "pieces", out.get(), want);
    CHECK(t, m.shared_loads.wavefronts == 4 * m.shared_loads.requests,
          "piece 0 of rows 0 to 7: %.1f wavefronts for a load, want 4: which places lie in the banks of place 0?",
          (double)m.shared_loads.wavefronts / (double)m.shared_loads.requests);
    CHECK(t, m.shared_stores.wavefronts == 4 * m.shared_stores.requests,
          "all pieces of rows 0 and 1: %.1f wavefronts for a store, want 4",
          (double)m.shared_stores.wavefronts / (double)m.shared_stores.requests);
}

static __global__ void run_warp_multiply(float *out, const __nv_bfloat16 *a, const __nv_bfloat16 *b) {
    __shared__ alignas(16) __nv_bfloat16 a_tile[32 * (CHANNELS + 8)], b_tile[32 * (CHANNELS + 8)];
    for (int i = threadIdx.x; i < 32 * CHANNELS; i += 32) {
        int place = i / CHANNELS * (CHANNELS + 8) + i % CHANNELS;
        a_tile[place] = a[i], b_tile[place] = b[i];
    }
    __syncwarp();
    warp_multiply(out, a_tile, b_tile);
}

static void check_warp_multiply(Test *t) {
    std::vector<float> a = random_eighths(32 * CHANNELS, 4), b = random_eighths(32 * CHANNELS, 5), want(1024);
    DeviceArray<__nv_bfloat16> left(a), right(b);
    DeviceArray<float> out(1024);
    out.poison();
    cpu_matmul_forward(want.data(), NULL, a.data(), b.data(), NULL, 32, CHANNELS, 32);
    emu::Meter m = metered([&] { run_warp_multiply<<<1, 32>>>(out.data, left.data, right.data); });
    check_equal(t, "out", out.get(), want);
    CHECK(t, m.tensor_flops == 2 * 32 * 32 * CHANNELS, "tensor cores: %d operations, want %d", (int)m.tensor_flops,
          2 * 32 * 32 * CHANNELS);
    int requests = 4 * CHANNELS / 16; // of ldmatrix_x4: two for 32 rows of 16 channels of each matrix
    CHECK(t, (int)m.shared_loads.requests <= requests,
          "%d loads of shared memory, want at most %d: does an operand that was loaded serve both halves of the other?",
          (int)m.shared_loads.requests, requests);
}

static const Exercise exercises[] = {{"14.1 a tile in registers", check_register_tile},
                                     {"14.2 swizzled rows of 64 bytes", check_place_of_piece},
                                     {"14.3 a warp's multiply on tensor cores", check_warp_multiply}};

int main(void) { return run_chapter("14_matmul_gpu", example, exercises); }
