// The numbers of 16 bits of cuda_bf16.h and cuda_fp16.h, and their pairs. The two formats differ in what a float or a
// double is rounded to, in the value of the bits, and in names.
#ifndef EMU_FLOAT16_H
#define EMU_FLOAT16_H

#include "emu_float.h"
#include "vector_types.h"

namespace emu {

// Has CUDA's implicit conversions, so that an expression that is ambiguous there is ambiguous here. F names the type
// Raw of the bits and the code of infinity, and rounds. The functions are friends, so that they convert their
// arguments.
template <class F> struct alignas(2) Number16 {
  protected:
    unsigned short bits;

  public:
    Number16() = default;
    constexpr Number16(const typename F::Raw &raw) : bits(raw.x) {}
    Number16(float x) : bits(F::round(x, NEAREST_EVEN)) {}
    Number16(double x) : bits(F::round(x, NEAREST_EVEN)) {}
    Number16(short x) : Number16((float)x) {}
    Number16(unsigned short x) : Number16((float)x) {}
    Number16(int x) : Number16((double)x) {}
    Number16(unsigned x) : Number16((double)x) {}
    Number16(long x) : Number16(integer_to_odd(x)) {}
    Number16(unsigned long x) : Number16(integer_to_odd(x)) {}
    Number16(long long x) : Number16(integer_to_odd(x)) {}
    Number16(unsigned long long x) : Number16(integer_to_odd(x)) {}
    static Number16 of(unsigned bits) { return typename F::Raw{(unsigned short)bits}; }

    operator typename F::Raw() const { return {bits}; }
    operator float() const { return F::value(bits); }
    operator bool() const { return (bits & 0x7fff) != 0; }
    operator signed char() const { return to_integer<signed char>(*this); }
    operator unsigned char() const { return to_integer<unsigned char>(*this); }
    operator char() const { return to_integer<char>(*this); }
    operator short() const { return to_integer<short>(*this); }
    operator unsigned short() const { return to_integer<unsigned short>(*this); }
    operator int() const { return to_integer<int>(*this); }
    operator unsigned() const { return to_integer<unsigned>(*this); }
    operator long() const { return to_integer<long>(*this); }
    operator unsigned long() const { return to_integer<unsigned long>(*this); }
    operator long long() const { return to_integer<long long>(*this); }
    operator unsigned long long() const { return to_integer<unsigned long long>(*this); }

    // ---- Comparisons ----

    friend bool __hisnan(Number16 x) { return (x.bits & 0x7fff) > F::INFINITE; }
    friend int __hisinf(Number16 x) { return (x.bits & 0x7fff) != F::INFINITE ? 0 : x.bits >> 15 ? -1 : 1; }
    friend bool __heq(Number16 a, Number16 b) { return (float)a == (float)b; }
    friend bool __hne(Number16 a, Number16 b) { return (float)a < (float)b || (float)a > (float)b; }
    friend bool __hlt(Number16 a, Number16 b) { return (float)a < (float)b; }
    friend bool __hle(Number16 a, Number16 b) { return (float)a <= (float)b; }
    friend bool __hgt(Number16 a, Number16 b) { return (float)a > (float)b; }
    friend bool __hge(Number16 a, Number16 b) { return (float)a >= (float)b; }
    friend bool operator==(const Number16 &a, const Number16 &b) { return (float)a == (float)b; }
    friend bool operator!=(const Number16 &a, const Number16 &b) { return (float)a != (float)b; }
    friend bool operator<(const Number16 &a, const Number16 &b) { return (float)a < (float)b; }
    friend bool operator<=(const Number16 &a, const Number16 &b) { return (float)a <= (float)b; }
    friend bool operator>(const Number16 &a, const Number16 &b) { return (float)a > (float)b; }
    friend bool operator>=(const Number16 &a, const Number16 &b) { return (float)a >= (float)b; }

    // The larger or smaller of two numbers. -0 is below +0. If one is a NaN, the result is the other.
    friend Number16 __hmax(Number16 a, Number16 b) {
        if (__hisnan(a)) { return __hisnan(b) ? of(0x7fff) : b; }
        if (__heq(a, b)) { return a.bits >> 15 ? b : a; }
        return __hisnan(b) || __hgt(a, b) ? a : b;
    }
    friend Number16 __hmin(Number16 a, Number16 b) {
        if (__hisnan(a)) { return __hisnan(b) ? of(0x7fff) : b; }
        if (__heq(a, b)) { return a.bits >> 15 ? a : b; }
        return __hisnan(b) || __hlt(a, b) ? a : b;
    }

    // ---- Arithmetic: each result is the exact one, rounded once ----

    // A float has more than twice the digits and two more, so rounding twice is rounding once for + - * /.
    friend Number16 __hadd(Number16 a, Number16 b) { return (float)a + (float)b; }
    friend Number16 __hsub(Number16 a, Number16 b) { return (float)a - (float)b; }
    friend Number16 __hmul(Number16 a, Number16 b) { return (float)a * (float)b; }
    friend Number16 __hdiv(Number16 a, Number16 b) { return (float)a / (float)b; }
    friend Number16 __hfma(Number16 a, Number16 b, Number16 c) { return fma_to_odd((float)a, (float)b, (float)c); }
    friend Number16 __hneg(Number16 x) { return of(__hisnan(x) ? 0x7fff : x.bits ^ 0x8000); }
    friend Number16 __habs(Number16 x) { return of(__hisnan(x) ? 0x7fff : x.bits & 0x7fff); }
    friend Number16 hsqrt(Number16 x) { return std::sqrt((float)x); }

    friend Number16 operator+(const Number16 &a, const Number16 &b) { return __hadd(a, b); }
    friend Number16 operator-(const Number16 &a, const Number16 &b) { return __hsub(a, b); }
    friend Number16 operator*(const Number16 &a, const Number16 &b) { return __hmul(a, b); }
    friend Number16 operator/(const Number16 &a, const Number16 &b) { return __hdiv(a, b); }
    friend Number16 &operator+=(Number16 &a, const Number16 &b) { return a = __hadd(a, b); }
    friend Number16 &operator-=(Number16 &a, const Number16 &b) { return a = __hsub(a, b); }
    friend Number16 &operator*=(Number16 &a, const Number16 &b) { return a = __hmul(a, b); }
    friend Number16 &operator/=(Number16 &a, const Number16 &b) { return a = __hdiv(a, b); }
    friend Number16 operator+(const Number16 &x) { return x; }
    friend Number16 operator-(const Number16 &x) { return __hneg(x); }

    static uint16_t add_bits(uint16_t a, uint16_t b) { return __hadd(of(a), of(b)).bits; }
    friend Number16 atomicAdd(Number16 *address, Number16 value, EMU_HERE) {
        return of(atomic_add_bits(reinterpret_cast<uint16_t *>(address), value.bits, add_bits, file, line));
    }
};

template <class F> struct alignas(4) Pair16 {
    typedef Number16<F> Number;
    Number x, y; // x is the lower half

    Pair16() = default;
    constexpr Pair16(const Number &low, const Number &high) : x(low), y(high) {}
    Pair16(const typename F::RawPair &raw) : x(Number::of(raw.x)), y(Number::of(raw.y)) {}
    operator typename F::RawPair() const { return {typename F::Raw(x).x, typename F::Raw(y).x}; }

    friend float __low2float(Pair16 p) { return p.x; }
    friend float __high2float(Pair16 p) { return p.y; }
    friend Pair16 __lowhigh2highlow(Pair16 p) { return {p.y, p.x}; }
    friend Pair16 __hmax2(Pair16 a, Pair16 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
    friend Pair16 __hmin2(Pair16 a, Pair16 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
    friend Pair16 __hadd2(Pair16 a, Pair16 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
    friend Pair16 __hsub2(Pair16 a, Pair16 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
    friend Pair16 __hmul2(Pair16 a, Pair16 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
    friend Pair16 __hfma2(Pair16 a, Pair16 b, Pair16 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }

    // Each of the two is added atomically.
    friend Pair16 atomicAdd(Pair16 *address, Pair16 value, EMU_HERE) {
        const typename F::RawPair raw = value;
        const uint32_t bits = raw.x | (uint32_t)raw.y << 16;
        const uint32_t old = atomic_add_bits(reinterpret_cast<uint32_t *>(address), bits, Number::add_bits, file, line);
        return {Number::of(old & 0xffff), Number::of(old >> 16)};
    }
};

} // namespace emu

// CUDA's names: NAME is bfloat16 or half, and F the format.
#define EMU_NUMBER16(NAME, T, F)                                                                                       \
    static inline T __ushort_as_##NAME(unsigned short bits) { return T::of(bits); }                                    \
    static inline T __short_as_##NAME(short bits) { return T::of((unsigned short)bits); }                              \
    static inline unsigned short __##NAME##_as_ushort(T x) { return F::Raw(x).x; }                                     \
    static inline short __##NAME##_as_short(T x) { return (short)F::Raw(x).x; }                                        \
    static inline float __##NAME##2float(T x) { return x; }                                                            \
    static inline T __float2##NAME(float x) { return x; }                                                              \
    static inline T __float2##NAME##_rn(float x) { return x; }                                                         \
    static inline T __float2##NAME##_rz(float x) { return T::of(F::round(x, emu::TOWARDS_ZERO)); }                     \
    static inline T __float2##NAME##_rd(float x) { return T::of(F::round(x, emu::DOWN)); }                             \
    static inline T __float2##NAME##_ru(float x) { return T::of(F::round(x, emu::UP)); }                               \
    static inline T __double2##NAME(double x) { return x; }                                                            \
    static inline T __int2##NAME##_rn(int x) { return x; }                                                             \
    static inline T __uint2##NAME##_rn(unsigned x) { return x; }                                                       \
    static inline T __ll2##NAME##_rn(long long x) { return x; }                                                        \
    static inline T __ull2##NAME##_rn(unsigned long long x) { return x; }                                              \
    static inline int __##NAME##2int_rz(T x) { return x; }                                                             \
    static inline unsigned __##NAME##2uint_rz(T x) { return x; }                                                       \
    static inline long long __##NAME##2ll_rz(T x) { return x; }                                                        \
    static inline unsigned long long __##NAME##2ull_rz(T x) { return x; }                                              \
    static inline T##2 make_##NAME##2(T low, T high) { return {low, high}; }                                           \
    static inline T##2 __halves2##NAME##2(T low, T high) { return {low, high}; }                                       \
    static inline T##2 __##NAME##2##NAME##2(T x) { return {x, x}; }                                                    \
    static inline T##2 __floats2##NAME##2_rn(float low, float high) { return {low, high}; }                            \
    static inline T##2 __float2##NAME##2_rn(float x) { return {x, x}; }                                                \
    static inline T##2 __float22##NAME##2_rn(float2 x) { return {x.x, x.y}; }                                          \
    static inline float2 __##NAME##22float2(T##2 x) { return {x.x, x.y}; }                                             \
    static inline T __low2##NAME(T##2 x) { return x.x; }                                                               \
    static inline T __high2##NAME(T##2 x) { return x.y; }                                                              \
    static inline T##2 __low2##NAME##2(T##2 x) { return {x.x, x.x}; }                                                  \
    static inline T##2 __high2##NAME##2(T##2 x) { return {x.y, x.y}; }                                                 \
    static inline T##2 __lows2##NAME##2(T##2 a, T##2 b) { return {a.x, b.x}; }                                         \
    static inline T##2 __highs2##NAME##2(T##2 a, T##2 b) { return {a.y, b.y}; }

#endif // EMU_FLOAT16_H
