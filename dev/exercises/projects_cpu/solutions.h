// Solutions of projects 1, 5 and 7.

static void block_backward(float *dx, BlockWeights *dw, const float *dout, const float *x, const BlockWeights *w,
                           const BlockActs *a) {
    static float wide[ROWS * 4 * CHANNELS], dln[ROWS * CHANNELS], datt[ROWS * CHANNELS], dqkv[ROWS * 3 * CHANNELS];
    memcpy(dx, dout, sizeof(dln)); // the residual stream: out, then mid, then x
    cpu_matmul_backward(wide, dw->fcprojw, dw->fcprojb, dx, a->gelu, w->fcprojw, ROWS, 4 * CHANNELS, CHANNELS);
    cpu_gelu_backward(wide, a->fc, wide, ROWS * 4 * CHANNELS);
    cpu_matmul_backward(dln, dw->fcw, dw->fcb, wide, a->ln2, w->fcw, ROWS, CHANNELS, 4 * CHANNELS);
    cpu_layernorm_backward(dx, dw->ln2w, dw->ln2b, dln, a->mid, a->mean2, a->rstd2, w->ln2w, ROWS, CHANNELS);
    cpu_matmul_backward(datt, dw->attprojw, dw->attprojb, dx, a->att, w->attprojw, ROWS, CHANNELS, CHANNELS);
    memset(dqkv, 0, sizeof(dqkv));
    cpu_attention_backward(dqkv, datt, a->qkv, a->att, a->lse, SEQUENCES, TOKENS, CHANNELS, HEADS);
    cpu_matmul_backward(dln, dw->qkvw, dw->qkvb, dqkv, a->ln1, w->qkvw, ROWS, CHANNELS, 3 * CHANNELS);
    cpu_layernorm_backward(dx, dw->ln1w, dw->ln1b, dln, x, a->mean1, a->rstd1, w->ln1w, ROWS, CHANNELS);
}

static void rope_table(float *table, int T, int HS, double theta) {
    for (int i = 0; i < T * HS / 2; i++) {
        double angle = i / (HS / 2) * pow(theta, -2.0 * (i % (HS / 2)) / HS);
        table[2 * i] = (float)cos(angle), table[2 * i + 1] = (float)sin(angle);
    }
}

// The backward of a rotation turns the other way: sign -1.
static void rope_turn(float *qkv, const float *table, int N, int T, int NH, int KV, int HS, float sign) {
    for (int i = 0; i < N; i++) {
        const float *angles = table + i % T * HS;
        for (int h = 0; h < NH + KV; h++) {
            float *low = qkv + (i * (NH + 2 * KV) + h) * HS, *high = low + HS / 2;
            for (int j = 0; j < HS / 2; j++) {
                float cosine = angles[2 * j], sine = sign * angles[2 * j + 1], x = low[j], y = high[j];
                low[j] = x * cosine - y * sine;
                high[j] = x * sine + y * cosine;
            }
        }
    }
}

static void rope_forward(float *qkv, const float *table, int N, int T, int NH, int KV, int HS) {
    rope_turn(qkv, table, N, T, NH, KV, HS, 1.0f);
}

static void rope_backward(float *dqkv, const float *table, int N, int T, int NH, int KV, int HS) {
    rope_turn(dqkv, table, N, T, NH, KV, HS, -1.0f);
}

// Round k does forward k and backward k - warm_up. Where a stage puts an output and gets a gradient, the next stage
// puts this gradient and gets this output, so both joined pairs meet.
static int stage_work(StageWork *work, int stages, int stage, int micro_batches) {
    int n = 0, behind = stages - stage - 1, warm_up = behind < micro_batches ? behind : micro_batches;
    for (int k = 0; k < micro_batches + warm_up; k++) {
        for (int a = PIPE_GET_INPUT; a <= PIPE_PUT_GRAD; a++) {
            int m = a < PIPE_GET_GRAD ? k : k - warm_up, peer = stage + pipe_way[a];
            StageWork one = {(PipeAction)a, m, false};
            if (m >= 0 && m < micro_batches && peer >= 0 && peer < stages) { work[n++] = one; }
        }
    }
    for (int i = 0; i + 1 < n; i++) { work[i].joined = pipe_puts(work[i].action) && pipe_gets(work[i + 1].action); }
    return n;
}
