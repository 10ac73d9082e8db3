// What is set for the whole process: the order of blocks and threads, whether accesses are checked, and how much
// dynamic shared memory a kernel may have.
#include "runtime.h"
#include "include/emu.h"

#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <mutex>

namespace emu {

bool access_checks;

// ---- Schedules ----

static Schedule parse_schedule(const char *text) {
    if (strcmp(text, "forward") == 0) { return {Schedule::FORWARD, 0}; }
    if (strcmp(text, "reversed") == 0) { return {Schedule::REVERSED, 0}; }
    char *end;
    unsigned long long seed = strncmp(text, "random:", 7) == 0 ? strtoull(text + 7, &end, 10) : 0;
    if (strncmp(text, "random:", 7) != 0 || end == text + 7 || *end != '\0') {
        report({nullptr, 0}, format("schedule \"%s\": expected forward, reversed or random:SEED", text));
    }
    return {Schedule::RANDOM, seed};
}

static Schedule &current_schedule() {
    static Schedule current = parse_schedule(getenv("EMU_SCHEDULE") ? getenv("EMU_SCHEDULE") : "forward");
    return current;
}

Schedule schedule() { return current_schedule(); }
void set_schedule(const char *text) { current_schedule() = parse_schedule(text); }

uint64_t random_bits(uint64_t *state) { // splitmix64
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

template <class T> static void order_items(T *order, size_t n, Schedule how, uint64_t salt) {
    for (size_t i = 0; i < n; i++) { order[i] = static_cast<T>(how.order == Schedule::REVERSED ? n - 1 - i : i); }
    if (how.order != Schedule::RANDOM) { return; }
    uint64_t state = how.seed * 0x2545f4914f6cdd1d + salt;
    for (size_t i = n; i > 1; i--) { std::swap(order[i - 1], order[random_bits(&state) % i]); }
}

void fill_order(uint8_t *order, int n, uint64_t salt) { order_items(order, static_cast<size_t>(n), schedule(), salt); }
void fill_order(uint32_t *order, size_t n, uint64_t salt) { order_items(order, n, schedule(), salt); }

// ---- Limits of kernels ----

struct KernelLimits {
    std::mutex mutex;
    std::map<const void *, size_t> dynamic_bytes; // [kernel]: the limit that cudaFuncSetAttribute set
};
static KernelLimits &limits() {
    static KernelLimits *all = new KernelLimits;
    return *all;
}

size_t allowed_shared_bytes(const void *function) {
    std::lock_guard<std::mutex> guard(limits().mutex);
    auto found = limits().dynamic_bytes.find(function);
    return found == limits().dynamic_bytes.end() ? SHARED_BYTES_DEFAULT : found->second;
}

bool has_allowed_bytes(const void *function) {
    std::lock_guard<std::mutex> guard(limits().mutex);
    return limits().dynamic_bytes.count(function) > 0;
}

void allow_shared_bytes(const void *function, size_t bytes) {
    std::lock_guard<std::mutex> guard(limits().mutex);
    limits().dynamic_bytes[function] = bytes;
    size_t &largest = limits().dynamic_bytes[nullptr]; // for launches that do not know the kernel's address
    largest = std::max(largest, bytes);
}

} // namespace emu
