// A scan of any length in three kernels: blocks, their sums, and the addition. Warps scan by cooperative groups. Memory
// comes from the stream's pool.
#include <cooperative_groups.h>
#include <cooperative_groups/scan.h>
#include <iostream>
#include <numeric>
#include <vector>
using namespace cooperative_groups;

void check(cudaError_t result, char const *const func, const char *const file, int const line) {
    if (result) {
        std::cerr << "CUDA error at " << file << ":" << line << " code=" << result << " \"" << func << "\" \n";
        exit(EXIT_FAILURE);
    }
}
#define checkCudaErrors(val) check((val), #val, __FILE__, __LINE__)

const int THREADS = 256;

__global__ void scan_blocks(int *out, int *sums, const int *in, size_t n) {
    auto block = this_thread_block();
    auto tile = tiled_partition<32>(block);
    __shared__ int warps[THREADS / 32];
    size_t i = this_grid().thread_rank();
    int v = i < n ? in[i] : 0, scanned = inclusive_scan(tile, v);
    if (tile.thread_rank() == tile.size() - 1) warps[tile.meta_group_rank()] = scanned;
    sync(block);
    if (tile.meta_group_rank() == 0) {
        auto few = tiled_partition<THREADS / 32>(tile);
        int sum = few.thread_rank() == tile.thread_rank() ? warps[few.thread_rank()] : 0;
        int below = exclusive_scan(few, sum, plus<int>());
        if (few.thread_rank() == tile.thread_rank()) warps[few.thread_rank()] = below;
    }
    sync(block);
    scanned += warps[tile.meta_group_rank()];
    if (i < n) out[i] = scanned;
    if (sums != NULL && block.thread_rank() == block.size() - 1) sums[blockIdx.x] = scanned;
}
__global__ void add_offsets(int *out, const int *sums, size_t n) {
    size_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.x > 0 && i < n) out[i] += sums[blockIdx.x - 1];
}

static void scan(int *out, const int *in, size_t n, cudaStream_t stream) {
    size_t blocks = (n + THREADS - 1) / THREADS;
    if (blocks == 1) {
        scan_blocks<<<1, THREADS, 0, stream>>>(out, NULL, in, n);
        return;
    }
    int *sums = nullptr;
    checkCudaErrors(cudaMallocAsync(&sums, 2 * blocks * sizeof(int), stream));
    scan_blocks<<<blocks, THREADS, 0, stream>>>(out, sums, in, n);
    scan(sums + blocks, sums, blocks, stream);
    add_offsets<<<blocks, THREADS, 0, stream>>>(out, sums + blocks, n);
    checkCudaErrors(cudaFreeAsync(sums, stream));
}

int main(int argc, char *argv[]) {
    for (size_t n : {1, 255, 256, 1000, 70000}) {
        std::vector<int> x(n), got(n), want(n);
        for (auto &v : x) v = rand() % 10;
        std::partial_sum(x.begin(), x.end(), want.begin());
        cudaStream_t stream;
        int *in, *out;
        checkCudaErrors(cudaStreamCreate(&stream));
        checkCudaErrors(cudaMallocAsync((void **)&in, n * sizeof(int), stream));
        checkCudaErrors(cudaMallocAsync(&out, n * sizeof(int), stream));
        checkCudaErrors(cudaMemcpyAsync(in, x.data(), n * sizeof(int), cudaMemcpyHostToDevice, stream));
        scan(out, in, n, stream);
        checkCudaErrors(cudaMemcpyAsync(got.data(), out, n * sizeof(int), cudaMemcpyDeviceToHost, stream));
        checkCudaErrors(cudaFreeAsync(in, stream));
        checkCudaErrors(cudaFreeAsync(out, stream));
        checkCudaErrors(cudaStreamSynchronize(stream));
        checkCudaErrors(cudaStreamDestroy(stream));
        if (got != want) return std::cout << n << " numbers: wrong" << std::endl, EXIT_FAILURE;
    }
    std::cout << "ok" << std::endl;
}
