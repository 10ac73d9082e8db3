// A row of a ladder's table on a GPU: the measured time, and what it is of the least time that the GPU allows.
#ifndef ROW_TIME_CUH
#define ROW_TIME_CUH

#include "dev/cuda/layer.cuh"

#define LADDER_RUNS 21

static void ladder_head(const Layer &layer) {
    printf("**%s.** It needs %.3g MB", layer.name.c_str(), 1e-6 * layer.bytes);
    if (layer.flops > 0) { printf(" and %.3g GFLOP", 1e-9 * layer.flops); }
    printf(".\n\n");
    printf("| version                      |  time us | GB/s | TFLOP/s | of bound | gain |\n");
    printf("|------------------------------|----------|------|---------|----------|------|\n");
}

static void ladder_run(const std::function<void()> &run) {
    run();
    cuda_check(cudaDeviceSynchronize());
}

// Returns the median of the seconds of some runs.
static double ladder_measure(const std::function<void()> &run) {
    std::vector<float> times(LADDER_RUNS);
    cudaEvent_t begin, end;
    cuda_check(cudaEventCreate(&begin));
    cuda_check(cudaEventCreate(&end));
    for (float &milliseconds : times) {
        cuda_check(cudaEventRecord(begin));
        run();
        cuda_check(cudaEventRecord(end));
        cuda_check(cudaEventSynchronize(end));
        cuda_check(cudaEventElapsedTime(&milliseconds, begin, end));
    }
    cuda_check(cudaEventDestroy(begin));
    cuda_check(cudaEventDestroy(end));
    std::sort(times.begin(), times.end());
    return 1e-3 * (double)times[LADDER_RUNS / 2];
}

// Prints a row without its last cell. Returns the seconds that the last cell compares.
static double ladder_row(const Layer &layer, const std::string &label, const std::function<void()> &run) {
    double seconds = ladder_measure(run), ideal = ladder_ideal(layer.bytes, layer.flops);
    printf("| %-28s | %8.1f |", label.c_str(), 1e6 * seconds);
    ladder_cell(4, "%.0f", 1e-9 * layer.bytes / seconds, true);
    ladder_cell(7, "%.1f", 1e-12 * layer.flops / seconds, layer.flops > 0);
    ladder_cell(8, "%.0f %%", 100.0 * ideal / seconds, ideal > 0);
    return seconds;
}

#endif // ROW_TIME_CUH
