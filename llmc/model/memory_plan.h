// The memory plan: every buffer of a run is a named row with a shape and a lifetime before one byte is allocated.
//
// A step passes through numbered phases. A row is live from phase `first` to phase `last`; rows that are never live
// together may lie at one place. plan_layout() gives each row an offset. plan_print() shows the table. plan_allocate()
// takes exactly plan->total bytes once and sets every row's pointer. The owner of other memory, such as a GPU's, takes
// plan->total bytes of it and calls plan_set_pointers().
//
//   float *logits;
//   plan_add(&plan, &logits, "logits", PLAN_ACTIVATION, PLAN_F32, shape2(rows, Vp), LM_HEAD, LM_HEAD);
#ifndef LLMC_MEMORY_PLAN_H
#define LLMC_MEMORY_PLAN_H

#ifdef __linux__
#include <sys/mman.h>
#endif
#include <unistd.h>

#include "llmc/base/utils.h"

#define PLAN_MAX_ROWS 128
// Offsets and sizes are multiples of it. It is enough for cache lines, the widest vectors, and GPUs.
#define PLAN_ALIGNMENT 256
#define PLAN_HINT " (--plan all shows every buffer)" // follows MEMORY_REMEDY

typedef enum { PLAN_F32, PLAN_I32, PLAN_F64, PLAN_BF16, PLAN_FP8 } PlanType;
typedef enum { PLAN_PARAMETER, PLAN_GRADIENT, PLAN_OPTIMIZER, PLAN_ACTIVATION, PLAN_WORKSPACE, PLAN_DATA } PlanCategory;

static const struct {
    const char *name;
    int bytes;
} plan_types[] = {{"f32", 4}, {"i32", 4}, {"f64", 8}, {"bf16", 2}, {"fp8", 1}};
static const char *const plan_categories[] = {"parameter", "gradient", "optimizer", "activation", "workspace", "data"};

typedef struct {
    const char *name;
    char shape[96];
    PlanCategory category;
    PlanType type;
    int first, last; // phases, inclusive
    int64_t bytes;   // before they are rounded up to PLAN_ALIGNMENT
    int64_t offset;
    void *pointer; // address of the caller's pointer; written by memcpy, as it may point to any type
} PlanRow;

typedef struct {
    int ndims;
    int64_t dims[4];
} PlanShape;

static inline PlanShape plan_shape(int ndims, int64_t a, int64_t b, int64_t c, int64_t d) {
    PlanShape shape = {ndims, {a, b, c, d}};
    return shape;
}
static inline PlanShape shape1(int64_t a) { return plan_shape(1, a, 0, 0, 0); }
static inline PlanShape shape2(int64_t a, int64_t b) { return plan_shape(2, a, b, 0, 0); }
static inline PlanShape shape3(int64_t a, int64_t b, int64_t c) { return plan_shape(3, a, b, c, 0); }
static inline PlanShape shape4(int64_t a, int64_t b, int64_t c, int64_t d) { return plan_shape(4, a, b, c, d); }
// Puts a dimension before the dimensions of a shape of at most 3.
static inline PlanShape shape_of_copies(int64_t copies, const PlanShape *one) {
    return plan_shape(1 + one->ndims, copies, one->dims[0], one->dims[1], one->dims[2]);
}

typedef struct {
    PlanRow rows[PLAN_MAX_ROWS];
    int count;
    const char *const *phases; // names, for the printed lifetimes
    int64_t total;             // bytes, set by plan_layout
    const char *overflow;      // name of the first row whose size does not fit 63 bits, or NULL
    void *memory;
} MemoryPlan;

static inline void plan_init(MemoryPlan *plan, const char *const *phase_names) {
    memset(plan, 0, sizeof(*plan));
    plan->phases = phase_names;
}

// Pointers of any type are read and written by memcpy.
static inline void plan_set_pointer(void *pointer, void *address) { memcpy(pointer, &address, sizeof(address)); }
static inline void *plan_get_pointer(const void *pointer) {
    void *address;
    memcpy(&address, pointer, sizeof(address));
    return address;
}

// Computes the bytes of a shape. Returns false when they overflow.
static inline bool plan_shape_bytes(const PlanShape *shape, PlanType type, int64_t *bytes) {
    *bytes = plan_types[type].bytes;
    for (int i = 0; i < shape->ndims; i++) {
        if (shape->dims[i] < 0 || __builtin_mul_overflow(*bytes, shape->dims[i], bytes)) { return false; }
    }
    return *bytes <= INT64_MAX / PLAN_MAX_ROWS - PLAN_ALIGNMENT; // so that the total cannot overflow either
}

static inline void plan_shape_text(char *text, size_t size, const PlanShape *shape) {
    size_t used = 0;
    for (int i = 0; i < shape->ndims && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i == 0 ? "(" : ", ", (long long)shape->dims[i]);
    }
    if (used < size) { snprintf(text + used, size - used, ")"); }
}

// Adds a buffer, live in phases first..last. `pointer` is the address of the pointer that plan_allocate sets. A shape
// with a dimension of 0 takes no memory and is not listed; its pointer stays NULL.
static inline void plan_add(MemoryPlan *plan, void *pointer, const char *name, PlanCategory category, PlanType type,
                            PlanShape shape, int first, int last) {
    PlanRow row;
    memset(&row, 0, sizeof(row));
    row.name = name, row.category = category, row.type = type;
    row.first = first, row.last = last, row.pointer = pointer;
    plan_shape_text(row.shape, sizeof(row.shape), &shape);
    plan_set_pointer(pointer, NULL);
    if (!plan_shape_bytes(&shape, type, &row.bytes)) {
        row.bytes = 0;
        if (plan->overflow == NULL) { plan->overflow = name; }
    }
    if (row.bytes == 0) { return; }
    if (plan->count == PLAN_MAX_ROWS) { abort(); } // a plan is written by hand: a programming error
    plan->rows[plan->count++] = row;
}

static inline int64_t plan_row_size(const PlanRow *row) { return round_up_i64(row->bytes, PLAN_ALIGNMENT); }

// Returns the lowest offset for a row: it may not touch a row of placed[0..n-1] that lives in one of its phases.
static inline int64_t plan_lowest_fit(const PlanRow *row, PlanRow *const *placed, int n) {
    int64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < n; i++) {
            const PlanRow *other = placed[i];
            bool meet = row->first <= other->last && other->first <= row->last;
            int64_t end = other->offset + plan_row_size(other);
            if (meet && offset < end && other->offset < offset + plan_row_size(row)) { offset = end, moved = true; }
        }
    }
    return offset;
}

// Gives every row its offset, and sets plan->total. Rows with long lives come first, then large rows. Each row takes
// the lowest place that is free during its life.
static inline void plan_layout(MemoryPlan *plan) {
    PlanRow *order[PLAN_MAX_ROWS];
    for (int i = 0; i < plan->count; i++) {
        PlanRow *row = &plan->rows[i];
        int j = i;
        for (; j > 0; j--) {
            int span = row->last - row->first, before = order[j - 1]->last - order[j - 1]->first;
            if (span < before || (span == before && row->bytes <= order[j - 1]->bytes)) { break; }
            order[j] = order[j - 1];
        }
        order[j] = row;
    }
    plan->total = 0;
    for (int i = 0; i < plan->count; i++) {
        order[i]->offset = plan_lowest_fit(order[i], order, i);
        plan->total = max_i64(plan->total, order[i]->offset + plan_row_size(order[i]));
    }
}

// Returns the bytes of a category as if no two rows shared memory.
static inline int64_t plan_category_bytes(const MemoryPlan *plan, PlanCategory category) {
    int64_t total = 0;
    for (int i = 0; i < plan->count; i++) {
        if (plan->rows[i].category == category) { total += plan_row_size(&plan->rows[i]); }
    }
    return total;
}

// Prints the table and the total.
static inline void plan_print(const MemoryPlan *plan, FILE *out) {
    int64_t unshared = 0;
    say(out, "%-16s %-24s %-4s %14s %11s %14s  %-10s %s\n", "buffer", "shape", "type", "bytes", "size", "offset",
        "category", "live during");
    for (int i = 0; i < plan->count; i++) {
        const PlanRow *row = &plan->rows[i];
        bool one = row->first == row->last;
        unshared += plan_row_size(row);
        say(out, "%-16s %-24s %-4s %14lld %11s %14lld  %-10s %s%s%s\n", row->name, row->shape,
            plan_types[row->type].name, (long long)row->bytes, bytes_text(row->bytes).text, (long long)row->offset,
            plan_categories[row->category], plan->phases[row->first], one ? "" : "..",
            one ? "" : plan->phases[row->last]);
    }
    say(out, "total %lld bytes (%s) in one allocation; %s without sharing between lifetimes\n", (long long)plan->total,
        bytes_text(plan->total).text, bytes_text(unshared).text);
}

// Sets every row's pointer into memory of plan->total bytes.
static inline void plan_set_pointers(MemoryPlan *plan, void *memory) {
    plan->memory = memory;
    for (int i = 0; i < plan->count; i++) {
        plan_set_pointer(plan->rows[i].pointer, (char *)memory + plan->rows[i].offset);
    }
}

// Tells whether `bytes` at a place in the plan's memory are what a row had written there by phase `last`, after all
// phases have passed: no later row lies there.
static inline bool plan_keeps(const MemoryPlan *plan, const void *place, int64_t bytes, int last) {
    int64_t begin = (const char *)place - (const char *)plan->memory;
    for (int i = 0; i < plan->count; i++) {
        const PlanRow *row = &plan->rows[i];
        if (row->first > last && row->offset < begin + bytes && begin < row->offset + row->bytes) { return false; }
    }
    return true;
}

static inline bool plan_check_overflow(const MemoryPlan *plan, Error *error) {
    if (plan->overflow == NULL) { return true; }
    return fail(error, "memory plan: the size of '%s' overflows 64 bits; " MEMORY_REMEDY, plan->overflow);
}

// ---- The memory of this machine ----

// Reads a short file of the kernel, "" if there is none. root: "" but in tests.
static inline void machine_read(const char *root, const char *path, char *text, size_t size) {
    char name[8192];
    snprintf(name, sizeof(name), "%s%s", root, path);
    FILE *file = fopen(name, "r");
    size_t bytes = file != NULL ? fread(text, 1, size - 1, file) : 0;
    if (file != NULL) { fclose(file); }
    text[bytes] = '\0';
}

// Returns the bytes of memory that this process may have: those of the machine, or the least limit of the cgroups
// (version 2) that hold the process. INT64_MAX: not known.
static inline int64_t machine_memory(const char *root) {
    int64_t least = INT64_MAX;
    char text[4096], path[8192], limit[64], *slash = text, *end;
#ifdef _SC_PHYS_PAGES
    if (sysconf(_SC_PHYS_PAGES) > 0) { least = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE); }
#endif
    machine_read(root, "/proc/self/cgroup", text, sizeof(text));
    char *group = strstr(text, "0::");
    if (group == NULL) { return least; }
    group += strlen("0::");
    group[strcspn(group, "\n")] = '\0';
    while (slash != NULL) { // a group, then those that hold it
        slash = strrchr(group, '/');
        snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
        machine_read(root, path, limit, sizeof(limit));
        int64_t bytes = strtoll(limit, &end, 10); // "max" is no number
        if (end != limit) { least = min_i64(least, bytes); }
        if (slash != NULL) { *slash = '\0'; }
    }
    return least;
}

// ---- Allocation ----

#define PLAN_HUGE_PAGE (2 << 20)  // bytes
#define PLAN_HUGE_FROM (64 << 20) // bytes of a plan that has them: what they add is far below 1 %

// Returns memory of so many bytes, or NULL. Large memory lies in huge pages where Linux gives them: a pass over it then
// misses the processor's table of pages less often, and the first touch of each page takes 512 times fewer faults.
static inline void *plan_take_memory(int64_t bytes) {
    void *memory = NULL;
    bool is_large = bytes >= PLAN_HUGE_FROM;
    if (posix_memalign(&memory, is_large ? PLAN_HUGE_PAGE : PLAN_ALIGNMENT, (size_t)bytes) != 0) { return NULL; }
#ifdef MADV_HUGEPAGE
    if (is_large) { madvise(memory, (size_t)bytes, MADV_HUGEPAGE); } // advice: it may be refused
#endif
    return memory;
}

// Allocates plan->total bytes at once and sets every row's pointer. The memory's contents are undefined. Fails if a
// size overflows, or if the machine or the process's cgroup has less memory: otherwise the kernel's out-of-memory
// killer would end the run later.
static inline bool plan_allocate(MemoryPlan *plan, Error *error) {
    if (!plan_check_overflow(plan, error)) { return false; }
    ShortText need = bytes_text(plan->total);
    if (plan->total > machine_memory("")) {
        return fail(error, "memory plan: needs %s, this machine has %s for a process; " MEMORY_REMEDY PLAN_HINT,
                    need.text, bytes_text(machine_memory("")).text);
    }
    plan->memory = plan_take_memory(max_i64(plan->total, PLAN_ALIGNMENT));
    if (plan->memory == NULL) {
        return fail(error, "memory plan: cannot allocate %s; " MEMORY_REMEDY PLAN_HINT, need.text);
    }
    plan_set_pointers(plan, plan->memory);
    return true;
}

static inline void plan_free(MemoryPlan *plan) {
    free(plan->memory);
    plan->memory = NULL;
}

#endif // LLMC_MEMORY_PLAN_H
