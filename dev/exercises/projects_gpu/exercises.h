// Projects 2, 3, 4 and 6 of doc/projects.md. The kernels of the first three compute the right numbers, and move too
// many bytes. Write better ones; `make projects` says which are good enough. The functions launch kernels and do not
// wait.

// ---- Project 2: a softmax that moves little ----

static __global__ void softmax_kernel(float *out, const float *inp, int N, int C) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) { return; }
    const float *x = inp + row * C;
    float max = -INFINITY, sum = 0.0f;
    for (int c = 0; c < C; c++) { max = fmaxf(max, x[c]); }
    for (int c = 0; c < C; c++) { sum += expf(x[c] - max); }
    for (int c = 0; c < C; c++) { out[row * C + c] = expf(x[c] - max) / sum; }
}

// out, inp (N,C). C is a multiple of 4, and at most 1024.
static void softmax(float *out, const float *inp, int N, int C) {
    softmax_kernel<<<(N + 31) / 32, 32>>>(out, inp, N, C);
}

// ---- Project 3: a tiled multiply ----

static __global__ void matmul_kernel(float *out, const float *inp, const float *weight, int N, int C, int OC) {
    int n = blockIdx.y * blockDim.y + threadIdx.y, o = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N || o >= OC) { return; }
    float sum = 0.0f;
    for (int c = 0; c < C; c++) { sum += inp[n * C + c] * weight[o * C + c]; }
    out[n * OC + o] = sum;
}

// out (N,OC) = inp (N,C) weight^T, weight (OC,C). No size is a multiple of anything.
static void matmul(float *out, const float *inp, const float *weight, int N, int C, int OC) {
    matmul_kernel<<<dim3((OC + 15) / 16, (N + 15) / 16), dim3(16, 16)>>>(out, inp, weight, N, C, OC);
}

// ---- Project 4: FlashAttention's forward ----

static __global__ void attention_kernel(float *out, float *lse, const float *qkv, int T, int NH) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.y, b = blockIdx.z, C = NH * HEAD_SIZE;
    if (t >= T) { return; }
    const float *q = qkv + (b * T + t) * 3 * C + h * HEAD_SIZE, *first = qkv + b * T * 3 * C + h * HEAD_SIZE;
    float max = -INFINITY, sum = 0.0f, row[HEAD_SIZE] = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (int s = 0; s <= t; s++) {
            const float *k = first + s * 3 * C + C, *v = k + C;
            float score = 0.0f;
            for (int i = 0; i < HEAD_SIZE; i++) { score += q[i] * k[i]; }
            score /= sqrtf((float)HEAD_SIZE);
            if (pass == 0) { max = fmaxf(max, score); }
            if (pass == 0) { continue; }
            float e = expf(score - max);
            sum += e;
            for (int i = 0; i < HEAD_SIZE; i++) { row[i] += e * v[i]; }
        }
    }
    for (int i = 0; i < HEAD_SIZE; i++) { out[(b * T + t) * C + h * HEAD_SIZE + i] = row[i] / sum; }
    lse[(b * NH + h) * T + t] = max + logf(sum);
}

// Causal attention. qkv (B,T,3C), out (B,T,C) with C = NH * HEAD_SIZE. lse (B,NH,T): the logarithm of the sum of a
// query's exponentials.
static void flash_attention(float *out, float *lse, const float *qkv, int B, int T, int NH) {
    attention_kernel<<<dim3((T + 31) / 32, NH, B), 32>>>(out, lse, qkv, T, NH);
}

// ---- Project 6: a step on two GPUs ----

// Update `step`, from 1, by AdamW with the mean of all ranks' gradients: learning rate LEARNING_RATE, BETA1, BETA2,
// ADAM_EPSILON, no decay. A GpuRank is in chapter.cu: param (n) and grad (n) on this rank's GPU, but m and v only n /
// ranks numbers, those of its own part. In the end all ranks have the new param. The body below updates nothing.
static void data_parallel_step(const GpuRank *r, int step) { (void)r, (void)step; }
