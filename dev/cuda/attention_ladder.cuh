// What the two ladders of attention share: the sizes, a tile in shared memory, and how far a result may be off.
#ifndef ATTENTION_LADDER_CUH
#define ATTENTION_LADDER_CUH

#include "dev/cuda/ladder.cuh"
#include "llmc/layers/attention.cuh"

constexpr int HS = 64;          // channels of a head
constexpr float SCALE = 0.125f; // 1 / sqrt(HS)
constexpr int TILE = 32;        // rows of a tile; T is a multiple of 2 TILE

struct AttentionSizes {
    int B, T, NH, C = NH * HS;
    AttentionShape shape = {B, T, NH, NH, HS};
    int64_t heads = (int64_t)B * NH, rows = heads * T, outputs = rows * HS;
    double pairs = 0.5 * (double)rows * (T + 1); // of a query and a key that it sees
    AttentionSizes(int B, int T, int NH) : B(B), T(T), NH(NH) {}
};

// Problems 0 and 1 of the emulator, and GPT-2's shape: 16 sequences. A GPU has problem 0 only, in GPT-2's shape.
static const AttentionSizes gpt2_sizes(16, 1024, 12);
static const AttentionSizes small_sizes(ladder_size(1, 16), ladder_size(128, 1024), ladder_size(2, 12));
static const AttentionSizes deep_sizes(1, 256, 1);

// bytes, flops: as in Layer, at GPT-2's shape. A block visits tiles of keys, so each count is a sum of rows and of
// rows times T.
static inline RealShape attention_real_shape(double bytes, double flops, const std::function<void(int)> &choose) {
    std::vector<std::vector<double>> sizes;
    for (const AttentionSizes *s : {&small_sizes, &deep_sizes, &gpt2_sizes}) {
        sizes.push_back({(double)s->rows, (double)s->rows * s->T});
    }
    std::string name = format("%d heads, %d tokens", (int)gpt2_sizes.heads, gpt2_sizes.T);
    return {name, sizes, bytes, flops, false, choose};
}

// index = b * NH + h. Each head of queries has keys of its own, C behind them, and values, 2C behind them.
__device__ __forceinline__ AttentionHead attention_head(int64_t index, int T, int C, int NH) {
    return attention_head(index, {0, T, NH, NH, C / NH});
}

// The block copies ROWS rows of a head to shared memory. STRIDE: floats from row to row there. stride: values from row
// to row in memory. Lanes that read one channel of 32 rows need STRIDE = HS + 1: with HS all rows begin in one bank.
template <int ROWS, int STRIDE>
__device__ __forceinline__ void load_tile(float (&tile)[ROWS][STRIDE], const floatX *source, int stride) {
    int threads = blockDim.x * blockDim.y;
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < ROWS * HS; i += threads) {
        tile[i / HS][i % HS] = to_float(source[(int64_t)(i / HS) * stride + i % HS]);
    }
}

// ---- How far a result may be from the CPU's ----
//
// dev/test/layers/kernels_attention.cuh derives the bounds. e is the relative error of an exp(score). A score is a sum
// of HS products, and at most L in size. L is the product of two Euclidean norms.

static inline float dot_of(const float *x, const float *y) {
    float sum = 0.0f;
    for (int d = 0; d < HS; d++) { sum += x[d] * y[d]; }
    return sum;
}

// The largest Euclidean norm of HS neighbouring values.
static inline double largest_norm(const std::vector<float> &values) {
    double square = 0.0;
    for (size_t i = 0; i < values.size(); i += HS) {
        square = fmax(square, (double)dot_of(values.data() + i, values.data() + i));
    }
    return sqrt(square);
}

static inline double exp_error(const std::vector<float> &qkv) {
    double L = (double)SCALE * largest_norm(qkv) * largest_norm(qkv);
    return sum_tolerance(HS) * L + 8.0 * FLT_EPSILON * (L + 1.0);
}

// Tensor cores take p and ds in bf16. They lose half an epsilon of floatX there.
static inline double operand_error(void) { return PRECISION_IS_FP32 ? 0.0 : 0.5 * FLOATX_EPSILON; }

// Each value within factor * sizes + half an epsilon of floatX, which the value lost when it was stored. A NaN fails.
static inline void check_within(Test *t, const char *what, const std::vector<float> &got,
                                const std::vector<float> &want, const std::vector<float> &sizes, double factor) {
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < want.size(); i++) {
        double error = fabs((double)got[i] - (double)want[i]);
        bool ok = error <= factor * (double)sizes[i] + 0.5 * FLOATX_EPSILON * fabs((double)want[i]);
        if (!ok && bad++ == 0) { first = i; }
    }
    CHECK(t, bad == 0, "%s: %zu of %zu values differ; the first is %zu: got %.9g, want %.9g", what, bad, want.size(),
          first, (double)got[first], (double)want[first]);
}

#endif // ATTENTION_LADDER_CUH
