// The ladder of GELU's forward in the tanh form. The formulas are at the top of llmc/layers/gelu.cuh.
// inp, out (N,width), where width = 4 C. The backward also adds columns, as the bias's ladder does
// (matmul_backward.cu).
//
// A number moves 4 bytes in bf16. By the datasheet, the memory of an H100 brings a multiprocessor 14
// bytes a clock: 3.6 numbers. The multiprocessor starts 128 lanes' instructions a clock, and 16 of them may be
// exponentials, reciprocals and their kind. So a number may cost 35 instructions and 4 such functions before the kernel
// waits for arithmetic. The meter's bound does not see instructions. The comments say how many nvcc 13 makes:
//   nvcc -std=c++17 -arch=sm_90 -I. -cubin -o gelu.cubin dev/cuda/gelu.cu && cuobjdump -sass gelu.cubin
#include "dev/cuda/ladder.cuh"
#include "llmc/layers/gelu.cuh"

#define RUN 16 // numbers that a thread of version 1 takes

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

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Gelu p;
    ladder.layer({format("gelu forward, %d x %d", p.N, p.width), 2.0 * (double)sizeof(floatX) * (double)p.n, 0.0,
                  [&p] { p.out.poison(); }, [&p](Test *t) { p.check(t); }});
    ladder.version("a run a thread", [&p] { forward1(p); });
    ladder.version("neighbouring lanes", [&p] { forward2(p); });
    ladder.version("16 bytes a lane", [&p] { forward3(p); });
    ladder.version("hardware's exponential", [&p] { forward4(p); });
    ladder.version("llmc", [&p] { forward5(p); });
    return ladder.end();
}
