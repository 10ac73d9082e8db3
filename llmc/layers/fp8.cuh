// Quantises tensors to 8 bits for the tensor cores (--fp8): scales, plain and transposed copies, and their memory.
//
// There are two formats. e4m3 (3 bits of mantissa, up to 448) is for weights and activations. e5m2 (2 bits of mantissa,
// up to 57344) is for gradients, whose sizes differ more. Each tensor has one factor, from its own largest magnitude.
// So nothing overflows, and no factor outlasts a step. The factor is a power of two, so that it moves the numbers into
// the format's range without rounding. The numbers are rounded once, to 8 bits. The multiply reads the inverse factor
// from device memory, so that the host never waits for it.
//
// The tensor cores read both operands of a product along its inner width, which must be contiguous. So a tensor that
// two products read is stored twice, plain and transposed.
#ifndef LLMC_FP8_CUH
#define LLMC_FP8_CUH

#include <cuda_fp8.h>

#include "llmc/cuda/cublas_common.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/model/memory_plan.h"

typedef __nv_fp8_e4m3 fp8e4;
typedef __nv_fp8_e5m2 fp8e5;

// Holds the scale of one quantised tensor, in device memory. amax is cleared (zero bytes) before the tensor's producer
// runs.
typedef struct {
    uint32_t amax; // bits of the largest |x|, see cuda_utils.cuh
    float inverse; // quantised value * inverse = value
} Fp8Scale;

#define FP8_WIDTH_MULTIPLE 16 // rows and columns of cuBLASLt's 8-bit matrices are multiples of 16 (bytes)

// True for Ada, Hopper and later.
static inline bool fp8_is_supported(int major, int minor) { return 10 * major + minor >= 89; }

static inline bool fp8_check_gpu(const cudaDeviceProp *gpu, Error *error) {
    return fp8_is_supported(gpu->major, gpu->minor) ||
           fail(error,
                "--fp8: %s has compute capability %d.%d; 8-bit matrix multiplies need 8.9 or later (Ada, Hopper, "
                "Blackwell); leave --fp8 out",
                gpu->name, gpu->major, gpu->minor);
}

static inline bool fp8_check_width(int channels, Error *error) {
    return channels % FP8_WIDTH_MULTIPLE == 0 ||
           fail(error, "--fp8: the model has %d channels; 8-bit matrix multiplies need a multiple of %d", channels,
                FP8_WIDTH_MULTIPLE);
}

// Returns the number of rows of a quantised tensor in memory. The padding rows are zeros. cuBLASLt multiplies 8-bit
// matrices only if rows and columns of both operands and of the result are multiples of 16.
static inline int64_t fp8_padded_rows(int64_t rows) { return round_up_i64(rows, FP8_WIDTH_MULTIPLE); }

// ---- The factor ----

// In both formats the largest number is 1.75 * 2^largest_exponent.
template <class T> struct Fp8Format;
template <> struct Fp8Format<fp8e4> {
    static constexpr int largest_exponent = 8;
    static constexpr __nv_fp8_interpretation_t kind = __NV_E4M3;
};
template <> struct Fp8Format<fp8e5> {
    static constexpr int largest_exponent = 15;
    static constexpr __nv_fp8_interpretation_t kind = __NV_E5M2;
};

#define FP8_MAX_EXPONENT 126 // of a factor, so that its inverse is a normal number

// The exponent of the largest power of two that moves amax to at most the format's largest number.
template <class T> __device__ __forceinline__ int fp8_factor_exponent(uint32_t amax) {
    const uint32_t mantissa_bits = 0x7fffffu, three_quarters = 0x600000u; // of 1.75
    if (amax == 0 || amax >= 0x7f800000u) { return 0; }
    int exponent = (int)(amax >> 23) - 127; // -127 of a subnormal number, which is small enough for the limit
    int factor = Fp8Format<T>::largest_exponent - exponent - ((amax & mantissa_bits) > three_quarters ? 1 : 0);
    return min(factor, FP8_MAX_EXPONENT);
}

// 2^exponent, for -126 to 127.
__device__ __forceinline__ float fp8_power_of_two(int exponent) {
    return __uint_as_float((uint32_t)(exponent + 127) << 23);
}

// A tensor with an infinity or a NaN gets a NaN as inverse. So every result of it is NaN, the watched loss too.
template <class T> __device__ __forceinline__ float fp8_inverse(uint32_t amax) {
    return amax >= 0x7f800000u ? __uint_as_float(0x7fc00000u) : fp8_power_of_two(-fp8_factor_exponent<T>(amax));
}

// ---- amax of a tensor whose producer does not take it ----

#define FP8_AMAX_BLOCK 256
#define FP8_AMAX_LOADS 4  // of 16 bytes: a thread issues all its loads before it uses the first
#define FP8_AMAX_BLOCKS 5 // of a multiprocessor; leaves the compiler the registers for these loads

// The values to quantise are x, or a function of x that a caller brings.
struct Fp8Identity {
    __device__ __forceinline__ x128 operator()(x128 x) const { return x; }
};

// *amax = max(*amax, amax of Of(x)), for `packs` packs of 16 bytes. A thread takes FP8_AMAX_LOADS packs.
template <class Of>
static __global__ void __launch_bounds__(FP8_AMAX_BLOCK, FP8_AMAX_BLOCKS)
    fp8_amax_kernel(uint32_t *amax, const floatX *x, int64_t packs) {
    int64_t first = (int64_t)blockIdx.x * FP8_AMAX_LOADS * FP8_AMAX_BLOCK + threadIdx.x;
    x128 values[FP8_AMAX_LOADS];
#pragma unroll
    for (int i = 0; i < FP8_AMAX_LOADS; i++) {
        int64_t pack = first + i * FP8_AMAX_BLOCK;
        values[i] = pack < packs ? load128(x + pack * x128::size) : packed_zeros<floatX>(); // quantising reads x again
    }
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < FP8_AMAX_LOADS; i++) { largest = amax_join(largest, Of()(values[i])); }
    amax_add_rounded(amax, largest);
}

// scale->amax = max(scale->amax, largest |Of(x)|). x (n) is aligned to 16 bytes, n is a multiple of 8.
template <class Of = Fp8Identity>
static inline void fp8_amax(Fp8Scale *scale, const floatX *x, int64_t n, cudaStream_t stream) {
    cuda_require(n > 0 && n % 8 == 0);
    int64_t packs = n / x128::size, blocks = ceil_div_i64(packs, FP8_AMAX_LOADS * FP8_AMAX_BLOCK);
    cuda_require(blocks <= INT32_MAX);
    fp8_amax_kernel<Of><<<(unsigned)blocks, FP8_AMAX_BLOCK, 0, stream>>>(&scale->amax, x, packs);
    cuda_check_launch("fp8_amax_kernel");
}

// ---- Quantising ----
//
// A block quantises a tile of 128 x 128 into shared memory. From there it writes the plain and the transposed copy, 16
// bytes at a time. Neighbouring threads write 128 neighbouring bytes.

#define FP8_TILE 128
#define FP8_BLOCK 256
#define FP8_LOADS 4  // of 16 bytes that a thread issues before it uses the first
#define FP8_BLOCKS 5 // of a multiprocessor; leaves the compiler the registers for these loads
#define FP8_GROUP 16 // rows that become 16 bytes of a transposed row
// A gap of 16 bytes follows each group, so that the 8 groups that a warp reads at once lie in different banks.
#define FP8_TILE_BYTES (FP8_TILE * FP8_TILE + FP8_TILE / FP8_GROUP * 16)

__device__ __forceinline__ int fp8_tile_offset(int row, int col) { return row * FP8_TILE + row / FP8_GROUP * 16 + col; }

struct alignas(x128::size) Fp8Pack { // x128::size values
    __nv_fp8x2_storage_t pairs[x128::size / 2];
};

template <class T> __device__ __forceinline__ Fp8Pack fp8_convert(x128 x, float factor) {
    Fp8Pack pack;
    for (int i = 0; i < x128::size / 2; i++) {
        float2 pair = make_float2(factor * to_float(x[2 * i]), factor * to_float(x[2 * i + 1]));
        pack.pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, Fp8Format<T>::kind);
    }
    return pack;
}

// Quantises the tile of Of(x (rows, cols)) that begins at (row, col) into shared memory. x is 0 outside of its shape.
template <class T, class Of>
__device__ __forceinline__ void fp8_fill_tile(uint8_t *tile, const floatX *x, float factor, int64_t rows, int cols,
                                              int64_t row, int col) {
    const int packs = FP8_TILE / x128::size, apart = FP8_BLOCK / packs; // packs in a row; rows from load to load
    int c = threadIdx.x % packs * x128::size;
#pragma unroll 1
    for (int first = threadIdx.x / packs; first < FP8_TILE; first += FP8_LOADS * apart) {
        x128 values[FP8_LOADS];
#pragma unroll
        for (int i = 0; i < FP8_LOADS; i++) {
            int64_t r = row + first + i * apart;
            bool inside = r < rows && col + c < cols;
            values[i] = inside ? load128_streaming(x + r * cols + col + c) : packed_zeros<floatX>();
        }
#pragma unroll
        for (int i = 0; i < FP8_LOADS; i++) {
            Fp8Pack pack = fp8_convert<T>(Of()(values[i]), factor);
            *reinterpret_cast<Fp8Pack *>(tile + fp8_tile_offset(first + i * apart, c)) = pack;
        }
    }
}

template <class T>
__device__ __forceinline__ void fp8_store_tile(T *q, const uint8_t *tile, int64_t rows, int cols, int64_t row,
                                               int col) {
#pragma unroll
    for (int i = threadIdx.x; i < FP8_TILE * FP8_TILE / 16; i += FP8_BLOCK) {
        int r = i / (FP8_TILE / 16), c = i % (FP8_TILE / 16) * 16;
        if (row + r >= rows || col + c >= cols) { continue; }
        *reinterpret_cast<int4 *>(q + (row + r) * cols + col + c) =
            *reinterpret_cast<const int4 *>(tile + fp8_tile_offset(r, c));
    }
}

// columns[j] = byte j of each of the 4 rows.
__device__ __forceinline__ void fp8_transpose_4x4(uint32_t (&columns)[4], const uint32_t (&rows)[4]) {
    uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140), low23 = __byte_perm(rows[2], rows[3], 0x5140);
    uint32_t high01 = __byte_perm(rows[0], rows[1], 0x7362), high23 = __byte_perm(rows[2], rows[3], 0x7362);
    columns[0] = __byte_perm(low01, low23, 0x5410), columns[1] = __byte_perm(low01, low23, 0x7632);
    columns[2] = __byte_perm(high01, high23, 0x5410), columns[3] = __byte_perm(high01, high23, 0x7632);
}

// Each thread writes 4 columns of 16 rows. 8 neighbouring lanes write 128 bytes of a column.
template <class T>
__device__ __forceinline__ void fp8_store_transposed(T *q_t, const uint8_t *tile, int64_t padded_rows, int cols,
                                                     int64_t row, int col) {
    const int groups = FP8_TILE / FP8_GROUP;
    int r = threadIdx.x % groups * FP8_GROUP, c = threadIdx.x / groups * 4;
    if (row + r >= padded_rows || col + c >= cols) { return; }
    uint32_t columns[FP8_GROUP / 4][4];
#pragma unroll
    for (int i = 0; i < FP8_GROUP / 4; i++) {
        uint32_t words[4];
        for (int j = 0; j < 4; j++) {
            words[j] = *reinterpret_cast<const uint32_t *>(tile + fp8_tile_offset(r + 4 * i + j, c));
        }
        fp8_transpose_4x4(columns[i], words);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        *reinterpret_cast<int4 *>(q_t + (int64_t)(col + c + j) * padded_rows + row + r) =
            make_int4((int)columns[0][j], (int)columns[1][j], (int)columns[2][j], (int)columns[3][j]);
    }
}

// Makes q (padded_rows, cols) and q_t (cols, padded_rows) from Of(x (rows, cols)). One of them may be NULL.
template <class T, class Of>
static __global__ void __launch_bounds__(FP8_BLOCK, FP8_BLOCKS)
    fp8_quantize_kernel(T *q, T *q_t, Fp8Scale *scale, const floatX *x, int64_t rows, int64_t padded_rows, int cols) {
    __shared__ alignas(16) uint8_t tile[FP8_TILE_BYTES];
    int across = (cols + FP8_TILE - 1) / FP8_TILE;
    int64_t row = (int64_t)(blockIdx.x / across) * FP8_TILE;
    int col = (int)(blockIdx.x % across) * FP8_TILE;
    uint32_t amax = scale->amax;
    fp8_fill_tile<T, Of>(tile, x, fp8_power_of_two(fp8_factor_exponent<T>(amax)), rows, cols, row, col);
    if (blockIdx.x == 0 && threadIdx.x == 0) { scale->inverse = fp8_inverse<T>(amax); }
    __syncthreads();
    if (q != NULL) { fp8_store_tile(q, tile, padded_rows, cols, row, col); }
    if (q_t != NULL) { fp8_store_transposed(q_t, tile, padded_rows, cols, row, col); }
}

// q (padded rows, cols) = Of(x (rows, cols)) times the factor that follows from scale->amax, rounded to nearest even,
// with zeros in the padding rows; Of(0) is 0. q_t (cols, padded rows) = q transposed. One of q and q_t may be NULL.
// Writes scale->inverse. cols is a multiple of 16, and all arrays are aligned to 16 bytes. With amax 0 the factor is 1.
// Moves 2 + 1 + 1 bytes a value of bf16.
template <class T, class Of = Fp8Identity>
static inline void fp8_quantize(T *q, T *q_t, Fp8Scale *scale, const floatX *x, int64_t rows, int cols,
                                cudaStream_t stream) {
    cuda_require(rows > 0 && rows <= INT32_MAX);
    cuda_require(cols > 0 && cols % FP8_WIDTH_MULTIPLE == 0);
    cuda_require(q != NULL || q_t != NULL);
    int64_t tiles = ceil_div_i64(rows, FP8_TILE) * ceil_div_i64(cols, FP8_TILE);
    cuda_require(tiles <= INT32_MAX);
    fp8_quantize_kernel<T, Of>
        <<<(unsigned)tiles, FP8_BLOCK, 0, stream>>>(q, q_t, scale, x, rows, fp8_padded_rows(rows), cols);
    cuda_check_launch("fp8_quantize_kernel");
}

// ---- The 8-bit copies of a model ----
//
// Weights keep their copies from update to update if every rank always holds all weights. Otherwise the model quantises
// weights before each use. Inputs keep their transposed copy until the backward pass reads it. All other copies have
// room for one linear layer at a time.

// The use of a linear layer's call. It decides which copies of the input the layer makes.
typedef enum {
    LINEAR_FOR_LOSS,      // a forward pass without a backward pass
    LINEAR_FOR_GRADIENTS, // a forward pass with a backward pass to come
    LINEAR_AGAIN,         // a forward pass that the backward pass runs again (--recompute)
    LINEAR_BACKWARD       // the backward pass; --recompute may make the input again for it
} LinearUse;

// Holds one linear layer's copies for one call.
struct Fp8Linear {
    bool on = false;                        // false: the layer multiplies in floatX, and all pointers are NULL
    bool measures_input = false;            // false: the input's scale is known from an earlier pass
    fp8e4 *weight = NULL, *weight_t = NULL; // (OC,C), (C,OC)
    fp8e4 *inp = NULL, *inp_t = NULL;       // (Np,C), (C,Np), Np = fp8_padded_rows(N); NULL: not wanted
    fp8e5 *dout = NULL, *dout_t = NULL;     // (Np,OC), (OC,Np)
    Fp8Scale *weight_scale = NULL, *inp_scale = NULL, *dout_scale = NULL;
};

// Holds one tensor in 8 bits for each block (stride > 0), or for one block at a time (stride 0).
struct Fp8PerBlock {
    fp8e4 *data;
    int64_t stride;
    fp8e4 *of(int block) const { return data + block * stride; }
};

#define FP8_MAX_LINEARS 8                               // linear layers of a block
enum { FP8_WEIGHT, FP8_INPUT, FP8_DOUT, FP8_OPERANDS }; // the tensors of a linear layer; each has its own scale

typedef struct {
    bool on; // false: no field below is set
    int num_blocks, num_linears;
    Fp8PerBlock weight[FP8_MAX_LINEARS], weight_t[FP8_MAX_LINEARS], inp_t[FP8_MAX_LINEARS];
    Fp8Scale *scales;     // (FP8_OPERANDS, blocks, linears)
    fp8e4 *inp;           // (Np, widest C): the input of the next multiply
    fp8e5 *dout, *dout_t; // (Np, widest OC), (widest OC, Np): the gradient that the next two multiplies read
} Fp8Copies;

// Describes a linear layer of a block for the plan.
typedef struct {
    const char *weight, *weight_t, *inp_t; // names of the plan's rows
    int C, OC;
    bool keeps_input; // for every block; --recompute then does not make the input again
} Fp8PlanRow;

typedef struct {
    int num_blocks;
    int64_t N;                                           // rows of the largest batch
    bool trains;                                         // gradients are wanted
    bool keeps_weight;                                   // for every block, from update to update
    int forward, backward_begins, backward_ends, update; // phases of the plan
} Fp8PlanShape;

// Adds the rows of a model's 8-bit copies to the plan.
static inline void fp8_plan(Fp8Copies *copies, MemoryPlan *plan, const Fp8PlanRow *rows, int num_rows,
                            const Fp8PlanShape *s) {
    int64_t Np = fp8_padded_rows(s->N), widest_C = 0, widest_OC = 0;
    int L = s->num_blocks, weights_end = s->keeps_weight ? s->update : s->backward_ends;
    cuda_require(num_rows <= FP8_MAX_LINEARS);
    copies->on = true, copies->num_blocks = L, copies->num_linears = num_rows;
    auto per_block = [&](Fp8PerBlock *copy, const char *name, PlanCategory category, bool keep, int64_t height,
                         int64_t width, int last) {
        copy->stride = keep ? height * width : 0;
        plan_add(plan, &copy->data, name, category, PLAN_FP8, shape3(keep ? L : 1, height, width), s->forward, last);
    };
    for (int i = 0; i < num_rows; i++) {
        const Fp8PlanRow *r = &rows[i];
        widest_C = max_i64(widest_C, r->C), widest_OC = max_i64(widest_OC, r->OC);
        per_block(&copies->weight[i], r->weight, PLAN_PARAMETER, s->keeps_weight, r->OC, r->C, weights_end);
        if (!s->trains) { continue; }
        per_block(&copies->weight_t[i], r->weight_t, PLAN_PARAMETER, s->keeps_weight, r->C, r->OC, weights_end);
        per_block(&copies->inp_t[i], r->inp_t, PLAN_ACTIVATION, r->keeps_input, r->C, Np, s->backward_ends);
    }
    plan_add(plan, &copies->scales, "fp8_scales", PLAN_WORKSPACE, PLAN_F32,
             shape4(FP8_OPERANDS, L, num_rows, sizeof(Fp8Scale) / sizeof(float)), s->forward, s->update);
    plan_add(plan, &copies->inp, "inp_fp8", PLAN_ACTIVATION, PLAN_FP8, shape2(Np, widest_C), s->forward, s->forward);
    if (!s->trains) { return; }
    plan_add(plan, &copies->dout, "dout_fp8", PLAN_GRADIENT, PLAN_FP8, shape2(Np, widest_OC), s->backward_begins,
             s->backward_ends);
    plan_add(plan, &copies->dout_t, "dout_fp8_t", PLAN_GRADIENT, PLAN_FP8, shape2(widest_OC, Np), s->backward_begins,
             s->backward_ends);
}

static inline Fp8Scale *fp8_scale(const Fp8Copies *copies, int operand, int block, int which) {
    return copies->scales + (operand * copies->num_blocks + block) * copies->num_linears + which;
}

// The place of the input's copy for the next multiply. NULL: no multiply reads it. When a block's forward runs again,
// no gradient is in 8 bits yet, so the gradient's room is free.
static inline fp8e4 *fp8_room_for_input(const Fp8Copies *copies, LinearUse use) {
    if (use == LINEAR_BACKWARD) { return NULL; }
    return use == LINEAR_AGAIN ? (fp8e4 *)copies->dout : copies->inp;
}

// Returns the place of the input's transposed copy for the backward pass. NULL: no backward pass comes, or the
// backward pass makes the input again. --recompute makes it again for all blocks but the last.
static inline fp8e4 *fp8_room_for_input_t(const Fp8Copies *copies, int block, int which, LinearUse use) {
    const Fp8PerBlock *inp_t = &copies->inp_t[which];
    bool stays = inp_t->stride > 0 || block == copies->num_blocks - 1;
    bool wanted = use == LINEAR_FOR_GRADIENTS ? stays : use != LINEAR_FOR_LOSS;
    return wanted ? inp_t->of(block) : NULL;
}

// Returns the copies of a block's linear layer number `which`.
static inline Fp8Linear fp8_linear(const Fp8Copies *copies, int block, int which, LinearUse use) {
    Fp8Linear l;
    if (!copies->on) { return l; }
    l.on = true, l.measures_input = use <= LINEAR_FOR_GRADIENTS;
    l.weight = copies->weight[which].of(block), l.weight_t = copies->weight_t[which].of(block);
    l.inp = fp8_room_for_input(copies, use), l.inp_t = fp8_room_for_input_t(copies, block, which, use);
    l.dout = copies->dout, l.dout_t = copies->dout_t;
    l.weight_scale = fp8_scale(copies, FP8_WEIGHT, block, which);
    l.inp_scale = fp8_scale(copies, FP8_INPUT, block, which);
    l.dout_scale = fp8_scale(copies, FP8_DOUT, block, which);
    return l;
}

// Clears the scales of inputs and gradients before a forward pass, so that this pass and its backward measure them.
static inline void fp8_clear_activation_scales(const Fp8Copies *copies, cudaStream_t stream) {
    static_assert(FP8_DOUT == FP8_INPUT + 1, "they lie together");
    if (!copies->on) { return; }
    size_t bytes = (size_t)(2 * copies->num_blocks * copies->num_linears) * sizeof(Fp8Scale);
    cuda_check(cudaMemsetAsync(fp8_scale(copies, FP8_INPUT, 0, 0), 0, bytes, stream));
}

#endif // LLMC_FP8_CUH
