// The emulator's 8-bit floats, e4m3 and e5m2 (exponent and mantissa bits, and a sign), with the names, roundings and
// saturation of CUDA's header of this name.
//
// e5m2 has infinities and NaNs, as half has. e4m3 has no infinity and one NaN for each sign, 0x7f, so it reaches 448.
#ifndef EMU_CUDA_FP8_H
#define EMU_CUDA_FP8_H

#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t; // the first number in the lower bits
typedef unsigned __nv_fp8x4_storage_t;

enum __nv_saturation_t {
    __NV_NOSAT,     // a number too large becomes infinity, or NaN in e4m3
    __NV_SATFINITE, // numbers too large and infinities become the largest finite number
};
enum __nv_fp8_interpretation_t {
    __NV_E4M3,
    __NV_E5M2,
};

namespace emu {

static inline Format fp8_format(__nv_fp8_interpretation_t kind) {
    return kind == __NV_E4M3 ? Format{4, 3, 0x7f} : Format{5, 2, 0x7c};
}

static inline float fp8_value(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t kind) {
    Format format = fp8_format(kind);
    uint32_t code = bits & 0x7fu, sign = (uint32_t)(bits >> 7) << 31;
    if (code == format.overflow && kind == __NV_E5M2) { return float_of_bits(sign | 0x7f800000u); }
    if (code >= format.overflow) { return float_of_bits(0x7fffffffu); }
    return float_of_bits(sign | float_bits((float)decode(code, format)));
}

} // namespace emu

// ---- Conversions: to nearest even ----

static inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t saturate,
                                                        __nv_fp8_interpretation_t kind) {
    emu::Format format = emu::fp8_format(kind);
    uint32_t sign = (uint32_t)std::signbit(x) << 7;
    if (x != x) { return (__nv_fp8_storage_t)(sign | 0x7f); }
    uint32_t code = emu::encode(x, format, emu::NEAREST_EVEN);
    if (code >= format.overflow) { code = saturate == __NV_SATFINITE ? format.overflow - 1 : format.overflow; }
    return (__nv_fp8_storage_t)(sign | code);
}
// A NaN of a smaller type loses its sign.
static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturate,
                                                       __nv_fp8_interpretation_t kind) {
    return x != x ? (__nv_fp8_storage_t)0x7f : __nv_cvt_double_to_fp8(x, saturate, kind);
}
static inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, __nv_saturation_t saturate,
                                                         __nv_fp8_interpretation_t kind) {
    return __nv_cvt_float_to_fp8(emu::Half::value(x.x), saturate, kind);
}
static inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x, __nv_saturation_t saturate,
                                                             __nv_fp8_interpretation_t kind) {
    return __nv_cvt_float_to_fp8(__nv_bfloat16(x), saturate, kind);
}
static inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) {
    return __half(emu::fp8_value(x, kind)); // every value of both is a half
}

static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t saturate,
                                                            __nv_fp8_interpretation_t kind) {
    return (__nv_fp8x2_storage_t)(__nv_cvt_float_to_fp8(x.x, saturate, kind) |
                                  __nv_cvt_float_to_fp8(x.y, saturate, kind) << 8);
}
static inline __nv_fp8x2_storage_t __nv_cvt_bfloat16raw2_to_fp8x2(__nv_bfloat162_raw x, __nv_saturation_t saturate,
                                                                  __nv_fp8_interpretation_t kind) {
    return __nv_cvt_float2_to_fp8x2(__bfloat1622float2(x), saturate, kind);
}
static inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t kind) {
    return {__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)x, kind).x,
            __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)(x >> 8), kind).x};
}

// ---- Types: constructors saturate; all conversions are explicit ----

namespace emu {

template <__nv_fp8_interpretation_t kind> struct Fp8 {
    __nv_fp8_storage_t __x;

    Fp8() = default;
    explicit Fp8(float x) : __x(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind)) {}
    explicit Fp8(double x) : __x(__nv_cvt_double_to_fp8(x, __NV_SATFINITE, kind)) {}
    explicit Fp8(__half x) : __x(__nv_cvt_halfraw_to_fp8(x, __NV_SATFINITE, kind)) {}
    explicit Fp8(__nv_bfloat16 x) : __x(__nv_cvt_bfloat16raw_to_fp8(x, __NV_SATFINITE, kind)) {}
    explicit Fp8(int x) : Fp8((float)x) {}
    explicit operator float() const { return fp8_value(__x, kind); }
    explicit operator double() const { return fp8_value(__x, kind); }
    explicit operator __half() const { return __nv_cvt_fp8_to_halfraw(__x, kind); }
    explicit operator __nv_bfloat16() const { return fp8_value(__x, kind); }
    explicit operator bool() const { return (__x & 0x7f) != 0; }
};

template <__nv_fp8_interpretation_t kind> struct Fp8x2 {
    __nv_fp8x2_storage_t __x;

    Fp8x2() = default;
    explicit Fp8x2(float2 x) : __x(__nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, kind)) {}
    explicit operator float2() const {
        return {fp8_value((__nv_fp8_storage_t)__x, kind), fp8_value((__nv_fp8_storage_t)(__x >> 8), kind)};
    }
};

template <__nv_fp8_interpretation_t kind> struct Fp8x4 {
    __nv_fp8x4_storage_t __x;

    Fp8x4() = default;
    explicit Fp8x4(float4 x)
        : __x(Fp8x2<kind>(float2{x.x, x.y}).__x | (unsigned)Fp8x2<kind>(float2{x.z, x.w}).__x << 16) {}
    explicit operator float4() const {
        return {fp8_value((__nv_fp8_storage_t)__x, kind), fp8_value((__nv_fp8_storage_t)(__x >> 8), kind),
                fp8_value((__nv_fp8_storage_t)(__x >> 16), kind), fp8_value((__nv_fp8_storage_t)(__x >> 24), kind)};
    }
};

} // namespace emu

typedef emu::Fp8<__NV_E4M3> __nv_fp8_e4m3;
typedef emu::Fp8<__NV_E5M2> __nv_fp8_e5m2;
typedef emu::Fp8x2<__NV_E4M3> __nv_fp8x2_e4m3;
typedef emu::Fp8x2<__NV_E5M2> __nv_fp8x2_e5m2;
typedef emu::Fp8x4<__NV_E4M3> __nv_fp8x4_e4m3;
typedef emu::Fp8x4<__NV_E5M2> __nv_fp8x4_e5m2;

#endif // EMU_CUDA_FP8_H
