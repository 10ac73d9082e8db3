// Pipelines: the order in which a stage computes, sends and receives. It is data, a list of instructions.
//
// The model is cut into stages * chunks pieces, in order. Chunk c of stage s is piece c * stages + s: a stage hands its
// output to the next stage, and the last stage to the next chunk of stage 0. Gradients take the way back. Here 3 stages
// of 1 chunk do 4 micro-batches in the order "1f1b" (F2: forward of micro-batch 2, B2--: its backward, ..: idle):
//
//     stage 0 |F0F1F2........B0--F3B1--..B2--..B3--|
//     stage 1 |..F0F1....B0--F2B1--F3B2--..B3--....|
//     stage 2 |....F0B0--F1B1--F2B2--F3B3--........|
//
// A stage first does some forwards, its warm-up, then a forward and a backward in turn, then the backwards left. The
// schedules differ in the warm-up. afab: all forwards (Huang et al. 2019, "GPipe"). 1f1b: one for each stage behind
// (Narayanan et al. 2019, "PipeDream"). interleaved: two for each stage behind, and `stages` for each chunk but one
// (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters").
//
// A stage is idle for stages - 1 of the micro_batches * chunks + stages - 1 forwards and backwards that a step takes. A
// chunk does its backwards in the order of the micro-batches, so its gradients have the bits of a run on one stage.
//
// A send ends only together with its receive, and nobody waits for ever. In a line (afab, 1f1b) neighbours swap: where
// a stage puts an output and gets a gradient, the next stage gets this output and puts this gradient. In a ring
// (interleaved) all stages hand on their outputs at once, then their gradients.
#ifndef LLMC_SCHEDULE_H
#define LLMC_SCHEDULE_H

#include "llmc/base/utils.h"

typedef enum { PIPE_AFAB, PIPE_1F1B, PIPE_INTERLEAVED, PIPE_FORWARD_ONLY } PipeSchedule; // the last: for evaluation
static const char *const pipe_names[] = {"afab", "1f1b", "interleaved", "forward only"};

typedef struct {
    PipeSchedule schedule;
    int stages, stage, chunks, micro_batches; // stage: whose list it is; chunks: of each stage
} Pipeline;

typedef enum { PIPE_GET_INPUT, PIPE_FORWARD, PIPE_PUT_OUTPUT, PIPE_GET_GRAD, PIPE_BACKWARD, PIPE_PUT_GRAD } PipeAction;
#define PIPE_MAX_CHUNKS 64
static const int pipe_way[] = {-1, 0, 1, 1, 0, -1}; // with whom: 1: the next stage, -1: the stage before, 0: nobody

// A slot holds the activations of a micro-batch in a chunk, from its input on until its backward is done. Gradients
// need two buffers more: one for the gradient that comes, one for the gradient that leaves.
typedef struct {
    PipeAction action;
    int micro_batch, chunk, slot;
    bool joined; // this PUT and the GET behind it run at once, as between ncclGroupStart and ncclGroupEnd
} PipeInstruction;

// Refuses what no list can do.
static inline bool pipe_check(const Pipeline *p, Error *error) {
    const char *name = pipe_names[p->schedule];
    bool line = p->schedule == PIPE_AFAB || p->schedule == PIPE_1F1B, ring = p->schedule == PIPE_INTERLEAVED;
    int S = p->stages, m = p->micro_batches, v = p->chunks;
    if (p->stage < 0 || p->stage >= S) { return fail(error, "%s: no stage %d of %d stages", name, p->stage, S); }
    if (v < 1 + ring) { return fail(error, "%s: %d chunks in a stage, expected %d or more", name, v, 1 + ring); }
    if (v > 1 && (line || S == 1)) { return fail(error, "%s: %d chunks in each of %d stages, not 1", name, v, S); }
    if (m < 1) { return fail(error, "%s: %d micro-batches, expected 1 or more", name, m); }
    if (max_i64(m, S) * v > INT32_MAX / 8) { return fail(error, "%s: %d micro-batches are too many", name, m); }
    return !ring || m % S == 0 || fail(error, "%s: %d micro-batches are no multiple of %d stages", name, m, S);
}

// ---- Order ----

static inline int pipe_num_forwards(const Pipeline *p) { return p->micro_batches * p->chunks; }

static inline int pipe_warm_up(const Pipeline *p) {
    int behind = p->stages - p->stage - 1, n = pipe_num_forwards(p);
    int most[] = {n, behind, 2 * behind + (p->chunks - 1) * p->stages, p->chunks > 1}; // of each PipeSchedule
    return (int)min_i64(n, most[p->schedule]);
}

// Finds the micro-batch and the chunk of forward k. As many micro-batches as stages pass chunk 0, then chunk 1, and so
// on. In an evaluation the last group of micro-batches may be smaller.
static inline void pipe_locate(const Pipeline *p, int k, PipeInstruction *i) {
    int first = k / (p->stages * p->chunks) * p->stages, in_group = k - first * p->chunks;
    int size = (int)min_i64(p->stages, p->micro_batches - first);
    i->micro_batch = first + in_group % size;
    i->chunk = in_group / size;
}

// Returns the forward that backward k belongs to. Backwards take the chunks of a group from the last to the first.
static inline int pipe_forward_of(const Pipeline *p, int k) {
    return k + (p->chunks - 1 - k / p->stages % p->chunks * 2) * p->stages;
}

// In an evaluation of several chunks an input comes while an output leaves.
static inline int pipe_num_slots(const Pipeline *p) { return (int)min_i64(pipe_num_forwards(p), pipe_warm_up(p) + 1); }

// Returns the slot of forward k: a new one, or the one that the backward just before it has freed.
static inline int pipe_slot(const Pipeline *p, int k) {
    int slots = pipe_num_slots(p);
    if (p->schedule == PIPE_FORWARD_ONLY) { return k % slots; }
    while (k >= slots) { k = pipe_forward_of(p, k - slots); }
    return k;
}

// ---- Lists ----

static inline bool pipe_puts(PipeAction a) { return a == PIPE_PUT_OUTPUT || a == PIPE_PUT_GRAD; }
static inline bool pipe_gets(PipeAction a) { return a == PIPE_GET_INPUT || a == PIPE_GET_GRAD; }

// Returns the rank to which a PUT sends, or from which a GET receives.
static inline int pipe_peer(const Pipeline *p, PipeAction action) {
    return (p->stage + p->stages + pipe_way[action]) % p->stages;
}

// Returns the number of instructions. The two ends of the model send and receive less.
static inline int pipe_length(const Pipeline *p) {
    int passes = p->schedule == PIPE_FORWARD_ONLY ? 1 : 2, ends = (p->stage == 0) + (p->stage == p->stages - 1);
    return passes * (3 * pipe_num_forwards(p) - ends * p->micro_batches);
}

// Appends an action of round k, if there is one: of forward k, or of backward k - warm-up.
static inline void pipe_add(const Pipeline *p, PipeInstruction **end, PipeAction action, int k) {
    bool backward = action >= PIPE_GET_GRAD;
    if (backward) { k -= pipe_warm_up(p); }
    if (k < 0 || k >= pipe_num_forwards(p) || (backward && p->schedule == PIPE_FORWARD_ONLY)) { return; }
    if (backward) { k = pipe_forward_of(p, k); }
    PipeInstruction i = {action, 0, 0, pipe_slot(p, k), false};
    pipe_locate(p, k, &i);
    int neighbour = i.chunk * p->stages + p->stage + pipe_way[action];
    if (neighbour >= 0 && neighbour < p->chunks * p->stages) { *(*end)++ = i; }
}

// A stage receives right before it computes, and sends right behind.
static inline void pipe_line_round(const Pipeline *p, PipeInstruction **end, int k) {
    for (int a = PIPE_GET_INPUT; a <= PIPE_PUT_GRAD; a++) { pipe_add(p, end, (PipeAction)a, k); }
}

// A stage sends and receives behind the backward, which frees the slot of the next input.
static inline void pipe_ring_round(const Pipeline *p, PipeInstruction **end, int k) {
    pipe_add(p, end, PIPE_FORWARD, k);
    if (k == pipe_warm_up(p)) { pipe_add(p, end, PIPE_GET_GRAD, k); }
    pipe_add(p, end, PIPE_BACKWARD, k);
    pipe_add(p, end, PIPE_PUT_OUTPUT, k);
    pipe_add(p, end, PIPE_GET_INPUT, k + 1);
    pipe_add(p, end, PIPE_PUT_GRAD, k);
    if (k >= pipe_warm_up(p)) { pipe_add(p, end, PIPE_GET_GRAD, k + 1); }
}

// Writes the pipe_length() instructions of p->stage. In round -1 a ring gets its first input. A PUT is joined with the
// GET right behind it, but not if both have one slot.
static inline void pipe_write(const Pipeline *p, PipeInstruction *list) {
    PipeInstruction *end = list;
    for (int k = -1; k < pipe_num_forwards(p) + pipe_warm_up(p); k++) {
        (p->schedule == PIPE_INTERLEAVED ? pipe_ring_round : pipe_line_round)(p, &end, k);
    }
    for (PipeInstruction *i = list; i + 1 < end; i++) {
        i->joined = pipe_puts(i->action) && pipe_gets(i[1].action) && i->slot != i[1].slot;
    }
}

#endif // LLMC_SCHEDULE_H
