// The functions that the code under test calls before each load and store, because it is compiled with
// -fsanitize=thread. They share only their names with ThreadSanitizer. The alignment check of
// UndefinedBehaviorSanitizer ends here too: its report becomes a report of the emulator.
#include "access.h"

#include <string.h>

#ifndef EMU_ASAN

using namespace emu;

#define PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define HOOK(n, name, kind)                                                                                            \
    extern "C" void __tsan_##name##n(void *p) { check_access<n, kind>(p, PC); }
#define SAME_HOOK(n, name, as) extern "C" void __tsan_##name##n(void *p) __attribute__((alias("__tsan_" #as #n)));
#define RANGE_HOOK(n, name, kind)                                                                                      \
    extern "C" void __tsan_##name##n(void *p) {                                                                        \
        check_any_access({reinterpret_cast<uintptr_t>(p), n, kind, PC, nullptr});                                      \
    }
#define HOOKS(n)                                                                                                       \
    HOOK(n, read, READ)                                                                                                \
    HOOK(n, write, WRITE)                                                                                              \
    SAME_HOOK(n, read_write, write)                                                                                    \
    SAME_HOOK(n, volatile_read, read)                                                                                  \
    SAME_HOOK(n, volatile_write, write)                                                                                \
    RANGE_HOOK(n, unaligned_read, READ)                                                                                \
    RANGE_HOOK(n, unaligned_write, WRITE)                                                                              \
    RANGE_HOOK(n, unaligned_read_write, WRITE)                                                                         \
    RANGE_HOOK(n, unaligned_volatile_read, READ)                                                                       \
    RANGE_HOOK(n, unaligned_volatile_write, WRITE)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

static inline void check_range(const void *p, size_t bytes, AccessKind kind, uintptr_t pc) {
    check_any_access({reinterpret_cast<uintptr_t>(p), bytes, kind, pc, nullptr});
}

extern "C" {

void __tsan_read_range(void *p, size_t bytes) { check_range(p, bytes, READ, PC); }
void __tsan_write_range(void *p, size_t bytes) { check_range(p, bytes, WRITE, PC); }
void __sanitizer_cov_trace_pc() { // at the begin of each basic block
    if (metering) { meter_step(PC); }
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_ignore_thread_begin() {}
void __tsan_ignore_thread_end() {}

// Compilers insert calls of memcpy, memmove and memset. emucc renames these calls in the code under test. Newer clangs
// call the __tsan names.
void *emu_memcpy(void *to, const void *from, size_t bytes) {
    check_range(from, bytes, READ, PC);
    check_range(to, bytes, WRITE, PC);
    return memcpy(to, from, bytes);
}
void *emu_memmove(void *to, const void *from, size_t bytes) {
    check_range(from, bytes, READ, PC);
    check_range(to, bytes, WRITE, PC);
    return memmove(to, from, bytes);
}
void *emu_memset(void *to, int value, size_t bytes) {
    check_range(to, bytes, WRITE, PC);
    return memset(to, value, bytes);
}
void *__tsan_memcpy(void *to, const void *from, size_t bytes) __attribute__((alias("emu_memcpy")));
void *__tsan_memmove(void *to, const void *from, size_t bytes) __attribute__((alias("emu_memmove")));
void *__tsan_memset(void *to, int value, size_t bytes) __attribute__((alias("emu_memset")));

// C++ atomics of host code. Atomics of kernels are functions of their own.
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

#define ATOMIC_HOOKS(bits, T)                                                                                          \
    T __tsan_atomic##bits##_load(const volatile T *p, int) {                                                           \
        check_range(const_cast<T *>(p), sizeof(T), READ, PC);                                                          \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                   \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(volatile T *p, T value, int) {                                                    \
        check_range(const_cast<T *>(p), sizeof(T), WRITE, PC);                                                         \
        __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                                                  \
    }                                                                                                                  \
    T __tsan_atomic##bits##_exchange(volatile T *p, T value, int) {                                                    \
        check_range(const_cast<T *>(p), sizeof(T), ATOMIC, PC);                                                        \
        return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);                                                        \
    }                                                                                                                  \
    ATOMIC_UPDATE(bits, T, add)                                                                                        \
    ATOMIC_UPDATE(bits, T, sub)                                                                                        \
    ATOMIC_UPDATE(bits, T, and)                                                                                        \
    ATOMIC_UPDATE(bits, T, or)                                                                                         \
    ATOMIC_UPDATE(bits, T, xor)                                                                                        \
    ATOMIC_UPDATE(bits, T, nand)                                                                                       \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *p, T *expected, T value, int, int) {                 \
        check_range(const_cast<T *>(p), sizeof(T), ATOMIC, PC);                                                        \
        return __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);             \
    }                                                                                                                  \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile T *, T *, T, int, int)                                    \
        __attribute__((alias("__tsan_atomic" #bits "_compare_exchange_strong")));                                      \
    T __tsan_atomic##bits##_compare_exchange_val(volatile T *p, T expected, T value, int, int) {                       \
        check_range(const_cast<T *>(p), sizeof(T), ATOMIC, PC);                                                        \
        __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                   \
        return expected;                                                                                               \
    }
#define ATOMIC_UPDATE(bits, T, operation)                                                                              \
    T __tsan_atomic##bits##_fetch_##operation(volatile T *p, T value, int) {                                           \
        check_range(const_cast<T *>(p), sizeof(T), ATOMIC, PC);                                                        \
        return __atomic_fetch_##operation(p, value, __ATOMIC_SEQ_CST);                                                 \
    }
ATOMIC_HOOKS(8, uint8_t)
ATOMIC_HOOKS(16, uint16_t)
ATOMIC_HOOKS(32, uint32_t)
ATOMIC_HOOKS(64, uint64_t)

// ---- Alignment ----

struct UbsanSource {
    const char *file;
    uint32_t line, column;
};
struct UbsanType {
    uint16_t kind, info;
    char name[1];
};
struct UbsanMismatch {
    UbsanSource at;
    const UbsanType *type;
    uint8_t log_alignment, kind;
};
struct UbsanAssumption {
    UbsanSource at, assumed_at;
    const UbsanType *type;
};

void __ubsan_handle_type_mismatch_v1(UbsanMismatch *mismatch, uintptr_t address) {
    report({mismatch->at.file, static_cast<int>(mismatch->at.line)},
           format("misaligned access to 0x%zx as %s, expected a multiple of %d", address, mismatch->type->name,
                  1 << mismatch->log_alignment));
}
void __ubsan_handle_type_mismatch_v1_abort(UbsanMismatch *, uintptr_t)
    __attribute__((alias("__ubsan_handle_type_mismatch_v1")));
void __ubsan_handle_alignment_assumption(UbsanAssumption *assumption, uintptr_t address, uintptr_t alignment,
                                         uintptr_t) {
    report({assumption->at.file, static_cast<int>(assumption->at.line)},
           format("misaligned pointer 0x%zx, assumed to be a multiple of %zu", address, alignment));
}
void __ubsan_handle_alignment_assumption_abort(UbsanAssumption *, uintptr_t, uintptr_t, uintptr_t)
    __attribute__((alias("__ubsan_handle_alignment_assumption")));

} // extern "C"

#endif // EMU_ASAN
