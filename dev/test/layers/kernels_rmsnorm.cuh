// RMSNorm, alone and fused with the residual sum, against the CPU trainer's: all model widths, rows near zero, and the
// two-stage backward. What it shares with LayerNorm, kernels_layernorm.cuh tests.
#ifndef KERNELS_RMSNORM_CUH
#define KERNELS_RMSNORM_CUH

#include "dev/test/layers/kernels_layernorm.cuh"

static const int rmsnorm_widths[] = {576, 960, 3072}; // of SmolLM2 and Llama 3.2

TEST(test_rmsnorm_forward_widths) {
    for (int C : layernorm_widths) { layernorm_run_forward(t, layernorm_case(C > 4000 ? 1 : 3, C, RMSNORM), 256); }
    for (int C : rmsnorm_widths) { layernorm_run_forward(t, layernorm_case(3, C, RMSNORM), 256); }
}

// Squares about as large as a small epsilon, and a row of zeros.
TEST(test_rmsnorm_near_zero) {
    LayerNormCase c = layernorm_case(3, 576, RMSNORM);
    c.epsilon = 1e-6f;
    for (size_t i = 0; i < c.x.size(); i++) { c.x[i] = i < 576 ? 0.0f : rounded(1e-3f * c.x[i]); }
    layernorm_cpu_forward(&c);
    layernorm_run_forward(t, c, 256);
}

TEST(test_rmsnorm_fused) {
    for (int C : {8, 520, 576, 3072}) {
        for (int alias : {0, 1}) { layernorm_check_fused(t, 9, C, 256, alias, RMSNORM); }
    }
}

TEST(test_rmsnorm_backward_extras) { layernorm_check_extras(t, RMSNORM); }

TEST(test_rmsnorm_backward_widths) {
    for (int C : layernorm_widths) { layernorm_check_backward(t, C > 2000 ? 1 : 3, C, 2, RMSNORM); }
    for (int C : rmsnorm_widths) { layernorm_check_backward(t, 3, C, 2, RMSNORM); }
}

TEST(test_rmsnorm_backward_rows) {
    for (int64_t N : {1, 17, 100}) { layernorm_check_backward(t, N, 72, 2, RMSNORM); }
}

TEST(test_rmsnorm_schedules) { layernorm_check_schedules(t, "rmsnorm", RMSNORM); }

#endif // KERNELS_RMSNORM_CUH
