// GELU against the CPU trainer's.
#ifndef KERNELS_GELU_CUH
#define KERNELS_GELU_CUH

#include "../../llmc/gelu.cuh"
#include "gpu_test.h"

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
    std::vector<float> x = gelu_inputs(n), dy = random_values(n, 1.0f, 22), y((size_t)n), dx((size_t)n, 0.0f);
    cpu_gelu_forward(y.data(), x.data(), n);
    cpu_gelu_backward(dx.data(), x.data(), dy.data(), n);
    DeviceArray<floatX> inp(x), dout(dy), out(n), dinp(n);
    gelu_forward(out.data, inp.data, n, 0, block_size);
    gelu_backward(dinp.data, inp.data, dout.data, n, 0, block_size);
    cuda_check(cudaDeviceSynchronize());
    double relative = FLOATX_EPSILON / 2 + GELU_TOLERANCE;
    check_values(t, "out of " + std::to_string(n), out.get(), y, GELU_TOLERANCE, relative);
    check_values(t, "dinp of " + std::to_string(n), dinp.get(), dx, 4 * GELU_TOLERANCE, relative);
}

static void test_gelu_against_cpu(Test *t) {
    const int64_t counts[] = {8, 16, 264, 2048, 2056, 3 * 1600, 7 * 3456};
    for (int64_t n : counts) { check_gelu(t, n, 256); }
}

static void test_gelu_block_sizes(Test *t) {
    const int block_sizes[] = {32, 96, 128, 512, 1024};
    for (int block_size : block_sizes) { check_gelu(t, 5 * 248, block_size); }
}

// A layer's memory may be shared: out may be inp, dinp may be dout.
static void test_gelu_in_place(Test *t) {
    int64_t n = 1000;
    std::vector<float> x = gelu_inputs(n), dy = random_values(n, 1.0f, 22);
    DeviceArray<floatX> inp(x), same(x), dout(dy), same_gradient(dy), out(n), dinp(n);
    gelu_forward(out.data, inp.data, n, 0);
    gelu_forward(same.data, same.data, n, 0);
    gelu_backward(dinp.data, inp.data, dout.data, n, 0);
    gelu_backward(same_gradient.data, inp.data, same_gradient.data, n, 0);
    CHECK(t, out.hash() == same.hash(), "the forward in place gives other bits");
    CHECK(t, dinp.hash() == same_gradient.hash(), "the backward in place gives other bits");
}

static void test_gelu_schedules(Test *t) {
    int64_t n = 10000;
    DeviceArray<floatX> inp(gelu_inputs(n)), dout(random_values(n, 1.0f, 22)), out(n), dinp(n);
    for_each_schedule(t, "gelu", [&] {
        out.poison(), dinp.poison();
        gelu_forward(out.data, inp.data, n, 0);
        gelu_backward(dinp.data, inp.data, dout.data, n, 0);
        return out.hash() ^ dinp.hash();
    });
}

static void gelu_tests(Suite *suite) {
    RUN(suite, test_gelu_against_cpu);
    RUN(suite, test_gelu_block_sizes);
    RUN(suite, test_gelu_in_place);
    RUN(suite, test_gelu_schedules);
}

#endif // KERNELS_GELU_CUH
