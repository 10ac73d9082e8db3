// Exercises of chapter 13, GPU kernels. Every answer below computes the right numbers, and the meter says that it is
// slow. Make it fast; `make chapter-13` says which are.

// 13.1 sums[n] = the sum of row n of x (N, C). A block is one warp and has one row: blockIdx.x is n, threadIdx.x the
// lane. C is a multiple of 8, not always of 32. Here lane 0 works alone, and each of its loads moves a sector of 32
// bytes for
// 4. Let all lanes load neighbours, so that no byte is moved twice. warp_sum(v) of llmc/cuda/cuda_utils.cuh returns the
// sum of v over the lanes; all 32 must call it.
static __global__ void sum_rows(float *sums, const float *x, int C) {
    float sum = 0.0f;
    for (int c = 0; c < C && threadIdx.x == 0; c++) { sum += x[blockIdx.x * C + c]; }
    if (threadIdx.x == 0) { sums[blockIdx.x] = sum; }
}

// 13.2 A tile of 32 x 32 numbers in shared memory. A warp stores a row of it, and later loads a column. Number i of
// shared memory lies in bank i % 32. With the places below a row lies in 32 banks, and a column in one: a load of a
// column needs 32 wavefronts. Rows of 33 numbers would help, but there are only 1,024 places. Return another place for
// each element, from 0 to 1023, so that rows and columns both lie in 32 banks.
static __host__ __device__ int place_in_tile(int row, int column) { return row * 32 + column; }

// 13.3 counts[v] += how often v occurs among tokens (n), for v < BINS. Each thread has one token. Lanes with equal
// tokens wait for one address of device memory, one after another. Count in shared memory first, with atomicAdd too.
// Then add the block's counts to device memory: at most BINS atomics for each block.
static __global__ void histogram(int *counts, const int *tokens, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { atomicAdd(&counts[tokens[i]], 1); }
}
