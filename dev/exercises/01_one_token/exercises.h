// Exercises of chapter 1, one token through a step. Write the bodies; `make chapter-1` says which are right.

// 1.1 A model writes by guessing one token after another. text holds n tokens, with room for `total`. logits(text, n)
// returns the logits (V) of the token that follows the first n tokens. Append the token with the largest logit, the
// lowest of equals, until there are `total` tokens.
static void write_greedily(int *text, int n, int total, const float *(*logits)(const int *text, int n), int V) {
    (void)logits, (void)V;
    for (; n < total; n++) { text[n] = 0; }
}

// 1.2 The gradient of a step over several micro-batches, each of `rows` rows. add(gradient, i, dloss) adds dloss times
// the sum of the gradients of the losses of micro-batch i's rows. Leave the gradient of the mean loss of all rows of
// the step in gradient (n). It holds old numbers when you get it.
static void gradient_of_step(float *gradient, int n, int micro_batches, int rows,
                             void (*add)(float *gradient, int micro_batch, float dloss)) {
    (void)micro_batches, (void)rows, (void)add;
    for (int i = 0; i < n; i++) { gradient[i] = 0.0f; }
}

// 1.3 Which part of a machine's peak (operations a second) does a run use? Training takes 6 operations a token for each
// weight of a matrix multiply: those of L blocks and the head with V tokens. Attention takes 6 L C T more. Biases,
// LayerNorms and the lookups of wte and wpe do not count.
static double utilisation(int L, int C, int V, int T, double tokens_per_second, double peak) {
    (void)L, (void)C, (void)V, (void)T, (void)tokens_per_second, (void)peak;
    return 0.0;
}
