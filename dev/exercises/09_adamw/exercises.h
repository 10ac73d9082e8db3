// Exercises of chapter 9, AdamW. Write the bodies; `make chapter-9` says which are right.

// 9.1 One AdamW update of n weights w, by the formula of the chapter. m and v are the moments, grad the gradients.
// update is t, the number of this update, from 1. All n weights decay.
static void adamw_update(float *w, float *m, float *v, const float *grad, int n, float lr, float beta1, float beta2,
                         float epsilon, float decay, int update) {
    (void)m, (void)v, (void)beta1, (void)beta2, (void)epsilon, (void)decay, (void)update;
    for (int i = 0; i < n; i++) { w[i] -= lr * grad[i]; }
}

// 9.2 The factor that clips a gradient by its global norm. The gradient consists of `count` tensors; tensor i has
// sizes[i] numbers. Returns the number that all tensors are multiplied by: 1 if the norm is at most max_norm.
static float clip_scale(const float *const *tensors, const int *sizes, int count, float max_norm) {
    (void)tensors, (void)sizes, (void)count, (void)max_norm;
    return 1.0f;
}

// 9.3 The schedule of the first transformer (Vaswani et al. 2017), with an end. The rate rises to `peak` as in
// schedule_lr: step i (from 0) of the warm-up has (i + 1) / warmup of the peak. Then it falls like one over the square
// root of the number of the step: step i has sqrt(warmup / (i + 1)) of the peak. From step `decay` on it falls in a
// straight line instead: from the rate of step decay - 1, which step `decay` has too, towards 0 at step `total`.
static float inverse_sqrt_lr(float peak, int64_t warmup, int64_t decay, int64_t total, int64_t step) {
    (void)warmup, (void)decay, (void)total, (void)step;
    return peak;
}
