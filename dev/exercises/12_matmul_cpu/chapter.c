// Chapter 12, matrix multiply on the CPU: the worked example of doc/12_matmul_cpu.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"

enum { SIZE = 32, LINE = 16, LINES = 24 }; // of the example: C = A B, SIZE x SIZE; a cache of LINES lines

#include ANSWERS

// ---- The worked example: which lines come from memory, in which order of the loops ----

// A cache of LINES lines, the one used last first: when a line comes from memory, the line used longest ago leaves.
static struct {
    int lines[LINES], count, fetched[3]; // fetched: of A, B and C
    uint8_t done[SIZE * SIZE * SIZE];    // how often each multiply-add was called, for the check
    int outside;                         // calls with a number out of range
} cache;

// Uses number (row, column) of matrix 0, 1 or 2.
static void use(int matrix, int row, int column) {
    int line = (matrix * SIZE + row) * (SIZE / LINE) + column / LINE, at = 0;
    while (at < cache.count && cache.lines[at] != line) { at++; }
    if (at == cache.count) {
        cache.fetched[matrix]++;
        if (cache.count < LINES) { cache.count++; }
        if (at == LINES) { at--; }
    }
    memmove(cache.lines + 1, cache.lines, (size_t)at * sizeof(int));
    cache.lines[0] = line;
}

static void count_multiply_add(int i, int j, int k) {
    if (i < 0 || i >= SIZE || j < 0 || j >= SIZE || k < 0 || k >= SIZE) {
        cache.outside++;
        return;
    }
    use(0, i, k), use(1, k, j), use(2, i, j);
    cache.done[(i * SIZE + j) * SIZE + k]++;
}

// Runs a multiply. Returns how many lines came from memory.
static int lines_of(void (*multiply)(void (*)(int, int, int))) {
    memset(&cache, 0, sizeof(cache));
    multiply(count_multiply_add);
    return cache.fetched[0] + cache.fetched[1] + cache.fetched[2];
}

static void naive(void (*multiply_add)(int, int, int)) {
    for (int i = 0; i < SIZE; i++) {
        for (int j = 0; j < SIZE; j++) {
            for (int k = 0; k < SIZE; k++) { multiply_add(i, j, k); }
        }
    }
}

static void loop_order(void (*multiply_add)(int, int, int)) {
    for (int i = 0; i < SIZE; i++) {
        for (int k = 0; k < SIZE; k++) {
            for (int j = 0; j < SIZE; j++) { multiply_add(i, j, k); }
        }
    }
}

// Blocks of B of 8 rows and all columns: 16 lines.
static void blocks(void (*multiply_add)(int, int, int)) {
    for (int k0 = 0; k0 < SIZE; k0 += 8) {
        for (int i = 0; i < SIZE; i++) {
            for (int k = k0; k < k0 + 8; k++) {
                for (int j = 0; j < SIZE; j++) { multiply_add(i, j, k); }
            }
        }
    }
}

static void print_lines(const char *name, void (*multiply)(void (*)(int, int, int))) {
    int all = lines_of(multiply);
    printf("%-14s %9d %9d %9d %9d\n", name, cache.fetched[0], cache.fetched[1], cache.fetched[2], all);
}

static void example(void) {
    printf("lines              of A      of B      of C       all\n");
    print_lines("1 naive", naive);
    print_lines("2 loop order", loop_order);
    print_lines("3 blocks", blocks);
}

// ---- The checks ----

static void check_order(Test *t) {
    int lines = lines_of(in_good_order);
    CHECK(t, cache.outside == 0, "%d calls have an i, j or k that is not in 0 .. %d", cache.outside, SIZE - 1);
    for (int n = 0; n < SIZE * SIZE * SIZE; n++) {
        CHECK(t, cache.done[n] == 1, "multiply_add(%d, %d, %d) is called %d times, expected 1", n / SIZE / SIZE,
              n / SIZE % SIZE, n % SIZE, cache.done[n]);
    }
    CHECK(t, lines <= 400, "%d lines come from memory (A %d, B %d, C %d), expected at most 400", lines,
          cache.fetched[0], cache.fetched[1], cache.fetched[2]);
}

// A matrix of 8 x 11 numbers that are all different. The panel has 8 rows, of which `rows` exist, and 5 of the columns.
static void check_pack_rows(Test *t) {
    enum { WIDTH = 8, STRIDE = 11, DEPTH = 5 };
    float from[WIDTH * STRIDE], got[WIDTH * DEPTH], want[WIDTH * DEPTH], by_rows[WIDTH * DEPTH];
    for (int i = 0; i < WIDTH * STRIDE; i++) { from[i] = 1.0f + (float)i; }
    for (int rows = WIDTH; rows >= 3; rows -= 5) {
        for (int i = 0; i < WIDTH * DEPTH; i++) {
            got[i] = NAN;
            want[i] = i % WIDTH < rows ? 3.0f + (float)(i % WIDTH * STRIDE + i / WIDTH) : 0.0f;
            by_rows[i] = i / DEPTH < rows ? 3.0f + (float)(i / DEPTH * STRIDE + i % DEPTH) : 0.0f;
        }
        pack_rows(got, WIDTH, from + 2, STRIDE, rows, DEPTH);
        same_numbers(t, rows == WIDTH ? "width 8, 8 rows of 5" : "width 8, 3 rows of 5", got, want, WIDTH * DEPTH, 0.0,
                     0.0);
        likely(t, got, by_rows, WIDTH * DEPTH, "the rows lie one after another; the loop needs them side by side.");
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

static const Exercise exercises[] = {{"12.1 the order of the loops", check_order},
                                     {"12.2 packing a panel", check_pack_rows},
                                     {"12.3 the best tile", check_best_tile}};

int main(void) { return run_chapter("12_matmul_cpu", example, exercises); }
