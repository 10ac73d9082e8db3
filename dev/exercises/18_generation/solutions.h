// Solutions of the exercises of chapter 18.

// A token is out if k others go before it. Its logit becomes -inf, so its probability becomes 0.
static int top_k_token(const float *logits, int V, int k, float temperature, double uniform) {
    float kept[64], probs[64];
    for (int i = 0; i < V; i++) {
        int before = 0;
        for (int j = 0; j < V; j++) { before += logits[j] > logits[i] || (logits[j] == logits[i] && j < i); }
        kept[i] = before < k ? logits[i] : -INFINITY;
    }
    return sample_token(kept, V, temperature, 1.0f, uniform, probs);
}

// The online softmax of chapter 15, with one key at a time.
static void attend_new_token(float *out, float *keys, float *values, const float *qkv, int position, int NH, int HS) {
    int C = NH * HS;
    memcpy(keys + position * C, qkv + C, (size_t)C * sizeof(float));
    memcpy(values + position * C, qkv + 2 * C, (size_t)C * sizeof(float));
    for (int h = 0; h < NH; h++) {
        const float *q = qkv + h * HS;
        float *o = out + h * HS, m = -INFINITY, l = 0.0f;
        for (int c = 0; c < HS; c++) { o[c] = 0.0f; }
        for (int j = 0; j <= position; j++) {
            float score = 0.0f;
            for (int c = 0; c < HS; c++) { score += q[c] * keys[j * C + h * HS + c]; }
            score /= sqrtf((float)HS);
            float most = fmaxf(m, score), old = expf(m - most), p = expf(score - most);
            for (int c = 0; c < HS; c++) { o[c] = o[c] * old + p * values[j * C + h * HS + c]; }
            l = l * old + p, m = most;
        }
        for (int c = 0; c < HS; c++) { o[c] /= l; }
    }
}

static int pick_by_bytes(const float *losses, int n, int T, int context, const int *lengths, const int *bytes) {
    int best = 0;
    double lowest = INFINITY;
    for (int i = 0; i < n; i++) {
        double sum = 0.0;
        for (int t = context - 1; t < context - 1 + lengths[i]; t++) { sum += (double)losses[i * T + t]; }
        if (sum / bytes[i] < lowest) { lowest = sum / bytes[i], best = i; }
    }
    return best;
}
