// GELU against the CPU trainer's.
#ifndef KERNELS_GELU_CUH
#define KERNELS_GELU_CUH

#include "llmc/layers/gelu.cuh"
#include "dev/test/layers/gpu_test.h"

// Values around 0, where GELU bends, and the far ends, where exp overflows or vanishes.
static inline std::vector<float> gelu_inputs(int64_t n) {
    std::vector<float> inp = random_values(n, 2.0f, 21);
    const float ends[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 9.0f, -9.0f, 40.0f, -40.0f, 3e4f, -3e4f, 1e12f, -1e12f};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]) && i < inp.size(); i++) { inp[i] = rounded(ends[i]); }
    return inp;
}

// Both sides round about ten operations; the result is rounded to floatX. A value of exp(-2u) is off by half an epsilon
// of 2u more, which matters while it is not below an epsilon itself: 2u up to 16, so 8 epsilons.
#define GELU_TOLERANCE (32.0 * FLT_EPSILON)

static inline void check_gelu(Test *t, int64_t n, int block_size) {
    std::vector<float> x = gelu_inputs(n), y((size_t)n);
    cpu_gelu_forward(y.data(), x.data(), n);
    DeviceArray<floatX> inp(x), out(n);
    Amax amax;
    gelu_forward(out.data, inp.data, n, 0, amax.data(), block_size);
    std::string what = format("out of %d, block %d", (int)n, block_size);
    check_values(t, what, out.get(), y, GELU_TOLERANCE, FLOATX_EPSILON / 2 + GELU_TOLERANCE);
    amax.check(t, what, out.get());
}

TEST(test_gelu_against_cpu) {
    for (int64_t n : {8, 264, 2048, 2056, 7 * 3456}) { check_gelu(t, n, 256); }
    for (int block_size : {32, 96, 1024}) { check_gelu(t, 5 * 248, block_size); }
}

static inline void check_gelu_backward(Test *t, int64_t N, int width) {
    int64_t n = N * width;
    std::vector<float> x = gelu_inputs(n), dy = random_values(n, 1.0f, 22), dx((size_t)n, 0.0f);
    cpu_gelu_backward(dx.data(), x.data(), dy.data(), n);
    DeviceArray<floatX> inp(x), dout(dy), dinp(n);
    DeviceArray<float> dbias(random_values(width, 1.0f, 23)), scratch(gelu_backward_scratch_floats(N, width));
    std::vector<float> before = dbias.get();
    Amax amax;
    gelu_backward(dinp.data, inp.data, dout.data, dbias.data, scratch.data, N, width, 0, amax.data());
    std::vector<float> got = dinp.get();
    std::string what = format("dinp of %d x %d", (int)N, width);
    check_values(t, what, got, dx, 4 * GELU_TOLERANCE, FLOATX_EPSILON / 2 + GELU_TOLERANCE);
    amax.check(t, what, got);
    check_column_sums(t, what + ": dbias", dbias.get(), before, got);
}

// Widths below, at and above the 128 or 256 columns of a block; rows below, at and above those of one.
TEST(test_gelu_backward) {
    for (int width : {8, 136, 256, 328}) {
        for (int64_t N : {1, 7, 64, 65}) { check_gelu_backward(t, N, width); }
    }
    check_gelu_backward(t, 64 * GELU_BACKWARD_ROWS + 1, 8); // more blocks than the second stage adds at a time
}

// A NaN is the largest of all, and an infinity of all numbers; what was there before stays where it is larger.
TEST(test_amax) {
    std::vector<float> x = random_values(1000, 1.0f, 24);
    DeviceArray<floatX> out(1000);
    Amax amax(64.0f);
    gelu_forward(out.data, DeviceArray<floatX>(x).data, 1000, 0, amax.data());
    amax.check(t, "a larger one before", out.get(), 64.0f);
    x[500] = INFINITY;
    gelu_forward(out.data, DeviceArray<floatX>(x).data, 1000, 0, amax.data());
    amax.check(t, "an infinity", {INFINITY});
    x[77] = NAN;
    gelu_forward(out.data, DeviceArray<floatX>(x).data, 1000, 0, amax.data());
    CHECK(t, isnan(amax.value.raw()[0]), "a NaN: amax is %g", (double)amax.value.raw()[0]);
}

// A layer's memory may be shared: out may be inp, dinp may be dout. The sums may be left out.
TEST(test_gelu_schedules) {
    const int64_t N = 130;
    const int width = 264;
    DeviceArray<floatX> inp(gelu_inputs(N * width)), dout(random_values(N * width, 1.0f, 22)), out(N * width),
        dinp(N * width);
    DeviceArray<float> dbias(width), scratch(gelu_backward_scratch_floats(N, width));
    Amax amax;
    for_each_schedule(t, "gelu", [&] {
        out.poison(), dinp.poison(), dbias.clear(), scratch.poison();
        gelu_forward(out.data, inp.data, N * width, 0);
        gelu_backward(dinp.data, inp.data, dout.data, dbias.data, scratch.data, N, width, 0, amax.data());
        return out.hash() ^ 3 * dinp.hash() ^ 5 * dbias.hash() ^ 7 * amax.value.hash();
    });
    gelu_backward(dout.data, inp.data, dout.data, NULL, NULL, N, width, 0);
    gelu_forward(inp.data, inp.data, N * width, 0);
    CHECK(t, out.hash() == inp.hash(), "the forward in place gives other bits");
    CHECK(t, dinp.hash() == dout.hash(), "the backward in place and without sums gives other bits");
}

#endif // KERNELS_GELU_CUH
