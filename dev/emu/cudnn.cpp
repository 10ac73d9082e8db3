// cuDNN's graphs on the CPU: descriptors with the attributes that attention needs, the checks, and an interpreter.
//
// The interpreter computes a graph as it is written, one operation after another. Each operation reads whole tensors
// and writes a whole tensor, virtual or not, in fp32, rounded once to the tensor's type.
//
// The checks are stricter than the real library's. Two tensors of a graph with one id must be equal. The parts of a
// plan must live as long as the plan. Pointers and attributes that nothing needs are refused.
//
// For a graph with more than two products the heuristic offers three plans: one with an engine that is not
// deterministic, one that wants an enormous workspace, and one that a careful caller takes. A product stored in fp32 is
// added to the memory's contents: the real library's kernels add by atomics, and no document says that they clear the
// memory first.
#include "include/cudnn.h"

#include <math.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime.h"

struct cudnnContext {
    cudaStream_t stream;
};

namespace {

thread_local std::string last_error;

cudnnStatus_t refuse(const std::string &why, cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM) {
    last_error = why;
    return status;
}

// ---- Descriptors ----

struct Value {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<char> bytes;
};

struct Descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized = false;
    std::map<int, Value> values;
    int choice = 0; // of a configuration and its engine: index among the heuristic's plans
};

std::mutex descriptors_mutex;
std::set<Descriptor *> &descriptors() {
    static std::set<Descriptor *> *live = new std::set<Descriptor *>();
    return *live;
}

// Returns NULL if the descriptor is not valid or was destroyed.
Descriptor *find(const void *pointer) {
    std::lock_guard<std::mutex> guard(descriptors_mutex);
    auto found = descriptors().find((Descriptor *)pointer);
    return found == descriptors().end() ? nullptr : *found;
}

size_t size_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return sizeof(int);
    }
}

struct Attribute {
    cudnnBackendDescriptorType_t of;
    int name;
    cudnnBackendAttributeType_t type;
    int64_t most; // elements
    bool needed;
};

const Attribute ATTRIBUTES[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, false},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, false},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, false},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, true},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
#define TENSOR_ATTRIBUTE(of, name, needed)                                                                             \
    { of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, needed }
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, false),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, false),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_BDESC, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_CDESC, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, true),
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, true),
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 64, true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, true},
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, true),
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, true},
    TENSOR_ATTRIBUTE(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, true),
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 64, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 64, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, true},
};

const Attribute *attribute_of(const Descriptor &descriptor, int name) {
    for (const Attribute &attribute : ATTRIBUTES) {
        if (attribute.of == descriptor.type && attribute.name == name) { return &attribute; }
    }
    return nullptr;
}

template <class T> std::vector<T> list_of(const Descriptor *descriptor, int name) {
    auto found = descriptor->values.find(name);
    if (found == descriptor->values.end()) { return {}; }
    std::vector<T> list((size_t)found->second.count);
    memcpy(list.data(), found->second.bytes.data(), list.size() * sizeof(T));
    return list;
}
template <class T> T value_of(const Descriptor *descriptor, int name, T otherwise = T()) {
    auto found = descriptor->values.find(name);
    if (found != descriptor->values.end()) { memcpy(&otherwise, found->second.bytes.data(), sizeof(otherwise)); }
    return otherwise;
}
Descriptor *part_of(const Descriptor *descriptor, int name) {
    return value_of<Descriptor *>(descriptor, name, nullptr);
}

// ---- Tensors ----

#define DIMENSIONS 4
struct Tensor {
    int64_t id = 0, alignment = 0, dims[DIMENSIONS] = {0, 0, 0, 0}, strides[DIMENSIONS] = {0, 0, 0, 0};
    int type = CUDNN_DATA_FLOAT;
    bool is_virtual = false, by_value = false;
    int64_t size() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
    bool is_like(const Tensor &o) const {
        return std::equal(dims, dims + DIMENSIONS, o.dims) && std::equal(strides, strides + DIMENSIONS, o.strides) &&
               type == o.type && is_virtual == o.is_virtual && by_value == o.by_value;
    }
};

Tensor tensor_of(const Descriptor *descriptor) {
    Tensor t;
    std::vector<int64_t> dims = list_of<int64_t>(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS),
                         strides = list_of<int64_t>(descriptor, CUDNN_ATTR_TENSOR_STRIDES);
    std::copy(dims.begin(), dims.end(), t.dims);
    std::copy(strides.begin(), strides.end(), t.strides);
    t.id = value_of<int64_t>(descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    t.alignment = value_of<int64_t>(descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    t.type = value_of<int>(descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE);
    t.is_virtual = value_of<bool>(descriptor, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    t.by_value = value_of<bool>(descriptor, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    return t;
}

int64_t bytes_of(int type) { return type == CUDNN_DATA_BFLOAT16 ? 2 : type == CUDNN_DATA_BOOLEAN ? 1 : 4; }

// Returns the offset of element i in the order of the dimensions.
int64_t offset_of(const Tensor &t, int64_t i) {
    int64_t offset = 0;
    for (int d = DIMENSIONS - 1; d >= 0; d--) {
        offset += i % t.dims[d] * t.strides[d];
        i /= t.dims[d];
    }
    return offset;
}

cudnnStatus_t check_tensor(const Descriptor *descriptor) {
    for (int name : {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES}) {
        std::vector<int64_t> list = list_of<int64_t>(descriptor, name);
        if (list.size() != DIMENSIONS) { return refuse("a tensor without 4 dimensions", CUDNN_STATUS_NOT_SUPPORTED); }
        if (*std::min_element(list.begin(), list.end()) < 1) { return refuse("a dimension or stride below 1"); }
    }
    Tensor t = tensor_of(descriptor);
    if (t.alignment < bytes_of(t.type) || (t.alignment & (t.alignment - 1)) != 0) { return refuse("alignment"); }
    if (t.by_value && (t.is_virtual || t.size() != 1)) { return refuse("by value: one real number"); }
    return CUDNN_STATUS_SUCCESS;
}

// ---- Operations ----

struct Step {
    cudnnBackendDescriptorType_t type;
    int how = 0; // pointwise mode, or operator of a reduction
    int64_t axis = -1;
    std::vector<Tensor> inputs; // x, b, mask; or a, b
    Tensor output;
};

Step step_of(const Descriptor *op) {
    Step step;
    step.type = op->type;
    std::vector<int> inputs;
    int output = 0;
    if (op->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
        const Descriptor *settings = part_of(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        step.how = value_of<int>(settings, CUDNN_ATTR_POINTWISE_MODE);
        step.axis = value_of<int64_t>(settings, CUDNN_ATTR_POINTWISE_AXIS, -1);
        inputs = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                  CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
        output = CUDNN_ATTR_OPERATION_POINTWISE_YDESC;
    } else if (op->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
        inputs = {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC};
        output = CUDNN_ATTR_OPERATION_MATMUL_CDESC;
    } else if (op->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
        step.how = value_of<int>(part_of(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR);
        inputs = {CUDNN_ATTR_OPERATION_REDUCTION_XDESC};
        output = CUDNN_ATTR_OPERATION_REDUCTION_YDESC;
    } else {
        inputs = {CUDNN_ATTR_OPERATION_RESHAPE_XDESC};
        output = CUDNN_ATTR_OPERATION_RESHAPE_YDESC;
    }
    for (int name : inputs) {
        if (part_of(op, name) != nullptr) { step.inputs.push_back(tensor_of(part_of(op, name))); }
    }
    step.output = tensor_of(part_of(op, output));
    return step;
}

size_t inputs_of(int mode) {
    switch (mode) {
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_GEN_INDEX: return 1;
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GE: return 2;
    case CUDNN_POINTWISE_BINARY_SELECT: return 3;
    }
    return 0;
}

bool broadcasts(const Tensor &from, const Tensor &to) {
    for (int d = 0; d < DIMENSIONS; d++) {
        if (from.dims[d] != to.dims[d] && from.dims[d] != 1) { return false; }
    }
    return true;
}

cudnnStatus_t check_pointwise(const Step &step) {
    size_t wanted = inputs_of(step.how);
    if (wanted == 0) { return refuse("a pointwise mode that is not emulated", CUDNN_STATUS_NOT_SUPPORTED); }
    if (step.inputs.size() != wanted) { return refuse("a pointwise operation with too few or too many tensors"); }
    for (const Tensor &input : step.inputs) {
        if (!broadcasts(input, step.output)) { return refuse("a pointwise operation of unlike shapes"); }
    }
    bool selects = step.how == CUDNN_POINTWISE_BINARY_SELECT, has_axis = step.how == CUDNN_POINTWISE_GEN_INDEX;
    if (selects && step.inputs[2].type != CUDNN_DATA_BOOLEAN) { return refuse("a selection without a boolean mask"); }
    if (has_axis != (step.axis >= 0) || step.axis >= DIMENSIONS) { return refuse("the axis of an index"); }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_matmul(const Step &step) {
    const Tensor &a = step.inputs[0], &b = step.inputs[1], &c = step.output;
    bool batches = a.dims[0] == c.dims[0] && b.dims[0] == c.dims[0] && a.dims[1] == c.dims[1];
    batches = batches && c.dims[1] % b.dims[1] == 0; // neighbouring heads of a may share a head of b
    if (!batches || a.dims[2] != c.dims[2] || b.dims[3] != c.dims[3] || a.dims[3] != b.dims[2]) {
        return refuse("a product of shapes that do not fit");
    }
    // The tensor cores' operands.
    bool halves = a.type == CUDNN_DATA_BFLOAT16 && b.type == CUDNN_DATA_BFLOAT16;
    return halves ? CUDNN_STATUS_SUCCESS : refuse("a product of other types than bf16", CUDNN_STATUS_NOT_SUPPORTED);
}

// A reduction of neighbouring heads to one, as for the keys that they share.
bool sums_heads(const Step &step) {
    if (step.type != CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) { return false; }
    const Tensor &x = step.inputs[0], &y = step.output;
    return x.dims[0] == y.dims[0] && x.dims[1] > y.dims[1] && x.dims[1] % y.dims[1] == 0 && x.dims[2] == y.dims[2] &&
           x.dims[3] == y.dims[3];
}

cudnnStatus_t check_step(const Step &step) {
    if (step.output.by_value) { return refuse("an output by value"); }
    if (step.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) { return check_pointwise(step); }
    if (step.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) { return check_matmul(step); }
    if (step.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
        if (!broadcasts(step.output, step.inputs[0]) && !sums_heads(step)) {
            return refuse("a reduction to a shape that does not fit");
        }
        bool known = step.how == CUDNN_REDUCE_TENSOR_ADD || step.how == CUDNN_REDUCE_TENSOR_MAX;
        return known ? CUDNN_STATUS_SUCCESS : refuse("a reduction that is not emulated", CUDNN_STATUS_NOT_SUPPORTED);
    }
    return step.output.size() == step.inputs[0].size() ? CUDNN_STATUS_SUCCESS : refuse("a reshape to another size");
}

bool is_operation(const Descriptor *descriptor) {
    switch (descriptor->type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return true;
    default: return false;
    }
}

// ---- Graphs ----

struct Graph {
    std::vector<Step> steps;
    std::map<int64_t, Tensor> tensors; // by id
    std::set<int64_t> written;
};

cudnnStatus_t note_tensor(Graph *graph, const Tensor &t, bool is_output) {
    auto known = graph->tensors.emplace(t.id, t);
    if (!known.first->second.is_like(t)) { return refuse("two tensors with id " + std::to_string(t.id)); }
    bool was_written = graph->written.count(t.id) != 0;
    if (is_output && was_written) { return refuse("two operations write tensor " + std::to_string(t.id)); }
    if (is_output && !known.second) {
        return refuse("tensor " + std::to_string(t.id) + " is read before it is written");
    }
    if (!is_output && t.is_virtual && !was_written) {
        return refuse("nothing writes virtual tensor " + std::to_string(t.id) + ", or only later");
    }
    if (is_output) { graph->written.insert(t.id); }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t graph_of(const Descriptor *descriptor, Graph *graph) {
    for (Descriptor *op : list_of<Descriptor *>(descriptor, CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
        if (find(op) == nullptr || !is_operation(op)) { return refuse("a graph of something that is no operation"); }
        Step step = step_of(op);
        for (const Tensor &input : step.inputs) {
            cudnnStatus_t status = note_tensor(graph, input, false);
            if (status != CUDNN_STATUS_SUCCESS) { return status; }
        }
        cudnnStatus_t status = note_tensor(graph, step.output, true);
        if (status != CUDNN_STATUS_SUCCESS) { return status; }
        graph->steps.push_back(step);
    }
    return CUDNN_STATUS_SUCCESS;
}

int64_t products_of(const Graph &graph) {
    return std::count_if(graph.steps.begin(), graph.steps.end(),
                         [](const Step &step) { return step.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR; });
}

// A product stored in fp32, as in attention's backward with atomics. The real library's kernels add to it.
bool adds_to_memory(const Step &step) {
    return step.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && !step.output.is_virtual &&
           step.output.type == CUDNN_DATA_FLOAT;
}

bool adds_to_memory(const Graph &graph) {
    return std::any_of(graph.steps.begin(), graph.steps.end(), [](const Step &step) { return adds_to_memory(step); });
}

// Follows the real library's plans for attention. The backward stores an fp32 sum of each row. It also stores a bf16
// matrix or, if it adds to memory, fp32 sums of its own, the most that the engines of some GPUs need. It stores heads
// that are summed in bf16, too.
int64_t workspace_of(const Graph &graph, int choice) {
    if (products_of(graph) <= 2) { return 256; }
    const Tensor &scores = graph.steps[products_of(graph)].output;
    int64_t heads = scores.dims[0] * scores.dims[1], T = scores.dims[2], padded = (T + 127) / 128 * 128;
    if (choice == 1) { return (int64_t)1 << 40; }
    int64_t bytes = heads * T * 4 + 256;
    for (const Step &step : graph.steps) { bytes += sums_heads(step) ? step.inputs[0].size() * 2 : 0; }
    if (!adds_to_memory(graph)) { return heads * padded * padded * 2 + bytes; }
    auto sums = std::find_if(graph.steps.begin(), graph.steps.end(), [](const Step &s) { return adds_to_memory(s); });
    return sums->output.size() * 4 + bytes;
}

// Does the engine of this choice say that its bits differ from run to run? Every second run then has others.
bool is_random(const Graph &graph, int choice) { return products_of(graph) > 2 && choice == 0; }

// ---- The interpreter ----

typedef std::map<int64_t, std::vector<float>> Memory; // of each tensor, in the order of its dimensions

float rounded_to(int type, float x) {
    return type == CUDNN_DATA_BFLOAT16 ? __bfloat162float(__float2bfloat16_rn(x)) : x;
}

// Returns the values of x, repeated to the shape of y.
std::vector<float> broadcast(const std::vector<float> &values, const Tensor &x, const Tensor &y) {
    if (x.size() == y.size()) { return values; }
    Tensor view = y;
    int64_t stride = 1;
    for (int d = DIMENSIONS - 1; d >= 0; d--) {
        view.strides[d] = x.dims[d] == 1 ? 0 : stride;
        stride *= x.dims[d];
    }
    std::vector<float> result((size_t)y.size());
    for (int64_t i = 0; i < y.size(); i++) { result[(size_t)i] = values[(size_t)offset_of(view, i)]; }
    return result;
}

float apply(int mode, float x, float b, float mask) {
    switch (mode) {
    case CUDNN_POINTWISE_EXP: return expf(x);
    case CUDNN_POINTWISE_LOG: return logf(x);
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_CMP_GE: return x >= b ? 1.0f : 0.0f;
    default: return mask != 0.0f ? x : b; // BINARY_SELECT
    }
}

std::vector<float> run_pointwise(const Step &step, const Memory &memory) {
    const Tensor &y = step.output;
    std::vector<float> in[3], out((size_t)y.size());
    int64_t inner = 1; // elements from one index of the axis to the next
    for (int d = (int)step.axis + 1; d < DIMENSIONS; d++) { inner *= y.dims[d]; }
    for (size_t i = 0; i < 3; i++) {
        bool exists = i < step.inputs.size();
        in[i] = exists ? broadcast(memory.at(step.inputs[i].id), step.inputs[i], y) : std::vector<float>(out.size());
    }
    for (size_t i = 0; i < out.size(); i++) {
        out[i] = step.axis >= 0 ? (float)((int64_t)i / inner % y.dims[step.axis])
                                : apply(step.how, in[0][i], in[1][i], in[2][i]);
    }
    return out;
}

std::vector<float> run_matmul(const Step &step, const Memory &memory) {
    const std::vector<float> &a = memory.at(step.inputs[0].id), &b = memory.at(step.inputs[1].id);
    int64_t rows = step.output.dims[2], columns = step.output.dims[3], K = step.inputs[0].dims[3];
    std::vector<float> c((size_t)step.output.size(), 0.0f);
    emu::meter_operation_flops(2.0 * (double)c.size() * (double)K);
    for (int64_t row = 0; row < (int64_t)c.size() / columns; row++) {
        int64_t head = row / rows * step.inputs[1].dims[1] / step.output.dims[1]; // of all sequences
        const float *matrix = &b[(size_t)(head * K * columns)];
        for (int64_t k = 0; k < K; k++) {
            float factor = a[(size_t)(row * K + k)];
            for (int64_t j = 0; j < columns; j++) {
                c[(size_t)(row * columns + j)] += factor * matrix[k * columns + j];
            }
        }
    }
    return c;
}

std::vector<float> run_reduction(const Step &step, const Memory &memory) {
    const std::vector<float> &x = memory.at(step.inputs[0].id);
    bool adds = step.how == CUDNN_REDUCE_TENSOR_ADD;
    std::vector<float> y((size_t)step.output.size(), adds ? 0.0f : -INFINITY);
    std::vector<float> places(y.size());
    for (size_t i = 0; i < places.size(); i++) { places[i] = (float)i; }
    bool heads = sums_heads(step);
    size_t one = (size_t)(step.output.dims[2] * step.output.dims[3]), group = heads ? x.size() / y.size() : 1;
    std::vector<float> place = heads ? places : broadcast(places, step.output, step.inputs[0]);
    for (size_t i = 0; i < x.size(); i++) {
        float *sum = &y[heads ? i / one / group * one + i % one : (size_t)place[i]];
        *sum = adds ? *sum + x[i] : fmaxf(*sum, x[i]);
    }
    return y;
}

// Reads a tensor's memory with other strides.
std::vector<float> run_reshape(const Step &step, const Memory &memory) {
    const std::vector<float> &x = memory.at(step.inputs[0].id);
    std::vector<float> stored(x.size(), NAN), y(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        size_t place = (size_t)offset_of(step.inputs[0], (int64_t)i);
        if (place < stored.size()) { stored[place] = x[i]; }
    }
    for (size_t i = 0; i < y.size(); i++) {
        size_t place = (size_t)offset_of(step.output, (int64_t)i);
        y[i] = place < stored.size() ? stored[place] : NAN;
    }
    return y;
}

std::vector<float> run_step(const Step &step, const Memory &memory) {
    std::vector<float> result = step.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ? run_pointwise(step, memory)
                                : step.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR  ? run_matmul(step, memory)
                                : step.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR
                                    ? run_reduction(step, memory)
                                    : run_reshape(step, memory);
    for (float &x : result) { x = rounded_to(step.output.type, x); }
    return result;
}

// Calls use(first, bytes) for each contiguous piece of the tensor.
template <class Use> void for_each_piece(const Tensor &t, char *data, Use use) {
    int last = t.strides[3] == 1 ? 3 : 2; // the contiguous dimension
    int64_t width = t.strides[last] == 1 ? t.dims[last] : 1;
    Tensor starts = t;
    if (width > 1) { starts.dims[last] = 1; }
    for (int64_t i = 0; i < starts.size(); i++) {
        use(data + offset_of(starts, i) * bytes_of(t.type), (size_t)(width * bytes_of(t.type)));
    }
}

// A run of a graph.
struct Run {
    Graph graph;
    std::map<int64_t, char *> pointers;
    std::map<int64_t, float> numbers; // by value
    char *workspace;
    int64_t workspace_bytes;
    bool is_random; // by the engine that says so
    const char *file;
    int line;

    void load(const Tensor &t, Memory *memory) const {
        std::vector<float> &values = (*memory)[t.id];
        values.assign((size_t)t.size(), 0.0f);
        if (t.by_value) {
            values[0] = numbers.at(t.id);
            return;
        }
        char *data = pointers.at(t.id);
        for_each_piece(t, data, [](char *first, size_t bytes) { emu::op_read(first, bytes); });
        for (size_t i = 0; i < values.size(); i++) {
            int64_t place = offset_of(t, (int64_t)i);
            values[i] = t.type == CUDNN_DATA_BFLOAT16 ? __bfloat162float(((const __nv_bfloat16 *)data)[place])
                                                      : ((const float *)data)[place];
        }
    }

    void store(const Tensor &t, const std::vector<float> &values) const {
        char *data = pointers.at(t.id);
        for_each_piece(t, data, [](char *first, size_t bytes) { emu::op_write(first, bytes); });
        for (size_t i = 0; i < values.size(); i++) {
            int64_t place = offset_of(t, (int64_t)i);
            if (t.type == CUDNN_DATA_BFLOAT16) {
                ((__nv_bfloat16 *)data)[place] = __float2bfloat16_rn(values[i]);
            } else {
                ((float *)data)[place] = values[i];
            }
        }
    }

    void on(cudaStream_t stream) const {
        Memory memory;
        emu::op_begin(stream, "cudnnBackendExecute", file, line);
        for (const auto &entry : graph.tensors) {
            const Tensor &t = entry.second;
            if (!t.is_virtual && graph.written.count(t.id) == 0) { load(t, &memory); }
        }
        emu::op_scratch(workspace, (size_t)workspace_bytes);
        memset(workspace, 0xff, (size_t)workspace_bytes); // NaNs: nothing may depend on the workspace's contents
        for (const Step &step : graph.steps) {
            Memory before;
            if (adds_to_memory(step)) { load(step.output, &before); }
            std::vector<float> &values = memory[step.output.id] = run_step(step, memory);
            for (size_t i = 0; i < values.size() && !before.empty(); i++) { values[i] += before[step.output.id][i]; }
        }
        static std::atomic<int> random_runs{0};
        bool rounds_otherwise = is_random && random_runs++ % 2 == 1;
        for (int64_t id : graph.written) {
            if (graph.tensors.at(id).is_virtual) { continue; }
            memory.at(id)[0] *= rounds_otherwise ? 1.0f + 1.0f / 128 : 1.0f; // to the next number of bf16
            store(graph.tensors.at(id), memory.at(id));
        }
        emu::op_end();
    }
};

cudnnStatus_t take_pointers(const Descriptor *pack, Run *run) {
    std::vector<int64_t> ids = list_of<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    std::vector<char *> pointers = list_of<char *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (size_t i = 0; i < ids.size(); i++) {
        auto found = run->graph.tensors.find(ids[i]);
        std::string name = "tensor " + std::to_string(ids[i]);
        if (found == run->graph.tensors.end() || found->second.is_virtual) {
            return refuse("a pointer for no " + name);
        }
        if (pointers[i] == nullptr) { return refuse("a null pointer for " + name); }
        if ((uintptr_t)pointers[i] % (uintptr_t)found->second.alignment != 0) { return refuse("misaligned: " + name); }
        if (!run->pointers.emplace(ids[i], pointers[i]).second) { return refuse("two pointers for " + name); }
        if (found->second.by_value) { memcpy(&run->numbers[ids[i]], pointers[i], sizeof(float)); }
    }
    for (const auto &entry : run->graph.tensors) {
        if (!entry.second.is_virtual && run->pointers.count(entry.first) == 0) {
            return refuse("no pointer for tensor " + std::to_string(entry.first));
        }
    }
    run->workspace = value_of<char *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    return run->workspace != nullptr ? CUDNN_STATUS_SUCCESS : refuse("no workspace");
}

// ---- Descriptors, from outside ----

bool has_engine() {
    const char *text = getenv("EMU_CUDNN");
    return text != nullptr && strcmp(text, "none") != 0;
}

cudnnStatus_t check_finalize(const Descriptor *descriptor) {
    for (const Attribute &attribute : ATTRIBUTES) {
        if (attribute.of == descriptor->type && attribute.needed && descriptor->values.count(attribute.name) == 0) {
            return refuse("attribute " + std::to_string(attribute.name) + " is missing");
        }
    }
    if (descriptor->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) { return check_tensor(descriptor); }
    if (is_operation(descriptor)) { return check_step(step_of(descriptor)); }
    if (descriptor->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
        Graph graph;
        return graph_of(descriptor, &graph);
    }
    if (descriptor->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
        bool fits = descriptor->values.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count ==
                    descriptor->values.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).count;
        return fits ? CUDNN_STATUS_SUCCESS : refuse("not as many pointers as ids");
    }
    return CUDNN_STATUS_SUCCESS;
}

// Fills descriptors that the caller has made.
cudnnStatus_t give_descriptor(Descriptor *to, cudnnBackendDescriptorType_t type, int name, Descriptor *graph,
                              int choice) {
    if (find(to) == nullptr || to->type != type) { return refuse("a descriptor of another kind was given to fill"); }
    to->values[name] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, std::vector<char>(sizeof(graph))};
    memcpy(to->values[name].bytes.data(), &graph, sizeof(graph));
    to->choice = choice;
    to->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

// The attribute under which a configuration and its engine keep their graph.
#define GRAPH_OF_CONFIG CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH

cudnnStatus_t get_configs(const Descriptor *heuristic, int64_t room, int64_t *count, void *values) {
    Descriptor *described = part_of(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    Graph graph;
    cudnnStatus_t status = graph_of(described, &graph);
    int64_t offered = !has_engine() ? 0 : products_of(graph) > 2 ? 3 : 1;
    *count = std::min(room, offered);
    for (int64_t i = 0; i < *count && status == CUDNN_STATUS_SUCCESS; i++) {
        status = give_descriptor(((Descriptor **)values)[i], CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, GRAPH_OF_CONFIG,
                                 described, (int)i);
    }
    return status;
}

cudnnStatus_t get_notes(const Descriptor *engine, int64_t room, int64_t *count, void *values) {
    Graph graph;
    cudnnStatus_t status = graph_of(part_of(engine, GRAPH_OF_CONFIG), &graph);
    cudnnBackendNumericalNote_t notes[] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
    *count = std::min<int64_t>(room, is_random(graph, engine->choice) ? 2 : 1);
    memcpy(values, notes, (size_t)*count * sizeof(notes[0]));
    return status;
}

cudnnStatus_t graph_of_plan(const Descriptor *plan, Graph *graph, int *choice) {
    Descriptor *config = part_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (find(config) == nullptr) { return refuse("the plan's configuration has been destroyed"); }
    Descriptor *described = part_of(config, GRAPH_OF_CONFIG);
    if (find(described) == nullptr) { return refuse("the plan's graph has been destroyed"); }
    *choice = config->choice;
    return graph_of(described, graph);
}

} // namespace

size_t cudnnGetVersion(void) {
    if (getenv("EMU_CUDNN") == nullptr) { return 0; }
    int version = atoi(getenv("EMU_CUDNN"));
    return version > 1 ? (size_t)version : CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    }
    return "unknown cuDNN status";
}

void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "%s", last_error.c_str()); }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle, const char *file, int line) {
    emu::host_only("cudnnCreate", {file, line});
    if (getenv("EMU_CUDNN") == nullptr) { return refuse("no library", CUDNN_STATUS_NOT_INITIALIZED); }
    *handle = new cudnnContext();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle, const char *file, int line) {
    emu::host_only("cudnnDestroy", {file, line});
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream, const char *file, int line) {
    emu::host_only("cudnnSetStream", {file, line});
    if (handle == nullptr) { return refuse("no handle"); }
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor) {
    Descriptor *made = new Descriptor();
    made->type = type;
    std::lock_guard<std::mutex> guard(descriptors_mutex);
    descriptors().insert(made);
    *descriptor = made;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    Descriptor *found = find(descriptor);
    if (found == nullptr) { return refuse("a descriptor that is none, or was destroyed"); }
    std::lock_guard<std::mutex> guard(descriptors_mutex);
    descriptors().erase(found);
    delete found;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    Descriptor *to = find(descriptor);
    if (to == nullptr || to->finalized) { return refuse("an attribute of no descriptor, or of a finalized one"); }
    const Attribute *attribute = attribute_of(*to, name);
    if (attribute == nullptr || attribute->type != type || count < 1 || count > attribute->most || values == nullptr) {
        return refuse("attribute " + std::to_string(name) + ": there is none, or of another type or count");
    }
    for (int64_t i = 0; i < count && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++) {
        Descriptor *part = find(((void *const *)values)[i]);
        if (part == nullptr || !part->finalized) { return refuse("a descriptor that is not finalized"); }
    }
    if (type == CUDNN_TYPE_HANDLE && *(void *const *)values == nullptr) { return refuse("no handle"); }
    const char *bytes = (const char *)values;
    to->values[name] = {type, count, std::vector<char>(bytes, bytes + (size_t)count * size_of(type))};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    Descriptor *found = find(descriptor);
    if (found == nullptr || found->finalized) { return refuse("no descriptor, or a finalized one"); }
    cudnnStatus_t status = check_finalize(found);
    found->finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values) {
    Descriptor *from = find(descriptor);
    if (from == nullptr || !from->finalized) { return refuse("no descriptor, or one that is not finalized"); }
    if (from->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS &&
        type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        return get_configs(from, room, count, values);
    }
    if (from->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && name == CUDNN_ATTR_ENGINECFG_ENGINE &&
        type == CUDNN_TYPE_BACKEND_DESCRIPTOR && room == 1) {
        *count = 1;
        return give_descriptor(*(Descriptor **)values, CUDNN_BACKEND_ENGINE_DESCRIPTOR, GRAPH_OF_CONFIG,
                               part_of(from, GRAPH_OF_CONFIG), from->choice);
    }
    if (from->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE &&
        type == CUDNN_TYPE_NUMERICAL_NOTE) {
        return get_notes(from, room, count, values);
    }
    if (from->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE &&
        type == CUDNN_TYPE_INT64 && room == 1) {
        Graph graph;
        int choice = 0;
        cudnnStatus_t status = graph_of_plan(from, &graph, &choice);
        *count = 1;
        if (status == CUDNN_STATUS_SUCCESS) { *(int64_t *)values = workspace_of(graph, choice); }
        return status;
    }
    return refuse("attribute " + std::to_string(name) + " cannot be asked for");
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack,
                                  const char *file, int line) {
    emu::host_only("cudnnBackendExecute", {file, line});
    Descriptor *planned = find(plan), *packed = find(pack);
    if (handle == nullptr || planned == nullptr || packed == nullptr || !planned->finalized || !packed->finalized) {
        return refuse("no handle, no plan, or no pack of pointers");
    }
    std::shared_ptr<Run> run(new Run());
    int choice = 0;
    cudnnStatus_t status = graph_of_plan(planned, &run->graph, &choice);
    if (status == CUDNN_STATUS_SUCCESS) { status = take_pointers(packed, run.get()); }
    if (status != CUDNN_STATUS_SUCCESS) { return status; }
    run->workspace_bytes = workspace_of(run->graph, choice);
    run->is_random = is_random(run->graph, choice);
    run->file = file, run->line = line;
    run->on(handle->stream);
    return CUDNN_STATUS_SUCCESS;
}
