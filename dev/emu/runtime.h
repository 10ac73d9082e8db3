// What the parts of the emulator's runtime know of each other. Not for .cu files: those include cuda_runtime.h, emu.h
// and emu_ptx.h only.
//
//   fibers.cpp        blocks, warps and threads: who runs next; barriers and warp collectives
//   launch.cpp        checks a launch and spreads its blocks over the worker threads
//   warp_ops.cpp      shuffles, votes, ldmatrix, mma, cp.async
//   memory.cpp        the arenas of device, pinned and shared memory; cudaMalloc, cudaMemcpy
//   streams.cpp       streams, events, and which operation is ordered before which
//   graphs.cpp        the capture of streams, and graphs
//   access.cpp        the check of one load or store
//   access_hooks.cpp  what the compiler calls before each load and store
//   faults.cpp        accesses to inaccessible pages
//   device.cpp        cudaGetDeviceProperties and the other questions about the device
//   nccl*.cpp         collectives between processes
//   report.cpp        how a mistake is reported
#ifndef EMU_RUNTIME_H
#define EMU_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include <functional>
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

struct Source { // a line of a program
    const char *file;
    int line;
};

// ---- Reports (report.cpp): print one report on stderr and end the program with status 1 ----

// The text "dir/file.cu:12".
std::string to_text(Source at);
std::string to_text(uint3 v);
extern __thread bool reporting; // the strings of a report must not be taken for the kernel's own accesses
std::string format(const char *text, ...) __attribute__((format(printf, 1, 2)));

// `what` happened at a line, in the running thread's kernel or in host code. details: further lines, or "".
[[noreturn]] void report(Source at, const std::string &what, const std::string &details = "");
// The line is that of an instruction.
[[noreturn]] void report_pc(uintptr_t pc, const std::string &what, const std::string &details = "");
// About a kernel's launch, before any of its threads runs.
struct Kernel;
[[noreturn]] void report_launch(const Kernel &kernel, const std::string &what, const std::string &details = "");
std::string line_of_pc(uintptr_t pc);

// ---- Kernels, blocks, warps, threads (fibers.cpp, launch.cpp) ----

struct Kernel { // one launch
    const char *name;
    Source launched;
    dim3 grid, block;
    size_t dynamic_bytes;
    cudaStream_t stream;
    const void *function;
    void (*one_thread)(void *);
    void *call;
    uint64_t number;    // of launches so far
    uint32_t operation; // its number among the operations on streams
    uint64_t order;     // accesses with a stamp below this one are ordered before the kernel
};

struct AsyncCopy { // a cp.async that has not arrived
    void *shared;
    const void *global;
    int src_bytes;
    Source at;
    uintptr_t pc;
};

struct CopyGroup { // a committed group of them
    size_t copies;
};

struct Warp;
struct Stack;

struct Thread {
    void *stack_pointer; // while it waits; null before it starts
    Stack *stack;
    uint3 index;
    int number;   // in the block
    int lane;     // in the warp
    int position; // of the lane in the schedule's order
    bool done;
    Warp *warp;
    // What it waits for: a barrier of the block or a collective of the warp
    const char *waits_for;
    Source waits_at;
    unsigned wait_mask;
    void *deposit;
    uint32_t warp_since; // memory accesses of the warp's lanes before this interval are ordered before now
    std::vector<AsyncCopy> copies;
    std::vector<CopyGroup> copy_groups;
};

struct Warp {
    Thread *threads;
    int count;        // lanes that exist
    unsigned ready;   // positions that can run
    unsigned gathers; // lanes that wait in a collective
    unsigned exited;  // lanes that have left the kernel
    int turn;         // the position to run next
};

struct SharedVariable {
    const void *key;
    const char *name;
    uint32_t offset, bytes;
};

struct Block {
    const Kernel *kernel;
    uint3 index;
    uint64_t number;
    int worker; // the OS thread that runs it
    int thread_count, warp_count;
    int exited, at_barrier;
    int turn; // the warp to run next
    int barrier_sum, barrier_and, barrier_or;
    int result_sum, result_and, result_or;
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
    void *scheduler; // stack pointer of the worker while a fiber runs
};

// The state of the OS thread: which emulated thread it runs, and what the check of an access needs of it. thread is
// null in host code.
struct Now {
    Thread *thread;
    Block *block;
    uintptr_t stack, stack_bytes; // of the thread
    uint64_t me;                  // the thread's stamp in the shadow memory (access.h), without the instruction
    uint64_t order_global;        // accesses with a stamp below this one are ordered before the thread's accesses
    uint64_t order_shared;
    uint32_t interval, block_since; // the current interval, and that of the block's last barrier
};
extern __thread Now now;

inline bool in_kernel() { return now.thread != nullptr; }

int worker_count();
void run_block(Block *block);
Block *new_block(int worker);

// Waits until all lanes of mask are here with the same operation; the last one calls work(deposits, mask) with what
// each lane brought (null for lanes not in the mask).
typedef void (*Work)(void **deposits, unsigned mask);
void gather(const char *kind, unsigned mask, void *deposit, Work work, Source at);

struct Schedule {
    enum Order { FORWARD, REVERSED, RANDOM } order;
    uint64_t seed;
};
Schedule schedule();
uint64_t random_bits(uint64_t *state);
void fill_order(uint8_t *order, int n, uint64_t salt);

// ---- Memory (memory.cpp) ----

constexpr uintptr_t ARENA = 0x200000000000; // everything that the emulator hands out lies from here on
constexpr uintptr_t DEVICE_SPAN = uintptr_t(128) << 30;
constexpr uintptr_t PINNED = ARENA + DEVICE_SPAN;
constexpr uintptr_t PINNED_SPAN = uintptr_t(16) << 30;
constexpr uintptr_t SHARED = PINNED + PINNED_SPAN;
constexpr uintptr_t SHARED_WINDOW = 1 << 20; // of one worker
constexpr int MAX_WORKERS = 256;
constexpr uintptr_t SHARED_SPAN = MAX_WORKERS * SHARED_WINDOW;
constexpr uintptr_t ARENA_SPAN = DEVICE_SPAN + PINNED_SPAN + SHARED_SPAN;

inline bool in_device_arena(const void *p) { return reinterpret_cast<uintptr_t>(p) - ARENA < DEVICE_SPAN; }
inline bool in_pinned_arena(const void *p) { return reinterpret_cast<uintptr_t>(p) - PINNED < PINNED_SPAN; }
inline bool in_shared_arena(const void *p) { return reinterpret_cast<uintptr_t>(p) - SHARED < SHARED_SPAN; }

void reserve_arenas(); // on first use
char *shared_window(int worker);

// Host code cannot touch device memory, but between unlock and lock (they count) the runtime and kernels can.
void unlock_device_memory();
void lock_device_memory();

// ---- Operations on streams, for runtime functions that read and write memory: memcpy, memset, cuBLASLt ----
//   op_begin(stream, "cublasLtMatmul", file, line); op_read(A, bytes); op_write(D, bytes); ...compute...; op_end();
// Checks what a kernel's accesses are checked for, and makes device memory accessible in between. Writing first and
// reading the same bytes afterwards in one operation is allowed (op_read reads what was there before).
void op_begin(cudaStream_t stream, const char *name, EMU_HERE);
void op_read(const void *pointer, size_t bytes);
void op_write(void *pointer, size_t bytes);
void op_pretend(double seconds); // that it took so much longer, on the clock of events
void op_end();

// The same for a kernel: gives it its operation and order. Holds the device until end_kernel.
void begin_kernel(Kernel *kernel);
void end_kernel();

// ---- Graphs (graphs.cpp) ----
// An operation on a stream that is being captured is not done, but kept with copies of all its arguments, to be done at
// each launch of the graph, on the stream that it is then given:
//   if (is_captured(stream)) { capture(stream, "cudaMemsetAsync", at, [=](cudaStream_t s) { ... }); return cudaSuccess;
//   }
bool is_captured(cudaStream_t stream);
void capture(cudaStream_t stream, const char *name, Source at, std::function<void(cudaStream_t)> operation);
std::string stream_text(uint32_t number); // for reports: "stream 1"

// What an access of the running operation (or, with in_host_code, of host code) to memory that an earlier one accessed
// has to fear: null if the earlier one is ordered before, or what to report.
struct Operation {
    const char *kind, *name; // "kernel", "scale"
    Source at;
    uint32_t stream;
    uint64_t position; // in the stream
    uint32_t first_interval;
};
const Operation *unordered_operation(uint32_t number, bool in_host_code);
const Operation *find_operation(uint32_t number); // null if long ago
extern uint64_t host_order; // accesses with a stamp below this one are ordered before what host code does now
bool host_is_behind();      // some operations are not waited for

// ---- Accesses (access.cpp), besides check_read and check_write of cuda_runtime.h ----

extern bool access_checks; // EMU_CHECK is not 0, and this is not the --sanitize flavour
enum AccessKind { READ, WRITE, ATOMIC };
// By code of the emulator on behalf of a thread, whose own code is at that line and instruction.
void check_access_at(const void *pointer, size_t bytes, size_t align, AccessKind kind, Source at, uintptr_t pc);
#define EMU_CALLER reinterpret_cast<uintptr_t>(__builtin_return_address(0))
void check_shared_address(const char *name, const void *pointer, Source at);
void check_operation_read(const void *pointer, size_t bytes, uint64_t me, uint64_t order);
void check_operation_write(void *pointer, size_t bytes, uint64_t me, uint64_t order);
bool copy_initialised(void *to, const void *from, size_t bytes); // of device memory: the copy is as uninitialised
void set_initialised(const void *pointer, size_t bytes, bool yes);

// Intervals are the time stamps of accesses. A block begins a new one when it begins, after each barrier, and when one
// of its warps has synchronised.
uint32_t take_intervals(uint32_t operation, uint32_t block); // the first one of a new chunk for this block
void begin_interval();
uint64_t stamp_of_interval(uint32_t interval);
void renew_intervals(); // between operations: begins anew when the numbers run out

// Reports what the pages tell: host code that touches device memory, the overflow of a stack. Once for each OS thread.
void catch_faults();

void use_device(const char *what, Source at); // the calling thread's current one
int device_in_use();

size_t allowed_shared_bytes(const void *function); // dynamic shared memory of a launch
bool has_allowed_bytes(const void *function);      // cudaFuncSetAttribute was called for it
void allow_shared_bytes(const void *function, size_t bytes);

// The host API must not be called inside a kernel.
void host_only(const char *function, Source at = {nullptr, 0});

} // namespace emu

#endif // EMU_RUNTIME_H
