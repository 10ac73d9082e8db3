// Reports accesses that only the pages catch: host code that touches device memory, and the overflow of a thread's
// stack. The compiler's hooks do not see them, for example in the C library's memcpy.
#include "runtime.h"
#include "memory.h"
#include "access.h"

#include <execinfo.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace emu {

extern "C" char etext[];

static struct sigaction previous;

// Returns the innermost caller in this program rather than in a library.
static uintptr_t program_pc() {
    void *frames[64];
    int n = backtrace(frames, 64);
    for (int i = 3; i < n; i++) { // skips the handler itself
        char *pc = static_cast<char *>(frames[i]);
        if (pc >= __executable_start && pc < etext) { return reinterpret_cast<uintptr_t>(pc); }
    }
    return 0;
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    reporting = true;
    uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    if (in_kernel() && stack_guard_holds(now.thread->stack, address)) { report_pc(0, "stack overflow"); }
    if (address - ARENA < ARENA_SPAN) {
        std::string what = in_kernel() ? "access to inaccessible memory"
                                       : format("host code dereferences %s memory",
                                                in_pinned_arena(info->si_addr) ? "freed" : "device");
        report_pc(program_pc(), what, describe_address(address));
    }
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(signal, info, context);
        return;
    }
    struct sigaction normal = {};
    normal.sa_handler = SIG_DFL;
    sigaction(signal, &normal, nullptr); // the instruction runs again, and ends the program
}

void catch_faults() {
    constexpr size_t bytes = 256 << 10;
    static __thread bool done;
    if (done) { return; }
    done = true;
    stack_t stack = {};
    stack.ss_sp = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    stack.ss_size = bytes;
    if (stack.ss_sp != MAP_FAILED) { sigaltstack(&stack, nullptr); }
    static const bool installed = [] {
        void *frame;
        backtrace(&frame, 1); // loads its library now rather than in the handler
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        return sigaction(SIGSEGV, &action, &previous) == 0;
    }();
    (void)installed;
}

} // namespace emu
