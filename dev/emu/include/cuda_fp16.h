// The emulator's half (1 sign, 5 exponent, 10 mantissa bits), with the names and the roundings of CUDA's header of this
// name.
#ifndef EMU_CUDA_FP16_H
#define EMU_CUDA_FP16_H

#include "emu_float16.h"

struct alignas(2) __half_raw {
    unsigned short x;
};
struct alignas(4) __half2_raw {
    unsigned short x, y;
};

namespace emu {

struct Half {
    typedef __half_raw Raw;
    typedef __half2_raw RawPair;
    static constexpr Format FORMAT = {5, 10, 0x7c00};
    static constexpr unsigned INFINITE = 0x7c00;

    // Every NaN becomes 0x7fff. Too large a number becomes infinity if the rounding mode leads away from zero, and the
    // largest finite number otherwise.
    static unsigned short round(double x, Rounding rounding) {
        if (x != x) { return 0x7fff; }
        bool negative = std::signbit(x), away = rounding == NEAREST_EVEN || rounding == (negative ? DOWN : UP);
        uint32_t code = encode(x, FORMAT, rounding);
        if (code >= INFINITE) { code = away || std::isinf(x) ? INFINITE : INFINITE - 1; }
        return (unsigned short)(negative << 15 | code);
    }
    static float value(unsigned short bits) {
        uint32_t code = bits & 0x7fffu, sign = (uint32_t)(bits >> 15) << 31;
        if (code > INFINITE) { return float_of_bits(0x7fffffffu); }
        return code == INFINITE ? float_of_bits(sign | 0x7f800000u)
                                : float_of_bits(sign | float_bits((float)decode(code, FORMAT)));
    }
};

} // namespace emu

typedef emu::Number16<emu::Half> __half, half;
typedef emu::Pair16<emu::Half> __half2, half2;
EMU_NUMBER16(half, __half, emu::Half)

#endif // EMU_CUDA_FP16_H
