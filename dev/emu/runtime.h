// The interfaces between the parts of the emulator's runtime. .cu files do not include this: they include
// cuda_runtime.h, emu.h and emu_ptx.h only.
//
// In layers, the lowest first. A file uses what its layer and lower ones define (dev/house.py checks it).
//   report.cpp        how a mistake is reported
//   settings.cpp      what is set for the whole process
//   heap.cpp          the arenas of device, pinned and shared memory, and what is known of each byte
//   clocks.cpp        which operation is ordered before which
//   meter*.cpp        what a profiler would count
//   access.cpp        the check of one load or store
//   access_hooks.cpp  what the compiler calls before each load and store
//   fences.cpp        what __threadfence and atomics order between blocks
//   faults.cpp        reports accesses to inaccessible pages
//   fibers.cpp        blocks, warps and threads: who runs next; barriers and warp collectives
//   warp_ops.cpp      shuffles, votes, ldmatrix, mma, cp.async
//   memory.cpp        cudaMalloc, cudaMemcpy
//   streams.cpp       streams, events, and the operations on them
//   launch.cpp        checks a launch and spreads its blocks over the worker threads
//   device.cpp        cudaGetDeviceProperties and other questions about the device
//   cu*.cpp, nccl.cpp  the libraries
#ifndef EMU_RUNTIME_H
#define EMU_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif

namespace emu {

constexpr int WARP_LANES = 32;
constexpr int MAX_BLOCK_THREADS = 1024;
constexpr size_t SHARED_BYTES_DEFAULT = 48 << 10; // without cudaFuncSetAttribute
constexpr size_t SHARED_BYTES_MAX = 227 << 10;    // with it
#if EMU_ASAN
constexpr size_t STACK_BYTES = 256 << 10; // of a thread: red zones make frames larger
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif
constexpr size_t GUARD_BYTES = 16 << 10; // below a stack; a multiple of every page size in use except 64 KiB

struct Source { // a line of a program
    const char *file;
    int line;
};

// ---- Reports (report.cpp): print one report on stderr and end the program with status 1 ----

// The text "dir/file.cu:12".
std::string to_text(Source at);
std::string to_text(uint3 v);
extern __thread bool reporting; // true: the strings of a report must not be taken for the kernel's own accesses
std::string format(const char *text, ...) __attribute__((format(printf, 1, 2)));

// Reports that `what` happened at a line, in the running thread's kernel or in host code. details: more lines, or "".
[[noreturn]] void report(Source at, const std::string &what, const std::string &details = "");
// Reports at the line of an instruction.
[[noreturn]] void report_pc(uintptr_t pc, const std::string &what, const std::string &details = "");
// Reports about a kernel's launch, before any of its threads runs.
struct Kernel;
[[noreturn]] void report_launch(const Kernel &kernel, const std::string &what, const std::string &details = "");
std::string line_of_pc(uintptr_t pc);
std::map<uintptr_t, std::string> lines_of_pcs(const std::vector<uintptr_t> &pcs);
std::map<uintptr_t, std::string> names_of_functions(const std::vector<uintptr_t> &functions); // "" if unknown
void for_each_instruction(const std::function<void(const char *)> &use); // of this program: a line of objdump

// ---- Kernels, blocks, warps, threads (fibers.cpp, launch.cpp) ----

struct Kernel { // one launch
    const char *name;
    Source launched;
    dim3 grid, block;
    size_t dynamic_bytes;
    cudaStream_t stream;
    const void *function;
    void (*one_thread)(void *);
    void *call; // its arguments
    size_t call_bytes;
    bool cooperative;   // its blocks run at once
    uint64_t number;    // index among all launches
    uint32_t operation; // index among the operations on streams
    uint64_t order;     // accesses with a stamp below this one are ordered before the kernel
};

struct AsyncCopy { // a cp.async that has not arrived
    void *shared;
    const void *global;
    int bytes, src_bytes;
    Source at;
    uintptr_t pc;
};

struct Warp;

struct Stack { // of a thread, with an inaccessible part below
    char *base;
    size_t colour; // stacks begin at different cache lines, so that they do not displace each other
    Stack *next_free;
};

struct alignas(64) Thread {
    // What a switch and a collective touch lies in one cache line.
    void *stack_pointer; // set while it waits; null before it starts
    uintptr_t stack_begin;
    Warp *warp;
    const char *waits_for; // the barrier or the collective that it waits for, or the last one
    Source waits_at;
    void *deposit;
    unsigned wait_mask;
    uint16_t number;  // in the block
    uint8_t lane;     // in the warp
    uint8_t position; // position of the lane in the schedule's order

    Stack *stack;
    uint3 index;
    uint32_t warp_since; // accesses of the warp's lanes before this interval are ordered before now
    bool done;
    std::vector<AsyncCopy> copies;
    std::vector<size_t> copy_groups; // that are committed: how many copies each has
};

inline bool stack_holds(const Stack *stack, uintptr_t address) {
    return stack && address - reinterpret_cast<uintptr_t>(stack->base) < STACK_BYTES;
}
inline bool stack_guard_holds(const Stack *stack, uintptr_t address) {
    return stack && reinterpret_cast<uintptr_t>(stack->base) - address - 1 < GUARD_BYTES;
}

struct Warp {
    Thread *threads;
    int count;           // lanes that exist
    unsigned all;        // their positions
    unsigned ready;      // positions that can run
    unsigned gathers;    // lanes that wait in a collective
    unsigned exited;     // lanes that have left the kernel
    int turn;            // the position to run next
    unsigned converging; // lanes that wait in converge
};

inline unsigned existing_lanes(const Warp &warp) { return ~0u >> (WARP_LANES - warp.count); }

struct SharedVariable {
    const void *key;
    const char *name;
    uint32_t offset, bytes;
};

struct BlockFences;

struct Block {
    const Kernel *kernel;
    uint3 index;
    uint64_t number;
    int worker; // the OS thread that runs it
    int thread_count, warp_count;
    int exited, at_barrier;
    int turn;          // the warp to run next
    bool copies_async; // a thread has called cp.async
    int agree, agreed; // threads whose predicate holds: at the barrier that they wait at, and at the last one
    Source barrier;
    Thread *first_at_barrier;
    Thread *threads; // [MAX_BLOCK_THREADS]
    Warp warps[MAX_BLOCK_THREADS / WARP_LANES];
    uint8_t warp_order[MAX_BLOCK_THREADS / WARP_LANES];
    uint8_t lane_order[WARP_LANES]; // position -> lane
    uint8_t lane_position[WARP_LANES];
    char *shared; // this worker's window of the shared arena
    size_t static_end;
    std::vector<SharedVariable> variables;
    void *scheduler;               // stack pointer of the worker while a fiber runs
    BlockFences *fences = nullptr; // null: no thread has fenced or acquired
};

// The state of the OS thread: the emulated thread that it runs, and the data that checks of accesses need. thread is
// null in host code.
struct Now {
    Thread *thread;
    Block *block;
    uintptr_t stack;       // of the thread: where it begins
    uint64_t me;           // the thread's stamp in the shadow memory (access.h), without the instruction
    uint64_t order_global; // accesses with a stamp below this one are ordered before the thread's accesses
    uint64_t order_shared;
    uint32_t interval, block_since; // the current interval, and the interval of the block's last barrier
};
extern __thread Now now;

inline bool in_kernel() { return now.thread != nullptr; }

int worker_count();
void run_block(Block *block);
Block *new_block(int worker);

// Waits until all lanes of mask have come with one operation. The last lane calls work(deposits, mask) with the
// deposits of all lanes (null for lanes outside the mask).
typedef void (*Work)(void **deposits, unsigned mask);
void gather(const char *kind, unsigned mask, void *deposit, Work work, Source at);

struct Schedule {
    enum Order { FORWARD, REVERSED, RANDOM } order;
    uint64_t seed;
};
Schedule schedule();
uint64_t random_bits(uint64_t *state);
void fill_order(uint8_t *order, int n, uint64_t salt);
void fill_order(uint32_t *order, size_t n, uint64_t salt);

// ---- Memory (heap.cpp) ----

constexpr uintptr_t ARENA = 0x200000000000; // all addresses that the emulator hands out begin here
constexpr uintptr_t DEVICE_SPAN = uintptr_t(128) << 30;
constexpr uintptr_t PINNED = ARENA + DEVICE_SPAN;
constexpr uintptr_t PINNED_SPAN = uintptr_t(16) << 30;
constexpr uintptr_t SHARED = PINNED + PINNED_SPAN;
constexpr uintptr_t SHARED_WINDOW = 1 << 20; // of each worker
constexpr int MAX_WORKERS = 256;
constexpr uintptr_t SHARED_SPAN = MAX_WORKERS * SHARED_WINDOW;
constexpr uintptr_t ARENA_SPAN = DEVICE_SPAN + PINNED_SPAN + SHARED_SPAN;

inline bool in_device_arena(const void *p) { return reinterpret_cast<uintptr_t>(p) - ARENA < DEVICE_SPAN; }
inline bool in_pinned_arena(const void *p) { return reinterpret_cast<uintptr_t>(p) - PINNED < PINNED_SPAN; }
inline bool in_shared_arena(const void *p) { return reinterpret_cast<uintptr_t>(p) - SHARED < SHARED_SPAN; }

void reserve_arenas(); // called on first use
char *shared_window(int worker);

// Host code cannot touch device memory. Between unlock and lock (they count) the runtime and kernels can.
void unlock_device_memory();
void lock_device_memory();

// ---- Operations on streams, for runtime functions that read and write memory: memcpy, memset, cuBLASLt ----
//   op_begin(stream, "cublasLtMatmul", file, line); op_read(A, bytes); op_write(D, bytes); ...compute...; op_end();
// op_scratch: memory that the operation writes and that nobody reads afterwards. The meter does not count it.
// Checks these accesses like a kernel's, and makes device memory accessible in between. One operation may write bytes
// and call op_read for them afterwards, because op_read means the bytes from before.
void op_begin(cudaStream_t stream, const char *name, EMU_HERE);
void op_read(const void *pointer, size_t bytes);
void op_write(void *pointer, size_t bytes);
void op_scratch(void *pointer, size_t bytes);
void op_end();

// Gives a kernel its operation and order. Holds the device until end_kernel.
void begin_kernel(Kernel *kernel);
void end_kernel();

std::string stream_text(uint32_t number); // for reports: "stream 1"

// An operation as reports name it. unordered_operation returns null if operation `number`, which accessed the memory
// earlier, is ordered before the running operation (in_host_code: before host code). Else it returns what to report.
struct Operation {
    const char *kind, *name; // "kernel", "scale"
    Source at;
    uint32_t stream;
    uint64_t position; // in the stream
    uint32_t first_interval;
};
const Operation *unordered_operation(uint32_t number, bool in_host_code);
const Operation *find_operation(uint32_t number); // null if it ended long ago
extern uint64_t host_order; // accesses with a stamp below this one are ordered before what host code does now
bool host_is_behind();      // true if the host has not waited for some operation

// ---- Accesses (access.cpp), besides check_read and check_write of cuda_runtime.h ----

extern bool access_checks; // false with EMU_CHECK=0 and with --sanitize
enum AccessKind { READ, WRITE, ATOMIC };
// Checks an access by the emulator on behalf of a thread, whose own code is at this line and instruction.
void check_access_at(const void *pointer, size_t bytes, size_t align, AccessKind kind, Source at, uintptr_t pc);
#define EMU_CALLER reinterpret_cast<uintptr_t>(__builtin_return_address(0))
void check_shared_address(const char *name, const void *pointer, Source at);
void check_operation_read(const void *pointer, size_t bytes, uint64_t me, uint64_t order);
void check_operation_write(void *pointer, size_t bytes, uint64_t me, uint64_t order);
// Copies which bytes of device memory are initialised.
bool copy_initialised(void *to, const void *from, size_t bytes);
void set_initialised(const void *pointer, size_t bytes, bool yes);

// ---- Fences (fences.cpp) ----

void fence();                         // __threadfence of the running thread
extern std::atomic<bool> fences_used; // in this launch. If not, the next two have nothing to do
void publish_at(const void *address); // before an atomic of the running thread
void acquire_at(const void *address); // after it
void fences_at_barrier(BlockFences *fences);
void fences_of_lanes(BlockFences *fences, const Warp &warp, unsigned mask); // at __syncwarp
bool is_published(uint32_t block, uint64_t access); // the running thread has acquired this access of a block
void forget_fences(Block *block);                   // at its end
void forget_releases();                             // of the launch before

// ---- The meter (meter.cpp): counts what the running kernel does, if `metering` is true ----

extern bool metering;
void meter_access(uintptr_t address, size_t bytes, AccessKind kind, uintptr_t pc); // of the running thread
void meter_step(uintptr_t pc);                                                     // it enters a basic block
void meter_async_copy(size_t bytes);                                               // it calls cp.async
void meter_gather(const char *kind, unsigned mask); // all lanes of the mask have come to a warp function
void meter_barrier();                               // all threads of the block have come to a barrier
void meter_block_end();                             // of the running block
void meter_launch_end(const Kernel &kernel);
void meter_operation(const char *name);                // a library's operation begins
void meter_operation_bytes(size_t bytes, bool stored); // it accesses memory
void meter_operation_flops(double flops);

// Intervals are the time stamps of accesses. A block begins a new interval at its start, after each barrier, and after
// a synchronisation of one of its warps.
uint32_t take_intervals(uint32_t operation, uint32_t block); // returns the first interval of a new chunk for this block
void begin_interval();
uint64_t stamp_of_interval(uint32_t interval);
void renew_intervals(); // between operations: starts again when the numbers run out

// Reports page faults: host code that touches device memory, and the overflow of a stack. Called once for each OS
// thread.
void catch_faults();

// Reports if the process uses another device than the calling thread's current one.
void use_device(const char *what, Source at);
int device_in_use();

size_t allowed_shared_bytes(const void *function); // dynamic shared memory of a launch
bool has_allowed_bytes(const void *function);      // cudaFuncSetAttribute was called for it
void allow_shared_bytes(const void *function, size_t bytes);

// The host API must not be called inside a kernel.
void host_only(const char *function, Source at = {nullptr, 0});

} // namespace emu

#endif // EMU_RUNTIME_H
