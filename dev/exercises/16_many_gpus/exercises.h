// Exercises of chapter 16, many GPUs. Write the bodies; `make chapter-16` says which are right.

// 16.1 Recursive halving: a reduce-scatter of R ranks, a power of two, in log2(R) turns instead of R - 1. Each rank has
// R parts, as in the ring. In turn 0 the ranks are one group. A rank's partner is R / 2 away, in the other half of the
// group. The rank sends its partner all parts that the partner's half will own, and the partner adds them to its own.
// Then each half is a group, and so on. After the last turn rank r owns the sum of part r.
// Writes what `rank` does in a turn (from 0): it sends parts *first .. *first + *count - 1 to *partner.
static void halving_turn(int rank, int turn, int R, int *partner, int *first, int *count) {
    (void)turn, (void)R;
    *partner = rank, *first = 0, *count = 0;
}

// 16.2 Returns the smallest --zero-stage whose memory on each of R ranks is at most `bytes`; -1: there is none. A
// parameter has 2 bytes. Its gradient, its master copy and both moments have 4 bytes each. params: all parameters, a
// multiple of R. slots: parameters in the room for whole buckets. Stage 2 needs this room for gradients, stage 3 for
// gradients and parameters.
static int smallest_stage(int64_t params, int64_t slots, int R, int64_t bytes) {
    (void)params, (void)slots, (void)R, (void)bytes;
    return 0;
}

// 16.3 Returns the seconds from the end of the backward pass until all gradients have travelled. The backward pass
// takes `backward` seconds for each of L blocks. A block's bucket can leave when its block is done. It travels for
// `send` seconds, and one bucket travels at a time. At the end of the pass bucket 0 can leave, too, and travels for
// `rest`.
static double wait_for_gradients(int L, double backward, double send, double rest) {
    (void)L, (void)backward, (void)send;
    return rest;
}
