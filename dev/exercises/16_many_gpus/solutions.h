// Solutions of the exercises of chapter 16.

static void halving_turn(int rank, int turn, int R, int *partner, int *first, int *count) {
    *count = R >> (turn + 1);
    *partner = rank ^ *count;
    *first = *partner / *count * *count;
}

static int smallest_stage(int64_t params, int64_t slots, int R, int64_t bytes) {
    int64_t part = params / R;
    int64_t needs[4] = {18 * params, 6 * params + 12 * part, 2 * params + 16 * part + 4 * slots, 18 * part + 6 * slots};
    for (int stage = 0; stage < 4; stage++) {
        if (needs[stage] <= bytes) { return stage; }
    }
    return -1;
}

static double wait_for_gradients(int L, double backward, double send, double rest) {
    double computed = 0.0, sent = 0.0;
    for (int i = 0; i < L; i++) {
        computed += backward;
        sent = fmax(sent, computed) + send;
    }
    return sent + rest - computed;
}
