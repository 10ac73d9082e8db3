// Chapter 1, one token through a step: the worked example of doc/01_one_token.md, and the checks of its exercises.
//
// The example is a whole GPT-2 with one block. It calls the layers of train_gpt2.c in the trainer's order.
#include "dev/exercises/chapter.h"
#include ANSWERS

#include "llmc/model/params.h"

// ---- The model ----

enum { B = 1, T = 4, V = 5, C = 4, NH = 2, N = B * T, PARAMS = V * C + T * C + 12 * C * C + 13 * C + 2 * C };

static const ModelConfig config = GPT2_CONFIG(T, V, V, 1, NH, C);
static const int32_t tokens[N] = {0, 1, 2, 3}, targets[N] = {1, 2, 3, 4};
static float params[PARAMS], grads[PARAMS], m[PARAMS], v[PARAMS];

#define TENSOR_POINTER(name, ...) float *name;
typedef struct {
    MODEL_PARAMETERS(TENSOR_POINTER)
} Tensors;

static Tensors tensors_of(float *all) {
    Tensors tensors;
#define TENSOR_AT(name, ...) tensors.name = all + param_offset(&config, PARAM_##name);
    MODEL_PARAMETERS(TENSOR_AT)
    return tensors;
}

// What the forward leaves for the backward.
static struct {
    float residual[N * C], ln1[N * C], ln1_mean[N], ln1_rstd[N], qkv[N * 3 * C], att[N * C], att_lse[N * NH];
    float residual_mid[N * C], ln2[N * C], ln2_mean[N], ln2_rstd[N], fc[N * 4 * C], gelu[N * 4 * C];
    float output[N * C], lnf[N * C], lnf_mean[N], lnf_rstd[N], logits[N * V], losses[N];
} a;

// The gradients of activations. dresidual is that of the stream, wherever the backward is.
static struct {
    float lnf[N * C], residual[N * C], gelu[N * 4 * C], fc[N * 4 * C], ln[N * C], att[N * C], qkv[N * 3 * C];
} d;

// Computes a (all but the loss), for the parameters p.
static void forward(Tensors p) {
    cpu_embedding_forward(a.residual, tokens, p.wte, p.wpe, B, T, C);
    cpu_layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.residual, p.ln1w, p.ln1b, N, C);
    cpu_matmul_forward(a.qkv, NULL, a.ln1, p.qkvw, p.qkvb, N, C, 3 * C);
    cpu_attention_forward(a.att, a.att_lse, a.qkv, B, T, C, NH);
    cpu_matmul_forward(a.residual_mid, a.residual, a.att, p.attprojw, p.attprojb, N, C, C);
    cpu_layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.residual_mid, p.ln2w, p.ln2b, N, C);
    cpu_matmul_forward(a.fc, NULL, a.ln2, p.fcw, p.fcb, N, C, 4 * C);
    cpu_gelu_forward(a.gelu, a.fc, N * 4 * C);
    cpu_matmul_forward(a.output, a.residual_mid, a.gelu, p.fcprojw, p.fcprojb, N, 4 * C, C);
    cpu_layernorm_forward(a.lnf, a.lnf_mean, a.lnf_rstd, a.output, p.lnfw, p.lnfb, N, C);
    cpu_matmul_forward(a.logits, NULL, a.lnf, p.wte, NULL, N, C, V);
}

// Turns the logits into the losses and their own gradient. Returns the mean loss.
static double loss(void) {
    double sum = 0.0;
    cpu_cross_entropy(a.losses, a.logits, targets, N, V, V, 1.0f / N, true);
    for (int i = 0; i < N; i++) { sum += (double)a.losses[i]; }
    return sum / N;
}

// The three parts of the backward: of the head, and of the two sublayers of the block. They add to the gradients g.
static void backward_head(Tensors p, Tensors g) {
    memset(grads, 0, sizeof(grads)), memset(d.residual, 0, sizeof(d.residual));
    cpu_matmul_backward(d.lnf, g.wte, NULL, a.logits, a.lnf, p.wte, N, C, V);
    cpu_layernorm_backward(d.residual, g.lnfw, g.lnfb, d.lnf, a.output, a.lnf_mean, a.lnf_rstd, p.lnfw, N, C);
}

static void backward_mlp(Tensors p, Tensors g) {
    cpu_matmul_backward(d.gelu, g.fcprojw, g.fcprojb, d.residual, a.gelu, p.fcprojw, N, 4 * C, C);
    cpu_gelu_backward(d.fc, a.fc, d.gelu, N * 4 * C);
    cpu_matmul_backward(d.ln, g.fcw, g.fcb, d.fc, a.ln2, p.fcw, N, C, 4 * C);
    cpu_layernorm_backward(d.residual, g.ln2w, g.ln2b, d.ln, a.residual_mid, a.ln2_mean, a.ln2_rstd, p.ln2w, N, C);
}

static void backward_attention(Tensors p, Tensors g) {
    cpu_matmul_backward(d.att, g.attprojw, g.attprojb, d.residual, a.att, p.attprojw, N, C, C);
    memset(d.qkv, 0, sizeof(d.qkv));
    cpu_attention_backward(d.qkv, d.att, a.qkv, a.att, a.att_lse, B, T, C, NH);
    cpu_matmul_backward(d.ln, g.qkvw, g.qkvb, d.qkv, a.ln1, p.qkvw, N, C, 3 * C);
    cpu_layernorm_backward(d.residual, g.ln1w, g.ln1b, d.ln, a.residual, a.ln1_mean, a.ln1_rstd, p.ln1w, N, C);
    cpu_embedding_backward(g.wte, g.wpe, d.residual, tokens, B, T, C);
}

// One step of training without printing. Returns the loss before the update.
static double step(int update, float lr) {
    Tensors p = tensors_of(params), g = tensors_of(grads);
    forward(p);
    double mean = loss();
    backward_head(p, g), backward_mlp(p, g), backward_attention(p, g);
    cpu_adamw(params, m, v, grads, PARAMS, lr, 0.9f, 0.95f, 1e-8f, 0.0f, 1.0f, update);
    return mean;
}

// ---- The worked example: the token at position 2 ----

static void example(void) {
    const int t = 2;
    const float lr = 0.0001f;
    Tensors p = tensors_of(params), g = tensors_of(grads);
    param_init_range(params, &config, 38, 0, model_num_params(&config));
    forward(p);
    print_row("wte[2]", p.wte + 2 * C, C), print_row("wpe[2]", p.wpe + t * C, C);
    print_row("residual", a.residual + t * C, C), print_row("ln1", a.ln1 + t * C, C);
    print_row("q", a.qkv + t * 3 * C, C), print_row("k", a.qkv + t * 3 * C + C, C);
    print_row("v", a.qkv + t * 3 * C + 2 * C, C);
    print_row("att", a.att + t * C, C), print_row("residual_mid", a.residual_mid + t * C, C);
    print_row("ln2", a.ln2 + t * C, C), print_row("gelu, 4 of 16", a.gelu + t * 4 * C, 4);
    print_row("output", a.output + t * C, C), print_row("lnf", a.lnf + t * C, C);
    print_row("logits", a.logits + t * V, V);
    double before = loss();
    printf("loss of this token %.4f, mean loss %.4f\n", (double)a.losses[t], before);
    backward_head(p, g);
    print_row("dlogits", a.logits + t * V, V), print_row("dlnf", d.lnf + t * C, C);
    print_row("doutput", d.residual + t * C, C);
    backward_mlp(p, g);
    print_row("dresidual_mid", d.residual + t * C, C);
    backward_attention(p, g);
    print_row("dresidual", d.residual + t * C, C), print_row("dwte[2]", g.wte + 2 * C, C);
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < PARAMS; i++) { sum += fabs((double)grads[i]), squares += (double)grads[i] * (double)grads[i]; }
    printf("norm of the gradient %.4f, sum of its magnitudes %.4f\n", sqrt(squares), sum);
    step(1, lr);
    print_row("wte[2] now", p.wte + 2 * C, C);
    forward(p);
    printf("mean loss %.5f before, %.5f after the step, predicted %.5f\n", before, loss(), before - (double)lr * sum);
    for (int i = 2; i <= 100; i++) {
        double mean = step(i, 0.01f);
        if (i == 10 || i == 30 || i == 100) { printf("loss of step %3d with the rate 0.01: %.2f\n", i, mean); }
    }
}

// ---- The checks ----

// Logits that depend on the last token and on the number of tokens, so that a wrong call shows.
static const float *logits_after(const int *text, int n) {
    static float logits[V];
    for (int i = 0; i < V; i++) { logits[i] = (float)(rand_u64(1, (uint64_t)n, (uint64_t)(text[n - 1] * V + i)) % 3); }
    return logits;
}

// The first token that differs explains those behind it.
static void check_greedy(Test *t) {
    int text[12] = {3, 1};
    write_greedily(text, 2, 12, logits_after, V);
    CHECK(t, text[0] == 3 && text[1] == 1, "the text begins with %d %d, expected 3 1 as before", text[0], text[1]);
    for (int n = 2; n < 12 && t->failures == 0; n++) {
        const float *logits = logits_after(text, n);
        int want = 0, last = 0;
        for (int i = 1; i < V; i++) {
            want = logits[i] > logits[want] ? i : want;
            last = logits[i] >= logits[last] ? i : last;
        }
        CHECK(t, text[n] == want, "after %d tokens the logits are %g %g %g %g %g: token %d is %d, expected %d%s", n,
              (double)logits[0], (double)logits[1], (double)logits[2], (double)logits[3], (double)logits[4], n, text[n],
              want, text[n] == last ? ", the lowest of equals" : "");
    }
}

enum { MICRO = 3, ROWS = 8, SIZE = 5 };

static float row_gradient_of(int row, int i) { return (float)(row * row % 7 - 3 + i); }

// Adds the gradient of a micro-batch: the sum over its rows, times dloss.
static void add_micro_batch(float *gradient, int micro_batch, float dloss) {
    for (int row = micro_batch * ROWS; row < (micro_batch + 1) * ROWS; row++) {
        for (int i = 0; i < SIZE; i++) { gradient[i] += dloss * row_gradient_of(row, i); }
    }
}

// The values stay below 8.
static void check_gradient_of_step(Test *t) {
    float gradient[SIZE], want[SIZE];
    for (int i = 0; i < SIZE; i++) {
        float sum = 0.0f;
        for (int row = 0; row < MICRO * ROWS; row++) { sum += row_gradient_of(row, i); }
        want[i] = sum / (MICRO * ROWS), gradient[i] = 77.0f;
    }
    gradient_of_step(gradient, SIZE, MICRO, ROWS, add_micro_batch);
    same_numbers(t, "the gradient of 3 micro-batches of 8 rows", gradient, want, SIZE, MICRO * ROWS * 8.0 * FLT_EPSILON,
                 0.0);
    float old[SIZE], sum[SIZE], sum_of_means[SIZE];
    for (int i = 0; i < SIZE; i++) {
        old[i] = 77.0f + want[i], sum[i] = MICRO * ROWS * want[i], sum_of_means[i] = MICRO * want[i];
    }
    likely(t, gradient, old, SIZE, "the old numbers, 77 each, are still in it.");
    likely(t, gradient, sum, SIZE, "this is the gradient of the sum over all rows, not of the mean.");
    likely(t, gradient, sum_of_means, SIZE, "this is the sum of the means of the micro-batches: they count one each.");
}

static void check_utilisation(Test *t) {
    const struct {
        const char *size;
        int64_t T;
        double tokens_per_second, peak;
    } runs[] = {{"124M", 1024, 567000.0, 989.4e12}, {"1558M", 1024, 49000.0, 989.4e12}, {"124M", 8192, 1.0, 1e9}};
    for (int i = 0; i < 3; i++) {
        ModelConfig c = GPT2_CONFIG(0, GPT2_VOCAB_SIZE, GPT2_VOCAB_SIZE, 0, 0, 0);
        model_config_from_size(&c, runs[i].size);
        float want = (float)(flops_per_token(&c, runs[i].T) * runs[i].tokens_per_second / runs[i].peak);
        float got = (float)utilisation(c.num_layers, c.channels, c.vocab_size, (int)runs[i].T,
                                       runs[i].tokens_per_second, runs[i].peak);
        const char *run = format("GPT-2 %s, T %lld, %g tokens and %g operations a second", runs[i].size,
                                 (long long)runs[i].T, runs[i].tokens_per_second, runs[i].peak);
        same_numbers(t, run, &got, &want, 1, 0.0, 8.0 * FLT_EPSILON);
        float forward = want / 3.0f;
        likely(t, &got, &forward, 1, "2 operations for each weight are the forward; the backward takes 4 more.");
    }
}

static const Exercise exercises[] = {{"1.1 write the likeliest tokens", check_greedy},
                                     {"1.2 the gradient of a step", check_gradient_of_step},
                                     {"1.3 the utilisation of a machine", check_utilisation}};

int main(void) { return run_chapter("01_one_token", example, exercises); }
