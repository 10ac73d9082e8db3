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

#include "dev/test/layers/oracle.h"
#include "dev/test/layers/oracle_llama3.h"
#include "dev/test/test.h"
#include "llmc/base/rand.h"
#include "llmc/base/utils.h"

#define ANSWERS "exercises.h" // a chapter includes this; one_program.sh has the solutions, too

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

typedef struct {
    const char *name;
    void (*check)(Test *);
} Exercise;

// The program of a chapter. It prints the worked example, and for each exercise what differs, then the verdict: green
// if the answer is right, red if not.
static inline int run_chapter(const char *folder, void (*example)(void), const Exercise exercises[3]) {
    example();
    printf("\nExercises, in dev/exercises/%s/exercises.h\n", folder);
    for (int i = 0; i < 3; i++) {
        Test t;
        memset(&t, 0, sizeof(t));
        exercises[i].check(&t);
        printf("%s: %s\n", exercises[i].name, t.failures == 0 ? "green" : "red");
    }
    return 0;
}

#endif // CHAPTER_H
