// Chapter 0, the basics: the worked example of doc/00_basics.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS

// ---- A tensor: a row of numbers, a shape and strides ----

static void tensor_in_memory(void) {
    float x[6] = {0, 1, 2, 3, 4, 5}; // (2, 3)
    const int strides[2] = {3, 1}, turned[2] = {1, 3};
    print_row("memory", x, 6);
    printf("x[1][2] is memory[1 * %d + 2 * %d] = %.0f\n", strides[0], strides[1],
           (double)x[1 * strides[0] + 2 * strides[1]]);
    for (int i = 0; i < 3; i++) {
        float row[2];
        for (int j = 0; j < 2; j++) { row[j] = x[i * turned[0] + j * turned[1]]; }
        print_numbered("x.T", i, row, 2);
    }
}

// ---- A graph: loss = (x + w x - target)^2 ----

static double graph_loss(double x, double w) {
    double p = w * x;
    double y = x + p;
    double e = y - 5.0;
    return e * e;
}

static void graph(void) {
    double x = 2.0, w = 3.0, p = w * x, y = x + p, e = y - 5.0, h = 0.001;
    double de = 2.0 * e, dy = de, dp = dy, dw = dp * x, dx = dy + dp * w;
    printf("\nforward       p %g, y %g, e %g, loss %g\n", p, y, e, e * e);
    printf("backward      de %g, dy %g, dp %g, dw %g, dx %g + %g = %g\n", de, dy, dp, dw, dy, dp * w, dx);
    printf("measured      dw %.4f, dx %.4f\n", (graph_loss(x, w + h) - graph_loss(x, w - h)) / (2.0 * h),
           (graph_loss(x + h, w) - graph_loss(x - h, w)) / (2.0 * h));
}

// ---- Three models that guess the next letter ----

enum { V = 5, T = 10 };
typedef enum { BIGRAM, AVERAGE, ATTENTION } Kind;

static const char letters[] = "abcdr";
static const int text[T + 1] = {0, 1, 4, 0, 2, 0, 3, 0, 1, 4, 0}; // abracadabra
static const int32_t *const targets = text + 1;

// next: a letter's own logits. past: what an earlier letter adds. score: how much a letter looks for another one.
typedef struct {
    float next[V][V], past[V][V], score[V][V];
} Tables;

static Tables w, d;                               // parameters and their gradients
static float look[T][T], logits[T][V], losses[T]; // look[t][s]: the weight of position s for position t

// Writes n weights that add up to 1, in the place of n scores.
static void softmax(float *x, int n) {
    float largest = x[0], sum = 0.0f;
    for (int i = 1; i < n; i++) { largest = x[i] > largest ? x[i] : largest; }
    for (int i = 0; i < n; i++) { sum += x[i] = expf(x[i] - largest); }
    for (int i = 0; i < n; i++) { x[i] /= sum; }
}

static void forward(Kind kind) {
    for (int t = 0; t < T; t++) {
        for (int s = 0; s <= t; s++) { look[t][s] = kind == ATTENTION ? w.score[text[t]][text[s]] : 0.0f; }
        softmax(look[t], t + 1); // equal scores: the plain average
        for (int i = 0; i < V; i++) {
            logits[t][i] = w.next[text[t]][i];
            for (int s = 0; s <= t && kind != BIGRAM; s++) { logits[t][i] += look[t][s] * w.past[text[s]][i]; }
        }
    }
}

// The mean loss. Turns the logits into their own gradient.
static float loss(void) {
    float sum = 0.0f;
    cpu_cross_entropy(losses, logits[0], targets, T, V, V, 1.0f / T, true);
    for (int t = 0; t < T; t++) { sum += losses[t]; }
    return sum / T;
}

// The gradient of position t's scores, from the gradient of its weights.
static void score_backward(int t, const float *dlook) {
    float mean = 0.0f;
    for (int s = 0; s <= t; s++) { mean += look[t][s] * dlook[s]; }
    for (int s = 0; s <= t; s++) { d.score[text[t]][text[s]] += look[t][s] * (dlook[s] - mean); }
}

static void backward(Kind kind) {
    memset(&d, 0, sizeof(d));
    for (int t = 0; t < T; t++) {
        const float *dlogits = logits[t];
        float dlook[T] = {0};
        for (int i = 0; i < V; i++) { d.next[text[t]][i] += dlogits[i]; }
        for (int s = 0; s <= t && kind != BIGRAM; s++) {
            for (int i = 0; i < V; i++) {
                d.past[text[s]][i] += look[t][s] * dlogits[i];
                dlook[s] += w.past[text[s]][i] * dlogits[i];
            }
        }
        if (kind == ATTENTION) { score_backward(t, dlook); }
    }
}

static void update(float lr) {
    float *weights = w.next[0], *gradient = d.next[0];
    for (size_t i = 0; i < sizeof(Tables) / sizeof(float); i++) { weights[i] -= lr * gradient[i]; }
}

// Trains a model from zero, and prints its losses.
static void train(const char *name, Kind kind) {
    memset(&w, 0, sizeof(w));
    printf("%-10s", name);
    for (int step = 0; step <= 1000; step++) {
        forward(kind);
        float mean = loss();
        if (step == 0 || step == 10 || step == 100 || step == 1000) { printf("  step %d: %.4f", step, (double)mean); }
        backward(kind);
        update(1.0f);
    }
    printf("\n");
    forward(kind);
}

static void count_bigrams(void) {
    float counts[V][V] = {{0}}, mean = 0.0f;
    for (int t = 0; t < T; t++) { counts[text[t]][text[t + 1]] += 1.0f; }
    for (int i = 0; i < V; i++) {
        float sum = 0.0f;
        for (int j = 0; j < V; j++) { sum += counts[i][j]; }
        for (int j = 0; j < V; j++) { counts[i][j] /= sum; }
    }
    for (int t = 0; t < T; t++) { mean -= logf(counts[text[t]][text[t + 1]]) / T; }
    printf("\nprobability of   a         b         c         d         r\n");
    print_row("after a", counts[0], V), print_row("after b", counts[1], V);
    printf("loss by counting %.4f\n", (double)mean);
}

// What the trainer's attention makes of q, k and v whose products are our scores: q[t] = score of letter t, k[s] =
// one-hot of letter s, v[s] = past of letter s.
static void same_by_the_trainer(int t) {
    float qkv[T][3][V] = {{{0}}}, att[T][V], lse[T], ours[V] = {0};
    for (int s = 0; s < T; s++) {
        for (int i = 0; i < V; i++) {
            qkv[s][0][i] = w.score[text[s]][i] * sqrtf(V); // attention divides a product by the root of its length
            qkv[s][2][i] = w.past[text[s]][i];
        }
        qkv[s][1][text[s]] = 1.0f;
    }
    cpu_attention_forward(att[0], lse, qkv[0][0], 1, T, V, 1);
    for (int s = 0; s <= t; s++) {
        for (int i = 0; i < V; i++) { ours[i] += look[t][s] * w.past[text[s]][i]; }
    }
    print_row("ours", ours, V), print_row("the trainer's", att[t], V);
}

static void example(void) {
    tensor_in_memory();
    graph();
    count_bigrams();
    printf("\n");
    train("bigram", BIGRAM);
    softmax(logits[0], V);
    print_row("after a", logits[0], V);
    train("average", AVERAGE);
    train("attention", ATTENTION);
    printf("\nposition 7 (a) looks at");
    for (int s = 0; s <= 7; s++) { printf("%s%c", s == 0 ? "       " : "         ", letters[text[s]]); }
    printf("\n");
    print_row("weights", look[7], 8);
    same_by_the_trainer(7);
}

// ---- The checks ----

enum { N = 2 * 3 * 4 };

// A case of 0.1: which part of a tensor (2, 3, 4) is asked for.
typedef struct {
    const char *what;
    int begin, shape[3], strides[3];
} View;

static void check_contiguous(Test *t) {
    static const View views[] = {{"x", 0, {2, 3, 4}, {12, 4, 1}},
                                 {"x.transpose(1, 2)", 0, {2, 4, 3}, {12, 1, 4}},
                                 {"x[:, 1:3]", 4, {2, 2, 4}, {12, 4, 1}},
                                 {"x[:, 1:2].expand(2, 3, 4)", 4, {2, 3, 4}, {12, 0, 1}}};
    float x[3 * N]; // with room for wrong strides
    for (int i = 0; i < 3 * N; i++) { x[i] = (float)i; }
    FOR_EACH(v, views) {
        const View *view = &views[v];
        const int *n = view->shape, *stride = view->strides;
        float out[N + 1], want;
        for (int i = 0; i <= N; i++) { out[i] = -1.0f; }
        contiguous(out, x + view->begin, n, stride);
        for (int i = 0; i < n[0] * n[1] * n[2]; i++) {
            int a = i / (n[1] * n[2]), b = i / n[2] % n[1], c = i % n[2];
            want = x[view->begin + a * stride[0] + b * stride[1] + c * stride[2]];
            if (out[i] == want) { continue; }
            const char *why = out[i] <= 0.0f                 ? "" // not written
                              : out[i] == x[view->begin + i] ? " Use the strides"
                                                             : " In out the last index runs fastest";
            CHECK(t, false, "%s: out[%d] is %g, expected element [%d][%d][%d], %g.%s", view->what, i, (double)out[i], a,
                  b, c, (double)want, why);
            break;
        }
        CHECK(t, out[n[0] * n[1] * n[2]] == -1.0f, "%s: a number is written behind the last one", view->what);
    }
}

// loss of 0.2 as a function of x, a and b.
static double residual_loss(const double *n) {
    double y = n[0] + n[1] * tanh(n[2] * n[0]);
    return y * y / 2.0;
}

// The central difference with h = 1e-5 is off by about h^2 = 1e-10, and float rounds to 6e-8: 1e-6 of numbers up to 3.
static void check_residual_backward(Test *t) {
    static const char *const names[] = {"dx", "da", "db"};
    static const double cases[][3] = {{0.5, 1.5, -2.0}, {-1.0, 0.7, 0.3}, {0.0, 2.0, 1.0}};
    FOR_EACH(c, cases) {
        double numbers[3], got[3] = {0};
        float want[3];
        memcpy(numbers, cases[c], sizeof(numbers));
        slopes_of(want, numbers, 3, 1e-5, residual_loss);
        double x = numbers[0], a = numbers[1], b = numbers[2], y = x + a * tanh(b * x);
        double through = y * a * b * (1.0 - tanh(b * x) * tanh(b * x));
        residual_backward(&got[0], &got[1], &got[2], x, a, b);
        for (int i = 0; i < 3; i++) {
            bool one_way = i == 0 && (fabs(got[0] - y) <= 1e-6 || fabs(got[0] - through) <= 1e-6);
            CHECK(t, fabs(got[i] - (double)want[i]) <= 1e-6, "x %g, a %g, b %g: %s is %.6f, measured %.6f.%s", x, a, b,
                  names[i], got[i], (double)want[i],
                  one_way ? " x is used twice: this is the gradient of one use" : "");
        }
    }
}

// An average of numbers up to 4 has their rounding: that of the sums over 6 rows, of expf and of the division.
static void check_attend(Test *t) {
    enum { rows = 6, C = 2 };
    float values[rows * C], scores[rows * rows], out[rows * C];
    for (int i = 0; i < rows * C; i++) { values[i] = (float)(i % 5) - (float)(i / 3); }
    for (int large = 0; large <= 1; large++) {
        for (int i = 0; i < rows * rows; i++) { scores[i] = (float)(i * i % 7) + (large ? 200.0f : 0.0f); }
        for (int i = 0; i < rows * C; i++) { out[i] = 77.0f; }
        attend(out, scores, values, rows, C);
        for (int i = 0; i < rows * C; i++) {
            int at = i / C, c = i % C;
            double past = 0.0, past_weights = 0.0, all = 0.0, all_weights = 0.0, largest = 0.0;
            for (int s = 0; s < rows; s++) {
                double value = (double)values[s * C + c];
                double weight = exp((double)scores[at * rows + s] - (large ? 200.0 : 0.0));
                all += weight * value, all_weights += weight;
                if (s <= at) { past += weight * value, past_weights += weight, largest = fmax(largest, weight); }
            }
            double want = past / past_weights, got = (double)out[i];
            if (fabs(got - want) <= 4.0 * (rows + 4) * (double)FLT_EPSILON) { continue; }
            const char *why = fabs(got - all / all_weights) <= 1e-5 ? " Position s > t is the future"
                              : !isfinite(got)                      ? " expf(200) overflows: subtract the largest first"
                              : fabs(got - past / largest) <= 1e-5  ? " The weights must add up to 1"
                                                                    : "";
            CHECK(t, false, "scores from %d: out[%d][%d] is %.6f, expected %.6f.%s", large ? 200 : 0, at, c, got, want,
                  why);
            break;
        }
    }
}

static const Exercise exercises[] = {{"0.1 a tensor that lies differently", check_contiguous},
                                     {"0.2 a gradient with a residual", check_residual_backward},
                                     {"0.3 an average with weights", check_attend}};

int main(void) { return run_chapter("00_basics", example, exercises); }
