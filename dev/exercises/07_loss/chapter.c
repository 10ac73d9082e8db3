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

static double exact_lse(const double *logits) {
    double largest = logits[0], sum = 0.0;
    for (int v = 1; v < WORDS; v++) { largest = fmax(largest, logits[v]); }
    for (int v = 0; v < WORDS; v++) { sum += exp(logits[v] - largest); }
    return largest + log(sum);
}

// The loss of exercise 7.1 in double precision, from its definition.
static double exact_z_loss(const double *logits) {
    double lse = exact_lse(logits);
    return lse - logits[z_target] + z_factor * lse * lse;
}

// A row of logits around `shift`. A float sum of WORDS terms has WORDS epsilons, times the factor 1 + 2 a lse of the
// gradient, and lse has one more rounding of its own size: together 4 (1 + |lse|)^2 is enough. Central differences with
// a step of 1e-4 are off by about 1e-8 of it.
static bool check_z_row(Test *t, float shift) {
    float logits[WORDS], gradient[WORDS], want_gradient[WORDS], loss = 0.0f;
    double exact[WORDS];
    random_floats(logits, WORDS, 7, 1 + (uint64_t)z_target);
    for (int v = 0; v < WORDS; v++) { logits[v] += shift; }
    as_doubles(exact, logits, WORDS);
    double want = exact_z_loss(exact), lse = exact_lse(exact);
    double tolerance = 4.0 * (1.0 + fabs(lse)) * (1.0 + fabs(lse)) * WORDS * FLT_EPSILON;
    slopes_of(want_gradient, exact, WORDS, 1e-4, exact_z_loss);
    z_loss(&loss, gradient, logits, z_target, WORDS, (float)z_factor);
    const Mistake of_loss[] = {{NAN, "exp of a large logit is infinite: subtract the largest logit first"},
                               {lse - exact[z_target], "a lse^2 is missing"},
                               {want - 2.0 * exact[z_target] - lse, "the sign of logits[target]"}};
    const char *row = format("logits around %g, target %d", (double)shift, z_target);
    if (!check_number(t, format("%s: the loss", row), (double)loss, want, tolerance, of_loss)) { return false; }
    for (int v = 0; v < WORDS; v++) {
        double p = exp(exact[v] - lse), one = v == z_target ? 1.0 : 0.0, got = (double)gradient[v];
        const Mistake of_gradient[] = {{NAN, "exp of a large logit is infinite: subtract the largest logit first"},
                                       {p - one, "the derivative of a lse^2, which is 2 a lse p, is missing"},
                                       {p + z_factor * 2.0 * lse * p, "1 is not subtracted at the target"},
                                       {p - one + z_factor * lse * lse * p, "the derivative of lse^2 is 2 lse p"},
                                       {p - one + 2.0 * z_factor * lse, "2 a lse needs the factor p"}};
        const char *where = format("%s: gradient[%d]", row, v);
        if (!check_number(t, where, got, (double)want_gradient[v], tolerance, of_gradient)) { return false; }
    }
    return true;
}

static void check_z_loss(Test *t) {
    for (z_target = 0; z_target < WORDS; z_target += 7) {
        if (!check_z_row(t, 0.0f) || !check_z_row(t, 100.0f)) { return; }
    }
}

// The values of a tensor (n) of exercise 7.2. Every row's gradient has the factor 1/ROWS.
static bool check_chunks_of(Test *t, int chunk, const char *name, const float *got, const float *want, int n,
                            double before, double tolerance) {
    for (int i = 0; i < n; i++) {
        double wanted = (double)want[i], change = wanted - before;
        const Mistake mistakes[] = {
            {NAN, "rows behind the last one were read: the last chunk may be shorter"},
            {before + change * ROWS / chunk, "dloss is 1/N, with the N of all rows, not of the chunk"},
            {change, "dwte holds a gradient already: add to it"},
            {before, "this number was not written"}};
        const char *where = format("%d rows in chunks of %d: %s[%d]", ROWS, chunk, name, i);
        if (!check_number(t, where, (double)got[i], wanted, tolerance, mistakes)) { return false; }
    }
    return true;
}

// The chunks change only the order of dwte's sum over ROWS terms, whose magnitudes stay below 1/4. dwte begins with 1.
static void check_head_in_chunks(Test *t) {
    const int chunks[] = {1, 5, ROWS - 1, ROWS, 64};
    float lnf[MORE * WIDTH], wte[WORDS * WIDTH], want_dlnf[ROWS * WIDTH], want_dwte[WORDS * WIDTH];
    float logits[64 * WORDS], want_losses[ROWS];
    int32_t targets[MORE] = {0};
    for (int i = ROWS * WIDTH; i < MORE * WIDTH; i++) { lnf[i] = NAN; }
    random_floats(lnf, ROWS * WIDTH, 7, 101), random_floats(wte, WORDS * WIDTH, 7, 102);
    for (int i = 0; i < ROWS; i++) { targets[i] = i * i % WORDS; }
    for (int i = 0; i < WORDS * WIDTH; i++) { want_dwte[i] = 1.0f; }
    cpu_matmul_forward(logits, NULL, lnf, wte, NULL, ROWS, WIDTH, WORDS);
    cpu_cross_entropy(want_losses, logits, targets, ROWS, WORDS, WORDS, 1.0f / ROWS, true);
    cpu_matmul_backward(want_dlnf, want_dwte, NULL, logits, lnf, wte, ROWS, WIDTH, WORDS);
    for (int i = 0; i < 5; i++) {
        float losses[MORE] = {0}, dlnf[MORE * WIDTH] = {0}, dwte[WORDS * WIDTH];
        for (int n = 0; n < WORDS * WIDTH; n++) { dwte[n] = 1.0f; }
        for (int n = 0; n < 64 * WORDS; n++) { logits[n] = UNTOUCHED; }
        head_in_chunks(losses, dlnf, dwte, logits, lnf, wte, targets, ROWS, WIDTH, WORDS, chunks[i]);
        int used = chunks[i] < ROWS ? chunks[i] : ROWS;
        bool few = used == 64 || logits[used * WORDS] == UNTOUCHED;
        if (!CHECK(t, few,
                   "%d rows in chunks of %d: more than %d rows of logits were written. Likely: all rows at once", ROWS,
                   chunks[i], used) ||
            !check_chunks_of(t, chunks[i], "losses", losses, want_losses, ROWS, 0.0, 16.0 * WIDTH * FLT_EPSILON) ||
            !check_chunks_of(t, chunks[i], "dlnf", dlnf, want_dlnf, ROWS * WIDTH, 0.0, WORDS * FLT_EPSILON) ||
            !check_chunks_of(t, chunks[i], "dwte", dwte, want_dwte, WORDS * WIDTH, 1.0, ROWS * FLT_EPSILON)) {
            return;
        }
    }
}

// The loss of a row, from the states of four threads. The last thread has no columns. The logits are far from 0, so
// that exponentials without the maximum are infinite or 0. lse has the error of a float near `shift`, and a sum of
// WORDS terms.
static bool check_joined_row(Test *t, float shift) {
    float logits[WORDS], max[4], sum[4], loss, want, all = 0.0f, largest = -FLT_MAX;
    const int32_t target = 3;
    random_floats(logits, WORDS, 7, 200);
    for (int v = 0; v < WORDS; v++) { logits[v] += shift + (v % 3 == 1 ? 6.0f : 0.0f); }
    const float target_logit = logits[target];
    for (int k = 0; k < 4; k++) {
        max[k] = -FLT_MAX, sum[k] = 0.0f;
        for (int v = k; v < WORDS && k < 3; v += 3) { max[k] = fmaxf(max[k], logits[v]); }
        for (int v = k; v < WORDS && k < 3; v += 3) { sum[k] += expf(logits[v] - max[k]); }
        all += sum[k], largest = fmaxf(largest, max[k]);
    }
    loss = join_states(max, sum, 4, target_logit);
    cpu_cross_entropy(&want, logits, &target, 1, WORDS, WORDS, 1.0f, false);
    const Mistake mistakes[] = {
        {NAN, "an exponential overflows: subtract the largest maximum of all threads first"},
        {(double)(largest + logf(all) - target_logit), "each sum belongs to its own maximum: scale it before adding"},
        {(double)want - (double)largest, "the largest logit is missing in lse"},
        {(double)want + (double)target_logit, "this is lse: target_logit is not subtracted"}};
    const char *where = format("4 threads, logits around %g, the last thread without logits: the loss", (double)shift);
    return check_number(t, where, (double)loss, (double)want, (WORDS + 256.0) * FLT_EPSILON, mistakes);
}

static void check_join_states(Test *t) {
    if (check_joined_row(t, 0.0f) && check_joined_row(t, 200.0f)) { check_joined_row(t, -200.0f); }
}

static const Exercise exercises[] = {{"7.1 the z-loss and its gradient", check_z_loss},
                                     {"7.2 the head in chunks", check_head_in_chunks},
                                     {"7.3 join the threads of a row", check_join_states}};

int main(void) { return run_chapter("07_loss", example, exercises); }
