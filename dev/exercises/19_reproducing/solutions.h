// Solutions of the exercises of chapter 19.

static void compute_optimal(double hours, int gpus, double teraflops, double mfu, double *parameters, double *tokens) {
    double flops = 3600.0 * hours * gpus * mfu * 1e12 * teraflops;
    *parameters = sqrt(flops / (6.0 * 20.0));
    *tokens = 20.0 * *parameters;
}

static double bits_per_byte(const float *losses, const int *lengths, int n) {
    double nats = 0.0, bytes = 0.0;
    for (int i = 0; i < n; i++) { nats += (double)losses[i], bytes += lengths[i]; }
    return nats / log(2.0) / bytes;
}

static void find_text(int64_t sequence, int T, const int64_t *tokens, int num_shards, int *shard, int64_t *first) {
    int64_t in_epoch = 0;
    for (int i = 0; i < num_shards; i++) { in_epoch += (tokens[i] - 1) / T; }
    sequence %= in_epoch;
    int i = 0;
    while (sequence >= (tokens[i] - 1) / T) {
        sequence -= (tokens[i] - 1) / T;
        i++;
    }
    *shard = i, *first = sequence * T;
}
