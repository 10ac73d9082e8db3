// Unit tests of the sharding arithmetic: every element of the model is owned once, at the place that all sides compute.
#include "dev/test/test.h"
#include "llmc/ranks/zero.h"

static const int rank_counts[] = {1, 2, 3, 4, 5, 7, 8, 16, 64, 512};
enum { NUM_RANK_COUNTS = COUNT_OF(rank_counts) };

// The order of tensors in the buckets, written out.
static const int bucket0_order[] = {PARAM_wte, PARAM_wpe, PARAM_lnfw, PARAM_lnfb};
static const int block_order[] = {PARAM_qkvw, PARAM_attprojw, PARAM_fcw,      PARAM_fcprojw, PARAM_qkvb, PARAM_fcb,
                                  PARAM_ln1w, PARAM_ln1b,     PARAM_attprojb, PARAM_ln2w,    PARAM_ln2b, PARAM_fcprojb};

static ModelConfig config_of(int max_seq_len, int vocab_size, int num_layers, int num_heads, int channels) {
    ModelConfig config =
        GPT2_CONFIG(max_seq_len, vocab_size, model_pad_vocab(vocab_size), num_layers, num_heads, channels);
    return config;
}

enum { NUM_SMALL = 6, NUM_CONFIGS = NUM_SMALL + NUM_MODEL_SIZES };

// Small and odd ones first, then all sizes that have a name.
static ModelConfig config_number(int c) {
    static const int small[NUM_SMALL][5] = {{1, 1, 1, 1, 1},   {3, 10, 1, 1, 5},  {7, 50, 2, 1, 3},
                                            {5, 130, 3, 1, 7}, {8, 64, 2, 2, 16}, {6, 33, 5, 3, 9}};
    if (c < NUM_SMALL) { return config_of(small[c][0], small[c][1], small[c][2], small[c][3], small[c][4]); }
    ModelConfig config = config_of(0, GPT2_VOCAB_SIZE, 0, 0, 0);
    model_config_from_size(&config, model_sizes[c - NUM_SMALL].name);
    return config;
}

// Calls `check` for every config and number of ranks.
static void for_each_layout(Test *t, void (*check)(Test *t, const ZeroLayout *z)) {
    for (int k = 0; k < NUM_CONFIGS * NUM_RANK_COUNTS; k++) {
        ZeroLayout z;
        ModelConfig config = config_number(k / NUM_RANK_COUNTS);
        ModelPart part = model_whole(&config);
        zero_layout(&z, &part, rank_counts[k % NUM_RANK_COUNTS], OPTIMIZER_ADAMW);
        check(t, &z);
    }
}

static int64_t tensor_size(const ZeroLayout *z, int i) {
    return param_size(&z->config, i) / param_layers(&z->config, i);
}

// ---- Buckets ----

static void check_bucket_order(Test *t, const ZeroLayout *z, int b, const int *order, int n) {
    int64_t offset = 0, decayed = 0;
    for (int k = 0; k < n; k++) {
        CHECK(t, zero_tensor_offset(z, order[k]) == offset, "%s at %lld, expected %lld", param_specs[order[k]].name,
              (long long)zero_tensor_offset(z, order[k]), (long long)offset);
        CHECK(t, zero_bucket_of(z, order[k], b - 1) == b, "%s of bucket %d", param_specs[order[k]].name, b);
        offset += tensor_size(z, order[k]);
        if (param_specs[order[k]].decay == DECAY) { decayed = offset; }
    }
    CHECK(t, zero_size(z, b) == offset, "size of bucket %d: %lld", b, (long long)zero_size(z, b));
    CHECK(t, zero_decayed(z, b) == decayed && decayed > 0 && decayed < offset, "boundary in bucket %d: %lld", b,
          (long long)zero_decayed(z, b));
}

static void check_order(Test *t, const ZeroLayout *z) {
    CHECK(t, z->num_buckets == 1 + z->config.num_layers, "%d buckets", z->num_buckets);
    check_bucket_order(t, z, 0, bucket0_order, sizeof(bucket0_order) / sizeof(int));
    for (int b = 1; b < z->num_buckets; b++) {
        check_bucket_order(t, z, b, block_order, sizeof(block_order) / sizeof(int));
    }
}

// The tensors of a bucket in order, decay first, without a gap.
TEST(test_bucket_order) { for_each_layout(t, check_order); }

static void check_alignment(Test *t, const ZeroLayout *z) {
    int64_t whole = 0, part = 0, first = 0;
    for (int b = 0; b <= z->num_buckets; b++) {
        bool follows = zero_offset(z, b) == whole && zero_shard_offset(z, b) == part && zero_first_index(z, b) == first;
        CHECK(t, follows, "bucket %d of %d ranks at %lld, its shard at %lld, from %lld", b, z->num_ranks,
              (long long)zero_offset(z, b), (long long)zero_shard_offset(z, b), (long long)zero_first_index(z, b));
        if (b == z->num_buckets) { break; }
        int64_t shard = zero_shard(z, b), padded = zero_padded(z, b), padding = padded - zero_size(z, b);
        bool fits = padding >= 0 && padding < (int64_t)ZERO_ALIGNMENT * z->num_ranks;
        CHECK(t, fits && shard > 0 && shard % ZERO_ALIGNMENT == 0 && padded == shard * z->num_ranks,
              "bucket %d of %d ranks: a shard of %lld, %lld with padding", b, z->num_ranks, (long long)shard,
              (long long)padded);
        whole += padded, part += shard, first += zero_size(z, b);
    }
    CHECK(t, first == model_num_params(&z->config), "the buckets hold %lld elements", (long long)first);
}

TEST(test_offsets_and_alignment) { for_each_layout(t, check_alignment); }

// ---- Parts of a model ----

// Where each element of a tensor of the tensor-parallel rank lies in the whole tensor, written out from the meaning of
// the table: thirds of rows are q, k and v, each split by heads.
static int64_t whole_place(const ModelPart *part, int i, int64_t e) {
    int64_t rows = param_rows(&part->local, i), cols = param_cols(&part->local, i);
    int64_t whole_cols = param_cols(&part->whole, i), row = e / cols, col = e % cols;
    bool vector = param_specs[i].rows == DIM_NONE;
    if (vector) { row = col, rows = cols, col = 0, cols = whole_cols = 1; }
    switch (param_specs[i].split) {
    case SPLIT_ROWS: row += part->at.tp_rank * rows; break;
    case SPLIT_COLS: col += part->at.tp_rank * cols; break;
    case SPLIT_THIRDS:
        row = row / (rows / 3) * rows / 3 * part->at.tp + part->at.tp_rank * rows / 3 + row % (rows / 3);
        break;
    default: break;
    }
    return row * whole_cols + col;
}

// Counts how often each element of the model is in a piece, and checks where the piece says that it lies.
static void count_pieces(Test *t, const ZeroLayout *z, uint8_t *count) {
    ZeroPiece pieces[ZERO_MAX_PIECES];
    for (int b = 0; b < z->num_buckets; b++) {
        int64_t at = 0;
        for (int rank = 0; rank < z->num_ranks; rank++) {
            int n = zero_pieces(z, b, zero_begin(z, b, rank), zero_end(z, b, rank), pieces);
            for (int p = 0; p < n; p++) {
                const ZeroPiece *piece = &pieces[p];
                int i = piece->tensor;
                int64_t whole = param_rows(&z->part.whole, i) * param_cols(&z->part.whole, i);
                int64_t file = param_offset(&z->part.whole, i) + piece->layer * whole;
                int64_t index = zero_first_index(z, b) + z->whole_offset[i];
                for (int64_t e = 0; e < piece->strips * piece->count; e++, at++) {
                    int64_t skipped = e / piece->count * piece->stride + e % piece->count;
                    int64_t place = whole_place(&z->part, i, at - zero_tensor_offset(z, i));
                    bool right = piece->in_bucket + e == at && piece->in_file + skipped == file + place &&
                                 piece->index + skipped == index + place;
                    if (!CHECK(t, right, "rank %d of %d: element %lld of %s lies elsewhere", z->part.at.tp_rank,
                               z->part.at.tp, (long long)e, param_specs[i].name)) {
                        return;
                    }
                    count[file + place]++;
                }
            }
        }
        CHECK(t, at == zero_size(z, b), "%lld elements of bucket %d", (long long)at, b);
    }
}

static void check_parts(Test *t, const ModelConfig *config, PartPlace at, int num_ranks) {
    uint8_t *count = (uint8_t *)calloc((size_t)model_num_params(config), 1);
    ZeroLayout z, whole;
    ModelPart all = model_whole(config);
    int64_t shard = -1;
    zero_layout(&whole, &all, 1, OPTIMIZER_ADAMW);
    for (int k = 0; k < at.tp * at.stages; k++) {
        at.tp_rank = k % at.tp, at.stage = k / at.tp;
        ModelPart part = model_part(config, at);
        zero_layout(&z, &part, num_ranks, OPTIMIZER_ADAMW);
        count_pieces(t, &z, count);
        for (int b = 0; b < 2; b++) {
            int64_t split = zero_split(&z, b), end = split + zero_unsplit(&z, b);
            CHECK(t, end % at.tp == split % at.tp && end <= zero_padded(&z, b), "the end of bucket %d is not shared",
                  b);
        }
        for (int l = 0; l < part.local.num_layers; l++) {
            int64_t first = zero_first_index(&whole, 1 + part_whole_layer(&part, l));
            CHECK(t, zero_first_index(&z, 1 + l) == first, "block %d has other numbers", l);
        }
        for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
            bool first = zero_tensor_offset(&z, i) < zero_split(&z, param_specs[i].per_layer);
            CHECK(t, part_size(&part, i) == 0 || first == param_is_split(i), "%s is not where split tensors are",
                  param_specs[i].name);
        }
        if (!part_shares_embedding(&part)) { continue; }
        CHECK(t, shard < 0 || shard == zero_shard(&z, 0), "the embedding has other shards on the last stage");
        shard = zero_shard(&z, 0);
    }
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int want = (param_is_split(i) ? 1 : at.tp) * (i == PARAM_wte && at.stages > 1 ? 2 : 1);
        for (int64_t k = param_offset(config, i); k < param_offset(config, i + 1); k++) {
            if (!CHECK(t, count[k] == want, "%d x %d x %d: element %lld of %s is held %d times", at.tp, at.stages,
                       at.chunks, (long long)k, param_specs[i].name, count[k])) {
                break;
            }
        }
    }
    free(count);
}

// The parts of all ranks are the model: a split tensor once, all others on each rank, and the embedding also on the
// last stage, whose head is tied.
TEST(test_parts_of_a_model) {
    const ModelConfig configs[] = {config_of(5, 130, 7, 4, 8), config_of(8, 64, 6, 12, 24)};
    FOR_EACH(c, configs) {
        for (int tp = 1; tp <= 4; tp *= 2) {
            for (int stages = 1; stages <= 3; stages++) {
                for (int chunks = 1; chunks <= (stages > 1 ? 2 : 1); chunks++) {
                    PartPlace at = {tp, 0, stages, 0, chunks};
                    for (int num_ranks = 1; num_ranks <= 7; num_ranks += 3) {
                        check_parts(t, &configs[c], at, num_ranks);
                    }
                }
            }
        }
    }
}

// ---- Memory ----

static void check_lengths(Test *t, const ZeroLayout *z) {
    int R = z->num_ranks, two = z->config.num_layers < 2 ? 1 : 2;
    int64_t part = zero_shard(z, 0) + z->config.num_layers * zero_shard(z, 1), whole = R * part;
    int64_t slots = R * (zero_shard(z, 0) + two * zero_shard(z, 1));
    for (int stage = 0; stage <= 3; stage++) {
        int cut = R == 1 ? 0 : stage;
        int64_t state = cut >= 1 ? part : whole;
        ZeroLengths n = zero_lengths(z, stage), want = {.m = state, .v = state, .master = state};
        want.params = cut >= 3 ? part : whole, want.grads = cut >= 2 ? part : whole;
        want.param_slots = cut >= 3 ? slots : 0, want.grad_slots = cut >= 2 ? slots : 0;
        CHECK(t, zero_effective_stage(stage, R) == cut && memcmp(&n, &want, sizeof(n)) == 0, "stage %d of %d ranks",
              stage, R);
    }
    for (int b = 0; b < z->num_buckets; b++) {
        CHECK(t, zero_slot_offset(z, b) + zero_padded(z, b) <= slots, "bucket %d lies outside its room", b);
        CHECK(t, b == 0 || zero_slot_offset(z, b) >= zero_padded(z, 0), "block %d lies in bucket 0's room", b - 1);
        CHECK(t, b < 2 || zero_slot_offset(z, b) != zero_slot_offset(z, b - 1), "blocks %d and %d share", b - 2, b - 1);
    }
}

TEST(test_lengths) { for_each_layout(t, check_lengths); }

// ---- Muon ----

// Muon takes the matrices at the start of each block. All other numbers are AdamW's, so that an element has its place
// in files, and its number for rounding, with either optimizer. v has bucket 0 as with AdamW, and the vectors of each
// block, whole on every rank. All other arrays are AdamW's.
static void check_muon(Test *t, const ZeroLayout *adamw) {
    ZeroLayout z, as_adamw;
    zero_layout(&z, &adamw->part, adamw->num_ranks, OPTIMIZER_MUON);
    int64_t C = z.config.channels, rest = zero_rest(&z), step = (int64_t)ZERO_ALIGNMENT * z.num_ranks;
    CHECK(t, zero_muon(&z, 0) == 0 && zero_muon(&z, 1) == 12 * C * C, "Muon takes %lld of bucket 0, %lld of a block",
          (long long)zero_muon(&z, 0), (long long)zero_muon(&z, 1));
    CHECK(t, zero_muon(adamw, 0) == 0 && zero_muon(adamw, 1) == 0, "AdamW leaves some to Muon");
    CHECK(t, rest % step == 0 && rest >= 13 * C && rest < 13 * C + step, "%lld of %lld elements for %d ranks",
          (long long)rest, (long long)(13 * C), z.num_ranks);
    as_adamw = z;
    memset(as_adamw.muon, 0, sizeof(as_adamw.muon));
    CHECK(t, memcmp(&as_adamw, adamw, sizeof(z)) == 0, "%d ranks: another layout than AdamW's", z.num_ranks);
    for (int stage = 0; stage <= 3; stage++) {
        ZeroLengths got = zero_lengths(&z, stage), want = zero_lengths(adamw, stage);
        want.v = want.v == zero_offset(&z, z.num_buckets) ? zero_padded(&z, 0) : zero_shard(&z, 0);
        want.v += z.config.num_layers * rest;
        CHECK(t, memcmp(&got, &want, sizeof(got)) == 0, "stage %d, %d ranks: v has %lld elements, expected %lld", stage,
              z.num_ranks, (long long)got.v, (long long)want.v);
    }
}

TEST(test_muon) { for_each_layout(t, check_muon); }

// ---- Traffic ----

// What a rank sends when R ranks reduce-scatter or all-gather parts of n bytes in a ring, turn by turn.
static int64_t ring_bytes(int R, int64_t part_bytes) {
    int64_t bytes = 0;
    for (int turn = 1; turn < R; turn++) { bytes += part_bytes; }
    return bytes;
}

// Acts out the passes of one micro-batch in stage 3, with the rooms that blocks pass through (room[2]: bucket 0's);
// returns the bytes sent.
static int64_t act_gathers(const ZeroLayout *z, int sizeof_param, int room[3]) {
    int L = z->config.num_layers;
    int64_t bytes = room[2] == 0 ? 0 : ring_bytes(z->num_ranks, zero_shard(z, 0) * sizeof_param);
    room[2] = 0;
    for (int k = 0; k < 2 * L; k++) {
        int layer = k < L ? k : 2 * L - 1 - k;
        if (room[layer % 2] != layer) { bytes += ring_bytes(z->num_ranks, zero_shard(z, 1 + layer) * sizeof_param); }
        room[layer % 2] = layer;
    }
    return bytes;
}

// Acts out a step and adds up what it sends.
static Traffic act_step(const ZeroLayout *z, int stage, int sizeof_param, int64_t micro_batches) {
    int room[3] = {-1, -1, -1}; // empty: the update before has changed all parameters
    int64_t gradients = 0, params = 0, matrices = 0;
    for (int64_t m = 0; m < micro_batches; m++) {
        if (stage == 3) { params += act_gathers(z, sizeof_param, room); }
        if (stage < 2 && m < micro_batches - 1) { continue; }
        for (int b = 0; b < z->num_buckets; b++) {
            gradients += ring_bytes(z->num_ranks, zero_shard(z, b) * 4);
            if (stage == 0) { gradients += ring_bytes(z->num_ranks, zero_shard(z, b) * 4); }
        }
    }
    for (int b = 0; (stage == 1 || stage == 2) && b < z->num_buckets; b++) {
        params += ring_bytes(z->num_ranks, zero_shard(z, b) * sizeof_param);
    }
    for (int b = 1; z->muon[1] > 0 && stage > 0 && b < z->num_buckets; b++) { // to the owner, and back
        matrices += 2 * ring_bytes(z->num_ranks, zero_shard(z, b) * sizeof_param);
    }
    return (Traffic){gradients, params, matrices, 0, 0, 0, 0, 0};
}

static void check_bytes(Test *t, const ZeroLayout *adamw) {
    ZeroLayout muon;
    zero_layout(&muon, &adamw->part, adamw->num_ranks, OPTIMIZER_MUON);
    for (int stage = 0; stage <= 3; stage++) {
        const ZeroLayout *z = stage % 2 == 0 ? adamw : &muon;
        for (int64_t micro_batches = 1; micro_batches <= 4; micro_batches += 3) {
            for (int sizeof_param = 2; sizeof_param <= 4; sizeof_param += 2) {
                Traffic sent = zero_traffic(z, 0, stage, sizeof_param, micro_batches);
                Traffic acted = act_step(z, stage, sizeof_param, micro_batches);
                CHECK(t, memcmp(&sent, &acted, sizeof(sent)) == 0,
                      "stage %d, %d ranks, %d micro-batches: %lld %lld %lld, not as acted", stage, z->num_ranks,
                      (int)micro_batches, (long long)sent.gradients, (long long)sent.parameters,
                      (long long)sent.matrices);
            }
        }
    }
}

TEST(test_step_bytes) { for_each_layout(t, check_bytes); }
