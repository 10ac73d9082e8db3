// The arithmetic of the emulated NCCL. Each partial sum of 16-bit floats is rounded, as a ring of GPUs passes it on.
#include "nccl_wire.h"

#include <math.h>

namespace emu {
namespace nccl {

struct TypeFacts {
    size_t bytes;
    const char *name;
};
static const TypeFacts TYPES[ncclNumTypes] = {
    {1, "int8"},   {1, "uint8"},   {4, "int32"},   {4, "uint32"},  {8, "int64"},
    {8, "uint64"}, {2, "float16"}, {4, "float32"}, {8, "float64"}, {2, "bfloat16"},
};
static const char *const REDUCTIONS[ncclNumOps] = {"sum", "product", "maximum", "minimum", "average"};

size_t size_of_type(uint32_t type) { return TYPES[type].bytes; }
const char *name_of_type(uint32_t type) { return type < ncclNumTypes ? TYPES[type].name : "values of an unknown type"; }
const char *name_of_reduction(uint32_t reduction) { return reduction < ncclNumOps ? REDUCTIONS[reduction] : "?"; }

// Integers wrap around.
template <class T> static T combine(uint32_t reduction, T a, T b) {
    switch (reduction) {
    case ncclProd: return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case ncclMax: return a < b ? b : a;
    case ncclMin: return b < a ? b : a;
    default: return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    }
}
static float combine(uint32_t reduction, float a, float b) {
    return reduction == ncclProd  ? a * b
           : reduction == ncclMax ? fmaxf(a, b)
           : reduction == ncclMin ? fminf(a, b)
                                  : a + b;
}
static double combine(uint32_t reduction, double a, double b) {
    return reduction == ncclProd  ? a * b
           : reduction == ncclMax ? fmax(a, b)
           : reduction == ncclMin ? fmin(a, b)
                                  : a + b;
}
static __half combine(uint32_t reduction, __half a, __half b) {
    return __float2half(combine(reduction, __half2float(a), __half2float(b)));
}
static __nv_bfloat16 combine(uint32_t reduction, __nv_bfloat16 a, __nv_bfloat16 b) {
    return __float2bfloat16(combine(reduction, __bfloat162float(a), __bfloat162float(b)));
}

template <class T> static T quotient(T x, int n) { return static_cast<T>(x / static_cast<T>(n)); }
static __half quotient(__half x, int n) { return __float2half(__half2float(x) / static_cast<float>(n)); }
static __nv_bfloat16 quotient(__nv_bfloat16 x, int n) {
    return __float2bfloat16(__bfloat162float(x) / static_cast<float>(n));
}

// Calls f with a pointer of the type that the number names.
template <class F> static void with_type(uint32_t type, void *data, F f) {
    switch (type) {
    case ncclInt8: return f(static_cast<int8_t *>(data));
    case ncclUint8: return f(static_cast<uint8_t *>(data));
    case ncclInt32: return f(static_cast<int32_t *>(data));
    case ncclUint32: return f(static_cast<uint32_t *>(data));
    case ncclInt64: return f(static_cast<int64_t *>(data));
    case ncclUint64: return f(static_cast<uint64_t *>(data));
    case ncclFloat16: return f(static_cast<__half *>(data));
    case ncclFloat32: return f(static_cast<float *>(data));
    case ncclFloat64: return f(static_cast<double *>(data));
    default: return f(static_cast<__nv_bfloat16 *>(data));
    }
}

void reduce(uint32_t type, uint32_t reduction, void *sum, const void *next, size_t count) {
    with_type(type, sum, [=](auto *to) {
        auto *from = static_cast<decltype(to)>(const_cast<void *>(next));
        for (size_t i = 0; i < count; i++) { to[i] = combine(reduction, to[i], from[i]); }
    });
}

void divide(uint32_t type, void *sum, size_t count, int ranks) {
    with_type(type, sum, [=](auto *to) {
        for (size_t i = 0; i < count; i++) { to[i] = quotient(to[i], ranks); }
    });
}

} // namespace nccl
} // namespace emu
