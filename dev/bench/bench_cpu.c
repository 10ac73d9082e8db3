// `make bench-cpu`: how far this machine is from its own limits, in one run: the peak of its multiply-adds, the matrix
// multiply at the shapes of GPT-2 124M (beside OpenBLAS if libopenblas.so.0 is installed), the memory bandwidth an
// optimizer sees. It times the source the trainer runs. (Whole steps: cpu_training.py.)
//
// Rates are the best of many repetitions, ours and OpenBLAS's by turns, since other programs can only slow both down.
#include "llmc/base/openmp.h"
#include "llmc/cpu/kernels.h"
#include "llmc/model/memory_plan.h"
#include <dlfcn.h>

#define SECONDS_PER_SHAPE 1.0

// CBLAS, as its header would declare it: sgemm(order, transposes, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc).
typedef void (*Sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
enum { CBLAS_ROW_MAJOR = 101, CBLAS_AS_IS = 111, CBLAS_TRANSPOSED = 112 };

typedef struct {
    int threads;
    double peak; // GFLOP/s
    Sgemm sgemm; // NULL without OpenBLAS
    GemmKernel kernel;
} Bench;

typedef struct {
    const char *name;
    int64_t M, N, K;
    bool transpose_a, transpose_b, accumulate;
} Shape;

static void print_machine(int threads) {
    char line[256] = "", model[256] = "unknown processor\n";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "model name", 10) == 0) {
            snprintf(model, sizeof(model), "%s", strchr(line, ':') + 2);
            break;
        }
    }
    if (file != NULL) { fclose(file); }
    printf("%s%d threads, vectors of %d floats, compiler %s\n", model, threads, VF_WIDTH, __VERSION__);
}

// Finds OpenBLAS and gives it as many threads as gemm uses. It guesses the processor from numbers that virtual machines
// hide, so that it may run code for an old one; then the kind with our vectors is named to it. A setting of the user's
// own stays.
static Sgemm open_openblas(int threads) {
    if (VF_WIDTH == 16) { setenv("OPENBLAS_CORETYPE", "SkylakeX", 0); }
    void *library = dlopen("libopenblas.so.0", RTLD_NOW);
    if (library == NULL) {
        printf("OpenBLAS: not installed (apt-get install libopenblas0-pthread), so no comparison\n");
        return NULL;
    }
    void (*set_threads)(int) = (void (*)(int))dlsym(library, "openblas_set_num_threads");
    char *(*config)(void) = (char *(*)(void))dlsym(library, "openblas_get_config");
    char *(*core)(void) = (char *(*)(void))dlsym(library, "openblas_get_corename");
    Sgemm sgemm = (Sgemm)dlsym(library, "cblas_sgemm");
    if (set_threads == NULL || config == NULL || core == NULL || sgemm == NULL) {
        printf("OpenBLAS: libopenblas.so.0 lacks the usual functions, so no comparison\n");
        return NULL;
    }
    set_threads(threads);
    printf("OpenBLAS: %s, kernels for %s\n", config(), core());
    return sgemm;
}

static float *new_floats(int64_t n) {
    float *x = (float *)malloc((size_t)n * sizeof(float));
    if (x == NULL) {
        fprintf(stderr, "bench_cpu: out of memory for %lld floats\n", (long long)n);
        exit(EXIT_FAILURE);
    }
    for (int64_t i = 0; i < n; i++) { x[i] = (float)(i * 7919 % 1000) * 1e-3f - 0.5f; }
    return x;
}

typedef struct {
    float *A, *B, *C;
    Gemm mm;
} Operands;

static void run_ours(const Shape *s, const Operands *o) {
    GemmMatrix a = s->transpose_a ? transpose_of(o->A, s->M) : rows_of(o->A, s->K);
    GemmMatrix b = s->transpose_b ? transpose_of(o->B, s->K) : rows_of(o->B, s->N);
    gemm(o->C, s->N, a, b, NULL, s->M, s->N, s->K, s->accumulate, &o->mm);
}

static void run_openblas(Sgemm sgemm, const Shape *s, const Operands *o) {
    sgemm(CBLAS_ROW_MAJOR, s->transpose_a ? CBLAS_TRANSPOSED : CBLAS_AS_IS,
          s->transpose_b ? CBLAS_TRANSPOSED : CBLAS_AS_IS, (int)s->M, (int)s->N, (int)s->K, 1.0f, o->A,
          (int)(s->transpose_a ? s->M : s->K), o->B, (int)(s->transpose_b ? s->K : s->N), s->accumulate ? 1.0f : 0.0f,
          o->C, (int)s->N);
}

// Best seconds of both, taken by turns.
static void time_shape(const Bench *bench, const Shape *s, double *ours, double *openblas) {
    Operands o = {new_floats(s->M * s->K),
                  new_floats(s->K * s->N),
                  new_floats(s->M * s->N),
                  {&bench->kernel, new_floats(gemm_workspace_floats(bench->threads))}};
    *ours = *openblas = INFINITY;
    double until = seconds_now() + SECONDS_PER_SHAPE;
    for (int i = 0; i < 3 || seconds_now() < until; i++) {
        double start = seconds_now();
        run_ours(s, &o);
        double middle = seconds_now();
        *ours = fmin(*ours, middle - start);
        if (bench->sgemm == NULL) { continue; }
        run_openblas(bench->sgemm, s, &o);
        *openblas = fmin(*openblas, seconds_now() - middle);
    }
    free(o.A), free(o.B), free(o.C), free(o.mm.workspace);
}

static void bench_shape(const Bench *bench, const Shape *s) {
    double ours, openblas, gflop = 2e-9 * (double)s->M * (double)s->N * (double)s->K;
    time_shape(bench, s, &ours, &openblas);
    printf("%-22s %5lld %6lld %6lld | %7.1f GFLOP/s | %5.1f%% of peak", s->name, (long long)s->M, (long long)s->N,
           (long long)s->K, gflop / ours, 100.0 * gflop / ours / bench->peak);
    if (bench->sgemm != NULL) {
        printf(" | OpenBLAS %5.1f%%, ratio %.2f", 100.0 * gflop / openblas / bench->peak, openblas / ours);
    }
    if (s->M == 1) { printf(" | weights at %.1f GB/s", 4e-9 * (double)s->N * (double)s->K / ours); }
    printf("\n");
}

// The multiplies of a training step with BT = B * T tokens; dW: gradient of a weight, dx: of a layer's input.
static void bench_training_shapes(const Bench *bench, int64_t BT) {
    const Shape shapes[] = {
        {"qkv", BT, 2304, 768, false, true, false},
        {"attention projection", BT, 768, 768, false, true, false},
        {"fc", BT, 3072, 768, false, true, false},
        {"fc projection", BT, 768, 3072, false, true, false},
        {"head", BT, 50304, 768, false, true, false},
        {"dx of fc", BT, 768, 3072, false, false, false},
        {"dx of fc projection", BT, 3072, 768, false, false, false},
        {"dx of head", BT, 768, 50304, false, false, false},
        {"dW of fc", 3072, 768, BT, true, false, true},
        {"dW of fc projection", 768, 3072, BT, true, false, true},
        {"dW of head", 50304, 768, BT, true, false, true},
    };
    printf("\ngemm, B*T = %-10lld     M      N      K\n", (long long)BT);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) { bench_shape(bench, &shapes[i]); }
}

static void bench_decoding_shapes(const Bench *bench) {
    const Shape shapes[] = {
        {"fc", 1, 3072, 768, false, true, false},
        {"fc projection", 1, 768, 3072, false, true, false},
        {"head", 1, 50304, 768, false, true, false},
    };
    printf("\ngemm, one token            M      N      K\n");
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) { bench_shape(bench, &shapes[i]); }
}

#define STREAM (8 << 20) // floats in an array: four arrays are larger than any cache

// Moves four arrays of STREAM floats as AdamW does: reads all of them, writes three. Hardly any arithmetic.
static void stream(float *param, float *m, float *v, const float *grad) {
    const int64_t block = 1 << 14;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < STREAM; begin += block) {
        for (int64_t i = begin; i < begin + block; i += VF_WIDTH) {
            vf g = vf_load(grad + i);
            vf m_new = vf_load(m + i) * 0.9f + g * 0.1f, v_new = vf_load(v + i) * 0.95f + g * g * 0.05f;
            vf_store(m + i, m_new);
            vf_store(v + i, v_new);
            vf_store(param + i, vf_load(param + i) - m_new * 1e-6f);
        }
    }
}

// The rate of memory in GB/s, the best of a few times with all threads: 40 ms. 0 if there is no memory for it.
static double memory_rate(void) {
    const int64_t n = STREAM;
    float *arrays = (float *)plan_take_memory(4 * n * (int64_t)sizeof(float));
    double best = 0.0;
    if (arrays == NULL) { return 0.0; }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < 4 * n; i++) { arrays[i] = 1.0f; }
    for (int repeat = 0; repeat < 5; repeat++) {
        double start = seconds_now();
        stream(arrays, arrays + n, arrays + 2 * n, arrays + 3 * n);
        double rate = 7e-9 * (double)sizeof(float) * (double)n / (seconds_now() - start);
        best = rate > best ? rate : best;
    }
    free(arrays);
    return best;
}

static void bench_memory(void) {
    printf("\nmemory, as AdamW uses it: %.1f GB/s (4 arrays read, 3 written)\n", memory_rate());
}

// Measures one precision with a kernel, or with the fastest for "auto".
static void bench_precision(Bench *bench, const char *name, bool bf16) {
    Error error;
    if (!kernel_choose(&bench->kernel, name, bf16, false, &error)) {
        printf("\n%s: %s\n", bf16 ? "bf16" : "fp32", error.text);
        return;
    }
    bench->peak = 0.0;
    for (int i = 0; i < 5; i++) { bench->peak = fmax(bench->peak, kernel_peak(&bench->kernel, bench->threads)); }
    printf("\n%s by %s, peak: %.1f GFLOP/s%s\n", bf16 ? "bf16" : "fp32", bench->kernel.name, bench->peak,
           bench->kernel.burn == NULL ? ", of the kernel in caches" : "");
    bench_training_shapes(bench, 256);
    bench_training_shapes(bench, 1024);
    bench_decoding_shapes(bench);
}

// Takes the name of a kernel; without it the fastest.
int main(int argc, char **argv) {
    openmp_wait_briefly(argv);
    Bench bench = {.threads = gemm_max_threads()};
    print_machine(bench.threads);
    bench.sgemm = open_openblas(bench.threads);
    bench_precision(&bench, argc > 1 ? argv[1] : "auto", false);
    bench.sgemm = NULL; // it multiplies in fp32
    bench_precision(&bench, argc > 1 ? argv[1] : "auto", true);
    bench_memory();
    return EXIT_SUCCESS;
}
