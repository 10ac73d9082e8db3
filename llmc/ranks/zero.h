// Sharding: which rank owns which part of the parameters, gradients and optimizer state, what each stage of sharding
// (Rajbhandari et al. 2020, "ZeRO") keeps on a rank, and what it sends.
//
// A bucket travels in one piece. Bucket 0 holds the tensors outside the blocks, bucket 1 + l the tensors of block l.
// The matrices for Muon come first, then the other tensors with weight decay, then the tensors without, so that one
// boundary divides a bucket for each purpose. The groups keep the order of the parameter table. R ranks share each
// bucket evenly: rank r owns elements [r * shard, (r+1) * shard), its shard, in every stage and in checkpoints. A
// bucket is padded to R * shard.
//
//            | tensors with decay ... | without ... | padding |      a bucket of R = 4 ranks
//            | rank 0      | rank 1      | rank 2      | rank 3      |
//
// Files do not depend on buckets: they hold the tensors in the order of the table, all layers of a tensor together.
// zero_pieces() maps between the two orders. All counts and offsets are in elements.
#ifndef LLMC_ZERO_H
#define LLMC_ZERO_H

#include "llmc/model/params.h"

#define ZERO_ALIGNMENT 64                     // shards begin at multiples of this: 128 bytes of bf16, 256 of fp32
#define ZERO_BLOCK_SLOTS 2                    // slots for whole blocks that pass through: one in use, one on its way
#define ZERO_NUM_SLOTS (1 + ZERO_BLOCK_SLOTS) // one for bucket 0; the blocks take turns with the rest
#define ZERO_MAX_BUCKETS 1001                 // model_check_config allows 1000 layers
#define ZERO_MAX_PIECE ((int64_t)1 << 23)     // elements that pass between GPU and files at a time

typedef enum {
    ZERO_REPLICATE,  // every rank holds and updates everything
    ZERO_OPTIMIZER,  // a rank holds only its shard of the moments and the master copy
    ZERO_GRADIENTS,  // and only its shard of the gradients
    ZERO_PARAMETERS, // and only its shard of the parameters
} ZeroStage;

typedef struct {
    ModelConfig config;
    int num_ranks, num_buckets;
    int order[NUM_PARAM_TENSORS];             // tensors as they lie in bucket 0, then in a block's bucket
    int64_t tensor_offset[NUM_PARAM_TENSORS]; // in the bucket
    int64_t size[2], decayed[2], shard[2];    // [0]: bucket 0, [1]: each other bucket
    int64_t muon[2];                          // elements at the start of a bucket that Muon updates; 0: with AdamW
} ZeroLayout;

// ---- Buckets ----

static inline int zero_kind(int bucket) { return bucket > 0; }

// Returns the group of a tensor in its bucket. The groups lie in this order.
enum { ZERO_MUON, ZERO_DECAYED, ZERO_NOT_DECAYED, ZERO_NUM_GROUPS };
static inline int zero_group(int tensor) {
    const ParamSpec *spec = &param_specs[tensor];
    return spec->muon > 0 ? ZERO_MUON : spec->decay == DECAY ? ZERO_DECAYED : ZERO_NOT_DECAYED;
}

// Lays out the tensors of one kind of bucket, group by group.
static inline int zero_order_tensors(ZeroLayout *z, int kind, int n, OptimizerKind optimizer) {
    for (int group = 0; group < ZERO_NUM_GROUPS; group++) {
        for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
            if ((param_specs[i].per_layer == PER_LAYER) != kind || zero_group(i) != group) { continue; }
            z->order[n++] = i;
            z->tensor_offset[i] = z->size[kind];
            z->size[kind] += param_rows(&z->config, i) * param_cols(&z->config, i);
        }
        if (group == ZERO_MUON && optimizer == OPTIMIZER_MUON) { z->muon[kind] = z->size[kind]; }
        if (group == ZERO_DECAYED) { z->decayed[kind] = z->size[kind]; }
    }
    return n;
}

// Lays out all buckets. config has passed model_check_config. num_ranks is at least 1.
static inline void zero_layout(ZeroLayout *z, const ModelConfig *config, int num_ranks, OptimizerKind optimizer) {
    memset(z, 0, sizeof(*z));
    z->config = *config;
    z->num_ranks = num_ranks;
    z->num_buckets = 1 + config->num_layers;
    int n = 0;
    for (int kind = 0; kind < 2; kind++) {
        n = zero_order_tensors(z, kind, n, optimizer);
        z->shard[kind] = round_up_i64(ceil_div_i64(z->size[kind], num_ranks), ZERO_ALIGNMENT);
    }
}

// Return the elements of bucket b: without padding, for Muon (they come first), with weight decay (they come first,
// too), in a rank's shard, with padding.
static inline int64_t zero_size(const ZeroLayout *z, int b) { return z->size[zero_kind(b)]; }
static inline int64_t zero_muon(const ZeroLayout *z, int b) { return z->muon[zero_kind(b)]; }
static inline int64_t zero_decayed(const ZeroLayout *z, int b) { return z->decayed[zero_kind(b)]; }
static inline int64_t zero_shard(const ZeroLayout *z, int b) { return z->shard[zero_kind(b)]; }
static inline int64_t zero_padded(const ZeroLayout *z, int b) { return z->num_ranks * zero_shard(z, b); }

// Return the ends of a rank's part: it owns elements [zero_begin, zero_end) of bucket b, without padding. The last
// ranks may own none.
static inline int64_t zero_begin(const ZeroLayout *z, int b, int rank) {
    return min_i64(rank * zero_shard(z, b), zero_size(z, b));
}
static inline int64_t zero_end(const ZeroLayout *z, int b, int rank) { return zero_begin(z, b, rank + 1); }

// Returns the sum of some length over the buckets before b.
static inline int64_t zero_sum_before(const int64_t lengths[2], int b) {
    return b == 0 ? 0 : lengths[0] + (b - 1) * lengths[1];
}

// Returns the start of bucket b in an array of all padded buckets; for b = num_buckets, the length of the array.
static inline int64_t zero_offset(const ZeroLayout *z, int b) { return z->num_ranks * zero_sum_before(z->shard, b); }

// Returns the start of bucket b in an array of a rank's shards; for b = num_buckets, the length of the array.
static inline int64_t zero_shard_offset(const ZeroLayout *z, int b) { return zero_sum_before(z->shard, b); }

// Returns the elements in the buckets before b, without padding. It does not depend on the number of ranks. It gives an
// element of a bucket its number in the whole model, which decides the bits of its stochastic rounding.
static inline int64_t zero_first_index(const ZeroLayout *z, int b) { return zero_sum_before(z->size, b); }

static inline int zero_slot(int b) { return b == 0 ? 0 : 1 + (b - 1) % ZERO_BLOCK_SLOTS; }

// Returns the place of bucket b in an array with slots for bucket 0 and ZERO_BLOCK_SLOTS blocks. Neighbouring blocks
// never share a slot.
static inline int64_t zero_slot_offset(const ZeroLayout *z, int b) {
    return b == 0 ? 0 : zero_padded(z, 0) + (b - 1) % ZERO_BLOCK_SLOTS * zero_padded(z, b);
}

// Returns the number of slots for blocks. A model of one block needs one.
static inline int zero_num_slots(const ZeroLayout *z) { return (int)min_i64(ZERO_BLOCK_SLOTS, z->config.num_layers); }

// ---- Tensors ----

// Returns the bucket of a tensor. layer is ignored for tensors outside the blocks.
static inline int zero_bucket_of(int tensor, int layer) { return param_specs[tensor].per_layer ? 1 + layer : 0; }

// Returns the start of a tensor, or of one layer of it, in its bucket.
static inline int64_t zero_tensor_offset(const ZeroLayout *z, int tensor) { return z->tensor_offset[tensor]; }

typedef struct {
    int tensor, layer; // layer is 0 for tensors outside the blocks
    int64_t in_bucket; // first element, counted in the bucket
    int64_t in_file;   // first element, counted in the order of the table
    int64_t count;     // > 0; these elements are neighbours in both orders
} ZeroPiece;

// Cuts elements [begin, end) of bucket b into pieces of tensors, in order. Padding belongs to no tensor. Returns the
// number of pieces, which may be 0.
static inline int zero_pieces(const ZeroLayout *z, int b, int64_t begin, int64_t end,
                              ZeroPiece pieces[NUM_PARAM_TENSORS]) {
    int n = 0, layer = b == 0 ? 0 : b - 1;
    for (int k = 0; k < NUM_PARAM_TENSORS; k++) {
        int i = z->order[k];
        if (zero_bucket_of(i, layer) != b) { continue; }
        int64_t size = param_rows(&z->config, i) * param_cols(&z->config, i);
        int64_t first = max_i64(begin, z->tensor_offset[i]), last = min_i64(end, z->tensor_offset[i] + size);
        if (first >= last) { continue; }
        int64_t in_tensor = layer * size + first - z->tensor_offset[i];
        ZeroPiece piece = {i, layer, first, param_offset(&z->config, i) + in_tensor, last - first};
        pieces[n++] = piece;
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
    // Slots for whole buckets (zero_slot_offset); 0: not needed.
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
    int64_t slots = zero_padded(z, 0) + zero_num_slots(z) * zero_padded(z, 1);
    int64_t state = stage >= ZERO_OPTIMIZER ? part : whole;
    ZeroLengths lengths;
    lengths.params = stage >= ZERO_PARAMETERS ? part : whole;
    lengths.grads = stage >= ZERO_GRADIENTS ? part : whole;
    lengths.m = lengths.v = lengths.master = state;
    if (z->muon[1] > 0) {
        lengths.v = (stage >= ZERO_OPTIMIZER ? z->shard[0] : zero_padded(z, 0)) + z->config.num_layers * zero_rest(z);
    }
    lengths.param_slots = stage >= ZERO_PARAMETERS ? slots : 0;
    lengths.grad_slots = stage >= ZERO_GRADIENTS ? slots : 0;
    return lengths;
}

// ---- Traffic ----

// Counts the bytes that a rank sends in a step. It receives as many. The few bytes of losses and norms do not count.
typedef struct {
    double gradients, parameters, matrices; // whole numbers; matrices: of Muon
} ZeroTraffic;

// Returns the elements that a rank sends while all ranks gather or reduce bucket b. In a ring over R ranks this takes
// R - 1 turns. In each turn every rank passes one shard to its neighbour.
static inline int64_t zero_ring(const ZeroLayout *z, int b) { return (z->num_ranks - 1) * zero_shard(z, b); }

// Returns the rank that runs Muon's rounds (llmc/model/muon.h) for the matrices of a block in stages 1 to 3. The rounds
// need whole matrices, and a rank holds shards that are cut anywhere. So every rank computes the momentum of its shard,
// the owner gathers the block and runs the rounds, and every rank gets its shard of the result and updates its weights.
// The momentum lies where AdamW's m lies, and checkpoints do not depend on the number of ranks.
static inline int zero_owner(const ZeroLayout *z, int layer) { return layer % z->num_ranks; }

// Computes the traffic of a step. Stage 0 reduces fp32 gradients once a step and gathers the sums, which sends twice
// the bytes. Stage 1 reduces gradients and gathers the updated parameters. Stages 2 and 3 have no room for whole
// gradients and reduce them in each micro-batch. Stage 3 gathers parameters when it needs them: bucket 0 once a step, a
// block in each forward and each backward pass. It skips a block that the pass before left in its slot. With Muon each
// block travels to its owner and back.
static inline ZeroTraffic zero_traffic(const ZeroLayout *z, int stage, int sizeof_param, int64_t micro_batches) {
    double rest = (double)zero_ring(z, 0), block = (double)zero_ring(z, 1), blocks = z->config.num_layers * block;
    double there = zero_num_slots(z) * block, all = rest + blocks;
    double reductions = stage >= ZERO_GRADIENTS ? (double)micro_batches : 1.0;
    ZeroTraffic sent = {4.0 * reductions * all, sizeof_param * all, 0.0};
    if (z->muon[1] > 0 && stage != ZERO_REPLICATE) { sent.matrices = 2.0 * sizeof_param * blocks; }
    if (stage == ZERO_REPLICATE) { sent.gradients *= 2.0, sent.parameters = 0.0; }
    if (stage == ZERO_PARAMETERS) {
        sent.parameters = sizeof_param * (rest + there + 2.0 * (double)micro_batches * (blocks - there));
    }
    return sent;
}

#endif // LLMC_ZERO_H
