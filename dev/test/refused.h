// What a refused input must say.
#ifndef REFUSED_H
#define REFUSED_H

#include "dev/test/test.h"
#include "llmc/base/utils.h"

static inline bool check_refused(Test *t, bool ok, const Error *error, const char *path, const char *rest,
                                 const char *file, int line) {
    size_t n = strlen(path);
    bool says = strncmp(error->text, path, n) == 0 && strcmp(error->text + n, rest) == 0;
    return test_check(t, !ok, file, line, "accepted, expected: %s%s", path, rest) &&
           test_check(t, says, file, line, "said     '%s'\n    expected '%s%s'", error->text, path, rest);
}

// REFUSED(t, call(..., &error), path, ": what is wrong"): the call fails, and its message is path + rest.
#define REFUSED(t, ok, path, rest) CHECK_REFUSED(t, ok, &error, path, rest)
#define CHECK_REFUSED(t, ok, error, path, rest) check_refused((t), (ok), (error), (path), (rest), __FILE__, __LINE__)

static inline bool check_fails(Test *t, bool ok, const Error *error, const char *words, const char *file, int line) {
    return test_check(t, !ok, file, line, "accepted, expected: %s", words) &&
           test_check(t, strstr(error->text, words) != NULL, file, line, "said     '%s'\n    expected '...%s...'",
                      error->text, words);
}

// FAILS(t, call(..., &error), words): the call fails, and its message has these words.
#define FAILS(t, ok, words) check_fails((t), (ok), &error, (words), __FILE__, __LINE__)

#endif // REFUSED_H
