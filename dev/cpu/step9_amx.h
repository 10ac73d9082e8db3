// Step 9: AMX. A register is now a whole matrix, a tile of 16 rows of 64 bytes. One instruction multiplies two tiles:
// 16 x 32 numbers in bf16 times 32 x 16, added to 16 x 16 sums in fp32. That is 8,192 multiply-adds, in 16 cycles.
//
// There are 8 tiles: 2 x 2 of sums, 2 of A, 2 of B. So 4 instructions need 4 loads of a tile. A tile of B has a row for
// each pair along k, so a panel of B is packed as in step 8. A tile of A holds 32 numbers along k of 16 rows of A. A
// tile is 16 lines of a cache. The first cache gives two lines in a cycle, so the loads keep up there; the second gives
// one at best. The price: the process asks Linux for the tiles once, and each thread says what shape they have.
//
//     per instruction: 1 load of a tile, 0 stores
#ifndef LADDER_STEP9_H
#define LADDER_STEP9_H

#include "dev/cpu/step8_bf16.h"
#include "llmc/cpu/gemm_amx.h"

#ifdef GEMM_AMX_TARGET // the compiler knows AMX, or a test has it in software

enum { AMX_SIZE = 32, AMX_DEPTH = 32 }; // of a tile of C: 2 x 2 registers; k of an instruction

// Packs up to 32 rows: for each 32 numbers along k, the two registers of A, row by row.
static inline void pack_amx_rows(float *to, int64_t width, const float *from, int64_t stride, int64_t lanes,
                                 int64_t depth) {
    for (int64_t k = 0; k < depth; k += AMX_DEPTH) {
        for (int64_t row = 0; row < width; row++, to += AMX_DEPTH / 2) {
            pack_pairs(to, 1, from + row * stride + k, 0, 1, row < lanes, min_i64(AMX_DEPTH, depth - k));
        }
    }
}

// Gives each tile 16 rows of 64 bytes.
GEMM_AMX_TARGET static inline void configure_tiles(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64))) = {.palette = 1};
    for (int i = 0; i < 8; i++) { config.rows[i] = 16, config.row_bytes[i] = 64; }
    _tile_loadconfig(&config);
}

GEMM_AMX_TARGET static inline void multiply_amx(float *tile, const float *a, const float *b, int64_t depth) {
    __asm__ volatile("" ::: "memory"); // gcc does not know that a load of a tile reads what was packed
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < depth; k += AMX_DEPTH) {
        _tile_loadd(4, a, 64);
        _tile_loadd(5, a + 16 * 16, 64);
        _tile_loadd(6, b, AMX_SIZE * 4);
        _tile_loadd(7, b + 16, AMX_SIZE * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a += 2 * 16 * 16, b += AMX_DEPTH / 2 * AMX_SIZE;
    }
    _tile_stored(0, tile, AMX_SIZE * 4);
    _tile_stored(1, tile + 16, AMX_SIZE * 4);
    _tile_stored(2, tile + 16 * AMX_SIZE, AMX_SIZE * 4);
    _tile_stored(3, tile + 16 * AMX_SIZE + 16, AMX_SIZE * 4);
}

GEMM_AMX_TARGET static inline void amx_serial(const Problem *p) {
    static const Kernel kernel = {AMX_SIZE, AMX_SIZE, pack_amx_rows, pack_column_pairs, multiply_amx};
    configure_tiles();
    packed_multiply(p, &kernel);
    _tile_release();
}

static inline void step9_amx(const Problem *p) { on_threads(p, amx_serial); }
#else
#define step9_amx NULL
#endif

#endif // LADDER_STEP9_H
