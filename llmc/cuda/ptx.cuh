// Wraps the PTX instructions of the tensor cores and of asynchronous copies (Parallel Thread Execution ISA, from sm_80
// on): CUDA C++ has no words for them. The emulator brings its own versions; no other file knows of it.
//
//   cp_async_16(shared, global, bytes = 16)  starts a copy of 16 bytes to shared memory. The first `bytes` bytes come
//                                            from global, the rest are zeros. Both addresses are multiples of 16
//   cp_async_commit()                        makes a group of this thread's copies since the last group
//   cp_async_wait<N>()                       waits until at most the N latest groups of this thread are on their way.
//                                            A barrier must follow before another thread reads the data
//
// The next functions need all 32 lanes of a warp. A matrix is 8 x 8 bf16: 8 rows of 16 bytes. Its fragment is one
// register: lane l holds columns 2*(l%4) and 2*(l%4)+1 of row l/4, the lower column in the lower half.
//
//   ldmatrix_x4(r, row)              r[i] becomes the fragment of matrix i. Lane l gives the address of row l%8 of
//                                    matrix l/8
//   ldmatrix_x4_trans(r, row)        r[i] becomes the fragment of matrix i transposed
//   mma_m16n8k16_bf16(d, a, b, c)    d = a b + c with a (16,16), b (16,8) in bf16 and c, d (16,8) in float. d may be c
//     a: fragments of rows 0-7 and 8-15 at columns 0-7, then of these rows at columns 8-15
//     b: fragments of the transpose of rows 0-7, then of rows 8-15
//     c, d: lane l holds columns 2*(l%4) and 2*(l%4)+1 of row l/4, then of row l/4+8
#ifndef LLMC_PTX_CUH
#define LLMC_PTX_CUH

#include <stdint.h>

#include "llmc/cuda/cuda_common.h"

#ifdef GPT2_EMU
#include <emu_ptx.h>

using emu::cp_async_16;
using emu::cp_async_commit;
using emu::cp_async_wait;
using emu::ldmatrix_x4;
using emu::ldmatrix_x4_trans;
using emu::mma_m16n8k16_bf16;

static inline float exp2_approx(float x) { return exp2f(x); }
static inline float reciprocal_approx(float x) { return 1.0f / x; }

#else

__device__ __forceinline__ uint32_t shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

__device__ __forceinline__ void cp_async_16(void *shared, const void *global, int bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Not volatile: the result depends on the operands alone, so the compiler may move it.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                  const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// 2^x within 2 units in the last place, by one instruction. Results below 2^-126 are 0; exp2f spends four more
// instructions on them.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1/x within 1 unit in the last place, by one instruction. 1/inf is 0, and results below 2^-126 are 0. A division takes
// eight instructions and a branch.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif // GPT2_EMU

#endif // LLMC_PTX_CUH
