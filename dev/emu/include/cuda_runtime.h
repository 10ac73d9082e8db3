// CUDA for a C++ compiler: the language (built-in variables, barriers, warp functions, atomics, intrinsics, launches)
// and, through cuda_runtime_api.h, the host API. dev/emu/README.md explains how it works. The keywords __shared__,
// __device__, __constant__ and __noinline__ and the launch syntax are translated by dev/emu/rewrite.cpp.
//
// Some functions need the place of their call: reports name it, and it is the identity of a barrier. They take the
// source file and line as default last arguments: EMU_HERE.
#ifndef EMU_CUDA_RUNTIME_H
#define EMU_CUDA_RUNTIME_H

#include <cmath>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"

// The emulator's own accesses are not checked.
#define EMU_UNCHECKED __attribute__((no_sanitize("thread")))

#define __global__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __managed__
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (::emu::thread_index())
#define blockIdx (::emu::block_index())
#define blockDim (::emu::block_size())
#define gridDim (::emu::grid_size())

constexpr int warpSize = 32;

#ifdef EMU_WITHOUT_METER
extern "C" __attribute__((weak)) void emu_without_meter() {} // the meter looks for it
#endif

namespace emu {

uint3 thread_index() __attribute__((const));
uint3 block_index() __attribute__((const));
dim3 block_size() __attribute__((const));
dim3 grid_size() __attribute__((const));

// ---- Launches: K<<<config>>>(args) is rewritten to Launch("K", file, line, config)(K, args) ----

struct Kernel;

class Launch {
  public:
    Launch(const char *name, const char *file, int line, dim3 grid, dim3 block, size_t shared_bytes = 0,
           cudaStream_t stream = nullptr)
        : name(name), file(file), line(line), grid(grid), block(block), shared_bytes(shared_bytes), stream(stream) {}

    // The arguments are converted and copied now, as the hardware does. The originals may change later.
    template <class... Params, class... Args> void operator()(void (*kernel)(Params...), Args &&...args) {
        static_assert(sizeof...(Params) == sizeof...(Args), "wrong number of kernel arguments");
        static_assert((std::is_trivially_copyable_v<Params> && ...), "kernel arguments are copied byte by byte");
        Call<Params...> call = {kernel, pack<Params...>(std::forward<Args>(args)...)};
        run(reinterpret_cast<const void *>(kernel), Call<Params...>::one_thread, &call, sizeof(call));
    }
    // For a kernel whose template arguments the compiler finds: `call` calls it.
    template <class Call, class... Args> void deduce(Call call, Args... args) {
        (*this)(static_cast<void (*)(Args...)>(call), args...);
    }

  private:
    // A tuple of the emulator's own: when threads read it, that does not count as a kernel's access to host memory.
    template <class... T> struct Values {};
    template <class T, class... Rest> struct Values<T, Rest...> {
        T first;
        Values<Rest...> rest;
    };
    template <class...> static Values<> pack() { return {}; }
    template <class T, class... Rest>
    static Values<std::remove_cv_t<T>, std::remove_cv_t<Rest>...> pack(T first, Rest... rest) {
        return {first, pack<Rest...>(rest...)};
    }
    template <size_t I, class T, class... Rest> EMU_UNCHECKED static auto &value_at(Values<T, Rest...> &values) {
        if constexpr (I == 0) {
            return values.first;
        } else {
            return value_at<I - 1>(values.rest);
        }
    }

    template <class... Params> struct Call {
        void (*kernel)(Params...);
        Values<std::remove_cv_t<Params>...> values;

        template <size_t... I> EMU_UNCHECKED void apply(std::index_sequence<I...>) { kernel(value_at<I>(values)...); }
        EMU_UNCHECKED static void one_thread(void *call) {
            static_cast<Call *>(call)->apply(std::index_sequence_for<Params...>());
        }
    };

    void run(const void *kernel, void (*one_thread)(void *), void *call, size_t bytes);
    void run_now(const void *kernel, void (*one_thread)(void *), void *call, size_t bytes) const;
    Kernel kernel_of(const void *function, void (*one_thread)(void *), void *call, size_t bytes) const;

    const char *name, *file;
    int line;
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};

// ---- What the rewriter puts in the place of shared variables ----
void *shared_variable(const void *key, size_t bytes, size_t align, const char *name, EMU_HERE);
void *dynamic_shared();

// Checks an access of the running thread as if the access were written at that line.
void check_read(const void *pointer, size_t bytes, size_t align, const char *file, int line);
void check_write(void *pointer, size_t bytes, size_t align, const char *file, int line);

enum Vote { VOTE_BALLOT, VOTE_ANY, VOTE_ALL };
enum Shuffle { SHUFFLE_INDEX, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR };
uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t bits, int lane, int width, const char *file, int line);
unsigned vote(Vote kind, unsigned mask, int predicate, const char *file, int line);
enum Reduction { REDUCE_ADD, REDUCE_MIN, REDUCE_MAX, REDUCE_AND, REDUCE_OR, REDUCE_XOR };
unsigned reduce(Reduction kind, unsigned mask, unsigned value, const char *file, int line);
unsigned match(unsigned mask, uint64_t value, const char *file, int line); // the lanes with this value

// All lanes meet to load or store a matrix, whose address and rows must be aligned.
void wmma_meet(const char *name, const void *matrix, size_t row_bytes, const char *file, int line);

template <class T>
EMU_UNCHECKED T shuffle_value(Shuffle kind, unsigned mask, T value, int lane, int width, const char *file, int line) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "shuffles move at most 8 bytes");
    typedef std::conditional_t<sizeof(T) <= sizeof(uint32_t), uint32_t, uint64_t> Word;
    Word word = 0; // stays in a register: a load of 8 bytes waits for the stores of smaller parts
    memcpy(&word, &value, sizeof(T));
    word = static_cast<Word>(shuffle(kind, mask, word, lane, width, file, line));
    memcpy(static_cast<void *>(&value), &word, sizeof(T));
    return value;
}

uint32_t atomic_add(uint32_t *address, uint32_t value, const char *file, int line);
uint64_t atomic_add(uint64_t *address, uint64_t value, const char *file, int line);
float atomic_add(float *address, float value, const char *file, int line);
double atomic_add(double *address, double value, const char *file, int line);
uint32_t atomic_exchange(uint32_t *address, uint32_t value, const char *file, int line);
uint64_t atomic_exchange(uint64_t *address, uint64_t value, const char *file, int line);
uint16_t atomic_swap_if(uint16_t *address, uint16_t expected, uint16_t value, const char *file, int line);
uint32_t atomic_swap_if(uint32_t *address, uint32_t expected, uint32_t value, const char *file, int line);
uint64_t atomic_swap_if(uint64_t *address, uint64_t expected, uint64_t value, const char *file, int line);
enum Atomic { ATOMIC_MIN, ATOMIC_MAX, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, ATOMIC_INC, ATOMIC_DEC };
int32_t atomic_update(Atomic kind, int32_t *address, int32_t value, const char *file, int line);
uint32_t atomic_update(Atomic kind, uint32_t *address, uint32_t value, const char *file, int line);
int64_t atomic_update(Atomic kind, int64_t *address, int64_t value, const char *file, int line);
uint64_t atomic_update(Atomic kind, uint64_t *address, uint64_t value, const char *file, int line);

// old + value of numbers in 16 bits, or of two of them. add(old, value) gives the bits of the sum.
uint16_t atomic_add_bits(uint16_t *address, uint16_t value, uint16_t (*add)(uint16_t, uint16_t), const char *file,
                         int line);
uint32_t atomic_add_bits(uint32_t *address, uint32_t value, uint16_t (*add)(uint16_t, uint16_t), const char *file,
                         int line);

template <class To, class From> EMU_UNCHECKED inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast between types of one size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

inline float fast_tan(float x) { return tanf(x); }

} // namespace emu

// ---- Barriers and fences ----
void __syncthreads(EMU_HERE);
int __syncthreads_count(int predicate, EMU_HERE);
int __syncthreads_and(int predicate, EMU_HERE);
int __syncthreads_or(int predicate, EMU_HERE);
void __syncwarp(unsigned mask = 0xffffffffu, EMU_HERE);
void __threadfence();
void __threadfence_block();
void __threadfence_system();
unsigned __activemask();
void __nanosleep(unsigned nanoseconds);
long long clock64();
[[noreturn]] void __trap(EMU_HERE);

// ---- Warp functions ----
template <class T> inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMU_HERE) {
    return emu::shuffle_value(emu::SHUFFLE_INDEX, mask, value, lane, width, file, line);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_HERE) {
    return emu::shuffle_value(emu::SHUFFLE_UP, mask, value, static_cast<int>(delta), width, file, line);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_HERE) {
    return emu::shuffle_value(emu::SHUFFLE_DOWN, mask, value, static_cast<int>(delta), width, file, line);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMU_HERE) {
    return emu::shuffle_value(emu::SHUFFLE_XOR, mask, value, lane_mask, width, file, line);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_HERE) {
    return emu::vote(emu::VOTE_BALLOT, mask, predicate, file, line);
}
inline int __any_sync(unsigned mask, int predicate, EMU_HERE) {
    return static_cast<int>(emu::vote(emu::VOTE_ANY, mask, predicate, file, line));
}
inline int __all_sync(unsigned mask, int predicate, EMU_HERE) {
    return static_cast<int>(emu::vote(emu::VOTE_ALL, mask, predicate, file, line));
}
#define EMU_REDUCE(name, kind)                                                                                         \
    inline unsigned name(unsigned mask, unsigned value, EMU_HERE) {                                                    \
        return emu::reduce(emu::kind, mask, value, file, line);                                                        \
    }
#define EMU_REDUCE_SIGNED(name, kind, flip)                                                                            \
    inline int name(unsigned mask, int value, EMU_HERE) {                                                              \
        return static_cast<int>(emu::reduce(emu::kind, mask, static_cast<unsigned>(value) ^ flip, file, line) ^ flip); \
    }
EMU_REDUCE(__reduce_add_sync, REDUCE_ADD)
EMU_REDUCE(__reduce_min_sync, REDUCE_MIN)
EMU_REDUCE(__reduce_max_sync, REDUCE_MAX)
EMU_REDUCE(__reduce_and_sync, REDUCE_AND)
EMU_REDUCE(__reduce_or_sync, REDUCE_OR)
EMU_REDUCE(__reduce_xor_sync, REDUCE_XOR)
EMU_REDUCE_SIGNED(__reduce_add_sync, REDUCE_ADD, 0u)
EMU_REDUCE_SIGNED(__reduce_min_sync, REDUCE_MIN, 0x80000000u) // the order of signed numbers, as unsigned ones
EMU_REDUCE_SIGNED(__reduce_max_sync, REDUCE_MAX, 0x80000000u)
#undef EMU_REDUCE
#undef EMU_REDUCE_SIGNED
template <class T> inline unsigned __match_any_sync(unsigned mask, T value, EMU_HERE) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    return emu::match(mask, bits, file, line);
}
template <class T> inline unsigned __match_all_sync(unsigned mask, T value, int *all, EMU_HERE) {
    *all = __match_any_sync(mask, value, file, line) == mask;
    return *all ? mask : 0;
}

// ---- Atomics ----
#define EMU_ATOMICS(T, bits)                                                                                           \
    inline T atomicAdd(T *address, T value, EMU_HERE) {                                                                \
        return static_cast<T>(emu::atomic_add(reinterpret_cast<uint##bits##_t *>(address),                             \
                                              static_cast<uint##bits##_t>(value), file, line));                        \
    }                                                                                                                  \
    inline T atomicExch(T *address, T value, EMU_HERE) {                                                               \
        return static_cast<T>(emu::atomic_exchange(reinterpret_cast<uint##bits##_t *>(address),                        \
                                                   static_cast<uint##bits##_t>(value), file, line));                   \
    }                                                                                                                  \
    inline T atomicCAS(T *address, T expected, T value, EMU_HERE) {                                                    \
        return static_cast<T>(emu::atomic_swap_if(reinterpret_cast<uint##bits##_t *>(address),                         \
                                                  static_cast<uint##bits##_t>(expected),                               \
                                                  static_cast<uint##bits##_t>(value), file, line));                    \
    }
#define EMU_ATOMIC(T, stored_as, name, kind)                                                                           \
    inline T name(T *address, T value, EMU_HERE) {                                                                     \
        return static_cast<T>(emu::atomic_update(emu::kind, reinterpret_cast<stored_as *>(address),                    \
                                                 static_cast<stored_as>(value), file, line));                          \
    }
#define EMU_ATOMIC_UPDATES(T, stored_as)                                                                               \
    EMU_ATOMIC(T, stored_as, atomicMin, ATOMIC_MIN)                                                                    \
    EMU_ATOMIC(T, stored_as, atomicMax, ATOMIC_MAX)                                                                    \
    EMU_ATOMIC(T, stored_as, atomicAnd, ATOMIC_AND)                                                                    \
    EMU_ATOMIC(T, stored_as, atomicOr, ATOMIC_OR)                                                                      \
    EMU_ATOMIC(T, stored_as, atomicXor, ATOMIC_XOR)
EMU_ATOMICS(int, 32)
EMU_ATOMICS(unsigned, 32)
EMU_ATOMICS(unsigned long long, 64)
EMU_ATOMIC_UPDATES(int, int32_t)
EMU_ATOMIC_UPDATES(unsigned, uint32_t)
EMU_ATOMIC_UPDATES(long long, int64_t)
EMU_ATOMIC_UPDATES(unsigned long long, uint64_t)
EMU_ATOMIC(unsigned, uint32_t, atomicInc, ATOMIC_INC)
EMU_ATOMIC(unsigned, uint32_t, atomicDec, ATOMIC_DEC)
#undef EMU_ATOMICS
#undef EMU_ATOMIC
#undef EMU_ATOMIC_UPDATES
inline float atomicAdd(float *address, float value, EMU_HERE) { return emu::atomic_add(address, value, file, line); }
inline double atomicAdd(double *address, double value, EMU_HERE) { return emu::atomic_add(address, value, file, line); }
inline int atomicSub(int *address, int value, EMU_HERE) { return atomicAdd(address, -value, file, line); }
inline unsigned atomicSub(unsigned *address, unsigned value, EMU_HERE) {
    return atomicAdd(address, 0u - value, file, line);
}
inline unsigned short atomicCAS(unsigned short *address, unsigned short expected, unsigned short value, EMU_HERE) {
    return emu::atomic_swap_if(address, expected, value, file, line);
}
// Each number of a vector is added atomically, and not all of them at once.
inline float2 atomicAdd(float2 *address, float2 value, EMU_HERE) {
    return {atomicAdd(&address->x, value.x, file, line), atomicAdd(&address->y, value.y, file, line)};
}
inline float4 atomicAdd(float4 *address, float4 value, EMU_HERE) {
    return {atomicAdd(&address->x, value.x, file, line), atomicAdd(&address->y, value.y, file, line),
            atomicAdd(&address->z, value.z, file, line), atomicAdd(&address->w, value.w, file, line)};
}
inline float atomicExch(float *address, float value, EMU_HERE) {
    uint32_t old =
        emu::atomic_exchange(reinterpret_cast<uint32_t *>(address), emu::bit_cast<uint32_t>(value), file, line);
    return emu::bit_cast<float>(old);
}

// Atomics for one block, and for other devices and the host too: here they are for the whole device.
#define EMU_SCOPES(name)                                                                                               \
    template <class T, class V> inline T name##_block(T *address, V value, EMU_HERE) {                                 \
        return name(address, static_cast<T>(value), file, line);                                                       \
    }                                                                                                                  \
    template <class T, class V> inline T name##_system(T *address, V value, EMU_HERE) {                                \
        return name(address, static_cast<T>(value), file, line);                                                       \
    }
EMU_SCOPES(atomicAdd)
EMU_SCOPES(atomicSub)
EMU_SCOPES(atomicExch)
EMU_SCOPES(atomicMin)
EMU_SCOPES(atomicMax)
EMU_SCOPES(atomicAnd)
EMU_SCOPES(atomicOr)
EMU_SCOPES(atomicXor)
EMU_SCOPES(atomicInc)
EMU_SCOPES(atomicDec)
#undef EMU_SCOPES
template <class T, class A, class B> inline T atomicCAS_block(T *address, A expected, B value, EMU_HERE) {
    return atomicCAS(address, static_cast<T>(expected), static_cast<T>(value), file, line);
}
template <class T, class A, class B> inline T atomicCAS_system(T *address, A expected, B value, EMU_HERE) {
    return atomicCAS(address, static_cast<T>(expected), static_cast<T>(value), file, line);
}

// ---- Loads and stores with a cache hint: here they are plain loads and stores of scalars and vectors ----
#define EMU_LOAD(name)                                                                                                 \
    template <class T> EMU_UNCHECKED inline T name(const T *pointer, EMU_HERE) {                                       \
        emu::check_read(pointer, sizeof(T), alignof(T), file, line);                                                   \
        return *pointer;                                                                                               \
    }
#define EMU_STORE(name)                                                                                                \
    template <class T> EMU_UNCHECKED inline void name(T *pointer, T value, EMU_HERE) {                                 \
        emu::check_write(pointer, sizeof(T), alignof(T), file, line);                                                  \
        *pointer = value;                                                                                              \
    }
EMU_LOAD(__ldg)
EMU_LOAD(__ldca)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldlu)
EMU_LOAD(__ldcv)
EMU_STORE(__stwb)
EMU_STORE(__stcg)
EMU_STORE(__stcs)
EMU_STORE(__stwt)
#undef EMU_LOAD
#undef EMU_STORE

inline size_t __cvta_generic_to_shared(const void *pointer) { return reinterpret_cast<size_t>(pointer); }

// ---- Integer and bit functions ----
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) { reversed |= (x >> bit & 1u) << (31 - bit); }
    return reversed;
}
inline unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
           __brev(static_cast<unsigned>(x >> 32));
}
inline int __mul24(int a, int b) { return a * b; } // of numbers of 24 bits
inline unsigned __umul24(unsigned a, unsigned b) { return a * b; }
inline unsigned __sad(int a, int b, unsigned sum) { return sum + static_cast<unsigned>(a < b ? b - a : a - b); }
inline unsigned __usad(unsigned a, unsigned b, unsigned sum) { return sum + (a < b ? b - a : a - b); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = selector >> (4 * i) & 0xf;
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (pick & 7)) & 0xff);
        if (pick & 8) { byte = (byte & 0x80) ? 0xff : 0; } // replicate the sign
        result |= byte << (8 * i);
    }
    return result;
}

// ---- Reinterpretation ----
inline unsigned __float_as_uint(float x) { return emu::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return emu::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return emu::bit_cast<float>(x); }
inline float __int_as_float(int x) { return emu::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return emu::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return emu::bit_cast<double>(x); }

// ---- Arithmetic ----
// The fast functions of the hardware are approximations. Here they are accurate. Names that glibc defines are macros.
#define __expf(x) (expf(x))
#define __exp10f(x) (exp10f(x))
#define __logf(x) (logf(x))
#define __log2f(x) (log2f(x))
#define __log10f(x) (log10f(x))
#define __powf(x, y) (powf(x, y))
#define __sinf(x) (sinf(x))
#define __cosf(x) (cosf(x))
#define __tanf(x) (::emu::fast_tan(x))
#define __sincosf(x, s, c) (sincosf(x, s, c))

inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; } // NaN gives 0, as in hardware
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float norm3df(float x, float y, float z) { return sqrtf(x * x + y * y + z * z); }
inline float rnorm3df(float x, float y, float z) { return rsqrtf(x * x + y * y + z * z); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
inline int __double2int_rn(double x) { return static_cast<int>(lrint(x)); }
inline int __double2int_rz(double x) { return static_cast<int>(x); }
inline double __int2double_rn(int x) { return x; }
inline unsigned __float2uint_rz(float x) { return static_cast<unsigned>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(lrintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
inline int __float2int_ru(float x) { return static_cast<int>(ceilf(x)); }
inline unsigned __float2uint_rn(float x) { return static_cast<unsigned>(llrintf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

#define EMU_MIN_MAX(T)                                                                                                 \
    inline T min(T a, T b) { return b < a ? b : a; }                                                                   \
    inline T max(T a, T b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

// ---- The C++ forms of the host API ----
template <class T> inline cudaError_t cudaMalloc(T **pointer, size_t bytes, EMU_HERE) {
    return cudaMalloc((void **)pointer, bytes, file, line);
}
template <class T> inline cudaError_t cudaMallocHost(T **pointer, size_t bytes, unsigned flags = 0, EMU_HERE) {
    return cudaMallocHost((void **)pointer, bytes, flags, file, line);
}
template <class T> inline cudaError_t cudaHostAlloc(T **pointer, size_t bytes, unsigned flags, EMU_HERE) {
    return cudaHostAlloc((void **)pointer, bytes, flags, file, line);
}
template <class T>
inline cudaError_t cudaMallocManaged(T **pointer, size_t bytes, unsigned flags = cudaMemAttachGlobal, EMU_HERE) {
    return cudaMallocManaged((void **)pointer, bytes, flags, file, line);
}
template <class T>
inline cudaError_t cudaMallocPitch(T **pointer, size_t *pitch, size_t width, size_t height, EMU_HERE) {
    return cudaMallocPitch((void **)pointer, pitch, width, height, file, line);
}
template <class T> inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned flags) {
    return cudaHostGetDevicePointer((void **)device, host, flags);
}
template <class T> inline cudaError_t cudaFuncSetAttribute(T *kernel, enum cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}
template <class T> inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, T *kernel) {
    return cudaFuncGetAttributes(attributes, reinterpret_cast<const void *>(kernel));
}
template <class T>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, T *kernel, int block_size,
                                                                 size_t dynamic_shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void *>(kernel), block_size,
                                                         dynamic_shared_bytes);
}
template <class T>
inline cudaError_t cudaOccupancyMaxPotentialBlockSize(int *min_grid, int *block, T *kernel,
                                                      size_t dynamic_shared_bytes = 0, int limit = 0) {
    return cudaOccupancyMaxPotentialBlockSize(min_grid, block, reinterpret_cast<const void *>(kernel),
                                              dynamic_shared_bytes, limit);
}
template <class T> inline cudaError_t cudaFuncSetCacheConfig(T *, enum cudaFuncCache) { return cudaSuccess; } // a hint
template <class T, class S> inline cudaError_t cudaGetSymbolAddress(T **pointer, S &symbol) {
    *pointer = reinterpret_cast<T *>(&symbol);
    return cudaSuccess;
}
template <class T>
inline cudaError_t cudaMemcpyToSymbol(T &symbol, const void *from, size_t bytes, size_t offset = 0,
                                      enum cudaMemcpyKind kind = cudaMemcpyHostToDevice, EMU_HERE) {
    return cudaMemcpy(reinterpret_cast<char *>(&symbol) + offset, from, bytes, kind, file, line);
}
template <class T>
inline cudaError_t cudaMemcpyFromSymbol(void *to, const T &symbol, size_t bytes, size_t offset = 0,
                                        enum cudaMemcpyKind kind = cudaMemcpyDeviceToHost, EMU_HERE) {
    return cudaMemcpy(to, reinterpret_cast<const char *>(&symbol) + offset, bytes, kind, file, line);
}

#endif // EMU_CUDA_RUNTIME_H
