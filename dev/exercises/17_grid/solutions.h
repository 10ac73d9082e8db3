// Solutions of the exercises of chapter 17.

typedef struct {
    bool backward;
    int micro_batch;
} StagePass;

// Backward i follows `behind` forwards later than its own.
static void one_forward_one_backward(StagePass *order, int stages, int stage, int micro_batches) {
    int behind = stages - 1 - stage, n = 0;
    for (int k = 0; k < micro_batches + behind; k++) {
        if (k < micro_batches) { order[n].backward = false, order[n++].micro_batch = k; }
        if (k >= behind) { order[n].backward = true, order[n++].micro_batch = k - behind; }
    }
}

static void columns_of_rank(float *v_r, const float *v, int r, int R, int C, int F) {
    int width = F / R;
    for (int c = 0; c < C; c++) {
        for (int i = 0; i < width; i++) { v_r[c * width + i] = v[c * F + r * width + i]; }
    }
}

static const float *bias_of_rank(const float *bias, int r) { return r == 0 ? bias : NULL; }

// An output is a sum over all F channels, and x goes into all of them.
static void combine_parts(float *sum, const float *parts, int R, int n) {
    for (int i = 0; i < n; i++) {
        sum[i] = 0.0f;
        for (int r = 0; r < R; r++) { sum[i] += parts[r * n + i]; }
    }
}

typedef struct {
    float max, sum, value;
} SoftmaxPart;

// e^(s - max) of a part becomes e^(s - both.max) by the factor e^(max - both.max). Without scores there is no maximum.
static SoftmaxPart merge_parts(SoftmaxPart a, SoftmaxPart b) {
    if (a.sum == 0.0f) { return b; }
    if (b.sum == 0.0f) { return a; }
    float max = fmaxf(a.max, b.max), of_a = expf(a.max - max), of_b = expf(b.max - max);
    SoftmaxPart both = {max, a.sum * of_a + b.sum * of_b, a.value * of_a + b.value * of_b};
    return both;
}

// 17.4, on paper. All rows but -np 1 and -np 8 -z 1 fit. A pipeline sends least, but with 16 micro-batches each stage
// is idle for 7/23 of a step. With -r 3 instead of -r 0, -np 8 -z 1 takes 61.4 GiB and sends 42.2 GB: no other axis is
// needed. With 131,072 tokens one sequence is too much for -z 3, and a pipeline keeps eight of them in its first stage.
// tp fits, but its links take 8.7 s beside 19.6 s of arithmetic at the peak (1.94e16 operations). cp fits, and its
// links take 1.4 s: we take --cp 8 -z 1.
