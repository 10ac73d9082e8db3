// Multiplies matrices on the CPU: C = A B (+ bias), or C += A B (+ bias), in fp32. Any strides, so a transpose is free.
//
// A and B are copied ("packed") into panels that the inner kernel reads in order. A panel of B is VECTORS vectors wide
// and DEPTH deep. It stays in the nearest caches while all panels of A pass by. The kernel keeps a tile of ROWS x
// VECTORS vectors of C in registers. (Goto, van de Geijn 2008: "Anatomy of high-performance matrix multiplication".)
//
// A contract for every caller: these operations in this order give an element of C. They do not depend on M, N, the
// strides, the place in the matrix or the number of threads:
//     for each block of GEMM_DEPTH along k, from the first:  s = 0;  s = s + a_ik b_kj for k in order (fused if the
//     machine can);  first block: s = s + bias_j;  then C_ij = s in the first block if not accumulating, else C_ij + s.
// So a row computed alone has the bits that it has in a batch, and many threads give the bits of one thread. The blocks
// begin at multiples of GEMM_DEPTH, so zeros appended to a row of A change no bit (but may turn -0 into +0).
#ifndef LLMC_GEMM_H
#define LLMC_GEMM_H

#include "llmc/cpu/simd.h"
#include "llmc/base/utils.h"
#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_get_thread_num(void) { return 0; }
#endif

typedef struct {
    const float *data; // element (i, j) is data[i * row_stride + j * col_stride]
    int64_t row_stride, col_stride;
} GemmMatrix;

// These return a row-major matrix, and the transpose of one.
static inline GemmMatrix rows_of(const float *data, int64_t columns) {
    GemmMatrix m = {data, columns, 1};
    return m;
}

static inline GemmMatrix transpose_of(const float *data, int64_t columns) {
    GemmMatrix m = {data, 1, columns};
    return m;
}

// The tile of C takes 24 of 32 vector registers, or 12 of 16. The rest holds a row of B and an element of A.
#if defined(__AVX512F__) || defined(__aarch64__)
#define GEMM_ROWS 8
#else
#define GEMM_ROWS 4
#endif
#define GEMM_VECTORS 3
#define GEMM_COLS (GEMM_VECTORS * VF_WIDTH)
#define GEMM_DEPTH 256 // k per block; the bits depend on it, so it is equal on every machine
#define GEMM_A_LANES (GEMM_ROWS > VF_WIDTH ? GEMM_ROWS : VF_WIDTH) // rows of A in a panel: a multiple of both

// Capacities of a thread's workspace, in floats.
#define GEMM_PACKED_A (1 << 18) // 256 rows at GEMM_MAX_DEPTH: 1 MiB, to stay in the second-level cache
#define GEMM_PACKED_B (GEMM_DEPTH * GEMM_COLS)
#define GEMM_MAX_DEPTH 1024 // k for which A is packed at a time; a multiple of GEMM_DEPTH

#if defined(__clang__)
#define GEMM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GEMM_UNROLL _Pragma("GCC unroll 16")
#endif

// ----------------------------------------------------------------------------
// Packing

#if VF_WIDTH == 16
#define GEMM_ZIP_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define GEMM_ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif VF_WIDTH == 8
#define GEMM_ZIP_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define GEMM_ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define GEMM_ZIP_LOW 0, 4, 1, 5
#define GEMM_ZIP_HIGH 2, 6, 3, 7
#endif

// low = a0 b0 a1 b1 ... of the lower halves, high = of the upper halves.
static inline void gemm_zip(vf a, vf b, vf *low, vf *high) {
#if defined(__clang__)
    *low = __builtin_shufflevector(a, b, GEMM_ZIP_LOW);
    *high = __builtin_shufflevector(a, b, GEMM_ZIP_HIGH);
#else
    const vi low_lanes = {GEMM_ZIP_LOW}, high_lanes = {GEMM_ZIP_HIGH};
    *low = __builtin_shuffle(a, b, low_lanes);
    *high = __builtin_shuffle(a, b, high_lanes);
#endif
}

// to[j * to_stride + i] = from[i * from_stride + j] for i, j < VF_WIDTH. Zipping row i with row i + VF_WIDTH / 2
// rotates the bits of (row, lane) by one; log2(VF_WIDTH) rounds exchange row and lane.
static inline void gemm_transpose_block(float *to, int64_t to_stride, const float *from, int64_t from_stride) {
    vf rows[VF_WIDTH], zipped[VF_WIDTH];
    GEMM_UNROLL for (int i = 0; i < VF_WIDTH; i++) { rows[i] = vf_load(from + i * from_stride); }
    GEMM_UNROLL for (int round = 1; round < VF_WIDTH; round *= 2) {
        GEMM_UNROLL for (int i = 0; i < VF_WIDTH / 2; i++) {
            gemm_zip(rows[i], rows[i + VF_WIDTH / 2], &zipped[2 * i], &zipped[2 * i + 1]);
        }
        GEMM_UNROLL for (int i = 0; i < VF_WIDTH; i++) { rows[i] = zipped[i]; }
    }
    GEMM_UNROLL for (int i = 0; i < VF_WIDTH; i++) { vf_store(to + i * to_stride, rows[i]); }
}

// Packs up to VF_WIDTH lanes: to[k * width + lane] = from[lane * lane_stride + k * k_stride]. Missing lanes are 0.
static inline void gemm_pack_lanes(float *to, int64_t width, const float *from, int64_t lane_stride, int64_t k_stride,
                                   int64_t lanes, int64_t depth) {
    int64_t k = 0;
    if (lane_stride == 1) {
        for (; k < depth; k++) { vf_store(to + k * width, vf_load_n(from + k * k_stride, lanes)); }
    }
    if (k_stride == 1 && lanes >= VF_WIDTH) {
        for (; k + VF_WIDTH <= depth; k += VF_WIDTH) {
            gemm_transpose_block(to + k * width, width, from + k, lane_stride);
        }
    }
    for (; k < depth; k++) {
        for (int64_t lane = 0; lane < VF_WIDTH; lane++) {
            to[k * width + lane] = lane < lanes ? from[lane * lane_stride + k * k_stride] : 0.0f;
        }
    }
}

// Packs a panel of width lanes (a multiple of VF_WIDTH). The first `lanes` lanes exist.
static inline void gemm_pack(float *to, int64_t width, const float *from, int64_t lane_stride, int64_t k_stride,
                             int64_t lanes, int64_t depth) {
    if (lane_stride == 1 && lanes >= width) { // each k is one piece of memory
        for (int64_t k = 0; k < depth; k++) {
            for (int64_t lane = 0; lane < width; lane += VF_WIDTH) {
                vf_store(to + k * width + lane, vf_load(from + k * k_stride + lane));
            }
        }
        return;
    }
    for (int64_t lane = 0; lane < width; lane += VF_WIDTH) {
        gemm_pack_lanes(to + lane, width, from + lane * lane_stride, lane_stride, k_stride, lanes - lane, depth);
    }
}

// Prefetches rows x cols floats, rows stride apart: the hardware does not foresee such strides.
static inline void gemm_prefetch(const float *from, int64_t stride, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j += 16) { __builtin_prefetch(from + i * stride + j); }
    }
}

// ----------------------------------------------------------------------------
// The kernel: a tile of C for one block of k

// a[i] in all lanes. ARM multiplies by one lane of a register: four elements of A then cost one register, not four.
static inline vf gemm_spread(const float *a, int i) {
#if defined(__aarch64__)
    return vf_set1(vf_load(a + i / 4 * 4)[i % 4]);
#else
    return vf_set1(a[i]);
#endif
}

// tile[i][j] = sum over k of a[k][i] b[k][j], for i < rows, j < vectors * VF_WIDTH. Inlining makes rows and vectors
// constants, so that the sums stay in registers.
__attribute__((always_inline)) static inline void gemm_kernel(float *tile, const float *a, const float *b,
                                                              int64_t depth, int rows, int vectors) {
    vf sums[GEMM_ROWS][GEMM_VECTORS];
    GEMM_UNROLL for (int i = 0; i < rows; i++) {
        GEMM_UNROLL for (int j = 0; j < vectors; j++) { sums[i][j] = vf_set1(0.0f); }
    }
    for (int64_t k = 0; k < depth; k++) {
        vf row_of_b[GEMM_VECTORS];
        GEMM_UNROLL for (int j = 0; j < vectors; j++) { row_of_b[j] = vf_load(b + j * VF_WIDTH); }
        GEMM_UNROLL for (int i = 0; i < rows; i++) {
            GEMM_UNROLL for (int j = 0; j < vectors; j++) { sums[i][j] += gemm_spread(a, i) * row_of_b[j]; }
        }
        a += GEMM_A_LANES;
        b += vectors * VF_WIDTH;
    }
    GEMM_UNROLL for (int i = 0; i < rows; i++) {
        GEMM_UNROLL for (int j = 0; j < vectors; j++) { vf_store(tile + i * GEMM_COLS + j * VF_WIDTH, sums[i][j]); }
    }
}

// The smallest kernel that covers rows x vectors.
#define GEMM_KERNEL_OF(n)                                                                                              \
    (vectors == 1   ? gemm_kernel(tile, a, b, depth, n, 1)                                                             \
     : vectors == 2 ? gemm_kernel(tile, a, b, depth, n, 2)                                                             \
                    : gemm_kernel(tile, a, b, depth, n, 3))
static inline void gemm_multiply(float *tile, const float *a, const float *b, int64_t depth, int64_t rows,
                                 int64_t vectors) {
    if (rows == 1) {
        GEMM_KERNEL_OF(1);
    } else if (rows == 2) {
        GEMM_KERNEL_OF(2);
    } else if (rows <= 4) {
        GEMM_KERNEL_OF(4);
    } else {
        GEMM_KERNEL_OF(GEMM_ROWS);
    }
}

// Writes rows x cols of a tile: C = tile (+ bias), or C += tile (+ bias).
static inline void gemm_write(float *C, int64_t ldc, const float *tile, const float *bias, int64_t rows, int64_t cols,
                              bool add) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j += VF_WIDTH) {
            float *to = C + i * ldc + j;
            vf sum = vf_load(tile + i * GEMM_COLS + j);
            if (bias != NULL) { sum = sum + vf_load_n(bias + j, cols - j); }
            if (add) { sum = vf_load_n(to, cols - j) + sum; }
            vf_store_n(to, sum, cols - j);
        }
    }
}

// ----------------------------------------------------------------------------
// The loops around it

typedef struct {
    float *C; // (M, N), rows ldc apart
    int64_t ldc;
    GemmMatrix A, B; // (M, K), (K, N)
    const float *bias;
    int64_t M, N, K;
    bool accumulate;
} GemmProblem;

// Holds a part of the problem that is small enough for the workspace: rows m0 .. m0 + rows of A, at k0 .. k0 + depth.
typedef struct {
    int64_t m0, rows, k0, depth;
    float *packed_a; // panels of depth x GEMM_A_LANES
} GemmPass;

static inline void gemm_pack_rows(const GemmProblem *p, const GemmPass *pass) {
    for (int64_t row = 0; row < pass->rows; row += GEMM_A_LANES) {
        const float *from = p->A.data + (pass->m0 + row) * p->A.row_stride + pass->k0 * p->A.col_stride;
        gemm_pack(pass->packed_a + row * pass->depth, GEMM_A_LANES, from, p->A.row_stride, p->A.col_stride,
                  pass->rows - row, pass->depth);
    }
}

// Holds a packed block of B.
typedef struct {
    const float *packed;
    int64_t k, depth, n, cols; // rows k .. k + depth of the pass, columns n .. n + cols of B
    const float *next;         // next_rows rows of the unpacked B that follow this block
    int64_t next_rows;
} GemmBlock;

// Multiplies all rows of the pass by one block of B. Each tile prefetches a part of the next block.
static inline void gemm_multiply_rows(const GemmProblem *p, const GemmPass *pass, const GemmBlock *b) {
    float tile[GEMM_ROWS * GEMM_COLS];
    bool first_block = pass->k0 + b->k == 0;
    const float *bias = first_block && p->bias != NULL ? p->bias + b->n : NULL;
    for (int64_t row = 0; row < pass->rows; row += GEMM_ROWS) {
        int64_t rows = min_i64(GEMM_ROWS, pass->rows - row);
        float *to = p->C + (pass->m0 + row) * p->ldc + b->n;
        int64_t from = row * b->next_rows / pass->rows, until = (row + rows) * b->next_rows / pass->rows;
        gemm_prefetch(to, p->ldc, rows, b->cols);
        gemm_prefetch(b->next + from * p->B.row_stride, p->B.row_stride, until - from, b->cols);
        const float *panel = pass->packed_a + row / GEMM_A_LANES * GEMM_A_LANES * pass->depth;
        gemm_multiply(tile, panel + b->k * GEMM_A_LANES + row % GEMM_A_LANES, b->packed, b->depth, rows,
                      ceil_div_i64(b->cols, VF_WIDTH));
        gemm_write(to, p->ldc, tile, bias, rows, b->cols, p->accumulate || !first_block);
    }
}

// Multiplies all rows of the pass by the panel of B that begins at column n, over the depth of the pass.
static inline void gemm_multiply_panel(const GemmProblem *p, const GemmPass *pass, int64_t n, float *packed_b) {
    int64_t cols = min_i64(GEMM_COLS, p->N - n);
    for (int64_t k = 0; k < pass->depth; k += GEMM_DEPTH) {
        int64_t depth = min_i64(GEMM_DEPTH, pass->depth - k), left = pass->depth - k - depth;
        const float *from = p->B.data + (pass->k0 + k) * p->B.row_stride + n * p->B.col_stride;
        gemm_pack(packed_b, round_up_i64(cols, VF_WIDTH), from, p->B.col_stride, p->B.row_stride, cols, depth);
        GemmBlock block = {packed_b, k, depth, n, cols, from, 0};
        if (left > 0 && p->B.col_stride == 1) { // else columns are read in order, and need no prefetch
            block.next = from + depth * p->B.row_stride, block.next_rows = min_i64(GEMM_DEPTH, left);
        }
        gemm_multiply_rows(p, pass, &block);
    }
}

// The case K = 0: C = bias, or C += bias.
static inline void gemm_without_product(const GemmProblem *p) {
    for (int64_t i = 0; i < p->M; i++) {
        for (int64_t j = 0; j < p->N; j++) {
            float *to = p->C + i * p->ldc + j;
            float bias = p->bias != NULL ? p->bias[j] : 0.0f;
            *to = p->accumulate ? *to + bias : bias;
        }
    }
}

static inline float *gemm_align(float *workspace) { return (float *)(((uintptr_t)workspace + 63) & ~(uintptr_t)63); }

// C is divided among threads into row_blocks x col_blocks parts of whole panels.
typedef struct {
    int64_t row_panels, col_panels, row_blocks, col_blocks;
} GemmGrid;

// Halves the longer side of the parts until each thread has a few parts. A thread that other programs delay then does
// fewer parts. Square parts need the least packing: each part packs its rows of A and its columns of B.
static inline GemmGrid gemm_divide(int64_t M, int64_t N, int threads) {
    GemmGrid grid = {ceil_div_i64(M, GEMM_A_LANES), ceil_div_i64(N, GEMM_COLS), 1, 1};
    while (threads > 1 && grid.row_blocks * grid.col_blocks < 4 * threads) {
        bool can_rows = 2 * grid.row_blocks <= grid.row_panels, can_cols = 2 * grid.col_blocks <= grid.col_panels;
        if (can_rows && (!can_cols || M * grid.col_blocks > N * grid.row_blocks)) {
            grid.row_blocks *= 2;
        } else if (can_cols) {
            grid.col_blocks *= 2;
        } else {
            break;
        }
    }
    return grid;
}

// ----------------------------------------------------------------------------
// The interface

// Returns the workspace of gemm_serial, in floats. It may have any alignment.
static inline int64_t gemm_serial_workspace_floats(void) { return GEMM_PACKED_A + GEMM_PACKED_B + 16; }

// Returns the workspace of gemm on up to max_threads threads: a share for each.
static inline int64_t gemm_workspace_floats(int max_threads) { return max_threads * gemm_serial_workspace_floats(); }

// The number of threads that gemm uses. Its workspace must have room for so many.
static inline int gemm_max_threads(void) { return omp_get_max_threads(); }

// Sets the number of threads; 0: as many as OpenMP wants. False: this build has no OpenMP, and more than 1 is asked
// for.
static inline bool gemm_set_threads(int64_t threads) {
#ifdef _OPENMP
    if (threads > 0) { omp_set_num_threads((int)threads); }
    return true;
#else
    return threads <= 1;
#endif
}

// Returns the number of the calling thread in its team.
static inline int gemm_thread(void) { return omp_get_thread_num(); }

// The calling thread's share of the workspace of its team.
static inline float *gemm_thread_workspace(float *workspace) {
    return workspace + gemm_thread() * gemm_serial_workspace_floats();
}

// C (M, N), rows ldc apart, = A (M, K) times B (K, N) + bias (N, or NULL for none); with accumulate, += instead of =.
// C overlaps neither A, B, bias nor workspace. For use inside a parallel region, each thread with its
// gemm_thread_workspace, and for small matrices.
static inline void gemm_serial(float *C, int64_t ldc, GemmMatrix A, GemmMatrix B, const float *bias, int64_t M,
                               int64_t N, int64_t K, bool accumulate, float *workspace) {
    GemmProblem p = {C, ldc, A, B, bias, M, N, K, accumulate};
    if (K == 0) { gemm_without_product(&p); }
    float *packed_a = gemm_align(workspace), *packed_b = packed_a + GEMM_PACKED_A;
    int64_t depth = min_i64(GEMM_MAX_DEPTH, max_i64(K, 1));
    int64_t rows = GEMM_PACKED_A / depth / GEMM_A_LANES * GEMM_A_LANES;
    for (int64_t m0 = 0; m0 < M; m0 += rows) {
        for (int64_t k0 = 0; k0 < K; k0 += depth) {
            GemmPass pass = {m0, min_i64(rows, M - m0), k0, min_i64(depth, K - k0), packed_a};
            gemm_pack_rows(&p, &pass);
            for (int64_t n = 0; n < N; n += GEMM_COLS) { gemm_multiply_panel(&p, &pass, n, packed_b); }
        }
    }
}

// gemm_serial on gemm_max_threads() threads, with gemm_workspace_floats for so many. Not for use inside a parallel
// region.
static inline void gemm(float *C, int64_t ldc, GemmMatrix A, GemmMatrix B, const float *bias, int64_t M, int64_t N,
                        int64_t K, bool accumulate, float *workspace) {
    int threads = M * N * K < 1 << 18 ? 1 : gemm_max_threads(); // tiny: waking threads takes longer
    GemmGrid grid = gemm_divide(M, N, threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < grid.row_blocks * grid.col_blocks; i++) {
        int64_t row = i / grid.col_blocks, col = i % grid.col_blocks;
        int64_t m = row * grid.row_panels / grid.row_blocks * GEMM_A_LANES;
        int64_t n = col * grid.col_panels / grid.col_blocks * GEMM_COLS;
        int64_t m_end = min_i64(M, (row + 1) * grid.row_panels / grid.row_blocks * GEMM_A_LANES);
        int64_t n_end = min_i64(N, (col + 1) * grid.col_panels / grid.col_blocks * GEMM_COLS);
        GemmMatrix rows = {A.data + m * A.row_stride, A.row_stride, A.col_stride};
        GemmMatrix cols = {B.data + n * B.col_stride, B.row_stride, B.col_stride};
        gemm_serial(C + m * ldc + n, ldc, rows, cols, bias != NULL ? bias + n : NULL, m_end - m, n_end - n, K,
                    accumulate, gemm_thread_workspace(workspace));
    }
}

#endif // LLMC_GEMM_H
