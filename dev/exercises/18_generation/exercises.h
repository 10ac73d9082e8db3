// Exercises of chapter 18, generation. Write the bodies; `make chapter-18` says which are right.

// 18.1 Top-k: draws a token with `uniform` in [0, 1), as the chapter's draw does, but only from the k tokens with the
// largest logits, k from 1 to V. The lower id goes first on ties. logits (V), V at most 64, temperature above 0. The
// body below draws from all tokens.
static int top_k_token(const float *logits, int V, int k, float temperature, double uniform) {
    float probs[64];
    (void)k;
    return sample_token(logits, V, temperature, 1.0f, uniform, probs);
}

// 18.2 Attention of one new token at `position` (from 0), with a cache. qkv (3, NH, HS): its query, key and value.
// keys, values (T, NH, HS): the cache, which holds positions 0 .. position - 1. Adds the new key and value to it, and
// writes out (NH, HS). The body below looks at the new token only, and forgets it.
static void attend_new_token(float *out, float *keys, float *values, const float *qkv, int position, int NH, int HS) {
    (void)keys, (void)values, (void)position;
    for (int c = 0; c < NH * HS; c++) { out[c] = qkv[2 * NH * HS + c]; }
}

// 18.3 Returns the completion with the lowest loss for each byte of its text, the first of equals. losses (n, T): the
// losses of n sequences, each a context of `context` tokens (1 or more) and a completion of lengths[i] tokens behind
// it. losses[i * T + t] is the loss of token t + 1 of sequence i, which position t predicts. bytes (n): of the
// completions.
static int pick_by_bytes(const float *losses, int n, int T, int context, const int *lengths, const int *bytes) {
    (void)losses, (void)n, (void)T, (void)context, (void)lengths, (void)bytes;
    return 0;
}
