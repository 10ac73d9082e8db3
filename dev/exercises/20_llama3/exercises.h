// Exercises of chapter 20, Llama 3. Write the bodies; `make chapter-20` says which are right.

// 20.1 The backward of RoPE for one head at one position, in place: dx (HS) holds the gradient of the rotated numbers
// and becomes the gradient of the numbers before. angles (HS/2,2): cosine and sine of each pair j and j + HS/2.
static void rope_head_backward(float *dx, const float *angles, int HS) { (void)dx, (void)angles, (void)HS; }

// 20.2 The backward of RMSNorm for one row: out = n * weight, n = x * rstd, rstd = 1/sqrt(sum(x^2)/C + epsilon).
// Writes dx (C) and dweight (C). The body below is right where rstd is a constant.
static void rmsnorm_row_backward(float *dx, float *dweight, const float *dout, const float *x, float rstd,
                                 const float *weight, int C) {
    for (int c = 0; c < C; c++) {
        dx[c] = rstd * weight[c] * dout[c];
        dweight[c] = dout[c] * x[c] * rstd;
    }
}

// Grouped-query attention: NH heads of queries share KV heads of keys and values, so that heads 0 .. NH/KV - 1 use the
// first of them, and so on. grouped (rows, (NH+2KV)*HS) holds q, k, v of a row side by side. This forward makes qkv
// (rows, 3*NH*HS) of it, as the attention of GPT-2 wants it: each head has a copy of the k and v that it uses.
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

// 20.3 The backward of copy_heads: dgrouped += the gradient that follows from dqkv. The body below gives k and v the
// gradient of one head only.
static void copy_heads_backward(float *dgrouped, const float *dqkv, int rows, int NH, int KV, int HS) {
    int C = NH * HS, width = C + 2 * KV * HS;
    for (int row = 0; row < rows; row++) {
        float *dq = dgrouped + row * width;
        for (int c = 0; c < width; c++) { dq[c] += dqkv[row * 3 * C + c]; }
    }
}
