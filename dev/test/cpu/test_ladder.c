// Every step of the ladder of matrix multiplies (dev/cpu) against the first, on awkward sizes.
#include "llmc/cpu/kernels.h"
#include "dev/test/cpu/amx_emulated.h" // so step 9 runs in software here; build/ladder --check runs it on the processor
#include "dev/cpu/check.h"
#include "dev/cpu/plain.c"
#include "dev/cpu/steps.h"

static void check_step(Test *t, int step, int threads) {
    void (*run)(const Problem *) = step < PLAIN_STEPS ? plain_vectors.steps[step] : steps[step].run;
    for (int i = 0; i < NUM_CHECK_SIZES; i++) {
        int64_t wrong = wrong_elements(run, steps[step].arithmetic != IN_FP32, check_sizes[i], threads,
                                       ladder_workspace_floats(threads));
        CHECK(t, wrong == 0, "step %d (%s), M %d N %d K %d: %d elements differ from step 1", step + 1, steps[step].name,
              (int)check_sizes[i][0], (int)check_sizes[i][1], (int)check_sizes[i][2], (int)wrong);
    }
}

static int step_of(Arithmetic arithmetic) {
    int step = 0;
    while (steps[step].arithmetic != arithmetic) { step++; }
    return step;
}

TEST(test_fp32_steps) {
    for (int i = 0; i < NUM_STEPS; i++) {
        if (steps[i].arithmetic == IN_FP32 || is_llmc(&steps[i])) { check_step(t, i, 3); }
    }
}

TEST(test_bf16_step) {
    t->skipped = step_missing(&steps[step_of(IN_BF16)]);
    if (t->skipped == NULL) { check_step(t, step_of(IN_BF16), 3); }
}

TEST(test_amx_step) {
    CHECK(t, emulated_has_amx(), "the emulated AMX is not here");
    check_step(t, step_of(IN_AMX), 3);
    check_emulated(t);
}

static void leave_one_out(const Problem *p) {
    step1_naive(p);
    p->C[p->M * p->N - 1] = NAN;
}

static void write_behind(const Problem *p) {
    step1_naive(p);
    p->C[p->M * p->N] = 0.0f;
}

static void forget_a_product(const Problem *p) {
    step1_naive(p);
    p->C[0] -= p->A[0] * p->B[0];
}

TEST(test_check_finds_mistakes) {
    static const int64_t size[] = {3, 5, 40};
    CHECK(t, wrong_elements(leave_one_out, false, size, 1, 1) == 1, "a NaN passed");
    CHECK(t, wrong_elements(write_behind, false, size, 1, 1) == 1, "a number behind C passed");
    CHECK(t, wrong_elements(forget_a_product, true, size, 1, 1) >= 1, "a lost product passed");
}
