// Unit tests of the schedules of pipelines. A player obeys the lists of all stages. A send ends only together with its
// receive, and no message has a tag, as in NCCL: a send to a rank meets the next receive from this rank. What travels
// is the identity of the data, so that each instruction sees whether it has the right data.
#include "dev/test/refused.h"
#include "llmc/ranks/schedule.h"

enum { MAX_STAGES = 8, MAX_CHUNKS = 4, MAX_MICRO_BATCHES = 32, MAX_FORWARDS = MAX_CHUNKS * MAX_MICRO_BATCHES };
enum { FORWARD_TIME = 1, BACKWARD_TIME = 2 }; // transfers take no time
enum { NOTHING, OUTPUT, GRADIENT };           // kinds of data

typedef struct {
    int kind, micro_batch, piece; // piece: of the model, which made it
} Data;
static const Data none = {NOTHING, 0, 0};

typedef struct {
    Pipeline p;
    PipeInstruction list[6 * MAX_FORWARDS + 1];
    int length, at;                            // at: what runs, an instruction or two that are joined
    bool sent, received;                       // of what runs
    Data slots[MAX_FORWARDS], coming, leaving; // activations, and the two gradients
    int held, most_held;                       // slots in use
    int forwards[MAX_CHUNKS], backwards[MAX_CHUNKS];
    int now, began; // began: what runs
} Stage;

typedef struct {
    Test *t;
    Stage stages[MAX_STAGES], *end;
    char name[96];
} Play;

// ---- What a stage does ----

static bool right(const Play *play, const Stage *s, const PipeInstruction *i, bool ok, const char *fault) {
    static const char *const names[] = {"GET_INPUT", "FORWARD", "PUT_OUTPUT", "GET_GRAD", "BACKWARD", "PUT_GRAD"};
    return CHECK(play->t, ok, "%s, stage %d, instruction %d, %s of micro-batch %d, chunk %d, slot %d: %s", play->name,
                 s->p.stage, (int)(i - s->list), names[i->action], i->micro_batch, i->chunk, i->slot, fault);
}

// What a piece makes of the micro-batch, some pieces behind this one. Beyond the ends of the model there is none.
static Data made(const Stage *s, const PipeInstruction *i, int kind, int pieces_behind) {
    int piece = i->chunk * s->p.stages + s->p.stage + pieces_behind;
    Data data = {kind, i->micro_batch, piece};
    return piece < 0 || piece >= s->p.stages * s->p.chunks ? none : data;
}

static bool same(Data a, Data b) { return a.kind == b.kind && a.micro_batch == b.micro_batch && a.piece == b.piece; }

static Data take(Data *from) {
    Data data = *from;
    *from = none;
    return data;
}

static void forward(const Play *play, Stage *s, const PipeInstruction *i) {
    Data *slot = &s->slots[i->slot];
    s->held += slot->kind == NOTHING;
    right(play, s, i, same(*slot, made(s, i, OUTPUT, -1)), "its slot has no input, or another one");
    right(play, s, i, s->forwards[i->chunk]++ == i->micro_batch, "not the next micro-batch of this chunk");
    *slot = made(s, i, OUTPUT, 0);
}

static void backward(const Play *play, Stage *s, const PipeInstruction *i) {
    right(play, s, i, same(take(&s->slots[i->slot]), made(s, i, OUTPUT, 0)), "its activations were overwritten");
    right(play, s, i, same(take(&s->coming), made(s, i, GRADIENT, 1)), "it has no gradient, or another one");
    right(play, s, i, s->leaving.kind == NOTHING, "the gradient before has not left");
    right(play, s, i, s->backwards[i->chunk]++ == i->micro_batch,
          "gradients are not added up in the order of micro-batches, so their sum has other bits than on one stage");
    s->held--;
    if (made(s, i, GRADIENT, -1).kind != NOTHING) { s->leaving = made(s, i, GRADIENT, 0); }
}

static Data put(const Play *play, Stage *s, const PipeInstruction *i) {
    bool output = i->action == PIPE_PUT_OUTPUT;
    Data sent = output ? s->slots[i->slot] : take(&s->leaving);
    right(play, s, i, same(sent, made(s, i, output ? OUTPUT : GRADIENT, 0)), "it sends something else");
    return sent;
}

static void get(const Play *play, Stage *s, const PipeInstruction *i, Data data) {
    bool input = i->action == PIPE_GET_INPUT;
    Data *to = input ? &s->slots[i->slot] : &s->coming;
    right(play, s, i, same(data, made(s, i, input ? OUTPUT : GRADIENT, input ? -1 : 1)), "it gets something else");
    right(play, s, i, to->kind == NOTHING, "it overwrites what is still needed");
    s->held += input;
    *to = data;
}

// ---- All stages together ----

// The send, or the receive, that runs and has not met its other side. NULL: there is none.
static const PipeInstruction *waits(const Stage *s, bool sends) {
    for (int i = s->at; i < s->length && i <= s->at + s->list[s->at].joined; i++) {
        bool is_it = (sends ? pipe_puts : pipe_gets)(s->list[i].action);
        if (is_it && !(sends ? s->sent : s->received)) { return &s->list[i]; }
    }
    return NULL;
}

static int later(int a, int b) { return a > b ? a : b; }

// Lets a send meet its receive. Returns false if one of them does not run.
static bool meet(Play *play, Stage *s) {
    const PipeInstruction *send = waits(s, true);
    if (send == NULL) { return false; }
    Stage *to = &play->stages[pipe_peer(&s->p, send->action)];
    const PipeInstruction *receive = waits(to, false);
    if (receive == NULL || pipe_peer(&to->p, receive->action) != s->p.stage) { return false; }
    get(play, to, receive, put(play, s, send));
    s->sent = to->received = true;
    to->now = later(to->now, s->began);
    return true;
}

// Computes, or goes on with a transfer. Returns false if the stage waits, or is at its end.
static bool act(Play *play, Stage *s) {
    if (s->at == s->length) { return false; }
    const PipeInstruction *i = &s->list[s->at];
    bool forwards = i->action == PIPE_FORWARD, backwards = i->action == PIPE_BACKWARD, met = meet(play, s);
    if (forwards) { forward(play, s, i); }
    if (backwards) { backward(play, s, i); }
    if (waits(s, true) || waits(s, false)) { return met; }
    s->most_held = later(s->most_held, s->held);
    // An evaluation needs an output only until it has left.
    bool leaves = i->action == PIPE_PUT_OUTPUT || (forwards && made(s, i, OUTPUT, 1).kind == NOTHING);
    if (s->p.schedule == PIPE_FORWARD_ONLY && leaves) { s->held -= take(&s->slots[i->slot]).kind != NOTHING; }
    int time = forwards ? FORWARD_TIME : backwards ? BACKWARD_TIME : 0;
    s->began = s->now += time;
    s->sent = s->received = false;
    s->at += 1 + i->joined;
    return true;
}

// ---- What must come out ----

static int expected_slots(const Pipeline *p) {
    int behind = p->stages - p->stage - 1, n = p->micro_batches * p->chunks;
    const int most[] = {n, behind + 1, 2 * behind + (p->chunks - 1) * p->stages + 1, p->chunks > 1 ? 2 : 1};
    return n < most[p->schedule] ? n : most[p->schedule];
}

// Writes the list of a stage. Its length is what pipe_length() says, and all its numbers are in range.
static bool write_list(Play *play, Stage *s, Pipeline p) {
    s->p = p, s->length = pipe_length(&p);
    for (int i = 0; i <= s->length; i++) { s->list[i].slot = -1; }
    pipe_write(&p, s->list);
    bool ok = right(play, s, &s->list[s->length], s->list[s->length].slot == -1, "the list is too long");
    ok = CHECK(play->t, pipe_check(&p, &error), "%s: %s", play->name, error.text) && ok;
    for (const PipeInstruction *i = s->list; ok && i < s->list + s->length; i++) {
        bool there = i->micro_batch >= 0 && i->micro_batch < p.micro_batches && i->chunk >= 0 && i->chunk < p.chunks &&
                     i->slot >= 0 && i->slot < expected_slots(&p);
        ok = right(play, s, i, there, "there is no such micro-batch, chunk or slot");
    }
    return ok;
}

static void check_stage(const Play *play, const Stage *s) {
    int m = s->p.micro_batches, backwards = s->p.schedule == PIPE_FORWARD_ONLY ? 0 : m, slots = expected_slots(&s->p);
    bool all = s->held == 0 && s->coming.kind == NOTHING && s->leaving.kind == NOTHING;
    for (int c = 0; c < s->p.chunks; c++) { all &= s->forwards[c] == m && s->backwards[c] == backwards; }
    right(play, s, &s->list[s->at], s->at == s->length, "it waits for ever");
    CHECK(play->t, all, "%s, stage %d: a forward or a backward is missing", play->name, s->p.stage);
    CHECK(play->t, s->most_held == slots && pipe_num_slots(&s->p) == slots, "%s, stage %d: uses %d slots of %d, not %d",
          play->name, s->p.stage, s->most_held, pipe_num_slots(&s->p), slots);
}

// A stage is idle for (stages - 1) / (n + stages - 1) of a step of n forwards.
static void check_times(const Play *play, const Pipeline *p) {
    int n = p->micro_batches * p->chunks, others = p->stages - 1, time = 0;
    for (const Stage *s = play->stages; s < play->end; s++) { time = later(time, s->now); }
    int idle = time - n * (FORWARD_TIME + BACKWARD_TIME);
    CHECK(play->t, idle * (n + others) == others * time, "%s: idle for %d of %d, expected %d of %d", play->name, idle,
          time, others, n + others);
}

static void play_one(Test *t, Pipeline p) {
    static Play play;
    memset(&play, 0, sizeof(play));
    play.t = t;
    play.end = play.stages + p.stages;
    snprintf(play.name, sizeof(play.name), "%s, %d stages of %d chunks, %d micro-batches", pipe_names[p.schedule],
             p.stages, p.chunks, p.micro_batches);
    bool acts = true;
    for (; p.stage < p.stages; p.stage++) { acts &= write_list(&play, &play.stages[p.stage], p); }
    while (acts) {
        acts = false;
        for (Stage *s = play.stages; s < play.end; s++) { acts |= act(&play, s); }
    }
    for (Stage *s = play.stages; s < play.end; s++) { check_stage(&play, s); }
    if (p.schedule != PIPE_FORWARD_ONLY) { check_times(&play, &p); }
}

static void play_all(Test *t, PipeSchedule schedule, int first_chunks, int last_chunks) {
    bool ring = schedule == PIPE_INTERLEAVED;
    for (int stages = 1 + ring; stages <= MAX_STAGES; stages++) {
        int step = ring ? stages : 1;
        for (int chunks = first_chunks; chunks <= (stages > 1 ? last_chunks : 1); chunks++) {
            Pipeline p = {schedule, stages, 0, chunks, step};
            for (; p.micro_batches <= MAX_MICRO_BATCHES; p.micro_batches += step) { play_one(t, p); }
        }
    }
}

TEST(test_afab) { play_all(t, PIPE_AFAB, 1, 1); }
TEST(test_1f1b) { play_all(t, PIPE_1F1B, 1, 1); }
TEST(test_interleaved) { play_all(t, PIPE_INTERLEAVED, 2, MAX_CHUNKS); }
TEST(test_forward_only) { play_all(t, PIPE_FORWARD_ONLY, 1, MAX_CHUNKS); }

static const struct {
    Pipeline p;
    const char *why;
} refused[] = {
    {{PIPE_1F1B, 4, 4, 1, 8}, "1f1b: no stage 4 of 4 stages"},
    {{PIPE_AFAB, 4, 0, 1, 0}, "afab: 0 micro-batches, expected 1 or more"},
    {{PIPE_AFAB, 4, 0, 2, 8}, "afab: 2 chunks in each of 4 stages, not 1"},
    {{PIPE_INTERLEAVED, 4, 0, 1, 8}, "interleaved: 1 chunks in a stage, expected 2 or more"},
    {{PIPE_INTERLEAVED, 4, 0, 2, 6}, "interleaved: 6 micro-batches are no multiple of 4 stages"},
    {{PIPE_AFAB, 1, 0, 1, 1 << 29}, "afab: 536870912 micro-batches are too many"},
};

TEST(test_refusals) {
    FOR_EACH(i, refused) { REFUSED(t, pipe_check(&refused[i].p, &error), refused[i].why, ""); }
}
