// Which operation is ordered before which. All work is done when the call returns. Vector clocks track what the
// hardware promises. A clock holds for each stream the last operation up to which everything is done. A stream has the
// clock of its next operation, an event the clock of its record, and the host its own clock. Waiting takes the maximum
// of two clocks.
#include "memory.h"
#include "streams.h"
#include "include/emu.h"

#include <atomic>

namespace emu {

void merge(Clock *into, const Clock &from) {
    if (into->size() < from.size()) { into->resize(from.size()); }
    for (size_t s = 0; s < from.size(); s++) {
        if ((*into)[s] < from[s]) { (*into)[s] = from[s]; }
    }
}

uint64_t host_order = ~uint64_t(0);

Device &device() {
    static Device *the_device = [] {
        Device *d = new Device();
        d->streams.push_back(new CUstream_st{0, true, true, {}, 0, {}});
        return d;
    }();
    return *the_device;
}

const Operation *current_operation() { return &device().current; }
bool current_operation_copies() { return device().copies_uninitialised; }
void operation_may_copy_uninitialised() { device().copies_uninitialised = true; }

std::string stream_text(uint32_t number) { return format("stream %u", number); }

// The default stream waits for all blocking streams, and all blocking streams wait for it.
Clock clock_of_next(cudaStream_t stream) {
    Device &d = device();
    Clock clock = stream->clock;
    merge(&clock, d.host);
    for (cudaStream_t other : d.streams) {
        bool waits = stream->blocking && other->blocking && (stream->number == 0 || other->number == 0);
        if (waits) { merge(&clock, other->clock); }
    }
    return clock;
}

// Returns the stamp of the oldest operation that is not done according to the clock, or `next` if all are done.
uint64_t oldest_not_done(const Clock &clock, uint64_t next) {
    uint64_t oldest = next;
    for (cudaStream_t stream : device().streams) {
        const uint64_t done = emu::at(clock, stream->number);
        for (const Operation &operation : stream->unfinished) {
            if (operation.position <= done) { continue; }
            uint64_t stamp = stamp_of_interval(operation.first_interval);
            if (stamp < oldest) { oldest = stamp; }
            break;
        }
    }
    return oldest;
}

static void host_has_waited() {
    for (cudaStream_t stream : device().streams) {
        uint64_t done = emu::at(device().host, stream->number);
        while (!stream->unfinished.empty() && stream->unfinished.front().position <= done) {
            stream->unfinished.pop_front();
        }
    }
    host_order = oldest_not_done(device().host, ~uint64_t(0));
}

bool host_is_behind() { return host_order != ~uint64_t(0); }

const Operation *find_operation(uint32_t number) {
    Device &d = device();
    size_t i = number - d.first_number;
    return number >= d.first_number && i < d.operations.size() ? &d.operations[i] : nullptr;
}

const Operation *unordered_operation(uint32_t number, bool in_host_code) {
    std::unique_lock<std::recursive_mutex> guard(device().mutex, std::defer_lock);
    if (in_host_code) { guard.lock(); } // a kernel's launch holds the lock already
    const Operation *operation = find_operation(number);
    if (operation == nullptr) { return nullptr; }
    const Clock &clock = in_host_code ? device().host : device().current_clock;
    return emu::at(clock, operation->stream) >= operation->position ? nullptr : operation;
}

void host_waits_for(const Clock &clock) {
    merge(&device().host, clock);
    host_has_waited();
}

static std::atomic<int64_t> synchronizations;
int64_t synchronization_count() { return synchronizations.load(); }

void synchronize(const Clock &clock) {
    synchronizations++;
    host_waits_for(clock);
}

void wait_for_stream(cudaStream_t handle) {
    std::lock_guard<std::recursive_mutex> guard(device().mutex);
    synchronize(clock_of_next(handle ? handle : device().streams[0]));
}

} // namespace emu
