// Runs the threads of a block as fibers. Each fiber has its own stack. A switch saves the registers that a function
// call keeps and loads those of the next fiber. A fiber runs until it waits (at a barrier, in a warp collective) or
// ends. A thread that never waits needs no switch: the next thread runs on its stack.
#include "access.h"
#include "memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <condition_variable>
#include <mutex>

#if EMU_ASAN
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emu {

// ---- The switch: pushes the callee-saved registers, stores the stack pointer at *save, and goes on from `to` ----

extern "C" void emu_switch(void **save, void *to);
extern "C" void emu_fiber_entry();

#if defined(__x86_64__)
asm(R"(
.text
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch, .-emu_switch
.type emu_fiber_entry, @function
emu_fiber_entry:
    .cfi_startproc
    .cfi_undefined rip
    call emu_fiber_main
    ud2
    .cfi_endproc
.size emu_fiber_entry, .-emu_fiber_entry
)");
constexpr int SAVED_WORDS = 7; // six registers and the return address
constexpr int RETURN_WORD = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.type emu_switch, %function
emu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emu_switch, .-emu_switch
.type emu_fiber_entry, %function
emu_fiber_entry:
    .cfi_startproc
    .cfi_undefined x30
    bl emu_fiber_main
    brk #0
    .cfi_endproc
.size emu_fiber_entry, .-emu_fiber_entry
)");
constexpr int SAVED_WORDS = 20;
constexpr int RETURN_WORD = 11; // x30
#else
#error "the emulator knows the context switch of x86-64 and aarch64 only"
#endif

// ---- Stacks: each with an inaccessible page below, kept for reuse by the worker ----

static __thread Stack *free_stacks;
static __thread size_t stacks_made;

static Stack *take_stack() {
    Stack *stack = free_stacks;
    if (stack) {
        free_stacks = stack->next_free;
#if EMU_ASAN // the fiber before has left frames that never returned
        __asan_unpoison_memory_region(stack->base, STACK_BYTES);
#endif
        return stack;
    }
    char *memory = static_cast<char *>(mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0) {
        report({nullptr, 0}, "cannot allocate the stack of a thread", "see vm.max_map_count, or lower EMU_THREADS");
    }
    stack = static_cast<Stack *>(malloc(sizeof(Stack)));
    *stack = {memory + GUARD_BYTES, stacks_made++ % 61 * 64, nullptr};
    return stack;
}

static void give_back(Stack *stack) {
    stack->next_free = free_stacks;
    free_stacks = stack;
}

// The stack pointer of a new fiber, a multiple of 16. emu_switch to it "returns" into emu_fiber_entry.
static void *prepare(Stack *stack) {
    uintptr_t top = reinterpret_cast<uintptr_t>(stack->base) + STACK_BYTES - 64 - stack->colour;
    void **frame = reinterpret_cast<void **>(top) - SAVED_WORDS;
    memset(frame, 0, SAVED_WORDS * sizeof(void *));
    frame[RETURN_WORD] = reinterpret_cast<void *>(emu_fiber_entry);
    return frame;
}

// ---- Who runs next ----

static inline void give_stack(Thread *thread, Stack *stack) {
    thread->stack = stack;
    thread->stack_begin = reinterpret_cast<uintptr_t>(stack->base);
}

static inline void set_running(Thread *thread) {
    now.thread = thread;
    now.stack = thread->stack_begin;
    now.me = stamp_of_interval(now.interval) | static_cast<uint64_t>(thread->number) << STAMP_THREAD;
}

static inline bool same_text(const char *a, const char *b) { return a == b || strcmp(a, b) == 0; }
static inline bool same_line(Source a, Source b) { return a.line == b.line && same_text(a.file, b.file); }

// No other lane of the warp can run: those that wait in converge at the first line go on, and know each other.
static void release_converged(Warp &warp) {
    Source at = warp.threads[__builtin_ctz(warp.converging)].waits_at;
    unsigned mask = 0;
    for (unsigned left = warp.converging; left; left &= left - 1) {
        const Source other = warp.threads[__builtin_ctz(left)].waits_at;
        if (other.line < at.line) { at = other; }
    }
    for (unsigned left = warp.converging; left; left &= left - 1) {
        if (same_line(warp.threads[__builtin_ctz(left)].waits_at, at)) { mask |= left & (0u - left); }
    }
    warp.converging &= ~mask;
    for (unsigned left = mask; left; left &= left - 1) {
        Thread &thread = warp.threads[__builtin_ctz(left)];
        thread.wait_mask = mask;
        warp.ready |= 1u << thread.position;
    }
}

// Takes the next thread that can run, in the order of the schedule. Threads of the running warp come first. Returns
// null when all threads wait or are done.
static inline Thread *take_next(Block *block) {
    for (int tried = 0; tried < block->warp_count; tried++) {
        Warp &warp = block->warps[block->warp_order[block->turn]];
        if (warp.ready) {
            unsigned later = warp.turn < WARP_LANES ? warp.ready & (~0u << warp.turn) : 0;
            int position = __builtin_ctz(later ? later : warp.ready);
            warp.turn = position + 1;
            warp.ready &= ~(1u << position);
            return &warp.threads[block->lane_order[position]];
        }
        if (warp.converging) {
            release_converged(warp);
            tried--;
            continue;
        }
        block->turn = block->turn + 1 == block->warp_count ? 0 : block->turn + 1;
    }
    return nullptr;
}

#if EMU_ASAN
// AddressSanitizer must know of each switch. from == null: the fiber that is left will not come back.
static __thread const void *worker_stack;
static __thread size_t worker_stack_bytes;
static void asan_leave(void **fake_stack, const void *base, size_t bytes) {
    __sanitizer_start_switch_fiber(fake_stack, base, bytes);
}
static void asan_enter(void *fake_stack) { __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr); }
static void asan_find_worker_stack() {
    pthread_attr_t attributes;
    void *base;
    if (worker_stack || pthread_getattr_np(pthread_self(), &attributes) != 0) { return; }
    pthread_attr_getstack(&attributes, &base, &worker_stack_bytes);
    worker_stack = base;
    pthread_attr_destroy(&attributes);
}
#else
static const void *const worker_stack = nullptr;
static const size_t worker_stack_bytes = 0;
static inline void asan_leave(void **, const void *, size_t) {}
static inline void asan_enter(void *) {}
static inline void asan_find_worker_stack() {}
#endif

// Leaves the running fiber for another thread of the block and saves it at *save.
static inline void go_to(void **save, Thread *next, bool comes_back) {
    if (__builtin_expect(next->stack_pointer == nullptr, 0)) {
        give_stack(next, take_stack());
        next->stack_pointer = prepare(next->stack);
    }
    set_running(next);
    void *fake_stack = nullptr;
    asan_leave(comes_back ? &fake_stack : nullptr, next->stack->base, STACK_BYTES);
    emu_switch(save, next->stack_pointer);
    asan_enter(fake_stack);
}

static void go_to_scheduler(Stack *mine) {
    void *dead;
    now.thread = nullptr;
    give_back(mine);
    asan_leave(nullptr, worker_stack, worker_stack_bytes);
    emu_switch(&dead, now.block->scheduler);
}

// ---- Waiting ----

static std::string list_waiting(const Block *block) {
    std::string text = format("  the threads of the block:");
    int begin = 0;
    for (int t = 1; t <= block->thread_count; t++) {
        const Thread &a = block->threads[begin], &b = block->threads[t < block->thread_count ? t : begin];
        bool same = t < block->thread_count && a.done == b.done && a.waits_for == b.waits_for &&
                    (a.done || (a.waits_at.line == b.waits_at.line && a.wait_mask == b.wait_mask));
        if (same) { continue; }
        text += format("\n  threads %d to %d: %s", begin, t - 1, a.done ? "has exited" : a.waits_for);
        if (!a.done) { text += " at " + to_text(a.waits_at); }
        begin = t;
    }
    return text;
}

static void wait(Thread *me) {
    Block *block = now.block;
    Thread *next = take_next(block);
    if (next == nullptr) { report(me->waits_at, "deadlock: every thread waits", list_waiting(block)); }
    if (next == me) { return; }
    go_to(&me->stack_pointer, next, true);
}

static std::string describe(const Thread *thread) {
    return format("thread ") + to_text(thread->index) + (thread->done ? " has exited" : " waits at ") +
           (thread->done ? "" : to_text(thread->waits_at) + " in " + thread->waits_for);
}

// A thread leaves the kernel. No thread may wait for it.
static void leave(Thread *me) {
    Block *block = now.block;
    Warp *warp = me->warp;
    me->done = true;
    block->exited++;
    warp->exited |= 1u << me->lane;
    if (block->at_barrier > 0) {
        const Thread *other = block->first_at_barrier;
        report(other->waits_at, "thread exited while others wait at a barrier of the block",
               "  " + describe(other) + "\n  every thread of a block must reach the same __syncthreads");
    }
    for (unsigned left = warp->gathers; left; left &= left - 1) {
        const Thread *other = &warp->threads[__builtin_ctz(left)];
        if (other->wait_mask >> me->lane & 1) {
            report(other->waits_at, "thread exited while its warp waits for it in a collective",
                   "  " + describe(other) +
                       format(", mask 0x%08x names the exited lane %d", other->wait_mask, me->lane));
        }
    }
}

static void release_barrier(Block *block) {
    block->at_barrier = 0;
    if (metering) { meter_barrier(); }
    if (block->fences != nullptr) { fences_at_barrier(block->fences); }
    begin_interval();
    now.block_since = now.interval;
    now.order_shared = stamp_of_interval(now.interval);
    block->agreed = block->agree;
    for (int w = 0; w < block->warp_count; w++) { block->warps[w].ready = block->warps[w].all; }
}

static void check_barrier(Block *block, Thread *me, const char *kind, Source at) {
    if (block->exited > 0) {
        const Thread *exited = block->threads;
        while (!exited->done) { exited++; }
        report(at, format("%s after a thread of the block has exited", kind),
               "  " + describe(exited) + "\n  every thread of a block must reach the same __syncthreads");
    }
    if (block->at_barrier > 0 && !same_line(block->barrier, at)) {
        report(at, format("%s in divergent code: threads of the block are at different barriers", kind),
               "  " + describe(block->first_at_barrier));
    }
    if (block->at_barrier == 0) {
        block->barrier = at;
        block->first_at_barrier = me;
        block->agree = 0;
    }
}

// The blocks of a cooperative launch run at once, each on a worker of its own.
static struct Grid {
    std::mutex mutex;
    std::condition_variable all;
    uint64_t waiting, ended, round;
    uint32_t since; // the blocks' accesses before this interval are ordered before now
} the_grid;

static void meet_blocks(const Block *block, bool ends) {
    const dim3 size = block->kernel->grid;
    const uint64_t blocks = uint64_t(size.x) * size.y * size.z;
    std::unique_lock<std::mutex> guard(the_grid.mutex);
    (ends ? the_grid.ended : the_grid.waiting)++;
    if (the_grid.waiting && the_grid.ended) {
        report_launch(*block->kernel, "grid.sync() that a block of the grid does not reach");
    }
    if (the_grid.ended == blocks) { the_grid.ended = 0; }
    if (ends) { return; }
    if (the_grid.waiting == blocks) {
        the_grid.waiting = 0, the_grid.round++;
        the_grid.since = take_intervals(block->kernel->operation, static_cast<uint32_t>(block->number));
        the_grid.all.notify_all();
    } else {
        the_grid.all.wait(guard, [round = the_grid.round] { return the_grid.round != round; });
    }
    now.order_global = stamp_of_interval(the_grid.since);
    now.interval = take_intervals(block->kernel->operation, static_cast<uint32_t>(block->number));
}

static void barrier(const char *kind, int predicate, Source at, bool of_grid = false) {
    Thread *me = now.thread;
    if (me == nullptr) { report(at, format("%s called by host code", kind)); }
    Block *block = now.block;
    check_barrier(block, me, kind, at);
    block->agree += predicate != 0;
    me->waits_for = kind;
    me->waits_at = at;
    me->wait_mask = 0;
    if (++block->at_barrier < block->thread_count) {
        wait(me);
        return;
    }
    if (of_grid) { meet_blocks(block, false); }
    release_barrier(block);
    me->warp->ready &= ~(1u << me->position); // the last lane simply goes on
}

static void check_gather(Warp *warp, Thread *me) {
    unsigned mask = me->wait_mask;
    if (!(mask >> me->lane & 1)) {
        report(me->waits_at,
               format("%s with mask 0x%08x, which does not name the calling lane %d", me->waits_for, mask, me->lane));
    }
    unsigned gone = mask & (warp->exited | ~existing_lanes(*warp));
    if (gone) {
        report(me->waits_at,
               format("%s with mask 0x%08x names lane %d, which has exited", me->waits_for, mask, __builtin_ctz(gone)),
               warp->count < WARP_LANES ? format("  this warp has only %d lanes", warp->count) : "");
    }
    for (unsigned left = warp->gathers; left; left &= left - 1) {
        const Thread *other = &warp->threads[__builtin_ctz(left)];
        bool wait_for_each_other = (mask >> other->lane & 1) && (other->wait_mask >> me->lane & 1);
        if (wait_for_each_other && (other->wait_mask != mask || !same_text(other->waits_for, me->waits_for) ||
                                    !same_line(other->waits_at, me->waits_at))) {
            report(me->waits_at,
                   format("%s with mask 0x%08x: lanes of the warp are at different collectives", me->waits_for, mask),
                   "  " + describe(other) + format(" with mask 0x%08x", other->wait_mask));
        }
        if (wait_for_each_other) { break; } // `other` was compared with the remaining lanes
    }
}

void gather(const char *kind, unsigned mask, void *deposit, Work work, Source at) {
    Thread *me = now.thread;
    if (me == nullptr) { report(at, format("%s called by host code", kind)); }
    Warp *warp = me->warp;
    me->waits_for = kind;
    me->waits_at = at;
    me->wait_mask = mask;
    me->deposit = deposit;
    check_gather(warp, me);
    warp->gathers |= 1u << me->lane;
    if ((warp->gathers & mask) != mask) {
        wait(me);
        return;
    }
    void *deposits[WARP_LANES];
    unsigned ready = warp->ready;
    for (int lane = 0; lane < WARP_LANES; lane++) {
        const Thread &thread = warp->threads[lane];
        bool takes_part = mask >> lane & 1;
        deposits[lane] = takes_part ? thread.deposit : nullptr;
        if (takes_part) { ready |= 1u << thread.position; }
    }
    warp->ready = ready & ~(1u << me->position); // the last lane simply goes on
    warp->gathers &= ~mask;
    if (metering) { meter_gather(kind, mask); }
    work(deposits, mask);
}

// ---- Running a block ----

// Runs threads one after another on this stack, until the next thread has its own stack.
extern "C" [[noreturn]] void emu_fiber_main() {
    asan_enter(nullptr);
    Block *block = now.block;
    for (;;) {
        Thread *me = now.thread;
        Stack *stack = me->stack;
        block->kernel->one_thread(block->kernel->call);
        leave(me);
        Thread *next = take_next(block);
        if (next == nullptr) {
            if (block->exited < block->thread_count) {
                report(block->kernel->launched, "deadlock: every thread waits", list_waiting(block));
            }
            go_to_scheduler(stack);
        }
        if (next->stack_pointer != nullptr) {
            void *dead;
            give_back(stack);
            go_to(&dead, next, false);
        }
        give_stack(next, stack);
        set_running(next);
    }
}

static void set_up_threads(Block *block) {
    const dim3 size = block->kernel->block;
    block->thread_count = static_cast<int>(size.x * size.y * size.z);
    block->warp_count = (block->thread_count + WARP_LANES - 1) / WARP_LANES;
    fill_order(block->warp_order, block->warp_count, block->number * 2);
    fill_order(block->lane_order, WARP_LANES, block->number * 2 + 1);
    for (int p = 0; p < WARP_LANES; p++) { block->lane_position[block->lane_order[p]] = static_cast<uint8_t>(p); }
    uint3 index = {0, 0, 0};
    for (int t = 0; t < block->thread_count; t++) {
        Thread &thread = block->threads[t];
        Warp &warp = block->warps[t / WARP_LANES];
        int lane = t % WARP_LANES;
        if (lane == 0) { warp = {&thread, 0, 0, 0, 0, 0, 0, 0}; }
        warp.count++;
        warp.ready = warp.all |= 1u << block->lane_position[lane];
        thread.stack_pointer = nullptr;
        thread.stack = nullptr;
        thread.index = index;
        thread.number = static_cast<uint16_t>(t);
        thread.lane = static_cast<uint8_t>(lane);
        thread.position = block->lane_position[lane];
        thread.done = false;
        thread.warp = &warp;
        thread.warp_since = 0;
        if (++index.x == size.x) { index.x = 0, index.y++; }
        if (index.y == size.y) { index.y = 0, index.z++; }
    }
}

static void forget_copies(Block *block) { // that nobody has waited for
    for (int t = 0; t < block->thread_count; t++) {
        block->threads[t].copies.clear();
        block->threads[t].copy_groups.clear();
    }
    block->copies_async = false;
}

static void set_up_shared(Block *block) {
    set_initialised(block->shared, block->static_end, false); // of the block before
    set_accessible(block->shared, SHARED_WINDOW, false);
    set_accessible(block->shared, block->kernel->dynamic_bytes, true);
    block->variables.clear();
    block->static_end = (block->kernel->dynamic_bytes + 255) / 128 * 128;
    memset(block->shared, 0xff, block->kernel->dynamic_bytes);
}

void run_block(Block *block) {
    block->exited = block->at_barrier = block->turn = 0;
    set_up_threads(block);
    set_up_shared(block);
    now.block = block;
    now.interval = take_intervals(block->kernel->operation, static_cast<uint32_t>(block->number));
    now.block_since = now.interval;
    now.order_shared = stamp_of_interval(now.interval);
    now.order_global = block->kernel->order;
    asan_find_worker_stack();
    go_to(&block->scheduler, take_next(block), true);
    if (metering) { meter_block_end(); }
    if (block->kernel->cooperative) { meet_blocks(block, true); }
    if (block->fences != nullptr) { forget_fences(block); }
    if (block->copies_async) { forget_copies(block); }
    now.block = nullptr;
}

Block *new_block(int worker) {
    Block *block = new Block();
    block->worker = worker;
    block->threads = new Thread[MAX_BLOCK_THREADS]();
    block->shared = shared_window(worker);
    return block;
}

// ---- The language's built-in variables and barriers ----

uint3 thread_index() { return now.thread->index; }
uint3 block_index() { return now.block->index; }
dim3 block_size() { return now.block->kernel->block; }
dim3 grid_size() { return now.block->kernel->grid; }
unsigned rank_in_block() { return now.thread->number; }

constexpr size_t SHARED_GAP = 32; // between variables, so that an access just behind a variable is seen

// The limit of static and dynamic shared memory together. cudaFuncSetAttribute names dynamic memory alone, and the
// static part comes on top.
static size_t shared_limit(const Kernel *kernel) {
    return has_allowed_bytes(kernel->function) ? SHARED_BYTES_MAX : SHARED_BYTES_DEFAULT;
}

void *shared_variable(const void *key, size_t bytes, size_t align, const char *name, const char *file, int line) {
    Block *block = now.block;
    if (!in_kernel()) { report({file, line}, "a __shared__ variable used by host code"); }
    for (const SharedVariable &variable : block->variables) {
        if (variable.key == key) { return block->shared + variable.offset; }
    }
    // An odd multiple of the declared alignment, so that an access that needs a larger one is reported.
    size_t offset = ((block->static_end + align - 1) / align | 1) * align;
    block->variables.push_back({key, name, static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
    size_t total = block->kernel->dynamic_bytes;
    for (const SharedVariable &variable : block->variables) { total += variable.bytes; }
    if (total > shared_limit(block->kernel)) {
        report({file, line}, format("too much shared memory: %zu bytes with the variable %s, %zu are allowed", total,
                                    name, shared_limit(block->kernel)));
    }
    block->static_end = offset + bytes + SHARED_GAP;
    set_accessible(block->shared + offset, bytes, true);
    memset(block->shared + offset, 0xff, bytes);
    return block->shared + offset;
}

void *dynamic_shared() { return now.block->shared; }

unsigned converge(const char *file, int line) {
    Thread *me = now.thread;
    if (me == nullptr) { report({file, line}, "a function of a warp called by host code"); }
    me->waits_for = "__activemask or coalesced_threads";
    me->waits_at = {file, line};
    me->warp->converging |= 1u << me->lane;
    wait(me);
    return me->wait_mask;
}

bool is_cooperative() { return now.block->kernel->cooperative; }
void grid_sync(const char *file, int line) {
    if (in_kernel() && !now.block->kernel->cooperative) {
        report({file, line}, "grid.sync() in a kernel that cudaLaunchCooperativeKernel has not launched");
    }
    barrier("grid.sync", 0, {file, line}, true);
}

void barrier_of(unsigned threads, const char *file, int line) {
    if (in_kernel() && threads != static_cast<unsigned>(now.block->thread_count)) {
        report({file, line}, format("bar.sync of %u threads, and the emulator has those of the block alone", threads));
    }
    barrier("bar.sync", 0, {file, line});
}

} // namespace emu

using namespace emu;

void __syncthreads(const char *file, int line) { barrier("__syncthreads", 0, {file, line}); }
int __syncthreads_count(int predicate, const char *file, int line) {
    barrier("__syncthreads_count", predicate, {file, line});
    return now.block->agreed;
}
int __syncthreads_and(int predicate, const char *file, int line) {
    barrier("__syncthreads_and", predicate, {file, line});
    return now.block->agreed == now.block->thread_count;
}
int __syncthreads_or(int predicate, const char *file, int line) {
    barrier("__syncthreads_or", predicate, {file, line});
    return now.block->agreed > 0;
}
// Orders earlier accesses of these lanes before later ones.
static void synchronise_lanes(void **, unsigned mask) {
    begin_interval();
    for (unsigned left = mask; left; left &= left - 1) {
        now.thread->warp->threads[__builtin_ctz(left)].warp_since = now.interval;
    }
    if (now.block->fences != nullptr) { fences_of_lanes(now.block->fences, *now.thread->warp, mask); }
}
void __syncwarp(unsigned mask, const char *file, int line) {
    gather("__syncwarp", mask, nullptr, synchronise_lanes, {file, line});
}
void __threadfence() {
    fence();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __threadfence_block() {}
void __threadfence_system() { __threadfence(); }
unsigned __activemask(const char *file, int line) { return converge(file, line); }
void __nanosleep(unsigned) {}
long long clock64() {
    static __thread long long cycles; // a loop that waits for some cycles ends
    return cycles += 1000;
}
void __trap(const char *file, int line) { report({file, line}, "__trap"); }
