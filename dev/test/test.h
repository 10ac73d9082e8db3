// The test harness: TEST defines a test, which calls CHECK. test_tokenizer.c has this:
//
//   TEST(test_round_trip) { CHECK(t, ok, "%s", error.text); }
//
// A test needs no entry in a list. dev/test/test_main.h runs the tests of a program, file by file.
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
    const void *data;    // of its TestCase
    char folder[512];    // of test_folder() in temp_dir.h; "" until a test asks for it
} Test;

typedef struct TestCase {
    const char *name, *file;
    int line;
    void (*function)(Test *);
    const void *data; // for a function that serves several tests
    struct TestCase *next;
} TestCase;

#ifdef __cplusplus
extern "C"
#endif
    void
    test_add(TestCase *added); // in test_main.h

#define TEST(name)                                                                                                     \
    static void name(Test *t);                                                                                         \
    __attribute__((constructor)) static void add_##name(void) {                                                        \
        static TestCase added = {#name, __FILE__, __LINE__, name, NULL, NULL};                                         \
        test_add(&added);                                                                                              \
    }                                                                                                                  \
    static void name(Test *t)

__attribute__((format(printf, 5, 6))) static inline bool test_check(Test *t, bool ok, const char *file, int line,
                                                                    const char *format, ...) {
    if (ok) { return true; }
    if (++t->failures <= 10) { // enough to see the fault
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
// OK(t, call(..., &error)): the call succeeds. `error` (refused.h) says why it did not.
#define OK(t, ok) CHECK(t, ok, "%s", error.text)
// FOR_EACH(i, cases) { ... }: a loop over an array, mostly of a test's cases.
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define FOR_EACH(i, array) for (size_t i = 0; i < COUNT_OF(array); i++)
// Ends the test as skipped, with the reason.
#define SKIP(t, reason)                                                                                                \
    do {                                                                                                               \
        (t)->skipped = (reason);                                                                                       \
        return;                                                                                                        \
    } while (0)

// A text, which is valid until the eighth call after this one.
__attribute__((format(printf, 1, 2))) static inline const char *format(const char *words, ...) {
    static char texts[8][1024];
    static int next = 0;
    char *text = texts[next++ % 8];
    va_list arguments;
    va_start(arguments, words);
    vsnprintf(text, sizeof(texts[0]), words, arguments);
    va_end(arguments);
    return text;
}

// Is this the quick run, scripts/test.sh without --all? A long test then does a part of its rounds.
static inline bool test_is_quick(void) { return getenv("TEST_QUICK") != NULL; }

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

#endif // TEST_H
