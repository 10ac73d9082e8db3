// The embedding layer: each token's vector plus its position's, or, with wpe NULL, alone (a Llama's).
//   forward   out[b,t,:] = wte[tokens[b,t],:] + wpe[t,:]
//   backward  dwte[tokens[b,t],:] += dout[b,t,:], dwpe[t,:] += dout[b,t,:]
// out, dout (B,T,C), tokens (B,T), wte, dwte (Vp,C), wpe, dwpe (maxT,C); N = B*T rows; T may be less than maxT.
//
// A token of -1 is another rank's, if ranks share the rows of wte: its vector counts as 0, and dwte does not change.
// place: which positions the T rows of a sequence have, if ranks share sequences (llmc/model/context.h). NULL: 0 ..
// T-1.
//
// A token that repeats adds several rows to one row of dwte. For a sum in a fixed order without atomics, the host sorts
// the rows of a batch by token, while the GPU works on the previous batch (embedding_order_tokens). Then the rows of a
// token are neighbours and belong to one block.
#ifndef LLMC_EMBEDDING_CUH
#define LLMC_EMBEDDING_CUH

#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/model/context.h"

// ---- Forward ----

static inline ContextPlace embedding_place(const ContextPlace *place, int T) {
    return place != NULL ? *place : ContextPlace{1, 0, T};
}

// Each row has one warp. Moves 2*N*C floatX: it reads N rows of wte and writes N rows of out. wpe stays in the caches.
template <bool POSITIONS>
static __global__ void embedding_forward_kernel(floatX *__restrict__ out, const int32_t *__restrict__ tokens,
                                                const floatX *__restrict__ wte, const floatX *__restrict__ wpe,
                                                int64_t N, int T, int C, ContextPlace place) {
    int lane = threadIdx.x % WARP_SIZE;
    int64_t row = (int64_t)blockIdx.x * (blockDim.x / WARP_SIZE) + threadIdx.x / WARP_SIZE;
    if (row >= N) { return; }
    int64_t id = tokens[row], t = POSITIONS ? context_position(&place, (int)(row % T)) : 0;
    const floatX *token = wte + id * C;
    const floatX *position = POSITIONS ? wpe + t * C : NULL;
    floatX *out_row = out + row * C;
#pragma unroll 4
    for (int c = lane * x128::size; c < C; c += WARP_SIZE * x128::size) {
        x128 a = id >= 0 ? load128(token + c) : packed_zeros<floatX>();
        if (POSITIONS) {
            x128 b = load128(position + c);
#pragma unroll
            for (int k = 0; k < x128::size; k++) { a[k] = from_float<floatX>(to_float(a[k]) + to_float(b[k])); }
        }
        store128(out_row + c, a);
    }
}

// out = wte[tokens] + wpe. C % 8 == 0. Rows of out, wte and wpe are aligned to 16 bytes. Every token is in -1 .. Vp-1.
static inline void embedding_forward(floatX *out, const int32_t *tokens, const floatX *wte, const floatX *wpe, int B,
                                     int T, int C, cudaStream_t stream, const ContextPlace *place = NULL,
                                     int block_size = 256) {
    cuda_require(B > 0 && T > 0 && C > 0 && C % 8 == 0);
    cuda_require(block_size % WARP_SIZE == 0 && block_size <= MAX_BLOCK);
    int64_t N = (int64_t)B * T;
    auto kernel = wpe != NULL ? embedding_forward_kernel<true> : embedding_forward_kernel<false>;
    kernel<<<blocks_for(N, block_size / WARP_SIZE), block_size, 0, stream>>>(out, tokens, wte, wpe, N, T, C,
                                                                             embedding_place(place, T));
    cuda_check_launch("embedding_forward_kernel");
}

// ---- Backward ----

// On the host: order[0..N-1] = the rows sorted by token. Rows of one token keep their order. tokens (N), each in -1 ..
// V-1; counts: scratch of V+1. This is a counting sort: one pass counts the tokens, one pass places the rows.
static inline void embedding_order_tokens(int32_t *order, const int32_t *tokens, int64_t N, int V, int32_t *counts) {
    memset(counts, 0, sizeof(int32_t) * (size_t)(V + 1));
    for (int64_t row = 0; row < N; row++) { counts[tokens[row] + 1]++; }
    for (int v = 0; v < V; v++) { counts[v + 1] += counts[v]; } // counts[v]: where token v begins, behind all -1
    int32_t first = 0;
    for (int64_t row = 0; row < N; row++) {
        int32_t *place = tokens[row] < 0 ? &first : &counts[tokens[row]];
        order[(*place)++] = (int32_t)row;
    }
}

#define EMBEDDING_TILE 512                                  // threads of a block, and places of `order` that it owns
#define EMBEDDING_LONG_RUN 32                               // a whole block sums a token with more rows than this
#define EMBEDDING_LANES 8                                   // neighbouring threads on a row: 128 bytes of it
#define EMBEDDING_CHANNELS (EMBEDDING_LANES * x128::size)   // channels of a block
#define EMBEDDING_GROUPS (EMBEDDING_TILE / EMBEDDING_LANES) // rows that a block adds at a time
#define EMBEDDING_WARPS (EMBEDDING_TILE / WARP_SIZE)
#define EMBEDDING_WINDOW (EMBEDDING_TILE + EMBEDDING_LONG_RUN + 1)

__device__ __forceinline__ void embedding_add_row(float (&sum)[x128::size], const floatX *row) {
    x128 values = load128(row);
#pragma unroll
    for (int k = 0; k < x128::size; k++) { sum[k] += to_float(values[k]); }
}

__device__ __forceinline__ void embedding_add_to_gradient(float *gradient, const float (&sum)[x128::size]) {
#pragma unroll
    for (int k = 0; k < x128::size; k += f128::size) {
        f128 values = load128(gradient + k);
#pragma unroll
        for (int i = 0; i < f128::size; i++) { values[i] += sum[k + i]; }
        store128(gradient + k, values);
    }
}

// dwpe[position of t,c] += sum over b of dout[b,t,c], in the order of b. One thread for each 16 bytes of (T,C). Other
// rows of dwpe stay as they are. Moves N*C floatX and 2*T*C float.
static __global__ void embedding_backward_position_kernel(float *__restrict__ dwpe, const floatX *__restrict__ dout,
                                                          int B, int64_t TC, int C, ContextPlace place) {
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (at >= TC) { return; }
    float sum[x128::size] = {};
#pragma unroll 4
    for (int b = 0; b < B; b++) { embedding_add_row(sum, dout + b * TC + at); }
    at = context_position(&place, (int)(at / C)) * (int64_t)C + at % C;
    embedding_add_to_gradient(dwpe + at, sum);
}

// The whole block sums the rows of one token. They begin at place `start` of `order`. Group g adds rows g, g+GROUPS,
// ... of the run. Then the block adds the groups' sums, in an order that depends on the run's length only.
__device__ __forceinline__ void embedding_add_long_run(float *dtoken, const floatX *dout, const int32_t *tokens,
                                                       const int32_t *order, int64_t start, int32_t token, int64_t N,
                                                       int C) {
    __shared__ int32_t run[EMBEDDING_TILE];
    __shared__ float partial[EMBEDDING_WARPS * EMBEDDING_CHANNELS];
    int lane = threadIdx.x % EMBEDDING_LANES, group = threadIdx.x / EMBEDDING_LANES, warp = threadIdx.x / WARP_SIZE;
    int first_channel = blockIdx.y * EMBEDDING_CHANNELS, c = first_channel + lane * x128::size;
    float sum[x128::size] = {};
    int count = EMBEDDING_TILE;
    for (int64_t place = start + threadIdx.x; count == EMBEDDING_TILE; place += EMBEDDING_TILE) {
        int32_t row = place < N ? order[place] : 0;
        run[threadIdx.x] = row;
        count = __syncthreads_count(place < N && tokens[row] == token); // equal tokens come first
        if (c < C) {
#pragma unroll 4
            for (int i = group; i < count; i += EMBEDDING_GROUPS) {
                embedding_add_row(sum, dout + (int64_t)run[i] * C + c);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < x128::size; k++) {
        for (int other = EMBEDDING_LANES; other < WARP_SIZE; other *= 2) {
            sum[k] += __shfl_xor_sync(FULL_WARP, sum[k], other);
        }
        if (threadIdx.x % WARP_SIZE < EMBEDDING_LANES) {
            partial[warp * EMBEDDING_CHANNELS + lane * x128::size + k] = sum[k];
        }
    }
    __syncthreads();
    int channel = threadIdx.x;
    if (channel < EMBEDDING_CHANNELS && first_channel + channel < C) {
        float total = 0.0f;
        for (int w = 0; w < EMBEDDING_WARPS; w++) { total += partial[w * EMBEDDING_CHANNELS + channel]; }
        dtoken[first_channel + channel] += total;
    }
    __syncthreads();
}

// dwte[tokens[r],:] += dout[r,:] for all rows r but those of token -1. Block (x,y) takes the runs of equal tokens that
// begin at places x*TILE .. x*TILE+TILE-1 of `order`, and the channels of chunk y. One group of 8 threads adds a short
// run, in the order of its rows. The whole block adds a long run, so that a token that fills the batch is no serial
// chain. Moves N*C floatX and, for each different token, 2*C float.
static __global__ void __launch_bounds__(EMBEDDING_TILE)
    embedding_backward_token_kernel(float *__restrict__ dwte, const floatX *__restrict__ dout,
                                    const int32_t *__restrict__ tokens, const int32_t *__restrict__ order, int64_t N,
                                    int C) {
    // Entry i of the window is place first + i - 1. Entries 1 .. TILE are the block's own. Places that do not exist
    // hold token -1.
    __shared__ int32_t rows[EMBEDDING_WINDOW];
    __shared__ int32_t ids[EMBEDDING_WINDOW];
    __shared__ int long_runs[EMBEDDING_TILE / EMBEDDING_LONG_RUN]; // entries where a long run begins; 0: none
    int64_t first = (int64_t)blockIdx.x * EMBEDDING_TILE;
    for (int i = threadIdx.x; i < EMBEDDING_WINDOW; i += EMBEDDING_TILE) {
        int64_t place = first + i - 1;
        bool inside = place >= 0 && place < N;
        rows[i] = inside ? order[place] : 0;
        ids[i] = inside ? tokens[rows[i]] : -1;
    }
    if (threadIdx.x < EMBEDDING_TILE / EMBEDDING_LONG_RUN) { long_runs[threadIdx.x] = 0; }
    __syncthreads();

    int own = threadIdx.x + 1;
    bool begins = ids[own] >= 0 && ids[own] != ids[own - 1];
    // Two long runs begin at least LONG_RUN places apart, so no two threads write one entry.
    if (begins && ids[own + EMBEDDING_LONG_RUN] == ids[own]) { long_runs[threadIdx.x / EMBEDDING_LONG_RUN] = own; }

    int c = blockIdx.y * EMBEDDING_CHANNELS + threadIdx.x % EMBEDDING_LANES * x128::size;
    for (int i = 1 + threadIdx.x / EMBEDDING_LANES; i <= EMBEDDING_TILE; i += EMBEDDING_GROUPS) {
        int32_t token = ids[i];
        bool short_run = token >= 0 && token != ids[i - 1] && token != ids[i + EMBEDDING_LONG_RUN];
        if (!short_run || c >= C) { continue; }
        float sum[x128::size] = {};
        for (int j = i; ids[j] == token; j++) { embedding_add_row(sum, dout + (int64_t)rows[j] * C + c); }
        embedding_add_to_gradient(dwte + (int64_t)token * C + c, sum);
    }
    __syncthreads();

    for (int i = 0; i < EMBEDDING_TILE / EMBEDDING_LONG_RUN; i++) {
        int entry = long_runs[i];
        if (entry == 0) { continue; }
        int32_t token = ids[entry];
        embedding_add_long_run(dwte + (int64_t)token * C, dout, tokens, order, first + entry - 1, token, N, C);
    }
}

// dwte +=, dwpe += (see the top). order: from embedding_order_tokens of `tokens`. C % 8 == 0. Rows of dout, dwte and
// dwpe are aligned to 16 bytes. The order of each sum depends on the tokens and the shape only.
static inline void embedding_backward(float *dwte, float *dwpe, const floatX *dout, const int32_t *tokens,
                                      const int32_t *order, int B, int T, int C, cudaStream_t stream,
                                      const ContextPlace *place = NULL, int block_size = 256) {
    cuda_require(B > 0 && T > 0 && C > 0 && C % 8 == 0);
    cuda_require((int64_t)B * T <= INT32_MAX && C <= 65535 * EMBEDDING_CHANNELS);
    int64_t N = (int64_t)B * T, TC = (int64_t)T * C;
    if (dwpe != NULL) {
        unsigned blocks = blocks_for(TC / x128::size, block_size);
        embedding_backward_position_kernel<<<blocks, block_size, 0, stream>>>(dwpe, dout, B, TC, C,
                                                                              embedding_place(place, T));
        cuda_check_launch("embedding_backward_position_kernel");
    }
    dim3 grid(blocks_for(N, EMBEDDING_TILE), blocks_for(C, EMBEDDING_CHANNELS));
    embedding_backward_token_kernel<<<grid, EMBEDDING_TILE, 0, stream>>>(dwte, dout, tokens, order, N, C);
    cuda_check_launch("embedding_backward_token_kernel");
}

#endif // LLMC_EMBEDDING_CUH
