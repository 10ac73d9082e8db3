// Chapter 16, many GPUs: the worked example of doc/16_many_gpus.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

#include "llmc/ranks/zero.h"

enum { R = 4, TURNS = R - 1, MOST = 16 };

// ---- A ring ----

// The gradients of each rank before turn t, in R parts of one number.
typedef struct {
    int parts[R];
} RingRank;

// In turn t of the reduce-scatter, rank r passes part r - 1 - t to the next rank, which adds it to its own. In the
// all-gather, rank r passes part r - t, and the next rank keeps it.
static void ring_turn(RingRank after[R], const RingRank before[R], int t, bool reduces) {
    memcpy(after, before, R * sizeof(RingRank));
    for (int r = 0; r < R; r++) {
        int next = (r + 1) % R, part = (r - (reduces ? 1 : 0) - t + 2 * R) % R;
        after[next].parts[part] = before[r].parts[part] + (reduces ? before[next].parts[part] : 0);
    }
}

static void print_turns(const char *name, RingRank turns[TURNS + 1][R], int first) {
    const char *names[TURNS + 1] = {"at the start", "after turn 1", "after turn 2", "after turn 3"};
    printf("%-16s", name);
    for (int t = first; t <= TURNS; t++) { printf(t < TURNS ? "  | %-19s" : "  | %s\n", names[t]); }
    for (int r = 0; r < R; r++) {
        printf("rank %-11d", r);
        for (int t = first; t <= TURNS; t++) {
            printf("  |");
            for (int p = 0; p < R; p++) { printf(" %4d", turns[t][r].parts[p]); }
        }
        printf("\n");
    }
}

static void ring_example(void) {
    RingRank turns[TURNS + 1][R];
    for (int r = 0, ten = 1; r < R; r++, ten *= 10) {
        for (int p = 0; p < R; p++) { turns[0][r].parts[p] = (p + 1) * ten; }
    }
    for (int t = 0; t < TURNS; t++) { ring_turn(turns[t + 1], turns[t], t, true); }
    print_turns("reduce-scatter", turns, 0);
    memcpy(turns[0], turns[TURNS], sizeof(turns[0]));
    for (int t = 0; t < TURNS; t++) { ring_turn(turns[t + 1], turns[t], t, false); }
    print_turns("all-gather", turns, 1);
}

// ---- The stages for GPT-2 124M on 8 ranks ----

static double megabytes(int64_t elements, int bytes) { return 1e-6 * (double)(elements * bytes); }

static double sent(const ZeroLayout *z, int stage, int64_t micro_batches) {
    Traffic bytes = zero_traffic(z, 0, stage, 2, micro_batches);
    return 1e-6 * (double)(bytes.gradients + bytes.parameters);
}

static void print_stage(const ZeroLayout *z, int stage) {
    ZeroLengths n = zero_lengths(z, stage);
    double params = megabytes(n.params, 2), grads = megabytes(n.grads, 4), state = megabytes(n.m + n.v + n.master, 4);
    double slots = megabytes(n.param_slots, 2) + megabytes(n.grad_slots, 4);
    printf("stage %d      %12.1f %12.1f %12.1f %9.1f %9.1f %12.1f %12.1f\n", stage, params, grads, state, slots,
           params + grads + state + slots, sent(z, stage, 1), sent(z, stage, 8));
}

static void zero_example(void) {
    ModelConfig config = GPT2_CONFIG(0, GPT2_VOCAB_SIZE, model_pad_vocab(GPT2_VOCAB_SIZE), 0, 0, 0);
    ZeroLayout z;
    model_config_from_size(&config, "124M");
    ModelPart all = model_whole(&config);
    zero_layout(&z, &all, 8, OPTIMIZER_ADAMW);
    for (int b = 0; b <= 1; b++) {
        printf("bucket %d: %lld parameters, in each of 8 parts %lld\n", b, (long long)zero_size(&z, b),
               (long long)zero_shard(&z, b));
    }
    printf("all buckets: %lld parameters\n", (long long)zero_offset(&z, z.num_buckets));
    printf("MB             parameters    gradients  m v, master     slots       all    sent, m=1    sent, m=8\n");
    for (int stage = ZERO_REPLICATE; stage <= ZERO_PARAMETERS; stage++) { print_stage(&z, stage); }
}

// ---- The checks ----

// Runs one turn of all ranks. Returns false if a rank does what none can do.
static bool run_halving_turn(Test *t, double values[MOST][MOST], int ranks, int turn, int sent_parts[MOST]) {
    double before[MOST][MOST];
    memcpy(before, values, sizeof(before));
    for (int r = 0; r < ranks; r++) {
        int partner = -1, first = -1, count = -1, back = -1, ignored;
        halving_turn(r, turn, ranks, &partner, &first, &count);
        if (!CHECK(t, partner >= 0 && partner < ranks && first >= 0 && count >= 1 && count <= ranks - first,
                   "of %d ranks, rank %d sends %d parts from part %d on to rank %d", ranks, r, count, first, partner)) {
            return false;
        }
        halving_turn(partner, turn, ranks, &back, &ignored, &ignored);
        CHECK(t, back == r && partner != r, "rank %d's partner is %d, whose partner is %d", r, partner, back);
        for (int p = first; p < first + count; p++) { values[partner][p] += before[r][p]; }
        sent_parts[r] += count;
    }
    return true;
}

// Reports 16.1's likely mistakes, by all that 8 ranks do in three turns.
static void explain_halving(Test *t) {
    enum { RANKS = 8, TURNS_OF_8 = 3, N = 3 * RANKS * TURNS_OF_8 };
    float got[N], own[N], near[N];
    for (int i = 0; i < N / 3; i++) {
        int rank = i % RANKS, turn = i / RANKS, half = RANKS >> (turn + 1), partner = 0, first = 0, count = 0;
        halving_turn(rank, turn, RANKS, &partner, &first, &count);
        const int mistaken[2][3] = {{rank ^ half, rank / half * half, half},
                                    {rank ^ (1 << turn), (rank ^ (1 << turn)) / half * half, half}};
        got[3 * i] = (float)partner, got[3 * i + 1] = (float)first, got[3 * i + 2] = (float)count;
        for (int k = 0; k < 3; k++) { own[3 * i + k] = (float)mistaken[0][k], near[3 * i + k] = (float)mistaken[1][k]; }
    }
    likely(t, got, own, N, "a rank sends the half that it must keep");
    likely(t, got, near, N, "the nearest ranks exchange first, while a half of all parts can leave only in one piece");
}

// The numbers are small and whole, so their sums are exact. Rank r has 3^r times the numbers of rank 0, so that no two
// sets of ranks have one sum.
static void check_halving(Test *t) {
    for (int ranks = 2, turns = 1; ranks <= MOST; ranks *= 2, turns++) {
        double values[MOST][MOST], sums[MOST] = {0};
        int sent_parts[MOST] = {0};
        for (int r = 0; r < ranks; r++) {
            for (int p = 0; p < ranks; p++) { sums[p] += values[r][p] = (p + 1) * pow(3.0, r); }
        }
        for (int turn = 0; turn < turns; turn++) {
            if (!run_halving_turn(t, values, ranks, turn, sent_parts)) {
                explain_halving(t);
                return;
            }
        }
        for (int r = 0; r < ranks; r++) {
            CHECK(t, values[r][r] == sums[r], "of %d ranks, rank %d has %g of part %d, want the sum %g", ranks, r,
                  values[r][r], r, sums[r]);
            CHECK(t, sent_parts[r] == ranks - 1, "of %d ranks, rank %d sends %d parts, want %d as in the ring", ranks,
                  r, sent_parts[r], ranks - 1);
        }
    }
    explain_halving(t);
}

static int64_t stage_bytes(const ZeroLayout *z, int stage) {
    ZeroLengths n = zero_lengths(z, stage);
    return 2 * (n.params + n.param_slots) + 4 * (n.grads + n.m + n.v + n.master + n.grad_slots);
}

static int want_stage(const ZeroLayout *z, int64_t bytes) {
    int stage = ZERO_REPLICATE;
    while (stage <= ZERO_PARAMETERS && stage_bytes(z, stage) > bytes) { stage++; }
    return stage <= ZERO_PARAMETERS ? stage : -1;
}

// What comes of sums that forget the slots, or gives stages 1 and 2 too much.
static int mistaken_stage(int64_t params, int64_t slots, int R, int64_t bytes, bool whole_state) {
    int64_t part = params / R, state = whole_state ? params : part;
    const int64_t needs[4] = {18 * params, 6 * params + 12 * state, 2 * params + 4 * part + 12 * state + 4 * slots,
                              6 * part + 12 * state + 6 * slots};
    for (int stage = 0; stage < 4; stage++) {
        if (needs[stage] <= bytes) { return stage; }
    }
    return -1;
}

// Asks for each stage with exactly its memory, and with one byte less.
static void check_smallest_stage(Test *t) {
    enum { N = 2 * 5 * 8 };
    const char *sizes[] = {"124M", "1558M"};
    float answers[N], no_slots[N], whole[N];
    int n = 0;
    for (int i = 0; i < 2; i++) {
        for (int ranks = 2; ranks <= 512; ranks *= 4) {
            ModelConfig config = GPT2_CONFIG(0, GPT2_VOCAB_SIZE, model_pad_vocab(GPT2_VOCAB_SIZE), 0, 0, 0);
            ZeroLayout z;
            model_config_from_size(&config, sizes[i]);
            ModelPart all = model_whole(&config);
            zero_layout(&z, &all, ranks, OPTIMIZER_ADAMW);
            int64_t params = zero_offset(&z, z.num_buckets), slots = zero_lengths(&z, ZERO_PARAMETERS).param_slots;
            for (int k = 0; k < 8; k++) {
                int64_t bytes = stage_bytes(&z, k / 2) - k % 2;
                int got = smallest_stage(params, slots, ranks, bytes), want = want_stage(&z, bytes);
                CHECK(t, got == want, "%s, %lld parameters, slots %lld, %d ranks, %lld bytes: got stage %d, want %d",
                      sizes[i], (long long)params, (long long)slots, ranks, (long long)bytes, got, want);
                no_slots[n] = (float)mistaken_stage(params, 0, ranks, bytes, false);
                whole[n] = (float)mistaken_stage(params, slots, ranks, bytes, true);
                answers[n++] = (float)got;
            }
        }
    }
    likely(t, answers, no_slots, N, "the room for whole buckets is missing");
    likely(t, answers, whole, N, "moments and master copy are not divided by R");
}

// Plays the two streams of llmc/ranks/buckets.cuh. A bucket leaves when it is computed and the one before has arrived.
static double play_backward(int L, double backward, double send, double rest) {
    double computed = 0.0, sent = 0.0;
    for (int l = L - 1; l >= 0; l--) {
        computed += backward;
        sent = fmax(sent, computed) + send;
    }
    return sent + rest;
}

static void check_wait(Test *t) {
    const double speeds[] = {0.1, 0.5, 0.99, 1.01, 2.0, 10.0};
    float answers[30], no_queue[30], no_overlap[30], only_rest[30];
    for (int i = 0; i < 6; i++) {
        for (int L = 1; L <= 5; L++) {
            double send = 7.0, rest = 11.0, backward = speeds[i] * send, all = play_backward(L, backward, send, rest);
            double got = wait_for_gradients(L, backward, send, rest), want = all - L * backward;
            // About 20 additions and roundings of numbers up to `all`.
            CHECK(t, fabs(got - want) <= 20.0 * DBL_EPSILON * all,
                  "%d blocks, backward %.9g, send %g, rest %g: got %.9g, want %.9g", L, backward, send, rest, got,
                  want);
            int n = 5 * i + L - 1;
            answers[n] = (float)got, no_queue[n] = (float)(send + rest), no_overlap[n] = (float)(L * send + rest);
            only_rest[n] = (float)rest;
        }
    }
    likely(t, answers, only_rest, 30, "the bucket of the last block is still on its way when the pass ends");
    likely(t, answers, no_queue, 30, "buckets that wait for the link are forgotten");
    likely(t, answers, no_overlap, 30, "nothing travels during the backward pass");
}

static void example(void) {
    ring_example();
    zero_example();
}

static const Exercise exercises[] = {{"16.1 recursive halving", check_halving},
                                     {"16.2 the smallest stage that fits", check_smallest_stage},
                                     {"16.3 what the backward pass does not hide", check_wait}};

int main(void) { return run_chapter("16_many_gpus", example, exercises); }
