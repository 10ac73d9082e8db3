// Solutions of the exercises of chapter 9.

static void adamw_update(float *w, float *m, float *v, const float *grad, int n, float lr, float beta1, float beta2,
                         float epsilon, float decay, int update) {
    float correction1 = (float)(1.0 / (1.0 - pow((double)beta1, update)));
    float correction2 = (float)(1.0 / (1.0 - pow((double)beta2, update)));
    for (int i = 0; i < n; i++) {
        m[i] = beta1 * m[i] + (1.0f - beta1) * grad[i];
        v[i] = beta2 * v[i] + (1.0f - beta2) * grad[i] * grad[i];
        w[i] -= lr * (correction1 * m[i] / (sqrtf(correction2 * v[i]) + epsilon) + decay * w[i]);
    }
}

static float clip_scale(const float *const *tensors, const int *sizes, int count, float max_norm) {
    double squares = 0.0;
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < sizes[i]; j++) { squares += (double)tensors[i][j] * (double)tensors[i][j]; }
    }
    double norm = sqrt(squares);
    return norm > (double)max_norm ? (float)((double)max_norm / norm) : 1.0f;
}

static float inverse_sqrt_lr(float peak, int64_t warmup, int64_t decay, int64_t total, int64_t step) {
    if (step < warmup) { return peak * (float)(step + 1) / (float)warmup; }
    if (step < decay) { return peak * sqrtf((float)warmup / (float)(step + 1)); }
    float last = peak * sqrtf((float)warmup / (float)decay);
    return last * (float)(total - step) / (float)(total - decay);
}
