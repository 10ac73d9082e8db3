// Muon's matrices on their way between the ranks that hold them and the rank that runs the rounds. The rounds need
// whole matrices (llmc/model/muon.h). A rank holds a shard of a block, cut anywhere, and with tensor parallelism a
// shard of a slice of it. So every rank computes the momentum of what it holds, the block's owner (zero_owner) gathers
// the block and runs the rounds, and every rank gets its part of the result and updates its weights. The momentum lies
// where AdamW's m lies, and checkpoints do not depend on the grid.
#ifndef LLMC_MATRICES_CUH
#define LLMC_MATRICES_CUH

#include "llmc/ranks/buckets.cuh"

// Where the blocks of a group lie on their way. A block is held in `parts`, and is gathered into `blocks` if this rank
// owns it, else into `spare`. NULL: this grid needs no such room.
typedef struct {
    floatX *blocks; // those that this rank owns, one after another (zero_block)
    floatX *parts;  // what this rank holds of each block of the group (matrices_held); NULL: it holds whole blocks
    floatX *spare;  // one block, or one slice
    floatX *slices; // the slices of a block, one behind the other, if tensor parallelism cuts it
} MatrixRoom;

static inline int matrices_owners(const Shards *s) { return zero_owners(&s->layout, s->stage); }
static inline bool matrices_travel(const Shards *s) { return s->stage > ZERO_REPLICATE || s->tensor.size > 1; }

// Returns this rank's number among the owners.
static inline int matrices_own_number(const Shards *s) {
    return s->stage > ZERO_REPLICATE ? s->tensor.rank * s->layout.num_ranks + s->rank : s->tensor.rank;
}

// Returns the elements of a block that this rank holds: its shard, or if nothing is sharded all of its slice.
static inline int64_t matrices_held(const Shards *s) {
    return s->stage > ZERO_REPLICATE ? zero_shard(&s->layout, 1) : zero_padded(&s->layout, 1);
}

// Returns the place of block i of a group among the blocks that this rank owns; NULL: another rank owns it.
static inline floatX *matrices_of_block(const Shards *s, const MatrixRoom &room, int i) {
    int owners = matrices_owners(s);
    return i % owners == matrices_own_number(s) ? room.blocks + i / owners * zero_block(&s->layout) : NULL;
}

// Copies the matrices between the slices of a block and the whole block, on the communication's stream.
static inline void copy_slices(const Shards *s, floatX *block, floatX *slices, bool to_block) {
    const ZeroLayout *z = &s->layout;
    for (int k = 0; k < s->tensor.size * NUM_PARAM_TENSORS; k++) {
        int rank = k / NUM_PARAM_TENSORS, i = k % NUM_PARAM_TENSORS;
        if (!muon_takes(OPTIMIZER_MUON, i)) { continue; }
        ModelPart part = z->part;
        part.at.tp_rank = rank;
        ParamStrips strips = param_strips(&part, i);
        int64_t rows = part_size(&part, i) / strips.width;
        size_t width = (size_t)strips.width * sizeof(floatX), stride = (size_t)strips.stride * sizeof(floatX);
        floatX *slice = slices + rank * zero_muon(z, 1) + zero_tensor_offset(z, i);
        floatX *whole = block + z->whole_offset[i] + strips.first;
        cuda_check(cudaMemcpy2DAsync(to_block ? whole : slice, to_block ? stride : width, to_block ? slice : whole,
                                     to_block ? width : stride, width, (size_t)rows, cudaMemcpyDeviceToDevice,
                                     s->comm_stream));
    }
}

// Puts the blocks of a group together on their owners.
static inline void gather_matrices(Shards *s, const MatrixRoom &room, int blocks) {
    int64_t held = matrices_held(s), muon = zero_muon(&s->layout, 1);
    bool sharded = s->stage > ZERO_REPLICATE, cut = s->tensor.size > 1;
    communicate_after_compute(s);
    for (int i = 0; i < blocks; i++) {
        int owner = zero_owner(&s->layout, s->stage, i);
        floatX *part = room.parts + i * held, *slice = sharded ? room.spare : part;
        floatX *block = matrices_of_block(s, room, i);
        if (!cut) { slice = block != NULL ? block : room.spare; }
        if (sharded) { group_all_gather(&s->data, slice, part, held * (int64_t)sizeof(floatX), &s->sent.matrices); }
        if (!cut || (sharded && owner != s->rank)) { continue; }
        group_all_gather(&s->tensor, room.slices, slice, muon * (int64_t)sizeof(floatX), &s->sent.matrices);
        if (block != NULL) { copy_slices(s, block, room.slices, true); }
    }
    compute_after_communicate(s);
}

// Clears n elements on the communication's stream.
static inline void clear_on_the_way(const Shards *s, floatX *data, int64_t n) {
    cuda_check(cudaMemsetAsync(data, 0, (size_t)n * sizeof(floatX), s->comm_stream));
}

// own (n) = the owner's part for this rank of `all`. All other ranks of the group add zeros, as whole numbers: x + 0
// then has the bits of x, which the sum -0 + 0 of floats has not.
static inline void receive_from_owner(Group *group, floatX *own, const floatX *all, int64_t n, int64_t *sent) {
    int64_t words = n * (int64_t)sizeof(floatX) / (int64_t)sizeof(uint32_t);
    group_reduce_scatter(group, (uint32_t *)own, (const uint32_t *)all, words, sent);
}

// Sends the owners' blocks back to the ranks that hold them.
static inline void scatter_matrices(Shards *s, const MatrixRoom &room, int blocks) {
    int64_t held = matrices_held(s), muon = zero_muon(&s->layout, 1), padded = zero_padded(&s->layout, 1);
    bool sharded = s->stage > ZERO_REPLICATE, cut = s->tensor.size > 1;
    communicate_after_compute(s);
    if (sharded && !cut) { clear_on_the_way(s, room.spare, padded); }
    for (int i = 0; i < blocks; i++) {
        int owner = zero_owner(&s->layout, s->stage, i);
        floatX *part = room.parts + i * held, *slice = sharded ? room.spare : part;
        floatX *block = matrices_of_block(s, room, i);
        if (!cut && block != NULL) { slice = block; }
        if (cut && sharded) { clear_on_the_way(s, slice, padded); }
        if (cut && (!sharded || owner == s->rank)) {
            clear_on_the_way(s, room.slices, s->tensor.size * muon);
            if (block != NULL) { copy_slices(s, block, room.slices, false); }
            receive_from_owner(&s->tensor, slice, room.slices, muon, &s->sent.matrices);
        }
        if (sharded) { receive_from_owner(&s->data, part, slice, held, &s->sent.matrices); }
    }
    compute_after_communicate(s);
}

#endif // LLMC_MATRICES_CUH
