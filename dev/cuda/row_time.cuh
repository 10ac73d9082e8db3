// A row of a ladder's table on a GPU: the measured time, and what it is of the least time that the GPU allows.
#ifndef ROW_TIME_CUH
#define ROW_TIME_CUH

#include "dev/cuda/layer.cuh"

#define LADDER_RUNS 21

static const char *const ladder_real = "GPT-2"; // the problems have the sizes of a training step already

// The speed-up is measured: the time of the version before, over this version's.
static const Column ladder_columns[] = {{"version", -30, true}, {"time us", 8, true},  {"GB/s", 4, true},
                                        {"TFLOP/s", 7, true},   {"of bound", 8, true}, {"speed-up", 8, true}};

static std::string ladder_caption(const Layer &layer) {
    std::string flops = layer.flops > 0 ? format(" and %.3g GFLOP", 1e-9 * layer.flops) : "";
    return format("**%s.** It needs %.3g MB%s.", layer.name.c_str(), 1e-6 * layer.bytes, flops.c_str());
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

static Row ladder_row(const Layer &layer, const std::function<void()> &run) {
    double seconds = ladder_measure(run), ideal = ladder_ideal(layer.bytes, layer.flops);
    return {{ladder_cell("%.1f", 1e6 * seconds, true), ladder_cell("%.0f", 1e-9 * layer.bytes / seconds, true),
             ladder_cell("%.1f", 1e-12 * layer.flops / seconds, layer.flops > 0),
             ladder_cell("%.0f %%", 100.0 * ideal / seconds, ideal > 0)},
            seconds};
}

#endif // ROW_TIME_CUH
