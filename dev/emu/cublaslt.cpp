// cuBLASLt on the CPU: descriptors, the checks, and D = epilogue(alpha op(A) op(B) + beta C) through llmc/cpu/gemm.h.
//
// Inputs become floats, rounded to tf32 if the problem asks for it. Sums and the epilogue are fp32, and each stored
// value is rounded once. gemm.h fixes the order of the sums for any number of threads.
#include "include/cublasLt.h"

#include "llmc/cpu/gemm.h"
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include "include/cuda_fp8.h"
#include "cublas_multiply.h"
#include "runtime.h"

// Smaller problems run on one thread. OpenMP's threads spin for a while after each parallel region and slow down the
// emulator's threads. Several threads pay only for some milliseconds of work.
#define PARALLEL_ELEMENTS (1 << 20)
#define PARALLEL_PRODUCTS (1 << 26)

namespace {

constexpr cublasStatus_t OK = CUBLAS_STATUS_SUCCESS, INVALID = CUBLAS_STATUS_INVALID_VALUE,
                         UNSUPPORTED = CUBLAS_STATUS_NOT_SUPPORTED, NO_HANDLE = CUBLAS_STATUS_NOT_INITIALIZED;

// ---- Contents of the opaque descriptors ----

struct Layout {
    uint32_t type;
    int32_t batch;
    uint64_t rows, cols;
    int64_t ld, batch_stride;
};

struct Desc {
    int32_t compute, scale, trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
    const float *a_scale = nullptr, *b_scale = nullptr; // in device memory; null: 1
    int8_t fast_sums = 0;
};

struct Preference {
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint64_t workspace = 0;
    uint32_t alignment[4] = {256, 256, 256, 256}; // of A, B, C, D
};

// The caller of the heuristic promised these values and must keep to them.
struct Algo {
    uint64_t problem; // hash of the descriptors
    uint64_t workspace;
    uint32_t alignment[4];
    bool drops_tail; // the last k % 64 terms of the sum, with EMU_CUBLASLT_FAULT=tail
};

bool cublaslt_fault(const char *name) {
    const char *fault = getenv("EMU_CUBLASLT_FAULT");
    return fault != nullptr && strcmp(fault, name) == 0;
}

static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");
static_assert(sizeof(Desc) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits");
static_assert(sizeof(Algo) <= sizeof(cublasLtMatmulAlgo_t), "fits");

template <class T, class Opaque> T view(const Opaque *opaque) {
    T object;
    memcpy(&object, opaque->data, sizeof(object));
    return object;
}
template <class T, class Opaque> cublasStatus_t store(Opaque *opaque, const T &object) {
    if (opaque == nullptr) { return INVALID; }
    memset(opaque->data, 0, sizeof(opaque->data));
    memcpy(opaque->data, &object, sizeof(object));
    return OK;
}

struct Attribute {
    int id;
    size_t offset, bytes;
};
#define ATTRIBUTE(id, T, member)                                                                                       \
    { id, offsetof(T, member), sizeof(((T *)nullptr)->member) }

const Attribute LAYOUT_ATTRIBUTES[] = {
    ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, Layout, batch),
    ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, Layout, batch_stride),
};
const Attribute DESC_ATTRIBUTES[] = {
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_TRANSA, Desc, trans_a),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_TRANSB, Desc, trans_b),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE, Desc, epilogue),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_BIAS_POINTER, Desc, bias),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, Desc, aux),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, Desc, aux_ld),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, Desc, a_scale),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, Desc, b_scale),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_FAST_ACCUM, Desc, fast_sums),
};
const Attribute PREFERENCE_ATTRIBUTES[] = {
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Preference, workspace),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, Preference, reductions),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, Preference, alignment[0]),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, Preference, alignment[1]),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, Preference, alignment[2]),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, Preference, alignment[3]),
};

template <size_t n>
cublasStatus_t set_attribute(void *object, const Attribute (&attributes)[n], int id, const void *value, size_t bytes) {
    for (const Attribute &attribute : attributes) {
        if (attribute.id != id) { continue; }
        if (object == nullptr || value == nullptr || bytes != attribute.bytes) { return INVALID; }
        memcpy((char *)object + attribute.offset, value, bytes);
        return OK;
    }
    return INVALID;
}

// ---- One multiplication, described ----

bool is_fp8(uint32_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
size_t size_of(uint32_t type) { return emu::size_of_type(type); }
using emu::Matrix;
using emu::transposed;

Matrix matrix_of(const Layout &layout, const void *data) {
    const int64_t rows = (int64_t)layout.rows, cols = (int64_t)layout.cols;
    return {(char *)data, layout.type, rows, cols, 1, layout.ld, layout.batch_stride, layout.batch};
}

// Parts of cuBLASLt's epilogues that have no name of their own.
const uint32_t GELU_SLOPE = 64, HAS_AUX = 128;

struct Problem {
    Desc desc;
    Layout layouts[4]; // A, B, C, D
    Matrix A, B, C, D; // op(A) and op(B)
    int64_t m, n, k;

    bool in_8_bits() const { return is_fp8(A.type); }
    bool has(uint32_t part) const { return (desc.epilogue & part) != 0; }
    bool reads_bias() const { return has(CUBLASLT_EPILOGUE_BIAS); }
    bool uses_aux() const { return has(HAS_AUX); }
    bool reads_aux() const { return has(GELU_SLOPE); }
    bool writes_aux() const { return uses_aux() && !reads_aux(); }
    Matrix aux() const { return {(char *)desc.aux, D.type, m, n, 1, desc.aux_ld, 0, 1}; }
};

Problem problem_of(const Desc &desc, const Layout (&layouts)[4], const void *const (&data)[4]) {
    Problem p;
    p.desc = desc;
    for (int i = 0; i < 4; i++) { p.layouts[i] = layouts[i]; }
    p.A = matrix_of(layouts[0], data[0]), p.B = matrix_of(layouts[1], data[1]);
    p.C = matrix_of(layouts[2], data[2]), p.D = matrix_of(layouts[3], data[3]);
    if (desc.trans_a != CUBLAS_OP_N) { p.A = transposed(p.A); }
    if (desc.trans_b != CUBLAS_OP_N) { p.B = transposed(p.B); }
    p.m = p.D.rows, p.n = p.D.cols, p.k = p.A.cols;
    return p;
}

// ---- Refusals ----

bool known_epilogue(uint32_t epilogue) {
    const uint32_t known[] = {CUBLASLT_EPILOGUE_DEFAULT,   CUBLASLT_EPILOGUE_BIAS,     CUBLASLT_EPILOGUE_GELU,
                              CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                              CUBLASLT_EPILOGUE_DGELU};
    return std::find(std::begin(known), std::end(known), epilogue) != std::end(known);
}

// 8-bit matrices can be multiplied if at least one is e4m3. The sums are exact fp32 sums.
bool known_fp8_types(const Problem &p) {
    bool known = is_fp8(p.B.type) && (p.A.type == CUDA_R_8F_E4M3 || p.B.type == CUDA_R_8F_E4M3);
    return known && p.desc.compute == CUBLAS_COMPUTE_32F && (p.D.type == CUDA_R_16BF || p.D.type == CUDA_R_32F);
}

// The emulator has these rows of cuBLASLt's table of types: fp32 (exact or through tf32), bf16, and 8 bits into bf16 or
// fp32.
bool known_types(const Problem &p) {
    uint32_t in = p.A.type, out = p.D.type;
    bool exact = p.desc.compute == CUBLAS_COMPUTE_32F;
    bool tf32 = p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (p.desc.scale != CUDA_R_32F || p.C.type != out) { return false; }
    if (p.in_8_bits()) { return known_fp8_types(p); }
    if (p.B.type != in) { return false; }
    if (in == CUDA_R_32F) { return out == CUDA_R_32F && (exact || tf32); }
    return in == CUDA_R_16BF && exact && (out == CUDA_R_16BF || out == CUDA_R_32F);
}

bool valid_layout(const Layout &layout) {
    return layout.rows > 0 && layout.cols > 0 && layout.ld > 0 && (uint64_t)layout.ld >= layout.rows &&
           layout.batch >= 1;
}

bool matching_shapes(const Problem &p) {
    return p.A.rows == p.m && p.B.rows == p.k && p.B.cols == p.n && p.C.rows == p.m && p.C.cols == p.n &&
           p.A.batch == p.D.batch && p.B.batch == p.D.batch && p.C.batch == p.D.batch;
}

// The 8-bit kernels of compute capabilities 8.9, 9.0 and 12.0 need A transposed, B not, and all dimensions in multiples
// of 16, n too. Their only epilogue is a bias into bf16.
bool known_fp8_problem(const Problem &p) {
    bool known = p.desc.trans_a == CUBLAS_OP_T && p.desc.trans_b == CUBLAS_OP_N && p.m % 16 == 0 && p.n % 16 == 0 &&
                 p.k % 16 == 0;
    for (const Layout &layout : p.layouts) {
        int64_t bytes = (int64_t)size_of(layout.type);
        known = known && layout.ld * bytes % 16 == 0 && layout.batch_stride * bytes % 16 == 0;
    }
    const bool plain = p.desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    return known && (plain || (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS && p.D.type == CUDA_R_16BF));
}

bool valid_operation(int32_t operation) { return operation >= CUBLAS_OP_N && operation <= CUBLAS_OP_C; }

struct Check {
    bool ok;
    cublasStatus_t otherwise;
};

cublasStatus_t first_failure(std::initializer_list<Check> checks) {
    for (const Check &check : checks) {
        if (!check.ok) { return check.otherwise; }
    }
    return OK;
}

// Checks everything that does not depend on the pointers. Only 8-bit matrices have scales.
cublasStatus_t check_problem(const Problem &p) {
    const Desc &d = p.desc;
    const bool scaled = d.a_scale != nullptr || d.b_scale != nullptr, aux = p.uses_aux();
    const bool layouts = std::all_of(std::begin(p.layouts), std::end(p.layouts), valid_layout);
    return first_failure({
        {valid_operation(d.trans_a) && valid_operation(d.trans_b), INVALID},
        {layouts && matching_shapes(p), INVALID},
        {known_types(p) && known_epilogue(d.epilogue), UNSUPPORTED},
        {p.in_8_bits() || !scaled, INVALID},
        {!p.in_8_bits() || known_fp8_problem(p), UNSUPPORTED},
        {!aux || p.D.batch == 1, UNSUPPORTED},
        {!aux || (d.aux_ld >= p.m && d.aux_ld % 8 == 0), INVALID},
    });
}

bool aligned(const void *pointer, size_t alignment) { return (uintptr_t)pointer % alignment == 0; }

uint64_t problem_hash(const Problem &p) {
    uint64_t hash = 1469598103934665603u;
    auto mix = [&hash](std::initializer_list<int64_t> numbers) {
        for (int64_t x : numbers) { hash = (hash ^ (uint64_t)x) * 1099511628211u; }
    };
    mix({p.desc.fast_sums, p.desc.compute, p.desc.trans_a, p.desc.trans_b, p.desc.epilogue});
    for (const Layout &l : p.layouts) {
        mix({l.type, (int64_t)l.rows, (int64_t)l.cols, l.ld, l.batch, l.batch_stride});
    }
    return hash;
}

// Without an algorithm the emulator asks for the tensor cores' 16 bytes. The hardware would fall back to slow kernels.
cublasStatus_t check_pointers(const Problem &p, const Algo *algo, float beta) {
    const void *pointers[] = {p.A.data, p.B.data, p.C.data, p.D.data};
    const bool tensor_cores = p.A.type != CUDA_R_32F || p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const bool aux = p.uses_aux(), bias = p.reads_bias();
    const bool same_layout = memcmp(&p.layouts[2], &p.layouts[3], sizeof(Layout)) == 0;
    bool given = true, are_aligned = true;
    for (int i = 0; i < 4; i++) {
        const size_t promised = algo != nullptr ? algo->alignment[i] : tensor_cores ? 16 : 4;
        const size_t alignment = std::max(promised, p.in_8_bits() ? 16 : size_of(p.layouts[i].type));
        given = given && (pointers[i] != nullptr || (i == 2 && beta == 0.0f));
        are_aligned = are_aligned && aligned(pointers[i], alignment);
    }
    return first_failure({
        {given && (!bias || p.desc.bias != nullptr) && (!aux || p.desc.aux != nullptr), INVALID},
        {are_aligned && (!aux || aligned(p.desc.aux, 16)), UNSUPPORTED},
        {!bias || aligned(p.desc.bias, size_of(p.D.type)), UNSUPPORTED},
        {p.C.data != p.D.data || same_layout, INVALID},
    });
}

// ---- Memory, as the emulator's checks see it ----

struct Span {
    char *begin, *end;
    bool dense; // no gaps between its columns
};

int64_t inner_count(const Matrix &x) { return x.row_stride == 1 ? x.rows : x.cols; }
int64_t outer_count(const Matrix &x) { return x.row_stride == 1 ? x.cols : x.rows; }
int64_t outer_stride(const Matrix &x) { return x.row_stride == 1 ? x.col_stride : x.row_stride; }

Span span_of(const Matrix &x) {
    int64_t inner = inner_count(x), stride = outer_stride(x), size = (int64_t)size_of(x.type);
    int64_t last = (x.batch - 1) * x.batch_stride + (outer_count(x) - 1) * stride + inner;
    return {x.data, x.data + last * size, stride == inner};
}

bool overlap(const Matrix &x, const Matrix &y) {
    Span a = span_of(x), b = span_of(y);
    return a.begin < b.end && b.begin < a.end && ((a.dense && b.dense) || a.begin == b.begin);
}

// Calls f(address, bytes) for each piece of memory that the matrix covers.
template <class F> void for_pieces(const Matrix &x, F f) {
    int64_t inner = inner_count(x), outer = outer_count(x), stride = outer_stride(x), size = (int64_t)size_of(x.type);
    if (stride == inner) { inner *= outer, outer = 1; }
    for (int64_t b = 0; b < x.batch; b++) {
        for (int64_t o = 0; o < outer; o++) {
            f(x.data + (b * x.batch_stride + o * stride) * size, (size_t)(inner * size));
        }
    }
}

void note_accesses(const Problem &p, float beta, void *workspace, size_t workspace_bytes) {
    for_pieces(p.A, emu::op_read), for_pieces(p.B, emu::op_read);
    if (beta != 0.0f) { for_pieces(p.C, emu::op_read); }
    if (p.reads_aux()) { for_pieces(p.aux(), emu::op_read); }
    if (p.reads_bias()) { emu::op_read(p.desc.bias, (size_t)p.m * size_of(p.D.type)); }
    for_pieces(p.D, emu::op_write);
    if (p.writes_aux()) { for_pieces(p.aux(), emu::op_write); }
    if (workspace_bytes > 0) { emu::op_scratch(workspace, workspace_bytes); }
}

// cuBLASLt leaves this case undefined. It is a mistake in any case.
void report_overlap(const char *name, const Problem &p, emu::Source at) {
    auto report = [&](const char *what) { emu::report(at, std::string(name) + ": D overlaps " + what); };
    if (overlap(p.D, p.A)) { report("A"); }
    if (overlap(p.D, p.B)) { report("B"); }
    if (p.C.data != p.D.data && overlap(p.D, p.C)) { report("C without being C"); }
    if (p.uses_aux() && overlap(p.D, p.aux())) { report("the auxiliary matrix"); }
}

// ---- The arithmetic ----

// tf32 keeps 10 bits of mantissa. Rounding is to nearest, ties away from zero.
float round_to_tf32(float x) {
    uint32_t bits = emu::float_bits(x);
    bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    return finite ? emu::float_of_bits((bits + 0x1000u) & ~0x1fffu) : x;
}

// The values of the 256 codes of an 8-bit type.
std::vector<float> fp8_values(__nv_fp8_interpretation_t kind) {
    std::vector<float> values;
    for (int code = 0; code < 256; code++) { values.push_back(emu::fp8_value((__nv_fp8_storage_t)code, kind)); }
    return values;
}

void load_fp8(float *to, const uint8_t *codes, uint32_t type, int64_t count) {
    static const std::vector<float> e4m3 = fp8_values(__NV_E4M3), e5m2 = fp8_values(__NV_E5M2);
    const float *values = type == CUDA_R_8F_E4M3 ? e4m3.data() : e5m2.data();
    for (int64_t i = 0; i < count; i++) { to[i] = values[codes[i]]; }
}

void load_floats(float *to, const char *from, uint32_t type, int64_t count) {
    if (is_fp8(type)) { load_fp8(to, (const uint8_t *)from, type, count); }
    if (type == CUDA_R_32F) { memcpy(to, from, (size_t)count * sizeof(float)); }
    const uint16_t *codes = (const uint16_t *)from;
    for (int64_t i = 0; i < count && type == CUDA_R_16F; i++) { to[i] = emu::Half::value(codes[i]); }
    for (int64_t i = 0; i < count && type == CUDA_R_16BF; i++) { to[i] = emu::float_of_bits((uint32_t)codes[i] << 16); }
}

void store_floats(char *to, uint32_t type, const float *from, int64_t count) {
    if (type == CUDA_R_32F) { memcpy(to, from, (size_t)count * sizeof(float)); }
    uint16_t *codes = (uint16_t *)to;
    for (int64_t i = 0; i < count && type != CUDA_R_32F; i++) {
        codes[i] = type == CUDA_R_16F ? emu::Half::round(from[i], emu::NEAREST_EVEN)
                                      : emu::Bf16::round(from[i], emu::NEAREST_EVEN);
    }
}

// Returns matrix b of the batch as floats: its own memory if that is usable as it is, else `copy`.
GemmMatrix as_floats(const Matrix &x, int b, bool tf32, std::vector<float> &copy) {
    int64_t inner = inner_count(x), outer = outer_count(x), stride = outer_stride(x), size = (int64_t)size_of(x.type);
    const char *data = x.data + b * x.batch_stride * size;
    if (x.type == CUDA_R_32F && !tf32) { return {(const float *)data, x.row_stride, x.col_stride, 0}; }
    copy.resize((size_t)(inner * outer));
#pragma omp parallel for if (inner * outer > PARALLEL_ELEMENTS)
    for (int64_t o = 0; o < outer; o++) {
        float *to = copy.data() + o * inner;
        load_floats(to, data + o * stride * size, x.type, inner);
        for (int64_t i = 0; i < inner && tf32; i++) { to[i] = round_to_tf32(to[i]); }
    }
    return {copy.data(), x.row_stride == 1 ? 1 : inner, x.row_stride == 1 ? inner : 1, 0};
}

// gelu(x) = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), and its slope.
void apply_gelu(float *x, int64_t count) {
    for (int64_t i = 0; i < count; i += VF_WIDTH) {
        vf v = vf_load_n(x + i, count - i), u = vf_set1(0.79788456f) * (v + vf_set1(0.044715f) * v * v * v);
        vf_store_n(x + i, vf_set1(0.5f) * v * (vf_set1(1.0f) + vf_tanh(u)), count - i);
    }
}

void apply_gelu_slope(float *x, const float *aux, int64_t count) {
    vf one = vf_set1(1.0f), half = vf_set1(0.5f);
    for (int64_t i = 0; i < count; i += VF_WIDTH) {
        vf v = vf_load_n(aux + i, count - i), u = vf_set1(0.79788456f) * (v + vf_set1(0.044715f) * v * v * v);
        vf t = vf_tanh(u), du = vf_set1(0.79788456f) * (one + vf_set1(3 * 0.044715f) * v * v);
        vf slope = half * (one + t) + half * v * (one - t * t) * du;
        vf_store_n(x + i, vf_load_n(x + i, count - i) * slope, count - i);
    }
}

char *address(const Matrix &x, int b, int64_t j) { // of column j of matrix b
    return x.data + (b * x.batch_stride + j * x.col_stride) * (int64_t)size_of(x.type);
}

// Turns a column of op(A) op(B) into a column of D, in place. other: room for another column.
void finish_column(const Problem &p, int b, int64_t j, float *x, float *other, const float *bias, float alpha,
                   float beta) {
    if (alpha != 1.0f) {
        for (int64_t i = 0; i < p.m; i++) { x[i] *= alpha; }
    }
    if (beta != 0.0f) {
        load_floats(other, address(p.C, b, j), p.C.type, p.m);
        for (int64_t i = 0; i < p.m; i++) { x[i] += beta * other[i]; }
    }
    for (int64_t i = 0; i < p.m && p.reads_bias(); i++) { x[i] += bias[i]; }
    if (p.writes_aux()) { store_floats(address(p.aux(), 0, j), p.D.type, x, p.m); }
    if (p.has(CUBLASLT_EPILOGUE_GELU)) { apply_gelu(x, p.m); }
    if (p.reads_aux()) {
        load_floats(other, address(p.aux(), 0, j), p.D.type, p.m);
        apply_gelu_slope(x, other, p.m);
    }
    store_floats(address(p.D, b, j), p.D.type, x, p.m);
}

struct Scratch {
    std::vector<float> a, b, product, bias, column, gemm;
};

// product (n, m) = op(A) op(B) by columns, with A and B transposed, of the first k terms.
void add_products(const Problem &p, GemmMatrix A, GemmMatrix B, int64_t k, Scratch *s) {
    auto *multiply = p.m * p.n * p.k > PARALLEL_PRODUCTS ? gemm : gemm_serial;
    s->product.resize((size_t)(p.m * p.n));
    s->gemm.resize((size_t)gemm_workspace_floats(gemm_max_threads()));
    Gemm mm = {&gemm_portable, s->gemm.data()};
    if (k == 0) { s->product.assign(s->product.size(), 0.0f); }
    if (k > 0) { multiply(s->product.data(), p.m, B, A, nullptr, p.n, p.m, k, false, &mm); }
}

// Matrix b of the batch.
void multiply(const Problem &p, int b, int64_t k, float alpha, float beta, Scratch *s) {
    bool tf32 = p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    add_products(p, as_floats(transposed(p.A), b, tf32, s->a), as_floats(transposed(p.B), b, tf32, s->b), k, s);
    s->bias.resize((size_t)p.m), s->column.resize((size_t)(p.m * gemm_max_threads()));
    if (p.reads_bias()) { load_floats(s->bias.data(), (const char *)p.desc.bias, p.D.type, p.m); }
#pragma omp parallel for if (p.m * p.n > PARALLEL_ELEMENTS)
    for (int64_t j = 0; j < p.n; j++) {
        float *column = s->column.data() + gemm_thread() * p.m;
        finish_column(p, b, j, s->product.data() + j * p.m, column, s->bias.data(), alpha, beta);
    }
}

// Returns a matrix's scale, or 1 if it has none.
float scale_of(const float *pointer) {
    if (pointer == nullptr) { return 1.0f; }
    emu::op_read(pointer, sizeof(float));
    return *pointer;
}

// The checks of accesses, and all matrices of the batch. k: terms of a sum.
void multiply_all(const char *name, emu::Source at, const Problem &p, int64_t k, float alpha, float beta,
                  void *workspace = nullptr, size_t workspace_bytes = 0) {
    static thread_local Scratch scratch;
    report_overlap(name, p, at);
    note_accesses(p, beta, workspace, workspace_bytes);
    emu::meter_operation_flops(2.0 * (double)p.m * (double)p.n * (double)p.k * (double)p.D.batch);
    alpha *= scale_of(p.desc.a_scale) * scale_of(p.desc.b_scale);
    for (int b = 0; b < p.D.batch; b++) { multiply(p, b, k, alpha, beta, &scratch); }
}

// The workspace of an algorithm if it may have any: small, so that its checks cost little.
const uint64_t ALGO_WORKSPACE = 4096;

} // namespace

// ---- For cublas.cpp ----

size_t emu::size_of_type(uint32_t type) { return is_fp8(type) ? 1 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 4; }

Matrix emu::transposed(Matrix x) {
    Matrix t = x;
    t.rows = x.cols, t.cols = x.rows, t.row_stride = x.col_stride, t.col_stride = x.row_stride;
    return t;
}

void emu::multiply_matrices(const char *name, Source at, const Matrix &A, const Matrix &B, const Matrix &C, bool tf32,
                            float alpha, float beta) {
    const Desc desc = {tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F};
    const Problem p = {desc, {}, A, B, C, C, C.rows, C.cols, A.cols};
    multiply_all(name, at, p, p.k, alpha, beta);
}

struct cublasLtContext {};

// ---- The interface ----

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    emu::host_only("cublasLtCreate");
    if (handle == nullptr) { return INVALID; }
    *handle = new cublasLtContext();
    return OK;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    if (handle == nullptr) { return NO_HANDLE; }
    delete handle;
    return OK;
}

size_t cublasLtGetVersion(void) { return 120800; }

static const struct {
    cublasStatus_t status;
    const char *name, *text;
} STATUSES[] = {
    {OK, "CUBLAS_STATUS_SUCCESS", "success"},
    {NO_HANDLE, "CUBLAS_STATUS_NOT_INITIALIZED", "the handle was not created"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "out of memory"},
    {INVALID, "CUBLAS_STATUS_INVALID_VALUE", "an unsupported value or parameter was passed"},
    {CUBLAS_STATUS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR", "an internal operation failed"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "an internal operation failed"},
    {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {UNSUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "the functionality requested is not supported"},
};

static auto &entry_of(cublasStatus_t status) {
    auto found = std::find_if(std::begin(STATUSES), std::end(STATUSES), [=](auto &s) { return s.status == status; });
    return found == std::end(STATUSES) ? STATUSES[6] : *found;
}
const char *cublasLtGetStatusName(cublasStatus_t status) { return entry_of(status).name; }
const char *cublasLtGetStatusString(cublasStatus_t status) { return entry_of(status).text; }

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType type, uint64_t rows, uint64_t cols,
                                        int64_t ld) {
    return store(layout, Layout{(uint32_t)type, 1, rows, cols, ld, 0});
}
cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t desc, cublasComputeType_t compute, cudaDataType_t scale) {
    return store(desc, Desc{compute, scale});
}
cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
    return store(preference, Preference{});
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    return cublasLtMatrixLayoutInit(*layout = new cublasLtMatrixLayoutOpaque_t(), type, rows, cols, ld);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    return cublasLtMatmulDescInit(*desc = new cublasLtMatmulDescOpaque_t(), compute, scale);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    return cublasLtMatmulPreferenceInit(*preference = new cublasLtMatmulPreferenceOpaque_t());
}

template <class T> static cublasStatus_t destroy(T *descriptor) {
    delete descriptor;
    return OK;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes) {
    return set_attribute(layout, LAYOUT_ATTRIBUTES, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    return set_attribute(desc, DESC_ATTRIBUTES, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    return set_attribute(preference, PREFERENCE_ATTRIBUTES, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                              cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned) {
    if (handle == nullptr) { return NO_HANDLE; }
    if (!desc || !A || !B || !C || !D || !preference || requested < 1 || !results || !returned) { return INVALID; }
    *returned = 0;
    Problem p = problem_of(view<Desc>(desc), {view<Layout>(A), view<Layout>(B), view<Layout>(C), view<Layout>(D)},
                           {nullptr, nullptr, nullptr, nullptr});
    cublasStatus_t status = check_problem(p);
    if (status != OK) { return status; }
    Preference wish = view<Preference>(preference);
    uint64_t workspace = wish.workspace >= ALGO_WORKSPACE ? ALGO_WORKSPACE : 0;
    bool splits = (wish.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0; // a separate step adds the parts
    Algo algo = {problem_hash(p), workspace, {}, splits && cublaslt_fault("tail")};
    memcpy(algo.alignment, wish.alignment, sizeof(algo.alignment));
    results[0] = {{}, workspace, OK, 1.0f, {}};
    store(&results[0].algo, algo);
    *returned = 1;
    return OK;
}

static cublasStatus_t check_algo(const Problem &p, const Algo &algo, const void *workspace, size_t workspace_bytes) {
    return first_failure({
        {algo.problem == problem_hash(p), INVALID}, // else it is the algorithm of another problem
        {algo.workspace == 0 || (workspace != nullptr && workspace_bytes >= algo.workspace), INVALID},
    });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t A_layout, const void *B, cublasLtMatrixLayout_t B_layout,
                              const void *beta, const void *C, cublasLtMatrixLayout_t C_layout, void *D,
                              cublasLtMatrixLayout_t D_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream, const char *file, int line) {
    emu::host_only("cublasLtMatmul", {file, line});
    if (handle == nullptr) { return NO_HANDLE; }
    if (!desc || !alpha || !beta || !A_layout || !B_layout || !C_layout || !D_layout) { return INVALID; }
    Problem p = problem_of(
        view<Desc>(desc),
        {view<Layout>(A_layout), view<Layout>(B_layout), view<Layout>(C_layout), view<Layout>(D_layout)}, {A, B, C, D});
    const Algo promised = algo != nullptr ? view<Algo>(algo) : Algo{};
    cublasStatus_t status = check_problem(p);
    if (status == OK && !aligned(workspace, 16)) { status = INVALID; }
    if (status == OK && algo != nullptr) { status = check_algo(p, promised, workspace, workspace_bytes); }
    if (status != OK) { return status; }
    if (cublaslt_fault("execution")) { return CUBLAS_STATUS_EXECUTION_FAILED; }
    const int64_t k = promised.drops_tail ? p.k - p.k % 64 : p.k;
    const float a = *(const float *)alpha, b = *(const float *)beta;
    emu::op_begin(stream, "cublasLtMatmul", file, line);
    status = check_pointers(p, algo != nullptr ? &promised : nullptr, b);
    if (status == OK) { multiply_all("cublasLtMatmul", {file, line}, p, k, a, b, workspace, promised.workspace); }
    emu::op_end();
    return status;
}
