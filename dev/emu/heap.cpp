// Hands out device, pinned and shared memory from arenas: ranges of addresses that are reserved once. Addresses of
// freed memory are never used again, so a stale pointer is always recognised. Keeps what is known of each byte: whether
// it is initialised, and the intervals of its accesses.
#include "access.h"
#include "memory.h"
#include "include/emu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#if EMU_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, bytes) ((void)(begin), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(begin, bytes) ((void)(begin), (void)(bytes))
#endif

namespace emu {

static std::atomic<int64_t> allocations;
static std::atomic<uint64_t> version{1};
uint64_t allocations_version() { return version.load(std::memory_order_relaxed); }
int64_t allocation_count() { return allocations.load(); }

// ---- Intervals ----

static ChunkOwner *chunk_owners; // [INTERVALS / CHUNK_INTERVALS]
static std::atomic<uint32_t> next_chunk{1};

uint64_t stamp_of_interval(uint32_t interval) { return static_cast<uint64_t>(interval) << STAMP_INTERVAL; }

uint32_t take_intervals(uint32_t operation, uint32_t block) {
    if (!access_checks) { return CHUNK_INTERVALS; }
    uint32_t chunk = next_chunk++;
    if (chunk >= INTERVALS / CHUNK_INTERVALS) {
        report({nullptr, 0}, "too many blocks and barriers in one launch for the access checks", "  set EMU_CHECK=0");
    }
    chunk_owners[chunk] = {operation, block};
    return chunk * CHUNK_INTERVALS;
}

ChunkOwner owner_of(uint64_t stamp) { return chunk_owners[interval_of(stamp) / CHUNK_INTERVALS]; }

void begin_interval() {
    if (!access_checks) { return; }
    if (++now.interval % CHUNK_INTERVALS == 0) {
        now.interval = take_intervals(now.block->kernel->operation, static_cast<uint32_t>(now.block->number));
    }
    now.me = stamp_of_interval(now.interval) | static_cast<uint64_t>(now.thread->number) << STAMP_THREAD;
}

void renew_intervals() {
    if (next_chunk < INTERVALS / CHUNK_INTERVALS / 2) { return; }
    madvise(reinterpret_cast<void *>(SHADOW_WRITES), ARENA_SPAN * 4, MADV_REMOVE);
    madvise(reinterpret_cast<void *>(SHADOW_READS), ARENA_SPAN * 4, MADV_REMOVE);
    next_chunk = 1;
}

#ifdef EMU_ASAN
void reserve_shadows() {}
#else
// Uses small pages. The stamps of an array take eight times its bytes, and most of a huge page would be cleared in
// vain. MAP_SHARED: a page of private memory that is read before it is written takes a second fault, which interrupts
// all cores of the process. No child process uses them: a fork before an exec is all that CUDA allows.
static void *reserve_shadow(uintptr_t at, size_t bytes) {
    void *want = reinterpret_cast<void *>(at);
    void *got = mmap(want, bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);
    if (got == MAP_FAILED || (at && got != want)) {
        report({nullptr, 0}, "cannot reserve addresses for the access checks", "  see ulimit -v, or set EMU_CHECK=0");
    }
    return got;
}

void reserve_shadows() {
    const char *wish = getenv("EMU_CHECK");
    if (wish && strcmp(wish, "0") == 0) { return; }
    reserve_shadow(SHADOW_BITS, ARENA_SPAN / 8);
    reserve_shadow(SHADOW_WRITES, ARENA_SPAN * 4);
    reserve_shadow(SHADOW_READS, ARENA_SPAN * 4);
    chunk_owners = static_cast<ChunkOwner *>(reserve_shadow(0, INTERVALS / CHUNK_INTERVALS * sizeof(ChunkOwner)));
    access_checks = true;
}
#endif

// ---- Initialised bytes ----

void set_initialised(const void *pointer, size_t bytes, bool yes) {
    if (!access_checks || bytes == 0) { return; }
    uintptr_t begin = reinterpret_cast<uintptr_t>(pointer), end = begin + bytes;
    while (begin < end && (begin % 8 != 0 || end - begin < 8)) { // several workers may set the bits of a byte
        uint8_t bit = static_cast<uint8_t>(1u << begin % 8);
        if (yes) { __atomic_fetch_or(shadow_bits(begin), bit, __ATOMIC_RELAXED); }
        if (!yes) { __atomic_fetch_and(shadow_bits(begin), static_cast<uint8_t>(~bit), __ATOMIC_RELAXED); }
        begin++;
    }
    if (begin == end) { return; }
    memset(shadow_bits(begin), yes ? 0xff : 0, (end - begin) / 8);
    set_initialised(reinterpret_cast<void *>(begin + (end - begin) / 8 * 8), (end - begin) % 8, yes);
}

static bool is_initialised(uintptr_t address) { return *shadow_bits(address) >> (address % 8) & 1; }

uintptr_t first_uninitialised(uintptr_t begin, size_t bytes) {
    uintptr_t end = begin + bytes;
    while (begin < end) {
        if (begin % 8 == 0 && end - begin >= 8 && *shadow_bits(begin) == 0xff) {
            begin += 8;
        } else if (is_initialised(begin)) {
            begin++;
        } else {
            return begin;
        }
    }
    return end;
}

bool copy_initialised(void *to, const void *from, size_t bytes) {
    uintptr_t source = reinterpret_cast<uintptr_t>(from);
    bool complete = !access_checks || first_uninitialised(source, bytes) == source + bytes;
    for (size_t i = 0; !complete && i < bytes; i++) {
        if (!is_initialised(source + i)) { set_initialised(static_cast<char *>(to) + i, 1, false); }
    }
    return complete;
}

// ---- Arenas ----

void reserve_arenas() {
    static const bool done = [] {
        void *want = reinterpret_cast<void *>(ARENA);
        void *got =
            mmap(want, ARENA_SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (got != want) { report({nullptr, 0}, "cannot reserve the addresses of device memory", "  see ulimit -v"); }
        reserve_shadows();
        return true;
    }();
    (void)done;
}

char *shared_window(int worker) {
    reserve_arenas();
    char *window = reinterpret_cast<char *>(SHARED + static_cast<uintptr_t>(worker) * SHARED_WINDOW);
    if (mprotect(window, SHARED_WINDOW, PROT_READ | PROT_WRITE) != 0) {
        report({nullptr, 0}, "cannot map shared memory");
    }
    return window;
}

// Tells AddressSanitizer the bounds, because it knows none in the arenas.
void set_accessible(const void *pointer, size_t bytes, bool yes) {
    if (yes) { ASAN_UNPOISON_MEMORY_REGION(pointer, bytes); }
    if (!yes) { ASAN_POISON_MEMORY_REGION(pointer, bytes); }
}

// ---- Allocations ----

Heap &device_heap() {
    static Heap *heap = new Heap{ARENA, DEVICE_SPAN};
    return *heap;
}
Heap &pinned_heap() {
    static Heap *heap = new Heap{PINNED, PINNED_SPAN};
    return *heap;
}

static size_t page_bytes() {
    static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

// Large allocations are multiples of this and have huge pages, where the system gives some: each launch protects device
// memory twice, and small pages would take a tenth of a short run.
constexpr size_t HUGE_PAGE = 2 << 20;

static size_t page_of(size_t bytes) { return bytes < HUGE_PAGE ? page_bytes() : HUGE_PAGE; }
static size_t whole_pages(size_t bytes) { return (bytes + page_of(bytes) - 1) / page_of(bytes) * page_of(bytes); }

// Makes new pages between pages that stay inaccessible. Where nothing checks reads of what was never written, they are
// filled with 0xff: NaN in every float format.
void *Heap::allocate(size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex);
    reserve_arenas();
    size_t pages = whole_pages(bytes), align = page_of(bytes);
    uintptr_t begin = (base + used + page_bytes() + align - 1) / align * align;
    if (begin + pages + page_bytes() > base + span) { return nullptr; }
    void *memory = reinterpret_cast<void *>(begin);
    if (mprotect(memory, pages, PROT_READ | PROT_WRITE) != 0) { return nullptr; }
    madvise(memory, pages, MADV_HUGEPAGE);
    used = begin + pages - base;
    live_bytes += bytes;
    blocks[begin] = {begin, bytes, true, static_cast<int>(blocks.size())};
    live.push_back(&blocks[begin]);
    if (!access_checks) { memset(memory, 0xff, bytes); }
    set_accessible(static_cast<char *>(memory) + bytes, pages - bytes, false);
    allocations++, version++;
    return memory;
}

// Returns null if no live allocation begins at the pointer.
Allocation *Heap::find_begin(const void *pointer) {
    auto found = blocks.find(reinterpret_cast<uintptr_t>(pointer));
    return found == blocks.end() || !found->second.live ? nullptr : &found->second;
}

void Heap::release(Allocation *allocation) {
    std::lock_guard<std::mutex> guard(mutex);
    size_t pages = whole_pages(allocation->bytes);
    void *memory = reinterpret_cast<void *>(allocation->begin);
    mprotect(memory, pages, PROT_NONE);
    madvise(memory, pages, MADV_DONTNEED);
    set_initialised(memory, allocation->bytes, false);
    allocation->live = false;
    live.erase(std::find(live.begin(), live.end(), allocation));
    version++;
    live_bytes -= allocation->bytes;
}

// Returns the allocation, live or freed, that holds the address or lies nearest.
const Allocation *Heap::nearest(uintptr_t address) {
    std::lock_guard<std::mutex> guard(mutex);
    auto after = blocks.upper_bound(address);
    const Allocation *next = after == blocks.end() ? nullptr : &after->second;
    const Allocation *before = after == blocks.begin() ? nullptr : &std::prev(after)->second;
    if (!before || !next) { return before ? before : next; }
    return address - before->begin < before->bytes || address - (before->begin + before->bytes) < next->begin - address
               ? before
               : next;
}

// ---- Host code cannot touch device memory ----

static std::mutex lock_mutex;
static int unlocked;

void Heap::protect(int protection) {
    std::lock_guard<std::mutex> guard(mutex);
    for (const Allocation *a : live) {
        mprotect(reinterpret_cast<void *>(a->begin), whole_pages(a->bytes), protection);
    }
}

void unlock_device_memory() {
    std::lock_guard<std::mutex> guard(lock_mutex);
    if (unlocked++ == 0) { device_heap().protect(PROT_READ | PROT_WRITE); }
}
void lock_device_memory() {
    std::lock_guard<std::mutex> guard(lock_mutex);
    if (--unlocked == 0) { device_heap().protect(PROT_NONE); }
}

bool is_managed(const void *pointer) {
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    const Allocation *a = in_pinned_arena(pointer) ? pinned_heap().nearest(address) : nullptr;
    return a != nullptr && a->managed && address - a->begin < a->bytes;
}

std::string describe_address(uintptr_t address) {
    const void *pointer = reinterpret_cast<const void *>(address);
    if (!in_device_arena(pointer) && !in_pinned_arena(pointer)) { return ""; }
    const Allocation *a = (in_device_arena(pointer) ? device_heap() : pinned_heap()).nearest(address);
    if (a == nullptr) { return "  nothing is allocated"; }
    const bool is_before = address < a->begin, is_inside = !is_before && address - a->begin < a->bytes;
    const uintptr_t from = is_before || is_inside ? a->begin : a->begin + a->bytes;
    const char *where = is_before ? "before the" : is_inside ? "into the" : "after the end of the";
    return format("  %zu bytes %s %sallocation of %zu bytes at 0x%zx", is_before ? from - address : address - from,
                  where, a->live ? "" : "freed ", a->bytes, a->begin);
}

} // namespace emu
