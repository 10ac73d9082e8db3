// What __threadfence and atomics order between the blocks of a launch:
//
//   data[block] = x; __threadfence(); atomicAdd(count, 1);      // publishes data[block] at the address of count
//   last = atomicAdd(count, 1) == blocks - 1;                   // acquires all that was published there
//   if (last) { read data; }                                    // of other threads: after a __syncthreads
//
// A fence covers the thread's own accesses, and accesses of its block that a barrier orders before the fence. If
// threads fence and then meet at a barrier, an atomic of any of them publishes what each has fenced.
#include "access.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace emu {

// An atomic after a fence. It publishes the accesses of its block with an interval below one of these.
struct Release {
    uintptr_t address;
    uint32_t position; // among the releases at this address
    int thread;
    uint32_t own, warp, block;                           // of this thread, of its warp, of all threads
    std::shared_ptr<const std::vector<uint32_t>> fenced; // [thread], at the last barrier; may be null
    bool publishes_as(const Release &r) const {
        return address == r.address && thread == r.thread && own == r.own && warp == r.warp && block == r.block &&
               fenced == r.fenced;
    }
};

typedef std::unordered_map<uintptr_t, uint32_t> Acquired; // [address]: how many of its releases

struct ThreadFences {
    uint32_t own = 0, warp = 0, block = 0; // as in a Release
    Acquired acquired = {};
};

struct BlockFences {
    std::vector<ThreadFences> threads;
    std::shared_ptr<const std::vector<uint32_t>> fenced = nullptr; // [thread]: its own, at the last barrier
    uint32_t block = 0;                                            // the latest of a thread, at the last barrier
    Acquired acquired = {};                                        // what all threads know since the last barrier
};

// The releases of the running launch.
struct Releases {
    std::mutex mutex;
    std::unordered_map<uintptr_t, uint32_t> count; // [address]
    std::unordered_map<uint32_t, std::vector<Release>> of_block;
};
static Releases &releases() {
    static Releases *all = new Releases;
    return *all;
}

std::atomic<bool> fences_used;

void forget_releases() {
    if (!fences_used) { return; }
    releases().count.clear();
    releases().of_block.clear();
    fences_used = false;
}

static BlockFences &fences_of(Block *block) {
    if (block->fences == nullptr) {
        block->fences = new BlockFences;
        block->fences->threads.resize(static_cast<size_t>(block->thread_count));
    }
    return *block->fences;
}

void forget_fences(Block *block) {
    delete block->fences;
    block->fences = nullptr;
}

static ThreadFences &my_fences() { return fences_of(now.block).threads[static_cast<size_t>(now.thread->number)]; }

// ---- What threads do ----

void fence() {
    if (!in_kernel() || !access_checks) { return; }
    ThreadFences &me = my_fences();
    begin_interval(); // the fence does not cover the accesses after it
    me.own = now.interval;
    me.warp = now.thread->warp_since;
    me.block = now.block_since;
    fences_used = true;
}

void publish_at(const void *address) {
    BlockFences *mine = now.block->fences;
    if (mine == nullptr) { return; }
    const ThreadFences &me = mine->threads[static_cast<size_t>(now.thread->number)];
    if (me.own == 0 && mine->fenced == nullptr) { return; }
    Release release = {reinterpret_cast<uintptr_t>(address), 0,           now.thread->number, me.own, me.warp,
                       std::max(me.block, mine->block),      mine->fenced};
    std::lock_guard<std::mutex> guard(releases().mutex);
    std::vector<Release> &earlier = releases().of_block[static_cast<uint32_t>(now.block->number)];
    if (!earlier.empty() && earlier.back().publishes_as(release)) { return; }
    release.position = releases().count[release.address]++;
    earlier.push_back(release);
}

void acquire_at(const void *address) {
    uintptr_t at = reinterpret_cast<uintptr_t>(address);
    std::lock_guard<std::mutex> guard(releases().mutex);
    auto found = releases().count.find(at);
    if (found != releases().count.end()) { my_fences().acquired[at] = found->second; }
}

// ---- Where threads meet ----

static void merge(Acquired *into, const Acquired &from) {
    for (const auto &entry : from) {
        uint32_t &count = (*into)[entry.first];
        if (count < entry.second) { count = entry.second; }
    }
}

void fences_at_barrier(BlockFences *fences) {
    std::vector<uint32_t> fenced;
    for (ThreadFences &thread : fences->threads) {
        merge(&fences->acquired, thread.acquired);
        thread.acquired.clear();
        fenced.push_back(thread.own);
        fences->block = std::max(fences->block, thread.block);
    }
    bool news = fences->fenced == nullptr || *fences->fenced != fenced;
    if (news) { fences->fenced = std::make_shared<std::vector<uint32_t>>(fenced); }
}

void fences_of_lanes(BlockFences *fences, const Warp &warp, unsigned mask) {
    Acquired all;
    for (unsigned left = mask; left; left &= left - 1) {
        merge(&all, fences->threads[static_cast<size_t>(warp.threads[__builtin_ctz(left)].number)].acquired);
    }
    for (unsigned left = mask; left; left &= left - 1) {
        fences->threads[static_cast<size_t>(warp.threads[__builtin_ctz(left)].number)].acquired = all;
    }
}

// ---- What they know ----

static bool has_acquired(const Acquired &acquired, const Release &release) {
    auto found = acquired.find(release.address);
    return found != acquired.end() && release.position < found->second;
}

static bool covers(const Release &release, uint64_t access) {
    uint32_t interval = interval_of(access);
    int thread = thread_of(access);
    if (interval < release.block) { return true; }
    if (access & STAMP_OTHER_WARPS) { return false; }
    if (interval < release.warp && thread / WARP_LANES == release.thread / WARP_LANES) { return true; }
    if (access & STAMP_OTHER_LANES) { return false; }
    if (thread == release.thread && interval < release.own) { return true; }
    return release.fenced != nullptr && interval < (*release.fenced)[static_cast<size_t>(thread)];
}

bool is_published(uint32_t block, uint64_t access) {
    const BlockFences *mine = now.block->fences;
    if (mine == nullptr || (access & STAMP_OTHER_BLOCKS)) { return false; }
    const ThreadFences &me = mine->threads[static_cast<size_t>(now.thread->number)];
    std::lock_guard<std::mutex> guard(releases().mutex);
    auto found = releases().of_block.find(block);
    if (found == releases().of_block.end()) { return false; }
    for (const Release &release : found->second) {
        bool known = has_acquired(mine->acquired, release) || has_acquired(me.acquired, release);
        if (known && covers(release, access)) { return true; }
    }
    return false;
}

} // namespace emu
