// Exercises of chapter 0, the basics. Write the bodies; `make chapter-0` says which are right.

// 0.1 Element [i][j][k] of a tensor is x[i * strides[0] + j * strides[1] + k * strides[2]]. Write all elements to out,
// one behind the other, the last index fastest. PyTorch calls it contiguous(). A stride may be any number, also 0.
static void contiguous(float *out, const float *x, const int shape[3], const int strides[3]) {
    (void)x, (void)strides;
    for (int i = 0; i < shape[0] * shape[1] * shape[2]; i++) { out[i] = 0.0f; }
}

// 0.2 y = x + a tanh(b x) is a layer with a residual, and the loss is y^2 / 2. Write the three gradients of the loss.
// The slope of tanh(z) is 1 - tanh(z)^2.
static void residual_backward(double *dx, double *da, double *db, double x, double a, double b) {
    (void)x, (void)a, (void)b;
    *dx = *da = *db = 0.0;
}

// 0.3 Attention without q and k. Row t of out (T, C) is the average of rows 0 to t of values (T, C). Their weights are
// the softmax of row t of scores (T, T). A score may be 200. out holds old numbers when you get it.
static void attend(float *out, const float *scores, const float *values, int T, int C) {
    (void)scores, (void)values;
    for (int i = 0; i < T * C; i++) { out[i] = 0.0f; }
}
