// CUDA for a C++ compiler: the language (built-in variables, barriers, warp functions, atomics, intrinsics, launches)
// and, through cuda_runtime_api.h, the host API. dev/emu/README.md explains how it works. The keywords __shared__,
// __device__, __constant__ and __noinline__ and the launch syntax are translated by dev/emu/rewrite.cpp.
//
// Some functions need the place of their call: reports name it, and it is the identity of a barrier. They take the
// source file and line as default last arguments: EMU_HERE.
#ifndef EMU_CUDA_RUNTIME_H
#define EMU_CUDA_RUNTIME_H

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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

constexpr int warpSize = 32;

#ifdef EMU_WITHOUT_METER
extern "C" __attribute__((weak)) void emu_without_meter() {} // the meter looks for it
#endif

namespace emu {

uint3 thread_index() __attribute__((const));
uint3 block_index() __attribute__((const));
dim3 block_size() __attribute__((const));
dim3 grid_size() __attribute__((const));
unsigned rank_in_block() __attribute__((const)); // of the thread

} // namespace emu

// A built-in variable. The rewriter makes emu_dim(blockDim).x of blockDim.x, because a program may have a variable of
// its own with this name.
#define EMU_BUILT_IN(name, T, function)                                                                                \
    inline constexpr struct name##_t {                                                                                 \
        operator T() const { return ::emu::function(); }                                                               \
    } name{};                                                                                                          \
    __forceinline__ T emu_dim(const name##_t &) { return ::emu::function(); }
EMU_BUILT_IN(threadIdx, uint3, thread_index)
EMU_BUILT_IN(blockIdx, uint3, block_index)
EMU_BUILT_IN(blockDim, dim3, block_size)
EMU_BUILT_IN(gridDim, dim3, grid_size)
#undef EMU_BUILT_IN
template <class T> __forceinline__ T &emu_dim(T &own_variable) { return own_variable; }

namespace emu {

// ---- Launches: K<<<config>>>(args) is rewritten to Launch("K", file, line, config).of(K)(args) ----

struct Kernel;

class Launch {
  public:
    Launch(const char *name, const char *file, int line, dim3 grid, dim3 block, size_t shared_bytes = 0,
           cudaStream_t stream = nullptr, bool is_cooperative = false)
        : is_cooperative(is_cooperative), name(name), file(file), line(line), grid(grid), block(block),
          shared_bytes(shared_bytes), stream(stream) {}

    // of(K)(args): a call like that of K, so that NULL and numbers convert. The arguments are copied now, as the
    // hardware does. The originals may change later. The emulator's own reads of the copy are no accesses to host
    // memory.
    template <class... Params> auto of(void (*kernel)(Params...)) {
        static_assert((std::is_trivially_copyable_v<Params> && ...), "kernel arguments are copied byte by byte");
        return [this, kernel](Params... args) {
            auto call = [=]() EMU_UNCHECKED { kernel(args...); };
            auto one_thread = [](void *c) EMU_UNCHECKED { (*static_cast<decltype(call) *>(c))(); };
            run(reinterpret_cast<const void *>(kernel), one_thread, &call, sizeof(call));
        };
    }
    // For a kernel whose template arguments the compiler finds: `call` calls it.
    template <class Call, class... Args> void deduce(Call call, Args... args) {
        is_deduced = true;
        of(static_cast<void (*)(Args...)>(call))(args...);
    }
    bool fits(emu::Function kernel) const; // all blocks at once
    const bool is_cooperative;             // the blocks run at once

  private:
    void run(const void *kernel, void (*one_thread)(void *), void *call, size_t bytes);

    const char *name, *file;
    int line;
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    bool is_deduced = false; // the address of the kernel is not known
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

// The lanes of the warp that are at this line when all others wait or have exited.
unsigned converge(const char *file, int line);
void grid_sync(const char *file, int line);
bool is_cooperative();                                         // the running launch
void barrier_of(unsigned threads, const char *file, int line); // bar.sync

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

// Returns what was there. expected: of ATOMIC_SWAP_IF. For all types of the functions below.
enum Atomic {
    ATOMIC_ADD,
    ATOMIC_EXCHANGE,
    ATOMIC_SWAP_IF,
    ATOMIC_MIN,
    ATOMIC_MAX,
    ATOMIC_AND,
    ATOMIC_OR,
    ATOMIC_XOR,
    ATOMIC_INC,
    ATOMIC_DEC
};
template <class T> T atomic(Atomic kind, T *address, T value, T expected, const char *file, int line);

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
unsigned __activemask(EMU_HERE);
void __nanosleep(unsigned nanoseconds);
long long clock64();
[[noreturn]] void __trap(EMU_HERE);

// ---- Warp functions ----
#define EMU_SHUFFLE(name, kind, Lane)                                                                                  \
    template <class T> inline T name(unsigned mask, T value, Lane lane, int width = 32, EMU_HERE) {                    \
        return emu::shuffle_value(emu::kind, mask, value, static_cast<int>(lane), width, file, line);                  \
    }
EMU_SHUFFLE(__shfl_sync, SHUFFLE_INDEX, int)
EMU_SHUFFLE(__shfl_up_sync, SHUFFLE_UP, unsigned)
EMU_SHUFFLE(__shfl_down_sync, SHUFFLE_DOWN, unsigned)
EMU_SHUFFLE(__shfl_xor_sync, SHUFFLE_XOR, int)
#undef EMU_SHUFFLE
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
#define EMU_ATOMIC(name, kind, T)                                                                                      \
    inline T name(T *address, T value, EMU_HERE) {                                                                     \
        return emu::atomic(emu::ATOMIC_##kind, address, value, value, file, line);                                     \
    }
#define EMU_ATOMIC_CAS(T)                                                                                              \
    inline T atomicCAS(T *address, T expected, T value, EMU_HERE) {                                                    \
        return emu::atomic(emu::ATOMIC_SWAP_IF, address, value, expected, file, line);                                 \
    }
#define EMU_ATOMICS(T)                                                                                                 \
    EMU_ATOMIC(atomicMin, MIN, T)                                                                                      \
    EMU_ATOMIC(atomicMax, MAX, T)                                                                                      \
    EMU_ATOMIC(atomicAnd, AND, T)                                                                                      \
    EMU_ATOMIC(atomicOr, OR, T)                                                                                        \
    EMU_ATOMIC(atomicXor, XOR, T)
#define EMU_ATOMIC_SUMS(T)                                                                                             \
    EMU_ATOMIC(atomicAdd, ADD, T)                                                                                      \
    EMU_ATOMIC(atomicExch, EXCHANGE, T)
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(long long)
EMU_ATOMICS(unsigned long long)
EMU_ATOMIC_SUMS(int)
EMU_ATOMIC_SUMS(unsigned)
EMU_ATOMIC_SUMS(unsigned long long)
EMU_ATOMIC_SUMS(float)
EMU_ATOMIC(atomicAdd, ADD, double)
EMU_ATOMIC(atomicInc, INC, unsigned)
EMU_ATOMIC(atomicDec, DEC, unsigned)
EMU_ATOMIC_CAS(unsigned short)
EMU_ATOMIC_CAS(int)
EMU_ATOMIC_CAS(unsigned)
EMU_ATOMIC_CAS(unsigned long long)
#undef EMU_ATOMIC
#undef EMU_ATOMIC_CAS
#undef EMU_ATOMICS
#undef EMU_ATOMIC_SUMS
inline int atomicSub(int *address, int value, EMU_HERE) { return atomicAdd(address, -value, file, line); }
inline unsigned atomicSub(unsigned *address, unsigned value, EMU_HERE) {
    return atomicAdd(address, 0u - value, file, line);
}
// Each number of a vector is added atomically, and not all of them at once.
inline float2 atomicAdd(float2 *address, float2 value, EMU_HERE) {
    return {atomicAdd(&address->x, value.x, file, line), atomicAdd(&address->y, value.y, file, line)};
}
inline float4 atomicAdd(float4 *address, float4 value, EMU_HERE) {
    return {atomicAdd(&address->x, value.x, file, line), atomicAdd(&address->y, value.y, file, line),
            atomicAdd(&address->z, value.z, file, line), atomicAdd(&address->w, value.w, file, line)};
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
namespace emu {
template <class... Params, size_t... I>
inline cudaError_t launch_kernel(Launch launch, void (*kernel)(Params...), void **args, std::index_sequence<I...>) {
    if (launch.is_cooperative && !launch.fits(kernel)) { return cudaErrorCooperativeLaunchTooLarge; }
    launch.of(kernel)(*static_cast<Params *>(args[I])...);
    return cudaSuccess;
}
} // namespace emu
// The rewriter adds the name, and takes the casts to void * away.
#define EMU_LAUNCH(function, cooperative)                                                                              \
    template <class... Params>                                                                                         \
    inline cudaError_t function(const char *name, void (*kernel)(Params...), dim3 grid, dim3 block, void **args,       \
                                size_t shared_bytes = 0, cudaStream_t stream = 0, EMU_HERE) {                          \
        emu::Launch launch(name, file, line, grid, block, shared_bytes, stream, cooperative);                          \
        return emu::launch_kernel(launch, kernel, args, std::index_sequence_for<Params...>());                         \
    }
EMU_LAUNCH(cudaLaunchKernel, false)
EMU_LAUNCH(cudaLaunchCooperativeKernel, true)
#undef EMU_LAUNCH
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

#include "emu_ptx.h"

#endif // EMU_CUDA_RUNTIME_H
