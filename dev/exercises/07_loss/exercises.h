// Exercises of chapter 7, the loss and the head. Write the bodies; `make chapter-7` says which are right.

// 7.1 The cross entropy does not care if all logits of a row drift up together, but bf16 does: it has 8 bits. The
// z-loss (PaLM, 2022) holds their lse near 0: loss = lse - logits[target] + a lse^2, where lse is the logarithm of the
// sum of exp(logits). Write the loss of one row and its gradient over the logits (V). The logits may be near 100.
static void z_loss(float *loss, float *gradient, const float *logits, int target, int V, float a) {
    (void)logits, (void)target, (void)a;
    *loss = 0.0f;
    for (int v = 0; v < V; v++) { gradient[v] = 0.0f; }
}

// 7.2 The head without the logits of all rows. lnf (N,C), wte (V,C), targets (N). Write losses and dlnf (N,C), and add
// to dwte (V,C), as if dloss were 1/N. logits has room for `chunk` rows of V numbers, and no more may be written. Use
// cpu_matmul_forward, cpu_cross_entropy (with Vp = V) and cpu_matmul_backward of dev/test/layers/oracle.h for each
// chunk. They take NULL for a bias, its gradient and a residual. The last chunk may be shorter.
static void head_in_chunks(float *losses, float *dlnf, float *dwte, float *logits, const float *lnf, const float *wte,
                           const int32_t *targets, int N, int C, int V, int chunk) {
    (void)losses, (void)dlnf, (void)dwte, (void)logits, (void)lnf, (void)wte, (void)targets;
    (void)N, (void)C, (void)V, (void)chunk;
}

// 7.3 On the GPU several threads share a row of logits. Thread k knows the largest of its own logits, max[k], and the
// sum of exp(logit - max[k]) over them. A thread without logits has max -FLT_MAX and sum 0. Join n of them to the loss
// of the row, lse - target_logit. The logits may be near 200 or -200.
static float join_states(const float *max, const float *sum, int n, float target_logit) {
    (void)max, (void)sum, (void)n, (void)target_logit;
    return 0.0f;
}
