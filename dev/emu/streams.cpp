// Streams and events.
#include "runtime.h"
#include "memory.h"

#include <chrono>

struct CUstream_st {
    int number;
    unsigned flags;
};
struct CUevent_st {
    std::chrono::steady_clock::time_point time;
};

namespace emu {

void begin_kernel(const Kernel *) { unlock_device_memory(); }
void end_kernel(const Kernel *) { lock_device_memory(); }
void op_begin(cudaStream_t, const char *, const char *, int) { unlock_device_memory(); }
void op_read(const void *, size_t) {}
void op_write(void *, size_t) {}
void op_end() { lock_device_memory(); }
void wait_for_stream(cudaStream_t) {}

} // namespace emu

using namespace emu;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    host_only("cudaStreamCreate");
    static int streams;
    *stream = new CUstream_st{++streams, flags};
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) { *least = 0; }
    if (greatest) { *greatest = -5; }
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream, const char *, int) {
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t, const char *, int) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t, const char *, int) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned, const char *, int) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDeviceReset() { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = new CUevent_st();
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event, const char *, int) {
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t, const char *, int) {
    event->time = std::chrono::steady_clock::now();
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t, const char *, int) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t, const char *, int) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
    return cudaSuccess;
}
