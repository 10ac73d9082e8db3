// nvcuda::wmma for tiles of 16 x 16 x 16 of half or bf16. A fragment lies in a warp's registers as two mma.m16n8k16 of
// emu_ptx.h need it, and mma_sync calls these two. The hardware's layout may differ: programs must not rely on it.
#ifndef EMU_MMA_H
#define EMU_MMA_H

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"
#include "emu_ptx.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

// The part of a lane: 8 elements of 256.
template <class Use, int ROWS, int COLS, int DEPTH, class T, class Layout = void> struct fragment {
    static_assert(ROWS == 16 && COLS == 16 && DEPTH == 16, "the emulator's wmma has tiles of 16 x 16 x 16");
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16> ||
                      (std::is_same_v<Use, accumulator> && std::is_same_v<T, float>),
                  "the emulator's wmma multiplies half and bf16, and adds up in half and float");
    static constexpr int num_elements = 8;
    typedef T element_type;
    T x[8];
};

// Element i of a lane is element (row, col) of the tile.
struct EmuPlace {
    int row, col;
};
template <class Use> inline EmuPlace emu_place(Use, int lane, int i) { // of a and of sums
    return {lane / 4 + 8 * (i / 2 % 2), 2 * (lane % 4) + 8 * (i / 4) + i % 2};
}
inline EmuPlace emu_place(matrix_b, int lane, int i) {
    return {2 * (lane % 4) + 8 * (i / 2 % 2) + i % 2, lane / 4 + 8 * (i / 4)};
}
template <class Use> inline size_t emu_offset(int i, unsigned ld, bool by_rows) {
    EmuPlace at = emu_place(Use(), static_cast<int>(emu::rank_in_block() % 32), i);
    return by_rows ? size_t(at.row) * ld + size_t(at.col) : size_t(at.col) * ld + size_t(at.row);
}

template <class Use, class T, class Layout>
EMU_UNCHECKED inline void emu_load(fragment<Use, 16, 16, 16, T, Layout> &to, const T *from, unsigned ld, bool by_rows,
                                   const char *file, int line) {
    emu::wmma_meet("load_matrix_sync", from, ld * sizeof(T), file, line);
    for (int i = 0; i < 8; i++) {
        const T *element = from + emu_offset<Use>(i, ld, by_rows);
        emu::check_read(element, sizeof(T), alignof(T), file, line);
        to.x[i] = *element;
    }
}

template <class Use, class T, class Layout>
inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout> &to, const T *from, unsigned ld, EMU_HERE) {
    emu_load(to, from, ld, std::is_same_v<Layout, row_major>, file, line);
}
template <class T>
inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, T> &to, const T *from, unsigned ld, layout_t layout,
                             EMU_HERE) {
    emu_load(to, from, ld, layout == mem_row_major, file, line);
}

template <class T>
EMU_UNCHECKED inline void store_matrix_sync(T *to, const fragment<accumulator, 16, 16, 16, T> &from, unsigned ld,
                                            layout_t layout, EMU_HERE) {
    emu::wmma_meet("store_matrix_sync", to, ld * sizeof(T), file, line);
    for (int i = 0; i < 8; i++) {
        T *element = to + emu_offset<accumulator>(i, ld, layout == mem_row_major);
        emu::check_write(element, sizeof(T), alignof(T), file, line);
        *element = from.x[i];
    }
}

template <class Use, class T, class Layout, class Value>
inline void fill_fragment(fragment<Use, 16, 16, 16, T, Layout> &to, const Value &value) {
    for (T &x : to.x) { x = T(value); }
}

// d = a b + c. Sums are fp32; those of half accumulators are rounded at the end.
template <class T, class LayoutA, class LayoutB, class Sum>
inline void mma_sync(fragment<accumulator, 16, 16, 16, Sum> &d, const fragment<matrix_a, 16, 16, 16, T, LayoutA> &a,
                     const fragment<matrix_b, 16, 16, 16, T, LayoutB> &b,
                     const fragment<accumulator, 16, 16, 16, Sum> &c, EMU_HERE) {
    uint32_t left[4];
    memcpy(left, a.x, sizeof(left));
    for (int half = 0; half < 2; half++) { // of the columns
        uint32_t right[2];
        float sums[4];
        memcpy(right, b.x + 4 * half, sizeof(right));
        for (int i = 0; i < 4; i++) { sums[i] = static_cast<float>(c.x[4 * half + i]); }
        if constexpr (std::is_same_v<T, __half>) {
            emu::mma_m16n8k16_f16(sums, left, right, sums, file, line);
        } else {
            emu::mma_m16n8k16_bf16(sums, left, right, sums, file, line);
        }
        for (int i = 0; i < 4; i++) { d.x[4 * half + i] = Sum(sums[i]); }
    }
}

} // namespace wmma
} // namespace nvcuda

#endif // EMU_MMA_H
