// The vector kernels for x86-64 processors. Each is compiled for its instruction set, whatever the rest of the program
// is compiled for. kernels.h asks the processor before it uses one.
#ifndef LLMC_GEMM_X86_H
#define LLMC_GEMM_X86_H

#include "llmc/cpu/gemm_kernel.h"
#if defined(__x86_64__)
#include <immintrin.h>

#define GEMM_NAME avx2
#define GEMM_TARGET __attribute__((target("avx2,fma")))
#define GEMM_WIDTH 8
#define GEMM_ROWS 4
#define GEMM_ADD(sum, a, b) ((GEMM_VECTOR)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(sum)))
#include "llmc/cpu/gemm_tile.h"

#define GEMM_NAME avx512
#define GEMM_TARGET __attribute__((target("avx512f")))
#define GEMM_WIDTH 16
#define GEMM_ROWS 8
#define GEMM_ADD(sum, a, b) ((GEMM_VECTOR)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(sum)))
#include "llmc/cpu/gemm_tile.h"

// vdpbf16ps: each lane adds the products of two pairs. Words of A are spread as integers, because a pair may look like
// a NaN.
#define GEMM_NAME avx512bf16
#define GEMM_WORDS GEMM_PAIRS
#define GEMM_TARGET __attribute__((target("avx512f,avx512bf16")))
#define GEMM_WIDTH 16
#define GEMM_ROWS 8
#define GEMM_SPREAD(a, i) ((__m512bh)_mm512_set1_epi32(((const GemmBits *)(a))[i]))
#define GEMM_ADD(sum, a, b) ((GEMM_VECTOR)_mm512_dpbf16_ps((__m512)(sum), (a), (__m512bh)(b)))
#include "llmc/cpu/gemm_tile.h"

#endif // __x86_64__
#endif // LLMC_GEMM_X86_H
