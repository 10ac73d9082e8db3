// Step 8: bf16. A number gives up 16 of the 24 bits of its mantissa when it is packed, and then takes 2 bytes. The sums
// keep fp32.
//
// AVX512-BF16 has an instruction that multiplies 16 pairs of bf16 numbers and adds both products of a pair to one sum
// of 16: twice the work of a multiply-add in fp32. So a panel of B holds 32-bit words, and a word holds two neighbours
// along k: element 2k in the low half, 2k + 1 in the high half. A panel is half as deep, and caches hold twice as much
// of B. The price is the rounding: each product is off by up to 2^-8 of itself, twice.
//
//     per instruction (2 multiply-adds in each lane): 11 / 24 loads, 0 stores
#ifndef LADDER_STEP8_H
#define LADDER_STEP8_H

#include "dev/cpu/step7_threads.h"
#include "llmc/cpu/shuffles.h"

// Packs pairs: word k * width + lane holds numbers 2k and 2k + 1 of a lane. Number k is from[lane * lane_stride + k *
// k_stride]. Zeros fill a panel up to a depth that is a multiple of 32, which step 9 needs.
static inline void pack_pairs(float *to, int64_t width, const float *from, int64_t lane_stride, int64_t k_stride,
                              int64_t lanes, int64_t depth) {
    float pair[2][BLOCK_COLS] = {{0.0f}};
    for (int64_t k = 0; k < round_up_i64(depth, 32); k++) {
        for (int64_t lane = 0; lane < lanes; lane++) {
            pair[k % 2][lane] = k < depth ? from[lane * lane_stride + k * k_stride] : 0.0f;
        }
        for (int64_t lane = 0; k % 2 == 1 && lane < width; lane += VF_WIDTH) {
            vf words = vf_pair_lanes(vf_load(pair[0] + lane), vf_load(pair[1] + lane)); // rounds to bf16
            vf_store_n(to + k / 2 * width + lane, words, width - lane);
        }
    }
}

static inline void pack_column_pairs(float *to, int64_t width, const float *from, int64_t stride, int64_t lanes,
                                     int64_t depth) {
    pack_pairs(to, width, from, 1, stride, lanes, depth);
}

static inline void pack_row_pairs(float *to, int64_t width, const float *from, int64_t stride, int64_t lanes,
                                  int64_t depth) {
    pack_pairs(to, width, from, stride, 1, lanes, depth);
}

#if defined(__x86_64__)
#include <immintrin.h>
#define STEP8_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

enum { BF16_ROWS = 8, BF16_VECTORS = 3, BF16_COLS = 16 * BF16_VECTORS };

STEP8_TARGET static inline void multiply_pairs(float *tile, const float *a, const float *b, int64_t depth) {
    __m512 sums[BF16_ROWS][BF16_VECTORS];
    GEMM_UNROLL for (int i = 0; i < BF16_ROWS * BF16_VECTORS; i++) { sums[i / 3][i % 3] = _mm512_setzero_ps(); }
    for (int64_t k = 0; k < (depth + 1) / 2; k++) {
        __m512bh row_of_b[BF16_VECTORS];
        GEMM_UNROLL for (int j = 0; j < BF16_VECTORS; j++) {
            row_of_b[j] = (__m512bh)_mm512_loadu_ps(b + k * BF16_COLS + j * 16);
        }
        GEMM_UNROLL for (int i = 0; i < BF16_ROWS; i++) {
            __m512bh pair_of_a = (__m512bh)_mm512_set1_epi32(((const GemmBits *)a)[k * BF16_ROWS + i]);
            GEMM_UNROLL for (int j = 0; j < BF16_VECTORS; j++) {
                sums[i][j] = _mm512_dpbf16_ps(sums[i][j], pair_of_a, row_of_b[j]);
            }
        }
    }
    GEMM_UNROLL for (int i = 0; i < BF16_ROWS; i++) {
        GEMM_UNROLL for (int j = 0; j < BF16_VECTORS; j++) {
            _mm512_storeu_ps(tile + i * BF16_COLS + j * 16, sums[i][j]);
        }
    }
}

static inline void bf16_serial(const Problem *p) {
    static const Kernel kernel = {BF16_ROWS, BF16_COLS, pack_row_pairs, pack_column_pairs, multiply_pairs};
    packed_multiply(p, &kernel);
}

static inline void step8_bf16(const Problem *p) { on_threads(p, bf16_serial); }
#else
#define step8_bf16 NULL
#endif

#endif // LADDER_STEP8_H
