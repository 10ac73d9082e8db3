// A row of a ladder's table in the emulator: what the meter counts, and the least time that an H100 needs for it.
#ifndef ROW_METER_CUH
#define ROW_METER_CUH

#include "dev/cuda/layer.cuh"

static const char *const ladder_real = "GPT-2 us, by";

static const Column ladder_columns[] = {{"version", -30, true},   {"kernels", 7, false},      {"warps", 6, false},
                                        {"sectors", 7, false},    {"used", 5, true},          {"moved", 5, true},
                                        {"waves", 5, true},       {"lanes", 5, false},        {"MFLOP", 6, false},
                                        {"FLOP/B", 6, false},     {"bound us, by", 15, true}, {ladder_real, 15, true},
                                        {"bound ratio", 11, true}};

static std::string ladder_caption(const Layer &layer) {
    std::string text = format("**%s.** It needs %.3g MB", layer.name.c_str(), 1e-6 * layer.bytes);
    if (layer.flops > 0) {
        text += format(" and %.3g MFLOP, %.3g FLOP a byte", 1e-6 * layer.flops, layer.flops / layer.bytes);
    }
    if (layer.real.name != "") {
        bool large = layer.real.bytes >= 1e9;
        text += format("; at GPT-2's shape, %s, %.3g %s", layer.real.name.c_str(),
                       (large ? 1e-9 : 1e-6) * layer.real.bytes, large ? "GB" : "MB");
    }
    if (layer.real.flops > 0) {
        text +=
            format(" and %.3g GFLOP, %.3g FLOP a byte", 1e-9 * layer.real.flops, layer.real.flops / layer.real.bytes);
    }
    return text + ".";
}

static void ladder_run(const std::function<void()> &run) {
    emu::meter_start();
    run();
    cuda_check(cudaDeviceSynchronize());
    emu::meter_stop();
}

// What each kernel counted. Launches do not count in a bound, because the problem is small.
static std::vector<emu::Meter> ladder_meters(void) {
    std::vector<emu::Meter> meters;
    for (const std::string &name : emu::meter_kernels()) {
        meters.push_back(emu::meter_of(name.c_str()));
        meters.back().launches = 0;
    }
    return meters;
}

// Sums the bounds of what a version launched, one after another. The part is that of the longest.
struct BoundSum {
    double seconds = 0.0, longest = 0.0;
    const char *part = "";

    void add(double more, const char *part_of_more) {
        if (more > longest) { longest = more, part = part_of_more; }
        seconds += more;
    }
    void add(const std::vector<emu::Meter> &meters) {
        for (const emu::Meter &meter : meters) {
            emu::MeterBound bound = emu::meter_bound(meter, LADDER_GPU);
            add(bound.seconds, bound.part);
        }
    }
    void add_ideal(double bytes, double flops) {
        add(ladder_ideal(bytes, flops), ladder_ideal(bytes, 0.0) < ladder_ideal(0.0, flops) ? "tensor" : "memory");
    }
    std::string text(const char *seconds_format) const {
        return ladder_cell(seconds_format, 1e6 * seconds, true) + " " + part;
    }
};

// Returns a weight for each problem. For each size, the weighted sum over the problems is that of GPT-2's shape.
static std::vector<double> weights_of_problems(const RealShape &real) {
    size_t n = real.sizes.size() - 1;
    std::vector<std::vector<double>> rows(n); // an equation for each size: n factors and GPT-2's size
    for (size_t i = 0; i < n * (n + 1); i++) { rows[i % n].push_back(real.sizes[i / n][i % n]); }
    for (size_t k = 0; k < n; k++) { // elimination: in the end only row k has a factor k
        auto smaller = [k](const auto &a, const auto &b) { return fabs(a[k]) < fabs(b[k]); };
        std::swap(rows[k], *std::max_element(rows.begin() + (long)k, rows.end(), smaller));
        for (size_t row = 0; row < n; row++) {
            double times = row == k ? 0.0 : rows[row][k] / rows[k][k];
            for (size_t i = k; i <= n; i++) { rows[row][i] -= times * rows[k][i]; }
        }
    }
    std::vector<double> weights;
    for (size_t k = 0; k < n; k++) { weights.push_back(rows[k][n] / rows[k][k]); }
    return weights;
}

// Returns the weighted sum of each count of a kernel over the problems.
static emu::Meter combine(const std::vector<std::vector<emu::Meter>> &problems, size_t kernel,
                          const std::vector<double> &weights) {
    emu::Meter result;
    for (size_t i = 0; i < sizeof(result) / sizeof(uint64_t); i++) {
        double sum = 0.0;
        for (size_t problem = 0; problem < problems.size(); problem++) {
            sum += weights[problem] * (double)reinterpret_cast<const uint64_t *>(&problems[problem][kernel])[i];
        }
        reinterpret_cast<uint64_t *>(&result)[i] = (uint64_t)llround(fmax(0.0, sum));
    }
    return result;
}

// The bound at GPT-2's shape. small: the counts of problem 0.
static BoundSum bound_at_real_shape(const RealShape &real, const std::vector<emu::Meter> &small,
                                    const std::function<void()> &run) {
    BoundSum bound;
    if (small.empty()) { bound.add_ideal(real.bytes, real.flops); } // the library's
    std::vector<double> weights = weights_of_problems(real);
    std::vector<std::vector<emu::Meter>> problems = {small};
    while (problems.size() < weights.size()) {
        real.choose((int)problems.size());
        ladder_run(run);
        problems.push_back(ladder_meters());
        cuda_require(problems.back().size() == small.size());
    }
    real.choose(0);
    std::vector<emu::Meter> counts;
    for (size_t i = 0; i < small.size(); i++) {
        counts.push_back(combine(problems, i, weights));
        if (real.tiles_share_inputs) {
            counts[i].loads.unique_sectors = (uint64_t)(real.bytes / 32.0), counts[i].stores.unique_sectors = 0;
        }
    }
    bound.add(counts);
    return bound;
}

static Row ladder_row(const Layer &layer, const std::function<void()> &run) {
    emu::Meter m = emu::meter_of(NULL);
    double moved = 32.0 * (double)(m.loads.sectors + m.stores.sectors), flops = (double)(m.flops + m.tensor_flops);
    double requests = (double)(m.loads.requests + m.stores.requests), by_libraries = 0.0;
    double shared = (double)(m.shared_loads.requests + m.shared_stores.requests);
    std::vector<emu::Meter> meters = ladder_meters();
    BoundSum bound;
    bound.add(meters);
    uint64_t calls = m.launches;
    for (const std::string &name : emu::meter_libraries()) {
        emu::MeterLibrary l = emu::meter_of_library(name.c_str());
        by_libraries += (double)(l.loaded_bytes + l.stored_bytes);
        calls += l.calls;
        flops += l.flops;
        bound.add_ideal((double)(l.loaded_bytes + l.stored_bytes), l.flops);
    }
    Row row = {
        {ladder_cell("%.0f", (double)calls, true),
         ladder_cell("%.0f", (double)m.warps / (double)m.launches, m.launches > 0),
         ladder_cell("%.1f", moved / 32.0 / requests, requests > 0),
         ladder_cell("%.0f %%", 100.0 * (double)(m.loads.bytes + m.stores.bytes) / moved, requests > 0),
         ladder_cell("%.3g", (moved + by_libraries) / layer.bytes, true),
         ladder_cell("%.2f", (double)(m.shared_loads.wavefronts + m.shared_stores.wavefronts) / shared, shared > 0),
         ladder_cell("%.1f", (double)m.step_lanes / (double)m.steps, m.steps > 0),
         ladder_cell("%.3g", 1e-6 * flops, flops > 0), ladder_cell("%.3g", flops / (moved + by_libraries), flops > 0),
         bound.text("%.3f")},
        bound.seconds};
    BoundSum real;
    if (layer.real.name != "") { real = bound_at_real_shape(layer.real, meters, run); }
    row.cells.push_back(layer.real.name != "" ? real.text("%.1f") : "");
    return row;
}

#endif // ROW_METER_CUH
