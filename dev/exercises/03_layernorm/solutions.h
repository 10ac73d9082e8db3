// Solutions of the exercises of chapter 3.

static void rms_norm(float *out, const float *x, const float *weight, int C, float epsilon) {
    float squares = 0.0f;
    for (int c = 0; c < C; c++) { squares += x[c] * x[c]; }
    float scale = 1.0f / sqrtf(squares / (float)C + epsilon);
    for (int c = 0; c < C; c++) { out[c] = x[c] * scale * weight[c]; }
}

static void row_gradient(float *dx, const float *dout, const float *x, const float *weight, float mean, float rstd,
                         int C) {
    float mean_g = 0.0f, mean_gn = 0.0f;
    for (int c = 0; c < C; c++) {
        float n = (x[c] - mean) * rstd, g = weight[c] * dout[c];
        mean_g += g / (float)C;
        mean_gn += g * n / (float)C;
    }
    for (int c = 0; c < C; c++) {
        float n = (x[c] - mean) * rstd, g = weight[c] * dout[c];
        dx[c] = rstd * (g - mean_g - n * mean_gn);
    }
}

static void mean_and_variance(float *mean, float *variance, const float *x, int C) {
    float m = 0.0f, squares = 0.0f;
    for (int c = 0; c < C; c++) {
        float before = x[c] - m;
        m += before / (float)(c + 1);
        squares += before * (x[c] - m);
    }
    *mean = m;
    *variance = squares / (float)C;
}
