// The ladder of the residual sum and the LayerNorm that reads it: two layers that stand side by side in every block.
//   residual = inp1 + inp2, rounded to floatX
//   out, mean, rstd = LayerNorm of the residual (formulas at the top of llmc/layers/layernorm.cuh)
// inp1, inp2, residual, out (N,C); weight, bias (C); mean, rstd (N) fp32.
//
// The sum's backward needs no kernel: the gradient of the residual is the gradient of both inputs.
#include "dev/cuda/ladder.cuh"
#include "llmc/layers/layernorm.cuh"

struct Problem {
    int N = ladder_size(128, 16384), C = 768;
    std::vector<float> want_residual, want_out, want_mean, want_rstd, weight, bias;
    DeviceArray<floatX> inp1, inp2, w, b, residual, out;
    DeviceArray<float> mean, rstd;

    Problem()
        : want_residual(random_values((int64_t)N * C, 1.0f, 1)), want_out(want_residual.size()), want_mean((size_t)N),
          want_rstd((size_t)N), weight(random_values(C, 0.5f, 3)), bias(random_values(C, 0.3f, 4)), inp1(want_residual),
          inp2((int64_t)N * C), w(weight), b(bias), residual((int64_t)N * C), out((int64_t)N * C), mean(N), rstd(N) {
        std::vector<float> other = random_values((int64_t)N * C, 0.8f, 2);
        inp2.set(other);
        for (size_t i = 0; i < other.size(); i++) { want_residual[i] = rounded(want_residual[i] + other[i]); }
        cpu_layernorm_forward(want_out.data(), want_mean.data(), want_rstd.data(), want_residual.data(), weight.data(),
                              bias.data(), N, C);
    }
    LayerNorm layernorm() const {
        return {C, LAYERNORM_EPSILON, w.data, b.data, NULL, NULL, out.data, mean.data, rstd.data, NULL};
    }
    void clear() { residual.poison(), out.poison(), mean.poison(), rstd.poison(); }

    // The residual is one sum, rounded once. The mean may be off by `shift`, which moves a normalised value by
    // shift * rstd.
    void check(Test *t) const {
        double shift = sum_tolerance(C) * largest(want_residual), rstd_error = sum_tolerance(C);
        check_equal(t, "residual", residual.get(), want_residual);
        check_values(t, "mean", mean.get(), want_mean, shift, 0.0);
        check_values(t, "rstd", rstd.get(), want_rstd, 0.0, rstd_error);
        check_values(t, "out", out.get(), want_out,
                     shift * largest(want_rstd) * largest(weight) + rstd_error * (largest(want_out) + largest(bias)),
                     0.5 * FLOATX_EPSILON);
    }
};

// Version 1. Two kernels. In the first one each thread adds one number, and the lanes of a warp take neighbouring
// numbers. The second one is the trainer's LayerNorm. It reads back from memory what the first one has just written:
// together they move 5 numbers for each channel of a row, where 4 are needed.
static __global__ void residual_kernel1(floatX *residual, const floatX *inp1, const floatX *inp2, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { residual[i] = from_float<floatX>(to_float(inp1[i]) + to_float(inp2[i])); }
}

static void residual1(Problem &p) {
    int64_t n = (int64_t)p.N * p.C;
    residual_kernel1<<<blocks_for(n, 256), 256>>>(p.residual.data, p.inp1.data, p.inp2.data, n);
    layernorm_forward(p.layernorm(), p.residual.data, p.N, 0);
}

// Version 2. A thread adds 16 bytes. The bytes stay, so the bound stays. But a warp asks for 512 bytes at once instead
// of 64 (`sectors`). It needs an eighth of the instructions, and has more bytes on their way, which hides the memory's
// latency. C % 8 == 0.
static __global__ void residual_kernel2(floatX *residual, const floatX *inp1, const floatX *inp2, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (i < n) { store128(residual + i, residual_sum(load128(inp1 + i), load128(inp2 + i))); }
}

static void residual2(Problem &p) {
    int64_t n = (int64_t)p.N * p.C;
    residual_kernel2<<<blocks_for(n / x128::size, 256), 256>>>(p.residual.data, p.inp1.data, p.inp2.data, n);
    layernorm_forward(p.layernorm(), p.residual.data, p.N, 0);
}

// Version 3. One kernel. A warp keeps the sum of its row in registers, stores it, and goes on with LayerNorm. Nothing
// is read back: 4 numbers instead of 5 (`moved`, beside weight and bias, which come from the caches), and one launch
// less. The values that it normalises are the rounded ones, so it gives the bits of two kernels.
template <int VECTORS>
static __global__ void residual_kernel3(floatX *residual, floatX *out, float *mean, float *rstd, const floatX *inp1,
                                        const floatX *inp2, const floatX *weight, const floatX *bias, int N) {
    constexpr int C = VECTORS * WARP_SIZE * x128::size;
    int row = blockIdx.x * blockDim.y + threadIdx.y, first = threadIdx.x * x128::size;
    if (row >= N) { return; }
    x128 x[VECTORS];
    float sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int64_t at = (int64_t)row * C + first + i * WARP_SIZE * x128::size;
        x[i] = residual_sum(load128(inp1 + at), load128(inp2 + at));
        store128(residual + at, x[i]);
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

static void residual3(Problem &p) {
    constexpr int VECTORS = 768 / WARP_SIZE / x128::size;
    residual_kernel3<VECTORS><<<blocks_for(p.N, 4), dim3(WARP_SIZE, 4)>>>(
        p.residual.data, p.out.data, p.mean.data, p.rstd.data, p.inp1.data, p.inp2.data, p.w.data, p.b.data, p.N);
}

// Version 4. The trainer's: it also takes rows of other widths, which several warps share.
static void residual4(Problem &p) {
    fused_residual_layernorm_forward(p.layernorm(), p.residual.data, p.inp1.data, p.inp2.data, p.N, 0);
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Problem p;
    double bytes = 2.0 * (double)sizeof(floatX) * (2.0 * p.N * p.C + p.C) + 8.0 * p.N;
    ladder.layer({format("residual and layernorm, %d x %d", p.N, p.C), bytes, 0.0, [&p] { p.clear(); },
                  [&p](Test *t) { p.check(t); }});
    ladder.version("two kernels", [&p] { residual1(p); });
    ladder.version("16 bytes a lane", [&p] { residual2(p); });
    ladder.version("one kernel", [&p] { residual3(p); });
    ladder.version("llmc", [&p] { residual4(p); });
    return ladder.end();
}
