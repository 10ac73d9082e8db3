// Exercises of chapter 12, matrix multiply on the CPU. Write the bodies; `make chapter-12` says which are right.

// 12.1 The order of a multiply, C = A B of SIZE x SIZE numbers (32). Call multiply_add(i, j, k), which adds A[i][k]
// B[k][j] to C[i][j], once for each i, j and k. The order is yours: at most 400 lines may come from memory, through the
// cache of the chapter's example (24 lines of 16 numbers). The body below is step 1 of the ladder.
static void in_good_order(void (*multiply_add)(int i, int j, int k)) {
    for (int i = 0; i < SIZE; i++) {
        for (int j = 0; j < SIZE; j++) {
            for (int k = 0; k < SIZE; k++) { multiply_add(i, j, k); }
        }
    }
}

// 12.2 Packs a panel of A for step 5. Row i of the panel begins at from + i * stride. It has `depth` numbers. The
// tile's loop needs number k of all `width` rows side by side: number k of row i goes to to[k * width + i]. At the end
// of A fewer rows are left: only `rows` of them exist. The missing rows become 0, so that the tile needs no special
// case.
static void pack_rows(float *to, int width, const float *from, int64_t stride, int rows, int depth) {
    (void)stride, (void)rows;
    for (int i = 0; i < width * depth; i++) { to[i] = from[0]; }
}

// 12.3 A tile of `rows` x `vectors` sums stays in registers. For one k it needs `vectors` registers of B and one
// register that holds each number of A in turn. So it loads rows + vectors times for rows * vectors multiply-adds.
// Finds the tile with the fewest loads for each multiply-add among those that fit in so many registers.
static void best_tile(int registers, int *rows, int *vectors) { *rows = registers - 2, *vectors = 1; }
