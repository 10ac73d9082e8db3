// C = A B^T with tensor cores by inline PTX: cp.async in two stages, ldmatrix, mma.sync.
#include <cuda_fp16.h>
#include <stdint.h>
#include <stdio.h>

#define CHECK(e) if ((e) != cudaSuccess) { printf("error in line %d\n", __LINE__); exit(1); }
#define CP_ASYNC_CG(dst, src, bytes) \
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2;\n" ::"r"(dst), "l"(src), "n"(bytes))
#define CP_ASYNC_COMMIT() asm volatile("cp.async.commit_group;\n" ::)
#define CP_ASYNC_WAIT(n) asm volatile("cp.async.wait_group %0;\n" ::"n"(n) : "memory")
#define LDMATRIX_X4(R0, R1, R2, R3, addr)                                                                              \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"                                  \
                 : "=r"(R0), "=r"(R1), "=r"(R2), "=r"(R3)                                                              \
                 : "r"(addr))
enum { K_STEP = 16, LD = 24 };

__device__ uint32_t smem_u32(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// One warp for a tile of 16 x 16. M and N are multiples of 16, K of 16.
__global__ void matmul(float *C, __half *C16, const __half *A, const __half *B, int N, int K) {
    __shared__ __align__(128) __half a[2][16][LD], b[2][16][LD];
    int lane = threadIdx.x, row0 = blockIdx.y * 16, col0 = blockIdx.x * 16;
    auto fetch = [&](int stage, int k) {
        int r = lane / 2, c = lane % 2 * 8;
        CP_ASYNC_CG(smem_u32(&a[stage][r][c]), A + (row0 + r) * K + k + c, 16);
        CP_ASYNC_CG(smem_u32(&b[stage][r][c]), B + (col0 + r) * K + k + c, 16);
        CP_ASYNC_COMMIT();
    };
    float d[2][4] = {};
    uint32_t h[2][2] = {};
    fetch(0, 0);
    for (int k = 0, stage = 0; k < K; k += K_STEP, stage ^= 1) {
        if (k + K_STEP < K) { fetch(stage ^ 1, k + K_STEP); CP_ASYNC_WAIT(1); }
        else CP_ASYNC_WAIT(0);
        __syncthreads();
        uint32_t ra[4], rb[4];
        LDMATRIX_X4(ra[0], ra[1], ra[2], ra[3], smem_u32(&a[stage][lane % 16][lane / 16 * 8]));
        LDMATRIX_X4(rb[0], rb[1], rb[2], rb[3], smem_u32(&b[stage][lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]));
        for (int n = 0; n < 2; n++) {
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                         "{%0,  %1,  %2,  %3},  {%4,  %5,  %6,  %7},  {%8,  %9},  {%10, %11, %12, %13};\n"
                         : "=f"(d[n][0]), "=f"(d[n][1]), "=f"(d[n][2]), "=f"(d[n][3])
                         : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[2 * n]), "r"(rb[2 * n + 1]),
                           "f"(d[n][0]), "f"(d[n][1]), "f"(d[n][2]), "f"(d[n][3]));
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
                         "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                         : "+r"(h[n][0]), "+r"(h[n][1])
                         : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[2 * n]), "r"(rb[2 * n + 1]));
        }
        __syncthreads();
    }
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 2; i++) {
            int at = (row0 + lane / 4 + 8 * i) * N + col0 + n * 8 + lane % 4 * 2;
            *reinterpret_cast<float2 *>(C + at) = make_float2(d[n][2 * i], d[n][2 * i + 1]);
            *reinterpret_cast<uint32_t *>(C16 + at) = h[n][i];
        }
}

int main() {
    const int M = 32, N = 48, K = 80;
    __half A[M * K], B[N * K], got16[M * N], *dA, *dB, *dC16;
    static float got[M * N], *dC;
    for (__half &v : A) v = __float2half(rand() % 17 / 8.f - 1);
    for (__half &v : B) v = __float2half(rand() % 17 / 8.f - 1);
    CHECK(cudaMalloc(&dA, sizeof A));
    CHECK(cudaMalloc(&dB, sizeof B));
    CHECK(cudaMalloc(&dC, sizeof got));
    CHECK(cudaMalloc(&dC16, sizeof got16));
    CHECK(cudaMemcpy(dA, A, sizeof A, cudaMemcpyDefault));
    CHECK(cudaMemcpy(dB, B, sizeof B, cudaMemcpyDefault));
    matmul<<<dim3(N / 16, M / 16), 32>>>(dC, dC16, dA, dB, N, K);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(got, dC, sizeof got, cudaMemcpyDefault));
    CHECK(cudaMemcpy(got16, dC16, sizeof got16, cudaMemcpyDefault));
    int wrong = 0;
    for (int i = 0; i < M * N; i++) {
        float sum = 0; // exact: small multiples of 1 / 64
        for (int k = 0; k < K; k++) sum += __half2float(A[i / N * K + k]) * __half2float(B[i % N * K + k]);
        wrong += got[i] != sum || !(fabsf(__half2float(got16[i]) - sum) <= 0.05f);
    }
    printf("%d of %d are wrong\n%s\n", wrong, M * N, wrong ? "FAILED" : "ok");
    return wrong != 0;
}
