// Solutions of projects 2, 3, 4 and 6.

// ---- Project 2 ----

// A warp has a row, and keeps it in registers: each lane 4 numbers of every 128.
static __global__ void softmax_kernel(float *out, const float *inp, int N, int C) {
    int row = blockIdx.x * (blockDim.x / WARP_SIZE) + threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    if (row >= N) { return; }
    const float4 *from = (const float4 *)(inp + row * C);
    float4 x[8], *to = (float4 *)(out + row * C);
    float max = -INFINITY, sum = 0.0f;
    for (int k = 0, i = lane; i < C / 4; k++, i += WARP_SIZE) {
        x[k] = from[i];
        max = fmaxf(max, fmaxf(fmaxf(x[k].x, x[k].y), fmaxf(x[k].z, x[k].w)));
    }
    max = warp_max(max);
    for (int k = 0, i = lane; i < C / 4; k++, i += WARP_SIZE) {
        x[k] = make_float4(expf(x[k].x - max), expf(x[k].y - max), expf(x[k].z - max), expf(x[k].w - max));
        sum += x[k].x + x[k].y + x[k].z + x[k].w;
    }
    sum = warp_sum(sum);
    for (int k = 0, i = lane; i < C / 4; k++, i += WARP_SIZE) {
        to[i] = make_float4(x[k].x / sum, x[k].y / sum, x[k].z / sum, x[k].w / sum);
    }
}

static void softmax(float *out, const float *inp, int N, int C) {
    softmax_kernel<<<(N + 7) / 8, 8 * WARP_SIZE>>>(out, inp, N, C);
}

// ---- Project 3 ----

// 64 x 64 sums in a block of 16 x 16 threads: 4 x 4 sums each. The steps along C are of 16. A stride of 66 puts the 2
// rows of 16 numbers that a warp stores into 32 banks.
enum { MATMUL_TILE = 64, MATMUL_DEPTH = 16, MATMUL_STRIDE = MATMUL_TILE + 2 };

// Loads rows [first, first + MATMUL_TILE) and columns [c, c + MATMUL_DEPTH) of x (N,C), transposed; 0 where x ends.
static __device__ void load_transposed(float (*tile)[MATMUL_STRIDE], const float *x, int first, int c, int N, int C) {
    for (int i = threadIdx.y * 16 + threadIdx.x; i < MATMUL_TILE * MATMUL_DEPTH; i += 256) {
        int row = i / MATMUL_DEPTH, column = i % MATMUL_DEPTH;
        bool exists = first + row < N && c + column < C;
        tile[column][row] = exists ? x[(first + row) * C + c + column] : 0.0f;
    }
}

static __global__ void matmul_kernel(float *out, const float *inp, const float *weight, int N, int C, int OC) {
    __shared__ float a[MATMUL_DEPTH][MATMUL_STRIDE], b[MATMUL_DEPTH][MATMUL_STRIDE];
    int first_n = blockIdx.y * MATMUL_TILE, first_o = blockIdx.x * MATMUL_TILE;
    float sums[4][4] = {{0}};
    for (int c = 0; c < C; c += MATMUL_DEPTH) {
        load_transposed(a, inp, first_n, c, N, C);
        load_transposed(b, weight, first_o, c, OC, C);
        __syncthreads();
        for (int k = 0; k < MATMUL_DEPTH; k++) {
            float x[4], w[4];
            for (int i = 0; i < 4; i++) { x[i] = a[k][threadIdx.y + 16 * i], w[i] = b[k][threadIdx.x + 16 * i]; }
            for (int i = 0; i < 16; i++) { sums[i / 4][i % 4] += x[i / 4] * w[i % 4]; }
        }
        __syncthreads();
    }
    for (int i = 0; i < 16; i++) {
        int n = first_n + threadIdx.y + i / 4 * 16, o = first_o + threadIdx.x + i % 4 * 16;
        if (n < N && o < OC) { out[n * OC + o] = sums[i / 4][i % 4]; }
    }
}

static void matmul(float *out, const float *inp, const float *weight, int N, int C, int OC) {
    dim3 grid((OC + MATMUL_TILE - 1) / MATMUL_TILE, (N + MATMUL_TILE - 1) / MATMUL_TILE);
    matmul_kernel<<<grid, dim3(16, 16)>>>(out, inp, weight, N, C, OC);
}

// ---- Project 4 ----

enum { QUERIES = WARP_SIZE };

// Loads QUERIES rows of one head, each lane a channel; 0 behind row T.
static __device__ void load_rows(float (*tile)[HEAD_SIZE + 1], const float *head, int first, int T, int stride) {
    for (int s = 0; s < QUERIES; s++) {
        tile[s][threadIdx.x] = first + s < T ? head[(first + s) * stride + threadIdx.x] : 0.0f;
    }
}

// A block is a warp and has QUERIES queries of a head, one in each lane, with its sums in registers.
static __global__ void flash_kernel(float *out, float *lse, const float *qkv, int T, int NH) {
    __shared__ float k[QUERIES][HEAD_SIZE + 1], v[QUERIES][HEAD_SIZE + 1];
    int first = blockIdx.x * QUERIES, h = blockIdx.y, b = blockIdx.z, C = NH * HEAD_SIZE, t = first + threadIdx.x;
    const float *head = qkv + b * T * 3 * C + h * HEAD_SIZE;
    float q[HEAD_SIZE], sums[HEAD_SIZE] = {0}, max = -INFINITY, sum = 0.0f;
    load_rows(k, head, first, T, 3 * C);
    __syncthreads();
    for (int i = 0; i < HEAD_SIZE; i++) { q[i] = k[threadIdx.x][i] / sqrtf((float)HEAD_SIZE); }
    for (int from = 0; from <= first; from += QUERIES) {
        __syncthreads();
        load_rows(k, head + C, from, T, 3 * C);
        load_rows(v, head + 2 * C, from, T, 3 * C);
        __syncthreads();
        for (int s = 0; s < QUERIES && from + s <= t; s++) {
            float score = 0.0f;
            for (int i = 0; i < HEAD_SIZE; i++) { score += q[i] * k[s][i]; }
            float higher = fmaxf(max, score), before = expf(max - higher), e = expf(score - higher);
            for (int i = 0; i < HEAD_SIZE; i++) { sums[i] = sums[i] * before + e * v[s][i]; }
            sum = sum * before + e;
            max = higher;
        }
    }
    __syncthreads();
    for (int i = 0; i < HEAD_SIZE; i++) { k[threadIdx.x][i] = sums[i] / sum; }
    if (t < T) { lse[(b * NH + h) * T + t] = max + logf(sum); }
    __syncthreads();
    for (int s = 0; s < QUERIES && first + s < T; s++) {
        out[(b * T + first + s) * C + h * HEAD_SIZE + threadIdx.x] = k[s][threadIdx.x];
    }
}

static void flash_attention(float *out, float *lse, const float *qkv, int B, int T, int NH) {
    flash_kernel<<<dim3((T + QUERIES - 1) / QUERIES, NH, B), QUERIES>>>(out, lse, qkv, T, NH);
}

// ---- Project 6 ----

static __global__ void adamw_kernel(float *param, float *m, float *v, const float *grad_sum, int n, int ranks,
                                    int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) { return; }
    float grad = grad_sum[i] / ranks;
    m[i] = BETA1 * m[i] + (1.0f - BETA1) * grad;
    v[i] = BETA2 * v[i] + (1.0f - BETA2) * grad * grad;
    float m_hat = m[i] / (1.0f - powf(BETA1, step)), v_hat = v[i] / (1.0f - powf(BETA2, step));
    param[i] -= LEARNING_RATE * m_hat / (sqrtf(v_hat) + ADAM_EPSILON);
}

// ZeRO's first stage: a rank gets the sum of its part, updates its part, and all gather the parts.
static void data_parallel_step(const GpuRank *r, int step) {
    int n = r->n / r->ranks, own = r->rank * n;
    ncclReduceScatter(r->grad, r->grad + own, n, ncclFloat32, ncclSum, r->comm, r->stream);
    adamw_kernel<<<(n + 255) / 256, 256, 0, r->stream>>>(r->param + own, r->m, r->v, r->grad + own, n, r->ranks, step);
    ncclAllGather(r->param + own, r->param, n, ncclFloat32, r->comm, r->stream);
}
