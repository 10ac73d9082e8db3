// The emulator's bf16 (1 sign, 8 exponent, 7 mantissa bits: the upper half of a float), with the names and the
// roundings of CUDA's header of this name.
#ifndef EMU_CUDA_BF16_H
#define EMU_CUDA_BF16_H

#include "emu_float.h"
#include "vector_types.h"

struct alignas(2) __nv_bfloat16_raw {
    unsigned short x;
};
struct alignas(4) __nv_bfloat162_raw {
    unsigned short x, y;
};

namespace emu {

// Cuts to the upper half, then adds one where the rounding mode says so. Every NaN becomes 0x7fff. A carry into the
// exponent gives the right number.
static inline unsigned short bf16_bits(float x, Rounding rounding) {
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

static inline unsigned short bf16_bits_of_double(double x) {
    if (x != x) { return 0x7fff; }
    uint32_t code = encode(x, {8, 7, 0x7f80}, NEAREST_EVEN);
    return (unsigned short)((std::signbit(x) ? 0x8000u : 0u) | (code < 0x7f80u ? code : 0x7f80u));
}

} // namespace emu

// Has CUDA's implicit conversions, so that an expression that is ambiguous there is ambiguous here.
struct alignas(2) __nv_bfloat16 {
  protected:
    unsigned short bits;

  public:
    __nv_bfloat16() = default;
    constexpr __nv_bfloat16(const __nv_bfloat16_raw &raw) : bits(raw.x) {}
    __nv_bfloat16(float x) : bits(emu::bf16_bits(x, emu::NEAREST_EVEN)) {}
    __nv_bfloat16(double x) : bits(emu::bf16_bits_of_double(x)) {}
    __nv_bfloat16(short x) : __nv_bfloat16((float)x) {}
    __nv_bfloat16(unsigned short x) : __nv_bfloat16((float)x) {}
    __nv_bfloat16(int x) : __nv_bfloat16((double)x) {}
    __nv_bfloat16(unsigned x) : __nv_bfloat16((double)x) {}
    __nv_bfloat16(long x) : __nv_bfloat16(emu::integer_to_odd(x)) {}
    __nv_bfloat16(unsigned long x) : __nv_bfloat16(emu::integer_to_odd(x)) {}
    __nv_bfloat16(long long x) : __nv_bfloat16(emu::integer_to_odd(x)) {}
    __nv_bfloat16(unsigned long long x) : __nv_bfloat16(emu::integer_to_odd(x)) {}

    operator __nv_bfloat16_raw() const { return {bits}; }
    operator float() const { return emu::float_of_bits((uint32_t)bits << 16); }
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
typedef __nv_bfloat16 nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y; // x is the lower half

    __nv_bfloat162() = default;
    constexpr __nv_bfloat162(const __nv_bfloat16 &low, const __nv_bfloat16 &high) : x(low), y(high) {}
    __nv_bfloat162(const __nv_bfloat162_raw &raw) : x(__nv_bfloat16_raw{raw.x}), y(__nv_bfloat16_raw{raw.y}) {}
    operator __nv_bfloat162_raw() const { return {__nv_bfloat16_raw(x).x, __nv_bfloat16_raw(y).x}; }
};
typedef __nv_bfloat162 nv_bfloat162;

// ---- Bits and conversions ----

static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16_raw{bits}; }
static inline __nv_bfloat16 __short_as_bfloat16(short bits) { return __nv_bfloat16_raw{(unsigned short)bits}; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return __nv_bfloat16_raw(x).x; }
static inline short __bfloat16_as_short(__nv_bfloat16 x) { return (short)__nv_bfloat16_raw(x).x; }

static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rz(float x) {
    return __ushort_as_bfloat16(emu::bf16_bits(x, emu::TOWARDS_ZERO));
}
static inline __nv_bfloat16 __float2bfloat16_rd(float x) { return __ushort_as_bfloat16(emu::bf16_bits(x, emu::DOWN)); }
static inline __nv_bfloat16 __float2bfloat16_ru(float x) { return __ushort_as_bfloat16(emu::bf16_bits(x, emu::UP)); }
static inline __nv_bfloat16 __double2bfloat16(double x) { return x; }
static inline __nv_bfloat16 __int2bfloat16_rn(int x) { return x; }
static inline __nv_bfloat16 __uint2bfloat16_rn(unsigned x) { return x; }
static inline __nv_bfloat16 __ll2bfloat16_rn(long long x) { return x; }
static inline __nv_bfloat16 __ull2bfloat16_rn(unsigned long long x) { return x; }
static inline int __bfloat162int_rz(__nv_bfloat16 x) { return x; }
static inline unsigned __bfloat162uint_rz(__nv_bfloat16 x) { return x; }
static inline long long __bfloat162ll_rz(__nv_bfloat16 x) { return x; }
static inline unsigned long long __bfloat162ull_rz(__nv_bfloat16 x) { return x; }

static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) { return {low, high}; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) { return {low, high}; }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return {low, high}; }
static inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {x, x}; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 x) { return {x.x, x.y}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {x.x, x.y}; }
static inline float __low2float(__nv_bfloat162 x) { return x.x; }
static inline float __high2float(__nv_bfloat162 x) { return x.y; }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 x) { return x.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 x) { return x.y; }
static inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 x) { return {x.x, x.x}; }
static inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 x) { return {x.y, x.y}; }
static inline __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x, b.x}; }
static inline __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.y, b.y}; }
static inline __nv_bfloat162 __lowhigh2highlow(__nv_bfloat162 x) { return {x.y, x.x}; }

// ---- Comparisons ----

static inline bool __hisnan(__nv_bfloat16 x) { return (__bfloat16_as_ushort(x) & 0x7fff) > 0x7f80; }
static inline int __hisinf(__nv_bfloat16 x) {
    unsigned short bits = __bfloat16_as_ushort(x);
    return bits == 0x7f80 ? 1 : bits == 0xff80 ? -1 : 0;
}
static inline bool __heq(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a == (float)b; }
static inline bool __hne(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a < (float)b || (float)a > (float)b; }
static inline bool __hlt(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a < (float)b; }
static inline bool __hle(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a <= (float)b; }
static inline bool __hgt(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a > (float)b; }
static inline bool __hge(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a >= (float)b; }
static inline bool operator==(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return __heq(a, b); }
static inline bool operator!=(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return (float)a != (float)b; }
static inline bool operator<(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return __hlt(a, b); }
static inline bool operator<=(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return __hle(a, b); }
static inline bool operator>(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return __hgt(a, b); }
static inline bool operator>=(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return __hge(a, b); }

// The larger or smaller of two numbers. -0 is below +0. If one is a NaN, the result is the other.
static inline __nv_bfloat16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b) {
    if (__hisnan(a)) { return __hisnan(b) ? __ushort_as_bfloat16(0x7fff) : b; }
    if (__heq(a, b)) { return __bfloat16_as_ushort(a) >> 15 ? b : a; }
    return __hisnan(b) || __hgt(a, b) ? a : b;
}
static inline __nv_bfloat16 __hmin(__nv_bfloat16 a, __nv_bfloat16 b) {
    if (__hisnan(a)) { return __hisnan(b) ? __ushort_as_bfloat16(0x7fff) : b; }
    if (__heq(a, b)) { return __bfloat16_as_ushort(a) >> 15 ? a : b; }
    return __hisnan(b) || __hlt(a, b) ? a : b;
}
static inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
    return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}
static inline __nv_bfloat162 __hmin2(__nv_bfloat162 a, __nv_bfloat162 b) {
    return {__hmin(a.x, b.x), __hmin(a.y, b.y)};
}

// ---- Arithmetic: each result is the exact one, rounded once ----

// A float has more than twice the digits of bf16 and two more, so rounding twice is rounding once for + - * /.
static inline __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a + (float)b; }
static inline __nv_bfloat16 __hsub(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a - (float)b; }
static inline __nv_bfloat16 __hmul(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a * (float)b; }
static inline __nv_bfloat16 __hdiv(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a / (float)b; }
static inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return emu::fma_to_odd((float)a, (float)b, (float)c);
}
static inline __nv_bfloat16 __hneg(__nv_bfloat16 x) {
    return __hisnan(x) ? __ushort_as_bfloat16(0x7fff) : __ushort_as_bfloat16(__bfloat16_as_ushort(x) ^ 0x8000);
}
static inline __nv_bfloat16 __habs(__nv_bfloat16 x) {
    return __hisnan(x) ? __ushort_as_bfloat16(0x7fff) : __ushort_as_bfloat16(__bfloat16_as_ushort(x) & 0x7fff);
}
static inline __nv_bfloat16 hsqrt(__nv_bfloat16 x) { return std::sqrt((float)x); }

static inline __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) {
    return {__hadd(a.x, b.x), __hadd(a.y, b.y)};
}
static inline __nv_bfloat162 __hsub2(__nv_bfloat162 a, __nv_bfloat162 b) {
    return {__hsub(a.x, b.x), __hsub(a.y, b.y)};
}
static inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) {
    return {__hmul(a.x, b.x), __hmul(a.y, b.y)};
}
static inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}

static inline __nv_bfloat16 operator+(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return __hadd(a, b); }
static inline __nv_bfloat16 operator-(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return __hsub(a, b); }
static inline __nv_bfloat16 operator*(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return __hmul(a, b); }
static inline __nv_bfloat16 operator/(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return __hdiv(a, b); }
static inline __nv_bfloat16 &operator+=(__nv_bfloat16 &a, const __nv_bfloat16 &b) { return a = __hadd(a, b); }
static inline __nv_bfloat16 &operator-=(__nv_bfloat16 &a, const __nv_bfloat16 &b) { return a = __hsub(a, b); }
static inline __nv_bfloat16 &operator*=(__nv_bfloat16 &a, const __nv_bfloat16 &b) { return a = __hmul(a, b); }
static inline __nv_bfloat16 &operator/=(__nv_bfloat16 &a, const __nv_bfloat16 &b) { return a = __hdiv(a, b); }
static inline __nv_bfloat16 operator+(const __nv_bfloat16 &x) { return x; }
static inline __nv_bfloat16 operator-(const __nv_bfloat16 &x) { return __hneg(x); }

// ---- Atomics ----

namespace emu {
static inline uint16_t add_bf16(uint16_t a, uint16_t b) {
    return __bfloat16_as_ushort(__hadd(__ushort_as_bfloat16(a), __ushort_as_bfloat16(b)));
}
} // namespace emu

static inline __nv_bfloat16 atomicAdd(__nv_bfloat16 *address, __nv_bfloat16 value, EMU_HERE) {
    return __ushort_as_bfloat16(emu::atomic_add_bits(reinterpret_cast<uint16_t *>(address), __bfloat16_as_ushort(value),
                                                     emu::add_bf16, file, line));
}
// Each of the two is added atomically.
static inline __nv_bfloat162 atomicAdd(__nv_bfloat162 *address, __nv_bfloat162 value, EMU_HERE) {
    uint32_t bits = __bfloat16_as_ushort(value.x) | (uint32_t)__bfloat16_as_ushort(value.y) << 16;
    uint32_t old = emu::atomic_add_bits(reinterpret_cast<uint32_t *>(address), bits, emu::add_bf16, file, line);
    return {__ushort_as_bfloat16((unsigned short)old), __ushort_as_bfloat16((unsigned short)(old >> 16))};
}

#endif // EMU_CUDA_BF16_H
