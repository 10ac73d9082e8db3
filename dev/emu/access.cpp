// The check of one load or store.
#include "runtime.h"
#include "memory.h"

namespace emu {

extern "C" __attribute__((weak)) char __start_emu_device[], __stop_emu_device[];

bool is_device_data(const void *pointer) {
    const char *p = static_cast<const char *>(pointer);
    return in_device_arena(p) || (__start_emu_device && p >= __start_emu_device && p < __stop_emu_device);
}

static void check(const void *pointer, size_t bytes, size_t align, Source at) {
    if (in_kernel() && reinterpret_cast<uintptr_t>(pointer) % align) {
        report(at, format("misaligned access of %zu bytes at %p, expected a multiple of %zu", bytes, pointer, align));
    }
}
void check_read(const void *pointer, size_t bytes, size_t align, const char *file, int line) {
    check(pointer, bytes, align, {file, line});
}
void check_write(void *pointer, size_t bytes, size_t align, const char *file, int line) {
    check(pointer, bytes, align, {file, line});
}
void check_atomic(void *pointer, size_t bytes, Source at) { check(pointer, bytes, bytes, at); }
void forget_values(void *, size_t) {}
void check_free(uintptr_t, size_t, const char *, Source) {}
void catch_faults() {}

} // namespace emu
