// Exercises of chapter 3, LayerNorm. Write the bodies; `make chapter-3` says which are right.

// 3.1 RMSNorm (Zhang, Sennrich 2019) leaves out the mean: out = x / sqrt(sum(x^2) / C + epsilon) * weight.
// x, weight, out (C).
static void rms_norm(float *out, const float *x, const float *weight, int C, float epsilon) {
    (void)x, (void)weight, (void)epsilon;
    for (int c = 0; c < C; c++) { out[c] = 0.0f; }
}

// 3.2 The gradient of a row's input, by the formula of the chapter: dx = rstd (g - mean(g) - n mean(g n)).
// dx, dout, x, weight (C); mean and rstd are those of x.
static void row_gradient(float *dx, const float *dout, const float *x, const float *weight, float mean, float rstd,
                         int C) {
    (void)dout, (void)x, (void)weight, (void)mean, (void)rstd;
    for (int c = 0; c < C; c++) { dx[c] = 0.0f; }
}

// 3.3 The mean and the variance of x (C) in one pass, in float, reading each number once: as if the numbers came one by
// one. The body below fails: sum(x^2) / C - mean^2 loses all digits when the mean is far from zero. Keep the mean of
// the numbers so far, and the sum of their squared distances from it. How do both change when the n-th number comes?
static void mean_and_variance(float *mean, float *variance, const float *x, int C) {
    float sum = 0.0f, squares = 0.0f;
    for (int c = 0; c < C; c++) { sum += x[c], squares += x[c] * x[c]; }
    *mean = sum / (float)C;
    *variance = squares / (float)C - *mean * *mean;
}
