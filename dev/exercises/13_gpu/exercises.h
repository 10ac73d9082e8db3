// Exercises of chapter 13, the GPU. Answer 13.1 is wrong. The kernels of 13.2 and 13.3 compute the right numbers, and
// the meter says that they are slow. `make chapter-13` says which are right and fast.

// 13.1 How many warps does a multiprocessor of an H100 hold at once? A block has `threads` threads of `registers`
// registers, and `shared_bytes` bytes of shared memory. Only whole blocks run. The limits are 64 warps, 32 blocks,
// 65,536 registers, and 228 KiB of shared memory. Registers lie in four quarters of 16,384. A warp lies in one quarter,
// and takes 32 * registers, rounded up to a multiple of 256. A block takes 1 KiB of shared memory besides its own.
// Return 0 if not one block fits.
static int resident_warps(int threads, int registers, int shared_bytes) {
    (void)registers, (void)shared_bytes;
    return 64 / (threads / 32) * (threads / 32);
}

// 13.2 out (C,N) = the transpose of in (N,C). The grid has a block for each 32 x 32 numbers of `in`: blockIdx.x counts
// columns, blockIdx.y rows. A block has 32 x 8 threads. N and C are multiples of 8, not of 32. Here the stores of a
// warp lie N numbers apart. Move each byte once, without a bank conflict.
static __global__ void transpose(float *out, const float *in, int N, int C) {
    int column = blockIdx.x * 32 + threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += 8) {
        int row = blockIdx.y * 32 + y;
        if (row < N && column < C) { out[column * N + row] = in[row * C + column]; }
    }
}

// 13.3 counts[v] += how often v occurs among tokens (n), for v < BINS. Each thread has one token, and nine of ten
// tokens are equal. Lanes that add to one address wait for each other, in shared memory, too. Use at most BINS atomics
// on device memory for each block. In shared memory, let each warp add once for each different token that it has.
// __match_any_sync(FULL_WARP, x) returns the lanes whose x is this lane's, a bit each. All 32 lanes must call it.
static __global__ void histogram(int *counts, const int *tokens, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { atomicAdd(&counts[tokens[i]], 1); }
}
