// What the programs of the chapters share. Each chapter of doc/ has a folder here:
//
//   exercises.h    what the reader writes: three functions that return a wrong answer now; it needs no #include
//   solutions.h    our answers
//   chapter.c      prints the chapter's worked example, then says of each exercise whether it is red or green
//
// `make chapter-3` builds and runs the program of chapter 3.
#ifndef CHAPTER_H
#define CHAPTER_H

#include <float.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dev/test/layers/oracle.h"
#include "dev/test/layers/oracle_llama3.h"
#include "dev/test/test.h"
#include "llmc/base/rand.h"
#include "llmc/base/utils.h"

#ifndef ANSWERS
#define ANSWERS "exercises.h" // a chapter includes this; one_program.sh has the solutions, too
#endif

// Fills x with n numbers of the normal distribution. Each stream of a chapter has numbers of its own.
static inline void random_floats(float *x, int n, uint64_t chapter, uint64_t stream) {
    for (int i = 0; i < n; i++) {
        float pair[2];
        rand_normal_pair(chapter, stream, (uint64_t)i, pair);
        x[i] = pair[0];
    }
}

// Prints a row of a worked example: its name and n numbers.
static inline void print_row(const char *name, const float *x, int n) {
    printf("%-14s", name);
    for (int i = 0; i < n; i++) { printf(" %9.4f", (double)x[i]); }
    printf("\n");
}

// Prints a row whose name is that of a tensor and the number of the row: wte[77].
static inline void print_numbered(const char *name, int number, const float *x, int n) {
    char numbered[32];
    snprintf(numbered, sizeof(numbered), "%s[%d]", name, number);
    print_row(numbered, x, n);
}

// Prints the first `columns` numbers of each row of a matrix. The rows lie `stride` numbers apart.
static inline void print_rows(const char *name, const float *x, int rows, int columns, int stride) {
    for (int i = 0; i < rows; i++) { print_numbered(name, i, x + i * stride, columns); }
}

// Writes the slope of a loss by each of n numbers: a central difference with a step of h.
static inline void slopes_of(float *slopes, double *numbers, int n, double h, double (*loss)(const double *)) {
    for (int i = 0; i < n; i++) {
        const double before = numbers[i];
        numbers[i] = before + h;
        double above = loss(numbers);
        numbers[i] = before - h;
        slopes[i] = (float)((above - loss(numbers)) / (2.0 * h));
        numbers[i] = before;
    }
}

// Writes n floats as doubles, which slopes_of() can move.
static inline void as_doubles(double *to, const float *x, int n) {
    for (int i = 0; i < n; i++) { to[i] = (double)x[i]; }
}

// ---- What a check says to the reader ----

// Says what is wrong. The first three of an exercise are enough.
__attribute__((format(printf, 3, 4))) static inline bool chapter_check(Test *t, bool ok, const char *words, ...) {
    if (ok) { return true; }
    if (++t->failures <= 3) {
        va_list arguments;
        va_start(arguments, words);
        printf("  ");
        vprintf(words, arguments);
        printf("\n");
        va_end(arguments);
    }
    return false;
}

// The first wrong number of an array: true only if every |got - want| <= absolute + relative * |want|.
static inline bool same_numbers(Test *t, const char *what, const float *got, const float *want, size_t n,
                                double absolute, double relative) {
    size_t bad = 0, first = 0;
    for (size_t i = n; i-- > 0;) {
        double error = fabs((double)got[i] - (double)want[i]);
        if (!(error <= absolute + relative * fabs((double)want[i]))) { bad++, first = i; }
    }
    double one = n > 0 ? (double)got[first] : 0.0, other = n > 0 ? (double)want[first] : 0.0;
    if (n == 1) { return chapter_check(t, bad == 0, "%s is %.9g, expected %.9g", what, one, other); }
    return chapter_check(t, bad == 0, "%s: number %zu is %.9g, expected %.9g; %zu of %zu are wrong", what, first, one,
                         other, bad, n);
}

// The harness of the tests says at which line of its own a test failed. A reader needs the numbers only.
#undef CHECK
#define CHECK(t, condition, ...) chapter_check((t), (condition), __VA_ARGS__)
#define check_close same_numbers

// ---- Likely mistakes: of an array after its check, by likely(), and of one number, by check_number() ----

// Names a likely mistake, if the wrong numbers are those that this mistake makes, to 1 part in 10,000 of the largest.
static inline void likely(Test *t, const float *got, const float *mistaken, size_t n, const char *mistake) {
    float largest = 0.0f;
    bool equal = t->failures > 0;
    for (size_t i = 0; i < n; i++) { largest = fmaxf(largest, fabsf(mistaken[i])); }
    for (size_t i = 0; i < n && equal; i++) { equal = fabsf(got[i] - mistaken[i]) <= 1e-4f * largest; }
    if (equal) { printf("  Likely: %s\n", mistake); }
}

static inline bool is_near(double got, double want, double tolerance) { return fabs(got - want) <= tolerance; }

// What a mistake would make of one wanted number. NAN stands for an infinity, too.
typedef struct {
    double value;
    const char *words;
} Mistake;

// Returns the words of the mistake that gives `got` instead of `want`, or "". A mistake that changes nothing here
// explains nothing.
static inline const char *likely_mistake(double got, double want, double tolerance, const Mistake *mistakes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double value = mistakes[i].value;
        bool explains =
            isfinite(value) ? is_near(got, value, tolerance) && !is_near(value, want, tolerance) : !isfinite(got);
        if (explains) { return mistakes[i].words; }
    }
    return "";
}

// Passes only if |got - want| <= tolerance, so a NaN fails. `input` says what the answer was given.
static inline bool check_one_number(Test *t, const char *input, double got, double want, double tolerance,
                                    const Mistake *mistakes, size_t n) {
    const char *words = likely_mistake(got, want, tolerance, mistakes, n);
    return chapter_check(t, is_near(got, want, tolerance), "%s: got %.9g, want %.9g%s%s", input, got, want,
                         words[0] ? ". Likely: " : "", words);
}

#define check_number(t, input, got, want, tolerance, mistakes)                                                         \
    check_one_number(t, input, got, want, tolerance, mistakes, COUNT_OF(mistakes))

// ---- The program of a chapter ----

// Sanitizers read this. Memory that is not freed is no fault here.
#ifdef __cplusplus
extern "C"
#endif
    __attribute__((weak)) const char *
    __asan_default_options(void) {
    return "detect_leaks=0";
}

typedef struct {
    const char *name;
    void (*check)(Test *);
} Exercise;

enum { SECONDS_OF_AN_EXERCISE = 60 };

// Prints what a process wrote to stderr. A sanitizer's report is long: a reader needs the fault, the lines of the
// answer, and the array.
static inline void print_errors(FILE *errors) {
    const char *const shown[] = {"runtime error: ", " of size ", ANSWERS ":", "<== Memory access"};
    bool in_report = false;
    char line[1024];
    rewind(errors);
    while (fgets(line, sizeof(line), errors) != NULL) {
        bool print = false;
        in_report = in_report || strncmp(line, "=====", 5) == 0 || strstr(line, shown[0]) != NULL;
        FOR_EACH(i, shown) { print = print || strstr(line, shown[i]) != NULL; }
        if (print || !in_report) { printf("  %s", line + strspn(line, line[0] == '=' ? "=0123456789" : " ")); }
    }
}

// Runs the worked example, or the check of one exercise, in a process of its own: a crash or an endless loop of the
// reader's code ends no other part. Returns whether all went well.
static inline bool run_apart(void (*example)(void), const Exercise *exercise) {
    FILE *errors = tmpfile();
    fflush(stdout);
    pid_t child = errors == NULL ? -1 : fork();
    if (child == 0) {
        Test t;
        memset(&t, 0, sizeof(t));
        alarm(exercise == NULL ? 0 : SECONDS_OF_AN_EXERCISE);
        dup2(fileno(errors), STDERR_FILENO);
        if (exercise == NULL) { example(); }
        if (exercise != NULL) { exercise->check(&t); }
        exit(t.failures == 0 ? 0 : 1);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child) {
        fprintf(stderr, "chapter: no second process can run here\n");
        exit(1);
    }
    print_errors(errors);
    fclose(errors);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
        printf("  It did not end within %d seconds.\n", SECONDS_OF_AN_EXERCISE);
    } else if (WIFSIGNALED(status)) {
        printf("  It crashed: %s.\n", strsignal(WTERMSIG(status)));
    }
    return status == 0;
}

// The program of a chapter. It prints the worked example, and for each exercise what differs, then the verdict: green
// if the answer is right, red if not.
static inline int run_exercises(const char *folder, void (*example)(void), const Exercise *exercises, size_t n) {
    setvbuf(stdout, NULL, _IOLBF, 0); // what was printed before a crash is not lost
    bool done = run_apart(example, NULL);
    printf("\nExercises, in dev/exercises/%s/exercises.h\n", folder);
    for (size_t i = 0; i < n; i++) {
        bool green = run_apart(NULL, &exercises[i]);
        printf("%s: %s\n", exercises[i].name, green ? "green" : "red");
    }
    return done ? 0 : 1;
}

#define run_chapter(folder, example, exercises)                                                                        \
    run_exercises(folder, example, exercises, sizeof(exercises) / sizeof((exercises)[0]))

#endif // CHAPTER_H
