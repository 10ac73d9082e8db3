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

#include "cublas_common.h"
#include "cuda_utils.cuh"

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

#define BIAS_MIN_ROWS 64    // of a chunk, so that a block has something to do
#define BIAS_MAX_CHUNKS 128 // so that there are blocks for every GPU, and the second pass stays short

// The rows are cut into chunks by the shape alone, so that the sums do not depend on the GPU.
static inline int64_t bias_chunk_rows(int64_t N) { return max_i64(BIAS_MIN_ROWS, ceil_div_i64(N, BIAS_MAX_CHUNKS)); }
static inline int64_t bias_chunks(int64_t N) { return ceil_div_i64(N, bias_chunk_rows(N)); }

// out (chunks, OC) = or += sums over the rows of each chunk of inp (rows, OC), inp's rows aligned to 16 bytes. Block
// (x, y) does 32 x 16 bytes of columns of chunk y: each lane adds up 16 bytes of columns, each warp every
// (number of warps)th row; then the warps' sums are added in order. Dynamic shared memory: a float for each warp and
// column of the block.
template <class T, bool accumulate>
static __global__ void __launch_bounds__(MAX_BLOCK)
    matmul_sum_rows_kernel(float *out, const T *inp, int64_t rows, int OC, int64_t chunk_rows) {
    extern __shared__ float partial[]; // (warps, values of a lane, lanes)
    const int size = Packed128<T>::size, columns = WARP_SIZE * size;
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, warps = blockDim.x / WARP_SIZE;
    int column = (int)blockIdx.x * columns + lane * size;
    int64_t first = (int64_t)blockIdx.y * chunk_rows, end = first + chunk_rows < rows ? first + chunk_rows : rows;
    float sums[size] = {0.0f};
    if (column < OC) {
#pragma unroll 4
        for (int64_t row = first + warp; row < end; row += warps) {
            Packed128<T> values = load128_streaming(inp + row * OC + column);
            for (int i = 0; i < size; i++) { sums[i] += to_float(values[i]); }
        }
    }
    for (int i = 0; i < size; i++) { partial[(warp * size + i) * WARP_SIZE + lane] = sums[i]; }
    __syncthreads();
    for (int c = threadIdx.x; c < columns && (int)blockIdx.x * columns + c < OC; c += blockDim.x) {
        float sum = 0.0f;
        for (int w = 0; w < warps; w++) { sum += partial[(w * size + c % size) * WARP_SIZE + c / size]; }
        float *to = out + (int64_t)blockIdx.y * OC + (int64_t)blockIdx.x * columns + c;
        *to = accumulate ? *to + sum : sum;
    }
}

template <class T, bool accumulate>
static inline void matmul_sum_rows(float *out, const T *inp, int64_t rows, int OC, int64_t chunk_rows, int block_size,
                                   cudaStream_t stream) {
    int columns = WARP_SIZE * Packed128<T>::size;
    dim3 grid(blocks_for(OC, columns), blocks_for(rows, chunk_rows));
    size_t shared = (size_t)(block_size / WARP_SIZE * columns) * sizeof(float);
    matmul_sum_rows_kernel<T, accumulate><<<grid, block_size, shared, stream>>>(out, inp, rows, OC, chunk_rows);
    cuda_check_launch("matmul_sum_rows_kernel");
}

static inline int64_t matmul_backward_bias_scratch_floats(int64_t N, int OC) { return bias_chunks(N) * OC; }

// dbias (OC), fp32, += sums of the columns of dout (N, OC). scratch: matmul_backward_bias_scratch_floats(N, OC).
// Deterministic for a block size, a multiple of 32 up to 512.
static inline void matmul_backward_bias(float *dbias, const floatX *dout, float *scratch, int64_t N, int OC,
                                        cudaStream_t stream, int block_size = 256) {
    matmul_require_shape(N, OC, OC);
    cuda_require(block_size % WARP_SIZE == 0 && block_size >= WARP_SIZE && block_size <= 512);
    int64_t chunks = bias_chunks(N);
    if (chunks == 1) {
        matmul_sum_rows<floatX, true>(dbias, dout, N, OC, N, block_size, stream);
        return;
    }
    matmul_sum_rows<floatX, false>(scratch, dout, N, OC, bias_chunk_rows(N), block_size, stream);
    matmul_sum_rows<float, true>(dbias, scratch, chunks, OC, chunks, block_size, stream);
}

#endif // LLMC_MATMUL_CUH
