// cublasLtMatmul against a sum in double precision: all that the trainer asks of it, and all that it must refuse. In
// the emulator it tests the emulator; on hardware it says whether the emulator tells the truth about cuBLASLt.
#include <cublasLt.h>
#include <cuda_fp8.h>

#include "dev/test/emu/emu_reports.h"
#include "dev/test/layers/gpu_test.h"
#include "dev/test/test_main.h"

// The parts of an epilogue, which this test takes apart.
static_assert(CUBLASLT_EPILOGUE_GELU_AUX_BIAS == (4 | 32 | 128) && CUBLASLT_EPILOGUE_DGELU == (64 | 128), "");

#define WORKSPACE_BYTES (1 << 16) // more would cost the emulator most of the time of this test

// A problem, its data, and how cuBLASLt is to be asked. Fields that a test does not set have their usual values.
struct Problem {
    int m = 24, n = 20, k = 40;
    cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
    cudaDataType_t in = CUDA_R_16BF, out = CUDA_R_16BF;
    int in_b = -1;                        // the type of B; -1: that of A
    float scale_a = 0.0f, scale_b = 0.0f; // 0: none is given
    bool fast_sums = false;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    int pad = 0; // elements between the columns (or rows) of each matrix
    cublasLtOrder_t order = CUBLASLT_ORDER_COL;
    int batch = 1;
    float alpha = 1.0f, beta = 0.0f;
    bool in_place = true; // C is D
    bool device_scalars = false;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    // for what must be refused
    int64_t aux_ld = 0, ld_a = 0; // 0: as they should be
    int offset_a = 0, offset_aux = 0;
    int declared_alignment = 16;
    uint64_t max_workspace = WORKSPACE_BYTES;
    size_t given_workspace = WORKSPACE_BYTES;
    bool without_bias = false, without_algo = false;
    int bias_type = -1;
};

static bool is_fp8(int type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
static size_t bytes_of(cudaDataType_t type) { return is_fp8(type) ? 1 : type == CUDA_R_16BF ? 2 : 4; }

template <class T> static float through(float x) { return (float)T(x); }
static float rounded_to(cudaDataType_t type, float x) {
    switch (type) {
    case CUDA_R_16BF: return __bfloat162float(__float2bfloat16_rn(x));
    case CUDA_R_8F_E4M3: return through<__nv_fp8_e4m3>(x);
    case CUDA_R_8F_E5M2: return through<__nv_fp8_e5m2>(x);
    default: return x;
    }
}

template <class T> static void encode(uint8_t *to, T x) { memcpy(to, &x, sizeof(x)); }
template <class T> static float decode(const uint8_t *from) {
    T x;
    memcpy(&x, from, sizeof(x));
    return floatX_to_host(x);
}

// A device array of any of the types.
struct Array {
    cudaDataType_t type;
    DeviceArray<uint8_t> bytes;

    Array(cudaDataType_t type, int64_t count) : type(type), bytes(count * (int64_t)bytes_of(type)) {}
    void set(const std::vector<float> &values) {
        std::vector<uint8_t> stored(values.size() * bytes_of(type));
        for (size_t i = 0; i < values.size(); i++) {
            uint8_t *to = &stored[i * bytes_of(type)];
            switch (type) {
            case CUDA_R_16BF: encode(to, __float2bfloat16_rn(values[i])); break;
            case CUDA_R_8F_E4M3: encode(to, __nv_fp8_e4m3(values[i])); break;
            case CUDA_R_8F_E5M2: encode(to, __nv_fp8_e5m2(values[i])); break;
            default: encode(to, values[i]);
            }
        }
        cuda_check(cudaMemcpy(bytes.data, stored.data(), stored.size(), cudaMemcpyHostToDevice));
    }
    std::vector<float> get() const { // of results, which are fp32 or bf16
        std::vector<uint8_t> stored = bytes.raw();
        std::vector<float> values;
        for (size_t i = 0; i < stored.size(); i += bytes_of(type)) {
            values.push_back(type == CUDA_R_32F ? decode<float>(&stored[i]) : decode<__nv_bfloat16>(&stored[i]));
        }
        return values;
    }
    char *data(int offset = 0) const { return (char *)bytes.data + offset * (int)bytes_of(type); }
};

static std::vector<float> values_of(cudaDataType_t type, int64_t n, float scale, int stream) {
    std::vector<float> values = random_values(n, scale, stream);
    for (float &x : values) { x = rounded_to(type, x); }
    return values;
}

// A rows x cols matrix of a batch in an array: the leading dimension, and where element (b, i, j) lies.
struct Shape {
    int rows, cols;
    int64_t ld, batch_stride;
    bool by_row;

    int64_t at(int b, int i, int j) const { return b * batch_stride + (by_row ? i * ld + j : j * ld + i); }
    int64_t count(int batch) const { return batch * batch_stride; }
};

static Shape shape_of(const Problem &p, int rows, int cols) {
    bool by_row = p.order == CUBLASLT_ORDER_ROW;
    int64_t ld = (by_row ? cols : rows) + p.pad;
    return {rows, cols, ld, round_up_i64(ld * (by_row ? rows : cols), 8), by_row};
}

struct Run {
    Problem p;
    Shape A, B, D, aux;
    std::vector<float> a, b, c, bias, pre; // inputs
    cublasStatus_t asked, ran;
    std::vector<float> d, aux_out; // what cuBLASLt made
};

static bool has(const Problem &p, int part) { return (p.epilogue & part) != 0; }
static bool reads_aux(const Problem &p) { return has(p, 64); }

// ---- Asking cuBLASLt ----

static cublasLtMatrixLayoutOpaque_t layout_of(const Problem &p, const Shape &s, cudaDataType_t type, int64_t ld) {
    cublasLtMatrixLayoutOpaque_t layout;
    int32_t order = p.order, batch = p.batch;
    cublasLtMatrixLayoutInit(&layout, type, (uint64_t)s.rows, (uint64_t)s.cols, ld);
    cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof(order));
    cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch));
    cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &s.batch_stride,
                                     sizeof(s.batch_stride));
    return layout;
}

template <class T>
static void set(cublasLtMatmulDescOpaque_t *desc, cublasLtMatmulDescAttributes_t attribute, T value) {
    cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value));
}

// scales: of A and B, on the device.
static cublasLtMatmulDescOpaque_t desc_of(const Run &r, const Array &bias, const Array &aux, const float *scales) {
    const Problem &p = r.p;
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatmulDescInit(&desc, p.compute, CUDA_R_32F);
    set<int32_t>(&desc, CUBLASLT_MATMUL_DESC_TRANSA, p.trans_a);
    set<int32_t>(&desc, CUBLASLT_MATMUL_DESC_TRANSB, p.trans_b);
    set<uint32_t>(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    set<int32_t>(&desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, p.device_scalars);
    if (p.scale_a != 0.0f) { set<const void *>(&desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales); }
    if (p.scale_b != 0.0f) { set<const void *>(&desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales + 1); }
    if (p.fast_sums) { set<int8_t>(&desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1); }
    if (has(p, 4)) {
        set<void *>(&desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.without_bias ? NULL : bias.data());
        set<int64_t>(&desc, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, (int64_t)r.bias.size() / p.batch);
        if (p.bias_type != -1) { set<int32_t>(&desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, p.bias_type); }
    }
    if (has(p, 128)) {
        set<void *>(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.data(p.offset_aux));
        set<int64_t>(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.aux_ld != 0 ? p.aux_ld : r.aux.ld);
        set<int64_t>(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, r.aux.batch_stride);
    }
    return desc;
}

static cublasLtMatmulPreferenceOpaque_t preference_of(const Problem &p) {
    cublasLtMatmulPreferenceOpaque_t preference;
    uint32_t alignment = (uint32_t)p.declared_alignment;
    const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreferenceInit(&preference);
    cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &p.max_workspace,
                                         sizeof(p.max_workspace));
    for (cublasLtMatmulPreferenceAttributes_t attribute : alignments) {
        cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &alignment, sizeof(alignment));
    }
    return preference;
}

static std::vector<float> with_room(const std::vector<float> &values) { // for offsets
    std::vector<float> longer = values;
    longer.resize(values.size() + 16, 0.0f);
    return longer;
}

// Fills the inputs, asks for an algorithm, multiplies, and reads everything back.
static Run run(const Problem &p, cublasLtHandle_t handle) {
    Run r;
    r.p = p;
    r.A = p.trans_a == CUBLAS_OP_N ? shape_of(p, p.m, p.k) : shape_of(p, p.k, p.m);
    r.B = p.trans_b == CUBLAS_OP_N ? shape_of(p, p.k, p.n) : shape_of(p, p.n, p.k);
    r.D = shape_of(p, p.m, p.n);
    r.aux = r.D;
    r.aux.ld = round_up_i64(p.m, 8) + 8;
    r.aux.batch_stride = r.aux.ld * p.n;
    cudaDataType_t in_b = p.in_b == -1 ? p.in : (cudaDataType_t)p.in_b;
    r.a = values_of(p.in, r.A.count(p.batch), 1.0f, 1), r.b = values_of(in_b, r.B.count(p.batch), 1.0f, 2);
    r.c = values_of(p.out, r.D.count(p.batch), 1.0f, 3), r.pre = values_of(p.out, r.aux.count(p.batch), 1.0f, 4);
    r.bias = values_of(p.out, (int64_t)p.batch * p.m, 1.0f, 5);
    Array A(p.in, r.A.count(p.batch) + 16), B(in_b, r.B.count(p.batch)), C(p.out, r.D.count(p.batch));
    Array D(p.out, r.D.count(p.batch)), bias(p.out, (int64_t)r.bias.size()), aux(p.out, r.aux.count(p.batch) + 16);
    DeviceArray<float> scales(std::vector<float>{p.scale_a, p.scale_b});
    A.set(with_room(r.a)), B.set(r.b), bias.set(r.bias);
    if (p.beta != 0.0f) { (p.in_place ? D : C).set(r.c); }
    if (reads_aux(p)) { aux.set(with_room(r.pre)); }

    cublasLtMatrixLayoutOpaque_t la = layout_of(p, r.A, p.in, p.ld_a != 0 ? p.ld_a : r.A.ld);
    cublasLtMatrixLayoutOpaque_t lb = layout_of(p, r.B, in_b, r.B.ld), ld = layout_of(p, r.D, p.out, r.D.ld);
    cublasLtMatmulDescOpaque_t desc = desc_of(r, bias, aux, scales.data);
    cublasLtMatmulPreferenceOpaque_t preference = preference_of(p);
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    r.ran = CUBLAS_STATUS_SUCCESS;
    r.asked = cublasLtMatmulAlgoGetHeuristic(handle, &desc, &la, &lb, &ld, &ld, &preference, 1, &found, &count);
    if (r.asked == CUBLAS_STATUS_SUCCESS && count < 1) { r.asked = CUBLAS_STATUS_NOT_SUPPORTED; }
    if (r.asked != CUBLAS_STATUS_SUCCESS) { return r; }
    DeviceArray<float> scalars(std::vector<float>{p.alpha, p.beta});
    DeviceArray<uint8_t> workspace(WORKSPACE_BYTES);
    const float *alpha = p.device_scalars ? scalars.data : &p.alpha;
    const float *beta = p.device_scalars ? scalars.data + 1 : &p.beta;
    r.ran = cublasLtMatmul(handle, &desc, alpha, A.data(p.offset_a), &la, B.data(), &lb, beta,
                           p.in_place ? D.data() : C.data(), &ld, D.data(), &ld, p.without_algo ? NULL : &found.algo,
                           workspace.data, p.given_workspace, 0);
    cuda_check(cudaDeviceSynchronize());
    r.d = D.get(), r.aux_out = aux.get();
    return r;
}

// ---- What it must give ----

static double gelu_of(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double gelu_slope_of(double x) {
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static double element_a(const Run &r, int b, int i, int k) {
    return r.a[(size_t)(r.p.trans_a == CUBLAS_OP_N ? r.A.at(b, i, k) : r.A.at(b, k, i))];
}
static double element_b(const Run &r, int b, int k, int j) {
    return r.b[(size_t)(r.p.trans_b == CUBLAS_OP_N ? r.B.at(b, k, j) : r.B.at(b, j, k))];
}

// What the epilogue begins with: alpha op(A) op(B) + beta C (+ bias).
static double before_epilogue(const Run &r, int b, int i, int j) {
    double sum = 0.0;
    for (int k = 0; k < r.p.k; k++) { sum += element_a(r, b, i, k) * element_b(r, b, k, j); }
    sum *= (double)r.p.alpha * (r.p.scale_a != 0.0f ? r.p.scale_a : 1.0) * (r.p.scale_b != 0.0f ? r.p.scale_b : 1.0);
    if (r.p.beta != 0.0f) { sum += (double)r.p.beta * (double)r.c[(size_t)r.D.at(b, i, j)]; }
    return has(r.p, 4) ? sum + (double)r.bias[(size_t)(b * r.p.m + i)] : sum;
}

// Sums of k terms of size 1 and their rounding; tf32 loses half of 2^-10 (or all of it, if cut) of each of two factors.
// 8-bit products are added up with 13 bits behind the point of the largest, 16 or 32 at a time.
static double tolerance_of(const Problem &p, double largest_value) {
    double factors = p.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? 2.0 / 1024 : 0.0;
#ifndef GPT2_EMU
    if (is_fp8(p.in)) { factors = (2.0 + p.k / 16.0) / 8192; }
#endif
    return (sum_tolerance(p.k) + factors) * fmax(largest_value, 1.0);
}
static double rounding_of(const Problem &p) { return p.out == CUDA_R_16BF ? 1.0 / 256 : FLT_EPSILON; }

// D and the auxiliary matrix against sums in double; nothing else in D's array may be touched.
static void check_run(Test *t, const char *what, const Run &r) {
    const Problem &p = r.p;
    if (!CHECK(t, r.asked == CUBLAS_STATUS_SUCCESS && r.ran == CUBLAS_STATUS_SUCCESS, "%s: statuses %d, %d", what,
               r.asked, r.ran)) {
        return;
    }
    std::vector<float> got, want, got_aux, want_aux;
    for (int b = 0; b < p.batch; b++) {
        for (int j = 0; j < p.n; j++) {
            for (int i = 0; i < p.m; i++) {
                double x = before_epilogue(r, b, i, j), pre = r.pre[(size_t)r.aux.at(b, i, j)];
                want_aux.push_back((float)x), got_aux.push_back(r.aux_out[(size_t)r.aux.at(b, i, j)]);
                x = has(p, 32) ? gelu_of(x) : has(p, 64) ? x * gelu_slope_of(pre) : x;
                want.push_back((float)x), got.push_back(r.d[(size_t)r.D.at(b, i, j)]);
            }
        }
    }
    check_values(t, what, got, want, tolerance_of(p, largest(want)), rounding_of(p));
    if (has(p, 128) && !has(p, 64)) {
        check_values(t, std::string(what) + ": aux", got_aux, want_aux, tolerance_of(p, largest(want_aux)),
                     rounding_of(p));
    }
    if (p.pad > 0 && p.beta == 0.0f && p.order == CUBLASLT_ORDER_COL) {
        CHECK(t, isnan(r.d[(size_t)r.D.at(0, p.m, 0)]), "%s: writes between the columns of D", what);
    }
}

struct Handle {
    cublasLtHandle_t handle = NULL;
    Handle() { cublasLtCreate(&handle); }
    ~Handle() { cublasLtDestroy(handle); }
};

struct Types {
    const char *name;
    cudaDataType_t in, out;
    cublasComputeType_t compute;
};
static const Types all_types[] = {
    {"fp32", CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    {"tf32", CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32},
    {"bf16", CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F},
    {"bf16 to fp32", CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F},
};

template <class Set> static void check_types(Test *t, const char *what, Set set) {
    Handle handle;
    for (const Types &types : all_types) {
        Problem p;
        p.in = types.in, p.out = types.out, p.compute = types.compute;
        set(&p);
        check_run(t, (std::string(what) + ", " + types.name).c_str(), run(p, handle.handle));
    }
}

// ---- Tests ----

TEST(test_shapes) {
    const int shapes[][3] = {{8, 1, 8}, {8, 17, 72}, {104, 3, 264}, {16, 65, 600}, {136, 33, 8}};
    for (const int *shape : shapes) {
        for (int transposed = 0; transposed < 4; transposed++) {
            check_types(t, format("m %d, transposed %d", shape[0], transposed), [=](Problem *p) {
                p->m = shape[0], p->n = shape[1], p->k = shape[2];
                p->trans_a = transposed % 2 ? CUBLAS_OP_T : CUBLAS_OP_N;
                p->trans_b = transposed / 2 ? CUBLAS_OP_T : CUBLAS_OP_N;
            });
        }
    }
}

TEST(test_problems) {
    const struct {
        const char *name;
        void (*set)(Problem *p);
    } problems[] = {
        {"padded", [](Problem *p) { p->pad = 8; }},
        {"padded, transposed", [](Problem *p) { p->pad = 16, p->trans_a = p->trans_b = CUBLAS_OP_T; }},
        {"rows in order", [](Problem *p) { p->order = CUBLASLT_ORDER_ROW, p->m = 24, p->n = 40; }},
        {"batch", [](Problem *p) { p->batch = 3, p->trans_a = CUBLAS_OP_T; }},
        {"batch with bias", [](Problem *p) { p->batch = 3, p->pad = 8, p->epilogue = CUBLASLT_EPILOGUE_BIAS; }},
        {"alpha", [](Problem *p) { p->alpha = 0.5f; }},
        {"beta in place", [](Problem *p) { p->beta = 1.0f; }},
        {"alpha and beta", [](Problem *p) { p->alpha = -2.0f, p->beta = 0.25f, p->in_place = false; }},
        {"C, which holds NaN, is not read where beta is 0", [](Problem *p) { p->in_place = false; }},
        {"scalars on the device", [](Problem *p) { p->device_scalars = true, p->alpha = 3.0f, p->beta = 1.0f; }},
    };
    for (const auto &problem : problems) { check_types(t, problem.name, problem.set); }
}

TEST(test_epilogues) {
    const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_BIAS,          CUBLASLT_EPILOGUE_GELU,
                                            CUBLASLT_EPILOGUE_GELU_BIAS,     CUBLASLT_EPILOGUE_GELU_AUX,
                                            CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
    for (cublasLtEpilogue_t e : epilogues) {
        for (cublasOperation_t a : {CUBLAS_OP_N, CUBLAS_OP_T}) {
            check_types(t, format("epilogue %d", (int)e),
                        [=](Problem *p) { p->epilogue = e, p->alpha = 0.125f, p->trans_a = a; });
        }
    }
}

// ---- 8-bit factors ----

// A layer's shapes: A transposed, B not, m and k multiples of 16.
static Problem fp8_problem(cudaDataType_t in, int in_b, cudaDataType_t out) {
    Problem p;
    p.in = in, p.in_b = in_b, p.out = out, p.trans_a = CUBLAS_OP_T, p.m = 48, p.n = 32, p.k = 64;
    p.scale_a = 0.25f, p.scale_b = 8.0f;
    return p;
}

static const char *const no_fp8 = "this GPU has no 8-bit factors";

TEST(test_fp8) {
    const cudaDataType_t e4m3 = CUDA_R_8F_E4M3, e5m2 = CUDA_R_8F_E5M2, outputs[] = {CUDA_R_16BF, CUDA_R_32F};
    const cudaDataType_t inputs[][2] = {{e4m3, e4m3}, {e4m3, e5m2}, {e5m2, e4m3}};
    Handle handle;
    if (!gpu_has_fp8()) { SKIP(t, no_fp8); }
    for (const cudaDataType_t *in : inputs) {
        for (cudaDataType_t out : outputs) {
            Problem p = fp8_problem(in[0], in[1], out);
            check_run(t, "8 bits", run(p, handle.handle));
            p.beta = 1.0f, p.pad = 16, p.n = 48, p.fast_sums = true;
            check_run(t, "8 bits, fast, added, padded", run(p, handle.handle));
            p.scale_a = 0.0f, p.beta = 0.0f, p.batch = 2;
            check_run(t, "8 bits, one scale, batch", run(p, handle.handle));
        }
        Problem p = fp8_problem(in[0], in[1], CUDA_R_16BF);
        p.epilogue = CUBLASLT_EPILOGUE_BIAS, p.n = 16;
        check_run(t, "8 bits with bias", run(p, handle.handle));
    }
}

// In the emulator the status is known; hardware must only refuse.
static void check_refused(Test *t, const char *what, cublasStatus_t want, const Problem &p) {
    Handle handle;
    Run r = run(p, handle.handle);
    cublasStatus_t got = r.asked != CUBLAS_STATUS_SUCCESS ? r.asked : r.ran;
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
    {"fp32 into bf16", UNSUPPORTED, [](Problem *p) { p->in = CUDA_R_32F; }},
    {"bf16 sums", UNSUPPORTED, [](Problem *p) { p->compute = CUBLAS_COMPUTE_16F; }},
    {"bias of another type", UNSUPPORTED,
     [](Problem *p) { p->epilogue = CUBLASLT_EPILOGUE_BIAS, p->bias_type = CUDA_R_16F; }},
    {"scales of bf16", INVALID, [](Problem *p) { p->scale_a = 2.0f; }},
#ifdef GPT2_EMU // promises to the heuristic that are not kept: hardware would fail in its own ways, or be slow
    {"less workspace than promised", INVALID, [](Problem *p) { p->given_workspace = 16; }},
    {"A not as aligned as promised", UNSUPPORTED, [](Problem *p) { p->offset_a = 4; }},
    {"A aligned to 16 bytes, 256 promised", UNSUPPORTED,
     [](Problem *p) { p->offset_a = 8, p->declared_alignment = 256; }},
    {"A not aligned for tensor cores", UNSUPPORTED, [](Problem *p) { p->offset_a = 4, p->without_algo = true; }},
    {"aux not aligned", UNSUPPORTED, [](Problem *p) { p->epilogue = CUBLASLT_EPILOGUE_GELU_AUX, p->offset_aux = 4; }},
    {"no bias", INVALID, [](Problem *p) { p->epilogue = CUBLASLT_EPILOGUE_BIAS, p->without_bias = true; }},
    {"an epilogue of rows in order", UNSUPPORTED,
     [](Problem *p) { p->epilogue = CUBLASLT_EPILOGUE_BIAS, p->order = CUBLASLT_ORDER_ROW; }},
    {"RELU", UNSUPPORTED, [](Problem *p) { p->epilogue = CUBLASLT_EPILOGUE_RELU; }},
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
    {"B transposed", UNSUPPORTED, [](Problem *p) { p->trans_b = CUBLAS_OP_T, p->n = 32; }},
    {"GELU", UNSUPPORTED, [](Problem *p) { p->epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }},
    {"columns 8 bytes off", UNSUPPORTED, [](Problem *p) { p->pad = 8; }},
    {"A not aligned", UNSUPPORTED, [](Problem *p) { p->offset_a = 8; }},
    {"A not aligned, without an algorithm", UNSUPPORTED, [](Problem *p) { p->offset_a = 8, p->without_algo = true; }},
#endif
};

TEST(test_refusals) {
    for (const Refusal &refusal : refusals) {
        Problem p;
        refusal.set(&p);
        check_refused(t, refusal.name, refusal.status, p);
    }
}

TEST(test_fp8_refusals) {
    if (!gpu_has_fp8()) { SKIP(t, no_fp8); }
    for (const Refusal &refusal : fp8_refusals) {
        Problem p = fp8_problem(CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16BF);
        refusal.set(&p);
        check_refused(t, refusal.name, refusal.status, p);
    }
}

#ifdef GPT2_EMU
// Mistakes that cuBLASLt leaves undefined, each in a process of its own, which the emulator ends with a report.

// D = A B, all (16, 16); with a scale of A, the bytes of A and B are taken for 8-bit numbers.
static void multiply_square(const DeviceArray<float> &A, const DeviceArray<float> &B, const DeviceArray<float> &D,
                            const DeviceArray<uint8_t> &workspace, cudaStream_t stream, const float *scale = NULL) {
    Handle handle;
    Problem p;
    p.in = p.out = CUDA_R_32F, p.m = p.n = p.k = 16;
    Shape shape = shape_of(p, 16, 16);
    cublasLtMatrixLayoutOpaque_t layout = layout_of(p, shape, scale != NULL ? CUDA_R_8F_E4M3 : CUDA_R_32F, 16);
    cublasLtMatrixLayoutOpaque_t layout_d = layout_of(p, shape, CUDA_R_32F, 16);
    cublasLtMatmulPreferenceOpaque_t preference = preference_of(p);
    cublasLtMatmulHeuristicResult_t found;
    cublasLtMatmulDescOpaque_t desc;
    int count = 0;
    cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (scale != NULL) {
        set<int32_t>(&desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
        set<const void *>(&desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale);
    }
    cublasLtMatmulAlgoGetHeuristic(handle.handle, &desc, &layout, &layout, &layout_d, &layout_d, &preference, 1, &found,
                                   &count);
    cublasLtMatmul(handle.handle, &desc, &p.alpha, A.data, &layout, B.data, &layout, &p.beta, D.data, &layout_d, D.data,
                   &layout_d, &found.algo, workspace.data, (size_t)workspace.count, stream);
}

struct Square {
    DeviceArray<float> A{random_values(256, 1.0f, 1)}, B{random_values(256, 1.0f, 2)}, D{256}, D2{256}, unwritten{256};
    DeviceArray<uint8_t> workspace{WORKSPACE_BYTES};
    cudaStream_t streams[2];
    Square() {
        for (cudaStream_t &stream : streams) { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
        cudaMalloc((void **)&unwritten.data, 1024); // poisons of DeviceArray count as writes
        cudaDeviceSynchronize();
    }
};

static const struct {
    const char *report; // holds this; NULL: none
    void (*make)(Square &s);
} mistakes[] = {
    {"D overlaps A", [](Square &s) { multiply_square(s.A, s.B, s.A, s.workspace, 0); }},
    {"nitialised", [](Square &s) { multiply_square(s.A, s.unwritten, s.D, s.workspace, 0); }},
    {"nitialised", [](Square &s) { multiply_square(s.A, s.B, s.D, s.workspace, 0, s.unwritten.data); }}, // a scale
    {"not on the device", [](Square &s) { multiply_square(s.A, s.B, s.D, s.workspace, 0, new float(1.0f)); }},
    {"across streams",
     [](Square &s) { // two multiplications at once in one workspace
         multiply_square(s.A, s.B, s.D, s.workspace, s.streams[0]);
         multiply_square(s.A, s.B, s.D2, s.workspace, s.streams[1]);
     }},
    {NULL,
     [](Square &s) {
         multiply_square(s.A, s.B, s.D, s.workspace, s.streams[0], s.A.data);
         cudaStreamSynchronize(s.streams[0]);
         multiply_square(s.D, s.B, s.A, s.workspace, s.streams[1]);
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
