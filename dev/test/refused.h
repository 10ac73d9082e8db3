// What a refused input must say.
#ifndef REFUSED_H
#define REFUSED_H

#include "dev/test/test.h"
#include "llmc/base/utils.h"

static Error error __attribute__((unused)); // what the last call of a test or a fuzzer said

// What a refused call said, which this forgets: the next one must say its own.
static inline bool check_said(Test *t, bool ok, bool as_expected, const char *want, const char *file, int line) {
    bool right = test_check(t, !ok, file, line, "accepted, expected: %s", want) &&
                 test_check(t, as_expected, file, line, "said     '%s'\n    expected '%s'", error.text, want);
    error.text[0] = '\0';
    return right;
}

// REFUSED(t, call(..., &error), path, ": what is wrong"): the call fails, and its message is path + rest.
#define REFUSED(t, ok, path, rest) check_refused((t), (ok), (path), (rest), __FILE__, __LINE__)
static inline bool check_refused(Test *t, bool ok, const char *path, const char *rest, const char *file, int line) {
    size_t n = strlen(path);
    bool says = strncmp(error.text, path, n) == 0 && strcmp(error.text + n, rest) == 0;
    return check_said(t, ok, says, format("%s%s", path, rest), file, line);
}

// FAILS(t, call(..., &error), words): the call fails, and its message has these words.
#define FAILS(t, ok, words) check_fails((t), (ok), (words), __FILE__, __LINE__)
static inline bool check_fails(Test *t, bool ok, const char *words, const char *file, int line) {
    return check_said(t, ok, strstr(error.text, words) != NULL, format("...%s...", words), file, line);
}

#endif // REFUSED_H
