// The shadow memory: what the emulator knows of each byte of the arenas. It lies at fixed addresses, so finding the
// shadow of an address takes one shift.
//
//   bits     a bit for each byte: it has been written since it was allocated (so it also lies in an allocation)
//   writes   for each 2 bytes, the stamp of the last write
//   reads    for each 2 bytes, the stamp of the first reader that is not ordered before, and whether others followed
//
// A stamp says who accessed the bytes, and when:  interval 27 | thread 10 | instruction 22 | bytes 2 | others 3.
// Intervals only grow, so "before the last barrier" is one comparison of two stamps.
#ifndef EMU_ACCESS_H
#define EMU_ACCESS_H

#include "runtime.h"

namespace emu {

constexpr uintptr_t SHADOW_BITS = 0x300000000000;
constexpr uintptr_t SHADOW_WRITES = 0x310000000000;
constexpr uintptr_t SHADOW_READS = 0x320000000000;

constexpr int STAMP_INTERVAL = 37, STAMP_THREAD = 27, STAMP_PC = 5; // the lowest bits
constexpr uint64_t STAMP_BYTES = 3 << 3;                            // low, high; none: an atomic access of both bytes
constexpr uint64_t STAMP_OTHER_LANES = 1, STAMP_OTHER_WARPS = 2, STAMP_OTHER_BLOCKS = 4;
constexpr uint64_t STAMP_OTHERS = 7;
constexpr uint32_t INTERVALS = 1u << 27;
constexpr uint32_t CHUNK_INTERVALS = 16; // taken at once

inline uint32_t interval_of(uint64_t stamp) { return static_cast<uint32_t>(stamp >> STAMP_INTERVAL); }
inline int thread_of(uint64_t stamp) { return static_cast<int>(stamp >> STAMP_THREAD & 1023); }
inline bool same_time_and_thread(uint64_t a, uint64_t b) { return (a ^ b) >> STAMP_THREAD == 0; }

extern "C" char __executable_start[];
inline uint64_t stamp_of_pc(uintptr_t pc) {
    uintptr_t offset = pc - reinterpret_cast<uintptr_t>(__executable_start);
    return offset < 1u << 22 ? static_cast<uint64_t>(offset) << STAMP_PC : 0;
}
inline uintptr_t pc_of_stamp(uint64_t stamp) {
    uintptr_t offset = stamp >> STAMP_PC & ((1u << 22) - 1);
    return offset ? reinterpret_cast<uintptr_t>(__executable_start) + offset : 0;
}

inline uint8_t *shadow_bits(uintptr_t address) {
    return reinterpret_cast<uint8_t *>(SHADOW_BITS + (address - ARENA) / 8);
}
inline uint64_t *shadow_write(uintptr_t address) {
    return reinterpret_cast<uint64_t *>(SHADOW_WRITES + (address - ARENA) / 2 * 8);
}
inline uint64_t *shadow_read(uintptr_t address) {
    return reinterpret_cast<uint64_t *>(SHADOW_READS + (address - ARENA) / 2 * 8);
}
// Several workers use the shadow without locks. A lost update may hide one race, and does no other harm.
inline uint64_t load(const uint64_t *stamp) { return __atomic_load_n(stamp, __ATOMIC_RELAXED); }
inline void store(uint64_t *stamp, uint64_t value) { __atomic_store_n(stamp, value, __ATOMIC_RELAXED); }

struct ChunkOwner {
    uint32_t operation, block;
};
ChunkOwner owner_of(uint64_t stamp);                          // of its interval
uintptr_t first_uninitialised(uintptr_t begin, size_t bytes); // the end if there is none

struct Access {
    uintptr_t address, bytes;
    AccessKind kind;
    uintptr_t pc;
    const Source *at; // set if the line is known better than by the pc
};

// The slow parts, in access.cpp.
void access_elsewhere(const Access &access);     // not in the arenas
void access_by_host(const Access &access);       // in the arenas, by host code
void access_uninitialised(const Access &access); // not all bits are set
void access_conflict(const Access &access, uint64_t earlier, bool earlier_wrote, uintptr_t granule);
void merge_reader(uint64_t *reads, uint64_t mine);
void access_any_size(const Access &access); // in the arenas, by a kernel

// Nothing more to note: readers like this one have been seen. Accesses of one interval are of one block and unordered.
inline bool is_known_reader(uint64_t reads, uint64_t mine) {
    if (reads & STAMP_OTHER_BLOCKS) { return true; }
    bool same_interval = (reads ^ mine) >> STAMP_INTERVAL == 0, same_warp = (reads ^ mine) >> (STAMP_THREAD + 5) == 0;
    bool noted = (reads & (same_warp ? STAMP_OTHER_LANES : STAMP_OTHER_WARPS)) != 0;
    return same_interval && noted && (reads & mine & STAMP_BYTES) != 0;
}

inline bool is_own_stack(uintptr_t address) { return address - now.stack < STACK_BYTES; }

template <int BYTES> inline bool all_initialised(uintptr_t address) {
    const uint8_t *bits = shadow_bits(address);
    if (BYTES == 16) { return *reinterpret_cast<const uint16_t *>(bits) == 0xffff; }
    constexpr unsigned all = (1u << (BYTES < 16 ? BYTES : 0)) - 1;
    return (*bits >> (address & 7) & all) == all;
}

// Checks an aligned access of BYTES bytes by the running kernel thread to its own part of the arenas.
template <int BYTES, AccessKind KIND> inline void check_aligned(uintptr_t address, uintptr_t pc, const Source *at) {
    if (__builtin_expect(!all_initialised<BYTES>(address), 0)) { access_uninitialised({address, BYTES, KIND, pc, at}); }
    uint64_t order = address - SHARED < SHARED_SPAN ? now.order_shared : now.order_global;
    uint64_t bytes = BYTES == 1 ? (address & 1 ? 2 << 3 : 1 << 3) : STAMP_BYTES;
    uint64_t mine = now.me | stamp_of_pc(pc) | bytes;
    uint64_t *writes = shadow_write(address), *reads = shadow_read(address);
    for (int i = 0; i < (BYTES + 1) / 2; i++) {
        uint64_t w = load(&writes[i]), r = load(&reads[i]);
        if (w >= order && !same_time_and_thread(w, mine)) {
            access_conflict({address, BYTES, KIND, pc, at}, w, true, address + 2 * static_cast<uintptr_t>(i));
        }
        if (KIND == READ) {
            if (r < order) {
                store(&reads[i], mine);
            } else if (!same_time_and_thread(r, mine) && !is_known_reader(r, mine)) {
                merge_reader(&reads[i], mine);
            }
        } else {
            if (r >= order && (!same_time_and_thread(r, mine) || (r & STAMP_OTHERS))) {
                access_conflict({address, BYTES, KIND, pc, at}, r, false, address + 2 * static_cast<uintptr_t>(i));
            }
            store(&writes[i], mine);
        }
    }
}

// Is this the device's memory, or the shared memory of the running block?
inline bool is_own_arena(uintptr_t address) {
    return address < SHARED || address - reinterpret_cast<uintptr_t>(now.block->shared) < SHARED_WINDOW;
}

// The hook of an access.
template <int BYTES, AccessKind KIND> inline void check_access(const void *pointer, uintptr_t pc) {
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (__builtin_expect(metering, 0)) { meter_access(address, BYTES, KIND, pc); }
    if (!access_checks) { return; }
    if (address - ARENA >= ARENA_SPAN) {
        if (in_kernel() && !is_own_stack(address)) { access_elsewhere({address, BYTES, KIND, pc, nullptr}); }
        return;
    }
    if (!in_kernel()) {
        access_by_host({address, BYTES, KIND, pc, nullptr});
    } else if (address % BYTES == 0 && is_own_arena(address)) {
        check_aligned<BYTES, KIND>(address, pc, nullptr);
    } else {
        access_any_size({address, BYTES, KIND, pc, nullptr});
    }
}

void check_any_access(const Access &access);
void check_arrival(const Access &access); // of bytes whose access was counted when it was asked for

} // namespace emu

#endif // EMU_ACCESS_H
