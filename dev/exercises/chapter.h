// What the programs of the chapters share. Each chapter of doc/ has a folder here:
//
//   exercises.h    what the reader writes: three functions that return a wrong answer now
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

#ifdef SOLUTIONS // a chapter includes one of its two files
#define ANSWERS "solutions.h"
#else
#define ANSWERS "exercises.h"
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

// Runs the check of an exercise. Prints what differs, then the verdict: green if the answer is right, red if not.
static inline void exercise(const char *name, void (*check)(Test *)) {
    Test t;
    memset(&t, 0, sizeof(t));
    check(&t);
    printf("%s: %s\n", name, t.failures == 0 ? "green" : "red");
}

#endif // CHAPTER_H
