// --auto: which micro-batch and which level of --recompute a run takes.
//
// The memory that a choice takes is known to the byte (llmc/model/memory_plan.h). Its time is predicted, kernel by
// kernel (llmc/model/step_model.h): enough to tell a better choice from a worse one, not to promise a speed.
#ifndef LLMC_AUTO_PLAN_H
#define LLMC_AUTO_PLAN_H

#include "llmc/model/step_model.h"
#include "llmc/base/utils.h"

// Two choices whose estimates are nearer than this are as fast as each other; the one that takes less memory is better.
#define AUTO_TIE 0.01

// GPU memory that no plan counts: what is loaded and set up after the choice (kernels of ours, of cuBLASLt and cuDNN,
// graphs, the driver's tables), and with several ranks NCCL's buffers. Where the GPU has not been asked but is only
// supposed to have so much, CUDA's context too, which is there before anything can be asked.
#define AUTO_RESERVE_BYTES ((int64_t)1 << 30)
#define AUTO_NCCL_BYTES ((int64_t)2 << 30) // what a communicator may take
#define AUTO_CONTEXT_BYTES ((int64_t)1 << 29)

// A number below 2^31 has at most 1536 divisors; each comes with four levels.
#define AUTO_MAX_CANDIDATES 6144

// What is known of the GPUs of a run before it is planned.
typedef struct {
    StepGpu speed;       // of rank 0's GPU
    int64_t total_bytes; // of the smallest GPU
    int64_t free_bytes;  // the least that is free on any GPU
    bool fuses_gelu;     // every GPU can compute GELU inside matrix multiplies
} AutoGpus;

static inline int64_t auto_reserve(int num_ranks, bool asked) {
    return AUTO_RESERVE_BYTES + (num_ranks > 1 ? AUTO_NCCL_BYTES : 0) + (asked ? 0 : AUTO_CONTEXT_BYTES);
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
             "--batch-size %d --recompute %d: the fastest by prediction, %.3g s a step, of %d choices of %d that fit "
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
        snprintf(text, size, "--recompute %d: it takes the least memory, but more than %s", RECOMPUTE_BLOCK, where);
    } else {
        snprintf(text, size, "--recompute %d: the lowest level that fits into %s", level, where);
    }
}

// ---- What levels of --recompute bring ----

// Bytes that a level saves against level 0, for each millisecond that it adds to a step.
static inline double auto_bytes_per_ms(const AutoCandidate levels[NUM_RECOMPUTE_LEVELS], int level) {
    double ms = 1e3 * (levels[level].seconds - levels[0].seconds);
    return ms > 0.0 ? (double)(levels[0].bytes - levels[level].bytes) / ms : 0.0;
}

// Fills `order` with the levels above 0. The level that saves most for its time comes first.
static inline void auto_rank_levels(const AutoCandidate levels[NUM_RECOMPUTE_LEVELS],
                                    int order[NUM_RECOMPUTE_LEVELS - 1]) {
    for (int i = 0; i < NUM_RECOMPUTE_LEVELS - 1; i++) {
        int j = i;
        for (; j > 0 && auto_bytes_per_ms(levels, order[j - 1]) < auto_bytes_per_ms(levels, i + 1); j--) {
            order[j] = order[j - 1];
        }
        order[j] = i + 1;
    }
}

#endif // LLMC_AUTO_PLAN_H
