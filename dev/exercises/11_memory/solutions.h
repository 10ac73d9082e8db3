// Solutions of the exercises of chapter 11.

// residual, ln1, qkv, att, residual_mid, ln2, fc, gelu; and att_lse and four statistics, which are always floats.
static int64_t layer_bytes(int C, int NH, int width, int level) {
    int64_t widths = 1 + 1 + 3 + 1 + 1 + 1 + 4 + 4, floats = NH + 4;
    if (level >= 1) { widths -= 4; }
    if (level >= 2) { widths -= 2; }
    if (level >= 3) { widths = 1, floats = 0; }
    return widths * C * width + 4 * floats;
}

typedef struct {
    int64_t bytes;
    int first, last;
} Lifetime;

static int64_t live_peak(const Lifetime *rows, int count) {
    int64_t peak = 0;
    for (int phase = 0; phase < 64; phase++) {
        int64_t live = 0;
        for (int i = 0; i < count; i++) { live += rows[i].first <= phase && phase <= rows[i].last ? rows[i].bytes : 0; }
        peak = live > peak ? live : peak;
    }
    return peak;
}

// Without rounding up, the best k is the square root of L boundary / layer.
static int best_segment(int L, int64_t boundary, int64_t layer) {
    int best = 1;
    int64_t least = INT64_MAX;
    for (int k = 1; k <= L; k++) {
        int64_t bytes = (L + k - 1) / k * boundary + k * layer;
        if (bytes < least) { least = bytes, best = k; }
    }
    return best;
}
