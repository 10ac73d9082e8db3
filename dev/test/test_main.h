// The list of a program's tests, and what runs them. The file with main includes this once.
//
//   unit_tests                       all tests
//   unit_tests hash test_big_seeds   the tests of test_hash.c, and one more
//   unit_tests --list                the files' names: hash for test_hash.c
#ifndef TEST_MAIN_H
#define TEST_MAIN_H

#include "dev/test/temp_dir.h"
#include "dev/test/test.h"
#include "llmc/base/openmp.h"

static TestCase *tests; // file by file, each in the order of its lines

static bool test_comes_before(const TestCase *a, const TestCase *b) {
    int order = strcmp(a->file, b->file);
    return order < 0 || (order == 0 && a->line <= b->line);
}

void test_add(TestCase *added) {
    TestCase **place = &tests;
    while (*place != NULL && test_comes_before(*place, added)) { place = &(*place)->next; }
    added->next = *place;
    *place = added;
}

typedef struct {
    char text[64];
} TestName;

static TestName test_file_name(const TestCase *test) {
    TestName name;
    const char *slash = strrchr(test->file, '/'), *base = slash != NULL ? slash + 1 : test->file;
    const char *underscore = strchr(base, '_');
    snprintf(name.text, sizeof(name.text), "%s", underscore != NULL ? underscore + 1 : base);
    name.text[strcspn(name.text, ".")] = '\0';
    return name;
}

static bool test_has_name(const TestCase *test, const char *word) {
    return strcmp(word, test->name) == 0 || strcmp(word, test_file_name(test).text) == 0;
}

static void test_list(FILE *out) {
    for (const TestCase *test = tests, *before = NULL; test != NULL; before = test, test = test->next) {
        bool first = before == NULL || strcmp(before->file, test->file) != 0;
        if (first) { fprintf(out, "%s\n", test_file_name(test).text); }
    }
}

// The first word that names no test, or NULL.
static const char *test_unknown(int num_words, char **words) {
    for (int i = 0; i < num_words; i++) {
        const TestCase *test = tests;
        while (test != NULL && !test_has_name(test, words[i])) { test = test->next; }
        if (test == NULL) { return words[i]; }
    }
    return NULL;
}

// Without words, all tests are wanted.
static bool test_is_wanted(const TestCase *test, int num_words, char **words) {
    for (int i = 0; i < num_words; i++) {
        if (test_has_name(test, words[i])) { return true; }
    }
    return num_words == 0;
}

// Runs a test and prints its line. Adds to the number of tests that passed, failed or were skipped.
static void test_run(const TestCase *test, int *passed, int *failed, int *skipped) {
    Test t;
    memset(&t, 0, sizeof(t));
    t.data = test->data;
    test->function(&t);
    if (t.folder[0] != '\0') { temp_remove_tree(t.folder); }
    bool is_skipped = t.failures == 0 && t.skipped != NULL;
    const char *verdict = t.failures > 0 ? "FAIL" : is_skipped ? "skip" : "ok  ";
    printf("%s %s: %s%s%s\n", verdict, test_file_name(test).text, test->name, t.skipped ? ": " : "",
           t.skipped ? t.skipped : "");
    ++*(t.failures > 0 ? failed : is_skipped ? skipped : passed);
}

// Runs the tests that the command line names. The last line is `PROGRAM: N passed, N failed, N skipped`.
static int test_main(int argc, char **argv) {
    openmp_wait_briefly(argv);
    int passed = 0, failed = 0, skipped = 0;
    const char *slash = strrchr(argv[0], '/'), *unknown = test_unknown(argc - 1, argv + 1);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        test_list(stdout);
        return EXIT_SUCCESS;
    }
    if (unknown != NULL) {
        fprintf(stderr, "%s: there is no test or file '%s'. There are these files:\n", argv[0], unknown);
        test_list(stderr);
        return EXIT_FAILURE;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const TestCase *test = tests; test != NULL; test = test->next) {
        if (test_is_wanted(test, argc - 1, argv + 1)) { test_run(test, &passed, &failed, &skipped); }
    }
    printf("%s: %d passed, %d failed, %d skipped\n", slash != NULL ? slash + 1 : argv[0], passed, failed, skipped);
    return failed > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif // TEST_MAIN_H
