// Chapter 4, matrix multiply on the CPU: the worked example of doc/04_matmul_cpu.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

enum { N = 2, C = 3, OC = 2 };

static void example(void) {
    float inp[N * C] = {1, 2, 3, 0, 1, -1}, weight[OC * C] = {1, 0, 2, -1, 1, 0}, bias[OC] = {1, 2};
    float dout[N * OC] = {1, 0, 2, 1}, out[N * OC], dinp[N * C], dweight[OC * C] = {0}, dbias[OC] = {0};
    cpu_matmul_forward(out, NULL, inp, weight, bias, N, C, OC);
    cpu_matmul_backward(dinp, dweight, dbias, dout, inp, weight, N, C, OC);
    print_rows("inp", inp, N, C, C), print_rows("weight", weight, OC, C, C), print_row("bias", bias, OC);
    print_rows("out", out, N, OC, OC), print_rows("dout", dout, N, OC, OC), print_rows("dinp", dinp, N, C, C);
    print_rows("dweight", dweight, OC, C, C), print_row("dbias", dbias, OC);
}

// Whole numbers from -8 to 8. Sums of fewer than 2^17 products of two of them are exact, in any order: the checks need
// no tolerance.
static void whole_numbers(float *x, int n, uint64_t stream) {
    for (int i = 0; i < n; i++) { x[i] = (float)(rand_u64(4, stream, (uint64_t)i) % 17) - 8.0f; }
}

static void check_linear_backward(Test *t) {
    enum { ROWS = 7, WIDTH = 13, OUT = 5 };
    float inp[ROWS * WIDTH], weight[OUT * WIDTH], dout[ROWS * OUT], dinp[ROWS * WIDTH], want_dinp[ROWS * WIDTH];
    float dweight[OUT * WIDTH], want_dweight[OUT * WIDTH], dbias[OUT], want_dbias[OUT];
    whole_numbers(inp, ROWS * WIDTH, 1), whole_numbers(weight, OUT * WIDTH, 2), whole_numbers(dout, ROWS * OUT, 3);
    whole_numbers(dweight, OUT * WIDTH, 4), whole_numbers(dbias, OUT, 5); // the gradients so far
    memcpy(want_dweight, dweight, sizeof(dweight)), memcpy(want_dbias, dbias, sizeof(dbias));
    for (int i = 0; i < ROWS * WIDTH; i++) { dinp[i] = NAN; }
    cpu_matmul_backward(want_dinp, want_dweight, want_dbias, dout, inp, weight, ROWS, WIDTH, OUT);
    linear_backward(dinp, dweight, dbias, dout, inp, weight, ROWS, WIDTH, OUT);
    check_close(t, "dinp", dinp, want_dinp, ROWS * WIDTH, 0.0, 0.0);
    check_close(t, "dweight", dweight, want_dweight, OUT * WIDTH, 0.0, 0.0);
    check_close(t, "dbias", dbias, want_dbias, OUT, 0.0, 0.0);
}

// A matrix of 8 x 11 numbers that are all different. The panel has 8 rows, of which `rows` exist, and 5 of the columns.
static void check_pack_rows(Test *t) {
    enum { WIDTH = 8, STRIDE = 11, DEPTH = 5 };
    float from[WIDTH * STRIDE], got[WIDTH * DEPTH], want[WIDTH * DEPTH];
    for (int i = 0; i < WIDTH * STRIDE; i++) { from[i] = 1.0f + (float)i; }
    for (int rows = WIDTH; rows >= 3; rows -= 5) {
        for (int i = 0; i < WIDTH * DEPTH; i++) {
            got[i] = NAN;
            want[i] = i % WIDTH < rows ? 3.0f + (float)(i % WIDTH * STRIDE + i / WIDTH) : 0.0f;
        }
        pack_rows(got, WIDTH, from + 2, STRIDE, rows, DEPTH);
        check_close(t, rows == WIDTH ? "8 rows" : "3 rows", got, want, WIDTH * DEPTH, 0.0, 0.0);
    }
}

// Compares with every tile that fits. The comparison multiplies crosswise, so it is exact.
static void check_best_tile(Test *t) {
    for (int registers = 8; registers <= 64; registers *= 2) {
        int rows = 0, vectors = 0;
        best_tile(registers, &rows, &vectors);
        if (!CHECK(t, rows >= 1 && vectors >= 1 && rows * vectors + vectors + 1 <= registers,
                   "%d x %d sums do not fit in %d registers", rows, vectors, registers)) {
            return;
        }
        for (int r = 1; r <= registers; r++) {
            for (int v = 1; r * v + v + 1 <= registers; v++) {
                if (!CHECK(t, (rows + vectors) * r * v <= (r + v) * rows * vectors,
                           "%d registers: %d x %d loads more for a multiply-add than %d x %d", registers, rows, vectors,
                           r, v)) {
                    return;
                }
            }
        }
    }
}

static const Exercise exercises[] = {{"4.1 the backward of a linear layer", check_linear_backward},
                                     {"4.2 packing a panel", check_pack_rows},
                                     {"4.3 the best tile", check_best_tile}};

int main(void) { return run_chapter("04_matmul_cpu", example, exercises); }
