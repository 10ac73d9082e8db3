// Exercises of chapter 4, the linear layer. Write the bodies; `make chapter-4` says which are right.

// 4.1 The backward of out = inp weight^T + bias in plain loops: dinp = dout weight, dweight += dout^T inp, and dbias +=
// the sum of the rows of dout. inp, dinp (N, C); weight, dweight (OC, C); dout (N, OC); dbias (OC).
static void linear_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                            const float *weight, int N, int C, int OC) {
    (void)dweight, (void)dbias, (void)dout, (void)inp, (void)weight, (void)OC;
    for (int i = 0; i < N * C; i++) { dinp[i] = 0.0f; }
}

// 4.2 All three products call one multiply, which does not care how a matrix lies in memory. Element (i, j) of a View
// is data[i * row_stride + j * col_stride]. Write rows_view and transposed_view, for a matrix that lies by rows with
// `columns` numbers in each, and the multiply: C (M, N) = A (M, K) times B (K, N). C lies by rows.
typedef struct {
    const float *data;
    int row_stride, col_stride;
} View;

static View rows_view(const float *data, int columns) { return (View){data, columns, 0}; }

static View transposed_view(const float *data, int columns) { return (View){data, columns, 0}; }

static void multiply(float *C, View A, View B, int M, int N, int K) {
    (void)A, (void)B, (void)K;
    for (int i = 0; i < M * N; i++) { C[i] = 0.0f; }
}

// 4.3 What limits a linear layer? Its forward takes 2 N C OC operations, and moves each number of inp (N, C), weight
// (OC, C) and out (N, OC) once, in 2 bytes. A machine computes `peak` operations a second and moves `rate` bytes a
// second. Returns the fewest rows N for which the operations take at least as long as the bytes, or -1 if there are
// none, because even the longest layer moves too much.
static int64_t rows_to_be_busy(double C, double OC, double peak, double rate) {
    (void)C, (void)OC, (void)peak, (void)rate;
    return 0;
}
