// Plays the lists of a pipeline's stages (llmc/ranks/schedule.h) on a clock, for chapter 17 and its figure.
#ifndef PIPELINE_H
#define PIPELINE_H

#include <math.h>

#include "llmc/ranks/schedule.h"

enum { MOST_STAGES = 8, MOST_MICRO_BATCHES = 32, MOST_CHUNKS = 4 };
enum { MOST_INSTRUCTIONS = 6 * MOST_MICRO_BATCHES * MOST_CHUNKS };

// Writes the list of a stage, and returns its length.
static inline int list_of_stage(PipeInstruction *list, Pipeline p, int stage) {
    p.stage = stage;
    pipe_write(&p, list);
    return pipe_length(&p);
}

// Holds the time at which the output of a piece, and its gradient, is there for a micro-batch; < 0: not yet.
typedef struct {
    double output[MOST_STAGES * MOST_CHUNKS + 1][MOST_MICRO_BATCHES];
    double grad[MOST_STAGES * MOST_CHUNKS + 1][MOST_MICRO_BATCHES];
} Arrivals;

// Does one instruction of a stage at time *now. Returns false if it has to wait for another stage. A chunk's forward
// takes 1, its backward 2, a transfer nothing.
static inline bool play_instruction(Arrivals *at, const PipeInstruction *i, int piece, double *now) {
    double *output = at->output[piece], *grad = at->grad[piece];
    if (i->action == PIPE_GET_INPUT || i->action == PIPE_GET_GRAD) {
        bool input = i->action == PIPE_GET_INPUT;
        double there = input ? at->output[piece - 1][i->micro_batch] : at->grad[piece + 1][i->micro_batch];
        *now = fmax(*now, there);
        return there >= 0.0;
    }
    if (i->action == PIPE_FORWARD) { *now += 1.0; }
    if (i->action == PIPE_BACKWARD) { *now += 2.0; }
    if (i->action == PIPE_PUT_OUTPUT) { output[i->micro_batch] = *now; }
    if (i->action == PIPE_PUT_GRAD) { grad[i->micro_batch] = *now; }
    return true;
}

// Plays the lists of all stages, and calls played for each instruction that a stage has done from `begin` on, unless it
// is NULL. Returns the time of the last stage's end. NAN: the stages wait for each other for ever.
static inline double play_pipeline(const Pipeline *p,
                                   void (*played)(int stage, const PipeInstruction *, double begin)) {
    static PipeInstruction lists[MOST_STAGES][MOST_INSTRUCTIONS];
    static Arrivals at;
    int length[MOST_STAGES], done[MOST_STAGES] = {0}, left = 0;
    double now[MOST_STAGES] = {0}, end = 0.0;
    for (int piece = 0; piece <= p->stages * p->chunks; piece++) {
        for (int m = 0; m < p->micro_batches; m++) { at.output[piece][m] = at.grad[piece][m] = -1.0; }
    }
    for (int s = 0; s < p->stages; s++) { left += length[s] = list_of_stage(lists[s], *p, s); }
    for (int before = left + 1; left > 0 && left < before;) {
        before = left;
        for (int s = 0; s < p->stages; s++) {
            for (; done[s] < length[s]; done[s]++, left--) {
                const PipeInstruction *i = &lists[s][done[s]];
                double begin = now[s];
                if (!play_instruction(&at, i, i->chunk * p->stages + s, &now[s])) { break; }
                if (played != NULL) { played(s, i, begin); }
            }
            end = fmax(end, now[s]);
        }
    }
    return left > 0 ? NAN : end;
}

#endif // PIPELINE_H
