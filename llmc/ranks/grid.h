// The grid of ranks. Each rank has a place on each axis:
//   tp  tensor parallelism: the ranks split each layer (model_part.h)
//   cp  context parallelism: the ranks split each sequence
//   pp  pipeline parallelism: each rank has some of the layers
//   dp  data parallelism: the ranks split the batches
// tp is the innermost axis, because its ranks talk most: they are neighbours on one machine. Ranks that differ in dp
// and cp only hold the weights of one part of the model. Buckets and ZeRO shard them over these ranks (zero.h).
//
// A group of axes is the set of ranks that differ in these axes only.
#ifndef LLMC_GRID_H
#define LLMC_GRID_H

#include "llmc/model/model_part.h"

// The sizes of the axes, or a rank's place on each.
typedef struct {
    int dp, pp, cp, tp;
} RankGrid;

enum { AXIS_TP = 1, AXIS_CP = 2, AXIS_PP = 4, AXIS_DP = 8, DATA_AXES = AXIS_DP | AXIS_CP, ALL_AXES = 15 };

static inline int grid_ranks(const RankGrid *g) { return g->dp * g->pp * g->cp * g->tp; }

static inline int grid_rank(const RankGrid *g, const RankGrid *place) {
    return ((place->dp * g->pp + place->pp) * g->cp + place->cp) * g->tp + place->tp;
}

static inline RankGrid grid_place(const RankGrid *g, int rank) {
    int tp = rank % g->tp, cp = rank / g->tp % g->cp, pp = rank / (g->tp * g->cp) % g->pp;
    RankGrid place = {rank / (g->tp * g->cp * g->pp), pp, cp, tp};
    return place;
}

// Keeps a group's axes, and sets the others to `other`.
static inline RankGrid grid_keep(const RankGrid *g, int axes, int other) {
    RankGrid kept = {axes & AXIS_DP ? g->dp : other, axes & AXIS_PP ? g->pp : other, axes & AXIS_CP ? g->cp : other,
                     axes & AXIS_TP ? g->tp : other};
    return kept;
}

// A rank in a group: its number there, how many ranks the group has, and the first of them, as the run counts.
typedef struct {
    int rank, size, leader;
} GroupPlace;

static inline GroupPlace grid_group(const RankGrid *g, int rank, int axes) {
    RankGrid place = grid_place(g, rank), sizes = grid_keep(g, axes, 1);
    RankGrid inside = grid_keep(&place, axes, 0), outside = grid_keep(&place, ALL_AXES & ~axes, 0);
    GroupPlace group = {grid_rank(&sizes, &inside), grid_ranks(&sizes), grid_rank(g, &outside)};
    return group;
}

// ---- Which grids a model can have ----

// Tells whether tp ranks can split a model: each needs whole KV heads, and kernels and multiplies take rows of 8.
static inline bool grid_splits(const ModelConfig *c, int64_t tp) {
    return c->num_kv_heads % tp == 0 && c->mlp_width % (8 * tp) == 0 && c->padded_vocab_size % (8 * tp) == 0 &&
           c->num_kv_heads / tp * c->head_size % 8 == 0 && c->channels % tp == 0;
}

// Finds the largest size of an axis up to *size that divides `left` ranks, and that a model can have: tp ranks split
// its layers, or it has a layer for each chunk of pp stages.
static inline bool grid_finds(const ModelConfig *c, int axis, int left, int chunks, int *size) {
    int wanted = *size;
    for (;; --*size) {
        bool fits = axis == AXIS_TP ? grid_splits(c, *size) : axis == AXIS_CP || *size * chunks <= c->num_layers;
        if (left % *size == 0 && (fits || *size == 1)) { return *size == wanted; }
    }
}

// Makes the grid of a run of num_ranks ranks. wanted: --tp, --cp, --pp; the rest is data parallel. chunks: of each
// stage.
static inline bool grid_make(RankGrid *g, const ModelConfig *c, int num_ranks, const RankGrid *wanted, int chunks,
                             Error *error) {
    RankGrid near = *wanted;
    int tp = wanted->tp, cp = wanted->cp, pp = wanted->pp, left = num_ranks;
    char stages[40] = "";
    if (!grid_finds(c, AXIS_TP, left, chunks, &near.tp) && left % tp == 0) {
        return fail(error,
                    "--tp: %d ranks cannot share %d KV heads, an MLP of %d channels and %d rows of tokens evenly; give "
                    "--tp %d",
                    tp, c->num_kv_heads, c->mlp_width, c->padded_vocab_size, near.tp);
    }
    if (left % tp != 0) { return fail(error, "--tp: %d does not divide %d ranks; give --tp %d", tp, left, near.tp); }
    left /= tp;
    if (!grid_finds(c, AXIS_CP, left, chunks, &near.cp)) {
        return fail(error, "--cp: %d does not divide %d ranks; give --cp %d", cp, left, near.cp);
    }
    left /= cp;
    if (chunks > 1) { snprintf(stages, sizeof(stages), " of %d chunks", chunks); }
    if (!grid_finds(c, AXIS_PP, left, chunks, &near.pp) && left % pp == 0) {
        return fail(error, "--pp: %d stages%s need %d layers, and the model has %d; give --pp %d", pp, stages,
                    pp * chunks, c->num_layers, near.pp);
    }
    if (left % pp != 0) { return fail(error, "--pp: %d does not divide %d ranks; give --pp %d", pp, left, near.pp); }
    near.dp = left / pp;
    *g = near;
    return true;
}

#endif // LLMC_GRID_H
