// The linear layer of matmul.cuh with both factors of each product in 8 bits (fp8.cuh); bf16 builds only.
//
// cuBLASLt multiplies 8-bit matrices only where the inner width of the product is contiguous in both: each matrix comes
// as it is for one product, and transposed for another. All dimensions of a product are multiples of 16, as cuBLASLt
// wants them. N need not be one: the rows of the 8-bit matrices are padded with zeros (fp8_padded_rows), and out and
// dinp have room for as many rows, of which those behind N hold nothing of use. Sums are fp32, scaled by both inverses
// and rounded once when stored. Deterministic.
//
// The forward's sums may stay in the tensor cores' own registers, which keep fewer bits than fp32 (fast accumulation):
// faster, and known to be enough there. The gradients' are added up in fp32 every few products.
#ifndef LLMC_MATMUL_FP8_CUH
#define LLMC_MATMUL_FP8_CUH

#include "llmc/layers/fp8.cuh"
#include "llmc/layers/matmul.cuh"

static inline void matmul_fp8_require_shape(int64_t N, int C, int OC) {
    cuda_require(N > 0 && N <= INT32_MAX);
    cuda_require(C > 0 && C % FP8_WIDTH_MULTIPLE == 0);
    cuda_require(OC > 0 && OC % FP8_WIDTH_MULTIPLE == 0);
}

// ---- The three products, as cuBLASLt is asked for them ----

// D (m, n) = A (k, m)^T B (k, n), by columns.
static inline CublasProblem matmul_fp8_problem(int64_t m, int64_t n, int64_t k, CublasFactors factors) {
    CublasProblem problem = cublas_problem(m, n, k, CUBLASLT_EPILOGUE_DEFAULT);
    problem.transpose_a = true;
    problem.factors = factors;
    return problem;
}

static inline CublasProblem matmul_forward_fp8_problem(int64_t N, int C, int OC, bool bias) {
    matmul_fp8_require_shape(N, C, OC);
    CublasProblem problem = matmul_fp8_problem(OC, fp8_padded_rows(N), C, CUBLAS_E4M3);
    if (bias) { problem.epilogue = CUBLASLT_EPILOGUE_BIAS; }
    problem.fast_sums = true;
    return problem;
}

static inline CublasProblem matmul_backward_input_fp8_problem(int64_t N, int C, int OC) {
    matmul_fp8_require_shape(N, C, OC);
    return matmul_fp8_problem(C, fp8_padded_rows(N), OC, CUBLAS_E4M3_E5M2);
}

static inline CublasProblem matmul_backward_weight_fp8_problem(int64_t N, int C, int OC) {
    matmul_fp8_require_shape(N, C, OC);
    CublasProblem problem = matmul_fp8_problem(C, OC, fp8_padded_rows(N), CUBLAS_E4M3_E5M2);
    problem.accumulate = problem.fp32_output = true;
    return problem;
}

static inline CublasOperands matmul_fp8_operands(void *D, const void *A, const Fp8Scale *A_scale, const void *B,
                                                 const Fp8Scale *B_scale) {
    CublasOperands operands = cublas_operands(D, A, B);
    operands.A_scale = &A_scale->inverse, operands.B_scale = &B_scale->inverse;
    return operands;
}

// ---- The layer ----

// out (padded N, OC) = inp (padded N, C) weight (OC, C)^T + bias (OC, or NULL for none).
static inline void matmul_forward_fp8(CublasContext *context, floatX *out, const fp8e4 *inp, const Fp8Scale *inp_scale,
                                      const fp8e4 *weight, const Fp8Scale *weight_scale, const floatX *bias, int64_t N,
                                      int C, int OC, cudaStream_t stream) {
    CublasProblem problem = matmul_forward_fp8_problem(N, C, OC, bias != NULL);
    CublasOperands operands = matmul_fp8_operands(out, weight, weight_scale, inp, inp_scale);
    operands.bias = bias;
    cublas_multiply(context, &problem, &operands, stream);
}

// dinp (padded N, C) = dout (padded N, OC) weight (OC, C), of which weight_t (C, OC) is the transpose.
static inline void matmul_backward_input_fp8(CublasContext *context, floatX *dinp, const fp8e5 *dout,
                                             const Fp8Scale *dout_scale, const fp8e4 *weight_t,
                                             const Fp8Scale *weight_scale, int64_t N, int C, int OC,
                                             cudaStream_t stream) {
    CublasProblem problem = matmul_backward_input_fp8_problem(N, C, OC);
    CublasOperands operands = matmul_fp8_operands(dinp, weight_t, weight_scale, dout, dout_scale);
    cublas_multiply(context, &problem, &operands, stream);
}

// dweight (OC, C), fp32, += dout (N, OC)^T inp (N, C), of which dout_t (OC, padded N) and inp_t (C, padded N) are the
// transposes, with zeros behind column N.
static inline void matmul_backward_weight_fp8(CublasContext *context, float *dweight, const fp8e5 *dout_t,
                                              const Fp8Scale *dout_scale, const fp8e4 *inp_t, const Fp8Scale *inp_scale,
                                              int64_t N, int C, int OC, cudaStream_t stream) {
    CublasProblem problem = matmul_backward_weight_fp8_problem(N, C, OC);
    CublasOperands operands = matmul_fp8_operands(dweight, inp_t, inp_scale, dout_t, dout_scale);
    cublas_multiply(context, &problem, &operands, stream);
}

#endif // LLMC_MATMUL_FP8_CUH
