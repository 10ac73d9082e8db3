// Solutions of the exercises of chapter 6.

static void exact_gelu_backward(float *dinp, const float *inp, const float *dout, int n) {
    for (int i = 0; i < n; i++) {
        float x = inp[i], probability = 0.5f * (1.0f + erff(x / sqrtf(2.0f)));
        dinp[i] = dout[i] * (probability + x * expf(-0.5f * x * x) / 2.50662827f);
    }
}

static int64_t parameters(int64_t L, int64_t C, int64_t V, int64_t maxT) {
    int64_t block = 12 * C * C + 13 * C; // four matrices; biases 3C + C + 4C + C, two LayerNorms of 2C
    return V * C + maxT * C + L * block + 2 * C;
}

static void mlp_backward(float *dresidual, const Mlp *m) {
    cpu_matmul_backward(m->dgelu, m->dfcprojw, NULL, dresidual, m->gelu, m->fcprojw, m->N, m->H, m->C);
    cpu_gelu_backward(m->dfc, m->fc, m->dgelu, (int64_t)m->N * m->H);
    cpu_matmul_backward(m->dln, m->dfcw, NULL, m->dfc, m->ln2, m->fcw, m->N, m->C, m->H);
    cpu_layernorm_backward(dresidual, m->dln2w, m->dln2b, m->dln, m->mid, m->mean, m->rstd, m->ln2w, m->N, m->C);
}
