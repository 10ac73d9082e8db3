// What the parts of the meter share: meter.cpp counts, meter_report.cpp sums up and prints.
#ifndef EMU_METER_H
#define EMU_METER_H

#include "runtime.h"
#include "include/emu.h"

#include <map>
#include <type_traits>

namespace emu {

constexpr uintptr_t SECTOR = 32; // bytes that memory moves at once

enum PlaceKind { LOAD, STORE, SHARED_LOAD, SHARED_STORE, ATOMIC_UPDATE, SHARED_ATOMIC, STEP };

// An instruction of the program that the meter sees: an access of one kind and size, or the start of a basic block.
struct Place {
    uintptr_t pc; // the address behind it
    PlaceKind kind;
    int bytes; // of a lane
    bool operator==(const Place &p) const { return pc == p.pc && kind == p.kind && bytes == p.bytes; }
    bool operator<(const Place &p) const { // places of one instruction lie side by side
        return pc != p.pc ? pc < p.pc : kind != p.kind ? kind < p.kind : bytes < p.bytes;
    }
};

struct PlaceCounts { // only what its kind of place has
    MemoryCounts memory;
    SharedCounts shared;
    AtomicCounts atomics;
    uint64_t steps, step_lanes;
    bool is_empty() const { return memory.requests + shared.requests + atomics.requests + steps == 0; }
};

struct KernelCounts {
    const char *name; // as the launch has it
    Meter meter;      // without what the places have counted
    std::map<Place, PlaceCounts> places;
};

// All counts are numbers of 64 bits.
template <class Counts> void add(Counts *sum, const Counts &more) {
    static_assert(std::is_trivially_copyable<Counts>::value && sizeof(Counts) % sizeof(uint64_t) == 0, "");
    uint64_t *to = reinterpret_cast<uint64_t *>(sum);
    const uint64_t *from = reinterpret_cast<const uint64_t *>(&more);
    for (size_t i = 0; i < sizeof(Counts) / sizeof(uint64_t); i++) { to[i] += from[i]; }
}

KernelCounts &counts_of_kernel(const Kernel &kernel);
void forget_counts();

// The arithmetic of a basic block, for one lane.
struct Arithmetic {
    uint64_t flops, functions;
};
Arithmetic arithmetic_of_step(uintptr_t pc);

} // namespace emu

#endif // EMU_METER_H
