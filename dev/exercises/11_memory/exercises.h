// Exercises of chapter 11, memory. Write the bodies; `make chapter-11` says which are right.

// 11.1 The bytes that a further layer takes for each token, by the formulas of the chapter: C channels, NH heads,
// `width` bytes for a number of type floatX (4 or 2), level 0 to 3 of --recompute. The row `residual` counts: each
// layer has an input.
static int64_t layer_bytes(int C, int NH, int width, int level) {
    (void)C, (void)NH, (void)width, (void)level;
    return 0;
}

// 11.2 A buffer of so many bytes, which lives from phase `first` to phase `last`, both included.
typedef struct {
    int64_t bytes;
    int first, last;
} Lifetime;

// Returns the least memory that `count` buffers need, however they are placed: in each phase, all buffers that live in
// it must have room side by side. There are at most 64 phases, from 0 on. The body below shares nothing.
static int64_t live_peak(const Lifetime *rows, int count) {
    int64_t sum = 0;
    for (int i = 0; i < count; i++) { sum += rows[i].bytes; }
    return sum;
}

// 11.3 Recompute in segments (Chen, Xu, Zhang, Guestrin 2016): keep the inputs of layers 0, k, 2k, ... only. The
// backward computes a segment of k layers again from its input, and then holds the activations of k layers. So L
// layers take ceil(L / k) * boundary + k * layer bytes: boundary for a kept input, layer for the activations of a
// layer. Returns the k from 1 to L that takes the fewest bytes, the smallest one if several do.
static int best_segment(int L, int64_t boundary, int64_t layer) {
    (void)boundary, (void)layer;
    return L;
}
