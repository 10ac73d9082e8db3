// Tests of llmc/cuda/cuda_graph.h.
#ifndef KERNELS_GRAPH_CUH
#define KERNELS_GRAPH_CUH

#include <stdlib.h>

#include "llmc/cuda/cuda_graph.h"
#include "llmc/layers/gelu.cuh"
#include "llmc/layers/linear.cuh"
#include "dev/test/layers/gpu_test.h"

// Two linear layers that share a plan of cuBLASLt, each with a bias of its own, and GELU between them:
//   out = gelu(inp weight^T + first) weight^T + second, all (N, C) or (C, C)
struct GraphWork {
    static const int N = 48, C = 32;
    DeviceArray<floatX> inp, weight, first, second, mid, act, out;
    CublasContext *cublas;
    cudaStream_t stream;
    int queued = 0;

    explicit GraphWork(CublasContext *cublas)
        : inp(N * C), weight(random_values(C * C, 0.2f, 51)), first(random_values(C, 1.0f, 52)),
          second(random_values(C, 1.0f, 53)), mid(N * C), act(N * C), out(N * C), cublas(cublas) {
        cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    ~GraphWork() { cudaStreamDestroy(stream); }
    GraphWork(const GraphWork &) = delete;
    GraphWork &operator=(const GraphWork &) = delete;

    void queue() {
        queued++;
        linear_forward(cublas, {C, C, weight.data, first.data}, mid.data, NULL, inp.data, N, stream);
        gelu_forward(act.data, mid.data, N * C, stream);
        linear_forward(cublas, {C, C, weight.data, second.data}, out.data, NULL, act.data, N, stream);
    }
    // The bits of what becomes of the input of a round.
    uint64_t result(CudaGraphs *graphs, CudaGraph *graph, int round) {
        inp.set(random_values(N * C, 1.0f, 54 + round));
        out.poison();
        cuda_check(cudaDeviceSynchronize());
        cuda_graph_launch_or_queue(graphs, graph, "test", stream, [&] { queue(); });
        cuda_check(cudaStreamSynchronize(stream));
        return out.hash();
    }
};

#define GRAPH_ROUNDS 4

// Queued, captured, launched, launched: the bits of queuing it each time. wanted: false, or a fault of the emulator.
static void check_graph(Test *t, bool wanted, const char *fault, int times_queued, bool refused) {
    CublasContext cublas;
    Error error;
    CHECK(t, cublas_open(&cublas, true, &error), "%s", error.text);
    DeviceArray<float> workspace(1 << 16);
    cublas_set_workspace(&cublas, workspace.data, sizeof(float) << 16);
    setenv("EMU_GRAPH_FAULT", fault, 1);
    {
        GraphWork work(&cublas), plain(&cublas);
        CudaGraphs graphs = {wanted, ""}, no_graphs = {false, ""};
        CudaGraph graph = {NULL, false}, no_graph = {NULL, false};
        for (int round = 0; round < GRAPH_ROUNDS; round++) {
            uint64_t want = plain.result(&no_graphs, &no_graph, round), got = work.result(&graphs, &graph, round);
            CHECK(t, got == want, "fault '%s', round %d: other bits", fault, round);
        }
        CHECK(t, work.queued == times_queued, "fault '%s': queued %d times, expected %d", fault, work.queued,
              times_queued);
        CHECK(t, (graphs.refusal[0] != '\0') == refused && graphs.wanted == (wanted && !refused), "fault '%s': %s",
              fault, graphs.refusal);
        CHECK(t, (graph.exec != NULL) == (wanted && !refused), "fault '%s': a graph too many or too few", fault);
        cuda_graph_free(&graph);
    }
    unsetenv("EMU_GRAPH_FAULT");
    cublas_close(&cublas);
}

TEST(test_graph) { check_graph(t, true, "", 2, false); }
TEST(test_no_graph) { check_graph(t, false, "", GRAPH_ROUNDS, false); }

#ifdef GPT2_EMU
// What the driver refuses is queued: where the refusal comes after a capture, twice in that round.
TEST(test_graph_refused) {
    check_graph(t, true, "begin", GRAPH_ROUNDS, true);
    check_graph(t, true, "end", GRAPH_ROUNDS + 1, true);
    check_graph(t, true, "instantiate", GRAPH_ROUNDS + 1, true);
    check_graph(t, true, "upload", GRAPH_ROUNDS + 1, true);
}
#endif

#endif // KERNELS_GRAPH_CUH
