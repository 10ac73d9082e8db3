// Steps 1 to 5, which are plain C. dev/cpu/plain.c is compiled twice, so there are two of each: one multiplies number
// by number, the other has the compiler's vectors.
#ifndef LADDER_PLAIN_H
#define LADDER_PLAIN_H

#include "dev/cpu/problem.h"

enum { PLAIN_STEPS = 5 };

typedef struct {
    void (*steps[PLAIN_STEPS])(const Problem *);
    // One multiply-add in each chain and iteration, each needs the one before it in its chain.
    float (*burn_chain)(int64_t iterations);  // 1 chain
    float (*burn_chains)(int64_t iterations); // PLAIN_CHAINS chains
} Plain;

enum { PLAIN_CHAINS = 12 };

extern const Plain plain_scalar, plain_vectors;

#endif // LADDER_PLAIN_H
