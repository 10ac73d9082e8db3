// Sharding: which rank owns which part of the parameters, gradients and optimizer state, what each stage of sharding
// (Rajbhandari et al. 2020, "ZeRO") keeps on a rank, and what it sends.
//
// A bucket travels in one piece. Bucket 0 holds the tensors outside the blocks, bucket 1 + l the tensors of block l. A
// head with weights of its own has the last bucket, with the final norm. The matrices for Muon come first, then the
// other tensors with weight decay, then the tensors without, so that one boundary divides a bucket for each purpose.
// The groups keep the order of the parameter table. R ranks share each bucket evenly: rank r owns elements [r * shard,
// (r+1) * shard), its shard, in every stage and in checkpoints. A bucket is padded to R * shard.
//
//            | tensors with decay ... | without ... | padding |      a bucket of R = 4 ranks
//            | rank 0      | rank 1      | rank 2      | rank 3      |
//
// With tensor parallelism a bucket holds a rank's part of the tensors (model_part.h), and the R ranks that share it
// hold equal parts. In each group the tensors that are split come first, so that the tensors which all ranks hold whole
// are the end of a bucket.
//
// Files do not depend on buckets: they hold the tensors in the order of the table, all layers of a tensor together.
// zero_pieces() maps between the two orders. All counts and offsets are in elements.
#ifndef LLMC_ZERO_H
#define LLMC_ZERO_H

#include "llmc/model/model_part.h"

#define ZERO_ALIGNMENT 64                     // shards begin at multiples of this: 128 bytes of bf16, 256 of fp32
#define ZERO_BLOCK_SLOTS 2                    // slots for whole blocks that pass through: one in use, one on its way
#define ZERO_NUM_SLOTS (1 + ZERO_BLOCK_SLOTS) // one for bucket 0 and the head; the blocks take turns with the rest
#define ZERO_MAX_BUCKETS 1002                 // model_check_config allows 1000 layers
#define ZERO_MAX_PIECE ((int64_t)1 << 23)     // elements that pass between GPU and files at a time

typedef enum {
    ZERO_REPLICATE,  // every rank holds and updates everything
    ZERO_OPTIMIZER,  // a rank holds only its shard of the moments and the master copy
    ZERO_GRADIENTS,  // and only its shard of the gradients
    ZERO_PARAMETERS, // and only its shard of the parameters
} ZeroStage;

// The kinds of buckets: bucket 0, a block's, the head's.
enum { ZERO_OUTSIDE, ZERO_BLOCK, ZERO_HEAD, ZERO_KINDS };

typedef struct {
    ModelPart part;
    ModelConfig config;                       // the part's
    int num_ranks, num_buckets;               // num_ranks: that share the part
    bool own_head;                            // the head is not tied
    int order[NUM_PARAM_TENSORS];             // tensors as they lie in bucket 0, in a block's bucket, in the head's
    int64_t tensor_offset[NUM_PARAM_TENSORS]; // in the bucket
    int64_t size[ZERO_KINDS], decayed[ZERO_KINDS], shard[ZERO_KINDS];
    int64_t split[ZERO_KINDS]; // elements at the start of a bucket that tensor parallelism splits
    int64_t muon[ZERO_KINDS];  // elements at the start of a bucket that Muon updates; 0: with AdamW
    int64_t whole_offset[NUM_PARAM_TENSORS], whole_size[ZERO_KINDS]; // of the whole model's buckets
} ZeroLayout;

// ---- Buckets ----

static inline int zero_kind(const ZeroLayout *z, int b) {
    return b == 0 ? ZERO_OUTSIDE : b <= z->config.num_layers ? ZERO_BLOCK : ZERO_HEAD;
}

// Returns the kind of bucket that has a tensor. A tied head uses bucket 0.
static inline int zero_kind_of(const ZeroLayout *z, int tensor) {
    ParamPlace place = param_specs[tensor].place;
    return place == PER_LAYER ? ZERO_BLOCK : place == AT_END && z->own_head ? ZERO_HEAD : ZERO_OUTSIDE;
}

// Returns the bucket that the head and the final norm use.
static inline int zero_head(const ZeroLayout *z) { return z->own_head ? z->num_buckets - 1 : 0; }

// Returns the group of a tensor in its bucket. The groups lie in this order.
enum { ZERO_MUON, ZERO_DECAYED, ZERO_NOT_DECAYED, ZERO_NUM_GROUPS };
static inline int zero_group(int tensor) {
    const ParamSpec *spec = &param_specs[tensor];
    return spec->muon > 0 ? ZERO_MUON : spec->decay == DECAY ? ZERO_DECAYED : ZERO_NOT_DECAYED;
}

// Adds tensor i to the end of its kind of bucket.
static inline void zero_add_tensor(ZeroLayout *z, int kind, int i) {
    z->tensor_offset[i] = z->size[kind], z->whole_offset[i] = z->whole_size[kind];
    z->size[kind] += part_size(&z->part, i), z->whole_size[kind] += whole_size(&z->part, i);
    if (param_is_split(i)) { z->split[kind] = z->size[kind]; }
}

// Lays out the tensors of one kind of bucket, group by group.
static inline int zero_order_tensors(ZeroLayout *z, int kind, int n, OptimizerKind optimizer) {
    for (int k = 0; k < 2 * ZERO_NUM_GROUPS; k++) {
        int group = k / 2, whole = k % 2;
        for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
            bool here = zero_kind_of(z, i) == kind && zero_group(i) == group;
            if (!here || param_is_split(i) == whole) { continue; }
            z->order[n++] = i;
            zero_add_tensor(z, kind, i);
        }
        if (group == ZERO_MUON && optimizer == OPTIMIZER_MUON) { z->muon[kind] = z->size[kind]; }
        if (group == ZERO_DECAYED) { z->decayed[kind] = z->size[kind]; }
    }
    return n;
}

// Returns the elements at the end of a bucket that all ranks of tensor parallelism hold. They are padded, so that these
// ranks can add them up evenly.
static inline int64_t zero_unsplit(const ZeroLayout *z, int b) {
    int kind = zero_kind(z, b);
    return round_up_i64(z->size[kind] - z->split[kind], z->part.at.tp);
}

// Lays out all buckets of a part, whatever the other stages have. The model has passed model_check_config. num_ranks is
// at least 1.
static inline void zero_layout_alone(ZeroLayout *z, const ModelPart *part, int num_ranks, OptimizerKind optimizer) {
    memset(z, 0, sizeof(*z));
    z->part = *part, z->config = part->local;
    z->num_ranks = num_ranks;
    z->own_head = !part_is_tied(part);
    z->num_buckets = 1 + z->config.num_layers + z->own_head;
    int n = 0;
    for (int kind = 0; kind < ZERO_KINDS; kind++) {
        n = zero_order_tensors(z, kind, n, optimizer);
        int64_t most = z->split[kind] + round_up_i64(z->size[kind] - z->split[kind], part->at.tp);
        z->shard[kind] = round_up_i64(ceil_div_i64(most, num_ranks), ZERO_ALIGNMENT);
    }
}

// Lays out all buckets of a part. Where the first and the last stage of a pipeline both have the token embedding, their
// shards of bucket 0 are equally long: a rank then has one part of the embedding on both.
static inline void zero_layout(ZeroLayout *z, const ModelPart *part, int num_ranks, OptimizerKind optimizer) {
    zero_layout_alone(z, part, num_ranks, optimizer);
    if (!part_shares_embedding(part)) { return; }
    ZeroLayout other;
    PartPlace at = part->at;
    at.stage = part_begins(part) ? at.stages - 1 : 0;
    ModelPart peer = model_part(&part->whole, at);
    zero_layout_alone(&other, &peer, num_ranks, optimizer);
    z->shard[0] = max_i64(z->shard[0], other.shard[0]);
}

// Return the elements of bucket b: without padding, for Muon (they come first), with weight decay and split by tensor
// parallelism (they come first, too), in a rank's shard, with padding.
static inline int64_t zero_size(const ZeroLayout *z, int b) { return z->size[zero_kind(z, b)]; }
static inline int64_t zero_muon(const ZeroLayout *z, int b) { return z->muon[zero_kind(z, b)]; }
static inline int64_t zero_decayed(const ZeroLayout *z, int b) { return z->decayed[zero_kind(z, b)]; }
static inline int64_t zero_split(const ZeroLayout *z, int b) { return z->split[zero_kind(z, b)]; }
static inline int64_t zero_shard(const ZeroLayout *z, int b) { return z->shard[zero_kind(z, b)]; }
static inline int64_t zero_padded(const ZeroLayout *z, int b) { return z->num_ranks * zero_shard(z, b); }

// Return the ends of a rank's part: it owns elements [zero_begin, zero_end) of bucket b, without padding. The last
// ranks may own none.
static inline int64_t zero_begin(const ZeroLayout *z, int b, int rank) {
    return min_i64(rank * zero_shard(z, b), zero_size(z, b));
}
static inline int64_t zero_end(const ZeroLayout *z, int b, int rank) { return zero_begin(z, b, rank + 1); }

// Returns the sum of some length over the buckets before b, of a model with L layers.
static inline int64_t zero_sum_before(const int64_t lengths[ZERO_KINDS], int L, int b) {
    int64_t blocks = min_i64(b - 1, L), head = b > 1 + L ? lengths[ZERO_HEAD] : 0;
    return b == 0 ? 0 : lengths[ZERO_OUTSIDE] + blocks * lengths[ZERO_BLOCK] + head;
}

// Returns the start of bucket b in an array of all padded buckets; for b = num_buckets, the length of the array.
static inline int64_t zero_offset(const ZeroLayout *z, int b) {
    return z->num_ranks * zero_sum_before(z->shard, z->config.num_layers, b);
}

// Returns the start of bucket b in an array of a rank's shards; for b = num_buckets, the length of the array.
static inline int64_t zero_shard_offset(const ZeroLayout *z, int b) {
    return zero_sum_before(z->shard, z->config.num_layers, b);
}

// Returns the elements of the whole model in its buckets before b, without padding. It does not depend on the grid. It
// gives an element its number in the whole model, which decides the bits of its stochastic rounding.
static inline int64_t zero_first_index(const ZeroLayout *z, int b) {
    int L = z->part.whole.num_layers, kind = zero_kind(z, b);
    int before = kind == ZERO_BLOCK ? 1 + part_whole_layer(&z->part, b - 1) : kind == ZERO_HEAD ? 1 + L : 0;
    return zero_sum_before(z->whole_size, L, before);
}

// Tells whether a bucket's elements are those of a bucket of the whole model, in their order.
static inline bool zero_lies_whole(const ZeroLayout *z, int b) {
    return z->part.at.tp == 1 && (b > 0 || z->part.at.stages == 1);
}

// Returns the slot of a bucket. The head has bucket 0's, because a pass needs them at its two ends.
static inline int zero_slot(const ZeroLayout *z, int b) {
    return zero_kind(z, b) == ZERO_BLOCK ? 1 + (b - 1) % ZERO_BLOCK_SLOTS : 0;
}

// Returns the place of a slot in an array of slots. Neighbouring blocks never share a slot.
static inline int64_t zero_slot_begin(const ZeroLayout *z, int slot) {
    int64_t first = z->num_ranks * max_i64(z->shard[ZERO_OUTSIDE], z->shard[ZERO_HEAD]);
    return slot == 0 ? 0 : first + (slot - 1) * zero_padded(z, 1);
}
static inline int64_t zero_slot_offset(const ZeroLayout *z, int b) { return zero_slot_begin(z, zero_slot(z, b)); }

// Returns the number of slots for blocks. A model of one block needs one.
static inline int zero_num_slots(const ZeroLayout *z) { return (int)min_i64(ZERO_BLOCK_SLOTS, z->config.num_layers); }

// Returns the length of an array of slots.
static inline int64_t zero_slots_length(const ZeroLayout *z) { return zero_slot_begin(z, 1 + zero_num_slots(z)); }

// ---- Tensors ----

// Returns the bucket of a tensor. layer: of this stage; it is ignored for tensors outside the blocks.
static inline int zero_bucket_of(const ZeroLayout *z, int tensor, int layer) {
    int kind = zero_kind_of(z, tensor);
    return kind == ZERO_BLOCK ? 1 + layer : kind == ZERO_HEAD ? zero_head(z) : 0;
}

// Returns the start of a tensor, or of one layer of it, in its bucket.
static inline int64_t zero_tensor_offset(const ZeroLayout *z, int tensor) { return z->tensor_offset[tensor]; }

// Strips of `count` elements, one behind the other in a bucket. In files, and in the whole model, they begin `stride`
// apart. A piece of a tensor that is not split, or is split by rows, is one strip.
typedef struct {
    int tensor, bucket;
    int layer;         // of the whole model; 0 for tensors outside the blocks
    int64_t in_bucket; // first element, counted in the bucket
    int64_t in_file;   // first element, counted in the order of the table
    int64_t index;     // its number in the whole model (zero_first_index)
    int64_t count;     // > 0: of a strip
    int64_t strips, stride;
} ZeroPiece;

#define ZERO_MAX_PIECES (3 * NUM_PARAM_TENSORS) // of a range of a bucket

// Cuts elements [begin, end) of a tensor in bucket b: a strip's end, whole strips, and a strip's beginning.
static inline int zero_pieces_of_tensor(const ZeroLayout *z, int b, int i, int64_t begin, int64_t end,
                                        ZeroPiece *pieces) {
    ParamStrips s = param_strips(&z->part, i);
    int n = 0, layer = zero_kind(z, b) == ZERO_BLOCK ? part_whole_layer(&z->part, b - 1) : 0;
    int64_t file = param_offset(&z->part.whole, i) + layer * whole_size(&z->part, i);
    int64_t index = zero_first_index(z, b) + z->whole_offset[i];
    while (begin < end) {
        int64_t in_strip = begin % s.width, place = s.first + begin / s.width * s.stride + in_strip;
        bool cut = in_strip > 0 || end - begin < s.width;
        int64_t strips = cut ? 1 : (end - begin) / s.width;
        int64_t count = cut ? min_i64(s.width - in_strip, end - begin) : s.width;
        ZeroPiece piece = {i,     b,      layer,   z->tensor_offset[i] + begin, file + place, index + place,
                           count, strips, s.stride};
        pieces[n++] = piece;
        begin += strips * count;
    }
    return n;
}

// Cuts elements [begin, end) of bucket b into pieces of tensors, in order. Padding belongs to no tensor. Returns the
// number of pieces, which may be 0.
static inline int zero_pieces(const ZeroLayout *z, int b, int64_t begin, int64_t end,
                              ZeroPiece pieces[ZERO_MAX_PIECES]) {
    int n = 0;
    for (int k = 0; k < NUM_PARAM_TENSORS; k++) {
        int i = z->order[k];
        if (zero_kind_of(z, i) != zero_kind(z, b)) { continue; }
        int64_t offset = z->tensor_offset[i];
        int64_t first = max_i64(begin - offset, 0), last = min_i64(end - offset, part_size(&z->part, i));
        n += zero_pieces_of_tensor(z, b, i, first, last, pieces + n);
    }
    return n;
}

// ---- Memory ----

// Counts the elements that one rank holds.
typedef struct {
    int64_t params; // in the precision of training
    int64_t grads;  // fp32
    int64_t m, v;   // fp32: AdamW's moments, without v of Muon's matrices
    int64_t master; // fp32: the master copy, if there is one
    // Slots for whole buckets (zero_slots_length); 0: not needed.
    int64_t param_slots; // in the precision of training: parameters gathered for use
    int64_t grad_slots;  // fp32: gradients of the backward pass, not reduced yet
} ZeroLengths;

// Returns the stage that a run really has. One rank replicates in any stage, because it has nobody to share with.
static inline int zero_effective_stage(int stage, int num_ranks) { return num_ranks == 1 ? ZERO_REPLICATE : stage; }

// Returns the elements of v for a block in a run with Muon: only vectors are left. They are few (13 C), so every rank
// has room for all of them, and updates its own. Padded, so that the ranks can share them evenly.
static inline int64_t zero_rest(const ZeroLayout *z) {
    return z->num_ranks * round_up_i64(ceil_div_i64(z->size[1] - z->muon[1], z->num_ranks), ZERO_ALIGNMENT);
}

static inline ZeroLengths zero_lengths(const ZeroLayout *z, int stage) {
    stage = zero_effective_stage(stage, z->num_ranks);
    int64_t whole = zero_offset(z, z->num_buckets), part = zero_shard_offset(z, z->num_buckets);
    int64_t state = stage >= ZERO_OPTIMIZER ? part : whole;
    ZeroLengths lengths;
    lengths.params = stage >= ZERO_PARAMETERS ? part : whole;
    lengths.grads = stage >= ZERO_GRADIENTS ? part : whole;
    lengths.m = lengths.v = lengths.master = state;
    if (z->muon[1] > 0) {
        int64_t outside = z->shard[ZERO_OUTSIDE] + z->shard[ZERO_HEAD];
        lengths.v = (stage >= ZERO_OPTIMIZER ? 1 : z->num_ranks) * outside + z->config.num_layers * zero_rest(z);
    }
    lengths.param_slots = stage >= ZERO_PARAMETERS ? zero_slots_length(z) : 0;
    lengths.grad_slots = stage >= ZERO_GRADIENTS ? zero_slots_length(z) : 0;
    return lengths;
}

// ---- Traffic ----

// Counts the bytes that a rank sends in a step. It receives as many. The few bytes of losses and norms do not count.
typedef struct {
    int64_t gradients, parameters;
    int64_t matrices;                  // of Muon
    int64_t tensor, context, pipeline; // of the other axes of the grid (traffic.h)
    int64_t to_gpu, from_gpu;          // between this rank's GPU and its host, of what --offload names
} Traffic;

// Returns the elements that a rank sends while all ranks gather or reduce bucket b. In a ring over R ranks this takes
// R - 1 turns. In each turn every rank passes one shard to its neighbour.
static inline int64_t zero_ring(const ZeroLayout *z, int b) { return (z->num_ranks - 1) * zero_shard(z, b); }

// Returns how many ranks share Muon's blocks.
static inline int zero_owners(const ZeroLayout *z, int stage) {
    return (stage == ZERO_REPLICATE ? 1 : z->num_ranks) * z->part.at.tp;
}

// Returns the rank that runs Muon's rounds for the matrices of a block (matrices.cuh), as its number in the group that
// shares buckets. In stage 0 each rank there runs the rounds itself.
static inline int zero_owner(const ZeroLayout *z, int stage, int layer) {
    int ranks = stage == ZERO_REPLICATE ? 1 : z->num_ranks;
    return layer % (ranks * z->part.at.tp) % ranks;
}

// Returns the elements from one whole block to the next in an array of Muon's matrices.
static inline int64_t zero_block(const ZeroLayout *z) {
    return z->part.at.tp == 1 ? z->num_ranks * z->shard[1] : round_up_i64(z->part.at.tp * z->muon[1], ZERO_ALIGNMENT);
}

// Computes the traffic of a step. Stage 0 reduces fp32 gradients once a step and gathers the sums, which sends twice
// the bytes. Stage 1 reduces gradients and gathers the updated parameters. Stages 2 and 3 have no room for whole
// gradients and reduce them in each micro-batch. Stage 3 gathers parameters when it needs them: bucket 0 once a step,
// or in turn with the head's, a block in each forward and each backward pass. It skips a block that the pass before
// left in its slot. With Muon each block travels to its owner and back: first among the ranks that share buckets, then,
// for blocks whose owner is `rank` there, among those that split it.
static inline Traffic zero_traffic(const ZeroLayout *z, int rank, int stage, int sizeof_param, int64_t micro_batches) {
    int64_t rest = zero_ring(z, 0), block = zero_ring(z, 1), blocks = z->config.num_layers * block;
    int64_t head = (z->num_ranks - 1) * z->shard[ZERO_HEAD], there = zero_num_slots(z) * block;
    int64_t all = rest + blocks + head, turns = head > 0 ? micro_batches : 1;
    int64_t reductions = stage >= ZERO_GRADIENTS ? micro_batches : 1;
    Traffic sent = {4 * reductions * all, sizeof_param * all, 0, 0, 0, 0, 0, 0};
    for (int l = 0; l < z->config.num_layers && z->muon[1] > 0; l++) {
        bool here = stage == ZERO_REPLICATE || zero_owner(z, stage, l) == rank;
        int64_t slices = here ? (z->part.at.tp - 1) * z->muon[1] : 0;
        sent.matrices += 2 * sizeof_param * (slices + (stage == ZERO_REPLICATE ? 0 : block));
    }
    if (stage == ZERO_REPLICATE) { sent.gradients *= 2, sent.parameters = 0; }
    if (stage == ZERO_PARAMETERS) {
        sent.parameters = sizeof_param * (turns * (rest + head) + there + 2 * micro_batches * (blocks - there));
    }
    return sent;
}

#endif // LLMC_ZERO_H
