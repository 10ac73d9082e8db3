// How the checks of some chapters report a wrong number: the input, what came, what was wanted, and the mistake that
// leads to what came, if it is a known one.
#ifndef LIKELY_H
#define LIKELY_H

#include "dev/test/test.h"

// What a mistake would make of the wanted number. NAN stands for an infinity, too.
typedef struct {
    double value;
    const char *words;
} Mistake;

static inline bool is_near(double got, double want, double tolerance) { return fabs(got - want) <= tolerance; }

// Returns the words of the mistake that gives `got` instead of `want`, or "". A mistake that changes nothing here
// explains nothing.
static inline const char *likely_mistake(double got, double want, double tolerance, const Mistake *mistakes, int n) {
    for (int i = 0; i < n; i++) {
        double value = mistakes[i].value;
        bool explains =
            isfinite(value) ? is_near(got, value, tolerance) && !is_near(value, want, tolerance) : !isfinite(got);
        if (explains) { return mistakes[i].words; }
    }
    return "";
}

// Passes only if |got - want| <= tolerance, so a NaN fails. `input` says what the answer was given.
static inline bool check_number(Test *t, const char *input, double got, double want, double tolerance,
                                const Mistake *mistakes, int n) {
    if (is_near(got, want, tolerance)) { return true; }
    const char *words = likely_mistake(got, want, tolerance, mistakes, n);
    printf("  %s: got %.9g, want %.9g%s%s\n", input, got, want, words[0] ? ". Likely: " : "", words);
    t->failures++;
    return false;
}

#endif // LIKELY_H
