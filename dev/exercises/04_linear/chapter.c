// Chapter 4, the linear layer: the worked example of doc/04_linear.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

#include "llmc/model/params.h"

enum { N = 2, C = 3, OC = 2 };

// ---- The worked example ----

static void print_products(void) {
    float inp[N * C] = {1, 2, 3, 0, 1, -1}, weight[OC * C] = {1, 0, 2, -1, 1, 0}, bias[OC] = {1, 2};
    float dout[N * OC] = {1, 0, 2, 1}, out[N * OC], dinp[N * C], dweight[OC * C] = {0}, dbias[OC] = {0};
    cpu_matmul_forward(out, NULL, inp, weight, bias, N, C, OC);
    cpu_matmul_backward(dinp, dweight, dbias, dout, inp, weight, N, C, OC);
    print_rows("inp", inp, N, C, C), print_rows("weight", weight, OC, C, C), print_row("bias", bias, OC);
    print_rows("out", out, N, OC, OC), print_rows("dout", dout, N, OC, OC), print_rows("dinp", dinp, N, C, C);
    print_rows("dweight", dweight, OC, C, C), print_row("dbias", dbias, OC);
}

// What the forward of the layer fc of GPT-2 124M, C = 768 and OC = 3072, computes and moves in bf16.
static void print_intensity(void) {
    const int64_t rows[] = {1, 64, 512, 4096}, wide = 768, outputs = 3072;
    printf("fc of GPT-2 124M    operations       bytes  operations a byte\n");
    FOR_EACH(i, rows) {
        int64_t operations = 2 * rows[i] * wide * outputs;
        int64_t bytes = 2 * (rows[i] * wide + outputs * wide + rows[i] * outputs);
        printf("N = %4lld       %14lld %11lld %18.1f\n", (long long)rows[i], (long long)operations, (long long)bytes,
               (double)operations / (double)bytes);
    }
}

static void print_weights(void) {
    ModelConfig config = GPT2_CONFIG(0, GPT2_VOCAB_SIZE, GPT2_VOCAB_SIZE, 0, 0, 0);
    model_config_from_size(&config, "124M");
    int64_t wide = config.channels, weights = 12 * config.num_layers * wide * wide + config.vocab_size * wide;
    int64_t all = model_num_params(&config);
    printf("weights of linear layers: %lld of %lld parameters, %.1f %%\n", (long long)weights, (long long)all,
           100.0 * (double)weights / (double)all);
}

static void example(void) {
    print_products();
    print_intensity();
    print_weights();
}

// ---- The checks ----

// Whole numbers from -8 to 8. Sums of fewer than 2^17 products of two of them are exact, in any order: the checks need
// no tolerance.
static void whole_numbers(float *x, int n, uint64_t stream) {
    for (int i = 0; i < n; i++) { x[i] = (float)(rand_u64(4, stream, (uint64_t)i) % 17) - 8.0f; }
}

enum { ROWS = 7, WIDTH = 13, OUT = 5 };

static void check_linear_backward(Test *t) {
    float inp[ROWS * WIDTH], weight[OUT * WIDTH], dout[ROWS * OUT], dinp[ROWS * WIDTH], want_dinp[ROWS * WIDTH];
    float dweight[OUT * WIDTH], before[OUT * WIDTH], want_dweight[OUT * WIDTH], dbias[OUT], want_dbias[OUT];
    whole_numbers(inp, ROWS * WIDTH, 1), whole_numbers(weight, OUT * WIDTH, 2), whole_numbers(dout, ROWS * OUT, 3);
    whole_numbers(dweight, OUT * WIDTH, 4), whole_numbers(dbias, OUT, 5); // the gradients so far
    memcpy(want_dweight, dweight, sizeof(dweight)), memcpy(want_dbias, dbias, sizeof(dbias));
    memcpy(before, dweight, sizeof(dweight));
    for (int i = 0; i < ROWS * WIDTH; i++) { dinp[i] = NAN; }
    cpu_matmul_backward(want_dinp, want_dweight, want_dbias, dout, inp, weight, ROWS, WIDTH, OUT);
    linear_backward(dinp, dweight, dbias, dout, inp, weight, ROWS, WIDTH, OUT);
    same_numbers(t, "dinp (7, 13), which begins as NaN", dinp, want_dinp, ROWS * WIDTH, 0.0, 0.0);
    same_numbers(t, "dweight (5, 13), which begins with other gradients", dweight, want_dweight, OUT * WIDTH, 0.0, 0.0);
    same_numbers(t, "dbias (5), which begins with other gradients", dbias, want_dbias, OUT, 0.0, 0.0);
    for (int i = 0; i < OUT * WIDTH; i++) { before[i] = want_dweight[i] - before[i]; }
    likely(t, dweight, before, OUT * WIDTH, "dweight is set, but it should be added to: write +=.");
}

// The three products of a layer as the trainer calls them.
static void check_multiply(Test *t) {
    float inp[ROWS * WIDTH], weight[OUT * WIDTH], dout[ROWS * OUT], got[ROWS * WIDTH];
    float out[ROWS * OUT], dinp[ROWS * WIDTH], dweight[OUT * WIDTH] = {0};
    whole_numbers(inp, ROWS * WIDTH, 1), whole_numbers(weight, OUT * WIDTH, 2), whole_numbers(dout, ROWS * OUT, 3);
    cpu_matmul_forward(out, NULL, inp, weight, NULL, ROWS, WIDTH, OUT);
    cpu_matmul_backward(dinp, dweight, NULL, dout, inp, weight, ROWS, WIDTH, OUT);
    multiply(got, rows_view(dout, OUT), rows_view(weight, WIDTH), ROWS, WIDTH, OUT);
    same_numbers(t, "dinp = dout (7, 5) times weight (5, 13)", got, dinp, ROWS * WIDTH, 0.0, 0.0);
    multiply(got, rows_view(inp, WIDTH), transposed_view(weight, WIDTH), ROWS, OUT, WIDTH);
    same_numbers(t, "out = inp (7, 13) times weight^T (13, 5)", got, out, ROWS * OUT, 0.0, 0.0);
    multiply(got, transposed_view(dout, OUT), rows_view(inp, WIDTH), OUT, WIDTH, ROWS);
    same_numbers(t, "dweight = dout^T (5, 7) times inp (7, 13)", got, dweight, OUT * WIDTH, 0.0, 0.0);
    View transposed = transposed_view(weight, WIDTH);
    CHECK(t, t->failures == 0 || (transposed.row_stride == 1 && transposed.col_stride == WIDTH),
          "transposed_view of a matrix with 13 columns: strides %d and %d, expected 1 and 13", transposed.row_stride,
          transposed.col_stride);
}

// Counts up from one row, and stops where more rows would not help.
static void check_rows_to_be_busy(Test *t) {
    const struct {
        double C, OC, peak, rate;
    } cases[] = {{768, 3072, 989e12, 3.35e12}, {768, 768, 989e12, 3.35e12}, {4096, 4096, 312e12, 1.555e12},
                 {100, 100, 989e12, 3.35e12},  {64, 256, 250e9, 25e9},      {1600, 6400, 66.9e12, 3.35e12}};
    FOR_EACH(i, cases) {
        double c = cases[i].C, oc = cases[i].OC;
        int64_t want = 1, got = rows_to_be_busy(c, oc, cases[i].peak, cases[i].rate);
        while (want > 0 &&
               2.0 * (double)want * c * oc / cases[i].peak < 2.0 * ((double)want * (c + oc) + c * oc) / cases[i].rate) {
            want = want < 1000000 ? want + 1 : -1;
        }
        CHECK(t, got == want, "C %g, OC %g, %g operations and %g bytes a second: %lld rows, expected %lld", c, oc,
              cases[i].peak, cases[i].rate, (long long)got, (long long)want);
    }
}

static const Exercise exercises[] = {{"4.1 the backward of a linear layer", check_linear_backward},
                                     {"4.2 one multiply for three products", check_multiply},
                                     {"4.3 the rows that keep a machine busy", check_rows_to_be_busy}};

int main(void) { return run_chapter("04_linear", example, exercises); }
