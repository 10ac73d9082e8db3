// The ladder of LayerNorm. The formulas are at the top of llmc/layers/layernorm.cuh, and doc/ has a chapter on them.
// inp, out, dinp, dout (N,C); weight, bias (C); mean, rstd (N) fp32; dweight, dbias (C) fp32.
#include "dev/cuda/ladder.cuh"
#include "llmc/layers/layernorm.cuh"

#define GPT2_N 16384 // 16 sequences of 1,024 tokens

// ---- Forward ----

struct Forward {
    int N = ladder_size(256, 16384), C = 768;
    std::vector<float> inp, weight, bias, want_out, want_mean, want_rstd;
    DeviceArray<floatX> x, w, b, out;
    DeviceArray<float> mean, rstd;

    Forward()
        : inp(random_values((int64_t)N * C, 1.5f, 1)), weight(random_values(C, 0.5f, 2)),
          bias(random_values(C, 0.3f, 3)), want_out(inp.size()), want_mean((size_t)N), want_rstd((size_t)N), x(inp),
          w(weight), b(bias), out((int64_t)N * C), mean(N), rstd(N) {
        cpu_layernorm_forward(want_out.data(), want_mean.data(), want_rstd.data(), inp.data(), weight.data(),
                              bias.data(), N, C);
    }
    // The mean may be off by `shift`. This moves a normalised value by shift * rstd.
    void check(Test *t) const {
        double shift = sum_tolerance(C) * largest(inp), rstd_error = sum_tolerance(C);
        check_values(t, "mean", mean.get(), want_mean, shift, 0.0);
        check_values(t, "rstd", rstd.get(), want_rstd, 0.0, rstd_error);
        check_values(t, "out", out.get(), want_out,
                     shift * largest(want_rstd) * largest(weight) + rstd_error * (largest(want_out) + largest(bias)),
                     0.5 * FLOATX_EPSILON);
    }
};

// Version 1. Each thread takes a row and does what the CPU does. Neighbouring lanes read addresses that are 2 C bytes
// apart, so each of 32 lanes needs a sector of its own and uses 2 of its 32 bytes.
static __global__ void forward_kernel1(floatX *out, float *mean, float *rstd, const floatX *inp, const floatX *weight,
                                       const floatX *bias, int N, int C) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) { return; }
    const floatX *x = inp + (int64_t)row * C;
    float sum = 0.0f, square = 0.0f;
    for (int c = 0; c < C; c++) { sum += to_float(x[c]); }
    float m = sum / (float)C;
    for (int c = 0; c < C; c++) { square += (to_float(x[c]) - m) * (to_float(x[c]) - m); }
    float r = 1.0f / sqrtf(square / (float)C + LAYERNORM_EPSILON);
    for (int c = 0; c < C; c++) {
        float n = (to_float(x[c]) - m) * r;
        out[(int64_t)row * C + c] = from_float<floatX>(n * to_float(weight[c]) + to_float(bias[c]));
    }
    mean[row] = m;
    rstd[row] = r;
}

static void forward1(Forward &p) {
    forward_kernel1<<<blocks_for(p.N, 64), 64>>>(p.out.data, p.mean.data, p.rstd.data, p.x.data, p.w.data, p.b.data,
                                                 p.N, p.C);
}

// Version 2. Each warp takes a row. Its lanes read neighbouring numbers, 64 bytes in 2 sectors, and add their sums by
// shuffles. A block has 4 warps, so it takes 4 rows.
static __global__ void forward_kernel2(floatX *out, float *mean, float *rstd, const floatX *inp, const floatX *weight,
                                       const floatX *bias, int N, int C) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (row >= N) { return; }
    const floatX *x = inp + (int64_t)row * C;
    float sum = 0.0f, square = 0.0f;
    for (int c = lane; c < C; c += WARP_SIZE) { sum += to_float(x[c]); }
    float m = warp_sum(sum) / (float)C;
    for (int c = lane; c < C; c += WARP_SIZE) { square += (to_float(x[c]) - m) * (to_float(x[c]) - m); }
    float r = 1.0f / sqrtf(warp_sum(square) / (float)C + LAYERNORM_EPSILON);
    for (int c = lane; c < C; c += WARP_SIZE) {
        float n = (to_float(x[c]) - m) * r;
        out[(int64_t)row * C + c] = from_float<floatX>(n * to_float(weight[c]) + to_float(bias[c]));
    }
    if (lane == 0) { mean[row] = m, rstd[row] = r; }
}

static void forward2(Forward &p) {
    forward_kernel2<<<blocks_for(p.N, 4), dim3(WARP_SIZE, 4)>>>(p.out.data, p.mean.data, p.rstd.data, p.x.data,
                                                                p.w.data, p.b.data, p.N, p.C);
}

// Version 3. A lane reads and writes 16 bytes at a time: an eighth of the instructions for the same bytes. The row is
// still read three times.
static __global__ void forward_kernel3(floatX *out, float *mean, float *rstd, const floatX *inp, const floatX *weight,
                                       const floatX *bias, int N, int C) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, first = threadIdx.x * x128::size, step = WARP_SIZE * x128::size;
    if (row >= N) { return; }
    const floatX *x = inp + (int64_t)row * C;
    float sum = 0.0f, square = 0.0f;
    for (int c = first; c < C; c += step) {
        x128 values = load128(x + c);
        for (int k = 0; k < x128::size; k++) { sum += to_float(values[k]); }
    }
    float m = warp_sum(sum) / (float)C;
    for (int c = first; c < C; c += step) {
        x128 values = load128(x + c);
        for (int k = 0; k < x128::size; k++) { square += (to_float(values[k]) - m) * (to_float(values[k]) - m); }
    }
    float r = 1.0f / sqrtf(warp_sum(square) / (float)C + LAYERNORM_EPSILON);
    for (int c = first; c < C; c += step) {
        x128 values = load128(x + c), w = load128(weight + c), b = load128(bias + c);
        for (int k = 0; k < x128::size; k++) {
            values[k] = from_float<floatX>((to_float(values[k]) - m) * r * to_float(w[k]) + to_float(b[k]));
        }
        store128(out + (int64_t)row * C + c, values);
    }
    if (threadIdx.x == 0) { mean[row] = m, rstd[row] = r; }
}

static void forward3(Forward &p) {
    forward_kernel3<<<blocks_for(p.N, 4), dim3(WARP_SIZE, 4)>>>(p.out.data, p.mean.data, p.rstd.data, p.x.data,
                                                                p.w.data, p.b.data, p.N, p.C);
}

// Version 4. The row stays in registers, so it is read once. VECTORS is known when the kernel is compiled: an array
// whose indices are constants can live in registers.
template <int VECTORS>
static __global__ void forward_kernel4(floatX *out, float *mean, float *rstd, const floatX *inp, const floatX *weight,
                                       const floatX *bias, int N) {
    constexpr int C = VECTORS * WARP_SIZE * x128::size;
    int row = blockIdx.x * blockDim.y + threadIdx.y, first = threadIdx.x * x128::size;
    if (row >= N) { return; }
    x128 x[VECTORS];
    float sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        x[i] = load128(inp + (int64_t)row * C + first + i * WARP_SIZE * x128::size);
        for (int k = 0; k < x128::size; k++) { sum += to_float(x[i][k]); }
    }
    float m = warp_sum(sum) / (float)C;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        for (int k = 0; k < x128::size; k++) { square += (to_float(x[i][k]) - m) * (to_float(x[i][k]) - m); }
    }
    float r = 1.0f / sqrtf(warp_sum(square) / (float)C + LAYERNORM_EPSILON);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int c = first + i * WARP_SIZE * x128::size;
        x128 w = load128(weight + c), b = load128(bias + c);
        for (int k = 0; k < x128::size; k++) {
            x[i][k] = from_float<floatX>((to_float(x[i][k]) - m) * r * to_float(w[k]) + to_float(b[k]));
        }
        store128(out + (int64_t)row * C + c, x[i]);
    }
    if (threadIdx.x == 0) { mean[row] = m, rstd[row] = r; }
}

static void forward4(Forward &p) {
    constexpr int VECTORS = 768 / WARP_SIZE / x128::size;
    forward_kernel4<VECTORS><<<blocks_for(p.N, 4), dim3(WARP_SIZE, 4)>>>(p.out.data, p.mean.data, p.rstd.data, p.x.data,
                                                                         p.w.data, p.b.data, p.N);
}

// Version 5. The trainer's: as many warps for a row as its width needs, and loads that do not fill the caches.
static void forward5(Forward &p) {
    layernorm_forward(
        {p.C, LAYERNORM_EPSILON, p.w.data, p.b.data, NULL, NULL, p.out.data, p.mean.data, p.rstd.data, NULL}, p.x.data,
        p.N, 0);
}

static void forward_ladder(Ladder &ladder, Forward &p) {
    auto bytes_of = [C = p.C](double N) { return 2.0 * (double)sizeof(floatX) * (N * C + C) + 8.0 * N; };
    auto choose = [&p, N = p.N](int problem) { p.N = problem == 0 ? N : N / 2; };
    ladder.layer({format("layernorm forward, %d x %d", p.N, p.C), bytes_of(p.N), 0.0,
                  [&p] { p.out.poison(), p.mean.poison(), p.rstd.poison(); }, [&p](Test *t) { p.check(t); },
                  rows_real_shape(format("%d x %d", GPT2_N, p.C), p.N, GPT2_N, bytes_of(GPT2_N), choose)});
    ladder.version("a thread a row", [&p] { forward1(p); });
    ladder.version("a warp a row", [&p] { forward2(p); });
    ladder.version("16 bytes a lane", [&p] { forward3(p); });
    ladder.version("row in registers", [&p] { forward4(p); });
    ladder.version("llmc", [&p] { forward5(p); });
}

// ---- Backward ----

// What the kernels of the backward read.
struct BackwardInput {
    const floatX *dout, *inp, *weight;
    const float *mean, *rstd;
    int N, C;
};

#define BACKWARD_WARPS 4 // of a block of version 3
#define BACKWARD_ROWS 16 // of a block of version 3

struct Backward {
    int N, C, blocks3;
    std::vector<float> before_dinp, before_dweight, before_dbias, want_dinp, want_dweight, want_dbias;
    DeviceArray<floatX> dout, dinp;
    DeviceArray<float> mean, rstd, dweight, dbias, scratch;
    BackwardInput in;

    // dout and dbias hold eighths, so that the sums in dbias are exact.
    explicit Backward(const Forward &f)
        : N(f.N), C(f.C), blocks3((int)blocks_for(N, BACKWARD_ROWS)),
          before_dinp(random_values((int64_t)N * C, 1.0f, 4)), before_dweight(random_values(C, 1.0f, 5)),
          before_dbias(random_eighths(C, 6)), want_dinp(before_dinp), want_dweight(before_dweight),
          want_dbias(before_dbias), dout((int64_t)N * C), dinp((int64_t)N * C), mean(f.want_mean), rstd(f.want_rstd),
          dweight(C), dbias(C), scratch(max_i64(2 * blocks3 * C, layernorm_backward_scratch_floats(N, C))),
          in({dout.data, f.x.data, f.w.data, mean.data, rstd.data, N, C}) {
        std::vector<float> eighths = random_eighths((int64_t)N * C, 7);
        dout.set(eighths);
        cpu_layernorm_backward(want_dinp.data(), want_dweight.data(), want_dbias.data(), eighths.data(), f.inp.data(),
                               f.want_mean.data(), f.want_rstd.data(), f.weight.data(), N, C);
    }
    void clear() {
        dinp.set(before_dinp);
        dweight.set(before_dweight);
        dbias.set(before_dbias);
        scratch.poison();
    }
    // dinp contains two means over C, and is rounded to floatX. dweight is a sum over N rows.
    void check(Test *t) const {
        check_values(t, "dinp", dinp.get(), want_dinp, sum_tolerance(C) * largest(want_dinp), 0.5 * FLOATX_EPSILON);
        check_values(t, "dweight", dweight.get(), want_dweight, sum_tolerance(N) * largest(want_dweight), 0.0);
        check_equal(t, "dbias", dbias.get(), want_dbias);
    }
};

// Version 1. Each thread takes a row. All rows add to the C sums of dweight and dbias, so the threads add with atomics.
// The 32 lanes of a warp add to one address at a time, and the hardware adds them one after another. The sums depend on
// the order in which the threads come, so two runs differ in their last bits. The trainer has no such sums. Atomics do
// not count in `moved`.
static __global__ void backward_kernel1(floatX *dinp, float *dweight, float *dbias, BackwardInput in) {
    int row = blockIdx.x * blockDim.x + threadIdx.x, C = in.C;
    if (row >= in.N) { return; }
    const floatX *x = in.inp + (int64_t)row * C, *dy = in.dout + (int64_t)row * C;
    floatX *dx = dinp + (int64_t)row * C;
    float m = in.mean[row], r = in.rstd[row], sum_g = 0.0f, sum_gn = 0.0f;
    for (int c = 0; c < C; c++) {
        float n = (to_float(x[c]) - m) * r, d = to_float(dy[c]), g = to_float(in.weight[c]) * d;
        sum_g += g;
        sum_gn += g * n;
        atomicAdd(dweight + c, d * n);
        atomicAdd(dbias + c, d);
    }
    float mean_g = sum_g / (float)C, mean_gn = sum_gn / (float)C;
    for (int c = 0; c < C; c++) {
        float n = (to_float(x[c]) - m) * r, g = to_float(in.weight[c]) * to_float(dy[c]);
        dx[c] = from_float<floatX>(to_float(dx[c]) + r * (g - mean_g - n * mean_gn));
    }
}

static void backward1(Backward &p) {
    backward_kernel1<<<blocks_for(p.N, 64), 64>>>(p.dinp.data, p.dweight.data, p.dbias.data, p.in);
}

// Version 2. A first kernel gives each row a warp and writes dinp. A second kernel gives each column a thread, which
// adds the rows in their order. So each sum has one owner. It needs no atomics and has equal bits in every run. The
// second kernel reads dout and inp again. It has only C threads, too few to fill a GPU, which the bound does not see.
static __global__ void backward_kernel2(floatX *dinp, BackwardInput in) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x, C = in.C;
    if (row >= in.N) { return; }
    const floatX *x = in.inp + (int64_t)row * C, *dy = in.dout + (int64_t)row * C;
    floatX *dx = dinp + (int64_t)row * C;
    float m = in.mean[row], r = in.rstd[row], sum_g = 0.0f, sum_gn = 0.0f;
    for (int c = lane; c < C; c += WARP_SIZE) {
        float g = to_float(in.weight[c]) * to_float(dy[c]);
        sum_g += g;
        sum_gn += g * (to_float(x[c]) - m) * r;
    }
    float mean_g = warp_sum(sum_g) / (float)C, mean_gn = warp_sum(sum_gn) / (float)C;
    for (int c = lane; c < C; c += WARP_SIZE) {
        float n = (to_float(x[c]) - m) * r, g = to_float(in.weight[c]) * to_float(dy[c]);
        dx[c] = from_float<floatX>(to_float(dx[c]) + r * (g - mean_g - n * mean_gn));
    }
}

static __global__ void backward_columns_kernel2(float *dweight, float *dbias, BackwardInput in) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= in.C) { return; }
    float sum_dn = 0.0f, sum_d = 0.0f;
    for (int row = 0; row < in.N; row++) {
        int64_t at = (int64_t)row * in.C + c;
        float d = to_float(in.dout[at]);
        sum_dn += d * (to_float(in.inp[at]) - in.mean[row]) * in.rstd[row];
        sum_d += d;
    }
    dweight[c] += sum_dn;
    dbias[c] += sum_d;
}

static void backward2(Backward &p) {
    backward_kernel2<<<blocks_for(p.N, 4), dim3(WARP_SIZE, 4)>>>(p.dinp.data, p.in);
    backward_columns_kernel2<<<blocks_for(p.C, 64), 64>>>(p.dweight.data, p.dbias.data, p.in);
}

// Completes this lane's part of a row of dinp. n becomes the lane's normalised inputs, d its part of dout. Both stay in
// registers, as in version 4 of the forward, and travel 16 bytes a lane.
template <int VECTORS>
__device__ __forceinline__ void backward_row(floatX *dinp, float (&n)[VECTORS][x128::size],
                                             float (&d)[VECTORS][x128::size], const BackwardInput &in, int row) {
    constexpr int C = VECTORS * WARP_SIZE * x128::size;
    float m = in.mean[row], r = in.rstd[row], sum_g = 0.0f, sum_gn = 0.0f;
    x128 w[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int c = (i * WARP_SIZE + threadIdx.x) * x128::size;
        x128 x = load128(in.inp + (int64_t)row * C + c), dy = load128(in.dout + (int64_t)row * C + c);
        w[i] = load128(in.weight + c);
        for (int k = 0; k < x128::size; k++) {
            n[i][k] = (to_float(x[k]) - m) * r, d[i][k] = to_float(dy[k]);
            float g = to_float(w[i][k]) * d[i][k];
            sum_g += g;
            sum_gn += g * n[i][k];
        }
    }
    float mean_g = warp_sum(sum_g) / (float)C, mean_gn = warp_sum(sum_gn) / (float)C;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        floatX *part = dinp + (int64_t)row * C + (i * WARP_SIZE + threadIdx.x) * x128::size;
        x128 dx = load128(part);
        for (int k = 0; k < x128::size; k++) {
            float g = to_float(w[i][k]) * d[i][k];
            dx[k] = from_float<floatX>(to_float(dx[k]) + r * (g - mean_g - n[i][k] * mean_gn));
        }
        store128(part, dx);
    }
}

// Version 3. One pass: what the second kernel read again is already in registers. A warp takes several rows in turn and
// keeps the sums of its columns. At the end the block adds the sums of its 4 warps in shared memory and stores them in
// scratch, 2 C floats for 16 rows. A small kernel adds the blocks' sums, in their order. The lanes' sums lie 32 bytes
// apart in shared memory, so a store takes twice the wavefronts that it needs (`waves`).
template <int VECTORS> static __global__ void backward_kernel3(floatX *dinp, float *scratch, BackwardInput in) {
    constexpr int C = VECTORS * WARP_SIZE * x128::size;
    __shared__ alignas(16) float partial[BACKWARD_WARPS * 2 * C];
    float n[VECTORS][x128::size], d[VECTORS][x128::size];
    float dweight[VECTORS][x128::size] = {}, dbias[VECTORS][x128::size] = {};
    int first = blockIdx.x * BACKWARD_ROWS, end = min(first + BACKWARD_ROWS, in.N);
    for (int row = first + threadIdx.y; row < end; row += BACKWARD_WARPS) {
        backward_row<VECTORS>(dinp, n, d, in, row);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            for (int k = 0; k < x128::size; k++) { dweight[i][k] += d[i][k] * n[i][k], dbias[i][k] += d[i][k]; }
        }
    }
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        float *of_warp = partial + threadIdx.y * 2 * C, *of_lane = of_warp + (i * WARP_SIZE + threadIdx.x) * x128::size;
        layernorm_store_sums(of_lane, dweight[i]);
        layernorm_store_sums(of_lane + C, dbias[i]);
    }
    __syncthreads();
    for (int c = threadIdx.y * WARP_SIZE + threadIdx.x; c < 2 * C; c += BACKWARD_WARPS * WARP_SIZE) {
        float sum = 0.0f;
        for (int warp = 0; warp < BACKWARD_WARPS; warp++) { sum += partial[warp * 2 * C + c]; }
        scratch[(int64_t)blockIdx.x * 2 * C + c] = sum;
    }
}

// scratch (blocks,2,C)
static __global__ void backward_join_kernel3(float *dweight, float *dbias, const float *scratch, int blocks, int C) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= 2 * C) { return; }
    float sum = 0.0f;
    for (int block = 0; block < blocks; block++) { sum += scratch[(int64_t)block * 2 * C + c]; }
    float *gradient = c < C ? dweight + c : dbias + c - C;
    *gradient += sum;
}

static void backward3(Backward &p) {
    constexpr int VECTORS = 768 / WARP_SIZE / x128::size;
    backward_kernel3<VECTORS><<<p.blocks3, dim3(WARP_SIZE, BACKWARD_WARPS)>>>(p.dinp.data, p.scratch.data, p.in);
    backward_join_kernel3<<<blocks_for(2 * p.C, 64), 64>>>(p.dweight.data, p.dbias.data, p.scratch.data, p.blocks3,
                                                           p.C);
}

// Version 4. The trainer's: three warps share a row of 768 numbers. So a thread needs fewer registers, and more warps
// fit. A block loads its next row while it sums the current row. The bound sees neither. The kernel reads weight twice
// for each row, from the caches, which also saves registers (`moved`). The trainer can ask for a third sum, that of
// dinp's columns, which another layer needs.
static void backward4(Backward &p) {
    LayerNorm ln = {p.C,  LAYERNORM_EPSILON, p.in.weight, NULL, p.dweight.data, p.dbias.data,
                    NULL, p.mean.data,       p.rstd.data, NULL};
    layernorm_backward_with_column_sums({p.dinp.data, false, NULL, NULL}, ln, p.dout.data, p.in.inp, p.scratch.data,
                                        p.N, 0);
}

static void backward_ladder(Ladder &ladder, Backward &p) {
    auto bytes_of = [C = p.C](double N) { return (double)sizeof(floatX) * (4.0 * N * C + C) + 8.0 * N + 16.0 * C; };
    auto choose = [&p, N = p.N](int problem) {
        p.N = p.in.N = problem == 0 ? N : N / 2;
        p.blocks3 = (int)blocks_for(p.N, BACKWARD_ROWS);
    };
    ladder.layer({format("layernorm backward, %d x %d", p.N, p.C), bytes_of(p.N), 0.0, [&p] { p.clear(); },
                  [&p](Test *t) { p.check(t); },
                  rows_real_shape(format("%d x %d", GPT2_N, p.C), p.N, GPT2_N, bytes_of(GPT2_N), choose)});
    ladder.version("a thread a row, atomics", [&p] { backward1(p); });
    ladder.version("a warp a row, then columns", [&p] { backward2(p); });
    ladder.version("one pass, sums of a block", [&p] { backward3(p); });
    ladder.version("llmc", [&p] { backward4(p); });
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Forward forward;
    forward_ladder(ladder, forward);
    Backward backward(forward);
    backward_ladder(ladder, backward);
    return ladder.end();
}
