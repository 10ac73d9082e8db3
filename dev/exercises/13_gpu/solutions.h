// Solutions of the exercises of chapter 13.

static __global__ void sum_rows(float *sums, const float *x, int C) {
    float sum = 0.0f;
    for (int c = threadIdx.x; c < C; c += WARP_SIZE) { sum += x[blockIdx.x * C + c]; }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) { sums[blockIdx.x] = sum; }
}

// Row r is turned by r: its columns go to places (column ^ r) of the row. A column then lies in all banks, too.
static __host__ __device__ int place_in_tile(int row, int column) { return row * 32 + (column ^ row); }

static __global__ void histogram(int *counts, const int *tokens, int n) {
    __shared__ int of_block[BINS];
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = threadIdx.x;
    if (v < BINS) { of_block[v] = 0; }
    __syncthreads();
    if (i < n) { atomicAdd(&of_block[tokens[i]], 1); }
    __syncthreads();
    if (v < BINS) { atomicAdd(&counts[v], of_block[v]); }
}
