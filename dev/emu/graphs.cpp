// Graphs. A capture turns the calls on a stream into a list of steps: operations, and the records and waits of events
// between the streams that take part. A launch goes through the list on the graph's own streams, one for each captured
// stream, with vector clocks. Two operations that the capture did not order are not ordered in the launch.
#include "memory.h"
#include "streams.h"

#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <thread>

namespace emu {

struct Step {
    enum Kind { OPERATION, RECORD, WAIT } kind;
    size_t branch;
    size_t mark; // for RECORD and WAIT
    const char *name;
    Source at;
    std::function<void(cudaStream_t)> operation;
};

struct Capture {
    bool open = true;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    std::thread::id thread = std::this_thread::get_id();
    Source begun = {nullptr, 0};
    std::vector<Step> steps = {};
    // The streams that take part are the branches. The capture began with branch [0].
    std::vector<cudaStream_t> streams = {};
    std::vector<Clock> clocks = {}; // [branch]: of its next step, counted in operations of the branches
    std::vector<Clock> marks = {};  // of the recorded events
};

} // namespace emu

using namespace emu;

struct CUgraph_st {
    std::vector<Step> steps;
    std::vector<uint32_t> streams; // [branch]: the number of the captured stream
    size_t marks;
};
struct CUgraphExec_st {
    CUgraph_st graph;
    std::vector<cudaStream_t> streams; // [branch]: the graph's own stream
    std::vector<Clock> marks;
};

namespace emu {

// ---- Handles ----

template <class T> static std::vector<T> &living() {
    static std::vector<T> *all = new std::vector<T>;
    return *all;
}
static std::vector<std::shared_ptr<Capture>> &captures() {
    return living<std::shared_ptr<Capture>>();
} // the open captures

template <class T> static typename std::vector<T>::iterator find_graph(T graph, const char *function, Source at) {
    auto found = std::find(living<T>().begin(), living<T>().end(), graph);
    if (found != living<T>().end()) { return found; }
    report(at, format("%s with a graph that does not exist (destroyed, or never created)", function));
}

std::string stream_text(uint32_t number) {
    const CUstream_st *stream = device().streams[number];
    return format("stream %u", stream->of_graph ? stream->captured_from : number) +
           (stream->of_graph ? " of a graph" : "");
}

static std::string begun_text(const Capture &capture) {
    return format("  the capture of stream %u began at %s\n", capture.streams[0]->number,
                  to_text(capture.begun).c_str());
}

// EMU_GRAPH_FAULT names the call that fails, like a driver that cannot do it.
static cudaError_t fault(const char *call, cudaError_t error) {
    const char *text = getenv("EMU_GRAPH_FAULT");
    return text != nullptr && strcmp(text, call) == 0 ? remember_error(error) : cudaSuccess;
}

// ---- Refusals while a stream is being captured ----

void refuse_in_capture(const char *function, Source at) {
    Guard guard(device().mutex);
    for (const std::shared_ptr<Capture> &capture : captures()) {
        bool other_thread = capture->thread != std::this_thread::get_id();
        if (capture->mode == cudaStreamCaptureModeRelaxed) { continue; }
        if (capture->mode == cudaStreamCaptureModeThreadLocal && other_thread) { continue; }
        report(at, format("%s during a capture that is not cudaStreamCaptureModeRelaxed", function),
               begun_text(*capture));
    }
}

// Also refuses the default stream while a captured stream waits for it.
void refuse_captured(cudaStream_t stream, const char *function, Source at) {
    for (const std::shared_ptr<Capture> &capture : captures()) {
        if (stream->capture == capture) {
            report(at, format("%s with stream %u, which is being captured", function, stream->number),
                   begun_text(*capture));
        }
        for (cudaStream_t other : capture->streams) {
            if (stream->number != 0 || !other->blocking) { continue; }
            report(at,
                   format("%s in the default stream, for which stream %u waits, which is being captured", function,
                          other->number),
                   begun_text(*capture));
        }
    }
}

void refuse_captured(cudaEvent_t event, const char *function, Source at) {
    if (!event->capture) { return; }
    report(at, format("%s with an event that was last recorded in a capture", function), begun_text(*event->capture));
}

// ---- The capture ----

bool is_captured(cudaStream_t stream) {
    Guard guard(device().mutex);
    if (captures().empty() || stream == nullptr) { return false; }
    return std::any_of(captures().begin(), captures().end(), [stream](const std::shared_ptr<Capture> &capture) {
        const std::vector<cudaStream_t> &streams = capture->streams;
        return std::find(streams.begin(), streams.end(), stream) != streams.end();
    });
}

void capture(cudaStream_t stream, const char *name, Source at, std::function<void(cudaStream_t)> operation) {
    Guard guard(device().mutex);
    use_device(name, at);
    Capture &capture = *stream->capture;
    Clock &clock = capture.clocks[stream->branch];
    clock.resize(std::max(clock.size(), capture.streams.size()));
    clock[stream->branch]++;
    capture.steps.push_back({Step::OPERATION, stream->branch, 0, name, at, std::move(operation)});
}

static void join(const std::shared_ptr<Capture> &capture, cudaStream_t stream) {
    stream->capture = capture;
    stream->branch = capture->streams.size();
    capture->streams.push_back(stream);
    capture->clocks.push_back({});
}

void record_in_capture(cudaStream_t stream, cudaEvent_t event) {
    Capture &capture = *stream->capture;
    event->capture = stream->capture;
    event->mark = capture.marks.size();
    capture.marks.push_back(capture.clocks[stream->branch]);
    capture.steps.push_back({Step::RECORD, stream->branch, event->mark, "", {nullptr, 0}, nullptr});
}

void wait_in_capture(cudaStream_t stream, cudaEvent_t event, Source at) {
    const char *what = !event->capture         ? "an event that was recorded outside of the capture"
                       : !event->capture->open ? "an event that was recorded in a capture that has ended"
                       : stream->number == 0   ? "an event of a capture, in which the default stream cannot take part"
                       : stream->capture && stream->capture != event->capture ? "an event of another capture"
                                                                              : nullptr;
    const Capture &shown = stream->capture ? *stream->capture : *event->capture;
    if (what) {
        report(at, format("cudaStreamWaitEvent in stream %u for %s", stream->number, what), begun_text(shown));
    }
    if (!stream->capture) { join(event->capture, stream); }
    Capture &capture = *stream->capture;
    merge(&capture.clocks[stream->branch], capture.marks[event->mark]);
    capture.steps.push_back({Step::WAIT, stream->branch, event->mark, "", {nullptr, 0}, nullptr});
}

static void check_joined(const Capture &capture, Source at) {
    for (size_t b = 1; b < capture.streams.size(); b++) {
        if (emu::at(capture.clocks[0], b) >= emu::at(capture.clocks[b], b)) { continue; }
        auto last = std::find_if(capture.steps.rbegin(), capture.steps.rend(),
                                 [b](const Step &step) { return step.kind == Step::OPERATION && step.branch == b; });
        report(at,
               format("cudaStreamEndCapture: stream %u takes part and has not been joined again",
                      capture.streams[b]->number),
               format("  its last operation is %s, called at %s\n", last->name, to_text(last->at).c_str()) +
                   begun_text(capture));
    }
}

static void check_end(const Capture *capture, cudaStream_t stream, Source at) {
    if (capture == nullptr) {
        report(at, format("cudaStreamEndCapture of stream %u, which is not being captured", stream->number));
    }
    if (stream->branch != 0) {
        report(at, format("cudaStreamEndCapture of stream %u, with which the capture did not begin", stream->number),
               begun_text(*capture));
    }
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
        report(at, "cudaStreamEndCapture in another thread than cudaStreamBeginCapture", begun_text(*capture));
    }
    check_joined(*capture, at);
}

// ---- The launch ----

static void do_step(CUgraphExec_st *exec, const Step &step) {
    cudaStream_t stream = exec->streams[step.branch];
    if (step.kind == Step::OPERATION) { step.operation(stream); }
    Guard guard(device().mutex);
    if (step.kind == Step::RECORD) { exec->marks[step.mark] = clock_of_next(stream); }
    if (step.kind == Step::WAIT) { merge(&stream->clock, exec->marks[step.mark]); }
}

// All steps of a graph come after the stream's work so far, and after earlier launches of the graph.
static void begin_launch(CUgraphExec_st *exec, cudaStream_t stream) {
    Guard guard(device().mutex);
    Clock clock = clock_of_next(stream);
    for (cudaStream_t own : exec->streams) { merge(&clock, own->clock); }
    for (cudaStream_t own : exec->streams) { own->clock = clock; }
}
static void end_launch(CUgraphExec_st *exec, cudaStream_t stream) {
    Guard guard(device().mutex);
    for (cudaStream_t own : exec->streams) { merge(&stream->clock, own->clock); }
}

} // namespace emu

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode, const char *file, int line) {
    host_only("cudaStreamBeginCapture", {file, line});
    Guard guard(device().mutex);
    cudaStream_t s = find_stream(stream, "cudaStreamBeginCapture", {file, line});
    if (s->number == 0) { return remember_error(cudaErrorStreamCaptureUnsupported); }
    refuse_captured(s, "cudaStreamBeginCapture", {file, line});
    if (fault("begin", cudaErrorNotSupported)) { return cudaErrorNotSupported; }
    std::shared_ptr<Capture> capture = std::make_shared<Capture>();
    capture->mode = mode, capture->begun = {file, line};
    join(capture, s);
    captures().push_back(capture);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph, const char *file, int line) {
    host_only("cudaStreamEndCapture", {file, line});
    Guard guard(device().mutex);
    cudaStream_t s = find_stream(stream, "cudaStreamEndCapture", {file, line});
    std::shared_ptr<Capture> capture = s->capture;
    check_end(capture.get(), s, {file, line});
    capture->open = false;
    captures().erase(std::find(captures().begin(), captures().end(), capture));
    *graph = new CUgraph_st{std::move(capture->steps), {}, capture->marks.size()};
    for (cudaStream_t member : capture->streams) {
        member->capture = nullptr;
        (*graph)->streams.push_back(member->number);
    }
    living<cudaGraph_t>().push_back(*graph);
    if (!fault("end", cudaErrorStreamCaptureInvalidated)) { return cudaSuccess; }
    cudaGraphDestroy(*graph, file, line);
    *graph = nullptr;
    return cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status, const char *file,
                                  int line) {
    host_only("cudaStreamIsCapturing", {file, line});
    Guard guard(device().mutex);
    cudaStream_t s = find_stream(stream, "cudaStreamIsCapturing", {file, line});
    *status = s->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long, const char *file,
                                 int line) {
    host_only("cudaGraphInstantiate", {file, line});
    Guard guard(device().mutex);
    find_graph(graph, "cudaGraphInstantiate", {file, line});
    *exec = nullptr;
    if (fault("instantiate", cudaErrorMemoryAllocation)) { return cudaErrorMemoryAllocation; }
    *exec = new CUgraphExec_st{*graph, {}, std::vector<Clock>(graph->marks)};
    for (uint32_t number : graph->streams) {
        cudaStream_t own = add_stream(false);
        own->of_graph = true, own->captured_from = number;
        (*exec)->streams.push_back(own);
    }
    living<cudaGraphExec_t>().push_back(*exec);
    return cudaSuccess;
}

// If nodes is null, returns the number of nodes. The emulator does not give out the nodes themselves.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count, const char *file, int line) {
    Guard guard(device().mutex);
    find_graph(graph, "cudaGraphGetNodes", {file, line});
    if (nodes != nullptr) { return remember_error(cudaErrorNotSupported); }
    *count = static_cast<size_t>(std::count_if(graph->steps.begin(), graph->steps.end(),
                                               [](const Step &step) { return step.kind == Step::OPERATION; }));
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream, const char *file, int line) {
    host_only("cudaGraphUpload", {file, line});
    Guard guard(device().mutex);
    find_graph(exec, "cudaGraphUpload", {file, line});
    refuse_captured(find_stream(stream, "cudaGraphUpload", {file, line}), "cudaGraphUpload", {file, line});
    return fault("upload", cudaErrorMemoryAllocation);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream, const char *file, int line) {
    host_only("cudaGraphLaunch", {file, line});
    use_device("cudaGraphLaunch", {file, line});
    cudaStream_t s;
    {
        Guard guard(device().mutex);
        find_graph(exec, "cudaGraphLaunch", {file, line});
        s = find_stream(stream, "cudaGraphLaunch", {file, line});
        refuse_captured(s, "cudaGraphLaunch", {file, line});
    }
    begin_launch(exec, s);
    for (const Step &step : exec->graph.steps) { do_step(exec, step); }
    end_launch(exec, s);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph, const char *file, int line) {
    host_only("cudaGraphDestroy", {file, line});
    Guard guard(device().mutex);
    living<cudaGraph_t>().erase(find_graph(graph, "cudaGraphDestroy", {file, line}));
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec, const char *file, int line) {
    host_only("cudaGraphExecDestroy", {file, line});
    Guard guard(device().mutex);
    living<cudaGraphExec_t>().erase(find_graph(exec, "cudaGraphExecDestroy", {file, line}));
    for (cudaStream_t own : exec->streams) { own->alive = false; } // launched work goes on
    delete exec;
    return cudaSuccess;
}
