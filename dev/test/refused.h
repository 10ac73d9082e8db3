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

// CHECK_REFUSED(t, call(..., &error), &error, path, ": what is wrong"): the call fails, and its message is path + rest.
#define CHECK_REFUSED(t, ok, error, path, rest) check_refused((t), (ok), (error), (path), (rest), __FILE__, __LINE__)

#endif // REFUSED_H
