// The ladder of LayerNorm. The formulas are at the top of llmc/layers/layernorm.cuh, and doc/ has a chapter on them.
// inp, out, dinp, dout (N,C); weight, bias (C); mean, rstd (N) fp32; dweight, dbias (C) fp32.
#include "dev/cuda/ladder.cuh"
#include "llmc/layers/layernorm.cuh"

// ---- Forward ----

struct Forward {
    int N = ladder_size(64, 16384), C = 768;
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
    float r = 1.0f / sqrtf(square / (float)C + GPT2_LAYERNORM_EPSILON);
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
    float r = 1.0f / sqrtf(warp_sum(square) / (float)C + GPT2_LAYERNORM_EPSILON);
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
    float r = 1.0f / sqrtf(warp_sum(square) / (float)C + GPT2_LAYERNORM_EPSILON);
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
    float r = 1.0f / sqrtf(warp_sum(square) / (float)C + GPT2_LAYERNORM_EPSILON);
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
    layernorm_forward({p.C, p.w.data, p.b.data, NULL, NULL, p.out.data, p.mean.data, p.rstd.data, NULL}, p.x.data, p.N,
                      0);
}

static void forward_ladder(Ladder &ladder, Forward &p) {
    double bytes = 2.0 * (double)sizeof(floatX) * ((double)p.N * p.C + p.C) + 8.0 * p.N;
    ladder.layer({words("layernorm forward, %d x %d", p.N, p.C), bytes, 0.0,
                  [&p] { p.out.poison(), p.mean.poison(), p.rstd.poison(); }, [&p](Test *t) { p.check(t); }});
    ladder.version("a thread a row", [&p] { forward1(p); });
    ladder.version("a warp a row", [&p] { forward2(p); });
    ladder.version("16 bytes a lane", [&p] { forward3(p); });
    ladder.version("row in registers", [&p] { forward4(p); });
    ladder.version("llmc", [&p] { forward5(p); });
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Forward forward;
    forward_ladder(ladder, forward);
    return ladder.end();
}
