// The linear layer: out = inp weight^T + bias for N rows, its gradients, and GELU where the multiply can do it.
//
//   out (N, OC) = inp (N, C) weight (OC, C)^T + bias (OC)
//   dinp = dout weight;  dweight += dout^T inp;  dbias += sums of the columns of dout
//
// The layer multiplies in floatX, or with --fp8 in 8 bits (fp8.cuh). Its caller need not know which.
//
// cuBLASLt counts by columns: a row-major (rows, cols) matrix is a (cols, rows) matrix there. So the layer asks for the
// transpose of every product, with exchanged factors. No data moves.
//
// All sums are fp32. Activations and their gradients are rounded once, to floatX, when stored. Deterministic.
#ifndef LLMC_LINEAR_CUH
#define LLMC_LINEAR_CUH

#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/layers/column_sums.cuh"
#include "llmc/layers/fp8.cuh"
#include "llmc/layers/gelu.cuh"

struct Linear {
    int C = 0, OC = 0;
    const floatX *weight = NULL, *bias = NULL; // (OC,C), (OC) or NULL for none
    float *dweight = NULL, *dbias = NULL;      // gradients: (OC,C), (OC)
    Fp8Linear fp8 = {};

    // In 8 bits, the kernel that writes the input or the output's gradient stores its amax here (amax_add_rounded).
    // NULL: the layer is not in 8 bits, or the input's scale is known from an earlier pass.
    uint32_t *inp_amax() const { return fp8.measures_input ? &fp8.inp_scale->amax : NULL; }
    uint32_t *dout_amax() const { return fp8.on ? &fp8.dout_scale->amax : NULL; }
};

// Returns the number of rows of out and dinp in memory. In 8 bits the rows from N on are padding.
static inline int64_t linear_rows(bool fp8, int64_t N) { return fp8 ? fp8_padded_rows(N) : N; }

// ---- The three products as problems for cuBLASLt ----
//
// Every leading dimension is C or OC, a multiple of 16 bytes, so the tensor cores need no padding. The vocabulary is
// already padded (to 128). N may be odd, because it is no leading dimension. dweight sums over N = B*T terms, a
// multiple of 8 in practice.

//
// In 8 bits cuBLASLt multiplies only if the inner width of the product is contiguous in both operands, and if all
// dimensions are multiples of 16. So each product reads one copy of a matrix, plain or transposed. N is padded
// (fp8_padded_rows): out and dinp have room for the padding rows, which hold nothing of use. Sums are fp32, scaled by
// both inverses. The forward's sums may stay in the tensor cores' own registers, which keep fewer bits than fp32 (fast
// accumulation). This is faster, and known to be enough for the forward. The gradients' sums move to fp32 every few
// products.

static inline void linear_require_shape(const Linear &l, int64_t N) {
    int multiple = l.fp8.on ? FP8_WIDTH_MULTIPLE : 8;
    cuda_require(N > 0 && N <= INT32_MAX);
    cuda_require(l.C > 0 && l.C % multiple == 0);
    cuda_require(l.OC > 0 && l.OC % multiple == 0);
}

// D (m, n) = epilogue(op(A) op(B)), by columns, without transposes. In 8 bits D = A (k, m)^T B (k, n).
static inline CublasProblem linear_problem(const Linear &l, int64_t m, int64_t n, int64_t k,
                                           cublasLtEpilogue_t epilogue, CublasFactors factors) {
    CublasProblem problem = cublas_problem(m, n, k, epilogue);
    if (l.fp8.on) { problem.transpose_a = true, problem.factors = factors; }
    return problem;
}

// gelu: the forward computes GELU of its output, too; not in 8 bits.
static inline CublasProblem linear_forward_problem(const Linear &l, int64_t N, bool gelu) {
    bool bias = l.bias != NULL;
    cublasLtEpilogue_t plain = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasLtEpilogue_t with_gelu = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    linear_require_shape(l, N);
    cuda_require(!l.fp8.on || !gelu);
    CublasProblem problem =
        linear_problem(l, l.OC, linear_rows(l.fp8.on, N), l.C, gelu ? with_gelu : plain, CUBLAS_E4M3);
    problem.transpose_a = true, problem.fast_sums = l.fp8.on;
    return problem;
}

// gelu: the layer's input is a GELU, and the backward computes GELU's gradient, too; not in 8 bits.
static inline CublasProblem linear_backward_input_problem(const Linear &l, int64_t N, bool gelu) {
    linear_require_shape(l, N);
    cuda_require(!l.fp8.on || !gelu);
    return linear_problem(l, l.C, linear_rows(l.fp8.on, N), l.OC,
                          gelu ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DEFAULT, CUBLAS_E4M3_E5M2);
}

static inline CublasProblem linear_backward_weight_problem(const Linear &l, int64_t N) {
    linear_require_shape(l, N);
    CublasProblem problem =
        linear_problem(l, l.C, l.OC, linear_rows(l.fp8.on, N), CUBLASLT_EPILOGUE_DEFAULT, CUBLAS_E4M3_E5M2);
    problem.transpose_b = !l.fp8.on, problem.accumulate = problem.fp32_output = true;
    return problem;
}

// Returns the operands of a product, in floatX or in 8 bits.
static inline CublasOperands linear_operands(const Linear &l, void *D, const void *A, const void *B, const void *A_fp8,
                                             const Fp8Scale *A_scale, const void *B_fp8, const Fp8Scale *B_scale) {
    CublasOperands operands = cublas_operands(D, l.fp8.on ? A_fp8 : A, l.fp8.on ? B_fp8 : B);
    if (l.fp8.on) { operands.A_scale = &A_scale->inverse, operands.B_scale = &B_scale->inverse; }
    return operands;
}

// ---- Forward ----

// Quantises the weights of n layers of a block if they multiply in 8 bits. Their n scales are neighbours in memory.
static inline void linear_quantize_weights(const Linear *layers, int n, cudaStream_t stream) {
    if (!layers[0].fp8.on) { return; }
    cuda_check(cudaMemsetAsync(layers[0].fp8.weight_scale, 0, (size_t)n * sizeof(Fp8Scale), stream));
    for (int i = 0; i < n; i++) {
        const Linear &l = layers[i];
        fp8_amax(l.fp8.weight_scale, l.weight, (int64_t)l.OC * l.C, stream);
        fp8_quantize(l.fp8.weight, l.fp8.weight_t, l.fp8.weight_scale, l.weight, l.OC, l.C, stream);
    }
}

// Takes the amax of the input if the layer asks for it and the kernel that wrote the input cannot take it.
static inline void linear_measure_input(const Linear &l, const floatX *inp, int64_t N, cudaStream_t stream) {
    if (l.inp_amax() != NULL) { fp8_amax(l.fp8.inp_scale, inp, N * l.C, stream); }
}

// Makes the 8-bit copies of the input if the layer multiplies in 8 bits.
static inline void linear_quantize_input(const Linear &l, const floatX *inp, int64_t N, cudaStream_t stream) {
    if (l.fp8.on) { fp8_quantize(l.fp8.inp, l.fp8.inp_t, l.fp8.inp_scale, inp, N, l.C, stream); }
}

// GELU as gelu_forward stores it.
struct GeluOfPack {
    __device__ __forceinline__ x128 operator()(x128 x) const {
        for (int i = 0; i < x128::size; i++) { x[i] = from_float<floatX>(gelu_value(to_float(x[i]))); }
        return x;
    }
};

// Makes the input of a layer that reads GELU of fc (N,C): gelu (N,C), or in 8 bits only its 8-bit copies. Then the
// kernels compute GELU twice, for the amax and for the values, and never store it in bf16. They move 2 + (2 + 1 + 1)
// bytes a value. gelu_forward with fp8_quantize would move 4 + 4, take 2 bytes of memory a value, and give equal bits.
static inline void linear_gelu_input(const Linear &l, floatX *gelu, const floatX *fc, int64_t N, cudaStream_t stream) {
    if (!l.fp8.on) {
        gelu_forward(gelu, fc, N * l.C, stream);
        return;
    }
    if (l.inp_amax() != NULL) { fp8_amax<GeluOfPack>(l.fp8.inp_scale, fc, N * l.C, stream); }
    fp8_quantize<fp8e4, GeluOfPack>(l.fp8.inp, l.fp8.inp_t, l.fp8.inp_scale, fc, N, l.C, stream);
}

// out (N, OC) = inp weight^T + bias. With pre_gelu, pre_gelu (N, OC) = inp weight^T + bias and out = its GELU, computed
// from the sum before rounding; not in 8 bits. inp NULL: the caller has made the 8-bit copies of the input.
static inline void linear_forward(CublasContext *context, const Linear &l, floatX *out, floatX *pre_gelu,
                                  const floatX *inp, int64_t N, cudaStream_t stream) {
    CublasProblem problem = linear_forward_problem(l, N, pre_gelu != NULL);
    CublasOperands operands =
        linear_operands(l, out, l.weight, inp, l.fp8.weight, l.fp8.weight_scale, l.fp8.inp, l.fp8.inp_scale);
    operands.bias = l.bias, operands.aux = pre_gelu;
    if (inp != NULL) { linear_quantize_input(l, inp, N, stream); }
    cublas_multiply(context, &problem, &operands, stream);
}

// ---- Backward ----

// Makes the 8-bit copies of the output's gradient if the layer multiplies in 8 bits. Both products below read them.
static inline void linear_quantize_dout(const Linear &l, const floatX *dout, int64_t N, cudaStream_t stream) {
    if (l.fp8.on) { fp8_quantize(l.fp8.dout, l.fp8.dout_t, l.fp8.dout_scale, dout, N, l.OC, stream); }
}

// dweight (OC, C), fp32, += dout (N, OC)^T inp (N, C). In 8 bits it reads the copies of dout and inp.
static inline void linear_backward_weight(CublasContext *context, const Linear &l, const floatX *dout,
                                          const floatX *inp, int64_t N, cudaStream_t stream) {
    CublasProblem problem = linear_backward_weight_problem(l, N);
    CublasOperands operands =
        linear_operands(l, l.dweight, inp, dout, l.fp8.inp_t, l.fp8.inp_scale, l.fp8.dout_t, l.fp8.dout_scale);
    cublas_multiply(context, &problem, &operands, stream);
}

// dinp (N, C) = dout (N, OC) weight (OC, C). In 8 bits it reads the copy of dout. With pre_gelu (N, C) the layer's
// input was gelu(pre_gelu), and dinp is the gradient of pre_gelu; not in 8 bits.
static inline void linear_backward_input(CublasContext *context, const Linear &l, floatX *dinp, const floatX *dout,
                                         const floatX *pre_gelu, int64_t N, cudaStream_t stream) {
    CublasProblem problem = linear_backward_input_problem(l, N, pre_gelu != NULL);
    CublasOperands operands =
        linear_operands(l, dinp, l.weight, dout, l.fp8.weight_t, l.fp8.weight_scale, l.fp8.dout, l.fp8.dout_scale);
    operands.aux = pre_gelu;
    cublas_multiply(context, &problem, &operands, stream);
}

// Computes dweight += and dinp =. For dbias see linear_backward_bias.
static inline void linear_backward(CublasContext *context, const Linear &l, floatX *dinp, const floatX *dout,
                                   const floatX *inp, const floatX *pre_gelu, int64_t N, cudaStream_t stream) {
    linear_quantize_dout(l, dout, N, stream);
    linear_backward_weight(context, l, dout, inp, N, stream);
    linear_backward_input(context, l, dinp, dout, pre_gelu, N, stream);
}

// ---- The gradient of the bias ----
//
// A separate pass over dout, for a dout whose producer has not summed its columns. The pass has two stages
// (column_sums.cuh). A block takes 32 x 16 bytes of columns of a chunk of BIAS_ROWS rows. A lane takes 16 bytes of
// columns, a warp every 8th row. A lane issues BIAS_LOADS loads before it adds the first. So a multiprocessor loads up
// to 128 KiB at once, and an H100 needs about 40 KiB. Chunks depend on the shape only.

#define BIAS_WARPS 8
#define BIAS_LOADS 8
#define BIAS_BLOCKS 4 // of a multiprocessor; leaves the compiler the registers for all loads of a lane
#define BIAS_ROWS 128 // the sums (8 bytes a column, written and read) are 3 % of the rows' bytes in bf16

static inline int64_t bias_chunks(int64_t N) { return ceil_div_i64(N, BIAS_ROWS); }

template <bool AMAX>
__device__ __forceinline__ void bias_add(float (&sums)[x128::size], uint32_t *largest, x128 values) {
    for (int i = 0; i < x128::size; i++) { sums[i] += to_float(values[i]); }
    if (AMAX) { *largest = amax_join(*largest, values); }
}

// scratch (chunks, OC) = sums over the rows of each chunk of dout (N, OC). amax: of dout. Reads N*OC floatX.
template <bool AMAX>
static __global__ void __launch_bounds__(BIAS_WARPS *WARP_SIZE, BIAS_BLOCKS)
    matmul_sum_rows_kernel(float *scratch, const floatX *dout, int64_t N, int OC, uint32_t *amax) {
    ColumnChunk c = column_chunk(N, OC, BIAS_ROWS);
    float sums[x128::size] = {};
    uint32_t largest = 0;
    if (c.column < OC) {
        int64_t row = c.first + threadIdx.x / WARP_SIZE;
#pragma unroll 1
        for (; row + (BIAS_LOADS - 1) * BIAS_WARPS < c.end; row += BIAS_LOADS * BIAS_WARPS) {
            x128 values[BIAS_LOADS];
#pragma unroll
            for (int i = 0; i < BIAS_LOADS; i++) {
                values[i] = load128_streaming(dout + (row + i * BIAS_WARPS) * OC + c.column);
            }
#pragma unroll
            for (int i = 0; i < BIAS_LOADS; i++) { bias_add<AMAX>(sums, &largest, values[i]); }
        }
#pragma unroll 1
        for (; row < c.end; row += BIAS_WARPS) {
            bias_add<AMAX>(sums, &largest, load128_streaming(dout + row * OC + c.column));
        }
    }
    column_sums_store<BIAS_WARPS>(scratch + c.chunk * OC, sums, c.first_column, OC);
    if (AMAX) { amax_add_rounded(amax, largest); }
}

static inline int64_t linear_backward_bias_scratch_floats(int64_t N, int OC) { return bias_chunks(N) * OC; }

// dbias (OC), fp32, += sums of the columns of dout (N, OC). Takes dout's amax if the layer asks for it. scratch has
// linear_backward_bias_scratch_floats(N, OC) floats, aligned to 16 bytes.
static inline void linear_backward_bias(const Linear &l, const floatX *dout, float *scratch, int64_t N,
                                        cudaStream_t stream) {
    cuda_require(N > 0 && N <= INT32_MAX && l.OC > 0 && l.OC % 8 == 0);
    int64_t chunks = bias_chunks(N), blocks = chunks * blocks_for(l.OC, COLUMN_CHUNK_COLUMNS);
    cuda_require(blocks <= INT32_MAX);
    auto kernel = l.dout_amax() != NULL ? matmul_sum_rows_kernel<true> : matmul_sum_rows_kernel<false>;
    kernel<<<(unsigned)blocks, BIAS_WARPS * WARP_SIZE, 0, stream>>>(scratch, dout, N, l.OC, l.dout_amax());
    cuda_check_launch("matmul_sum_rows_kernel");
    column_sums_reduce({{l.dbias, NULL, NULL}}, 1, scratch, chunks, l.OC, stream);
}

#endif // LLMC_LINEAR_CUH
