// What a rank of a grid sends in a step, as formulas. A run counts the same bytes in Shards.sent. A ring passes (R-1)/R
// of what R ranks gather or reduce.
#ifndef LLMC_TRAFFIC_H
#define LLMC_TRAFFIC_H

#include "llmc/ranks/schedule.h"
#include "llmc/ranks/zero.h"

// What the traffic of a rank depends on.
typedef struct {
    const ZeroLayout *zero;
    const Pipeline *pipeline;
    int rank, stage;                               // in the group that shares buckets; of ZeRO, as it takes effect
    int cp, value;                                 // ranks that share sequences; bytes of a parameter or an activation
    int64_t rows;                                  // of a micro-batch on this rank
    bool sp;                                       // ranks that split the layers share the rows out
    int again_gathers, again_sums, again_contexts; // of a layer that --recompute computes again
} TrafficShape;

// Puts a bucket into its slot, and returns the elements of this rank's part that are gathered for it. A bucket that is
// there already is not gathered again.
static inline int64_t traffic_fetch(const ZeroLayout *z, int in_slot[ZERO_NUM_SLOTS], int bucket) {
    int *slot = &in_slot[zero_slot(z, bucket)];
    bool there = *slot == bucket || zero_size(z, bucket) == 0;
    if (!there) { *slot = bucket; }
    return there ? 0 : zero_shard(z, bucket);
}

// Plays the passes of a step, and adds up what a rank of ZERO_PARAMETERS gathers. The forward takes bucket 0 first, and
// behind the model's last layer the head's.
static inline int64_t traffic_fetched(const TrafficShape *s, const PipeInstruction *list) {
    const ModelPart *part = &s->zero->part;
    int in_slot[ZERO_NUM_SLOTS] = {-1, -1, -1};
    int64_t fetched = 0;
    for (int k = 0; k < pipe_length(s->pipeline); k++) {
        bool forward = list[k].action == PIPE_FORWARD;
        int begin = part_chunk_begin(part, list[k].chunk), layers = part_chunk_layers(part, list[k].chunk);
        if (!forward && list[k].action != PIPE_BACKWARD) { continue; }
        if (forward) { fetched += traffic_fetch(s->zero, in_slot, 0); }
        for (int i = 0; i < layers; i++) {
            fetched += traffic_fetch(s->zero, in_slot, forward ? 1 + begin + i : begin + layers - i);
        }
        bool ends = part_ends(part) && list[k].chunk == part->at.chunks - 1;
        if (forward && ends) { fetched += traffic_fetch(s->zero, in_slot, zero_head(s->zero)); }
    }
    return fetched;
}

// Gradients, parameters and Muon's matrices. Where the first and the last stage have the token embedding, they exchange
// half of this rank's part of its gradient, there and back.
static inline void traffic_of_buckets(const TrafficShape *s, const PipeInstruction *list, Traffic *sent) {
    const ZeroLayout *z = s->zero;
    int64_t shard = zero_shard(z, 0), begin = s->rank * shard;
    *sent = zero_traffic(z, s->rank, s->stage, s->value, s->pipeline->micro_batches);
    if (s->stage == ZERO_PARAMETERS) { sent->parameters = s->value * (z->num_ranks - 1) * traffic_fetched(s, list); }
    if (part_shares_embedding(&z->part)) {
        sent->gradients += 4 * max_i64(0, min_i64(begin + shard, part_size(&z->part, PARAM_wte)) - begin);
    }
}

// Rows between the ranks that split the layers. With --sp 0 all ranks have all rows, no gather is needed, and a sum
// gives all of them to all: twice a ring. A block has 2 gathers and 2 sums in the forward, 4 and 2 in the backward. The
// embedding and the head have a sum and a gather each, and the head three numbers a row.
static inline int64_t traffic_of_tensor(const TrafficShape *s) {
    const ZeroLayout *z = s->zero;
    const ModelPart *part = &z->part;
    int64_t R = part->at.tp, L = z->config.num_layers, again = L - (part->at.stages == 1),
            m = s->pipeline->micro_batches;
    int64_t ends = part_begins(part) + part_ends(part), states = part_ends(part) ? s->rows * 3 * 4 * (R - 1) : 0;
    int64_t gathers = s->sp * (6 * L + ends + again * s->again_gathers), sums = 4 * L + ends + again * s->again_sums;
    int64_t unit = s->rows * z->config.channels * s->value / R * (R - 1), whole = 0;
    for (int b = 0; b < z->num_buckets && s->sp; b++) { whole += 2 * 4 * (zero_unsplit(z, b) / R * (R - 1)); }
    if (s->stage >= ZERO_GRADIENTS) { whole *= m; }
    return R == 1 ? 0 : m * (unit * (gathers + sums * (2 - s->sp)) + states) + whole;
}

// Computes the traffic of a step. list: room for pipe_length(s->pipeline) instructions.
static inline Traffic traffic_of_step(const TrafficShape *s, PipeInstruction *list) {
    const ModelConfig *c = &s->zero->config;
    int64_t L = c->num_layers, again = L - (s->pipeline->stages == 1), m = s->pipeline->micro_batches, puts = 0;
    int64_t kv = s->rows * 2 * model_dim(c, DIM_KV) * s->value * (s->cp - 1);
    int64_t own_rows = s->rows / (s->sp ? s->zero->part.at.tp : 1);
    Traffic sent;
    pipe_write(s->pipeline, list);
    for (int k = 0; k < pipe_length(s->pipeline); k++) { puts += pipe_puts(list[k].action); }
    traffic_of_buckets(s, list, &sent);
    sent.tensor = traffic_of_tensor(s);
    sent.context = m * kv * (3 * L + again * s->again_contexts); // gathered for both passes, and summed
    sent.pipeline = puts * own_rows * c->channels * s->value;
    return sent;
}

#endif // LLMC_TRAFFIC_H
