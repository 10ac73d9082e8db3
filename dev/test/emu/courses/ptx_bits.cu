// Inline PTX for bits and memory: loads and stores with cache hints, lop3, prmt, red, atom, mov of special registers,
// named barriers and approximate functions. Each result is compared with plain C.
#include <stdio.h>
#include <stdint.h>

__device__ __forceinline__ uint4 ld_nc(const uint4 *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ void st_wt(uint4 *p, uint4 v) {
    asm volatile("st.global.wt.v4.u32 [%0], {%1,%2,%3,%4};"
                 ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
template <int lut> __device__ inline int lop3(int a, int b, int c) {
    int res;
    asm volatile("lop3.b32 %0, %1, %2, %3, %4;\n" : "=r"(res) : "r"(a), "r"(b), "r"(c), "n"(lut));
    return res;
}
__device__ unsigned lane_id() { unsigned r; asm("mov.u32 %0, %%laneid;" : "=r"(r)); return r; }
#define PRMT(mode, d, a, b, c) asm("prmt.b32" mode " %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c))

__global__ void work(uint4 *out, const uint4 *in, unsigned *counters, float *sum, int *wrong) {
    __shared__ uint32_t room[64];
    uint32_t smem = __cvta_generic_to_shared(room), tid, bad = 0;
    asm("mov.u32 %0, %%tid.x;" : "=r"(tid));
    bad |= tid != threadIdx.x || lane_id() != tid % 32;
    uint4 v = ld_nc(in + tid);
    bad |= lop3<(0xf0 & 0xcc) | 0xaa>(v.x, v.y, v.z) != int((v.x & v.y) | v.z);
    bad |= lop3<0xf0 ^ 0xcc ^ 0xaa>(v.x, v.y, v.z) != int(v.x ^ v.y ^ v.z);
    bad |= lop3<(0xf0 & 0xcc) | (0xaa & ~0xf0)>(v.x, v.y, v.z) != int((v.x & v.y) | (~v.x & v.z));
    uint32_t r, byte[8];
    for (int i = 0; i < 4; i++) byte[i] = v.x >> 8 * i & 255, byte[i + 4] = v.y >> 8 * i & 255;
    PRMT("", r, v.x, v.y, 0x6341);
    bad |= r != (byte[1] | byte[4] << 8 | byte[3] << 16 | byte[6] << 24);
    PRMT("", r, v.x, v.y, 0x000a);
    bad |= (r & 255) != (byte[2] & 0x80 ? 255 : 0);
    for (int n = 0; n < 4; n++) {
        uint32_t f4e, b4e, rc8, ecl, ecr, rc16;
        PRMT(".f4e", f4e, v.x, v.y, n);
        PRMT(".b4e", b4e, v.x, v.y, n);
        PRMT(".rc8", rc8, v.x, v.y, n);
        PRMT(".ecl", ecl, v.x, v.y, n);
        PRMT(".ecr", ecr, v.x, v.y, n);
        PRMT(".rc16", rc16, v.x, v.y, n);
        bad |= f4e != (uint32_t)((((uint64_t)v.y << 32) | v.x) >> 8 * n) || rc8 != byte[n] * 0x01010101u;
        for (int i = 0; i < 4; i++) {
            bad |= (b4e >> 8 * i & 255) != byte[(n - i) & 7] || (ecl >> 8 * i & 255) != byte[max(n, i)];
            bad |= (ecr >> 8 * i & 255) != byte[min(n, i)] || (rc16 >> 8 * i & 255) != byte[n % 2 * 2 + i % 2];
        }
    }
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(smem + 4 * tid), "r"(v.w));
    asm volatile("bar.sync 0;");
    asm volatile("ld.shared.u32 %0, [%1+4];" : "=r"(r) : "r"(smem + 4 * (tid ^ 1) - 4));
    bad |= r != in[tid ^ 1].w;
    asm volatile("barrier.sync 1, %0;" ::"r"(blockDim.x));
    uint32_t old, first;
    asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(counters), "r"(1));
    asm volatile("{\n\t red.global.max.u32 [%0], %1;\n\t red.global.add.f32 [%2], %3;\n\t}"
                 :: "l"(counters + 1), "r"(v.x), "l"(sum), "f"(0.5f) : "memory");
    asm volatile("atom.cas.b32 %0, [%1], %2, %3;" : "=r"(first) : "l"(counters + 2), "r"(7), "r"(8));
    bad |= old >= 64 || (first != 7 && first != 8);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(3.0f));
    bad |= fabsf(y - 8) > 1e-5f;
    st_wt(out + tid, make_uint4(v.w, v.z, v.y, v.x));
    if (bad) atomicAdd(wrong, 1);
}

int main() {
    uint4 host[64], got[64], *in, *out;
    unsigned counters[3] = {0, 0, 7}, largest = 0, *d_counters;
    float sum = 0, *d_sum;
    int wrong = 0, *d_wrong;
    for (uint4 &v : host) v = make_uint4(rand(), rand() * 2u, rand() * 2u, rand()), largest = max(largest, v.x);
    cudaMalloc(&in, sizeof host), cudaMalloc(&out, sizeof host), cudaMalloc(&d_counters, sizeof counters);
    cudaMalloc(&d_sum, 4), cudaMalloc(&d_wrong, 4);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemcpy(d_counters, counters, sizeof counters, cudaMemcpyHostToDevice);
    cudaMemset(d_sum, 0, 4), cudaMemset(d_wrong, 0, 4);
    work<<<1, 64>>>(out, in, d_counters, d_sum, d_wrong);
    cudaError_t error = cudaDeviceSynchronize();
    cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
    cudaMemcpy(counters, d_counters, sizeof counters, cudaMemcpyDeviceToHost);
    cudaMemcpy(&sum, d_sum, 4, cudaMemcpyDeviceToHost), cudaMemcpy(&wrong, d_wrong, 4, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 64; i++) wrong += got[i].x != host[i].w || got[i].w != host[i].x;
    wrong += counters[0] != 64 || counters[1] != largest || counters[2] != 8 || sum != 32.0f || error;
    printf("%d wrong, %s\n%s\n", wrong, cudaGetErrorString(error), wrong ? "FAILED" : "ok");
    return wrong != 0;
}
