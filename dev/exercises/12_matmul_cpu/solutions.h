// Solutions of the exercises of chapter 12.

// A block of B of 16 rows and one line's columns stays in 16 of the 24 lines, while all rows of A and C pass by.
static void in_good_order(void (*multiply_add)(int i, int j, int k)) {
    for (int k0 = 0; k0 < SIZE; k0 += 16) {
        for (int j0 = 0; j0 < SIZE; j0 += 16) {
            for (int i = 0; i < SIZE; i++) {
                for (int k = k0; k < k0 + 16; k++) {
                    for (int j = j0; j < j0 + 16; j++) { multiply_add(i, j, k); }
                }
            }
        }
    }
}

static void pack_rows(float *to, int width, const float *from, int64_t stride, int rows, int depth) {
    for (int k = 0; k < depth; k++) {
        for (int i = 0; i < width; i++) { to[k * width + i] = i < rows ? from[i * stride + k] : 0.0f; }
    }
}

static void best_tile(int registers, int *rows, int *vectors) {
    double least = 2.0; // loads for each multiply-add; a tile of one sum has 2
    *rows = 1, *vectors = 1;
    for (int v = 1; 2 * v + 1 <= registers; v++) {
        int r = (registers - v - 1) / v;
        double loads = (double)(r + v) / (r * v);
        if (loads < least) { least = loads, *rows = r, *vectors = v; }
    }
}
