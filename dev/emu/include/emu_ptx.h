// Inline PTX, and the instructions of llmc/cuda/ptx.cuh as functions: asynchronous copies, and the warp-wide matrix
// instructions. Each matrix instruction is a collective of all 32 lanes of a warp, with the register layouts of the PTX
// ISA.
#ifndef EMU_EMU_PTX_H
#define EMU_EMU_PTX_H

#include "cuda_runtime.h"

namespace emu {

// cp.async: copies src_bytes (0..bytes) from global to shared memory and fills the rest of the 4, 8 or 16 bytes with
// zeros. The data arrives when cp_async_wait covers its group, the latest time that the hardware allows. Until then the
// destination must not be read. Both addresses are multiples of bytes.
void cp_async(void *shared, const void *global, int bytes, int src_bytes, EMU_HERE);
__forceinline__ void cp_async_16(void *shared, const void *global, int src_bytes = 16, EMU_HERE) {
    cp_async(shared, global, 16, src_bytes, file, line);
}
void cp_async_commit();
void cp_async_wait_groups(int pending_groups);
template <int PENDING> __forceinline__ void cp_async_wait() { cp_async_wait_groups(PENDING); }
__forceinline__ void cp_async_wait_all() { cp_async_wait_groups(-1); } // also for the group that is not committed yet

// ldmatrix: lane 8 * i + j gives the address of row j of the 8 x 8 matrix i of 16-bit elements, of 1, 2 or 4 matrices.
// Lane l receives in r[i] elements (l / 4, 2 * (l % 4)) and the next one of its row; transposed, (2 * (l % 4), l / 4)
// and the next of its column.
void load_matrices(uint32_t *r, int matrices, bool transposed, const void *shared_row, const char *file, int line);
template <int MATRICES> __forceinline__ void ldmatrix(uint32_t (&r)[MATRICES], const void *shared_row, EMU_HERE) {
    load_matrices(r, MATRICES, false, shared_row, file, line);
}
template <int MATRICES> __forceinline__ void ldmatrix_trans(uint32_t (&r)[MATRICES], const void *shared_row, EMU_HERE) {
    load_matrices(r, MATRICES, true, shared_row, file, line);
}
__forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *shared_row, EMU_HERE) {
    ldmatrix(r, shared_row, file, line);
}
__forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *shared_row, EMU_HERE) {
    ldmatrix_trans(r, shared_row, file, line);
}

// mma.sync: d (16 x 8) = a (16 x K) * b (K x 8) + c, accumulated in float. d and c may be the same registers.
void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4], EMU_HERE);
void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4], EMU_HERE);
void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4], EMU_HERE);
float float_of_half(uint16_t bits);
uint16_t half_of_float(float x);

// ---- Inline PTX: rewrite.cpp makes a call of a function below from each instruction. Addresses come first ----
namespace ptx {

typedef float f32;
typedef double f64;
typedef uint8_t u8, b8;
typedef int8_t s8;
typedef uint16_t u16, b16, f16;
typedef int16_t s16;
typedef uint32_t u32, b32;
typedef int32_t s32;
typedef unsigned long long u64, b64;
typedef long long s64;

// A pointer, or the lower 32 bits of one to shared memory, which begins at a multiple of 2^32.
constexpr uint64_t SHARED_BEGIN = 0x202400000000;
struct Address {
    char *p;
    const char *file;
    int line;
};
template <class A> __forceinline__ Address at(A address, long long offset, EMU_HERE) {
    uint64_t bits = (uint64_t)address;
    return {reinterpret_cast<char *>(bits >> 32 ? bits : bits | SHARED_BEGIN) + offset, file, line};
}

// Registers keep the bits of types of one size. A narrower value is widened.
template <class T, class From> EMU_UNCHECKED inline T take(const From &from) {
    if constexpr (sizeof(T) == sizeof(From)) {
        return bit_cast<T>(from);
    } else {
        return static_cast<T>(from);
    }
}
template <class R, class T> __forceinline__ void put(R &to, T value) { to = take<R>(value); }

template <class T, class... R> EMU_UNCHECKED inline void ld(Address a, R &...to) {
    check_read(a.p, sizeof(T) * sizeof...(R), sizeof(T) * sizeof...(R), a.file, a.line);
    const T *from = reinterpret_cast<const T *>(a.p);
    (put(to, *from++), ...);
}
template <class T, class... R> EMU_UNCHECKED inline void st(Address a, const R &...from) {
    check_write(a.p, sizeof(T) * sizeof...(R), sizeof(T) * sizeof...(R), a.file, a.line);
    T *to = reinterpret_cast<T *>(a.p);
    ((*to++ = take<T>(from)), ...);
}

#define EMU_PTX_ATOMIC(op, function)                                                                                   \
    template <class T, class R, class V> __forceinline__ void atom_##op(Address a, R &old, const V &value) {           \
        put(old, function(reinterpret_cast<T *>(a.p), take<T>(value), a.file, a.line));                                \
    }                                                                                                                  \
    template <class T, class V> __forceinline__ void red_##op(Address a, const V &value) {                             \
        function(reinterpret_cast<T *>(a.p), take<T>(value), a.file, a.line);                                          \
    }
EMU_PTX_ATOMIC(add, atomicAdd)
EMU_PTX_ATOMIC(min, atomicMin)
EMU_PTX_ATOMIC(max, atomicMax)
EMU_PTX_ATOMIC(and, atomicAnd)
EMU_PTX_ATOMIC(or, atomicOr)
EMU_PTX_ATOMIC(xor, atomicXor)
EMU_PTX_ATOMIC(inc, atomicInc)
EMU_PTX_ATOMIC(dec, atomicDec)
EMU_PTX_ATOMIC(exch, atomicExch)
#undef EMU_PTX_ATOMIC
template <class T, class R> __forceinline__ void atom_cas(Address a, R &old, T expected, T value) {
    put(old, atomicCAS(reinterpret_cast<T *>(a.p), expected, value, a.file, a.line));
}

template <class T, class R, class V> __forceinline__ void mov(R &to, const V &value) { put(to, take<T>(value)); }

__forceinline__ u32 warpid() { return rank_in_block() / 32; }
__forceinline__ u32 laneid() { return rank_in_block() % 32; }
__forceinline__ u32 lanemask_eq() { return 1u << laneid(); }
__forceinline__ u32 lanemask_lt() { return lanemask_eq() - 1; }
__forceinline__ u32 lanemask_le() { return lanemask_lt() | lanemask_eq(); }
__forceinline__ u32 lanemask_gt() { return ~lanemask_le(); }
__forceinline__ u32 lanemask_ge() { return ~lanemask_lt(); }
__forceinline__ u32 clock() { return static_cast<u32>(clock64()); }
__forceinline__ u64 clock64() { return static_cast<u64>(::clock64()); }
__forceinline__ uint3 tid() { return threadIdx; }
__forceinline__ dim3 ntid() { return blockDim; }
__forceinline__ uint3 ctaid() { return blockIdx; }
__forceinline__ dim3 nctaid() { return gridDim; }

// Bit 4 a + 2 b + c of the table is the result for three bits.
template <class T, class R> __forceinline__ void lop3(R &d, u32 a, u32 b, u32 c, u32 table) {
    u32 bits = 0;
    for (u32 i = 0; i < 8; i++) {
        if (table >> i & 1) { bits |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c); }
    }
    put(d, bits);
}
template <class T, class R> __forceinline__ void prmt(R &d, u32 a, u32 b, u32 c) { put(d, __byte_perm(a, b, c)); }
// Byte i of the result is that byte of a and b, for n = c % 4.
#define EMU_PTX_PRMT(mode, byte)                                                                                       \
    template <class T, class R> __forceinline__ void prmt_##mode(R &d, u32 a, u32 b, u32 c) {                          \
        u32 selector = 0, n = c % 4;                                                                                   \
        for (u32 i = 0; i < 4; i++) { selector |= ((byte)&7) << 4 * i; }                                               \
        put(d, __byte_perm(a, b, selector));                                                                           \
    }
EMU_PTX_PRMT(f4e, n + i)
EMU_PTX_PRMT(b4e, n - i)
EMU_PTX_PRMT(rc8, n)
EMU_PTX_PRMT(ecl, n > i ? n : i)
EMU_PTX_PRMT(ecr, n < i ? n : i)
EMU_PTX_PRMT(rc16, n % 2 * 2 + i % 2)
#undef EMU_PTX_PRMT

#define EMU_PTX_FUNCTION(name, result)                                                                                 \
    template <class T, class R> __forceinline__ void name(R &d, T x) {                                                 \
        static_assert(sizeof(T) >= 4, "this PTX instruction of 16 bits is not part of the emulator");                  \
        put(d, static_cast<T>(result));                                                                                \
    }
EMU_PTX_FUNCTION(ex2, exp2f(x))
EMU_PTX_FUNCTION(lg2, log2f(x))
EMU_PTX_FUNCTION(rcp, 1 / x)
EMU_PTX_FUNCTION(rsqrt, rsqrtf(x))
EMU_PTX_FUNCTION(tanh, tanhf(x))
#undef EMU_PTX_FUNCTION
__forceinline__ void bar(u32, EMU_HERE) { __syncthreads(file, line); }
__forceinline__ void bar(u32, u32 threads, EMU_HERE) { barrier_of(threads, file, line); }
__forceinline__ void barrier(u32, EMU_HERE) { __syncthreads(file, line); }
__forceinline__ void barrier(u32, u32 threads, EMU_HERE) { barrier_of(threads, file, line); }
__forceinline__ void bar_warp(u32 mask, EMU_HERE) { __syncwarp(mask, file, line); }
__forceinline__ void membar_cta() { __threadfence_block(); }
__forceinline__ void membar_gl() { __threadfence(); }
__forceinline__ void membar_sys() { __threadfence(); }
__forceinline__ void fence() { __threadfence(); }

__forceinline__ void cp_async(Address to, Address from, int bytes, int src_bytes = -1) {
    emu::cp_async(to.p, from.p, bytes, src_bytes < 0 ? bytes : src_bytes, to.file, to.line);
}
__forceinline__ void cp_async_commit_group() { cp_async_commit(); }
__forceinline__ void cp_async_wait_group(int pending_groups) { cp_async_wait_groups(pending_groups); }

template <bool TRANSPOSED, class... R> __forceinline__ void load_into(Address row, R &...to) {
    uint32_t r[sizeof...(R)];
    load_matrices(r, sizeof...(R), TRANSPOSED, row.p, row.file, row.line);
    const uint32_t *from = r;
    (put(to, *from++), ...);
}
template <class T, class... R> __forceinline__ void ldmatrix_m8n8(Address row, R &...to) {
    load_into<false>(row, to...);
}
template <class T, class... R> __forceinline__ void ldmatrix_m8n8_trans(Address row, R &...to) {
    load_into<true>(row, to...);
}

#define EMU_PTX_MMA(name, function)                                                                                    \
    template <class T>                                                                                                 \
    __forceinline__ void name(f32 &d0, f32 &d1, f32 &d2, f32 &d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1,      \
                              f32 c0, f32 c1, f32 c2, f32 c3, EMU_HERE) {                                              \
        f32 d[4];                                                                                                      \
        function(d, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}, file, line);                                         \
        d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];                                                                    \
    }
EMU_PTX_MMA(mma_m16n8k16_f32_bf16_bf16, mma_m16n8k16_bf16)
EMU_PTX_MMA(mma_m16n8k16_f32_f16_f16, mma_m16n8k16_f16)
EMU_PTX_MMA(mma_m16n8k8_f32_tf32_tf32, mma_m16n8k8_tf32)
#undef EMU_PTX_MMA
template <class T, class R>
__forceinline__ void mma_m16n8k16_f16_f16_f16(R &d0, R &d1, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, u32 c0,
                                              u32 c1, EMU_HERE) {
    f32 d[4], c[4];
    for (int i = 0; i < 4; i++) { c[i] = float_of_half(static_cast<u16>((i < 2 ? c0 : c1) >> 16 * (i % 2))); }
    mma_m16n8k16_f16(d, {a0, a1, a2, a3}, {b0, b1}, c, file, line);
    u32 bits[4];
    for (int i = 0; i < 4; i++) { bits[i] = half_of_float(d[i]); }
    put(d0, bits[0] | bits[1] << 16), put(d1, bits[2] | bits[3] << 16);
}

} // namespace ptx
} // namespace emu

#endif // EMU_EMU_PTX_H
