// The wrappers of PTX instructions: what they promise about registers, lanes and bytes, so that the emulator and the
// hardware agree.
#ifndef KERNELS_PTX_CUH
#define KERNELS_PTX_CUH

#include "llmc/cuda/ptx.cuh"
#include "dev/test/layers/gpu_test.h"

// ---- cp.async ----

#define COPIES 64              // of 16 bytes, one for each thread, in each of two groups
#define BYTES(i) ((i) % 5 * 4) // 0, 4, 8, 12, 16

// out[0..2] (COPIES,16 bytes): what came with group 0 while group 1 may be on its way, and both at the end.
static __global__ void ptx_copies_kernel(int4 *out, const int4 *inp) {
    __shared__ int4 first[COPIES];
    __shared__ int4 second[COPIES];
    int i = threadIdx.x, other = COPIES - 1 - i;
    cp_async_16(&first[i], inp + i);
    cp_async_commit();
    cp_async_16(&second[i], inp + COPIES + i, BYTES(i));
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    out[other] = first[other]; // what another thread has copied
    cp_async_wait<0>();
    __syncthreads();
    out[COPIES + other] = first[other];
    out[2 * COPIES + other] = second[other];
}

TEST(test_ptx_copies) {
    std::vector<int32_t> values(2 * COPIES * 4);
    for (size_t i = 0; i < values.size(); i++) { values[i] = (int32_t)(i + 1) * 1000003; }
    DeviceArray<int32_t> inp(values), out(3 * COPIES * 4);
    ptx_copies_kernel<<<1, COPIES>>>(reinterpret_cast<int4 *>(out.data), reinterpret_cast<const int4 *>(inp.data));
    cuda_check_launch("ptx_copies_kernel");
    std::vector<int32_t> got = out.raw();
    for (int i = 0; i < COPIES * 4; i++) {
        int32_t partial = i % 4 * 4 < BYTES(i / 4) ? values[COPIES * 4 + i] : 0;
        CHECK(t, got[i] == values[i], "group 0, word %d: got %d, want %d", i, got[i], values[i]);
        CHECK(t, got[COPIES * 4 + i] == values[i], "group 0 at the end, word %d: got %d", i, got[COPIES * 4 + i]);
        CHECK(t, got[COPIES * 8 + i] == partial, "group 1, word %d: got %d, want %d", i, got[COPIES * 8 + i], partial);
    }
}

// ---- ldmatrix ----

#define MATRIX_STRIDE 24 // elements from row to row: 48 bytes

// out (2,4,32): the registers of x4, x4_trans. Element (i, row, column) is 64 i + 8 row + column, and the
// rows of the matrices stand in another order than they have.
static __global__ void ptx_ldmatrix_kernel(uint32_t *out) {
    __shared__ alignas(16) uint16_t rows[32 * MATRIX_STRIDE];
    int lane = threadIdx.x, place = lane * 5 % 32;
    for (int column = 0; column < 8; column++) { rows[place * MATRIX_STRIDE + column] = (uint16_t)(8 * lane + column); }
    __syncwarp();
    uint32_t four[4], four_trans[4];
    ldmatrix_x4(four, rows + place * MATRIX_STRIDE);
    ldmatrix_x4_trans(four_trans, rows + place * MATRIX_STRIDE);
    for (int i = 0; i < 4; i++) {
        out[i * 32 + lane] = four[i];
        out[(4 + i) * 32 + lane] = four_trans[i];
    }
}

TEST(test_ptx_ldmatrix) {
    DeviceArray<uint32_t> out(8 * 32);
    ptx_ldmatrix_kernel<<<1, 32>>>(out.data);
    cuda_check_launch("ptx_ldmatrix_kernel");
    std::vector<uint32_t> got = out.raw();
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 4; i++) {
            for (int lane = 0; lane < 32; lane++) {
                int row = lane / 4, column = lane % 4 * 2;
                bool trans = kind == 1;
                int low = 64 * i + (trans ? 8 * column + row : 8 * row + column), high = low + (trans ? 8 : 1);
                uint32_t want = (uint32_t)low | (uint32_t)high << 16, have = got[(size_t)((kind * 4 + i) * 32 + lane)];
                CHECK(t, have == want, "kind %d, matrix %d, lane %d: got %08x, want %08x", kind, i, lane, have, want);
            }
        }
    }
}

// ---- mma ----

// The register of columns `column` and `column` + 1 of a row.
__device__ __forceinline__ uint32_t two_bf16(const __nv_bfloat16 *row, int column) {
    uint32_t bits;
    memcpy(&bits, row + column, sizeof(bits));
    return bits;
}

// d (16,8) = a (16,16) b + c, given a, b transposed (8,16), c.
static __global__ void ptx_mma_kernel(float *d, const __nv_bfloat16 *a, const __nv_bfloat16 *b, const float *c,
                                      bool in_place) {
    int row = threadIdx.x / 4, column = threadIdx.x % 4 * 2;
    uint32_t a_registers[4], b_registers[2];
    float sums[4], results[4];
    for (int i = 0; i < 4; i++) {
        a_registers[i] = two_bf16(a + (row + i % 2 * 8) * 16, column + i / 2 * 8);
        sums[i] = c[(row + i / 2 * 8) * 8 + column + i % 2];
    }
    for (int i = 0; i < 2; i++) { b_registers[i] = two_bf16(b + row * 16, column + i * 8); }
    mma_m16n8k16_bf16(results, a_registers, b_registers, sums);
    if (in_place) {
        mma_m16n8k16_bf16(sums, a_registers, b_registers, sums);
        for (int i = 0; i < 4; i++) { results[i] = sums[i]; }
    }
    for (int i = 0; i < 4; i++) { d[(row + i / 2 * 8) * 8 + column + i % 2] = results[i]; }
}

static std::vector<float> rounded_to_bf16(std::vector<float> values) {
    for (float &x : values) { x = __bfloat162float(__float2bfloat16_rn(x)); }
    return values;
}

TEST(test_ptx_mma) {
    std::vector<float> a = rounded_to_bf16(random_values(16 * 16, 1.0f, 70));
    std::vector<float> b = rounded_to_bf16(random_values(8 * 16, 1.0f, 71)), c = random_values(16 * 8, 1.0f, 72);
    std::vector<float> want(16 * 8);
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 8; j++) {
            double sum = c[(size_t)(i * 8 + j)];
            for (int k = 0; k < 16; k++) { sum += (double)a[(size_t)(i * 16 + k)] * b[(size_t)(j * 16 + k)]; }
            want[(size_t)(i * 8 + j)] = (float)sum;
        }
    }
    DeviceArray<__nv_bfloat16> device_a(a), device_b(b);
    DeviceArray<float> device_c(c), d(16 * 8);
    for (bool in_place : {false, true}) {
        d.poison();
        ptx_mma_kernel<<<1, 32>>>(d.data, device_a.data, device_b.data, device_c.data, in_place);
        cuda_check_launch("ptx_mma_kernel");
        // Products of bf16 are exact in float. Tensor cores may cut bits off where a float sum would round: one epsilon
        // for each of 17 terms, of the size of the largest values.
        check_values(t, "d", d.get(), want, 17 * FLT_EPSILON * largest(want), 0.0);
    }
}

// ---- ex2 and rcp ----

template <bool RECIPROCAL> static __global__ void ptx_function_kernel(float *out, const float *inp, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = RECIPROCAL ? reciprocal_approx(inp[i]) : exp2_approx(inp[i]); }
}

TEST(test_ptx_functions) {
    std::vector<float> x = {0.0f, -0.0f, 1.0f, -1.0f, -125.0f, 127.0f, -INFINITY, -200.0f, -1e30f}, powers, inverses;
    std::vector<float> y = {1.0f, -2.0f, INFINITY, -INFINITY, 1e37f, -1e-37f};
    for (int i = 0; i < 500; i++) { x.push_back((float)(i - 250) * 0.493f); }
    for (int i = 1; i < 500; i++) { y.push_back((float)i * 0.0371f); }
    for (float value : x) { powers.push_back((float)exp2((double)value)); }
    for (float value : y) { inverses.push_back((float)(1.0 / (double)value)); }
    DeviceArray<float> d_x(x), d_y(y), out(d_x.count), out_y(d_y.count);
    ptx_function_kernel<false><<<blocks_for(d_x.count, 64), 64>>>(out.data, d_x.data, (int)d_x.count);
    ptx_function_kernel<true><<<blocks_for(d_y.count, 64), 64>>>(out_y.data, d_y.data, (int)d_y.count);
    cuda_check_launch("ptx_function_kernel");
    std::vector<float> got = out.get(); // both are off by units in the last place, and exact where a result is 0
    check_values(t, "exp2", got, powers, 0.0, 2 * FLT_EPSILON);
    check_values(t, "rcp", out_y.get(), inverses, 0.0, FLT_EPSILON);
    CHECK(t, got[0] == 1.0f && got[1] == 1.0f, "2^0 is %.9g, 2^-0 is %.9g", (double)got[0], (double)got[1]);
}

// A program without machine code for a GPU needs a driver that translates its PTX, and says what to do without one.
TEST(test_ptx_remedies) {
    const struct {
        cudaError_t status;
        const char *word;
    } remedies[] = {{cudaErrorUnsupportedPtxVersion, "the driver is too old to translate it"},
                    {cudaErrorUnsupportedPtxVersion, "GPU_ARCH="},
                    {cudaErrorNoKernelImageForDevice, "GPU_ARCH="}};
    for (const auto &r : remedies) {
        CHECK(t, strstr(cuda_remedy(r.status), r.word) != NULL, "%s: '%s' lacks '%s'", cudaGetErrorName(r.status),
              cuda_remedy(r.status), r.word);
    }
}

#undef COPIES
#undef BYTES
#undef MATRIX_STRIDE

#endif // KERNELS_PTX_CUH
