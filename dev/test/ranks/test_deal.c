// Unit tests of llmc/ranks/deal.h: every matrix for Muon is dealt once, in pieces that meet, and the work is even.
#include "dev/test/test.h"
#include "llmc/ranks/deal.h"

typedef struct {
    ZeroLayout layout;
    Deal deal;
} Dealt;

static Dealt *deal_of(const ModelConfig *config, int num_ranks, int num_owners) {
    Dealt *d = (Dealt *)calloc(1, sizeof(Dealt));
    if (d == NULL) { abort(); }
    zero_layout(&d->layout, config, num_ranks, OPTIMIZER_MUON);
    deal_matrices(&d->deal, &d->layout, num_owners);
    return d;
}

static ModelConfig config_named(const char *name) {
    ModelConfig config = {0, GPT2_VOCAB_SIZE, model_pad_vocab(GPT2_VOCAB_SIZE), 0, 0, 0};
    if (!model_config_from_size(&config, name)) { abort(); }
    return config;
}

// Calls `check` for small and large models on few and many ranks. One owner has everything: one rank, or stage 0.
static void for_each_deal(Test *t, void (*check)(Test *t, const Dealt *d)) {
    static const int rank_counts[] = {1, 2, 3, 5, 8, 64, 512};
    const ModelConfig configs[] = {{1, 1, 128, 1, 1, 1},       {7, 50, 128, 2, 1, 3}, {6, 33, 128, 5, 3, 9},
                                   {8, 64, 128, 2, 2, 16},     config_named("d12"),   config_named("d48"),
                                   config_named("gpt3:c12288")};
    for (size_t c = 0; c < sizeof(configs) / sizeof(configs[0]); c++) {
        for (size_t k = 0; k < sizeof(rank_counts) / sizeof(rank_counts[0]); k++) {
            for (int owners = rank_counts[k]; owners > 0; owners = owners > 1 ? 1 : 0) {
                Dealt *d = deal_of(&configs[c], rank_counts[k], owners);
                check(t, d);
                free(d);
            }
        }
    }
}

// ---- Matrices ----

// The tensors that Muon takes, in the order of the table, and the matrices of each, written out.
static const int taken[] = {PARAM_qkvw, PARAM_attprojw, PARAM_fcw, PARAM_fcprojw}, parts_of[] = {3, 1, 1, 1};
enum { NUM_TAKEN = sizeof(taken) / sizeof(taken[0]) };

static int64_t size_of(const Dealt *d, int tensor) {
    int64_t C = d->layout.config.channels;
    return tensor == PARAM_fcw || tensor == PARAM_fcprojw ? 4 * C * C : C * C;
}

// Each matrix is there once, at its place in its bucket.
static void check_list(Test *t, const Dealt *d) {
    const DealMatrix *m = d->deal.matrices;
    CHECK(t, d->deal.count == 6 * d->layout.config.num_layers, "%d matrices", d->deal.count);
    for (int i = 0; i < NUM_TAKEN; i++) {
        for (int k = 0; k < d->layout.config.num_layers * parts_of[i]; k++, m++) {
            int64_t size = size_of(d, taken[i]);
            int64_t at = zero_tensor_offset(&d->layout, taken[i]) + k % parts_of[i] * size;
            CHECK(t, m->tensor == taken[i] && m->layer == k / parts_of[i], "tensor %d of layer %d, expected %d of %d",
                  m->tensor, m->layer, taken[i], k / parts_of[i]);
            CHECK(t, m->in_bucket == at && m->size == size, "%lld elements at %lld, expected %lld at %lld",
                  (long long)m->size, (long long)m->in_bucket, (long long)size, (long long)at);
            CHECK(t, m->owner >= 0 && m->owner < d->deal.num_owners, "owner %d of %d", m->owner, d->deal.num_owners);
        }
    }
}

TEST(test_each_matrix_is_dealt_once) { for_each_deal(t, check_list); }

// An owner's matrices lie one after another, and deal_batch finds those of each tensor.
static void check_places(Test *t, const Dealt *d) {
    for (int owner = 0; owner < d->deal.num_owners; owner++) {
        int64_t at = 0;
        for (int i = 0; i < NUM_TAKEN; i++) {
            DealBatch batch = deal_batch(&d->deal, taken[i], owner);
            int64_t first = at, count = 0;
            for (int k = 0; k < d->deal.count; k++) {
                const DealMatrix *m = &d->deal.matrices[k];
                if (m->owner != owner || m->tensor != taken[i]) { continue; }
                CHECK(t, m->at == at, "rank %d of %d has a matrix at %lld, expected %lld", owner, d->deal.num_owners,
                      (long long)m->at, (long long)at);
                at += m->size, count++;
            }
            CHECK(t, batch.count == count && (count == 0 || batch.at == first), "%lld at %lld, expected %lld at %lld",
                  (long long)batch.count, (long long)batch.at, (long long)count, (long long)first);
        }
        CHECK(t, deal_share(&d->deal, &d->layout, owner).elements == at, "rank %d holds %lld elements", owner,
              (long long)at);
    }
}

TEST(test_places_of_matrices) { for_each_deal(t, check_places); }

// ---- Pieces ----

// The pieces of a matrix meet, from its first holder to its last, and each lies in the holder's shard.
static void check_pieces(Test *t, const Dealt *d) {
    const ZeroLayout *z = &d->layout;
    for (int k = 0; k < d->deal.count; k++) {
        const DealMatrix *m = &d->deal.matrices[k];
        int first = deal_first_holder(z, m), last = deal_last_holder(z, m);
        int64_t at = m->in_bucket;
        for (int r = 0; r < z->num_ranks; r++) {
            DealPiece piece = deal_piece(z, m, r);
            if (r < first || r > last) {
                CHECK(t, piece.begin >= piece.end, "rank %d has a piece, the holders are %d to %d", r, first, last);
                continue;
            }
            CHECK(t, piece.begin == at && piece.end > at, "rank %d has %lld to %lld, expected from %lld", r,
                  (long long)piece.begin, (long long)piece.end, (long long)at);
            CHECK(t, piece.begin >= zero_begin(z, 1, r) && piece.end <= zero_end(z, 1, r), "not of rank %d's shard", r);
            CHECK(t, piece.end - zero_begin(z, 1, r) <= deal_part(z), "no room for a piece on rank %d", r);
            at = piece.end;
        }
        CHECK(t, at == m->in_bucket + m->size, "the pieces end at %lld", (long long)at);
    }
}

TEST(test_pieces_meet) { for_each_deal(t, check_pieces); }

// ---- Shares ----

// What a rank sends to owners, or gets from holders, is what travels back.
static void check_traffic(Test *t, const Dealt *d) {
    int64_t sent = 0, moved = 0, elements = 0, matrices = 0, C = d->layout.config.channels;
    for (int k = 0; k < d->deal.count; k++) {
        const DealMatrix *m = &d->deal.matrices[k];
        DealPiece own = deal_piece(&d->layout, m, m->owner);
        moved += m->size - max_i64(0, own.end - own.begin);
    }
    for (int r = 0; r < d->layout.num_ranks; r++) {
        DealShare share = deal_share(&d->deal, &d->layout, r);
        sent += share.sent, elements += share.elements, matrices += share.matrices;
    }
    CHECK(t, sent == (d->deal.num_owners > 1 ? 2 * moved : 0), "%lld elements are sent, %lld move", (long long)sent,
          (long long)moved);
    CHECK(t, matrices == d->deal.count && elements == 12 * C * C * d->layout.config.num_layers,
          "%lld elements in %lld matrices", (long long)elements, (long long)matrices);
}

TEST(test_traffic) { for_each_deal(t, check_traffic); }

// The rank with the most work got its last matrix when it had the least, so at most the mean. A large matrix takes as
// much work as three small ones. Enough small ones, dealt last, even the ranks out.
static void check_balance(Test *t, const Dealt *d) {
    DealSpread spread = deal_spread(&d->deal, &d->layout);
    double all = muon_model_flops(&d->layout.config), most = 0.0, least = INFINITY, sum = 0.0;
    double largest = deal_cost(&d->layout, PARAM_fcw), small = deal_cost(&d->layout, PARAM_attprojw),
           slack = 1e-9 * all;
    for (int r = 0; r < d->deal.num_owners; r++) {
        double flops = deal_share(&d->deal, &d->layout, r).flops;
        most = fmax(most, flops), least = fmin(least, flops), sum += flops;
    }
    CHECK(t, fabs(sum - all) <= slack, "all ranks compute %g, the model takes %g", sum, all);
    CHECK(t, fabs(spread.mean_flops - all / d->deal.num_owners) <= slack, "mean %g", spread.mean_flops);
    CHECK(t, spread.most.flops == most && spread.least.flops == least, "from %g to %g, expected %g to %g",
          spread.least.flops, spread.most.flops, least, most);
    CHECK(t, most <= all / d->deal.num_owners + largest + slack, "%g of %g on one of %d ranks", most, all,
          d->deal.num_owners);
    if (4 * d->layout.config.num_layers >= 3 * d->deal.num_owners) {
        CHECK(t, most - least <= small + slack, "%g to %g on %d ranks", least, most, d->deal.num_owners);
    }
}

TEST(test_work_is_even) { for_each_deal(t, check_balance); }

// 24 matrices take 18 C^3 a round and 48 take 6 C^3. Each of 8 ranks has 3 and 6 of them.
TEST(test_d12_on_8_ranks) {
    ModelConfig d12 = config_named("d12");
    Dealt *d = deal_of(&d12, 8, 8);
    DealSpread spread = deal_spread(&d->deal, &d->layout);
    CHECK(t, spread.most.matrices == 9 && spread.least.matrices == 9, "%lld to %lld matrices",
          (long long)spread.least.matrices, (long long)spread.most.matrices);
    double want = MUON_ROUNDS * (3.0 * 18.0 + 6.0 * 6.0) * 768.0 * 768.0 * 768.0;
    CHECK(t, spread.most.flops == want && spread.least.flops == want, "%g to %g operations, expected %g",
          spread.least.flops, spread.most.flops, want);
    for (int r = 0; r < 8; r++) {
        CHECK(t, deal_batch(&d->deal, PARAM_fcw, r).count + deal_batch(&d->deal, PARAM_fcprojw, r).count == 3,
              "rank %d has another number of large matrices", r);
    }
    free(d);
}

// Six matrices on 64 ranks: six ranks have one each. With AdamW there are none.
TEST(test_more_ranks_than_matrices) {
    const ModelConfig config = {8, 64, 128, 1, 2, 16};
    Dealt *d = deal_of(&config, 64, 64);
    for (int r = 0; r < 64; r++) {
        int64_t matrices = deal_share(&d->deal, &d->layout, r).matrices;
        CHECK(t, matrices == (r < 6), "rank %d has %lld", r, (long long)matrices);
    }
    zero_layout(&d->layout, &config, 64, OPTIMIZER_ADAMW);
    deal_matrices(&d->deal, &d->layout, 64);
    CHECK(t, d->deal.count == 0, "%d matrices with AdamW", d->deal.count);
    free(d);
}
