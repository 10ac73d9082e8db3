// Attention by cuDNN against our own. In the emulator this tests the graphs: dev/emu/cudnn.cpp computes what they say,
// operation by operation. On a GPU it tests what cuDNN makes of them; without cuDNN there, it is skipped.
#ifndef KERNELS_CUDNN_CUH
#define KERNELS_CUDNN_CUH

#include "../../llmc/cudnn_att.h"
#include "kernels_attention.cuh"

// The emulator has a cuDNN where this variable says so.
static void cudnn_environment(const char *value) {
    if (value != NULL) {
        setenv("EMU_CUDNN", value, 1);
    } else {
        unsetenv("EMU_CUDNN");
    }
}

// A forward and a backward by cuDNN with the arrays of an AttentionRun. chunk 0: the usual one.
struct CudnnRun {
    AttentionRun arrays;
    CudnnAttention att;
    DeviceArray<float> forward_workspace, backward_workspace;
    Error error = {};

    CudnnRun(AttentionShape s, const std::vector<float> &qkv, const std::vector<float> &dout, int chunk)
        : arrays(s, qkv, dout), forward_workspace(CUDNN_ATT_SLACK / 4),
          backward_workspace(cudnn_att_backward_bytes(s.B, s.T, s.NH) / 4 + 1) {
        int C = (int)channels_of(s);
#ifdef USE_CUDNN
        if (chunk > 0) {
            cudnn_att_open_chunked(&att, s.B, s.T, C, s.NH, chunk, &error);
        } else {
            cudnn_att_open(&att, s.B, s.T, C, s.NH, &error);
        }
#else
        (void)chunk;
        cudnn_att_open(&att, s.B, s.T, C, s.NH, &error);
#endif
        cudnn_att_set_workspace(&att, forward_workspace.data, backward_workspace.data);
    }
    ~CudnnRun() { cudnn_att_close(&att); }

    void forward(cudaStream_t stream = 0) {
        arrays.out.poison(), arrays.lse.poison();
        cudnn_att_forward(&att, arrays.out.data, arrays.lse.data, arrays.qkv.data, stream);
    }
    void backward(cudaStream_t stream = 0) {
        arrays.dqkv.poison();
        cudnn_att_backward(&att, arrays.dqkv.data, arrays.dout.data, arrays.qkv.data, arrays.out.data, arrays.lse.data,
                           stream);
    }
    uint64_t run() {
        forward();
        backward();
        cuda_check(cudaDeviceSynchronize());
        return arrays.hash();
    }
};

// Both have the same inputs, so they may be apart by what both may be away from the exact result.
static bool check_cudnn(Test *t, AttentionShape s) {
    std::vector<float> qkv = random_values(3 * outputs_of(s), 1.0f, 60), dout = random_values(outputs_of(s), 1.0f, 61);
    CudnnRun cudnn(s, qkv, dout, 0);
    AttentionRun own(s, qkv, dout);
    if (!cudnn.att.is_open) { return false; }
    cudnn.run();
    own.run(ATTENTION_PLAIN);
    AttentionBounds bounds = attention_bounds(s, true, qkv, dout, own.out.get(), own.lse.get());
    std::string name = attention_name(s);
    check_within(t, name + ": out", cudnn.arrays.out.get(), own.out.get(), bounds.out, FLOATX_EPSILON);
    check_within(t, name + ": lse", cudnn.arrays.lse.get(), own.lse.get(), bounds.lse, 0.0);
    own.out.set(cudnn.arrays.out.get()); // the same for both backward passes
    own.lse.set(cudnn.arrays.lse.get());
    own.backward(ATTENTION_PLAIN);
    check_within(t, name + ": dqkv", cudnn.arrays.dqkv.get(), own.dqkv.get(), bounds.dqkv, FLOATX_EPSILON);
    return true;
}

// NULL: there is a cuDNN to test; or why there is none.
static const char *cudnn_missing(void) {
    static Error error;
    cudnn_environment("1");
    return cudnn_att_check(1, 128, 64, 1, &error) ? NULL : error.text;
}

// Older versions are not asked for all shapes.
static bool is_refused(AttentionShape s) {
    Error error;
    return !cudnn_att_check(s.B, s.T, (int)channels_of(s), s.NH, &error);
}

static void test_cudnn_agrees(Test *t) {
    if (cudnn_missing() != NULL) { SKIP(t, cudnn_missing()); }
    for (AttentionShape s : {AttentionShape{2, 64, 2, 64},
                             {1, 128, 1, 64},
                             {3, 19, 3, 8},
                             {1, 65, 1, 80},
                             {1, 40, 2, 128},
                             {1, 2, 1, 8}}) {
        if (is_refused(s)) { continue; }
        if (!check_cudnn(t, s)) { CHECK(t, false, "%s: no plan", attention_name(s).c_str()); }
    }
}

// The backward a few sequences at a time has the same bits, and each time the same.
static void test_cudnn_chunks(Test *t) {
    if (cudnn_missing() != NULL) { SKIP(t, cudnn_missing()); }
    AttentionShape s = {4, 24, 2, 16};
    if (is_refused(s)) { SKIP(t, "cuDNN is too old for 24 tokens"); }
    std::vector<float> qkv = random_values(3 * outputs_of(s), 1.0f, 62), dout = random_values(outputs_of(s), 1.0f, 63);
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++) {
        CudnnRun cudnn(s, qkv, dout, 1 << i);
        if (!CHECK(t, cudnn.att.is_open, "chunk %d: %s", 1 << i, cudnn.error.text)) { return; }
        hashes[i] = cudnn.run();
        CHECK(t, cudnn.run() == hashes[i], "chunk %d: other bits the second time", 1 << i);
    }
    CHECK(t, hashes[0] == hashes[1] && hashes[1] == hashes[2], "other bits with other chunks");
}

// In a graph, on its own stream, run twice.
static void test_cudnn_capture(Test *t) {
    if (cudnn_missing() != NULL) { SKIP(t, cudnn_missing()); }
    AttentionShape s = {2, 16, 1, 8};
    if (is_refused(s)) { SKIP(t, "cuDNN is too old for 16 tokens"); }
    CudnnRun cudnn(s, random_values(3 * outputs_of(s), 1.0f, 64), random_values(outputs_of(s), 1.0f, 65), 0);
    uint64_t expected = cudnn.run();
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t launchable;
    cudnn.arrays.out.poison(), cudnn.arrays.lse.poison(), cudnn.arrays.dqkv.poison();
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    cudnn_att_forward(&cudnn.att, cudnn.arrays.out.data, cudnn.arrays.lse.data, cudnn.arrays.qkv.data, stream);
    cudnn_att_backward(&cudnn.att, cudnn.arrays.dqkv.data, cudnn.arrays.dout.data, cudnn.arrays.qkv.data,
                       cudnn.arrays.out.data, cudnn.arrays.lse.data, stream);
    cuda_check(cudaStreamEndCapture(stream, &graph));
    cuda_check(cudaGraphInstantiate(&launchable, graph, 0));
    for (int i = 0; i < 2; i++) { cuda_check(cudaGraphLaunch(launchable, stream)); }
    cuda_check(cudaStreamSynchronize(stream));
    CHECK(t, cudnn.arrays.hash() == expected, "a captured run has other bits");
    cuda_check(cudaGraphExecDestroy(launchable));
    cuda_check(cudaGraphDestroy(graph));
    cuda_check(cudaStreamDestroy(stream));
}

static void expect_no_cudnn(Test *t, AttentionShape s, const char *says) {
    CudnnAttention att;
    Error error = {};
    bool open = cudnn_att_open(&att, s.B, s.T, (int)channels_of(s), s.NH, &error);
    CHECK(t, !open && strstr(error.text, says) != NULL, "%s: \"%s\" does not say \"%s\"", attention_name(s).c_str(),
          error.text, says);
    CHECK(t, !cudnn_att_takes(&att, s.B, s.T), "%s: taken", attention_name(s).c_str());
    cudnn_att_close(&att);
}

static void test_cudnn_refusals(Test *t) {
    if (cudnn_missing() != NULL) {
        expect_no_cudnn(t, {1, 64, 1, 64}, cudnn_missing());
        SKIP(t, cudnn_missing());
    }
    expect_no_cudnn(t, {1, 64, 1, 12}, "heads of 12 channels, cuDNN takes multiples of 8 up to 128");
    expect_no_cudnn(t, {1, 64, 1, 136}, "heads of 136 channels");
    expect_no_cudnn(t, {4, 1, 1, 64}, "takes no sequences of one token");
    expect_no_cudnn(t, {2, 16384, 1, 64}, "one sequence of 16384 tokens and 1 heads needs more than 256 MiB");
#ifdef GPT2_EMU
    cudnn_environment("none");
    expect_no_cudnn(t, {1, 64, 1, 64}, "no plan for attention's forward (no engine takes it)");
    cudnn_environment(NULL);
    expect_no_cudnn(t, {1, 64, 1, 64}, "the cuDNN library says version 0, expected 9");
#endif
}

// What versions are known to do wrong is left to our own kernels.
static void test_cudnn_versions(Test *t) {
#ifdef USE_CUDNN
    const struct {
        int version, T;
        bool good;
    } cases[] = {{90000, 1024, true},  {90000, 1000, false}, {91000, 1024, false},
                 {91001, 1024, false}, {91002, 1024, true},  {91500, 1000, false},
                 {91501, 1000, true},  {91900, 1000, true},  {91900, 1, false}};
    for (auto c : cases) {
        CHECK(t, (cudnn_att_fault(c.version, c.T) == NULL) == c.good, "version %d, %d tokens", c.version, c.T);
    }
    CHECK(t, cudnn_att_repeats(90000, 9) && cudnn_att_repeats(91800, 10) && !cudnn_att_repeats(91701, 10),
          "deterministic or not");
#else
    SKIP(t, "built without cuDNN");
#endif
}

// What the workspace takes is known from the shape: 124M's, 1558M's, and what does not fit at all.
static void test_cudnn_workspace(Test *t) {
    CHECK(t, cudnn_att_chunk(64, 1024, 12) == 8, "chunk %d", cudnn_att_chunk(64, 1024, 12));
    CHECK(t, cudnn_att_chunk(16, 1024, 25) == 4, "chunk %d", cudnn_att_chunk(16, 1024, 25));
    CHECK(t, cudnn_att_chunk(7, 1024, 25) == 1 && cudnn_att_chunk(4, 8192, 12) == 0, "chunks");
    int64_t bytes = cudnn_att_backward_bytes(64, 1024, 12), dS = (int64_t)8 * 12 * 1024 * 1024 * 2;
    CHECK(t, bytes == dS + 8 * 12 * 1024 * 4 + CUDNN_ATT_SLACK && bytes <= CUDNN_ATT_MAX_WORKSPACE, "%lld bytes",
          (long long)bytes);
}

static void cudnn_tests(Suite *suite) {
    RUN(suite, test_cudnn_agrees);
    RUN(suite, test_cudnn_chunks);
    RUN(suite, test_cudnn_capture);
    RUN(suite, test_cudnn_refusals);
    RUN(suite, test_cudnn_versions);
    RUN(suite, test_cudnn_workspace);
}

#endif // KERNELS_CUDNN_CUH
