// llmc/cpu/gemm.h against a plain loop that follows its definition, over odd sizes, strides, transposes and numbers of
// threads, with every kernel that runs here, and with AMX in software: bit for bit if the kernel multiplies floats,
// within the rounding of a sum if an instruction adds up pairs. (Against double precision: test_layers.c.)
#include "llmc/cpu/kernels.h"
#include "dev/test/cpu/amx_emulated.h"
#include "llmc/base/rand.h"

enum { GUARD = 16 }; // floats around every array that must stay as they are
static const float UNTOUCHED = -12345.0f;

typedef struct {
    int64_t M, N, K, ldc;
    bool transpose_a, transpose_b, accumulate, use_bias;
    int64_t spread; // distance of neighbours in A and B: 1 for ordinary matrices
    float *A, *B, *C, *bias;
    GemmKernel kernel;
    Gemm mm; // with that kernel
} Case;

static float *new_floats(int64_t n, uint64_t stream) {
    float *x = (float *)malloc((size_t)(n + 1) * sizeof(float));
    for (int64_t i = 0; i < n; i++) { x[i] = 2.0f * (float)rand_uniform(7, stream, (uint64_t)i) - 1.0f; }
    return x;
}

static Case new_case(int64_t M, int64_t N, int64_t K, int64_t spread, int flags, int threads) {
    Case c;
    memset(&c, 0, sizeof(c));
    c.M = M, c.N = N, c.K = K, c.ldc = max_i64(1, N + (flags >> 4) % 3), c.spread = spread;
    c.transpose_a = flags & 1, c.transpose_b = flags & 2, c.accumulate = flags & 4, c.use_bias = flags & 8;
    c.A = new_floats(spread * M * K, 1), c.B = new_floats(spread * K * N, 2), c.bias = new_floats(N, 3);
    c.C = new_floats(GUARD + M * c.ldc + GUARD, 4);
    int64_t floats = gemm_workspace_floats(threads);
    c.kernel = gemm_portable;
    c.mm.workspace = (float *)malloc((size_t)(floats + GUARD) * sizeof(float));
    for (int i = 0; i < GUARD; i++) { c.mm.workspace[floats + i] = UNTOUCHED; }
    return c;
}

static void free_case(Case *c) { free(c->A), free(c->B), free(c->C), free(c->bias), free(c->mm.workspace); }

static GemmMatrix matrix_of(const float *data, int64_t rows, int64_t cols, bool transposed, int64_t spread) {
    GemmMatrix ordinary = {data, cols * spread, spread, 0}, other = {data, spread, rows * spread, 0};
    return transposed ? other : ordinary;
}
static GemmMatrix a_of(const Case *c) { return matrix_of(c->A, c->M, c->K, c->transpose_a, c->spread); }
static GemmMatrix b_of(const Case *c) { return matrix_of(c->B, c->K, c->N, c->transpose_b, c->spread); }

// Does this kernel fuse s + a b? The portable one depends on the machine, the compiler and its flags. The exact value
// of -1 + (1 + 2^-12)^2 is 2^-11 + 2^-24; the last bit is lost if the product is rounded first.
static bool kernel_fuses(const GemmKernel *kernel) {
    if (kernel->words == GEMM_PAIRS) { return true; } // compared within a tolerance
    const float a[2] = {-1.0f, 1.0f + 0x1p-12f}, b[2] = {1.0f, 1.0f + 0x1p-12f};
    const GemmMatrix A = rows_of(a, 2), B = transpose_of(b, 2);
    GemmKernel floats = *kernel;
    floats.words = GEMM_FLOATS;
    Gemm mm = {&floats, (float *)malloc((size_t)gemm_workspace_floats(1) * sizeof(float))};
    float c = 0.0f;
    gemm_serial(&c, 1, A, B, NULL, 1, 1, 2, false, &mm);
    free(mm.workspace);
    return c > 0x1p-11f;
}

// s + a b, as the kernel computes it. The compiler may treat a chain of scalar sums otherwise than the kernel's vectors
// (gcc does when it tunes for AMD), so nothing is left to it here.
static float multiply_add(bool fuses, float a, float b, float s) {
    if (fuses) { return fmaf(a, b, s); }
    volatile float product = a * b;
    return s + product;
}

// Rounds to the nearest bf16, ties to even, by arithmetic: the neighbours below and above are compared.
static float rounded(float x) {
    float below = x;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t low = bits & 0xffff0000, high = low + 0x10000;
    memcpy(&below, &low, 4);
    float above;
    memcpy(&above, &high, 4);
    float down = fabsf(x - below), up = fabsf(above - x);
    bool even = (low >> 16 & 1) == 0;
    return down < up || (down == up && even) ? below : above;
}

// A copy of n floats, each rounded if the kernel rounds.
static float *operand(const Case *c, const float *from, int64_t n) {
    float *to = (float *)malloc((size_t)(n + 1) * sizeof(float));
    for (int64_t i = 0; i < n; i++) { to[i] = c->kernel.words == GEMM_FLOATS ? from[i] : rounded(from[i]); }
    return to;
}

// The definition in gemm.h, for one element whose value was `before`. A and B are as the kernel takes them. *tolerance:
// what the kernel may differ by, 0: no bit.
static float expected(const Case *c, int64_t i, int64_t j, float before, bool fuses, double *tolerance) {
    GemmMatrix A = a_of(c), B = b_of(c);
    const float *a = A.data + i * A.row_stride, *b = B.data + j * B.col_stride;
    int64_t depth = c->kernel.depth * gemm_per_word(c->kernel.words);
    double magnitude = fabs(before) + fabs(c->bias[j]);
    float result = before;
    for (int64_t block = 0; block < c->K; block += depth) {
        float s = 0.0f;
        for (int64_t k = block; k < c->K && k < block + depth; k++) {
            float x = a[k * A.col_stride], y = b[k * B.row_stride];
            s = multiply_add(fuses, x, y, s);
            magnitude += fabs(x * y);
        }
        if (block == 0 && c->use_bias) { s = s + c->bias[j]; }
        result = block == 0 && !c->accumulate ? s : result + s;
    }
    *tolerance = c->kernel.words == GEMM_PAIRS ? 0x1p-23 * (double)(c->K + 2) * magnitude : 0.0;
    return result;
}

// A fresh copy of C as it was before, with the result of the call in it. B has N columns and K rows that count.
static float *product_with(const Case *c, GemmMatrix B, int64_t N, int64_t K, bool serial) {
    size_t floats = (size_t)(GUARD + c->M * c->ldc + GUARD);
    float *out = (float *)malloc(floats * sizeof(float));
    memcpy(out, c->C, floats * sizeof(float));
    (serial ? gemm_serial : gemm)(out + GUARD, c->ldc, a_of(c), B, c->use_bias ? c->bias : NULL, c->M, N, K,
                                  c->accumulate, &c->mm);
    return out;
}
static float *result_of(const Case *c, bool serial) { return product_with(c, b_of(c), c->N, c->K, serial); }

// Compares every element (or one in `step`) with the definition, and everything around C with what was there.
static void check_result(Test *t, const Case *c, const float *out, int64_t step) {
    int64_t wrong = 0, outside = 0;
    bool fuses = kernel_fuses(&c->kernel);
    Case operands = *c;
    operands.A = operand(c, c->A, c->M * c->K * c->spread), operands.B = operand(c, c->B, c->K * c->N * c->spread);
    for (int64_t at = 0; at < GUARD + c->M * c->ldc + GUARD; at++) {
        int64_t i = (at - GUARD) / c->ldc, j = (at - GUARD) % c->ldc;
        if (at < GUARD || i >= c->M || j >= c->N) {
            outside += memcmp(&out[at], &c->C[at], sizeof(float)) != 0;
        } else if ((i * c->N + j) % step == 0) {
            double tolerance;
            float want = expected(&operands, i, j, c->C[at], fuses, &tolerance);
            bool close = tolerance > 0.0 && fabs((double)out[at] - want) <= tolerance;
            wrong += !close && memcmp(&out[at], &want, sizeof(float)) != 0;
        }
    }
    free(operands.A), free(operands.B);
    CHECK(
        t, wrong == 0 && outside == 0,
        "%s, words %d: M %d N %d K %d, A%s B%s%s%s: %d elements differ from the definition, %d outside C were written",
        c->kernel.name, (int)c->kernel.words, (int)c->M, (int)c->N, (int)c->K, c->transpose_a ? "^T" : "",
        c->transpose_b ? "^T" : "", c->accumulate ? " +=" : "", c->use_bias ? " bias" : "", (int)wrong, (int)outside);
}

static void check_workspace(Test *t, const Case *c, int threads) {
    const float *end = c->mm.workspace + gemm_workspace_floats(threads);
    for (int i = 0; i < GUARD; i++) { CHECK(t, end[i] == UNTOUCHED, "wrote %d floats beyond the workspace", i + 1); }
}

// A packed B gives the bits of B: all of it, and without its last columns and its last rows.
static void check_packed(Test *t, const Case *c) {
    int64_t fewer_rows = c->K < 64 ? c->K : c->K / 2 / 32 * 32;
    float *packed = (float *)malloc(((size_t)gemm_packed_floats(c->K, c->N, &c->kernel) + 1) * sizeof(float));
    for (int part = 0; part < 4; part++) {
        int64_t N = part & 1 ? (c->N + 1) / 2 : c->N, K = part & 2 ? fewer_rows : c->K;
        bool serial = part > 0;
        if (serial) {
            gemm_pack_serial(packed, b_of(c), c->K, c->N, &c->kernel);
        } else {
            gemm_pack_matrix(packed, b_of(c), c->K, c->N, &c->kernel);
        }
        float *plain = product_with(c, b_of(c), N, K, serial),
              *out = product_with(c, packed_of(packed, c->K), N, K, serial);
        CHECK(t, memcmp(out, plain, (size_t)(2 * GUARD + c->M * c->ldc) * sizeof(float)) == 0,
              "%s: a packed B of %d x %d, of which %d x %d are used, gives other bits", c->kernel.name, (int)c->K,
              (int)c->N, (int)K, (int)N);
        free(plain), free(out);
    }
    free(packed);
}

// The kernels that are tested: those of kernels.h if they run here, and AMX in software. NULL: this one does not run.
enum { NUM_TESTED = NUM_KERNELS + 1 };
static const GemmKernel *tested_kernel(int i) {
    if (i == NUM_KERNELS) { return emulated_has_amx() ? &emulated_amx : NULL; }
    return kernel_choices[i].is_here() ? kernel_choices[i].kernel : NULL;
}

// Runs gemm on these threads and gemm_serial with one kernel; both give the bits of the definition, as one element in
// `step` shows.
static void check_kernel(Test *t, Case *c, int threads, int64_t step) {
    c->mm.kernel = &c->kernel;
    float *parallel = result_of(c, false), *serial = result_of(c, true);
    check_result(t, c, parallel, step);
    CHECK(t, memcmp(parallel, serial, (size_t)(2 * GUARD + c->M * c->ldc) * sizeof(float)) == 0,
          "%s: gemm on %d threads differs from gemm_serial", c->kernel.name, threads);
    check_workspace(t, c, threads);
    check_packed(t, c);
    free(parallel), free(serial);
}

// check_kernel with all kernels that run here, and frees the case.
static void check_case(Test *t, Case c, int threads, int64_t step) {
    omp_set_num_threads(threads);
    for (int i = 0; i < NUM_TESTED; i++) {
        if (tested_kernel(i) == NULL) { continue; }
        c.kernel = *tested_kernel(i);
        check_kernel(t, &c, threads, step);
        if (c.kernel.words == GEMM_PAIRS) { continue; }
        c.kernel.words = GEMM_ROUNDED;
        check_kernel(t, &c, threads, step);
    }
    check_emulated(t);
    free_case(&c);
}

// The first test, and from 5 threads down: clang's OpenMP leaks when a team grows.
TEST(test_threads_change_no_bit) {
    static const int64_t shapes[][3] = {{70, 110, 520}, {1, 1000, 300}, {1000, 1, 300}, {70, 49, 600}, {257, 97, 64}};
    for (int threads = 5; threads >= 1; threads -= test_is_quick() ? 2 : 1) {
        for (int i = 0; i < 5; i++) {
            Case c = new_case(shapes[i][0], shapes[i][1], shapes[i][2], 1, i * 5 + 2, threads);
            check_case(t, c, threads, threads == 1 ? 1 : 7);
        }
    }
}

TEST(test_odd_sizes) {
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 23, 31, 33, 47, 48, 49, 64, 95, 97};
    static const int64_t depths[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 64, 100, 255, 256, 257, 511, 513, 600};
    for (uint64_t i = 0; i < 150; i += test_is_quick() ? 3 : 1) {
        int64_t M = sizes[rand_u64(1, 0, i) % 22], N = sizes[rand_u64(1, 1, i) % 22];
        check_case(t, new_case(M, N, depths[rand_u64(1, 2, i) % 17], 1, (int)(rand_u64(1, 3, i) % 48), 3), 3, 1);
    }
}

// Some sizes in every form: A and B transposed, C accumulating, with a bias.
TEST(test_shapes) {
    static const struct {
        int64_t M, N, K, spread;
        bool slow;
    } shapes[] = {
        // One row meets a B whose columns are rows in memory, as when a model writes a token: it has a way of its own.
        {1, 101, 64, 1, false},
        {1, 64, 1568, 1, false},
        {1, 48, 272, 1, false},
        // More rows and more k than fit into the workspace at once.
        {300, 20, 1100, 1, true},
        {2, 50, 3000, 1, true},
        {1100, 17, 260, 1, true},
        {21, 37, 270, 3, false}, // neighbours are apart
        {0, 7, 3, 1, false},
        {5, 0, 3, 1, false},
        {0, 0, 3, 1, false},
    };
    FOR_EACH(i, shapes) {
        for (int flags = 0; flags < 16; flags += !shapes[i].slow ? 1 : test_is_quick() ? 15 : 5) {
            Case c = new_case(shapes[i].M, shapes[i].N, shapes[i].K, shapes[i].spread, flags, 2);
            check_case(t, c, 2, shapes[i].slow ? 11 : 1);
        }
    }
}

TEST(test_nan_stays_in_its_row) {
    omp_set_num_threads(2);
    Case c = new_case(19, 50, 70, 1, 0, 2);
    const uint32_t quiet = 0x7f800001; // only its lower half says that it is no infinity
    memcpy(&c.A[11 * 70 + 33], &quiet, 4);
    c.A[12 * 70 + 69] = INFINITY, c.A[13 * 70 + 3] = 3.4e38f; // the largest bf16 is 3.39e38
    for (int64_t j = 0; j < c.N; j++) { c.B[69 * c.N + j] = c.B[3 * c.N + j] = 1.0f; }
    for (int i = 0; i < NUM_TESTED; i++) {
        if (tested_kernel(i) == NULL) { continue; }
        c.kernel = *tested_kernel(i);
        if (c.kernel.words == GEMM_FLOATS) { c.kernel.words = GEMM_ROUNDED; }
        c.mm.kernel = &c.kernel;
        float *out = result_of(&c, false);
        for (int64_t at = 0; at < c.M * c.N; at++) {
            int64_t row = at / c.N;
            float x = out[GUARD + row * c.ldc + at % c.N];
            CHECK(t, isnan(x) == (row == 11) && isinf(x) == (row == 12 || row == 13), "%s, row %d: %g", c.kernel.name,
                  (int)row, (double)x);
        }
        free(out);
    }
    free_case(&c);
}

// AMX is taken only where the processor has all of it and Linux permits it.
TEST(test_amx_asks_for_permission) {
    const unsigned tile = 1u << 24, bf16 = 1u << 22, edx[] = {0, tile, bf16, ~(tile | bf16), tile | bf16};
    for (int i = 0; i < 10; i++) {
        amx_machine.cpuid_edx = edx[i / 2], amx_machine.linux_permits = i % 2;
        CHECK(t, emulated_has_amx() == (i == 9), "CPUID %08x, permitted %d", edx[i / 2], i % 2);
    }
}
