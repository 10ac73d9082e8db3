// Unit tests of the grid of ranks: places, groups, and the grids that a model can have.
#include "dev/test/refused.h"
#include "llmc/ranks/grid.h"

static const RankGrid grids[] = {{1, 1, 1, 1}, {3, 1, 1, 1}, {1, 1, 1, 4}, {2, 3, 1, 1}, {1, 2, 3, 1}, {2, 3, 4, 5}};
enum { NUM_GRIDS = COUNT_OF(grids) };

// Goes through all places, tp innermost.
TEST(test_places) {
    for (const RankGrid *g = grids; g < grids + NUM_GRIDS; g++) {
        for (int k = 0, cp = g->cp, pp = g->pp, tp = g->tp; k < grid_ranks(g); k++) {
            RankGrid place = grid_place(g, k), want = {k / tp / cp / pp, k / tp / cp % pp, k / tp % cp, k % tp};
            bool right = memcmp(&place, &want, sizeof(want)) == 0 && grid_rank(g, &want) == k;
            CHECK(t, right, "rank %d is at %d %d %d %d", k, place.dp, place.pp, place.cp, place.tp);
        }
    }
}

// Two ranks are in one group of axes if all their other axes are equal. A group counts its ranks in the run's order.
static void check_group(Test *t, const RankGrid *g, int axes, int rank) {
    GroupPlace group = grid_group(g, rank, axes), want = {0, 0, rank};
    RankGrid own = grid_place(g, rank);
    for (int other = grid_ranks(g) - 1; other >= 0; other--) {
        RankGrid at = grid_place(g, other);
        bool apart[] = {at.tp != own.tp, at.cp != own.cp, at.pp != own.pp, at.dp != own.dp}, outside = false;
        for (int i = 0; i < 4; i++) { outside = outside || (apart[i] && !(axes & 1 << i)); } // 1 << i: AXIS_TP ..
        if (!outside) { want.leader = other, want.rank += other < rank, want.size++; }
    }
    CHECK(t, memcmp(&group, &want, sizeof(want)) == 0, "axes %d: rank %d is %d of %d behind %d", axes, rank, group.rank,
          group.size, group.leader);
}

TEST(test_groups) {
    for (int k = 0; k < NUM_GRIDS * (ALL_AXES + 1); k++) {
        const RankGrid *g = &grids[k % NUM_GRIDS];
        for (int rank = 0; rank < grid_ranks(g); rank++) { check_group(t, g, k / NUM_GRIDS, rank); }
    }
}

TEST(test_grids_of_a_model) {
    const ModelConfig d12 = GPT2_CONFIG(8, 64, 128, 12, 12, 768);
    const struct {
        RankGrid wanted; // dp: of the grid; 0: refused
        int ranks, chunks;
        const char *says, *gives;
    } cases[] = {{{3, 4, 2, 1}, 24, 3, "", ""},
                 {{1, 12, 1, 2}, 24, 1, "", ""},
                 {{0, 1, 1, 3}, 8, 1, "--tp: 3 does not divide 8 ranks", "; give --tp 2"},
                 {{0, 1, 1, 8}, 8, 1, "--tp: 8 ranks cannot share 12 KV heads, an MLP of 3072 ", "; give --tp 4"},
                 {{0, 1, 4, 4}, 8, 1, "--cp: 4 does not divide 2 ranks", "; give --cp 2"},
                 {{0, 5, 1, 1}, 16, 1, "--pp: 5 does not divide 16 ranks", "; give --pp 4"},
                 {{0, 8, 1, 2}, 16, 2, "--pp: 8 stages of 2 chunks need 16 layers", "has 12; give --pp 4"}};
    FOR_EACH(i, cases) {
        RankGrid grid = {0, 0, 0, 0}, wanted = cases[i].wanted;
        bool ok = grid_make(&grid, &d12, cases[i].ranks, &wanted, cases[i].chunks, &error);
        bool says = strstr(error.text, cases[i].says) != NULL && strstr(error.text, cases[i].gives) != NULL;
        CHECK(t, ok == (wanted.dp > 0) && says && grid.dp == wanted.dp, "case %zu: %s", i, error.text);
    }
}
