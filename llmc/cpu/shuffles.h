// Moves lanes of vectors (simd.h) for the packing of matrices: transposes a square of them, and joins pairs of floats
// as bf16, which take the bits of one float.
#ifndef LLMC_SHUFFLES_H
#define LLMC_SHUFFLES_H

#include "llmc/cpu/gemm_kernel.h"
#include "llmc/cpu/simd.h"
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#if VF_WIDTH == 16
#define VF_ZIP_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define VF_ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define VF_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define VF_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif VF_WIDTH == 8
#define VF_ZIP_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define VF_ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#define VF_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define VF_ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define VF_ZIP_LOW 0, 4, 1, 5
#define VF_ZIP_HIGH 2, 6, 3, 7
#define VF_EVEN 0, 2, 4, 6
#define VF_ODD 1, 3, 5, 7
#endif

// Lanes of a and b by their numbers; those of b begin at VF_WIDTH.
#if defined(__clang__)
#define VF_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define VF_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

// low = a0 b0 a1 b1 ... of the lower halves, high = of the upper halves.
static inline void vf_zip(vf a, vf b, vf *low, vf *high) {
    *low = VF_SHUFFLE(a, b, VF_ZIP_LOW);
    *high = VF_SHUFFLE(a, b, VF_ZIP_HIGH);
}

// Exchanges row and lane of a square. Zipping row i with row i + VF_WIDTH / 2 rotates the bits of (row, lane) by one;
// log2(VF_WIDTH) rounds exchange row and lane.
static inline void vf_transpose(vf rows[VF_WIDTH]) {
    vf zipped[VF_WIDTH];
    GEMM_UNROLL for (int round = 1; round < VF_WIDTH; round *= 2) {
        GEMM_UNROLL for (int i = 0; i < VF_WIDTH / 2; i++) {
            vf_zip(rows[i], rows[i + VF_WIDTH / 2], &zipped[2 * i], &zipped[2 * i + 1]);
        }
        GEMM_UNROLL for (int i = 0; i < VF_WIDTH; i++) { rows[i] = zipped[i]; }
    }
}

typedef uint32_t vu __attribute__((vector_size(VF_WIDTH * 4)));

// Rounds to bf16, the upper half of a float, to the nearest, ties to even. A NaN stays a NaN, and infinity infinity; a
// number above the largest bf16 becomes infinity.
static inline vf vf_round_bf16(vf x) {
    vu bits = (vu)x; // unsigned: the sum may overflow for a NaN
    vu rounded = bits + 0x7fff + ((bits >> 16) & 1);
    vu nan = bits | 0x400000; // without this bit, a NaN whose upper half holds no fraction would become infinity
    return (vf)((vu)vf_select(x == x, (vf)rounded, (vf)nan) & 0xffff0000);
}

#if defined(__AVX512BF16__)
// Lane i holds a pair: even[i] in the low half, odd[i] in the high half, both rounded to bf16. The instruction takes
// subnormal numbers for zeros.
static inline vf vf_pair_lanes(vf even, vf odd) {
    const __m512i zip = {0x0011000100100000, 0x0013000300120002, 0x0015000500140004, 0x0017000700160006,
                         0x0019000900180008, 0x001b000b001a000a, 0x001d000d001c000c, 0x001f000f001e000e};
    __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    return (vf)_mm512_permutexvar_epi16(zip, halves);
}

// Lane i holds a pair: elements 2i and 2i + 1 of the row that begins with `first` and goes on with `next`.
static inline vf vf_pair_neighbours(vf first, vf next) { return (vf)_mm512_cvtne2ps_pbh((__m512)next, (__m512)first); }
#else
// Lane i holds a pair: even[i] in the low half, odd[i] in the high half, both rounded to bf16.
static inline vf vf_pair_lanes(vf even, vf odd) {
    vi low = ((vi)vf_round_bf16(even) >> 16) & 0xffff, high = (vi)vf_round_bf16(odd);
    return (vf)(low | high);
}

// Lane i holds a pair: elements 2i and 2i + 1 of the row that begins with `first` and goes on with `next`.
static inline vf vf_pair_neighbours(vf first, vf next) {
    return vf_pair_lanes(VF_SHUFFLE(first, next, VF_EVEN), VF_SHUFFLE(first, next, VF_ODD));
}
#endif

#endif // LLMC_SHUFFLES_H
