// The linear layer on the GPU: out = inp weight^T + bias for N rows, its gradients, and GELU where it can be fused.
//
//   out (N, OC) = inp (N, C) weight (OC, C)^T + bias (OC)
//   dinp = dout weight;  dweight += dout^T inp;  dbias += sums of the columns of dout
//
// cuBLASLt counts by columns: to it, a row-major (rows, cols) matrix is a (cols, rows) one. So every product is asked
// for transposed, with its factors exchanged, and nothing is ever moved.
//
// All sums are fp32; activations and their gradients are rounded once, to floatX, when stored. Deterministic.
#ifndef LLMC_MATMUL_CUH
#define LLMC_MATMUL_CUH

#include "llmc/layers/amax.cuh"
#include "llmc/layers/column_sums.cuh"
#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/cuda_utils.cuh"

static inline void matmul_require_shape(int64_t N, int C, int OC) {
    cuda_require(N > 0 && N <= INT32_MAX);
    cuda_require(C > 0 && C % 8 == 0);
    cuda_require(OC > 0 && OC % 8 == 0);
}

// The three products of a layer, as cuBLASLt is asked for them. Every leading dimension is C or OC, a multiple of 16
// bytes, so that nothing need be padded for the tensor cores: the vocabulary is already (to 128), and N, which may be
// odd, is no leading dimension; as the number of terms of a sum (of dweight) it is B*T, a multiple of 8 in practice.
static inline CublasProblem matmul_forward_problem(int64_t N, int C, int OC, bool bias, bool gelu) {
    cublasLtEpilogue_t plain = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasLtEpilogue_t with_gelu = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    matmul_require_shape(N, C, OC);
    CublasProblem problem = cublas_problem(OC, N, C, gelu ? with_gelu : plain);
    problem.transpose_a = true;
    return problem;
}

static inline CublasProblem matmul_backward_input_problem(int64_t N, int C, int OC, bool gelu) {
    matmul_require_shape(N, C, OC);
    return cublas_problem(C, N, OC, gelu ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DEFAULT);
}

static inline CublasProblem matmul_backward_weight_problem(int64_t N, int C, int OC) {
    matmul_require_shape(N, C, OC);
    CublasProblem problem = cublas_problem(C, OC, N, CUBLASLT_EPILOGUE_DEFAULT);
    problem.transpose_b = problem.accumulate = problem.fp32_output = true;
    return problem;
}

// out (N, OC) = inp (N, C) weight (OC, C)^T + bias (OC, or NULL for none).
// With pre_gelu (N, OC) that sum goes there, and out is its GELU, computed from the sum before it is rounded.
static inline void matmul_forward(CublasContext *context, floatX *out, floatX *pre_gelu, const floatX *inp,
                                  const floatX *weight, const floatX *bias, int64_t N, int C, int OC,
                                  cudaStream_t stream) {
    CublasProblem problem = matmul_forward_problem(N, C, OC, bias != NULL, pre_gelu != NULL);
    CublasOperands operands = cublas_operands(out, weight, inp);
    operands.bias = bias, operands.aux = pre_gelu;
    cublas_multiply(context, &problem, &operands, stream);
}

// dinp (N, C) = dout (N, OC) weight (OC, C); with pre_gelu (N, C), times gelu'(pre_gelu), for a layer whose input was
// gelu(pre_gelu): the gradient with respect to pre_gelu.
static inline void matmul_backward_input(CublasContext *context, floatX *dinp, const floatX *dout, const floatX *weight,
                                         const floatX *pre_gelu, int64_t N, int C, int OC, cudaStream_t stream) {
    CublasProblem problem = matmul_backward_input_problem(N, C, OC, pre_gelu != NULL);
    CublasOperands operands = cublas_operands(dinp, weight, dout);
    operands.aux = pre_gelu;
    cublas_multiply(context, &problem, &operands, stream);
}

// dweight (OC, C), fp32, += dout (N, OC)^T inp (N, C).
static inline void matmul_backward_weight(CublasContext *context, float *dweight, const floatX *dout, const floatX *inp,
                                          int64_t N, int C, int OC, cudaStream_t stream) {
    CublasProblem problem = matmul_backward_weight_problem(N, C, OC);
    CublasOperands operands = cublas_operands(dweight, inp, dout);
    cublas_multiply(context, &problem, &operands, stream);
}

// ---- The gradient of the bias ----
//
// It reads dout once more, in two stages. A block does 32 x 16 bytes of columns of BIAS_ROWS rows, a chunk: each lane
// 16 bytes of columns, each warp every 8th row. A lane issues BIAS_LOADS loads before it adds the first. So a
// multiprocessor has up to 128 KiB under way, where an H100 needs about 40. Chunks follow from the shape alone.

#define BIAS_WARPS 8
#define BIAS_LOADS 8
#define BIAS_BLOCKS 4 // on a multiprocessor: leaves the compiler the registers for all loads of a lane
#define BIAS_ROWS 128 // so that the sums, 8 bytes a column written and read, are 3 % of the rows in bf16

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

static inline int64_t matmul_backward_bias_scratch_floats(int64_t N, int OC) { return bias_chunks(N) * OC; }

// dbias (OC), fp32, += sums of the columns of dout (N, OC). amax: of dout, see amax_add_rounded. scratch:
// matmul_backward_bias_scratch_floats(N, OC), aligned to 16 bytes.
static inline void matmul_backward_bias(float *dbias, const floatX *dout, float *scratch, int64_t N, int OC,
                                        cudaStream_t stream, uint32_t *amax = NULL) {
    matmul_require_shape(N, OC, OC);
    int64_t chunks = bias_chunks(N), blocks = chunks * blocks_for(OC, COLUMN_CHUNK_COLUMNS);
    cuda_require(blocks <= INT32_MAX);
    auto kernel = amax != NULL ? matmul_sum_rows_kernel<true> : matmul_sum_rows_kernel<false>;
    kernel<<<(unsigned)blocks, BIAS_WARPS * WARP_SIZE, 0, stream>>>(scratch, dout, N, OC, amax);
    cuda_check_launch("matmul_sum_rows_kernel");
    column_sums_reduce({{dbias, NULL, NULL}}, 1, scratch, chunks, OC, stream);
}

#endif // LLMC_MATMUL_CUH
