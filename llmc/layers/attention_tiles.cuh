// The SIMT and MMA kernels of attention share this file: a head's place in memory, a block's tile, and the launch.
#ifndef LLMC_ATTENTION_TILES_CUH
#define LLMC_ATTENTION_TILES_CUH

#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/cuda_utils.cuh"

#define ATTENTION_BLOCK 128 // threads
#define ATTENTION_WARPS (ATTENTION_BLOCK / WARP_SIZE)

// Holds the offsets of row 0 of one head of one sequence. Row t lies t * 3C further in qkv and dqkv, t * C further in
// out and dout, and t further in lse and delta. In qkv and dqkv, k lies C and v lies 2C behind q.
typedef struct {
    int64_t qkv, out, row;
} AttentionHead;

// index = b * NH + h.
__device__ __forceinline__ AttentionHead attention_head(int64_t index, int T, int C, int NH) {
    int64_t b = index / NH, first_channel = index % NH * (C / NH);
    AttentionHead head = {b * T * 3 * C + first_channel, b * T * C + first_channel, index * T};
    return head;
}

// The tiles of a head are neighbours in the grid, so that blocks that run together read the same keys from the L2
// cache. The tile with the most work starts first. That is the last tile if a block visits earlier rows, and the first
// tile if it visits later rows.
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
