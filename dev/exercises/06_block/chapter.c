// Chapter 6, the block: the worked example of doc/06_block.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"

// The MLP sublayer of a block, without biases: out = mid + gelu(ln2(mid) fcw^T) fcprojw^T. H: hidden channels, 4C in
// GPT-2. The first two lines are left by the forward. A backward adds to the third line. The last line is for it to
// use.
typedef struct {
    int N, C, H;
    const float *mid, *mean, *rstd, *ln2, *fc, *gelu; // (N,C), (N), (N), (N,C), (N,H), (N,H)
    const float *ln2w, *fcw, *fcprojw;                // (C), (H,C), (C,H)
    float *dln2w, *dln2b, *dfcw, *dfcprojw;           // (C), (C), (H,C), (C,H)
    float *dgelu, *dfc, *dln;                         // (N,H), (N,H), (N,C)
} Mlp;

#include ANSWERS

#include "llmc/model/params.h"

// ---- The worked example ----

static void print_gelu(void) {
    const float x[] = {-3, -1, 0, 1, 3}, ones[] = {1, 1, 1, 1, 1};
    float out[5], slope[5];
    cpu_gelu_forward(out, x, 5);
    cpu_gelu_backward(slope, x, ones, 5);
    print_row("x", x, 5), print_row("gelu(x)", out, 5), print_row("gelu'(x)", slope, 5);
}

// A token of 4 channels through the MLP sublayer of a block with 2 hidden channels, and back.
static void print_mlp(void) {
    enum { C = 4, H = 2 };
    const float mid[C] = {1, 1, 3, 3}, ones[C] = {1, 1, 1, 1}, zeros[C] = {0};
    const float fcw[H * C] = {1, 0, 0, 0, 0, 0, 1, 0}, fcprojw[C * H] = {1, 0, 0, 1, 1, 1, 0, 0};
    float ln2[C], mean, rstd, fc[H], gelu[H], out[C], dout[C] = {1, 1, 0, 0};
    float dgelu[H], dfc[H], dln2[C], dln2w[C] = {0}, dln2b[C] = {0}, dfcw[H * C] = {0}, dfcprojw[C * H] = {0};
    cpu_layernorm_forward(ln2, &mean, &rstd, mid, ones, zeros, 1, C);
    cpu_matmul_forward(fc, NULL, ln2, fcw, NULL, 1, C, H);
    cpu_gelu_forward(gelu, fc, H);
    cpu_matmul_forward(out, mid, gelu, fcprojw, NULL, 1, H, C);
    print_row("mid", mid, C), print_row("ln2", ln2, C), print_row("fc", fc, H), print_row("gelu", gelu, H);
    print_row("out", out, C), print_row("dout", dout, C);
    cpu_matmul_backward(dgelu, dfcprojw, NULL, dout, gelu, fcprojw, 1, H, C);
    cpu_gelu_backward(dfc, fc, dgelu, H);
    cpu_matmul_backward(dln2, dfcw, NULL, dfc, ln2, fcw, 1, C, H);
    cpu_layernorm_backward(dout, dln2w, dln2b, dln2, mid, &mean, &rstd, ones, 1, C); // adds to dout
    print_row("dgelu", dgelu, H), print_row("dfc", dfc, H), print_row("dln2", dln2, C), print_row("dmid", dout, C);
}

// The deviation of the first 65,536 weights of a tensor of GPT-2 124M, as a new model draws them.
static double drawn_deviation(const ModelConfig *config, int tensor) {
    static float weights[65536];
    double squares = 0.0;
    param_init_range(weights, config, 1, param_offset(config, tensor), 65536);
    for (int i = 0; i < 65536; i++) { squares += (double)weights[i] * (double)weights[i]; }
    return sqrt(squares / 65536.0);
}

static void print_counts(void) {
    ModelConfig config = GPT2_CONFIG(0, GPT2_VOCAB_SIZE, GPT2_VOCAB_SIZE, 0, 0, 0);
    model_config_from_size(&config, "124M");
    int64_t all = 0, matrices = 0;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        if (!param_specs[i].per_layer) { continue; }
        int64_t size = param_size(&config, i) / config.num_layers;
        all += size;
        if (param_specs[i].rows != DIM_NONE) { matrices += size; }
    }
    printf("a block of GPT-2 124M: %lld parameters, %lld of them in 4 matrices\n", (long long)all, (long long)matrices);
    printf("12 blocks: %lld parameters; the whole model: %lld\n", (long long)(config.num_layers * all),
           (long long)model_num_params(&config));
    printf("deviation at the start: qkvw %.4f, attprojw %.4f\n", drawn_deviation(&config, PARAM_qkvw),
           drawn_deviation(&config, PARAM_attprojw));
}

// ---- The checks ----

static void random_numbers(float *x, int n, float scale, uint64_t stream) {
    random_floats(x, n, 6, stream);
    for (int i = 0; i < n; i++) { x[i] *= scale; }
}

static double exact_gelu(double x) { return 0.5 * x * (1.0 + erf(x / sqrt(2.0))); }

// Central differences in double precision with a step of 1e-4 are off by about 1e-8. The rest of the tolerance is for a
// few float operations on values below 16.
static void check_exact_gelu_backward(Test *t) {
    enum { n = 40 };
    const double step = 1e-4;
    float inp[n], dout[n], dinp[n], want[n];
    random_numbers(inp, n, 2.0f, 1), random_numbers(dout, n, 1.0f, 2);
    for (int i = 0; i < n; i++) {
        double x = (double)inp[i], slope = (exact_gelu(x + step) - exact_gelu(x - step)) / (2.0 * step);
        want[i] = (float)((double)dout[i] * slope);
    }
    exact_gelu_backward(dinp, inp, dout, n);
    for (int i = 0; i < n; i++) {
        same_numbers(t, format("inp %.4f, dout %.4f: dinp", (double)inp[i], (double)dout[i]), dinp + i, want + i, 1,
                     16.0 * 8.0 * FLT_EPSILON, 0.0);
    }
    float tanh_form[n], only_probability[n];
    cpu_gelu_backward(tanh_form, inp, dout, n);
    for (int i = 0; i < n; i++) { only_probability[i] = 0.5f * (1.0f + erff(inp[i] / sqrtf(2.0f))) * dout[i]; }
    likely(t, dinp, only_probability, n, "x stands twice in x/2 (1 + erf(..)): the product rule has a second term.");
    likely(t, dinp, tanh_form, n, "this is the slope of GPT-2's form with tanh.");
}

static void check_parameters(Test *t) {
    const ModelConfig configs[] = {GPT2_CONFIG(1024, 50257, 50257, 12, 12, 768),
                                   GPT2_CONFIG(1024, 50257, 50257, 48, 25, 1600),
                                   GPT2_CONFIG(2048, 50257, 50257, 96, 96, 12288), GPT2_CONFIG(64, 257, 257, 4, 4, 128),
                                   GPT2_CONFIG(8, 5, 5, 1, 1, 2)};
    for (int i = 0; i < 5; i++) {
        const ModelConfig *c = &configs[i];
        int64_t want = model_num_params(c), got = parameters(c->num_layers, c->channels, c->vocab_size, c->max_seq_len);
        CHECK(t, got == want, "L %d, C %d, V %d, maxT %d: %lld, expected %lld", c->num_layers, c->channels,
              c->vocab_size, c->max_seq_len, (long long)got, (long long)want);
    }
}

enum { ROWS = 5, CHANNELS = 6, HIDDEN = 24 };

static Mlp mlp;
static const float *mlp_dout;

// The loss of a row: the sublayer's outputs in double precision, each with a weight of its own.
static double mlp_loss(const double *mid) {
    double mean = 0.0, variance = 0.0, loss = 0.0;
    for (int c = 0; c < CHANNELS; c++) { mean += mid[c] / CHANNELS, loss += mid[c] * (double)mlp_dout[c]; }
    for (int c = 0; c < CHANNELS; c++) { variance += (mid[c] - mean) * (mid[c] - mean) / CHANNELS; }
    for (int h = 0; h < HIDDEN; h++) {
        double x = 0.0;
        for (int c = 0; c < CHANNELS; c++) {
            double normal = (mid[c] - mean) / sqrt(variance + (double)GPT2_LAYERNORM_EPSILON);
            x += normal * (double)mlp.ln2w[c] * (double)mlp.fcw[h * CHANNELS + c];
        }
        x = 0.5 * x * (1.0 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
        for (int c = 0; c < CHANNELS; c++) { loss += x * (double)mlp.fcprojw[c * HIDDEN + h] * (double)mlp_dout[c]; }
    }
    return loss;
}

// dmid passes through three sums of at most HIDDEN float products, and dfcprojw has one sum of N. The values stay below
// 16.
static void check_mlp_backward(Test *t) {
    enum { N = ROWS, C = CHANNELS, H = HIDDEN };
    float mid[N * C], mean[N], rstd[N], ln2[N * C], fc[N * H], gelu[N * H], dresidual[N * C], want[N * C];
    float ln2w[C], zeros[C] = {0}, fcw[H * C], fcprojw[C * H], want_dfcprojw[C * H];
    float dln2w[C] = {0}, dln2b[C] = {0}, dfcw[H * C] = {0}, dfcprojw[C * H] = {0}, dgelu[N * H], dfc[N * H],
          dln[N * C];
    random_numbers(mid, N * C, 1.0f, 11), random_numbers(dresidual, N * C, 1.0f, 12);
    random_numbers(ln2w, C, 1.0f, 13), random_numbers(fcw, H * C, 0.5f, 14), random_numbers(fcprojw, C * H, 0.3f, 15);
    cpu_layernorm_forward(ln2, mean, rstd, mid, ln2w, zeros, N, C);
    cpu_matmul_forward(fc, NULL, ln2, fcw, NULL, N, C, H);
    cpu_gelu_forward(gelu, fc, N * H);
    mlp = (Mlp){N,   C,       H,     mid,   mean, rstd,     ln2,   fc,  gelu, ln2w,
                fcw, fcprojw, dln2w, dln2b, dfcw, dfcprojw, dgelu, dfc, dln};
    float before[N * C];
    memcpy(before, dresidual, sizeof(before));
    for (int row = 0; row < N; row++) {
        double numbers[C];
        as_doubles(numbers, mid + row * C, C);
        mlp_dout = dresidual + row * C;
        slopes_of(want + row * C, numbers, C, 1e-4, mlp_loss);
    }
    for (int i = 0; i < C * H; i++) {
        float sum = 0.0f;
        for (int row = 0; row < N; row++) { sum += dresidual[row * C + i / H] * gelu[row * H + i % H]; }
        want_dfcprojw[i] = sum;
    }
    mlp_backward(dresidual, &mlp);
    same_numbers(t, "dresidual (5, 6)", dresidual, want, N * C, 3.0 * HIDDEN * 16.0 * FLT_EPSILON, 0.0);
    same_numbers(t, "dfcprojw (6, 24)", dfcprojw, want_dfcprojw, C * H, N * 16.0 * FLT_EPSILON, 0.0);
    for (int i = 0; i < N * C; i++) { before[i] = want[i] - before[i]; }
    likely(t, dresidual, before, N * C, "the gradient that passes the sum unchanged is lost.");
}

static void example(void) {
    print_gelu();
    print_mlp();
    print_counts();
}

static const Exercise exercises[] = {{"6.1 the backward of the exact GELU", check_exact_gelu_backward},
                                     {"6.2 the parameters of a GPT-2", check_parameters},
                                     {"6.3 the backward of the MLP sublayer of a block", check_mlp_backward}};

int main(void) { return run_chapter("06_block", example, exercises); }
