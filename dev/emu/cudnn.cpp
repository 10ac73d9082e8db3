// cuDNN's graphs on the CPU: descriptors with the attributes that attention needs, the checks, and an interpreter.
//
// The interpreter computes a graph as it is written, one operation after another. Each operation reads whole tensors
// and writes a whole tensor, virtual or not, in fp32, rounded once to the tensor's type.
//
// For a graph with more than two products the heuristic offers three plans: one with an engine that is not
// deterministic, one that wants an enormous workspace, and one that a careful caller takes. A product stored in fp32 is
// added to the memory's contents: the real library's kernels add by atomics, and no document says that they clear the
// memory first.
#include "include/cudnn.h"

#include <math.h>
#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "runtime.h"

struct cudnnContext {
    cudaStream_t stream;
};

namespace {

// ---- Mistakes: the calls of a program that makes none succeed ----

const char *function; // of the interface, that runs
emu::Source caller;   // its line in the program

void begin_call(const char *name, const char *file, int line) {
    function = name, caller = {file, line};
    emu::host_only(function, caller);
}

void need(bool ok, const std::string &otherwise) {
    if (!ok) { emu::report(caller, emu::format("%s: %s", function, otherwise.c_str())); }
}

// ---- Descriptors ----

struct Graph;
struct Descriptor {
    int type;
    bool finalized = false;
    std::map<int, std::vector<int64_t>> values = {}; // numbers and pointers, by attribute; none: it is not set
    std::shared_ptr<const Graph> graph = {};         // that it is, or is for
    int choice = 0; // of a configuration and its engine: index among the heuristic's plans
};

std::set<const void *> &descriptors = *new std::set<const void *>; // that live

Descriptor *living(const void *pointer) {
    need(descriptors.count(pointer) > 0, "a descriptor that does not exist, or was destroyed");
    return static_cast<Descriptor *>(const_cast<void *>(pointer));
}
Descriptor *finalized(const void *pointer) {
    need(living(pointer)->finalized, "a descriptor that is not finalized");
    return living(pointer);
}

// What the emulator does with an attribute. An answer is asked for, all others are set. Those up to SETTINGS must be.
enum Role { NEEDED, INPUT, OUTPUT, SETTINGS, OPTIONAL, OPTIONAL_INPUT, ANSWER };
struct Attribute {
    int of, name, type;
    int64_t most; // values
    Role role;
};

#define ATTRIBUTE(of, name, number, type, most, role)                                                                  \
    {CUDNN_BACKEND_##of##_DESCRIPTOR, CUDNN_ATTR_##of##_##name, CUDNN_TYPE_##type, most, role},
const Attribute ATTRIBUTES[] = {EMU_CUDNN_ATTRIBUTES(ATTRIBUTE)};
#define KIND(of) CUDNN_BACKEND_##of##_DESCRIPTOR

// Reports a caller that names an attribute that cannot be set, or cannot be asked for.
void check_attribute(const Descriptor *d, int name, int type, int64_t count, bool is_asked) {
    auto is = [=](const Attribute &a) {
        const bool suits = (a.role == ANSWER) == is_asked && count >= 1 && (is_asked || count <= a.most);
        return a.of == d->type && a.name == name && a.type == type && suits;
    };
    need(std::any_of(std::begin(ATTRIBUTES), std::end(ATTRIBUTES), is),
         "attribute " + std::to_string(name) + ": there is none, or of another type or count");
}

int64_t value_of(Descriptor *descriptor, int name, int64_t otherwise = 0) {
    const std::vector<int64_t> &list = descriptor->values[name];
    return list.empty() ? otherwise : list[0];
}
template <class T> T *pointer_of(int64_t value) { return reinterpret_cast<T *>(value); }
// Null means that the descriptor has no such part.
Descriptor *part_of(Descriptor *descriptor, int name) {
    const void *part = pointer_of<void>(value_of(descriptor, name));
    return part == nullptr ? nullptr : living(part);
}

// ---- Tensors ----

constexpr int DIMENSIONS = 4;
typedef std::array<int64_t, DIMENSIONS> Sizes;
int64_t product(const Sizes &dims) { return dims[0] * dims[1] * dims[2] * dims[3]; }

struct Tensor {
    int64_t id, alignment, type, is_virtual, by_value;
    Sizes dims, strides;
    int64_t size() const { return product(dims); }
    int64_t width() const { return type == CUDNN_DATA_BFLOAT16 ? 2 : type == CUDNN_DATA_BOOLEAN ? 1 : 4; } // in bytes
    auto all() const { return std::tie(id, alignment, type, is_virtual, by_value, dims, strides); }
};
typedef std::vector<float> Values;        // of a tensor, in the order of its dimensions
typedef std::map<int64_t, Values> Memory; // by id

Sizes sizes_of(Descriptor *descriptor, int name) {
    const std::vector<int64_t> &list = descriptor->values[name];
    need(list.size() == DIMENSIONS, "a tensor without 4 dimensions");
    need(*std::min_element(list.begin(), list.end()) >= 1, "a dimension or stride below 1");
    return {list[0], list[1], list[2], list[3]};
}

Tensor tensor_of(Descriptor *d) {
    const Tensor t = {value_of(d, CUDNN_ATTR_TENSOR_UNIQUE_ID),   value_of(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
                      value_of(d, CUDNN_ATTR_TENSOR_DATA_TYPE),   value_of(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL),
                      value_of(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE), sizes_of(d, CUDNN_ATTR_TENSOR_DIMENSIONS),
                      sizes_of(d, CUDNN_ATTR_TENSOR_STRIDES)};
    need(t.alignment >= t.width() && (t.alignment & (t.alignment - 1)) == 0, "alignment");
    need(!t.by_value || (!t.is_virtual && t.size() == 1), "by value: one real number");
    const bool can_be_stored = t.type == CUDNN_DATA_FLOAT || t.type == CUDNN_DATA_BFLOAT16;
    need(t.is_virtual || can_be_stored, "a stored tensor in another type than fp32 and bf16");
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
    return std::equal(from.dims.begin(), from.dims.end(), to.dims.begin(),
                      [](int64_t size, int64_t wanted) { return size == wanted || size == 1; });
}

// ---- Operations: what each checks, and how it is computed ----

enum { POINTWISE = KIND(OPERATION_POINTWISE), MATMUL = KIND(OPERATION_MATMUL) };
enum { REDUCTION = KIND(OPERATION_REDUCTION), RESHAPE = KIND(OPERATION_RESHAPE) };

struct Mode { // how an operation gets an element. For a reduction, b is what it has so far
    int operation, mode;
    size_t inputs;
    float (*apply)(float x, float b, float mask);
};
const Mode MODES[] = {
    {POINTWISE, CUDNN_POINTWISE_EXP, 1, [](float x, float, float) { return expf(x); }},
    {POINTWISE, CUDNN_POINTWISE_LOG, 1, [](float x, float, float) { return logf(x); }},
    {POINTWISE, CUDNN_POINTWISE_IDENTITY, 1, [](float x, float, float) { return x; }},
    {POINTWISE, CUDNN_POINTWISE_GEN_INDEX, 1, [](float index, float, float) { return index; }},
    {POINTWISE, CUDNN_POINTWISE_ADD, 2, [](float x, float b, float) { return x + b; }},
    {POINTWISE, CUDNN_POINTWISE_SUB, 2, [](float x, float b, float) { return x - b; }},
    {POINTWISE, CUDNN_POINTWISE_MUL, 2, [](float x, float b, float) { return x * b; }},
    {POINTWISE, CUDNN_POINTWISE_DIV, 2, [](float x, float b, float) { return x / b; }},
    {POINTWISE, CUDNN_POINTWISE_CMP_GE, 2, [](float x, float b, float) { return x >= b ? 1.0f : 0.0f; }},
    {POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, 3, [](float x, float b, float mask) { return mask != 0.0f ? x : b; }},
    {REDUCTION, CUDNN_REDUCE_TENSOR_ADD, 1, [](float x, float b, float) { return b + x; }},
    {REDUCTION, CUDNN_REDUCE_TENSOR_MAX, 1, [](float x, float b, float) { return fmaxf(b, x); }},
    {RESHAPE, 0, 1, [](float x, float, float) { return x; }},
    {MATMUL, 0, 2, nullptr}};

struct Step {
    int type;
    const Mode *mode = nullptr;
    int64_t axis = -1;               // of an index
    std::vector<Tensor> inputs = {}; // x, b, mask; or a, b
    Tensor output = {};
    // Attention's backward with atomics. The real library's kernels add to what is there.
    bool adds_to_memory() const { return type == MATMUL && !output.is_virtual && output.type == CUDNN_DATA_FLOAT; }
    // Neighbouring heads become one, as for the keys that they share.
    bool sums_heads() const {
        const Sizes &x = inputs[0].dims, &y = output.dims;
        return type == REDUCTION && x[1] > y[1] && x[1] % y[1] == 0 && x[0] == y[0] && x[2] == y[2] && x[3] == y[3];
    }
};

bool fits(const Step &step) {
    const std::vector<Tensor> &in = step.inputs;
    const Tensor &x = in[0], &y = step.output;
    const Sizes &a = x.dims, &b = in.back().dims, &c = y.dims;
    switch (step.type) {
    case POINTWISE: return std::all_of(in.begin(), in.end(), [&](const Tensor &t) { return broadcasts(t, y); });
    case REDUCTION: return broadcasts(y, x) || step.sums_heads();
    case RESHAPE: return x.size() == y.size() && x.strides == packed(a) && offset_of(y, y.size() - 1) < x.size();
    default: // Neighbouring heads of a may share a head of b.
        return std::equal(&a[0], &a[3], &c[0]) && b[0] == c[0] && c[1] % b[1] == 0 && b[3] == c[3] && a[3] == b[2];
    }
}

void check(const Step &step) {
    const std::vector<Tensor> &inputs = step.inputs;
    need(step.mode != nullptr, "a mode that is not emulated");
    need(inputs.size() == step.mode->inputs, "an operation with too few or too many tensors");
    need(fits(step), "an operation on shapes that do not fit");
    need(inputs.size() < 3 || inputs[2].type == CUDNN_DATA_BOOLEAN, "a selection without a boolean mask");
    const bool is_index = step.mode->mode == CUDNN_POINTWISE_GEN_INDEX;
    need(is_index == (step.axis >= 0) && step.axis < DIMENSIONS, "the axis of an index");
    const bool is_bf16 = inputs[0].type == CUDNN_DATA_BFLOAT16 && inputs.back().type == CUDNN_DATA_BFLOAT16;
    need(step.type != MATMUL || is_bf16, "a product of other types than bf16"); // the tensor cores' operands
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

// A reduction goes over the elements of x, all others go over the elements of y. A reshape reads a packed tensor with
// y's strides.
Values run_elements(const Step &step, const Memory &memory) {
    const Sizes &y = step.output.dims, &all = step.type == REDUCTION ? step.inputs[0].dims : y;
    const bool finds_most = step.type == REDUCTION && step.mode->mode == CUDNN_REDUCE_TENSOR_MAX;
    auto place = [&](int64_t i, const Sizes &dims) { return dims == all ? i : place_of(i, all, dims, packed(dims)); };
    Values out((size_t)product(y), finds_most ? -INFINITY : 0.0f);
    Sizes along = {}; // strides that make the place the index
    if (step.axis >= 0) { along[(size_t)step.axis] = 1; }
    for (int64_t i = 0; i < product(all); i++) {
        float &result = out[place(i, y)], in[3] = {0.0f, result, 0.0f};
        for (size_t k = 0; k < step.inputs.size(); k++) {
            const Tensor &t = step.inputs[k];
            in[k] = memory.at(t.id)[step.type == RESHAPE ? offset_of(step.output, i) : place(i, t.dims)];
        }
        if (step.axis >= 0) { in[0] = (float)place_of(i, all, all, along); }
        result = step.mode->apply(in[0], in[1], in[2]);
    }
    return out;
}

bool is_operation(int type) { return type == POINTWISE || type == MATMUL || type == REDUCTION || type == RESHAPE; }

Step step_of(Descriptor *operation) {
    Step step = {operation->type};
    int64_t mode = 0;
    for (const Attribute &a : ATTRIBUTES) {
        Descriptor *part = a.of == operation->type ? part_of(operation, a.name) : nullptr;
        if (part == nullptr) { continue; }
        if (a.role == INPUT || a.role == OPTIONAL_INPUT) { step.inputs.push_back(tensor_of(part)); }
        if (a.role == OUTPUT) { step.output = tensor_of(part); }
        if (a.role != SETTINGS) { continue; }
        mode = value_of(part, CUDNN_ATTR_POINTWISE_MODE, value_of(part, CUDNN_ATTR_REDUCTION_OPERATOR));
        step.axis = value_of(part, CUDNN_ATTR_POINTWISE_AXIS, -1);
    }
    for (const Mode &m : MODES) {
        if (m.operation == step.type && m.mode == mode) { step.mode = &m; }
    }
    check(step);
    return step;
}

// ---- Graphs ----

struct Graph {
    std::vector<Step> steps;
    std::map<int64_t, Tensor> tensors; // by id
    int64_t products() const {
        return std::count_if(steps.begin(), steps.end(), [](const Step &step) { return step.type == MATMUL; });
    }
};

// True if the engine says that its bits differ from run to run. Every second run then has others.
bool is_random(const Descriptor *of) { return of->graph->products() > 2 && of->choice == 0; }

// A virtual tensor is written before it is read, and no tensor is written twice.
void note_tensor(Graph *graph, const Tensor &t, bool is_output) {
    const std::string name = "tensor " + std::to_string(t.id);
    const auto [known, is_new] = graph->tensors.emplace(t.id, t);
    need(known->second.all() == t.all(), "two tensors with the id of " + name);
    need(is_output || !t.is_virtual || !is_new, "nothing writes virtual " + name + ", or only later");
    need(!is_output || is_new, name + " is read or written before this operation writes it");
}

Graph graph_of(Descriptor *descriptor) {
    Graph graph;
    for (int64_t pointer : descriptor->values[CUDNN_ATTR_OPERATIONGRAPH_OPS]) {
        Descriptor *op = living(pointer_of<void>(pointer));
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
    const Tensor &scores = graph.steps[(size_t)graph.products()].output;
    int64_t bytes = scores.size() / scores.dims[3] * 4 + 256, matrix = scores.size() * 2;
    for (const Step &step : graph.steps) {
        bytes += step.sums_heads() ? step.inputs[0].size() * 2 : 0;
        if (step.adds_to_memory()) { matrix = step.output.size() * 4; }
    }
    return bytes + matrix;
}

// ---- Running a plan ----

typedef std::map<int64_t, char *> Pointers; // by id

// Copies a tensor from memory or to memory.
void transfer(const Tensor &t, char *data, bool writes, Values *values) {
    values->resize((size_t)t.size());
    for (int64_t i = 0; i < t.size(); i++) {
        char *element = data + offset_of(t, i) * t.width();
        float &value = (*values)[(size_t)i], *fp32 = (float *)element;
        __nv_bfloat16 *bf16 = (__nv_bfloat16 *)element;
        writes ? emu::op_write(element, (size_t)t.width()) : emu::op_read(element, (size_t)t.width());
        if (writes && t.width() == 2) { *bf16 = __float2bfloat16_rn(value); }
        if (writes && t.width() == 4) { *fp32 = value; }
        if (!writes) { value = t.width() == 2 ? __bfloat162float(*bf16) : *fp32; }
    }
}

// Runs a step. Reads from the caller's memory what no step before it has read or written.
void run_step(const Step &step, const Pointers &pointers, Memory *memory) {
    for (const Tensor &t : step.inputs) {
        Values &values = (*memory)[t.id];
        if (values.empty() && t.by_value) { values = {*(const float *)pointers.at(t.id)}; }
        if (values.empty()) { transfer(t, pointers.at(t.id), false, &values); }
    }
    Values before, &result = (*memory)[step.output.id];
    if (step.adds_to_memory()) { transfer(step.output, pointers.at(step.output.id), false, &before); }
    result = step.type == MATMUL ? run_matmul(step, *memory) : run_elements(step, *memory);
    for (float &x : result) {
        if (step.output.type == CUDNN_DATA_BFLOAT16) { x = __bfloat162float(__float2bfloat16_rn(x)); }
    }
    for (size_t i = 0; i < before.size(); i++) { result[i] += before[i]; }
}

Pointers pointers_of(Descriptor *pack, const Graph &graph) {
    const std::vector<int64_t> &ids = pack->values[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS];
    const std::vector<int64_t> &given = pack->values[CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS];
    Pointers pointers;
    need(ids.size() == given.size(), "not as many pointers as ids");
    for (size_t i = 0; i < ids.size(); i++) { pointers[ids[i]] = pointer_of<char>(given[i]); }
    for (const auto &[id, t] : graph.tensors) {
        const bool fits = pointers[id] != nullptr && (uintptr_t)pointers[id] % (uintptr_t)t.alignment == 0;
        need(t.is_virtual || fits, "no pointer for tensor " + std::to_string(id) + ", or it is null or misaligned");
    }
    return pointers;
}

} // namespace

// ---- The interface ----

size_t cudnnGetVersion(void) {
    if (getenv("EMU_CUDNN") == nullptr) { return 0; }
    int version = atoi(getenv("EMU_CUDNN"));
    return version > 1 ? (size_t)version : CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_INITIALIZED";
}

void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "no library"); }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle, const char *file, int line) {
    begin_call("cudnnCreate", file, line);
    if (getenv("EMU_CUDNN") == nullptr) { return CUDNN_STATUS_NOT_INITIALIZED; }
    *handle = new cudnnContext();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle, const char *file, int line) {
    begin_call("cudnnDestroy", file, line);
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream, const char *file, int line) {
    begin_call("cudnnSetStream", file, line);
    need(handle != nullptr, "no handle");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor) {
    Descriptor *made = new Descriptor{type};
    descriptors.insert(made);
    *descriptor = made;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor, const char *file, int line) {
    begin_call("cudnnBackendDestroyDescriptor", file, line);
    delete living(descriptor);
    descriptors.erase(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values,
                                       const char *file, int line) {
    begin_call("cudnnBackendSetAttribute", file, line);
    Descriptor *to = living(descriptor);
    const bool is_pointer = type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_VOID_PTR;
    const bool is_part = type == CUDNN_TYPE_BACKEND_DESCRIPTOR, is_wide = is_pointer || type == CUDNN_TYPE_INT64;
    const size_t size = is_part || is_wide ? 8 : type == CUDNN_TYPE_BOOLEAN ? 1 : sizeof(int);
    check_attribute(to, name, type, count, false);
    need(!to->finalized && values != nullptr, "a finalized descriptor, or no values");
    std::vector<int64_t> list((size_t)count);
    for (size_t i = 0; i < list.size(); i++) {
        memcpy(&list[i], (const char *)values + i * size, size);
        if (is_part) { finalized(pointer_of<void>(list[i])); } // checks it
    }
    need(type != CUDNN_TYPE_HANDLE || list[0] != 0, "no handle");
    to->values[name] = list;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor, const char *file, int line) {
    begin_call("cudnnBackendFinalize", file, line);
    Descriptor *d = living(descriptor);
    need(!d->finalized, "a finalized descriptor");
    for (const Attribute &a : ATTRIBUTES) {
        need(a.of != d->type || a.role > SETTINGS || !d->values[a.name].empty(),
             "attribute " + std::to_string(a.name) + " is missing");
    }
    for (int name : {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_ATTR_REDUCTION_COMP_TYPE}) {
        need(value_of(d, name, CUDNN_DATA_FLOAT) == CUDNN_DATA_FLOAT, "other arithmetic than fp32");
    }
    if (d->type == KIND(TENSOR)) { tensor_of(d); }
    if (is_operation(d->type)) { step_of(d); } // checks it
    if (d->type == KIND(OPERATIONGRAPH)) { d->graph = std::make_shared<Graph>(graph_of(d)); }
    for (int name : {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG}) {
        if (const Descriptor *part = part_of(d, name)) { d->graph = part->graph, d->choice = part->choice; }
    }
    d->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values,
                                       const char *file, int line) {
    begin_call("cudnnBackendGetAttribute", file, line);
    const Descriptor *from = finalized(descriptor);
    const char *engine = getenv("EMU_CUDNN");
    const bool has_engine = engine != nullptr && strcmp(engine, "none") != 0;
    check_attribute(from, name, type, room, true);
    const int64_t plans = !has_engine ? 0 : from->graph->products() > 2 ? 3 : 1;
    const int note = is_random(from) ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    *count = from->type == KIND(ENGINEHEUR) ? std::min(room, plans) : 1;
    for (int64_t i = 0; i < *count && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++) {
        Descriptor *to = living(static_cast<void **>(values)[i]); // the caller has made it
        need(to->type == (from->type == KIND(ENGINEHEUR) ? KIND(ENGINECFG) : KIND(ENGINE)),
             "a descriptor of another kind was given to fill");
        to->graph = from->graph, to->choice = from->choice + (int)i, to->finalized = true;
    }
    if (from->type == KIND(ENGINE)) { *static_cast<int *>(values) = note; }
    if (from->type == KIND(EXECUTION_PLAN)) { *static_cast<int64_t *>(values) = workspace_of(from); }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack,
                                  const char *file, int line) {
    static int random_runs;
    begin_call("cudnnBackendExecute", file, line);
    const Descriptor *planned = finalized(plan);
    const Pointers pointers = pointers_of(finalized(pack), *planned->graph);
    char *workspace = pointer_of<char>(value_of(finalized(pack), CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
    need(handle != nullptr && workspace != nullptr, "no handle, or no workspace");
    const bool rounds_otherwise = is_random(planned) && random_runs++ % 2 == 1;
    Memory memory;
    emu::op_begin(handle->stream, function, file, line);
    emu::op_scratch(workspace, (size_t)workspace_of(planned));
    memset(workspace, 0xff, (size_t)workspace_of(planned)); // NaNs: nothing may depend on the workspace's contents
    for (const Step &step : planned->graph->steps) { run_step(step, pointers, &memory); }
    for (const Step &step : planned->graph->steps) {
        Values &values = memory[step.output.id];
        if (step.output.is_virtual) { continue; }
        values[0] *= rounds_otherwise ? 1.0f + 1.0f / 128 : 1.0f; // to the next number of bf16
        transfer(step.output, pointers.at(step.output.id), true, &values);
    }
    emu::op_end();
    return CUDNN_STATUS_SUCCESS;
}
