// The emulator's bf16 (1 sign, 8 exponent, 7 mantissa bits: the upper half of a float), with the names and the
// roundings of CUDA's header of this name.
#ifndef EMU_CUDA_BF16_H
#define EMU_CUDA_BF16_H

#include "emu_float16.h"

struct alignas(2) __nv_bfloat16_raw {
    unsigned short x;
};
struct alignas(4) __nv_bfloat162_raw {
    unsigned short x, y;
};

namespace emu {

struct Bf16 {
    typedef __nv_bfloat16_raw Raw;
    typedef __nv_bfloat162_raw RawPair;
    static constexpr unsigned INFINITE = 0x7f80;

    // Cuts to the upper half, then adds one where the rounding mode says so. Every NaN becomes 0x7fff. A carry into the
    // exponent gives the right number.
    static unsigned short round(float x, Rounding rounding) {
        uint32_t bits = float_bits(x), rest = bits & 0xffffu, kept = bits >> 16;
        bool negative = bits >> 31, up = false;
        if (x != x) { return 0x7fff; }
        switch (rounding) {
        case NEAREST_EVEN: up = rest + (kept & 1) > 0x8000u; break;
        case TOWARDS_ZERO: break;
        case DOWN: up = rest > 0 && negative; break;
        case UP: up = rest > 0 && !negative; break;
        }
        return (unsigned short)(kept + up);
    }
    static unsigned short round(double x, Rounding) { // to the nearest
        if (x != x) { return 0x7fff; }
        uint32_t code = encode(x, {8, 7, INFINITE}, NEAREST_EVEN);
        return (unsigned short)((std::signbit(x) ? 0x8000u : 0u) | (code < INFINITE ? code : INFINITE));
    }
    static float value(unsigned short bits) { return float_of_bits((uint32_t)bits << 16); }
};

} // namespace emu

typedef emu::Number16<emu::Bf16> __nv_bfloat16, nv_bfloat16;
typedef emu::Pair16<emu::Bf16> __nv_bfloat162, nv_bfloat162;
EMU_NUMBER16(bfloat16, __nv_bfloat16, emu::Bf16)

#endif // EMU_CUDA_BF16_H
