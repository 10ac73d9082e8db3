// The layers of train_llama3.c under names that a C++ test can call (see oracle_llama3.h).

// Static: the compiler leaves out what only main needs, which is most.
static int train_llama3_main(int argc, char *argv[]) __attribute__((unused));
#define main train_llama3_main
// oracle.c in this program has functions of these names.
#define model_backward llama3_backward
#define model_check_program llama3_check_program
#define model_forward llama3_forward
#define model_generate llama3_generate
#define model_new_row_floats llama3_new_row_floats
#define trainer_append_token llama3_append_token
#define trainer_begin_sample llama3_begin_sample
#define trainer_check_state llama3_check_state
#define trainer_evaluate_batch llama3_evaluate_batch
#define trainer_evaluation_means llama3_evaluation_means
#define trainer_facts llama3_facts
#define trainer_next_logits llama3_next_logits
#define trainer_read_state llama3_read_state
#define trainer_validate_batch llama3_validate_batch
#define trainer_validation_loss llama3_validation_loss
#define trainer_write_state llama3_write_state
#include "train_llama3.c"
#undef main

#include "dev/test/layers/oracle_llama3.h"

void cpu_rmsnorm_forward(float *out, float *rstd, const float *inp, const float *weight, int64_t N, int C,
                         float epsilon) {
    rmsnorm_forward(out, rstd, inp, weight, N, C, epsilon);
}

void cpu_rmsnorm_backward(float *dinp, float *dweight, const float *dout, const float *inp, const float *rstd,
                          const float *weight, int64_t N, int C) {
    rmsnorm_backward(dinp, dweight, dout, inp, rstd, weight, N, C);
}

void cpu_rope_forward(float *qkv, const float *table, int64_t N, int T, int NH, int KV, int HS) {
    Heads heads = {NH, KV, HS};
    rope_forward(qkv, table, N, T, 0, heads);
}

void cpu_rope_backward(float *dqkv, const float *table, int64_t N, int T, int NH, int KV, int HS) {
    Heads heads = {NH, KV, HS};
    rope_backward(dqkv, table, N, T, heads);
}

void cpu_swiglu_forward(float *out, const float *fc, int64_t N, int F) { swiglu_forward(out, fc, N, F); }

void cpu_swiglu_backward(float *dfc, const float *fc, const float *dout, int64_t N, int F) {
    swiglu_backward(dfc, fc, dout, N, F);
}

LlamaSize cpu_llama_size(const char *name, int64_t T) {
    ModelConfig c = {.vocab_size = model_find_size(name)->config.vocab_size};
    c.padded_vocab_size = model_pad_vocab(c.vocab_size);
    LlamaSize size = {c, 0, 0};
    model_config_from_size(&size.config, name);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) { size.parameters += param_used(&size.config, i); }
    size.flops_per_token = flops_per_token(&size.config, T);
    return size;
}
