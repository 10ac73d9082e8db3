// Context parallelism: attention where ranks share each sequence, and its copies. One device plays all ranks, one after
// another, and this file plays the collectives between them.
#ifndef KERNELS_CONTEXT_CUH
#define KERNELS_CONTEXT_CUH

#include "llmc/layers/context.cuh"
#include "dev/test/layers/kernels_attention.cuh"

// ---- Places ----

// Chunk c of 2 * size belongs to rank c, or if it is in the second half to rank 2 * size - 1 - c. A rank has its chunks
// in order.
static void check_places(Test *t, int size, int T) {
    std::vector<int> rows((size_t)size, 0);
    for (int position = 0; position < T; position++) {
        int c = position * 2 * size / T, rank = c < size ? c : 2 * size - 1 - c, row = rows[(size_t)rank]++;
        ContextPlace place = {size, rank, T};
        int owner = -1, found = context_row(&place, position, &owner);
        CHECK(t, context_position(&place, row) == position && found == row && owner == rank,
              "size %d T %d: position %d is row %d of rank %d, not %d of %d; that row stands at %d", size, T, position,
              found, owner, row, rank, context_position(&place, row));
    }
    for (int rank = 0; rank < size; rank++) {
        ContextPlace place = {size, rank, T};
        CHECK(t, context_rows(&place) == rows[(size_t)rank], "size %d T %d: rank %d has %d rows, not %d", size, T, rank,
              context_rows(&place), rows[(size_t)rank]);
    }
}

TEST(test_context_places) {
    for (int size : {1, 2, 3, 4, 7}) {
        for (int chunk : {1, 5, 64}) { check_places(t, size, 2 * size * chunk); }
    }
    check_places(t, 1, 7); // a rank alone has sequences of any length
    CHECK(t, context_divides(1, 7) && context_divides(3, 12) && !context_divides(3, 9) && !context_divides(2, 6),
          "context_divides");
}

// ---- Ranks ----

static std::string context_name(AttentionShape s, int size) { return attention_name(s) + format(" on %d ranks", size); }

// The shape of one rank's rows.
static AttentionShape rank_shape(AttentionShape s, int size) {
    s.T /= size;
    return s;
}

// Copies rank `rank`'s rows of `whole`, arrays (outer,T,width), from or to `own`, arrays (outer,T/size,width).
static void copy_rank_rows(std::vector<float> *own, std::vector<float> *whole, bool from_whole, ContextPlace place,
                           int64_t width) {
    int64_t outer = (int64_t)whole->size() / place.T / width, rows = context_rows(&place);
    own->resize((size_t)(outer * rows * width));
    for (int64_t i = 0; i < outer * rows * width; i++) {
        int64_t row = i / width, at = row / rows * place.T + context_position(&place, (int)(row % rows));
        float *a = &(*own)[(size_t)i], *b = &(*whole)[(size_t)(at * width + i % width)];
        *(from_whole ? a : b) = *(from_whole ? b : a);
    }
}

static std::vector<float> rank_rows(std::vector<float> whole, ContextPlace place, int64_t width) {
    std::vector<float> own;
    copy_rank_rows(&own, &whole, true, place, width);
    return own;
}

// The results of all ranks, in order of position. parts: the sizes of what the sums for dk and dv add up.
struct ContextResults {
    std::vector<float> out, lse, dqkv, parts;
};

// The GPUs of all ranks. Every buffer that a rank does not share is its own, so that none reads what another has left.
struct ContextRun {
    AttentionShape s, own;
    int size;
    bool simt;
    int64_t row, part;                         // values of a row of k and v; of a rank's rows of k and v
    std::vector<std::vector<float>> qkv, dout; // of each rank
    ContextResults results;
    uint64_t hash = 0;

    ContextRun(AttentionShape s, int size, bool simt, const std::vector<float> &all_qkv,
               const std::vector<float> &all_dout)
        : s(s), own(rank_shape(s, size)), size(size), simt(simt), row(2 * s.KV * s.HS),
          part((int64_t)s.B * own.T * row),
          results({std::vector<float>(all_dout.size()), std::vector<float>((size_t)rows_of(s)),
                   std::vector<float>(all_qkv.size()), std::vector<float>(all_qkv.size())}) {
        for (int rank = 0; rank < size; rank++) {
            qkv.push_back(rank_rows(all_qkv, place(rank), attention_width(s)));
            dout.push_back(rank_rows(all_dout, place(rank), channels_of(s)));
        }
    }
    ContextPlace place(int rank) const { return {size, rank, s.T}; }
    void keep(std::vector<float> *whole, std::vector<float> values, int rank, int64_t width) {
        copy_rank_rows(&values, whole, false, place(rank), width);
    }

    // A rank's forward and backward. Returns its dkv, split by rank.
    std::vector<float> attend(Test *t, int rank, const DeviceArray<floatX> &kv, DeviceArray<floatX> &dqkv) {
        DeviceArray<floatX> rows(qkv[(size_t)rank]), grad(dout[(size_t)rank]), out(outputs_of(own)), dkv(kv.count);
        DeviceArray<floatX> split(kv.count);
        DeviceArray<float> lse(rows_of(own)), delta(rows_of(own));
        Amax amax;
        AttentionContext context = attention_gathered_context(kv.data, own, place(rank));
        attention_forward(out.data, lse.data, rows.data, context, own, 0, amax.data(), simt);
        attention_backward(dqkv.data, dkv.data, grad.data, rows.data, context, out.data, lse.data, delta.data, own, 0,
                           simt);
        context_split_dkv(split.data, dkv.data, own, size, 0);
        cuda_check(cudaDeviceSynchronize());
        keep(&results.out, out.get(), rank, channels_of(s));
        keep(&results.lse, lse.get(), rank, 1);
        amax.check(t, context_name(s, size) + ": out of rank " + std::to_string(rank), out.get());
        hash = 31 * hash + (out.hash() ^ 3 * lse.hash() ^ 5 * dkv.hash());
        return split.get();
    }

    void run(Test *t) {
        DeviceArray<floatX> gathered(size * part), kv(size * part);
        for (int rank = 0; rank < size; rank++) { // the all-gather
            DeviceArray<floatX> rows(qkv[(size_t)rank]);
            context_pack_kv(gathered.data + rank * part, rows.data, own, 0);
        }
        context_order_kv(kv.data, gathered.data, own, size, 0);
        std::vector<float> sums((size_t)(size * part), 0.0f), sizes(sums);
        std::vector<DeviceArray<floatX> *> dqkvs;
        for (int rank = 0; rank < size; rank++) { // the reduce-scatter
            dqkvs.push_back(new DeviceArray<floatX>(inputs_of(own)));
            std::vector<float> addends = attend(t, rank, kv, *dqkvs.back());
            for (size_t i = 0; i < sums.size(); i++) { sums[i] += addends[i], sizes[i] += fabsf(addends[i]); }
        }
        for (int rank = 0; rank < size; rank++) {
            auto own_part = [&](const std::vector<float> &parts) {
                return std::vector<float>(parts.begin() + rank * part, parts.begin() + (rank + 1) * part);
            };
            DeviceArray<floatX> dkv(own_part(sums)), bound(own_part(sizes)), bounds(inputs_of(own));
            context_unpack_dkv(dqkvs[(size_t)rank]->data, dkv.data, own, 0);
            bounds.clear();
            context_unpack_dkv(bounds.data, bound.data, own, 0);
            keep(&results.dqkv, dqkvs[(size_t)rank]->get(), rank, attention_width(s));
            keep(&results.parts, bounds.get(), rank, attention_width(s));
            delete dqkvs[(size_t)rank];
        }
    }
};

// All ranks together against the CPU trainer on whole sequences. A query's out, lse and dq have the bits that they have
// on one rank, because a query meets its keys in equal tiles. Each rank rounds its dk and dv: u * parts.
static void check_context(Test *t, AttentionShape s, int size, bool simt = false) {
    std::string name = context_name(s, size) + (simt ? " simt" : "");
    std::vector<float> qkv = random_values(inputs_of(s), 1.0f, 60), dout = random_values(outputs_of(s), 1.0f, 61);
    AttentionVersion version = simt ? ATTENTION_SIMT : ATTENTION_AS_THE_MODEL;
    ContextRun ranks(s, size, simt, qkv, dout);
    ranks.run(t);
    const ContextResults &got = ranks.results;
    AttentionRun alone(s, qkv, dout);
    alone.run(version);
    int64_t C = channels_of(s);
    check_equal(t, name + ": out of one rank", got.out, alone.out.get());
    check_equal(t, name + ": lse of one rank", got.lse, alone.lse.get());
    check_equal(t, name + ": dq of one rank", columns_of(got.dqkv, 0, C, attention_width(s)),
                columns_of(alone.dqkv.get(), 0, C, attention_width(s)));
    check_attention_results(t, name, s, version, qkv, dout, got.out, got.lse, got.dqkv, got.parts);
}

// Chunks below, at and above a tile of queries, heads that share keys, sequences beside each other, and every kernel.
TEST(test_context_attention) {
    check_context(t, {1, 68, 4, 2, 64}, 2);
    check_context(t, {1, 40, 8, 8, 33}, 4);
    check_context(t, {2, 132, 2, 1, 80}, 2);
    check_context(t, {1, 35, 2, 1, 64}, 1);
    if (test_is_quick()) { return; }
    check_context(t, {2, 30, 3, 3, 16}, 3);
    check_context(t, {1, 280, 1, 1, 64}, 2, true);
    for (int HS : {16, 64, 80, 96, 128}) {
        check_context(t, {1, 280, 1, 1, HS}, 2);
        for (int size : {2, 3, 4}) {
            check_context(t, {1, 2 * size * 5, 4, 2, HS}, size);
            check_context(t, {1, 2 * size * 17, 3, 1, HS}, size, true);
        }
    }
    check_context(t, {1, 520, 1, 1, 64}, 2); // two tiles of queries in a chunk
    check_context(t, {1, 24, 1, 1, 256}, 4);
}

// Small chunks: most blocks of keys have no query of a rank, and a tile of keys lies in several chunks.
TEST(test_context_short_chunks) {
    for (int HS : {8, 64, 128}) {
        for (int size : {2, 4}) { check_context(t, {1, 2 * size, 2, 1, HS}, size); }
    }
    if (!test_is_quick()) { check_context(t, {1, 320, 1, 1, 128}, 32); }
}

TEST(test_context_schedules) {
    for (AttentionShape s : {AttentionShape{1, 136, 2, 1, 64}, AttentionShape{1, 60, 2, 1, 8}}) {
        for_each_schedule(t, context_name(s, 2).c_str(), [&] {
            ContextRun ranks(s, 2, false, random_values(inputs_of(s), 1.0f, 62),
                             random_values(outputs_of(s), 1.0f, 63));
            ranks.run(t);
            return ranks.hash ^ hash_of(ranks.results.dqkv);
        });
    }
}

#endif // KERNELS_CONTEXT_CUH
