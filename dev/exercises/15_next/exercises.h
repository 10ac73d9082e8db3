// Exercises of chapter 15, what would come next. Write the bodies; `make chapter-15` says which are right.
#include <math.h>
#include <stdbool.h>
#include <string.h>

// 15.1 Rotary position embedding of one head's query or key x (HS), in place: pair i, x[2i] and x[2i+1], is turned by
// the angle position * 10000^(-2i / HS). With `backward`, x is the gradient of the turned numbers and becomes the
// gradient of the numbers before.
static void rope(float *x, int position, int HS, bool backward) { (void)x, (void)position, (void)HS, (void)backward; }

// 15.2 The backward of SwiGLU, out = silu(gate) * up with silu(x) = x / (1 + e^-x), for n numbers. Write dgate and dup.
static void swiglu_backward(float *dgate, float *dup, const float *dout, const float *gate, const float *up, int n) {
    for (int i = 0; i < n; i++) { dgate[i] = dout[i] * up[i], dup[i] = dout[i] * gate[i]; }
}

// Grouped-query attention: NH heads of queries share NKV heads of keys and values, so that heads 0 .. NH/NKV - 1 use
// the first of them, and so on. grouped (rows, NH*HS + 2*NKV*HS) holds q, k, v of a row side by side. This forward
// makes qkv (rows, 3*NH*HS) of it, as the attention of GPT-2 wants it: each head has a copy of the k and v that it
// uses.
static void share_heads(float *qkv, const float *grouped, int rows, int NH, int NKV, int HS) {
    int C = NH * HS, width = C + 2 * NKV * HS;
    for (int row = 0; row < rows; row++) {
        const float *q = grouped + row * width, *k = q + C, *v = k + NKV * HS;
        float *to = qkv + row * 3 * C;
        memcpy(to, q, (size_t)C * sizeof(float));
        for (int h = 0; h < NH; h++) {
            int shared = h / (NH / NKV);
            memcpy(to + C + h * HS, k + shared * HS, (size_t)HS * sizeof(float));
            memcpy(to + 2 * C + h * HS, v + shared * HS, (size_t)HS * sizeof(float));
        }
    }
}

// 15.3 The backward of share_heads: dgrouped += the gradient that follows from dqkv. The body below gives k and v the
// gradient of one head only.
static void share_heads_backward(float *dgrouped, const float *dqkv, int rows, int NH, int NKV, int HS) {
    int C = NH * HS, width = C + 2 * NKV * HS;
    for (int row = 0; row < rows; row++) {
        float *dq = dgrouped + row * width;
        for (int c = 0; c < width; c++) { dq[c] += dqkv[row * 3 * C + c]; }
    }
}
