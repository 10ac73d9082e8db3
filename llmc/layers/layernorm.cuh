// LayerNorm over the channels of each row (Ba, Kiros, Hinton 2016), alone and fused with the residual sum before it.
//   forward   mean = sum(x)/C, rstd = 1/sqrt(sum((x-mean)^2)/C + epsilon), out = (x - mean) * rstd * weight + bias
//   backward  with n = (x - mean) * rstd and g = weight * dout, all over one row:
//             dinp += rstd * (g - mean(g) - n * mean(g * n))
//             dweight += sum over rows of dout * n, dbias += sum over rows of dout
// RMSNorm (Zhang, Sennrich 2019) has no bias, and takes 0 for mean and for mean(g). It is this layer with RMS true.
// inp, out, dinp, dout (N,C); mean, rstd (N) fp32, kept for the backward; weight, bias (C); dweight, dbias (C) fp32.
//
// LayerNorm is bound by memory. So a kernel reads a row once and keeps it in registers, over as few warps as hold it.
// It sums the variance from differences to the mean, not from squares, so that a row far from zero loses no precision.
//
// The backward also writes another layer's bias gradient and amax: see layernorm_backward_with_column_sums.
//
// C % 8 == 0, C <= LAYERNORM_MAX_CHANNELS. Rows of floatX are aligned to 16 bytes. Results depend on the inputs and the
// shape only, not on the block size, the GPU, or the order of blocks.
//
// An amax may be NULL. Otherwise it becomes at least the largest magnitude that is written (amax_add_rounded).
#ifndef LLMC_LAYERNORM_CUH
#define LLMC_LAYERNORM_CUH

#include "llmc/layers/column_sums.cuh"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/cuda/ptx.cuh"

#define LAYERNORM_MAX_CHANNELS 12288 // of the widest GPT-3; the backward's registers hold no wider row in fp32

// Refuses a model whose rows the kernels cannot take. where: begins the message, as in model_check_config.
static inline bool layernorm_check(const char *where, int channels, Error *error) {
    return (channels % 8 == 0 && channels <= LAYERNORM_MAX_CHANNELS) ||
           fail(error, "%s: %d channels; the GPU trainer needs a multiple of 8, at most %d (the CPU trainer takes any)",
                where, channels, LAYERNORM_MAX_CHANNELS);
}

// What a template's RMS is: layernorm_forward<RMSNORM>(...).
constexpr bool LAYERNORM = false, RMSNORM = true;

// A LayerNorm has parameters, their gradients, an output, and statistics for the backward. RMSNorm's mean, bias and
// dbias are NULL.
struct LayerNorm {
    int C = 0;
    float epsilon = 0.0f;
    const floatX *weight = NULL, *bias = NULL; // (C)
    float *dweight = NULL, *dbias = NULL;      // (C); NULL without a backward
    floatX *out = NULL;                        // (N,C)
    float *mean = NULL, *rstd = NULL;          // (N)
    uint32_t *out_amax = NULL;                 // of out, for a linear layer that reads it in 8 bits
};

// ---- Forward ----

#define LAYERNORM_VECTORS 4 // of 16 bytes that a thread of the forward holds

// The part of a row that a thread holds: vector i is number threadIdx.x + i * blockDim.x of the row.
typedef x128 LayerNormPart[LAYERNORM_VECTORS];

// Sums x over the threads of a row. A block is (threads of a row, rows). partial: shared memory for one value per warp
// of the block. Each sum needs a `partial` of its own. Every thread of the row gets equal bits.
__device__ __forceinline__ float layernorm_row_sum(float x, float *partial) {
    int warps = blockDim.x / WARP_SIZE;
    x = warp_sum(x);
    if (warps == 1) { return x; }
    float *of_row = partial + threadIdx.y * warps;
    if (threadIdx.x % WARP_SIZE == 0) { of_row[threadIdx.x / WARP_SIZE] = x; }
    __syncthreads();
    x = 0.0f;
    for (int w = 0; w < warps; w++) { x += of_row[w]; }
    return x;
}

// Computes mean, rstd and out of a loaded row. vectors: of the row, C / x128::size. A thread whose row does not exist
// has vectors = 0 and only takes part in the barriers.
template <bool AMAX, bool RMS>
__device__ __forceinline__ void layernorm_normalize(floatX *out, float *mean, float *rstd, const LayerNormPart &x,
                                                    const floatX *weight, const floatX *bias, int64_t row, int vectors,
                                                    int C, float epsilon, uint32_t *amax) {
    __shared__ float partial_sum[WARP_SIZE];
    __shared__ float partial_square[WARP_SIZE];
    float sum = 0.0f, square = 0.0f;
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < LAYERNORM_VECTORS; i++) {
#pragma unroll
        for (int k = 0; k < x128::size; k++) { sum += to_float(x[i][k]); } // vectors past the row are 0
    }
    float m = RMS ? 0.0f : layernorm_row_sum(sum, partial_sum) / (float)C;
#pragma unroll
    for (int i = 0; i < LAYERNORM_VECTORS; i++) {
        if ((int)(threadIdx.x + i * blockDim.x) >= vectors) { continue; }
#pragma unroll
        for (int k = 0; k < x128::size; k++) {
            float d = to_float(x[i][k]) - m;
            square = fmaf(d, d, square);
        }
    }
    float r = 1.0f / sqrtf(layernorm_row_sum(square, partial_square) / (float)C + epsilon);
#pragma unroll
    for (int i = 0; i < LAYERNORM_VECTORS; i++) {
        int vector = threadIdx.x + i * blockDim.x;
        if (vector >= vectors) { continue; }
        x128 w = load128(weight + vector * x128::size), b = packed_zeros<floatX>(), y;
        if (!RMS) { b = load128(bias + vector * x128::size); }
#pragma unroll
        for (int k = 0; k < x128::size; k++) {
            float value = fmaf((to_float(x[i][k]) - m) * r, to_float(w[k]), to_float(b[k]));
            if (AMAX) { largest = amax_join(largest, value); }
            y[k] = from_float<floatX>(value);
        }
        store128(out + row * C + vector * x128::size, y);
    }
    if (vectors > 0 && threadIdx.x == 0) {
        if (!RMS) { mean[row] = m; }
        rstd[row] = r;
    }
    if (AMAX) { amax_add_rounded(amax, largest); }
}

__device__ __forceinline__ x128 residual_sum(x128 a, x128 b) {
    x128 sum;
#pragma unroll
    for (int k = 0; k < x128::size; k++) { sum[k] = from_float<floatX>(to_float(a[k]) + to_float(b[k])); }
    return sum;
}

static __global__ void residual_forward_kernel(floatX *out, const floatX *inp, const floatX *projection, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (i < n) { store128(out + i, residual_sum(load128(inp + i), load128(projection + i))); }
}

// out (n) = inp + projection with the bits of fused_residual_layernorm_forward's residual, if another rank has the norm
// behind it. n % 8 == 0. Addresses are aligned to 16 bytes. out may be inp or projection. Moves 3*n floatX.
static inline void residual_forward(floatX *out, const floatX *inp, const floatX *projection, int64_t n,
                                    cudaStream_t stream) {
    cuda_require(n > 0 && n % 8 == 0 && n <= INT32_MAX * (int64_t)WARP_SIZE);
    residual_forward_kernel<<<blocks_for(n / x128::size, 256), 256, 0, stream>>>(out, inp, projection, n);
    cuda_check_launch("residual_forward_kernel");
}

// Normalizes inp, or with RESIDUAL the sum inp + other, which it stores. Moves 2*N*C floatX (reads inp, writes out) and
// 2*N float. With RESIDUAL it moves 4*N*C, where two kernels would move 5*N*C. weight and bias stay in the caches.
template <bool RESIDUAL, bool AMAX, bool RMS>
__device__ __forceinline__ void layernorm_forward_row(floatX *residual, floatX *out, float *mean, float *rstd,
                                                      const floatX *inp, const floatX *other, const floatX *weight,
                                                      const floatX *bias, int64_t N, int C, float epsilon,
                                                      uint32_t *amax) {
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    int vectors = row < N ? C / x128::size : 0;
    LayerNormPart x, y;
#pragma unroll
    for (int i = 0; i < LAYERNORM_VECTORS; i++) {
        int vector = threadIdx.x + i * blockDim.x;
        int64_t at = row * C + vector * x128::size;
        x[i] = vector < vectors ? load128(inp + at) : packed_zeros<floatX>();
        if (RESIDUAL) { y[i] = vector < vectors ? load128(other + at) : packed_zeros<floatX>(); }
    }
#pragma unroll
    for (int i = 0; RESIDUAL && i < LAYERNORM_VECTORS; i++) {
        int vector = threadIdx.x + i * blockDim.x;
        x[i] = residual_sum(x[i], y[i]);
        if (vector < vectors) { store128(residual + row * C + vector * x128::size, x[i]); }
    }
    layernorm_normalize<AMAX, RMS>(out, mean, rstd, x, weight, bias, row, vectors, C, epsilon, amax);
}

// The two kernels differ in name, so that a profile tells them apart.
template <bool AMAX, bool RMS>
static __global__ void layernorm_forward_kernel(floatX *__restrict__ out, float *__restrict__ mean,
                                                float *__restrict__ rstd, const floatX *__restrict__ inp,
                                                const floatX *__restrict__ weight, const floatX *__restrict__ bias,
                                                int64_t N, int C, float epsilon, uint32_t *amax) {
    layernorm_forward_row<false, AMAX, RMS>(NULL, out, mean, rstd, inp, NULL, weight, bias, N, C, epsilon, amax);
}

template <bool AMAX, bool RMS>
static __global__ void fused_residual_layernorm_forward_kernel(floatX *residual, floatX *__restrict__ out,
                                                               float *__restrict__ mean, float *__restrict__ rstd,
                                                               const floatX *inp1, const floatX *inp2,
                                                               const floatX *__restrict__ weight,
                                                               const floatX *__restrict__ bias, int64_t N, int C,
                                                               float epsilon, uint32_t *amax) {
    layernorm_forward_row<true, AMAX, RMS>(residual, out, mean, rstd, inp1, inp2, weight, bias, N, C, epsilon, amax);
}

typedef struct {
    unsigned blocks;
    dim3 block;
} LayerNormGrid;

// Returns the grid of a forward: in a block x threads hold a row, and y rows fill about block_size threads.
static inline LayerNormGrid layernorm_grid(const LayerNorm &ln, int64_t N, int block_size) {
    cuda_require(N > 0 && ln.C > 0 && ln.C % 8 == 0 && ln.C <= LAYERNORM_MAX_CHANNELS);
    cuda_require(block_size >= WARP_SIZE && block_size <= MAX_BLOCK);
    unsigned row_threads = WARP_SIZE * blocks_for(ln.C, WARP_SIZE * LAYERNORM_VECTORS * x128::size);
    dim3 block(row_threads, (unsigned)max_i64(1, min_i64(N, block_size / row_threads)));
    return {blocks_for(N, block.y), block};
}

// out, mean, rstd = (see the top). out may not be inp.
template <bool RMS = LAYERNORM>
static inline void layernorm_forward(const LayerNorm &ln, const floatX *inp, int64_t N, cudaStream_t stream,
                                     int block_size = 256) {
    LayerNormGrid grid = layernorm_grid(ln, N, block_size);
    auto kernel = ln.out_amax != NULL ? layernorm_forward_kernel<true, RMS> : layernorm_forward_kernel<false, RMS>;
    kernel<<<grid.blocks, grid.block, 0, stream>>>(ln.out, ln.mean, ln.rstd, inp, ln.weight, ln.bias, N, ln.C,
                                                   ln.epsilon, ln.out_amax);
    cuda_check_launch("layernorm_forward_kernel");
}

// residual = inp1 + inp2, rounded to floatX. out, mean, rstd = LayerNorm of the rounded residual, with the bits that
// layernorm_forward gives. residual may be inp1 or inp2.
template <bool RMS = LAYERNORM>
static inline void fused_residual_layernorm_forward(const LayerNorm &ln, floatX *residual, const floatX *inp1,
                                                    const floatX *inp2, int64_t N, cudaStream_t stream,
                                                    int block_size = 256) {
    LayerNormGrid grid = layernorm_grid(ln, N, block_size);
    auto kernel = ln.out_amax != NULL ? fused_residual_layernorm_forward_kernel<true, RMS>
                                      : fused_residual_layernorm_forward_kernel<false, RMS>;
    kernel<<<grid.blocks, grid.block, 0, stream>>>(residual, ln.out, ln.mean, ln.rstd, inp1, inp2, ln.weight, ln.bias,
                                                   N, ln.C, ln.epsilon, ln.out_amax);
    cuda_check_launch("fused_residual_layernorm_forward_kernel");
}

// ---- Backward ----
//
// A block of the first stage has as many threads as hold a row. It takes rows blockIdx.x, blockIdx.x + gridDim.x, ...
// in turn. Its threads keep their channels' sums of dweight and dbias in registers over all these rows, and on request
// the sums of dinp's columns. They store the sums in scratch, a row of 2*C or 3*C for each block. The second stage adds
// the blocks' sums.

// The destination of dinp, of the sums of its columns and of its amax.
typedef struct {
    floatX *values;     // (N,C)
    bool overwrites;    // dinp = instead of +=
    float *column_sums; // (C) += sums over the rows of the rounded dinp; NULL: not wanted
    uint32_t *amax;     // of dinp, see amax_add_rounded; NULL: not wanted
} LayerNormDinp;

// A thread of the backward holds 1 vector of 16 bytes if 512 threads hold the row. In bf16 this is so for all of
// GPT-2's and most of GPT-3's widths. Wider rows need 2 vectors, or as many as the widest row needs (3 in bf16, 6 in
// fp32).
#define LAYERNORM_BACKWARD_MAX_THREADS 512
#define LAYERNORM_BACKWARD_MAX_VECTORS (LAYERNORM_MAX_CHANNELS / (LAYERNORM_BACKWARD_MAX_THREADS * x128::size))

static inline int layernorm_backward_vectors(int C) {
    int64_t vectors = ceil_div_i64(C, LAYERNORM_BACKWARD_MAX_THREADS * x128::size);
    return vectors <= 2 ? (int)vectors : LAYERNORM_BACKWARD_MAX_VECTORS;
}
static inline int layernorm_backward_threads(int C) {
    return WARP_SIZE * (int)ceil_div_i64(C, WARP_SIZE * layernorm_backward_vectors(C) * x128::size);
}

// The number of blocks of one wave, if a multiprocessor of an A100 holds `each` blocks. In one wave all blocks start
// together, and their numbers of rows differ by at most one. An A100 has 108 multiprocessors, an H100 and an H200 have
// 132. All GPUs get an equal number of blocks, so that they give equal bits. The number is 108 * each, which fills an
// A100, or the next multiple of 132 below 108 * each. The choice is the number that leaves less of the other GPU idle.
// In bf16:
//   C      warps   each   blocks   on a multiprocessor of 108   of 132
//   768      3      10     1056      9.8 of 10                  8
//   1024     4       8      864      8                          6.5 of 7
//   1280     5       6      648      6                          4.9 of 5
//   1600     7       4      396      3.7 of 4                   3
static inline int64_t layernorm_backward_wave(int64_t each) {
    int64_t fills_108 = 108 * each, fills_132 = fills_108 / 132 * 132;
    int64_t places_of_132 = ceil_div_i64(fills_108, 132) * 132;
    // fills_108 keeps fills_108 / places_of_132 of 132 multiprocessors busy. fills_132 keeps fills_132 / fills_108 of
    // 108 multiprocessors busy.
    return fills_108 * fills_108 >= fills_132 * places_of_132 ? fills_108 : fills_132;
}

// Each block has 16 rows or more, so that its sums (24 bytes a channel, written and read) are few bytes beside its
// rows. The 65,536 registers of a multiprocessor hold 32 warps of 64 registers a thread. Two or more vectors take 128
// registers a thread, so 16 warps fit.
static inline int64_t layernorm_backward_blocks(int64_t N, int C) {
    int64_t warps = layernorm_backward_threads(C) / WARP_SIZE, most = layernorm_backward_vectors(C) == 1 ? 32 : 16;
    return min_i64(ceil_div_i64(N, 16), layernorm_backward_wave(most / warps));
}
static inline int64_t layernorm_backward_scratch_floats(int64_t N, int C) {
    return layernorm_backward_blocks(N, C) * 3 * C;
}

// Sums both values over the block (with RMS only y, and x is 0). partial: shared memory for one float2 per warp. The
// next sum must use another `partial`, so that one barrier is enough.
template <bool RMS> __device__ __forceinline__ float2 layernorm_block_sums(float2 x, float2 *partial) {
    x.x = RMS ? 0.0f : warp_sum(x.x);
    x.y = warp_sum(x.y);
    if (threadIdx.x % WARP_SIZE == 0) { partial[threadIdx.x / WARP_SIZE] = x; }
    __syncthreads();
    float2 total = make_float2(0.0f, 0.0f);
    for (int w = 0; w < (int)(blockDim.x / WARP_SIZE); w++) {
        total.x += partial[w].x;
        total.y += partial[w].y;
    }
    return total;
}

__device__ __forceinline__ void layernorm_store_sums(float *scratch, const float (&sums)[x128::size]) {
#pragma unroll
    for (int k = 0; k < x128::size; k += f128::size) {
        f128 values;
#pragma unroll
        for (int i = 0; i < f128::size; i++) { values[i] = sums[k + i]; }
        store128(scratch + k, values);
    }
}

// sums = (first row) or += the values stored in dinp. Rows that are too wide to keep these sums in registers keep them
// in scratch, which the caches hold.
__device__ __forceinline__ void layernorm_add_to_sums(float *sums, const x128 &values, bool is_first) {
#pragma unroll
    for (int k = 0; k < x128::size; k += f128::size) {
        f128 sum = is_first ? packed_zeros<float>() : load128(sums + k);
#pragma unroll
        for (int i = 0; i < f128::size; i++) { sum[i] += to_float(values[k + i]); }
        store128(sums + k, sum);
    }
}

// Rows of at most LAYERNORM_STAGED_VECTORS vectors a thread come through shared memory: a block loads its next row
// while it sums the current row. Three neighbouring vectors, of dout, inp and dinp, belong to one thread. The thread
// copies and reads them itself, so it waits for its own copies only. Eight threads that read 16 bytes each, 48 bytes
// apart, read different banks.
#define LAYERNORM_STAGED_VECTORS 2

static inline size_t layernorm_backward_shared(int C) {
    return layernorm_backward_vectors(C) <= LAYERNORM_STAGED_VECTORS ? (size_t)(2 * 3 * C) * sizeof(floatX) : 0;
}

// Starts copying this thread's vectors of the row that begins at `begin`. With `overwrites` it copies zeros for dinp.
template <int VECTORS>
__device__ __forceinline__ void layernorm_fetch_row(int4 *stage, const floatX *dout, const floatX *inp,
                                                    const floatX *dinp, int64_t begin, int C, bool overwrites) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int vector = threadIdx.x + i * blockDim.x;
        if (vector * x128::size >= C) { continue; }
        int64_t at = begin + vector * x128::size;
        cp_async_16(stage + 3 * vector, dout + at);
        cp_async_16(stage + 3 * vector + 1, inp + at);
        cp_async_16(stage + 3 * vector + 2, dinp + at, overwrites ? 0 : 16);
    }
}

// Reads a vector of dout, inp or dinp from the thread's own part of shared memory, or from the tensor.
template <bool STAGED> __device__ __forceinline__ x128 layernorm_read(const int4 *staged, const floatX *tensor) {
    return STAGED ? packed_from_bits<floatX>(*staged) : load128_streaming(tensor);
}

// Stores the sums of this thread's channels in the block's row of scratch.
template <int VECTORS, bool RMS>
__device__ __forceinline__ void layernorm_store_all_sums(float *sums_of_block,
                                                         const float (&dweight)[VECTORS][x128::size],
                                                         const float (&dbias)[VECTORS][x128::size],
                                                         const float (&column_sums)[VECTORS][x128::size], int C,
                                                         bool wants_column_sums) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int c = (threadIdx.x + i * blockDim.x) * x128::size;
        if (c >= C) { continue; }
        layernorm_store_sums(sums_of_block + c, dweight[i]);
        if (RMS) { continue; }
        layernorm_store_sums(sums_of_block + C + c, dbias[i]);
        if (wants_column_sums) { layernorm_store_sums(sums_of_block + 2 * C + c, column_sums[i]); }
    }
}

// Moves 4*N*C floatX: it reads dout, inp and dinp and writes dinp. With `overwrites` it moves 3*N*C. kinds: 2 for the
// sums of dweight and dbias, 3 with the sums of dinp's columns. RMS has one, dweight.
//
// With few vectors (STAGED) a thread has registers for the sums of dinp's columns, and shared memory has room for the
// next row. With more vectors a thread loads each vector when it needs it, dout and inp twice, and keeps the sums of
// dinp's columns in scratch.
template <int VECTORS, bool AMAX, bool RMS>
static __global__ void __launch_bounds__(LAYERNORM_BACKWARD_MAX_THREADS, VECTORS == 1 ? 2 : 1)
    layernorm_backward_kernel(floatX *dinp, float *__restrict__ scratch, const floatX *__restrict__ dout,
                              const floatX *__restrict__ inp, const float *__restrict__ mean,
                              const float *__restrict__ rstd, const floatX *__restrict__ weight, uint32_t rows, int C,
                              bool overwrites, int kinds, uint32_t *amax) {
    constexpr bool STAGED = VECTORS <= LAYERNORM_STAGED_VECTORS;
    extern __shared__ int4 layernorm_stages[];
    __shared__ float2 partial[2 * WARP_SIZE]; // even turns use the first half, odd turns the second
    float *sums_of_block = scratch + (int64_t)blockIdx.x * kinds * C;
    float dweight[VECTORS][x128::size] = {}, dbias[VECTORS][x128::size] = {}, column_sums[VECTORS][x128::size] = {};
    uint32_t largest = 0;
    // Even lanes load the next row's mean, odd lanes its rstd. If every lane loaded both, the compiler would put them
    // into registers of the whole warp and wait for them at once.
    const float *statistic = !RMS && threadIdx.x % 2 == 0 ? mean : rstd;
    float fetched = statistic[blockIdx.x], per_C = 1.0f / (float)C;
    int64_t begin = blockIdx.x * (int64_t)C, step = gridDim.x * (int64_t)C;
    int stage_size = 3 * C / x128::size, turn = 0;
    if (STAGED) {
        layernorm_fetch_row<VECTORS>(layernorm_stages, dout, inp, dinp, begin, C, overwrites);
        cp_async_commit();
    }
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x, begin += step) {
        float m = RMS ? 0.0f : __shfl_sync(FULL_WARP, fetched, 0), r = __shfl_sync(FULL_WARP, fetched, 1);
        const int4 *stage = layernorm_stages + turn * stage_size;
        if (row + gridDim.x < rows) {
            fetched = statistic[row + gridDim.x];
            if (STAGED) {
                layernorm_fetch_row<VECTORS>(layernorm_stages + (turn ^ 1) * stage_size, dout, inp, dinp, begin + step,
                                             C, overwrites);
            }
        }
        if (STAGED) {
            cp_async_commit();
            cp_async_wait<1>();
        }
        float2 sums = make_float2(0.0f, 0.0f); // sum of g, sum of g * n
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            int vector = threadIdx.x + i * blockDim.x, c = vector * x128::size;
            if (c >= C) { continue; }
            x128 w = load128(weight + c), dy = layernorm_read<STAGED>(stage + 3 * vector, dout + begin + c);
            x128 x = layernorm_read<STAGED>(stage + 3 * vector + 1, inp + begin + c);
#pragma unroll
            for (int k = 0; k < x128::size; k++) {
                float n = (to_float(x[k]) - m) * r, d = to_float(dy[k]), gain = to_float(w[k]);
                sums.x = fmaf(gain, d, sums.x);
                sums.y = fmaf(gain * d, n, sums.y);
                dweight[i][k] = fmaf(d, n, dweight[i][k]);
                dbias[i][k] += d;
            }
        }
        sums = layernorm_block_sums<RMS>(sums, partial + turn * WARP_SIZE);
        turn ^= 1;
        float mean_g = sums.x * per_C, mean_gn = sums.y * per_C;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            int vector = threadIdx.x + i * blockDim.x, c = vector * x128::size;
            if (c >= C) { continue; }
            x128 w = load128(weight + c), dy = layernorm_read<STAGED>(stage + 3 * vector, dout + begin + c);
            x128 x = layernorm_read<STAGED>(stage + 3 * vector + 1, inp + begin + c), dx = packed_zeros<floatX>();
            if (STAGED || !overwrites) { dx = layernorm_read<STAGED>(stage + 3 * vector + 2, dinp + begin + c); }
#pragma unroll
            for (int k = 0; k < x128::size; k++) {
                float n = (to_float(x[k]) - m) * r;
                float inner = fmaf(-n, mean_gn, fmaf(to_float(w[k]), to_float(dy[k]), -mean_g));
                float value = fmaf(r, inner, to_float(dx[k]));
                if (AMAX) { largest = amax_join(largest, value); }
                dx[k] = from_float<floatX>(value);
                if (STAGED) { column_sums[i][k] += to_float(dx[k]); }
            }
            if (!STAGED && kinds > 2) { layernorm_add_to_sums(sums_of_block + 2 * C + c, dx, row == blockIdx.x); }
            store128(dinp + begin + c, dx);
        }
    }
    layernorm_store_all_sums<VECTORS, RMS>(sums_of_block, dweight, dbias, column_sums, C, STAGED && kinds > 2);
    if (AMAX) { amax_add_rounded(amax, largest); }
}

template <bool AMAX, bool RMS> static inline auto layernorm_backward_kernel_of(int vectors) {
    return vectors == 1   ? layernorm_backward_kernel<1, AMAX, RMS>
           : vectors == 2 ? layernorm_backward_kernel<2, AMAX, RMS>
                          : layernorm_backward_kernel<LAYERNORM_BACKWARD_MAX_VECTORS, AMAX, RMS>;
}

// dinp = or +=, dweight +=, dbias += (see the top). dinp may not be dout or inp. scratch has
// layernorm_backward_scratch_floats(N, C) floats with any content, aligned to 16 bytes.
//
// dinp is the gradient of the residual stream. So it is also the gradient of the output of the linear layer whose
// output was added to the stream last. The sums of dinp's columns are the gradient of that layer's bias, and that layer
// needs dinp's amax for 8 bits. The caller passes pointers to both in `dinp`. A kernel of the linear layer would read
// dinp again: 2 bytes a value, while this kernel moves 8. RMSNorm's model has no biases, and no column sums.
template <bool RMS = LAYERNORM>
static inline void layernorm_backward_with_column_sums(LayerNormDinp dinp, const LayerNorm &ln, const floatX *dout,
                                                       const floatX *inp, float *scratch, int64_t N,
                                                       cudaStream_t stream) {
    int C = ln.C;
    cuda_require(N > 0 && N <= INT32_MAX && C > 0 && C % 8 == 0 && C <= LAYERNORM_MAX_CHANNELS);
    cuda_require(!RMS || dinp.column_sums == NULL);
    int64_t blocks = layernorm_backward_blocks(N, C);
    int vectors = layernorm_backward_vectors(C), kinds = RMS ? 1 : dinp.column_sums != NULL ? 3 : 2;
    auto backward_kernel = dinp.amax != NULL ? layernorm_backward_kernel_of<true, RMS>(vectors)
                                             : layernorm_backward_kernel_of<false, RMS>(vectors);
    size_t shared = layernorm_backward_shared(C);
    allow_dynamic_shared(backward_kernel, shared);
    backward_kernel<<<(unsigned)blocks, layernorm_backward_threads(C), shared, stream>>>(
        dinp.values, scratch, dout, inp, ln.mean, ln.rstd, ln.weight, (uint32_t)N, C, dinp.overwrites, kinds,
        dinp.amax);
    cuda_check_launch("layernorm_backward_kernel");
    column_sums_reduce({{ln.dweight, ln.dbias, dinp.column_sums}}, kinds, scratch, blocks, C, stream);
}

// ---- The sums of dinp's columns alone ----

#define LAYERNORM_COLUMNS_BLOCK 128

// Block x takes the rows that block x of layernorm_backward has, in their order. A thread sums 16 bytes of columns.
template <bool AMAX>
static __global__ void __launch_bounds__(LAYERNORM_COLUMNS_BLOCK)
    layernorm_column_sums_kernel(float *scratch, const floatX *dresidual, uint32_t rows, int C, uint32_t *amax) {
    int c = (blockIdx.y * blockDim.x + threadIdx.x) * x128::size;
    float sums[x128::size] = {};
    uint32_t largest = 0;
#pragma unroll 4
    for (uint32_t row = blockIdx.x; row < rows && c < C; row += gridDim.x) {
        x128 values = load128_streaming(dresidual + (int64_t)row * C + c);
#pragma unroll
        for (int k = 0; k < x128::size; k++) { sums[k] += to_float(values[k]); }
        if (AMAX) { largest = amax_join(largest, values); }
    }
    if (c < C) { layernorm_store_sums(scratch + (int64_t)blockIdx.x * C + c, sums); }
    if (AMAX) { amax_add_rounded(amax, largest); }
}

// dbias (C) += the sums of the columns of dresidual (N,C), with the bits of layernorm_backward_with_column_sums, if
// that ran on another rank. amax: of dresidual, or NULL. scratch: as there. Reads N*C floatX.
static inline void layernorm_column_sums(float *dbias, const floatX *dresidual, float *scratch, int64_t N, int C,
                                         uint32_t *amax, cudaStream_t stream) {
    cuda_require(N > 0 && N <= INT32_MAX && C > 0 && C % 8 == 0 && C <= LAYERNORM_MAX_CHANNELS);
    int64_t blocks = layernorm_backward_blocks(N, C);
    int threads = block_for(C / x128::size, LAYERNORM_COLUMNS_BLOCK);
    dim3 grid((unsigned)blocks, blocks_for(C, threads * x128::size));
    auto kernel = amax != NULL ? layernorm_column_sums_kernel<true> : layernorm_column_sums_kernel<false>;
    kernel<<<grid, threads, 0, stream>>>(scratch, dresidual, (uint32_t)N, C, amax);
    cuda_check_launch("layernorm_column_sums_kernel");
    column_sums_reduce({{dbias, NULL, NULL}}, 1, scratch, blocks, C, stream);
}

#endif // LLMC_LAYERNORM_CUH
