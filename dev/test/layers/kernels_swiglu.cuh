// SwiGLU against the CPU trainer's.
#ifndef KERNELS_SWIGLU_CUH
#define KERNELS_SWIGLU_CUH

#include "llmc/layers/swiglu.cuh"
#include "dev/test/layers/kernels_gelu.cuh"

// (N,2F): gates around 0 and far from it, as GELU's inputs, and ups of which no two are equal to gates.
static std::vector<float> swiglu_inputs(int64_t N, int F) {
    std::vector<float> fc = random_values(N * 2 * F, 1.0f, 51), gates = gelu_inputs(N * F);
    for (int64_t i = 0; i < N * F; i++) { fc[(size_t)(i / F * 2 * F + i % F)] = gates[(size_t)i]; }
    return fc;
}

// The largest of the N*F ups, which scale the error of silu and of its slope.
static double swiglu_largest_up(const std::vector<float> &fc, int64_t N, int F) {
    double most = 0.0;
    for (int64_t i = 0; i < N * F; i++) { most = fmax(most, fabs((double)fc[(size_t)(i / F * 2 * F + F + i % F)])); }
    return most;
}

// silu and its slope round as GELU and its slope do.
static void check_swiglu(Test *t, int64_t N, int F) {
    std::vector<float> x = swiglu_inputs(N, F), dy = random_values(N * F, 1.0f, 52), y((size_t)(N * F)), dx(x.size());
    cpu_swiglu_forward(y.data(), x.data(), N, F);
    cpu_swiglu_backward(dx.data(), x.data(), dy.data(), N, F);
    DeviceArray<floatX> fc(x), dout(dy), out(N * F), dfc(N * 2 * F);
    double up = swiglu_largest_up(x, N, F), relative = FLOATX_EPSILON / 2 + GELU_TOLERANCE;
    for (bool wants_amax : {true, false}) {
        Amax amax, damax;
        out.poison(), dfc.poison();
        swiglu_forward(out.data, fc.data, N, F, 0, wants_amax ? amax.data() : NULL);
        swiglu_backward(dfc.data, fc.data, dout.data, N, F, 0, wants_amax ? damax.data() : NULL);
        std::string what = format("N %d, F %d", (int)N, F);
        std::vector<float> got = out.get(), dgot = dfc.get();
        check_values(t, what + ": out", got, y, GELU_TOLERANCE * up, relative);
        check_values(t, what + ": dfc", dgot, dx, 4 * GELU_TOLERANCE * fmax(up, 1.0) * largest(dy), relative);
        amax.check(t, what + ": out", wants_amax ? got : std::vector<float>());
        damax.check(t, what + ": dfc", wants_amax ? dgot : std::vector<float>());
    }
}

// Rows shorter and longer than a block, and blocks that end within a row.
TEST(test_swiglu_against_cpu) {
    for (int F : {8, 16, 136, 1536, 2056, 2560}) {
        for (int64_t N : {1, 3, 7}) { check_swiglu(t, N, F); }
    }
    check_swiglu(t, 129, 24);
}

// dfc may be fc.
TEST(test_swiglu_schedules) {
    const int64_t N = 37;
    const int F = 80;
    DeviceArray<floatX> fc(swiglu_inputs(N, F)), dout(random_values(N * F, 1.0f, 52)), out(N * F), dfc(N * 2 * F);
    for_each_schedule(t, "swiglu", [&] {
        Amax amax;
        out.poison(), dfc.poison();
        swiglu_forward(out.data, fc.data, N, F, 0, amax.data());
        swiglu_backward(dfc.data, fc.data, dout.data, N, F, 0, amax.data());
        return out.hash() ^ 3 * dfc.hash() ^ 5 * amax.value.hash();
    });
    swiglu_backward(fc.data, fc.data, dout.data, N, F, 0);
    CHECK(t, fc.hash() == dfc.hash(), "the backward in place gives other bits");
}

#endif // KERNELS_SWIGLU_CUH
