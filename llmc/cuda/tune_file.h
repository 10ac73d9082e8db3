// Keeps what earlier starts have measured: which algorithm or kernel is the fastest, one line of text for each choice.
//
//   gpt2.c matmul choices 1 | NVIDIA H100 80GB HBM3, 132 multiprocessors | cuBLASLt 130100
//   <hash of the rest of the line> <the choice, 64 bytes in hex> <what it was made for>
//
// A choice is good for one kind of GPU and one version of cuBLASLt: the first line names them. The checksums find a
// damaged line, also one that two programs have written to at once. Unusable content is left out, with a notice.
//
// There are two files of this form: the user's file, in the folder for caches, which all runs on this machine share,
// and the run's file, in the folder of a run. One table says which choices are kept where:
//
//   choice                     changes bits   is read from                  where a resumed run does not find it
//   matmul, --matmul-tune 1    no             the user's file               it is timed
//   matmul, --matmul-tune 2    yes            the run's, the user's file    the run needs --allow-changes
//   attention                  yes            the run's, the user's file    it is timed
//
// Each choice that is timed goes into the user's file. Each choice that changes bits goes into the run's file.
#ifndef LLMC_TUNE_FILE_H
#define LLMC_TUNE_FILE_H

#include "llmc/base/files.h"
#include "llmc/base/hash.h"
#include "llmc/base/input_file.h"
#include "llmc/base/text.h"

#define TUNE_MAGIC "gpt2.c matmul choices 1 | "
#define TUNE_ANY_BITS_KEY "any bits " // a matmul's key begins so at --matmul-tune 2
#define TUNE_RUN_FILE "choices.txt"   // in the run's folder
#define TUNE_KEY_BYTES 192
#define TUNE_CHOICE_BYTES 64
#define TUNE_MAX_ENTRIES 1024 // about 20 for each shape of a run; the oldest entry makes room
#define TUNE_LINE_BYTES (16 + 1 + 2 * TUNE_CHOICE_BYTES + 1 + TUNE_KEY_BYTES)
#define TUNE_HEADER_BYTES 512
#define TUNE_MAX_FILE_BYTES ((int64_t)2 * TUNE_MAX_ENTRIES * TUNE_LINE_BYTES)

typedef struct {
    char key[TUNE_KEY_BYTES]; // the problem of the choice, in words
    uint8_t choice[TUNE_CHOICE_BYTES];
} TuneEntry;

// Large: not for the stack of a deep call.
typedef struct {
    char header[TUNE_HEADER_BYTES]; // the first line, without its newline
    int count;
    TuneEntry entries[TUNE_MAX_ENTRIES]; // oldest first
} TuneTable;

// Writes the first line of a file to header (TUNE_HEADER_BYTES).
static inline void tune_header(char *header, const char *gpu, int multiprocessors, long version) {
    snprintf(header, TUNE_HEADER_BYTES, TUNE_MAGIC "%.300s, %d multiprocessors | cuBLASLt %ld", gpu, multiprocessors,
             version);
}

// Makes an empty table for a GPU and a version of cuBLASLt.
static inline void tune_table_init(TuneTable *table, const char *gpu, int multiprocessors, long version) {
    memset(table, 0, sizeof(*table));
    tune_header(table->header, gpu, multiprocessors, version);
}

// Returns the bytes of a table without its unused entries.
static inline int64_t tune_table_bytes(const TuneTable *table) {
    return (int64_t)offsetof(TuneTable, entries) + table->count * (int64_t)sizeof(TuneEntry);
}

static inline TuneEntry *tune_table_find(const TuneTable *table, const char *key) {
    for (int i = 0; i < table->count; i++) {
        if (strcmp(table->entries[i].key, key) == 0) { return (TuneEntry *)&table->entries[i]; }
    }
    return NULL;
}

// Sets the choice of a key. A new key becomes the newest entry.
static inline void tune_table_set(TuneTable *table, const char *key, const void *choice) {
    TuneEntry *entry = tune_table_find(table, key);
    if (entry == NULL && table->count == TUNE_MAX_ENTRIES) {
        memmove(table->entries, table->entries + 1, (TUNE_MAX_ENTRIES - 1) * sizeof(TuneEntry));
        table->count--;
    }
    if (entry == NULL) { entry = &table->entries[table->count++]; }
    snprintf(entry->key, sizeof(entry->key), "%s", key);
    memcpy(entry->choice, choice, TUNE_CHOICE_BYTES);
}

// ---- Lines ----

static inline void tune_format_line(Text *text, const TuneEntry *entry) {
    char rest[TUNE_LINE_BYTES + 1];
    for (int i = 0; i < TUNE_CHOICE_BYTES; i++) { snprintf(rest + 2 * i, 3, "%02x", entry->choice[i]); }
    snprintf(rest + 2 * TUNE_CHOICE_BYTES, sizeof(rest) - 2 * TUNE_CHOICE_BYTES, " %s", entry->key);
    text_printf(text, "%016llx %s\n", (unsigned long long)hash64(rest, strlen(rest)), rest);
}

// Returns the value of a hex digit, or -1.
static inline int tune_hex_digit(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *found = c != '\0' ? strchr(digits, c) : NULL;
    return found != NULL ? (int)(found - digits) : -1;
}

// Reads a line of n bytes without its newline. Returns false if the line is damaged.
static inline bool tune_parse_line(const char *line, int64_t n, TuneEntry *entry) {
    const int64_t choice_at = 17, key_at = choice_at + 2 * TUNE_CHOICE_BYTES + 1;
    char sum[17];
    if (n <= key_at || n - key_at >= TUNE_KEY_BYTES) { return false; }
    for (int64_t i = 0; i < n; i++) {
        if (line[i] < ' ' || line[i] > '~') { return false; } // a person may look at the file
    }
    snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)hash64(line + choice_at, (size_t)(n - choice_at)));
    if (memcmp(line, sum, 16) != 0 || line[16] != ' ' || line[key_at - 1] != ' ') { return false; }
    for (int i = 0; i < TUNE_CHOICE_BYTES; i++) {
        int high = tune_hex_digit(line[choice_at + 2 * i]), low = tune_hex_digit(line[choice_at + 2 * i + 1]);
        if (high < 0 || low < 0) { return false; }
        entry->choice[i] = (uint8_t)(16 * high + low);
    }
    memcpy(entry->key, line + key_at, (size_t)(n - key_at));
    entry->key[n - key_at] = '\0';
    return true;
}

// Adds the entries of the lines behind the first one. Returns the number of damaged lines. A last line without a
// newline is damaged.
static inline int tune_read_lines(TuneTable *table, const char *text, int64_t bytes) {
    int damaged = 0;
    while (bytes > 0) {
        const char *end = (const char *)memchr(text, '\n', (size_t)bytes);
        int64_t n = end != NULL ? end - text : bytes;
        TuneEntry entry;
        if (end != NULL && tune_parse_line(text, n, &entry)) {
            tune_table_set(table, entry.key, entry.choice);
        } else {
            damaged++;
        }
        n = min_i64(n + 1, bytes);
        text += n, bytes -= n;
    }
    return damaged;
}

// ---- Files ----

typedef enum {
    TUNE_FILE_READ,   // the file was read, or it does not exist
    TUNE_FILE_NOTICE, // the file was read in part; the notice says why
    TUNE_FILE_FOREIGN // the file cannot be read or is of another kind: it must not be written to; the notice says why
} TuneFileState;

static inline TuneFileState tune_read_text(TuneTable *table, const char *path, const char *text, int64_t bytes,
                                           Error *notice) {
    const char *end = (const char *)memchr(text, '\n', (size_t)bytes);
    int64_t n = end != NULL ? end - text : bytes;
    if (n < (int64_t)strlen(TUNE_MAGIC) || memcmp(text, TUNE_MAGIC, strlen(TUNE_MAGIC)) != 0) {
        fail(notice, "%s: not a file of choices for matrix multiplies; left as it is, give another --matmul-tune-file",
             path);
        return TUNE_FILE_FOREIGN;
    }
    if (n != (int64_t)strlen(table->header) || memcmp(text, table->header, (size_t)n) != 0) {
        fail(notice, "%s: from another GPU or cuBLASLt, or its first line is damaged; begun anew", path);
        return TUNE_FILE_NOTICE;
    }
    int damaged = end != NULL ? tune_read_lines(table, end + 1, bytes - n - 1) : 0;
    if (damaged == 0) { return TUNE_FILE_READ; }
    fail(notice, "%s: %d damaged line%s left out", path, damaged, damaged == 1 ? "" : "s");
    return TUNE_FILE_NOTICE;
}

// Adds the entries of a file to a table that tune_table_init has made.
static inline TuneFileState tune_file_read(TuneTable *table, const char *path, Error *notice) {
    uint8_t *text;
    int64_t bytes;
    if (!path_exists(path) && (errno == ENOENT || errno == ENOTDIR)) { return TUNE_FILE_READ; }
    if (!read_whole_file(path, TUNE_MAX_FILE_BYTES, &text, &bytes, notice)) { return TUNE_FILE_FOREIGN; }
    TuneFileState state = bytes == 0 ? TUNE_FILE_READ : tune_read_text(table, path, (const char *)text, bytes, notice);
    free(text);
    return state;
}

// Writes a table, whole or not at all, and makes the folders above it.
static inline bool tune_file_write(const TuneTable *table, const char *path, Error *error) {
    char folder[MAX_PATH_BYTES];
    Text text = {NULL, 0, 0, false};
    text_printf(&text, "%s\n", table->header);
    for (int i = 0; i < table->count; i++) { tune_format_line(&text, &table->entries[i]); }
    path_parent(folder, path);
    bool ok = !text.failed || fail(error, "%s: out of memory", path);
    ok = ok && make_directories(folder, error) && write_whole_file(path, text.data, (int64_t)text.used, 0666, error);
    text_free(&text);
    return ok;
}

// The user's file for a GPU where no option names one: $XDG_CACHE_HOME or ~/.cache, then gpt2.c/matmul_<GPU>_<version>.
// Returns false, with a notice, if neither folder is known.
static inline bool tune_file_default(char *path, const char *gpu, long version, Error *notice) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char name[160];
    bool has_cache = cache != NULL && cache[0] == '/', has_home = home != NULL && home[0] == '/';
    if (!has_cache && !has_home) {
        return fail(notice, "neither HOME nor XDG_CACHE_HOME is set, so that choices are not kept; give "
                            "--matmul-tune-file");
    }
    snprintf(name, sizeof(name), "matmul_%.100s_%ld.txt", gpu, version);
    for (char *c = name; *c != '\0'; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (!plain && *c != '.' && *c != '-') { *c = '_'; }
    }
    const char *above = has_cache ? cache : home, *between = has_cache ? "" : "/.cache";
    int n = snprintf(path, MAX_PATH_BYTES, "%s%s/gpt2.c/%s", above, between, name);
    return n <= PATH_LIMIT || fail(notice, "%.200s...: the path of the folder for caches is too long", above);
}

// ---- The choices of a run ----

// A run's demands on the files.
typedef struct {
    const char *user_path;  // --matmul-tune-file; "": tune_file_default
    const char *run_folder; // the folder of a run that is resumed; "": the run is new
    bool writes_user;       // one process of a machine writes the user's file
    bool must_know;         // the run's file must hold the matmuls' choices, or there is no run
    bool must_keep;         // choices must reach the user's file, or there is no run
} TuneWants;

typedef struct {
    TuneWants wants;
    TuneTable user, run; // the contents of the two files
    char user_path[MAX_PATH_BYTES];
    TuneFileState user_state;
    Error user_notice;
    bool user_changed;
    Text text; // whole lines for a person; empty: there was nothing to choose
} Tuning;

static inline void tuning_notice(Tuning *t, const Error *notice) {
    text_line(&t->text, "            %s", notice->text);
}

// The run cannot have the choices of its earlier part.
static inline bool tuning_fail_unknown(const char *path, const char *why, Error *error) {
    return fail(error,
                "--matmul-tune 2: %.2000s: %.2000s; a resumed run needs its algorithms for the same bits; resume where "
                "they can be had, or give --allow-changes to choose anew",
                path, why);
}

// Reads the run's file. Earlier versions wrote one file for matmuls and one for attention, both in this form.
static inline bool tuning_read_run(Tuning *t, Error *error) {
    static const char *const names[] = {"matmul_choices.txt", "attention.txt", TUNE_RUN_FILE};
    char path[MAX_PATH_BYTES];
    bool known = !t->wants.must_know;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        Error notice;
        if (!path_join(path, t->wants.run_folder, names[i], error)) { return false; }
        if (tune_file_read(&t->run, path, &notice) == TUNE_FILE_READ) { continue; }
        if (t->wants.must_know) { return tuning_fail_unknown(path, notice.text, error); }
        tuning_notice(t, &notice);
    }
    for (int i = 0; i < t->run.count; i++) {
        known = known || strncmp(t->run.entries[i].key, TUNE_ANY_BITS_KEY, strlen(TUNE_ANY_BITS_KEY)) == 0;
    }
    return known || tuning_fail_unknown(path, "not there, or empty (was the run one of another --matmul-tune?)", error);
}

// Reads the files. Fails only over a file that the run must know or keep. Close with tuning_close.
static inline bool tuning_open(Tuning *t, const TuneWants *wants, const char *gpu, int multiprocessors, long version,
                               Error *error) {
    memset(t, 0, sizeof(*t));
    t->wants = *wants;
    tune_table_init(&t->user, gpu, multiprocessors, version);
    tune_table_init(&t->run, gpu, multiprocessors, version);
    snprintf(t->user_path, sizeof(t->user_path), "%s", wants->user_path);
    bool has_path = t->user_path[0] != '\0' || tune_file_default(t->user_path, gpu, version, &t->user_notice);
    t->user_state = has_path ? tune_file_read(&t->user, t->user_path, &t->user_notice) : TUNE_FILE_FOREIGN;
    if (wants->must_keep && t->user_state == TUNE_FILE_FOREIGN) {
        return fail(error, "--matmul-tune 2: %s", t->user_notice.text);
    }
    return wants->run_folder[0] == '\0' || tuning_read_run(t, error);
}

static inline void tuning_close(Tuning *t) { text_free(&t->text); }

// The choice that the files hold for a key, or NULL.
static inline const TuneEntry *tuning_find(Tuning *t, const char *key, bool changes_bits) {
    const TuneEntry *entry = changes_bits ? tune_table_find(&t->run, key) : NULL;
    return entry != NULL ? entry : tune_table_find(&t->user, key);
}

static inline bool tuning_is_of_run(const Tuning *t, const TuneEntry *entry) {
    return entry >= t->run.entries && entry < t->run.entries + TUNE_MAX_ENTRIES;
}

// Keeps a choice that was timed.
static inline void tuning_set_timed(Tuning *t, const char *key, const void *choice) {
    tune_table_set(&t->user, key, choice);
    t->user_changed = true;
}

// Writes the files that have something new. run_folder: where this process keeps the run's file; "": nowhere.
static inline bool tuning_save(Tuning *t, const char *run_folder, Error *error) {
    char path[MAX_PATH_BYTES];
    Error notice;
    if (t->user_changed && t->wants.writes_user && t->user_state != TUNE_FILE_FOREIGN) {
        bool kept = tune_file_write(&t->user, t->user_path, &notice);
        if (!kept && t->wants.must_keep) { return fail(error, "--matmul-tune 2: %s", notice.text); }
        if (kept) { text_line(&t->text, "            kept in %s", t->user_path); }
        if (!kept) { tuning_notice(t, &notice); }
    }
    t->user_changed = false;
    if (run_folder[0] == '\0' || t->run.count == 0) { return true; }
    if (!path_join(path, run_folder, TUNE_RUN_FILE, error) || !tune_file_write(&t->run, path, error)) { return false; }
    text_line(&t->text, "            the run's own, in %s", path);
    return true;
}

#endif // LLMC_TUNE_FILE_H
