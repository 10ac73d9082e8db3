// Tensors in 8 bits for the tensor cores: scales, quantising, transposing.
//
// Two formats: e4m3 (3 bits of mantissa, to 448) for weights and activations, e5m2 (2 bits, to 57344) for gradients,
// whose sizes differ more. Each tensor has one factor, from its own largest magnitude: nothing can overflow, and
// nothing is remembered from step to step. The factor is a power of two, so that it moves the numbers into the format's
// range without rounding them; they are rounded once, to 8 bits. What it takes to come back is handed to the
// multiplication (matmul_fp8.cuh) in device memory, so that the host never waits for it.
//
// The tensor cores read both factors of a product along its inner width, which must be contiguous, so a tensor that
// meets two products is stored twice: as it is, and transposed.
#ifndef LLMC_FP8_CUH
#define LLMC_FP8_CUH

#include <cuda_fp8.h>

#include "llmc/layers/amax.cuh"
#include "llmc/layers/gelu.cuh"

typedef __nv_fp8_e4m3 fp8e4;
typedef __nv_fp8_e5m2 fp8e5;

// One for each quantised tensor, in device memory. amax is cleared (zero bytes) before the tensor's producer runs.
typedef struct {
    uint32_t amax; // bits of the largest |x|, see amax.cuh
    float inverse; // what a quantised value is multiplied by
} Fp8Scale;

#define FP8_WIDTH_MULTIPLE 16 // of the rows and columns of what cuBLASLt multiplies: 16 bytes

// Ada, Hopper and later.
static inline bool fp8_is_supported(int major, int minor) { return 10 * major + minor >= 89; }

// The rows that a quantised tensor has in memory, those behind the last being zeros: cuBLASLt multiplies 8-bit matrices
// only if all their widths are multiples of 16, rows and columns of the result included.
static inline int64_t fp8_padded_rows(int64_t rows) { return round_up_i64(rows, FP8_WIDTH_MULTIPLE); }

// ---- The factor ----

// The exponent of the format's largest number, which is 1.75 * 2^this in both.
template <class T> struct Fp8Format;
template <> struct Fp8Format<fp8e4> {
    static constexpr int largest_exponent = 8;
    static constexpr __nv_fp8_interpretation_t kind = __NV_E4M3;
};
template <> struct Fp8Format<fp8e5> {
    static constexpr int largest_exponent = 15;
    static constexpr __nv_fp8_interpretation_t kind = __NV_E5M2;
};

#define FP8_MAX_EXPONENT 126 // of a factor: its inverse is still a normal number

// The exponent of the largest power of two that takes amax to at most the format's largest number.
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

// A tensor with an infinity or a NaN makes all that is computed from it NaN, and so the loss, which is watched.
template <class T> __device__ __forceinline__ float fp8_inverse(uint32_t amax) {
    return amax >= 0x7f800000u ? __uint_as_float(0x7fc00000u) : fp8_power_of_two(-fp8_factor_exponent<T>(amax));
}

// ---- amax of a tensor whose producer does not take it ----

#define FP8_AMAX_BLOCK 256
#define FP8_AMAX_LOADS 4  // of 16 bytes, that a thread has under way: all of its own
#define FP8_AMAX_BLOCKS 5 // on a multiprocessor: leaves the compiler the registers for these loads

// GELU as gelu_forward stores it.
__device__ __forceinline__ x128 gelu_packed(x128 x) {
    for (int i = 0; i < x128::size; i++) { x[i] = from_float<floatX>(gelu_value(to_float(x[i]))); }
    return x;
}

// *amax joined with that of x, or of gelu(x), of 16 bytes * packs. A block does FP8_AMAX_LOADS * FP8_AMAX_BLOCK packs.
template <bool gelu>
static __global__ void __launch_bounds__(FP8_AMAX_BLOCK, FP8_AMAX_BLOCKS)
    fp8_amax_kernel(uint32_t *amax, const floatX *x, int64_t packs) {
    __shared__ uint32_t partial[WARP_SIZE];
    int64_t first = (int64_t)blockIdx.x * FP8_AMAX_LOADS * FP8_AMAX_BLOCK + threadIdx.x;
    x128 values[FP8_AMAX_LOADS];
#pragma unroll
    for (int i = 0; i < FP8_AMAX_LOADS; i++) {
        int64_t pack = first + i * FP8_AMAX_BLOCK;
        values[i] = pack < packs ? load128(x + pack * x128::size) : packed_zeros<floatX>(); // quantising reads it again
    }
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < FP8_AMAX_LOADS; i++) {
        largest = amax_join(largest, gelu ? gelu_packed(values[i]) : values[i]);
    }
    amax_add_block(amax, largest, partial);
}

template <bool gelu> static inline void fp8_amax_of(Fp8Scale *scale, const floatX *x, int64_t n, cudaStream_t stream) {
    cuda_require(n > 0 && n % 8 == 0);
    int64_t packs = n / x128::size, blocks = ceil_div_i64(packs, FP8_AMAX_LOADS * FP8_AMAX_BLOCK);
    cuda_require(blocks <= INT32_MAX);
    fp8_amax_kernel<gelu><<<(unsigned)blocks, FP8_AMAX_BLOCK, 0, stream>>>(&scale->amax, x, packs);
    cuda_check_launch("fp8_amax_kernel");
}

// scale->amax = max(scale->amax, largest |x|), n values, n a multiple of 8, aligned to 16 bytes.
static inline void fp8_amax(Fp8Scale *scale, const floatX *x, int64_t n, cudaStream_t stream) {
    fp8_amax_of<false>(scale, x, n, stream);
}

// ---- Quantising ----
//
// A block quantises a tile of 128 x 128 into shared memory, and writes it from there, as it is and transposed, always
// 16 bytes at a time and 128 bytes of a row or column beside each other.

#define FP8_TILE 128
#define FP8_BLOCK 256
#define FP8_LOADS 4  // of 16 bytes that a thread has under way
#define FP8_BLOCKS 5 // on a multiprocessor: leaves the compiler the registers for these loads
#define FP8_GROUP 16 // rows that become 16 bytes of a transposed row
// A gap of 16 bytes behind each group: the 8 groups that a warp reads a word from at once lie in other banks.
#define FP8_TILE_BYTES (FP8_TILE * FP8_TILE + FP8_TILE / FP8_GROUP * 16)

__device__ __forceinline__ int fp8_tile_offset(int row, int col) { return row * FP8_TILE + row / FP8_GROUP * 16 + col; }

struct alignas(x128::size) Fp8Pack { // as many values as x128 has
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

// The tile of x (rows, cols) that begins at (row, col); zeros outside of x. A thread issues FP8_LOADS loads before it
// converts the first value.
template <class T, bool gelu>
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
            Fp8Pack pack = fp8_convert<T>(gelu ? gelu_packed(values[i]) : values[i], factor);
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

// 4 columns of 16 rows for each thread; 8 lanes beside each other write 128 bytes of a column.
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

// q (padded_rows, cols) and q_t (cols, padded_rows), of which one may be NULL, from x (rows, cols) or gelu(x).
template <class T, bool gelu>
static __global__ void __launch_bounds__(FP8_BLOCK, FP8_BLOCKS)
    fp8_quantize_kernel(T *q, T *q_t, Fp8Scale *scale, const floatX *x, int64_t rows, int64_t padded_rows, int cols) {
    __shared__ alignas(16) uint8_t tile[FP8_TILE_BYTES];
    int across = (cols + FP8_TILE - 1) / FP8_TILE;
    int64_t row = (int64_t)(blockIdx.x / across) * FP8_TILE;
    int col = (int)(blockIdx.x % across) * FP8_TILE;
    uint32_t amax = scale->amax;
    fp8_fill_tile<T, gelu>(tile, x, fp8_power_of_two(fp8_factor_exponent<T>(amax)), rows, cols, row, col);
    if (blockIdx.x == 0 && threadIdx.x == 0) { scale->inverse = fp8_inverse<T>(amax); }
    __syncthreads();
    if (q != NULL) { fp8_store_tile(q, tile, padded_rows, cols, row, col); }
    if (q_t != NULL) { fp8_store_transposed(q_t, tile, padded_rows, cols, row, col); }
}

template <class T, bool gelu>
static inline void fp8_quantize_values(T *q, T *q_t, Fp8Scale *scale, const floatX *x, int64_t rows, int cols,
                                       cudaStream_t stream) {
    cuda_require(rows > 0 && rows <= INT32_MAX);
    cuda_require(cols > 0 && cols % FP8_WIDTH_MULTIPLE == 0);
    cuda_require(q != NULL || q_t != NULL);
    int64_t tiles = ceil_div_i64(rows, FP8_TILE) * ceil_div_i64(cols, FP8_TILE);
    cuda_require(tiles <= INT32_MAX);
    fp8_quantize_kernel<T, gelu>
        <<<(unsigned)tiles, FP8_BLOCK, 0, stream>>>(q, q_t, scale, x, rows, fp8_padded_rows(rows), cols);
    cuda_check_launch("fp8_quantize_kernel");
}

// Whether this GPU runs code that was compiled for compute capability 8.9 or later. Other code converts to 8 bits in
// software, which is slower.
static inline bool fp8_has_conversion() {
    struct cudaFuncAttributes attributes;
    cuda_check(cudaFuncGetAttributes(&attributes, fp8_quantize_kernel<fp8e4, false>));
    return attributes.ptxVersion >= 89;
}

// q (padded rows, cols) = x (rows, cols) by the factor that scale->amax asks for, to nearest even, with zeros behind
// the last row; q_t (cols, padded rows) the same transposed. Either may be NULL. Writes scale->inverse. cols: a
// multiple of 16; all aligned to 16 bytes. amax 0: the factor is 1. Moves 2 + 1 + 1 bytes a value, of bf16.
template <class T>
static inline void fp8_quantize(T *q, T *q_t, Fp8Scale *scale, const floatX *x, int64_t rows, int cols,
                                cudaStream_t stream) {
    fp8_quantize_values<T, false>(q, q_t, scale, x, rows, cols, stream);
}

// ---- GELU ----
//
// Its output is needed in 8 bits only, so it is computed twice, for the amax and for the values, and never stored in
// bf16: 2 + (2 + 1 + 1) bytes a value, where gelu_forward with fp8_quantize move 4 + 4 and take 2 bytes of memory a
// value. The bits are theirs.

// scale->amax = max(scale->amax, largest |gelu(fc)|), n values, n a multiple of 8.
static inline void gelu_amax(Fp8Scale *scale, const floatX *fc, int64_t n, cudaStream_t stream) {
    fp8_amax_of<true>(scale, fc, n, stream);
}

// q (padded N, width) and q_t (width, padded N) = gelu(fc) (N, width); as fp8_quantize.
static inline void gelu_quantize(fp8e4 *q, fp8e4 *q_t, Fp8Scale *scale, const floatX *fc, int64_t N, int width,
                                 cudaStream_t stream) {
    fp8_quantize_values<fp8e4, true>(q, q_t, scale, fc, N, width, stream);
}

#endif // LLMC_FP8_CUH
