// The layers of train_gpt2.c for C++ tests: its functions with the prefix cpu_, which bring their workspace.
// Implemented in oracle.c, which is compiled as C and linked.
#ifndef ORACLE_H
#define ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void cpu_embedding_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe, int B, int T, int C);
void cpu_embedding_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens, int B, int T, int C);
#define LAYERNORM_EPSILON 1e-5f // of GPT-2
void cpu_layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                           const float *bias, int64_t N, int C);
void cpu_layernorm_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                            const float *mean, const float *rstd, const float *weight, int64_t N, int C);
void cpu_matmul_forward(float *out, const float *residual, const float *inp, const float *weight, const float *bias,
                        int64_t N, int C, int OC);
void cpu_matmul_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                         const float *weight, int64_t N, int C, int OC);
void cpu_gelu_forward(float *out, const float *inp, int64_t n);
void cpu_gelu_backward(float *dinp, const float *inp, const float *dout, int64_t n);
void cpu_attention_forward(float *out, float *lse, const float *qkv, int B, int T, int C, int NH);
void cpu_attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out, const float *lse, int B,
                            int T, int C, int NH);
// Attention of rows first .. first + rows - 1, qkv (rows, 3C), beside the cached rows before: keys, values (T, C).
void cpu_attention_with_cache(float *out, float *keys, float *values, const float *qkv, int first, int rows, int T,
                              int C, int NH);
// Attention with KV heads of keys and values, each for NH / KV heads of queries. They add to dqkv.
void cpu_grouped_attention_forward(float *out, float *lse, const float *qkv, int B, int T, int NH, int KV, int HS);
void cpu_grouped_attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out,
                                    const float *lse, int B, int T, int NH, int KV, int HS);
void cpu_cross_entropy(float *losses, float *logits, const int32_t *targets, int64_t N, int V, int Vp, float dloss,
                       bool want_gradient);
// update: the number of this update, from 1. grads are multiplied by grad_scale first.
void cpu_adamw(float *param, float *m, float *v, const float *grad, int64_t n, float lr, float beta1, float beta2,
               float epsilon, float decay, float grad_scale, int64_t update);

#ifdef __cplusplus
}
#endif

#endif // ORACLE_H
