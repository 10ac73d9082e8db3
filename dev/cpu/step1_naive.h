// Step 1: the definition. C_ij is the sum over k of A_ik B_kj.
//
// Two things cost time. (1) A sum waits for itself: each multiply-add needs the sum before it, which takes 4 cycles to
// come out, though a core could begin two each cycle. (2) B is read down a column. Each number comes with the other 15
// of its cache line, 64 bytes, which nobody wants now. The line is gone again before its neighbour is asked for.
//
//     per multiply-add: 2 loads, 0 stores, a chain of 1, 64 bytes from far away
#ifndef LADDER_STEP1_H
#define LADDER_STEP1_H

#include "dev/cpu/problem.h"

static inline void step1_naive(const Problem *p) {
    for (int64_t i = 0; i < p->M; i++) {
        for (int64_t j = 0; j < p->N; j++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < p->K; k++) { sum += p->A[i * p->K + k] * p->B[k * p->N + j]; }
            p->C[i * p->N + j] = sum;
        }
    }
}

#endif // LADDER_STEP1_H
