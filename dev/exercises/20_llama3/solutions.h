// Solutions of the exercises of chapter 20.

// The matrix of a rotation, transposed, rotates back.
static void rope_head_backward(float *dx, const float *angles, int HS) {
    for (int j = 0; j < HS / 2; j++) {
        float cosine = angles[2 * j], sine = angles[2 * j + 1], a = dx[j], b = dx[j + HS / 2];
        dx[j] = a * cosine + b * sine;
        dx[j + HS / 2] = b * cosine - a * sine;
    }
}

// rstd falls by rstd^2 n[i] / C for each unit that x[i] grows, and all n[j] fall with it.
static void rmsnorm_row_backward(float *dx, float *dweight, const float *dout, const float *x, float rstd,
                                 const float *weight, int C) {
    float mean_gn = 0.0f;
    for (int c = 0; c < C; c++) { mean_gn += weight[c] * dout[c] * x[c] * rstd / (float)C; }
    for (int c = 0; c < C; c++) {
        float n = x[c] * rstd;
        dx[c] = rstd * (weight[c] * dout[c] - n * mean_gn);
        dweight[c] = dout[c] * n;
    }
}

static void copy_heads(float *qkv, const float *grouped, int rows, int NH, int KV, int HS) {
    int C = NH * HS, width = C + 2 * KV * HS;
    for (int row = 0; row < rows; row++) {
        const float *q = grouped + row * width, *k = q + C, *v = k + KV * HS;
        float *to = qkv + row * 3 * C;
        memcpy(to, q, (size_t)C * sizeof(float));
        for (int h = 0; h < NH; h++) {
            int shared = h / (NH / KV);
            memcpy(to + C + h * HS, k + shared * HS, (size_t)HS * sizeof(float));
            memcpy(to + 2 * C + h * HS, v + shared * HS, (size_t)HS * sizeof(float));
        }
    }
}

static void copy_heads_backward(float *dgrouped, const float *dqkv, int rows, int NH, int KV, int HS) {
    int C = NH * HS, width = C + 2 * KV * HS;
    for (int row = 0; row < rows; row++) {
        const float *from = dqkv + row * 3 * C;
        float *dq = dgrouped + row * width, *dk = dq + C, *dv = dk + KV * HS;
        for (int c = 0; c < C; c++) {
            int shared = c / HS / (NH / KV) * HS + c % HS;
            dq[c] += from[c];
            dk[shared] += from[C + c];
            dv[shared] += from[2 * C + c];
        }
    }
}
