// The handles and clocks of streams and events.
#ifndef EMU_STREAMS_H
#define EMU_STREAMS_H

#include "runtime.h"

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>

namespace emu {

typedef std::vector<uint64_t> Clock; // [stream]: the position of its last operation that is done

void merge(Clock *into, const Clock &from);
inline uint64_t at(const Clock &clock, size_t stream) { return stream < clock.size() ? clock[stream] : 0; }

} // namespace emu

struct CUstream_st {
    uint32_t number;
    bool blocking; // the stream and the default stream wait for each other
    bool alive;
    emu::Clock clock;
    uint64_t position;                     // number of operations so far
    std::deque<emu::Operation> unfinished; // operations that the host has not waited for, oldest first
};
struct CUevent_st {
    std::chrono::steady_clock::time_point time;
    emu::Clock clock;
    bool recorded, alive, timing;
};

namespace emu {

struct Device {
    std::recursive_mutex mutex;
    std::vector<cudaStream_t> streams; // [0]: the default stream
    Clock host;
    std::deque<Operation> operations; // the latest operations, for reports
    uint32_t first_number = 1;        // number of the front of operations
    Operation current;
    uint32_t current_number;
    uint64_t current_me, current_order;
    Clock current_clock;
    bool copies_uninitialised;
};
Device &device();
typedef std::lock_guard<std::recursive_mutex> Guard;

// nullptr names the default stream. Reports a stream or event that does not exist.
cudaStream_t find_stream(cudaStream_t stream, const char *function, Source at);
cudaEvent_t find_event(cudaEvent_t event, const char *function, Source at);
cudaStream_t add_stream(bool blocking);
Clock clock_of_next(cudaStream_t stream); // of the stream's next operation
uint64_t oldest_not_done(const Clock &clock, uint64_t next);
void host_waits_for(const Clock &clock);
void synchronize(const Clock &clock); // the host waits, and it is counted

} // namespace emu

#endif // EMU_STREAMS_H
