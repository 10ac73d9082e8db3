// Sums the rows of a matrix for the gradients of biases, in two stages. Each block of a first kernel adds up some rows
// and leaves its sums in scratch memory. A second kernel adds the sums of all blocks. There are no atomics. The order
// of the second sum depends on the number of blocks only.
#ifndef LLMC_COLUMN_SUMS_CUH
#define LLMC_COLUMN_SUMS_CUH

#include "llmc/cuda/cuda_utils.cuh"

// ---- The first stage ----

#define COLUMN_CHUNK_COLUMNS (WARP_SIZE * x128::size) // of floatX: 16 bytes for each lane

// A block's part of a matrix (N,width): the rows [first, end) of one chunk, and COLUMN_CHUNK_COLUMNS columns from
// first_column on. This lane adds x128::size columns from `column` on. A chunk's blocks are neighbours in the grid.
typedef struct {
    int64_t chunk, first, end;
    int first_column, column;
} ColumnChunk;

// rows: of a chunk. The grid has one block for each COLUMN_CHUNK_COLUMNS columns of each chunk.
__device__ __forceinline__ ColumnChunk column_chunk(int64_t N, int width, int rows) {
    int blocks_of_chunk = (width + COLUMN_CHUNK_COLUMNS - 1) / COLUMN_CHUNK_COLUMNS;
    ColumnChunk c;
    c.chunk = blockIdx.x / blocks_of_chunk;
    c.first = c.chunk * rows;
    c.end = c.first + rows < N ? c.first + rows : N;
    c.first_column = (int)blockIdx.x % blocks_of_chunk * COLUMN_CHUNK_COLUMNS;
    c.column = c.first_column + (int)threadIdx.x % WARP_SIZE * x128::size;
    return c;
}

// Ends the first stage, for a block of WARPS warps that have added different rows of its columns. scratch (width) at
// these columns = the warps' sums, added in order. sums: of this lane's 16 bytes. first: the block's first column. All
// threads must call it.
template <int WARPS>
__device__ __forceinline__ void column_sums_store(float *scratch, const float (&sums)[x128::size], int first,
                                                  int width) {
    const int columns = COLUMN_CHUNK_COLUMNS;
    static_assert(columns <= WARPS * WARP_SIZE, "a thread for each column");
    __shared__ alignas(16) float partial[WARPS * columns]; // (warps, columns)
    for (int i = 0; i < x128::size; i += f128::size) {
        f128 part;
        for (int k = 0; k < f128::size; k++) { part[k] = sums[i + k]; }
        store128(partial + threadIdx.x * x128::size + i, part);
    }
    __syncthreads();
    int c = threadIdx.x;
    if (c >= columns || first + c >= width) { return; }
    float sum = 0.0f;
    for (int w = 0; w < WARPS; w++) { sum += partial[w * columns + c]; }
    scratch[first + c] = sum;
}

// ---- The second stage ----

#define COLUMN_SUMS_MAX_KINDS 3
#define COLUMN_SUMS_LANES 8 // neighbouring threads on one row of scratch: 128 bytes
#define COLUMN_SUMS_ROWS 64 // rows of scratch that a block adds at a time, if there are so many
#define COLUMN_SUMS_COLUMNS (COLUMN_SUMS_LANES * f128::size)
#define COLUMN_SUMS_THREADS (COLUMN_SUMS_LANES * COLUMN_SUMS_ROWS)

// The destinations of the sums: one array (C) for each kind of sum.
typedef struct {
    float *of[COLUMN_SUMS_MAX_KINDS];
} ColumnSums;

// sums (kinds,C) += the columns of scratch (blocks,kinds,C). Thread (lane, row) adds rows row, row+64, ... of 4
// columns. Then each of the first 32 threads adds the sums of one column. Reads scratch, mostly from the L2 cache.
static __global__ void __launch_bounds__(COLUMN_SUMS_THREADS)
    column_sums_reduce_kernel(ColumnSums sums, const float *__restrict__ scratch, int64_t blocks, int kinds, int C) {
    __shared__ alignas(16) float partial[COLUMN_SUMS_ROWS * COLUMN_SUMS_COLUMNS];
    int lane = threadIdx.x % COLUMN_SUMS_LANES, first_row = threadIdx.x / COLUMN_SUMS_LANES, width = kinds * C;
    int first_column = blockIdx.x * COLUMN_SUMS_COLUMNS, column = first_column + lane * f128::size;
    f128 sum = packed_zeros<float>();
    if (column < width) {
#pragma unroll 4
        for (int64_t row = first_row; row < blocks; row += COLUMN_SUMS_ROWS) {
            f128 values = load128(scratch + row * width + column);
#pragma unroll
            for (int k = 0; k < f128::size; k++) { sum[k] += values[k]; }
        }
    }
    store128(partial + threadIdx.x * f128::size, sum); // (rows, columns)
    __syncthreads();
    column = first_column + threadIdx.x;
    if (threadIdx.x >= COLUMN_SUMS_COLUMNS || column >= width) { return; }
    float total = 0.0f;
#pragma unroll 8
    for (int i = threadIdx.x; i < (int)blockDim.x * f128::size; i += COLUMN_SUMS_COLUMNS) { total += partial[i]; }
    int kind = column / C;
    float *gradient = kind == 0 ? sums.of[0] : kind == 1 ? sums.of[1] : sums.of[2]; // sums.of[kind] needs local memory
    gradient[column - kind * C] += total;
}

// sums.of[kind] (C) += the columns of scratch (blocks,kinds,C). scratch is aligned to 16 bytes; C is a multiple of 4.
static inline void column_sums_reduce(ColumnSums sums, int kinds, const float *scratch, int64_t blocks, int C,
                                      cudaStream_t stream) {
    cuda_require(blocks > 0 && C > 0 && C % f128::size == 0 && kinds > 0 && kinds <= COLUMN_SUMS_MAX_KINDS);
    int threads = block_for(blocks * COLUMN_SUMS_LANES, COLUMN_SUMS_THREADS);
    column_sums_reduce_kernel<<<blocks_for((int64_t)kinds * C, COLUMN_SUMS_COLUMNS), threads, 0, stream>>>(
        sums, scratch, blocks, kinds, C);
    cuda_check_launch("column_sums_reduce_kernel");
}

#endif // LLMC_COLUMN_SUMS_CUH
