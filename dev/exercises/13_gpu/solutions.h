// Solutions of the exercises of chapter 13.

static int resident_warps(int threads, int registers, int shared_bytes) {
    int warps = (threads + 31) / 32, registers_of_warp = (32 * registers + 255) / 256 * 256;
    int by_registers = 4 * (16384 / registers_of_warp) / warps, by_shared = (228 << 10) / (shared_bytes + 1024);
    int blocks = by_registers < by_shared ? by_registers : by_shared;
    if (blocks > 32) { blocks = 32; }
    if (blocks > 64 / warps) { blocks = 64 / warps; }
    return blocks * warps;
}

static __global__ void transpose(float *out, const float *in, int N, int C) {
    __shared__ float tile[32][33];
    int row = blockIdx.y * 32, column = blockIdx.x * 32, x = threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += 8) {
        if (row + y < N && column + x < C) { tile[y][x] = in[(row + y) * C + column + x]; }
    }
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 8) {
        if (column + y < C && row + x < N) { out[(column + y) * N + row + x] = tile[x][y]; }
    }
}

static __global__ void histogram(int *counts, const int *tokens, int n) {
    __shared__ int of_block[BINS];
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = threadIdx.x;
    if (v < BINS) { of_block[v] = 0; }
    __syncthreads();
    int token = i < n ? tokens[i] : -1;
    unsigned equal = __match_any_sync(FULL_WARP, token);
    if (token >= 0 && __ffs((int)equal) - 1 == v % WARP_SIZE) { atomicAdd(&of_block[token], __popc(equal)); }
    __syncthreads();
    if (v < BINS) { atomicAdd(&counts[v], of_block[v]); }
}
