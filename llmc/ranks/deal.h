// Deals the matrices that Muon updates (llmc/model/muon.h) to the ranks.
//
// Muon's rounds need a whole matrix, but in stages 1 to 3 a rank holds shards that are cut anywhere (zero.h). So each
// matrix has an owner. Every rank computes the momentum of its shard and sends its pieces to the owners. The owner runs
// the rounds and sends the pieces of the result back, and every rank updates its shard. The momentum thus lies where
// AdamW's m lies, and checkpoints do not depend on the number of ranks.
//
// The matrices are dealt by cost, the largest first, each to the rank with the least work so far.
#ifndef LLMC_DEAL_H
#define LLMC_DEAL_H

#include "llmc/model/muon.h"
#include "llmc/ranks/zero.h"

#define DEAL_MAX_MATRICES 6000 // model_check_config allows 1000 layers, each of 6 matrices

typedef struct {
    int tensor, layer, owner;
    int64_t in_bucket, size; // first element, counted in the bucket, and their number
    int64_t at;              // first element in the owner's array of its matrices
} DealMatrix;

typedef struct {
    int count, num_owners;
    DealMatrix matrices[DEAL_MAX_MATRICES]; // tensor by tensor, then layer by layer
} Deal;

static inline double deal_cost(const ZeroLayout *z, int tensor) {
    return muon_flops(muon_rows(&z->config, tensor), muon_cols(&z->config, tensor));
}

// Lists the matrices, tensor by tensor.
static inline void deal_list(Deal *deal, const ZeroLayout *z) {
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        if (!muon_takes(OPTIMIZER_MUON, i)) { continue; }
        int64_t size = muon_rows(&z->config, i) * muon_cols(&z->config, i);
        for (int k = 0; k < z->config.num_layers * param_specs[i].muon; k++) {
            int layer = k / param_specs[i].muon, part = k % param_specs[i].muon;
            DealMatrix matrix = {i, layer, 0, zero_tensor_offset(z, i) + part * size, size, 0};
            deal->matrices[deal->count++] = matrix;
        }
    }
}

// Gives the matrices of one cost to the ranks with the least work.
static inline void deal_out(Deal *deal, const ZeroLayout *z, double cost, double *work, int owners) {
    for (int k = 0; k < deal->count; k++) {
        if (deal_cost(z, deal->matrices[k].tensor) != cost) { continue; }
        int least = 0;
        for (int r = 1; r < owners; r++) { least = work[r] < work[least] ? r : least; }
        deal->matrices[k].owner = least;
        work[least] += cost;
    }
}

// Returns the largest cost below a limit, 0 if there is none.
static inline double deal_next_cost(const ZeroLayout *z, double limit) {
    double next = 0.0;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        if (!muon_takes(OPTIMIZER_MUON, i)) { continue; }
        double cost = deal_cost(z, i);
        if (cost < limit && cost > next) { next = cost; }
    }
    return next;
}

// Deals all matrices to num_owners ranks. 1: a rank that holds everything. No matrices: the run has no Muon.
static inline void deal_matrices(Deal *deal, const ZeroLayout *z, int num_owners) {
    double work[DEAL_MAX_MATRICES] = {0.0};
    deal->count = 0, deal->num_owners = num_owners;
    if (z->muon[1] == 0) { return; }
    deal_list(deal, z);
    int owners = (int)min_i64(num_owners, deal->count); // further ranks get none
    for (double cost = deal_next_cost(z, INFINITY); cost > 0.0; cost = deal_next_cost(z, cost)) {
        deal_out(deal, z, cost, work, owners);
    }
    for (int r = 0; r < owners; r++) {
        int64_t at = 0;
        for (int k = 0; k < deal->count; k++) {
            if (deal->matrices[k].owner == r) { deal->matrices[k].at = at, at += deal->matrices[k].size; }
        }
    }
}

// ---- Pieces ----

// Returns the most elements of a block's matrices in one shard.
static inline int64_t deal_part(const ZeroLayout *z) { return min_i64(zero_shard(z, 1), zero_muon(z, 1)); }

// Return the first and the last rank whose shard has elements of a matrix.
static inline int deal_first_holder(const ZeroLayout *z, const DealMatrix *m) {
    return (int)(m->in_bucket / zero_shard(z, 1));
}
static inline int deal_last_holder(const ZeroLayout *z, const DealMatrix *m) {
    return (int)((m->in_bucket + m->size - 1) / zero_shard(z, 1));
}

// The elements of a matrix in a rank's shard, counted in the bucket. begin >= end: none.
typedef struct {
    int64_t begin, end;
} DealPiece;

static inline DealPiece deal_piece(const ZeroLayout *z, const DealMatrix *m, int rank) {
    DealPiece piece = {max_i64(m->in_bucket, zero_begin(z, 1, rank)),
                       min_i64(m->in_bucket + m->size, zero_end(z, 1, rank))};
    return piece;
}

// ---- A rank's share ----

// The matrices of one tensor that a rank owns. They lie one after another.
typedef struct {
    int64_t at, count; // first element in the owner's array, number of matrices
} DealBatch;

static inline DealBatch deal_batch(const Deal *deal, int tensor, int owner) {
    DealBatch batch = {0, 0};
    for (int k = deal->count - 1; k >= 0; k--) {
        const DealMatrix *m = &deal->matrices[k];
        if (m->owner == owner && m->tensor == tensor) { batch.at = m->at, batch.count++; }
    }
    return batch;
}

// What a rank has to do in a step: matrices, their elements, the operations of their rounds, the elements that it sends
// to other ranks in both directions.
typedef struct {
    int64_t matrices, elements, sent;
    double flops;
} DealShare;

static inline DealShare deal_share(const Deal *deal, const ZeroLayout *z, int rank) {
    DealShare share = {0, 0, 0, 0.0};
    for (int k = 0; k < deal->count; k++) {
        const DealMatrix *m = &deal->matrices[k];
        DealPiece piece = deal_piece(z, m, rank);
        int64_t held = max_i64(0, piece.end - piece.begin);
        bool owns = m->owner == rank;
        if (owns) { share.matrices++, share.elements += m->size, share.flops += deal_cost(z, m->tensor); }
        if (deal->num_owners > 1) { share.sent += owns ? m->size - held : held; }
    }
    return share;
}

// The most and the least that ranks have to do.
typedef struct {
    DealShare most, least;
    double mean_flops;
} DealSpread;

static inline DealSpread deal_spread(const Deal *deal, const ZeroLayout *z) {
    DealSpread s = {deal_share(deal, z, 0), deal_share(deal, z, 0), 0.0};
    for (int r = 0; r < deal->num_owners; r++) {
        DealShare share = deal_share(deal, z, r);
        s.most.matrices = max_i64(s.most.matrices, share.matrices);
        s.least.matrices = min_i64(s.least.matrices, share.matrices);
        s.most.elements = max_i64(s.most.elements, share.elements);
        s.least.elements = min_i64(s.least.elements, share.elements);
        s.most.sent = max_i64(s.most.sent, share.sent), s.least.sent = min_i64(s.least.sent, share.sent);
        s.most.flops = fmax(s.most.flops, share.flops), s.least.flops = fmin(s.least.flops, share.flops);
        s.mean_flops += share.flops / deal->num_owners;
    }
    return s;
}

// ---- For people ----

// Prints what a rank has to do. `least` differs from `most` in a row for all ranks.
static inline void deal_print_row(const char *rank, const DealShare *least, const DealShare *most, double mean_flops,
                                  int sizeof_param, FILE *out) {
    say(out, "%-8s %9lld to %-9lld %10.3f %15.2f %15.2f\n", rank, (long long)least->matrices, (long long)most->matrices,
        most->flops / mean_flops, 0x1p-20 * sizeof_param * (double)most->elements,
        0x1p-20 * sizeof_param * (double)most->sent);
}

// Prints the most that a rank has to do, and with each_rank what each rank has to do.
static inline void deal_print(const Deal *deal, const ZeroLayout *z, int sizeof_param, bool each_rank, FILE *out) {
    if (deal->num_owners == 1) {
        say(out, "Every rank works on all of them; --zero-stage (-z) 1 to 3 deal them out.\n");
        return;
    }
    DealSpread s = deal_spread(deal, z);
    say(out, "They are dealt to %d ranks, the largest first. 1 is the mean of the work.\n\n", deal->num_owners);
    say(out, "%-8s %22s %10s %15s %15s\n", "rank", "matrices", "work", "MiB to hold", "MiB to send");
    deal_print_row("each", &s.least, &s.most, s.mean_flops, sizeof_param, out);
    for (int r = 0; each_rank && r < deal->num_owners; r++) {
        DealShare share = deal_share(deal, z, r);
        char rank[16];
        snprintf(rank, sizeof(rank), "%d", r);
        deal_print_row(rank, &share, &share, s.mean_flops, sizeof_param, out);
    }
}

#endif // LLMC_DEAL_H
