// The kernel for ARM processors that multiply bf16. bfmmla multiplies two rows of A by two columns of B, four elements
// of k each. Word w and word w + 1 of neighbouring lanes, zipped, are such operands.
#ifndef LLMC_GEMM_ARM_H
#define LLMC_GEMM_ARM_H

#include "llmc/cpu/gemm_kernel.h"

// GEMM_BFMMLA_TARGET is defined where the compiler knows the instruction: in any build with gcc, with others in one for
// a processor that has it.
#if defined(__aarch64__) && defined(__linux__)
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define GEMM_BFMMLA_TARGET
#elif !defined(__clang__) && __GNUC__ >= 10
#define GEMM_BFMMLA_TARGET __attribute__((target("arch=armv8.2-a+bf16")))
#endif
#endif

#ifdef GEMM_BFMMLA_TARGET
#include <arm_neon.h>
#include <sys/auxv.h>

// Linux says what the processor has: bit 14 is HWCAP2_BF16.
static inline bool has_bfmmla(void) { return getauxval(AT_HWCAP2) >> 14 & 1; }

// The operands of lanes 0, 1 and 2, 3: four elements of k of each. next: from word to word.
__attribute__((always_inline)) GEMM_BFMMLA_TARGET static inline void gemm_bfmmla_operands(bfloat16x8_t to[2],
                                                                                          const float *from, int next) {
    float32x4_t words = vld1q_f32(from), more = vld1q_f32(from + next);
    to[0] = vreinterpretq_bf16_f32(vzip1q_f32(words, more));
    to[1] = vreinterpretq_bf16_f32(vzip2q_f32(words, more));
}

// Computes 4 * quads rows and 8 columns of the tile. Past an odd depth, both panels hold zeros.
__attribute__((always_inline)) GEMM_BFMMLA_TARGET static inline void gemm_bfmmla_tile(float *tile, int64_t ld,
                                                                                      const float *a, const float *b,
                                                                                      int64_t depth, int quads,
                                                                                      const GemmAhead *ahead) {
    float32x4_t sums[4][4]; // of two rows and two columns each
    GEMM_UNROLL for (int i = 0; i < 2 * quads; i++) {
        GEMM_UNROLL for (int j = 0; j < 4; j++) { sums[i][j] = vdupq_n_f32(0.0f); }
    }
    for (int64_t w = 0; w < depth; w += 2, a += 2 * GEMM_LANES, b += 2 * GEMM_MAX_COLS) {
        bfloat16x8_t rows[4], cols[4];
        gemm_fetch(ahead, w / 2);
        GEMM_UNROLL for (int i = 0; i < quads; i++) { gemm_bfmmla_operands(rows + 2 * i, a + 4 * i, GEMM_LANES); }
        GEMM_UNROLL for (int j = 0; j < 2; j++) { gemm_bfmmla_operands(cols + 2 * j, b + 4 * j, GEMM_MAX_COLS); }
        GEMM_UNROLL for (int i = 0; i < 2 * quads; i++) {
            GEMM_UNROLL for (int j = 0; j < 4; j++) { sums[i][j] = vbfmmlaq_f32(sums[i][j], rows[i], cols[j]); }
        }
    }
    GEMM_UNROLL for (int i = 0; i < 2 * quads; i++) {
        GEMM_UNROLL for (int j = 0; j < 4; j++) {
            vst1_f32(tile + 2 * i * ld + 2 * j, vget_low_f32(sums[i][j]));
            vst1_f32(tile + (2 * i + 1) * ld + 2 * j, vget_high_f32(sums[i][j]));
        }
    }
}

GEMM_BFMMLA_TARGET static inline void gemm_multiply_bfmmla(float *tile, int64_t ld, const float *a, int64_t a_panel,
                                                           const float *b, int64_t depth, int64_t rows, int64_t cols,
                                                           bool add, const GemmAhead *ahead) {
    (void)a_panel, (void)add; // one panel of A is enough, and this kernel cannot add
    for (int64_t j = 0; j < cols; j += 8, ahead = &gemm_nothing_ahead) {
        if (rows <= 4) {
            gemm_bfmmla_tile(tile + j, ld, a, b + j, depth, 1, ahead);
        } else {
            gemm_bfmmla_tile(tile + j, ld, a, b + j, depth, 2, ahead);
        }
    }
}

static const GemmKernel gemm_bfmmla = {"bfmmla", GEMM_PAIRS,           8,   48, 256, false, false, NULL,
                                       NULL,     gemm_multiply_bfmmla, NULL};

#endif // GEMM_BFMMLA_TARGET
#endif // LLMC_GEMM_ARM_H
