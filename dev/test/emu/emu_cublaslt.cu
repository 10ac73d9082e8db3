// What cublasLtMatmul must refuse, and the mistakes that the emulator reports. The kernels' tests compare its products
// with the CPU's. On hardware this test says whether the emulator tells the truth about cuBLASLt's refusals.
#include <cublasLt.h>
#include <cuda_fp8.h>

#include "dev/test/emu/emu_reports.h"
#include "dev/test/layers/gpu_test.h"
#include "dev/test/test_main.h"

#define WORKSPACE_BYTES (1 << 16) // more would cost the emulator most of the time of this test

// A problem, and how cuBLASLt is to be asked. Every factor is 1.
struct Problem {
    int m = 24, n = 20, k = 40;
    cublasOperation_t trans_a = CUBLAS_OP_N;
    cudaDataType_t in = CUDA_R_16BF, in_b = CUDA_R_16BF, out = CUDA_R_16BF;
    float scale_a = 0.0f; // 0: none is given
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    int pad = 0; // elements between the columns of each matrix
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    int64_t aux_ld = 0, ld_a = 0; // 0: as they should be
    int offset_a = 0;             // elements
    size_t given_workspace = WORKSPACE_BYTES;
    bool without_bias = false;
};

static size_t bytes_of(cudaDataType_t type) {
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2 ? 1 : type == CUDA_R_16BF ? 2 : 4;
}

template <class T> static std::vector<uint8_t> bytes_of_ones(int64_t count) {
    std::vector<T> ones((size_t)count, T(1.0f));
    std::vector<uint8_t> bytes(ones.size() * sizeof(T));
    memcpy(bytes.data(), ones.data(), bytes.size());
    return bytes;
}
static std::vector<uint8_t> ones_of(cudaDataType_t type, int64_t count) {
    switch (type) {
    case CUDA_R_16BF: return bytes_of_ones<__nv_bfloat16>(count);
    case CUDA_R_8F_E4M3: return bytes_of_ones<__nv_fp8_e4m3>(count);
    case CUDA_R_8F_E5M2: return bytes_of_ones<__nv_fp8_e5m2>(count);
    default: return bytes_of_ones<float>(count);
    }
}

// A device array of ones.
struct Ones : DeviceArray<uint8_t> {
    Ones(cudaDataType_t type, int64_t n) : DeviceArray<uint8_t>(n * (int64_t)bytes_of(type)) {
        std::vector<uint8_t> ones = ones_of(type, n);
        cuda_check(cudaMemcpy(data, ones.data(), ones.size(), cudaMemcpyHostToDevice));
    }
};

struct Handle {
    cublasLtHandle_t handle = NULL;
    Handle() { cublasLtCreate(&handle); }
    ~Handle() { cublasLtDestroy(handle); }
};

template <class T>
static void set(cublasLtMatmulDescOpaque_t *desc, cublasLtMatmulDescAttributes_t attribute, T value) {
    cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value));
}

static cublasLtMatrixLayoutOpaque_t layout_of(cudaDataType_t type, int rows, int cols, int64_t ld) {
    cublasLtMatrixLayoutOpaque_t layout;
    cublasLtMatrixLayoutInit(&layout, type, (uint64_t)rows, (uint64_t)cols, ld);
    return layout;
}

static cublasLtMatmulPreferenceOpaque_t preference(void) {
    cublasLtMatmulPreferenceOpaque_t preference;
    uint64_t workspace = WORKSPACE_BYTES;
    uint32_t alignment = 16;
    cublasLtMatmulPreferenceInit(&preference);
    cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof(workspace));
    for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
        cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &alignment, sizeof(alignment));
    }
    return preference;
}

// Asks for an algorithm, multiplies, and returns the first status that is no success. *first: an element of D.
static cublasStatus_t multiply(const Problem &p, float *first) {
    Handle handle;
    const int rows_a = p.trans_a == CUBLAS_OP_N ? p.m : p.k, cols_a = p.m + p.k - rows_a;
    Ones A(p.in, (rows_a + p.pad) * cols_a + 16), B(p.in_b, (p.k + p.pad) * p.n), bias(p.out, p.m);
    DeviceArray<uint8_t> D((int64_t)(p.m + p.pad) * p.n * (int64_t)bytes_of(p.out)), aux(4 * (p.m + 16) * p.n);
    DeviceArray<float> scale(std::vector<float>{p.scale_a});
    DeviceArray<uint8_t> workspace(WORKSPACE_BYTES);
    auto la = layout_of(p.in, rows_a, cols_a, p.ld_a != 0 ? p.ld_a : rows_a + p.pad);
    auto lb = layout_of(p.in_b, p.k, p.n, p.k + p.pad), ld = layout_of(p.out, p.m, p.n, p.m + p.pad);
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatmulDescInit(&desc, p.compute, CUDA_R_32F);
    set<int32_t>(&desc, CUBLASLT_MATMUL_DESC_TRANSA, p.trans_a);
    set<uint32_t>(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    if (p.scale_a != 0.0f) { set<const void *>(&desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale.data); }
    if ((p.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) {
        set<void *>(&desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.without_bias ? NULL : bias.data);
    }
    set<void *>(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.data);
    set<int64_t>(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.aux_ld != 0 ? p.aux_ld : round_up_i64(p.m, 8));
    cublasLtMatmulPreferenceOpaque_t wishes = preference();
    cublasLtMatmulHeuristicResult_t found;
    const float one = 1.0f, zero = 0.0f;
    int count = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle.handle, &desc, &la, &lb, &ld, &ld, &wishes, 1, &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS && count < 1) { status = CUBLAS_STATUS_NOT_SUPPORTED; }
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    status = cublasLtMatmul(handle.handle, &desc, &one, A.data + p.offset_a * (int)bytes_of(p.in), &la, B.data, &lb,
                            &zero, D.data, &ld, D.data, &ld, &found.algo, workspace.data, p.given_workspace, 0);
    cuda_check(cudaDeviceSynchronize());
    __nv_bfloat16 value;
    cuda_check(cudaMemcpy(&value, D.data, sizeof(value), cudaMemcpyDeviceToHost));
    *first = floatX_to_host(value);
    return status;
}

// ---- Refusals ----

// In the emulator the status is known; hardware must only refuse.
static void check_refused(Test *t, const char *what, cublasStatus_t want, const Problem &p) {
    float first;
    cublasStatus_t got = multiply(p, &first);
#ifdef GPT2_EMU
    CHECK(t, got == want, "%s: status %s, expected %s", what, cublasLtGetStatusName(got), cublasLtGetStatusName(want));
#else
    CHECK(t, got != CUBLAS_STATUS_SUCCESS, "%s: not refused (expected status %d)", what, want);
#endif
}

struct Refusal {
    const char *name;
    cublasStatus_t status;
    void (*set)(Problem *p);
};
constexpr cublasStatus_t INVALID = CUBLAS_STATUS_INVALID_VALUE, UNSUPPORTED = CUBLAS_STATUS_NOT_SUPPORTED;

static const Refusal refusals[] = {
    {"leading dimension below the rows", INVALID, [](Problem *p) { p->ld_a = p->m - 8; }},
    {"aux's leading dimension below the rows", INVALID,
     [](Problem *p) { p->epilogue = CUBLASLT_EPILOGUE_GELU_AUX, p->aux_ld = 16; }},
    {"aux's leading dimension not a multiple of 8", INVALID,
     [](Problem *p) { p->epilogue = CUBLASLT_EPILOGUE_GELU_AUX, p->aux_ld = 28; }},
    {"bf16 inputs as tf32", UNSUPPORTED, [](Problem *p) { p->compute = CUBLAS_COMPUTE_32F_FAST_TF32; }},
    {"fp32 into bf16", UNSUPPORTED, [](Problem *p) { p->in = p->in_b = CUDA_R_32F; }},
    {"scales of bf16", INVALID, [](Problem *p) { p->scale_a = 2.0f; }},
#ifdef GPT2_EMU // promises to the heuristic that are not kept: hardware would fail in its own ways, or be slow
    {"less workspace than promised", INVALID, [](Problem *p) { p->given_workspace = 16; }},
    {"A not as aligned as promised", UNSUPPORTED, [](Problem *p) { p->offset_a = 4; }},
    {"no bias", INVALID, [](Problem *p) { p->epilogue = CUBLASLT_EPILOGUE_BIAS, p->without_bias = true; }},
#endif
};

static const Refusal fp8_refusals[] = {
    {"two factors of e5m2", UNSUPPORTED, [](Problem *p) { p->in = CUDA_R_8F_E5M2; }},
    {"m not a multiple of 16", UNSUPPORTED, [](Problem *p) { p->m = 40; }},
    {"n not a multiple of 16", UNSUPPORTED, [](Problem *p) { p->n = 40; }},
    {"k not a multiple of 16", UNSUPPORTED, [](Problem *p) { p->k = 72; }},
    {"8 bits times bf16", UNSUPPORTED, [](Problem *p) { p->in_b = CUDA_R_16BF; }},
    {"8 bits as tf32", UNSUPPORTED, [](Problem *p) { p->compute = CUBLAS_COMPUTE_32F_FAST_TF32; }},
#ifdef GPT2_EMU // what some GPUs can do, and others not
    {"A not transposed", UNSUPPORTED, [](Problem *p) { p->trans_a = CUBLAS_OP_N; }},
    {"GELU", UNSUPPORTED, [](Problem *p) { p->epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }},
    {"columns 8 bytes off", UNSUPPORTED, [](Problem *p) { p->pad = 8; }},
    {"A not aligned", UNSUPPORTED, [](Problem *p) { p->offset_a = 8; }},
#endif
};

// Each refused problem differs in one thing from this one, which is computed: each element of D is `want`.
template <size_t n>
static void check_refusals(Test *t, const Problem &right, const Refusal (&list)[n], float want) {
    float first = 0.0f;
    cublasStatus_t status = multiply(right, &first);
    CHECK(t, status == CUBLAS_STATUS_SUCCESS && first == want, "status %d, D %g, expected %g", status, first, want);
    for (const Refusal &refusal : list) {
        Problem p = right;
        refusal.set(&p);
        check_refused(t, refusal.name, refusal.status, p);
    }
}

TEST(test_refusals) { check_refusals(t, {}, refusals, 40.0f); }

// A layer's shapes: A transposed, B not, m and k multiples of 16.
TEST(test_fp8_refusals) {
    Problem p;
    p.in = CUDA_R_8F_E4M3, p.in_b = CUDA_R_8F_E5M2, p.trans_a = CUBLAS_OP_T, p.m = 48, p.n = 32, p.k = 64;
    p.scale_a = 0.25f;
    if (!gpu_has_fp8()) { SKIP(t, "this GPU has no 8-bit factors"); }
    check_refusals(t, p, fp8_refusals, 16.0f);
}

#ifdef GPT2_EMU
// ---- Mistakes that cuBLASLt leaves undefined ----

// Each runs in a process of its own, which the emulator ends with a report. emu_bugs.cu has those of cuBLAS.

// D = scale A B, all (16, 16), A and B of 8-bit numbers.
static void multiply_square(const float *scale, const Ones &A, const DeviceArray<float> &D, const Ones &workspace,
                            cudaStream_t stream) {
    Handle handle;
    auto layout = layout_of(CUDA_R_8F_E4M3, 16, 16, 16), layout_d = layout_of(CUDA_R_32F, 16, 16, 16);
    cublasLtMatmulPreferenceOpaque_t wishes = preference();
    cublasLtMatmulHeuristicResult_t found;
    cublasLtMatmulDescOpaque_t desc;
    const float one = 1.0f, zero = 0.0f;
    int count = 0;
    cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set<int32_t>(&desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set<const void *>(&desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale);
    cublasLtMatmulAlgoGetHeuristic(handle.handle, &desc, &layout, &layout, &layout_d, &layout_d, &wishes, 1, &found,
                                   &count);
    cublasLtMatmul(handle.handle, &desc, &one, A.data, &layout, A.data, &layout, &zero, D.data, &layout_d, D.data,
                   &layout_d, &found.algo, workspace.data, (size_t)workspace.count, stream);
}

struct Square {
    Ones A{CUDA_R_8F_E4M3, 256}, workspace{CUDA_R_8F_E4M3, WORKSPACE_BYTES};
    DeviceArray<float> scale{1}, D{256}, D2{256};
    float *unwritten;
    cudaStream_t streams[2];
    Square() {
        for (cudaStream_t &stream : streams) { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
        cudaMalloc(&unwritten, sizeof(float));
        cudaDeviceSynchronize();
    }
};

static const struct {
    const char *report; // holds this; NULL: none
    void (*make)(Square &s);
} mistakes[] = {
    {"nitialised", [](Square &s) { multiply_square(s.unwritten, s.A, s.D, s.workspace, 0); }},
    {"not on the device", [](Square &s) { multiply_square(new float(1.0f), s.A, s.D, s.workspace, 0); }},
    {"across streams",
     [](Square &s) { // two multiplications at once in one workspace
         multiply_square(s.scale.data, s.A, s.D, s.workspace, s.streams[0]);
         multiply_square(s.scale.data, s.A, s.D2, s.workspace, s.streams[1]);
     }},
    {NULL,
     [](Square &s) {
         multiply_square(s.scale.data, s.A, s.D, s.workspace, s.streams[0]);
         cudaStreamSynchronize(s.streams[0]);
         multiply_square(s.scale.data, s.A, s.D2, s.workspace, s.streams[1]);
         cudaStreamSynchronize(s.streams[1]);
     }},
};

#if defined(__has_feature) // of clang; gcc has the other macro
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__
#endif
#endif

TEST(test_reported_mistakes) {
#ifdef __SANITIZE_ADDRESS__
    SKIP(t, "the sanitized emulator does not watch streams and uninitialised memory");
#endif
    int i = 0;
    for (const auto &mistake : mistakes) {
        Result result = run_child({"--mistake", std::to_string(i)});
        bool wanted = mistake.report != NULL;
        CHECK(t, (result.status != 0) == wanted && result.text.find(wanted ? mistake.report : "") != std::string::npos,
              "mistake %d: status %d, expected \"%s\" in: %s", i, result.status, wanted ? mistake.report : "",
              result.text.c_str());
        i++;
    }
}
#endif

int main(int argc, char **argv) {
#ifdef GPT2_EMU
    if (argc == 3 && strcmp(argv[1], "--mistake") == 0) {
        Square square;
        mistakes[atoi(argv[2])].make(square);
        return 0;
    }
#endif
    return test_main(argc, argv);
}
