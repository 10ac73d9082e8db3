// Exercises of chapter 19, reproducing GPT-2. Write the bodies; `make chapter-19` says which are right.

// 19.1 A cluster is yours for some hours. Hoffmann et al. 2022 ("Chinchilla") found that a budget of FLOPs gives the
// lowest loss with about 20 tokens for each parameter. Count 6 FLOPs for each parameter and token. Each GPU reaches the
// part `mfu` of `teraflops` (1e12 FLOPs a second). Writes the parameters of the model and the tokens that use up the
// budget.
static void compute_optimal(double hours, int gpus, double teraflops, double mfu, double *parameters, double *tokens) {
    (void)hours, (void)gpus, (void)teraflops, (void)mfu;
    *parameters = 1e9, *tokens = 20e9;
}

// 19.2 Losses of models with different tokenizers cannot be compared: a token that stands for more bytes is harder to
// guess. Bits for each byte of the text can be. losses (n): nats, one for each token. lengths (n): bytes of each token.
static double bits_per_byte(const float *losses, const int *lengths, int n) {
    double sum = 0.0;
    (void)lengths;
    for (int i = 0; i < n; i++) { sum += (double)losses[i]; }
    return sum / n;
}

// 19.3 The loss jumps at a step, and you want to read the text of that step. Find where a sequence (from 0, counted
// from the beginning of the run) begins, without --shuffle. tokens (num_shards): the tokens of each shard. A sequence
// has T inputs and T targets, which are the inputs shifted by one. So it reads T + 1 tokens, and the next one begins T
// tokens later. A sequence never crosses from one shard into another. After the last shard the first one begins again.
// Writes the shard, and the number of the sequence's first token in it.
static void find_text(int64_t sequence, int T, const int64_t *tokens, int num_shards, int *shard, int64_t *first) {
    (void)sequence, (void)T, (void)tokens, (void)num_shards;
    *shard = 0, *first = 0;
}
