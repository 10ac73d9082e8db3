// Exercises of chapter 16, many GPUs. Write the bodies; `make chapter-16` says which are right.

// 16.1 Recursive halving: a reduce-scatter of R ranks, a power of two, in log2(R) turns instead of R - 1. Each rank has
// R parts, as in the ring, and sends R - 1 parts in all, as in the ring. In a turn ranks exchange in pairs: a rank
// sends some neighbouring parts to its partner, and adds those that it gets to its own. After the last turn rank r owns
// the sum of part r. So ask what a rank can part with in the first turn. Writes what `rank` does in a turn (from 0): it
// sends parts *first .. *first + *count - 1 to *partner.
static void halving_turn(int rank, int turn, int R, int *partner, int *first, int *count) {
    (void)turn, (void)R;
    *partner = rank, *first = 0, *count = 0;
}

// 16.2 Returns the smallest --zero-stage whose memory on each of R ranks is at most `bytes`; -1: there is none. A
// parameter has 2 bytes. Its gradient, its master copy and both moments have 4 bytes each. params: all parameters, a
// multiple of R. slots: parameters in the room for whole buckets, which the higher stages need besides.
static int smallest_stage(int64_t params, int64_t slots, int R, int64_t bytes) {
    (void)params, (void)slots, (void)R, (void)bytes;
    return 0;
}

// 16.3 What does the backward pass not hide? It computes L blocks for `backward` seconds each. A block's bucket travels
// for `send` seconds, and bucket 0, which is complete at the end of the pass, for `rest` seconds. All buckets share one
// link. Returns the seconds from the end of the pass until all buckets have arrived.
static double wait_for_gradients(int L, double backward, double send, double rest) {
    (void)L, (void)backward, (void)send;
    return rest;
}
