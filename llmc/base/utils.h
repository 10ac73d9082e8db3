// Errors, clocks and small arithmetic that every other header uses.
//
// The rule for errors: a function that can fail because of something outside the program (a file, an option, the
// machine) returns bool, true for success. It describes a failure in an Error: one line, without a newline, that says
// where (file or option), the fault, expected and found values, and the remedy. Only main() prints it and exits.
#ifndef LLMC_UTILS_H
#define LLMC_UTILS_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GPT2C_VERSION "0.1.0"
#define MAX_PATH_BYTES 4096 // longer paths are refused where they enter
// No whole number of a file or an option is larger: a double holds it exactly, and a few can be added without overflow.
#define LARGEST_WHOLE ((int64_t)1 << 53)
// What a person can do if the memory of the machine or of its GPU is short.
#define MEMORY_REMEDY "lower --batch-size or --seq-len, raise --recompute, or choose a smaller model"

typedef struct {
    char text[2 * MAX_PATH_BYTES]; // one line; room for a path and its fault
} Error;

#if defined(__GNUC__)
#define PRINTF_LIKE(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))
#else
#define PRINTF_LIKE(format_index, first_arg)
#endif

// Describes a failure. Always returns false, so that a function can end with `return fail(error, ...)`.
PRINTF_LIKE(2, 3) static inline bool fail(Error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof(error->text), format, arguments);
    va_end(arguments);
    return false;
}

// Prints `program: text` on one line, control characters (of a file's name, say) as '?'. For main() and its helpers.
static inline void print_error(const char *program, const Error *error) {
    char line[sizeof(error->text) + 128];
    snprintf(line, sizeof(line), "%s: %s", program, error->text);
    for (char *c = line; *c != '\0'; c++) {
        if ((unsigned char)*c < 32 || *c == 127) { *c = '?'; }
    }
    fprintf(stderr, "%s\n", line); // in one piece, because other processes may write there at that moment
}

// Prints the error and ends the process with status 1 when ok is false.
static inline void exit_unless(bool ok, const char *program, const Error *error) {
    if (ok) { return; }
    fflush(stdout);
    print_error(program, error);
    exit(EXIT_FAILURE);
}

// Returns seconds on a clock that never goes back. Only differences have a meaning.
static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div_i64(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up_i64(int64_t a, int64_t multiple) { return ceil_div_i64(a, multiple) * multiple; }

// Writes a byte count for people into text, e.g. "1.86 GiB" or "512 B".
static inline void format_bytes(char *text, size_t size, int64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024.0 && unit < 5) { value /= 1024.0, unit++; }
    snprintf(text, size, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
}

// Writes a double with the fewest digits that give it back exactly.
static inline void format_real(char *text, size_t size, double value) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value) { return; }
    }
}

// Reads decimal digits, optionally after a minus, and nothing else. Returns false for other texts and beyond
// LARGEST_WHOLE.
static inline bool read_whole(const char *text, int64_t *value) {
    bool negative = *text == '-';
    const char *digit = text + negative;
    int64_t sum = 0;
    if (*digit == '\0') { return false; }
    for (; *digit != '\0'; digit++) {
        if (*digit < '0' || *digit > '9') { return false; }
        sum = 10 * sum + (*digit - '0');
        if (sum > LARGEST_WHOLE) { return false; }
    }
    *value = negative ? -sum : sum;
    return true;
}

static inline bool ends_with(const char *text, const char *suffix) {
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && memcmp(text + n - m, suffix, m) == 0;
}

#endif // LLMC_UTILS_H
