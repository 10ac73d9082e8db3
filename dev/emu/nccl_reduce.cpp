// The types of the emulated NCCL. Each partial sum of 16-bit floats is rounded, as a ring of GPUs passes it on.
#include "nccl_shared.h"

#include <cmath>
#include <type_traits>

namespace emu {
namespace nccl {

// Arithmetic of 16-bit floats is that of float. Sums and products of integers wrap around.
template <class T> using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
template <class T> using Sum = std::conditional_t<std::is_integral<T>::value, uint64_t, Wide<T>>;

template <class T> static T combine(uint32_t reduction, T a, T b) {
    const Wide<T> x = static_cast<Wide<T>>(a), y = static_cast<Wide<T>>(b);
    const Sum<T> u = static_cast<Sum<T>>(x), v = static_cast<Sum<T>>(y);
    if (reduction == ncclProd) { return static_cast<T>(u * v); }
    if (reduction != ncclMax && reduction != ncclMin) { return static_cast<T>(u + v); }
    if constexpr (std::is_integral<T>::value) { return (x < y) == (reduction == ncclMax) ? b : a; }
    return static_cast<T>(reduction == ncclMax ? std::fmax(x, y) : std::fmin(x, y));
}

template <class T> static void reduce(uint32_t reduction, void *sum, const void *next, size_t count) {
    T *to = static_cast<T *>(sum);
    for (size_t i = 0; i < count; i++) { to[i] = combine(reduction, to[i], static_cast<const T *>(next)[i]); }
}

template <class T> static void divide(void *sum, size_t count, int ranks) {
    T *to = static_cast<T *>(sum);
    const Wide<T> n = static_cast<Wide<T>>(ranks);
    for (size_t i = 0; i < count; i++) { to[i] = static_cast<T>(static_cast<Wide<T>>(to[i]) / n); }
}

template <class T> static constexpr Type type(const char *name) { return {name, sizeof(T), reduce<T>, divide<T>}; }
const Type TYPES[ncclNumTypes] = {
    type<int8_t>("int8"),    type<uint8_t>("uint8"),          type<int32_t>("int32"),  type<uint32_t>("uint32"),
    type<int64_t>("int64"),  type<uint64_t>("uint64"),        type<__half>("float16"), type<float>("float32"),
    type<double>("float64"), type<__nv_bfloat16>("bfloat16"),
};

} // namespace nccl
} // namespace emu
