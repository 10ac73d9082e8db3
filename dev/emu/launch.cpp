// Launches a kernel: checks the configuration and spreads the blocks over the worker threads. The launching thread
// works too, and the launch returns when all blocks are done.
#include "memory.h"
#include "include/emu.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

namespace emu {

// ---- Worker threads ----

int worker_count() {
    static const int count = [] {
        const char *text = getenv("EMU_THREADS");
        int cores = static_cast<int>(std::thread::hardware_concurrency());
        int wanted = text ? atoi(text) : (cores > 16 ? 16 : cores);
        return wanted < 1 ? 1 : (wanted > MAX_WORKERS ? MAX_WORKERS : wanted);
    }();
    return count;
}

class Pool {
  public:
    // Runs all blocks of the kernel. order: the block numbers.
    void run(const Kernel &kernel, const std::vector<uint32_t> &order) {
        job.kernel = &kernel;
        job.order = &order;
        job.next = 0;
        if (order.size() > 1) { wake_helpers(kernel.cooperative ? static_cast<int>(order.size()) : worker_count()); }
        work(0);
        if (order.size() > 1) { wait_for_helpers(); }
    }

  private:
    struct Job {
        const Kernel *kernel;
        const std::vector<uint32_t> *order;
        std::atomic<size_t> next;
    } job = {};

    void wake_helpers(int workers) {
        while (helpers < workers - 1) {
            int worker = ++helpers;
            std::thread([this, worker] { help(worker); }).detach();
        }
        std::lock_guard<std::mutex> guard(mutex);
        busy = helpers;
        round++;
        start.notify_all();
    }

    void wait_for_helpers() {
        std::unique_lock<std::mutex> guard(mutex);
        end.wait(guard, [this] { return busy == 0; });
    }

    void help(int worker) {
        uint64_t seen = 0;
        catch_faults();
        for (;;) {
            {
                std::unique_lock<std::mutex> guard(mutex);
                start.wait(guard, [&] { return round != seen; });
                seen = round;
            }
            work(worker);
            std::lock_guard<std::mutex> guard(mutex);
            if (--busy == 0) { end.notify_one(); }
        }
    }

    void work(int worker) {
        if (worker >= worker_count() && !job.kernel->cooperative) { return; } // made for a cooperative launch
        Block *&block = blocks[worker];
        if (block == nullptr) { block = new_block(worker); }
        const dim3 grid = job.kernel->grid;
        for (size_t i = job.next++; i < job.order->size(); i = job.next++) {
            uint32_t number = (*job.order)[i];
            block->kernel = job.kernel;
            block->number = number;
            block->index = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
            run_block(block);
        }
    }

    std::mutex mutex;
    std::condition_variable start, end;
    uint64_t round = 0;
    int helpers = 0, busy = 0;
    Block *blocks[MAX_WORKERS] = {};
};

// ---- The launch ----

static void check_shape(const Kernel &kernel) {
    const dim3 g = kernel.grid, b = kernel.block;
    if (g.x == 0 || g.y == 0 || g.z == 0 || b.x == 0 || b.y == 0 || b.z == 0) {
        report_launch(kernel, format("empty grid %s or block %s", to_text(g).c_str(), to_text(b).c_str()));
    }
    if (b.x > 1024 || b.y > 1024 || b.z > 64 || uint64_t(b.x) * b.y * b.z > MAX_BLOCK_THREADS) {
        report_launch(kernel, format("block %s has %llu threads, at most 1024 (1024 x 1024 x 64) are possible",
                                     to_text(b).c_str(), static_cast<unsigned long long>(b.x) * b.y * b.z));
    }
    if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) {
        report_launch(kernel, format("grid %s is too large, at most (2147483647,65535,65535)", to_text(g).c_str()));
    }
    if (uint64_t(g.x) * g.y * g.z > uint64_t(1) << 31) {
        report_launch(kernel, format("grid %s has more blocks than the emulator can run", to_text(g).c_str()));
    }
}

static void check_shared(const Kernel &kernel) {
    size_t allowed = allowed_shared_bytes(kernel.function);
    if (kernel.dynamic_bytes <= allowed) { return; }
    report_launch(kernel, format("%zu bytes of dynamic shared memory, %zu are allowed", kernel.dynamic_bytes, allowed),
                  "  more than 48 KiB (up to 227 KiB) needs cudaFuncSetAttribute(kernel, "
                  "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)");
}

// Holds back signals while a kernel runs. A handler of the program would run on the stack of a kernel's thread and
// under its checks. Faults still come through. Worker threads are created under the mask and keep it.
class SignalsHeldBack {
  public:
    SignalsHeldBack() {
        sigset_t all;
        sigfillset(&all);
        for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) { sigdelset(&all, fault); }
        pthread_sigmask(SIG_BLOCK, &all, &before);
    }
    ~SignalsHeldBack() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    SignalsHeldBack(const SignalsHeldBack &) = delete;
    SignalsHeldBack &operator=(const SignalsHeldBack &) = delete;

  private:
    sigset_t before;
};

static std::atomic<uint64_t> launches;

void Launch::run(const void *function, void (*one_thread)(void *), void *call, size_t bytes) {
    const Source at = {file, line};
    if (in_kernel()) { report(at, format("launch of kernel %s inside a kernel", name)); }
    if (is_deduced && has_allowed_bytes(nullptr)) { allow_shared_bytes(function, allowed_shared_bytes(nullptr)); }
    Kernel kernel = {name,           at, grid, block, shared_bytes, stream, function, one_thread, call, bytes,
                     is_cooperative, 0,  0,    0};
    check_shape(kernel);
    check_shared(kernel);
    static std::mutex one_at_a_time;
    static Pool *pool = new Pool;
    static std::vector<uint32_t> *order = new std::vector<uint32_t>;
    std::lock_guard<std::mutex> guard(one_at_a_time);
    kernel.number = ++launches;
    order->resize(size_t(grid.x) * grid.y * grid.z);
    fill_order(order->data(), order->size(), kernel.number);
    SignalsHeldBack held_back;
    begin_kernel(&kernel);
    pool->run(kernel, *order);
    if (metering) { meter_launch_end(kernel); }
    end_kernel();
}

bool Launch::fits(Function kernel) const {
    int blocks = 0, multiprocessors = 0;
    int threads = static_cast<int>(block.x * block.y * block.z);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
    return uint64_t(grid.x) * grid.y * grid.z <= uint64_t(std::min(blocks * multiprocessors, MAX_WORKERS));
}

} // namespace emu
