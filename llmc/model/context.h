// Context parallelism (Llama 3, 2024): ranks share each sequence. It is cut in 2 * size equal chunks, and a rank holds
// two of them: chunk `rank` counted from the front, and chunk `rank` counted from the back. Early chunks see few keys
// and late chunks many, so each rank has equal work.
#ifndef LLMC_CONTEXT_H
#define LLMC_CONTEXT_H

#include <stdbool.h>

// Kernels ask for positions, too.
#ifdef __CUDACC__
#define CONTEXT_HOST_DEVICE __host__ __device__
#else
#define CONTEXT_HOST_DEVICE
#endif

// Rank `rank` of `size` ranks that share sequences of T tokens. {1, 0, T}: a rank has whole sequences.
typedef struct {
    int size, rank, T;
} ContextPlace;

// Returns whether sequences of T tokens have chunks of equal length. Alone a rank takes any T.
static inline bool context_divides(int size, int T) { return size == 1 || T % (2 * size) == 0; }

// Returns the tokens of a sequence that the rank holds.
CONTEXT_HOST_DEVICE static inline int context_rows(const ContextPlace *place) { return place->T / place->size; }

// Returns the position in the sequence of the rank's row t.
CONTEXT_HOST_DEVICE static inline int context_position(const ContextPlace *place, int t) {
    int chunk = context_rows(place) / 2;
    return t < chunk ? place->rank * chunk + t : (2 * place->size - 2 - place->rank) * chunk + t;
}

// Returns the row of a position, on the rank that holds it.
static inline int context_row(const ContextPlace *place, int position, int *rank) {
    int chunk = place->T / (2 * place->size), number = chunk > 0 ? position / chunk : 0;
    if (place->size == 1) { return *rank = 0, position; }
    *rank = number < place->size ? number : 2 * place->size - 1 - number;
    return position - number * chunk + (number < place->size ? 0 : chunk);
}

#endif // LLMC_CONTEXT_H
