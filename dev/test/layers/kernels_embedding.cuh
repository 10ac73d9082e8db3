// The embedding's kernels against the CPU's, with the cases that break them: a token in all rows, runs that end at the
// borders of a block's tile, T < maxT, widths and row counts that fill no block.
//
// Gradients are random_eighths, and the comparison needs no tolerance.
#ifndef KERNELS_EMBEDDING_CUH
#define KERNELS_EMBEDDING_CUH

#include <algorithm>
#include <numeric>

#include "llmc/layers/embedding.cuh"
#include "dev/test/layers/gpu_test.h"

typedef struct {
    int B, T, C, V, maxT;
} EmbeddingShape;

// One and more rows, widths of models and the widest, T < maxT, and one token in all rows.
static const EmbeddingShape embedding_shapes[] = {
    {1, 1, 8, 1, 1},    {3, 5, 24, 50, 5},  {5, 7, 80, 11, 9},   {1, 33, 384, 9, 64}, {2, 3, 768, 7, 3},
    {1, 2, 1600, 3, 2}, {1, 3, 3456, 3, 5}, {1, 1, 12288, 2, 1}, {7, 75, 72, 40, 80}, {103, 5, 72, 1, 8}};

// Returns the rows sorted by token, those of -1 first. Rows of one token keep their order.
static std::vector<int32_t> embedding_order(Test *t, const std::vector<int32_t> &tokens, int V) {
    std::vector<int32_t> order(tokens.size(), -1), want(tokens.size()), counts((size_t)V + 1);
    std::iota(want.begin(), want.end(), 0);
    std::stable_sort(want.begin(), want.end(),
                     [&](int32_t a, int32_t b) { return tokens[(size_t)a] < tokens[(size_t)b]; });
    embedding_order_tokens(order.data(), tokens.data(), (int64_t)tokens.size(), V, counts.data());
    CHECK(t, order == want, "%zu tokens below %d are not in order", tokens.size(), V);
    return order;
}

TEST(test_embedding_order) {
    for (int V : {1, 2, 17, 50257}) { embedding_order(t, random_ids(1000, V, 4), V); }
}

typedef struct {
    std::vector<float> dwte, dwpe;
} EmbeddingGradients;

// Two backward passes (the second adds to the first) from the given gradients, on the GPU.
static EmbeddingGradients embedding_run_backward(Test *t, const EmbeddingShape &s, const std::vector<int32_t> &tokens,
                                                 const std::vector<float> &dout, const EmbeddingGradients &start,
                                                 int block_size, const ContextPlace *place) {
    DeviceArray<float> d_dwte(start.dwte), d_dwpe(start.dwpe);
    DeviceArray<floatX> d_dout(dout);
    DeviceArray<int32_t> d_tokens(tokens), d_order(embedding_order(t, tokens, s.V));
    for (int step = 0; step < 2; step++) {
        embedding_backward(d_dwte.data, d_dwpe.data, d_dout.data, d_tokens.data, d_order.data, s.B, s.T, s.C, 0, place,
                           block_size);
    }
    return {d_dwte.get(), d_dwpe.get()};
}

// The rows of wpe or dwpe at these positions; for the CPU, whose rows begin at position 0.
static std::vector<float> embedding_rows_at(const std::vector<float> &from, const std::vector<int32_t> &positions,
                                            int C) {
    std::vector<float> rows;
    for (int32_t p : positions) { rows.insert(rows.end(), from.begin() + p * C, from.begin() + (p + 1) * C); }
    return rows;
}

// The forward, with positions and without, and the backward. tokens (N) are in -1 .. V-1: -1 is another rank's. For the
// CPU it is token V, whose row of wte is 0. place: of a rank that has some of the positions; NULL: of one that has all.
// Rows of dwte whose token does not occur, and rows of dwpe that have no position here, must keep their bits: they are
// compared too.
static void embedding_check(Test *t, EmbeddingShape s, const std::vector<int32_t> &tokens, int block_size = 256,
                            const ContextPlace *place = NULL) {
    int64_t n = (int64_t)tokens.size() * s.C;
    size_t own = (size_t)(s.V * s.C), all = own + (size_t)s.C;
    std::string name = format(", N %d, C %d, V %d, block %d", s.B * s.T, s.C, s.V, block_size);
    std::vector<int32_t> cpu_tokens = tokens;
    std::replace(cpu_tokens.begin(), cpu_tokens.end(), -1, s.V);
    std::vector<float> wte = random_values((int64_t)own, 1.0f, 1), wpe = random_values((int64_t)s.maxT * s.C, 0.3f, 2);
    DeviceArray<floatX> d_wte(wte), d_wpe(wpe), d_out(n);
    std::vector<int32_t> positions;
    for (int i = 0; i < s.T; i++) { positions.push_back(place != NULL ? context_position(place, i) : i); }
    DeviceArray<int32_t> d_tokens(tokens);
    wte.resize(all, 0.0f);
    for (bool with_positions : {true, false}) {
        std::vector<float> want((size_t)n), rows = embedding_rows_at(wpe, positions, s.C);
        if (!with_positions) { std::fill(rows.begin(), rows.end(), 0.0f); }
        cpu_embedding_forward(want.data(), cpu_tokens.data(), wte.data(), rows.data(), s.B, s.T, s.C);
        for (float &x : want) { x = rounded(x); } // one sum, rounded once: no other bits are right
        embedding_forward(d_out.data, d_tokens.data, d_wte.data, with_positions ? d_wpe.data : NULL, s.B, s.T, s.C, 0,
                          place, block_size);
        check_equal(t, "out" + name, d_out.get(), want);
    }
    std::vector<float> dout = random_eighths(n, 5);
    EmbeddingGradients start = {random_eighths((int64_t)own, 6), random_eighths((int64_t)s.maxT * s.C, 7)};
    EmbeddingGradients got = embedding_run_backward(t, s, tokens, dout, start, block_size, place), want = start;
    want.dwte.resize(all);
    std::vector<float> rows = embedding_rows_at(want.dwpe, positions, s.C);
    for (int step = 0; step < 2; step++) {
        cpu_embedding_backward(want.dwte.data(), rows.data(), dout.data(), cpu_tokens.data(), s.B, s.T, s.C);
    }
    want.dwte.resize(own);
    for (size_t i = 0; i < rows.size(); i++) {
        want.dwpe[(size_t)positions[i / (size_t)s.C] * (size_t)s.C + i % (size_t)s.C] = rows[i];
    }
    check_equal(t, "dwte" + name, got.dwte, want.dwte);
    check_equal(t, "dwpe" + name, got.dwpe, want.dwpe);
}

TEST(test_embedding) {
    auto check = [&](const EmbeddingShape &s, int block_size) {
        embedding_check(t, s, random_ids((int64_t)s.B * s.T, s.V, 8), block_size);
    };
    for (const EmbeddingShape &shape : embedding_shapes) { check(shape, 256); }
    for (int block_size : {32, 96, 1024}) { check({3, 11, 80, 5, 16}, block_size); }
}

// Rows in random order whose tokens come in these numbers, token 0 first: where runs begin and end in the sorted order
// is then known.
static std::vector<int32_t> embedding_runs(const std::vector<int> &lengths) {
    std::vector<int32_t> sorted;
    int32_t token = 0;
    for (int length : lengths) { sorted.insert(sorted.end(), (size_t)length, token++); }
    std::vector<int32_t> tokens(sorted.size());
    for (size_t i = 0; i < tokens.size(); i++) { tokens[i] = sorted[rand_permute(11, 12, i, tokens.size())]; }
    return tokens;
}

// Runs on both sides of a tile's border (512), across it, and as close together as long ones can be.
TEST(test_embedding_runs) {
    std::vector<std::vector<int>> cases = {
        {480, 32, 1, 33},           // ends at the border, short
        {479, 33, 31, 32},          // ends at the border, long
        {500, 32, 33, 1, 32},       // short across it
        {511, 33, 2, 600},          // long across it, with one row before it
        {511, 32, 1, 1},            // short, with one row before it
        {512, 1, 511, 40},          // whole tiles
        {0, 33, 33, 33, 0, 33, 33}, // long ones next to each other, tokens that do not occur between them
        {1, 32, 33, 32, 33, 1, 34}, // in turns
        {300, 0, 300, 300, 300, 1}, // several tiles each
    };
    // One token in all rows: around the length at which the whole block takes over, one tile and two.
    for (int rows : {31, 32, 33, 34, 511, 512, 513, 1025}) { cases.push_back({0, rows}); }
    for (const std::vector<int> &lengths : cases) {
        std::vector<int32_t> tokens = embedding_runs(lengths);
        int N = (int)tokens.size();
        embedding_check(t, {1, N, 8, (int)lengths.size(), N}, tokens);
    }
}

// Sums that are not exact: within the tolerance of the longest, and equal bits in any order of blocks and warps.
TEST(test_embedding_rounding) {
    EmbeddingShape s = {9, 75, 40, 12, 80};
    int64_t N = (int64_t)s.B * s.T;
    std::vector<int32_t> tokens = random_ids(N, s.V, 13);
    std::fill(tokens.begin(), tokens.begin() + 300, 7);
    std::vector<float> dout = random_values(N * s.C, 0.7f, 14);
    EmbeddingGradients start = {std::vector<float>((size_t)(s.V * s.C)), std::vector<float>((size_t)(s.maxT * s.C))};
    EmbeddingGradients want = start, got;
    for_each_schedule(t, "embedding_backward", [&] {
        got = embedding_run_backward(t, s, tokens, dout, start, 256, NULL);
        return hash_of(got.dwte) ^ hash_of(got.dwpe) * 3;
    });
    for (int step = 0; step < 2; step++) {
        cpu_embedding_backward(want.dwte.data(), want.dwpe.data(), dout.data(), tokens.data(), s.B, s.T, s.C);
    }
    check_values(t, "dwte", got.dwte, want.dwte, sum_tolerance(N) * largest(want.dwte), 0.0);
    check_values(t, "dwpe", got.dwpe, want.dwpe, sum_tolerance(s.B) * largest(want.dwpe), 0.0);
}

// No token, some and all are another rank's. Their run, which comes first, ends beside long and short runs and at the
// border of a tile. A rank has the second and the seventh eighth of the positions.
TEST(test_embedding_shared) {
    const std::vector<int> cases[] = {{0, 40, 2}, {66, 0, 0},   {1, 33, 32},  {33, 40, 1}, {32, 1, 33},
                                      {40, 600},  {511, 33, 2}, {512, 34, 2}, {600, 1, 35}};
    for (const std::vector<int> &lengths : cases) {
        std::vector<int32_t> tokens = embedding_runs(lengths);
        for (int32_t &token : tokens) { token--; }
        int N = (int)tokens.size(), B = N % 2 == 0 ? 2 : 1, T = N / B;
        const ContextPlace place = {4, 1, 4 * T};
        embedding_check(t, {B, T, 24, 3, 4 * T}, tokens, 256, &place);
    }
}

#endif // KERNELS_EMBEDDING_CUH
