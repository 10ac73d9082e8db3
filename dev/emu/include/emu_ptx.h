// The PTX instructions of llmc/cuda/ptx.cuh as functions: asynchronous copies, and the warp-wide matrix instructions.
// Each matrix instruction is a collective of all 32 lanes of a warp, with the register layouts of the PTX ISA.
#ifndef EMU_EMU_PTX_H
#define EMU_EMU_PTX_H

#include <stdint.h>

#ifndef EMU_HERE
#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#endif

namespace emu {

// cp.async 16: copies src_bytes (0..16) from global to shared memory and fills the rest of the 16 bytes with zeros. The
// data arrives when cp_async_wait covers its group, the latest time that the hardware allows. Until then the
// destination must not be read. Both addresses are multiples of 16.
void cp_async_16(void *shared, const void *global, int src_bytes = 16, EMU_HERE);
void cp_async_commit();
void cp_async_wait_groups(int pending_groups);
template <int N> inline void cp_async_wait() { cp_async_wait_groups(N); }
inline void cp_async_wait_all() { cp_async_wait_groups(-1); } // also waits for the group that is not committed yet

// ldmatrix: lane 8 * i + j gives the address of row j of the 8 x 8 matrix i of 16-bit elements. Lane l receives in r[i]
// elements (l / 4, 2 * (l % 4)) and the next one of its row; transposed, (2 * (l % 4), l / 4) and the next of its
// column.
void ldmatrix_x1(uint32_t (&r)[1], const void *shared_row, EMU_HERE);
void ldmatrix_x2(uint32_t (&r)[2], const void *shared_row, EMU_HERE);
void ldmatrix_x4(uint32_t (&r)[4], const void *shared_row, EMU_HERE);
void ldmatrix_x1_trans(uint32_t (&r)[1], const void *shared_row, EMU_HERE);
void ldmatrix_x2_trans(uint32_t (&r)[2], const void *shared_row, EMU_HERE);
void ldmatrix_x4_trans(uint32_t (&r)[4], const void *shared_row, EMU_HERE);

// mma.sync: d (16 x 8) = a (16 x K) * b (K x 8) + c, accumulated in float. d and c may be the same registers.
void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4], EMU_HERE);
void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4], EMU_HERE);
void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4], EMU_HERE);

} // namespace emu

#endif // EMU_EMU_PTX_H
