// AMX in software, written from Intel's description of palette 1: eight registers for each thread, and the rules by
// which the processor refuses an instruction. llmc/cpu/gemm_amx.h is compiled once more with it, as emulated_amx and
// emulated_has_amx, so that its source runs on every machine.
#ifndef AMX_EMULATED_H
#define AMX_EMULATED_H

#include "dev/test/test.h"
#include "llmc/cpu/gemm_amx.h"

// What the machine is, and what it has refused. A refused instruction does nothing.
static struct {
    unsigned cpuid_edx; // of leaf 7
    bool linux_permits, asked;
    int refusals, configured; // configured: threads that hold registers
    const char *refused;      // the last
} amx_machine = {1u << 24 | 1u << 22, true, false, 0, 0, ""};

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} AmxConfig;

static _Thread_local struct {
    AmxConfig config;
    uint8_t data[8][16][64];
} amx_thread;

static bool amx_require(bool condition, const char *rule) {
    if (!condition) {
        __atomic_add_fetch(&amx_machine.refusals, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&amx_machine.refused, rule, __ATOMIC_RELAXED);
    }
    return condition;
}

static int amx_cpuid(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    *a = *b = *c = 0;
    *d = leaf == 7 && subleaf == 0 ? amx_machine.cpuid_edx : 0;
    return 1;
}

// arch_prctl is number 158 on x86-64.
static long amx_syscall(long number, long code, long feature) {
    if (!amx_machine.linux_permits || number != 158 || code != 0x1023 || feature != 18) { return -1; }
    amx_machine.asked = true;
    return 0;
}

static void amx_release(void) {
    if (!amx_require(amx_machine.asked, "no permission for AMX")) { return; }
    if (amx_thread.config.palette != 0) { __atomic_sub_fetch(&amx_machine.configured, 1, __ATOMIC_RELAXED); }
    memset(&amx_thread, 0, sizeof(amx_thread));
}

static void amx_loadconfig(const void *from) {
    AmxConfig config;
    memcpy(&config, from, sizeof(config));
    bool ok = amx_require(amx_machine.asked, "no permission for AMX") &&
              amx_require(config.palette <= 1 && config.start_row == 0, "loadconfig: not palette 0 or 1, from row 0");
    for (int i = 0; ok && i < 16; i++) {
        int bytes = config.row_bytes[i], rows = config.rows[i];
        ok = amx_require(i < 8 || (bytes == 0 && rows == 0), "loadconfig: a tile that palette 1 has not") &&
             amx_require(bytes <= 64 && rows <= 16, "loadconfig: a tile beyond 16 rows of 64 bytes") &&
             amx_require((bytes == 0) == (rows == 0), "loadconfig: a tile with rows or columns only");
    }
    if (!ok) { return; }
    amx_release();
    amx_thread.config = config;
    if (config.palette != 0) { __atomic_add_fetch(&amx_machine.configured, 1, __ATOMIC_RELAXED); }
}

static bool amx_usable(int tile) {
    return amx_require(tile >= 0 && tile < 8, "a tile beyond 7") &&
           amx_require(amx_thread.config.palette == 1, "no configuration in this thread") &&
           amx_require(amx_thread.config.rows[tile] > 0, "the tile is not configured");
}

static void amx_zero(int tile) {
    if (amx_usable(tile)) { memset(amx_thread.data[tile], 0, sizeof(amx_thread.data[tile])); }
}

static void amx_loadd(int tile, const void *base, int64_t stride) {
    if (!amx_usable(tile)) { return; }
    amx_zero(tile); // what lies outside of the configured rows and bytes becomes zero
    for (int row = 0; row < amx_thread.config.rows[tile]; row++) {
        memcpy(amx_thread.data[tile][row], (const char *)base + row * stride, amx_thread.config.row_bytes[tile]);
    }
}

static void amx_stored(int tile, void *base, int64_t stride) {
    if (!amx_usable(tile)) { return; }
    for (int row = 0; row < amx_thread.config.rows[tile]; row++) {
        memcpy((char *)base + row * stride, amx_thread.data[tile][row], amx_thread.config.row_bytes[tile]);
    }
}

static float amx_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; } // a denormal is zero

// The bf16 at a byte of a tile's row.
static float amx_float(int tile, int row, int byte) {
    uint16_t half[2] = {0, 0}; // the lower half comes first
    float x;
    memcpy(&half[1], &amx_thread.data[tile][row][byte], 2);
    memcpy(&x, half, 4);
    return amx_flush(x);
}

static bool amx_shapes_match(int sums, int a, int b) {
    const uint8_t *rows = amx_thread.config.rows;
    const uint16_t *bytes = amx_thread.config.row_bytes;
    return amx_require(sums != a && sums != b && a != b, "dpbf16ps: one tile twice") &&
           amx_require(bytes[sums] % 4 == 0 && bytes[a] % 4 == 0 && bytes[b] % 4 == 0, "dpbf16ps: a part of a word") &&
           amx_require(rows[sums] == rows[a], "dpbf16ps: other rows in the first operand") &&
           amx_require(bytes[sums] == bytes[b], "dpbf16ps: other columns in the second operand") &&
           amx_require(bytes[a] / 4 == rows[b], "dpbf16ps: operands of different depths");
}

// sums (m, n) += a (m, k) b (k, n), where each k is a pair. Even and odd elements are added up apart, each step fused;
// then both are added, then the tile's element.
static void amx_dpbf16ps(int sums, int a, int b) {
    if (!amx_usable(sums) || !amx_usable(a) || !amx_usable(b) || !amx_shapes_match(sums, a, b)) { return; }
    float C[16][16];
    memcpy(C, amx_thread.data[sums], sizeof(C));
    for (int m = 0; m < amx_thread.config.rows[sums]; m++) {
        for (int n = 0; n < amx_thread.config.row_bytes[sums] / 4; n++) {
            float even = 0.0f, odd = 0.0f;
            for (int k = 0; k < amx_thread.config.rows[b]; k++) {
                even = amx_flush(fmaf(amx_float(a, m, 4 * k), amx_float(b, k, 4 * n), even));
                odd = amx_flush(fmaf(amx_float(a, m, 4 * k + 2), amx_float(b, k, 4 * n + 2), odd));
            }
            C[m][n] = amx_flush(amx_flush(C[m][n]) + amx_flush(even + odd));
        }
    }
    memcpy(amx_thread.data[sums], C, sizeof(C));
}

#undef LLMC_GEMM_AMX_H
#undef GEMM_AMX_TARGET
#undef SYS_arch_prctl
#undef __get_cpuid_count
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define GEMM_AMX_TARGET
#define SYS_arch_prctl 158
#define __get_cpuid_count amx_cpuid
#define syscall amx_syscall
#define _tile_loadconfig amx_loadconfig
#define _tile_release amx_release
#define _tile_zero amx_zero
#define _tile_loadd amx_loadd
#define _tile_stored amx_stored
#define _tile_dpbf16ps amx_dpbf16ps
#define has_amx emulated_has_amx
#define gemm_amx emulated_amx
#define gemm_begin_amx emulated_begin_amx
#define gemm_end_amx emulated_end_amx
#define gemm_multiply_amx emulated_multiply_amx
#include "llmc/cpu/gemm_amx.h"
#undef syscall
#undef has_amx
#undef gemm_amx
#undef gemm_begin_amx
#undef gemm_end_amx
#undef gemm_multiply_amx

// The emulated processor has refused nothing, and no thread has kept its tiles.
static void check_emulated(Test *t) {
    CHECK(t, amx_machine.refusals == 0, "AMX refused %d instructions: %s", amx_machine.refusals, amx_machine.refused);
    CHECK(t, amx_machine.configured == 0, "%d threads keep the tiles of AMX", amx_machine.configured);
}

#endif // AMX_EMULATED_H
