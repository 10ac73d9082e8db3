// Solutions of the exercises of chapter 1.

static void write_greedily(int *text, int n, int total, const float *(*logits)(const int *text, int n), int V) {
    for (; n < total; n++) {
        const float *row = logits(text, n);
        int best = 0;
        for (int i = 1; i < V; i++) {
            if (row[i] > row[best]) { best = i; }
        }
        text[n] = best;
    }
}

static void gradient_of_step(float *gradient, int n, int micro_batches, int rows,
                             void (*add)(float *gradient, int micro_batch, float dloss)) {
    for (int i = 0; i < n; i++) { gradient[i] = 0.0f; }
    for (int i = 0; i < micro_batches; i++) { add(gradient, i, 1.0f / (float)(micro_batches * rows)); }
}

static double utilisation(int L, int C, int V, int T, double tokens_per_second, double peak) {
    double weights = 12.0 * L * C * C + (double)V * C;
    return (6.0 * weights + 6.0 * L * C * (double)T) * tokens_per_second / peak;
}
