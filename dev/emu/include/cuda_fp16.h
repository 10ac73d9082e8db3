// The emulator's half (1 sign, 5 exponent, 10 mantissa bits), with the names and the roundings of CUDA's header of this
// name.
#ifndef EMU_CUDA_FP16_H
#define EMU_CUDA_FP16_H

#include "emu_float.h"
#include "vector_types.h"

struct alignas(2) __half_raw {
    unsigned short x;
};
struct alignas(4) __half2_raw {
    unsigned short x, y;
};

namespace emu {

static const Format HALF = {5, 10, 0x7c00};

// Every NaN becomes 0x7fff. Too large a number becomes infinity if the rounding mode leads away from zero, and the
// largest finite number otherwise.
static inline unsigned short half_bits(double x, Rounding rounding) {
    if (x != x) { return 0x7fff; }
    bool negative = std::signbit(x), away = rounding == NEAREST_EVEN || rounding == (negative ? DOWN : UP);
    uint32_t code = encode(x, HALF, rounding);
    if (code >= HALF.overflow) { code = away || std::isinf(x) ? HALF.overflow : HALF.overflow - 1; }
    return (unsigned short)(negative << 15 | code);
}

static inline float half_value(unsigned short bits) {
    uint32_t code = bits & 0x7fffu, sign = (uint32_t)(bits >> 15) << 31;
    if (code > HALF.overflow) { return float_of_bits(0x7fffffffu); }
    return code == HALF.overflow ? float_of_bits(sign | 0x7f800000u)
                                 : float_of_bits(sign | float_bits((float)decode(code, HALF)));
}

} // namespace emu

// Has CUDA's implicit conversions, so that an expression that is ambiguous there is ambiguous here.
struct alignas(2) __half {
  protected:
    unsigned short bits;

  public:
    __half() = default;
    constexpr __half(const __half_raw &raw) : bits(raw.x) {}
    __half(float x) : bits(emu::half_bits(x, emu::NEAREST_EVEN)) {}
    __half(double x) : bits(emu::half_bits(x, emu::NEAREST_EVEN)) {}
    __half(short x) : __half((double)x) {}
    __half(unsigned short x) : __half((double)x) {}
    __half(int x) : __half((double)x) {}
    __half(unsigned x) : __half((double)x) {}
    __half(long x) : __half(emu::integer_to_odd(x)) {}
    __half(unsigned long x) : __half(emu::integer_to_odd(x)) {}
    __half(long long x) : __half(emu::integer_to_odd(x)) {}
    __half(unsigned long long x) : __half(emu::integer_to_odd(x)) {}

    operator __half_raw() const { return {bits}; }
    operator float() const { return emu::half_value(bits); }
    operator bool() const { return (bits & 0x7fff) != 0; }
    operator signed char() const { return emu::to_integer<signed char>(*this); }
    operator unsigned char() const { return emu::to_integer<unsigned char>(*this); }
    operator char() const { return emu::to_integer<char>(*this); }
    operator short() const { return emu::to_integer<short>(*this); }
    operator unsigned short() const { return emu::to_integer<unsigned short>(*this); }
    operator int() const { return emu::to_integer<int>(*this); }
    operator unsigned() const { return emu::to_integer<unsigned>(*this); }
    operator long() const { return emu::to_integer<long>(*this); }
    operator unsigned long() const { return emu::to_integer<unsigned long>(*this); }
    operator long long() const { return emu::to_integer<long long>(*this); }
    operator unsigned long long() const { return emu::to_integer<unsigned long long>(*this); }
};
typedef __half half;

struct alignas(4) __half2 {
    __half x, y; // x is the lower half

    __half2() = default;
    constexpr __half2(const __half &low, const __half &high) : x(low), y(high) {}
    __half2(const __half2_raw &raw) : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
    operator __half2_raw() const { return {__half_raw(x).x, __half_raw(y).x}; }
};
typedef __half2 half2;

// ---- Bits and conversions ----

static inline __half __ushort_as_half(unsigned short bits) { return __half_raw{bits}; }
static inline unsigned short __half_as_ushort(__half x) { return __half_raw(x).x; }

static inline float __half2float(__half x) { return x; }
static inline __half __float2half(float x) { return x; }
static inline __half __float2half_rn(float x) { return x; }
static inline __half __float2half_rz(float x) { return __ushort_as_half(emu::half_bits(x, emu::TOWARDS_ZERO)); }
static inline __half __float2half_rd(float x) { return __ushort_as_half(emu::half_bits(x, emu::DOWN)); }
static inline __half __float2half_ru(float x) { return __ushort_as_half(emu::half_bits(x, emu::UP)); }
static inline __half __double2half(double x) { return x; }
static inline __half __int2half_rn(int x) { return x; }
static inline __half __ll2half_rn(long long x) { return x; }
static inline int __half2int_rz(__half x) { return x; }
static inline long long __half2ll_rz(__half x) { return x; }

static inline __half2 make_half2(__half low, __half high) { return {low, high}; }
static inline __half2 __halves2half2(__half low, __half high) { return {low, high}; }
static inline __half2 __half2half2(__half x) { return {x, x}; }
static inline __half2 __floats2half2_rn(float low, float high) { return {low, high}; }
static inline __half2 __float2half2_rn(float x) { return {x, x}; }
static inline __half2 __float22half2_rn(float2 x) { return {x.x, x.y}; }
static inline float2 __half22float2(__half2 x) { return {x.x, x.y}; }
static inline float __low2float(__half2 x) { return x.x; }
static inline float __high2float(__half2 x) { return x.y; }
static inline __half __low2half(__half2 x) { return x.x; }
static inline __half __high2half(__half2 x) { return x.y; }

// ---- Comparisons and arithmetic: each result is the exact one, rounded once (a float has enough digits) ----

static inline bool __hisnan(__half x) { return (__half_as_ushort(x) & 0x7fff) > 0x7c00; }
static inline bool operator==(const __half &a, const __half &b) { return (float)a == (float)b; }
static inline bool operator!=(const __half &a, const __half &b) { return (float)a != (float)b; }
static inline bool operator<(const __half &a, const __half &b) { return (float)a < (float)b; }
static inline bool operator<=(const __half &a, const __half &b) { return (float)a <= (float)b; }
static inline bool operator>(const __half &a, const __half &b) { return (float)a > (float)b; }
static inline bool operator>=(const __half &a, const __half &b) { return (float)a >= (float)b; }

static inline __half __hadd(__half a, __half b) { return (float)a + (float)b; }
static inline __half __hsub(__half a, __half b) { return (float)a - (float)b; }
static inline __half __hmul(__half a, __half b) { return (float)a * (float)b; }
static inline __half __hdiv(__half a, __half b) { return (float)a / (float)b; }
static inline __half __hfma(__half a, __half b, __half c) { return emu::fma_to_odd((float)a, (float)b, (float)c); }

static inline __half operator+(const __half &a, const __half &b) { return __hadd(a, b); }
static inline __half operator-(const __half &a, const __half &b) { return __hsub(a, b); }
static inline __half operator*(const __half &a, const __half &b) { return __hmul(a, b); }
static inline __half operator/(const __half &a, const __half &b) { return __hdiv(a, b); }
static inline __half &operator+=(__half &a, const __half &b) { return a = __hadd(a, b); }
static inline __half &operator-=(__half &a, const __half &b) { return a = __hsub(a, b); }
static inline __half &operator*=(__half &a, const __half &b) { return a = __hmul(a, b); }
static inline __half &operator/=(__half &a, const __half &b) { return a = __hdiv(a, b); }

// ---- Atomics ----

namespace emu {
static inline uint16_t add_half(uint16_t a, uint16_t b) {
    return __half_as_ushort(__hadd(__ushort_as_half(a), __ushort_as_half(b)));
}
} // namespace emu

static inline __half atomicAdd(__half *address, __half value, EMU_HERE) {
    return __ushort_as_half(emu::atomic_add_bits(reinterpret_cast<uint16_t *>(address), __half_as_ushort(value),
                                                 emu::add_half, file, line));
}
// Each of the two is added atomically.
static inline __half2 atomicAdd(__half2 *address, __half2 value, EMU_HERE) {
    uint32_t bits = __half_as_ushort(value.x) | (uint32_t)__half_as_ushort(value.y) << 16;
    uint32_t old = emu::atomic_add_bits(reinterpret_cast<uint32_t *>(address), bits, emu::add_half, file, line);
    return {__ushort_as_half((unsigned short)old), __ushort_as_half((unsigned short)(old >> 16))};
}

#endif // EMU_CUDA_FP16_H
