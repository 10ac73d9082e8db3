// CUDA graphs: captures the work of a pass once, and then launches it as a whole.
//
// Every step queues equal kernels with equal arguments. A graph takes the host microseconds to launch, and the GPU does
// not wait between kernels for the next kernel to arrive.
//
//   cuda_graph_launch_or_queue(&graphs, &graph, "forward", stream, [&] { ... queue the work on stream ... });
//
// The first call queues the work call by call: libraries load their kernels and take the memory they need. The second
// call captures the work and launches the graph. Every later call only launches it. If the driver refuses a graph, the
// work is queued call by call from then on, and graphs->refusal says why. Both ways give equal bits.
//
// The work must not wait for the GPU and must not depend on an event recorded outside it. A stream that it forks from
// `stream` must join `stream` again. A launch repeats the arguments of the capture, so values that change must be
// read from memory.
//
// The driver keeps a graph's kernels and their arguments in its own memory: some kilobytes a kernel, which no memory
// plan counts.
#ifndef LLMC_CUDA_GRAPH_H
#define LLMC_CUDA_GRAPH_H

#include <nvtx3/nvToolsExt.h>

#include "llmc/cuda/cuda_common.h"

typedef struct {
    bool wanted;       // false: all work is queued call by call
    char refusal[160]; // why the driver refused a graph; then wanted is false
} CudaGraphs;

// A zeroed CudaGraph has not been queued yet.
typedef struct {
    cudaGraphExec_t exec; // NULL: not captured
    bool was_queued;      // call by call
} CudaGraph;

static inline void cuda_graph_refuse(CudaGraphs *graphs, const char *call, cudaError_t status) {
    graphs->wanted = false;
    cudaGetLastError(); // reported here, not by the next check
    snprintf(graphs->refusal, sizeof(graphs->refusal), "no CUDA graphs: %s: %s (%s)", call, cudaGetErrorString(status),
             cudaGetErrorName(status));
}

// Makes a graph of the captured work and takes the GPU memory that it needs. A lack of memory at the first launch would
// end the run.
static inline cudaError_t cuda_graph_instantiate(CudaGraph *graph, cudaGraph_t captured, cudaStream_t stream,
                                                 const char **call) {
    *call = "cudaGraphInstantiate";
    cudaError_t status = cudaGraphInstantiate(&graph->exec, captured, 0);
    if (status != cudaSuccess) {
        graph->exec = NULL;
        return status;
    }
    *call = "cudaGraphUpload";
    status = cudaGraphUpload(graph->exec, stream);
    if (status != cudaSuccess) {
        cudaGraphExecDestroy(graph->exec);
        graph->exec = NULL;
    }
    return status;
}

// Captures the work that `work` queues. graph->exec is NULL if the driver refuses. In relaxed mode a library may make
// any call that is not for a stream.
template <class Work>
static inline void cuda_graph_capture(CudaGraphs *graphs, CudaGraph *graph, cudaStream_t stream, const Work &work) {
    cudaGraph_t captured = NULL;
    const char *call = "cudaStreamBeginCapture";
    cudaError_t status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (status == cudaSuccess) {
        work();
        call = "cudaStreamEndCapture";
        status = cudaStreamEndCapture(stream, &captured);
    }
    if (status == cudaSuccess) {
        status = cuda_graph_instantiate(graph, captured, stream, &call);
        cuda_check(cudaGraphDestroy(captured));
    }
    if (status != cudaSuccess) { cuda_graph_refuse(graphs, call, status); }
}

// name: for the profiler's timeline.
static inline void cuda_graph_launch(CudaGraph *graph, const char *name, cudaStream_t stream) {
    nvtxRangePushA(name);
    cuda_check(cudaGraphLaunch(graph->exec, stream));
    nvtxRangePop();
}

// Launches the graph of `work`, or queues `work` if there is no graph. work: a function without arguments that queues
// equal work on `stream` each time.
template <class Work>
static inline void cuda_graph_launch_or_queue(CudaGraphs *graphs, CudaGraph *graph, const char *name,
                                              cudaStream_t stream, const Work &work) {
    bool captures = graphs->wanted && graph->exec == NULL && graph->was_queued;
    if (captures) { cuda_graph_capture(graphs, graph, stream, work); }
    if (graph->exec != NULL) {
        cuda_graph_launch(graph, name, stream);
    } else {
        work();
        graph->was_queued = true;
    }
}

static inline void cuda_graph_free(CudaGraph *graph) {
    if (graph->exec != NULL) { cudaGraphExecDestroy(graph->exec); }
    memset(graph, 0, sizeof(*graph));
}

#endif // LLMC_CUDA_GRAPH_H
