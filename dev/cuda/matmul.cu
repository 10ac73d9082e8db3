// The ladder of the linear layer's forward: out (N,OC) = inp (N,C) weight (OC,C)^T + bias (OC).
//
// Each value of out is the bias plus the product of a row of inp and a row of weight. Both rows lie along C. Every
// value of inp serves OC sums, and every value of weight serves N sums. The versions differ in where a value waits for
// its next sum: in memory, in shared memory, or in registers. Numbers in the comments are those of bf16.
#include "dev/cuda/ladder.cuh"
#include "llmc/layers/attention_mma.cuh"
#include "llmc/layers/linear.cuh"

#define SMALL 32                           // rows, columns and channels of a tile in versions 3 and 4
#define TILE 128                           // rows and columns of out that a block computes, from version 6 on
#define TILE_C (8 * x128::size)            // channels in shared memory at a time, from version 7 on: 128 bytes
#define ONE_BANK (4 / (int)sizeof(floatX)) // values in the 4 bytes of a bank

// Rows of inp or weight in shared memory. Each row is 16 bytes longer than its channels, so that 8 neighbouring rows
// lie in different banks when 8 lanes read 16 bytes of them.
typedef floatX Tile[TILE][TILE_C + x128::size];

struct Forward {
    int N = ladder_size(128, 16384), C = ladder_size(128, 768), OC = ladder_size(128, 3072);
    std::vector<float> inp, weight, bias, want;
    DeviceArray<floatX> x, w, b, out;
    DeviceArray<uint8_t> workspace;
    CublasContext cublas;

    Forward()
        : inp(random_values((int64_t)N * C, 1.0f, 1)), weight(random_values((int64_t)OC * C, 1.0f, 2)),
          bias(random_values(OC, 1.0f, 3)), want((size_t)N * OC), x(inp), w(weight), b(bias), out((int64_t)N * OC),
          workspace(32 << 20) {
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

// From version 5 on a block has 16 x 16 threads. Thread (y,x) computes the values of out in the rows y, y + 16, ... and
// in the columns x, x + 16, ... of the block's tile.
__device__ __forceinline__ int first_row() { return (int)threadIdx.x / 16; }
__device__ __forceinline__ int first_column() { return (int)threadIdx.x % 16; }

// All sums begin at the bias. bias points to the first column of the thread.
template <int R> __device__ __forceinline__ void begin_sums(float (&sums)[R][R], const floatX *bias) {
    for (int j = 0; j < R; j++) {
        float b = to_float(bias[16 * j]);
        for (int i = 0; i < R; i++) { sums[i][j] = b; }
    }
}

// out points to the first value of the thread.
template <int R> __device__ __forceinline__ void store_sums(floatX *out, const float (&sums)[R][R], int OC) {
    for (int i = 0; i < R; i++) {
        for (int j = 0; j < R; j++) { out[(int64_t)16 * i * OC + 16 * j] = from_float<floatX>(sums[i][j]); }
    }
}

// Version 5. In version 4 each multiplication reads two values from shared memory, and shared memory is the limit
// (`by`). Now a thread computes R x R = 4 x 4 values of out. It reads 4 + 4 values for 16 multiplications, and holds
// the sums in registers. Neighbouring lanes read neighbouring rows of weight's tile, which lie in different banks, and
// store neighbouring values of out.
//
// Version 6. 8 x 8 values: 8 + 8 reads for 64 multiplications. The block's tile grows from 64 to 128 rows and columns,
// so `moved` falls, too. The sums take 64 registers of at most 255, so 16 x 16 values would not fit.
template <int R>
static __global__ void __launch_bounds__(256)
    forward_kernel5(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC, int C) {
    __shared__ floatX inp_tile[16 * R][SMALL + ONE_BANK];
    __shared__ floatX weight_tile[16 * R][SMALL + ONE_BANK];
    int y = first_row(), x = first_column(), lane = threadIdx.x % SMALL;
    int64_t row = blockIdx.y * 16 * R, column = blockIdx.x * 16 * R;
    float sums[R][R];
    begin_sums(sums, bias + column + x);
    for (int c = 0; c < C; c += SMALL) {
        for (int i = threadIdx.x / SMALL; i < 16 * R; i += 256 / SMALL) {
            inp_tile[i][lane] = inp[(row + i) * C + c + lane];
            weight_tile[i][lane] = weight[(column + i) * C + c + lane];
        }
        __syncthreads();
        for (int k = 0; k < SMALL; k++) {
            float a[R], b[R];
            for (int i = 0; i < R; i++) { a[i] = to_float(inp_tile[y + 16 * i][k]); }
            for (int j = 0; j < R; j++) { b[j] = to_float(weight_tile[x + 16 * j][k]); }
            for (int i = 0; i < R; i++) {
                for (int j = 0; j < R; j++) { sums[i][j] += a[i] * b[j]; }
            }
        }
        __syncthreads();
    }
    store_sums(out + (row + y) * OC + column + x, sums, OC);
}

template <int R> static void forward5(Forward &p) {
    forward_kernel5<R>
        <<<dim3(p.OC / (16 * R), p.N / (16 * R)), 256>>>(p.out.data, p.x.data, p.w.data, p.b.data, p.OC, p.C);
}

// sums += the products of the thread's rows of both tiles.
__device__ __forceinline__ void multiply_tiles(float (&sums)[8][8], const Tile &inp_tile, const Tile &weight_tile) {
#pragma unroll 1
    for (int k = 0; k < TILE_C; k += x128::size) {
        x128 a[8], b[8];
        for (int i = 0; i < 8; i++) { a[i] = load128(&inp_tile[first_row() + 16 * i][k]); }
        for (int j = 0; j < 8; j++) { b[j] = load128(&weight_tile[first_column() + 16 * j][k]); }
        for (int e = 0; e < x128::size; e++) {
            for (int i = 0; i < 8; i++) {
                for (int j = 0; j < 8; j++) { sums[i][j] += to_float(a[i][e]) * to_float(b[j][e]); }
            }
        }
    }
}

// Version 7. All loads have 16 bytes. One request of 4 wavefronts (`waves`) reads what version 6 reads with 8 requests
// of 1 wavefront, so shared memory works half as long. Now the multiplications are the limit (`by`).
static __global__ void __launch_bounds__(256)
    forward_kernel7(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC, int C) {
    __shared__ alignas(16) Tile inp_tile;
    __shared__ alignas(16) Tile weight_tile;
    int64_t row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    int k = threadIdx.x % 8 * x128::size;
    float sums[8][8];
    begin_sums(sums, bias + column + first_column());
    for (int c = 0; c < C; c += TILE_C) {
        for (int i = threadIdx.x / 8; i < TILE; i += 256 / 8) {
            store128(&inp_tile[i][k], load128(inp + (row + i) * C + c + k));
            store128(&weight_tile[i][k], load128(weight + (column + i) * C + c + k));
        }
        __syncthreads();
        multiply_tiles(sums, inp_tile, weight_tile);
        __syncthreads();
    }
    store_sums(out + (row + first_row()) * OC + column + first_column(), sums, OC);
}

static void forward7(Forward &p) {
    forward_kernel7<<<dim3(p.OC / TILE, p.N / TILE), 256>>>(p.out.data, p.x.data, p.w.data, p.b.data, p.OC, p.C);
}

// A block of THREADS threads starts to copy TILE_C channels of TILE rows of each matrix to tiles[0] and tiles[1].
template <int THREADS>
__device__ __forceinline__ void start_copies(Tile *tiles, const floatX *inp, const floatX *weight, int C) {
    int k = threadIdx.x % 8 * x128::size;
    for (int i = threadIdx.x / 8; i < TILE; i += THREADS / 8) {
        cp_async_16(&tiles[0][i][k], inp + (int64_t)i * C + k);
        cp_async_16(&tiles[1][i][k], weight + (int64_t)i * C + k);
    }
    cp_async_commit();
}

// Calls multiply(inp_tile, weight_tile) for all channels. Meanwhile the next tiles are on their way. tiles: 2 stages of
// a tile of inp and a tile of weight.
template <int THREADS, class Multiply>
__device__ __forceinline__ void for_all_tiles(Tile *tiles, const floatX *inp, const floatX *weight, int C,
                                              Multiply multiply) {
    start_copies<THREADS>(tiles, inp, weight, C);
    for (int c = 0; c < C; c += TILE_C) {
        Tile *stage = tiles + c / TILE_C % 2 * 2, *next = tiles + (c / TILE_C + 1) % 2 * 2;
        cp_async_wait<0>();
        __syncthreads(); // this stage is here, and no thread reads the other stage now
        if (c + TILE_C < C) { start_copies<THREADS>(next, inp + c + TILE_C, weight + c + TILE_C, C); }
        multiply(stage[0], stage[1]);
    }
}

// Version 8. Two stages of tiles: a block multiplies one while it copies the next (cp.async). In version 7 all threads
// wait for memory, then all multiply. The bound does not see this, because it counts no waiting. The copies do not pass
// through registers, and one barrier a tile is enough. The stages need 72 KiB of shared memory.
static __global__ void __launch_bounds__(256)
    forward_kernel8(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC, int C) {
    extern __shared__ int4 matmul_shared[];
    int64_t row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    float sums[8][8];
    begin_sums(sums, bias + column + first_column());
    auto multiply = [&](const Tile &a, const Tile &b) { multiply_tiles(sums, a, b); };
    for_all_tiles<256>(reinterpret_cast<Tile *>(matmul_shared), inp + row * C, weight + column * C, C, multiply);
    store_sums(out + (row + first_row()) * OC + column + first_column(), sums, OC);
}

static void forward8(Forward &p) {
    allow_dynamic_shared(forward_kernel8, 4 * sizeof(Tile));
    forward_kernel8<<<dim3(p.OC / TILE, p.N / TILE), 256, 4 * sizeof(Tile)>>>(p.out.data, p.x.data, p.w.data, p.b.data,
                                                                              p.OC, p.C);
}

#ifndef PRECISION_FP32

// sums += the products of 64 rows of inp from y on and 64 rows of weight from x on, by a warp. ldmatrix gives each lane
// its part of four 8 x 8 matrices. An mma multiplies 16 rows of inp, 16 channels, and 8 rows of weight.
__device__ __forceinline__ void multiply_tiles_mma(float (&sums)[4][8][4], const Tile &inp_tile, int y,
                                                   const Tile &weight_tile, int x) {
    int lane = threadIdx.x % WARP_SIZE;
    for (int k = 0; k < TILE_C; k += 16) {
        uint32_t a[4][4], b[4];
        for (int m = 0; m < 4; m++) { ldmatrix_x4(a[m], &inp_tile[y + 16 * m + lane % 16][k + lane / 16 * 8]); }
        for (int n = 0; n < 8; n += 2) {
            ldmatrix_x4(b, &weight_tile[x + 8 * n + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
            mma_pair(sums, n, a, b);
        }
    }
}

// Stores the warp's 64 x 64 sums as mma leaves them: a lane has two neighbouring columns.
__device__ __forceinline__ void store_pairs(floatX *out, const float (&sums)[4][8][4], int OC) {
    for (int m = 0; m < 4; m++) {
        for (int n = 0; n < 8; n++) {
            for (int i = 0; i < 4; i += 2) {
                floatX *pair = out + (int64_t)mma_row(m, i) * OC + mma_column(n, i);
                *reinterpret_cast<uint32_t *>(pair) = mma_pack(sums[m][n][i], sums[m][n][i + 1]);
            }
        }
    }
}

// Version 9. Tensor cores multiply (mma), 15 times as fast as the threads can. A block has 4 warps, and each computes
// 64 x 64 values of out: it reads 64 + 64 rows from shared memory for them. Smaller parts would wait for shared memory.
// A store of pairs fills half of each sector (`used`, `moved`). Memory is the limit (`by`), because the problem is
// small. With more rows and columns the tensor cores are the limit.
//
// Version 10. The sums pass through shared memory (mma_store_rows of llmc/layers/attention_mma.cuh). Then a lane stores
// 16 bytes and 8 lanes store a row, so that each byte moves once.
template <bool THROUGH_SHARED>
static __global__ void __launch_bounds__(128)
    forward_kernel9(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int OC, int C) {
    extern __shared__ int4 matmul_shared[];
    Tile *tiles = reinterpret_cast<Tile *>(matmul_shared);
    int warp = threadIdx.x / WARP_SIZE, y = warp / 2 * 64, x = warp % 2 * 64;
    int64_t row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    float sums[4][8][4];
    for (int n = 0; n < 8; n++) {
        for (int i = 0; i < 4; i++) {
            float b = to_float(bias[column + x + mma_column(n, i)]);
            for (int m = 0; m < 4; m++) { sums[m][n][i] = b; }
        }
    }
    auto multiply = [&](const Tile &a, const Tile &b) { multiply_tiles_mma(sums, a, y, b, x); };
    for_all_tiles<128>(tiles, inp + row * C, weight + column * C, C, multiply);
    out += (row + y) * OC + column + x;
    if constexpr (THROUGH_SHARED) {
        __syncthreads(); // no warp reads the tiles now
        mma_store_rows<64>(out, OC, 64, sums, tiles[0][0] + warp * 64 * MmaTile<64>::stride, false);
    } else {
        store_pairs(out, sums, OC);
    }
}

template <bool THROUGH_SHARED> static void forward9(Forward &p) {
    allow_dynamic_shared(forward_kernel9<THROUGH_SHARED>, 4 * sizeof(Tile));
    forward_kernel9<THROUGH_SHARED>
        <<<dim3(p.OC / TILE, p.N / TILE), 128, 4 * sizeof(Tile)>>>(p.out.data, p.x.data, p.w.data, p.b.data, p.OC, p.C);
}

#endif // PRECISION_FP32

// The last version. The trainer's: cuBLASLt, which adds the bias before it rounds the sum.
static void forward_llmc(Forward &p) {
    linear_forward(&p.cublas, {p.C, p.OC, p.w.data, p.b.data}, p.out.data, NULL, p.x.data, p.N, 0);
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Forward p;
    double values = (double)p.N * p.C + (double)p.OC * p.C + p.OC + (double)p.N * p.OC;
    ladder.layer({format("matmul forward, %d x %d x %d", p.N, p.OC, p.C), (double)sizeof(floatX) * values,
                  2.0 * p.N * p.OC * p.C, [&p] { p.out.poison(); }, [&p](Test *t) { p.check(t); }});
    ladder.version("lanes along rows", [&p] { forward1(p); });
    ladder.version("lanes along channels", [&p] { forward2(p); });
    ladder.version("tile in shared memory", [&p] { forward3<0>(p); });
    ladder.version("no bank conflicts", [&p] { forward3<ONE_BANK>(p); });
    ladder.version("4 x 4 values a thread", [&p] { forward5<4>(p); });
    ladder.version("8 x 8 values a thread", [&p] { forward5<8>(p); });
    ladder.version("16 bytes a lane", [&p] { forward7(p); });
    ladder.version("copies in background", [&p] { forward8(p); });
#ifndef PRECISION_FP32
    ladder.version("tensor cores", [&p] { forward9<false>(p); });
    ladder.version("out through shared", [&p] { forward9<true>(p); });
#endif
    ladder.version("llmc", [&p] { forward_llmc(p); });
    return ladder.end();
}
