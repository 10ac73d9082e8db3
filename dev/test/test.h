// The test harness: a test is a function that calls CHECK; a suite is a list of tests. test_tokenizer.c has this:
//
//   static void test_round_trip(Test *t) { CHECK(t, ok, "%s", error.text); }
//   SUITE(tokenizer) { Suite s = suite_begin("tokenizer"); RUN(&s, test_round_trip); return suite_end(&s); }
//
// dev/test/unit_tests.c runs the suites. A suite ends with `name: N passed, N failed, N skipped`. It returns a non-zero
// status after a failure.
#ifndef TEST_H
#define TEST_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int failures;
    const char *skipped; // why, or NULL
} Test;

typedef struct {
    const char *name;
    int passed, failed, skipped;
} Suite;

__attribute__((format(printf, 5, 6))) static inline bool test_check(Test *t, bool ok, const char *file, int line,
                                                                    const char *format, ...) {
    if (ok) { return true; }
    if (++t->failures <= 10) { // enough to see what is wrong
        va_list arguments;
        va_start(arguments, format);
        printf("  %s:%d: ", file, line);
        vprintf(format, arguments);
        printf("\n");
        va_end(arguments);
    }
    return false;
}

// CHECK(t, condition, "message with %d", values): records a failure with its place; evaluates to the condition.
#define CHECK(t, condition, ...) test_check((t), (condition), __FILE__, __LINE__, __VA_ARGS__)
// Ends the test as skipped, with the reason.
#define SKIP(t, reason)                                                                                                \
    do {                                                                                                               \
        (t)->skipped = (reason);                                                                                       \
        return;                                                                                                        \
    } while (0)

// Compares two arrays: true only if every |got - want| <= absolute + relative * |want|. A NaN on either side fails.
static inline bool check_close(Test *t, const char *what, const float *got, const float *want, size_t n,
                               double absolute, double relative) {
    size_t bad = 0, worst = 0;
    double worst_error = -1.0;
    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - (double)want[i]);
        bool ok = error <= absolute + relative * fabs((double)want[i]);
        if (!ok) { bad++; }
        if (!ok && !(error <= worst_error)) { worst_error = error, worst = i; }
    }
    return CHECK(t, bad == 0, "%s: %zu of %zu values differ; worst at %zu: got %.9g, want %.9g", what, bad, n, worst,
                 n ? (double)got[worst] : 0.0, n ? (double)want[worst] : 0.0);
}

static inline Suite suite_begin(const char *name) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    Suite suite = {name, 0, 0, 0};
    return suite;
}

static inline void suite_run(Suite *suite, const char *name, void (*function)(Test *)) {
    Test t = {0, NULL};
    function(&t);
    const char *verdict = t.failures > 0 ? "FAIL" : t.skipped != NULL ? "skip" : "ok  ";
    printf("%s %s: %s%s%s\n", verdict, suite->name, name, t.skipped ? ": " : "", t.skipped ? t.skipped : "");
    suite->failed += t.failures > 0;
    suite->skipped += t.failures == 0 && t.skipped != NULL;
    suite->passed += t.failures == 0 && t.skipped == NULL;
}
#define RUN(suite, function) suite_run((suite), #function, function)

static inline int suite_end(const Suite *suite) {
    printf("%s: %d passed, %d failed, %d skipped\n", suite->name, suite->passed, suite->failed, suite->skipped);
    return suite->failed > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

// A suite that unit_tests.c calls: SUITE(name) { ... } in test_name.c.
#define SUITE(name)                                                                                                    \
    int suite_##name(void);                                                                                            \
    int suite_##name(void)

#endif // TEST_H
