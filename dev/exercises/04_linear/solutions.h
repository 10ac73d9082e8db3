// Solutions of the exercises of chapter 4.

static void linear_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                            const float *weight, int N, int C, int OC) {
    for (int n = 0; n < N; n++) {
        for (int c = 0; c < C; c++) { dinp[n * C + c] = 0.0f; }
        for (int o = 0; o < OC; o++) {
            float d = dout[n * OC + o];
            for (int c = 0; c < C; c++) {
                dinp[n * C + c] += d * weight[o * C + c];
                dweight[o * C + c] += d * inp[n * C + c];
            }
            dbias[o] += d;
        }
    }
}

typedef struct {
    const float *data;
    int row_stride, col_stride;
} View;

static View rows_view(const float *data, int columns) { return (View){data, columns, 1}; }

static View transposed_view(const float *data, int columns) { return (View){data, 1, columns}; }

static void multiply(float *C, View A, View B, int M, int N, int K) {
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            float sum = 0.0f;
            for (int k = 0; k < K; k++) {
                sum += A.data[i * A.row_stride + k * A.col_stride] * B.data[k * B.row_stride + j * B.col_stride];
            }
            C[i * N + j] = sum;
        }
    }
}

// 2 N C OC / peak >= 2 (N C + OC C + N OC) / rate, solved for N.
static int64_t rows_to_be_busy(double C, double OC, double peak, double rate) {
    double gain = C * OC * rate / peak - C - OC; // of a row: what its operations take longer than its bytes
    return gain > 0.0 ? (int64_t)ceil(OC * C / gain) : -1;
}
