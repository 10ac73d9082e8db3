// The sum and the maximum of each row with cooperative groups: a tile of 16 threads for a row.
#include "textbook.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

__global__ void reduce_rows(const float *in, float *sums, float *maxima, int rows, int cols) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
    int row = blockIdx.x * tile.meta_group_size() + tile.meta_group_rank();
    if (row >= rows) { return; }
    float sum = 0.0f, largest = -INFINITY;
    for (int i = tile.thread_rank(); i < cols; i += tile.size()) {
        sum += in[row * cols + i];
        largest = fmaxf(largest, in[row * cols + i]);
    }
    sum = cg::reduce(tile, sum, cg::plus<float>());
    largest = cg::reduce(tile, largest, cg::greater<float>());
    if (tile.thread_rank() == 0) { sums[row] = sum, maxima[row] = largest; }
}

int main() {
    const int rows = 37, cols = 100;
    std::vector<float> x = some_numbers(rows * cols);
    float *sums, *maxima;
    must(cudaMalloc(&sums, rows * sizeof(float)));
    must(cudaMalloc(&maxima, rows * sizeof(float)));
    reduce_rows<<<(rows + 7) / 8, 128>>>(on_device(x), sums, maxima, rows, cols);
    std::vector<float> got_sums = on_host(sums, rows), got_maxima = on_host(maxima, rows);
    for (int r = 0; r < rows; r++) {
        double sum = 0.0, largest = -1.0;
        for (int i = 0; i < cols; i++) { sum += x[r * cols + i], largest = fmax(largest, x[r * cols + i]); }
        compare("sum", r, got_sums[r], sum, 1e-5);
        compare("maximum", r, got_maxima[r], largest, 0.0);
    }
    return 0;
}
