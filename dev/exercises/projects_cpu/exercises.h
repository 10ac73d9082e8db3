// Projects 1, 5 and 7 of doc/projects.md. Write the bodies; `make projects` says which are right.

// ---- Project 1: the backward of a block ----

// The block is at the top of chapter.c: its sizes, BlockWeights, BlockActs and block_forward.
//
// Writes dx (ROWS,CHANNELS), and adds the gradients of the weights to dw. The backward of each layer is declared in
// dev/test/layers/oracle.h. Those of LayerNorm and attention add to their first argument, the others overwrite it.
static void block_backward(float *dx, BlockWeights *dw, const float *dout, const float *x, const BlockWeights *w,
                           const BlockActs *a) {
    (void)dw, (void)dout, (void)x, (void)w, (void)a;
    for (int i = 0; i < ROWS * CHANNELS; i++) { dx[i] = 0.0f; }
}

// ---- Project 5: rotary positions ----

// Writes table (T,HS/2,2): cosine and sine of the angle t * theta^(-2j/HS), which turns pair j at position t.
static void rope_table(float *table, int T, int HS, double theta) {
    (void)theta;
    for (int i = 0; i < T * HS; i++) { table[i] = 0.0f; }
}

// Turns the queries and keys of qkv (N,(NH+2KV)*HS) in place. A row has NH heads of queries, KV heads of keys, and KV
// heads of values, each of HS numbers. Row i stands at position i % T. Pair j of a head is its numbers j and j + HS/2.
static void rope_forward(float *qkv, const float *table, int N, int T, int NH, int KV, int HS) {
    (void)qkv, (void)table, (void)N, (void)T, (void)NH, (void)KV, (void)HS;
}

// Turns the gradient of the forward's result into the gradient of its input, in place.
static void rope_backward(float *dqkv, const float *table, int N, int T, int NH, int KV, int HS) {
    (void)dqkv, (void)table, (void)N, (void)T, (void)NH, (void)KV, (void)HS;
}

// ---- Project 7: a pipeline ----

// An entry of a stage's list is a StageWork: see chapter.c.
//
// Writes the work of a stage for a step of so many micro-batches in the order 1F1B, and returns the number of entries,
// at most 6 * micro_batches. A stage keeps the activations of at most stages - stage micro-batches at once. The body
// below does all forwards first.
static int stage_work(StageWork *work, int stages, int stage, int micro_batches) {
    int n = 0;
    for (int k = 0; k < 2 * micro_batches; k++) {
        bool backward = k >= micro_batches;
        for (int a = backward ? PIPE_GET_GRAD : PIPE_GET_INPUT; a <= (backward ? PIPE_PUT_GRAD : PIPE_PUT_OUTPUT);
             a++) {
            int peer = stage + pipe_way[a];
            StageWork one = {(PipeAction)a, k % micro_batches, false};
            if (peer >= 0 && peer < stages) { work[n++] = one; }
        }
    }
    return n;
}
