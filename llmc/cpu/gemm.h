// Multiplies matrices on the CPU: C = A B (+ bias), or C += A B (+ bias). Matrices are fp32; a kernel for bf16 rounds
// the elements of A and B to bf16 and adds up their products in fp32. Any strides, so a transpose is free.
//
// A and B are copied ("packed") into panels that the kernel reads in order. A panel of B is 48 or 32 columns wide and a
// block of k deep. It stays in the nearest caches while all panels of A pass by. The kernel keeps a tile of C in
// registers. (Goto, van de Geijn 2008: "Anatomy of high-performance matrix multiplication".)
//
// A contract for every caller: these operations in this order give an element of C. They do not depend on M, N, the
// strides, the place in the matrix or the number of threads:
//     for each block along k, from the first:  s = 0;  s = s + a_ik b_kj for k in order;
//     first block: s = s + bias_j;  then C_ij = s in the first block if not accumulating, else C_ij + s.
// The kernel says how many k a block has, and how it adds: fp32 kernels take 256, and fuse if the machine can; others
// add the products of a pair of k, or of 32 k, as their instruction does. So a row computed alone has the bits that it
// has in a batch, and many threads give the bits of one thread. The blocks begin at multiples of their depth, so zeros
// appended to a row of A change no bit (but may turn -0 into +0).
#ifndef LLMC_GEMM_H
#define LLMC_GEMM_H

#include "llmc/base/openmp.h"
#include "llmc/cpu/gemm_kernel.h"
#include "llmc/cpu/shuffles.h"

typedef struct {
    const float *data; // element (i, j) is data[i * row_stride + j * col_stride]
    int64_t row_stride, col_stride;
    int64_t packed_depth; // not 0: data are the panels of a B of so many rows, from gemm_pack_serial
} GemmMatrix;

// These return a row-major matrix with rows `stride` apart, the transpose of one, and a B (K, N) that was packed.
static inline GemmMatrix rows_of(const float *data, int64_t stride) {
    GemmMatrix m = {data, stride, 1, 0};
    return m;
}

static inline GemmMatrix transpose_of(const float *data, int64_t stride) {
    GemmMatrix m = {data, 1, stride, 0};
    return m;
}

static inline GemmMatrix packed_of(const float *packed, int64_t K) {
    GemmMatrix m = {packed, 0, 0, K};
    return m;
}

// Capacities of a thread's workspace, in words.
#define GEMM_PACKED_A (1 << 18) // 256 rows at GEMM_MAX_DEPTH: 1 MiB, to stay in the second-level cache
#define GEMM_PACKED_B (GEMM_DEPTH * GEMM_MAX_COLS)
#define GEMM_DEPTH 256      // words along k per block, at most
#define GEMM_MAX_DEPTH 1024 // words along k for which A is packed at a time; a multiple of GEMM_DEPTH

// ----------------------------------------------------------------------------
// Packing

// Holds a part of a matrix that goes into one panel: lanes are rows of A or columns of B.
typedef struct {
    const float *data; // the element of a lane at k is data[lane * lane_stride + k * k_stride]
    int64_t lane_stride, k_stride, lanes, depth;
} GemmSource;

// Word w of VF_WIDTH lanes. The lanes are neighbours in memory. Missing lanes and elements are 0.
static inline vf gemm_word_of_lanes(GemmWords words, const GemmSource *s, int64_t lane, int64_t w) {
    int64_t k = w * gemm_per_word(words), left = s->lanes - lane;
    const float *from = s->data + k * s->k_stride + lane;
    if (k >= s->depth) { return vf_set1(0.0f); }
    vf x = vf_load_n(from, left);
    if (words == GEMM_FLOATS) { return x; }
    if (words == GEMM_ROUNDED) { return vf_round_bf16(x); }
    return vf_pair_lanes(x, k + 1 < s->depth ? vf_load_n(from + s->k_stride, left) : vf_set1(0.0f));
}

// VF_WIDTH words of a lane, from word w on. They exist, and neighbours along k are neighbours in memory.
static inline vf gemm_words_of_lane(GemmWords words, const GemmSource *s, int64_t lane, int64_t w) {
    const float *from = s->data + lane * s->lane_stride + w * gemm_per_word(words);
    vf x = vf_load(from);
    if (words == GEMM_FLOATS) { return x; }
    if (words == GEMM_ROUNDED) { return vf_round_bf16(x); }
    return vf_pair_neighbours(x, vf_load(from + VF_WIDTH));
}

// Copies a square of any strides, with zeros where the source ends, so that it has neighbours along k in memory. In
// gemm_pack it would stand 16 times, which takes the compiler 3 s more and the multiply 1 %.
__attribute__((noinline)) static GemmSource gemm_gather(float *to, GemmWords words, const GemmSource *s, int64_t lane,
                                                        int64_t w) {
    int64_t per_word = gemm_per_word(words), depth = VF_WIDTH * per_word;
    for (int64_t i = 0; i < VF_WIDTH; i++) {
        for (int64_t j = 0; j < depth; j++) {
            int64_t k = w * per_word + j;
            bool exists = lane + i < s->lanes && k < s->depth;
            to[i * depth + j] = exists ? s->data[(lane + i) * s->lane_stride + k * s->k_stride] : 0.0f;
        }
    }
    GemmSource copy = {to, depth, 1, VF_WIDTH, depth};
    return copy;
}

// Packs a square of VF_WIDTH lanes and VF_WIDTH words: to[w * to_stride + lane], or to[lane * to_stride + w] by rows.
__attribute__((always_inline)) static inline void gemm_pack_square(float *to, int64_t to_stride, bool by_rows,
                                                                   GemmWords words, const GemmSource *s, int64_t lane,
                                                                   int64_t w) {
    vf square[VF_WIDTH];
    if (s->lane_stride == 1) {
        GEMM_UNROLL for (int i = 0; i < VF_WIDTH; i++) { square[i] = gemm_word_of_lanes(words, s, lane, w + i); }
        if (by_rows) { vf_transpose(square); }
    } else {
        float copy[2 * VF_WIDTH * VF_WIDTH];
        GemmSource near = *s;
        bool whole = (w + VF_WIDTH) * gemm_per_word(words) <= s->depth;
        if (s->k_stride != 1 || !whole) { near = gemm_gather(copy, words, s, lane, w), lane = w = 0; }
        if (lane + VF_WIDTH <= near.lanes) {
            GEMM_UNROLL for (int i = 0; i < VF_WIDTH; i++) {
                square[i] = gemm_words_of_lane(words, &near, lane + i, w);
            }
        } else {
            for (int i = 0; i < VF_WIDTH; i++) {
                square[i] = lane + i < near.lanes ? gemm_words_of_lane(words, &near, lane + i, w) : vf_set1(0.0f);
            }
        }
        if (!by_rows) { vf_transpose(square); }
    }
    GEMM_UNROLL for (int i = 0; i < VF_WIDTH; i++) { vf_store(to + i * to_stride, square[i]); }
}

// Words along k that depth elements take in a panel.
static inline int64_t gemm_panel_words(GemmWords words, int64_t depth) {
    return round_up_i64(ceil_div_i64(depth, gemm_per_word(words)), 16);
}

// Packs the lanes that exist into a panel of width lanes, up to a multiple of 16 lanes and of 16 words. The source is
// read along its rows in memory.
__attribute__((always_inline)) static inline void gemm_pack_words(float *to, int64_t width, bool by_rows,
                                                                  GemmWords words, const GemmSource *s) {
    int64_t depth = gemm_panel_words(words, s->depth), lanes = round_up_i64(s->lanes, GEMM_LANES);
    if (s->lane_stride == 1 && !by_rows) {
        for (int64_t w = 0; w < depth; w++) {
            for (int64_t lane = 0; lane < lanes; lane += VF_WIDTH) {
                vf_store(to + w * width + lane, gemm_word_of_lanes(words, s, lane, w));
            }
        }
        return;
    }
    for (int64_t lane = 0; lane < lanes; lane += VF_WIDTH) {
        for (int64_t w = 0; w < depth; w += VF_WIDTH) {
            float *square = by_rows ? to + w / 16 * 256 + lane * 16 + w % 16 : to + w * width + lane;
            gemm_pack_square(square, by_rows ? 16 : width, by_rows, words, s, lane, w);
        }
    }
}

// gemm_pack_words, compiled for each kind of words.
static inline void gemm_pack(float *to, int64_t width, bool by_rows, GemmWords words, GemmSource s) {
    if (words == GEMM_FLOATS) {
        gemm_pack_words(to, width, false, GEMM_FLOATS, &s);
    } else if (words == GEMM_ROUNDED) {
        gemm_pack_words(to, width, false, GEMM_ROUNDED, &s);
    } else if (!by_rows) {
        gemm_pack_words(to, width, false, GEMM_PAIRS, &s);
    } else {
        gemm_pack_words(to, width, true, GEMM_PAIRS, &s);
    }
}

// Adds the lines of rows x cols floats, rows stride apart, to those that are fetched, while there is room: the hardware
// does not foresee such strides.
static inline void gemm_add_ahead(GemmAhead *ahead, const float *from, int64_t stride, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols && ahead->count < GEMM_AHEAD; j += 16) {
            ahead->lines[ahead->count++] = from + i * stride + j;
        }
    }
}

// ----------------------------------------------------------------------------
// The kernel that every machine has

#define GEMM_NAME portable
#define GEMM_TARGET
#define GEMM_WIDTH VF_WIDTH
#if defined(__AVX512F__) || defined(__aarch64__)
#define GEMM_ROWS 8
#else
#define GEMM_ROWS 4
#endif
#if defined(__aarch64__) // multiplies by one lane of a register: four words of A then cost one register, not four
#define GEMM_SPREAD(a, i) (((const GEMM_MEMORY *)(a))[(i) / 4][(i) % 4] - zero)
#endif
#define GEMM_ADD(sum, a, b) vf_multiply_add(a, b, sum)
#include "llmc/cpu/gemm_tile.h"

// Writes rows x cols of a tile: C = tile (+ bias), or C += tile (+ bias).
static inline void gemm_write(float *C, int64_t ldc, const float *tile, const float *bias, int64_t rows, int64_t cols,
                              bool add) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j += VF_WIDTH) {
            float *to = C + i * ldc + j;
            vf sum = vf_load(tile + i * GEMM_MAX_COLS + j);
            if (bias != NULL) { sum = sum + vf_load_n(bias + j, cols - j); }
            if (add) { sum = vf_load_n(to, cols - j) + sum; }
            vf_store_n(to, sum, cols - j);
        }
    }
}

// ----------------------------------------------------------------------------
// The loops around it

// Who multiplies, and where. The workspace has gemm_workspace_floats for as many threads as there may be.
typedef struct {
    const GemmKernel *kernel;
    float *workspace;
} Gemm;

typedef struct {
    const GemmKernel *kernel;
    float *C; // (M, N), rows ldc apart
    int64_t ldc;
    GemmMatrix A, B; // (M, K), (K, N)
    const float *bias;
    int64_t M, N, K;
    bool accumulate;
} GemmProblem;

// Holds the rows of A that a thread has packed: m0 .. m0 + rows, at k0 .. k0 + depth.
typedef struct {
    int64_t m0, rows, k0, depth;
    float *packed_a, *packed_b; // panels of GEMM_LANES rows of A; room for a block of B
} GemmPass;

// Elements along k in a block: as many as the kernel's depth has words.
static inline int64_t gemm_block_depth(const GemmProblem *p) {
    return p->kernel->depth * gemm_per_word(p->kernel->words);
}

// Elements along k in a pass, and the rows for which the workspace has room then. The more rows there are, the fewer k:
// each block of rows packs B anew.
static inline int64_t gemm_pass_depth(const GemmProblem *p) {
    int64_t words = GEMM_MAX_DEPTH;
    while (words > GEMM_DEPTH && GEMM_PACKED_A / words < p->M) { words /= 2; }
    return min_i64(words * gemm_per_word(p->kernel->words), max_i64(p->K, 1));
}
static inline int64_t gemm_pass_rows(const GemmProblem *p) {
    return GEMM_PACKED_A / gemm_panel_words(p->kernel->words, gemm_pass_depth(p)) / GEMM_MAX_ROWS * GEMM_MAX_ROWS;
}

static inline float *gemm_align(float *workspace) { return (float *)(((uintptr_t)workspace + 63) & ~(uintptr_t)63); }

static inline GemmPass gemm_begin_pass(float *workspace) {
    float *aligned = gemm_align(workspace);
    GemmPass pass = {0, 0, 0, 0, aligned, aligned + GEMM_PACKED_A};
    return pass;
}

// Packs rows of A, unless they are packed.
static inline void gemm_pack_rows(const GemmProblem *p, GemmPass *pass, int64_t m0, int64_t rows, int64_t k0) {
    int64_t depth = min_i64(gemm_pass_depth(p), p->K - k0), panel = gemm_panel_words(p->kernel->words, depth);
    if (pass->m0 == m0 && pass->rows == rows && pass->k0 == k0) { return; }
    pass->m0 = m0, pass->rows = rows, pass->k0 = k0, pass->depth = depth;
    for (int64_t row = 0; row < rows; row += GEMM_LANES) {
        const float *from = p->A.data + (m0 + row) * p->A.row_stride + k0 * p->A.col_stride;
        GemmSource source = {from, p->A.row_stride, p->A.col_stride, min_i64(GEMM_LANES, rows - row), depth};
        gemm_pack(pass->packed_a + row * panel, GEMM_LANES, p->kernel->a_by_rows, p->kernel->words, source);
    }
}

// Holds a packed block of B.
typedef struct {
    const float *packed;
    int64_t k, depth, n, cols; // rows k .. k + depth of the pass, columns n .. n + cols of B
    GemmSource next;           // the unpacked block after this one; data NULL: there is none
} GemmBlock;

// Adds the part of a block that from ... until are of `all`. The block is a matrix in memory whose rows are lanes or k.
static inline void gemm_add_part(GemmAhead *ahead, const GemmSource *s, int64_t from, int64_t until, int64_t all) {
    bool by_lanes = s->k_stride == 1;
    int64_t rows = by_lanes ? s->lanes : s->depth, cols = by_lanes ? s->depth : s->lanes;
    int64_t stride = by_lanes ? s->lane_stride : s->k_stride, first = from * rows / all;
    gemm_add_ahead(ahead, s->data + first * stride, stride, until * rows / all - first, cols);
}

// Multiplies all rows of the pass by one block of B. Each tile fetches a part of the next block.
static inline void gemm_multiply_rows(const GemmProblem *p, const GemmPass *pass, const GemmBlock *b) {
    float tile[GEMM_MAX_ROWS * GEMM_MAX_COLS] __attribute__((aligned(64)));
    const GemmKernel *kernel = p->kernel;
    bool first_block = pass->k0 + b->k == 0, add = p->accumulate || !first_block;
    const float *bias = first_block && p->bias != NULL ? p->bias + b->n : NULL;
    int64_t panel = gemm_panel_words(kernel->words, pass->depth) * GEMM_LANES; // words in a panel of A
    // The kernel may write a whole tile to C, or add it.
    bool plain = bias == NULL && b->cols % GEMM_LANES == 0 && (!add || kernel->adds);
    int64_t w = b->k / gemm_per_word(kernel->words), depth = ceil_div_i64(b->depth, gemm_per_word(kernel->words));
    for (int64_t row = 0; row < pass->rows; row += kernel->rows) {
        int64_t rows = min_i64(kernel->rows, pass->rows - row);
        float *to = p->C + (pass->m0 + row) * p->ldc + b->n;
        GemmAhead ahead;
        ahead.count = 0;
        if (b->next.data != NULL) { gemm_add_part(&ahead, &b->next, row, row + rows, pass->rows); }
        gemm_add_ahead(&ahead, to, p->ldc, rows, b->cols);
        const float *a = pass->packed_a + row / GEMM_LANES * panel + w * GEMM_LANES + row % GEMM_LANES;
        if (plain && rows == kernel->rows) {
            kernel->multiply(to, p->ldc, a, panel, b->packed, depth, rows, b->cols, add, &ahead);
        } else {
            kernel->multiply(tile, GEMM_MAX_COLS, a, panel, b->packed, depth, rows, b->cols, false, &ahead);
            gemm_write(to, p->ldc, tile, bias, rows, b->cols, add);
        }
    }
}

// Where the words of column n and row k stand in a packed B (K, N). n begins a panel, k a block.
static inline int64_t gemm_packed_at(const GemmKernel *kernel, int64_t K, int64_t k, int64_t n) {
    return n * gemm_panel_words(kernel->words, K) + k / gemm_per_word(kernel->words) * kernel->cols;
}

// The block of B at row k of the pass and column n, as it lies in memory.
static inline GemmSource gemm_block_source(const GemmProblem *p, const GemmPass *pass, int64_t k, int64_t n) {
    const float *data = p->B.data + (pass->k0 + k) * p->B.row_stride + n * p->B.col_stride;
    GemmSource source = {data, p->B.col_stride, p->B.row_stride, min_i64(p->kernel->cols, p->N - n),
                         min_i64(gemm_block_depth(p), pass->depth - k)};
    return source;
}

// Packs a block of B, and finds the block that follows: below it, or at the top of the next panel.
static inline void gemm_pack_block(const GemmProblem *p, const GemmPass *pass, GemmBlock *b) {
    gemm_pack(pass->packed_b, p->kernel->cols, false, p->kernel->words, gemm_block_source(p, pass, b->k, b->n));
    if (b->k + b->depth < pass->depth) {
        b->next = gemm_block_source(p, pass, b->k + b->depth, b->n);
    } else if (b->n + b->cols < p->N) {
        b->next = gemm_block_source(p, pass, 0, b->n + b->cols);
    }
}

// Multiplies all rows of the pass by the panel of B that begins at column n, over the depth of the pass.
static inline void gemm_multiply_panel(const GemmProblem *p, const GemmPass *pass, int64_t n) {
    int64_t cols = min_i64(p->kernel->cols, p->N - n), block_depth = gemm_block_depth(p);
    for (int64_t k = 0; k < pass->depth; k += block_depth) {
        GemmBlock block = {pass->packed_b, k, min_i64(block_depth, pass->depth - k), n, cols, {NULL, 0, 0, 0, 0}};
        if (p->B.packed_depth > 0) {
            block.packed = p->B.data + gemm_packed_at(p->kernel, p->B.packed_depth, pass->k0 + k, n);
        } else {
            gemm_pack_block(p, pass, &block);
        }
        gemm_multiply_rows(p, pass, &block);
    }
}

// Is this one row of A, times a B whose columns are rows in memory, not in pairs? The vectors of this file must fuse as
// the kernel does.
static inline bool gemm_is_row(const GemmProblem *p) {
#if defined(__FMA__)
    bool fuses_alike = true;
#else
    bool fuses_alike = p->kernel->multiply == gemm_portable.multiply;
#endif
    return fuses_alike && p->M == 1 && p->kernel->words != GEMM_PAIRS && p->A.col_stride == 1 && p->B.row_stride == 1 &&
           p->K % VF_WIDTH == 0;
}

// One row of C, columns n0 .. n1 - 1 as far as they fill vectors, for k0 .. k1 - 1. Returns the first column that it
// left. One row of A uses an element of B once: it is transposed in registers and not stored. The operations and their
// order are those of the contract above.
static inline int64_t gemm_multiply_row(const GemmProblem *p, int64_t k0, int64_t k1, int64_t n0, int64_t n1) {
    const bool rounds = p->kernel->words == GEMM_ROUNDED;
    int64_t n = n0;
    for (; n + VF_WIDTH <= n1; n += VF_WIDTH) {
        for (int64_t block = k0; block < k1; block += p->kernel->depth) {
            vf s = vf_set1(0.0f), square[VF_WIDTH];
            for (int64_t k = block; k < min_i64(k1, block + p->kernel->depth); k += VF_WIDTH) {
                const float *a = p->A.data + k, *from = p->B.data + n * p->B.col_stride + k;
                float rounded[VF_WIDTH];
                GEMM_UNROLL for (int i = 0; i < VF_WIDTH; i++) { square[i] = vf_load(from + i * p->B.col_stride); }
                if (rounds) {
                    vf_store(rounded, vf_round_bf16(vf_load(a)));
                    a = rounded;
                    GEMM_UNROLL for (int i = 0; i < VF_WIDTH; i++) { square[i] = vf_round_bf16(square[i]); }
                }
                vf_transpose(square);
                GEMM_UNROLL for (int i = 0; i < VF_WIDTH; i++) { s = vf_multiply_add(vf_set1(a[i]), square[i], s); }
            }
            if (block == 0 && p->bias != NULL) { s = s + vf_load(p->bias + n); }
            if (block > 0 || p->accumulate) { s = vf_load(p->C + n) + s; }
            vf_store(p->C + n, s);
        }
    }
    return n;
}

// Computes a part of C for k0 .. k0 + depth of the pass: rows m0 .. m0 + rows, columns n0 .. n1.
static inline void gemm_multiply_part(const GemmProblem *p, GemmPass *pass, int64_t k0, int64_t m0, int64_t rows,
                                      int64_t n0, int64_t n1) {
    if (gemm_is_row(p)) { n0 = gemm_multiply_row(p, k0, min_i64(p->K, k0 + gemm_pass_depth(p)), n0, n1); }
    if (n0 == n1) { return; }
    gemm_pack_rows(p, pass, m0, rows, k0);
    for (int64_t n = n0; n < n1; n += p->kernel->cols) { gemm_multiply_panel(p, pass, n); }
}

// C is divided among threads into row_blocks x col_blocks parts of whole panels.
typedef struct {
    int64_t row_panels, col_panels, row_blocks, col_blocks;
} GemmGrid;

// What a thread does at most, in multiply-adds for each k. To pack an element costs as much as 16. It packs B for each
// part, and A if a part has other rows than the one before.
static inline int64_t gemm_grid_cost(const GemmProblem *p, GemmGrid g, int threads) {
    int64_t rows = ceil_div_i64(g.row_panels, g.row_blocks) * GEMM_MAX_ROWS;
    int64_t cols = ceil_div_i64(g.col_panels, g.col_blocks) * p->kernel->cols;
    int64_t parts = ceil_div_i64(g.row_blocks * g.col_blocks, threads);
    return parts * cols * (rows + 16) + min_i64(parts, g.row_blocks) * rows * 16;
}

// Divides C so that a thread has room for the packed rows of a part, and the busiest thread has the least to do. Each
// gets two parts or more, if C has so many: a thread that other programs delay then does fewer.
static inline GemmGrid gemm_divide(const GemmProblem *p, int threads) {
    int64_t row_panels = ceil_div_i64(p->M, GEMM_MAX_ROWS), col_panels = ceil_div_i64(p->N, p->kernel->cols);
    GemmGrid g = {max_i64(1, row_panels), max_i64(1, col_panels), 1, 1}, best = g;
    int64_t least_rows = ceil_div_i64(g.row_panels, gemm_pass_rows(p) / GEMM_MAX_ROWS);
    int64_t least_parts = threads == 1 ? 1 : min_i64(2 * threads, g.row_panels * g.col_panels);
    int64_t most_parts = 2 * max_i64(least_parts, least_rows), least_cost = INT64_MAX;
    for (g.row_blocks = least_rows; g.row_blocks <= min_i64(g.row_panels, most_parts); g.row_blocks++) {
        g.col_blocks = min_i64(g.col_panels, ceil_div_i64(least_parts, g.row_blocks));
        for (; g.col_blocks <= min_i64(g.col_panels, most_parts / g.row_blocks); g.col_blocks++) {
            int64_t cost = gemm_grid_cost(p, g, threads);
            if (cost <= least_cost) { best = g, least_cost = cost; }
        }
    }
    return best;
}

// ----------------------------------------------------------------------------
// The interface

// Returns a thread's share of the workspace, in floats. It may have any alignment.
static inline int64_t gemm_thread_floats(void) { return GEMM_PACKED_A + GEMM_PACKED_B + 16; }

// Returns the workspace of gemm on up to max_threads threads, in floats.
static inline int64_t gemm_workspace_floats(int max_threads) { return max_threads * gemm_thread_floats(); }

// The number of threads that gemm uses. Its workspace must have room for so many.
static inline int gemm_max_threads(void) { return omp_get_max_threads(); }

// Returns the number of the calling thread in its team.
static inline int gemm_thread(void) { return omp_get_thread_num(); }

// C (M, N), rows ldc apart, = A (M, K) times B (K, N) + bias (N, or NULL for none); with accumulate, += instead of =.
// K > 0.
// C overlaps neither A, B, bias nor the workspace. For use inside a parallel region and for small matrices: it runs in
// the calling thread, with that thread's share of the workspace.
static inline void gemm_serial(float *C, int64_t ldc, GemmMatrix A, GemmMatrix B, const float *bias, int64_t M,
                               int64_t N, int64_t K, bool accumulate, const Gemm *mm) {
    GemmProblem p = {mm->kernel, C, ldc, A, B, bias, M, N, K, accumulate};
    GemmPass pass = gemm_begin_pass(mm->workspace + gemm_thread() * gemm_thread_floats());
    if (p.kernel->begin != NULL) { p.kernel->begin(); }
    for (int64_t m0 = 0; m0 < M; m0 += gemm_pass_rows(&p)) {
        for (int64_t k0 = 0; k0 < K; k0 += gemm_pass_depth(&p)) {
            gemm_multiply_part(&p, &pass, k0, m0, min_i64(gemm_pass_rows(&p), M - m0), 0, N);
        }
    }
    if (p.kernel->end != NULL) { p.kernel->end(); }
}

// gemm_serial on gemm_max_threads() threads. Not for use inside a parallel region.
static inline void gemm(float *C, int64_t ldc, GemmMatrix A, GemmMatrix B, const float *bias, int64_t M, int64_t N,
                        int64_t K, bool accumulate, const Gemm *mm) {
    GemmProblem p = {mm->kernel, C, ldc, A, B, bias, M, N, K, accumulate};
    int threads = M * N * K < 1 << 18 ? 1 : gemm_max_threads(); // tiny: waking threads takes longer
    GemmGrid grid = gemm_divide(&p, threads);
#pragma omp parallel num_threads(threads)
    {
        GemmPass pass = gemm_begin_pass(mm->workspace + gemm_thread() * gemm_thread_floats());
        if (p.kernel->begin != NULL) { p.kernel->begin(); }
        for (int64_t k0 = 0; k0 < K; k0 += gemm_pass_depth(&p)) {
#pragma omp for schedule(dynamic) // its end waits for all threads: the next pass adds to what this one stores
            for (int64_t i = 0; i < grid.row_blocks * grid.col_blocks; i++) {
                int64_t row = i / grid.col_blocks, col = i % grid.col_blocks;
                int64_t m0 = row * grid.row_panels / grid.row_blocks * GEMM_MAX_ROWS;
                int64_t m1 = min_i64(M, (row + 1) * grid.row_panels / grid.row_blocks * GEMM_MAX_ROWS);
                int64_t n0 = col * grid.col_panels / grid.col_blocks * p.kernel->cols;
                int64_t n1 = min_i64(N, (col + 1) * grid.col_panels / grid.col_blocks * p.kernel->cols);
                gemm_multiply_part(&p, &pass, k0, m0, m1 - m0, n0, n1);
            }
        }
        if (p.kernel->end != NULL) { p.kernel->end(); }
    }
}

// Floats that a packed B (K, N) takes.
static inline int64_t gemm_packed_floats(int64_t K, int64_t N, const GemmKernel *kernel) {
    return round_up_i64(N, kernel->cols) * gemm_panel_words(kernel->words, K);
}

// Packs B (K, N) as a whole, in the calling thread, and returns it as packed. Worth it for a B that meets few rows many
// times. A multiply may take fewer of its columns, or of its rows if their number is a multiple of 32.
static inline GemmMatrix gemm_pack_serial(float *packed, GemmMatrix B, int64_t K, int64_t N, const GemmKernel *kernel) {
    for (int64_t n = 0; n < N; n += kernel->cols) {
        GemmSource source = {B.data + n * B.col_stride, B.col_stride, B.row_stride, min_i64(kernel->cols, N - n), K};
        gemm_pack(packed + gemm_packed_at(kernel, K, 0, n), kernel->cols, false, kernel->words, source);
    }
    return packed_of(packed, K);
}

// gemm_pack_serial on all threads.
static inline void gemm_pack_matrix(float *packed, GemmMatrix B, int64_t K, int64_t N, const GemmKernel *kernel) {
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; n += kernel->cols) {
        GemmMatrix panel = {B.data + n * B.col_stride, B.row_stride, B.col_stride, 0};
        gemm_pack_serial(packed + gemm_packed_at(kernel, K, 0, n), panel, K, min_i64(kernel->cols, N - n), kernel);
    }
}

#endif // LLMC_GEMM_H
