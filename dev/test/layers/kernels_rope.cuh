// The rotary position embedding against the CPU trainer's: heads that 16 bytes divide and others, in both directions.
#ifndef KERNELS_ROPE_CUH
#define KERNELS_ROPE_CUH

#include "llmc/layers/rope.cuh"
#include "dev/test/layers/gpu_test.h"

// (T,HS/2,2), with angles that are no multiple of anything.
static std::vector<float> rope_angles(int T, int HS) {
    std::vector<float> table((size_t)T * HS);
    for (int t = 0; t < T; t++) {
        for (int j = 0; j < HS / 2; j++) {
            double angle = t * pow(500.0, -2.0 * j / HS);
            table[(size_t)(t * HS + 2 * j)] = (float)cos(angle);
            table[(size_t)(t * HS + 2 * j + 1)] = (float)sin(angle);
        }
    }
    return table;
}

// A component is the sum of two products, each at most as large as the largest value. Both sides round three times.
static void check_rope(Test *t, int64_t N, int T, int NH, int KV, int HS) {
    int64_t width = (NH + 2 * KV) * HS, n = N * width;
    std::vector<float> x = random_values(n, 1.0f, 41), table = rope_angles(T, HS);
    DeviceArray<float> angles(table);
    for (bool forward : {true, false}) {
        DeviceArray<floatX> qkv(x);
        (forward ? rope_forward : rope_backward)(qkv.data, angles.data, N, {1, 0, T}, NH, KV, HS, 0);
        std::vector<float> want = x;
        (forward ? cpu_rope_forward : cpu_rope_backward)(want.data(), table.data(), N, T, NH, KV, HS);
        std::string what =
            format("%s, N %d, T %d, NH %d, KV %d, HS %d", forward ? "forward" : "backward", (int)N, T, NH, KV, HS);
        std::vector<float> got = qkv.get();
        check_values(t, what, got, want, 4.0 * FLT_EPSILON * largest(x), 0.5 * FLOATX_EPSILON);
        for (int64_t i = 0; i < n; i++) { // of q and k nothing is left to compare
            if (i % width < (NH + KV) * HS) { got[(size_t)i] = x[(size_t)i]; }
        }
        check_equal(t, what + ": v", got, x);
    }
}

// Halves of a head with and without whole packs of 16 bytes; heads of queries that share one of keys; sequences that
// repeat and one that is cut; rows with more parts than a block has threads, in packs and one by one.
TEST(test_rope_against_cpu) {
    for (int HS : {2, 6, 8, 16, 24, 40, 48, 64, 80, 128}) {
        check_rope(t, 10, 5, 3, 1, HS);
        check_rope(t, 7, 7, 2, 2, HS);
    }
    check_rope(t, 13, 5, 9, 3, 64);
    check_rope(t, 3, 1024, 32, 8, 128);
    check_rope(t, 2, 2, 140, 4, 128);
    check_rope(t, 2, 2, 70, 10, 26);
}

TEST(test_rope_schedules) {
    const int T = 7, NH = 3, KV = 1, N = 14;
    for (int HS : {64, 26}) {
        std::vector<float> x = random_values(N * (NH + 2 * KV) * HS, 1.0f, 43);
        DeviceArray<floatX> qkv(x), dqkv(x);
        DeviceArray<float> angles(rope_angles(T, HS));
        for_each_schedule(t, "rope", [&] {
            qkv.set(x), dqkv.set(x);
            rope_forward(qkv.data, angles.data, N, {1, 0, T}, NH, KV, HS, 0);
            rope_backward(dqkv.data, angles.data, N, {1, 0, T}, NH, KV, HS, 0);
            return qkv.hash() ^ 3 * dqkv.hash();
        });
    }
}

#endif // KERNELS_ROPE_CUH
