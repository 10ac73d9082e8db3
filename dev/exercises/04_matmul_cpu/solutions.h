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

static void pack_rows(float *to, int width, const float *from, int64_t stride, int rows, int depth) {
    for (int k = 0; k < depth; k++) {
        for (int i = 0; i < width; i++) { to[k * width + i] = i < rows ? from[i * stride + k] : 0.0f; }
    }
}

static void best_tile(int registers, int *rows, int *vectors) {
    double least = 2.0; // loads for each multiply-add; a tile of one sum has 2
    *rows = 1, *vectors = 1;
    for (int v = 1; 2 * v + 1 <= registers; v++) {
        int r = (registers - v - 1) / v;
        double loads = (double)(r + v) / (r * v);
        if (loads < least) { least = loads, *rows = r, *vectors = v; }
    }
}
