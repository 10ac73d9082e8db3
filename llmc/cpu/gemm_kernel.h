// A kernel multiplies one panel of A by one panel of B. gemm.h packs the panels, walks over them and adds up the tiles.
// The kernels for other instruction sets stand in files beside it. All they share is this interface.
//
// Packed matrices hold words of 32 bits: a float, a float that was rounded to bf16, or a pair of bf16, which are two
// neighbours along k (element 2w in the low half of word w, 2w + 1 in the high half; past the end of k it is zero).
#ifndef LLMC_GEMM_KERNEL_H
#define LLMC_GEMM_KERNEL_H

#include "llmc/base/utils.h"

typedef enum { GEMM_FLOATS, GEMM_ROUNDED, GEMM_PAIRS } GemmWords;

#define GEMM_LANES 16    // rows of A in a panel; word w of a row i stands at w * GEMM_LANES + i
#define GEMM_MAX_ROWS 32 // of a tile of C
#define GEMM_MAX_COLS 48

// Lines of memory that are needed soon. A kernel fetches them one by one while it multiplies: all at once they would
// wait in the buffers through which its own operands come.
#define GEMM_AHEAD 64
typedef struct {
    const float *lines[GEMM_AHEAD];
    int64_t count;
} GemmAhead;

static const GemmAhead gemm_nothing_ahead = {{NULL}, 0};

// Fetches line i, if there is one, into the second-level cache. Always inlined: gcc drops calls of a function that only
// prefetches, because it finds no effect in it.
__attribute__((always_inline)) static inline void gemm_fetch(const GemmAhead *ahead, int64_t i) {
    if (i < ahead->count) { __builtin_prefetch(ahead->lines[i], 0, 2); }
}

typedef struct {
    const char *name; // as in --cpu-kernels
    GemmWords words;
    // A tile of C has rows x cols. depth: words along k that are multiplied at a time; the bits depend on it.
    int rows, cols, depth;
    // AMX reads A by rows: in each square of 16 rows and 16 words, word w of row i stands at 16 i + w. Zeros then fill
    // the last square.
    bool a_by_rows;
    bool adds; // multiply can add
    // Before and after some multiplies in a thread. NULL: nothing is to be done.
    void (*begin)(void), (*end)(void);
    // tile[i * ld + j] = (+= if it adds) sum over k of a[k][i] b[k][j], for i < rows and j < cols at least. ahead: is
    // fetched meanwhile. a: panels of GEMM_LANES rows, a_panel words apart. b: a panel of `cols of the kernel` columns.
    // depth: in words.
    void (*multiply)(float *tile, int64_t ld, const float *a, int64_t a_panel, const float *b, int64_t depth,
                     int64_t rows, int64_t cols, bool add, const GemmAhead *ahead);
    // Makes b + a s of every sum s of a tile, so many times: only the arithmetic takes time. a: a word, b: a vector.
    // Returns how many words it has multiplied. NULL: this kernel has none.
    int64_t (*burn)(float *tile, const float *a, const float *b, int64_t times);
} GemmKernel;

typedef int32_t GemmBits __attribute__((may_alias)); // the bits of a word

// Elements along k in a word.
static inline int64_t gemm_per_word(GemmWords words) { return words == GEMM_PAIRS ? 2 : 1; }

#if defined(GEMM_UNROLL) // as the Makefile says for sanitizers: each would check 24 copies
#elif defined(__clang__)
#define GEMM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GEMM_UNROLL _Pragma("GCC unroll 24")
#endif

// Keeps a vector in a register. gcc would load it again for each multiply that takes it, and loads, not multiply-adds,
// would then be the limit.
#if defined(__x86_64__)
#define GEMM_KEEP(vector) __asm__("" : "+v"(vector))
#elif defined(__aarch64__)
#define GEMM_KEEP(vector) __asm__("" : "+w"(vector))
#else
#define GEMM_KEEP(vector) (void)0
#endif

#endif // LLMC_GEMM_KERNEL_H
