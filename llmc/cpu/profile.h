// Measures how long each phase of a training step takes, and prints it beside the machine's limits, for --profile.
//
// The trainer calls profile_enter where a phase begins. A phase lasts until the next one begins. The calls cost nothing
// to speak of without --profile, and outside a step.
#ifndef LLMC_PROFILE_H
#define LLMC_PROFILE_H

#include "llmc/base/utils.h"
#include "llmc/model/activations.h"
#include "llmc/model/muon.h"

// The phases of a step: name, label, what limits it, and its work: floating-point operations, or bytes that it must
// read and write if every pass over an array comes from memory. N tokens of a step, T of a sequence; L, C, V as usual;
// P parameters, by_muon of them Muon's. again[level]: the part of the blocks that --recompute computes twice from this
// level on.
#define PROFILE_PHASES(X)                                                                                              \
    X(EMBEDDING, "embedding", BYTES, 4 * 8 * N * C)                                                                    \
    X(LAYERNORM, "layernorm", BYTES, 4 * N * C * ((2 * L + 1) * 8 + 2 * L * 2 * again[RECOMPUTE_LAYERNORM]))           \
    X(MATMUL_FORWARD, "matmul forward", FLOPS, 2 * N * L * C * C * (12 + 8 * again[RECOMPUTE_BLOCK]))                  \
    X(MATMUL_DX, "matmul dx", FLOPS, 2 * N * L * C * C * 12)                                                           \
    X(MATMUL_DW, "matmul dW", FLOPS, 2 * N * L * C * C * 12)                                                           \
    X(BIAS, "bias gradients", BYTES, 4 * N * L * 9 * C)                                                                \
    X(ATTENTION_FORWARD, "attention forward", FLOPS, 2 * N * L * C * (T + 1) * (1 + again[RECOMPUTE_BLOCK]))           \
    X(ATTENTION_BACKWARD, "attention backward", FLOPS, 5 * N * L * C * (T + 1))                                        \
    X(GELU, "gelu", BYTES, 4 * N * L * 4 * C * (5 + 2 * again[RECOMPUTE_GELU]))                                        \
    X(HEAD, "head", FLOPS, 6 * N * C * V)                                                                              \
    X(CROSS_ENTROPY, "cross entropy", BYTES, 4 * 2 * N * V)                                                            \
    X(CLEARING, "gradient clearing", BYTES, 4 * C * (config->max_seq_len + padding + 13 * L + 2))                      \
    X(NORM, "gradient norm", BYTES, 4 * P)                                                                             \
    X(ADAMW, "AdamW", BYTES, 4 * 7 * (P - by_muon))                                                                    \
    X(MUON, "Muon", FLOPS, muon_model_flops(config))                                                                   \
    X(OTHER, "other", NOTHING, 0)

typedef enum { PROFILE_FLOPS, PROFILE_BYTES, PROFILE_NOTHING } ProfileLimit;

#define PROFILE_NUMBER(phase, ...) PROFILE_##phase,
typedef enum { PROFILE_PHASES(PROFILE_NUMBER) NUM_PROFILE_PHASES } ProfilePhase;

static const struct {
    const char *label;
    ProfileLimit limit;
} profile_phases[] = {
#define PROFILE_LABEL(phase, label, limit, ...) {label, PROFILE_##limit},
    PROFILE_PHASES(PROFILE_LABEL)};

typedef struct {
    bool is_on, in_step;
    ProfilePhase phase; // under way
    double since;       // when it began
    double seconds[NUM_PROFILE_PHASES];
    int64_t steps, skipped;
    double limits[2]; // of this machine: operations, bytes a second
} Profile;

static inline void profile_begin(Profile *profile, double flops, double bytes) {
    memset(profile, 0, sizeof(*profile));
    profile->is_on = true, profile->limits[PROFILE_FLOPS] = flops, profile->limits[PROFILE_BYTES] = bytes;
}

// Ends the phase under way. What follows belongs to `phase`.
static inline void profile_enter(Profile *profile, ProfilePhase phase) {
    if (!profile->in_step) { return; }
    double now = seconds_now();
    profile->seconds[profile->phase] += now - profile->since;
    profile->phase = phase, profile->since = now;
}

// Begins a step. Forgets the first one, which waits for new memory, as soon as there is a second.
static inline void profile_begin_step(Profile *profile) {
    if (profile->steps == 1 && profile->skipped == 0) {
        memset(profile->seconds, 0, sizeof(profile->seconds));
        profile->steps = 0, profile->skipped = 1;
    }
    profile->in_step = profile->is_on, profile->phase = PROFILE_OTHER, profile->since = seconds_now();
}

static inline void profile_end_step(Profile *profile) {
    profile_enter(profile, PROFILE_OTHER);
    profile->steps += profile->in_step;
    profile->in_step = false;
}

// Computes the work of each phase of a step of so many tokens.
static inline void profile_work(double work[NUM_PROFILE_PHASES], const GPT2Config *config, int64_t tokens, int seq_len,
                                int recompute, bool muon) {
    double N = (double)tokens, T = seq_len, L = config->num_layers, C = config->channels, V = config->vocab_size;
    double P = (double)gpt2_num_params(config), padding = config->padded_vocab_size - V, again[NUM_RECOMPUTE_LEVELS];
    double by_muon = P - (double)gpt2_length_of_v(config, muon ? OPTIMIZER_MUON : OPTIMIZER_ADAMW);
    for (int level = 0; level < NUM_RECOMPUTE_LEVELS; level++) {
        again[level] = recompute < level ? 0.0 : 1.0 - 1.0 / L;
    }
#define PROFILE_WORK(phase, label, limit, ...) work[PROFILE_##phase] = __VA_ARGS__;
    PROFILE_PHASES(PROFILE_WORK)
}

static inline void profile_print_row(const char *label, double seconds, double step) {
    say(stdout, "%-20s %10.2f  %5.1f%%", label, 1e3 * seconds, 100.0 * seconds / step);
}

// Prints the mean of the steps, phase by phase. Prints nothing without --profile.
static inline void profile_print(const Profile *profile, const GPT2Config *config, int64_t tokens, int seq_len,
                                 int recompute) {
    double work[NUM_PROFILE_PHASES], step = 0.0, steps = (double)profile->steps;
    if (profile->steps == 0) { return; }
    profile_work(work, config, tokens, seq_len, recompute, profile->seconds[PROFILE_MUON] > 0.0);
    for (int i = 0; i < NUM_PROFILE_PHASES; i++) { step += profile->seconds[i] / steps; }
    say(stdout, "\nprofile of %lld steps%s; limits: %.0f GFLOP/s, memory at %.1f GB/s as AdamW uses it\n",
        (long long)profile->steps, profile->skipped > 0 ? " after the first" : "",
        1e-9 * profile->limits[PROFILE_FLOPS], 1e-9 * profile->limits[PROFILE_BYTES]);
    say(stdout, "%-20s %10s  %6s %16s  %8s\n", "phase", "ms a step", "share", "rate", "of limit");
    for (int i = 0; i < NUM_PROFILE_PHASES; i++) {
        ProfileLimit limit = profile_phases[i].limit;
        if (i == PROFILE_MUON && profile->seconds[i] == 0.0) { continue; } // the optimizer is AdamW
        double seconds = profile->seconds[i] / steps, rate = work[i] / seconds;
        profile_print_row(profile_phases[i].label, seconds, step);
        if (limit != PROFILE_NOTHING && seconds > 0.0 && profile->limits[limit] > 0.0) {
            say(stdout, " %8.1f %s  %7.0f%%", 1e-9 * rate, limit == PROFILE_FLOPS ? "GFLOP/s" : "GB/s   ",
                100.0 * rate / profile->limits[limit]);
        }
        say(stdout, "\n");
    }
    profile_print_row("step", step, step);
    say(stdout, "\n");
}

#endif // LLMC_PROFILE_H
