// Cooperative groups: the block, tiles and other lanes of a warp, and the grid. All of it is made of the barriers and
// warp functions of cuda_runtime.h, which check it.
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

class thread_block : public thread_group {
  public:
    thread_block() : thread_group(true, 0, blockDim.x * blockDim.y * blockDim.z, emu::rank_in_block()) {}
    static void sync(EMU_HERE) { __syncthreads(file, line); }
    static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned num_threads() { return size(); }
    static unsigned thread_rank() { return emu::rank_in_block(); }
    static dim3 group_index() { return blockIdx; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return thread_block(); }

// Lanes of a warp: a tile, or a coalesced group. A rank stands for the lane with so many lanes of the group below it.
class emu_lanes : public thread_group {
  public:
    emu_lanes(unsigned lanes, unsigned tile, unsigned tiles)
        : thread_group(false, lanes, __popc(lanes), __popc(lanes & ((1u << emu::rank_in_block() % 32) - 1))),
          tile(tile), tiles(tiles) {}
    unsigned thread_rank() const { return rank; }
    unsigned meta_group_rank() const { return tile; }
    unsigned meta_group_size() const { return tiles; }

    template <class T> T shfl(T value, unsigned source, EMU_HERE) const {
        unsigned left = lanes;
        for (unsigned r = source % threads; r > 0; r--) { left &= left - 1; }
        return __shfl_sync(lanes, value, __builtin_ctz(left), 32, file, line);
    }
    template <class T> T shfl_up(T value, unsigned delta, EMU_HERE) const {
        return shfl(value, delta > rank ? rank : rank - delta, file, line);
    }
    template <class T> T shfl_down(T value, unsigned delta, EMU_HERE) const {
        return shfl(value, rank + delta < threads ? rank + delta : rank, file, line);
    }
    template <class T> T shfl_xor(T value, unsigned mask, EMU_HERE) const {
        return shfl(value, rank ^ mask, file, line);
    }
    int any(int predicate, EMU_HERE) const { return __any_sync(lanes, predicate, file, line); }
    int all(int predicate, EMU_HERE) const { return __all_sync(lanes, predicate, file, line); }
    unsigned ballot(int predicate, EMU_HERE) const { return by_rank(__ballot_sync(lanes, predicate, file, line)); }
    template <class T> unsigned match_any(T value, EMU_HERE) const {
        return by_rank(__match_any_sync(lanes, value, file, line));
    }
    unsigned lane_mask() const { return lanes; }

  private:
    unsigned by_rank(unsigned bits) const {
        unsigned result = 0, r = 0;
        for (unsigned left = lanes; left; left &= left - 1) { result |= (bits >> __builtin_ctz(left) & 1u) << r++; }
        return result;
    }
    unsigned tile, tiles;
};

// LANES threads that lie side by side in a warp.
template <unsigned LANES, class Parent = void> class thread_block_tile : public emu_lanes {
    static_assert(LANES >= 1 && LANES <= 32 && (LANES & (LANES - 1)) == 0,
                  "a tile has 1, 2, 4, 8, 16 or 32 threads in the emulator");

  public:
    thread_block_tile(unsigned rank_in_parent, unsigned parent_threads)
        : emu_lanes((0xffffffffu >> (32 - LANES)) << emu::rank_in_block() % 32 / LANES * LANES, rank_in_parent / LANES,
                    (parent_threads + LANES - 1) / LANES) {}
    template <class Other> thread_block_tile(const thread_block_tile<LANES, Other> &t) : emu_lanes(t) {}
    static constexpr unsigned size() { return LANES; }
    static constexpr unsigned num_threads() { return LANES; }
};

template <unsigned LANES, class Group> inline thread_block_tile<LANES> tiled_partition(const Group &parent) {
    return {static_cast<unsigned>(parent.thread_rank()), static_cast<unsigned>(parent.size())};
}

// A tile whose size only the running program knows: 1, 2, 4, 8, 16 or 32.
inline thread_group tiled_partition(const thread_group &parent, unsigned n) {
    if (n == 0 || n > 32 || (n & (n - 1)) != 0) { __trap(); }
    unsigned lanes = (0xffffffffu >> (32 - n)) << emu::rank_in_block() % 32 / n * n;
    return {false, lanes, n, parent.rank % n};
}

// The lanes that can be together: those that come to this line before all lanes of the warp wait or have exited.
class coalesced_group : public emu_lanes {
  public:
    explicit coalesced_group(unsigned lanes) : emu_lanes(lanes, 0, 1) {}
};
inline coalesced_group coalesced_threads(EMU_HERE) { return coalesced_group(emu::converge(file, line)); }
template <class T> inline coalesced_group labeled_partition(const emu_lanes &group, T label, EMU_HERE) {
    return coalesced_group(__match_any_sync(group.lane_mask(), label, file, line));
}
inline coalesced_group binary_partition(const emu_lanes &group, bool yes, EMU_HERE) {
    return labeled_partition(group, yes, file, line);
}

class grid_group {
  public:
    static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long num_threads() { return num_blocks() * thread_block::size(); }
    static unsigned long long size() { return num_threads(); }
    static unsigned long long block_rank() {
        return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    static unsigned long long thread_rank() { return block_rank() * thread_block::size() + emu::rank_in_block(); }
    static dim3 dim_blocks() { return gridDim; }
    static dim3 group_dim() { return gridDim; }
    static dim3 block_index() { return blockIdx; }
    static bool is_valid() { return emu::is_cooperative(); }
    static void sync(EMU_HERE) { emu::grid_sync(file, line); }
};
inline grid_group this_grid() { return {}; }

template <class Group> inline void sync(const Group &group, EMU_HERE) { group.sync(file, line); }

} // namespace cooperative_groups

#endif // EMU_COOPERATIVE_GROUPS_H
