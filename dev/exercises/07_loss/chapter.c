// Chapter 7, the loss and the head: the worked example of doc/07_loss.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

// ---- The worked example: two tokens, a vocabulary of three, and one row of padding ----

enum { N = 2, C = 2, V = 3, Vp = 4 };

// The loss of a row of n equal logits: what a model that knows nothing pays.
static float loss_of_equal_logits(int n) {
    static float logits[50304];
    const int32_t target = 7;
    float loss;
    for (int v = 0; v < n; v++) { logits[v] = 0.5f; }
    cpu_cross_entropy(&loss, logits, &target, 1, n, n, 0.0f, false);
    return loss;
}

static void example(void) {
    const float lnf[N * C] = {1, 0, 0, 1}, wte[Vp * C] = {0, logf(3), logf(2), 0, logf(5), logf(4), 0, 0};
    const int32_t targets[N] = {2, 1};
    float logits[N * Vp], losses[N], dlnf[N * C] = {0}, dwte[Vp * C] = {0};
    cpu_matmul_forward(logits, NULL, lnf, wte, NULL, N, C, Vp);
    print_rows("lnf", lnf, N, C, C), print_rows("wte", wte, Vp, C, C), print_rows("logits", logits, N, Vp, Vp);
    cpu_cross_entropy(losses, logits, targets, N, V, Vp, 1.0f / N, true);
    cpu_matmul_backward(dlnf, dwte, NULL, logits, lnf, wte, N, C, Vp);
    printf("targets                %d         %d\n", targets[0], targets[1]);
    print_row("losses", losses, N);
    float mean = (losses[0] + losses[1]) / N;
    printf("mean %.4f nats, perplexity %.4f\n", (double)mean, exp((double)mean));
    print_rows("dlogits", logits, N, Vp, Vp), print_rows("dlnf", dlnf, N, C, C), print_rows("dwte", dwte, Vp, C, C);
    printf("equal logits: %.4f nats for 257 bytes, %.4f nats for 50257 tokens\n", (double)loss_of_equal_logits(257),
           (double)loss_of_equal_logits(50257));
}

// ---- The checks ----

#define UNTOUCHED 12345.0f
enum { ROWS = 23, WIDTH = 6, WORDS = 29, MORE = ROWS + 64 }; // MORE: with room for an answer that runs on

static const double z_factor = 0.5;
static int z_target;

// The loss of exercise 7.1 in double precision, from its definition.
static double exact_z_loss(const double *logits) {
    double sum = 0.0;
    for (int v = 0; v < WORDS; v++) { sum += exp(logits[v]); }
    return log(sum) - logits[z_target] + z_factor * log(sum) * log(sum);
}

// Central differences with a step of 1e-4 are off by about 1e-8, in double precision. The rest of the tolerance is that
// of a float sum of WORDS terms, times the factor 1 + 2 a lse, which is below 8.
static void check_z_loss(Test *t) {
    for (z_target = 0; z_target < WORDS; z_target += 7) {
        float logits[WORDS], gradient[WORDS], want_gradient[WORDS], loss = 0.0f, want_loss;
        double exact[WORDS];
        random_floats(logits, WORDS, 7, 1 + (uint64_t)z_target);
        as_doubles(exact, logits, WORDS);
        want_loss = (float)exact_z_loss(exact);
        slopes_of(want_gradient, exact, WORDS, 1e-4, exact_z_loss);
        z_loss(&loss, gradient, logits, z_target, WORDS, (float)z_factor);
        check_close(t, "loss", &loss, &want_loss, 1, 0.0, 8.0 * WORDS * FLT_EPSILON);
        check_close(t, "gradient", gradient, want_gradient, WORDS, 8.0 * WORDS * FLT_EPSILON + 1e-7, 0.0);
    }
}

// The chunks change only the order of dwte's sum over ROWS terms, whose magnitudes stay below 1/4.
static void check_head_in_chunks(Test *t) {
    const int chunks[] = {1, 5, ROWS - 1, ROWS, 64};
    float lnf[MORE * WIDTH], wte[WORDS * WIDTH], want_dlnf[ROWS * WIDTH], want_dwte[WORDS * WIDTH] = {0};
    float logits[64 * WORDS], want_losses[ROWS];
    int32_t targets[MORE] = {0};
    for (int i = ROWS * WIDTH; i < MORE * WIDTH; i++) { lnf[i] = NAN; }
    random_floats(lnf, ROWS * WIDTH, 7, 101), random_floats(wte, WORDS * WIDTH, 7, 102);
    for (int i = 0; i < ROWS; i++) { targets[i] = i * i % WORDS; }
    cpu_matmul_forward(logits, NULL, lnf, wte, NULL, ROWS, WIDTH, WORDS);
    cpu_cross_entropy(want_losses, logits, targets, ROWS, WORDS, WORDS, 1.0f / ROWS, true);
    cpu_matmul_backward(want_dlnf, want_dwte, NULL, logits, lnf, wte, ROWS, WIDTH, WORDS);
    for (int i = 0; i < 5; i++) {
        float losses[MORE] = {0}, dlnf[MORE * WIDTH] = {0}, dwte[WORDS * WIDTH] = {0};
        for (int n = 0; n < 64 * WORDS; n++) { logits[n] = UNTOUCHED; }
        head_in_chunks(losses, dlnf, dwte, logits, lnf, wte, targets, ROWS, WIDTH, WORDS, chunks[i]);
        int used = chunks[i] < ROWS ? chunks[i] : ROWS;
        CHECK(t, used == 64 || logits[used * WORDS] == UNTOUCHED, "more than %d rows of logits were written", used);
        check_close(t, "losses", losses, want_losses, ROWS, 0.0, WIDTH * FLT_EPSILON);
        check_close(t, "dlnf", dlnf, want_dlnf, ROWS * WIDTH, WORDS * FLT_EPSILON, 0.0);
        check_close(t, "dwte", dwte, want_dwte, WORDS * WIDTH, ROWS * FLT_EPSILON, 0.0);
    }
}

// The loss of a row, from the states of four threads. The last thread has no columns. The logits are far from 0, so
// that exponentials without the maximum are infinite or 0. lse has the error of a float near `shift`, and a sum of
// WORDS terms.
static void check_join_states(Test *t) {
    const float shifts[] = {0.0f, 200.0f, -200.0f};
    for (int i = 0; i < 3; i++) {
        float logits[WORDS], max[4], sum[4], loss, want, target_logit;
        const int32_t target = 3;
        random_floats(logits, WORDS, 7, 200);
        for (int v = 0; v < WORDS; v++) { logits[v] += shifts[i] + (v % 3 == 1 ? 6.0f : 0.0f); }
        target_logit = logits[target];
        for (int k = 0; k < 4; k++) {
            max[k] = -FLT_MAX, sum[k] = 0.0f;
            for (int v = k; v < WORDS && k < 3; v += 3) { max[k] = fmaxf(max[k], logits[v]); }
            for (int v = k; v < WORDS && k < 3; v += 3) { sum[k] += expf(logits[v] - max[k]); }
        }
        loss = join_states(max, sum, 4, target_logit);
        cpu_cross_entropy(&want, logits, &target, 1, WORDS, WORDS, 1.0f, false);
        check_close(t, "loss", &loss, &want, 1, WORDS * FLT_EPSILON + 256.0 * FLT_EPSILON, 0.0);
    }
}

static const Exercise exercises[] = {{"7.1 the z-loss and its gradient", check_z_loss},
                                     {"7.2 the head in chunks", check_head_in_chunks},
                                     {"7.3 join the threads of a row", check_join_states}};

int main(void) { return run_chapter("07_loss", example, exercises); }
