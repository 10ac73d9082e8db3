// The unit tests in one program. The Makefile passes SUITES, which holds X(name) for each test_<name>.c that it links.
//
//   unit_tests                  all suites
//   unit_tests json rand        these suites only
//   unit_tests --list           the names of the suites
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define X(name) int suite_##name(void);
SUITES
#undef X

typedef struct {
    const char *name;
    int (*run)(void);
} NamedSuite;

static const NamedSuite NAMED_SUITES[] = {
#define X(name) {#name, suite_##name},
    SUITES
#undef X
};
#define NUM_SUITES (sizeof(NAMED_SUITES) / sizeof(NAMED_SUITES[0]))

static const NamedSuite *find_suite(const char *name) {
    for (size_t i = 0; i < NUM_SUITES; i++) {
        if (strcmp(NAMED_SUITES[i].name, name) == 0) { return &NAMED_SUITES[i]; }
    }
    return NULL;
}

static int list_suites(FILE *out) {
    for (size_t i = 0; i < NUM_SUITES; i++) { fprintf(out, "%s\n", NAMED_SUITES[i].name); }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--list") == 0) { return list_suites(stdout); }
    int status = EXIT_SUCCESS;
    for (size_t i = 0; i < NUM_SUITES && argc == 1; i++) { status |= NAMED_SUITES[i].run(); }
    for (int i = 1; i < argc; i++) {
        const NamedSuite *suite = find_suite(argv[i]);
        if (suite == NULL) {
            fprintf(stderr, "unit_tests: there is no suite '%s'; there are:\n", argv[i]);
            list_suites(stderr);
            return EXIT_FAILURE;
        }
        status |= suite->run();
    }
    return status;
}
