// All of attention shares this file: its shape, where keys and queries stand, a head's place in memory, a block's tile,
// and the launch.
#ifndef LLMC_ATTENTION_TILES_CUH
#define LLMC_ATTENTION_TILES_CUH

#include "llmc/cuda/cuda_common.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/model/context.h"

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

// Says where the keys of a sequence are, and where the queries stand among them. A query sees the keys at its position
// and before. Under context parallelism a rank has two chunks of the queries of a sequence, and all keys.
typedef struct {
    const floatX *kv;  // (B,T,stride): row j begins with k of KV heads and then v of KV heads, at position j
    int T, stride;     // keys of a sequence; values from row to row
    int chunk;         // queries of the first chunk. The rows from `chunk` on are the second chunk, which stands later.
    int first, second; // a query's position minus its row, in each chunk
} AttentionContext;

// The keys and values of qkv itself: each row is a query and a key.
static inline AttentionContext attention_own_context(const floatX *qkv, const AttentionShape &s) {
    return {qkv + s.NH * s.HS, s.T, attention_width(s), s.T, 0, 0};
}

// The keys and values of whole sequences: kv (B,place.T,2*KV*HS). The shape is of this rank's queries.
static inline AttentionContext attention_gathered_context(const floatX *kv, const AttentionShape &s,
                                                          const ContextPlace &place) {
    int chunk = s.T / 2;
    cuda_require(s.T == context_rows(&place));
    return {kv, place.T, 2 * s.KV * s.HS, chunk, context_position(&place, 0), context_position(&place, chunk) - chunk};
}

// Holds the offsets of row 0 of a query head. Row t lies t * attention_width further in qkv and dqkv, t * NH * HS
// further in out and dout, and t further in lse and delta.
typedef struct {
    int64_t q, out, row;
} AttentionHead;

// index = b * NH + h. A KV head's index, b * KV + h, times NH / KV is the index of the first query head of its group.
// shift: the offsets are of row -shift.
__device__ __forceinline__ AttentionHead attention_head(int64_t index, const AttentionShape &s, int shift = 0) {
    int64_t first_row = index / s.NH * s.T - shift, h = index % s.NH;
    AttentionHead head = {first_row * attention_width(s) + h * s.HS, (first_row * s.NH + h) * s.HS,
                          index * s.T - shift};
    return head;
}

// Returns the offset in kv of k at position 0, for the KV head that this query head reads. v lies KV * HS behind k.
__device__ __forceinline__ int64_t attention_keys(int64_t index, const AttentionShape &s, const AttentionContext &c) {
    int64_t h = index % s.NH, kv = h * s.KV / s.NH;
    return index / s.NH * c.T * c.stride + kv * s.HS;
}

// The tiles of a head are neighbours in the grid, so that blocks that run together read the same keys from the L2
// cache. The tile with the most work starts first. That is the last tile if a block visits earlier rows, and the first
// tile if it visits later rows. A group of query heads multiplies the work of all tiles of keys alike.
__device__ __forceinline__ int attention_descending_tile(int tiles) { return tiles - 1 - (int)(blockIdx.x % tiles); }
__device__ __forceinline__ int attention_ascending_tile(int tiles) { return (int)(blockIdx.x % tiles); }

__host__ __device__ __forceinline__ int attention_tiles(int T, int rows) { return (T + rows - 1) / rows; }

// Returns the position of a row's query minus the row.
__device__ __forceinline__ int attention_shift(int row, const AttentionContext &c) {
    return row < c.chunk ? c.first : c.second;
}

// Returns the end of a row's chunk.
__device__ __forceinline__ int attention_chunk_end(int row, const AttentionShape &s, const AttentionContext &c) {
    return row < c.chunk ? c.chunk : s.T;
}

// No tile of queries has rows of both chunks.
__host__ __device__ __forceinline__ int attention_query_tiles(const AttentionShape &s, const AttentionContext &c,
                                                              int rows) {
    return attention_tiles(c.chunk, rows) + attention_tiles(s.T - c.chunk, rows);
}

// A block's tile of queries, counted by position. `head` has the offsets of position 0, where the rank may have no row.
typedef struct {
    int first, end; // the positions of the tile's first query, and behind the chunk's last query
    int64_t index;  // of the head
    AttentionHead head;
} AttentionQueries;

__device__ __forceinline__ AttentionQueries attention_queries(const AttentionShape &s, const AttentionContext &c,
                                                              int rows) {
    int tiles = attention_query_tiles(s, c, rows), tile = attention_descending_tile(tiles);
    int of_first = attention_tiles(c.chunk, rows), row = tile * rows;
    if (tile >= of_first) { row = c.chunk + (tile - of_first) * rows; }
    int shift = attention_shift(row, c);
    int64_t index = blockIdx.x / tiles;
    return {row + shift, attention_chunk_end(row, s, c) + shift, index, attention_head(index, s, shift)};
}

// Returns the first row whose query sees this key. All rows behind it see it, too.
__device__ __forceinline__ int attention_first_row(int key, const AttentionContext &c) {
    return key < c.first + c.chunk ? max(0, key - c.first) : max(c.chunk, key - c.second);
}

// Starts a kernel with one block for each of `tiles` tiles of each of `heads` heads. cuda_check_launch must follow.
template <class Kernel, class... Arguments>
static inline void attention_launch(Kernel *kernel, int64_t heads, int tiles, size_t shared, cudaStream_t stream,
                                    Arguments... arguments) {
    allow_dynamic_shared(kernel, shared);
    kernel<<<(unsigned)(heads * tiles), ATTENTION_BLOCK, shared, stream>>>(arguments...);
}

#endif // LLMC_ATTENTION_TILES_CUH
