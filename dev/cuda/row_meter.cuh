// A row of a ladder's table in the emulator: what the meter counts, and the least time that an H100 needs for it.
#ifndef ROW_METER_CUH
#define ROW_METER_CUH

#include "dev/cuda/layer.cuh"

static void ladder_head(const Layer &layer) {
    printf("**%s.** It needs %.3g MB", layer.name.c_str(), 1e-6 * layer.bytes);
    if (layer.flops > 0) { printf(" and %.3g MFLOP", 1e-6 * layer.flops); }
    printf(".\n\n");
    printf("| version                      | kernels |  warps | sectors |  used | moved | waves | lanes |  MFLOP | ");
    printf("bound us | by        | gain |\n");
    printf("|------------------------------|---------|--------|---------|-------|-------|-------|-------|--------|-");
    printf("---------|-----------|------|\n");
}

static void ladder_run(const std::function<void()> &run) {
    emu::meter_start();
    run();
    cuda_check(cudaDeviceSynchronize());
    emu::meter_stop();
}

// Sums the bounds of what a version launched, one after another. Launches do not count, because the problem is small.
static emu::MeterBound ladder_bound(void) {
    emu::MeterBound sum = {0.0, ""};
    double longest = 0.0;
    auto add = [&](double seconds, const char *part) {
        if (seconds > longest) { longest = seconds, sum.part = part; }
        sum.seconds += seconds;
    };
    for (const std::string &name : emu::meter_kernels()) {
        emu::Meter m = emu::meter_of(name.c_str());
        m.launches = 0;
        emu::MeterBound bound = emu::meter_bound(m, LADDER_GPU);
        add(bound.seconds, bound.part);
    }
    for (const std::string &name : emu::meter_libraries()) {
        emu::MeterLibrary m = emu::meter_of_library(name.c_str());
        double bytes = (double)(m.loaded_bytes + m.stored_bytes);
        add(ladder_ideal(bytes, m.flops), ladder_ideal(bytes, 0.0) < ladder_ideal(0.0, m.flops) ? "tensor" : "memory");
    }
    return sum;
}

// Prints a row without its last cell. Returns the seconds that the last cell compares.
static double ladder_row(const Layer &layer, const std::string &label, const std::function<void()> &) {
    emu::Meter m = emu::meter_of(NULL);
    double moved = 32.0 * (double)(m.loads.sectors + m.stores.sectors), flops = (double)(m.flops + m.tensor_flops);
    double requests = (double)(m.loads.requests + m.stores.requests), by_libraries = 0.0;
    double shared = (double)(m.shared_loads.requests + m.shared_stores.requests);
    uint64_t calls = m.launches;
    for (const std::string &name : emu::meter_libraries()) {
        emu::MeterLibrary l = emu::meter_of_library(name.c_str());
        by_libraries += (double)(l.loaded_bytes + l.stored_bytes);
        calls += l.calls;
        flops += l.flops;
    }
    printf("| %-28s | %7d |", label.c_str(), (int)calls);
    ladder_cell(6, "%.0f", (double)m.warps / (double)m.launches, m.launches > 0);
    ladder_cell(7, "%.1f", moved / 32.0 / requests, requests > 0);
    ladder_cell(5, "%.0f %%", 100.0 * (double)(m.loads.bytes + m.stores.bytes) / moved, requests > 0);
    ladder_cell(5, "%.3g", (moved + by_libraries) / layer.bytes, true);
    ladder_cell(5, "%.2f", (double)(m.shared_loads.wavefronts + m.shared_stores.wavefronts) / shared, shared > 0);
    ladder_cell(5, "%.1f", (double)m.step_lanes / (double)m.steps, m.steps > 0);
    ladder_cell(6, "%.3g", 1e-6 * flops, flops > 0);
    emu::MeterBound bound = ladder_bound();
    printf(" %8.3f | %-9s |", 1e6 * bound.seconds, bound.part);
    return bound.seconds;
}

#endif // ROW_METER_CUH
