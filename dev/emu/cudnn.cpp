// cuDNN's graphs on the CPU: descriptors with the attributes that attention needs, the checks, and an interpreter.
//
// The interpreter computes a graph as it is written, one operation after another. Each operation reads whole tensors
// and writes a whole tensor, virtual or not, in fp32, rounded once to the tensor's type.
//
// The checks are stricter than the real library's. Two tensors of a graph with one id must be equal. Pointers and
// attributes that nothing needs are refused.
//
// For a graph with more than two products the heuristic offers three plans: one with an engine that is not
// deterministic, one that wants an enormous workspace, and one that a careful caller takes. A product stored in fp32 is
// added to the memory's contents: the real library's kernels add by atomics, and no document says that they clear the
// memory first.
#include "include/cudnn.h"

#include <math.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime.h"

struct cudnnContext {
    cudaStream_t stream;
};

namespace {

// ---- Refusals ----

std::string last_error;

struct Refusal {
    std::string why;
    cudnnStatus_t status;
};

void need(bool ok, const std::string &why, cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM) {
    if (!ok) { throw Refusal{why, status}; }
}

// The status of a function of the interface.
template <class Work> cudnnStatus_t status_of(Work work) {
    try {
        work();
    } catch (const Refusal &refusal) {
        last_error = refusal.why;
        return refusal.status;
    }
    return CUDNN_STATUS_SUCCESS;
}

// ---- Descriptors ----

struct Graph;
struct Descriptor {
    int type;
    bool finalized = false;
    std::map<int, std::vector<int64_t>> values; // numbers and pointers, by attribute
    std::shared_ptr<const Graph> graph;         // that it is, or is for
    int choice = 0;                             // of a configuration and its engine: index among the heuristic's plans
};

std::set<const void *> &descriptors = *new std::set<const void *>; // that live

Descriptor *living(const void *pointer, const char *otherwise) {
    need(descriptors.count(pointer) > 0, otherwise);
    return static_cast<Descriptor *>(const_cast<void *>(pointer));
}

// What the emulator does with an attribute. An answer is asked for, all others are set.
enum Role { NEEDED, OPTIONAL, INPUT, OPTIONAL_INPUT, OUTPUT, SETTINGS, ANSWER };
struct Attribute {
    int of, name, type;
    int64_t most; // values
    Role role;
};

#define KIND(of) CUDNN_BACKEND_##of##_DESCRIPTOR
#define LIST(of, name, type, role, most)                                                                               \
    { KIND(of), CUDNN_ATTR_##of##_##name, CUDNN_TYPE_##type, most, role }
#define ONE(of, name, type, role) LIST(of, name, type, role, 1)
#define PART(of, name, role) ONE(of, name, BACKEND_DESCRIPTOR, role)

const Attribute ATTRIBUTES[] = {
    ONE(TENSOR, UNIQUE_ID, INT64, NEEDED),
    ONE(TENSOR, DATA_TYPE, DATA_TYPE, NEEDED),
    LIST(TENSOR, DIMENSIONS, INT64, NEEDED, 4),
    LIST(TENSOR, STRIDES, INT64, NEEDED, 4),
    ONE(TENSOR, BYTE_ALIGNMENT, INT64, NEEDED),
    ONE(TENSOR, IS_VIRTUAL, BOOLEAN, OPTIONAL),
    ONE(TENSOR, IS_BY_VALUE, BOOLEAN, OPTIONAL),
    ONE(POINTWISE, MODE, POINTWISE_MODE, NEEDED),
    ONE(POINTWISE, MATH_PREC, DATA_TYPE, NEEDED),
    ONE(POINTWISE, AXIS, INT64, OPTIONAL),
    ONE(MATMUL, COMP_TYPE, DATA_TYPE, NEEDED),
    ONE(REDUCTION, OPERATOR, REDUCTION_OPERATOR_TYPE, NEEDED),
    ONE(REDUCTION, COMP_TYPE, DATA_TYPE, NEEDED),
    PART(OPERATION_POINTWISE, PW_DESCRIPTOR, SETTINGS),
    PART(OPERATION_POINTWISE, XDESC, INPUT),
    PART(OPERATION_POINTWISE, BDESC, OPTIONAL_INPUT),
    PART(OPERATION_POINTWISE, TDESC, OPTIONAL_INPUT),
    PART(OPERATION_POINTWISE, YDESC, OUTPUT),
    PART(OPERATION_MATMUL, DESC, SETTINGS),
    PART(OPERATION_MATMUL, ADESC, INPUT),
    PART(OPERATION_MATMUL, BDESC, INPUT),
    PART(OPERATION_MATMUL, CDESC, OUTPUT),
    PART(OPERATION_REDUCTION, DESC, SETTINGS),
    PART(OPERATION_REDUCTION, XDESC, INPUT),
    PART(OPERATION_REDUCTION, YDESC, OUTPUT),
    PART(OPERATION_RESHAPE, XDESC, INPUT),
    PART(OPERATION_RESHAPE, YDESC, OUTPUT),
    LIST(OPERATIONGRAPH, OPS, BACKEND_DESCRIPTOR, NEEDED, 64),
    ONE(OPERATIONGRAPH, HANDLE, HANDLE, NEEDED),
    PART(ENGINEHEUR, OPERATION_GRAPH, NEEDED),
    ONE(ENGINEHEUR, MODE, HEUR_MODE, NEEDED),
    PART(ENGINEHEUR, RESULTS, ANSWER),
    PART(ENGINECFG, ENGINE, ANSWER),
    ONE(ENGINE, NUMERICAL_NOTE, NUMERICAL_NOTE, ANSWER),
    PART(EXECUTION_PLAN, ENGINE_CONFIG, NEEDED),
    ONE(EXECUTION_PLAN, HANDLE, HANDLE, NEEDED),
    ONE(EXECUTION_PLAN, WORKSPACE_SIZE, INT64, ANSWER),
    LIST(VARIANT_PACK, UNIQUE_IDS, INT64, NEEDED, 64),
    LIST(VARIANT_PACK, DATA_POINTERS, VOID_PTR, NEEDED, 64),
    ONE(VARIANT_PACK, WORKSPACE, VOID_PTR, NEEDED),
};

// Returns an entry of a table, or null.
template <class Entry, size_t n, class Is> const Entry *entry_of(const Entry (&table)[n], Is is) {
    const Entry *found = std::find_if(table, table + n, is);
    return found == table + n ? nullptr : found;
}

// Throws if a caller names an attribute that cannot be set, or cannot be asked for.
void check_attribute(const Descriptor *of, int name, int type, int64_t count, bool is_asked) {
    const Attribute *a = entry_of(ATTRIBUTES, [=](const Attribute &a) { return a.of == of->type && a.name == name; });
    need(a && (a->role == ANSWER) == is_asked && a->type == type && count >= 1 && (is_asked || count <= a->most),
         "attribute " + std::to_string(name) + ": there is none, or of another type or count");
}

// The values of an attribute that was set, or none.
std::vector<int64_t> list_of(const Descriptor *descriptor, int name) {
    auto found = descriptor->values.find(name);
    return found == descriptor->values.end() ? std::vector<int64_t>() : found->second;
}
int64_t value_of(const Descriptor *descriptor, int name, int64_t otherwise = 0) {
    const std::vector<int64_t> list = list_of(descriptor, name);
    return list.empty() ? otherwise : list[0];
}
template <class T> T *pointer_of(int64_t value) { return reinterpret_cast<T *>(value); }
// Null means that the descriptor has no such part.
Descriptor *part_of(const Descriptor *descriptor, int name) {
    const void *part = pointer_of<void>(value_of(descriptor, name));
    return part == nullptr ? nullptr : living(part, "a part has been destroyed");
}

// ---- Tensors ----

constexpr int DIMENSIONS = 4;
typedef std::array<int64_t, DIMENSIONS> Sizes;

struct Tensor {
    int64_t id, alignment, type;
    bool is_virtual, by_value;
    Sizes dims, strides;
    int64_t size() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
    int64_t width() const { return type == CUDNN_DATA_BFLOAT16 ? 2 : type == CUDNN_DATA_BOOLEAN ? 1 : 4; } // in bytes
    auto all() const { return std::tie(id, alignment, type, is_virtual, by_value, dims, strides); }
};
typedef std::vector<float> Values;        // of a tensor, in the order of its dimensions
typedef std::map<int64_t, Values> Memory; // by id

Sizes sizes_of(const Descriptor *descriptor, int name) {
    const std::vector<int64_t> list = list_of(descriptor, name);
    need(list.size() == DIMENSIONS, "a tensor without 4 dimensions", CUDNN_STATUS_NOT_SUPPORTED);
    need(*std::min_element(list.begin(), list.end()) >= 1, "a dimension or stride below 1");
    return {list[0], list[1], list[2], list[3]};
}

Tensor tensor_of(const Descriptor *descriptor) {
    auto get = [=](int name) { return value_of(descriptor, name); };
    const Tensor t = {get(CUDNN_ATTR_TENSOR_UNIQUE_ID),
                      get(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
                      get(CUDNN_ATTR_TENSOR_DATA_TYPE),
                      get(CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0,
                      get(CUDNN_ATTR_TENSOR_IS_BY_VALUE) != 0,
                      sizes_of(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS),
                      sizes_of(descriptor, CUDNN_ATTR_TENSOR_STRIDES)};
    need(t.alignment >= t.width() && (t.alignment & (t.alignment - 1)) == 0, "alignment");
    need(!t.by_value || (!t.is_virtual && t.size() == 1), "by value: one real number");
    return t;
}

// The place of element i of a tensor of these dimensions, in the order of the dimensions, in a tensor of `to` with
// these strides. In a dimension that is shorter there, neighbours share one element.
int64_t place_of(int64_t i, const Sizes &dims, const Sizes &to, const Sizes &strides) {
    int64_t place = 0;
    for (int d = DIMENSIONS - 1; d >= 0; d--) {
        place += i % dims[d] * to[d] / dims[d] * strides[d];
        i /= dims[d];
    }
    return place;
}
int64_t offset_of(const Tensor &t, int64_t i) { return place_of(i, t.dims, t.dims, t.strides); }
Sizes packed(const Sizes &dims) { return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}; }

bool broadcasts(const Tensor &from, const Tensor &to) {
    for (int d = 0; d < DIMENSIONS; d++) {
        if (from.dims[d] != to.dims[d] && from.dims[d] != 1) { return false; }
    }
    return true;
}

// ---- Operations: what each checks, and how it is computed ----

struct Mode { // of a pointwise operation
    int mode;
    size_t inputs;
    float (*apply)(float x, float b, float mask);
};
const Mode MODES[] = {
    {CUDNN_POINTWISE_EXP, 1, [](float x, float, float) { return expf(x); }},
    {CUDNN_POINTWISE_LOG, 1, [](float x, float, float) { return logf(x); }},
    {CUDNN_POINTWISE_IDENTITY, 1, [](float x, float, float) { return x; }},
    {CUDNN_POINTWISE_GEN_INDEX, 1, nullptr},
    {CUDNN_POINTWISE_ADD, 2, [](float x, float b, float) { return x + b; }},
    {CUDNN_POINTWISE_SUB, 2, [](float x, float b, float) { return x - b; }},
    {CUDNN_POINTWISE_MUL, 2, [](float x, float b, float) { return x * b; }},
    {CUDNN_POINTWISE_DIV, 2, [](float x, float b, float) { return x / b; }},
    {CUDNN_POINTWISE_CMP_GE, 2, [](float x, float b, float) { return x >= b ? 1.0f : 0.0f; }},
    {CUDNN_POINTWISE_BINARY_SELECT, 3, [](float x, float b, float mask) { return mask != 0.0f ? x : b; }}};

struct Step {
    int type;
    const Mode *mode = nullptr; // of a pointwise operation
    int64_t reduction = 0;      // operator of a reduction
    int64_t axis = -1;
    std::vector<Tensor> inputs = {}; // x, b, mask; or a, b
    Tensor output = {};
    bool multiplies() const { return type == KIND(OPERATION_MATMUL); }
    // Attention's backward with atomics. The real library's kernels add to what is there.
    bool adds_to_memory() const { return multiplies() && !output.is_virtual && output.type == CUDNN_DATA_FLOAT; }
    // Neighbouring heads become one, as for the keys that they share.
    bool sums_heads() const {
        const Sizes &x = inputs[0].dims, &y = output.dims;
        return type == KIND(OPERATION_REDUCTION) && x[1] > y[1] && x[1] % y[1] == 0 && x[0] == y[0] && x[2] == y[2] &&
               x[3] == y[3];
    }
};

void check_pointwise(const Step &step) {
    const bool has_axis = step.mode && step.mode->mode == CUDNN_POINTWISE_GEN_INDEX;
    need(step.mode != nullptr, "a pointwise mode that is not emulated", CUDNN_STATUS_NOT_SUPPORTED);
    need(step.inputs.size() == step.mode->inputs, "a pointwise operation with too few or too many tensors");
    for (const Tensor &x : step.inputs) { need(broadcasts(x, step.output), "a pointwise operation of unlike shapes"); }
    need(step.inputs.size() < 3 || step.inputs[2].type == CUDNN_DATA_BOOLEAN, "a selection without a boolean mask");
    need(has_axis == (step.axis >= 0) && step.axis < DIMENSIONS, "the axis of an index");
}

Values run_pointwise(const Step &step, const Memory &memory) {
    const Tensor &y = step.output;
    Values out((size_t)y.size());
    int64_t inner = 1; // elements from one index of the axis to the next
    for (int d = (int)step.axis + 1; d < DIMENSIONS; d++) { inner *= y.dims[d]; }
    for (int64_t i = 0; i < y.size(); i++) {
        float in[3] = {0.0f, 0.0f, 0.0f};
        for (size_t k = 0; k < step.inputs.size(); k++) {
            const Sizes &from = step.inputs[k].dims;
            in[k] = memory.at(step.inputs[k].id)[from == y.dims ? i : place_of(i, y.dims, from, packed(from))];
        }
        out[i] = step.axis >= 0 ? (float)(i / inner % y.dims[step.axis]) : step.mode->apply(in[0], in[1], in[2]);
    }
    return out;
}

void check_matmul(const Step &step) {
    const Tensor &ta = step.inputs[0], &tb = step.inputs[1];
    const Sizes &a = ta.dims, &b = tb.dims, &c = step.output.dims;
    // Neighbouring heads of a may share a head of b.
    const bool batches = a[0] == c[0] && b[0] == c[0] && a[1] == c[1] && c[1] % b[1] == 0;
    need(batches && a[2] == c[2] && b[3] == c[3] && a[3] == b[2], "a product of shapes that do not fit");
    need(ta.type == CUDNN_DATA_BFLOAT16 && tb.type == CUDNN_DATA_BFLOAT16, "a product of other types than bf16",
         CUDNN_STATUS_NOT_SUPPORTED); // the tensor cores' operands
}

Values run_matmul(const Step &step, const Memory &memory) {
    const Values &a = memory.at(step.inputs[0].id), &b = memory.at(step.inputs[1].id);
    int64_t rows = step.output.dims[2], columns = step.output.dims[3], K = step.inputs[0].dims[3];
    Values c((size_t)step.output.size(), 0.0f);
    emu::meter_operation_flops(2.0 * (double)c.size() * (double)K);
    for (int64_t row = 0; row < (int64_t)c.size() / columns; row++) {
        int64_t head = row / rows * step.inputs[1].dims[1] / step.output.dims[1]; // of all sequences
        for (int64_t k = 0; k < K; k++) {
            const float factor = a[row * K + k], *from = &b[(head * K + k) * columns];
            for (int64_t j = 0; j < columns; j++) { c[row * columns + j] += factor * from[j]; }
        }
    }
    return c;
}

void check_reduction(const Step &step) {
    need(broadcasts(step.output, step.inputs[0]) || step.sums_heads(), "a reduction to a shape that does not fit");
    need(step.reduction == CUDNN_REDUCE_TENSOR_ADD || step.reduction == CUDNN_REDUCE_TENSOR_MAX,
         "a reduction that is not emulated", CUDNN_STATUS_NOT_SUPPORTED);
}

Values run_reduction(const Step &step, const Memory &memory) {
    const Values &x = memory.at(step.inputs[0].id);
    const bool adds = step.reduction == CUDNN_REDUCE_TENSOR_ADD;
    const Sizes strides = packed(step.output.dims);
    Values y((size_t)step.output.size(), adds ? 0.0f : -INFINITY);
    for (size_t i = 0; i < x.size(); i++) {
        float *sum = &y[place_of((int64_t)i, step.inputs[0].dims, step.output.dims, strides)];
        *sum = adds ? *sum + x[i] : fmaxf(*sum, x[i]);
    }
    return y;
}

void check_reshape(const Step &step) {
    const Tensor &x = step.inputs[0], &y = step.output;
    need(x.size() == y.size() && x.strides == packed(x.dims), "a reshape to another size, or of a tensor with gaps");
    need(offset_of(y, y.size() - 1) < x.size(), "a reshape that reads behind its tensor");
}

// Reads a packed tensor with other strides.
Values run_reshape(const Step &step, const Memory &memory) {
    const Values &x = memory.at(step.inputs[0].id);
    Values y(x.size());
    for (size_t i = 0; i < y.size(); i++) { y[i] = x[(size_t)offset_of(step.output, (int64_t)i)]; }
    return y;
}

const struct Operation {
    int type;
    void (*check)(const Step &step);
    Values (*run)(const Step &step, const Memory &memory);
} OPERATIONS[] = {{KIND(OPERATION_POINTWISE), check_pointwise, run_pointwise},
                  {KIND(OPERATION_MATMUL), check_matmul, run_matmul},
                  {KIND(OPERATION_REDUCTION), check_reduction, run_reduction},
                  {KIND(OPERATION_RESHAPE), check_reshape, run_reshape}};

// Null means that a descriptor of this type is no operation.
const Operation *operation_of(int type) {
    return entry_of(OPERATIONS, [=](const Operation &operation) { return operation.type == type; });
}

Step step_of(const Descriptor *operation) {
    Step step = {operation->type};
    for (const Attribute &a : ATTRIBUTES) {
        const Descriptor *part = a.of == operation->type ? part_of(operation, a.name) : nullptr;
        if (part == nullptr) { continue; }
        if (a.role == INPUT || a.role == OPTIONAL_INPUT) { step.inputs.push_back(tensor_of(part)); }
        if (a.role == OUTPUT) { step.output = tensor_of(part); }
        if (a.role != SETTINGS) { continue; }
        const int64_t mode = value_of(part, CUDNN_ATTR_POINTWISE_MODE, -1);
        step.mode = entry_of(MODES, [=](const Mode &m) { return m.mode == mode; });
        step.axis = value_of(part, CUDNN_ATTR_POINTWISE_AXIS, -1);
        step.reduction = value_of(part, CUDNN_ATTR_REDUCTION_OPERATOR, -1);
    }
    need(!step.output.by_value, "an output by value");
    operation_of(step.type)->check(step);
    return step;
}

Values run_step(const Step &step, const Memory &memory) {
    Values result = operation_of(step.type)->run(step, memory);
    if (step.output.type != CUDNN_DATA_BFLOAT16) { return result; }
    for (float &x : result) { x = __bfloat162float(__float2bfloat16_rn(x)); }
    return result;
}

// ---- Graphs ----

struct Graph {
    std::vector<Step> steps;
    std::map<int64_t, Tensor> tensors; // by id
    std::set<int64_t> written;
    int64_t products() const {
        return std::count_if(steps.begin(), steps.end(), [](const Step &step) { return step.multiplies(); });
    }
};

// True if the engine says that its bits differ from run to run. Every second run then has others.
bool is_random(const Descriptor *of) { return of->graph->products() > 2 && of->choice == 0; }

void note_tensor(Graph *graph, const Tensor &t, bool is_output) {
    const std::string name = "tensor " + std::to_string(t.id);
    const bool was_written = graph->written.count(t.id) != 0;
    const auto known = graph->tensors.emplace(t.id, t);
    need(known.first->second.all() == t.all(), "two tensors with the id of " + name);
    need(is_output || !t.is_virtual || was_written, "nothing writes virtual " + name + ", or only later");
    if (!is_output) { return; }
    need(!was_written, "two operations write " + name);
    need(known.second, name + " is read before it is written");
    graph->written.insert(t.id);
}

Graph graph_of(const Descriptor *descriptor) {
    Graph graph;
    for (int64_t pointer : list_of(descriptor, CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
        const Descriptor *op = living(pointer_of<void>(pointer), "a graph of an operation that has been destroyed");
        need(operation_of(op->type) != nullptr, "a graph of something that is no operation");
        graph.steps.push_back(step_of(op));
        for (const Tensor &input : graph.steps.back().inputs) { note_tensor(&graph, input, false); }
        note_tensor(&graph, graph.steps.back().output, true);
    }
    return graph;
}

// Follows the real library's plans for attention. The backward stores an fp32 sum of each row. It also stores a bf16
// matrix or, if it adds to memory, fp32 sums of its own, the most that the engines of some GPUs need. It stores heads
// that are summed in bf16, too.
int64_t workspace_of(const Descriptor *plan) {
    const Graph &graph = *plan->graph;
    if (graph.products() <= 2) { return 256; }
    if (plan->choice == 1) { return (int64_t)1 << 40; }
    const Tensor &scores = graph.steps[graph.products()].output;
    int64_t heads = scores.dims[0] * scores.dims[1], T = scores.dims[2], padded = (T + 127) / 128 * 128;
    int64_t bytes = heads * T * 4 + 256, sums = 0;
    for (const Step &step : graph.steps) {
        bytes += step.sums_heads() ? step.inputs[0].size() * 2 : 0;
        if (sums == 0 && step.adds_to_memory()) { sums = step.output.size() * 4; }
    }
    return bytes + (sums > 0 ? sums : heads * padded * padded * 2);
}

// ---- Running a plan ----

typedef std::map<int64_t, char *> Pointers; // by id

// Copies a tensor from memory or to memory. Each contiguous piece is one access.
void transfer(const Tensor &t, char *data, bool writes, Values *values) {
    const int last = t.strides[3] == 1 ? 3 : 2; // the contiguous dimension
    const int64_t piece = t.strides[last] == 1 ? t.dims[last] : 1, after = last == 3 ? 1 : t.dims[3];
    values->resize((size_t)t.size());
    for (int64_t i = 0; i < t.size(); i++) {
        char *element = data + offset_of(t, i) * t.width();
        float &value = (*values)[i], *fp32 = (float *)element;
        __nv_bfloat16 *bf16 = (__nv_bfloat16 *)element;
        const size_t bytes = i / after % piece == 0 ? (size_t)(piece * t.width()) : 0;
        if (bytes > 0 && writes) { emu::op_write(element, bytes); }
        if (bytes > 0 && !writes) { emu::op_read(element, bytes); }
        if (writes && t.width() == 2) { *bf16 = __float2bfloat16_rn(value); }
        if (writes && t.width() == 4) { *fp32 = value; }
        if (!writes) { value = t.width() == 2 ? __bfloat162float(*bf16) : *fp32; }
    }
}

void run(const Descriptor *plan, const Pointers &pointers, char *workspace, cudaStream_t stream, emu::Source at) {
    const Graph &graph = *plan->graph;
    const size_t workspace_bytes = (size_t)workspace_of(plan);
    Memory memory;
    emu::op_begin(stream, "cudnnBackendExecute", at.file, at.line);
    for (const auto &[id, t] : graph.tensors) {
        if (t.is_virtual || graph.written.count(id) != 0) { continue; }
        if (t.by_value) { memory[id] = {*(const float *)pointers.at(id)}; }
        if (!t.by_value) { transfer(t, pointers.at(id), false, &memory[id]); }
    }
    emu::op_scratch(workspace, workspace_bytes);
    memset(workspace, 0xff, workspace_bytes); // NaNs: nothing may depend on the workspace's contents
    for (const Step &step : graph.steps) {
        Values before;
        if (step.adds_to_memory()) { transfer(step.output, pointers.at(step.output.id), false, &before); }
        Values &values = memory[step.output.id] = run_step(step, memory);
        for (size_t i = 0; i < before.size(); i++) { values[i] += before[i]; }
    }
    static int random_runs;
    bool rounds_otherwise = is_random(plan) && random_runs++ % 2 == 1;
    for (int64_t id : graph.written) {
        if (graph.tensors.at(id).is_virtual) { continue; }
        memory.at(id)[0] *= rounds_otherwise ? 1.0f + 1.0f / 128 : 1.0f; // to the next number of bf16
        transfer(graph.tensors.at(id), pointers.at(id), true, &memory[id]);
    }
    emu::op_end();
}

Pointers pointers_of(const Descriptor *pack, const Graph &graph) {
    const std::vector<int64_t> ids = list_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const std::vector<int64_t> given = list_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    Pointers pointers;
    size_t needed = 0;
    need(ids.size() == given.size(), "not as many pointers as ids");
    for (size_t i = 0; i < ids.size(); i++) { pointers[ids[i]] = pointer_of<char>(given[i]); }
    for (const auto &[id, t] : graph.tensors) {
        if (t.is_virtual) { continue; }
        const bool fits = pointers[id] != nullptr && (uintptr_t)pointers[id] % (uintptr_t)t.alignment == 0;
        need(fits, "no pointer for tensor " + std::to_string(id) + ", or it is null or misaligned");
        needed++;
    }
    need(ids.size() == needed, "a pointer that no tensor needs, or two for one tensor");
    return pointers;
}

// ---- Descriptors, from outside ----

void finalize(Descriptor *d) {
    need(!d->finalized, "a finalized descriptor");
    for (const Attribute &a : ATTRIBUTES) {
        const bool is_optional = a.role == OPTIONAL || a.role == OPTIONAL_INPUT || a.role == ANSWER;
        need(a.of != d->type || is_optional || d->values.count(a.name) != 0,
             "attribute " + std::to_string(a.name) + " is missing");
    }
    if (d->type == KIND(TENSOR)) { tensor_of(d); }
    if (operation_of(d->type)) { step_of(d); } // checks it
    if (d->type == KIND(OPERATIONGRAPH)) { d->graph = std::make_shared<Graph>(graph_of(d)); }
    for (int name : {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG}) {
        if (const Descriptor *part = part_of(d, name)) { d->graph = part->graph, d->choice = part->choice; }
    }
    d->finalized = true;
}

// Fills descriptors that the caller has made. Returns their number.
int64_t fill(void *values, int64_t count, int type, const Descriptor *from, bool chooses) {
    for (int i = 0; i < count; i++) {
        Descriptor *to = living(static_cast<void **>(values)[i], "no descriptor was given to fill");
        need(to->type == type, "a descriptor of another kind was given to fill");
        to->graph = from->graph, to->choice = chooses ? i : from->choice, to->finalized = true;
    }
    return count;
}

// Gives the attribute that can be asked for. Returns how many values there are.
int64_t answer(const Descriptor *from, int64_t room, void *values) {
    const char *engine = getenv("EMU_CUDNN");
    const bool has_engine = engine != nullptr && strcmp(engine, "none") != 0;
    const int64_t plans = !has_engine ? 0 : from->graph->products() > 2 ? 3 : 1;
    const int note = is_random(from) ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    switch (from->type) {
    case KIND(ENGINEHEUR): return fill(values, std::min(room, plans), KIND(ENGINECFG), from, true);
    case KIND(ENGINECFG): return fill(values, 1, KIND(ENGINE), from, false);
    case KIND(ENGINE): *static_cast<int *>(values) = note; return 1;
    default: *static_cast<int64_t *>(values) = workspace_of(from); return 1;
    }
}

size_t size_of(int type) {
    if (type == CUDNN_TYPE_BOOLEAN) { return 1; }
    const bool is_wide = type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR ||
                         type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
    return is_wide ? 8 : sizeof(int);
}

void set_attribute(Descriptor *to, int name, int type, int64_t count, const void *values) {
    check_attribute(to, name, type, count, false);
    need(!to->finalized, "an attribute of a finalized descriptor");
    need(values != nullptr, "no values");
    std::vector<int64_t> list((size_t)count);
    for (int64_t i = 0; i < count; i++) {
        memcpy(&list[(size_t)i], (const char *)values + (size_t)i * size_of(type), size_of(type));
        if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) { continue; }
        const char *const wrong = "a descriptor that is not finalized";
        need(living(pointer_of<void>(list[(size_t)i]), wrong)->finalized, wrong);
    }
    need(type != CUDNN_TYPE_HANDLE || list[0] != 0, "no handle");
    to->values[name] = list;
}

} // namespace

size_t cudnnGetVersion(void) {
    if (getenv("EMU_CUDNN") == nullptr) { return 0; }
    int version = atoi(getenv("EMU_CUDNN"));
    return version > 1 ? (size_t)version : CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    if (status == CUDNN_STATUS_SUCCESS) { return "CUDNN_STATUS_SUCCESS"; }
    if (status == CUDNN_STATUS_NOT_INITIALIZED) { return "CUDNN_STATUS_NOT_INITIALIZED"; }
    if (status == CUDNN_STATUS_BAD_PARAM) { return "CUDNN_STATUS_BAD_PARAM"; }
    return "CUDNN_STATUS_NOT_SUPPORTED";
}

void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "%s", last_error.c_str()); }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle, const char *file, int line) {
    emu::host_only("cudnnCreate", {file, line});
    return status_of([&] {
        need(getenv("EMU_CUDNN") != nullptr, "no library", CUDNN_STATUS_NOT_INITIALIZED);
        *handle = new cudnnContext();
    });
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle, const char *file, int line) {
    emu::host_only("cudnnDestroy", {file, line});
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream, const char *file, int line) {
    emu::host_only("cudnnSetStream", {file, line});
    return status_of([&] {
        need(handle != nullptr, "no handle");
        handle->stream = stream;
    });
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor) {
    Descriptor *made = new Descriptor();
    made->type = type;
    descriptors.insert(made);
    *descriptor = made;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    return status_of([&] {
        Descriptor *found = living(descriptor, "a descriptor that is none, or was destroyed");
        descriptors.erase(found);
        delete found;
    });
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    return status_of(
        [&] { set_attribute(living(descriptor, "an attribute of no descriptor"), name, type, count, values); });
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    return status_of([&] { finalize(living(descriptor, "no descriptor")); });
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values) {
    return status_of([&] {
        const Descriptor *from = living(descriptor, "no descriptor");
        need(from->finalized, "a descriptor that is not finalized");
        check_attribute(from, name, type, room, true);
        *count = answer(from, room, values);
    });
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack,
                                  const char *file, int line) {
    emu::host_only("cudnnBackendExecute", {file, line});
    return status_of([&] {
        const Descriptor *planned = living(plan, "no plan"), *packed = living(pack, "no pack of pointers");
        need(handle != nullptr && planned->finalized && packed->finalized, "no handle, or one is not finalized");
        const Pointers pointers = pointers_of(packed, *planned->graph);
        char *workspace = pointer_of<char>(value_of(packed, CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
        need(workspace != nullptr, "no workspace");
        run(planned, pointers, workspace, handle->stream, {file, line});
    });
}
