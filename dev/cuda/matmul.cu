// The ladder of the linear layer's forward: out (N,OC) = inp (N,C) weight (OC,C)^T + bias (OC).
//
// Each value of out is the bias plus the product of a row of inp and a row of weight. Both rows lie along C. Every
// value of inp serves OC sums, and every value of weight serves N sums. The versions differ in where a value waits for
// its next sum: in memory, in shared memory, or in registers. Numbers in the comments are those of bf16.
#include "dev/cuda/ladder.cuh"
#include "llmc/layers/attention_mma.cuh"
#include "llmc/layers/linear.cuh"

#define SMALL 32                           // channels of a tile in versions 3 to 7
#define TILE 128                           // rows and columns of out that a block computes, from version 6 on
#define TILE_C (8 * x128::size)            // channels in shared memory at a time, from version 8 on: 128 bytes
#define ONE_BANK (4 / (int)sizeof(floatX)) // values in the 4 bytes of a bank
#define GPT2_N 16384                       // 16 sequences of 1,024 tokens
#define GPT2_C 768
#define GPT2_OC 3072 // the MLP's first multiply

struct Forward {
    int N, C, OC;
    std::vector<float> inp, weight, bias, want;
    DeviceArray<floatX> x, w, b, out;
    DeviceArray<uint8_t> workspace;
    CublasContext cublas;

    Forward(int N, int C, int OC)
        : N(N), C(C), OC(OC), inp(random_values((int64_t)N * C, 1.0f, 1)),
          weight(random_values((int64_t)OC * C, 1.0f, 2)), bias(random_values(OC, 1.0f, 3)), want((size_t)N * OC),
          x(inp), w(weight), b(bias), out((int64_t)N * OC), workspace(32 << 20) {
        Error error;
        cuda_require(cublas_open(&cublas, false, &error) && N % TILE == 0 && OC % TILE == 0 && C % TILE_C == 0);
        cublas_set_workspace(&cublas, workspace.data, (size_t)workspace.count);
        cpu_matmul_forward(want.data(), NULL, inp.data(), weight.data(), bias.data(), N, C, OC);
    }
    ~Forward() { cublas_close(&cublas); }
    // Both sides add C terms of size 1, each in its own order, and out is rounded once.
    void check(Test *t) const {
        check_values(t, "out", out.get(), want, 2 * sum_tolerance(C) * fmax(1.0, largest(want)),
                     0.5 * FLOATX_EPSILON + FLT_EPSILON);
    }
};

// Version 1. Each thread computes a value of out. The lanes of a warp take 32 rows of inp and one row of weight. Their
// values of inp are 2 C bytes apart, so each lane needs a sector of its own and uses 2 of its 32 bytes (`used`). The
// meter has no caches. On a GPU the L1 cache keeps some of the sectors for the next channels.
static __global__ void forward_kernel1(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC,
                                       int C) {
    int64_t row = blockIdx.x * WARP_SIZE + threadIdx.x, column = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = to_float(bias[column]);
    for (int c = 0; c < C; c++) { sum += to_float(inp[row * C + c]) * to_float(weight[column * C + c]); }
    out[row * OC + column] = from_float<floatX>(sum);
}

static void forward1(Forward &p) {
    forward_kernel1<<<dim3(p.N / WARP_SIZE, p.OC / 8), dim3(WARP_SIZE, 8)>>>(p.out.data, p.x.data, p.w.data, p.b.data,
                                                                             p.OC, p.C);
}

// Version 2. Which lanes read neighbouring values? Lanes along OC would spread over the rows of weight, as lanes along
// N do over the rows of inp. Both matrices lie along C, so the lanes go along C: a warp computes a value of out. Its
// lanes multiply neighbouring channels, 64 bytes in 2 sectors, and add their sums by shuffles.
static __global__ void forward_kernel2(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC,
                                       int C) {
    int64_t row = blockIdx.x, column = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < C; c += WARP_SIZE) {
        sum += to_float(inp[row * C + c]) * to_float(weight[column * C + c]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) { out[row * OC + column] = from_float<floatX>(to_float(bias[column]) + sum); }
}

static void forward2(Forward &p) {
    forward_kernel2<<<dim3(p.N, p.OC / 8), dim3(WARP_SIZE, 8)>>>(p.out.data, p.x.data, p.w.data, p.b.data, p.OC, p.C);
}

// Version 3. A block computes 32 x 32 values of out. It copies 32 channels of its rows of inp and weight to shared
// memory. There each value serves 32 sums, so `moved` falls. But now the lanes of a warp read one channel of 32 rows of
// weight. The rows are 64 bytes apart, so these values lie in 2 of the 32 banks: 16 wavefronts for a request, and 1 for
// the value of inp (`waves` is the mean). This costs more than the tile saves.
//
// Version 4. Each row of a tile is one bank longer (PAD). Then 32 rows lie in 32 different banks.
template <int PAD>
static __global__ void forward_kernel3(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC,
                                       int C) {
    __shared__ floatX inp_tile[SMALL][SMALL + PAD];
    __shared__ floatX weight_tile[SMALL][SMALL + PAD];
    int x = threadIdx.x, y = threadIdx.y;
    int64_t row = blockIdx.y * SMALL + y, column = blockIdx.x * SMALL;
    float sum = to_float(bias[column + x]);
    for (int c = 0; c < C; c += SMALL) {
        inp_tile[y][x] = inp[row * C + c + x];
        weight_tile[y][x] = weight[(column + y) * C + c + x];
        __syncthreads();
        for (int k = 0; k < SMALL; k++) { sum += to_float(inp_tile[y][k]) * to_float(weight_tile[x][k]); }
        __syncthreads();
    }
    out[row * OC + column + x] = from_float<floatX>(sum);
}

template <int PAD> static void forward3(Forward &p) {
    forward_kernel3<PAD>
        <<<dim3(p.OC / SMALL, p.N / SMALL), dim3(SMALL, SMALL)>>>(p.out.data, p.x.data, p.w.data, p.b.data, p.OC, p.C);
}

// From version 5 on a block has SIDE x SIDE threads. Thread (y,x) computes R x R values of out: of the block's tile,
// the rows y, y + SIDE, ... and the columns x, x + SIDE, ...
template <int SIDE> __device__ __forceinline__ int first_row() { return (int)threadIdx.x / SIDE; }
template <int SIDE> __device__ __forceinline__ int first_column() { return (int)threadIdx.x % SIDE; }

// All sums begin at the bias. bias points to the first column of the thread.
template <int SIDE, int R> __device__ __forceinline__ void begin_sums(float (&sums)[R][R], const floatX *bias) {
    for (int j = 0; j < R; j++) {
        float b = to_float(bias[SIDE * j]);
        for (int i = 0; i < R; i++) { sums[i][j] = b; }
    }
}

// out points to the first value of the thread.
template <int SIDE, int R> __device__ __forceinline__ void store_sums(floatX *out, const float (&sums)[R][R], int OC) {
    for (int i = 0; i < R; i++) {
        for (int j = 0; j < R; j++) { out[(int64_t)SIDE * i * OC + SIDE * j] = from_float<floatX>(sums[i][j]); }
    }
}

// Version 5. In version 4 each multiplication reads two values from shared memory, and shared memory is the limit
// (`by`). Now a thread computes R x R = 4 x 4 values of out. It reads 4 + 4 values for 16 multiplications, and holds
// the sums in registers. A block still computes 32 x 32 values, so it has 8 x 8 threads. Neighbouring lanes read
// neighbouring rows of weight's tile, which lie in different banks, and store neighbouring values of out.
//
// Version 6. The block's tile grows from 32 to 128 rows and columns, with 32 x 32 threads. A value in shared memory
// serves 128 sums in place of 32, so `moved` falls. A thread reads what it read before: 4 + 4 values.
//
// Version 7. 8 x 8 values a thread: 8 + 8 reads for 64 multiplications. The tile stays at 128, with 16 x 16 threads.
// The sums take 64 registers of at most 255, so 16 x 16 values would not fit.
template <int R, int SIDE>
static __global__ void __launch_bounds__(SIDE *SIDE)
    forward_kernel5(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC, int C) {
    constexpr int ROWS = SIDE * R, ROWS_AT_ONCE = SIDE * SIDE / SMALL;
    __shared__ floatX inp_tile[ROWS][SMALL + ONE_BANK];
    __shared__ floatX weight_tile[ROWS][SMALL + ONE_BANK];
    int y = first_row<SIDE>(), x = first_column<SIDE>(), lane = threadIdx.x % SMALL;
    int64_t row = blockIdx.y * ROWS, column = blockIdx.x * ROWS;
    float sums[R][R];
    begin_sums<SIDE>(sums, bias + column + x);
    for (int c = 0; c < C; c += SMALL) {
        for (int i = threadIdx.x / SMALL; i < ROWS; i += ROWS_AT_ONCE) {
            inp_tile[i][lane] = inp[(row + i) * C + c + lane];
            weight_tile[i][lane] = weight[(column + i) * C + c + lane];
        }
        __syncthreads();
        for (int k = 0; k < SMALL; k++) {
            float a[R], b[R];
            for (int i = 0; i < R; i++) { a[i] = to_float(inp_tile[y + SIDE * i][k]); }
            for (int j = 0; j < R; j++) { b[j] = to_float(weight_tile[x + SIDE * j][k]); }
            for (int i = 0; i < R; i++) {
                for (int j = 0; j < R; j++) { sums[i][j] += a[i] * b[j]; }
            }
        }
        __syncthreads();
    }
    store_sums<SIDE>(out + (row + y) * OC + column + x, sums, OC);
}

template <int R, int SIDE> static void forward5(Forward &p) {
    forward_kernel5<R, SIDE><<<dim3(p.OC / (SIDE * R), p.N / (SIDE * R)), SIDE * SIDE>>>(p.out.data, p.x.data, p.w.data,
                                                                                         p.b.data, p.OC, p.C);
}

// From version 8 on a tile has TILE rows of TILE_C channels, and all loads have 16 bytes. Eight lanes read 16 bytes
// each of 8 rows at once. With rows of 128 bytes all 8 would lie in the same 4 banks. A layout says where channel k of
// a row stands, and prevents this. Padded: each row is 16 bytes longer.
struct Padded {
    static constexpr int values = TILE * (TILE_C + x128::size);
    static __device__ __forceinline__ int at(int row, int k) { return row * (TILE_C + x128::size) + k; }
};

// Swizzled: the pieces of 16 bytes of a row change places. Piece i of a row stands at place i xor (row % 8), so the
// pieces i of 8 neighbouring rows stand at 8 different places.
struct Swizzled {
    static constexpr int values = TILE * TILE_C;
    static __device__ __forceinline__ int at(int row, int k) {
        return row * TILE_C + (k / x128::size ^ row % 8) * x128::size + k % x128::size;
    }
};

// sums += the products of the thread's rows of both tiles.
__device__ __forceinline__ void multiply_tiles(float (&sums)[8][8], const floatX *inp_tile, const floatX *weight_tile) {
#pragma unroll 1
    for (int k = 0; k < TILE_C; k += x128::size) {
        x128 a[8], b[8];
        for (int i = 0; i < 8; i++) { a[i] = load128(&inp_tile[Padded::at(first_row<16>() + 16 * i, k)]); }
        for (int j = 0; j < 8; j++) { b[j] = load128(&weight_tile[Padded::at(first_column<16>() + 16 * j, k)]); }
        for (int e = 0; e < x128::size; e++) {
            for (int i = 0; i < 8; i++) {
                for (int j = 0; j < 8; j++) { sums[i][j] += to_float(a[i][e]) * to_float(b[j][e]); }
            }
        }
    }
}

// Version 8. All loads have 16 bytes. One request of 4 wavefronts (`waves`) reads what version 7 reads with 8 requests
// of 1 wavefront, so shared memory works half as long. Now the multiplications are the limit (`by`).
static __global__ void __launch_bounds__(256)
    forward_kernel8(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC, int C) {
    __shared__ alignas(16) floatX inp_tile[Padded::values];
    __shared__ alignas(16) floatX weight_tile[Padded::values];
    int64_t row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    int k = threadIdx.x % 8 * x128::size;
    float sums[8][8];
    begin_sums<16>(sums, bias + column + first_column<16>());
    for (int c = 0; c < C; c += TILE_C) {
        for (int i = threadIdx.x / 8; i < TILE; i += 256 / 8) {
            store128(&inp_tile[Padded::at(i, k)], load128(inp + (row + i) * C + c + k));
            store128(&weight_tile[Padded::at(i, k)], load128(weight + (column + i) * C + c + k));
        }
        __syncthreads();
        multiply_tiles(sums, inp_tile, weight_tile);
        __syncthreads();
    }
    store_sums<16>(out + (row + first_row<16>()) * OC + column + first_column<16>(), sums, OC);
}

static void forward8(Forward &p) {
    forward_kernel8<<<dim3(p.OC / TILE, p.N / TILE), 256>>>(p.out.data, p.x.data, p.w.data, p.b.data, p.OC, p.C);
}

// A block of THREADS threads starts to copy TILE_C channels of TILE rows of each matrix to a stage: a tile of inp, then
// a tile of weight.
template <class Layout, int THREADS>
__device__ __forceinline__ void start_copies(floatX *stage, const floatX *inp, const floatX *weight, int C) {
    int k = threadIdx.x % 8 * x128::size;
    for (int i = threadIdx.x / 8; i < TILE; i += THREADS / 8) {
        cp_async_16(&stage[Layout::at(i, k)], inp + (int64_t)i * C + k);
        cp_async_16(&stage[Layout::values + Layout::at(i, k)], weight + (int64_t)i * C + k);
    }
    cp_async_commit();
}

// Calls multiply(inp_tile, weight_tile) for all channels. Meanwhile the next stage is on its way. There are two.
template <class Layout, int THREADS, class Multiply>
__device__ __forceinline__ void for_all_tiles(floatX *stages, const floatX *inp, const floatX *weight, int C,
                                              Multiply multiply) {
    start_copies<Layout, THREADS>(stages, inp, weight, C);
    for (int c = 0; c < C; c += TILE_C) {
        floatX *stage = stages + c / TILE_C % 2 * 2 * Layout::values;
        floatX *next = stages + (c / TILE_C + 1) % 2 * 2 * Layout::values;
        cp_async_wait<0>();
        __syncthreads(); // this stage is here, and no thread reads the other stage now
        if (c + TILE_C < C) { start_copies<Layout, THREADS>(next, inp + c + TILE_C, weight + c + TILE_C, C); }
        multiply(stage, stage + Layout::values);
    }
}

// Launches a kernel of THREADS threads that needs two stages. It has a block for each TILE x TILE values of out.
template <class Layout, class Kernel> static void launch_staged(Kernel kernel, int threads, Forward &p) {
    size_t bytes = 4 * Layout::values * sizeof(floatX);
    allow_dynamic_shared(kernel, bytes);
    kernel<<<dim3(p.OC / TILE, p.N / TILE), threads, bytes>>>(p.out.data, p.x.data, p.w.data, p.b.data, p.OC, p.C);
}

// Version 9. Two stages of tiles: a block multiplies one while it copies the next (cp.async). In version 8 all threads
// wait for memory, then all multiply. The bound does not see this, because it counts no waiting. The copies do not pass
// through registers, and one barrier a tile is enough. The stages need 72 KiB of shared memory.
static __global__ void __launch_bounds__(256)
    forward_kernel9(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC, int C) {
    extern __shared__ int4 matmul_shared[];
    int64_t row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    float sums[8][8];
    begin_sums<16>(sums, bias + column + first_column<16>());
    auto multiply = [&](const floatX *a, const floatX *b) { multiply_tiles(sums, a, b); };
    for_all_tiles<Padded, 256>(reinterpret_cast<floatX *>(matmul_shared), inp + row * C, weight + column * C, C,
                               multiply);
    store_sums<16>(out + (row + first_row<16>()) * OC + column + first_column<16>(), sums, OC);
}

static void forward9(Forward &p) { launch_staged<Padded>(forward_kernel9, 256, p); }

#ifndef PRECISION_FP32

// sums += the products of 16 M rows of inp from y on and 8 N rows of weight from x on, by a warp. ldmatrix gives each
// lane its part of four 8 x 8 matrices. An mma multiplies 16 rows of inp, 16 channels, and 8 rows of weight.
template <class Layout, int M, int N>
__device__ __forceinline__ void multiply_tiles_mma(float (&sums)[M][N][4], const floatX *inp_tile, int y,
                                                   const floatX *weight_tile, int x) {
    int lane = threadIdx.x % WARP_SIZE;
    for (int k = 0; k < TILE_C; k += 16) {
        uint32_t a[M][4], b[4];
        for (int m = 0; m < M; m++) {
            ldmatrix_x4(a[m], &inp_tile[Layout::at(y + 16 * m + lane % 16, k + lane / 16 * 8)]);
        }
        for (int n = 0; n < N; n += 2) {
            int row = x + 8 * n + lane / 16 * 8 + lane % 8;
            ldmatrix_x4(b, &weight_tile[Layout::at(row, k + lane / 8 % 2 * 8)]);
            mma_pair(sums, n, a, b);
        }
    }
}

// Stores the warp's sums as mma leaves them: a lane has two neighbouring columns.
template <int M, int N> __device__ __forceinline__ void store_pairs(floatX *out, const float (&sums)[M][N][4], int OC) {
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i += 2) {
                floatX *pair = out + (int64_t)mma_row(m, i) * OC + mma_column(n, i);
                *reinterpret_cast<uint32_t *>(pair) = mma_pack(sums[m][n][i], sums[m][n][i + 1]);
            }
        }
    }
}

// Version 10. Tensor cores multiply (mma), 15 times as fast as the threads can. A block has 8 warps. Each computes a
// strip of 16 x 128 values of out, so it reads 16 + 128 rows from shared memory for 16 * 128 products a channel. At
// GPT-2's shape shared memory is the limit. A store of pairs fills half of each sector (`used`, `moved`).
//
// Version 11. Warp tiles. The block's tile stays, but 4 warps have 64 x 64 values each, and read 64 + 64 rows for 64 *
// 64 products: 0.031 reads a product in place of 0.070. The sums take 128 registers of a thread in place of 64.
//
// Version 12. The tiles are swizzled in place of padded, so the stages need 64 KiB in place of 72. The meter counts
// what it counted before: no conflicts. The copies that a Hopper GPU makes by itself (TMA) write such tiles.
//
// Version 13. The sums pass through shared memory (mma_store_rows of llmc/layers/attention_mma.cuh). Then a lane stores
// 16 bytes and 8 lanes store a row, so that each byte moves once.
template <int M, int N> constexpr int MMA_THREADS = TILE / (16 * M) * (TILE / (8 * N)) * WARP_SIZE;

template <class Layout, int M, int N, bool THROUGH_SHARED>
static __global__ void __launch_bounds__(MMA_THREADS<M, N>)
    forward_kernel10(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC, int C) {
    extern __shared__ int4 matmul_shared[];
    floatX *stages = reinterpret_cast<floatX *>(matmul_shared);
    int warp = threadIdx.x / WARP_SIZE, across = TILE / (8 * N), y = warp / across * 16 * M, x = warp % across * 8 * N;
    int64_t row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    float sums[M][N][4];
    for (int n = 0; n < N; n++) {
        for (int i = 0; i < 4; i++) {
            float b = to_float(bias[column + x + mma_column(n, i)]);
            for (int m = 0; m < M; m++) { sums[m][n][i] = b; }
        }
    }
    auto multiply = [&](const floatX *a, const floatX *b) { multiply_tiles_mma<Layout>(sums, a, y, b, x); };
    for_all_tiles<Layout, MMA_THREADS<M, N>>(stages, inp + row * C, weight + column * C, C, multiply);
    out += (row + y) * OC + column + x;
    if constexpr (THROUGH_SHARED) {
        __syncthreads(); // no warp reads the tiles now
        mma_store_rows<8 * N>(out, OC, 16 * M, sums, stages + warp * 16 * M * MmaTile<8 * N>::stride, false);
    } else {
        store_pairs(out, sums, OC);
    }
}

template <class Layout, int M, int N, bool THROUGH_SHARED> static void forward10(Forward &p) {
    launch_staged<Layout>(forward_kernel10<Layout, M, N, THROUGH_SHARED>, MMA_THREADS<M, N>, p);
}

#endif // PRECISION_FP32

// The last version. The trainer's: cuBLASLt, which adds the bias before it rounds the sum.
static void forward_llmc(Forward &p) {
    linear_forward(&p.cublas, {p.C, p.OC, p.w.data, p.b.data}, p.out.data, NULL, p.x.data, p.N, 0);
}

static double bytes_of(double N, double OC, double C) { return sizeof(floatX) * (N * C + OC * C + OC + N * OC); }

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Forward small(ladder_size(128, GPT2_N), ladder_size(128, GPT2_C), ladder_size(128, GPT2_OC)), deep(128, 256, 128);
    Forward *p = &small;
    double N = small.N, OC = small.OC, C = small.C, outputs = (double)GPT2_N * GPT2_OC;
    ladder.layer({format("matmul forward, %d x %d x %d", small.N, small.OC, small.C),
                  bytes_of(N, OC, C),
                  2.0 * N * OC * C,
                  [&] { p->out.poison(); },
                  [&](Test *t) { p->check(t); },
                  {format("%d x %d x %d", GPT2_N, GPT2_OC, GPT2_C),
                   {{N * OC, N * OC * C},
                    {(double)deep.N * deep.OC, (double)deep.N * deep.OC * deep.C},
                    {outputs, outputs * GPT2_C}},
                   bytes_of(GPT2_N, GPT2_OC, GPT2_C),
                   2.0 * outputs * GPT2_C,
                   true,
                   [&](int problem) { p = problem == 0 ? &small : &deep; }}});
    ladder.version("lanes along rows", [&] { forward1(*p); });
    ladder.version("lanes along channels", [&] { forward2(*p); });
    ladder.version("tile in shared memory", [&] { forward3<0>(*p); });
    ladder.version("no bank conflicts", [&] { forward3<ONE_BANK>(*p); });
    ladder.version("4 x 4 values a thread", [&] { forward5<4, 8>(*p); });
    ladder.version("128 x 128 values a block", [&] { forward5<4, 32>(*p); });
    ladder.version("8 x 8 values a thread", [&] { forward5<8, 16>(*p); });
    ladder.version("16 bytes a lane", [&] { forward8(*p); });
    ladder.version("copies in background", [&] { forward9(*p); });
#ifndef PRECISION_FP32
    ladder.version("tensor cores, strips", [&] { forward10<Padded, 1, 16, false>(*p); });
    ladder.version("warp tiles of 64 x 64", [&] { forward10<Padded, 4, 8, false>(*p); });
    ladder.version("swizzled tiles", [&] { forward10<Swizzled, 4, 8, false>(*p); });
    ladder.version("out through shared", [&] { forward10<Swizzled, 4, 8, true>(*p); });
#endif
    ladder.version("llmc", [&] { forward_llmc(*p); });
    return ladder.end();
}
