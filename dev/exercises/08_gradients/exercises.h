// Exercises of chapter 8, checking gradients. Write the bodies; `make chapter-8` says which are right.

// 8.1 The gradient (n) of a function f of n numbers x, by central differences. You choose the step. x must be at the
// end what it was at the beginning, to the bit. The values of f are near 100, and its third derivatives near 1.
static void numeric_gradient(double *gradient, double (*f)(const double *x, int n), double *x, int n) {
    (void)f, (void)x;
    for (int i = 0; i < n; i++) { gradient[i] = 0.0; }
}

// 8.2 Tells whether got (n) is want (n) up to rounding, if each value is a sum of K terms: every difference is at most
// K * FLT_EPSILON times the largest |want|. A NaN or an infinity anywhere, in got or in want, is never close. The body
// below has the fault that many test suites have.
static bool is_close(const float *got, const float *want, int n, int K) {
    float largest = 0.0f;
    for (int i = 0; i < n; i++) { largest = fmaxf(largest, fabsf(want[i])); }
    for (int i = 0; i < n; i++) {
        if (fabsf(got[i] - want[i]) > (float)K * FLT_EPSILON * largest) { return false; }
    }
    return true;
}

// 8.3 A sum whose bits do not depend on the number of threads. This is the work of thread number `thread` of `threads`.
// Each number of x (n) must be added to one of the sums, which are 0 before the first thread runs. Afterwards somebody
// adds sums[0] + sums[1] + ... in this order. sums has room for n numbers. The body below gives other bits on 2 threads
// than on 1. Hint: cut x in blocks of a fixed size.
static void partial_sums(float *sums, const float *x, int n, int thread, int threads) {
    int begin = n * thread / threads, end = n * (thread + 1) / threads;
    for (int i = begin; i < end; i++) { sums[thread] += x[i]; }
}
