// The kernel for AMX. A tile register holds 16 rows of 64 bytes, and one instruction multiplies two of them. Two tiles
// of A times two of B give four of C: all eight registers, and each tile that is loaded serves two multiplies.
#ifndef LLMC_GEMM_AMX_H
#define LLMC_GEMM_AMX_H

#include "llmc/cpu/gemm_kernel.h"

// GEMM_AMX_TARGET is defined where the compiler knows AMX and the system is Linux. A test that has AMX in software
// defines it before.
#if !defined(GEMM_AMX_TARGET) && defined(__x86_64__) && defined(__linux__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define GEMM_AMX_TARGET __attribute__((target("amx-tile,amx-bf16")))
#endif

#ifdef GEMM_AMX_TARGET

// Asks the processor (bits 24 and 22 of EDX of leaf 7), then Linux: a process that does not ask for the registers by
// arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) is killed at their first use. Its threads need not ask again.
static inline bool has_amx(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool processor = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) && (d >> 22 & 1);
    return processor && syscall(SYS_arch_prctl, 0x1023L, 18L) == 0;
}

// Gives each register of the calling thread all 16 rows of 64 bytes.
GEMM_AMX_TARGET static inline void gemm_begin_amx(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16]; // the last 8 registers do not exist
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
}

// Frees the registers, so that Linux need not save them when it switches threads.
GEMM_AMX_TARGET static inline void gemm_end_amx(void) { _tile_release(); }

// Registers 0 .. 3 are C: upper left, upper right, lower left, lower right. 4 and 5 are A, 6 and 7 are B. Where one
// tile of rows or columns is enough, the panels hold no other.
GEMM_AMX_TARGET static inline void gemm_multiply_amx(float *tile, int64_t ld, const float *a, int64_t a_panel,
                                                     const float *b, int64_t depth, int64_t rows, int64_t cols,
                                                     bool add, const GemmAhead *ahead) {
    (void)add; // false: this kernel cannot
    const bool lower = rows > 16, right = cols > 16;
    __asm__ volatile("" ::: "memory"); // the intrinsics of gcc do not say that they read memory
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t w = 0; w < depth; w += 16) { // bytes from row to row: 16 words of A, 32 columns of B
        for (int64_t i = w / 2; i < w / 2 + 8; i++) { gemm_fetch(ahead, i); }
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_dpbf16ps(0, 4, 6);
        if (right) {
            _tile_loadd(7, b + 16, 128);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (lower) {
            _tile_loadd(5, a + a_panel, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (lower && right) { _tile_dpbf16ps(3, 5, 7); }
        a += 16 * 16;
        b += 16 * 32;
    }
    _tile_stored(0, tile, 4 * ld);
    if (right) { _tile_stored(1, tile + 16, 4 * ld); }
    if (lower) { _tile_stored(2, tile + 16 * ld, 4 * ld); }
    if (lower && right) { _tile_stored(3, tile + 16 * ld + 16, 4 * ld); }
}

// 128 words: both panels take 32 KB, and stay in a first-level cache of 48 KB.
static const GemmKernel gemm_amx = {"amx",        GEMM_PAIRS,        32,  32, 128, true, false, gemm_begin_amx,
                                    gemm_end_amx, gemm_multiply_amx, NULL};

#endif // GEMM_AMX_TARGET
#endif // LLMC_GEMM_AMX_H
