// `make ladder-cpu`: from three naive loops to the matrix multiply of llmc/cpu, each step checked and measured.
//
//     build/ladder               the head of GPT-2 124M for 256 tokens, 256 x 50304 x 768; about 30 seconds
//     build/ladder 256 3072 768  another M, N and K
//     build/ladder --check       only checks the steps, on small and odd sizes
//
// doc/12_matmul_cpu.md explains the steps and the table.
#include "dev/cpu/check.h"
#include "dev/cpu/machine.h"
#include "dev/cpu/plain.c"
#include "llmc/base/openmp.h"

enum { CHECK_THREADS = 3, FEW_ROWS = 16, MOST_RUNS = 200 };
#define SECONDS_PER_STEP 0.5

typedef void (*Run)(const Problem *);

// Returns what runs a step: a plain step number by number, or with the compiler's vectors.
static Run run_of(int step, bool scalar) {
    return step >= PLAIN_STEPS ? steps[step].run : (scalar ? plain_scalar : plain_vectors).steps[step];
}

static bool check_step(int step, bool scalar) {
    bool right = true;
    for (int i = 0; i < NUM_CHECK_SIZES; i++) {
        int64_t wrong = wrong_elements(run_of(step, scalar), steps[step].arithmetic != IN_FP32, check_sizes[i],
                                       CHECK_THREADS, ladder_workspace_floats(CHECK_THREADS));
        if (wrong == 0) { continue; }
        fprintf(stderr, "ladder: step %d (%s)%s at M %d N %d K %d: %lld elements differ from step 1\n", step + 1,
                steps[step].name, scalar ? ", number by number," : "", (int)check_sizes[i][0], (int)check_sizes[i][1],
                (int)check_sizes[i][2], (long long)wrong);
        right = false;
    }
    return right;
}

// Checks all steps that this machine can run, and says which it leaves out.
static bool check_steps(void) {
    bool right = true;
    for (int i = 0; i < NUM_STEPS; i++) {
        const char *missing = step_missing(&steps[i]);
        if (missing != NULL) {
            printf("skip step %d (%s): %s\n", i + 1, steps[i].name, missing);
            continue;
        }
        right = check_step(i, false) && right;
        if (i < PLAIN_STEPS) { right = check_step(i, true) && right; }
    }
    return right;
}

// Returns the GFLOP/s that the model of steps.h allows.
static double predicted(const Step *step, const Machine *m, const Problem *p, bool scalar) {
    const Cost *c = &step->cost;
    int threads = step->on_threads ? m->threads : 1;
    double peak = scalar             ? m->scalar
                  : step->on_threads ? m->all_peak[step_arithmetic(step)]
                                     : m->peak[step_arithmetic(step)];
    double instructions = fmax(1.0, fmax(c->loads, 2.0 * c->stores));    // in the time of one multiply-add
    double core = c->chain ? 2.0 / m->chain : 2.0 * instructions / peak; // ns for a multiply-add of two numbers
    double near_bytes = c->near_bytes / m->near_rate / threads;
    int packs_of_b = is_llmc(step) ? 1 : threads; // llmc's threads have all rows and a part of the columns
    double far_bytes = c->far_bytes + c->far_bytes_over_rows * packs_of_b / (double)p->M;
    return 2.0 / (fmax(core, near_bytes) + far_bytes / (step->on_threads ? m->all_far_rate : m->far_rate));
}

// Returns GFLOP/s. Steps 1 and 2 go row by row, so a few rows show their speed.
static double measured(int step, const Problem *whole, bool scalar) {
    Problem p = *whole;
    if (step < 2) { p.M = min_i64(p.M, FEW_ROWS); }
    double best = INFINITY, until = seconds_now() + SECONDS_PER_STEP;
    for (int i = 0; i < 2 || (i < MOST_RUNS && seconds_now() < until); i++) {
        double start = seconds_now();
        run_of(step, scalar)(&p);
        best = fmin(best, seconds_now() - start);
    }
    return 2e-9 * (double)p.M * (double)p.N * (double)p.K / best;
}

static void print_rates(int step, const Machine *m, const Problem *p, bool scalar) {
    double rate = measured(step, p, scalar);
    double peak = (steps[step].on_threads ? m->all_peak : m->peak)[step_arithmetic(&steps[step])];
    printf(" %9.1f | %8.1f | %5.1f %% |", predicted(&steps[step], m, p, scalar), rate, 100.0 * rate / peak);
}

static void print_table(const Machine *m, const Problem *p) {
    printf("GFLOP/s          | number by number                 | with vectors\n"
           "| step           | predicted | measured | of peak | predicted | measured | of peak |\n"
           "|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < NUM_STEPS; i++) {
        const char *missing = step_missing(&steps[i]);
        printf("| %2d %-11s |", i + 1, steps[i].name);
        if (missing != NULL) {
            printf(" left out: %s\n", missing);
            continue;
        }
        if (i < PLAIN_STEPS) {
            print_rates(i, m, p, true);
        } else {
            printf(" %9s | %8s | %7s |", "", "", "");
        }
        print_rates(i, m, p, false);
        printf("\n");
        fflush(stdout);
    }
}

static void print_machine(const Machine *m, const Problem *p) {
    printf(
        "C (%lld, %lld) = A (%lld, %lld) times B (%lld, %lld): %.1f GFLOP; %d threads, vectors of %d floats, compiler "
        "%s\n",
        (long long)p->M, (long long)p->N, (long long)p->M, (long long)p->K, (long long)p->K, (long long)p->N,
        2e-9 * (double)p->M * (double)p->N * (double)p->K, m->threads, VF_WIDTH, __VERSION__);
    printf("A core's multiply-adds, GFLOP/s: %.1f in one chain, %.1f in many, %.1f with vectors", m->chain, m->scalar,
           m->peak[IN_FP32]);
    if (m->peak[IN_BF16] > 0.0) { printf(", %.1f in bf16", m->peak[IN_BF16]); }
    if (m->peak[IN_AMX] > 0.0) { printf(", %.1f with AMX", m->peak[IN_AMX]); }
    printf("\nllmc's kernels, chosen as this program runs: %s, %s", llmc_kernel(false).name, llmc_kernel(true).name);
    printf("\nGB/s: %.0f from the second cache; B comes at %.1f to one core, at %.1f to all\n\n", m->near_rate,
           m->far_rate, m->all_far_rate);
}

static bool parse_sizes(char **words, int64_t *sizes) {
    for (int i = 0; i < 3; i++) {
        char *end = words[i];
        sizes[i] = strtoll(words[i], &end, 10);
        if (end == words[i] || *end != '\0' || sizes[i] < 1 || sizes[i] > 1 << 20) { return false; }
    }
    return true;
}

int main(int argc, char **argv) {
    int64_t sizes[3] = {256, 50304, 768};
    bool only_check = argc == 2 && strcmp(argv[1], "--check") == 0;
    if (!only_check && argc != 1 && !(argc == 4 && parse_sizes(argv + 1, sizes))) {
        fprintf(stderr, "ladder: expected --check, or M N K from 1 to %d, or nothing\n", 1 << 20);
        return EXIT_FAILURE;
    }
    openmp_wait_briefly(argv);
    if (!check_steps()) { return EXIT_FAILURE; }
    printf("All other steps agree with step 1.\n");
    if (only_check) { return EXIT_SUCCESS; }
    int threads = gemm_max_threads();
    Problem p = {ladder_floats(sizes[0] * sizes[1]),
                 random_floats(sizes[0] * sizes[2], 1, false),
                 random_floats(sizes[2] * sizes[1], 2, false),
                 sizes[0],
                 sizes[1],
                 sizes[2],
                 ladder_floats(ladder_workspace_floats(threads)),
                 threads};
    Machine machine = measure_machine(&p);
    print_machine(&machine, &p);
    print_table(&machine, &p);
    return EXIT_SUCCESS;
}
