// The ladders of the linear layer's gradients. dinp, inp (N,C); dout (N,OC); weight (OC,C); dweight (OC,C) and dbias
// (OC) in fp32.
//
//   dinp = dout weight;  dweight += dout^T inp      a ladder of two products
//   dbias += sums of the columns of dout            a ladder of sums
//
// Read the forward's ladder (matmul.cu) first. Its tiles in shared memory and sums in registers serve here, too. This
// ladder has what differs: in which direction the factors lie, and how long the sums are. Numbers in the comments are
// those of bf16.
#include "dev/cuda/ladder.cuh"
#include "llmc/layers/attention_mma.cuh"
#include "llmc/layers/linear.cuh"

#define TILE 128  // rows and columns of a product that a block computes, on tensor cores
#define TILE_K 64 // length of the sums that a block takes from shared memory

// ---- dinp and dweight ----

struct Sizes {
    int N, OC, C, splits; // splits: of the sum over N, in version 3

    double outputs(void) const { return (double)OC * C; } // of dweight
    double flops(void) const { return 4.0 * N * outputs(); }
    double bytes(void) const { // += reads dweight and writes it
        return sizeof(floatX) * (2.0 * N * C + (double)N * OC + outputs()) + 2.0 * sizeof(float) * outputs();
    }
    // Each count of a kernel is a sum of multiples of these: matrices, the parts of dweight, the terms of a product.
    std::vector<double> sizes(void) const {
        return {(double)N * C, outputs(), (double)N * OC, splits * outputs(), N * outputs()};
    }
};

struct Backward : Sizes {
    std::vector<float> want_dinp, want_dweight, ones;
    DeviceArray<floatX> inp, weight, dout, dinp;
    DeviceArray<float> dweight, parts;
    DeviceArray<uint8_t> workspace;
    CublasContext cublas;

    Backward(const Sizes &of)
        : Sizes(of), want_dinp((size_t)N * C, 0.0f), want_dweight((size_t)OC * C, 1.0f), ones(want_dweight),
          inp(random_values((int64_t)N * C, 1.0f, 1)), weight(random_values((int64_t)OC * C, 1.0f, 2)),
          dout(random_values((int64_t)N * OC, 1.0f, 3)), dinp((int64_t)N * C), dweight((int64_t)OC * C),
          parts((int64_t)splits * OC * C), workspace(32 << 20) {
        Error error;
        std::vector<float> dbias((size_t)OC);
        cuda_require(cublas_open(&cublas, false, &error) && N % TILE == 0 && OC % TILE == 0 && C % TILE == 0);
        cuda_require(N % (splits * TILE_K) == 0);
        cublas_set_workspace(&cublas, workspace.data, (size_t)workspace.count);
        cpu_matmul_backward(want_dinp.data(), want_dweight.data(), dbias.data(), dout.get().data(), inp.get().data(),
                            weight.get().data(), N, C, OC);
    }
    ~Backward() { cublas_close(&cublas); }
    void clear() { dinp.poison(), parts.poison(), dweight.set(ones); }
    // Both sides add OC or N terms of size 1, each in its own order. dinp is rounded once.
    void check(Test *t) const {
        check_values(t, "dinp", dinp.get(), want_dinp, 2 * sum_tolerance(OC) * fmax(1.0, largest(want_dinp)),
                     0.5 * FLOATX_EPSILON + FLT_EPSILON);
        check_values(t, "dweight", dweight.get(), want_dweight, 2 * sum_tolerance(N) * largest(want_dweight),
                     FLT_EPSILON);
    }
};

// The sum over k < K of left (m,k) right (k,c). left is dout, or its transpose if TRANSPOSED. So a kernel serves both
// products:
//   dinp:    dout (N,OC), weight (OC,C); K = OC
//   dweight: dout^T (OC,N), inp (N,C); K = N
template <bool TRANSPOSED> struct Product {
    const floatX *dout, *right;
    int OC, C, K;

    __device__ __forceinline__ float left(int64_t m, int64_t k) const {
        return to_float(dout[TRANSPOSED ? k * OC + m : m * OC + k]);
    }
};
static Product<false> dinp_product(const Backward &p) { return {p.dout.data, p.weight.data, p.OC, p.C, p.OC}; }
static Product<true> dweight_product(const Backward &p) { return {p.dout.data, p.inp.data, p.OC, p.C, p.N}; }

// Where a sum goes.
struct ToDinp {
    floatX *dinp;
    __device__ __forceinline__ void put(int64_t i, float sum) const { dinp[i] = from_float<floatX>(sum); }
};
struct ToDweight {
    float *dweight;
    __device__ __forceinline__ void put(int64_t i, float sum) const { dweight[i] += sum; }
};

// Version 1. Each thread computes a value, and the lanes of a warp take 32 columns. In both products right and the
// result lie along C, so a request has 64 or 128 neighbouring bytes, and all lanes read one value of dout. Lanes along
// rows would need a sector each for dinp, whose rows of dout lie 2 OC bytes apart.
template <bool TRANSPOSED, class Output> static __global__ void backward_kernel1(Output output, Product<TRANSPOSED> p) {
    int64_t m = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * WARP_SIZE + threadIdx.x;
    float sum = 0.0f;
    for (int64_t k = 0; k < p.K; k++) { sum += p.left(m, k) * to_float(p.right[k * p.C + c]); }
    output.put(m * p.C + c, sum);
}

static void backward1(Backward &p) {
    dim3 block(WARP_SIZE, 8);
    backward_kernel1<false, ToDinp><<<dim3(p.C / WARP_SIZE, p.N / 8), block>>>(ToDinp{p.dinp.data}, dinp_product(p));
    backward_kernel1<true, ToDweight>
        <<<dim3(p.C / WARP_SIZE, p.OC / 8), block>>>(ToDweight{p.dweight.data}, dweight_product(p));
}

// sums[i] += parts (count,size) at i, part by part. Fixed order, so that the bits do not depend on the order of blocks.
static __global__ void add_parts_kernel(float *sums, const float *parts, int count, int64_t size) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) { return; }
    float sum = 0.0f;
    for (int part = 0; part < count; part++) { sum += parts[part * size + i]; }
    sums[i] += sum;
}

#ifndef PRECISION_FP32

// Where two neighbouring sums go.
__device__ __forceinline__ void put_pair(const ToDinp &to, int64_t i, float a, float b) {
    *reinterpret_cast<uint32_t *>(to.dinp + i) = mma_pack(a, b);
}
__device__ __forceinline__ void put_pair(const ToDweight &to, int64_t i, float a, float b) {
    float2 *pair = reinterpret_cast<float2 *>(to.dweight + i), before = *pair;
    *pair = make_float2(before.x + a, before.y + b);
}
struct ToPart { // part blockIdx.z of (splits,size)
    float *parts;
    int64_t size;
};
__device__ __forceinline__ void put_pair(const ToPart &to, int64_t i, float a, float b) {
    *reinterpret_cast<float2 *>(to.parts + blockIdx.z * to.size + i) = make_float2(a, b);
}

// The tiles of version 2 in shared memory, as they lie in memory. Rows are 16 bytes longer than their values, so that
// ldmatrix finds 8 rows in different banks.
template <bool TRANSPOSED> struct MmaTiles {
    static constexpr int dout_rows = TRANSPOSED ? TILE_K : TILE, dout_width = TRANSPOSED ? TILE : TILE_K;
    floatX dout[dout_rows][dout_width + 8]; // (m,k), or TRANSPOSED (k,m)
    floatX right[TILE_K][TILE + 8];         // (k,c)
};

template <int ROWS, int WIDTH>
__device__ __forceinline__ void start_copy(floatX (*tile)[WIDTH + 8], const floatX *source, int source_width) {
    int first = threadIdx.x / (WIDTH / 8), column = threadIdx.x % (WIDTH / 8) * 8;
    for (int i = first; i < ROWS; i += 128 / (WIDTH / 8)) {
        cp_async_16(&tile[i][column], source + (int64_t)i * source_width + column);
    }
}

// Starts to copy what TILE_K terms of the block's sums need, from term k on.
template <bool TRANSPOSED>
__device__ __forceinline__ void start_copies(MmaTiles<TRANSPOSED> *tiles, const Product<TRANSPOSED> &p, int64_t k) {
    typedef MmaTiles<TRANSPOSED> Tiles;
    int64_t m = blockIdx.y * TILE, c = blockIdx.x * TILE;
    start_copy<Tiles::dout_rows, Tiles::dout_width>(tiles->dout, p.dout + (TRANSPOSED ? k * p.OC + m : m * p.OC + k),
                                                    p.OC);
    start_copy<TILE_K, TILE>(tiles->right, p.right + k * p.C + c, p.C);
    cp_async_commit();
}

// sums += TILE_K terms of 64 x 64 values from row y and column x of the block's tile on, by a warp.
template <bool TRANSPOSED>
__device__ __forceinline__ void multiply_tiles(float (&sums)[4][8][4], const MmaTiles<TRANSPOSED> &tiles, int y,
                                               int x) {
    int lane = threadIdx.x % WARP_SIZE;
#pragma unroll 2 // more steps at once take registers from the third block of a multiprocessor
    for (int k = 0; k < TILE_K; k += 16) {
        uint32_t a[4][4], b[4];
        for (int m = y, i = 0; i < 4; m += 16, i++) {
            if (TRANSPOSED) {
                ldmatrix_x4_trans(a[i], &tiles.dout[k + lane / 16 * 8 + lane % 8][m + lane / 8 % 2 * 8]);
            } else {
                ldmatrix_x4(a[i], &tiles.dout[m + lane % 16][k + lane / 16 * 8]);
            }
        }
        for (int n = 0; n < 8; n += 2) {
            ldmatrix_x4_trans(b, &tiles.right[k + lane % 16][x + 8 * n + lane / 16 * 8]);
            mma_pair(sums, n, a, b);
        }
    }
}

// Version 2. Tensor cores, with copies in the background, as in the forward's versions 8 and 9. An mma wants its
// factors along k. Only dout lies so, and only for dinp. ldmatrix transposes the rest on its way to the registers
// (.trans), as fast as without, so no matrix is transposed in memory.
template <bool TRANSPOSED, class Output>
static __global__ void __launch_bounds__(128) backward_kernel2(Output output, Product<TRANSPOSED> p) {
    extern __shared__ int4 backward_shared[];
    MmaTiles<TRANSPOSED> *stages = reinterpret_cast<MmaTiles<TRANSPOSED> *>(backward_shared);
    int warp = threadIdx.x / WARP_SIZE, y = warp / 2 * 64, x = warp % 2 * 64;
    int64_t terms = p.K / gridDim.z, first = blockIdx.z * terms;
    float sums[4][8][4];
    mma_clear(sums);
    start_copies(stages, p, first);
    for (int64_t k = 0; k < terms; k += TILE_K) {
        int stage = (int)(k / TILE_K % 2);
        cp_async_wait<0>();
        __syncthreads(); // this stage is here, and no warp reads the other stage now
        if (k + TILE_K < terms) { start_copies(stages + 1 - stage, p, first + k + TILE_K); }
        multiply_tiles(sums, stages[stage], y, x);
    }
    for (int m = 0; m < 4; m++) {
        for (int n = 0; n < 8; n++) {
            for (int i = 0; i < 4; i += 2) {
                int64_t row = blockIdx.y * TILE + y + mma_row(m, i), column = blockIdx.x * TILE + x + mma_column(n, i);
                put_pair(output, row * p.C + column, sums[m][n][i], sums[m][n][i + 1]);
            }
        }
    }
}

template <bool TRANSPOSED, class Output>
static void launch2(const Output &output, const Product<TRANSPOSED> &p, int rows, int splits) {
    size_t bytes = 2 * sizeof(MmaTiles<TRANSPOSED>);
    allow_dynamic_shared(backward_kernel2<TRANSPOSED, Output>, bytes);
    backward_kernel2<TRANSPOSED, Output><<<dim3(p.C / TILE, rows / TILE, splits), 128, bytes>>>(output, p);
}

static void backward2(Backward &p) {
    launch2(ToDinp{p.dinp.data}, dinp_product(p), p.N, 1);
    launch2(ToDweight{p.dweight.data}, dweight_product(p), p.OC, 1);
}

// Version 3. dweight (3072,768) has 144 tiles for the 132 multiprocessors of an H100: 12 of them compute two tiles
// while 120 wait. Now 8 blocks share the sum over N of each tile. A multiprocessor gets 8 or 9 of these smaller blocks,
// where two tiles would be 16. A second kernel adds the 8 parts in a fixed order. The parts are stored and loaded
// (`moved`). At GPT-2's shape this adds a seventh to the bound, which does not see what the parts gain.
static void backward3(Backward &p) {
    int64_t size = (int64_t)p.OC * p.C;
    launch2(ToDinp{p.dinp.data}, dinp_product(p), p.N, 1);
    launch2(ToPart{p.parts.data, size}, dweight_product(p), p.OC, p.splits);
    add_parts_kernel<<<blocks_for(size, 256), 256>>>(p.dweight.data, p.parts.data, p.splits, size);
}

#endif // PRECISION_FP32

// The last version. The trainer's: cuBLASLt. It splits sums where that is faster, and adds the parts in a fixed order.
static void backward_llmc(Backward &p) {
    Linear layer = {p.C, p.OC, p.weight.data, NULL, p.dweight.data, NULL};
    linear_backward(&p.cublas, layer, p.dinp.data, p.dout.data, p.inp.data, NULL, p.N, 0);
}

// p: the problem that the versions run on.
static void backward_ladder(Ladder &ladder, Backward *problems, Backward *&p) {
    const Sizes gpt2 = {16384, 3072, 768, 8};
    std::vector<std::vector<double>> sizes;
    for (int i = 0; i < 5; i++) { sizes.push_back(problems[i].sizes()); }
    sizes.push_back(gpt2.sizes());
    auto choose = [&p, problems](int problem) { p = problems + problem; };
    RealShape real = {"16384 x 3072 x 768", sizes, gpt2.bytes(), gpt2.flops(), false, choose};
    ladder.layer({format("matmul backward, %d x %d x %d", p->N, p->OC, p->C), p->bytes(), p->flops(),
                  [&p] { p->clear(); }, [&p](Test *t) { p->check(t); }, real});
    ladder.version("lanes along columns", [&p] { backward1(*p); });
#ifndef PRECISION_FP32
    ladder.version("tensor cores", [&p] { backward2(*p); });
    ladder.version("sum over N in parts", [&p] { backward3(*p); });
#endif
    ladder.version("llmc", [&p] { backward_llmc(*p); });
}

// ---- dbias ----

#define CHUNK 128 // rows of dout whose sums are a part, from version 2 on

struct Bias {
    int N = ladder_size(1024, 16384), OC = ladder_size(256, 3072), chunks = N / CHUNK;
    std::vector<float> want, ones;
    DeviceArray<floatX> dout;
    DeviceArray<float> dbias, scratch;

    Bias()
        : want((size_t)OC, 1.0f), ones(want), dout(random_values((int64_t)N * OC, 1.0f, 4)), dbias(OC),
          scratch(linear_backward_bias_scratch_floats(N, OC)) {
        const int C = 8; // of a layer around the sums: the CPU's function has them beside its products
        std::vector<float> inp((size_t)N * C), dinp((size_t)N * C), weight((size_t)OC * C), dweight((size_t)OC * C);
        cuda_require(N % CHUNK == 0 && OC % COLUMN_CHUNK_COLUMNS == 0 && (int64_t)chunks * OC <= scratch.count);
        cpu_matmul_backward(dinp.data(), dweight.data(), want.data(), dout.get().data(), inp.data(), weight.data(), N,
                            C, OC);
    }
    void clear() { dbias.set(ones), scratch.poison(); }
    // Both sides add N terms of size 1, each in its own order.
    void check(Test *t) const {
        check_values(t, "dbias", dbias.get(), want, 2 * sum_tolerance(N) * largest(want), FLT_EPSILON);
    }
};

// Version 1. A thread adds a column, so neighbouring lanes read neighbouring values, and each byte moves once. But
// 3,072 columns are 96 warps for 132 multiprocessors, and each warp waits for one load after the other. The bound does
// not see this: it assumes that memory is always busy.
static __global__ void bias_kernel1(float *dbias, const floatX *dout, int N, int OC) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int64_t row = 0; row < N; row++) { sum += to_float(dout[row * OC + column]); }
    dbias[column] += sum;
}

static void bias1(Bias &p) { bias_kernel1<<<p.OC / 64, 64>>>(p.dbias.data, p.dout.data, p.N, p.OC); }

// The sum of a column over the rows of chunk blockIdx.y.
__device__ __forceinline__ float chunk_sum(const floatX *dout, int OC, int column) {
    int64_t first = (int64_t)blockIdx.y * CHUNK;
    float sum = 0.0f;
    for (int64_t row = first; row < first + CHUNK; row++) { sum += to_float(dout[row * OC + column]); }
    return sum;
}

// Version 2. A thread adds a column of a chunk of rows: 128 times as many warps in a training step. All chunks add to
// dbias by atomics. Then the order of the sum, and with it the last bits, differs from run to run. So the trainer does
// not do this.
static __global__ void bias_kernel2(float *dbias, const floatX *dout, int OC) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(dbias + column, chunk_sum(dout, OC, column));
}

static void bias2(Bias &p) { bias_kernel2<<<dim3(p.OC / 64, p.chunks), 64>>>(p.dbias.data, p.dout.data, p.OC); }

// Version 3. Each chunk leaves its sums in scratch memory, and a second kernel adds them in a fixed order. For 128 rows
// of 2 bytes a row of 4 bytes is written and read: 3 % more (`moved`).
static __global__ void bias_kernel3(float *parts, const floatX *dout, int OC) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    parts[(int64_t)blockIdx.y * OC + column] = chunk_sum(dout, OC, column);
}

static void bias3(Bias &p) {
    bias_kernel3<<<dim3(p.OC / 64, p.chunks), 64>>>(p.scratch.data, p.dout.data, p.OC);
    add_parts_kernel<<<blocks_for(p.OC, 64), 64>>>(p.dbias.data, p.scratch.data, p.chunks, p.OC);
}

// Version 4. The trainer's: a lane reads 16 bytes of columns (`sectors`), and 8 warps share the rows of a chunk and add
// their sums in shared memory. A lane starts 8 loads before it adds the first, so that memory is always busy. The
// second kernel has 64 threads for a column.
static void bias_llmc(Bias &p) {
    linear_backward_bias({8, p.OC, NULL, NULL, NULL, p.dbias.data}, p.dout.data, p.scratch.data, p.N, 0);
}

static void bias_ladder(Ladder &ladder, Bias &p) {
    auto bytes_of = [](double N, double OC) { return (double)sizeof(floatX) * N * OC + 2.0 * sizeof(float) * OC; };
    auto choose = [&p, N = p.N](int problem) {
        p.N = problem == 0 ? N : N / 2;
        p.chunks = p.N / CHUNK;
    };
    ladder.layer({format("matmul backward, bias, %d x %d", p.N, p.OC), bytes_of(p.N, p.OC), 0.0, [&p] { p.clear(); },
                  [&p](Test *t) { p.check(t); },
                  rows_real_shape("16384 x 3072", p.N, 16384, bytes_of(16384, 3072), choose, 3072.0 / p.OC)});
    ladder.version("a thread a column", [&p] { bias1(p); });
    ladder.version("chunks of rows, atomics", [&p] { bias2(p); });
    ladder.version("chunks in a fixed order", [&p] { bias3(p); });
    ladder.version("llmc", [&p] { bias_llmc(p); });
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Backward problems[] = {
        Sizes{ladder_size(128, 16384), ladder_size(128, 3072), ladder_size(128, 768), ladder_size(2, 8)},
        Sizes{256, 128, 128, 2}, Sizes{128, 256, 128, 2}, Sizes{128, 128, 256, 2}, Sizes{128, 128, 128, 1}};
    Backward *backward = problems;
    Bias bias;
    backward_ladder(ladder, problems, backward);
    bias_ladder(ladder, bias);
    return ladder.end();
}
