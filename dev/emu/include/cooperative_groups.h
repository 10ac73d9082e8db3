// Cooperative groups: the block, tiles of a warp, and what is known of the grid. All of it is made of the barriers and
// warp functions of cuda_runtime.h, which check it. The blocks of a grid do not run at once, so grid.sync() is missing.
#ifndef EMU_COOPERATIVE_GROUPS_H
#define EMU_COOPERATIVE_GROUPS_H

#include "cuda_runtime.h"

namespace cooperative_groups {

// Any of the groups below. The lanes of a warp are a mask; a block has none.
class thread_group {
  public:
    void sync(EMU_HERE) const {
        if (is_block) { return __syncthreads(file, line); }
        __syncwarp(lanes, file, line);
    }
    unsigned long long size() const { return threads; }
    unsigned long long num_threads() const { return threads; }
    unsigned long long thread_rank() const { return rank; }

  protected:
    thread_group(bool is_block, unsigned lanes, unsigned threads, unsigned rank)
        : is_block(is_block), lanes(lanes), threads(threads), rank(rank) {}
    bool is_block;
    unsigned lanes, threads, rank;
    friend thread_group tiled_partition(const thread_group &parent, unsigned n);
};

inline unsigned emu_rank_in_block() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }

class thread_block : public thread_group {
  public:
    thread_block() : thread_group(true, 0, blockDim.x * blockDim.y * blockDim.z, emu_rank_in_block()) {}
    static void sync(EMU_HERE) { __syncthreads(file, line); }
    static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned num_threads() { return size(); }
    static unsigned thread_rank() { return emu_rank_in_block(); }
    static dim3 group_index() { return blockIdx; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return thread_block(); }

// N threads that lie side by side in a warp.
template <unsigned N, class Parent = void> class thread_block_tile : public thread_group {
    static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads in the emulator");

  public:
    thread_block_tile(unsigned rank_in_parent, unsigned parent_threads)
        : thread_group(false, (0xffffffffu >> (32 - N)) << emu_rank_in_block() % 32 / N * N, N, rank_in_parent % N),
          tile(rank_in_parent / N), tiles((parent_threads + N - 1) / N) {}
    template <class Other>
    thread_block_tile(const thread_block_tile<N, Other> &t)
        : thread_group(t), tile(t.meta_group_rank()), tiles(t.meta_group_size()) {}

    static constexpr unsigned size() { return N; }
    static constexpr unsigned num_threads() { return N; }
    unsigned thread_rank() const { return rank; }
    unsigned meta_group_rank() const { return tile; }
    unsigned meta_group_size() const { return tiles; }

    template <class T> T shfl(T value, unsigned source, EMU_HERE) const {
        return __shfl_sync(lanes, value, static_cast<int>(source), N, file, line);
    }
    template <class T> T shfl_up(T value, unsigned delta, EMU_HERE) const {
        return __shfl_up_sync(lanes, value, delta, N, file, line);
    }
    template <class T> T shfl_down(T value, unsigned delta, EMU_HERE) const {
        return __shfl_down_sync(lanes, value, delta, N, file, line);
    }
    template <class T> T shfl_xor(T value, unsigned mask, EMU_HERE) const {
        return __shfl_xor_sync(lanes, value, static_cast<int>(mask), N, file, line);
    }
    int any(int predicate, EMU_HERE) const { return __any_sync(lanes, predicate, file, line); }
    int all(int predicate, EMU_HERE) const { return __all_sync(lanes, predicate, file, line); }
    unsigned ballot(int predicate, EMU_HERE) const {
        return __ballot_sync(lanes, predicate, file, line) >> __builtin_ctz(lanes);
    }

  private:
    unsigned tile, tiles;
};

template <unsigned N, class Group> inline thread_block_tile<N> tiled_partition(const Group &parent) {
    return {static_cast<unsigned>(parent.thread_rank()), static_cast<unsigned>(parent.size())};
}

// A tile whose size only the running program knows: 1, 2, 4, 8, 16 or 32.
inline thread_group tiled_partition(const thread_group &parent, unsigned n) {
    if (n == 0 || n > 32 || (n & (n - 1)) != 0) { __trap(); }
    unsigned lanes = (0xffffffffu >> (32 - n)) << emu_rank_in_block() % 32 / n * n;
    return {false, lanes, n, parent.rank % n};
}

// The hardware promises nothing about which threads of a warp run together. Here a thread is always alone.
class coalesced_group : public thread_block_tile<1> {
  public:
    coalesced_group() : thread_block_tile<1>(0, 1) {}
};
inline coalesced_group coalesced_threads() { return {}; }

class grid_group {
  public:
    static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long num_threads() { return num_blocks() * thread_block::size(); }
    static unsigned long long size() { return num_threads(); }
    static unsigned long long block_rank() {
        return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    static unsigned long long thread_rank() { return block_rank() * thread_block::size() + emu_rank_in_block(); }
    static dim3 dim_blocks() { return gridDim; }
    static dim3 group_dim() { return gridDim; }
    static dim3 block_index() { return blockIdx; }
    template <class T = void> static void sync() {
        static_assert(!std::is_void_v<T>, "grid.sync() is not part of the emulator: launch a second kernel");
    }
};
inline grid_group this_grid() { return {}; }

template <class Group> inline void sync(const Group &group, EMU_HERE) { group.sync(file, line); }

} // namespace cooperative_groups

#endif // EMU_COOPERATIVE_GROUPS_H
