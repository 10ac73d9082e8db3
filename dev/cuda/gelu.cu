// The ladder of GELU in the tanh form. The formulas are at the top of llmc/layers/gelu.cuh.
// inp, out, dinp, dout (N,width), where width = 4 C; dbias (width) fp32: the sums of dinp's columns.
//
// A number of the forward moves 4 bytes in bf16. By the datasheet, the memory of an H100 brings a multiprocessor 14
// bytes a clock: 3.6 numbers. The multiprocessor starts 128 lanes' instructions a clock, and 16 of them may be
// exponentials, reciprocals and their kind. So a number may cost 35 instructions and 4 such functions before the kernel
// waits for arithmetic. The meter's bound does not see instructions. The comments say how many nvcc 13 makes:
//   nvcc -std=c++17 -arch=sm_90 -I. -cubin -o gelu.cubin dev/cuda/gelu.cu && cuobjdump -sass gelu.cubin
#include "dev/cuda/ladder.cuh"
#include "llmc/layers/gelu.cuh"

#define RUN 16 // numbers that a thread of the forward's version 1 takes

// An operation is off by half an epsilon, and a value has about ten. exp(-2u) is off by half an epsilon of 2u more.
// This matters up to 2u = 16, where exp(-2u) is below an epsilon itself: 8 epsilons.
#define TOLERANCE (32.0 * FLT_EPSILON)

struct Gelu {
    int N = ladder_size(128, 16384), width = 3072;
    int64_t n = (int64_t)N * width;
    std::vector<float> x, want_out;
    DeviceArray<floatX> inp, out;

    Gelu() : x(random_values(n, 2.0f, 1)), want_out(x.size()), inp(x), out(n) {
        cpu_gelu_forward(want_out.data(), x.data(), n);
    }
    void check(Test *t) const {
        check_values(t, "out", out.get(), want_out, TOLERANCE, 0.5 * FLOATX_EPSILON + TOLERANCE);
    }
};

// ---- Forward ----

__device__ __forceinline__ float gelu_with_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(GELU_SQRT_2_OVER_PI * (x + GELU_CUBE_FACTOR * x * x * x)));
}

// Version 1. A thread takes a run of 16 neighbouring numbers. The lanes of a warp are 32 bytes apart, so each request
// touches 32 sectors and uses 2 bytes of each. The next 15 requests want the other bytes of these sectors.
static __global__ void forward_kernel1(floatX *out, const floatX *inp, int64_t n) {
    int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * RUN;
    for (int64_t i = first; i < first + RUN && i < n; i++) {
        out[i] = from_float<floatX>(gelu_with_tanh(to_float(inp[i])));
    }
}

static void forward1(Gelu &p) { forward_kernel1<<<blocks_for(p.n, 256 * RUN), 256>>>(p.out.data, p.inp.data, p.n); }

// Version 2. The lanes of a warp take neighbouring numbers: a request is 64 bytes in 2 sectors, and uses them whole.
// A number costs 48 instructions.
static __global__ void forward_kernel2(floatX *out, const floatX *inp, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = from_float<floatX>(gelu_with_tanh(to_float(inp[i]))); }
}

static void forward2(Gelu &p) { forward_kernel2<<<blocks_for(p.n, 256), 256>>>(p.out.data, p.inp.data, p.n); }

// Version 3. A thread takes 16 bytes. The bytes stay, so the bound stays. But a request is 512 bytes (`sectors`): more
// bytes are on their way, and 8 numbers share a load, a store and an address. A number costs 27 instructions. n % 8 ==
// 0.
static __global__ void forward_kernel3(floatX *out, const floatX *inp, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (i >= n) { return; }
    x128 x = load128(inp + i);
    for (int k = 0; k < x128::size; k++) { x[k] = from_float<floatX>(gelu_with_tanh(to_float(x[k]))); }
    store128(out + i, x);
}

static void forward3(Gelu &p) {
    forward_kernel3<<<blocks_for(p.n / x128::size, 256), 256>>>(p.out.data, p.inp.data, p.n);
}

// Version 4. gelu_value has no tanh: (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)). In bf16 its exponential and its
// reciprocal are one instruction each, good to a few units in the last place of fp32. bf16 keeps 16 bits less. A number
// costs 12 instructions. With expf and an exact quotient it would cost 33, more than tanhf.
static __global__ void forward_kernel4(floatX *out, const floatX *inp, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (i >= n) { return; }
    x128 x = load128(inp + i);
    for (int k = 0; k < x128::size; k++) { x[k] = from_float<floatX>(gelu_value(to_float(x[k]))); }
    store128(out + i, x);
}

static void forward4(Gelu &p) {
    forward_kernel4<<<blocks_for(p.n / x128::size, 256), 256>>>(p.out.data, p.inp.data, p.n);
}

// Version 5. The trainer's: its loads do not push other data out of the caches, because the next kernel reads out, not
// inp. For 8-bit multiplies it can also find the largest magnitude of out.
static void forward5(Gelu &p) { gelu_forward(p.out.data, p.inp.data, p.n, 0); }

static void forward_ladder(Ladder &ladder, Gelu &p) {
    ladder.layer({format("gelu forward, %d x %d", p.N, p.width), 2.0 * (double)sizeof(floatX) * (double)p.n, 0.0,
                  [&p] { p.out.poison(); }, [&p](Test *t) { p.check(t); }});
    ladder.version("a run a thread", [&p] { forward1(p); });
    ladder.version("neighbouring lanes", [&p] { forward2(p); });
    ladder.version("16 bytes a lane", [&p] { forward3(p); });
    ladder.version("hardware's exponential", [&p] { forward4(p); });
    ladder.version("llmc", [&p] { forward5(p); });
}

// ---- Backward ----
//
// The sums of dinp's columns are the gradient of the bias of the linear layer before GELU, so the backward adds them.

#define CHUNK_ROWS 64 // of a block of version 3

struct Backward {
    int N, width;
    int64_t n;
    std::vector<float> want_dinp, before_dbias;
    DeviceArray<floatX> dout, dinp;
    DeviceArray<float> dbias, scratch;
    const floatX *inp;

    explicit Backward(const Gelu &f)
        : N(f.N), width(f.width), n(f.n), want_dinp((size_t)n), before_dbias(random_values(width, 1.0f, 2)), dout(n),
          dinp(n), dbias(width), scratch(gelu_backward_scratch_floats(N, width)), inp(f.inp.data) {
        std::vector<float> dy = random_values(n, 1.0f, 3);
        dout.set(dy);
        cpu_gelu_backward(want_dinp.data(), f.x.data(), dy.data(), n);
    }
    void clear() { dinp.poison(), dbias.set(before_dbias), scratch.poison(); }

    // The slope has about four times the operations of the value.
    void check(Test *t) const {
        std::vector<float> got = dinp.get();
        check_values(t, "dinp", got, want_dinp, 4.0 * TOLERANCE, 0.5 * FLOATX_EPSILON + TOLERANCE);
        check_column_sums(t, "dbias", dbias.get(), before_dbias, got);
    }
};

// Version 1. Two kernels. In the first one a thread computes a number, in the second one a thread adds a column of what
// the first one has written. So dinp is read back: 4 numbers are moved where 3 are needed. The second kernel has few
// threads with long sums, which the bound does not see.
static __global__ void backward_kernel1(floatX *dinp, const floatX *inp, const floatX *dout, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { dinp[i] = from_float<floatX>(to_float(dout[i]) * gelu_slope(to_float(inp[i]))); }
}

static __global__ void backward_columns_kernel1(float *dbias, const floatX *dinp, int N, int width) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) { return; }
    float sum = 0.0f;
    for (int row = 0; row < N; row++) { sum += to_float(dinp[(int64_t)row * width + column]); }
    dbias[column] += sum;
}

static void backward_columns1(Backward &p) {
    backward_columns_kernel1<<<blocks_for(p.width, 64), 64>>>(p.dbias.data, p.dinp.data, p.N, p.width);
}

static void backward1(Backward &p) {
    backward_kernel1<<<blocks_for(p.n, 256), 256>>>(p.dinp.data, p.inp, p.dout.data, p.n);
    backward_columns1(p);
}

// Version 2. A thread of the first kernel takes 16 bytes, as in version 3 of the forward.
static __global__ void backward_kernel2(floatX *dinp, const floatX *inp, const floatX *dout, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (i >= n) { return; }
    x128 x = load128(inp + i), dy = load128(dout + i), dx;
    for (int k = 0; k < x128::size; k++) { dx[k] = from_float<floatX>(to_float(dy[k]) * gelu_slope(to_float(x[k]))); }
    store128(dinp + i, dx);
}

static void backward2(Backward &p) {
    backward_kernel2<<<blocks_for(p.n / x128::size, 256), 256>>>(p.dinp.data, p.inp, p.dout.data, p.n);
    backward_columns1(p);
}

// Version 3. One kernel. A warp takes 16 bytes of columns a lane, and 64 rows one after another, so that a lane keeps
// the sums of its columns in registers. At the end it adds them to dbias with atomics, one for each 64 rows. dinp is
// not read back. But the sums depend on the order of the blocks, so two runs differ in their last bits. width must be
// a multiple of 32 x 16 bytes.
static __global__ void backward_kernel3(floatX *dinp, float *dbias, const floatX *inp, const floatX *dout, int N,
                                        int width) {
    int column = (blockIdx.x * WARP_SIZE + threadIdx.x) * x128::size;
    int first = blockIdx.y * CHUNK_ROWS, end = min(first + CHUNK_ROWS, N);
    float sums[x128::size] = {};
    for (int row = first; row < end; row++) {
        int64_t i = (int64_t)row * width + column;
        x128 x = load128(inp + i), dy = load128(dout + i), dx;
        for (int k = 0; k < x128::size; k++) {
            dx[k] = from_float<floatX>(to_float(dy[k]) * gelu_slope(to_float(x[k])));
            sums[k] += to_float(dx[k]);
        }
        store128(dinp + i, dx);
    }
    for (int k = 0; k < x128::size; k++) { atomicAdd(dbias + column + k, sums[k]); }
}

static void backward3(Backward &p) {
    dim3 grid(blocks_for(p.width, COLUMN_CHUNK_COLUMNS), blocks_for(p.N, CHUNK_ROWS));
    backward_kernel3<<<grid, WARP_SIZE>>>(p.dinp.data, p.dbias.data, p.inp, p.dout.data, p.N, p.width);
}

// Version 4. The trainer's: 8 warps share the 64 rows and add their sums in shared memory (`waves`). They leave them in
// scratch, and a second kernel adds them in a fixed order. So the sums have equal bits in every run. Scratch costs 8
// bytes a column for 64 rows: 2 % more. The second kernel is made for more rows than the emulated ladder has.
static void backward4(Backward &p) {
    gelu_backward(p.dinp.data, p.inp, p.dout.data, p.dbias.data, p.scratch.data, p.N, p.width, 0);
}

static void backward_ladder(Ladder &ladder, Backward &p) {
    double bytes = 3.0 * (double)sizeof(floatX) * (double)p.n + 8.0 * p.width;
    ladder.layer({format("gelu backward, %d x %d", p.N, p.width), bytes, 0.0, [&p] { p.clear(); },
                  [&p](Test *t) { p.check(t); }});
    ladder.version("a number a thread, columns", [&p] { backward1(p); });
    ladder.version("16 bytes a lane", [&p] { backward2(p); });
    ladder.version("one kernel, atomics", [&p] { backward3(p); });
    ladder.version("llmc", [&p] { backward4(p); });
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Gelu gelu;
    forward_ladder(ladder, gelu);
    ladder.end_layer();
    Backward backward(gelu);
    backward_ladder(ladder, backward);
    return ladder.end();
}
