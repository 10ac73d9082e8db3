// Errors, printing, paths, clocks and small arithmetic that every other header uses.
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
#include <sys/stat.h>
#include <time.h>

#define GPT2C_VERSION "0.1.0"
#define MAX_PATH_BYTES 4096             // longer paths are refused where they enter
#define MAX_IO_BYTES ((int64_t)1 << 30) // per read() or write(): Linux and macOS refuse or cut more than 2 GiB
// No whole number of a file or an option is larger: a double holds it exactly, and a few can be added without overflow.
#define LARGEST_WHOLE ((int64_t)1 << 53)
// The square of a larger gradient overflows fp32, and AdamW's v would never recover. Clipping makes it harmless.
#define LARGEST_NORM 1e18
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

// ---- UTF-8 ----

#define UTF8_REPLACEMENT "\xef\xbf\xbd" // U+FFFD stands for a byte that belongs to no character

// Decodes one character of strict UTF-8 (no overlong forms, no surrogates) of at most n bytes, n >= 1. Returns its
// length, or 0 when the bytes at p are not a character.
static inline int utf8_decode(const uint8_t *p, size_t n, uint32_t *code_point) {
    if (p[0] < 0x80) { return *code_point = p[0], 1; }
    int length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || (size_t)length > n) { return 0; }
    uint32_t c = p[0] & (0xffu >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) { return 0; }
        c = c << 6 | (p[i] & 0x3f);
    }
    bool overlong = (length == 3 && c < 0x800) || (length == 4 && c < 0x10000);
    if (overlong || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff) { return 0; }
    *code_point = c;
    return length;
}

// ---- Printing ----
//
// Any text may hold bytes of others (a path, an option, a file, a token, the words of another rank), and none may steer
// the terminal or forge a line. So all that a program prints passes text_show: messages through say() and
// print_error(), samples through text.h. dev/house.py refuses other ways to print.

// Tells whether a character steers a terminal or the order of reading instead of being seen: C0, DEL and C1, the
// separators of lines and paragraphs, and the marks, embeddings, overrides and isolates of right-to-left text.
static inline bool text_steers(uint32_t c) {
    return c < 32 || (c >= 127 && c < 160) || c == 0x61c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

#define TEXT_SHOWN_BYTES 8 // room for a character as it is shown

// Writes the character at p (of at most n bytes, n >= 1) as a person sees it, and returns the bytes written. A
// character that steers becomes an escape, \x1b or \u202e. A byte that belongs to no character becomes U+FFFD. lines:
// newline and tab are meant, and pass. *taken: the bytes read.
static inline size_t text_show(char *out, const char *p, size_t n, bool lines, size_t *taken) {
    uint32_t c = 0;
    int length = utf8_decode((const uint8_t *)p, n, &c);
    *taken = length == 0 ? 1 : (size_t)length;
    if (length == 0) { return (size_t)snprintf(out, TEXT_SHOWN_BYTES, UTF8_REPLACEMENT); }
    if (text_steers(c) && !(lines && (c == '\n' || c == '\t'))) {
        return (size_t)snprintf(out, TEXT_SHOWN_BYTES, c < 128 ? "\\x%02x" : "\\u%04x", (unsigned)c);
    }
    memcpy(out, p, *taken);
    return *taken;
}

#define SAY_MAX_BYTES (4 * MAX_PATH_BYTES) // of one message; longer text is cut

// Writes a message as it is shown, and returns its bytes. The first `head` and the last `tail` bytes are the program's
// own: their newlines pass.
static inline size_t shown(char out[SAY_MAX_BYTES], const char *text, size_t head, size_t tail) {
    size_t end = strlen(text) - tail, used = 0, taken;
    for (size_t i = 0; i < end && used + TEXT_SHOWN_BYTES + tail <= SAY_MAX_BYTES; i += taken) {
        used += text_show(out + used, text + i, end - i, i < head, &taken);
    }
    memcpy(out + used, text + end, tail);
    return used + tail;
}

// Prints several lines of the program's own.
static inline void say_lines(FILE *out, const char *text) { fwrite(text, 1, strlen(text), out); }

// Prints like vfprintf, in one piece, because other processes may write to `out` at that moment. Newlines at the
// beginning and at the end of `format` are meant. Every other newline came with an argument, and is shown as \x0a.
static inline void say_list(FILE *out, const char *format, va_list arguments) {
    char text[SAY_MAX_BYTES], line[SAY_MAX_BYTES];
    size_t head = strspn(format, "\n"), end = strlen(format), tail = 0;
    while (end - tail > head && format[end - tail - 1] == '\n') { tail++; }
    if (vsnprintf(text, sizeof(text), format, arguments) < 0) { return; }
    memset(text + strlen(text) - tail, '\n', tail); // of a text that was cut, too
    fwrite(line, 1, shown(line, text, head, tail), out);
}

PRINTF_LIKE(2, 3) static inline void say(FILE *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say_list(out, format, arguments);
    va_end(arguments);
}

// For main() and its helpers.
static inline void print_error(const char *program, const Error *error) {
    say(stderr, "%s: %s\n", program, error->text);
}

// Prints the error and ends the process with status 1 when ok is false.
static inline void exit_unless(bool ok, const char *program, const Error *error) {
    if (ok) { return; }
    fflush(stdout);
    print_error(program, error);
    exit(EXIT_FAILURE);
}

// ---- Paths ----

#define PATH_LIMIT (MAX_PATH_BYTES - 64) // leaves room for a file name of ours in a folder, or for ".tmp"

// Refuses an empty path and a path of more than PATH_LIMIT bytes. `what` (the option it came from) begins the message.
static inline bool path_check(const char *path, const char *what, Error *error) {
    size_t n = strlen(path);
    return (n > 0 && n <= PATH_LIMIT) ||
           fail(error, "%s: the path has %zu bytes, expected 1 to %d", what, n, PATH_LIMIT);
}

// Copies the first n bytes of text and a NUL; n < MAX_PATH_BYTES.
static inline void path_copy(char *out, const char *text, size_t n) {
    memcpy(out, text, n);
    out[n] = '\0';
}

static inline bool ends_with(const char *text, const char *suffix) {
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && memcmp(text + n - m, suffix, m) == 0;
}

// Writes dir/name into out (MAX_PATH_BYTES).
static inline bool path_join(char *out, const char *dir, const char *name, Error *error) {
    const char *slash = dir[0] == '\0' || ends_with(dir, "/") ? "" : "/";
    return snprintf(out, MAX_PATH_BYTES, "%s%s%s", dir, slash, name) < MAX_PATH_BYTES ||
           fail(error, "%.200s...: path longer than %d bytes", dir, MAX_PATH_BYTES - 1);
}

// Writes the folder that holds path into out (MAX_PATH_BYTES). path is shorter than MAX_PATH_BYTES.
static inline void path_parent(char *out, const char *path) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL) { slash = path = "."; }
    path_copy(out, path, slash == path ? 1 : (size_t)(slash - path));
}

static inline const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static inline bool path_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static inline bool path_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

// Reports the system call that has just failed. Reads errno.
static inline bool fail_system(Error *error, const char *path, const char *action) {
    return fail(error, "%s: cannot %s: %s", path, action, strerror(errno));
}

static inline bool files_check_ordinary(int fd, const char *path, struct stat *info, Error *error) {
    if (fstat(fd, info) != 0) { return fail_system(error, path, "read"); }
    if (S_ISDIR(info->st_mode)) { return fail(error, "%s: is a folder, expected a file", path); }
    return S_ISREG(info->st_mode) || fail(error, "%s: is a device or pipe, expected an ordinary file", path);
}

// ---- Clocks and small arithmetic ----

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

// Returns the unit in which people read a byte count. *scale: the bytes of the unit.
static inline const char *bytes_unit(int64_t bytes, double *scale) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    for (*scale = 1.0; (double)bytes >= 1024.0 * *scale && unit < 5; unit++) { *scale *= 1024.0; }
    return units[unit];
}

// A few words to print. A function returns them whole, so that a message can be made of several calls.
typedef struct {
    char text[160];
} ShortText;

// Returns a byte count for people, e.g. "1.86 GiB" or "512 B".
static inline ShortText bytes_text(int64_t bytes) {
    ShortText text;
    double scale;
    const char *unit = bytes_unit(bytes, &scale);
    snprintf(text.text, sizeof(text.text), scale == 1.0 ? "%.0f %s" : "%.2f %s", (double)bytes / scale, unit);
    return text;
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

#endif // LLMC_UTILS_H
