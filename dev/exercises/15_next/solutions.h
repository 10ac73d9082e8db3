// Solutions of the exercises of chapter 15.
#include <math.h>
#include <stdbool.h>
#include <string.h>

// The matrix of a turn, transposed, turns back.
static void rope(float *x, int position, int HS, bool backward) {
    for (int i = 0; i < HS / 2; i++) {
        float angle = (float)position * powf(10000.0f, -2.0f * (float)i / (float)HS);
        float cosine = cosf(angle), sine = backward ? -sinf(angle) : sinf(angle), a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine - b * sine;
        x[2 * i + 1] = a * sine + b * cosine;
    }
}

// With s = sigmoid(gate): silu' = s + gate s (1 - s).
static void swiglu_backward(float *dgate, float *dup, const float *dout, const float *gate, const float *up, int n) {
    for (int i = 0; i < n; i++) {
        float s = 1.0f / (1.0f + expf(-gate[i]));
        dup[i] = dout[i] * gate[i] * s;
        dgate[i] = dout[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
    }
}

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

static void share_heads_backward(float *dgrouped, const float *dqkv, int rows, int NH, int NKV, int HS) {
    int C = NH * HS, width = C + 2 * NKV * HS;
    for (int row = 0; row < rows; row++) {
        const float *from = dqkv + row * 3 * C;
        float *dq = dgrouped + row * width, *dk = dq + C, *dv = dk + NKV * HS;
        for (int c = 0; c < C; c++) {
            int shared = c / HS / (NH / NKV) * HS + c % HS;
            dq[c] += from[c];
            dk[shared] += from[C + c];
            dv[shared] += from[2 * C + c];
        }
    }
}
