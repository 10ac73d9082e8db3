// The accelerations of n bodies: each block reads all positions (x, y, z, mass) tile by tile.
#include "textbook.h"

#define TILE 64
#define SOFTENING 1e-3f

__global__ void accelerate(float4 *out, const float4 *bodies, int n) {
    __shared__ float4 tile[TILE];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = i < n ? bodies[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float3 sum = make_float3(0.0f, 0.0f, 0.0f);
    for (int first = 0; first < n; first += TILE) {
        int j = first + threadIdx.x;
        tile[threadIdx.x] = j < n ? bodies[j] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        __syncthreads();
        for (int k = 0; k < TILE; k++) {
            float dx = tile[k].x - me.x, dy = tile[k].y - me.y, dz = tile[k].z - me.z;
            float r = rsqrtf(dx * dx + dy * dy + dz * dz + SOFTENING), f = tile[k].w * r * r * r;
            sum.x += f * dx, sum.y += f * dy, sum.z += f * dz;
        }
        __syncthreads();
    }
    if (i < n) { out[i] = make_float4(sum.x, sum.y, sum.z, 0.0f); }
}

int main() {
    const int n = 100;
    std::vector<float> x = some_numbers(4 * n);
    std::vector<float4> bodies;
    for (int i = 0; i < n; i++) { bodies.push_back(make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], 0.01f)); }
    float4 *out;
    must(cudaMalloc(&out, n * sizeof(float4)));
    accelerate<<<(n + TILE - 1) / TILE, TILE>>>(out, on_device(bodies), n);
    std::vector<float4> got = on_host(out, n);
    for (int i = 0; i < n; i++) {
        double want = 0.0;
        for (const float4 &b : bodies) {
            double dx = b.x - bodies[i].x, dy = b.y - bodies[i].y, dz = b.z - bodies[i].z;
            want += b.w * dx / pow(dx * dx + dy * dy + dz * dz + SOFTENING, 1.5);
        }
        compare("x of the acceleration", i, got[i].x, want, 1e-4);
    }
    return 0;
}
