// Sums up what meter.cpp has counted, finds the bound of a GPU, and prints the table at the end of the program:
// EMU_METER=1 each kernel, EMU_METER=lines also its source lines.
#include "meter.h"

#include "llmc/model/gpu_peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <mutex>

namespace emu {

static std::mutex counts_mutex;
static std::map<const void *, KernelCounts> &kernels() { // never destroyed: the table is printed at exit
    static auto *all = new std::map<const void *, KernelCounts>;
    return *all;
}
static std::map<std::string, MeterLibrary> &libraries() {
    static auto *all = new std::map<std::string, MeterLibrary>;
    return *all;
}

static MeterLibrary *operation; // the one that runs: the device's lock is held. null: it began without the meter

KernelCounts &counts_of_kernel(const Kernel &kernel) {
    std::lock_guard<std::mutex> guard(counts_mutex);
    KernelCounts &counts = kernels()[kernel.function];
    counts.name = kernel.name;
    return counts;
}

// The counts by name. A launch through a pointer has the pointer's name, so the names are those of the functions.
static std::map<std::string, const KernelCounts *> named_kernels() {
    std::vector<uintptr_t> functions;
    std::map<std::string, const KernelCounts *> named;
    for (const auto &entry : kernels()) { functions.push_back(reinterpret_cast<uintptr_t>(entry.first)); }
    std::map<uintptr_t, std::string> names = names_of_functions(functions);
    for (const auto &entry : kernels()) {
        const std::string &name = names[reinterpret_cast<uintptr_t>(entry.first)];
        named[name.empty() || name == "??" ? entry.second.name : name] = &entry.second;
    }
    return named;
}

void forget_counts() {
    std::lock_guard<std::mutex> guard(counts_mutex);
    kernels().clear();
    libraries().clear();
    operation = nullptr;
}

// ---- Sums ----

static void add_place(Meter *sum, const Place &place, const PlaceCounts &counts) {
    switch (place.kind) {
    case LOAD: add(&sum->loads, counts.memory); break;
    case STORE: add(&sum->stores, counts.memory); break;
    case SHARED_LOAD: add(&sum->shared_loads, counts.shared); break;
    case SHARED_STORE: add(&sum->shared_stores, counts.shared); break;
    case ATOMIC_UPDATE: add(&sum->atomics, counts.atomics); break;
    case SHARED_ATOMIC: add(&sum->shared_atomics, counts.atomics); break;
    case STEP:
        Arithmetic arithmetic = arithmetic_of_step(place.pc);
        sum->steps += counts.steps, sum->step_lanes += counts.step_lanes;
        sum->flops += counts.step_lanes * arithmetic.flops;
        sum->functions += counts.step_lanes * arithmetic.functions;
        break;
    }
}

static Meter meter_of_counts(const KernelCounts &counts) {
    Meter sum = counts.meter;
    for (const auto &entry : counts.places) { add_place(&sum, entry.first, entry.second); }
    return sum;
}

Meter meter_of(const char *kernel) {
    std::lock_guard<std::mutex> guard(counts_mutex);
    Meter sum = Meter();
    for (const auto &entry : kernels()) {
        if (kernel == nullptr) { add(&sum, meter_of_counts(entry.second)); }
    }
    if (kernel == nullptr) { return sum; }
    for (const auto &entry : named_kernels()) {
        const std::string &name = entry.first;
        if (name == kernel || name.substr(0, name.find('<')) == kernel) { add(&sum, meter_of_counts(*entry.second)); }
    }
    return sum;
}

// ---- Operations of libraries ----

void meter_operation(const char *name) {
    std::lock_guard<std::mutex> guard(counts_mutex);
    operation = nullptr;
    if (!metering) { return; }
    operation = &libraries()[name];
    operation->calls++;
}
void meter_operation_bytes(size_t bytes, bool stored) {
    if (metering && operation) { (stored ? operation->stored_bytes : operation->loaded_bytes) += bytes; }
}
void meter_operation_flops(double flops) {
    if (metering && operation) { operation->flops += flops; }
}

MeterLibrary meter_of_library(const char *function) {
    std::lock_guard<std::mutex> guard(counts_mutex);
    auto found = libraries().find(function);
    return found == libraries().end() ? MeterLibrary() : found->second;
}

template <class Entries> static std::vector<std::string> names_of(const Entries &entries) {
    std::vector<std::string> names;
    for (const auto &entry : entries) { names.push_back(entry.first); }
    return names;
}
std::vector<std::string> meter_kernels() {
    std::lock_guard<std::mutex> guard(counts_mutex);
    return names_of(named_kernels());
}
std::vector<std::string> meter_libraries() {
    std::lock_guard<std::mutex> guard(counts_mutex);
    return names_of(libraries());
}

// ---- The bound of a GPU ----

// In a clock: bytes that a multiprocessor takes from the L2 cache, bytes that the L2 cache gives (whitepaper of the
// A100), and special functions that a multiprocessor computes (CUDA programming guide).
constexpr double L2_BYTES = 64, ALL_L2_BYTES = 5120, FUNCTIONS = 16;
constexpr double COUNTED_SECTOR = SECTOR;
constexpr double LAUNCH_SECONDS = 2e-6; // from the end of a kernel to full speed of the next one

static const GpuPeak *find_gpu(const char *gpu) {
    const GpuPeak *peak = gpu_peak_of_device(gpu);
    if (peak == nullptr || peak->multiprocessors == 0) {
        report({nullptr, 0},
               format("unknown GPU \"%s\" for the meter, expected a short name of llmc/model/gpu_peak.h", gpu));
    }
    return peak;
}

MeterBound meter_bound(const Meter &m, const char *gpu) {
    const GpuPeak *peak = find_gpu(gpu);
    double fp32 = 1e12 * peak->teraflops[GPU_FP32], fp32_lanes = peak->capability == 80 ? 64 : 128;
    double clocks = fp32 / (2 * fp32_lanes); // of all multiprocessors together, a second
    double sectors = static_cast<double>(m.loads.sectors + m.stores.sectors);
    double unique = static_cast<double>(m.loads.unique_sectors + m.stores.unique_sectors);
    double wavefronts = static_cast<double>(m.shared_loads.wavefronts + m.shared_stores.wavefronts);
    double collisions = static_cast<double>(m.atomics.hottest + m.shared_atomics.hottest);
    const MeterBound parts[] = {
        {static_cast<double>(m.launches) * LAUNCH_SECONDS, "launch"},
        {COUNTED_SECTOR * unique / (1e9 * peak->gigabytes_per_second), "memory"},
        {COUNTED_SECTOR * sectors / (clocks * std::min(L2_BYTES, ALL_L2_BYTES / peak->multiprocessors)), "L2"},
        {wavefronts / clocks, "shared"},
        {static_cast<double>(m.flops) / fp32, "fp32"},
        {static_cast<double>(m.functions) / (FUNCTIONS * clocks), "functions"},
        {static_cast<double>(m.tensor_flops) / (1e12 * peak->teraflops[GPU_BF16]), "tensor"},
        {collisions * peak->multiprocessors / clocks, "atomics"},
    };
    auto longer = [](const MeterBound &a, const MeterBound &b) { return a.seconds < b.seconds; };
    return *std::max_element(std::begin(parts), std::end(parts), longer);
}

// ---- The table ----

static double ratio(uint64_t a, uint64_t b) { return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b); }

// A number in a column, or nothing where there was nothing to count.
static void cell(int width, const char *text, double value, bool is_there) {
    char number[64];
    snprintf(number, sizeof(number), text, value);
    fprintf(stderr, "%*s", width, is_there ? number : "");
}

static void print_kernel(const std::string &name, const Meter &m, const char *gpu) {
    SharedCounts shared = m.shared_loads;
    add(&shared, m.shared_stores);
    uint64_t requests = m.loads.requests + m.stores.requests;
    uint64_t moved = SECTOR * (m.loads.sectors + m.stores.sectors);
    MeterBound bound = meter_bound(m, gpu);
    fprintf(stderr, "%-34.34s%8llu%10llu", name.c_str(), static_cast<unsigned long long>(m.launches),
            static_cast<unsigned long long>(requests + shared.requests));
    for (const MemoryCounts *c : {&m.loads, &m.stores}) {
        cell(6, "%.1f", ratio(c->sectors, c->requests), c->requests > 0);
        cell(6, "%.0f%%", 100 * ratio(c->bytes, SECTOR * c->sectors), c->requests > 0);
    }
    cell(7, "%.2f", ratio(moved, m.loads.unique_bytes + m.stores.unique_bytes), requests > 0);
    cell(7, "%.2f", ratio(shared.wavefronts, shared.requests), shared.requests > 0);
    cell(7, "%.1f", ratio(m.step_lanes, m.steps), m.steps > 0);
    cell(9, "%.3f", 1e-6 * static_cast<double>(m.loads.unique_bytes + m.stores.unique_bytes), requests > 0);
    cell(10, "%.3g", 1e-6 * static_cast<double>(m.flops + m.tensor_flops), m.flops + m.tensor_flops > 0);
    fprintf(stderr, "%10.2f  %s\n", 1e6 * bound.seconds, bound.part);
}

static void print_kernels(const char *gpu) {
    fprintf(stderr, "emu: what the kernels did. The bound is that of %s (EMU_METER_GPU)\n", gpu);
    fprintf(stderr, "%34s%8s%10s%12s%12s%7s%7s%7s%9s\n", "", "", "", "loads", "stores", "moved/", "shared", "lanes",
            "needed");
    fprintf(stderr, "%-34s%8s%10s%6s%6s%6s%6s%7s%7s%7s%9s%10s%10s  %s\n", "kernel", "calls", "requests", "sect.",
            "used", "sect.", "used", "needed", "waves", "of 32", "MB", "MFLOP", "bound us", "by");
    for (const auto &entry : named_kernels()) { print_kernel(entry.first, meter_of_counts(*entry.second), gpu); }
    for (const auto &entry : libraries()) {
        const MeterLibrary &l = entry.second;
        fprintf(stderr, "%-34.34s%8llu%10s%12.3g MB%10.3g MB", entry.first.c_str(),
                static_cast<unsigned long long>(l.calls), "", 1e-6 * static_cast<double>(l.loaded_bytes),
                1e-6 * static_cast<double>(l.stored_bytes));
        if (l.flops > 0) { cell(34, "%.3g", 1e-6 * l.flops, true); }
        fprintf(stderr, "\n");
    }
}

// ---- Source lines ----

struct LineCounts {
    std::string line;
    PlaceKind kind;
    int bytes;
    PlaceCounts counts;
};

static const char *const kind_names[] = {"load", "store", "shared load", "shared store", "atomic", "shared atomic"};

// What costs most comes first: bytes that are moved to or from memory, or wavefronts, or lanes at atomics.
static uint64_t cost(const PlaceCounts &c) { return c.memory.sectors + c.shared.wavefronts + c.atomics.lanes; }

static void print_lines(const KernelCounts &kernel) {
    std::vector<uintptr_t> pcs;
    for (const auto &entry : kernel.places) { pcs.push_back(entry.first.pc); }
    std::map<uintptr_t, std::string> text = lines_of_pcs(pcs);
    std::vector<LineCounts> lines;
    for (const auto &entry : kernel.places) {
        if (entry.first.kind != STEP) {
            lines.push_back({text[entry.first.pc], entry.first.kind, entry.first.bytes, entry.second});
        }
    }
    auto dearer = [](const LineCounts &a, const LineCounts &b) { return cost(a.counts) > cost(b.counts); };
    std::stable_sort(lines.begin(), lines.end(), dearer);
    for (const LineCounts &l : lines) {
        const PlaceCounts &c = l.counts;
        uint64_t requests = c.memory.requests + c.shared.requests + c.atomics.requests;
        uint64_t lanes = c.memory.lanes + c.shared.lanes + c.atomics.lanes;
        fprintf(stderr, "  %-13s of %2d bytes: %8llu requests, %4.1f lanes, ", kind_names[l.kind], l.bytes,
                static_cast<unsigned long long>(requests), ratio(lanes, requests));
        if (c.memory.requests > 0) {
            fprintf(stderr, "%4.1f sectors, %3.0f%% used, %3.0f%% aligned", ratio(c.memory.sectors, requests),
                    100 * ratio(c.memory.bytes, SECTOR * c.memory.sectors), 100 * ratio(c.memory.aligned, requests));
        } else if (c.shared.requests > 0) {
            fprintf(stderr, "%4.1f wavefronts, %4.1f conflicts", ratio(c.shared.wavefronts, requests),
                    ratio(c.shared.conflicts, requests));
        } else {
            fprintf(stderr, "%4.1f addresses", ratio(c.atomics.addresses, requests));
        }
        fprintf(stderr, "  %s\n", l.line.c_str());
    }
}

static void print_at_exit() {
    metering = false;
    fflush(stdout);
    const char *gpu = getenv("EMU_METER_GPU") ? getenv("EMU_METER_GPU") : "h100";
    print_kernels(gpu);
    if (strcmp(getenv("EMU_METER"), "lines") != 0) { return; }
    for (const auto &entry : named_kernels()) {
        fprintf(stderr, "\n%s\n", entry.first.c_str());
        print_lines(*entry.second);
    }
}

static const bool asked = [] {
    const char *wish = getenv("EMU_METER");
    if (wish == nullptr || strcmp(wish, "0") == 0) { return false; }
    if (strcmp(wish, "1") != 0 && strcmp(wish, "lines") != 0) {
        report({nullptr, 0}, format("EMU_METER is \"%s\", expected 0, 1 or lines", wish));
    }
    find_gpu(getenv("EMU_METER_GPU") ? getenv("EMU_METER_GPU") : "h100");
    meter_start();
    atexit(print_at_exit);
    return true;
}();

} // namespace emu
