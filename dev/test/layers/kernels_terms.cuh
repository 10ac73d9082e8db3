// Does a multiply by cuBLASLt add up all terms of its sums? A public report says that some algorithms leave out the
// last ones (cublas_describe_wishes in llmc/cuda/cublas_common.h). Every product of the models d12 to d48 is computed
// by the algorithm that training takes, with factors whose sum shows a missing term. The emulator takes widths of a
// sixteenth.
#ifndef KERNELS_TERMS_CUH
#define KERNELS_TERMS_CUH

#include "llmc/layers/linear.cuh"
#include "dev/test/layers/kernels_matmul.cuh"

#ifdef GPT2_EMU
#define TERMS_SHRINK 16
#else
#define TERMS_SHRINK 1
#endif

// The terms of op(B): 1 in the first half, -1 in the second half, 1 in the last `tail` terms but for `missing` zeros at
// the end. step: elements from one term to the next. op(A) is 1. So each sum is tail - missing, and exact in any type:
// tail is at most 255, and partial sums are whole numbers below 2^24.
template <class T>
static __global__ void terms_fill_kernel(T *B, int64_t k, int64_t n, int64_t step, int tail, int missing) {
    int64_t half = (k - tail) / 2;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < k * n; i += gridDim.x * (int64_t)blockDim.x) {
        int64_t term = i / step % k;
        float value = term < half ? 1.0f : term < 2 * half ? -1.0f : term < k - missing ? 1.0f : 0.0f;
        B[i] = T(value);
    }
}

// Adds to *wrong how many of n values are not `expected`.
template <class T> static __global__ void terms_count_kernel(int *wrong, const T *D, int64_t n, float expected) {
    int mine = 0;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (int64_t)blockDim.x) {
        mine += to_float(D[i]) == expected ? 0 : 1;
    }
    if (mine > 0) { atomicAdd(wrong, mine); }
}

#define TERMS_GRID 512, 256

template <class T> static void terms_fill(void *matrix, int64_t k, int64_t n, int64_t step, int tail, int missing) {
    terms_fill_kernel<<<TERMS_GRID>>>((T *)matrix, k, n, step, tail, missing);
    cuda_check_launch("terms_fill_kernel");
}

// Returns how many sums of a problem are not `expected`. Its last `missing` terms are 0.
static int terms_wrong(CublasContext *context, const CublasProblem &p, int tail, int missing) {
    DeviceArray<uint16_t> A(p.m * p.k * (int)sizeof(floatX) / 2), B(p.k * p.n * (int)sizeof(floatX) / 2);
    DeviceArray<float> D(p.fp32_output ? p.m * p.n : ceil_div_i64(p.m * p.n * (int)sizeof(floatX), 4)), scale(1);
    DeviceArray<floatX> bias(p.m);
    DeviceArray<int> wrong(1);
    CublasOperands on = cublas_operands(D.data, A.data, B.data);
    bool in_8_bits = cublas_is_8_bit(&p);
    int64_t step = p.transpose_b ? p.n : 1;
    D.clear(), bias.clear(), wrong.clear(), scale.put(1.0f);
    on.bias = p.epilogue == CUBLASLT_EPILOGUE_BIAS ? bias.data : NULL;
    if (in_8_bits) { on.A_scale = on.B_scale = scale.data; }
    // op(A) is 1: a tail of k terms.
    auto fill_A = in_8_bits ? terms_fill<fp8e4> : terms_fill<floatX>;
    auto fill_B = !in_8_bits ? terms_fill<floatX> : p.factors == CUBLAS_E4M3 ? terms_fill<fp8e4> : terms_fill<fp8e5>;
    fill_A(A.data, p.k, p.m, 1, (int)p.k, 0);
    fill_B(B.data, p.k, p.n, step, tail, missing);
    cublas_multiply(context, &p, &on, 0);
    if (p.fp32_output) {
        terms_count_kernel<<<TERMS_GRID>>>(wrong.data, D.data, p.m * p.n, (float)tail);
    } else {
        terms_count_kernel<<<TERMS_GRID>>>(wrong.data, (const floatX *)D.data, p.m * p.n, (float)tail);
    }
    cuda_check_launch("terms_count_kernel");
    return wrong.raw()[0];
}

// The last terms are those of an incomplete block of any size up to 256, or 128 if there is none.
static int terms_tail(const CublasProblem &p) { return p.k % 256 != 0 ? (int)(p.k % 256) : 128; }

static void check_terms(Test *t, CublasContext *context, const CublasProblem &p, const char *model) {
    int wrong = terms_wrong(context, p, terms_tail(p), 0);
    CHECK(t, wrong == 0, "%s, m %lld n %lld k %lld%s: %d sums leave out terms", model, (long long)p.m, (long long)p.n,
          (long long)p.k, cublas_is_8_bit(&p) ? " in 8 bits" : "", wrong);
}

static Linear terms_layer(int C, int OC, bool has_bias, bool in_8_bits) {
    static const floatX some_bias = {};
    Linear l;
    l.C = C, l.OC = OC, l.bias = has_bias ? &some_bias : NULL, l.fp8.on = in_8_bits;
    return l;
}

// The three products of a layer with N rows.
static void check_layer_terms(Test *t, CublasContext *context, const Linear &l, int64_t N, const char *model) {
    check_terms(t, context, linear_forward_problem(l, N, false), model);
    check_terms(t, context, linear_backward_weight_problem(l, N), model);
    check_terms(t, context, linear_backward_input_problem(l, N, false), model);
}

// A context with the workspace of training. The emulator leaves out terms where the real algorithms are said to.
struct TermsContext : MatmulContext {
    TermsContext() : MatmulContext(true, CUBLAS_WORKSPACE / TERMS_SHRINK) { setenv("EMU_CUBLASLT_FAULT", "tail", 1); }
    ~TermsContext() { unsetenv("EMU_CUBLASLT_FAULT"); }
};

// The batch of each model is one that an H100 has room for. The head takes 8192 rows at a time.
TEST(test_terms_of_models) {
    const struct {
        const char *name;
        int C, B;
    } models[] = {{"d12", 768, 64}, {"d24", 1024, 32}, {"d36", 1280, 16}, {"d48", 1600, 16}};
    TermsContext c;
    for (auto model : models) {
        int C = (int)round_up_i64(model.C / TERMS_SHRINK, 16), V = (int)round_up_i64(50304 / TERMS_SHRINK, 16);
        int64_t N = model.B * (int64_t)1024 / (TERMS_SHRINK * TERMS_SHRINK),
                head_rows = 8192 / (TERMS_SHRINK * TERMS_SHRINK);
        for (bool in_8_bits : {false, true}) {
            if (in_8_bits && (PRECISION_IS_FP32 || !gpu_has_fp8())) { continue; }
            for (auto width : {3 * C, C, 4 * C}) {
                check_layer_terms(t, &c.context, terms_layer(C, width, true, in_8_bits), N, model.name);
            }
            check_layer_terms(t, &c.context, terms_layer(4 * C, C, true, in_8_bits), N, model.name);
        }
        check_layer_terms(t, &c.context, terms_layer(C, V, false, false), head_rows, model.name);
    }
}

// The check itself: a single missing term makes every sum wrong, in a problem with an incomplete block and without.
TEST(test_terms_that_are_missing) {
    TermsContext c;
    for (int C : {64, 200, 256}) {
        CublasProblem p = linear_forward_problem(terms_layer(C, 32, false, false), 24, false);
        int wrong = terms_wrong(&c.context, p, terms_tail(p), 1);
        CHECK(t, wrong == 24 * 32, "k %d: %d of %d sums are seen to be wrong", C, wrong, 24 * 32);
    }
}

#endif // KERNELS_TERMS_CUH
