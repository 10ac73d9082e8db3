// A whole trainer of GPT-2 for one GPU in one file, the CUDA twin of train_gpt2_simple.c:
//
//   nvcc -O3 -arch=native train_gpt2_simple.cu -o train_gpt2_simple
//   ./train_gpt2_simple --train-data book.txt --steps 500 --save model.bin
//
// With -DUSE_CUBLAS -lcublas it multiplies by cuBLAS. dev/emu/emucc compiles it for the CPU, as nvcc does for a GPU.
// Read it from top to bottom. Weights and batches are those of ./train_gpt2cu with equal options.
//
// Shapes use the field's letters: B sequences of T tokens, C channels, NH heads of size HS = C / NH, L layers, V tokens
// in the vocabulary (Vp with padding), N = B*T rows. Matrices are row-major. Weights are (out, in). A token is a byte
// of the text. Token 256 stands before it. Weights and activations are bf16. Master weights, gradients of weights,
// moments and sums are fp32; with -DPRECISION_FP32 -lcublas all is. Sums have a fixed order, and runs have equal bits.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>
#include <mma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(USE_CUBLAS) || defined(PRECISION_FP32)
#include <cublas_v2.h>
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "bf16 on tensor cores needs compute capability 8.0: give nvcc -arch=native, or -arch=sm_80 or a later one"
#endif

#ifdef PRECISION_FP32
typedef float floatX;
#else
typedef __nv_bfloat16 floatX;
#endif
enum { BLOCK = 256, PACK = 16 / sizeof(floatX) }; // threads of a block; values that a thread reads at once
// Ends the program with one line that says what is wrong.
#define fail(...) (fflush(stdout), fprintf(stderr, "train_gpt2_simple: " __VA_ARGS__), fputc('\n', stderr), exit(1))
#define cuda_check(call)                                                                                               \
    if (cudaError_t error = (call)) { fail("CUDA: %s, in line %d of the source", cudaGetErrorString(error), __LINE__); }
// Starts a kernel with n threads: one for each value, or a warp of 32 (its lanes) for each row.
template <class... P, class... A> static void launch(void (*kernel)(P...), int64_t n, A... arguments) {
    kernel<<<(unsigned)((n + BLOCK - 1) / BLOCK), BLOCK>>>(arguments...);
    cuda_check(cudaGetLastError());
}
__device__ int64_t thread() { return blockIdx.x * (int64_t)blockDim.x + threadIdx.x; }
__device__ int64_t warp() { return thread() / 32; }
__device__ int lane() { return (int)threadIdx.x % 32; }
// Joins a value over the lanes of a warp, to their sum or their maximum. All of them get it.
template <bool MAX> __device__ float join(float x) {
    for (int offset = 16; offset > 0; offset /= 2) {
        float other = __shfl_xor_sync(0xffffffff, x, offset);
        x = MAX ? fmaxf(x, other) : x + other;
    }
    return x;
}

// ---- 1. The layers: the formula of a backward says which gradients it writes (=), and to which it adds (+=) ---------
// Token and position embedding: out[b,t,:] = wte[ids[b,t],:] + wpe[t,:].  out (N,C), ids (N), wte (Vp,C), wpe (maxT,C)
__global__ void embedding_forward(floatX *out, const int *ids, const floatX *wte, const floatX *wpe, int N, int T,
                                  int C) {
    int64_t row = thread() / C, c = thread() % C;
    if (row < N) { out[thread()] = (floatX)((float)wte[ids[row] * C + c] + (float)wpe[row % T * C + c]); }
}
// dwte[v,:] += sum over the rows of dout whose id is v, a thread for a value: slow for more tokens than bytes.
__global__ void wte_backward(float *dwte, const floatX *dout, const int *ids, int N, int V, int C) {
    int64_t v = thread() / C, c = thread() % C;
    float sum = 0.0f;
    for (int64_t row = 0; row < N && v < V; row++) { sum += ids[row] == v ? (float)dout[row * C + c] : 0.0f; }
    if (v < V) { dwte[thread()] += sum; }
}

// sums[c] = sum over rows of values[row,c], for gradients of biases and positions, by a warp for each column.
__global__ void sum_rows(float *sums, const floatX *values, int64_t rows, int64_t width) {
    const int64_t c = warp();
    float sum = 0.0f;
    for (int64_t row = lane(); row < rows && c < width; row += 32) { sum += (float)values[row * width + c]; }
    sum = join<false>(sum);
    if (c < width && lane() == 0) { sums[c] = sum; }
}

// LayerNorm over the C channels of a row (Ba, Kiros, Hinton 2016), by a warp, which keeps mean and rstd (N):
//   mean = sum(x)/C, rstd = 1/sqrt(sum((x-mean)^2)/C + 1e-5), out = (x - mean) * rstd * weight + bias
__global__ void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *inp, const floatX *weight,
                                  const floatX *bias, int N, int C) {
    const int64_t row = warp();
    const floatX *x = inp + row * C;
    if (row >= N) { return; }
    float sum = 0.0f, squares = 0.0f;
    for (int c = lane(); c < C; c += 32) { sum += (float)x[c]; }
    float m = join<false>(sum) / (float)C;
    for (int c = lane(); c < C; c += 32) { squares += ((float)x[c] - m) * ((float)x[c] - m); }
    float r = 1.0f / sqrtf(join<false>(squares) / (float)C + 1e-5f);
    for (int c = lane(); c < C; c += 32) {
        out[row * C + c] = (floatX)(((float)x[c] - m) * r * (float)weight[c] + (float)bias[c]);
    }
    if (lane() == 0) { mean[row] = m, rstd[row] = r; }
}
// With n = (x - mean) * rstd and g = weight * dout of a row, and means over the row (dout becomes dout * n):
//   dinp += rstd * (g - mean(g) - n * mean(g * n));  dweight, dbias = sums over rows of dout * n and of dout
__global__ void layernorm_dinp(floatX *dinp, floatX *dout, const floatX *inp, const float *mean, const float *rstd,
                               const floatX *weight, int N, int C) {
    int64_t row = warp();
    if (row >= N) { return; }
    const floatX *x = inp + row * C;
    floatX *dx = dinp + row * C, *dy = dout + row * C;
    float m = mean[row], r = rstd[row], sum_g = 0.0f, sum_gn = 0.0f;
    for (int c = lane(); c < C; c += 32) {
        float g = (float)weight[c] * (float)dy[c];
        sum_g += g, sum_gn += g * ((float)x[c] - m) * r;
    }
    float mean_g = join<false>(sum_g) / (float)C, mean_gn = join<false>(sum_gn) / (float)C;
    for (int c = lane(); c < C; c += 32) {
        float g = (float)weight[c] * (float)dy[c], n = ((float)x[c] - m) * r;
        dx[c] = (floatX)((float)dx[c] + r * (g - mean_g - n * mean_gn)), dy[c] = (floatX)((float)dy[c] * n);
    }
}
static void layernorm_backward(floatX *dinp, float *dweight, float *dbias, floatX *dout, const floatX *inp,
                               const float *mean, const float *rstd, const floatX *weight, int64_t N, int C) {
    launch(sum_rows, 32 * C, dbias, dout, N, C);
    launch(layernorm_dinp, 32 * N, dinp, dout, inp, mean, rstd, weight, N, C);
    launch(sum_rows, 32 * C, dweight, dout, N, C);
}

// A product of matrices: out (M,N) = A B^T. A (M,K) and B (N,K) lie in memory by rows, or with BY_TERM transposed. A
// block of four warps computes S x S values. It copies K_TILE terms of A and B to shared memory at a time, zeros for
// what is not there. Each warp adds their products to its 32 x 32 values, on tensor cores.
#if !defined(USE_CUBLAS) && !defined(PRECISION_FP32)
enum { S = 64, K_TILE = 32, STRIDE = K_TILE + 8 }; // 8 more, so that neighbouring rows begin in different banks
template <bool BY_TERM>
__device__ void load_tile(floatX *tile, const floatX *matrix, int first_row, int rows, int first_term, int K) {
    for (int i = threadIdx.x; i < S * K_TILE; i += blockDim.x) {
        int row = BY_TERM ? i % S : i / K_TILE, k = BY_TERM ? i / S : i % K_TILE;
        int64_t y = first_row + row, term = first_term + k, at = BY_TERM ? term * rows + y : y * K + term;
        tile[row * STRIDE + k] = y < rows && term < K ? matrix[at] : (floatX)0.0f;
    }
}
template <bool A_BY_TERM, bool B_BY_TERM, class Out>
__global__ void matmul_kernel(Out *out, const floatX *A, const floatX *B, int M, int N, int K) {
    using namespace nvcuda::wmma;
    __shared__ __align__(32) floatX a_tile[S * STRIDE], b_tile[S * STRIDE];
    __shared__ __align__(32) float values[S * S];
    int top = blockIdx.x * S, left = blockIdx.y * S, row = threadIdx.x / 64 * 32, column = threadIdx.x / 32 % 2 * 32;
    fragment<matrix_a, 16, 16, 16, floatX, row_major> a[2];
    fragment<matrix_b, 16, 16, 16, floatX, col_major> b;
    fragment<accumulator, 16, 16, 16, float> sums[2][2];
    for (int i = 0; i < 4; i++) { fill_fragment(sums[i / 2][i % 2], 0.0f); }
    for (int term = 0; term < K; term += K_TILE) {
        __syncthreads(); // all warps have read the tiles before
        load_tile<A_BY_TERM>(a_tile, A, top, M, term, K);
        load_tile<B_BY_TERM>(b_tile, B, left, N, term, K);
        __syncthreads();
        for (int k = 0; k < K_TILE; k += 16) {
            for (int i = 0; i < 2; i++) { load_matrix_sync(a[i], a_tile + (row + i * 16) * STRIDE + k, STRIDE); }
            for (int j = 0; j < 2; j++) {
                load_matrix_sync(b, b_tile + (column + j * 16) * STRIDE + k, STRIDE);
                for (int i = 0; i < 2; i++) { mma_sync(sums[i][j], a[i], b, sums[i][j]); }
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        float *corner = values + (row + i / 2 * 16) * S + column + i % 2 * 16;
        store_matrix_sync(corner, sums[i / 2][i % 2], S, mem_row_major);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < S * S; i += blockDim.x) {
        int64_t y = top + i / S, x = left + i % S;
        if (y < M && x < N) { out[y * N + x] = (Out)values[i]; }
    }
}
template <bool A_BY_TERM, bool B_BY_TERM, class Out>
static void matmul(Out *out, const floatX *A, const floatX *B, int M, int N, int K) {
    matmul_kernel<A_BY_TERM, B_BY_TERM><<<dim3((M + S - 1) / S, (N + S - 1) / S), 128>>>(out, A, B, M, N, K);
    cuda_check(cudaGetLastError());
}
#else // cuBLAS takes matrices by columns, which are ours transposed: out^T = B A^T
static cublasHandle_t cublas;
template <bool A_BY_TERM, bool B_BY_TERM, class Out>
static void matmul(Out *out, const floatX *A, const floatX *B, int M, int N, int K) {
    cudaDataType in = sizeof(floatX) == 4 ? CUDA_R_32F : CUDA_R_16BF, to = sizeof(Out) == 4 ? CUDA_R_32F : CUDA_R_16BF;
    const float one = 1.0f, zero = 0.0f;
    bool ok = cublas != NULL || cublasCreate(&cublas) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cublasGemmEx(cublas, B_BY_TERM ? CUBLAS_OP_N : CUBLAS_OP_T, A_BY_TERM ? CUBLAS_OP_T : CUBLAS_OP_N, N, M,
                            K, &one, B, in, B_BY_TERM ? N : K, A, in, A_BY_TERM ? M : K, &zero, out, to, N,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
    if (!ok) { fail("cuBLAS: cannot multiply (%d,%d) by (%d,%d)", M, K, K, N); }
}
#endif
// A linear layer: out = inp weight^T + bias, and the residual stream if it is given. inp (N,C), weight (OC,C)
__global__ void add_bias(floatX *out, const floatX *bias, const floatX *residual, int64_t n, int OC) {
    int64_t i = thread();
    if (i < n) { out[i] = (floatX)((float)out[i] + (float)bias[i % OC] + (residual ? (float)residual[i] : 0.0f)); }
}
static void matmul_forward(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias,
                           const floatX *residual, int64_t N, int C, int OC) {
    matmul<false, false>(out, inp, weight, N, OC, C);
    launch(add_bias, N * OC, out, bias, residual, N * OC, OC);
}
// dinp = dout weight;  dweight = dout^T inp;  dbias = sum over rows of dout
static void matmul_backward(floatX *dinp, float *dweight, float *dbias, const floatX *dout, const floatX *inp,
                            const floatX *weight, int N, int C, int OC) {
    matmul<false, true>(dinp, dout, weight, N, C, OC);
    matmul<true, true>(dweight, dout, inp, OC, C, N);
    if (dbias != NULL) { launch(sum_rows, 32 * OC, dbias, dout, N, OC); }
}

// Causal attention, head by head, without a T x T matrix in memory. With scale = 1/sqrt(HS):
//   p[i,j] = softmax over j <= i of (scale * q[i].k[j]);  out[i] = sum over j of p[i,j] v[j]
//   lse[i] = log(sum over j <= i of exp(scale * q[i].k[j])), kept for the backward
// A row of qkv (B,T,3C) holds q, k and v of all heads. out (B,T,C); lse, delta (B,NH,T).
// A warp owns a query. It takes 32 keys at a time: each lane computes p of one key, and keeps it in a register. To sum
// up rows of v, a lane takes the channels lane, lane + 32, ..., and gets each p from the lane that has it.
enum { MAX_HEAD_SIZE = 128, CHANNELS = MAX_HEAD_SIZE / 32 };
__device__ float dot(const floatX *a, const floatX *b, int n) {
    float sum = 0.0f;
    for (int d = 0; d < n; d += PACK) {
        __align__(16) floatX x[PACK], y[PACK];
        *(int4 *)x = *(const int4 *)(a + d), *(int4 *)y = *(const int4 *)(b + d);
        for (int i = 0; i < PACK; i++) { sum += (float)x[i] * (float)y[i]; }
    }
    return sum;
}
#define FOR_CHANNELS _Pragma("unroll") for (int c = 0, d = lane(); c < CHANNELS; c++, d += 32) if (d < HS)
// sums += rows 0 .. count-1, each times the weight of the lane with its number
__device__ void add_rows(float *sums, float weight, int64_t count, const floatX *rows, int64_t stride, int HS) {
    for (int n = 0; n < min(count, (int64_t)32); n++) {
        float w = __shfl_sync(0xffffffff, weight, n);
        FOR_CHANNELS { sums[c] += w * (float)rows[n * stride + d]; }
    }
}
// The warp keeps the largest score so far (m), the sum of exp(score - m) (l), and the sum of exp(score - m) v. When a
// larger score comes, it scales both sums down (online softmax, Milakov, Gimelshein 2018).
__global__ void attention_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HS) {
    int64_t head = warp() / T, i = warp() % T, C = NH * HS;
    if (head >= B * NH) { return; }
    const floatX *q = qkv + head / NH * T * 3 * C + head % NH * HS, *k = q + C, *v = k + C;
    float sums[CHANNELS] = {}, m = -INFINITY, l = 0.0f, scale = 1.0f / sqrtf((float)HS);
    for (int64_t first = 0; first <= i; first += 32) {
        int64_t j = first + lane();
        float score = j <= i ? scale * dot(q + i * 3 * C, k + j * 3 * C, HS) : -INFINITY;
        float largest = fmaxf(m, join<true>(score)), p = expf(score - largest), correction = expf(m - largest);
        m = largest, l = l * correction + join<false>(p);
        FOR_CHANNELS { sums[c] *= correction; }
        add_rows(sums, p, i + 1 - first, v + first * 3 * C, 3 * C, HS);
    }
    FOR_CHANNELS { out[(head / NH * T + i) * C + head % NH * HS + d] = (floatX)(sums[c] / l); }
    if (lane() == 0) { lse[head * T + i] = m + logf(l); }
}
// The backward computes p again from lse. With do = dout:
//   delta[i] = do[i].out[i];  dp[i,j] = do[i].v[j];  ds[i,j] = scale * p[i,j] * (dp[i,j] - delta[i])
//   dq[i] = sum over j of ds[i,j] k[j];  dk[j] = sum over i of ds[i,j] q[i];  dv[j] = sum over i of p[i,j] do[i]
// Each sum has one owner. First a warp for each query sums dq, and stores delta. Then, with KEYS, a warp for each key
// takes 32 queries at a time, and sums dk and dv.
template <bool KEYS>
__global__ void attention_backward(floatX *dqkv, float *delta, const floatX *dout, const floatX *qkv, const floatX *out,
                                   const float *lse, int B, int T, int NH, int HS) {
    int64_t head = warp() / T, own = warp() % T, C = NH * HS;
    if (head >= B * NH) { return; }
    int64_t of_out = head / NH * T * C + head % NH * HS, of_qkv = of_out + head / NH * T * 2 * C;
    const floatX *q = qkv + of_qkv, *k = q + C, *v = k + C, *dO = dout + of_out;
    float dqk[CHANNELS] = {}, dv[CHANNELS] = {}, scale = 1.0f / sqrtf((float)HS);
    lse += head * T, delta += head * T;
    float own_delta = KEYS ? 0.0f : dot(dO + own * C, out + of_out + own * C, HS);
    if (!KEYS && lane() == 0) { delta[own] = own_delta; }
    for (int64_t first = KEYS ? own : 0, end = KEYS ? T : own + 1; first < end; first += 32) {
        int64_t other = first + lane(), i = KEYS ? other : own, j = KEYS ? own : other;
        float p = 0.0f, ds = 0.0f;
        if (other < end) {
            p = expf(scale * dot(q + i * 3 * C, k + j * 3 * C, HS) - lse[i]);
            ds = scale * p * (dot(dO + i * C, v + j * 3 * C, HS) - (KEYS ? delta[i] : own_delta));
        }
        add_rows(dqk, ds, end - first, (KEYS ? q : k) + first * 3 * C, 3 * C, HS);
        if (KEYS) { add_rows(dv, p, end - first, dO + first * C, C, HS); }
    }
    FOR_CHANNELS {
        dqkv[of_qkv + own * 3 * C + (KEYS ? C : 0) + d] = (floatX)dqk[c];
        if (KEYS) { dqkv[of_qkv + own * 3 * C + 2 * C + d] = (floatX)dv[c]; }
    }
}
// GELU in the tanh form that GPT-2 uses (Hendrycks, Gimpel 2016):
//   gelu(x) = x/2 * (1 + tanh(u)), u = sqrt(2/pi) * (x + 0.044715 x^3)
#define GELU_SCALE 0.79788456080286536f // sqrt(2/pi)
__global__ void gelu_forward(floatX *out, const floatX *inp, int64_t n) {
    float x = thread() < n ? (float)inp[thread()] : 0.0f, th = tanhf(GELU_SCALE * (x + 0.044715f * x * x * x));
    if (thread() < n) { out[thread()] = (floatX)(0.5f * x * (1.0f + th)); }
}
// dinp = gelu'(inp) * dout, gelu'(x) = (1 + tanh(u))/2 + x/2 * (1 - tanh(u)^2) * sqrt(2/pi) * (1 + 3 * 0.044715 x^2)
__global__ void gelu_backward(floatX *dinp, const floatX *inp, const floatX *dout, int64_t n) {
    float x = thread() < n ? (float)inp[thread()] : 0.0f, th = tanhf(GELU_SCALE * (x + 0.044715f * x * x * x));
    float slope = 0.5f * (1.0f + th) + 0.5f * x * (1.0f - th * th) * GELU_SCALE * (1.0f + 3.0f * 0.044715f * x * x);
    if (thread() < n) { dinp[thread()] = (floatX)(slope * (float)dout[thread()]); }
}

// Softmax and cross entropy, forward and backward, a warp for a row of logits (N,Vp):
//   losses[i] = log(sum over v < V of exp(logits[i,v])) - logits[i,target]
//   logits[i,v] becomes the gradient of the mean loss, (softmax(logits[i])[v] - (v == target)) / N
__global__ void crossentropy(float *losses, floatX *logits, const int *targets, int N, int V, int Vp) {
    const int64_t row = warp();
    floatX *x = logits + row * Vp;
    float max = -INFINITY, sum = 0.0f;
    if (row >= N) { return; }
    for (int v = lane(); v < V; v += 32) { max = fmaxf(max, (float)x[v]); }
    max = join<true>(max);
    for (int v = lane(); v < V; v += 32) { sum += expf((float)x[v] - max); }
    sum = join<false>(sum);
    if (lane() == 0) { losses[row] = logf(sum) + max - (float)x[targets[row]]; }
    __syncwarp(); // the target's logit has been read
    for (int v = lane(); v < Vp; v += 32) {
        float p = v < V ? expf((float)x[v] - max) / sum : 0.0f;
        x[v] = (floatX)((p - (v == targets[row] ? 1.0f : 0.0f)) / (float)N);
    }
}

// ---- 2. The model and its memory ------------------------------------------------------------------------------------
struct Config {
    int maxT, V, L, NH, C, Vp; // in the order of a file's header; maxT: positions that the model knows
};
enum { BYTE_VOCAB = 257, PADDED_VOCAB = 384, END_OF_TEXT = 256, MOST_T = 65536, NUM_PARAMS = 16, NORM_PARTS = 1024 };
template <class T> union Params { // the parameters of a block, and those that no block owns, by name or in order
    struct {
        T *wte, *wpe, *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb, *ln2w, *ln2b, *fcw, *fcb, *fcprojw, *fcprojb;
        T *lnfw, *lnfb, *end;
    };
    T *tensor[NUM_PARAMS + 1];
};
// At first a tensor is (n)ormal, normal for a (p)rojection into the residual stream, 0 or 1. Normal tensors decay.
static const char param_kinds[NUM_PARAMS + 1] = "nn10n0p010n0p010";
struct Acts { // all buffers: activations and their gradients, of which one block at a time has them, parameters, batch
    floatX *residual, *ln1, *qkv, *att, *residual_mid, *ln2, *fc, *gelu, *lnf, *logits;
    floatX *dresidual, *dln, *datt, *dqkv, *dfc, *params;
    float *ln1_mean, *ln1_rstd, *att_lse, *ln2_mean, *ln2_rstd, *lnf_mean, *lnf_rstd, *losses, *att_delta;
    float *master, *grads, *adam_m, *adam_v, *norm_parts;
    int *tokens, *targets; // (B,T)
    char *end;
};
struct Model {
    Config config;
    int B, T;           // the largest batch
    int64_t num_params; // with the padding of the vocabulary
    char *memory;       // all buffers
};
// Takes a tensor from the memory at `at`. It has L copies, one for each block, or one. They lie together, as in a file.
#define TAKE(p, copies, n) (p = (decltype(p))at + layer % (copies) * (n), at += (copies) * (n) * sizeof(*p))
template <class T> static Params<T> params_of(const Model &model, T *all, int layer) {
    const int64_t L = model.config.L, C = model.config.C, CC = C * C;
    char *at = (char *)all;
    Params<T> p;
    TAKE(p.wte, 1, model.config.Vp * C), TAKE(p.wpe, 1, model.config.maxT * C), TAKE(p.ln1w, L, C), TAKE(p.ln1b, L, C);
    TAKE(p.qkvw, L, 3 * CC), TAKE(p.qkvb, L, 3 * C), TAKE(p.attprojw, L, CC), TAKE(p.attprojb, L, C);
    TAKE(p.ln2w, L, C), TAKE(p.ln2b, L, C), TAKE(p.fcw, L, 4 * CC), TAKE(p.fcb, L, 4 * C), TAKE(p.fcprojw, L, 4 * CC);
    TAKE(p.fcprojb, L, C), TAKE(p.lnfw, 1, C), TAKE(p.lnfb, 1, C), TAKE(p.end, 1, 0);
    return p;
}
static Acts acts_of(const Model &model, int layer) {
    const int64_t L = model.config.L, N = (int64_t)model.B * model.T, NC = N * model.config.C, P = model.num_params;
    char *at = model.memory;
    Acts a;
    TAKE(a.params, 1, P), TAKE(a.residual, L + 1, NC), TAKE(a.ln1, L, NC), TAKE(a.qkv, L, 3 * NC), TAKE(a.att, L, NC);
    TAKE(a.residual_mid, L, NC), TAKE(a.ln2, L, NC), TAKE(a.fc, L, 4 * NC), TAKE(a.gelu, L, 4 * NC);
    TAKE(a.lnf, 1, NC), TAKE(a.logits, 1, N * model.config.Vp), TAKE(a.dresidual, 1, NC), TAKE(a.dln, 1, NC);
    TAKE(a.datt, 1, NC), TAKE(a.dqkv, 1, 3 * NC), TAKE(a.dfc, 1, 4 * NC);
    TAKE(a.master, 1, P), TAKE(a.grads, 1, P), TAKE(a.adam_m, 1, P), TAKE(a.adam_v, 1, P), TAKE(a.ln1_mean, L, N);
    TAKE(a.ln1_rstd, L, N), TAKE(a.att_lse, L, N * model.config.NH), TAKE(a.ln2_mean, L, N), TAKE(a.ln2_rstd, L, N);
    TAKE(a.lnf_mean, 1, N), TAKE(a.lnf_rstd, 1, N), TAKE(a.att_delta, 1, N * model.config.NH), TAKE(a.losses, 1, N);
    TAKE(a.norm_parts, 1, NORM_PARTS), TAKE(a.tokens, 1, N), TAKE(a.targets, 1, N), TAKE(a.end, 1, 0);
    return a;
}

// ---- 3. The network -------------------------------------------------------------------------------------------------
static double sum_from_gpu(const float *numbers, int64_t n) {
    float *copy = (float *)malloc(n * sizeof(float));
    double sum = 0.0;
    cuda_check(cudaMemcpy(copy, numbers, n * sizeof(float), cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < n; i++) { sum += copy[i]; }
    free(copy);
    return sum;
}
// mid = residual + attention(ln1(residual)); the block's output is mid + mlp(ln2(mid)).
static void block_forward(const Model &model, int layer, int B, int T) {
    const int64_t C = model.config.C, NH = model.config.NH, N = (int64_t)B * T;
    Acts a = acts_of(model, layer), next = acts_of(model, layer + 1);
    Params<floatX> p = params_of(model, a.params, layer);
    launch(layernorm_forward, 32 * N, a.ln1, a.ln1_mean, a.ln1_rstd, a.residual, p.ln1w, p.ln1b, N, C);
    matmul_forward(a.qkv, a.ln1, p.qkvw, p.qkvb, NULL, N, C, 3 * C);
    launch(attention_forward, 32 * N * NH, a.att, a.att_lse, a.qkv, B, T, NH, C / NH);
    matmul_forward(a.residual_mid, a.att, p.attprojw, p.attprojb, a.residual, N, C, C);
    launch(layernorm_forward, 32 * N, a.ln2, a.ln2_mean, a.ln2_rstd, a.residual_mid, p.ln2w, p.ln2b, N, C);
    matmul_forward(a.fc, a.ln2, p.fcw, p.fcb, NULL, N, C, 4 * C);
    launch(gelu_forward, N * 4 * C, a.gelu, a.fc, N * 4 * C);
    matmul_forward(next.residual, a.gelu, p.fcprojw, p.fcprojb, a.residual_mid, N, 4 * C, C);
}

// dresidual holds the gradient of the block's output at first, and of the block's input at the end. The residual stream
// passes it through unchanged, and the backward of each LayerNorm adds what comes through its sublayer.
static void block_backward(const Model &model, int layer, int B, int T) {
    const int64_t C = model.config.C, NH = model.config.NH, N = (int64_t)B * T;
    Acts a = acts_of(model, layer);
    Params<floatX> p = params_of(model, a.params, layer);
    Params<float> g = params_of(model, a.grads, layer);
    matmul_backward(a.dfc, g.fcprojw, g.fcprojb, a.dresidual, a.gelu, p.fcprojw, N, 4 * C, C);
    launch(gelu_backward, N * 4 * C, a.dfc, a.fc, a.dfc, N * 4 * C);
    matmul_backward(a.dln, g.fcw, g.fcb, a.dfc, a.ln2, p.fcw, N, C, 4 * C);
    layernorm_backward(a.dresidual, g.ln2w, g.ln2b, a.dln, a.residual_mid, a.ln2_mean, a.ln2_rstd, p.ln2w, N, C);
    matmul_backward(a.datt, g.attprojw, g.attprojb, a.dresidual, a.att, p.attprojw, N, C, C);
    for (auto kernel : {attention_backward<false>, attention_backward<true>}) {
        launch(kernel, 32 * N * NH, a.dqkv, a.att_delta, a.datt, a.qkv, a.att, a.att_lse, B, T, NH, C / NH);
    }
    matmul_backward(a.dln, g.qkvw, g.qkvb, a.dqkv, a.ln1, p.qkvw, N, C, 3 * C);
    layernorm_backward(a.dresidual, g.ln1w, g.ln1b, a.dln, a.residual, a.ln1_mean, a.ln1_rstd, p.ln1w, N, C);
}

// Computes the logits of a.tokens (B,T) in rows `first` to N-1. With wants_loss, `first` is 0. It then returns the mean
// loss against a.targets, and the logits become their gradients. The head is tied: its weights are the embedding's.
static double model_forward(const Model &model, int B, int T, int64_t first, bool wants_loss) {
    const int64_t C = model.config.C, V = model.config.V, Vp = model.config.Vp, N = (int64_t)B * T;
    Acts a = acts_of(model, 0), last = acts_of(model, model.config.L);
    Params<floatX> p = params_of(model, a.params, 0);
    launch(embedding_forward, N * C, a.residual, a.tokens, p.wte, p.wpe, N, T, C);
    for (int layer = 0; layer < model.config.L; layer++) { block_forward(model, layer, B, T); }
    launch(layernorm_forward, 32 * N, a.lnf, a.lnf_mean, a.lnf_rstd, last.residual, p.lnfw, p.lnfb, N, C);
    matmul<false, false>(a.logits, a.lnf + first * C, p.wte, N - first, Vp, C);
    if (!wants_loss) { return 0.0; }
    launch(crossentropy, 32 * N, a.losses, a.logits, a.targets, N, V, Vp);
    return sum_from_gpu(a.losses, N) / (double)N;
}
// Computes the gradients after a model_forward with a loss.
static void model_backward(const Model &model, int B, int T) {
    const int64_t C = model.config.C, V = model.config.V, N = (int64_t)B * T;
    Acts a = acts_of(model, 0), last = acts_of(model, model.config.L);
    Params<floatX> p = params_of(model, a.params, 0);
    Params<float> g = params_of(model, a.grads, 0);
    cuda_check(cudaMemset(a.dresidual, 0, N * C * sizeof(floatX)));
    matmul_backward(a.dln, g.wte, NULL, a.logits, a.lnf, p.wte, N, C, model.config.Vp);
    layernorm_backward(a.dresidual, g.lnfw, g.lnfb, a.dln, last.residual, a.lnf_mean, a.lnf_rstd, p.lnfw, N, C);
    for (int layer = model.config.L - 1; layer >= 0; layer--) { block_backward(model, layer, B, T); }
    launch(wte_backward, V * C, g.wte, a.dresidual, a.tokens, N, V, C);
    launch(sum_rows, 32 * (int64_t)T * C, g.wpe, a.dresidual, B, T * C);
}

// ---- 4. The optimizer -----------------------------------------------------------------------------------------------
// Random numbers are a function of (seed, stream, index): SplitMix64's finaliser (Steele, Lea, Flood 2014) mixes each.
static uint64_t rand_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}
static uint64_t rand_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    const uint64_t golden = 0x9e3779b97f4a7c15ULL; // 2^64 / golden ratio, odd
    return rand_mix(rand_mix(rand_mix(seed + golden) + (stream + 1) * golden) + (index + 1) * golden);
}
// Element i of normally distributed numbers, of which two come from 64 random bits (Box-Muller).
static float rand_normal(uint64_t seed, uint64_t stream, uint64_t i) {
    uint64_t bits = rand_u64(seed, stream, i / 2);
    float u = ((float)(bits >> 40) + 0.5f) / 16777216.0f; // in (0, 1)
    float angle = (float)(bits >> 16 & 0xffffff) * (6.2831853071795865f / 16777216.0f);
    return sqrtf(-2.0f * logf(u)) * (i % 2 == 0 ? cosf(angle) : sinf(angle));
}
// Initialises the parameters as GPT-2 was (Radford et al. 2019), with a stream of random numbers for each tensor.
static void params_init(const Model &model, float *params, uint64_t seed) {
    Params<float> p = params_of(model, params, 0);
    float residual_std = 0.02f / sqrtf(2.0f * (float)model.config.L);
    for (int tensor = 0; tensor < NUM_PARAMS; tensor++) {
        char kind = param_kinds[tensor];
        for (int64_t i = 0; p.tensor[tensor] + i < p.tensor[tensor + 1]; i++) {
            float normal = kind < 'n' ? 0.0f : rand_normal(seed, 1000 + tensor, i);
            p.tensor[tensor][i] = kind < 'n' ? (float)(kind - '0') : normal * (kind == 'p' ? residual_std : 0.02f);
        }
    }
    for (int64_t i = (int64_t)model.config.V * model.config.C; p.wte + i < p.wpe; i++) { p.wte[i] = 0.0f; } // no tokens
}
// Each of NORM_PARTS warps sums squares of gradients, for the norm that clips them.
__global__ void sum_squares(float *parts, const float *grads, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = thread(); i < n; i += NORM_PARTS * 32) { sum += grads[i] * grads[i]; }
    sum = join<false>(sum);
    if (lane() == 0) { parts[warp()] = sum; }
}
// AdamW (Loshchilov, Hutter 2019) for update number t, from 1, with beta1 = 0.9, beta2 = 0.95:
//   m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2
//   w -= lr * (m / (1-beta1^t) / (sqrt(v / (1-beta2^t)) + 1e-8) + decay * w)
// g is the gradient times grad_scale, which clips it. w is the master copy. The parameter is w rounded.
__global__ void adamw(Acts a, int64_t begin, int64_t n, float lr, float decay, float grad_scale, float c1, float c2) {
    if (thread() >= n) { return; }
    int64_t i = begin + thread();
    float g = grad_scale * a.grads[i], *w = a.master + i, *m = a.adam_m + i, *v = a.adam_v + i;
    *m = 0.9f * *m + (1.0f - 0.9f) * g;
    *v = 0.95f * *v + (1.0f - 0.95f) * g * g;
    *w -= lr * (c1 * *m / (sqrtf(c2 * *v) + 1e-8f) + decay * *w);
    a.params[i] = (floatX)*w;
}
static void model_update(const Model &model, float lr, float weight_decay, float grad_scale, int64_t t) {
    float c1 = (float)(1.0 / (1.0 - pow(0.9f, (double)t))), c2 = (float)(1.0 / (1.0 - pow(0.95f, (double)t)));
    Acts a = acts_of(model, 0);
    Params<float> p = params_of(model, a.grads, 0);
    for (int i = 0; i < NUM_PARAMS; i++) {
        int64_t begin = p.tensor[i] - a.grads, n = p.tensor[i + 1] - p.tensor[i];
        launch(adamw, n, a, begin, n, lr, param_kinds[i] < 'n' ? 0.0f : weight_decay, grad_scale, c1, c2);
    }
}
// The learning rate of a step, counted from 0: a linear warm-up to the peak, then half a cosine down to a tenth of it.
static float learning_rate(float peak, int64_t warmup, int64_t steps, int64_t step) {
    if (step < warmup) { return (float)(peak * ((double)(step + 1) / (double)warmup)); }
    double x = (double)(step - warmup) / (double)(steps - warmup);
    return (float)(peak * (0.1f + (1.0 - 0.1f) * 0.5 * (1.0 + cos(3.14159265358979323846 * x))));
}

// ---- 5. Text and model files ----------------------------------------------------------------------------------------
struct Run {
    const char *prompt;
    float lr, weight_decay, temperature;
    int64_t steps, warmup, val_every, sample_every, sample_tokens, seed;
    int64_t count, train; // tokens of the text; the first `train` are for training, the rest is for validation
    int *text;
};
// Reads a text: the token that stands before it, then its bytes.
static void text_read(Run &run, const char *path) {
    FILE *file = fopen(path, "rb");
    bool ok = file != NULL && getc(file) != EOF && fseek(file, 0, SEEK_END) == 0;
    if (!ok) { fail("--train-data %s: %s", path, errno != 0 ? strerror(errno) : "is empty"); }
    const int64_t bytes = ftell(file);
    run.text = (int *)malloc((bytes + 1) * sizeof(int));
    if (run.text == NULL) { fail("--train-data %s: out of memory", path); }
    rewind(file), run.text[run.count++] = END_OF_TEXT;
    for (int byte; run.count <= bytes && (byte = getc(file)) != EOF;) { run.text[run.count++] = byte; }
    if (run.count <= bytes) { fail("--train-data %s: %s", path, strerror(errno)); }
    fclose(file);
}
// Copies T tokens from `begin` on into sequence b of the batch. The targets are the tokens that follow.
static void batch_set(const Model &model, int64_t b, const int *begin) {
    Acts a = acts_of(model, 0);
    const int64_t T = model.T, bytes = T * sizeof(int);
    cuda_check(cudaMemcpy(a.tokens + b * T, begin, bytes, cudaMemcpyHostToDevice));
    cuda_check(cudaMemcpy(a.targets + b * T, begin + 1, bytes, cudaMemcpyHostToDevice));
}
// A model's file, as llm.c writes it: 256 int32 (magic, version, the Config, zeros), then the parameters.
enum { MODEL_MAGIC = 20240326, MODEL_FP32 = 3, HEADER = 256 };
// Checks the sizes, prints the plan of the memory, allocates all of it at once, and loads or draws the parameters.
static void model_open(Model &model, const char *path, uint64_t seed) {
    Config &c = model.config;
    int header[HEADER] = {}, gpus;
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    if (path != NULL && file == NULL) { fail("--init %s: %s", path, strerror(errno)); }
    bool ok = file == NULL || (fread(header, sizeof(header), 1, file) == 1 && header[0] == MODEL_MAGIC &&
                               header[1] == MODEL_FP32 && header[3] == BYTE_VOCAB && header[8] == 0);
    if (!ok) { fail("--init %s: is no .bin in fp32 of GPT-2 for bytes", path); }
    if (file != NULL) { memcpy(&c, header + 2, sizeof(c)); }
    ok = c.L > 0 && c.L <= 1000 && c.NH > 0 && c.NH <= c.C && c.C <= 65536 && c.Vp >= c.V && c.Vp % 8 == 0;
    ok = ok && c.C % (8 * c.NH) == 0 && c.C / c.NH <= MAX_HEAD_SIZE;
    if (!ok) { fail("%d channels in %d heads: expected heads of 8, 16, .. %d channels", c.C, c.NH, MAX_HEAD_SIZE); }
    if (model.T == 0) { model.T = min(c.maxT, 1024); }
    if (model.T < 1 || model.T > c.maxT) { fail("--seq-len %d: the model knows only %d positions", model.T, c.maxT); }
    const int64_t n = model.num_params = (int64_t)params_of(model, (char *)NULL, 0).end; // with char, a byte is a value
    const int64_t bytes = (int64_t)acts_of(model, 0).end;                                // there is no memory yet
    const double mib = 1 << 20;
    printf("model       %d layers, %d heads, %d channels, context %d\n", c.L, c.NH, c.C, c.maxT);
    printf("memory      %.2f MiB: parameters %.2f, gradients and optimizer %.2f, activations and batch %.2f\n",
           bytes / mib, n * sizeof(floatX) / mib, 16 * n / mib, (bytes - n * (16 + sizeof(floatX))) / mib);
    cuda_check(cudaGetDeviceCount(&gpus)); // fails if there is none
    if (cudaMalloc(&model.memory, bytes)) { fail("no GPU has so much memory free; give a smaller --batch-size"); }
    float *params = (float *)malloc(n * sizeof(float));
    if (file == NULL) { params_init(model, params, seed); }
    ok = file == NULL || (fread(params, sizeof(float), n, file) == (size_t)n && getc(file) == EOF);
    if (!ok) { fail("--init %s: its size is not that of %lld parameters", path, (long long)n); }
    Acts a = acts_of(model, 0);
    cuda_check(cudaMemcpy(a.master, params, n * sizeof(float), cudaMemcpyHostToDevice));
    cuda_check(cudaMemset(a.grads, 0, 3 * n * sizeof(float))); // and the moments. Positions behind T have no gradient
    model_update(model, 0.0f, 0.0f, 0.0f, 1);                  // with rate 0 it only rounds the master weights
    free(params);
}
// Writes a model under another name, then renames it: a file is never there in part.
static void model_save(const Model &model, const char *path) {
    int header[HEADER] = {MODEL_MAGIC, MODEL_FP32};
    size_t n = model.num_params;
    float *params = (float *)malloc(n * sizeof(float));
    char part[4096];
    snprintf(part, sizeof(part), "%s.tmp", path);
    memcpy(header + 2, &model.config, sizeof(Config));
    cuda_check(cudaMemcpy(params, acts_of(model, 0).master, n * sizeof(float), cudaMemcpyDeviceToHost));
    FILE *file = fopen(part, "wb");
    bool ok = file != NULL && fwrite(header, sizeof(header), 1, file) == 1 && fwrite(params, 4, n, file) == n;
    ok = file != NULL && fclose(file) == 0 && ok && rename(part, path) == 0;
    if (!ok) { fail("--save %s: %s", path, strerror(errno)); }
    free(params);
}

// ---- 6. The run -----------------------------------------------------------------------------------------------------
// Prints the mean loss of up to 80 sequences, spread evenly over the part for validation.
static void validate(const Model &model, const Run &run, int64_t step) {
    const int64_t all = (run.count - run.train - 1) / model.T, count = min(all, (int64_t)80);
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        batch_set(model, 0, run.text + run.train + all * i / count * model.T);
        sum += model_forward(model, 1, model.T, 0, true);
    }
    if (count > 0) { printf("step %4lld | val loss %.6f\n", (long long)step, sum / (double)count); }
}
// Draws a token from softmax(logits / temperature), with `uniform` in [0, 1). Temperature 0: the likeliest token.
static int sample_token(const floatX *logits, float temperature, double uniform) {
    int best = 0, token = 0;
    double sum = 0.0, below = 0.0;
    auto weight = [&](int v) { return expf(((float)logits[v] - (float)logits[best]) / temperature); };
    for (int v = 1; v < BYTE_VOCAB; v++) { best = (float)logits[v] > (float)logits[best] ? v : best; }
    if (temperature == 0.0f) { return best; }
    for (int v = 0; v < BYTE_VOCAB; v++) { sum += weight(v); }
    while ((below += weight(token)) <= uniform * sum && token < BYTE_VOCAB - 1) { token++; }
    return token;
}
// Writes a text that goes on from the prompt. Each token takes a forward over the tokens before it, at most T of them.
static void sample(const Model &model, const Run &run, int64_t step) {
    int T = model.T, half = T / 2, n = 0, tokens[MOST_T];
    floatX logits[BYTE_VOCAB];
    Acts a = acts_of(model, 0);
    for (const char *p = *run.prompt ? run.prompt : "\n"; *p && n < T; p++) { tokens[n++] = (uint8_t)*p; }
    printf("sample after %lld steps:\n%s", (long long)step, run.prompt);
    for (int64_t i = 0; i < run.sample_tokens; i++) {
        uint64_t bits = rand_u64((uint64_t)run.seed, 3, ((uint64_t)step << 32) + (uint64_t)i) >> 11;
        cuda_check(cudaMemcpy(a.tokens, tokens, n * sizeof(int), cudaMemcpyHostToDevice));
        model_forward(model, 1, n, n - 1, false);
        cuda_check(cudaMemcpy(logits, a.logits, sizeof(logits), cudaMemcpyDeviceToHost));
        int token = sample_token(logits, run.temperature, (double)bits / 9007199254740992.0);
        if (n == T) { memmove(tokens, tokens + T - half, half * sizeof(int)), n = half; }
        tokens[n++] = token;
        putchar(token == '\n' || (token >= ' ' && token < END_OF_TEXT) ? token : '?'); // no control characters
    }
    printf("\n");
}
static void train_step(const Model &model, const Run &run, int64_t step) {
    const int64_t B = model.B, T = model.T, windows = (run.train - 1) / T;
    Acts a = acts_of(model, 0);
    struct timespec start, end;
    timespec_get(&start, TIME_UTC);
    for (int64_t b = 0; b < B; b++) { batch_set(model, b, run.text + (step * B + b) % windows * T); }
    double loss = model_forward(model, B, T, 0, true);
    model_backward(model, B, T);
    launch(sum_squares, 32 * NORM_PARTS, a.norm_parts, a.grads, model.num_params);
    double norm = sqrt(sum_from_gpu(a.norm_parts, NORM_PARTS));
    if (!isfinite(loss + norm)) { fail("step %lld: the loss is not finite; try a lower --lr", (long long)step + 1); }
    float lr = learning_rate(run.lr, run.warmup, run.steps, step);
    model_update(model, lr, run.weight_decay, norm > 1.0 ? (float)(1.0 / norm) : 1.0f, step + 1);
    cuda_check(cudaDeviceSynchronize());
    timespec_get(&end, TIME_UTC);
    double seconds = difftime(end.tv_sec, start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    printf("step %4lld/%lld | loss %.6f | norm %.4f | lr %.2e | %.2f ms | %.0f tok/s\n", (long long)step + 1,
           (long long)run.steps, loss, norm, lr, 1e3 * seconds, (double)(B * T) / seconds);
    fflush(stdout);
}
// Returns the text behind a name, or the fallback. Marks the option as read.
static const char *option(char **args, const char *name, const char *fallback) {
    for (; *args != NULL; args += 2) {
        if (strcmp(*args, name) == 0) { return **args = '\0', args[1]; }
    }
    return fallback;
}
static double number(char **args, const char *name, double fallback, double least, double most, bool whole = true) {
    const char *text = option(args, name, NULL);
    char *end = NULL;
    double x = text == NULL ? fallback : strtod(text, &end);
    bool ok = text == NULL || (end != text && *end == '\0' && x >= least && x <= most && (!whole || x == floor(x)));
    if (!ok) { fail("%s %s: expected a %snumber from %g to %g", name, text, whole ? "whole " : "", least, most); }
    return x;
}
int main(int argc, char **argv) {
    char **args = argv + 1;
    if (argc % 2 == 0) { fail("%s: expected options as --name value; main() reads them all", argv[argc - 1]); }
    const char *data = option(args, "--train-data", NULL), *init = option(args, "--init", NULL);
    const char *save = option(args, "--save", NULL);
    Run run = {};
    run.prompt = option(args, "--prompt", ""), run.sample_tokens = number(args, "--sample-tokens", 64, 1, 1e6);
    run.seed = number(args, "--seed", 42, 0, 4294967295.0), run.val_every = number(args, "--val-every", 100, 0, 1e9);
    run.steps = number(args, "--steps", -1, -1, 1e9), run.warmup = number(args, "--warmup", -1, -1, 1e9);
    run.sample_every = number(args, "--sample-every", 100, 0, 1e9), run.lr = number(args, "--lr", 3e-4, 0, 100, false);
    run.weight_decay = number(args, "--weight-decay", 0, 0, 100, false);
    run.temperature = number(args, "--temperature", 1, 0, 100, false);
    Model model = {};
    model.B = number(args, "--batch-size", 4, 1, 65535), model.T = number(args, "--seq-len", 0, 1, MOST_T);
    if (init == NULL) { // otherwise the file has the sizes
        int T = model.T, L = number(args, "--layers", 12, 1, 1000), NH = number(args, "--heads", 12, 1, 1024);
        model.config = {T ? T : 1024, BYTE_VOCAB, L, NH, (int)number(args, "--channels", 768, 1, 65536), PADDED_VOCAB};
    }
    while (*args != NULL && **args == '\0') { args += 2; }
    if (*args != NULL) { fail("%s: is unknown, given twice, or a size of a model that exists", *args); }
    if (data == NULL && (init == NULL || run.steps != 0)) { fail("--train-data: missing; give a text to train on"); }
    if (data != NULL) { text_read(run, data); }
    model_open(model, init, (uint64_t)run.seed);
    if (strlen(run.prompt) > (size_t)model.T) { fail("--prompt: is longer than the %d tokens of --seq-len", model.T); }
    if (data != NULL && run.count <= model.T) { fail("--train-data %s: is shorter than --seq-len", data); }
    const int64_t val = max((int64_t)(0.1 * (double)run.count), (int64_t)model.T + 1); // the end of the text validates
    run.train = run.count - val > model.T ? run.count - val : run.count;
    const int64_t epoch = (run.train - 1) / model.T / model.B;
    if (run.steps < 0) { run.steps = max(epoch, (int64_t)1); }
    if (run.warmup < 0) { run.warmup = init == NULL ? min(run.steps / 10, (int64_t)100) : 0; }
    printf("train data  %lld tokens, %lld steps an epoch\n", (long long)run.train, (long long)epoch);
    for (int64_t step = 0; step <= run.steps; step++) {
        bool last = step == run.steps, due = run.val_every > 0 && (step % run.val_every == 0 || last);
        if (due) { validate(model, run, step); }
        if (save != NULL && (due || last)) { model_save(model, save); }
        if (run.sample_every > 0 && (last || (step > 0 && step % run.sample_every == 0))) { sample(model, run, step); }
        if (!last) { train_step(model, run, step); }
    }
}
