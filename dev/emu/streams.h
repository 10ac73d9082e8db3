// The handles and clocks of streams and events, for streams.cpp, graphs.cpp and memory.cpp.
#ifndef EMU_STREAMS_H
#define EMU_STREAMS_H

#include "runtime.h"

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>

namespace emu {

typedef std::vector<uint64_t> Clock; // [stream]: the position of its last operation that is done
struct Capture;

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
    uint32_t captured_from = 0;            // for a graph's own stream: the stream whose operations it does
    bool of_graph = false;
    std::shared_ptr<emu::Capture> capture = nullptr; // the capture that the stream takes part in, as this branch:
    size_t branch = 0;
};
struct CUevent_st {
    std::chrono::steady_clock::time_point time;
    emu::Clock clock;
    bool recorded, alive, timing;
    std::shared_ptr<emu::Capture> capture = nullptr; // the capture that recorded the event last, as this mark:
    size_t mark = 0;
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

// ---- graphs.cpp for streams.cpp and memory.cpp; all but the first three functions need the device locked ----

void refuse_in_capture(const char *function, Source at); // refuses a call that waits for the device, or may wait
void refuse_captured(cudaStream_t stream, const char *function, Source at);
void refuse_captured(cudaEvent_t event, const char *function, Source at);
void record_in_capture(cudaStream_t stream, cudaEvent_t event);
void wait_in_capture(cudaStream_t stream, cudaEvent_t event, Source at);

} // namespace emu

#endif // EMU_STREAMS_H
