// Exercises of chapter 21, what would come next. Write the bodies; `make chapter-21` says which are right.

// 21.1 The backward of a mixture of experts for one token: out = sum over chosen e of p[e] outs[e], p = softmax(logits)
// over all E experts. Writes dlogits (E) and douts (E,C), of experts that were not chosen 0. is_chosen (E), dout (C),
// outs (E,C). The body below forgets that p[e] is a softmax.
static void experts_backward(float *dlogits, float *douts, const float *dout, const float *p, const int *is_chosen,
                             const float *outs, int E, int C) {
    for (int e = 0; e < E; e++) {
        dlogits[e] = 0.0f;
        for (int c = 0; c < C; c++) {
            douts[e * C + c] = is_chosen[e] ? p[e] * dout[c] : 0.0f;
            dlogits[e] += is_chosen[e] ? dout[c] * outs[e * C + c] : 0.0f;
        }
    }
}

// 21.2 Attention in two parts: a query met some keys on one GPU, and the rest on another. Each computed its part's
// output (HS) and lse, the logarithm of the sum of exponentials. Writes those of all keys. The body below takes the
// mean.
static void join_parts(float *out, float *lse, const float *out1, float lse1, const float *out2, float lse2, int HS) {
    for (int c = 0; c < HS; c++) { out[c] = 0.5f * (out1[c] + out2[c]); }
    *lse = 0.5f * (lse1 + lse2);
}

// 21.3 LoRA: y = x W^T + (x A^T) B^T for N rows, with x (N,C), A (R,C), B (OC,R), y (N,OC). W does not learn. Writes dA
// and dB. The gradient of x through W is the trainer's; this one is about A and B only.
static void lora_backward(float *dA, float *dB, const float *dy, const float *x, const float *A, const float *B, int N,
                          int C, int R, int OC) {
    (void)dy, (void)x, (void)A, (void)B, (void)N;
    for (int i = 0; i < R * C; i++) { dA[i] = 0.0f; }
    for (int i = 0; i < OC * R; i++) { dB[i] = 0.0f; }
}
