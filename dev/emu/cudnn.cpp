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
    std::map<int, std::vector<char>> values; // bytes, by attribute
    std::shared_ptr<const Graph> graph;      // that it is, or is for
    int choice = 0;                          // of a configuration and its engine: index among the heuristic's plans
};

std::set<const void *> &descriptors = *new std::set<const void *>; // that live

Descriptor *find(const void *pointer, const char *otherwise) {
    need(descriptors.count(pointer) > 0, otherwise);
    return static_cast<Descriptor *>(const_cast<void *>(pointer));
}

// What the emulator does with an attribute.
enum Role { NEEDED, OPTIONAL, INPUT, OPTIONAL_INPUT, OUTPUT, SETTINGS };
struct Attribute {
    int of, name, type;
    size_t most; // elements
    Role role;
};

#define KIND(of) CUDNN_BACKEND_##of##_DESCRIPTOR
#define LIST(of, name, type, most)                                                                                     \
    { KIND(of), CUDNN_ATTR_##of##_##name, CUDNN_TYPE_##type, most, NEEDED }
#define ONE(of, name, type, role)                                                                                      \
    { KIND(of), CUDNN_ATTR_##of##_##name, CUDNN_TYPE_##type, 1, role }
#define PART(of, name, role) ONE(of, name, BACKEND_DESCRIPTOR, role)

const Attribute ATTRIBUTES[] = {
    ONE(TENSOR, UNIQUE_ID, INT64, NEEDED),
    ONE(TENSOR, DATA_TYPE, DATA_TYPE, NEEDED),
    LIST(TENSOR, DIMENSIONS, INT64, 4),
    LIST(TENSOR, STRIDES, INT64, 4),
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
    LIST(OPERATIONGRAPH, OPS, BACKEND_DESCRIPTOR, 64),
    ONE(OPERATIONGRAPH, HANDLE, HANDLE, NEEDED),
    PART(ENGINEHEUR, OPERATION_GRAPH, NEEDED),
    ONE(ENGINEHEUR, MODE, HEUR_MODE, NEEDED),
    PART(EXECUTION_PLAN, ENGINE_CONFIG, NEEDED),
    ONE(EXECUTION_PLAN, HANDLE, HANDLE, NEEDED),
    LIST(VARIANT_PACK, UNIQUE_IDS, INT64, 64),
    LIST(VARIANT_PACK, DATA_POINTERS, VOID_PTR, 64),
    ONE(VARIANT_PACK, WORKSPACE, VOID_PTR, NEEDED),
};

template <class T> std::vector<T> list_of(const Descriptor *descriptor, int name) {
    auto found = descriptor->values.find(name);
    if (found == descriptor->values.end()) { return {}; }
    const T *first = reinterpret_cast<const T *>(found->second.data());
    return std::vector<T>(first, first + found->second.size() / sizeof(T));
}
template <class T> T value_of(const Descriptor *descriptor, int name, T otherwise = T()) {
    const std::vector<T> list = list_of<T>(descriptor, name);
    return list.empty() ? otherwise : list[0];
}
// Null: the descriptor has no such part.
Descriptor *part_of(const Descriptor *descriptor, int name) {
    const Descriptor *part = value_of<Descriptor *>(descriptor, name);
    return part == nullptr ? nullptr : find(part, "a part has been destroyed");
}

// ---- Tensors ----

constexpr int DIMENSIONS = 4;
typedef std::array<int64_t, DIMENSIONS> Sizes;

struct Tensor {
    int64_t id, alignment;
    Sizes dims, strides;
    int type;
    bool is_virtual, by_value;
    int64_t size() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
    int64_t width() const { return type == CUDNN_DATA_BFLOAT16 ? 2 : type == CUDNN_DATA_BOOLEAN ? 1 : 4; } // in bytes
    bool is_like(const Tensor &o) const {
        return dims == o.dims && strides == o.strides && type == o.type && is_virtual == o.is_virtual &&
               by_value == o.by_value;
    }
};

Sizes sizes_of(const Descriptor *descriptor, int name) {
    const std::vector<int64_t> list = list_of<int64_t>(descriptor, name);
    need(list.size() == DIMENSIONS, "a tensor without 4 dimensions", CUDNN_STATUS_NOT_SUPPORTED);
    need(*std::min_element(list.begin(), list.end()) >= 1, "a dimension or stride below 1");
    return {list[0], list[1], list[2], list[3]};
}

Tensor tensor_of(const Descriptor *descriptor) {
    const Tensor t = {value_of<int64_t>(descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID),
                      value_of<int64_t>(descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
                      sizes_of(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS),
                      sizes_of(descriptor, CUDNN_ATTR_TENSOR_STRIDES),
                      value_of<int>(descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE),
                      value_of<bool>(descriptor, CUDNN_ATTR_TENSOR_IS_VIRTUAL),
                      value_of<bool>(descriptor, CUDNN_ATTR_TENSOR_IS_BY_VALUE)};
    need(t.alignment >= t.width() && (t.alignment & (t.alignment - 1)) == 0, "alignment");
    need(!t.by_value || (!t.is_virtual && t.size() == 1), "by value: one real number");
    return t;
}

// The offset of element i in the order of the dimensions.
int64_t offset_of(const Tensor &t, int64_t i) {
    int64_t offset = 0;
    for (int d = DIMENSIONS - 1; d >= 0; d--) {
        offset += i % t.dims[d] * t.strides[d];
        i /= t.dims[d];
    }
    return offset;
}

// The element of `of` that element i of `in` belongs to. In a dimension that is shorter in `of`, neighbours share one.
int64_t place_in(const Tensor &of, const Tensor &in, int64_t i) {
    int64_t place = 0, stride = 1;
    if (of.dims == in.dims) { return i; }
    for (int d = DIMENSIONS - 1; d >= 0; d--) {
        place += i % in.dims[d] * of.dims[d] / in.dims[d] * stride;
        stride *= of.dims[d];
        i /= in.dims[d];
    }
    return place;
}

bool broadcasts(const Tensor &from, const Tensor &to) {
    for (int d = 0; d < DIMENSIONS; d++) {
        if (from.dims[d] != to.dims[d] && from.dims[d] != 1) { return false; }
    }
    return true;
}

// ---- Operations ----

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

const Mode &mode_of(int how) {
    auto found = std::find_if(std::begin(MODES), std::end(MODES), [=](const Mode &m) { return m.mode == how; });
    need(found != std::end(MODES), "a pointwise mode that is not emulated", CUDNN_STATUS_NOT_SUPPORTED);
    return *found;
}

struct Step {
    int type, how = 0; // how: pointwise mode, or operator of a reduction
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

bool is_operation(int type) {
    return std::any_of(std::begin(ATTRIBUTES), std::end(ATTRIBUTES),
                       [=](const Attribute &a) { return a.of == type && a.role == OUTPUT; });
}

Step step_of(const Descriptor *operation) {
    Step step = {operation->type};
    for (const Attribute &a : ATTRIBUTES) {
        const Descriptor *part = a.of == operation->type ? part_of(operation, a.name) : nullptr;
        if (part == nullptr) { continue; }
        if (a.role == INPUT || a.role == OPTIONAL_INPUT) { step.inputs.push_back(tensor_of(part)); }
        if (a.role == OUTPUT) { step.output = tensor_of(part); }
        if (a.role != SETTINGS) { continue; }
        const bool reduces = part->type == KIND(REDUCTION);
        step.how = value_of<int>(part, reduces ? CUDNN_ATTR_REDUCTION_OPERATOR : CUDNN_ATTR_POINTWISE_MODE);
        step.axis = value_of<int64_t>(part, CUDNN_ATTR_POINTWISE_AXIS, -1);
    }
    return step;
}

void check_pointwise(const Step &step) {
    const bool has_axis = step.how == CUDNN_POINTWISE_GEN_INDEX;
    need(step.inputs.size() == mode_of(step.how).inputs, "a pointwise operation with too few or too many tensors");
    for (const Tensor &x : step.inputs) { need(broadcasts(x, step.output), "a pointwise operation of unlike shapes"); }
    need(step.inputs.size() < 3 || step.inputs[2].type == CUDNN_DATA_BOOLEAN, "a selection without a boolean mask");
    need(has_axis == (step.axis >= 0) && step.axis < DIMENSIONS, "the axis of an index");
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

void check_step(const Step &step) {
    const Tensor &x = step.inputs[0], &y = step.output;
    need(!y.by_value, "an output by value");
    if (step.type == KIND(OPERATION_POINTWISE)) { check_pointwise(step); }
    if (step.multiplies()) { check_matmul(step); }
    if (step.type == KIND(OPERATION_RESHAPE)) { need(x.size() == y.size(), "a reshape to another size"); }
    if (step.type != KIND(OPERATION_REDUCTION)) { return; }
    need(broadcasts(y, x) || step.sums_heads(), "a reduction to a shape that does not fit");
    need(step.how == CUDNN_REDUCE_TENSOR_ADD || step.how == CUDNN_REDUCE_TENSOR_MAX, "a reduction that is not emulated",
         CUDNN_STATUS_NOT_SUPPORTED);
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

// Says the engine that its bits differ from run to run? Every second run then has others.
bool is_random(const Descriptor *of) { return of->graph->products() > 2 && of->choice == 0; }

void note_tensor(Graph *graph, const Tensor &t, bool is_output) {
    const std::string name = "tensor " + std::to_string(t.id);
    const bool was_written = graph->written.count(t.id) != 0;
    const auto known = graph->tensors.emplace(t.id, t);
    need(known.first->second.is_like(t), "two tensors with the id of " + name);
    need(is_output || !t.is_virtual || was_written, "nothing writes virtual " + name + ", or only later");
    if (!is_output) { return; }
    need(!was_written, "two operations write " + name);
    need(known.second, name + " is read before it is written");
    graph->written.insert(t.id);
}

Graph graph_of(const Descriptor *descriptor) {
    Graph graph;
    for (const Descriptor *pointer : list_of<Descriptor *>(descriptor, CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
        const Descriptor *op = find(pointer, "a graph of an operation that has been destroyed");
        need(is_operation(op->type), "a graph of something that is no operation");
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

// ---- The interpreter ----

typedef std::vector<float> Values;        // of a tensor, in the order of its dimensions
typedef std::map<int64_t, Values> Memory; // by id

Values run_pointwise(const Step &step, const Memory &memory) {
    const Tensor &y = step.output;
    Values out((size_t)y.size());
    int64_t inner = 1; // elements from one index of the axis to the next
    for (int d = (int)step.axis + 1; d < DIMENSIONS; d++) { inner *= y.dims[d]; }
    const Mode &mode = mode_of(step.how);
    for (int64_t i = 0; i < y.size(); i++) {
        float in[3] = {0.0f, 0.0f, 0.0f};
        for (size_t k = 0; k < step.inputs.size(); k++) {
            in[k] = memory.at(step.inputs[k].id)[place_in(step.inputs[k], y, i)];
        }
        out[i] = step.axis >= 0 ? (float)(i / inner % y.dims[step.axis]) : mode.apply(in[0], in[1], in[2]);
    }
    return out;
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

Values run_reduction(const Step &step, const Memory &memory) {
    const Values &x = memory.at(step.inputs[0].id);
    bool adds = step.how == CUDNN_REDUCE_TENSOR_ADD;
    Values y((size_t)step.output.size(), adds ? 0.0f : -INFINITY);
    for (size_t i = 0; i < x.size(); i++) {
        float *sum = &y[place_in(step.output, step.inputs[0], (int64_t)i)];
        *sum = adds ? *sum + x[i] : fmaxf(*sum, x[i]);
    }
    return y;
}

// Reads a tensor's memory with other strides.
Values run_reshape(const Step &step, const Memory &memory) {
    const Values &x = memory.at(step.inputs[0].id);
    const Tensor &from = step.inputs[0];
    Values stored((size_t)offset_of(from, from.size() - 1) + 1, NAN), y(x.size(), NAN);
    for (size_t i = 0; i < x.size(); i++) { stored[(size_t)offset_of(from, (int64_t)i)] = x[i]; }
    for (size_t i = 0; i < y.size(); i++) {
        const size_t place = (size_t)offset_of(step.output, (int64_t)i);
        if (place < stored.size()) { y[i] = stored[place]; }
    }
    return y;
}

Values run_step(const Step &step, const Memory &memory) {
    Values result = step.type == KIND(OPERATION_POINTWISE)   ? run_pointwise(step, memory)
                    : step.type == KIND(OPERATION_REDUCTION) ? run_reduction(step, memory)
                    : step.multiplies()                      ? run_matmul(step, memory)
                                                             : run_reshape(step, memory);
    if (step.output.type != CUDNN_DATA_BFLOAT16) { return result; }
    for (float &x : result) { x = __bfloat162float(__float2bfloat16_rn(x)); }
    return result;
}

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
    const std::vector<int64_t> ids = list_of<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const std::vector<char *> list = list_of<char *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    Pointers pointers;
    for (size_t i = 0; i < ids.size(); i++) {
        const auto found = graph.tensors.find(ids[i]);
        const bool fits = found != graph.tensors.end() && !found->second.is_virtual && list[i] != nullptr &&
                          (uintptr_t)list[i] % (uintptr_t)found->second.alignment == 0;
        need(fits && pointers.emplace(ids[i], list[i]).second,
             "a pointer for tensor " + std::to_string(ids[i]) + " that is null, misaligned, not needed or the second");
    }
    for (const auto &[id, t] : graph.tensors) {
        need(t.is_virtual || pointers.count(id) != 0, "no pointer for tensor " + std::to_string(id));
    }
    return pointers;
}

// ---- Descriptors, from outside ----

void finalize(Descriptor *d) {
    need(!d->finalized, "a finalized descriptor");
    for (const Attribute &a : ATTRIBUTES) {
        const bool is_optional = a.role == OPTIONAL || a.role == OPTIONAL_INPUT;
        need(a.of != d->type || is_optional || d->values.count(a.name) != 0,
             "attribute " + std::to_string(a.name) + " is missing");
    }
    if (d->type == KIND(TENSOR)) { tensor_of(d); }
    if (is_operation(d->type)) { check_step(step_of(d)); }
    if (d->type == KIND(OPERATIONGRAPH)) { d->graph = std::make_shared<Graph>(graph_of(d)); }
    for (int name : {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG}) {
        if (const Descriptor *part = part_of(d, name)) { d->graph = part->graph, d->choice = part->choice; }
    }
    need(list_of<int64_t>(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() ==
             list_of<void *>(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size(),
         "not as many pointers as ids");
    d->finalized = true;
}

// Fills a descriptor that the caller has made.
int64_t fill(void *values, int64_t i, int type, const Descriptor *from, int choice) {
    Descriptor *to = find(static_cast<void **>(values)[i], "no descriptor was given to fill");
    need(to->type == type, "a descriptor of another kind was given to fill");
    to->graph = from->graph, to->choice = choice, to->finalized = true;
    return 1;
}

// What can be asked for. Each returns how many values there are.
int64_t give_configs(const Descriptor *heuristic, int64_t room, void *values) {
    const char *engine = getenv("EMU_CUDNN");
    const bool has_engine = engine != nullptr && strcmp(engine, "none") != 0;
    const int64_t count = std::min<int64_t>(room, !has_engine ? 0 : heuristic->graph->products() > 2 ? 3 : 1);
    for (int i = 0; i < count; i++) { fill(values, i, KIND(ENGINECFG), heuristic, i); }
    return count;
}
int64_t give_engine(const Descriptor *config, int64_t, void *values) {
    return fill(values, 0, KIND(ENGINE), config, config->choice);
}
int64_t give_notes(const Descriptor *engine, int64_t, void *values) {
    *(int *)values = is_random(engine) ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    return 1;
}
int64_t give_workspace(const Descriptor *plan, int64_t, void *values) {
    *(int64_t *)values = workspace_of(plan);
    return 1;
}

const struct {
    int of, name, type;
    int64_t (*give)(const Descriptor *from, int64_t room, void *values);
} ANSWERS[] = {{KIND(ENGINEHEUR), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, give_configs},
               {KIND(ENGINECFG), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, give_engine},
               {KIND(ENGINE), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, give_notes},
               {KIND(EXECUTION_PLAN), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, give_workspace}};

size_t size_of(int type) {
    if (type == CUDNN_TYPE_BOOLEAN) { return 1; }
    const bool is_wide = type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR ||
                         type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
    return is_wide ? 8 : sizeof(int);
}

void set_attribute(Descriptor *to, int name, int type, int64_t count, const void *values) {
    const Attribute *a = std::find_if(std::begin(ATTRIBUTES), std::end(ATTRIBUTES), [&](const Attribute &other) {
        return other.of == to->type && other.name == name;
    });
    need(!to->finalized, "an attribute of a finalized descriptor");
    need(a != std::end(ATTRIBUTES) && a->type == type && count >= 1 && (size_t)count <= a->most && values != nullptr,
         "attribute " + std::to_string(name) + ": there is none, or of another type or count");
    for (int64_t i = 0; i < count && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++) {
        const char *const wrong = "a descriptor that is not finalized";
        need(find(((void *const *)values)[i], wrong)->finalized, wrong);
    }
    need(type != CUDNN_TYPE_HANDLE || *(void *const *)values != nullptr, "no handle");
    const char *bytes = (const char *)values;
    to->values[name].assign(bytes, bytes + (size_t)count * size_of(type));
}

} // namespace

size_t cudnnGetVersion(void) {
    if (getenv("EMU_CUDNN") == nullptr) { return 0; }
    int version = atoi(getenv("EMU_CUDNN"));
    return version > 1 ? (size_t)version : CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS           ? "CUDNN_STATUS_SUCCESS"
           : status == CUDNN_STATUS_NOT_INITIALIZED ? "CUDNN_STATUS_NOT_INITIALIZED"
           : status == CUDNN_STATUS_BAD_PARAM       ? "CUDNN_STATUS_BAD_PARAM"
                                                    : "CUDNN_STATUS_NOT_SUPPORTED";
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
        Descriptor *found = find(descriptor, "a descriptor that is none, or was destroyed");
        descriptors.erase(found);
        delete found;
    });
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    return status_of(
        [&] { set_attribute(find(descriptor, "an attribute of no descriptor"), name, type, count, values); });
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    return status_of([&] { finalize(find(descriptor, "no descriptor")); });
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values) {
    return status_of([&] {
        const Descriptor *from = find(descriptor, "no descriptor");
        need(from->finalized, "a descriptor that is not finalized");
        auto answers = [&](const auto &a) {
            return a.of == from->type && a.name == name && a.type == type && room > 0;
        };
        const auto *answer = std::find_if(std::begin(ANSWERS), std::end(ANSWERS), answers);
        need(answer != std::end(ANSWERS), "attribute " + std::to_string(name) + " cannot be asked for");
        *count = answer->give(from, room, values);
    });
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack,
                                  const char *file, int line) {
    emu::host_only("cudnnBackendExecute", {file, line});
    return status_of([&] {
        const Descriptor *planned = find(plan, "no plan"), *packed = find(pack, "no pack of pointers");
        need(handle != nullptr && planned->finalized && packed->finalized, "no handle, or one is not finalized");
        const Pointers pointers = pointers_of(packed, *planned->graph);
        char *workspace = value_of<char *>(packed, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
        need(workspace != nullptr, "no workspace");
        run(planned, pointers, workspace, handle->stream, {file, line});
    });
}
