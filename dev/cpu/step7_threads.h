// Step 7: threads. Each core gets a part of the rows of C, and computes it as in step 6.
//
// The parts share nothing that is written, so no thread waits for another, and the bits do not depend on the number of
// threads. Each core has registers and first caches of its own. The last cache and the memory serve all cores together,
// so the gain is smaller if they are the bound; that is why the steps before come first.
// The price: each thread packs all of B for itself. With many threads that becomes the larger part of the work.
// llmc/cpu/gemm.h therefore cuts C into parts that are as square as possible.
//
//     the bound of step 6 times the number of cores
#ifndef LADDER_STEP7_H
#define LADDER_STEP7_H

#include "dev/cpu/step6_vectors.h"

// Runs a step on parts of the rows, each a whole number of tiles.
static inline void on_threads(const Problem *p, void (*step)(const Problem *)) {
    const int64_t tile = 16, tiles = ceil_div_i64(p->M, tile);
#pragma omp parallel for num_threads(p->threads) schedule(static, 1)
    for (int thread = 0; thread < p->threads; thread++) {
        int64_t m = thread * tiles / p->threads * tile, end = min_i64((thread + 1) * tiles / p->threads * tile, p->M);
        Problem part = *p;
        part.M = end - m;
        part.A += m * p->K, part.C += m * p->N, part.workspace += thread * LADDER_WORKSPACE;
        if (part.M > 0) { step(&part); }
    }
}

static inline void step7_threads(const Problem *p) { on_threads(p, step6_vectors); }

#endif // LADDER_STEP7_H
