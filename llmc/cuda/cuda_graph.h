// CUDA graphs: work that is queued again and again, each time with the same kernels and the same arguments, is captured
// once, and from then on launched as a whole. The host is then done with it in microseconds, and the GPU need not wait
// between kernels for the next one to arrive.
//
//   while (cuda_graph_asks(&graphs, &graph, "forward", stream)) { ... queue the work on stream ... }
//
// The first time the body queues the work as ever: libraries load their kernels and take what memory they need. The
// second time it is captured, the third time the body is not entered. Where the driver refuses, the work is queued call
// by call for ever after, and graphs->refusal says why.
//
// In the body nothing may wait for the GPU, depend on an event that was recorded outside of it, or leave a stream that
// it has forked from `stream` without joining it again; and all arguments are those of the first time: what changes is
// read from memory. The bits are those of the calls one by one.
//
// The driver keeps a graph's kernels with their arguments in memory of its own: some kilobytes for each kernel, which
// no memory plan counts.
#ifndef LLMC_CUDA_GRAPH_H
#define LLMC_CUDA_GRAPH_H

#include <nvtx3/nvToolsExt.h>

#include "llmc/cuda/cuda_common.h"

typedef struct {
    bool wanted;       // else all work is queued call by call
    char refusal[160]; // why it is wanted no longer
} CudaGraphs;

enum { CUDA_GRAPH_IDLE, CUDA_GRAPH_QUEUES, CUDA_GRAPH_CAPTURES };

// All zero: not queued yet.
typedef struct {
    cudaGraphExec_t exec; // NULL: none yet
    bool was_queued;      // call by call
    int body;             // what the body of the loop, where it is being run, does
} CudaGraph;

static inline void cuda_graph_refuse(CudaGraphs *graphs, const char *call, cudaError_t status) {
    graphs->wanted = false;
    cudaGetLastError(); // it is reported here, not by the next check
    snprintf(graphs->refusal, sizeof(graphs->refusal), "no CUDA graphs: %s: %s (%s)", call, cudaGetErrorString(status),
             cudaGetErrorName(status));
}

// Relaxed: whatever a library may do that is not for a stream, it may do here as well.
static inline bool cuda_graph_begin(CudaGraphs *graphs, cudaStream_t stream) {
    cudaError_t status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (status != cudaSuccess) { cuda_graph_refuse(graphs, "cudaStreamBeginCapture", status); }
    return status == cudaSuccess;
}

// Makes the graph of what was captured, and takes the memory on the GPU that it needs: at the first launch, a lack of
// it would be the end of the run.
static inline bool cuda_graph_end(CudaGraphs *graphs, CudaGraph *graph, cudaStream_t stream) {
    cudaGraph_t captured = NULL;
    cudaError_t status = cudaStreamEndCapture(stream, &captured);
    if (status != cudaSuccess) {
        cuda_graph_refuse(graphs, "cudaStreamEndCapture", status);
        return false;
    }
    status = cudaGraphInstantiate(&graph->exec, captured, 0);
    cuda_check(cudaGraphDestroy(captured));
    if (status != cudaSuccess) {
        graph->exec = NULL;
        cuda_graph_refuse(graphs, "cudaGraphInstantiate", status);
        return false;
    }
    status = cudaGraphUpload(graph->exec, stream);
    if (status == cudaSuccess) { return true; }
    cudaGraphExecDestroy(graph->exec);
    graph->exec = NULL;
    cuda_graph_refuse(graphs, "cudaGraphUpload", status);
    return false;
}

// name: for the profiler's time line.
static inline void cuda_graph_launch(CudaGraph *graph, const char *name, cudaStream_t stream) {
    nvtxRangePushA(name);
    cuda_check(cudaGraphLaunch(graph->exec, stream));
    nvtxRangePop();
}

// The condition of the loop above: true as long as its body has to queue the work, once more.
static inline bool cuda_graph_asks(CudaGraphs *graphs, CudaGraph *graph, const char *name, cudaStream_t stream) {
    if (graph->body == CUDA_GRAPH_QUEUES) {
        graph->was_queued = true;
        graph->body = CUDA_GRAPH_IDLE;
        return false;
    }
    bool captured = graph->body == CUDA_GRAPH_CAPTURES && cuda_graph_end(graphs, graph, stream);
    bool begins = graph->body == CUDA_GRAPH_IDLE && graphs->wanted && graph->exec == NULL && graph->was_queued;
    if (captured || (graph->body == CUDA_GRAPH_IDLE && graph->exec != NULL)) {
        cuda_graph_launch(graph, name, stream);
        graph->body = CUDA_GRAPH_IDLE;
        return false;
    }
    graph->body = begins && cuda_graph_begin(graphs, stream) ? CUDA_GRAPH_CAPTURES : CUDA_GRAPH_QUEUES;
    return true;
}

static inline void cuda_graph_free(CudaGraph *graph) {
    if (graph->exec != NULL) { cudaGraphExecDestroy(graph->exec); }
    memset(graph, 0, sizeof(*graph));
}

#endif // LLMC_CUDA_GRAPH_H
