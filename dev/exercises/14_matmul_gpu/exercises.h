// Exercises of chapter 14, a matrix multiply for the GPU. Every answer below computes the right numbers, and the meter
// says that it is slow. Make it fast; `make chapter-14` says which are.

// 14.1 out (N,OC) = inp (N,C) weight (OC,C)^T in fp32. Block (x,y) has 64 threads and 32 x 32 values of out: rows from
// 32 y on, columns from 32 x on. N, OC and C are multiples of 32. Here each of the 16 values of a thread reads two
// numbers for each product. Give each thread 4 x 4 values, read 4 + 4 numbers for 16 products, and avoid bank
// conflicts.
static __global__ void multiply(float *out, const float *inp, const float *weight, int OC, int C) {
    __shared__ float inp_tile[32][33], weight_tile[32][33];
    int row = blockIdx.y * 32, column = blockIdx.x * 32;
    float sums[16] = {};
    for (int c = 0; c < C; c += 32) {
        for (int i = threadIdx.x; i < 1024; i += 64) {
            inp_tile[i / 32][i % 32] = inp[(row + i / 32) * C + c + i % 32];
            weight_tile[i / 32][i % 32] = weight[(column + i / 32) * C + c + i % 32];
        }
        __syncthreads();
        for (int v = 0; v < 16; v++) {
            int i = v * 64 + threadIdx.x;
            for (int k = 0; k < 32; k++) { sums[v] += inp_tile[i / 32][k] * weight_tile[i % 32][k]; }
        }
        __syncthreads();
    }
    for (int v = 0; v < 16; v++) {
        int i = v * 64 + threadIdx.x;
        out[(row + i / 32) * OC + column + i % 32] = sums[v];
    }
}

// 14.2 A tile has 64 rows of 32 bf16 numbers: 4 pieces of 16 bytes a row. Return the place of a piece, from 0 to 255.
// The piece at place p lies in banks 4 p mod 32 to 4 p mod 32 + 3. ldmatrix reads one piece of 8 neighbouring rows, 8 r
// to 8 r + 7, at once, and a copy writes all pieces of two neighbouring rows, 2 r and 2 r + 1. Both need different
// banks.
static __host__ __device__ int place_of_piece(int row, int piece) { return row * 4 + piece; }

// 14.3 One warp: out (32,32) = a b^T, for a and b of 32 rows of CHANNELS bf16 numbers in shared memory, CHANNELS + 8
// numbers from row to row. CHANNELS is a multiple of 16. Use ldmatrix_x4 and mma_m16n8k16_bf16 of llmc/cuda/ptx.cuh,
// whose comment says which lane holds what. An operand that is in registers should serve all products that need it.
__device__ static void warp_multiply(float *out, const __nv_bfloat16 *a, const __nv_bfloat16 *b) {
    for (int i = 0; i < 32; i++) {
        float sum = 0.0f;
        for (int k = 0; k < CHANNELS; k++) {
            sum += to_float(a[i * (CHANNELS + 8) + k]) * to_float(b[threadIdx.x * (CHANNELS + 8) + k]);
        }
        out[i * 32 + threadIdx.x] = sum;
    }
}
