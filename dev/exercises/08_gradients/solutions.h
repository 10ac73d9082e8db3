// Solutions of the exercises of chapter 8.

// A step of 1e-5 is near the best: the cube root of 3 * 1.1e-16 * 100 / 1 is 3.2e-5.
static void numeric_gradient(double *gradient, double (*f)(const double *x, int n), double *x, int n) {
    const double h = 1e-5;
    for (int i = 0; i < n; i++) {
        double before = x[i];
        x[i] = before + h;
        double above = f(x, n);
        x[i] = before - h;
        double below = f(x, n);
        x[i] = before;
        gradient[i] = (above - below) / (2.0 * h);
    }
}

// A comparison with a NaN is false, so the test asks for what must hold.
static bool is_close(const float *got, const float *want, int n, int K) {
    float largest = 0.0f;
    for (int i = 0; i < n; i++) { largest = fmaxf(largest, fabsf(want[i])); }
    bool close = isfinite(largest);
    for (int i = 0; i < n; i++) { close = close && fabsf(got[i] - want[i]) <= (float)K * FLT_EPSILON * largest; }
    return close;
}

static void partial_sums(float *sums, const float *x, int n, int thread, int threads) {
    const int block = 64;
    for (int b = thread; b * block < n; b += threads) {
        for (int i = b * block; i < n && i < (b + 1) * block; i++) { sums[b] += x[i]; }
    }
}
