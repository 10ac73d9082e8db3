// Solutions of the exercises of chapter 7.

static void z_loss(float *loss, float *gradient, const float *logits, int target, int V, float a) {
    float max = logits[0], sum = 0.0f;
    for (int v = 1; v < V; v++) { max = fmaxf(max, logits[v]); }
    for (int v = 0; v < V; v++) { sum += expf(logits[v] - max); }
    float lse = max + logf(sum);
    *loss = lse - logits[target] + a * lse * lse;
    for (int v = 0; v < V; v++) { gradient[v] = (1.0f + 2.0f * a * lse) * expf(logits[v] - lse); }
    gradient[target] -= 1.0f;
}

static void head_in_chunks(float *losses, float *dlnf, float *dwte, float *logits, const float *lnf, const float *wte,
                           const int32_t *targets, int N, int C, int V, int chunk) {
    for (int row = 0; row < N; row += chunk) {
        int rows = row + chunk < N ? chunk : N - row;
        cpu_matmul_forward(logits, NULL, lnf + row * C, wte, NULL, rows, C, V);
        cpu_cross_entropy(losses + row, logits, targets + row, rows, V, V, 1.0f / (float)N, true);
        cpu_matmul_backward(dlnf + row * C, dwte, NULL, logits, lnf + row * C, wte, rows, C, V);
    }
}

static float join_states(const float *max, const float *sum, int n, float target_logit) {
    float largest = max[0], total = 0.0f;
    for (int k = 1; k < n; k++) { largest = fmaxf(largest, max[k]); }
    for (int k = 0; k < n; k++) { total += sum[k] * expf(max[k] - largest); }
    return logf(total) + largest - target_logit;
}
