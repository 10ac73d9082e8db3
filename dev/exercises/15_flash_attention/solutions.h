// Solutions of the exercises of chapter 15.

static void merge(float *lse, float *out, float other_lse, const float *other_out) {
    float largest = fmaxf(*lse, other_lse);
    if (largest == -INFINITY) { return; }
    float here = expf(*lse - largest), there = expf(other_lse - largest), sum = here + there;
    for (int d = 0; d < HEAD; d++) { out[d] = (here * out[d] + there * other_out[d]) / sum; }
    *lse = largest + logf(sum);
}

// A warp has a query. A lane has a key to compute the score, and a channel to add up the values.
static __global__ void attention(float *out, float *lse, const float *qkv, int T) {
    __shared__ float queries[32][HEAD], keys[32][HEAD + 1], values[32][HEAD], weights[32][32];
    int row = threadIdx.y, lane = threadIdx.x, query = blockIdx.x * 32 + row;
    (void)T;
    float largest = -INFINITY, sum = 0.0f, weighted = 0.0f;
    queries[row][lane] = qkv[query * 3 * HEAD + lane];
    for (int key = 0; key <= (int)blockIdx.x * 32; key += 32) {
        __syncthreads(); // all warps have read the previous tile
        keys[row][lane] = qkv[(key + row) * 3 * HEAD + HEAD + lane];
        values[row][lane] = qkv[(key + row) * 3 * HEAD + 2 * HEAD + lane];
        __syncthreads();
        float score = 0.0f, before = largest;
        for (int d = 0; d < HEAD; d++) { score += queries[row][d] * keys[lane][d]; }
        score = key + lane <= query ? SCALE_OF_HEAD * score : -INFINITY;
        largest = fmaxf(before, warp_max(score));
        float p = expf(score - largest), correction = expf(before - largest);
        weights[row][lane] = p;
        sum = sum * correction + warp_sum(p);
        weighted *= correction;
        __syncwarp();
        for (int j = 0; j < 32; j++) { weighted += weights[row][j] * values[j][lane]; }
    }
    out[query * HEAD + lane] = weighted / sum;
    if (lane == 0) { lse[query] = largest + logf(sum); }
}

static __global__ void attention_dq(float *dq, const float *dout, const float *qkv, const float *lse,
                                    const float *delta, int T) {
    __shared__ float queries[32][HEAD], grads[32][HEAD], keys[32][HEAD + 1], values[32][HEAD + 1], ds[32][32];
    int row = threadIdx.y, lane = threadIdx.x, query = blockIdx.x * 32 + row;
    (void)T;
    float lse_of_row = lse[query], delta_of_row = delta[query], sum = 0.0f;
    queries[row][lane] = qkv[query * 3 * HEAD + lane];
    grads[row][lane] = dout[query * HEAD + lane];
    for (int key = 0; key <= (int)blockIdx.x * 32; key += 32) {
        __syncthreads(); // all warps have read the previous tile
        keys[row][lane] = qkv[(key + row) * 3 * HEAD + HEAD + lane];
        values[row][lane] = qkv[(key + row) * 3 * HEAD + 2 * HEAD + lane];
        __syncthreads();
        float score = 0.0f, dp = 0.0f;
        for (int d = 0; d < HEAD; d++) {
            score += queries[row][d] * keys[lane][d];
            dp += grads[row][d] * values[lane][d];
        }
        float p = key + lane <= query ? expf(SCALE_OF_HEAD * score - lse_of_row) : 0.0f;
        ds[row][lane] = p * (dp - delta_of_row);
        __syncwarp();
        for (int j = 0; j < 32; j++) { sum += ds[row][j] * keys[j][lane]; }
    }
    dq[query * HEAD + lane] = SCALE_OF_HEAD * sum;
}
