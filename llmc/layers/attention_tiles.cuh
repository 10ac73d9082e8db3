// All of attention shares this file: its shape, a head's place in memory, a block's tile, and the launch.
#ifndef LLMC_ATTENTION_TILES_CUH
#define LLMC_ATTENTION_TILES_CUH

#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/cuda_utils.cuh"

#define ATTENTION_BLOCK 128 // threads
#define ATTENTION_WARPS (ATTENTION_BLOCK / WARP_SIZE)

// B sequences of T tokens, NH heads of queries, KV heads of keys and values, HS values in a head. KV divides NH: each
// KV head serves a group of NH / KV neighbouring query heads (grouped-query attention, Ainslie et al. 2023). With KV =
// NH each query head has keys and values of its own. A row of qkv and dqkv holds q of NH heads, k of KV heads, v of KV
// heads. A row of out and dout holds NH heads. lse and delta are (B,NH,T).
typedef struct {
    int B, T, NH, KV, HS;
} AttentionShape;

// Returns the values of a row of qkv.
__host__ __device__ __forceinline__ int attention_width(const AttentionShape &s) { return (s.NH + 2 * s.KV) * s.HS; }

// Holds the offsets of row 0 of a query head and of its KV head. Row t lies t * attention_width further in qkv and
// dqkv, t * NH * HS further in out and dout, and t further in lse and delta. k: how far k lies behind q. v lies KV * HS
// behind k.
typedef struct {
    int64_t q, out, row;
    int k;
} AttentionHead;

// index = b * NH + h. A KV head's index, b * KV + h, times NH / KV is the index of the first query head of its group.
__device__ __forceinline__ AttentionHead attention_head(int64_t index, const AttentionShape &s) {
    int64_t first_row = index / s.NH * s.T, h = index % s.NH, kv = h * s.KV / s.NH;
    int64_t q = first_row * attention_width(s) + h * s.HS, out = (first_row * s.NH + h) * s.HS;
    AttentionHead head = {q, out, index * s.T, (int)(s.NH + kv - h) * s.HS};
    return head;
}

// The tiles of a head are neighbours in the grid, so that blocks that run together read the same keys from the L2
// cache. The tile with the most work starts first. That is the last tile if a block visits earlier rows, and the first
// tile if it visits later rows. A group of query heads multiplies the work of all tiles of keys alike.
__device__ __forceinline__ int attention_descending_tile(int tiles) { return tiles - 1 - (int)(blockIdx.x % tiles); }
__device__ __forceinline__ int attention_ascending_tile(int tiles) { return (int)(blockIdx.x % tiles); }

__host__ __device__ __forceinline__ int attention_tiles(int T, int rows) { return (T + rows - 1) / rows; }

// Starts a kernel with one block for each tile of `rows` rows of each of `heads` heads.
// cuda_check_launch must follow.
template <class Kernel, class... Arguments>
static inline void attention_launch(Kernel *kernel, int64_t heads, int T, int rows, size_t shared, cudaStream_t stream,
                                    Arguments... arguments) {
    unsigned blocks = (unsigned)(heads * attention_tiles(T, rows));
    allow_dynamic_shared(kernel, shared);
    kernel<<<blocks, ATTENTION_BLOCK, shared, stream>>>(arguments...);
}

#endif // LLMC_ATTENTION_TILES_CUH
