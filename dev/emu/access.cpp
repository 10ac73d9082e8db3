// Finishes the check of a load or store that access.h could not decide: does what an unusual access needs, and reports
// mistakes.
#include "access.h"
#include "memory.h"

namespace emu {

extern "C" __attribute__((weak)) char __start_emu_device[], __stop_emu_device[];
extern "C" char __data_start[];

static bool is_between(const void *p, const char *begin, const char *end) {
    return begin && static_cast<const char *>(p) >= begin && static_cast<const char *>(p) < end;
}

bool is_device_data(const void *pointer) {
    return in_device_arena(pointer) || is_between(pointer, __start_emu_device, __stop_emu_device);
}

// ---- Reports ----

[[noreturn]] static void report_access(const Access &access, const std::string &what, const std::string &details) {
    if (access.at) { report(*access.at, what, details); }
    report_pc(access.pc, what, details);
}

static const char *verb(AccessKind kind) { return kind == READ ? "read" : kind == WRITE ? "write" : "atomic access"; }

static const char *place(uintptr_t address) {
    if (address >= SHARED) { return "shared memory"; }
    if (address < PINNED) { return "device memory"; }
    return is_managed(reinterpret_cast<const void *>(address)) ? "managed memory" : "pinned host memory";
}

static std::string size_text(const Access &access) {
    return format("%s of %zu byte%s", verb(access.kind), access.bytes, access.bytes == 1 ? "" : "s");
}

static std::string describe_shared(uintptr_t address) {
    const Block *block = now.block;
    size_t offset = address - reinterpret_cast<uintptr_t>(block->shared);
    std::string text =
        format("  byte %zu of the block's shared memory: %zu bytes are dynamic", offset, block->kernel->dynamic_bytes);
    for (const SharedVariable &v : block->variables) {
        if (offset >= v.offset && offset < v.offset + v.bytes) {
            return format("  byte %zu of the shared variable %s of %u bytes", offset - v.offset, v.name, v.bytes);
        }
        text += format(", bytes %u to %u are %s", v.offset, v.offset + v.bytes - 1, v.name);
    }
    return offset < block->kernel->dynamic_bytes
               ? format("  byte %zu of the %zu bytes of dynamic shared memory", offset, block->kernel->dynamic_bytes)
               : text;
}

static std::string describe(uintptr_t address) {
    return address >= SHARED ? describe_shared(address) : describe_address(address);
}

// The index of a thread in its block, or of a block in its grid.
static uint3 index_of(unsigned n, dim3 size) { return {n % size.x, n / size.x % size.y, n / size.x / size.y}; }

// ---- Bounds ----

static bool is_in_shared_variable(uintptr_t begin, size_t bytes) {
    const Block *block = now.block;
    size_t offset = begin - reinterpret_cast<uintptr_t>(block->shared), end = offset + bytes;
    if (end <= block->kernel->dynamic_bytes) { return true; }
    for (const SharedVariable &v : block->variables) {
        if (offset >= v.offset && end <= v.offset + v.bytes) { return true; }
    }
    return false;
}

static bool is_in_allocation(uintptr_t begin, size_t bytes) {
    static __thread uintptr_t known_begin, known_end; // the allocation found last
    static __thread uint64_t known_at;
    uint64_t version = allocations_version();
    if (known_at == version && begin >= known_begin && begin + bytes <= known_end) { return true; }
    const Allocation *a = (begin >= PINNED ? pinned_heap() : device_heap()).nearest(begin);
    if (a == nullptr || !a->live || begin < a->begin || begin + bytes > a->begin + a->bytes) { return false; }
    known_begin = a->begin, known_end = a->begin + a->bytes, known_at = version;
    return true;
}

static bool is_in_bounds(uintptr_t begin, size_t bytes) {
    return begin >= SHARED ? is_in_shared_variable(begin, bytes) : is_in_allocation(begin, bytes);
}

static void check_bounds(const Access &access) {
    if (is_in_bounds(access.address, access.bytes)) { return; }
    if (access.address >= SHARED && access.address - reinterpret_cast<uintptr_t>(now.block->shared) >= SHARED_WINDOW) {
        report_access(access, size_text(access) + " in the shared memory of another block", "");
    }
    report_access(access, format("out of bounds: ") + size_text(access) + " in " + place(access.address),
                  describe(access.address));
}

void access_uninitialised(const Access &access) {
    check_bounds(access);
    if (access.kind == WRITE) {
        set_initialised(reinterpret_cast<void *>(access.address), access.bytes, true);
        return;
    }
    uintptr_t at = first_uninitialised(access.address, access.bytes);
    report_access(access, format("uninitialised memory: ") + size_text(access) + " in " + place(access.address),
                  describe(at));
}

// ---- Conflicts ----

static const char *past(bool wrote) { return wrote ? "wrote" : "read"; }

[[noreturn]] static void report_race(const Access &access, uint64_t earlier, bool earlier_wrote, uint32_t other_block,
                                     const char *missing) {
    const Kernel *kernel = now.block->kernel;
    bool others = !earlier_wrote && thread_of(earlier) == now.thread->number && other_block == now.block->number;
    report_access(access, format("race in %s: ", place(access.address)) + size_text(access),
                  format("  %sthread %s of block %s %s it at %s, and %s\n", others ? "another thread and " : "",
                         to_text(index_of(static_cast<unsigned>(thread_of(earlier)), kernel->block)).c_str(),
                         to_text(index_of(other_block, kernel->grid)).c_str(), past(earlier_wrote),
                         line_of_pc(pc_of_stamp(earlier)).c_str(), missing) +
                      describe(access.address));
}

// here: "this kernel", or the name of the operation.
[[noreturn]] static void report_unordered(const Access &access, const Operation &other, uint64_t earlier,
                                          bool earlier_wrote, const char *here) {
    std::string what = format("unsynchronised use across streams: ") + size_text(access);
    if (access.pc == 0) { what += format(" by %s", here); }
    std::string where = pc_of_stamp(earlier) ? " (at " + line_of_pc(pc_of_stamp(earlier)) + ")" : "";
    report_access(access, what + " in " + place(access.address),
                  format("  %s %s in %s, called at %s, %s it%s, and nothing orders it before %s\n", other.kind,
                         other.name, stream_text(other.stream).c_str(), to_text(other.at).c_str(), past(earlier_wrote),
                         where.c_str(), here) +
                      describe(access.address));
}

static bool same_warp(int a, int b) { return a / WARP_LANES == b / WARP_LANES; }

// Within the block: a barrier orders all of its threads, and __syncwarp orders the threads of a warp.
static bool is_ordered_in_block(uint64_t earlier) {
    uint32_t interval = interval_of(earlier);
    if (interval < now.block_since) { return true; }
    if (earlier & STAMP_OTHER_WARPS) { return false; }
    if (same_warp(thread_of(earlier), now.thread->number) && interval < now.thread->warp_since) { return true; }
    return thread_of(earlier) == now.thread->number && !(earlier & STAMP_OTHER_LANES);
}

static bool touches_same_bytes(const Access &access, uint64_t earlier, uintptr_t granule) {
    uint64_t bytes = earlier & STAMP_BYTES;
    if (bytes == 0 || bytes == STAMP_BYTES) { return true; }
    uintptr_t byte = granule / 2 * 2 + (bytes == 2 << 3);
    return byte >= access.address && byte < access.address + access.bytes;
}

// The bytes were accessed before, and no comparison of numbers has shown that this is harmless.
void access_conflict(const Access &access, uint64_t earlier, bool earlier_wrote, uintptr_t granule) {
    bool same_block = (earlier ^ now.me) >> STAMP_INTERVAL < CHUNK_INTERVALS; // in one chunk
    if (same_block && is_ordered_in_block(earlier)) { return; }
    bool both_atomic = access.kind == ATOMIC && earlier_wrote && (earlier & STAMP_BYTES) == 0;
    if (both_atomic || !touches_same_bytes(access, earlier, granule)) { return; }
    ChunkOwner owner = owner_of(earlier);
    const Kernel *kernel = now.block->kernel;
    if (access.address >= SHARED) { owner = {kernel->operation, static_cast<uint32_t>(now.block->number)}; }
    if (owner.operation != kernel->operation) {
        const Operation *other = unordered_operation(owner.operation, false);
        if (other) { report_unordered(access, *other, earlier, earlier_wrote, "this kernel"); }
        return;
    }
    if (is_published(owner.block, earlier)) { return; }
    bool other_block = owner.block != static_cast<uint32_t>(now.block->number) || (earlier & STAMP_OTHER_BLOCKS);
    if (other_block) {
        report_race(access, earlier, earlier_wrote, owner.block, "nothing orders the blocks of a launch");
    }
    if (!is_ordered_in_block(earlier)) {
        bool warp = same_warp(thread_of(earlier), now.thread->number);
        report_race(access, earlier, earlier_wrote, owner.block,
                    warp ? "no __syncwarp or __syncthreads is in between" : "no __syncthreads is in between");
    }
}

// Another thread has read the bytes too. The stamp must suffice to find a later write that is not ordered after all
// readers.
void merge_reader(uint64_t *reads, uint64_t mine) {
    uint64_t earlier = load(reads), flag = 0;
    if (earlier & STAMP_OTHER_BLOCKS) { return; }
    ChunkOwner owner = owner_of(earlier);
    const Kernel *kernel = now.block->kernel;
    if (owner.operation == kernel->operation && is_published(owner.block, earlier)) {
        flag = 0;
    } else if (owner.operation == kernel->operation && owner.block != static_cast<uint32_t>(now.block->number)) {
        flag = STAMP_OTHER_BLOCKS;
    } else if (owner.operation == kernel->operation && !is_ordered_in_block(earlier)) {
        flag = same_warp(thread_of(earlier), now.thread->number) ? STAMP_OTHER_LANES : STAMP_OTHER_WARPS;
    }
    bool same_bytes = (earlier & mine & STAMP_BYTES) != 0 || (earlier & STAMP_BYTES) == 0;
    if (flag == 0 || !same_bytes) { // ordered before, or other bytes: only one reader can be kept
        store(reads, mine);
    } else if ((earlier & flag) == 0) {
        store(reads, earlier | flag);
    }
}

// ---- Accesses by the kernel that are not aligned, or of any size; and atomics ----

void access_any_size(const Access &access) {
    if (access.address >= SHARED && access.address - reinterpret_cast<uintptr_t>(now.block->shared) >= SHARED_WINDOW) {
        report_access(access, size_text(access) + " in the shared memory of another block", "");
    }
    if (first_uninitialised(access.address, access.bytes) < access.address + access.bytes) {
        access_uninitialised(access);
    }
    uint64_t order = access.address >= SHARED ? now.order_shared : now.order_global;
    uintptr_t end = access.address + access.bytes;
    for (uintptr_t granule = access.address & ~uintptr_t(1); granule < end; granule += 2) {
        uint64_t bytes = (granule >= access.address ? 1 << 3 : 0) | (granule + 1 < end ? 2 << 3 : 0);
        uint64_t mine = now.me | stamp_of_pc(access.pc) | (access.kind == ATOMIC ? 0 : bytes);
        uint64_t *writes = shadow_write(granule), *reads = shadow_read(granule), w = load(writes), r = load(reads);
        if (w >= order && !same_time_and_thread(w, mine)) { access_conflict(access, w, true, granule); }
        if (access.kind == READ) {
            if (r < order) {
                store(reads, mine);
            } else if (!same_time_and_thread(r, mine)) {
                merge_reader(reads, mine);
            }
            continue;
        }
        if (r >= order && (!same_time_and_thread(r, mine) || (r & STAMP_OTHERS))) {
            access_conflict(access, r, false, granule);
        }
        store(writes, mine);
    }
}

void check_any_access(const Access &access) {
    if (metering) { meter_access(access.address, access.bytes, access.kind, access.pc); }
    check_arrival(access);
}

void check_arrival(const Access &access) {
    if (access.bytes == 0 || !access_checks) { return; }
    if (access.address - ARENA >= ARENA_SPAN) {
        if (in_kernel() && !is_own_stack(access.address)) { access_elsewhere(access); }
    } else if (!in_kernel()) {
        access_by_host(access);
    } else if (access.bytes == 16 && access.kind == READ && access.address % 16 == 0 && is_own_arena(access.address)) {
        check_aligned<16, READ>(access.address, access.pc, access.at); // the most frequent ones, by __ldg and the like
    } else if (access.bytes == 16 && access.kind == WRITE && access.address % 16 == 0 && is_own_arena(access.address)) {
        check_aligned<16, WRITE>(access.address, access.pc, access.at);
    } else {
        access_any_size(access);
    }
}

static bool is_other_stack(uintptr_t address) {
    for (int t = 0; t < now.block->thread_count; t++) {
        if (stack_holds(now.block->threads[t].stack, address)) { return true; }
    }
    return false;
}

void access_elsewhere(const Access &access) {
    const void *pointer = reinterpret_cast<const void *>(access.address);
    if (reporting || is_between(pointer, __start_emu_device, __stop_emu_device)) { return; }
    const char *arguments = static_cast<const char *>(now.block->kernel->call); // copied from here by clang++ -O0
    if (is_between(pointer, arguments, arguments + now.block->kernel->call_bytes)) { return; }
    bool constant = is_between(pointer, __executable_start, __data_start);
    if (constant && access.kind == READ) { return; }
    if (is_other_stack(access.address)) {
        report_access(access, size_text(access) + " in a local variable of another thread", "");
    }
    report_access(access, format("kernel dereferences host memory: ") + size_text(access),
                  format("  address 0x%zx is no device, pinned or shared memory", access.address));
}

// ---- Host code ----

void access_by_host(const Access &access) {
    if (access.address < PINNED || access.address >= SHARED) {
        report_access(access, format("host code dereferences ") + place(access.address) + ": " + size_text(access),
                      access.address >= SHARED ? "" : describe_address(access.address));
    }
    check_bounds(access);
    uintptr_t end = access.address + access.bytes;
    for (uintptr_t granule = access.address & ~uintptr_t(1); granule < end; granule += 2) {
        for (int wrote = 0; wrote < 2; wrote++) {
            uint64_t earlier = load(wrote ? shadow_write(granule) : shadow_read(granule));
            bool conflict = earlier >= host_order && (wrote || access.kind != READ);
            if (!conflict || !touches_same_bytes(access, earlier, granule)) { continue; }
            uint32_t number = owner_of(earlier).operation;
            const Operation *other = unordered_operation(number, true);
            if (other) { report_unordered(access, *other, earlier, wrote, "this host code"); }
        }
    }
}

// ---- Operations of the runtime: copies, fills, cuBLASLt ----

static Access operation_access(const void *pointer, size_t bytes, AccessKind kind) {
    return {reinterpret_cast<uintptr_t>(pointer), bytes, kind, 0, &current_operation()->at};
}

static std::string by_operation(const Access &access) { return size_text(access) + " by " + current_operation()->name; }

// Returns false if the access is in a __device__ variable, which needs no check.
static bool check_operation_bounds(const Access &access) {
    const void *pointer = reinterpret_cast<const void *>(access.address);
    if (is_between(pointer, __start_emu_device, __stop_emu_device) || access.bytes == 0) { return false; }
    if (access.address - ARENA >= SHARED - ARENA) {
        report(*access.at, by_operation(access) + " in memory that is not on the device",
               format("  address 0x%zx", access.address));
    }
    if (!is_in_allocation(access.address, access.bytes)) {
        report(*access.at, "out of bounds: " + by_operation(access) + " in " + place(access.address),
               describe_address(access.address));
    }
    return access_checks;
}

static void check_operation_stamps(const Access &access, uint64_t me, uint64_t order) {
    uintptr_t end = access.address + access.bytes;
    for (uintptr_t granule = access.address & ~uintptr_t(1); granule < end; granule += 2) {
        uint64_t *writes = shadow_write(granule), *reads = shadow_read(granule);
        for (int wrote = access.kind == READ; wrote < 2; wrote++) { // a read conflicts with writes only
            uint64_t earlier = load(wrote ? writes : reads);
            bool after = earlier >= order && !same_time_and_thread(earlier, me);
            if (!after || !touches_same_bytes(access, earlier, granule)) { continue; }
            uint32_t number = owner_of(earlier).operation;
            const Operation *other = unordered_operation(number, false);
            if (other) { report_unordered(access, *other, earlier, wrote, current_operation()->name); }
        }
        uint64_t bytes = (granule >= access.address ? 1 << 3 : 0) | (granule + 1 < end ? 2 << 3 : 0);
        store(access.kind == READ ? reads : writes, me | bytes);
    }
}

void check_operation_read(const void *pointer, size_t bytes, uint64_t me, uint64_t order) {
    Access access = operation_access(pointer, bytes, READ);
    if (!check_operation_bounds(access)) { return; }
    uintptr_t at = first_uninitialised(access.address, bytes);
    if (at < access.address + bytes && !current_operation_copies()) {
        report(*access.at, "uninitialised memory: " + by_operation(access) + " in " + place(at), describe_address(at));
    }
    check_operation_stamps(access, me, order);
}

void check_operation_write(void *pointer, size_t bytes, uint64_t me, uint64_t order) {
    Access access = operation_access(pointer, bytes, WRITE);
    if (!check_operation_bounds(access)) { return; }
    check_operation_stamps(access, me, order);
    set_initialised(pointer, bytes, true);
}

// cudaFree waits for the default stream and for the streams that synchronise with it. Other streams may still use the
// memory.
void check_free(uintptr_t begin, size_t bytes, const char *function, Source at) {
    wait_for_stream(nullptr);
    for (uintptr_t granule = begin; access_checks && host_is_behind() && granule < begin + bytes; granule += 2) {
        for (int wrote = 0; wrote < 2; wrote++) {
            uint64_t earlier = load(wrote ? shadow_write(granule) : shadow_read(granule));
            if (earlier < host_order || earlier == 0) { continue; }
            uint32_t number = owner_of(earlier).operation;
            const Operation *other = unordered_operation(number, true);
            if (!other) { continue; }
            report(at, std::string(function) + " of memory that is still in use",
                   format("  %s %s in %s, called at %s, %s it, and nothing has waited for it\n", other->kind,
                          other->name, stream_text(other->stream).c_str(), to_text(other->at).c_str(), past(wrote)) +
                       describe_address(granule));
        }
    }
}

// ---- For code of the emulator that accesses memory on behalf of a thread ----

void check_access_at(const void *pointer, size_t bytes, size_t align, AccessKind kind, Source at, uintptr_t pc) {
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (address % align) {
        report(at, format("misaligned %s of %zu bytes at 0x%zx, expected a multiple of %zu", verb(kind), bytes, address,
                          align));
    }
    check_any_access({address, bytes, kind, pc, &at});
}

void check_read(const void *pointer, size_t bytes, size_t align, const char *file, int line) {
    check_access_at(pointer, bytes, align, READ, {file, line}, EMU_CALLER);
}
void check_write(void *pointer, size_t bytes, size_t align, const char *file, int line) {
    check_access_at(pointer, bytes, align, WRITE, {file, line}, EMU_CALLER);
}

} // namespace emu
