// Checks a step against the first one, on any sizes.
#ifndef LADDER_CHECK_H
#define LADDER_CHECK_H

#include "dev/cpu/step1_naive.h"
#include "llmc/base/rand.h"

enum { CHECK_GUARD = 64 }; // floats behind C that must stay as they are

typedef struct {
    Problem p;
    float *expected; // C by step 1
    float *products; // sums of |A_ik B_kj|, to which rounding errors are proportional
} Checked;

static inline float *ladder_floats(int64_t n) {
    float *x = (float *)aligned_alloc(64, (size_t)round_up_i64(n + 1, 16) * sizeof(float));
    if (x == NULL) {
        fprintf(stderr, "ladder: out of memory for %lld floats\n", (long long)n);
        exit(EXIT_FAILURE);
    }
    return x;
}

// Numbers between -1 and 1; in_bf16: such that bf16 holds them without rounding.
static inline float *random_floats(int64_t n, uint64_t stream, bool in_bf16) {
    float *x = ladder_floats(n);
    for (int64_t i = 0; i < n; i++) {
        double number = 2.0 * rand_uniform(17, stream, (uint64_t)i) - 1.0;
        x[i] = in_bf16 ? (float)(int)(number * 128.0) / 128.0f : (float)number;
    }
    return x;
}

static inline float *absolute(const float *x, int64_t n) {
    float *result = ladder_floats(n);
    for (int64_t i = 0; i < n; i++) { result[i] = fabsf(x[i]); }
    return result;
}

static inline Checked checked_problem(int64_t M, int64_t N, int64_t K, bool in_bf16, int threads, int64_t workspace) {
    float *A = random_floats(M * K, 1, in_bf16), *B = random_floats(K * N, 2, in_bf16);
    Checked c = {{ladder_floats(M * N + CHECK_GUARD), A, B, M, N, K, ladder_floats(workspace), threads},
                 ladder_floats(M * N),
                 ladder_floats(M * N)};
    Problem expected = c.p, products = c.p;
    float *abs_a = absolute(A, M * K), *abs_b = absolute(B, K * N);
    expected.C = c.expected, products.C = c.products, products.A = abs_a, products.B = abs_b;
    step1_naive(&expected), step1_naive(&products);
    free(abs_a), free(abs_b);
    return c;
}

static inline void free_checked(Checked *c) {
    free(c->p.C), free((void *)c->p.A), free((void *)c->p.B), free(c->p.workspace);
    free(c->expected), free(c->products);
}

// Runs the step, and returns the number of elements that are wrong. Two sums of K products differ by up to 2 K units of
// 2^-24 of the sum of the products' sizes. `rounding` is the error of a product relative to itself, from operands that
// were rounded. C is full of NaN first, and a NaN is wrong.
static inline int64_t count_wrong(const Checked *c, void (*run)(const Problem *), double rounding) {
    int64_t wrong = 0, n = c->p.M * c->p.N;
    for (int64_t i = 0; i < n + CHECK_GUARD; i++) { c->p.C[i] = NAN; }
    run(&c->p);
    for (int64_t i = 0; i < n; i++) {
        double tolerance = (2.0 * (double)(c->p.K + 1) * 0x1p-24 + rounding) * c->products[i];
        wrong += !(fabs((double)c->p.C[i] - c->expected[i]) <= tolerance);
    }
    for (int64_t i = n; i < n + CHECK_GUARD; i++) { wrong += !isnan(c->p.C[i]); }
    return wrong;
}

// Returns how many elements a step gets wrong. One that rounds to bf16 meets numbers that need no rounding, and others.
static inline int64_t wrong_elements(void (*run)(const Problem *), bool rounds, const int64_t *size, int threads,
                                     int64_t workspace) {
    int64_t wrong = 0;
    for (int exact = rounds; exact >= 0; exact--) {
        Checked c = checked_problem(size[0], size[1], size[2], exact, threads, workspace);
        double rounding = rounds && !exact ? 2.0 * 0x1p-8 + 0x1p-16 : 0.0;
        wrong += count_wrong(&c, run, rounding);
        free_checked(&c);
    }
    return wrong;
}

// M, N and K: smaller than a tile, no multiple of one, larger than a block.
static const int64_t check_sizes[][3] = {{1, 1, 1}, {2, 3, 5}, {33, 49, 31}, {70, 261, 517}, {259, 50, 33}};
enum { NUM_CHECK_SIZES = sizeof(check_sizes) / sizeof(check_sizes[0]) };

#endif // LADDER_CHECK_H
