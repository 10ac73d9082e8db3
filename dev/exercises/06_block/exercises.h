// Exercises of chapter 6, the block. Write the bodies; `make chapter-6` says which are right.

// 6.1 The exact GELU, as BERT has it: gelu(x) = x/2 (1 + erf(x / sqrt(2))). The derivative of erf(y) is
// 2 / sqrt(pi) exp(-y^2). Write dinp (n) = gelu'(inp) dout. erff is in math.h. sqrt(2 pi) is 2.50662827.
static void exact_gelu_backward(float *dinp, const float *inp, const float *dout, int n) {
    (void)inp, (void)dout;
    for (int i = 0; i < n; i++) { dinp[i] = 0.0f; }
}

// 6.2 The number of parameters of a GPT-2 with L layers, C channels, V tokens and maxT positions, without padding. The
// head has none of its own. `./train_gpt2 --plan all` lists the tensors and their shapes.
static int64_t parameters(int64_t L, int64_t C, int64_t V, int64_t maxT) {
    (void)L, (void)C, (void)V, (void)maxT;
    return 0;
}

// 6.3 The backward of out = mid + gelu(ln2(mid) fcw^T) fcprojw^T, see Mlp in chapter.c. dresidual (N,C) holds the
// gradient of out; leave the gradient of mid there. Use cpu_matmul_backward, cpu_gelu_backward and
// cpu_layernorm_backward of dev/test/layers/oracle.h. The gradients of biases may be NULL.
static void mlp_backward(float *dresidual, const Mlp *m) { (void)dresidual, (void)m; }
