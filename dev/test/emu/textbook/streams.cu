// Copies and kernels of chunks in two streams, with pinned memory, and an event between the streams.
#include "textbook.h"

__global__ void square(float *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { data[i] *= data[i]; }
}
__global__ void add_neighbour(float *out, const float *in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = in[i] + in[(i + 1) % n]; }
}

int main() {
    const int n = 4096, chunks = 4, chunk = n / chunks;
    float *host, *data, *out;
    cudaStream_t streams[2];
    cudaEvent_t squared;
    must(cudaMallocHost(&host, n * sizeof(float)));
    must(cudaMalloc(&data, n * sizeof(float)));
    must(cudaMalloc(&out, n * sizeof(float)));
    must(cudaEventCreateWithFlags(&squared, cudaEventDisableTiming));
    for (cudaStream_t &stream : streams) { must(cudaStreamCreate(&stream)); }
    for (int i = 0; i < n; i++) { host[i] = float(i % 100); }
    for (int c = 0; c < chunks; c++) {
        float *part = data + c * chunk;
        cudaStream_t stream = streams[c % 2];
        must(cudaMemcpyAsync(part, host + c * chunk, chunk * sizeof(float), cudaMemcpyHostToDevice, stream));
        square<<<chunk / 128, 128, 0, stream>>>(part, chunk);
    }
    must(cudaEventRecord(squared, streams[1]));
    must(cudaStreamWaitEvent(streams[0], squared, 0));
    add_neighbour<<<n / 128, 128, 0, streams[0]>>>(out, data, n);
    must(cudaMemcpyAsync(host, out, n * sizeof(float), cudaMemcpyDeviceToHost, streams[0]));
    must(cudaStreamSynchronize(streams[0]));
    for (int i = 0; i < n; i++) {
        double here = i % 100, next = (i + 1) % n % 100;
        compare("sum of squares", i, host[i], here * here + next * next, 0.0);
    }
    for (cudaStream_t stream : streams) { must(cudaStreamDestroy(stream)); }
    must(cudaEventDestroy(squared));
    must(cudaFreeHost(host));
    return 0;
}
