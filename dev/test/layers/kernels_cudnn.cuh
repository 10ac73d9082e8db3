// Attention by cuDNN against our own. In the emulator this tests the graphs: dev/emu/cudnn.cpp computes what they say,
// operation by operation. On a GPU it tests what cuDNN makes of them; without cuDNN there, it is skipped.
#ifndef KERNELS_CUDNN_CUH
#define KERNELS_CUDNN_CUH

#include "llmc/layers/attention_cudnn.h"
#include "dev/test/layers/kernels_attention.cuh"

// The emulator has a cuDNN where this variable says so.
static void cudnn_environment(const char *value) {
    if (value != NULL) {
        setenv("EMU_CUDNN", value, 1);
    } else {
        unsetenv("EMU_CUDNN");
    }
}

// A forward and a backward by cuDNN with the arrays of an AttentionRun. chunk 0: the usual one. All memory that cuDNN
// is given to work in holds NaN bytes (0xff) before.
struct CudnnRun {
    CudnnShape shape;
    AttentionRun arrays;
    CudnnAttention att;
    DeviceArray<float> forward_workspace, backward_workspace;
    Error error = {};

    CudnnRun(AttentionShape s, const std::vector<float> &qkv, const std::vector<float> &dout, int chunk,
             bool deterministic = true)
        : shape({s, deterministic}), arrays(s, qkv, dout), forward_workspace(CUDNN_ATT_SLACK / 4),
          backward_workspace(cudnn_att_backward_bytes(&shape) / 4 + 1) {
        cudnn_att_open(&att, &shape, chunk > 0 ? chunk : cudnn_att_chunk(&shape), &error);
    }
    ~CudnnRun() { cudnn_att_close(&att); }

    void forward(cudaStream_t stream = 0) {
        arrays.out.poison(), arrays.lse.poison(), forward_workspace.poison();
        cudnn_att_forward(&att, arrays.out.data, arrays.lse.data, arrays.qkv.data, forward_workspace.data, stream);
    }
    void backward(cudaStream_t stream = 0) {
        arrays.dqkv.poison(), backward_workspace.poison();
        cudnn_att_backward(&att, arrays.dqkv.data, arrays.dout.data, arrays.qkv.data, arrays.out.data, arrays.lse.data,
                           backward_workspace.data, stream);
    }
    uint64_t run() {
        forward();
        backward();
        cuda_check(cudaDeviceSynchronize());
        return arrays.hash();
    }
};

static void check_cudnn_on(Test *t, AttentionShape s, bool deterministic, const std::vector<float> &qkv,
                           const std::vector<float> &dout) {
    CudnnRun cudnn(s, qkv, dout, 0, deterministic);
    std::string name = attention_name(s) + (deterministic ? "" : " with atomics");
    if (!CHECK(t, cudnn.att.is_open, "%s: %s", name.c_str(), cudnn.error.text)) { return; }
    cudnn.run();
    // The products that are summed to dk and dv are in bf16, like p and ds.
    double u = FLOATX_EPSILON / 2.0;
    check_against_simt(t, name, cudnn.arrays, qkv, dout, s.KV < s.NH ? 2.0 * u : u);
}

static void check_cudnn(Test *t, const std::vector<AttentionShape> &shapes, bool deterministic) {
    for (AttentionShape s : shapes) {
        if (test_is_quick() && s.HS == 128) { continue; } // test_cudnn_low_scores has such heads
        check_cudnn_on(t, s, deterministic, random_values(inputs_of(s), 1.0f, 60),
                       random_values(outputs_of(s), 1.0f, 61));
    }
}

// NULL: there is a cuDNN to test; or why there is none.
static const char *cudnn_missing(void) {
    static Error error;
    CudnnShape shape = {{1, 128, 1, 1, 64}, true};
    cudnn_environment("1");
    return cudnn_att_check(&shape, &error) ? NULL : error.text;
}

TEST(test_cudnn_agrees) {
    if (cudnn_missing() != NULL) { SKIP(t, cudnn_missing()); }
    check_cudnn(t, {{2, 128, 2, 2, 64}, {3, 128, 3, 3, 8}, {1, 256, 1, 1, 80}, {1, 128, 2, 2, 128}}, true);
    check_cudnn(t, {{1, 128, 9, 3, 8}}, true);
    if (!test_is_quick()) { check_cudnn(t, {{2, 128, 4, 2, 64}, {1, 256, 4, 1, 80}, {1, 128, 8, 1, 128}}, true); }
    // --deterministic 0: the function is unchanged, but its bits may be any.
    check_cudnn(t, {{2, 256, 1, 1, 64}, {1, 128, 2, 2, 80}, {1, 128, 1, 1, 128}, {1, 128, 4, 2, 8}}, false);
}

// Every score is -100 but for some noise, and so is every lse. A masked score must get a probability of 0 nevertheless,
// and nothing may be read in the workspace that was not written there. Public reports of wrong results name both.
TEST(test_cudnn_low_scores) {
    if (cudnn_missing() != NULL) { SKIP(t, cudnn_missing()); }
    int more = test_is_quick() ? 1 : 2; // heads and sequences beside each other have tests of their own
    const AttentionShape shapes[] = {{1, 256, more, more, 64}, {more, 128, 1, 1, 128}};
    for (AttentionShape s : shapes) {
        float size = sqrtf(100.0f / sqrtf((float)s.HS)); // of a value: HS products of -size^2, over sqrt(HS)
        std::vector<float> qkv = random_values(inputs_of(s), 1.0f, 66);
        for (int64_t i = 0; i < (int64_t)qkv.size(); i++) {
            int64_t part = i / channels_of(s) % 3; // 0: q, 1: k, 2: v
            if (part == 2) { continue; }
            qkv[(size_t)i] = rounded((part == 0 ? size : -size) * (1.0f + 0.05f * qkv[(size_t)i]));
        }
        std::vector<float> dout = random_values(outputs_of(s), 1.0f, 67);
        for (bool deterministic : {true, false}) { check_cudnn_on(t, s, deterministic, qkv, dout); }
        AttentionRun own(s, qkv, dout);
        own.forward(ATTENTION_SIMT);
        for (float lse : own.lse.get()) { CHECK(t, lse > -103.0f && lse < -90.0f, "lse %g is not near -100", lse); }
    }
}

// The backward a few sequences at a time has the bits of all at once, each time.
TEST(test_cudnn_chunks) {
    if (cudnn_missing() != NULL) { SKIP(t, cudnn_missing()); }
    AttentionShape s = {6, 128, 2, 1, 16};
    std::vector<float> qkv = random_values(inputs_of(s), 1.0f, 62), dout = random_values(outputs_of(s), 1.0f, 63);
    uint64_t first = 0;
    for (int chunk : {6, 3, 2, 1}) {
        CudnnRun cudnn(s, qkv, dout, chunk);
        if (!CHECK(t, cudnn.att.is_open, "chunk %d: %s", chunk, cudnn.error.text)) { return; }
        uint64_t hash = cudnn.run();
        first = chunk == 6 ? hash : first;
        CHECK(t, cudnn.run() == hash, "chunk %d: other bits the second time", chunk);
        CHECK(t, hash == first, "chunk %d: other bits than all at once", chunk);
    }
}

static void expect_no_cudnn(Test *t, AttentionShape s, const char *says) {
    CudnnAttention att;
    Error error = {};
    CudnnShape shape = {s, true};
    bool open = cudnn_att_open(&att, &shape, cudnn_att_chunk(&shape), &error);
    CHECK(t, !open && strstr(error.text, says) != NULL, "%s: \"%s\" does not say \"%s\"", attention_name(s).c_str(),
          error.text, says);
    CHECK(t, !cudnn_att_takes(&att, s.B, s.T), "%s: taken", attention_name(s).c_str());
    cudnn_att_close(&att);
}

TEST(test_cudnn_refusals) {
    if (cudnn_missing() != NULL) {
        expect_no_cudnn(t, {1, 128, 1, 1, 64}, cudnn_missing());
        SKIP(t, cudnn_missing());
    }
    expect_no_cudnn(t, {1, 128, 1, 1, 12}, "heads of 12 channels, cuDNN takes multiples of 8 up to 128");
    expect_no_cudnn(t, {1, 128, 1, 1, 136}, "heads of 136 channels");
    for (int T : {1, 64, 1000, 1025}) {
        expect_no_cudnn(t, {1, T, 1, 1, 64}, "cuDNN is asked for multiples of 128 only");
    }
    expect_no_cudnn(t, {65536, 128, 1, 1, 8}, "a batch of 65536 sequences, cuDNN takes at most 65535");
#ifdef GPT2_EMU
    cudnn_environment("none");
    expect_no_cudnn(t, {1, 128, 1, 1, 64}, "no plan for attention's forward (no engine takes it)");
    cudnn_environment(NULL);
    expect_no_cudnn(t, {1, 128, 1, 1, 64}, "the emulator has a cuDNN only with EMU_CUDNN=1");
#endif
}

// Does a cuDNN of this version open on a GPU of this compute capability?
static bool cudnn_opens(const char *version, const char *capability, bool deterministic) {
    CudnnShape shape = {{1, 128, 1, 1, 64}, deterministic};
    CudnnAttention att;
    Error error = {};
    cudnn_environment(version);
    setenv("EMU_CAPABILITY", capability, 1);
    bool opens = cudnn_att_open(&att, &shape, 1, &error);
    cudnn_att_close(&att);
    unsetenv("EMU_CAPABILITY");
    return opens;
}

// What versions are known to do wrong is left to our own kernels. On Blackwell this is the deterministic backward
// before 9.18.1. Before 9.10 another number is masked: the result is the same.
TEST(test_cudnn_versions) {
#ifdef GPT2_EMU
    if (cudnn_missing() != NULL) { SKIP(t, cudnn_missing()); }
    const struct {
        const char *version, *capability;
        bool opens, opens_with_atomics;
    } cases[] = {{"80900", "9.0", false, false}, {"90000", "9.0", true, true},   {"91001", "9.0", false, false},
                 {"91002", "9.0", true, true},   {"91800", "10.3", false, true}, {"91801", "10.0", true, true},
                 {"91800", "12.0", true, true}};
    for (auto c : cases) {
        CHECK(t, cudnn_opens(c.version, c.capability, true) == c.opens, "%s on %s", c.version, c.capability);
        CHECK(t, cudnn_opens(c.version, c.capability, false) == c.opens_with_atomics, "%s on %s, with atomics",
              c.version, c.capability);
    }
    AttentionShape s = {1, 128, 1, 1, 8};
    cudnn_environment("90999");
    check_cudnn_on(t, s, true, random_values(inputs_of(s), 1.0f, 60), random_values(outputs_of(s), 1.0f, 61));
    cudnn_environment("1");
#else
    SKIP(t, "only the emulator has several versions");
#endif
}

static void check_chunk(Test *t, CudnnShape shape, int want) {
    int got = cudnn_att_chunk(&shape);
    CHECK(t, got == want, "B %d T %d NH %d: chunks of %d, expected %d", shape.B, shape.T, shape.NH, got, want);
    int64_t bytes = cudnn_att_backward_bytes(&shape);
    CHECK(t,
          shape.B % got == 0 && bytes == cudnn_att_workspace_for(&shape, got) &&
              (got == 1 || bytes <= CUDNN_ATT_MAX_WORKSPACE),
          "B %d: %lld bytes", shape.B, (long long)bytes);
}

// What the workspace takes is known from the shape: 124M's, 1558M's, a prime batch, and sequences so long that one
// takes more than the limit of several.
TEST(test_cudnn_workspace) {
    check_chunk(t, {{64, 1024, 12, 12, 64}, true}, 8);
    check_chunk(t, {{16, 1024, 25, 25, 64}, true}, 4);
    check_chunk(t, {{7, 1024, 25, 25, 64}, true}, 1);
    check_chunk(t, {{3, 2048, 32, 32, 64}, true}, 1);
    check_chunk(t, {{64, 1024, 12, 12, 64}, false}, 32);
    check_chunk(t, {{64, 1024, 12, 4, 64}, true}, 8);
    CudnnShape small = {{64, 1024, 12, 12, 64}, true}, sums = {{2, 1024, 12, 12, 64}, false};
    int64_t bytes = cudnn_att_backward_bytes(&small), dS = (int64_t)8 * 12 * 1024 * 1024 * 2;
    CHECK(t, bytes == dS + 8 * 12 * 1024 * 4 + CUDNN_ATT_SLACK, "%lld bytes", (long long)bytes);
    small.KV = 4; // dk and dv of 12 heads in bf16
    bytes = cudnn_att_backward_bytes(&small);
    CHECK(t, bytes == dS + 8 * 12 * 1024 * (4 + 2 * 64 * 2) + CUDNN_ATT_SLACK, "%lld bytes", (long long)bytes);
    bytes = cudnn_att_backward_bytes(&sums);
    CHECK(t, bytes == 2 * (2 * 1024 * 768 * 4) + 2 * 12 * 1024 * 4 + CUDNN_ATT_SLACK, "%lld bytes", (long long)bytes);
}

#endif // KERNELS_CUDNN_CUH
