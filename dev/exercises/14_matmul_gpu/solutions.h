// Solutions of the exercises of chapter 14.

// Thread (y,x) of 8 x 8 has rows y, y + 8, ... and columns x, x + 8, ...: the lanes of a warp read 8 neighbouring rows
// of weight's tile and 4 of inp's, all in different banks.
static __global__ void multiply(float *out, const float *inp, const float *weight, int OC, int C) {
    __shared__ float inp_tile[32][33], weight_tile[32][33];
    int row = blockIdx.y * 32, column = blockIdx.x * 32, y = threadIdx.x / 8, x = threadIdx.x % 8;
    float sums[4][4] = {};
    for (int c = 0; c < C; c += 32) {
        for (int i = threadIdx.x; i < 1024; i += 64) {
            inp_tile[i / 32][i % 32] = inp[(row + i / 32) * C + c + i % 32];
            weight_tile[i / 32][i % 32] = weight[(column + i / 32) * C + c + i % 32];
        }
        __syncthreads();
        for (int k = 0; k < 32; k++) {
            float a[4], b[4];
            for (int i = 0; i < 4; i++) {
                a[i] = inp_tile[y + 8 * i][k];
                b[i] = weight_tile[x + 8 * i][k];
            }
            for (int i = 0; i < 16; i++) { sums[i / 4][i % 4] += a[i / 4] * b[i % 4]; }
        }
        __syncthreads();
    }
    for (int i = 0; i < 16; i++) { out[(row + y + 8 * (i / 4)) * OC + column + x + 8 * (i % 4)] = sums[i / 4][i % 4]; }
}

// Two rows fill all banks once. So rows 0, 2, 4 and 6 must have their piece at four different places of their row.
static __host__ __device__ int place_of_piece(int row, int piece) { return row * 4 + (piece ^ row / 2 % 4); }

__device__ static void warp_multiply(float *out, const __nv_bfloat16 *a, const __nv_bfloat16 *b) {
    const int stride = CHANNELS + 8, lane = threadIdx.x;
    float sums[2][4][4] = {};
    for (int k = 0; k < CHANNELS; k += 16) {
        uint32_t left[2][4], right[2][4];
        for (int h = 0; h < 2; h++) {
            ldmatrix_x4(left[h], a + (16 * h + lane % 16) * stride + k + lane / 16 * 8);
            ldmatrix_x4(right[h], b + (16 * h + lane / 16 * 8 + lane % 8) * stride + k + lane / 8 % 2 * 8);
        }
        for (int m = 0; m < 2; m++) {
            for (int n = 0; n < 4; n++) {
                const uint32_t columns[2] = {right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]};
                mma_m16n8k16_bf16(sums[m][n], left[m], columns, sums[m][n]);
            }
        }
    }
    for (int i = 0; i < 32; i++) {
        int m = i / 16, n = i / 4 % 4, e = i % 4;
        out[(16 * m + lane / 4 + e / 2 * 8) * 32 + 8 * n + lane % 4 * 2 + e % 2] = sums[m][n][e];
    }
}
