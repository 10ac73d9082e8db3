// Exercises of chapter 4, matrix multiply on the CPU. Write the bodies; `make chapter-4` says which are right.

// 4.1 The backward of out = inp weight^T + bias in plain loops: dinp = dout weight, dweight += dout^T inp, and dbias +=
// the sum of the rows of dout. inp, dinp (N, C); weight, dweight (OC, C); dout (N, OC); dbias (OC).
static void linear_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                            const float *weight, int N, int C, int OC) {
    (void)dweight, (void)dbias, (void)dout, (void)inp, (void)weight, (void)OC;
    for (int i = 0; i < N * C; i++) { dinp[i] = 0.0f; }
}

// 4.2 Packs a panel of A for step 5. Row i of the panel begins at from + i * stride. It has `depth` numbers. The tile's
// loop needs number k of all `width` rows side by side: number k of row i goes to to[k * width + i]. At the end of A
// fewer rows are left: only `rows` of them exist. The missing rows become 0, so that the tile needs no special case.
static void pack_rows(float *to, int width, const float *from, int64_t stride, int rows, int depth) {
    (void)stride, (void)rows;
    for (int i = 0; i < width * depth; i++) { to[i] = from[0]; }
}

// 4.3 A tile of `rows` x `vectors` sums stays in registers. For one k it needs `vectors` registers of B and one
// register that holds each number of A in turn. So it loads rows + vectors times for rows * vectors multiply-adds.
// Finds the tile with the fewest loads for each multiply-add among those that fit in so many registers.
static void best_tile(int registers, int *rows, int *vectors) { *rows = registers - 2, *vectors = 1; }
