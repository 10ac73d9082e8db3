// Muon on the GPU (llmc/model/muon.h has the formula in full). For each matrix of a part:
//   g = grad_scale grad;  m = momentum m + g;  N = g + momentum m
//   w -= lr * (scale * NS5(N) + weight_decay * w)
// A buffer of floatX, `update`, holds N, then scale * NS5(N). The multiplies read and write floatX, and their sums are
// fp32. As AdamW does, Muon updates the fp32 master copy if there is one, and rounds the parameter at random.
//
// Deterministic: one thread computes an element, and every sum has a fixed order. How a caller cuts tensors into parts
// changes no bit of the momentum and of the step.
#ifndef LLMC_MUON_CUH
#define LLMC_MUON_CUH

#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/model/muon.h"
#include "llmc/optim/adamw.cuh"
#include "llmc/optim/global_norm.cuh"

#define MUON_BLOCK 256 // threads of a block

// ---- The momentum and the step ----

// Holds the numbers of one update.
typedef struct {
    float lr, momentum, weight_decay;
    uint64_t key; // of the random bits: rounding_key(seed, update)
} MuonFactors;

// update = N, and m becomes the new momentum. Moves 14 bytes an element in bf16 (reads grad, m: 8; writes m, update:
// 6), 16 in fp32, and 4 less with moments in bf16.
template <bool NARROW> struct MuonMomentum {
    MuonFactors f;

    template <int N, bool STRIP>
    __device__ __forceinline__ void group(const UpdatePart &a, int64_t begin, bool stopped, float grad_scale) const {
        float g[N], m[N];
        floatX update[N];
        load_group(g, a.grads + begin);
        load_group(m, Moments<NARROW>(a).m + begin);
#pragma unroll
        for (int k = 0; k < N; k++) {
            g[k] *= grad_scale;
            m[k] = fmaf(f.momentum, m[k], g[k]);
            update[k] = from_float<floatX>(stopped ? 0.0f : fmaf(f.momentum, m[k], g[k]));
        }
        if (!stopped) { store_rounded<true, STRIP>(Moments<NARROW>(a).m, m, a, begin, f.key + KEY_M); }
        store_group<false>(a.update + begin, update);
    }
};

// w -= lr * (update + weight_decay w). Moves 12 bytes an element in bf16 (reads update, master: 6; writes master,
// params: 6), or 6 without a master copy. In fp32 without a master copy: 12.
template <bool WITH_MASTER> struct MuonApply {
    MuonFactors f;

    template <int N, bool STRIP>
    __device__ __forceinline__ void group(const UpdatePart &a, int64_t begin, bool stopped, float) const {
        float update[N], w[N];
        if (stopped) { return; }
        load_group(update, a.update + begin);
        load_weights<WITH_MASTER>(w, a, begin);
#pragma unroll
        for (int k = 0; k < N; k++) { w[k] = fmaf(-f.lr, fmaf(f.weight_decay, w[k], update[k]), w[k]); }
        store_weights<WITH_MASTER, STRIP>(a, begin, w, f.key);
    }
};

// m = momentum m + grad_scale grads, and update = N. If result->stopped is set: m stays, and update = 0. result is
// in device memory.
static inline void muon_momentum(const UpdatePart &part, const MuonFactors &factors, const StepResult *result,
                                 cudaStream_t stream) {
    if (part.m16 != NULL) {
        update_elements(part, MuonMomentum<true>{factors}, result, stream, UPDATE_BLOCK);
    } else {
        update_elements(part, MuonMomentum<false>{factors}, result, stream, UPDATE_BLOCK);
    }
}

// Changes nothing if result->stopped is set.
static inline void muon_apply(const UpdatePart &part, const MuonFactors &factors, const StepResult *result,
                              cudaStream_t stream) {
    if (part.master != NULL) {
        update_elements(part, MuonApply<true>{factors}, result, stream, UPDATE_BLOCK);
    } else {
        update_elements(part, MuonApply<false>{factors}, result, stream, UPDATE_BLOCK);
    }
}

// ---- X = N / |N| ----

#define MUON_BATCH 16       // the most matrices that go through the rounds at once
#define MUON_NORM_BLOCKS 64 // of each matrix; fixed, so that no bit depends on the GPU

// Matrices of one shape, row-major. From one to the next there are `stride` elements.
typedef struct {
    int64_t rows, cols, stride, count;
} MuonBatch;

// Blocks (MUON_NORM_BLOCKS, count). partials (count, MUON_NORM_BLOCKS) = sums of x^2, in double, over every 64th
// stretch of 256 vectors of 16 bytes. Reads 2 bytes an element in bf16, 4 in fp32.
static __global__ void __launch_bounds__(MUON_BLOCK)
    muon_norm_kernel(double *partials, const floatX *x, int64_t vectors, int64_t stride) {
    __shared__ double of_warp[WARP_SIZE];
    const floatX *matrix = x + blockIdx.y * stride;
    double sum = 0.0;
#pragma unroll 4
    for (int64_t i = blockIdx.x * MUON_BLOCK + threadIdx.x; i < vectors; i += MUON_NORM_BLOCKS * MUON_BLOCK) {
        x128 values = load128(matrix + i * x128::size);
        for (int k = 0; k < x128::size; k++) { sum += squared(to_float(values[k])); }
    }
    sum = block_sum(sum, of_warp);
    if (threadIdx.x == 0) { partials[blockIdx.y * MUON_NORM_BLOCKS + blockIdx.x] = sum; }
}

// Blocks as above. out = x / max(|x|, MUON_EPSILON). Moves 4 bytes an element in bf16, 8 in fp32.
static __global__ void __launch_bounds__(MUON_BLOCK)
    muon_normalize_kernel(floatX *out, const floatX *x, const double *partials, int64_t vectors, int64_t stride) {
    __shared__ double of_warp[WARP_SIZE];
    int64_t matrix = blockIdx.y * stride;
    double sum = threadIdx.x < MUON_NORM_BLOCKS ? partials[blockIdx.y * MUON_NORM_BLOCKS + threadIdx.x] : 0.0;
    double norm = sqrt(block_sum(sum, of_warp));
    float factor = (float)(1.0 / max(norm, (double)MUON_EPSILON));
    for (int64_t i = blockIdx.x * MUON_BLOCK + threadIdx.x; i < vectors; i += MUON_NORM_BLOCKS * MUON_BLOCK) {
        x128 values = load128(x + matrix + i * x128::size);
        for (int k = 0; k < x128::size; k++) { values[k] = from_float<floatX>(factor * to_float(values[k])); }
        store128(out + matrix + i * x128::size, values);
    }
}

// x and out lie alike. The elements of a matrix and the stride are multiples of 8, addresses multiples of 16 bytes.
static inline void muon_normalize(floatX *out, const floatX *x, double *partials, const MuonBatch &b,
                                  cudaStream_t stream) {
    dim3 blocks(MUON_NORM_BLOCKS, (unsigned)b.count);
    int64_t vectors = b.rows * b.cols / x128::size;
    muon_norm_kernel<<<blocks, MUON_BLOCK, 0, stream>>>(partials, x, vectors, b.stride);
    cuda_check_launch("muon_norm_kernel");
    muon_normalize_kernel<<<blocks, MUON_BLOCK, 0, stream>>>(out, x, partials, vectors, b.stride);
    cuda_check_launch("muon_normalize_kernel");
}

// ---- The rounds ----
//
// cuBLASLt counts by columns: there X, row-major (rows, cols), is Z = X^T (cols, rows). A wide X has A = X X^T = Z^T Z,
// and Z becomes a Z + Z B. A tall X has A = X^T X = Z Z^T, and Z becomes a Z + B Z. A and B = b A + c A A are
// symmetric, so they need no transposes.

// Holds matrices by columns, `stride` apart. A product takes their transposes if `transposed` is set.
typedef struct {
    floatX *data;
    int64_t rows, cols, stride;
    bool transposed;
} MuonMatrices;

// D = alpha op(L) op(R) + beta C for `count` matrices. C lies as D does. beta 0: there is no C.
static inline void muon_multiply(CublasContext *cublas, MuonMatrices D, MuonMatrices L, MuonMatrices R, const floatX *C,
                                 float alpha, float beta, int64_t count, cudaStream_t stream) {
    int64_t k = L.transposed ? L.rows : L.cols;
    CublasProblem problem = cublas_problem(D.rows, D.cols, k, CUBLASLT_EPILOGUE_DEFAULT);
    CublasOperands on = cublas_operands(D.data, L.data, R.data);
    problem.transpose_a = L.transposed, problem.transpose_b = R.transposed, problem.accumulate = beta != 0.0f;
    problem.batch = {count, L.rows, R.rows, D.rows, L.stride, R.stride, D.stride};
    on.C = C, on.alpha = alpha, on.beta = beta;
    cublas_multiply(cublas, &problem, &on, stream);
}

// Returns the floatX elements of scratch memory for a batch. It needs another X, which lies as the batch does, and for
// each of its matrices A and B (n, n) and the partial sums of the norm (MUON_NORM_BLOCKS, double).
static inline int64_t muon_scratch_elements(const MuonBatch &b) {
    int64_t n = min_i64(b.rows, b.cols), partials = MUON_NORM_BLOCKS * (int64_t)(sizeof(double) / sizeof(floatX));
    return b.count * (b.stride + 2 * n * n + partials);
}

// to = scale (a X + B X), as Z. A and B are scratch memory.
static inline void muon_round(CublasContext *cublas, MuonMatrices to, MuonMatrices Z, floatX *A_data, floatX *B_data,
                              int64_t count, float scale, cudaStream_t stream) {
    bool tall = Z.cols > Z.rows;
    int64_t n = min_i64(Z.rows, Z.cols);
    MuonMatrices A = {A_data, n, n, n * n, false}, B = {B_data, n, n, n * n, false}, left = Z, right = Z;
    left.transposed = !tall, right.transposed = tall;
    muon_multiply(cublas, A, left, right, NULL, 1.0f, 0.0f, count, stream);
    muon_multiply(cublas, B, A, A, A.data, MUON_C, MUON_B, count, stream);
    muon_multiply(cublas, to, tall ? B : Z, tall ? Z : B, Z.data, scale, scale * MUON_A, count, stream);
}

// Each matrix of x becomes scale * NS5(matrix). rows, cols and stride are multiples of 8. x and scratch are aligned to
// 16 bytes. scratch has muon_scratch_elements(b) elements. There are at most MUON_BATCH matrices. Deterministic.
static inline void muon_orthogonalize(CublasContext *cublas, floatX *x, floatX *scratch, const MuonBatch &b,
                                      float scale, cudaStream_t stream) {
    int64_t n = min_i64(b.rows, b.cols);
    floatX *A = scratch + b.count * b.stride, *B = A + b.count * n * n;
    double *partials = (double *)(B + b.count * n * n);
    MuonMatrices X = {x, b.cols, b.rows, b.stride, false}, other = {scratch, b.cols, b.rows, b.stride, false};
    cuda_require(b.rows > 0 && b.rows % 8 == 0 && b.cols > 0 && b.cols % 8 == 0 && b.stride % 8 == 0);
    cuda_require(b.stride >= b.rows * b.cols && b.count >= 0 && b.count <= MUON_BATCH);
    cuda_require((uintptr_t)x % CUBLAS_ALIGNMENT == 0 && (uintptr_t)scratch % CUBLAS_ALIGNMENT == 0);
    if (b.count == 0) { return; }
    muon_normalize(other.data, x, partials, b, stream);
    static_assert(MUON_ROUNDS % 2 == 1, "the last round writes X");
    for (int round = 1; round <= MUON_ROUNDS; round++) {
        bool odd = round % 2 == 1;
        muon_round(cublas, odd ? X : other, odd ? other : X, A, B, b.count, round == MUON_ROUNDS ? scale : 1.0f,
                   stream);
    }
}

#endif // LLMC_MUON_CUH
