// The kernel in vectors: a tile of GEMM_ROWS x 3 vectors of C stays in registers while k passes by. A step along k
// loads 3 vectors of B and spreads GEMM_ROWS words of A, for 3 * GEMM_ROWS multiply-adds. A file that includes this one
// defines the following names first, and gets a GemmKernel. So one source serves every instruction set.
//
//   GEMM_NAME       the kernel's name: avx2 defines gemm_avx2
//   GEMM_TARGET     __attribute__((target(...))), or nothing for the instructions of the whole program
//   GEMM_WIDTH      words in a vector
//   GEMM_WORDS      GemmKernel.words; GEMM_FLOATS unless defined
//   GEMM_ROWS       rows of the tile; with 3 vectors each they take 24 of 32 registers, or 12 of 16
//   GEMM_SPREAD(a, i), GEMM_ADD(sum, a, b)    word i of A in every lane; sum + a b, which is defined here as an
//                   example: a kernel of floats says whether it fuses, since compilers choose from loop to loop
#include "llmc/cpu/gemm_kernel.h"

#ifndef GEMM_NAME // if this file is compiled alone
#define GEMM_NAME example
#define GEMM_TARGET
#define GEMM_WIDTH 4
#define GEMM_ROWS 4
#endif
#ifndef GEMM_WORDS
#define GEMM_WORDS GEMM_FLOATS
#endif
#ifndef GEMM_ADD
#define GEMM_ADD(sum, a, b) ((sum) + (a) * (b))
#endif
#ifndef GEMM_SPREAD
#define GEMM_SPREAD(a, i) ((a)[i] - zero) // a scalar minus a vector; minus, because -0 + 0 would lose the sign
#endif

#define GEMM_PASTE(name, what) gemm_##name##what
#define GEMM_JOIN(name, what) GEMM_PASTE(name, what)
#define GEMM_QUOTE(name) #name
#define GEMM_STRING(name) GEMM_QUOTE(name)
#define GEMM_VECTOR GEMM_JOIN(GEMM_NAME, _vector)
#define GEMM_MEMORY GEMM_JOIN(GEMM_NAME, _memory) // a vector at any address that is aligned for a float
#define GEMM_SUMS GEMM_JOIN(GEMM_NAME, _sums)
#define GEMM_COLUMNS GEMM_JOIN(GEMM_NAME, _columns)
#define GEMM_MULTIPLY GEMM_JOIN(GEMM_NAME, _multiply)
#define GEMM_BURN GEMM_JOIN(GEMM_NAME, _burn)

typedef float GEMM_VECTOR __attribute__((vector_size(GEMM_WIDTH * 4)));
typedef float GEMM_MEMORY __attribute__((vector_size(GEMM_WIDTH * 4), aligned(4), may_alias));

// The tile for rows x vectors. Inlining makes both constants, so that the sums stay in registers.
__attribute__((always_inline)) GEMM_TARGET static inline void GEMM_SUMS(float *tile, int64_t ld, const float *a,
                                                                        const float *b, int64_t depth, int rows,
                                                                        int vectors, bool add, const GemmAhead *ahead) {
    const GEMM_VECTOR zero = {0};
    GEMM_VECTOR sums[GEMM_ROWS][3];
    GEMM_UNROLL for (int i = 0; i < rows; i++) {
        GEMM_UNROLL for (int j = 0; j < vectors; j++) { sums[i][j] = zero; }
    }
    for (int64_t w = 0; w < depth; w++) {
        GEMM_VECTOR row_of_b[3];
        if (w % 2 == 0) { gemm_fetch(ahead, w / 2); }
        GEMM_UNROLL for (int j = 0; j < vectors; j++) { row_of_b[j] = *(const GEMM_MEMORY *)(b + j * GEMM_WIDTH); }
        GEMM_UNROLL for (int j = 0; j < vectors; j++) { GEMM_KEEP(row_of_b[j]); }
        GEMM_UNROLL for (int i = 0; i < rows; i++) {
            GEMM_UNROLL for (int j = 0; j < vectors; j++) {
                sums[i][j] = GEMM_ADD(sums[i][j], GEMM_SPREAD(a, i), row_of_b[j]);
            }
        }
        a += GEMM_LANES;
        b += GEMM_MAX_COLS;
    }
    GEMM_UNROLL for (int i = 0; i < rows; i++) {
        GEMM_UNROLL for (int j = 0; j < vectors; j++) {
            GEMM_MEMORY *to = (GEMM_MEMORY *)(tile + i * ld + j * GEMM_WIDTH);
            if (add) { sums[i][j] = *to + sums[i][j]; }
            *to = sums[i][j];
        }
    }
}

// Chooses the number of vectors.
__attribute__((always_inline)) GEMM_TARGET static inline void GEMM_COLUMNS(float *tile, int64_t ld, const float *a,
                                                                           const float *b, int64_t depth, int rows,
                                                                           int64_t cols, bool add,
                                                                           const GemmAhead *ahead) {
    if (cols > 2 * GEMM_WIDTH) {
        GEMM_SUMS(tile, ld, a, b, depth, rows, 3, add, ahead);
    } else if (cols > GEMM_WIDTH) {
        GEMM_SUMS(tile, ld, a, b, depth, rows, 2, add, ahead);
    } else {
        GEMM_SUMS(tile, ld, a, b, depth, rows, 1, add, ahead);
    }
}

// GemmKernel.multiply.
GEMM_TARGET static inline void GEMM_MULTIPLY(float *tile, int64_t ld, const float *a, int64_t a_panel, const float *b,
                                             int64_t depth, int64_t rows, int64_t cols, bool add,
                                             const GemmAhead *ahead) {
    (void)a_panel; // one panel of A is enough
    for (int64_t j = 0; j < cols; j += 3 * GEMM_WIDTH, ahead = &gemm_nothing_ahead) {
        if (rows == 1) {
            GEMM_COLUMNS(tile + j, ld, a, b + j, depth, 1, cols - j, add, ahead);
        } else if (rows == 2) {
            GEMM_COLUMNS(tile + j, ld, a, b + j, depth, 2, cols - j, add, ahead);
        } else if (rows <= 4) {
            GEMM_COLUMNS(tile + j, ld, a, b + j, depth, 4, cols - j, add, ahead);
        } else {
            GEMM_COLUMNS(tile + j, ld, a, b + j, depth, GEMM_ROWS, cols - j, add, ahead);
        }
    }
}

// GemmKernel.burn. There are as many sums as in a tile: enough to hide the latency of a multiply-add, and few enough to
// stay in registers.
GEMM_TARGET static inline int64_t GEMM_BURN(float *tile, const float *a, const float *b, int64_t times) {
    const GEMM_VECTOR zero = {0}, vector = *(const GEMM_MEMORY *)b;
    GEMM_VECTOR sums[3 * GEMM_ROWS];
    GEMM_UNROLL for (int i = 0; i < 3 * GEMM_ROWS; i++) { sums[i] = zero + (float)i; } // no two sums are equal
    for (int64_t n = 0; n < times; n++) {
        GEMM_UNROLL for (int i = 0; i < 3 * GEMM_ROWS; i++) { sums[i] = GEMM_ADD(vector, GEMM_SPREAD(a, 0), sums[i]); }
    }
    GEMM_UNROLL for (int i = 0; i < 3 * GEMM_ROWS; i++) { *(GEMM_MEMORY *)(tile + i * GEMM_WIDTH) = sums[i]; }
    return times * 3 * GEMM_ROWS * GEMM_WIDTH;
}

static const GemmKernel GEMM_JOIN(GEMM_NAME, ) = {
    GEMM_STRING(GEMM_NAME), GEMM_WORDS, GEMM_ROWS, GEMM_MAX_COLS, 256, false, true, NULL, NULL,
    GEMM_MULTIPLY,          GEMM_BURN};

#undef GEMM_NAME
#undef GEMM_TARGET
#undef GEMM_WORDS
#undef GEMM_WIDTH
#undef GEMM_ROWS
#undef GEMM_SPREAD
#undef GEMM_ADD
#undef GEMM_PASTE
#undef GEMM_JOIN
#undef GEMM_QUOTE
#undef GEMM_STRING
#undef GEMM_VECTOR
#undef GEMM_MEMORY
#undef GEMM_SUMS
#undef GEMM_COLUMNS
#undef GEMM_MULTIPLY
#undef GEMM_BURN
