// The problem that every step of the ladder solves: C (M, N) = A (M, K) times B (K, N), row-major and without gaps.
#ifndef LADDER_PROBLEM_H
#define LADDER_PROBLEM_H

#include "llmc/cpu/gemm_kernel.h"
#include "llmc/cpu/simd.h"

typedef struct {
    float *C; // overlaps nothing else
    const float *A, *B;
    int64_t M, N, K;
    float *workspace; // LADDER_WORKSPACE floats for each thread, beginning at a multiple of 64 bytes
    int threads;      // that the steps with threads use
} Problem;

// How many numbers a multiply-add of the plain steps handles. Steps 1 to 5 are compiled twice: for one number at a
// time, without the compiler's vectors, and as usual.
#ifndef LANES
#define LANES VF_WIDTH
#endif

// The registers of a tile: TILE_ROWS x TILE_VECTORS sums, in 24 of 32 vector registers or in 12 of 16.
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE_ROWS 8
#else
#define TILE_ROWS 4
#endif
#define TILE_VECTORS 3

// clang unrolls loops by itself. Without this, gcc's loops would count as often as they multiply.
#if defined(__clang__)
#define UNROLL_4
#else
#define UNROLL_4 _Pragma("GCC unroll 4")
#endif

enum {
    BLOCK_ROWS = 256,  // of A: packed, BLOCK_ROWS x BLOCK_DEPTH floats are 256 KiB, a part of the second cache
    BLOCK_DEPTH = 256, // k that a block spans
    BLOCK_COLS = 256,  // of a block of B, which stays in the second cache
    LADDER_WORKSPACE = (BLOCK_ROWS + BLOCK_COLS) * BLOCK_DEPTH
};

#endif // LADDER_PROBLEM_H
