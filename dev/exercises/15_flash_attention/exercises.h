// Exercises of chapter 15, FlashAttention. Answer 15.1 is wrong. The kernels of 15.2 and 15.3 compute the right
// numbers, and the meter says that they are slow. `make chapter-15` says which are right and fast.

// 15.1 A row's keys in two parts. Each part has its lse, the logarithm of its sum of exp(score), and its out (HEAD),
// which is normalised by that sum. *lse and out become those of both parts. A part without a key has lse -inf and out
// 0; both parts may be so. exp(lse) may be infinite.
static void merge(float *lse, float *out, float other_lse, const float *other_out) {
    for (int d = 0; d < HEAD; d++) { out[d] = 0.5f * (out[d] + other_out[d]); }
    *lse = fmaxf(*lse, other_lse);
}

// 15.2 Causal attention of one head: qkv (T,3,HEAD) -> out (T,HEAD) and lse (T). T is a multiple of 32. Block i has the
// 32 queries from 32 i on, and 32 x 32 threads. Here each thread reads all keys from memory, twice. Let the block copy
// each tile of 32 keys and values once, up to its last query, and use each score once: online softmax. No exponential
// may overflow: scores lie around 100. At most two exponentials a thread and tile, no bank conflicts.
static __global__ void attention(float *out, float *lse, const float *qkv, int T) {
    int query = blockIdx.x * 32 + threadIdx.y, d = threadIdx.x;
    (void)T;
    const float *q = qkv + query * 3 * HEAD;
    float largest = -INFINITY, sum = 0.0f, weighted = 0.0f;
    for (int pass = 0; pass < 2; pass++) {
        for (int j = 0; j <= query; j++) {
            const float *k = qkv + j * 3 * HEAD + HEAD, *v = k + HEAD;
            float score = 0.0f;
            for (int c = 0; c < HEAD; c++) { score += q[c] * k[c]; }
            score *= SCALE_OF_HEAD;
            if (pass == 0) {
                largest = fmaxf(largest, score);
            } else {
                float p = expf(score - largest);
                sum += p, weighted += p * v[d];
            }
        }
    }
    out[query * HEAD + d] = weighted / sum;
    if (d == 0) { lse[query] = largest + logf(sum); }
}

// 15.3 dq (T,HEAD) of that head, from dout (T,HEAD), lse and delta (T), by the formulas of the chapter: p again from
// lse. The launch is that of 15.2. Copy each tile of keys and values once, and compute each p once, not for each
// channel.
static __global__ void attention_dq(float *dq, const float *dout, const float *qkv, const float *lse,
                                    const float *delta, int T) {
    int query = blockIdx.x * 32 + threadIdx.y, d = threadIdx.x;
    (void)T;
    const float *q = qkv + query * 3 * HEAD, *grad = dout + query * HEAD;
    float sum = 0.0f;
    for (int j = 0; j <= query; j++) {
        const float *k = qkv + j * 3 * HEAD + HEAD, *v = k + HEAD;
        float score = 0.0f, dp = 0.0f;
        for (int c = 0; c < HEAD; c++) { score += q[c] * k[c], dp += grad[c] * v[c]; }
        sum += expf(SCALE_OF_HEAD * score - lse[query]) * (dp - delta[query]) * k[d];
    }
    dq[query * HEAD + d] = SCALE_OF_HEAD * sum;
}
