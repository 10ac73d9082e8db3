// --auto: which micro-batch and which level of --recompute a run takes, and what an estimate says that a step costs.
//
// The memory that a choice takes is known to the byte (llmc/memory_plan.h). Its time is estimated from what the step
// computes and moves: enough to tell a better choice from a worse one, not to promise a speed. A matrix multiply is cut
// into tiles, which the multiprocessors of a GPU work on in waves, so that few rows fill few of them; everything else
// moves its bytes; what several GPUs send is llmc/zero.h's.
#ifndef LLMC_AUTO_PLAN_H
#define LLMC_AUTO_PLAN_H

#include "gpt2.h"
#include "utils.h"
#include "zero.h"

// What a GPU does of its peak, in round numbers: matrix multiplies that fill it, attention (exponentials between small
// multiplies), and kernels that only move bytes.
#define AUTO_MATMUL_EFFICIENCY 0.7
#define AUTO_ATTENTION_EFFICIENCY 0.4
#define AUTO_MEMORY_EFFICIENCY 0.85
#define AUTO_LAUNCH_SECONDS 3e-6 // from the end of a kernel to the beginning of the next
#define AUTO_TILE 128            // rows and columns of a product that a multiprocessor computes at a time
#define AUTO_MIN_DEPTH 1024      // a sum that is split among multiprocessors is not cut into shorter pieces
// Two choices whose estimates are nearer than this are as fast as each other; the one that takes less memory is better.
#define AUTO_TIE 0.01

// GPU memory that no plan counts: what is loaded and set up after the choice (kernels of ours, of cuBLASLt and cuDNN,
// graphs, the driver's tables), and with several ranks NCCL's buffers. Where the GPU has not been asked but is only
// supposed to have so much, CUDA's context too, which is there before anything can be asked.
#define AUTO_RESERVE_BYTES ((int64_t)1 << 30)
#define AUTO_NCCL_BYTES ((int64_t)2 << 30) // what a communicator may take
#define AUTO_CONTEXT_BYTES ((int64_t)1 << 29)

#define AUTO_PLANNED_BYTES ((int64_t)79 << 30) // an H100's

// What a GPU sends in a second where nobody has said it: within a machine of 8, and between machines.
#define AUTO_LINK_INSIDE 400e9
#define AUTO_LINK_BETWEEN 50e9

// A number below 2^31 has at most 1536 divisors; each comes with four levels.
#define AUTO_MAX_CANDIDATES 6144

static inline int64_t auto_reserve(int num_ranks, bool asked) {
    return AUTO_RESERVE_BYTES + (num_ranks > 1 ? AUTO_NCCL_BYTES : 0) + (asked ? 0 : AUTO_CONTEXT_BYTES);
}

// ---- The time of a step ----

typedef struct {
    double flops_per_second;      // of its tensor cores, by the datasheet
    double bytes_per_second;      // of its memory
    double link_bytes_per_second; // what it sends to other GPUs while all send
    int multiprocessors;
} AutoGpu;

// An H100: what --plan supposes, and what a card is taken for whose speed is not known.
static inline AutoGpu auto_h100(void) {
    AutoGpu gpu = {989e12, 3.35e12, AUTO_LINK_INSIDE, 132};
    return gpu;
}

typedef struct {
    GPT2Config config;
    int B, T, recompute;   // recompute: the level of --recompute
    bool fused_gelu;       // in the matrix multiply: recomputing it repeats that one
    bool fp8;              // the blocks' linear layers multiply in 8 bits
    int head_rows;         // of the logits at a time
    int sizeof_activation; // 2 or 4 bytes
    int num_ranks, zero_stage;
    int64_t micro_batches; // of a step, on each rank
} AutoStep;

// C (m, n) = A (m, k) B (k, n), elements of so many bytes each. Where the tiles of C do not fill the multiprocessors
// the sums may be split.
static inline double auto_matmul_seconds(const AutoGpu *gpu, int64_t m, int64_t n, int64_t k, int bytes) {
    int64_t tiles = ceil_div_i64(m, AUTO_TILE) * ceil_div_i64(n, AUTO_TILE), parts = max_i64(1, k / AUTO_MIN_DEPTH);
    double tile_flops = 2.0 * AUTO_TILE * AUTO_TILE * (double)k, best = 0.0;
    for (int64_t split = 1; split <= min_i64(parts, 16); split++) {
        double waves = (double)ceil_div_i64(tiles * split, gpu->multiprocessors);
        double seconds = waves * gpu->multiprocessors * tile_flops / (double)split / gpu->flops_per_second;
        if (split == 1 || seconds < best) { best = seconds; }
    }
    double moved = ((double)m * (double)k + (double)k * (double)n + (double)m * (double)n) * bytes;
    double compute = best / AUTO_MATMUL_EFFICIENCY, move = moved / (AUTO_MEMORY_EFFICIENCY * gpu->bytes_per_second);
    return (compute > move ? compute : move) + AUTO_LAUNCH_SECONDS;
}

static inline double auto_move_seconds(const AutoGpu *gpu, double bytes) {
    return bytes / (AUTO_MEMORY_EFFICIENCY * gpu->bytes_per_second) + AUTO_LAUNCH_SECONDS;
}

// The causal half of two products of (T, T) and (T, C) per sequence forward, five of them backward.
static inline double auto_attention_seconds(const AutoGpu *gpu, const AutoStep *s, int products) {
    double flops = (double)products * s->B * (double)s->T * s->T * s->config.channels;
    return flops / (AUTO_ATTENTION_EFFICIENCY * gpu->flops_per_second) + AUTO_LAUNCH_SECONDS;
}

// What a kernel takes that reads and writes activations of so many channels, all together.
static inline double auto_rows_seconds(const AutoGpu *gpu, const AutoStep *s, int64_t channels) {
    return auto_move_seconds(gpu, (double)s->B * s->T * (double)channels * s->sizeof_activation);
}

// A product of a linear layer of a block: in 8 bits at twice the rate.
static inline double auto_product_seconds(const AutoGpu *gpu, const AutoStep *s, int64_t m, int64_t n, int64_t k) {
    AutoGpu fast = *gpu;
    if (s->fp8) { fast.flops_per_second *= 2.0; }
    return auto_matmul_seconds(&fast, m, n, k, s->fp8 ? 1 : s->sizeof_activation);
}

// In 8 bits an activation is read for its largest value, read again, and written twice: as much as 3 of its width.
static inline double auto_quantize_seconds(const AutoGpu *gpu, const AutoStep *s, int64_t width) {
    return s->fp8 ? auto_rows_seconds(gpu, s, 3 * width) : 0.0;
}

// A linear layer from C to OC channels, and its gradients.
static inline double auto_linear_seconds(const AutoGpu *gpu, const AutoStep *s, int64_t C, int64_t OC) {
    return auto_quantize_seconds(gpu, s, C) + auto_product_seconds(gpu, s, (int64_t)s->B * s->T, OC, C);
}

static inline double auto_linear_backward_seconds(const AutoGpu *gpu, const AutoStep *s, int64_t C, int64_t OC) {
    int64_t N = (int64_t)s->B * s->T;
    return auto_quantize_seconds(gpu, s, OC) + auto_product_seconds(gpu, s, N, C, OC) +
           auto_product_seconds(gpu, s, OC, C, N);
}

// GELU as a kernel of its own. In 8 bits it is part of what turns the next layer's input into 8 bits. Made again, it
// costs a second read alone: its transpose is then not stored in the forward.
static inline double auto_gelu_seconds(const AutoGpu *gpu, const AutoStep *s) {
    int64_t C = s->config.channels;
    return auto_rows_seconds(gpu, s, s->fp8 ? 4 * C : 8 * C);
}

// A block up to the input of its last matrix multiply: what --recompute 3 does again.
static inline double auto_block_seconds(const AutoGpu *gpu, const AutoStep *s) {
    int64_t C = s->config.channels;
    double gelu = s->fused_gelu || s->fp8 ? 0.0 : auto_gelu_seconds(gpu, s);
    return auto_linear_seconds(gpu, s, C, 3 * C) + auto_attention_seconds(gpu, s, 2) +
           auto_linear_seconds(gpu, s, C, C) + auto_rows_seconds(gpu, s, 4 * C) +
           auto_linear_seconds(gpu, s, C, 4 * C) + gelu;
}

static inline double auto_block_backward_seconds(const AutoGpu *gpu, const AutoStep *s) {
    int64_t C = s->config.channels;
    return auto_linear_backward_seconds(gpu, s, 4 * C, C) + auto_rows_seconds(gpu, s, 12 * C) +
           auto_linear_backward_seconds(gpu, s, C, 4 * C) + auto_rows_seconds(gpu, s, 4 * C) +
           auto_linear_backward_seconds(gpu, s, C, C) + auto_attention_seconds(gpu, s, 5) +
           auto_rows_seconds(gpu, s, 3 * C) + auto_linear_backward_seconds(gpu, s, C, 3 * C) +
           auto_rows_seconds(gpu, s, 4 * C);
}

// What a micro-batch does a second time. The last layer's activations are still there in the backward pass.
static inline double auto_recompute_seconds(const AutoGpu *gpu, const AutoStep *s) {
    int64_t C = s->config.channels;
    double again = s->config.num_layers - 1;
    if (s->recompute >= 3) { return again * (auto_rows_seconds(gpu, s, 2 * C) + auto_block_seconds(gpu, s)); }
    double inputs = s->fp8 ? 3.0 * auto_rows_seconds(gpu, s, C) : 0.0; // ln1, att and ln2, likewise
    double layernorms = s->recompute >= 2 ? 2.0 * auto_rows_seconds(gpu, s, 2 * C) + inputs : 0.0;
    double gelu = s->fused_gelu ? auto_linear_seconds(gpu, s, C, 4 * C) : auto_gelu_seconds(gpu, s);
    return s->recompute >= 1 ? again * (layernorms + gelu) : 0.0;
}

// The head, forward and backward, for `rows` rows: logits, the classifier in place, two products.
static inline double auto_head_chunk_seconds(const AutoGpu *gpu, const AutoStep *s, int64_t rows) {
    int64_t C = s->config.channels, Vp = s->config.padded_vocab_size;
    int size = s->sizeof_activation;
    if (rows == 0) { return 0.0; }
    return auto_matmul_seconds(gpu, rows, Vp, C, size) +
           auto_move_seconds(gpu, 2.0 * (double)rows * (double)Vp * size) +
           auto_matmul_seconds(gpu, rows, C, Vp, size) + auto_matmul_seconds(gpu, Vp, C, rows, size);
}

static inline double auto_head_seconds(const AutoGpu *gpu, const AutoStep *s) {
    int64_t N = (int64_t)s->B * s->T, rows = min_i64(N, s->head_rows);
    return (double)(N / rows) * auto_head_chunk_seconds(gpu, s, rows) + auto_head_chunk_seconds(gpu, s, N % rows);
}

static inline double auto_micro_batch_seconds(const AutoGpu *gpu, const AutoStep *s) {
    int64_t C = s->config.channels;
    double layer = auto_block_seconds(gpu, s) + auto_linear_seconds(gpu, s, 4 * C, C) +
                   auto_rows_seconds(gpu, s, 4 * C) + auto_block_backward_seconds(gpu, s);
    return 2.0 * auto_rows_seconds(gpu, s, 4 * C) + (double)s->config.num_layers * layer + auto_head_seconds(gpu, s) +
           auto_recompute_seconds(gpu, s);
}

// The norm reads what a rank owns of the gradients; AdamW reads it again, and reads and writes master weights and
// moments, all in fp32; and the gradients are set to zero.
static inline double auto_update_seconds(const AutoGpu *gpu, const AutoStep *s) {
    double parameters = (double)gpt2_num_params(&s->config);
    double own = s->zero_stage >= ZERO_OPTIMIZER ? parameters / s->num_ranks : parameters;
    double held = s->zero_stage >= ZERO_GRADIENTS ? own : parameters;
    return auto_move_seconds(gpu, own * (4 + 4 + 24 + s->sizeof_activation) + held * 4);
}

// A step, with what it sends.
static inline double auto_step_seconds(const AutoGpu *gpu, const AutoStep *s) {
    ZeroLayout layout;
    zero_layout(&layout, &s->config, s->num_ranks);
    double compute = (double)s->micro_batches * auto_micro_batch_seconds(gpu, s) + auto_update_seconds(gpu, s);
    double peak = gpu->flops_per_second; // zero_estimate takes the work in FLOPs: those of as much time
    ZeroStep step = {
        s->zero_stage, s->sizeof_activation,      s->micro_batches, compute * ZERO_COMPUTE_EFFICIENCY * peak,
        peak,          gpu->link_bytes_per_second};
    return zero_estimate(&layout, &step).step_seconds;
}

// ---- The choice ----

typedef struct {
    int B, recompute;
    int64_t bytes; // of GPU memory; < 0: impossible for another reason
    double seconds;
} AutoCandidate;

static inline bool auto_fits(const AutoCandidate *c, int64_t budget) { return c->bytes >= 0 && c->bytes <= budget; }

// The fastest of those that fit into `budget` bytes; of those as fast as it, the one that takes the least memory (of
// equal ones the first). -1: none fits.
static inline int auto_choose(const AutoCandidate *candidates, int count, int64_t budget) {
    double fastest = 0.0;
    int best = -1;
    for (int i = 0; i < count; i++) {
        bool faster = fastest == 0.0 || candidates[i].seconds < fastest;
        if (auto_fits(&candidates[i], budget) && faster) { fastest = candidates[i].seconds; }
    }
    for (int i = 0; i < count; i++) {
        const AutoCandidate *c = &candidates[i];
        bool tie = auto_fits(c, budget) && c->seconds <= fastest * (1.0 + AUTO_TIE);
        if (tie && (best < 0 || c->bytes < candidates[best].bytes)) { best = i; }
    }
    return best;
}

// The one that takes the least memory; -1: all are impossible.
static inline int auto_smallest(const AutoCandidate *candidates, int count) {
    int best = -1;
    for (int i = 0; i < count; i++) {
        bool possible = candidates[i].bytes >= 0;
        if (possible && (best < 0 || candidates[i].bytes < candidates[best].bytes)) { best = i; }
    }
    return best;
}

static inline int auto_count_fitting(const AutoCandidate *candidates, int count, int64_t budget) {
    int fitting = 0;
    for (int i = 0; i < count; i++) { fitting += auto_fits(&candidates[i], budget); }
    return fitting;
}

// The memory of a GPU, and what of it is kept free.
typedef struct {
    int64_t bytes, reserve;
} AutoRoom;

static inline int64_t auto_budget(const AutoRoom *room) { return room->bytes - room->reserve; }

// "77.5 GiB (79.0 GiB less 1.5 GiB for CUDA and its libraries)"
static inline void auto_room_text(char *text, size_t size, const AutoRoom *room) {
    char budget[32], all[32], reserve[32];
    format_bytes(budget, sizeof(budget), max_i64(0, auto_budget(room)));
    format_bytes(all, sizeof(all), room->bytes);
    format_bytes(reserve, sizeof(reserve), room->reserve);
    snprintf(text, size, "%s (%s less %s for CUDA and its libraries)", budget, all, reserve);
}

// Writes what was chosen, and why.
static inline void auto_explain(char *text, size_t size, const AutoCandidate *candidates, int count, int best,
                                const AutoRoom *room) {
    const AutoCandidate *c = &candidates[best];
    char where[192];
    auto_room_text(where, sizeof(where), room);
    snprintf(text, size,
             "--batch-size %d --recompute %d: the fastest by estimate, %.3g s a step, of %d choices of %d that fit "
             "into %s",
             c->B, c->recompute, c->seconds, auto_count_fitting(candidates, count, auto_budget(room)), count, where);
}

static inline bool auto_fail_no_room(const AutoCandidate *least, const AutoRoom *room, Error *error) {
    char where[192], need[32], missing[32];
    auto_room_text(where, sizeof(where), room);
    format_bytes(need, sizeof(need), least->bytes);
    format_bytes(missing, sizeof(missing), least->bytes - auto_budget(room));
    return fail(error,
                "--auto: nothing fits: --batch-size %d --recompute %d takes the least GPU memory, %s, and there are "
                "%s: %s are missing; lower --seq-len, raise --zero-stage, or choose a smaller model",
                least->B, least->recompute, need, where, missing);
}

// ---- The level of --recompute alone ----

// The first of `count` levels, lowest first, that fits into `budget` bytes; -1: none does.
static inline int auto_lowest(const AutoCandidate *levels, int count, int64_t budget) {
    for (int i = 0; i < count; i++) {
        if (auto_fits(&levels[i], budget)) { return levels[i].recompute; }
    }
    return -1;
}

// Writes which level was chosen, and why. level: -1 where none fits.
static inline void auto_explain_level(char *text, size_t size, int level, const AutoRoom *room) {
    char where[192];
    auto_room_text(where, sizeof(where), room);
    if (level < 0) {
        snprintf(text, size, "--recompute 3: it takes the least memory, but more than %s", where);
    } else {
        snprintf(text, size, "--recompute %d: the lowest level that fits into %s", level, where);
    }
}

// ---- What levels of --recompute bring ----

// Bytes that a level saves against level 0, for each millisecond that it adds to a step.
static inline double auto_bytes_per_ms(const AutoCandidate levels[4], int level) {
    double ms = 1e3 * (levels[level].seconds - levels[0].seconds);
    return ms > 0.0 ? (double)(levels[0].bytes - levels[level].bytes) / ms : 0.0;
}

// order[0 .. 2]: levels 1 to 3, the one that saves most for its time first.
static inline void auto_rank_levels(const AutoCandidate levels[4], int order[3]) {
    for (int i = 0; i < 3; i++) {
        int j = i;
        for (; j > 0 && auto_bytes_per_ms(levels, order[j - 1]) < auto_bytes_per_ms(levels, i + 1); j--) {
            order[j] = order[j - 1];
        }
        order[j] = i + 1;
    }
}

#endif // LLMC_AUTO_PLAN_H
