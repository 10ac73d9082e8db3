// Solutions of the exercises of chapter 5.

static void online_attention(float *out, float *lse, const float *q, const float *k, const float *v, int n, int HS) {
    float largest = -INFINITY, sum = 0.0f;
    for (int d = 0; d < HS; d++) { out[d] = 0.0f; }
    for (int j = 0; j < n; j++) {
        float score = 0.0f;
        for (int d = 0; d < HS; d++) { score += q[d] * k[j * HS + d]; }
        score /= sqrtf((float)HS);
        float before = largest;
        largest = fmaxf(largest, score);
        float correction = expf(before - largest), weight = expf(score - largest);
        sum = sum * correction + weight;
        for (int d = 0; d < HS; d++) { out[d] = out[d] * correction + weight * v[j * HS + d]; }
    }
    for (int d = 0; d < HS; d++) { out[d] /= sum; }
    *lse = largest + logf(sum);
}

static void key_gradient(float *dk, float *dv, int j, const float *q, const float *k, const float *v, const float *out,
                         const float *dout, const float *lse, int T, int HS) {
    float scale = 1.0f / sqrtf((float)HS);
    for (int d = 0; d < HS; d++) { dk[d] = dv[d] = 0.0f; }
    for (int i = j; i < T; i++) {
        float score = 0.0f, dp = 0.0f, delta = 0.0f;
        for (int d = 0; d < HS; d++) {
            score += q[i * HS + d] * k[j * HS + d];
            dp += dout[i * HS + d] * v[j * HS + d];
            delta += dout[i * HS + d] * out[i * HS + d];
        }
        float p = expf(scale * score - lse[i]), ds = p * (dp - delta);
        for (int d = 0; d < HS; d++) {
            dk[d] += scale * ds * q[i * HS + d];
            dv[d] += p * dout[i * HS + d];
        }
    }
}

static int64_t key_value_bytes(int T, int rows, int HS) {
    int64_t keys = 0;
    for (int first = 0; first < T; first += rows) { keys += first + rows < T ? first + rows : T; }
    return keys * HS * 2 * 2; // a key and a value, 2 bytes a number
}
