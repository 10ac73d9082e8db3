// Projects 1, 5 and 7 of doc/projects.md: what their answers use, and their checks.
#include "dev/exercises/chapter.h"
#include "dev/exercises/pipeline.h"

// ---- What the answers use ----

enum { SEQUENCES = 2, TOKENS = 5, ROWS = SEQUENCES * TOKENS, CHANNELS = 8, HEADS = 2 };

// Weights of a block, or their gradients. A linear layer's weight is (outputs, inputs).
typedef struct {
    float ln1w[CHANNELS], ln1b[CHANNELS], qkvw[3 * CHANNELS * CHANNELS], qkvb[3 * CHANNELS];
    float attprojw[CHANNELS * CHANNELS], attprojb[CHANNELS], ln2w[CHANNELS], ln2b[CHANNELS];
    float fcw[4 * CHANNELS * CHANNELS], fcb[4 * CHANNELS], fcprojw[4 * CHANNELS * CHANNELS], fcprojb[CHANNELS];
} BlockWeights;

// What the forward keeps. mid (ROWS,CHANNELS) is x plus the attention sublayer.
typedef struct {
    float ln1[ROWS * CHANNELS], mean1[ROWS], rstd1[ROWS], qkv[ROWS * 3 * CHANNELS], att[ROWS * CHANNELS];
    float lse[ROWS * HEADS], mid[ROWS * CHANNELS], ln2[ROWS * CHANNELS], mean2[ROWS], rstd2[ROWS];
    float fc[ROWS * 4 * CHANNELS], gelu[ROWS * 4 * CHANNELS];
} BlockActs;

// out, x (ROWS,CHANNELS): SEQUENCES sequences of TOKENS tokens. `cpu_matmul_forward` adds its second argument.
static void block_forward(float *out, BlockActs *a, const float *x, const BlockWeights *w) {
    cpu_layernorm_forward(a->ln1, a->mean1, a->rstd1, x, w->ln1w, w->ln1b, ROWS, CHANNELS);
    cpu_matmul_forward(a->qkv, NULL, a->ln1, w->qkvw, w->qkvb, ROWS, CHANNELS, 3 * CHANNELS);
    cpu_attention_forward(a->att, a->lse, a->qkv, SEQUENCES, TOKENS, CHANNELS, HEADS);
    cpu_matmul_forward(a->mid, x, a->att, w->attprojw, w->attprojb, ROWS, CHANNELS, CHANNELS);
    cpu_layernorm_forward(a->ln2, a->mean2, a->rstd2, a->mid, w->ln2w, w->ln2b, ROWS, CHANNELS);
    cpu_matmul_forward(a->fc, NULL, a->ln2, w->fcw, w->fcb, ROWS, CHANNELS, 4 * CHANNELS);
    cpu_gelu_forward(a->gelu, a->fc, ROWS * 4 * CHANNELS);
    cpu_matmul_forward(out, a->mid, a->gelu, w->fcprojw, w->fcprojb, ROWS, 4 * CHANNELS, CHANNELS);
}

// What a stage does, for one micro-batch. A put ends when the neighbour has reached the get that belongs to it, and a
// get waits for its put. joined: this put and the get behind it run at once.
typedef struct {
    PipeAction action; // PIPE_GET_INPUT, _FORWARD, _PUT_OUTPUT, _GET_GRAD, _BACKWARD or _PUT_GRAD
    int micro_batch;
    bool joined;
} StageWork;

#include ANSWERS

// ---- Project 1: every gradient beside the slope of the loss ----

typedef struct {
    float x[ROWS * CHANNELS];
    BlockWeights w;
} BlockInput;

enum { BLOCK_NUMBERS = sizeof(BlockInput) / sizeof(float) };

static float block_dout[ROWS * CHANNELS];

// The sum of dout * out, whose gradient by out is dout.
static double block_loss(const double *numbers) {
    static BlockInput in;
    static BlockActs a;
    float out[ROWS * CHANNELS];
    double loss = 0.0;
    for (int i = 0; i < BLOCK_NUMBERS; i++) { ((float *)&in)[i] = (float)numbers[i]; }
    block_forward(out, &a, in.x, &in.w);
    for (int i = 0; i < ROWS * CHANNELS; i++) { loss += (double)block_dout[i] * (double)out[i]; }
    return loss;
}

// The tensors of BlockInput, in its order.
static const struct {
    const char *name;
    int size;
} block_tensors[] = {
    {"dx", ROWS *CHANNELS},  {"dln1w", CHANNELS},
    {"dln1b", CHANNELS},     {"dqkvw", 3 * CHANNELS *CHANNELS},
    {"dqkvb", 3 * CHANNELS}, {"dattprojw", CHANNELS *CHANNELS},
    {"dattprojb", CHANNELS}, {"dln2w", CHANNELS},
    {"dln2b", CHANNELS},     {"dfcw", 4 * CHANNELS *CHANNELS},
    {"dfcb", 4 * CHANNELS},  {"dfcprojw", 4 * CHANNELS *CHANNELS},
    {"dfcprojb", CHANNELS},
};

// A difference over 2 h is off by the rounding of the loss, some epsilons over h, and by the third derivative, which
// makes h * h. With h = 2^-7 both are below a hundredth of a tensor's largest slope. The last tensor comes first, as in
// the backward, and the check ends at the first wrong one: a wrong gradient makes all that follow from it wrong.
static void check_block(Test *t) {
    static double numbers[BLOCK_NUMBERS];
    static BlockInput in, slopes, got;
    static BlockActs a;
    float out[ROWS * CHANNELS], *values = (float *)&in;
    random_floats(values, BLOCK_NUMBERS, 100, 1);
    random_floats(block_dout, ROWS * CHANNELS, 100, 2);
    as_doubles(numbers, values, BLOCK_NUMBERS);
    slopes_of((float *)&slopes, numbers, BLOCK_NUMBERS, 1.0 / 128.0, block_loss);
    block_forward(out, &a, in.x, &in.w);
    for (int i = 0; i < BLOCK_NUMBERS; i++) { ((float *)&got)[i] = 1.0f; } // gradients are added to what is there
    block_backward(got.x, &got.w, block_dout, in.x, &in.w, &a);
    const float *have = (const float *)&got;
    float *want = (float *)&slopes;
    size_t tensors = sizeof(block_tensors) / sizeof(block_tensors[0]), first = BLOCK_NUMBERS;
    for (size_t k = tensors; k-- > 0;) {
        float largest = 0.0f;
        size_t size = (size_t)block_tensors[k].size;
        first -= size;
        for (size_t i = first; i < first + size; i++) {
            largest = fmaxf(largest, fabsf(want[i]));
            want[i] += k == 0 ? 0.0f : 1.0f;
        }
        if (!check_close(t, block_tensors[k].name, have + first, want + first, size, 0.01 * (double)largest, 0.0)) {
            if (k + 1 < tensors) { printf("  What a backward computes before %s is right.\n", block_tensors[k].name); }
            return;
        }
    }
}

// ---- Project 5 ----

enum { ROPE_T = 7, ROPE_N = 3 * ROPE_T, ROPE_NH = 4, ROPE_KV = 2, ROPE_HS = 6 };
enum { ROPE_WIDTH = (ROPE_NH + 2 * ROPE_KV) * ROPE_HS, ROPE_NUMBERS = ROPE_N * ROPE_WIDTH };

// Compares head by head. The first wrong one is enough.
static bool check_heads(Test *t, const char *what, const float *got, const float *want, double tolerance) {
    const int keys = ROPE_NH, values = ROPE_NH + ROPE_KV, heads = values + ROPE_KV;
    for (int i = 0; i < ROPE_N * heads; i++) {
        int h = i % heads, begin = h < keys ? 0 : h < values ? keys : values;
        const char *kind = h < keys ? "query" : h < values ? "key" : "value";
        char name[64];
        snprintf(name, sizeof(name), "%s, row %d, %s head %d", what, i / heads, kind, h - begin);
        if (!check_close(t, name, got + i * ROPE_HS, want + i * ROPE_HS, ROPE_HS, tolerance, tolerance)) {
            return false;
        }
    }
    return true;
}

// An angle up to 7 is off by an epsilon of itself if it was computed in floats, a turned number by two roundings more.
static void check_rope(Test *t) {
    const double theta = 10000.0, tolerance = 16.0 * (double)FLT_EPSILON;
    static float table[ROPE_T * ROPE_HS], want_table[ROPE_T * ROPE_HS];
    static float qkv[ROPE_NUMBERS], want[ROPE_NUMBERS], other_way[ROPE_NUMBERS];
    for (int i = 0; i < ROPE_T * ROPE_HS / 2; i++) {
        double angle = i / (ROPE_HS / 2) * pow(theta, -2.0 * (i % (ROPE_HS / 2)) / ROPE_HS);
        want_table[2 * i] = (float)cos(angle), want_table[2 * i + 1] = (float)sin(angle);
    }
    rope_table(table, ROPE_T, ROPE_HS, theta);
    check_close(t, "table", table, want_table, ROPE_T * ROPE_HS, tolerance, 0.0);
    random_floats(qkv, ROPE_NUMBERS, 100, 3);
    memcpy(want, qkv, sizeof(want)), memcpy(other_way, qkv, sizeof(want));
    rope_forward(qkv, want_table, ROPE_N, ROPE_T, ROPE_NH, ROPE_KV, ROPE_HS);
    cpu_rope_forward(want, want_table, ROPE_N, ROPE_T, ROPE_NH, ROPE_KV, ROPE_HS);
    cpu_rope_backward(other_way, want_table, ROPE_N, ROPE_T, ROPE_NH, ROPE_KV, ROPE_HS);
    check_heads(t, "qkv", qkv, want, tolerance);
    likely(t, qkv, other_way, ROPE_NUMBERS, "the pairs are turned by -a, not by a.");
    memcpy(qkv, want, sizeof(want)), memcpy(other_way, want, sizeof(want));
    rope_backward(qkv, want_table, ROPE_N, ROPE_T, ROPE_NH, ROPE_KV, ROPE_HS);
    cpu_rope_backward(want, want_table, ROPE_N, ROPE_T, ROPE_NH, ROPE_KV, ROPE_HS);
    cpu_rope_forward(other_way, want_table, ROPE_N, ROPE_T, ROPE_NH, ROPE_KV, ROPE_HS);
    check_heads(t, "dqkv", qkv, want, tolerance);
    likely(t, qkv, other_way, ROPE_NUMBERS, "the gradient is turned by a, as the numbers were, not back.");
}

// ---- Project 7: the lists of all stages, played on a clock ----

typedef struct {
    StageWork work[6 * MOST_MICRO_BATCHES];
    int length, at, kept, backwards; // at: the first entry that has not ended; kept: micro-batches with activations
    bool met[2];                     // the neighbour has come to entry `at`, and to the one joined to it
    bool done[6][MOST_MICRO_BATCHES];
    double now, met_at; // met_at: when the last neighbour came
} Stage;

static Stage stages_of_play[MOST_STAGES];

static int num_joined(const Stage *s) { return s->work[s->at].joined ? 2 : 1; }

// Returns what is wrong with an entry when its stage reaches it, or NULL.
static const char *fault_of(const Pipeline *p, const Stage *s, int stage, const StageWork *w) {
    int m = w->micro_batch, peer = stage + pipe_way[w->action];
    if (m < 0 || m >= p->micro_batches) { return "there is no such micro-batch"; }
    if (peer < 0 || peer >= p->stages) { return "there is no such neighbour"; }
    if (s->done[w->action][m]) { return "it was done before"; }
    bool has_input = stage == 0 || s->done[PIPE_GET_INPUT][m];
    bool has_grad = stage == p->stages - 1 ? s->done[PIPE_FORWARD][m] : s->done[PIPE_GET_GRAD][m];
    if (w->action == PIPE_FORWARD && !has_input) { return "its input is not there"; }
    if (w->action == PIPE_PUT_OUTPUT && !s->done[PIPE_FORWARD][m]) { return "its output is not there"; }
    if (w->action == PIPE_BACKWARD && !has_grad) { return "its gradient is not there"; }
    if (w->action == PIPE_PUT_GRAD && !s->done[PIPE_BACKWARD][m]) { return "its gradient is not computed"; }
    if (w->action == PIPE_BACKWARD && m != s->backwards) { return "backwards come in the order of micro-batches"; }
    bool keeps = w->action == (stage == 0 ? PIPE_FORWARD : PIPE_GET_INPUT);
    return keeps && s->kept == p->stages - stage ? "more than stages - stage micro-batches are kept" : NULL;
}

// Lets put k of a stage meet the get of its neighbour, if both have come to it.
static void meet(Stage *s, int k) {
    const StageWork *w = &s->work[s->at + k];
    Stage *peer = s + pipe_way[w->action];
    PipeAction get = w->action == PIPE_PUT_OUTPUT ? PIPE_GET_INPUT : PIPE_GET_GRAD;
    for (int j = 0; pipe_puts(w->action) && peer->at < peer->length && j < num_joined(peer); j++) {
        const StageWork *other = &peer->work[peer->at + j];
        if (other->action != get || other->micro_batch != w->micro_batch) { continue; }
        double time = fmax(s->now, peer->now);
        s->met[k] = peer->met[j] = true;
        s->met_at = fmax(s->met_at, time), peer->met_at = fmax(peer->met_at, time);
    }
}

// Ends the entries that a stage has reached, if all have met. Returns false if they still wait.
static bool end_entries(Stage *s, int stage) {
    int n = num_joined(s);
    for (int k = 0; k < n; k++) {
        if (pipe_way[s->work[s->at + k].action] != 0 && !s->met[k]) { return false; }
    }
    for (int k = 0; k < n; k++) {
        const StageWork *w = &s->work[s->at++];
        s->done[w->action][w->micro_batch] = true;
        s->now = fmax(s->now, s->met_at) + (w->action == PIPE_FORWARD ? 1.0 : w->action == PIPE_BACKWARD ? 2.0 : 0.0);
        s->kept += (w->action == (stage == 0 ? PIPE_FORWARD : PIPE_GET_INPUT)) - (w->action == PIPE_BACKWARD);
        s->backwards += w->action == PIPE_BACKWARD;
        s->met[k] = false;
    }
    return true;
}

static const char *const action_names[] = {"get input",    "forward",  "put output",
                                           "get gradient", "backward", "put gradient"};

#define STEP "stages = %d, micro_batches = %d: "

// Plays the lists. Returns the time of the last stage's end; < 0: there was a fault, and it was said.
static double play_stages(Test *t, const Pipeline *p) {
    double end = 0.0;
    for (bool moves = true; moves;) {
        moves = false;
        for (int i = 0; i < p->stages; i++) {
            Stage *s = &stages_of_play[i];
            if (s->at == s->length) { continue; }
            const StageWork *w = &s->work[s->at];
            bool pair =
                !w->joined || (s->at + 1 < s->length && pipe_puts(w->action) && pipe_gets(w[1].action) && !w[1].joined);
            for (int k = 0; k < (pair ? num_joined(s) : 1); k++) {
                const char *fault = pair ? fault_of(p, s, i, w + k) : "only a put and the get behind it can be joined";
                if (!CHECK(t, fault == NULL, STEP "stage %d, entry %d, %s %d: %s", p->stages, p->micro_batches, i,
                           s->at + k, action_names[w[k].action], w[k].micro_batch, fault)) {
                    return -1.0;
                }
                meet(s, k);
            }
            moves = end_entries(s, i) || moves;
            end = fmax(end, s->now);
        }
    }
    for (int i = 0; i < p->stages; i++) {
        const Stage *s = &stages_of_play[i];
        // A stage waits for another, so the reader needs the entries of both.
        CHECK(t, s->at == s->length, STEP "stage %d waits for ever in entry %d, %s %d", p->stages, p->micro_batches, i,
              s->at, action_names[s->work[s->at].action], s->work[s->at].micro_batch);
        CHECK(t, s->at < s->length || s->backwards == p->micro_batches, STEP "stage %d does %d backwards", p->stages,
              p->micro_batches, i, s->backwards);
    }
    return t->failures == 0 ? end : -1.0;
}

// A step takes a forward and a backward for each micro-batch, and those of the stages before and behind.
static void check_pipeline(Test *t) {
    for (int stages = 1; stages <= 5; stages++) {
        for (int micro_batches = 1; micro_batches <= 9; micro_batches++) {
            Pipeline p = {PIPE_1F1B, stages, 0, 1, micro_batches};
            memset(stages_of_play, 0, sizeof(stages_of_play));
            for (int i = 0; i < stages; i++) {
                Stage *s = &stages_of_play[i];
                s->length = stage_work(s->work, stages, i, micro_batches);
            }
            double end = play_stages(t, &p), least = 3.0 * (micro_batches + stages - 1);
            if (end < 0.0 ||
                !CHECK(t, end == least, STEP "the step takes %.0f, expected %.0f", stages, micro_batches, end, least)) {
                return;
            }
        }
    }
}

static void example(void) {}

static const Exercise exercises[] = {{"project 1, the backward of a block", check_block},
                                     {"project 5, rotary positions", check_rope},
                                     {"project 7, a pipeline", check_pipeline}};

int main(void) { return run_chapter("projects_cpu", example, exercises); }
