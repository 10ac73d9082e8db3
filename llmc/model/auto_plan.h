// --auto: chooses the micro-batch and the level of --recompute.
//
// The memory of a choice is known to the byte (llmc/model/memory_plan.h). Its time is predicted kernel by kernel
// (llmc/model/step_model.h). The prediction ranks choices. It does not promise a speed.
#ifndef LLMC_AUTO_PLAN_H
#define LLMC_AUTO_PLAN_H

#include <math.h>

#include "llmc/model/step_model.h"
#include "llmc/base/utils.h"

// Two choices with estimates nearer than this are equally fast. The choice that recomputes less is then better, and
// after that the choice with less memory.
#define AUTO_TIE 0.01

// GPU memory that no plan counts: our kernels, kernels of cuBLASLt and cuDNN, graphs and the driver's tables. They come
// after the choice. With several ranks NCCL's buffers come too. A GPU that answers has its CUDA context already. A
// GPU that --gpu-memory describes has none, so the context counts too.
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

// Tells which of two equally fast candidates is better: nobody asked to save memory by recomputation.
static inline bool auto_prefers(const AutoCandidate *a, const AutoCandidate *b) {
    return a->recompute != b->recompute ? a->recompute < b->recompute : a->bytes < b->bytes;
}

// Returns the index of the fastest candidate that fits into `budget` bytes, the first of the best among equally fast
// ones. -1: none fits.
static inline int auto_choose(const AutoCandidate *candidates, int count, int64_t budget) {
    double fastest = INFINITY;
    int best = -1;
    for (int i = 0; i < count; i++) {
        if (auto_fits(&candidates[i], budget)) { fastest = fmin(fastest, candidates[i].seconds); }
    }
    for (int i = 0; i < count; i++) {
        bool good = auto_fits(&candidates[i], budget) && candidates[i].seconds <= fastest * (1.0 + AUTO_TIE);
        if (good && (best < 0 || auto_prefers(&candidates[i], &candidates[best]))) { best = i; }
    }
    return best;
}

// Returns the index of the first candidate with the least memory. -1: all are impossible.
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

// The memory of a GPU, and the part that is kept free.
typedef struct {
    int64_t bytes, reserve;
} AutoRoom;

static inline int64_t auto_budget(const AutoRoom *room) { return room->bytes - room->reserve; }

// "77.5 GiB (79.0 GiB less an assumed 1.5 GiB for CUDA and its libraries)"
static inline void auto_room_text(char *text, size_t size, const AutoRoom *room) {
    char budget[32], all[32], reserve[32];
    format_bytes(budget, sizeof(budget), max_i64(0, auto_budget(room)));
    format_bytes(all, sizeof(all), room->bytes);
    format_bytes(reserve, sizeof(reserve), room->reserve);
    snprintf(text, size, "%s (%s less an assumed %s for CUDA and its libraries)", budget, all, reserve);
}

// Writes the choice and its reason.
static inline void auto_explain(char *text, size_t size, const AutoCandidate *candidates, int count, int best,
                                const AutoRoom *room) {
    const AutoCandidate *c = &candidates[best];
    char where[192], time[32];
    auto_room_text(where, sizeof(where), room);
    step_time_text(time, sizeof(time), c->seconds);
    snprintf(text, size,
             "--batch-size %d --recompute %d: the fastest by prediction, %s a step, of %d choices of %d that fit "
             "into %s",
             c->B, c->recompute, time, auto_count_fitting(candidates, count, auto_budget(room)), count, where);
}

// option: the one that asks for what does not fit. remedy: what to do.
static inline bool auto_fail_no_room(const char *option, const AutoCandidate *least, const AutoRoom *room,
                                     const char *remedy, Error *error) {
    char where[192], need[32], missing[32];
    auto_room_text(where, sizeof(where), room);
    format_bytes(need, sizeof(need), least->bytes);
    format_bytes(missing, sizeof(missing), least->bytes - auto_budget(room));
    return fail(error,
                "%s: nothing fits: --batch-size %d --recompute %d takes the least GPU memory, %s, and there are "
                "%s: %s are missing; %s",
                option, least->B, least->recompute, need, where, missing, remedy);
}

// ---- The level of --recompute alone ----

// The lowest of `count` levels, in ascending order, that fits into `budget` bytes. -1: none fits.
static inline int auto_lowest(const AutoCandidate *levels, int count, int64_t budget) {
    for (int i = 0; i < count; i++) {
        if (auto_fits(&levels[i], budget)) { return levels[i].recompute; }
    }
    return -1;
}

// Writes the level that was chosen, and the reason. level: -1 if none fits.
static inline void auto_explain_level(char *text, size_t size, int level, const AutoRoom *room) {
    char where[192];
    auto_room_text(where, sizeof(where), room);
    if (level < 0) {
        snprintf(text, size, "--recompute %d: it takes the least memory, but more than %s", RECOMPUTE_BLOCK, where);
    } else {
        snprintf(text, size, "--recompute %d: the lowest level that fits into %s", level, where);
    }
}

// ---- The gain of each level of --recompute ----

// Seconds that a level adds to a step. A difference that roundings make counts as none.
static inline double auto_added_seconds(const AutoCandidate levels[NUM_RECOMPUTE_LEVELS], int level) {
    double added = levels[level].seconds - levels[0].seconds;
    return fabs(added) > 1e-12 * levels[0].seconds ? added : 0.0;
}

// Bytes that a level saves against level 0, for each millisecond that it adds to a step.
static inline double auto_bytes_per_ms(const AutoCandidate levels[NUM_RECOMPUTE_LEVELS], int level) {
    double ms = 1e3 * auto_added_seconds(levels, level);
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
