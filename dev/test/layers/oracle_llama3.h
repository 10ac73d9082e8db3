// The layers of train_llama3.c for C++ tests, as oracle.h has those of train_gpt2.c. Implemented in oracle_llama3.c,
// which is compiled as C and linked.
#ifndef ORACLE_LLAMA3_H
#define ORACLE_LLAMA3_H

#include <stdint.h>

#include "llmc/model/model_config.h"

#ifdef __cplusplus
extern "C" {
#endif

// The backward adds to dinp and dweight.
void cpu_rmsnorm_forward(float *out, float *rstd, const float *inp, const float *weight, int64_t N, int C,
                         float epsilon);
void cpu_rmsnorm_backward(float *dinp, float *dweight, const float *dout, const float *inp, const float *rstd,
                          const float *weight, int64_t N, int C);
// In place. qkv (N,(NH+2KV)*HS), table (T,HS/2,2): cosines and sines; row i stands at position i % T.
void cpu_rope_forward(float *qkv, const float *table, int64_t N, int T, int NH, int KV, int HS);
void cpu_rope_backward(float *dqkv, const float *table, int64_t N, int T, int NH, int KV, int HS);
void cpu_swiglu_forward(float *out, const float *fc, int64_t N, int F);
void cpu_swiglu_backward(float *dfc, const float *fc, const float *dout, int64_t N, int F);

typedef struct {
    ModelConfig config;
    int64_t parameters;     // without padding
    double flops_per_token; // to train on a token of a sequence of T
} LlamaSize;

// Returns the released model of this name, such as "llama:8B".
LlamaSize cpu_llama_size(const char *name, int64_t T);

#ifdef __cplusplus
}
#endif

#endif // ORACLE_LLAMA3_H
