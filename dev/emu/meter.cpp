// The meter: counts what a GPU's profiler would count (README.md, "The meter").
//
// A profiler counts instructions of warps. Here each lane runs alone, so the meter puts the lanes together again: the
// k-th visit of a lane to an instruction joins the k-th visits of the other lanes. The numbers of visits begin again
// wherever all lanes of the warp meet: at a barrier, or in a warp function. A request is closed, that is counted, when
// all lanes have joined it, or when the lanes meet.
#include "meter.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <algorithm>
#include <unordered_map>

namespace emu {

bool metering;

// ---- What a worker counts ----

struct Request {
    unsigned lanes;
    uintptr_t address[WARP_LANES];
};

// The requests of a warp at one place that lanes may still join.
struct OpenRequests {
    std::vector<Request> requests;
    uint32_t first; // the visit of requests[0]: all lanes have joined the requests before
    uint32_t visits[WARP_LANES];
    bool visited; // since the lanes met
};

struct WarpMeter {
    std::vector<OpenRequests> open; // [place]
    std::vector<int> visited;       // places
};

struct Worker {
    std::vector<Place> places;
    std::vector<PlaceCounts> counts; // [place], of the running launch
    std::vector<int> next;           // [place]: the place that a lane visited next, the last time
    std::map<Place, int> place_at;
    int last = 0; // the place before
    WarpMeter warps[MAX_BLOCK_THREADS / WARP_LANES];
    Meter meter = {};
    std::unordered_map<uintptr_t, uint64_t> atomics[2]; // lanes at an address: of device memory, of shared memory
    std::vector<uint32_t> touched[2];                   // chunks of device memory that were loaded, stored
};

static Worker *workers[MAX_WORKERS];

static Worker &my_worker() {
    Worker *&worker = workers[now.block->worker];
    if (worker == nullptr) { worker = new Worker; }
    return *worker;
}

// ---- Different bytes of a launch: a bit for each byte of device memory, loaded and stored ----

constexpr uintptr_t CHUNK = 4096; // bytes of device memory whose bits are counted and cleared together
static uint64_t *touched_bits[2];
static uint8_t *touched_chunks[2];

static void *reserve(size_t bytes) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) { report({nullptr, 0}, "cannot reserve addresses for the meter", "  see ulimit -v"); }
    return memory;
}

static void reserve_touched() {
    for (int stored = 0; stored < 2 && touched_bits[stored] == nullptr; stored++) {
        touched_chunks[stored] = static_cast<uint8_t *>(reserve(SHARED / CHUNK - ARENA / CHUNK));
        touched_bits[stored] = static_cast<uint64_t *>(reserve((SHARED - ARENA) / 8));
    }
}

// Several workers set bits of one word.
static void touch(Worker &worker, uintptr_t begin, uintptr_t end, bool stored) {
    begin -= ARENA, end -= ARENA;
    while (begin < end) {
        uintptr_t stop = std::min(end, (begin / 64 + 1) * 64);
        uint64_t bits = ~uint64_t(0) >> (64 - (stop - begin)) << begin % 64;
        uint64_t *word = &touched_bits[stored][begin / 64];
        if ((__atomic_load_n(word, __ATOMIC_RELAXED) & bits) != bits) {
            __atomic_fetch_or(word, bits, __ATOMIC_RELAXED);
            uint8_t *chunk = &touched_chunks[stored][begin / CHUNK];
            if (*chunk == 0 && __atomic_exchange_n(chunk, 1, __ATOMIC_RELAXED) == 0) {
                worker.touched[stored].push_back(static_cast<uint32_t>(begin / CHUNK));
            }
        }
        begin = stop;
    }
}

static void count_touched(Worker &worker, bool stored, MemoryCounts *counts) {
    for (uint32_t chunk : worker.touched[stored]) {
        uint64_t *bits = touched_bits[stored] + chunk * (CHUNK / 64);
        for (size_t i = 0; i < CHUNK / 64; i++) {
            counts->unique_bytes += static_cast<uint64_t>(__builtin_popcountll(bits[i]));
            counts->unique_sectors += ((bits[i] & 0xffffffff) != 0) + (bits[i] >> 32 != 0);
        }
        memset(bits, 0, CHUNK / 8);
        touched_chunks[stored][chunk] = 0;
    }
    worker.touched[stored].clear();
}

// ---- A closed request ----

struct Addresses {
    int n;
    uintptr_t at[WARP_LANES];
};

// The different addresses of a request, in ascending order.
static Addresses different_addresses(const Request &request) {
    Addresses found = {0, {}};
    bool ascending = true;
    for (unsigned left = request.lanes; left; left &= left - 1) {
        uintptr_t address = request.address[__builtin_ctz(left)];
        if (found.n > 0 && address == found.at[found.n - 1]) { continue; }
        ascending &= found.n == 0 || address > found.at[found.n - 1];
        found.at[found.n++] = address;
    }
    if (!ascending) {
        std::sort(found.at, found.at + found.n);
        found.n = static_cast<int>(std::unique(found.at, found.at + found.n) - found.at);
    }
    return found;
}

// An access lies in one sector, because it is aligned and has at most 16 bytes.
static void count_memory(Worker &worker, const Request &request, uintptr_t size, bool stored, MemoryCounts *counts) {
    Addresses different = different_addresses(request);
    uintptr_t begin = different.at[0], end = begin;
    uint64_t sectors = 1;
    for (int i = 0; i < different.n; i++) {
        uintptr_t address = different.at[i];
        if (i > 0) { sectors += address / SECTOR != different.at[i - 1] / SECTOR; }
        if (address != end) {
            touch(worker, begin, end, stored);
            begin = address;
        }
        end = address + size;
    }
    touch(worker, begin, end, stored);
    counts->requests++;
    counts->lanes += static_cast<uint64_t>(__builtin_popcount(request.lanes));
    counts->aligned += different.at[0] % 128 == 0;
    counts->sectors += sectors;
    counts->bytes += static_cast<uint64_t>(different.n) * size;
}

// The wavefronts that lanes first to last - 1 need: the most words that one bank has to deliver.
static int wavefronts_of(const Request &request, uintptr_t size, int first, int last) {
    int used[32] = {}, most = 0;
    uint32_t words[32][WARP_LANES];
    for (int lane = first; lane < last; lane++) {
        if (!(request.lanes >> lane & 1)) { continue; }
        uintptr_t begin = request.address[lane] / 4, end = (request.address[lane] + size + 3) / 4;
        for (uintptr_t word = begin; word < end; word++) {
            int bank = static_cast<int>(word % 32), i = 0;
            while (i < used[bank] && words[bank][i] != static_cast<uint32_t>(word)) { i++; }
            if (i == used[bank]) {
                words[bank][used[bank]++] = static_cast<uint32_t>(word);
                most = std::max(most, used[bank]);
            }
        }
    }
    return most;
}

// The hardware serves accesses of 8 bytes by half warps, and of 16 bytes by quarter warps.
static void count_shared(const Request &request, uintptr_t size, SharedCounts *counts) {
    int group = size <= 4 ? WARP_LANES : static_cast<int>(WARP_LANES * 4 / size);
    for (int first = 0; first < WARP_LANES; first += group) {
        int wavefronts = wavefronts_of(request, size, first, first + group);
        counts->wavefronts += static_cast<uint64_t>(wavefronts);
        counts->conflicts += static_cast<uint64_t>(wavefronts > 1 ? wavefronts - 1 : 0);
    }
    counts->requests++;
    counts->lanes += static_cast<uint64_t>(__builtin_popcount(request.lanes));
}

static void count_atomic(Worker &worker, const Request &request, uintptr_t size, bool shared, AtomicCounts *counts) {
    Addresses different = different_addresses(request);
    counts->requests++;
    counts->lanes += static_cast<uint64_t>(__builtin_popcount(request.lanes));
    counts->addresses += static_cast<uint64_t>(different.n);
    for (unsigned left = request.lanes; left; left &= left - 1) {
        uintptr_t address = request.address[__builtin_ctz(left)];
        worker.atomics[shared][address]++;
        if (!shared) {
            touch(worker, address, address + size, false);
            touch(worker, address, address + size, true);
        }
    }
}

static void close_request(Worker &worker, int place, const Request &request) {
    PlaceCounts &counts = worker.counts[static_cast<size_t>(place)];
    const Place &where = worker.places[static_cast<size_t>(place)];
    uintptr_t size = static_cast<uintptr_t>(where.bytes);
    switch (where.kind) {
    case LOAD: count_memory(worker, request, size, false, &counts.memory); break;
    case STORE: count_memory(worker, request, size, true, &counts.memory); break;
    case SHARED_LOAD:
    case SHARED_STORE: count_shared(request, size, &counts.shared); break;
    case ATOMIC_UPDATE: count_atomic(worker, request, size, false, &counts.atomics); break;
    case SHARED_ATOMIC: count_atomic(worker, request, size, true, &counts.atomics); break;
    case STEP:
        counts.steps++;
        counts.step_lanes += static_cast<uint64_t>(__builtin_popcount(request.lanes));
        break;
    }
}

// ---- Visits ----

static int new_place(Worker &worker, const Place &place) {
    int number = static_cast<int>(worker.places.size());
    worker.places.push_back(place);
    worker.counts.push_back(PlaceCounts());
    worker.next.push_back(0);
    worker.place_at[place] = number;
    return number;
}

// Lanes run the same instructions one after another, so the next place is mostly the one that came next before.
static int find_place(Worker &worker, const Place &place) {
    if (worker.places.empty()) { return new_place(worker, place); }
    int &next = worker.next[static_cast<size_t>(worker.last)];
    if (worker.places[static_cast<size_t>(next)] == place) { return next; }
    auto found = worker.place_at.find(place);
    int number = found != worker.place_at.end() ? found->second : new_place(worker, place);
    worker.next[static_cast<size_t>(worker.last)] = number;
    return number;
}

static void visit(const Place &where, uintptr_t address) {
    Worker &worker = my_worker();
    const int place = worker.last = find_place(worker, where), lane = now.thread->lane;
    WarpMeter &warp = worker.warps[now.thread->number / WARP_LANES];
    if (warp.open.size() < worker.places.size()) { warp.open.resize(worker.places.size()); }
    OpenRequests &open = warp.open[static_cast<size_t>(place)];
    if (!open.visited) {
        open.visited = true;
        warp.visited.push_back(place);
    }
    size_t i = open.visits[lane]++ - open.first;
    if (i >= open.requests.size()) { open.requests.resize(i + 1); }
    Request &request = open.requests[i];
    request.lanes |= 1u << lane;
    request.address[lane] = address;
    if (request.lanes != existing_lanes(*now.thread->warp)) { return; }
    close_request(worker, place, request);
    request.lanes = 0;
    if (i + 1 == open.requests.size()) { // all lanes have joined the requests before, too
        open.first += static_cast<uint32_t>(open.requests.size());
        open.requests.clear();
    }
}

// All lanes of the warp have met.
static void close_requests(Worker &worker, WarpMeter &warp) {
    for (int place : warp.visited) {
        OpenRequests &open = warp.open[static_cast<size_t>(place)];
        for (const Request &request : open.requests) {
            if (request.lanes != 0) { close_request(worker, place, request); }
        }
        open.requests.clear();
        memset(open.visits, 0, sizeof(open.visits));
        open.first = 0;
        open.visited = false;
    }
    warp.visited.clear();
}

static PlaceKind kind_of(uintptr_t address, AccessKind kind) {
    bool shared = address >= SHARED;
    if (kind == ATOMIC) { return shared ? SHARED_ATOMIC : ATOMIC_UPDATE; }
    return kind == READ ? (shared ? SHARED_LOAD : LOAD) : (shared ? SHARED_STORE : STORE);
}

// The copy of a structure is several instructions: 3 of 4 bytes for a float3, 2 of 16 for 32 bytes.
void meter_access(uintptr_t address, size_t bytes, AccessKind kind, uintptr_t pc) {
    if (!in_kernel() || address - ARENA >= ARENA_SPAN || reporting) { return; }
    size_t piece = 16;
    while (bytes % piece != 0 || address % piece != 0) { piece /= 2; }
    for (; bytes > 0; bytes -= piece, address += piece) {
        visit({pc, kind_of(address, kind), static_cast<int>(piece)}, address);
    }
}

void meter_step(uintptr_t pc) {
    if (in_kernel()) { visit({pc, STEP, 0}, 0); }
}

void meter_async_copy(size_t bytes) {
    if (metering) { my_worker().meter.async_bytes += bytes; }
}

// ---- Where lanes meet ----

constexpr uint64_t MMA_ROWS = 16, MMA_COLUMNS = 8;

// The sum's length in "mma.m16n8k16.bf16".
static uint64_t mma_depth(const char *kind) { return strtoull(strchr(kind, 'k') + 1, nullptr, 10); }

void meter_gather(const char *kind, unsigned mask) {
    Worker &worker = my_worker();
    const Warp &warp = *now.thread->warp;
    if (strncmp(kind, "mma", 3) == 0) {
        worker.meter.tensor_flops += 2 * MMA_ROWS * MMA_COLUMNS * mma_depth(kind);
    } else if (strcmp(kind, "__syncwarp") == 0) {
        worker.meter.warp_syncs++;
    } else if (strncmp(kind, "__shfl", 6) == 0 || strncmp(kind, "__reduce", 8) == 0) {
        worker.meter.shuffles++;
    } else if (strncmp(kind, "__", 2) == 0) {
        worker.meter.votes++;
    }
    if (mask == (existing_lanes(warp) & ~warp.exited)) {
        close_requests(worker, worker.warps[now.thread->number / WARP_LANES]);
    }
}

static void close_block(Worker &worker) {
    for (int w = 0; w < now.block->warp_count; w++) { close_requests(worker, worker.warps[w]); }
}

void meter_barrier() {
    Worker &worker = my_worker();
    worker.meter.barriers++;
    close_block(worker);
}

void meter_block_end() { close_block(my_worker()); }

// ---- The end of a launch ----

static uint64_t hottest(bool shared) {
    std::unordered_map<uintptr_t, uint64_t> sum;
    uint64_t most = 0;
    for (Worker *worker : workers) {
        if (worker == nullptr) { continue; }
        for (const auto &entry : worker->atomics[shared]) { most = std::max(most, sum[entry.first] += entry.second); }
        worker->atomics[shared].clear();
    }
    return most;
}

void meter_launch_end(const Kernel &kernel) {
    KernelCounts &total = counts_of_kernel(kernel);
    const dim3 g = kernel.grid, b = kernel.block;
    uint64_t blocks = uint64_t(g.x) * g.y * g.z, threads = uint64_t(b.x) * b.y * b.z;
    total.meter.launches++;
    total.meter.blocks += blocks;
    total.meter.threads += blocks * threads;
    total.meter.warps += blocks * ((threads + WARP_LANES - 1) / WARP_LANES);
    total.meter.atomics.hottest += hottest(false);
    total.meter.shared_atomics.hottest += hottest(true);
    for (Worker *worker : workers) {
        if (worker == nullptr) { continue; }
        count_touched(*worker, false, &total.meter.loads);
        count_touched(*worker, true, &total.meter.stores);
        for (size_t i = 0; i < worker->places.size(); i++) {
            if (worker->counts[i].is_empty()) { continue; }
            add(&total.places[worker->places[i]], worker->counts[i]);
            worker->counts[i] = PlaceCounts();
        }
        add(&total.meter, worker->meter);
        worker->meter = Meter();
    }
}

// Is in every program with a source that was compiled without --meter. Its kernels' blocks would not be counted.
extern "C" __attribute__((weak)) void emu_without_meter();

void meter_start() {
    if (emu_without_meter != nullptr) { report({nullptr, 0}, "the meter needs a program of dev/emu/emucc --meter"); }
    reserve_touched();
    forget_counts();
    metering = true;
}

void meter_stop() { metering = false; }

} // namespace emu
