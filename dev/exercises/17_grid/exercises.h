// Exercises of chapter 17, the grid. Write the bodies; `make chapter-17` says which are right.

// What a stage of a pipeline computes: the forward or the backward of a micro-batch.
typedef struct {
    bool backward;
    int micro_batch;
} StagePass;

// 17.1 Writes the 2 * micro_batches passes of a stage in the order "1f1b": first a forward for each stage behind this
// one, if there are as many micro-batches, then a forward and a backward in turn, then the backwards left. The body
// below does all forwards first. It needs the memory of all micro-batches at once.
static void one_forward_one_backward(StagePass *order, int stages, int stage, int micro_batches) {
    (void)stages, (void)stage;
    for (int i = 0; i < micro_batches; i++) {
        order[i].backward = false, order[i].micro_batch = i;
        order[micro_batches + i].backward = true, order[micro_batches + i].micro_batch = i;
    }
}

// 17.2 An MLP out (N,C) = gelu(x w^T) v^T + bias, whose F channels R ranks share. Rank r has rows r * F/R .. of w
// (F,C), computes its channels of gelu(x w^T), multiplies them by its columns v_r of v, and adds the bias that it was
// handed. Its backward begins with dout and ends with its dx. Three functions say what the split is.
//
// Writes v_r (C,F/R), columns r * F/R .. of v (C,F). The body below takes elements as they lie in memory: not columns.
static void columns_of_rank(float *v_r, const float *v, int r, int R, int C, int F) {
    for (int i = 0; i < C * F / R; i++) { v_r[i] = v[r * C * F / R + i]; }
}

// Returns the bias that rank r is handed; NULL: none. The body below adds it once for each rank.
static const float *bias_of_rank(const float *bias, int r) {
    (void)r;
    return bias;
}

// Writes what every rank goes on with, sum (n), from the ranks' results, parts (R,n): from each out in the forward, and
// from each dx in the backward. The body below goes on with those of rank 0.
static void combine_parts(float *sum, const float *parts, int R, int n) {
    (void)R;
    for (int i = 0; i < n; i++) { sum[i] = parts[i]; }
}

// 17.3 A part of a softmax over scores s, each with a value v. A part without scores has {-INFINITY, 0, 0}.
typedef struct {
    float max;   // of s
    float sum;   // of e^(s - max)
    float value; // the sum of e^(s - max) * v
} SoftmaxPart;

// Returns the part that has the scores of both. No e^(positive number): it may be infinite. The body below is right
// where both have one maximum.
static SoftmaxPart merge_parts(SoftmaxPart a, SoftmaxPart b) {
    SoftmaxPart both = {fmaxf(a.max, b.max), a.sum + b.sum, a.value + b.value};
    return both;
}
