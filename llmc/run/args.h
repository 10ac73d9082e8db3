// Reads a command line by a table of options, which also gives --help, the checks and the record of a run.
//
// A program lists its options as ArgSpec rows that point into a plain struct, and calls args_parse once. It takes
// "--name value", "--name=value", "-alias value" (an alias may have several letters), and for a flag a bare "--name".
// It refuses everything else in one line that names the option, its range and its default: an unknown option, a missing
// or malformed value, a value out of range, a stray word. Of an option given twice it takes the last value, because
// people append to the command lines of scripts.
#ifndef LLMC_ARGS_H
#define LLMC_ARGS_H

#include "llmc/base/utils.h"

#include <ctype.h>
#include <math.h>

typedef enum {
    ARG_INT,    // int64_t: decimal digits only, so "1e4", "8x" and "0x10" are refused
    ARG_REAL,   // double: decimal and finite, so "nan" and "inf" are refused
    ARG_TEXT,   // const char * into argv
    ARG_CHOICE, // const char * into argv or the table: one word of `value`
    ARG_FLAG    // bool: bare, or followed by 0 or 1
} ArgType;

// The C type behind each ArgType, for structs generated from a table.
#define ARG_FIELD_INT int64_t
#define ARG_FIELD_REAL double
#define ARG_FIELD_TEXT const char *
#define ARG_FIELD_CHOICE const char *
#define ARG_FIELD_FLAG bool

typedef struct {
    const char *name;     // long name, without the dashes
    const char *aliases;  // short names without the dash, separated by spaces; "" for none
    ArgType type;         //
    size_t place;         // offset of the value in the struct of options
    const char *fallback; // the default, written as a user would write it
    double min, max;      // inclusive; of a number (ARG_INT: at most LARGEST_WHOLE) or of a text's bytes
    const char *value;    // the value's name in --help; ARG_CHOICE: its words, as "cosine|linear"
    const char *needs;    // terms, separated by spaces, that must hold where the option is used (below); "": none
    const char *help;     // --help ends at the first semicolon, --help all shows all of it
} ArgSpec;

// A term of `needs` has alternatives, divided by "|": "keep" (the value of --keep is not 0 or empty), "optimizer=muon"
// (--optimizer has this value), "!overwrite" (not). "tcp:server-ip" is a term for the value tcp only. A term in
// capitals names a kind of program, and a program of another kind refuses the option.
typedef struct {
    const char *name;                // of the program
    const char *usage;               // the words after its name, e.g. "[options] FILE..."
    const char *summary;             // lines for --help, without the last newline
    const char *example;             // the words after its name in an example
    const ArgSpec *specs;            //
    int num_specs;                   // at most ARGS_MAX_SPECS
    bool takes_positionals;          // allows words that are not options
    bool *given;                     // (num_specs), set by args_parse: the command line has this option; or NULL
    const char *common;              // names of the options that --help shows on a line each; NULL: all, whole
    const char *const *groups;       // an option, the heading before it, and so on, the last NULL; or NULL
    const char *const (*foreign)[2]; // options of other programs (names, what to give), the last row NULL; or NULL
    bool silent;                     // prints nothing: one process speaks for all that a launcher has started
    const char *lacks, *refusal;     // a term in capitals, and the answer to options that need it; or both NULL
} ArgsProgram;

typedef enum { ARGS_RUN, ARGS_SHOWED_HELP, ARGS_SHOWED_VERSION } ArgsOutcome; // the program ends unless ARGS_RUN

#define ARGS_MAX_SPECS 128
#define ARGS_MAX_PATH 4000 // bytes of a path: leaves room in MAX_PATH_BYTES for the names of files in a folder
#define ARGS_MAX_TEXT 4096 // bytes of a value in a message

// Returns `length` bytes of an argument for an error message: in quotes, cut if they are many.
static inline ShortText args_quote(const char *argument, size_t length) {
    ShortText text;
    snprintf(text.text, sizeof(text.text), "'%.*s%s'", length < 41 ? (int)length : 41, argument,
             length > 41 ? "..." : "");
    return text;
}

// Returns an option's name for an error message: "--batch-size (-b)".
static inline ShortText args_label(const ArgSpec *spec) {
    ShortText text;
    int alias = (int)strcspn(spec->aliases, " ");
    snprintf(text.text, sizeof(text.text), "--%s%s%.*s%s", spec->name, alias > 0 ? " (-" : "", alias, spec->aliases,
             alias > 0 ? ")" : "");
    return text;
}

// Returns true if a list, whose words are divided by `separator`, contains word.
static inline bool args_list_has(const char *list, char separator, const char *word, size_t length) {
    while (*list != '\0') {
        const char *end = strchr(list, separator);
        size_t n = end != NULL ? (size_t)(end - list) : strlen(list);
        if (n == length && memcmp(list, word, n) == 0) { return true; }
        list += n + (end != NULL);
    }
    return false;
}

// Tells whether this program refuses an option, and does not show it.
static inline bool args_lacks(const ArgsProgram *program, const ArgSpec *spec) {
    return program->lacks != NULL && args_list_has(spec->needs, ' ', program->lacks, strlen(program->lacks));
}

// Tells whether text is the value of a flag. text may be NULL.
static inline bool args_is_digit(const char *text) {
    return text != NULL && (strcmp(text, "0") == 0 || strcmp(text, "1") == 0);
}

// Tells whether the word after an option can be its value: a word without a dash, or a number. text may be NULL.
static inline bool args_is_value(const char *text) {
    return text != NULL && (text[0] != '-' || isdigit((unsigned char)text[1]));
}

// Reads a finite decimal number such as 0.1, -3 or 6e-4, and nothing else.
static inline bool args_read_real(const char *text, double *value) {
    if (*text == '\0' || text[strspn(text, "0123456789.+-eE")] != '\0') { return false; }
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}

// Tells whether a default, or a value, stands for "not given".
static inline bool args_is_off(const char *value) { return args_list_has("|0|-1", '|', value, strlen(value)); }

// Writes the values that an option takes: "a whole number from 1 to 64 (default 4)".
static inline void args_expected(char *text, size_t size, const ArgSpec *spec) {
    char range[64], fallback[160] = "";
    snprintf(range, sizeof(range), "%.16g to %.16g", spec->min, spec->max);
    if (spec->fallback[0] != '\0') { snprintf(fallback, sizeof(fallback), " (default %s)", spec->fallback); }
    switch (spec->type) {
    case ARG_INT: snprintf(text, size, "a whole number from %s%s", range, fallback); break;
    case ARG_REAL: snprintf(text, size, "a number from %s%s", range, fallback); break;
    case ARG_TEXT: snprintf(text, size, "%s of %s bytes%s", spec->value, range, fallback); break;
    case ARG_CHOICE: snprintf(text, size, "one of %s%s", spec->value, fallback); break;
    case ARG_FLAG: snprintf(text, size, "0 or 1%s", fallback); break;
    }
}

// Stores a value, given as text, in the struct of options. Returns false if it is malformed or out of range.
static inline bool args_store(const ArgSpec *spec, void *options, const char *text) {
    void *place = (char *)options + spec->place;
    double length = (double)strlen(text), real;
    int64_t whole;
    bool ok = false;
    switch (spec->type) {
    case ARG_INT:
        ok = read_whole(text, &whole) && (double)whole >= spec->min && (double)whole <= spec->max;
        if (ok) { *(int64_t *)place = whole; }
        break;
    case ARG_REAL:
        ok = args_read_real(text, &real) && real >= spec->min && real <= spec->max;
        if (ok) { *(double *)place = real; }
        break;
    case ARG_TEXT:
    case ARG_CHOICE:
        ok = spec->type == ARG_TEXT ? length >= spec->min && length <= spec->max
                                    : args_list_has(spec->value, '|', text, strlen(text));
        if (ok) { *(const char **)place = text; }
        break;
    case ARG_FLAG:
        ok = args_is_digit(text);
        if (ok) { *(bool *)place = text[0] == '1'; }
        break;
    }
    return ok;
}

// Writes an option's current value. Equal values give equal texts: "3e-4" and "0.0003" both give "0.0003".
static inline void args_value_text(const ArgSpec *spec, const void *options, char *text, size_t size) {
    const void *place = (const char *)options + spec->place;
    switch (spec->type) {
    case ARG_INT: snprintf(text, size, "%lld", (long long)*(const int64_t *)place); break;
    case ARG_REAL: format_real(text, size, *(const double *)place); break;
    case ARG_TEXT:
    case ARG_CHOICE: snprintf(text, size, "%s", *(const char *const *)place); break;
    case ARG_FLAG: snprintf(text, size, "%d", *(const bool *)place ? 1 : 0); break;
    }
}

// Returns the place in the table of the option with this long name, or -1.
static inline int args_find_name(const ArgsProgram *program, const char *name, size_t length) {
    for (int i = 0; i < program->num_specs; i++) {
        const char *known = program->specs[i].name;
        if (strlen(known) == length && memcmp(known, name, length) == 0) { return i; }
    }
    return -1;
}

// Returns the place of the option that an argument such as "--lr=1" or "-l" names, or -1. `length` excludes "=...".
static inline int args_find(const ArgsProgram *program, const char *argument, size_t length) {
    if (length < 2 || argument[0] != '-') { return -1; }
    if (length > 2 && argument[1] == '-') { return args_find_name(program, argument + 2, length - 2); }
    for (int i = 0; i < program->num_specs; i++) {
        if (args_list_has(program->specs[i].aliases, ' ', argument + 1, length - 1)) { return i; }
    }
    return -1;
}

// Returns the bytes of the longer of two words that lie neither in their common beginning nor in their common end.
static inline size_t args_distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b), shorter = n < m ? n : m, begin = 0, end = 0;
    while (begin < shorter && a[begin] == b[begin]) { begin++; }
    while (end < shorter - begin && a[n - 1 - end] == b[m - 1 - end]) { end++; }
    return (n > m ? n : m) - begin - end;
}

// Returns the long name nearest to a mistyped name without dashes, or NULL if the first byte or more than half of it
// differs. A name that begins with it ("batch-size" with "batch") differs by one byte at most.
static inline const char *args_guess(const ArgsProgram *program, const char *typed) {
    const char *nearest = NULL;
    size_t length = strlen(typed), least = length / 2 + 1;
    for (int i = 0; i < program->num_specs; i++) {
        const char *name = program->specs[i].name;
        size_t distance = args_distance(typed, name);
        if (length > 1 && distance > 1 && strncmp(name, typed, length) == 0) { distance = 1; }
        if (*name != *typed || distance >= least || args_lacks(program, &program->specs[i])) { continue; }
        least = distance, nearest = name;
    }
    return nearest;
}

// ---- Help ----

// Prints an option: in brief, on one line with its help up to a semicolon, or with all of its help on a second line.
static inline void args_print_option(FILE *out, const ArgSpec *spec, bool all) {
    char left[256], right[1024], fallback[160] = "";
    int alias = (int)strcspn(spec->aliases, " ");
    snprintf(left, sizeof(left), "%s%.*s%s--%s%s%s", alias > 0 ? "-" : "", alias, spec->aliases, alias > 0 ? ", " : "",
             spec->name, spec->value[0] != '\0' ? " " : "", spec->value);
    if (all ? spec->fallback[0] != '\0' : !args_is_off(spec->fallback)) {
        snprintf(fallback, sizeof(fallback), " (default %s)", spec->fallback);
    }
    snprintf(right, sizeof(right), "%.*s%s", (int)strcspn(spec->help, all ? "" : ";"), spec->help, fallback);
    say(out, all ? "  %s\n" : "  %-26s", left);
    say(out, all ? "      %s\n" : "%s\n", right);
}

// Prints the options in the order of the table: all of them in their groups, or the common ones, on one screen.
static inline void args_print_help(FILE *out, const ArgsProgram *program, bool all) {
    const char *common = all ? NULL : program->common;
    say(out, "Usage: %s %s\n", program->name, program->usage);
    say_lines(out, program->summary);
    say(out, "\n");
    for (int i = 0; i < program->num_specs; i++) {
        const ArgSpec *spec = &program->specs[i];
        bool shows = common == NULL || args_list_has(common, ' ', spec->name, strlen(spec->name));
        if (!shows || args_lacks(program, spec)) { continue; }
        for (const char *const *group = program->groups; common == NULL && group != NULL && *group != NULL;
             group += 2) {
            if (strcmp(group[0], spec->name) == 0) { say(out, "\n%s\n", group[1]); }
        }
        args_print_option(out, spec, common == NULL);
    }
    say(out, common == NULL ? "\n  -h, --help, --version%s\n" : "  -h, --help, --version%s\n",
        program->common != NULL ? "     this text, the version; --help all: every option" : "");
    say(out, "Example: %s %s\n", program->name, program->example);
}

// ---- What an option needs ----

// Tells whether an alternative of a term holds. Appends what it names to `names`: "--out-dir (-o)", "--optimizer muon".
static inline bool args_need_holds(const ArgsProgram *program, const void *options, const char *need, char *names,
                                   size_t size) {
    bool negated = need[0] == '!';
    const char *name = need + negated, *wanted = strchr(name, '=');
    const ArgSpec *spec = &program->specs[args_find_name(program, name, strcspn(name, "="))];
    char value[ARGS_MAX_TEXT];
    size_t used = strlen(names);
    ShortText label = args_label(spec);
    args_value_text(spec, options, value, sizeof(value));
    bool is_zero = strcmp(value, "0") == 0, holds = value[0] != '\0' && !is_zero;
    if (wanted != NULL) {
        snprintf(label.text, sizeof(label.text), "--%s %s", spec->name, wanted + 1);
        holds = strcmp(value, wanted + 1) == 0;
    }
    const char *joint = used > 0 ? " or " : negated ? "no " : "";
    const char *other = wanted == NULL && is_zero && spec->type == ARG_INT ? " other than 0" : "";
    snprintf(names + used, size - used, "%s%s%s", joint, label.text, other);
    return holds != negated;
}

// Checks what an option that is given needs.
static inline bool args_check_needs(const ArgsProgram *program, const void *options, const ArgSpec *spec,
                                    Error *error) {
    char value[ARGS_MAX_TEXT], terms[256], *rest, *further;
    args_value_text(spec, options, value, sizeof(value));
    if (strcmp(value, spec->fallback) == 0 && args_is_off(value)) { return true; }
    snprintf(terms, sizeof(terms), "%s", spec->needs);
    for (char *term = strtok_r(terms, " ", &rest); term != NULL; term = strtok_r(NULL, " ", &rest)) {
        char *colon = strchr(term, ':'), names[256] = "";
        bool holds = isupper((unsigned char)term[0]);
        ShortText label = args_label(spec);
        if (colon != NULL) {
            *colon = '\0';
            holds = strcmp(value, term) != 0;
            snprintf(label.text, sizeof(label.text), "--%s %s", spec->name, term);
            term = colon + 1;
        }
        for (char *need = strtok_r(term, "|", &further); need != NULL && !holds; need = strtok_r(NULL, "|", &further)) {
            holds = args_need_holds(program, options, need, names, sizeof(names));
        }
        if (!holds) { return fail(error, "%s: needs %s", label.text, names); }
    }
    return true;
}

// ---- Parsing ----

// Fills the error for an argument that begins with a dash and names no option: other programs have it, or it resembles
// one of ours. "learning_rate" is "learning-rate".
static inline bool args_fail_unknown(const ArgsProgram *program, const char *argument, size_t length, Error *error) {
    char name[64];
    ShortText typed = args_quote(argument, length);
    size_t dashes = strspn(argument, "-");
    snprintf(name, sizeof(name), "%.*s", (int)(length > dashes ? length - dashes : 0), argument + dashes);
    for (char *c = name; *c != '\0'; c++) { *c = *c == '_' ? '-' : *c; }
    for (int i = 0; program->foreign != NULL && program->foreign[i][0] != NULL; i++) {
        if (!args_list_has(program->foreign[i][0], ' ', name, strlen(name))) { continue; }
        return fail(error, "%s: unknown option; %s", typed.text, program->foreign[i][1]);
    }
    const char *near = args_guess(program, name);
    return fail(error, "%s: unknown option%s%s (%s lists all)", typed.text, near != NULL ? "; the nearest is --" : "",
                near != NULL ? near : "", program->common != NULL ? "--help all" : "--help");
}

// Returns true if "-h" asks for help. If an option has the alias "h", "-h" with a value sets that option.
static inline bool args_is_help(const ArgsProgram *program, const char *argument, const char *next) {
    if (strcmp(argument, "--help") == 0) { return true; }
    bool sets = args_is_value(next) && strcmp(next, "all") != 0 && args_find(program, "-h", 2) >= 0;
    return strcmp(argument, "-h") == 0 && !sets;
}

// Returns the value of an option, from its argument after "=" or from the next one, and then moves *i there. NULL: the
// value is missing (another option follows, or nothing). A bare flag is "1", and so is a choice that has this word.
static inline const char *args_take_value(const ArgsProgram *program, const ArgSpec *spec, char **argv, int *i) {
    const char *equals = strchr(argv[*i], '='), *next = argv[*i + 1];
    if (equals != NULL) { return equals + 1; }
    if (spec->type == ARG_FLAG) {
        bool word = args_is_value(next) && !program->takes_positionals; // a wrong value, not a file name
        if (!args_is_digit(next) && !word) { return "1"; }
    } else if (next == NULL || strcmp(next, "--") == 0 || strcmp(next, "--help") == 0 ||
               args_find(program, next, strcspn(next, "=")) >= 0) {
        return spec->type == ARG_CHOICE && args_list_has(spec->value, '|', "1", 1) ? "1" : NULL;
    }
    return argv[++*i];
}

// Takes the option in argv[*i]. Moves *i to its last argument.
static inline bool args_take_option(const ArgsProgram *program, void *options, char **argv, int *i, bool *given,
                                    Error *error) {
    char expected[512];
    size_t length = strcspn(argv[*i], "=");
    int index = args_find(program, argv[*i], length);
    if (index < 0) { return args_fail_unknown(program, argv[*i], length, error); }
    const ArgSpec *spec = &program->specs[index];
    ShortText label = args_label(spec);
    args_expected(expected, sizeof(expected), spec);
    if (args_lacks(program, spec)) { return fail(error, "%s: %s", label.text, program->refusal); }
    const char *value = args_take_value(program, spec, argv, i);
    if (value == NULL) { return fail(error, "%s: value missing, expected %s", label.text, expected); }
    ShortText typed = args_quote(value, strlen(value));
    if (!args_store(spec, options, value)) {
        if (spec->type == ARG_TEXT) { snprintf(typed.text, sizeof(typed.text), "%zu bytes", strlen(value)); }
        return fail(error, "%s: got %s, expected %s", label.text, typed.text, expected);
    }
    given[index] = true;
    return true;
}

// Sets `options` from the defaults and the command line, which ends with a NULL. --help and --version print to standard
// output and set *outcome. ShortText that are not options (a lone "-", and everything after "--") move to
// argv[1 ... *num_positionals], which may be NULL if the program takes none. Text values point into argv or the table.
static inline bool args_parse(const ArgsProgram *program, void *options, int argc, char **argv, int *num_positionals,
                              ArgsOutcome *outcome, Error *error) {
    bool taken[ARGS_MAX_SPECS] = {false}, *given = program->given != NULL ? program->given : taken;
    bool only_words = false; // after "--"
    int words = 0;
    *outcome = ARGS_RUN;
    for (int i = 0; i < program->num_specs; i++) {
        const ArgSpec *spec = &program->specs[i];
        given[i] = false;
        if (args_store(spec, options, spec->fallback)) { continue; }
        *(const char **)((char *)options + spec->place) = spec->fallback; // an empty text: "not given"
    }
    for (int i = 1; i < argc; i++) {
        const char *next = argv[i + 1];
        if (only_words || argv[i][0] != '-' || argv[i][1] == '\0') {
            if (!program->takes_positionals) {
                return fail(error, "%s: unexpected word; options begin with a dash, patterns ('x*.bin') need quotes",
                            args_quote(argv[i], strlen(argv[i])).text);
            }
            argv[++words] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            only_words = true;
        } else if (args_is_help(program, argv[i], next)) {
            if (!program->silent) { args_print_help(stdout, program, next != NULL && strcmp(next, "all") == 0); }
            *outcome = ARGS_SHOWED_HELP;
            return true;
        } else if (strcmp(argv[i], "--version") == 0) {
            if (!program->silent) { say(stdout, "%s %s\n", program->name, GPT2C_VERSION); }
            *outcome = ARGS_SHOWED_VERSION;
            return true;
        } else if (!args_take_option(program, options, argv, &i, given, error)) {
            return false;
        }
    }
    if (num_positionals != NULL) { *num_positionals = words; }
    for (int i = 0; i < program->num_specs; i++) {
        if (given[i] && !args_check_needs(program, options, &program->specs[i], error)) { return false; }
    }
    return true;
}

#endif // LLMC_ARGS_H
