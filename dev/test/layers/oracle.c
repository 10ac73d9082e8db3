// The layers of train_gpt2.c under names that a C++ test can call (see oracle.h).

// Static: the compiler leaves out what only main needs, which is most.
static int train_gpt2_main(int argc, char *argv[]) __attribute__((unused));
#define main train_gpt2_main
#define trainer_facts cpu_trainer_facts // the GPU trainer in this program has its own
#include "train_gpt2.c"
#undef main

#include "dev/test/layers/oracle.h"

static float *allocate(int64_t floats) {
    float *memory = (float *)calloc((size_t)floats + 1, sizeof(float));
    if (memory == NULL) { abort(); }
    return memory;
}

static Gemm new_gemm(void) {
    Gemm mm = {&gemm_portable, allocate(gemm_workspace_floats(gemm_max_threads()))};
    return mm;
}

static float *attention_memory(int T, int HS) {
    return allocate(gemm_max_threads() * attention_scratch_floats(T, HS, &gemm_portable));
}

void cpu_embedding_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe, int B, int T, int C) {
    embedding_forward(out, tokens, wte, wpe, B, T, C, 0);
}

void cpu_embedding_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens, int B, int T, int C) {
    embedding_backward(dwte, dwpe, dout, tokens, B, T, C);
}

void cpu_layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                           const float *bias, int64_t N, int C) {
    layernorm_forward(out, mean, rstd, inp, weight, bias, N, C);
}

void cpu_layernorm_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                            const float *mean, const float *rstd, const float *weight, int64_t N, int C) {
    layernorm_backward(dinp, dweight, dbias, dout, inp, mean, rstd, weight, N, C);
}

void cpu_matmul_forward(float *out, const float *residual, const float *inp, const float *weight, const float *bias,
                        int64_t N, int C, int OC) {
    Gemm mm = new_gemm();
    matmul_forward(out, residual, inp, weight, bias, N, C, OC, &mm);
    free(mm.workspace);
}

void cpu_matmul_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                         const float *weight, int64_t N, int C, int OC) {
    Gemm mm = new_gemm();
    matmul_backward(dinp, dweight, dbias, dout, inp, weight, N, C, OC, &mm);
    free(mm.workspace);
}

void cpu_gelu_forward(float *out, const float *inp, int64_t n) { gelu_forward(out, inp, n); }
void cpu_gelu_backward(float *dinp, const float *inp, const float *dout, int64_t n) {
    gelu_backward(dinp, inp, dout, n);
}

void cpu_grouped_attention_forward(float *out, float *lse, const float *qkv, int B, int T, int NH, int KV, int HS) {
    Heads heads = {NH, KV, HS};
    float *scratch = attention_memory(T, HS);
    Gemm mm = new_gemm();
    attention_forward(out, lse, qkv, B, T, heads, scratch, &mm);
    free(scratch), free(mm.workspace);
}

void cpu_grouped_attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out,
                                    const float *lse, int B, int T, int NH, int KV, int HS) {
    Heads heads = {NH, KV, HS};
    float *scratch = attention_memory(T, HS);
    Gemm mm = new_gemm();
    attention_backward(dqkv, dout, qkv, out, lse, B, T, heads, scratch, &mm);
    free(scratch), free(mm.workspace);
}

void cpu_attention_forward(float *out, float *lse, const float *qkv, int B, int T, int C, int NH) {
    cpu_grouped_attention_forward(out, lse, qkv, B, T, NH, NH, C / NH);
}

void cpu_attention_with_cache(float *out, float *keys, float *values, const float *qkv, int first, int rows, int T,
                              int C, int NH) {
    Heads heads = {NH, NH, C / NH};
    float *scratch = attention_memory(T, heads.HS);
    Gemm mm = new_gemm();
    int64_t floats = attention_scratch_floats(T, heads.HS, &gemm_portable);
    attention_with_cache(out, keys, values, qkv, first, rows, heads, scratch, floats, &mm);
    free(scratch), free(mm.workspace);
}

void cpu_attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out, const float *lse, int B,
                            int T, int C, int NH) {
    cpu_grouped_attention_backward(dqkv, dout, qkv, out, lse, B, T, NH, NH, C / NH);
}

void cpu_cross_entropy(float *losses, float *logits, const int32_t *targets, int64_t N, int V, int Vp, float dloss,
                       bool want_gradient) {
    cross_entropy(losses, logits, targets, N, V, Vp, dloss, want_gradient);
}

void cpu_adamw(float *param, float *m, float *v, const float *grad, int64_t n, float lr, float beta1, float beta2,
               float epsilon, float decay, float grad_scale, int64_t update) {
    AdamW a = {lr, beta1, beta2, epsilon, decay, grad_scale, update};
    adamw_tensor(param, m, v, grad, n, &a, decay);
}
