// Shared by the emulator's small floating-point types: the bits of a float, and correct rounding of a double to any
// smaller format in the four rounding modes of the hardware.
//
// These headers are compiled like the code under test, on purpose: if an operator takes a reference to device memory,
// its access counts as the kernel's and is checked.
#ifndef EMU_FLOAT_H
#define EMU_FLOAT_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace emu {

// Adds `value` to memory atomically, 16 bits by 16 bits. add: the sum of two numbers as bits.
uint16_t atomic_add_bits(uint16_t *address, uint16_t value, uint16_t (*add)(uint16_t, uint16_t), const char *file,
                         int line);
uint32_t atomic_add_bits(uint32_t *address, uint32_t value, uint16_t (*add)(uint16_t, uint16_t), const char *file,
                         int line);

enum Rounding { NEAREST_EVEN, TOWARDS_ZERO, DOWN, UP };

static inline uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}
static inline float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

// A format with a sign, exponent_bits and mantissa_bits, subnormals, and `overflow`, the first code (without the sign)
// beyond the largest finite value.
struct Format {
    int exponent_bits, mantissa_bits;
    uint32_t overflow;
};

// |x| was cut to `code`, and `rest` (in units of the last place) was lost. Says whether rounding gives code + 1.
static inline bool rounds_away(uint32_t code, double rest, bool negative, Rounding rounding) {
    switch (rounding) {
    case NEAREST_EVEN: return rest > 0.5 || (rest == 0.5 && code % 2 == 1);
    case DOWN: return rest > 0.0 && negative;
    case UP: return rest > 0.0 && !negative;
    default: return false;
    }
}

// The code of x without the sign. x is not a NaN. The exponent is as large as needed, so the result may be `overflow`
// or more. The caller decides what a number too large becomes.
static inline uint32_t encode(double x, Format format, Rounding rounding) {
    if (std::isinf(x)) { return UINT32_MAX; }
    int exponent = 0, smallest = 2 - (1 << (format.exponent_bits - 1)); // of a normal number
    std::frexp(x, &exponent);
    exponent = exponent - 1 < smallest || x == 0.0 ? smallest : exponent - 1;
    double units = std::ldexp(std::fabs(x), format.mantissa_bits - exponent); // below 2^(mantissa_bits + 1), exact
    uint32_t whole = (uint32_t)units;
    // A normal number has the bit 2^mantissa_bits, which counts as one in the exponent's field.
    uint32_t code = ((uint32_t)(exponent - smallest) << format.mantissa_bits) + whole;
    return code + rounds_away(whole, units - whole, std::signbit(x), rounding);
}

// The value of a code without the sign, for codes below `overflow`.
static inline double decode(uint32_t code, Format format) {
    int smallest = 2 - (1 << (format.exponent_bits - 1));
    uint32_t field = code >> format.mantissa_bits, mantissa = code & ((1u << format.mantissa_bits) - 1);
    if (field > 0) { mantissa += 1u << format.mantissa_bits, field -= 1; }
    return std::ldexp((double)mantissa, smallest + (int)field - format.mantissa_bits);
}

// x + error, to 53 bits, rounded to odd: when bits are lost the last one is set. If that is then rounded to a
// format of at most 50 bits, the result is the exact sum rounded, in every mode.
static inline double add_to_odd(double x, double error) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (error == 0.0 || std::isnan(error) || std::isinf(x) || bits % 2 == 1) { return x; }
    bits += (error > 0.0) == (x > 0.0) ? 1 : UINT64_MAX; // the neighbour in the direction of the error is odd
    memcpy(&x, &bits, sizeof(x));
    return x;
}

// a * b + c where a * b is exact in double, for a final rounding to a smaller format.
static inline double fma_to_odd(double a, double b, double c) {
    double product = a * b, sum = product + c;
    double c_part = sum - product, product_part = sum - c_part; // the part of each that is in the sum (Knuth's two-sum)
    return add_to_odd(sum, (product - product_part) + (c - c_part));
}

// An integer as a double, for a final rounding to a smaller format.
template <class Integer> static inline double integer_to_odd(Integer x) {
    double nearest = (double)x;
    // |x| below 2^53 is exact. All 32-bit integers are.
    if (sizeof(Integer) <= 4 || std::fabs(nearest) < 9007199254740992.0) { return nearest; }
    return add_to_odd(nearest, (double)((__int128)x - (__int128)nearest));
}

// Converts like the hardware: cuts towards zero and limits to the range of the integer. A NaN gives 0, or the sign bit
// in 64 bits.
template <class Integer> static inline Integer to_integer(float x) {
    typedef std::numeric_limits<Integer> Limits;
    if (x != x) { return sizeof(Integer) < 8 ? 0 : (Integer)(1ull << 63); }
    if (x >= std::ldexp(1.0f, Limits::digits)) { return Limits::max(); }
    if (x <= (float)Limits::min()) { return Limits::min(); }
    return (Integer)x;
}

} // namespace emu

#endif // EMU_FLOAT_H
