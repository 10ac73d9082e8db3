// Solutions of the exercises of chapter 21.

// dp[e] is a dot product for a chosen expert and 0 for the others; then the softmax's gradient, p (dp - sum of p dp).
static void experts_backward(float *dlogits, float *douts, const float *dout, const float *p, const int *is_chosen,
                             const float *outs, int E, int C) {
    float sum = 0.0f;
    for (int e = 0; e < E; e++) {
        dlogits[e] = 0.0f; // dp at first
        for (int c = 0; c < C; c++) {
            douts[e * C + c] = is_chosen[e] ? p[e] * dout[c] : 0.0f;
            dlogits[e] += is_chosen[e] ? dout[c] * outs[e * C + c] : 0.0f;
        }
        sum += p[e] * dlogits[e];
    }
    for (int e = 0; e < E; e++) { dlogits[e] = p[e] * (dlogits[e] - sum); }
}

// A part has the weight of its sum of exponentials. The larger lse is subtracted first, so that nothing overflows.
static void join_parts(float *out, float *lse, const float *out1, float lse1, const float *out2, float lse2, int HS) {
    float most = fmaxf(lse1, lse2), weight1 = expf(lse1 - most), weight2 = expf(lse2 - most), sum = weight1 + weight2;
    for (int c = 0; c < HS; c++) { out[c] = (weight1 * out1[c] + weight2 * out2[c]) / sum; }
    *lse = most + logf(sum);
}

// With h = x A^T: dB = dy^T h, dh = dy B, dA = dh^T x.
static void lora_backward(float *dA, float *dB, const float *dy, const float *x, const float *A, const float *B, int N,
                          int C, int R, int OC) {
    for (int i = 0; i < R * C; i++) { dA[i] = 0.0f; }
    for (int i = 0; i < OC * R; i++) { dB[i] = 0.0f; }
    for (int n = 0; n < N; n++) {
        for (int r = 0; r < R; r++) {
            float h = 0.0f, dh = 0.0f;
            for (int c = 0; c < C; c++) { h += x[n * C + c] * A[r * C + c]; }
            for (int o = 0; o < OC; o++) {
                dB[o * R + r] += dy[n * OC + o] * h;
                dh += dy[n * OC + o] * B[o * R + r];
            }
            for (int c = 0; c < C; c++) { dA[r * C + c] += dh * x[n * C + c]; }
        }
    }
}
